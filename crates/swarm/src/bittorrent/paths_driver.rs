//! Carries out what a content's [`PathManager`] decides: one task a content shows it what there is to see, and dials, grants, closes and
//! tells as it says.
//!
//! When it looks is in [`transfer::paths`]. Lookups and dials are tasks of their own; none holds up a choice.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_bittorrent::extension::{InterfaceSequence, Wish};
use anabranch_bittorrent::torrent::{self as bittorrent, PathEvent, Torrent};
use anabranch_paths::manager::{
    self, Action, Dial, DialEnd, EndCause, GrantedPath, Inputs, Measured, PathManager, PathWish, PeerView,
    TransportMeasured,
};
use anabranch_paths::{ConnId, Endpoint, ScionAddr, ScionPath};
use anabranch_scion::socket::ScmpEvent;
use anabranch_transport::{PassedBytes, QuicRoute};

use crate::bittorrent::dial;
use crate::bittorrent::error::ConnError;
use crate::bittorrent::paths::{ContentPaths, PathConn};
use crate::bittorrent::torrent::{TorrentDriver, TorrentHandle};
use crate::net::scion::{self, Payload, ScionNet};
use crate::resources::Resources;
use crate::transfer;
use crate::transfer::paths::PathsDriver;

/// Between two looks that somebody asked for.
const LOOKS_APART: Duration = Duration::from_millis(20);

/// Looks after a content's paths until it leaves the resources.
pub(crate) async fn drive(torrent: TorrentHandle) {
    let (wake, resources) = {
        let torrent = torrent.borrow();
        (Rc::clone(&torrent.paths.wake), torrent.resources())
    };
    let news = resources.scion.as_ref().map(|net| net.news());
    drop(resources);
    transfer::paths::drive(torrent, &wake, news, LOOKS_APART).await;
}

impl PathsDriver for TorrentHandle {
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

/// Opens a path and serves its connection to the end.
async fn open(torrent: TorrentHandle, dial: Dial) {
    let handshaken = match (dial.address, dial.path.as_scion()) {
        (Endpoint::Scion(address), Some(path)) => dial::over_path(&torrent, address, path, dial.patience).await,
        (address, _) => {
            let resources = torrent.borrow().resources();
            let via = resources.uplinks.as_ref().zip(address.as_ip());
            match via.and_then(|(uplinks, remote)| Some((remote, uplinks.via(remote, &dial.path)?))) {
                Some((remote, via)) => dial::over_ip(&torrent, remote, Some(&via), dial.patience).await,
                None => Err(ConnError::Ended("none of our interfaces leads there any more".to_owned())),
            }
        }
    };
    let end = match handshaken {
        Ok(handshaken) => {
            torrent.borrow_mut().paths.manager.dial_opened(&dial, Instant::now());
            torrent.borrow().paths.wake.notify_one();
            dial::serve(&torrent, handshaken).await;
            DialEnd::Closed
        }
        // What ends by itself did not open; else the transport did, and BitTorrent did not.
        Err(error) => DialEnd::Failed { by_peer: !matches!(error, ConnError::Ended(_)), cause: EndCause::from(&error) },
    };
    let mut state = torrent.borrow_mut();
    state.paths.manager.dial_ended(&dial, end, Instant::now());
    state.paths.wake.notify_one();
}

async fn look_up(torrent: TorrentHandle, net: Rc<ScionNet>, address: ScionAddr, seeks: bool) {
    if seeks {
        net.seek(address.isd_as).await;
    }
    let found = net.found(address, Payload::Quic).await;
    let mut state = torrent.borrow_mut();
    state.paths.manager.looked_up(address, found, SystemTime::now());
    state.paths.wake.notify_one();
}

impl TorrentDriver {
    /// The network complains, and that was confirmed.
    fn on_scmp(&mut self, event: &ScmpEvent, now: Instant) {
        let Some(cause) = scion::down_cause(&event.kind) else { return };
        let (core, conns) = (&self.core, &self.paths.conns);
        let is_its = |conn: &PathConn| conn.route.as_ref().is_some_and(|route| route.id() == event.route);
        let of_route: Vec<ConnId> = conns.iter().filter(|(_, conn)| is_its(conn)).map(|(id, _)| *id).collect();
        let received =
            |id: ConnId| conns.get(&id).map_or(0, |conn| passed_bytes(conn, core.conn_downloaded_bytes(id)).received);
        self.paths.manager.on_scmp(&cause, &of_route, &received, now);
    }

    /// One look at everything, and what follows from it.
    fn look_after_paths(&mut self, torrent: &TorrentHandle, now: Instant) {
        while let Some(event) = self.core.poll_path_event() {
            if let PathEvent::Wished { wish, .. } = event {
                self.paths.manager.wishes_changed(wish.is_some());
            }
        }
        let resources = self.resources();
        let version = resources.uplinks.as_ref().map(|uplinks| uplinks.refresh(now) + resources.ports.version());
        if self.paths.told_version != version {
            self.paths.told_version = version;
            self.tell_own_addresses(&resources, now);
        }
        let peers: Vec<PeerView> = self.core.peer_views().into_iter().map(|view| self.view(view)).collect();
        let interfaces = resources.uplinks.as_ref().map(|uplinks| uplinks.interfaces());
        let mut own =
            interfaces.as_ref().map_or(Vec::new(), |interfaces| interfaces.reachable_at(&resources.listening));
        own.extend(resources.ports.reachable_at());
        let Self { core, paths: ContentPaths { manager, conns, .. }, .. } = self;
        let pair = |remotes: &[SocketAddr]| {
            resources.uplinks.as_ref().map_or(Vec::new(), |uplinks| uplinks.candidates(remotes))
        };
        let third_party = || {
            let paths = core.third_party_paths(now).into_iter();
            paths.map(|(path, users)| (path.interfaces().to_vec(), users)).collect()
        };
        let has = |local: IpAddr| interfaces.as_ref().is_some_and(|interfaces| interfaces.has(local));
        let mut inputs = Inputs {
            peers: &peers,
            is_finished: core.is_finished(),
            measure: &|id| measured(core, conns, id),
            uplinks: version.map(|version| manager::Uplinks { version, own: &own, pair: &pair, has: &has }),
            third_party: &third_party,
            links: &mut resources.links.borrow_mut(),
            board: &mut resources.board.borrow_mut(),
        };
        manager.look(&mut inputs, now, SystemTime::now());
        while let Some(action) = self.paths.manager.poll_action() {
            self.perform(action, torrent, now);
        }
        self.tell_what_is_in_use(now);
        self.pump(now);
    }

    fn perform(&mut self, action: Action, torrent: &TorrentHandle, now: Instant) {
        match action {
            Action::LookUp { address, seeks } => {
                if let Some(net) = self.resources().scion.clone() {
                    self.spawn(look_up(torrent.clone(), net, address, seeks));
                }
            }
            Action::Wish(PathWish { paths, dial, selector }) => {
                let paths = u8::try_from(paths).unwrap_or(u8::MAX);
                self.core.wish_paths(Some(Wish { paths, dial, selector }), now);
            }
            Action::Grant { peer, paths } => {
                let back =
                    |path: &Arc<ScionPath>| InterfaceSequence::new(path.interfaces.iter().rev().copied().collect());
                self.core.grant_paths(peer, paths.iter().filter_map(back).collect(), now);
            }
            Action::Dial(dial) => self.spawn(open(torrent.clone(), dial)),
            Action::SetState { conn, state } => self.core.set_path_state(conn, state, now),
            Action::Close { conn, reason } => {
                if let Some(conn) = self.paths.conns.get(&conn) {
                    conn.handle.close(reason.to_string());
                }
            }
            Action::Name { conn, path } => {
                self.core.name_path(conn, path.id());
                if let Some(known) = self.paths.conns.get_mut(&conn) {
                    known.path = path;
                }
            }
            Action::Tell(news) => self.tell(news.into()),
        }
    }

    /// A peer, as the manager sees it.
    fn view(&self, view: bittorrent::PeerView) -> PeerView {
        let wish =
            view.wish.map(|wish| PathWish { paths: usize::from(wish.paths), dial: wish.dial, selector: wish.selector });
        PeerView {
            told: self.core.peer_addresses(view.peer),
            granted: self
                .core
                .granted_paths(view.peer)
                .iter()
                .map(|path| GrantedPath::over(path.interfaces()))
                .collect(),
            peer: view.peer,
            uplinks: view.conns.iter().filter_map(|id| Some((*id, self.core.peer_uplink(*id)?))).collect(),
            conns: view.conns,
            listens: view.listens,
            name: view.name.map(|name| name.0),
            speaks_paths: view.speaks_paths,
            wish,
            is_interested: view.is_interested,
            is_served: view.is_served,
            is_wanted: view.is_wanted,
        }
    }

    /// Tells peers where we are reached, where that is more than they know, and at which uplink.
    fn tell_own_addresses(&mut self, resources: &Resources, now: Instant) {
        let scion = resources.scion.as_ref().map(|net| net.endpoint.local());
        let over_ip =
            resources.uplinks.as_ref().map_or(Vec::new(), |uplinks| uplinks.reachable_at(&resources.listening));
        let outside = resources.ports.reachable_at();
        let mut own: Vec<Endpoint> = over_ip.into_iter().chain(outside).map(Endpoint::from).chain(scion).collect();
        // A peer knows the only one.
        if own.len() < 2 {
            own.clear();
        }
        let uplinks = resources.uplinks.as_ref().map_or(Vec::new(), |uplinks| uplinks.numbered());
        self.core.set_own_addresses(own, uplinks, now);
    }

    /// Tells peers over which paths content moves, so that they can keep out of its way.
    fn tell_what_is_in_use(&mut self, now: Instant) {
        let sequence = |path: &Arc<ScionPath>| InterfaceSequence::new(path.interfaces.clone());
        let mut used: Vec<_> = self.paths.manager.in_use(now).filter_map(sequence).collect();
        used.sort();
        used.dedup();
        if self.core.paths_in_use() != used {
            // Trackers are told too.
            self.announce.notify_one();
        }
        self.core.set_paths_in_use(used, now);
    }
}

/// What a connection did so far.
fn measured(core: &Torrent, conns: &HashMap<ConnId, PathConn>, id: ConnId) -> Measured {
    let Some(conn) = conns.get(&id) else { return Measured::default() };
    let transport = conn.handle.stats().map(|stats| TransportMeasured {
        rtt: stats.rtt,
        sent_bytes: stats.sent_bytes,
        lost_packets: stats.lost_packets,
        mtu_bytes: stats.mtu_bytes,
    });
    let passed = passed_bytes(conn, core.conn_downloaded_bytes(id));
    Measured {
        received_bytes: passed.received,
        sent_bytes: passed.sent,
        payload_bytes: core.conn_bytes(id),
        owes: core.expected(id).next().is_some(),
        transport,
    }
}

/// What came over a connection and left over it. TCP and uTP are asked what they received now and then only: what came of the content
/// shows at once that something gets through. What was sent shows nothing: of a way that is cut, the system still takes what its buffers
/// hold.
fn passed_bytes(conn: &PathConn, downloaded_bytes: u64) -> PassedBytes {
    let by_content = PassedBytes { received: downloaded_bytes, sent: 0 };
    conn.route.as_ref().map_or(by_content, QuicRoute::passed_bytes)
}

#[cfg(test)]
mod tests {
    use anabranch_paths::{Host, Path};

    use super::*;
    use crate::net::conn_handle::ConnHandle;

    #[test]
    fn a_connection_without_quic_shows_by_what_came_of_the_content_that_it_is_alive() {
        let (local, remote) = (IpAddr::from([10, 0, 0, 1]), SocketAddr::from(([192, 0, 2, 1], 6881)));
        let address = Endpoint::from(remote);
        let conn = PathConn {
            address,
            path: Path::ip(local, remote.ip()),
            route: None,
            handle: Rc::new(ConnHandle::new(Host::of(&address), Instant::now())),
        };
        let passed = |downloaded_bytes| passed_bytes(&conn, downloaded_bytes);
        assert_eq!(passed(0), PassedBytes::default());
        assert_eq!(passed(40), PassedBytes { received: 40, sent: 0 });
    }
}
