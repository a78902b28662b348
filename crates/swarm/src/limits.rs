//! Rate limits: token buckets that hang together.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How much time's worth of bytes a bucket holds: short enough that a limit is kept within any second,
/// long enough for coarse timers.
const BURST: Duration = Duration::from_millis(200);
/// Smallest burst: one block of the longest kind, so that slow limits can send at all.
const BURST_BYTES_MIN: f64 = 16.0 * 1024.0;

/// A limit in bytes per second; `None` is none.
#[derive(Debug)]
pub struct Limiter {
    rate_bytes: Cell<Option<u64>>,
    bucket: RefCell<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Limiter {
    /// A limit of `rate_bytes` per second.
    pub fn new(rate_bytes: Option<u64>, now: Instant) -> Rc<Self> {
        Rc::new(Self { rate_bytes: Cell::new(rate_bytes), bucket: RefCell::new(Bucket { tokens: 0.0, filled: now }) })
    }

    /// Bytes that may move now.
    fn available(&self, now: Instant) -> u64 {
        let Some(rate) = self.rate_bytes.get() else { return u64::MAX };
        let mut bucket = self.bucket.borrow_mut();
        let earned = now.saturating_duration_since(bucket.filled).as_secs_f64() * rate as f64;
        let burst = (rate as f64 * BURST.as_secs_f64()).max(BURST_BYTES_MIN);
        bucket.tokens = (bucket.tokens + earned).min(burst);
        bucket.filled = bucket.filled.max(now);
        bucket.tokens.max(0.0) as u64
    }

    fn spend(&self, bytes: u64) {
        if self.rate_bytes.get().is_some() {
            self.bucket.borrow_mut().tokens -= bytes as f64;
        }
    }

    /// Time until `bytes` may move.
    fn wait(&self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.rate_bytes.get() else { return Duration::ZERO };
        self.available(now);
        // What was overdrawn is waited for, too.
        let missing = bytes as f64 - self.bucket.borrow().tokens;
        Duration::from_secs_f64(missing.max(0.0) / rate.max(1) as f64)
    }
}

/// Less than this is not worth a system call: it is waited for instead.
const WORTHWHILE_BYTES: u64 = 4 * 1024;

/// All limits that one direction of one connection is under: its own, its content's, and everybody's.
#[derive(Clone, Debug, Default)]
pub struct Limits(Vec<Rc<Limiter>>);

impl Limits {
    /// The limits that really limit, of those given.
    pub fn new(all: impl IntoIterator<Item = Rc<Limiter>>) -> Self {
        Self(all.into_iter().filter(|limiter| limiter.rate_bytes.get().is_some()).collect())
    }

    /// Bytes that may move now, 0 where they are too few to be worth it; `u64::MAX` where nothing limits.
    pub fn available(&self, now: Instant) -> u64 {
        let available = self.0.iter().map(|limiter| limiter.available(now)).min().unwrap_or(u64::MAX);
        if available < WORTHWHILE_BYTES { 0 } else { available }
    }

    /// Bytes moved. May overdraw: the debt is waited for later.
    pub fn spend(&self, bytes: u64) {
        self.0.iter().for_each(|limiter| limiter.spend(bytes));
    }

    /// Time until a worthwhile amount may move.
    pub fn wait(&self, now: Instant) -> Duration {
        // Longer than for the least: many connections under one limit would wake by turns for crumbs.
        self.0.iter().map(|limiter| limiter.wait(BURST_BYTES_MIN as u64, now)).max().unwrap_or(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_moves_what_the_limit_says() {
        let start = Instant::now();
        let limits = Limits::new([Limiter::new(Some(1_000_000), start), Limiter::new(None, start)]);
        let (mut now, mut moved) = (start, 0);
        while now < start + Duration::from_secs(10) {
            let bytes = limits.available(now).min(100_000);
            limits.spend(bytes);
            moved += bytes;
            now += limits.wait(now).max(Duration::from_millis(1));
        }
        assert!((9_500_000..=10_500_000).contains(&moved), "{moved}");
    }

    #[test]
    fn the_tightest_limit_holds() {
        let now = Instant::now();
        let limits = Limits::new([Limiter::new(Some(10), now), Limiter::new(Some(1 << 40), now)]);
        let later = now + Duration::from_secs(1000);
        assert_eq!(limits.available(later), 10_000);
        assert!(limits.wait(later) > Duration::from_secs(100));
    }

    #[test]
    fn crumbs_are_waited_for() {
        let now = Instant::now();
        let limits = Limits::new([Limiter::new(Some(WORTHWHILE_BYTES), now)]);
        assert_eq!(limits.available(now + Duration::from_millis(999)), 0);
        assert!(limits.available(now + Duration::from_millis(1001)) >= WORTHWHILE_BYTES);
    }

    #[test]
    fn what_was_overdrawn_is_paid_back() {
        let now = Instant::now();
        let limits = Limits::new([Limiter::new(Some(100_000), now)]);
        limits.spend(100_000);
        assert!(limits.wait(now) > Duration::from_secs(1));
        assert_eq!(limits.available(now + Duration::from_millis(1000)), 0);
        assert!(limits.available(now + Duration::from_millis(1100)) > 0);
    }

    #[test]
    fn rest_earns_no_more_than_a_burst() {
        let now = Instant::now();
        let limits = Limits::new([Limiter::new(Some(1_000_000), now)]);
        assert_eq!(limits.available(now + Duration::from_secs(3600)), 200_000);
    }

    #[test]
    fn no_limit_is_unlimited() {
        let now = Instant::now();
        assert_eq!(Limits::new([Limiter::new(None, now)]).available(now), u64::MAX);
    }
}
