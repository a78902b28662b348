//! The peers in a tracker's reply.

use anabranch_paths::Endpoint;

use super::{REPLY_PEERS_MAX, ReplyError};
use crate::compact::{self, V4_LEN, V6_LEN, is_dialable};

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

/// Adds the compact SCION peers in `bytes` to `peers`, up to [`REPLY_PEERS_MAX`] in all.
pub(super) fn read_scion(mut bytes: &[u8], field: &'static str, peers: &mut Vec<Endpoint>) -> Result<(), ReplyError> {
    while let Some(peer) = compact::take_scion(&mut bytes) {
        add(peers, peer.into());
    }
    if bytes.is_empty() { Ok(()) } else { Err(ReplyError::Field(field)) }
}

/// Adds one peer unless nobody can be reached there or the list is full.
pub(super) fn add(peers: &mut Vec<Endpoint>, peer: Endpoint) {
    if is_dialable(&peer) && peers.len() < REPLY_PEERS_MAX {
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
    fn a_ragged_list_of_scion_is_named() {
        let (mut bytes, mut peers) = (Vec::new(), Vec::new());
        compact::pack_scion(&"[1-ff00:0:110,10.0.0.1]:6881".parse().unwrap(), &mut bytes);
        compact::pack_scion(&"[1-ff00:0:110,10.0.0.1]:0".parse().unwrap(), &mut bytes);
        read_scion(&bytes, "ab_scion", &mut peers).unwrap();
        assert_eq!(peers, ["[1-ff00:0:110,10.0.0.1]:6881".parse().unwrap()]);
        bytes.pop();
        assert_eq!(read_scion(&bytes, "ab_scion", &mut peers), Err(ReplyError::Field("ab_scion")));
    }

    #[test]
    fn the_list_stops_at_its_limit() {
        let mut peers = Vec::new();
        read_v4(&[9; V4_LEN].repeat(REPLY_PEERS_MAX + 1), "peers", &mut peers).unwrap();
        assert_eq!(peers.len(), REPLY_PEERS_MAX);
    }
}
