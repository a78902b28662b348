//! Paths over plain IP: every usable interface of ours with every address of a peer, so that uplinks add up.
//!
//! Who fetches dials: any BitTorrent client takes connections. One that takes a single connection from a peer closes what is
//! one too many; it is left with one then. A peer of our kind tells its further addresses (`ab_addr`), as we tell ours, and is known
//! as one peer over all of them. Others may have another peer id on every connection (libtorrent): those that listen at the same
//! address are one host here, whatever the core takes them for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_bittorrent::extension::PeerIdentity;
use anabranch_bittorrent::torrent::{PATHS_PER_PEER_MAX, PeerView};
use anabranch_bittorrent::{ConnId, PeerKey};
use anabranch_paths::select::{Budget, Candidate, Reason, Resource, Selector};
use anabranch_paths::{Endpoint, Path, PathId};
use anabranch_transport::{INTERFACES_EVERY, InterfaceError, Interfaces, IpCandidate, REMOTES_MAX};

use super::attempt::Attempt;
use super::occasion::{Decision, Occasion, RACED_EVERY, REMEASURED_EVERY};
use super::{PathCondition, PathVerdict, Way};
use crate::conn::ConnError;
use crate::dial;
use crate::events::EventKind;
use crate::torrent::{State, TorrentRef};

/// How long a path has for opening: two lost SYNs, and then some.
const OPENING_MAX: Duration = Duration::from_secs(4);
/// Wait after an attempt that failed.
const RETRY: Duration = Duration::from_secs(1);
/// A connection that owes us blocks and brings none for so long is given up, ...
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// ... if another one of its peer brought some this lately.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);
/// A connection that ends so soon after another one opened was one too many for the peer.
const TOO_MANY_WITHIN: Duration = Duration::from_secs(5);
/// So many of those, and the peer keeps the one connection it has, ...
const TOO_MANY_MAX: u32 = 2;
/// ... for so long: it may have thought that a connection was there which is lost.
const LEFT_ALONE: Duration = Duration::from_secs(60);
/// After a connection opened, the peer soon says what it has and where else it listens: so long it is looked often, ...
const EARLY: Duration = Duration::from_secs(2);
/// ... this often.
const EARLY_LOOK_EVERY: Duration = Duration::from_millis(50);

/// What measurements say of an IP path's uplinks: nothing. Two connections over one uplink may not slow each other where something else
/// limits both, and still bring nothing together; and the queues of two uplinks that fill at the same time look like one at the host
/// that both lead to. So sharing an end counts the same at all times.
pub(super) const IP_MEASURED: [Resource; 0] = [];

/// The ways out of this machine, for all contents.
pub struct WaysOut {
    interfaces: RefCell<Interfaces>,
    looked_at: Cell<Instant>,
    /// Counts the changes.
    version: Cell<u64>,
}

impl WaysOut {
    /// The interfaces of these names; all where there are none.
    pub fn open(names: &[String]) -> Result<Self, InterfaceError> {
        let interfaces = RefCell::new(Interfaces::new(names)?);
        Ok(Self { interfaces, looked_at: Cell::new(Instant::now()), version: Cell::new(0) })
    }

    /// Where peers reach us, who listen at these addresses.
    pub fn reachable_at(&self, listening: &[SocketAddr]) -> Vec<SocketAddr> {
        self.interfaces.borrow().reachable_at(listening)
    }

    /// Looks whether interfaces came or went, where that is due; answers the number of changes so far.
    fn look(&self, now: Instant) -> u64 {
        if now.saturating_duration_since(self.looked_at.get()) >= INTERFACES_EVERY {
            self.looked_at.set(now);
            // What the system does not tell stays as it was, and is asked for again.
            if self.interfaces.borrow_mut().refresh().unwrap_or(false) {
                self.version.set(self.version.get() + 1);
            }
        }
        self.version.get()
    }

    /// A path over IP as selectors see it. An interface is one uplink, whichever of its addresses packets leave from.
    fn as_seen(&self, host: HostId, path: &Path) -> Candidate {
        let mut candidate = Candidate::new(host.0.into(), path);
        let uplink = self.interfaces.borrow().uplink(path.local());
        candidate.resources = vec![Resource::Local(uplink), Resource::Remote(path.remote())];
        candidate
    }

    /// How to reach `remote` at the first attempt, or after so many that failed: as the system's routes go, unless the user
    /// named interfaces, then by one after the other.
    pub fn via(&self, remote: SocketAddr, failures: usize) -> Result<Option<IpCandidate>, String> {
        let interfaces = self.interfaces.borrow();
        let is_free = !interfaces.is_restricted();
        if is_free && failures == 0 {
            return Ok(None);
        }
        let mut all = interfaces.candidates(&[remote]);
        let turns = all.len() + usize::from(is_free);
        let Some(turn) = failures.checked_rem(turns) else {
            return Err("none of the interfaces that may be used leads there: see --interface".to_owned());
        };
        Ok(match is_free {
            true if turn == 0 => None,
            true => Some(all.swap_remove(turn - 1)),
            false => Some(all.swap_remove(turn)),
        })
    }
}

/// What is known and decided of a content's paths over IP. Bounded by the core's connections and by
/// [`CANDIDATES_MAX`](anabranch_transport::CANDIDATES_MAX).
#[derive(Default)]
pub struct IpDesk {
    /// The state of the interfaces that this is made of.
    version: Option<u64>,
    hosts: BTreeMap<HostId, IpPeer>,
    of_peer: HashMap<PeerKey, HostId>,
    of_address: HashMap<SocketAddr, HostId>,
    next_host: u32,
    joined_at: Option<Instant>,
    occasion: Occasion,
}

/// The number of a host: who listens at one address, or at several and is known as one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct HostId(u32);

/// A host's connections.
struct Host {
    id: HostId,
    /// As the core knows it: once, where it is of our kind.
    peers: Vec<PeerKey>,
    conns: Vec<ConnId>,
    listens: Vec<SocketAddr>,
    /// It has content that we want.
    is_wanted: bool,
}

/// What is known of a host.
#[derive(Default)]
struct IpPeer {
    remotes: Vec<SocketAddr>,
    /// Those where a connection showed that it listens; of the others it only says so.
    met_at: Vec<SocketAddr>,
    /// Interfaces came or went since.
    is_old: bool,
    candidates: Vec<IpCandidate>,
    decision: Decision,
    attempts: HashMap<PathId, Attempt>,
    opened_at: Option<Instant>,
    too_many: u32,
    alone_until: Option<Instant>,
}

/// A connection to open.
pub struct IpDial {
    host: HostId,
    candidate: IpCandidate,
}

impl IpDesk {
    /// The paths to `peer` that were chosen.
    pub fn chosen(&self, peer: PeerKey) -> &[PathId] {
        let host = self.of_peer.get(&peer).and_then(|host| self.hosts.get(host));
        host.map_or(&[], |host| &host.decision.chosen)
    }

    /// How long until it has to be looked again, where there is anything to look at.
    pub fn pause<'a>(&self, mut ways: impl Iterator<Item = &'a Way>, now: Instant) -> Option<Duration> {
        let early = self.joined_at.is_some_and(|at| now.saturating_duration_since(at) < EARLY);
        ways.any(leaves_by_ip).then_some(if early { EARLY_LOOK_EVERY } else { INTERFACES_EVERY })
    }

    /// A connection opened.
    pub fn joined(&mut self, way: &Way, now: Instant) {
        if leaves_by_ip(way) {
            self.joined_at = Some(now);
            self.occasion.reconsider("a peer connected");
        }
    }

    /// A connection of `peer` ended, not by us.
    pub fn left(&mut self, peer: PeerKey, way: &Way, now: Instant) {
        let host = self.of_peer.get(&peer).filter(|_| way.path.as_scion().is_none());
        let Some(entry) = host.and_then(|host| self.hosts.get_mut(host)) else { return };
        if entry.opened_at.is_some_and(|at| now.saturating_duration_since(at) < TOO_MANY_WITHIN) {
            entry.opened_at = None;
            entry.refused(now);
        }
        self.occasion.reconsider("a connection ended");
    }

    /// Who is at the ends of these connections; each with where else its peer says that it listens.
    fn hosts_of(&mut self, views: &[(PeerView, Vec<Endpoint>)]) -> Vec<Host> {
        let mut hosts: BTreeMap<HostId, Host> = BTreeMap::new();
        let of_peer = std::mem::take(&mut self.of_peer);
        let of_address = std::mem::take(&mut self.of_address);
        // A name that is not proven (behind a NAT it cannot be) makes paths one host's where that host named their address too.
        let mut named: HashMap<(PeerIdentity, SocketAddr), HostId> = HashMap::new();
        for (view, told) in views {
            let listens: Vec<SocketAddr> = view.listens.iter().filter_map(Endpoint::as_ip).collect();
            let met = listens.iter().find_map(|at| named.get(&(view.name?, *at)));
            let met =
                met.or_else(|| listens.iter().find_map(|at| self.of_address.get(at).or_else(|| of_address.get(at))));
            let id = met.or_else(|| of_peer.get(&view.peer)).copied().unwrap_or_else(|| {
                self.next_host = self.next_host.wrapping_add(1);
                HostId(self.next_host)
            });
            self.of_peer.insert(view.peer, id);
            if let Some(name) = view.name {
                named.extend(told.iter().filter_map(|at| Some(((name, at.as_ip()?), id))));
            }
            let empty = Host { id, peers: Vec::new(), conns: Vec::new(), listens: Vec::new(), is_wanted: false };
            let host = hosts.entry(id).or_insert(empty);
            host.peers.push(view.peer);
            host.conns.extend(&view.conns);
            host.is_wanted |= view.is_wanted;
            for at in listens {
                self.of_address.insert(at, id);
                if !host.listens.contains(&at) {
                    host.listens.push(at);
                }
            }
        }
        self.hosts.retain(|id, _| hosts.contains_key(id));
        hosts.into_values().collect()
    }
}

impl State {
    /// Finds, chooses and opens; answers which connections are to be opened.
    pub(super) fn choose_ip(&mut self, views: &[PeerView], now: Instant) -> Vec<IpDial> {
        let session = self.session();
        let Some(ways_out) = &session.ways_out else { return Vec::new() };
        let version = ways_out.look(now);
        if self.desk.ip.version.replace(version) != Some(version) {
            self.interfaces_changed(&ways_out.interfaces.borrow(), now);
        }
        let told = |view: &PeerView| self.core.peer_addresses(view.peer);
        let views: Vec<(PeerView, Vec<Endpoint>)> = views.iter().map(|view| (view.clone(), told(view))).collect();
        let hosts = self.desk.ip.hosts_of(&views);
        let own = ways_out.interfaces.borrow().reachable_at(&session.listening);
        for host in &hosts {
            self.find_ip(host, &own, &ways_out.interfaces.borrow());
        }
        let wished = session.config.paths.wished;
        let fetches = !self.core.is_finished() && wished > 1;
        let clients: Vec<&Host> = hosts
            .iter()
            .filter(|host| fetches && host.is_wanted && self.has_choice(host))
            .filter(|host| self.desk.ip.hosts[&host.id].alone_until.is_none_or(|until| now >= until))
            .take(session.config.paths.connections)
            .collect();
        if self.is_ip_choice_due(&clients, now) {
            self.decide_ip(&clients);
        }
        let mut dials = Vec::new();
        for host in clients {
            self.leave_silent(host, now);
            dials.extend(self.dials_to(host, now));
        }
        dials
    }

    fn interfaces_changed(&mut self, interfaces: &Interfaces, now: Instant) {
        let session = self.session();
        let scion = session.scion.as_ref().map(|net| net.endpoint.local());
        let mut own: Vec<Endpoint> =
            interfaces.reachable_at(&session.listening).into_iter().map(Endpoint::from).chain(scion).collect();
        // A peer knows the only one.
        if own.len() < 2 {
            own.clear();
        }
        self.core.set_own_addresses(own, now);
        for peer in self.desk.ip.hosts.values_mut() {
            peer.is_old = true;
            peer.attempts.retain(|_, attempt| attempt.is_under_way());
            peer.alone_until = None;
        }
        let gone = |way: &Way| leaves_by_ip(way) && !interfaces.has(way.path.local());
        let gone: Vec<_> = self.desk.ways.iter().filter(|(_, way)| gone(way)).map(|(id, _)| *id).collect();
        for id in gone {
            self.set_path_down(id, Some("its interface is gone"), now);
        }
        self.desk.ip.occasion.reconsider("interfaces came or went");
    }

    /// Pairs our addresses with a peer's, where either are others than before.
    fn find_ip(&mut self, host: &Host, own: &[SocketAddr], interfaces: &Interfaces) {
        let told = host.peers.iter().flat_map(|peer| self.core.peer_addresses(*peer));
        let mut remotes: Vec<SocketAddr> = Vec::new();
        // What it listened at before may come back, as an uplink does.
        let before = self.desk.ip.hosts.get(&host.id).map_or(&[][..], |known| &known.remotes).to_vec();
        let now = host.listens.iter().copied().chain(told.filter_map(|address| address.as_ip()));
        for remote in now.chain(before) {
            if !remotes.contains(&remote) && !own.contains(&remote) && remotes.len() < REMOTES_MAX {
                remotes.push(remote);
            }
        }
        let known = self.desk.ip.hosts.entry(host.id).or_default();
        known.met_at.clone_from(&host.listens);
        if std::mem::take(&mut known.is_old) || known.remotes != remotes {
            known.candidates = interfaces.candidates(&remotes);
            known.remotes = remotes;
            let ids: BTreeSet<PathId> = known.candidates.iter().map(|candidate| candidate.path.id()).collect();
            known.decision.chosen.retain(|path| ids.contains(path));
        }
        if self.has_choice(host) {
            for id in &host.conns {
                if let Some(way) = self.desk.ways.get_mut(id) {
                    way.has_alternatives = true;
                }
            }
        }
    }

    /// Whether there is more than one way to a host, those through SCION among them.
    fn has_choice(&self, host: &Host) -> bool {
        let candidates = self.desk.ip.hosts.get(&host.id).map_or(0, |host| host.candidates.len());
        candidates + self.scion_ways(host) > 1 && candidates > 0
    }

    fn scion_ways(&self, host: &Host) -> usize {
        self.ways_of(host).filter(|(_, way)| way.path.as_scion().is_some()).count()
    }

    fn ways_of(&self, host: &Host) -> impl Iterator<Item = (ConnId, &Way)> {
        host.conns.iter().filter_map(|id| Some((*id, self.desk.ways.get(id)?)))
    }

    fn is_ip_choice_due(&mut self, clients: &[&Host], now: Instant) -> bool {
        let mut hash = DefaultHasher::new();
        for client in clients {
            let peer = &self.desk.ip.hosts[&client.id];
            client.id.hash(&mut hash);
            for candidate in &peer.candidates {
                (candidate.path.id(), peer.fails(candidate.path.id())).hash(&mut hash);
            }
        }
        let every = match self.ip_selector() {
            Selector::BandwidthRace | Selector::HandshakeRace => RACED_EVERY,
            _ => REMEASURED_EVERY,
        };
        self.desk.ip.occasion.is_due(hash.finish(), Some(every), now)
    }

    fn ip_selector(&self) -> Selector {
        self.session().config.paths.selector.unwrap_or_default()
    }

    fn decide_ip(&mut self, clients: &[&Host]) {
        let session = self.session();
        let selector = self.ip_selector();
        let Some(ways_out) = &session.ways_out else { return };
        let mut board = session.board.borrow_mut();
        let mut owners = Vec::new();
        let mut candidates = Vec::new();
        for client in clients {
            let open: BTreeSet<PathId> = self.ways_of(client).map(|(_, way)| way.path.id()).collect();
            let peer = &self.desk.ip.hosts[&client.id];
            for (place, found) in peer.candidates.iter().enumerate() {
                let id = found.path.id();
                let mut candidate = ways_out.as_seen(client.id, &found.path);
                candidate.place = place;
                // Of two that are alike, what is open stays.
                candidate.hops = usize::from(!open.contains(&id));
                candidate.handshake = self.desk.handshakes.get(&id).copied();
                board.add(id, &IP_MEASURED);
                board.set_down(id, peer.fails(id));
                candidates.push(candidate);
                owners.push(client.id);
            }
        }
        let wished = session.config.paths.wished.min(PATHS_PER_PEER_MAX);
        let budget = Budget { connections: session.config.paths.connections, per_peer: wished };
        let selection = selector.select(&candidates, &board, budget);
        drop(board);
        let why = self.desk.ip.occasion.take_why();
        for client in clients {
            let left = wished.saturating_sub(self.scion_ways(client));
            let Some(peer) = self.desk.ip.hosts.get_mut(&client.id) else { continue };
            let own = owners.iter().zip(&selection.verdicts).filter(|(owner, _)| **owner == client.id);
            let verdicts: Vec<PathVerdict> = own
                .zip(&peer.candidates)
                .map(|((_, verdict), candidate)| PathVerdict {
                    path: candidate.path.clone(),
                    choice: verdict.choice,
                    is_down: verdict.reason == Reason::Down,
                    reason: format!("{}, by {}", verdict.reason, candidate.via.interface),
                })
                .collect();
            if peer.decision.take(&verdicts, left)
                && let Some(first) = peer.candidates.first()
            {
                let address = client.listens.first().map_or(first.remote, |met_at| *met_at).into();
                let why = why.clone();
                self.tell(EventKind::PathsChosen { peer: address, selector: Some(selector), why, verdicts });
            }
        }
    }

    /// Gives up connections over which nothing comes while others of the same peer work. The core asks for their blocks elsewhere
    /// by itself; but TCP, once a way is cut, waits ever longer before it tries again, and a new connection tries at once.
    fn leave_silent(&mut self, host: &Host, now: Instant) {
        let quiet_for = |way: &Way| Some(now.saturating_duration_since(way.moved?));
        if !self.ways_of(host).any(|(_, way)| quiet_for(way).is_some_and(|quiet| quiet < ALIVE_WITHIN)) {
            return;
        }
        let is_silent = |(id, way): &(ConnId, &Way)| {
            let owes = self.core.expected(*id).next().is_some();
            leaves_by_ip(way) && way.down.is_none() && owes && quiet_for(way).is_some_and(|quiet| quiet > SILENCE_MAX)
        };
        let silent: Vec<ConnId> = self.ways_of(host).filter(is_silent).map(|(id, _)| id).collect();
        for id in silent {
            self.set_path_down(id, Some("nothing comes while other paths work"), now);
        }
    }

    /// Opens what was chosen and is not open.
    fn dials_to(&mut self, host: &Host, now: Instant) -> Vec<IpDial> {
        let open: BTreeSet<PathId> = self.ways_of(host).map(|(_, way)| way.path.id()).collect();
        // For a race, what was never tried runs too.
        let races = self.ip_selector() == Selector::HandshakeRace;
        let Some(peer) = self.desk.ip.hosts.get_mut(&host.id) else { return Vec::new() };
        let under_way = peer.attempts.values().filter(|attempt| attempt.is_under_way()).count();
        let mut room = PATHS_PER_PEER_MAX.saturating_sub(host.conns.len() + under_way);
        let mut dials = Vec::new();
        for candidate in &peer.candidates {
            let id = candidate.path.id();
            // What failed is tried again, whether it is chosen at present or not: it cannot be while it fails.
            let is_wanted = peer.decision.chosen.contains(&id)
                || peer.attempts.get(&id).is_some_and(Attempt::fails)
                || races && !self.desk.handshakes.contains_key(&id);
            let may = is_wanted && room > 0 && !open.contains(&id);
            if !may || !peer.attempts.entry(id).or_default().begin(now) {
                continue;
            }
            room -= 1;
            dials.push(IpDial { host: host.id, candidate: candidate.clone() });
        }
        dials
    }

    fn ip_opened(&mut self, dial: &IpDial, now: Instant) {
        if let Some(peer) = self.desk.ip.hosts.get_mut(&dial.host) {
            peer.opened_at = Some(now);
            if let Some(attempt) = peer.attempts.get_mut(&dial.candidate.path.id()) {
                attempt.opened();
            }
        }
    }

    fn ip_refused(&mut self, dial: &IpDial, now: Instant) {
        if let Some(peer) = self.desk.ip.hosts.get_mut(&dial.host) {
            peer.refused(now);
        }
    }

    /// An attempt ended: with an error, or with a connection that is over by now.
    fn ip_dialled(&mut self, dial: &IpDial, error: Option<String>, now: Instant) {
        let Some(peer) = self.desk.ip.hosts.get_mut(&dial.host) else { return };
        let is_hearsay = !peer.met_at.contains(&dial.candidate.remote);
        let attempt = peer.attempts.entry(dial.candidate.path.id()).or_default();
        match error {
            None => attempt.ended(RETRY, now),
            Some(reason) => {
                let is_first = if is_hearsay { attempt.hearsay_failed(RETRY, now) } else { attempt.failed(RETRY, now) };
                if is_first {
                    let (peer, path) = (dial.candidate.remote.into(), dial.candidate.path.clone());
                    self.tell(EventKind::PathChanged { peer, path, condition: PathCondition::Down, reason });
                    self.desk.ip.occasion.reconsider("a path could not be opened");
                }
            }
        }
        self.desk.wake.notify_one();
    }
}

impl IpPeer {
    /// The host had one connection too many.
    fn refused(&mut self, now: Instant) {
        self.too_many += 1;
        if self.too_many >= TOO_MANY_MAX {
            self.too_many = 0;
            self.alone_until = Some(now + LEFT_ALONE);
        }
    }

    fn fails(&self, path: PathId) -> bool {
        self.attempts.get(&path).is_some_and(Attempt::fails)
    }
}

/// Opens a path and serves its connection to the end.
pub(super) async fn open(torrent: TorrentRef, dial: IpDial) {
    let (remote, via) = (dial.candidate.remote, &dial.candidate.via);
    let reached = match dial::over_ip(&torrent, remote, Some(via), OPENING_MAX).await {
        Ok(reached) => reached,
        Err(error) => {
            let mut torrent = torrent.borrow_mut();
            // TCP opened, and BitTorrent did not.
            if !matches!(error, ConnError::Ended(_)) {
                torrent.ip_refused(&dial, Instant::now());
            }
            return torrent.ip_dialled(&dial, Some(error.to_string()), Instant::now());
        }
    };
    torrent.borrow_mut().ip_opened(&dial, Instant::now());
    dial::serve(&torrent, reached).await;
    torrent.borrow_mut().ip_dialled(&dial, None, Instant::now());
}

/// Whether a connection leaves this machine, over plain IP.
fn leaves_by_ip(way: &Way) -> bool {
    way.path.as_scion().is_none() && !way.path.remote().is_loopback()
}

#[cfg(test)]
#[path = "ip_tests.rs"]
mod tests;
