//! Bins: a number for every chunk and every aligned range of 2^n chunks (RFC 7574 §4.2).
//!
//! The bins of a content are the nodes of a binary tree over its chunks, numbered from left to right: leaves are even, and
//! `bin(layer, offset) = 2^(layer+1) * offset + 2^layer - 1`. The layer is the number of ones that the number ends with.
//!
//! ```text
//!           3
//!        /     \
//!      1         5
//!    /   \     /   \
//!   0     2   4     6      chunks 0, 1, 2, 3
//! ```

use std::fmt;
use std::ops::Range;

/// A node of the tree over the chunks: 2^layer chunks from `offset * 2^layer`. Never empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bin(u64);

/// Chunks that can be numbered: 2^63 (RFC 7574 §4.2, "the largest interval is a complete range of 2**63 chunks").
pub const CHUNKS_MAX: u64 = 1 << 63;

impl Bin {
    /// Every chunk there can be: layer 63 (RFC 7574 §4.2, "0x7FFF...FFF stands for everything").
    pub const ALL: Self = Self(u64::MAX >> 1);
    /// The layer of [`Bin::ALL`].
    pub const LAYER_MAX: u32 = 63;

    /// The node at `offset` of `layer`; `None` outside of the tree.
    pub const fn new(layer: u32, offset: u64) -> Option<Self> {
        if layer > Self::LAYER_MAX || offset >= CHUNKS_MAX >> layer {
            return None;
        }
        // At layer 63 the only offset is 0, and the shift would be by 64.
        let left = if layer == Self::LAYER_MAX { 0 } else { offset << (layer + 1) };
        Some(Self(left + ((1 << layer) - 1)))
    }

    /// The leaf of a chunk; `None` past the last number.
    pub const fn chunk(index: u64) -> Option<Self> {
        Self::new(0, index)
    }

    /// From its number; `None` for all ones, which stand for the empty interval (RFC 7574 §4.2).
    pub const fn from_u64(number: u64) -> Option<Self> {
        if number == u64::MAX { None } else { Some(Self(number)) }
    }

    /// From a 32-bit number, whose "everything" is [`Bin::ALL`]; `None` for the empty interval.
    pub const fn from_u32(number: u32) -> Option<Self> {
        match number {
            u32::MAX => None,
            ALL_U32 => Some(Self::ALL),
            _ => Some(Self(number as u64)),
        }
    }

    /// Its number.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    /// Its number in 32 bits; `None` where the bin reaches past the 2^31 chunks that 32 bits can number.
    pub const fn to_u32(self) -> Option<u32> {
        if self.0 == Self::ALL.0 {
            return Some(ALL_U32);
        }
        if self.0 < u32::MAX as u64 { Some(self.0 as u32) } else { None }
    }

    /// Height above the leaves.
    pub const fn layer(self) -> u32 {
        self.0.trailing_ones()
    }

    /// Place within the layer.
    pub const fn offset(self) -> u64 {
        self.start() >> self.layer()
    }

    /// The first chunk.
    pub const fn start(self) -> u64 {
        (self.0 & (self.0 + 1)) >> 1
    }

    /// How many chunks.
    pub const fn chunk_count(self) -> u64 {
        1 << self.layer()
    }

    /// The chunk after the last.
    pub const fn end(self) -> u64 {
        self.start() + self.chunk_count()
    }

    /// The chunks.
    pub const fn range(self) -> Range<u64> {
        self.start()..self.end()
    }

    /// Whether this is a single chunk.
    pub const fn is_chunk(self) -> bool {
        self.0 & 1 == 0
    }

    /// Whether this is the left one of two siblings.
    pub const fn is_left(self) -> bool {
        self.offset() & 1 == 0
    }

    /// The node above; `None` above [`Bin::ALL`].
    pub const fn parent(self) -> Option<Self> {
        Self::new(self.layer() + 1, self.offset() >> 1)
    }

    /// The other child of the parent; `None` for [`Bin::ALL`].
    pub const fn sibling(self) -> Option<Self> {
        if self.layer() == Self::LAYER_MAX { None } else { Self::new(self.layer(), self.offset() ^ 1) }
    }

    /// The two halves; `None` for a chunk.
    pub const fn children(self) -> Option<(Self, Self)> {
        if self.is_chunk() {
            return None;
        }
        let half = 1 << (self.layer() - 1);
        Some((Self(self.0 - half), Self(self.0 + half)))
    }

    /// Whether every chunk of `other` is in this bin.
    pub const fn contains(self, other: Self) -> bool {
        self.start() <= other.start() && other.end() <= self.end()
    }

    /// The node of `layer` that this one lies below; itself where it is there or above already.
    pub fn ancestor(self, layer: u32) -> Self {
        let up = layer.min(Self::LAYER_MAX).max(self.layer());
        Self::new(up, self.start() >> up).unwrap_or(Self::ALL)
    }

    /// The fewest bins that make up `range`, from left to right; at most 125. What lies past 2^63 is left out.
    pub fn cover(range: Range<u64>) -> impl Iterator<Item = Self> {
        let (mut at, end) = (range.start, range.end.min(CHUNKS_MAX));
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|left| *left > 0)?;
            let layer = at.trailing_zeros().min(left.ilog2());
            let bin = Self::new(layer, at >> layer)?;
            at = bin.end();
            Some(bin)
        })
    }

    /// The peaks of a content of `chunks` chunks: its complete subtrees, the widest first (RFC 7574 §5.6.1).
    pub fn peaks(chunks: u64) -> impl Iterator<Item = Self> {
        Self::cover(0..chunks)
    }

    /// The root of the smallest tree that holds `chunks` chunks.
    pub fn root(chunks: u64) -> Self {
        let layer = chunks.clamp(1, CHUNKS_MAX).next_power_of_two().trailing_zeros();
        Self::new(layer, 0).unwrap_or(Self::ALL)
    }
}

const ALL_U32: u32 = u32::MAX >> 1;

impl fmt::Debug for Bin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({},{})", self.0, self.layer(), self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The catalogue's 003-bins, first part: the formula, and the operations that the paper prints (its sibling lacks a
    /// parenthesis there, and its "beginning" is a chunk's number).
    #[test]
    fn numbers_are_the_papers() {
        for layer in 0..20 {
            for offset in 0..50 {
                let bin = Bin::new(layer, offset).expect("inside of the tree");
                let b = bin.to_u64();
                assert_eq!(b, (1 << (layer + 1)) * offset + (1 << layer) - 1);
                assert_eq!((bin.layer(), bin.offset()), (layer, offset));
                assert_eq!(bin.is_chunk(), b & 1 == 0);
                assert_eq!(bin.start(), (b & (b + 1)) >> 1);
                assert_eq!(bin.chunk_count(), (b + 1) & (b + 1).wrapping_neg());
                assert_eq!(bin.sibling().map(Bin::to_u64), Some(b ^ ((b ^ (b + 1)) + 1)));
                assert_eq!(Bin::from_u64(b), Some(bin));
            }
        }
        assert_eq!(Bin::new(1, 0).and_then(Bin::sibling), Bin::new(1, 1));
        assert_eq!(Bin::new(2, 0).map(|bin| (bin.to_u64(), bin.range())), Some((3, 0..4)));
    }

    /// RFC 7574 §4.2, figure 2.
    #[test]
    fn family_of_the_tree_of_eight() {
        let bin = |number| Bin::from_u64(number).expect("not empty");
        assert_eq!(bin(7).children(), Some((bin(3), bin(11))));
        assert_eq!(bin(9).parent(), Some(bin(11)));
        assert_eq!(bin(12).parent().and_then(Bin::parent).and_then(Bin::parent), Some(bin(7)));
        assert!(bin(11).contains(bin(14)) && !bin(11).contains(bin(6)) && bin(11).contains(bin(11)));
        assert!(bin(3).is_left() && !bin(11).is_left());
        assert_eq!(bin(8).ancestor(2), bin(11));
        assert_eq!(bin(11).ancestor(0), bin(11));
        assert_eq!(bin(6).children(), None);
    }

    #[test]
    fn both_ends_of_the_numbers() {
        assert_eq!((Bin::ALL.layer(), Bin::ALL.range()), (63, 0..CHUNKS_MAX));
        assert_eq!((Bin::ALL.parent(), Bin::ALL.sibling()), (None, None));
        assert_eq!((Bin::new(63, 0), Bin::new(63, 1), Bin::new(64, 0)), (Some(Bin::ALL), None, None));
        assert_eq!((Bin::chunk(CHUNKS_MAX - 1).map(Bin::end), Bin::chunk(CHUNKS_MAX)), (Some(CHUNKS_MAX), None));
        assert_eq!((Bin::from_u64(u64::MAX), Bin::from_u32(u32::MAX)), (None, None));
        assert_eq!((Bin::from_u32(u32::MAX / 2), Bin::ALL.to_u32()), (Some(Bin::ALL), Some(u32::MAX / 2)));
        let last = Bin::chunk((1 << 31) - 1).expect("a chunk");
        assert_eq!((last.to_u32(), Bin::from_u32(u32::MAX - 1)), (Some(u32::MAX - 1), Some(last)));
        assert_eq!(Bin::chunk(1 << 31).and_then(Bin::to_u32), None);
        assert_eq!(Bin::new(32, 0).and_then(Bin::to_u32), None);
    }

    #[test]
    fn covers_are_the_fewest_bins() {
        let numbers = |range| Bin::cover(range).map(Bin::to_u64).collect::<Vec<_>>();
        // RFC 7574 §5.6.1, figure 4: seven chunks have their peaks at nodes 3, 9 and 12.
        assert_eq!(Bin::peaks(7).map(Bin::to_u64).collect::<Vec<_>>(), [3, 9, 12]);
        assert_eq!(numbers(1..8), [2, 5, 11]);
        assert_eq!(numbers(3..3), [0; 0]);
        assert_eq!(Bin::cover(0..u64::MAX).collect::<Vec<_>>(), [Bin::ALL]);
        assert_eq!(Bin::cover(1..CHUNKS_MAX - 1).count(), 124);
        for (chunks, root) in [(0, 0), (1, 0), (2, 1), (3, 3), (7, 7), (8, 7), (9, 15)] {
            assert_eq!(Bin::root(chunks).to_u64(), root);
        }
        assert_eq!(Bin::root(u64::MAX), Bin::ALL);
    }
}
