//! Peers on our own network who fetch what we fetch: each brings its part from afar, and the others get it here.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::conn::Conn;
use super::{ConnId, Torrent};
use crate::PeerKey;

/// What neighbours bring is looked at so often.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(15);
/// Who brings less than this part of what comes to us from afar is left nothing ...
const LEAST_PART: u64 = 4;
/// ... for so many looks, then tried again: to a neighbour that is left nothing there is little to bring.
const LEFT_OUT_LOOKS: u32 = 4;

/// What is known of neighbours.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    looked_at: Option<Instant>,
    /// What had come from afar then, and from each neighbour that something was left to.
    far_bytes: u64,
    bytes_of: BTreeMap<PeerKey, u64>,
    /// Who is left nothing, and for how many looks.
    left_out: BTreeMap<PeerKey, u32>,
}

impl Neighbours {
    /// Leaves out who brought too little since the last look. Where nothing comes from afar, something else is to be tried.
    fn look(&mut self, far_bytes: u64, bytes_of: &BTreeMap<PeerKey, u64>, now: Instant) {
        if self.looked_at.is_some_and(|at| now.saturating_duration_since(at) < LOOKED_AT_EVERY) {
            return;
        }
        let from_afar = far_bytes.saturating_sub(self.far_bytes);
        self.left_out.retain(|_, looks| {
            *looks -= 1;
            *looks > 0
        });
        for (peer, bytes) in bytes_of {
            // Who has come since is seen next time.
            let Some(before) = self.bytes_of.get(peer) else { continue };
            let brought = bytes.saturating_sub(*before);
            if from_afar == 0 || brought < from_afar / LEAST_PART {
                self.left_out.insert(*peer, LEFT_OUT_LOOKS);
            }
        }
        self.bytes_of.clone_from(bytes_of);
        self.bytes_of.retain(|peer, _| !self.left_out.contains_key(peer));
        (self.looked_at, self.far_bytes) = (Some(now), far_bytes);
    }
}

impl Torrent {
    /// Divides what is to be fetched from afar among us and our neighbours. Who has everything already, does not serve us or brings too
    /// little gets no part that we would wait for.
    pub(super) fn divide_among_neighbours(&mut self, now: Instant) {
        let Some(picker) = self.content.as_mut().and_then(|content| content.picker.as_mut()) else { return };
        let conns = &self.conns;
        let shares = |conn: &Conn| {
            // Who wants nothing of a peer is choked by it and need not be.
            let serves_us = !conn.choking_us || !conn.interested;
            conn.is_near && conn.is_usable() && serves_us && !conn.upload_only && !conn.is_seed()
        };
        let of_peer = |conns_of: &[ConnId]| {
            let all = || conns_of.iter().filter_map(|id| conns.get(id));
            all().any(shares).then(|| all().map(|conn| conn.downloaded_bytes).sum())
        };
        let sharing = self.peers.iter().filter_map(|(key, peer)| Some((*key, of_peer(&peer.conns)?)));
        let sharing: BTreeMap<PeerKey, u64> = sharing.collect();
        let far_bytes = conns.values().filter(|conn| !conn.is_near).map(|conn| conn.downloaded_bytes).sum();
        self.neighbours.look(far_bytes, &sharing, now);
        let left = sharing.keys().filter(|peer| !self.neighbours.left_out.contains_key(peer));
        let names = left.filter_map(|peer| Some(number(&self.peers.get(peer)?.peer_id)));
        picker.divide(number(&self.config.peer_id), names.collect());
    }
}

/// What a peer is called where pieces are divided: the part of its id that is drawn by chance.
pub(super) fn number(peer_id: &[u8; 20]) -> u64 {
    peer_id[12..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_brings_too_little_is_left_out_for_a_while() {
        let (start, mut neighbours) = (Instant::now(), Neighbours::default());
        let at = |looks: u32| start + LOOKED_AT_EVERY * looks;
        let (busy, lazy) = (PeerKey(1), PeerKey(2));
        let mut look = |looks: u32, far: u64, brought: [u64; 2]| {
            neighbours.look(far, &BTreeMap::from([(busy, brought[0]), (lazy, brought[1])]), at(looks));
            neighbours.left_out.keys().copied().collect::<Vec<PeerKey>>()
        };
        // Nothing is known at first, and between looks nothing changes.
        assert_eq!(look(0, 1000, [0, 0]), []);
        assert_eq!(look(1, 5000, [1000, 999]), [lazy]);
        // It brings more now, but is tried later: what it brings while it is left nothing says little.
        for looks in 2..1 + LEFT_OUT_LOOKS {
            let far = 5000 + 4000 * u64::from(looks);
            assert_eq!(look(looks, far, [4000 * u64::from(looks), 4000 * u64::from(looks)]), [lazy], "{looks}");
        }
        assert_eq!(look(1 + LEFT_OUT_LOOKS, 40_000, [90_000, 90_000]), []);
        assert_eq!(look(2 + LEFT_OUT_LOOKS, 44_000, [91_000, 91_000]), []);
        // Nothing comes from afar: what we wait for there may not come at all.
        assert_eq!(look(3 + LEFT_OUT_LOOKS, 44_000, [95_000, 95_000]), [busy, lazy]);
    }
}
