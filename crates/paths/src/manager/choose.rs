//! Who chooses for whom, and what follows: grants, and connections to open.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::conns::IP_MEASURED;
use super::hosts::HostId;
use super::reason::{PathNews, PathVerdict, Trigger, VerdictReason};
use super::trigger::{RACED_EVERY, REMEASURED_EVERY};
use super::{Action, GRANT_PATIENCE, Inputs, LinkHealth, PATHS_PER_PEER_MAX, PathManager, PathWish, PeerView};
use crate::select::{self, Budget, Candidate, Choice, Resource, Selector};
use crate::{Endpoint, Interface, IsdAs, Path, PathId, PeerKey, ScionAddr, ScionPath, Scoreboard};

/// Connections opened to measure how fast paths open.
const RUNNERS_MAX: usize = PATHS_PER_PEER_MAX - 4;

/// Why we choose the paths to a peer through SCION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It wished for paths.
    Uploader(PathWish),
    /// It cannot choose for us.
    Downloader,
}

/// A host that we choose for, in one direction.
#[derive(Clone, Debug)]
pub struct Client {
    pub host: HostId,
    /// Whom we upload to; `None`: we fetch from it.
    uploads_to: Option<(PeerKey, PathWish)>,
    /// Where it is reached through SCION, where we choose among these paths.
    scion: Option<ScionAddr>,
    /// Its paths over IP are candidates too.
    pub over_ip: bool,
    /// Paths that are chosen for it at most.
    limit: usize,
    is_served: bool,
}

/// A candidate, and what is known of it.
struct Contender<'a> {
    path: Path,
    /// Over plain IP: what it leaves by.
    interface: Option<&'a str>,
    fails: bool,
    seen: Candidate,
}

impl PathManager {
    /// Those we choose for; with more than there are connections, those we serve go first.
    pub(super) fn clients(&self, peers: &[PeerView], is_finished: bool, now: Instant) -> Vec<Client> {
        let fetches = !is_finished && self.config.wished > 1;
        let mut clients = Vec::new();
        for (id, host) in &self.hosts {
            let views = || peers.iter().filter(|view| host.peers.contains(&view.peer));
            let scion = host.scion.and_then(|(peer, address)| {
                let role = self.role(views().find(|view| view.peer == peer)?, is_finished)?;
                Some((peer, address, role))
            });
            if let Some((peer, address, Role::Uploader(wish))) = scion {
                let limit = wish.paths.min(self.config.granted).min(PATHS_PER_PEER_MAX);
                let is_served = views().any(|view| view.is_served);
                let (uploads_to, scion) = (Some((peer, wish)), Some(address));
                clients.push(Client { host: *id, uploads_to, scion, over_ip: false, limit, is_served });
            }
            let is_left_alone = host.alone_until.is_some_and(|until| now < until);
            let over_ip = fetches && host.is_wanted && self.has_choice(host) && !is_left_alone;
            let scion = scion.filter(|(.., role)| *role == Role::Downloader).map(|(_, address, _)| address);
            if scion.is_some_and(|address| self.is_lookup_awaited(address, now)) {
                continue;
            }
            if over_ip || scion.is_some() {
                // What others chose through SCION is part of what we wished for.
                let taken = if scion.is_none() { self.scion_conns(host) } else { 0 };
                let limit = self.config.wished.min(PATHS_PER_PEER_MAX).saturating_sub(taken);
                clients.push(Client { host: *id, uploads_to: None, scion, over_ip, limit, is_served: true });
            }
        }
        clients.sort_by_key(|client| (!client.is_served, client.host));
        clients.truncate(self.config.connections);
        clients
    }

    /// Says what we want of uploaders, once.
    pub(super) fn wish(&mut self, peers: &[PeerView]) {
        if self.has_wished || peers.is_empty() || self.config.chooses_alone || self.config.scion_host.is_none() {
            return;
        }
        let (paths, selector) = (self.config.wished, self.config.selector);
        if paths > 1 || selector.is_some() {
            let paths = paths.min(PATHS_PER_PEER_MAX);
            self.actions.push_back(Action::Wish(PathWish { paths, dial: true, selector }));
        }
        self.has_wished = true;
    }

    /// How to choose for a client: as the user says, else as all whom we serve wish, if they agree.
    fn selector_for(&self, client: &Client, clients: &[Client]) -> Selector {
        if let Some(selector) = self.config.selector {
            return selector;
        }
        if client.uploads_to.is_none() {
            return Selector::default();
        }
        let mut wished = clients.iter().filter_map(|client| Some(client.uploads_to?.1.selector.unwrap_or_default()));
        let first = wished.next().unwrap_or_default();
        if wished.all(|other| other == first) { first } else { Selector::default() }
    }

    fn candidates<'a>(&'a self, client: &Client, links: &LinkHealth, now: Instant) -> Vec<Contender<'a>> {
        let Some(host) = self.hosts.get(&client.host) else { return Vec::new() };
        // One number a client: whom we both serve and fetch from is two to the selector.
        let number = u64::from(client.host.0) * 2 + u64::from(client.uploads_to.is_some());
        let mut options = Vec::new();
        if let Some(address) = client.scion {
            for scion in &self.found(address).paths {
                // Where a connection over it works, that is known best.
                let fails = !self.carries(host, scion.id()) && (links.is_down(scion, now) || host.fails(scion.id()));
                let path = self.scion_path(address, scion);
                let seen = Candidate::new(number, &path);
                options.push(Contender { path, interface: None, fails, seen });
            }
        }
        for candidate in host.ip_candidates.iter().filter(|_| client.over_ip) {
            let id = candidate.path.id();
            let mut seen = Candidate::new(number, &candidate.path);
            seen.resources = vec![Resource::Local(candidate.uplink), Resource::Remote(candidate.path.remote())];
            // Of two that are alike, what is open stays.
            seen.hops = usize::from(!self.is_open(host, id));
            options.push(Contender {
                path: candidate.path.clone(),
                interface: Some(&candidate.interface),
                fails: !self.carries(host, id) && host.fails(id),
                seen,
            });
        }
        for (place, option) in options.iter_mut().enumerate() {
            option.seen.place = place;
            option.seen.handshake = self.handshakes.get(&option.path.id()).copied();
        }
        options
    }

    fn scion_path(&self, address: ScionAddr, scion: &Arc<ScionPath>) -> Path {
        let remote = address.host.ip();
        Path::scion(self.config.scion_host.unwrap_or(remote), remote, Arc::clone(scion))
    }

    /// Whether something that the choice depends on changed, or measurements are due to be looked at.
    pub(super) fn is_choice_due(&mut self, clients: &[Client], links: &LinkHealth, now: Instant) -> bool {
        let mut hash = DefaultHasher::new();
        let mut every: Option<Duration> = None;
        for client in clients {
            (client.host, client.limit, client.uploads_to.map(|(peer, wish)| (peer, wish.selector))).hash(&mut hash);
            for option in self.candidates(client, links, now) {
                (option.path.id(), option.fails).hash(&mut hash);
            }
            let remeasured = match self.selector_for(client, clients) {
                Selector::BandwidthRace | Selector::HandshakeRace => Some(RACED_EVERY),
                Selector::Disjoint => Some(REMEASURED_EVERY),
                _ => None,
            };
            every = every.into_iter().chain(remeasured).min();
        }
        self.trigger.is_due(hash.finish(), every, now)
    }

    /// Chooses for all clients, within one budget.
    pub(super) fn decide(&mut self, clients: &[Client], inputs: &mut Inputs<'_>, now: Instant) {
        inputs.board.set_foreign(self.foreign_load(inputs.foreign));
        let trigger = self.trigger.take_why();
        // What peers granted us takes its part whatever we choose.
        let granted: usize = self.hosts.values().map(|host| host.granted.len()).sum();
        let mut connections = self.config.connections.saturating_sub(granted);
        let mut selectors: Vec<Selector> = Vec::new();
        for client in clients {
            let selector = self.selector_for(client, clients);
            if !selectors.contains(&selector) {
                selectors.push(selector);
            }
        }
        let mut news = Vec::new();
        for selector in selectors {
            let own: Vec<&Client> =
                clients.iter().filter(|client| self.selector_for(client, clients) == selector).collect();
            let ballots: Vec<Vec<Contender<'_>>> =
                own.iter().map(|client| self.candidates(client, inputs.links, now)).collect();
            for option in ballots.iter().flatten() {
                let is_scion = option.path.as_scion().is_some();
                inputs.board.add(option.path.id(), if is_scion { &option.seen.resources } else { &IP_MEASURED });
                inputs.board.set_down(option.path.id(), option.fails);
            }
            let per_peer = own.iter().map(|client| client.limit).max().unwrap_or(0);
            let all: Vec<Candidate> = ballots.iter().flatten().map(|option| option.seen.clone()).collect();
            let mut selected =
                selector.select(&all, inputs.board, Budget { connections, per_peer }).verdicts.into_iter();
            for (client, options) in own.into_iter().zip(ballots) {
                let mut left = client.limit;
                let mut verdicts = Vec::new();
                for (option, mut verdict) in options.into_iter().zip(selected.by_ref()) {
                    if verdict.choice == Choice::Chosen {
                        // The selector knows one limit for all.
                        match left.checked_sub(1) {
                            Some(rest) => (left, connections) = (rest, connections.saturating_sub(1)),
                            None => {
                                verdict.choice = Choice::Standby;
                                verdict.reason = select::Reason::PeerServed;
                            }
                        }
                    }
                    let reason = VerdictReason::Selected {
                        reason: verdict.reason,
                        interface: option.interface.map(str::to_owned),
                    };
                    verdicts.push(PathVerdict { path: option.path, choice: verdict.choice, reason });
                }
                verdicts.extend(client.scion.into_iter().flat_map(|address| self.narrow_verdicts(address)));
                news.push((client.clone(), selector, verdicts));
            }
        }
        for (client, selector, verdicts) in news {
            self.take_decision(&client, selector, verdicts, &trigger);
        }
        self.forget_decisions(clients);
    }

    /// A client's part of a choice.
    fn take_decision(&mut self, client: &Client, selector: Selector, verdicts: Vec<PathVerdict>, trigger: &Trigger) {
        let Some(host) = self.hosts.get_mut(&client.host) else { return };
        let decision = if client.uploads_to.is_some() { &mut host.uploads } else { &mut host.fetches };
        let met_at = host.listens.first().or(host.remotes.first()).map(|at| Endpoint::from(*at));
        if let Some(peer) = client.scion.map(Endpoint::Scion).or(met_at)
            && decision.take(&verdicts)
        {
            let (selector, trigger) = (Some(selector), trigger.clone());
            self.actions.push_back(Action::Tell(PathNews::Chosen { peer, selector, trigger, verdicts }));
        }
    }

    /// Whom we do not choose for any more, nothing is chosen for.
    fn forget_decisions(&mut self, clients: &[Client]) {
        let kept: BTreeSet<(HostId, bool)> =
            clients.iter().map(|client| (client.host, client.uploads_to.is_some())).collect();
        for (id, host) in &mut self.hosts {
            if !kept.contains(&(*id, true)) {
                host.uploads = Default::default();
            }
            if !kept.contains(&(*id, false)) {
                host.fetches = Default::default();
            }
        }
    }

    /// What is said of the paths that are no candidates.
    fn narrow_verdicts(&self, address: ScionAddr) -> impl Iterator<Item = PathVerdict> {
        self.found(address).narrow.iter().map(move |(path, needed)| PathVerdict {
            path: self.scion_path(address, path),
            choice: Choice::Left,
            reason: VerdictReason::TooNarrow { mtu: path.mtu, needed: *needed },
        })
    }

    /// Grants, and opens what has no connection.
    pub(super) fn act_on_decisions(&mut self, clients: &[Client], now: Instant, wall: SystemTime) {
        for client in clients {
            let all = self.ways_to(client);
            let Some(host) = self.hosts.get(&client.host) else { continue };
            let decision = if client.uploads_to.is_some() { &host.uploads } else { &host.fetches };
            let chosen = all.iter().filter(|(_, path)| decision.chosen.contains(&path.id()));
            let mut wanted: Vec<&(Endpoint, Path)> = chosen.collect();
            if let Some((peer, wish)) = client.uploads_to {
                let paths = wanted.iter().filter_map(|(_, path)| path.as_scion().cloned()).collect();
                self.actions.push_back(Action::Grant { peer, paths });
                if !wish.dial {
                    continue;
                }
            }
            // What failed is tried again, whether it is chosen at present or not: it cannot be while it fails. And so is, for
            // races, what was never tried.
            wanted.extend(all.iter().filter(|(_, path)| host.fails(path.id())));
            if self.selector_for(client, clients) == Selector::HandshakeRace {
                let untried = all.iter().filter(|(_, path)| !self.handshakes.contains_key(&path.id()));
                wanted.extend(untried.take(RUNNERS_MAX));
            }
            for (address, path) in wanted {
                self.want(client.host, *address, path, now, wall);
            }
        }
    }

    /// Where a client is dialled, over each path that we may choose.
    fn ways_to(&self, client: &Client) -> Vec<(Endpoint, Path)> {
        let Some(host) = self.hosts.get(&client.host) else { return Vec::new() };
        let mut ways = Vec::new();
        if let Some(address) = client.scion {
            let paths = self.found(address).paths.iter();
            ways.extend(paths.map(|path| (Endpoint::Scion(address), self.scion_path(address, path))));
        }
        if client.over_ip {
            let candidates = host.ip_candidates.iter();
            ways.extend(candidates.map(|candidate| (candidate.remote.into(), candidate.path.clone())));
        }
        ways
    }

    // ---- what we were granted ----

    /// Takes in what uploaders grant.
    pub(super) fn apply_grants(&mut self, peers: &[PeerView], now: Instant) {
        for view in peers {
            let Some(id) = self.of_peer.get(&view.peer).copied() else { continue };
            let Some(host) =
                self.hosts.get_mut(&id).filter(|host| host.scion.is_some_and(|(peer, _)| peer == view.peer))
            else {
                continue;
            };
            let granted: BTreeSet<PathId> = view.granted.iter().copied().collect();
            if !host.granted.keys().copied().eq(granted.iter().copied()) {
                host.implied.clear();
                host.granted.retain(|path, _| granted.contains(path));
                for path in &granted {
                    host.granted.entry(*path).or_insert(now);
                }
                host.lost.retain(|path| granted.contains(path));
                host.grants_untold = true;
            }
            // The names of the paths come from a lookup.
            if let Some((_, address)) = host.scion.filter(|_| host.grants_untold)
                && !self.found(address).paths.is_empty()
            {
                self.explain_grants(address, &granted);
                if let Some(host) = self.hosts.get_mut(&id) {
                    host.grants_untold = false;
                }
            }
        }
    }

    fn explain_grants(&mut self, address: ScionAddr, granted: &BTreeSet<PathId>) {
        let verdict = |path: &Arc<ScionPath>| {
            let (choice, reason) = match granted.contains(&path.id()) {
                true => (Choice::Chosen, VerdictReason::Granted),
                false => (Choice::Left, VerdictReason::NotGranted),
            };
            PathVerdict { path: self.scion_path(address, path), choice, reason }
        };
        let verdicts: Vec<PathVerdict> =
            self.found(address).paths.iter().map(verdict).chain(self.narrow_verdicts(address)).collect();
        let (peer, trigger) = (Endpoint::Scion(address), Trigger::UploaderChose);
        self.actions.push_back(Action::Tell(PathNews::Chosen { peer, selector: None, trigger, verdicts }));
    }

    /// Dials what was granted and what nobody dialled.
    pub(super) fn dial_grants(&mut self, now: Instant, wall: SystemTime) {
        let mut due = Vec::new();
        for (id, host) in &self.hosts {
            let Some((_, address)) = host.scion else { continue };
            let is_due = |path: &&Arc<ScionPath>| {
                let since = host.granted.get(&path.id());
                since.is_some_and(|since| now.saturating_duration_since(*since) >= GRANT_PATIENCE)
            };
            let paths = self.found(address).paths.iter().filter(is_due);
            due.extend(paths.map(|path| (*id, Endpoint::Scion(address), self.scion_path(address, path))));
        }
        for (id, address, path) in due {
            self.want(id, address, &path, now, wall);
        }
    }

    // ---- load ----

    /// The paths that others use, by what they pass; those between them and us are ours to count.
    fn foreign_load(&self, foreign: &[(Vec<Interface>, u32)]) -> Vec<(Resource, u32)> {
        let own: BTreeSet<PathId> = self.conns.values().map(|conn| conn.path.id()).collect();
        let mut loads = std::collections::BTreeMap::new();
        for (path, users) in foreign {
            let back: Vec<Interface> = path.iter().rev().copied().collect();
            if own.contains(&path_id(path)) || own.contains(&path_id(&back)) {
                continue;
            }
            for interface in path {
                *loads.entry(Resource::Interface(*interface)).or_insert(0) += users;
            }
        }
        loads.into_iter().collect()
    }

    /// The places of `paths`, in the order in which the selector would take them as one more path beside those in use.
    pub(super) fn rank(&self, paths: &[&Arc<ScionPath>], board: &Scoreboard) -> Vec<usize> {
        let mut load: HashMap<Resource, f64> = HashMap::new();
        for conn in self.conns.values().filter(|conn| conn.down.is_none()) {
            for resource in Candidate::new(0, &conn.path).resources {
                *load.entry(resource).or_default() += 1.0;
            }
        }
        let overlap = |path: &Arc<ScionPath>| -> f64 {
            let resources = path.interfaces.iter().copied().map(Resource::Interface);
            resources
                .map(|at| board.overlap_weight(&at) * (load.get(&at).copied().unwrap_or(0.0) + board.foreign_load(&at)))
                .sum()
        };
        let selector = self.config.selector.unwrap_or_default();
        let mut order: Vec<(usize, usize, f64)> = Vec::new();
        for (place, path) in paths.iter().enumerate() {
            let hops = if selector == Selector::Shortest { path.hop_count() } else { 0 };
            let spreads = matches!(selector, Selector::Disjoint | Selector::DisjointPaper);
            order.push((place, hops, if spreads { overlap(path) } else { 0.0 }));
        }
        order.sort_by(|one, other| one.1.cmp(&other.1).then(one.2.total_cmp(&other.2)).then(one.0.cmp(&other.0)));
        order.into_iter().map(|(place, ..)| place).collect()
    }
}

/// The identity of a path that starts here.
pub fn path_id(interfaces: &[Interface]) -> PathId {
    let ends = interfaces.first().zip(interfaces.last());
    let (first, last): (IsdAs, IsdAs) = ends.map_or_else(Default::default, |(first, last)| (first.isd_as, last.isd_as));
    PathId::of_scion(first, last, interfaces)
}
