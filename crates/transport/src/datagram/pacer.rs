//! When the next bytes may leave: a token bucket. Pure.
//!
//! Routers drop what overruns them, and so do receivers' buffers; what leaves evenly fills neither. The bucket earns the rate's
//! bytes and holds one burst of them, so a sender that slept too long makes up for that much and no more.

use std::time::{Duration, Instant};

/// Shortest time that a burst stands for when its length is chosen by [`Pacer::new`]: timers and schedulers are late by so
/// much, and what the bucket cannot hold meanwhile is lost to the rate.
pub const BURST_TIME: Duration = Duration::from_millis(1);
/// The shortest bucket that [`Pacer::new`] makes, in bytes: one coalesced send.
pub const BURST_BYTES_MIN: u64 = 1 << 16;
/// The longest that it makes, in bytes: what a small router's queue, or a receive buffer that was not enlarged, takes at once.
pub const BURST_BYTES_MAX: u64 = 1 << 20;
/// Tokens are counted in parts of a byte so small that a nanosecond earns a whole number of them: no rate drifts.
const PARTS: u128 = 1_000_000_000;

/// A token bucket: at most `rate` bytes a second in the long run, at most one burst more in any interval.
///
/// ```
/// use std::time::{Duration, Instant};
/// use anabranch_transport::datagram::Pacer;
///
/// let start = Instant::now();
/// // A megabyte a second, 10 kB at once.
/// let mut pacer = Pacer::with_burst(1_000_000, 10_000, start);
/// assert_eq!(pacer.allowance(start), 10_000);
/// pacer.spend(10_000, start);
/// // The next 5000 bytes are earned five milliseconds later.
/// assert_eq!(pacer.next_send(5_000, start), Some(start + Duration::from_millis(5)));
/// ```
#[derive(Clone, Debug)]
pub struct Pacer {
    rate_bytes: u64,
    burst_bytes: u64,
    /// In [`PARTS`] of a byte, at `filled`; never more than the burst.
    tokens: u128,
    /// Parts of a byte spent beyond the tokens.
    debt: u128,
    filled: Instant,
}

impl Pacer {
    /// `rate_bytes` a second. The bucket holds [`BURST_TIME`] of that, within [`BURST_BYTES_MIN`] and [`BURST_BYTES_MAX`], and
    /// is full.
    pub fn new(rate_bytes: u64, now: Instant) -> Self {
        Self::with_burst(rate_bytes, burst_of(rate_bytes), now)
    }

    /// The same, with a bucket of `burst_bytes`; at least one byte.
    pub fn with_burst(rate_bytes: u64, burst_bytes: u64, now: Instant) -> Self {
        let burst_bytes = burst_bytes.max(1);
        Self { rate_bytes, burst_bytes, tokens: u128::from(burst_bytes) * PARTS, debt: 0, filled: now }
    }

    /// The rate, in bytes a second.
    pub fn rate_bytes(&self) -> u64 {
        self.rate_bytes
    }

    /// What the bucket holds, in bytes.
    pub fn burst_bytes(&self) -> u64 {
        self.burst_bytes
    }

    /// Changes the rate from `now` on; what was earned until then stays. Zero stops everything.
    pub fn set_rate(&mut self, rate_bytes: u64, now: Instant) {
        self.fill(now);
        self.rate_bytes = rate_bytes;
    }

    /// Bytes that may leave at `now`.
    pub fn allowance(&mut self, now: Instant) -> u64 {
        self.fill(now);
        // At most the burst.
        (self.tokens / PARTS) as u64
    }

    /// `bytes` have left. Where that is more than was allowed (a datagram is not cut apart), the rest is earned before
    /// anything else leaves.
    pub fn spend(&mut self, bytes: u64, now: Instant) {
        self.fill(now);
        let spent = u128::from(bytes) * PARTS;
        self.debt += spent.saturating_sub(self.tokens);
        self.tokens = self.tokens.saturating_sub(spent);
    }

    /// When `bytes` may leave: not before `now`. More than the bucket holds counts as a full bucket. `None`: never, at a rate
    /// of zero.
    pub fn next_send(&mut self, bytes: u64, now: Instant) -> Option<Instant> {
        self.fill(now);
        let wanted = u128::from(bytes.min(self.burst_bytes)) * PARTS + self.debt;
        let lacking = wanted.saturating_sub(self.tokens);
        if lacking == 0 {
            return Some(now);
        }
        let ns = lacking.div_ceil(u128::from(self.rate_bytes).max(1));
        // A time beyond what the clock can say is never.
        let wait = u64::try_from(ns).ok().filter(|_| self.rate_bytes > 0).map(Duration::from_nanos);
        now.checked_add(wait?)
    }

    fn full(&self) -> u128 {
        u128::from(self.burst_bytes) * PARTS
    }

    /// Earns what the time until `now` brings. A clock that goes back brings nothing.
    fn fill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.filled);
        self.filled = self.filled.max(now);
        // 2^64 bytes a second in 2^94 nanoseconds do not fit; nobody waits so long with a debt.
        let earned = elapsed.as_nanos().saturating_mul(self.rate_bytes.into());
        let repaid = earned.min(self.debt);
        self.debt -= repaid;
        self.tokens = self.tokens.saturating_add(earned - repaid).min(self.full());
    }
}

fn burst_of(rate_bytes: u64) -> u64 {
    let bytes = u128::from(rate_bytes) * BURST_TIME.as_nanos() / PARTS;
    u64::try_from(bytes).unwrap_or(BURST_BYTES_MAX).clamp(BURST_BYTES_MIN, BURST_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bucket_holds_a_millisecond_within_bounds() {
        let burst = |rate| Pacer::new(rate, Instant::now()).burst_bytes();
        assert_eq!(burst(0), BURST_BYTES_MIN);
        assert_eq!(burst(BURST_BYTES_MIN * 1000), BURST_BYTES_MIN);
        assert_eq!(burst(BURST_BYTES_MIN * 1000 + 1000), BURST_BYTES_MIN + 1);
        assert_eq!(burst(2_000_000_000), BURST_BYTES_MAX);
        assert_eq!(burst(u64::MAX), BURST_BYTES_MAX);
    }

    #[test]
    fn one_that_slept_makes_up_for_one_burst_only() {
        let start = Instant::now();
        let mut pacer = Pacer::with_burst(1000, 100, start);
        pacer.spend(100, start);
        assert_eq!(pacer.allowance(start + Duration::from_millis(99)), 99);
        assert_eq!(pacer.allowance(start + Duration::from_millis(100)), 100);
        assert_eq!(pacer.allowance(start + Duration::from_secs(3600)), 100);
    }

    #[test]
    fn what_was_sent_too_much_is_earned_first() {
        let start = Instant::now();
        let mut pacer = Pacer::with_burst(1000, 100, start);
        pacer.spend(150, start);
        assert_eq!(pacer.next_send(1, start), Some(start + Duration::from_millis(51)));
        // More than the bucket holds waits for a full bucket, and not for ever.
        assert_eq!(pacer.next_send(5000, start), Some(start + Duration::from_millis(150)));
        assert_eq!(pacer.allowance(start + Duration::from_millis(50)), 0);
        assert_eq!(pacer.allowance(start + Duration::from_millis(60)), 10);
    }

    #[test]
    fn a_rate_of_zero_stops_and_another_goes_on() {
        let start = Instant::now();
        let mut pacer = Pacer::with_burst(0, 100, start);
        assert_eq!(pacer.next_send(100, start), Some(start));
        pacer.spend(100, start);
        assert_eq!(pacer.next_send(1, start), None);
        let later = start + Duration::from_secs(10);
        pacer.set_rate(1000, later);
        assert_eq!(pacer.next_send(10, later), Some(later + Duration::from_millis(10)));
    }

    proptest! {
        // Whoever sends when it may is never above the rate by more than a burst, nor below it by more than a datagram's time.
        #[test]
        fn the_rate_is_kept(
            rate in 1_000u64..4_000_000_000, burst in 1500u64..1_000_000, seed: u64,
            lens in proptest::collection::vec(1u64..1500, 1..300),
        ) {
            let start = Instant::now();
            let mut pacer = Pacer::with_burst(rate, burst, start);
            let (mut now, mut sent, mut random) = (start, 0u128, fastrand(seed));
            for len in &lens {
                let at = pacer.next_send(*len, now).unwrap();
                prop_assert!(at >= now);
                if at > now {
                    // A moment before it is not allowed yet.
                    prop_assert!(pacer.allowance(at - Duration::from_nanos(1)) < *len);
                }
                // Some come late.
                now = at + Duration::from_nanos(random() % 3 * (random() % 1000));
                prop_assert!(pacer.allowance(now) >= *len);
                pacer.spend(*len, now);
                sent += u128::from(*len);
                let earned = (now - start).as_nanos() * u128::from(rate) / PARTS;
                prop_assert!(sent <= earned + u128::from(burst) + 1);
            }
        }
    }

    /// SplitMix64.
    fn fastrand(mut state: u64) -> impl FnMut() -> u64 {
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed ^ mixed >> 27
        }
    }
}
