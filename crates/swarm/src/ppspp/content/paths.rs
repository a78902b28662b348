//! Carries out what the path manager decides of a content's channels: looks, dials, has them stand by, closes.
//!
//! PPSPP has no words for paths: nobody wishes for any or grants them. So who fetches chooses and dials, and who is dialled answers
//! by the way that each datagram came. What is asked for over which channel the core decides; a channel that the manager has stand by
//! is asked for nothing, and what was asked over one that is down is asked for over another.
//!
//! Nothing below a channel notices silence, so the manager does. SCMP proves nothing: what it says of a path holds once nothing more
//! came by it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_bittorrent::PeerKey;
use anabranch_paths::manager::{
    self, Action, Dial, DialEnd, EndCause, FirstIp, Inputs, Measured, Opened, PATHS_PER_PEER_MAX, PathManager,
    PeerView, TransportMeasured,
};
use anabranch_paths::{ConnId, Endpoint, PathState, ScionAddr, ScionPath};
use anabranch_scion::socket::ScmpEvent;
use anabranch_transport::MTU_MIN;
use anabranch_transport::secure::SECURE_OVERHEAD;

use super::{Content, Handle};
use crate::events::EventKind;
use crate::net::scion::{self, Payload, ReachError, ScionNet};
use crate::ppspp::hub::Hub;
use crate::ppspp::path_table::PathAddress;
use crate::ppspp::paths::PathConn;
use crate::resources::Resources;
use crate::transfer;
use crate::transfer::paths::PathsDriver;

/// How often the paths through SCION that channels use are looked up for fresh hop fields: the lookup keeps them fresh, and answers
/// from memory. A small part of the time that the shortest-lived paths have.
const REFRESHED_EVERY: Duration = Duration::from_secs(4);

/// Looks after a content's paths until it ends.
pub(crate) async fn drive_paths(content: Handle) {
    let (wake, resources) = {
        let state = content.borrow();
        (Rc::clone(&state.paths.wake), state.resources())
    };
    let news = resources.scion.as_ref().map(|net| net.news());
    drop(resources);
    transfer::paths::drive(content, &wake, news, Duration::ZERO).await;
}

impl PathsDriver for Handle {
    fn ask_manager<T>(&self, ask: impl FnOnce(&PathManager) -> T) -> T {
        ask(&self.borrow().paths.manager)
    }

    fn on_scmp(&self, event: &ScmpEvent, now: Instant) {
        self.borrow_mut().on_scmp(event, now);
    }

    fn is_stopping(&self) -> bool {
        self.borrow().stopping
    }

    fn look(&self, now: Instant) {
        self.borrow_mut().look_after_paths(self, now);
    }
}

async fn look_up(content: Handle, net: Rc<ScionNet>, address: ScionAddr, seeks: bool) {
    if seeks {
        net.seek(address.isd_as).await;
    }
    let payload = content.borrow().payload();
    let found = net.found(address, payload).await;
    let mut state = content.borrow_mut();
    let ways = state.hub().paths_mut().refresh(address, found.as_ref().map_or(&[], |found| &found.paths));
    for (way, len) in ways {
        let len = len.saturating_sub(if state.is_secure() { SECURE_OVERHEAD } else { 0 });
        let way = state.way_of(way);
        state.core.set_datagram_len(&way, len);
    }
    state.paths.manager.looked_up(address, found, SystemTime::now());
    state.paths.wake.notify_one();
}

/// Dials a host of SCION to which there is no channel.
async fn reach(content: Handle, remote: ScionAddr) {
    let (net, payload) = {
        let state = content.borrow();
        (state.resources().scion.clone(), state.payload())
    };
    let found = match net {
        Some(net) => net.paths(remote, payload).await,
        None => {
            let reason = "no SCION network is known here: name a daemon with --sciond";
            Err(ReachError::Hopeless(reason.to_owned()))
        }
    };
    let now = Instant::now();
    let mut state = content.borrow_mut();
    if state.stopping {
        return;
    }
    let way = found.and_then(|found| {
        let no_path = || ReachError::Hopeless(format!("no path to {remote}"));
        let path = state.first_path(remote, &found.paths).ok_or_else(no_path)?;
        let way = state.hub().paths_mut().over_scion(remote, &path);
        way.map_err(|error| ReachError::Failed(error.to_string()))?.ok_or_else(no_path)
    });
    match way {
        Ok(way) => state.connect(&way, now),
        Err(error) => {
            let is_final = matches!(error, ReachError::Hopeless(_) | ReachError::NoPath(_));
            state.unreachable(remote.into(), &error.to_string(), is_final, now);
        }
    }
    state.pump(now);
}

/// Our addresses, each with each of `remotes` that it reaches by a socket of ours.
fn candidates(hub: &Hub, resources: &Resources, remotes: &[SocketAddr]) -> Vec<manager::IpCandidate> {
    let mut candidates = resources.uplinks.as_ref().map_or(Vec::new(), |uplinks| uplinks.candidates(remotes));
    let paths = hub.paths();
    candidates.retain(|candidate| paths.serves(candidate.remote, candidate.path.local()));
    candidates
}

impl Content {
    /// Opens channels to whoever is due.
    pub(super) fn dial(&mut self, now: Instant) {
        if self.is_held() {
            return;
        }
        let wants_more = match self.live {
            Some(_) => self.core.needs_neighbours(),
            None => !self.core.is_complete(),
        };
        while let Some(address) = self.peers.next_to_dial(wants_more, now) {
            if self.paths.reaches(address) {
                self.peers.is_there(address);
                continue;
            }
            match address {
                Endpoint::Ip(remote) => self.reach_over_ip(remote, now),
                Endpoint::Scion(remote) => {
                    if let Some(this) = self.this() {
                        self.spawn(reach(this, remote));
                    }
                }
            }
        }
    }

    fn reach_over_ip(&mut self, remote: SocketAddr, now: Instant) {
        let resources = self.resources();
        let first = resources.uplinks.as_ref().map(|uplinks| {
            let candidates = candidates(self.hub(), &resources, &[remote]);
            let is_restricted = uplinks.interfaces().is_restricted();
            let first = self.paths.manager.first_over_ip(remote.into(), &candidates, is_restricted);
            first.map(|first| match first {
                FirstIp::AsRouted => None,
                FirstIp::Over(candidate) => uplinks.via(remote, &candidate.path),
            })
        });
        let way = match first {
            Some(None) => None,
            Some(Some(via)) => self.hub().paths_mut().over_ip(remote, via.as_ref()),
            None => self.hub().paths_mut().over_ip(remote, None),
        };
        match way {
            Some(way) => self.connect(&way, now),
            None => {
                let reason =
                    "none of the interfaces and sockets that may be used leads there: see --interface and --listen";
                self.unreachable(remote.into(), reason, false, now);
            }
        }
    }

    /// Opens a channel, to whom there is none.
    fn connect(&mut self, way: &PathAddress, now: Instant) {
        let way = &self.way_of(*way);
        if !self.open_channel(way, now) {
            self.hub().paths_mut().sweep(way);
            self.peers.is_there(way.remote);
        }
    }

    fn unreachable(&mut self, address: Endpoint, reason: &str, is_final: bool, now: Instant) {
        self.paths.manager.tried(address, false);
        self.tell(EventKind::PeerDisconnected { address, reason: reason.to_owned() });
        self.tell_failure(address, reason, (false, is_final), now);
        self.announce.notify_one();
    }

    /// What the packets of its paths have to hold.
    fn payload(&self) -> Payload {
        let (len, datagram_len) = self.core.chunk_lens();
        let datagram_len = match self.is_secure() {
            true => (datagram_len + SECURE_OVERHEAD).max(MTU_MIN.into()),
            false => datagram_len,
        };
        Payload::Chunk { len, datagram_len }
    }

    fn first_path(&self, address: ScionAddr, paths: &[Arc<ScionPath>]) -> Option<Arc<ScionPath>> {
        let resources = self.resources();
        let (links, board) = (resources.links.borrow(), resources.board.borrow());
        self.paths.manager.first_path(address, paths, &[], &links, &board, Instant::now())
    }

    /// A channel is open; answers whose it is. `None` where its peer has too many.
    pub(super) fn path_joined(&mut self, way: PathAddress, outgoing: bool, now: Instant) -> Option<PeerKey> {
        if self.paths.ways_to(way.remote).count() >= PATHS_PER_PEER_MAX {
            return None;
        }
        let path = self.hub().paths().seen(&way)?.clone();
        if let (Some(path), Some(net)) = (path.as_scion(), &self.resources().scion) {
            net.works(path);
        }
        let rtt = self.core.peer_stats().find(|stats| *stats.peer == way).map(|stats| stats.rtt);
        let opened = Opened { address: way.remote, path: path.clone(), handshake: rtt.filter(|_| outgoing) };
        let id = ConnId(self.paths.number());
        let paths = &mut self.paths;
        paths.manager.tried(way.remote, true);
        paths.manager.joined(id, opened, now);
        if let Some((dial, _)) = paths.dials.get(&way) {
            paths.manager.dial_opened(dial, now);
        }
        paths.conns.insert(id, PathConn { way, path, complaint: None });
        paths.of_way.insert(way, id);
        let key = PeerKey(paths.number());
        paths.wake.notify_one();
        let key = *paths.peers.entry(way.remote).or_insert(key);
        // Who called tells the numbers of interfaces alone: what its path takes, the network knows.
        if let (Endpoint::Scion(remote), false, Some(this)) = (way.remote, outgoing, self.this()) {
            self.look_up(&this, remote, false);
        }
        Some(key)
    }

    /// A channel is over, or did not come about.
    pub(super) fn path_left(&mut self, way: &PathAddress, cause: EndCause, now: Instant) {
        let paths = &mut self.paths;
        let id = paths.of_way.remove(way);
        if let Some(id) = id {
            paths.conns.remove(&id);
            let peer = paths.peers.get(&way.remote).copied();
            if paths.ways_to(way.remote).next().is_none() {
                paths.peers.remove(&way.remote);
            }
            paths.manager.left(id, peer, cause.clone(), now);
        }
        if let Some((dial, _)) = paths.dials.remove(way) {
            let end = match id {
                Some(_) => DialEnd::Closed,
                None => DialEnd::Failed { cause, by_peer: false },
            };
            paths.manager.dial_ended(&dial, end, now);
        } else if id.is_none() {
            paths.manager.tried(way.remote, false);
        }
        paths.wake.notify_one();
    }

    /// The network complains, and that was confirmed.
    fn on_scmp(&mut self, event: &ScmpEvent, now: Instant) {
        let Some(cause) = scion::down_cause(&event.kind) else { return };
        let measured = self.measured();
        let received = |id: ConnId| measured.get(&id).map_or(0, |measured| measured.received_bytes);
        self.paths.manager.on_scmp(&cause, &[], &received, now);
    }

    /// One look at everything, and what follows from it.
    fn look_after_paths(&mut self, this: &Handle, now: Instant) {
        let late =
            self.paths.dials.iter().filter(|(way, (_, until))| now >= *until && !self.paths.of_way.contains_key(way));
        let late: Vec<PathAddress> = late.map(|(way, _)| *way).collect();
        late.iter().for_each(|way| self.give_up_way(way, "it does not answer", now));
        let resources = self.resources();
        let measured = self.measured();
        self.heed_complaints(&measured, now);
        let version = resources.uplinks.as_ref().map(|uplinks| uplinks.refresh(now));
        let interfaces = resources.uplinks.as_ref().map(|uplinks| uplinks.interfaces());
        let listening = self.hub().listening();
        let own = interfaces.as_ref().map_or(Vec::new(), |interfaces| interfaces.reachable_at(&listening));
        let peers = self.views();
        let is_finished = self.core.is_complete();
        let hub = Rc::clone(&self.hub);
        let pair = |remotes: &[SocketAddr]| candidates(&hub, &resources, remotes);
        let has = |local: IpAddr| interfaces.as_ref().is_some_and(|interfaces| interfaces.has(local));
        let mut inputs = Inputs {
            peers: &peers,
            is_finished,
            measure: &|id| measured.get(&id).copied().unwrap_or_default(),
            uplinks: version.map(|version| manager::Uplinks { version, own: &own, pair: &pair, has: &has }),
            third_party: &Vec::new,
            links: &mut resources.links.borrow_mut(),
            board: &mut resources.board.borrow_mut(),
        };
        self.paths.manager.look(&mut inputs, now, SystemTime::now());
        drop(interfaces);
        while let Some(action) = self.paths.manager.poll_action() {
            self.perform(action, this, now);
        }
        self.refresh(this, now);
        self.pump(now);
    }

    fn perform(&mut self, action: Action, this: &Handle, now: Instant) {
        match action {
            Action::LookUp { address, seeks } => self.look_up(this, address, seeks),
            // PPSPP has no words for these.
            Action::Wish(_) | Action::Grant { .. } => {}
            Action::Dial(dial) => self.open_path(dial, now),
            Action::SetState { conn, state } => {
                if let Some(conn) = self.paths.conns.get(&conn) {
                    self.core.set_use(&conn.way, state == PathState::Active, now);
                }
            }
            Action::Close { conn, .. } => {
                if let Some(conn) = self.paths.conns.get(&conn) {
                    self.core.disconnect(&conn.way);
                }
            }
            Action::Name { conn, path } => {
                if let Some(known) = self.paths.conns.get_mut(&conn) {
                    known.path = path;
                }
            }
            Action::Tell(news) => self.tell(news.into()),
        }
    }

    fn open_path(&mut self, dial: Dial, now: Instant) {
        let way = match (dial.address, dial.path.as_scion()) {
            (Endpoint::Scion(remote), Some(path)) => self.hub().paths_mut().over_scion(remote, path).ok().flatten(),
            (Endpoint::Ip(remote), _) => {
                let via = self.resources().uplinks.as_ref().and_then(|uplinks| uplinks.via(remote, &dial.path));
                via.and_then(|via| self.hub().paths_mut().over_ip(remote, Some(&via)))
            }
            (Endpoint::Scion(_), None) => None,
        };
        let way = way.map(|way| self.way_of(way));
        if let Some(way) = way {
            self.paths.dials.insert(way, (dial.clone(), now + dial.patience));
            if self.open_channel(&way, now) {
                return;
            }
            self.paths.dials.remove(&way);
            self.hub().paths_mut().sweep(&way);
        }
        let cause = EndCause::NoPath("no socket of ours leads there".to_owned());
        self.paths.manager.dial_ended(&dial, DialEnd::Failed { cause, by_peer: false }, now);
    }

    fn look_up(&self, this: &Handle, address: ScionAddr, seeks: bool) {
        if let Some(net) = self.resources().scion.clone() {
            self.spawn(look_up(this.clone(), net, address, seeks));
        }
    }

    /// Has the hop fields renewed of paths in use, which the manager does not ask for where there is nothing to choose.
    fn refresh(&mut self, this: &Handle, now: Instant) {
        if now.saturating_duration_since(self.paths.refreshed_at) < REFRESHED_EVERY {
            return;
        }
        self.paths.refreshed_at = now;
        let addresses: Vec<ScionAddr> = self.paths.peers.keys().filter_map(Endpoint::as_scion).collect();
        addresses.into_iter().for_each(|address| self.look_up(this, address, false));
    }

    /// Tells the manager what somebody said of paths, once nothing more came by them.
    fn heed_complaints(&mut self, measured: &HashMap<ConnId, Measured>, now: Instant) {
        let received = |id: ConnId| measured.get(&id).map_or(0, |measured| measured.received_bytes);
        let mut confirmed = Vec::new();
        for (id, conn) in &mut self.paths.conns {
            if let Some((cause, before)) = conn.complaint.take()
                && received(*id) == before
            {
                confirmed.push((*id, cause));
            }
        }
        for (id, cause) in confirmed {
            self.paths.manager.on_scmp(&cause, &[id], &received, now);
        }
        let mut paths = self.hub.paths_mut();
        for (id, conn) in &mut self.paths.conns {
            let cause = paths.take_complaint(&conn.way).as_ref().and_then(scion::down_cause);
            conn.complaint = cause.map(|cause| (cause, received(*id)));
        }
    }

    /// What each channel did so far.
    fn measured(&self) -> HashMap<ConnId, Measured> {
        let chunk_len = self.link.params.chunk_len().map_or(0, u64::from);
        let of = |stats: anabranch_ppspp::swarm::PeerStats<'_, PathAddress>| {
            let transport = TransportMeasured {
                rtt: stats.rtt,
                sent_bytes: stats.uploaded_bytes,
                lost_packets: stats.lost_chunks,
                mtu_bytes: chunk_len,
            };
            let measured = Measured {
                received_bytes: stats.received_bytes,
                sent_bytes: 0,
                payload_bytes: stats.downloaded_bytes + stats.uploaded_bytes,
                owes: stats.asked > 0,
                transport: (stats.rtt > Duration::ZERO).then_some(transport),
            };
            Some((*self.paths.of_way.get(stats.peer)?, measured))
        };
        self.core.peer_stats().filter_map(of).collect()
    }

    /// Its peers, as the manager sees them.
    fn views(&self) -> Vec<PeerView> {
        let mut views: BTreeMap<PeerKey, PeerView> = BTreeMap::new();
        let stats: HashMap<PathAddress, _> = self.core.peer_stats().map(|stats| (*stats.peer, stats)).collect();
        for (id, conn) in &self.paths.conns {
            let (Some(peer), Some(stats)) = (self.paths.peers.get(&conn.way.remote), stats.get(&conn.way)) else {
                continue;
            };
            let view = views.entry(*peer).or_insert_with(|| PeerView {
                peer: *peer,
                conns: Vec::new(),
                uplinks: Vec::new(),
                // Datagrams leave from where they are received.
                listens: vec![conn.way.remote],
                told: Vec::new(),
                name: None,
                speaks_paths: false,
                wish: None,
                granted: Vec::new(),
                is_interested: false,
                is_served: false,
                is_wanted: false,
            });
            view.conns.push(*id);
            view.is_interested |= stats.wants;
            view.is_served |= !stats.is_choked;
            view.is_wanted |= stats.is_wanted;
        }
        views.into_values().collect()
    }
}
