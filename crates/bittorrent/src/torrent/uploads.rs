//! What is asked of us, and whom we serve.

use std::time::{Duration, Instant};

use super::config::{UPLOAD_OVERFLOW_MAX, UPLOAD_QUEUE_MAX};
use super::{PeerMisbehaved, REQUEST_LEN_MAX, Torrent};
use crate::ConnId;
use crate::choker::{ChokePeer, Mode};
use crate::wire::{BlockRange, Message};

/// A change in who is interested is acted on within this time where it is not urgent.
const RECHOKE_SOON: Duration = Duration::from_millis(500);

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

    /// Decides anew whom to serve, now.
    pub(super) fn rechoke_now(&mut self, now: Instant) {
        let mode = if self.is_complete() { Mode::Seed } else { Mode::Leech };
        let peers: Vec<ChokePeer> = self
            .peers
            .iter()
            .filter(|(_, peer)| !peer.conns.is_empty())
            .map(|(key, peer)| {
                let conns = || peer.conns.iter().filter_map(|id| self.conns.get(id).map(|conn| (*id, conn)));
                ChokePeer {
                    peer: *key,
                    conns: conns().map(|(id, _)| id).collect(),
                    interested: conns().any(|(_, conn)| conn.interested_in_us && !conn.closing),
                    snubbed: conns().all(|(_, conn)| conn.pipeline.is_stalled()),
                    downloaded_bytes: peer.downloaded_bytes,
                    uploaded_bytes: peer.uploaded_bytes,
                    connected: conns().map(|(_, conn)| conn.opened).min().unwrap_or(now),
                }
            })
            .collect();
        let round = self.choker.round(&peers, mode, now);
        self.choke_deadline = Some(round.next);
        for (id, choke) in round.changes {
            self.set_choking(id, choke);
        }
    }

    /// Decides anew shortly: several changes at once cost one round.
    pub(super) fn rechoke_soon(&mut self, now: Instant) {
        let soon = now + RECHOKE_SOON;
        self.choke_deadline = Some(self.choke_deadline.map_or(soon, |at| at.min(soon)));
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
