//! The control plane's messages, as they travel between end hosts, daemons and control services.
//!
//! Written by hand from the field numbers of the reference implementation; no generated code, no compiler at build time.
//! These are plain carriers: whoever reads them from a network turns them into checked types first ([`crate::segment`],
//! [`crate::path`]). Maps are ordered, so that one value always encodes to the same bytes and signatures hold.

pub mod control_plane;
pub mod crypto;
pub mod daemon;
pub mod grpc;

/// `google.protobuf.Timestamp`: an instant, counted from 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timestamp {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds after them, below 10^9.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `google.protobuf.Duration`; negative where nobody says.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds, of the same sign.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// Where something stands on Earth.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GeoCoordinates {
    /// Degrees north.
    #[prost(float, tag = "1")]
    pub latitude: f32,
    /// Degrees east.
    #[prost(float, tag = "2")]
    pub longitude: f32,
    /// Postal address.
    #[prost(string, tag = "3")]
    pub address: String,
}

/// What a link between two ASes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum LinkType {
    /// Nobody says.
    Unspecified = 0,
    /// Between two routers directly.
    Direct = 1,
    /// Over other networks, several hops.
    MultiHop = 2,
    /// Over the open Internet.
    OpenNet = 3,
}
