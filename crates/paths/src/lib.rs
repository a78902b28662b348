//! Where content moves: endpoints, paths between them, and an identity for a path that outlives its refresh.
//!
//! A *peer is a path*: whoever opens a connection opens it over exactly one [`Path`], for the connection's whole life.
//! Queues, rates and metrics belong to the path-level peer ([`PathPeer`]); credit and bans to the address-level one
//! ([`Endpoint`]). Pure: how packets get onto a path is the transport's business.
//!
//! ```
//! use anabranch_paths::{Endpoint, Path, PathPeer};
//!
//! let endpoint: Endpoint = "192.0.2.7:6881".parse()?;
//! let over_wifi = PathPeer::new(endpoint, Path::ip("10.0.0.5".parse()?, endpoint.ip()));
//! let over_cable = PathPeer::new(endpoint, Path::ip("172.16.0.5".parse()?, endpoint.ip()));
//! assert_ne!(over_wifi.path.id(), over_cable.path.id());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod endpoint;
mod id;
mod isd_as;
mod overlap;
mod path;
mod scion;
#[cfg(test)]
mod testing;

pub use endpoint::{ENDPOINT_TEXT_BYTES_MAX, Endpoint, EndpointError, ScionAddr};
pub use id::{PathId, PathIdError, PathIdPrefix};
pub use isd_as::{Interface, IsdAs, IsdAsError};
pub use overlap::{Overlap, deduplicate, sort};
pub use path::{Path, PathPeer};
pub use scion::{Hop, Latency, LinkKind, ScionPath};
