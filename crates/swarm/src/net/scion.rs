//! Peers over SCION: a QUIC connection for every path that is used.
//!
//! Every connection keeps its path for life; what changes is the path's bytes, which are refreshed under it. Where the
//! network says that a link on the way is down, and nothing more comes, the connection is given up at once: what was asked
//! for over it comes over other paths (see [`anabranch_paths::manager`]).
//!
//! Anybody can write such a message, and nobody signs it. So a complaint is a reason to ask: an echo goes the same way
//! ([`ScionNet::listen`]), and only if it meets the same trouble, as shown by the part of it that nobody can guess, anybody
//! hears of the complaint. What is forged costs an echo.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::manager::{DownCause, Found, LinkHealth};
use anabranch_paths::{Endpoint, IsdAs, Path, PathFilter, PathId, PathIdPrefix, PolicyFile, ScionAddr, ScionPath};
use anabranch_scion::lookup::{LookupError, PathLookup};
use anabranch_scion::socket::{ECHO_TOKEN_LEN, ProbeError, RouteId, ScmpEvent, ScmpKind};
use anabranch_transport::known_keys::{KnownKeys, KnownKeysError};
use anabranch_transport::{
    Congestion, Identity, MTU_MIN, NodeId, QuicBudget, QuicEndpoint, QuicOptions, QuicRoute, QuicStream, Stream,
};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// News of trouble that a connection may be behind with; older ones are passed over.
const NEWS_MAX: usize = 64;
/// How long a caller's new way has to show that it leads there.
const OFFER_MAX: Duration = Duration::from_secs(1);
/// How long an echo may take that is to meet the trouble that somebody complains of ...
const CONFIRMED_WITHIN: Duration = Duration::from_millis(400);
/// ... and how many are sent: routers answer only so many packets a second.
const CONFIRMING_TRIES: usize = 3;
/// Complaints that are looked into at once, one a route; more are passed over, as the next packet brings them again.
const CONFIRMING_MAX: usize = 64;
/// How long before it ends the way back of a caller is renewed: when half of its life is left, and neither more nor less often
/// than this.
const RENEWED_EVERY: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// How long an accepted connection waits for a lookup that tells which ASes its path passes.
const NAMING_MAX: Duration = Duration::from_secs(2);
/// How long a call waits for paths, where there are none: longer than the lookup that is due then takes to begin.
const AWAITED_MAX: Duration = Duration::from_secs(4);
/// How long one lookup may take where nothing waits for it.
const LOOKUP_MAX: Duration = Duration::from_secs(2);

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
    /// Take these paths and no others; any where there are none.
    pub only: Vec<PathIdPrefix>,
    /// Our key.
    pub identity: Identity,
    /// Where it is remembered which key a host has.
    pub known: Option<KnownHosts>,
    /// Whose keys are admitted, whoever calls; `None`: everybody's.
    pub allowed: Option<HashSet<NodeId>>,
    /// The congestion control of our connections.
    pub congestion: Congestion,
    /// Paths that one connection goes over at most: with more than one, those that are dialled from here spread over others by themselves.
    pub paths_per_connection: u32,
    /// The memory that peers may fill over QUIC.
    pub budget: QuicBudget,
}

/// Hosts that the user named by their addresses alone: they have to prove the keys that they had when they were first met. Whom
/// trackers and peers name is no such host: addresses change hands there.
#[derive(Clone, Debug)]
pub struct KnownHosts {
    /// The file.
    pub keys: KnownKeys,
    /// Whom the user named.
    pub named: HashSet<ScionAddr>,
}

impl KnownHosts {
    /// `remote` proved `key`: remembers it, or answers why that cannot be.
    async fn meet(&self, remote: ScionAddr, key: NodeId) -> Result<(), KnownKeysError> {
        if !self.named.contains(&remote) {
            return Ok(());
        }
        let keys = self.keys.clone();
        // The file is looked at where waiting for a disk holds up nobody.
        match tokio::task::spawn_blocking(move || keys.meet(Endpoint::Scion(remote), key)).await {
            Ok(met) => met.map(|_| ()),
            // The program ends.
            Err(_) => Ok(()),
        }
    }
}

impl fmt::Debug for ScionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScionConfig").field("local", &self.local).finish_non_exhaustive()
    }
}

impl ScionConfig {
    /// The paths from the host at `local` to `remote` that may be used for such payloads, at least one.
    pub(crate) async fn paths(&self, local: IpAddr, remote: ScionAddr, payload: Payload) -> Result<Found, ReachError> {
        let isd_as = remote.isd_as;
        let paths = self.lookup.paths(isd_as).await.map_err(|error| match error {
            LookupError::NoPath { .. } => ReachError::NoPath(error.to_string()),
            LookupError::Wildcard(_) => ReachError::Hopeless(error.to_string()),
            _ => ReachError::Failed(format!("no path to {isd_as}: {error}")),
        })?;
        // The same answers as `paths` and `ping` give.
        let mut allowed = self.allowed(remote, &paths, SystemTime::now());
        if allowed.is_empty() {
            return Err(ReachError::Hopeless(format!(
                "the policy forbids every path to {isd_as}, of which there are {}: `anabranch paths {isd_as}` lists them",
                paths.len()
            )));
        }
        let only = &self.only;
        let unknown = only.iter().find_map(|name| name.find(&allowed).err());
        allowed.retain(|path| only.is_empty() || only.iter().any(|name| path.is_named(name)));
        if let Some(unknown) = unknown.filter(|_| allowed.is_empty()) {
            return Err(ReachError::Hopeless(unknown.to_string()));
        }
        let mut usable = Found::default();
        for path in allowed {
            match path.mtu_lacking(local, remote.host.ip(), payload.len()) {
                None => usable.paths.push(path),
                Some(needed) => usable.narrow.push((path, needed)),
            }
        }
        let widest = usable.narrow.iter().max_by_key(|(path, _)| path.mtu);
        if let (true, Some((path, needed))) = (usable.paths.is_empty(), widest) {
            let (count, mtu, remedy) = (usable.narrow.len(), path.mtu, payload.remedy());
            return Err(ReachError::Hopeless(format!(
                "no path to {isd_as}: of {count} none takes packets that are large enough for {payload}; the widest takes {mtu} bytes, and its \
                 headers with {} bytes behind them are {needed} (`anabranch paths` lists them): {remedy}",
                payload.len()
            )));
        }
        Ok(usable)
    }

    /// The paths that flags and policy let through, and that have not ended by `wall`.
    fn allowed(&self, remote: ScionAddr, paths: &[Arc<ScionPath>], wall: SystemTime) -> Vec<Arc<ScionPath>> {
        let of_policy = self.policy.as_ref().map(|policy| policy.filter(remote.isd_as, Some(remote.host)).clone());
        let (flags, policy) = (self.filter.clone(), of_policy.unwrap_or_default());
        let filter = PathFilter {
            acl: flags.acl.or(policy.acl),
            sequence: flags.sequence.or(policy.sequence),
            preference: flags.preference.or(policy.preference),
            ..policy
        };
        let mut allowed = paths.to_vec();
        anabranch_paths::sort(&mut allowed);
        filter.apply(&mut allowed, wall);
        allowed
    }
}

/// What the packets of a path have to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload {
    /// QUIC's packets.
    Quic,
    /// Chunks of a content.
    Chunk {
        /// A chunk's bytes.
        len: u32,
        /// Bytes of a datagram with one.
        datagram_len: usize,
    },
}

impl Payload {
    /// Its bytes.
    fn len(self) -> usize {
        match self {
            Self::Quic => MTU_MIN.into(),
            Self::Chunk { datagram_len, .. } => datagram_len,
        }
    }

    /// What can be done where no path holds it.
    fn remedy(self) -> &'static str {
        match self {
            Self::Quic => "raise the MTU of its links",
            Self::Chunk { .. } => "have it shared anew with a shorter --chunk-length, or raise the MTU of its links",
        }
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quic => f.write_str("QUIC"),
            Self::Chunk { len, .. } => write!(f, "this content's chunks of {len} bytes"),
        }
    }
}

/// Why a host is not reached over SCION.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReachError {
    /// It may be another time, or over another path.
    #[error("{0}")]
    Failed(String),
    /// The network says that the path is down, which it confirmed: another may lead there.
    #[error("{0}")]
    PathDown(String),
    /// The daemon answers that no path leads there: there may be none, or all of them are down at the moment.
    #[error("{0}")]
    NoPath(String),
    /// It never is, however long one waits: what the user asked for does not fit together.
    #[error("{0}")]
    Hopeless(String),
}

/// The session's place in the SCION network.
pub(crate) struct ScionNet {
    config: ScionConfig,
    /// Dials and accepts.
    pub endpoint: Rc<QuicEndpoint>,
    news: broadcast::Sender<ScmpEvent>,
    /// Which links are down, as the network says and confirmed.
    links: Rc<RefCell<LinkHealth>>,
    /// Routes that somebody complained about, and that are being asked.
    confirming: RefCell<HashSet<RouteId>>,
}

impl ScionNet {
    /// Opens the socket.
    pub(crate) fn open(
        config: &ScionConfig,
        links: Rc<RefCell<LinkHealth>>,
    ) -> Result<Self, anabranch_scion::socket::BindError> {
        let here = config.lookup.local_as();
        let options = QuicOptions {
            congestion: config.congestion,
            allowed: config.allowed.clone(),
            mtu_bytes_max: here.mtu,
            budget: config.budget.clone(),
            paths: config.paths_per_connection,
            ..QuicOptions::default()
        };
        let endpoint = QuicEndpoint::bind_scion(config.local, here.ports.clone(), &config.identity, &options)?;
        if let Some(socket) = endpoint.scion_socket() {
            socket.set_routers(here.interfaces.values().map(SocketAddr::ip));
        }
        Ok(Self {
            config: config.clone(),
            endpoint: Rc::new(endpoint),
            news: broadcast::channel(NEWS_MAX).0,
            links,
            confirming: RefCell::default(),
        })
    }

    /// Where QUIC is, the ports that the AS's routers deliver to, and these routers: for another socket beside it.
    pub(crate) fn place(&self) -> Option<(ScionAddr, RangeInclusive<u16>, Vec<IpAddr>)> {
        let (local, here) = (self.endpoint.local().as_scion()?, self.config.lookup.local_as());
        Some((local, here.ports.clone(), here.interfaces.values().map(SocketAddr::ip).collect()))
    }

    /// Whether peers have to prove keys that the user admits.
    pub(crate) fn is_closed(&self) -> bool {
        self.config.allowed.is_some()
    }

    /// Whether the user said which paths may be used: nobody else may choose then.
    pub(crate) fn is_restricted(&self) -> bool {
        let PathFilter { acl, sequence, .. } = &self.config.filter;
        !self.config.only.is_empty() || self.config.policy.is_some() || acl.is_some() || sequence.is_some()
    }

    /// The longest packet that our AS takes, in bytes: none that leaves or enters it is longer.
    pub(crate) fn mtu(&self) -> u16 {
        self.config.lookup.local_as().mtu
    }

    /// The paths to `remote` that may be used for such payloads, at least one.
    pub(crate) async fn paths(&self, remote: ScionAddr, payload: Payload) -> Result<Found, ReachError> {
        self.config.paths(self.endpoint.local().ip(), remote, payload).await
    }

    /// The same; where there is none, they are looked for anew, and waited for a while.
    pub(crate) async fn paths_awaited(&self, remote: ScionAddr, payload: Payload) -> Result<Found, ReachError> {
        let found = self.paths(remote, payload).await;
        if !matches!(found, Err(ReachError::NoPath(_))) {
            return found;
        }
        self.seek(remote.isd_as).await;
        let coming = async {
            if let Ok(mut watch) = self.config.lookup.watch(remote.isd_as).await {
                // However that ends, the answer is below.
                let _ = watch.changed().await;
            }
        };
        let _ = tokio::time::timeout(AWAITED_MAX, coming).await;
        self.paths(remote, payload).await
    }

    /// The same as [`ScionNet::paths`], where an answer comes in time.
    pub(crate) async fn found(&self, remote: ScionAddr, payload: Payload) -> Option<Found> {
        let found = tokio::time::timeout(LOOKUP_MAX, self.paths(remote, payload)).await;
        found.ok().and_then(Result::ok)
    }

    /// Says that somebody uses a path to `destination` that no lookup of ours named.
    pub(crate) async fn seek(&self, destination: IsdAs) {
        self.config.lookup.seek(destination).await;
    }

    /// Connects to `remote` over `path`; it has to prove the `expected` key, if there is one.
    pub(crate) async fn connect(
        self: &Rc<Self>,
        remote: ScionAddr,
        expected: Option<NodeId>,
        path: &Arc<ScionPath>,
    ) -> Result<Stream, ReachError> {
        let mut news = self.news();
        let stream = tokio::select! {
            stream = self.endpoint.connect_over(remote, path, expected) => stream,
            cause = goes_down(&mut news, path) => {
                return Err(ReachError::PathDown(format!("{path} fails: {cause}")));
            }
        };
        let stream = stream.map_err(|error| ReachError::Failed(format!("{} (over {path})", error.of_peer())))?;
        if self.config.allowed.as_ref().is_some_and(|allowed| !allowed.contains(&stream.node_id())) {
            let found = stream.node_id();
            return Err(ReachError::Failed(format!("its key is {found}, which --allow does not admit")));
        }
        self.meet(remote, stream.node_id()).await?;
        self.watch(&stream, Some(Arc::clone(path)));
        if let (2.., Some(route)) = (self.config.paths_per_connection, stream.route()) {
            tokio::task::spawn_local(Rc::clone(self).widen(remote, route, Arc::clone(path)));
        }
        Ok(stream.into())
    }

    /// Lets a connection go over further paths: one after the other those that share the fewest links with what it has, then the shortest.
    async fn widen(self: Rc<Self>, remote: ScionAddr, route: QuicRoute, first: Arc<ScionPath>) {
        let Some(mut found) = self.found(remote, Payload::Quic).await.map(|found| found.paths) else { return };
        found.retain(|path| path.interfaces != first.interfaces);
        let mut taken = vec![first];
        for _ in 1..self.config.paths_per_connection {
            let shared = |path: &ScionPath| taken.iter().map(|other| path.overlap(other).links).sum::<usize>();
            let best = (0..found.len()).min_by_key(|at| (shared(&found[*at]), found[*at].interfaces.len()));
            let Some(path) = best.map(|at| found.swap_remove(at)) else { return };
            // A path that cannot be had is left out; the connection goes on over the others.
            if self.endpoint.widen(&route, remote, &path).await.is_ok() {
                taken.push(path);
            }
        }
    }

    /// Whoever is at `remote` proved `key`: that has to be the one that it had before, where the user named it.
    pub(crate) async fn meet(&self, remote: ScionAddr, key: NodeId) -> Result<(), ReachError> {
        match &self.config.known {
            Some(known) => known.meet(remote, key).await.map_err(|error| ReachError::Hopeless(error.to_string())),
            None => Ok(()),
        }
    }

    /// Keeps the path of a connection fresh, if it is ours, and gives the connection up when its way is gone.
    fn watch(self: &Rc<Self>, stream: &QuicStream, path: Option<Arc<ScionPath>>) {
        if let Some(route) = stream.route() {
            tokio::task::spawn_local(keep_alive(Rc::clone(self), route, path));
        }
    }

    /// Takes in a connection that was accepted.
    pub(crate) fn accepted(self: &Rc<Self>, stream: &Stream) {
        if let Stream::Quic(stream) = stream {
            self.watch(stream, None);
        }
    }

    /// The path of an accepted connection, seen from here. Its packets tell the numbers of the interfaces, the lookup tells
    /// whose they are; what the lookup does not know stays as the packets tell it, and is looked for.
    pub(crate) async fn named(&self, path: &Path) -> Path {
        let Some(seen) = path.as_scion().filter(|seen| !seen.interfaces.is_empty()) else { return path.clone() };
        let numbers: Vec<u16> = seen.interfaces.iter().map(|interface| interface.id).collect();
        match self.looked_up(seen.destination, &numbers).await {
            Some(same) => Path::scion(path.local(), path.remote(), same),
            None => {
                self.seek(seen.destination).await;
                path.clone()
            }
        }
    }

    /// The path to `destination` over interfaces of these numbers. Each number tells where the next is, so there is only one.
    async fn looked_up(&self, destination: IsdAs, numbers: &[u16]) -> Option<Arc<ScionPath>> {
        let known = tokio::time::timeout(NAMING_MAX, self.config.lookup.paths(destination)).await;
        let is_it =
            |path: &&Arc<ScionPath>| path.interfaces.iter().map(|interface| interface.id).eq(numbers.iter().copied());
        known.ok()?.ok()?.iter().find(is_it).cloned()
    }

    /// News of trouble from now on.
    pub(crate) fn news(&self) -> broadcast::Receiver<ScmpEvent> {
        self.news.subscribe()
    }

    /// Something came over `path`: all its links work.
    pub(crate) fn works(&self, path: &ScionPath) {
        self.links.borrow_mut().works(path);
    }

    /// Passes news of trouble on that the network confirms, and tells the daemon of links that are down. Ends with its task.
    pub(crate) async fn listen(self: Rc<Self>) {
        let Some(socket) = self.endpoint.scion_socket() else { return };
        loop {
            let event = socket.event().await;
            let begins = {
                let mut confirming = self.confirming.borrow_mut();
                is_down(&event.kind) && confirming.len() < CONFIRMING_MAX && confirming.insert(event.route)
            };
            if begins {
                tokio::task::spawn_local(Rc::clone(&self).confirm(event));
            }
        }
    }

    /// Asks whether a route really meets the trouble that somebody complains of.
    async fn confirm(self: Rc<Self>, event: ScmpEvent) {
        let mut met = None;
        if let Some(socket) = self.endpoint.scion_socket() {
            for _ in 0..CONFIRMING_TRIES {
                match socket.ping(event.route, ECHO_TOKEN_LEN, CONFIRMED_WITHIN).await {
                    Err(ProbeError::Timeout(_)) => {}
                    Err(ProbeError::Scmp(kind)) => {
                        met = Some(kind).filter(is_down);
                        break;
                    }
                    _ => break,
                }
            }
        }
        self.confirming.borrow_mut().remove(&event.route);
        let Some(kind) = met else { return };
        if let ScmpKind::ExternalInterfaceDown(interface) = kind {
            self.links.borrow_mut().goes_down(interface, Instant::now());
            self.config.lookup.interface_down(interface).await;
        }
        // Without connections nobody listens.
        let _ = self.news.send(ScmpEvent { kind, ..event });
    }
}

/// Waits until the network says of a path that it is down, and why.
async fn goes_down(news: &mut broadcast::Receiver<ScmpEvent>, path: &ScionPath) -> DownCause {
    loop {
        match news.recv().await {
            Ok(event) => {
                if let Some(cause) = down_cause(&event.kind).filter(|cause| cause.is_on(path)) {
                    return cause;
                }
            }
            // What was missed shows in silence.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Ends with the connection.
async fn keep_alive(net: Rc<ScionNet>, route: QuicRoute, path: Option<Arc<ScionPath>>) {
    let refreshing = async {
        match path {
            Some(path) => refresh(&net, &route, &path).await,
            None => renew(&net, &route).await,
        }
    };
    tokio::select! {
        () = refreshing => {}
        () = route.closed() => {}
    }
}

/// Whether the news is that a path does not work.
fn is_down(kind: &ScmpKind) -> bool {
    matches!(kind, ScmpKind::ExternalInterfaceDown(_) | ScmpKind::InternalConnectivityDown { .. })
}

/// Keeps the way back of a caller fresh: over the same path as looked up here, or over what comes from the caller, who
/// renews what he sends over, once it has shown that it leads there.
async fn renew(net: &ScionNet, route: &QuicRoute) {
    while let Some(info) = route.info() {
        // Inside one AS there is nothing to renew.
        let Some(expiry) = info.expiry else { break };
        let left = expiry.duration_since(SystemTime::now()).unwrap_or_default();
        tokio::time::sleep((left / 2).clamp(*RENEWED_EVERY.start(), *RENEWED_EVERY.end())).await;
        let known = net.looked_up(info.remote.isd_as, &info.interfaces).await;
        let is_renewed = known.is_some_and(|known| known.expiry > expiry && route.refresh(&known).is_ok());
        if !is_renewed {
            route.try_offer(OFFER_MAX).await;
        }
    }
    std::future::pending().await
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

/// Why a path is down, where that is what the network says.
pub(crate) fn down_cause(kind: &ScmpKind) -> Option<DownCause> {
    match *kind {
        ScmpKind::ExternalInterfaceDown(interface) => Some(DownCause::LinkDown(interface)),
        ScmpKind::InternalConnectivityDown { isd_as, ingress, egress } => {
            Some(DownCause::AsPartitioned { isd_as, ingress, egress })
        }
        _ => None,
    }
}
