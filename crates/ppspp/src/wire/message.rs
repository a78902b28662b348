//! The messages of a channel whose form is agreed on (RFC 7574 §8.4 to §8.13).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;

use super::{CERTIFICATE_LEN_MAX, Codec, Dialect, DoesNotFit, Handshake, Opening, Reader, WireError};
use crate::bin::Bin;
use crate::hash::Digest;

/// Types of messages (RFC 7574 §8.2, table 7).
pub(super) mod kind {
    pub(crate) const HANDSHAKE: u8 = 0;
    pub(crate) const DATA: u8 = 1;
    pub(crate) const ACK: u8 = 2;
    pub(crate) const HAVE: u8 = 3;
    pub(crate) const INTEGRITY: u8 = 4;
    pub(crate) const PEX_RES_V4: u8 = 5;
    pub(crate) const PEX_REQ: u8 = 6;
    pub(crate) const SIGNED_INTEGRITY: u8 = 7;
    pub(crate) const REQUEST: u8 = 8;
    pub(crate) const CANCEL: u8 = 9;
    pub(crate) const CHOKE: u8 = 10;
    pub(crate) const UNCHOKE: u8 = 11;
    pub(crate) const PEX_RES_V6: u8 = 12;
    pub(crate) const PEX_RES_CERT: u8 = 13;
}

/// One message. Ranges of chunks may be empty where a bin says so, which means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Opens, answers or closes the channel (§8.4).
    Handshake(Handshake),
    /// A chunk (§8.6).
    Data {
        /// Its number.
        chunk: u64,
        /// The sender's clock when it left, in microseconds; 0 in the oldest dialect, which does not say.
        sent_us: u64,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// Chunks that arrived from the addressee and hold (§8.7).
    Ack {
        /// The chunks.
        chunks: Range<u64>,
        /// How long the last of them was on its way, by both clocks, in microseconds.
        delay_us: u64,
    },
    /// Chunks that the sender has and has verified (§8.5).
    Have(Range<u64>),
    /// The digest of a node of the tree (§8.8).
    Integrity {
        /// The node.
        node: Bin,
        /// Its digest.
        digest: Digest,
    },
    /// The source's signature: over a chunk, or over the digest of a subtree's root (§8.9).
    SignedIntegrity {
        /// The chunk or the root.
        node: Bin,
        /// When it was signed, in NTP's form: seconds since 1900 in the upper 32 bits.
        ntp: u64,
        /// The signature.
        signature: &'a [u8],
    },
    /// Chunks that the sender wants (§8.10).
    Request(Range<u64>),
    /// Chunks that the sender does not want any more (§8.11).
    Cancel(Range<u64>),
    /// The sender will not answer requests for now (§8.12).
    Choke,
    /// The sender answers requests again (§8.12).
    Unchoke,
    /// Asks for other peers (§8.13).
    PexRequest,
    /// A peer at an IPv4 address (§8.13).
    PexV4(SocketAddrV4),
    /// A peer at an IPv6 address (§8.13).
    PexV6(SocketAddrV6),
    /// A peer's certificate of membership, in DER (§8.13).
    PexCertificate(&'a [u8]),
}

impl Message<'_> {
    /// Appends the message. A range that the addressing method cannot say at once becomes several messages.
    ///
    /// On an error, nothing useful is appended: truncate to the length before.
    pub fn encode(&self, codec: &Codec, out: &mut Vec<u8>) -> Result<(), DoesNotFit> {
        match self {
            Self::Handshake(handshake) if codec.dialect == Dialect::Legacy => {
                Opening::encode(codec.dialect, &Handshake { channel: handshake.channel, ..Handshake::default() }, out);
            }
            Self::Handshake(handshake) => handshake.encode(out),
            Self::Data { chunk, sent_us, payload } => {
                codec.put_data_head(*chunk, *sent_us, out)?;
                out.extend_from_slice(payload);
            }
            Self::Ack { chunks, delay_us } => {
                codec.put_ranges(kind::ACK, chunks.clone(), &delay_us.to_be_bytes(), out)?;
            }
            Self::Have(chunks) => codec.put_ranges(kind::HAVE, chunks.clone(), &[], out)?,
            Self::Request(chunks) => codec.put_ranges(kind::REQUEST, chunks.clone(), &[], out)?,
            Self::Cancel(chunks) => codec.put_ranges(kind::CANCEL, chunks.clone(), &[], out)?,
            Self::Integrity { node, digest } => codec.put_integrity(*node, digest, out)?,
            Self::SignedIntegrity { node, ntp, signature } => {
                if signature.len() != usize::from(codec.signature_len) {
                    return Err(DoesNotFit);
                }
                out.push(kind::SIGNED_INTEGRITY);
                codec.put_bin(*node, out)?;
                out.extend_from_slice(&ntp.to_be_bytes());
                out.extend_from_slice(signature);
            }
            Self::Choke => out.push(kind::CHOKE),
            Self::Unchoke => out.push(kind::UNCHOKE),
            Self::PexRequest => out.push(kind::PEX_REQ),
            Self::PexV4(address) => {
                out.push(kind::PEX_RES_V4);
                out.extend_from_slice(&address.ip().octets());
                out.extend_from_slice(&address.port().to_be_bytes());
            }
            Self::PexV6(address) => {
                out.push(kind::PEX_RES_V6);
                out.extend_from_slice(&address.ip().octets());
                out.extend_from_slice(&address.port().to_be_bytes());
            }
            Self::PexCertificate(certificate) => {
                if certificate.len() > CERTIFICATE_LEN_MAX {
                    return Err(DoesNotFit);
                }
                out.push(kind::PEX_RES_CERT);
                out.extend_from_slice(&(certificate.len() as u16).to_be_bytes());
                out.extend_from_slice(certificate);
            }
        }
        Ok(())
    }
}

impl Codec {
    /// Appends a DATA message up to its payload, which the driver puts behind it from wherever it lies.
    pub fn put_data_head(&self, chunk: u64, sent_us: u64, out: &mut Vec<u8>) -> Result<(), DoesNotFit> {
        out.push(kind::DATA);
        self.put_bin(Bin::chunk(chunk).ok_or(DoesNotFit)?, out)?;
        if self.dialect != Dialect::Legacy {
            out.extend_from_slice(&sent_us.to_be_bytes());
        }
        Ok(())
    }

    /// Appends an INTEGRITY message.
    pub fn put_integrity(&self, node: Bin, digest: &Digest, out: &mut Vec<u8>) -> Result<(), DoesNotFit> {
        if digest.as_bytes().len() != self.hash.len() {
            return Err(DoesNotFit);
        }
        out.push(kind::INTEGRITY);
        self.put_bin(node, out)?;
        out.extend_from_slice(digest.as_bytes());
        Ok(())
    }

    /// Length of a DATA message without its payload.
    pub const fn data_head_len(&self) -> usize {
        1 + self.spec_len() + if matches!(self.dialect, Dialect::Legacy) { 0 } else { 8 }
    }

    /// Length of an INTEGRITY message.
    pub const fn integrity_len(&self) -> usize {
        1 + self.spec_len() + self.hash.len()
    }
}

/// A chunk that is in a datagram by itself: see [`Messages::lone_chunk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneChunk<'a> {
    /// Its number.
    pub chunk: u64,
    /// The sender's clock when it left, in microseconds.
    pub sent_us: u64,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Reads a datagram's messages one after the other. Ends after the first error: what follows cannot be told.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    codec: Codec,
    reader: Reader<'a>,
}

impl<'a> Messages<'a> {
    /// The messages behind the channel's number.
    pub fn new(codec: Codec, messages: &'a [u8]) -> Self {
        Self { codec, reader: Reader(messages) }
    }

    /// The bytes not yet read.
    pub fn rest(&self) -> &'a [u8] {
        self.reader.0
    }

    /// The next DATA message, whatever is before it: its chunk and payload. `None` after the last one, and after an error.
    pub fn next_data(&mut self) -> Option<(u64, &'a [u8])> {
        while let Some(kind) = self.reader.0.first() {
            if *kind == kind::INTEGRITY {
                // Most of what comes with chunks: nothing of it is needed here.
                self.reader.bytes(self.codec.integrity_len()).ok()?;
                continue;
            }
            if let Message::Data { chunk, payload, .. } = self.message().ok()? {
                return Some((chunk, payload));
            }
        }
        None
    }

    /// The datagram, where it has one chunk and nothing else but digests in front of it, as most have. The digests are put to `digests`,
    /// some of them also where it is another.
    pub fn lone_chunk(mut self, digests: &mut Vec<(Bin, &'a [u8])>) -> Option<LoneChunk<'a>> {
        while self.reader.0.first() == Some(&kind::INTEGRITY) {
            self.reader.u8().ok()?;
            digests.push((self.codec.bin(&mut self.reader).ok()?, self.reader.bytes(self.codec.hash.len()).ok()?));
        }
        match self.message() {
            Ok(Message::Data { chunk, sent_us, payload }) if self.reader.0.is_empty() => {
                Some(LoneChunk { chunk, sent_us, payload })
            }
            _ => None,
        }
    }

    fn message(&mut self) -> Result<Message<'a>, WireError> {
        let (codec, reader) = (&self.codec, &mut self.reader);
        Ok(match reader.u8()? {
            kind::HANDSHAKE if codec.dialect == Dialect::Legacy => {
                Message::Handshake(Handshake { channel: reader.u32()?, ..Handshake::default() })
            }
            kind::HANDSHAKE => Message::Handshake(Handshake::parse(reader)?),
            kind::DATA => {
                let chunk = codec.chunk(reader)?;
                let sent_us = if codec.dialect == Dialect::Legacy { 0 } else { reader.u64()? };
                // §8.6: the tail of the datagram, unless chunks are of one length and this is a whole one.
                let len = codec.chunk_len.map_or(usize::MAX, |len| len as usize).min(reader.0.len());
                Message::Data { chunk, sent_us, payload: reader.bytes(len)? }
            }
            kind::ACK => Message::Ack { chunks: codec.range(reader)?, delay_us: reader.u64()? },
            kind::HAVE => Message::Have(codec.range(reader)?),
            kind::INTEGRITY => {
                let node = codec.bin(reader)?;
                let digest = codec.hash.digest(reader.bytes(codec.hash.len())?).ok_or(WireError::Truncated)?;
                Message::Integrity { node, digest }
            }
            kind::SIGNED_INTEGRITY => Message::SignedIntegrity {
                node: codec.bin(reader)?,
                ntp: reader.u64()?,
                signature: reader.bytes(codec.signature_len.into())?,
            },
            kind::REQUEST => Message::Request(codec.range(reader)?),
            kind::CANCEL => Message::Cancel(codec.range(reader)?),
            kind::CHOKE => Message::Choke,
            kind::UNCHOKE => Message::Unchoke,
            kind::PEX_REQ => Message::PexRequest,
            kind::PEX_RES_V4 => Message::PexV4(SocketAddrV4::new(Ipv4Addr::from(reader.array::<4>()?), reader.u16()?)),
            kind::PEX_RES_V6 => {
                Message::PexV6(SocketAddrV6::new(Ipv6Addr::from(reader.array::<16>()?), reader.u16()?, 0, 0))
            }
            kind::PEX_RES_CERT => {
                let len = usize::from(reader.u16()?);
                if len > CERTIFICATE_LEN_MAX {
                    return Err(WireError::TooLong(len));
                }
                Message::PexCertificate(reader.bytes(len)?)
            }
            kind => return Err(WireError::UnknownMessage(kind)),
        })
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.0.is_empty() {
            return None;
        }
        let message = self.message();
        if message.is_err() {
            self.reader.0 = &[];
        }
        Some(message)
    }
}
