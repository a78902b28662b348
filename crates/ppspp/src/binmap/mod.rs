//! Binmaps: sets of chunks as trees whose full and empty parts take no space (RFC 7574 §4.3.1).
//!
//! A binary tree of bins down to bitmaps of 512 chunks. A part that is full or empty is one word however large it is; a part
//! that is mixed through and through costs about twice a plain bitmap. The form is canonical, so equal sets are equal trees.
//!
//! The tree is no taller than its last chunk needs. A stranger can make it tall: who inserts what a peer says clips it to
//! the content first, and asks [`Binmap::cell_count`] where there is no end to clip to.

mod combine;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;
use std::ops::Range;

use crate::bin::{Bin, CHUNKS_MAX};
use combine::{Op, combine};
use tree::{LEAF_LAYER, Tree};

/// A set of chunks.
#[derive(Clone, PartialEq, Eq)]
pub struct Binmap {
    tree: Tree,
    /// The tree covers chunks `0..1 << layer`; the right half is empty only where the whole is.
    layer: u32,
    /// Bitmaps and forks of the tree.
    cells: usize,
}

impl Binmap {
    /// No chunks.
    pub const fn new() -> Self {
        Self { tree: Tree::Empty, layer: LEAF_LAYER, cells: 0 }
    }

    /// The chunks `0..chunks`.
    pub fn full(chunks: u64) -> Self {
        let mut map = Self::new();
        map.insert_range(0..chunks);
        map
    }

    /// Adds the chunks of `bin`.
    pub fn insert(&mut self, bin: Bin) {
        self.insert_range(bin.range());
    }

    /// Adds a range of chunks; what lies past 2^63 is left out.
    pub fn insert_range(&mut self, range: Range<u64>) {
        let end = range.end.min(CHUNKS_MAX);
        if range.start >= end {
            return;
        }
        let needed = end.next_power_of_two().trailing_zeros().max(LEAF_LAYER);
        self.grow(needed);
        self.tree.set(self.layer, 0, &(range.start..end), true, &mut self.cells);
    }

    /// Takes out the chunks of `bin`.
    pub fn remove(&mut self, bin: Bin) {
        self.remove_range(bin.range());
    }

    /// Takes out a range of chunks.
    pub fn remove_range(&mut self, range: Range<u64>) {
        let end = range.end.min(1 << self.layer);
        if range.start < end {
            self.tree.set(self.layer, 0, &(range.start..end), false, &mut self.cells);
            self.shrink();
        }
    }

    /// Whether the chunk is in it.
    pub fn contains(&self, chunk: u64) -> bool {
        chunk >> self.layer == 0 && self.tree.contains(self.layer, chunk)
    }

    /// Whether every chunk of `bin` is in it: the bin is full.
    pub fn is_full(&self, bin: Bin) -> bool {
        self.next_clear(bin.start()) >= bin.end()
    }

    /// Whether no chunk of `bin` is in it.
    pub fn is_empty_in(&self, bin: Bin) -> bool {
        self.next_set(bin.start()).is_none_or(|chunk| chunk >= bin.end())
    }

    /// Whether there are no chunks at all.
    pub fn is_empty(&self) -> bool {
        self.tree == Tree::Empty
    }

    /// How many chunks.
    pub fn count(&self) -> u64 {
        self.count_in(0..CHUNKS_MAX)
    }

    /// How many chunks of `range`.
    pub fn count_in(&self, range: Range<u64>) -> u64 {
        let end = range.end.min(1 << self.layer);
        if range.start < end { self.tree.count(self.layer, 0, &(range.start..end)) } else { 0 }
    }

    /// The first chunk in it from `from` on.
    pub fn next_set(&self, from: u64) -> Option<u64> {
        if from >> self.layer != 0 { None } else { self.tree.next(self.layer, 0, from, true) }
    }

    /// The last chunk in it before `to`.
    pub fn prev_set(&self, to: u64) -> Option<u64> {
        self.tree.prev_set(self.layer, 0, to)
    }

    /// The first chunk not in it from `from` on; 2^63 at the most.
    pub fn next_clear(&self, from: u64) -> u64 {
        let end = 1 << self.layer;
        if from >= end { from } else { self.tree.next(self.layer, 0, from, false).unwrap_or(end) }
    }

    /// The first unbroken run of chunks in it that ends after `from`, cut to what lies from there on.
    pub fn next_run(&self, from: u64) -> Option<Range<u64>> {
        let start = self.next_set(from)?;
        Some(start..self.next_clear(start))
    }

    /// Every unbroken run of chunks, in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let run = self.next_run(from)?;
            from = run.end;
            Some(run)
        })
    }

    /// The fewest bins that make it up, in order: what is announced of it.
    pub fn bins(&self) -> impl Iterator<Item = Bin> {
        self.runs().flat_map(Bin::cover)
    }

    /// The chunk after the last one in it; 0 where there are none.
    pub fn end(&self) -> u64 {
        self.tree.end(self.layer, 0)
    }

    /// The biggest bin around `chunk` that is full: what a HAVE or an ACK says (RFC 7574 §4.3); `None` where the chunk
    /// itself is not in it.
    pub fn largest_full(&self, chunk: u64) -> Option<Bin> {
        if chunk >> self.layer != 0 {
            return None;
        }
        let layer = self.tree.largest_full(self.layer, chunk)?;
        Bin::new(layer, chunk >> layer)
    }

    /// The first chunk from `from` on that is in every map of `within` and in none of `without`, and how many follow it without
    /// a break, `len_max` at most. No new map is made for it.
    pub fn next_match(from: u64, len_max: u64, within: &[&Self], without: &[&Self]) -> Option<Range<u64>> {
        let mut at = from;
        loop {
            let before = at;
            for map in within {
                at = map.next_set(at)?;
            }
            for map in without {
                at = map.next_clear(at);
            }
            if at >= CHUNKS_MAX {
                return None;
            }
            if at == before {
                break;
            }
        }
        let ends = within.iter().map(|map| map.next_clear(at));
        let starts = without.iter().filter_map(|map| map.next_set(at));
        let end = ends.chain(starts).min().unwrap_or(CHUNKS_MAX);
        Some(at..end.min(at.saturating_add(len_max)))
    }

    /// Adds every chunk of `other`.
    pub fn union_with(&mut self, other: &Self) {
        self.apply(Op::Union, other);
    }

    /// Takes out every chunk of `other`.
    pub fn subtract(&mut self, other: &Self) {
        self.apply(Op::Subtract, other);
    }

    /// Leaves what is in `other` too.
    pub fn intersect_with(&mut self, other: &Self) {
        self.apply(Op::Intersect, other);
    }

    /// Bitmaps and forks that it takes: its memory, at 48 to 80 bytes each. It is kept count of: asking costs nothing.
    pub fn cell_count(&self) -> usize {
        self.cells
    }

    fn apply(&mut self, op: Op, other: &Self) {
        self.grow(other.layer);
        combine(op, (&mut self.tree, self.layer), (&other.tree, other.layer), &mut self.cells);
        self.shrink();
    }

    fn grow(&mut self, layer: u32) {
        while self.layer < layer {
            self.tree = Tree::fork(std::mem::take(&mut self.tree), Tree::Empty);
            // What is empty is as tall as one likes.
            self.cells += usize::from(self.tree != Tree::Empty);
            self.layer += 1;
        }
    }

    fn shrink(&mut self) {
        while self.layer > LEAF_LAYER && self.tree.shed_right() {
            self.layer -= 1;
            self.cells -= 1;
        }
        if self.tree == Tree::Empty {
            self.layer = LEAF_LAYER;
        }
    }
}

impl Default for Binmap {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Binmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.runs().take(DEBUG_RUNS_MAX)).finish()
    }
}

impl FromIterator<Bin> for Binmap {
    fn from_iter<T: IntoIterator<Item = Bin>>(bins: T) -> Self {
        let mut map = Self::new();
        bins.into_iter().for_each(|bin| map.insert(bin));
        map
    }
}

/// Runs that a debug print shows: enough for a test's message.
const DEBUG_RUNS_MAX: usize = 64;
