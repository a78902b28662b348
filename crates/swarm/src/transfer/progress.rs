//! How a content fares.

use std::time::Duration;

use anabranch_bittorrent::torrent::TorrentStats;
use anabranch_paths::manager::PathCondition;
use anabranch_paths::{Endpoint, Path};

/// A content's state, for progress.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Name, once known.
    pub name: Option<String>,
    /// Bytes of wanted pieces that are verified.
    pub bytes_done: u64,
    /// Bytes of wanted pieces; `None` until the metadata is known.
    pub bytes_total: Option<u64>,
    /// Verified pieces.
    pub pieces_have: u32,
    /// All pieces.
    pub pieces_total: u32,
    /// Traffic.
    pub stats: TorrentStats,
    /// Everything wanted is there.
    pub finished: bool,
    /// Waiting: for storage to work again, or for its owner to let it go on.
    pub paused: bool,
}

/// One path's connection, for progress.
#[derive(Clone, Debug, PartialEq)]
pub struct PathProgress {
    /// Who is at its end.
    pub peer: Endpoint,
    /// The path.
    pub path: Path,
    /// What becomes of it.
    pub condition: PathCondition,
    /// Bytes per second from the peer.
    pub download_rate_bytes: u64,
    /// Bytes per second to the peer.
    pub upload_rate_bytes: u64,
    /// Payload from the peer.
    pub downloaded_bytes: u64,
    /// Payload to the peer.
    pub uploaded_bytes: u64,
    /// Round-trip time, once measured.
    pub rtt: Option<Duration>,
    /// Packets lost so far.
    pub lost_packets: u64,
    /// Whether there may be other paths to the same peer.
    pub is_one_of_many: bool,
}
