//! A content's trackers, those of BitTorrent, under the SHA-1 of the swarm's identifier as the info-hash.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::tracker::announcer::{AnnouncerConfig, Progress};
use anabranch_bittorrent::tracker::{AnnounceReply, TrackerUrl};

use super::content::Handle;
use crate::events::EventKind;
use crate::tracker::announce::{self, Announced, LEFT_UNKNOWN, Report, Trackers};

/// Peers of which trackers are asked for no more.
const PEERS_WANTED: usize = 64;

/// Announces to `trackers` until the content leaves the session. The user `named` some of them by hand.
pub(crate) async fn announce(content: Handle, trackers: Vec<TrackerUrl>, named: HashSet<TrackerUrl>) {
    let (wake, trackers) = {
        let state = content.borrow();
        let resources = state.resources();
        let seed = resources.config.seed ^ state.id.0;
        let identity = AnnouncerConfig {
            hashes: state.hashes(),
            peer_id: resources.peer_id,
            port: content.port(),
            scion: state.hub().listening_scion().map(|address| vec![address]),
            key: seed as u32,
            seed,
        };
        let client = resources.trackers.clone();
        (Rc::clone(&state.announce), Trackers { client, tiers: vec![trackers], named, identity })
    };
    announce::announce(&content, &trackers, &wake).await;
    content.borrow_mut().is_announcing = false;
}

impl Announced for Handle {
    fn is_opening_files(&self) -> bool {
        let state = self.borrow();
        state.info.is_some() && state.live.is_none() && state.storage.is_none() && !state.stopping
    }

    fn is_paused_by_owner(&self) -> bool {
        self.borrow().is_paused_by_owner
    }

    fn is_ending(&self) -> bool {
        self.borrow().stopping
    }

    /// The datagrams' port: peers of this protocol dial no other.
    fn port(&self) -> u16 {
        self.borrow().hub().listening().first().map_or(1, SocketAddr::port)
    }

    fn report(&self, _now: Instant) -> Report {
        let state = self.borrow();
        let left_bytes = state.left_bytes().unwrap_or(LEFT_UNKNOWN);
        let progress = Progress {
            uploaded_bytes: state.rates.uploaded_bytes,
            downloaded_bytes: state.rates.downloaded_bytes,
            left_bytes,
            is_partial_seed: false,
            peers_wanted: PEERS_WANTED.saturating_sub(state.conn_count()) as u32,
            in_use: Vec::new(),
            needs_peers: left_bytes > 0 && !state.is_held() && state.conn_count() == 0 && !state.peers.is_trying(),
        };
        Report {
            progress,
            is_complete: state.core.is_complete(),
            is_known: state.storage.is_some(),
            is_stopping: state.stopping || state.is_paused_by_owner,
        }
    }

    fn take_wish(&self) -> bool {
        std::mem::take(&mut self.borrow_mut().is_announce_due)
    }

    fn set_trackers_left(&self, count: usize) {
        self.borrow_mut().trackers_left = count;
    }

    fn on_reply(&self, reply: &AnnounceReply, now: Instant) {
        let mut state = self.borrow_mut();
        let filter = Arc::clone(&state.resources().config.filter);
        for peer in reply.peers.iter().filter(|peer| !filter.blocks(peer)) {
            state.peers.heard(*peer, now);
        }
        state.wake.notify_one();
    }

    fn tell(&self, kind: EventKind) {
        self.borrow().tell(kind);
    }
}
