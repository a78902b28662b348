//! Compact addresses: 4 or 16 bytes of address and 2 of port, big-endian (BEP 5, BEP 7, BEP 23).
//!
//! Trackers and peers send them in the same form. What is left of a ragged list is for the caller to judge: a tracker's
//! reply of a broken length is an error, a peer's is read as far as it goes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of an IPv4 address with port (BEP 23).
pub(crate) const V4_LEN: usize = 6;
/// Bytes of an IPv6 address with port (BEP 7).
pub(crate) const V6_LEN: usize = 18;

/// Appends the compact form of `address`.
pub(crate) fn pack(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out.extend_from_slice(&address.port().to_be_bytes());
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
