//! What comes in over a channel, and what is asked for over it.

use std::time::Instant;

use super::live::{ASK_MIN, QUIET_MAX};
use super::serve::CHUNK_LEN_UNTOLD;
use super::{CELLS_MAX, CELLS_UNCOUNTED_MAX, Event, PEER_CELLS_MAX, PeerAddress, Swarm};
use crate::bin::Bin;
use crate::binmap::Binmap;
use crate::ledbat::Mode;
use crate::merkle::{NodeStore, Verdict};
use crate::picker::{Choice, Picker};
use crate::pull::{Pull, REQUEST_TIME_LIVE, REQUEST_TIME_MIN, REQUEST_TIME_PLAYED};
use crate::wire::{ChannelId, Dialect, Integrity, Message};

/// Part of what may be asked for that is worth asking for, while other requests are under way: one in so many.
const ASK_DIVISOR: u64 = 8;
/// What a peer is asked for first by default, before it is known how fast it serves: twice its first window, in chunks of 1 KiB; less of longer ones.
const FIRST_BYTES: u64 = 64 << 10;
const FIRST_MIN: u64 = 2;
const FIRST_MAX: u64 = 20;
/// Bins in one datagram of requests or announcements: as many of the longest ones, acknowledgements of 64-bit ranges, are 1,200 bytes.
pub(super) const BINS_MAX: usize = 48;
/// Chunks of a live stream that are acknowledged together, where more are to come.
const ACK_CHUNKS_LIVE: u64 = 2;
/// Runs of chunks whose acknowledgement is said once more: a few, which fit beside the next ones.
const ACKED_AGAIN_MAX: usize = 16;

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// One chunk: `true` where it holds and is new. `chunks` are those that came before in this batch.
    pub(super) fn data(
        &mut self,
        now: Instant,
        id: ChannelId,
        (chunk, payload): (u64, &[u8]),
        sent_us: u64,
        chunks: &mut Vec<(u64, &[u8])>,
    ) -> bool {
        let clock_us = self.clock_us(now);
        let hash = self.params.hash();
        let leaf = self.ahead.digest(hash, chunk);
        let Some(channel) = self.channels.get_mut(&id) else { return false };
        channel.came(&(chunk..chunk.saturating_add(1)), payload.len() as u64, |asked| {
            self.asked_count -= asked.end - asked.start;
            self.requested.remove_range(asked);
        });
        let known = self.held.contains(chunk) && !self.is_of_another_stream(id, chunk);
        let Some(channel) = self.channels.get_mut(&id) else { return false };
        let size_before = self.tree.chunk_count();
        let leaf = || leaf.unwrap_or_else(|| hash.hash(payload));
        let verdict = if known {
            Verdict::Good
        } else if self.live.is_some() {
            self.judge_live(now, id, (chunk, payload), leaf, chunks)
        } else if self.params.integrity() == Integrity::None {
            if size_before.is_some_and(|chunks| chunk < chunks) { Verdict::Good } else { Verdict::Missing }
        } else {
            self.tree.verify(chunk, leaf(), payload.len(), &channel.offers)
        };
        let Some(channel) = self.channels.get_mut(&id) else { return false };
        // Only the last chunk may be short (RFC 7574 §5.6): another one would move all that follow.
        let is_last = self.tree.chunk_count() == chunk.checked_add(1);
        let whole = is_last || self.params.chunk_len().is_none_or(|len| payload.len() == len as usize);
        match verdict {
            Verdict::Good if whole || known => {}
            Verdict::Missing => {
                self.wasted_bytes += payload.len() as u64;
                return false;
            }
            _ => {
                self.wasted_bytes += payload.len() as u64;
                self.lied(id);
                return false;
            }
        }
        if known {
            self.wasted_bytes += payload.len() as u64;
        } else {
            self.held.insert_range(chunk..chunk + 1);
        }
        channel.offers.clear();
        channel.owe_acknowledgement(chunk..chunk + 1, clock_us.wrapping_sub(sent_us));
        if size_before != self.tree.chunk_count()
            && let Some(chunks) = self.tree.chunk_count()
        {
            self.size_known(chunks, payload.len());
        }
        !known
    }

    /// A batch was read: what came is acknowledged, and more is asked for.
    pub(super) fn settle(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let arrived = std::mem::take(&mut channel.arrived);
        let has_news = std::mem::take(&mut channel.live.has_news);
        if arrived == 0 {
            if has_news {
                self.ask(now, id);
            }
            return;
        }
        channel.arrivals.arrived(now, arrived);
        channel.heard(now);
        // Of a live stream chunks come one by one, and two need no more words than one.
        let held = channel.unacked.iter().map(|(run, _)| run.end - run.start).sum::<u64>();
        let waits = self.live.is_some() && !channel.asked.is_empty() && held < ACK_CHUNKS_LIVE;
        if !waits {
            self.acknowledge_again(now, id);
        }
        self.ask(now, id);
    }

    /// Acknowledges what waited for more.
    pub(super) fn acknowledge(&mut self, now: Instant, id: ChannelId) {
        if self.channels.get(&id).is_some_and(|channel| !channel.unacked.is_empty()) {
            self.acknowledge_again(now, id);
        }
    }

    /// Acknowledges what came, and once more what came before.
    fn acknowledge_again(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let mut runs = std::mem::take(&mut channel.acked_before);
        // Said again is what is still here.
        runs.retain(|(run, _)| self.held.contains(run.start));
        let said_again = runs.len();
        runs.append(&mut channel.unacked);
        let mut acks: Vec<Message<'_>> = Vec::with_capacity(runs.len());
        for (run, delay_us) in &runs {
            if channel.dialect == Dialect::Rfc7574 {
                // The biggest intervals around it: they repeat what acknowledgements that were lost have said.
                let around = |chunk| self.held.largest_full(chunk).map_or(chunk..chunk + 1, Bin::range);
                let chunks = around(run.start).start..around(run.end - 1).end;
                acks.push(Message::Ack { chunks, delay_us: *delay_us });
            } else {
                // libswift takes each for one chunk's, and what else is in it for lost.
                acks.extend(run.clone().map(|chunk| Message::Ack { chunks: chunk..chunk + 1, delay_us: *delay_us }));
            }
        }
        for acks in acks.chunks(BINS_MAX) {
            if channel.say_all(acks, &mut self.out) {
                channel.control.sent(now, false);
            }
        }
        runs.drain(..said_again.max(runs.len().saturating_sub(ACKED_AGAIN_MAX)));
        channel.acked_before = runs;
    }

    fn size_known(&mut self, chunks: u64, last_len: usize) {
        self.events.push_back(Event::Size(chunks));
        self.last_len = Some(last_len);
        let content = Binmap::full(chunks);
        for channel in self.channels.values_mut() {
            // Whoever announced more than there is helps nobody by it.
            let mut beyond = channel.has.clone();
            beyond.subtract(&content);
            if !self.is_complete {
                self.availability.remove(&beyond);
            }
            channel.has.intersect_with(&content);
        }
    }

    pub(super) fn has(&mut self, id: ChannelId, range: std::ops::Range<u64>) {
        let range = self.live_range(id, &range);
        let end = range.end.min(self.tree.chunk_count().unwrap_or(u64::MAX));
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let mut new = Binmap::new();
        new.insert_range(range.start..end);
        new.subtract(&channel.has);
        if new.is_empty() {
            return;
        }
        if self.live.is_none() && !self.is_complete {
            self.availability.add(&new);
        }
        let cells_before = channel.has.cell_count();
        channel.has.union_with(&new);
        self.cells_uncounted += channel.has.cell_count().saturating_sub(cells_before);
        channel.unsaid.subtract(&new);
        channel.live.has_news = self.live.is_some();
        if self.tree.chunk_count().is_none() && channel.has.cell_count() > PEER_CELLS_MAX {
            self.close(id, true);
        }
        self.bound_cells();
    }

    /// All maps of peers together take the memory that they may, and a little that was not counted yet: where it is more, whose map takes
    /// the most has to go.
    pub(super) fn bound_cells(&mut self) {
        if self.cells_uncounted <= CELLS_UNCOUNTED_MAX {
            return;
        }
        self.cells_uncounted = 0;
        loop {
            let counts = self.channels.iter().map(|(id, channel)| (channel.has.cell_count(), *id));
            let (all, most) = counts.fold((0, None), |(all, most), count| (all + count.0, most.max(Some(count))));
            let Some((_, id)) = most.filter(|_| all > CELLS_MAX) else { return };
            self.close(id, true);
        }
    }

    /// Announces what was stored since: each run by the biggest bins around it.
    pub(super) fn announce(&mut self, now: Instant, id: ChannelId) {
        if self.live.is_some() {
            return self.announce_live(now, id);
        }
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let mut said = Vec::new();
        while said.len() < BINS_MAX
            && let Some(chunk) = channel.unsaid.next_set(0)
        {
            let Some(bin) = self.have.largest_full(chunk).or(Bin::chunk(chunk)) else { break };
            channel.unsaid.remove(bin);
            said.push(Message::Have(bin.range()));
        }
        if !said.is_empty() && channel.say_all(&said, &mut self.out) {
            channel.control.sent(now, false);
        }
    }

    /// Asks for as much as Algorithm 1 allows.
    pub(super) fn ask(&mut self, now: Instant, id: ChannelId) {
        self.tune(now);
        self.probe(now, id);
        let is_tuned = self.live.as_ref().is_none_or(|live| live.has_begun());
        let end =
            self.live.as_ref().map(|live| live.asked_end()).or(self.tree.chunk_count()).map(|end| end.min(self.end));
        let is_source = self.live.as_ref().is_some_and(|live| live.is_source());
        let is_only_one = self.is_only_one(now, id);
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let is_quiet = self.live.is_some() && channel.control.silence(now) >= QUIET_MAX;
        let is_still = self.is_paused || self.is_complete || is_source || !is_tuned || !channel.is_used;
        if is_quiet || channel.is_stalled(now) && !is_only_one || is_still {
            return;
        }
        if channel.chokes_us || !channel.proven || channel.codec.is_none() {
            return;
        }
        let chunk_len = u64::from(self.params.chunk_len().unwrap_or(CHUNK_LEN_UNTOLD));
        let allowed = match channel.allowance.down_bytes {
            u64::MAX => u64::MAX,
            left => left.div_ceil(chunk_len),
        };
        let room = self.room_chunks.saturating_sub(self.asked_count);
        let request_time = match self.picker {
            _ if !self.needed.is_empty() => REQUEST_TIME_PLAYED,
            Picker::Live(_) => REQUEST_TIME_LIVE,
            Picker::OnDemand { .. } => REQUEST_TIME_PLAYED,
            Picker::Sequential(_) | Picker::RarestFirst(_) => REQUEST_TIME_MIN,
        };
        let mut size = Pull {
            request_time,
            rtt: channel.rtt,
            period: channel.arrivals.period(),
            first: match (self.mode, channel.dialect) {
                (Mode::Fast, Dialect::Rfc7574) => (FIRST_BYTES / chunk_len).clamp(FIRST_MIN, FIRST_MAX),
                _ => 1,
            },
            outstanding: channel.asked.len(),
            rate_allowed: allowed.min(room),
            granularity: if allowed == u64::MAX { channel.asked.len() / ASK_DIVISOR } else { 0 },
        }
        .request_size();
        let mut bins = Vec::new();
        if self.live.is_some() {
            size = size.max(ASK_MIN.saturating_sub(channel.asked.len())).min(allowed.min(room));
        } else if self.tree.chunk_count().is_none() {
            // The size first: any chunk brings the peaks, and the last one proves them.
            let chunk = self.tree.chunks_claimed().map_or(0, |chunks| chunks - 1);
            if channel.asked.is_empty() && channel.has.contains(chunk) && allowed > 0 {
                bins.extend(Bin::chunk(chunk));
            }
            size = 0;
        }
        let left_to_others = if size > 0 && self.live.is_none() { self.left_to_others(now, id) } else { 0 };
        let Some(channel) = self.channels.get_mut(&id) else { return };
        while size > 0 && bins.len() < BINS_MAX {
            let choice = Choice {
                offered: &channel.has,
                have: &self.held,
                requested: &self.requested,
                availability: &self.availability,
                needed: &self.needed,
                end,
                left_to_others,
            };
            let Some(bin) = self.picker.pick(&choice, size) else { break };
            self.requested.insert(bin);
            size -= bin.chunk_count();
            bins.push(bin);
        }
        if bins.is_empty() {
            return;
        }
        if channel.asked.is_empty() {
            channel.heard_at = now;
        }
        let count: u64 = bins.iter().map(|bin| bin.chunk_count()).sum();
        self.asked_count += count;
        channel.asked_bytes += count * chunk_len;
        if channel.allowance.down_bytes != u64::MAX {
            channel.allowance.down_bytes = channel.allowance.down_bytes.saturating_sub(count * chunk_len);
            self.lacks_allowance |= channel.allowance.down_bytes == 0;
        }
        bins.iter().for_each(|bin| channel.asked.insert(bin.range(), now));
        let messages: Vec<Message<'_>> = bins.iter().map(|bin| Message::Request(bin.range())).collect();
        if channel.say_all(&messages, &mut self.out) {
            channel.control.sent(now, false);
        }
    }
}
