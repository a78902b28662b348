//! Pieces that were good once and are in doubt: because a file changed behind our back, or because the disk did not take what was
//! written.
//!
//! They are hashed where they lie. Of a download the bad ones are fetched again. Files that are only shared are
//! [watched](crate::store::watch) until they are the content again. And what lay there before its hashes were known is hashed once a
//! peer sent them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::storage::Storage;

use super::open::{guarded, wait_out};
use super::{TorrentDriver, TorrentHandle};
use crate::events::{EventKind, FailureKind};
use crate::store;
use crate::store::open::blocking;
use crate::store::recheck::GoodOf;
use crate::store::watch::{Watched, keep_watch};
use crate::transfer::files::FILES_POLL;

/// Hashes those of `pieces` that a download counts as good, after writing them once more where `rewrite` says so. What is not
/// good any more is fetched again. Answers how many that are.
pub(crate) async fn recheck(torrent: &TorrentHandle, pieces: Vec<u32>, rewrite: bool) -> usize {
    let (resume, layers, cancel, pieces) = {
        let state = torrent.borrow();
        let Some(resume) = state.resume.clone() else { return 0 };
        let counted = |piece: &u32| state.core.have().is_some_and(|have| have.get(*piece));
        let pieces: Vec<u32> = pieces.into_iter().filter(counted).collect();
        (resume, state.layers(), Arc::clone(&state.cancel), pieces)
    };
    if pieces.is_empty() {
        return 0;
    }
    let checked = pieces.clone();
    let good = blocking(move || store::recheck::hash_again(&resume, &layers, &checked, rewrite, &cancel));
    // Where the session is being left, the next start does this.
    let Some(good) = good.await else { return 0 };
    let lost: Vec<u32> = pieces.into_iter().filter(|piece| !good.get(*piece)).collect();
    let mut state = torrent.borrow_mut();
    lost.iter().for_each(|piece| state.tell(EventKind::PieceFailed { index: *piece }));
    state.lose(&lost);
    lost.len()
}

/// A file that is only shared is in doubt: looks at it now, and until all of it is good again.
pub(crate) fn watch(state: &TorrentDriver, file: usize) {
    if let Some(torrent) = state.this() {
        state.spawn(guarded(torrent.clone(), keep_watch(torrent, file)));
    }
}

impl Watched for TorrentHandle {
    fn watched_files(&self) -> Option<Arc<Storage>> {
        let state = self.borrow();
        state.storage.clone().filter(|_| !state.stopping)
    }

    fn hasher(&self) -> GoodOf {
        let state = self.borrow();
        let (layers, cancel) = (state.layers(), Arc::clone(&state.cancel));
        Box::new(move |storage, pieces| store::recheck::good_of(storage, &layers, pieces, &cancel))
    }

    fn regain(&self, good: &Bitfield) {
        self.borrow_mut().regain(good.iter_ones());
    }

    fn has_all(&self, mut pieces: Range<u32>) -> bool {
        self.borrow().core.have().is_some_and(|have| pieces.all(|piece| have.get(piece)))
    }

    fn restored(&self, file: usize) {
        let mut state = self.borrow_mut();
        state.in_doubt.remove(&file);
        if state.in_doubt.is_empty() {
            state.tell(EventKind::Resumed);
        }
    }

    fn tell_shut_out(&self, reason: String) {
        self.borrow().tell(EventKind::Failed { kind: FailureKind::Content, reason });
    }
}

/// The layer of a file came, and what of its `pieces` lay on disk before can be told now: what is good counts, and the rest may be
/// fetched, if the file is not one that has nothing to do with the content.
pub(crate) fn look_at(state: &TorrentDriver, pieces: Range<u32>) {
    if let Some(torrent) = state.this() {
        state.spawn(guarded(torrent.clone(), look(torrent, pieces)));
    }
}

async fn look(torrent: TorrentHandle, pieces: Range<u32>) {
    let Some(resume) = torrent.borrow().resume.clone() else { return };
    let layers = torrent.borrow().layers();
    let cancel = Arc::clone(&torrent.borrow().cancel);
    let of = pieces.clone();
    let good = blocking(move || store::recheck::good_of(resume.storage(), &layers, of, &cancel));
    // Where the session is being left, the next start does this.
    let Some(good) = good.await.map(Arc::new) else { return };
    let mut told = false;
    loop {
        // Whoever checks or moves the files has them alone, and they may be elsewhere then.
        while torrent.borrow().is_worked_on() {
            if torrent.borrow().stopping {
                return;
            }
            tokio::time::sleep(FILES_POLL).await;
        }
        let Some(resume) = torrent.borrow().resume.clone() else { return };
        let (good, of) = (Arc::clone(&good), pieces.clone());
        let taken = blocking(move || store::recheck::take_over(&resume, &good, of));
        let Err(error) = taken.await else { break };
        if !wait_out(&torrent, &error, &mut told).await {
            return;
        }
    }
    let mut state = torrent.borrow_mut();
    if state.stopping {
        return;
    }
    if told {
        state.tell(EventKind::Resumed);
    }
    state.regain(pieces.clone().filter(|piece| good.get(*piece)));
    let now = Instant::now();
    state.core.looked_at(&pieces, now);
    state.pump(now);
}
