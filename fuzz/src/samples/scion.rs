//! Samples of SCION: packets, messages about them, segments.

use std::time::{Duration, SystemTime};

use anabranch_scion_wire::combine::combine;
use anabranch_scion_wire::proto::control_plane::{SegmentType, Segments, SegmentsResponse};
use anabranch_scion_wire::proto::{Timestamp, daemon, grpc};
use anabranch_scion_wire::scmp::{EchoId, Message as Scmp, ProblemCode, UnreachableCode};
use anabranch_scion_wire::segment::{AsEntry, HopField as SegmentHop, PeerEntry, Segment, SegmentInfo};
use anabranch_scion_wire::{
    Address, DataplanePath, HeaderFields, HeaderTemplate, HopField, InfoField, OneHopPath, Packet, PathRef,
    PathSegment, Ports, Service, checksum,
};
use anabranch_xdp::FrameTemplate;
use prost::Message as _;

/// UDP over every kind of path, between every kind of address.
pub(crate) fn scion_packet() -> Vec<Vec<u8>> {
    let hop = |cons_ingress, cons_egress| HopField {
        egress_alert: true,
        mac: [1, 2, 3, 4, 5, 6],
        ..HopField::unsealed(63, cons_ingress, cons_egress)
    };
    let info = |cons_dir, peering| InfoField { peering, cons_dir, seg_id: 7, timestamp_s: 1_700_000_000 };
    let (up, core, down) = ([hop(1, 0), hop(2, 3), hop(0, 4)], [hop(5, 0), hop(0, 6)], [hop(0, 7), hop(8, 0)]);
    let segment = |cons_dir, peering, hops| PathSegment { info: info(cons_dir, peering), hops };
    let built = |segments: &[PathSegment<'_>]| DataplanePath::build(segments).expect("a path");
    let whole = built(&[segment(false, false, &up), segment(false, false, &core), segment(true, false, &down)]);
    let peering = built(&[segment(false, true, &up[..1]), segment(true, true, &down)]);
    let one_hop = OneHopPath::build(info(true, false), up[1]);
    let paths = [
        PathRef::Empty,
        PathRef::Standard(whole.view()),
        PathRef::Standard(peering.view()),
        PathRef::OneHop(OneHopPath::parse(&one_hop).expect("a path")),
    ];
    let isd_as = "1-ff00:0:110".parse().expect("an ISD-AS");
    let addresses = [
        Address::new(isd_as, std::net::IpAddr::from([10, 0, 0, 1])),
        Address::new(isd_as, std::net::IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])),
        Address::new(isd_as, Service::CONTROL),
    ];
    let mut samples = Vec::new();
    for (path, ends) in paths.into_iter().zip([[0, 0], [0, 1], [1, 0], [0, 2]]) {
        let [source, destination] = ends.map(|end: usize| addresses[end]);
        let fields = HeaderFields { source, destination, path, flow_id: 1, traffic_class: 0 };
        let template = HeaderTemplate::new(&fields, Ports { source: 31000, destination: 443 }).expect("a template");
        let mut packet = vec![0; template.header_len()];
        template.write(5, checksum::sum(b"hello"), &mut packet).expect("it fits");
        packet.extend(b"hello");
        samples.push(packet);
    }
    samples
}

/// Every message, alone and in a packet; errors quote one of the packets above.
pub(crate) fn scmp() -> Vec<Vec<u8>> {
    let packets = scion_packet();
    let quote = packets[1].as_slice();
    let id = EchoId { identifier: 31000, sequence: 1 };
    let header = Packet::parse(&packets[1]).expect("a packet");
    let isd_as = header.header().source_as();
    let fields = HeaderFields {
        source: header.header().destination().expect("an address"),
        destination: header.header().source().expect("an address"),
        path: PathRef::Empty,
        flow_id: 1,
        traffic_class: 0,
    };
    let messages = [
        Scmp::DestinationUnreachable { code: UnreachableCode::PORT, quote },
        Scmp::PacketTooBig { mtu: 1400, quote },
        Scmp::ParameterProblem { code: ProblemCode::HOP_MAC, pointer: 80, quote },
        Scmp::ExternalInterfaceDown { isd_as, interface: 5, quote },
        Scmp::InternalConnectivityDown { isd_as, ingress: 5, egress: 6, quote },
        Scmp::EchoRequest { id, data: b"data" },
        Scmp::EchoReply { id, data: b"data" },
        Scmp::TracerouteRequest { id },
        Scmp::TracerouteReply { id, isd_as, interface: 5 },
    ];
    let mut samples = vec![quote.to_vec()];
    for message in messages {
        let mut out = vec![0; 2000];
        let len = message.write(&fields, &mut out).expect("it fits");
        out.truncate(len);
        samples.push(Packet::parse(&out).expect("a packet").payload().to_vec());
        samples.push(out);
    }
    samples
}

/// From the core AS 1-ff00:0:111 to the leaf `end`, with a peering link to the other leaf.
fn segment(end: &str, egress: u16, peer: &str, peering: [u16; 2]) -> Segment {
    let hop = |ingress, egress| SegmentHop { exp_time: 63, ingress, egress, mac: [1, 2, 3, 4, 5, 6] };
    let mut core = AsEntry::new(isd_as("1-ff00:0:111"), 1472, hop(0, egress), 0);
    core.static_info.latency_intra.insert(9, Duration::from_millis(3));
    core.static_info.bandwidth_inter_kbps.insert(egress, 1_000_000);
    let mut leaf = AsEntry::new(isd_as(end), 1472, hop(1, 0), 1400);
    leaf.peers.push(PeerEntry {
        peer: isd_as(peer),
        peer_interface: peering[1],
        peer_mtu: 1300,
        hop: hop(peering[0], 0),
    });
    Segment::new(SegmentInfo { timestamp_s: 1_750_000_000, id: egress }, vec![core, leaf]).expect("a segment")
}

fn isd_as(text: &str) -> anabranch_paths::IsdAs {
    text.parse().expect("an ISD-AS")
}

/// Up to 1-ff00:0:110 and down to 1-ff00:0:112.
fn up_and_down() -> [Segment; 2] {
    [segment("1-ff00:0:110", 1, "1-ff00:0:112", [5, 6]), segment("1-ff00:0:112", 2, "1-ff00:0:110", [6, 5])]
}

pub(crate) fn segments() -> Vec<Vec<u8>> {
    let messages = up_and_down().map(|segment| segment.to_proto(Segment::unsigned));
    let kinds = [SegmentType::Up, SegmentType::Down].map(i32::from);
    let lists = messages.clone().map(|message| Segments { segments: vec![message] });
    let answer = SegmentsResponse { segments: kinds.into_iter().zip(lists).collect() };
    let with = |choice: u8, message: Vec<u8>| [vec![choice], message].concat();
    let [up, _] = messages;
    vec![with(0, up.encode_to_vec()), with(1, answer.encode_to_vec()), with(2, grpc::frame(&answer))]
}

pub(crate) fn lookup() -> Vec<Vec<u8>> {
    let [up, down] = up_and_down();
    let paths = combine(isd_as("1-ff00:0:110"), isd_as("1-ff00:0:112"), &[up], &[], &[down]);
    let told = paths.iter().map(|path| daemon::Path {
        raw: path.dataplane.clone(),
        interface: Some(daemon::Interface { address: Some(daemon::Underlay { address: "10.0.0.1:30042".to_owned() }) }),
        interfaces: path
            .interfaces
            .iter()
            .map(|interface| daemon::PathInterface { isd_as: interface.isd_as.to_u64(), id: interface.id.into() })
            .collect(),
        mtu: path.mtu.into(),
        expiration: Some(Timestamp {
            seconds: path.expiry.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64),
            nanos: 0,
        }),
        bandwidth: vec![1, 0, 2],
        ..daemon::Path::default()
    });
    let answer = daemon::PathsResponse { paths: told.collect() }.encode_to_vec();
    let topology =
        br#"{"isd_as": "1-ff00:0:110", "mtu": 1400, "dispatched_ports": "31000-32767", "attributes": ["core"],
        "border_routers": {"br1": {"internal_addr": "10.0.0.1:30042", "interfaces": {"1": {}, "41": {}}}},
        "control_service": {"cs1": {"addr": "[fd00::1]:30252"}}}"#;
    let dns = b"\x01\x02\x81\x80\0\x01\0\x01\0\0\0\0\x01a\x07example\0\0\x10\0\x01\
        \xc0\x0c\0\x10\0\x01\0\0\0\x3c\0\x13\x12scion=1-1,10.0.0.1";
    let hosts = b"# ours\n1-ff00:0:111,[10.9.9.9] host alias # more\n2-1,fd00::1 host\n";
    let samples: [&[u8]; 5] = [&answer, topology, dns, hosts, b"no path: 100 %25 down%0A"];
    (0..).zip(samples).map(|(choice, sample)| [&[choice], sample].concat()).collect()
}

/// Packets for the target's socket, one after the other: data, an echo request, an error about a packet of its own.
pub(crate) fn scion_socket() -> Vec<Vec<u8>> {
    let isd_as = "1-ff00:0:110".parse().expect("an ISD-AS");
    let [own, other] = [1, 2].map(|host| Address::new(isd_as, std::net::IpAddr::from([10, 0, 0, host])));
    let fields =
        |source, destination| HeaderFields { source, destination, path: PathRef::Empty, flow_id: 1, traffic_class: 0 };
    let datagram = |fields: &HeaderFields<'_>, source, destination| {
        let template = HeaderTemplate::new(fields, Ports { source, destination }).expect("a template");
        let mut packet = vec![0; template.header_len()];
        template.write(5, checksum::sum(b"hello"), &mut packet).expect("it fits");
        packet.extend(b"hello");
        packet
    };
    let to_us = fields(other, own);
    let data = datagram(&to_us, 31000, 443);
    let quote = datagram(&fields(own, other), 443, 31000);
    let messages = [
        Scmp::EchoRequest { id: EchoId { identifier: 31000, sequence: 1 }, data: b"data" },
        Scmp::DestinationUnreachable { code: UnreachableCode::PORT, quote: &quote },
    ];
    let mut packets = vec![data];
    packets.extend(messages.iter().map(|message| {
        let mut packet = vec![0; 1500];
        let len = message.write(&to_us, &mut packet).expect("it fits");
        packet.truncate(len);
        packet
    }));
    packets.extend(scion_packet());
    let framed = |packet: &Vec<u8>| [&(packet.len() as u16).to_be_bytes(), packet.as_slice()].concat();
    let mut samples: Vec<_> = packets.iter().map(framed).collect();
    samples.push(samples.concat());
    samples
}

/// Of both families, with and without padding.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let ends = [["192.0.2.1:7000", "192.0.2.2:7000"], ["[2001:db8::1]:7000", "[fe80::2]:7000"]];
    let frame = |ends: [&str; 2], payload: &[u8]| {
        let [from, to] = ends.map(|end| end.parse().expect("an address"));
        let template = FrameTemplate::new([2; 6], [4; 6], from, to).expect("of one family");
        let mut frame = vec![0; template.headers_len() + payload.len()];
        template.write(payload.len(), checksum::sum(payload), 1, &mut frame);
        frame[template.headers_len()..].copy_from_slice(payload);
        frame.resize(frame.len().max(60), 0);
        frame
    };
    ends.into_iter().flat_map(|ends| [frame(ends, b""), frame(ends, b"odd"), frame(ends, &[7; 100])]).collect()
}
