//! Bulk transfer, from one to many, over every path at once: the protocol of Hercules ("High-Speed Bulk-Transfer over SCION"),
//! with keys, verification, holes, resume and fair sharing. Pure: bytes and the time in; packets, events and the next
//! deadline out. The page `docs/bulk.md` has the protocol byte for byte.
//!
//! | module | what it knows |
//! | --- | --- |
//! | [`wire`] | sealed packets, control, messages of the stream, manifest, receipt, ticket |
//! | [`Sender`], [`Receiver`] | the two ends: rounds, paths, reports, resume |
//! | [`congestion`] | how fast each path goes |
//! | [`SharedShelf`], [`Convoy`] | what of a content is in memory, for several receivers at once; who of them waits for whom |
//! | [`ChunkSet`], [`PacketWindow`] | which chunks of all came; which of a path's last packets |
//! | [`tree`] | the root over a content, made while it is read |
//!
//! What is left to the driver: QUIC and the secret that it exports, sockets and addresses, files, and which paths there are.
//!
//! ```
//! use std::time::Instant;
//! use anabranch_hercules::wire::message::Offer;
//! use anabranch_hercules::wire::seal::Secret;
//! use anabranch_hercules::{Batch, CONTROL_PACKET_MAX, ChunkSet, Everything, Receiver, Sender, congestion};
//!
//! let (now, secret) = (Instant::now(), Secret::new(7, &[3; 32]));
//! let offer = Offer { transfer: 7, chunk_len: 1400, content_len: 9000, manifest_len: 0, manifest_hash: [0; 32] };
//! let mut sender = Sender::new(offer, secret.clone(), congestion::Kind::Vivace, 1, now)?;
//! let mut receiver = Receiver::new(offer, ChunkSet::new(1), now)?;
//! let mut sealer = sender.add_path(0, None, now).expect("path 0 is free");
//! receiver.add_path(0, &secret, now);
//! while let Some(message) = receiver.poll_message() {
//!     sender.on_message(message).expect("what was kept, and that it is ready");
//! }
//! // Hello, echo, confirm; then chunks.
//! let mut packet = [0; CONTROL_PACKET_MAX];
//! while let Some((_path, len)) = sender.poll_control(now, &mut packet) {
//!     receiver.on_datagram(&mut packet[..len], now).expect("what the sender sealed");
//!     while let Some((_path, len)) = receiver.poll_control(now, &mut packet) {
//!         sender.on_datagram(&mut packet[..len], now).expect("what the receiver sealed");
//!     }
//! }
//! let (mut batch, mut head, content) = (Batch::default(), [0; 34], [42; 9000]);
//! let later = now + std::time::Duration::from_millis(20);
//! while sender.poll_batch(later, &mut Everything, &mut batch) {
//!     for (number, chunk) in (batch.first..).zip(&batch.chunks) {
//!         let at = *chunk as usize * 1400;
//!         let mut body = content[at..(at + 1400).min(9000)].to_vec();
//!         sealer.seal_chunk(number, *chunk, &mut body, &mut head);
//!         receiver.on_data(&head, &mut body, later).expect("what the sender sealed");
//!     }
//! }
//! assert_eq!(receiver.progress(), (7, 7));
//! # Ok::<(), anabranch_hercules::wire::WireError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what messages carry")]

mod chunks;
pub mod congestion;
mod convoy;
mod misbehaviour;
mod receiver;
mod sender;
mod shelf;
pub mod tree;
mod window;
pub mod wire;

pub use chunks::ChunkSet;
pub use convoy::Convoy;
pub use misbehaviour::Misbehaviour;
pub use receiver::{Arrived, Event as ReceiverEvent, REPORTS_PER_MARK_MAX, Receiver};
pub use sender::{BATCH_PACKETS_MAX, Batch, CONTROL_PACKET_MAX, Event, PathState, Progress, Refused, Sender, hand_on};
pub use shelf::{Everything, READ_AHEAD, Read, SharedShelf, Shelf};
pub use window::{PacketWindow, WINDOW_PACKETS};
