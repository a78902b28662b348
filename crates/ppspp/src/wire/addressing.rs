//! The five ways to name chunks (RFC 7574 §4, §7.8). Above the wire, chunks are ranges of their numbers and nodes are bins.

use std::ops::Range;

use thiserror::Error;

use super::{Codec, Reader, WireError};
use crate::bin::{Bin, CHUNKS_MAX};

/// How messages name chunks (RFC 7574 §7.8, table 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// Bins of 32 bits.
    Bins32,
    /// Ranges of bytes, end included; chunks have to be of one length.
    Bytes64,
    /// Ranges of chunks in 32 bits, end included: the default.
    Chunks32,
    /// Bins of 64 bits.
    Bins64,
    /// Ranges of chunks in 64 bits, end included.
    Chunks64,
}

impl Addressing {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Bins32, Self::Bytes64, Self::Chunks32, Self::Bins64, Self::Chunks64];

    /// From its number in the handshake; `None` where it has none.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its number in the handshake.
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// Whether its numbers have 32 bits, not 64.
    pub const fn is_32_bit(self) -> bool {
        matches!(self, Self::Bins32 | Self::Chunks32)
    }

    /// Whether it names bins: a range is as many names as bins cover it.
    pub const fn is_bins(self) -> bool {
        matches!(self, Self::Bins32 | Self::Bins64)
    }

    /// Chunks that it can name, where each is `chunk_len` bytes long.
    pub fn chunks_max(self, chunk_len: Option<u32>) -> u64 {
        match self {
            Self::Bins32 => 1 << 31,
            Self::Chunks32 => 1 << 32,
            Self::Bins64 | Self::Chunks64 => CHUNKS_MAX,
            Self::Bytes64 => CHUNKS_MAX / u64::from(chunk_len.unwrap_or(1).max(1)),
        }
    }
}

/// A chunk's number is too large for the addressing method, or the message too long for its own form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a message does not fit the form that the swarm agreed on: a chunk addressing method of 64 bits is needed")]
pub struct DoesNotFit;

impl Codec {
    /// Chunks that the swarm can have at most: what its addressing method can name.
    pub fn chunks_max(&self) -> u64 {
        self.addressing.chunks_max(self.chunk_len)
    }

    /// A chunk specification on the wire: length in bytes.
    pub(super) const fn spec_len(&self) -> usize {
        match self.addressing {
            Addressing::Bins32 => 4,
            Addressing::Chunks32 | Addressing::Bins64 => 8,
            Addressing::Bytes64 | Addressing::Chunks64 => 16,
        }
    }

    /// Appends the specification of a chunk or a node, as it is signed too (RFC 7574 §6.1.2.2).
    pub fn put_bin(&self, bin: Bin, out: &mut Vec<u8>) -> Result<(), DoesNotFit> {
        if self.addressing.is_bins() { self.put_one(bin, out) } else { self.put_range(bin.range(), out) }
    }

    /// The specifications of `range`, each after `kind` and followed by `tail`: one, or as many as bins cover it.
    pub(super) fn put_ranges(
        &self,
        kind: u8,
        range: Range<u64>,
        tail: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), DoesNotFit> {
        if !self.addressing.is_bins() {
            out.push(kind);
            self.put_range(range, out)?;
            out.extend_from_slice(tail);
            return Ok(());
        }
        for bin in Bin::cover(range) {
            out.push(kind);
            self.put_one(bin, out)?;
            out.extend_from_slice(tail);
        }
        Ok(())
    }

    fn put_one(&self, bin: Bin, out: &mut Vec<u8>) -> Result<(), DoesNotFit> {
        match self.addressing {
            Addressing::Bins32 => out.extend_from_slice(&bin.to_u32().ok_or(DoesNotFit)?.to_be_bytes()),
            _ => out.extend_from_slice(&bin.to_u64().to_be_bytes()),
        }
        Ok(())
    }

    /// Start and end on the wire: the end is the last that belongs to it (RFC 7574 §4.1).
    fn put_range(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<(), DoesNotFit> {
        let unit = match self.addressing {
            Addressing::Bytes64 => u64::from(self.chunk_len.ok_or(DoesNotFit)?),
            _ => 1,
        };
        if range.start >= range.end || range.end > self.chunks_max() {
            return Err(DoesNotFit);
        }
        let (start, last) = (range.start * unit, (range.end * unit).wrapping_sub(1));
        if self.addressing.is_32_bit() {
            for number in [start, last] {
                out.extend_from_slice(&u32::try_from(number).map_err(|_| DoesNotFit)?.to_be_bytes());
            }
        } else {
            out.extend_from_slice(&start.to_be_bytes());
            out.extend_from_slice(&last.to_be_bytes());
        }
        Ok(())
    }

    /// Reads a chunk specification; empty for the bin that stands for nothing.
    pub(super) fn range(&self, reader: &mut Reader<'_>) -> Result<Range<u64>, WireError> {
        let (start, last) = match self.addressing {
            Addressing::Bins32 => return Ok(Bin::from_u32(reader.u32()?).map_or(0..0, Bin::range)),
            Addressing::Bins64 => return Ok(Bin::from_u64(reader.u64()?).map_or(0..0, Bin::range)),
            Addressing::Chunks32 => (u64::from(reader.u32()?), u64::from(reader.u32()?)),
            Addressing::Chunks64 => (reader.u64()?, reader.u64()?),
            Addressing::Bytes64 => {
                let (start, last) = (reader.u64()?, reader.u64()?);
                let unit = u64::from(self.chunk_len.filter(|len| *len > 0).ok_or(WireError::BadChunks)?);
                // The last chunk of a content may be short; all start at a multiple.
                if !start.is_multiple_of(unit) || last < start {
                    return Err(WireError::BadChunks);
                }
                (start / unit, last / unit)
            }
        };
        if last < start || last >= self.chunks_max() {
            return Err(WireError::BadChunks);
        }
        Ok(start..last + 1)
    }

    /// Reads a specification that has to be a node of the tree.
    pub(super) fn bin(&self, reader: &mut Reader<'_>) -> Result<Bin, WireError> {
        let range = self.range(reader)?;
        let len = range.end - range.start;
        if !len.is_power_of_two() || !range.start.is_multiple_of(len) {
            return Err(WireError::BadChunks);
        }
        let layer = len.trailing_zeros();
        Bin::new(layer, range.start >> layer).ok_or(WireError::BadChunks)
    }

    /// Reads a specification that has to be one chunk.
    pub(super) fn chunk(&self, reader: &mut Reader<'_>) -> Result<u64, WireError> {
        let bin = self.bin(reader)?;
        if bin.is_chunk() { Ok(bin.start()) } else { Err(WireError::BadChunks) }
    }
}
