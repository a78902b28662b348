//! One content and all its connections: the state machine in the middle of the protocol.
//!
//! [`Torrent`] knows what every peer has, wants and owes. It is told of messages, blocks and time, and answers with
//! messages to send (per connection), blocks to upload, events and its next deadline. It never sees payload: the driver
//! puts the bytes of a block where they belong and says that they came, hashes and writes a piece when told that it is
//! whole, and reports the verdict.
//!
//! | file | idea |
//! | --- | --- |
//! | `mod.rs` | connections come and go, messages are dispatched |
//! | `requests.rs` | what we ask for, and what becomes of it |
//! | `uploads.rs` | what is asked of us; choking |
//! | `verify.rs` | pieces that pass or fail, and whose fault that is |
//! | `exchange.rs` | extension messages: metadata, peers |
//! | `hashes.rs` | Merkle layers, fetched and served (BEP 52) |

mod config;
mod conn;
mod event;
mod exchange;
mod hashes;
mod requests;
#[cfg(test)]
mod tests;
mod uploads;
mod verify;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::{Info, InfoHashes, Sha256Digest};

pub use config::{CONNECTIONS_MAX, REQUEST_BOUNDARY, REQUEST_LEN_MAX, TorrentConfig, UPLOAD_QUEUE_MAX};
pub use conn::Negotiated;
pub use event::{Event, ExpectedHash, PieceOutcome, Placement};

use crate::blame::Blame;
use crate::choker::Choker;
use crate::extension::MetadataFetch;
use crate::handshake::Handshake;
use crate::picker::{Picker, PickerConfig, Priority};
use crate::wire::{Limits, Message};
use crate::{ConnId, PeerKey};
use conn::{Conn, Has};
use hashes::HashStore;

/// Silence after which we send a keep-alive (BEP 3: two minutes), with a margin for the way.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(100);
/// Silence after which a peer is gone: two keep-alives of theirs missed.
const SILENCE_MAX: Duration = Duration::from_secs(240);
/// How often time-driven duties of a torrent with connections run: the resolution of request timeouts.
const TICK: Duration = Duration::from_millis(250);
/// Banned peers from one address after which the address itself is refused. Loopback is exempt: it is one host's many programs.
const BANS_PER_ADDRESS: u32 = 3;
/// Bans remembered; the oldest are forgotten first.
const BANS_MAX: usize = 4096;
/// Address-level peers remembered for their credit; those without connections are forgotten first.
const PEERS_MAX: usize = 8192;

/// Why a connection is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The other end is this very program.
    #[error("connected to ourselves")]
    Ourselves,
    /// The peer is connected already, over the connection that stays.
    #[error("already connected to this peer")]
    Duplicate,
    /// The peer was banned.
    #[error("the peer was banned: {0}")]
    Banned(String),
    /// [`CONNECTIONS_MAX`] is reached.
    #[error("too many connections")]
    Full,
}

/// What a peer did that ends its connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerMisbehaved {
    /// A second bitfield, or one after other messages.
    #[error("it sent a bitfield twice")]
    BitfieldTwice,
    /// Wrong length or spare bits set.
    #[error("its bitfield does not fit {pieces} pieces")]
    BadBitfield {
        /// The torrent's piece count.
        pieces: u32,
    },
    /// An index past the end.
    #[error("it named piece {piece} of {pieces}")]
    NoSuchPiece {
        /// What it named.
        piece: u32,
        /// The torrent's piece count.
        pieces: u32,
    },
    /// A message that needs BEP 6, without having negotiated it.
    #[error("it used the fast extension without offering it")]
    FastNotNegotiated,
    /// A request that does not lie inside a piece, or is too long.
    #[error("it asked for bytes {begin}+{len} of piece {piece}")]
    BadRequest {
        /// Piece index.
        piece: u32,
        /// First byte.
        begin: u32,
        /// Length in bytes.
        len: u32,
    },
    /// More requests than its queue could ever hold.
    #[error("it flooded us with requests")]
    RequestFlood,
    /// Blocks nobody asked for.
    #[error("it sent blocks that were not asked for")]
    Unsolicited,
    /// An extension payload that cannot be read.
    #[error("it sent a malformed extension message: {0}")]
    BadExtension(String),
    /// Hashes that do not lead to the root.
    #[error("it sent Merkle hashes that do not lead to the root")]
    BadHashes,
}

/// An address-level peer: what credit and bans belong to.
struct Peer {
    peer_id: [u8; 20],
    address: SocketAddr,
    conns: Vec<ConnId>,
    /// Verified or not, bytes of content from and to this peer over all its connections.
    downloaded_bytes: u64,
    uploaded_bytes: u64,
}

/// What is known once the info dictionary is.
struct Content {
    info: Arc<Info>,
    have: Bitfield,
    picker: Picker,
    hashes: HashStore,
    blame: Blame,
    /// Whether [`Event::Finished`] was given for the current selection.
    finished: bool,
}

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
    /// Open connections.
    pub peers: u32,
    /// Of these, peers that have everything.
    pub seeds: u32,
}

/// One line of a peer list.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerStats {
    /// The connection.
    pub conn: ConnId,
    /// Address of the other end.
    pub address: SocketAddr,
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

/// One content and all its connections.
pub struct Torrent {
    hashes: InfoHashes,
    config: TorrentConfig,
    content: Option<Content>,
    metadata: Option<MetadataFetch>,
    conns: BTreeMap<ConnId, Conn>,
    peers: BTreeMap<PeerKey, Peer>,
    bans: VecDeque<(SocketAddr, [u8; 20], String)>,
    next_conn: u32,
    next_peer: u32,
    choker: Choker,
    next_tick: Instant,
    paused: bool,
    room_bytes: u64,
    dirty: Vec<ConnId>,
    events: VecDeque<Event>,
    stats: TorrentStats,
    /// Whose connection was which, for blame: outlives the connection.
    origins: BTreeMap<ConnId, PeerKey>,
}

impl Torrent {
    /// A torrent whose metadata is not known yet; it is fetched from peers (BEP 9) unless `set_content` comes first.
    pub fn new(hashes: InfoHashes, config: TorrentConfig, now: Instant) -> Self {
        let choker = Choker::new(config.choker, config.seed);
        Self {
            hashes,
            content: None,
            metadata: Some(MetadataFetch::new(hashes)),
            conns: BTreeMap::new(),
            peers: BTreeMap::new(),
            bans: VecDeque::new(),
            next_conn: 0,
            next_peer: 0,
            choker,
            next_tick: now,
            paused: false,
            room_bytes: u64::MAX,
            dirty: Vec::new(),
            events: VecDeque::new(),
            stats: TorrentStats::default(),
            origins: BTreeMap::new(),
            config,
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
        let mut have = have;
        // Pieces of nothing but padding are zeros: there is nothing to fetch.
        (0..have.len()).filter(|piece| info.geometry.block_count(*piece) == 0).for_each(|piece| {
            have.set(piece);
        });
        let picker_config = PickerConfig {
            order: self.config.order,
            strategy: self.config.strategy,
            seed: self.config.seed,
            open_bytes_max: self.config.open_bytes_max,
        };
        let mut picker = Picker::new(info.geometry.clone(), &have, picker_config);
        let hashes = HashStore::new(&info, layers);
        for piece in hashes.unknown_pieces(&info) {
            picker.set_fetchable(piece, false);
        }
        for (piece, priority) in priorities {
            picker.set_priority(piece, priority);
        }
        if info.private {
            self.config.pex = false;
        }
        let blame = Blame::new();
        self.content = Some(Content { info, have, picker, hashes, blame, finished: false });
        self.metadata = None;
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            if let Err(fault) = self.replay_pending(id, now) {
                self.close(id, &fault.to_string());
            }
        }
        self.check_finished();
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
        conn.bitfield_seen = false;
        if conn.extended {
            // The first one could not say how long the metadata is, which others may be waiting for (BEP 9).
            self.send_extended_handshake(id);
        }
        self.announce_pieces(id);
        if all {
            self.on_has_all(id, now)?;
        } else if let Some(bytes) = bitfield {
            self.on_bitfield(id, &bytes, now)?;
        }
        haves.into_iter().try_for_each(|piece| self.on_have(id, piece, now))
    }

    /// Adds a connection whose handshakes were exchanged. Greetings are queued for it at once.
    pub fn connected(
        &mut self,
        address: SocketAddr,
        outgoing: bool,
        theirs: &Handshake,
        now: Instant,
    ) -> Result<ConnId, Refused> {
        if theirs.peer_id == self.config.peer_id {
            return Err(Refused::Ourselves);
        }
        if let Some(reason) = self.ban_reason(address, &theirs.peer_id) {
            return Err(Refused::Banned(reason));
        }
        if self.conns.len() >= CONNECTIONS_MAX {
            return Err(Refused::Full);
        }
        let peer = self.peer_key(address, theirs.peer_id);
        if let Some(&existing) = self.peers[&peer].conns.first() {
            // Both dialled each other: both sides keep the connection that the greater peer id opened.
            let keep_outgoing = self.config.peer_id > theirs.peer_id;
            if self.conns[&existing].outgoing == outgoing || outgoing != keep_outgoing {
                return Err(Refused::Duplicate);
            }
            self.close(existing, "replaced by the other connection to the same peer");
        }
        let negotiated = Negotiated {
            fast: theirs.reserved.fast(),
            extended: theirs.reserved.extension_protocol(),
            // BEP 52: the bit offers v2 to who was asked for the v1 hash; asking for the v2 hash says it by itself.
            v2: self.hashes.v2.is_some()
                && (theirs.reserved.v2() || Some(theirs.info_hash) == self.hashes.v2_truncated()),
        };
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        let pieces = self.content.as_ref().map(|content| content.info.geometry.piece_count());
        self.conns.insert(id, Conn::new(peer, address, outgoing, negotiated, pieces, now));
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.conns.push(id);
        }
        self.origins.insert(id, peer);
        if self.origins.len() > PEERS_MAX {
            self.origins.pop_first();
        }
        if negotiated.extended {
            self.send_extended_handshake(id);
        }
        if self.content.is_some() {
            self.announce_pieces(id);
        }
        Ok(id)
    }

    /// The connection is gone, whoever ended it.
    pub fn disconnected(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.remove(&id) else { return };
        if let Some(content) = &mut self.content {
            content.picker.forget(id);
            if let Some(bits) = conn.bits() {
                content.picker.peer_left(bits);
            }
            content.hashes.connection_lost(id);
        }
        if let Some(metadata) = &mut self.metadata {
            metadata.remove_peer(id);
        }
        if let Some(peer) = self.peers.get_mut(&conn.peer) {
            peer.conns.retain(|other| *other != id);
        }
        self.choker.on_gone(conn.peer, id, now);
        self.fill_all_requests(now);
    }

    /// A message other than a block arrived.
    pub fn on_message(&mut self, id: ConnId, message: Message<'_>, now: Instant) -> Result<(), PeerMisbehaved> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        conn.last_received = now;
        let needs_fast = matches!(
            message,
            Message::HaveAll | Message::HaveNone | Message::Suggest(_) | Message::Reject(_) | Message::AllowedFast(_)
        );
        if needs_fast && !conn.fast {
            return Err(PeerMisbehaved::FastNotNegotiated);
        }
        match message {
            Message::KeepAlive | Message::Port(_) | Message::Suggest(_) => {}
            Message::Choke => self.on_choke(id, now),
            Message::Unchoke => {
                conn.choking_us = false;
                self.fill_requests(id, now);
            }
            Message::Interested => {
                conn.interested_in_us = true;
                self.on_interested(id, now);
            }
            Message::NotInterested => {
                conn.interested_in_us = false;
                self.on_uninterested(id, now);
            }
            Message::Have(piece) => self.on_have(id, piece, now)?,
            Message::Bitfield(bytes) => self.on_bitfield(id, bytes, now)?,
            Message::HaveAll => self.on_has_all(id, now)?,
            Message::HaveNone => self.on_has_none(id)?,
            Message::Request(range) => self.on_request(id, range)?,
            Message::Cancel(range) => self.on_cancel(id, range),
            Message::Reject(range) => self.on_reject(id, range, now),
            Message::AllowedFast(piece) => self.on_allowed_fast(id, piece, now)?,
            Message::Extended { id: extension, payload } => self.on_extended(id, extension, payload, now)?,
            Message::HashRequest(request) => self.on_hash_request(id, request),
            Message::Hashes(hashes) => self.on_hashes(id, &hashes, now)?,
            Message::HashReject(_) => self.on_hash_reject(id, now),
        }
        Ok(())
    }

    /// Limits for the framer of every connection; they tighten once the piece count is known.
    pub fn wire_limits(&self) -> Limits {
        Limits {
            piece_count: self.content.as_ref().map(|content| content.info.geometry.piece_count()),
            block_len_max: REQUEST_LEN_MAX,
        }
    }

    fn on_bitfield(&mut self, id: ConnId, bytes: &[u8], now: Instant) -> Result<(), PeerMisbehaved> {
        let pieces = self.piece_count();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        if std::mem::replace(&mut conn.bitfield_seen, true) {
            return Err(PeerMisbehaved::BitfieldTwice);
        }
        if let Has::Pending { bitfield, .. } = &mut conn.has {
            *bitfield = Some(bytes.to_vec());
            return Ok(());
        }
        let bits = Bitfield::from_bytes(bytes, pieces).ok_or(PeerMisbehaved::BadBitfield { pieces })?;
        self.set_peer_pieces(id, bits, now);
        Ok(())
    }

    fn on_has_all(&mut self, id: ConnId, now: Instant) -> Result<(), PeerMisbehaved> {
        let pieces = self.piece_count();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        if std::mem::replace(&mut conn.bitfield_seen, true) {
            return Err(PeerMisbehaved::BitfieldTwice);
        }
        if let Has::Pending { all, .. } = &mut conn.has {
            *all = true;
            return Ok(());
        }
        self.set_peer_pieces(id, Bitfield::full(pieces), now);
        Ok(())
    }

    fn on_has_none(&mut self, id: ConnId) -> Result<(), PeerMisbehaved> {
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        if std::mem::replace(&mut conn.bitfield_seen, true) { Err(PeerMisbehaved::BitfieldTwice) } else { Ok(()) }
    }

    fn set_peer_pieces(&mut self, id: ConnId, bits: Bitfield, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        if let Has::Known(old) = &conn.has {
            content.picker.peer_left(old);
        }
        content.picker.peer_joined(&bits);
        conn.has = Has::Known(bits);
        self.update_interest(id, now);
        self.ask_for_hashes(id, now);
        self.close_if_useless(id);
    }

    fn on_have(&mut self, id: ConnId, piece: u32, now: Instant) -> Result<(), PeerMisbehaved> {
        let pieces = self.piece_count();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        let Has::Known(bits) = &mut conn.has else {
            conn.pend_have(piece);
            return Ok(());
        };
        if piece >= pieces {
            return Err(PeerMisbehaved::NoSuchPiece { piece, pieces });
        }
        if bits.set(piece)
            && let Some(content) = &mut self.content
        {
            content.picker.peer_has(piece, bits);
            if !conn.interested && content.picker.wants(piece) {
                self.update_interest(id, now);
            } else if conn.interested && conn.requests.is_empty() {
                self.fill_requests(id, now);
            }
            self.close_if_useless(id);
        }
        Ok(())
    }

    /// Two peers that both only upload have nothing to say to each other (BEP 21).
    fn close_if_useless(&mut self, id: ConnId) {
        let complete = self.is_complete();
        if let Some(conn) = self.conns.get(&id)
            && complete
            && (conn.is_seed() || conn.upload_only)
            && !conn.interested_in_us
        {
            self.close(id, "both of us only upload");
        }
    }

    /// Greets a connection with the pieces that we have (BEP 3 and BEP 6).
    fn announce_pieces(&mut self, id: ConnId) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &self.content) else { return };
        let message = match (content.have.is_full(), content.have.count()) {
            (true, 1..) if conn.fast => Message::HaveAll,
            (_, 0) if conn.fast => Message::HaveNone,
            (_, 0) => return,
            _ => Message::Bitfield(content.have.as_bytes()),
        };
        message.encode(&mut conn.out);
        self.touch(id);
    }

    fn update_interest(&mut self, id: ConnId, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &self.content) else { return };
        let interesting = conn.bits().is_some_and(|bits| content.picker.is_interesting(bits));
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

    // ---- time ----

    /// Does what time asks for.
    pub fn on_time(&mut self, now: Instant) {
        if self.choker.deadline().is_some_and(|deadline| deadline <= now) {
            self.rechoke(now);
        }
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            self.check_silence(id, now);
            self.check_requests(id, now);
            self.send_peers(id, now);
        }
        self.fetch_metadata(now);
        self.fetch_hashes(now);
    }

    /// When [`Torrent::on_time`] wants to be called next, if at all.
    pub fn next_deadline(&self) -> Option<Instant> {
        (!self.conns.is_empty()).then(|| self.choker.deadline().map_or(self.next_tick, |at| at.min(self.next_tick)))
    }

    fn check_silence(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if now.duration_since(conn.last_received) > SILENCE_MAX {
            self.close(id, "it was silent for too long");
        } else if now.duration_since(conn.last_sent) > KEEP_ALIVE_EVERY {
            conn.last_sent = now;
            Message::KeepAlive.encode(&mut conn.out);
            self.touch(id);
        }
    }

    // ---- output ----

    /// Connections that have something to send since the last call.
    pub fn take_dirty(&mut self, into: &mut Vec<ConnId>) {
        for id in self.dirty.drain(..) {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.dirty = false;
                into.push(id);
            }
        }
    }

    /// Moves the control messages of `id` to the end of `into`.
    pub fn take_output(&mut self, id: ConnId, into: &mut Vec<u8>, now: Instant) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !conn.out.is_empty()
        {
            into.append(&mut conn.out);
            conn.last_sent = now;
        }
    }

    /// Bytes of control messages that wait to be taken.
    pub fn output_len(&self, id: ConnId) -> usize {
        self.conns.get(&id).map_or(0, |conn| conn.out.len())
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- looking in ----

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
        self.content.as_ref().is_some_and(|content| content.picker.wanted_missing_count() == 0)
    }

    /// Piece layers known so far (BEP 52), to be kept with the metainfo.
    pub fn piece_layers(&self) -> impl Iterator<Item = (&Sha256Digest, &[Sha256Digest])> {
        self.content.iter().flat_map(|content| content.hashes.layers())
    }

    /// Bytes of wanted pieces: verified, and all. `None` while the content is unknown.
    pub fn wanted_bytes(&self) -> Option<(u64, u64)> {
        let content = self.content.as_ref()?;
        let geometry = &content.info.geometry;
        // Wanted pieces are either verified or missing; both kinds are rarely all but a few of the same length.
        let mut done = 0;
        let mut total = 0;
        for piece in 0..geometry.piece_count() {
            let (have, wanted) = (content.have.get(piece), content.picker.wants(piece));
            let len = u64::from(geometry.data_len(piece));
            done += if have { len } else { 0 };
            total += if have || wanted { len } else { 0 };
        }
        Some((done, total))
    }

    /// Payload that a connection moved, both ways.
    pub fn conn_bytes(&self, id: ConnId) -> u64 {
        self.conns.get(&id).map_or(0, |conn| conn.downloaded_bytes + conn.uploaded_bytes)
    }

    /// Totals and rates.
    pub fn stats(&mut self, now: Instant) -> TorrentStats {
        let mut stats = self.stats;
        for conn in self.conns.values_mut() {
            stats.download_rate_bytes += conn.down.bytes_per_sec(now);
            stats.upload_rate_bytes += conn.up.bytes_per_sec(now);
            stats.peers += 1;
            stats.seeds += u32::from(conn.is_seed());
        }
        stats
    }

    /// One entry a connection.
    pub fn peer_stats(&mut self, now: Instant) -> Vec<PeerStats> {
        let line = |(id, conn): (&ConnId, &mut Conn)| PeerStats {
            conn: *id,
            address: conn.address,
            client: conn.client.clone(),
            download_rate_bytes: conn.down.bytes_per_sec(now),
            upload_rate_bytes: conn.up.bytes_per_sec(now),
            downloaded_bytes: conn.downloaded_bytes,
            uploaded_bytes: conn.uploaded_bytes,
            pieces: conn.bits().map_or(0, Bitfield::count),
            choking_us: conn.choking_us,
            choking: conn.choking,
            requested_bytes: conn.requested_bytes,
        };
        self.conns.iter_mut().map(line).collect()
    }

    // ---- choices of the owner ----

    /// Sets how much a piece is wanted; [`Priority`] 0 leaves it out.
    pub fn set_priority(&mut self, piece: u32, priority: Priority, now: Instant) {
        if let Some(content) = &mut self.content {
            content.picker.set_priority(piece, priority);
            content.finished &= content.picker.wanted_missing_count() == 0;
        }
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        ids.into_iter().for_each(|id| self.update_interest(id, now));
        self.check_finished();
    }

    /// Whether asking for blocks is stopped.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Stops or restarts asking for blocks: while storage is out of order, say. Uploading goes on.
    pub fn set_paused(&mut self, paused: bool, now: Instant) {
        self.paused = paused;
        if !paused {
            self.fill_all_requests(now);
        }
    }

    // ---- helpers ----

    fn piece_count(&self) -> u32 {
        self.content.as_ref().map_or(0, |content| content.info.geometry.piece_count())
    }

    /// Marks a connection as having output.
    fn touch(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !std::mem::replace(&mut conn.dirty, true)
        {
            self.dirty.push(id);
        }
    }

    fn close(&mut self, id: ConnId, reason: &str) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !std::mem::replace(&mut conn.closing, true)
        {
            self.events.push_back(Event::Close { conn: id, reason: reason.to_owned() });
        }
    }

    fn check_finished(&mut self) {
        if let Some(content) = &mut self.content
            && !content.finished
            && content.picker.wanted_missing_count() == 0
        {
            content.finished = true;
            self.events.push_back(Event::Finished);
        }
    }

    /// The address-level peer behind an address and id: the same for all its connections.
    fn peer_key(&mut self, address: SocketAddr, peer_id: [u8; 20]) -> PeerKey {
        let known = self.peers.iter().find(|(_, peer)| peer.peer_id == peer_id && peer.address.ip() == address.ip());
        if let Some((key, _)) = known {
            return *key;
        }
        if self.peers.len() >= PEERS_MAX
            && let Some(idle) = self.peers.iter().find(|(_, peer)| peer.conns.is_empty()).map(|(key, _)| *key)
        {
            self.peers.remove(&idle);
        }
        let key = PeerKey(self.next_peer);
        self.next_peer += 1;
        self.peers.insert(key, Peer { peer_id, address, conns: Vec::new(), downloaded_bytes: 0, uploaded_bytes: 0 });
        key
    }

    /// A connection ended because its peer broke the protocol: the peer is not dealt with again.
    pub fn misbehaved(&mut self, id: ConnId, fault: &str) {
        if let Some(peer) = self.conns.get(&id).map(|conn| conn.peer) {
            self.ban(peer, fault);
        }
    }

    fn ban(&mut self, key: PeerKey, reason: &str) {
        let Some(peer) = self.peers.get(&key) else { return };
        let (address, conns) = (peer.address, peer.conns.clone());
        if self.bans.len() >= BANS_MAX {
            self.bans.pop_front();
        }
        self.bans.push_back((address, peer.peer_id, reason.to_owned()));
        self.events.push_back(Event::Banned { peer: key, address, reason: reason.to_owned() });
        conns.into_iter().for_each(|id| self.close(id, reason));
    }

    fn ban_reason(&self, address: SocketAddr, peer_id: &[u8; 20]) -> Option<String> {
        let mut from_address = 0;
        for (banned, banned_id, reason) in &self.bans {
            if banned == &address || (banned.ip() == address.ip() && banned_id == peer_id) {
                return Some(reason.clone());
            }
            from_address += u32::from(banned.ip() == address.ip());
        }
        (from_address >= BANS_PER_ADDRESS && !address.ip().is_loopback())
            .then(|| format!("{from_address} peers at its address were banned"))
    }
}
