//! Which chunks to ask a peer for: the four pickers (the libswift paper, §4.3).
//!
//! All give one bin, no wider than asked for, of chunks that the peer has and that are neither here nor on their way.

use std::ops::Range;

use crate::avail::Availability;
use crate::bin::{Bin, CHUNKS_MAX};
use crate::binmap::Binmap;

/// The order in which chunks are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picker {
    /// One after the other from this chunk on, then from the beginning: a different start for each peer spreads them.
    Sequential(u64),
    /// The rarest of the whole content; equally rare ones from this chunk on, which is to be random.
    RarestFirst(u64),
    /// For playing content that is complete: what is played next in order, then the rarest of a middle part, then of the rest,
    /// the nearest of those that are equally rare (the priority sets of the work that the paper cites; libswift's too).
    OnDemand {
        /// The chunk that is played next.
        position: u64,
        /// Chunks from there on that are wanted in order.
        high: u64,
        /// Chunks after those that are preferred.
        middle: u64,
    },
    /// For playing a stream while it is made: the largest bin from the chunk that is played next.
    Live(u64),
}

/// What a choice is made from.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// What the peer has announced, within its discard window.
    pub offered: &'a Binmap,
    /// What is here.
    pub have: &'a Binmap,
    /// What is on its way, from whomever.
    pub requested: &'a Binmap,
    /// How many peers have what.
    pub availability: &'a Availability,
    /// What goes before the picker's order: ranges of chunks, those that are needed first in front.
    pub needed: &'a [Range<u64>],
    /// Where what is wanted ends: the content's chunks, if they are known.
    pub end: Option<u64>,
    /// Of what is wanted in order: how many chunks others bring sooner than this peer would.
    pub left_to_others: u64,
}

/// Runs of chunks that are left to others, at most: then what comes next is taken.
const LEFT_RUNS_MAX: usize = 64;

impl Picker {
    /// The chunk from which on some are wanted in order; `None` where any order will do.
    pub fn in_order_from(&self) -> Option<u64> {
        match *self {
            Self::Sequential(start) | Self::OnDemand { position: start, .. } | Self::Live(start) => Some(start),
            Self::RarestFirst(_) => None,
        }
    }

    /// Chooses up to `chunks_max` chunks; `None` where the peer has nothing that is wanted.
    pub fn pick(&self, choice: &Choice<'_>, chunks_max: u64) -> Option<Bin> {
        let end = choice.end.unwrap_or(CHUNKS_MAX);
        if chunks_max == 0 {
            return None;
        }
        let in_order = |range: Range<u64>| in_order(choice, std::slice::from_ref(&range), chunks_max);
        let needed = self::in_order(choice, choice.needed, chunks_max);
        needed.or_else(|| match *self {
            Self::Sequential(start) => in_order(start..end).or_else(|| in_order(0..start.min(end))),
            Self::RarestFirst(start) => rarest(choice, &[start..end, 0..start.min(end)], chunks_max),
            Self::OnDemand { position, high, middle } => {
                let high_end = position.saturating_add(high).min(end);
                let middle_end = high_end.saturating_add(middle).min(end);
                in_order(position..high_end)
                    .or_else(|| rarest(choice, std::slice::from_ref(&(high_end..middle_end)), chunks_max))
                    .or_else(|| rarest(choice, &[middle_end..end, 0..position.min(end)], chunks_max))
            }
            Self::Live(position) => in_order(position..end),
        })
    }
}

/// The largest bin from the first chunk of the ranges, one after the other, that is wanted and not left to others.
fn in_order(choice: &Choice<'_>, ranges: &[Range<u64>], chunks_max: u64) -> Option<Bin> {
    let (mut left, mut runs_left) = (choice.left_to_others, LEFT_RUNS_MAX);
    for range in ranges {
        let mut from = range.start;
        while from < range.end {
            let is_left = left > 0 && runs_left > 0;
            let len_max = if is_left { left } else { chunks_max };
            let run = Binmap::next_match(from, len_max, &[choice.offered], &[choice.have, choice.requested]);
            let Some(run) = run.filter(|run| run.start < range.end) else { break };
            if !is_left {
                return first_bin(run, range);
            }
            from = run.end.min(range.end);
            (left, runs_left) = (left - (from - run.start), runs_left - 1);
        }
    }
    None
}

/// The rarest chunks of the parts, which are looked through in this order for each rarity: the lowest `i` with anything in
/// (Avail\[i\] and offered) without what is here (the paper, §4.3).
fn rarest(choice: &Choice<'_>, parts: &[Range<u64>], chunks_max: u64) -> Option<Bin> {
    choice.availability.levels().filter(|level| !level.is_empty()).find_map(|level| {
        parts.iter().find_map(|part| {
            let without = [choice.have, choice.requested];
            let run = Binmap::next_match(part.start, chunks_max, &[level, choice.offered], &without)?;
            first_bin(run, part)
        })
    })
}

fn first_bin(run: Range<u64>, within: &Range<u64>) -> Option<Bin> {
    Bin::cover(run.start..run.end.min(within.end)).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(numbers: &[u64]) -> Binmap {
        numbers.iter().filter_map(|number| Bin::from_u64(*number)).collect()
    }

    fn bin(number: u64) -> Option<Bin> {
        Bin::from_u64(number)
    }

    /// The catalogue's 003-bins, third part: figure 6. Two peers have chunks 0 and 1, one has chunk 2, chunk 3 nobody; a
    /// seeder offers all, chunks 0 and 2 are here: chunk 1, which is bin 2, is the only full one that remains.
    #[test]
    fn the_papers_choice() {
        let mut availability = Availability::new(4, Some(4));
        availability.add(&map(&[1, 4]));
        availability.add(&map(&[1]));
        let (offered, have, requested) = (map(&[1, 4]), map(&[0, 4]), map(&[]));
        let choice = Choice {
            offered: &offered,
            have: &have,
            requested: &requested,
            availability: &availability,
            needed: &[],
            end: Some(4),
            left_to_others: 0,
        };
        assert_eq!(Picker::RarestFirst(0).pick(&choice, 8), bin(2));
        let nothing = map(&[]);
        // Without chunk 2 here, it is the rarest that is offered.
        assert_eq!(Picker::RarestFirst(0).pick(&Choice { have: &nothing, ..choice }, 8), bin(4));
        let all = map(&[3]);
        assert_eq!(Picker::RarestFirst(0).pick(&Choice { have: &nothing, offered: &all, ..choice }, 8), bin(6));
        assert_eq!(Picker::RarestFirst(0).pick(&Choice { requested: &all, ..choice }, 8), None);
    }

    #[test]
    fn each_picker_in_its_order() {
        const CHUNKS: u64 = 64;
        let all = Binmap::full(CHUNKS);
        let mut availability = Availability::new(4, Some(CHUNKS));
        availability.add(&all);
        let mut common = all.clone();
        common.remove_range(20..22);
        common.remove_range(50..51);
        availability.add(&common);
        let (mut have, requested) = (Binmap::new(), map(&[]));
        let mut order = |picker: &dyn Fn() -> Picker, chunks_max, count| {
            have.remove_range(0..CHUNKS);
            let mut picked = Vec::new();
            while picked.len() < count {
                let choice = Choice {
                    offered: &all,
                    have: &have,
                    requested: &requested,
                    availability: &availability,
                    needed: &[],
                    end: Some(CHUNKS),
                    left_to_others: 0,
                };
                let Some(bin) = picker().pick(&choice, chunks_max) else { break };
                assert!(bin.chunk_count() <= chunks_max && have.is_empty_in(bin));
                have.insert(bin);
                picked.push(bin.start());
            }
            picked
        };
        assert_eq!(order(&|| Picker::Sequential(62), 1, 4), [62, 63, 0, 1]);
        assert_eq!(order(&|| Picker::Sequential(0), 16, 9), [0, 16, 32, 48]);
        assert_eq!(order(&|| Picker::Sequential(5), 16, 5), [5, 6, 8, 16, 32]);
        assert_eq!(order(&|| Picker::RarestFirst(40), 1, 5), [50, 20, 21, 40, 41]);
        let on_demand = || Picker::OnDemand { position: 16, high: 3, middle: 8 };
        assert_eq!(order(&on_demand, 1, 7), [16, 17, 18, 20, 21, 19, 22]);
        assert_eq!(order(&on_demand, 1, 14)[11..], [50, 27, 28]);
        assert_eq!(order(&on_demand, 1, 1000).len(), CHUNKS as usize);
        assert_eq!(order(&|| Picker::Live(30), 8, 3), [30, 32, 40]);
        assert_eq!(order(&|| Picker::Live(30), 8, 99).len(), 5, "nothing behind the position");
        assert_eq!(order(&|| Picker::Live(30), 0, 1), [0; 0]);
    }

    #[test]
    fn what_is_needed_goes_before_the_pickers_order() {
        let (all, nothing) = (Binmap::full(64), map(&[]));
        let mut availability = Availability::new(4, Some(64));
        availability.add(&all);
        let needed = [40..44, 10..11, 7..9, 62..80];
        for (left_to_others, first) in [(0, 40), (3, 43), (4, 10), (6, 8), (8, 63), (9, 0)] {
            let mut have = Binmap::new();
            let mut picked = Vec::new();
            loop {
                let choice = Choice {
                    offered: &all,
                    have: &have,
                    requested: &nothing,
                    availability: &availability,
                    needed: &needed,
                    end: Some(64),
                    left_to_others,
                };
                let Some(bin) = Picker::RarestFirst(0).pick(&choice, 1) else { break };
                have.insert(bin);
                picked.push(bin.start());
            }
            assert_eq!((picked[0], picked.len()), (first, 64));
            if left_to_others == 0 {
                assert_eq!(picked[..11], [40, 41, 42, 43, 10, 7, 8, 62, 63, 0, 1]);
            }
        }
    }

    /// Whatever is asked for is offered and missing, and while anything is, something is asked for.
    #[test]
    fn no_picker_asks_for_the_wrong_or_stops_early() {
        for seed in 0..30 {
            println!("seed {seed}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let chunks = rng.u64(1..400);
            let mut random =
                |density| -> Binmap { (0..chunks).filter(|_| rng.u8(..10) < density).filter_map(Bin::chunk).collect() };
            let (offered, have, mut requested) = (random(6), random(4), random(2));
            let mut availability = Availability::new(3, Some(chunks));
            [&offered, &random(5), &random(3)].into_iter().for_each(|map| availability.add(map));
            let position = rng.u64(..chunks);
            let picker = [
                Picker::Sequential(position),
                Picker::RarestFirst(position),
                Picker::OnDemand { position, high: 20, middle: 50 },
            ][rng.usize(..3)];
            let needed: Vec<Range<u64>> = (0..rng.usize(..4))
                .map(|_| (rng.u64(..chunks), rng.u64(..30)))
                .map(|(start, len)| start..start + len)
                .collect();
            let mut wanted = offered.clone();
            wanted.subtract(&have);
            wanted.subtract(&requested);
            loop {
                let (have, requested_now) = (&have, &requested.clone());
                let choice = Choice {
                    offered: &offered,
                    have,
                    requested: requested_now,
                    availability: &availability,
                    needed: &needed,
                    end: Some(chunks),
                    left_to_others: 0,
                };
                let Some(bin) = picker.pick(&choice, rng.u64(1..20)) else { break };
                assert!(wanted.is_full(bin));
                wanted.remove(bin);
                requested.insert(bin);
            }
            assert!(wanted.is_empty(), "{wanted:?}");
        }
    }
}
