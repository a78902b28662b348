//! What is missing, and pieces that go missing again.

use anabranch_content::geometry::BLOCK_LEN;

use super::open::Block;
use super::pieces::State;
use super::{BlockRef, Picker};

impl Picker {
    /// Whether `block` exists and has not arrived.
    pub fn is_missing(&self, block: BlockRef) -> bool {
        if block.block >= self.geometry.data_len(block.piece).div_ceil(BLOCK_LEN) {
            return false;
        }
        match self.pieces.state(block.piece) {
            None | Some(State::Have) => false,
            Some(State::Idle | State::Out) => true,
            Some(State::Open) => self.pieces.open_at(block.piece).is_some_and(|at| {
                !matches!(self.open[at].blocks.get(block.block as usize), Some(Block::Received(_)) | None)
            }),
        }
    }

    /// A verified piece is damaged or gone: it is missing again.
    pub fn piece_lost(&mut self, piece: u32) {
        if self.geometry.block_count(piece) > 0 && self.pieces.state(piece) == Some(State::Have) {
            self.pieces.set_lost(piece);
        }
    }
}
