//! What is missing, and pieces that go missing again.

use anabranch_content::geometry::BLOCK_LEN;

use super::open::Block;
use super::pieces::State;
use super::{BlockRef, Picker};
use crate::ConnId;

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

    /// Whether `block` would count if it came from `conn` now, asked for or not: [`Picker::received`] then answers
    /// [`super::Received::First`]. Not for a block that is here, that nobody wants, or of a failed piece that another
    /// connection fetches alone.
    pub fn accepts(&self, conn: ConnId, block: BlockRef) -> bool {
        match self.pieces.state(block.piece) {
            None | Some(State::Have | State::Out) => false,
            Some(State::Idle) => {
                block.block < self.geometry.block_count(block.piece)
                    && self.suspects.get(&block.piece).is_none_or(|suspects| !suspects.contains(&conn))
            }
            Some(State::Open) => self.pieces.open_at(block.piece).is_some_and(|at| {
                let open = &self.open[at];
                match open.blocks.get(block.block as usize) {
                    None | Some(Block::Received(_)) => false,
                    Some(Block::Free) => !open.single_source || open.owner.is_none_or(|owner| owner == conn),
                    Some(Block::Requested(_)) => {
                        !open.single_source || open.holders(block.block).any(|holder| holder == conn)
                    }
                }
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
