//! Two sockets' cores with a network between them that only moves the path's pointers.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{Interface, IsdAs, ScionAddr, ScionPath};
use anabranch_scion_wire::{
    Address, DataplanePath, HeaderFields, HopField, InfoField, Packet, PacketMut, PathMut, PathRef, PathSegment,
};

use super::*;

mod hostile;
mod routes;
mod scmp;

const A: &str = "[1-ff00:0:110,10.0.0.1]:31000";
const B: &str = "[1-ff00:0:112,10.0.0.2]:31001";
/// The border routers that hand packets over.
const ROUTER_A: &str = "10.0.0.101:30001";
const ROUTER_B: &str = "10.0.0.102:30001";

fn scion(text: &str) -> ScionAddr {
    let Some(address) = text.parse::<anabranch_paths::Endpoint>().unwrap().as_scion() else { panic!("{text}") };
    address
}

fn ip(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// From A up to a core AS, and down to B: interfaces 1>2, 3>4. Made at `timestamp_s`, its MACs say so.
fn path_at(timestamp_s: u32) -> ScionPath {
    path_over([1, 2, 3, 4], timestamp_s)
}

fn path_over([a, core_in, core_out, b]: [u16; 4], timestamp_s: u32) -> ScionPath {
    let [t0, t1, t2, t3] = timestamp_s.to_be_bytes();
    let hop = |cons_ingress, cons_egress| HopField {
        mac: [t0, t1, t2, t3, cons_ingress as u8, cons_egress as u8],
        ..HopField::unsealed(63, cons_ingress, cons_egress)
    };
    let info = |cons_dir| InfoField { peering: false, cons_dir, seg_id: 7, timestamp_s };
    let up = [hop(a, 0), hop(0, core_in)];
    let down = [hop(0, core_out), hop(b, 0)];
    let segments = [PathSegment { info: info(false), hops: &up }, PathSegment { info: info(true), hops: &down }];
    let (source, destination, core) = (scion(A).isd_as, scion(B).isd_as, "1-ff00:0:111".parse().unwrap());
    let interface = |isd_as, id| Interface { isd_as, id };
    ScionPath {
        source,
        destination,
        interfaces: vec![
            interface(source, a),
            interface(core, core_in),
            interface(core, core_out),
            interface(destination, b),
        ],
        mtu: 1400,
        expiry: SystemTime::UNIX_EPOCH,
        latency: vec![],
        bandwidth_kbps: vec![],
        link_kinds: vec![],
        remarks: Default::default(),
        next_hop: Some(ip(ROUTER_A)),
        dataplane: DataplanePath::build(&segments).unwrap().into_bytes(),
    }
}

fn path_within(isd_as: IsdAs) -> ScionPath {
    ScionPath::inside(isd_as, 1400, SystemTime::UNIX_EPOCH)
}

/// A core with what its socket would keep.
struct End {
    core: Core,
    inbox: Inbox,
    now: Instant,
}

impl End {
    fn new(local: &str) -> Self {
        let now = Instant::now();
        Self { core: Core::new(scion(local), now), inbox: Inbox::default(), now }
    }

    /// Packets as they leave, and the next hop of each.
    fn send(&self, transmits: &[Transmit<'_>]) -> Vec<(SocketAddr, Vec<u8>)> {
        let (mut outbox, mut cursor) = (Outbox::default(), Cursor::default());
        self.core.outbound(&mut outbox, transmits, &mut cursor, 64).unwrap();
        outbox.packets().map(|(to, packet)| (to, packet.to_vec())).collect()
    }

    fn send_one(&self, route: RouteId, payload: &[u8]) -> Vec<u8> {
        self.send(&[Transmit::new(route, payload)]).remove(0).1
    }

    /// The route and payload of a packet, if it brings data.
    fn receive(&mut self, packet: &[u8], from: &str) -> Option<(RouteId, Vec<u8>)> {
        let data = self.core.inbound(&mut self.inbox, packet, ip(from), self.now)?;
        let mut payload = vec![0; data.len()];
        data.copy_to(&mut payload).then_some((data.route, payload))
    }

    fn dropped(&self, reason: Dropped) -> u64 {
        self.core.counters().dropped.of(reason)
    }
}

/// What the network makes of a packet on its whole way: pointers at the path's end.
fn carried(mut packet: Vec<u8>) -> Vec<u8> {
    let mut view = PacketMut::parse(&mut packet).unwrap();
    if let PathMut::Standard(mut path) = view.path_mut() {
        while path.advance().is_ok() {}
    }
    packet
}

#[test]
fn data_comes_over_a_path_and_answers_go_back_over_it() {
    let (mut a, mut b) = (End::new(A), End::new(B));
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let sent = a.send(&[Transmit { segment_len: 4, ecn: 0b10, ..Transmit::new(route, b"hello world") }]);
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|(to, _)| *to == ip(ROUTER_A)));
    let mut got = Vec::new();
    for (_, packet) in sent {
        let packet = carried(packet);
        let data = b.core.inbound(&mut b.inbox, &packet, ip(ROUTER_B), b.now).unwrap();
        assert_eq!(data.ecn, 0b10);
        let mut payload = vec![0; data.len()];
        assert!(data.copy_to(&mut payload));
        got.push((data.route, payload));
    }
    let back = got[0].0;
    assert_eq!(got.iter().map(|(_, payload)| payload.as_slice()).collect::<Vec<_>>(), [&b"hell"[..], b"o wo", b"rld"]);
    assert!(got.iter().all(|(route, _)| *route == back));
    let info = b.core.info(back).unwrap();
    assert_eq!((info.remote, info.next_hop, info.learned), (scion(A), ip(ROUTER_B), true));
    assert_eq!(info.interfaces, [4, 3, 2, 1]);

    let answer = b.send(&[Transmit::new(back, b"and to you")]);
    assert_eq!(answer[0].0, ip(ROUTER_B));
    assert_eq!(a.receive(&carried(answer[0].1.clone()), ROUTER_A), Some((route, b"and to you".to_vec())));
    assert_eq!(a.core.counters().dropped.total() + b.core.counters().dropped.total(), 0);
}

#[test]
fn packets_keep_to_the_path_mtu() {
    let a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let info = a.core.info(route).unwrap();
    assert_eq!(info.payload_len_max, 1400 - info.header_len);
    let most = vec![1; info.payload_len_max];
    assert_eq!(a.send_one(route, &most).len(), 1400);
    let more = vec![1; info.payload_len_max + 1];
    let outbound = |transmit| a.core.outbound(&mut Outbox::default(), &[transmit], &mut Cursor::default(), 64);
    assert_eq!(outbound(Transmit::new(route, &more)).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    // Many packets that fit each are no one packet that does not.
    assert!(outbound(Transmit { segment_len: 1000, ..Transmit::new(route, &more) }).is_ok());
    assert!(outbound(Transmit { segment_len: 0, ..Transmit::new(route, &more) }).is_err());
}

#[test]
fn bursts_are_as_large_as_the_kernel_takes_and_the_outbox_fills() {
    let a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let payload = vec![5; 1200 * 400];
    let transmit = [Transmit { segment_len: 1200, ..Transmit::new(route, &payload) }];
    let (mut outbox, mut cursor, mut packets, mut rounds) = (Outbox::default(), Cursor::default(), 0, 0);
    while cursor.transmit == 0 {
        outbox.clear();
        a.core.outbound(&mut outbox, &transmit, &mut cursor, 64).unwrap();
        let bursts = &outbox.bursts;
        assert!(bursts.iter().all(|burst| burst.packets * burst.packet_len <= anabranch_udp::DATAGRAM_LEN_MAX));
        packets += outbox.packets().count();
        rounds += 1;
        assert!(rounds < 10);
    }
    assert_eq!(packets, 400);
    assert!(rounds > 1);
}

#[test]
fn an_empty_payload_is_a_packet_too() {
    let (a, mut b) = (End::new(A), End::new(B));
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let packet = carried(a.send_one(route, b""));
    assert_eq!(b.receive(&packet, ROUTER_B).map(|(_, payload)| payload), Some(vec![]));
}

#[test]
fn a_checksum_of_zero_is_taken_and_counted_as_unchecked() {
    let (a, mut b) = (End::new(A), End::new(B));
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let mut packet = carried(a.send_one(route, b"unchecked"));
    let checksum_at = packet.len() - 9 - 2;
    packet[checksum_at..][..2].fill(0);
    for _ in 0..2 {
        let data = b.core.inbound(&mut b.inbox, &packet, ip(ROUTER_B), b.now).unwrap();
        assert!(data.is_unchecked() && data.copy_to(&mut [0; 9]));
    }
}

#[test]
fn what_is_not_for_us_is_dropped() {
    let (a, mut b) = (End::new(A), End::new(B));
    let others = ["[1-ff00:0:112,10.0.0.3]:31001", "[1-ff00:0:112,10.0.0.2]:31002"];
    for other in others {
        let route = a.core.register(scion(other), &path_at(1000), a.now).unwrap();
        assert_eq!(b.receive(&carried(a.send_one(route, b"x")), ROUTER_B), None);
    }
    assert_eq!(b.dropped(Dropped::WrongDestination), 2);
}

#[test]
fn an_empty_path_joins_neighbours_only() {
    let (mut a, b) = (End::new(A), End::new("[1-ff00:0:110,10.0.0.3]:31005"));
    let within = path_within(scion(A).isd_as);
    let route = b.core.register(scion(A), &within, b.now).unwrap();
    let sent = b.send(&[Transmit::new(route, b"hi")]);
    assert_eq!(sent[0].0, scion(A).host);
    let (back, _) = a.receive(&sent[0].1, "10.0.0.3:31005").unwrap();
    assert_eq!(a.core.info(back).unwrap().next_hop, ip("10.0.0.3:31005"));
    // Somebody else's address, and somebody else's AS.
    let mut cold = End::new(A);
    assert_eq!(cold.receive(&sent[0].1, "10.0.0.4:31005"), None);
    assert_eq!(cold.dropped(Dropped::WrongSource), 1);
    let fields = HeaderFields {
        source: Address::new(scion(B).isd_as, scion(B).host.ip()),
        destination: Address::new(scion(A).isd_as, scion(A).host.ip()),
        path: PathRef::Empty,
        flow_id: 1,
        traffic_class: 0,
    };
    let ports = anabranch_scion_wire::Ports { source: 31001, destination: 31000 };
    let template = anabranch_scion_wire::HeaderTemplate::new(&fields, ports).unwrap();
    let mut packet = [0; 200];
    let len = template.write(0, Default::default(), &mut packet).unwrap();
    assert!(Packet::parse(&packet[..len]).is_ok());
    assert_eq!(cold.receive(&packet[..len], "10.0.0.2:31001"), None);
    assert_eq!(cold.dropped(Dropped::NoWayBack), 1);
}
