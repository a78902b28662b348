//! uTP (BEP 29): streams over UDP that keep out of others' way. Bytes and the time in; datagrams, bytes, events and the next deadline out.
//!
//! An [`Endpoint`] has all connections of one socket. A datagram that came goes to [`Endpoint::datagram`]; what is to leave comes from
//! [`Endpoint::transmit`], many packets for one system call; [`Endpoint::deadline`] says when to come again though nothing came. No
//! socket, no clock, and no random number but from the seed that the caller gives, so that each behaviour can be replayed.
//!
//! | module | what it decides |
//! | --- | --- |
//! | `packet`, `seq` | what stands on the wire; numbers that wrap |
//! | `endpoint` | whose a datagram is, who may call, what strangers are told |
//! | `conn` | one connection: when to send, acknowledge, give up |
//! | `send`, `recv` | what is on its way, lost, to be sent again; what came, in order or ahead |
//! | `mtu` | how long packets may be |
//!
//! Congestion control is [`anabranch_ledbat`]'s default mode: it follows the one-way delays that packets report, fills a way as far as nobody else
//! does, and yields to who else fills it.
//!
//! Who calls is answered, and nothing is kept of the call: the number in the answer is a keyed hash of it, and a connection begins
//! with the first packet that acknowledges this number. So a flood of calls takes no memory, nobody gets in under an address
//! that it cannot hear at, and no answer to the unproven is longer than what it answers.
//!
//! ```
//! use std::time::Instant;
//! use anabranch_utp::{Endpoint, Event, Route};
//!
//! let (now, mut out) = (Instant::now(), Vec::new());
//! let mut alice = Endpoint::new(now, 1, true);
//! let mut bob = Endpoint::new(now, 2, true);
//! let to_bob = Route::new("192.0.2.2:6881".parse().unwrap());
//! let from_alice = Route::new("192.0.2.1:6881".parse().unwrap());
//! let call = alice.connect(now, to_bob, 1472).unwrap();
//! for _ in 0..3 {
//!     while let Some(burst) = alice.transmit(now, 16, &mut out) {
//!         out.drain(..).as_slice().chunks(burst.segment_len).for_each(|packet| drop(bob.datagram(now, from_alice, packet)));
//!     }
//!     while let Some(burst) = bob.transmit(now, 16, &mut out) {
//!         out.drain(..).as_slice().chunks(burst.segment_len).for_each(|packet| drop(alice.datagram(now, to_bob, packet)));
//!     }
//!     alice.write(call, b"hello").unwrap();
//! }
//! assert_eq!(alice.poll_event(), Some(Event::Opened(call)));
//! let Some(Event::Incoming(incoming)) = bob.poll_event() else { panic!() };
//! assert!(bob.read(incoming).unwrap().unwrap().starts_with(b"hello"));
//! ```
#![forbid(unsafe_code)]

mod bytes;
mod conn;
mod endpoint;
mod mtu;
pub mod packet;
mod recv;
mod send;
mod seq;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use endpoint::{CALLERS_OF_HOST_MAX, CALLS_MAX, CONNS_MAX, Endpoint, INCOMING_MAX, RESETS_PER_SECOND_MAX};
pub use seq::Seq;

/// Bytes that one connection may make us hold before they are read, at first: what 20 Mbit/s bring in 100 ms.
pub const RECV_LIMIT_FIRST: usize = 256 * 1024;
/// The same where connections are many.
pub const RECV_LIMIT_LEAST: usize = 32 * 1024;
/// The same at most, for who reads as fast as it comes: 1 Gbit/s over 70 ms.
pub const RECV_LIMIT_MAX: usize = 8 << 20;
/// The same of all connections together, but for the least that each has.
pub const RECV_ALL_MAX: u64 = 64 << 20;
/// Bytes that wait to be sent and acknowledged, of all connections, above which each may have only the least.
pub const SEND_ALL_MAX: u64 = 64 << 20;

/// A connection of an endpoint. No two ever have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// The way to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it is.
    pub remote: SocketAddr,
    /// Our address, where we have several.
    pub local: Option<IpAddr>,
    /// The number of the interface to leave by; 0 leaves that to the system's routes.
    pub interface: u32,
}

impl Route {
    /// As the system's routes go.
    pub fn new(remote: SocketAddr) -> Self {
        Self { remote, local: None, interface: 0 }
    }
}

/// Datagrams of one length that leave together, the last perhaps shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where they go.
    pub route: Route,
    /// Bytes of each.
    pub segment_len: usize,
    /// Whether the network may cut them apart: they left before, when the way took longer ones.
    pub may_fragment: bool,
    /// Whose they are, for [`Endpoint::too_long`].
    pub conn: Option<ConnId>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody called, and proved to be where it says.
    Incoming(ConnId),
    /// A call of ours was answered.
    Opened(ConnId),
    /// There is something to read, the end or an error among it.
    Readable(ConnId),
    /// There is room to write again, or it is over.
    Writable(ConnId),
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnError {
    /// Nobody answers.
    #[error("it did not answer over uTP")]
    TimedOut,
    /// A call was answered by a reset.
    #[error("it refuses connections over uTP")]
    Refused,
    /// The other side ended it.
    #[error("it ended the connection")]
    Reset,
    /// There is no such connection any more.
    #[error("the connection is closed")]
    Closed,
}

/// Why no connection can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There are too many.
    #[error("there are {CONNS_MAX} connections over uTP already")]
    TooMany,
}

/// What is known of a connection's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnStats {
    /// The smoothed round trip.
    pub rtt: Duration,
    /// The queue that our packets find, as far as their delays tell.
    pub queue: Duration,
    /// Bytes that may be on their way.
    pub window_bytes: u64,
    /// Packets that were sent again.
    pub lost_packets: u64,
    /// Bytes that the other side acknowledges in a second.
    pub delivery_rate_bytes: u64,
    /// The longest datagram.
    pub datagram_len: usize,
    /// Bytes of the stream that were sent.
    pub sent_bytes: u64,
    /// Bytes of the stream that came.
    pub received_bytes: u64,
}

/// What all connections hold.
#[derive(Debug, Default)]
struct Budget {
    recv_granted: u64,
    send_held: u64,
}

impl Budget {
    /// Whether one connection may have so many more bytes to receive.
    fn grants(&self, bytes: usize) -> bool {
        self.recv_granted + bytes as u64 <= RECV_ALL_MAX
    }

    fn is_send_full(&self) -> bool {
        self.send_held >= SEND_ALL_MAX
    }
}
