//! A network that is slower than the paper's by one factor, so that links and not processors are the limit on this machine.
//!
//! The rates of all links are divided by it, and what their queues hold, so that these hold as many milliseconds as before. Delays
//! stay. Everything takes so many times as long then, so the peers take so many times as long to come.

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::Topology;

use super::{Change, LinkChange, Plan};

/// The network with rates divided.
pub(super) fn divided(topology: Topology, scale: u32) -> Result<Topology, String> {
    if scale == 1 {
        return Ok(topology);
    }
    let shapes: Vec<[LinkShape; 2]> =
        topology.links().iter().map(|link| link.shapes.map(|shape| slower(shape, scale))).collect();
    for (link, shapes) in topology.links().iter().zip(&shapes) {
        for shape in shapes {
            let refused = |error| format!("divided by {scale}, {} - {} has a {error}", link.ends[0], link.ends[1]);
            shape.checked().map_err(refused)?;
        }
    }
    let text = crate::bed::topology_file(&topology, &shapes);
    Topology::from_toml(&topology.name, &text).map_err(|error| error.to_string())
}

fn slower(shape: LinkShape, scale: u32) -> LinkShape {
    // A queue without a rate holds no time.
    let Some(rate_bps) = shape.rate_bps else { return shape };
    let queue_bytes = (shape.queue_bytes / scale as usize).max(usize::from(shape.mtu));
    LinkShape { rate_bps: Some(rate_bps / u64::from(scale)), queue_bytes, ..shape }
}

/// Whether the topology alone has rates: those that stand elsewhere are not divided, and would mean something else then.
pub(super) fn check(plan: &Plan) -> Result<(), String> {
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

/// Lets peers come as much later.
pub(super) fn slow_down(plan: &mut Plan) {
    let scale = plan.scale;
    plan.placements.iter_mut().flat_map(|placement| &mut placement.peers).for_each(|peer| peer.join *= scale);
}
