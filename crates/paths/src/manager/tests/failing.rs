//! Paths and uplinks that fail, flap and come back; lookups that do not answer or leave paths out.

use super::super::conns::CONFIRMED_AFTER;
use super::*;

#[test]
fn a_path_that_fails_is_left_replaced_and_taken_back() {
    let (mut sim, paths) = uploader(2, 3);
    sim.run(SECOND, |_| true);
    let failing = sim.grants[&PeerKey(1)][1];
    let path = paths.iter().find(|path| path.id() == failing).unwrap().clone();
    let conn = sim.conn_over(failing);
    sim.link_down(&path, &[conn]);
    sim.look();
    assert_eq!((sim.states[&conn], sim.manager.condition(conn)), (PathState::Down, Some((PathCondition::Down, true))));
    assert!(!sim.grants[&PeerKey(1)].contains(&failing) && sim.grants[&PeerKey(1)].len() == 2);
    assert_eq!(sim.last_verdict(failing).unwrap().1, "down at the moment");
    // Nothing comes: its connection is closed, and it is tried until it opens.
    let is_it = move |dial: &Dial| dial.path.id() == failing;
    sim.run(CONFIRMED_AFTER + SECOND, move |dial| !is_it(dial));
    assert!(!sim.open_paths(1).contains(&failing));
    sim.run(60 * SECOND, move |dial| !is_it(dial));
    assert!(!sim.open_paths(1).contains(&failing));
    sim.run(20 * SECOND, |_| true);
    assert!(sim.open_paths(1).contains(&failing), "tried at least every ten seconds");
    assert_ne!(sim.last_verdict(failing).unwrap().1, "down at the moment");
}

// A peer that was killed says nothing.
#[test]
fn who_owes_and_answers_nothing_at_all_is_left_and_dialled_anew() {
    const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
    let mut sim = Sim::new(ManagerConfig { wished: 2, ..ManagerConfig::default() });
    let paths = paths_to(1, 2);
    let view = sim.scion_peer(1);
    (view.is_wanted, view.granted) = (true, paths.iter().map(grant).collect());
    let conns = [&paths[0], &paths[1]].map(|path| sim.open_scion(1, path, Some(20 * MS)));
    sim.look();
    sim.find(1, &paths);
    // Nothing is due: silence means nothing.
    sim.run(60 * SECOND, |_| panic!("both are open"));
    assert!(conns.iter().all(|conn| sim.states[conn] == PathState::Active));
    // Acknowledgements come, and now and then is often enough.
    conns.iter().for_each(|conn| sim.conns.get_mut(conn).unwrap().2.owes = true);
    for _ in 0..10 {
        sim.run(ANSWERS_WITHIN - 2 * LOOK_EVERY, |_| panic!("both are open"));
        conns.iter().for_each(|conn| sim.conns.get_mut(conn).unwrap().2.received_bytes += 40);
    }
    sim.run(ANSWERS_WITHIN - 2 * LOOK_EVERY, |_| panic!("both are open"));
    assert!(conns.iter().all(|conn| sim.states[conn] == PathState::Active));
    // One answers again while it is in doubt; the other one does not.
    sim.run(3 * LOOK_EVERY, |_| panic!("both are open"));
    assert!(conns.iter().all(|conn| sim.states[conn] == PathState::Down));
    let is_told = |news: &PathNews| matches!(news, PathNews::Changed { reason, .. } if reason.to_string().contains("answers nothing"));
    assert_eq!(sim.news.iter().filter(|news| is_told(news)).count(), 2);
    sim.receive(conns[0], 40);
    sim.run(CONFIRMED_AFTER + SECOND, |_| true);
    assert_eq!((sim.states[&conns[0]], sim.conns.contains_key(&conns[1])), (PathState::Active, false));
    assert!(sim.open_paths(1).contains(&paths[1].id()), "it is dialled anew");
}

// A router that died next to us says nothing either, and whom we send to owes us no more than acknowledgements.
#[test]
fn who_acknowledges_nothing_is_left_though_nothing_else_is_due() {
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let [dead, alive] = [0, 1].map(|at: usize| sim.conn_over(paths[at].id()));
    [dead, alive].iter().for_each(|conn| sim.receive(*conn, 40));
    sim.look();
    let send = |sim: &mut Sim, conn: ConnId| {
        sim.conns.get_mut(&conn).unwrap().2.sent_bytes += 1200;
    };
    // What came is acknowledged, and nobody answers that.
    [dead, alive].iter().for_each(|conn| send(&mut sim, *conn));
    sim.run(60 * SECOND, |_| panic!("both are open"));
    let is_down =
        |sim: &Sim| [dead, alive].map(|conn| !sim.conns.contains_key(&conn) || sim.states[&conn] == PathState::Down);
    assert_eq!(is_down(&sim), [false, false]);
    // A sign of life leaves over both, again and again over the one that is dead.
    for _ in 0..4 {
        [dead, alive].iter().for_each(|conn| send(&mut sim, *conn));
        sim.run(SECOND, |_| panic!("both are open"));
        sim.receive(alive, 40);
    }
    assert_eq!(is_down(&sim), [false, false]);
    sim.run(2 * SECOND, |_| true);
    assert_eq!(is_down(&sim), [true, false]);
}

#[test]
fn a_long_way_has_the_time_that_it_takes() {
    let (mut sim, paths) = uploader(1, 1);
    let conn = sim.conn_over(paths[0].id());
    sim.receive(conn, 40);
    let measured = &mut sim.conns.get_mut(&conn).unwrap().2;
    measured.owes = true;
    measured.transport.as_mut().unwrap().rtt = SECOND;
    sim.run(7 * SECOND, |_| true);
    assert_eq!(sim.states[&conn], PathState::Active);
    sim.run(SECOND + 2 * LOOK_EVERY, |_| true);
    assert_eq!(sim.states[&conn], PathState::Down);
}

#[test]
fn news_of_trouble_that_is_not_so_costs_nothing_for_long() {
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let conn = sim.conn_over(paths[1].id());
    sim.link_down(&paths[1], &[]);
    sim.look();
    assert_eq!(sim.states[&conn], PathState::Down, "all that pass the interface are concerned");
    sim.receive(conn, 100);
    sim.run(CONFIRMED_AFTER + SECOND, |_| true);
    assert_eq!(sim.manager.condition(conn), Some((PathCondition::Active, true)));
    assert!(!sim.links.is_down(&paths[1], sim.now) && sim.conns.contains_key(&conn));
    assert_eq!(sim.last_verdict(paths[1].id()).unwrap().0, Choice::Chosen);
}

#[test]
fn a_path_that_flaps_is_used_when_it_is_up_and_dialled_no_faster_than_it_may() {
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let flapping = paths[1].id();
    for _ in 0..50 {
        let conn = sim.conn_over(flapping);
        sim.link_down(&paths[1], &[conn]);
        sim.run(2 * SECOND, move |dial| dial.path.id() != flapping);
        assert!(!sim.open_paths(1).contains(&flapping));
        let before = sim.next_conn;
        sim.run(3 * SECOND, |_| true);
        assert!(sim.next_conn - before <= 1);
        sim.links.works(&paths[1]);
        sim.look();
        assert_eq!(sim.last_verdict(flapping).unwrap().0, Choice::Chosen);
    }
}

#[test]
fn a_peer_whose_every_path_fails_is_forgotten_without_a_trace() {
    let (mut sim, paths) = uploader(3, 3);
    sim.run(SECOND, |_| true);
    for path in &paths {
        let conn = sim.conn_over(path.id());
        sim.link_down(path, &[conn]);
    }
    sim.run(5 * SECOND, |_| false);
    assert!(sim.conns.is_empty());
    let manager = &sim.manager;
    assert!(manager.hosts.is_empty() && manager.lookups.is_empty() && manager.of_peer.is_empty());
    assert_eq!(manager.next_look(sim.now), None);
    let late = Dial {
        host: HostId(1),
        address: ip_endpoint(1).into(),
        path: Path::ip([10, 0, 0, 1].into(), [192, 0, 2, 1].into()),
        patience: SECOND,
    };
    sim.manager.dial_ended(&late, DialEnd::Closed, sim.now);
    assert!(sim.manager.hosts.is_empty(), "what ends late makes nobody");
}

#[test]
fn a_lookup_that_never_answers_holds_up_nobody_else() {
    let mut sim = Sim::new(ManagerConfig::default());
    for peer in [1, 2] {
        sim.downloader(peer, 2);
        let first = paths_to(peer, 1);
        sim.open_scion(peer, &first[0], None);
    }
    sim.look();
    sim.find(2, &paths_to(2, 3));
    sim.run(10 * SECOND, |_| true);
    assert_eq!((sim.open_paths(1).len(), sim.open_paths(2).len()), (1, 2));
    let asked = sim.lookups.iter().filter(|address| **address == scion_endpoint(1)).count();
    assert!((5..=6).contains(&asked), "once in two seconds: {asked}");
    // It ends without an answer, and with one for somebody who is gone.
    sim.manager.looked_up(scion_endpoint(1), None, sim.wall);
    sim.find(7, &paths_to(7, 3));
    assert_eq!(sim.manager.lookups.len(), 2);
}

#[test]
fn paths_that_a_lookup_leaves_out_are_kept_until_their_end() {
    let (mut sim, mut paths) = uploader(2, 2);
    Arc::make_mut(&mut paths[1]).expiry = sim.wall + 30 * SECOND;
    sim.find(1, &paths);
    sim.run(SECOND, |_| true);
    sim.find(1, &paths[..1]);
    sim.look();
    assert_eq!(sim.grants[&PeerKey(1)].len(), 2);
    sim.run(40 * SECOND, |_| true);
    sim.find(1, &paths[..1]);
    sim.look();
    assert_eq!(sim.grants[&PeerKey(1)], [paths[0].id()]);
}

#[test]
fn uplinks_add_up_and_one_that_goes_is_left_at_once() {
    let mut sim = Sim::new(ManagerConfig { wished: 4, ..ManagerConfig::default() });
    let (one, two): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 1, 1].into());
    sim.uplinks = vec![one, two];
    sim.ip_peer(1);
    sim.open(1, Path::ip(one, ip_endpoint(1).ip()), Some(20 * MS));
    sim.run(SECOND, |_| true);
    assert_eq!(sim.open_paths(1).len(), 2);
    let gone = sim.conn_over(Path::ip(two, ip_endpoint(1).ip()).id());
    (sim.uplinks, sim.version) = (vec![one], 1);
    sim.look();
    assert_eq!(sim.states[&gone], PathState::Down);
    sim.run(5 * SECOND, |dial| panic!("there is no way for {}", dial.path));
    assert_eq!(sim.open_paths(1).len(), 1);
    (sim.uplinks, sim.version) = (vec![one, two], 2);
    sim.run(2 * SECOND, |_| true);
    assert_eq!(sim.open_paths(1).len(), 2);
}

#[test]
fn a_connection_over_ip_that_owes_and_is_silent_is_replaced_while_others_work() {
    let mut sim = Sim::new(ManagerConfig { wished: 2, ..ManagerConfig::default() });
    let (one, two): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 1, 1].into());
    sim.uplinks = vec![one, two];
    sim.ip_peer(1);
    let good = sim.open(1, Path::ip(one, ip_endpoint(1).ip()), Some(20 * MS));
    sim.run(SECOND, |_| true);
    let silent = sim.conn_over(Path::ip(two, ip_endpoint(1).ip()).id());
    sim.receive(silent, 1000);
    sim.conns.get_mut(&silent).unwrap().2.owes = true;
    for _ in 0..30 {
        sim.receive(good, 1000);
        sim.run(LOOK_EVERY, |_| true);
    }
    assert!(!sim.conns.contains_key(&silent) && sim.conns.contains_key(&good));
    assert_eq!(sim.open_paths(1).len(), 2, "a new one took its place");
}
