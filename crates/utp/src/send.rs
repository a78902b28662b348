//! What is to be sent, is on its way, or has to be sent again.
//!
//! A packet that was sent has a place in the order of sending beside its number. It is lost when several that were sent after it have
//! arrived, or one that was sent much later, whichever numbers they have, so that one which was sent again is found lost again in the same
//! way (as in QUIC, RFC 9002 §6.1). Where that turns out to have been wrong, because the first one arrived after all, more have to arrive
//! from then on.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::bytes::ByteQueue;
use crate::seq::{FIRST, Seq};

/// Packets sent later that have to arrive until one is lost (BEP 29, "packet loss": three duplicate ACKs).
const REORDER: u64 = 3;
/// The same at most, where the network is seen to reorder.
const REORDER_MAX: u64 = 256;
/// Packets that may be without an acknowledgement: a quarter of all numbers, so that no number means two.
const PACKETS_MAX: usize = 1 << 14;

/// A packet that was sent.
#[derive(Clone, Debug)]
struct Sent {
    /// Where its bytes are in the stream.
    offset: u64,
    len: usize,
    /// Its place in the order of sending.
    order: u64,
    at: Instant,
    times: u32,
    state: State,
    /// The datagram's length, where it is a probe for the path's MTU.
    probe: Option<usize>,
    is_fin: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    /// By what arrived after it.
    Lost,
    /// As nothing is heard. Where it arrived after all, the network did not reorder, and its time is none of a round trip.
    Doubted,
    Arrived,
}

/// What goes into the next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its number.
    pub number: u64,
    /// Bytes of payload.
    pub len: usize,
    /// Where they are in the stream.
    pub offset: u64,
    /// Whether it is the end.
    pub is_fin: bool,
    /// Whether it was sent before.
    pub is_again: bool,
}

/// What an acknowledgement said.
#[derive(Debug, Default)]
pub(crate) struct Acked {
    /// Packets that arrived.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long ago the one left that was sent last, where it left once.
    pub rtt: Option<Duration>,
    /// The same of those without a gap before them.
    pub rtt_in_order: Option<Duration>,
    /// A probe of this length arrived.
    pub probe: Option<usize>,
    /// One of them was taken for lost.
    pub late: bool,
}

/// What was found lost.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// Packets.
    pub packets: u64,
    /// When the last of them left.
    pub sent_at: Option<Instant>,
    /// A probe of this length.
    pub probe: Option<usize>,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    bytes: ByteQueue,
    /// Where `bytes` begins in the stream.
    begin: u64,
    /// Where those begin that were not sent yet.
    unsent: u64,
    /// Up to there they share no packet with later ones.
    packet_end: u64,
    /// From the first that did not arrive on.
    packets: VecDeque<Sent>,
    /// The number of the first.
    first: u64,
    wire_first: Seq,
    /// Packets in the order in which they were sent: their place and their number.
    order: VecDeque<(u64, u64)>,
    next_order: u64,
    /// Of those that arrived, the one that left last: its place, and when that was.
    last_arrived: Option<(u64, Instant)>,
    rtt_min: Duration,
    /// Sent again in the order of their numbers: what is missing first holds up the others, and proves a call.
    lost: BTreeSet<u64>,
    reorder: u64,
    under_way_bytes: usize,
    fin: Fin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    No,
    Wanted,
    Sent,
}

impl SendQueue {
    /// Numbers packets from `first` on.
    pub(crate) fn new(first: Seq) -> Self {
        Self {
            bytes: ByteQueue::default(),
            begin: 0,
            unsent: 0,
            packet_end: 0,
            packets: VecDeque::new(),
            first: FIRST,
            wire_first: first,
            order: VecDeque::new(),
            next_order: 0,
            last_arrived: None,
            rtt_min: Duration::MAX,
            lost: BTreeSet::new(),
            reorder: REORDER,
            under_way_bytes: 0,
            fin: Fin::No,
        }
    }

    /// A packet's number on the wire.
    pub(crate) fn seq(&self, number: u64) -> Seq {
        self.wire_first.plus((number - FIRST) as u16)
    }

    /// The number of the first packet that is not known to have arrived.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The number of the next new packet.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// The number that an acknowledgement means, if it means one that was sent, or the one before all that may still be under way.
    pub(crate) fn acked(&self, ack: Seq) -> Option<u64> {
        let number = Seq(ack.0.wrapping_sub(self.wire_first.0)).unwrap(self.first);
        (number < self.next()).then_some(number)
    }

    /// Bytes that are kept.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that have not left yet.
    pub(crate) fn unsent_len(&self) -> usize {
        self.len() - (self.unsent - self.begin) as usize
    }

    /// Bytes that left and are not known to have arrived in order: what the other side's window is for.
    pub(crate) fn outstanding_len(&self) -> usize {
        self.packets.front().map_or(0, |first| (self.unsent - first.offset) as usize)
    }

    /// Bytes on their way.
    pub(crate) fn under_way_bytes(&self) -> usize {
        self.under_way_bytes
    }

    /// Packets from the first that is not known to have arrived on.
    pub(crate) fn packets_len(&self) -> usize {
        self.packets.len()
    }

    /// Whether anything arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        self.last_arrived.is_some()
    }

    /// Whether everything that was sent arrived.
    pub(crate) fn is_all_arrived(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether everything arrived, and the end.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin == Fin::Sent && self.packets.is_empty()
    }

    /// Bytes that arrived in order.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        self.begin
    }

    /// Bytes that were sent at least once.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.unsent
    }

    /// See [`ByteQueue::push`].
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.push(bytes);
    }

    /// See [`ByteQueue::tail`].
    pub(crate) fn tail(&mut self) -> &mut [u8] {
        self.bytes.tail()
    }

    /// See [`ByteQueue::grow`].
    pub(crate) fn grow(&mut self, len: usize) {
        self.bytes.grow(len);
    }

    /// What comes behind what is there is none of its packets.
    pub(crate) fn end_packet(&mut self) {
        self.packet_end = self.begin + self.len() as u64;
    }

    /// Nothing comes behind what is there.
    pub(crate) fn finish(&mut self) {
        if self.fin == Fin::No {
            self.fin = Fin::Wanted;
        }
    }

    /// Whether the end is still to be sent.
    pub(crate) fn wants_fin(&self) -> bool {
        self.fin == Fin::Wanted
    }

    /// The next packet: one that was lost, else a new one of at most `len_max` bytes, if there are bytes or the end is due.
    pub(crate) fn piece(&mut self, len_max: usize) -> Option<Piece> {
        while let Some(number) = self.lost.first().copied() {
            match number.checked_sub(self.first).and_then(|at| self.packets.get(at as usize)) {
                Some(sent) if matches!(sent.state, State::Lost | State::Doubted) => {
                    let Sent { offset, len, is_fin, .. } = *sent;
                    return Some(Piece { number, len, offset, is_fin, is_again: true });
                }
                // It arrived meanwhile.
                _ => drop(self.lost.pop_first()),
            }
        }
        if self.packets.len() >= PACKETS_MAX {
            return None;
        }
        let until_end = self.packet_end.checked_sub(self.unsent).filter(|len| *len > 0);
        let len = self.unsent_len().min(len_max).min(until_end.map_or(usize::MAX, |len| len as usize));
        let is_fin = len == 0 && self.fin == Fin::Wanted;
        let piece = Piece { number: self.next(), len, offset: self.unsent, is_fin, is_again: false };
        (len > 0 || is_fin).then_some(piece)
    }

    /// Appends the bytes of a piece.
    pub(crate) fn write(&self, piece: &Piece, out: &mut Vec<u8>) {
        self.bytes.copy_out((piece.offset - self.begin) as usize, piece.len, out);
    }

    /// The piece leaves.
    pub(crate) fn sent(&mut self, piece: &Piece, probe: Option<usize>, at: Instant) {
        let order = self.next_order;
        self.next_order += 1;
        self.order.push_back((order, piece.number));
        self.under_way_bytes += piece.len;
        if piece.is_again {
            self.lost.remove(&piece.number);
            if let Some(sent) = self.packets.get_mut((piece.number - self.first) as usize) {
                (sent.order, sent.at, sent.state) = (order, at, State::UnderWay);
                sent.times += 1;
            }
            return;
        }
        self.unsent += piece.len as u64;
        if piece.is_fin {
            self.fin = Fin::Sent;
        }
        let (offset, len, is_fin) = (piece.offset, piece.len, piece.is_fin);
        self.packets.push_back(Sent { offset, len, order, at, times: 1, state: State::UnderWay, probe, is_fin });
    }

    /// All up to number `ack` arrived, and those that `sack` has a bit for: the lowest one is `ack + 2`.
    pub(crate) fn acknowledge(&mut self, ack: u64, sack: &[u8], now: Instant) -> Acked {
        let mut acked = Acked::default();
        let mut latest = None;
        let in_order = (ack + 1).saturating_sub(self.first) as usize;
        for at in 0..in_order.min(self.packets.len()) {
            self.arrived(at, now, &mut acked, &mut latest);
        }
        acked.rtt_in_order = acked.rtt;
        for (byte, bits) in sack.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let number = ack + 2 + byte as u64 * 8 + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                if let Some(at) = number.checked_sub(self.first).filter(|at| (*at as usize) < self.packets.len()) {
                    self.arrived(at as usize, now, &mut acked, &mut latest);
                }
            }
        }
        if acked.late {
            // It was late, not lost.
            self.reorder = (self.reorder * 2).min(REORDER_MAX);
        }
        while self.packets.front().is_some_and(|packet| packet.state == State::Arrived) {
            if let Some(packet) = self.packets.pop_front() {
                self.bytes.consume(packet.len);
                self.begin += packet.len as u64;
                self.first += 1;
            }
        }
        if self.packets.is_empty() {
            (self.order, self.lost) = (VecDeque::new(), BTreeSet::new());
        }
        acked
    }

    fn arrived(&mut self, at: usize, now: Instant, acked: &mut Acked, latest: &mut Option<u64>) {
        let packet = &mut self.packets[at];
        if packet.state == State::Arrived {
            return;
        }
        let took = now.saturating_duration_since(packet.at);
        let was_under_way = packet.state == State::UnderWay;
        if was_under_way {
            self.under_way_bytes -= packet.len;
        }
        acked.late |= packet.state == State::Lost;
        packet.state = State::Arrived;
        acked.packets += 1;
        acked.bytes += packet.len as u64;
        if let Some(len) = packet.probe {
            acked.probe = Some(len);
        }
        // Karn: of what was sent twice nobody knows which one arrived.
        if packet.times == 1 && was_under_way && latest.is_none_or(|latest| packet.order > latest) {
            (*latest, acked.rtt) = (Some(packet.order), Some(took));
            self.rtt_min = self.rtt_min.min(took);
        }
        // Much sooner than anything ever was, it is the first one that arrived (RFC 8985 §6.2).
        if packet.times == 1 || took * 2 >= self.rtt_min {
            self.last_arrived = self.last_arrived.max(Some((packet.order, packet.at)));
        }
    }

    /// Finds what was lost by what arrived: several packets that were sent later, or one that left a round trip later (as in RFC 8985).
    pub(crate) fn find_lost(&mut self, rtt: Duration) -> Lost {
        let mut lost = Lost::default();
        let Some((last_arrived, last_left_at)) = self.last_arrived else { return lost };
        while let Some((order, number)) = self.order.front().copied() {
            let is_much_later = |sent: &Sent| sent.at + rtt <= last_left_at;
            let is_lost = order + self.reorder <= last_arrived
                || order < last_arrived && self.under_way(order, number).is_none_or(is_much_later);
            if !is_lost {
                break;
            }
            self.order.pop_front();
            self.lose(order, number, State::Lost, &mut lost);
        }
        lost
    }

    /// The packet that left with this place, where nothing else is known of it.
    fn under_way(&self, order: u64, number: u64) -> Option<&Sent> {
        let at = number.checked_sub(self.first)?;
        self.packets.get(at as usize).filter(|sent| sent.order == order && sent.state == State::UnderWay)
    }

    /// The first one on its way is to be sent again: what is said of it tells of the others. Not the last one: libtorrent's selective
    /// ACKs leave out as many of the last packets that came as are missing in front (it counts bits from the first packet
    /// that came, and numbers them from the first that is missing).
    pub(crate) fn doubt_first(&mut self) -> Lost {
        let mut lost = Lost::default();
        let first = self.packets.iter().position(|packet| packet.state == State::UnderWay);
        if let Some(at) = first {
            self.lose(self.packets[at].order, self.first + at as u64, State::Doubted, &mut lost);
        }
        lost
    }

    /// The other side misses the first packet, and says no more than that.
    pub(crate) fn lose_first(&mut self) -> Lost {
        let mut lost = Lost::default();
        if let Some(first) = self.packets.front().filter(|first| first.times == 1) {
            self.lose(first.order, self.first, State::Lost, &mut lost);
        }
        lost
    }

    /// Everything on its way is lost, and patience did not pay.
    pub(crate) fn lose_all(&mut self) -> Lost {
        self.reorder = REORDER;
        let mut lost = Lost::default();
        for (order, number) in std::mem::take(&mut self.order) {
            self.lose(order, number, State::Doubted, &mut lost);
        }
        lost
    }

    fn lose(&mut self, order: u64, number: u64, state: State, lost: &mut Lost) {
        if self.under_way(order, number).is_none() {
            return;
        }
        let packet = &mut self.packets[(number - self.first) as usize];
        packet.state = state;
        self.under_way_bytes -= packet.len;
        self.lost.insert(number);
        match packet.probe.take() {
            Some(len) => lost.probe = Some(len),
            None => {
                lost.packets += 1;
                lost.sent_at = lost.sent_at.max(Some(packet.at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Duration = Duration::from_millis(40);

    fn send(queue: &mut SendQueue, now: Instant) -> Option<Piece> {
        let piece = queue.piece(10)?;
        queue.sent(&piece, None, now);
        Some(piece)
    }

    #[test]
    fn three_later_packets_make_one_lost_and_again() {
        let (mut queue, now) = (SendQueue::new(Seq(0xffff)), Instant::now());
        queue.push(&[7; 100]);
        let sent: Vec<Piece> = (0..6).map_while(|_| send(&mut queue, now)).collect();
        assert_eq!(queue.seq(sent[1].number), Seq(0));
        let ack = queue.acked(Seq(0xfffe)).unwrap();
        // 1 and 2 came, 0 did not.
        assert_eq!(queue.acknowledge(ack, &[0b11, 0, 0, 0], now).packets, 2);
        assert_eq!(queue.find_lost(RTT).packets, 0);
        assert_eq!(queue.acknowledge(ack, &[0b111, 0, 0, 0], now).packets, 1);
        assert_eq!(queue.find_lost(RTT).packets, 1);
        assert_eq!((queue.outstanding_len(), queue.under_way_bytes()), (60, 20));
        let again = send(&mut queue, now).unwrap();
        assert_eq!((again.number, again.is_again, again.len), (sent[0].number, true, 10));
        // Sent again, it is the latest: it is lost again once three more that left after it have come.
        let later: Vec<Piece> = (0..3).map_while(|_| send(&mut queue, now)).collect();
        assert!(later.iter().all(|piece| !piece.is_again));
        queue.acknowledge(ack, &[0b1111_1111, 0, 0, 0], now);
        assert_eq!(queue.find_lost(RTT).packets, 1);
        assert!(send(&mut queue, now).unwrap().is_again);
        let end = queue.acked(Seq(8 - 1)).unwrap();
        assert!(queue.acknowledge(end, &[], now).rtt.is_none(), "Karn");
        assert!(queue.is_all_arrived() && queue.len() == 10 && queue.under_way_bytes() == 0);
    }

    #[test]
    fn a_packet_ends_where_it_is_to() {
        let (mut queue, now) = (SendQueue::new(Seq(1)), Instant::now());
        queue.push(&[7; 14]);
        queue.end_packet();
        queue.push(&[7; 20]);
        let sent: Vec<usize> = std::iter::from_fn(|| send(&mut queue, now)).map(|piece| piece.len).collect();
        assert_eq!(sent, [10, 4, 10, 10]);
    }

    #[test]
    fn what_was_late_and_not_lost_makes_more_patient() {
        let (mut queue, now) = (SendQueue::new(Seq(1)), Instant::now());
        queue.push(&[7; 200]);
        assert_eq!((0..8).filter_map(|_| send(&mut queue, now)).count(), 8);
        let ack = queue.acked(Seq(0)).unwrap();
        queue.acknowledge(ack, &[0b111, 0, 0, 0], now);
        assert_eq!(queue.find_lost(RTT).packets, 1);
        queue.acknowledge(queue.acked(Seq(4)).unwrap(), &[], now);
        assert_eq!(queue.reorder, 6);
        assert!(!send(&mut queue, now).unwrap().is_again, "it need not be sent again");
    }

    #[test]
    fn one_that_left_a_round_trip_later_tells_of_the_others() {
        let now = Instant::now();
        // The first copy, when anything ever took longer; and the second one, a little less than a round trip later, and more.
        for (sent_after, heard_after, found) in [(RTT, RTT / 3, 0), (RTT - RTT / 8, RTT * 2, 3), (RTT, RTT * 2, 5)] {
            let mut queue = SendQueue::new(Seq(1));
            queue.push(&[7; 70]);
            assert!(send(&mut queue, now).is_some());
            assert_eq!(queue.acknowledge(queue.acked(Seq(1)).unwrap(), &[], now + RTT).rtt, Some(RTT));
            assert_eq!((0..6).filter_map(|_| send(&mut queue, now)).count(), 6);
            // Nothing is heard of the six, and the first one leaves again.
            assert_eq!((queue.doubt_first().packets, queue.under_way_bytes()), (1, 50));
            assert!(send(&mut queue, now + sent_after).unwrap().is_again);
            let first = queue.acked(Seq(2)).unwrap();
            assert_eq!(queue.acknowledge(first, &[], now + sent_after + heard_after).rtt, None);
            assert_eq!(queue.find_lost(RTT).packets, found, "{sent_after:?}");
            // What is heard of now was late: no more patience for that.
            queue.acknowledge(queue.acked(Seq(7)).unwrap(), &[], now + RTT * 4);
            assert_eq!(queue.reorder, if found == 0 { REORDER } else { 2 * REORDER });
        }
    }

    #[test]
    fn numbers_that_were_not_sent_acknowledge_nothing() {
        let (mut queue, now) = (SendQueue::new(Seq(5)), Instant::now());
        queue.push(&[7; 20]);
        assert_eq!(queue.acked(Seq(5)), None);
        send(&mut queue, now);
        assert_eq!(queue.acked(Seq(5)), Some(FIRST));
        assert_eq!(queue.acked(Seq(6)), None);
        assert_eq!(queue.acknowledge(queue.acked(Seq(4)).unwrap(), &[0xff; 252], now).packets, 0);
    }

    proptest! {
        #[test]
        fn every_byte_is_sent_in_order_and_again_until_it_arrives(
            first: u16, steps in proptest::collection::vec((any::<u8>(), any::<u32>()), 1..300),
        ) {
            let now = Instant::now();
            let mut queue = SendQueue::new(Seq(first));
            // What the other side has, by number.
            let mut there: Vec<bool> = Vec::new();
            for (step, bits) in steps {
                match step % 4 {
                    0 => queue.push(&vec![1; step as usize]),
                    1 | 2 => {
                        let Some(piece) = send(&mut queue, now) else { continue };
                        let at = (piece.number - FIRST) as usize;
                        prop_assert!(at <= there.len());
                        if at == there.len() {
                            there.push(false);
                        }
                        there[at] |= bits & 3 != 0;
                    }
                    _ => {
                        let whole = there.iter().take_while(|there| **there).count();
                        let mut sack = [0; 64];
                        let ahead = there.iter().skip(whole + 1).take(64 * 8).enumerate();
                        for (bit, _) in ahead.filter(|(_, there)| **there) {
                            sack[bit / 8] |= 1 << (bit % 8);
                        }
                        let ack = Seq(first).plus(whole as u16).minus(1);
                        let ack = queue.acked(ack).unwrap();
                        queue.acknowledge(ack, &sack, now);
                        if bits & 8 != 0 { queue.lose_all(); } else { queue.find_lost(RTT); }
                        let missing = there.len() - whole;
                        prop_assert_eq!(queue.packets.len(), missing);
                    }
                }
                let under_way = queue.packets.iter().filter(|packet| packet.state == State::UnderWay);
                prop_assert_eq!(queue.under_way_bytes, under_way.map(|packet| packet.len).sum::<usize>());
                let kept: usize = queue.packets.iter().map(|packet| packet.len).sum();
                prop_assert_eq!(kept + queue.unsent_len(), queue.len());
            }
        }
    }
}
