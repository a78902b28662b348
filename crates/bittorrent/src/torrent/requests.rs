//! What we ask for, and when.

use std::time::{Duration, Instant};

use anabranch_content::geometry::{BLOCK_LEN, Geometry};

use super::config::{
    ALLOWED_FAST_CHATTER, ALLOWED_FAST_MAX, REJECTED_MAX, REJECTED_PAUSE, TIMEOUT_REST, TIMEOUT_REST_MAX,
    UNSOLICITED_MAX,
};
use super::conn::Conn;
use super::ledger::{Ledger, TakenBack};
use super::{Arriving, PathState, PeerMisbehaved, REQUEST_BOUNDARY, TICK, Torrent};
use crate::ConnId;
use crate::picker::{BlockRef, Pace, Picker};
use crate::requests::{Requests, blocks_of};
use crate::wire::BlockRange;

/// Requests are topped up once this part of the target is free, so that picking happens in runs, not block by block.
const TOP_UP_DIVISOR: u64 = 8;
/// Longest run of blocks picked at once: bounds the work of one call.
const PICK_MAX: usize = 4096;

impl Torrent {
    /// Bytes of buffers that requests may still claim, over all connections. The driver sets it before it feeds bytes.
    pub fn set_room(&mut self, bytes: u64) {
        self.room_bytes = bytes;
    }

    /// The requests on their way over `id`, in the order in which they were sent: where its next bytes likely belong.
    pub fn expected(&self, id: ConnId) -> impl Iterator<Item = BlockRange> + '_ {
        self.conns.get(&id).into_iter().flat_map(|conn| conn.requests.iter())
    }

    /// The header of a block arrived: says whether its payload is wanted. To be finished by [`Torrent::block_finished`].
    pub fn block_started(&mut self, id: ConnId, range: BlockRange, now: Instant) -> Result<Arriving, PeerMisbehaved> {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &self.content) else {
            return Ok(Requests::default().start(id, range, false));
        };
        if conn.closing {
            return Ok(conn.requests.start(id, range, false));
        }
        conn.last_received = now;
        conn.last_progress = now;
        let asked = conn.requests.knows(range);
        if !asked {
            conn.unsolicited += 1;
            if conn.unsolicited > UNSOLICITED_MAX {
                return Err(PeerMisbehaved::Unsolicited);
            }
        }
        let wanted = asked && content.picker.as_ref().is_some_and(|picker| accepts(picker, id, range));
        Ok(conn.requests.start(id, range, wanted))
    }

    /// Payload arrived, of a block that is not whole yet or just became so.
    pub fn payload_received(&mut self, id: ConnId, bytes: u64, now: Instant) {
        self.stats.downloaded_bytes += bytes;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.last_received = now;
        conn.last_progress = now;
        conn.waiting_since = conn.waiting_since.map(|_| now);
        conn.pipeline.on_payload(bytes, now);
        conn.downloaded_bytes += bytes;
        conn.down.add(bytes, now);
        conn.recent.add(bytes, now);
        self.down.add(bytes, now);
    }

    /// The transport's own measure of a connection's path: keeps a queue at the peer from being taken for distance.
    pub fn set_path_rtt(&mut self, id: ConnId, rtt: Duration) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.pipeline.set_path_rtt(rtt);
        }
    }

    /// Whatever came over `id` was left lying until now, for a limit on what we receive: that silence is not the peer's.
    pub fn receiving_again(&mut self, id: ConnId, now: Instant) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.pipeline.on_own_pause(now);
        }
    }

    /// Asks for more where there is room: to be called when a run of received bytes was dealt with.
    pub fn fill_requests(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.has_room(now)) else { return };
        let path = self.path_pace(id, conn, now);
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        let Some(picker) = &mut content.picker else { return };
        if self.paused || (conn.path_state == PathState::Standby && !picker.endgame()) {
            return;
        }
        let target = conn.pipeline.target_bytes();
        let free = target.saturating_sub(conn.requests.bytes());
        let slots = (conn.reqq as usize).saturating_sub(conn.requests.len());
        // In the endgame blocks are asked for one by one: a long request is lost whole when another peer is first with a
        // part of it.
        let longest = if picker.endgame() { BLOCK_LEN } else { conn.request_len_max };
        let block_len = u64::from(BLOCK_LEN);
        let blocks = free.div_ceil(block_len).min(self.room_bytes / block_len);
        let blocks = blocks.min(slots as u64 * u64::from(longest / BLOCK_LEN)).min(PICK_MAX as u64) as usize;
        if blocks == 0 {
            return;
        }
        let rate_bytes = conn.down.bytes_per_sec(now);
        let is_busy = !conn.requests.is_empty();
        let pace = Pace { rate_bytes, path, is_near: conn.is_near, peer: Some(conn.peer), is_busy };
        let Some(bits) = conn.bits() else { return };
        let only = conn.choking_us.then_some(conn.allowed_fast.as_slice());
        let mut picked = std::mem::take(&mut self.picked);
        picker.set_full_peers(self.seeds);
        picker.pick(id, bits, only, blocks, pace, now, &mut picked);
        let geometry = &content.info.geometry;
        let mut runs = Runs { blocks: &picked, geometry, longest };
        if !picked.is_empty() && conn.requests.is_empty() {
            conn.last_progress = now;
            conn.waiting_since.get_or_insert(now);
        }
        let before = self.requested_bytes;
        let mut ledger = Ledger { id, conn, picker: Some(picker), requested_bytes: &mut self.requested_bytes };
        runs.by_ref().take(slots).for_each(|run| ledger.ask(run, now));
        // More than fits the peer's queue, cut into as many requests as it is.
        runs.for_each(|run| ledger.hand_back(run));
        picked.clear();
        self.picked = picked;
        let spent = self.requested_bytes - before;
        if spent > 0 {
            self.room_bytes = self.room_bytes.saturating_sub(spent);
            self.touch(id);
        }
    }

    pub(super) fn fill_all_requests(&mut self, now: Instant) {
        self.filled_all_at = Some(now);
        self.fill_where(now, |_| true);
    }

    /// The same because of a peer's message, of which there may be thousands in a second: at once, but where that was done
    /// within a tick, by the next one.
    pub(super) fn fill_all_soon(&mut self, now: Instant) {
        if self.filled_all_at.is_none_or(|at| now.saturating_duration_since(at) >= TICK) {
            self.fill_all_requests(now);
        }
    }

    /// Whoever has the piece `first.1`, which is needed at `first.0`, is asked for it before what is needed later, or at no time: requests for
    /// that are taken back. Should they be answered all the same, the blocks are still welcome.
    pub(super) fn make_way(&mut self, first: (Instant, u32)) {
        let has =
            |conn: &Conn| conn.is_usable() && !conn.choking_us && conn.bits().is_some_and(|bits| bits.get(first.1));
        let ids: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| has(conn)).map(|(id, _)| *id).collect();
        for id in ids {
            let Some(mut ledger) = self.ledger(id) else { continue };
            for at in (0..ledger.conn.requests.len()).rev() {
                let Some(range) = ledger.conn.requests.get(at) else { continue };
                let Some(picker) = &ledger.picker else { return };
                let is_later = picker.deadline(range.piece).is_none_or(|due| (due, range.piece) > first);
                if is_later && !ledger.conn.requests.is_arriving(range) {
                    ledger.take_back(at, TakenBack::Cancelled);
                }
            }
            self.touch(id);
        }
    }

    /// Room came free: connections that ran dry for lack of it ask again.
    pub fn fill_starved(&mut self, now: Instant) {
        self.fill_where(now, |conn| conn.requests.bytes() < conn.pipeline.target_bytes() / 2);
    }

    /// Whoever is asked first gets what is to be had, so the first is another one every time: otherwise all of a swarm would
    /// ask the peers that came first, and leave the others idle.
    fn fill_where(&mut self, now: Instant, which: impl Fn(&Conn) -> bool) {
        let able = |conn: &Conn| conn.may_request(now) && which(conn);
        let mut ids: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| able(conn)).map(|(id, _)| *id).collect();
        self.rng.shuffle(&mut ids);
        ids.into_iter().for_each(|id| self.fill_requests(id, now));
    }

    /// BEP 3: a choke throws our requests away. With BEP 6 each is rejected by name instead.
    pub(super) fn on_choke(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.choking_us = true;
        conn.choked_us_at = Some(now);
        conn.waiting_since = None;
        let peer = conn.peer;
        self.forget_suggested(peer);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.fast && !conn.requests.is_empty() {
            self.give_up_requests(id);
            self.fill_all_soon(now);
        }
    }

    /// BEP 3, "unchoke".
    pub(super) fn on_unchoke(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.choking_us = false;
        // Who chokes and unchokes by turns is asked by the next tick: each of these few bytes would cost a pipeline of requests.
        if conn.choked_us_at.is_none_or(|at| now.saturating_duration_since(at) >= TICK) {
            self.fill_requests(id, now);
        }
    }

    /// BEP 6, "reject request".
    pub(super) fn on_reject(&mut self, id: ConnId, range: BlockRange, now: Instant) -> Result<(), PeerMisbehaved> {
        let Some(mut ledger) = self.ledger(id) else { return Ok(()) };
        // The answer to a cancel comes before that to the same request made anew.
        if ledger.conn.requests.forget_late(range, true) {
            return Ok(());
        }
        let Some(at) = ledger.conn.requests.position(range) else {
            return if ledger.conn.requests.forget_late(range, false) { Ok(()) } else { ledger.conn.chat(1) };
        };
        ledger.take_back(at, TakenBack::Refused);
        let conn = ledger.conn;
        conn.allowed_fast.retain(|piece| *piece != range.piece);
        if !conn.choking_us {
            // Without this, a peer that rejects all it is asked would be asked again at once, for ever.
            conn.rejected += 1;
            if conn.rejected >= REJECTED_MAX {
                conn.rejected = 0;
                conn.resting_until = Some(now + REJECTED_PAUSE);
            }
        }
        // After the last one of a run, that is; should it stay away, the next tick does the same.
        if conn.requests.is_empty() {
            conn.waiting_since = None;
            self.fill_requests(id, now);
            self.fill_all_soon(now);
        }
        Ok(())
    }

    /// BEP 6, "allowed fast".
    pub(super) fn on_allowed_fast(&mut self, id: ConnId, piece: u32, now: Instant) -> Result<(), PeerMisbehaved> {
        let pieces = self.piece_count();
        let known = self.content.is_some();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        if known && piece >= pieces {
            return Err(PeerMisbehaved::NoSuchPiece { piece, pieces });
        }
        if conn.allowed_fast.len() < ALLOWED_FAST_MAX && !conn.allowed_fast.contains(&piece) {
            conn.allowed_fast.push(piece);
            self.fill_requests(id, now);
            return Ok(());
        }
        conn.chat(ALLOWED_FAST_CHATTER)
    }

    /// Takes back the requests of a peer that does not answer in time, so that others are asked.
    pub(super) fn check_requests(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.requests.is_empty() {
            // Something may have become pickable: a piece that failed, a peer that left.
            self.fill_requests(id, now);
            return;
        }
        if now.saturating_duration_since(conn.last_progress) < conn.pipeline.timeout() {
            self.fill_requests(id, now);
            return;
        }
        conn.pipeline.on_timeout();
        conn.last_progress = now;
        let peer = conn.peer;
        // Who lets time run out again and again holds up blocks that others would bring: it is asked ever more seldom.
        let rest = TIMEOUT_REST.saturating_mul(1 << conn.timeouts.min(16)).min(TIMEOUT_REST_MAX);
        conn.timeouts += 1;
        conn.resting_until = Some(now + rest);
        self.forget_suggested(peer);
        match self.siblings(id).is_empty() {
            true => self.give_up_requests(id),
            false => self.withdraw_requests(id, 0),
        }
        self.fill_all_requests(now);
    }

    /// All requests of `id` go back to the picker; should they be answered after all, the blocks are still welcome.
    pub(super) fn give_up_requests(&mut self, id: ConnId) {
        if let Some(mut ledger) = self.ledger(id) {
            ledger.give_up_all();
        }
    }
}

impl Conn {
    /// Whether anything can be asked of the peer at all.
    fn may_request(&self, now: Instant) -> bool {
        let open = !self.choking_us || !self.allowed_fast.is_empty();
        self.interested && self.is_usable() && open && self.resting_until.is_none_or(|until| now >= until)
    }

    /// Whether more can be asked, enough to be worth a look.
    fn has_room(&self, now: Instant) -> bool {
        let target = self.pipeline.target_bytes();
        let free = target.saturating_sub(self.requests.bytes());
        self.may_request(now) && free >= (target / TOP_UP_DIVISOR).max(1) && self.requests.len() < self.reqq as usize
    }
}

/// Joins picked blocks that lie side by side into requests of `longest` bytes at most, none of them across a
/// [`REQUEST_BOUNDARY`].
struct Runs<'a> {
    blocks: &'a [BlockRef],
    geometry: &'a Geometry,
    longest: u32,
}

impl Iterator for Runs<'_> {
    type Item = BlockRange;

    fn next(&mut self) -> Option<BlockRange> {
        let range = |block: &BlockRef| {
            let len = self.geometry.block_len(block.piece, block.block);
            BlockRange { piece: block.piece, begin: block.block * BLOCK_LEN, len }
        };
        let (first, mut rest) = self.blocks.split_first()?;
        let mut run = range(first);
        while let Some((block, behind)) = rest.split_first() {
            let next = range(block);
            let joins = run.piece == next.piece
                && run.end() == u64::from(next.begin)
                && run.len + next.len <= self.longest
                && !next.begin.is_multiple_of(REQUEST_BOUNDARY);
            if !joins {
                break;
            }
            run.len += next.len;
            rest = behind;
        }
        self.blocks = rest;
        Some(run)
    }
}

/// Whether every block of `range` would count if it came from `id` now.
pub(super) fn accepts(picker: &Picker, id: ConnId, range: BlockRange) -> bool {
    blocks_of(range).all(|block| picker.accepts(id, block))
}
