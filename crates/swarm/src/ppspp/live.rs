//! A live stream at work: what its source makes of the bytes that it is given, and the window that a viewer keeps.
//!
//! No file is involved: chunks lie in memory as long as the window is, and go from there to players, recordings and other viewers.
//!
//! RFC 7574 has no word for a live stream's end. A chunk without bytes is ours: a source that ends fills the last group that it signs
//! with such chunks. So the end is as certain as all the rest, and reaches everybody in the same way.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::ledbat::Mode;
use anabranch_ppspp::link::Link;
use anabranch_ppspp::sign::SigningKey;
pub use anabranch_ppspp::swarm::COPIES_MAX_DEFAULT;
use anabranch_ppspp::swarm::{LiveEvent, Swarm};
use anabranch_ppspp::wire::{Addressing, Dialect, Integrity, Mismatch, SwarmParams};

use super::content::Content;
use super::nodes::Nodes;
use super::path_table::PathAddress;
use super::signing::{CHUNKS_PER_SIGNATURE, LIVE_CHUNK_LEN, Unsigned, cut};
use crate::events::{EventKind, FailureKind};
use crate::store::live::LiveWindow;

/// Chunks that are kept: 29 MiB of our sources', a minute of 4 Mbit/s.
const WINDOW_CHUNKS: u64 = 32_768;
/// Bytes that are kept, of sources whose chunks are longer.
const WINDOW_BYTES_MAX: usize = 32 << 20;
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
    /// A stream that is signed with `key`, and called `name`.
    ///
    /// # Errors
    /// Where the key is one that no swarm can have.
    pub fn new(key: SigningKey, name: Option<String>) -> Result<Self, Mismatch> {
        let id = key.public().swarm_id();
        let hash = HashFunction::Sha256;
        let params = SwarmParams::new(id, Integrity::UnifiedMerkleTree, hash, Addressing::Chunks32, None)?;
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
    is_source: bool,
    /// What the source was given and is not signed.
    unsigned: Unsigned,
    is_ended: bool,
}

/// The time, as signatures have it: NTP's 64 bits.
pub(crate) fn ntp_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ((since.as_secs() + NTP_UNIX_S) << 32) | ((u64::from(since.subsec_nanos()) << 32) / 1_000_000_000)
}

/// The core of a live stream; `None` where its link names no key, which cannot be.
pub(super) fn core(link: &Link, share: Option<LiveShare>, now: Instant) -> Option<(Swarm<PathAddress, Nodes>, Live)> {
    let (params, ntp) = (link.params.clone(), ntp_now());
    let seed = fastrand::u64(..);
    let begins_at = share.as_ref().map(|share| share.begins_at);
    let core = match share {
        Some(LiveShare { key, copies_max, .. }) => {
            let window = (WINDOW_CHUNKS, ntp);
            let mut core = Swarm::source(params, key, CHUNKS_PER_SIGNATURE, window, (Mode::Fast, seed), now).ok()?;
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
    Some((core, Live { window, is_source, unsigned: Unsigned::default(), is_ended: false }))
}

impl Live {
    /// Whether it is ours.
    pub(super) fn is_source(&self) -> bool {
        self.is_source
    }

    /// Behind the last chunk, where the source ended.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended || self.window.borrow().is_ended()
    }
}

impl Content {
    /// The source is given the stream's next bytes.
    pub(crate) fn push_live(&mut self, bytes: &[u8], now: Instant) {
        let Some(live) = self.live.as_mut().filter(|live| live.is_source && !live.is_ended) else { return };
        let full = live.unsigned.push(bytes, now);
        full.chunks(LIVE_CHUNK_LEN).for_each(|chunk| self.push_chunk(chunk, now));
        self.pump(now);
        self.wake.notify_one();
    }

    /// The source's stream ends here.
    pub(crate) fn end_live(&mut self, now: Instant) {
        let Some(live) = self.live.as_mut().filter(|live| live.is_source && !live.is_ended) else { return };
        live.is_ended = true;
        let rest = live.unsigned.take_all();
        rest.chunks(LIVE_CHUNK_LEN).for_each(|chunk| self.push_chunk(chunk, now));
        self.push_chunk(&[], now);
        while self.core.unsigned_chunks() > 0 && !self.stopping {
            self.push_chunk(&[], now);
        }
        self.pump(now);
        self.wake.notify_one();
    }

    fn push_chunk(&mut self, chunk: &[u8], now: Instant) {
        let Some(live) = &mut self.live else { return };
        match self.core.push(now, chunk) {
            Ok(number) => live.window.borrow_mut().insert(number, chunk),
            Err(error) => self.fail(FailureKind::Content, error.to_string()),
        }
    }

    /// What a slow source was given is cut into shorter chunks, so that it is signed in time. Answers when that is due.
    pub(super) fn sign_in_time(&mut self, now: Instant) -> Option<Instant> {
        let live = self.live.as_mut().filter(|live| live.is_source && !live.is_ended)?;
        let Some(group) = live.unsigned.take_due(now) else { return live.unsigned.due() };
        cut(&group).for_each(|chunk| self.push_chunk(chunk, now));
        None
    }

    /// A chunk of the stream that holds.
    pub(super) fn keep_live(&mut self, chunk: u64, payload: &[u8]) {
        let Some(live) = &self.live else { return };
        let mut window = live.window.borrow_mut();
        window.insert(chunk, payload);
        let too_many = window.chunks_beyond(WINDOW_BYTES_MAX);
        drop(window);
        self.core.stored(chunk);
        if let Some(chunks) = too_many {
            self.core.keep_fewer(chunks - chunks / 8);
        }
    }

    /// Puts a run of chunks behind what is in the scratch, as [`Content::read`] does; answers where they begin.
    pub(super) fn put_live(
        &self,
        chunk: u64,
        run: usize,
        scratch: &mut Vec<u8>,
    ) -> Option<Vec<std::ops::Range<usize>>> {
        let window = self.live.as_ref()?.window.borrow();
        let mut bodies = Vec::with_capacity(run);
        for ahead in 0..run as u64 {
            let start = scratch.len();
            scratch.extend_from_slice(window.get(chunk + ahead)?);
            bodies.push(start..scratch.len());
        }
        Some(bodies)
    }

    /// What happened in the stream.
    pub(super) fn heed_live(&mut self, now: Instant) {
        let Some(live) = &self.live else { return };
        let window = Rc::clone(&live.window);
        while let Some(event) = self.core.live_event() {
            match event {
                LiveEvent::Tuned(chunk) => {
                    window.borrow_mut().begin(chunk, now + self.core.live_hold(chunk));
                    self.tell(EventKind::LiveJoined { chunk });
                }
                LiveEvent::Restarted => {
                    window.borrow_mut().restart();
                    self.tell(EventKind::LiveRestarted);
                }
                LiveEvent::Discarded(floor) => window.borrow_mut().discard_before(floor),
                LiveEvent::Stale(way) => {
                    let reason = "the newest that it has of the stream was signed long ago: the source has gone, or the clock \
                                  of this machine or of the source's is wrong";
                    self.tell_failure(way.remote, reason, (true, false), now);
                }
                LiveEvent::Twin(way) => self.tell(EventKind::LiveTwin { address: way.remote }),
            }
        }
        if let Some(entry) = self.core.live_entry() {
            window.borrow_mut().enter_at(entry);
        }
    }
}
