//! What came: in order and not read yet, or ahead of something that is missing.

use std::collections::VecDeque;

use crate::bytes::ByteQueue;
use crate::packet::SACK_LEN_MAX;
use crate::seq::{FIRST, Seq};

/// Packets that may be ahead of one that is missing: 8 MiB of them at the usual length.
const AHEAD_MAX: usize = 8192;
/// What a packet that is kept ahead counts for beside its bytes, so that many short ones are no way to fill memory.
const AHEAD_COST: usize = 64;
/// What the place of a packet ahead takes, be it there or not.
const PLACE_LEN: usize = size_of::<Option<Box<[u8]>>>();

/// The queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    /// The packet that is expected next.
    next: u64,
    /// The first of all, which wire numbers are counted from.
    wire_first: Seq,
    ready: ByteQueue,
    /// Those behind `next`: the first is `next + 1`.
    ahead: VecDeque<Option<Box<[u8]>>>,
    ahead_count: usize,
    ahead_bytes: usize,
    /// The number of the FIN, once it is known.
    fin: Option<u64>,
    /// Bytes that came in order, all together.
    received_bytes: u64,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// It continues the stream.
    InOrder,
    /// It waits for one before it.
    OutOfOrder,
    /// It was there already, or there is no room: the other side has to be told what is.
    Dropped,
}

impl RecvQueue {
    /// Expects `next` first.
    pub(crate) fn new(next: Seq) -> Self {
        Self {
            next: FIRST,
            wire_first: next,
            ready: ByteQueue::default(),
            ahead: VecDeque::new(),
            ahead_count: 0,
            ahead_bytes: 0,
            fin: None,
            received_bytes: 0,
        }
    }

    /// The last packet that came in order, as the other side numbers them.
    pub(crate) fn ack(&self) -> Seq {
        self.wire_first.plus((self.next - FIRST) as u16).minus(1)
    }

    /// Bytes that came in order, all together.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Bytes that can be read.
    pub(crate) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// The first of them.
    pub(crate) fn front(&self) -> &[u8] {
        self.ready.front()
    }

    /// So many were read.
    pub(crate) fn consume(&mut self, len: usize) {
        self.ready.consume(len);
    }

    /// Whether everything came, the end too.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.next > fin)
    }

    /// Whether something is missing before what came.
    pub(crate) fn has_gap(&self) -> bool {
        self.ahead_count > 0
    }

    /// Bytes kept.
    fn held(&self) -> usize {
        self.ready.len() + self.ahead_bytes + self.ahead_count * AHEAD_COST + self.ahead.len() * PLACE_LEN
    }

    fn whole(&self, seq: Seq) -> u64 {
        let relative = Seq(seq.0.wrapping_sub(self.wire_first.0));
        // `FIRST` ends in sixteen zeros.
        relative.unwrap(self.next)
    }

    /// Takes a packet, of which `limit` bytes in all may be kept; what is `discarded` is only counted.
    pub(crate) fn take(&mut self, seq: Seq, payload: &[u8], is_fin: bool, limit: usize, discards: bool) -> Received {
        let number = self.whole(seq);
        // Nothing comes behind the end.
        if number < self.next || self.fin.is_some_and(|fin| number > fin || is_fin && number != fin) {
            return Received::Dropped;
        }
        let at = (number - self.next) as usize;
        if at > AHEAD_MAX {
            return Received::Dropped;
        }
        let payload = if discards { &[][..] } else { payload };
        // What is expected next is taken where nothing else is held, however little room there is: else nothing would move again.
        let places = at.saturating_sub(self.ahead.len());
        let fits = self.held() + payload.len() + places * PLACE_LEN <= limit || at == 0 && self.ready.is_empty();
        if !fits {
            return Received::Dropped;
        }
        if at > 0 {
            if self.ahead.len() < at {
                self.ahead.resize_with(at, || None);
            }
            let place = &mut self.ahead[at - 1];
            if place.is_some() {
                return Received::Dropped;
            }
            *place = Some(payload.into());
            self.ahead_count += 1;
            self.ahead_bytes += payload.len();
        }
        if is_fin {
            self.fin = Some(number);
            // What was sent behind its own end is nothing.
            let kept = (number - self.next) as usize;
            for gone in self.ahead.drain(kept.min(self.ahead.len())..).flatten() {
                self.ahead_count -= 1;
                self.ahead_bytes -= gone.len();
            }
        }
        if at > 0 {
            return Received::OutOfOrder;
        }
        self.in_order(payload);
        while let Some(Some(payload)) = self.ahead.front_mut().map(Option::take) {
            self.ahead.pop_front();
            self.ahead_count -= 1;
            self.ahead_bytes -= payload.len();
            self.ready.push(&payload);
            self.received_bytes += payload.len() as u64;
            self.next += 1;
        }
        // The place of the one that is missing now.
        if self.ahead_count > 0 {
            drop(self.ahead.pop_front())
        } else {
            self.ahead.clear()
        }
        Received::InOrder
    }

    fn in_order(&mut self, payload: &[u8]) {
        self.ready.push(payload);
        self.received_bytes += payload.len() as u64;
        self.next += 1;
    }

    /// Which packets came ahead: BEP 29, "Selective ACK". Bit `i` stands for `ack + 2 + i`.
    pub(crate) fn sack(&self) -> Vec<u8> {
        if self.ahead_count == 0 {
            return Vec::new();
        }
        let bits = self.ahead.len().min(SACK_LEN_MAX * 8);
        let mut sack = vec![0; bits.div_ceil(32) * 4];
        for (at, _) in self.ahead.iter().take(bits).enumerate().filter(|(_, packet)| packet.is_some()) {
            sack[at / 8] |= 1 << (at % 8);
        }
        sack
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: usize = 1 << 20;

    fn take(queue: &mut RecvQueue, seq: u16, payload: &[u8]) -> Received {
        queue.take(Seq(seq), payload, false, ROOM, false)
    }

    #[test]
    fn what_is_ahead_waits_and_is_told_of() {
        let mut queue = RecvQueue::new(Seq(0xfffe));
        assert_eq!(queue.ack(), Seq(0xfffd));
        assert_eq!(take(&mut queue, 0, b"cc"), Received::OutOfOrder);
        assert_eq!(take(&mut queue, 0, b"cc"), Received::Dropped);
        assert_eq!(queue.sack(), [0b10, 0, 0, 0], "0xfffe is missing; bit 0 is 0xffff, bit 1 is 0");
        assert_eq!(take(&mut queue, 0xffff, b"bb"), Received::OutOfOrder);
        assert_eq!(take(&mut queue, 0xfffe, b"aa"), Received::InOrder);
        assert_eq!((queue.ack(), queue.front(), queue.sack().len()), (Seq(0), &b"aabbcc"[..], 0));
        assert_eq!(take(&mut queue, 0xfffe, b"aa"), Received::Dropped);
        assert_eq!(take(&mut queue, 3, b"f"), Received::OutOfOrder);
        assert_eq!(take(&mut queue, 1, b"d"), Received::InOrder);
        assert_eq!((queue.ack(), queue.sack()), (Seq(1), vec![1, 0, 0, 0]));
        assert_eq!(take(&mut queue, 2, b"e"), Received::InOrder);
        queue.consume(6);
        assert_eq!((queue.front(), queue.ack(), queue.has_gap()), (&b"def"[..], Seq(3), false));
    }

    #[test]
    fn memory_is_bounded_and_the_next_packet_always_has_room() {
        let (mut queue, limit) = (RecvQueue::new(Seq(1)), 1000 + PLACE_LEN);
        assert_eq!(queue.take(Seq(2), &[0; 1000], false, limit, false), Received::OutOfOrder);
        assert_eq!(queue.take(Seq(3), &[0; 1], false, limit, false), Received::Dropped);
        assert_eq!(queue.take(Seq(1), &[0; 500], false, limit, false), Received::InOrder);
        assert_eq!(queue.take(Seq(3), &[0; 1], false, limit, false), Received::Dropped, "not before it is read");
        queue.consume(1500);
        assert_eq!(queue.take(Seq(3), &[0; 1], false, limit, false), Received::InOrder);
        assert_eq!(take(&mut queue, 4 + AHEAD_MAX as u16 + 1, b"x"), Received::Dropped);
        assert_eq!(take(&mut queue, 4 + AHEAD_MAX as u16, b"x"), Received::OutOfOrder);
    }

    #[test]
    fn places_of_packets_that_are_missing_count() {
        let places = 2047;
        for (ahead, taken) in [(places, Received::OutOfOrder), (places + 1, Received::Dropped)] {
            let mut queue = RecvQueue::new(Seq(1));
            assert_eq!(queue.take(Seq(1 + ahead), b"x", false, (usize::from(places) + 1) * PLACE_LEN, false), taken);
        }
    }

    #[test]
    fn the_end_comes_after_everything_before_it() {
        let mut queue = RecvQueue::new(Seq(1));
        assert_eq!(take(&mut queue, 4, b"behind the end"), Received::OutOfOrder);
        assert_eq!(queue.take(Seq(3), b"", true, ROOM, false), Received::OutOfOrder);
        assert_eq!(queue.take(Seq(2), b"", true, ROOM, false), Received::Dropped, "there is one end");
        assert_eq!(take(&mut queue, 5, b"x"), Received::Dropped);
        assert_eq!(take(&mut queue, 1, b"a"), Received::InOrder);
        assert!(!queue.is_finished());
        assert_eq!(take(&mut queue, 2, b"b"), Received::InOrder);
        assert!(queue.is_finished() && queue.front() == b"ab" && !queue.has_gap());
        assert_eq!(queue.ack(), Seq(3));
    }

    proptest! {
        #[test]
        fn any_order_gives_the_same_bytes(first: u16, order in proptest::collection::vec(0usize..60, 1..400)) {
            let mut queue = RecvQueue::new(Seq(first));
            let packets: Vec<Vec<u8>> = (0..60u8).map(|number| vec![number; usize::from(number) * 7 % 50]).collect();
            let mut came = [false; 60];
            for at in order {
                take(&mut queue, first.wrapping_add(at as u16), &packets[at]);
                came[at] = true;
                let whole = came.iter().take_while(|came| **came).count();
                prop_assert_eq!(queue.ack(), Seq(first).plus(whole as u16).minus(1));
                let mut bytes = Vec::new();
                queue.ready.copy_out(0, usize::MAX, &mut bytes);
                prop_assert_eq!(bytes, packets[..whole].concat());
                let sack = queue.sack();
                for (bit, came) in came.iter().skip(whole + 1).enumerate() {
                    prop_assert_eq!(sack.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1), *came);
                }
            }
        }
    }
}
