//! BBR ("BBR: Congestion-Based Congestion Control", ACM Queue 2016), with the second version's bound on what is under way.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Congestion, INTERVAL_MIN, Interval, PathView, Plan, RATE_BYTES_MIN, Startup, plan};

/// Intervals a round trip.
const INTERVALS_PER_RTT: u32 = 4;
/// The rate of the path is the highest of so many intervals: ten round trips.
const FILTER_INTERVALS: usize = 40;
/// Round trips of a cycle: one that probes, one that drains, and six that go on.
const CYCLE_RTTS: u32 = 8;
/// What a probe sends more, and the drain after it less.
const PROBE: f64 = 0.25;
/// Bandwidth-delay products under way at most.
const WINDOW_BDPS: f64 = 2.0;
/// A loss beyond this is a full queue: the second version says 2 %, where paths that lose so much by nature starve.
const LOSS_MAX: f64 = 0.05;
/// What a full queue takes of the bound, and what a probe without one gives.
const BOUND_CUT: f64 = 0.85;
const BOUND_GROWS: f64 = 1.05;
/// Under way at least: twice the packets that an interval has at least.
const WINDOW_BYTES_MIN: f64 = 48e3;
/// Cycles between looks at the bare round trip, for one of which half a bandwidth-delay product is under way.
const LOOK_CYCLES: u32 = 8;

/// Rate and round trip make the window.
#[derive(Debug)]
pub struct Bbr {
    start: Option<Startup>,
    rates: VecDeque<f64>,
    /// Of the window, in bandwidth-delay products.
    bound: f64,
    /// Intervals since the start ended.
    planned: u32,
    /// The last interval of the start: what is told of those is not of the cycle.
    first: u32,
}

impl Default for Bbr {
    fn default() -> Self {
        Self { start: Some(Startup::default()), rates: VecDeque::new(), bound: WINDOW_BDPS, planned: 0, first: 0 }
    }
}

impl Bbr {
    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(RATE_BYTES_MIN, f64::max)
    }
}

impl Congestion for Bbr {
    fn plan(&mut self, id: u32, path: &PathView) -> Plan {
        let length = path.rtt_min / INTERVALS_PER_RTT;
        if let Some(startup) = &self.start {
            self.first = id;
            return startup.plan(path);
        }
        let rate = self.rate();
        let bdp = rate * path.rtt_min.as_secs_f64();
        let round = self.planned / INTERVALS_PER_RTT;
        self.planned += 1;
        let (gain, window) = match round % CYCLE_RTTS {
            0 if round == 0 => (1.0 - 2.0 * PROBE, WINDOW_BDPS),
            // What queues may hide the bare round trip: look for it.
            7 if round / CYCLE_RTTS % LOOK_CYCLES == LOOK_CYCLES - 1 => (1.0, 0.5),
            0 => (1.0 + PROBE, self.bound),
            1 => (1.0 - PROBE, self.bound),
            _ => (1.0, self.bound),
        };
        // A window counts what is not known to have come: also that of the interval until the next mark, and some of its report.
        let length = length.max(Duration::from_secs_f64(path.interval_bytes_min / rate)).max(INTERVAL_MIN);
        let unknown = rate * length.as_secs_f64() * 1.5;
        plan(rate * gain, length, (bdp * window + unknown).max(WINDOW_BYTES_MIN))
    }

    fn on_interval(&mut self, interval: &Interval, path: &PathView) {
        if let Some(startup) = &mut self.start {
            if let Some(rate) = startup.on_interval(interval, path) {
                self.start = None;
                self.rates.push_back(rate);
            }
            return;
        }
        let delivery = interval.delivery();
        // Where there was too little to send, only a higher rate says anything.
        if interval.idle && delivery < self.rate() {
            return;
        }
        self.rates.push_back(delivery);
        if self.rates.len() > FILTER_INTERVALS {
            self.rates.pop_front();
        }
        if interval.id <= self.first {
            return;
        }
        if interval.loss() > LOSS_MAX {
            self.bound = (self.bound * BOUND_CUT).max(1.0);
        } else if interval.rate() > delivery.max(self.rate()) * 1.02 {
            self.bound = (self.bound * BOUND_GROWS).min(WINDOW_BDPS);
        }
    }
}
