//! Dialling and accepting.

#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use anabranch_paths::{Endpoint, PENDING_MAX, Path, PathPeer, ScionAddr, ScionPath};
use anabranch_scion::socket::{BindError, RouteError, RouteId, RouteInfo, Socket};
use noq::{AsyncUdpSocket, ConnectionError, EndpointConfig, Incoming, ServerConfig, VarInt};
use tokio::sync::{Mutex, mpsc};

use super::calls;
use super::config::{self, MTU_MAX, MTU_MIN, QuicOptions};
use super::driver::Driver;
use super::lanes::{LANES, PREAMBLE, RecvLanes, SendLanes};
use super::scion::{self, ScionPort};
use super::stream::{QuicRoute, QuicStream};
use super::tls;
use super::udp::UdpPort;
use crate::{ConnectError, Identity, NodeId};

/// How long a caller has to prove its key and open its stream.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams that wait to be accepted; callers beyond are turned away.
const ACCEPTED_MAX: usize = 64;
/// What of a caller that nobody has answered yet is kept, in bytes: a first flight or two. We offer no 0-RTT.
const INCOMING_BYTES: u64 = 16 * 1024;
/// And of all of them.
const INCOMING_BYTES_ALL: u64 = 1024 * 1024;
/// How long closing waits for what was written to arrive.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Headers of UDP and of IPv4 or IPv6, in bytes.
const HEADERS_V4: u16 = 28;
const HEADERS_V6: u16 = 48;

/// Why a connection is closed, as the other side is told (application error codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum CloseCode {
    /// All is said.
    Done = 0,
    /// The node stops.
    GoingAway = 1,
    /// The listening side does not know the caller's key.
    KeyNotAllowed = 2,
    /// The listening side showed another key than the caller insisted on.
    KeyNotExpected = 3,
    /// Too many connections.
    Busy = 4,
    /// The caller opened no stream in time.
    TooSlow = 5,
    /// The caller uses streams in a way of its own.
    OtherVersion = 6,
    /// The path does not lead there any more.
    PathDown = 7,
}

impl From<CloseCode> for VarInt {
    fn from(code: CloseCode) -> Self {
        Self::from_u32(code as u32)
    }
}

impl CloseCode {
    pub(crate) fn close(self, connection: &noq::Connection, reason: &str) {
        connection.close(self.into(), reason.as_bytes());
    }
}

/// What an endpoint's packets travel over.
#[derive(Clone)]
enum Underlay {
    Ip(SocketAddr),
    Scion(Socket),
}

/// A stream's route, for as long as the stream needs it: one that we registered, or one that a caller came by, who has shown
/// his key. Both may be the same way, and each lasts on its own.
pub(super) struct RouteGuard {
    socket: Socket,
    route: RouteId,
    is_registered: bool,
}

impl RouteGuard {
    pub(super) fn id(&self) -> RouteId {
        self.route
    }

    pub(super) fn is_registered(&self) -> bool {
        self.is_registered
    }

    pub(super) fn refresh(&self, path: &ScionPath) -> Result<(), RouteError> {
        self.socket.update(self.route, path)
    }

    pub(super) fn info(&self) -> Option<RouteInfo> {
        self.socket.info(self.route)
    }

    pub(super) async fn try_offer(&self, timeout: Duration) -> bool {
        self.socket.try_offer(self.route, timeout).await
    }
}

impl Drop for RouteGuard {
    fn drop(&mut self) {
        if self.is_registered {
            // Others may hold it on; that is theirs to know.
            self.socket.remove(self.route);
        } else {
            self.socket.release(self.route);
        }
    }
}

/// Dials and accepts connections over one socket, of plain IP or of SCION.
pub struct QuicEndpoint {
    inner: noq::Endpoint,
    driver: Arc<Driver>,
    client: noq::ClientConfig,
    options: QuicOptions,
    ground: Underlay,
    accepted: Mutex<mpsc::Receiver<QuicStream>>,
}

impl std::fmt::Debug for QuicEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QuicEndpoint({})", self.local())
    }
}

impl QuicEndpoint {
    /// Opens `address` of plain IP for calls in both directions; port 0 lets the system choose.
    pub fn bind(address: SocketAddr, identity: &Identity, options: &QuicOptions) -> io::Result<Self> {
        let driver = Driver::start()?;
        let port = {
            let _inside = driver.handle().enter();
            UdpPort::bind(address)?
        };
        let ground = Underlay::Ip(port.local_addr()?);
        Self::new(driver, Box::new(port), ground, identity, options)
    }

    /// Opens `address` of SCION likewise; port 0 takes one of `ports`, the range that the AS's routers deliver to.
    pub fn bind_scion(
        address: ScionAddr,
        ports: RangeInclusive<u16>,
        identity: &Identity,
        options: &QuicOptions,
    ) -> Result<Self, BindError> {
        let failed = |error| BindError::Io(address, error);
        let driver = Driver::start().map_err(failed)?;
        let socket = {
            let _inside = driver.handle().enter();
            Socket::bind(address, ports)?
        };
        let port = Box::new(ScionPort::new(socket.clone()));
        Self::new(driver, port, Underlay::Scion(socket), identity, options).map_err(failed)
    }

    fn new(
        driver: Arc<Driver>,
        port: Box<dyn AsyncUdpSocket>,
        ground: Underlay,
        identity: &Identity,
        options: &QuicOptions,
    ) -> io::Result<Self> {
        let server_tls = tls::server(identity, &options.protocol).map_err(io::Error::other)?;
        let client_tls = tls::client(identity, &options.protocol).map_err(io::Error::other)?;
        let mut server = ServerConfig::with_crypto(Arc::new(server_tls));
        // One connection, one path, for life.
        server.migration(false).max_incoming(PENDING_MAX);
        server.incoming_buffer_size(INCOMING_BYTES).incoming_buffer_size_total(INCOMING_BYTES_ALL);
        let mut endpoint = EndpointConfig::default();
        endpoint.max_udp_payload_size(MTU_MAX).map_err(io::Error::other)?;
        let inner = noq::Endpoint::new_with_abstract_socket(endpoint, Some(server.clone()), port, driver.runtime())?;
        let (accepting, accepted) = mpsc::channel(ACCEPTED_MAX);
        let host = Host {
            options: options.clone(),
            server,
            ground: ground.clone(),
            driver: Arc::downgrade(&driver),
            accepting,
        };
        driver.handle().spawn(accept_all(inner.clone(), Arc::new(host)));
        let client = noq::ClientConfig::new(Arc::new(client_tls));
        Ok(Self { inner, driver, client, options: options.clone(), ground, accepted: Mutex::new(accepted) })
    }

    /// Where it listens.
    pub fn local(&self) -> Endpoint {
        match &self.ground {
            Underlay::Ip(address) => (*address).into(),
            Underlay::Scion(socket) => Endpoint::Scion(socket.local()),
        }
    }

    /// The SCION socket underneath, for its counters and events.
    pub fn scion_socket(&self) -> Option<&Socket> {
        match &self.ground {
            Underlay::Ip(_) => None,
            Underlay::Scion(socket) => Some(socket),
        }
    }

    /// Opens a connection to `endpoint` over plain IP, the way that the kernel's routes lead; with `pin`, only if that node
    /// answers.
    pub async fn connect(&self, endpoint: Endpoint, pin: Option<NodeId>) -> Result<QuicStream, ConnectError> {
        let (Underlay::Ip(local), Some(remote)) = (&self.ground, endpoint.as_ip()) else {
            return Err(ConnectError::WrongNetwork { endpoint, local: self.local() });
        };
        let route = Route::to(*local, remote).map_err(|source| ConnectError::Io { endpoint, source })?;
        let peer = PathPeer::new(endpoint, Path::ip(route.local, remote.ip()));
        self.open(peer, remote, route.mtu_bytes, None, pin).await
    }

    /// Opens a connection to `remote` over `path`; with `pin`, only if that node answers.
    pub async fn connect_over(
        &self,
        remote: ScionAddr,
        path: &Arc<ScionPath>,
        pin: Option<NodeId>,
    ) -> Result<QuicStream, ConnectError> {
        let endpoint = Endpoint::Scion(remote);
        let (socket, taken) = self.take_route(remote, path)?;
        let (route, failed) = (taken.id(), |source| ConnectError::Route { endpoint, source });
        let info = socket.info(route).ok_or(RouteError::Gone).map_err(failed)?;
        let mtu_bytes = u16::try_from(info.payload_len_max).unwrap_or(u16::MAX);
        let peer = PathPeer::new(endpoint, Path::scion(socket.local().host.ip(), remote.host.ip(), Arc::clone(path)));
        self.open(peer, scion::address_of(route), mtu_bytes, Some(taken), pin).await
    }

    /// Lets a connection to `remote` that was dialled from here go over `path` too, where both sides allow several
    /// ([`QuicOptions::paths`]). What is sent then goes over all of them, as their windows have room.
    pub async fn widen(&self, route: &QuicRoute, remote: ScionAddr, path: &Arc<ScionPath>) -> Result<(), ConnectError> {
        let endpoint = Endpoint::Scion(remote);
        let (_, taken) = self.take_route(remote, path)?;
        let (wider, connection) = (route.add(scion::address_of(taken.id())), route.connection().clone());
        wider.await.map_err(|source| ConnectError::Io { endpoint, source })?;
        self.driver.handle().spawn(async move {
            connection.closed().await;
            drop(taken);
        });
        Ok(())
    }

    /// A route to `remote` over `path`, which has to be wide enough for QUIC, and the socket that has it.
    fn take_route(&self, remote: ScionAddr, path: &ScionPath) -> Result<(&Socket, RouteGuard), ConnectError> {
        let endpoint = Endpoint::Scion(remote);
        let Underlay::Scion(socket) = &self.ground else {
            return Err(ConnectError::WrongNetwork { endpoint, local: self.local() });
        };
        if let Some(needed) = path.mtu_lacking(socket.local().host.ip(), remote.host.ip(), MTU_MIN.into()) {
            return Err(ConnectError::PathTooNarrow { endpoint, mtu_bytes: path.mtu, needed });
        }
        let route = socket.register(remote, path).map_err(|source| ConnectError::Route { endpoint, source })?;
        Ok((socket, RouteGuard { socket: socket.clone(), route, is_registered: true }))
    }

    async fn open(
        &self,
        peer: PathPeer,
        address: SocketAddr,
        mtu_bytes: u16,
        taken: Option<RouteGuard>,
        pin: Option<NodeId>,
    ) -> Result<QuicStream, ConnectError> {
        let endpoint = peer.endpoint;
        let mut client = self.client.clone();
        client.transport_config(config::transport(&self.options, mtu_bytes));
        let protocol = &self.options.protocol;
        let (connection, found) = calls::call(&self.inner, client, (endpoint, address), pin, protocol).await?;
        let opened = open_lanes(&connection).await;
        let lanes = opened.map_err(|error| calls::explain(endpoint, protocol, error))?;
        let (driver, budget) = (Arc::clone(&self.driver), &self.options.budget);
        Ok(QuicStream::new(driver, budget, connection, lanes, peer, found, taken.map(Arc::new)))
    }

    /// The next connection whose caller proved its key and opened its stream; `None` when the endpoint is closed.
    pub async fn accept(&self) -> Option<QuicStream> {
        self.accepted.lock().await.recv().await
    }

    /// Takes no more calls, lets what was written arrive, and closes what is still open.
    pub async fn close(&self) {
        self.inner.set_server_config(None);
        // Streams that were dropped before close themselves once all is delivered; whoever is slower is cut off.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.inner.wait_all_draining()).await;
        self.inner.close(CloseCode::GoingAway.into(), b"the node stops");
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.inner.wait_all_draining()).await;
    }
}

/// What answering callers takes.
struct Host {
    options: QuicOptions,
    server: ServerConfig,
    ground: Underlay,
    driver: std::sync::Weak<Driver>,
    accepting: mpsc::Sender<QuicStream>,
}

impl Host {
    /// Who says that he calls.
    fn address_of(&self, incoming: &Incoming) -> Option<Endpoint> {
        let address = incoming.remote_address();
        match &self.ground {
            Underlay::Ip(_) => Some(address.into()),
            Underlay::Scion(socket) => Some(Endpoint::Scion(socket.info(scion::route_of(address))?.remote)),
        }
    }

    /// Who calls, over which path, and how large a packet may be on it.
    fn caller(&self, incoming: &Incoming) -> Option<(PathPeer, u16)> {
        let address = incoming.remote_address();
        match &self.ground {
            Underlay::Ip(local) => {
                let local = SocketAddr::new(incoming.local_ip().unwrap_or(local.ip()), 0);
                let route = Route::to(local, address).ok()?;
                Some((PathPeer::new(address.into(), Path::ip(route.local, address.ip())), route.mtu_bytes))
            }
            Underlay::Scion(socket) => {
                let info = socket.info(scion::route_of(address))?;
                // Nobody told the MTU of a path that was learned from a packet. It is no more than the AS's own, and discovery
                // finds what it is.
                let within_as = usize::from(self.options.mtu_bytes_max).saturating_sub(info.header_len);
                let mtu_bytes = u16::try_from(info.payload_len_max.min(within_as)).unwrap_or(u16::MAX);
                let path = scion::path_of(socket.local().isd_as, &info);
                Some((PathPeer::new(Endpoint::Scion(info.remote), path), mtu_bytes))
            }
        }
    }
}

/// Answers callers until the endpoint closes.
async fn accept_all(endpoint: noq::Endpoint, host: Arc<Host>) {
    let who = |incoming: &Incoming| host.address_of(incoming);
    calls::answer(endpoint, who, |incoming, _| accept_one(Arc::clone(&host), incoming)).await;
}

/// Takes one caller through its handshake, and tells it what is wrong.
async fn accept_one(host: Arc<Host>, incoming: Incoming) {
    let address = incoming.remote_address();
    let Some((peer, mtu_bytes)) = host.caller(&incoming) else { return incoming.ignore() };
    let mut server = host.server.clone();
    server.transport_config(config::transport(&host.options, mtu_bytes));
    let Ok(connecting) = incoming.accept_with(Arc::new(server)) else { return };
    let Ok(Ok(connection)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await else { return };
    let Some(node_id) = tls::node_id(&connection) else { return };
    if host.options.allowed.as_ref().is_some_and(|allowed| !allowed.contains(&node_id)) {
        let reason = format!("your key {node_id} is not admitted here: ask the owner of this node to add it");
        return CloseCode::KeyNotAllowed.close(&connection, &reason);
    }
    let lanes = match tokio::time::timeout(HANDSHAKE_TIMEOUT, accept_lanes(&connection)).await {
        Ok(Ok(Some(lanes))) => lanes,
        Ok(Ok(None)) => {
            return CloseCode::OtherVersion.close(&connection, "you use streams in another way: update the older side");
        }
        Ok(Err(_)) => return,
        Err(_) => {
            let reason = format!("you opened no stream within {HANDSHAKE_TIMEOUT:?}");
            return CloseCode::TooSlow.close(&connection, &reason);
        }
    };
    let Some(driver) = host.driver.upgrade() else { return };
    let taken = match &host.ground {
        Underlay::Ip(_) => None,
        Underlay::Scion(socket) => {
            let route = scion::route_of(address);
            if let Err(error) = socket.keep(route) {
                return CloseCode::Busy.close(&connection, &error.to_string());
            }
            Some(Arc::new(RouteGuard { socket: socket.clone(), route, is_registered: false }))
        }
    };
    let stream = QuicStream::new(driver, &host.options.budget, connection.clone(), lanes, peer, node_id, taken);
    if host.accepting.try_send(stream).is_err() {
        CloseCode::Busy.close(&connection, "too many connections at once: try again later");
    }
}

/// Opens the lanes of a connection and says how they are used; the other side grants them all at once.
async fn open_lanes(connection: &noq::Connection) -> Result<(SendLanes, RecvLanes), ConnectionError> {
    let (mut send, mut receive) = (Vec::new(), Vec::new());
    for _ in 0..LANES {
        let lane = connection.open_bi().await?;
        send.push(lane.0);
        receive.push(lane.1);
    }
    if let Some(last) = send.last_mut() {
        // It fails with the connection alone, and that is seen at the first read.
        let _ = last.write_all(&[PREAMBLE]).await;
    }
    Ok((SendLanes::new(send), RecvLanes::new(receive)))
}

/// Takes the lanes that the caller opens; `None` if it uses them otherwise.
async fn accept_lanes(connection: &noq::Connection) -> Result<Option<(SendLanes, RecvLanes)>, ConnectionError> {
    let (mut send, mut receive) = (Vec::new(), Vec::new());
    for _ in 0..LANES {
        let lane = connection.accept_bi().await?;
        send.push(lane.0);
        receive.push(lane.1);
    }
    let mut preamble = [0];
    if let Some(last) = receive.last_mut()
        && !matches!(last.read_exact(&mut preamble).await, Ok(()) if preamble == [PREAMBLE])
    {
        return Ok(None);
    }
    Ok(Some((SendLanes::new(send), RecvLanes::new(receive))))
}

/// Which way the kernel sends packets for a host.
struct Route {
    local: IpAddr,
    mtu_bytes: u16,
}

impl Route {
    /// Asks the kernel, without a packet.
    fn to(local: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        let any: IpAddr = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let from = if local.is_ipv4() == remote.is_ipv4() { local.ip() } else { any };
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect(remote)?;
        let (level, option, headers) = match remote {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU, HEADERS_V4),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU, HEADERS_V6),
        };
        let mut mtu: libc::c_int = 0;
        let mut len = size_of_val(&mtu) as libc::socklen_t;
        // SAFETY: the pointer and length describe `mtu`.
        let result =
            unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut len) };
        let mtu_bytes = match result {
            0 => u16::try_from(mtu).unwrap_or(u16::MAX).saturating_sub(headers),
            _ => MTU_MIN,
        };
        Ok(Self { local: socket.local_addr()?.ip(), mtu_bytes: mtu_bytes.clamp(MTU_MIN, MTU_MAX) })
    }
}
