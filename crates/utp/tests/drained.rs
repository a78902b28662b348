//! A receiver as libtorrent is one, in virtual time: it acknowledges once its socket is drained, says what room it has before its owner has
//! read what came, and never that there is more again. Its selective ACKs are too short at the end. Its socket holds little, and what comes
//! beyond that is lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anabranch_utp::packet::{Header, Kind, Packet};
use anabranch_utp::{ConnId, Endpoint, Event, Route, Seq};

/// Bytes that it has room for.
const ROOM: usize = 1 << 20;
/// Each way.
const DELAY: Duration = Duration::from_micros(50);
/// What it takes for a packet.
const WORK: Duration = Duration::from_micros(5);

struct Receiver {
    ack: Seq,
    ahead: BTreeMap<u16, usize>,
    unread: usize,
    received: usize,
    stalls: u32,
    /// Its owner does something else until then.
    reads_from: Instant,
    connection_id: u16,
    delay_us: u32,
}

impl Receiver {
    fn told_window(&self) -> usize {
        ROOM.saturating_sub(self.unread + self.ahead.values().sum::<usize>())
    }

    fn take(&mut self, packet: &Packet<'_>) {
        let at = packet.header.seq.0.wrapping_sub(self.ack.0);
        // How many it keeps ahead of one that is missing.
        if !(1..=ROOM / 1100).contains(&usize::from(at)) || packet.payload.len() > self.told_window() {
            return;
        }
        self.ahead.insert(packet.header.seq.0, packet.payload.len());
        while let Some(len) = self.ahead.remove(&self.ack.plus(1).0) {
            self.ack = self.ack.plus(1);
            self.unread += len;
            self.received += len;
        }
    }

    fn read(&mut self, now: Instant) {
        if now >= self.reads_from {
            self.unread = 0;
        }
    }

    /// The socket is drained: it acknowledges, and then its owner reads.
    fn drained(&mut self, now: Instant) -> Vec<u8> {
        let mut numbers: Vec<u16> = self.ahead.keys().map(|number| number.wrapping_sub(self.ack.0)).collect();
        numbers.sort_unstable();
        let bits = numbers.first().zip(numbers.last()).map_or(0, |(first, last)| last - first + 1);
        let mut sack = vec![0; usize::from(bits).div_ceil(8)];
        for bit in numbers.into_iter().map(|number| usize::from(number - 2)) {
            // As many as are missing in front are left out at the end.
            if let Some(byte) = sack.get_mut(bit / 8) {
                *byte |= 1 << (bit % 8);
            }
        }
        let window = self.told_window();
        self.stalls += u32::from(window < 1472);
        self.read(now);
        let header = Header {
            kind: Kind::State,
            connection_id: self.connection_id,
            timestamp_us: 0,
            delay_us: self.delay_us,
            window: window as u32,
            seq: Seq(1),
            ack: self.ack,
        };
        let mut bytes = Vec::new();
        header.write(&sack, 0, &mut bytes);
        bytes
    }
}

/// Sends `len` bytes to a receiver whose socket holds so many packets, and whose owner does something else for so long after every
/// thousandth; answers how long it took, and how often it said that it has no room.
fn send(len: usize, socket_packets: usize, does_else: Duration) -> (Duration, u32) {
    let start = Instant::now();
    let mut now = start;
    let route = Route::new("192.0.2.1:6881".parse().unwrap());
    let mut endpoint = Endpoint::new(now, 5, true);
    let conn = endpoint.connect(now, route, 1472).unwrap();
    let mut receiver = Receiver {
        ack: Seq(0),
        ahead: BTreeMap::new(),
        unread: 0,
        received: 0,
        stalls: 0,
        reads_from: now,
        connection_id: 0,
        delay_us: 0,
    };
    let (mut socket, mut acks) = (VecDeque::<(Instant, Vec<u8>)>::new(), VecDeque::<(Instant, Vec<u8>)>::new());
    let (mut left, mut free_at, mut out, mut taken) = (len, now, Vec::new(), 0u32);
    while receiver.received < len {
        write(&mut endpoint, conn, &mut left);
        while let Some(burst) = endpoint.transmit(now, 44, &mut out) {
            for datagram in out.chunks(burst.segment_len) {
                let waiting = socket.iter().filter(|(at, _)| *at <= now + DELAY).count();
                if waiting < socket_packets {
                    socket.push_back((now + DELAY, datagram.to_vec()));
                }
            }
            out.clear();
        }
        let next_work = socket.front().map(|(at, _)| free_at.max(*at));
        let next_ack = acks.front().map(|(at, _)| *at);
        now = [next_work, next_ack, endpoint.deadline()].into_iter().flatten().min().unwrap().max(now);
        if next_work.is_some_and(|at| at <= now) {
            let (_, datagram) = socket.pop_front().unwrap();
            let packet = Packet::parse(&datagram).unwrap();
            receiver.read(now);
            if packet.header.kind == Kind::Syn {
                (receiver.ack, receiver.connection_id) = (packet.header.seq, packet.header.connection_id);
            } else {
                receiver.take(&packet);
            }
            receiver.delay_us = ((now - start).as_micros() as u32).wrapping_sub(packet.header.timestamp_us);
            taken += 1;
            free_at = now + WORK;
            if taken.is_multiple_of(1000) {
                receiver.reads_from = now + does_else;
            }
            if socket.front().is_none_or(|(at, _)| *at > free_at) {
                acks.push_back((now + DELAY, receiver.drained(now)));
            }
        }
        while acks.front().is_some_and(|(at, _)| *at <= now) {
            let (_, ack) = acks.pop_front().unwrap();
            assert!(endpoint.datagram(now, route, &ack));
        }
        endpoint.on_time(now);
        assert!(now < start + Duration::from_secs(600), "{} bytes came", receiver.received);
    }
    (now - start, receiver.stalls)
}

fn write(endpoint: &mut Endpoint, conn: ConnId, left: &mut usize) {
    while let Some(event) = endpoint.poll_event() {
        assert!(matches!(event, Event::Opened(_) | Event::Writable(_)), "{event:?}");
    }
    let block = [7; 16 << 10];
    while endpoint.is_open(conn) && *left > 0 {
        match endpoint.write(conn, &block[..block.len().min(*left)]).unwrap() {
            0 => break,
            len => *left -= len,
        }
    }
}

/// Bytes a second, in millions, of the 290 that it could take.
fn rate(socket_packets: usize, does_else: Duration) -> f64 {
    let len = 32 << 20;
    let (took, stalls) = send(len, socket_packets, does_else);
    let rate = len as f64 / took.as_secs_f64() / 1e6;
    println!("a socket of {socket_packets} packets, does else {does_else:?}: {rate:.0} MB/s, no room {stalls} times");
    assert_eq!(stalls > 0, does_else > Duration::ZERO);
    rate
}

#[test]
fn selective_acks_that_leave_out_what_came_last_are_not_waited_for() {
    for socket_packets in [1000, 300, 90, 30] {
        let rate = rate(socket_packets, Duration::ZERO);
        assert!(rate > 50.0, "{socket_packets}: {rate}");
    }
}

#[test]
fn who_never_says_that_there_is_room_again_is_asked_soon() {
    let rate = rate(1000, Duration::from_millis(5));
    assert!(rate > 50.0, "{rate}");
}
