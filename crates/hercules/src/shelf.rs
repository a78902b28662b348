//! What of the content is in memory: several destinations share what was read once.
//!
//! A [`Shelf`] says which chunks are at hand, and hears which are wanted. With one destination, or files mapped into memory,
//! everything is at hand ([`Everything`]). With several, a [`SharedShelf`] holds the ranges that were read last: each
//! destination takes what it still needs of them, in any order, since a receiver takes any chunk at any time. Who is ahead
//! causes the reads; which range falls out of memory for the next one is up to who asks for it ([`crate::Convoy`]). One that is left
//! behind takes what it can of each range, goes on with the others where they have left it behind, and comes back for the rest once
//! they are done.

use std::collections::VecDeque;
use std::ops::Range;

/// Ranges that are read ahead of the one that is sent.
pub const READ_AHEAD: usize = 6;
/// So many ranges behind a chunk that is not at hand, as a part of all that fit memory: it fell out, and is not still to come.
const PASSED_PART: usize = 2;

/// Which chunks a sender may take now.
pub trait Shelf {
    /// A run of chunks at hand that contains `chunk`.
    fn at_hand(&self, chunk: u64) -> Option<Range<u64>>;

    /// Other runs at hand, the newest first.
    fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_;

    /// `chunk` is wanted next. What is read with it.
    fn want(&mut self, chunk: u64) -> Range<u64>;

    /// Where to go on instead, if the other destinations left `chunk` behind: it would be read once more.
    fn lead(&self, _chunk: u64) -> Option<u64> {
        None
    }
}

/// All chunks are at hand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Everything;

impl Shelf for Everything {
    fn at_hand(&self, chunk: u64) -> Option<Range<u64>> {
        Some(chunk..u64::MAX)
    }

    fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        std::iter::empty()
    }

    fn want(&mut self, chunk: u64) -> Range<u64> {
        chunk..u64::MAX
    }
}

/// A range to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The chunks.
    pub chunks: Range<u64>,
    /// What falls out of memory for them, from now on.
    pub dropped: Option<Range<u64>>,
}

/// A bounded number of ranges of one length, read on demand.
#[derive(Debug)]
pub struct SharedShelf {
    chunks: u64,
    unit: u64,
    slots: usize,
    /// Numbers of ranges, the newest first.
    loaded: VecDeque<u64>,
    wanted: VecDeque<u64>,
    reading: Option<u64>,
    reads: u64,
}

impl SharedShelf {
    /// For a content of `chunks`; ranges of `unit` chunks, `slots` of them in memory. Both are at least 1.
    pub fn new(chunks: u64, unit: u64, slots: usize) -> Self {
        let (unit, slots) = (unit.max(1), slots.max(1));
        Self { chunks, unit, slots, loaded: VecDeque::new(), wanted: VecDeque::new(), reading: None, reads: 0 }
    }

    /// The next range to read; one at a time. Answer with [`SharedShelf::on_read`]. `choose` is asked where memory is full: which of the
    /// ranges in it, the oldest first, is to fall out for it; if none may yet, nothing is read.
    pub fn poll_read(&mut self, choose: impl FnOnce(&[Range<u64>]) -> Option<usize>) -> Option<Read> {
        if self.reading.is_some() || self.wanted.is_empty() {
            return None;
        }
        let dropped = if self.loaded.len() < self.slots {
            None
        } else {
            let loaded: Vec<_> = self.loaded.iter().rev().map(|unit| self.range(*unit)).collect();
            let at = choose(&loaded)?;
            let unit = self.loaded.remove(loaded.len().checked_sub(at + 1)?)?;
            Some(self.range(unit))
        };
        let unit = self.wanted.pop_front()?;
        self.reading = Some(unit);
        self.reads += 1;
        Some(Read { chunks: self.range(unit), dropped })
    }

    /// If something waits to be read, the oldest range at hand that nobody needs falls out for it, whether memory is full or not: then what is
    /// read goes to memory that is in the processor's cache, and a fast transfer fills little of it.
    pub fn release(&mut self, is_needed: impl Fn(&Range<u64>) -> bool) -> Option<Range<u64>> {
        if self.reading.is_some() || self.wanted.is_empty() {
            return None;
        }
        let at = self.loaded.iter().rposition(|unit| !is_needed(&self.range(*unit)))?;
        self.loaded.remove(at).map(|unit| self.range(unit))
    }

    /// The range was read: it is at hand.
    pub fn on_read(&mut self) {
        if let Some(unit) = self.reading.take() {
            self.loaded.push_front(unit);
        }
    }

    /// Another number of ranges fits memory from now on, at least 1. Which of those in it fall out: the oldest.
    pub fn set_slots(&mut self, slots: usize) -> Vec<Range<u64>> {
        self.slots = slots.max(1);
        let free_for_loaded = self.slots - usize::from(self.reading.is_some());
        let gone = self.loaded.split_off(self.loaded.len().min(free_for_loaded));
        gone.into_iter().map(|unit| self.range(unit)).collect()
    }

    /// How many ranges fit memory.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Chunks of a range.
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// How many ranges wait to be read.
    pub fn wanted(&self) -> usize {
        self.wanted.len()
    }

    /// How many ranges were read.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    fn is_coming(&self, unit: u64) -> bool {
        self.reading == Some(unit) || self.wanted.contains(&unit)
    }

    fn range(&self, unit: u64) -> Range<u64> {
        unit * self.unit..((unit + 1) * self.unit).min(self.chunks)
    }
}

impl Shelf for SharedShelf {
    fn at_hand(&self, chunk: u64) -> Option<Range<u64>> {
        let unit = chunk / self.unit;
        self.loaded.contains(&unit).then(|| self.range(unit))
    }

    fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.loaded.iter().map(|unit| self.range(*unit))
    }

    fn want(&mut self, chunk: u64) -> Range<u64> {
        let unit = chunk / self.unit;
        // Each destination wants a few ranges at a time, so this is short as long as there are few; never longer than memory.
        let known = self.loaded.contains(&unit) || self.is_coming(unit);
        if chunk < self.chunks && !known && self.wanted.len() < self.slots {
            self.wanted.push_back(unit);
        }
        self.range(unit)
    }

    fn lead(&self, chunk: u64) -> Option<u64> {
        let unit = chunk / self.unit;
        let ahead = || self.loaded.iter().copied().filter(|loaded| *loaded > unit);
        let block = (self.slots / PASSED_PART).max(1);
        if ahead().count() < block || self.is_coming(unit) {
            return None;
        }
        // All who are left behind leave out the same, the ends of blocks: what is read for one of them in the end is read for all.
        let starts = ahead().filter(|loaded| loaded % block as u64 == 0);
        starts.max().or_else(|| ahead().max()).map(|lead| lead * self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_needs_falls_out_for_what_is_read_next_and_for_nothing_else() {
        let mut shelf = SharedShelf::new(100, 10, 4);
        for unit in 0..3 {
            shelf.want(unit * 10);
            shelf.poll_read(|_| None).unwrap();
            shelf.on_read();
        }
        assert_eq!(shelf.release(|_| false), None, "nothing is to be read");
        shelf.want(35);
        assert_eq!(shelf.release(|_| true), None);
        assert_eq!(shelf.release(|range| range.contains(&5)), Some(10..20), "the oldest of those");
        let read = shelf.poll_read(|_| None).unwrap();
        assert_eq!((read.chunks, read.dropped), (30..40, None));
        shelf.want(45);
        assert_eq!(shelf.release(|_| false), None, "one is read at a time");
        assert!(shelf.at_hand(5).is_some() && shelf.at_hand(15).is_none() && shelf.at_hand(25).is_some());
    }

    #[test]
    fn the_oldest_fall_out_where_less_fits_memory() {
        let mut shelf = SharedShelf::new(100, 10, 4);
        for unit in 0..4 {
            shelf.want(unit * 10);
            shelf.poll_read(|_| None).unwrap();
            shelf.on_read();
        }
        assert!(shelf.set_slots(4).is_empty());
        assert_eq!(shelf.set_slots(2), [10..20, 0..10]);
        assert!(shelf.at_hand(5).is_none() && shelf.at_hand(15).is_none() && shelf.at_hand(25).is_some());
        // Memory is full: what is read next has to fall out for.
        shelf.want(50);
        let read = shelf.poll_read(|loaded| Some(loaded.len() - 2)).unwrap();
        assert_eq!((read.chunks, read.dropped), (50..60, Some(20..30)));
        // What is being read has its place already.
        assert_eq!((shelf.set_slots(0).len(), shelf.slots()), (1, 1));
    }
}
