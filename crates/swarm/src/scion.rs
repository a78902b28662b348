//! Peers over SCION: one QUIC connection each, over one path that the user's filter puts first.
//!
//! Every connection keeps its path for life; what changes is the path's bytes, which are refreshed under it. Where the
//! network says that a link on the way is down, and nothing more comes, the connection is given up at once: the peer is
//! then dialled again, over a path that is left.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anabranch_paths::{PathFilter, PathId, PathIdPrefix, PolicyFile, ScionAddr, ScionPath};
use anabranch_scion::lookup::PathLookup;
use anabranch_scion::socket::{ScmpEvent, ScmpKind};
use anabranch_transport::{Congestion, Identity, QuicEndpoint, QuicOptions, QuicRoute, QuicStream, Stream};
use tokio::sync::broadcast;

use crate::conn::ConnError;

/// News of trouble that a connection may be behind with; older ones are passed over.
const NEWS_MAX: usize = 64;
/// Silence after news that a link on the way is down, after which the news is believed: the message itself proves nothing.
const DOUBT: Duration = Duration::from_secs(1);

/// How peers are reached over SCION.
#[derive(Clone)]
pub struct ScionConfig {
    /// Our address in our AS. Port 0 takes any that the AS's routers deliver to.
    pub local: ScionAddr,
    /// Where paths come from.
    pub lookup: PathLookup,
    /// Which paths may be used, and which of them first; without a preference, the shortest.
    pub filter: PathFilter,
    /// What holds for a destination where the filter says nothing.
    pub policy: Option<Arc<PolicyFile>>,
    /// Take this path and no other.
    pub path: Option<PathIdPrefix>,
    /// Our key.
    pub identity: Identity,
    /// The congestion control of our connections.
    pub congestion: Congestion,
}

impl fmt::Debug for ScionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScionConfig").field("local", &self.local).finish_non_exhaustive()
    }
}

/// The session's place in the SCION network.
pub struct ScionNet {
    config: ScionConfig,
    /// Dials and accepts.
    pub endpoint: Rc<QuicEndpoint>,
    news: broadcast::Sender<ScmpEvent>,
}

impl ScionNet {
    /// Opens the socket.
    pub fn open(config: &ScionConfig) -> Result<Self, anabranch_scion::socket::BindError> {
        let ports = config.lookup.local_as().ports.clone();
        let options = QuicOptions { congestion: config.congestion, ..QuicOptions::default() };
        let endpoint = QuicEndpoint::bind_scion(config.local, ports, &config.identity, &options)?;
        Ok(Self { config: config.clone(), endpoint: Rc::new(endpoint), news: broadcast::channel(NEWS_MAX).0 })
    }

    /// Connects to `remote` over the path that comes first.
    pub async fn dial(self: &Rc<Self>, remote: ScionAddr) -> Result<Stream, ConnError> {
        let failed = |error: &dyn fmt::Display| ConnError::Ended(format!("no path to {}: {error}", remote.isd_as));
        let paths = self.config.lookup.paths(remote.isd_as).await.map_err(|error| failed(&error))?;
        let path = self.choose(remote, &paths).ok_or_else(|| {
            let what = format!("none of the {} known ones passes the flags that restrict them", paths.len());
            failed(&what)
        })?;
        let stream = self.endpoint.connect_over(remote, &path, None).await;
        let stream = stream.map_err(|error| ConnError::Ended(format!("{error} (over {path})")))?;
        self.watch(&stream, Some(path));
        Ok(stream.into())
    }

    /// Keeps the path of a connection fresh, if it is ours, and gives the connection up when its way is gone.
    fn watch(self: &Rc<Self>, stream: &QuicStream, path: Option<Arc<ScionPath>>) {
        if let Some(route) = stream.route() {
            tokio::task::spawn_local(keep_alive(Rc::clone(self), route, path));
        }
    }

    /// Takes in a connection that was accepted.
    pub fn accepted(self: &Rc<Self>, stream: &Stream) {
        if let Stream::Quic(stream) = stream {
            self.watch(stream, None);
        }
    }

    fn choose(&self, remote: ScionAddr, paths: &[Arc<ScionPath>]) -> Option<Arc<ScionPath>> {
        let of_policy =
            self.config.policy.as_ref().map(|policy| policy.filter(remote.isd_as, Some(remote.host)).clone());
        let (flags, policy) = (self.config.filter.clone(), of_policy.unwrap_or_default());
        let filter = PathFilter {
            acl: flags.acl.or(policy.acl),
            sequence: flags.sequence.or(policy.sequence),
            preference: flags.preference.or(policy.preference),
            ..policy
        };
        let mut allowed = paths.to_vec();
        anabranch_paths::sort(&mut allowed);
        filter.apply(&mut allowed, SystemTime::now());
        let named = |path: &ScionPath| self.config.path.as_ref().is_none_or(|prefix| prefix.matches(path.id()));
        allowed.into_iter().find(|path| named(path))
    }

    /// Passes the socket's news of trouble on, and tells the daemon of links that are down. Ends with its task.
    pub async fn listen(self: Rc<Self>) {
        let Some(socket) = self.endpoint.scion_socket() else { return };
        loop {
            let event = socket.event().await;
            if let ScmpKind::ExternalInterfaceDown(interface) = event.kind {
                self.config.lookup.interface_down(interface).await;
            }
            // Without connections nobody listens.
            let _ = self.news.send(event);
        }
    }
}

/// Ends with the connection.
async fn keep_alive(net: Rc<ScionNet>, route: QuicRoute, path: Option<Arc<ScionPath>>) {
    let mut news = net.news.subscribe();
    let refreshing = async {
        match path {
            Some(path) => refresh(&net, &route, &path).await,
            None => std::future::pending().await,
        }
    };
    let doubting = async {
        loop {
            match news.recv().await {
                Ok(event) if event.route == route.id() && is_down(&event.kind) => {
                    let before = route.received_bytes();
                    tokio::time::sleep(DOUBT).await;
                    if route.received_bytes() == before {
                        return route.give_up(&event.kind.to_string());
                    }
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    };
    tokio::select! {
        () = refreshing => {}
        () = doubting => {}
        () = route.closed() => {}
    }
}

fn is_down(kind: &ScmpKind) -> bool {
    matches!(kind, ScmpKind::ExternalInterfaceDown(_) | ScmpKind::InternalConnectivityDown { .. })
}

async fn refresh(net: &ScionNet, route: &QuicRoute, path: &ScionPath) {
    let id: PathId = path.id();
    // Inside one AS there is nothing to refresh.
    if path.interfaces.is_empty() {
        return std::future::pending().await;
    }
    let Ok(mut watch) = net.config.lookup.watch(path.destination).await else {
        return std::future::pending().await;
    };
    while let Ok(change) = watch.changed().await {
        let fresh = change.refreshed.iter().chain(&change.added).find(|fresh| fresh.id() == id);
        if let Some(fresh) = fresh {
            // Same identity, so the same way; a route that is gone ends with its connection.
            let _ = route.refresh(fresh);
        }
    }
    std::future::pending().await
}
