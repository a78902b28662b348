//! QUIC beside other datagrams on one socket: connections of one stream, over which two ends agree about what the datagrams carry.
//!
//! Whoever owns the socket receives all of its packets and hands in QUIC's ([`Inlet::deliver`]). A connection is not bound to a
//! path: packets to a remote go by the way that was told last ([`ControlStream::set_path`]), and a caller whose address changes
//! is followed as QUIC does (RFC 9000 §9).

mod port;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_paths::{Endpoint, PENDING_MAX};
use noq::{EndpointConfig, IdleTimeout, Incoming, ServerConfig, TransportConfig, VarInt};
pub use noq::{RecvStream, SendStream};
use noq_proto::HashedConnectionIdGenerator;
use ring::hmac;
use tokio::sync::{Mutex, mpsc};

use self::port::{Port, Shared};
use super::calls;
use super::config::{MTU_MIN, QuicOptions};
use super::driver::Driver;
use super::endpoint::CloseCode;
use super::tls;
use crate::datagram::{Path, Socket};
use crate::{ConnectError, Identity, NodeId};

/// How long a caller has to prove its key and open its stream.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Streams that wait to be accepted; callers beyond are turned away.
const ACCEPTED_MAX: usize = 64;
/// What of a caller that nobody has answered yet is kept, in bytes, and of all of them.
const INCOMING_BYTES: u64 = 16 * 1024;
const INCOMING_BYTES_ALL: u64 = 1024 * 1024;
/// What one end may be ahead of the other's reader: what is said is a few messages of 64 KiB.
const WINDOW: u32 = 256 * 1024;
/// Who is silent for so long is gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Well below the other side's patience; and whoever was ended and began again at the same address answers the next of these with a
/// reset, so that the connection counts as lost as soon.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How long closing waits for what was written to arrive.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Where QUIC's packets are handed in, by whoever receives from the socket. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Inlet(Arc<Shared>);

impl Inlet {
    /// A packet of QUIC's came from `remote`, in two parts. `way_back` answers how a stranger is answered.
    pub fn deliver(&self, remote: Endpoint, parts: [&[u8]; 2], way_back: impl FnOnce() -> Option<Path>) {
        self.0.deliver(remote, parts, way_back);
    }
}

/// Calls and is called over a socket that others use too.
pub struct ControlEndpoint {
    inner: noq::Endpoint,
    driver: Arc<Driver>,
    client: noq::ClientConfig,
    shared: Arc<Shared>,
    protocol: Vec<u8>,
    accepted: Mutex<mpsc::Receiver<ControlStream>>,
}

impl std::fmt::Debug for ControlEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ControlEndpoint({})", self.shared.socket().local())
    }
}

impl ControlEndpoint {
    /// Over `socket`, speaking `protocol` (ALPN), from whose owner the packets come by the inlet.
    pub fn new(socket: &Socket, identity: &Identity, protocol: &[u8]) -> io::Result<(Self, Inlet)> {
        let driver = Driver::start()?;
        let shared = Shared::new(socket.clone());
        let server_tls = tls::server(identity, protocol).map_err(io::Error::other)?;
        let client_tls = tls::client(identity, protocol).map_err(io::Error::other)?;
        let mut server = ServerConfig::with_crypto(Arc::new(server_tls));
        server.transport_config(transport()).migration(true).max_incoming(PENDING_MAX);
        server.incoming_buffer_size(INCOMING_BYTES).incoming_buffer_size_total(INCOMING_BYTES_ALL);
        let port = Box::new(Port(Arc::clone(&shared)));
        let config = recognisable(identity, socket.local());
        let inner = noq::Endpoint::new_with_abstract_socket(config, Some(server), port, driver.runtime())?;
        let (accepting, accepted) = mpsc::channel(ACCEPTED_MAX);
        driver.handle().spawn(accept_all(inner.clone(), Arc::clone(&shared), Arc::downgrade(&driver), accepting));
        let mut client = noq::ClientConfig::new(Arc::new(client_tls));
        client.transport_config(transport());
        let endpoint = Self {
            inner,
            driver,
            client,
            shared: Arc::clone(&shared),
            protocol: protocol.to_vec(),
            accepted: Mutex::new(accepted),
        };
        Ok((endpoint, Inlet(shared)))
    }

    /// Where it is.
    pub fn local(&self) -> Endpoint {
        self.shared.socket().local()
    }

    /// Calls whoever is at the end of `path`; with `pin`, only if it has that key.
    pub async fn connect(&self, path: &Path, pin: Option<NodeId>) -> Result<ControlStream, ConnectError> {
        let endpoint = path.remote();
        let failed = |source| ConnectError::Io { endpoint, source };
        let busy = || failed(io::Error::other("too many remotes at once"));
        let address = self.shared.address_of(path).ok_or_else(busy)?;
        let to = (endpoint, address);
        let (connection, found) = calls::call(&self.inner, self.client.clone(), to, pin, &self.protocol).await?;
        let opened = connection.open_bi().await;
        let (send, receive) = opened.map_err(|error| calls::explain(endpoint, &self.protocol, error))?;
        self.shared.meet();
        let lease = RemoteLease::new(Arc::clone(&self.shared), address);
        Ok(ControlStream {
            connection,
            send,
            receive,
            key: found,
            endpoint,
            lease,
            is_caller: true,
            driver: Arc::clone(&self.driver),
        })
    }

    /// The next caller who proved a key and opened its stream; `None` when the endpoint is closed.
    pub async fn accept(&self) -> Option<ControlStream> {
        self.accepted.lock().await.recv().await
    }

    /// Takes no more calls, and closes what is still open.
    pub async fn close(&self) {
        self.inner.set_server_config(None);
        self.inner.close(CloseCode::GoingAway.into(), b"the node stops");
        // Calls that nobody answered are told of the end too, and as nobody hears it that would take all of the time.
        if self.shared.has_met() {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.inner.wait_all_draining()).await;
        }
    }
}

/// Keeps a remote known, for as long as somebody has this.
#[derive(Debug)]
struct RemoteLease {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl RemoteLease {
    fn new(shared: Arc<Shared>, address: SocketAddr) -> Self {
        shared.hold(address);
        Self { shared, address }
    }
}

impl Drop for RemoteLease {
    fn drop(&mut self) {
        self.shared.release(self.address);
    }
}

/// A connection, and its one stream.
#[derive(Debug)]
pub struct ControlStream {
    connection: noq::Connection,
    send: SendStream,
    receive: RecvStream,
    key: NodeId,
    endpoint: Endpoint,
    lease: RemoteLease,
    is_caller: bool,
    driver: Arc<Driver>,
}

impl ControlStream {
    /// The key that the other end proved.
    pub fn key(&self) -> NodeId {
        self.key
    }

    /// Where the other end was when the connection began.
    pub fn remote(&self) -> Endpoint {
        self.endpoint
    }

    /// Whether this end called.
    pub fn is_caller(&self) -> bool {
        self.is_caller
    }

    /// The way that packets to it go now.
    pub fn path(&self) -> Option<Path> {
        self.lease.shared.remote_of(self.lease.address).map(|(_, path)| path)
    }

    /// What packets to the other end go by from now on.
    pub fn router(&self) -> ControlRouter {
        ControlRouter(Arc::clone(&self.lease.shared), self.lease.address)
    }

    /// A secret that both ends know and nobody else (RFC 5705, RFC 8446 §7.5); no context.
    pub fn export(&self, label: &[u8]) -> io::Result<[u8; 32]> {
        let mut secret = [0; 32];
        let exported = self.connection.export_keying_material(&mut secret, label, &[]);
        exported.map_err(|_| io::Error::other("TLS exports no secret"))?;
        Ok(secret)
    }

    /// The stream's two halves, and what the connection needs for as long as they are used.
    pub fn split(self) -> (SendStream, RecvStream, ConnectionLease) {
        let lease = ConnectionLease { _connection: self.connection, _lease: self.lease, _driver: self.driver };
        (self.send, self.receive, lease)
    }
}

/// What a connection needs. It ends when this and both halves of its stream are dropped.
#[derive(Debug)]
pub struct ConnectionLease {
    _connection: noq::Connection,
    _lease: RemoteLease,
    _driver: Arc<Driver>,
}

/// Tells where packets of one connection go. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ControlRouter(Arc<Shared>, SocketAddr);

impl ControlRouter {
    /// They go by `path` from now on, which leads to the same host, perhaps to another of its addresses.
    pub fn set_path(&self, path: &Path) {
        self.0.set_path(self.1, path);
    }
}

/// Answers callers until the endpoint closes.
async fn accept_all(
    endpoint: noq::Endpoint,
    shared: Arc<Shared>,
    driver: std::sync::Weak<Driver>,
    accepting: mpsc::Sender<ControlStream>,
) {
    let who = |incoming: &Incoming| shared.remote_of(incoming.remote_address()).map(|(from, _)| from);
    let serve = |incoming, from| accept_one(incoming, from, Arc::clone(&shared), driver.clone(), accepting.clone());
    calls::answer(endpoint, who, serve).await;
}

async fn accept_one(
    incoming: Incoming,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    driver: std::sync::Weak<Driver>,
    accepting: mpsc::Sender<ControlStream>,
) {
    let lease = RemoteLease::new(Arc::clone(&shared), incoming.remote_address());
    let Ok(connecting) = incoming.accept() else { return };
    let Ok(Ok(connection)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await else { return };
    let Some(key) = tls::node_id(&connection) else { return };
    shared.meet();
    let Ok(Ok((send, receive))) = tokio::time::timeout(HANDSHAKE_TIMEOUT, connection.accept_bi()).await else {
        return CloseCode::TooSlow.close(&connection, "you opened no stream in time");
    };
    let Some(driver) = driver.upgrade() else { return };
    let stream =
        ControlStream { connection: connection.clone(), send, receive, key, endpoint, lease, is_caller: false, driver };
    if accepting.try_send(stream).is_err() {
        CloseCode::Busy.close(&connection, "too many connections at once: try again later");
    }
}

/// What lets whoever begins again with the same key at the same address tell the others at once that their connections are gone
/// (RFC 9000 §10.3): the tokens of resets, and what shows that a connection ID was once ours, follow from both. Two programs of one key
/// have two addresses, so that neither can be made to give away the other's tokens (RFC 9000 §21.11).
fn recognisable(identity: &Identity, local: Endpoint) -> EndpointConfig {
    let reset = identity.secret(&format!("QUIC stateless reset {local}"));
    let ids = identity.secret(&format!("QUIC connection IDs {local}"));
    let ids = ids.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &reset)));
    config.cid_generator(Arc::new(move || Box::new(HashedConnectionIdGenerator::from_key(ids))));
    config
}

fn transport() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into())
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        // The smallest packets will do, and go by every path.
        .initial_mtu(MTU_MIN)
        .mtu_discovery_config(None)
        // See `config::transport`.
        .ack_frequency_config(None)
        .datagram_receive_buffer_size(None);
    let options = QuicOptions::default();
    config.congestion_controller_factory(super::config::congestion(&options));
    Arc::new(config)
}
