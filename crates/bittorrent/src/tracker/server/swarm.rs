//! The peers of one content.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Instant;

use anabranch_paths::Endpoint;

use super::network::Network;
use crate::tracker::PeerId;

/// A peer as a tracker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownPeer {
    /// Where it listens.
    pub addr: Endpoint,
    /// As it announced itself.
    pub peer_id: PeerId,
}

/// Peers are told by the kind of their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
    Scion,
}

impl Family {
    const COUNT: usize = 3;

    fn of(addr: Endpoint) -> Family {
        match addr {
            Endpoint::Ip(addr) if addr.is_ipv4() => Family::V4,
            Endpoint::Ip(_) => Family::V6,
            Endpoint::Scion(_) => Family::Scion,
        }
    }
}

/// Who of a content's peers is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    Leechers,
    Seeds,
    All,
}

impl Whom {
    fn includes(self, is_seed: bool) -> bool {
        match self {
            Whom::Leechers => !is_seed,
            Whom::Seeds => is_seed,
            Whom::All => true,
        }
    }
}

#[derive(Debug)]
struct Entry {
    peer: KnownPeer,
    /// Who announced it.
    by: IpAddr,
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
    lists: [[Vec<Entry>; 2]; Family::COUNT],
    /// By stamp, so by when they were last seen.
    by_age: BTreeMap<u64, Endpoint>,
    /// The stamps of what each network announced.
    by_network: HashMap<Network, BTreeSet<u64>>,
    /// Who announced this content first.
    pub(super) brought_by: Network,
    /// Downloads completed.
    pub(super) downloaded: u32,
    /// This swarm's key in the table's own order of age.
    pub(super) stamp: u64,
    /// Its last announce.
    pub(super) seen_at: Instant,
}

impl Swarm {
    /// Without peers.
    pub(super) fn new(brought_by: Network, now: Instant) -> Self {
        let (places, lists, by_age) = (HashMap::new(), Default::default(), BTreeMap::new());
        let by_network = HashMap::new();
        Swarm { places, lists, by_age, by_network, brought_by, downloaded: 0, stamp: 0, seen_at: now }
    }

    /// Peers in all.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Seeds and others, both IP families: SCION addresses belong to peers that are in these already.
    pub(super) fn counts(&self) -> (u32, u32) {
        let ip = &self.lists[..Family::Scion as usize];
        let count = |is_seed: usize| ip.iter().map(|family| family[is_seed].len()).sum::<usize>() as u32;
        (count(1), count(0))
    }

    /// Whether the peer is known, and if so, as a seed.
    pub(super) fn is_seed(&self, addr: Endpoint) -> Option<bool> {
        self.places.get(&addr).map(|place| place.is_seed)
    }

    /// Whether an announce from `by` may add, change or remove this peer. An IP address speaks for itself; a SCION address
    /// is somebody's word, and is changed only from where it was given.
    pub(super) fn may_change(&self, addr: Endpoint, by: IpAddr) -> bool {
        addr.as_scion().is_none() || self.entry(addr).is_none_or(|entry| entry.by == by)
    }

    /// Adds a peer or brings it up to date, which makes it the youngest.
    pub(super) fn put(&mut self, peer: KnownPeer, by: IpAddr, is_seed: bool, now: Instant) {
        self.remove(peer.addr);
        let list = &mut self.lists[Family::of(peer.addr) as usize][usize::from(is_seed)];
        self.places.insert(peer.addr, Place { is_seed, index: list.len() });
        let stamp = self.by_age.last_key_value().map_or(0, |(youngest, _)| youngest + 1);
        list.push(Entry { peer, by, seen_at: now, stamp });
        self.by_age.insert(stamp, peer.addr);
        self.by_network.entry(by.into()).or_default().insert(stamp);
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, addr: Endpoint) -> bool {
        let Some(place) = self.places.remove(&addr) else { return false };
        let list = &mut self.lists[Family::of(addr) as usize][usize::from(place.is_seed)];
        let entry = list.swap_remove(place.index);
        self.by_age.remove(&entry.stamp);
        let network = Network::from(entry.by);
        if let Some(stamps) = self.by_network.get_mut(&network) {
            stamps.remove(&entry.stamp);
            if stamps.is_empty() {
                self.by_network.remove(&network);
            }
        }
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

    /// Peers that a network announced.
    pub(super) fn count_of(&self, network: Network) -> usize {
        self.by_network.get(&network).map_or(0, BTreeSet::len)
    }

    /// Removes the peer of a network that was silent longest.
    pub(super) fn remove_oldest_of(&mut self, network: Network) -> bool {
        let oldest = self.by_network.get(&network).and_then(BTreeSet::first);
        let oldest = oldest.and_then(|stamp| self.by_age.get(stamp)).copied();
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
        Some(self.entry(*addr)?.seen_at)
    }

    fn entry(&self, addr: Endpoint) -> Option<&Entry> {
        let place = self.places.get(&addr)?;
        self.lists[Family::of(addr) as usize][usize::from(place.is_seed)].get(place.index)
    }

    /// Peers of one family that can be told of.
    pub(super) fn pool(&self, family: Family, whom: Whom) -> usize {
        let [leechers, seeds] = self.of(family, whom);
        leechers.len() + seeds.len()
    }

    /// Those of one family, leechers first.
    fn of(&self, family: Family, whom: Whom) -> [&[Entry]; 2] {
        let lists = &self.lists[family as usize];
        [false, true].map(|is_seed| if whom.includes(is_seed) { &lists[usize::from(is_seed)][..] } else { &[] })
    }

    /// Adds to `out` up to `count` peers of one family, each equally likely, without the asker's `own`. How many.
    pub(super) fn sample(
        &self,
        family: Family,
        whom: Whom,
        own: &[Endpoint],
        count: usize,
        rng: &mut fastrand::Rng,
        out: &mut Vec<KnownPeer>,
    ) -> usize {
        let [leechers, seeds] = self.of(family, whom);
        let own = own.iter().filter(|addr| Family::of(**addr) == family).filter_map(|addr| self.places.get(addr));
        let own = own.filter(|place| whom.includes(place.is_seed));
        let mut own: Vec<usize> =
            own.map(|place| place.index + if place.is_seed { leechers.len() } else { 0 }).collect();
        own.sort_unstable();
        let others = leechers.len() + seeds.len() - own.len();
        let chosen = sample_indices(others, count, rng);
        for index in &chosen {
            // The index among all, once the asker's own are counted in again.
            let index = own.iter().fold(*index, |index, own| index + usize::from(index >= *own));
            let entry = leechers.get(index).unwrap_or_else(|| &seeds[index - leechers.len()]);
            out.push(entry.peer);
        }
        chosen.len()
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

    const BY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn peer(n: u16) -> KnownPeer {
        let host = ["10.0.0.1", "[2001:db8::1]", "[1-ff00:0:110,10.0.0.1]"][usize::from(n % 3)];
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
        let mut swarm = Swarm::new(BY.into(), now);
        for n in 0..4 {
            swarm.put(peer(n), BY, false, now + Duration::from_secs(u64::from(n)));
        }
        swarm.put(peer(0), BY, true, now + Duration::from_secs(9));
        assert_eq!(swarm.expire(now + Duration::from_secs(2)), 1);
        assert_eq!((swarm.len(), swarm.counts()), (3, (1, 1)));
    }

    proptest! {
        /// Random changes against a plain map.
        #[test]
        fn lists_and_index_agree(steps in proptest::collection::vec((0u8..4, 0u16..20, any::<bool>()), 0..200)) {
            let now = Instant::now();
            let mut swarm = Swarm::new(BY.into(), now);
            let mut model: BTreeMap<Endpoint, bool> = BTreeMap::new();
            let mut rng = fastrand::Rng::with_seed(3);
            for (what, n, is_seed) in steps {
                let peer = peer(n);
                let family = Family::of(peer.addr);
                if what == 0 {
                    prop_assert_eq!(swarm.remove(peer.addr), model.remove(&peer.addr).is_some());
                } else {
                    swarm.put(peer, BY, is_seed, now);
                    model.insert(peer.addr, is_seed);
                }
                let ip: Vec<bool> =
                    model.iter().filter(|(addr, _)| addr.as_ip().is_some()).map(|(_, is_seed)| *is_seed).collect();
                let seeds = ip.iter().filter(|is_seed| **is_seed).count() as u32;
                prop_assert_eq!(swarm.counts(), (seeds, ip.len() as u32 - seeds));
                let own = [peer.addr, super::tests::peer((n + 3) % 21).addr];
                let mut chosen = Vec::new();
                let whom = [Whom::Leechers, Whom::Seeds, Whom::All][usize::from(n / 3 % 3)];
                let count = swarm.sample(family, whom, &own, 30, &mut rng, &mut chosen);
                prop_assert_eq!(count, chosen.len());
                let chosen: HashSet<_> = chosen.iter().map(|peer| peer.addr).collect();
                let expected: HashSet<_> = model
                    .iter()
                    .filter(|(addr, known)| {
                        Family::of(**addr) == family && whom.includes(**known) && !own.contains(addr)
                    })
                    .map(|(addr, _)| *addr)
                    .collect();
                prop_assert_eq!(chosen, expected);
                prop_assert_eq!(count, swarm.sample(family, whom, &own, 30, &mut rng, &mut Vec::new()));
            }
        }
    }
}
