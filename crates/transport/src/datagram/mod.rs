//! Datagrams that stay on a path: many packets a system call, straight from and to where the caller has them.
//!
//! A [`Path`] is a way to one remote socket, over IP (interface, source address) or over SCION (its headers, written once). A
//! [`Socket`] is one socket of the system and may serve many paths. A [`Sender`] sends over one of them, whole bursts at once; a
//! [`Receiver`] fills [`Place`]s that the caller owns, with a packet's first bytes apart from the others, so that a chunk lands
//! in its piece without a copy, and tells path, ECN mark and the kernel's time of arrival. Neither blocks nor waits: sockets
//! are descriptors ([`std::os::fd::AsFd`]) for `poll`, `epoll` or tokio's `AsyncFd`, and a thread of its own does as well as a task.
//!
//! Two decisions are pure state machines beside it: a [`Pacer`] says when the next bytes may leave, and a [`PathMtu`] finds out
//! how long packets may be (RFC 8899). Both are the caller's to drive, since only he knows what was acknowledged and how fast
//! to go.
//!
//! A socket may reach the wire past the kernel's network layers, by AF_XDP ([`Socket::attach_xdp`]): its senders and receivers stay what
//! they are.
//!
//! What is left to others: acknowledgement, loss, congestion control, encryption, and which paths there are. Nothing proves
//! who a datagram is from. So nothing is allocated, learned or answered because of one: a packet of no path that was added
//! is handed up with its headers ([`Batch::headers`]), and whoever trusts it makes a [`Path::back`] of them. SCMP is handed up as
//! [`PathEvent`]s, if it quotes a packet that could have been ours; echo requests are not answered.
//!
//! ```
//! use anabranch_transport::datagram::{Packet, Path, Place, Socket};
//!
//! let (one, other) = (Socket::bind("127.0.0.1:0".parse()?)?, Socket::bind("127.0.0.1:0".parse()?)?);
//! let path = Path::ip(other.local().as_ip().expect("an address of IP"), None);
//! let mut sender = one.sender(&path)?;
//! let chunks: [[u8; 1000]; 3] = [[1; 1000], [2; 1000], [3; 1000]];
//! let packets = [0, 1, 2].map(|at| Packet { head: b"head", body: &chunks[at] });
//! assert_eq!(sender.try_send(&packets)?, 3);
//!
//! let (mut heads, mut piece) = ([[0; 4]; 3], vec![0; 3000]);
//! let places = heads.iter_mut().zip(piece.chunks_mut(1000));
//! let mut places: Vec<_> = places.map(|(head, body)| Place { head, body }).collect();
//! let mut receiver = other.receiver();
//! let mut received = 0;
//! while received < 3 {
//!     received += receiver.recv(&mut places[received..])?.len();
//! }
//! assert_eq!(piece, chunks.concat());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod inbound;
mod pacer;
mod path;
mod path_mtu;
mod receiver;
mod sender;
mod socket;
mod table;
mod xdp;

pub use anabranch_xdp::{Declined as XdpDeclined, Error as XdpError, Measurement as XdpMeasurement, Mode as XdpMode};
pub use error::{PathError, SendError, SendErrorKind};
pub use inbound::{Inbound, Meaning, PathEvent};
pub use pacer::{BURST_BYTES_MAX, BURST_BYTES_MIN, BURST_TIME, Pacer};
pub use path::Path;
pub use path_mtu::{
    BASE_MTU, Bounds, MIN_MTU, PROBE_TIMEOUT_MAX, PROBE_TIMEOUT_MIN, PROBES_MAX, PathMtu, Phase, Probe, RAISE_AFTER,
    STEP, SUSPICIOUS_LOSSES,
};
pub use receiver::{Batch, Counters, EVENTS_MAX, Place, Received, Receiver};
pub use sender::{Packet, Sender};
pub use socket::Socket;
pub use table::{PATHS_MAX, PathKey, Table};
pub use xdp::XdpPort;
