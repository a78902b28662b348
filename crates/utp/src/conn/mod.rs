//! One connection, either way round.

mod sending;

use std::time::{Duration, Instant};

use anabranch_ledbat::{Ledbat, Mode};

use crate::mtu::PathMtu;
use crate::packet::{Header, Kind, Packet};
use crate::recv::{Received, RecvQueue};
use crate::send::{Lost, SendQueue};
use crate::seq::Seq;
use crate::{Budget, ConnError, ConnStats, RECV_LIMIT_FIRST, RECV_LIMIT_LEAST, RECV_LIMIT_MAX, Route};

/// Calls that nobody answers: with pauses of 1, 2 and 4 s between them.
const SYNS_MAX: u32 = 3;
/// The pause after the first.
const SYN_PAUSE: Duration = Duration::from_secs(1);
/// Timeouts in a row with not a packet from the other side until it is gone: half a minute on a short path, minutes on a long one.
const SILENT_TIMEOUTS_MAX: u32 = 8;
/// How long bytes that were written may take to arrive after the connection was closed.
const LINGER: Duration = Duration::from_secs(10);
/// Silence after which something is said, so that NATs keep the way open: many forget after thirty seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(29);
/// How long an acknowledgement may wait for bytes to go with; the timeout of who waits for it has 150 ms to spare.
const ACK_DELAY: Duration = Duration::from_millis(10);
/// Packets that are acknowledged at once.
const ACK_EVERY: u32 = 2;
/// Acknowledgements that say the same until the next packet is lost, from a peer that knows no selective ones (BEP 29).
const DUPLICATE_ACKS: u32 = 3;
/// How far behind acknowledgements may be: what is older is none of this connection's, or helps nobody.
const STALE_PACKETS_MAX: u64 = 2048;
/// Bytes that may wait to be sent and acknowledged: least, ...
const SEND_LIMIT_LEAST: usize = 64 * 1024;
/// ... and most.
const SEND_LIMIT_MAX: usize = 8 << 20;
/// What libtorrent sends where it has no delay to tell, and some uTorrents do.
const NO_DELAY: u32 = i32::MAX.cast_unsigned();
/// A pause after which nobody knows how fast the way is by now.
const PAUSE: Duration = Duration::from_secs(1);
/// How long after a round trip, or two, more is sent only to hear more: clocks and schedulers are a few milliseconds coarse.
const PROBE_SLACK: Duration = Duration::from_millis(2);
/// The least time over which the rate of delivery is measured.
const RATE_SPAN_MIN: Duration = Duration::from_millis(50);

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody has answered yet.
    Calling,
    /// Both ways are open, as far as they were not closed.
    Open,
    /// It is over.
    Over(ConnError),
}

/// When what came is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ack {
    None,
    At(Instant),
    Now,
}

/// What an owner has to be told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    pub(crate) opened: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) route: Route,
    pub(crate) recv_id: u16,
    send_id: u16,
    pub(crate) state: State,
    /// What the owner is to be told; taken by the endpoint.
    pub(crate) news: News,
    pub(crate) recv_limit: usize,
    /// What of the endpoint's budget for bytes to be sent is counted.
    pub(crate) send_counted: u64,
    /// When the endpoint looks at it, at the latest.
    pub(crate) timer: Option<Instant>,
    /// Whether it is among those that the endpoint asks for packets.
    pub(crate) is_due: bool,
    send: SendQueue,
    recv: RecvQueue,
    ledbat: Ledbat,
    /// Whether a round trip was measured.
    is_measured: bool,
    mtu: PathMtu,
    /// Bytes that the other side has room for.
    peer_window: usize,
    /// What we told it of our room.
    told_window: usize,
    /// How long its last packet took, by two clocks.
    their_delay: u32,
    /// The first delay that it told, which others are counted from: numbers wrap.
    delay_first: Option<u32>,
    delay_us: i64,
    ack: Ack,
    unacked: u32,
    duplicate_acks: u32,
    syns: u32,
    syn_due: bool,
    reset_due: bool,
    timeout_at: Option<Instant>,
    /// Timeouts without a packet that arrived.
    timeouts: u32,
    /// Timeouts without a packet from the other side.
    silent_timeouts: u32,
    /// When one packet is to leave whatever the windows say, so that more is heard: sooner than the timeout.
    probe_at: Option<Instant>,
    /// Such packets since something arrived.
    probes: u32,
    /// That packet is due.
    is_probing: bool,
    /// The other side's window is full.
    is_window_full: bool,
    /// The congestion window is what limits.
    is_limited: bool,
    pace_at: Option<Instant>,
    is_paced: bool,
    corked: bool,
    closing: bool,
    linger_until: Option<Instant>,
    last_sent: Instant,
    /// When bytes left last.
    last_data: Instant,
    wants_write: bool,
    lost_packets: u64,
    rate: Rate,
}

/// Bytes that arrive at the other side in a second.
#[derive(Clone, Copy, Debug)]
struct Rate {
    since: Instant,
    from_bytes: u64,
    bytes_per_second: u64,
}

impl Conn {
    fn new(now: Instant, route: Route, ids: (u16, u16), send: SendQueue, recv: RecvQueue, mtu_limit: usize) -> Self {
        Self {
            route,
            recv_id: ids.0,
            send_id: ids.1,
            state: State::Open,
            news: News::default(),
            recv_limit: RECV_LIMIT_FIRST,
            send_counted: 0,
            timer: None,
            is_due: false,
            send,
            recv,
            ledbat: Ledbat::new(Mode::Fast),
            is_measured: false,
            mtu: PathMtu::new(mtu_limit),
            peer_window: 0,
            told_window: RECV_LIMIT_FIRST,
            their_delay: 0,
            delay_first: None,
            delay_us: 0,
            ack: Ack::None,
            unacked: 0,
            duplicate_acks: 0,
            syns: 0,
            syn_due: false,
            reset_due: false,
            timeout_at: None,
            timeouts: 0,
            silent_timeouts: 0,
            probe_at: None,
            probes: 0,
            is_probing: false,
            is_window_full: false,
            is_limited: false,
            pace_at: None,
            is_paced: false,
            corked: false,
            closing: false,
            linger_until: None,
            last_sent: now,
            last_data: now,
            wants_write: false,
            lost_packets: 0,
            rate: Rate { since: now, from_bytes: 0, bytes_per_second: 0 },
        }
    }

    /// Calls. BEP 29: "conn_id_send = conn_id_recv + 1"; the SYN has the number `seq`.
    pub(crate) fn call(now: Instant, route: Route, recv_id: u16, seq: Seq, mtu_limit: usize) -> Self {
        let ids = (recv_id, recv_id.wrapping_add(1));
        // What comes first is not known before the answer.
        let (send, recv) = (SendQueue::new(seq.plus(1)), RecvQueue::new(Seq(0)));
        let conn = Self::new(now, route, ids, send, recv, mtu_limit);
        Self { state: State::Calling, syn_due: true, timeout_at: Some(now + SYN_PAUSE), ..conn }
    }

    /// Was called, and the caller proved that it heard us: the first packet of ours is `first`, the next one of its `next`.
    pub(crate) fn accept(now: Instant, route: Route, recv_id: u16, first: Seq, next: Seq, mtu_limit: usize) -> Self {
        let ids = (recv_id, recv_id.wrapping_sub(1));
        Self::new(now, route, ids, SendQueue::new(first), RecvQueue::new(next), mtu_limit)
    }

    /// Whether the other side called.
    pub(crate) fn was_called(&self) -> bool {
        self.recv_id == self.send_id.wrapping_add(1)
    }

    /// A packet of this connection came.
    pub(crate) fn received(&mut self, now: Instant, clock_us: u32, packet: &Packet<'_>) {
        let header = &packet.header;
        let Some(ack) = self.send.acked(header.ack).filter(|ack| ack + STALE_PACKETS_MAX > self.send.first()) else {
            return;
        };
        if self.state == State::Calling {
            // The answer to a call is a STATE that acknowledges the SYN; its number is that of the first packet to come.
            if header.kind != Kind::State || ack + 1 != self.send.next() {
                return;
            }
            self.recv = RecvQueue::new(header.seq);
            self.state = State::Open;
            self.news.opened = true;
            let rtt = (self.syns == 1).then(|| now.saturating_duration_since(self.last_sent));
            self.is_measured |= rtt.is_some();
            self.sample_delay(header.delay_us);
            self.ledbat.acked(now, 1, rtt, self.delay_us.cast_unsigned(), false);
            self.timeout_at = None;
        }
        if !matches!(self.state, State::Open) {
            return;
        }
        self.silent_timeouts = 0;
        self.their_delay = clock_us.wrapping_sub(header.timestamp_us);
        self.acknowledged(now, ack, packet);
        if matches!(header.kind, Kind::Data | Kind::Fin) {
            self.took(now, packet);
        }
        if self.wants_write && self.send.len() < self.send_limit() * 3 / 4 {
            (self.wants_write, self.news.writable) = (false, true);
        }
    }

    fn sample_delay(&mut self, delay_us: u32) {
        if delay_us != 0 && delay_us != NO_DELAY {
            let first = *self.delay_first.get_or_insert(delay_us);
            self.delay_us = i64::from(delay_us.wrapping_sub(first).cast_signed());
        }
    }

    fn acknowledged(&mut self, now: Instant, ack: u64, packet: &Packet<'_>) {
        let header = &packet.header;
        self.sample_delay(header.delay_us);
        let had_outstanding = self.send.outstanding_len();
        let acked = self.send.acknowledge(ack, packet.sack, now);
        // What an older packet says of the window is over.
        if ack + 1 >= self.send.first() {
            self.peer_window = header.window as usize;
            self.is_window_full = false;
        }
        // What is told of ahead of a gap, after a while without any word, may have come long before (see `SendQueue::doubt_first`).
        let rtt = if self.probes + self.timeouts > 0 { acked.rtt_in_order } else { acked.rtt };
        self.is_measured |= rtt.is_some();
        self.ledbat.acked(now, acked.packets, rtt, self.delay_us.cast_unsigned(), self.is_limited);
        if let Some(len) = acked.probe {
            self.mtu.probe_acked(len, now);
        }
        if acked.packets > 0 {
            (self.timeouts, self.duplicate_acks) = (0, 0);
            (self.probe_at, self.probes, self.is_probing) = (None, 0, false);
            self.timeout_at = (!self.send.is_all_arrived()).then(|| now + self.ledbat.timeout());
            self.measure_rate(now);
        } else if header.kind == Kind::State && packet.sack.is_empty() && had_outstanding > 0 {
            self.duplicate_acks += 1;
        }
        let lost = self.send.find_lost(self.ledbat.rtt());
        self.note_lost(now, &lost);
        if self.duplicate_acks == DUPLICATE_ACKS {
            let lost = self.send.lose_first();
            self.note_lost(now, &lost);
        }
    }

    fn note_lost(&mut self, now: Instant, lost: &Lost) {
        if let Some(len) = lost.probe {
            self.mtu.probe_lost(len, now);
        }
        if let Some(sent_at) = lost.sent_at {
            self.lost_packets += lost.packets;
            self.ledbat.lost(now, lost.packets, sent_at);
        }
    }

    fn took(&mut self, now: Instant, packet: &Packet<'_>) {
        let is_fin = packet.header.kind == Kind::Fin;
        // BEP 29 has no bytes in a FIN.
        let payload = if is_fin { &[][..] } else { packet.payload };
        let taken = self.recv.take(packet.header.seq, payload, is_fin, self.recv_limit, self.closing);
        self.news.readable |= taken == Received::InOrder && !self.closing;
        self.unacked += 1;
        self.ack = match taken {
            Received::InOrder if !self.recv.has_gap() && self.unacked < ACK_EVERY && !is_fin => match self.ack {
                Ack::None => Ack::At(now + ACK_DELAY),
                waiting => waiting,
            },
            _ => Ack::Now,
        };
    }

    fn measure_rate(&mut self, now: Instant) {
        let span = now.saturating_duration_since(self.rate.since);
        if span >= RATE_SPAN_MIN.max(self.ledbat.rtt()) {
            let arrived = self.send.arrived_bytes();
            let bytes = arrived - self.rate.from_bytes;
            let bytes_per_second = (bytes as f64 / span.as_secs_f64()) as u64;
            self.rate = Rate { since: now, from_bytes: arrived, bytes_per_second };
        }
    }

    /// Whether one of its two numbers is `id`.
    pub(crate) fn has_id(&self, id: u16) -> bool {
        [self.recv_id, self.send_id].contains(&id)
    }

    /// See [`crate::Endpoint::set_mtu_limit`].
    pub(crate) fn set_mtu_limit(&mut self, limit: usize) {
        self.mtu = PathMtu::new(limit);
    }

    /// Whether a reset that acknowledges `ack` answers something that we sent.
    pub(crate) fn is_its_reset(&self, ack: Seq) -> bool {
        match self.state {
            // Only the SYN was sent.
            State::Calling => self.send.acked(ack).is_some_and(|ack| ack + 1 == self.send.next()),
            // A STATE bears the number of the packet that is next.
            State::Open => {
                let answered = self.send.acked(ack).or_else(|| self.send.acked(ack.minus(1)).map(|ack| ack + 1));
                answered.is_some_and(|ack| ack + 1 >= self.send.first())
            }
            State::Over(_) => false,
        }
    }

    /// The other side ended it.
    pub(crate) fn was_reset(&mut self) {
        let refused = self.state == State::Calling;
        self.end(if refused { ConnError::Refused } else { ConnError::Reset });
    }

    /// It is over.
    pub(crate) fn end(&mut self, error: ConnError) {
        self.state = State::Over(error);
        (self.timeout_at, self.probe_at, self.ack, self.linger_until) = (None, None, Ack::None, None);
        self.news = News { opened: self.news.opened, readable: true, writable: true };
    }

    /// Time has passed.
    pub(crate) fn on_time(&mut self, now: Instant) {
        if self.linger_until.is_some_and(|until| now >= until) {
            self.end(ConnError::TimedOut);
            self.reset_due = true;
        }
        if self.probe_at.is_some_and(|at| now >= at) {
            self.probe(now);
        }
        if self.timeout_at.is_none_or(|at| now < at) {
            return;
        }
        if self.state == State::Calling {
            if self.syns >= SYNS_MAX {
                return self.end(ConnError::TimedOut);
            }
            self.syn_due = true;
            self.timeout_at = Some(now + SYN_PAUSE * 2u32.pow(self.syns));
            return;
        }
        if self.send.is_all_arrived() && !self.is_window_full {
            self.timeout_at = None;
            return;
        }
        self.silent_timeouts += 1;
        if self.silent_timeouts > SILENT_TIMEOUTS_MAX {
            self.reset_due = true;
            return self.end(ConnError::TimedOut);
        }
        self.probe_at = None;
        if self.send.is_all_arrived() {
            self.is_probing = true;
        } else {
            self.timeouts += 1;
            let lost = self.send.lose_all();
            self.lost_packets += lost.packets;
            if let Some(len) = lost.probe {
                self.mtu.probe_lost(len, now);
            }
            self.mtu.timed_out(self.timeouts, now);
            self.ledbat.timed_out(now);
            self.pace_at = None;
        }
        self.timeout_at = Some(now + self.ledbat.timeout());
    }

    /// When to probe, where nothing arrives until then (as RFC 8985 §7, "Tail Loss Probe"). The end of what was sent may be lost, with nothing
    /// behind it to tell of it. And who makes room again may say so only when the next packet comes: libtorrent's window is
    /// what it has room for before its owner has read what came.
    fn probe_time(&self, now: Instant) -> Option<Instant> {
        let rtt = self.ledbat.rtt();
        let wait = if self.send.is_all_arrived() {
            self.is_window_full.then_some(rtt)
        } else {
            // Little is not always acknowledged at once (libutp waits for 2400 bytes, or a tenth of a second).
            let is_much = self.send.under_way_bytes() >= 2 * self.payload_max();
            (self.is_window_full || is_much).then(|| rtt * 2 + self.ledbat.rtt_variation() * 4)
        };
        let wait = (wait? + PROBE_SLACK).saturating_mul(1 << self.probes.min(16));
        // The first packets prove a call, none behind them.
        (self.send.has_arrived() && wait < self.ledbat.timeout()).then(|| now + wait)
    }

    fn probe(&mut self, now: Instant) {
        self.probe_at = None;
        self.probes += 1;
        self.is_probing = true;
        // What is sent again here may be late and not lost: the window knows nothing of it.
        if let Some(len) = self.send.doubt_first().probe {
            self.mtu.probe_lost(len, now);
        }
    }

    /// When it wants to be looked at next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let ack = if let Ack::At(at) = self.ack { Some(at) } else { None };
        let pace = self.pace_at.filter(|_| self.is_paced);
        let keep_alive = (self.state == State::Open).then(|| self.last_sent + KEEP_ALIVE);
        [self.timeout_at, self.probe_at, ack, pace, keep_alive, self.linger_until].into_iter().flatten().min()
    }

    /// Whether nothing is left to do, and its owner is gone.
    pub(crate) fn is_done(&self) -> bool {
        let is_over = match self.state {
            State::Calling => true,
            State::Open => self.send.is_finished(),
            State::Over(_) => true,
        };
        self.closing && is_over && !self.reset_due
    }

    /// The owner is gone: what it wrote still arrives, if that does not take long.
    pub(crate) fn close(&mut self, now: Instant) {
        self.closing = true;
        self.send.finish();
        self.recv.consume(self.recv.ready_len());
        if self.state == State::Open {
            self.linger_until = Some(now + LINGER);
        }
    }

    /// Bytes that can be read; none, and `true`, at the end.
    ///
    /// # Errors
    /// When the connection is over, and everything was read.
    pub(crate) fn front(&self) -> Result<(&[u8], bool), ConnError> {
        let front = self.recv.front();
        match self.state {
            State::Over(error) if front.is_empty() && !self.recv.is_finished() => Err(error),
            _ => Ok((front, front.is_empty() && self.recv.is_finished())),
        }
    }

    /// So many bytes were read.
    pub(crate) fn consume(&mut self, len: usize, budget: &mut Budget) {
        self.recv.consume(len);
        // Who reads everything is kept up by the window, if by anything.
        let read = self.recv.received_bytes() - self.recv.ready_len() as u64;
        let grown = self.recv_limit * 2;
        if self.recv.ready_len() == 0
            && read >= grown as u64
            && grown <= RECV_LIMIT_MAX
            && budget.grants(self.recv_limit)
        {
            budget.recv_granted += self.recv_limit as u64;
            self.recv_limit = grown;
        }
        let room = self.room();
        if self.state == State::Open
            && self.told_window < self.recv_limit / 2
            && room >= self.told_window + self.recv_limit / 4
        {
            self.ack = Ack::Now;
        }
    }

    /// Less room than at first: there are many.
    pub(crate) fn be_small(&mut self) {
        self.recv_limit = RECV_LIMIT_LEAST;
    }

    /// Bytes that it has room for.
    fn room(&self) -> usize {
        self.recv_limit.saturating_sub(self.recv.ready_len())
    }

    /// Bytes that may wait to be sent and acknowledged: two windows, one that is under way and one that is next.
    fn send_limit(&self) -> usize {
        ((2.0 * self.window_bytes()) as usize).clamp(SEND_LIMIT_LEAST, SEND_LIMIT_MAX)
    }

    /// Bytes that may be under way.
    fn window_bytes(&self) -> f64 {
        self.ledbat.window() * self.payload_max() as f64
    }

    /// Room for bytes to be sent.
    ///
    /// # Errors
    /// When the connection is over.
    pub(crate) fn send_room(&mut self, budget: &Budget) -> Result<usize, ConnError> {
        if let State::Over(error) = self.state {
            return Err(error);
        }
        let limit = if budget.is_send_full() { SEND_LIMIT_LEAST } else { self.send_limit() };
        let room = limit.saturating_sub(self.send.len());
        self.wants_write |= room == 0;
        Ok(room)
    }

    /// Bytes to be sent, as many as there is room for.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.send.push(bytes);
    }

    /// Memory for bytes to be sent.
    pub(crate) fn tail(&mut self) -> &mut [u8] {
        self.send.tail()
    }

    /// So many were written there.
    pub(crate) fn wrote(&mut self, len: usize) {
        self.send.grow(len);
    }

    /// See [`crate::Endpoint::end_packet`].
    pub(crate) fn end_packet(&mut self) {
        self.send.end_packet();
    }

    /// See [`crate::Endpoint::set_cork`].
    pub(crate) fn set_cork(&mut self, corked: bool) {
        self.corked = corked;
    }

    /// The system takes no datagrams of this length.
    pub(crate) fn too_long(&mut self, len: usize, now: Instant) {
        self.mtu.too_long(len, now);
    }

    /// Bytes that are kept to be sent.
    pub(crate) fn send_len(&self) -> usize {
        self.send.len()
    }

    /// See [`ConnStats`].
    pub(crate) fn stats(&self) -> ConnStats {
        ConnStats {
            rtt: self.ledbat.rtt(),
            queue: self.ledbat.queue(),
            window_bytes: self.window_bytes() as u64,
            lost_packets: self.lost_packets,
            delivery_rate_bytes: self.rate.bytes_per_second,
            datagram_len: self.mtu.current(),
            sent_bytes: self.send.sent_bytes(),
            received_bytes: self.recv.received_bytes(),
        }
    }

    fn header(&self, kind: Kind, seq: Seq, clock_us: u32) -> Header {
        let connection_id = if kind == Kind::Syn { self.recv_id } else { self.send_id };
        let window = u32::try_from(self.room()).unwrap_or(u32::MAX);
        Header {
            kind,
            connection_id,
            timestamp_us: clock_us,
            delay_us: self.their_delay,
            window,
            seq,
            ack: self.recv.ack(),
        }
    }
}
