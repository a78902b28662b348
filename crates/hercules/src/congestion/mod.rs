//! How fast each path goes: one controller a path, all behind one trait, all over the same feedback.
//!
//! A controller plans one *monitor interval* after the other: a rate, and for how long. When the fate of every packet of an
//! interval is known it is told what became of it: bytes sent, acknowledged and lost, and by the receiver's clock, for how long
//! they arrived. That is a round trip after its end, so plans run ahead of what is known of them.
//!
//! | controller | what it goes by |
//! | --- | --- |
//! | [`Fixed`] | nothing: the rate that it was given |
//! | [`Allegro`] | PCC (NSDI'15): paired trials, a utility of rate and loss |
//! | [`Vivace`] | PCC (NSDI'18): the gradient of a utility of rate, loss and growing delay |
//! | [`Bbr`] | the rate at which packets arrived, and the shortest round trip |
//! | [`Fair`] | CUBIC's law (RFC 9438), with losses that a queue explains: half of a link beside a TCP flow |
//!
//! Paths that share a bottleneck have one for all of them, in a [`Group`]. All but the first begin with [`Startup`]: twice what arrived, until no more arrives.

mod allegro;
mod bbr;
mod fair;
mod group;
mod vivace;

use std::fmt;
use std::time::{Duration, Instant};

pub use allegro::Allegro;
pub use bbr::Bbr;
pub use fair::Fair;
pub use group::Group;
pub use vivace::Vivace;

/// What a path starts with at least, in bytes a second: what anything that a bulk transfer is worth on carries for a round trip.
pub const START_RATE_BYTES: f64 = 1e6;
/// And what it starts with where round trips are short: as many bytes in the first as TCP (RFC 6928), or two packets where these are longer.
pub const START_WINDOW_BYTES: f64 = 14_600.0;
/// Round trips below this are that of the hosts, not of the path.
const RTT_OF_HOSTS: Duration = Duration::from_millis(4);
/// Slowest rate of a path: a packet every tenth of a second tells that it is there.
pub const RATE_BYTES_MIN: f64 = 15e3;
/// Fastest: 800 Gbit/s.
pub const RATE_BYTES_MAX: f64 = 1e11;
/// Shortest interval: timers are not more exact.
pub const INTERVAL_MIN: Duration = Duration::from_millis(2);
/// Longest.
pub const INTERVAL_MAX: Duration = Duration::from_secs(2);

/// What a controller may know of its path.
#[derive(Clone, Copy, Debug)]
pub struct PathView {
    /// Shortest round trip of late.
    pub rtt_min: Duration,
    /// The round trip now, smoothed.
    pub rtt: Duration,
    /// The last that was measured.
    pub rtt_latest: Duration,
    /// The time.
    pub now: Instant,
    /// An interval lasts at least until so many bytes were sent.
    pub interval_bytes_min: f64,
    /// Bytes of a packet, heads included.
    pub packet_bytes: f64,
    /// Packets overtook others of late: one that came late, a mark too, says nothing of a queue.
    pub reorders: bool,
}

/// How the next interval goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Bytes a second, heads included.
    pub rate_bytes: f64,
    /// For how long.
    pub length: Duration,
    /// Bytes that may be under way.
    pub window_bytes: f64,
}

/// What became of an interval.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// Which one: counts from 0.
    pub id: u32,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Of these, lost.
    pub lost_bytes: u64,
    /// For how long it was sent.
    pub sent_for: Duration,
    /// For how long it arrived, if the marks at both of its ends came.
    pub received_for: Option<Duration>,
    /// By how much the round trip of its end exceeded the shortest, if its mark was answered: what packets waited in queues.
    pub waited: Option<Duration>,
    /// Whether there was less to send than was planned.
    pub idle: bool,
}

impl Interval {
    /// The part that was lost.
    pub fn loss(&self) -> f64 {
        self.lost_bytes as f64 / (self.sent_bytes as f64).max(1.0)
    }

    /// The rate that was sent at.
    pub fn rate(&self) -> f64 {
        self.sent_bytes as f64 / self.sent_for.as_secs_f64().max(1e-6)
    }

    /// The rate at which it arrived.
    pub fn delivery(&self) -> f64 {
        // What was held up and then arrives at once is no rate of the path.
        let time = self.received_for.map_or(self.sent_for, |received| received.max(self.sent_for * 7 / 8));
        (self.sent_bytes - self.lost_bytes) as f64 / time.as_secs_f64().max(1e-6)
    }

    /// By how much the delay grew over the interval, in seconds a second; 0 where that is not known.
    pub fn delay_gradient(&self) -> f64 {
        let sent = self.sent_for.as_secs_f64().max(1e-6);
        self.received_for.map_or(0.0, |received| (received.as_secs_f64() - sent) / sent)
    }
}

/// Decides how fast one path goes.
pub trait Congestion: fmt::Debug + Send {
    /// Interval `id` starts now.
    fn plan(&mut self, id: u32, path: &PathView) -> Plan;

    /// The fate of all packets of an interval is known. Intervals come in order.
    fn on_interval(&mut self, interval: &Interval, path: &PathView);

    /// Packets of interval `id` and perhaps of others before it are lost; more may be, and [`Congestion::on_interval`] will say so
    /// too.
    fn on_lost(&mut self, _id: u32, _path: &PathView) {}

    /// Whether the interval that is being sent has to end now, for a new plan.
    fn is_stale(&self) -> bool {
        false
    }

    /// Whether it may be told of the intervals of each path of a group as they come, instead of sums over all paths.
    fn takes_parts(&self) -> bool {
        false
    }

    /// Another transfer of this end is over, which took up to `rate_bytes` a second of what this path may have now.
    fn on_room(&mut self, _rate_bytes: f64, _path: &PathView) {}

    /// The path does not answer any more. Intervals are planned on, and not told of.
    fn on_silent(&mut self) {}

    /// The path came back after it was silent.
    fn on_return(&mut self) {}
}

/// Which controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Always so many bytes a second.
    Fixed(f64),
    /// PCC Allegro.
    Allegro,
    /// PCC Vivace.
    Vivace,
    /// BBR.
    Bbr,
    /// CUBIC's law, for losses that a queue explains.
    Fair,
}

impl Kind {
    /// One for a path. `seed` chooses its random numbers.
    pub fn build(self, seed: u64) -> Box<dyn Congestion> {
        match self {
            Self::Fixed(rate) => Box::new(Fixed(rate)),
            Self::Allegro => Box::new(Allegro::new(seed)),
            Self::Vivace => Box::new(Vivace::new(seed)),
            Self::Bbr => Box::new(Bbr::default()),
            Self::Fair => Box::new(Fair::default()),
        }
    }
}

/// Always the same rate.
#[derive(Debug)]
pub struct Fixed(f64);

impl Congestion for Fixed {
    fn plan(&mut self, _: u32, path: &PathView) -> Plan {
        plan(self.0, path.rtt, f64::INFINITY)
    }

    fn on_interval(&mut self, _: &Interval, _: &PathView) {}
}

/// A plan within all limits.
fn plan(rate: f64, length: Duration, window_bytes: f64) -> Plan {
    let rate_bytes = rate.clamp(RATE_BYTES_MIN, RATE_BYTES_MAX);
    Plan { rate_bytes, length: length.clamp(INTERVAL_MIN, INTERVAL_MAX), window_bytes }
}

/// The start of a path: twice as fast each round trip, until what arrives does not follow.
///
/// PCC doubles from interval to interval until its utility falls; by then it is two doublings ahead. Here the rate is twice
/// what is known to have arrived, so that the queue gets no more than one round trip of the excess.
#[derive(Debug)]
pub struct Startup {
    rate: f64,
    /// Intervals in a row that did not follow; what arrived of them, in bytes, and in how many seconds.
    short: u32,
    short_bytes: f64,
    short_time: f64,
    /// The highest rate of arrival.
    best: f64,
    /// The rate to stop at.
    most: f64,
}

/// An interval does not follow if it arrives at less than this part of the rate.
const FOLLOWS: f64 = 0.75;
/// An interval at this part of the rate to stop at was at that rate.
const AT_MOST: f64 = 0.9;
/// So many in a row end it: one alone may have met a burst of others. Where packets overtake others, a round trip of them, and only if they do
/// not follow together either: the mark of one may have come late.
const SHORT_INTERVALS: u32 = 2;
const SHORT_INTERVALS_REORDERED: u32 = 4;

impl Default for Startup {
    fn default() -> Self {
        let (short, short_bytes, short_time) = (0, 0.0, 0.0);
        Self { rate: START_RATE_BYTES, short, short_bytes, short_time, best: 0.0, most: RATE_BYTES_MAX }
    }
}

impl Startup {
    /// From one rate to another at most, of a path that had the first.
    fn between(rate: f64, most: f64) -> Self {
        Self { rate, most, ..Self::default() }
    }

    fn plan(&self, path: &PathView) -> Plan {
        let window = START_WINDOW_BYTES.max(2.0 * path.packet_bytes);
        let rate = self.rate.max(window / path.rtt_min.max(RTT_OF_HOSTS).as_secs_f64());
        plan(rate, path.rtt_min / 4, f64::INFINITY)
    }

    /// The rate of the path, once it is found.
    fn on_interval(&mut self, interval: &Interval, path: &PathView) -> Option<f64> {
        if interval.idle {
            return None;
        }
        let mut delivery = interval.delivery();
        let mut short_max = SHORT_INTERVALS;
        if path.reorders && delivery < FOLLOWS * interval.rate() {
            self.short_bytes += (interval.sent_bytes - interval.lost_bytes) as f64;
            self.short_time += interval.received_for.unwrap_or(interval.sent_for).as_secs_f64();
            delivery = self.short_bytes / self.short_time.max(1e-6);
            short_max = SHORT_INTERVALS_REORDERED;
        }
        self.best = self.best.max(delivery);
        if delivery >= FOLLOWS * interval.rate() {
            (self.short, self.short_bytes, self.short_time) = (0, 0.0, 0.0);
            self.rate = self.rate.max(2.0 * delivery).min(self.most);
            return (interval.rate() >= AT_MOST * self.most).then_some(self.best);
        }
        self.short += 1;
        // The fastest single interval may have been a burst.
        (self.short >= short_max).then_some(delivery.max(0.9 * self.best).max(RATE_BYTES_MIN))
    }
}
