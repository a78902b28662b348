//! What a content moved, and how fast it does.

use std::time::{Duration, Instant};

use anabranch_bittorrent::rate::Rate;

/// Time over which rates are told: what a user sees move.
const WINDOW: Duration = Duration::from_secs(4);

/// Bytes of chunks, each way.
#[derive(Debug)]
pub(crate) struct Rates {
    /// Payload that came and holds.
    pub downloaded_bytes: u64,
    /// Payload that left.
    pub uploaded_bytes: u64,
    down: Rate,
    up: Rate,
}

impl Rates {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self { downloaded_bytes: 0, uploaded_bytes: 0, down: Rate::new(WINDOW), up: Rate::new(WINDOW) }
    }

    /// Chunks left.
    pub(crate) fn sent(&mut self, bytes: u64, now: Instant) {
        self.uploaded_bytes += bytes;
        self.up.add(bytes, now);
    }

    /// Chunks came.
    pub(crate) fn received(&mut self, bytes: u64, now: Instant) {
        self.downloaded_bytes += bytes;
        self.down.add(bytes, now);
    }

    /// So much came and left so far, in all.
    pub(crate) fn moved(&mut self, (downloaded_bytes, uploaded_bytes): (u64, u64), now: Instant) {
        self.received(downloaded_bytes.saturating_sub(self.downloaded_bytes), now);
        self.sent(uploaded_bytes.saturating_sub(self.uploaded_bytes), now);
    }

    /// Bytes a second, down and up.
    pub(crate) fn bytes_per_sec(&mut self, now: Instant) -> (u64, u64) {
        (self.down.bytes_per_sec(now), self.up.bytes_per_sec(now))
    }
}
