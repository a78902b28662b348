//! What a whole swarm's choices of paths carry: every host chooses for those to whom it sends, knows what the others chose, and all
//! send at once.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_asnet::control::{ControlPlane, Keys, Options};
use anabranch_asnet::topology::Topology;
use anabranch_paths::flow::fair_rates;
use anabranch_paths::select::{Budget, Candidate, Resource, Selector};
use anabranch_paths::{Path, ScionPath, Scoreboard};

/// How often every host looks again at what the others chose.
const ROUNDS: usize = 6;

struct Swarm {
    topology: Arc<Topology>,
    /// The AS of each host.
    homes: Vec<usize>,
    /// Paths between ASes.
    paths: BTreeMap<(usize, usize), Vec<ScionPath>>,
}

/// What a host chose: to whom, and the place of the path.
type Choice = Vec<(usize, usize)>;

impl Swarm {
    fn new(topology: Topology, homes: &[&str]) -> Self {
        let topology = Arc::new(topology);
        let keys = Arc::new(Keys::new(&topology, &[7; 32]));
        let plane = ControlPlane::new(topology.clone(), keys, Options::default());
        let homes: Vec<usize> = homes.iter().map(|home| topology.index(home.parse().unwrap()).unwrap()).collect();
        let mut paths = BTreeMap::new();
        for from in &homes {
            for to in homes.iter().filter(|to| *to != from) {
                let ends = [from, to].map(|at| topology.ases()[*at].isd_as);
                paths.entry((*from, *to)).or_insert_with(|| plane.paths(ends[0], ends[1], SystemTime::now()).unwrap());
            }
        }
        Self { topology, homes, paths }
    }

    fn path(&self, from: usize, to: usize, place: usize) -> &ScionPath {
        &self.paths[&(self.homes[from], self.homes[to])][place]
    }

    /// Directed links that a path passes.
    fn way(&self, path: &ScionPath) -> Vec<usize> {
        let end = |(out, _)| self.topology.interface(out).unwrap();
        path.links().map(end).map(|end| 2 * end.link + end.end).collect()
    }

    fn host(&self, number: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, number as u8))
    }

    /// What a host chooses among the paths to all others of other ASes, given what these chose.
    fn choose(&self, host: usize, selector: Selector, budget: Budget, all: &[Choice]) -> Choice {
        let mut candidates = Vec::new();
        let mut meant = Vec::new();
        for to in (0..self.homes.len()).filter(|to| self.homes[*to] != self.homes[host]) {
            for place in 0..self.paths[&(self.homes[host], self.homes[to])].len() {
                let path = self.path(host, to, place);
                let path = Path::scion(self.host(host), self.host(to), Arc::new(path.clone()));
                let mut candidate = Candidate::new(to as u64, &path);
                candidate.place = place;
                candidate.is_held = all[host].contains(&(to, place));
                candidates.push(candidate);
                meant.push((to, place));
            }
        }
        let mut board = Scoreboard::default();
        let mut load: BTreeMap<Resource, u32> = BTreeMap::new();
        for (other, chosen) in all.iter().enumerate().filter(|(other, _)| *other != host) {
            for (to, place) in chosen.iter().filter(|(to, _)| *to != host) {
                for interface in &self.path(other, *to, *place).interfaces {
                    *load.entry(Resource::Interface(*interface)).or_default() += 1;
                }
            }
        }
        board.set_third_party_load(load);
        selector.select(&candidates, &board, budget).chosen().map(|index| meant[index]).collect()
    }

    /// What all choices carry together, Mbit/s, and how many choices changed in the last round.
    fn carried(&self, selector: Selector, budget: Budget) -> (f64, usize) {
        let mut all: Vec<Choice> = vec![Vec::new(); self.homes.len()];
        let mut changed = 0;
        for _ in 0..ROUNDS {
            changed = 0;
            for host in 0..self.homes.len() {
                let mut chosen = self.choose(host, selector, budget, &all);
                chosen.sort_unstable();
                changed += chosen.iter().filter(|each| !all[host].contains(each)).count();
                all[host] = chosen;
            }
        }
        let ends: Vec<(usize, usize, usize)> = all
            .iter()
            .enumerate()
            .flat_map(|(from, chosen)| chosen.iter().map(move |(to, place)| (from, *to, *place)))
            .collect();
        let ways: Vec<Vec<usize>> =
            ends.iter().map(|(from, to, place)| self.way(self.path(*from, *to, *place))).collect();
        let capacities: Vec<f64> = self
            .topology
            .links()
            .iter()
            .flat_map(|link| link.shapes.iter().map(|shape| shape.rate_bps.unwrap_or(1_000_000_000) as f64 / 1e6))
            .collect();
        let rates = fair_rates(&ways, &capacities);
        (rates.iter().sum(), changed)
    }
}

/// The network of the bench's row `paths-swarm`: one host in one leaf, sixteen in the seven other ASes.
fn bench_network() -> Swarm {
    let mut text = "[defaults]\nrate = '12 Mbit/s'\ndelay = '5 ms'\n".to_owned();
    let leaves: Vec<String> = (11..17).map(|leaf| format!("1-{leaf}")).collect();
    for core in ["1-1", "1-2"] {
        text += &format!("[as.'{core}']\ncore = true\n");
    }
    leaves.iter().for_each(|leaf| text += &format!("[as.'{leaf}']\n"));
    text += "[[link]]\ncore = ['1-1', '1-2']\ncount = 2\n";
    for leaf in &leaves {
        for core in ["1-1", "1-2"] {
            text += &format!("[[link]]\nparent = '{core}'\nchild = '{leaf}'\n");
        }
    }
    for pair in leaves.chunks_exact(2) {
        text += &format!("[[link]]\npeering = ['{}', '{}']\n", pair[0], pair[1]);
    }
    let homes: Vec<&str> = ["1-1", "1-2"].into_iter().chain(leaves.iter().skip(1).map(String::as_str)).collect();
    let mut all = vec!["1-11"];
    all.extend((0..16).map(|number| homes[number % homes.len()]));
    Swarm::new(Topology::from_toml("bench", &text).unwrap(), &all)
}

/// Twenty hosts in so many ASes of the lab's network, as its plan `000-fig4` has them.
fn tiers(ases: usize) -> Swarm {
    let file = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies/tiers.toml");
    let (homes, count): (&[&str], usize) = match ases {
        5 => (&["1-102", "1-103", "1-1004", "1-1006"], 4),
        _ => (&["1-102", "1-103", "1-1004", "1-1006", "1-101", "1-104", "1-105", "1-1001", "1-1009"], 2),
    };
    let mut all = vec!["1-1002"; if ases == 5 { 4 } else { 2 }];
    all.extend(homes.iter().flat_map(|home| std::iter::repeat_n(*home, count)));
    Swarm::new(Topology::load(&file).unwrap(), &all)
}

/// By the rates alone, without what a start costs: few connections of many hosts are best spread over what nobody else uses yet.
#[test]
fn a_swarm_that_chooses_disjoint_paths_carries_more_than_by_any_other_choice_and_comes_to_rest() {
    const OTHERS: [Selector; 4] = [Selector::First, Selector::Shortest, Selector::All, Selector::DisjointPaper];
    for (name, swarm) in [("bench", bench_network()), ("tiers 5", tiers(5)), ("tiers 10", tiers(10))] {
        for connections in [3, 6, 10] {
            let carried = |selector: Selector| swarm.carried(selector, Budget { connections, per_peer: 4 });
            let (rate, changed) = carried(Selector::Disjoint);
            assert_eq!(changed, 0, "{name}, {connections} connections: choices go on changing");
            for other in OTHERS {
                let others = carried(other).0;
                assert!(rate >= 0.99 * others, "{name}, {connections} connections: {rate} and {others} by {other}");
            }
        }
    }
}
