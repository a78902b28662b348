//! What the default selector's paths carry on the networks of `topologies/`, against the maximum flow: at least 90 %.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_asnet::control::{ControlPlane, Keys, Options};
use anabranch_asnet::topology::Topology;
use anabranch_paths::flow::{FlowNetwork, fair_rates};
use anabranch_paths::select::{Budget, Candidate, Selector};
use anabranch_paths::{Interface, IsdAs, Path, ScionPath, Scoreboard};

/// Links that the file gives no rate count as this fast, bits a second.
const UNLIMITED_BPS: u64 = 1_000_000_000;

/// The fair rates of the choice, and what no choice of so many paths exceeds.
fn compare(topology: &Topology, paths: &[ScionPath], ends: (IsdAs, IsdAs), connections: usize) -> (f64, f64) {
    let mut links: Vec<(Interface, Interface)> = paths.iter().flat_map(ScionPath::links).collect();
    links.sort_unstable();
    links.dedup();
    let capacity = |out: Interface| {
        let end = topology.interface(out).unwrap();
        topology.links()[end.link].shapes[end.end].rate_bps.unwrap_or(UNLIMITED_BPS)
    };
    let capacities: Vec<u64> = links.iter().map(|(out, _)| capacity(*out)).collect();
    let mut network = FlowNetwork::default();
    for ((out, into), capacity) in links.iter().zip(&capacities) {
        network.add_link(out.isd_as, into.isd_as, *capacity);
    }
    let way = |path: &ScionPath| path.links().map(|link| links.binary_search(&link).unwrap()).collect::<Vec<_>>();
    let ways: Vec<Vec<usize>> = paths.iter().map(way).collect();
    // However many paths there are, so many carry no more than the widest of them.
    let mut widths: Vec<u64> = ways.iter().map(|way| way.iter().map(|&link| capacities[link]).min().unwrap()).collect();
    widths.sort_unstable_by(|a, b| b.cmp(a));
    let mut bound = network.max_flow(&ends.0, &ends.1).value.min(widths.iter().take(connections).sum()) as f64;
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let candidate = |path: &ScionPath| Candidate::new(1, &Path::scion(host, host, Arc::new(path.clone())));
    let candidates: Vec<Candidate> = paths.iter().map(candidate).collect();
    let budget = Budget { connections, per_peer: connections };
    let selection = Selector::Disjoint.select(&candidates, &Scoreboard::default(), budget);
    let chosen: Vec<Vec<usize>> = selection.chosen().map(|index| ways[index].clone()).collect();
    let capacities: Vec<f64> = capacities.into_iter().map(|capacity| capacity as f64).collect();
    let rate = |ways: &[Vec<usize>]| fair_rates(ways, &capacities).into_iter().sum::<f64>();
    // The widest two may share what both need, which the bound does not see: of pairs, the best can be looked for.
    if connections == 2 {
        let pairs = (0..ways.len()).flat_map(|a| (0..=a).map(move |b| [a, b]));
        let best = pairs.map(|[a, b]| rate(&[ways[a].clone(), ways[b].clone()])).fold(0.0, f64::max);
        bound = bound.min(best);
    }
    (rate(&chosen), bound)
}

#[test]
fn disjoint_paths_carry_nine_tenths_of_the_maximum_flow_in_every_network_of_the_lab() {
    let folder = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies");
    let (mut pairs, mut worst) = (0, (1.0, String::new()));
    for file in std::fs::read_dir(folder).unwrap() {
        let topology = Arc::new(Topology::load(&file.unwrap().path()).unwrap());
        let keys = Arc::new(Keys::new(&topology, &[7; 32]));
        let plane = ControlPlane::new(topology.clone(), keys, Options::default());
        for from in topology.ases() {
            for to in topology.ases().iter().filter(|to| to.isd_as != from.isd_as) {
                let ends = (from.isd_as, to.isd_as);
                let paths = plane.paths(ends.0, ends.1, SystemTime::now()).unwrap();
                for connections in [1, 2, 4, 8, 16] {
                    let (rate, bound) = compare(&topology, &paths, ends, connections);
                    let what = format!("{}, {} to {}, {connections} connections", topology.name, ends.0, ends.1);
                    assert!(rate <= bound * 1.000_001, "{what}: {rate} of {bound}");
                    assert!(rate >= 0.9 * bound, "{what}: {rate} of {bound}");
                    if rate / bound < worst.0 {
                        worst = (rate / bound, what);
                    }
                    pairs += 1;
                }
            }
        }
    }
    assert!(pairs > 100, "only {pairs} cases");
    println!("{pairs} cases, the worst is {:.3}: {}", worst.0, worst.1);
}
