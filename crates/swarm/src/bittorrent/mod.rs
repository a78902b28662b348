//! A content at work in BitTorrent: its connections, trackers and sources, and what its core makes of the store's verdicts.

use anabranch_bittorrent::torrent::REQUEST_BOUNDARY;

use crate::store::buffers::CHUNK_LEN;

// No request crosses a chunk, or its block would have no place of its own in memory.
const _: () = assert!(CHUNK_LEN.is_multiple_of(REQUEST_BOUNDARY));

pub(crate) mod announce;
pub(crate) mod conn;
pub(crate) mod dht;
pub(crate) mod dial;
mod error;
mod files;
mod greeting;
pub(crate) mod kept_metadata;
mod named;
mod paths;
mod paths_beside;
pub(crate) mod paths_driver;
pub(crate) mod registry;
pub(crate) mod scratch;
mod sources;
pub(crate) mod torrent;
mod transfer;
pub(crate) mod web_seeds;
