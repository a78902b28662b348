//! What peers announce of a live stream: which of it is heeded, and which chunk is asked for by itself, a probe, to find out what it is of.
//!
//! Munros say where a stream is before anything is asked for, and nobody is probed. Where each chunk is signed, an announcement proves
//! nothing, not even that it is of this stream: a peer is heard of once a chunk came from it that holds. One whose announcements went
//! back is of another stream since then, as it seems, and has to show one again.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::{PeerAddress, Swarm};
use crate::bin::Bin;
use crate::binmap::Binmap;
use crate::merkle::NodeStore;
use crate::wire::{ChannelId, DiscardWindow, Message};

/// How soon a peer is asked for a chunk by itself again: before the viewer has begun, then before the peer has shown that it knows the
/// stream, and later, when it is far behind.
const PROBE_EVERY: Duration = Duration::from_millis(150);
const PROBE_EVERY_UNTUNED: Duration = Duration::from_millis(500);
const PROBE_EVERY_TUNED: Duration = Duration::from_secs(2);
/// What a peer announces is looked at for so long: it says all of it twice meanwhile.
const CLAIMS_PERIOD: Duration = Duration::from_secs(1);
/// Part of the window by which what is announced may go back: a source that repairs what somebody lacks announces that alone.
const BACK_DIVISOR: u64 = 16;

/// The newest chunks that a peer announced.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claims {
    /// Since a chunk was asked for by itself.
    fresh: Option<u64>,
    /// In this period, which began then, and in the one before.
    newest: Option<u64>,
    since: Option<Instant>,
    before: Option<u64>,
    /// When it was asked for a chunk by itself.
    probed_at: Option<Instant>,
}

impl Claims {
    fn heard(&mut self, announced: &Range<u64>) {
        let newest = announced.end.checked_sub(1).filter(|_| !announced.is_empty());
        (self.fresh, self.newest) = (self.fresh.max(newest), self.newest.max(newest));
    }

    /// Whether what is announced went back by more than so much: all of it is said again in each period, and of one stream it never does.
    fn went_back(&mut self, now: Instant, chunks_max: u64) -> bool {
        let since = *self.since.get_or_insert(now);
        if self.newest.is_none() || now.saturating_duration_since(since) < CLAIMS_PERIOD {
            return false;
        }
        let went_back = self.newest.map(|newest| newest.saturating_add(chunks_max)) < self.before;
        *self = Self { before: self.newest.take(), since: Some(now), ..*self };
        went_back
    }
}

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// What a peer announces, cut to what there can be.
    pub(super) fn live_range(&mut self, id: ChannelId, range: &Range<u64>) -> Range<u64> {
        let (Some(live), Some(channel)) = (&self.live, self.channels.get_mut(&id)) else { return range.clone() };
        channel.live.claims.heard(range);
        if !channel.live.is_tuned {
            // It may be asked for a chunk by itself.
            channel.live.has_news |= live.proofs().is_shown_by_chunks();
            return 0..0;
        }
        let heeded = live.proofs().heeded(range, live.window);
        let floor = match channel.live.window {
            Some(DiscardWindow::Last(chunks)) => live.edge().saturating_sub(chunks).max(live.floor),
            _ => live.floor,
        };
        heeded.start.max(floor)..heeded.end
    }

    /// A peer acknowledges chunks that are on their way to it: it takes what is of this stream.
    pub(super) fn takes_stream(&mut self, id: ChannelId, chunks: &Range<u64>) {
        let (Some(live), Some(channel)) = (&self.live, self.channels.get_mut(&id)) else { return };
        if live.proofs().is_shown_by_chunks() && !channel.live.is_tuned {
            channel.live.is_tuned = channel.inflight.next_run(chunks.start).is_some_and(|run| run.start < chunks.end);
        }
    }

    /// Whether a chunk that is here came from another stream, by the signature that came with it.
    pub(super) fn is_of_another_stream(&mut self, id: ChannelId, chunk: u64) -> bool {
        let (Some(live), Some(channel)) = (&self.live, self.channels.get_mut(&id)) else { return false };
        let is_same = live.proofs().is_same(&channel.offers, chunk);
        if is_same == Some(true) && !live.is_source() {
            channel.live.shows_chunk(chunk, &mut channel.has);
        }
        is_same == Some(false)
    }

    /// Asks a peer for the newest chunk that it announces, by itself, where nothing else tells what that is of.
    pub(super) fn probe(&mut self, now: Instant, id: ChannelId) {
        let (Some(live), Some(channel)) = (&self.live, self.channels.get_mut(&id)) else { return };
        if live.proofs().is_shown_by_chunks() && channel.live.claims.went_back(now, live.window / BACK_DIVISOR) {
            channel.live.is_tuned = false;
            channel.has = Binmap::new();
        }
        let Some(chunk) = channel.live.claims.fresh else { return };
        let is_tuned = channel.live.is_tuned;
        let (is_probed, start) = match live.is_source() {
            false => (live.proofs().is_probed(chunk, is_tuned, live.start, live.window), live.start),
            // What a source has not made is strange to it. Once it knows of a twin it needs to know no more.
            true => {
                let is_strange = live.proofs().is_probed(chunk, true, Some(0), 0);
                (is_strange && live.edge() > 0 && !live.is_twin_told, Some(0))
            }
        };
        if !is_probed {
            channel.live.claims.fresh = None;
            return;
        }
        let every = match start {
            None => PROBE_EVERY.max(channel.rtt * 2),
            Some(_) if !is_tuned && !live.is_source() => PROBE_EVERY_UNTUNED.max(channel.rtt * 2),
            Some(_) => PROBE_EVERY_TUNED,
        };
        let is_recent = channel.live.claims.probed_at.is_some_and(|at| now.saturating_duration_since(at) < every);
        let is_ready = channel.proven && channel.codec.is_some() && !channel.chokes_us && channel.is_used;
        let Some(bin) = Bin::chunk(chunk).filter(|_| is_ready && !is_recent && !self.is_paused) else { return };
        channel.live.claims.fresh = None;
        channel.live.claims.probed_at = Some(now);
        if channel.say_all(&[Message::Request(bin.range())], &mut self.out) {
            channel.control.sent(now, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_that_go_back_are_of_another_stream() {
        let start = Instant::now();
        let at = |periods: u32| start + CLAIMS_PERIOD * periods;
        for (second, went_back) in [(100, false), (90, false), (89, true), (3, true)] {
            let mut claims = Claims::default();
            assert!(!claims.went_back(at(0), 10));
            claims.heard(&(0..101));
            claims.heard(&(20..30));
            assert!(!claims.went_back(at(1), 10));
            // Who says nothing says nothing of that.
            assert!(!claims.went_back(at(5), 10));
            claims.heard(&(0..second + 1));
            claims.heard(&(0..0));
            assert_eq!(claims.went_back(at(6), 10), went_back, "chunk {second}");
        }
    }
}
