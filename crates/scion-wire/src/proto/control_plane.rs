//! Package `proto.control_plane.v1`: path segments and their lookup.

use std::collections::BTreeMap;

use super::crypto::SignedMessage;
use super::{GeoCoordinates, LinkType};

/// The HTTP path of its one method, for gRPC and Connect alike.
pub const SEGMENTS_METHOD: &str = "/proto.control_plane.v1.SegmentLookupService/Segments";

/// What a segment leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SegmentType {
    /// Nobody says.
    Unspecified = 0,
    /// From the AS towards its core.
    Up = 1,
    /// From a core towards the AS.
    Down = 2,
    /// Between cores.
    Core = 3,
}

/// Asks for the segments of one step of the way from `src_isd_as` to `dst_isd_as`; AS number 0 stands for any core of the ISD.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SegmentsRequest {
    /// Start of the segments.
    #[prost(uint64, tag = "1")]
    pub src_isd_as: u64,
    /// End of the segments.
    #[prost(uint64, tag = "2")]
    pub dst_isd_as: u64,
}

/// The segments, by [`SegmentType`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SegmentsResponse {
    /// By [`SegmentType`].
    #[prost(btree_map = "int32, message", tag = "1")]
    pub segments: BTreeMap<i32, Segments>,
}

/// A list of segments (`SegmentsResponse.Segments`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Segments {
    /// The segments.
    #[prost(message, repeated, tag = "1")]
    pub segments: Vec<PathSegment>,
}

/// A segment as its ASes made it, one after the other.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PathSegment {
    /// An encoded [`SegmentInformation`].
    #[prost(bytes = "vec", tag = "1")]
    pub segment_info: Vec<u8>,
    /// One for each AS, in the direction of beaconing.
    #[prost(message, repeated, tag = "2")]
    pub as_entries: Vec<AsEntry>,
}

/// What a segment starts with.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SegmentInformation {
    /// Seconds since 1970, UTC. Hop fields count their lifetime from here.
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    /// The 16-bit beta of the first hop field.
    #[prost(uint32, tag = "2")]
    pub segment_id: u32,
}

/// What one AS added to a segment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AsEntry {
    /// Its body is an encoded [`AsEntrySignedBody`]; associated data are the segment information and, of all entries before,
    /// `header_and_body` and `signature`.
    #[prost(message, optional, tag = "1")]
    pub signed: Option<SignedMessage>,
}

/// The signed part of an [`AsEntry`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct AsEntrySignedBody {
    /// Who made this entry.
    #[prost(uint64, tag = "1")]
    pub isd_as: u64,
    /// Who makes the next one; 0 at the end.
    #[prost(uint64, tag = "2")]
    pub next_isd_as: u64,
    /// The way through this AS along the segment.
    #[prost(message, optional, tag = "3")]
    pub hop_entry: Option<HopEntry>,
    /// Ways into this AS over peering links.
    #[prost(message, repeated, tag = "4")]
    pub peer_entries: Vec<PeerEntry>,
    /// Largest SCION packet inside the AS, in bytes.
    #[prost(uint32, tag = "5")]
    pub mtu: u32,
    /// Claims about the AS.
    #[prost(message, optional, tag = "6")]
    pub extensions: Option<PathSegmentExtensions>,
}

/// The way through an AS along a segment.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HopEntry {
    /// As it will stand in packets.
    #[prost(message, optional, tag = "1")]
    pub hop_field: Option<HopField>,
    /// MTU of the link that the segment came in by; 0 where unknown.
    #[prost(uint32, tag = "2")]
    pub ingress_mtu: u32,
}

/// The way into an AS over a peering link, on along a segment.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PeerEntry {
    /// Who is at the other end of the link.
    #[prost(uint64, tag = "1")]
    pub peer_isd_as: u64,
    /// Their interface.
    #[prost(uint64, tag = "2")]
    pub peer_interface: u64,
    /// MTU of the peering link.
    #[prost(uint32, tag = "3")]
    pub peer_mtu: u32,
    /// From the peering interface to the egress interface of the AS's hop entry.
    #[prost(message, optional, tag = "4")]
    pub hop_field: Option<HopField>,
}

/// A hop field's contents.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HopField {
    /// In the direction of beaconing; 0 at the start.
    #[prost(uint64, tag = "1")]
    pub ingress: u64,
    /// In the direction of beaconing; 0 at the end.
    #[prost(uint64, tag = "2")]
    pub egress: u64,
    /// Lifetime in units of 24 h / 256, less one.
    #[prost(uint32, tag = "3")]
    pub exp_time: u32,
    /// Six bytes.
    #[prost(bytes = "vec", tag = "4")]
    pub mac: Vec<u8>,
}

/// Claims that an AS makes about itself in a segment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PathSegmentExtensions {
    /// Latency, bandwidth and the like.
    #[prost(message, optional, tag = "1")]
    pub static_info: Option<StaticInfoExtension>,
    /// Whether the segment is told to a group only.
    #[prost(message, optional, tag = "2")]
    pub hidden_path: Option<HiddenPathExtension>,
}

/// Whether a segment is hidden.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HiddenPathExtension {
    /// Told to a group only.
    #[prost(bool, tag = "1")]
    pub is_hidden: bool,
}

/// What an AS claims about its links and insides, by interface.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StaticInfoExtension {
    /// Delays.
    #[prost(message, optional, tag = "1")]
    pub latency: Option<LatencyInfo>,
    /// Capacities.
    #[prost(message, optional, tag = "2")]
    pub bandwidth: Option<BandwidthInfo>,
    /// Where the interface's router stands.
    #[prost(btree_map = "uint64, message", tag = "3")]
    pub geo: BTreeMap<u64, GeoCoordinates>,
    /// What the interface's link is.
    #[prost(btree_map = "uint64, enumeration(LinkType)", tag = "4")]
    pub link_type: BTreeMap<u64, i32>,
    /// Routers between the interface and the segment's egress interface.
    #[prost(btree_map = "uint64, uint32", tag = "5")]
    pub internal_hops: BTreeMap<u64, u32>,
    /// For people.
    #[prost(string, tag = "6")]
    pub note: String,
}

/// Delays in microseconds.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LatencyInfo {
    /// From the interface to the segment's egress interface, inside the AS.
    #[prost(btree_map = "uint64, uint32", tag = "1")]
    pub intra: BTreeMap<u64, u32>,
    /// Over the interface's link to the next AS.
    #[prost(btree_map = "uint64, uint32", tag = "2")]
    pub inter: BTreeMap<u64, u32>,
}

/// Capacities in kbit/s.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BandwidthInfo {
    /// From the interface to the segment's egress interface, inside the AS.
    #[prost(btree_map = "uint64, uint64", tag = "1")]
    pub intra: BTreeMap<u64, u64>,
    /// Over the interface's link to the next AS.
    #[prost(btree_map = "uint64, uint64", tag = "2")]
    pub inter: BTreeMap<u64, u64>,
}
