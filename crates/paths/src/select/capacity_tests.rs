//! What a choice of paths can carry, on thousands of random networks with capacities, against what no choice can exceed.

use std::collections::HashMap;

use super::*;
use crate::flow::{FlowNetwork, fair_rates};
use crate::{Interface, IsdAs};

const NETWORKS: u64 = 1000;
/// Candidates of one peer, shortest first, as a path lookup gives them.
const PATHS_MAX: usize = 30;
const HOPS_MAX: usize = 7;

/// A random network, and what its paths from node 0 to some other nodes are.
struct RandomNetwork {
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

impl RandomNetwork {
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

fn share_of_bound(scene: &RandomNetwork, selector: Selector, budget: Budget) -> f64 {
    let chosen: Vec<usize> = selector.select(&scene.candidates, &Scoreboard::default(), budget).chosen().collect();
    let share = scene.rate(&chosen) / scene.bound(budget);
    // The paper's algorithm knows no limit for one peer.
    assert!(share < 1.0 + 1e-9 || selector == Selector::DisjointPaper, "{selector} gets more than the bound: {share}");
    share
}

/// Median and 5th percentile.
fn median_and_low(mut shares: Vec<f64>) -> (f64, f64) {
    shares.sort_by(f64::total_cmp);
    (shares[shares.len() / 2], shares[shares.len() / 20])
}

/// Connections in all and for each peer, where there are so many peers.
fn budgets(peers: usize) -> [Budget; 5] {
    [1, 2, 4, 8, 16].map(|per_peer| Budget { connections: per_peer * peers, per_peer })
}

fn scenes(capacities: &[u64], peers: usize, claims: bool) -> Vec<RandomNetwork> {
    (0..NETWORKS).map(|seed| RandomNetwork::random(seed, capacities, peers, claims)).collect()
}

fn shares(scenes: &[RandomNetwork], selector: Selector, budget: Budget) -> Vec<f64> {
    scenes.iter().map(|scene| share_of_bound(scene, selector, budget)).collect()
}

/// On random networks greed finds what is best half of the time and more. Where it falls short, the bound mostly does too: it
/// knows nothing of sharing fairly, nor of paths that only reach their width together. With equal links, or with claims, one
/// network in twenty is left with less than three quarters to nine tenths; without claims and with links from 10 to 100, a
/// single path may be ten times narrower than the widest, and nobody can know.
#[test]
fn the_choice_carries_nearly_what_the_network_can() {
    // Links, peers, claims; and the least 5th percentile over all budgets.
    for (name, capacities, peers, claims, floor) in [
        ("equal links, 1 peer", &[20][..], 1, false, 0.8),
        ("equal links, 4 peers", &[20], 4, false, 0.85),
        ("links of 10 to 100, 1 peer, claimed", &[10, 20, 50, 100], 1, true, 0.7),
        ("links of 10 to 100, 4 peers, claimed", &[10, 20, 50, 100], 4, true, 0.8),
        ("links of 10 to 100, 1 peer", &[10, 20, 50, 100], 1, false, 0.15),
        ("links of 10 to 100, 4 peers", &[10, 20, 50, 100], 4, false, 0.35),
    ] {
        let scenes = scenes(capacities, peers, claims);
        for budget in budgets(peers) {
            let (median, low) = median_and_low(shares(&scenes, Selector::Disjoint, budget));
            println!("{name}, {} paths each: median {median:.3}, 5th percentile {low:.3}", budget.per_peer);
            assert!(median >= 0.85 && low >= floor, "{name}, {budget:?}: {median} {low}");
        }
    }
}

#[test]
fn on_the_whole_the_choice_carries_more_than_any_other_selector_s() {
    for (capacities, peers, claims) in [(&[20][..], 1, false), (&[20], 4, false), (&[10, 20, 50, 100], 4, true)] {
        let scenes = scenes(capacities, peers, claims);
        for budget in budgets(peers) {
            let mean = |selector| shares(&scenes, selector, budget).iter().sum::<f64>() / NETWORKS as f64;
            let ours = mean(Selector::Disjoint);
            for other in [Selector::DisjointPaper, Selector::All, Selector::Shortest] {
                let theirs = mean(other);
                println!("{peers} peers, {} paths each: disjoint {ours:.3}, {other} {theirs:.3}", budget.per_peer);
                assert!(ours >= theirs - 0.01, "{budget:?}: {ours}, {other} {theirs}");
            }
        }
    }
}

#[test]
fn claims_lead_to_the_wide_path_and_sharing_a_wide_link_is_no_loss() {
    let with_claims = |number, links: &[(u16, u64)]| {
        let mut candidate = super::tests::candidate(1, number, &links.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        candidate.claims_kbps = links.iter().map(|(_, claim)| Some(*claim)).collect();
        candidate
    };
    // A short narrow path, and two longer ones that share a link as wide as both.
    let narrow = with_claims(0, &[(1, 10)]);
    let wide = [with_claims(1, &[(2, 100), (3, 50)]), with_claims(2, &[(2, 100), (4, 50)])];
    let mut candidates = vec![narrow, wide[0].clone(), wide[1].clone()];
    let budget = Budget { connections: 2, per_peer: 2 };
    let selection = Selector::Disjoint.select(&candidates, &Scoreboard::default(), budget);
    assert_eq!(selection.chosen().collect::<Vec<_>>(), [1, 2]);
    let reasons: Vec<&Reason> = selection.verdicts.iter().map(|verdict| &verdict.reason).collect();
    assert!(reasons.contains(&&Reason::MostRoom { kbps: 50 }), "{reasons:?}");
    let at = super::tests::resource(1);
    assert_eq!(*reasons[0], Reason::LessRoom { kbps: 10, at });
    // One AS that makes no claim, and nothing is compared by claims: who shares nothing comes first.
    candidates[2].claims_kbps[1] = None;
    let selection = Selector::Disjoint.select(&candidates, &Scoreboard::default(), budget);
    assert_eq!(selection.chosen().next(), Some(0));
}
