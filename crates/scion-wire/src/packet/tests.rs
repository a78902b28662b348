use proptest::prelude::*;

use super::*;
use crate::{DataplanePath, HopField, InfoField, PathSegment, arbitrary};

fn address(isd_as: &str, host: &str) -> Address {
    Address::new(isd_as.parse().unwrap(), host.parse::<std::net::IpAddr>().unwrap())
}

fn fields(path: PathRef<'_>) -> HeaderFields<'_> {
    HeaderFields {
        source: address("2-ff00:0:222", "10.0.0.100"),
        destination: address("1-ff00:0:111", "2001:db8::68"),
        path,
        flow_id: 0xdead,
        traffic_class: 0xb8,
    }
}

/// Four hops on two segments.
fn path() -> DataplanePath {
    let hop = |cons_ingress, cons_egress| HopField {
        mac: [1, 2, 3, 4, 5, 6],
        ..HopField::unsealed(63, cons_ingress, cons_egress)
    };
    let info = |cons_dir, seg_id| InfoField { peering: false, cons_dir, seg_id, timestamp_s: 0x100 };
    DataplanePath::build(&[
        PathSegment { info: info(false, 0x111), hops: &[hop(1, 0), hop(3, 2)] },
        PathSegment { info: info(true, 0x222), hops: &[hop(0, 2), hop(1, 0)] },
    ])
    .unwrap()
}

/// A packet with `payload` behind that path.
fn packet(payload: &[u8]) -> Vec<u8> {
    let path = path();
    let mut bytes = vec![0; HEADER_LEN_MAX];
    let len = fields(PathRef::Standard(path.view())).write(Protocol::UDP, payload.len(), &mut bytes).unwrap();
    bytes.truncate(len);
    bytes.extend(payload);
    bytes
}

#[test]
fn bytes_are_those_of_the_specification() {
    let packet = packet(b"12345678");
    #[rustfmt::skip]
    let expected = [
        // Version 0, traffic class 0xb8, flow id 0x0dead.
        0x0b, 0x80, 0xde, 0xad,
        // UDP, 29 lines, 8 bytes of payload.
        17, 29, 0, 8,
        // Path type SCION, IPv6 to IPv4.
        1, 0x30, 0, 0,
        // Destination and source AS.
        0, 1, 0xff, 0, 0, 0, 0x01, 0x11,
        0, 2, 0xff, 0, 0, 0, 0x02, 0x22,
        0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x68,
        10, 0, 0, 100,
    ];
    assert_eq!(&packet[..48], expected);
    assert_eq!(&packet[48..116], path().as_bytes());
    assert_eq!(&packet[116..], b"12345678");
}

#[test]
fn the_checksum_is_the_reference_implementations() {
    // What the reference computes over these addresses, ports 1280 to 80 and four times the bytes 0 to 255.
    let payload: Vec<u8> = (0..1024).map(|i| i as u8).collect();
    let udp = [[0x05, 0x00, 0x00, 0x50, 0x04, 0x08, 0, 0].as_slice(), &payload].concat();
    let sum = fields(PathRef::Empty).pseudo_sum(Protocol::UDP, udp.len()) + crate::checksum::sum(&udp);
    assert_eq!(sum.checksum(), 0xb7d2);
}

#[test]
fn accessors_read_what_was_written() {
    let bytes = packet(b"payload");
    let packet = Packet::parse(&bytes).unwrap();
    let header = packet.header();
    assert_eq!((header.traffic_class(), header.flow_id()), (0xb8, 0xdead));
    assert_eq!((header.next_header(), header.payload_len()), (Protocol::UDP, 7));
    assert_eq!(header.source(), Some(fields(PathRef::Empty).source));
    assert_eq!(header.destination(), Some(fields(PathRef::Empty).destination));
    assert_eq!(header.path(), PathRef::Standard(path().view()));
    assert_eq!((header.path_offset(), header.as_bytes().len(), packet.payload()), (48, 116, b"payload".as_slice()));
}

#[test]
fn lengths_that_lie_are_refused() {
    let whole = packet(b"payload");
    for len in 0..whole.len() {
        assert_eq!(Packet::parse(&whole[..len]), Err(PacketError::Truncated), "{len}");
    }
    let longer = [whole.as_slice(), b"!"].concat();
    assert_eq!(Packet::parse(&longer), Err(PacketError::TrailingBytes));
    let changed = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        PacketMut::parse(&mut bytes).map(drop)
    };
    assert_eq!(changed(0, 0x10), Err(PacketError::UnknownVersion));
    assert_eq!(changed(HEADER_LEN, 11), Err(PacketError::HeaderLength));
    assert_eq!(changed(HEADER_LEN, 0), Err(PacketError::HeaderLength));
    assert_eq!(changed(HEADER_LEN, 28), Err(PacketError::Path(PathError::Truncated)));
    assert_eq!(changed(HEADER_LEN, 30), Err(PacketError::Path(PathError::TrailingBytes)));
    assert_eq!(changed(HEADER_LEN, 255), Err(PacketError::Truncated));
    assert_eq!(changed(PATH_TYPE, 0), Err(PacketError::Path(PathError::TrailingBytes)));
    assert_eq!(changed(HOST_KINDS, 0x33), Err(PacketError::Path(PathError::SegmentGap)));
}

#[test]
fn unknown_types_are_passed_on_but_not_read() {
    let mut bytes = packet(b"");
    bytes[PATH_TYPE] = 3;
    bytes[HOST_KINDS] = 0x74;
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!((packet.header().destination(), packet.header().path().path_type()), (None, 3));
    assert_eq!(packet.header().source_host(), Some(HostAddr::Service(crate::Service(0x0a00))));
    assert!(packet.header().path().copy_reversed(&mut [0; 1000]).is_none());
}

#[test]
fn routers_change_packets_in_place() {
    let mut bytes = packet(b"payload");
    let mut packet = PacketMut::parse(&mut bytes).unwrap();
    let PathMut::Standard(mut path) = packet.path_mut() else { panic!("a standard path") };
    path.advance().unwrap();
    path.chain_seg_id();
    let (changed, view) = (Packet::parse(packet.as_bytes()).unwrap(), packet.view());
    assert_eq!(changed, view);
    assert_eq!(view.header().flow_id(), 0xdead);
    let PathRef::Standard(path) = view.header().path() else { panic!("a standard path") };
    assert_eq!((path.meta().hop_current(), path.current_info().seg_id), (1, 0x111 ^ 0x102));
    assert_eq!((path.current_info_offset(), path.current_hop_offset()), (4, 4 + 16 + 12));
}

#[test]
fn extension_headers_come_once_and_in_order() {
    let upper = |protocol: u8, bytes: &[u8]| skip_extensions(Protocol(protocol), bytes).map(|upper| upper.bytes.len());
    assert_eq!(upper(17, b"udp"), Ok(3));
    assert_eq!(upper(200, &[17, 0, 0, 0, 1]), Ok(1));
    assert_eq!(upper(200, &[201, 0, 0, 0, 17, 1, 0, 0, 0, 0, 0, 0, 1]), Ok(1));
    assert_eq!(upper(201, &[17, 255, 0, 0]), Err(PacketError::Extension));
    assert_eq!(upper(201, &[17]), Err(PacketError::Extension));
    assert_eq!(upper(201, &[200, 0, 0, 0, 17, 0, 0, 0]), Err(PacketError::Extension));
    assert_eq!(upper(200, &[200, 0, 0, 0, 17, 0, 0, 0]), Err(PacketError::Extension));
    assert_eq!(upper(201, &[201, 0, 0, 0, 17, 0, 0, 0]), Err(PacketError::Extension));
}

#[test]
fn what_fits_no_length_field_is_not_written() {
    let mut out = [0; HEADER_LEN_MAX];
    let fields = fields(PathRef::Empty);
    assert_eq!(fields.write(Protocol::UDP, 65535, &mut out), Ok(48));
    assert_eq!(fields.write(Protocol::UDP, 65536, &mut out), Err(PacketError::TooLong));
    assert_eq!(fields.write(Protocol::UDP, 0, &mut out[..47]), Err(PacketError::TooLong));
    let other = |len| HeaderFields { path: PathRef::parse(4, &[0; 1024][..len]).unwrap(), ..fields };
    assert_eq!(other(1020 - 48).write(Protocol::UDP, 0, &mut out), Ok(1020));
    assert_eq!(other(1024 - 48).write(Protocol::UDP, 0, &mut out), Err(PacketError::TooLong));
    assert_eq!(other(3).write(Protocol::UDP, 0, &mut out), Err(PacketError::TooLong));
}

#[test]
fn each_error_has_its_own_counter() {
    assert_eq!(PacketError::TooLong.index() + 1, PacketError::Path(PathError::Truncated).index());
    assert_eq!(PacketError::Path(PathError::Incomplete).index() + 1, PacketError::COUNT);
}

proptest! {
    #[test]
    fn headers_parse_back(
        source in arbitrary::address(), destination in arbitrary::address(), path in arbitrary::path(),
        flow_id in 0u32..1 << 20, traffic_class: u8, next: u8, payload in proptest::collection::vec(any::<u8>(), 0..50)
    ) {
        let fields = HeaderFields { source, destination, path: PathRef::Standard(path.view()), flow_id, traffic_class };
        let mut bytes = vec![0xee; HEADER_LEN_MAX];
        let len = fields.write(Protocol(next), payload.len(), &mut bytes).unwrap();
        prop_assert_eq!(len, fields.header_len());
        bytes.truncate(len);
        bytes.extend(&payload);
        let packet = Packet::parse(&bytes).unwrap();
        let header = packet.header();
        prop_assert_eq!((header.source(), header.destination()), (Some(source), Some(destination)));
        prop_assert_eq!((header.flow_id(), header.traffic_class()), (flow_id, traffic_class));
        prop_assert_eq!((header.path(), header.next_header()), (fields.path, Protocol(next)));
        prop_assert_eq!(packet.payload(), payload);
        let sums = (header.pseudo_sum(Protocol(next), 9), fields.pseudo_sum(Protocol(next), 9));
        prop_assert_eq!(sums.0.checksum(), sums.1.checksum());
    }

    #[test]
    fn bit_flips_are_read_without_a_panic(path in arbitrary::path(), flips in proptest::collection::vec(any::<prop::sample::Index>(), 1..9)) {
        let fields = fields(PathRef::Standard(path.view()));
        let mut bytes = vec![0; fields.header_len() + 64];
        let len = bytes.len();
        fields.write(Protocol::UDP, 64, &mut bytes).unwrap();
        for flip in flips {
            let bit = flip.index(len * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        exercise(&mut bytes);
    }

    #[test]
    fn anything_is_read_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..1200)) {
        exercise(&mut bytes);
    }
}

/// Every accessor once.
fn exercise(bytes: &mut [u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let header = packet.header();
    let _ = (header.source(), header.destination(), packet.upper());
    let _ = (header.path().fingerprint(), crate::scmp::receiver_port(&packet), crate::udp::Datagram::parse(&packet));
    let mut changed = PacketMut::parse(bytes).unwrap();
    if let PathMut::Standard(mut path) = changed.path_mut() {
        path.chain_seg_id();
        let _ = path.advance();
        path.reverse();
    }
    assert_eq!(Packet::parse(changed.as_bytes()), Ok(changed.view()));
}
