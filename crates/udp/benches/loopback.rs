//! What a datagram costs over loopback, one at a time, in batches, in bursts: `cargo bench -p anabranch-udp`.
//!
//! One thread sends a group and receives it, so the figures are the whole way in and out on one core.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anabranch_udp::{Message, Options, RecvBatch, Socket};

const RUN: Duration = Duration::from_millis(800);
/// Datagrams in a group: they fit the receive buffer.
const GROUP: usize = 32;

fn main() {
    println!("{:<10} {:<28} {:>12} {:>10} {:>9}", "payload", "way", "packets/s", "ns/packet", "Gbit/s");
    for len in [200, 1200, 1400] {
        let payload = vec![7; len * GROUP];
        report(len, "std, one at a time", one_at_a_time(&payload[..len]));
        report(len, "sendmmsg, recvmmsg", batched(&payload, len, false));
        report(len, "bursts (GSO, GRO)", batched(&payload, len, true));
    }
}

fn report(len: usize, way: &str, (packets, seconds): (u64, f64)) {
    let rate = packets as f64 / seconds;
    println!("{len:<10} {way:<28} {rate:>12.0} {:>10.0} {:>9.1}", 1e9 / rate, rate * len as f64 * 8.0 / 1e9);
}

fn one_at_a_time(payload: &[u8]) -> (u64, f64) {
    let bind = || UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let (a, b) = (bind(), bind());
    let (to, mut buffer) = (b.local_addr().expect("bound"), [0; 2048]);
    count(|| {
        for _ in 0..GROUP {
            a.send_to(payload, to).expect("loopback takes it");
        }
        for _ in 0..GROUP {
            b.recv_from(&mut buffer).expect("it was sent");
        }
        GROUP
    })
}

fn batched(payload: &[u8], len: usize, burst: bool) -> (u64, f64) {
    let bind = || Socket::bind("127.0.0.1:0".parse().expect("address"), &Options::default()).expect("loopback");
    let (a, b) = (bind(), bind());
    let mut batch = RecvBatch::new(GROUP);
    let whole = [IoSlice::new(payload)];
    let singles: Vec<_> = payload.chunks(len).map(|payload| [IoSlice::new(payload)]).collect();
    let messages: Vec<_> = match burst {
        true => vec![Message::burst(b.local_addr(), &whole, len)],
        false => singles.iter().map(|parts| Message::new(b.local_addr(), parts)).collect(),
    };
    count(|| {
        a.send(&messages).expect("loopback takes it");
        let mut got = 0;
        while got < GROUP {
            b.recv(&mut batch).expect("it was sent");
            got += batch.iter().map(|received| received.segments().len()).sum::<usize>();
        }
        got
    })
}

fn count(mut group: impl FnMut() -> usize) -> (u64, f64) {
    let (start, mut packets) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        packets += group() as u64;
    }
    (packets, start.elapsed().as_secs_f64())
}
