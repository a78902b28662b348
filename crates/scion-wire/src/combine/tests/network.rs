//! A small SCION network: links, exhaustive beaconing, routers that check what they forward, and all the ways that its rules
//! allow, found without any segment.

use std::collections::BTreeSet;

use anabranch_paths::{Interface, IsdAs, ScionPath};

use crate::mac::HopKey;
use crate::segment::{AsEntry, HopField, PeerEntry, Segment, SegmentInfo};
use crate::{HopMac, StandardPathMut};

/// When all segments of these tests were made.
pub(super) const TIMESTAMP_S: u32 = 1_750_000_000;
/// Of every AS and link that says nothing else.
pub(super) const MTU: u16 = 1472;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Parent,
    Child,
    Core,
    Peer,
}

/// One end of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub near: Interface,
    pub far: Interface,
    /// What the AS at the far end is.
    pub far_role: Role,
}

#[derive(Default, Debug)]
pub(super) struct Network {
    pub cores: Vec<IsdAs>,
    pub ends: Vec<End>,
    links: u16,
}

/// One way on: the ends that are passed.
type Walk = Vec<End>;

impl Network {
    /// Core ASes, not yet joined.
    pub(super) fn of(cores: Vec<IsdAs>) -> Self {
        Self { cores, ..Self::default() }
    }

    /// Joins two ASes; returns the two interfaces, numbered over the whole network.
    pub(super) fn link(&mut self, a: IsdAs, b: IsdAs, b_is: Role) -> (Interface, Interface) {
        self.links += 1;
        let (a, b) = (Interface { isd_as: a, id: 2 * self.links }, Interface { isd_as: b, id: 2 * self.links + 1 });
        let a_is = match b_is {
            Role::Parent => Role::Child,
            Role::Child => Role::Parent,
            same => same,
        };
        self.ends.push(End { near: a, far: b, far_role: b_is });
        self.ends.push(End { near: b, far: a, far_role: a_is });
        (a, b)
    }

    fn from(&self, isd_as: IsdAs, role: Role) -> impl Iterator<Item = End> {
        self.ends.iter().copied().filter(move |end| end.near.isd_as == isd_as && end.far_role == role)
    }

    /// Every loop-free way from `start` over links to ASes of `role`, of any length.
    fn ways(&self, start: IsdAs, role: Role) -> Vec<Walk> {
        let mut all: Vec<Walk> = Vec::new();
        let mut open: Vec<Walk> = vec![Vec::new()];
        while let Some(way) = open.pop() {
            let here = way.last().map_or(start, |end: &End| end.far.isd_as);
            for end in self.from(here, role) {
                let seen = end.far.isd_as == start || way.iter().any(|before| before.far.isd_as == end.far.isd_as);
                if !seen {
                    let next = [&way[..], &[end]].concat();
                    all.push(next.clone());
                    open.push(next);
                }
            }
        }
        all
    }

    /// All segments: down from the cores (up, seen from below), and between cores.
    pub(super) fn beacons(&self, rng: &mut fastrand::Rng) -> (Vec<Segment>, Vec<Segment>) {
        let mut make = |role| -> Vec<Segment> {
            let ways = self.cores.iter().flat_map(|core| self.ways(*core, role)).collect::<Vec<_>>();
            ways.iter().map(|way| self.segment(way, rng.u16(..), rng.u8(..))).collect()
        };
        (make(Role::Child), make(Role::Core))
    }

    /// The segment along `way`, sealed by the ASes on it.
    pub(super) fn segment(&self, way: &[End], id: u16, exp_time: u8) -> Segment {
        let info = SegmentInfo { timestamp_s: TIMESTAMP_S, id };
        let mut beta = id;
        let mut entries = Vec::new();
        for position in 0..=way.len() {
            let ingress = position.checked_sub(1).map_or(0, |before| way[before].far.id);
            let (isd_as, egress) = match way.get(position) {
                Some(end) => (end.near.isd_as, end.near.id),
                None => (way[position - 1].far.isd_as, 0),
            };
            let hop = seal(isd_as, beta, exp_time, ingress, egress);
            let mut entry = AsEntry::new(isd_as, MTU, hop, if position == 0 { 0 } else { MTU });
            let beta_behind = beta ^ hop.mac_chain();
            entry.peers = self
                .from(isd_as, Role::Peer)
                .map(|end| PeerEntry {
                    peer: end.far.isd_as,
                    peer_interface: end.far.id,
                    peer_mtu: MTU,
                    hop: seal(isd_as, beta_behind, exp_time, end.near.id, egress),
                })
                .collect();
            beta = beta_behind;
            entries.push(entry);
        }
        Segment::new(info, entries).unwrap()
    }

    /// What the rules allow from `source` to `destination`: up, then over cores or one peering link or neither, then down; no AS twice.
    pub(super) fn allowed(&self, source: IsdAs, destination: IsdAs) -> BTreeSet<Vec<Interface>> {
        let mut found = BTreeSet::new();
        // What the last link was: up (or none yet), core, or down.
        let mut open = vec![(Role::Parent, vec![], vec![source])];
        while let Some((last, way, seen)) = open.pop() {
            let here: IsdAs = seen[seen.len() - 1];
            for end in self.ends.iter().filter(|end| end.near.isd_as == here && !seen.contains(&end.far.isd_as)) {
                let next = match (last, end.far_role) {
                    (Role::Parent, Role::Parent) => Role::Parent,
                    (Role::Parent | Role::Core, Role::Core) => Role::Core,
                    (Role::Parent, Role::Peer) | (_, Role::Child) => Role::Child,
                    _ => continue,
                };
                let way: Vec<Interface> = [&way[..], &[end.near, end.far]].concat();
                if end.far.isd_as == destination {
                    found.insert(way);
                } else {
                    open.push((next, way, [&seen[..], &[end.far.isd_as]].concat()));
                }
            }
        }
        found
    }

    /// Carries a packet over `path` as border routers do, each checking its hop fields; the interfaces passed.
    pub(super) fn walk(&self, path: &ScionPath) -> Vec<Interface> {
        let mut bytes = path.dataplane.clone();
        let mut packet = StandardPathMut::parse(&mut bytes).unwrap();
        let (mut here, mut came_in) = (path.source, 0);
        let mut passed = Vec::new();
        loop {
            check(&mut packet, here, came_in);
            if packet.view().is_last_hop() {
                assert_eq!(here, path.destination);
                return passed;
            }
            // At a crossover the next segment's hop field names the way out; at a peering link it is the next AS's.
            if packet.view().is_segment_change() && !packet.view().is_peering_hop() {
                packet.advance().unwrap();
                check(&mut packet, here, 0);
            }
            let (info, hop) = (packet.view().current_info(), packet.view().current_hop());
            let out = Interface { isd_as: here, id: hop.egress(info.cons_dir) };
            let end = self.ends.iter().find(|end| end.near == out).unwrap();
            if info.cons_dir && !packet.view().is_peering_hop() {
                packet.chain_seg_id();
            }
            packet.advance().unwrap();
            passed.extend([end.near, end.far]);
            (here, came_in) = (end.far.isd_as, end.far.id);
        }
    }
}

/// Any AS's forwarding key.
fn key(isd_as: IsdAs) -> HopKey {
    HopKey::new(&u128::from(isd_as.to_u64()).to_be_bytes())
}

fn seal(isd_as: IsdAs, beta: u16, exp_time: u8, ingress: u16, egress: u16) -> HopField {
    let hop = HopField { exp_time, ingress, egress, mac: HopMac::default() };
    HopField { mac: key(isd_as).mac(beta, TIMESTAMP_S, &hop.into()), ..hop }
}

/// What a router at `isd_as` does with the current hop field of a packet that came in by `came_in` (0: from inside, or from
/// the segment before).
fn check(path: &mut StandardPathMut, isd_as: IsdAs, came_in: u16) {
    if came_in != 0 && !path.view().current_info().cons_dir && !path.view().is_peering_hop() {
        path.chain_seg_id();
    }
    let (info, hop) = (path.view().current_info(), path.view().current_hop());
    assert!(key(isd_as).verify(info.seg_id, info.timestamp_s, &hop), "{hop:?} at {isd_as}");
    assert!(came_in == 0 || hop.ingress(info.cons_dir) == came_in);
}
