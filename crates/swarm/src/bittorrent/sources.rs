//! Who may still bring what is missing of a torrent: see [`Sources`].

use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;

use crate::bittorrent::torrent::TorrentDriver;
use crate::events::EventKind;
use crate::transfer::Sources;

impl TorrentDriver {
    /// The user or the magnet link named a peer.
    pub(crate) fn name_peer(&mut self, address: Endpoint) {
        self.named.add(address);
        if !self.book.add(address, anabranch_bittorrent::peerbook::Source::User) {
            self.peer_failed(address, "nobody can be dialled at such an address: give a host and its port", true);
        }
    }

    /// A peer was dialled and is connected.
    pub(crate) fn peer_reached(&mut self, address: Endpoint) {
        self.named.reached(address);
    }

    /// A peer could not be dialled, or its connection ended. As long as there is one over another path, it is there.
    pub(crate) fn peer_failed(&mut self, address: Endpoint, reason: &str, is_final: bool) {
        if self.paths.manager.reaches(address) {
            return;
        }
        if let Some(is_final) = self.named.failed(address, reason, is_final, Instant::now()) {
            self.tell(EventKind::PeerFailed { address, reason: reason.to_owned(), is_final });
        }
    }

    /// Whether a peer that somebody named has been in trouble for so long already.
    pub(crate) fn is_in_trouble_for(&self, address: Endpoint, time: Duration, now: Instant) -> bool {
        self.named.in_trouble_since(address).is_some_and(|since| now.saturating_duration_since(since) >= time)
    }

    /// Who may still bring something.
    pub(crate) fn sources(&self, now: Instant) -> Sources {
        let is_opening = self.is_remembering || self.metadata_known && self.storage.is_none();
        let is_finished = self.core.is_finished();
        Sources {
            is_waiting: !is_opening && !is_finished && !self.core.is_paused() && !self.stopping,
            connections: self.conn_count(),
            is_any_wanted: self.core.is_any_wanted(),
            is_any_serving: self.core.is_any_serving(),
            trackers: self.trackers_left,
            dht: self.may_find_by_dht(now),
            heard_of: self.book.heard_of(now),
            named: self.named.list(),
            web_seeds: if self.metadata_known { self.web_seeds.clone() } else { Vec::new() },
        }
    }

    /// Whether the distributed hash table may bring somebody.
    fn may_find_by_dht(&self, now: Instant) -> bool {
        // BEP 27: not for what is private.
        let is_public = self.core.known_info().is_none_or(|info| !info.private);
        is_public && self.resources().dht.as_ref().is_some_and(|dht| dht.may_find(now))
    }

    /// Whether trackers are to be asked for peers: something is missing, nobody connected has it, and nobody is being dialled.
    pub(crate) fn needs_peers(&self, now: Instant) -> bool {
        let sources = self.sources(now);
        sources.is_waiting && !sources.is_any_wanted && !self.book.is_trying(now, false)
    }
}
