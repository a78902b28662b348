//! What a cell's network can carry: what its results are compared with.
//!
//! Two figures. The *maximum flow* from the seeds into an AS bounds how fast that AS can have one copy of the content, over
//! whichever ways and with whatever help of others; peers inside an AS share without limits, so it bounds each of them. The
//! *fluid model* lets every AS that has peers send to every other one where somebody fetches at once, over the ways that the cell's routing gives
//! them, and all give way evenly at full links (max-min fair rates): what trading among many comes to once all have something.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_asnet::control::{self, ControlPlane, Keys, SECRET_LEN};
use anabranch_asnet::topology::Topology;
use anabranch_paths::ScionPath;
use anabranch_paths::flow::{FlowNetwork, fair_rates};

use crate::bed::Routing;
use crate::plan::{Cell, Plan, Role};
use crate::routes::Routes;

/// Stands for a link without a limit: more than any limited link may have, however many of them.
const UNLIMITED_BPS: u64 = 1 << 50;
/// Paths between two ASes that the model takes where the plan does not say.
const PATHS_DEFAULT: usize = 4;

/// What the network of a cell can carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Sum over peers that count (see [`crate::plan::Measure`]) of the maximum flow to their ASes, Mbit/s; `None` where nothing
    /// limits it.
    pub goodput_mbit: Option<f64>,
    /// What the content takes at least to the AS that is worst off, s.
    pub longest_seconds: Option<f64>,
    /// What all pairs of ASes carry together in the fluid model, Mbit/s.
    pub fluid_mbit: f64,
}

impl Bounds {
    /// Of a cell.
    pub fn new(plan: &Plan, cell: &Cell) -> Self {
        let plan = &plan.under(cell);
        let placement = &plan.placements[cell.placement];
        let homes = |role| placement.peers.iter().filter(move |peer| peer.role == role).map(|peer| peer.home);
        let seeds: BTreeSet<usize> = homes(Role::Seed).collect();
        let counted: Vec<usize> = homes(Role::Leecher).filter(|home| !seeds.contains(home)).collect();
        let flows: Vec<Option<u64>> = counted.iter().map(|home| max_flow(&plan.topology, &seeds, *home)).collect();
        let goodput = flows.iter().copied().sum::<Option<u64>>();
        let least = flows.iter().flatten().min().filter(|least| **least > 0);
        let places: BTreeSet<usize> = placement.peers.iter().map(|peer| peer.home).collect();
        Self {
            goodput_mbit: goodput.map(|bps| bps as f64 / 1e6),
            longest_seconds: least.map(|least| plan.content_bytes as f64 * 8.0 / *least as f64),
            fluid_mbit: fluid(plan, cell, &places, &homes(Role::Leecher).collect()) / 1e6,
        }
    }
}

/// From all seeds together into an AS, bits per second; `None` where nothing limits it.
fn max_flow(topology: &Topology, seeds: &BTreeSet<usize>, home: usize) -> Option<u64> {
    let mut network = FlowNetwork::default();
    // Node 0 stands before all seeds.
    for seed in seeds {
        network.add_link(0, seed + 1, UNLIMITED_BPS);
    }
    for link in topology.links() {
        let ends = link.ends.map(|end| topology.index(end.isd_as).unwrap_or_default() + 1);
        for end in 0..2 {
            network.add_link(ends[end], ends[1 - end], link.shapes[end].rate_bps.unwrap_or(UNLIMITED_BPS));
        }
    }
    Some(network.max_flow(&0, &(home + 1)).value).filter(|value| *value < UNLIMITED_BPS)
}

/// From all places to all others where somebody fetches, at once; bits per second.
fn fluid(plan: &Plan, cell: &Cell, places: &BTreeSet<usize>, targets: &BTreeSet<usize>) -> f64 {
    let (topology, candidate) = (&plan.topology, &plan.candidates[cell.candidate]);
    let pairs = places.iter().flat_map(|from| targets.iter().filter(move |to| *to != from).map(move |to| (*from, *to)));
    let ways: Vec<Vec<usize>> = match candidate.routing {
        Routing::Scion => {
            let plane = plane(topology);
            let most = candidate.paths.map_or(PATHS_DEFAULT, |paths| paths as usize);
            pairs.flat_map(|pair| disjoint(topology, &plane, pair, most)).collect()
        }
        routing => {
            let routes = Routes::new(topology);
            let multipath = routing == Routing::BgpMultipath;
            pairs.flat_map(|(from, to)| routes.ways(topology, from, to, multipath)).collect()
        }
    };
    let capacities: Vec<f64> = topology
        .links()
        .iter()
        .flat_map(|link| link.shapes.map(|shape| shape.rate_bps.unwrap_or(UNLIMITED_BPS) as f64))
        .collect();
    fair_rates(&ways, &capacities).iter().sum()
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

/// The shortest paths that share no link with those before them, as directed links.
fn disjoint(topology: &Topology, plane: &ControlPlane, (from, to): (usize, usize), most: usize) -> Vec<Vec<usize>> {
    let ases = topology.ases();
    let Ok(paths) = plane.paths(ases[from].isd_as, ases[to].isd_as, SystemTime::now()) else { return Vec::new() };
    let mut chosen: Vec<Vec<usize>> = Vec::new();
    for path in paths {
        let way: Option<Vec<usize>> = path
            .interfaces
            .chunks_exact(2)
            .map(|hop| topology.interface(hop[0]).map(|interface| 2 * interface.link + interface.end))
            .collect();
        let Some(way) = way else { continue };
        let shares = chosen.iter().flatten().any(|taken| way.iter().any(|link| link / 2 == taken / 2));
        if !shares && chosen.len() < most {
            chosen.push(way);
        }
    }
    chosen
}
