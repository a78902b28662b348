//! Bencode: the encoding of torrents, tracker replies and extension messages (BEP 3, "bencoding").
//!
//! [`parse`] reads a whole buffer, [`parse_prefix`] one value at its front and tells where it ended (BEP 9 puts piece
//! data after a dictionary). Both walk the bytes once, without recursion, and keep one small [token](Tree) a value, so
//! hostile nesting costs neither stack nor time. Strings are borrowed from the buffer, and every [`Value`] knows the
//! bytes it came from: info-hashes are taken over those, never over a re-encoding.
//!
//! What cannot be read at all is an [`Error`]. What can be read but is not canonical (a leading zero, keys out of
//! order) is a [`Finding`], and the caller decides: a v1 torrent with unsorted keys is in use somewhere, a v2 torrent
//! with them is not.
//!
//! ```
//! use anabranch_content::bencode::{self, DictBuilder, Limits};
//!
//! let bytes = DictBuilder::new().bytes("name", "spam").int("length", 3).encode();
//! assert_eq!(bytes, b"d6:lengthi3e4:name4:spame");
//! let tree = bencode::parse(&bytes, &Limits::default())?;
//! assert_eq!(tree.root().get("length").and_then(|length| length.as_int()), Some(3));
//! # Ok::<(), bencode::Error>(())
//! ```

mod encode;
mod parse;
mod value;

pub use encode::{DictBuilder, ListBuilder};
pub use parse::{parse, parse_prefix};
pub use value::{Finding, FindingKind, Tree, Value};

/// Bytes in one buffer: a `.torrent` file of this size describes over 3 million pieces.
pub const BYTES_MAX: usize = 64 << 20;
/// Containers inside each other: a file tree this deep has no use, and consumers may recurse over it.
pub const DEPTH_MAX: usize = 100;
/// Values in one buffer, keys and container ends included: bounds the token list to 48 MB.
pub const TOKENS_MAX: usize = 3_000_000;

/// What a buffer may ask of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes read at most; at most `u32::MAX`.
    pub bytes: usize,
    /// Containers inside each other at most.
    pub depth: usize,
    /// Values at most, keys included.
    pub tokens: usize,
}

impl Default for Limits {
    /// [`BYTES_MAX`], [`DEPTH_MAX`] and [`TOKENS_MAX`].
    fn default() -> Self {
        Self { bytes: BYTES_MAX, depth: DEPTH_MAX, tokens: TOKENS_MAX }
    }
}

impl Limits {
    /// For messages of peers and trackers, which have no reason to be deep or rich in values.
    pub const MESSAGE: Self = Self { bytes: 1 << 20, depth: 16, tokens: 20_000 };
}

/// The buffer is not bencode, or asks for more than the limits allow. The sender is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid bencode at byte {at}: {kind}")]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Where, in bytes from the front of the buffer.
    pub at: usize,
}

/// What is wrong with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The buffer ends inside a value.
    #[error("the data ends in the middle of a value")]
    UnexpectedEnd,
    /// A byte that begins no value.
    #[error("expected a value ('i', 'l', 'd' or a digit)")]
    ExpectedValue,
    /// A dictionary key that is not a string.
    #[error("expected a dictionary key (a string)")]
    ExpectedKey,
    /// A dictionary that ends after a key.
    #[error("the dictionary ends after a key without a value")]
    MissingValue,
    /// Something else than digits between `i` and `e`, or none.
    #[error("expected a number")]
    ExpectedDigit,
    /// A string's length is not followed by a colon.
    #[error("expected ':' after the length of a string")]
    ExpectedColon,
    /// A number outside 64 bits, signed.
    #[error("the number does not fit in 64 bits")]
    Overflow,
    /// Bytes after the value.
    #[error("unexpected data after the value")]
    TrailingData,
    /// Nested deeper than [`Limits::depth`].
    #[error("nested too deeply")]
    TooDeep,
    /// More values than [`Limits::tokens`].
    #[error("too many values")]
    TooManyValues,
    /// More bytes than [`Limits::bytes`].
    #[error("too large")]
    TooLarge,
}

#[cfg(test)]
mod tests;
