//! What is known once the info dictionary is: pieces had and wanted, their hashes, and who is suspected.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::{Info, Sha256Digest};

use super::conn::Has;
use super::hashes::HashStore;
use super::{ConnId, Event, PeerMisbehaved, Torrent, TorrentConfig};
use crate::blame::Blame;
use crate::picker::{Picker, PickerConfig, Priority, Tally};
use crate::suggest::Suggestions;
use crate::super_seed::SuperSeed;

/// See the module's head.
pub(super) struct Content {
    pub info: Arc<Info>,
    pub have: Bitfield,
    /// Pieces in the order in which they were verified since the content is here: what peers are told of when they take it.
    pub gained: Vec<u32>,
    /// `None` once every piece is verified: a content that is only shared costs no more than its bitfield.
    pub picker: Option<Picker>,
    pub hashes: HashStore,
    pub blame: Blame,
    /// What others are told of it, while that is not all.
    pub super_seed: Option<Box<SuperSeed>>,
    /// What others are suggested of it, once somebody is.
    pub suggestions: Option<Box<Suggestions>>,
    /// Whether [`Event::Finished`] was given for the current selection.
    pub finished: bool,
    /// Bytes to fetch (so without padding) of all pieces.
    pub total_bytes: u64,
    /// The same of the verified pieces.
    pub have_bytes: u64,
    /// The same of the pieces that are wanted and not verified.
    pub missing_bytes: u64,
}

impl Content {
    fn new(info: Arc<Info>, mut have: Bitfield, hashes: HashStore, config: &TorrentConfig) -> Self {
        // Pieces of nothing but padding are zeros: there is nothing to fetch.
        (0..have.len()).filter(|piece| info.geometry.block_count(*piece) == 0).for_each(|piece| {
            have.set(piece);
        });
        let total_bytes = (0..have.len()).map(|piece| u64::from(info.geometry.data_len(piece))).sum();
        let have_bytes = have.iter_ones().map(|piece| u64::from(info.geometry.data_len(piece))).sum();
        let blame = Blame::new();
        let mut content = Self {
            info,
            have,
            gained: Vec::new(),
            picker: None,
            hashes,
            blame,
            super_seed: None,
            suggestions: None,
            finished: false,
            total_bytes,
            have_bytes,
            missing_bytes: 0,
        };
        content.make_picker(config);
        content
    }

    /// A picker for what is missing, if anything is. It knows no peers yet.
    pub(super) fn make_picker(&mut self, config: &TorrentConfig) {
        if self.have.is_full() {
            return;
        }
        let picker_config = PickerConfig {
            order: config.order,
            strategy: config.strategy,
            seed: config.seed,
            open_bytes_max: config.open_bytes_max,
        };
        let mut picker = Picker::new(self.info.geometry.clone(), &self.have, picker_config);
        for piece in self.hashes.unfetchable_pieces(&self.info) {
            picker.set_fetchable(piece, false);
        }
        self.picker = Some(picker);
        self.count_missing();
    }

    /// Counts the wanted bytes anew: after priorities changed.
    pub(super) fn count_missing(&mut self) {
        let Some(picker) = &self.picker else { return };
        let wanted = (0..self.have.len()).filter(|piece| picker.wants(*piece));
        self.missing_bytes = wanted.map(|piece| u64::from(self.info.geometry.data_len(piece))).sum();
    }

    pub(super) fn wants(&self, piece: u32) -> bool {
        self.picker.as_ref().is_some_and(|picker| picker.wants(piece))
    }

    pub(super) fn suggestions(&mut self) -> &mut Suggestions {
        let new = || Box::new(Suggestions::new(self.info.geometry.piece_length()));
        self.suggestions.get_or_insert_with(new)
    }

    /// How many wanted, unverified pieces are in `bits`.
    pub(super) fn wanted_count(&self, bits: &Bitfield) -> u32 {
        self.picker.as_ref().map_or(0, |picker| picker.wanted_count(bits))
    }

    pub(super) fn is_finished(&self) -> bool {
        self.picker.as_ref().is_none_or(|picker| picker.wanted_missing_count() == 0)
    }
}

impl Torrent {
    /// The metadata is at hand, and `set_content` will follow once the files were looked at, which may take long. Peers are
    /// not asked for metadata any more, and are given it: some that get none at once never come back.
    pub fn expect_content(&mut self, info: Arc<Info>) {
        self.metadata = None;
        self.keep_if_private(&info);
        self.expected = Some(info);
        self.conn_ids().into_iter().for_each(|id| self.send_extended_handshake(id));
    }

    /// What the content is, whether it is here or expected.
    pub fn known_info(&self) -> Option<&Arc<Info>> {
        self.content.as_ref().map(|content| &content.info).or(self.expected.as_ref())
    }

    fn keep_if_private(&mut self, info: &Info) {
        if info.private {
            // BEP 27: a private torrent's peers come from its trackers alone.
            self.config.pex = false;
        }
    }

    /// Gives the torrent its content: what it is, the Merkle layers at hand, the pieces that are verified already, and how
    /// much pieces are wanted where that is not [`Priority::NORMAL`].
    pub fn set_content(
        &mut self,
        info: Arc<Info>,
        layers: HashMap<Sha256Digest, Box<[Sha256Digest]>>,
        have: Bitfield,
        priorities: Vec<(u32, Priority)>,
        now: Instant,
    ) {
        debug_assert_eq!(info.geometry.piece_count(), have.len());
        self.keep_if_private(&info);
        let hashes = HashStore::new(&info, layers);
        let mut content = Content::new(info, have, hashes, &self.config);
        set_priorities(&mut content, &priorities);
        if self.config.super_seed && content.have.is_full() {
            let geometry = &content.info.geometry;
            let super_seed = SuperSeed::new(geometry.piece_count(), geometry.piece_length(), self.config.seed);
            content.super_seed = Some(Box::new(super_seed));
        }
        self.content = Some(content);
        self.expected = None;
        self.metadata = None;
        for id in self.conn_ids() {
            // They were greeted as by one who has nothing to give.
            self.send_extended_handshake(id);
            if let Err(fault) = self.replay_pending(id, now) {
                self.close(id, &fault.to_string());
            }
            if self.conns.get(&id).is_some_and(|conn| conn.interested_in_us) {
                self.on_interested(id, now);
            }
        }
        self.check_finished(now);
    }

    /// When pieces are needed (streaming): those with a deadline are asked for before all others, the earliest first, and of
    /// several peers where they are late. `None` takes a deadline back. Where the first of them is late and was asked of nobody yet, it
    /// does not wait for what was asked for before.
    pub fn set_deadlines(&mut self, deadlines: &[(u32, Option<Instant>)], now: Instant) {
        if let Some(picker) = self.content.as_mut().and_then(|content| content.picker.as_mut()) {
            deadlines.iter().for_each(|(piece, deadline)| picker.set_deadline(*piece, *deadline));
            if let Some(first) = picker.first_late(now) {
                self.make_way(first);
            }
            self.fill_all_requests(now);
        }
    }

    /// From which piece on those without a deadline are fetched, where that is done in order; those before it come last.
    pub fn set_front(&mut self, piece: u32) {
        if let Some(picker) = self.content.as_mut().and_then(|content| content.picker.as_mut()) {
            picker.set_front(piece);
        }
    }

    /// What a peer said before the piece count was known is said again.
    fn replay_pending(&mut self, id: ConnId, now: Instant) -> Result<(), PeerMisbehaved> {
        let count = self.piece_count();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let pending = std::mem::replace(&mut conn.has, Has::Known(Bitfield::new(count)));
        let Has::Pending { all, bitfield, haves } = pending else {
            conn.has = pending;
            return Ok(());
        };
        conn.tally = conn.counted.then_some(Tally::Having);
        self.count_for_super_seed(id, now);
        self.announce_pieces(id);
        self.grant_fast(id);
        if all {
            self.set_peer_pieces(id, Bitfield::full(count), now)?;
        } else if let Some(bytes) = bitfield {
            let bits = Bitfield::from_bytes(&bytes, count).ok_or(PeerMisbehaved::BadBitfield { pieces: count })?;
            self.set_peer_pieces(id, bits, now)?;
        }
        haves.into_iter().try_for_each(|piece| self.on_have(id, piece, now))
    }

    /// Sets how much pieces are wanted; [`Priority::SKIP`] leaves one out.
    pub fn set_priorities(&mut self, priorities: &[(u32, Priority)], now: Instant) {
        let Some(content) = &mut self.content else { return };
        set_priorities(content, priorities);
        self.recount_interest(now);
        self.check_finished(now);
    }

    /// Interest in every peer, from scratch.
    pub(super) fn recount_interest(&mut self, now: Instant) {
        let Some(content) = &self.content else { return };
        for conn in self.conns.values_mut() {
            conn.wanted = conn.bits().map_or(0, |bits| content.wanted_count(bits));
        }
        self.conn_ids().into_iter().for_each(|id| self.update_interest(id, now));
    }

    /// Notices when the last wanted piece came, and when there is something to want again.
    pub(super) fn check_finished(&mut self, now: Instant) {
        let Some(content) = &mut self.content else { return };
        let finished = content.is_finished();
        if content.have.is_full() {
            content.picker = None;
        }
        if std::mem::replace(&mut content.finished, finished) == finished {
            return;
        }
        if finished {
            self.events.push_back(Event::Finished);
            self.tell_now();
        }
        for id in self.conn_ids() {
            self.update_interest(id, now);
            self.send_upload_only(id, finished && !self.is_super_seeding());
            self.close_if_useless(id);
        }
    }

    /// Verified pieces turned out to be damaged or gone on disk: they are fetched again.
    pub fn pieces_lost(&mut self, pieces: &[u32], now: Instant) {
        self.show_all_pieces();
        let Some(content) = &mut self.content else { return };
        let mut lost = Vec::new();
        for &piece in pieces {
            // A piece of nothing but padding is zeros wherever it is.
            if content.info.geometry.block_count(piece) > 0 && content.have.clear(piece) {
                content.have_bytes -= u64::from(content.info.geometry.data_len(piece));
                lost.push(piece);
            }
        }
        if lost.is_empty() {
            return;
        }
        match &mut content.picker {
            Some(picker) => lost.iter().for_each(|piece| picker.piece_lost(*piece)),
            None => {
                content.make_picker(&self.config);
                if let Some(picker) = &mut content.picker {
                    for conn in self.conns.values_mut().filter(|conn| conn.counted) {
                        conn.tally = conn.bits().map(|bits| picker.peer_joined(bits));
                    }
                }
            }
        }
        content.count_missing();
        for id in self.conn_ids() {
            lost.iter().for_each(|piece| self.send_dont_have(id, *piece));
            self.drop_uploads(id, &lost);
        }
        self.recount_interest(now);
        self.check_finished(now);
    }
}

fn set_priorities(content: &mut Content, priorities: &[(u32, Priority)]) {
    if let Some(picker) = &mut content.picker {
        priorities.iter().for_each(|(piece, priority)| picker.set_priority(*piece, *priority));
        content.count_missing();
    }
}
