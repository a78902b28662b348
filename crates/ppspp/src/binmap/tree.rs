//! The tree under a binmap, and what is done with one tree alone. A node at `layer` covers 2^layer chunks from `base`. Whoever changes a
//! part of a tree keeps count of the whole tree's `cells`.

use std::mem;
use std::ops::Range;

/// Layer of the bitmaps: 512 chunks, a cache line.
pub(super) const LEAF_LAYER: u32 = 9;
const WORDS: usize = (1 << LEAF_LAYER) / 64;

pub(super) type Words = [u64; WORDS];

/// In canonical form: no bitmap is full or empty, nor are both halves of a fork full or both empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Tree {
    #[default]
    Empty,
    Full,
    Leaf(Box<Words>),
    Fork(Box<[Tree; 2]>),
}

impl Tree {
    /// Two halves, in canonical form.
    pub(super) fn fork(left: Self, right: Self) -> Self {
        match (&left, &right) {
            (Self::Empty, Self::Empty) => Self::Empty,
            (Self::Full, Self::Full) => Self::Full,
            _ => Self::Fork(Box::new([left, right])),
        }
    }

    /// A bitmap, in canonical form.
    pub(super) fn leaf(words: Words) -> Self {
        match words {
            [0, 0, 0, 0, 0, 0, 0, 0] => Self::Empty,
            [u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX] => Self::Full,
            _ => Self::Leaf(Box::new(words)),
        }
    }

    /// Replaces the tree by its left half where the right one is empty.
    pub(super) fn shed_right(&mut self) -> bool {
        match self {
            Self::Fork(halves) if halves[1] == Self::Empty => {
                *self = mem::take(&mut halves[0]);
                true
            }
            _ => false,
        }
    }

    /// The halves of a tree above the bitmaps, so that they can be changed; [`Tree::settle`] follows.
    pub(super) fn halves(&mut self, cells: &mut usize) -> &mut [Self; 2] {
        if !matches!(self, Self::Fork(_)) {
            *self = Self::Fork(Box::new([self.clone(), mem::take(self)]));
            *cells += 1;
        }
        match self {
            Self::Fork(halves) => halves,
            _ => unreachable!("made a fork just above"),
        }
    }

    /// Back to canonical form after a change of a half.
    pub(super) fn settle(&mut self, cells: &mut usize) {
        if let Self::Fork(halves) = self {
            match **halves {
                [Self::Empty, Self::Empty] => *self = Self::Empty,
                [Self::Full, Self::Full] => *self = Self::Full,
                _ => return,
            }
            *cells -= 1;
        }
    }

    /// Puts another tree in its place.
    pub(super) fn replace(&mut self, other: Self, cells: &mut usize) {
        *cells = *cells + other.cells() - self.cells();
        *self = other;
    }

    /// Sets or clears `range`, which is not empty and lies within the tree.
    pub(super) fn set(&mut self, layer: u32, base: u64, range: &Range<u64>, value: bool, cells: &mut usize) {
        let end = base + (1 << layer);
        let already = if value { Self::Full } else { Self::Empty };
        if *self == already {
            return;
        }
        if range.start <= base && end <= range.end {
            return self.replace(already, cells);
        }
        if layer == LEAF_LAYER {
            let mut words = match self {
                Self::Leaf(words) => **words,
                Self::Full => [u64::MAX; WORDS],
                _ => [0; WORDS],
            };
            let (from, to) = (range.start.max(base) - base, range.end.min(end) - base);
            for (word, mask) in masks(from, to) {
                if value { words[word] |= mask } else { words[word] &= !mask }
            }
            match (Self::leaf(words), &mut *self) {
                // A bitmap that stays one stays where it is.
                (Self::Leaf(_), Self::Leaf(place)) => **place = words,
                (new, _) => self.replace(new, cells),
            }
            return;
        }
        let middle = base + (1 << (layer - 1));
        let halves = self.halves(cells);
        if range.start < middle {
            halves[0].set(layer - 1, base, range, value, cells);
        }
        if range.end > middle {
            halves[1].set(layer - 1, middle, range, value, cells);
        }
        self.settle(cells);
    }

    /// Whether `chunk`, counted from the tree's first, is in it.
    pub(super) fn contains(&self, mut layer: u32, chunk: u64) -> bool {
        let mut tree = self;
        loop {
            match tree {
                Self::Empty => return false,
                Self::Full => return true,
                Self::Leaf(words) => {
                    let at = chunk & ((1 << LEAF_LAYER) - 1);
                    return words[(at / 64) as usize] >> (at % 64) & 1 == 1;
                }
                Self::Fork(halves) => {
                    layer -= 1;
                    tree = &halves[(chunk >> layer & 1) as usize];
                }
            }
        }
    }

    pub(super) fn count(&self, layer: u32, base: u64, range: &Range<u64>) -> u64 {
        let end = base + (1 << layer);
        let (from, to) = (range.start.max(base), range.end.min(end));
        match self {
            _ if from >= to => 0,
            Self::Empty => 0,
            Self::Full => to - from,
            Self::Leaf(words) => {
                masks(from - base, to - base).map(|(word, mask)| u64::from((words[word] & mask).count_ones())).sum()
            }
            Self::Fork(halves) => {
                let middle = base + (1 << (layer - 1));
                halves[0].count(layer - 1, base, range) + halves[1].count(layer - 1, middle, range)
            }
        }
    }

    /// The first chunk from `from` on that is in it, or is not.
    pub(super) fn next(&self, layer: u32, base: u64, from: u64, value: bool) -> Option<u64> {
        let end = base + (1 << layer);
        if from >= end {
            return None;
        }
        match self {
            Self::Empty | Self::Full => ((*self == Self::Full) == value).then_some(from.max(base)),
            Self::Leaf(words) => masks(from.max(base) - base, 1 << LEAF_LAYER).find_map(|(word, mask)| {
                let bits = if value { words[word] } else { !words[word] } & mask;
                (bits != 0).then(|| base + word as u64 * 64 + u64::from(bits.trailing_zeros()))
            }),
            Self::Fork(halves) => {
                let middle = base + (1 << (layer - 1));
                halves[0].next(layer - 1, base, from, value).or_else(|| halves[1].next(layer - 1, middle, from, value))
            }
        }
    }

    /// The last chunk in it before `to`.
    pub(super) fn prev_set(&self, layer: u32, base: u64, to: u64) -> Option<u64> {
        if to <= base {
            return None;
        }
        match self {
            Self::Empty => None,
            Self::Full => Some(to.min(base + (1 << layer)) - 1),
            Self::Leaf(words) => masks(0, (to - base).min(1 << LEAF_LAYER)).rev().find_map(|(word, mask)| {
                let last = (words[word] & mask).checked_ilog2()?;
                Some(base + word as u64 * 64 + u64::from(last))
            }),
            Self::Fork(halves) => {
                let middle = base + (1 << (layer - 1));
                halves[1].prev_set(layer - 1, middle, to).or_else(|| halves[0].prev_set(layer - 1, base, to))
            }
        }
    }

    /// The chunk after the last; 0 where there are none.
    pub(super) fn end(&self, layer: u32, base: u64) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Full => base + (1 << layer),
            Self::Leaf(words) => words
                .iter()
                .enumerate()
                .rev()
                .find(|(_, word)| **word != 0)
                .map_or(0, |(at, word)| base + at as u64 * 64 + u64::from(64 - word.leading_zeros())),
            Self::Fork(halves) => match halves[1].end(layer - 1, base + (1 << (layer - 1))) {
                0 => halves[0].end(layer - 1, base),
                end => end,
            },
        }
    }

    /// Layer of the biggest full node around `chunk`, counted from the tree's first.
    pub(super) fn largest_full(&self, mut layer: u32, chunk: u64) -> Option<u32> {
        let mut tree = self;
        loop {
            match tree {
                Self::Empty => return None,
                Self::Full => return Some(layer),
                Self::Leaf(words) => {
                    let full = |layer: &u32| {
                        let start = (chunk & ((1 << LEAF_LAYER) - 1)) >> layer << layer;
                        masks(start, start + (1 << layer)).all(|(word, mask)| words[word] & mask == mask)
                    };
                    return (0..LEAF_LAYER).take_while(full).last();
                }
                Self::Fork(halves) => {
                    layer -= 1;
                    tree = &halves[(chunk >> layer & 1) as usize];
                }
            }
        }
    }

    /// Bitmaps and forks in it, by looking at each.
    pub(super) fn cells(&self) -> usize {
        match self {
            Self::Empty | Self::Full => 0,
            Self::Leaf(_) => 1,
            Self::Fork(halves) => 1 + halves[0].cells() + halves[1].cells(),
        }
    }
}

/// The words that the bits `from..to` of a bitmap lie in, each with a mask of those.
fn masks(from: u64, to: u64) -> impl DoubleEndedIterator<Item = (usize, u64)> {
    (from / 64..to.div_ceil(64)).map(move |word| {
        let low = u64::MAX << from.saturating_sub(word * 64);
        let high = u64::MAX >> (64 - (to - word * 64).min(64));
        (word as usize, low & high)
    })
}
