//! Package `proto.daemon.v1`: what a host's applications ask its SCION daemon.

use std::collections::BTreeMap;

use super::{Duration, GeoCoordinates, LinkType, Timestamp};

/// [`PathsRequest`] to [`PathsResponse`].
pub const PATHS_METHOD: &str = "/proto.daemon.v1.DaemonService/Paths";
/// [`AsRequest`] to [`AsResponse`].
pub const AS_METHOD: &str = "/proto.daemon.v1.DaemonService/AS";
/// [`InterfacesRequest`] to [`InterfacesResponse`].
pub const INTERFACES_METHOD: &str = "/proto.daemon.v1.DaemonService/Interfaces";
/// [`ServicesRequest`] to [`ServicesResponse`].
pub const SERVICES_METHOD: &str = "/proto.daemon.v1.DaemonService/Services";
/// [`NotifyInterfaceDownRequest`] to [`NotifyInterfaceDownResponse`].
pub const NOTIFY_INTERFACE_DOWN_METHOD: &str = "/proto.daemon.v1.DaemonService/NotifyInterfaceDown";
/// An empty message to [`PortRangeResponse`].
pub const PORT_RANGE_METHOD: &str = "/proto.daemon.v1.DaemonService/PortRange";

/// Asks for paths.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PathsRequest {
    /// Where they start; 0 is the daemon's AS.
    #[prost(uint64, tag = "1")]
    pub source_isd_as: u64,
    /// Where they end.
    #[prost(uint64, tag = "2")]
    pub destination_isd_as: u64,
    /// Do not answer from the cache.
    #[prost(bool, tag = "3")]
    pub refresh: bool,
    /// Hidden paths too.
    #[prost(bool, tag = "4")]
    pub hidden: bool,
}

/// The paths found.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PathsResponse {
    /// In no promised order.
    #[prost(message, repeated, tag = "1")]
    pub paths: Vec<Path>,
}

/// One path.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Path {
    /// The path header as it stands in a packet; empty inside one AS.
    #[prost(bytes = "vec", tag = "1")]
    pub raw: Vec<u8>,
    /// The router that packets are handed to.
    #[prost(message, optional, tag = "2")]
    pub interface: Option<Interface>,
    /// What it passes, in order.
    #[prost(message, repeated, tag = "3")]
    pub interfaces: Vec<PathInterface>,
    /// Largest SCION packet, in bytes.
    #[prost(uint32, tag = "4")]
    pub mtu: u32,
    /// When the first of its hop fields ends.
    #[prost(message, optional, tag = "5")]
    pub expiration: Option<Timestamp>,
    /// From each interface to the next; negative where nobody says.
    #[prost(message, repeated, tag = "6")]
    pub latency: Vec<Duration>,
    /// From each interface to the next, in kbit/s; 0 where nobody says.
    #[prost(uint64, repeated, tag = "7")]
    pub bandwidth: Vec<u64>,
    /// Where each interface's router stands.
    #[prost(message, repeated, tag = "8")]
    pub geo: Vec<GeoCoordinates>,
    /// What each link is.
    #[prost(enumeration = "LinkType", repeated, tag = "9")]
    pub link_type: Vec<i32>,
    /// Routers inside each AS that is passed.
    #[prost(uint32, repeated, tag = "10")]
    pub internal_hops: Vec<u32>,
    /// Each AS's words for people.
    #[prost(string, repeated, tag = "11")]
    pub notes: Vec<String>,
}

/// An interface that a path passes.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PathInterface {
    /// Of which AS.
    #[prost(uint64, tag = "1")]
    pub isd_as: u64,
    /// Its number there.
    #[prost(uint64, tag = "2")]
    pub id: u64,
}

/// Asks about an AS; 0 is the daemon's own.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AsRequest {
    /// The AS.
    #[prost(uint64, tag = "1")]
    pub isd_as: u64,
}

/// About an AS.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AsResponse {
    /// The AS.
    #[prost(uint64, tag = "1")]
    pub isd_as: u64,
    /// Whether it is a core AS.
    #[prost(bool, tag = "2")]
    pub core: bool,
    /// Largest SCION packet inside it, in bytes.
    #[prost(uint32, tag = "3")]
    pub mtu: u32,
}

/// Asks for the routers of the daemon's AS.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct InterfacesRequest {}

/// The routers of the daemon's AS.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct InterfacesResponse {
    /// By interface number.
    #[prost(btree_map = "uint64, message", tag = "1")]
    pub interfaces: BTreeMap<u64, Interface>,
}

/// An interface of the daemon's AS.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Interface {
    /// Its router's address inside the AS.
    #[prost(message, optional, tag = "1")]
    pub address: Option<Underlay>,
}

/// An address under SCION.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Underlay {
    /// IP and UDP port: `10.0.0.1:30001`, `[fd00::1]:30001`.
    #[prost(string, tag = "1")]
    pub address: String,
}

/// Asks for the services of the daemon's AS.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ServicesRequest {}

/// The services of the daemon's AS.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ServicesResponse {
    /// By name: `control`, `discovery`.
    #[prost(btree_map = "string, message", tag = "1")]
    pub services: BTreeMap<String, ListService>,
}

/// The places where one service runs.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListService {
    /// The places.
    #[prost(message, repeated, tag = "1")]
    pub services: Vec<Service>,
}

/// A place where a service runs.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Service {
    /// Address and port.
    #[prost(string, tag = "1")]
    pub uri: String,
}

/// Tells the daemon that an interface is down, so that it leaves out paths over it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NotifyInterfaceDownRequest {
    /// Of which AS.
    #[prost(uint64, tag = "1")]
    pub isd_as: u64,
    /// Its number there.
    #[prost(uint64, tag = "2")]
    pub id: u64,
}

/// The daemon has heard.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NotifyInterfaceDownResponse {}

/// The UDP ports of the AS that need no dispatcher.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PortRangeResponse {
    /// First port.
    #[prost(uint32, tag = "1")]
    pub dispatched_port_start: u32,
    /// Last port.
    #[prost(uint32, tag = "2")]
    pub dispatched_port_end: u32,
}
