//! All connections of one socket: whose a datagram is, who may call, and what strangers are told.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use fastrand::Rng;
use siphasher::sip::SipHasher24;

use crate::conn::{Conn, State};
use crate::packet::{HEADER_LEN, Header, Kind, Packet, is_utp};
use crate::seq::Seq;
use crate::{Budget, CallError, ConnError, ConnId, ConnStats, Event, RECV_LIMIT_FIRST, Route, Transmit};

/// Connections: more than a session has by default, so that its own rules decide.
pub const CONNS_MAX: usize = 4096;
/// Connections that callers from one address may have, or from one /64 of IPv6, whose owner has all of it: nobody takes the places of all
/// others. The loopback has no others.
pub const CALLERS_OF_HOST_MAX: usize = 64;
/// Connections of which nobody has taken note yet.
pub const INCOMING_MAX: usize = 256;
/// Answers to strangers that wait to be sent; what calls beyond that calls again.
pub const CALLS_MAX: usize = 1024;
/// Resets a second: what is sent to a connection that is gone comes again.
pub const RESETS_PER_SECOND_MAX: u32 = 256;
/// A call may be proven by the first packet behind it, or, where that is late, by one of the next.
const FIRST_PACKETS: u16 = 3;
/// Numbers that are tried until one is free for a call.
const ID_TRIES_MAX: usize = 64;
/// Bytes of a datagram that every first link takes: where nobody says what ours takes.
const MTU_LIMIT_UNKNOWN: usize = 1500 - 48;

/// The connections of one socket.
#[derive(Debug)]
pub struct Endpoint {
    rng: Rng,
    /// What callers are given to prove that they hear us.
    secret: (u64, u64),
    /// When the clock on the wire began.
    epoch: Instant,
    accepts: bool,
    conns: HashMap<ConnId, Conn>,
    /// By who is at the other end, and the number that it knows us by.
    by_key: HashMap<(SocketAddr, u16), ConnId>,
    /// Connections of those who called, by host.
    callers_of_host: HashMap<IpAddr, usize>,
    next_id: u64,
    /// Those that may have something to send.
    due: VecDeque<ConnId>,
    timers: BTreeSet<(Instant, ConnId)>,
    answers: VecDeque<(Route, [u8; HEADER_LEN])>,
    events: VecDeque<Event>,
    incoming: usize,
    resets: Resets,
    budget: Budget,
}

/// Whoever is at `remote`, as far as addresses tell hosts apart.
fn host_of(remote: SocketAddr) -> IpAddr {
    match remote.ip().to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

#[derive(Debug)]
struct Resets {
    since: Instant,
    count: u32,
}

impl Endpoint {
    /// No connections yet; who calls is let in where it `accepts`. `seed` decides every number, and has to be a secret.
    pub fn new(now: Instant, seed: u64, accepts: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        Self {
            secret: (rng.u64(..), rng.u64(..)),
            rng,
            epoch: now,
            accepts,
            conns: HashMap::new(),
            by_key: HashMap::new(),
            callers_of_host: HashMap::new(),
            next_id: 0,
            due: VecDeque::new(),
            timers: BTreeSet::new(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            incoming: 0,
            resets: Resets { since: now, count: 0 },
            budget: Budget::default(),
        }
    }

    /// Connections, those among them that are about to end.
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Calls who is at the end of `route`, whose first link takes datagrams of `mtu_limit` bytes.
    ///
    /// # Errors
    /// Where there are [`CONNS_MAX`].
    pub fn connect(&mut self, now: Instant, route: Route, mtu_limit: usize) -> Result<ConnId, CallError> {
        let id = (0..ID_TRIES_MAX).map(|_| self.rng.u16(..)).find(|id| {
            // Both numbers have to be free: resets may bear either.
            let taken = |id: u16| self.by_key.contains_key(&(route.remote, id));
            !taken(*id) && !taken(id.wrapping_add(1))
        });
        let id = id.filter(|_| self.conns.len() < CONNS_MAX).ok_or(CallError::TooMany)?;
        let seq = Seq(self.rng.u16(..));
        Ok(self.insert(Conn::call(now, route, id, seq, mtu_limit)))
    }

    /// A datagram came over `route`. `false` where it is none of uTP.
    pub fn datagram(&mut self, now: Instant, route: Route, datagram: &[u8]) -> bool {
        if !is_utp(datagram) {
            return false;
        }
        // What is cut short is nothing, and nobody is told.
        let Ok(packet) = Packet::parse(datagram) else { return true };
        match packet.header.kind {
            Kind::Syn => self.called(now, route, &packet.header),
            Kind::Reset => self.reset(route, &packet.header),
            Kind::Data | Kind::Fin | Kind::State => self.packet(now, route, &packet),
        }
        true
    }

    fn packet(&mut self, now: Instant, route: Route, packet: &Packet<'_>) {
        let header = &packet.header;
        let known = self.by_key.get(&(route.remote, header.connection_id)).copied();
        let Some(id) = known.or_else(|| self.prove(now, route, header)) else {
            return self.refuse(now, route, header);
        };
        let clock_us = self.clock_us(now);
        self.with(id, |conn, _| conn.received(now, clock_us, packet));
    }

    /// Somebody calls: it is told a number that it can only know from us.
    fn called(&mut self, now: Instant, route: Route, syn: &Header) {
        let has_room = self.conns.len() < CONNS_MAX && self.incoming < INCOMING_MAX;
        let is_there = self.by_key.contains_key(&(route.remote, syn.connection_id.wrapping_add(1)));
        if !self.accepts || !(has_room || is_there) {
            return self.refuse(now, route, syn);
        }
        let clock_us = self.clock_us(now);
        self.answer(
            route,
            &Header {
                kind: Kind::State,
                connection_id: syn.connection_id,
                timestamp_us: clock_us,
                delay_us: clock_us.wrapping_sub(syn.timestamp_us),
                window: RECV_LIMIT_FIRST as u32,
                seq: self.first_seq(route.remote, syn.connection_id, syn.seq),
                ack: syn.seq,
            },
        );
    }

    /// The number of our first packet to who calls from `remote`.
    fn first_seq(&self, remote: SocketAddr, syn_id: u16, syn_seq: Seq) -> Seq {
        let mut hasher = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        match remote.ip() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        for number in [remote.port(), syn_id, syn_seq.0] {
            hasher.write(&number.to_be_bytes());
        }
        Seq(hasher.finish() as u16)
    }

    /// A packet of no connection: its sender may have called, and prove now that it heard the answer.
    fn prove(&mut self, now: Instant, route: Route, header: &Header) -> Option<ConnId> {
        if !self.accepts || self.conns.len() >= CONNS_MAX || self.incoming >= INCOMING_MAX {
            return None;
        }
        let host = host_of(route.remote);
        if !host.is_loopback() && self.callers_of_host.get(&host).is_some_and(|count| *count >= CALLERS_OF_HOST_MAX) {
            return None;
        }
        let syn_id = header.connection_id.wrapping_sub(1);
        let proven = (1..=FIRST_PACKETS).find_map(|later| {
            let syn_seq = header.seq.minus(later);
            let first = self.first_seq(route.remote, syn_id, syn_seq);
            (header.ack == first.minus(1)).then_some((first, syn_seq.plus(1)))
        });
        let (first, next) = proven?;
        let conn = Conn::accept(now, route, header.connection_id, first, next, MTU_LIMIT_UNKNOWN);
        let id = self.insert(conn);
        self.incoming += 1;
        self.events.push_back(Event::Incoming(id));
        Some(id)
    }

    /// Says that there is no such connection.
    fn refuse(&mut self, now: Instant, route: Route, header: &Header) {
        if now.saturating_duration_since(self.resets.since) >= Duration::from_secs(1) {
            self.resets = Resets { since: now, count: 0 };
        }
        if self.resets.count >= RESETS_PER_SECOND_MAX {
            return;
        }
        self.resets.count += 1;
        let clock_us = self.clock_us(now);
        self.answer(
            route,
            &Header {
                kind: Kind::Reset,
                connection_id: header.connection_id,
                timestamp_us: clock_us,
                delay_us: 0,
                window: 0,
                seq: Seq(0),
                // Who is told heeds it only where it answers something that it sent.
                ack: header.seq,
            },
        );
    }

    fn answer(&mut self, route: Route, header: &Header) {
        if self.answers.len() < CALLS_MAX {
            let mut bytes = Vec::with_capacity(HEADER_LEN);
            header.write(&[], 0, &mut bytes);
            if let Some(bytes) = bytes.first_chunk() {
                self.answers.push_back((route, *bytes));
            }
        }
    }

    fn reset(&mut self, route: Route, header: &Header) {
        // It bears the number that either side knows the connection by: the two are neighbours (libutp, "send_rst").
        let id = header.connection_id;
        for recv_id in [id, id.wrapping_add(1), id.wrapping_sub(1)] {
            let Some(conn_id) = self.by_key.get(&(route.remote, recv_id)).copied() else { continue };
            let is_its = self.conns.get(&conn_id).is_some_and(|conn| conn.has_id(id) && conn.is_its_reset(header.ack));
            if is_its {
                return self.with(conn_id, |conn, _| conn.was_reset());
            }
        }
    }

    /// What happened since.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if let Some(Event::Incoming(_)) = event {
            self.incoming -= 1;
        }
        event
    }

    /// When to call [`Endpoint::on_time`].
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Time has passed.
    pub fn on_time(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            self.with(id, |conn, _| {
                conn.timer = None;
                conn.on_time(now);
            });
        }
    }

    /// Appends datagrams to `out`, which is to be empty, as many as one message may have and `segments_max` at most.
    pub fn transmit(&mut self, now: Instant, segments_max: usize, out: &mut Vec<u8>) -> Option<Transmit> {
        if let Some((route, answer)) = self.answers.pop_front() {
            out.extend_from_slice(&answer);
            return Some(Transmit { route, segment_len: HEADER_LEN, may_fragment: false, conn: None });
        }
        let clock_us = self.clock_us(now);
        while let Some(id) = self.due.pop_front() {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let route = conn.route;
            if let Some(burst) = conn.transmit(now, clock_us, segments_max, out) {
                // There may be more; others first.
                self.due.push_back(id);
                let (segment_len, may_fragment) = (burst.segment_len, burst.may_fragment);
                return Some(Transmit { route, segment_len, may_fragment, conn: Some(id) });
            }
            conn.is_due = false;
            if conn.is_done() {
                self.remove(id);
            } else {
                self.set_timer(id);
            }
        }
        None
    }

    /// The system took no datagram of `len` bytes from a [`Transmit`] of this connection: it is too long for the first link.
    pub fn too_long(&mut self, now: Instant, conn: ConnId, len: usize) {
        self.with(conn, |conn, _| conn.too_long(len, now));
    }

    /// What the first link of a connection takes, in bytes of UDP payload.
    pub fn set_mtu_limit(&mut self, conn: ConnId, limit: usize) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.set_mtu_limit(limit);
        }
    }

    /// The way of a connection.
    pub fn route(&self, conn: ConnId) -> Option<Route> {
        self.conns.get(&conn).map(|conn| conn.route)
    }

    /// Bytes that can be read, as many as lie in a row: none where there are none yet, `None` at the end.
    ///
    /// # Errors
    /// When the connection is over, and everything was read.
    pub fn read(&self, conn: ConnId) -> Result<Option<&[u8]>, ConnError> {
        let (front, is_end) = self.conns.get(&conn).ok_or(ConnError::Closed)?.front()?;
        Ok((!is_end).then_some(front))
    }

    /// So many bytes of them were read.
    pub fn consume(&mut self, conn: ConnId, len: usize) {
        self.with(conn, |conn, budget| conn.consume(len, budget));
    }

    /// Takes bytes to be sent, as many as there is room for: at none, [`Event::Writable`] says when there is some.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn write(&mut self, conn: ConnId, bytes: &[u8]) -> Result<usize, ConnError> {
        let len = self.write_room(conn)?.min(bytes.len());
        if len > 0 {
            self.with(conn, |conn, _| conn.write(&bytes[..len]));
        }
        Ok(len)
    }

    /// Bytes that [`Endpoint::write`] would take. Where that is none, [`Event::Writable`] comes.
    ///
    /// # Errors
    /// When the connection is over.
    pub fn write_room(&mut self, conn: ConnId) -> Result<usize, ConnError> {
        self.conns.get_mut(&conn).ok_or(ConnError::Closed)?.send_room(&self.budget)
    }

    /// Has `fill` write up to `len` bytes to be sent; it answers how many it did.
    ///
    /// # Errors
    /// When the connection is over, and what `fill` says.
    pub fn write_with<E: From<ConnError>>(
        &mut self,
        conn: ConnId,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let room = self.write_room(conn)?.min(len);
        let Some(state) = self.conns.get_mut(&conn).filter(|_| room > 0) else { return Ok(0) };
        let tail = state.tail();
        let room = room.min(tail.len());
        let written = fill(&mut tail[..room])?.min(room);
        self.with(conn, |conn, _| conn.wrote(written));
        Ok(written)
    }

    /// What is written from now on leaves in other packets than what was before.
    pub fn end_packet(&mut self, conn: ConnId) {
        self.with(conn, |conn, _| conn.end_packet());
    }

    /// Holds back a last packet that is not full until more comes, or until uncorked.
    pub fn set_cork(&mut self, conn: ConnId, corked: bool) {
        self.with(conn, |conn, _| conn.set_cork(corked));
    }

    /// The owner is gone. What it wrote is still sent, for some seconds at most.
    pub fn close(&mut self, now: Instant, conn: ConnId) {
        self.with(conn, |conn, _| conn.close(now));
        // Who was not told of it need not be.
        let before = self.events.len();
        self.events.retain(|event| *event != Event::Incoming(conn));
        self.incoming -= before - self.events.len();
    }

    /// What is known of a connection's path.
    pub fn stats(&self, conn: ConnId) -> Option<ConnStats> {
        self.conns.get(&conn).map(Conn::stats)
    }

    /// The clock on the wire.
    fn clock_us(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.epoch).as_micros() as u32
    }

    fn insert(&mut self, mut conn: Conn) -> ConnId {
        let id = ConnId(self.next_id);
        self.next_id += 1;
        if !self.budget.grants(conn.recv_limit) {
            conn.be_small();
        }
        self.budget.recv_granted += conn.recv_limit as u64;
        self.by_key.insert((conn.route.remote, conn.recv_id), id);
        if conn.was_called() {
            *self.callers_of_host.entry(host_of(conn.route.remote)).or_default() += 1;
        }
        self.conns.insert(id, conn);
        self.with(id, |_, _| {});
        id
    }

    fn remove(&mut self, id: ConnId) {
        let Some(conn) = self.conns.remove(&id) else { return };
        self.by_key.remove(&(conn.route.remote, conn.recv_id));
        if conn.was_called()
            && let Entry::Occupied(mut count) = self.callers_of_host.entry(host_of(conn.route.remote))
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.budget.recv_granted -= conn.recv_limit as u64;
        self.budget.send_held -= conn.send_counted;
        if let Some(at) = conn.timer {
            self.timers.remove(&(at, id));
        }
    }

    /// Does something with a connection, and what follows from it.
    fn with(&mut self, id: ConnId, act: impl FnOnce(&mut Conn, &mut Budget)) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        act(conn, &mut self.budget);
        let held = conn.send_len() as u64;
        self.budget.send_held = self.budget.send_held + held - conn.send_counted;
        conn.send_counted = held;
        let news = std::mem::take(&mut conn.news);
        if news.opened {
            self.events.push_back(Event::Opened(id));
        }
        // A batch of packets is told of once.
        if news.readable && self.events.back() != Some(&Event::Readable(id)) {
            self.events.push_back(Event::Readable(id));
        }
        if news.writable {
            self.events.push_back(Event::Writable(id));
        }
        if conn.is_done() {
            return self.remove(id);
        }
        if !conn.is_due {
            conn.is_due = true;
            self.due.push_back(id);
        }
    }

    fn set_timer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(at) = conn.deadline() else { return };
        // One that is too early costs a look, and saves moving it with every packet.
        if conn.timer.is_some_and(|set| set <= at) {
            return;
        }
        if let Some(set) = conn.timer.replace(at) {
            self.timers.remove(&(set, id));
        }
        self.timers.insert((at, id));
    }

    /// Whether a connection has opened.
    pub fn is_open(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.state == State::Open)
    }
}
