//! The border router: a pure judge of packets, and threads that let packets pass it at speed.
//!
//! [`Forwarder`] holds an AS's rules and decides about one packet at a time, in place: forward it over a link, deliver it
//! to a host, answer it with SCMP, or drop it for a [`DropReason`]. It follows the SCION data plane specification for an AS
//! whose interfaces are all on one router; there are no sibling routers, so what comes from inside must be at its
//! path's first hop, and "internal connectivity down" never happens.
//!
//! [`DataPlane`] owns the threads, each waiting with its own epoll for a share of the sockets of all [`Router`]s in the
//! process. Packets are judged where the kernel put them and leave from there, in bursts as they came: a burst of one
//! flow is judged once and sent once. Links are UDP between routers, even within one process, so an AS may as well
//! have a process of its own. What a link does to packets ([`crate::link`]) happens where they leave.
//!
//! A [`Router`] can be told at any time, from any thread, to take an interface down, to change a line or a service, and
//! what it has counted. [`check_links`] measures links against what was asked of them.
//!
//! Not here: BFD (interfaces go down when they are told to), EPIC, SCMP authentication, sibling routers.
//!
//! ```
//! use anabranch_asnet::link::LinkShape;
//! use anabranch_asnet::router::{DataPlane, HOST_PORTS_DEFAULT, InterfaceConfig, LinkRole, RouterConfig};
//!
//! let plane = DataPlane::start(Some(1))?;
//! let router = plane.add_router(&RouterConfig {
//!     isd_as: "1-ff00:0:110".parse()?,
//!     forwarding_key: [7; 16],
//!     internal: vec!["127.0.0.1:0".parse()?],
//!     host_ports: HOST_PORTS_DEFAULT,
//!     services: Vec::new(),
//!     interfaces: vec![InterfaceConfig {
//!         id: 1,
//!         role: LinkRole::Child,
//!         neighbor: "1-ff00:0:111".parse()?,
//!         local: "127.0.0.1:0".parse()?,
//!         remote: "127.0.0.2:20000".parse()?,
//!         shape: LinkShape { rate_bps: Some(100_000_000), ..LinkShape::default() },
//!     }],
//! })?;
//! router.set_up(1, false)?;
//! assert_eq!(router.stats(1)?.received_packets, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod counters;
mod data_plane;
mod epoll;
mod forward;
mod link_check;
mod port;
mod probe;
mod reply;
#[cfg(test)]
mod test_network;
mod verdict_cache;
mod worker;

pub use config::{
    HOST_PORT_DEFAULT, HOST_PORTS_DEFAULT, INTERFACES_MAX, InterfaceConfig, LinkRole, RouterConfig, RouterError,
};
pub use counters::{DropReason, InterfaceStats};
pub use data_plane::{DataPlane, Router};
pub use forward::{Forwarder, Ingress, Verdict};
pub use link_check::{DirectionReport, LinkEnd, Measured, check_links};
pub use reply::Reply;
