//! Bulk transfer, from one to many, over every path at once: the protocol of Hercules ("High-Speed Bulk-Transfer over SCION"),
//! with keys, verification, holes, resume and fair sharing. Pure: bytes and the time in; packets, events and the next
//! deadline out. The page `docs/bulk.md` has the protocol byte for byte.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod chunks;
pub mod tree;
mod window;
pub mod wire;

pub use chunks::ChunkSet;
pub use window::{PacketWindow, WINDOW_PACKETS};
