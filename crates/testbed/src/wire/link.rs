//! One direction of a wire, pure: packets and `now` in, packets and the next deadline out.
//!
//! A packet first waits its turn, then takes `length / rate` to be put on the wire, then `delay` to arrive.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Counts, Shape};

/// A packet, or a run of them that the kernel will cut up later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Bytes used in the buffer, the offload header included.
    pub len: usize,
    /// Bytes that its packets have on the wire, each with its own headers.
    pub wire_bytes: u64,
}

/// Packets under way in one direction.
pub struct Link {
    shape: Shape,
    random: fastrand::Rng,
    /// When the last packet taken will have been put on the wire.
    free_at: Option<Instant>,
    under_way: VecDeque<(Instant, Vec<u8>, Burst)>,
    counts: Counts,
}

impl Link {
    /// An idle link. `way` tells the two directions' chances apart.
    pub fn new(shape: Shape, way: u64) -> Self {
        let random = fastrand::Rng::with_seed(shape.seed.wrapping_mul(2).wrapping_add(way));
        Self { shape, random, free_at: None, under_way: VecDeque::new(), counts: Counts::default() }
    }

    /// Takes a packet, or gives its buffer back: lost, or dropped because the queue is full.
    ///
    /// # Errors
    /// The buffer of a packet that will not arrive.
    pub fn push(&mut self, now: Instant, buffer: Vec<u8>, burst: Burst) -> Result<(), Vec<u8>> {
        let start = self.free_at.map_or(now, |free_at| free_at.max(now));
        let waiting_bytes = (start - now).as_secs_f64() * self.shape.rate_bits as f64 / 8.0;
        if waiting_bytes > self.shape.queue_bytes as f64 {
            self.counts.dropped += 1;
            return Err(buffer);
        }
        let takes_ns = u128::from(burst.wire_bytes) * 8 * 1_000_000_000 / u128::from(self.shape.rate_bits.max(1));
        let done = start + Duration::from_nanos(takes_ns as u64);
        self.free_at = Some(done);
        if self.shape.loss > 0.0 && self.random.f64() < self.shape.loss {
            self.counts.lost += 1;
            return Err(buffer);
        }
        self.under_way.push_back((done + self.shape.delay, buffer, burst));
        Ok(())
    }

    /// The next packet that has arrived by `now`.
    pub fn pop(&mut self, now: Instant) -> Option<(Vec<u8>, Burst)> {
        if self.under_way.front()?.0 > now {
            return None;
        }
        let (_, buffer, burst) = self.under_way.pop_front()?;
        self.counts.bytes += burst.wire_bytes;
        self.counts.bursts += 1;
        Some((buffer, burst))
    }

    /// When the next packet arrives.
    pub fn deadline(&self) -> Option<Instant> {
        self.under_way.front().map(|entry| entry.0)
    }

    /// How long a packet would wait now until it is its turn.
    pub fn waiting(&self, now: Instant) -> Duration {
        self.free_at.map_or(Duration::ZERO, |free_at| free_at.saturating_duration_since(now))
    }

    /// What passed so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 Mbit/s, 10 ms one way, room for 10,000 bytes: a 1,250-byte packet takes 10 ms.
    fn shape() -> Shape {
        Shape { queue_bytes: 10_000, ..Shape::new(1_000_000, Duration::from_millis(20)) }
    }

    fn push(link: &mut Link, now: Instant) -> bool {
        link.push(now, vec![0; 1250], Burst { len: 1250, wire_bytes: 1250 }).is_ok()
    }

    #[test]
    fn packets_arrive_after_their_turn_their_length_and_the_delay() {
        let start = Instant::now();
        let mut link = Link::new(shape(), 0);
        assert!(push(&mut link, start) && push(&mut link, start));
        let ms = |ms| start + Duration::from_millis(ms);
        assert_eq!(link.deadline(), Some(ms(20)));
        assert_eq!([0, 15, 30].map(|at| link.waiting(ms(at)).as_millis()), [20, 5, 0]);
        assert!(link.pop(ms(19)).is_none());
        assert!(link.pop(ms(20)).is_some());
        assert!(link.pop(ms(29)).is_none());
        assert!(link.pop(ms(30)).is_some());
        assert_eq!(link.deadline(), None);
        assert_eq!(link.counts(), Counts { bytes: 2500, bursts: 2, dropped: 0, lost: 0 });
    }

    #[test]
    fn a_full_queue_drops_and_an_emptier_one_does_not() {
        let start = Instant::now();
        let mut link = Link::new(shape(), 0);
        // The first is on the wire at once, eight wait, and one more may come while exactly 10,000 bytes wait.
        let taken = (0..20).filter(|_| push(&mut link, start)).count();
        assert_eq!((taken, link.counts().dropped), (9, 11));
        assert!(push(&mut link, start + Duration::from_millis(10)));
    }

    #[test]
    fn loss_is_the_fraction_asked_for_and_replays() {
        let lost = |seed| {
            let mut link = Link::new(Shape { loss: 0.1, seed, queue_bytes: u64::MAX, ..shape() }, 0);
            let start = Instant::now();
            for _ in 0..10_000 {
                push(&mut link, start);
            }
            link.counts().lost
        };
        assert_eq!(lost(7), lost(7));
        assert!((800..1200).contains(&lost(7)), "{}", lost(7));
    }
}
