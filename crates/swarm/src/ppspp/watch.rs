//! Files that change while they are shared, and become the content again.

use std::ops::Range;
use std::sync::Arc;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::storage::Storage;

use super::content::finish::{finished, tree_again};
use super::content::{Handle, good_pieces};
use crate::events::{EventKind, FailureKind};
use crate::store::recheck::GoodOf;
use crate::store::watch::Watched;

impl Watched for Handle {
    fn watched_files(&self) -> Option<Arc<Storage>> {
        let state = self.borrow();
        state.storage.clone().filter(|_| !state.stopping)
    }

    fn hasher(&self) -> GoodOf {
        let (tree, front) = (tree_again(self), self.borrow().front());
        Box::new(move |storage, pieces| {
            let pieces: Vec<u32> = pieces.collect();
            Some(good_pieces((storage, front), &tree?, &pieces, &false.into(), &mut |_, _| {}))
        })
    }

    fn regain(&self, good: &Bitfield) {
        let mut state = self.borrow_mut();
        good.iter_ones().for_each(|piece| _ = state.have.set(piece));
        state.tell_core_what_is_here();
    }

    fn has_all(&self, mut pieces: Range<u32>) -> bool {
        let state = self.borrow();
        pieces.all(|piece| state.have.get(piece))
    }

    fn tell_shut_out(&self, reason: String) {
        self.borrow().tell(EventKind::Failed { kind: FailureKind::Content, reason });
    }

    fn restored(&self, file: usize) {
        let mut state = self.borrow_mut();
        state.file_restored(file);
        if state.core.is_complete() {
            finished(&mut state);
        }
    }
}
