//! The manager against a simulated network: virtual time, paths that break and heal, peers that answer, lie or stay silent.

mod choosing;
mod failing;
mod granting;
mod regressions;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

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

fn grant(path: &Arc<ScionPath>) -> GrantedPath {
    GrantedPath::over(&path.interfaces)
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
    third_party: Vec<(Vec<Interface>, u32)>,
    /// Our addresses, each an uplink; and how often that changed.
    uplinks: Vec<IpAddr>,
    version: u64,
    /// How often a connection was measured.
    measured: Cell<usize>,
    /// What was handed out.
    dials: Vec<Dial>,
    lookups: Vec<ScionAddr>,
    /// The last lookup is for what the peer uses and no answer named.
    has_sought: bool,
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
            third_party: Vec::new(),
            uplinks: Vec::new(),
            version: 0,
            measured: Cell::new(0),
            dials: Vec::new(),
            lookups: Vec::new(),
            has_sought: false,
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
            uplinks: Vec::new(),
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
        let cause = if by_peer { EndCause::ClosedByPeer } else { EndCause::Network("reset".to_owned()) };
        self.manager.left(id, Some(peer), cause, self.now);
        self.states.remove(&id);
        if let Some(dial) = self.dialled.remove(&id) {
            self.manager.dial_ended(&dial, DialEnd::Closed, self.now);
        }
    }

    fn look(&mut self) {
        let peers: Vec<PeerView> = self.peers.values().filter(|view| !view.conns.is_empty()).cloned().collect();
        let (conns, uplinks, count) = (&self.conns, &self.uplinks, &self.measured);
        let measure = |id: ConnId| {
            count.set(count.get() + 1);
            conns.get(&id).map_or_else(Measured::default, |(.., measured)| *measured)
        };
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
            third_party: &|| self.third_party.clone(),
            links: &mut self.links,
            board: &mut self.board,
        };
        self.manager.look(&mut inputs, self.now, self.wall);
        let mut closed = Vec::new();
        while let Some(action) = self.manager.poll_action() {
            match action {
                Action::LookUp { address, seeks } => {
                    self.lookups.push(address);
                    self.has_sought = seeks;
                }
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
                    let cause = EndCause::Network("no answer".to_owned());
                    let end = DialEnd::Failed { cause, by_peer: false };
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
                    let granted = paths_to(peer, 5).iter().filter(|_| random.bool()).map(grant).collect();
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
