//! What is asked of us, and whom we serve.

use std::collections::BTreeMap;
use std::time::Instant;

use super::config::{UPLOAD_OVERFLOW_MAX, UPLOAD_QUEUE_MAX};
use super::{PeerMisbehaved, REQUEST_LEN_MAX, Torrent};
use crate::choker;
use crate::wire::{BlockRange, Message};
use crate::{ConnId, PeerKey};

impl Torrent {
    /// The next block to send over `id`, if any. The caller sends it or closes the connection.
    pub fn next_upload(&mut self, id: ConnId) -> Option<BlockRange> {
        self.conns.get_mut(&id)?.uploads.pop_front()
    }

    /// The block that [`Torrent::next_upload`] would give, left in its place.
    pub fn peek_upload(&self, id: ConnId) -> Option<BlockRange> {
        self.conns.get(&id)?.uploads.front().copied()
    }

    /// Payload went out.
    pub fn payload_sent(&mut self, id: ConnId, bytes: u64, now: Instant) {
        self.stats.uploaded_bytes += bytes;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.uploaded_bytes += bytes;
        conn.last_sent = now;
        conn.up.add(bytes, now);
        if let Some(peer) = self.peers.get_mut(&conn.peer) {
            peer.uploaded_bytes += bytes;
        }
    }

    pub(super) fn on_request(&mut self, id: ConnId, range: BlockRange) -> Result<(), PeerMisbehaved> {
        let Some(content) = &self.content else { return Ok(()) };
        let piece_len = content.info.geometry.piece_len(range.piece);
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let inside = range.end() <= u64::from(piece_len);
        if range.len == 0 || range.len > REQUEST_LEN_MAX || !inside {
            return Err(PeerMisbehaved::BadRequest { piece: range.piece, begin: range.begin, len: range.len });
        }
        let granted = !conn.choking || conn.granted_fast.contains(&range.piece);
        if granted && content.have.get(range.piece) && conn.uploads.len() < UPLOAD_QUEUE_MAX {
            conn.uploads.push_back(range);
            self.touch(id);
            return Ok(());
        }
        // BEP 3: requests while choked are dropped; a few always cross our choke on the way.
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
        let Some(conn) = self.conns.get(&id) else { return };
        let sent_bytes = self.peers.get(&conn.peer).map_or(0, |peer| peer.uploaded_bytes);
        if self.choker.on_interested(conn.peer, id, sent_bytes, now) {
            self.set_choking(id, false);
        }
    }

    pub(super) fn on_uninterested(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get(&id) else { return };
        if self.choker.on_gone(conn.peer, id, now) {
            self.set_choking(id, true);
        }
        self.close_if_useless(id);
    }

    /// Decides anew whom to serve.
    pub(super) fn rechoke(&mut self, now: Instant) {
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
                connected_at: conn.opened,
                progress_permille: 0,
            });
            entry.conns.push(*id);
            entry.download_rate_bytes += conn.down.bytes_per_sec(now);
            entry.snubbed &= conn.is_snubbing(now);
            entry.connected_at = entry.connected_at.min(conn.opened);
            let permille = conn.bits().map_or(0, |bits| u64::from(bits.count()) * 1000 / pieces) as u16;
            entry.progress_permille = entry.progress_permille.max(permille);
        }
        let peers: Vec<choker::Peer> = peers.into_values().collect();
        let mut changes = Vec::new();
        let seeding = self.is_finished();
        self.choker.round(&peers, seeding, upload_rate_bytes, now, &mut changes);
        for change in changes {
            self.set_choking(change.conn, change.choke);
        }
    }

    fn set_choking(&mut self, id: ConnId, choke: bool) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.choking == choke {
            return;
        }
        conn.choking = choke;
        if choke {
            Message::Choke.encode(&mut conn.out);
            let granted = std::mem::take(&mut conn.granted_fast);
            let dropped: Vec<BlockRange> =
                conn.uploads.iter().filter(|range| !granted.contains(&range.piece)).copied().collect();
            conn.uploads.retain(|range| granted.contains(&range.piece));
            conn.granted_fast = granted;
            if conn.fast {
                // BEP 6: a choke rejects nothing by itself.
                dropped.into_iter().for_each(|range| Message::Reject(range).encode(&mut conn.out));
            }
        } else {
            Message::Unchoke.encode(&mut conn.out);
        }
        self.touch(id);
    }
}
