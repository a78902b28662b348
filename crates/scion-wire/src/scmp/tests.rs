use proptest::prelude::*;

use super::*;
use crate::{Address, HeaderTemplate, PathRef, Ports, arbitrary};

fn fields() -> HeaderFields<'static> {
    let address =
        |isd_as: &str, host: &str| Address::new(isd_as.parse().unwrap(), host.parse::<std::net::IpAddr>().unwrap());
    HeaderFields {
        source: address("1-ff00:0:111", "10.0.0.1"),
        destination: address("2-ff00:0:222", "10.0.0.2"),
        path: PathRef::Empty,
        flow_id: 1,
        traffic_class: 0,
    }
}

/// A packet with `message`.
fn written(message: Message<'_>) -> Vec<u8> {
    let mut out = vec![0; 2000];
    let len = message.write(&fields(), &mut out).unwrap();
    out.truncate(len);
    out
}

/// A UDP packet of ours from port 31000.
fn datagram(payload_len: usize) -> Vec<u8> {
    let template = HeaderTemplate::new(&fields(), Ports { source: 31000, destination: 443 }).unwrap();
    let mut packet = vec![0; template.header_len() + payload_len];
    template.write(payload_len, checksum::Sum::default(), &mut packet).unwrap();
    packet
}

fn every_kind<'a>(bytes: &'a [u8]) -> [Message<'a>; 9] {
    let id = EchoId { identifier: 31000, sequence: 7 };
    let isd_as: IsdAs = "1-ff00:0:111".parse().unwrap();
    [
        Message::DestinationUnreachable { code: UnreachableCode::PORT, quote: bytes },
        Message::PacketTooBig { mtu: 1400, quote: bytes },
        Message::ParameterProblem { code: ProblemCode::HOP_MAC, pointer: 80, quote: bytes },
        Message::ExternalInterfaceDown { isd_as, interface: 5, quote: bytes },
        Message::InternalConnectivityDown { isd_as, ingress: 5, egress: 15, quote: bytes },
        Message::EchoRequest { id, data: bytes },
        Message::EchoReply { id, data: bytes },
        Message::TracerouteRequest { id },
        Message::TracerouteReply { id, isd_as, interface: 41 },
    ]
}

#[test]
fn bytes_are_those_of_the_specification() {
    let messages = every_kind(&[0xff; 4]).map(|message| {
        let packet = written(message);
        let mut upper = Packet::parse(&packet).unwrap().upper().unwrap().bytes.to_vec();
        upper[CHECKSUM..GENERAL_LEN].fill(0);
        upper.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    let expected = [
        "0104000000000000ffffffff",
        "0200000000000578ffffffff",
        "0433000000000050ffffffff",
        "050000000001ff00000001110000000000000005ffffffff",
        "060000000001ff00000001110000000000000005000000000000000fffffffff",
        "8000000079180007ffffffff",
        "8100000079180007ffffffff",
        "820000007918000700000000000000000000000000000000",
        "83000000791800070001ff00000001110000000000000029",
    ];
    assert_eq!(messages.each_ref().map(String::as_str), expected);
}

#[test]
fn every_kind_is_read_back() {
    for message in every_kind(b"what it is about") {
        let packet = written(message);
        assert_eq!(Message::parse(&Packet::parse(&packet).unwrap()), Ok(message), "{message}");
    }
}

#[test]
fn truncated_messages_are_refused() {
    for message in every_kind(b"") {
        let packet = written(message);
        let upper = Packet::parse(&packet).unwrap().upper().unwrap().bytes;
        assert!(Message::parse_unverified(upper).is_ok());
        for len in 0..upper.len() {
            assert_eq!(Message::parse_unverified(&upper[..len]), Err(ScmpError::Truncated), "{message}, {len}");
        }
    }
}

#[test]
fn a_changed_byte_breaks_the_checksum() {
    let whole = written(every_kind(b"odd")[5]);
    for at in 36..whole.len() {
        let mut packet = whole.clone();
        packet[at] ^= 1;
        assert_eq!(Message::parse(&Packet::parse(&packet).unwrap()), Err(ScmpError::Checksum));
    }
}

#[test]
fn interfaces_beyond_sixteen_bits_are_refused() {
    let mut upper = [0; 20];
    upper[0] = EXTERNAL_INTERFACE_DOWN;
    upper[17] = 1;
    assert_eq!(Message::parse_unverified(&upper), Err(ScmpError::Interface));
}

#[test]
fn errors_stay_within_the_limit() {
    let offending = datagram(8000);
    for message in every_kind(&offending) {
        let mut out = vec![0; 9000];
        let len = message.write(&fields(), &mut out).unwrap();
        if message.is_error() {
            assert_eq!(len, ERROR_PACKET_LEN_MAX, "{message}");
        }
    }
    // One that just fits is quoted whole.
    let room = ERROR_PACKET_LEN_MAX - fields().header_len() - 8;
    let quote = &offending[..room];
    let packet = written(Message::PacketTooBig { mtu: 1280, quote });
    assert_eq!(Message::parse(&Packet::parse(&packet).unwrap()).unwrap().quote(), Some(quote));
}

#[test]
fn a_quote_tells_whose_packet_it_was() {
    let offending = datagram(100);
    let quote = Quote::parse(&offending[..offending.len() - 90]).unwrap();
    assert_eq!(quote.source_port(), Some(31000));
    assert_eq!(quote.header().destination(), Some(fields().destination));
    // Cut within the UDP header, and within the SCION header.
    assert_eq!(Quote::parse(&offending[..37]).unwrap().source_port(), None);
    assert_eq!(Quote::parse(&offending[..38]).unwrap().source_port(), Some(31000));
    assert_eq!(Quote::parse(&offending[..35]), Err(PacketError::Truncated));
}

#[test]
fn receivers_are_found_by_what_the_packet_carries() {
    let port = |packet: &[u8]| receiver_port(&Packet::parse(packet).unwrap());
    assert_eq!(port(&datagram(3)), Some(443));
    let id = EchoId { identifier: 31001, sequence: 0 };
    let request = written(Message::EchoRequest { id, data: b"" });
    assert_eq!(port(&request), Some(END_HOST_PORT));
    assert_eq!(port(&written(Message::EchoReply { id, data: b"" })), Some(31001));
    fn down(quote: &[u8]) -> Message<'_> {
        Message::ExternalInterfaceDown { isd_as: IsdAs::default(), interface: 1, quote }
    }
    assert_eq!(port(&written(down(&datagram(3)))), Some(31000));
    assert_eq!(port(&written(down(&request))), Some(31001));
    // Errors about errors and replies are nobody's.
    assert_eq!(port(&written(down(&written(down(&datagram(3)))))), None);
    assert_eq!(port(&written(down(&written(Message::EchoReply { id, data: b"" })))), None);
    assert_eq!(port(&written(down(b"junk"))), None);
}

#[test]
fn unknown_types_are_errors_by_their_highest_bit() {
    for (kind, is_error) in [(3, true), (127, true), (132, false), (255, false)] {
        let bytes = [kind, 0, 0, 0, 1];
        let message = Message::parse_unverified(&bytes).unwrap();
        assert_eq!((message.is_error(), message.quote()), (is_error, None));
        let packet = written(message);
        assert_eq!(Message::parse(&Packet::parse(&packet).unwrap()), Ok(message));
    }
}

#[test]
fn each_error_has_its_own_counter() {
    assert_eq!(ScmpError::NotScmp.index(), 0);
    assert_eq!(ScmpError::Interface.index(), ScmpError::COUNT - 1);
}

proptest! {
    #[test]
    fn anything_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = Message::parse_unverified(&bytes) {
            let _ = (message.to_string(), message.quote().map(Quote::parse));
        }
        let _ = Quote::parse(&bytes).map(|quote| quote.source_port());
    }

    #[test]
    fn messages_over_any_path_are_read_back(path in arbitrary::path(), data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        let fields = HeaderFields { path: PathRef::Standard(path.view()), ..fields() };
        for message in every_kind(&data) {
            let mut out = [0; 3000];
            let len = message.write(&fields, &mut out).unwrap();
            let packet = Packet::parse(&out[..len]).unwrap();
            let read = Message::parse(&packet).unwrap();
            prop_assert!(!message.is_error() || len <= ERROR_PACKET_LEN_MAX);
            match (message.quote(), read.quote()) {
                (Some(whole), Some(cut)) => prop_assert!(whole.starts_with(cut)),
                _ => prop_assert_eq!(read, message),
            }
        }
    }
}
