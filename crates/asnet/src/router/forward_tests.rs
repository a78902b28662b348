use std::net::Ipv4Addr;

use anabranch_scion_wire::mac::HopKey;
use anabranch_scion_wire::scmp::{EchoId, Message, ProblemCode, UnreachableCode};
use anabranch_scion_wire::{
    Address, DataplanePath, HeaderFields, HostAddr, OneHopPath, Packet, PathRef, PathSegment, Ports, Protocol, Service,
    StandardPathMut,
};
use proptest::prelude::*;

use super::super::test_network::*;
use super::*;

const ARRIVED: fn(u64) -> Verdict = |asn| Verdict::Deliver(SocketAddr::new(host(asn, 9), PORTS.destination));

fn standard(path: &DataplanePath) -> PathRef<'_> {
    PathRef::Standard(path.view())
}

/// The path of a packet, to be tampered with.
fn with_path(packet: &mut [u8], change: impl FnOnce(&mut StandardPathMut<'_>)) {
    let header = Packet::parse(packet).unwrap();
    let (at, end) = (header.header().path_offset(), header.header().as_bytes().len());
    change(&mut StandardPathMut::parse(&mut packet[at..end]).unwrap());
}

/// Offset of the hop field `index`.
fn hop_at(packet: &[u8], index: usize) -> usize {
    let packet = Packet::parse(packet).unwrap();
    let PathRef::Standard(path) = packet.header().path() else { panic!("a standard path") };
    packet.header().path_offset() + 4 + 8 * path.info_count() + 12 * index
}

// SCION data plane, "Path Segment Combinations": every kind of path is followed to its end, and so is its way back.
#[test]
fn every_kind_of_path_leads_there_and_back() {
    let cases: [(u64, u64, DataplanePath, &[u64]); 4] = [
        (CORE1, A, down_core1_to_a(), &[CORE1, A]),
        (A, C, a_to_c(), &[A, CORE1, CORE2, C]),
        (A, B, a_to_b(), &[A, CORE1, B]),
        (A, B, a_to_b_peering(), &[A, B]),
    ];
    for (source, destination, path, way) in cases {
        let mut sent = packet(source, destination, standard(&path));
        let (verdict, _, passed) = travel(source, &mut sent);
        assert_eq!((verdict, passed.as_slice()), (ARRIVED(destination), way));

        let mut back = [0; 1024];
        let arrived = Packet::parse(&sent).unwrap();
        let len = arrived.header().path().copy_reversed(&mut back).unwrap();
        let back = DataplanePath::from_bytes(back[..len].to_vec()).unwrap();
        let mut answer = packet(destination, source, standard(&back));
        let (verdict, _, passed) = travel(destination, &mut answer);
        assert_eq!(verdict, ARRIVED(source));
        assert!(passed.iter().rev().eq(way));
    }
}

// "Shortcuts": the up and down segments meet below the core; here the common AS is core 1's own hop.
#[test]
fn a_shortcut_turns_where_the_segments_meet() {
    // A grandchild segment: core 2 - core 1 as if core 1 were its child would need other links, so the shortcut is
    // cut from A's and B's segments: both end hops are in core 1 with an ingress that is not used.
    let up = segment(&[(CORE2, 0, 1), (CORE1, 1, 2), (A, 1, 0)]);
    let down = segment(&[(CORE2, 0, 1), (CORE1, 1, 3), (B, 1, 0)]);
    let path = DataplanePath::build(&[
        PathSegment { info: info(false, false, up.betas[2]), hops: &[up.hops[2], up.hops[1]] },
        PathSegment { info: info(true, false, down.betas[1]), hops: &down.hops[1..] },
    ])
    .unwrap();
    let mut sent = packet(A, B, standard(&path));
    let (verdict, _, way) = travel(A, &mut sent);
    assert_eq!((verdict, way.as_slice()), (ARRIVED(B), &[A, CORE1, B][..]));
}

#[track_caller]
fn rejection(asn: u64, packet: &mut [u8], ingress: Ingress, reason: DropReason, code: ProblemCode) -> u16 {
    let before = packet.to_vec();
    let (verdict, reply) = judge(asn, packet, ingress);
    assert_eq!(verdict, Verdict::Reply(Some(reason)));
    match parsed(&reply).1 {
        Message::ParameterProblem { code: got, pointer, quote } => {
            assert_eq!(got, code);
            // The packet is quoted as it came.
            assert!(before.starts_with(quote));
            pointer
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_wrong_mac_is_told_apart_from_a_right_one_and_pointed_at() {
    let mut sent = packet(CORE1, A, standard(&down_core1_to_a()));
    let at = hop_at(&sent, 0);
    sent[at + 6] ^= 1;
    let pointer = rejection(CORE1, &mut sent, Ingress::Internal, DropReason::BadMac, ProblemCode::HOP_MAC);
    assert_eq!(usize::from(pointer), at);
}

#[test]
fn the_second_mac_of_a_crossover_is_checked_too() {
    let mut sent = packet(A, B, standard(&a_to_b()));
    let at = hop_at(&sent, 2);
    sent[at + 11] ^= 1;
    assert_eq!(judge(A, &mut sent, Ingress::Internal).0, Verdict::Forward(1));
    let pointer = rejection(CORE1, &mut sent, Ingress::Interface(2), DropReason::BadMac, ProblemCode::HOP_MAC);
    assert_eq!(usize::from(pointer), at);
}

// "ExpTime": valid up to and including Timestamp + (1 + ExpTime) x 24 h / 256.
#[test]
fn hops_hold_to_their_last_millisecond() {
    let expiry = u64::from(MADE_S) * 1000 + 64 * 337_500;
    let mut reply = Reply::default();
    let sent = packet(CORE1, A, standard(&down_core1_to_a()));
    let judge_at = |now, reply: &mut Reply| forwarder(CORE1).process(&mut sent.clone(), Ingress::Internal, now, reply);
    assert_eq!(judge_at(expiry, &mut reply), Verdict::Forward(2));
    assert_eq!(judge_at(expiry + 1, &mut reply), Verdict::Reply(Some(DropReason::Expired)));
    let (packet, message) = parsed(reply.packet());
    assert!(matches!(message, Message::ParameterProblem { code: ProblemCode::PATH_EXPIRED, .. }));
    assert_eq!(packet.header().source().unwrap(), Address::new(ia(CORE1), router_host(CORE1)));
}

#[test]
fn packets_come_in_where_their_hop_field_says() {
    let mut sent = packet(A, B, standard(&a_to_b()));
    assert_eq!(judge(A, &mut sent, Ingress::Internal).0, Verdict::Forward(1));
    // Against construction direction, the ingress is ConsEgress.
    let (reason, code) = (DropReason::WrongIngress, ProblemCode::UNKNOWN_CONS_EGRESS);
    rejection(CORE1, &mut sent, Ingress::Interface(3), reason, code);
    let mut sent = packet(CORE1, A, standard(&down_core1_to_a()));
    judge(CORE1, &mut sent, Ingress::Internal);
    rejection(A, &mut sent, Ingress::Interface(2), reason, ProblemCode::UNKNOWN_CONS_INGRESS);
}

#[test]
fn an_egress_that_does_not_exist_is_pointed_at() {
    let bad = segment(&[(CORE1, 0, 9), (A, 1, 0)]);
    let path = DataplanePath::build(&[PathSegment { info: info(true, false, bad.betas[0]), hops: &bad.hops }]).unwrap();
    let mut sent = packet(CORE1, A, standard(&path));
    let (reason, code) = (DropReason::UnknownEgress, ProblemCode::UNKNOWN_CONS_EGRESS);
    let at = hop_at(&sent, 0);
    assert_eq!(usize::from(rejection(CORE1, &mut sent, Ingress::Internal, reason, code)), at);
}

// Source and destination are checked where a packet enters.
#[test]
fn nobody_speaks_for_another_as() {
    let pointer = |source, destination, ingress, reason, code| {
        let mut sent = packet(source, destination, standard(&down_core1_to_a()));
        if ingress != Ingress::Internal {
            with_path(&mut sent, |path| path.advance().unwrap());
        }
        rejection(if ingress == Ingress::Internal { CORE1 } else { A }, &mut sent, ingress, reason, code)
    };
    let bad_source = (DropReason::BadSource, ProblemCode::SOURCE_ADDRESS);
    let bad_destination = (DropReason::BadDestination, ProblemCode::DESTINATION_ADDRESS);
    // From inside: another AS's source; a destination that needs no router.
    assert_eq!(pointer(B, A, Ingress::Internal, bad_source.0, bad_source.1), 20);
    assert_eq!(pointer(CORE1, CORE1, Ingress::Internal, bad_destination.0, bad_destination.1), 12);
    // From outside: our own source; a last hop that is not the destination's.
    assert_eq!(pointer(A, A, Ingress::Interface(1), bad_source.0, bad_source.1), 20);
    assert_eq!(pointer(CORE1, C, Ingress::Interface(1), bad_destination.0, bad_destination.1), 12);
}

#[test]
fn the_destination_is_where_the_path_ends_and_not_before() {
    let mut sent = packet(A, CORE1, standard(&a_to_c()));
    judge(A, &mut sent, Ingress::Internal);
    let (reason, code) = (DropReason::BadDestination, ProblemCode::DESTINATION_ADDRESS);
    rejection(CORE1, &mut sent, Ingress::Interface(2), reason, code);
}

#[test]
fn hosts_do_not_pass_for_routers() {
    let mut sent = packet(A, B, standard(&a_to_b()));
    with_path(&mut sent, |path| path.advance().unwrap());
    assert_eq!(judge(CORE1, &mut sent, Ingress::Internal).0, Verdict::Drop(DropReason::NotFirstHop));
}

// "Path Segment Combinations": no AS carries traffic between its providers, cores or peers for nothing.
#[test]
fn turns_are_those_of_paid_traffic() {
    use LinkRole::{Child, Core, Parent, Peer};
    let roles = [Core, Parent, Child, Peer];
    let allowed = |is_crossover| {
        let pairs = roles.iter().flat_map(|one| roles.iter().map(move |other| (*one, *other)));
        pairs.filter(|(one, other)| turn_is_allowed(Some(*one), *other, is_crossover)).collect::<Vec<_>>()
    };
    assert_eq!(allowed(false), [(Core, Core), (Parent, Child), (Child, Parent), (Child, Peer), (Peer, Child)]);
    assert_eq!(allowed(true), [(Core, Child), (Child, Core), (Child, Child)]);
    assert!(!turn_is_allowed(None, Core, true));
}

#[test]
fn a_valley_is_refused() {
    // Core 1 - A - (peering) B, in one segment: A would carry its provider's traffic to its peer.
    let valley = segment(&[(CORE1, 0, 2), (A, 1, 2), (B, 2, 0)]);
    let path =
        DataplanePath::build(&[PathSegment { info: info(true, false, valley.betas[0]), hops: &valley.hops }]).unwrap();
    let mut sent = packet(CORE1, B, standard(&path));
    judge(CORE1, &mut sent, Ingress::Internal);
    rejection(A, &mut sent, Ingress::Interface(1), DropReason::BadTurn, ProblemCode::PATH);
}

#[test]
fn a_crossover_between_providers_is_refused() {
    // Two segments that meet in A, both from core 1: down, then up again.
    let one = segment(&[(CORE1, 0, 2), (A, 1, 0)]);
    let path = DataplanePath::build(&[
        PathSegment { info: info(true, false, one.betas[0]), hops: &one.hops },
        PathSegment { info: info(false, false, one.betas[1]), hops: &[one.hops[1], one.hops[0]] },
    ])
    .unwrap();
    let mut sent = packet(CORE1, C, standard(&path));
    judge(CORE1, &mut sent, Ingress::Internal);
    let (reason, code) = (DropReason::BadTurn, ProblemCode::SEGMENT_CHANGE);
    let pointer = rejection(A, &mut sent, Ingress::Interface(1), reason, code);
    // At the info field of the second segment.
    assert_eq!(usize::from(pointer), Packet::parse(&sent).unwrap().header().path_offset() + 4 + 8);
}

// "Segments without the Peering flag must have at least two hop fields": the views refuse them, and so do we.
#[test]
fn segments_of_one_hop_lead_nowhere() {
    let mut sent = packet(CORE1, A, standard(&down_core1_to_a()));
    let path_at = Packet::parse(&sent).unwrap().header().path_offset();
    // One hop in the first segment, and the header shorter by the other.
    sent[path_at + 2] = 1 << 4;
    sent.drain(path_at + 24..path_at + 36);
    sent[5] -= 3;
    assert_eq!(judge(CORE1, &mut sent, Ingress::Internal).0, Verdict::Drop(DropReason::Malformed));
}

#[test]
fn a_link_that_is_down_is_named_to_the_sender_wherever_it_is() {
    let mut sent = packet(A, C, standard(&a_to_c()));
    judge(A, &mut sent, Ingress::Internal);
    let mut core1 = forwarder(CORE1);
    core1.interface_mut(1).unwrap().is_up = false;
    let (verdict, mut reply) = judge_by(&core1, &mut sent, Ingress::Interface(2));
    assert_eq!(verdict, Verdict::Reply(Some(DropReason::InterfaceDown)));
    match parsed(&reply).1 {
        Message::ExternalInterfaceDown { isd_as, interface, .. } => assert_eq!((isd_as, interface), (ia(CORE1), 1)),
        other => panic!("{other}"),
    }
    // Back over the link that it came by, to the port that sent.
    let arrived = Verdict::Deliver(SocketAddr::new(host(A, 9), PORTS.source));
    assert_eq!(travel_back(&[A, CORE1], &mut reply), arrived);
    // And nothing comes in by it.
    let mut other = packet(C, A, standard(&a_to_c().reversed()));
    assert_eq!(judge_by(&core1, &mut other, Ingress::Interface(1)).0, Verdict::Drop(DropReason::InterfaceDown));
}

#[test]
fn what_exceeds_the_mtu_is_told_what_fits() {
    let payload = vec![0; 1400];
    let to = Address::new(ia(A), host(A, 9));
    let path = down_core1_to_a();
    let sent = packet_to(CORE1, to, standard(&path), PORTS, &payload);
    let mut rules = forwarder(CORE1);
    rules.interface_mut(2).unwrap().mtu = sent.len() as u16;
    assert_eq!(judge_by(&rules, &mut sent.clone(), Ingress::Internal).0, Verdict::Forward(2));
    rules.interface_mut(2).unwrap().mtu = sent.len() as u16 - 1;
    let (verdict, reply) = judge_by(&rules, &mut sent.clone(), Ingress::Internal);
    assert_eq!(verdict, Verdict::Reply(Some(DropReason::TooBig)));
    assert!(matches!(parsed(&reply).1, Message::PacketTooBig { mtu, .. } if usize::from(mtu) == sent.len() - 1));
    // SCMP, "Processing Rules", 3.
    assert!(reply.len() <= 1232);
}

// Errors found before and after SegID was stepped back, at every router of the way, find the way back.
#[test]
fn errors_reach_the_sender_from_everywhere() {
    for (source, destination, path) in
        [(A, C, a_to_c()), (A, B, a_to_b()), (A, B, a_to_b_peering()), (C, A, a_to_c().reversed())]
    {
        let fresh =
            if source == C { packet(A, C, standard(&a_to_c())) } else { packet(source, destination, standard(&path)) };
        let mut arrived = fresh.clone();
        let start = if source == C { A } else { source };
        let (_, _, way) = travel(start, &mut arrived);
        for break_at in 1..way.len() {
            for at_mac in [false, true] {
                // The packet travels to its `break_at`th router, which finds it expired, or wrong in its MAC.
                let mut sent = fresh.clone();
                let (mut at, mut ingress) = (start, Ingress::Internal);
                for _ in 0..break_at {
                    let (verdict, _) = judge(at, &mut sent, ingress);
                    let Verdict::Forward(egress) = verdict else { panic!("{verdict:?}") };
                    let (next, interface) = other_end(at, egress);
                    (at, ingress) = (next, Ingress::Interface(interface));
                }
                let mut rules = forwarder(at);
                let mut reply = Reply::default();
                let now = if at_mac {
                    rules.key = HopKey::new(&[0; 16]);
                    NOW_MS
                } else {
                    u64::MAX
                };
                let verdict = rules.process(&mut sent, ingress, now, &mut reply);
                let expected = if at_mac { DropReason::BadMac } else { DropReason::Expired };
                assert_eq!(verdict, Verdict::Reply(Some(expected)));
                let mut reply = reply.packet().to_vec();
                let arrived = Verdict::Deliver(SocketAddr::new(host(start, 9), PORTS.source));
                assert_eq!(travel_back(&way[..=break_at], &mut reply), arrived, "{way:?} {break_at} {at_mac}");
            }
        }
    }
}

// SCMP, "Processing Rules", 5.
#[test]
fn errors_are_never_answered_with_errors() {
    let down = down_core1_to_a();
    let quoted = packet(A, CORE1, PathRef::Empty);
    let error = Message::DestinationUnreachable { code: UnreachableCode::PORT, quote: &quoted };
    let echo = Message::EchoRequest { id: EchoId { identifier: 31_001, sequence: 1 }, data: &[] };
    // Nor is what no single host has sent: every one of many would hear of it.
    for source in ["224.0.0.1", "255.255.255.255", "0.0.0.0"] {
        let mut sent = packet(CORE1, A, standard(&down));
        let at = hop_at(&sent, 0);
        sent[at + 6] ^= 1;
        let source: Ipv4Addr = source.parse().unwrap();
        sent[32..36].copy_from_slice(&source.octets());
        let (verdict, reply) = judge(CORE1, &mut sent, Ingress::Internal);
        assert!(matches!(verdict, Verdict::Drop(_)) && reply.is_empty(), "{source}: {verdict:?}");
    }
    for (message, is_answered) in [(error, false), (echo, true)] {
        let mut sent = scmp_packet(CORE1, Address::new(ia(A), host(A, 9)), standard(&down), &message);
        let at = hop_at(&sent, 0);
        sent[at + 6] ^= 1;
        let (verdict, reply) = judge(CORE1, &mut sent, Ingress::Internal);
        assert_eq!(matches!(verdict, Verdict::Reply(_)), is_answered);
        assert_eq!(reply.is_empty(), !is_answered);
    }
}

#[test]
fn a_mute_reply_is_a_drop() {
    let mut sent = packet(CORE1, A, standard(&down_core1_to_a()));
    let at = hop_at(&sent, 0);
    sent[at + 6] ^= 1;
    let mut reply = Reply::default();
    reply.mute(true);
    let verdict = forwarder(CORE1).process(&mut sent, Ingress::Internal, NOW_MS, &mut reply);
    assert_eq!(verdict, Verdict::Drop(DropReason::BadMac));
    assert!(reply.packet().is_empty());
}

#[test]
fn the_router_answers_echo_from_far_and_near() {
    let id = EchoId { identifier: 31_005, sequence: 3 };
    let echo = Message::EchoRequest { id, data: b"data" };
    let (to, path) = (Address::new(ia(C), router_host(C)), a_to_c());
    let mut sent = scmp_packet(A, to, standard(&path), &echo);
    let (verdict, mut reply, way) = travel(A, &mut sent);
    assert_eq!(verdict, Verdict::Reply(None));
    assert_eq!(parsed(&reply).1, Message::EchoReply { id, data: b"data" });
    // By the identifier: it is the asker's port.
    assert_eq!(travel_back(&way, &mut reply), Verdict::Deliver(SocketAddr::new(host(A, 9), 31_005)));

    let mut sent = scmp_packet(A, Address::new(ia(A), router_host(A)), PathRef::Empty, &echo);
    let (verdict, reply) = judge(A, &mut sent, Ingress::Internal);
    assert_eq!(verdict, Verdict::Reply(None));
    assert_eq!(parsed(&reply).0.header().path(), PathRef::Empty);
    // Other hosts of the AS are reached without a router.
    let mut sent = scmp_packet(A, Address::new(ia(A), host(A, 9)), PathRef::Empty, &echo);
    assert_eq!(judge(A, &mut sent, Ingress::Internal).0, Verdict::Drop(DropReason::NotAnswered));
    // And nobody reaches anybody without a path from outside.
    assert_eq!(judge(A, &mut sent, Ingress::Interface(1)).0, Verdict::Drop(DropReason::PathType));
}

// SCMP, "Traceroute Request": hop by hop, at the ingress and at the egress.
#[test]
fn traceroutes_are_answered_where_the_alert_is() {
    let id = EchoId { identifier: 31_006, sequence: 9 };
    let path = a_to_c();
    // Hop fields of A, core 1 (twice), core 2 (twice), C.
    let cases = [
        (0, true, A, 1),
        (1, false, CORE1, 2),
        (2, true, CORE1, 1),
        (3, false, CORE2, 1),
        (4, true, CORE2, 2),
        (5, false, C, 1),
    ];
    for (hop, at_egress, asn, interface) in cases {
        let to = Address::new(ia(C), host(C, 9));
        let mut sent = scmp_packet(A, to, standard(&path), &Message::TracerouteRequest { id });
        with_path(&mut sent, |path| assert!(path.set_alert(hop, at_egress)));
        let (verdict, mut reply, way) = travel(A, &mut sent);
        assert_eq!(verdict, Verdict::Reply(None), "hop {hop}");
        assert_eq!(parsed(&reply).1, Message::TracerouteReply { id, isd_as: ia(asn), interface });
        // The reference's tools know the path by its bytes: no alert is left in it.
        let PathRef::Standard(back) = parsed(&reply).0.header().path() else { panic!("a standard path") };
        let hops = (0..back.hop_count()).map(|hop| back.hop(hop).unwrap());
        assert!(hops.into_iter().all(|hop| !hop.ingress_alert && !hop.egress_alert), "hop {hop}");
        if way.len() > 1 {
            assert_eq!(travel_back(&way, &mut reply), Verdict::Deliver(SocketAddr::new(host(A, 9), 31_006)));
        }
    }
    // A link that is down is found: the reply comes before the look at its state.
    let mut sent = scmp_packet(A, Address::new(ia(C), host(C, 9)), standard(&path), &Message::TracerouteRequest { id });
    with_path(&mut sent, |path| assert!(path.set_alert(0, true)));
    let mut rules = forwarder(A);
    rules.interface_mut(1).unwrap().is_up = false;
    assert_eq!(judge_by(&rules, &mut sent, Ingress::Internal).0, Verdict::Reply(None));
    // What is no traceroute has no business with an alert.
    let mut sent = packet(A, C, standard(&path));
    with_path(&mut sent, |path| assert!(path.set_alert(0, true)));
    assert_eq!(judge(A, &mut sent, Ingress::Internal).0, Verdict::Drop(DropReason::NotAnswered));
}

fn delivered(destination: HostAddr, ports: Ports) -> (Verdict, Vec<u8>) {
    let path = down_core1_to_a();
    let to = Address { isd_as: ia(A), host: destination };
    let mut sent = packet_to(CORE1, to, standard(&path), ports, b"");
    with_path(&mut sent, |path| {
        path.chain_seg_id();
        path.advance().unwrap();
    });
    judge(A, &mut sent, Ingress::Interface(1))
}

#[test]
fn hosts_are_found_at_their_port_within_the_range_and_else_at_the_common_one() {
    let to = |port| delivered(host(A, 9).into(), Ports { source: 1, destination: port }).0;
    let at = |port| Verdict::Deliver(SocketAddr::new(host(A, 9), port));
    assert_eq!((to(31_000), to(32_767)), (at(31_000), at(32_767)));
    assert_eq!((to(30_999), to(32_768), to(80)), (at(30_041), at(30_041), at(30_041)));
}

#[test]
fn services_are_found_by_name_and_missed_by_name() {
    let to = |service| delivered(HostAddr::Service(service), PORTS);
    let control = Verdict::Deliver(SocketAddr::new(host(A, 2), 30_252));
    assert_eq!(to(Service::CONTROL).0, control);
    assert_eq!(to(Service(Service::CONTROL.0 | 0x8000)).0, control);
    let (verdict, reply) = to(Service::DISCOVERY);
    assert_eq!(verdict, Verdict::Reply(Some(DropReason::NoService)));
    assert!(matches!(parsed(&reply).1, Message::DestinationUnreachable { code: UnreachableCode::NO_ROUTE, .. }));
}

#[test]
fn no_packet_makes_the_router_send_out_of_its_network() {
    let to = |host: &str| delivered(host.parse::<IpAddr>().unwrap().into(), PORTS).0;
    let unreachable = Verdict::Reply(Some(DropReason::Unreachable));
    for host in ["192.0.2.1", "224.0.0.1", "255.255.255.255", "2001:db8::1", "::1"] {
        assert_eq!(to(host), unreachable, "{host}");
    }
    assert_eq!(to("0.0.0.0"), Verdict::Reply(Some(DropReason::BadDestination)));
    let mapped = HostAddr::V6("::ffff:127.0.0.1".parse().unwrap());
    assert_eq!(delivered(mapped, PORTS).0, Verdict::Reply(Some(DropReason::BadDestination)));
}

fn one_hop(source: u64, destination: u64, egress: u16) -> Vec<u8> {
    let seg_id = 77;
    let path = OneHopPath::build(info(true, false, seg_id), seal(source, seg_id, 0, egress));
    packet(source, destination, PathRef::OneHop(OneHopPath::parse(&path).unwrap()))
}

// SCION header, "OneHopPath".
#[test]
fn one_hop_paths_are_completed_and_lead_back() {
    let mut sent = one_hop(CORE1, A, 2);
    assert_eq!(judge(CORE1, &mut sent, Ingress::Internal).0, Verdict::Forward(2));
    assert_eq!(judge(A, &mut sent, Ingress::Interface(1)).0, ARRIVED(A));
    let mut back = [0; 64];
    let len = Packet::parse(&sent).unwrap().header().path().copy_reversed(&mut back).unwrap();
    let mut answer = packet(A, CORE1, PathRef::parse(1, &back[..len]).unwrap());
    assert_eq!(judge(A, &mut answer, Ingress::Internal).0, Verdict::Forward(1));
    assert_eq!(judge(CORE1, &mut answer, Ingress::Interface(2)).0, ARRIVED(CORE1));
}

#[test]
fn one_hop_paths_reach_the_neighbour_alone() {
    let dropped = |mut sent: Vec<u8>, asn, ingress| match judge(asn, &mut sent, ingress).0 {
        Verdict::Drop(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(dropped(one_hop(CORE1, B, 2), CORE1, Ingress::Internal), DropReason::BadDestination);
    assert_eq!(dropped(one_hop(B, A, 2), CORE1, Ingress::Internal), DropReason::BadSource);
    assert_eq!(dropped(one_hop(CORE1, A, 9), CORE1, Ingress::Internal), DropReason::UnknownEgress);
    assert_eq!(dropped(one_hop(B, A, 1), A, Ingress::Interface(1)), DropReason::BadSource);
    assert_eq!(dropped(one_hop(CORE1, B, 1), A, Ingress::Interface(1)), DropReason::BadDestination);
    let mut forged = one_hop(CORE1, A, 2);
    let at = Packet::parse(&forged).unwrap().header().path_offset() + 8 + 6;
    forged[at] ^= 1;
    assert_eq!(dropped(forged, CORE1, Ingress::Internal), DropReason::BadMac);
}

#[test]
fn sizes_must_agree() {
    let sent = packet(CORE1, A, standard(&down_core1_to_a()));
    let mut longer = [&sent[..], &[0]].concat();
    rejection(CORE1, &mut longer, Ingress::Internal, DropReason::WrongSize, ProblemCode::PACKET_SIZE);
    let len = sent.len();
    let mut shorter = sent;
    rejection(CORE1, &mut shorter[..len - 1], Ingress::Internal, DropReason::WrongSize, ProblemCode::PACKET_SIZE);
    for len in 0..28 {
        assert!(matches!(judge(CORE1, &mut shorter[..len], Ingress::Internal).0, Verdict::Drop(_)));
    }
}

#[test]
fn path_types_without_meaning_are_dropped() {
    let mut sent = packet(CORE1, A, standard(&down_core1_to_a()));
    sent[8] = 3;
    assert_eq!(judge(CORE1, &mut sent, Ingress::Internal).0, Verdict::Drop(DropReason::PathType));
}

#[test]
fn probes_are_for_the_router_alone() {
    let path = OneHopPath::build(info(true, false, 5), seal(CORE1, 5, 0, 2));
    for (to, is_probe) in [(router_host(A), true), (host(A, 9), false)] {
        let fields = HeaderFields {
            source: Address::new(ia(CORE1), router_host(CORE1)),
            destination: Address::new(ia(A), to),
            path: PathRef::OneHop(OneHopPath::parse(&path).unwrap()),
            flow_id: 0,
            traffic_class: 0,
        };
        let mut sent = vec![0; fields.header_len()];
        fields.write(PROBE_PROTOCOL, 0, &mut sent).unwrap();
        let (verdict, _) = judge(A, &mut sent, Ingress::Interface(1));
        assert_eq!(verdict == Verdict::Probe, is_probe);
    }
    assert_ne!(PROBE_PROTOCOL, Protocol::UDP);
}

proptest! {
    #[test]
    fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), from_outside: bool, now: u64) {
        let ingress = if from_outside { Ingress::Interface(2) } else { Ingress::Internal };
        forwarder(CORE1).process(&mut bytes, ingress, now, &mut Reply::default());
    }

    // One byte changed somewhere reaches deeper than noise does.
    #[test]
    fn no_tampering_panics_or_gets_a_forged_hop_through(at in 0..200_usize, flip in 1..=255_u8, far: bool) {
        let mut sent = packet(A, C, standard(&a_to_c()));
        if far {
            judge(A, &mut sent, Ingress::Internal);
        }
        let at = at % sent.len();
        sent[at] ^= flip;
        let (asn, ingress) = if far { (CORE1, Ingress::Interface(2)) } else { (A, Ingress::Internal) };
        let before = sent.clone();
        let (verdict, reply) = judge(asn, &mut sent, ingress);
        prop_assert_eq!(matches!(verdict, Verdict::Reply(_)), !reply.is_empty());
        if matches!(verdict, Verdict::Reply(_)) {
            prop_assert_eq!(&before, &sent);
            prop_assert!(Packet::parse(&reply).is_ok());
        }
        // What the MAC covers cannot be changed: ExpTime, both interfaces, the MAC itself; and SegID, Timestamp.
        let path_at = 36;
        let (info, hop) = (path_at + 4, path_at + 4 + 24);
        let current = if far { (info, hop + 12) } else { (info, hop) };
        let covered = (current.0 + 2..current.0 + 8).contains(&at) || (current.1 + 1..current.1 + 12).contains(&at);
        if covered {
            prop_assert!(!matches!(verdict, Verdict::Forward(_)), "{} {:?}", at, verdict);
        }
    }
}
