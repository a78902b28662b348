//! A path that was combined, not received.

use super::fields::{HopField, InfoField, PathMeta};
use super::{PathError, SEGMENTS_MAX, StandardPath, StandardPathMut};

/// One segment of a path to be built, as it is travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSegment<'a> {
    /// The info field; its SegID is the β that the first hop's router needs (SCION header, "Initialization").
    pub info: InfoField,
    /// The hop fields in travel order.
    pub hops: &'a [HopField],
}

/// A path of type SCION with bytes of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DataplanePath {
    bytes: Vec<u8>,
}

impl DataplanePath {
    /// Puts segments, in travel order, into one path that stands at its start.
    pub fn build(segments: &[PathSegment<'_>]) -> Result<Self, PathError> {
        if segments.len() > SEGMENTS_MAX {
            return Err(PathError::TooManyHops);
        }
        let mut segment_len = [0; SEGMENTS_MAX];
        for (len, segment) in segment_len.iter_mut().zip(segments) {
            *len = u8::try_from(segment.hops.len())
                .ok()
                .filter(|len| usize::from(*len) < super::HOPS_MAX)
                .ok_or(PathError::TooManyHops)?;
        }
        if segment_len[..segments.len()].contains(&0) {
            return Err(PathError::SegmentGap);
        }
        let meta = PathMeta::at_start(segment_len)?;
        let mut bytes = Vec::with_capacity(meta.path_len());
        bytes.extend(meta.to_bytes());
        bytes.extend(segments.iter().flat_map(|segment| segment.info.to_bytes()));
        bytes.extend(segments.iter().flat_map(|segment| segment.hops).flat_map(|hop| hop.to_bytes()));
        Self::from_bytes(bytes)
    }

    /// Checks bytes as [`StandardPath::parse`] does and keeps them.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, PathError> {
        StandardPath::parse(&bytes)?;
        Ok(Self { bytes })
    }

    /// To read.
    pub fn view(&self) -> StandardPath<'_> {
        StandardPath::checked_before(&self.bytes)
    }

    /// To change.
    pub fn view_mut(&mut self) -> StandardPathMut<'_> {
        StandardPathMut::checked_before(&mut self.bytes)
    }

    /// The bytes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The path in the other direction, at the same place on it.
    pub fn reversed(mut self) -> Self {
        self.view_mut().reverse();
        self
    }
}
