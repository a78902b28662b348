//! Pieces with a block requested or received: who holds which block.

use crate::ConnId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    Free,
    Requested(ConnId),
    Received(ConnId),
}

/// What [`OpenPiece::receive`] made of a block.
pub(super) enum Delivery {
    /// The connections, other than the deliverer, whose requests for it are void now.
    First(Vec<ConnId>),
    Duplicate,
}

#[derive(Clone, Debug)]
pub(super) struct OpenPiece {
    pub(super) piece: u32,
    pub(super) blocks: Vec<Block>,
    /// (block, connection) of the second and later requests for one block.
    extra: Vec<(u32, ConnId)>,
    /// No block before this one is free.
    cursor: u32,
    pub(super) free: u32,
    pub(super) received: u32,
    /// Who takes its blocks at present; others look for another piece first.
    pub(super) owner: Option<ConnId>,
    /// Who last failed to deliver a block of it: somebody else should try.
    pub(super) returner: Option<ConnId>,
    /// All blocks from one peer where that can be done.
    pub(super) single_source: bool,
}

impl OpenPiece {
    pub(super) fn new(piece: u32, blocks: u32, owner: ConnId, single_source: bool) -> Self {
        Self {
            piece,
            blocks: vec![Block::Free; blocks as usize],
            extra: Vec::new(),
            cursor: 0,
            free: blocks,
            received: 0,
            owner: Some(owner),
            returner: None,
            single_source,
        }
    }

    pub(super) fn requested(&self) -> u32 {
        self.blocks.len() as u32 - self.free - self.received
    }

    pub(super) fn is_untouched(&self) -> bool {
        self.free == self.blocks.len() as u32
    }

    pub(super) fn is_complete(&self) -> bool {
        self.received == self.blocks.len() as u32
    }

    /// The first free block that is not before `from`, requested by `conn` from now on.
    pub(super) fn take(&mut self, conn: ConnId, from: u32) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let start = from.max(self.cursor) as usize;
        let at = start + self.blocks.get(start..)?.iter().position(|block| *block == Block::Free)?;
        self.blocks[at] = Block::Requested(conn);
        self.free -= 1;
        if from <= self.cursor {
            self.cursor = at as u32 + 1;
        }
        Some(at as u32)
    }

    /// The free block that comes after `skipped` other ones.
    pub(super) fn nth_free(&self, skipped: u32) -> Option<u32> {
        if skipped == 0 {
            return Some(self.cursor);
        }
        let free = (0..).zip(&self.blocks).filter(|(_, block)| **block == Block::Free);
        free.map(|(at, _)| at).nth(skipped as usize)
    }

    /// Asks `conn` too for the requested `block`.
    pub(super) fn duplicate(&mut self, block: u32, conn: ConnId) {
        self.extra.push((block, conn));
    }

    pub(super) fn holders(&self, block: u32) -> impl Iterator<Item = ConnId> + '_ {
        let first = match self.blocks.get(block as usize) {
            Some(Block::Requested(conn)) => Some(*conn),
            _ => None,
        };
        first.into_iter().chain(self.extra.iter().filter(move |(of, _)| *of == block).map(|(_, conn)| *conn))
    }

    /// `block` arrived from `conn`, asked for or not.
    pub(super) fn receive(&mut self, block: u32, conn: ConnId) -> Delivery {
        let holders = match self.blocks[block as usize] {
            Block::Received(_) => return Delivery::Duplicate,
            // Only endgame copies take memory.
            Block::Requested(_) => self.holders(block).filter(|holder| *holder != conn).collect(),
            Block::Free => {
                self.free -= 1;
                Vec::new()
            }
        };
        if !self.extra.is_empty() {
            self.extra.retain(|(of, _)| *of != block);
        }
        self.blocks[block as usize] = Block::Received(conn);
        self.received += 1;
        Delivery::First(holders)
    }

    /// The request of `conn` for `block` is gone. Answers whether there was one, and whether the block is free now.
    pub(super) fn give_back(&mut self, block: u32, conn: ConnId) -> (bool, bool) {
        if let Some(at) = self.extra.iter().position(|entry| *entry == (block, conn)) {
            self.extra.swap_remove(at);
            return (true, false);
        }
        if self.blocks.get(block as usize) != Some(&Block::Requested(conn)) {
            return (false, false);
        }
        if let Some(at) = self.extra.iter().position(|(of, _)| *of == block) {
            let (_, heir) = self.extra.swap_remove(at);
            self.blocks[block as usize] = Block::Requested(heir);
            return (true, false);
        }
        self.set_free(block);
        (true, true)
    }

    /// Whether it is to have one source, which is at work. An owner that is asked for nothing of it, be it that it chokes us or is
    /// gone, keeps it from nobody.
    pub(super) fn is_being_fetched_alone(&self) -> bool {
        let by_owner = |block: &Block| matches!(block, Block::Requested(by) if Some(*by) == self.owner);
        self.single_source && self.blocks.iter().any(by_owner)
    }

    /// Whether a block is held or was delivered by somebody other than `conn` who is here.
    pub(super) fn has_others(&self, conn: ConnId, is_here: impl Fn(ConnId) -> bool) -> bool {
        self.blocks.iter().any(|block| match block {
            Block::Free => false,
            Block::Requested(by) | Block::Received(by) => *by != conn && is_here(*by),
        })
    }

    fn set_free(&mut self, block: u32) {
        self.blocks[block as usize] = Block::Free;
        self.free += 1;
        self.cursor = self.cursor.min(block);
    }
}
