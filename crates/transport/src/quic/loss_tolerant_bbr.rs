//! BBR for paths that lose packets without being full, and at the rate that they have.
//!
//! BBRv3 takes more than 2 % of lost packets in a round trip for a full queue, and gives up most of its rate where a path loses
//! that much by nature: a wireless link, a router that is overrun elsewhere. So a few packets in a hundred are forgiven here:
//! BBR does not hear of them. (Nor are they told as arrived: it would believe in a rate that the path does not have, and keep a
//! short queue overflowing.) What is lost beyond them it hears of.
//!
//! noq's BBRv3 takes the largest rate of the last two round trips for the path's, where it should be that of the last two
//! probes (its filter goes on at every round trip after a probe, as the draft's pseudocode says and Linux' does not). As it
//! sends a hundredth below that, its rate falls by a hundredth every round trip or two, and by a tenth after each probe: a fifth
//! of the line is never used. So the rate is [held](Held) here a little longer, and sent at in full.
//!
//! As it starts, BBR sends almost three times what has arrived, until no more arrives. Where the queue is short, much of that is
//! lost, and BBR takes how little was under way by then for all that the path holds; it finds out otherwise by a few percent
//! every few seconds. So what is lost at the start is kept from it, up to a bound: it notices the end of the growth all the
//! same.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use noq::congestion::{Bbr3Config, Controller, ControllerFactory, ControllerMetrics};
use noq_proto::RttEstimator;

/// One byte in so many may get lost: 5 %.
const FORGIVEN_ONE_IN: u64 = 20;
/// Forgiveness that is saved up at least, in bytes: short of it, one bad burst would count in full.
const CREDIT_MIN: u64 = 64 * 1200;

/// A rate that the path has shown counts for so many round trips, or half as many: sent at nine tenths of the rate, what a probe
/// has piled up takes about ten of them to drain.
const HELD_ROUNDS: u32 = 24;
/// And for so long, or half of it, where round trips are short: BBR stands back for 200 ms every five seconds to see the bare round trip.
const HELD_MIN: Duration = Duration::from_secs(1);
/// What BBR leaves of its rate.
const MARGIN_PERCENT: u64 = 1;
/// A round trip of so many eighths of the shortest has a queue in it. Then others may want their part of the line, and nothing
/// is held: CUBIC would get none of it.
const QUEUE_EIGHTHS: u32 = 9;
/// Of the rate, in percent, what BBR sends at least where it neither drains nor gives way; and at least as it starts.
const CRUISE_PERCENT_MIN: u64 = 98;
const START_PERCENT_MIN: u64 = 200;
/// Windows that may get lost at the start: three round trips of it after the growth has ended, each of half a window.
const START_WINDOWS_MAX: u64 = 2;

/// Makes them.
#[derive(Debug, Default)]
pub(super) struct TolerantConfig(Arc<Bbr3Config>);

impl ControllerFactory for TolerantConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Tolerant::new(Arc::clone(&self.0).build(now, current_mtu)))
    }
}

/// A congestion controller that hears of some losses only.
#[derive(Debug)]
struct Tolerant {
    inner: Box<dyn Controller>,
    /// Bytes that may still get lost.
    credit: u64,
    held: Held,
    round_trip: Duration,
    /// Whether packets wait somewhere.
    queue_stands: bool,
    /// Bytes lost at the start that nobody told BBR of.
    lost_at_start: u64,
}

impl Tolerant {
    fn new(inner: Box<dyn Controller>) -> Self {
        Self {
            inner,
            credit: CREDIT_MIN,
            held: Held::default(),
            round_trip: Duration::ZERO,
            queue_stands: false,
            lost_at_start: 0,
        }
    }
}

/// What BBR sends, in percent of the rate that it believes the path has, if it believes anything yet.
fn gain_percent(metrics: &ControllerMetrics) -> Option<u64> {
    let believed_bytes = metrics.bandwidth_estimate? / 8;
    metrics.pacing_rate?.saturating_mul(100).checked_div(believed_bytes)
}

/// The largest rate of late, in bits a second: of this span of time and of the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    now_bits: u64,
    before_bits: u64,
    since: Option<Instant>,
}

impl Held {
    fn see(&mut self, now: Instant, rate_bits: u64, span: Duration) {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= span) {
            (self.before_bits, self.now_bits, self.since) = (self.now_bits, rate_bits, Some(now));
        }
        self.now_bits = self.now_bits.max(rate_bits);
    }

    fn rate_bits(&self) -> u64 {
        self.now_bits.max(self.before_bits)
    }
}

impl Controller for Tolerant {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        self.inner.on_sent(now, bytes, largest_pn);
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        self.inner.on_packet_sent(now, bytes, pn);
    }

    fn on_cwnd_limited(&mut self) {
        self.inner.on_cwnd_limited();
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, pn: u64, app_limited: bool, rtt: &RttEstimator) {
        self.round_trip = rtt.get();
        self.queue_stands = rtt.get() > rtt.min() * QUEUE_EIGHTHS / 8;
        // As much as one window's share is saved up.
        let credit_max = (self.inner.window() / FORGIVEN_ONE_IN).max(CREDIT_MIN);
        self.credit = (self.credit + bytes / FORGIVEN_ONE_IN).min(credit_max);
        self.inner.on_ack(now, sent, bytes, pn, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        if let Some(rate_bits) = self.inner.metrics().bandwidth_estimate {
            self.held.see(now, rate_bits, (self.round_trip * HELD_ROUNDS).max(HELD_MIN) / 2);
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        self.inner.on_congestion_event(now, sent, is_persistent_congestion, is_ecn, lost_bytes, largest_lost_pn);
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        let starts = gain_percent(&self.inner.metrics()).is_none_or(|percent| percent >= START_PERCENT_MIN);
        if starts && self.lost_at_start < START_WINDOWS_MAX * self.inner.window() {
            self.lost_at_start += u64::from(lost_bytes);
            return;
        }
        match self.credit.checked_sub(lost_bytes.into()) {
            Some(credit) => self.credit = credit,
            None => self.inner.on_packet_lost(lost_bytes, pn, now),
        }
    }

    fn on_spurious_congestion_event(&mut self) {
        self.inner.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn on_ack_frequency_update(&mut self, ack_eliciting_threshold: u64, requested_max_ack_delay: Duration) {
        self.inner.on_ack_frequency_update(ack_eliciting_threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.inner.metrics();
        let (Some(pacing), Some(rate_bits)) = (metrics.pacing_rate, metrics.bandwidth_estimate) else { return metrics };
        if self.queue_stands || gain_percent(&metrics).is_none_or(|percent| percent < CRUISE_PERCENT_MIN) {
            return metrics;
        }
        // The gain of BBR's phase stays.
        let scaled = u128::from(pacing) * u128::from(self.held.rate_bits().max(rate_bits)) * 100
            / (u128::from(rate_bits.max(1)) * u128::from(100 - MARGIN_PERCENT));
        metrics.pacing_rate = Some(u64::try_from(scaled).unwrap_or(u64::MAX));
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), ..*self })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const WINDOW: u64 = 1 << 20;
    const RATE_BITS: u64 = 80_000_000;

    /// BBR with a gain in percent: losses that it was told of.
    #[derive(Clone, Debug)]
    struct Ear(Arc<Mutex<Vec<u64>>>, u64);

    impl Ear {
        fn new(gain_percent: u64) -> Self {
            Self(Arc::default(), gain_percent)
        }

        fn heard(&self) -> Vec<u64> {
            self.0.lock().unwrap().clone()
        }
    }

    impl Controller for Ear {
        fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: bool, _: u64, _: u64) {}

        fn on_packet_lost(&mut self, _: u16, pn: u64, _: Instant) {
            self.0.lock().unwrap().push(pn);
        }

        fn on_mtu_update(&mut self, _: u16) {}

        fn window(&self) -> u64 {
            WINDOW
        }

        fn metrics(&self) -> ControllerMetrics {
            let mut metrics = ControllerMetrics::default();
            metrics.bandwidth_estimate = Some(RATE_BITS);
            metrics.pacing_rate = Some(RATE_BITS / 8 * self.1 / 100);
            metrics
        }

        fn clone_box(&self) -> Box<dyn Controller> {
            Box::new(self.clone())
        }

        fn initial_window(&self) -> u64 {
            WINDOW
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any> {
            self
        }
    }

    #[test]
    fn losses_beyond_what_is_saved_up_are_heard_of() {
        let (ear, now) = (Ear::new(99), Instant::now());
        let mut tolerant = Tolerant::new(Box::new(ear.clone()));
        (0..64).for_each(|pn| tolerant.on_packet_lost(1200, pn, now));
        assert!(ear.heard().is_empty());
        (64..70).for_each(|pn| tolerant.on_packet_lost(1200, pn, now));
        assert_eq!(ear.heard(), [64, 65, 66, 67, 68, 69]);
    }

    #[test]
    fn what_gets_lost_at_the_start_is_kept_quiet_up_to_two_windows() {
        let (ear, now) = (Ear::new(275), Instant::now());
        let mut tolerant = Tolerant::new(Box::new(ear.clone()));
        tolerant.credit = 0;
        (0..2048).for_each(|pn| tolerant.on_packet_lost(1024, pn, now));
        assert!(ear.heard().is_empty());
        tolerant.on_packet_lost(1024, 2048, now);
        assert_eq!(ear.heard(), [2048]);
    }

    #[test]
    fn a_rate_is_held_while_no_queue_stands() {
        let start = Instant::now();
        let pacing = |gain_percent, queue_stands| {
            let mut tolerant = Tolerant::new(Box::new(Ear::new(gain_percent)));
            tolerant.held.see(start, 2 * RATE_BITS, HELD_MIN);
            tolerant.queue_stands = queue_stands;
            tolerant.metrics().pacing_rate.unwrap() * 800 / RATE_BITS
        };
        assert_eq!(pacing(99, false), 200, "what the path has shown, and in full");
        assert_eq!(pacing(99, true), 99, "somebody else may be there");
        assert_eq!(pacing(89, false), 89, "it drains");
    }

    #[test]
    fn a_rate_is_held_for_a_span_at_least_and_two_at_most() {
        let (mut held, start) = (Held::default(), Instant::now());
        held.see(start, 9, HELD_MIN);
        held.see(start + HELD_MIN / 2, 5, HELD_MIN);
        held.see(start + HELD_MIN, 4, HELD_MIN);
        held.see(start + HELD_MIN * 2 - Duration::from_nanos(1), 3, HELD_MIN);
        assert_eq!(held.rate_bits(), 9);
        held.see(start + HELD_MIN * 2, 3, HELD_MIN);
        assert_eq!(held.rate_bits(), 4);
    }
}
