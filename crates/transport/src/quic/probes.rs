//! Path-MTU probes beside the congestion window, not in it.
//!
//! noq tries larger packets from time to time, as RFC 8899 has it: as a connection opens, and anew every ten minutes. One that
//! gets lost, because the path takes no such packets, stands in the congestion window until it is missed. Where the window
//! is small, since the sender is limited elsewhere, it holds a probe of nine kilobytes and nothing else, and a search makes
//! dozens of them. RFC 9002 §7 lets a sender except probes; here the window is wider by the probe that is under way, and the
//! controller behind it never hears of one, neither that it was sent nor that it arrived: its model is of packets that carry
//! something.
//!
//! The same holds for the pace. noq paces every packet, acknowledgements too, and takes a probe from what may be sent next. Who
//! sends little else than acknowledgements has a low pace: there a probe would hold them up for longer than a round trip, and with
//! them the other side, whose packets they acknowledge. So the pace is quicker, too, by the probe that is under way.
//!
//! And it is never slower than the initial window in each round trip, which RFC 9002 §7.7 lets leave at once. BBR takes what little
//! somebody sends who only asks and acknowledges for what his path carries; at that pace acknowledgements left for every tenth packet,
//! and who sent these stood still meanwhile.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use noq::congestion::{Controller, ControllerFactory, ControllerMetrics};
use noq_proto::RttEstimator;

/// A packet is missed once one is acknowledged that was sent so many later (RFC 9002 §6.1.1).
const MISSED_AFTER: u64 = 3;
/// Below this a round trip is a matter of the hosts' scheduling, and of timers.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(1);

/// Makes them around others'.
pub(super) struct ProbesAsideConfig(pub Arc<dyn ControllerFactory + Send + Sync>);

impl ControllerFactory for ProbesAsideConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::clone(&self.0).build(now, current_mtu);
        Box::new(ProbesAside { inner, mtu_bytes: current_mtu, probe: None, round_trip: Duration::ZERO })
    }
}

/// A congestion controller that probes do not concern.
#[derive(Debug)]
struct ProbesAside {
    inner: Box<dyn Controller>,
    /// The largest packet that carries payload: what is larger is a probe.
    mtu_bytes: u16,
    /// The probe under way: there is one at a time.
    probe: Option<Probe>,
    round_trip: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    number: u64,
    bytes: u16,
}

impl ProbesAside {
    /// A packet arrived; whether it is one that the controller behind knows of.
    fn arrived(&mut self, number: u64) -> bool {
        let Some(probe) = self.probe else { return true };
        if number == probe.number || number >= probe.number.saturating_add(MISSED_AFTER) {
            self.probe = None;
        }
        number != probe.number
    }

    /// The pace, in bytes a second, of so many bytes in each round trip.
    fn in_a_round_trip(&self, bytes: u64) -> u64 {
        let a_second = Duration::from_secs(1).as_nanos() * u128::from(bytes);
        u64::try_from(a_second / self.round_trip.max(ROUND_TRIP_MIN).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Controller for ProbesAside {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        self.inner.on_sent(now, bytes, largest_pn);
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        if bytes > self.mtu_bytes {
            self.probe = Some(Probe { number: pn, bytes });
        } else {
            self.inner.on_packet_sent(now, bytes, pn);
        }
    }

    fn on_cwnd_limited(&mut self) {
        self.inner.on_cwnd_limited();
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, pn: u64, app_limited: bool, rtt: &RttEstimator) {
        self.round_trip = rtt.get();
        if self.arrived(pn) {
            self.inner.on_ack(now, sent, bytes, pn, app_limited, rtt);
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        let probe_bytes = self.probe.map_or(0, |probe| u64::from(probe.bytes));
        self.inner.on_end_acks(now, in_flight.saturating_sub(probe_bytes), app_limited, largest_packet_num_acked);
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
        self.inner.on_packet_lost(lost_bytes, pn, now);
    }

    fn on_spurious_congestion_event(&mut self) {
        self.inner.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu_bytes = new_mtu;
        self.inner.on_mtu_update(new_mtu);
    }

    fn on_ack_frequency_update(&mut self, ack_eliciting_threshold: u64, requested_max_ack_delay: Duration) {
        self.inner.on_ack_frequency_update(ack_eliciting_threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        self.inner.window().saturating_add(self.probe.map_or(0, |probe| probe.bytes.into()))
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.inner.metrics();
        let least = self.in_a_round_trip(self.inner.initial_window());
        // In one round trip, which it takes to come to an end, a probe is made good.
        let made_good = self.probe.map_or(0, |probe| self.in_a_round_trip(probe.bytes.into()));
        metrics.pacing_rate = metrics.pacing_rate.map(|pace| pace.max(least).saturating_add(made_good));
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

    const WINDOW: u64 = 4800;
    /// Bytes a second.
    const PACE: u64 = 60_000;

    /// What the controller behind hears: packets sent, and bytes in flight.
    #[derive(Clone, Debug, Default)]
    struct Ear(Arc<Mutex<(Vec<u64>, u64)>>);

    impl Controller for Ear {
        fn on_packet_sent(&mut self, _: Instant, _: u16, pn: u64) {
            self.0.lock().unwrap().0.push(pn);
        }

        fn on_end_acks(&mut self, _: Instant, in_flight: u64, _: bool, _: Option<u64>) {
            self.0.lock().unwrap().1 = in_flight;
        }

        fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: bool, _: u64, _: u64) {}

        fn on_mtu_update(&mut self, _: u16) {}

        fn window(&self) -> u64 {
            WINDOW
        }

        fn metrics(&self) -> ControllerMetrics {
            let mut metrics = ControllerMetrics::default();
            metrics.pacing_rate = Some(PACE);
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

    fn sender() -> (Ear, ProbesAside) {
        let ear = Ear::default();
        (
            ear.clone(),
            ProbesAside { inner: Box::new(ear), mtu_bytes: 1200, probe: None, round_trip: Duration::from_millis(100) },
        )
    }

    #[test]
    fn a_probe_takes_no_room_and_is_not_spoken_of() {
        let (ear, mut aside) = sender();
        let now = Instant::now();
        aside.on_packet_sent(now, 1200, 1);
        aside.on_packet_sent(now, 8972, 2);
        aside.on_packet_sent(now, 1200, 3);
        assert_eq!(aside.window(), WINDOW + 8972);
        assert_eq!(aside.metrics().pacing_rate, Some(PACE + 89_720));
        aside.on_end_acks(now, 8972 + 2400, false, None);
        assert_eq!(ear.0.lock().unwrap().1, 2400);
        assert_eq!(ear.0.lock().unwrap().0, [1, 3]);
        assert!(aside.arrived(1) && !aside.arrived(2) && aside.arrived(3));
        assert_eq!((aside.window(), aside.metrics().pacing_rate), (WINDOW, Some(PACE)));
        // The larger packet is the usual one from now on.
        aside.on_mtu_update(8972);
        aside.on_packet_sent(now, 8972, 4);
        assert_eq!((aside.window(), ear.0.lock().unwrap().0.last().copied()), (WINDOW, Some(4)));
    }

    #[test]
    fn the_first_window_may_leave_in_each_round_trip_whatever_the_controller_believes() {
        let (_, mut aside) = sender();
        assert_eq!(aside.metrics().pacing_rate, Some(PACE));
        aside.round_trip = Duration::from_millis(10);
        assert_eq!(aside.metrics().pacing_rate, Some(WINDOW * 100));
    }

    #[test]
    fn a_probe_that_is_missed_gives_its_room_back() {
        let (_, mut aside) = sender();
        aside.on_packet_sent(Instant::now(), 5000, 10);
        assert!(aside.arrived(9) && aside.arrived(12));
        assert_eq!(aside.window(), WINDOW + 5000, "it may still be on its way");
        assert!(aside.arrived(13));
        assert_eq!(aside.window(), WINDOW);
    }
}
