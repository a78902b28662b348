//! What a live source gives to whom: each chunk to few, who have it for the others.
//!
//! A source whose uplink carries three copies of its stream cannot serve fifty viewers, and does not have to. It announces each
//! small group of chunks to [`COPIES`] viewers alone, in turn; nobody asks it for what was not announced. Those announce it to
//! their neighbours, and so on. What a viewer still lacks after [`REPAIR_AFTER`] it is given by the source itself: it may have no
//! neighbours, or they left. Of that there is as much as [`Swarm::set_copies`] leaves, so that viewers who all lag do not drown the source.

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
const GROUP_CHUNKS: u64 = 8;
/// What a viewer lacks that long after it was signed, its neighbours do not have.
pub const REPAIR_AFTER: Duration = Duration::from_millis(400);
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
}

impl Default for Spread {
    fn default() -> Self {
        Self { repair_copies: COPIES_MAX_DEFAULT - COPIES as u64, credit: 0, repaired: BTreeMap::new() }
    }
}

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
        let leaf = self.params.hash().hash(payload);
        let since_epoch = now.saturating_duration_since(self.epoch);
        let Some(live) = &mut self.live else { return Err(LiveError::Sign) };
        let ntp = live.ntp(since_epoch);
        let Role::Source(source, _) = &mut live.role else { return Err(LiveError::Sign) };
        let chunk = source.checkpoint().chunk_next + source.unsigned_chunks();
        if let Some(signed) = source.push(&leaf, ntp)?.map(|munro| munro.node.range()) {
            self.held.insert_range(signed.clone());
            self.have.insert_range(signed.clone());
            self.advance();
            self.allot(now, signed);
            self.is_news = true;
            self.spread_news(now);
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

    /// Gives chunks to those who were given the least.
    fn allot(&mut self, now: Instant, signed: Range<u64>) {
        let mut start = signed.start;
        while start < signed.end {
            let group = start..signed.end.min(start + GROUP_CHUNKS);
            start = group.end;
            // Who has not said where it begins may not want these.
            let mut viewers: Vec<(bool, u64, u32, ChannelId)> = self
                .channels
                .iter()
                .filter(|(_, channel)| channel.proven && !channel.choked && channel.control.silence(now) < QUIET_MAX)
                .map(|(id, channel)| (channel.live.began.is_none(), channel.live.allotted_count, self.rng.u32(..), *id))
                .collect();
            viewers.sort_unstable();
            let viewer_count = viewers.len().max(1) as u64;
            for (.., id) in viewers.into_iter().take(COPIES) {
                self.give(id, &group);
            }
            if let Some(Live { role: Role::Source(_, spread), .. }) = self.live.as_deref_mut() {
                let credit = spread.repair_copies.saturating_mul(group.end - group.start);
                let credit_max = (CREDIT_ALONE / viewer_count).max(CREDIT_MAX) * spread.repair_copies;
                spread.credit = spread.credit.saturating_add(credit).min(credit_max);
            }
        }
    }

    fn give(&mut self, id: ChannelId, chunks: &Range<u64>) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        channel.live.allotted.insert_range(chunks.clone());
        channel.live.allotted_count += chunks.end - chunks.start;
        channel.unsaid.insert_range(chunks.clone());
    }

    /// A viewer comes: it counts as given as much as the others. The first ones have nobody else to get what is there from.
    pub(super) fn allot_first(&mut self, id: ChannelId) {
        let Some(live) = self.live.as_deref().filter(|live| live.is_source()) else { return };
        let is_new = self.channels.get(&id).is_some_and(|channel| channel.live.allotted_count == 0);
        let edge = live.edge();
        if !is_new || edge == 0 {
            return;
        }
        let start = live.start_chunk().unwrap_or(edge);
        let others = self.channels.iter().filter(|(other, channel)| **other != id && channel.proven);
        let counts: Vec<u64> = others.map(|(_, channel)| channel.live.allotted_count).collect();
        if counts.len() < COPIES {
            self.give(id, &(start..edge));
        }
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.live.allotted_count = counts.into_iter().min().unwrap_or(0).max(1);
            // Who comes at the very beginning has nothing to take back.
            if start == 0 {
                channel.live.began = Some(0);
            }
        }
    }

    /// Gives a viewer something that it lacks since long.
    fn repair(&mut self, now: Instant, id: ChannelId) {
        let since_epoch = now.saturating_duration_since(self.epoch);
        let share = (REPAIR_CHUNKS / self.channels.len().max(1) as u64).max(GROUP_CHUNKS);
        let (Some(live), Some(channel)) = (self.live.as_deref_mut(), self.channels.get(&id)) else { return };
        let ntp = live.ntp(since_epoch);
        let tree = live.tree();
        let oldest = tree.since(ntp.saturating_sub(ntp_of(REPAIR_UNTIL)));
        let newest = tree.since(ntp.saturating_sub(ntp_of(REPAIR_AFTER)));
        let (Some(oldest), end) = (oldest, newest.map_or(live.edge(), |munro| munro.node.start())) else { return };
        // Others than ours do not say where they begin: what is before the first that they have they did not ask for.
        let Some(began) = channel.live.began.or(channel.has.next_set(0)) else { return };
        // Who has just begun is having what is older from its neighbours.
        if channel.live.began_at.is_some_and(|at| now.saturating_duration_since(at) < REPAIR_AFTER) {
            return;
        }
        let start = oldest.node.start().max(began);
        let Role::Source(_, spread) = &mut live.role else { return };
        if !channel.live.is_tuned || channel.choked || spread.credit < GROUP_CHUNKS {
            return;
        }
        let (mut from, mut left, mut gifts) = (start, share.min(spread.credit), Vec::new());
        while let Some(lacks) = Binmap::next_match(from, left, &[&self.have], &[&channel.has, &channel.live.allotted]) {
            let group = lacks.start / GROUP_CHUNKS;
            from = (group + 1) * GROUP_CHUNKS;
            let lacks = lacks.start..lacks.end.min(end).min(from);
            if lacks.is_empty() {
                break;
            }
            // What nobody has is given to few, who have it for the others; what most have, to all who lack it.
            let holders = self.channels.values().filter(|channel| channel.has.contains(lacks.start)).count();
            let given = spread.repaired.entry(group).or_default();
            if *given < holders.max(COPIES) {
                *given += 1;
                left -= lacks.end - lacks.start;
                spread.credit -= lacks.end - lacks.start;
                gifts.push(lacks);
            }
        }
        gifts.iter().for_each(|lacks| self.give(id, lacks));
    }

    /// Gives viewers what they lack since long: first to whom lacks what is oldest, for there is not always enough for all.
    pub(super) fn repair_all(&mut self, now: Instant) {
        let Some(Live { role: Role::Source(_, spread), .. }) = self.live.as_deref_mut() else { return };
        spread.repaired.clear();
        let lacks = |channel: &Channel<P>| {
            let began = channel.live.began.or(channel.has.next_set(0))?;
            let lacks = Binmap::next_match(began, 1, &[&self.have], &[&channel.has, &channel.live.allotted])?;
            Some(lacks.start)
        };
        // Who is silent may have left, and is the last to lack what is oldest.
        let is_here = |channel: &Channel<P>| channel.proven && channel.control.silence(now) < QUIET_MAX;
        let all = self.channels.iter().filter(|(_, channel)| is_here(channel));
        let mut lacking: Vec<(u64, ChannelId)> = all.filter_map(|(id, channel)| Some((lacks(channel)?, *id))).collect();
        lacking.sort_unstable();
        lacking.into_iter().for_each(|(_, id)| self.repair(now, id));
    }
}
