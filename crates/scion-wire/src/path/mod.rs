//! The path in a packet: a list of hop fields that each router on the way checks and steps through.
//!
//! A standard path is up to three segments (up, core, down), each an info field and its hop fields. [`StandardPath`]
//! reads one, [`StandardPathMut`] does what routers and answering hosts change in place, [`DataplanePath`] owns one
//! that was combined from segments. [`OneHopPath`] reaches the neighbour before any segment exists.

mod fields;
mod one_hop;
mod owned;
mod standard;

pub use fields::{EXP_TIME_UNIT, HopField, HopMac, InfoField, PathMeta};
pub use one_hop::{OneHopPath, OneHopPathMut};
pub use owned::{DataplanePath, PathSegment};
pub use standard::{Interfaces, StandardPath, StandardPathMut};

pub(crate) use fields::{HOP_LEN, INFO_LEN, META_LEN};
pub(crate) use one_hop::ONE_HOP_LEN;

/// Segments of one path at most: up, core, down.
pub const SEGMENTS_MAX: usize = 3;
/// Hop fields of one path at most: CurrHF has six bits.
pub const HOPS_MAX: usize = 64;
/// The longest standard path in bytes.
pub const PATH_LEN_MAX: usize = META_LEN + SEGMENTS_MAX * INFO_LEN + HOPS_MAX * HOP_LEN;

/// Why bytes are no path. Each is the sender's fault; a receiver drops the packet and counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PathError {
    /// Fewer bytes than the segment lengths announce, or a buffer too short to write to.
    #[error("the path is cut short")]
    Truncated,
    /// More bytes than the segment lengths announce.
    #[error("bytes follow the path's last hop field")]
    TrailingBytes,
    /// A standard path without segments.
    #[error("the path has no segments")]
    NoSegments,
    /// A segment follows an empty one.
    #[error("a segment of the path is missing")]
    SegmentGap,
    /// A segment of one hop field, which only a peering link excuses: it would let hops be left out.
    #[error("a segment of the path has only one hop field")]
    SegmentTooShort,
    /// More hop fields than CurrHF can reach.
    #[error("the path has more than {HOPS_MAX} hop fields")]
    TooManyHops,
    /// CurrINF or CurrHF point behind the end, or at different segments.
    #[error("the current info and hop fields of the path do not belong together")]
    PointerMismatch,
    /// The peering flag on a path that is not two segments, both flagged.
    #[error("the path's peering flags contradict its segments")]
    PeeringMismatch,
    /// The path is at its last hop and asked to go on.
    #[error("the path ends here")]
    AtEnd,
    /// A one-hop path whose second hop field the neighbour's router has not written.
    #[error("the one-hop path was not completed by the second router")]
    Incomplete,
}

impl PathError {
    /// How many kinds there are: the length of an array of counters.
    pub const COUNT: usize = Self::Incomplete as usize + 1;

    /// This kind's place in an array of counters.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The path of a packet, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathRef<'a> {
    /// Within one AS: no bytes at all.
    Empty,
    /// Type SCION.
    Standard(StandardPath<'a>),
    /// To the neighbour AS, for bootstrapping.
    OneHop(OneHopPath<'a>),
    /// A type that this code does not know (EPIC, COLIBRI): may be passed on, not followed.
    Other(OtherPath<'a>),
}

/// A path of a type without meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherPath<'a> {
    path_type: u8,
    bytes: &'a [u8],
}

impl<'a> PathRef<'a> {
    /// Type Empty on the wire.
    const EMPTY: u8 = 0;
    /// Type SCION on the wire.
    const STANDARD: u8 = 1;
    /// Type OneHopPath on the wire.
    const ONE_HOP: u8 = 2;

    /// Checks `bytes` as a path of the type that the common header names.
    #[inline]
    pub fn parse(path_type: u8, bytes: &'a [u8]) -> Result<Self, PathError> {
        match path_type {
            Self::STANDARD => StandardPath::parse(bytes).map(Self::Standard),
            Self::EMPTY if bytes.is_empty() => Ok(Self::Empty),
            Self::EMPTY => Err(PathError::TrailingBytes),
            Self::ONE_HOP => OneHopPath::parse(bytes).map(Self::OneHop),
            path_type => Ok(Self::Other(OtherPath { path_type, bytes })),
        }
    }

    /// The path as path lookups deliver it: of type SCION, or nothing within one AS.
    pub fn from_dataplane(bytes: &'a [u8]) -> Result<Self, PathError> {
        if bytes.is_empty() { Ok(Self::Empty) } else { StandardPath::parse(bytes).map(Self::Standard) }
    }

    /// The type on the wire.
    pub fn path_type(&self) -> u8 {
        match self {
            Self::Empty => Self::EMPTY,
            Self::Standard(_) => Self::STANDARD,
            Self::OneHop(_) => Self::ONE_HOP,
            Self::Other(other) => other.path_type,
        }
    }

    /// The bytes on the wire.
    pub fn as_bytes(&self) -> &'a [u8] {
        match self {
            Self::Empty => &[],
            Self::Standard(path) => path.as_bytes(),
            Self::OneHop(path) => path.as_bytes(),
            Self::Other(other) => other.bytes,
        }
    }

    /// Identifies the interfaces passed, as [`StandardPath::fingerprint`] does; zero for paths of other types.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        match self {
            Self::Standard(path) => path.fingerprint(),
            _ => 0,
        }
    }

    /// Writes the path back to the sender as a host answers with it, and returns its length: of type SCION, or Empty
    /// where it has no bytes ([`PathRef::from_dataplane`] reads both). `None` when there is no way back (an unknown
    /// type, or a one-hop path that nobody completed) or `out` is too short, which [`PATH_LEN_MAX`] bytes never are.
    pub fn copy_reversed(&self, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Empty => Some(0),
            Self::Standard(path) => path.copy_reversed(out).ok(),
            Self::OneHop(path) => {
                let reversed = path.reversed().ok()?;
                out.get_mut(..reversed.len())?.copy_from_slice(&reversed);
                Some(reversed.len())
            }
            Self::Other(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
