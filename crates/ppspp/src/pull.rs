//! How much to ask a peer for: Algorithm 1 of the libswift paper, by the time between chunks that arrive.
//!
//! The peer shall never run out of requests, and never have more of them than it can serve in about a second. How fast it
//! serves is told by the data inter-arrival period, not by a round trip that only it can measure.

use std::time::{Duration, Instant};

/// How long requests shall last, at least (Algorithm 1, line 1).
pub const REQUEST_TIME_MIN: Duration = Duration::from_secs(1);
/// The same of what is played while it arrives: a chunk that has to be asked for again waits for all that was asked for before.
pub const REQUEST_TIME_PLAYED: Duration = Duration::from_millis(400);
/// The same of a live stream: what one peer brings late, others bring in time.
pub const REQUEST_TIME_LIVE: Duration = Duration::from_millis(250);
/// Weight of the newest period in the average, as libswift has it.
const DIP_WEIGHT: f64 = 0.25;
/// A pause this long says nothing about the sender's rate: it had nothing to send.
const DIP_MAX: Duration = Duration::from_secs(10);
/// Chunks that a peer is asked for at most: at 1 KiB, 250 ms of 10 Gbit/s, and a bound on what a lying clock can ask for.
pub const OUTSTANDING_MAX: u64 = 1 << 18;

/// Times between datagrams with chunks from one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct InterArrival {
    last: Option<Instant>,
    average_s: Option<f64>,
}

impl InterArrival {
    /// `chunks` chunks arrived together.
    pub fn arrived(&mut self, now: Instant, chunks: u64) {
        if let Some(last) = self.last.replace(now) {
            let since = now.saturating_duration_since(last).min(DIP_MAX);
            let period = since.as_secs_f64() / chunks.max(1) as f64;
            let average = self.average_s.unwrap_or(period);
            self.average_s = Some(average + DIP_WEIGHT * (period - average));
        }
    }

    /// The period; `None` before two arrivals.
    pub fn period(&self) -> Option<Duration> {
        self.average_s.map(Duration::from_secs_f64)
    }
}

/// What Algorithm 1 takes in.
#[derive(Clone, Copy, Debug)]
pub struct Pull {
    /// How long requests shall last, at least.
    pub request_time: Duration,
    /// The round trip, a rough estimate.
    pub rtt: Duration,
    /// The data inter-arrival period, once there is one.
    pub period: Option<Duration>,
    /// How many chunks to have asked for until then: one by the algorithm.
    pub first: u64,
    /// Chunks that are asked for and not here.
    pub outstanding: u64,
    /// Chunks that rate limits allow; `u64::MAX` without any.
    pub rate_allowed: u64,
    /// Chunks below which a request is not worth its datagram.
    pub granularity: u64,
}

impl Pull {
    /// How many chunks to ask for now; 0 for none. Line numbers are the algorithm's.
    pub fn request_size(&self) -> u64 {
        let request_time = self.request_time.max(self.rtt.saturating_mul(4)); // 1
        let packets = match self.period {
            None => self.first,
            // Arrivals within one tick of the clock: as many as there may be.
            Some(period) if period.is_zero() => OUTSTANDING_MAX,
            Some(period) => ((request_time.as_secs_f64() / period.as_secs_f64()) as u64).clamp(1, OUTSTANDING_MAX), // 2
        };
        let allowed = packets.saturating_sub(self.outstanding); // 3
        let size = allowed.min(self.rate_allowed); // 4
        if size > self.granularity { size } else { 0 } // 5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The catalogue's 003-pull, line for line.
    #[test]
    fn algorithm_one() {
        let ms = Duration::from_millis;
        let size = |rtt, period: Option<u64>, outstanding, rate_allowed, granularity| {
            let request_time = REQUEST_TIME_MIN;
            let (rtt, period) = (ms(rtt), period.map(ms));
            Pull { request_time, rtt, period, first: 1, outstanding, rate_allowed, granularity }.request_size()
        };
        // rt = max(1 s, 4 RTT): below 250 ms the round trip does not count.
        assert_eq!(size(250, Some(10), 0, u64::MAX, 0), 100);
        assert_eq!(size(10, Some(10), 0, u64::MAX, 0), 100);
        assert_eq!(size(500, Some(10), 0, u64::MAX, 0), 200);
        // rp = max(1, rt/dip): one at least, also before anything arrived.
        assert_eq!((size(10, Some(5000), 0, u64::MAX, 0), size(10, None, 0, u64::MAX, 0)), (1, 1));
        assert_eq!(size(10, Some(0), 0, u64::MAX, 0), OUTSTANDING_MAX);
        // ra = max(0, rp - outstanding).
        assert_eq!((size(10, Some(10), 99, u64::MAX, 0), size(10, Some(10), 101, u64::MAX, 0)), (1, 0));
        // rs = min(ra, rate limit); asked for only if more than the granularity.
        assert_eq!((size(10, Some(10), 0, 7, 0), size(10, Some(10), 0, 0, 0)), (7, 0));
        assert_eq!((size(10, Some(10), 90, u64::MAX, 9), size(10, Some(10), 90, u64::MAX, 10)), (10, 0));
    }

    #[test]
    fn the_period_follows_the_senders_rate_and_no_pause() {
        let start = Instant::now();
        let mut arrivals = InterArrival::default();
        arrivals.arrived(start, 1);
        assert_eq!(arrivals.period(), None);
        let mut now = start;
        for _ in 0..60 {
            now += Duration::from_millis(20);
            arrivals.arrived(now, 2);
        }
        assert_eq!(arrivals.period().map(|period| (period.as_secs_f64() * 1e6).round()), Some(10_000.0));
        arrivals.arrived(now + Duration::from_secs(100_000), 1);
        assert!(arrivals.period() < Some(Duration::from_secs(3)));
        // A clock that stands still is no division by zero.
        (0..100).for_each(|_| arrivals.arrived(now, 1));
        let pull = Pull {
            request_time: REQUEST_TIME_MIN,
            rtt: Duration::ZERO,
            period: arrivals.period(),
            first: 1,
            outstanding: 0,
            rate_allowed: u64::MAX,
            granularity: 0,
        };
        assert!(pull.request_size() <= OUTSTANDING_MAX);
    }
}
