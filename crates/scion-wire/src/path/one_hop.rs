//! The path to a neighbour AS, before any segment exists.

use super::PathError;
use super::fields::{HOP_LEN, HopField, INFO_LEN, InfoField, META_LEN, PathMeta};

/// Bytes of a one-hop path: an info field and two hop fields (SCION header, "OneHopPath").
pub(crate) const ONE_HOP_LEN: usize = INFO_LEN + 2 * HOP_LEN;
const FIRST_AT: usize = INFO_LEN;
const SECOND_AT: usize = INFO_LEN + HOP_LEN;

/// A one-hop path, read where it lies. The sender writes the first hop field, the neighbour's router the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneHopPath<'a> {
    bytes: &'a [u8; ONE_HOP_LEN],
}

impl<'a> OneHopPath<'a> {
    /// Checks the length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PathError> {
        match bytes.try_into() {
            Ok(bytes) => Ok(Self { bytes }),
            Err(_) if bytes.len() < ONE_HOP_LEN => Err(PathError::Truncated),
            Err(_) => Err(PathError::TrailingBytes),
        }
    }

    /// The path as it leaves its sender, whose AS has sealed `first`.
    pub fn build(info: InfoField, first: HopField) -> [u8; ONE_HOP_LEN] {
        let mut bytes = [0; ONE_HOP_LEN];
        bytes[..INFO_LEN].copy_from_slice(&info.to_bytes());
        bytes[FIRST_AT..SECOND_AT].copy_from_slice(&first.to_bytes());
        bytes
    }

    /// The bytes on the wire.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The only info field.
    pub fn info(&self) -> InfoField {
        InfoField::read(part(self.bytes, 0))
    }

    /// The hop of the sender's AS.
    pub fn first_hop(&self) -> HopField {
        HopField::read(part(self.bytes, FIRST_AT))
    }

    /// The hop of the neighbour; all zero until its router has seen the packet.
    pub fn second_hop(&self) -> HopField {
        HopField::read(part(self.bytes, SECOND_AT))
    }

    /// The path back, of type SCION, from the host that got the packet.
    pub fn reversed(&self) -> Result<[u8; META_LEN + ONE_HOP_LEN], PathError> {
        if self.second_hop().cons_ingress == 0 {
            return Err(PathError::Incomplete);
        }
        let mut bytes = [0; META_LEN + ONE_HOP_LEN];
        bytes[..META_LEN].copy_from_slice(&PathMeta::at_start([2, 0, 0])?.to_bytes());
        // The one-hop path is sent in construction direction; its answer goes against it.
        let info = InfoField { peering: false, cons_dir: false, ..self.info() };
        bytes[META_LEN..META_LEN + INFO_LEN].copy_from_slice(&info.to_bytes());
        bytes[META_LEN + FIRST_AT..META_LEN + SECOND_AT].copy_from_slice(&self.bytes[SECOND_AT..]);
        bytes[META_LEN + SECOND_AT..].copy_from_slice(&self.bytes[FIRST_AT..SECOND_AT]);
        Ok(bytes)
    }
}

/// A one-hop path, changed where it lies.
#[derive(Debug)]
pub struct OneHopPathMut<'a> {
    bytes: &'a mut [u8; ONE_HOP_LEN],
}

impl<'a> OneHopPathMut<'a> {
    /// As [`OneHopPath::parse`].
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, PathError> {
        OneHopPath::parse(bytes)?;
        let bytes = bytes.try_into().map_err(|_| PathError::Truncated)?;
        Ok(Self { bytes })
    }

    /// To read.
    pub fn view(&self) -> OneHopPath<'_> {
        OneHopPath { bytes: self.bytes }
    }

    /// β for the second hop: SegID xor the first two bytes of the first hop's MAC. The first router's part.
    pub fn chain_seg_id(&mut self) {
        self.bytes[2] ^= self.bytes[FIRST_AT + 6];
        self.bytes[3] ^= self.bytes[FIRST_AT + 7];
    }

    /// Completes the path. The second router's part.
    pub fn set_second_hop(&mut self, hop: HopField) {
        self.bytes[SECOND_AT..].copy_from_slice(&hop.to_bytes());
    }
}

fn part<const N: usize>(bytes: &[u8; ONE_HOP_LEN], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}
