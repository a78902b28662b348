//! The line: a queue, a rate, a loss and a delay.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::LinkShape;
use super::arena::{Arena, CHUNK_LEN};

/// Bytes under way (sent, not yet arrived) that one direction keeps: 1 Gbit/s for one second. Packets that an unlimited
/// line with a long delay would add are dropped like at a full queue.
const IN_FLIGHT_BYTES_MAX: usize = 128 << 20;
/// Packets of one burst: as many as one `UDP_SEGMENT` message takes (Linux `UDP_MAX_SEGMENTS` of older kernels).
const BURST_PACKETS_MAX: usize = 64;
/// Bytes of one burst: the largest UDP payload over IPv4.
const BURST_BYTES_MAX: usize = 65_507;
/// Bits of a byte, times the nanoseconds of a second: a packet's time on the line is `len * this / rate`.
const BIT_NANOS_PER_BYTE: u64 = 8_000_000_000;

/// Why a packet did not get onto the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// Larger than the MTU.
    #[error("packet of {len} bytes on a link whose MTU is {mtu}")]
    TooBig {
        /// The packet's size in bytes.
        len: usize,
        /// The link's.
        mtu: u16,
    },
    /// The queue has no room for it.
    #[error("the link's queue is full")]
    QueueFull,
}

/// What a line did since it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShaperStats {
    /// Packets that came out at the other end.
    pub delivered_packets: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Packets that the line lost.
    pub lost_packets: u64,
    /// Packets that found the queue full.
    pub queue_full_packets: u64,
    /// Packets beyond the MTU.
    pub too_big_packets: u64,
}

/// Packets due together: `packets` of them, each `segment_len` long but for the last, which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst<'a> {
    /// The packets one after the other, as one `UDP_SEGMENT` message takes them.
    pub bytes: &'a [u8],
    /// Bytes of each.
    pub segment_len: usize,
    /// How many.
    pub packets: usize,
}

/// One direction of a link.
pub struct Shaper {
    shape: LinkShape,
    rng: fastrand::Rng,
    arena: Arena,
    /// Packets that left the line, with their arrivals; then they lie in the arena before all of `waiting`.
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
    /// Lengths of packets that wait for the line; the front one is on it.
    waiting: VecDeque<Waiting>,
    /// Bytes of `waiting`.
    waiting_bytes: usize,
    /// When the front packet's last bit will have left; what of it remains is `front_ends - now` long at this rate.
    front_ends: Instant,
    arrival_last: Instant,
    stats: ShaperStats,
}

struct InFlight {
    len: usize,
    arrival: Instant,
    is_lost: bool,
}

struct Waiting {
    len: usize,
    since: Instant,
}

impl Shaper {
    /// An idle line; `seed` decides which packets are lost and how long each takes.
    pub fn new(shape: LinkShape, seed: u64, now: Instant) -> Self {
        Self {
            shape,
            rng: fastrand::Rng::with_seed(seed),
            arena: Arena::default(),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            front_ends: now,
            arrival_last: now,
            stats: ShaperStats::default(),
        }
    }

    /// The shape now.
    pub fn shape(&self) -> LinkShape {
        self.shape
    }

    /// What the line did so far.
    pub fn stats(&self) -> ShaperStats {
        self.stats
    }

    /// Whether nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// Hands a packet to the line.
    pub fn enqueue(&mut self, now: Instant, packet: &[u8]) -> Result<(), Dropped> {
        let len = packet.len();
        if len > usize::from(self.shape.mtu) {
            self.stats.too_big_packets += 1;
            return Err(Dropped::TooBig { len, mtu: self.shape.mtu });
        }
        self.advance(now);
        // The packet on the line is no longer in the queue.
        let queued = self.waiting_bytes - self.waiting.front().map_or(0, |front| front.len);
        let queue_is_full = !self.waiting.is_empty() && queued + len > self.shape.queue_bytes;
        if queue_is_full || self.in_flight_bytes + self.waiting_bytes + len > IN_FLIGHT_BYTES_MAX {
            self.stats.queue_full_packets += 1;
            return Err(Dropped::QueueFull);
        }
        self.arena.push(packet);
        if self.waiting.is_empty() {
            // Not from the end of the last packet: a line does not save up unused time.
            self.front_ends = self.front_ends.max(now) + self.line_time(len);
        }
        self.waiting.push_back(Waiting { len, since: now });
        self.waiting_bytes += len;
        self.advance(now);
        Ok(())
    }

    /// The packets that have arrived and can leave together; [`consume`](Self::consume) them, and ask again.
    pub fn due(&mut self, now: Instant) -> Option<Burst<'_>> {
        self.advance(now);
        self.forget_lost(now);
        let segment_len = self.in_flight.front().filter(|first| first.arrival <= now)?.len;
        let contiguous = self.arena.front().len().min(BURST_BYTES_MAX).min(CHUNK_LEN);
        let (mut bytes, mut packets) = (0, 0);
        for packet in self.in_flight.iter().take(BURST_PACKETS_MAX) {
            let fits = packet.len <= segment_len && bytes + packet.len <= contiguous;
            if !fits || packet.is_lost || packet.arrival > now {
                break;
            }
            bytes += packet.len;
            packets += 1;
            if packet.len < segment_len {
                break;
            }
        }
        Some(Burst { bytes: &self.arena.front()[..bytes], segment_len, packets })
    }

    /// Takes the first `packets` of the last burst off.
    pub fn consume(&mut self, packets: usize) {
        for packet in self.in_flight.drain(..packets.min(self.in_flight.len())) {
            self.arena.pop(packet.len);
            self.in_flight_bytes -= packet.len;
            self.stats.delivered_packets += 1;
            self.stats.delivered_bytes += packet.len as u64;
        }
    }

    /// When something will be due; `None` while the line is idle.
    pub fn deadline(&self) -> Option<Instant> {
        if let Some(first) = self.in_flight.front() {
            return Some(first.arrival);
        }
        // Jitter may make it earlier than `delay` after its departure, but only once it departs.
        self.waiting.front().map(|_| self.front_ends)
    }

    /// Gives the line another shape. What waits and what is under way stays; the packet on the line keeps the part that
    /// it has sent and sends its rest at the new rate.
    pub fn set_shape(&mut self, now: Instant, shape: LinkShape) {
        self.advance(now);
        let rate_before = self.shape.rate_bps;
        self.shape = shape;
        if let Some(front) = self.waiting.front() {
            let full = line_time(front.len, rate_before).as_nanos().max(1);
            let rest = self.front_ends.saturating_duration_since(now).as_nanos();
            let rest_new = self.line_time(front.len).as_nanos() * rest / full;
            // Cannot exceed `line_time(front.len)`, which is a `Duration` of minutes at most.
            self.front_ends = now + Duration::from_nanos(rest_new as u64);
        }
        self.advance(now);
    }

    fn line_time(&self, len: usize) -> Duration {
        line_time(len, self.shape.rate_bps)
    }

    /// Moves what has left the line by `now` from the queue to those under way.
    fn advance(&mut self, now: Instant) {
        while self.front_ends <= now {
            let Some(front) = self.waiting.pop_front() else { return };
            self.waiting_bytes -= front.len;
            let departure = self.front_ends;
            let is_lost = self.shape.loss > 0.0 && self.rng.f64() < self.shape.loss;
            let arrival = (departure + self.draw_delay()).max(self.arrival_last);
            self.arrival_last = arrival;
            self.in_flight_bytes += front.len;
            self.in_flight.push_back(InFlight { len: front.len, arrival, is_lost });
            if let Some(next) = self.waiting.front() {
                self.front_ends = departure.max(next.since) + self.line_time(next.len);
            }
        }
    }

    fn draw_delay(&mut self) -> Duration {
        let spread = 2 * self.shape.jitter.as_nanos() as u64;
        let extra = if spread == 0 { 0 } else { self.rng.u64(..=spread) };
        self.shape.delay.saturating_sub(self.shape.jitter) + Duration::from_nanos(extra)
    }

    /// Lost packets hold their place until they would have arrived, so that the memory bound stays simple.
    fn forget_lost(&mut self, now: Instant) {
        while let Some(packet) = self.in_flight.pop_front_if(|first| first.is_lost && first.arrival <= now) {
            self.arena.pop(packet.len);
            self.in_flight_bytes -= packet.len;
            self.stats.lost_packets += 1;
        }
    }
}

fn line_time(len: usize, rate_bps: Option<u64>) -> Duration {
    // A packet's 2^16 bytes times 8e9 fit 64 bits. Rounded up: a line is never faster than its rate.
    rate_bps.map_or(Duration::ZERO, |rate| Duration::from_nanos((len as u64 * BIT_NANOS_PER_BYTE).div_ceil(rate)))
}

#[cfg(test)]
#[path = "shaper_tests.rs"]
mod tests;
