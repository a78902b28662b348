//! When a path that did not open is tried again: the same over SCION and over plain IP.

use std::time::{Duration, Instant};

/// So long a path that fails is tried as often as its kind allows, since links come back at any time; after that ...
const SOON_FOR: Duration = Duration::from_secs(30);
/// ... so often.
const RETRY_LATER: Duration = Duration::from_secs(10);
/// What a peer only says of itself is tried ever more seldom while it does not work, down to this: it may be somebody else's
/// address, and he shall not be dialled for ever because we were told so.
const RETRY_HEARSAY_MAX: Duration = Duration::from_secs(10 * 60);

/// The attempts to open a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DialBackoff {
    is_under_way: bool,
    failures: u32,
    not_before: Option<Instant>,
    /// It was open once.
    has_worked: bool,
}

impl DialBackoff {
    /// Whether one is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// Whether the last one failed.
    pub(super) fn fails(&self) -> bool {
        self.failures > 0
    }

    /// Begins one; `false` where one is under way or it is too early.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        let may = !self.is_under_way && self.not_before.is_none_or(|at| now >= at);
        self.is_under_way |= may;
        may
    }

    /// The path opened: what failed before does not count.
    pub(super) fn opened(&mut self) {
        (self.failures, self.has_worked) = (0, true);
    }

    /// Its connection is over.
    pub(super) fn ended(&mut self, retry: Duration, now: Instant) {
        *self = Self { not_before: Some(now + retry), has_worked: true, ..Self::default() };
    }

    /// The same for a path to where nobody is known to be but by a peer's word.
    pub(super) fn hearsay_failed(&mut self, retry: Duration, now: Instant) -> bool {
        let is_first = self.failed(retry, now);
        if !self.has_worked {
            let wait = retry.saturating_mul(1 << (self.failures - 1).min(16));
            self.not_before = Some(now + wait.min(RETRY_HEARSAY_MAX));
        }
        is_first
    }

    /// It did not open; whether it is the first time in a row.
    pub(super) fn failed(&mut self, retry: Duration, now: Instant) -> bool {
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
        let (mut backoff, now) = (DialBackoff::default(), Instant::now());
        assert!(backoff.begin(now) && !backoff.begin(now) && backoff.is_under_way());
        backoff.opened();
        backoff.ended(RETRY, now);
        assert!(!backoff.begin(now) && !backoff.fails() && backoff.begin(now + RETRY));
    }

    #[test]
    fn what_fails_is_tried_often_for_half_a_minute_and_then_seldom() {
        let (mut backoff, start) = (DialBackoff::default(), Instant::now());
        let (mut now, mut waits) = (start, Vec::new());
        for _ in 0..70 {
            assert!(backoff.begin(now));
            let is_first = backoff.failed(RETRY, now);
            assert_eq!((is_first, backoff.fails()), (waits.is_empty(), true));
            let wait = [RETRY, RETRY_LATER].into_iter().find(|wait| {
                let mut early = backoff;
                early.begin(now + *wait)
            });
            waits.extend(wait);
            now += waits[waits.len() - 1];
        }
        assert_eq!(waits.iter().filter(|wait| **wait == RETRY).count(), 60);
        assert!(waits[60..].iter().all(|wait| *wait == RETRY_LATER));
        assert!(backoff.begin(now));
        backoff.opened();
        assert!(!backoff.fails());
    }

    #[test]
    fn what_a_peer_only_says_is_tried_ever_more_seldom_until_it_works() {
        let (mut backoff, mut now) = (DialBackoff::default(), Instant::now());
        let mut dials = 0;
        let end = now + Duration::from_secs(3600);
        while now < end {
            assert!(backoff.begin(now));
            backoff.hearsay_failed(RETRY, now);
            now = backoff.not_before.unwrap();
            dials += 1;
        }
        // Doubling from half a second to ten minutes, and then six an hour.
        assert!((10..=17).contains(&dials), "{dials}");
        assert!(backoff.begin(now));
        backoff.ended(RETRY, now);
        now += RETRY;
        assert!(backoff.begin(now) && backoff.hearsay_failed(RETRY, now) && backoff.begin(now + RETRY));
    }
}
