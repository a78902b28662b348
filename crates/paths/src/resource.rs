//! What paths compete for.

use std::fmt;
use std::net::IpAddr;

use crate::Interface;

/// Something a path passes and may share with others: where a bottleneck can be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// An interface of an AS, and so the link at it.
    Interface(Interface),
    /// The uplink behind a local address.
    Local(IpAddr),
    /// The uplink behind a remote address.
    Remote(IpAddr),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(interface) => interface.fmt(f),
            Self::Local(address) => write!(f, "uplink {address}"),
            Self::Remote(address) => write!(f, "host {address}"),
        }
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
