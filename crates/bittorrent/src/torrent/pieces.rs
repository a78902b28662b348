//! What peers have, and whether that interests us.

use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;

use super::conn::{Conn, Has};
use super::content::Content;
use super::{ConnId, PeerMisbehaved, Torrent};
use crate::PeerKey;
use crate::wire::Message;

/// How late a peer that speaks of paths hears of what we gained where it has no use for it yet, over its quickest connection.
pub(super) const HAVES_GATHERED_FOR: Duration = Duration::from_secs(1);
/// The same over its other connections.
pub(super) const HAVES_LATE_MAX: Duration = Duration::from_secs(5);
/// Pieces that we gained of which these wait to tell.
const HAVES_GATHERED_MAX: usize = 256;
/// A peer without anything that we want may soon have something again.
pub(super) const INTEREST_KEPT: Duration = Duration::from_secs(2);
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
        if let Some(suggestions) = &mut content.suggestions {
            suggestions.gained(piece);
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
    /// connections once it heard so over one: the quickest tells it, and the others [after a while](Torrent::tell_late), many pieces
    /// at once. So does the quickest where that makes no difference to the peer. Over each of four paths, and at once, every piece cost four
    /// packets and as many acknowledgements for each peer.
    pub(super) fn call_to_hear(&mut self) {
        let mut hearers = Vec::new();
        for (key, peer) in &self.peers {
            match self.path_speaker(*key) {
                Some(_) => hearers.extend(self.quickest(*key).filter(|id| !self.can_wait_for_news(*id))),
                None => hearers.extend(&peer.conns),
            }
        }
        hearers.retain(|id| self.conns.get(id).is_some_and(Conn::cares_for_haves));
        hearers.into_iter().for_each(|id| self.touch(id));
    }

    /// Whether the peer of `id` has what it wants of us named already, and gains nothing from hearing of more at once: it waits for its turn,
    /// or is about to be sent a block over `id`, and what is new with it. Who wants nothing of us may do so now, or may be a super-seeder,
    /// which waits to hear of each piece.
    fn can_wait_for_news(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(|conn| conn.interested_in_us && (conn.choking || !conn.uploads.is_empty()))
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

    /// Once a tick: tells what was gained over a connection that was not told of it when others were.
    pub(super) fn tell_late(&mut self, id: ConnId, now: Instant) {
        let news = self.news_for(id);
        let Some(conn) = self.conns.get(&id).filter(|conn| news > 0 && conn.cares_for_haves()) else { return };
        let is_late = |after| conn.tells_late(news, after, now);
        if is_late(HAVES_LATE_MAX) || is_late(HAVES_GATHERED_FOR) && self.quickest(conn.peer) == Some(id) {
            self.touch(id);
        }
    }

    /// Writes haves for what is new to the peer, where `id` is the connection that it hears so over, or has waited for long enough.
    pub(super) fn tell_news(&mut self, id: ConnId, now: Instant) {
        let news = self.news_for(id);
        let Some(conn) = self.conns.get(&id).filter(|conn| news > 0 && conn.cares_for_haves()) else { return };
        let peer = conn.peer;
        if !conn.tells_late(news, HAVES_LATE_MAX, now)
            && self.path_speaker(peer).is_some()
            && self.quickest(peer) != Some(id)
        {
            return;
        }
        if let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &self.content) {
            conn.tell_gained(content);
            conn.told_at = Some(now);
        }
    }

    /// What was told over `id` of late may be lost with its path: the peer's other connections tell it too.
    pub(super) fn tell_again(&mut self, id: ConnId) {
        for other in self.siblings(id) {
            if let Some(conn) = self.conns.get_mut(&other) {
                conn.told_at = None;
            }
            if self.news_for(other) > 0 {
                self.touch(other);
            }
        }
    }

    /// How many of the pieces that we gained the peer was not told of over `id`.
    fn news_for(&self, id: ConnId) -> usize {
        let gained = self.content.as_ref().map_or(0, |content| content.gained.len());
        self.conns.get(&id).map_or(0, |conn| gained.saturating_sub(conn.told))
    }

    /// The connection of `peer` with the shortest round trip.
    fn quickest(&self, peer: PeerKey) -> Option<ConnId> {
        self.quickest_where(peer, |_| true)
    }

    /// The same of those that `which` says.
    pub(super) fn quickest_where(&self, peer: PeerKey, which: impl Fn(&Conn) -> bool) -> Option<ConnId> {
        let conns = self.peers.get(&peer)?.conns.iter().filter_map(|id| Some((*id, self.conns.get(id)?)));
        conns
            .filter(|(_, conn)| conn.is_usable() && which(conn))
            .min_by_key(|(id, conn)| (conn.pipeline.round_trip(), *id))
            .map(|(id, _)| id)
    }

    /// Says so where interest began or ended (BEP 3, "interested"). Among peers that are equally far it ends and begins with every piece:
    /// each time would be a message over every connection, and a choke and an unchoke in answer. So it ends [after a
    /// while](Torrent::end_interest), or with the download.
    pub(super) fn update_interest(&mut self, id: ConnId, now: Instant) {
        let is_finished = self.is_finished();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let interesting = conn.wanted > 0;
        let changes = interesting != conn.interested;
        if changes && !interesting && !is_finished && now < *conn.idle_since.get_or_insert(now) + INTEREST_KEPT {
            return;
        }
        conn.idle_since = None;
        if !changes {
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

    /// Once a tick: ends interest of which nothing was left for a while.
    pub(super) fn end_interest(&mut self, id: ConnId, now: Instant) {
        if self.conns.get(&id).is_some_and(|conn| conn.idle_since.is_some()) {
            self.update_interest(id, now);
        }
    }
}

impl Conn {
    /// A peer that has everything does not, unless it suggests pieces. Who told of its pieces one by one may have had all of them all along: a
    /// super-seeder (BEP 16), which wants to hear where they are.
    fn cares_for_haves(&self) -> bool {
        self.suggests || !(self.upload_only || self.is_seed() && self.said_all_at_once)
    }

    /// Whether `news` have gathered for long enough, or are so many, that a connection that need not tell them does.
    fn tells_late(&self, news: usize, after: Duration, now: Instant) -> bool {
        news >= HAVES_GATHERED_MAX || self.told_at.is_none_or(|at| now.saturating_duration_since(at) > after)
    }

    /// Writes haves for what the peer was not told of.
    pub(super) fn tell_gained(&mut self, content: &Content) {
        if !self.cares_for_haves() {
            return;
        }
        let news = content.gained.get(self.told..).unwrap_or_default();
        self.told = content.gained.len();
        let shown = self.shown.take();
        // What was lost meanwhile is ours no more.
        let there = news.iter().filter(|piece| content.have.get(**piece));
        let there = there.filter(|piece| shown.as_ref().is_none_or(|shown| !shown.get(**piece)));
        there.for_each(|piece| Message::Have(*piece).encode(&mut self.out));
    }
}
