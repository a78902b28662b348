//! The border router: a pure judge of packets, and the threads that let packets pass through it at speed.
mod config;
mod counters;
mod epoll;
mod forward;
mod plane;
mod port;
mod probe;
mod reply;
mod run;
mod worker;
#[cfg(test)]
mod world;

pub use config::{
    HOST_PORT_DEFAULT, HOST_PORTS_DEFAULT, INTERFACES_MAX, InterfaceConfig, LinkRole, RouterConfig, RouterError,
};
pub use counters::{DropReason, InterfaceStats};
pub use forward::{Forwarder, Ingress, Verdict};
pub use plane::{DataPlane, Router};
pub use reply::Reply;
