//! UDP in batches: bursts out with `UDP_SEGMENT`, coalesced in with `UDP_GRO`, many messages a system call.
//!
//! What a packet costs is mostly the way into the kernel and through its layers. So a [`Message`] may be a *burst*: many
//! datagrams of one size for one destination, gathered from scattered parts, that pass the kernel as one; and one call
//! sends several messages. Arriving datagrams of one flow come back coalesced likewise, in the buffers of a [`RecvBatch`]
//! that is made once, or in parts that the caller names ([`Socket::recv_scattered`]). Where the kernel or the device refuses bursts, they leave as single datagrams.
//!
//! System calls only: the socket never blocks; who waits for it does so with the descriptor ([`std::os::fd::AsFd`]),
//! by tokio's `AsyncFd` or plain `epoll`. Linux only.
//!
//! ```
//! use std::io::IoSlice;
//! use anabranch_udp::{Message, Options, RecvBatch, Socket};
//!
//! let options = Options::default();
//! let (one, other) = (Socket::bind("127.0.0.1:0".parse()?, &options)?, Socket::bind("127.0.0.1:0".parse()?, &options)?);
//! // Three datagrams of 1000, 1000 and 500 bytes, sent as one.
//! let payload = [7; 2500];
//! let (head, tail) = payload.split_at(600);
//! let parts = [IoSlice::new(head), IoSlice::new(tail)];
//! let burst = Message::burst(other.local_addr(), &parts, 1000);
//! assert_eq!(one.send(&[burst])?, 1);
//!
//! let mut batch = RecvBatch::new(8);
//! other.recv(&mut batch)?;
//! let lens: Vec<_> = batch.iter().flat_map(|received| received.segments().map(<[u8]>::len)).collect();
//! assert_eq!(lens, [1000, 1000, 500]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod address;
mod control;
mod device;
mod egress;
mod recv;
mod send;
mod socket;

pub use device::interface_mtu;
pub use recv::{Arrival, RECV_BUFFER_LEN, RECV_MESSAGES_MAX, Received, ReceivedMut, RecvBatch, Scatter};
pub use send::{Message, PARTS_MAX, SEGMENTS_MAX};
pub use socket::{Options, Socket};

/// Largest payload of one UDP datagram, and of a burst, in bytes: 65,535 less the IPv4 and UDP headers.
/// IPv6 would take 20 more; one limit is simpler.
pub const DATAGRAM_LEN_MAX: usize = 65_507;
