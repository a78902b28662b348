//! A small SCION network: links, exhaustive beaconing, routers that check what they forward, and all the ways that its rules
//! allow, found without any segment.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use anabranch_paths::{Interface, IsdAs, ScionPath};

use crate::segment::{AsEntry, HopField, MAC_LEN, PeerEntry, Segment, SegmentInfo};

/// When all segments of these tests were made.
pub const TIMESTAMP_S: u32 = 1_750_000_000;
/// Of every AS and link that says nothing else.
pub const MTU: u16 = 1472;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Parent,
    Child,
    Core,
    Peer,
}

/// One end of a link.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub near: Interface,
    pub far: Interface,
    /// What the AS at the far end is.
    pub far_role: Role,
}

#[derive(Default, Debug)]
pub struct Network {
    pub cores: Vec<IsdAs>,
    pub ends: Vec<End>,
    links: u16,
}

/// One way on: the ends that are passed.
type Way = Vec<End>;

impl Network {
    /// Core ASes, not yet joined.
    pub fn of(cores: Vec<IsdAs>) -> Self {
        Self { cores, ..Self::default() }
    }

    /// Joins two ASes; returns the two interfaces, numbered over the whole network.
    pub fn link(&mut self, a: IsdAs, b: IsdAs, b_is: Role) -> (Interface, Interface) {
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
    fn ways(&self, start: IsdAs, role: Role) -> Vec<Way> {
        let mut all: Vec<Way> = Vec::new();
        let mut open: Vec<Way> = vec![Vec::new()];
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
    pub fn beacons(&self, rng: &mut fastrand::Rng) -> (Vec<Segment>, Vec<Segment>) {
        let mut make = |role| -> Vec<Segment> {
            let ways = self.cores.iter().flat_map(|core| self.ways(*core, role)).collect::<Vec<_>>();
            ways.iter().map(|way| self.segment(way, rng.u16(..), rng.u8(..))).collect()
        };
        (make(Role::Child), make(Role::Core))
    }

    /// The segment along `way`, sealed by the ASes on it.
    pub fn segment(&self, way: &[End], id: u16, exp_time: u8) -> Segment {
        let info = SegmentInfo { timestamp_s: TIMESTAMP_S, id };
        let mut beta = id;
        let mut entries = Vec::new();
        for position in 0..=way.len() {
            let ingress = position.checked_sub(1).map_or(0, |before| way[before].far.id);
            let (isd_as, egress) = match way.get(position) {
                Some(end) => (end.near.isd_as, end.near.id),
                None => (way[position - 1].far.isd_as, 0),
            };
            let hop = seal(isd_as, beta, TIMESTAMP_S, exp_time, ingress, egress);
            let mut entry = AsEntry::new(isd_as, MTU, hop, if position == 0 { 0 } else { MTU });
            let beta_behind = beta ^ hop.mac_chain();
            entry.peers = self
                .from(isd_as, Role::Peer)
                .map(|end| PeerEntry {
                    peer: end.far.isd_as,
                    peer_interface: end.far.id,
                    peer_mtu: MTU,
                    hop: seal(isd_as, beta_behind, TIMESTAMP_S, exp_time, end.near.id, egress),
                })
                .collect();
            beta = beta_behind;
            entries.push(entry);
        }
        Segment::new(info, entries).unwrap()
    }

    /// What the rules allow from `source` to `destination`: up, then over cores or one peering link or neither, then down; no AS twice.
    pub fn allowed(&self, source: IsdAs, destination: IsdAs) -> BTreeSet<Vec<Interface>> {
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
    pub fn walk(&self, path: &ScionPath) -> Vec<Interface> {
        let mut packet = Packet::parse(&path.dataplane);
        let mut here = path.source;
        let mut passed = Vec::new();
        let mut came_in = 0;
        loop {
            packet.check(here, came_in, came_in != 0);
            if packet.at_end() {
                assert_eq!(here, path.destination);
                return passed;
            }
            // At a crossover the next segment's hop field names the way out; at a peering link it is the next AS's.
            if packet.at_segment_end() && !packet.is_peering() {
                packet.current += 1;
                packet.check(here, came_in, false);
            }
            let out = packet.way_out();
            let end = self.ends.iter().find(|end| end.near == Interface { isd_as: here, id: out }).unwrap();
            packet.leave();
            passed.extend([end.near, end.far]);
            (here, came_in) = (end.far.isd_as, end.far.id);
            packet.current += 1;
        }
    }
}

fn seal(isd_as: IsdAs, beta: u16, timestamp_s: u32, exp_time: u8, ingress: u16, egress: u16) -> HopField {
    // Any keyed function will do: what is proved is what goes into it.
    let mut hasher = DefaultHasher::new();
    (isd_as, beta, timestamp_s, exp_time, ingress, egress).hash(&mut hasher);
    let mut mac = [0; MAC_LEN];
    mac.copy_from_slice(&hasher.finish().to_be_bytes()[..MAC_LEN]);
    HopField { exp_time, ingress, egress, mac }
}

/// The path header, with named parts.
struct Packet {
    lengths: [usize; 3],
    /// Flags, SegID, timestamp.
    infos: Vec<(u8, u16, u32)>,
    hops: Vec<HopField>,
    current: usize,
}

impl Packet {
    fn parse(bytes: &[u8]) -> Self {
        let two = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let four = |at: usize| u32::from(two(at)) << 16 | u32::from(two(at + 2));
        let meta = four(0);
        assert_eq!(meta >> 18, 0, "both pointers at the start");
        let lengths = [12, 6, 0].map(|shift| (meta >> shift & 0x3f) as usize);
        let segments = lengths.iter().filter(|length| **length != 0).count();
        let hop_start = 4 + 8 * segments;
        let hop = |at: usize| HopField {
            exp_time: bytes[at + 1],
            ingress: two(at + 2),
            egress: two(at + 4),
            mac: bytes[at + 6..at + 12].try_into().unwrap(),
        };
        assert_eq!(bytes.len(), hop_start + 12 * lengths.iter().sum::<usize>());
        Self {
            lengths,
            infos: (0..segments).map(|at| (bytes[4 + 8 * at], two(6 + 8 * at), four(8 + 8 * at))).collect(),
            hops: (hop_start..bytes.len()).step_by(12).map(hop).collect(),
            current: 0,
        }
    }

    fn segment(&self) -> usize {
        let ends = self.lengths.iter().scan(0, |end, length| Some(std::mem::replace(end, *end + length) + length));
        ends.take_while(|end| *end <= self.current).count()
    }

    fn in_construction_direction(&self) -> bool {
        self.infos[self.segment()].0 & 1 != 0
    }

    fn at_end(&self) -> bool {
        self.current + 1 == self.hops.len()
    }

    fn at_segment_end(&self) -> bool {
        self.lengths
            .iter()
            .scan(0, |end, length| Some(std::mem::replace(end, *end + length) + length))
            .any(|end| end == self.current + 1)
    }

    /// Whether the current hop field is one of the two at a peering link.
    fn is_peering(&self) -> bool {
        let at_link = self.current + 1 == self.lengths[0] || self.current == self.lengths[0];
        self.infos[self.segment()].0 & 2 != 0 && at_link
    }

    /// What the router at `isd_as` does with the current hop field of a packet that came in by `came_in` (0: from inside).
    fn check(&mut self, isd_as: IsdAs, came_in: u16, from_link: bool) {
        let hop = self.hops[self.current];
        let (construction, peering, segment) = (self.in_construction_direction(), self.is_peering(), self.segment());
        if !construction && from_link && !peering {
            self.infos[segment].1 ^= hop.mac_chain();
        }
        let (_, seg_id, timestamp_s) = self.infos[segment];
        let expected = seal(isd_as, seg_id, timestamp_s, hop.exp_time, hop.ingress, hop.egress);
        assert_eq!(hop, expected, "hop field {} at {isd_as}", self.current);
        if from_link {
            assert_eq!(if construction { hop.ingress } else { hop.egress }, came_in);
        }
    }

    fn way_out(&self) -> u16 {
        let hop = self.hops[self.current];
        if self.in_construction_direction() { hop.egress } else { hop.ingress }
    }

    fn leave(&mut self) {
        if self.in_construction_direction() && !self.is_peering() {
            let segment = self.segment();
            self.infos[segment].1 ^= self.hops[self.current].mac_chain();
        }
    }
}
