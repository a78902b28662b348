//! Paths through SCION and over IP, chosen together out of one budget.

use super::*;
use crate::select::Resource;

/// Both kinds of paths to one peer, and none of its own choice.
fn both_kinds(config: ManagerConfig) -> Sim {
    let mut sim = Sim::new(config);
    sim.uplinks = vec![[10, 0, 0, 1].into(), [10, 0, 1, 1].into()];
    let view = sim.scion_peer(1);
    view.listens.push(ip_endpoint(1).into());
    (view.is_wanted, view.speaks_paths) = (true, false);
    let paths = paths_to(1, 3);
    sim.open_scion(1, &paths[0], Some(20 * MS));
    sim.look();
    sim.find(1, &paths);
    sim
}

#[test]
fn paths_through_scion_and_over_ip_are_chosen_together() {
    let mut sim = both_kinds(ManagerConfig { wished: 4, ..ManagerConfig::default() });
    sim.run(2 * SECOND, |_| true);
    let over_ip = sim.conns.values().filter(|(_, path, _)| path.as_scion().is_none()).count();
    // Two addresses of ours with one of its share its end: the second brings less than anything else.
    assert_eq!((sim.conns.len(), over_ip), (4, 1), "{:?}", sim.news);
    let chosen =
        sim.news.iter().filter(|news| matches!(news, PathNews::Chosen { verdicts, .. } if verdicts.len() == 5));
    assert!(chosen.count() > 0, "one choice among all");
}

#[test]
fn one_budget_is_spent_on_both_kinds() {
    let mut sim = both_kinds(ManagerConfig { wished: 8, connections: 3, ..ManagerConfig::default() });
    sim.run(2 * SECOND, |_| true);
    assert_eq!(sim.states.values().filter(|state| **state == PathState::Active).count(), 3);
    // A second peer, at the budget's edge: each gets one before anybody gets two, and those that are granted count.
    let paths = paths_to(2, 3);
    sim.downloader(2, 4);
    sim.open_scion(2, &paths[0], None);
    sim.look();
    sim.find(2, &paths);
    sim.run(5 * SECOND, |_| true);
    let hosts = sim.manager.hosts.values();
    let chosen: Vec<usize> = hosts.map(|host| host.uploads.chosen.len() + host.fetches.chosen.len()).collect();
    assert_eq!((chosen.iter().sum::<usize>(), chosen.iter().min()), (3, Some(&1)), "{chosen:?}");
}

#[test]
fn what_the_uploader_grants_leaves_less_to_choose_over_ip() {
    let mut sim = Sim::new(ManagerConfig { wished: 3, ..ManagerConfig::default() });
    sim.uplinks = vec![[10, 0, 0, 1].into(), [10, 0, 1, 1].into()];
    let paths = paths_to(1, 4);
    let view = sim.scion_peer(1);
    view.listens.push(ip_endpoint(1).into());
    (view.is_wanted, view.granted) = (true, paths[..2].iter().map(grant).collect());
    sim.open_scion(1, &paths[0], Some(20 * MS));
    sim.open_scion(1, &paths[1], None);
    sim.look();
    sim.find(1, &paths);
    sim.run(5 * SECOND, |_| true);
    assert_eq!(sim.conns.values().filter(|(_, path, _)| path.as_scion().is_none()).count(), 1);
}

#[test]
fn what_one_peer_does_not_wish_for_another_one_gets() {
    for (connections, expected) in [(2, [1, 1]), (4, [3, 1]), (5, [4, 1]), (9, [4, 1])] {
        let mut sim = Sim::new(ManagerConfig { connections, ..ManagerConfig::default() });
        for (peer, wished) in [(1, 4), (2, 1)] {
            let paths = paths_to(peer, 4);
            sim.downloader(peer, wished);
            sim.open_scion(peer, &paths[0], None);
        }
        sim.look();
        [1, 2].into_iter().for_each(|peer| sim.find(peer, &paths_to(peer, 4)));
        sim.run(SECOND, |_| true);
        assert_eq!([1, 2].map(|peer| sim.grants[&PeerKey(peer)].len()), expected, "{connections} connections");
    }
}

#[test]
fn what_stands_by_or_is_down_is_none_of_the_paths_that_were_wished_for() {
    let mut sim = Sim::new(ManagerConfig { wished: 3, ..ManagerConfig::default() });
    sim.uplinks = (0..4).map(|n| IpAddr::from([10, 0, n, 1])).collect();
    let paths = paths_to(1, 3);
    let view = sim.scion_peer(1);
    view.listens.push(ip_endpoint(1).into());
    (view.is_wanted, view.granted) = (true, vec![grant(&paths[0])]);
    let conns: Vec<ConnId> = paths.iter().map(|path| sim.open_scion(1, path, Some(20 * MS))).collect();
    sim.look();
    sim.find(1, &paths);
    let over_ip = |sim: &Sim| {
        let active = sim.states.iter().filter(|(_, state)| **state == PathState::Active);
        active.filter(|(id, _)| sim.conns.get(id).is_some_and(|(_, path, _)| path.as_scion().is_none())).count()
    };
    sim.run(5 * SECOND, |dial| dial.path.as_scion().is_none());
    assert_eq!(conns.iter().map(|conn| sim.states[conn]).filter(|state| *state == PathState::Active).count(), 1);
    assert_eq!(over_ip(&sim), 2, "one is granted, two stand by");
    sim.link_down(&paths[0], &[conns[0]]);
    sim.run(5 * SECOND, |dial| dial.path.as_scion().is_none());
    assert_eq!(over_ip(&sim), 3);
}

#[test]
fn each_content_keeps_out_of_the_way_of_what_its_own_peers_told() {
    let (mut sim, paths) = uploader(1, 1);
    let others: Vec<Arc<ScionPath>> = paths_to(2, 4)[1..].to_vec();
    let first = |sim: &Sim| {
        sim.manager.first_path(scion_endpoint(2), &others, &[], &sim.links, &sim.board, sim.now).unwrap().id()
    };
    sim.third_party = vec![(others[0].interfaces[..2].to_vec(), 3)];
    sim.look();
    assert_eq!(first(&sim), others[1].id(), "others use the first one");
    // Another content's peers use other paths, and all that is measured is on one board.
    let at = Resource::Interface(others[1].interfaces[0]);
    sim.board.set_third_party_load([(at, 5)]);
    assert_eq!(first(&sim), others[1].id());
    assert_eq!(sim.grants[&PeerKey(1)], [paths[0].id()]);
}

#[test]
fn the_first_path_to_a_peer_keeps_out_of_the_way_of_those_in_use() {
    let (mut sim, paths) = uploader(1, 2);
    sim.look();
    // To another peer, over the same first two links.
    let there = scion_endpoint(2);
    let others: Vec<Arc<ScionPath>> = paths_to(2, 3);
    let first = |sim: &Sim| sim.manager.first_path(there, &others, &[], &sim.links, &sim.board, sim.now).unwrap().id();
    assert_eq!(first(&sim), others[1].id(), "path 1 begins as the one in use does");
    sim.manager.tried(Endpoint::Scion(there), false);
    assert_eq!(first(&sim), others[2].id());
    sim.link_down(&others[2], &[]);
    assert_eq!(first(&sim), others[0].id());
    assert_eq!(sim.manager.first_path(there, &[], &[], &sim.links, &sim.board, sim.now), None);
    assert_eq!(paths[0].interfaces[0], others[0].interfaces[0]);
}

#[test]
fn a_path_that_is_tried_beside_others_shares_as_little_with_them_as_there_is() {
    let sim = Sim::new(ManagerConfig::default());
    let there = scion_endpoint(4);
    // Best first: of three over the same first link the second shares more, and of the two that are apart the first is better.
    let texts = ["1-1 1>2 1-2 3>4 1-4", "1-1 1>2 1-2 5>6 1-4", "1-1 7>8 1-3 9>10 1-4", "1-1 11>12 1-5 13>14 1-4"];
    let paths: Vec<Arc<ScionPath>> = texts.map(|text| Arc::new(scion_path(text))).into();
    let mut tried: Vec<Arc<ScionPath>> = Vec::new();
    let mut order = Vec::new();
    while let Some(next) = sim.manager.first_path(there, &paths, &tried, &sim.links, &sim.board, sim.now) {
        order.push(paths.iter().position(|path| path.id() == next.id()).unwrap());
        tried.push(next);
    }
    assert_eq!(order, [0, 2, 3, 1]);
}

#[test]
fn ipv4_and_ipv6_between_the_same_uplinks_are_one_way() {
    let mut sim = Sim::new(ManagerConfig { wished: 8, ..ManagerConfig::default() });
    sim.uplinks = vec![[10, 0, 0, 1].into(), [10, 0, 1, 1].into()];
    let remotes: Vec<SocketAddr> = ["192.0.2.1:6881", "192.0.2.2:6881", "[2001:db8::1]:6881", "[2001:db8::2]:6881"]
        .map(|remote| remote.parse().unwrap())
        .into();
    let view = sim.ip_peer(1);
    view.told = remotes.iter().copied().map(Endpoint::from).collect();
    sim.open(1, Path::ip([10, 0, 0, 1].into(), remotes[0].ip()), None);
    sim.run(2 * SECOND, |_| true);
    let active = |sim: &Sim| -> BTreeSet<IpAddr> {
        let active = sim.states.iter().filter(|(_, state)| **state == PathState::Active);
        active.map(|(id, _)| sim.conns[id].1.remote()).collect()
    };
    assert_eq!((sim.conns.len(), active(&sim).len()), (8, 4), "nothing says that any two are one: {:?}", sim.news);
    // The second address of each family is at the second uplink.
    let number = |remote: IpAddr| u32::from(remotes[1].ip() == remote || remotes[3].ip() == remote);
    let uplinks = sim.conns.iter().map(|(id, (_, path, _))| (*id, number(path.remote()))).collect();
    sim.ip_peer(1).uplinks = uplinks;
    sim.run(SECOND, |_| true);
    let used = active(&sim);
    let numbers: BTreeSet<u32> = used.iter().map(|remote| number(*remote)).collect();
    assert_eq!((used.len(), numbers.len()), (2, 2), "{used:?}");
    let count = |sim: &Sim| sim.states.values().filter(|state| **state == PathState::Active).count();
    assert_eq!((count(&sim), sim.conns.len()), (4, 8), "the others stand by");
    let spare = remotes.iter().map(SocketAddr::ip).find(|remote| !used.contains(remote)).unwrap();
    let verdict = sim.last_verdict(Path::ip([10, 0, 0, 1].into(), spare).id()).unwrap();
    assert!(
        verdict.0 == Choice::Standby && verdict.1.starts_with("leads from and to the same uplinks as"),
        "{verdict:?}"
    );
    // What fails is replaced by what stood by: nothing has to be dialled.
    let failing: Vec<ConnId> =
        sim.conns.iter().filter(|(_, (_, path, _))| used.contains(&path.remote())).map(|(id, _)| *id).collect();
    for id in failing {
        sim.close(id, false);
    }
    sim.look();
    assert_eq!((count(&sim), active(&sim).is_disjoint(&used)), (4, true), "{:?}", sim.news);
    // Whoever asks for all gets all.
    sim.manager.config.selector = Some(Selector::All);
    sim.run(30 * SECOND, |_| true);
    assert_eq!(count(&sim), 8);
}

#[test]
fn the_first_connection_over_ip_goes_as_the_system_routes_it_unless_one_of_the_working_interfaces_is_crowded() {
    let mut sim = Sim::new(ManagerConfig::default());
    let uplinks: [IpAddr; 3] = [1, 2, 3].map(|number| [198, 51, 100, number].into());
    let candidates = |peer: u32| -> Vec<IpCandidate> {
        let (remote, to) = (ip_endpoint(peer), |local: &IpAddr| format!("to {local}"));
        let of = |local: &IpAddr| {
            let path = Path::ip(*local, remote.ip());
            IpCandidate { path, remote, uplink: *local, interface: to(local) }
        };
        uplinks.iter().map(of).collect()
    };
    let (there, ways) = (Endpoint::from(ip_endpoint(9)), candidates(9));
    let over = |at: usize| Some(FirstIp::Over(&ways[at]));
    let first = |sim: &Sim| sim.manager.first_over_ip(there, &ways, false);
    assert_eq!(first(&sim), Some(FirstIp::AsRouted), "nothing is known of any");
    for peer in 1..=3 {
        sim.ip_peer(peer);
        sim.open(peer, candidates(peer)[0].path.clone(), None);
    }
    assert_eq!(first(&sim), Some(FirstIp::AsRouted), "no other is known to work");
    let alone = sim.open(1, candidates(1)[1].path.clone(), None);
    assert_eq!(first(&sim), over(1), "one against three");
    // What fails is followed by the others, each once a round.
    let mut taken = Vec::new();
    for _ in 0..5 {
        taken.push(first(&sim));
        sim.manager.tried(there, false);
    }
    assert_eq!(taken, [over(1), Some(FirstIp::AsRouted), over(0), over(2), over(1)]);
    sim.manager.tried(there, true);
    assert_eq!(sim.manager.first_over_ip(there, &ways, true), over(1));
    assert_eq!(sim.manager.first_over_ip(there, &[], true), None, "none of the named interfaces leads there");
    assert_eq!(sim.manager.first_over_ip(there, &[], false), Some(FirstIp::AsRouted));
    sim.close(alone, true);
    assert_eq!(first(&sim), Some(FirstIp::AsRouted));
}
