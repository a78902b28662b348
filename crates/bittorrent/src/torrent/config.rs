//! What a torrent is told by its owner.

use crate::choker;
use crate::picker::{Order, RequestStrategy};

/// Most bytes under way over one connection: 1 Gbit/s at 250 ms. The driver's memory bounds the sum.
pub(super) const PIPELINE_BYTES_MAX: u64 = 32 << 20;
/// Requests that a peer may have waiting at ours (our "reqq"): 32 MiB of blocks, enough for 1 Gbit/s at 250 ms.
pub const UPLOAD_QUEUE_MAX: usize = 2048;
/// Requests beyond [`UPLOAD_QUEUE_MAX`] that a peer may waste before it is taken for hostile.
pub(super) const UPLOAD_OVERFLOW_MAX: u32 = 16 * 1024;
/// Longest request that we serve and, between ourselves, send: fewer messages per byte than the customary 16 KiB.
pub const REQUEST_LEN_MAX: u32 = 128 * 1024;
/// Requests never cross a multiple of this offset in their piece, so that every block lies in one receive buffer.
pub const REQUEST_BOUNDARY: u32 = 256 * 1024;
/// Requests that we gave up but that may still be answered, remembered per connection.
pub(super) const LATE_MAX: usize = 4096;
/// Blocks that a peer may send without ever having been asked before it is taken for hostile.
pub(super) const UNSOLICITED_MAX: u32 = 64;
/// Have messages kept per connection while the metadata, and so the piece count, is unknown.
pub(super) const PENDING_HAVES_MAX: usize = 16 * 1024;
/// Connections per torrent, whatever the driver allows: bounds every loop over peers.
pub const CONNECTIONS_MAX: usize = 4096;
/// Pieces that a peer may be served while choked (BEP 6 suggests 10).
pub(super) const ALLOWED_FAST_MAX: usize = 32;

/// Choices and identity of one torrent.
#[derive(Clone, Debug)]
pub struct TorrentConfig {
    /// Our peer id (BEP 3).
    pub peer_id: [u8; 20],
    /// Where we listen, for the extension handshake's `p`; `None` when we do not.
    pub listen_port: Option<u16>,
    /// Name and version for the extension handshake's `v`.
    pub client: String,
    /// Rarest first or in order.
    pub order: Order,
    /// How requests are spread over connections.
    pub strategy: RequestStrategy,
    /// Bytes of unverified pieces above which no further piece is begun.
    pub open_bytes_max: u64,
    /// Upload slots and their timing.
    pub choker: choker::Config,
    /// Whether peers may be exchanged (BEP 11); a private torrent never does (BEP 27).
    pub pex: bool,
    /// Where all random choices come from.
    pub seed: u64,
}
