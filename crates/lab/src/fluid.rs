//! What a cell's network can carry: what its results are compared with.
//!
//! Two figures. The *maximum flow* from the seeds into an AS bounds how fast that AS can have one copy of the content, over
//! whichever ways and with whatever help of others; peers inside an AS share without limits, so it bounds each of them. The
//! *fluid model* lets every AS that has peers send to every other one where somebody fetches at once, over the ways that the cell's routing gives
//! them, and all give way evenly at full links (max-min fair rates): what trading among many comes to once all have something.
//! Over SCION whoever sends chooses among many paths, and no rule is best in every network: [`Rule`]s are tried, and the best one counts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_asnet::control::{self, ControlPlane, Keys, SECRET_LEN};
use anabranch_asnet::topology::Topology;
use anabranch_paths::ScionPath;
use anabranch_paths::flow::{FlowNetwork, fair_rates};

use crate::bed::Routing;
use crate::plan::{Cell, Placement, Plan, Role};
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
    /// What all pairs of ASes carry together in the fluid model, Mbit/s; `None` where nothing limits one of them.
    pub fluid_mbit: Option<f64>,
}

impl Bounds {
    /// Of a cell.
    pub fn new(plan: &Plan, cell: &Cell) -> Self {
        let plan = &plan.under(cell);
        let placement = &plan.placements[cell.placement];
        let places: BTreeSet<usize> = placement.peers.iter().map(|peer| peer.home).collect();
        let targets = homes(placement, Role::Leecher).collect();
        let goodput = flows(&plan.topology, placement).into_iter().sum::<Option<u64>>();
        Self {
            goodput_mbit: goodput.map(|bps| bps as f64 / 1e6),
            fluid_mbit: fluid(plan, cell, &places, &targets).map(|bps| bps / 1e6),
        }
    }
}

/// What the content of a cell takes at least to the AS that is worst off, s; `None` where nothing limits it.
pub(crate) fn longest_seconds(plan: &Plan, cell: &Cell) -> Option<f64> {
    let plan = plan.under(cell);
    let flows = flows(&plan.topology, &plan.placements[cell.placement]);
    let least = flows.into_iter().flatten().filter(|least| *least > 0).min()?;
    Some(plan.content_bytes as f64 * 8.0 / least as f64)
}

fn homes(placement: &Placement, role: Role) -> impl Iterator<Item = usize> {
    placement.peers.iter().filter(move |peer| peer.role == role).map(|peer| peer.home)
}

/// The maximum flow to the AS of each peer that counts, bits per second; `None` where nothing limits it.
fn flows(topology: &Topology, placement: &Placement) -> Vec<Option<u64>> {
    let seeds: BTreeSet<usize> = homes(placement, Role::Seed).collect();
    let counted = homes(placement, Role::Leecher).filter(|home| !seeds.contains(home));
    counted.map(|home| max_flow(topology, &seeds, home)).collect()
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

/// From all places to all others where somebody fetches, at once; bits per second, `None` where nothing limits one of them.
fn fluid(plan: &Plan, cell: &Cell, places: &BTreeSet<usize>, targets: &BTreeSet<usize>) -> Option<f64> {
    let (topology, candidate) = (&plan.topology, &plan.candidates[cell.candidate]);
    let pairs = places.iter().flat_map(|from| targets.iter().filter(move |to| *to != from).map(move |to| (*from, *to)));
    match candidate.routing {
        Routing::Scion => {
            let plane = plane(topology);
            let most = candidate.paths.map_or(PATHS_DEFAULT, |paths| paths as usize);
            let known: Vec<Vec<Vec<usize>>> = pairs.map(|pair| scion_ways(topology, &plane, pair)).collect();
            let by = |rule: &Rule| {
                let chosen = known.iter().flat_map(|ways| rule.choose(topology, ways, most));
                carried(topology, &chosen.collect::<Vec<_>>())
            };
            // None of them is best in every network. `None`, without a limit, is more than any rate.
            let all = Rule::ALL.iter().map(by).collect::<Option<Vec<f64>>>()?;
            all.into_iter().reduce(f64::max)
        }
        routing => {
            let routes = Routes::new(topology);
            let multipath = routing == Routing::BgpMultipath;
            let ways = pairs.flat_map(|(from, to)| routes.ways(topology, from, to, multipath));
            carried(topology, &ways.collect::<Vec<_>>())
        }
    }
}

/// What leaves an end of a link at most, by the number of the directed link.
fn capacity(topology: &Topology, directed: usize) -> Option<u64> {
    topology.links()[directed / 2].shapes[directed % 2].rate_bps
}

/// The sum of the max-min fair rates of ways, bits per second; `None` where one of them has no limited link.
fn carried(topology: &Topology, ways: &[Vec<usize>]) -> Option<f64> {
    let is_limited = |way: &Vec<usize>| way.is_empty() || way.iter().any(|link| capacity(topology, *link).is_some());
    if !ways.iter().all(is_limited) {
        return None;
    }
    let capacities: Vec<f64> = (0..2 * topology.links().len())
        .map(|directed| capacity(topology, directed).unwrap_or(UNLIMITED_BPS) as f64)
        .collect();
    Some(fair_rates(ways, &capacities).iter().sum())
}

/// Which of the paths between two ASes carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The shortest that share no link with those before them.
    Disjoint,
    /// The shortest, whatever they share.
    Shortest,
    /// One after the other, those for which the most room is left on their way.
    Widest,
}

impl Rule {
    const ALL: [Self; 3] = [Self::Disjoint, Self::Shortest, Self::Widest];

    /// So many of these ways at most, which stand with the shortest first.
    fn choose(self, topology: &Topology, ways: &[Vec<usize>], most: usize) -> Vec<Vec<usize>> {
        match self {
            Self::Disjoint => disjoint(ways, most),
            Self::Shortest => ways.iter().take(most).cloned().collect(),
            Self::Widest => widest(topology, ways, most),
        }
    }
}

fn disjoint(ways: &[Vec<usize>], most: usize) -> Vec<Vec<usize>> {
    let mut chosen: Vec<Vec<usize>> = Vec::new();
    for way in ways {
        let shares = chosen.iter().flatten().any(|taken| way.iter().any(|link| link / 2 == taken / 2));
        if !shares && chosen.len() < most {
            chosen.push(way.clone());
        }
    }
    chosen
}

fn widest(topology: &Topology, ways: &[Vec<usize>], most: usize) -> Vec<Vec<usize>> {
    let mut left: Vec<u64> =
        (0..2 * topology.links().len()).map(|directed| capacity(topology, directed).unwrap_or(UNLIMITED_BPS)).collect();
    let mut chosen = Vec::new();
    while chosen.len() < most {
        let room = |way: &Vec<usize>| way.iter().map(|link| left[*link]).min().unwrap_or(0);
        // Of equal ones the shortest, which stands first.
        let best = ways.iter().rev().max_by_key(|way| room(way));
        let Some((way, takes)) = best.map(|way| (way, room(way))).filter(|(_, takes)| *takes > 0) else { break };
        way.iter().for_each(|link| left[*link] -= takes);
        chosen.push(way.clone());
    }
    chosen
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

/// The same as directed links (`2 * link + end` that is left).
fn scion_ways(topology: &Topology, plane: &ControlPlane, (from, to): (usize, usize)) -> Vec<Vec<usize>> {
    let ases = topology.ases();
    let paths = plane.paths(ases[from].isd_as, ases[to].isd_as, SystemTime::now()).unwrap_or_default();
    let way = |path: ScionPath| {
        let hops = path.interfaces.chunks_exact(2);
        hops.map(|hop| topology.interface(hop[0]).map(|interface| 2 * interface.link + interface.end)).collect()
    };
    paths.into_iter().filter_map(way).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The bounds of one candidate that fetches from 1-1 in 1-2.
    fn bounds(topology: &str, candidate: &str) -> Bounds {
        let text = format!(
            "id = \"x\"\ntitle = \"X\"\ntopology = \"net.toml\"\n[content]\nsize = \"1 MB\"\n\
             [[candidate]]\nname = \"c\"\n{candidate}\n[[peers]]\nrole = \"seed\"\nin = [\"1-1\"]\n[[peers]]\nin = [\"1-2\"]\n"
        );
        let plan = Plan::read(Path::new("x.toml"), &text, |source| {
            Ok((Topology::from_toml(source.name(), topology).map_err(|error| error.to_string())?, topology.to_owned()))
        });
        let plan = plan.unwrap();
        Bounds::new(&plan, &plan.cells()[0])
    }

    /// Two links of 10 and 100 Mbit/s behind one of 105.
    const SHARED: &str = "[as.'1-1']\ncore = true\n[as.'1-3']\n[as.'1-2']\n[[link]]\nparent = '1-1'\nchild = '1-3'\nrate = '105 Mbit/s'\n\
                          [[link]]\nparent = '1-3'\nchild = '1-2'\nrate = '10 Mbit/s'\n\
                          [[link]]\nparent = '1-3'\nchild = '1-2'\nrate = '100 Mbit/s'\n";

    #[test]
    fn paths_that_share_a_wide_link_carry_together() {
        let both = bounds(SHARED, "routing = \"scion\"\npaths = 2");
        assert_eq!((both.goodput_mbit, both.fluid_mbit), (Some(105.0), Some(105.0)));
        // One alone is the wide one, however long the list that it stands in.
        assert_eq!(bounds(SHARED, "routing = \"scion\"\npaths = 1").fluid_mbit, Some(100.0));
        assert_eq!(bounds(SHARED, "routing = \"plain\"").fluid_mbit, Some(10.0));
    }

    #[test]
    fn each_rule_chooses_as_its_name_says() {
        let topology = Topology::from_toml("net.toml", SHARED).unwrap();
        // From 1-1 by 1-3: the narrow link stands first.
        let ways = [vec![0, 2], vec![0, 4]];
        let choose = |rule: Rule, most| rule.choose(&topology, &ways, most);
        assert_eq!(choose(Rule::Disjoint, 2), [[0, 2]]);
        assert_eq!(choose(Rule::Shortest, 2), ways);
        assert_eq!(choose(Rule::Widest, 2), [[0, 4], [0, 2]]);
        assert_eq!((choose(Rule::Widest, 1), choose(Rule::Shortest, 0)), (vec![vec![0, 4]], Vec::new()));
        // What has no room left is not chosen.
        let thrice = [vec![0, 4], vec![0, 4], vec![0, 2]];
        assert_eq!(Rule::Widest.choose(&topology, &thrice, 3), [[0, 4], [0, 2]]);
    }

    #[test]
    fn what_nothing_limits_has_no_bound() {
        let open = SHARED.replace("rate = '105 Mbit/s'", "").replace("rate = '10 Mbit/s'", "");
        for routing in ["scion", "plain"] {
            let bounds = bounds(&open, &format!("routing = \"{routing}\""));
            assert_eq!((bounds.goodput_mbit, bounds.fluid_mbit), (None, None), "{routing}");
        }
        let behind = SHARED.replace("rate = '105 Mbit/s'", "");
        assert_eq!(bounds(&behind, "routing = \"scion\"").fluid_mbit, Some(110.0));
    }
}
