//! Looking in: totals, rates and lists for people and for the driver.

use std::sync::Arc;
use std::time::Instant;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::{Info, Sha256Digest};
use anabranch_paths::{Endpoint, PathId};

use super::conn::Conn;
use super::{ConnId, PathState, Torrent};
use crate::PeerKey;
use crate::extension::{Extension, PeerIdentity, Wish};

/// Totals and rates for progress.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TorrentStats {
    /// Payload received, wasted or not.
    pub downloaded_bytes: u64,
    /// Payload sent.
    pub uploaded_bytes: u64,
    /// Payload received twice, unasked, or failing its hash.
    pub wasted_bytes: u64,
    /// Bytes per second, now.
    pub download_rate_bytes: u64,
    /// Bytes per second, now.
    pub upload_rate_bytes: u64,
    /// Connected peers, however many connections each has.
    pub peers: u32,
    /// Of these, peers that have everything.
    pub seeds: u32,
}

/// One line of a peer list.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerStats {
    /// The connection.
    pub conn: ConnId,
    /// Its address-level peer.
    pub peer: PeerKey,
    /// The path it takes, where the driver said.
    pub path: Option<PathId>,
    /// What the driver said of the path.
    pub path_state: PathState,
    /// Address of the other end.
    pub address: Endpoint,
    /// What the peer calls itself, made safe for display.
    pub client: Option<String>,
    /// Bytes per second from the peer.
    pub download_rate_bytes: u64,
    /// Bytes per second to the peer.
    pub upload_rate_bytes: u64,
    /// Payload from the peer.
    pub downloaded_bytes: u64,
    /// Payload to the peer.
    pub uploaded_bytes: u64,
    /// Pieces the peer has.
    pub pieces: u32,
    /// The peer does not serve us now.
    pub choking_us: bool,
    /// We do not serve the peer now.
    pub choking: bool,
    /// Bytes requested and not yet here.
    pub requested_bytes: u64,
}

/// An address-level peer, as whoever chooses its paths sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerView {
    /// Which.
    pub peer: PeerKey,
    /// Its connections that are not about to end, oldest first.
    pub conns: Vec<ConnId>,
    /// Where it can be dialled, each address once.
    pub listens: Vec<Endpoint>,
    /// What it calls itself: a claim, unless the core knows all connections that make it as one peer's.
    pub name: Option<PeerIdentity>,
    /// It understands `ab_paths`.
    pub speaks_paths: bool,
    /// What it wants of us.
    pub wish: Option<Wish>,
    /// It wants content of ours.
    pub is_interested: bool,
    /// We serve it.
    pub is_served: bool,
    /// It has content that we want.
    pub is_wanted: bool,
}

impl Torrent {
    /// The connected peers.
    pub fn peer_views(&self) -> Vec<PeerView> {
        let view = |(key, peer): (&PeerKey, &super::peers::Peer)| {
            let live: Vec<(ConnId, &Conn)> = self.live_paths(*key).collect();
            let any = |test: &dyn Fn(&Conn) -> bool| live.iter().any(|(_, conn)| test(conn));
            let mut listens: Vec<Endpoint> = live.iter().filter_map(|(_, conn)| conn.listen_address()).collect();
            listens.sort_unstable();
            listens.dedup();
            (!live.is_empty()).then(|| PeerView {
                peer: *key,
                conns: live.iter().map(|(id, _)| *id).collect(),
                listens,
                name: live.iter().find_map(|(_, conn)| conn.claimed),
                speaks_paths: any(&|conn| conn.extensions.get(Extension::Paths).is_some()),
                wish: peer.talk.their_wish(),
                is_interested: any(&|conn| conn.interested_in_us),
                is_served: any(&|conn| conn.interested_in_us && !conn.choking),
                is_wanted: any(&|conn| conn.interested),
            })
        };
        self.peers.iter().filter_map(view).collect()
    }

    /// Whether any connected peer wants content of ours: what is got now may be asked for at once.
    pub fn is_anyone_interested(&self) -> bool {
        self.conns.values().any(|conn| conn.interested_in_us && !conn.closing)
    }

    /// The address-level peer at the end of a connection.
    pub fn peer_of(&self, id: ConnId) -> Option<PeerKey> {
        self.conns.get(&id).map(|conn| conn.peer)
    }

    /// Whether something was asked of a connection's peer that did not come yet.
    pub fn owes(&self, id: ConnId) -> bool {
        let metadata = self.content.is_none();
        self.conns.get(&id).is_some_and(|conn| metadata || !conn.requests.is_empty())
    }

    /// What is downloaded, once known.
    pub fn info(&self) -> Option<&Arc<Info>> {
        self.content.as_ref().map(|content| &content.info)
    }

    /// The verified pieces, once the content is known.
    pub fn have(&self) -> Option<&Bitfield> {
        self.content.as_ref().map(|content| &content.have)
    }

    /// Whether every piece is verified.
    pub fn is_complete(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.have.is_full())
    }

    /// Whether every wanted piece is verified.
    pub fn is_finished(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.is_finished())
    }

    /// Piece layers known so far (BEP 52), to be kept with the metainfo.
    pub fn piece_layers(&self) -> impl Iterator<Item = (&Sha256Digest, &[Sha256Digest])> {
        self.content.iter().flat_map(|content| content.hashes.layers())
    }

    /// Whether the hash of every piece is known: there are no more [`Torrent::piece_layers`] to come.
    pub fn knows_all_layers(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.hashes.is_complete())
    }

    /// Bytes of wanted pieces: verified, and all. Pieces that are verified though not wanted count in both. `None` while
    /// the content is unknown.
    pub fn wanted_bytes(&self) -> Option<(u64, u64)> {
        let content = self.content.as_ref()?;
        Some((content.have_bytes, content.have_bytes + content.missing_bytes))
    }

    /// Bytes of all pieces that are not verified, wanted or not. `None` while the content is unknown.
    pub fn left_bytes(&self) -> Option<u64> {
        self.content.as_ref().map(|content| content.total_bytes - content.have_bytes)
    }

    /// Bytes that we have asked for and that are not here yet.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }

    /// Payload that a connection moved, both ways.
    pub fn conn_bytes(&self, id: ConnId) -> u64 {
        self.conns.get(&id).map_or(0, |conn| conn.downloaded_bytes + conn.uploaded_bytes)
    }

    /// Payload that came over a connection.
    pub fn conn_downloaded_bytes(&self, id: ConnId) -> u64 {
        self.conns.get(&id).map_or(0, |conn| conn.downloaded_bytes)
    }

    /// Where the peer at the other end of a connection can be dialled, as far as is known.
    pub fn listen_address(&self, id: ConnId) -> Option<Endpoint> {
        self.conns.get(&id)?.listen_address()
    }

    /// Whether a connection is there to the peer that can be dialled at this address, whoever opened it.
    pub fn is_connected_to(&self, address: &Endpoint) -> bool {
        self.conns.values().any(|conn| !conn.closing && conn.listen_address().as_ref() == Some(address))
    }

    /// Whether a connected peer has something that is missing.
    pub fn is_any_wanted(&self) -> bool {
        self.conns.values().any(|conn| self.has_wanted(conn))
    }

    /// Whether one of those serves us.
    pub fn is_any_serving(&self) -> bool {
        // Metadata is given to those that are choked too (BEP 9).
        self.conns.values().any(|conn| self.has_wanted(conn) && (self.metadata.is_some() || !conn.choking_us))
    }

    /// Whether the peer has something that is missing: of the metadata first, then of the content.
    fn has_wanted(&self, conn: &Conn) -> bool {
        let offers_metadata = || conn.metadata_size.is_some() && conn.extensions.get(Extension::Metadata).is_some();
        !conn.closing && if self.metadata.is_some() { offers_metadata() } else { conn.interested }
    }

    /// Whether the peer at the other end has all it wants.
    pub fn needs_nothing(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(|conn| conn.is_seed() || conn.upload_only)
    }

    /// Totals and rates.
    pub fn stats(&mut self, now: Instant) -> TorrentStats {
        TorrentStats {
            download_rate_bytes: self.down.bytes_per_sec(now),
            upload_rate_bytes: self.up.bytes_per_sec(now),
            peers: self.peers.values().filter(|peer| !peer.conns.is_empty()).count() as u32,
            seeds: self.seeds,
            ..self.stats
        }
    }

    /// One entry a connection.
    pub fn peer_stats(&mut self, now: Instant) -> Vec<PeerStats> {
        let line = |(id, conn): (&ConnId, &mut Conn)| PeerStats {
            conn: *id,
            peer: conn.peer,
            path: conn.path,
            path_state: conn.path_state,
            address: conn.address,
            client: conn.client.clone(),
            download_rate_bytes: conn.down.bytes_per_sec(now),
            upload_rate_bytes: conn.up.bytes_per_sec(now),
            downloaded_bytes: conn.downloaded_bytes,
            uploaded_bytes: conn.uploaded_bytes,
            pieces: conn.bits().map_or(0, Bitfield::count),
            choking_us: conn.choking_us,
            choking: conn.choking,
            requested_bytes: conn.requests.bytes(),
        };
        self.conns.iter_mut().map(line).collect()
    }

    /// Whether asking for blocks is stopped.
    pub fn is_paused(&self) -> bool {
        self.paused
    }
}
