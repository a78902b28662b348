//! Which packets leave now.

use std::time::Instant;

use super::{Ack, Conn, KEEP_ALIVE, PAUSE, State};
use crate::packet::{HEADER_LEN, Kind};
use crate::seq::Seq;

/// Bytes of a burst: what one UDP message takes.
const BURST_LEN_MAX: usize = 65_507;
/// Bytes for each packet that the other side has to hold: those who offer a mebibyte keep no more than some nine hundred packets
/// (libtorrent: its buffer by 1100; libutp: 1024).
const PEER_PACKET_COST: usize = 1200;
/// The same where little room is offered.
const PEER_PACKETS_LEAST: usize = 16;

/// Datagrams of one length that leave together; the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    /// Bytes of each.
    pub(crate) segment_len: usize,
    /// Whether the network may cut them apart.
    pub(crate) may_fragment: bool,
}

impl Burst {
    const fn single(len: usize) -> Self {
        Self { segment_len: len, may_fragment: false }
    }
}

impl Conn {
    /// Appends what leaves now to `out`, `segments_max` datagrams at most.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        clock_us: u32,
        segments_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<Burst> {
        self.is_paced = false;
        match self.state {
            State::Calling if std::mem::take(&mut self.syn_due) => {
                self.syns += 1;
                // The SYN's number is the one before the first packet's.
                let seq = self.send.seq(self.send.next()).minus(1);
                Some(self.single(Kind::Syn, seq, now, clock_us, out))
            }
            State::Over(_) if std::mem::take(&mut self.reset_due) => {
                let seq = self.send.seq(self.send.next());
                Some(self.single(Kind::Reset, seq, now, clock_us, out))
            }
            State::Open => self.transmit_open(now, clock_us, segments_max, out),
            _ => None,
        }
    }

    fn transmit_open(&mut self, now: Instant, clock_us: u32, segments_max: usize, out: &mut Vec<u8>) -> Option<Burst> {
        // Only a STATE says what came out of order.
        if self.ack == Ack::Now && self.recv.has_gap() {
            return Some(self.state(now, clock_us, out));
        }
        if let Some(burst) = self.data(now, clock_us, segments_max, out) {
            return Some(burst);
        }
        let is_ack_due = match self.ack {
            Ack::Now => true,
            Ack::At(at) => now >= at,
            Ack::None => now >= self.last_sent + KEEP_ALIVE,
        };
        is_ack_due.then(|| self.state(now, clock_us, out))
    }

    fn state(&mut self, now: Instant, clock_us: u32, out: &mut Vec<u8>) -> Burst {
        let seq = self.send.seq(self.send.next());
        self.single(Kind::State, seq, now, clock_us, out)
    }

    fn single(&mut self, kind: Kind, seq: Seq, now: Instant, clock_us: u32, out: &mut Vec<u8>) -> Burst {
        let begin = out.len();
        let sack = if kind == Kind::State { self.recv.sack() } else { Vec::new() };
        self.header(kind, seq, clock_us).write(&sack, 0, out);
        self.left(now);
        Burst::single(out.len() - begin)
    }

    /// Something left: all of it says what came.
    fn left(&mut self, now: Instant) {
        self.last_sent = now;
        (self.ack, self.unacked) = (Ack::None, 0);
        self.told_window = self.room();
    }

    /// Bytes of the stream that a packet may have.
    pub(super) fn payload_max(&self) -> usize {
        self.mtu.current() - HEADER_LEN
    }

    /// Packets with bytes, and the end.
    fn data(&mut self, now: Instant, clock_us: u32, segments_max: usize, out: &mut Vec<u8>) -> Option<Burst> {
        if self.send.is_all_arrived()
            && now.saturating_duration_since(self.last_data) > PAUSE.max(self.ledbat.timeout())
        {
            self.ledbat.restart();
            self.last_data = now;
        }
        let (begin, payload_max) = (out.len(), self.payload_max());
        let window = self.window_bytes() as usize;
        let mut pace = self.pace(now);
        let mut burst: Option<Burst> = None;
        self.is_limited = false;
        for _ in 0..segments_max {
            let Some(piece) = self.send.piece(payload_max) else { break };
            let is_short = piece.len < payload_max;
            if !piece.is_again && is_short && self.corked && !piece.is_fin && !self.send.wants_fin() {
                break;
            }
            if !piece.is_again && !self.fits_peer(piece.len) {
                self.is_window_full = true;
                break;
            }
            let under_way = self.send.under_way_bytes();
            if under_way > 0 && under_way + piece.len > window && !self.is_probing {
                self.is_limited = true;
                break;
            }
            if pace.is_some_and(|(at, _)| at > now) && !self.is_probing {
                // Time is what lacks, and the window says how much.
                (self.is_paced, self.is_limited) = (true, true);
                break;
            }
            let probe = if burst.is_none() && !piece.is_again && !is_short { self.mtu.probe(now) } else { None };
            let len = probe.unwrap_or(HEADER_LEN + piece.len);
            let may_fragment = probe.is_none() && len > self.mtu.current();
            if burst.is_some_and(|burst| len > burst.segment_len || may_fragment != burst.may_fragment)
                || out.len() - begin + len > BURST_LEN_MAX
            {
                break;
            }
            let kind = if piece.is_fin { Kind::Fin } else { Kind::Data };
            let header = self.header(kind, self.send.seq(piece.number), clock_us);
            header.write(&[], len - HEADER_LEN - piece.len, out);
            self.send.write(&piece, out);
            self.send.sent(&piece, probe, now);
            if let Some((at, interval)) = &mut pace {
                *at += interval.mul_f64(piece.len as f64 / payload_max as f64);
            }
            self.is_probing = false;
            let segment_len = burst.get_or_insert(Burst { segment_len: len, may_fragment }).segment_len;
            if probe.is_some() {
                self.mtu.probe_sent();
                break;
            }
            if len < segment_len {
                break;
            }
        }
        self.pace_at = pace.map(|(at, _)| at).or(self.pace_at);
        if burst.is_some() {
            self.left(now);
            self.last_data = now;
        }
        if burst.is_some() || self.probe_at.is_none() {
            self.probe_at = self.probe_time(now);
        }
        if self.timeout_at.is_none() && (!self.send.is_all_arrived() || self.is_window_full) {
            self.timeout_at = Some(now + self.ledbat.timeout());
        }
        burst
    }

    /// When the next packet may leave, and how long after it the one behind that; `None` before a round trip was measured.
    fn pace(&self, now: Instant) -> Option<(Instant, std::time::Duration)> {
        if !self.is_measured {
            return None;
        }
        let earliest = now.checked_sub(self.ledbat.catch_up()).unwrap_or(now);
        Some((self.pace_at.map_or(earliest, |at| at.max(earliest)), self.ledbat.send_interval()))
    }

    /// Whether the other side has room for so many bytes more, in one packet more.
    fn fits_peer(&self, len: usize) -> bool {
        let packets_max = (self.peer_window / PEER_PACKET_COST).max(PEER_PACKETS_LEAST);
        let has_room = self.send.outstanding_len() + len <= self.peer_window && self.send.packets_len() < packets_max;
        has_room || self.is_probing || len == 0
    }
}
