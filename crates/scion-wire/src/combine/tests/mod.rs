mod network;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use anabranch_paths::{IsdAs, LinkKind};
use proptest::prelude::*;

use super::*;
use network::{MTU, Network, Role, TIMESTAMP_S};

fn isd_as(isd: u16, number: u64) -> IsdAs {
    IsdAs::new(isd, number).unwrap()
}

/// Segments as a lookup gives them: those that lead to the source, from the destination's side to the source's, to the destination.
fn lookup(
    network: &Network,
    rng: &mut fastrand::Rng,
    source: IsdAs,
    destination: IsdAs,
) -> (Vec<Segment>, Vec<Segment>, Vec<Segment>) {
    let (down, core) = network.beacons(rng);
    let to = |end: IsdAs| down.iter().filter(|segment| segment.last() == end).cloned().collect();
    (to(source), core, to(destination))
}

/// Two cores, one leaf under each with a middle AS that both share, and a peering link between the leaves' own children.
fn ladder() -> (Network, [IsdAs; 7]) {
    let names @ [core_a, core_b, middle, a, b, a_child, b_child] = [1, 2, 3, 4, 5, 6, 7].map(|n| isd_as(1, n));
    let mut network = Network::of(vec![core_a, core_b]);
    network.link(core_a, core_b, Role::Core);
    network.link(core_a, middle, Role::Child);
    network.link(core_b, middle, Role::Child);
    network.link(middle, a, Role::Child);
    network.link(middle, b, Role::Child);
    network.link(a, a_child, Role::Child);
    network.link(b, b_child, Role::Child);
    network.link(a_child, b_child, Role::Peer);
    (network, names)
}

fn check(network: &Network, source: IsdAs, destination: IsdAs, rng: &mut fastrand::Rng) -> Vec<ScionPath> {
    let (up, core, down) = lookup(network, rng, source, destination);
    let paths = combine(source, destination, &up, &core, &down);
    for path in &paths {
        assert_eq!(network.walk(path), path.interfaces);
    }
    let found: BTreeSet<_> = paths.iter().map(|path| path.interfaces.clone()).collect();
    assert_eq!(found.len(), paths.len(), "each list of interfaces once");
    if paths.len() < PATHS_MAX {
        assert_eq!(found, network.allowed(source, destination));
    }
    assert!(paths.is_sorted_by_key(|path| path.interfaces.len()));
    paths
}

#[test]
fn shortcuts_peering_and_ases_on_the_way_are_found() {
    let (network, [core_a, core_b, middle, a, b, a_child, b_child]) = ladder();
    let rng = &mut fastrand::Rng::with_seed(1);
    let mut ways = |source, destination| {
        check(&network, source, destination, rng).iter().map(|path| path.to_string()).collect::<Vec<_>>()
    };
    // Over the peering link (hop fields of one-entry pieces), and by the shortcut; never up to a core and back.
    assert_eq!(ways(a_child, b_child), ["1-6 16>17 1-7", "1-6 13>12 1-4 9>8 1-3 10>11 1-5 14>15 1-7"]);
    // The destination lies on the up segment; the source on the down segment.
    assert_eq!(ways(a_child, middle), ["1-6 13>12 1-4 9>8 1-3"]);
    assert_eq!(ways(middle, b), ["1-3 10>11 1-5"]);
    assert_eq!(ways(core_a, a), ["1-1 4>5 1-3 8>9 1-4", "1-1 2>3 1-2 6>7 1-3 8>9 1-4"]);
    assert_eq!(ways(core_a, core_b), ["1-1 2>3 1-2"]);
    assert_eq!(ways(a, core_a).len(), 2);
    assert_eq!(ways(a, a), [""; 0]);
}

#[test]
fn mtu_is_the_least_on_the_way() {
    let (network, [_, _, middle, a, b, ..]) = ladder();
    let rng = &mut fastrand::Rng::with_seed(2);
    let (up, core, down) = lookup(&network, rng, a, b);
    let with = |change: &dyn Fn(&mut crate::segment::AsEntry)| {
        let changed = |segments: &[Segment]| -> Vec<Segment> {
            let rebuilt = segments.iter().map(|segment| {
                let mut entries = segment.entries().to_vec();
                entries.iter_mut().for_each(change);
                Segment::new(segment.info(), entries).unwrap()
            });
            rebuilt.collect()
        };
        combine(a, b, &changed(&up), &core, &changed(&down))[0].mtu
    };
    assert_eq!(with(&|_| ()), MTU);
    assert_eq!(with(&|entry| entry.mtu = if entry.isd_as == middle { 1300 } else { MTU }), 1300);
    assert_eq!(with(&|entry| entry.ingress_mtu = if entry.isd_as == b { 1290 } else { MTU }), 1290);
    assert_eq!(with(&|entry| entry.ingress_mtu = if entry.isd_as == b { 0 } else { MTU }), MTU);
    // The link into the shortcut's AS is not passed.
    assert_eq!(with(&|entry| entry.ingress_mtu = if entry.isd_as == middle { 1280 } else { MTU }), MTU);
}

#[test]
fn of_equal_ways_the_longest_lived_is_taken() {
    let mut network = Network::of(vec![isd_as(1, 1)]);
    network.link(isd_as(1, 1), isd_as(1, 2), Role::Child);
    let way = [network.ends[0]];
    let segments = [(1, 5), (2, 9), (3, 0)].map(|(id, exp_time)| network.segment(&way, id, exp_time));
    for turn in 0..3 {
        let mut segments = segments.clone();
        segments.rotate_left(turn);
        let paths = combine(isd_as(1, 2), isd_as(1, 1), &segments, &[], &[]);
        assert_eq!(paths.len(), 1);
        let timestamp = SystemTime::UNIX_EPOCH + Duration::from_secs(TIMESTAMP_S.into());
        assert_eq!(paths[0].expiry, timestamp + Duration::from_millis(337_500) * 10);
    }
}

#[test]
fn claims_follow_the_path_in_both_directions() {
    let names @ [core, a, b] = [1, 2, 3].map(|n| isd_as(1, n));
    let mut network = Network::of(vec![core]);
    let (core_a, _) = network.link(core, a, Role::Child);
    let (core_b, b_core) = network.link(core, b, Role::Child);
    let rng = &mut fastrand::Rng::with_seed(3);
    let (up, _, down) = lookup(&network, rng, a, b);
    let claim = |segment: &Segment| {
        let mut entries = segment.entries().to_vec();
        let (egress, info) = (entries[0].hop.egress, &mut entries[0].static_info);
        let other = if egress == core_a.id { core_b.id } else { core_a.id };
        info.latency_intra.insert(other, Duration::from_millis(u64::from(egress)));
        info.latency_inter.insert(egress, Duration::from_millis(100 + u64::from(egress)));
        info.bandwidth_intra_kbps.insert(other, 1000 + u64::from(egress));
        info.bandwidth_inter_kbps.insert(egress, 2000 + u64::from(egress));
        info.link_kinds.insert(egress, LinkKind::Direct);
        let last = &mut entries[1].static_info;
        last.link_kinds.insert(b_core.id, LinkKind::OpenNet);
        Segment::new(segment.info(), entries).unwrap()
    };
    let (up, down) = (claim(&up[0]), claim(&down[0]));
    let path = &combine(a, b, &[up], &[], &[down])[0];
    assert_eq!(path.interfaces.iter().map(|i| i.isd_as).collect::<Vec<_>>(), [names[1], core, core, b]);
    // Core interfaces are 2 (towards a) and 4 (towards b): the greater latency and the lesser bandwidth inside it.
    let ms = |ms| Some(Duration::from_millis(ms));
    assert_eq!(path.latency, [ms(102), ms(4), ms(104)]);
    assert_eq!(path.bandwidth_kbps, [Some(2002), Some(1002), Some(2004)]);
    // The ends of the second link call it different things.
    assert_eq!(path.link_kinds, [LinkKind::Direct, LinkKind::Unset]);
}

/// `width` parallel links from each of two leaves to their cores, and between the cores.
fn parallel(width: usize) -> Network {
    let mut network = Network::of(vec![isd_as(1, 1), isd_as(2, 1)]);
    for _ in 0..width {
        network.link(isd_as(1, 1), isd_as(1, 2), Role::Child);
        network.link(isd_as(1, 1), isd_as(2, 1), Role::Core);
        network.link(isd_as(2, 1), isd_as(2, 2), Role::Child);
    }
    network
}

#[test]
fn paths_and_steps_are_limited() {
    let rng = &mut fastrand::Rng::with_seed(4);
    // 8 * 8 * 8 paths: all of them; with one more link of each kind, as many.
    for width in [8, 9] {
        assert_eq!(check(&parallel(width), isd_as(1, 2), isd_as(2, 2), rng).len(), PATHS_MAX);
    }
    // 50 * 50 * 50 combinations, none of which leads to the destination: the search ends, whatever it is offered.
    let (up, core, down) = lookup(&parallel(50), rng, isd_as(1, 2), isd_as(2, 2));
    let (elsewhere, mut graph) = (isd_as(3, 3), Graph::default());
    for (kind, segments) in [(Kind::Up, &up), (Kind::Core, &core), (Kind::Down, &down)] {
        segments.iter().for_each(|segment| graph.add(kind, segment));
    }
    graph.link();
    assert!(graph.search(isd_as(1, 2), elsewhere).nth(STEPS_MAX).is_some());
    assert_eq!(combine(isd_as(1, 2), elsewhere, &up, &core, &down), []);
}

#[test]
fn segments_are_limited_to_the_shortest() {
    let mut network = Network::of(vec![isd_as(1, 1)]);
    network.link(isd_as(1, 1), isd_as(1, 2), Role::Child);
    network.link(isd_as(1, 2), isd_as(1, 3), Role::Child);
    network.link(isd_as(1, 1), isd_as(1, 3), Role::Child);
    let [short, long] = [vec![network.ends[4]], vec![network.ends[0], network.ends[2]]];
    let mut segments = vec![network.segment(&long, 0, 0)];
    segments.extend((0..SEGMENTS_MAX as u16 - 1).map(|id| network.segment(&short, id, 0)));
    let count = |segments: &[Segment]| combine(isd_as(1, 3), isd_as(1, 1), segments, &[], &[]).len();
    assert_eq!(count(&segments), 2);
    segments.push(network.segment(&short, u16::MAX, 0));
    assert_eq!(count(&segments), 1);
}

#[test]
fn a_path_that_no_packet_can_point_into_is_refused() {
    // Up 32 hop fields and down 32: 64, the most. With one more on either side, none.
    let chain = |network: &mut Network, isd: u16, len: u64| {
        for n in 1..len {
            network.link(if n == 1 { isd_as(1, 1) } else { isd_as(isd, n) }, isd_as(isd, n + 1), Role::Child);
        }
        isd_as(isd, len)
    };
    for (len, paths) in [(32, 1), (33, 0)] {
        let mut network = Network::of(vec![isd_as(1, 1)]);
        let (source, destination) = (chain(&mut network, 2, len), chain(&mut network, 3, 32));
        let (up, _, down) = lookup(&network, &mut fastrand::Rng::with_seed(5), source, destination);
        let found = combine(source, destination, &up, &[], &down);
        assert_eq!(found.len(), paths);
        found.iter().for_each(|path| assert_eq!(network.walk(path), path.interfaces));
    }
}

/// Any network of the shape that SCION allows: every AS that is no core has providers, and no AS is its own provider.
fn random(rng: &mut fastrand::Rng) -> Network {
    let mut network = Network::default();
    let mut leaves: Vec<IsdAs> = Vec::new();
    for isd in 1..=rng.u16(1..3) {
        let cores: Vec<IsdAs> = (1..=rng.u64(1..4)).map(|n| isd_as(isd, n)).collect();
        network.cores.extend(&cores);
        let mut providers = cores;
        for n in 10..10 + rng.u64(0..5) {
            let leaf = isd_as(isd, n);
            for _ in 0..rng.usize(1..3) {
                let provider = providers[rng.usize(..providers.len())];
                network.link(provider, leaf, Role::Child);
            }
            providers.push(leaf);
            leaves.push(leaf);
        }
    }
    for _ in 0..rng.usize(0..5) {
        let [a, b] = [0, 1].map(|_| network.cores[rng.usize(..network.cores.len())]);
        if a != b {
            network.link(a, b, Role::Core);
        }
    }
    for _ in 0..rng.usize(0..4) {
        if leaves.len() < 2 {
            break;
        }
        let [a, b] = [0, 1].map(|_| leaves[rng.usize(..leaves.len())]);
        if a != b {
            network.link(a, b, Role::Peer);
        }
    }
    network
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// In any network, what is combined is exactly what the rules allow, and every hop field of it verifies on the way.
    #[test]
    fn combined_paths_are_all_that_are_allowed_and_verify(seed: u64) {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let network = random(rng);
        let everybody: BTreeSet<IsdAs> =
            network.ends.iter().map(|end| end.near.isd_as).chain(network.cores.iter().copied()).collect();
        let everybody: Vec<IsdAs> = everybody.into_iter().collect();
        for _ in 0..4 {
            let [source, destination] = [0, 1].map(|_| everybody[rng.usize(..everybody.len())]);
            if source != destination {
                check(&network, source, destination, rng);
            }
        }
    }

    /// The order of the segments changes nothing.
    #[test]
    fn order_does_not_matter(seed: u64) {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let (network, [.., a, b]) = ladder();
        let (mut up, mut core, mut down) = lookup(&network, rng, a, b);
        let first = combine(a, b, &up, &core, &down);
        [&mut up, &mut core, &mut down].into_iter().for_each(|segments| rng.shuffle(segments));
        prop_assert_eq!(combine(a, b, &up, &core, &down), first);
    }
}
