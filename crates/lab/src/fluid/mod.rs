//! What a cell's network can carry: what its results are compared with.
//!
//! Two figures. The *bound* is the goodput that no swarm exceeds over the ways that the cell's routing has, however
//! cleverly it splits what it sends over them, and passes on what it has ([`optimum`]). Peers of one AS share without limits there: it counts
//! what comes to an AS for each of its peers. The *fluid model* lets every AS that has peers send to every other one where
//! somebody fetches at once, and all give way evenly at full links (max-min fair rates): the sum of these rates, and so what
//! trading among many comes to that does not know who is near. Peers that share within their AS may have more. Over SCION whoever sends
//! chooses among many paths, and no rule is best in every network: the best choice counts that is found, BGP's ways among
//! them ([`choice`]).

mod choice;
mod optimum;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_asnet::control::{self, ControlPlane, Keys, SECRET_LEN};
use anabranch_asnet::topology::Topology;
use anabranch_paths::ScionPath;
use anabranch_paths::flow::FlowNetwork;

use crate::bed::Routing;
use crate::plan::{Cell, Peer, Placement, Plan, Role, rate_bytes};
use crate::routes::Routes;

/// Stands for a link without a limit: more than any limited link may have, however many of them.
const UNLIMITED_BPS: u64 = 1 << 50;
/// Paths between two ASes that the model takes where the plan does not say.
const PATHS_DEFAULT: usize = 4;

/// Directed links (`2 * link + end` that is left), one after the other.
type Way = Vec<usize>;

/// What the network of a cell can carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// No swarm has more goodput, Mbit/s; `None` where nothing limits it.
    pub goodput_mbit: Option<f64>,
    /// What all pairs of ASes carry at once, Mbit/s; `None` where nothing limits it.
    pub fluid_mbit: Option<f64>,
}

impl Bounds {
    /// Of a cell.
    pub fn new(plan: &Plan, cell: &Cell) -> Self {
        let plan = plan.under(cell);
        let candidate = &plan.candidates[cell.candidate];
        let placement = &plan.placements[cell.placement];
        let swarm = Swarm::new(&plan.topology, placement, candidate.routing);
        let Some(most) = swarm.most_bps() else { return Self { goodput_mbit: None, fluid_mbit: None } };
        let bound = optimum::goodput(&swarm, &most);
        let paths = candidate.paths.map_or(PATHS_DEFAULT, |paths| paths as usize);
        let fluid = choice::carried(&swarm, paths).min(bound);
        Self { goodput_mbit: Some(bound / 1e6), fluid_mbit: Some(fluid / 1e6) }
    }

    /// What a cell takes where the network carries what the fluid model says, s; `None` where nothing limits it.
    pub(crate) fn seconds(&self, plan: &Plan, cell: &Cell) -> Option<f64> {
        let carried = self.fluid_mbit.filter(|mbit| *mbit > 0.0)? * 1e6;
        let fetched: usize = targets(&plan.placements[cell.placement]).values().sum();
        Some(fetched as f64 * plan.under(cell).content_bytes as f64 * 8.0 / carried)
    }

    /// Of cells; what several of them share is found out once.
    pub fn of_all(plan: &Plan, cells: &[Cell]) -> Vec<Self> {
        let mut known = HashMap::new();
        let one = |cell: &Cell| {
            let candidate = &plan.candidates[cell.candidate];
            let key = (cell.placement, cell.variant, candidate.routing, candidate.paths);
            *known.entry(key).or_insert_with(|| Self::new(plan, cell))
        };
        cells.iter().map(one).collect()
    }
}

/// Who sends to whom over which ways, by places of ASes.
struct Swarm {
    routing: Routing,
    /// What each directed link carries; `None` without a limit.
    capacities: Vec<Option<u64>>,
    /// The ASes at both ends of each directed link.
    ends: Vec<[usize; 2]>,
    seeds: BTreeSet<usize>,
    /// ASes where somebody fetches and nobody has everything, and how many do.
    targets: BTreeMap<usize, usize>,
    /// What the peers of an AS send and receive at most, bits per second, where all of them have a limit.
    limits_up: BTreeMap<usize, u64>,
    limits_down: BTreeMap<usize, u64>,
    /// From each AS with peers to each other one where somebody fetches.
    pairs: Vec<PairWays>,
}

/// The ways from one AS to another.
struct PairWays {
    from: usize,
    to: usize,
    /// All of them, the shortest first.
    all: Vec<Way>,
    /// What BGP takes, and what BGP that shares equals does; the same as `all` without SCION.
    bgp: [Vec<Way>; 2],
}

impl Swarm {
    fn new(topology: &Topology, placement: &Placement, routing: Routing) -> Self {
        let seeds: BTreeSet<usize> = homes(placement, Role::Seed).collect();
        let targets = targets(placement);
        let sources: BTreeSet<usize> = seeds.iter().chain(targets.keys()).copied().collect();
        let (routes, plane) = (Routes::new(topology), (routing == Routing::Scion).then(|| plane(topology)));
        let fetching: BTreeSet<usize> = homes(placement, Role::Leecher).collect();
        let both = |to: usize| sources.iter().filter(move |from| **from != to).map(move |from| (*from, to));
        let pairs = fetching.iter().flat_map(|to| both(*to)).map(|(from, to)| {
            let bgp = [false, true].map(|multipath| routes.ways(topology, from, to, multipath));
            let all = match &plane {
                Some(plane) => scion_ways(topology, plane, (from, to)),
                None => bgp[usize::from(routing == Routing::BgpMultipath)].clone(),
            };
            PairWays { from, to, all, bgp }
        });
        let place = |end: anabranch_paths::Interface| topology.index(end.isd_as).unwrap_or_default();
        let directions = || topology.links().iter().flat_map(|link| [(link, 0), (link, 1)]);
        Self {
            routing,
            capacities: directions().map(|(link, end)| link.shapes[end].rate_bps).collect(),
            ends: directions().map(|(link, end)| [link.ends[end], link.ends[1 - end]].map(place)).collect(),
            pairs: pairs.collect(),
            limits_up: limits(placement, 0),
            limits_down: limits(placement, 1),
            seeds,
            targets,
        }
    }

    /// The maximum flow from all seeds into each target over all links that any way takes, bits per second, or what its fastest peer
    /// receives at most; `None` where nothing limits one of them.
    fn most_bps(&self) -> Option<BTreeMap<usize, f64>> {
        let mut network = FlowNetwork::default();
        // Node 0 stands before all seeds.
        for seed in &self.seeds {
            network.add_link(0, seed + 1, self.limits_up.get(seed).copied().unwrap_or(UNLIMITED_BPS));
        }
        let used: BTreeSet<usize> = self.to_targets().flat_map(|pair| &pair.all).flatten().copied().collect();
        for link in used {
            let [from, to] = self.ends[link];
            network.add_link(from + 1, to + 1, self.capacities[link].unwrap_or(UNLIMITED_BPS));
        }
        let most = |home: usize| {
            let flow = network.max_flow(&0, &(home + 1)).value;
            let least = self.limits_down.get(&home).map_or(flow, |limit| flow.min(*limit));
            (least < UNLIMITED_BPS).then_some((home, least as f64))
        };
        self.targets.keys().map(|home| most(*home)).collect()
    }

    /// The ways to where nobody has everything from the start.
    fn to_targets(&self) -> impl Iterator<Item = &PairWays> {
        self.pairs.iter().filter(|pair| self.targets.contains_key(&pair.to))
    }

    /// What a directed link carries, as a number.
    fn capacity(&self, link: usize) -> f64 {
        self.capacities[link].unwrap_or(UNLIMITED_BPS) as f64
    }
}

/// The limits of peers: what all of an AS send together, and what the fastest of them receives; only of ASes whose peers all have one.
fn limits(placement: &Placement, way: usize) -> BTreeMap<usize, u64> {
    let mut limits: BTreeMap<usize, Option<u64>> = BTreeMap::new();
    let of = |peer: &Peer| peer.limits[way].as_deref().and_then(rate_bytes).map(|bytes| bytes.saturating_mul(8));
    for peer in &placement.peers {
        let limit = limits.entry(peer.home).or_insert(Some(0));
        *limit = limit.zip(of(peer)).map(|(all, one)| if way == 0 { all.saturating_add(one) } else { all.max(one) });
    }
    limits.into_iter().filter_map(|(home, limit)| Some((home, limit?))).collect()
}

/// ASes where somebody fetches and nobody has everything, and how many do.
fn targets(placement: &Placement) -> BTreeMap<usize, usize> {
    let seeds: BTreeSet<usize> = homes(placement, Role::Seed).collect();
    let mut targets = BTreeMap::new();
    for home in homes(placement, Role::Leecher).filter(|home| !seeds.contains(home)) {
        *targets.entry(home).or_insert(0) += 1;
    }
    targets
}

fn homes(placement: &Placement, role: Role) -> impl Iterator<Item = usize> {
    placement.peers.iter().filter(move |peer| peer.role == role).map(|peer| peer.home)
}

/// What control services of a network know.
fn plane(topology: &Topology) -> ControlPlane {
    let keys = Arc::new(Keys::new(topology, &[0; SECRET_LEN]));
    ControlPlane::new(Arc::new(topology.clone()), keys, control::Options::default())
}

/// All SCION paths from one AS to another, as its control service answers; the fewest links first.
pub(crate) fn paths(topology: &Topology, from: usize, to: usize) -> Vec<ScionPath> {
    let ases = topology.ases();
    plane(topology).paths(ases[from].isd_as, ases[to].isd_as, SystemTime::now()).unwrap_or_default()
}

fn scion_ways(topology: &Topology, plane: &ControlPlane, (from, to): (usize, usize)) -> Vec<Way> {
    let ases = topology.ases();
    let paths = plane.paths(ases[from].isd_as, ases[to].isd_as, SystemTime::now()).unwrap_or_default();
    let way = |path: ScionPath| {
        let hops = path.interfaces.chunks_exact(2);
        hops.map(|hop| topology.interface(hop[0]).map(|interface| 2 * interface.link + interface.end)).collect()
    };
    paths.into_iter().filter_map(way).collect()
}

#[cfg(test)]
mod tests;
