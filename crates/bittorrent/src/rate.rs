//! Bytes per second over a sliding window, with the caller's clock.
//!
//! A ring of bins: constant memory, exact inside the window, and a burst leaves the estimate as fast as it entered.
//! Choking and progress use it; the request pipeline has its own estimate, because it needs a maximum, not a mean.

use std::time::{Duration, Instant};

/// Bins in the ring: the estimate moves in steps of a sixteenth of the window.
const BINS: usize = 16;

/// A windowed rate. 160 bytes whatever happens.
#[derive(Clone, Debug)]
pub struct Rate {
    bin: Duration,
    bytes: [u64; BINS],
    sum: u64,
    /// Start of the newest bin, and its number since the first byte. `None` before the first byte.
    newest: Option<(Instant, u64)>,
}

impl Rate {
    /// An estimate over the last `window` (rounded to sixteenths, at least 16 ms).
    pub fn new(window: Duration) -> Self {
        let bin = (window / BINS as u32).max(Duration::from_millis(1));
        Self { bin, bytes: [0; BINS], sum: 0, newest: None }
    }

    /// Counts `bytes` moved at `now`.
    pub fn add(&mut self, bytes: u64, now: Instant) {
        self.roll(now);
        let (_, number) = *self.newest.get_or_insert((now, 0));
        self.bytes[(number % BINS as u64) as usize] += bytes;
        self.sum += bytes;
    }

    /// Mean rate over the window, or over the time since the first byte while that is shorter (at least one bin:
    /// the first packet is no infinite rate).
    pub fn bytes_per_sec(&mut self, now: Instant) -> u64 {
        self.roll(now);
        let Some((start, number)) = self.newest else { return 0 };
        let full_bins = number.min(BINS as u64 - 1) as u32;
        let span = self.bin * full_bins + now.saturating_duration_since(start);
        (self.sum as f64 / span.max(self.bin).as_secs_f64()) as u64
    }

    fn roll(&mut self, now: Instant) {
        let Some((start, number)) = self.newest else { return };
        let steps = (now.saturating_duration_since(start).as_nanos() / self.bin.as_nanos()) as u64;
        for step in 1..=steps.min(BINS as u64) {
            let bin = &mut self.bytes[((number + step) % BINS as u64) as usize];
            self.sum -= std::mem::take(bin);
        }
        if steps > BINS as u64 {
            // Everything has left the window; the bins are all empty, so their numbering may start anywhere.
            self.newest = Some((now, number + BINS as u64));
        } else if steps > 0 {
            self.newest = Some((start + self.bin * steps as u32, number + steps));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_steady_stream_reads_as_its_rate_from_early_on() {
        let (mut rate, start) = (Rate::new(Duration::from_secs(8)), Instant::now());
        for step in 0..4000 {
            let now = start + MS * 10 * step;
            rate.add(1000, now);
            if step >= 100 {
                let seen = rate.bytes_per_sec(now);
                assert!((95_000..=106_000).contains(&seen), "{seen} after {step} steps");
            }
        }
    }

    #[test]
    fn silence_longer_than_the_window_reads_as_zero() {
        let (mut rate, start) = (Rate::new(Duration::from_secs(16)), Instant::now());
        rate.add(1 << 20, start);
        assert!(rate.bytes_per_sec(start + MS * 14_900) > 0);
        assert_eq!(rate.bytes_per_sec(start + MS * 16_000), 0);
        rate.add(1 << 20, start + MS * 3_600_000);
        assert_eq!(rate.bytes_per_sec(start + MS * 3_601_000), (1 << 20) / 15, "fifteen whole bins and a new one");
    }

    #[test]
    fn a_clock_that_steps_back_changes_nothing() {
        let (mut rate, start) = (Rate::new(Duration::from_secs(16)), Instant::now() + MS * 1000);
        rate.add(1000, start);
        rate.add(1000, start - MS * 500);
        assert_eq!(rate.bytes_per_sec(start), 2000);
    }
}
