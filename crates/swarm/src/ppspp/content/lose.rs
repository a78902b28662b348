//! What was there and is not any more.

use std::time::Instant;

use anabranch_ppspp::binmap::Binmap;

use super::Content;
use crate::events::{EventKind, FailureKind, PauseCause};
use crate::ppspp::{chunks_of, guarded};
use crate::store::watch::keep_watch;

impl Content {
    /// A file is not any more what was verified, or is gone. Its pieces are not offered until they are found good. Of a download
    /// nothing is fetched in their place meanwhile: whoever edited it may put it back.
    pub(crate) fn file_changed(&mut self, file: usize) {
        let Some(storage) = self.storage.clone().filter(|_| !self.stopping) else { return };
        if !self.in_doubt.insert(file) {
            return;
        }
        let pieces: Vec<u32> = storage.info().pieces_of_file(file).collect();
        self.lose(&pieces);
        if self.resume.is_none() {
            let path = storage.info().files[file].path.display();
            let reason = format!("{path} changed while it was shared: what is not the content any more is not offered");
            self.tell(EventKind::Failed { kind: FailureKind::Content, reason });
        } else if !std::mem::replace(&mut self.store.is_paused, true) {
            self.update_hold();
            let path = storage.file_path(file);
            let reason = format!("{} was changed since it was verified; put it back", path.display());
            self.tell(EventKind::Paused { cause: PauseCause::Storage, reason });
        }
        // What was announced cannot be taken back, but for a new handshake.
        self.close_all(Instant::now());
        if let Some(this) = self.this() {
            self.spawn(guarded(this.clone(), keep_watch(this, file)));
        }
    }

    /// All of a file that changed is the content again.
    pub(crate) fn file_restored(&mut self, file: usize) {
        self.in_doubt.remove(&file);
        match self.store.is_paused {
            true => self.storage_works_again(),
            false => self.tell(EventKind::Resumed),
        }
    }

    /// A chunk of a file cannot be read: its piece is lost.
    pub(super) fn lost(&mut self, chunk: u64, reason: &str) {
        let Some(info) = &self.info else { return };
        let piece = info.geometry.piece_at((chunk - self.front()) * u64::from(info.geometry.block_length()));
        if self.have.get(piece) {
            self.tell(EventKind::PieceFailed { index: piece });
            self.lose(&[piece]);
            if self.have.count() == 0 {
                let reason = format!("{reason}; share the file again when it is back");
                self.fail(FailureKind::Content, reason);
            }
        }
    }

    /// Pieces are not there any more.
    pub(crate) fn lose(&mut self, pieces: &[u32]) {
        let all = self.have.len();
        pieces.iter().filter(|piece| **piece < all).for_each(|piece| _ = self.have.clear(*piece));
        if let Some(buffers) = &mut self.buffers {
            pieces.iter().for_each(|piece| buffers.reopen(*piece));
        }
        self.is_finished = false;
        self.tell_core_what_is_here();
    }

    /// The core learns which pieces are there.
    pub(crate) fn tell_core_what_is_here(&mut self) {
        let Some(info) = &self.info else { return };
        let (mut have, front) = (self.head.as_ref().map_or(Binmap::new(), |head| head.have().clone()), self.front());
        for piece in self.have.iter_ones() {
            have.insert_range(chunks_of(info, front, piece));
        }
        self.core.set_have(have);
        self.wake.notify_one();
    }
}
