//! A channel of a content.

use std::rc::Rc;
use std::time::Instant;

use anabranch_bittorrent::PeerKey;

use crate::limits::Share;
use crate::net::conn_handle::ConnHandle;
use crate::ppspp::rates::Rates;

/// A peer's channel, as limits see it.
pub(super) struct Conn {
    pub down: Share,
    pub up: Share,
    /// Whose it is: more channels are no larger share.
    pub key: PeerKey,
    /// When it came.
    pub opened: Instant,
    /// Bytes that were counted already.
    pub asked_bytes: u64,
    pub sent_bytes: u64,
    pub handle: Rc<ConnHandle>,
    /// How fast it moves, and what was counted for that.
    pub rates: Rates,
    /// The owner knows that chunks do not fit its way.
    pub is_told: bool,
}

impl Drop for Conn {
    /// The task that waits for its turn ends.
    fn drop(&mut self) {
        self.handle.close(String::new());
    }
}
