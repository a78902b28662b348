//! PCC Allegro: "PCC: Re-architecting Congestion Control for Consistent High Performance" (NSDI'15).

use std::time::Duration;

use super::{Congestion, Interval, PathView, Plan, RATE_BYTES_MAX, RATE_BYTES_MIN, Startup, plan};

/// Smallest and largest step of a trial (§3.2).
const EPSILON_MIN: f64 = 0.01;
const EPSILON_MAX: f64 = 0.05;
/// The sigmoid of the utility: steepness, and the loss beyond which more rate is worth nothing (§2.2).
const STEEPNESS: f64 = 100.0;
const LOSS_MAX: f64 = 0.05;
/// An interval is so many round trips, at random between these (§3.1).
const INTERVAL_RTTS: (f64, f64) = (1.7, 2.2);
/// The highest part of the rate that one adjustment moves: an amplified step is still one that the path can show.
const ADJUST_MAX: f64 = 0.1;

/// The paper's controller; only its start is [`Startup`].
#[derive(Debug)]
pub struct Allegro {
    rng: fastrand::Rng,
    rate: f64,
    state: State,
}

#[derive(Debug)]
enum State {
    Start(Startup),
    /// Two pairs of trials, each with one faster and one slower in random order; then the base rate until all is known.
    Trial {
        epsilon: f64,
        faster: [bool; 4],
        first: Option<u32>,
        utility: [Option<f64>; 4],
    },
    /// One way, by growing steps, as long as the utility grows.
    Adjust {
        up: bool,
        steps: u32,
        before: (f64, f64),
        interval: Option<u32>,
    },
}

impl Allegro {
    /// Its random numbers come of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), rate: 0.0, state: State::Start(Startup::default()) }
    }

    fn trial(&mut self, epsilon: f64) {
        let (a, b) = (self.rng.bool(), self.rng.bool());
        self.state = State::Trial { epsilon, faster: [a, !a, b, !b], first: None, utility: [None; 4] };
    }

    fn length(&mut self, path: &PathView) -> Duration {
        let (low, high) = INTERVAL_RTTS;
        path.rtt.mul_f64(low + self.rng.f64() * (high - low))
    }
}

/// §2.2: `T * sigmoid(L - 0.05) - x * L`, with `T` what arrived, in Mbit/s.
fn utility(interval: &Interval) -> f64 {
    let (rate, loss) = (interval.rate() * 8e-6, interval.loss());
    let sigmoid = 1.0 / (1.0 + (STEEPNESS * (loss - LOSS_MAX)).exp());
    rate * (1.0 - loss) * sigmoid - rate * loss
}

impl Congestion for Allegro {
    fn plan(&mut self, id: u32, path: &PathView) -> Plan {
        if let State::Start(startup) = &self.state {
            return startup.plan(path);
        }
        let length = self.length(path);
        let rate = match &mut self.state {
            State::Start(_) => self.rate,
            State::Trial { epsilon, faster, first, .. } => {
                let at = (id - *first.get_or_insert(id)) as usize;
                faster.get(at).map_or(self.rate, |up| self.rate * if *up { 1.0 + *epsilon } else { 1.0 - *epsilon })
            }
            State::Adjust { interval, .. } => {
                interval.get_or_insert(id);
                self.rate
            }
        };
        plan(rate, length, f64::INFINITY)
    }

    fn on_interval(&mut self, interval: &Interval, path: &PathView) {
        match &mut self.state {
            State::Start(startup) => {
                if let Some(rate) = startup.on_interval(interval, path) {
                    self.rate = rate;
                    self.trial(EPSILON_MIN);
                }
            }
            State::Trial { epsilon, faster, first, utility: known } => {
                let Some(first) = *first else { return };
                let Some(at) = interval.id.checked_sub(first).map(|at| at as usize).filter(|at| *at < 4) else {
                    return;
                };
                known[at] = Some(utility(interval));
                let (faster, epsilon, idle) = (*faster, *epsilon, interval.idle);
                if idle {
                    return self.trial(epsilon);
                }
                // In order: when the last is known, all are.
                let [Some(a), Some(b), Some(c), Some(d)] = *known else { return };
                let ups = [(a > b) == faster[0], (c > d) == faster[2]];
                if ups[0] != ups[1] {
                    // §3.2: an inconclusive trial is repeated with a larger step.
                    return self.trial((epsilon + EPSILON_MIN).min(EPSILON_MAX));
                }
                let best =
                    |up: bool| (0..4).filter(|at| faster[*at] == up).map(|at| [a, b, c, d][at]).sum::<f64>() / 2.0;
                let rate = self.rate * if ups[0] { 1.0 + epsilon } else { 1.0 - epsilon };
                self.state = State::Adjust { up: ups[0], steps: 1, before: (rate, best(ups[0])), interval: None };
                self.rate = step(rate, ups[0], 1);
            }
            State::Adjust { up, steps, before, interval: waited } => {
                if *waited != Some(interval.id) {
                    return;
                }
                let now = utility(interval);
                if interval.idle || now < before.1 {
                    // §3.3: back to the rate before, and a new decision.
                    self.rate = before.0;
                    return self.trial(EPSILON_MIN);
                }
                *before = (self.rate, now);
                *steps += 1;
                *waited = None;
                self.rate = step(self.rate, *up, *steps);
            }
        }
    }
}

/// §3.3: `r * (1 + n * epsilon_min * dir)`.
fn step(rate: f64, up: bool, steps: u32) -> f64 {
    let by = (f64::from(steps) * EPSILON_MIN).min(ADJUST_MAX);
    (rate * if up { 1.0 + by } else { 1.0 - by }).clamp(RATE_BYTES_MIN, RATE_BYTES_MAX)
}
