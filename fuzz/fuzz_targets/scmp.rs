//! Any bytes as an SCMP message, alone and within a packet: what is read can be written and is the same message again, but
//! for the end of a quote that is too long.
#![no_main]

use std::net::IpAddr;

use anabranch_scion_wire::scmp::{ERROR_PACKET_LEN_MAX, Message, Quote};
use anabranch_scion_wire::{Address, HeaderFields, Packet, PathRef};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(packet) = Packet::parse(data) {
        let _ = Message::parse(&packet);
    }
    let _ = Quote::parse(data).map(|quote| quote.source_port());
    let Ok(message) = Message::parse_unverified(data) else { return };
    let _ = (message.to_string(), message.quote().map(Quote::parse));
    let address = |last| Address::new(Default::default(), IpAddr::from([10, 0, 0, last]));
    let fields = HeaderFields {
        source: address(1),
        destination: address(2),
        path: PathRef::Empty,
        flow_id: 1,
        traffic_class: 0,
    };
    let mut out = vec![0; data.len() + 128];
    // Only what no packet has room for is not written.
    let Ok(len) = message.write(&fields, &mut out) else { return assert!(data.len() > usize::from(u16::MAX)) };
    let packet = Packet::parse(&out[..len]).expect("what was written is a packet");
    let again = Message::parse(&packet).expect("and a message with the right checksum");
    if message.is_error() && data.len() > ERROR_PACKET_LEN_MAX - 36 {
        assert_eq!(len, ERROR_PACKET_LEN_MAX);
    } else {
        assert_eq!(again, message);
    }
});
