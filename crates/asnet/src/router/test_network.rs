//! A small world of hand-made ASes, paths and packets for the tests.
//!
//! ```text
//!   core 1 ---- core 2        interfaces: core 1: #1 core 2, #2 leaf A, #3 leaf B
//!    |   \        |                       core 2: #1 core 1, #2 leaf C
//!   leaf A leaf B leaf C                  leaves: #1 their core, A#2 - B#2 peering
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anabranch_paths::IsdAs;
use anabranch_scion_wire::mac::{HopKey, chained};
use anabranch_scion_wire::scmp::Message;
use anabranch_scion_wire::{
    Address, DataplanePath, HeaderFields, HeaderTemplate, HopField, InfoField, Packet, PathRef, PathSegment, Ports,
    Service, checksum,
};

use super::config::{HOST_PORTS_DEFAULT, InterfaceConfig, LinkRole, RouterConfig};
use super::forward::{Forwarder, Ingress, Verdict};
use super::reply::Reply;
use crate::link::LinkShape;

/// When the segments were made, in seconds and milliseconds of Unix time.
pub(super) const MADE_S: u32 = 1_700_000_000;
pub(super) const NOW_MS: u64 = MADE_S as u64 * 1000 + 5;
/// Ports of every sender and receiver.
pub(super) const PORTS: Ports = Ports { source: 31_001, destination: 31_002 };

pub(super) const CORE1: u64 = 0xff00_0000_0001;
pub(super) const CORE2: u64 = 0xff00_0000_0002;
pub(super) const A: u64 = 0xff00_0000_000a;
pub(super) const B: u64 = 0xff00_0000_000b;
pub(super) const C: u64 = 0xff00_0000_000c;

pub(super) fn ia(asn: u64) -> IsdAs {
    IsdAs::new(1, asn).unwrap()
}

/// Each AS has its own key and its own network.
pub(super) fn key(asn: u64) -> [u8; 16] {
    [asn as u8; 16]
}

pub(super) fn host(asn: u64, last: u8) -> IpAddr {
    Ipv4Addr::new(127, 200, asn as u8, last).into()
}

pub(super) fn router_host(asn: u64) -> IpAddr {
    host(asn, 1)
}

pub(super) fn config(asn: u64) -> RouterConfig {
    use LinkRole::{Child, Core, Parent, Peer};
    let interfaces: &[(u16, LinkRole, u64)] = match asn {
        CORE1 => &[(1, Core, CORE2), (2, Child, A), (3, Child, B)],
        CORE2 => &[(1, Core, CORE1), (2, Child, C)],
        A => &[(1, Parent, CORE1), (2, Peer, B)],
        B => &[(1, Parent, CORE1), (2, Peer, A)],
        _ => &[(1, Parent, CORE2)],
    };
    let interface = |&(id, role, neighbor): &(u16, LinkRole, u64)| InterfaceConfig {
        id,
        role,
        neighbor: ia(neighbor),
        local: SocketAddr::new(router_host(asn), 20_000 + id),
        remote: SocketAddr::new(router_host(neighbor), 20_000),
        shape: LinkShape::default(),
    };
    RouterConfig {
        isd_as: ia(asn),
        forwarding_key: key(asn),
        internal: vec![SocketAddr::new(router_host(asn), 30_042)],
        host_ports: HOST_PORTS_DEFAULT,
        services: vec![(Service::CONTROL, SocketAddr::new(host(asn, 2), 30_252))],
        interfaces: interfaces.iter().map(interface).collect(),
    }
}

pub(super) fn forwarder(asn: u64) -> Forwarder {
    Forwarder::new(&config(asn))
}

/// A hop of a segment in construction direction: AS, ingress, egress.
pub(super) type Hop = (u64, u16, u16);

/// Seals a segment as beacons do (SCION data plane, "Hop Field MAC Computation"); the MACs chain by SegID.
/// `peering` replaces the hop at its index by a peering hop, which chains to its own parent hop.
pub(super) struct Segment {
    pub hops: Vec<HopField>,
    /// β before each hop, and after the last.
    pub betas: Vec<u16>,
}

pub(super) fn segment(hops: &[Hop]) -> Segment {
    let mut betas = vec![0x1234];
    let mut sealed = Vec::new();
    for (asn, cons_ingress, cons_egress) in hops {
        let beta = betas[betas.len() - 1];
        let hop = seal(*asn, beta, *cons_ingress, *cons_egress);
        betas.push(chained(beta, &hop.mac));
        sealed.push(hop);
    }
    Segment { hops: sealed, betas }
}

pub(super) fn seal(asn: u64, beta: u16, cons_ingress: u16, cons_egress: u16) -> HopField {
    let hop = HopField::unsealed(63, cons_ingress, cons_egress);
    HopKey::new(&key(asn)).sealed(beta, MADE_S, hop)
}

pub(super) fn info(cons_dir: bool, peering: bool, seg_id: u16) -> InfoField {
    InfoField { peering, cons_dir, seg_id, timestamp_s: MADE_S }
}

/// Path types of the specification ("Path Segment Combinations"), by their ends.
pub(super) fn down_core1_to_a() -> DataplanePath {
    let down = segment(&[(CORE1, 0, 2), (A, 1, 0)]);
    DataplanePath::build(&[PathSegment { info: info(true, false, down.betas[0]), hops: &down.hops }]).unwrap()
}

/// Up, core, down: A to C.
pub(super) fn a_to_c() -> DataplanePath {
    let up = segment(&[(CORE1, 0, 2), (A, 1, 0)]);
    // Core segments are used against construction direction as often as not; this one is.
    let core = segment(&[(CORE2, 0, 1), (CORE1, 1, 0)]);
    let down = segment(&[(CORE2, 0, 2), (C, 1, 0)]);
    let back = |segment: &Segment| segment.hops.iter().rev().copied().collect::<Vec<_>>();
    // Against construction direction, SegID starts as the β of the last hop.
    DataplanePath::build(&[
        PathSegment { info: info(false, false, up.betas[1]), hops: &back(&up) },
        PathSegment { info: info(false, false, core.betas[1]), hops: &back(&core) },
        PathSegment { info: info(true, false, down.betas[0]), hops: &down.hops },
    ])
    .unwrap()
}

/// Up and down with a crossover in core 1: A to B.
pub(super) fn a_to_b() -> DataplanePath {
    let up = segment(&[(CORE1, 0, 2), (A, 1, 0)]);
    let down = segment(&[(CORE1, 0, 3), (B, 1, 0)]);
    let back: Vec<_> = up.hops.iter().rev().copied().collect();
    DataplanePath::build(&[
        PathSegment { info: info(false, false, up.betas[1]), hops: &back },
        PathSegment { info: info(true, false, down.betas[0]), hops: &down.hops },
    ])
    .unwrap()
}

/// Over the peering link: A to B. Each peering hop is sealed with the β behind its AS's own hop ("Peering Links").
pub(super) fn a_to_b_peering() -> DataplanePath {
    let up = segment(&[(CORE1, 0, 2), (A, 1, 0)]);
    let down = segment(&[(CORE1, 0, 3), (B, 1, 0)]);
    let peer_a = seal(A, up.betas[2], 2, 0);
    let peer_b = seal(B, down.betas[2], 2, 0);
    DataplanePath::build(&[
        PathSegment { info: info(false, true, up.betas[2]), hops: &[peer_a] },
        PathSegment { info: info(true, true, down.betas[2]), hops: &[peer_b] },
    ])
    .unwrap()
}

/// A UDP packet from host 9 of `source` to host 9 of `destination`.
pub(super) fn packet(source: u64, destination: u64, path: PathRef<'_>) -> Vec<u8> {
    packet_to(source, Address::new(ia(destination), host(destination, 9)), path, PORTS, b"hello")
}

pub(super) fn packet_to(source: u64, destination: Address, path: PathRef<'_>, ports: Ports, payload: &[u8]) -> Vec<u8> {
    let fields = fields(source, destination, path);
    let template = HeaderTemplate::new(&fields, ports).unwrap();
    let mut packet = vec![0; template.header_len()];
    template.write(payload.len(), checksum::sum(payload), &mut packet).unwrap();
    packet.extend(payload);
    packet
}

pub(super) fn scmp_packet(source: u64, destination: Address, path: PathRef<'_>, message: &Message<'_>) -> Vec<u8> {
    let mut packet = vec![0; 4096];
    let len = message.write(&fields(source, destination, path), &mut packet).unwrap();
    packet.truncate(len);
    packet
}

fn fields(source: u64, destination: Address, path: PathRef<'_>) -> HeaderFields<'_> {
    HeaderFields { source: Address::new(ia(source), host(source, 9)), destination, path, flow_id: 7, traffic_class: 0 }
}

/// One router's judgement, with its reply if there is one.
pub(super) fn judge(asn: u64, packet: &mut [u8], ingress: Ingress) -> (Verdict, Vec<u8>) {
    judge_by(&forwarder(asn), packet, ingress)
}

pub(super) fn judge_by(rules: &Forwarder, packet: &mut [u8], ingress: Ingress) -> (Verdict, Vec<u8>) {
    let mut reply = Reply::default();
    let verdict = rules.process(packet, ingress, NOW_MS, &mut reply);
    (verdict, reply.packet().to_vec())
}

/// Where the link at an interface leads: the other AS and its interface.
pub(super) fn other_end(asn: u64, interface: u16) -> (u64, u16) {
    match (asn, interface) {
        (CORE1, 1) => (CORE2, 1),
        (CORE2, 1) => (CORE1, 1),
        (CORE1, 2) => (A, 1),
        (CORE1, 3) => (B, 1),
        (CORE2, 2) => (C, 1),
        (A, 1) => (CORE1, 2),
        (B, 1) => (CORE1, 3),
        (C, 1) => (CORE2, 2),
        (A, 2) => (B, 2),
        (B, 2) => (A, 2),
        _ => panic!("no link there"),
    }
}

/// Sends a packet from a host of `asn` through the world until somebody does something else than forward it.
/// Returns where that was, the verdict, the reply, and the ASes on the way.
pub(super) fn travel(asn: u64, packet: &mut [u8]) -> (Verdict, Vec<u8>, Vec<u64>) {
    let (mut at, mut ingress, mut way) = (asn, Ingress::Internal, vec![asn]);
    loop {
        let (verdict, reply) = judge(at, packet, ingress);
        let Verdict::Forward(egress) = verdict else { return (verdict, reply, way) };
        let (next, interface) = other_end(at, egress);
        (at, ingress) = (next, Ingress::Interface(interface));
        way.push(at);
        assert!(way.len() < 10);
    }
}

/// A reply that leaves `way`'s last AS goes back hop by hop and must reach the host that asked.
pub(super) fn travel_back(way: &[u64], reply: &mut [u8]) -> Verdict {
    let mut verdict = None;
    for pair in way.windows(2).rev() {
        let (from, to) = (pair[1], pair[0]);
        let interface = (1..=3)
            .find(|id| config(to).interfaces.iter().any(|known| known.id == *id) && other_end(to, *id).0 == from);
        let (judged, _) = judge(to, reply, Ingress::Interface(interface.unwrap()));
        verdict = Some(judged);
        match judged {
            Verdict::Forward(_) => {}
            other => return other,
        }
    }
    verdict.unwrap()
}

pub(super) fn parsed(reply: &[u8]) -> (Packet<'_>, Message<'_>) {
    let packet = Packet::parse(reply).unwrap();
    (packet, Message::parse(&packet).unwrap())
}
