//! Addresses as BEP 5 and BEP 7 pack them: the IP address, then the port, all big-endian.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of an IPv4 address with its port (BEP 23).
const V4_LEN: usize = 6;
/// Bytes of an IPv6 address with its port (BEP 7).
const V6_LEN: usize = 18;

/// Reads packed IPv4 peers; what is left of a ragged list is left out.
pub(super) fn unpack_v4(bytes: &[u8]) -> impl Iterator<Item = SocketAddr> + '_ {
    bytes
        .as_chunks::<V4_LEN>()
        .0
        .iter()
        .map(|&[a, b, c, d, high, low]| SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))))
}

/// Reads packed IPv6 peers; what is left of a ragged list is left out.
pub(super) fn unpack_v6(bytes: &[u8]) -> impl Iterator<Item = SocketAddr> + '_ {
    bytes.as_chunks::<V6_LEN>().0.iter().map(|chunk| {
        let mut ip = [0; 16];
        ip.copy_from_slice(&chunk[..16]);
        SocketAddr::from((Ipv6Addr::from(ip), u16::from_be_bytes([chunk[16], chunk[17]])))
    })
}

/// Appends `address` to the list of its family.
pub(super) fn pack(address: SocketAddr, v4: &mut Vec<u8>, v6: &mut Vec<u8>) {
    let out = match address.ip() {
        IpAddr::V4(ip) => {
            v4.extend_from_slice(&ip.octets());
            v4
        }
        IpAddr::V6(ip) => {
            v6.extend_from_slice(&ip.octets());
            v6
        }
    };
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// A packed IP address without a port: 4 or 16 bytes.
pub(super) fn unpack_ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.try_into().ok().map(|octets: [u8; 4]| IpAddr::from(octets)),
        16 => bytes.try_into().ok().map(|octets: [u8; 16]| IpAddr::from(octets)),
        _ => None,
    }
}
