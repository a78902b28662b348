//! Pieces that pass or fail, and whose fault that is.

use std::time::Instant;

use super::{ConnId, ExpectedHash, Torrent, Verdict};
use crate::PeerKey;
use crate::wire::Message;

impl Torrent {
    /// What `piece` has to hash to; `None` while the content or the piece's hash is unknown.
    pub fn expected_hash(&self, piece: u32) -> Option<ExpectedHash> {
        let content = self.content.as_ref()?;
        let expected = ExpectedHash {
            v1: content.info.piece_hashes.get(piece as usize).copied(),
            v2: content.hashes.expected(piece),
        };
        (expected.v1.is_some() || expected.v2.is_some()).then_some(expected)
    }

    /// Whether `piece` failed before, so that the verdict on it needs the digests of its blocks.
    pub fn wants_digests(&self, piece: u32) -> bool {
        self.content.as_ref().is_some_and(|content| content.blame.is_suspect(piece))
    }

    /// A piece that was complete has been verified and, when good, written.
    pub fn piece_verified(&mut self, piece: u32, verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Good { digests } => self.piece_good(piece, &digests, now),
            Verdict::Bad { digests } => self.piece_bad(piece, &digests),
            Verdict::Lost => {
                if let Some(content) = &mut self.content {
                    content.picker.piece_failed(piece);
                }
            }
        }
        self.fill_starved(now);
    }

    fn piece_good(&mut self, piece: u32, digests: &[u64], now: Instant) {
        let senders = self.senders(piece);
        let Some(content) = &mut self.content else { return };
        content.picker.piece_passed(piece);
        let first_time = content.have.set(piece);
        let guilty = content.blame.piece_passed(piece, digests, &senders);
        if first_time {
            let ids: Vec<ConnId> = self.conns.keys().copied().collect();
            for id in ids {
                self.send_have(id, piece);
            }
        }
        for peer in guilty {
            self.ban(peer, &format!("it sent wrong data for piece {piece}"));
        }
        if self.is_finished() {
            self.on_all_wanted(now);
        }
        self.check_finished();
    }

    fn piece_bad(&mut self, piece: u32, digests: &[u64]) {
        let senders = self.senders(piece);
        let Some(content) = &mut self.content else { return };
        self.stats.wasted_bytes += u64::from(content.info.geometry.data_len(piece));
        let guilty = content.blame.piece_failed(piece, digests, &senders);
        content.picker.piece_failed(piece);
        content.picker.prefer_single_source(piece);
        for peer in guilty {
            self.ban(peer, &format!("it sent wrong data for piece {piece}"));
        }
    }

    /// Who sent each block of a complete piece. Connections that are gone since keep their peer.
    fn senders(&self, piece: u32) -> Vec<Option<PeerKey>> {
        let Some(content) = &self.content else { return Vec::new() };
        let mut senders = vec![None; content.info.geometry.block_count(piece) as usize];
        for (block, conn) in content.picker.contributors(piece) {
            if let Some(sender) = senders.get_mut(block as usize) {
                *sender = self.origins.get(&conn).copied();
            }
        }
        senders
    }

    fn send_have(&mut self, id: ConnId, piece: u32) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        // A peer that has everything does not care.
        if conn.is_seed() || conn.upload_only {
            return;
        }
        Message::Have(piece).encode(&mut conn.out);
        self.touch(id);
    }

    /// Nothing is left to fetch: say so, and leave the peers that have nothing to want of us.
    fn on_all_wanted(&mut self, now: Instant) {
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            self.update_interest(id, now);
            self.send_upload_only(id);
            self.close_if_useless(id);
        }
        self.rechoke_soon(now);
    }

    /// Verified pieces turned out to be damaged or gone on disk: they are fetched again.
    pub fn pieces_lost(&mut self, pieces: &[u32], now: Instant) {
        let Some(content) = &mut self.content else { return };
        for &piece in pieces {
            if content.have.clear(piece) {
                content.picker.piece_lost(piece);
                content.finished = false;
            }
        }
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            for &piece in pieces {
                self.send_dont_have(id, piece);
            }
            self.update_interest(id, now);
        }
    }
}
