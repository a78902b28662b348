//! What is varied besides candidates, placements and connections: links, contents, limits, flags.

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::document::{Fields, Node};
use anabranch_asnet::topology::{Topology, set_property};

use super::event::{link, properties};
use super::limits::ENTRIES_MAX;
use super::read::{Located, flags, name, piece_length, rate_limit, size, told};
use super::{Cell, Plan, Role};

/// A link, by its place in the topology, and which of its directions; all links where there is none.
pub type Directions = Option<(usize, [bool; 2])>;
/// Properties of links and their values, as topologies write them.
pub type Properties = Vec<(String, String)>;

/// One value of a sweep over anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// Properties of all links, and then of some: by their places in the topology, and which directions.
    pub links: Vec<(Directions, Properties)>,
    /// Bytes of the content, and of its pieces.
    pub content_bytes: Option<u64>,
    /// See [`Self::content_bytes`].
    pub piece_bytes: Option<u32>,
    /// Bytes a second that seeds and leechers send and receive at most.
    pub seed_limits: [Option<String>; 2],
    /// See [`Self::seed_limits`].
    pub leecher_limits: [Option<String>; 2],
    /// Further flags of the clients.
    pub flags: Vec<String>,
}

pub(super) fn variant(node: &Node, topology: &Topology) -> Located<Variant> {
    let mut fields = told(Fields::new(node, "a variant"))?;
    let called = name(told(fields.need("name", "name = \"rtt-400\""))?, "name")?;
    let mut links = Vec::new();
    if let Some(all) = fields.get("links") {
        let mut checked = Vec::new();
        for each in topology.links() {
            checked = properties(all, each.shapes)?;
        }
        links.push((None, checked));
    }
    if let Some(some) = fields.get("link") {
        let some = told(some.list("link", "tables, each under [[variant.link]]"))?;
        if some.len() > ENTRIES_MAX {
            return Err((node.line, format!("there are more than {ENTRIES_MAX} of [[variant.link]]: use fewer")));
        }
        for each in some {
            let mut fields = told(Fields::new(each, "a link of a variant"))?;
            let ends = told(fields.need("between", "between = [\"1-ff00:0:110\", \"1-ff00:0:120\"]"))?;
            let (number, turned) = link(ends, topology)?;
            let mut ways = super::event::ways(&mut fields)?.unwrap_or([true, true]);
            if turned {
                ways.reverse();
            }
            let set = told(fields.need("set", "set = { rate = \"1 Mbit/s\" }"))?;
            links.push((Some((number, ways)), properties(set, topology.links()[number].shapes)?));
            told(fields.finish())?;
        }
    }
    let content_bytes = fields.get("size").map(|node| size(node, "size")).transpose()?;
    let piece_bytes = fields.get("piece_length").map(piece_length).transpose()?;
    let mut limit = |key| fields.get(key).map(|node| rate_limit(node, key)).transpose();
    let seed_limits = [limit("seed_limit_up")?, limit("seed_limit_down")?];
    let leecher_limits = [limit("limit_up")?, limit("limit_down")?];
    let flags = fields.get("flags").map(flags).transpose()?.unwrap_or_default();
    told(fields.finish())?;
    let variant = Variant { name: called, links, content_bytes, piece_bytes, seed_limits, leecher_limits, flags };
    // Each by itself is checked above; together they may not fit.
    for (number, each) in topology.links().iter().enumerate() {
        for way in 0..2 {
            variant.shape(number, way, each.shapes[way]).checked().map_err(|error| (node.line, error.to_string()))?;
        }
    }
    Ok(variant)
}

impl Variant {
    /// What a direction of a link is under it.
    fn shape(&self, link: usize, way: usize, usual: LinkShape) -> LinkShape {
        let mut shape = usual;
        for (which, properties) in &self.links {
            if which.is_none_or(|(number, ways)| number == link && ways[way]) {
                // The plan was checked with them.
                properties.iter().for_each(|(key, value)| drop(set_property(&mut shape, key, value)));
            }
        }
        shape
    }
}

impl Plan {
    /// The plan as a cell has it: with its variant in place, and its network as slow as it is to be.
    #[must_use]
    pub fn under(&self, cell: &Cell) -> Self {
        let mut plan = self.clone();
        super::scale::slow_down(&mut plan, cell);
        let Some(variant) = cell.variant.and_then(|variant| self.variants.get(variant)) else { return plan };
        if !variant.links.is_empty() {
            let shapes: Vec<[LinkShape; 2]> = self
                .topology
                .links()
                .iter()
                .enumerate()
                .map(|(number, link)| [0, 1].map(|way| variant.shape(number, way, link.shapes[way])))
                .collect();
            let text = crate::bed::topology_file(&self.topology, &shapes);
            // What was checked is sound with other shapes that are, too.
            if let Ok(topology) = Topology::from_toml(&self.topology.name, &text) {
                plan.topology = topology;
            }
        }
        plan.content_bytes = variant.content_bytes.map_or(self.content_bytes, |bytes| self.shortened(bytes));
        plan.piece_bytes = variant.piece_bytes.unwrap_or(self.piece_bytes);
        for peer in plan.placements.iter_mut().flat_map(|placement| &mut placement.peers) {
            let limits = if peer.role == Role::Seed { &variant.seed_limits } else { &variant.leecher_limits };
            for (ours, theirs) in peer.limits.iter_mut().zip(limits) {
                *ours = theirs.clone().or(ours.take());
            }
        }
        plan.candidates.iter_mut().for_each(|candidate| candidate.flags.extend(variant.flags.clone()));
        plan
    }

    /// Bytes of a variant's content in the form in which the plan is run.
    fn shortened(&self, bytes: u64) -> u64 {
        let part = self.content_bytes as f64 / self.full_bytes as f64;
        ((bytes as f64 * part) as u64).max(super::limits::CONTENT_BYTES_MIN)
    }
}
