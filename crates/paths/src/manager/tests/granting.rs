//! Paths that are wished for and granted, and grants taken back.

use super::*;

#[test]
fn the_uploader_grants_what_is_wished_for_and_dials_back() {
    let (mut sim, paths) = uploader(4, 6);
    sim.run(SECOND, |_| true);
    assert_eq!(sim.grants[&PeerKey(1)].len(), 4);
    let granted: BTreeSet<PathId> = sim.grants[&PeerKey(1)].iter().copied().collect();
    assert!(sim.open_paths(1).is_superset(&granted));
    for (id, (_, path, _)) in &sim.conns {
        let expected = if granted.contains(&path.id()) { PathCondition::Active } else { PathCondition::Standby };
        assert_eq!(sim.manager.condition(*id), Some((expected, true)));
    }
    assert!(paths.iter().all(|path| sim.last_verdict(path.id()).is_some()), "every candidate is explained");
    // Nothing changes, nothing is said.
    let said = sim.news.len();
    sim.run(60 * SECOND, |_| true);
    assert_eq!((sim.news.len(), sim.dials.len()), (said, 0));
}

/// A download from an uploader that speaks of paths and granted us those of `granted`.
fn granted(wished: usize, count: u16, granted: &[usize]) -> (Sim, Vec<Arc<ScionPath>>) {
    let (mut sim, paths) = (Sim::new(ManagerConfig { wished, ..ManagerConfig::default() }), paths_to(1, count));
    sim.scion_peer(1).is_wanted = true;
    sim.open_scion(1, &paths[0], Some(20 * MS));
    sim.look();
    assert_eq!(sim.wishes, [PathWish { paths: wished, dial: true, selector: None }]);
    sim.scion_peer(1).granted = granted.iter().map(|at| grant(&paths[*at])).collect();
    sim.look();
    sim.find(1, &paths);
    (sim, paths)
}

#[test]
fn what_is_granted_and_dialled_by_nobody_is_dialled_by_us_after_a_while() {
    let (mut sim, paths) = granted(3, 4, &[0, 2]);
    sim.look();
    assert_eq!(sim.last_verdict(paths[2].id()).unwrap().0, Choice::Chosen);
    assert_eq!(sim.last_verdict(paths[3].id()), Some((Choice::Left, VerdictReason::NotGranted.to_string())));
    sim.run(GRANT_PATIENCE - 2 * LOOK_EVERY, |_| panic!("the uploader has time"));
    sim.run(SECOND, |_| true);
    assert_eq!(sim.open_paths(1), BTreeSet::from([paths[0].id(), paths[2].id()]));
    assert_eq!(sim.wishes.len(), 1, "said once");
}

// Links come back, and the uploader learns of it first.
#[test]
fn what_the_uploader_dials_and_grants_carries_before_our_lookup_names_it() {
    let (mut sim, _) = granted(3, 2, &[0, 1]);
    sim.run(5 * SECOND, |_| true);
    assert!(!sim.has_sought, "all that is granted is known");
    let all = paths_to(1, 4);
    let numbers: Vec<u16> = all[2].interfaces.iter().map(|interface| interface.id).collect();
    let unnamed = Arc::new(ScionPath::told(all[2].source, all[2].destination, &numbers, 1400));
    let conn = sim.open_scion(1, &unnamed, None);
    sim.look();
    assert_eq!(sim.states[&conn], PathState::Active);
    sim.scion_peer(1).granted = [0, 2].map(|at| grant(&all[at])).to_vec();
    sim.run(FOUND_FOR, |_| true);
    assert_eq!((sim.states[&conn], sim.has_sought), (PathState::Active, true));
    // A path that was not granted stands by, named or not.
    let other: Vec<u16> = all[3].interfaces.iter().map(|interface| interface.id).collect();
    let other = Arc::new(ScionPath::told(all[3].source, all[3].destination, &other, 1400));
    let left = sim.open_scion(1, &other, None);
    sim.look();
    sim.scion_peer(1).granted = [1, 2].map(|at| grant(&all[at])).to_vec();
    sim.look();
    assert_eq!((sim.states[&conn], sim.states[&left]), (PathState::Active, PathState::Standby));
    sim.find(1, &all);
    sim.run(FOUND_FOR + SECOND, |_| true);
    assert_eq!((sim.states[&conn], sim.states[&left]), (PathState::Active, PathState::Standby));
    assert!(!sim.has_sought);
}

#[test]
fn grants_taken_back_leave_their_paths_standing_by() {
    let (mut sim, paths) = granted(3, 4, &[1, 2]);
    sim.run(5 * SECOND, |_| true);
    let first = sim.conn_over(paths[0].id());
    assert_eq!(sim.states[&first], PathState::Standby, "it was not granted");
    sim.scion_peer(1).granted = vec![grant(&paths[1])];
    let conn = sim.conn_over(paths[2].id());
    sim.look();
    assert_eq!(
        (sim.states[&conn], sim.manager.condition(conn)),
        (PathState::Standby, Some((PathCondition::Standby, true)))
    );
    // One that ends is not opened again.
    sim.close(conn, false);
    sim.run(20 * SECOND, |dial| panic!("nobody wants {}", dial.path));
    // All of them: then whatever there is, is used.
    sim.scion_peer(1).granted.clear();
    sim.look();
    assert!(sim.states.values().all(|state| *state == PathState::Active));
}

#[test]
fn made_up_grants_take_nothing_of_the_budget() {
    // Four peers that nobody fetches from grant as much as a peer may: together as many paths as there are connections.
    let (mut sim, paths) = uploader(2, 3);
    for peer in 2..=5 {
        let made_up = paths_to(peer, PATHS_PER_PEER_MAX as u16 + 1);
        sim.scion_peer(peer).granted = made_up[1..].iter().map(grant).collect();
        sim.open_scion(peer, &made_up[0], None);
    }
    assert_eq!(4 * PATHS_PER_PEER_MAX, ManagerConfig::default().connections);
    sim.run(SECOND, |_| true);
    assert_eq!(sim.grants[&PeerKey(1)].len(), 2);
    assert!(paths.iter().all(|path| sim.last_verdict(path.id()).is_some()));
    // Nor do they where they have something to offer, and we wish for as many: nobody finds such paths, and no connection goes over them.
    sim.manager.config.wished = PATHS_PER_PEER_MAX;
    for peer in 2..=5 {
        sim.scion_peer(peer).is_wanted = true;
        sim.find(peer, &paths_to(peer, 1));
    }
    sim.run(6 * SECOND, |_| true);
    assert_eq!(sim.grants[&PeerKey(1)].len(), 2);
}

#[test]
fn what_is_granted_to_us_takes_its_part_of_the_budget_up_to_what_we_wished_for() {
    const WISHED: usize = 3;
    for (connections, left) in [(WISHED, 0), (WISHED + 1, 1), (WISHED + 2, 2)] {
        let mut sim = Sim::new(ManagerConfig { wished: WISHED, connections, ..ManagerConfig::default() });
        let (ours, theirs) = (paths_to(1, 5), paths_to(2, 4));
        let view = sim.scion_peer(1);
        (view.is_wanted, view.granted) = (true, ours.iter().map(grant).collect());
        sim.open_scion(1, &ours[0], Some(20 * MS));
        sim.downloader(2, 4);
        sim.open_scion(2, &theirs[0], None);
        sim.look();
        sim.find(1, &ours);
        sim.find(2, &theirs);
        sim.run(6 * SECOND, |_| true);
        assert_eq!(sim.grants[&PeerKey(2)].len(), left, "{connections} connections");
        // Once there is nothing to fetch, all of it is for those who fetch.
        sim.is_finished = true;
        sim.run(6 * SECOND, |_| true);
        assert_eq!(sim.grants[&PeerKey(2)].len(), connections.min(4), "{connections} connections");
    }
}

#[test]
fn what_is_granted_to_us_counts_at_once_though_nothing_is_measured() {
    let config = ManagerConfig { wished: 2, connections: 3, selector: Some(Selector::All), ..ManagerConfig::default() };
    let (mut sim, ours, theirs) = (Sim::new(config), paths_to(1, 2), paths_to(2, 3));
    sim.scion_peer(1).is_wanted = true;
    sim.open_scion(1, &ours[0], Some(20 * MS));
    sim.downloader(2, 3);
    sim.open_scion(2, &theirs[0], None);
    sim.look();
    sim.find(2, &theirs);
    sim.run(SECOND, |_| true);
    assert_eq!(sim.grants[&PeerKey(2)].len(), 3);
    sim.scion_peer(1).granted = vec![grant(&ours[0])];
    sim.run(SECOND, |_| true);
    assert_eq!(sim.grants[&PeerKey(2)].len(), 2);
    sim.is_finished = true;
    sim.run(SECOND, |_| true);
    assert_eq!(sim.grants[&PeerKey(2)].len(), 3);
}

#[test]
fn who_wants_one_connection_is_left_with_one() {
    let mut sim = Sim::new(ManagerConfig { wished: 2, ..ManagerConfig::default() });
    sim.uplinks = vec![[10, 0, 0, 1].into(), [10, 0, 1, 1].into()];
    sim.ip_peer(1);
    sim.open(1, Path::ip(sim.uplinks[0], ip_endpoint(1).ip()), Some(20 * MS));
    let mut dialled = 0;
    for _ in 0..100 {
        sim.look();
        for dial in std::mem::take(&mut sim.dials) {
            dialled += 1;
            sim.manager.dial_opened(&dial, sim.now);
            let conn = sim.open(1, dial.path.clone(), Some(20 * MS));
            sim.close(conn, true);
            sim.manager.dial_ended(&dial, DialEnd::Closed, sim.now);
        }
        sim.now += LOOK_EVERY;
    }
    assert_eq!(dialled, 2, "in 25 seconds");
}
