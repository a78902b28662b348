//! What was there and is not any more.

use anabranch_ppspp::binmap::Binmap;

use super::Content;
use crate::events::{EventKind, FailureKind};
use crate::ppspp::chunks_of;

impl Content {
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
