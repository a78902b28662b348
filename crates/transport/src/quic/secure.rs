//! Datagrams inside QUIC (RFC 9221): both ends prove a key, and nobody between them reads, changes or repeats anything.
//!
//! Pure: packets and the time in; packets, events and the next deadline out. Whoever owns the socket tells the ways of packets apart by
//! numbers, and a connection belongs to one way for life. QUIC's packets are told from others by [`is_quic`], if what else the socket
//! receives leaves that bit alone.
//!
//! Who may call is the owner's to decide: nothing of a connection counts before it was admitted ([`SecureDatagrams::admit`]). Whoever may
//! not is told so, and hears nothing else.
//!
//! What is inside has a congestion control of its own, which RFC 9221 §5.4 leaves to QUIC's: so QUIC's lets everything through here.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use anabranch_paths::{Host, PENDING_MAX, PendingCallers};
use bytes::{Bytes, BytesMut};
use noq_proto::congestion::{Controller, ControllerFactory};
use noq_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, Event,
    FourTuple, IdleTimeout, Incoming, SendDatagramError, ServerConfig, Transmit, TransportConfig, VarInt,
};

use super::calls::NO_APPLICATION_PROTOCOL;
use super::config::{IDLE_TIMEOUT, KEEP_ALIVE, MTU_MIN};
use super::endpoint::CloseCode;
use super::tls;
use crate::error::CONNECT_TIMEOUT;
use crate::{Identity, NodeId};

/// Bytes of a packet that are not the datagram inside: flags, a connection ID of 8 bytes, the longest packet number, the seal, and the
/// frame's type and length.
pub const SECURE_OVERHEAD: usize = 1 + 8 + 4 + 16 + FRAME_OVERHEAD;
const FRAME_OVERHEAD: usize = 9;
/// Connections of one endpoint: as many as paths of one socket.
const CONNECTIONS_MAX: usize = 1024;
/// Connections over one way: both ends may call at once, and one may have begun anew.
const CONNECTIONS_OF_WAY_MAX: usize = 4;
/// Datagrams that wait, in either direction: nothing waits longer than a call, so this is what one call may bring.
const WAITING_BYTES: usize = 4 << 20;
/// Packets that leave in one go: what the kernel takes.
const BURST_PACKETS: NonZeroUsize = NonZeroUsize::new(64).expect("is not zero");
/// Longest packet: IPv4 takes no longer datagrams.
const PACKET_LEN_MAX: u16 = 65_507;
/// The bit that every packet of QUIC has set (RFC 9000 §17.2, §17.3).
const FIXED_BIT: u8 = 0x40;
/// The upper half of addresses that stand for ways (unique local, RFC 4193): none of them is ever sent to.
const PREFIX: u128 = 0xfd61_6e61_6273_6563 << 64;
const PORT: u16 = 1;

/// Whether a packet may be QUIC's, where others leave the bit alone.
pub fn is_quic(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first & FIXED_BIT != 0)
}

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SecureConn(ConnectionHandle);

/// What happened.
#[derive(Debug)]
pub enum SecureEvent {
    /// The other end proved its key. It is to be admitted, or closed.
    Opened {
        /// Which connection.
        conn: SecureConn,
        /// Its way.
        way: u32,
        /// The other end's key.
        key: NodeId,
    },
    /// A datagram came from whoever has the key, be it admitted or not.
    Datagram {
        /// By which way.
        way: u32,
        /// Whose.
        key: NodeId,
        /// What it says.
        datagram: Bytes,
    },
    /// A connection ended, or did not come about, and was not closed here.
    Closed {
        /// Its way.
        way: u32,
        /// Why.
        reason: String,
        /// The other end will say the same the next time.
        is_final: bool,
    },
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecureClose {
    /// All is said.
    Done,
    /// Its key is not admitted here.
    KeyNotAllowed,
    /// It has another key than was asked for.
    KeyNotExpected,
}

/// Packets of one length, but for the last, for one way.
#[derive(Debug)]
pub struct SecurePackets {
    /// Where to.
    pub way: u32,
    /// One behind the other.
    pub bytes: Vec<u8>,
    /// How long each is.
    pub packet_len: usize,
}

/// Datagrams that do not fit a connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// All connections of one socket, or of several whose ways are numbered together.
pub struct SecureDatagrams {
    endpoint: Endpoint,
    client: ClientConfig,
    server: ServerConfig,
    conns: HashMap<ConnectionHandle, Conn>,
    /// Those that were admitted, the newest last.
    of_way: HashMap<u32, Vec<ConnectionHandle>>,
    /// Callers whose keys are not known yet.
    callers: PendingCallers<ConnectionHandle, ()>,
    out: VecDeque<SecurePackets>,
    events: VecDeque<SecureEvent>,
    held: Vec<(u32, bool)>,
    buffer: Vec<u8>,
}

struct Conn {
    connection: Connection,
    way: u32,
    began: Instant,
    key: Option<NodeId>,
    is_caller: bool,
    /// It was closed here: nothing more is told of it.
    is_closed: bool,
    /// Bytes of datagrams that packets take; `None` where packets are long, and none is shared.
    capacity: Option<usize>,
}

impl std::fmt::Debug for SecureDatagrams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecureDatagrams({} connections)", self.conns.len())
    }
}

impl SecureDatagrams {
    /// Calls and is called as `identity`; both ends have to speak `protocol` (ALPN).
    pub fn new(identity: &Identity, protocol: &[u8]) -> io::Result<Self> {
        let server_tls = tls::server(identity, protocol).map_err(io::Error::other)?;
        let client_tls = tls::client(identity, protocol).map_err(io::Error::other)?;
        let mut server = ServerConfig::with_crypto(Arc::new(server_tls));
        // One connection, one way, for life.
        server.migration(false);
        let mut config = EndpointConfig::default();
        // What else comes to the socket has to be told apart.
        config.grease_quic_bit(false);
        config.max_udp_payload_size(PACKET_LEN_MAX).map_err(io::Error::other)?;
        Ok(Self {
            endpoint: Endpoint::new(Arc::new(config), Some(Arc::new(server.clone())), false),
            client: ClientConfig::new(Arc::new(client_tls)),
            server,
            conns: HashMap::new(),
            of_way: HashMap::new(),
            callers: PendingCallers::default(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            held: Vec::new(),
            buffer: Vec::new(),
        })
    }

    /// Calls whoever is at the end of `way`, whose packets have `packet_len` bytes; `longest` is that of the longest datagram, where
    /// that has more. `false` where there are too many connections.
    pub fn call(&mut self, now: Instant, way: u32, (packet_len, longest): (u16, u16)) -> bool {
        if self.conns.len() >= CONNECTIONS_MAX || self.conns_of(way) >= CONNECTIONS_OF_WAY_MAX {
            return false;
        }
        let (transport, capacity) = transport(packet_len, longest);
        let mut client = self.client.clone();
        client.transport_config(transport);
        let Ok((handle, connection)) = self.endpoint.connect(now, client, address(way), tls::SERVER_NAME) else {
            return false;
        };
        self.insert(
            handle,
            Conn { connection, way, began: now, key: None, is_caller: true, is_closed: false, capacity },
        );
        self.drive(now, handle);
        true
    }

    /// A packet came by `way` from `host`; lengths as in [`SecureDatagrams::call`].
    pub fn handle(&mut self, now: Instant, way: u32, host: Host, lens: (u16, u16), packet: &[u8]) {
        self.buffer.clear();
        let from = FourTuple::new(address(way), None);
        match self.endpoint.handle(now, from, None, BytesMut::from(packet), &mut self.buffer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(conn) = self.conns.get_mut(&handle) {
                    conn.connection.handle_event(event);
                }
                self.drive(now, handle);
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.take_in(now, incoming, way, host, lens),
            Some(DatagramEvent::Response(transmit)) => self.put(way, &transmit),
            None => {}
        }
    }

    /// Who has a connection over `way` that was admitted.
    pub fn key_of(&self, way: u32) -> Option<NodeId> {
        self.conns.get(self.of_way.get(&way)?.last()?)?.key
    }

    /// Datagrams go over it from now on. Others over its way are closed, where they are of another key.
    pub fn admit(&mut self, now: Instant, conn: SecureConn) {
        let Some((way, key)) = self.conns.get(&conn.0).map(|conn| (conn.way, conn.key)) else { return };
        let of_way = self.of_way.entry(way).or_default();
        if !of_way.contains(&conn.0) {
            of_way.push(conn.0);
        }
        let others: Vec<ConnectionHandle> =
            of_way.iter().filter(|other| self.conns.get(other).is_some_and(|conn| conn.key != key)).copied().collect();
        others.into_iter().for_each(|other| self.close(now, SecureConn(other), SecureClose::Done));
    }

    /// Ends a connection, and tells the other end why.
    pub fn close(&mut self, now: Instant, conn: SecureConn, why: SecureClose) {
        let Some(state) = self.conns.get(&conn.0) else { return };
        let reason = match (why, state.key) {
            (SecureClose::KeyNotAllowed, Some(key)) => {
                format!("your key {key} is not admitted here: ask the owner of this node to add it")
            }
            (SecureClose::KeyNotExpected, _) => "this node has another key than the caller expects".to_owned(),
            _ => String::new(),
        };
        let code = match why {
            SecureClose::Done => CloseCode::Done,
            SecureClose::KeyNotAllowed => CloseCode::KeyNotAllowed,
            SecureClose::KeyNotExpected => CloseCode::KeyNotExpected,
        };
        self.end(now, conn.0, code, reason);
    }

    /// The same of all connections over `way`.
    pub fn close_way(&mut self, now: Instant, way: u32, why: SecureClose) {
        let all = self.conns.iter().filter(|(_, conn)| conn.way == way && !conn.is_closed);
        let all: Vec<ConnectionHandle> = all.map(|(handle, _)| *handle).collect();
        all.into_iter().for_each(|handle| self.close(now, SecureConn(handle), why));
    }

    /// Sends datagrams over `way`, each of two parts; those for which there is no connection are lost.
    ///
    /// # Errors
    /// One is longer than the packets take; those before it were sent, and are as many as it says.
    pub fn send<'a>(
        &mut self,
        now: Instant,
        way: u32,
        datagrams: impl Iterator<Item = [&'a [u8]; 2]> + Clone,
    ) -> Result<(), (usize, TooLong)> {
        let Some(handle) = self.of_way.get(&way).and_then(|of_way| of_way.last()).copied() else { return Ok(()) };
        let len = |parts: [&[u8]; 2]| parts[0].len() + parts[1].len();
        // The way may take less than it seems: a packet of several datagrams is no longer than one that has to leave anyway.
        let shared_max = datagrams.clone().map(len).max().unwrap_or(0).max(usize::from(MTU_MIN) - SECURE_OVERHEAD);
        let capacity = self.conns.get(&handle).and_then(|conn| conn.capacity);
        let (mut sent, mut filled) = (Ok(()), 0);
        for (at, parts) in datagrams.enumerate() {
            let would_share = capacity.is_some_and(|capacity| filled > 0 && filled + len(parts) <= capacity);
            if would_share && filled + len(parts) > shared_max {
                self.drive(now, handle);
                filled = 0;
            }
            filled = if would_share { filled + len(parts) } else { len(parts) };
            let Some(conn) = self.conns.get_mut(&handle) else { break };
            // Whatever else is wrong loses it, as on a link: the other end takes no datagrams.
            let left = conn.connection.datagrams().send(parts.concat().into(), true);
            if let Err(SendDatagramError::TooLarge) = left {
                sent = Err((at, TooLong));
                break;
            }
            if capacity.is_none() {
                self.drive(now, handle);
            }
        }
        self.drive(now, handle);
        sent
    }

    /// The next packets to send, which stay until [`SecureDatagrams::sent`] tells that they left.
    pub fn packets(&self) -> Option<&SecurePackets> {
        self.out.front()
    }

    /// So many of the [`SecureDatagrams::packets`] left, or are lost.
    pub fn sent(&mut self, count: usize) {
        let Some(first) = self.out.front_mut() else { return };
        let len = (count * first.packet_len).min(first.bytes.len());
        if len == first.bytes.len() {
            self.out.pop_front();
        } else {
            first.bytes.drain(..len);
        }
    }

    /// What happened since.
    pub fn event(&mut self) -> Option<SecureEvent> {
        self.events.pop_front()
    }

    /// Ways that a connection needs from now on, once for each, or not any more.
    pub fn take_held(&mut self) -> Vec<(u32, bool)> {
        std::mem::take(&mut self.held)
    }

    /// When to call [`SecureDatagrams::poll`].
    pub fn deadline(&self) -> Option<Instant> {
        self.conns.values().filter_map(Conn::due).min()
    }

    /// Time passed.
    pub fn poll(&mut self, now: Instant) {
        let due = self.conns.iter().filter(|(_, conn)| conn.due().is_some_and(|due| due <= now));
        let due: Vec<ConnectionHandle> = due.map(|(handle, _)| *handle).collect();
        for handle in due {
            let Some(conn) = self.conns.get_mut(&handle) else { continue };
            if conn.is_too_late(now) {
                self.too_late(now, handle);
                continue;
            }
            conn.connection.handle_timeout(now);
            self.drive(now, handle);
        }
    }

    fn conns_of(&self, way: u32) -> usize {
        self.conns.values().filter(|conn| conn.way == way && !conn.is_closed).count()
    }

    fn insert(&mut self, handle: ConnectionHandle, conn: Conn) {
        self.held.push((conn.way, true));
        self.conns.insert(handle, conn);
    }

    /// A caller, who may be anybody: as at any door ([`PendingCallers`]).
    fn take_in(&mut self, now: Instant, incoming: Incoming, way: u32, host: Host, (packet_len, longest): (u16, u16)) {
        if self.conns.len() >= CONNECTIONS_MAX + PENDING_MAX || self.conns_of(way) >= CONNECTIONS_OF_WAY_MAX {
            return self.endpoint.ignore(incoming);
        }
        self.buffer.clear();
        if self.callers.must_prove(host) && !incoming.remote_address_validated() {
            // Its second attempt comes back here.
            match self.endpoint.retry(incoming, &mut self.buffer) {
                Ok(transmit) => self.put(way, &transmit),
                Err(error) => self.endpoint.ignore(error.into_incoming()),
            }
            return;
        }
        let (transport, capacity) = transport(packet_len, longest);
        let mut server = self.server.clone();
        server.transport_config(transport);
        match self.endpoint.accept(incoming, now, &mut self.buffer, Some(Arc::new(server))) {
            Ok((handle, connection)) => {
                let conn =
                    Conn { connection, way, began: now, key: None, is_caller: false, is_closed: false, capacity };
                self.insert(handle, conn);
                if let Some((gone, ())) = self.callers.enter(handle, host, ()) {
                    self.end(now, gone, CloseCode::Busy, String::new());
                }
                self.drive(now, handle);
            }
            Err(error) => {
                if let Some(transmit) = &error.response {
                    self.put(way, transmit);
                }
            }
        }
    }

    /// A handshake took too long.
    fn too_late(&mut self, now: Instant, handle: ConnectionHandle) {
        if let Some(conn) = self.conns.get(&handle)
            && conn.is_caller
        {
            let (way, reason) = (conn.way, "it does not answer".to_owned());
            self.events.push_back(SecureEvent::Closed { way, reason, is_final: false });
        }
        self.end(now, handle, CloseCode::TooSlow, String::new());
    }

    /// Closes it on our own account: nothing more is told of it.
    fn end(&mut self, now: Instant, handle: ConnectionHandle, code: CloseCode, reason: String) {
        self.forget(handle);
        let Some(conn) = self.conns.get_mut(&handle) else { return };
        if !std::mem::replace(&mut conn.is_closed, true) {
            conn.connection.close(now, code.into(), reason.into_bytes().into());
        }
        self.drive(now, handle);
    }

    /// Nothing goes over it any more.
    fn forget(&mut self, handle: ConnectionHandle) {
        self.callers.leave(&handle);
        if let Some(conn) = self.conns.get(&handle)
            && let Some(of_way) = self.of_way.get_mut(&conn.way)
        {
            of_way.retain(|other| *other != handle);
            if of_way.is_empty() {
                self.of_way.remove(&conn.way);
            }
        }
    }

    /// Carries out what a connection wants.
    fn drive(&mut self, now: Instant, handle: ConnectionHandle) {
        let Some(conn) = self.conns.get_mut(&handle) else { return };
        while let Some(event) = conn.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                conn.connection.handle_event(event);
            }
        }
        let way = conn.way;
        let mut lost = None;
        while let Some(event) = conn.connection.poll() {
            match event {
                Event::Connected => {
                    conn.key = conn.connection.crypto_session().peer_identity().and_then(tls::node_id_of);
                    self.callers.leave(&handle);
                    if let Some(key) = conn.key {
                        self.events.push_back(SecureEvent::Opened { conn: SecureConn(handle), way, key });
                    }
                }
                Event::ConnectionLost { reason } => lost = Some(reason),
                _ => {}
            }
        }
        if let (Some(key), false) = (conn.key, conn.is_closed) {
            while let Some(datagram) = conn.connection.datagrams().recv() {
                self.events.push_back(SecureEvent::Datagram { way, key, datagram });
            }
        }
        if let (Some(reason), false) = (lost, conn.is_closed) {
            conn.is_closed = true;
            // Who called in vain, and said nothing that counts, is nobody's concern.
            if conn.is_caller || conn.key.is_some() {
                let (reason, is_final) = explain(&reason);
                self.events.push_back(SecureEvent::Closed { way, reason, is_final });
            }
            self.forget(handle);
        }
        self.transmit(now, handle);
    }

    fn transmit(&mut self, now: Instant, handle: ConnectionHandle) {
        let Some(conn) = self.conns.get_mut(&handle) else { return };
        let way = conn.way;
        loop {
            let mut bytes = std::mem::take(&mut self.buffer);
            bytes.clear();
            let transmit = conn.connection.poll_transmit(now, BURST_PACKETS, &mut bytes);
            self.buffer = bytes;
            let Some(transmit) = transmit else { break };
            let bytes = self.buffer[..transmit.size].to_vec();
            let packet_len = transmit.segment_size.unwrap_or(bytes.len()).max(1);
            self.out.push_back(SecurePackets { way, bytes, packet_len });
        }
        if conn.connection.is_drained() {
            self.forget(handle);
            self.conns.remove(&handle);
            self.held.push((way, false));
        }
    }

    /// What the endpoint answers by itself is in the buffer.
    fn put(&mut self, way: u32, transmit: &Transmit) {
        let bytes = self.buffer[..transmit.size].to_vec();
        let packet_len = bytes.len().max(1);
        self.out.push_back(SecurePackets { way, bytes, packet_len });
    }
}

impl Conn {
    fn is_too_late(&self, now: Instant) -> bool {
        self.proof_due().is_some_and(|due| due <= now)
    }

    /// Until when it has to prove a key.
    fn proof_due(&self) -> Option<Instant> {
        (self.key.is_none() && !self.is_closed).then(|| self.began + CONNECT_TIMEOUT)
    }

    fn due(&self) -> Option<Instant> {
        self.connection.poll_timeout().into_iter().chain(self.proof_due()).min()
    }
}

/// Why a connection ended, and whether it will end so the next time.
fn explain(error: &ConnectionError) -> (String, bool) {
    let is = |code: VarInt, close: CloseCode| code == VarInt::from(close);
    match error {
        ConnectionError::TimedOut | ConnectionError::Reset => ("it does not answer".to_owned(), false),
        ConnectionError::ApplicationClosed(close) if is(close.error_code, CloseCode::Done) => {
            ("it ended the connection".to_owned(), false)
        }
        ConnectionError::ApplicationClosed(close) => {
            let said: String = String::from_utf8_lossy(&close.reason).chars().filter(|c| !c.is_control()).collect();
            (format!("it refused: {said}"), is(close.error_code, CloseCode::KeyNotAllowed))
        }
        ConnectionError::ConnectionClosed(close) if u64::from(close.error_code) == NO_APPLICATION_PROTOCOL => {
            let reason = "it speaks another version over QUIC: check that both sides run the same version of Anabranch";
            (reason.to_owned(), true)
        }
        error => (error.to_string(), false),
    }
}

/// Of connections whose packets have `packet_len` bytes, or as many as a datagram of `longest` needs; and how much of datagrams a packet takes
/// that several share: where that would be more than `packet_len`, none is shared, as the way may take no other.
fn transport(packet_len: u16, longest: u16) -> (Arc<TransportConfig>, Option<usize>) {
    let needed = longest.saturating_add(SECURE_OVERHEAD as u16);
    let capacity = (needed <= packet_len).then(|| usize::from(packet_len.max(MTU_MIN)) - SECURE_OVERHEAD);
    let mtu = packet_len.max(needed).clamp(MTU_MIN, PACKET_LEN_MAX);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        // Whoever numbers the ways knows what they take. Losses are no reason to send less: not even a chunk would fit.
        .initial_mtu(mtu)
        .min_mtu(mtu)
        .mtu_discovery_config(None)
        // See `config::transport`.
        .ack_frequency_config(None)
        .datagram_receive_buffer_size(Some(WAITING_BYTES))
        .datagram_send_buffer_size(WAITING_BYTES);
    config.congestion_controller_factory(Arc::new(Unbounded));
    (Arc::new(config), capacity)
}

fn address(way: u32) -> SocketAddr {
    SocketAddrV6::new(Ipv6Addr::from(PREFIX | u128::from(way)), PORT, 0, 0).into()
}

/// Lets everything through at once: what is inside is controlled there.
#[derive(Clone, Debug)]
struct Unbounded;

/// More than anything in flight; above 32 bits noq does not pace.
const UNBOUNDED_BYTES: u64 = 1 << 40;

impl ControllerFactory for Unbounded {
    fn build(self: Arc<Self>, _: Instant, _: u16) -> Box<dyn Controller> {
        Box::new(Self)
    }
}

impl Controller for Unbounded {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: bool, _: u64, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        UNBOUNDED_BYTES
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        UNBOUNDED_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

#[cfg(test)]
#[path = "secure_tests.rs"]
mod tests;
