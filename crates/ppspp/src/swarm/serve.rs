//! What goes out over a channel: chunks with their proofs, and addresses.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::channel::{Channel, Sent};
use super::{PeerAddress, Swarm, Transmit};
use crate::binmap::Binmap;
use crate::merkle::{NodeStore, Tree};
use crate::wire::{ChannelId, Integrity, Message};

/// Datagrams are no longer than this where their chunk allows: an Ethernet frame, less IP and UDP (RFC 7574 §8.1).
const DATAGRAM_LEN: usize = 1452;
/// Chunks sent at once on one look: the driver sends them in one call.
const BURST_MAX: usize = 64;
/// A chunk is lost when so many that left later have arrived, as TCP has it.
const REORDERING: u64 = 3;
/// Addresses in one answer, and how often one is given (RFC 7574 §12.2.1 asks for a limit).
const PEX_GIVEN_MAX: usize = 8;
const PEX_ANSWER_EVERY: Duration = Duration::from_secs(10);

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// Sends what the window and the requests allow.
    pub(super) fn serve(&mut self, now: Instant, id: ChannelId) {
        if self.is_paused {
            return;
        }
        for _ in 0..BURST_MAX {
            let Some(channel) = self.channels.get_mut(&id).filter(|channel| channel.proven) else { return };
            channel.control.wanted(now, !channel.wants.is_empty() || !channel.inflight.is_empty());
            if channel.send_at().is_none_or(|at| now < at) {
                return;
            }
            let Some(chunk) = channel.next_wanted(&self.have) else { return };
            let clock_us = now.saturating_duration_since(self.epoch).as_micros() as u64;
            let Some(datagrams) = proven_chunk(channel, &self.tree, self.params.integrity(), chunk, clock_us) else {
                continue;
            };
            for (datagram, chunk) in datagrams {
                self.out.push_back(Transmit { peer: channel.peer.clone(), datagram, chunk });
            }
            channel.control.sent(now, true);
            channel.replied = false;
            channel.inflight.insert(chunk, Sent { number: channel.sent_count, at: now });
            channel.sent_order.push_back((channel.sent_count, chunk));
            channel.sent_count += 1;
            let len = self.params.chunk_len().map_or(1, u64::from);
            channel.uploaded_bytes += len;
            channel.allowance.up_bytes = match channel.allowance.up_bytes {
                u64::MAX => u64::MAX,
                left => left.saturating_sub(len),
            };
        }
    }

    /// Tells a peer of others.
    pub(super) fn pex_answer(&mut self, now: Instant, id: ChannelId) {
        let others: Vec<SocketAddr> = self
            .channels
            .iter()
            .filter(|(other, channel)| **other != id && channel.proven)
            .filter_map(|(_, c)| c.peer.socket_addr())
            .collect();
        let start = if others.is_empty() { 0 } else { self.rng.usize(..others.len()) };
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if others.is_empty()
            || channel.pex_answered_at.is_some_and(|at| now.saturating_duration_since(at) < PEX_ANSWER_EVERY)
        {
            return;
        }
        channel.pex_answered_at = Some(now);
        let given = others.iter().cycle().skip(start).take(PEX_GIVEN_MAX.min(others.len()));
        let messages: Vec<Message<'_>> = given
            .map(|address| match address {
                SocketAddr::V4(address) => Message::PexV4(*address),
                SocketAddr::V6(address) => Message::PexV6(*address),
            })
            .collect();
        if let Some(datagram) = channel.datagram(&messages) {
            self.out.push_back(Transmit { peer: channel.peer.clone(), datagram, chunk: None });
            channel.control.sent(now, false);
        }
    }
}

/// The digests that the receiver misses, then the chunk's head; in one datagram where they fit.
fn proven_chunk<P: PeerAddress, S: NodeStore>(
    channel: &Channel<P>,
    tree: &Tree<S>,
    integrity: Integrity,
    chunk: u64,
    clock_us: u64,
) -> Option<Vec<(Vec<u8>, Option<u64>)>> {
    let codec = channel.codec?;
    let mut digests = Vec::new();
    if !channel.knows_peaks && tree.chunk_count() != Some(1) {
        digests = tree.peaks();
    }
    if integrity == Integrity::MerkleTree {
        digests.extend(tree.uncles(chunk, |below| !channel.has.is_empty_in(below))?);
    }
    let messages: Vec<Message<'_>> =
        digests.iter().map(|(node, digest)| Message::Integrity { node: *node, digest: *digest }).collect();
    let mut datagram = channel.datagram(&messages)?;
    let chunk_len = codec.chunk_len.unwrap_or(0) as usize;
    let mut datagrams = Vec::new();
    // RFC 7574 §5.4: where they do not fit, the digests go first.
    if !messages.is_empty() && datagram.len() + codec.data_head_len() + chunk_len > DATAGRAM_LEN.max(chunk_len + 400) {
        datagrams.push((std::mem::replace(&mut datagram, channel.datagram(&[])?), None));
    }
    codec.put_data_head(chunk, clock_us, &mut datagram).ok()?;
    datagrams.push((datagram, Some(chunk)));
    Some(datagrams)
}

impl<P: PeerAddress> Channel<P> {
    /// The next chunk that the peer asked for, that is here and that it still lacks.
    fn next_wanted(&mut self, have: &Binmap) -> Option<u64> {
        while let Some(range) = self.wants.front_mut() {
            match Binmap::next_match(range.start, 1, &[have], &[&self.has]) {
                Some(found) if found.start < range.end => {
                    range.start = found.end;
                    if range.is_empty() {
                        self.wants.pop_front();
                    }
                    return Some(found.start);
                }
                _ => drop(self.wants.pop_front()),
            }
        }
        None
    }

    /// The peer does not want these any more.
    pub(super) fn cancel(&mut self, range: &Range<u64>) {
        self.wants = std::mem::take(&mut self.wants)
            .into_iter()
            .flat_map(|want| [want.start..want.end.min(range.start), want.start.max(range.end)..want.end])
            .filter(|want| !want.is_empty())
            .take(super::channel::WANTS_MAX)
            .collect();
    }

    /// Chunks arrived.
    pub(super) fn acked(&mut self, now: Instant, chunks: &Range<u64>, delay_us: u64) {
        let limited = self.inflight.len() as f64 + 1.0 >= self.control.ledbat().window() / 2.0;
        let mut last = None;
        while let Some((chunk, sent)) = self.inflight.range(chunks.clone()).next().map(|(chunk, sent)| (*chunk, *sent))
        {
            self.inflight.remove(&chunk);
            last = last.max(Some(sent.number));
            self.control.acked(now, Some(now.saturating_duration_since(sent.at)), delay_us, limited);
        }
        let Some(last) = last else { return };
        self.knows_peaks = true;
        let mut lost = Vec::new();
        while let Some((number, chunk)) = self.sent_order.front().copied() {
            let is_here = self.inflight.get(&chunk).is_some_and(|sent| sent.number == number);
            if is_here && number >= last.saturating_sub(REORDERING) {
                break;
            }
            self.sent_order.pop_front();
            lost.extend(is_here.then_some(chunk));
        }
        self.lose(now, &lost, false);
    }

    /// Chunks that nothing was heard of for the whole timeout.
    pub(super) fn lose_late(&mut self, now: Instant) {
        let timeout = self.control.ledbat().timeout();
        let late = |sent: &Sent| now.saturating_duration_since(sent.at) > timeout;
        let lost: Vec<u64> = self.inflight.iter().filter(|(_, sent)| late(sent)).map(|(chunk, _)| *chunk).collect();
        let all = lost.len() == self.inflight.len();
        self.lose(now, &lost, all);
    }

    fn lose(&mut self, now: Instant, lost: &[u64], all: bool) {
        if lost.is_empty() {
            return;
        }
        self.lost_chunks += lost.len() as u64;
        for chunk in lost {
            // Sent again, unless it arrived after all.
            if self.inflight.remove(chunk).is_some() {
                match self.wants.front_mut() {
                    Some(want) if want.end == *chunk => want.end += 1,
                    _ => self.wants.push_front(*chunk..chunk + 1),
                }
            }
        }
        if all { self.control.timed_out(now) } else { self.control.lost(now, lost.len() as u64) }
    }
}
