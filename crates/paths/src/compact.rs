//! Compact addresses: 4 or 16 bytes of address and 2 of port, big-endian (BEP 5, BEP 7, BEP 23), and our own form for SCION.
//!
//! ```text
//! SCION  |ISD-AS 8|length of the host's address 1: 4 or 16|host's address|port 2|
//! ```
//!
//! Trackers and peers send them in the same form. What is left of a ragged list is for the caller to judge: a tracker's
//! reply of a broken length is an error, a peer's is read as far as it goes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{Endpoint, IsdAs, ScionAddr};

/// Bytes of an IPv4 address with port (BEP 23).
pub const V4_LEN: usize = 6;
/// Bytes of an IPv6 address with port (BEP 7).
pub const V6_LEN: usize = 18;
/// Bytes of the longest SCION address with port.
pub const SCION_LEN_MAX: usize = ISD_AS_LEN + 1 + V6_LEN;
const ISD_AS_LEN: usize = 8;
const PORT_LEN: usize = 2;

/// Appends the compact form of `address`.
pub fn pack(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// Appends our compact form of a SCION address.
pub fn pack_scion(address: &ScionAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(&address.isd_as.to_u64().to_be_bytes());
    out.push(if address.host.is_ipv4() { 4 } else { 16 });
    pack(address.host, out);
}

/// Takes the SCION address that `bytes` begin with; `None` where they begin with none, and then nothing is taken, as there
/// is no telling where the next one begins.
pub fn take_scion(bytes: &mut &[u8]) -> Option<ScionAddr> {
    let (isd_as, rest) = bytes.split_first_chunk::<ISD_AS_LEN>()?;
    let (ip_len, rest) = rest.split_first()?;
    let (ip, rest) = rest.split_at_checked(usize::from(*ip_len))?;
    let (port, rest) = rest.split_first_chunk::<PORT_LEN>()?;
    let host = SocketAddr::new(unpack_ip(ip)?, u16::from_be_bytes(*port));
    *bytes = rest;
    Some(ScionAddr::new(IsdAs::from_u64(u64::from_be_bytes(*isd_as)), host))
}

/// The SCION addresses in `bytes`, up to the first broken one.
pub fn unpack_scion(mut bytes: &[u8]) -> impl Iterator<Item = ScionAddr> + '_ {
    std::iter::from_fn(move || take_scion(&mut bytes))
}

/// Whether anybody can listen there: a port, one host, and for SCION one AS. An IPv6 zone means nothing to others.
pub fn is_dialable(endpoint: &Endpoint) -> bool {
    let (ip, port) = (endpoint.ip().to_canonical(), endpoint.socket_addr().port());
    let names_an_as = |scion: ScionAddr| {
        let has_zone = matches!(scion.host, SocketAddr::V6(host) if host.scope_id() != 0);
        scion.isd_as.isd() != 0 && scion.isd_as.asn() != 0 && !has_zone
    };
    port != 0 && !ip.is_unspecified() && !ip.is_multicast() && endpoint.as_scion().is_none_or(names_an_as)
}

/// The whole IPv4 addresses in `bytes`.
pub fn unpack_v4(bytes: &[u8]) -> impl Iterator<Item = SocketAddr> + '_ {
    let (units, _) = bytes.as_chunks::<V4_LEN>();
    units.iter().map(|[a, b, c, d, port @ ..]| (Ipv4Addr::new(*a, *b, *c, *d), u16::from_be_bytes(*port)).into())
}

/// The whole IPv6 addresses in `bytes`.
pub fn unpack_v6(bytes: &[u8]) -> impl Iterator<Item = SocketAddr> + '_ {
    let (units, _) = bytes.as_chunks::<V6_LEN>();
    units.iter().map(|[ip @ .., high, low]| (Ipv6Addr::from(*ip), u16::from_be_bytes([*high, *low])).into())
}

/// An address without a port: 4 or 16 bytes.
pub fn unpack_ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.try_into().ok().map(|octets: [u8; 4]| IpAddr::from(octets)),
        16 => bytes.try_into().ok().map(|octets: [u8; 16]| IpAddr::from(octets)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_read_back_what_was_written() {
        let v4: SocketAddr = "10.1.2.3:6881".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::7]:51413".parse().unwrap();
        let (mut bytes4, mut bytes6) = (Vec::new(), Vec::new());
        pack(v4, &mut bytes4);
        pack(v6, &mut bytes6);
        assert_eq!(bytes4, [10, 1, 2, 3, 0x1a, 0xe1]);
        assert_eq!(bytes6.len(), V6_LEN);
        assert_eq!(unpack_v4(&bytes4).chain(unpack_v6(&bytes6)).collect::<Vec<_>>(), [v4, v6]);
    }

    #[test]
    fn a_ragged_end_is_left_out() {
        assert_eq!(unpack_v4(&[9; 2 * V4_LEN + 5]).count(), 2);
        assert_eq!(unpack_v6(&[9; V6_LEN + 17]).count(), 1);
    }

    #[test]
    fn scion_has_the_documented_bytes() {
        let address: ScionAddr = "[1-ff00:0:110,10.1.2.3]:6881".parse().unwrap();
        let mut bytes = Vec::new();
        pack_scion(&address, &mut bytes);
        assert_eq!(bytes, [0, 1, 0xff, 0, 0, 0, 1, 0x10, 4, 10, 1, 2, 3, 0x1a, 0xe1]);
        assert_eq!(take_scion(&mut &bytes[..]), Some(address));
        let address = "[64-559,2001:db8::7]:80".parse().unwrap();
        pack_scion(&address, &mut bytes);
        let mut rest = &bytes[15..];
        assert_eq!((rest.len(), take_scion(&mut rest), rest.len()), (SCION_LEN_MAX, Some(address), 0));
    }

    #[test]
    fn broken_scion_addresses_take_nothing() {
        let mut whole = Vec::new();
        pack_scion(&"[1-ff00:0:110,10.1.2.3]:6881".parse().unwrap(), &mut whole);
        for len in 0..whole.len() {
            let mut cut = &whole[..len];
            assert_eq!((take_scion(&mut cut), cut.len()), (None, len));
        }
        for len in [0, 3, 5, 15, 17, 255] {
            let mut bytes = [0; 300];
            bytes[8] = len;
            assert_eq!(take_scion(&mut &bytes[..]), None, "{len}");
        }
    }

    #[test]
    fn nobody_listens_at_wildcards() {
        for somebody in ["10.0.0.1:1", "[::1]:1", "[1-ff00:0:110,10.0.0.1]:1", "[1-ff00:0:110,127.0.0.1]:1"] {
            assert!(is_dialable(&somebody.parse().unwrap()), "{somebody}");
        }
        for nobody in ["10.0.0.1:0", "0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[1-ff00:0:110,10.0.0.1]:0", "[1-1,::]:1"] {
            assert!(!is_dialable(&nobody.parse().unwrap()), "{nobody}");
        }
        let host = "10.0.0.1:1".parse().unwrap();
        for (isd, asn) in [(0, 1), (1, 0)] {
            assert!(!is_dialable(&ScionAddr::new(IsdAs::new(isd, asn).unwrap(), host).into()));
        }
        assert!(!is_dialable(&"[1-ff00:0:110,fe80::1%3]:1".parse().unwrap()));
    }

    #[test]
    fn an_address_has_four_or_sixteen_bytes() {
        assert_eq!(unpack_ip(&[192, 0, 2, 1]), Some("192.0.2.1".parse().unwrap()));
        assert_eq!(unpack_ip(&[0; 16]), Some("::".parse().unwrap()));
        assert_eq!(unpack_ip(&[0; 6]), None);
    }
}
