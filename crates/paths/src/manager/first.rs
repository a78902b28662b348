//! The first connection to a peer: whom there is nothing to choose for yet, since nobody was met.
//!
//! The selector that chooses all others says which way it takes, too, as one more path beside those in use; each attempt that fails
//! takes the next.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::{FAILURES_MAX, IpCandidate, LinkHealth, PathManager};
use crate::select::{Candidate, Selector};
use crate::{Endpoint, Path, PathId, PathState, ScionAddr, ScionPath, Scoreboard};

/// How to leave for a peer over plain IP, when nobody is met there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstIp<'a> {
    /// As the system's routes go: they know best which of our interfaces leads anywhere.
    AsRouted,
    /// From this address of ours.
    Over(&'a IpCandidate),
}

impl PathManager {
    /// Whether a connection to `address` is open.
    pub fn reaches(&self, address: Endpoint) -> bool {
        self.conns.values().any(|conn| conn.address == address)
    }

    /// Attempts to reach `address` that failed in a row.
    fn failures(&self, address: Endpoint) -> usize {
        self.failures.get(&address).copied().unwrap_or(0)
    }

    /// An attempt to reach `address` over any path ended.
    pub fn tried(&mut self, address: Endpoint, reached: bool) {
        if reached {
            self.failures.remove(&address);
            return;
        }
        if self.failures.len() >= FAILURES_MAX {
            // Which way is tried next is forgotten, and no more.
            self.failures.clear();
        }
        *self.failures.entry(address).or_default() += 1;
    }

    /// `address` will not be dialled any more.
    pub fn forget_address(&mut self, address: Endpoint) {
        self.failures.remove(&address);
    }

    /// The path over which to dial `address` first, out of `paths` to it, best first: by the selector that chooses the others, and
    /// with every failed attempt before, the next one. Those that are down come last. Beside those that this attempt `tried` so far, another
    /// one, which has as little in common with each of them as there is. `None` where there are no paths.
    pub fn first_path(
        &self,
        address: ScionAddr,
        paths: &[Arc<ScionPath>],
        tried: &[Arc<ScionPath>],
        links: &LinkHealth,
        board: &Scoreboard,
        now: Instant,
    ) -> Option<Arc<ScionPath>> {
        let is_left = |path: &&Arc<ScionPath>| tried.iter().all(|other| other.id() != path.id());
        let left: Vec<&Arc<ScionPath>> = paths.iter().filter(is_left).collect();
        let is_down = |path: &Arc<ScionPath>| links.is_down(path, now) || board.is_down(path.id());
        let working: Vec<_> = left.iter().copied().filter(|path| !is_down(path)).collect();
        let candidates = if working.is_empty() { left } else { working };
        let order = self.rank(address, &candidates, board);
        let place = match tried.is_empty() {
            true => order[self.failures(Endpoint::Scion(address)).checked_rem(order.len())?],
            false => {
                let common = |place: &usize| tried.iter().map(|other| candidates[*place].overlap(other)).max();
                order.into_iter().min_by_key(common)?
            }
        };
        Some(Arc::clone(candidates[place]))
    }

    /// How to dial `address` first over plain IP, out of all `candidates` to it; where the user named interfaces, by these alone
    /// (`is_restricted`). As the system's routes go, unless the selector keeps paths apart and connections crowd on one of several
    /// interfaces that work: then by the one with the fewest. `None` where no interface leads there.
    pub fn first_over_ip<'a>(
        &self,
        address: Endpoint,
        candidates: &'a [IpCandidate],
        is_restricted: bool,
    ) -> Option<FirstIp<'a>> {
        let mut load: HashMap<IpAddr, usize> = HashMap::new();
        for conn in self.conns.values().filter(|conn| conn.down.is_none() && conn.path.as_scion().is_none()) {
            *load.entry(conn.path.local()).or_default() += 1;
        }
        // Nothing says that an interface leads anywhere but a connection over it.
        let load_of = |candidate: &IpCandidate| load.get(&candidate.path.local()).copied();
        let loads = || candidates.iter().filter_map(load_of);
        let is_uneven = self.keeps_paths_apart() && loads().min() < loads().max();
        let mut order: Vec<&IpCandidate> = candidates.iter().collect();
        if is_uneven {
            order.sort_by_key(|candidate| load_of(candidate).unwrap_or(usize::MAX));
        }
        let mut turns: Vec<FirstIp<'a>> = order.into_iter().map(FirstIp::Over).collect();
        if !is_restricted {
            turns.insert(usize::from(is_uneven), FirstIp::AsRouted);
        }
        turns.get(self.failures(address).checked_rem(turns.len())?).copied()
    }

    /// Whether the selector keeps paths out of each other's way.
    fn keeps_paths_apart(&self) -> bool {
        matches!(self.config.selector.unwrap_or_default(), Selector::Disjoint | Selector::DisjointPaper)
    }

    /// The places of `paths`, in the order in which the selector would take them as one more path beside those in use.
    fn rank(&self, address: ScionAddr, paths: &[&Arc<ScionPath>], board: &Scoreboard) -> Vec<usize> {
        let remote = address.host.ip();
        let local = self.config.scion_host.unwrap_or(remote);
        let candidate = |(place, path): (usize, &&Arc<ScionPath>)| {
            let path = Path::scion(local, remote, Arc::clone(path));
            let handshake = self.handshakes.get(&path.id()).copied();
            Candidate { place, handshake, ..Candidate::new(0, &path) }
        };
        let candidates: Vec<Candidate> = paths.iter().enumerate().map(candidate).collect();
        let active = self.conns.values().filter(|conn| conn.down.is_none() && conn.state == PathState::Active);
        // Two connections over one path are in the way of others once.
        let in_use: BTreeMap<PathId, &Path> = active.map(|conn| (conn.path.id(), &conn.path)).collect();
        let in_use: Vec<Candidate> = in_use.into_values().map(|path| Candidate::new(1, path)).collect();
        self.config.selector.unwrap_or_default().rank(&candidates, &in_use, board, &self.third_party)
    }
}
