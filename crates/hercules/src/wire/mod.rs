//! What stands on the wire, byte for byte: `docs/bulk.md` says the same in words.
//!
//! | module | what |
//! | --- | --- |
//! | `aead` | what encrypts packets, and proves them right |
//! | [`seal`] | heads of packets, keys, replay: nothing passes that does not authenticate |
//! | [`control`] | what travels in sealed datagrams: the handshake of a path, marks, reports |
//! | [`message`] | what travels over a reliable stream: offer, kept, hashes, receipt |
//! | [`manifest`] | files, folders, links, modes, times and holes |
//! | [`receipt`], [`ticket`] | what is kept of a transfer, and what invites to one |
//!
//! Parsers are total: any bytes are a value or an error. Numbers are big-endian; a *varint* is that of RFC 9000 §16.

mod aead;
pub mod control;
pub mod manifest;
pub mod message;
pub mod receipt;
pub mod seal;
pub mod ticket;

/// Version of the protocol, in what callers say and in the offer. With the first, hashes were SHA-256.
pub const VERSION: u8 = 2;
/// Shortest chunk: below, heads cost more than they carry. An MTU of 576 leaves more.
pub const CHUNK_LEN_MIN: u16 = 256;
/// Longest chunk: what fits a UDP datagram over IPv6 behind SCION's longest headers.
pub const CHUNK_LEN_MAX: u16 = 64_000;
/// Chunks of one transfer: a set of them is at most 8 GiB where each second one is missing, 32 MiB where none is.
pub const CHUNKS_MAX: u64 = 1 << 36;
/// Bytes of one transfer.
pub const CONTENT_LEN_MAX: u64 = 1 << 50;
/// Paths of one transfer.
pub const PATHS_MAX: usize = 32;

/// Why bytes are nothing that the other end may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It ends too early.
    #[error("the other end sent a message that ends too early")]
    Truncated,
    /// More bytes than the message has.
    #[error("the other end sent a message with bytes behind its end")]
    Trailing,
    /// A type that this version does not know.
    #[error("the other end sent a message of unknown type {0}: is it a newer version?")]
    UnknownType(u8),
    /// A value that the protocol does not allow.
    #[error("the other end sent a message whose {0} is not allowed")]
    Invalid(&'static str),
    /// More than the named limit.
    #[error("the other end sent more {0} than is taken")]
    TooMany(&'static str),
}

/// Reads from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    /// RFC 9000 §16; like there, longer forms than needed are read.
    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        let first = *self.0.first().ok_or(WireError::Truncated)?;
        let bytes = self.take(1 << (first >> 6))?;
        Ok(bytes[1..].iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
    }

    pub(crate) fn finish(self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Trailing) }
    }
}

/// Largest value of a varint.
pub(crate) const VARINT_MAX: u64 = (1 << 62) - 1;

/// Bytes of `value` as a varint.
pub(crate) fn varint_len(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Writes `value`, at most [`VARINT_MAX`], in its shortest form (RFC 9000 §16).
pub(crate) fn put_varint(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value <= VARINT_MAX);
    match varint_len(value) {
        1 => out.push(value as u8),
        2 => out.extend((value as u16 | 0x4000).to_be_bytes()),
        4 => out.extend((value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend((value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// How many chunks of `chunk_len` bytes a content of `content_len` bytes has.
pub fn chunk_count(content_len: u64, chunk_len: u16) -> u64 {
    content_len.div_ceil(u64::from(chunk_len.max(1)))
}
