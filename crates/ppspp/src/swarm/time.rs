//! What time brings: what is due, and what is late.

use std::time::{Duration, Instant};

use super::channel::{ASKED_MAX_ALONE, ASKED_MAX_LIVE, Channel};
use super::fetch::BINS_MAX;
use super::{PeerAddress, Swarm};
use crate::binmap::Binmap;
use crate::merkle::NodeStore;
use crate::state::Due;
use crate::wire::{ChannelId, Message};

/// Time between two looks at everything that has no exact time.
const TICK: Duration = Duration::from_millis(50);
/// Chunks of a live stream leave one by one, and a look costs as much as a chunk: what is due so soon after the last one waits for the next. It
/// leaves together then: [`Ledbat`](crate::ledbat::Ledbat) lets who looks late catch up with more than that.
const LOOK_EVERY_LIVE: Duration = Duration::from_millis(3);
/// How long a peer that opens a channel may take to name ours.
const PROOF_MAX: Duration = Duration::from_secs(5);
/// How long the first handshake is waited for, and the next ones each twice as long as the one before: nobody who comes to a live stream
/// waits for a second because a datagram was lost.
const OPEN_AGAIN: Duration = Duration::from_secs(1);
const OPEN_AGAIN_LIVE: Duration = Duration::from_millis(250);
/// How often a handshake that is not answered is sent.
const OPEN_TRIES: u32 = 4;

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// When to poll.
    pub fn deadline(&self) -> Instant {
        let due = self.channels.values().filter_map(|channel| channel.send_at(0)).min().filter(|_| !self.is_paused);
        let due = due.map(|due| if self.live.is_some() { due.max(self.looked_at + LOOK_EVERY_LIVE) } else { due });
        let news_at = self.is_news.then_some(self.news_at);
        [due, news_at].into_iter().flatten().fold(self.tick_at, Instant::min)
    }

    /// Time passed.
    pub fn poll(&mut self, now: Instant) {
        self.looked_at = now;
        let tick = now >= self.tick_at;
        if tick || self.is_news && now >= self.news_at {
            self.spread_news(now);
        }
        let due = |channel: &Channel<P>| tick || channel.send_at(0).is_some_and(|at| at <= now);
        let ids: Vec<ChannelId> = self.channels.iter().filter(|(_, c)| due(c)).map(|(id, _)| *id).collect();
        if tick {
            self.repair_all(now);
        }
        for id in ids {
            if tick {
                self.tick(now, id);
            }
            self.serve(now, id);
        }
        if tick {
            self.tick_at = now + TICK;
        }
    }

    /// What has no exact time.
    pub(super) fn tick(&mut self, now: Instant, id: ChannelId) {
        if self.close_silent(now, id) {
            return;
        }
        let needs_more = self.needs_neighbours();
        let open_again = if self.live.is_some() { OPEN_AGAIN_LIVE } else { OPEN_AGAIN };
        let Some(channel) = self.channels.get_mut(&id) else { return };
        if !channel.proven {
            // A handshake of ours is repeated; whoever opened to us repeats its own.
            let waited = now.saturating_duration_since(channel.opened_at);
            if channel.tries == 0 || channel.tries >= OPEN_TRIES {
                if waited >= PROOF_MAX {
                    self.close(id, false);
                }
            } else if waited >= open_again * (1 << (channel.tries - 1).min(3)) {
                channel.dialect = self.params.dialect_of_try(self.dialect, channel.tries);
                self.send_opening(now, id);
            }
            return;
        }
        if channel.lose_late(now) && self.live.is_none() {
            // So may announcements be lost, without which the peer may not know how to prove what it gets: no keep-alive repeats them while
            // chunks leave.
            channel.unsaid = self.have.clone();
            channel.unsaid.subtract(&channel.has);
        }
        channel.control.wanted(now, !channel.wants.is_empty() || !channel.inflight.is_empty());
        match channel.control.poll(now) {
            Some(Due::Close) => return self.close(id, true),
            Some(Due::KeepAlive) => {
                // Nobody acknowledges an announcement, and one that was lost would never be made good.
                let mut unknown = if self.live.is_none() { self.have.clone() } else { Binmap::new() };
                unknown.subtract(&channel.has);
                let said: Vec<Message<'_>> =
                    unknown.bins().take(BINS_MAX).map(|bin| Message::Have(bin.range())).collect();
                channel.say_all(&said, &mut self.out);
                channel.control.sent(now, false);
                channel.unchoke_again(now, true, &mut self.out);
            }
            None => channel.unchoke_again(now, false, &mut self.out),
        }
        channel.ask_pex(now, needs_more, &mut self.out);
        self.leave_silent(now, id);
        self.greet_silent(now, id);
        let asked_max = match (self.live.is_some(), self.is_only_one(now, id)) {
            (false, _) => None,
            (true, false) => Some(ASKED_MAX_LIVE),
            (true, true) => Some(ASKED_MAX_ALONE),
        };
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let overdue = channel.overdue(now, asked_max);
        self.take_back(now, id, &overdue);
        self.acknowledge(now, id);
        self.announce(now, id);
        self.ask(now, id);
    }
}
