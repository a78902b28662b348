//! Compact addresses: 4 or 16 bytes of address and 2 of port, big-endian (BEP 23, BEP 7).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{REPLY_PEERS_MAX, ReplyError};

/// Bytes of an IPv4 address with port.
pub(crate) const V4_BYTES: usize = 6;
/// Bytes of an IPv6 address with port.
pub(crate) const V6_BYTES: usize = 18;

/// Appends the compact form of `addr`.
pub(crate) fn push(out: &mut Vec<u8>, addr: SocketAddr) {
    match addr.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out.extend_from_slice(&addr.port().to_be_bytes());
}

/// Adds the IPv4 peers in `bytes` to `peers`, up to [`REPLY_PEERS_MAX`] in all.
pub(crate) fn read_v4(bytes: &[u8], field: &'static str, peers: &mut Vec<SocketAddr>) -> Result<(), ReplyError> {
    let (units, rest) = bytes.as_chunks::<V4_BYTES>();
    check_rest(bytes, rest, field, V4_BYTES)?;
    for [a, b, c, d, p, q] in units {
        add(peers, IpAddr::V4(Ipv4Addr::new(*a, *b, *c, *d)), u16::from_be_bytes([*p, *q]));
    }
    Ok(())
}

/// Adds the IPv6 peers in `bytes` to `peers`, up to [`REPLY_PEERS_MAX`] in all.
pub(crate) fn read_v6(bytes: &[u8], field: &'static str, peers: &mut Vec<SocketAddr>) -> Result<(), ReplyError> {
    let (units, rest) = bytes.as_chunks::<V6_BYTES>();
    check_rest(bytes, rest, field, V6_BYTES)?;
    for [ip @ .., p, q] in units {
        add(peers, IpAddr::V6(Ipv6Addr::from(*ip)), u16::from_be_bytes([*p, *q]));
    }
    Ok(())
}

/// Adds one peer unless nobody can be reached there or the list is full.
pub(crate) fn add(peers: &mut Vec<SocketAddr>, ip: IpAddr, port: u16) {
    let ip = ip.to_canonical();
    if port != 0 && !ip.is_unspecified() && !ip.is_multicast() && peers.len() < REPLY_PEERS_MAX {
        peers.push(SocketAddr::new(ip, port));
    }
}

fn check_rest(bytes: &[u8], rest: &[u8], field: &'static str, unit: usize) -> Result<(), ReplyError> {
    if rest.is_empty() { Ok(()) } else { Err(ReplyError::CompactLength { field, length: bytes.len(), unit }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_read_back_what_was_written() {
        let v4: SocketAddr = "10.1.2.3:6881".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::7]:51413".parse().unwrap();
        let (mut bytes4, mut bytes6) = (Vec::new(), Vec::new());
        push(&mut bytes4, v4);
        push(&mut bytes6, v6);
        let mut peers = Vec::new();
        read_v4(&bytes4, "peers", &mut peers).unwrap();
        read_v6(&bytes6, "peers6", &mut peers).unwrap();
        assert_eq!(peers, [v4, v6]);
    }

    #[test]
    fn a_broken_length_is_named() {
        let error = read_v4(&[0; 13], "peers", &mut Vec::new()).unwrap_err();
        assert_eq!(error, ReplyError::CompactLength { field: "peers", length: 13, unit: 6 });
    }

    #[test]
    fn unreachable_addresses_are_left_out() {
        let mut peers = Vec::new();
        read_v4(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 80], "peers", &mut peers).unwrap();
        assert_eq!(peers, []);
    }

    #[test]
    fn the_list_stops_at_its_limit() {
        let mut peers = Vec::new();
        read_v4(&[9; V4_BYTES].repeat(REPLY_PEERS_MAX + 1), "peers", &mut peers).unwrap();
        assert_eq!(peers.len(), REPLY_PEERS_MAX);
    }
}
