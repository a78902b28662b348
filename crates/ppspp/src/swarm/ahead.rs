//! A batch of datagrams, looked at before each is read: the chunks in it are hashed side by side, and those that follow each other, each in a
//! datagram of its own of one channel, are judged together.
//!
//! Whatever does not hold together is read datagram by datagram, as if nobody had looked: that alone tells what is missing, and who lies. So
//! where a run does not hold, half of it is tried, and so on: a liar costs others little.

use std::ops::Range;
use std::time::Instant;

use super::{PeerAddress, Swarm};
use crate::bin::Bin;
use crate::binmap::Binmap;
use crate::hash::{Digest, HashFunction};
use crate::merkle::{NodeStore, OFFERS_MAX};
use crate::state::State;
use crate::wire::{ChannelId, Codec, DATAGRAM_LEN_MAX, Integrity, LoneChunk, Messages, split_channel};

/// Chunks that are judged together at most: as many as one look at a socket brings in one message of the system's.
const RUN_MAX: usize = 64;

/// Digests of a batch's chunks.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Each chunk, with the datagram that it is in.
    chunks: Vec<(usize, u64)>,
    /// Their digests, one after the other.
    digests: Vec<u8>,
    /// The first that is not looked for yet.
    next: usize,
    /// The datagram that is being read.
    reading: usize,
}

impl Ahead {
    pub(super) fn clear(&mut self) {
        (self.next, self.reading) = (0, 0);
        self.chunks.clear();
        self.digests.clear();
    }

    /// The digest of this chunk of the datagram that is being read, where one was made.
    pub(super) fn digest(&mut self, hash: HashFunction, chunk: u64) -> Option<Digest> {
        while self.chunks.get(self.next).is_some_and(|(datagram, _)| *datagram < self.reading) {
            self.next += 1;
        }
        self.chunks.get(self.next).filter(|found| **found == (self.reading, chunk))?;
        self.next += 1;
        hash.digest(&self.digests[(self.next - 1) * hash.len()..self.next * hash.len()])
    }
}

/// A datagram of a proven channel with one chunk that is not here, and with digests.
#[derive(Clone, Debug)]
struct Lone<'a> {
    datagram: usize,
    len: usize,
    channel: ChannelId,
    chunk: LoneChunk<'a>,
    /// The place of its digest among those of the batch.
    hashed: usize,
    /// What comes with it, among all that came with any.
    offered: Range<usize>,
}

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// [`Swarm::datagram`] for many at once: chunks are hashed side by side, and acknowledged together. What is not for this swarm is
    /// nothing to it.
    pub fn datagrams<'a>(&mut self, now: Instant, batch: &[(P, &'a [u8])], chunks: &mut Vec<(u64, &'a [u8])>) {
        let mut offered = Vec::new();
        let lone = self.look_ahead(batch, &mut offered);
        let (mut lone, mut met): (&[Lone<'a>], Vec<ChannelId>) = (&lone, Vec::new());
        let (mut at, mut run_max) = (0, RUN_MAX);
        while let Some((peer, datagram)) = batch.get(at) {
            let passed = lone.iter().take_while(|one| one.datagram < at).count();
            lone = &lone[passed..];
            let run = &lone[..run_len(lone, at).min(run_max)];
            let channel = if run.len() > 1 && self.judge_run(now, peer, run, &offered) {
                at += run.len();
                chunks.extend(run.iter().map(|one| (one.chunk.chunk, one.chunk.payload)));
                run_max = RUN_MAX.min(2 * run_max);
                run.first().map(|one| one.channel)
            } else if run.len() > 3 {
                run_max = run.len() / 2;
                continue;
            } else {
                let before = chunks.len();
                self.ahead.reading = at;
                at += 1;
                let channel = self.read(now, peer, datagram, chunks);
                run_max = if chunks.len() > before { RUN_MAX.min(2 * run_max) } else { 1 };
                channel
            };
            met.extend(channel.filter(|channel| !met.contains(channel)));
        }
        for id in met {
            self.settle(now, id);
            self.serve(now, id);
        }
    }

    /// Hashes the chunks of a batch that are not here side by side, and finds those that are alone in their datagram; the digests that
    /// come with these are put to `offered`.
    fn look_ahead<'a>(&mut self, batch: &[(P, &'a [u8])], offered: &mut Vec<(Bin, &'a [u8])>) -> Vec<Lone<'a>> {
        self.ahead.clear();
        let (mut lone, mut payloads): (Vec<Lone<'a>>, Vec<&[u8]>) = (Vec::new(), Vec::with_capacity(batch.len()));
        if !self.params.integrity().is_hashed() {
            return lone;
        }
        let mut before: Option<(ChannelId, usize, Codec)> = None;
        // Chunks that are not here, as far as was looked.
        let mut missing = 0..0;
        let mut is_missing = |held: &Binmap, chunk: u64| {
            if !missing.contains(&chunk) {
                missing = if held.contains(chunk) { 0..0 } else { chunk..held.next_set(chunk).unwrap_or(u64::MAX) };
            }
            missing.contains(&chunk)
        };
        for (at, (peer, datagram)) in batch.iter().enumerate() {
            let Some((id, messages)) = split_channel(datagram) else { continue };
            // The one before is the same, as a rule.
            let is_as_before = |(of, by, _): &(ChannelId, usize, Codec)| *of == id && batch[*by].0 == *peer;
            let codec = match before.filter(is_as_before) {
                Some((.., codec)) => codec,
                None => {
                    let channel = self.channels.get(&id).filter(|channel| channel.proven && channel.peer == *peer);
                    let Some(codec) = channel.and_then(|channel| channel.codec) else { continue };
                    codec
                }
            };
            before = Some((id, at, codec));
            let mut messages = Messages::new(codec, messages);
            let offered_before = offered.len();
            if let Some(chunk) = messages.clone().lone_chunk(offered)
                && offered.len() - offered_before <= OFFERS_MAX
                && datagram.len() <= DATAGRAM_LEN_MAX
            {
                if is_missing(&self.held, chunk.chunk) {
                    let (len, hashed) = (datagram.len(), payloads.len());
                    let offered = offered_before..offered.len();
                    lone.push(Lone { datagram: at, len, channel: id, chunk, hashed, offered });
                    payloads.push(chunk.payload);
                    self.ahead.chunks.push((at, chunk.chunk));
                }
                continue;
            }
            offered.truncate(offered_before);
            while let Some((chunk, payload)) = messages.next_data() {
                if is_missing(&self.held, chunk) {
                    payloads.push(payload);
                    self.ahead.chunks.push((at, chunk));
                }
            }
        }
        self.params.hash().hash_many(&payloads, &mut self.ahead.digests);
        lone
    }

    /// Takes chunks that follow each other where all of them hold: what [`Swarm::read`] does with each. `false` where not, and nothing happened.
    fn judge_run(&mut self, now: Instant, peer: &P, run: &[Lone<'_>], offered: &[(Bin, &[u8])]) -> bool {
        let Some((first, last)) = run.first().zip(run.last()) else { return false };
        let (chunks, clock_us) = (first.chunk.chunk..last.chunk.chunk + 1, self.clock_us(now));
        let hash = self.params.hash();
        let is_whole =
            |one: &Lone<'_>| self.params.chunk_len().is_some_and(|len| one.chunk.payload.len() == len as usize);
        // Twins in one batch, a stream without an end, a last chunk: each has rules of its own.
        let is_plain = self.live.is_none() && self.params.integrity() == Integrity::MerkleTree;
        let is_new = self.held.next_set(chunks.start).is_none_or(|held| held >= chunks.end);
        if !is_plain || !is_new || !run.iter().all(is_whole) || self.banned.contains(peer) {
            return false;
        }
        let Some(channel) = self.channels.get_mut(&first.channel) else { return false };
        let leaves = &self.ahead.digests[first.hashed * hash.len()..(last.hashed + 1) * hash.len()];
        let offered = &offered[first.offered.start..last.offered.end];
        let of_run = |node: Bin| {
            let (_, digest) = offered.iter().rev().find(|(offered, _)| *offered == node)?;
            hash.digest(digest)
        };
        if !self.tree.verify_run(chunks.start, leaves, |node| of_run(node).or_else(|| channel.offers.get(node))) {
            return false;
        }
        channel.control.received(now, true);
        channel.greeted = None;
        if channel.control.state() == State::PingPong {
            channel.answered();
        }
        channel.offers.clear();
        channel.received_bytes += run.iter().map(|one| one.len as u64).sum::<u64>();
        let payload = run.iter().map(|one| one.chunk.payload.len() as u64).sum();
        channel.came(&chunks, payload, |asked| {
            self.asked_count -= asked.end - asked.start;
            self.requested.remove_range(asked);
        });
        channel.owe_acknowledgement(chunks.clone(), clock_us.wrapping_sub(last.chunk.sent_us));
        self.held.insert_range(chunks);
        true
    }
}

/// How many of the datagrams from `at` on have chunks of one channel that follow each other.
fn run_len(lone: &[Lone<'_>], at: usize) -> usize {
    let Some(first) = lone.first() else { return 0 };
    let follows = |(ahead, one): &(usize, &Lone<'_>)| {
        let is_next = first.chunk.chunk.checked_add(*ahead as u64) == Some(one.chunk.chunk);
        one.datagram == at + ahead && one.channel == first.channel && is_next
    };
    lone.iter().enumerate().take(RUN_MAX).take_while(follows).count()
}
