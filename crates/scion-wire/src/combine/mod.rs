//! From segments to end-to-end paths.
//!
//! A path is one up segment, one core segment and one down segment, any of them left out where the others meet without it:
//! at the core, at an AS that the up and the down segment share (a shortcut, or the destination itself lying on the way), or
//! over a peering link that both name. [`combine`] finds them cheapest first, and gives for each list of interfaces the one
//! that lives longest. Pure, deterministic (the order of the segments does not matter), bounded by [`PATHS_MAX`] and
//! [`STEPS_MAX`].
//!
//! Left to the caller: which segments to trust and which have expired, and the first router's address
//! ([`ScionPath::next_hop`] is `None`). A path inside one AS needs no segments: there is nothing to combine.
//!
//! ```
//! use anabranch_scion_wire::combine::combine;
//! use anabranch_scion_wire::segment::{AsEntry, HopField, Segment, SegmentInfo};
//!
//! let hop = |ingress, egress| HopField { exp_time: 63, ingress, egress, mac: [0; 6] };
//! let (core, leaf) = ("1-ff00:0:110".parse()?, "1-ff00:0:111".parse()?);
//! let entries = vec![AsEntry::new(core, 1472, hop(0, 1), 0), AsEntry::new(leaf, 1472, hop(41, 0), 1400)];
//! let up = Segment::new(SegmentInfo { timestamp_s: 1_750_000_000, id: 7 }, entries)?;
//!
//! let paths = combine(leaf, core, &[up], &[], &[]);
//! assert_eq!((paths.len(), paths[0].mtu), (1, 1400));
//! assert_eq!(format!("{:?}", paths[0].interfaces), "[1-ff00:0:111#41, 1-ff00:0:110#1]");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod build;
mod graph;
mod metadata;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use anabranch_paths::{Interface, IsdAs, ScionPath};

use crate::segment::Segment;
use graph::{Graph, Kind};

/// Paths to one destination. Selection costs grow with the candidates; a host that has tried this many lacks no choice.
pub const PATHS_MAX: usize = 512;
/// Combinations looked at for one destination: with 100 up, core and down segments each, there may be a million.
pub const STEPS_MAX: usize = 1 << 16;
/// Segments of one kind that are looked at; the shortest are kept.
pub const SEGMENTS_MAX: usize = 1024;

/// All paths from `source` to `destination` that the segments allow, the fewest links first, equal ones by their interfaces.
/// `up` lead to `source`, `down` to `destination`; `core` begin at the destination's side and end at the source's side.
pub fn combine(
    source: IsdAs,
    destination: IsdAs,
    up: &[Segment],
    core: &[Segment],
    down: &[Segment],
) -> Vec<ScionPath> {
    if source == destination {
        return Vec::new();
    }
    let mut graph = Graph::default();
    for (kind, segments) in [(Kind::Up, up), (Kind::Core, core), (Kind::Down, down)] {
        for segment in canonical(segments) {
            graph.add(kind, segment);
        }
    }
    graph.link();
    let mut found: Vec<ScionPath> = Vec::new();
    let mut by_interfaces: HashMap<Vec<Interface>, usize> = HashMap::new();
    for trail in graph.search(source, destination).take(STEPS_MAX) {
        let Some(trail) = trail else { continue };
        if found.len() == PATHS_MAX && found.last().is_some_and(|last| last.interfaces.len() < 2 * trail.links) {
            break; // All that follow are longer.
        }
        let Some(path) = build::path(source, destination, &trail.steps) else { continue };
        match by_interfaces.entry(path.interfaces.clone()) {
            Entry::Occupied(at) if found[*at.get()].expiry < path.expiry => found[*at.get()] = path,
            Entry::Occupied(_) => {}
            Entry::Vacant(at) if found.len() < PATHS_MAX => {
                at.insert(found.len());
                found.push(path);
            }
            Entry::Vacant(_) => {}
        }
    }
    found.sort_by(|a, b| (a.interfaces.len(), &a.interfaces).cmp(&(b.interfaces.len(), &b.interfaces)));
    found
}

/// In an order that does not depend on how they came: short ones first, of the same way the youngest first.
fn canonical(segments: &[Segment]) -> Vec<&Segment> {
    let way = |segment: &Segment| -> Vec<(IsdAs, u16, u16)> {
        segment.entries().iter().map(|entry| (entry.isd_as, entry.hop.ingress, entry.hop.egress)).collect()
    };
    let mut sorted: Vec<&Segment> = segments.iter().collect();
    sorted.sort_by_cached_key(|segment| (segment.entries().len(), way(segment), Reverse(segment.info())));
    sorted.truncate(SEGMENTS_MAX);
    sorted
}
