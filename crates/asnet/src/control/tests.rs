//! The whole control plane over random networks: what it answers is what the rules of SCION allow, and routers accept it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anabranch_paths::{Interface, IsdAs, ScionPath};
use anabranch_scion_wire::StandardPathMut;
use anabranch_scion_wire::proto::control_plane::SegmentType;
use proptest::prelude::*;

use super::*;
use crate::topology::{Neighbour, Topology};

const NOW_S: u64 = 1_750_000_123;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW_S)
}

fn number(text: &str) -> IsdAs {
    text.parse().unwrap()
}

struct Net {
    topology: Arc<Topology>,
    keys: Arc<Keys>,
    control: ControlPlane,
}

impl Net {
    fn new(text: &str, options: Options) -> Self {
        let topology = Arc::new(Topology::from_toml("net", text).unwrap());
        let keys = Arc::new(Keys::new(&topology, &[7; SECRET_LEN]));
        let control = ControlPlane::new(topology.clone(), keys.clone(), options);
        Self { topology, keys, control }
    }

    /// One or two ISDs with a core each, leaves below with one or two parents, peering links, parallel links.
    fn random(seed: u64, leaves: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cores = rng.usize(1..4);
        let isd = |core: usize| 1 + core % 2;
        let mut text = String::new();
        let mut links = String::new();
        for core in 0..cores {
            text += &format!("[as.'{}-{}']\ncore = true\nmtu = {}\n", isd(core), core + 1, 1400 + core);
            for other in 0..core {
                if other + 1 == core || rng.bool() {
                    links +=
                        &format!("[[link]]\ncore = ['{}-{}', '{}-{}']\n", isd(core), core + 1, isd(other), other + 1);
                }
            }
        }
        let mut all: Vec<(usize, usize)> = (0..cores).map(|core| (isd(core), core + 1)).collect();
        for leaf in 0..leaves {
            let home = isd(rng.usize(0..cores));
            let name = (home, 100 + leaf);
            text += &format!("[as.'{}-{}']\n", name.0, name.1);
            let above: Vec<_> = all.iter().filter(|each| each.0 == home).copied().collect();
            for _ in 0..rng.usize(1..3) {
                let parent = above[rng.usize(0..above.len())];
                links += &format!(
                    "[[link]]\nparent = '{}-{}'\nchild = '{}-{}'\ndelay = '{} ms'\n",
                    parent.0,
                    parent.1,
                    name.0,
                    name.1,
                    rng.usize(0..9)
                );
            }
            if leaf > 0 && rng.bool() {
                let other = all[rng.usize(cores..all.len())];
                links += &format!("[[link]]\npeering = ['{}-{}', '{}-{}']\n", other.0, other.1, name.0, name.1);
            }
            all.push(name);
        }
        Self::new(&(text + &links), Options::default())
    }

    fn paths(&self, from: IsdAs, to: IsdAs) -> Vec<ScionPath> {
        self.control.paths(from, to, now()).unwrap()
    }

    /// What the rules allow: up, then over core links or one peering link or neither, then down; no AS twice.
    fn allowed(&self, from: IsdAs, to: IsdAs) -> BTreeSet<Vec<Interface>> {
        let mut found = BTreeSet::new();
        let mut open = vec![(Neighbour::Parent, Vec::new(), vec![from])];
        while let Some((last, way, seen)) = open.pop() {
            let here: IsdAs = seen[seen.len() - 1];
            for interface in &self.topology.get(here).unwrap().interfaces {
                let next = match (last, interface.neighbour) {
                    (Neighbour::Parent, Neighbour::Parent) => Neighbour::Parent,
                    (Neighbour::Parent | Neighbour::Core, Neighbour::Core) => Neighbour::Core,
                    (Neighbour::Parent, Neighbour::Peer) | (_, Neighbour::Child) => Neighbour::Child,
                    _ => continue,
                };
                let far = interface.remote;
                if seen.contains(&far.isd_as) {
                    continue;
                }
                let way: Vec<Interface> = [&way[..], &[Interface { isd_as: here, id: interface.id }, far]].concat();
                if far.isd_as == to {
                    found.insert(way);
                } else {
                    open.push((next, way, [&seen[..], &[far.isd_as]].concat()));
                }
            }
        }
        found
    }

    /// Carries a packet as border routers do, each with its own key; panics where one would drop it.
    fn walk(&self, path: &ScionPath) -> Vec<Interface> {
        let mut bytes = path.dataplane.clone();
        let mut packet = StandardPathMut::parse(&mut bytes).unwrap();
        let (mut here, mut came_in) = (path.source, 0);
        let mut passed = Vec::new();
        loop {
            self.check(&mut packet, here, came_in);
            if packet.view().is_last_hop() {
                assert_eq!(here, path.destination);
                return passed;
            }
            if packet.view().is_segment_change() && !packet.view().is_peering_hop() {
                packet.advance().unwrap();
                self.check(&mut packet, here, 0);
            }
            let (info, hop) = (packet.view().current_info(), packet.view().current_hop());
            let out = Interface { isd_as: here, id: hop.egress(info.cons_dir) };
            let far = self.topology.interface(out).expect("the interface exists").remote;
            if info.cons_dir && !packet.view().is_peering_hop() {
                packet.chain_seg_id();
            }
            packet.advance().unwrap();
            passed.extend([out, far]);
            (here, came_in) = (far.isd_as, far.id);
        }
    }

    fn check(&self, packet: &mut StandardPathMut<'_>, here: IsdAs, came_in: u16) {
        if came_in != 0 && !packet.view().current_info().cons_dir && !packet.view().is_peering_hop() {
            packet.chain_seg_id();
        }
        let (info, hop) = (packet.view().current_info(), packet.view().current_hop());
        assert!(self.keys.sealing(here).unwrap().verify(info.seg_id, info.timestamp_s, &hop), "{hop:?} at {here}");
        assert!(hop.expiry(info.timestamp_s) > now());
        assert!(came_in == 0 || hop.ingress(info.cons_dir) == came_in);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_path_is_accepted_by_every_router(seed: u64, leaves in 1usize..7) {
        let net = Net::random(seed, leaves);
        for from in net.topology.ases() {
            for to in net.topology.ases().iter().filter(|to| to.isd_as != from.isd_as) {
                let paths = net.paths(from.isd_as, to.isd_as);
                for path in &paths {
                    prop_assert_eq!(net.walk(path), path.interfaces.clone());
                    let first = from.interface(path.interfaces[0].id).unwrap();
                    prop_assert_eq!(path.next_hop, Some(from.routers[first.router].internal));
                    prop_assert!(path.latency.iter().all(Option::is_some), "{:?}", path);
                }
                // Small networks stay below every bound: nothing is missing, nothing comes twice.
                let found: BTreeSet<_> = paths.iter().map(|path| path.interfaces.clone()).collect();
                prop_assert_eq!(found.len(), paths.len());
                prop_assert_eq!(found, net.allowed(from.isd_as, to.isd_as));
            }
        }
    }
}

/// Two ISDs of one and two cores, a leaf each with two ways, and a peering link.
const LADDER: &str = r#"
[as.1-10]
core = true
[as.1-20]
core = true
[as.2-30]
core = true
[as.1-11]
[as.2-31]
[[link]]
core = ["1-10", "1-20"]
rate = "100 Mbit/s"
delay = "5 ms"
[[link]]
core = ["1-20", "2-30"]
[[link]]
parent = "1-10"
child = "1-11"
mtu = 1300
[[link]]
parent = "1-20"
child = "1-11"
[[link]]
parent = "2-30"
child = "2-31"
[[link]]
peering = ["1-11", "2-31"]
there = { delay = "7 ms" }
"#;

fn ladder(options: Options) -> Net {
    Net::new(LADDER, options)
}

#[test]
fn claims_come_from_the_links() {
    let net = ladder(Options::default());
    let paths = net.paths(number("1-11"), number("2-31"));
    assert_eq!(paths.len(), 3);
    assert_eq!(paths[0].interfaces.len(), 2, "the peering link first");
    assert_eq!(paths[0].latency, [Some(Duration::from_millis(7))]);
    let long = paths.iter().find(|path| path.interfaces.len() == 8).unwrap();
    assert_eq!(long.mtu, 1300);
    assert_eq!(long.latency[2], Some(Duration::from_millis(5)));
    assert_eq!(long.bandwidth_kbps[2], Some(100_000));
}

#[test]
fn segments_are_answered_as_end_hosts_ask() {
    let net = ladder(Options::default());
    let ask = |local, src, dst| {
        let (kind, segments) = net.control.segments(number(local), number(src), number(dst), now())?;
        let ends = segments.iter().map(|segment| format!("{} {}", segment.first(), segment.last()));
        Ok::<_, LookupError>((kind, ends.collect::<Vec<_>>()))
    };
    // 1-20 reaches 1-11 directly only: beacons go down from where they start.
    assert_eq!(ask("1-11", "1-11", "1-0"), Ok((SegmentType::Up, vec!["1-10 1-11".into(), "1-20 1-11".into()])));
    assert_eq!(ask("1-11", "1-11", "1-20"), Ok((SegmentType::Up, vec!["1-20 1-11".into()])));
    assert_eq!(ask("1-11", "1-0", "2-0"), Ok((SegmentType::Core, vec!["2-30 1-10".into(), "2-30 1-20".into()])));
    assert_eq!(ask("1-10", "1-0", "2-0"), Ok((SegmentType::Core, vec!["2-30 1-10".into()])));
    assert_eq!(ask("1-11", "1-0", "1-0").unwrap().1, ["1-10 1-20", "1-20 1-10"]);
    assert_eq!(ask("1-11", "2-0", "2-31"), Ok((SegmentType::Down, vec!["2-30 2-31".into()])));
    assert_eq!(ask("1-11", "2-0", "2-99"), Ok((SegmentType::Down, vec![])));
    for (local, src, dst, expected) in [
        ("1-11", "1-11", "2-31", "neither end is a core AS"),
        ("1-11", "1-0", "1-11", "exchange source and destination"),
        ("1-11", "2-0", "1-0", "core segments start in"),
        ("1-11", "1-0", "2-31", "down segments stay"),
        ("1-11", "2-31", "2-0", "up segments start in"),
        ("1-11", "0-0", "2-0", "the ISD is zero"),
        ("1-99", "1-99", "1-0", "1-99 is not part"),
    ] {
        let message = ask(local, src, dst).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn paths_inside_one_as_need_no_header() {
    let net = ladder(Options::default());
    let path = &net.paths(number("1-11"), number("1-11"))[0];
    assert!(path.dataplane.is_empty() && path.next_hop.is_none());
    assert!(net.paths(number("1-11"), number("1-99")).is_empty());
    assert!(net.control.paths(number("1-11"), number("1-0"), now()).is_err());
}

#[test]
fn a_link_that_is_down_leaves_answers_after_a_moment_and_comes_back_at_once() {
    let options = Options { notice_down_after: Some(Duration::from_secs(1)), ..Options::default() };
    let net = ladder(options);
    let count = |at: SystemTime| net.control.paths(number("1-11"), number("2-31"), at).unwrap().len();
    let peering = 5;
    net.control.set_link_up(peering, false, now());
    net.control.set_link_up(peering, false, now() + Duration::from_millis(900));
    assert_eq!(count(now() + Duration::from_millis(999)), 3);
    assert_eq!(count(now() + Duration::from_millis(1000)), 2);
    net.control.set_link_up(1, false, now());
    assert_eq!(count(now() + Duration::from_millis(1000)), 0);
    net.control.set_link_up(peering, true, now());
    assert_eq!(count(now() + Duration::from_millis(1000)), 1);
    net.control.set_link_up(999, false, now());

    let never = ladder(Options { notice_down_after: None, ..options });
    never.control.set_link_up(peering, false, now());
    assert_eq!(never.control.paths(number("1-11"), number("2-31"), now() + Duration::from_secs(999)).unwrap().len(), 3);
}

#[test]
fn segments_are_renewed_long_before_they_end() {
    let lifetime = Duration::from_secs(20);
    let net = ladder(Options { segment_lifetime: lifetime, ..Options::default() });
    let mut renewals = BTreeSet::new();
    // A day, each renewal met once and the moments around it.
    for second in (0..86_400).step_by(4) {
        let at = now() + Duration::from_secs(second);
        let path = net.control.paths(number("1-11"), number("2-31"), at).unwrap().swap_remove(0);
        let left = path.expiry.duration_since(at).unwrap();
        assert!(left >= lifetime * 7 / 10 && left <= lifetime, "{left:?}");
        renewals.insert(path.dataplane);
    }
    assert_eq!(renewals.len(), 86_400 / 5);
}

#[test]
fn keys_differ_between_ases_and_secrets_and_agree_between_processes() {
    let net = ladder(Options::default());
    let other = Keys::new(&net.topology, &[8; SECRET_LEN]);
    let same = Keys::new(&net.topology, &[7; SECRET_LEN]);
    let (a, b) = (number("1-10"), number("1-20"));
    assert_ne!(net.keys.forwarding(a), net.keys.forwarding(b));
    assert_ne!(net.keys.forwarding(a), other.forwarding(a));
    assert_eq!(net.keys.forwarding(a), same.forwarding(a));
    assert_eq!(net.keys.forwarding(number("9-9")), None);
}
