//! Pieces that pass or fail, and whose fault that is.

use std::time::Instant;

use anabranch_content::geometry::BLOCK_LEN;
use anabranch_content::hash::ExpectedHash;

use super::{ConnId, PieceOutcome, Torrent};
use crate::PeerKey;
use crate::blame::{Cleared, Sent, Verdict};

impl Torrent {
    /// What `piece` has to hash to; `None` while the content or the piece's hash is unknown.
    pub fn expected_hash(&self, piece: u32) -> Option<ExpectedHash> {
        let content = self.content.as_ref()?;
        let expected = ExpectedHash {
            sha1: content.info.piece_hashes.get(piece as usize).copied(),
            merkle: content.hashes.expected(piece),
        };
        (expected != ExpectedHash::default()).then_some(expected)
    }

    /// Whether `piece` failed before, so that the verdict on it needs the digests of its blocks.
    pub fn wants_digests(&self, piece: u32) -> bool {
        self.content.as_ref().is_some_and(|content| content.blame.is_suspected(piece))
    }

    /// A piece that was complete has been verified and, when good, written.
    pub fn piece_verified(&mut self, piece: u32, outcome: PieceOutcome, now: Instant) {
        match outcome {
            PieceOutcome::Good { digests } => self.piece_good(piece, &digests, now),
            PieceOutcome::Bad { digests } => self.piece_bad(piece, &digests, now),
        }
        self.fill_starved(now);
    }

    /// Credits who sent a piece that passed.
    fn credit_senders(&mut self, piece: u32) {
        let Some(picker) = self.content.as_ref().and_then(|content| content.picker.as_ref()) else { return };
        // Who sends a piece sends many of its blocks, one after the other.
        let mut runs: Vec<(ConnId, u64)> = Vec::new();
        for (_, conn) in picker.contributors(piece) {
            match runs.last_mut() {
                Some((of, blocks)) if *of == conn => *blocks += 1,
                _ => runs.push((conn, 1)),
            }
        }
        for (conn, blocks) in runs {
            if let Some(peer) = self.origins.get(&conn).and_then(|peer| self.peers.get_mut(peer)) {
                peer.good_bytes += blocks * u64::from(BLOCK_LEN);
            }
        }
    }

    fn piece_good(&mut self, piece: u32, digests: &[u64], now: Instant) {
        self.credit_senders(piece);
        let Some(content) = &mut self.content else { return };
        let wanted = content.wants(piece);
        let bytes = u64::from(content.info.geometry.data_len(piece));
        if let Some(picker) = &mut content.picker {
            picker.piece_passed(piece);
        }
        if wanted {
            content.missing_bytes -= bytes;
        }
        let first_time = content.have.set(piece);
        if first_time {
            content.have_bytes += bytes;
        }
        // Without the digests nobody can be told apart: then the case stays open.
        let can_tell = digests.len() >= content.info.geometry.block_count(piece) as usize;
        let digest = |block: u32| digests.get(block as usize).copied().map_or(0, u128::from);
        let Cleared { guilty, cleared } = match can_tell && content.blame.is_suspected(piece) {
            true => content.blame.piece_passed(piece, digest),
            false => Cleared::default(),
        };
        self.set_parole(&cleared, false);
        if first_time {
            self.note_gained(piece);
            self.call_to_hear();
            if self.is_finished() {
                self.tell_now();
            }
        }
        if wanted {
            self.conn_ids().into_iter().for_each(|id| self.want_less(id, piece, now));
        }
        for peer in guilty {
            self.convict(peer, piece, now);
        }
        self.check_finished(now);
    }

    /// A piece that was wanted of `id` is here.
    fn want_less(&mut self, id: ConnId, piece: u32, now: Instant) {
        if let Some(conn) = self.conns.get_mut(&id)
            && conn.bits().is_some_and(|bits| bits.get(piece))
        {
            conn.wanted -= 1;
            self.update_interest(id, now);
        }
    }

    fn piece_bad(&mut self, piece: u32, digests: &[u64], now: Instant) {
        let Some(content) = &mut self.content else { return };
        self.stats.wasted_bytes += u64::from(content.info.geometry.data_len(piece));
        let Some(picker) = &mut content.picker else { return };
        let blocks = content.info.geometry.block_count(piece) as usize;
        let sent = picker.contributors(piece).filter_map(|(block, conn)| {
            // Who is too long gone to be remembered cannot be blamed, and who is remembered must not be for its sake.
            let peer = *self.origins.get(&conn)?;
            Some(Sent { block, peer, digest: u128::from(*digests.get(block as usize)?) })
        });
        let sent: Vec<Sent> = sent.collect();
        let whole = sent.len() == blocks;
        let Verdict { guilty, suspects, parole } = content.blame.piece_failed(piece, sent, whole);
        picker.piece_failed(piece);
        let of_suspects = self.origins.iter().filter(|(_, peer)| suspects.contains(peer)).map(|(conn, _)| *conn);
        picker.prefer_single_source(piece, of_suspects.collect());
        self.set_parole(&parole, true);
        for peer in guilty {
            self.convict(peer, piece, now);
        }
    }

    /// A peer on parole gets pieces of its own, so that its next failure is its alone.
    pub(super) fn set_parole(&mut self, peers: &[PeerKey], parole: bool) {
        let Some(picker) = self.content.as_mut().and_then(|content| content.picker.as_mut()) else { return };
        for peer in peers {
            let conns = self.peers.get(peer).map_or(&[][..], |peer| &peer.conns);
            conns.iter().for_each(|conn| picker.set_parole(*conn, parole));
        }
    }
}
