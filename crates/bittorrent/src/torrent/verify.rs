//! Pieces that pass or fail, and whose fault that is.

use std::time::Instant;

use super::{ConnId, ExpectedHash, PieceOutcome, Torrent};
use crate::PeerKey;
use crate::blame::{Cleared, Sent, Verdict};
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
        self.content.as_ref().is_some_and(|content| content.blame.is_suspected(piece))
    }

    /// A piece that was complete has been verified and, when good, written.
    pub fn piece_verified(&mut self, piece: u32, outcome: PieceOutcome, now: Instant) {
        match outcome {
            PieceOutcome::Good { digests } => self.piece_good(piece, &digests, now),
            PieceOutcome::Bad { digests } => self.piece_bad(piece, &digests),
        }
        self.fill_starved(now);
    }

    fn piece_good(&mut self, piece: u32, digests: &[u64], now: Instant) {
        let Some(content) = &mut self.content else { return };
        content.picker.piece_passed(piece);
        let first_time = content.have.set(piece);
        let digest = |block: u32| digests.get(block as usize).copied().map_or(0, u128::from);
        let Cleared { guilty, cleared } = match content.blame.is_suspected(piece) {
            true => content.blame.piece_passed(piece, digest),
            false => Cleared::default(),
        };
        if first_time {
            let ids: Vec<ConnId> = self.conns.keys().copied().collect();
            ids.into_iter().for_each(|id| self.send_have(id, piece));
        }
        self.set_parole(&cleared, false);
        for peer in guilty {
            self.ban(peer, &format!("it sent wrong data for piece {piece}"));
        }
        if self.is_finished() {
            self.on_all_wanted(now);
        }
        self.check_finished();
    }

    fn piece_bad(&mut self, piece: u32, digests: &[u64]) {
        let Some(content) = &mut self.content else { return };
        self.stats.wasted_bytes += u64::from(content.info.geometry.data_len(piece));
        let sent = content.picker.contributors(piece).filter_map(|(block, conn)| {
            // Who is too long gone to be remembered cannot be blamed.
            let peer = *self.origins.get(&conn)?;
            Some(Sent { block, peer, digest: u128::from(*digests.get(block as usize)?) })
        });
        let Verdict { guilty, suspects, parole } = content.blame.piece_failed(piece, sent.collect());
        content.picker.piece_failed(piece);
        let of_suspects = self.origins.iter().filter(|(_, peer)| suspects.contains(peer)).map(|(conn, _)| *conn);
        content.picker.prefer_single_source(piece, of_suspects.collect());
        self.set_parole(&parole, true);
        for peer in guilty {
            self.ban(peer, &format!("it sent wrong data for piece {piece}"));
        }
    }

    /// A peer on parole gets pieces of its own, so that its next failure is its alone.
    fn set_parole(&mut self, peers: &[PeerKey], parole: bool) {
        let Some(content) = &mut self.content else { return };
        for peer in peers {
            let conns = self.peers.get(peer).map_or(&[][..], |peer| &peer.conns);
            conns.iter().for_each(|conn| content.picker.set_parole(*conn, parole));
        }
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
