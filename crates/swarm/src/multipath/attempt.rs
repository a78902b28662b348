//! When a path that did not open is tried again: the same over SCION and over plain IP.

use std::time::{Duration, Instant};

/// So long a path that fails is tried as often as its kind allows, since links come back at any time; after that ...
const SOON_FOR: Duration = Duration::from_secs(30);
/// ... so often.
const RETRY_LATER: Duration = Duration::from_secs(10);

/// The attempts to open a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attempt {
    is_under_way: bool,
    failures: u32,
    not_before: Option<Instant>,
}

impl Attempt {
    /// Whether one is under way.
    pub fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// Whether the last one failed.
    pub fn fails(&self) -> bool {
        self.failures > 0
    }

    /// Begins one; `false` where one is under way or it is too early.
    pub fn begin(&mut self, now: Instant) -> bool {
        let may = !self.is_under_way && self.not_before.is_none_or(|at| now >= at);
        self.is_under_way |= may;
        may
    }

    /// The path opened: what failed before does not count.
    pub fn opened(&mut self) {
        self.failures = 0;
    }

    /// Its connection is over.
    pub fn ended(&mut self, retry: Duration, now: Instant) {
        *self = Self { not_before: Some(now + retry), ..Self::default() };
    }

    /// It did not open; whether it is the first time in a row.
    pub fn failed(&mut self, retry: Duration, now: Instant) -> bool {
        self.is_under_way = false;
        self.failures += 1;
        let is_soon = retry.saturating_mul(self.failures) <= SOON_FOR;
        self.not_before = Some(now + if is_soon { retry } else { RETRY_LATER });
        self.failures == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Duration = Duration::from_millis(500);

    #[test]
    fn one_at_a_time_and_not_at_once_again() {
        let (mut attempt, now) = (Attempt::default(), Instant::now());
        assert!(attempt.begin(now) && !attempt.begin(now) && attempt.is_under_way());
        attempt.opened();
        attempt.ended(RETRY, now);
        assert!(!attempt.begin(now) && !attempt.fails() && attempt.begin(now + RETRY));
    }

    #[test]
    fn what_fails_is_tried_often_for_half_a_minute_and_then_seldom() {
        let (mut attempt, start) = (Attempt::default(), Instant::now());
        let (mut now, mut waits) = (start, Vec::new());
        for _ in 0..70 {
            assert!(attempt.begin(now));
            let is_first = attempt.failed(RETRY, now);
            assert_eq!((is_first, attempt.fails()), (waits.is_empty(), true));
            let wait = [RETRY, RETRY_LATER].into_iter().find(|wait| {
                let mut early = attempt;
                early.begin(now + *wait)
            });
            waits.extend(wait);
            now += waits[waits.len() - 1];
        }
        assert_eq!(waits.iter().filter(|wait| **wait == RETRY).count(), 60);
        assert!(waits[60..].iter().all(|wait| *wait == RETRY_LATER));
        assert!(attempt.begin(now));
        attempt.opened();
        assert!(!attempt.fails());
    }
}
