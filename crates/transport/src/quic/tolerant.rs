//! BBR for paths that lose packets without being full.
//!
//! BBRv3 takes more than 2 % of lost packets in a round trip for a full queue, and gives up most of its rate where a path loses
//! that much by nature: a wireless link, a router that is overrun elsewhere. So a few packets in a hundred are forgiven here:
//! BBR is told that they arrived, with the next that really does. What is lost beyond them it hears of.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use noq::congestion::{Bbr3Config, Controller, ControllerFactory, ControllerMetrics};
use noq_proto::RttEstimator;

/// One byte in so many may get lost: 5 %.
const FORGIVEN_ONE_IN: u64 = 20;
/// Forgiveness that is saved up at least, in bytes: short of it, one bad burst would count in full.
const CREDIT_MIN: u64 = 64 * 1200;
/// Forgiven packets that wait for the next acknowledgement; beyond, losses are losses.
const FORGIVEN_MAX: usize = 4096;

/// Makes them.
#[derive(Debug, Default)]
pub struct TolerantConfig(Arc<Bbr3Config>);

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
    /// Packets to be told as arrived: number and bytes.
    forgiven: Vec<(u64, u16)>,
}

impl Tolerant {
    fn new(inner: Box<dyn Controller>) -> Self {
        Self { inner, credit: CREDIT_MIN, forgiven: Vec::new() }
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
        // As much as one window's share is saved up.
        let credit_max = (self.inner.window() / FORGIVEN_ONE_IN).max(CREDIT_MIN);
        self.credit = (self.credit + bytes / FORGIVEN_ONE_IN).min(credit_max);
        for (pn, len) in self.forgiven.drain(..) {
            self.inner.on_ack(now, sent, len.into(), pn, app_limited, rtt);
        }
        self.inner.on_ack(now, sent, bytes, pn, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
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
        match self.credit.checked_sub(lost_bytes.into()) {
            Some(credit) if self.forgiven.len() < FORGIVEN_MAX => {
                self.credit = credit;
                self.forgiven.push((pn, lost_bytes));
            }
            _ => self.inner.on_packet_lost(lost_bytes, pn, now),
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
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), credit: self.credit, forgiven: self.forgiven.clone() })
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

    /// Losses that it was told of.
    #[derive(Clone, Debug, Default)]
    struct Ear(Arc<Mutex<Vec<u64>>>);

    impl Controller for Ear {
        fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: bool, _: u64, _: u64) {}

        fn on_packet_lost(&mut self, _: u16, pn: u64, _: Instant) {
            self.0.lock().unwrap().push(pn);
        }

        fn on_mtu_update(&mut self, _: u16) {}

        fn window(&self) -> u64 {
            1 << 20
        }

        fn clone_box(&self) -> Box<dyn Controller> {
            Box::new(self.clone())
        }

        fn initial_window(&self) -> u64 {
            1 << 20
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any> {
            self
        }
    }

    #[test]
    fn losses_beyond_what_is_saved_up_are_heard_of() {
        let (ear, now) = (Ear::default(), Instant::now());
        let mut tolerant = Tolerant::new(Box::new(ear.clone()));
        (0..64).for_each(|pn| tolerant.on_packet_lost(1200, pn, now));
        assert!(ear.0.lock().unwrap().is_empty());
        (64..70).for_each(|pn| tolerant.on_packet_lost(1200, pn, now));
        assert_eq!(*ear.0.lock().unwrap(), [64, 65, 66, 67, 68, 69]);
    }

    #[test]
    fn what_is_forgiven_is_bounded() {
        let (ear, now) = (Ear::default(), Instant::now());
        let mut tolerant = Tolerant::new(Box::new(ear.clone()));
        (0..=FORGIVEN_MAX as u64).for_each(|pn| tolerant.on_packet_lost(1, pn, now));
        assert_eq!(*ear.0.lock().unwrap(), [FORGIVEN_MAX as u64]);
    }
}
