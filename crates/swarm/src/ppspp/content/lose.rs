//! What was there and is not any more.

use std::time::Instant;

use anabranch_ppspp::binmap::Binmap;

use super::{Content, guarded};
use crate::events::{EventKind, FailureKind, PauseCause};
use crate::ppspp::describe::chunks_of;
use crate::store::watch::{changed_words, keep_watch};

impl Content {
    /// These files are not any more what was verified, or are gone. Their pieces are not offered until they are found good. Of a
    /// download nothing is fetched in their place meanwhile: whoever edited them may put them back.
    pub(crate) fn files_changed(&mut self, files: &[usize]) {
        let Some(storage) = self.storage.clone().filter(|_| !self.stopping) else { return };
        let new: Vec<usize> = files.iter().copied().filter(|file| self.in_doubt.insert(*file)).collect();
        let Some(first) = new.first() else { return };
        let pieces: Vec<u32> = new.iter().flat_map(|file| storage.info().pieces_of_file(*file)).collect();
        self.lose(&pieces);
        if self.resume.is_none() {
            let reason = changed_words(storage.info(), &new);
            self.tell(EventKind::Failed { kind: FailureKind::Content, reason });
        } else if !std::mem::replace(&mut self.store.is_paused, true) {
            self.update_hold();
            let path = storage.file_path(*first);
            let reason = format!("{} was changed since it was verified; put it back", path.display());
            self.tell(EventKind::Paused { cause: PauseCause::Storage, reason });
        }
        // What was announced cannot be taken back, but for a new handshake.
        self.close_all(Instant::now());
        for file in new {
            if let Some(this) = self.this() {
                self.spawn(guarded(this.clone(), keep_watch(this, file)));
            }
        }
    }

    /// All of a file that changed is the content again.
    pub(crate) fn file_restored(&mut self, file: usize) {
        self.in_doubt.remove(&file);
        match self.store.is_paused {
            true => self.storage_works_again(),
            false if self.in_doubt.is_empty() => self.tell(EventKind::Resumed),
            false => {}
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
                return self.fail(FailureKind::Content, reason);
            }
            // What was announced cannot be taken back, but for a new handshake.
            self.close_all(Instant::now());
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
