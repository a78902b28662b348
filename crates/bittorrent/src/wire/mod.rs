//! The peer wire protocol: messages after the handshake, to bytes and back.
//!
//! Sending: [`Message::encode`] appends to a buffer; a block goes as [`piece_header`] followed by its bytes, which the
//! driver sends from where they lie. Receiving: a [`Receiver`] reads the stream however it is cut. It copies nothing that
//! came in one part, and of a block's payload it only counts the bytes, so that a driver may let the kernel write them
//! straight to where they belong.
//!
//! What a message means is left to the connection's state machine; here it is only checked that it is well formed and
//! within its limits. Unknown messages are skipped and counted.
//!
//! ```
//! use anabranch_bittorrent::wire::{BlockRange, Event, Limits, Message, Receiver, piece_header};
//!
//! let mut stream = Vec::new();
//! Message::Have(5).encode(&mut stream);
//! stream.extend(piece_header(5, 0, 3));
//! stream.extend(b"abc");
//!
//! let mut receiver = Receiver::default();
//! let mut input = &stream[..];
//! let limits = Limits { piece_count: Some(9), ..Limits::default() };
//! let mut next = || receiver.next(&mut input, &limits).unwrap().map(|event| format!("{event:?}"));
//! assert_eq!(next().as_deref(), Some("Message(Have(5))"));
//! assert_eq!(next().as_deref(), Some("BlockStart(BlockRange { piece: 5, begin: 0, len: 3 })"));
//! assert_eq!(next().as_deref(), Some("BlockData([97, 98, 99])"));
//! assert_eq!(next().as_deref(), Some("BlockEnd"));
//! assert_eq!(next(), None);
//! ```

mod allowed_fast;
mod error;
mod hashes;
mod message;
mod receiver;
#[cfg(test)]
mod tests;

pub use allowed_fast::{ALLOWED_FAST_MAX, allowed_fast};
pub use anabranch_content::geometry::BlockRange;
pub use error::WireError;
pub use hashes::{HASH_COUNT_MAX, HashRequestError, Hashes, TreeRequest};
pub use message::{Message, PIECE_HEADER_LEN, piece_header};
pub use receiver::{Event, Limits, Receiver};

use anabranch_content::metainfo::limits::PIECES_MAX;

/// Bytes of a block that a peer may ask for or send in one message. 16 KiB is the custom and what others get (BEP 3 as
/// practised); our own kind agrees on up to this by its extension handshake, for fewer messages a byte.
pub const BLOCK_LEN_MAX: u32 = 128 * 1024;

/// Bytes of a bitfield taken before the number of pieces is known: as many pieces as a torrent may have.
pub const BITFIELD_LEN_MAX: u32 = (PIECES_MAX / 8) as u32;

/// Bytes of an extended message after its number. The longest that peers send in earnest is a block of metadata: 16 KiB
/// and a small dictionary (BEP 9); peer exchange of old clients, uncut, stays below as well.
pub const EXTENDED_LEN_MAX: u32 = 128 * 1024;

/// Bytes of a message whose number we do not know, skipped without being kept.
pub const UNKNOWN_LEN_MAX: u32 = 128 * 1024;

/// Message numbers.
mod id {
    pub(super) const CHOKE: u8 = 0;
    pub(super) const UNCHOKE: u8 = 1;
    pub(super) const INTERESTED: u8 = 2;
    pub(super) const NOT_INTERESTED: u8 = 3;
    pub(super) const HAVE: u8 = 4;
    pub(super) const BITFIELD: u8 = 5;
    pub(super) const REQUEST: u8 = 6;
    pub(super) const PIECE: u8 = 7;
    pub(super) const CANCEL: u8 = 8;
    /// BEP 5.
    pub(super) const PORT: u8 = 9;
    // BEP 6.
    pub(super) const SUGGEST: u8 = 13;
    pub(super) const HAVE_ALL: u8 = 14;
    pub(super) const HAVE_NONE: u8 = 15;
    pub(super) const REJECT: u8 = 16;
    pub(super) const ALLOWED_FAST: u8 = 17;
    /// BEP 10.
    pub(super) const EXTENDED: u8 = 20;
    // BEP 52.
    pub(super) const HASH_REQUEST: u8 = 21;
    pub(super) const HASHES: u8 = 22;
    pub(super) const HASH_REJECT: u8 = 23;

    /// The message's name in the specifications.
    pub(super) fn name(id: u8) -> &'static str {
        match id {
            CHOKE => "choke",
            UNCHOKE => "unchoke",
            INTERESTED => "interested",
            NOT_INTERESTED => "not interested",
            HAVE => "have",
            BITFIELD => "bitfield",
            REQUEST => "request",
            PIECE => "piece",
            CANCEL => "cancel",
            PORT => "port",
            SUGGEST => "suggest piece",
            HAVE_ALL => "have all",
            HAVE_NONE => "have none",
            REJECT => "reject request",
            ALLOWED_FAST => "allowed fast",
            EXTENDED => "extended",
            HASH_REQUEST => "hash request",
            HASHES => "hashes",
            HASH_REJECT => "hash reject",
            _ => "unknown",
        }
    }

    /// Whether the number means something to us.
    pub(super) fn is_known(id: u8) -> bool {
        matches!(id, CHOKE..=PORT | SUGGEST..=ALLOWED_FAST | EXTENDED..=HASH_REJECT)
    }
}
