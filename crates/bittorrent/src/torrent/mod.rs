//! One content and all its connections: the state machine in the middle of the protocol.
//!
//! [`Torrent`] knows what every peer has, wants and owes. It is told of messages, blocks and time, and answers with
//! messages to send (per connection), blocks to upload, events and its next deadline. It never sees payload: the driver
//! puts the bytes of a block where they belong and says that they came, hashes and writes a piece when told that it is
//! whole, and reports the verdict.
//!
//! | file | idea |
//! | --- | --- |
//! | `mod.rs` | connections come and go, messages are dispatched, time passes |
//! | `content.rs` | pieces had and wanted, once the metadata is known |
//! | `pieces.rs` | what peers have, and whether that interests us |
//! | `requests.rs` | what we ask for, and when |
//! | `ledger.rs` | who was asked for which block, what is arriving, and what is here |
//! | `uploads.rs` | what is asked of us; choking |
//! | `suggesting.rs` | pieces that peers are suggested, and suggest (BEP 6) |
//! | `super_seeding.rs` | pieces that peers are told of one by one (BEP 16) |
//! | `verify.rs` | pieces that pass or fail, and whose fault that is |
//! | `answers.rs` | long answers, made when they can be sent |
//! | `exchange.rs` | extension messages: metadata, peers |
//! | `hashes.rs` | Merkle layers, fetched and served (BEP 52) |
//! | `paths.rs` | several connections of one peer: who brings a block first, paths that slow down or fail |
//! | `peers.rs` | address-level peers and their credit |
//! | `bans.rs` | whom the torrent does not deal with again, or not for a while |
//! | `fault.rs` | what a peer can do wrong, and what it costs it |
//! | `meeting.rs` | hole punching |
//! | `wishes.rs` | which paths are wanted, granted and used |
//! | `addresses.rs` | where else peers listen, and we |
//! | `look.rs` | totals and lists |
//!
//! # What the driver does
//! - After the handshakes: [`Torrent::connected`]; in the end, whoever ended it: [`Torrent::disconnected`], after
//!   [`Torrent::misbehaved`] where the peer was at fault.
//! - For bytes that arrive: a [`Receiver`](crate::wire::Receiver) cuts them. Messages go to [`Torrent::on_message`]; a block goes
//!   through [`Torrent::block_started`], which answers an [`Arriving`], and [`Torrent::block_finished`], which takes it back, asks
//!   whether the block is still wanted, and only then has it written. After a run of bytes: [`Torrent::payload_received`],
//!   [`Torrent::set_room`], [`Torrent::fill_requests`].
//! - Then, and after [`Torrent::on_time`], which wants to be called at [`Torrent::next_deadline`]: [`Torrent::poll_event`]
//!   until there is none, and for every connection of [`Torrent::take_dirty`]: send what [`Torrent::take_output`] has, then, as far
//!   as limits on uploads let it, what [`Torrent::take_answer`] writes and the blocks of [`Torrent::next_upload`], with
//!   [`Torrent::payload_sent`].
//!
//! With several paths to a peer, moreover: [`Torrent::set_identity_secret`] at first; [`Torrent::connected_over`] instead of
//! `connected`, with the path as it is seen from here whoever dialled; [`Torrent::set_path_rtt`] from time to time;
//! [`Torrent::set_path_state`] where it is known that a path fails, works again, or is to wait; and the talk of paths in
//! `wishes.rs`.
//!
//! ```
//! use std::time::Instant;
//! use anabranch_bittorrent::{handshake::{Handshake, Reserved}, torrent::{Torrent, TorrentConfig}};
//! use anabranch_content::info::InfoHashes;
//!
//! let (now, hashes) = (Instant::now(), InfoHashes { v1: Some([7; 20]), v2: None });
//! let mut torrent = Torrent::new(hashes, TorrentConfig { peer_id: [1; 20], ..TorrentConfig::default() }, now);
//! let theirs = Handshake { reserved: Reserved::OURS, info_hash: [7; 20], peer_id: [2; 20] };
//! let conn = torrent.connected("192.0.2.1:6881".parse().unwrap(), true, &theirs, now).unwrap();
//!
//! let (mut dirty, mut bytes) = (Vec::new(), Vec::new());
//! torrent.take_dirty(&mut dirty);
//! assert_eq!(dirty, [conn]);
//! torrent.take_output(conn, &mut bytes, now);
//! assert_eq!(bytes[4], 20, "an extension handshake: the metadata is not known yet");
//! assert!(torrent.next_deadline().is_some());
//! ```

mod addresses;
mod answers;
mod bans;
mod config;
mod conn;
mod content;
mod event;
mod exchange;
mod fault;
mod hashes;
mod ledger;
mod meeting;
mod neighbours;
mod paths;
mod peers;
mod pieces;
mod requests;
mod stats;
mod suggesting;
mod super_seeding;
#[cfg(test)]
mod tests;
mod uploads;
mod verify;
mod wishes;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_content::info::{Info, InfoHashes};
use anabranch_paths::Endpoint;

pub use crate::requests::Arriving;
pub use anabranch_paths::PathState;
pub use anabranch_paths::manager::PATHS_PER_PEER_MAX;
pub use bans::SUSPENSION;
pub use config::{CONNECTIONS_MAX, REQUEST_BOUNDARY, REQUEST_LEN_MAX, TorrentConfig, UPLOAD_QUEUE_MAX};
pub use conn::{Link, Negotiated};
pub use event::{Event, PathEvent, PieceOutcome};
pub use fault::PeerMisbehaved;
pub use stats::{PeerStats, PeerView, TorrentStats};

use crate::choker::Choker;
use crate::extension::{Challenge, MetadataFetch};
use crate::handshake::Handshake;
use crate::picker::BlockRef;
use crate::rate::Rate;
use crate::wire::{Limits, Message};
use crate::{ConnId, PeerKey};
use bans::Ban;
use config::{CHATTER_PIECES, OUT_BYTES_MAX};
use conn::{Conn, RATE_WINDOW};
use content::Content;
use meeting::Meetings;
use neighbours::Neighbours;
use peers::Peer;
use wishes::Wishes;

/// Silence after which we send a keep-alive (BEP 3: two minutes), with a margin for the way.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(100);
/// Silence after which a peer is gone: two keep-alives of theirs missed.
const SILENCE_MAX: Duration = Duration::from_secs(240);
/// Silence after which a connection gives way to a new one that its peer opens over the same path: more than it takes two that
/// are opened at once to meet.
const REPLACED_AFTER: Duration = Duration::from_secs(2);
/// How often time-driven duties of a torrent with connections run: the resolution of request timeouts.
const TICK: Duration = Duration::from_millis(250);

/// Why a connection is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The other end is this very program.
    #[error("connected to ourselves")]
    Ourselves,
    /// The peer is connected already, over the same path, by the connection that stays.
    #[error("already connected to this peer")]
    Duplicate,
    /// The peer has [`PATHS_PER_PEER_MAX`] connections.
    #[error("the peer has {PATHS_PER_PEER_MAX} connections already")]
    TooManyPaths,
    /// The peer was banned.
    #[error("the peer was banned: {0}")]
    Banned(String),
    /// The peer sent wrong data, for the first time: it may come again soon.
    #[error("{0}; for the next seconds it is not dealt with")]
    Suspended(String),
    /// [`CONNECTIONS_MAX`] is reached.
    #[error("too many connections")]
    Full,
}

/// One content and all its connections.
pub struct Torrent {
    hashes: InfoHashes,
    config: TorrentConfig,
    /// What our identities are made of.
    identity_secret: Option<[u8; 32]>,
    /// The key that our transport proves, where it does.
    node_key: Option<[u8; 32]>,
    content: Option<Content>,
    /// What the content is, from when that is known until it is here.
    expected: Option<Arc<Info>>,
    metadata: Option<MetadataFetch>,
    conns: BTreeMap<ConnId, Conn>,
    peers: BTreeMap<PeerKey, Peer>,
    bans: VecDeque<Ban>,
    next_conn: u32,
    next_peer: u32,
    neighbours: Box<Neighbours>,
    choker: Choker,
    next_tick: Instant,
    /// When every connection was last looked at, out of turn, for whether it can be asked for something.
    filled_all_at: Option<Instant>,
    rng: fastrand::Rng,
    paused: bool,
    room_bytes: u64,
    /// Sum of what all connections have requested.
    requested_bytes: u64,
    /// Room for the blocks of one pick: empty between two.
    picked: Vec<BlockRef>,
    /// Connections whose peer has everything.
    seeds: u32,
    dirty: Vec<ConnId>,
    events: VecDeque<Event>,
    wishes: Box<Wishes>,
    /// Who may be met through whom.
    meetings: Meetings,
    stats: TorrentStats,
    down: Rate,
    up: Rate,
    /// Whose connection was which, for blame: outlives the connection.
    origins: BTreeMap<ConnId, PeerKey>,
}

impl Torrent {
    /// A torrent whose metadata is not known yet; it is fetched from peers (BEP 9) unless `set_content` comes first.
    pub fn new(hashes: InfoHashes, config: TorrentConfig, now: Instant) -> Self {
        let choker = Choker::new(config.choker, config.seed);
        Self {
            hashes,
            identity_secret: None,
            node_key: None,
            content: None,
            expected: None,
            metadata: Some(MetadataFetch::new(hashes)),
            conns: BTreeMap::new(),
            peers: BTreeMap::new(),
            bans: VecDeque::new(),
            next_conn: 0,
            next_peer: 0,
            neighbours: Box::default(),
            choker,
            next_tick: now,
            filled_all_at: None,
            rng: fastrand::Rng::with_seed(config.seed),
            paused: false,
            room_bytes: u64::MAX,
            requested_bytes: 0,
            picked: Vec::new(),
            seeds: 0,
            dirty: Vec::new(),
            events: VecDeque::new(),
            wishes: Box::default(),
            meetings: Meetings::default(),
            stats: TorrentStats::default(),
            down: Rate::new(RATE_WINDOW),
            up: Rate::new(RATE_WINDOW),
            origins: BTreeMap::new(),
            config,
        }
    }

    /// Says what our identities are made of (see [`PeerIdentity`](crate::extension::PeerIdentity)), before the first connection.
    /// It follows from the node's key where there is one, so that a new run is known again. Without it, our connections over
    /// several addresses of ours are taken for those of several peers.
    pub fn set_identity_secret(&mut self, secret: [u8; 32]) {
        self.identity_secret = Some(secret);
    }

    /// Says by which key our transport proves us, where it does: peers show that they mean us by naming it.
    pub fn set_node_key(&mut self, key: [u8; 32]) {
        self.node_key = Some(key);
    }

    /// [`Torrent::connected_over`] a way that nobody knows: the only connection to its peer.
    pub fn connected(
        &mut self,
        address: Endpoint,
        outgoing: bool,
        theirs: &Handshake,
        now: Instant,
    ) -> Result<ConnId, Refused> {
        self.connected_over(
            Link { address, outgoing, path: None, key: None, local: None, over_utp: false, is_near: false },
            theirs,
            now,
        )
    }

    /// Adds a connection whose handshakes were exchanged. Greetings are queued for it at once. A peer may have one for every
    /// path, up to [`PATHS_PER_PEER_MAX`].
    pub fn connected_over(&mut self, link: Link, theirs: &Handshake, now: Instant) -> Result<ConnId, Refused> {
        if theirs.peer_id == self.config.peer_id {
            return Err(Refused::Ourselves);
        }
        if let Some(refused) = self.refuse_banned(&link, &theirs.peer_id, now) {
            return Err(refused);
        }
        if self.conns.len() >= CONNECTIONS_MAX {
            return Err(Refused::Full);
        }
        let peer = self.peer_key(&link, theirs.peer_id);
        let outgoing = link.outgoing;
        if let Some((existing, opened_by_us)) = self.live_connection(peer, link.path) {
            // Both dialled each other: both sides keep the connection that the greater peer id opened.
            let keep_outgoing = self.config.peer_id > theirs.peer_id;
            // Who opens the same way anew has lost the connection over it, which we may not notice for long.
            let is_lost = !outgoing && !opened_by_us && self.is_silent(existing, REPLACED_AFTER, now);
            if !is_lost && (opened_by_us == outgoing || outgoing != keep_outgoing) {
                if outgoing && let Some(conn) = self.conns.get_mut(&existing) {
                    // It has not said so itself, perhaps: there it listens, and need not be dialled again.
                    conn.listen_port = conn.listen_port.or(link.address.as_ip().map(|address| address.port()));
                }
                return Err(Refused::Duplicate);
            }
            self.close(existing, "replaced by the other connection to the same peer");
        }
        if self.live_paths(peer).count() >= PATHS_PER_PEER_MAX {
            return Err(Refused::TooManyPaths);
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
        let mut conn = Conn::new(peer, link, negotiated, pieces, now);
        conn.challenge = self.identity_secret.map(|secret| Challenge::new(&secret, self.config.seed, id.0));
        self.conns.insert(id, conn);
        self.join_peer(id, peer, now);
        self.note_origin(id, peer);
        self.send_extended_handshake(id);
        if self.content.is_some() {
            self.announce_pieces(id);
            self.grant_fast(id);
            self.tell_dht_port(id, theirs);
        }
        Ok(id)
    }

    fn is_silent(&self, id: ConnId, longer_than: Duration, now: Instant) -> bool {
        let conn = self.conns.get(&id);
        conn.is_some_and(|conn| now.saturating_duration_since(conn.last_received) > longer_than)
    }

    /// The connection is gone, whoever ended it.
    pub fn disconnected(&mut self, id: ConnId, now: Instant) {
        if let Some(ledger) = self.ledger(id) {
            ledger.forget();
        }
        self.tell_again(id);
        let Some(conn) = self.conns.remove(&id) else { return };
        if let Some(content) = &mut self.content {
            content.hashes.connection_lost(id);
            if self.conns.is_empty() {
                content.hashes.rest();
            }
        }
        if let Some(metadata) = &mut self.metadata {
            metadata.remove_peer(id);
        }
        self.meets_nobody_over(id);
        self.note_near_seed(&conn);
        self.leave_peer(id, &conn, now);
        self.choker.on_gone(conn.peer, id, now);
        if !conn.requests.is_empty() {
            self.fill_all_soon(now);
        }
    }

    /// A message other than a block arrived.
    pub fn on_message(&mut self, id: ConnId, message: Message<'_>, now: Instant) -> Result<(), PeerMisbehaved> {
        let out_max = self.output_len_max();
        let pieces = self.piece_count();
        let Some(conn) = self.conns.get_mut(&id) else { return Ok(()) };
        conn.last_received = now;
        if conn.closing {
            return Ok(());
        }
        if conn.out.len() > out_max {
            self.close(id, "it asks without reading the answers");
            return Ok(());
        }
        let needs_fast = matches!(
            message,
            Message::HaveAll | Message::HaveNone | Message::Suggest(_) | Message::Reject(_) | Message::AllowedFast(_)
        );
        if needs_fast && !conn.fast {
            return Err(PeerMisbehaved::FastNotNegotiated);
        }
        conn.chat(chatter_of(&message, pieces))?;
        let tells_of_pieces =
            matches!(message, Message::Have(_) | Message::Bitfield(_) | Message::HaveAll | Message::HaveNone);
        match message {
            Message::KeepAlive | Message::HaveNone => {}
            Message::Suggest(piece) => self.on_suggest(id, piece, now)?,
            Message::Port(port) => self.on_dht_port(id, port),
            // What is said twice changes nothing.
            Message::Choke if !conn.choking_us => self.on_choke(id, now),
            Message::Unchoke if conn.choking_us => self.on_unchoke(id, now),
            Message::Interested if !conn.interested_in_us => {
                conn.interested_in_us = true;
                self.on_interested(id, now);
            }
            Message::NotInterested if conn.interested_in_us => {
                conn.interested_in_us = false;
                self.on_uninterested(id, now);
            }
            Message::Choke | Message::Unchoke | Message::Interested | Message::NotInterested => {}
            Message::Have(piece) => self.on_have(id, piece, now)?,
            Message::Bitfield(bytes) => self.on_bitfield(id, bytes, now)?,
            Message::HaveAll => self.on_has_all(id, now)?,
            Message::Request(range) => self.on_request(id, range, now)?,
            Message::Cancel(range) => self.on_cancel(id, range),
            Message::Reject(range) => self.on_reject(id, range, now)?,
            Message::AllowedFast(piece) => self.on_allowed_fast(id, piece, now)?,
            Message::Extended { id: extension, payload } => self.on_extended(id, extension, payload, now)?,
            Message::HashRequest(request) => self.on_hash_request(id, request, now),
            Message::Hashes(hashes) => self.on_hashes(id, &hashes, now)?,
            Message::HashReject(request) => self.on_hash_reject(id, &request, now),
        }
        if tells_of_pieces {
            self.offer_pieces(now);
        }
        Ok(())
    }

    /// So many messages came that mean nothing to us. Newer clients send some; who sends thousands floods us.
    pub fn on_unknown(&mut self, id: ConnId, count: u32) -> Result<(), PeerMisbehaved> {
        let conn = self.conns.get_mut(&id).filter(|_| count > 0);
        conn.map_or(Ok(()), |conn| conn.chat(count))
    }

    /// Limits for the framer of every connection; they tighten once the piece count is known.
    pub fn wire_limits(&self) -> Limits {
        Limits {
            piece_count: self.content.as_ref().map(|content| content.info.geometry.piece_count()),
            block_len_max: REQUEST_LEN_MAX,
        }
    }

    // ---- time ----

    /// Does what time asks for. May be called at any time, any number of times.
    pub fn on_time(&mut self, now: Instant) {
        if self.next_tick <= now {
            self.check_slots(now);
        }
        if self.choker.deadline().is_some_and(|deadline| deadline <= now) {
            self.rechoke(now);
        }
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        self.divide_among_neighbours(now);
        let mut ids = self.conn_ids();
        self.rng.shuffle(&mut ids);
        for id in ids {
            self.check_silence(id, now);
            self.check_path(id, now);
            self.check_requests(id, now);
            self.talk_of_paths(id, now);
            self.tell_addresses(id, now);
            self.tell_late(id, now);
            self.end_interest(id, now);
        }
        self.exchange_peers(now);
        self.look_through_offers(now);
        self.suggest_to_all(now);
        self.fetch_metadata(now);
        self.fetch_hashes(now);
    }

    /// When [`Torrent::on_time`] wants to be called next, if at all.
    pub fn next_deadline(&self) -> Option<Instant> {
        (!self.conns.is_empty()).then(|| self.choker.deadline().map_or(self.next_tick, |at| at.min(self.next_tick)))
    }

    fn check_silence(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.leak_overflow();
        if now.saturating_duration_since(conn.last_received) > SILENCE_MAX {
            self.close(id, "it was silent for too long");
        } else if now.saturating_duration_since(conn.last_sent) > KEEP_ALIVE_EVERY {
            conn.last_sent = now;
            Message::KeepAlive.encode(&mut conn.out);
            self.touch(id);
        }
    }

    /// Stops or restarts asking for blocks: while storage is out of order, say. Uploading goes on.
    pub fn set_paused(&mut self, paused: bool, now: Instant) {
        self.paused = paused;
        if !paused {
            self.fill_all_requests(now);
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
        self.tell_news(id, now);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.out.is_empty() {
            into.append(&mut conn.out);
            conn.last_sent = now;
        }
    }

    /// Bytes of control messages that wait to be taken.
    pub fn output_len(&self, id: ConnId) -> usize {
        self.conns.get(&id).map_or(0, |conn| conn.out.len())
    }

    /// More than this waits for nobody that reads.
    pub fn output_len_max(&self) -> usize {
        OUT_BYTES_MAX + self.piece_count() as usize / 8
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- helpers ----

    fn conn_ids(&self) -> Vec<ConnId> {
        self.conns.keys().copied().collect()
    }

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

    /// Asks the driver to end a connection; nothing more is asked of it.
    fn close(&mut self, id: ConnId, reason: &str) {
        if let Some(conn) = self.conns.get_mut(&id)
            && !std::mem::replace(&mut conn.closing, true)
        {
            self.events.push_back(Event::Close { conn: id, reason: reason.to_owned() });
            self.give_up_requests(id);
        }
    }
}

/// What a message adds to what its sender says without moving anything on. Blocks never come here; requests, rejects and pieces that
/// a peer gained or suggests are counted where it shows whether they mean anything.
fn chatter_of(message: &Message<'_>, pieces: u32) -> u32 {
    match message {
        Message::Request(_) | Message::Reject(_) | Message::Have(_) | Message::Suggest(_) => 0,
        Message::Bitfield(bytes) => 1 + (bytes.len() * 8) as u32 / CHATTER_PIECES,
        Message::HaveAll => 1 + pieces / CHATTER_PIECES,
        _ => 1,
    }
}
