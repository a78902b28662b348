//! Two endpoints and the network between them, in virtual time.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use anabranch_utp::{ConnError, ConnId, Endpoint, Event, Route};
use fastrand::Rng;

/// One direction of the network.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub delay: Duration,
    /// Bytes a second; 0: any number.
    pub rate: f64,
    /// Bytes that wait at the bottleneck.
    pub queue: f64,
    pub loss: f64,
    pub duplicates: f64,
    /// Packets that are late, and by how much at most.
    pub late: f64,
    pub late_by: Duration,
    /// Longer datagrams vanish, if they may not be cut apart.
    pub mtu: usize,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(20),
            rate: 0.0,
            queue: 1e9,
            loss: 0.0,
            duplicates: 0.0,
            late: 0.0,
            late_by: Duration::ZERO,
            mtu: 1472,
        }
    }
}

struct Packet {
    at: Instant,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Packet {}
impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Packet {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// One connection's end, as its owner sees it.
#[derive(Debug, Default)]
pub struct End {
    pub conn: Option<ConnId>,
    pub is_open: bool,
    pub to_send: Vec<u8>,
    pub sent: usize,
    pub closes: bool,
    pub closed: bool,
    pub received: Vec<u8>,
    pub ended: bool,
    pub error: Option<ConnError>,
    /// Reads at most so many bytes at a time.
    pub reads: usize,
}

/// A TCP flow with CUBIC (RFC 9438, without fast convergence) that shares the way to the second end; each packet is acknowledged.
#[derive(Debug)]
pub struct Cubic {
    window: f64,
    threshold: f64,
    window_max: f64,
    epoch: Instant,
    sent_at: std::collections::BTreeMap<u64, Instant>,
    next: u64,
    recovery_until: u64,
    heard_at: Instant,
    rtt: Duration,
    pub delivered: u64,
}

/// Bytes of its packets.
const CUBIC_LEN: usize = 1472;
/// Where its packets, and its acknowledgements, arrive.
const CUBIC_SINK: usize = 2;
const CUBIC_SOURCE: usize = 3;

impl Cubic {
    pub fn new(now: Instant) -> Self {
        Self {
            window: 10.0,
            threshold: f64::MAX,
            window_max: 0.0,
            epoch: now,
            sent_at: std::collections::BTreeMap::new(),
            next: 0,
            recovery_until: 0,
            heard_at: now,
            rtt: Duration::from_millis(100),
            delivered: 0,
        }
    }

    fn acked(&mut self, number: u64, now: Instant) {
        let Some(sent_at) = self.sent_at.remove(&number) else { return };
        self.heard_at = now;
        self.rtt = (self.rtt * 7 + (now - sent_at)) / 8;
        self.delivered += CUBIC_LEN as u64;
        let later = self.sent_at.split_off(&number.saturating_sub(3));
        let lost = std::mem::replace(&mut self.sent_at, later);
        if lost.keys().any(|lost| *lost >= self.recovery_until) {
            (self.window_max, self.epoch, self.recovery_until) = (self.window, now, self.next);
            self.window = (self.window * 0.7).max(2.0);
            self.threshold = self.window;
        } else if self.window < self.threshold {
            self.window += 1.0;
        } else {
            let rtt = self.rtt.as_secs_f64();
            let since = (now - self.epoch).as_secs_f64();
            let k = (self.window_max * 0.3 / 0.4).cbrt();
            let cubic = 0.4 * (since + rtt - k).powi(3) + self.window_max;
            let reno = self.window_max * 0.7 + 0.53 * since / rtt;
            let goal = cubic.max(reno).clamp(self.window, self.window * 1.5);
            self.window += (goal - self.window) / self.window;
        }
    }
}

pub struct Net {
    pub cubic: Option<Cubic>,
    pub now: Instant,
    pub start: Instant,
    pub ends: [Endpoint; 2],
    pub owners: [End; 2],
    pub ways: [Link; 2],
    /// When the bottleneck of each way is free again.
    free_at: [Instant; 2],
    flying: BinaryHeap<Reverse<Packet>>,
    rng: Rng,
    number: u64,
    pub datagrams: u64,
    pub wire_bytes: u64,
    /// Longest queue seen since it was last cleared.
    pub queue_max: Duration,
    /// Bytes of others that take the bottleneck, by time.
    pub longest: usize,
}

/// Where each end is, as the other sees it.
pub fn route_to(end: usize) -> Route {
    let address = ["192.0.2.1:6881", "[2001:db8::2]:6882"][end];
    Route::new(address.parse().unwrap())
}

impl Net {
    pub fn new(seed: u64, ways: [Link; 2]) -> Self {
        let start = Instant::now();
        let ends = [Endpoint::new(start, seed, true), Endpoint::new(start, seed ^ 0xffff, true)];
        let owner = || End { reads: usize::MAX, ..End::default() };
        Self {
            cubic: None,
            now: start,
            start,
            ends,
            owners: [owner(), owner()],
            ways,
            free_at: [start; 2],
            flying: BinaryHeap::new(),
            rng: Rng::with_seed(seed),
            number: 0,
            datagrams: 0,
            wire_bytes: 0,
            queue_max: Duration::ZERO,
            longest: 0,
        }
    }

    pub fn connect(&mut self) {
        let conn = self.ends[0].connect(self.now, route_to(1), 1472).unwrap();
        self.owners[0].conn = Some(conn);
    }

    /// Puts a datagram on the way to `to`.
    pub fn put(&mut self, to: usize, bytes: Vec<u8>, may_fragment: bool) {
        let at_bottleneck = if to == CUBIC_SINK { 1 } else { to };
        let way = self.ways[at_bottleneck];
        self.datagrams += 1;
        self.wire_bytes += bytes.len() as u64;
        self.longest = self.longest.max(bytes.len());
        if bytes.len() > way.mtu && !may_fragment || self.rng.f64() < way.loss {
            return;
        }
        let copies = if self.rng.f64() < way.duplicates { 2 } else { 1 };
        for _ in 0..copies {
            let mut at = self.now;
            if way.rate > 0.0 {
                let free_at = &mut self.free_at[at_bottleneck];
                let queued = free_at.saturating_duration_since(self.now);
                if queued.as_secs_f64() * way.rate > way.queue {
                    return;
                }
                self.queue_max = self.queue_max.max(queued);
                *free_at = (*free_at).max(self.now) + Duration::from_secs_f64((bytes.len() + 28) as f64 / way.rate);
                at = *free_at;
            }
            at += way.delay;
            if self.rng.f64() < way.late {
                at += way.late_by.mul_f64(self.rng.f64());
            }
            self.number += 1;
            self.flying.push(Reverse(Packet { at, number: self.number, to, bytes: bytes.clone() }));
        }
    }

    fn flush(&mut self, end: usize) {
        let mut out = Vec::new();
        while let Some(burst) = self.ends[end].transmit(self.now, 16, &mut out) {
            assert_eq!(burst.route, route_to(1 - end));
            for datagram in out.chunks(burst.segment_len) {
                self.put(1 - end, datagram.to_vec(), burst.may_fragment);
            }
            out.clear();
        }
    }

    /// Lets the TCP flow send what its window allows.
    fn drive_cubic(&mut self) {
        let Some(mut cubic) = self.cubic.take() else { return };
        if self.now > cubic.heard_at + Duration::from_secs(1) {
            // Everything was lost.
            (cubic.window, cubic.heard_at) = (2.0, self.now);
            cubic.sent_at.clear();
        }
        while (cubic.sent_at.len() as f64) < cubic.window {
            cubic.sent_at.insert(cubic.next, self.now);
            let mut bytes = vec![0; CUBIC_LEN];
            bytes[..8].copy_from_slice(&cubic.next.to_be_bytes());
            cubic.next += 1;
            self.put(CUBIC_SINK, bytes, false);
        }
        self.cubic = Some(cubic);
    }

    /// A packet of the TCP flow, or its acknowledgement, arrives.
    fn arrived_cubic(&mut self, packet: Packet) {
        let Some(cubic) = &mut self.cubic else { return };
        if packet.to == CUBIC_SOURCE {
            let number = u64::from_be_bytes(*packet.bytes.first_chunk().unwrap());
            return cubic.acked(number, self.now);
        }
        self.number += 1;
        let at = self.now + self.ways[0].delay;
        self.flying.push(Reverse(Packet { at, number: self.number, to: CUBIC_SOURCE, bytes: packet.bytes }));
    }

    fn serve(&mut self, end: usize) {
        while let Some(event) = self.ends[end].poll_event() {
            match event {
                Event::Incoming(conn) => {
                    assert!(self.owners[end].conn.replace(conn).is_none(), "a second connection");
                    self.owners[end].is_open = true;
                }
                Event::Opened(_) => self.owners[end].is_open = true,
                Event::Readable(_) | Event::Writable(_) => {}
            }
        }
        let (endpoint, owner) = (&mut self.ends[end], &mut self.owners[end]);
        let Some(conn) = owner.conn.filter(|_| !owner.closed) else { return };
        let mut left = owner.reads;
        while left > 0 && !owner.ended && owner.error.is_none() {
            match endpoint.read(conn) {
                Ok(None) => owner.ended = true,
                Ok(Some([])) => break,
                Ok(Some(bytes)) => {
                    let len = bytes.len().min(left);
                    owner.received.extend_from_slice(&bytes[..len]);
                    endpoint.consume(conn, len);
                    left -= len;
                }
                Err(error) => owner.error = Some(error),
            }
        }
        while owner.is_open && owner.sent < owner.to_send.len() {
            let end = owner.to_send.len().min(owner.sent + 16_384);
            match endpoint.write(conn, &owner.to_send[owner.sent..end]) {
                Ok(0) => break,
                Ok(len) => owner.sent += len,
                Err(error) => {
                    owner.error.get_or_insert(error);
                    break;
                }
            }
        }
        let all_sent = owner.sent == owner.to_send.len();
        if owner.closes && owner.is_open && all_sent && !owner.closed {
            owner.closed = true;
            endpoint.close(self.now, conn);
        }
    }

    /// Lets time pass until `done`, for `longest` at most; answers whether it is done.
    pub fn run(&mut self, longest: Duration, mut done: impl FnMut(&Net) -> bool) -> bool {
        let until = self.now + longest;
        loop {
            for end in 0..2 {
                self.serve(end);
                self.flush(end);
                self.serve(end);
            }
            self.drive_cubic();
            if done(self) {
                return true;
            }
            let packet = self.flying.peek().map(|packet| packet.0.at);
            let next = [packet, self.ends[0].deadline(), self.ends[1].deadline()].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= until) else {
                self.now = until;
                return done(self);
            };
            self.now = self.now.max(next);
            while self.flying.peek().is_some_and(|packet| packet.0.at <= self.now) {
                let Some(Reverse(packet)) = self.flying.pop() else { break };
                if packet.to >= CUBIC_SINK {
                    self.arrived_cubic(packet);
                    continue;
                }
                assert!(self.ends[packet.to].datagram(self.now, route_to(1 - packet.to), &packet.bytes));
            }
            self.ends.iter_mut().for_each(|end| end.on_time(self.now));
        }
    }

    /// A packet with bytes that is on its way to the second end.
    pub fn peek_data(&self) -> Vec<u8> {
        let mut to_second = self.flying.iter().filter(|packet| packet.0.to == 1 && packet.0.bytes[0] == 0x01);
        to_second.next().map(|packet| packet.0.bytes.clone()).unwrap()
    }

    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }
}

pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}
