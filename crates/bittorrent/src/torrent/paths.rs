//! Several connections of one peer, each over a path of its own.
//!
//! Every path has its own pipeline and its own requests, so a path's share follows from what it delivers. What is decided here
//! is what one path has to know of the others: when a block asked for now would come, and how much they bring until then.
//! From that the picker leaves to the faster paths what is needed sooner, and lets a slow one fetch what is needed when it
//! will be there, or, where the others are done by then, nothing ([`PathPace`]). What was asked of a path that fails or turns
//! slow is asked of the others: at once where the driver says so, else as soon as it shows.

use std::time::{Duration, Instant};

use anabranch_paths::PathId;

use super::conn::{Conn, RECENT_WINDOW};
use super::ledger::{Ledger, TakenBack};
use super::{ConnId, PathState, Torrent};
use crate::picker::PathPace;

/// Silence after which a path with requests under way is given up, while another path to the same peer delivers: more than
/// one lost packet costs a transport (a retransmission after 200 ms, and again after 400), less than a user notices.
const SILENCE_MIN: Duration = Duration::from_millis(750);
/// Round trips of silence granted beyond, for paths that are long.
const SILENCE_ROUND_TRIPS: u32 = 4;
/// What a path has been asked for should be here in two round trips and this; its own queue and ours take as much.
const QUEUE_TIME: Duration = Duration::from_millis(150);
/// A path whose queue takes longer than this many times the above has turned slow.
const QUEUE_EXCESS: u32 = 3;

impl Torrent {
    /// Says what becomes of the path of `id`. A path that is [`PathState::Down`] loses its requests to the peer's other paths,
    /// and other peers, at once; what it delivers after all is still welcome. When it is [`PathState::Active`] again, it
    /// starts at half of what it was.
    pub fn set_path_state(&mut self, id: ConnId, state: PathState, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let before = std::mem::replace(&mut conn.path_state, state);
        match state {
            _ if before == state => {}
            PathState::Down => {
                conn.waiting_since = None;
                self.tell_again(id);
                self.withdraw_requests(id, 0);
                self.fill_all_requests(now);
            }
            PathState::Active | PathState::Standby => {
                if before == PathState::Down {
                    conn.pipeline.restart();
                }
                self.fill_requests(id, now);
            }
        }
    }

    /// Says which path the connection `id` is over, now that more is known of it than when it was opened.
    pub fn name_path(&mut self, id: ConnId, path: PathId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.path = Some(path);
        }
    }

    /// What the picker needs to know of `id` beside the peer's other paths; `None` for a peer's only connection.
    pub(super) fn path_pace(&self, id: ConnId, conn: &Conn, now: Instant) -> Option<PathPace> {
        let peer = self.peers.get(&conn.peer)?;
        if peer.conns.len() < 2 {
            return None;
        }
        let own = conn.arrival_in();
        let mut lead_bytes = 0;
        for other in peer.conns.iter().filter(|other| **other != id).filter_map(|other| self.conns.get(other)) {
            let sooner = own.saturating_sub(other.arrival_in());
            if !sooner.is_zero() && other.is_moving(now) {
                lead_bytes += (other.pipeline.rate_bytes() as f64 * sooner.as_secs_f64()) as u64;
            }
        }
        Some(PathPace { lead_bytes, arrives_at: now + own })
    }

    /// Once a tick: notices that a path of several stopped or turned slow.
    pub(super) fn check_path(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get(&id).filter(|conn| !conn.requests.is_empty()) else { return };
        let others = || self.live_paths(conn.peer).filter(|(other, _)| *other != id).map(|(_, other)| other);
        if others().next().is_none() {
            return;
        }
        let silent = now.saturating_duration_since(conn.last_progress) > conn.silence_max();
        // A peer that stopped altogether is none of a path's business.
        let elsewhere = others().any(|other| other.last_progress > conn.last_progress + SILENCE_MIN / 2);
        if silent && elsewhere {
            let Some(conn) = self.conns.get_mut(&id) else { return };
            conn.pipeline.on_timeout();
            conn.last_progress = now;
            let peer = conn.peer;
            self.forget_suggested(peer);
            self.withdraw_requests(id, 0);
            self.fill_all_requests(now);
            return;
        }
        let settled = now.saturating_duration_since(conn.busy_since) > RECENT_WINDOW + conn.pipeline.round_trip();
        let Some(conn) = self.conns.get_mut(&id).filter(|_| settled) else { return };
        let rate = conn.recent.bytes_per_sec(now);
        let queue_time = conn.pipeline.round_trip() * 2 + QUEUE_TIME;
        let due = (rate as f64 * queue_time.as_secs_f64()) as u64;
        if rate > 0 && conn.requests.bytes() > due.saturating_mul(u64::from(QUEUE_EXCESS)) && conn.requests.len() > 1 {
            conn.pipeline.slow_to(rate);
            self.withdraw_requests(id, due);
            self.fill_all_requests(now);
        }
    }

    /// Takes back the newest requests of `id` until `keep_bytes` are left. They are cancelled; should they be answered all the
    /// same, the blocks are still welcome. Those that are arriving stay, unless nothing is kept.
    pub(super) fn withdraw_requests(&mut self, id: ConnId, keep_bytes: u64) {
        let Some(mut ledger) = self.ledger(id).filter(Ledger::is_fetching) else { return };
        while let Some(last) = ledger.conn.requests.iter().next_back() {
            let requests = &ledger.conn.requests;
            let enough = requests.bytes() - u64::from(last.len) < keep_bytes;
            if keep_bytes > 0 && (enough || requests.is_arriving(last)) {
                break;
            }
            let at = requests.len() - 1;
            ledger.take_back(at, TakenBack::Cancelled);
        }
        self.touch(id);
    }
}

impl Conn {
    /// Whether it may be expected that what is sent arrives.
    pub(super) fn is_usable(&self) -> bool {
        !self.closing && self.path_state != PathState::Down
    }

    /// The time after which a block that is asked for now will be here.
    fn arrival_in(&self) -> Duration {
        self.pipeline.arrival_in(self.requests.bytes())
    }

    fn silence_max(&self) -> Duration {
        SILENCE_MIN + self.pipeline.round_trip() * SILENCE_ROUND_TRIPS
    }

    /// Whether what was asked for over it can be counted on.
    fn is_moving(&self, now: Instant) -> bool {
        let silence = now.saturating_duration_since(self.last_progress);
        self.is_usable() && !self.pipeline.is_stalled() && !self.requests.is_empty() && silence < self.silence_max()
    }
}
