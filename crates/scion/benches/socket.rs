//! What SCION costs an end host: `cargo bench -p anabranch-scion --bench socket`.
//!
//! First the work for each packet without system calls, both ways, beside the copy of its payload alone, which is the floor;
//! then a pair of sockets on loopback beside plain UDP bursts of the same packet size.

use std::hint::black_box;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{ScionAddr, ScionPath};
use anabranch_scion::socket::{Core, Cursor, DEFAULT_PORTS, Inbox, Outbox, RecvMeta, Socket, Transmit};
use anabranch_scion_wire::{DataplanePath, HopField, InfoField, PacketMut, PathMut, PathSegment};
use anabranch_udp::{Message, Options, RecvBatch};

const RUN: Duration = Duration::from_millis(700);
/// Packets handed over at once.
const BURST: usize = 48;

fn main() {
    println!("{:<52} {:>10} {:>12} {:>8}", "work for one packet, no system calls", "ns/packet", "packets/s", "Gbit/s");
    for payload_len in [16, 1200] {
        let payload = vec![7; payload_len * BURST];
        let mut floor = vec![0; payload.len()];
        let copied = time(|| {
            for (to, from) in floor.chunks_mut(payload_len).zip(payload.chunks(payload_len)) {
                to.copy_from_slice(black_box(from));
            }
            black_box(&floor);
            BURST
        });
        report(payload_len, "floor: copy the payload", copied);
        for hops in [0, 4, 8] {
            header_work(payload_len, hops, &payload);
        }
    }
    println!();
    println!("{:<52} {:>10} {:>12} {:>8}", "one thread, loopback, out and in", "ns/packet", "packets/s", "Gbit/s");
    let payload = vec![7; 1200 * BURST];
    plain_udp(&payload);
    scion_udp(&payload);
}

fn report(payload_len: usize, what: &str, (packets, seconds): (u64, f64)) {
    let rate = packets as f64 / seconds;
    let bits = rate * payload_len as f64 * 8.0 / 1e9;
    println!("{:<52} {:>10.1} {rate:>12.0} {bits:>8.1}", format!("{payload_len} B, {what}"), 1e9 / rate);
}

fn header_work(payload_len: usize, hops: usize, payload: &[u8]) {
    let now = Instant::now();
    let (local, remote) = (
        scion("1-ff00:0:110", "10.0.0.1:31000"),
        match hops {
            0 => scion("1-ff00:0:110", "10.0.0.2:31000"),
            _ => scion("1-ff00:0:112", "10.0.0.2:31000"),
        },
    );
    let sender = Core::new(local, now);
    let route = sender.register(remote, &path(local, remote, hops), now).expect("a good path");
    let (mut outbox, transmit) =
        (Outbox::default(), [Transmit { segment_len: payload_len, ..Transmit::new(route, payload) }]);
    let out = time(|| {
        outbox.clear();
        sender.outbound(&mut outbox, &transmit, &mut Cursor::default(), 64).expect("it fits");
        BURST
    });
    report(payload_len, &format!("{hops} hop fields, out: headers, checksum, copy"), out);

    let packets: Vec<Vec<u8>> = outbox.packets().map(|(_, packet)| carried(packet.to_vec())).collect();
    let (receiver, mut inbox, mut to) = (Core::new(remote, now), Inbox::default(), vec![0; payload.len()]);
    let from: SocketAddr = "10.0.0.1:31000".parse().expect("an address");
    let into = time(|| {
        for (packet, to) in packets.iter().zip(to.chunks_mut(payload_len)) {
            let data = receiver.inbound(&mut inbox, packet, from, now).expect("a good packet");
            assert!(data.copy_to(to));
        }
        packets.len()
    });
    report(payload_len, &format!("{hops} hop fields, in: route, checksum, copy"), into);
}

fn plain_udp(payload: &[u8]) {
    let bind = || anabranch_udp::Socket::bind("127.0.0.1:0".parse().expect("address"), &Options::default());
    let (a, b) = (bind().expect("loopback"), bind().expect("loopback"));
    let (mut batch, parts) = (RecvBatch::new(16), [IoSlice::new(payload)]);
    let mut to = vec![0; payload.len()];
    let done = time(|| {
        a.send(&[Message::burst(b.local_addr(), &parts, 1200)]).expect("loopback takes it");
        let mut got = 0;
        while got < BURST {
            b.recv(&mut batch).expect("it was sent");
            for received in batch.iter() {
                to[..received.bytes.len()].copy_from_slice(received.bytes);
                got += received.segments().len();
            }
        }
        got
    });
    report(1200, "plain UDP bursts, copied to the reader", done);
}

fn scion_udp(payload: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let bind = || Socket::bind(scion("1-ff00:0:110", "127.0.0.1:0"), DEFAULT_PORTS).expect("loopback");
        let (a, b) = (bind(), bind());
        let route = a.register(b.local(), &path(a.local(), b.local(), 0)).expect("neighbours");
        let (mut sender, mut bufs) = (a.sender(), vec![vec![0; 1 << 16]; 8]);
        let (start, mut packets) = (Instant::now(), 0);
        while start.elapsed() < RUN {
            sender.send(&[Transmit { segment_len: 1200, ..Transmit::new(route, payload) }]).await.expect("it fits");
            let mut got = 0;
            while got < BURST {
                let mut metas = [RecvMeta::default(); 8];
                let filled = std::future::poll_fn(|cx| {
                    let mut slices: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
                    b.poll_recv(cx, &mut slices, &mut metas)
                });
                let filled = filled.await.expect("it was sent");
                got += metas[..filled].iter().map(|meta| meta.len / meta.segment_len).sum::<usize>();
            }
            packets += got as u64;
        }
        report(1200, "SCION sockets of one AS", (packets, start.elapsed().as_secs_f64()));
    });
}

fn time(mut group: impl FnMut() -> usize) -> (u64, f64) {
    group();
    let (start, mut packets) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        // The clock is asked once for many packets.
        for _ in 0..16 {
            packets += group() as u64;
        }
    }
    (packets, start.elapsed().as_secs_f64())
}

fn scion(isd_as: &str, host: &str) -> ScionAddr {
    ScionAddr::new(isd_as.parse().expect("an ISD-AS"), host.parse().expect("an address"))
}

/// Half of the hops up, half down.
fn path(source: ScionAddr, destination: ScionAddr, hops: usize) -> ScionPath {
    let hop = |id: usize| HopField { mac: [id as u8; 6], ..HopField::unsealed(63, 2 * id as u16, 2 * id as u16 + 1) };
    let fields: Vec<_> = (0..hops).map(hop).collect();
    let info = |cons_dir| InfoField { peering: false, cons_dir, seg_id: 7, timestamp_s: 1_700_000_000 };
    let (up, down) = fields.split_at(hops / 2);
    let segments = [PathSegment { info: info(false), hops: up }, PathSegment { info: info(true), hops: down }];
    let is_within = hops == 0;
    ScionPath {
        source: source.isd_as,
        destination: destination.isd_as,
        interfaces: vec![],
        mtu: 1472,
        expiry: SystemTime::UNIX_EPOCH,
        latency: vec![],
        bandwidth_kbps: vec![],
        link_kinds: vec![],
        remarks: Default::default(),
        next_hop: (!is_within).then(|| "10.0.0.101:30001".parse().expect("an address")),
        dataplane: match is_within {
            true => vec![],
            false => DataplanePath::build(&segments).expect("a good path").into_bytes(),
        },
    }
}

/// At its path's end, as it arrives.
fn carried(mut packet: Vec<u8>) -> Vec<u8> {
    if let PathMut::Standard(mut path) = PacketMut::parse(&mut packet).expect("a packet").path_mut() {
        while path.advance().is_ok() {}
    }
    packet
}
