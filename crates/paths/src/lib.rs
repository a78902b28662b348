//! Where content moves: endpoints, paths between them, and an identity for a path that outlives its refresh.
//!
//! A *peer is a path*: whoever opens a connection opens it over exactly one [`Path`], for the connection's whole life.
//! Queues, rates and metrics belong to the path-level peer ([`PathPeer`]); credit and bans to the address-level one
//! ([`Endpoint`]). An endpoint is a host of the Internet or of a SCION network; between SCION hosts there are many paths
//! ([`ScionPath`]), which share interfaces and links ([`Overlap`]) and of which users choose by policies ([`PathFilter`]).
//! Pure: where paths come from and how packets get onto them is the business of others.
//!
//! ```
//! use anabranch_paths::{Endpoint, Path, PathFilter, PathPeer, ScionPath};
//!
//! let endpoint: Endpoint = "192.0.2.7:6881".parse()?;
//! let over_wifi = PathPeer::new(endpoint, Path::ip("10.0.0.5".parse()?, endpoint.ip()));
//! let over_cable = PathPeer::new(endpoint, Path::ip("172.16.0.5".parse()?, endpoint.ip()));
//! assert_ne!(over_wifi.path.id(), over_cable.path.id());
//!
//! let endpoint: Endpoint = "1-ff00:0:110,192.0.2.7:6881".parse()?;
//! assert_eq!(endpoint.to_string(), "[1-ff00:0:110,192.0.2.7]:6881");
//! let filter = PathFilter {
//!     acl: Some("- 2-ff00:0:210#3 +".parse()?),
//!     sequence: Some("0* 1-ff00:0:120 0*".parse()?),
//!     preference: Some("latency,hops".parse()?),
//!     ..PathFilter::default()
//! };
//! let mut paths: Vec<ScionPath> = Vec::new();
//! filter.apply(&mut paths, std::time::SystemTime::now());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod compact;
mod connection;
mod endpoint;
pub mod flow;
mod host;
mod id;
mod isd_as;
pub mod manager;
mod overlap;
mod path;
mod pending;
mod policy;
mod resource;
mod scion;
mod scoreboard;
pub mod select;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use connection::{ConnId, PathState, PeerKey};
pub use endpoint::{ENDPOINT_TEXT_BYTES_MAX, Endpoint, EndpointError, ScionAddr};
pub use host::Host;
pub use id::{PathId, PathIdError, PathIdPrefix};
pub use isd_as::{Interface, IsdAs, IsdAsError};
pub use overlap::{Overlap, sort};
pub use path::{Path, PathPeer};
pub use pending::{PENDING_MAX, PENDING_OF_HOST_MAX, PENDING_OF_HOST_TRUSTED, PENDING_TRUSTED, PendingCallers};
pub use policy::{
    ACL_ENTRIES_MAX, Acl, POLICY_FILE_BYTES_MAX, PathFilter, PolicyError, PolicyErrorKind, PolicyFile, PolicyFileError,
    Preference, SEQUENCE_DEPTH_MAX, SEQUENCE_HOPS_MAX, Sequence, TEXT_BYTES_MAX,
};
pub use scion::{Geo, Hop, Latency, LinkKind, Remarks, ScionPath};
pub use scoreboard::{SLOT, Sample, Scoreboard, Slot, Standing};
