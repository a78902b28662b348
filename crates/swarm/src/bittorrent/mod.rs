//! A content at work in BitTorrent: its connections, trackers and sources, and what its core makes of the store's verdicts.

use anabranch_bittorrent::torrent::REQUEST_BOUNDARY;

use crate::store::buffers::CHUNK_LEN;

// No request crosses a chunk, or its block would have no place of its own in memory.
const _: () = assert!(CHUNK_LEN.is_multiple_of(REQUEST_BOUNDARY));

pub mod announce;
pub mod conn;
pub mod dial;
pub mod kept_metadata;
pub mod lifecycle;
pub mod open;
pub mod paths_driver;
pub mod recheck;
pub mod registry;
pub mod sources;
pub mod torrent;
