//! What comes in over a channel, and what is asked for over it.

use std::time::{Duration, Instant};

use super::channel::WANTS_MAX;
use super::{Event, OPEN_TRIES, PEER_CELLS_MAX, PROOF_MAX, PeerAddress, Swarm};
use crate::bin::Bin;
use crate::binmap::Binmap;
use crate::hash::Digest;
use crate::merkle::{NodeStore, Verdict};
use crate::picker::Choice;
use crate::pull::Pull;
use crate::state::Due;
use crate::wire::{ChannelId, Integrity, Message, Messages, split_channel};

/// A request that was not served for so long is somebody else's: twice what a request is to last.
const ASKED_MAX: Duration = Duration::from_secs(2);
/// How long nothing is asked of a peer that let a request lie: long enough for everybody else's turn. It may be gone.
const STALL: Duration = Duration::from_secs(1);
/// Part of what may be asked for that is worth asking for, while other requests are under way: one in so many.
const ASK_DIVISOR: u64 = 8;
/// Bins in one datagram of requests or announcements: 85 of the longest specifications are 1,400 bytes.
const BINS_MAX: usize = 80;

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// Hashes the chunks of a batch side by side, for [`Swarm::data`] to find them; see `ahead`.
    pub(super) fn hash_ahead(&mut self, datagrams: &[(P, &[u8])]) {
        self.ahead.clear();
        if self.params.integrity() == Integrity::None {
            return;
        }
        let mut payloads = Vec::with_capacity(datagrams.len());
        for (at, (peer, datagram)) in datagrams.iter().enumerate() {
            let channel = split_channel(datagram).and_then(|(id, messages)| Some((self.channels.get(&id)?, messages)));
            let Some((channel, messages)) = channel.filter(|(channel, _)| channel.proven && channel.peer == *peer)
            else {
                continue;
            };
            let Some(codec) = channel.codec else { continue };
            for message in Messages::new(codec, messages) {
                let Ok(message) = message else { break };
                if let Message::Data { chunk, payload, .. } = message
                    && !self.held.contains(chunk)
                {
                    payloads.push(payload);
                    self.ahead.push_back((at, chunk, None));
                }
            }
        }
        self.digests.clear();
        self.params.hash().hash_many(&payloads, &mut self.digests);
        let hash = self.params.hash();
        for ((_, _, place), digest) in self.ahead.iter_mut().zip(self.digests.chunks_exact(hash.len())) {
            *place = hash.digest(digest);
        }
    }

    /// The digest that [`Swarm::hash_ahead`] made of this chunk of the datagram that is being read.
    fn made_ahead(&mut self, chunk: u64) -> Option<Digest> {
        while self.ahead.front().is_some_and(|(datagram, ..)| *datagram < self.reading) {
            self.ahead.pop_front();
        }
        let is_it = self.ahead.front().is_some_and(|(datagram, of, _)| (*datagram, *of) == (self.reading, chunk));
        if is_it { self.ahead.pop_front().and_then(|(.., digest)| digest) } else { None }
    }

    /// Reads a proven peer's messages; gives the chunks that hold.
    pub(super) fn messages<'a>(
        &mut self,
        now: Instant,
        id: ChannelId,
        messages: &'a [u8],
        chunks: &mut Vec<(u64, &'a [u8])>,
    ) {
        let Some(codec) = self.channels.get(&id).and_then(|channel| channel.codec) else { return };
        for message in Messages::new(codec, messages) {
            // The rest of a datagram that makes no sense is nothing; the channel's other datagrams may.
            let Ok(message) = message else { break };
            let Some(channel) = self.channels.get_mut(&id) else { break };
            match message {
                Message::Data { chunk, sent_us, payload } => {
                    let is_new = self.data(now, id, chunk, sent_us, payload);
                    chunks.extend(is_new.then_some((chunk, payload)));
                }
                Message::Integrity { node, digest } => channel.offers.add(node, digest),
                Message::Have(range) => self.has(id, range),
                Message::Ack { chunks, delay_us } => {
                    channel.acked(now, &chunks, delay_us);
                    self.has(id, chunks);
                }
                Message::Request(range) if !channel.choked && channel.wants.len() < WANTS_MAX && !range.is_empty() => {
                    // Who asks for what was acknowledged could not keep it.
                    if !channel.has.is_empty()
                        && channel.has.next_set(range.start).is_some_and(|chunk| chunk < range.end)
                    {
                        let mut lost = Binmap::new();
                        lost.insert_range(range.clone());
                        lost.intersect_with(&channel.has);
                        channel.has.subtract(&lost);
                        if !self.is_complete {
                            self.availability.remove(&lost);
                        }
                    }
                    channel.wants.push_back(range);
                }
                Message::Cancel(range) => channel.cancel(&range),
                Message::Choke => {
                    channel.chokes_us = true;
                    for (chunk, _) in std::mem::take(&mut channel.asked) {
                        self.requested.remove_range(chunk..chunk + 1);
                        self.asked_count -= 1;
                    }
                }
                Message::Unchoke => channel.chokes_us = false,
                Message::PexRequest => self.pex_answer(now, id),
                Message::PexV4(address) => self.pex(id, address.into()),
                Message::PexV6(address) => self.pex(id, address.into()),
                // RFC 7574 §8.4: a handshake on an open channel closes it, where it names none.
                Message::Handshake(handshake) if handshake.channel == 0 => self.close(id, false),
                // A repetition of the peer's handshake; certificates are nothing to an open swarm, signatures nothing to a
                // content that is complete.
                _ => {}
            }
        }
    }

    /// One chunk: `true` where it holds and is new.
    fn data(&mut self, now: Instant, id: ChannelId, chunk: u64, sent_us: u64, payload: &[u8]) -> bool {
        let clock_us = self.clock_us(now);
        let leaf = self.made_ahead(chunk);
        let Some(channel) = self.channels.get_mut(&id) else { return false };
        if channel.asked.remove(&chunk).is_some() {
            self.requested.remove_range(chunk..chunk + 1);
            self.asked_count -= 1;
        }
        channel.arrived += 1;
        channel.downloaded_bytes += payload.len() as u64;
        let known = self.held.contains(chunk);
        let size_before = self.tree.chunk_count();
        let verdict = if known {
            Verdict::Good
        } else if self.params.integrity() == Integrity::None {
            if size_before.is_some_and(|chunks| chunk < chunks) { Verdict::Good } else { Verdict::Missing }
        } else {
            let leaf = leaf.unwrap_or_else(|| self.params.hash().hash(payload));
            self.tree.verify(chunk, leaf, payload.len(), &channel.offers)
        };
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
        let delay_us = clock_us.wrapping_sub(sent_us);
        match channel.unacked.last_mut() {
            Some((run, delay)) if run.end == chunk => (run.end, *delay) = (chunk + 1, delay_us),
            _ => channel.unacked.push((chunk..chunk + 1, delay_us)),
        }
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
        if arrived == 0 {
            return;
        }
        channel.arrivals.arrived(now, arrived);
        let mut unacked = std::mem::take(&mut channel.unacked);
        for runs in unacked.chunks(BINS_MAX) {
            let acks: Vec<Message<'_>> = runs
                .iter()
                .map(|(run, delay_us)| {
                    // The biggest intervals around it: they repeat what acknowledgements that were lost have said.
                    let around = |chunk| self.held.largest_full(chunk).map_or(chunk..chunk + 1, Bin::range);
                    let chunks = around(run.start).start..around(run.end - 1).end;
                    Message::Ack { chunks, delay_us: *delay_us }
                })
                .collect();
            if let Some(datagram) = channel.datagram(&acks) {
                self.out.push_back(super::Transmit { peer: channel.peer.clone(), datagram, chunk: None });
                channel.control.sent(now, false);
            }
        }
        unacked.clear();
        channel.unacked = unacked;
        self.ask(now, id);
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

    fn has(&mut self, id: ChannelId, range: std::ops::Range<u64>) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let end = range.end.min(self.tree.chunk_count().unwrap_or(u64::MAX));
        let mut new = Binmap::new();
        new.insert_range(range.start..end);
        new.subtract(&channel.has);
        if new.is_empty() {
            return;
        }
        if !self.is_complete {
            self.availability.add(&new);
        }
        channel.has.union_with(&new);
        channel.unsaid.subtract(&new);
        if self.tree.chunk_count().is_none() && channel.has.cell_count() > PEER_CELLS_MAX {
            self.close(id, true);
        }
    }

    /// What has no exact time.
    pub(super) fn tick(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if !channel.proven {
            // A handshake of ours is repeated; whoever opened to us repeats its own.
            let waited = now.saturating_duration_since(channel.opened_at);
            if channel.tries == 0 || channel.tries >= OPEN_TRIES {
                if waited >= PROOF_MAX {
                    self.close(id, false);
                }
            } else if waited >= Duration::from_secs(1 << channel.tries.min(4)) / 2 {
                self.send_opening(now, id);
            }
            return;
        }
        channel.lose_late(now);
        channel.control.wanted(now, !channel.wants.is_empty() || !channel.inflight.is_empty());
        match channel.control.poll(now) {
            Some(Due::Close) => return self.close(id, true),
            Some(Due::KeepAlive) => {
                if let Some(datagram) = channel.datagram(&[]) {
                    self.out.push_back(super::Transmit { peer: channel.peer.clone(), datagram, chunk: None });
                }
                channel.control.sent(now, false);
            }
            None => {}
        }
        channel.ask_pex(now, &mut self.out);
        let patience = ASKED_MAX.max(channel.rtt * 8);
        let late = |at: &Instant| now.saturating_duration_since(*at) > patience;
        let given_up: Vec<u64> = channel.asked.iter().filter(|(_, at)| late(at)).map(|(chunk, _)| *chunk).collect();
        if !given_up.is_empty() {
            channel.stalled_until = Some(now + STALL);
        }
        for chunk in given_up {
            channel.asked.remove(&chunk);
            self.requested.remove_range(chunk..chunk + 1);
            self.asked_count -= 1;
        }
        self.announce(now, id);
        self.ask(now, id);
    }

    /// Announces what was stored since: each run by the biggest bins around it.
    fn announce(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let mut said = Vec::new();
        while said.len() < BINS_MAX
            && let Some(chunk) = channel.unsaid.next_set(0)
        {
            let Some(bin) = self.have.largest_full(chunk).or(Bin::chunk(chunk)) else { break };
            channel.unsaid.remove(bin);
            said.push(Message::Have(bin.range()));
        }
        if !said.is_empty()
            && let Some(datagram) = channel.datagram(&said)
        {
            self.out.push_back(super::Transmit { peer: channel.peer.clone(), datagram, chunk: None });
            channel.control.sent(now, false);
        }
    }

    /// Asks for as much as Algorithm 1 allows.
    pub(super) fn ask(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let stalled = channel.stalled_until.is_some_and(|until| now < until);
        let is_still = self.is_paused || self.is_complete;
        if stalled || is_still || channel.chokes_us || !channel.proven || channel.codec.is_none() {
            return;
        }
        let chunk_len = self.params.chunk_len().map_or(1, u64::from);
        let allowed = match channel.allowance.down_bytes {
            u64::MAX => u64::MAX,
            left => left.div_ceil(chunk_len),
        };
        let room = self.room_chunks.saturating_sub(self.asked_count);
        let mut size = Pull {
            rtt: channel.rtt,
            period: channel.arrivals.period(),
            outstanding: channel.asked.len() as u64,
            rate_allowed: allowed.min(room),
            granularity: if allowed == u64::MAX { channel.asked.len() as u64 / ASK_DIVISOR } else { 0 },
        }
        .request_size();
        let mut bins = Vec::new();
        if self.tree.chunk_count().is_none() {
            // The size first: any chunk brings the peaks, and the last one proves them.
            let chunk = self.tree.chunks_claimed().map_or(0, |chunks| chunks - 1);
            if channel.asked.is_empty() && channel.has.contains(chunk) && allowed > 0 {
                bins.extend(Bin::chunk(chunk));
            }
            size = 0;
        }
        while size > 0 && bins.len() < BINS_MAX {
            let choice = Choice {
                offered: &channel.has,
                have: &self.held,
                requested: &self.requested,
                availability: &self.availability,
                end: self.tree.chunk_count(),
            };
            let Some(bin) = self.picker.pick(&choice, size) else { break };
            self.requested.insert(bin);
            size -= bin.chunk_count();
            bins.push(bin);
        }
        if bins.is_empty() {
            return;
        }
        let count: u64 = bins.iter().map(|bin| bin.chunk_count()).sum();
        self.asked_count += count;
        channel.asked_bytes += count * chunk_len;
        if channel.allowance.down_bytes != u64::MAX {
            channel.allowance.down_bytes = channel.allowance.down_bytes.saturating_sub(count * chunk_len);
        }
        channel.asked.extend(bins.iter().flat_map(|bin| bin.range()).map(|chunk| (chunk, now)));
        let messages: Vec<Message<'_>> = bins.iter().map(|bin| Message::Request(bin.range())).collect();
        if let Some(datagram) = channel.datagram(&messages) {
            self.out.push_back(super::Transmit { peer: channel.peer.clone(), datagram, chunk: None });
            channel.control.sent(now, false);
        }
    }

    /// An address from a peer that was asked for some.
    fn pex(&mut self, id: ChannelId, address: std::net::SocketAddr) {
        let Some(channel) = self.channels.get_mut(&id).filter(|channel| channel.pex_left > 0) else { return };
        channel.pex_left -= 1;
        self.events.push_back(Event::Found(address));
    }
}
