//! Further addresses of one peer (`ab_addr` in the extension handshake): where it listens beside where it was met.

use anabranch_paths::{Endpoint, IsdAs, ScionAddr};

use crate::compact::{is_dialable, pack_scion, unpack_scion};

/// Addresses that a peer is told, and that are heeded of it: two families over four uplinks.
pub const ADDRESSES_MAX: usize = 8;

/// The bytes of `ab_addr`: our compact form of SCION addresses, where ISD-AS 0 stands for plain IP.
pub(super) fn encode(addresses: &[Endpoint]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in addresses {
        let isd_as = address.as_scion().map_or(IsdAs::from_u64(0), |scion| scion.isd_as);
        pack_scion(&ScionAddr { isd_as, host: address.socket_addr() }, &mut bytes);
    }
    bytes
}

/// Reads them up to the first that is broken, without those that nobody listens at, [`ADDRESSES_MAX`] at most.
pub(super) fn parse(bytes: &[u8]) -> Vec<Endpoint> {
    let plain = |address: ScionAddr| match address.isd_as.to_u64() {
        0 => Endpoint::from(address.host),
        _ => Endpoint::Scion(address),
    };
    unpack_scion(bytes).map(plain).filter(is_dialable).take(ADDRESSES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use proptest::prelude::*;

    fn endpoints(texts: &[&str]) -> Vec<Endpoint> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_have_the_documented_bytes() {
        let addresses = endpoints(&["10.1.2.3:6881", "[1-ff00:0:110,10.1.2.3]:6881"]);
        let bytes = encode(&addresses);
        let plain = [0, 0, 0, 0, 0, 0, 0, 0, 4, 10, 1, 2, 3, 0x1a, 0xe1];
        let scion = [0, 1, 0xff, 0, 0, 0, 1, 0x10, 4, 10, 1, 2, 3, 0x1a, 0xe1];
        assert_eq!(bytes, [plain, scion].concat());
        assert_eq!(parse(&bytes), addresses);
        assert_eq!(parse(&bytes[..29]), addresses[..1]);
        // Port 0, no host, half an ISD-AS.
        for nobody in [[0, 0, 0, 0, 0, 0, 0, 0, 4, 10, 1, 2, 3, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0, 4, 10, 1, 2, 3, 0, 1]] {
            assert_eq!(parse(&[&nobody[..], &bytes].concat()), addresses);
        }
    }

    #[test]
    fn no_more_are_heeded_than_are_told() {
        let many: Vec<Endpoint> = (1..=9).map(|port| ([192, 0, 2, 1], port).into()).map(Endpoint::Ip).collect();
        assert_eq!(parse(&encode(&many[..8])), many[..8]);
        assert_eq!(parse(&encode(&many)), many[..8]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_and_read_back(bytes: Vec<u8>) {
            let addresses = parse(&bytes);
            prop_assert!(addresses.len() <= ADDRESSES_MAX);
            prop_assert_eq!(parse(&encode(&addresses)), addresses);
        }

        #[test]
        fn lists_round_trip(ends in proptest::collection::vec((any::<u64>(), any::<IpAddr>(), any::<u16>()), 0..12)) {
            let wild = ends.into_iter().map(|(isd_as, ip, port)| match isd_as % 3 {
                0 => Endpoint::from(std::net::SocketAddr::new(ip, port)),
                _ => ScionAddr::new(IsdAs::from_u64(isd_as), (ip, port).into()).into(),
            });
            let addresses: Vec<Endpoint> = wild.filter(is_dialable).take(ADDRESSES_MAX).collect();
            prop_assert_eq!(parse(&encode(&addresses)), addresses);
        }
    }
}
