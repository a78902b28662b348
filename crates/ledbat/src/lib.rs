//! LEDBAT, the congestion control of PPSPP and uTP (RFC 6817), in two modes.
//!
//! Both follow the one-way delays that ACKs carry: the lowest of the last ten minutes is the way itself, what is above it is
//! queue, and the window moves so that the queue stays near a target.
//!
//! - [`Mode::Paper`] is libswift as its paper describes it: window 1, one more for every ACK until packets leave less than
//!   100 ms apart, then the RFC's line with a gain of 1; a loss halves.
//! - [`Mode::Fast`] is the default. It starts with ten packets and doubles until the queue is a good part of the target. Then
//!   it grows by a part of the window for each round trip, as LEDBAT++ shrinks, so that a long way fills as fast as a
//!   short one; the part is smaller where the way is longer than the target, so that it does not swing. A loss halves only
//!   where the queue is about as long as it ever gets, or losses are many: else the loss is the link's, not ours. Whoever else
//!   fills the queue is noticed by its delay, so it still yields; where a queue is full below the target, the target is a part
//!   of what it holds, for the same reason. From time to time it pauses for a round trip, as LEDBAT++ does (§4.4 of its draft), so that
//!   who came when the queue was long finds out how short the way is: else each newcomer takes what was there for the way itself.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Which rules the window follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As the libswift paper has it.
    Paper,
    /// The default.
    Fast,
}

/// The queue's target in the paper's mode: RFC 6817 §2.4.2, "MUST be 100 milliseconds or less".
pub const TARGET_PAPER: Duration = Duration::from_millis(100);
/// The queue's target by default: LEDBAT++ has 60 ms for the same reasons, among them that voice does not mind it.
pub const TARGET_FAST: Duration = Duration::from_millis(60);
/// The lowest target: clocks and schedulers are a few milliseconds coarse.
const TARGET_MIN: Duration = Duration::from_millis(5);
/// Where packets are lost the queue may be full: the target is this part of it, so that whoever else fills it is noticed.
const FULL_PART: f64 = 0.4;
/// A queue is not full at less than this part of the longest that was seen.
const FULL_LEAST: f64 = 0.7;
/// For how long a full queue is remembered.
const FULL_FOR: Duration = Duration::from_secs(60);
/// The paper's slow start ends where packets leave closer together than this.
const PAPER_INTERVAL: Duration = Duration::from_millis(100);
/// Minutes of the base delay's history (RFC 6817 §4.2, "BASE_HISTORY").
const BASE_HISTORY: usize = 10;
/// Samples of which the lowest is the current delay (RFC 6817 §4.2, "CURRENT_FILTER"): four, ...
const CURRENT_FILTER: u64 = 4;
/// ... and those of this part of a round trip, so that a way whose packets come in bunches is not taken for full.
const CURRENT_FILTER_RTTS: f64 = 0.5;
/// The first window by default, in packets: RFC 6928's for TCP.
const WINDOW_INITIAL_FAST: f64 = 10.0;
/// The lowest window after the start, in packets (RFC 6817 §2.4.2, "MIN_CWND").
const WINDOW_MIN: f64 = 2.0;
/// The lowest window after timeouts in the paper's mode: below one packet, a window is a pause, and a quarter ends it.
const WINDOW_MIN_PAPER: f64 = 0.125;
/// The highest window, in packets: 10 Gbit/s over 500 ms in chunks of 1 KiB.
const WINDOW_MAX: f64 = 1e6;
/// Part of the window that the default mode grows by in a round trip with no queue.
const GROWTH: f64 = 0.25;
/// The same where the way is long: 10 % of 500 ms are 50 ms of queue before the first of it is noticed.
const GROWTH_LONG: f64 = 0.1;
/// Part of the packets lost in a round trip above which the default mode halves with an empty queue too: no wire loses so
/// many, but a queue of a few packets does.
const LOSS_RATE_MAX: f64 = 0.1;

/// How long a flow goes on until it pauses after its start, and after each pause.
const FIRST_PAUSE_AFTER: PauseAfter = PauseAfter { rtts: 10, least: Duration::from_secs(1) };
const NEXT_PAUSE_AFTER: PauseAfter = PauseAfter { rtts: 50, least: Duration::from_secs(10) };
/// How long a pause is, in round trips of before: most of what may be in the queue has to drain, more of it than the flow knows of where it
/// came late itself.
const PAUSE_RTTS: f64 = 0.75;

/// What a driver whose timers are a millisecond coarse, and whose thread does other things, may be late.
const CATCH_UP_FAST: Duration = Duration::from_millis(4);

/// When a flow pauses: after so many round trips, and not sooner than this.
#[derive(Clone, Copy)]
struct PauseAfter {
    rtts: u32,
    least: Duration,
}

/// The window of one channel.
#[derive(Clone, Debug)]
pub struct Ledbat {
    mode: Mode,
    /// In packets.
    window: f64,
    slow_start: bool,
    base: BaseDelay,
    current: CurrentDelay,
    rtt: RttEstimate,
    /// The shortest round trips, in microseconds.
    rtt_least: BaseDelay,
    /// When the window was cut last: what is lost of what left before is the same event.
    cut_at: Option<Instant>,
    /// Delays until then are of packets that left before the window changed for the last time.
    hold_until: Option<Instant>,
    full: FullQueue,
    /// While it pauses: until when, and the window then.
    pause: Option<(Instant, f64)>,
    pause_at: Option<Instant>,
    round_end: Option<Instant>,
    round_acked: f64,
    round_lost: f64,
}

impl Ledbat {
    /// A window at its start.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            window: if mode == Mode::Paper { 1.0 } else { WINDOW_INITIAL_FAST },
            slow_start: true,
            base: BaseDelay::default(),
            current: CurrentDelay::default(),
            rtt: RttEstimate::default(),
            rtt_least: BaseDelay::default(),
            cut_at: None,
            hold_until: None,
            full: FullQueue::default(),
            pause: None,
            pause_at: None,
            round_end: None,
            round_acked: 0.0,
            round_lost: 0.0,
        }
    }

    /// Starts anew after a pause, when nobody knows how fast the way is by now; the way's delay is still known.
    pub fn restart(&mut self) {
        let start = Self::new(self.mode);
        (self.window, self.slow_start) = (start.window, start.slow_start);
        (self.cut_at, self.hold_until, self.pause, self.pause_at) = (None, None, None, None);
        self.current = CurrentDelay::default();
    }

    /// Which rules it follows.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How long the first words took there and back, before anything that is acknowledged left.
    pub fn greeted(&mut self, rtt: Duration) {
        self.rtt.sample(rtt);
    }

    /// Packets that may be on their way.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Whether the start is not over.
    pub fn is_slow_start(&self) -> bool {
        self.slow_start
    }

    /// The round trip's estimate.
    pub fn rtt(&self) -> Duration {
        self.rtt.smoothed()
    }

    /// The shortest round trip of the last minutes: what is acknowledged sooner after it left again is what left before (RFC 8985 §6.2).
    pub fn rtt_least(&self) -> Duration {
        Duration::from_micros(self.rtt_least.min().map_or(0, i64::cast_unsigned))
    }

    /// How much the round trips differ (RFC 6298, "RTTVAR").
    pub fn rtt_variation(&self) -> Duration {
        self.rtt.variation
    }

    /// How long without an ACK until a packet is lost (RFC 6298).
    pub fn timeout(&self) -> Duration {
        self.rtt.timeout()
    }

    /// The queue now, as far as the delays tell.
    pub fn queue(&self) -> Duration {
        let queue = self.current.min().zip(self.base.min()).map_or(0, |(current, base)| current.saturating_sub(base));
        Duration::from_micros(u64::try_from(queue).unwrap_or(0))
    }

    /// Time between two packets: they are spread over the round trip.
    pub fn send_interval(&self) -> Duration {
        let pace = match (self.mode, self.slow_start) {
            (Mode::Paper, _) => 1.0,
            // A window that grows is spread over the round trip that it will have.
            (Mode::Fast, true) => 1.3,
            // A little ahead of the window, which then is what limits.
            (Mode::Fast, false) => 1.1,
        };
        self.rtt().div_f64(self.window.max(0.01) * pace)
    }

    /// How far behind its times a sender may catch up at once.
    pub fn catch_up(&self) -> Duration {
        if self.mode == Mode::Paper { Duration::ZERO } else { CATCH_UP_FAST }
    }

    /// Packets that left at once were acknowledged at once: `rtt` after they left, if it is known when that was; `delay_us` is what the ACK says of
    /// their way by two clocks whose difference nobody knows. `limited`: the window is what kept us from sending more.
    pub fn acked(&mut self, now: Instant, packets: u64, rtt: Option<Duration>, delay_us: u64, limited: bool) {
        if packets == 0 {
            return;
        }
        if let Some(rtt) = rtt {
            self.rtt.sample(rtt);
            self.rtt_least.sample(now, i64::try_from(rtt.as_micros()).unwrap_or(i64::MAX));
        }
        // Clocks that differ make delays that are negative: numbers wrap, and only differences count.
        let delay = delay_us as i64;
        self.base.sample(now, delay);
        let span = if self.mode == Mode::Paper { Duration::ZERO } else { self.rtt().mul_f64(CURRENT_FILTER_RTTS) };
        self.current.sample(now, delay, span, packets);
        self.round_acked += packets as f64;
        self.round(now);
        match self.mode {
            Mode::Paper => (0..packets).for_each(|_| self.acked_paper(limited)),
            Mode::Fast => self.acked_fast(now, packets, limited),
        }
        self.window = self.window.min(WINDOW_MAX);
    }

    fn acked_paper(&mut self, limited: bool) {
        if self.slow_start {
            self.window += 1.0;
            self.slow_start = self.rtt().div_f64(self.window) >= PAPER_INTERVAL;
            return;
        }
        let off_target = self.off_target(TARGET_PAPER);
        // RFC 6817 §2.4.2: cwnd += GAIN * off_target * bytes_newly_acked * MSS / cwnd, which is one packet a round trip.
        if limited || off_target < 0.0 {
            self.window = (self.window + off_target / self.window).max(WINDOW_MIN);
        }
    }

    fn acked_fast(&mut self, now: Instant, packets: u64, limited: bool) {
        self.full.seen(now, self.queue());
        let target = self.full.target();
        let off_target = self.off_target(target);
        if self.slow_start {
            // What is acknowledged now left when the window was half as wide, and made half of the target's queue: that half is
            // what the way holds. LEDBAT++ leaves its start in the same manner, a little later.
            if off_target < 0.5 {
                self.slow_start = false;
                self.window = (self.window / 2.0).max(WINDOW_MIN);
                self.hold_until = Some(now + self.rtt());
                self.cut_at = Some(now);
                self.pause_later(now, FIRST_PAUSE_AFTER);
            } else if limited {
                self.window += packets as f64;
            }
            return;
        }
        if self.hold_until.is_some_and(|until| now < until) || self.is_pausing(now) {
            return;
        }
        // A window that answers a queue one round trip later must not answer it whole.
        let target = target.as_secs_f64();
        let part = 0.4 * target / (self.rtt().as_secs_f64() + target);
        for _ in 0..packets {
            let change = if off_target < 0.0 {
                // LEDBAT++: shrinks with the window, by half at most in a round trip.
                (part * off_target).max(-0.5)
            } else if limited {
                // Far below the target there is nothing to swing about; one step of this more is a queue that is still bearable.
                let part = if off_target > 0.75 { part.max(GROWTH_LONG) } else { part };
                part.min(GROWTH) * off_target + off_target / self.window
            } else {
                break;
            };
            self.window = (self.window + change).max(WINDOW_MIN);
        }
    }

    /// Begins a pause, or ends it; whether there is one.
    fn is_pausing(&mut self, now: Instant) -> bool {
        match self.pause {
            Some((until, _)) if now < until => return true,
            Some((_, window)) => {
                (self.window, self.pause) = (window, None);
                self.hold_until = Some(now + self.rtt());
                self.pause_later(now, NEXT_PAUSE_AFTER);
                return true;
            }
            None => {}
        }
        if self.pause_at.is_none_or(|at| now < at) {
            return false;
        }
        // As much as the way holds without the queue.
        let way = 1.0 - self.queue().as_secs_f64() / self.rtt().as_secs_f64();
        self.pause = Some((now + self.rtt().mul_f64(PAUSE_RTTS), (self.window * way).max(WINDOW_MIN)));
        self.window = WINDOW_MIN;
        true
    }

    fn pause_later(&mut self, now: Instant, after: PauseAfter) {
        self.pause_at = Some(now + (self.rtt() * after.rtts).max(after.least));
    }

    /// 1 with no queue, 0 at the target, negative above.
    fn off_target(&self, target: Duration) -> f64 {
        1.0 - self.queue().as_secs_f64() / target.as_secs_f64()
    }

    /// Packets were lost, the last of which left at `sent_at`.
    pub fn lost(&mut self, now: Instant, packets: u64, sent_at: Instant) {
        self.round_lost += packets as f64;
        self.round(now);
        if self.cut_at.is_some_and(|at| sent_at <= at) {
            return;
        }
        let congested = match self.mode {
            // RFC 6817 §2.4.2: "on data loss ... cwnd = max(cwnd/2, MIN_CWND)", at most once per round trip.
            Mode::Paper => true,
            Mode::Fast => {
                let all = self.round_acked + self.round_lost;
                let many = all >= 20.0 && self.round_lost > LOSS_RATE_MAX * all;
                let is_full = self.full.lost(now, self.queue());
                many || is_full
            }
        };
        if congested {
            // What was lost in a pause left before it.
            let window = self.pause.as_mut().map_or(&mut self.window, |(_, window)| window);
            *window = (*window / 2.0).max(WINDOW_MIN);
            self.slow_start = false;
            self.cut_at = Some(now);
        }
    }

    /// Nothing came back for the whole timeout: what is on its way is gone.
    pub fn timed_out(&mut self, now: Instant) {
        self.rtt.back_off();
        if self.cut_at.is_some_and(|at| now < at + self.rtt()) {
            return;
        }
        // The paper halves; RFC 6817 §2.4.2 goes to one packet, from where the default mode starts anew.
        self.window = if self.mode == Mode::Paper { (self.window / 2.0).max(WINDOW_MIN_PAPER) } else { WINDOW_MIN };
        self.slow_start = self.mode == Mode::Fast;
        (self.cut_at, self.pause, self.pause_at) = (Some(now), None, None);
    }

    fn round(&mut self, now: Instant) {
        if self.round_end.is_none_or(|end| now >= end) {
            self.round_end = Some(now + self.rtt());
            self.round_acked /= 2.0;
            self.round_lost /= 2.0;
        }
    }
}

/// The lowest of the last delays.
#[derive(Clone, Debug, Default)]
struct CurrentDelay {
    /// Those that no later one is below, the lowest first: the how manieth each was, and when it came.
    lowest: VecDeque<(u64, Instant, i64)>,
    count: u64,
}

impl CurrentDelay {
    fn sample(&mut self, now: Instant, delay: i64, span: Duration, packets: u64) {
        while self.lowest.back().is_some_and(|(.., last)| *last >= delay) {
            self.lowest.pop_back();
        }
        self.count += packets;
        self.lowest.push_back((self.count - 1, now, delay));
        let is_old = |(number, at, _): &(u64, Instant, i64)| {
            *number + CURRENT_FILTER < self.count && now.saturating_duration_since(*at) > span
        };
        while self.lowest.front().is_some_and(is_old) {
            self.lowest.pop_front();
        }
    }

    fn min(&self) -> Option<i64> {
        self.lowest.front().map(|(.., delay)| *delay)
    }
}

/// The lowest delay of each of the last minutes (RFC 6817 §4.2, "update_base_delay").
#[derive(Clone, Debug, Default)]
struct BaseDelay {
    minutes: VecDeque<i64>,
    minute_end: Option<Instant>,
}

impl BaseDelay {
    fn sample(&mut self, now: Instant, delay: i64) {
        match self.minutes.back_mut() {
            Some(minute) if self.minute_end.is_some_and(|end| now < end) => *minute = delay.min(*minute),
            _ => {
                if self.minutes.len() == BASE_HISTORY {
                    self.minutes.pop_front();
                }
                self.minutes.push_back(delay);
                self.minute_end = Some(now + Duration::from_secs(60));
            }
        }
    }

    fn min(&self) -> Option<i64> {
        self.minutes.iter().min().copied()
    }
}

/// How long the queue is when it is full: it loses packets then, again and again at the same length, and is never seen longer.
#[derive(Clone, Copy, Debug, Default)]
struct FullQueue {
    length: Option<Duration>,
    until: Option<Instant>,
    longest: Duration,
    lost_at: Option<Duration>,
}

impl FullQueue {
    /// Where a target is as long as the queue can get, nobody else would be noticed in it.
    fn target(&self) -> Duration {
        self.length.map_or(TARGET_FAST, |full| full.mul_f64(FULL_PART).clamp(TARGET_MIN, TARGET_FAST))
    }

    fn seen(&mut self, now: Instant, queue: Duration) {
        if self.until.is_some_and(|until| now >= until) || self.length.is_some_and(|full| queue > full * 2) {
            *self = Self::default();
        }
        self.longest = self.longest.max(queue);
    }

    /// Packets were lost at this length of the queue: whether it was full, as far as one can tell.
    fn lost(&mut self, now: Instant, queue: Duration) -> bool {
        let is_long = queue >= self.longest.mul_f64(FULL_LEAST).max(TARGET_MIN);
        let is_same = |before: Duration| before.abs_diff(queue) <= before.max(queue) / 4;
        if is_long && self.length.is_none() && self.lost_at.is_some_and(is_same) {
            (self.length, self.until) = (Some(queue), Some(now + FULL_FOR));
        }
        self.lost_at = Some(queue);
        is_long && (self.length.is_some() || queue > TARGET_FAST / 4)
    }
}

/// RFC 6298's estimate of the round trip.
#[derive(Clone, Copy, Debug)]
struct RttEstimate {
    smoothed: Option<Duration>,
    variation: Duration,
    backoff: u32,
}

/// The round trip before any sample, and the shortest timeout (RFC 6298 §2).
const RTT_INITIAL: Duration = Duration::from_secs(1);
/// The longest timeout: a peer that is silent for longer is dealt with above.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// What a timeout is longer than the round trip, at least: a queue may grow by as much while the estimate follows, and clocks
/// and schedulers are a few milliseconds coarse. ACKs are not delayed here.
const TIMEOUT_SLACK: Duration = Duration::from_millis(150);

impl Default for RttEstimate {
    fn default() -> Self {
        Self { smoothed: None, variation: Duration::ZERO, backoff: 0 }
    }
}

impl RttEstimate {
    fn sample(&mut self, rtt: Duration) {
        self.backoff = 0;
        match &mut self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(rtt)) / 4;
                *smoothed = (*smoothed * 7 + rtt) / 8;
            }
        }
    }

    fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(RTT_INITIAL)
    }

    fn timeout(&self) -> Duration {
        let slack = (self.variation * 4).max(TIMEOUT_SLACK);
        let timeout = self.smoothed.map_or(RTT_INITIAL, |smoothed| smoothed + slack);
        timeout.saturating_mul(1 << self.backoff).min(TIMEOUT_MAX)
    }

    fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(6);
    }
}

#[cfg(test)]
mod tests;
