//! What one connection was asked for: in the order of its stream, with what arrives now and what may still arrive.
//!
//! The picker's table says of each block who was asked for it; [`Requests`] says the same of each connection, in the order in
//! which it was asked, which is the order in which it likely answers. Only `torrent/ledger.rs` changes either, and always both.

use std::collections::{VecDeque, vec_deque};
use std::iter::Copied;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::geometry::BLOCK_LEN;

use crate::ConnId;
use crate::picker::BlockRef;
use crate::pipeline::UnderWay;
use crate::wire::BlockRange;

/// Requests that we gave up but that may still be answered, remembered per connection.
pub(crate) const LATE_MAX: usize = 4096;

/// A block that is arriving: from its header, which [`Torrent::block_started`](crate::torrent::Torrent::block_started) was told
/// of, to its end, which takes it back by [`Torrent::block_finished`](crate::torrent::Torrent::block_finished). There is one a
/// connection at most, and no copy of it. One that is dropped before, as with a connection that ends in the middle of a block,
/// leaves the block asked for and not arriving.
#[derive(Debug)]
#[must_use = "a block that started has to be finished"]
pub struct Arriving {
    conn: ConnId,
    range: BlockRange,
    wanted: bool,
    /// The connection's requests hold the other end.
    _alive: Arc<()>,
}

impl Arriving {
    /// Over which connection.
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// Which block.
    pub fn range(&self) -> BlockRange {
        self.range
    }

    /// Whether its payload is to be kept where there is room; otherwise read it and throw it away.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }
}

/// A request that we gave up and that may be answered after all.
#[derive(Clone, Copy, Debug)]
struct Late {
    range: BlockRange,
    /// The peer was told, and owes the block or a reject (BEP 6).
    cancelled: bool,
}

/// What a block that came answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// A request; `sent_at` as [`Pipeline::on_block`](crate::pipeline::Pipeline::on_block) wants it.
    Request { sent_at: Option<Instant> },
    /// One that was given up, if any.
    Nothing,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Not answered, oldest first.
    ranges: VecDeque<BlockRange>,
    /// When they were sent, oldest first. Peers answer in order or nearly so: the n-th answer is held against the n-th request,
    /// which makes no round trip look shorter than it was, in whatever order answers come. What is taken back takes the newest
    /// time with it, for the same reason. So the times are not the ranges' own; there are as many.
    sent_at: VecDeque<Instant>,
    bytes: u64,
    late: VecDeque<Late>,
    arriving: Option<BlockRange>,
    /// Held by the [`Arriving`] too, while there is one.
    alive: Arc<()>,
}

impl Requests {
    /// Requests that are not answered.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether every request was answered or taken back.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Both.
    pub(crate) fn under_way(&self) -> UnderWay {
        UnderWay { requests: self.len(), bytes: self.bytes }
    }

    /// In the order in which they were sent.
    pub(crate) fn iter(&self) -> Copied<vec_deque::Iter<'_, BlockRange>> {
        self.ranges.iter().copied()
    }

    /// The one at this place of that order.
    pub(crate) fn get(&self, at: usize) -> Option<BlockRange> {
        self.ranges.get(at).copied()
    }

    /// Where `range` stands among them.
    pub(crate) fn position(&self, range: BlockRange) -> Option<usize> {
        self.ranges.iter().position(|other| *other == range)
    }

    /// Requests that were given up and may be answered.
    #[cfg(test)]
    pub(crate) fn late_count(&self) -> usize {
        self.late.len()
    }

    /// Whether the payload of `range` is arriving.
    pub(crate) fn is_arriving(&self, range: BlockRange) -> bool {
        self.arriving == Some(range) && Arc::strong_count(&self.alive) > 1
    }

    /// `range` was asked for.
    pub(crate) fn push(&mut self, range: BlockRange, now: Instant) {
        self.ranges.push_back(range);
        self.sent_at.push_back(now);
        self.bytes += u64::from(range.len);
    }

    /// Whether `range` was asked for, be it given up since.
    pub(crate) fn knows(&self, range: BlockRange) -> bool {
        self.ranges.contains(&range) || self.is_late(range)
    }

    /// The payload of `range` begins to arrive over `conn`.
    pub(crate) fn start(&mut self, conn: ConnId, range: BlockRange, wanted: bool) -> Arriving {
        debug_assert_eq!(Arc::strong_count(&self.alive), 1, "a connection receives one block at a time");
        self.arriving = Some(range);
        Arriving { conn, range, wanted, _alive: Arc::clone(&self.alive) }
    }

    /// A block is whole: the request that it answers is done with.
    pub(crate) fn finish(&mut self, arriving: Arriving) -> Answers {
        self.arriving = None;
        let range = arriving.range;
        let Some(at) = self.position(range) else {
            if let Some(at) = self.late.iter().position(|late| late.range == range) {
                self.late.remove(at);
            }
            return Answers::Nothing;
        };
        self.remove(at);
        // The same was asked for before, and given up: which of the two is answered cannot be told.
        let sent_at = self.sent_at.pop_front().filter(|_| !self.is_late(range));
        Answers::Request { sent_at }
    }

    /// The request at `at` will not be answered.
    pub(crate) fn take_back(&mut self, at: usize) -> Option<BlockRange> {
        let range = self.remove(at)?;
        self.sent_at.pop_back();
        Some(range)
    }

    /// The same of one that may be answered all the same; `cancelled` where the peer is told.
    pub(crate) fn give_up(&mut self, at: usize, cancelled: bool) -> Option<BlockRange> {
        let range = self.take_back(at)?;
        self.remember_late(Late { range, cancelled });
        Some(range)
    }

    /// No request will be answered, or some will all the same: the peer is told of none.
    pub(crate) fn give_up_all(&mut self) {
        self.sent_at.clear();
        self.bytes = 0;
        while let Some(range) = self.ranges.pop_front() {
            self.remember_late(Late { range, cancelled: false });
        }
    }

    /// The peer will not answer a request for `range` that was given up. Answers whether there was one; `cancelled`: that it was
    /// told of.
    pub(crate) fn forget_late(&mut self, range: BlockRange, cancelled: bool) -> bool {
        if cancelled {
            let at = self.late.iter().position(|late| late.range == range && late.cancelled);
            return at.and_then(|at| self.late.remove(at)).is_some();
        }
        let before = self.late.len();
        self.late.retain(|late| late.range != range);
        self.late.len() < before
    }

    fn remember_late(&mut self, late: Late) {
        if self.late.len() >= LATE_MAX {
            self.late.pop_front();
        }
        self.late.push_back(late);
    }

    fn is_late(&self, range: BlockRange) -> bool {
        self.late.iter().any(|late| late.range == range)
    }

    fn remove(&mut self, at: usize) -> Option<BlockRange> {
        let range = self.ranges.remove(at)?;
        self.bytes -= u64::from(range.len);
        Some(range)
    }

    /// What has to hold at any time.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert_eq!(self.ranges.len(), self.sent_at.len());
        assert!(self.sent_at.iter().is_sorted(), "times in their order");
        assert_eq!(self.bytes, self.iter().map(|range| u64::from(range.len)).sum::<u64>());
        assert!(self.late.len() <= LATE_MAX);
    }
}

/// The blocks that a range covers.
pub(crate) fn blocks_of(range: BlockRange) -> Blocks {
    let end = (range.begin + range.len).div_ceil(BLOCK_LEN);
    Blocks { piece: range.piece, blocks: range.begin / BLOCK_LEN..end }
}

/// See [`blocks_of`].
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    piece: u32,
    blocks: Range<u32>,
}

impl Blocks {
    /// Whether `block` is one of them.
    pub(crate) fn contains(&self, block: BlockRef) -> bool {
        block.piece == self.piece && self.blocks.contains(&block.block)
    }
}

impl Iterator for Blocks {
    type Item = BlockRef;

    fn next(&mut self) -> Option<BlockRef> {
        self.blocks.next().map(|block| BlockRef { piece: self.piece, block })
    }
}
