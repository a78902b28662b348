//! What peers have, and whether that interests us.

use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;

use super::conn::{Conn, Has};
use super::content::Content;
use super::{ConnId, PeerMisbehaved, Torrent};
use crate::PeerKey;
use crate::wire::Message;

/// How late a peer may hear of what we gained over a connection that is not its quickest.
pub(super) const HAVES_LATE_MAX: Duration = Duration::from_secs(5);
/// Haves that are written for a peer before it takes them: who has taken none of so many does not read.
const HAVES_WAITING_MAX: usize = 64;

impl Torrent {
    pub(super) fn on_bitfield(&mut self, id: ConnId, bytes: &[u8], now: Instant) -> Result<(), PeerMisbehaved> {
        let pieces = self.piece_count();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        // BEP 3 wants it first and once. Some clients send haves before it, and aria2 says what it has gained with another one.
        if let Has::Pending { all, bitfield, haves } = &mut conn.has {
            *all = false;
            *bitfield = Some(bytes.to_vec());
            haves.clear();
            return Ok(());
        }
        let bits = Bitfield::from_bytes(bytes, pieces).ok_or(PeerMisbehaved::BadBitfield { pieces })?;
        self.set_peer_pieces(id, bits, now)
    }

    /// BEP 6, "have all".
    pub(super) fn on_has_all(&mut self, id: ConnId, now: Instant) -> Result<(), PeerMisbehaved> {
        let pieces = self.piece_count();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        if let Has::Pending { all, .. } = &mut conn.has {
            *all = true;
            return Ok(());
        }
        if conn.is_seed() {
            return Ok(());
        }
        self.set_peer_pieces(id, Bitfield::full(pieces), now)
    }

    /// A peer said all that it has. Only what is other than before costs anything, but for a look at every word of the set.
    pub(super) fn set_peer_pieces(&mut self, id: ConnId, bits: Bitfield, now: Instant) -> Result<(), PeerMisbehaved> {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return Ok(()) };
        let Has::Known(old) = &conn.has else { return Ok(()) };
        let gone = old.iter_differing(&bits).filter(|piece| old.get(*piece)).count() as u32;
        conn.take_back(gone)?;
        if let (Some(picker), Has::Known(old)) = (content.picker.as_mut().filter(|_| conn.counted), &conn.has) {
            // Who says it for the first time may be counted either way.
            let is_first = old.count() == 0;
            match conn.tally.filter(|_| !is_first) {
                Some(_) => old.iter_differing(&bits).for_each(|piece| match old.get(piece) {
                    true => picker.peer_lost_piece(piece),
                    false => picker.peer_has(piece),
                }),
                None => {
                    if let Some(tally) = conn.tally {
                        picker.peer_left(old, tally);
                    }
                    conn.tally = Some(picker.peer_joined(&bits));
                }
            }
        }
        if let (Some(super_seed), Has::Known(old)) = (content.super_seed.as_mut().filter(|_| conn.counted), &conn.has) {
            old.iter_differing(&bits).for_each(|piece| match old.get(piece) {
                true => super_seed.lost(conn.peer, piece),
                false => super_seed.gained(conn.peer, piece, now),
            });
        }
        conn.wanted = content.wanted_count(&bits);
        self.seeds -= u32::from(conn.counted && conn.is_seed());
        conn.said_all_at_once |= bits.is_full();
        conn.has = Has::Known(bits);
        self.seeds += u32::from(conn.counted && conn.is_seed());
        self.update_interest(id, now);
        self.ask_for_hashes(id, now);
        self.close_if_useless(id);
        Ok(())
    }

    /// What a peer gained is known of all its paths at once: it hears so over the fastest, and may be asked over any.
    pub(super) fn on_have(&mut self, id: ConnId, piece: u32, now: Instant) -> Result<(), PeerMisbehaved> {
        self.take_have(id, piece, now)?;
        self.siblings(id).into_iter().try_for_each(|other| self.take_have(other, piece, now))
    }

    fn take_have(&mut self, id: ConnId, piece: u32, now: Instant) -> Result<(), PeerMisbehaved> {
        let pieces = self.piece_count();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let Has::Known(bits) = &mut conn.has else {
            return if conn.pend_have(piece) { Ok(()) } else { conn.chat(1) };
        };
        if piece >= pieces {
            return Err(PeerMisbehaved::NoSuchPiece { piece, pieces });
        }
        if !bits.set(piece) {
            return conn.chat(1);
        }
        let Some(content) = &mut self.content else { return Ok(()) };
        if let Some(picker) = content.picker.as_mut().filter(|_| conn.counted) {
            picker.peer_has(piece);
        }
        if let Some(super_seed) = content.super_seed.as_mut().filter(|_| conn.counted) {
            super_seed.gained(conn.peer, piece, now);
        }
        let first = bits.count() == 1;
        self.seeds += u32::from(conn.counted && conn.is_seed());
        if content.wants(piece) {
            conn.wanted += 1;
            let dry = conn.interested && conn.requests.is_empty();
            self.update_interest(id, now);
            if dry {
                self.fill_requests(id, now);
            }
        }
        if first {
            self.ask_for_hashes(id, now);
        }
        self.close_if_useless(id);
        Ok(())
    }

    /// BEP 54.
    pub(super) fn on_dont_have(&mut self, id: ConnId, piece: u32, now: Instant) -> Result<(), PeerMisbehaved> {
        if let Some(conn) = self.conns.get_mut(&id)
            && conn.bits().is_some_and(|bits| bits.get(piece))
        {
            conn.take_back(1)?;
        }
        self.take_dont_have(id, piece, now);
        self.siblings(id).into_iter().for_each(|other| self.take_dont_have(other, piece, now));
        Ok(())
    }

    fn take_dont_have(&mut self, id: ConnId, piece: u32, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        let was_seed = conn.is_seed();
        let Has::Known(bits) = &mut conn.has else { return };
        if !bits.clear(piece) {
            return;
        }
        self.seeds -= u32::from(conn.counted && was_seed);
        if let Some(picker) = content.picker.as_mut().filter(|_| conn.counted) {
            picker.peer_lost_piece(piece);
        }
        if let Some(super_seed) = content.super_seed.as_mut().filter(|_| conn.counted) {
            super_seed.lost(conn.peer, piece);
        }
        if content.wants(piece) {
            conn.wanted -= 1;
            self.update_interest(id, now);
        }
    }

    /// Two peers that both only upload have nothing to say to each other (BEP 21). While we super-seed, we want to hear of everything that a peer
    /// has, and to tell it to others.
    pub(super) fn close_if_useless(&mut self, id: ConnId) {
        let (complete, super_seeding) = (self.is_complete(), self.is_super_seeding());
        if let Some(conn) = self.conns.get(&id)
            && complete
            && (conn.is_seed() || conn.upload_only && !super_seeding)
            && !conn.interested_in_us
        {
            self.close(id, "both of us only upload");
        }
    }

    /// Greets a connection with the pieces that we have (BEP 3 and BEP 6).
    pub(super) fn announce_pieces(&mut self, id: ConnId) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &self.content) else { return };
        conn.told = content.gained.len();
        let mut shown = None;
        // Who hears of all pieces at once need not say which ones it gains, and that is what a super-seeder waits for.
        let mut held_back = None;
        if let Some(super_seed) = &content.super_seed {
            let bits = shown.insert(super_seed.shown(conn.peer).cloned().unwrap_or(Bitfield::new(0)));
            held_back = bits.iter_ones().next().filter(|_| bits.is_full());
            if let Some(piece) = held_back {
                bits.clear(piece);
            }
        }
        let have = shown.as_ref().unwrap_or(&content.have);
        match (have.is_full(), have.count()) {
            (true, 1..) if conn.fast => Message::HaveAll.encode(&mut conn.out),
            (_, 0) if conn.fast => Message::HaveNone.encode(&mut conn.out),
            (_, 0) => {}
            _ => Message::Bitfield(have.as_bytes()).encode(&mut conn.out),
        }
        if let Some(piece) = held_back {
            Message::Have(piece).encode(&mut conn.out);
        }
        self.touch(id);
    }

    /// A piece is ours now: every peer is told when it takes what there is for it. Until then it costs nothing, however many a
    /// peer that does not read has to be told of.
    pub(super) fn note_gained(&mut self, piece: u32) {
        let Some(content) = &mut self.content else { return };
        if content.gained.len() >= content.info.geometry.piece_count() as usize {
            // A piece is gained anew only after it was lost: that is rare, and the list need not be long.
            self.conns.values_mut().for_each(|conn| conn.tell_gained(content));
            content.gained.clear();
            self.conns.values_mut().for_each(|conn| conn.told = 0);
        }
        content.gained.push(piece);
    }

    /// Has all who want to be told of pieces take what is there for them. Who speaks of paths knows what we gained over all of its
    /// connections once it heard so over one: the quickest tells it, and the others when they have something else to say, or
    /// [after a while](Torrent::tell_late).
    pub(super) fn call_to_hear(&mut self) {
        let mut hearers = Vec::new();
        for (key, peer) in &self.peers {
            match self.path_speaker(*key) {
                Some(_) => hearers.extend(self.quickest(*key)),
                None => hearers.extend(&peer.conns),
            }
        }
        hearers.retain(|id| self.conns.get(id).is_some_and(Conn::cares_for_haves));
        hearers.into_iter().for_each(|id| self.touch(id));
    }

    /// Tells everybody of all that was gained, before anything else is said: who hears first that we only upload may hang up before it
    /// hears of the last pieces.
    pub(super) fn tell_now(&mut self) {
        let Some(content) = &self.content else { return };
        let mut told = Vec::new();
        for (id, conn) in &mut self.conns {
            let before = conn.out.len();
            if content.gained.len().saturating_sub(conn.told) <= HAVES_WAITING_MAX {
                conn.tell_gained(content);
            }
            if conn.out.len() > before {
                told.push(*id);
            }
        }
        told.into_iter().for_each(|id| self.touch(id));
    }

    /// Once a tick: tells what was gained over a connection that had nothing else to say.
    pub(super) fn tell_late(&mut self, id: ConnId, now: Instant) {
        let gained = self.content.as_ref().map_or(0, |content| content.gained.len());
        let is_late = |conn: &Conn| now.saturating_duration_since(conn.last_sent) > HAVES_LATE_MAX;
        if self.conns.get(&id).is_some_and(|conn| conn.told < gained && conn.cares_for_haves() && is_late(conn)) {
            self.touch(id);
        }
    }

    /// The connection of `peer` with the shortest round trip.
    fn quickest(&self, peer: PeerKey) -> Option<ConnId> {
        let conns = self.peers.get(&peer)?.conns.iter().filter_map(|id| Some((*id, self.conns.get(id)?)));
        conns
            .filter(|(_, conn)| conn.is_usable())
            .min_by_key(|(id, conn)| (conn.pipeline.round_trip(), *id))
            .map(|(id, _)| id)
    }

    /// Says so where interest began or ended (BEP 3, "interested").
    pub(super) fn update_interest(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let interesting = conn.wanted > 0;
        if interesting == conn.interested {
            return;
        }
        conn.interested = interesting;
        let message = if interesting { Message::Interested } else { Message::NotInterested };
        message.encode(&mut conn.out);
        self.touch(id);
        if interesting {
            self.fill_requests(id, now);
        } else {
            self.close_if_useless(id);
        }
    }
}

impl Conn {
    /// A peer that has everything does not. Who told of its pieces one by one may have had all of them all along: a super-seeder (BEP 16),
    /// which wants to hear where they are.
    fn cares_for_haves(&self) -> bool {
        !(self.upload_only || self.is_seed() && self.said_all_at_once)
    }

    /// Writes haves for what the peer was not told of.
    pub(super) fn tell_gained(&mut self, content: &Content) {
        let news = content.gained.get(self.told..).unwrap_or_default();
        self.told = content.gained.len();
        let shown = self.shown.take();
        if !self.cares_for_haves() {
            return;
        }
        // What was lost meanwhile is ours no more.
        let there = news.iter().filter(|piece| content.have.get(**piece));
        let there = there.filter(|piece| shown.as_ref().is_none_or(|shown| !shown.get(**piece)));
        there.for_each(|piece| Message::Have(*piece).encode(&mut self.out));
    }
}
