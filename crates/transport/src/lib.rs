//! Streams that stay on one path for life, and datagrams that are sent over one ([`datagram`]).
//!
//! A [`TcpStream`] is opened over one [`Path`](anabranch_paths::Path) and never leaves it. It receives straight into
//! buffers that the caller owns ([`TcpStream::try_recv`], scattered) and sends files without copying
//! ([`TcpStream::try_send_file`]). Waiting is the async driver's: every call here either moves bytes or answers
//! `WouldBlock`, and [`TcpStream::poll_recv_ready`] and [`TcpStream::poll_send_ready`] say when to try again. Over which paths a peer
//! is reached by plain IP, [`Interfaces`] knows.

#![deny(unsafe_code)]

mod callers;
pub mod datagram;
mod encrypted;
mod error;
mod identity;
mod interfaces;
pub mod known_keys;
mod memory;
mod proxy;
mod quic;
mod stats;
mod stream;
mod tcp;
mod utp;

pub use callers::{CallerPlace, Callers};
pub use encrypted::{EncryptedStream, StreamCipher};
pub use error::ConnectError;
pub use identity::{Identity, IdentityError, NodeId, NodeIdError};
pub use interfaces::{
    CANDIDATES_MAX, INTERFACE_ADDRESSES_MAX, INTERFACES_MAX, InterfaceError, Interfaces, IpCandidate, LocalAddress,
    LocalInterface, Via, gateway_of, mtu_of,
};
pub use memory::MemoryStream;
pub use proxy::{Proxy, ProxyError, Target, UDP_HEADER_LEN_MAX, UdpRelay, UdpSource, UdpTarget, parse_relayed};
pub use quic::{ALPN, Congestion, MTU_MIN, PassedBytes, QuicBudget, QuicEndpoint, QuicOptions, QuicRoute, QuicStream};
pub use quic::{secure, shared as control};
pub use stats::StreamStats;
pub use stream::{Listener, Stream};
pub use tcp::{TcpListener, TcpStream};
pub use utp::{UtpEndpoint, UtpStream};
