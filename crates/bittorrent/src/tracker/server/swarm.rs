//! The peers of one content.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use anabranch_paths::Endpoint;

use crate::tracker::PeerId;

/// Kinds of addresses. A peer is told of its own kind first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// SCION, whatever its hosts are numbered with.
    Scion,
}

impl Family {
    /// Of IP addresses.
    pub fn of_ip(is_ipv6: bool) -> Self {
        if is_ipv6 { Self::V6 } else { Self::V4 }
    }

    /// Which one `addr` is of.
    pub fn of(addr: Endpoint) -> Self {
        match addr {
            Endpoint::Ip(addr) => Self::of_ip(addr.is_ipv6()),
            Endpoint::Scion(_) => Self::Scion,
        }
    }
}

/// A peer as a tracker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownPeer {
    /// Where it listens.
    pub addr: Endpoint,
    /// As it announced itself.
    pub peer_id: PeerId,
}

#[derive(Debug)]
struct Entry {
    peer: KnownPeer,
    seen_at: Instant,
    stamp: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    is_seed: bool,
    index: usize,
}

/// Peers keyed by address, so that nobody can overwrite another's entry, and listed by family and by being a seed, so
/// that a random choice takes time by what is chosen, not by what there is.
#[derive(Debug)]
pub(super) struct Swarm {
    places: HashMap<Endpoint, Place>,
    /// `[family][is seed]`.
    lists: [[Vec<Entry>; 2]; 3],
    /// By stamp, so by when they were last seen.
    by_age: BTreeMap<u64, Endpoint>,
    /// Downloads completed.
    pub(super) downloaded: u32,
    /// This swarm's key in the table's own order of age.
    pub(super) stamp: u64,
    /// Its last announce.
    pub(super) seen_at: Instant,
}

impl Swarm {
    /// Without peers.
    pub(super) fn new(now: Instant) -> Self {
        let (places, lists, by_age) = (HashMap::new(), Default::default(), BTreeMap::new());
        Swarm { places, lists, by_age, downloaded: 0, stamp: 0, seen_at: now }
    }

    /// Peers in all.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Seeds and others, both families.
    pub(super) fn counts(&self) -> (u32, u32) {
        let count = |is_seed: usize| self.lists.iter().map(|family| family[is_seed].len()).sum::<usize>() as u32;
        (count(1), count(0))
    }

    /// Whether the peer is known, and if so, as a seed.
    pub(super) fn is_seed(&self, addr: Endpoint) -> Option<bool> {
        self.places.get(&addr).map(|place| place.is_seed)
    }

    /// Adds a peer or brings it up to date. `stamp` is larger than every one before.
    pub(super) fn put(&mut self, peer: KnownPeer, is_seed: bool, stamp: u64, now: Instant) {
        self.remove(peer.addr);
        let list = &mut self.lists[Family::of(peer.addr) as usize][usize::from(is_seed)];
        self.places.insert(peer.addr, Place { is_seed, index: list.len() });
        list.push(Entry { peer, seen_at: now, stamp });
        self.by_age.insert(stamp, peer.addr);
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, addr: Endpoint) -> bool {
        let Some(place) = self.places.remove(&addr) else { return false };
        let list = &mut self.lists[Family::of(addr) as usize][usize::from(place.is_seed)];
        let entry = list.swap_remove(place.index);
        self.by_age.remove(&entry.stamp);
        if let Some(moved) = list.get(place.index) {
            self.places.insert(moved.peer.addr, place);
        }
        true
    }

    /// Removes the peer that was silent longest.
    pub(super) fn remove_oldest(&mut self) -> bool {
        let oldest = self.by_age.first_key_value().map(|(_, addr)| *addr);
        oldest.is_some_and(|addr| self.remove(addr))
    }

    /// Removes peers last seen before `limit`; how many.
    pub(super) fn expire(&mut self, limit: Instant) -> usize {
        let before = self.len();
        while self.oldest_seen_at().is_some_and(|seen_at| seen_at < limit) && self.remove_oldest() {}
        before - self.len()
    }

    fn oldest_seen_at(&self) -> Option<Instant> {
        let (_, addr) = self.by_age.first_key_value()?;
        let place = self.places.get(addr)?;
        Some(self.lists[Family::of(*addr) as usize][usize::from(place.is_seed)][place.index].seen_at)
    }

    /// Adds to `out` up to `count` peers of one family, each equally likely, without `asker`; seeds only if wanted.
    pub(super) fn sample(
        &self,
        family: Family,
        with_seeds: bool,
        asker: Endpoint,
        count: usize,
        rng: &mut fastrand::Rng,
        out: &mut Vec<KnownPeer>,
    ) {
        let [leechers, seeds] = &self.lists[family as usize];
        let pool = leechers.len() + if with_seeds { seeds.len() } else { 0 };
        let own = self.places.get(&asker).filter(|place| Family::of(asker) == family && (with_seeds || !place.is_seed));
        let own = own.map(|place| place.index + if place.is_seed { leechers.len() } else { 0 });
        let others = pool - usize::from(own.is_some());
        for index in sample_indices(others, count, rng) {
            let index = index + usize::from(own.is_some_and(|own| index >= own));
            let entry = leechers.get(index).unwrap_or_else(|| &seeds[index - leechers.len()]);
            out.push(entry.peer);
        }
    }
}

/// `count` different numbers below `pool`, or all of them (Floyd's algorithm).
fn sample_indices(pool: usize, count: usize, rng: &mut fastrand::Rng) -> Vec<usize> {
    if count >= pool {
        return (0..pool).collect();
    }
    let mut chosen = Vec::with_capacity(count);
    for top in pool - count..pool {
        let pick = rng.usize(..=top);
        chosen.push(if chosen.contains(&pick) { top } else { pick });
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn peer(n: u16) -> KnownPeer {
        let host = ["10.0.0.1", "[2001:db8::1]", "[1-ff00:0:110,10.0.0.1]"][usize::from(n) % 3];
        KnownPeer { addr: format!("{host}:{}", n + 1).parse().unwrap(), peer_id: [n as u8; 20] }
    }

    #[test]
    fn every_peer_is_chosen_about_equally_often() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            sample_indices(10, 3, &mut rng).into_iter().for_each(|index| seen[index] += 1);
        }
        assert!(seen.iter().all(|count| (2_700..3_300).contains(count)), "{seen:?}");
    }

    #[test]
    fn expiry_takes_those_before_the_limit_only() {
        let now = Instant::now();
        let mut swarm = Swarm::new(now);
        for n in 0..4 {
            swarm.put(peer(n), false, u64::from(n), now + Duration::from_secs(u64::from(n)));
        }
        swarm.put(peer(0), true, 9, now + Duration::from_secs(9));
        assert_eq!(swarm.expire(now + Duration::from_secs(2)), 1);
        assert_eq!(swarm.counts(), (1, 2));
    }

    proptest! {
        /// Random changes against a plain map.
        #[test]
        fn lists_and_index_agree(steps in proptest::collection::vec((0u8..4, 0u16..20, any::<bool>()), 0..200)) {
            let now = Instant::now();
            let mut swarm = Swarm::new(now);
            let mut model: BTreeMap<Endpoint, bool> = BTreeMap::new();
            let mut rng = fastrand::Rng::with_seed(3);
            for (stamp, (what, n, is_seed)) in steps.into_iter().enumerate() {
                let peer = peer(n);
                if what == 0 {
                    prop_assert_eq!(swarm.remove(peer.addr), model.remove(&peer.addr).is_some());
                } else {
                    swarm.put(peer, is_seed, stamp as u64, now);
                    model.insert(peer.addr, is_seed);
                }
                let seeds = model.values().filter(|is_seed| **is_seed).count() as u32;
                prop_assert_eq!(swarm.counts(), (seeds, model.len() as u32 - seeds));
                let mut chosen = Vec::new();
                swarm.sample(Family::of(peer.addr), is_seed, peer.addr, 30, &mut rng, &mut chosen);
                let chosen: HashSet<_> = chosen.iter().map(|peer| peer.addr).collect();
                let expected: HashSet<_> = model
                    .iter()
                    .filter(|(addr, known)| {
                        Family::of(**addr) == Family::of(peer.addr) && (is_seed || !**known) && **addr != peer.addr
                    })
                    .map(|(addr, _)| *addr)
                    .collect();
                prop_assert_eq!(chosen, expected);
            }
        }
    }
}
