//! Any datagram as one that a SOCKS5 proxy relayed.
#![no_main]

use anabranch_transport::{UdpSource, parse_relayed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some((source, payload)) = parse_relayed(data) {
        assert!(data.ends_with(payload) && data[..3] == [0; 3]);
        let header = data.len() - payload.len();
        match source {
            UdpSource::Address(address) => assert_eq!(header, if address.is_ipv4() { 10 } else { 22 }),
            UdpSource::Name(_) => assert_eq!(header, 7 + usize::from(data[4])),
        }
    }
});
