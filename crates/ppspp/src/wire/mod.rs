//! Datagrams and their messages (RFC 7574 §8).
//!
//! A datagram is a channel's number and messages after it; one without messages keeps the channel alive (§8.14). What the
//! messages look like depends on what the swarm agreed on: a [`Codec`] holds that. [`Opening`] reads the datagram that
//! opens a channel, before anything is agreed on; [`Messages`] the ones after it.
//!
//! Three dialects are spoken: RFC 7574; draft 10, which libswift speaks (no option for the chunk size, and unknown options
//! break it); and what libswift spoke before the drafts. The first datagram tells which.

mod addressing;
mod message;
mod options;
mod params;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use addressing::{Addressing, DoesNotFit};
pub use message::{LoneChunk, Message, Messages};
pub use options::{DiscardWindow, Handshake, Integrity, MESSAGE_TYPES, Opening, SupportedMessages};
pub use params::{Mismatch, SwarmParams};

use crate::hash::HashFunction;

/// A channel's number, which its receiver chose (RFC 7574 §3.11). Zero is nobody's.
pub type ChannelId = u32;

/// Longest datagram that is read: what UDP can carry.
pub const DATAGRAM_LEN_MAX: usize = 65_507;
/// Longest swarm identifier: an algorithm byte and an RSA key of 8192 bits with an exponent just as long, RFC 3110's form.
pub const SWARM_ID_LEN_MAX: usize = 1 + 3 + 2 * 1024;
/// Longest membership certificate that is kept: a datagram of the Internet's size has room for no more.
pub const CERTIFICATE_LEN_MAX: usize = 4096;
/// Chunks are at least one byte long and fit into a datagram beside their own header.
pub const CHUNK_LEN_MAX: u32 = 65_000;

/// How the peer writes its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// RFC 7574.
    Rfc7574,
    /// Draft 10 as libswift speaks it: RFC 7574 without the option of the chunk size; it drops handshakes with options that
    /// it does not know.
    Draft10,
    /// libswift before the drafts: the swarm is named by an INTEGRITY message, no options, no time in DATA.
    Legacy,
}

/// Everything that the form of messages depends on, once it is agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    /// The dialect.
    pub dialect: Dialect,
    /// How chunks are named.
    pub addressing: Addressing,
    /// Whose digests INTEGRITY messages carry.
    pub hash: HashFunction,
    /// Length of signatures in bytes; 0 where nothing is signed.
    pub signature_len: u16,
    /// Length of every chunk but the last, from 1 to [`CHUNK_LEN_MAX`] bytes; `None` where chunks differ.
    pub chunk_len: Option<u32>,
}

/// What is wrong with a datagram: always the peer's fault, and never more than this datagram's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// A message ends before its fields do.
    #[error("peer sent a datagram that ends within a message")]
    Truncated,
    /// A type of message without a meaning: its length is unknown, and so what follows.
    #[error("peer sent a message of the unknown type {0}")]
    UnknownMessage(u8),
    /// An option without a meaning: its length is unknown, and so what follows.
    #[error("peer sent the unknown handshake option {0}")]
    UnknownOption(u8),
    /// An option that came before.
    #[error("peer sent the handshake option {0} twice")]
    RepeatedOption(u8),
    /// An option's value that is not supported or has no meaning.
    #[error("peer sent the handshake option {0} with the unknown value {1}")]
    UnknownValue(u8, u8),
    /// The discard window comes before the addressing method that says how long it is (RFC 7574 §7.9).
    #[error("peer sent a discard window without the addressing method before it")]
    WindowBeforeAddressing,
    /// A swarm identifier, certificate or bitmap longer than there is any.
    #[error("peer sent a field of {0} bytes, longer than allowed")]
    TooLong(usize),
    /// A chunk specification whose end lies before its start, or that is no chunk or node where one is asked for.
    #[error("peer sent a chunk specification that makes no sense")]
    BadChunks,
    /// The first datagram of a channel does not start with a handshake.
    #[error("peer opens a channel without a handshake")]
    NoHandshake,
}

/// The channel that a datagram is for, and its messages. `None` for what is too short to name one.
pub fn split_channel(datagram: &[u8]) -> Option<(ChannelId, &[u8])> {
    let (channel, messages) = datagram.split_first_chunk()?;
    Some((u32::from_be_bytes(*channel), messages))
}

/// Reads fields in network byte order.
#[derive(Clone, Copy, Debug)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (field, rest) = self.0.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(*field)
    }

    fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }
}
