//! What a peer can do wrong on the wire.

use thiserror::Error;

use super::HashRequestError;

/// The peer broke the protocol. The stream cannot be read on: close the connection, and count it against the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// A length prefix above what the message may have, such as 4 GiB.
    #[error("peer announced a \"{message}\" message (number {id}) of {len} bytes; {limit} are allowed")]
    TooLong {
        /// The message's name.
        message: &'static str,
        /// The message's number.
        id: u8,
        /// Bytes after the length prefix, as the peer wrote.
        len: u32,
        /// The most bytes after the length prefix.
        limit: u32,
    },
    /// A message of fixed length, or a bitfield of a content whose pieces are known, has another length.
    #[error("peer sent a \"{message}\" message of {len} bytes instead of {expected}")]
    WrongLength {
        /// The message's name.
        message: &'static str,
        /// Bytes after the length prefix, as the peer wrote.
        len: u32,
        /// Bytes after the length prefix that it must, or must at least, have.
        expected: u32,
    },
    /// A block of no bytes, which nobody can have asked for.
    #[error("peer sent an empty block at byte {begin} of piece {piece}")]
    EmptyBlock {
        /// The piece it named.
        piece: u32,
        /// The offset it named, in bytes.
        begin: u32,
    },
    /// Hashes for a request that cannot be made (BEP 52).
    #[error("peer sent hashes for an impossible request: {0}")]
    HashHeader(#[from] HashRequestError),
    /// Not as many hashes as the message's own header says (BEP 52).
    #[error("peer sent {found} hashes where its message's header says {expected}")]
    HashCount {
        /// Whole hashes in the message.
        found: u32,
        /// Base hashes and uncles that the header says.
        expected: u32,
    },
}
