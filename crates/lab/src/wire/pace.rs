//! How often a thread looks at its wires, and what that makes of the times of packets.
//!
//! A thread that looked just now sleeps for a tick before it looks again. What it then finds came at some time since: in the
//! mean, in the middle. And what is due until half a tick later it hands out now: packets are up to half a tick early or late, and
//! in the mean neither. A packet that wakes the thread, or is due while it sleeps longer than a tick, is on time.

use std::time::{Duration, Instant};

use anabranch_asnet::link::LinkShape;

/// The longest tick.
const TICK_MAX: Duration = Duration::from_millis(1);
/// A line's delay has at least so many ticks. Half of one is an eightieth of it: packets that come together come just after the
/// one that woke the thread and not in the middle of a tick, and are that much late.
const TICKS_OF_DELAY: u32 = 40;
/// What a line sends in a tick is at most this part of its queue, since it comes into it at once.
const TICKS_OF_QUEUE: u32 = 16;
/// Less than this is no sleep: what was found had been there.
const SLEEP_MIN: Duration = Duration::from_micros(50);

/// How seldom a line of this shape may be looked at; zero where it is to be at once.
pub(super) fn tick(shape: &LinkShape) -> Duration {
    // Without a rate, a tick's packets may be any number.
    let Some(rate_bps) = shape.rate_bps else { return Duration::ZERO };
    let queue = Duration::from_secs_f64(shape.queue_bytes as f64 * 8.0 / rate_bps.max(1) as f64);
    TICK_MAX.min(shape.delay / TICKS_OF_DELAY).min(queue / TICKS_OF_QUEUE)
}

/// A thread's times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The tick of all of its wires.
    pub(super) tick: Duration,
    /// When it began to look, now and the time before.
    began: Instant,
    before: Instant,
    /// When it woke from a sleep that ended because of a packet, or because something was due.
    woke: Option<Instant>,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { tick: Duration::ZERO, began: now, before: now, woke: None }
    }

    /// The thread looks.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.before, self.began) = (self.began, now);
    }

    /// How much longer it sleeps whatever comes.
    pub(super) fn rest(&self, now: Instant) -> Duration {
        (self.began + self.tick).saturating_duration_since(now)
    }

    /// It looks again without having waited for packets.
    pub(super) fn goes_on(&mut self) {
        self.woke = None;
    }

    /// After the rest of the tick it waited for packets.
    pub(super) fn slept(&mut self, from: Instant, to: Instant) {
        self.woke = (to.saturating_duration_since(from) > SLEEP_MIN).then_some(to);
    }

    /// What is now for what is found and handed out. To ask for the time of each packet costs as much as a packet, and is left
    /// where a tick makes little of it.
    pub(super) fn now(&self) -> Instant {
        if self.tick.is_zero() { Instant::now() } else { self.began }
    }

    /// When a packet came that is found now.
    pub(super) fn came(&self) -> Instant {
        if self.tick.is_zero() {
            return self.now();
        }
        self.woke.unwrap_or_else(|| self.before + self.began.saturating_duration_since(self.before) / 2)
    }

    /// Until when that is due what is handed out now.
    pub(super) fn due(&self) -> Instant {
        self.now() + self.tick / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn shape(rate_bps: Option<u64>, delay: Duration, queue_bytes: usize) -> LinkShape {
        LinkShape { rate_bps, delay, queue_bytes, ..LinkShape::default() }
    }

    #[test]
    fn a_tick_is_short_beside_the_delay_and_what_the_queue_holds() {
        assert_eq!(tick(&shape(Some(10_000_000), 100 * MS, 125_000)), MS);
        assert_eq!(tick(&shape(Some(10_000_000), 40 * MS, 125_000)), MS);
        assert_eq!(tick(&shape(Some(10_000_000), 10 * MS, 125_000)), MS / 4);
        // The queue holds 1.6 ms.
        assert_eq!(tick(&shape(Some(625_000_000), 10 * MS, 125_000)), MS / 10);
        assert!(tick(&shape(Some(10_000_000), Duration::ZERO, 125_000)).is_zero());
        assert!(tick(&shape(None, 10 * MS, 125_000)).is_zero());
    }

    #[test]
    fn what_is_found_after_a_tick_came_in_the_middle_of_it() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.tick = MS;
        pace.begin(start + 2 * MS);
        assert_eq!(pace.rest(start + 2 * MS + MS / 4), MS * 3 / 4);
        pace.slept(start + 3 * MS, start + 3 * MS);
        pace.begin(start + 3 * MS);
        assert_eq!(pace.came(), start + 2 * MS + MS / 2);
        assert_eq!(pace.due(), start + 3 * MS + MS / 2);
        assert_eq!(pace.rest(start + 5 * MS), Duration::ZERO);
    }

    #[test]
    fn what_wakes_the_thread_came_just_then() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.tick = MS;
        pace.slept(start + MS, start + 7 * MS);
        pace.begin(start + 7 * MS);
        assert_eq!(pace.came(), start + 7 * MS);
        pace.goes_on();
        pace.begin(start + 8 * MS);
        assert_eq!(pace.came(), start + 7 * MS + MS / 2);
    }

    #[test]
    fn without_a_tick_everything_is_as_it_is_found() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.begin(start);
        assert_eq!(pace.rest(start), Duration::ZERO);
        let found = pace.came();
        assert!(found >= start && pace.due() >= found);
    }
}
