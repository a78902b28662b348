//! What a session asks of a live stream.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::store::live::LiveWindow;

/// A content that is a live stream.
pub(crate) trait LiveTransfer {
    /// Its window, for those who read it.
    fn window(&self) -> Rc<RefCell<LiveWindow>>;
    /// Its source is given the next bytes.
    fn push(&self, bytes: &[u8], now: Instant);
    /// Its source ends it.
    fn finish(&self, now: Instant);
    /// What lacks before this chunk is given up.
    fn skip_to(&self, chunk: u64, now: Instant);
    /// How it fares.
    fn state(&self) -> LiveState;
    /// How long ago a chunk was signed, by the clocks of its source and of this machine.
    fn age(&self, chunk: u64) -> Option<Duration>;
}

/// How a live stream fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveState {
    /// The chunk after the last one that is signed.
    pub edge: u64,
    /// The source ended it.
    pub is_ended: bool,
    /// Peers that lack some of it, as far as they told: who leaves is missed by nobody.
    pub lacking_peers: usize,
    /// How long ago the newest chunks were signed, by the clocks of the source and of this machine.
    pub edge_age: Option<Duration>,
}
