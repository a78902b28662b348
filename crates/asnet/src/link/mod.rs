//! One direction of a link: what a wire does to packets, in virtual time.
//!
//! A [`Shaper`] stands at the egress of an interface. Packets wait in a bounded queue, go onto the line one after the
//! other at the line's rate, may be lost there, and come out after the delay and some jitter, never overtaking each
//! other. Departures are computed from each other and not from the moments at which somebody looks, so a caller who
//! wakes late delivers late but never slows the line. No clock, no socket: the caller brings `now`, asks for what is
//! [due](Shaper::due), and sleeps until the [deadline](Shaper::deadline).
//!
//! All sizes are those of the SCION packet, without the UDP/IP that carries it here: a real line would have other
//! framing. A shape that changes nothing is [transparent](LinkShape::is_transparent), and whoever sends may then pass
//! the shaper by once it is [idle](Shaper::is_idle).
//!
//! ```
//! use anabranch_asnet::link::{LinkShape, Shaper};
//! use std::time::{Duration, Instant};
//!
//! let (shape, start) = (LinkShape { rate_bps: Some(8_000_000), ..LinkShape::default() }, Instant::now());
//! let mut line = Shaper::new(shape, 7, start);
//! line.enqueue(start, &[0; 1000])?;
//! assert_eq!(line.deadline(), Some(start + Duration::from_millis(1)));
//! assert_eq!(line.due(start + Duration::from_millis(1)).unwrap().bytes, [0; 1000]);
//! # Ok::<(), anabranch_asnet::link::Dropped>(())
//! ```

mod arena;
mod shaper;

use std::time::Duration;

pub use shaper::{Burst, Dropped, Shaper, ShaperStats};

/// Queue of a link that nobody gave one: 50 ms at 1 Gbit/s would be 6 MB; this holds some hundreds of packets.
pub const QUEUE_BYTES_DEFAULT: usize = 512 << 10;
/// MTU of a link that nobody gave one: what an Ethernet with room for the UDP/IP underlay leaves to SCION.
pub const MTU_DEFAULT: u16 = 1472;
/// The slowest line: a packet of 64 KiB takes eight minutes on it, which nobody awaits.
pub const RATE_BPS_MIN: u64 = 1_000;
/// The fastest line that is worth shaping; above it, leave the rate out.
pub const RATE_BPS_MAX: u64 = 100_000_000_000;
/// Delays up to here: beyond ten seconds everything above has given up.
pub const DELAY_MAX: Duration = Duration::from_secs(10);
/// Queues up to here: packets in a queue are memory of ours.
pub const QUEUE_BYTES_MAX: usize = 128 << 20;
/// The smallest MTU that SCION allows (SCION data plane, "MTU": links carry at least 1280 bytes).
pub const MTU_MIN: u16 = 1280;

/// What one direction of a link does to packets. The default does nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkShape {
    /// Bits of SCION packets a second; `None` is as fast as the machine.
    pub rate_bps: Option<u64>,
    /// From the last bit on the line to the arrival.
    pub delay: Duration,
    /// Each packet's delay is drawn evenly from `delay - jitter ..= delay + jitter`, later where it would overtake.
    pub jitter: Duration,
    /// Probability that the line loses a packet, 0 to 1.
    pub loss: f64,
    /// Packets that wait for the line, in bytes; the one on the line is not counted.
    pub queue_bytes: usize,
    /// Largest SCION packet in bytes.
    pub mtu: u16,
}

impl Default for LinkShape {
    fn default() -> Self {
        Self {
            rate_bps: None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            queue_bytes: QUEUE_BYTES_DEFAULT,
            mtu: MTU_DEFAULT,
        }
    }
}

/// Why a shape is none that a link can have.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ShapeError {
    /// Too slow or too fast to mean anything.
    #[error("rate of {0} bit/s: give 1 kbit/s to 100 Gbit/s, or `none` for an unlimited link")]
    Rate(u64),
    /// Longer than anything waits.
    #[error("delay of {0:?}: give at most 10 s")]
    Delay(Duration),
    /// More than the delay: a packet would arrive before it left.
    #[error("jitter of {0:?} exceeds the delay: give at most the delay")]
    Jitter(Duration),
    /// No probability.
    #[error("loss of {0}: give a share from 0 to 1 (0.02 for 2 %)")]
    Loss(f64),
    /// No room for one packet, or more memory than a link may take.
    #[error("queue of {0} bytes: give at least the MTU and at most 128 MiB")]
    Queue(usize),
    /// Less than SCION promises to its users.
    #[error("MTU of {0} bytes: SCION needs links of at least 1280")]
    Mtu(u16),
}

impl LinkShape {
    /// Whether packets pass as they come. The MTU is no matter of time and holds anyway.
    pub fn is_transparent(&self) -> bool {
        self.rate_bps.is_none() && self.delay.is_zero() && self.jitter.is_zero() && self.loss == 0.0
    }

    /// The shape, if a link can have it.
    pub fn checked(self) -> Result<Self, ShapeError> {
        if let Some(rate) = self.rate_bps
            && !(RATE_BPS_MIN..=RATE_BPS_MAX).contains(&rate)
        {
            return Err(ShapeError::Rate(rate));
        }
        if self.delay > DELAY_MAX {
            return Err(ShapeError::Delay(self.delay));
        }
        if self.jitter > self.delay {
            return Err(ShapeError::Jitter(self.jitter));
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(ShapeError::Loss(self.loss));
        }
        if self.mtu < MTU_MIN {
            return Err(ShapeError::Mtu(self.mtu));
        }
        if !(usize::from(self.mtu)..=QUEUE_BYTES_MAX).contains(&self.queue_bytes) {
            return Err(ShapeError::Queue(self.queue_bytes));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked_at_their_edges() {
        let ok = LinkShape::default();
        assert!(ok.checked().is_ok() && ok.is_transparent());
        let with = |change: fn(&mut LinkShape)| {
            let mut shape = LinkShape::default();
            change(&mut shape);
            shape.checked().err()
        };
        assert_eq!(with(|s| s.rate_bps = Some(RATE_BPS_MIN)), None);
        assert_eq!(with(|s| s.rate_bps = Some(RATE_BPS_MIN - 1)), Some(ShapeError::Rate(RATE_BPS_MIN - 1)));
        assert_eq!(with(|s| s.rate_bps = Some(RATE_BPS_MAX + 1)), Some(ShapeError::Rate(RATE_BPS_MAX + 1)));
        assert_eq!(with(|s| s.delay = DELAY_MAX), None);
        assert_eq!(
            with(|s| s.delay = DELAY_MAX + Duration::from_nanos(1)),
            Some(ShapeError::Delay(DELAY_MAX + Duration::from_nanos(1)))
        );
        assert_eq!(with(|s| s.jitter = Duration::from_nanos(1)), Some(ShapeError::Jitter(Duration::from_nanos(1))));
        assert_eq!(with(|s| s.loss = 1.0), None);
        assert_eq!(with(|s| s.loss = 1.01), Some(ShapeError::Loss(1.01)));
        assert!(matches!(with(|s| s.loss = f64::NAN), Some(ShapeError::Loss(_))));
        assert_eq!(with(|s| s.mtu = MTU_MIN), None);
        assert_eq!(with(|s| s.mtu = MTU_MIN - 1), Some(ShapeError::Mtu(MTU_MIN - 1)));
        assert_eq!(with(|s| s.queue_bytes = usize::from(MTU_DEFAULT)), None);
        assert_eq!(with(|s| s.queue_bytes = 1000), Some(ShapeError::Queue(1000)));
        assert_eq!(with(|s| s.queue_bytes = QUEUE_BYTES_MAX + 1), Some(ShapeError::Queue(QUEUE_BYTES_MAX + 1)));
    }
}
