//! How much a network could carry: the bounds that a choice of paths is measured against.
//!
//! [`FlowNetwork::max_flow`] is what no set of paths between two places can exceed, however many and however cleverly chosen
//! (exact, by Dinic's algorithm). [`fair_rates`] is what given paths reach together when everybody backs off at a full link
//! as everybody else does: the max-min fair rates, which congestion control tends to. Nodes are whatever the caller says,
//! mostly ASes; links are directed, so a link that carries both ways is added twice.
//!
//! ```
//! use anabranch_paths::flow::{FlowNetwork, fair_rates};
//!
//! let mut network = FlowNetwork::default();
//! let links = [("alice", "core", 100), ("alice", "detour", 10), ("core", "bob", 50), ("detour", "bob", 30)];
//! for (from, to, capacity) in links {
//!     network.add_link(from, to, capacity);
//! }
//! let flow = network.max_flow(&"alice", &"bob");
//! assert_eq!((flow.value, flow.on_links), (60, vec![50, 10, 50, 10]));
//! assert_eq!(flow.cut, [1, 2], "what would have to be wider");
//!
//! let capacities = links.map(|(_, _, capacity)| capacity as f64);
//! assert_eq!(fair_rates(&[vec![0, 2], vec![1, 3]], &capacities), [50.0, 10.0]);
//! assert_eq!(fair_rates(&[vec![0, 2], vec![0, 2]], &capacities), [25.0, 25.0], "two paths, one bottleneck");
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Links between nodes, each with a direction and a capacity.
#[derive(Clone, Debug)]
pub struct FlowNetwork<N> {
    nodes: HashMap<N, usize>,
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    from: usize,
    to: usize,
    capacity: u64,
}

/// What a network carries from one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// In all, in the unit of the capacities.
    pub value: u64,
    /// On each link, in the order in which they were added.
    pub on_links: Vec<u64>,
    /// The links of a least cut, all full: their capacities sum to `value`.
    pub cut: Vec<usize>,
}

impl<N> Default for FlowNetwork<N> {
    fn default() -> Self {
        Self { nodes: HashMap::new(), links: Vec::new() }
    }
}

impl<N: Eq + Hash> FlowNetwork<N> {
    /// Adds a link and answers its index. Several links between two nodes are apart.
    pub fn add_link(&mut self, from: N, to: N, capacity: u64) -> usize {
        let (from, to) = (self.number(from), self.number(to));
        self.links.push(Link { from, to, capacity });
        self.links.len() - 1
    }

    /// The most that gets from `source` to `sink`. Nothing, where one of them has no link or both are the same. Sums stop at
    /// `u64::MAX`.
    pub fn max_flow(&self, source: &N, sink: &N) -> Flow {
        let none = || Flow { value: 0, on_links: vec![0; self.links.len()], cut: Vec::new() };
        let (Some(&source), Some(&sink)) = (self.nodes.get(source), self.nodes.get(sink)) else { return none() };
        if source == sink {
            return none();
        }
        let mut residual = Residual::new(self.nodes.len(), &self.links);
        let mut value = 0u64;
        // Each phase makes the shortest way longer by a hop or more, so there are at most as many as nodes.
        while residual.level(source, sink) {
            residual.next.fill(0);
            loop {
                let more = residual.augment(source, sink);
                if more == 0 {
                    break;
                }
                value = value.saturating_add(more);
            }
        }
        let is_reached = |node: usize| residual.levels[node] != UNREACHED;
        let crosses = |link: &Link| is_reached(link.from) && !is_reached(link.to) && link.capacity > 0;
        Flow {
            value,
            on_links: (0..self.links.len()).map(|link| self.links[link].capacity - residual.left[2 * link]).collect(),
            cut: (0..self.links.len()).filter(|&link| crosses(&self.links[link])).collect(),
        }
    }

    fn number(&mut self, node: N) -> usize {
        let fresh = self.nodes.len();
        *self.nodes.entry(node).or_insert(fresh)
    }
}

const UNREACHED: usize = usize::MAX;

/// What every link could still take. Edge `2 * n` is link `n`, edge `2 * n + 1` its reverse, which gives back what it took.
struct Residual {
    left: Vec<u64>,
    heads: Vec<usize>,
    /// Edges that leave each node.
    edges: Vec<Vec<usize>>,
    /// Hops from the source.
    levels: Vec<usize>,
    /// The edge of each node that is tried next in this phase: those before it are spent.
    next: Vec<usize>,
}

impl Residual {
    fn new(nodes: usize, links: &[Link]) -> Self {
        let mut edges = vec![Vec::new(); nodes];
        let (mut left, mut heads) = (Vec::with_capacity(2 * links.len()), Vec::with_capacity(2 * links.len()));
        for (number, link) in links.iter().enumerate() {
            edges[link.from].push(2 * number);
            edges[link.to].push(2 * number + 1);
            left.extend([link.capacity, 0]);
            heads.extend([link.to, link.from]);
        }
        Self { left, heads, edges, levels: vec![UNREACHED; nodes], next: vec![0; nodes] }
    }

    /// Counts hops from the source over edges that have room; whether the sink is reached.
    fn level(&mut self, source: usize, sink: usize) -> bool {
        self.levels.fill(UNREACHED);
        self.levels[source] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.edges[node] {
                let head = self.heads[edge];
                if self.left[edge] > 0 && self.levels[head] == UNREACHED {
                    self.levels[head] = self.levels[node] + 1;
                    queue.push_back(head);
                }
            }
        }
        self.levels[sink] != UNREACHED
    }

    /// Fills one way along rising levels; what it took. Walks with a stack of its own: ways can be as long as the network.
    fn augment(&mut self, source: usize, sink: usize) -> u64 {
        let mut way: Vec<usize> = Vec::new();
        let mut node = source;
        while node != sink {
            let onward = self.edges[node].get(self.next[node]).copied();
            match onward {
                Some(edge) if self.left[edge] > 0 && self.levels[self.heads[edge]] == self.levels[node] + 1 => {
                    way.push(edge);
                    node = self.heads[edge];
                }
                Some(_) => self.next[node] += 1,
                None => {
                    // A dead end: back, and not here again in this phase.
                    let Some(edge) = way.pop() else { return 0 };
                    node = self.heads[edge ^ 1];
                    self.next[node] += 1;
                }
            }
        }
        let most = way.iter().map(|&edge| self.left[edge]).min().unwrap_or(0);
        for edge in way {
            self.left[edge] -= most;
            self.left[edge ^ 1] += most;
        }
        most
    }
}

/// The max-min fair rate of each path: all grow alike until a link of theirs is full. `paths` hold indices of `capacities`;
/// a path over no link, or over one that does not exist, has no rate.
pub fn fair_rates(paths: &[Vec<usize>], capacities: &[f64]) -> Vec<f64> {
    let mut rates = vec![0.0; paths.len()];
    let mut left = capacities.to_vec();
    let is_known = |path: &Vec<usize>| !path.is_empty() && path.iter().all(|&link| link < capacities.len());
    let mut growing: Vec<usize> = (0..paths.len()).filter(|&path| is_known(&paths[path])).collect();
    // Each turn fills a link and ends the growth of a path or more.
    while !growing.is_empty() {
        let mut users = vec![0u32; capacities.len()];
        growing.iter().flat_map(|&path| &paths[path]).for_each(|&link| users[link] += 1);
        let share = |link: usize| left[link] / f64::from(users[link]);
        let Some(narrowest) =
            (0..users.len()).filter(|&link| users[link] > 0).min_by(|&a, &b| share(a).total_cmp(&share(b)))
        else {
            break;
        };
        let step = share(narrowest).max(0.0);
        for &path in &growing {
            rates[path] += step;
            paths[path].iter().for_each(|&link| left[link] -= step);
        }
        growing.retain(|&path| !paths[path].contains(&narrowest));
    }
    rates
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn network(links: &[(u8, u8, u64)]) -> FlowNetwork<u8> {
        let mut network = FlowNetwork::default();
        for &(from, to, capacity) in links {
            network.add_link(from, to, capacity);
        }
        network
    }

    /// The least capacity over all ways to part the nodes: what the flow must equal (Ford and Fulkerson).
    fn least_cut(links: &[(u8, u8, u64)], nodes: u8, source: u8, sink: u8) -> u64 {
        let sides = (0u32..1 << nodes).filter(|side| side >> source & 1 == 1 && side >> sink & 1 == 0);
        let across = |side: u32| links.iter().filter(move |(from, to, _)| side >> from & 1 == 1 && side >> to & 1 == 0);
        sides.map(|side| across(side).map(|(_, _, capacity)| capacity).sum()).min().unwrap_or(0)
    }

    #[test]
    fn flow_goes_back_over_a_link_that_was_taken_too_early() {
        // The shortest way takes the link across, which the other two ways do without.
        let links = [(0, 1, 1), (0, 2, 1), (1, 2, 1), (1, 3, 1), (2, 3, 1)];
        assert_eq!(network(&links).max_flow(&0, &3).value, 2);
    }

    #[test]
    fn parallel_links_add_up_and_direction_counts() {
        let links = [(0, 1, 20), (0, 1, 20), (1, 0, 500)];
        assert_eq!(network(&links).max_flow(&0, &1), Flow { value: 40, on_links: vec![20, 20, 0], cut: vec![0, 1] });
    }

    #[test]
    fn strangers_and_oneself_get_nothing() {
        let network = network(&[(0, 1, 5), (2, 3, 5)]);
        for (source, sink) in [(0, 0), (0, 9), (9, 0), (0, 3)] {
            assert_eq!(network.max_flow(&source, &sink).value, 0, "{source} to {sink}");
        }
    }

    #[test]
    fn huge_capacities_stop_at_the_limit() {
        let network = network(&[(0, 1, u64::MAX), (0, 1, u64::MAX)]);
        assert_eq!(network.max_flow(&0, &1).value, u64::MAX);
    }

    #[test]
    fn unknown_links_have_no_rate() {
        assert_eq!(fair_rates(&[vec![], vec![7], vec![0]], &[8.0]), [0.0, 0.0, 8.0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn flow_is_conserved_within_capacity_and_equals_the_least_cut(
            links in vec((0u8..7, 0u8..7, 0u64..50), 0..25),
        ) {
            let flow = network(&links).max_flow(&0, &6);
            prop_assert_eq!(flow.value, least_cut(&links, 7, 0, 6));
            prop_assert_eq!(flow.value, flow.cut.iter().map(|&link| links[link].2).sum::<u64>());
            let mut balance = [0i64; 7];
            for (&(from, to, capacity), &carried) in links.iter().zip(&flow.on_links) {
                prop_assert!(carried <= capacity);
                balance[usize::from(from)] -= carried as i64;
                balance[usize::from(to)] += carried as i64;
            }
            prop_assert_eq!((balance[0], balance[6]), (-(flow.value as i64), flow.value as i64));
            prop_assert!(balance[1..6].iter().all(|node| *node == 0), "{:?}", balance);
        }

        #[test]
        fn fair_rates_fit_and_every_path_has_a_full_link_where_nobody_has_more(
            capacities in vec(1.0f64..100.0, 1..8),
            paths in vec(vec(0usize..8, 1..5), 1..8),
        ) {
            let paths: Vec<Vec<usize>> = paths.into_iter().map(|path| {
                let mut links: Vec<usize> = path.into_iter().map(|link| link % capacities.len()).collect();
                links.sort_unstable();
                links.dedup();
                links
            }).collect();
            let rates = fair_rates(&paths, &capacities);
            let through = |link: usize| (0..paths.len()).filter(|&path| paths[path].contains(&link)).collect::<Vec<_>>();
            let load = |link: usize| through(link).into_iter().map(|path| rates[path]).sum::<f64>();
            for (link, capacity) in capacities.iter().enumerate() {
                prop_assert!(load(link) <= capacity + 1e-6);
            }
            for (path, links) in paths.iter().enumerate() {
                let is_bottleneck = |link: usize| {
                    load(link) > capacities[link] - 1e-6 && through(link).into_iter().all(|other| rates[other] <= rates[path] + 1e-6)
                };
                prop_assert!(links.iter().any(|&link| is_bottleneck(link)), "path {path} of {rates:?} could have more");
            }
        }
    }
}
