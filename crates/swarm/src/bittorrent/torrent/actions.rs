//! The core's wishes are carried out.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::extension::PexFlags;
use anabranch_bittorrent::peerbook::Source;
use anabranch_bittorrent::torrent::Event as CoreEvent;
use anabranch_content::metainfo::Metainfo;
use anabranch_paths::Host;

use super::{TorrentDriver, recheck};
use crate::bittorrent::kept_metadata;
use crate::events::EventKind;
use crate::store::disk::Reply;
use crate::store::spill;

/// Peers that wait to be met: those beyond have called in vain by the time that it is their turn.
const TO_MEET_MAX: usize = 16;

impl TorrentDriver {
    /// Acts on what the core wants, and wakes the connections that have something to send.
    pub(crate) fn pump(&mut self, now: Instant) {
        while let Some(event) = self.core.poll_event() {
            self.act(event, now);
        }
        if self.core.has_path_events() {
            self.paths.wake.notify_one();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        self.core.take_dirty(&mut dirty);
        for id in dirty.drain(..) {
            if let Some(handle) = self.conns.get(&id) {
                handle.wake();
            }
        }
        self.dirty = dirty;
    }

    pub(super) fn act(&mut self, event: CoreEvent, now: Instant) {
        match event {
            // Peers that come while files are being checked offer what we know.
            CoreEvent::Metadata(bytes) => {
                if !std::mem::replace(&mut self.metadata_known, true)
                    && let Some(info) = self.metadata_arrived(&bytes)
                {
                    if info.private {
                        self.leave_strangers();
                    }
                    self.core.expect_content(info);
                }
            }
            CoreEvent::PieceComplete { piece } => self.verify(piece),
            CoreEvent::Close { conn, reason } => match self.conns.get(&conn) {
                Some(handle) => handle.close(reason),
                None => self.core.disconnected(conn, now),
            },
            CoreEvent::Banned { address, reason, .. } => {
                self.book.forget(address);
                self.paths.manager.forget_address(address);
                self.tell(EventKind::PeerBanned { address, reason });
            }
            CoreEvent::Suspended { address, reason, .. } => self.tell(EventKind::PeerSuspended { address, reason }),
            CoreEvent::Peers(peers) => {
                let filter = Arc::clone(&self.resources.config.filter);
                for (address, flags) in peers.into_iter().filter(|(address, _)| !filter.blocks(address)) {
                    let is_new = !self.book.contains(&address);
                    if self.book.add(address, Source::Exchange) && is_new {
                        self.book.set_prefers_encryption(address, flags.contains(PexFlags::ENCRYPTION));
                    }
                }
                self.dial.notify_one();
            }
            CoreEvent::Meet { address } => {
                let blocked = self.resources.config.filter.blocks(&address.into());
                if !blocked && self.to_meet.len() < TO_MEET_MAX && !self.to_meet.contains(&address) {
                    self.to_meet.push_back(address);
                    self.dial.notify_one();
                }
            }
            CoreEvent::DhtNode(address) => {
                if let Some(dht) = &self.resources.dht {
                    dht.add_node(address);
                }
            }
            CoreEvent::LeavesWanted { piece } => self.hash_leaves(piece),
            CoreEvent::PieceLayer { look_at, .. } => {
                if self.core.knows_all_layers() {
                    self.keep_layers();
                }
                if let Some(pieces) = look_at {
                    recheck::look_at(self, pieces);
                }
            }
            CoreEvent::SuperSeeded => {
                let uploaded_bytes = self.core.stats(now).uploaded_bytes;
                self.tell(EventKind::SuperSeeded { uploaded_bytes });
            }
            CoreEvent::Finished => {
                self.resources.pools.trim();
                self.finished();
                self.announce.notify_one();
            }
        }
    }

    /// BEP 27: whom neither a tracker nor the user named has no part in what turns out to be private.
    pub(crate) fn leave_strangers(&mut self) {
        self.to_meet.clear();
        let hosts: HashSet<Host> = self.book.forget_strangers().iter().map(Host::of).collect();
        for handle in self.conns.values().filter(|handle| hosts.contains(&handle.place().host)) {
            handle.close("the content is private, and no tracker named the peer".to_owned());
        }
    }

    /// All Merkle layers are here, from peers: they are kept for the next start.
    pub(super) fn keep_layers(&self) {
        let Some(info) = self.core.info().cloned() else { return };
        let (layers, torrent, resume) = (self.layers(), self.id, self.resume.clone());
        let folder = self.resources.config.metadata_dir.clone().filter(|_| !self.layers_at_hand);
        self.resources.disk.run(torrent, move || {
            // Without them the next start may have more to fetch, and that is all.
            if let Some(folder) = folder {
                let _ = kept_metadata::keep(&folder, &Metainfo { piece_layers: layers.clone(), ..Metainfo::new(info) });
            }
            if let Some(resume) = resume {
                let _ = resume.keep_layers(layers);
            }
            Reply::LayersKept { content: torrent }
        });
    }

    /// Block hashes of a piece that a peer wants to see (BEP 52).
    pub(super) fn hash_leaves(&mut self, piece: u32) {
        let Some(storage) = &self.storage else { return };
        let storage = Arc::clone(storage);
        let torrent = self.id;
        self.resources.disk.run(torrent, move || {
            let hashes = spill::leaves(&storage, piece).unwrap_or_default();
            Reply::Leaves { content: torrent, piece, hashes }
        });
    }
}
