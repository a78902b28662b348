//! A network that is slower than the paper's by one factor, so that links and not processors are the limit on this machine.
//!
//! The rates of all links are divided by it, and what their queues hold, so that these hold as many milliseconds as before. Delays
//! stay. Everything takes so many times as long then, so the peers take so many times as long to come. Placements may differ in it:
//! one with more peers asks more of the processors.

use std::fmt;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::Topology;
use anabranch_asnet::topology::document::{Node, Value};

use super::limits::SCALE_MAX;
use super::read::{Located, count, known};
use super::{Axis, Cell, Change, LinkChange, Plan};

/// By which factor networks are slower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scale {
    /// That of all placements.
    All(u32),
    /// Those of placements, by their names; of others it is 1.
    Of(Vec<(String, u32)>),
}

impl Default for Scale {
    fn default() -> Self {
        Self::All(1)
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(scale) => write!(f, "{scale}"),
            Self::Of(scales) => {
                let each: Vec<String> = scales.iter().map(|(name, scale)| format!("{scale} in {name}")).collect();
                f.write_str(&each.join(", "))
            }
        }
    }
}

impl Scale {
    /// Of a placement.
    pub fn of(&self, placement: &str) -> u32 {
        match self {
            Self::All(scale) => *scale,
            Self::Of(scales) => scales.iter().find(|(name, _)| name == placement).map_or(1, |(_, scale)| *scale),
        }
    }

    /// Whether any network is slower.
    pub fn slows(&self) -> bool {
        match self {
            Self::All(scale) => *scale > 1,
            Self::Of(scales) => scales.iter().any(|(_, scale)| *scale > 1),
        }
    }
}

/// The plan's scale, which has to suit the rest of it.
pub(super) fn read(node: &Node, plan: &Plan) -> Located<Scale> {
    let scale = match &node.value {
        Value::Table(entries) => {
            let placements = plan.values(Axis::Placement);
            let one = |(name, node): &(String, Node)| {
                let key = Node { line: node.line, value: Value::Scalar(name.clone()) };
                Ok((known(&key, "scale", &placements)?, count(node, "scale", SCALE_MAX)?))
            };
            Scale::Of(entries.iter().map(one).collect::<Located<_>>()?)
        }
        _ => Scale::All(count(node, "scale", SCALE_MAX)?),
    };
    let mut factors = plan.placements.iter().map(|placement| scale.of(&placement.name));
    let checked = factors.try_for_each(|factor| divided(&plan.topology, factor).map(drop));
    checked.and_then(|()| check(plan)).map_err(|problem| (node.line, problem))?;
    Ok(scale)
}

/// The network with rates divided.
fn divided(topology: &Topology, scale: u32) -> Result<Topology, String> {
    let shapes: Vec<[LinkShape; 2]> =
        topology.links().iter().map(|link| link.shapes.map(|shape| slower(shape, scale))).collect();
    for (link, shapes) in topology.links().iter().zip(&shapes) {
        for shape in shapes {
            let refused = |error| format!("divided by {scale}, {} - {} has a {error}", link.ends[0], link.ends[1]);
            shape.checked().map_err(refused)?;
        }
    }
    let text = crate::bed::topology_file(topology, &shapes);
    Topology::from_toml(&topology.name, &text).map_err(|error| error.to_string())
}

fn slower(shape: LinkShape, scale: u32) -> LinkShape {
    // A queue without a rate holds no time.
    let Some(rate_bps) = shape.rate_bps else { return shape };
    let queue_bytes = (shape.queue_bytes / scale as usize).max(usize::from(shape.mtu));
    LinkShape { rate_bps: Some(rate_bps / u64::from(scale)), queue_bytes, ..shape }
}

/// Whether the topology alone has rates: those that stand elsewhere are not divided, and would mean something else then.
fn check(plan: &Plan) -> Result<(), String> {
    let is_rate = |change: &Change| matches!(change, Change::Link { to: LinkChange::Set(_) | LinkChange::Udp(_), .. });
    let of_variants = plan.variants.iter().any(|variant| {
        let limits = variant.seed_limits.iter().chain(&variant.leecher_limits);
        !variant.links.is_empty() || limits.flatten().next().is_some()
    });
    let limits = plan.placements.iter().flat_map(|placement| &placement.peers).flat_map(|peer| &peer.limits);
    if plan.events.iter().any(|event| is_rate(&event.change)) || of_variants || limits.flatten().next().is_some() {
        return Err("`scale` divides the rates of the topology alone: leave it out where events, variants or limits have some of their own".into());
    }
    Ok(())
}

/// Slows a plan's network down as a cell has it, and lets its peers come as much later.
pub(super) fn slow_down(plan: &mut Plan, cell: &Cell) {
    let Some(placement) = plan.placements.get_mut(cell.placement) else { return };
    let scale = plan.scale.of(&placement.name);
    if scale == 1 {
        return;
    }
    placement.peers.iter_mut().for_each(|peer| peer.join *= scale);
    // The plan was checked with it.
    if let Ok(topology) = divided(&plan.topology, scale) {
        plan.topology = topology;
    }
}
