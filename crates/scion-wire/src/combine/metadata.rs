//! What the ASes on a path claim about it.

use std::time::Duration;

use anabranch_paths::{Interface, LinkKind};

use crate::segment::{AsEntry, StaticInfo};

/// The claims about each step from one interface to the next.
pub(super) struct Claims {
    pub latency: Vec<Option<Duration>>,
    pub bandwidth_kbps: Vec<Option<u64>>,
    pub link_kinds: Vec<LinkKind>,
}

/// Where two ASes differ, the worse claim counts; of what a link is, none does.
pub(super) fn collect(interfaces: &[Interface], entries: &[&AsEntry]) -> Claims {
    let steps = || interfaces.windows(2).enumerate();
    let latency = steps().map(|(at, step)| {
        let (intra, inter) = (
            |info: &StaticInfo, id| info.latency_intra.get(&id).copied(),
            |info: &StaticInfo, id| info.latency_inter.get(&id).copied(),
        );
        claims(at, step, entries, intra, inter).max()
    });
    let bandwidth_kbps = steps().map(|(at, step)| {
        let (intra, inter) = (
            |info: &StaticInfo, id| info.bandwidth_intra_kbps.get(&id).copied(),
            |info: &StaticInfo, id| info.bandwidth_inter_kbps.get(&id).copied(),
        );
        claims(at, step, entries, intra, inter).min()
    });
    let link_kinds = interfaces.chunks_exact(2).map(|link| {
        let kind = |info: &StaticInfo, id| info.link_kinds.get(&id).copied();
        let mut kinds = claims(0, link, entries, |_, _| None, kind);
        let first = kinds.next().unwrap_or_default();
        if kinds.all(|kind| kind == first) { first } else { LinkKind::Unset }
    });
    Claims { latency: latency.collect(), bandwidth_kbps: bandwidth_kbps.collect(), link_kinds: link_kinds.collect() }
}

/// All claims about the step between the interfaces `step`, the `at`-th of the path: even ones cross a link, which either end
/// may speak of; odd ones cross an AS, which speaks of the way between an interface and the egress interface of an entry.
fn claims<T>(
    at: usize,
    step: &[Interface],
    entries: &[&AsEntry],
    intra: impl Fn(&StaticInfo, u16) -> Option<T>,
    inter: impl Fn(&StaticInfo, u16) -> Option<T>,
) -> impl Iterator<Item = T> {
    let both_ways = [(step[0], step[1]), (step[1], step[0])];
    both_ways.into_iter().flat_map(move |(near, far)| {
        let claim = |entry: &&AsEntry| match at % 2 {
            _ if entry.isd_as != near.isd_as => None,
            0 => inter(&entry.static_info, near.id),
            _ if entry.hop.egress == near.id => intra(&entry.static_info, far.id),
            _ => None,
        };
        entries.iter().filter_map(claim).collect::<Vec<_>>()
    })
}
