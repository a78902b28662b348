//! What a live source gives to whom: each chunk to few, who have it for the others.
//!
//! A source whose uplink carries three copies of its stream cannot serve fifty viewers, and does not have to. It announces each
//! small group of chunks to [`COPIES`] viewers alone, in turn; nobody asks it for what was not announced. Those announce it to
//! their neighbours, and so on. What a viewer still lacks after [`REPAIR_AFTER`] it is given by the source itself: it may have no
//! neighbours, or they left. Of that there is as much as [`Swarm::set_copies`] leaves, so that viewers who all lag do not drown the
//! source; while nothing new comes, in a pause and after the end, there is more, for it keeps nothing waiting.
//!
//! A viewer that is reached over several paths has a channel over each and asks over some, which nobody tells: it is announced
//! everything over all of them, and counts once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::live::{Live, QUIET_MAX, Role, ntp_of};
use super::{PeerAddress, Swarm};
use crate::binmap::Binmap;
use crate::merkle::{Checkpoint, LiveError, NodeStore};
use crate::wire::ChannelId;

/// Viewers that the source gives each chunk to.
pub const COPIES: usize = 2;
/// Copies that a source sends at most, on average, where nobody says otherwise; those beyond [`COPIES`] are for who lacks something.
pub const COPIES_MAX_DEFAULT: u64 = 3;
/// Chunks that one viewer is given together: few, so that each of them has something to give soon.
pub(super) const GROUP_CHUNKS: u64 = 8;
/// What a viewer lacks that long after it was signed, its neighbours do not have.
pub const REPAIR_AFTER: Duration = Duration::from_millis(400);
/// Chunks that a viewer was given and of which it asked for none, nor for any others: two seconds of 1 Mbit/s, if it is given all of them. What
/// is new is given to others before it; it may have opened its channel for no more than to be given that.
pub(super) const UNTAKEN_MAX: u64 = 256;
/// What is older than this is not repaired: who watches gave it up.
const REPAIR_UNTIL: Duration = Duration::from_secs(15);
/// Chunks of repair that are given on one look, shared by all viewers: together more than a stream brings meanwhile.
const REPAIR_CHUNKS: u64 = 64;
/// Chunks of repair that are saved up at most, of each copy: a quarter of a second of 4 Mbit/s in chunks of 1 KiB. More at once would
/// stand in the way of what is new.
const CREDIT_MAX: u64 = 128;
/// The same of a viewer who is alone, and has nobody else to catch up from; several share it.
const CREDIT_ALONE: u64 = 1024;

/// How a source spreads its chunks.
#[derive(Debug)]
pub(super) struct Spread {
    /// Copies for those who lack something.
    repair_copies: u64,
    /// Chunks that may be given to those who lack them.
    credit: u64,
    /// To how many each group of chunks was given on this look.
    repaired: BTreeMap<u64, usize>,
    /// When a group was signed last.
    signed_at: Option<Instant>,
    /// The group that was given last, and to whom: where it is signed chunk by chunk, all of it goes to them.
    given: (u64, Vec<Viewer>),
}

impl Default for Spread {
    fn default() -> Self {
        let repair_copies = COPIES_MAX_DEFAULT - COPIES as u64;
        Self { repair_copies, credit: 0, repaired: BTreeMap::new(), signed_at: None, given: (0, Vec::new()) }
    }
}

/// A viewer: its channels, one over each path to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Viewer(Vec<ChannelId>);

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// How many copies of its stream a source sends at most, on average; [`COPIES`] at least.
    pub fn set_copies(&mut self, copies: u64) {
        if let Some(Live { role: Role::Source(_, spread), .. }) = self.live.as_deref_mut() {
            spread.repair_copies = copies.saturating_sub(COPIES as u64);
        }
    }

    /// The first chunk of a source's stream has this number, a multiple of how many are signed as one. Before anything is pushed.
    /// Viewers know a stream of the same key for a new one by its lower numbers, if they come back before it went past those of the
    /// old one: who counts each stream from further down than the one before is known at once, however long it went on.
    ///
    /// # Errors
    /// It is no such number.
    pub fn begin_at(&mut self, chunk: u64) -> Result<(), LiveError> {
        match self.live.as_deref_mut() {
            Some(Live { role: Role::Source(source, _), .. }) => {
                source.go_on_from(Checkpoint { chunk_next: chunk, ntp: 0 })
            }
            _ => Err(LiveError::Checkpoint),
        }
    }

    /// The source takes in the next chunk, whose bytes the driver keeps under the number that this gives. Where it fills a group
    /// that is signed as one, all of them are announced.
    ///
    /// # Errors
    /// It cannot be signed; or this is no source.
    pub fn push(&mut self, now: Instant, payload: &[u8]) -> Result<u64, LiveError> {
        let since_epoch = now.saturating_duration_since(self.epoch);
        let Some(live) = &mut self.live else { return Err(LiveError::Sign) };
        let ntp = live.ntp(since_epoch);
        let Role::Source(source, _) = &mut live.role else { return Err(LiveError::Sign) };
        let chunk = source.checkpoint().chunk_next + source.unsigned_chunks();
        if let Some(signed) = source.push(payload, ntp)?.map(|signed| signed.chunks) {
            self.held.insert_range(signed.clone());
            self.have.insert_range(signed.clone());
            self.advance();
            self.allot(now, signed);
            self.is_news = true;
            if now >= self.news_at {
                self.spread_news(now);
            }
        }
        Ok(chunk)
    }

    /// Chunks that the source took in and that are not signed yet; nobody is told of them.
    pub fn unsigned_chunks(&self) -> u64 {
        match self.live.as_deref() {
            Some(Live { role: Role::Source(source, _), .. }) => source.unsigned_chunks(),
            _ => 0,
        }
    }

    /// Those who watch, as far as they were heard of lately: who is silent may have left.
    fn viewers(&self, now: Instant) -> Vec<Viewer> {
        let is_here = |channel: &Channel<P>| !channel.choked && channel.control.silence(now) < QUIET_MAX;
        let viewers = self.channels_by_peer(|channel| channel.proven).into_iter().map(Viewer);
        viewers.filter(|viewer| self.channels_of(viewer).any(is_here)).collect()
    }

    fn channels_of<'a>(&'a self, viewer: &'a Viewer) -> impl Iterator<Item = &'a Channel<P>> {
        viewer.0.iter().filter_map(|id| self.channels.get(id))
    }

    /// Whether a viewer takes nothing of what it is given.
    fn is_idle(&self, viewer: &Viewer) -> bool {
        self.channels_of(viewer).all(|channel| channel.uploaded_bytes == 0)
            && self.channels_of(viewer).any(|channel| channel.live.allotted.count() >= UNTAKEN_MAX)
    }

    /// Gives chunks to those who were given the least.
    fn allot(&mut self, now: Instant, signed: Range<u64>) {
        let viewers = self.viewers(now);
        let viewer_count = viewers.len().max(1) as u64;
        let mut start = signed.start;
        while start < signed.end {
            let number = start / GROUP_CHUNKS;
            let group = start..signed.end.min((number + 1) * GROUP_CHUNKS);
            start = group.end;
            // Who has not said where it begins may not want these.
            let given = |viewer: &Viewer| {
                let is_new = self.channels_of(viewer).all(|channel| channel.live.began.is_none());
                let count = self.channels_of(viewer).map(|channel| channel.live.allotted_count).max();
                (self.is_idle(viewer), is_new, count)
            };
            let mut turns: Vec<_> = viewers.iter().map(|viewer| (given(viewer), viewer)).collect();
            self.rng.shuffle(&mut turns);
            turns.sort_by_key(|(given, _)| *given);
            let mut chosen: Vec<Viewer> = turns.into_iter().take(COPIES).map(|(_, viewer)| viewer.clone()).collect();
            if let Some(Live { role: Role::Source(_, spread), .. }) = self.live.as_deref()
                && spread.given.0 == number
                && !group.start.is_multiple_of(GROUP_CHUNKS)
                && spread.given.1.iter().all(|given| viewers.contains(given))
                && spread.given.1.len() == chosen.len()
            {
                chosen.clone_from(&spread.given.1);
            }
            chosen.iter().for_each(|viewer| self.give(viewer, &group));
            if let Some(Live { role: Role::Source(_, spread), .. }) = self.live.as_deref_mut() {
                spread.given = (number, chosen);
                let credit = spread.repair_copies.saturating_mul(group.end - group.start);
                let credit_max = (CREDIT_ALONE / viewer_count).max(CREDIT_MAX) * spread.repair_copies;
                spread.credit = spread.credit.saturating_add(credit).min(credit_max);
                spread.signed_at = Some(now);
            }
        }
    }

    fn give(&mut self, viewer: &Viewer, chunks: &Range<u64>) {
        for id in &viewer.0 {
            let Some(channel) = self.channels.get_mut(id) else { continue };
            channel.live.allotted.insert_range(chunks.clone());
            channel.live.allotted_count += chunks.end - chunks.start;
            channel.unsaid.insert_range(chunks.clone());
        }
    }

    /// A viewer comes: it counts as given as much as the others. The first ones have nobody else to get what is there from. Over another
    /// path it has been given what it was given over the first one.
    pub(super) fn allot_first(&mut self, id: ChannelId) {
        let Some(live) = self.live.as_deref().filter(|live| live.is_source()) else { return };
        let Some(new) = self.channels.get(&id).filter(|channel| channel.live.allotted_count == 0) else { return };
        let edge = live.edge();
        if edge == 0 {
            return;
        }
        let start = live.start_chunk().unwrap_or(edge);
        let all = self.channels.iter().filter(|(other, channel)| **other != id && channel.proven);
        let (same, others): (Vec<_>, Vec<_>) =
            all.map(|(_, channel)| channel).partition(|channel| channel.peer.is_same_peer(&new.peer));
        let given = same.iter().max_by_key(|channel| channel.live.allotted_count);
        let given = given.map(|channel| (channel.live.allotted.clone(), channel.live.allotted_count));
        let count_min = others.iter().map(|channel| channel.live.allotted_count).min().unwrap_or(0);
        let is_among_first = self.channels_by_peer(|channel| channel.proven).len() <= COPIES;
        let Some(new) = self.channels.get_mut(&id) else { return };
        match given {
            Some((allotted, count)) => (new.live.allotted, new.live.allotted_count) = (allotted, count.max(1)),
            None => {
                if is_among_first {
                    new.live.allotted.insert_range(start..edge);
                    new.unsaid.insert_range(start..edge);
                }
                new.live.allotted_count = count_min.max(1);
            }
        }
        // Who comes at the very beginning has nothing to take back.
        if start == 0 {
            new.live.began = Some(0);
        }
    }

    /// The first chunk that a viewer lacks and was not given, and those that follow, `len_max` at most. What it has it told over any path.
    fn lacks(&self, viewer: &Viewer, from: u64, len_max: u64) -> Option<Range<u64>> {
        let known = self.channels_of(viewer).flat_map(|channel| [&channel.has, &channel.live.allotted]);
        Binmap::next_match(from, len_max, &[&self.have], &known.collect::<Vec<_>>())
    }

    /// Where a viewer begins. Others than ours do not say so: what is before the first that they have they did not ask for.
    fn begins(&self, viewer: &Viewer) -> Option<u64> {
        let told = self.channels_of(viewer).filter_map(|channel| channel.live.began).max();
        told.or_else(|| self.channels_of(viewer).filter_map(|channel| channel.has.next_set(0)).min())
    }

    /// Gives one of the viewers something that it lacks since long.
    fn repair(&mut self, now: Instant, viewer: &Viewer, viewers: &[Viewer]) {
        let Some(live) = self.live.as_deref() else { return };
        let Role::Source(_, spread) = &live.role else { return };
        let ntp = live.ntp(now.saturating_duration_since(self.epoch));
        let proofs = live.proofs();
        let oldest = proofs.since(ntp.saturating_sub(ntp_of(REPAIR_UNTIL)));
        let newest = proofs.since(ntp.saturating_sub(ntp_of(REPAIR_AFTER)));
        let (Some(oldest), end) = (oldest, newest.map_or(live.edge(), |newest| newest.chunks.start)) else { return };
        let Some(began) = self.begins(viewer) else { return };
        // Who has just begun is having what is older from its neighbours.
        let began_at = self.channels_of(viewer).filter_map(|channel| channel.live.began_at).min();
        if began_at.is_some_and(|at| now.saturating_duration_since(at) < REPAIR_AFTER) {
            return;
        }
        let is_tuned = self.channels_of(viewer).any(|channel| channel.live.is_tuned);
        if !is_tuned || spread.credit < GROUP_CHUNKS {
            return;
        }
        let share = (REPAIR_CHUNKS / viewers.len().max(1) as u64).max(GROUP_CHUNKS);
        let (mut from, mut left) = (oldest.chunks.start.max(began), share.min(spread.credit));
        let mut gifts = Vec::new();
        while let Some(lacks) = self.lacks(viewer, from, left) {
            let group = lacks.start / GROUP_CHUNKS;
            from = (group + 1) * GROUP_CHUNKS;
            let lacks = lacks.start..lacks.end.min(end).min(from);
            if lacks.is_empty() {
                break;
            }
            // What nobody has is given to few, who have it for the others; what most have, to all who lack it.
            let has = |viewer: &&Viewer| self.channels_of(viewer).any(|channel| channel.has.contains(lacks.start));
            let holders = viewers.iter().filter(has).count();
            let given = spread.repaired.get(&group).copied().unwrap_or(0);
            if given < holders.max(COPIES) {
                left -= lacks.end - lacks.start;
                gifts.push((group, lacks));
            }
        }
        for (group, lacks) in gifts {
            self.give(viewer, &lacks);
            if let Some(Live { role: Role::Source(_, spread), .. }) = self.live.as_deref_mut() {
                *spread.repaired.entry(group).or_default() += 1;
                spread.credit = spread.credit.saturating_sub(lacks.end - lacks.start);
            }
        }
    }

    /// Gives viewers what they lack since long: first to whom lacks what is oldest, for there is not always enough for all.
    pub(super) fn repair_all(&mut self, now: Instant) {
        let Some(Live { role: Role::Source(_, spread), .. }) = self.live.as_deref_mut() else { return };
        spread.repaired.clear();
        // Nobody earns anything while nothing is signed, and nothing new waits.
        if spread.signed_at.is_some_and(|at| now.saturating_duration_since(at) >= REPAIR_AFTER) {
            spread.credit = spread.credit.max(REPAIR_CHUNKS);
        }
        let viewers = self.viewers(now);
        let first_lacking = |viewer: &Viewer| Some(self.lacks(viewer, self.begins(viewer)?, 1)?.start);
        let mut lacking: Vec<(u64, &Viewer)> =
            viewers.iter().filter_map(|viewer| Some((first_lacking(viewer)?, viewer))).collect();
        lacking.sort_by_key(|(first, _)| *first);
        lacking.into_iter().for_each(|(_, viewer)| self.repair(now, viewer, &viewers));
    }
}
