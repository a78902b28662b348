//! Whom a content serves: as many peers at once as there are upload slots, chosen as in BitTorrent ([`Choker`]).
//!
//! PPSPP has no word for being interested: who lacks something that is here is. Its channels begin unchoked (RFC 7574 §3.9), so one for
//! which there is no slot is choked as soon as it is open. Of a live stream the source chooses whom it gives what, and viewers have few
//! neighbours: nobody is choked there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anabranch_bittorrent::choker::{Change, Choker, Config, Peer, SNUBBED_AFTER, UNUSED_AFTER};
use anabranch_bittorrent::{ConnId, PeerKey};

use super::Content;
use crate::ppspp::path_table::PathAddress;

/// Between two looks at who is interested.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// One channel, as far as choking goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub conn: ConnId,
    pub peer: PeerKey,
    /// It lacks something that is here.
    pub is_interested: bool,
    pub download_rate_bytes: u64,
    pub sent_bytes: u64,
    /// When it asked for something last; it still waits for some of that.
    pub asked_us_at: Option<Instant>,
    pub wants: bool,
    /// Since when it lets our requests lie.
    pub owes_since: Option<Instant>,
    pub opened: Instant,
    pub progress_permille: u16,
}

/// Who has a slot.
#[derive(Debug)]
pub(super) struct Choking {
    choker: Choker,
    look_at: Option<Instant>,
    /// Channels that are interested, and since when those of them that may ask may.
    interested: BTreeMap<ConnId, PeerKey>,
    unchoked: BTreeMap<ConnId, Instant>,
}

impl Choking {
    pub(super) fn new(config: Config, seed: u64) -> Self {
        let (interested, unchoked) = Default::default();
        Self { choker: Choker::new(config, seed), look_at: None, interested, unchoked }
    }

    /// A channel is open, and interested until it is known not to be. Whether it is to be choked.
    pub(super) fn opened(&mut self, conn: ConnId, peer: PeerKey, now: Instant) -> bool {
        self.interested.insert(conn, peer);
        let has_slot = self.choker.on_interested(peer, conn, 0, now);
        if has_slot {
            self.unchoked.insert(conn, now);
        }
        !has_slot
    }

    /// A channel is closed.
    pub(super) fn closed(&mut self, conn: ConnId, now: Instant) {
        self.unchoked.remove(&conn);
        if let Some(peer) = self.interested.remove(&conn) {
            self.choker.on_gone(peer, conn, now);
        }
    }

    /// When there is something to look at.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.look_at.is_none_or(|at| now >= at)
    }

    /// Looks at all channels; `is_complete`: nothing is wanted of them. Whoever is to be choked, or no more.
    pub(super) fn look(
        &mut self,
        candidates: &[Candidate],
        (is_complete, upload_rate_bytes): (bool, u64),
        now: Instant,
    ) -> Vec<Change> {
        self.look_at = Some(now + LOOK_EVERY);
        let mut changes = Vec::new();
        for candidate in candidates {
            let (conn, peer) = (candidate.conn, candidate.peer);
            match (candidate.is_interested, self.interested.contains_key(&conn)) {
                (true, false) => {
                    self.interested.insert(conn, peer);
                    let choke = !self.choker.on_interested(peer, conn, candidate.sent_bytes, now);
                    changes.push(Change { conn, choke });
                }
                // It has a word for us no more: as it was, and without a slot.
                (false, true) => self.closed(conn, now),
                _ => {}
            }
        }
        let unchoked = &self.unchoked;
        let is_idle = |candidate: &Candidate| {
            let since = unchoked.get(&candidate.conn).map(|since| candidate.asked_us_at.max(Some(*since)));
            !candidate.wants
                && since.flatten().is_some_and(|since| now.saturating_duration_since(since) >= UNUSED_AFTER)
        };
        if candidates.iter().any(|candidate| self.interested.contains_key(&candidate.conn) && is_idle(candidate)) {
            self.choker.on_unused(now);
        }
        if self.choker.deadline().is_some_and(|at| now >= at) {
            let mut peers: BTreeMap<PeerKey, Peer> = BTreeMap::new();
            for candidate in candidates.iter().filter(|candidate| candidate.is_interested) {
                let is_snubbing =
                    candidate.owes_since.is_some_and(|at| now.saturating_duration_since(at) >= SNUBBED_AFTER);
                let peer = peers.entry(candidate.peer).or_insert_with(|| Peer {
                    key: candidate.peer,
                    conns: Vec::new(),
                    download_rate_bytes: 0,
                    sent_bytes: 0,
                    snubbed: true,
                    idle: true,
                    connected_at: candidate.opened,
                    progress_permille: 0,
                });
                peer.conns.push(candidate.conn);
                peer.download_rate_bytes += candidate.download_rate_bytes;
                peer.sent_bytes += candidate.sent_bytes;
                peer.snubbed &= is_snubbing;
                peer.idle &= is_idle(candidate);
                peer.connected_at = peer.connected_at.min(candidate.opened);
                peer.progress_permille = peer.progress_permille.max(candidate.progress_permille);
            }
            let peers: Vec<Peer> = peers.into_values().collect();
            self.choker.round(&peers, is_complete, upload_rate_bytes, now, &mut changes);
        }
        for change in &changes {
            if change.choke {
                self.unchoked.remove(&change.conn);
            } else {
                self.unchoked.entry(change.conn).or_insert(now);
            }
        }
        changes
    }
}

impl Content {
    /// A channel is open: where there is no slot for it, it is choked.
    pub(super) fn opened_unchoked(&mut self, way: &PathAddress, key: PeerKey, now: Instant) {
        if self.live.is_none()
            && let Some(conn) = self.paths.conn_of(way)
            && self.choking.opened(conn, key, now)
        {
            self.core.choke(now, way, true);
        }
    }

    /// Chokes and unchokes, where it is time to look.
    pub(super) fn look_whom_to_serve(&mut self, now: Instant) {
        if self.live.is_some() || self.conns.is_empty() || !self.choking.is_due(now) {
            return;
        }
        let chunks = self.core.chunk_count().unwrap_or(u64::MAX).max(1);
        let mut candidates = Vec::with_capacity(self.conns.len());
        let mut ways: BTreeMap<ConnId, PathAddress> = BTreeMap::new();
        for stats in self.core.peer_stats() {
            let (way, id) = (*stats.peer, self.paths.conn_of(stats.peer));
            let (Some(id), Some(conn)) = (id, self.conns.get_mut(&way)) else { continue };
            conn.rates.moved((stats.downloaded_bytes, stats.uploaded_bytes), now);
            ways.insert(id, way);
            candidates.push(Candidate {
                conn: id,
                peer: conn.key,
                is_interested: stats.lacks,
                download_rate_bytes: conn.rates.bytes_per_sec(now).0,
                sent_bytes: stats.uploaded_bytes,
                asked_us_at: stats.asked_us_at,
                wants: stats.wants,
                owes_since: (stats.asked > 0).then_some(stats.heard_at),
                opened: conn.opened,
                progress_permille: (u128::from(stats.chunks) * 1000 / u128::from(chunks)).min(1000) as u16,
            });
        }
        let (_, upload_rate_bytes) = self.rates.bytes_per_sec(now);
        let changes = self.choking.look(&candidates, (self.core.is_complete(), upload_rate_bytes), now);
        for change in changes {
            if let Some(way) = ways.get(&change.conn) {
                self.core.choke(now, way, change.choke);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_bittorrent::choker::Slots;

    /// A content with two slots and those who fetch from it, each as fast as the others while it may.
    struct World {
        choking: Choking,
        candidates: Vec<Candidate>,
        choked: Vec<bool>,
        is_complete: bool,
        now: Instant,
    }

    impl World {
        fn new(is_complete: bool) -> Self {
            let config = Config { slots: Slots::Fixed(2), seed_quantum_bytes: 1 << 20, ..Config::default() };
            let (candidates, choked) = Default::default();
            Self { choking: Choking::new(config, 7), candidates, choked, is_complete, now: Instant::now() }
        }

        fn comes(&mut self) -> usize {
            let number = self.candidates.len();
            let (conn, peer) = (ConnId(number as u32), PeerKey(number as u32));
            self.choked.push(self.choking.opened(conn, peer, self.now));
            self.candidates.push(Candidate {
                conn,
                peer,
                is_interested: true,
                download_rate_bytes: 0,
                sent_bytes: 0,
                asked_us_at: None,
                wants: false,
                owes_since: None,
                opened: self.now,
                progress_permille: 0,
            });
            number
        }

        /// Whoever may asks, but for `silent`; answers who was served.
        fn passes(&mut self, time: Duration, silent: Option<usize>) -> Vec<usize> {
            let mut served = vec![false; self.candidates.len()];
            let until = self.now + time;
            while self.now < until {
                for (number, candidate) in self.candidates.iter_mut().enumerate() {
                    if candidate.is_interested && !self.choked[number] && silent != Some(number) {
                        (candidate.asked_us_at, candidate.sent_bytes) =
                            (Some(self.now), candidate.sent_bytes + 100_000);
                        served[number] = true;
                    }
                }
                let changes = self.choking.look(&self.candidates, (self.is_complete, 800_000), self.now);
                changes.iter().for_each(|change| self.choked[change.conn.0 as usize] = change.choke);
                let unchoked = self
                    .candidates
                    .iter()
                    .zip(&self.choked)
                    .filter(|(candidate, choked)| candidate.is_interested && !**choked);
                assert!(unchoked.count() <= 2);
                self.now += LOOK_EVERY;
            }
            (0..served.len()).filter(|number| served[*number]).collect()
        }
    }

    #[test]
    fn who_comes_first_has_a_slot_and_the_others_wait_for_their_turn() {
        let mut world = World::new(true);
        (0..6).for_each(|_| _ = world.comes());
        assert_eq!(world.choked, [false, false, true, true, true, true]);
        assert_eq!(world.passes(Duration::from_secs(9), None), [0, 1]);
        assert_eq!(world.passes(Duration::from_secs(180), None), [0, 1, 2, 3, 4, 5], "everybody has its turn");
    }

    #[test]
    fn who_lacks_nothing_or_leaves_makes_room_at_once() {
        let mut world = World::new(true);
        (0..4).for_each(|_| _ = world.comes());
        world.passes(Duration::from_secs(1), None);
        world.candidates[0].is_interested = false;
        world.choking.closed(ConnId(1), world.now);
        world.candidates[1].is_interested = false;
        assert_eq!(world.passes(Duration::from_secs(3), None), [2, 3]);
        // It may ask again, once there is something new; its turn comes.
        world.candidates[0].is_interested = true;
        assert!(world.passes(Duration::from_secs(120), None).contains(&0));
    }

    #[test]
    fn who_asks_for_nothing_gives_way() {
        let mut world = World::new(true);
        (0..3).for_each(|_| _ = world.comes());
        assert_eq!(world.passes(UNUSED_AFTER - LOOK_EVERY, Some(0)), [1]);
        assert_eq!(world.passes(Duration::from_secs(5), Some(0)), [1, 2]);
    }

    #[test]
    fn who_gives_most_is_served_while_we_fetch() {
        let mut world = World::new(false);
        (0..5).for_each(|_| _ = world.comes());
        world.candidates[4].download_rate_bytes = 1 << 20;
        world.passes(Duration::from_secs(11), None);
        let times = (0..20).filter(|_| world.passes(Duration::from_secs(10), None).contains(&4)).count();
        assert_eq!(times, 20);
        // Until it lets our requests lie.
        world.candidates[4].owes_since = Some(world.now);
        world.passes(SNUBBED_AFTER + Duration::from_secs(20), None);
        assert!((0..20).any(|_| !world.passes(Duration::from_secs(10), None).contains(&4)));
    }
}
