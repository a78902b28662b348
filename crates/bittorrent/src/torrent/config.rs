//! What a torrent is told by its owner.

use std::time::Duration;

use anabranch_content::geometry::BLOCK_LEN;
use anabranch_paths::Endpoint;

use crate::choker;
use crate::picker::{PieceOrder, RequestStrategy};

/// Most bytes under way over one connection: 1 Gbit/s at 250 ms. The driver's memory bounds the sum.
pub(super) const PIPELINE_BYTES_MAX: u64 = 32 << 20;
/// Requests that a peer may have waiting at ours (our "reqq"): 32 MiB of blocks, enough for 1 Gbit/s at 250 ms.
pub const UPLOAD_QUEUE_MAX: usize = 2048;
/// Requests that cannot be served (choked, lacking, impossible, too many) before a peer is taken for hostile. A full pipeline
/// may cross every choke of ours, so several times [`UPLOAD_QUEUE_MAX`].
pub(super) const UPLOAD_OVERFLOW_MAX: u32 = 16 * 1024;
/// Of these, forgiven every tick: a full queue every eight seconds, less than a round of choking.
pub(super) const UPLOAD_OVERFLOW_LEAK: u32 = 64;
/// Longest request that we serve and, between ourselves, send: fewer messages per byte than the customary 16 KiB.
pub const REQUEST_LEN_MAX: u32 = crate::wire::BLOCK_LEN_MAX;
/// Requests never cross a multiple of this offset in their piece, so that every block lies in one receive buffer.
pub const REQUEST_BOUNDARY: u32 = 256 * 1024;
/// Messages beyond those that move something on (blocks, requests for them, pieces gained), of late, before a peer is taken for
/// hostile: chokes and interest that come and go, keep-alives, cancels, extension messages. A fast swarm of small pieces comes to
/// some thousands a second at worst.
pub(super) const CHATTER_MAX: u32 = 16 * 1024;
/// Of these, forgiven every tick: so 4096 a second at the most go on for long, a hundredth of a core.
pub(super) const CHATTER_LEAK: u32 = 1024;
/// Pieces whose coming or going counts as one message more, where a message speaks of all pieces at once: going through them
/// word by word takes about as long.
pub(super) const CHATTER_PIECES: u32 = 512;
/// Pieces that a peer may take back beyond as many as there are.
pub(super) const TAKEN_BACK_SPARE: u32 = 1024;
/// Blocks that a peer may send without ever having been asked before it is taken for hostile.
pub(super) const UNSOLICITED_MAX: u32 = 64;
/// Have messages kept per connection while the metadata, and so the piece count, is unknown.
pub(super) const PENDING_HAVES_MAX: usize = 16 * 1024;
/// Connections per torrent, whatever the driver allows: bounds every loop over peers.
pub const CONNECTIONS_MAX: usize = 4096;
/// What peers said of paths and the driver has not asked for: with more, the oldest is forgotten, as it can be looked up.
pub(super) const PATH_EVENTS_MAX: usize = 1024;
/// Pieces that a peer may name as allowed while it chokes us; BEP 6 suggests 10.
pub(super) const ALLOWED_FAST_MAX: usize = 32;
/// What each such word beyond these, or said again, counts as more in messages ([`CHATTER_MAX`]): no client says it of thousands
/// of pieces, and its nine bytes are taken from a limited download.
pub(super) const ALLOWED_FAST_CHATTER: u32 = 7;
/// Pieces that a peer may reject in a row while it does not choke us, before it is left alone for [`REJECTED_PAUSE`].
pub(super) const REJECTED_MAX: u32 = 64;
/// See [`REJECTED_MAX`].
pub(super) const REJECTED_PAUSE: Duration = Duration::from_secs(5);
/// How long a peer that let its time run out is not asked; twice as long after every further time, until it sends a block, ...
pub(super) const TIMEOUT_REST: Duration = Duration::from_secs(1);
/// ... and at most this long.
pub(super) const TIMEOUT_REST_MAX: Duration = Duration::from_secs(120);
/// Bytes of control messages waiting for a peer, beside a bitfield, above which its next message ends the connection: it does
/// not read. Above what a full pipeline takes (2,048 requests, as many cancels) and the refusals of [`UPLOAD_OVERFLOW_MAX`]
/// requests; long answers and what we gained are not written before they can be sent.
pub(super) const OUT_BYTES_MAX: usize = 512 << 10;
/// A limit on uploads is shared by blocks: none is to take longer than this under it. From a megabyte per second on, that shortens none:
/// where twenty share the work of a slow seed, blocks of an eighth as long are four times as often fetched twice.
const BLOCK_TIME: Duration = Duration::from_millis(150);
/// Extension messages of one connection that may be unreadable: they are left out, as the stream is still in step.
pub(super) const BAD_EXTENSIONS_MAX: u32 = 16;

/// The longest request that we want of our own kind, under a limit on uploads if there is one: blocks take turns, and with
/// long ones the turns of a low limit would be far apart.
pub(super) fn longest_block(upload_limit_bytes: Option<u64>) -> u32 {
    let Some(limit) = upload_limit_bytes else { return REQUEST_LEN_MAX };
    let len = (limit as f64 * BLOCK_TIME.as_secs_f64()) as u32 / BLOCK_LEN * BLOCK_LEN;
    len.clamp(BLOCK_LEN, REQUEST_LEN_MAX)
}

/// Choices and identity of one torrent.
#[derive(Clone, Debug)]
pub struct TorrentConfig {
    /// Our peer id (BEP 3).
    pub peer_id: [u8; 20],
    /// Where we listen, for the extension handshake's `p`; `None` when we do not.
    pub listen_port: Option<u16>,
    /// Where we listen over SCION, for the extension handshake's `ab_scion`; 0 where we only dial over it, `None` where we
    /// do not speak it and want no such addresses from peers.
    pub scion_port: Option<u16>,
    /// The port of our node of the distributed hash table over IP (BEP 5); `None` where there is none.
    pub dht_port: Option<u16>,
    /// The same over SCION.
    pub dht_scion_port: Option<u16>,
    /// Name and version for the extension handshake's `v`.
    pub client: String,
    /// Rarest first or in order.
    pub order: PieceOrder,
    /// How requests are spread over connections.
    pub strategy: RequestStrategy,
    /// Bytes of unverified pieces above which no further piece is begun.
    pub open_bytes_max: u64,
    /// Upload slots and their timing.
    pub choker: choker::Config,
    /// Whether peers may be exchanged (BEP 11); a private torrent never does (BEP 27).
    pub pex: bool,
    /// Whether we take part in hole punching (BEP 55): where we call peers over uTP. A private torrent never does.
    pub holepunch: bool,
    /// Whether peers are told that we rather have connections encrypted (`e` in the extension handshake).
    pub prefers_encryption: bool,
    /// Whether peers are told of pieces one by one, until they have all of them among them, where everything is here from the start
    /// (BEP 16).
    pub super_seed: bool,
    /// Where all random choices come from.
    pub seed: u64,
}

impl TorrentConfig {
    /// The port of our node in the network that `address` is in.
    pub(super) fn dht_port_for(&self, address: &Endpoint) -> Option<u16> {
        if address.as_scion().is_some() { self.dht_scion_port } else { self.dht_port }
    }
}

impl Default for TorrentConfig {
    /// Nobody in particular, who does not listen.
    fn default() -> Self {
        Self {
            peer_id: [0; 20],
            listen_port: None,
            scion_port: None,
            dht_port: None,
            dht_scion_port: None,
            client: String::new(),
            order: PieceOrder::default(),
            strategy: RequestStrategy::default(),
            open_bytes_max: crate::picker::PickerConfig::default().open_bytes_max,
            choker: choker::Config::default(),
            pex: true,
            holepunch: true,
            prefers_encryption: false,
            super_seed: false,
            seed: 0,
        }
    }
}
