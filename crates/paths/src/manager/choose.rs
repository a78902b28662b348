//! Who chooses for whom, and what follows: grants, and connections to open.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use super::conns::{Connection, IP_MEASURED};
use super::hosts::{Host, HostId};
use super::reason::{PathNews, PathVerdict, Trigger, VerdictReason};
use super::trigger::{RACED_EVERY, REMEASURED_EVERY};
use super::{
    Action, GRANT_PATIENCE, GrantedPath, Inputs, IpCandidate, LinkHealth, PATHS_PER_PEER_MAX, PathManager, PathWish,
    PeerView,
};
use crate::scoreboard::ThirdPartyLoad;
use crate::select::{Budget, Candidate, Choice, Resource, Selector};
use crate::{Endpoint, Interface, IsdAs, Path, PathId, PeerKey, ScionAddr};

/// Connections opened to measure how fast paths open.
const RUNNERS_MAX: usize = PATHS_PER_PEER_MAX - 4;

/// Why we choose the paths to a peer through SCION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It wished for paths.
    Uploader(PathWish),
    /// It cannot choose for us.
    Downloader,
}

/// A host that we choose for, in one direction.
#[derive(Clone, Debug)]
pub(super) struct Client {
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
    /// How to choose for it.
    selector: Selector,
}

/// A path that may be chosen for a client.
#[derive(Clone, Copy)]
struct PathOption<'a> {
    /// Where it is dialled.
    address: Endpoint,
    path: &'a Path,
    over_ip: Option<&'a IpCandidate>,
    /// Another one that would bring all that this one does.
    repeats: Option<&'a Path>,
}

impl PathManager {
    /// Those we choose for; with more than there are connections, those we serve go first.
    pub(super) fn clients(&self, peers: &[PeerView], is_finished: bool, now: Instant) -> Vec<Client> {
        let fetches = !is_finished && self.config.wished > 1;
        let mut clients = Vec::new();
        for (id, host) in &self.hosts {
            let views = || host.views(peers);
            let scion = host.scion.and_then(|(peer, address)| {
                let role = self.role(views().find(|view| view.peer == peer)?, is_finished)?;
                Some((peer, address, role))
            });
            if let Some((peer, address, Role::Uploader(wish))) = scion {
                let limit = wish.paths.min(self.config.granted).min(PATHS_PER_PEER_MAX);
                let is_served = views().any(|view| view.is_served);
                let (uploads_to, scion) = (Some((peer, wish)), Some(address));
                let selector = wish.selector.unwrap_or_default();
                clients.push(Client { host: *id, uploads_to, scion, over_ip: false, limit, is_served, selector });
            }
            let is_left_alone = host.alone_until.is_some_and(|until| now < until);
            let over_ip = fetches && host.is_wanted && self.has_choice(host) && !is_left_alone;
            let scion = scion.filter(|(.., role)| *role == Role::Downloader).map(|(_, address, _)| address);
            if scion.is_some_and(|address| self.is_lookup_awaited(address, now)) {
                continue;
            }
            if over_ip || scion.is_some() {
                // What others chose through SCION is part of what we wished for.
                let taken = if scion.is_none() { self.scion_conns_in_use(host) } else { 0 };
                let limit = self.config.wished.min(PATHS_PER_PEER_MAX).saturating_sub(taken);
                let (uploads_to, selector) = (None, Selector::default());
                clients.push(Client { host: *id, uploads_to, scion, over_ip, limit, is_served: true, selector });
            }
        }
        clients.sort_by_key(|client| (!client.is_served, client.host));
        clients.truncate(self.config.connections);
        self.agree_on_selectors(&mut clients);
        clients
    }

    /// Chooses as the user says, else for all whom we serve as they wish, if they agree.
    fn agree_on_selectors(&self, clients: &mut [Client]) {
        let mut wished = clients.iter().filter(|client| client.uploads_to.is_some()).map(|client| client.selector);
        let first = wished.next().unwrap_or_default();
        let agreed = if wished.all(|other| other == first) { first } else { Selector::default() };
        for client in clients {
            let unless_told = if client.uploads_to.is_some() { agreed } else { Selector::default() };
            client.selector = self.config.selector.unwrap_or(unless_told);
        }
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

    /// The paths that may be chosen for a client, those through SCION first.
    fn ways<'a>(&'a self, client: &Client) -> impl Iterator<Item = PathOption<'a>> + use<'a> {
        let over_scion = client.scion.into_iter().flat_map(|address| {
            let way = move |path| PathOption { address: address.into(), path, over_ip: None, repeats: None };
            self.known_paths(address).iter().map(way)
        });
        let host = self.hosts.get(&client.host).filter(|_| client.over_ip);
        let over_ip = host.into_iter().flat_map(|host| &host.ip_candidates).map(|candidate| PathOption {
            address: candidate.remote.into(),
            path: &candidate.path,
            over_ip: Some(candidate),
            repeats: None,
        });
        over_scion.chain(over_ip)
    }

    /// Whether a path to a host does not work, as far as is known. Where a connection over it works, that is known best.
    fn fails(&self, host: &Host, path: &Path, links: &LinkHealth, now: Instant) -> bool {
        let is_down = || path.as_scion().is_some_and(|path| links.is_down(path, now));
        !self.carries(host, path.id()) && (host.fails(path.id()) || is_down())
    }

    fn candidate(&self, client: &Client, host: &Host, place: usize, way: PathOption<'_>) -> Candidate {
        // One number a client: whom we both serve and fetch from is two to the selector.
        let number = u64::from(client.host.0) * 2 + u64::from(client.uploads_to.is_some());
        let mut candidate = Candidate::new(number, way.path);
        if let Some(over_ip) = way.over_ip {
            let (from, to) = uplinks(host, over_ip);
            candidate.resources = vec![Resource::Local(from), Resource::Remote(to)];
            // Of two that are alike, what is open stays.
            candidate.hops = usize::from(!self.is_open(host, way.path.id()));
        }
        candidate.place = place;
        let decision = if client.uploads_to.is_some() { &host.uploads } else { &host.fetches };
        candidate.is_held = decision.chosen.contains(&way.path.id());
        candidate.handshake = self.handshakes.get(&way.path.id()).copied();
        candidate.limit = Some(client.limit);
        candidate
    }

    /// Finds those of `ways` that repeat another one: over plain IP, between the same two uplinks, as IPv4 and IPv6 from one house to
    /// another are. All that is known of them is the same, and two connections take each other's packets. What is in use is repeated
    /// by the others, else what is open; what fails repeats nothing, nor is it repeated.
    fn find_repeated(
        &self,
        client: &Client,
        host: &Host,
        ways: &mut [PathOption<'_>],
        links: &LinkHealth,
        now: Instant,
    ) {
        // Who names another way to choose gets it to the letter.
        if client.selector != Selector::Disjoint {
            return;
        }
        let works = |way: &&mut PathOption<'_>| way.over_ip.is_some() && !self.fails(host, way.path, links, now);
        let mut over_ip: Vec<&mut PathOption<'_>> = ways.iter_mut().filter(works).collect();
        over_ip.sort_by_key(|way| {
            let path = way.path.id();
            (!host.fetches.chosen.contains(&path), !self.is_open(host, path))
        });
        let mut first = HashMap::new();
        for way in over_ip {
            match first.entry(way.over_ip.map(|candidate| uplinks(host, candidate))) {
                Entry::Occupied(other) => way.repeats = Some(*other.get()),
                Entry::Vacant(vacant) => drop(vacant.insert(way.path)),
            }
        }
    }

    /// Whether something that the choice depends on changed, or measurements are due to be looked at.
    pub(super) fn is_choice_due(
        &mut self,
        clients: &[Client],
        granted: usize,
        links: &LinkHealth,
        now: Instant,
    ) -> bool {
        let mut hash = DefaultHasher::new();
        granted.hash(&mut hash);
        let mut every: Option<Duration> = None;
        for client in clients {
            (client.host, client.limit, client.uploads_to.map(|(peer, wish)| (peer, wish.selector))).hash(&mut hash);
            if let Some(host) = self.hosts.get(&client.host) {
                for way in self.ways(client) {
                    (way.path.id(), self.fails(host, way.path, links, now)).hash(&mut hash);
                    way.over_ip.map(|candidate| uplinks(host, candidate)).hash(&mut hash);
                }
            }
            let remeasured = match client.selector {
                Selector::BandwidthRace | Selector::HandshakeRace => Some(RACED_EVERY),
                Selector::Disjoint => Some(REMEASURED_EVERY),
                _ => None,
            };
            every = every.into_iter().chain(remeasured).min();
        }
        self.trigger.is_due(hash.finish(), every, now)
    }

    /// Chooses for all clients, within one budget, of which the paths `granted` to us take their part.
    pub(super) fn decide(&mut self, clients: &[Client], granted: usize, inputs: &mut Inputs<'_>, now: Instant) {
        let loads = self.third_party_load(&(inputs.third_party)());
        // The board is all contents', and each has its own peers, who tell of what they use.
        self.third_party = ThirdPartyLoad::new(loads.iter().copied());
        inputs.board.set_third_party_load(loads);
        let trigger = self.trigger.take_why();
        let mut connections = self.config.connections.saturating_sub(granted);
        let mut selectors: Vec<Selector> = Vec::new();
        for client in clients {
            if !selectors.contains(&client.selector) {
                selectors.push(client.selector);
            }
        }
        let mut decided = Vec::new();
        for selector in selectors {
            let own = clients.iter().filter(|client| client.selector == selector);
            let mut ballots: Vec<(&Client, Vec<PathOption<'_>>)> = Vec::new();
            let mut candidates = Vec::new();
            for client in own {
                let Some(host) = self.hosts.get(&client.host) else { continue };
                let mut ways: Vec<PathOption<'_>> = self.ways(client).collect();
                self.find_repeated(client, host, &mut ways, inputs.links, now);
                for (place, way) in ways.iter().enumerate().filter(|(_, way)| way.repeats.is_none()) {
                    let candidate = self.candidate(client, host, place, *way);
                    let measured: &[Resource] = if way.over_ip.is_some() { &IP_MEASURED } else { &candidate.resources };
                    inputs.board.add(candidate.path, measured);
                    inputs.board.set_down(candidate.path, self.fails(host, way.path, inputs.links, now));
                    candidates.push(candidate);
                }
                ballots.push((client, ways));
            }
            let per_peer = ballots.iter().map(|(client, _)| client.limit).max().unwrap_or(0);
            let selection = selector.select(&candidates, inputs.board, Budget { connections, per_peer });
            let mut selected = selection.verdicts.into_iter();
            for (client, ways) in ballots {
                let mut verdicts = Vec::new();
                for way in ways {
                    if let Some(other) = way.repeats {
                        let reason = VerdictReason::SameUplinks { other: other.clone() };
                        verdicts.push(PathVerdict { path: way.path.clone(), choice: Choice::Standby, reason });
                        continue;
                    }
                    let Some(verdict) = selected.next() else { break };
                    connections = connections.saturating_sub(usize::from(verdict.choice == Choice::Chosen));
                    let interface = way.over_ip.map(|candidate| candidate.interface.clone());
                    let reason = VerdictReason::Selected { reason: verdict.reason, interface };
                    verdicts.push(PathVerdict { path: way.path.clone(), choice: verdict.choice, reason });
                }
                verdicts.extend(client.scion.into_iter().flat_map(|address| self.narrow_verdicts(address)));
                decided.push((client, verdicts));
            }
        }
        for (client, verdicts) in decided {
            self.take_decision(client, verdicts, &trigger);
        }
        self.forget_decisions(clients);
    }

    /// A client's part of a choice.
    fn take_decision(&mut self, client: &Client, verdicts: Vec<PathVerdict>, trigger: &Trigger) {
        let Some(host) = self.hosts.get_mut(&client.host) else { return };
        let decision = if client.uploads_to.is_some() { &mut host.uploads } else { &mut host.fetches };
        let met_at = host.listens.first().or(host.remotes.first()).map(|at| Endpoint::from(*at));
        if let Some(peer) = client.scion.map(Endpoint::Scion).or(met_at)
            && decision.take(&verdicts)
        {
            let (selector, trigger) = (Some(client.selector), trigger.clone());
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
        let narrow = self.lookups.get(&address).map_or(&[][..], |lookup| &lookup.narrow);
        narrow.iter().filter_map(|(path, needed)| {
            let reason = VerdictReason::TooNarrow { mtu: path.as_scion()?.mtu, needed: *needed };
            Some(PathVerdict { path: path.clone(), choice: Choice::Left, reason })
        })
    }

    /// Grants, and opens what has no connection.
    pub(super) fn act_on_decisions(&mut self, clients: &[Client], now: Instant, wall: SystemTime) {
        for client in clients {
            let Some(host) = self.hosts.get(&client.host) else { continue };
            let decision = if client.uploads_to.is_some() { &host.uploads } else { &host.fetches };
            let to_dial = |way: PathOption<'_>| (way.address, way.path.clone());
            let chosen = self.ways(client).filter(|way| decision.chosen.contains(&way.path.id()));
            let mut wanted: Vec<(Endpoint, Path)> = chosen.map(to_dial).collect();
            let grants = wanted.iter().filter_map(|(_, path)| path.as_scion().cloned()).collect();
            // What failed is tried again, whether it is chosen at present or not: it cannot be while it fails. And so is, for
            // races, what was never tried.
            wanted.extend(self.ways(client).filter(|way| host.fails(way.path.id())).map(to_dial));
            if client.selector == Selector::HandshakeRace {
                let untried = self.ways(client).filter(|way| !self.handshakes.contains_key(&way.path.id()));
                wanted.extend(untried.take(RUNNERS_MAX).map(to_dial));
            }
            if let Some((peer, wish)) = client.uploads_to {
                self.actions.push_back(Action::Grant { peer, paths: grants });
                if !wish.dial {
                    continue;
                }
            }
            for (address, path) in wanted {
                self.want(client.host, address, &path, now, wall);
            }
        }
    }

    // ---- what we were granted ----

    /// Paths that others chose for us. A grant is a peer's word, and anybody may say anything: it counts where we fetch from the peer, once
    /// a connection goes over the path or a lookup names it, and no more of them than we wished for.
    pub(super) fn granted_to_us(&self, is_finished: bool) -> usize {
        let most = self.config.wished.min(PATHS_PER_PEER_MAX);
        let is_there = |host: &Host, granted: &GrantedPath| {
            let known = host.scion.map_or(&[][..], |(_, address)| self.known_paths(address));
            let is_over_it = |conn: &Connection| [granted.id, granted.id_told].contains(&conn.path.id());
            known.iter().any(|path| path.id() == granted.id) || self.conns_of(host).any(|(_, conn)| is_over_it(conn))
        };
        let of = |host: &Host| host.granted.keys().filter(|granted| is_there(host, granted)).count().min(most);
        self.hosts.values().filter(|host| host.is_wanted && !is_finished).map(of).sum()
    }

    /// Takes in what uploaders grant.
    pub(super) fn apply_grants(&mut self, peers: &[PeerView], now: Instant) {
        for view in peers {
            let Some(id) = self.of_peer.get(&view.peer).copied() else { continue };
            let Some(host) =
                self.hosts.get_mut(&id).filter(|host| host.scion.is_some_and(|(peer, _)| peer == view.peer))
            else {
                continue;
            };
            let granted: BTreeSet<GrantedPath> = view.granted.iter().copied().collect();
            if !host.granted.keys().copied().eq(granted.iter().copied()) {
                host.implied.clear();
                host.granted.retain(|path, _| granted.contains(path));
                for path in &granted {
                    host.granted.entry(*path).or_insert(now);
                }
                let is_granted = |path: &PathId| host.granted.keys().any(|granted| granted.id == *path);
                host.lost.retain(is_granted);
                host.grants_untold = true;
            }
            // The names of the paths come from a lookup.
            if let Some((_, address)) = host.scion.filter(|_| host.grants_untold)
                && !self.known_paths(address).is_empty()
            {
                self.explain_grants(address, &granted);
                if let Some(host) = self.hosts.get_mut(&id) {
                    host.grants_untold = false;
                }
            }
        }
    }

    fn explain_grants(&mut self, address: ScionAddr, granted: &BTreeSet<GrantedPath>) {
        let verdict = |path: &Path| {
            let id = path.id();
            let (choice, reason) = match granted.iter().any(|granted| granted.id == id) {
                true => (Choice::Chosen, VerdictReason::Granted),
                false => (Choice::Left, VerdictReason::NotGranted),
            };
            PathVerdict { path: path.clone(), choice, reason }
        };
        let verdicts: Vec<PathVerdict> =
            self.known_paths(address).iter().map(verdict).chain(self.narrow_verdicts(address)).collect();
        let (peer, trigger) = (Endpoint::Scion(address), Trigger::UploaderChose);
        self.actions.push_back(Action::Tell(PathNews::Chosen { peer, selector: None, trigger, verdicts }));
    }

    /// Dials what was granted and what nobody dialled.
    pub(super) fn dial_grants(&mut self, now: Instant, wall: SystemTime) {
        let mut due = Vec::new();
        for (id, host) in &self.hosts {
            let Some((_, address)) = host.scion else { continue };
            let is_due = |path: &&Path| {
                let id = path.id();
                let mut since = host.granted.iter().filter(|(granted, _)| granted.id == id).map(|(_, since)| *since);
                since.any(|since| now.saturating_duration_since(since) >= GRANT_PATIENCE)
            };
            let paths = self.known_paths(address).iter().filter(is_due);
            due.extend(paths.map(|path| (*id, Endpoint::Scion(address), path.clone())));
        }
        for (id, address, path) in due {
            self.want(id, address, &path, now, wall);
        }
    }

    // ---- load ----

    /// The paths that others use, by what they pass; those between them and us are ours to count.
    fn third_party_load(&self, third_party: &[(Vec<Interface>, u32)]) -> Vec<(Resource, u32)> {
        let own: BTreeSet<PathId> = self.conns.values().map(|conn| conn.path.id()).collect();
        let mut loads = std::collections::BTreeMap::new();
        for (path, users) in third_party {
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
}

/// The ends of a way over plain IP: what stands for our uplink, and for the host's.
fn uplinks(host: &Host, candidate: &IpCandidate) -> (IpAddr, IpAddr) {
    (candidate.uplink, host.uplink(candidate.path.remote()))
}

/// The identity of a path that starts here.
pub(super) fn path_id(interfaces: &[Interface]) -> PathId {
    let ends = interfaces.first().zip(interfaces.last());
    let (first, last): (IsdAs, IsdAs) = ends.map_or_else(Default::default, |(first, last)| (first.isd_as, last.isd_as));
    PathId::of_scion(first, last, interfaces)
}
