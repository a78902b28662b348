//! A live stream's part of a swarm (RFC 7574 §6.1, §6.2): signatures that are believed, where a viewer starts, what is forgotten.
//!
//! What is signed is another thing with each way to protect a stream, which [`LiveProofs`] knows. With munros nothing counts before one
//! of the source's says that it is there: a peer's announcements are cut at the newest munro that is
//! known, and those of a peer that showed no munro of this stream are not heard at all. Every announcement has the newest munro in
//! front, and every chunk its own until the peer acknowledged one below it; so both tell all that it takes to believe them.
//!
//! Where each chunk is signed, a chunk that came is all that proves anything: how far the stream is, that it is this one, that a new one
//! began. So what a peer announces is heeded as far as the window goes and asked for in order; and a chunk of it that is nowhere
//! near, before the viewer knows where the stream is, above all, is asked for by itself: a probe.
//!
//! A source that begins anew counts from chunk 0 again. Then everything from before is forgotten, and each peer has to show a munro
//! of the new stream first: those who have not heard of it yet are late, and no liars.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::claims::Claims;
use super::fetch::BINS_MAX;
use super::live_source::Spread;
use super::{CHANNELS_MAX, PeerAddress, Swarm};
use crate::bin::Bin;
use crate::binmap::Binmap;
use crate::hash::Digest;
use crate::ledbat::Mode;
use crate::merkle::{
    LiveError, LiveProofs, LiveSource, LiveVerdict, MemoryNodes, Munro, MunroVerdict, NodeStore, Tree, Verdict,
};
use crate::picker::Picker;
use crate::sign::{PublicKey, SigningKey};
use crate::wire::{ChannelId, Dialect, DiscardWindow, Integrity, Message, SwarmParams};

/// How far behind the source a stream is played: what a chunk may take to reach everybody, with whatever happens to it on its way.
pub const PLAY_BEHIND: Duration = Duration::from_millis(1500);
/// How far behind the newest munro a latecomer starts: what is so old has reached its neighbours already, so it comes at once, and
/// each second of it makes the start so much sooner. More of it would keep them from what is new.
pub const START_BACK: Duration = Duration::from_millis(400);
/// How often a peer is told what is here, where nothing is new: a sign of life, which repeats what may have been lost.
const SAY_EVERY: Duration = Duration::from_millis(500);
/// What is new is announced this often at most: chunks come some together, and each announcement has a datagram's head.
const NEWS_EVERY: Duration = Duration::from_millis(20);
/// The same of a peer that has not shown yet that it knows the stream: it cannot begin before.
const SAY_EVERY_UNTUNED: Duration = Duration::from_millis(100);
/// A munro goes out with so many of the chunks below it that leave together, and with others after so long.
const MUNRO_TIMES: u32 = 2;
const MUNRO_AGAIN_US: u64 = 100_000;
/// Nothing is asked of a peer that said nothing for so long: while a stream flows it speaks twenty times a second.
pub(super) const QUIET_MAX: Duration = Duration::from_millis(700);
/// A peer that says nothing for so long is gone: it would have spoken six times. A source that was started again is found no sooner.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// How long after a new beginning wrong chunks are late ones of the old stream, and nobody's lie.
const RESTART_GRACE: Duration = Duration::from_secs(10);
/// A peer that sends so many chunks that cannot be proven, in a row and none that can, means no good: each without the signature that was
/// to come with it, and that was no longer than itself, or with one of another stream. Some may be honest, for a signature can be lost,
/// and a source begin anew.
pub(super) const UNPROVEN_MAX: u32 = 64;
/// The chunks behind the window are forgotten so many at a time, for that costs as much as it would for each.
const ADVANCE_CHUNKS: u64 = 16;
/// Runs of chunks in one announcement, the newest: with both munros, a datagram of the Internet's size.
const RUNS_MAX: usize = BINS_MAX - 20;
/// How long a viewer listens to what its neighbours have before it begins: each moment of it makes the start so much later.
const LISTEN: Duration = Duration::from_millis(150);
/// Neighbours that have what is older, of those there are, for a viewer to begin with that: one would be asked by everybody.
const START_HOLDERS: usize = 2;
/// Channels of a viewer: each has the newest chunks from few and gives them to few, in a tree that is different for each chunk. With
/// more, whoever has a chunk first would be asked for it by everybody.
pub const VIEWER_CHANNELS_MAX: usize = 12;
/// Neighbours that a viewer looks for.
pub const NEIGHBOURS: usize = 6;
/// How long a channel is left to show what it is good for before it makes room for one that comes.
const ROOM_AFTER: Duration = Duration::from_secs(1);
/// Chunks that a peer is asked for at once, at least: arrivals say nothing of its rate where it has nothing more to send.
pub(super) const ASK_MIN: u64 = 8;

/// What happened in a live stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveEvent<P> {
    /// A viewer begins at this chunk.
    Tuned(u64),
    /// The source began anew: whatever is here of the old stream is worth nothing any more. [`LiveEvent::Tuned`] follows.
    Restarted,
    /// Chunks before this one are forgotten.
    Discarded(u64),
    /// The newest that this peer has of the stream was signed long ago: the source has gone, or a clock is wrong.
    Stale(P),
    /// Told to a source: somebody else signs with its key, which this peer heard of.
    Twin(P),
}

#[derive(Debug)]
pub(super) struct Live {
    pub role: Role,
    key: PublicKey,
    /// Chunks that are kept behind the newest.
    pub window: u64,
    /// Chunks before it are forgotten.
    pub floor: u64,
    /// When a viewer heard of the stream, and where it begins.
    heard_at: Option<Instant>,
    pub start: Option<u64>,
    /// The time at the swarm's epoch.
    ntp: u64,
    restarted_at: Option<Instant>,
    is_stale_told: bool,
    pub is_twin_told: bool,
}

#[derive(Debug)]
pub(super) enum Role {
    Source(Box<LiveSource>, Spread),
    Viewer(LiveProofs),
}

impl Live {
    pub(super) fn proofs(&self) -> &LiveProofs {
        match &self.role {
            Role::Source(source, _) => source.proofs(),
            Role::Viewer(proofs) => proofs,
        }
    }

    fn proofs_mut(&mut self) -> &mut LiveProofs {
        match &mut self.role {
            Role::Source(source, _) => source.proofs_mut(),
            Role::Viewer(proofs) => proofs,
        }
    }

    pub(super) fn is_source(&self) -> bool {
        matches!(self.role, Role::Source(..))
    }

    /// Whether a viewer knows where it begins.
    pub(super) fn has_begun(&self) -> bool {
        self.start.is_some()
    }

    /// The chunk after the last one that is known to be signed.
    pub(super) fn edge(&self) -> u64 {
        self.proofs().edge()
    }

    /// Where what is asked for in order ends.
    pub(super) fn asked_end(&self) -> u64 {
        self.proofs().asked_end(self.window)
    }

    /// The time: NTP's 64 bits.
    pub(super) fn ntp(&self, since_epoch: Duration) -> u64 {
        self.ntp.saturating_add(ntp_of(since_epoch))
    }

    pub(super) fn discard_window(&self) -> DiscardWindow {
        DiscardWindow::Last(self.window)
    }

    /// The source began anew lately: what is of the stream before it is late, and nobody's lie.
    fn is_anew(&self, now: Instant) -> bool {
        self.restarted_at.is_some_and(|at| now.saturating_duration_since(at) < RESTART_GRACE)
    }
}

/// A length of time as NTP has it: seconds in the upper half, their parts in the lower one.
pub(super) fn ntp_of(time: Duration) -> u64 {
    (time.as_secs() << 32) | ((u64::from(time.subsec_nanos()) << 32) / 1_000_000_000)
}

/// The reverse.
fn duration_of(ntp: u64) -> Duration {
    Duration::from_secs(ntp >> 32) + Duration::from_nanos(((ntp & u64::from(u32::MAX)) * 1_000_000_000) >> 32)
}

/// What a channel of a live stream knows besides.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveChannel {
    /// It showed that it knows this stream: by a munro, or by a chunk that it sent or took.
    pub is_tuned: bool,
    /// What it announced.
    pub claims: Claims,
    /// Chunks that came from it and could not be proven, since one could.
    unproven: u32,
    /// When it was told all there is to tell, and the newest munro's time that it was told.
    said_at: Option<Instant>,
    munro_said: u64,
    /// Chunks below munros that it showed: it need not be told of those.
    shown: Binmap,
    /// The munro that went out last with a chunk.
    munro_sent: MunroSent,
    /// What it keeps behind the newest chunk.
    pub window: Option<DiscardWindow>,
    /// What a source gave it to spread, and how much there was of that.
    pub allotted: Binmap,
    pub allotted_count: u64,
    /// Where it begins, once it told: it wants nothing from before.
    pub began: Option<u64>,
    pub began_at: Option<Instant>,
    /// It announced something since it was asked last.
    pub has_news: bool,
    /// It was told where we begin.
    is_begin_said: bool,
}

/// A munro that went out with chunks, and was not heard of since.
#[derive(Clone, Copy, Debug, Default)]
struct MunroSent {
    start: u64,
    times: u32,
    at_us: u64,
}

impl LiveChannel {
    /// The peer showed the munro above these chunks, which is known here.
    fn shows(&mut self, chunks: Range<u64>, is_known: bool) {
        if is_known {
            self.is_tuned = true;
            self.shown.insert_range(chunks);
        }
    }

    /// The peer sent a chunk of this stream: it has that, whatever else it has.
    pub(super) fn shows_chunk(&mut self, chunk: u64, has: &mut Binmap) {
        if !std::mem::replace(&mut self.is_tuned, true) {
            has.insert_range(chunk..chunk + 1);
        }
    }

    /// Whether a munro goes out with a chunk below it that leaves now. Chunks leave some together: two of them have it, for one is lost
    /// sometimes, and again those that leave a while later.
    pub(super) fn takes_munro(&mut self, start: u64, clock_us: u64) -> bool {
        if self.shown.contains(start) {
            return false;
        }
        let sent = &mut self.munro_sent;
        let is_recent = sent.start == start && clock_us.saturating_sub(sent.at_us) < MUNRO_AGAIN_US;
        if is_recent && sent.times >= MUNRO_TIMES {
            return false;
        }
        *sent = MunroSent { start, times: if is_recent { sent.times + 1 } else { 1 }, at_us: clock_us };
        true
    }
}

impl<P: PeerAddress, S: NodeStore + From<MemoryNodes>> Swarm<P, S> {
    /// A viewer of a live stream that keeps `window` chunks. `ntp` is the time, in NTP's 64 bits.
    pub fn viewer(params: SwarmParams, window: u64, ntp: u64, mode: Mode, seed: u64, now: Instant) -> Option<Self> {
        let key = params.key()?.clone();
        let role = Role::Viewer(LiveProofs::new(params.integrity(), params.hash())?);
        Some(Self::live(params, Live::new(role, key, window, ntp), (mode, seed), now))
    }

    /// The source of a live stream, from its beginning: `params` have to name `key`.
    ///
    /// # Errors
    /// Chunks cannot be signed in groups of so many: one, where each is to be signed by itself.
    pub fn source(
        params: SwarmParams,
        key: SigningKey,
        chunks_per_signature: u64,
        (window, ntp): (u64, u64),
        (mode, seed): (Mode, u64),
        now: Instant,
    ) -> Result<Self, LiveError> {
        let public = key.public().clone();
        let codec = params.codec(Dialect::Rfc7574);
        let source = match (params.integrity(), chunks_per_signature) {
            (Integrity::SignAll, 1) => LiveSource::sign_all(key, codec),
            (Integrity::SignAll, _) => return Err(LiveError::ChunksPerSignature),
            _ => LiveSource::new(key, codec, chunks_per_signature, None)?,
        };
        let role = Role::Source(Box::new(source), Spread::default());
        Ok(Self::live(params, Live::new(role, public, window.max(chunks_per_signature), ntp), (mode, seed), now))
    }

    fn live(params: SwarmParams, live: Live, (mode, seed): (Mode, u64), now: Instant) -> Self {
        // No chunk leads up to a root of zeros.
        let tree = Tree::with_root(params.hash(), params.hash().zero(), None, MemoryNodes::new(params.hash()).into());
        let mut swarm = Self::new(params, tree, Binmap::new(), mode, seed, now);
        swarm.live = Some(Box::new(live));
        swarm
    }
}

impl Live {
    fn new(role: Role, key: PublicKey, window: u64, ntp: u64) -> Self {
        Self {
            role,
            key,
            window,
            floor: 0,
            heard_at: None,
            start: None,
            ntp,
            restarted_at: None,
            is_stale_told: false,
            is_twin_told: false,
        }
    }

    /// Where somebody who comes now begins.
    pub(super) fn start_chunk(&self) -> Option<u64> {
        let newest = self.proofs().newest()?;
        let since = newest.ntp.saturating_sub(ntp_of(START_BACK));
        Some(self.proofs().since(since).unwrap_or(newest).chunks.start.max(self.floor))
    }
}

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// What happened in the live stream since.
    pub fn live_event(&mut self) -> Option<LiveEvent<P>> {
        self.live_events.pop_front()
    }

    /// The chunk after the last one that the source signed, as far as it is known; 0 before.
    pub fn live_edge(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.edge())
    }

    /// When a chunk of a live stream was signed, in NTP's 64 bits.
    pub fn live_signed_at(&self, chunk: u64) -> Option<u64> {
        Some(self.live.as_ref()?.proofs().over(chunk)?.ntp)
    }

    /// Where a player that comes now begins, in a viewer that is not new: as far behind the source as all play.
    pub fn live_entry(&self) -> Option<u64> {
        let proofs = self.live.as_ref()?.proofs();
        let newest = proofs.newest()?;
        let entry = proofs.since(newest.ntp.saturating_sub(ntp_of(PLAY_BEHIND))).unwrap_or(newest);
        Some(entry.chunks.start)
    }

    /// How long a player that begins at this chunk waits until it does: then it is as far behind the source as all are, and what
    /// comes meanwhile is what it has in hand. Times of signatures alone count, not what this machine's clock says.
    pub fn live_hold(&self, chunk: u64) -> Duration {
        let Some(proofs) = self.live.as_ref().map(|live| live.proofs()) else { return Duration::ZERO };
        let Some((newest, first)) = proofs.newest().zip(proofs.over(chunk)) else { return PLAY_BEHIND };
        PLAY_BEHIND.saturating_sub(duration_of(newest.ntp.saturating_sub(first.ntp)))
    }

    /// How many peers lack something of what is signed, as far as they told, over whichever path: who leaves is missed by nobody.
    pub fn lacking_peers(&self) -> usize {
        let edge = self.live_edge();
        let lacks = |peer: &Vec<ChannelId>| {
            let (mut has, mut began) = (Binmap::new(), None);
            for channel in peer.iter().filter_map(|id| self.channels.get(id)) {
                has.union_with(&channel.has);
                began = began.max(channel.live.began);
            }
            // It forgets what is old, too.
            let first = began.max(has.next_set(0)).unwrap_or(0);
            edge > 0 && !(has.contains(edge - 1) && has.next_clear(first) >= edge)
        };
        self.channels_by_peer(|channel| channel.proven && channel.live.is_tuned)
            .iter()
            .filter(|peer| lacks(peer))
            .count()
    }

    /// The channels of each peer, those that `counts` lets through: a peer that is reached over several paths has several.
    pub(super) fn channels_by_peer(&self, counts: impl Fn(&Channel<P>) -> bool) -> Vec<Vec<ChannelId>> {
        let counts = |id: &ChannelId| self.channels.get(id).is_some_and(&counts);
        let counted: Vec<(&P, ChannelId)> =
            self.by_peer.iter().filter(|(_, id)| counts(id)).map(|(peer, id)| (peer, *id)).collect();
        let peers = counted.chunk_by(|(one, _), (next, _)| one.is_same_peer(next));
        peers.map(|peer| peer.iter().map(|(_, id)| *id).collect()).collect()
    }

    /// Keeps so many chunks behind the newest, where that is fewer than so far: peers were told of more, and have what they ask for of
    /// that from others.
    pub fn keep_fewer(&mut self, chunks: u64) {
        if let Some(live) = &mut self.live {
            live.window = live.window.min(chunks);
            self.advance();
        }
    }

    /// A viewer gives up what it lacks before this chunk.
    pub fn skip_to(&mut self, chunk: u64) {
        if let Some(live) = self.live.as_mut()
            && live.start.is_some_and(|start| start < chunk)
        {
            live.start = Some(chunk);
            self.picker = Picker::Live(chunk);
        }
    }

    /// A SIGNED_INTEGRITY message came. `chunks` are those that came in its batch: of an old stream, if this is of a new one.
    pub(super) fn signature(
        &mut self,
        now: Instant,
        id: ChannelId,
        (node, ntp, signature): (Bin, u64, &[u8]),
        chunks: &mut Vec<(u64, &[u8])>,
    ) {
        let (Some(live), Some(channel)) = (&self.live, self.channels.get_mut(&id)) else { return };
        let Some(munro) = live.proofs().signature(&mut channel.offers, node, ntp, signature) else { return };
        if self.munro(now, id, munro) == MunroVerdict::Restarted {
            chunks.clear();
        }
    }

    /// A signed root of a subtree came.
    fn munro(&mut self, now: Instant, id: ChannelId, munro: Munro) -> MunroVerdict {
        let shown = munro.node.range();
        let codec = self.params.codec(Dialect::Rfc7574);
        let (Some(live), Some(channel)) = (&mut self.live, self.channels.get_mut(&id)) else {
            return MunroVerdict::Known;
        };
        let ntp_now = live.ntp(now.saturating_duration_since(self.epoch));
        match &mut live.role {
            Role::Source(source, _) => {
                channel.live.shows(shown, source.proofs().knows(&munro));
                // The old stream of a source that was started again is older than all of the new one.
                let is_newer = source.proofs().oldest().is_some_and(|oldest| munro.ntp > oldest.ntp);
                if channel.live.is_tuned || live.is_twin_told || !is_newer {
                    return MunroVerdict::Known;
                }
                // The first of many that are none costs one signature a peer; it is a liar then.
                let others = LiveProofs::new(self.params.integrity(), self.params.hash());
                match others.map(|mut others| others.offer(&live.key, &codec, munro, ntp_now)) {
                    Some(MunroVerdict::New) => {
                        live.is_twin_told = true;
                        self.live_events.push_back(LiveEvent::Twin(channel.peer.clone()));
                    }
                    Some(MunroVerdict::Wrong) => self.lied(id),
                    _ => {}
                }
                MunroVerdict::Known
            }
            Role::Viewer(proofs) => {
                let is_first = proofs.is_empty();
                let verdict = proofs.offer(&live.key, &codec, munro.clone(), ntp_now);
                match verdict {
                    MunroVerdict::Known => {
                        let is_known = proofs.knows(&munro);
                        channel.live.shows(shown, is_known);
                    }
                    MunroVerdict::Stale if is_first => self.tell_stale(id),
                    MunroVerdict::Stale => {}
                    MunroVerdict::Wrong => self.lied(id),
                    MunroVerdict::New => {
                        channel.live.shows(shown, true);
                        self.advance();
                    }
                    MunroVerdict::Restarted => {
                        self.forget_stream(now);
                        if let Some(channel) = self.channels.get_mut(&id) {
                            channel.live.shows(shown, true);
                        }
                    }
                }
                verdict
            }
        }
    }

    /// The newest that a peer has was signed too long ago to begin with. Told once.
    fn tell_stale(&mut self, id: ChannelId) {
        let (Some(live), Some(channel)) = (&mut self.live, self.channels.get(&id)) else { return };
        if !std::mem::replace(&mut live.is_stale_told, true) {
            self.live_events.push_back(LiveEvent::Stale(channel.peer.clone()));
        }
    }

    /// Judges a chunk that is not here. `chunks` are those that came before in its batch: of an old stream, if this is of a new one.
    pub(super) fn judge_live(
        &mut self,
        now: Instant,
        id: ChannelId,
        (chunk, payload): (u64, &[u8]),
        leaf: impl FnOnce() -> Digest,
        chunks: &mut Vec<(u64, &[u8])>,
    ) -> Verdict {
        let codec = self.params.codec(Dialect::Rfc7574);
        let (Some(live), Some(channel)) = (&mut self.live, self.channels.get_mut(&id)) else {
            return Verdict::Missing;
        };
        let ntp_now = live.ntp(now.saturating_duration_since(self.epoch));
        let is_anew = live.is_anew(now);
        let (offers, what, is_tuned) = (&mut channel.offers, (chunk, payload), channel.live.is_tuned);
        let proofs = match &mut live.role {
            // A source needs nobody's chunks; but one that it did not make, and that its key signed, tells of another source.
            Role::Source(source, _) => {
                return match source.proofs().judge_strange(&live.key, &codec, what, offers, ntp_now) {
                    LiveVerdict::Good => {
                        if !std::mem::replace(&mut live.is_twin_told, true) {
                            self.live_events.push_back(LiveEvent::Twin(channel.peer.clone()));
                        }
                        Verdict::Missing
                    }
                    LiveVerdict::Wrong => Verdict::Wrong,
                    _ => Verdict::Missing,
                };
            }
            Role::Viewer(proofs) => proofs,
        };
        let verdict = proofs.judge(&live.key, &codec, what, leaf, (offers, is_tuned), ntp_now);
        let unproven = match verdict {
            LiveVerdict::Good | LiveVerdict::Restarted => 0,
            LiveVerdict::Replayed if !is_anew => channel.live.unproven + 1,
            // It could have come as well.
            LiveVerdict::Unsigned if payload.len() >= usize::from(codec.signature_len) => channel.live.unproven + 1,
            _ => channel.live.unproven,
        };
        channel.live.unproven = unproven;
        match verdict {
            LiveVerdict::Wrong if is_anew => return Verdict::Missing,
            LiveVerdict::Wrong => return Verdict::Wrong,
            LiveVerdict::Good if chunk < live.floor => return Verdict::Missing,
            _ if unproven >= UNPROVEN_MAX => return Verdict::Wrong,
            LiveVerdict::Missing | LiveVerdict::Unsigned | LiveVerdict::Replayed => return Verdict::Missing,
            LiveVerdict::Stale => {
                self.tell_stale(id);
                return Verdict::Missing;
            }
            LiveVerdict::Restarted => {
                self.forget_stream(now);
                chunks.clear();
            }
            LiveVerdict::Good => {}
        }
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.live.shows_chunk(chunk, &mut channel.has);
        }
        self.advance();
        Verdict::Good
    }

    /// Everything of the old stream is forgotten.
    fn forget_stream(&mut self, now: Instant) {
        let Some(live) = &mut self.live else { return };
        (live.floor, live.start, live.heard_at, live.restarted_at) = (0, None, None, Some(now));
        self.have = Binmap::new();
        self.held = Binmap::new();
        self.requested = Binmap::new();
        self.asked_count = 0;
        for channel in self.channels.values_mut() {
            let window = channel.live.window;
            channel.has = Binmap::new();
            channel.unsaid = Binmap::new();
            channel.asked.clear();
            channel.unacked.clear();
            channel.acked_before.clear();
            channel.wants.clear();
            channel.lost.clear();
            channel.inflight.clear();
            channel.sent_order.clear();
            channel.answered.clear();
            channel.assumed = Binmap::new();
            channel.latest.clear();
            channel.asked_before = Binmap::new();
            channel.offers.forget();
            channel.live = LiveChannel { window, ..Default::default() };
        }
        self.live_events.push_back(LiveEvent::Restarted);
    }

    /// The newest munro moved: what is behind the window is forgotten, here and of the peers.
    pub(super) fn advance(&mut self) {
        let Some(live) = &mut self.live else { return };
        let edge = live.edge();
        let floor = edge.saturating_sub(live.window) / ADVANCE_CHUNKS * ADVANCE_CHUNKS;
        if floor <= live.floor {
            return;
        }
        live.floor = floor;
        live.proofs_mut().discard_before(floor);
        self.have.remove_range(0..floor);
        self.held.remove_range(0..floor);
        self.requested.remove_range(0..floor);
        for channel in self.channels.values_mut() {
            let kept = match channel.live.window {
                Some(DiscardWindow::Last(chunks)) => edge.saturating_sub(chunks).max(floor),
                _ => floor,
            };
            channel.has.remove_range(0..kept);
            channel.unsaid.remove_range(0..floor);
            channel.live.allotted.remove_range(0..floor);
            channel.live.shown.remove_range(0..floor);
            channel.assumed.remove_range(0..floor);
            channel.asked.remove(&(0..floor), |run, _| self.asked_count -= run.end - run.start);
            channel.lost = channel.lost.split_off(&floor);
            // What left and is forgotten is not sent again: it neither arrived nor is waited for.
            channel.inflight.remove(&(0..floor), |_, _| ());
        }
        self.live_events.push_back(LiveEvent::Discarded(floor));
    }

    /// A viewer that knows what its neighbours have begins: a little behind the newest chunk where they can give it that, or else with
    /// the newest.
    pub(super) fn tune(&mut self, now: Instant) {
        let Some(live) = self.live.as_mut().filter(|live| live.start.is_none() && !live.is_source()) else { return };
        let (Some(back), Some(newest)) = (live.start_chunk(), live.proofs().newest()) else { return };
        let newest = newest.chunks.start;
        let heard_at = *live.heard_at.get_or_insert(now);
        let neighbours = self.channels_by_peer(|channel| channel.live.is_tuned);
        let has_back = |id: &ChannelId| self.channels.get(id).is_some_and(|channel| channel.has.contains(back));
        let holders = neighbours.iter().filter(|channels| channels.iter().any(has_back)).count();
        let is_held = holders >= START_HOLDERS;
        if !is_held && now.saturating_duration_since(heard_at) < LISTEN {
            return;
        }
        let start = if is_held || holders == neighbours.len() { back } else { newest };
        if let Some(live) = &mut self.live {
            live.start = Some(start);
        }
        self.picker = Picker::Live(start);
        self.live_events.push_back(LiveEvent::Tuned(start));
        self.is_news = true;
    }

    /// Tells a peer what is new, or after a while what is here: the newest munro first, without which it believes nothing.
    pub(super) fn announce_live(&mut self, now: Instant, id: ChannelId) {
        self.allot_first(id);
        let (Some(live), Some(channel)) = (&self.live, self.channels.get_mut(&id)) else { return };
        let every = if channel.live.is_tuned { SAY_EVERY } else { SAY_EVERY_UNTUNED };
        let is_due = channel.live.said_at.is_none_or(|at| now.saturating_duration_since(at) >= every);
        let mut messages = Vec::new();
        if let Some(newest) = live.proofs().newest() {
            let mut told = match &live.role {
                Role::Viewer(_) => self.have.clone(),
                Role::Source(..) => channel.live.allotted.clone(),
            };
            if live.is_source() {
                told.subtract(&channel.has);
            }
            if !channel.live.is_tuned && live.is_source() {
                told.insert_range(live.proofs().sample());
            }
            // Whole runs, which repeat what announcements that were lost have said.
            let is_new =
                |run: &Range<u64>| is_due || channel.unsaid.next_set(run.start).is_some_and(|chunk| chunk < run.end);
            let runs: Vec<_> = told.runs().filter(is_new).collect();
            channel.unsaid = Binmap::new();
            if runs.is_empty() && !is_due && channel.live.is_begin_said == live.start.is_some() {
                return;
            }
            let is_shown = channel.live.munro_said > 0 && channel.live.shown.contains(newest.chunks.start);
            if newest.ntp > channel.live.munro_said && !is_shown || is_due {
                // The older one tells a latecomer how far back it may begin.
                live.proofs().introduce(live.start_chunk().filter(|_| !channel.live.is_tuned), &mut messages);
                channel.live.munro_said = newest.ntp;
            }
            // RFC 7574 §8.11: what is not wanted any more. A source has to know what a viewer lacks.
            if let Some(start) = live.start.filter(|_| is_due || !channel.live.is_begin_said) {
                messages.extend((start > 0).then_some(Message::Cancel(0..start)));
                channel.live.is_begin_said = true;
            }
            messages.extend(runs.into_iter().rev().take(RUNS_MAX).map(Message::Have));
        }
        if messages.is_empty() && !is_due {
            return;
        }
        if channel.say_all(&messages, &mut self.out) {
            channel.control.sent(now, false);
            if is_due {
                channel.live.said_at = Some(now);
            }
        }
    }

    /// What is new is announced to all who may lack it, a moment after what was new before: each hop of a chunk waits for that.
    pub(super) fn spread_news(&mut self, now: Instant) {
        if !std::mem::take(&mut self.is_news) {
            return;
        }
        let held = self.channels.iter().filter(|(_, channel)| !channel.unacked.is_empty());
        let ids: Vec<ChannelId> = held.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.acknowledge(now, id));
        self.news_at = now + NEWS_EVERY;
        // Where it begins is news too.
        let has_begun = self.live.as_ref().is_some_and(|live| live.has_begun());
        let is_told = |channel: &Channel<P>| channel.unsaid.is_empty() && channel.live.is_begin_said == has_begun;
        let lacking = self.channels.iter().filter(|(_, channel)| channel.proven && !is_told(channel));
        let ids: Vec<ChannelId> = lacking.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.announce_live(now, id));
    }

    /// A channel of a live stream on which nothing was heard for long. `true` where it is closed.
    pub(super) fn close_silent(&mut self, now: Instant, id: ChannelId) -> bool {
        let is_silent = self.live.is_some()
            && self.channels.get(&id).is_some_and(|channel| channel.control.silence(now) >= SILENCE_MAX);
        if is_silent {
            self.close(id, true);
        }
        is_silent
    }

    /// Whether nobody else can be asked at the moment, in a live stream: then it makes no sense to wait for others' turn.
    pub(super) fn is_only_one(&self, now: Instant, id: ChannelId) -> bool {
        let can = |channel: &Channel<P>| {
            let is_here = channel.proven && channel.is_used && channel.live.is_tuned && !channel.chokes_us;
            is_here && channel.control.silence(now) < QUIET_MAX && !channel.is_stalled(now)
        };
        self.live.is_some() && !self.channels.iter().any(|(other, channel)| *other != id && can(channel))
    }

    /// How many channels there may be.
    pub(super) fn channels_max(&self) -> usize {
        match &self.live {
            Some(live) if !live.is_source() => VIEWER_CHANNELS_MAX,
            _ => CHANNELS_MAX,
        }
    }

    /// Whether a viewer looks for others. Who did not answer the first handshake has left, as a rule, and who opened a channel to us and
    /// proved nothing may never have been there.
    pub fn needs_neighbours(&self) -> bool {
        let may_be_there = |channel: &Channel<P>| channel.proven || channel.tries == 1;
        self.live.as_ref().is_some_and(|live| !live.is_source())
            && self.channels_by_peer(may_be_there).len() < NEIGHBOURS
    }

    /// A peer that a user named: its channel makes room for nobody. The source is among them as a rule.
    pub fn pin(&mut self, peer: &P) {
        self.pinned.insert(peer.clone());
    }

    /// A viewer that has all the neighbours that it takes lets one go for one that comes: who was first would be among themselves
    /// otherwise, and have nothing from those who came later.
    pub(super) fn make_room(&mut self, now: Instant) {
        let is_full = self.live.as_ref().is_some_and(|live| !live.is_source())
            && self.channels.values().filter(|channel| channel.proven).count() >= VIEWER_CHANNELS_MAX;
        if !is_full {
            return;
        }
        let is_free = |channel: &Channel<P>| {
            let age = now.saturating_duration_since(channel.opened_at);
            channel.proven && age >= ROOM_AFTER && !self.pinned.contains(&channel.peer)
        };
        let free: Vec<ChannelId> = self.channels.iter().filter(|(_, c)| is_free(c)).map(|(id, _)| *id).collect();
        if !free.is_empty() {
            let gone = free[self.rng.usize(..free.len())];
            self.close(gone, true);
        }
    }

    /// Whether how rare each chunk is counts: not where everything is here, nor where the newest is what is wanted.
    pub(super) fn counts_rarity(&self) -> bool {
        !self.is_complete && self.live.is_none()
    }
}
