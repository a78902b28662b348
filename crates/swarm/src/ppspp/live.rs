//! A live stream: its source, its core, and what of it is kept.
//!
//! No file is involved: chunks lie in memory as long as the window is, and go from there to players, recordings and other viewers.
//!
//! RFC 7574 has no word for a live stream's end. A chunk without bytes is ours: a source that ends fills the last group that it signs
//! with such chunks, or adds one where each is signed by itself. So the end is as certain as all the rest, and reaches everybody in the same way.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::ledbat::Mode;
use anabranch_ppspp::link::Link;
use anabranch_ppspp::sign::SigningKey;
pub use anabranch_ppspp::swarm::COPIES_MAX_DEFAULT;
use anabranch_ppspp::swarm::Swarm;
use anabranch_ppspp::wire::{Addressing, Dialect, Integrity, Mismatch, SwarmParams};

use super::nodes::Nodes;
use super::path_table::PathAddress;
use super::signing::{Unsigned, chunks_per_signature};
use crate::store::live::LiveWindow;

/// Chunks that are kept: 29 MiB of our sources', a minute of 4 Mbit/s.
const WINDOW_CHUNKS: u64 = 32_768;
/// From NTP's epoch to that of Unix, seconds (RFC 5905 §6).
const NTP_UNIX_S: u64 = 2_208_988_800;

/// The source of a live stream.
#[derive(Clone, Debug)]
pub struct LiveShare {
    /// What viewers are given, without peers and trackers.
    pub link: Link,
    key: SigningKey,
    /// Copies of the stream that are sent at most, on average: two at least.
    pub copies_max: u64,
    /// The number of its first chunk: see [`Swarm::begin_at`].
    pub begins_at: u64,
}

impl LiveShare {
    /// A stream that is signed with `key`, in groups of chunks, and called `name`.
    ///
    /// # Errors
    /// Where the key is one that no swarm can have.
    pub fn new(key: SigningKey, name: Option<String>) -> Result<Self, Mismatch> {
        Self::protected(key, name, Integrity::UnifiedMerkleTree)
    }

    /// The same, each of whose chunks is signed by itself.
    ///
    /// # Errors
    /// As [`LiveShare::new`].
    pub fn sign_all(key: SigningKey, name: Option<String>) -> Result<Self, Mismatch> {
        Self::protected(key, name, Integrity::SignAll)
    }

    fn protected(key: SigningKey, name: Option<String>, integrity: Integrity) -> Result<Self, Mismatch> {
        let id = key.public().swarm_id();
        let hash = HashFunction::Sha256;
        let params = SwarmParams::new(id, integrity, hash, Addressing::Chunks32, None)?;
        let dialect = Dialect::Rfc7574;
        let (peers, trackers) = (Vec::new(), Vec::new());
        let (content_len, manifest_len) = (None, None);
        let link = Link { params, dialect, content_len, manifest_len, peers, trackers, name, secure: None };
        Ok(Self { link, key, copies_max: COPIES_MAX_DEFAULT, begins_at: 0 })
    }
}

/// A content's part that is live.
pub(crate) struct Live {
    /// What is kept, for readers too.
    pub window: Rc<RefCell<LiveWindow>>,
    /// It is ours.
    pub is_source: bool,
    /// What the source was given and is not signed.
    pub(super) unsigned: Unsigned,
    /// We, its source, ended it.
    pub is_ended: bool,
}

/// The time, as signatures have it: NTP's 64 bits.
pub(crate) fn ntp_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ((since.as_secs() + NTP_UNIX_S) << 32) | ((u64::from(since.subsec_nanos()) << 32) / 1_000_000_000)
}

/// The core of a live stream; `None` where its link names no key, which cannot be.
pub(super) fn core(link: &Link, share: Option<LiveShare>, now: Instant) -> Option<(Swarm<PathAddress, Nodes>, Live)> {
    let (params, ntp) = (link.params.clone(), ntp_now());
    let group_chunks = chunks_per_signature(params.integrity());
    let seed = fastrand::u64(..);
    let begins_at = share.as_ref().map(|share| share.begins_at);
    let core = match share {
        Some(LiveShare { key, copies_max, .. }) => {
            let window = (WINDOW_CHUNKS, ntp);
            let mut core = Swarm::source(params, key, group_chunks, window, (Mode::Fast, seed), now).ok()?;
            core.set_copies(copies_max);
            core.begin_at(begins_at.unwrap_or(0)).ok()?;
            core
        }
        None => Swarm::viewer(params, WINDOW_CHUNKS, ntp, Mode::Fast, seed, now)?,
    };
    let mut window = LiveWindow::default();
    if let Some(first) = begins_at {
        window.begin(first, now);
    }
    let window = Rc::new(RefCell::new(window));
    let is_source = begins_at.is_some();
    Some((core, Live { window, is_source, unsigned: Unsigned::new(group_chunks), is_ended: false }))
}

impl Live {
    /// Behind the last chunk, where the source ended.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended || self.window.borrow().is_ended()
    }
}
