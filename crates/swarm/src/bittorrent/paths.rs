//! A content's paths: what its path manager knows, and over which path each connection goes. What the manager decides is carried
//! out in `paths_driver`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::PeerKey;
use anabranch_bittorrent::torrent::PeerStats;
use anabranch_paths::manager::{EndCause, FirstIp, Opened, PathManager};
use anabranch_paths::{ConnId, Endpoint, Path, ScionAddr, ScionPath};
use anabranch_transport::{QuicRoute, Via};
use tokio::sync::Notify;

use crate::bittorrent::error::ConnError;
use crate::net::conn_handle::ConnHandle;
use crate::resources::Resources;
use crate::transfer::PathProgress;

/// A connection, as far as its path is concerned.
pub(crate) struct PathConn {
    /// Who is at its end.
    pub address: Endpoint,
    /// The path, seen from here.
    pub path: Path,
    /// Its way through SCION.
    pub route: Option<QuicRoute>,
    /// Reaches its task, and has what the transport measured.
    pub handle: Rc<ConnHandle>,
}

/// A content's paths.
pub(crate) struct ContentPaths {
    /// Wakes the task.
    pub wake: Rc<Notify>,
    /// Decides.
    pub manager: PathManager,
    /// Its connections.
    pub conns: HashMap<ConnId, PathConn>,
    /// The state of our addresses that peers were told.
    pub told_version: Option<u64>,
}

impl ContentPaths {
    /// Of a content that knows nobody yet.
    pub(crate) fn new(resources: &Resources) -> Self {
        let manager = PathManager::new(resources.manager_config());
        Self { wake: Rc::default(), manager, conns: HashMap::new(), told_version: None }
    }

    /// A connection is open.
    pub(crate) fn joined(
        &mut self,
        resources: &Resources,
        (id, conn): (ConnId, PathConn),
        handshake: Option<Duration>,
        now: Instant,
    ) {
        if let (Some(path), Some(net)) = (conn.path.as_scion(), &resources.scion) {
            net.works(path);
        }
        let opened = Opened { address: conn.address, path: conn.path.clone(), handshake };
        self.manager.joined(id, opened, now);
        self.conns.insert(id, conn);
        self.wake.notify_one();
    }

    /// The connection `id` to `peer` is gone.
    pub(crate) fn left(&mut self, (id, peer): (ConnId, Option<PeerKey>), cause: EndCause, now: Instant) {
        self.conns.remove(&id);
        self.manager.left(id, peer, cause, now);
        self.wake.notify_one();
    }

    /// Connections, each with its path, of which the core says this.
    pub(crate) fn progress(&self, peers: Vec<PeerStats>) -> Vec<PathProgress> {
        let line = |peer: PeerStats| {
            let conn = self.conns.get(&peer.conn)?;
            let (condition, is_one_of_many) = self.manager.condition(peer.conn)?;
            let stats = conn.handle.stats();
            Some(PathProgress {
                peer: conn.address,
                path: conn.path.clone(),
                condition,
                download_rate_bytes: peer.download_rate_bytes,
                upload_rate_bytes: peer.upload_rate_bytes,
                downloaded_bytes: peer.downloaded_bytes,
                uploaded_bytes: peer.uploaded_bytes,
                rtt: stats.map(|stats| stats.rtt),
                lost_packets: stats.map_or(0, |stats| stats.lost_packets),
                is_one_of_many,
            })
        };
        peers.into_iter().filter_map(line).collect()
    }

    /// The path over which to dial `address`, to whom there is no connection; another one than those `tried`.
    pub(crate) fn first_path(
        &self,
        resources: &Resources,
        address: ScionAddr,
        paths: &[Arc<ScionPath>],
        tried: &[Arc<ScionPath>],
    ) -> Option<Arc<ScionPath>> {
        let (links, board) = (resources.links.borrow(), resources.board.borrow());
        self.manager.first_path(address, paths, tried, &links, &board, Instant::now())
    }

    /// How to leave for `remote` over plain IP, to whom there is no connection; `None`: as the system's routes go.
    pub(crate) fn first_via(&self, resources: &Resources, remote: SocketAddr) -> Result<Option<Via>, ConnError> {
        let Some(uplinks) = &resources.uplinks else { return Ok(None) };
        let candidates = uplinks.candidates(&[remote]);
        let is_restricted = uplinks.interfaces().is_restricted();
        match self.manager.first_over_ip(remote.into(), &candidates, is_restricted) {
            Some(FirstIp::AsRouted) => Ok(None),
            Some(FirstIp::Over(candidate)) => Ok(uplinks.via(remote, &candidate.path)),
            None => Err(ConnError::Ended(format!(
                "cannot connect to {remote}: none of the interfaces that may be used leads there: see --interface"
            ))),
        }
    }
}
