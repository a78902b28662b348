//! Who chooses for whom, and what follows: grants, connections to open, what is asked for over which connection.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_bittorrent::PeerKey;
use anabranch_bittorrent::extension::InterfaceSequence;
use anabranch_bittorrent::torrent::{PATHS_PER_PEER_MAX, PathState, PeerView};
use anabranch_paths::select::{Budget, Candidate, Choice, Reason, Resource, Selector};
use anabranch_paths::{Endpoint, Path, PathId, ScionAddr, ScionPath};

use super::attempt::Attempt;
use super::occasion::{RACED_EVERY, REMEASURED_EVERY};
use super::{GRANT_PATIENCE, PathCondition, PathVerdict};
use crate::events::EventKind;
use crate::torrent::State;

/// Connections opened to measure how fast paths open.
const RUNNERS_MAX: usize = PATHS_PER_PEER_MAX - 4;
/// Connections to one peer beyond which those that stand by are closed: there has to be room for others to be tried.
const CONNECTIONS_KEPT: usize = PATHS_PER_PEER_MAX - 2;
/// Wait after an attempt that failed. Links come back at any time, and asking costs one packet.
const RETRY: Duration = Duration::from_millis(500);
/// How long a path has for opening, when it is tried again.
const REOPENING_MAX: Duration = Duration::from_millis(1500);
/// The same at first: lookups, keys and round trips around the world.
const OPENING_MAX: Duration = Duration::from_secs(5);

/// A connection to open.
pub struct Dial {
    pub peer: PeerKey,
    pub address: ScionAddr,
    pub path: Arc<ScionPath>,
    pub patience: Duration,
}

/// Why we choose the paths to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// It wished for so many; with `dials`, it wants to be dialled.
    Uploader { wished: usize, dials: bool },
    /// It cannot choose for us.
    Downloader,
}

/// A peer that we choose for.
struct Client {
    peer: PeerKey,
    address: ScionAddr,
    role: Role,
    is_served: bool,
}

impl State {
    /// Whether nobody else chooses our paths: the user did, in part.
    fn chooses_alone(&self) -> bool {
        self.session().scion.as_ref().is_some_and(|net| net.is_restricted())
    }

    fn role(&self, view: &PeerView) -> Option<Role> {
        if let Some(wish) = view.wish.filter(|_| view.is_interested) {
            return Some(Role::Uploader { wished: usize::from(wish.paths), dials: wish.dial });
        }
        let fetches = view.is_wanted && !self.core.is_finished();
        let alone = self.chooses_alone() || !view.speaks_paths;
        (fetches && alone && self.session().config.paths.wished > 1).then_some(Role::Downloader)
    }

    /// Where to look paths up for: whom we choose for, and who granted us paths.
    pub(super) fn addresses_of_interest(&self, views: &[PeerView]) -> BTreeSet<ScionAddr> {
        let matters = |view: &&PeerView| self.role(view).is_some() || !self.core.granted_paths(view.peer).is_empty();
        views.iter().filter(matters).filter_map(scion_address).collect()
    }

    /// Chooses where that is due, and acts on it. Answers which connections are to be opened.
    pub(super) fn choose(&mut self, views: &[PeerView], now: Instant) -> Vec<Dial> {
        let alive: BTreeSet<PeerKey> = views.iter().map(|view| view.peer).collect();
        let gone: Vec<PeerKey> = self.desk.decisions.keys().copied().filter(|peer| !alive.contains(peer)).collect();
        for peer in gone {
            self.desk.forget(peer);
            self.desk.reconsider("a peer left");
        }
        self.notice_what_is_open(views);
        self.wish(views, now);
        self.heed_grants(views, now);
        let clients = self.clients(views);
        let mut dials = Vec::new();
        if self.is_choice_due(&clients, now) {
            self.decide(&clients, now);
        }
        for client in &clients {
            self.act_on_decision(client, views, now, &mut dials);
        }
        self.dial_grants(views, now, &mut dials);
        self.spread(views, now);
        dials
    }

    /// A path with a connection that works is no failed one, whichever side opened it, and whatever became of the attempts to
    /// open it from the other: where both try at once, one of two connections is closed again.
    fn notice_what_is_open(&mut self, views: &[PeerView]) {
        for view in views {
            let ways = view.conns.iter().filter_map(|id| self.desk.ways.get(id));
            let open: Vec<Path> = ways.filter(|way| way.down.is_none()).map(|way| way.path.clone()).collect();
            for path in open {
                let key = (view.peer, path.id());
                if let Some(attempt) = self.desk.attempts.get_mut(&key) {
                    attempt.opened();
                }
                if self.desk.lost.remove(&key) {
                    self.desk.reconsider(format!("{path} works again"));
                }
            }
        }
    }

    /// Says what we want of uploaders, once.
    fn wish(&mut self, views: &[PeerView], now: Instant) {
        let config = &self.session().config.paths;
        if self.desk.wished || views.is_empty() || self.chooses_alone() || self.session().scion.is_none() {
            return;
        }
        let (paths, selector) = (config.wished, config.selector);
        if paths > 1 || selector.is_some() {
            let paths = paths.min(PATHS_PER_PEER_MAX) as u8;
            self.core.wish_paths(Some(anabranch_bittorrent::extension::Wish { paths, dial: true, selector }), now);
        }
        self.desk.wished = true;
    }

    /// Those we choose for; with more than there are connections, those we serve go first.
    fn clients(&self, views: &[PeerView]) -> Vec<Client> {
        let client = |view: &PeerView| {
            let (role, address) = (self.role(view)?, scion_address(view)?);
            Some(Client { peer: view.peer, address, role, is_served: view.is_served || role == Role::Downloader })
        };
        let mut clients: Vec<Client> = views.iter().filter_map(client).collect();
        clients.sort_by_key(|client| (!client.is_served, client.peer));
        clients.truncate(self.session().config.paths.connections);
        clients
    }

    fn selector(&self, clients: &[Client]) -> Selector {
        if let Some(selector) = self.session().config.paths.selector {
            return selector;
        }
        let wishes = self.core.path_wishes().filter(|(peer, _)| clients.iter().any(|client| client.peer == *peer));
        let mut wished = wishes.map(|(_, wish)| wish.selector.unwrap_or_default());
        let first = wished.next().unwrap_or_default();
        if wished.all(|other| other == first) { first } else { Selector::default() }
    }

    /// Whether something that the choice depends on changed, or measurements are due to be looked at.
    fn is_choice_due(&mut self, clients: &[Client], now: Instant) -> bool {
        let mut hash = DefaultHasher::new();
        for client in clients {
            (client.peer, client.address, client.role).hash(&mut hash);
            for path in self.desk.found.get(&client.address).into_iter().flat_map(|found| &found.paths) {
                (path.id(), self.fails(client, path)).hash(&mut hash);
            }
        }
        let every = match self.selector(clients) {
            Selector::BandwidthRace | Selector::HandshakeRace => Some(RACED_EVERY),
            Selector::Disjoint => Some(REMEASURED_EVERY),
            _ => None,
        };
        self.desk.occasion.is_due(hash.finish(), every, now)
    }

    /// Whether a path does not work for a peer, as far as is known. Where a connection over it works, that is known best.
    fn fails(&self, client: &Client, path: &ScionPath) -> bool {
        let key = (client.peer, path.id());
        if self.desk.carries(client.address.into(), path.id()) {
            return false;
        }
        let is_down = self.session().scion.as_ref().is_some_and(|net| net.is_down(path));
        is_down || self.desk.lost.contains(&key) || self.desk.attempts.get(&key).is_some_and(Attempt::fails)
    }

    fn decide(&mut self, clients: &[Client], now: Instant) {
        let session = self.session();
        let selector = self.selector(clients);
        let mut board = session.board.borrow_mut();
        let local = session.scion.as_ref().map(|net| net.endpoint.local().ip());
        let mut paths: Vec<(&Client, Path)> = Vec::new();
        let mut candidates = Vec::new();
        for client in clients {
            let found = self.desk.found.get(&client.address).map_or(&[][..], |found| &found.paths);
            for (place, path) in found.iter().enumerate() {
                let fails = self.fails(client, path);
                let local = local.unwrap_or(client.address.host.ip());
                let path = Path::scion(local, client.address.host.ip(), Arc::clone(path));
                let mut candidate = Candidate::new(client.peer.0.into(), &path);
                candidate.place = place;
                candidate.handshake = self.desk.handshakes.get(&path.id()).copied();
                board.add(path.id(), &candidate.resources);
                board.set_down(path.id(), fails);
                candidates.push(candidate);
                paths.push((client, path));
            }
        }
        let foreign = self.foreign_load(now);
        board.set_foreign(foreign);
        let wished = |client: &Client| match client.role {
            Role::Uploader { wished, .. } => wished.min(session.config.paths.granted),
            Role::Downloader => session.config.paths.wished,
        };
        let per_peer = clients.iter().map(wished).max().unwrap_or(0).min(PATHS_PER_PEER_MAX);
        let budget = Budget { connections: session.config.paths.connections, per_peer };
        let selection = selector.select(&candidates, &board, budget);
        drop(board);
        let why = self.desk.occasion.take_why();
        for client in clients {
            let own = paths.iter().zip(&selection.verdicts).filter(|((of, _), _)| of.peer == client.peer);
            let mut verdicts: Vec<PathVerdict> = own
                .map(|((_, path), verdict)| PathVerdict {
                    path: path.clone(),
                    choice: verdict.choice,
                    is_down: verdict.reason == Reason::Down,
                    reason: verdict.reason.to_string(),
                })
                .collect();
            if let (Some(found), Some(local)) = (self.desk.found.get(&client.address), local) {
                verdicts.extend(found.narrow_verdicts(local, client.address.host.ip()));
            }
            self.take_decision(client, selector, verdicts, wished(client), &why);
        }
    }

    /// A peer's part of a choice.
    fn take_decision(
        &mut self,
        client: &Client,
        selector: Selector,
        verdicts: Vec<PathVerdict>,
        wished: usize,
        why: &str,
    ) {
        let decision = self.desk.decisions.entry(client.peer).or_default();
        if decision.take(&verdicts, wished) {
            let peer = Endpoint::Scion(client.address);
            self.tell(EventKind::PathsChosen { peer, selector: Some(selector), why: why.to_owned(), verdicts });
        }
    }

    /// Grants, and opens what has no connection.
    fn act_on_decision(&mut self, client: &Client, views: &[PeerView], now: Instant, dials: &mut Vec<Dial>) {
        let Some(decision) = self.desk.decisions.get(&client.peer) else { return };
        let found = self.desk.found.get(&client.address).map_or(&[][..], |found| &found.paths);
        let by_id = |id: &PathId| found.iter().find(|path| path.id() == *id).cloned();
        let mut wanted: Vec<Arc<ScionPath>> = decision.chosen.iter().filter_map(by_id).collect();
        let may_dial = match client.role {
            Role::Uploader { dials, .. } => {
                let grants = wanted.iter().filter_map(|path| sequence_back(path)).collect();
                self.core.grant_paths(client.peer, grants, now);
                dials
            }
            Role::Downloader => true,
        };
        if !may_dial {
            return;
        }
        // What failed is tried again, and so is, for races, what was never tried.
        let races = self.selector(std::slice::from_ref(client)) == Selector::HandshakeRace;
        let found = self.desk.found.get(&client.address).map_or(&[][..], |found| &found.paths);
        let again = found.iter().filter(|path| self.desk.lost.contains(&(client.peer, path.id())));
        wanted.extend(again.cloned());
        if races {
            let untried = |path: &&Arc<ScionPath>| !self.desk.handshakes.contains_key(&path.id());
            wanted.extend(found.iter().filter(untried).take(RUNNERS_MAX).cloned());
        }
        for path in wanted {
            self.want(client.peer, client.address, &path, views, now, dials);
        }
    }

    /// Opens a path, unless it is open or was tried lately.
    fn want(
        &mut self,
        peer: PeerKey,
        address: ScionAddr,
        path: &Arc<ScionPath>,
        views: &[PeerView],
        now: Instant,
        dials: &mut Vec<Dial>,
    ) {
        let id = path.id();
        let conns = views.iter().find(|view| view.peer == peer).map_or(&[][..], |view| &view.conns);
        let is_open = conns.iter().any(|conn| self.desk.ways.get(conn).is_some_and(|way| way.path.id() == id));
        let opening = self.desk.attempts.iter().filter(|((of, _), tried)| *of == peer && tried.is_under_way()).count();
        if is_open || conns.len() + opening >= PATHS_PER_PEER_MAX || path.expiry <= SystemTime::now() {
            return;
        }
        if !self.desk.attempts.entry((peer, id)).or_default().begin(now) {
            return;
        }
        let known = self.desk.handshakes.get(&id);
        let patience = known.map_or(OPENING_MAX, |handshake| REOPENING_MAX.max(*handshake * 5));
        dials.push(Dial { peer, address, path: Arc::clone(path), patience });
    }

    /// An attempt to open a path ended; `reached`: with a connection, which is over by now.
    pub(super) fn dialled(&mut self, peer: PeerKey, path: PathId, reached: bool, now: Instant) {
        let tried = self.desk.attempts.entry((peer, path)).or_default();
        if reached {
            tried.ended(RETRY, now);
        } else {
            let first = tried.failed(RETRY, now);
            self.desk.lost.insert((peer, path));
            if first {
                self.desk.reconsider("a path could not be opened");
            }
        }
        if !self.core.peer_views().iter().any(|view| view.peer == peer) {
            self.desk.forget(peer);
            self.desk.attempts.remove(&(peer, path));
        }
        self.desk.wake.notify_one();
    }

    /// A path opened: what failed before does not count.
    pub(super) fn opened(&mut self, peer: PeerKey, path: PathId) {
        if let Some(tried) = self.desk.attempts.get_mut(&(peer, path)) {
            tried.opened();
        }
        self.desk.wake.notify_one();
    }

    // ---- what we were granted ----

    fn heed_grants(&mut self, views: &[PeerView], now: Instant) {
        for view in views {
            let granted: Vec<PathId> = self.core.granted_paths(view.peer).iter().map(path_id).collect();
            let before: BTreeSet<PathId> =
                self.desk.granted.keys().filter(|(peer, _)| *peer == view.peer).map(|(_, path)| *path).collect();
            if granted.iter().copied().collect::<BTreeSet<_>>() == before {
                continue;
            }
            self.desk.implied.retain(|(peer, _)| *peer != view.peer);
            self.desk.granted.retain(|(peer, path), _| *peer != view.peer || granted.contains(path));
            for path in &granted {
                self.desk.granted.entry((view.peer, *path)).or_insert(now);
            }
            self.desk.lost.retain(|(peer, path)| *peer != view.peer || granted.contains(path));
            self.explain_grants(view, &granted);
        }
    }

    fn explain_grants(&self, view: &PeerView, granted: &[PathId]) {
        let Some(address) = scion_address(view) else { return };
        let Some(net) = &self.session().scion else { return };
        let local = net.endpoint.local().ip();
        let Some(found) = self.desk.found.get(&address) else { return };
        let verdict = |path: &Arc<ScionPath>| {
            let is_granted = granted.contains(&path.id());
            PathVerdict {
                path: Path::scion(local, address.host.ip(), Arc::clone(path)),
                choice: if is_granted { Choice::Chosen } else { Choice::Left },
                is_down: false,
                reason: match is_granted {
                    true => "the uploader, who chooses for all its downloaders, grants it".to_owned(),
                    false => "the uploader did not choose it".to_owned(),
                },
            }
        };
        self.tell(EventKind::PathsChosen {
            peer: Endpoint::Scion(address),
            selector: None,
            why: "the uploader chose".to_owned(),
            verdicts: found.paths.iter().map(verdict).chain(found.narrow_verdicts(local, address.host.ip())).collect(),
        });
    }

    /// Dials what was granted and what nobody dialled.
    fn dial_grants(&mut self, views: &[PeerView], now: Instant, dials: &mut Vec<Dial>) {
        let due: Vec<(PeerKey, PathId)> = self
            .desk
            .granted
            .iter()
            .filter(|(_, since)| now.saturating_duration_since(**since) >= GRANT_PATIENCE)
            .map(|(key, _)| *key)
            .collect();
        for (peer, id) in due {
            let Some(view) = views.iter().find(|view| view.peer == peer) else { continue };
            let Some(address) = scion_address(view) else { continue };
            let found = self.desk.found.get(&address).map_or(&[][..], |found| &found.paths);
            if let Some(path) = found.iter().find(|path| path.id() == id).cloned() {
                self.want(peer, address, &path, views, now, dials);
            }
        }
    }

    // ---- what is asked for over which connection ----

    /// Tells the core which connections to ask over, and everybody what became of each.
    fn spread(&mut self, views: &[PeerView], now: Instant) {
        for view in views {
            let decision = self.desk.decisions.get(&view.peer);
            let ours: Vec<PathId> = decision.map_or(Vec::new(), |decision| decision.chosen.clone());
            let theirs = |path: PathId| {
                let key = (view.peer, path);
                self.desk.granted.contains_key(&key) || self.desk.implied.contains(&key)
            };
            let we_choose = self.chooses_alone() || !view.speaks_paths;
            let over_ip = self.desk.ip.chosen(view.peer);
            let ways = view.conns.iter().filter_map(|id| Some((*id, self.desk.ways.get(id)?)));
            // Where we do not choose among addresses, what is open over IP is used, and beside paths through SCION.
            let ip_paths = ways.clone().filter(|(_, way)| way.path.as_scion().is_none()).map(|(_, way)| way.path.id());
            let over_ip: Vec<PathId> = if over_ip.is_empty() { ip_paths.collect() } else { over_ip.to_vec() };
            let preferred =
                |path: PathId| over_ip.contains(&path) || if we_choose { ours.contains(&path) } else { theirs(path) };
            let ways: Vec<_> = ways.map(|(id, way)| (id, way.path.id(), way.down.is_some(), way.handshake)).collect();
            let any = ways.iter().any(|(_, path, is_down, _)| preferred(*path) && !is_down);
            let states: Vec<_> = ways
                .iter()
                .map(|(id, path, is_down, handshake)| {
                    let state = match (is_down, any && !preferred(*path)) {
                        (true, _) => PathState::Down,
                        (false, true) => PathState::Standby,
                        (false, false) => PathState::Active,
                    };
                    (*id, *path, state, handshake.is_some())
                })
                .collect();
            let uploads = matches!(self.role(view), Some(Role::Uploader { .. })) && !ours.is_empty();
            for (id, path, state, is_dialled) in states {
                self.core.set_path_state(id, state, now);
                let is_left = if uploads { !ours.contains(&path) } else { state == PathState::Standby };
                let (condition, reason) = match state {
                    PathState::Down => (PathCondition::Down, "nothing comes through"),
                    _ if is_left => (PathCondition::Standby, "not chosen"),
                    _ if any || uploads => (PathCondition::Active, "chosen"),
                    _ if is_dialled => (PathCondition::Active, "the first to its peer"),
                    _ => (PathCondition::Active, "the peer opened it"),
                };
                self.set_condition(id, condition, reason);
            }
            if view.conns.len() > CONNECTIONS_KEPT {
                self.close_one_standby(view, &ours);
            }
        }
    }

    /// Makes room for a path that may be chosen next.
    fn close_one_standby(&self, view: &PeerView, ours: &[PathId]) {
        let ways = view.conns.iter().filter_map(|id| self.desk.ways.get(id));
        let mut idle = ways.filter(|way| {
            let (id, dialled) = (way.path.id(), way.handshake.is_some());
            let is_used = ours.contains(&id) || self.desk.granted.contains_key(&(view.peer, id));
            dialled && !is_used && way.told == Some(PathCondition::Standby)
        });
        if let Some(way) = idle.next() {
            way.handle.close("its peer has connections over better paths".to_owned());
        }
    }

    /// The paths that others use, by what they pass; those between them and us are ours to count.
    fn foreign_load(&self, now: Instant) -> Vec<(Resource, u32)> {
        let own: BTreeSet<PathId> = self.desk.ways.values().map(|way| way.path.id()).collect();
        let mut loads = BTreeMap::new();
        for (path, users) in self.core.foreign_paths(now) {
            if own.contains(&path_id(&path)) || own.contains(&path_id(&path.reversed())) {
                continue;
            }
            for interface in path.interfaces() {
                *loads.entry(Resource::Interface(*interface)).or_insert(0) += users;
            }
        }
        loads.into_iter().collect()
    }
}

/// Where the peer is to be dialled over SCION.
fn scion_address(view: &PeerView) -> Option<ScionAddr> {
    view.listens.iter().find_map(Endpoint::as_scion)
}

/// The identity of a path that starts here.
fn path_id(path: &InterfaceSequence) -> PathId {
    let interfaces = path.interfaces();
    let ends = interfaces.first().zip(interfaces.last());
    let (first, last) = ends.map_or_else(Default::default, |(first, last)| (first.isd_as, last.isd_as));
    PathId::of_scion(first, last, interfaces)
}

/// The way back over `path`, as the peer at its end names it.
fn sequence_back(path: &ScionPath) -> Option<InterfaceSequence> {
    InterfaceSequence::new(path.interfaces.iter().rev().copied().collect())
}
