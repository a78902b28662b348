//! What a sender believes of a receiver's reports: no more than it can check against what it did and measured itself.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use ring::hmac;

/// Packets between two numbers that are left out: about so many at first, doubled each time up to the most. The first lies are
/// found out at once, and later ones cost next to no reports: a number that is left out is a gap.
const SPACING_MIN: u64 = 16;
const SPACING_MAX: u64 = 4096;
/// The offset between two clocks is of the last ten seconds to twenty: clocks drift.
const OFFSET_AGE: Duration = Duration::from_secs(10);
/// The way back may take longer than the shortest round trip by so much and this part of it: hosts are busy. Whatever else a
/// round trip is longer is on the way there, whoever says otherwise.
const WAY_BACK: Duration = Duration::from_millis(5);
const WAY_BACK_PART: u32 = 4;

/// Packet numbers that are left out at random (RFC 9000 §21.4). Who acknowledges packets before they came, or that were lost,
/// acknowledges such a number soon; who reports what came never does.
#[derive(Debug)]
pub(super) struct Skipped {
    key: hmac::Key,
    path: u8,
    spacing: u64,
    /// The number that is left out next, or the first after it that begins a batch.
    due: u64,
    /// Those that a report may be about.
    numbers: VecDeque<u64>,
}

impl Skipped {
    /// Who does not know `seed` cannot foresee them.
    pub(super) fn new(seed: u64, path: u8) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &seed.to_be_bytes());
        let mut skipped = Self { key, path, spacing: SPACING_MIN, due: 0, numbers: VecDeque::new() };
        skipped.draw(1);
        skipped
    }

    fn draw(&mut self, from: u64) {
        let tag = hmac::sign(&self.key, &[&[self.path][..], &from.to_be_bytes()].concat());
        let random = tag.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
        self.due = from + random % (2 * self.spacing);
    }

    /// A batch begins with packet `next`: whether that number is left out.
    pub(super) fn take(&mut self, next: u64) -> bool {
        if next < self.due {
            return false;
        }
        self.spacing = (self.spacing * 2).min(SPACING_MAX);
        self.numbers.push_back(next);
        self.draw(next + 1);
        true
    }

    /// Whether one of `numbers` was left out.
    pub(super) fn any_of(&self, numbers: &Range<u64>) -> bool {
        let at = self.numbers.partition_point(|number| *number < numbers.start);
        self.numbers.get(at).is_some_and(|number| *number < numbers.end)
    }

    /// Nothing is said of numbers before `base` any more.
    pub(super) fn forget(&mut self, base: u64) {
        while self.numbers.pop_front_if(|number| *number < base).is_some() {}
    }
}

/// When a mark was sent and its answer heard, by this end's clock, and when it came, by the receiver's, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub sent_us: u64,
    pub heard_us: u64,
    pub theirs_us: u64,
}

/// The receiver's clock as far as it can be true: a mark came after it was sent, before its answer was heard, and not much longer
/// before that than a round trip takes.
#[derive(Debug)]
pub(super) struct TheirClock {
    /// The smallest difference between their clock at an arrival and ours when it left, of late and before.
    offset: [i128; 2],
    since: Instant,
}

impl TheirClock {
    pub(super) fn new(now: Instant) -> Self {
        Self { offset: [i128::MAX; 2], since: now }
    }

    pub(super) fn on_arrival(&mut self, arrival: &Arrival, now: Instant) {
        if now >= self.since + OFFSET_AGE {
            (self.offset, self.since) = ([i128::MAX, self.offset[0]], now);
        }
        self.offset[0] = self.offset[0].min(i128::from(arrival.theirs_us) - i128::from(arrival.sent_us));
    }

    /// For how long packets arrived between two marks; `None` where that is no time at all.
    pub(super) fn between(&self, before: &Arrival, after: &Arrival, rtt_min: Duration) -> Option<Duration> {
        let back = rtt_min + WAY_BACK + rtt_min / WAY_BACK_PART;
        let us = self.ours(after, back) - self.ours(before, back);
        u64::try_from(us).ok().filter(|us| *us > 0).map(Duration::from_micros)
    }

    /// By our clock, less what the way there takes at least.
    fn ours(&self, arrival: &Arrival, back: Duration) -> i128 {
        let claimed = i128::from(arrival.theirs_us).saturating_sub(self.offset[0].min(self.offset[1]));
        let earliest = arrival.sent_us.max(arrival.heard_us.saturating_sub(back.as_micros() as u64));
        claimed.clamp(earliest.into(), arrival.heard_us.max(earliest).into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_clock_says_more_than_was_measured(steps in prop::collection::vec((1..50_000u64, 1..50_000u64, any::<u64>()), 2..50)) {
            let now = Instant::now();
            let (mut clock, mut sent_us, mut before) = (TheirClock::new(now), 0, None::<Arrival>);
            let rtt_min = Duration::from_micros(steps.iter().map(|(_, rtt, _)| *rtt).min().unwrap_or(0));
            for (gap, rtt, theirs_us) in steps {
                sent_us += gap;
                let arrival = Arrival { sent_us, heard_us: sent_us + rtt, theirs_us };
                clock.on_arrival(&arrival, now + Duration::from_micros(sent_us));
                if let Some(before) = before.replace(arrival) {
                    let us = clock.between(&before, &arrival, rtt_min).map_or(0, |time| time.as_micros() as u64);
                    prop_assert!(us <= arrival.heard_us - before.sent_us);
                    prop_assert!(us + before.heard_us >= arrival.sent_us);
                    let back_us = (rtt_min + rtt_min / 4).as_micros() as u64 + 5000;
                    prop_assert!(us + before.heard_us + back_us >= arrival.heard_us, "more came in less time");
                }
            }
        }

        #[test]
        fn an_honest_clock_is_believed(steps in prop::collection::vec((20_000..50_000u64, 0..10_000u64, 5_000..9_000u64), 2..50), offset in 0..1u64 << 60) {
            let now = Instant::now();
            let (mut clock, mut sent_us, mut before) = (TheirClock::new(now), 0, None::<Arrival>);
            let mut rtt_min = u64::MAX;
            for (gap, there, back) in steps {
                rtt_min = rtt_min.min(there + back);
                sent_us += gap;
                let came_us = sent_us + there;
                let arrival = Arrival { sent_us, heard_us: came_us + back, theirs_us: came_us + offset };
                clock.on_arrival(&arrival, now);
                if let Some(before) = before.replace(arrival) {
                    let true_us = arrival.theirs_us - before.theirs_us;
                    prop_assert_eq!(clock.between(&before, &arrival, Duration::from_micros(rtt_min)), Some(Duration::from_micros(true_us)));
                }
            }
        }

        #[test]
        fn numbers_are_left_out_seldom_and_never_first(seed in any::<u64>(), path in 0..32u8, batches in prop::collection::vec(1..65u64, 1000)) {
            let (mut skipped, mut next, mut count) = (Skipped::new(seed, path), 0, 0);
            for batch in batches {
                if skipped.take(next) {
                    prop_assert!(next > 0 && skipped.any_of(&(next..next + 1)) && !skipped.any_of(&(next + 1..next + 64)));
                    (next, count) = (next + 1, count + 1);
                }
                next += batch;
            }
            prop_assert!((6..40).contains(&count), "{count} of {next}");
            skipped.forget(next);
            prop_assert!(!skipped.any_of(&(0..next)));
        }
    }
}
