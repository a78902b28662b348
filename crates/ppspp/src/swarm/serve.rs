//! What goes out over a channel: chunks with their proofs, and addresses.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::channel::{Channel, Sent};
use super::outbox::CHANNEL_LEN;
use super::{PeerAddress, Swarm};
use crate::bin::Bin;
use crate::binmap::Binmap;
use crate::hash::Digest;
use crate::merkle::{LiveProofs, NodeStore, Tree};
use crate::state::State;
use crate::wire::{ChannelId, Dialect, Integrity, Message};

/// Bytes of digests that go in a datagram with a chunk that is too long for a frame by itself.
pub const BESIDE_LONG_CHUNK: usize = 400;
/// What a chunk counts for where chunks differ: those of our live sources are no longer.
pub(super) const CHUNK_LEN_UNTOLD: u32 = 1024;
/// Chunks sent at once on one look: the driver sends them in one call.
const BURST_MAX: u64 = 64;
/// A chunk is lost when so many that left later have arrived, as TCP has it.
const REORDERING: u64 = 3;
/// What is on its way proves what leaves next, so a digest goes out with as many chunks as this, not with all that leave in a round trip; and with
/// twice as many until [`CLEAN_MIN`] chunks and twice what is on its way arrived since losses came in a run: two of [`LOSS_RUN`] datagrams.
const ASSUMED_BEHIND: usize = 2;
const CLEAN_MIN: u64 = 256;
const LOSS_RUN: u64 = 8;
/// In slow start, while the window is what limits, with as many as this part of what is on its way: it ends where a queue is full, and half of all
/// that leave within a round trip are lost there, many in a row.
const SLOW_START_PART: u64 = 8;
/// Layers whose digests go along all the same where so many chunks leave at once: datagrams of one length leave together, which costs less time
/// than bytes. Where they leave one by one the bytes are what counts.
const PROVEN_LAYERS: [(u64, u32); 3] = [(16, 4), (8, 3), (0, 2)];
/// In a live stream there is one signature for few chunks, and datagrams of one length are made of them later.
const PROVEN_LAYERS_LIVE: u32 = 1;
/// Lost chunks of a channel that are remembered as such until they arrive: a peer that acknowledges nothing costs no more memory.
const LOST_MAX: usize = 4096;
/// Addresses in one answer, and how often one is given (RFC 7574 §12.2.1 asks for a limit).
const PEX_GIVEN_MAX: usize = 8;
const PEX_ANSWER_EVERY: Duration = Duration::from_secs(10);
/// In a live stream peers ask four times a second while they have few neighbours; what is on its way does not keep that rhythm.
const PEX_ANSWER_EVERY_LIVE: Duration = Duration::from_millis(150);

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// Sends what the window and the requests allow.
    pub(super) fn serve(&mut self, now: Instant, id: ChannelId) {
        if self.is_paused {
            return;
        }
        let mut left = BURST_MAX;
        while left > 0 {
            let Some(channel) = self.channels.get_mut(&id).filter(|channel| channel.proven) else { return };
            channel.control.wanted(now, !channel.wants.is_empty() || !channel.inflight.is_empty());
            if channel.send_at(0).is_none_or(|at| now < at) {
                return;
            }
            let Some(chunks) = channel.next_wanted(&self.have, left) else { return };
            left -= self.serve_run(now, id, chunks);
        }
    }

    /// Sends chunks that follow each other, as many of them as the window allows, but one. How many are not wanted any more: those that left,
    /// and one that cannot be proven.
    fn serve_run(&mut self, now: Instant, id: ChannelId, chunks: Range<u64>) -> u64 {
        let clock_us = self.clock_us(now);
        let len = u64::from(self.params.chunk_len().unwrap_or(CHUNK_LEN_UNTOLD));
        let is_live = self.live.is_some();
        let proof = match &self.live {
            Some(live) => Proof::Live(live.proofs()),
            None => Proof::Complete(&self.tree, self.params.integrity()),
        };
        let Some(channel) = self.channels.get_mut(&id) else { return chunks.end - chunks.start };
        let lost = channel.lost.range(chunks.clone()).next().copied();
        let is_again = lost == Some(chunks.start);
        let end = if is_again { chunks.start + 1 } else { lost.unwrap_or(chunks.end) };
        let leave_at_once = |many: u64| channel.send_at(many.saturating_sub(1)).is_some_and(|at| at <= now);
        let mut around = Around::of(channel, &(chunks.start..end), is_live, leave_at_once);
        // Datagrams of one length leave together: of many chunks none has anything beside it that others have not.
        if !is_live {
            self.out.release(&channel.peer);
        }
        let mut left = chunks.start..chunks.start;
        let mut is_proven = true;
        while left.end < end && (left.is_empty() || channel.send_at(left.end - left.start).is_some_and(|at| at <= now))
        {
            let what = (left.end, is_again, around.known_layer(left.end));
            let proven = proven_chunk(channel, &proof, what, clock_us, &mut self.proving);
            is_proven = proven.is_some();
            let Some((ahead, datagram)) = proven else { break };
            for datagram in ahead {
                self.out.push(&channel.peer, datagram, None);
            }
            if is_live {
                let chunk = (left.end, len as usize);
                self.out.push_behind(&channel.peer, datagram, chunk, channel.datagram_len);
            } else {
                self.out.push(&channel.peer, datagram, Some(left.end));
            }
            channel.control.sent(now, true);
            channel.replied = false;
            channel.uploaded_bytes += len;
            channel.allowance.up_bytes = match channel.allowance.up_bytes {
                u64::MAX => u64::MAX,
                left => left.saturating_sub(len),
            };
            around.left(left.end);
            left.end += 1;
        }
        self.lacks_allowance |= channel.allowance.up_bytes == 0 && !left.is_empty();
        channel.left(now, left.clone(), is_again, around);
        let gone = left.end - left.start + u64::from(!is_proven);
        channel.served(gone);
        gone
    }

    /// How long chunks are, and a datagram that has one and nothing beside it.
    pub fn chunk_lens(&self) -> (u32, usize) {
        let len = self.params.chunk_len().unwrap_or(CHUNK_LEN_UNTOLD);
        let head_len = self.params.codec(Dialect::Rfc7574).data_head_len();
        (len, CHANNEL_LEN + head_len + len as usize)
    }

    /// Tells a peer of others.
    pub(super) fn pex_answer(&mut self, now: Instant, id: ChannelId) {
        let every = if self.live.is_some() { PEX_ANSWER_EVERY_LIVE } else { PEX_ANSWER_EVERY };
        let is_too_soon = |at: Instant| now.saturating_duration_since(at) < every;
        let Some(channel) = self.channels.get(&id) else { return };
        if channel.pex_answered_at.is_some_and(is_too_soon) {
            return;
        }
        let peer = channel.peer.clone();
        let mut others: Vec<SocketAddr> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.proven && !channel.peer.is_same_peer(&peer))
            .filter_map(|(_, c)| c.peer.told_to(&peer))
            .collect();
        others.sort_unstable();
        others.dedup();
        // Some of them, each time others: who comes is not to find those alone who came when it did.
        let given = PEX_GIVEN_MAX.min(others.len());
        for at in 0..given {
            let other = self.rng.usize(at..others.len());
            others.swap(at, other);
        }
        let Some(channel) = self.channels.get_mut(&id).filter(|_| !others.is_empty()) else { return };
        channel.pex_answered_at = Some(now);
        let messages: Vec<Message<'_>> = others[..given]
            .iter()
            .map(|address| match address {
                SocketAddr::V4(address) => Message::PexV4(*address),
                SocketAddr::V6(address) => Message::PexV6(*address),
            })
            .collect();
        if channel.say_all(&messages, &mut self.out) {
            channel.control.sent(now, false);
        }
    }
}

/// What chunks are proven by.
enum Proof<'a, S> {
    Complete(&'a Tree<S>, Integrity),
    Live(&'a LiveProofs),
}

/// The digests that the receiver misses, then the chunk's head; in one datagram where they fit, else in some before, none of them longer
/// than the chunk's own. So they are too for a chunk that was lost and leaves again.
fn proven_chunk<P: PeerAddress, S: NodeStore>(
    channel: &mut Channel<P>,
    proof: &Proof<'_, S>,
    (chunk, is_again, known_layer): (u64, bool, Option<u32>),
    clock_us: u64,
    digests: &mut Vec<(Bin, Digest)>,
) -> Option<(Vec<Vec<u8>>, Vec<u8>)> {
    let codec = channel.codec.filter(|_| channel.remote != 0)?;
    digests.clear();
    let mut signatures = Vec::new();
    match proof {
        Proof::Complete(tree, integrity) => {
            if !channel.knows_peaks && tree.chunk_count() != Some(1) {
                digests.extend(tree.peaks());
            }
            if *integrity == Integrity::MerkleTree {
                tree.uncles(chunk, known_layer, &mut channel.way, digests)?;
            }
        }
        Proof::Live(proofs) => {
            let has_below = |below: Bin| known_layer.is_some_and(|known| known <= below.layer());
            let takes = |start| channel.live.takes_munro(start, clock_us);
            signatures = proofs.prove(chunk, has_below, takes, digests)?;
        }
    }
    let chunk_len = codec.chunk_len.unwrap_or(CHUNK_LEN_UNTOLD) as usize;
    let data_len = codec.data_head_len() + chunk_len;
    let digests_len = digests.len() * codec.integrity_len();
    let mut datagram = Vec::with_capacity(CHANNEL_LEN + digests_len + codec.data_head_len());
    datagram.extend_from_slice(&channel.remote.to_be_bytes());
    signatures.iter().try_for_each(|message| message.encode(&codec, &mut datagram)).ok()?;
    for (node, digest) in &*digests {
        codec.put_integrity(*node, digest, &mut datagram).ok()?;
    }
    let mut ahead = Vec::new();
    // RFC 7574 §5.4: where they do not fit, the digests go first. A chunk that is longer than a frame is cut in pieces anyway.
    let (alone, len_max) = (CHANNEL_LEN + data_len, channel.datagram_len);
    let beside_max = if alone > len_max { alone + BESIDE_LONG_CHUNK } else { len_max };
    let fits_beside = datagram.len() + data_len <= beside_max && !is_again && channel.beside.may();
    if datagram.len() > CHANNEL_LEN && fits_beside {
        channel.beside.left(chunk);
    } else if datagram.len() > CHANNEL_LEN {
        let (proofs, digests) = datagram[CHANNEL_LEN..].split_at(datagram.len() - CHANNEL_LEN - digests_len);
        let each_max = len_max.min(alone).saturating_sub(CHANNEL_LEN);
        let each_max = (each_max / codec.integrity_len()).max(1) * codec.integrity_len();
        let parts = [proofs].into_iter().filter(|proofs| !proofs.is_empty()).chain(digests.chunks(each_max));
        ahead.extend(parts.map(|part| [&channel.remote.to_be_bytes(), part].concat()));
        datagram.truncate(CHANNEL_LEN);
    }
    codec.put_data_head(chunk, clock_us, &mut datagram).ok()?;
    Some((ahead, datagram))
}

/// What the receiver of chunks that leave one after the other has around them, or will have: what it has to be told no digests of.
struct Around {
    /// Before and behind them: the nearest that was acknowledged, and that is taken to arrive.
    acknowledged: [Option<u64>; 2],
    expected: [Option<u64>; 2],
    /// What is taken to arrive tells nothing below this layer.
    layer_min: u32,
    is_live: bool,
    /// So many chunks that left after one are proven as if it did not arrive.
    behind: usize,
    /// Chunks that left latest; `None` where nothing new is taken to arrive. And those that are since, in runs.
    latest: Option<VecDeque<u64>>,
    assumed: Vec<Range<u64>>,
}

impl Around {
    /// `leave_at_once`: whether so many chunks may leave now.
    fn of<P>(channel: &Channel<P>, chunks: &Range<u64>, is_live: bool, leave_at_once: impl Fn(u64) -> bool) -> Self {
        let around = |map: &Binmap| [map.prev_set(chunks.start), map.next_set(chunks.end)];
        let many = chunks.end - chunks.start;
        let inflight = channel.inflight.len() + many;
        let is_clean = |least: u64| channel.clean_count >= least.max(2 * inflight);
        let proven = PROVEN_LAYERS.into_iter().find(|(least, _)| many >= *least && leave_at_once(*least));
        let is_assumed = channel.dialect == Dialect::Rfc7574 && (!is_live || is_clean(0));
        let behind = match channel.control.state() {
            _ if is_live => ASSUMED_BEHIND,
            State::SlowStart if channel.sent_count < channel.limited_until => {
                (inflight / SLOW_START_PART).max(2 * ASSUMED_BEHIND as u64) as usize
            }
            _ if is_clean(CLEAN_MIN) => ASSUMED_BEHIND,
            _ => 2 * ASSUMED_BEHIND,
        };
        Self {
            acknowledged: around(&channel.has),
            expected: around(&channel.assumed),
            layer_min: proven.filter(|_| !is_live).map_or(PROVEN_LAYERS_LIVE, |(_, layers)| layers),
            is_live,
            behind,
            latest: is_assumed.then(|| channel.latest.clone()),
            assumed: Vec::new(),
        }
    }

    /// A chunk left.
    fn left(&mut self, chunk: u64) {
        let Some(latest) = &mut self.latest else { return };
        latest.push_back(chunk);
        while latest.len() > self.behind
            && let Some(assumed) = latest.pop_front()
        {
            match self.assumed.last_mut() {
                Some(run) if run.end == assumed => run.end += 1,
                _ => self.assumed.push(assumed..assumed + 1),
            }
        }
    }

    /// Layer of the smallest bin around a chunk below which the peer has one, or will have.
    fn known_layer(&self, chunk: u64) -> Option<u32> {
        let layer = |other: u64| u64::BITS - (chunk ^ other).leading_zeros();
        let newest = self.assumed.last().map(|run| run.end - 1);
        let expected =
            self.expected.into_iter().chain([newest]).flatten().map(|other| layer(other).max(self.layer_min));
        self.acknowledged.into_iter().flatten().map(layer).chain(expected).min()
    }
}

impl<P: PeerAddress> Channel<P> {
    /// The next chunks that the peer asked for, that are here and that it still lacks: a run of them, `len_max` at most.
    fn next_wanted(&mut self, have: &Binmap, len_max: u64) -> Option<Range<u64>> {
        while let Some(range) = self.wants.front_mut() {
            let found = Binmap::next_match(range.start, len_max, &[have], &[&self.has]);
            let Some(found) = found.filter(|found| found.start < range.end) else {
                self.wants.pop_front();
                continue;
            };
            // Asked for again while it is on its way: if it is lost, it leaves again anyway.
            let on_its_way = self.inflight.next_run(found.start).unwrap_or(u64::MAX..u64::MAX);
            if on_its_way.start > found.start {
                range.start = found.start;
                return Some(found.start..found.end.min(range.end).min(on_its_way.start));
            }
            range.start = on_its_way.end.min(range.end);
            if range.is_empty() {
                self.wants.pop_front();
            }
        }
        None
    }

    /// So many of the chunks that are wanted next are not any more.
    fn served(&mut self, chunks: u64) {
        if let Some(range) = self.wants.front_mut() {
            range.start += chunks;
            if range.is_empty() {
                self.wants.pop_front();
            }
        }
    }

    /// The peer wants these.
    pub(super) fn want(&mut self, range: Range<u64>) {
        self.set_cancelled(&range, false);
        self.wants.push_back(range);
    }

    /// Whether these, as far as they are on their way, are wanted no more.
    fn set_cancelled(&mut self, range: &Range<u64>, is_cancelled: bool) {
        let mut changed = Vec::new();
        let mut from = range.start;
        while let Some(run) = self.inflight.next_run(from).filter(|run| run.start < range.end) {
            let run = run.start..run.end.min(range.end);
            if let Some(sent) = self.inflight.get(run.start).filter(|sent| sent.is_cancelled != is_cancelled) {
                changed.push((run.clone(), Sent { is_cancelled, ..sent }));
            }
            from = run.end;
        }
        changed.into_iter().for_each(|(run, sent)| self.inflight.insert(run, sent));
    }

    /// The peer does not want these any more.
    pub(super) fn cancel(&mut self, range: &Range<u64>) {
        self.wants = std::mem::take(&mut self.wants)
            .into_iter()
            .flat_map(|want| [want.start..want.end.min(range.start), want.start.max(range.end)..want.end])
            .filter(|want| !want.is_empty())
            .take(super::channel::WANTS_MAX)
            .collect();
        self.set_cancelled(range, true);
    }

    /// Chunks that follow each other left.
    fn left(&mut self, now: Instant, chunks: Range<u64>, is_again: bool, around: Around) {
        if chunks.is_empty() {
            return;
        }
        let (number, count) = (self.sent_count, chunks.end - chunks.start);
        // What nothing is waited for of is not looked for: of a peer that never acknowledges it would become ever more.
        if self.inflight.is_empty() {
            self.sent_order.clear();
        }
        self.inflight.insert(chunks.clone(), Sent { number, at: now, is_again, is_cancelled: false });
        match self.sent_order.back_mut() {
            Some((first, run)) if run.end == chunks.start && *first + (run.end - run.start) == number => {
                run.end = chunks.end;
            }
            _ => self.sent_order.push_back((number, chunks.clone())),
        }
        (self.sent_count, self.moved_at, self.serves_live) = (self.sent_count + count, now, around.is_live);
        if let Some(latest) = around.latest {
            self.latest = latest;
            around.assumed.into_iter().for_each(|run| self.assumed.insert_range(run));
        }
    }

    /// Chunks arrived.
    pub(super) fn acked(&mut self, now: Instant, chunks: &Range<u64>, delay_us: u64) {
        let window = self.control.ledbat().window();
        let limited = self.inflight.len() as f64 + 1.0 >= window / 2.0;
        if limited {
            self.limited_until = self.sent_count + 2 * window as u64;
        }
        let soonest = self.control.ledbat().rtt_least();
        let mut last = None;
        let control = &mut self.control;
        self.beside.arrived(chunks);
        self.inflight.remove(chunks, |run, sent| {
            let since = now.saturating_duration_since(sent.at);
            let count = run.end - run.start;
            // RFC 8985 §6.2: what is acknowledged so soon after it left again is what left before, and tells nothing of what left
            // between the two. All else tells of the round trip too: where most of what leaves was lost before, nothing else would, and
            // one that was long once would never be known to be short again.
            let is_known = !sent.is_again || since >= soonest;
            if is_known {
                last = last.max(Some(sent.number + count - 1));
            }
            self.clean_count += count;
            control.acked(now, count, is_known.then_some(since), delay_us, limited);
        });
        self.answered.retain(|(chunk, sent)| {
            let is_here = chunks.contains(chunk);
            if is_here {
                let since = now.saturating_duration_since(sent.at);
                control.acked(now, 1, (!sent.is_again || since >= soonest).then_some(since), delay_us, limited);
            }
            !is_here
        });
        self.assumed.remove_range(chunks.clone());
        while let Some(chunk) = self.lost.range(chunks.clone()).next().copied() {
            self.lost.remove(&chunk);
        }
        let Some(last) = last else { return };
        self.knows_peaks = true;
        let mut lost = Vec::new();
        while let Some((number, run)) = self.sent_order.front_mut() {
            // What arrived since is passed over in runs.
            let next = self.inflight.next_run(run.start).map_or(run.end, |next| next.start.min(run.end));
            (*number, run.start) = (*number + (next - run.start), next);
            if run.is_empty() {
                self.sent_order.pop_front();
                continue;
            }
            let is_here = self.inflight.get(run.start).is_some_and(|sent| sent.number == *number);
            if is_here && *number >= last.saturating_sub(REORDERING) {
                break;
            }
            lost.extend(is_here.then_some(run.start));
            (*number, run.start) = (*number + 1, run.start + 1);
        }
        self.lose(now, &lost, false);
    }

    /// Chunks that nothing was heard of for the whole timeout. Whether these are all that were on their way.
    pub(super) fn lose_late(&mut self, now: Instant) -> bool {
        let timeout = self.control.ledbat().timeout();
        let late = |sent: &Sent| now.saturating_duration_since(sent.at) > timeout;
        let lost: Vec<u64> = self.inflight.iter().filter(|(_, sent)| late(sent)).flat_map(|(run, _)| run).collect();
        let all = lost.len() as u64 == self.inflight.len();
        self.lose(now, &lost, all);
        all && !lost.is_empty()
    }

    fn lose(&mut self, now: Instant, lost: &[u64], all: bool) {
        let Some(sent_at) = lost.iter().filter_map(|chunk| Some(self.inflight.get(*chunk)?.at)).max() else { return };
        self.lost_chunks += lost.len() as u64;
        self.beside.lost(lost, all);
        // In a live stream a signature may have been in it.
        let mut is_run = all || self.serves_live;
        for chunk in lost {
            // Sent again, unless it arrived after all, or is not waited for any more.
            let mut gone = None;
            self.inflight.remove(&(*chunk..chunk + 1), |_, sent| gone = Some(sent));
            if let Some(gone) = gone {
                let before = self.lost_number.replace(gone.number);
                is_run |= before.is_some_and(|before| before.abs_diff(gone.number) < LOSS_RUN);
                self.assumed.remove_range(*chunk..chunk + 1);
                self.latest.retain(|latest| latest != chunk);
                if self.lost.len() < LOST_MAX {
                    self.lost.insert(*chunk);
                }
                match self.wants.front_mut() {
                    _ if self.choked || gone.is_cancelled => {}
                    Some(want) if want.end == *chunk => want.end += 1,
                    _ => self.wants.push_front(*chunk..chunk + 1),
                }
            }
        }
        if is_run {
            // Digests may be lost as often as they left.
            self.clean_count = 0;
            self.assumed = Binmap::new();
            self.latest.clear();
        }
        if all { self.control.timed_out(now) } else { self.control.lost(now, lost.len() as u64, sent_at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledbat::Mode;

    /// A reader that stood still let the round trip become long, and all that was on its way get lost. That it is short again is told by what
    /// leaves a second time, for nothing else leaves for a while.
    #[test]
    fn what_leaves_again_tells_of_the_round_trip() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut channel: Channel<SocketAddr> =
            Channel::new(([10, 0, 0, 1], 7).into(), Dialect::Rfc7574, Mode::Fast, start);
        let mut now = start;
        let leave = |channel: &mut Channel<SocketAddr>, now: Instant, chunks: Range<u64>, is_again: bool| {
            let around = Around::of(channel, &chunks, false, |_| false);
            channel.left(now, chunks, is_again, around);
        };
        for (chunk, rtt) in (0..).zip([1, 1, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200]) {
            leave(&mut channel, now, chunk..chunk + 1, false);
            now += ms(rtt);
            channel.acked(now, &(chunk..chunk + 1), 1000);
        }
        assert!(channel.control.ledbat().rtt() > ms(100), "{:?}", channel.control.ledbat().rtt());
        leave(&mut channel, now, 100..200, false);
        now += ms(5000);
        assert!(channel.lose_late(now));
        for chunk in 100..130 {
            leave(&mut channel, now, chunk..chunk + 1, true);
            now += ms(1);
            channel.acked(now, &(chunk..chunk + 1), 1000);
        }
        assert!(channel.control.ledbat().rtt() < ms(20), "{:?}", channel.control.ledbat().rtt());
        // Sooner than ever: that is what left before, and tells nothing.
        let before = channel.control.ledbat().rtt();
        leave(&mut channel, now, 130..131, true);
        channel.acked(now + ms(1) / 2, &(130..131), 1000);
        assert_eq!(channel.control.ledbat().rtt(), before);
    }

    /// What was taken back does not leave again where it is lost, unless it was asked for once more.
    #[test]
    fn what_is_cancelled_leaves_no_second_time() {
        let now = Instant::now();
        let mut channel: Channel<SocketAddr> =
            Channel::new(([10, 0, 0, 1], 7).into(), Dialect::Rfc7574, Mode::Fast, now);
        channel.want(0..100);
        let around = Around::of(&channel, &(0..60), false, |_| false);
        channel.left(now, 0..60, false, around);
        channel.served(60);
        channel.cancel(&(10..90));
        channel.want(40..50);
        assert!(channel.lose_late(now + Duration::from_secs(60)));
        let wanted: Binmap = channel.wants.iter().flat_map(|range| Bin::cover(range.clone())).collect();
        assert_eq!(wanted.runs().collect::<Vec<_>>(), [0..10, 40..50, 90..100]);
    }
}
