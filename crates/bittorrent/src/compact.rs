//! Compact addresses: 4 or 16 bytes of address and 2 of port, big-endian (BEP 5, BEP 7, BEP 23).
//!
//! An address of SCION has one form for both families, ours alone: 8 bytes of ISD-AS, 16 of address (IPv4 mapped into
//! IPv6), 2 of port. See `docs/protocol.md`.
//!
//! Trackers and peers send them in the same form. What is left of a ragged list is for the caller to judge: a tracker's
//! reply of a broken length is an error, a peer's is read as far as it goes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anabranch_paths::{IsdAs, ScionAddr};

/// Bytes of an IPv4 address with port (BEP 23).
pub(crate) const V4_LEN: usize = 6;
/// Bytes of an IPv6 address with port (BEP 7).
pub(crate) const V6_LEN: usize = 18;

/// Bytes of an address of SCION with port.
pub(crate) const SCION_LEN: usize = 26;

/// Appends the compact form of `address`.
pub(crate) fn pack(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// Appends the compact form of an address of SCION.
pub(crate) fn pack_scion(address: ScionAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(&address.isd_as.to_u64().to_be_bytes());
    let ip = match address.host.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend_from_slice(&ip.octets());
    out.extend_from_slice(&address.host.port().to_be_bytes());
}

/// The whole addresses of SCION in `bytes`, without those that name no single AS.
pub(crate) fn unpack_scion(bytes: &[u8]) -> impl Iterator<Item = Option<ScionAddr>> + '_ {
    let (units, _) = bytes.as_chunks::<SCION_LEN>();
    units.iter().map(|unit| {
        let isd_as = IsdAs::from_u64(u64::from_be_bytes(*unit.first_chunk()?));
        let (host, _) = unit[8..].split_first_chunk::<16>()?;
        let port = u16::from_be_bytes(*unit.last_chunk()?);
        let named = isd_as.isd() != 0 && isd_as.asn() != 0;
        named.then(|| ScionAddr::new(isd_as, (Ipv6Addr::from(*host), port).into()))
    })
}

/// The whole IPv4 addresses in `bytes`.
pub(crate) fn unpack_v4(bytes: &[u8]) -> impl Iterator<Item = SocketAddr> + '_ {
    let (units, _) = bytes.as_chunks::<V4_LEN>();
    units.iter().map(|[a, b, c, d, port @ ..]| (Ipv4Addr::new(*a, *b, *c, *d), u16::from_be_bytes(*port)).into())
}

/// The whole IPv6 addresses in `bytes`.
pub(crate) fn unpack_v6(bytes: &[u8]) -> impl Iterator<Item = SocketAddr> + '_ {
    let (units, _) = bytes.as_chunks::<V6_LEN>();
    units.iter().map(|[ip @ .., high, low]| (Ipv6Addr::from(*ip), u16::from_be_bytes([*high, *low])).into())
}

/// An address without a port: 4 or 16 bytes.
pub(crate) fn unpack_ip(bytes: &[u8]) -> Option<IpAddr> {
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
    fn addresses_of_scion_read_back_and_wildcards_are_left_out() {
        let addresses = ["[1-ff00:0:110,10.0.0.1]:80", "[64-559,2001:db8::7]:31000"].map(|text| {
            let endpoint: anabranch_paths::Endpoint = text.parse().unwrap();
            endpoint.as_scion().unwrap()
        });
        let mut bytes = Vec::new();
        addresses.iter().for_each(|address| pack_scion(*address, &mut bytes));
        assert_eq!(bytes.len(), 2 * SCION_LEN);
        assert_eq!(bytes[..8], [0, 1, 0xff, 0, 0, 0, 1, 0x10]);
        bytes.extend_from_slice(&[0; SCION_LEN + 3]);
        assert_eq!(unpack_scion(&bytes).collect::<Vec<_>>(), [Some(addresses[0]), Some(addresses[1]), None]);
    }

    #[test]
    fn a_ragged_end_is_left_out() {
        assert_eq!(unpack_v4(&[9; 2 * V4_LEN + 5]).count(), 2);
        assert_eq!(unpack_v6(&[9; V6_LEN + 17]).count(), 1);
    }

    #[test]
    fn an_address_has_four_or_sixteen_bytes() {
        assert_eq!(unpack_ip(&[192, 0, 2, 1]), Some("192.0.2.1".parse().unwrap()));
        assert_eq!(unpack_ip(&[0; 16]), Some("::".parse().unwrap()));
        assert_eq!(unpack_ip(&[0; 6]), None);
    }
}
