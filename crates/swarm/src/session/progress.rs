//! How a content fares.

use std::time::Instant;

use anabranch_bittorrent::torrent::TorrentStats;
use anabranch_content::bitfield::Bitfield;

use crate::bittorrent::torrent::TorrentDriver;

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

impl TorrentDriver {
    /// How it fares.
    pub(crate) fn progress(&mut self, now: Instant) -> Progress {
        let stats = self.core.stats(now);
        let finished = self.core.is_finished();
        let paused = self.core.is_paused();
        let (done, total) = self.core.wanted_bytes().unzip();
        let info = self.core.info();
        Progress {
            name: info.map(|info| info.name.clone()),
            bytes_done: done.unwrap_or(0),
            bytes_total: total,
            pieces_have: self.core.have().map_or(0, Bitfield::count),
            pieces_total: info.map_or(0, |info| info.geometry.piece_count()),
            stats,
            finished,
            paused,
        }
    }
}
