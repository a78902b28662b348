//! What is asked of us, and whom we serve.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use super::config::{UPLOAD_OVERFLOW_MAX, UPLOAD_QUEUE_MAX};
use super::conn::Conn;
use super::{PeerMisbehaved, REQUEST_LEN_MAX, Torrent};
use crate::choker;
use crate::wire::{self, BlockRange, Message};
use crate::{ConnId, PeerKey};

/// At most one piece in so many is granted, or choking would mean nothing for small contents.
const GRANT_DIVISOR: usize = 4;

impl Torrent {
    /// The next block to send over `id`, if any. The caller sends it or closes the connection.
    pub fn next_upload(&mut self, id: ConnId) -> Option<BlockRange> {
        let conn = self.conns.get_mut(&id)?;
        let (peer, range) = (conn.peer, conn.uploads.pop_front()?);
        if let Some(super_seed) = self.super_seed() {
            super_seed.sent(peer, range.piece);
        }
        Some(range)
    }

    /// The block that [`Torrent::next_upload`] would give, left in its place.
    pub fn peek_upload(&self, id: ConnId) -> Option<BlockRange> {
        self.queued_uploads(id).next()
    }

    /// The blocks that `id` asked for and that were not given yet, in their order.
    pub fn queued_uploads(&self, id: ConnId) -> impl Iterator<Item = BlockRange> + '_ {
        self.conns.get(&id).into_iter().flat_map(|conn| conn.uploads.iter().copied())
    }

    /// Payload went out.
    pub fn payload_sent(&mut self, id: ConnId, bytes: u64, now: Instant) {
        self.stats.uploaded_bytes += bytes;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.uploaded_bytes += bytes;
        conn.last_sent = now;
        conn.served_at = now;
        conn.up.add(bytes, now);
        self.up.add(bytes, now);
        if let Some(peer) = self.peers.get_mut(&conn.peer) {
            peer.uploaded_bytes += bytes;
        }
    }

    pub(super) fn on_request(&mut self, id: ConnId, range: BlockRange, now: Instant) -> Result<(), PeerMisbehaved> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let content = self.content.as_ref();
        let piece_len = content.map_or(0, |content| content.info.geometry.piece_len(range.piece));
        let possible = (1..=REQUEST_LEN_MAX).contains(&range.len) && range.end() <= u64::from(piece_len);
        let has = |content: &super::Content| {
            let super_seed = content.super_seed.as_ref();
            let shown = super_seed.is_none_or(|super_seed| super_seed.is_shown(conn.peer, range.piece));
            content.have.get(range.piece) && shown
        };
        let have = content.is_some_and(has);
        let room = conn.uploads.len() < UPLOAD_QUEUE_MAX;
        if possible && have && room && (!conn.choking || conn.take_grant(range)) {
            conn.uploads.push_back(range);
            self.touch(id);
            self.note_asked(id, range, now);
            return Ok(());
        }
        // BEP 3: requests while choked are dropped, as a few always cross our choke on the way. Some clients ask past the
        // end of a piece, or for what we no longer have: refused all the same, and nothing worse unless it never ends.
        conn.upload_overflow += 1;
        if conn.upload_overflow > UPLOAD_OVERFLOW_MAX {
            return Err(PeerMisbehaved::RequestFlood);
        }
        if conn.fast {
            Message::Reject(range).encode(&mut conn.out);
            self.touch(id);
        }
        Ok(())
    }

    /// Names the pieces that the peer may have while it is choked, so that it soon has something to trade with (BEP 6,
    /// "allowed fast").
    ///
    /// A seed names none: it does not trade, its slots go round among all, and to a swarm in one network, which gets one
    /// set, it would send the same pieces over and over.
    pub(super) fn grant_fast(&mut self, id: ConnId) {
        let complete = self.is_complete();
        let (Some(conn), Some(content)) = (self.conns.get(&id), &self.content) else { return };
        let IpAddr::V4(ip) = conn.address.ip().to_canonical() else { return };
        let Some(info_hash) = self.hashes.wire_hashes().next() else { return };
        // The grant is the peer's, whatever paths it has.
        let granted = |id: &ConnId| self.conns.get(id).is_some_and(|conn| !conn.granted_fast.is_empty());
        if !conn.fast || complete || self.peers.get(&conn.peer).is_some_and(|peer| peer.conns.iter().any(granted)) {
            return;
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let geometry = &content.info.geometry;
        let count = wire::ALLOWED_FAST_MAX.min(geometry.piece_count() as usize / GRANT_DIVISOR);
        conn.granted_fast = wire::allowed_fast(ip, &info_hash, geometry.piece_count(), count);
        conn.granted_left_bytes = conn.granted_fast.iter().map(|piece| u64::from(geometry.piece_len(*piece))).sum();
        conn.granted_fast.iter().for_each(|piece| Message::AllowedFast(*piece).encode(&mut conn.out));
        self.touch(id);
    }

    /// What waits to be sent of pieces that are gone will not be sent.
    pub(super) fn drop_uploads(&mut self, id: ConnId, pieces: &[u32]) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.drop_uploads(|range| pieces.contains(&range.piece));
        self.touch(id);
    }

    pub(super) fn on_cancel(&mut self, id: ConnId, range: BlockRange) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(at) = conn.uploads.iter().position(|queued| *queued == range) else { return };
        conn.uploads.remove(at);
        // BEP 6: a cancelled request is answered too, with the block or with a reject.
        if conn.fast {
            Message::Reject(range).encode(&mut conn.out);
            self.touch(id);
        }
    }

    pub(super) fn on_interested(&mut self, id: ConnId, now: Instant) {
        // Who is unchoked before there is anything to give asks in vain, and waits for ever: `set_content` comes back to it.
        if self.content.is_none() {
            return;
        }
        let Some(conn) = self.conns.get(&id) else { return };
        let sent_bytes = self.peers.get(&conn.peer).map_or(0, |peer| peer.uploaded_bytes);
        if self.choker.on_interested(conn.peer, id, sent_bytes, now) {
            self.set_choking(id, false, now);
        }
    }

    pub(super) fn on_uninterested(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get(&id) else { return };
        if self.choker.on_gone(conn.peer, id, now) {
            self.set_choking(id, true, now);
        }
        self.close_if_useless(id);
    }

    /// Decides anew whom to serve.
    pub(super) fn rechoke(&mut self, now: Instant) {
        if self.content.is_none() {
            return;
        }
        let pieces = u64::from(self.piece_count().max(1));
        let mut peers: BTreeMap<PeerKey, choker::Peer> = BTreeMap::new();
        let mut upload_rate_bytes = 0;
        for (id, conn) in &mut self.conns {
            upload_rate_bytes += conn.up.bytes_per_sec(now);
            if !conn.interested_in_us || conn.closing {
                continue;
            }
            let entry = peers.entry(conn.peer).or_insert_with(|| choker::Peer {
                key: conn.peer,
                conns: Vec::new(),
                download_rate_bytes: 0,
                sent_bytes: self.peers.get(&conn.peer).map_or(0, |peer| peer.uploaded_bytes),
                snubbed: true,
                idle: true,
                connected_at: conn.opened,
                progress_permille: 0,
            });
            entry.conns.push(*id);
            entry.download_rate_bytes += conn.down.bytes_per_sec(now);
            entry.snubbed &= conn.is_snubbing(now);
            entry.idle &= conn.leaves_slot_unused(now);
            entry.connected_at = entry.connected_at.min(conn.opened);
            let permille = conn.bits().map_or(0, |bits| u64::from(bits.count()) * 1000 / pieces) as u16;
            entry.progress_permille = entry.progress_permille.max(permille);
        }
        let peers: Vec<choker::Peer> = peers.into_values().collect();
        let mut changes = Vec::new();
        let seeding = self.is_finished();
        self.choker.round(&peers, seeding, upload_rate_bytes, now, &mut changes);
        for change in changes {
            self.set_choking(change.conn, change.choke, now);
        }
    }

    fn set_choking(&mut self, id: ConnId, choke: bool, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.choking == choke {
            return;
        }
        conn.choking = choke;
        let peer = conn.peer;
        if choke {
            Message::Choke.encode(&mut conn.out);
            let granted = std::mem::take(&mut conn.granted_fast);
            conn.drop_uploads(|range| !granted.contains(&range.piece));
            conn.granted_fast = granted;
            self.stop_suggesting(peer);
        } else {
            conn.served_at = now;
            // It is to know them before it asks.
            self.suggest_over(id, now);
            let Some(conn) = self.conns.get_mut(&id) else { return };
            Message::Unchoke.encode(&mut conn.out);
            if let Some(super_seed) = self.super_seed() {
                super_seed.served(peer);
            }
        }
        self.touch(id);
    }

    /// Once a tick: slots that nobody uses are given to those who wait.
    pub(super) fn check_slots(&mut self, now: Instant) {
        if self.conns.values().any(|conn| conn.leaves_slot_unused(now)) {
            self.choker.on_unused(now);
        }
    }
}

impl Conn {
    /// Whether a block is granted to the choked peer. A grant is good for one copy of its pieces, and for a peer that has
    /// little (BEP 6: "reject ... if the peer already has more than k pieces").
    fn take_grant(&mut self, range: BlockRange) -> bool {
        let newcomer = self.bits().is_none_or(|bits| (bits.count() as usize) < wire::ALLOWED_FAST_MAX);
        if !newcomer || !self.granted_fast.contains(&range.piece) {
            return false;
        }
        match self.granted_left_bytes.checked_sub(u64::from(range.len)) {
            Some(left) => {
                self.granted_left_bytes = left;
                true
            }
            None => false,
        }
    }

    /// Takes requests out of the queue; BEP 6: each is rejected by name, a choke rejects nothing by itself.
    fn drop_uploads(&mut self, which: impl Fn(&BlockRange) -> bool) {
        let (fast, out) = (self.fast, &mut self.out);
        self.uploads.retain(|range| {
            let drop = which(range);
            if drop && fast {
                Message::Reject(*range).encode(out);
            }
            !drop
        });
    }
}
