//! How a content fares, in the words that all protocols share.

use std::time::{Duration, Instant};

use anabranch_bittorrent::torrent::{PeerStats, TorrentStats};
use anabranch_bittorrent::{ConnId, PeerKey};
use anabranch_paths::Endpoint;
use anabranch_ppspp::swarm::PeerStats as PeerChannel;

use super::content::Content;
use super::path_table::PathAddress;
use crate::events::EventKind;
use crate::transfer::PathProgress;
use crate::transfer::Progress;
use crate::transfer::Sources;

impl Content {
    /// Bytes that are verified, and all; `None` until the length is known.
    fn bytes(&self) -> Option<(u64, u64)> {
        let info = self.info.as_ref()?;
        let done = self.have.iter_ones().map(|piece| u64::from(info.geometry.data_len(piece))).sum();
        Some((done, info.geometry.total()))
    }

    /// Bytes that are missing; `None` until the length is known.
    pub(crate) fn left_bytes(&self) -> Option<u64> {
        self.bytes().map(|(done, total)| total - done)
    }

    /// How it fares.
    pub(crate) fn progress(&mut self, now: Instant) -> Progress {
        let (download_rate_bytes, upload_rate_bytes) = self.rates.bytes_per_sec(now);
        let chunks = self.core.chunk_count();
        let seeds = self.core.peer_stats().filter(|peer| Some(peer.chunks) == chunks).count() as u32;
        let wasted_bytes = self.core.wasted_bytes();
        let stats = TorrentStats {
            downloaded_bytes: self.rates.downloaded_bytes + wasted_bytes,
            uploaded_bytes: self.rates.uploaded_bytes,
            wasted_bytes,
            download_rate_bytes,
            upload_rate_bytes,
            peers: self.conn_count() as u32,
            seeds,
        };
        let bytes = self.bytes();
        let live_bytes = self.live.as_ref().map_or(0, |live| live.window.borrow().bytes);
        Progress {
            name: self
                .info
                .as_ref()
                .map(|info| info.name.clone())
                .or_else(|| self.live.as_ref().and(self.link.name.clone())),
            bytes_done: bytes.map_or(live_bytes, |(done, _)| done),
            bytes_total: bytes.map(|(_, total)| total),
            pieces_have: self.have.count(),
            pieces_total: self.info.as_ref().map_or(0, |info| info.geometry.piece_count()),
            stats,
            finished: self.is_finished,
            paused: self.is_held(),
        }
    }

    /// Its channels.
    pub(crate) fn peer_stats(&mut self, now: Instant) -> Vec<PeerStats> {
        let rates = self.rates_of_all(now);
        let chunk_len = self.link.params.chunk_len().map_or(1, u64::from);
        let per_piece = self
            .info
            .as_ref()
            .map_or(1, |info| u64::from(info.geometry.piece_length() / info.geometry.block_length()).max(1));
        let stats = self.core.peer_stats().zip(rates).zip(1..).map(|((peer, rate), number)| PeerStats {
            conn: ConnId(number),
            peer: PeerKey(number),
            path: self.paths.of(peer.peer).map(|(path, ..)| path.id()),
            path_state: Default::default(),
            address: peer.peer.remote,
            client: None,
            download_rate_bytes: rate.0,
            upload_rate_bytes: rate.1,
            downloaded_bytes: peer.downloaded_bytes,
            uploaded_bytes: peer.uploaded_bytes,
            pieces: (peer.chunks / per_piece) as u32,
            choking_us: peer.chokes_us,
            choking: peer.is_choked,
            requested_bytes: peer.asked * chunk_len,
        });
        stats.collect()
    }

    /// Its channels, each with its path.
    pub(crate) fn path_progress(&mut self, now: Instant) -> Vec<PathProgress> {
        let rates = self.rates_of_all(now);
        let line = |(peer, rate): (PeerChannel<'_, PathAddress>, (u64, u64))| {
            let (path, condition, is_one_of_many) = self.paths.of(peer.peer)?;
            Some(PathProgress {
                peer: peer.peer.remote,
                path: path.clone(),
                condition,
                download_rate_bytes: rate.0,
                upload_rate_bytes: rate.1,
                downloaded_bytes: peer.downloaded_bytes,
                uploaded_bytes: peer.uploaded_bytes,
                rtt: Some(peer.rtt).filter(|rtt| *rtt > Duration::ZERO),
                lost_packets: peer.lost_chunks,
                is_one_of_many,
            })
        };
        self.core.peer_stats().zip(rates).filter_map(line).collect()
    }

    /// How fast each of its channels moves, down and up, in their order.
    fn rates_of_all(&mut self, now: Instant) -> Vec<(u64, u64)> {
        let ways: Vec<_> =
            self.core.peer_stats().map(|peer| (*peer.peer, (peer.downloaded_bytes, peer.uploaded_bytes))).collect();
        ways.iter().map(|(way, moved)| self.rates_of(way, *moved, now)).collect()
    }

    /// Who may still bring what is missing.
    pub(crate) fn sources(&self) -> Sources {
        let is_opening = self.info.is_some() && self.storage.is_none();
        let mut is_any_wanted = false;
        let mut is_any_serving = false;
        for peer in self.core.peer_stats() {
            is_any_wanted |= peer.is_wanted;
            is_any_serving |= peer.is_wanted && !peer.chokes_us;
        }
        Sources {
            is_waiting: !self.live.as_ref().is_some_and(|live| live.is_source || live.is_ended())
                && !is_opening
                && !self.is_finished
                && !self.is_held()
                && !self.stopping,
            connections: self.conn_count(),
            is_any_wanted,
            is_any_serving,
            trackers: self.trackers_left,
            dht: false,
            heard_of: self.peers.heard_of(),
            named: self.peers.named(),
            web_seeds: Vec::new(),
        }
    }

    /// The user or the link named a peer.
    pub(crate) fn name_peer(&mut self, peer: Endpoint, now: Instant) {
        if peer.socket_addr().port() == 0 || peer.ip().is_unspecified() {
            let reason = "nobody can be dialled at such an address: give a host and its port".to_owned();
            return self.tell(EventKind::PeerFailed { address: peer, reason, is_final: true });
        }
        self.peers.name(peer, now);
        self.wake.notify_one();
    }
}
