//! Any datagrams as uTP: nothing that is read is read beyond its end, what is written is read the same, answers to strangers are no
//! longer than what they answer, and of a connection between two of ours, whatever is added to it, nothing is left in the end.
//!
//! Input: a byte of options, then datagrams, each behind a byte of what to do and two of its length.
#![no_main]

use std::time::{Duration, Instant};

use anabranch_utp::packet::{Packet, is_utp};
use anabranch_utp::{ConnId, Endpoint, Event, Route};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((options, mut steps)) = data.split_first() else { return };
    if let Ok(packet) = Packet::parse(steps) {
        assert!(is_utp(steps));
        if packet.sack.len() % 4 == 0 && packet.sack.len() <= 252 {
            let mut written = Vec::new();
            packet.header.write(packet.sack, 0, &mut written);
            written.extend_from_slice(packet.payload);
            assert_eq!(Packet::parse(&written), Ok(packet));
        }
    }
    let mut pair = Pair::new(u64::from(*options));
    while let Some(([what, high, low], rest)) = steps.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (datagram, rest) = rest.split_at(len);
        steps = rest;
        pair.step(*what, datagram);
    }
    pair.settle();
});

/// Two ends of one connection.
struct Pair {
    now: Instant,
    ends: [Endpoint; 2],
    conns: [Option<ConnId>; 2],
    out: Vec<u8>,
}

fn route_to(end: usize) -> Route {
    Route::new(([192, 0, 2, 1 + end as u8], 6881).into())
}

impl Pair {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let mut ends = [Endpoint::new(now, seed, true), Endpoint::new(now, seed + 1, true)];
        let conn = ends[0].connect(now, route_to(1), 1472).ok();
        Self { now, ends, conns: [conn, None], out: Vec::new() }
    }

    fn step(&mut self, what: u8, datagram: &[u8]) {
        let to = usize::from(what & 1);
        match what >> 1 & 7 {
            // From whom the connection is with, or a stranger.
            0 | 1 => {
                self.ends[to].datagram(self.now, route_to(1 - to), datagram);
            }
            2 => {
                let stranger = Route::new(([198, 51, 100, what], 6881).into());
                self.ends[to].datagram(self.now, stranger, datagram);
            }
            3 => {
                if let Some(conn) = self.conns[0] {
                    // What there is no room for is left.
                    let _ = self.ends[0].write(conn, datagram);
                }
            }
            4 => self.pass(what & 0x80 != 0),
            5 => {
                self.now += Duration::from_millis(u64::from(what) * 8);
                self.ends.iter_mut().for_each(|end| end.on_time(self.now));
            }
            _ => self.read(),
        }
        for end in &self.ends {
            assert!(end.len() <= 64, "no more than were proven");
        }
    }

    /// Lets what is to leave leave, and arrive unless it is lost.
    fn pass(&mut self, lose: bool) {
        for from in 0..2 {
            while let Some(burst) = self.ends[from].transmit(self.now, 8, &mut self.out) {
                let bytes = std::mem::take(&mut self.out);
                assert!(bytes.len() <= 65_507 && burst.segment_len > 0);
                for datagram in bytes.chunks(burst.segment_len) {
                    assert!(is_utp(datagram));
                    if !lose && burst.route == route_to(1 - from) {
                        self.ends[1 - from].datagram(self.now, route_to(from), datagram);
                    }
                }
            }
        }
        while let Some(event) = self.ends[1].poll_event() {
            if let Event::Incoming(conn) = event {
                self.conns[1].get_or_insert(conn);
            }
        }
        while self.ends[0].poll_event().is_some() {}
    }

    fn read(&mut self) {
        let Some(conn) = self.conns[1] else { return };
        while let Ok(Some(bytes @ [_, ..])) = self.ends[1].read(conn) {
            let len = bytes.len();
            self.ends[1].consume(conn, len);
        }
    }

    /// Both leave, and nothing is left.
    fn settle(&mut self) {
        for end in 0..2 {
            if let Some(conn) = self.conns[end] {
                self.ends[end].close(self.now, conn);
            }
        }
        for _ in 0..400 {
            self.pass(false);
            self.now += Duration::from_millis(500);
            self.ends.iter_mut().for_each(|end| end.on_time(self.now));
        }
        assert!(self.conns[0].is_none_or(|conn| self.ends[0].stats(conn).is_none()));
    }
}
