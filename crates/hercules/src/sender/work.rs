//! Which chunks are to be sent: in rounds, everything once, then what is missing.
//!
//! What was lost does not wait for the next round where it can go before: while it is in memory, and once the round has moved far
//! on. So a receiver that stops has few spans with a hole in them, which are of no use to it when it comes again.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crate::chunks::ChunkSet;
use crate::shelf::{READ_AHEAD, Shelf};

/// What is left at the end may be sent twice if it is no more than this part of all, or than so many chunks.
const DOUBLED_PART: u64 = 100;
const DOUBLED_CHUNKS_MIN: u64 = 64;
/// So many ranges, from the one that was read last on, are too new for what was lost of them: by then it has come after all, if it was
/// only late.
const FRESH_RUNS: usize = 8;
/// What was lost so many chunks behind where the round is goes at once, even if it has to be read again.
const BEHIND_MAX: u64 = 1 << 18;

/// The chunks of a transfer as the sender sees them.
#[derive(Debug)]
pub(super) struct Work {
    /// The receiver has them.
    pub acked: ChunkSet,
    /// To be sent in this round.
    pub todo: ChunkSet,
    /// Lost in this round, to be sent in the next.
    pub later: ChunkSet,
    /// Counts from 1.
    pub round: u32,
    /// Where the round is.
    cursor: u64,
    /// To be sent a second time while the first is under way.
    to_double: VecDeque<u64>,
    doubled_at: Option<Instant>,
}

impl Work {
    pub(super) fn new(chunks: u64) -> Self {
        Self {
            acked: ChunkSet::new(chunks),
            todo: ChunkSet::full(chunks),
            later: ChunkSet::new(chunks),
            round: 1,
            cursor: 0,
            to_double: VecDeque::new(),
            doubled_at: None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.acked.is_full()
    }

    /// Chunks that nobody sends at the moment.
    pub(super) fn waiting(&self) -> u64 {
        self.todo.len() + self.later.len()
    }

    pub(super) fn came(&mut self, chunk: u64) {
        if self.acked.insert(chunk) {
            self.todo.remove(chunk);
            self.later.remove(chunk);
        }
    }

    /// The receiver had these before.
    pub(super) fn kept(&mut self, chunks: Range<u64>) {
        self.acked.insert_range(chunks.clone());
        self.todo.remove_range(chunks.clone());
        self.later.remove_range(chunks);
    }

    /// Whether it is still to send some of `chunks`, or does not know yet that all of these came. What it left out, or what is more than
    /// `behind` chunks behind where the round is, it comes back for at the end.
    pub(super) fn needs(&self, chunks: &Range<u64>, behind: u64) -> bool {
        if self.todo.next_within(chunks.start.max(self.cursor)..chunks.end).is_some() {
            return true;
        }
        let is_near = chunks.end + behind > self.cursor;
        is_near && self.acked.gaps(chunks.clone()).any(|gap| !self.todo.contains_range(gap))
    }

    /// These have to be sent once more, whatever is known of them.
    pub(super) fn again(&mut self, chunks: Range<u64>) {
        self.acked.remove_range(chunks.clone());
        self.later.insert_range(chunks);
    }

    pub(super) fn lost(&mut self, chunk: u64) {
        if !self.acked.contains(chunk) && !self.todo.contains(chunk) {
            self.later.insert(chunk);
        }
    }

    /// Takes up to `room` chunks that are at hand; those of the round first, then of the next.
    pub(super) fn take(&mut self, shelf: &mut impl Shelf, room: usize, out: &mut Vec<u64>) {
        if self.todo.is_empty() && !self.later.is_empty() {
            std::mem::swap(&mut self.todo, &mut self.later);
            self.round += 1;
            self.cursor = 0;
        }
        let Some(next) = self.todo.next_member(self.cursor).or_else(|| self.todo.next_member(0)) else { return };
        let end = out.len() + room;
        self.take_lost(shelf, end, out);
        if out.len() >= end {
            return;
        }
        let mut next = Some(next);
        while let Some(at) = next.filter(|_| out.len() < end) {
            let Some(run) = shelf.at_hand(at) else {
                // Others went on while this destination was slow: it goes on with what was read for them.
                let Some(ahead) = shelf.lead(at).and_then(|lead| self.todo.next_member(lead)) else { break };
                next = Some(ahead);
                continue;
            };
            self.take_run(at..run.end, end, out);
            next = self.todo.next_member(self.cursor);
        }
        self.read_ahead(shelf, next.or_else(|| self.todo.next_member(0)));
        if out.len() < end {
            for run in shelf.runs() {
                self.take_other(run, end, out);
            }
        }
    }

    /// What comes next is read before it is waited for; not of what was lost, which is behind that.
    fn read_ahead(&self, shelf: &mut impl Shelf, from: Option<u64>) {
        let mut next = from;
        for _ in 0..=READ_AHEAD {
            let Some(at) = next else { break };
            let read = shelf.want(at);
            next = self.todo.next_member(read.end);
        }
    }

    /// Of what was lost, what would have to be read again for the next round, or has waited for long.
    fn take_lost(&mut self, shelf: &mut impl Shelf, end: usize, out: &mut Vec<u64>) {
        if self.later.is_empty() {
            return;
        }
        let newest = shelf.runs().next().map_or(0, |run| run.start);
        for (index, run) in shelf.runs().enumerate() {
            // Those between may have fallen out, as nobody needed them.
            let is_far = run.start + FRESH_RUNS as u64 * (run.end - run.start) <= newest;
            if index >= FRESH_RUNS || is_far {
                take_from(&mut self.later, run, end, out);
            }
        }
        if let Some(old) = self.later.next_member(0).filter(|old| old + BEHIND_MAX < self.cursor) {
            match shelf.at_hand(old) {
                Some(run) => _ = take_from(&mut self.later, old..run.end, end, out),
                None => _ = shelf.want(old),
            }
        }
    }

    fn take_run(&mut self, run: Range<u64>, end: usize, out: &mut Vec<u64>) {
        self.cursor = take_from(&mut self.todo, run, end, out);
    }

    /// Without moving on from where the round is.
    fn take_other(&mut self, run: Range<u64>, end: usize, out: &mut Vec<u64>) {
        let cursor = self.cursor;
        self.take_run(run, end, out);
        self.cursor = cursor;
    }

    /// Everything was sent, some of it is under way: sends it a second time, where that is cheap, once a round trip. First what was sent
    /// last, of which it is known last whether it came.
    pub(super) fn double(
        &mut self,
        shelf: &mut impl Shelf,
        now: Instant,
        every: std::time::Duration,
        room: usize,
        out: &mut Vec<u64>,
    ) {
        let left = self.acked.limit() - self.acked.len();
        if self.waiting() > 0 || left == 0 || left > (self.acked.limit() / DOUBLED_PART).max(DOUBLED_CHUNKS_MIN) {
            return;
        }
        if self.doubled_at.is_none_or(|at| now >= at + every) {
            self.to_double = self.acked.gaps(0..self.acked.limit()).flatten().collect();
            // What is under way of the first half is known about by the time that the other is sent again.
            self.to_double.rotate_left(self.to_double.len() / 2);
            self.doubled_at = Some(now);
        }
        while out.len() < room
            && let Some(chunk) = self.to_double.pop_front()
        {
            if self.acked.contains(chunk) {
                continue;
            }
            if shelf.at_hand(chunk).is_none() {
                shelf.want(chunk);
                return self.to_double.push_front(chunk);
            }
            out.push(chunk);
        }
    }
}

/// Takes members of `run` out of a set, until there are `end`; answers where it stopped.
fn take_from(set: &mut ChunkSet, run: Range<u64>, end: usize, out: &mut Vec<u64>) -> u64 {
    let mut at = run.start;
    while out.len() < end {
        let Some(start) = set.next_within(at..run.end) else { break };
        let most = run.end.min(start + (end - out.len()) as u64);
        let Some(next) = set.run_within(start..most) else { break };
        at = next.end;
        out.extend(next.clone());
        set.remove_range(next);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shelf::{Everything, SharedShelf};

    /// Reads what is wanted next, in the place of the oldest; what that was.
    fn read(shelf: &mut SharedShelf) -> Option<Range<u64>> {
        let read = shelf.poll_read(|_| Some(0))?;
        shelf.on_read();
        Some(read.chunks)
    }

    #[test]
    fn a_round_goes_on_in_order_from_range_to_range_and_takes_others_only_while_its_own_is_read() {
        let (mut work, mut out) = (Work::new(1000), Vec::new());
        let mut shelf = SharedShelf::new(1000, 10, 40);
        for unit in [0, 1, 2, 4] {
            shelf.want(unit * 10);
            read(&mut shelf);
        }
        work.take(&mut shelf, 15, &mut out);
        assert_eq!((&out, work.cursor), (&(0..15).collect(), 15));
        work.take(&mut shelf, 20, &mut out);
        assert_eq!((out.split_off(15), work.cursor), ((15..30).chain(40..45).collect(), 30));
        assert_eq!(read(&mut shelf), Some(30..40), "it is wanted");
        assert_eq!(read(&mut shelf), Some(50..60), "and what comes then, of what is not there");
    }

    #[test]
    fn one_that_was_left_behind_goes_on_with_the_others_and_comes_back_for_the_rest() {
        let (mut work, mut out) = (Work::new(100), Vec::new());
        let mut shelf = SharedShelf::new(100, 10, 4);
        let read_all = |shelf: &mut SharedShelf, units: Range<u64>| {
            units.for_each(|unit| {
                shelf.want(unit * 10);
                read(shelf);
            });
        };
        read_all(&mut shelf, 0..4);
        work.take(&mut shelf, 5, &mut out);
        assert_eq!(read(&mut shelf), Some(40..50), "it is read for it while nobody is ahead");
        // Ranges 0 to 4 fell out while it took nothing.
        read_all(&mut shelf, 5..9);
        while read(&mut shelf).is_some() {}
        out.clear();
        work.take(&mut shelf, 15, &mut out);
        // The newest block of two begins at 80, and range 9 is still to be read: others at hand do meanwhile.
        assert_eq!(out, [(80..90).collect::<Vec<_>>(), (70..75).collect()].concat());
        // At the end it wants what it left out.
        read_all(&mut shelf, 9..10);
        (0..20).for_each(|_| work.take(&mut shelf, 10, &mut out));
        assert_eq!(read(&mut shelf), Some(0..10));
    }

    #[test]
    fn what_was_lost_goes_before_it_falls_out_of_memory() {
        let (mut work, mut out) = (Work::new(1000), Vec::new());
        let mut shelf = SharedShelf::new(1000, 10, 40);
        for unit in 0..20 {
            shelf.want(unit * 10);
            read(&mut shelf);
        }
        (0..16).for_each(|_| work.take(&mut shelf, 10, &mut out));
        assert_eq!(out, (0..160).collect::<Vec<_>>());
        // One of an old range, and one of a range that is too new.
        work.lost(7);
        work.lost(155);
        out.clear();
        work.take(&mut shelf, 3, &mut out);
        assert_eq!((out, work.round), (vec![7, 160, 161], 1));
    }

    #[test]
    fn what_was_lost_long_ago_goes_at_once() {
        let (mut work, mut out) = (Work::new(1 << 20), Vec::new());
        let room = BEHIND_MAX as usize + 6;
        work.take(&mut Everything, room, &mut out);
        work.lost(5);
        work.lost(8);
        out.clear();
        work.take(&mut Everything, 2, &mut out);
        work.take(&mut Everything, 1, &mut out);
        assert_eq!((out, work.round), (vec![5, 8, room as u64], 1));
    }

    #[test]
    fn a_range_is_needed_until_all_of_it_came_or_it_is_far_behind() {
        let (mut work, mut out) = (Work::new(100), Vec::new());
        let needs = |work: &Work, behind| -> Vec<u64> {
            (0..10).filter(|unit| work.needs(&(unit * 10..unit * 10 + 10), behind)).collect()
        };
        assert_eq!(needs(&work, 20), (0..10).collect::<Vec<_>>());
        work.take(&mut Everything, 45, &mut out);
        // What is under way counts where it is near.
        assert_eq!((needs(&work, 15), needs(&work, 20)), ((3..10).collect(), (2..10).collect()));
        (30..45).for_each(|chunk| work.came(chunk));
        work.lost(25);
        assert_eq!((needs(&work, 15), needs(&work, 20)), ((4..10).collect(), vec![2, 4, 5, 6, 7, 8, 9]));
        // It goes on elsewhere: what it leaves out is for the end.
        work.take_run(80..85, 100, &mut out);
        assert_eq!(needs(&work, 100), [0, 1, 2, 8, 9]);
    }
}
