//! A network as reports see it.

use std::collections::HashMap;
use std::time::Duration;

use anabranch_asnet::topology::{self, Topology};
use anabranch_paths::flow::{FlowNetwork, fair_rates};
use anabranch_paths::{Interface, IsdAs};

pub use anabranch_asnet::topology::LinkType;

/// An AS on the map.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its number.
    pub isd_as: IsdAs,
    /// Whether it is in the core of its ISD.
    pub core: bool,
    /// Who is there, if anybody of interest is.
    pub host: Option<String>,
}

/// A line between two ASes.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its ends; of a parent-child link, the parent first.
    pub ends: [Interface; 2],
    /// What joins them.
    pub kind: LinkType,
    /// Bits per second of the directions that leave the first and the second end; `None` is as fast as the machine.
    pub rate_bps: [Option<u64>; 2],
    /// One-way delay of both directions.
    pub delay: [Duration; 2],
}

/// Where content is, where it goes, and what is between.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// What it is called.
    pub name: String,
    /// The ASes in the order of the topology.
    pub nodes: Vec<Node>,
    /// The links in the order of the topology.
    pub lines: Vec<Line>,
    /// The AS of the host that sends.
    pub sender: IsdAs,
    /// The AS of the host that receives.
    pub receiver: IsdAs,
}

/// What a network can carry.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Bits per second, headers included.
    pub rate_bps: u64,
    /// The links of the narrowest cut: what would have to be wider.
    pub cut: Vec<usize>,
}

impl Network {
    /// The part of `topology` that matters to a transfer from `sender` to `receiver`. Both hosts are named.
    pub fn new(topology: &Topology, sender: IsdAs, receiver: IsdAs) -> Self {
        let host = |each: &topology::As| {
            let named = each.isd_as == sender || each.isd_as == receiver;
            each.hosts.first().filter(|_| named).map(|host| host.name.clone())
        };
        let nodes = topology.ases().iter().map(|each| Node { isd_as: each.isd_as, core: each.core, host: host(each) });
        let lines = topology.links().iter().map(|link| Line {
            ends: link.ends,
            kind: link.kind,
            rate_bps: [link.shapes[0].rate_bps, link.shapes[1].rate_bps],
            delay: [link.shapes[0].delay, link.shapes[1].delay],
        });
        Self { name: topology.name.clone(), nodes: nodes.collect(), lines: lines.collect(), sender, receiver }
    }

    /// The most that gets from the sender to the receiver, over whichever paths. `None` where no limited link is in the
    /// way, or none at all.
    pub fn bound(&self) -> Option<Bound> {
        let mut flow = FlowNetwork::default();
        // Both directions of a link are apart: what flows one way takes nothing from the other.
        for line in &self.lines {
            for end in [0, 1] {
                // Unlimited links are wider than all limited ones together, and never in the cut.
                let rate = line.rate_bps[end].unwrap_or(UNLIMITED_BPS);
                flow.add_link(line.ends[end].isd_as, line.ends[1 - end].isd_as, rate);
            }
        }
        let most = flow.max_flow(&self.sender, &self.receiver);
        if most.value == 0 || most.value >= UNLIMITED_BPS {
            return None;
        }
        Some(Bound { rate_bps: most.value, cut: most.cut.into_iter().map(|direction| direction / 2).collect() })
    }

    /// What paths carry from the sender to the receiver when all give way evenly at full links (max-min fair rates), in
    /// bits per second. Interfaces may be listed from either end. `None` for a path that does not exist here.
    pub fn fair_rates(&self, paths: &[Vec<Interface>]) -> Option<Vec<f64>> {
        let directions = paths.iter().map(|interfaces| {
            let hops = self.hops(interfaces)?;
            Some(hops.into_iter().map(|(line, end)| 2 * line + end).collect::<Vec<_>>())
        });
        let capacities = self.lines.iter().flat_map(|line| line.rate_bps.map(|rate| rate.unwrap_or(UNLIMITED_BPS)));
        let capacities: Vec<f64> = capacities.map(|rate| rate as f64).collect();
        Some(fair_rates(&directions.collect::<Option<Vec<_>>>()?, &capacities))
    }

    /// The links of a path as the content passes them, each with the end that it leaves; `None` where one is unknown.
    /// Interfaces may be listed from either end.
    pub fn hops(&self, interfaces: &[Interface]) -> Option<Vec<(usize, usize)>> {
        let by_ends: HashMap<[Interface; 2], (usize, usize)> = self
            .lines
            .iter()
            .enumerate()
            .flat_map(|(index, line)| [(line.ends, (index, 0)), ([line.ends[1], line.ends[0]], (index, 1))])
            .collect();
        let mut interfaces = interfaces.to_vec();
        if interfaces.first().is_some_and(|first| first.isd_as != self.sender) {
            interfaces.reverse();
        }
        let (links, half) = interfaces.as_chunks::<2>();
        if !half.is_empty() {
            return None;
        }
        links.iter().map(|link| by_ends.get(link).copied()).collect()
    }

    /// The ASes of a path from the sender to the receiver, as far as they are known.
    pub fn ases(&self, interfaces: &[Interface]) -> Vec<IsdAs> {
        let mut ases: Vec<IsdAs> = interfaces.iter().map(|interface| interface.isd_as).collect();
        ases.dedup();
        if ases.first().is_some_and(|first| *first != self.sender) {
            ases.reverse();
        }
        ases
    }
}

/// Stands for a link without a limit: more than any limited link may have (100 Gbit/s), however many of them.
const UNLIMITED_BPS: u64 = 1 << 50;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A sender and a receiver with two ways between them, the second one with two parallel links.
    pub(crate) fn diamond() -> Network {
        let text = r#"
            [as."1-1"]
            core = true
            [as."1-2"]
            core = true
            [as."1-3"]
            hosts = ["alice"]
            [as."1-4"]
            hosts = ["bob"]
            [[link]]
            parent = "1-1"
            child = "1-3"
            rate = "10 Mbit/s"
            [[link]]
            parent = "1-1"
            child = "1-4"
            rate = "20 Mbit/s"
            [[link]]
            parent = "1-2"
            child = "1-3"
            rate = "7 Mbit/s"
            count = 2
            [[link]]
            parent = "1-2"
            child = "1-4"
            there = { rate = "9 Mbit/s" }
            [[link]]
            core = ["1-1", "1-2"]
        "#;
        let topology = Topology::from_toml("diamond.toml", text).unwrap();
        Network::new(&topology, "1-3".parse().unwrap(), "1-4".parse().unwrap())
    }

    pub(crate) fn interfaces(text: &str) -> Vec<Interface> {
        text.split(' ')
            .map(|each| {
                let (isd_as, id) = each.split_once('#').unwrap();
                Interface { isd_as: isd_as.parse().unwrap(), id: id.parse().unwrap() }
            })
            .collect()
    }

    #[test]
    fn the_bound_is_the_narrowest_cut() {
        // From 1-3: 10 + 7 + 7; into 1-4: 20 + 9. The unlimited link between the cores helps.
        let bound = diamond().bound().unwrap();
        assert_eq!((bound.rate_bps, bound.cut), (24_000_000, vec![0, 2, 3]));
    }

    #[test]
    fn paths_become_links_from_either_end() {
        let network = diamond();
        let up = interfaces("1-3#1 1-1#1 1-1#2 1-4#1");
        let down: Vec<Interface> = up.iter().rev().copied().collect();
        assert_eq!(network.hops(&up), Some(vec![(0, 1), (1, 0)]));
        assert_eq!(network.hops(&down), network.hops(&up));
        assert_eq!(network.ases(&down), network.ases(&up));
        assert_eq!(network.hops(&interfaces("1-3#1 1-1#9")), None);
        assert_eq!(network.hops(&up[..3]), None);
        assert_eq!(network.hops(&[]), Some(vec![]));
        // Parallel links into one of 9 Mbit/s.
        let [first, second] = ["1-3#2 1-2#1 1-2#3 1-4#2", "1-3#3 1-2#2 1-2#3 1-4#2"].map(interfaces);
        assert_eq!(network.fair_rates(&[up.clone(), first, second]), Some(vec![10e6, 4.5e6, 4.5e6]));
    }
}
