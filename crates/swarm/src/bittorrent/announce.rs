//! A torrent's trackers.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::peerbook::Source;
use anabranch_bittorrent::tracker::announcer::{AnnouncerConfig, Progress};
use anabranch_bittorrent::tracker::{AnnounceReply, TrackerUrl};

use crate::bittorrent::torrent::TorrentHandle;
use crate::events::EventKind;
use crate::tracker::announce::{self, Announced, LEFT_UNKNOWN, Report, Trackers};

/// Announces to `tiers` until the torrent leaves the session. The user `named` some of them by hand.
pub(crate) async fn announce(torrent: TorrentHandle, tiers: Vec<Vec<TrackerUrl>>, named: HashSet<TrackerUrl>) {
    let (wake, trackers) = {
        let state = torrent.borrow();
        let resources = state.resources();
        let scion = resources.scion.as_ref().and_then(|net| net.endpoint.local().as_scion());
        let seed = resources.config.seed ^ state.id.0;
        let identity = AnnouncerConfig {
            hashes: state.hashes,
            peer_id: resources.peer_id,
            port: torrent.port(),
            scion: scion.map(|address| vec![address]),
            key: seed as u32,
            seed,
        };
        (Rc::clone(&state.announce), Trackers { client: resources.trackers.clone(), tiers, named, identity })
    };
    announce::announce(&torrent, &trackers, &wake).await;
    torrent.borrow_mut().is_announcing = false;
}

impl Announced for TorrentHandle {
    fn is_opening_files(&self) -> bool {
        self.borrow().is_opening_files()
    }

    fn is_paused_by_owner(&self) -> bool {
        self.borrow().is_paused_by_owner
    }

    fn is_ending(&self) -> bool {
        self.borrow().stopping
    }

    fn port(&self) -> u16 {
        self.borrow().resources().listen_port().unwrap_or(1)
    }

    fn report(&self, now: Instant) -> Report {
        let mut torrent = self.borrow_mut();
        let stats = torrent.core.stats(now);
        let left_bytes = torrent.core.left_bytes().unwrap_or(LEFT_UNKNOWN);
        let room = torrent.resources().config.torrent_connections_max.saturating_sub(torrent.conn_count());
        let progress = Progress {
            uploaded_bytes: stats.uploaded_bytes,
            downloaded_bytes: stats.downloaded_bytes,
            left_bytes,
            is_partial_seed: left_bytes > 0 && torrent.core.is_finished(),
            peers_wanted: room as u32,
            in_use: torrent.core.paths_in_use().to_vec(),
            needs_peers: torrent.needs_peers(now),
        };
        Report {
            progress,
            is_complete: left_bytes == 0,
            is_known: torrent.storage.is_some(),
            is_stopping: torrent.stopping || torrent.is_paused_by_owner,
        }
    }

    fn take_wish(&self) -> bool {
        std::mem::take(&mut self.borrow_mut().is_announce_due)
    }

    fn set_trackers_left(&self, count: usize) {
        self.borrow_mut().trackers_left = count;
    }

    fn on_reply(&self, reply: &AnnounceReply, now: Instant) {
        let mut torrent = self.borrow_mut();
        let resources = torrent.resources();
        if let (Some(ip), Some(port)) = (reply.external_ip, resources.listen_port()) {
            torrent.book.set_own((ip, port).into());
        }
        let filter = Arc::clone(&resources.config.filter);
        for peer in reply.peers.iter().filter(|peer| !filter.blocks(peer)) {
            torrent.book.add(*peer, Source::Tracker);
        }
        if let Some(in_use) = &reply.in_use {
            torrent.core.told_in_use(in_use.clone(), now);
        }
        torrent.dial.notify_one();
    }

    fn tell(&self, kind: EventKind) {
        self.borrow().tell(kind);
    }
}
