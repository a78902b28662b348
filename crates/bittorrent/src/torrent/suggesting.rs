//! Suggested pieces (BEP 6): what [`Suggestions`] finds is told to peers with a slot, and what peers suggest is for the picker.

use std::time::Instant;

use anabranch_content::bitfield::Bitfield;

use super::conn::Conn;
use super::neighbours::number;
use super::{ConnId, PeerMisbehaved, Torrent};
use crate::PeerKey;
use crate::extension::Extension;
use crate::suggest::Suggestions;
use crate::wire::{BlockRange, Message};

/// Haves that a seeder is told of at once when it begins to suggest pieces: the newest.
const HAVES_AT_ONCE_MAX: usize = 4096;

impl Torrent {
    /// BEP 6, "suggest piece". What one path of a peer says counts for all of them.
    pub(super) fn on_suggest(&mut self, id: ConnId, piece: u32, now: Instant) -> Result<(), PeerMisbehaved> {
        if self.conns.get(&id).is_some_and(|conn| !conn.suggests) {
            let first =
                self.content.as_ref().map_or(0, |content| content.gained.len().saturating_sub(HAVES_AT_ONCE_MAX));
            for of_peer in self.siblings(id).into_iter().chain([id]) {
                if let Some(conn) = self.conns.get_mut(&of_peer) {
                    (conn.suggests, conn.told) = (true, conn.told.max(first));
                }
                self.touch(of_peer);
            }
        }
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return Ok(()) };
        let pieces = content.info.geometry.piece_count();
        if piece >= pieces {
            return Err(PeerMisbehaved::NoSuchPiece { piece, pieces });
        }
        let picker = content.picker.as_mut().filter(|picker| picker.wants(piece));
        let is_new = picker.is_some_and(|picker| picker.suggested(conn.peer, piece, now));
        if is_new { Ok(()) } else { conn.chat(1) }
    }

    /// `peer` chokes us, or what it said last may be lost with one of its connections: what it does not suggest is not waited for.
    pub(super) fn forget_suggested(&mut self, peer: PeerKey) {
        if let Some(picker) = self.content.as_mut().and_then(|content| content.picker.as_mut()) {
            picker.forget_suggested(peer);
        }
    }

    fn suggestions(&mut self) -> Option<&mut Suggestions> {
        self.content.as_mut()?.suggestions.as_deref_mut()
    }

    /// Once a tick: whoever has a slot is suggested what it may be.
    pub(super) fn suggest_to_all(&mut self, now: Instant) {
        if self.content.as_ref().is_some_and(|content| content.have.is_full()) {
            let peers: Vec<PeerKey> = self.peers.keys().copied().collect();
            peers.into_iter().for_each(|peer| self.suggest_to(peer, now));
        }
    }

    /// The peer of `id` asked for `range`.
    pub(super) fn note_asked(&mut self, id: ConnId, range: BlockRange, now: Instant) {
        let Some(peer) = self.conns.get(&id).filter(|conn| !conn.is_near).map(|conn| conn.peer) else { return };
        if self.suggestions().is_some_and(|suggestions| suggestions.asked(peer, range.piece, range.len.into(), now)) {
            self.suggest_to(peer, now);
        }
    }

    /// `peer` has lost its slot, or is gone.
    pub(super) fn stop_suggesting(&mut self, peer: PeerKey) {
        if let Some(suggestions) = self.suggestions() {
            suggestions.stopped(peer);
        }
    }

    /// A connection ended: where its peer is a seed on our network, we share the work with it.
    pub(super) fn note_near_seed(&mut self, conn: &Conn) {
        if let (Some(peer), Some(content)) = (self.peers.get(&conn.peer), &mut self.content)
            && conn.is_near
            && conn.is_seed()
        {
            content.suggestions().note_seed(number(&peer.peer_id));
        }
    }

    fn suggest_to(&mut self, peer: PeerKey, now: Instant) {
        if let Some(id) = self.quickest_where(peer, Conn::takes_suggestions) {
            self.suggest_over(id, now);
        }
    }

    /// Suggests over `id` what its peer may be suggested: where we have all of the content, do not hide what we have, and somebody else wants it
    /// too. Who is on our own network needs no advice: there is room. To other programs nothing is suggested: some put it before what their
    /// user wants first.
    pub(super) fn suggest_over(&mut self, id: ConnId, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get(&id), &mut self.content) else { return };
        if !conn.takes_suggestions() || !content.have.is_full() || content.super_seed.is_some() {
            return;
        }
        let peer = conn.peer;
        let competes = |other: &Conn| other.peer != peer && other.interested_in_us && !other.is_near;
        if !self.conns.values().any(competes) {
            return;
        }
        let conns = self.peers.get(&peer).map_or(&[][..], |peer| &peer.conns);
        let rate_of = |id| self.conns.get_mut(id).map_or(0, |conn| conn.up.bytes_per_sec(now));
        let rate_bytes = conns.iter().map(rate_of).sum();
        // What is here besides leaves over the same uplink.
        let far = || self.conns.values().filter(|conn| conn.counted && !conn.is_near);
        let (count, len) = (content.have.len(), content.have.as_bytes().len());
        let suggestions = content.suggestions();
        if suggestions.wants_look(now) {
            let mut had = vec![0; len];
            for bits in far().filter_map(Conn::bits) {
                had.iter_mut().zip(bits.as_bytes()).for_each(|(had, has)| *had |= has);
            }
            let had = Bitfield::from_bytes(&had, count).unwrap_or(Bitfield::full(count));
            suggestions.look(had.iter_zeros().collect(), number(&self.config.peer_id), now);
        }
        let is_had = |piece| far().filter_map(Conn::bits).any(|bits| bits.get(piece));
        let mut suggested = Vec::new();
        while let Some(piece) = suggestions.next(peer, rate_bytes, is_had, now) {
            suggested.push(piece);
        }
        if let Some(conn) = self.conns.get_mut(&id).filter(|_| !suggested.is_empty()) {
            suggested.into_iter().for_each(|piece| Message::Suggest(piece).encode(&mut conn.out));
            self.touch(id);
        }
    }
}

impl Conn {
    fn takes_suggestions(&self) -> bool {
        self.fast
            && !self.choking
            && !self.is_near
            && self.is_usable()
            && self.extensions.get(Extension::Paths).is_some()
    }
}
