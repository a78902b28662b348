//! A TCP flow under CUBIC (RFC 9438), as far as its sharing goes: window, slow start, loss by three later acknowledgements,
//! timeout. Segments are never sent again: nobody counts what they carry.

use std::collections::VecDeque;
use std::time::Duration;

pub(crate) const SEGMENT_LEN: usize = 1500;
/// RFC 9438 §4.6, §5.
const BETA: f64 = 0.7;
const C: f64 = 0.4;

#[derive(Debug)]
pub(crate) struct Cubic {
    pub forward: Vec<usize>,
    pub back: Vec<usize>,
    window: f64,
    threshold: f64,
    window_max: f64,
    epoch: Option<Duration>,
    estimate: f64,
    rtt: Duration,
    next: u64,
    flying: VecDeque<(u64, Duration)>,
    /// Losses of segments before this one belong to the reduction that was made.
    recovered: u64,
    timeout: Option<Duration>,
    pub arrived_bytes: Vec<f64>,
}

impl Cubic {
    pub(crate) fn new(forward: Vec<usize>, back: Vec<usize>) -> Self {
        Self {
            forward,
            back,
            window: 10.0,
            threshold: f64::INFINITY,
            window_max: 0.0,
            epoch: None,
            estimate: 0.0,
            rtt: Duration::from_secs(1),
            next: 0,
            flying: VecDeque::new(),
            recovered: 0,
            timeout: None,
            arrived_bytes: Vec::new(),
        }
    }

    pub(crate) fn on_arrived(&mut self, len: usize, slot: usize) {
        self.arrived_bytes.resize(self.arrived_bytes.len().max(slot + 1), 0.0);
        self.arrived_bytes[slot] += len as f64;
    }

    pub(crate) fn on_ack(&mut self, number: u64, now: Duration) {
        let Some(at) = self.flying.iter().position(|(flying, _)| *flying == number) else { return };
        let (_, sent) = self.flying.remove(at).expect("it was found");
        self.rtt = now - sent;
        self.timeout = None;
        // RFC 9002 §6.1.1: three later ones came.
        while let Some((first, _)) = self.flying.front().copied().filter(|(first, _)| first + 3 <= number) {
            self.flying.pop_front();
            if first >= self.recovered {
                self.reduce(BETA);
            }
        }
        self.grow(now);
    }

    fn reduce(&mut self, beta: f64) {
        // RFC 9438 §4.7: fast convergence.
        self.window_max = if self.window < self.window_max { self.window * (1.0 + BETA) / 2.0 } else { self.window };
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
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.estimate = self.window;
            now
        });
        let k = ((self.window_max - self.window_max * BETA).max(0.0) / C).cbrt();
        let t = (now - epoch + self.rtt).as_secs_f64();
        let target = (C * (t - k).powi(3) + self.window_max).clamp(self.window, self.window * 1.5);
        self.estimate += 3.0 * (1.0 - BETA) / (1.0 + BETA) / self.window;
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
