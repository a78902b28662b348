//! QUIC (RFC 9000): one connection is one path, and is used as one stream of bytes.
//!
//! A [`QuicEndpoint`] dials and accepts over one socket. Its packets are moved by a thread of its own, so that encryption
//! runs beside the driver that hashes and writes. Migration is refused, and who wants a second path opens a second connection;
//! only where both sides are told to ([`QuicOptions::paths`]), one goes over further paths too ([`QuicEndpoint::widen`]).
//! Both sides prove an Ed25519 key ([`Identity`](crate::Identity)); a caller may insist on one ([`QuicEndpoint::connect`]),
//! a listener may admit some only ([`QuicOptions::allowed`]).
//!
//! What peers may make all connections hold comes out of one [`QuicBudget`].

mod budget;
mod calls;
mod config;
mod driver;
mod endpoint;
mod lanes;
mod loss_tolerant_bbr;
mod probes;
mod scion;
pub mod secure;
pub mod shared;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod sim_tests;
mod stream;
mod tls;
mod udp;
mod window;

pub use budget::QuicBudget;
pub use config::{Congestion, MTU_MIN, QuicOptions};
pub use endpoint::QuicEndpoint;
pub use stream::{PassedBytes, QuicRoute, QuicStream};
pub use tls::ALPN;
