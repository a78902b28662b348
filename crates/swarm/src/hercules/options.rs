//! What a transfer is told.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::SystemTime;

use anabranch_hercules::congestion;
use anabranch_hercules::wire::ticket::{KeyPrint, TICKET_SECRET_LEN, Ticket};
use anabranch_paths::Endpoint;
use anabranch_transport::{Identity, InterfaceError, NodeId};

use crate::config::PathsConfig;
use crate::net::scion::ScionConfig;

/// Memory for content on its way, of one process: a path of 10 Gbit/s fills it in 40 ms.
pub const MEMORY_BYTES_DEFAULT: u64 = 48 << 20;

/// How a transfer goes.
#[derive(Clone, Debug)]
pub struct Options {
    /// The key that this end proves to have.
    pub identity: Identity,
    /// Addresses of this machine to listen at, or to dial from; port 0 takes any. `None`: all interfaces, any port. Empty: nobody
    /// is reached over plain IP, as where somebody listens in the SCION network alone.
    pub listen: Option<Vec<SocketAddr>>,
    /// How others are reached over SCION; `None`: not at all. Its key and those that it allows are not looked at.
    pub scion: Option<ScionConfig>,
    /// How many paths to one peer (`wished`), which (`selector`), and which interfaces over IP.
    pub paths: PathsConfig,
    /// The congestion control, or a fixed rate.
    pub congestion: congestion::Kind,
    /// Whether paths that share a bottleneck take together what one would.
    pub is_fair: bool,
    /// Bytes a second that are sent at most, to all together.
    pub limit_up: Option<u64>,
    /// Bytes a second that all senders together are asked to keep to, each to as much as every other.
    pub limit_down: Option<u64>,
    /// Memory for content on its way.
    pub memory_bytes: u64,
    /// How packets get to the wire, on the interfaces of `paths`.
    pub io: Io,
    /// Longest packet, IP or SCION headers and all; `None`: as the interfaces and paths say.
    pub packet_len: Option<u16>,
}

impl Options {
    /// What holds where nothing else is said.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            listen: None,
            scion: None,
            paths: PathsConfig::default(),
            congestion: congestion::Kind::Fair,
            is_fair: true,
            limit_up: None,
            limit_down: None,
            memory_bytes: MEMORY_BYTES_DEFAULT,
            io: Io::Udp,
            packet_len: None,
        }
    }
}

/// How packets get to the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// By the system's sockets.
    #[default]
    Udp,
    /// By AF_XDP, on every interface that does; at least one has to, and each that is named.
    Xdp,
    /// By AF_XDP where a measurement says that it is the faster way.
    Auto,
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub enum Peers {
    /// These are called, each on its own. A receiver calls one.
    Dial(Vec<Dial>),
    /// Whoever calls and is admitted.
    Listen(Admission),
}

/// One peer to be called.
#[derive(Clone, Debug)]
pub struct Dial {
    /// Network to it, the best first.
    pub addresses: Vec<Endpoint>,
    /// The key that it has to prove; `None` takes any.
    pub key: Option<PeerKey>,
    /// A ticket's secret: proves that one was invited.
    pub secret: Option<[u8; TICKET_SECRET_LEN]>,
}

impl From<&Ticket> for Dial {
    fn from(ticket: &Ticket) -> Self {
        Self { addresses: ticket.addresses.clone(), key: Some(PeerKey::Print(ticket.key)), secret: Some(ticket.secret) }
    }
}

/// A key, as far as one knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKey {
    /// All of it.
    Whole(NodeId),
    /// What a ticket has room for.
    Print(KeyPrint),
}

impl PeerKey {
    /// Whether `found` is it.
    pub fn is(&self, found: &NodeId) -> bool {
        match self {
            Self::Whole(key) => key == found,
            Self::Print(print) => print.is_of(found.as_bytes()),
        }
    }
}

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(key) => write!(f, "the key {key}"),
            Self::Print(_) => f.write_str("the ticket's key"),
        }
    }
}

/// Who may call.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// The secret of a ticket, if there is one.
    pub secret: Option<[u8; TICKET_SECRET_LEN]>,
    /// How many may come with the ticket. One who comes again after the connection was lost is the same, by its key.
    pub times: u16,
    /// When the ticket ends; who is connected then stays.
    pub expires: Option<SystemTime>,
    /// Keys that may come without a ticket, any number of times.
    pub keys: HashSet<NodeId>,
}

/// Why nothing begins.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No socket.
    #[error(transparent)]
    Socket(#[from] anabranch_transport::datagram::PathError),
    /// QUIC does not start.
    #[error("cannot start QUIC at {address}: {source}")]
    Quic {
        /// Where.
        address: Endpoint,
        /// What the system says.
        source: io::Error,
    },
    /// No interface of a name.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// No way past the kernel.
    #[error("packets cannot go by AF_XDP: {0}")]
    Bypass(String),
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// Nobody to call.
    #[error("there is nobody to call: name an address or a ticket")]
    Nobody,
    /// A receiver has one sender.
    #[error("one sender can be called at a time, and {0} were named: listen, or receive from one after the other")]
    SeveralSenders(usize),
}
