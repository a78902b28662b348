//! Who announced which content here (BEP 5, "announce_peer").

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anabranch_paths::{Endpoint, Host};

use crate::bloom::Bloom;
use crate::family::Family;
use crate::id::NodeId;

/// Contents that announces are kept of.
pub const SWARMS_MAX: usize = 4096;
/// Announces that are kept in all: some ten megabytes.
pub const PEERS_MAX: usize = 100_000;
/// Announces that are kept of one content.
pub const PEERS_OF_SWARM_MAX: usize = 512;
/// Of one content, those of one host: several programs behind one address.
const PEERS_OF_HOST_MAX: usize = 4;
/// Announces go after so long: clients come again within half an hour.
const EXPIRES_AFTER: Duration = Duration::from_secs(45 * 60);

/// The announces that are kept.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    swarms: HashMap<NodeId, Swarm>,
    count: usize,
}

#[derive(Debug, Default)]
struct Swarm {
    /// The oldest first.
    peers: Vec<Peer>,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    address: Endpoint,
    is_seed: bool,
    until: Instant,
}

impl Peers {
    /// Whoever is at `address` has the content.
    pub(crate) fn announce(&mut self, info_hash: NodeId, address: Endpoint, is_seed: bool, now: Instant) {
        if !self.swarms.contains_key(&info_hash) && self.swarms.len() >= SWARMS_MAX || self.count >= PEERS_MAX {
            self.make_room(now);
        }
        let swarm = self.swarms.entry(info_hash).or_default();
        let before = swarm.peers.len();
        swarm.peers.retain(|peer| peer.address != address && peer.until > now);
        let host = Host::of(&address);
        let of_host = |peer: &Peer| Host::of(&peer.address) == host;
        if !host.is_loopback() && swarm.peers.iter().filter(|peer| of_host(peer)).count() >= PEERS_OF_HOST_MAX {
            swarm.peers.iter().position(of_host).map(|at| swarm.peers.remove(at));
        } else if swarm.peers.len() >= PEERS_OF_SWARM_MAX {
            swarm.peers.remove(0);
        }
        swarm.peers.push(Peer { address, is_seed, until: now + EXPIRES_AFTER });
        self.count = self.count + swarm.peers.len() - before;
    }

    /// The content with the fewest announces goes, of these that which is oldest: a flood of contents pushes out its own.
    fn make_room(&mut self, now: Instant) {
        self.expire(now);
        let weight = |swarm: &Swarm| (swarm.peers.len(), swarm.peers.last().map(|peer| peer.until));
        let least = self.swarms.iter().min_by_key(|(hash, swarm)| (weight(swarm), **hash)).map(|(hash, _)| *hash);
        if let Some(swarm) = least.and_then(|hash| self.swarms.remove(&hash)) {
            self.count -= swarm.peers.len();
        }
    }

    /// At most `max` peers in a network that have a content, any of them.
    pub(crate) fn some(
        &self,
        info_hash: &NodeId,
        (family, no_seeds): (Family, bool),
        max: usize,
        rng: &mut fastrand::Rng,
        now: Instant,
    ) -> Vec<Endpoint> {
        let of = |peer: &&Peer| peer.until > now && Family::of(&peer.address) == family && !(no_seeds && peer.is_seed);
        let peers = self.swarms.get(info_hash).into_iter().flat_map(|swarm| &swarm.peers).filter(of);
        rng.choose_multiple(peers.map(|peer| peer.address), max.min(PEERS_OF_SWARM_MAX))
    }

    /// Seeds and others of a content (BEP 33).
    pub(crate) fn scrape(&self, info_hash: &NodeId, family: Family, now: Instant) -> Option<(Bloom, Bloom)> {
        let (mut seeds, mut others) = (Bloom::default(), Bloom::default());
        let of = |peer: &&Peer| peer.until > now && Family::of(&peer.address) == family;
        for peer in self.swarms.get(info_hash)?.peers.iter().filter(of) {
            if peer.is_seed { &mut seeds } else { &mut others }.insert(peer.address.ip());
        }
        Some((seeds, others))
    }

    /// Up to `max` info-hashes, the same ones for the same `seed` and contents; and how many there are (BEP 51).
    pub(crate) fn sample(&self, max: usize, seed: u64) -> (Vec<NodeId>, usize) {
        let mut all: Vec<NodeId> = self.swarms.keys().copied().collect();
        all.sort_unstable();
        let total = all.len();
        (fastrand::Rng::with_seed(seed).choose_multiple(all, max), total)
    }

    /// Lets go what nobody announced again for long.
    pub(crate) fn expire(&mut self, now: Instant) {
        for swarm in self.swarms.values_mut() {
            swarm.peers.retain(|peer| peer.until > now);
        }
        self.swarms.retain(|_, swarm| !swarm.peers.is_empty());
        self.count = self.swarms.values().map(|swarm| swarm.peers.len()).sum();
    }

    /// Contents, and announces of all.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.swarms.len(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HASH: NodeId = NodeId([1; 20]);

    fn at(number: u32, port: u16) -> Endpoint {
        std::net::SocketAddr::from((Ipv4Addr::from_bits(0x0100_0000 + number), port)).into()
    }

    fn all(peers: &Peers, no_seeds: bool, now: Instant) -> Vec<Endpoint> {
        let mut found = peers.some(&HASH, (Family::V4, no_seeds), usize::MAX, &mut fastrand::Rng::with_seed(1), now);
        found.sort();
        found
    }

    #[test]
    fn announces_are_told_until_they_are_old() {
        let (mut peers, now) = (Peers::default(), Instant::now());
        peers.announce(HASH, at(1, 1), true, now);
        peers.announce(HASH, at(2, 1), false, now + Duration::from_secs(60));
        peers.announce(HASH, "[2001:db8::1]:1".parse().unwrap(), false, now);
        assert_eq!(all(&peers, false, now), [at(1, 1), at(2, 1)]);
        assert_eq!(all(&peers, true, now), [at(2, 1)]);
        assert_eq!(all(&peers, false, now + EXPIRES_AFTER - Duration::from_secs(1)).len(), 2);
        assert_eq!(all(&peers, false, now + EXPIRES_AFTER), [at(2, 1)]);
        let (seeds, others) = peers.scrape(&HASH, Family::V4, now).unwrap();
        assert!(seeds.estimate().round() == 1.0 && others.estimate().round() == 1.0);
        peers.expire(now + 2 * EXPIRES_AFTER);
        assert_eq!(peers.counts(), (0, 0));
    }

    #[test]
    fn one_host_and_one_content_take_so_many_places() {
        let (mut peers, now) = (Peers::default(), Instant::now());
        for port in 1..=PEERS_OF_HOST_MAX as u16 + 1 {
            peers.announce(HASH, at(1, port), false, now);
        }
        assert_eq!(all(&peers, false, now), (2..=5).map(|port| at(1, port)).collect::<Vec<_>>());
        for number in 2..2 * PEERS_OF_SWARM_MAX as u32 {
            peers.announce(HASH, at(number, 1), false, now);
        }
        assert_eq!((all(&peers, false, now).len(), peers.counts().1), (PEERS_OF_SWARM_MAX, PEERS_OF_SWARM_MAX));
    }

    #[test]
    fn a_flood_of_contents_pushes_out_its_own() {
        let (mut peers, now) = (Peers::default(), Instant::now());
        peers.announce(HASH, at(1, 1), false, now);
        peers.announce(HASH, at(2, 1), false, now);
        for number in 0..2 * SWARMS_MAX as u32 {
            let mut hash = [2; 20];
            hash[..4].copy_from_slice(&number.to_be_bytes());
            peers.announce(NodeId(hash), at(3, 1), false, now);
        }
        assert_eq!((peers.counts().0, all(&peers, false, now).len()), (SWARMS_MAX, 2));
        let (some, total) = peers.sample(20, 5);
        assert_eq!((some.len(), total, peers.sample(20, 5).0 == some), (20, SWARMS_MAX, true));
    }
}
