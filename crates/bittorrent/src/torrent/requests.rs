//! What we ask for, and what becomes of it.

use std::time::Instant;

use anabranch_content::geometry::BLOCK_LEN;

use super::config::{ALLOWED_FAST_MAX, LATE_MAX, UNSOLICITED_MAX};
use super::conn::Outstanding;
use super::{Event, PeerMisbehaved, Placement, REQUEST_BOUNDARY, Torrent};
use crate::ConnId;
use crate::picker::{BlockRef, Received};
use crate::wire::{BlockRange, Message};

/// Requests are topped up once this part of the target is free, so that picking happens in runs, not block by block.
const TOP_UP_DIVISOR: u64 = 8;
/// Longest run of blocks picked at once: bounds the work of one call.
const PICK_MAX: usize = 4096;

impl Torrent {
    /// Bytes of buffers that requests may still claim, over all connections. The driver sets it before it feeds bytes.
    pub fn set_room(&mut self, bytes: u64) {
        self.room_bytes = bytes;
    }

    /// Bytes that we have asked for and that are not here yet.
    pub fn requested_bytes(&self) -> u64 {
        self.conns.values().map(|conn| conn.requested_bytes).sum()
    }

    /// The requests on their way over `id`, in the order in which they were sent: where its next bytes likely belong.
    pub fn expected(&self, id: ConnId) -> impl Iterator<Item = BlockRange> + '_ {
        self.conns.get(&id).into_iter().flat_map(|conn| conn.requests.iter().map(|request| request.range))
    }

    /// The header of a block arrived: says where its payload goes.
    pub fn block_started(&mut self, id: ConnId, range: BlockRange, now: Instant) -> Result<Placement, PeerMisbehaved> {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &self.content) else {
            return Ok(Placement::Unwanted);
        };
        conn.last_received = now;
        conn.last_progress = now;
        let asked = match conn.requests.iter_mut().find(|request| request.range == range) {
            Some(request) => {
                request.arriving = true;
                true
            }
            None => conn.late.contains(&range),
        };
        if !asked {
            conn.unsolicited += 1;
            if conn.unsolicited > UNSOLICITED_MAX {
                return Err(PeerMisbehaved::Unsolicited);
            }
            return Ok(Placement::Unwanted);
        }
        let wanted = blocks_of(range).all(|block| content.picker.is_missing(block));
        Ok(if wanted { Placement::Wanted } else { Placement::Unwanted })
    }

    /// Payload arrived, of a block that is not whole yet or just became so.
    pub fn payload_received(&mut self, id: ConnId, bytes: u64, now: Instant) {
        self.stats.downloaded_bytes += bytes;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.last_received = now;
        conn.last_progress = now;
        conn.downloaded_bytes += bytes;
        conn.down.add(bytes, now);
        if let Some(peer) = self.peers.get_mut(&conn.peer) {
            peer.downloaded_bytes += bytes;
        }
    }

    /// The payload of a block is whole. With `kept`, it is in the piece's buffer; otherwise it was thrown away.
    pub fn block_finished(&mut self, id: ConnId, range: BlockRange, kept: bool, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        let was_requested = match conn.requests.iter().position(|request| request.range == range) {
            Some(at) => {
                conn.requests.remove(at);
                conn.requested_bytes -= u64::from(range.len);
                conn.pipeline.on_block(range.len, now);
                true
            }
            None => {
                if let Some(at) = conn.late.iter().position(|late| *late == range) {
                    conn.late.remove(at);
                }
                false
            }
        };
        if !kept {
            self.stats.wasted_bytes += u64::from(range.len);
            if was_requested {
                blocks_of(range).for_each(|block| content.picker.returned(id, block));
            }
            return;
        }
        let mut cancels: Vec<(ConnId, BlockRef)> = Vec::new();
        let mut complete = false;
        for block in blocks_of(range) {
            match content.picker.received(id, block) {
                Received::First { also_requested_from, piece_complete } => {
                    cancels.extend(also_requested_from.iter().map(|other| (*other, block)));
                    complete |= piece_complete;
                }
                Received::Duplicate | Received::NotRequested => self.stats.wasted_bytes += u64::from(BLOCK_LEN),
            }
        }
        if complete {
            self.events.push_back(Event::PieceComplete { piece: range.piece });
        }
        for (other, block) in cancels {
            self.cancel(other, block);
        }
    }

    /// Asks for more where there is room: to be called when a run of received bytes was dealt with.
    pub fn fill_requests(&mut self, id: ConnId, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        if self.paused || !conn.interested || conn.closing || (conn.choking_us && conn.allowed_fast.is_empty()) {
            return;
        }
        let target = conn.pipeline.target_bytes();
        let free = target.saturating_sub(conn.requested_bytes);
        if free < (target / TOP_UP_DIVISOR).max(1) || conn.requests.len() >= conn.reqq as usize {
            return;
        }
        let wanted_bytes = free.min(self.room_bytes);
        let slots = (conn.reqq as usize - conn.requests.len()) as u64;
        let blocks = wanted_bytes.div_ceil(u64::from(BLOCK_LEN)).min(self.room_bytes / u64::from(BLOCK_LEN));
        let blocks = blocks.min(slots * u64::from(conn.request_len_max / BLOCK_LEN)).min(PICK_MAX as u64) as usize;
        if blocks == 0 {
            return;
        }
        let rate = conn.down.bytes_per_sec(now);
        let Some(bits) = conn.bits() else { return };
        let only = conn.choking_us.then_some(conn.allowed_fast.as_slice());
        let mut picked = Vec::with_capacity(blocks.min(256));
        content.picker.pick(id, bits, only, blocks, rate, now, &mut picked);
        if picked.is_empty() {
            if conn.requests.is_empty() {
                self.update_interest(id, now);
            }
            return;
        }
        if conn.requests.is_empty() {
            conn.last_progress = now;
        }
        let mut merged = Merged { longest: conn.request_len_max, current: None };
        let mut spent = 0;
        let mut unsent = Vec::new();
        for block in picked {
            let range = BlockRange {
                piece: block.piece,
                begin: block.block * BLOCK_LEN,
                len: content.info.geometry.block_len(block.piece, block.block),
            };
            if conn.requests.len() >= conn.reqq as usize {
                unsent.push(block);
                continue;
            }
            if let Some(whole) = merged.push(range) {
                spent += send_request(conn, whole, now);
            }
        }
        if let Some(whole) = merged.current {
            spent += send_request(conn, whole, now);
        }
        unsent.into_iter().for_each(|block| content.picker.returned(id, block));
        self.room_bytes = self.room_bytes.saturating_sub(spent);
        self.touch(id);
    }

    pub(super) fn fill_all_requests(&mut self, now: Instant) {
        let ids: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| conn.interested && !conn.choking_us).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.fill_requests(id, now));
    }

    /// Room came free: connections that ran dry for lack of it ask again.
    pub fn fill_starved(&mut self, now: Instant) {
        let dry = |conn: &super::Conn| {
            conn.interested && !conn.choking_us && conn.requested_bytes < conn.pipeline.target_bytes() / 2
        };
        let ids: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| dry(conn)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.fill_requests(id, now));
    }

    /// BEP 3: a choke throws our requests away. With BEP 6 each is rejected by name instead.
    pub(super) fn on_choke(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.choking_us = true;
        if !conn.fast {
            self.give_up_requests(id);
            self.fill_all_requests(now);
        }
    }

    /// BEP 6, "reject request".
    pub(super) fn on_reject(&mut self, id: ConnId, range: BlockRange, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        if let Some(at) = conn.requests.iter().position(|request| request.range == range) {
            conn.requests.remove(at);
            conn.requested_bytes -= u64::from(range.len);
            conn.pipeline.on_returned(range.len);
            blocks_of(range).for_each(|block| content.picker.returned(id, block));
            conn.allowed_fast.retain(|piece| *piece != range.piece);
            self.fill_all_requests(now);
        } else {
            conn.late.retain(|late| *late != range);
        }
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
        }
        Ok(())
    }

    /// Takes back the requests of a peer that does not answer in time, so that others are asked.
    pub(super) fn check_requests(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.requests.is_empty() {
            // Something may have become pickable: a piece that failed, a peer that left.
            self.fill_requests(id, now);
            return;
        }
        if now.duration_since(conn.last_progress) < conn.pipeline.timeout() {
            self.fill_requests(id, now);
            return;
        }
        conn.pipeline.on_timeout();
        conn.last_progress = now;
        self.give_up_requests(id);
        self.fill_all_requests(now);
    }

    /// All requests of `id` go back to the picker; should they be answered after all, the blocks are still welcome.
    fn give_up_requests(&mut self, id: ConnId) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        for request in conn.requests.drain(..) {
            conn.pipeline.on_returned(request.range.len);
            if conn.late.len() >= LATE_MAX {
                conn.late.pop_front();
            }
            conn.late.push_back(request.range);
        }
        conn.requested_bytes = 0;
        content.picker.returned_all(id);
    }

    /// Blocks that were here could not be kept: they are fetched again.
    pub fn blocks_lost(&mut self, piece: u32, blocks: &[u32]) {
        if let Some(content) = &mut self.content {
            blocks.iter().for_each(|block| content.picker.block_failed(BlockRef { piece, block: *block }));
        }
    }

    /// A block that came from somebody else is not needed from `id` any more (endgame).
    fn cancel(&mut self, id: ConnId, block: BlockRef) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        let begin = block.block * BLOCK_LEN;
        let covers = |request: &Outstanding| {
            request.range.piece == block.piece
                && (request.range.begin..request.range.begin + request.range.len).contains(&begin)
        };
        let Some(at) = conn.requests.iter().position(|request| covers(request) && !request.arriving) else { return };
        let range = conn.requests[at].range;
        // A longer request may hold blocks that are still missing: it runs its course.
        if blocks_of(range).any(|other| content.picker.is_missing(other)) {
            return;
        }
        conn.requests.remove(at);
        conn.requested_bytes -= u64::from(range.len);
        conn.pipeline.on_returned(range.len);
        if conn.late.len() >= LATE_MAX {
            conn.late.pop_front();
        }
        conn.late.push_back(range);
        blocks_of(range).for_each(|other| content.picker.returned(id, other));
        Message::Cancel(range).encode(&mut conn.out);
        self.touch(id);
    }
}

/// Joins picked blocks that lie side by side into longer requests.
struct Merged {
    longest: u32,
    current: Option<BlockRange>,
}

impl Merged {
    /// Takes `next`; answers with the run before it where `next` does not continue it.
    fn push(&mut self, next: BlockRange) -> Option<BlockRange> {
        if let Some(run) = &mut self.current
            && run.piece == next.piece
            && run.begin + run.len == next.begin
            && run.len + next.len <= self.longest
            && next.begin % REQUEST_BOUNDARY != 0
        {
            run.len += next.len;
            return None;
        }
        self.current.replace(next)
    }
}

fn send_request(conn: &mut super::Conn, range: BlockRange, now: Instant) -> u64 {
    Message::Request(range).encode(&mut conn.out);
    conn.requests.push_back(Outstanding { range, arriving: false });
    conn.requested_bytes += u64::from(range.len);
    conn.pipeline.on_request(range.len, now);
    u64::from(range.len)
}

/// The blocks that a range covers.
pub(super) fn blocks_of(range: BlockRange) -> impl Iterator<Item = BlockRef> {
    let first = range.begin / BLOCK_LEN;
    let end = (range.begin + range.len).div_ceil(BLOCK_LEN);
    (first..end).map(move |block| BlockRef { piece: range.piece, block })
}
