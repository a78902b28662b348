//! A TCP flow under CUBIC (RFC 9438), as far as its sharing goes: window, slow start with the kernel's HyStart by delay, loss by
//! three later acknowledgements, timeout; its receiver acknowledges every second segment. Segments are never sent again: nobody counts what they carry.

use std::collections::VecDeque;
use std::time::Duration;

pub(crate) const SEGMENT_LEN: usize = 1500;
/// RFC 9438 §4.6, §5.
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// Linux, tcp_cubic.c: slow start ends when the shortest of eight round trips is longer than the shortest by an eighth, within bounds.
const HYSTART_SAMPLES: u32 = 8;
const HYSTART_WINDOW_MIN: f64 = 16.0;
const HYSTART_DELAY: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));

/// How long the receiver waits for a second segment to acknowledge, as Linux does at least.
pub(crate) const DELAYED_ACK: Duration = Duration::from_millis(40);

#[derive(Debug)]
pub(crate) struct Cubic {
    pub forward: Vec<usize>,
    pub back: Vec<usize>,
    pub window: f64,
    threshold: f64,
    window_max: f64,
    window_prior: f64,
    epoch: Option<(Duration, f64, f64)>,
    estimate: f64,
    rtt: Duration,
    rtt_min: Duration,
    /// The round of slow start: ends with this segment; its shortest round trip of so many.
    round: (u64, Duration, u32),
    next: u64,
    flying: VecDeque<(u64, Duration)>,
    /// Losses of segments before this one belong to the reduction that was made.
    recovered: u64,
    timeout: Option<Duration>,
    pub arrived_bytes: Vec<f64>,
    /// The receiver's: the segment that comes next, and one that is not acknowledged.
    expected: u64,
    held: Option<u64>,
}

impl Cubic {
    pub(crate) fn new(forward: Vec<usize>, back: Vec<usize>) -> Self {
        Self {
            forward,
            back,
            window: 10.0,
            threshold: f64::INFINITY,
            window_max: 0.0,
            window_prior: 0.0,
            epoch: None,
            estimate: 0.0,
            rtt: Duration::from_secs(1),
            rtt_min: Duration::MAX,
            round: (0, Duration::MAX, 0),
            next: 0,
            flying: VecDeque::new(),
            recovered: 0,
            timeout: None,
            arrived_bytes: Vec::new(),
            expected: 0,
            held: None,
        }
    }

    /// The receiver got a segment; which it acknowledges now.
    pub(crate) fn on_arrived(&mut self, number: u64, len: usize, slot: usize) -> Option<Vec<u64>> {
        self.arrived_bytes.resize(self.arrived_bytes.len().max(slot + 1), 0.0);
        self.arrived_bytes[slot] += len as f64;
        // RFC 5681 §4.2: every second one, and at once behind a gap.
        let gap = number != self.expected;
        self.expected = number + 1;
        match self.held.take() {
            None if !gap => {
                self.held = Some(number);
                None
            }
            held => Some(held.into_iter().chain([number]).collect()),
        }
    }

    /// The receiver waited long enough for another than `number`.
    pub(crate) fn take_held(&mut self, number: u64) -> Option<Vec<u64>> {
        self.held.take_if(|held| *held == number).map(|held| vec![held])
    }

    pub(crate) fn on_ack(&mut self, number: u64, now: Duration) {
        let Some(at) = self.flying.iter().position(|(flying, _)| *flying == number) else { return };
        let (_, sent) = self.flying.remove(at).expect("it was found");
        self.rtt = now - sent;
        self.rtt_min = self.rtt_min.min(self.rtt);
        self.timeout = None;
        if self.window < self.threshold {
            self.hystart(number);
        }
        // RFC 9002 §6.1.1: three later ones came.
        while let Some((first, _)) = self.flying.front().copied().filter(|(first, _)| first + 3 <= number) {
            self.flying.pop_front();
            if first >= self.recovered {
                self.reduce(BETA);
            }
        }
        // RFC 9438 §4.6: not while it recovers.
        if number >= self.recovered {
            self.grow(now);
        }
    }

    fn hystart(&mut self, number: u64) {
        if number >= self.round.0 {
            self.round = (self.next, Duration::MAX, 0);
        }
        self.round.1 = self.round.1.min(self.rtt);
        self.round.2 += 1;
        let delay = (self.rtt_min / 8).clamp(HYSTART_DELAY.0, HYSTART_DELAY.1);
        if self.window >= HYSTART_WINDOW_MIN && self.round.2 >= HYSTART_SAMPLES && self.round.1 > self.rtt_min + delay {
            self.threshold = self.window;
        }
    }

    fn reduce(&mut self, beta: f64) {
        // RFC 9438 §4.7: fast convergence.
        self.window_max = if self.window < self.window_max { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window_prior = self.window;
        self.threshold = (self.window * beta).max(2.0);
        self.window = self.threshold;
        self.epoch = None;
        self.recovered = self.next;
    }

    fn grow(&mut self, now: Duration) {
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let (window, window_max) = (self.window, self.window_max);
        let (epoch, k, origin) = *self.epoch.get_or_insert_with(|| {
            self.estimate = window;
            // RFC 9438 §4.2: K; past W_max, and after slow start, it is 0.
            (now, ((window_max - window).max(0.0) / C).cbrt(), window_max.max(window))
        });
        let t = (now - epoch + self.rtt).as_secs_f64();
        let target = (C * (t - k).powi(3) + origin).clamp(self.window, self.window * 1.5);
        let alpha = if self.estimate < self.window_prior { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        self.estimate += alpha / self.window;
        self.window = (self.window + (target - self.window) / self.window).max(self.estimate);
    }

    /// Segments to send now, and when to ask again.
    pub(crate) fn poll(&mut self, now: Duration) -> (Vec<u64>, Option<Duration>) {
        if self.timeout.is_some_and(|at| now >= at) && !self.flying.is_empty() {
            self.flying.clear();
            self.reduce(BETA);
            self.window = 1.0;
            self.timeout = None;
        }
        let mut numbers = Vec::new();
        while (self.flying.len() as f64) < self.window.floor() {
            self.flying.push_back((self.next, now));
            numbers.push(self.next);
            self.next += 1;
        }
        let wake = self.timeout.is_none().then(|| now + self.rtt * 2 + Duration::from_millis(200));
        self.timeout = self.timeout.or(wake);
        (numbers, wake)
    }
}
