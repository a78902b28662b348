//! What comes in over a channel, and what is asked for over it.

use std::time::{Duration, Instant};

use super::channel::WANTS_MAX;
use super::{Event, OPEN_TRIES, PEER_CELLS_MAX, PROOF_MAX, PeerAddress, Swarm};
use crate::bin::Bin;
use crate::binmap::Binmap;
use crate::merkle::Verdict;
use crate::picker::Choice;
use crate::pull::Pull;
use crate::state::Due;
use crate::wire::{ChannelId, Integrity, Message, Messages};

/// A request that was not served for so long is somebody else's: twice what a request is to last.
const ASKED_MAX: Duration = Duration::from_secs(2);
/// How long nothing is asked of a peer that let a request lie: long enough for everybody else's turn. It may be gone.
const STALL: Duration = Duration::from_secs(1);
/// Bins in one datagram of requests or announcements: 85 of the longest specifications are 1,400 bytes.
const BINS_MAX: usize = 80;

impl<P: PeerAddress> Swarm<P> {
    /// Reads a proven peer's messages; gives the chunks that hold.
    pub(super) fn messages<'a>(&mut self, now: Instant, id: ChannelId, messages: &'a [u8]) -> Vec<(u64, &'a [u8])> {
        let mut chunks = Vec::new();
        let Some(codec) = self.channels.get(&id).and_then(|channel| channel.codec) else { return chunks };
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
                    channel.wants.push_back(range);
                }
                Message::Cancel(range) => channel.cancel(&range),
                Message::Choke => {
                    channel.chokes_us = true;
                    for (chunk, _) in std::mem::take(&mut channel.asked) {
                        self.requested.remove_range(chunk..chunk + 1);
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
        chunks
    }

    /// One chunk: `true` where it holds and is new.
    fn data(&mut self, now: Instant, id: ChannelId, chunk: u64, sent_us: u64, payload: &[u8]) -> bool {
        let clock_us = self.clock_us(now);
        let Some(channel) = self.channels.get_mut(&id) else { return false };
        if channel.asked.remove(&chunk).is_some() {
            self.requested.remove_range(chunk..chunk + 1);
        }
        channel.arrivals.arrived(now, 1);
        let known = self.held.contains(chunk);
        let size_before = self.tree.chunk_count();
        let verdict = if known {
            Verdict::Good
        } else if self.params.integrity() == Integrity::None {
            if size_before.is_some_and(|chunks| chunk < chunks) { Verdict::Good } else { Verdict::Missing }
        } else {
            self.tree.verify(chunk, self.params.hash().hash(payload), payload.len(), &channel.offers)
        };
        // Only the last chunk may be short (RFC 7574 §5.6): another one would move all that follow.
        let is_last = self.tree.chunk_count() == chunk.checked_add(1);
        let whole = is_last || self.params.chunk_len().is_none_or(|len| payload.len() == len as usize);
        match verdict {
            Verdict::Good if whole || known => {}
            Verdict::Missing => {
                // What claimed a size is followed by the chunk that proves it.
                if size_before.is_none() && self.tree.chunks_claimed() != chunk.checked_add(1) {
                    self.ask(now, id);
                }
                return false;
            }
            _ => {
                self.lied(id);
                return false;
            }
        }
        if !known {
            self.held.insert_range(chunk..chunk + 1);
        }
        channel.offers.clear();
        let bin = self.held.largest_full(chunk).or(Bin::chunk(chunk));
        let chunks = bin.map_or(chunk..chunk + 1, Bin::range);
        channel.say(&Message::Ack { chunks, delay_us: clock_us.wrapping_sub(sent_us) }, &mut self.out);
        if size_before != self.tree.chunk_count()
            && let Some(chunks) = self.tree.chunk_count()
        {
            self.size_known(chunks);
        }
        self.ask(now, id);
        !known
    }

    fn size_known(&mut self, chunks: u64) {
        self.events.push_back(Event::Size(chunks));
        let content = Binmap::full(chunks);
        for channel in self.channels.values_mut() {
            // Whoever announced more than there is helps nobody by it.
            let mut beyond = channel.has.clone();
            beyond.subtract(&content);
            self.availability.remove(&beyond);
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
        self.availability.add(&new);
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
    fn ask(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let stalled = channel.stalled_until.is_some_and(|until| now < until);
        if stalled || channel.chokes_us || !channel.proven || channel.codec.is_none() {
            return;
        }
        let mut size = Pull {
            rtt: channel.rtt,
            period: channel.arrivals.period(),
            outstanding: channel.asked.len() as u64,
            rate_allowed: u64::MAX,
            granularity: 0,
        }
        .request_size();
        let mut bins = Vec::new();
        if self.tree.chunk_count().is_none() {
            // The size first: any chunk brings the peaks, and the last one proves them.
            let chunk = self.tree.chunks_claimed().map_or(0, |chunks| chunks - 1);
            if channel.asked.is_empty() && channel.has.contains(chunk) {
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
