//! Everything that a router says itself, byte for byte as the specifications have it, written out by hand: the SCION
//! header ("Common Header", "Address Header", "Path Type: SCION") and SCMP ("Message Format" of each type).

use anabranch_scion_wire::mac::HopKey;
use anabranch_scion_wire::scmp::{EchoId, Message};
use anabranch_scion_wire::{Address, DataplanePath, HopField, Packet, PathRef, StandardPathMut};

use super::super::test_network::*;
use super::*;

/// "Internet checksum" (RFC 1071), in its plainest form.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn isd_as(asn: u64) -> [u8; 8] {
    ((1 << 48) | asn).to_be_bytes()
}

/// A hop field: flags, ExpTime, ConsIngress, ConsEgress, MAC.
fn hop(flags: u8, hop: &HopField) -> Vec<u8> {
    let ids = [hop.cons_ingress.to_be_bytes(), hop.cons_egress.to_be_bytes()].concat();
    [&[flags, 63], &ids[..], &hop.mac].concat()
}

/// An info field: flags, reserved, SegID, timestamp.
fn info_field(cons_dir: bool, seg_id: u16) -> Vec<u8> {
    [&[u8::from(cons_dir), 0], &seg_id.to_be_bytes()[..], &MADE_S.to_be_bytes()].concat()
}

/// The packet from `router`'s own address to host 9 of `to`, back over `path`, with an SCMP message of which `fixed` stands
/// behind the checksum.
fn said(router: u64, to: u64, path: &[u8], kind: [u8; 2], fixed: &[u8], tail: &[u8]) -> Vec<u8> {
    let addresses = [&isd_as(to)[..], &isd_as(router), &[127, 200, to as u8, 9], &[127, 200, router as u8, 1]].concat();
    let room = 1232 - 12 - addresses.len() - path.len() - 4 - fixed.len();
    // "as much of the offending packet as possible" without exceeding 1232 bytes
    let tail = if kind[0] < 128 { &tail[..tail.len().min(room)] } else { tail };
    let len = 4 + fixed.len() + tail.len();
    let pseudo = [&addresses[..], &(len as u32).to_be_bytes(), &[0, 0, 0, 202]].concat();
    let message = |sum: u16| [&kind[..], &sum.to_be_bytes(), fixed, tail].concat();
    let sum = checksum(&[&pseudo[..], &message(0)].concat());
    let header_len = 12 + addresses.len() + path.len();
    // Version 0, traffic class 0, flow 7 as in the packet; SCMP; path type 1; both addresses IPv4.
    let common =
        [&[0, 0, 0, 7, 202, (header_len / 4) as u8][..], &(len as u16).to_be_bytes(), &[1, 0x00, 0, 0]].concat();
    [common, addresses, path.to_vec(), message(sum)].concat()
}

/// From core 1 to A: its two hop fields, and the SegID before each.
fn down() -> (Segment, DataplanePath) {
    (segment(&[(CORE1, 0, 2), (A, 1, 0)]), down_core1_to_a())
}

/// The way back to core 1, for a packet that has just left A for it (CurrHF 1) or is still in core 1 (CurrHF 1 of 2: at its
/// end, since the path is turned round).
fn back_to_core1(current: u8, seg_id: u16, down: &Segment) -> Vec<u8> {
    // CurrINF 0, CurrHF, one segment of two hops.
    let meta = [current, 0, 0x20, 0];
    [&meta[..], &info_field(false, seg_id), &hop(0, &down.hops[1]), &hop(0, &down.hops[0])].concat()
}

#[track_caller]
fn assert_says(asn: u64, rules: &Forwarder, sent: &mut [u8], ingress: Ingress, now: u64, expected: &[u8]) {
    let mut reply = Reply::default();
    let verdict = rules.process(sent, ingress, now, &mut reply);
    assert!(matches!(verdict, Verdict::Reply(_)), "{asn:x}: {verdict:?}");
    assert_eq!(reply.packet(), expected);
}

// "Parameter Rejection": type 4, the code, reserved, the pointer, the packet.
#[test]
fn a_parameter_problem() {
    let (segment, path) = down();
    let mut sent = packet(CORE1, A, PathRef::Standard(path.view()));
    let quote = sent.clone();
    // Within the AS: the path turned round, and no further.
    let back = back_to_core1(1, segment.betas[0], &segment);
    let pointer = 12 + 24 + 4 + 8;
    let expected = said(CORE1, CORE1, &back, [4, 52], &[0, 0, 0, pointer], &quote);
    // "Path Expired": code 52.
    assert_says(CORE1, &forwarder(CORE1), &mut sent, Ingress::Internal, u64::MAX, &expected);
    // "Invalid Hop Field MAC": code 51.
    let mut rules = forwarder(CORE1);
    rules.key = HopKey::new(&[0; 16]);
    let expected = said(CORE1, CORE1, &back, [4, 51], &[0, 0, 0, pointer], &quote);
    assert_says(CORE1, &rules, &mut sent, Ingress::Internal, NOW_MS, &expected);
}

// "External Interface Down": type 5, code 0, ISD-AS, interface, the packet.
#[test]
fn an_external_interface_down() {
    let (segment, path) = down();
    let mut sent = packet_to(CORE1, Address::new(ia(A), host(A, 9)), PathRef::Standard(path.view()), PORTS, &[7; 1400]);
    let mut rules = forwarder(CORE1);
    rules.interface_mut(2).unwrap().is_up = false;
    let fixed = [&isd_as(CORE1)[..], &2_u64.to_be_bytes()].concat();
    let back = back_to_core1(1, segment.betas[0], &segment);
    let expected = said(CORE1, CORE1, &back, [5, 0], &fixed, &sent);
    assert_eq!(expected.len(), 1232);
    assert_says(CORE1, &rules, &mut sent, Ingress::Internal, NOW_MS, &expected);
}

// "Packet Too Big": type 2, code 0, reserved, MTU, the packet.
#[test]
fn a_packet_too_big() {
    let (segment, path) = down();
    let mut sent = packet(CORE1, A, PathRef::Standard(path.view()));
    let mut rules = forwarder(CORE1);
    rules.interface_mut(2).unwrap().mtu = 80;
    let back = back_to_core1(1, segment.betas[0], &segment);
    let expected = said(CORE1, CORE1, &back, [2, 0], &[0, 0, 0, 80], &sent);
    assert_says(CORE1, &rules, &mut sent, Ingress::Internal, NOW_MS, &expected);
}

// "Destination Unreachable": type 1, the code, unused, the packet. It leaves A over the link, so the path is a hop further on.
#[test]
fn a_destination_unreachable() {
    let (segment, path) = down();
    let to = Address::new(ia(A), "192.0.2.1".parse::<IpAddr>().unwrap());
    let mut sent = packet_to(CORE1, to, PathRef::Standard(path.view()), PORTS, b"hello");
    assert_eq!(judge(CORE1, &mut sent, Ingress::Internal).0, Verdict::Forward(2));
    // Against construction direction: SegID is what A's hop was sealed with.
    let back = back_to_core1(1, segment.betas[1], &segment);
    // "Address unreachable": code 3.
    let expected = said(A, CORE1, &back, [1, 3], &[0; 4], &sent);
    assert_says(A, &forwarder(A), &mut sent, Ingress::Interface(1), NOW_MS, &expected);
}

// "Echo Reply": type 129, code 0, identifier, sequence number, the data.
#[test]
fn an_echo_reply() {
    let (segment, path) = down();
    let id = EchoId { identifier: 31_005, sequence: 3 };
    let echo = Message::EchoRequest { id, data: b"odd" };
    let mut sent = scmp_packet(CORE1, Address::new(ia(A), router_host(A)), PathRef::Standard(path.view()), &echo);
    assert_eq!(judge(CORE1, &mut sent, Ingress::Internal).0, Verdict::Forward(2));
    let back = back_to_core1(1, segment.betas[1], &segment);
    let expected = said(A, CORE1, &back, [129, 0], &[0x79, 0x1d, 0, 3], b"odd");
    assert_says(A, &forwarder(A), &mut sent, Ingress::Interface(1), NOW_MS, &expected);
}

// "Traceroute Reply": type 131, code 0, identifier, sequence number, ISD-AS, interface. The alert that was met is gone; one
// that was not, for another router, stays.
#[test]
fn a_traceroute_reply() {
    let (segment, path) = down();
    let id = EchoId { identifier: 31_006, sequence: 9 };
    let to = Address::new(ia(A), host(A, 9));
    let request = |hops: &[(usize, bool)]| {
        let message = Message::TracerouteRequest { id };
        let mut sent = scmp_packet(CORE1, to, PathRef::Standard(path.view()), &message);
        let header = Packet::parse(&sent).unwrap();
        let (at, end) = (header.header().path_offset(), header.header().as_bytes().len());
        let mut path = StandardPathMut::parse(&mut sent[at..end]).unwrap();
        hops.iter().for_each(|(hop, at_egress)| assert!(path.set_alert(*hop, *at_egress)));
        sent
    };
    let fixed = |asn, interface: u64| [&[0x79, 0x1e, 0, 9][..], &isd_as(asn), &interface.to_be_bytes()].concat();
    // In A, at its ingress.
    let mut sent = request(&[(1, false)]);
    assert_eq!(judge(CORE1, &mut sent, Ingress::Internal).0, Verdict::Forward(2));
    let back = back_to_core1(1, segment.betas[1], &segment);
    let expected = said(A, CORE1, &back, [131, 0], &fixed(A, 1), &[]);
    assert_says(A, &forwarder(A), &mut sent, Ingress::Interface(1), NOW_MS, &expected);
    // In core 1, at its egress, with A's alert still to be met: bit 1 of its flags is ConsIngress's.
    let mut sent = request(&[(0, true), (1, false)]);
    let meta = [1, 0, 0x20, 0];
    let hops = [hop(0b10, &segment.hops[1]), hop(0, &segment.hops[0])].concat();
    let back = [&meta[..], &info_field(false, segment.betas[0]), &hops].concat();
    let expected = said(CORE1, CORE1, &back, [131, 0], &fixed(CORE1, 2), &[]);
    assert_says(CORE1, &forwarder(CORE1), &mut sent, Ingress::Internal, NOW_MS, &expected);
}
