//! PCC Vivace: "PCC Vivace: Online-Learning Congestion Control" (NSDI'18).

use super::{Congestion, Interval, PathView, Plan, RATE_BYTES_MAX, RATE_BYTES_MIN, Startup, plan};

/// Exponent of the rate, weight of growing delay, weight of loss (§4.4).
const EXPONENT: f64 = 0.9;
const DELAY_WEIGHT: f64 = 900.0;
const LOSS_WEIGHT: f64 = 11.35;
/// Step of a trial (§5).
const EPSILON: f64 = 0.05;
/// Delays that grow by less are noise (§5), in seconds a second.
const GRADIENT_NOISE: f64 = 0.01;
/// What a gradient of one moves, in Mbit/s, or as a part of the rate if that is more. The paper has the first alone; a
/// gigabit would take it minutes.
const STEP_MBIT: f64 = 1.0;
const STEP_PART: f64 = 0.02;
/// The bound of a change, as parts of the rate: at first, and what it grows by each time that it holds one back (§5).
const BOUND: f64 = 0.05;
const BOUND_GROWS: f64 = 0.1;
/// And its highest value: no step halves a path.
const BOUND_MAX: f64 = 0.35;
/// Steps one way that the confidence counts at most.
const CONFIDENT_MAX: u32 = 12;

/// The paper's controller with latency; only its start, and steps at high rates, are ours.
#[derive(Debug)]
pub struct Vivace {
    rng: fastrand::Rng,
    rate: f64,
    start: Option<Startup>,
    /// Whether the first of the pair is the faster one.
    faster_first: bool,
    /// The first interval of the pair, and its outcome.
    first: Option<u32>,
    outcome: Option<f64>,
    /// Steps in a row, one way.
    up: bool,
    steps: u32,
    bounded: u32,
}

impl Vivace {
    /// Its random numbers come of `seed`.
    pub fn new(seed: u64) -> Self {
        let start = Some(Startup::default());
        let rng = fastrand::Rng::with_seed(seed);
        Self { rng, rate: 0.0, start, faster_first: true, first: None, outcome: None, up: true, steps: 0, bounded: 0 }
    }

    fn again(&mut self) {
        self.faster_first = self.rng.bool();
        (self.first, self.outcome) = (None, None);
    }

    fn decide(&mut self, gradient: f64) {
        let up = gradient > 0.0;
        self.steps = if up == self.up { (self.steps + 1).min(CONFIDENT_MAX) } else { 1 };
        if up != self.up || self.steps == 1 {
            self.bounded = 0;
        }
        self.up = up;
        // §5: the confidence amplifier.
        let confidence = if self.steps <= 3 { self.steps } else { 2 * self.steps - 3 };
        let mbit = self.rate * 8e-6;
        let change = f64::from(confidence) * STEP_MBIT.max(STEP_PART * mbit) * gradient / mbit;
        // §5: the dynamic change boundary.
        let bound = (BOUND + BOUND_GROWS * f64::from(self.bounded)).min(BOUND_MAX);
        self.bounded = if change.abs() > bound { self.bounded + 1 } else { self.bounded.saturating_sub(1) };
        self.rate = (self.rate * (1.0 + change.clamp(-bound, bound))).clamp(RATE_BYTES_MIN, RATE_BYTES_MAX);
    }
}

/// §4.1, equation 2.
fn utility(interval: &Interval) -> f64 {
    let rate = interval.rate() * 8e-6;
    let gradient = Some(interval.delay_gradient()).filter(|gradient| gradient.abs() > GRADIENT_NOISE).unwrap_or(0.0);
    rate.powf(EXPONENT) - DELAY_WEIGHT * rate * gradient.max(0.0) - LOSS_WEIGHT * rate * interval.loss()
}

impl Congestion for Vivace {
    fn plan(&mut self, id: u32, path: &PathView) -> Plan {
        if let Some(startup) = &self.start {
            return startup.plan(path);
        }
        let rate = match id - *self.first.get_or_insert(id) {
            at @ 0..2 if (at == 0) == self.faster_first => self.rate * (1.0 + EPSILON),
            0..2 => self.rate * (1.0 - EPSILON),
            _ => self.rate,
        };
        plan(rate, path.rtt, f64::INFINITY)
    }

    fn on_interval(&mut self, interval: &Interval, path: &PathView) {
        if let Some(startup) = &mut self.start {
            if let Some(rate) = startup.on_interval(interval, path) {
                (self.rate, self.start) = (rate, None);
            }
            return;
        }
        let Some(at) = self.first.and_then(|first| interval.id.checked_sub(first)) else { return };
        if at < 2 && interval.idle {
            return self.again();
        }
        match (at, self.outcome) {
            (0, _) => self.outcome = Some(utility(interval)),
            (1, Some(first)) => {
                let second = utility(interval);
                let (faster, slower) = if self.faster_first { (first, second) } else { (second, first) };
                let gradient = (faster - slower) / (2.0 * EPSILON * self.rate * 8e-6);
                self.decide(gradient);
                self.again();
            }
            _ => {}
        }
    }
}
