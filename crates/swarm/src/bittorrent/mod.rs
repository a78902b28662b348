//! A content at work in BitTorrent: its connections, trackers and sources.

pub mod announce;
pub mod conn;
pub mod dial;
pub mod kept_metadata;
pub mod sources;
pub mod torrent;
