//! Several channels at once, over the paths to one peer or to several: which brings a chunk soonest, and what becomes of that which was
//! asked for over one that fell silent.
//!
//! Requests last for about a second on every channel (Algorithm 1 of the libswift paper), so what is asked for next comes about as soon
//! over each, as long as round trips are short beside that. Where they are not, or a channel is new, the difference is made up here:
//! what is wanted in order is left to the faster channels as far as they bring it before this one would.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::fetch::BINS_MAX;
use super::{PeerAddress, Swarm};
use crate::binmap::Binmap;
use crate::merkle::NodeStore;
use crate::wire::{ChannelId, Message};

/// What is played next: two of the pieces in which it is read.
const FRONT_BYTES: u64 = 512 * 1024;

/// How soon and how fast a channel brings what is asked for over it now.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Speed {
    delay: Duration,
    period: Duration,
}

/// Chunks that the `others` bring before a channel of this `delay` brings its first. The one of the least delay leaves nothing to
/// others, so nothing is left to nobody.
fn brought_before(delay: Duration, others: impl Iterator<Item = Speed>) -> u64 {
    let brought = |speed: Speed| {
        let ahead = delay.saturating_sub(speed.delay).as_nanos();
        u64::try_from(ahead / speed.period.as_nanos().max(1)).unwrap_or(u64::MAX)
    };
    others.map(brought).fold(0, u64::saturating_add)
}

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// Says whether anything may be asked for over the channel to `peer`: of several paths, some stand by, and some are down. What was
    /// asked for over one that may not be used is asked for over others at once.
    pub fn set_use(&mut self, peer: &P, is_used: bool, now: Instant) {
        let Some(id) = self.by_peer.get(peer).copied() else { return };
        let Some(channel) = self.channels.get_mut(&id).filter(|channel| channel.is_used != is_used) else { return };
        channel.is_used = is_used;
        if is_used {
            self.ask(now, id);
        } else {
            self.hand_over(now, id);
        }
    }

    /// Fetches these ranges of chunks before anything else, one after the other; none where the picker alone decides. What is needed next
    /// and was asked of nobody goes before all that was asked for already, about a second's worth: what of that is needed later, or not at
    /// all, is taken back from those who have it, and asked for again behind it.
    pub fn set_needed(&mut self, needed: Vec<Range<u64>>, now: Instant) {
        self.needed = needed;
        let front_len = (FRONT_BYTES / self.params.chunk_len().map_or(1, u64::from)).max(1);
        let ids: Vec<ChannelId> = self.channels.keys().copied().collect();
        for id in ids {
            let Some(channel) = self.channels.get(&id).filter(|channel| channel.is_used && !channel.chokes_us) else {
                continue;
            };
            let Some((at, next)) = self.next_needed(channel, front_len) else { continue };
            let mut later = Binmap::new();
            channel.asked.ranges().for_each(|run| later.insert_range(run));
            self.needed[..at].iter().for_each(|sooner| later.remove_range(sooner.clone()));
            later.remove_range(self.needed[at].start..next);
            if !later.is_empty() {
                self.take_back(now, id, &later);
                self.ask(now, id);
            }
        }
    }

    /// The first chunk that is needed, that the peer has and that was asked of nobody, among the first `len_max` that are needed; and in which of
    /// the ranges it is.
    fn next_needed(&self, channel: &Channel<P>, len_max: u64) -> Option<(usize, u64)> {
        let mut left = len_max;
        for (at, range) in self.needed.iter().enumerate() {
            let range = range.start..range.end.min(range.start.saturating_add(left));
            let next = Binmap::next_match(range.start, 1, &[&channel.has], &[&self.held, &self.requested]);
            if let Some(next) = next.filter(|next| next.start < range.end) {
                return Some((at, next.start));
            }
            left -= range.end - range.start;
            if left == 0 {
                break;
            }
        }
        None
    }

    /// How soon a chunk comes that is asked for over a channel now; `None` where nothing is, or nothing came yet.
    fn speed(&self, now: Instant, id: ChannelId, chunk: u64) -> Option<Speed> {
        let channel = self.channels.get(&id)?;
        let brings = channel.proven && channel.is_used && !channel.chokes_us && channel.allowance.down_bytes > 0;
        let period =
            channel.arrivals.period().filter(|_| brings && !channel.is_stalled(now) && channel.has.contains(chunk))?;
        Some(Speed { delay: channel.delay(), period })
    }

    /// Chunks from the first one that is wanted on that are left to faster channels.
    pub(super) fn left_to_others(&self, now: Instant, id: ChannelId) -> u64 {
        let Some(channel) = self.channels.get(&id).filter(|_| self.channels.len() > 1) else { return 0 };
        let in_order = || {
            let from = self.picker.in_order_from()?;
            Some(Binmap::next_match(from, 1, &[&channel.has], &[&self.held, &self.requested])?.start)
        };
        let first = self.next_needed(channel, u64::MAX).map(|(_, chunk)| chunk).or_else(in_order);
        let Some(first) = first else { return 0 };
        let others = self.channels.keys().filter(|other| **other != id);
        brought_before(channel.delay(), others.filter_map(|other| self.speed(now, *other, first)))
    }

    /// All that was asked for over a channel is wanted no more there, and asked for over others.
    fn hand_over(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get(&id).filter(|channel| !channel.asked.is_empty()) else { return };
        let mut asked = Binmap::new();
        channel.asked.ranges().for_each(|run| asked.insert_range(run));
        self.take_back(now, id, &asked);
        let others: Vec<ChannelId> = self.channels.keys().copied().filter(|other| *other != id).collect();
        others.into_iter().for_each(|other| self.ask(now, other));
    }

    /// Chunks that were asked for over a channel are wanted no more there: others are asked for them, or it is once more.
    pub(super) fn take_back(&mut self, now: Instant, id: ChannelId, chunks: &Binmap) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        for run in chunks.runs() {
            channel.asked.remove(&run, |_, _| ());
        }
        channel.asked_before.union_with(chunks);
        channel.asked_before.subtract(&self.held);
        self.requested.subtract(chunks);
        self.asked_count -= chunks.count();
        // The request may have arrived.
        let cancelled: Vec<Message<'_>> = chunks.bins().map(|bin| Message::Cancel(bin.range())).collect();
        for messages in cancelled.chunks(BINS_MAX) {
            if channel.say_all(messages, &mut self.out) {
                channel.control.sent(now, false);
            }
        }
    }

    /// Nothing comes over the channel, and others have what it owes: it is asked for there.
    pub(super) fn leave_silent(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get(&id).filter(|channel| !channel.asked.is_empty()) else { return };
        if now.saturating_duration_since(channel.heard_at) <= channel.silence() {
            return;
        }
        let brings = |other: &Channel<P>| {
            let can = other.proven && other.is_used && !other.chokes_us && !other.is_stalled(now);
            let has_of = |run: Range<u64>| other.has.next_set(run.start).is_some_and(|chunk| chunk < run.end);
            can && channel.asked.ranges().any(has_of)
        };
        let is_live = self.live.is_some();
        if self.channels.iter().any(|(other, channel)| *other != id && brings(channel)) {
            if let Some(channel) = self.channels.get_mut(&id) {
                channel.stall(now, is_live);
            }
            self.hand_over(now, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(delay_ms: u64, period_ms: u64) -> Speed {
        Speed { delay: Duration::from_millis(delay_ms), period: Duration::from_millis(period_ms) }
    }

    #[test]
    fn what_others_bring_sooner_is_left_to_them() {
        let ms = Duration::from_millis;
        assert_eq!(brought_before(ms(100), [].into_iter()), 0);
        assert_eq!(brought_before(ms(100), [speed(50, 10)].into_iter()), 5);
        assert_eq!(brought_before(ms(100), [speed(50, 10), speed(80, 20), speed(100, 1)].into_iter()), 6);
        // No division by a period of nothing.
        assert_eq!(brought_before(ms(100), [speed(0, 0), speed(0, 0)].into_iter()), 200_000_000);
        // Of two, one leaves nothing to the other.
        for (one, other) in [(speed(30, 7), speed(30, 7)), (speed(31, 7), speed(30, 900)), (speed(500, 1), speed(3, 2))]
        {
            let left = [brought_before(one.delay, [other].into_iter()), brought_before(other.delay, [one].into_iter())];
            assert!(left.contains(&0), "{one:?} {other:?}");
        }
    }
}
