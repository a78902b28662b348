//! From a course to a segment: hop fields with their seals, times, and what ASes claim about their links.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime};

use anabranch_paths::LinkKind;
use anabranch_scion_wire::EXP_TIME_UNIT;
use anabranch_scion_wire::mac::{HopKey, chained};
use anabranch_scion_wire::segment::{AsEntry, HopField, PEER_ENTRIES_MAX, PeerEntry, Segment, SegmentInfo, StaticInfo};

use super::beaconing::Course;
use super::keys::Keys;
use super::limits::{CLAIMED_INTERFACES_MAX, RENEWAL_MAX, RENEWALS_PER_LIFETIME};
use crate::link::RATE_BPS_MAX;
use crate::topology::{As, AsInterface, Link, Neighbour, Topology};

/// When the segments of one renewal begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    /// Seconds since 1970 in the segments' information field.
    pub timestamp_s: u32,
    /// Of every hop field.
    pub exp_time: u8,
}

/// How often segments of this lifetime are renewed.
pub(super) fn renewal_interval(lifetime: Duration) -> Duration {
    (lifetime / RENEWALS_PER_LIFETIME).min(RENEWAL_MAX).max(Duration::from_secs(1))
}

impl Validity {
    /// Of the renewal that is current at `now`. Renewals happen at multiples of their interval since 1970, so all who
    /// agree on the lifetime agree on the segments.
    pub(super) fn at(now: SystemTime, lifetime: Duration) -> Self {
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let interval_s = renewal_interval(lifetime).as_secs();
        let start_s = since_1970.as_secs() / interval_s * interval_s;
        // SCION data plane, "ExpTime": lifetimes are multiples of 337.5 s. A shorter one is had by dating the segment
        // back, so that its hop fields end when they should.
        let units = lifetime.as_nanos().div_ceil(EXP_TIME_UNIT.as_nanos()).clamp(1, 256);
        let end_s = start_s + lifetime.as_secs();
        let span_s = (EXP_TIME_UNIT * units as u32).as_secs_f64().ceil() as u64;
        Self { timestamp_s: end_s.saturating_sub(span_s) as u32, exp_time: (units - 1) as u8 }
    }
}

/// The segment that runs along `course`. `None` only if the course is none of this topology's.
pub(super) fn seal(
    topology: &Topology,
    keys: &Keys,
    course: &Course,
    validity: Validity,
    is_down: impl Fn(usize) -> bool,
) -> Option<Segment> {
    let info = SegmentInfo { timestamp_s: validity.timestamp_s, id: segment_id(course, validity) };
    let mut beta = info.id;
    let mut entries = Vec::with_capacity(course.ases.len());
    for (position, index) in course.ases.iter().enumerate() {
        let each = topology.ases().get(*index as usize)?;
        let side = |at: Option<usize>| at.and_then(|at| course.links.get(at)).map(|link| *link as usize);
        let ingress = interface_on(each, side(position.checked_sub(1)));
        let egress = interface_on(each, side(Some(position)));
        let sealer = Sealer { key: keys.sealing(each.isd_as)?, validity };
        let id = |interface: Option<&AsInterface>| interface.map_or(0, |interface| interface.id);
        let hop = sealer.hop(beta, id(ingress), id(egress));
        // SCION data plane, "Hop Field MAC Computation": peering hop fields are sealed with the beta that follows.
        beta = chained(beta, &hop.mac);
        let peering = each.interfaces.iter().filter(|interface| interface.neighbour == Neighbour::Peer);
        let peers: Vec<PeerEntry> = peering
            .filter(|interface| !is_down(interface.link))
            .take(PEER_ENTRIES_MAX)
            .map(|interface| PeerEntry {
                peer: interface.remote.isd_as,
                peer_interface: interface.remote.id,
                peer_mtu: mtu(&topology.links()[interface.link]),
                hop: sealer.hop(beta, interface.id, id(egress)),
            })
            .collect();
        let ingress_mtu = ingress.map_or(0, |interface| mtu(&topology.links()[interface.link]));
        let static_info = claims(topology, each, ingress, egress);
        entries.push(AsEntry { isd_as: each.isd_as, mtu: each.mtu, hop, ingress_mtu, peers, static_info });
    }
    Segment::new(info, entries).ok()
}

struct Sealer<'a> {
    key: &'a HopKey,
    validity: Validity,
}

impl Sealer<'_> {
    fn hop(&self, beta: u16, ingress: u16, egress: u16) -> HopField {
        let exp_time = self.validity.exp_time;
        let unsealed = anabranch_scion_wire::HopField::unsealed(exp_time, ingress, egress);
        HopField { exp_time, ingress, egress, mac: self.key.mac(beta, self.validity.timestamp_s, &unsealed) }
    }
}

/// The first beta: another one for each course and renewal, the same for all who make this segment.
fn segment_id(course: &Course, validity: Validity) -> u16 {
    let mut hasher = DefaultHasher::new();
    (&course.links, &course.ases, validity.timestamp_s).hash(&mut hasher);
    hasher.finish() as u16
}

fn interface_on(each: &As, link: Option<usize>) -> Option<&AsInterface> {
    let link = link?;
    each.interfaces.iter().find(|interface| interface.link == link)
}

/// What passes in both directions.
fn mtu(link: &Link) -> u16 {
    link.shapes[0].mtu.min(link.shapes[1].mtu)
}

/// What the AS says of its links, the worse of both directions, and of its insides: on one machine they take no time, and
/// hold up nothing that a link lets through.
fn claims(topology: &Topology, each: &As, ingress: Option<&AsInterface>, egress: Option<&AsInterface>) -> StaticInfo {
    let mut info = StaticInfo::default();
    let is_small = each.interfaces.len() <= CLAIMED_INTERFACES_MAX;
    for interface in &each.interfaces {
        let is_egress = Some(interface.id) == egress.map(|egress| egress.id);
        let on_segment = is_egress || Some(interface.id) == ingress.map(|ingress| ingress.id);
        let is_peer = interface.neighbour == Neighbour::Peer;
        if egress.is_some() && !is_egress && (on_segment || is_peer || is_small) {
            info.latency_intra.insert(interface.id, Duration::ZERO);
            info.bandwidth_intra_kbps.insert(interface.id, RATE_BPS_MAX / 1000);
        }
        if on_segment || is_peer {
            let [there, back] = topology.links()[interface.link].shapes;
            info.latency_inter.insert(interface.id, there.delay.max(back.delay));
            if let Some(bits) = there.rate_bps.into_iter().chain(back.rate_bps).min() {
                info.bandwidth_inter_kbps.insert(interface.id, bits / 1000);
            }
            info.link_kinds.insert(interface.id, LinkKind::Direct);
        }
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// When hop fields made at `now` end, in seconds since 1970.
    fn end_s(now: u64, lifetime_s: u64) -> f64 {
        let validity = Validity::at(at(now), Duration::from_secs(lifetime_s));
        f64::from(validity.timestamp_s) + (EXP_TIME_UNIT * (u32::from(validity.exp_time) + 1)).as_secs_f64()
    }

    #[test]
    fn hop_fields_end_when_they_should() {
        for lifetime_s in [20, 21, 60, 337, 338, 600, 3600, 6 * 3600, 24 * 3600] {
            for now in 1_750_000_000..1_750_000_700 {
                let left = end_s(now, lifetime_s) - now as f64;
                assert!(left <= lifetime_s as f64, "{left} of {lifetime_s}");
                assert!(left >= lifetime_s as f64 * 0.75 - 1.0, "{left} of {lifetime_s}");
            }
        }
    }

    #[test]
    fn the_timestamp_is_never_ahead_of_the_clock() {
        for lifetime_s in [20, 400, 6 * 3600] {
            for now in 1_750_000_000..1_750_000_700 {
                let validity = Validity::at(at(now), Duration::from_secs(lifetime_s));
                assert!(u64::from(validity.timestamp_s) <= now);
            }
        }
    }
}
