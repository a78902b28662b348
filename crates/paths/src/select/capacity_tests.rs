//! What a choice of paths can carry, on thousands of random networks with capacities, against what no choice can exceed.

use std::collections::HashMap;

use super::*;
use crate::flow::{FlowNetwork, fair_rates};
use crate::{Interface, IsdAs};

const NETWORKS: u64 = 600;
/// Candidates of one peer, shortest first, as a path lookup gives them.
const PATHS_MAX: usize = 30;
const HOPS_MAX: usize = 7;

/// A random network, and what its paths from node 0 to some other nodes are.
struct Scene {
    /// From, to, capacity; both directions of a link are alike.
    links: Vec<(usize, usize, u64)>,
    candidates: Vec<Candidate>,
    /// The links of each candidate, with the direction: link `n` one way is `2 * n`, the other `2 * n + 1`.
    ways: Vec<Vec<usize>>,
    sinks: Vec<usize>,
    /// Whether the ASes tell their capacities.
    claims: bool,
}

fn interface(node: usize, link: usize) -> Resource {
    Resource::Interface(Interface { isd_as: IsdAs::from_u64(1 << 48 | node as u64), id: link as u16 + 1 })
}

impl Scene {
    /// `capacities` are drawn from; `sinks` peers sit in different ASes.
    fn random(seed: u64, capacities: &[u64], sinks: usize, claims: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let nodes = rng.usize(4..11);
        let mut links = Vec::new();
        // In one piece, then some more: between one and a half and three links a node.
        for node in 1..nodes {
            links.push((rng.usize(0..node), node, *rng.choice(capacities).unwrap()));
        }
        for _ in 0..rng.usize(nodes / 2..2 * nodes) {
            let (a, b) = (rng.usize(0..nodes), rng.usize(0..nodes));
            if a != b {
                links.push((a, b, *rng.choice(capacities).unwrap()));
            }
        }
        let mut others: Vec<usize> = (1..nodes).collect();
        rng.shuffle(&mut others);
        others.truncate(sinks);
        let mut scene = Self { links, candidates: Vec::new(), ways: Vec::new(), sinks: others, claims };
        for peer in 0..scene.sinks.len() {
            scene.add_paths(peer);
        }
        scene
    }

    /// Simple paths to the peer, shortest first.
    fn add_paths(&mut self, peer: usize) {
        let mut fringe = std::collections::VecDeque::from([(vec![0usize], Vec::<usize>::new())]);
        let mut found = 0;
        while let Some((nodes, way)) = fringe.pop_front() {
            let here = nodes[nodes.len() - 1];
            if here == self.sinks[peer] {
                let resources = way.iter().flat_map(|&edge| {
                    let (a, b, _) = self.links[edge / 2];
                    [interface(a, edge / 2), interface(b, edge / 2)]
                });
                let mut candidate = super::tests::candidate(peer as u64, found as u64, &[]);
                candidate.resources = resources.collect();
                let claim = |edge: &usize| if self.claims { Some(self.links[edge / 2].2) } else { None };
                candidate.claims_kbps = way.iter().flat_map(|edge| [claim(edge); 2]).collect();
                candidate.hops = way.len();
                self.candidates.push(candidate);
                self.ways.push(way);
                found += 1;
                if found == PATHS_MAX {
                    return;
                }
                continue;
            }
            if way.len() == HOPS_MAX || fringe.len() > 20_000 {
                continue;
            }
            for (link, &(a, b, _)) in self.links.iter().enumerate() {
                for (edge, from, to) in [(2 * link, a, b), (2 * link + 1, b, a)] {
                    if from == here && !nodes.contains(&to) {
                        fringe.push_back(([&nodes[..], &[to]].concat(), [&way[..], &[edge]].concat()));
                    }
                }
            }
        }
    }

    fn capacities(&self) -> Vec<f64> {
        self.links.iter().flat_map(|&(_, _, capacity)| [capacity as f64; 2]).collect()
    }

    /// What the chosen paths carry when they share fairly.
    fn rate(&self, chosen: &[usize]) -> f64 {
        let ways: Vec<Vec<usize>> = chosen.iter().map(|&index| self.ways[index].clone()).collect();
        fair_rates(&ways, &self.capacities()).into_iter().sum()
    }

    /// What no choice of `budget` candidates exceeds: the flow over all links that candidates pass, and the widest paths
    /// without anything shared.
    fn bound(&self, budget: Budget) -> f64 {
        let mut network = FlowNetwork::default();
        let mut edges: Vec<usize> = self.ways.concat();
        edges.sort_unstable();
        edges.dedup();
        let capacities = self.capacities();
        for edge in edges {
            let (a, b, capacity) = self.links[edge / 2];
            let (from, to) = if edge % 2 == 0 { (a, b) } else { (b, a) };
            network.add_link(from, to, capacity);
        }
        for &sink in &self.sinks {
            network.add_link(sink, usize::MAX, u64::from(u32::MAX));
        }
        let flow = network.max_flow(&0, &usize::MAX).value as f64;
        let mut widths: HashMap<u64, Vec<f64>> = HashMap::new();
        for (candidate, way) in self.candidates.iter().zip(&self.ways) {
            let width = way.iter().map(|&edge| capacities[edge]).fold(f64::INFINITY, f64::min);
            widths.entry(candidate.peer).or_default().push(width);
        }
        let mut widest: Vec<f64> = Vec::new();
        for mut widths in widths.into_values() {
            widths.sort_by(|a, b| b.total_cmp(a));
            widest.extend(widths.into_iter().take(budget.per_peer));
        }
        widest.sort_by(|a, b| b.total_cmp(a));
        flow.min(widest.into_iter().take(budget.connections).sum())
    }
}

fn share_of_bound(scene: &Scene, selector: Selector, budget: Budget) -> f64 {
    let chosen: Vec<usize> = selector.select(&scene.candidates, &Scoreboard::default(), budget).chosen().collect();
    let share = scene.rate(&chosen) / scene.bound(budget);
    // The paper's algorithm knows no limit for one peer.
    assert!(share < 1.0 + 1e-9 || selector == Selector::DisjointPaper, "{selector} gets more than the bound: {share}");
    share
}

/// Median and 5th percentile.
fn spread(mut shares: Vec<f64>) -> (f64, f64) {
    shares.sort_by(f64::total_cmp);
    (shares[shares.len() / 2], shares[shares.len() / 20])
}

#[test]
fn distribution() {
    for (name, capacities, peers, claims) in [
        ("equal, 1 peer", &[20][..], 1, false),
        ("equal, 1 peer, claims", &[20][..], 1, true),
        ("unequal, 1 peer", &[10, 20, 50, 100], 1, false),
        ("unequal, 1 peer, claims", &[10, 20, 50, 100], 1, true),
        ("unequal, 4 peers", &[10, 20, 50, 100], 4, false),
        ("unequal, 4 peers, claims", &[10, 20, 50, 100], 4, true),
    ] {
        for (connections, per_peer) in [(peers, 1), (2 * peers, 2), (4 * peers, 4), (8 * peers, 8), (16 * peers, 16)] {
            let budget = Budget { connections, per_peer };
            let scenes: Vec<Scene> = (0..NETWORKS).map(|seed| Scene::random(seed, capacities, peers, claims)).collect();
            for selector in [Selector::Disjoint] {
                let (median, low) =
                    spread(scenes.iter().map(|scene| share_of_bound(scene, selector, budget)).collect());
                println!(
                    "{name}, {connections} connections, {per_peer} a peer, {selector}: median {median:.3}, 5th percentile {low:.3}"
                );
            }
        }
    }
}
