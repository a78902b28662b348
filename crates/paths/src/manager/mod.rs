//! Which paths a content's transfer uses, decided by one state machine: what was seen goes in with the time, what is to be done
//! comes out.
//!
//! A connection belongs to one path for life. The protocol knows which connections are one peer's, and spreads requests over
//! them. Decided here is which connections there are:
//!
//! - **The uploader decides.** A downloader connects over one path and wishes for more. The uploader selects over the paths to
//!   all its downloaders, says which it grants, and dials back over those that have no connection yet. A downloader that cannot
//!   be dialled, or that nobody dialled for [`GRANT_PATIENCE`], dials what it was granted.
//! - **The downloader decides** where the uploader cannot: the peer does not know the extension, is reached over plain IP, or our
//!   user restricts the paths.
//! - What is not chosen but connected stands by: nothing is asked for over it while a chosen path works.
//! - A path that fails, by the network's word or by silence, is left at once, the choice is made anew without it, and it is
//!   tried again until it works.
//!
//! Paths through SCION and over plain IP are candidates of one kind: they are chosen by one selector, within one budget, and
//! given up and tried again by the same rules.
//!
//! The driver calls [`PathManager::look`] when something happened, and when [`PathManager::next_look`] says so; then it does
//! what [`PathManager::poll_action`] hands out, and reports how it went. No socket, no clock, no thread: a run is a
//! function of its inputs.
//!
//! | module | what it does |
//! | --- | --- |
//! | `hosts` | who is at the end of which connections, and by which ways it is reached |
//! | `choose` | who chooses for whom, selection, grants, which connections to open |
//! | `conns` | what becomes of each connection: measured, down, confirmed, standing by |
//! | `dials` | attempts: when one that failed is made again |
//! | `trigger` | when a choice is made, and what of it is news |
//! | `first` | the first connection to a peer |
//! | `reason` | why: typed as far as the event that tells it |
//! | `links` | which links of the SCION network are down |

mod backoff;
mod choose;
mod conns;
mod dials;
mod first;
mod hosts;
mod links;
mod reason;
#[cfg(test)]
mod tests;
mod trigger;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::scoreboard::ThirdPartyLoad;
use crate::select::Selector;
use crate::{ConnId, Endpoint, Interface, IsdAs, Path, PathId, PathState, PeerKey, ScionAddr, ScionPath, Scoreboard};

use choose::path_id;
use conns::Connection;
pub use dials::DialEnd;
pub use first::FirstIp;
use hosts::Host;
pub use hosts::{HostId, REMOTES_MAX};
pub use links::LinkHealth;
pub use reason::{
    ChangeReason, CloseReason, DownCause, EndCause, PathCondition, PathNews, PathVerdict, Trigger, VerdictReason,
};
use trigger::SelectionTrigger;

/// Connections of one address-level peer, each over a path of its own: twice what the largest of our measurements uses, and it
/// bounds every loop over a peer's paths.
pub const PATHS_PER_PEER_MAX: usize = 16;
/// How long the uploader has for dialling what it granted before we do.
pub const GRANT_PATIENCE: Duration = Duration::from_secs(2);
/// How often connections are looked at, while there are paths to choose among.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The same where there is nothing to choose but uplinks may come and go, and peers: well within the time that a user waits for.
pub const UPLINKS_EVERY: Duration = Duration::from_secs(1);
/// How often paths are looked up anew; the lookup itself keeps them fresh and answers from memory.
const FOUND_FOR: Duration = Duration::from_secs(2);
/// How long a choice waits for the first answer of a lookup.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(2);
/// Addresses whose failed attempts are remembered: as many as a content knows of.
const FAILURES_MAX: usize = 4096;
/// Paths of which it is remembered how long they took to open.
const HANDSHAKES_MAX: usize = 4096;

/// What the user wants of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerConfig {
    /// Paths wished for to one peer, those it has among them; 1: one is enough.
    pub wished: usize,
    /// Paths granted to one peer at most.
    pub granted: usize,
    /// Connections that are chosen at most, over all paths to all peers, through SCION and over IP together.
    pub connections: usize,
    /// How to choose; `None`: as the peers wish, or [`Selector::Disjoint`] where they differ.
    pub selector: Option<Selector>,
    /// The user restricts the paths through SCION: nobody else may choose among them.
    pub chooses_alone: bool,
    /// Our own host in our AS, where there is SCION.
    pub scion_host: Option<IpAddr>,
    /// Nothing below the protocol notices that nothing comes: connections through SCION are given up for silence as those over IP
    /// are.
    pub leaves_silent: bool,
}

impl Default for ManagerConfig {
    /// One path a peer, and as many as a downloader wishes, over plain IP.
    fn default() -> Self {
        Self {
            wished: 1,
            granted: PATHS_PER_PEER_MAX,
            connections: 64,
            selector: None,
            chooses_alone: false,
            scion_host: None,
            leaves_silent: false,
        }
    }
}

/// What a downloader wants of an uploader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathWish {
    /// Paths between the two, the one it has among them.
    pub paths: usize,
    /// It can be dialled.
    pub dial: bool,
    /// How to choose.
    pub selector: Option<Selector>,
}

/// A connected peer, as its protocol knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerView {
    /// Which.
    pub peer: PeerKey,
    /// Its connections that are not about to end, oldest first.
    pub conns: Vec<ConnId>,
    /// At which of its uplinks connections of its are, as far as it says: the same number, the same uplink.
    pub uplinks: Vec<(ConnId, u32)>,
    /// Where it showed that it can be dialled, each address once.
    pub listens: Vec<Endpoint>,
    /// Where it says that it can be dialled besides.
    pub told: Vec<Endpoint>,
    /// What it calls itself: a claim, unless the protocol knows all connections that make it as one peer's.
    pub name: Option<[u8; 32]>,
    /// It can be wished paths of, and grants them.
    pub speaks_paths: bool,
    /// What it wants of us.
    pub wish: Option<PathWish>,
    /// The paths that it granted us.
    pub granted: Vec<GrantedPath>,
    /// It wants content of ours.
    pub is_interested: bool,
    /// We serve it.
    pub is_served: bool,
    /// It has content that we want.
    pub is_wanted: bool,
}

/// A path that a peer granted us, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantedPath {
    /// Which.
    pub id: PathId,
    /// What it is called as long as only its packets tell of it: by the numbers of its interfaces, and the ASes at its ends.
    pub id_told: PathId,
}

impl GrantedPath {
    /// The path over these interfaces, from here to the peer.
    pub fn over(interfaces: &[Interface]) -> Self {
        let last = interfaces.len().saturating_sub(1);
        let as_told = |(at, interface): (usize, &Interface)| match at {
            at if at == 0 || at == last => *interface,
            _ => Interface { isd_as: IsdAs::default(), ..*interface },
        };
        let told: Vec<Interface> = interfaces.iter().enumerate().map(as_told).collect();
        Self { id: path_id(interfaces), id_told: path_id(&told) }
    }
}

/// What a connection did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Bytes that came over it, whatever they were.
    pub received_bytes: u64,
    /// Bytes that left over it, whatever they were; 0 where nobody acknowledges them.
    pub sent_bytes: u64,
    /// Payload that moved over it, both ways.
    pub payload_bytes: u64,
    /// It was asked for something that did not come yet.
    pub owes: bool,
    /// What the transport measured, once it did.
    pub transport: Option<TransportMeasured>,
}

/// What a connection's transport measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportMeasured {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Packets of these that were lost.
    pub lost_packets: u64,
    /// Bytes of a full packet; 0 where that is not known.
    pub mtu_bytes: u64,
}

/// A way to a host over plain IP: one of our addresses with one of its.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpCandidate {
    /// The path.
    pub path: Path,
    /// The host's address.
    pub remote: SocketAddr,
    /// What stands for the interface that it leaves by, whichever of its addresses packets leave from.
    pub uplink: IpAddr,
    /// The interface's name.
    pub interface: String,
}

/// The ways out of this machine over plain IP.
pub struct Uplinks<'a> {
    /// Counts the times that interfaces came or went.
    pub version: u64,
    /// Where peers reach us.
    pub own: &'a [SocketAddr],
    /// Our addresses, each with each of these that it reaches.
    pub pair: &'a dyn Fn(&[SocketAddr]) -> Vec<IpCandidate>,
    /// Whether an address is ours still.
    pub has: &'a dyn Fn(IpAddr) -> bool,
}

/// What there is to see when the manager looks.
pub struct Inputs<'a> {
    /// Who is connected.
    pub peers: &'a [PeerView],
    /// There is nothing left to fetch.
    pub is_finished: bool,
    /// What each connection did.
    pub measure: &'a dyn Fn(ConnId) -> Measured,
    /// How peers are reached over plain IP; `None`: only where they are.
    pub uplinks: Option<Uplinks<'a>>,
    /// Paths that others told they use, as the interfaces passed, and how many use each.
    pub third_party: &'a dyn Fn() -> Vec<(Vec<Interface>, u32)>,
    /// What is known of links, for all contents.
    pub links: &'a mut LinkHealth,
    /// What is measured of paths, for all contents.
    pub board: &'a mut Scoreboard,
}

/// A connection to open.
#[derive(Clone, Debug, PartialEq)]
pub struct Dial {
    /// To whom.
    pub host: HostId,
    /// Where it listens.
    pub address: Endpoint,
    /// Over which path.
    pub path: Path,
    /// How long that may take.
    pub patience: Duration,
}

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Look up the paths to an address, and call [`PathManager::looked_up`] however that ends.
    LookUp {
        /// The address.
        address: ScionAddr,
        /// The peer uses or grants a path that no lookup named: there is more to be found than before.
        seeks: bool,
    },
    /// Say what we want of uploaders.
    Wish(PathWish),
    /// Say to a peer which paths it may use.
    Grant {
        /// The peer.
        peer: PeerKey,
        /// Seen from here.
        paths: Vec<Arc<ScionPath>>,
    },
    /// Open a connection, then call [`PathManager::dial_opened`], and [`PathManager::dial_ended`] in any case.
    Dial(Dial),
    /// Ask for content over a connection, or not.
    SetState {
        /// The connection.
        conn: ConnId,
        /// What becomes of its path.
        state: PathState,
    },
    /// Close a connection.
    Close {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
    /// The path of a connection is known better than when it opened.
    Name {
        /// The connection.
        conn: ConnId,
        /// Its path.
        path: Path,
    },
    /// Tell whoever wants to know.
    Tell(PathNews),
}

/// A connection that opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Opened {
    /// Who is at its end.
    pub address: Endpoint,
    /// The path, seen from here.
    pub path: Path,
    /// How long opening it took, where we did.
    pub handshake: Option<Duration>,
}

/// What a lookup brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Paths that may be used, best first.
    pub paths: Vec<Arc<ScionPath>>,
    /// Paths whose packets are too small for what they have to hold, and the MTU that each would need.
    pub narrow: Vec<(Arc<ScionPath>, u16)>,
}

/// What is known of the paths to an address.
#[derive(Debug, Default)]
struct Lookup {
    /// Those that may be used, best first.
    paths: Vec<Path>,
    /// Those that are too narrow, and the MTU that each would need.
    narrow: Vec<(Path, u16)>,
    /// When it was asked for last, and at first.
    asked_at: Option<Instant>,
    first_asked_at: Option<Instant>,
    /// An answer came, be it that there is none.
    is_answered: bool,
}

/// Chooses the paths of one content. Bounded by the connections, by what lookups bring for them, and by constants.
#[derive(Debug)]
pub struct PathManager {
    config: ManagerConfig,
    conns: BTreeMap<ConnId, Connection>,
    hosts: BTreeMap<HostId, Host>,
    of_peer: HashMap<PeerKey, HostId>,
    of_address: HashMap<SocketAddr, HostId>,
    next_host: u32,
    lookups: BTreeMap<ScionAddr, Lookup>,
    handshakes: HashMap<PathId, Duration>,
    /// Failed attempts to reach an address at all.
    failures: HashMap<Endpoint, usize>,
    trigger: SelectionTrigger,
    /// The paths that others use, as the peers of this content told at the last choice.
    third_party: ThirdPartyLoad,
    has_wished: bool,
    /// The state of the interfaces that candidates were made of.
    uplinks_version: Option<u64>,
    ip_joined_at: Option<Instant>,
    /// When connections were measured last.
    measured_at: Option<Instant>,
    actions: VecDeque<Action>,
}

impl PathManager {
    /// One that knows nobody yet.
    pub fn new(config: ManagerConfig) -> Self {
        Self {
            config,
            conns: BTreeMap::new(),
            hosts: BTreeMap::new(),
            of_peer: HashMap::new(),
            of_address: HashMap::new(),
            next_host: 0,
            lookups: BTreeMap::new(),
            handshakes: HashMap::new(),
            failures: HashMap::new(),
            trigger: SelectionTrigger::default(),
            third_party: ThirdPartyLoad::default(),
            has_wished: false,
            uplinks_version: None,
            ip_joined_at: None,
            measured_at: None,
            actions: VecDeque::new(),
        }
    }

    /// Looks at everything: what works, what is chosen, what is to be opened. `wall` is what the ends of paths are told by.
    pub fn look(&mut self, inputs: &mut Inputs<'_>, now: Instant, wall: SystemTime) {
        self.confirm_down(inputs, now);
        let unanswered = self.measure(inputs, now);
        self.regroup(inputs.peers);
        self.find_over_ip(inputs, now);
        self.ask_lookups(inputs.peers, inputs.is_finished, now);
        self.notice_what_is_open();
        self.wish(inputs.peers);
        self.apply_grants(inputs.peers, now);
        let clients = self.clients(inputs.peers, inputs.is_finished, now);
        let granted = self.granted_to_us(inputs.is_finished);
        if self.is_choice_due(&clients, granted, inputs.links, now) {
            self.decide(&clients, granted, inputs, now);
        }
        self.leave_silent(&clients, inputs.measure, now);
        self.leave_unanswered(unanswered, now);
        self.act_on_decisions(&clients, now, wall);
        self.dial_grants(now, wall);
        self.set_states(inputs.peers);
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to look again, though nothing happens.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        let is_busy =
            self.conns.values().any(Connection::is_one_of_many) || self.hosts.values().any(Host::is_short_of_paths);
        let early = self.ip_joined_at.filter(|at| now.saturating_duration_since(*at) < hosts::EARLY);
        let over_ip = self.conns.values().any(Connection::leaves_by_ip);
        let over_scion = self.conns.values().any(|conn| conn.path.as_scion().is_some());
        let pauses = [
            is_busy.then_some(LOOK_EVERY),
            (over_ip && early.is_some()).then_some(hosts::EARLY_LOOK_EVERY),
            (over_ip || over_scion).then_some(UPLINKS_EVERY),
        ];
        pauses.into_iter().flatten().min().map(|pause| now + pause)
    }

    /// A peer wishes for paths, or does not any more.
    pub fn wishes_changed(&mut self, wishes: bool) {
        self.trigger.reconsider(if wishes { Trigger::PeerWishes } else { Trigger::PeerHasEnough });
    }

    // ---- lookups ----

    /// A lookup ended; `None`: without an answer.
    pub fn looked_up(&mut self, address: ScionAddr, found: Option<Found>, wall: SystemTime) {
        // Nobody waits for it any more.
        let Some(lookup) = self.lookups.get_mut(&address) else { return };
        let (local, remote) = (self.config.scion_host.unwrap_or(address.host.ip()), address.host.ip());
        let named = |path: Arc<ScionPath>| Path::scion(local, remote, path);
        let Found { paths, narrow } = found.unwrap_or_default();
        let mut paths: Vec<Path> = paths.into_iter().map(named).collect();
        let narrow: Vec<(Path, u16)> = narrow.into_iter().map(|(path, needed)| (named(path), needed)).collect();
        // A path that is down is left out by those who look paths up for us. It comes back, and is used until its end.
        let known: BTreeSet<PathId> = paths.iter().chain(narrow.iter().map(|(path, _)| path)).map(Path::id).collect();
        let is_kept =
            |path: &Path| !known.contains(&path.id()) && path.as_scion().is_some_and(|path| path.expiry > wall);
        paths.extend(std::mem::take(&mut lookup.paths).into_iter().filter(is_kept));
        (lookup.paths, lookup.narrow, lookup.is_answered) = (paths, narrow, true);
        self.name_paths();
    }

    /// Whether it is better to wait for an answer than to choose without it.
    fn is_lookup_awaited(&self, address: ScionAddr, now: Instant) -> bool {
        let Some(lookup) = self.lookups.get(&address) else { return false };
        let asked_for = lookup.first_asked_at.map(|at| now.saturating_duration_since(at));
        !lookup.is_answered && asked_for.is_none_or(|time| time < LOOKUP_PATIENCE)
    }

    /// Asks for the paths to whom they matter for, where what is known is old.
    fn ask_lookups(&mut self, peers: &[PeerView], is_finished: bool, now: Instant) {
        let matters = |view: &&PeerView| self.role(view, is_finished).is_some() || !view.granted.is_empty();
        let of_interest: Vec<ScionAddr> = peers.iter().filter(matters).filter_map(hosts::scion_address).collect();
        let connected: Vec<ScionAddr> = peers.iter().filter_map(hosts::scion_address).collect();
        self.lookups.retain(|address, _| connected.contains(address));
        for address in of_interest {
            let seeks = self.knows_less_than(peers, address);
            let lookup = self.lookups.entry(address).or_default();
            if lookup.asked_at.is_none_or(|at| now.saturating_duration_since(at) >= FOUND_FOR) {
                (lookup.asked_at, lookup.first_asked_at) = (Some(now), lookup.first_asked_at.or(Some(now)));
                self.actions.push_back(Action::LookUp { address, seeks });
            }
        }
    }

    /// Whether the peer at `address` uses or grants a path that no answer to us named.
    fn knows_less_than(&self, peers: &[PeerView], address: ScionAddr) -> bool {
        let Some(lookup) = self.lookups.get(&address).filter(|lookup| lookup.is_answered) else { return false };
        let narrow = lookup.narrow.iter().map(|(path, _)| path);
        let known: BTreeSet<PathId> = lookup.paths.iter().chain(narrow).map(Path::id).collect();
        let is_unnamed = |conn: &Connection| {
            conn.address == Endpoint::Scion(address)
                && conn.path.as_scion().is_some_and(|path| !path.is_named_throughout())
        };
        let mut granted = peers.iter().filter(|view| hosts::scion_address(view) == Some(address));
        self.conns.values().any(is_unnamed)
            || granted.any(|view| view.granted.iter().any(|path| !known.contains(&path.id)))
    }

    /// The paths to `address` that may be used, as far as is known.
    fn known_paths(&self, address: ScionAddr) -> &[Path] {
        self.lookups.get(&address).map_or(&[], |lookup| &lookup.paths)
    }

    /// `path`, as a lookup of ours named it. What an accepted connection's packets tell of its path is the numbers of the interfaces;
    /// whose they are a lookup says, and one that comes while the path is down leaves it out. Each number tells where the next
    /// interface is, so there is only one path of these numbers.
    pub fn named(&self, path: &Path) -> Path {
        let told = path.as_scion().filter(|told| !told.is_named_throughout());
        let mut known = self.lookups.values().flat_map(|lookup| &lookup.paths).filter_map(Path::as_scion);
        let same = told.and_then(|told| known.find(|known| known.is_same_way(told)));
        same.map_or_else(|| path.clone(), |same| Path::scion(path.local(), path.remote(), Arc::clone(same)))
    }
}
