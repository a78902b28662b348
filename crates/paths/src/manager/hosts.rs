//! Who is at the ends of the connections, and by which ways each is reached.
//!
//! The protocol knows peers. A peer of our kind tells its further addresses, as we tell ours, and is known as one peer over all of
//! them. Others may have another peer id on every connection (libtorrent): those that listen at the same address are one host
//! here, whatever the protocol takes them for.
//!
//! Over plain IP who fetches dials: any BitTorrent client takes connections. One that takes a single connection from a peer
//! closes what is one too many; it is left with one then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::backoff::DialBackoff;
use super::choose::Role;
use super::conns::Connection;
use super::reason::{DownCause, Trigger};
use super::trigger::Decision;
use super::{GrantedPath, Inputs, IpCandidate, PathManager, PeerView};
use crate::{ConnId, Endpoint, PathId, PathState, PeerKey, ScionAddr};

/// Addresses of one host that are paired with ours: what a peer may tell of itself, and where it was met, several times over.
pub const REMOTES_MAX: usize = 16;
/// After a connection over IP opened, the peer soon says what it has and where else it listens: so long it is looked often, ...
pub(super) const EARLY: Duration = Duration::from_secs(2);
/// ... this often.
pub(super) const EARLY_LOOK_EVERY: Duration = Duration::from_millis(50);
/// A connection that ends so soon after another one opened was one too many for the peer.
pub(super) const TOO_MANY_WITHIN: Duration = Duration::from_secs(5);
/// So many of those, and the peer keeps the one connection it has, ...
pub(super) const TOO_MANY_MAX: u32 = 2;
/// ... for so long: it may have thought that a connection was there which is lost.
pub(super) const LEFT_ALONE: Duration = Duration::from_secs(60);

/// The number of a host: one peer, or those who listen at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub(super) u32);

/// A host, its connections, and what was decided of the paths to it.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// Places of its peers among those of the present look.
    views: Vec<usize>,
    pub conns: Vec<ConnId>,
    pub listens: Vec<SocketAddr>,
    /// It has content that we want.
    pub is_wanted: bool,
    /// Where it is dialled over SCION, and as which peer.
    pub scion: Option<(PeerKey, ScionAddr)>,
    /// Where it may be dialled over IP: where it showed that it listens, and where it only says so.
    pub remotes: Vec<SocketAddr>,
    /// Which of its uplinks its addresses are at, as it says.
    uplinks: BTreeMap<IpAddr, u32>,
    /// Interfaces came or went since `ip_candidates` was made.
    is_stale: bool,
    pub ip_candidates: Vec<IpCandidate>,
    /// What we grant it.
    pub uploads: Decision,
    /// What we dial to fetch from it.
    pub fetches: Decision,
    /// What it granted us, and since when.
    pub granted: BTreeMap<GrantedPath, Instant>,
    /// What it granted was not told yet.
    pub grants_untold: bool,
    /// Paths over which it dialled us since it said what it grants: it will say so of these.
    pub implied: BTreeSet<PathId>,
    pub dials: BTreeMap<PathId, DialBackoff>,
    /// Paths that failed while they were of use: tried again.
    pub lost: BTreeSet<PathId>,
    /// When a connection over IP opened last, and was not held against it yet.
    pub opened_at: Option<Instant>,
    pub too_many: u32,
    pub alone_until: Option<Instant>,
}

impl Host {
    /// Its peers, out of those of the present look.
    pub(super) fn views<'a>(&'a self, peers: &'a [PeerView]) -> impl Iterator<Item = &'a PeerView> {
        self.views.iter().filter_map(|at| peers.get(*at))
    }

    /// It had one connection too many.
    pub(super) fn refused(&mut self, now: Instant) {
        self.too_many += 1;
        if self.too_many >= TOO_MANY_MAX {
            self.too_many = 0;
            self.alone_until = Some(now + LEFT_ALONE);
        }
    }

    /// Whether a path does not work, by what became of its connections.
    pub(super) fn fails(&self, path: PathId) -> bool {
        self.lost.contains(&path) || self.dials.get(&path).is_some_and(DialBackoff::fails)
    }

    /// Whether there are paths to be tried again.
    pub(super) fn is_short_of_paths(&self) -> bool {
        !self.lost.is_empty() || self.dials.values().any(DialBackoff::fails)
    }

    /// The address that stands for its uplink which has `remote`, as far as it says: one uplink, whatever its addresses and families.
    pub(super) fn uplink(&self, remote: IpAddr) -> IpAddr {
        let number = self.uplinks.get(&remote);
        let first = self.uplinks.iter().find(|(_, other)| Some(*other) == number);
        first.map_or(remote, |(first, _)| *first)
    }

    /// Whether we chose a path, to serve it or to fetch from it.
    pub(super) fn is_chosen(&self, path: &PathId) -> bool {
        self.uploads.chosen.contains(path) || self.fetches.chosen.contains(path)
    }

    /// Whether it granted us a path, be it one that only its packets tell of yet.
    pub(super) fn is_granted(&self, path: &PathId) -> bool {
        self.granted.keys().any(|granted| [granted.id, granted.id_told].contains(path))
    }

    /// The paths over IP that we chose and that there are still.
    pub(super) fn ip_chosen(&self) -> impl Iterator<Item = PathId> {
        let ids = self.ip_candidates.iter().map(|candidate| candidate.path.id());
        ids.filter(|path| self.fetches.chosen.contains(path))
    }

    pub(super) fn dials_under_way(&self) -> usize {
        self.dials.values().filter(|dial| dial.is_under_way()).count()
    }
}

impl PathManager {
    /// The host that a peer's connections belong to.
    pub(super) fn host_of(&mut self, peer: PeerKey) -> Option<&mut Host> {
        self.hosts.get_mut(self.of_peer.get(&peer)?)
    }

    pub(super) fn conns_of<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = (ConnId, &'a Connection)> {
        host.conns.iter().filter_map(|id| Some((*id, self.conns.get(id)?)))
    }

    /// Finds out who is at the ends of the connections.
    pub(super) fn regroup(&mut self, peers: &[PeerView]) {
        let of_peer = std::mem::take(&mut self.of_peer);
        let of_address = std::mem::take(&mut self.of_address);
        // A name that is not proven (behind a NAT it cannot be) makes paths one host's where that host named their address too.
        let mut named: HashMap<([u8; 32], SocketAddr), HostId> = HashMap::new();
        let mut met: BTreeSet<HostId> = BTreeSet::new();
        for (at, view) in peers.iter().enumerate() {
            let listens: Vec<SocketAddr> = view.listens.iter().filter_map(Endpoint::as_ip).collect();
            let by_name = listens.iter().find_map(|at| named.get(&(view.name?, *at)));
            let by_address = || listens.iter().find_map(|at| self.of_address.get(at).or_else(|| of_address.get(at)));
            let id = by_name.or_else(by_address).or_else(|| of_peer.get(&view.peer)).copied().unwrap_or_else(|| {
                self.next_host = self.next_host.wrapping_add(1);
                HostId(self.next_host)
            });
            self.of_peer.insert(view.peer, id);
            if let Some(name) = view.name {
                named.extend(view.told.iter().filter_map(|at| Some(((name, at.as_ip()?), id))));
            }
            let host = self.hosts.entry(id).or_default();
            if met.insert(id) {
                (host.views, host.conns, host.listens) = Default::default();
                (host.is_wanted, host.scion) = (false, None);
            }
            host.views.push(at);
            host.conns.extend(&view.conns);
            for id in &view.conns {
                if let Some(conn) = self.conns.get_mut(id).filter(|conn| !conn.has_host) {
                    conn.has_host = true;
                    if !conn.is_dialled {
                        host.implied.insert(conn.path.id());
                    }
                }
            }
            for (id, number) in &view.uplinks {
                if let Some(conn) = self.conns.get(id).filter(|conn| conn.leaves_by_ip()) {
                    let is_known = host.uplinks.contains_key(&conn.path.remote());
                    if is_known || host.uplinks.len() < REMOTES_MAX {
                        host.uplinks.insert(conn.path.remote(), *number);
                    }
                }
            }
            host.is_wanted |= view.is_wanted;
            host.scion = host.scion.or_else(|| Some((view.peer, scion_address(view)?)));
            for at in listens {
                self.of_address.insert(at, id);
                if !host.listens.contains(&at) {
                    host.listens.push(at);
                }
            }
        }
        let before = self.hosts.len();
        self.hosts.retain(|id, _| met.contains(id));
        if self.hosts.len() < before {
            self.trigger.reconsider(Trigger::PeerLeft);
        }
    }

    /// Pairs our addresses with each host's, where either are others than before.
    pub(super) fn find_over_ip(&mut self, inputs: &Inputs<'_>, now: Instant) {
        let Some(uplinks) = &inputs.uplinks else { return };
        if self.uplinks_version.replace(uplinks.version) != Some(uplinks.version) {
            for host in self.hosts.values_mut() {
                host.is_stale = true;
                host.alone_until = None;
                host.dials.retain(|_, dial| dial.is_under_way());
            }
            let is_gone = |conn: &Connection| conn.leaves_by_ip() && !(uplinks.has)(conn.path.local());
            let gone: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| is_gone(conn)).map(|(id, _)| *id).collect();
            for id in gone {
                self.goes_down(id, DownCause::UplinkGone, (inputs.measure)(id).received_bytes, now);
            }
            self.trigger.reconsider(Trigger::UplinksChanged);
        }
        for host in self.hosts.values_mut() {
            let told = host.views(inputs.peers).flat_map(|view| &view.told);
            let known = host.listens.iter().copied().chain(told.filter_map(Endpoint::as_ip));
            let mut remotes: Vec<SocketAddr> = Vec::new();
            // What it listened at before may come back, as an uplink does.
            for remote in known.chain(host.remotes.iter().copied()) {
                if !remotes.contains(&remote) && !uplinks.own.contains(&remote) && remotes.len() < REMOTES_MAX {
                    remotes.push(remote);
                }
            }
            if std::mem::take(&mut host.is_stale) || host.remotes != remotes {
                host.ip_candidates = (uplinks.pair)(&remotes);
                host.remotes = remotes;
            }
        }
        let with_choice: Vec<ConnId> =
            self.hosts.values().filter(|host| self.has_choice(host)).flat_map(|host| host.conns.clone()).collect();
        for id in with_choice {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.has_alternatives = true;
            }
        }
    }

    /// Whether there is more than one way to a host of which one is over IP.
    pub(super) fn has_choice(&self, host: &Host) -> bool {
        !host.ip_candidates.is_empty() && host.ip_candidates.len() + self.scion_conns(host) > 1
    }

    /// Connections to a host through SCION.
    pub(super) fn scion_conns(&self, host: &Host) -> usize {
        self.conns_of(host).filter(|(_, conn)| conn.path.as_scion().is_some()).count()
    }

    /// Those of them over which content is asked for: what stands by or is down is none of the paths that were wished for.
    pub(super) fn scion_conns_in_use(&self, host: &Host) -> usize {
        let is_in_use = |conn: &Connection| conn.down.is_none() && conn.state == PathState::Active;
        self.conns_of(host).filter(|(_, conn)| conn.path.as_scion().is_some() && is_in_use(conn)).count()
    }

    /// Why we choose the paths to a peer through SCION, if we do.
    pub(super) fn role(&self, view: &PeerView, is_finished: bool) -> Option<Role> {
        if let Some(wish) = view.wish.filter(|_| view.is_interested) {
            return Some(Role::Uploader(wish));
        }
        let alone = self.config.chooses_alone || !view.speaks_paths;
        (view.is_wanted && !is_finished && alone && self.config.wished > 1).then_some(Role::Downloader)
    }
}

/// Where a peer is to be dialled over SCION.
pub(super) fn scion_address(view: &PeerView) -> Option<ScionAddr> {
    view.listens.iter().find_map(Endpoint::as_scion)
}
