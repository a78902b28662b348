//! Super-seeding (BEP 16): what [`SuperSeed`] decides is told to peers, over all their connections.

use std::time::Instant;

use super::{Event, Torrent};
use crate::extension::Extension;
use crate::super_seed::SuperSeed;
use crate::wire::Message;
use crate::{ConnId, PeerKey};

impl Torrent {
    /// Whether peers are told of pieces one by one, until the others have all of them among them.
    pub fn is_super_seeding(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.super_seed.is_some())
    }

    pub(super) fn super_seed(&mut self) -> Option<&mut SuperSeed> {
        self.content.as_mut()?.super_seed.as_deref_mut()
    }

    /// The connection stands for the pieces that its peer has from now on, where it does and they are known.
    pub(super) fn count_for_super_seed(&mut self, id: ConnId, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get(&id), &mut self.content) else { return };
        let bits = conn.bits().filter(|_| conn.counted);
        if let (Some(super_seed), Some(bits)) = (&mut content.super_seed, bits) {
            super_seed.came(conn.peer, bits, now);
        }
    }

    /// `peer` is forgotten where it has no connection any more.
    pub(super) fn forget_for_super_seed(&mut self, peer: PeerKey) {
        let is_there = self.peers.get(&peer).is_some_and(|peer| !peer.conns.is_empty());
        if let Some(super_seed) = self.super_seed().filter(|_| !is_there) {
            super_seed.left(peer);
        }
    }

    /// Once a tick.
    pub(super) fn look_through_offers(&mut self, now: Instant) {
        if let Some(super_seed) = self.super_seed() {
            super_seed.on_time(now);
            self.offer_pieces(now);
        }
    }

    /// Offers pieces to whom some may be offered, and ends it where the others have all of them.
    pub(super) fn offer_pieces(&mut self, now: Instant) {
        let Some(super_seed) = self.super_seed() else { return };
        if super_seed.is_over() {
            self.show_all_pieces();
            self.events.push_back(Event::SuperSeeded);
            self.conn_ids().into_iter().for_each(|id| self.close_if_useless(id));
            return;
        }
        let (hungry, withdrawn) = (super_seed.take_hungry(), super_seed.take_withdrawn());
        for (peer, piece) in withdrawn {
            self.withdraw(peer, piece);
        }
        for peer in hungry {
            let conns: Vec<ConnId> = self.live_paths(peer).map(|(id, _)| id).collect();
            let is_served = self.live_paths(peer).any(|(_, conn)| !conn.choking);
            while let Some(piece) = self.super_seed().and_then(|super_seed| super_seed.offer(peer, is_served, now)) {
                for id in &conns {
                    if let Some(conn) = self.conns.get_mut(id) {
                        Message::Have(piece).encode(&mut conn.out);
                    }
                    self.touch(*id);
                }
            }
        }
    }

    /// `peer` was told of a piece that it can have of others by now, and has not begun with it: it had better ask them. Only where it
    /// understands that over all its connections (BEP 54).
    fn withdraw(&mut self, peer: PeerKey, piece: u32) {
        let mut conns = self.live_paths(peer);
        let is_told = conns.all(|(_, conn)| {
            let has_it = conn.bits().is_none_or(|bits| bits.get(piece));
            let asks = conn.uploads.iter().any(|range| range.piece == piece);
            conn.extensions.get(Extension::DontHave).is_some() && !has_it && !asks
        });
        drop(conns);
        if !is_told {
            return;
        }
        let conns: Vec<ConnId> = self.live_paths(peer).map(|(id, _)| id).collect();
        conns.into_iter().for_each(|id| self.send_dont_have(id, piece));
        if let Some(super_seed) = self.super_seed() {
            super_seed.hide(peer, piece);
        }
    }

    /// Ends it: everybody is told of the pieces that it was not told of, when it takes what there is for it.
    pub(super) fn show_all_pieces(&mut self) {
        let Some(content) = &mut self.content else { return };
        let Some(super_seed) = content.super_seed.take() else { return };
        content.gained = (0..content.info.geometry.piece_count()).collect();
        for conn in self.conns.values_mut() {
            conn.told = 0;
            conn.shown = super_seed.shown(conn.peer).cloned();
        }
        let finished = content.is_finished();
        for id in self.conn_ids() {
            self.send_upload_only(id, finished);
        }
        self.call_to_hear();
    }
}
