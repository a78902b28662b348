//! Several paths to one peer: which there are, which are chosen, and what becomes of each.
//!
//! A connection belongs to one path for life ([`Way`]); the core knows which connections are one peer's and spreads requests
//! over them. Here is decided which connections there are, by one task a content ([`steer`]):
//!
//! - **The uploader decides.** A downloader connects over one path and wishes for more. The uploader selects over the paths to
//!   all its downloaders ([`choose`]), says which it grants, and dials back over those that have no connection yet. A
//!   downloader that cannot be dialled, or that nobody dialled for [`GRANT_PATIENCE`], dials what it was granted.
//! - **The downloader decides** where the uploader cannot: it does not know the extension, is reached over plain IP, or our
//!   user restricts the paths.
//! - What is not chosen but connected stands by: nothing is asked for over it while a chosen path works.
//! - A path that fails, by the network's word or by silence, is left at once, the choice is made anew without it, and it is
//!   tried again until it works.
//!
//! | module | what it does |
//! | --- | --- |
//! | `attempt` | when a path that did not open is tried again |
//! | `choose` | who chooses for whom, selection, grants, which connections to open |
//! | `ip` | paths over plain IP: our interfaces, their addresses |
//! | `occasion` | when a choice is made, and what of it is news |
//! | `steer` | the task: news, lookups, measuring, telling |

mod attempt;
mod choose;
mod ip;
mod occasion;
mod steer;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::torrent::PathState;
use anabranch_bittorrent::{ConnId, PeerKey};
use anabranch_paths::select::{Choice, Selector};
use anabranch_paths::{Endpoint, Path, PathId, ScionAddr, ScionPath};
use anabranch_scion::socket::RouteId;
use anabranch_transport::QuicRoute;
use tokio::sync::Notify;

use crate::events::EventKind;
use crate::torrent::{ConnHandle, State};

use attempt::Attempt;
use ip::IpDesk;
pub use ip::WaysOut;
use occasion::{Decision, Occasion};
pub use steer::steer;

/// How long the uploader has for dialling what it granted before we do.
const GRANT_PATIENCE: Duration = Duration::from_secs(2);

/// Addresses whose failed attempts are remembered: as many as a content knows of.
const FAILURES_MAX: usize = 4096;

/// How paths are chosen.
#[derive(Clone, Debug)]
pub struct PathsConfig {
    /// Paths wished for to one peer, those it has among them; 1: one is enough.
    pub wished: usize,
    /// Paths granted to one peer at most.
    pub granted: usize,
    /// Connections that are chosen at most, over all paths to all peers of a content.
    pub connections: usize,
    /// How to choose; `None`: as the peers wish, or [`Selector::Disjoint`] where they differ.
    pub selector: Option<Selector>,
    /// Network interfaces that connections over plain IP may leave by; empty: all.
    pub interfaces: Vec<String>,
}

impl Default for PathsConfig {
    /// One path a peer, and as many as a downloader wishes.
    fn default() -> Self {
        let granted = anabranch_bittorrent::torrent::PATHS_PER_PEER_MAX;
        Self { wished: 1, granted, connections: 64, selector: None, interfaces: Vec::new() }
    }
}

/// What becomes of a path, for people and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathCondition {
    /// It carries content.
    Active,
    /// Its connection is kept for when it is needed.
    Standby,
    /// Nothing gets through at present.
    Down,
    /// Its connection is closed.
    Gone,
}

impl fmt::Display for PathCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Down => "down",
            Self::Gone => "gone",
        })
    }
}

/// A path to a peer, whether it was chosen, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct PathVerdict {
    /// The path.
    pub path: Path,
    /// What becomes of it.
    pub choice: Choice,
    /// Whether the reason is that it does not work at the moment.
    pub is_down: bool,
    /// Why.
    pub reason: String,
}

/// One path's connection, for progress.
#[derive(Clone, Debug, PartialEq)]
pub struct PathProgress {
    /// Who is at its end.
    pub peer: Endpoint,
    /// The path.
    pub path: Path,
    /// What becomes of it.
    pub condition: PathCondition,
    /// Bytes per second from the peer.
    pub download_rate_bytes: u64,
    /// Bytes per second to the peer.
    pub upload_rate_bytes: u64,
    /// Payload from the peer.
    pub downloaded_bytes: u64,
    /// Payload to the peer.
    pub uploaded_bytes: u64,
    /// Round-trip time, once measured.
    pub rtt: Option<Duration>,
    /// Packets lost so far.
    pub lost_packets: u64,
    /// Whether there may be other paths to the same peer.
    pub is_one_of_many: bool,
}

/// A connection's path, and what was seen of it.
pub struct Way {
    /// Who is at its end.
    pub address: Endpoint,
    /// The path, seen from here.
    pub path: Path,
    /// Its way through SCION.
    pub route: Option<QuicRoute>,
    /// How long opening it took, where we did.
    pub handshake: Option<Duration>,
    /// Reaches its task, and has what the transport measured.
    pub handle: Rc<ConnHandle>,
    /// What was measured up to now.
    seen: Seen,
    /// When payload moved last.
    moved: Option<Instant>,
    /// Since when it does not work, and what had been received by then.
    down: Option<(Instant, u64)>,
    told: Option<PathCondition>,
    /// Over plain IP: there are other ways to its peer.
    has_alternatives: bool,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    payload_bytes: u64,
    sent_packets: u64,
    lost_packets: u64,
    rtt_min: Option<Duration>,
}

impl Way {
    /// A new connection's.
    pub fn new(
        address: Endpoint,
        path: Path,
        route: Option<QuicRoute>,
        handshake: Option<Duration>,
        handle: Rc<ConnHandle>,
    ) -> Self {
        Self {
            address,
            path,
            route,
            handshake,
            handle,
            seen: Seen::default(),
            moved: None,
            down: None,
            told: None,
            has_alternatives: false,
        }
    }

    /// Bytes that came over it, whatever they were.
    fn received_bytes(&self) -> u64 {
        self.route.as_ref().map_or(0, QuicRoute::received_bytes)
    }

    /// Whether it is this route of the socket's.
    fn is_route(&self, route: RouteId) -> bool {
        self.route.as_ref().is_some_and(|ours| ours.id() == route)
    }

    /// Whether there may be more than one path of its kind.
    fn is_one_of_many(&self) -> bool {
        self.has_alternatives || self.path.as_scion().is_some_and(|path| !path.interfaces.is_empty())
    }
}

/// What a lookup brought.
struct Found {
    paths: Vec<Arc<ScionPath>>,
    /// Paths whose packets are too small for a connection, and the MTU that each would need.
    narrow: Vec<(Arc<ScionPath>, u16)>,
    at: Instant,
}

impl Found {
    /// What is said of the paths that are no candidates.
    fn narrow_verdicts(&self, local: IpAddr, remote: IpAddr) -> impl Iterator<Item = PathVerdict> {
        self.narrow.iter().map(move |(path, needed)| PathVerdict {
            path: Path::scion(local, remote, Arc::clone(path)),
            choice: Choice::Left,
            is_down: false,
            reason: format!("too narrow for QUIC: it takes packets of {} bytes, and {needed} are needed", path.mtu),
        })
    }
}

/// What is known and decided of a content's paths. Bounded by the core's connections and by what lookups bring for them.
#[derive(Default)]
pub struct Desk {
    /// Wakes the task.
    pub wake: Rc<Notify>,
    ways: HashMap<ConnId, Way>,
    found: HashMap<ScionAddr, Found>,
    decisions: BTreeMap<PeerKey, Decision>,
    /// What peers granted us, and since when.
    granted: HashMap<(PeerKey, PathId), Instant>,
    /// Paths over which an uploader dialled us since it said what it grants: it will say so of these.
    implied: HashSet<(PeerKey, PathId)>,
    attempts: HashMap<(PeerKey, PathId), Attempt>,
    /// Paths that failed while they were of use: tried again.
    lost: HashSet<(PeerKey, PathId)>,
    handshakes: HashMap<PathId, Duration>,
    occasion: Occasion,
    wished: bool,
    /// Failed attempts to reach an address at all.
    failures: HashMap<Endpoint, usize>,
    /// The paths over plain IP.
    ip: IpDesk,
}

impl Desk {
    /// `path`, as a caller's packets tell it, with the ASes that a lookup named, now or before: one that failed lately is left out by
    /// those who look paths up for us, and comes back all the same. `None` where there is nothing to add.
    pub fn named(&self, path: &Path) -> Option<Path> {
        let told = path.as_scion().filter(|told| !told.is_named_throughout())?;
        let mut known = self.found.values().flat_map(|found| &found.paths);
        let same = known.find(|known| known.is_same_way(told))?;
        Some(Path::scion(path.local(), path.remote(), Arc::clone(same)))
    }

    /// Whether a connection over `path` to `address` is open and works.
    fn carries(&self, address: Endpoint, path: PathId) -> bool {
        self.ways.values().any(|way| way.address == address && way.path.id() == path && way.down.is_none())
    }

    /// Whether a connection to `address` is open.
    pub fn reaches(&self, address: Endpoint) -> bool {
        self.ways.values().any(|way| way.address == address)
    }

    /// Attempts to reach `address` that failed in a row.
    pub fn failures(&self, address: Endpoint) -> usize {
        self.failures.get(&address).copied().unwrap_or(0)
    }

    /// An attempt to reach `address` ended.
    pub fn tried(&mut self, address: Endpoint, reached: bool) {
        if reached {
            self.failures.remove(&address);
            return;
        }
        if self.failures.len() >= FAILURES_MAX {
            // Which way is tried next is forgotten, and no more.
            self.failures.clear();
        }
        *self.failures.entry(address).or_default() += 1;
    }

    /// `address` will not be dialled any more.
    pub fn forget_address(&mut self, address: Endpoint) {
        self.failures.remove(&address);
    }

    /// How long until connections have to be looked at again, while there is anything to choose among or to watch.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let over_ip = self.ip.pause(self.ways.values(), now);
        let is_busy = self.ways.values().any(Way::is_one_of_many) || !self.lost.is_empty();
        let busy = is_busy.then_some(steer::LOOK_EVERY);
        busy.into_iter().chain(over_ip).min()
    }

    /// The choice is to be made anew, and why.
    fn reconsider(&mut self, why: impl Into<String>) {
        self.occasion.reconsider(why);
        self.wake.notify_one();
    }

    fn forget(&mut self, peer: PeerKey) {
        self.decisions.remove(&peer);
        self.granted.retain(|(of, _), _| *of != peer);
        self.implied.retain(|(of, _)| *of != peer);
        self.attempts.retain(|(of, _), attempt| *of != peer || attempt.is_under_way());
        self.lost.retain(|(of, _)| *of != peer);
    }
}

impl State {
    /// A connection is open.
    pub fn path_joined(&mut self, id: ConnId, way: Way) {
        if let (Some(path), Some(net)) = (way.path.as_scion(), &self.session().scion) {
            net.works(path);
        }
        let (path, peer) = (way.path.id(), self.core.peer_of(id));
        if let Some(handshake) = way.handshake {
            self.desk.handshakes.insert(path, handshake);
        }
        if let Some(peer) = peer
            && self.desk.lost.remove(&(peer, path))
        {
            self.desk.reconsider(format!("{} works again", way.path));
        }
        if let Some(peer) = peer.filter(|_| way.handshake.is_none()) {
            self.desk.implied.insert((peer, path));
        }
        if way.is_one_of_many() {
            self.desk.reconsider("a peer connected");
        }
        self.desk.ip.joined(&way, Instant::now());
        self.desk.wake.notify_one();
        self.desk.ways.insert(id, way);
    }

    /// A connection is gone; `by_peer`: the peer closed it. Call while the core still knows it.
    pub fn path_left(&mut self, id: ConnId, by_peer: bool, reason: &str) {
        let Some(way) = self.desk.ways.remove(&id) else { return };
        if let Some(peer) = self.core.peer_of(id).filter(|_| way.down.is_none()) {
            self.desk.ip.left(peer, &way, Instant::now());
        }
        if !way.is_one_of_many() {
            return;
        }
        let reached = self.core.peer_of(id);
        // Of two over one path, which both sides opened at once, one goes, and the path stays.
        if self.desk.carries(way.address, way.path.id()) {
            return self.desk.wake.notify_one();
        }
        self.tell(EventKind::PathChanged {
            peer: way.address,
            path: way.path.clone(),
            condition: PathCondition::Gone,
            reason: reason.to_owned(),
        });
        let Some(peer) = reached else { return };
        let (key, chosen) = ((peer, way.path.id()), self.desk.decisions.get(&peer));
        let was_of_use =
            self.desk.granted.contains_key(&key) || chosen.is_some_and(|decision| decision.chosen.contains(&key.1));
        // What was down is not among the chosen any more, and either side may have given it up: it failed all the same.
        if (was_of_use && !by_peer || way.down.is_some()) && self.desk.reaches(way.address) {
            self.desk.lost.insert(key);
        }
        self.desk.reconsider(format!("the connection over {} ended: {reason}", way.path));
    }

    /// Names the paths of connections that came about before anybody could say which ASes they pass.
    fn name_paths(&mut self) {
        let named = |(id, way): (&ConnId, &Way)| Some((*id, self.desk.named(&way.path)?));
        let named: Vec<(ConnId, Path)> = self.desk.ways.iter().filter_map(named).collect();
        for (id, path) in named {
            let Some(way) = self.desk.ways.get_mut(&id) else { continue };
            let before = std::mem::replace(&mut way.path, path.clone());
            let is_accepted = way.handshake.is_none();
            self.core.name_path(id, path.id());
            if let Some(peer) = self.core.peer_of(id).filter(|_| is_accepted) {
                self.desk.implied.remove(&(peer, before.id()));
                self.desk.implied.insert((peer, path.id()));
            }
            self.desk.reconsider(format!("{path} is known"));
        }
    }

    /// The path of `id` stopped working, or works again.
    fn set_path_down(&mut self, id: ConnId, reason: Option<&str>, now: Instant) {
        let Some(way) = self.desk.ways.get_mut(&id) else { return };
        match reason {
            Some(_) => way.down = way.down.or(Some((now, way.received_bytes()))),
            None => way.down = None,
        }
        let why = match reason {
            Some(reason) => format!("{} fails: {reason}", way.path),
            None => format!("{} works after all", way.path),
        };
        if reason.is_some() {
            self.core.set_path_state(id, PathState::Down, now);
        }
        self.set_condition(id, if reason.is_some() { PathCondition::Down } else { PathCondition::Active }, &why);
        self.desk.reconsider(why);
    }

    /// Tells what became of a path, where that is new.
    fn set_condition(&mut self, id: ConnId, condition: PathCondition, reason: &str) {
        let Some(way) = self.desk.ways.get_mut(&id) else { return };
        if !way.is_one_of_many() || way.told.replace(condition) == Some(condition) {
            return;
        }
        let (peer, path) = (way.address, way.path.clone());
        self.tell(EventKind::PathChanged { peer, path, condition, reason: reason.to_owned() });
    }

    /// Its connections, each with its path.
    pub fn path_progress(&mut self, now: Instant) -> Vec<PathProgress> {
        let line = |peer: anabranch_bittorrent::torrent::PeerStats| {
            let way = self.desk.ways.get(&peer.conn)?;
            let stats = way.handle.stats();
            Some(PathProgress {
                peer: way.address,
                path: way.path.clone(),
                condition: way.told.unwrap_or(PathCondition::Active),
                download_rate_bytes: peer.download_rate_bytes,
                upload_rate_bytes: peer.upload_rate_bytes,
                downloaded_bytes: peer.downloaded_bytes,
                uploaded_bytes: peer.uploaded_bytes,
                rtt: stats.map(|stats| stats.rtt),
                lost_packets: stats.map_or(0, |stats| stats.lost_packets),
                is_one_of_many: way.is_one_of_many(),
            })
        };
        self.core.peer_stats(now).into_iter().filter_map(line).collect()
    }
}
