//! The manager against a simulated network: virtual time, paths that break and heal, peers that answer, lie or stay silent.

use std::collections::{BTreeMap, BTreeSet};

use super::conns::CONFIRMED_AFTER;
use super::*;
use crate::IsdAs;
use crate::select::Choice;
use crate::testing::path as scion_path;

const HERE: &str = "1-ff00:0:1";
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Paths from here to the AS of `peer`, each over an AS of its own.
fn paths_to(peer: u32, count: u16) -> Vec<Arc<ScionPath>> {
    let to = |n: u16| format!("{HERE} {n}>1 1-ff00:0:{:x} 2>{n} 1-ff00:0:{:x}", 0x100 + n, 0x1000 + peer);
    let paths = (1..=count).map(|n| ScionPath { expiry: end_of_time(), ..scion_path(&to(n)) });
    paths.map(Arc::new).collect()
}

fn end_of_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40)
}

fn scion_endpoint(peer: u32) -> ScionAddr {
    let text = format!("1-ff00:0:{:x},192.0.2.{peer}:6881", 0x1000 + peer);
    text.parse::<Endpoint>().unwrap().as_scion().unwrap()
}

fn ip_endpoint(peer: u32) -> SocketAddr {
    format!("192.0.2.{peer}:6881").parse().unwrap()
}

/// A content's surroundings.
struct Sim {
    manager: PathManager,
    links: LinkHealth,
    board: Scoreboard,
    now: Instant,
    wall: SystemTime,
    peers: BTreeMap<PeerKey, PeerView>,
    conns: BTreeMap<ConnId, (PeerKey, Path, Measured)>,
    /// Connections that dials of the manager's brought.
    dialled: BTreeMap<ConnId, Dial>,
    next_conn: u32,
    is_finished: bool,
    foreign: Vec<(Vec<Interface>, u32)>,
    /// Our addresses, each an uplink; and how often that changed.
    uplinks: Vec<IpAddr>,
    version: u64,
    /// What was handed out.
    dials: Vec<Dial>,
    lookups: Vec<ScionAddr>,
    wishes: Vec<PathWish>,
    grants: BTreeMap<PeerKey, Vec<PathId>>,
    states: BTreeMap<ConnId, PathState>,
    news: Vec<PathNews>,
}

impl Sim {
    fn new(config: ManagerConfig) -> Self {
        Self {
            manager: PathManager::new(ManagerConfig { scion_host: Some([192, 0, 2, 200].into()), ..config }),
            links: LinkHealth::default(),
            board: Scoreboard::default(),
            now: Instant::now(),
            wall: SystemTime::UNIX_EPOCH,
            peers: BTreeMap::new(),
            conns: BTreeMap::new(),
            dialled: BTreeMap::new(),
            next_conn: 0,
            is_finished: false,
            foreign: Vec::new(),
            uplinks: Vec::new(),
            version: 0,
            dials: Vec::new(),
            lookups: Vec::new(),
            wishes: Vec::new(),
            grants: BTreeMap::new(),
            states: BTreeMap::new(),
            news: Vec::new(),
        }
    }

    fn scion_peer(&mut self, peer: u32) -> &mut PeerView {
        let view = PeerView {
            peer: PeerKey(peer),
            conns: Vec::new(),
            listens: vec![Endpoint::Scion(scion_endpoint(peer))],
            told: Vec::new(),
            name: None,
            speaks_paths: true,
            wish: None,
            granted: Vec::new(),
            is_interested: false,
            is_served: false,
            is_wanted: false,
        };
        self.peers.entry(PeerKey(peer)).or_insert(view)
    }

    fn ip_peer(&mut self, peer: u32) -> &mut PeerView {
        let view = self.scion_peer(peer);
        view.listens = vec![ip_endpoint(peer).into()];
        (view.speaks_paths, view.is_wanted) = (false, true);
        view
    }

    /// A downloader that wishes for paths and can be dialled.
    fn downloader(&mut self, peer: u32, paths: usize) {
        let view = self.scion_peer(peer);
        view.wish = Some(PathWish { paths, dial: true, selector: None });
        (view.is_interested, view.is_served) = (true, true);
    }

    fn open(&mut self, peer: u32, path: Path, handshake: Option<Duration>) -> ConnId {
        let path = self.manager.named(&path);
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        let view = self.peers.get_mut(&PeerKey(peer)).unwrap();
        view.conns.push(id);
        let address = match path.as_scion() {
            Some(_) => Endpoint::Scion(scion_endpoint(peer)),
            None => ip_endpoint(peer).into(),
        };
        self.conns.insert(id, (PeerKey(peer), path.clone(), Measured::default()));
        self.manager.joined(id, Opened { address, path, handshake }, self.now);
        id
    }

    fn open_scion(&mut self, peer: u32, path: &Arc<ScionPath>, handshake: Option<Duration>) -> ConnId {
        self.open(
            peer,
            Path::scion([192, 0, 2, 200].into(), scion_endpoint(peer).host.ip(), Arc::clone(path)),
            handshake,
        )
    }

    fn close(&mut self, id: ConnId, by_peer: bool) {
        let Some((peer, ..)) = self.conns.remove(&id) else { return };
        let view = self.peers.get_mut(&peer).unwrap();
        view.conns.retain(|conn| *conn != id);
        self.manager.left(id, Some(peer), by_peer, "closed", self.now);
        self.states.remove(&id);
        if let Some(dial) = self.dialled.remove(&id) {
            self.manager.dial_ended(&dial, DialEnd::Closed, self.now);
        }
    }

    fn look(&mut self) {
        let peers: Vec<PeerView> = self.peers.values().filter(|view| !view.conns.is_empty()).cloned().collect();
        let (conns, uplinks) = (&self.conns, &self.uplinks);
        let measure = |id: ConnId| conns.get(&id).map_or_else(Measured::default, |(.., measured)| *measured);
        let pair = |remotes: &[SocketAddr]| -> Vec<IpCandidate> {
            let of = |remote: &SocketAddr, local: &IpAddr| IpCandidate {
                path: Path::ip(*local, remote.ip()),
                remote: *remote,
                uplink: *local,
                interface: format!("to {local}"),
            };
            remotes.iter().flat_map(|remote| uplinks.iter().map(move |local| of(remote, local))).collect()
        };
        let has = |local: IpAddr| uplinks.contains(&local);
        let over_ip = (!uplinks.is_empty() || self.version > 0).then_some(Uplinks {
            version: self.version,
            own: &[],
            pair: &pair,
            has: &has,
        });
        let mut inputs = Inputs {
            peers: &peers,
            is_finished: self.is_finished,
            measure: &measure,
            uplinks: over_ip,
            foreign: &|| self.foreign.clone(),
            links: &mut self.links,
            board: &mut self.board,
        };
        self.manager.look(&mut inputs, self.now, self.wall);
        let mut closed = Vec::new();
        while let Some(action) = self.manager.poll_action() {
            match action {
                Action::LookUp(address) => self.lookups.push(address),
                Action::Wish(wish) => self.wishes.push(wish),
                Action::Grant { peer, paths } => {
                    self.grants.insert(peer, paths.iter().map(|path| path.id()).collect());
                }
                Action::Dial(dial) => self.dials.push(dial),
                Action::SetState { conn, state } => drop(self.states.insert(conn, state)),
                Action::Close { conn, .. } => closed.push(conn),
                Action::Name { conn, path } => self.conns.get_mut(&conn).unwrap().1 = path,
                Action::Tell(news) => self.news.push(news),
            }
        }
        closed.into_iter().for_each(|conn| self.close(conn, false));
    }

    /// Looks again and again for a time; what is dialled ends as `answers` says.
    fn run(&mut self, time: Duration, answers: impl Fn(&Dial) -> bool) {
        let end = self.now + time;
        while self.now < end {
            self.look();
            self.answer(&answers);
            self.now += LOOK_EVERY;
            self.wall += LOOK_EVERY;
        }
        self.look();
    }

    fn answer(&mut self, answers: impl Fn(&Dial) -> bool) {
        for dial in std::mem::take(&mut self.dials) {
            let is_his = |view: &&PeerView| view.listens.contains(&dial.address) || view.told.contains(&dial.address);
            let peer = self.peers.values().find(is_his).map(|view| view.peer.0);
            match peer.filter(|_| answers(&dial)) {
                Some(peer) => {
                    self.manager.dial_opened(&dial, self.now);
                    let conn = self.open(peer, dial.path.clone(), Some(20 * MS));
                    self.dialled.insert(conn, dial);
                }
                None => {
                    let end = DialEnd::Failed { reason: "no answer".to_owned(), by_peer: false };
                    self.manager.dial_ended(&dial, end, self.now);
                }
            }
        }
    }

    fn find(&mut self, peer: u32, paths: &[Arc<ScionPath>]) {
        let found = Found { paths: paths.to_vec(), narrow: Vec::new() };
        self.manager.looked_up(scion_endpoint(peer), Some(found), self.wall);
    }

    /// The paths of a peer's open connections.
    fn open_paths(&self, peer: u32) -> BTreeSet<PathId> {
        self.conns.values().filter(|(of, ..)| of.0 == peer).map(|(_, path, _)| path.id()).collect()
    }

    fn conn_over(&self, path: PathId) -> ConnId {
        *self.conns.iter().find(|(_, (_, of, _))| of.id() == path).unwrap().0
    }

    /// What was said last of a path in a choice.
    fn last_verdict(&self, path: PathId) -> Option<(Choice, String)> {
        let verdicts = |news: &PathNews| match news {
            PathNews::Chosen { verdicts, .. } => verdicts.clone(),
            PathNews::Changed { .. } => Vec::new(),
        };
        let mut all = self.news.iter().rev().flat_map(verdicts);
        all.find(|verdict| verdict.path.id() == path).map(|verdict| (verdict.choice, verdict.reason.to_string()))
    }

    fn link_down(&mut self, path: &ScionPath, conns: &[ConnId]) {
        let at = path.interfaces[1];
        self.links.goes_down(at, self.now);
        let all = &self.conns;
        let received = |id: ConnId| all.get(&id).map_or(0, |(.., measured)| measured.received_bytes);
        self.manager.on_scmp(&DownCause::LinkDown(at), conns, &received, self.now);
    }

    fn receive(&mut self, id: ConnId, bytes: u64) {
        let measured = &mut self.conns.get_mut(&id).unwrap().2;
        measured.received_bytes += bytes;
        measured.payload_bytes += bytes;
        measured.transport = Some(TransportMeasured { rtt: 20 * MS, mtu_bytes: 1200, ..TransportMeasured::default() });
    }
}

/// An uploader with one downloader that wishes for `wished` of `count` paths and came over the first.
fn uploader(wished: usize, count: u16) -> (Sim, Vec<Arc<ScionPath>>) {
    let (mut sim, paths) = (Sim::new(ManagerConfig::default()), paths_to(1, count));
    sim.downloader(1, wished);
    sim.open_scion(1, &paths[0], None);
    sim.look();
    assert_eq!(sim.lookups, [scion_endpoint(1)]);
    sim.find(1, &paths);
    (sim, paths)
}

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

/// A download from an uploader that speaks of paths and granted us those of `granted`.
fn granted(wished: usize, count: u16, granted: &[usize]) -> (Sim, Vec<Arc<ScionPath>>) {
    let (mut sim, paths) = (Sim::new(ManagerConfig { wished, ..ManagerConfig::default() }), paths_to(1, count));
    sim.scion_peer(1).is_wanted = true;
    sim.open_scion(1, &paths[0], Some(20 * MS));
    sim.look();
    assert_eq!(sim.wishes, [PathWish { paths: wished, dial: true, selector: None }]);
    sim.scion_peer(1).granted = granted.iter().map(|at| paths[*at].id()).collect();
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

#[test]
fn grants_taken_back_leave_their_paths_standing_by() {
    let (mut sim, paths) = granted(3, 4, &[1, 2]);
    sim.run(5 * SECOND, |_| true);
    let first = sim.conn_over(paths[0].id());
    assert_eq!(sim.states[&first], PathState::Standby, "it was not granted");
    sim.scion_peer(1).granted = vec![paths[1].id()];
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
    (view.is_wanted, view.granted) = (true, vec![paths[0].id(), paths[1].id()]);
    sim.open_scion(1, &paths[0], Some(20 * MS));
    sim.open_scion(1, &paths[1], None);
    sim.look();
    sim.find(1, &paths);
    sim.run(5 * SECOND, |_| true);
    assert_eq!(sim.conns.values().filter(|(_, path, _)| path.as_scion().is_none()).count(), 1);
}

#[test]
fn the_first_path_to_a_peer_keeps_out_of_the_way_of_those_in_use() {
    let (mut sim, paths) = uploader(1, 2);
    sim.look();
    // To another peer, over the same first two links.
    let there = scion_endpoint(2);
    let others: Vec<Arc<ScionPath>> = paths_to(2, 3);
    let first = |sim: &Sim| sim.manager.first_path(there, &others, &sim.links, &sim.board, sim.now).unwrap().id();
    assert_eq!(first(&sim), others[1].id(), "path 1 begins as the one in use does");
    sim.manager.tried(Endpoint::Scion(there), false);
    assert_eq!(first(&sim), others[2].id());
    sim.link_down(&others[2], &[]);
    assert_eq!(first(&sim), others[0].id());
    assert_eq!(sim.manager.first_path(there, &[], &sim.links, &sim.board, sim.now), None);
    assert_eq!(paths[0].interfaces[0], others[0].interfaces[0]);
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

// ---- what once went wrong ----

#[test]
fn a_path_that_both_ends_dial_again_at_once_is_not_down_for_ever() {
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let path = paths[1].clone();
    let conn = sim.conn_over(path.id());
    sim.link_down(&path, &[conn]);
    sim.run(CONFIRMED_AFTER + SECOND, |_| false);
    // Both open it; of two connections one is closed again, as an attempt of ours that failed.
    sim.links.works(&path);
    sim.now += 10 * SECOND;
    sim.look();
    let ours = sim.dials.pop().unwrap();
    sim.open_scion(1, &path, None);
    let end =
        DialEnd::Failed { reason: "replaced by the other connection to the same peer".to_owned(), by_peer: false };
    sim.manager.dial_ended(&ours, end, sim.now);
    sim.run(SECOND, |_| panic!("it is open"));
    assert_eq!(sim.last_verdict(path.id()).unwrap().0, Choice::Chosen);
    assert_eq!(sim.states[&sim.conn_over(path.id())], PathState::Active);
}

#[test]
fn a_path_that_is_too_narrow_is_neither_chosen_nor_dialled() {
    let (mut sim, paths) = uploader(3, 3);
    let narrow = vec![(Arc::clone(&paths[2]), 1300)];
    sim.manager.looked_up(scion_endpoint(1), Some(Found { paths: paths[..2].to_vec(), narrow }), sim.wall);
    let third = paths[2].id();
    sim.run(10 * SECOND, move |dial| {
        assert_ne!(dial.path.id(), third);
        true
    });
    let (choice, reason) = sim.last_verdict(third).unwrap();
    assert!(choice == Choice::Left && reason.contains("1300 are needed"), "{reason}");
}

#[test]
fn a_choice_made_while_a_path_failed_is_made_again_when_it_works() {
    // It was told as "down at the moment" until something else changed, though it carried.
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let conn = sim.conn_over(paths[1].id());
    sim.link_down(&paths[1], &[conn]);
    sim.run(CONFIRMED_AFTER + SECOND, |_| false);
    assert_eq!(sim.last_verdict(paths[1].id()).unwrap().1, "down at the moment");
    // The peer opens it; that the link works is known from that alone.
    sim.links.works(&paths[1]);
    sim.open_scion(1, &paths[1], None);
    sim.look();
    assert_eq!(sim.last_verdict(paths[1].id()).unwrap().0, Choice::Chosen);
}

#[test]
fn a_path_is_named_when_a_lookup_knows_it_at_last() {
    let (mut sim, _) = uploader(2, 1);
    let third = &paths_to(1, 3)[2];
    let mut unnamed = ScionPath::clone(third);
    unnamed.interfaces[1].isd_as = IsdAs::default();
    let conn = sim.open_scion(1, &Arc::new(unnamed), None);
    sim.run(SECOND, |_| true);
    assert_ne!(sim.conns[&conn].1.id(), third.id());
    let said = sim.news.len();
    sim.find(1, &paths_to(1, 3));
    sim.look();
    let is_told = |news: &PathNews| matches!(news, PathNews::Changed { path, .. } if path.id() == third.id());
    assert!(sim.news[said..].iter().any(is_told), "what was said under another name is said again");
    sim.run(SECOND, |_| true);
    assert_eq!((sim.conns[&conn].1.id(), sim.states[&conn]), (third.id(), PathState::Active));
}

#[test]
fn of_two_connections_over_one_path_one_may_go() {
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let other = sim.open_scion(1, &paths[1], None);
    sim.look();
    let said = sim.news.len();
    sim.close(other, true);
    sim.run(SECOND, |_| panic!("the path is open"));
    assert!(
        !sim.news[said..].iter().any(|news| matches!(news, PathNews::Changed { condition: PathCondition::Gone, .. }))
    );
    assert_eq!(sim.last_verdict(paths[1].id()).unwrap().0, Choice::Chosen);
}

#[test]
fn a_path_that_comes_back_while_lookups_leave_it_out_is_known_by_its_numbers() {
    // The peer dialled back before the daemon named the path again: it was taken for another one, and its own stayed down.
    let (mut sim, paths) = uploader(2, 2);
    sim.run(SECOND, |_| true);
    let conn = sim.conn_over(paths[1].id());
    sim.link_down(&paths[1], &[conn]);
    sim.run(CONFIRMED_AFTER + SECOND, |_| false);
    sim.find(1, &paths[..1]);
    let mut unnamed = ScionPath::clone(&paths[1]);
    unnamed.interfaces[1].isd_as = IsdAs::default();
    unnamed.interfaces[2].isd_as = IsdAs::default();
    assert_ne!(unnamed.id(), paths[1].id());
    sim.links.works(&paths[1]);
    sim.open_scion(1, &Arc::new(unnamed), None);
    sim.look();
    assert_eq!(sim.last_verdict(paths[1].id()).unwrap().0, Choice::Chosen);
    assert!(sim.open_paths(1).contains(&paths[1].id()));
}

#[test]
fn whatever_happens_bounds_hold_and_nothing_stays_behind() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let config = ManagerConfig {
            wished: random.usize(1..20),
            connections: random.usize(1..12),
            chooses_alone: random.u8(..) < 60,
            ..ManagerConfig::default()
        };
        let (connections, mut sim) = (config.connections, Sim::new(config));
        sim.uplinks = vec![[10, 0, 0, 1].into(), [10, 0, 1, 1].into()];
        for _ in 0..300 {
            let peer = random.u32(1..6);
            match random.u8(..12) {
                0 => sim.downloader(peer, random.usize(..40)),
                1 => sim.scion_peer(peer).is_wanted = random.bool(),
                2 => sim.scion_peer(peer).listens.push(ip_endpoint(random.u32(1..6)).into()),
                3 => {
                    let granted = paths_to(peer, 5).iter().filter(|_| random.bool()).map(|path| path.id()).collect();
                    sim.scion_peer(peer).granted = granted;
                }
                4 => {
                    sim.scion_peer(peer);
                    let path = &paths_to(peer, 5)[random.usize(..5)];
                    sim.open_scion(peer, path, random.bool().then_some(20 * MS));
                }
                5 => {
                    sim.scion_peer(peer);
                    let local = sim.uplinks.first().copied().unwrap_or([10, 0, 0, 9].into());
                    sim.open(peer, Path::ip(local, ip_endpoint(peer).ip()), random.bool().then_some(20 * MS));
                }
                6 => {
                    let conn = sim.conns.keys().nth(random.usize(..=sim.conns.len())).copied();
                    conn.into_iter().for_each(|conn| sim.close(conn, random.bool()));
                }
                7 => sim.find(peer, &paths_to(peer, random.u16(..30))),
                8 => sim.link_down(&paths_to(peer, 5)[random.usize(..5)], &[]),
                9 => {
                    sim.uplinks = (0..random.u8(..3)).map(|n| IpAddr::from([10, 0, n, 1])).collect();
                    sim.version += 1;
                }
                10 => {
                    let conn = sim.conns.keys().nth(random.usize(..=sim.conns.len())).copied();
                    conn.into_iter().for_each(|conn| sim.receive(conn, random.u64(..100_000)));
                }
                _ => sim.scion_peer(peer).wish = None,
            }
            let opens = random.bool();
            sim.run(LOOK_EVERY * random.u32(..8), |_| opens);
            let chosen = sim.manager.hosts.values().map(|host| host.uploads.chosen.len() + host.fetches.chosen.len());
            assert!(chosen.sum::<usize>() <= connections, "seed {seed}");
            for host in sim.manager.hosts.values() {
                assert!(host.dials_under_way() <= PATHS_PER_PEER_MAX, "seed {seed}");
            }
            for (id, (_, path, _)) in &sim.conns {
                assert!(sim.states.contains_key(id), "seed {seed}: nothing was said of {path}");
            }
        }
        let all: Vec<ConnId> = sim.conns.keys().copied().collect();
        all.into_iter().for_each(|conn| sim.close(conn, true));
        sim.look();
        let manager = &sim.manager;
        assert!(manager.hosts.is_empty() && manager.lookups.is_empty() && manager.conns.is_empty(), "seed {seed}");
        assert_eq!(manager.next_look(sim.now), None, "seed {seed}");
    }
}
