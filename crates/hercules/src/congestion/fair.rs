//! A window that grows and shrinks as CUBIC's does (RFC 9438), so that a bottleneck shared with a TCP flow is shared evenly; but
//! a loss counts only where a queue explains it.
//!
//! CUBIC takes every loss for a full queue. One packet in a thousand that is lost by nature leaves it a few per cent of a long
//! fast path. A queue that drops packets is one that packets wait in, though, and this end knows how long they waited: each
//! interval tells the round trip of its last packet. So a loss is *congestion* if
//!
//! - the packets around it waited: their round trip was longer than the shortest one by more than noise; or
//! - more are lost in a round trip than this path loses by nature, which is learned from round trips without a queue. That is
//!   for queues too short to be seen, and for policers. Such a decision is tested: if as much is lost after the window shrank,
//!   it was not the window that caused it, and it is taken back.
//!
//! Beside a CUBIC flow the queue is full whenever anything is lost, so there the law is CUBIC's own, parameter by parameter. The
//! packets are paced over the round trip instead of being clocked by acknowledgements, with the window as a bound on what is under way.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Congestion, Interval, PathView, Plan, RTT_OF_HOSTS, Startup, plan};

/// RFC 9438 §4.6: what is left of the window after congestion.
const BETA: f64 = 0.7;
/// RFC 9438 §5: the scale of growth, in segments a second cubed.
const C: f64 = 0.4;
/// RFC 9438 §4.3: what Reno's window would grow by in a round trip to take as much with this β.
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// A window grows by segments of those flows that it is fair to: Ethernet's, or the path's own if they are longer.
const SEGMENT_BYTES_MIN: f64 = 1500.0;
/// Segments under way at least (RFC 9438 §4.6).
const SEGMENTS_MIN: f64 = 2.0;
/// Intervals a round trip.
const INTERVALS_PER_RTT: u32 = 4;
/// Timers and hosts are no more exact than this: packets that waited less may not have waited at all.
const WAIT_NOISE: Duration = Duration::from_millis(1);
/// And long paths vary by this part of their round trip.
const WAIT_NOISE_PART: u32 = 32;
/// Of the longest wait of late: a queue that holds so little of what it held does not drop packets.
const WAIT_PART: u32 = 3;
/// And one that holds less than this part of what it held when the window shrank is the rest of that.
const DRAINS: f64 = 0.95;
/// Of late: since so long at least, and twice as long at most.
const WAIT_AGE: Duration = Duration::from_secs(20);
/// A host that is busy holds packets up for so long. Only a queue lasts longer: of the waits of so long, the shortest counts.
const HOST_TIME: Duration = Duration::from_millis(10);
/// Where packets overtake others, one that took long says nothing: of the waits of this part of a round trip, the shortest counts.
const REORDERED_PART: u32 = 2;
/// A flow on a path that is shorter than [`RTT_OF_HOSTS`] grows each of its own round trips. So does this one, as if the round trip
/// were that over so much.
const GROWTH_MAX: f64 = 4.0;
/// A pace a little above the window's: what a late timer missed is made up for, and the window is the bound.
const PACE: f64 = 1.05;
/// Loss by nature is the mean of about so many round trips without a queue.
const NATURE_ROUNDS: f64 = 8.0;
/// How many losses more than expected count as congestion: so many standard deviations, and so many packets.
const UNUSUAL_DEVIATIONS: f64 = 4.0;
const UNUSUAL_PACKETS: f64 = 3.0;
/// A path that loses a packet by nature less often than in so many round trips loses none; and the mean of how many is of about so many.
const LOSSY_ROUNDS: f64 = 16.0;
const SCATTERED_ROUNDS: f64 = 64.0;
/// No path that is worth using loses so much by nature.
const NATURE_MAX: f64 = 0.2;
/// After the start: of the rate that arrived, with an empty queue.
const AFTER_START: f64 = 0.95;

/// CUBIC's law, with loss told apart.
#[derive(Debug, Default)]
pub struct Fair {
    start: Startup,
    started: bool,
    /// Bytes.
    window: f64,
    /// RFC 9438 §4.1.2: W_max, of which the window grows back, and cwnd_prior.
    max: f64,
    prior: f64,
    epoch: Option<Epoch>,
    /// The last interval that was planned; and the first of which a loss is not answered yet.
    planned: u32,
    unanswered: u32,
    /// The plan under way is that of before a reduction.
    stale: bool,
    /// How long the last packets of the intervals of late had waited, and when that was heard.
    waits: VecDeque<(Instant, Duration)>,
    /// The shortest of these.
    waited: Duration,
    /// The longest waits of these and of the last twenty seconds, and since when.
    longest: [Duration; 2],
    longest_since: Option<Instant>,
    /// When the window shrank last, and how long packets waited then.
    shrunk: Option<(Instant, Duration)>,
    /// The part of packets that this path loses by nature.
    nature: f64,
    /// How many packets it loses so in a round trip, each with more than one counted as one.
    scattered: f64,
    /// Since the last look at losses.
    round: Round,
    /// What the window was before losses without a queue shrank it, and the part lost.
    tested: Option<(f64, f64, f64)>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// RFC 9438 §4.2: where the curve is flat, and the seconds until it is there.
    origin: f64,
    k: f64,
    /// RFC 9438 §4.3: what Reno would have, in bytes.
    reno: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    sent: f64,
    lost: f64,
}

impl Round {
    fn of(interval: &Interval, path: &PathView) -> Self {
        let [sent, lost] = [interval.sent_bytes, interval.lost_bytes].map(|bytes| bytes as f64 / path.packet_bytes);
        Self { sent, lost }
    }

    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.lost += other.lost;
    }
}

fn segment(path: &PathView) -> f64 {
    path.packet_bytes.max(SEGMENT_BYTES_MIN)
}

/// Of the waits of how long the shortest counts, if not the last.
fn waits_span(path: &PathView) -> Option<Duration> {
    if path.reorders {
        return Some(HOST_TIME.max(path.rtt_min / REORDERED_PART));
    }
    Some(HOST_TIME).filter(|_| path.rtt_min < HOST_TIME)
}

/// What a window is spread over.
fn round_trip(rtt: Duration) -> Duration {
    rtt.max(RTT_OF_HOSTS)
}

impl Fair {
    /// What the window is spread over now.
    fn spread(&self, path: &PathView) -> Duration {
        // Where round trips are short, the last alone may be that of a busy host.
        round_trip(if waits_span(path).is_some() { path.rtt_min + self.waited } else { path.rtt_latest })
    }

    /// Whether packets that waited so long stood in a queue that may have dropped others.
    fn is_queue(&self, waited: Duration, path: &PathView) -> bool {
        let noise = WAIT_NOISE + path.rtt_min / WAIT_NOISE_PART;
        // The queue drains for a round trip; what became of packets in it is known one later, and its interval takes a while.
        let draining = self.shrunk.filter(|(at, _)| path.now < *at + 3 * path.rtt);
        let drained = draining.map_or(Duration::ZERO, |(_, waited)| waited.mul_f64(DRAINS));
        waited > noise.max(self.longest[0].max(self.longest[1]) / WAIT_PART).max(drained)
    }

    /// An interval's last packets waited so long: how long all of late did, this and the time before.
    fn on_wait(&mut self, waited: Duration, path: &PathView) -> Duration {
        let now = path.now;
        // A longer path has its own round trip to find out.
        let span = waits_span(path).unwrap_or_else(|| {
            self.waits.clear();
            Duration::ZERO
        });
        self.waits.push_back((now, waited));
        while self.waits.pop_front_if(|(at, _)| *at + span < now).is_some() {}
        let shortest = self.waits.iter().map(|(_, waited)| *waited).min().unwrap_or(waited);
        let before = std::mem::replace(&mut self.waited, shortest);
        let since = self.longest_since.get_or_insert(now);
        if now >= *since + WAIT_AGE {
            *since = now;
            self.longest = [Duration::ZERO, self.longest[0]];
        }
        self.longest[0] = self.longest[0].max(shortest);
        before.max(shortest)
    }

    fn reduce(&mut self, waited: Duration, path: &PathView) {
        self.shrink(BETA, waited, path);
    }

    /// What was lost in a queue is no more than what this path loses by nature: there may be room in the queue yet, and it is emptied.
    fn drain(&mut self, waited: Duration, path: &PathView) {
        let empty = path.rtt_min.as_secs_f64() / (path.rtt_min + waited).as_secs_f64();
        self.shrink((AFTER_START * empty).max(BETA), waited, path);
    }

    fn shrink(&mut self, left: f64, waited: Duration, path: &PathView) {
        self.shrunk = Some((path.now, waited));
        // RFC 9438 §4.7: fast convergence.
        self.max = if self.window < self.max { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.prior = self.window;
        self.window = (self.window * left).max(SEGMENTS_MIN * segment(path));
        self.epoch = None;
        self.unanswered = self.planned + 1;
        self.stale = true;
        self.round = Round::default();
    }

    fn grow(&mut self, acked: f64, path: &PathView) {
        // On a path that is shorter than the window is spread over, so many of its own round trips pass meanwhile.
        let trips = (RTT_OF_HOSTS.as_secs_f64() / path.rtt.as_secs_f64()).clamp(1.0, GROWTH_MAX);
        let segment = segment(path) * trips;
        let (window, max) = (self.window, self.max);
        let epoch = self.epoch.get_or_insert_with(|| {
            let k = ((max - window).max(0.0) / segment / C).cbrt();
            Epoch { start: path.now, origin: max.max(window), k, reno: window }
        });
        let part = acked / self.window;
        let time = (path.now - epoch.start + path.rtt).as_secs_f64();
        // RFC 9438 §4.2: equation 1, and the bounds of the target.
        let target = (C * (time - epoch.k).powi(3) * segment + epoch.origin).clamp(self.window, self.window * 1.5);
        // RFC 9438 §4.3: as slow as needed until the window is where it was, then as Reno.
        let alpha = if epoch.reno < self.prior { RENO_ALPHA } else { 1.0 };
        epoch.reno += alpha * part * segment * trips;
        self.window = (self.window + (target - self.window) * part.min(1.0)).max(epoch.reno);
    }

    /// Losses of a round trip in which packets did not wait. Whether they are too many to be by nature.
    fn is_unusual(&self, round: &Round) -> bool {
        let expected = self.nature * round.sent;
        let unusual = round.lost > expected + UNUSUAL_DEVIATIONS * expected.sqrt() + UNUSUAL_PACKETS;
        unusual || round.lost > (NATURE_MAX * round.sent).max(UNUSUAL_PACKETS)
    }

    /// Whether this path loses packets by nature, one in so many round trips at least.
    fn is_lossy(&self) -> bool {
        self.scattered > 1.0 / LOSSY_ROUNDS
    }

    fn on_round(&mut self, round: Round, path: &PathView) {
        let part = round.lost / round.sent.max(1.0);
        if let Some((window, max, before)) = self.tested.take()
            && part > before / 2.0
            && part < NATURE_MAX
        {
            (self.nature, self.window, self.max, self.epoch) = (part, window.max(self.window), max, None);
            return;
        }
        if self.is_unusual(&round) {
            let tested = (self.window, self.max, part);
            self.reduce(Duration::ZERO, path);
            self.tested = Some(tested);
        } else {
            self.nature += (part - self.nature) / NATURE_ROUNDS;
            self.scattered += (round.lost.min(1.0) - self.scattered) / SCATTERED_ROUNDS;
        }
    }

    fn on_start(&mut self, interval: &Interval, path: &PathView) {
        if let Some(rate) = self.start.on_interval(interval, path) {
            // As after congestion; but what was sent too fast is not what keeps the path full.
            let (full, empty) =
                (rate * round_trip(path.rtt_latest).as_secs_f64(), rate * round_trip(path.rtt_min).as_secs_f64());
            self.window = (BETA * full).max(AFTER_START * empty).max(SEGMENTS_MIN * segment(path));
            (self.max, self.prior, self.stale) = (self.window, self.window, true);
            self.shrunk = Some((path.now, self.longest[0]));
            self.started = true;
            self.unanswered = self.planned + 1;
            self.nature = (self.round.lost / self.round.sent.max(1.0)).min(NATURE_MAX);
            self.scattered = (self.nature * self.window / path.packet_bytes).min(1.0);
            self.round = Round::default();
        } else if interval.loss() < NATURE_MAX && !interval.idle && !self.is_queue(self.waited, path) {
            self.round.add(&Round::of(interval, path));
        }
    }
}

impl Congestion for Fair {
    fn plan(&mut self, id: u32, path: &PathView) -> Plan {
        (self.planned, self.stale) = (id, false);
        // What is sent now meets the queue of before: a TCP flow would wait for its window.
        if self.shrunk.is_some_and(|(at, _)| path.now < at + path.rtt / 2) {
            self.unanswered = id + 1;
        }
        if !self.started {
            return self.start.plan(path);
        }
        // A path that comes and goes leaves less of it each time.
        self.window = self.window.max(SEGMENTS_MIN * segment(path));
        let rtt = self.spread(path);
        let rate = PACE * self.window / rtt.as_secs_f64();
        let length = (rtt / INTERVALS_PER_RTT).max(Duration::from_secs_f64(path.interval_bytes_min / rate.max(1.0)));
        // What is under way counts until an interval's report: that of the one before the last may not be here yet.
        plan(rate, length, self.window + rate * length.as_secs_f64())
    }

    fn on_interval(&mut self, interval: &Interval, path: &PathView) {
        // The packets that were lost in an interval came to the queue between its last packet and that of the one before.
        let longer = self.on_wait(interval.waited.unwrap_or(self.waited), path);
        if !self.started {
            return self.on_start(interval, path);
        }
        let answered = interval.id < self.unanswered;
        if !answered && interval.lost_bytes > 0 && self.is_queue(longer, path) {
            self.tested = None;
            let lost = Round::of(interval, path);
            return if self.is_lossy() && !self.is_unusual(&lost) {
                self.drain(longer, path);
            } else {
                self.reduce(longer, path);
            };
        }
        if !answered {
            self.round.add(&Round::of(interval, path));
            if self.round.sent * path.packet_bytes >= self.window {
                let round = std::mem::take(&mut self.round);
                self.on_round(round, path);
            }
        }
        // RFC 9438 §5.8: a window that is not used does not grow, and that time does not count.
        let used = interval.rate() * round_trip(path.rtt).as_secs_f64() > self.window / 2.0;
        if interval.idle || !used {
            if let Some(epoch) = &mut self.epoch {
                epoch.start = (epoch.start + interval.sent_for).min(path.now);
            }
        } else if !answered {
            self.grow((interval.sent_bytes - interval.lost_bytes) as f64, path);
        }
    }

    fn on_lost(&mut self, id: u32, path: &PathView) {
        // The last round trip alone may be that of a busy host.
        let latest = path.rtt_latest.saturating_sub(path.rtt_min);
        let waited = if waits_span(path).is_some() { self.waited } else { self.waited.max(latest) };
        // How many more are lost of a lossy path's interval is waited for.
        if self.started && id >= self.unanswered && self.is_queue(waited, path) && !self.is_lossy() {
            self.tested = None;
            self.reduce(waited, path);
        }
    }

    fn on_room(&mut self, rate_bytes: f64, path: &PathView) {
        if self.started {
            let rate = self.window / self.spread(path).as_secs_f64();
            self.start = Startup::between(rate, rate + rate_bytes);
            (self.started, self.stale) = (false, true);
            (self.tested, self.round) = (None, Round::default());
        } else {
            self.start.most += rate_bytes;
        }
    }

    fn takes_parts(&self) -> bool {
        true
    }

    fn is_stale(&self) -> bool {
        self.stale
    }

    fn on_return(&mut self) {
        // What the path carries now is not known.
        (self.max, self.prior, self.window) = (self.window, self.window, self.window * BETA);
        (self.epoch, self.tested, self.round) = (None, None, Round::default());
    }
}
