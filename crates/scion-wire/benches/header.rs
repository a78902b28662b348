//! What a packet's headers cost, in nanoseconds per packet: `cargo bench -p anabranch-scion-wire`.
//!
//! Each row is the median of many short rounds, so that a neighbour on the machine does not count. Payloads are 1200
//! bytes, paths six hops on three segments; the buffers are as many as a batch has, so they are in the cache as they
//! are in the socket's loop.

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

use anabranch_scion_wire::mac::HopKey;
use anabranch_scion_wire::{
    Address, DataplanePath, HeaderFields, HeaderTemplate, HopField, InfoField, Packet, PacketMut, PathMut, PathRef,
    PathSegment, Ports, checksum, udp,
};

/// Bytes of payload in a packet.
const PAYLOAD_LEN: usize = 1200;
/// Packets in a batch.
const BATCH: usize = 16;
/// Batches in a round; a round takes well under a scheduler's slice.
const BATCHES: usize = 64;
/// Rounds whose median counts.
const ROUNDS: usize = 201;

fn main() {
    let path = path();
    let address = |isd_as: &str, host: &str| {
        Address::new(isd_as.parse().expect("an ISD-AS"), host.parse::<IpAddr>().expect("an address"))
    };
    let fields = HeaderFields {
        source: address("1-ff00:0:110", "10.0.0.1"),
        destination: address("2-ff00:0:220", "10.0.0.2"),
        path: PathRef::Standard(path.view()),
        flow_id: 1,
        traffic_class: 0,
    };
    let template = HeaderTemplate::new(&fields, Ports { source: 31000, destination: 31001 }).expect("a template");
    let header_len = template.header_len();
    let payload: Vec<u8> = (0..PAYLOAD_LEN).map(|i| (i * 7) as u8).collect();
    let mut packets = vec![vec![0; header_len + PAYLOAD_LEN]; BATCH];
    for packet in &mut packets {
        template.write(PAYLOAD_LEN, checksum::sum(&payload), packet).expect("it fits");
        packet[header_len..].copy_from_slice(&payload);
    }
    println!("header {header_len} bytes, payload {PAYLOAD_LEN} bytes, ns per packet (median of {ROUNDS})");

    let none = checksum::sum(&[]);
    row("send: header from the template", BATCH, || {
        for packet in &mut packets {
            black_box(template.write(PAYLOAD_LEN, black_box(none), packet)).expect("it fits");
        }
    });
    row("send: the same and the payload's checksum", BATCH, || {
        for packet in &mut packets {
            black_box(template.write(PAYLOAD_LEN, checksum::sum(black_box(&payload)), packet)).expect("it fits");
        }
    });
    row("send: the same and the payload's copy", BATCH, || {
        for packet in &mut packets {
            let sum = checksum::copy_sum(&mut packet[header_len..], black_box(&payload));
            black_box(template.write(PAYLOAD_LEN, sum, packet)).expect("it fits");
        }
    });
    row("floor: copying the payload", BATCH, || {
        for packet in &mut packets {
            black_box(&mut packet[header_len..]).copy_from_slice(black_box(&payload));
        }
    });
    row("receive: header checked, ports read", BATCH, || {
        for packet in &packets {
            let packet = Packet::parse(black_box(packet)).expect("a packet");
            let upper = packet.upper().expect("an upper layer");
            let datagram = udp::Datagram::parse_unverified(&upper).expect("a datagram");
            black_box((packet.header().source(), datagram.source_port(), datagram.payload()));
        }
    });
    row("receive: the same and the path's fingerprint", BATCH, || {
        for packet in &packets {
            let packet = Packet::parse(black_box(packet)).expect("a packet");
            let upper = packet.upper().expect("an upper layer");
            let datagram = udp::Datagram::parse_unverified(&upper).expect("a datagram");
            let fingerprint = packet.header().path().fingerprint();
            black_box((packet.header().source(), fingerprint, datagram.source_port(), datagram.payload()));
        }
    });
    row("receive: the same and the checksum verified", BATCH, || {
        for packet in &packets {
            let packet = Packet::parse(black_box(packet)).expect("a packet");
            let datagram = udp::Datagram::parse(&packet).expect("a datagram");
            let fingerprint = packet.header().path().fingerprint();
            black_box((packet.header().source(), fingerprint, datagram.source_port(), datagram.payload()));
        }
    });

    let key = HopKey::derive(b"a master key");
    let hop = path.view().hop(1).expect("a hop");
    row("router: MAC of a hop", BATCH, || {
        for seg_id in 0..BATCH as u16 {
            black_box(key.verify(black_box(seg_id), 1000, black_box(&hop)));
        }
    });
    row("router: packet checked, MAC compared, SegID and pointers updated", BATCH, || {
        for packet in &mut packets {
            let mut packet = PacketMut::parse(black_box(packet)).expect("a packet");
            let PathMut::Standard(mut path) = packet.path_mut() else { continue };
            let (info, hop) = (path.view().current_info(), path.view().current_hop());
            black_box(key.verify(info.seg_id, info.timestamp_s, &hop));
            path.chain_seg_id();
            if path.advance().is_err() {
                path.reverse();
            }
        }
    });
}

/// Runs `batch` of `count` packets and prints what one of them takes.
fn row(name: &str, count: usize, mut batch: impl FnMut()) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..BATCHES).for_each(|_| batch());
            start.elapsed().as_nanos() as f64 / (BATCHES * count) as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{:8.1}  {name}", rounds[ROUNDS / 2]);
}

/// Six hops: up, core, down.
fn path() -> DataplanePath {
    let hop = |cons_ingress, cons_egress| HopField {
        mac: [1, 2, 3, 4, 5, 6],
        ..HopField::unsealed(63, cons_ingress, cons_egress)
    };
    let info = |cons_dir| InfoField { peering: false, cons_dir, seg_id: 1, timestamp_s: 1000 };
    DataplanePath::build(&[
        PathSegment { info: info(false), hops: &[hop(1, 0), hop(0, 2)] },
        PathSegment { info: info(false), hops: &[hop(3, 0), hop(0, 4)] },
        PathSegment { info: info(true), hops: &[hop(0, 5), hop(6, 0)] },
    ])
    .expect("a path")
}
