//! The peers in a tracker's reply.

use anabranch_paths::Endpoint;

use super::{REPLY_PEERS_MAX, ReplyError};
use crate::compact::{self, SCION_LEN, V4_LEN, V6_LEN};

/// Adds the compact IPv4 peers in `bytes` to `peers`, up to [`REPLY_PEERS_MAX`] in all.
pub(super) fn read_v4(bytes: &[u8], field: &'static str, peers: &mut Vec<Endpoint>) -> Result<(), ReplyError> {
    check_length(bytes, field, V4_LEN)?;
    compact::unpack_v4(bytes).for_each(|peer| add(peers, peer.into()));
    Ok(())
}

/// Adds the compact IPv6 peers in `bytes` to `peers`, up to [`REPLY_PEERS_MAX`] in all.
pub(super) fn read_v6(bytes: &[u8], field: &'static str, peers: &mut Vec<Endpoint>) -> Result<(), ReplyError> {
    check_length(bytes, field, V6_LEN)?;
    compact::unpack_v6(bytes).for_each(|peer| add(peers, peer.into()));
    Ok(())
}

/// Adds the peers of SCION in `bytes` to `peers`, up to [`REPLY_PEERS_MAX`] in all.
pub(super) fn read_scion(bytes: &[u8], field: &'static str, peers: &mut Vec<Endpoint>) -> Result<(), ReplyError> {
    check_length(bytes, field, SCION_LEN)?;
    compact::unpack_scion(bytes).flatten().for_each(|peer| add(peers, Endpoint::Scion(peer)));
    Ok(())
}

/// Adds one peer unless nobody can be reached there or the list is full.
pub(super) fn add(peers: &mut Vec<Endpoint>, peer: Endpoint) {
    let (ip, port) = (peer.ip(), peer.socket_addr().port());
    if port != 0 && !ip.is_unspecified() && !ip.is_multicast() && peers.len() < REPLY_PEERS_MAX {
        peers.push(peer);
    }
}

fn check_length(bytes: &[u8], field: &'static str, unit: usize) -> Result<(), ReplyError> {
    if bytes.len().is_multiple_of(unit) {
        Ok(())
    } else {
        Err(ReplyError::CompactLength { field, length: bytes.len(), unit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        read_v4(&[9; V4_LEN].repeat(REPLY_PEERS_MAX + 1), "peers", &mut peers).unwrap();
        assert_eq!(peers.len(), REPLY_PEERS_MAX);
    }
}
