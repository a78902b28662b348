//! What a border router is told about its AS.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use anabranch_paths::IsdAs;
use anabranch_scion_wire::Service;

use crate::link::{LinkShape, ShapeError};

/// Interfaces of one AS: far more than one machine runs, and few enough to look up in a list.
pub const INTERFACES_MAX: usize = 1024;
/// Addresses that one router answers on inside its AS: topologies that name several border routers run on one.
pub(super) const INTERNAL_ADDRESSES_MAX: usize = 64;
/// Instances of one service that a router chooses from.
pub(super) const SERVICE_INSTANCES_MAX: usize = 16;
/// Services that a router knows addresses of.
pub(super) const SERVICES_MAX: usize = 16;
/// Where packets go whose destination has no port of its own (SCMP, "Identifier"; scionproto's end host port).
pub const HOST_PORT_DEFAULT: u16 = 30_041;
/// Ports that hosts read SCION packets on themselves, where the topology names no others.
pub const HOST_PORTS_DEFAULT: RangeInclusive<u16> = 31_000..=32_767;

/// What the neighbour at the other end of a link is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkRole {
    /// Another core AS; both are core.
    Core,
    /// It provides for us.
    Parent,
    /// We provide for it.
    Child,
    /// Neither; used by its and our customers alone.
    Peer,
}

/// An AS as its border router sees it.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// The AS.
    pub isd_as: IsdAs,
    /// The key of its hop field MACs.
    pub forwarding_key: [u8; 16],
    /// Where hosts of the AS hand in their packets. Packets for hosts leave from the first.
    pub internal: Vec<SocketAddr>,
    /// Hosts' own ports; what is for another port goes to [`HOST_PORT_DEFAULT`].
    pub host_ports: RangeInclusive<u16>,
    /// Who runs the services of the AS.
    pub services: Vec<(Service, SocketAddr)>,
    /// Its links.
    pub interfaces: Vec<InterfaceConfig>,
}

/// One end of a link.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// Its number in the AS, not zero.
    pub id: u16,
    /// What the neighbour is to us.
    pub role: LinkRole,
    /// Who the neighbour is.
    pub neighbor: IsdAs,
    /// The UDP address of this end.
    pub local: SocketAddr,
    /// That of the other end.
    pub remote: SocketAddr,
    /// What the line does to packets that leave here.
    pub shape: LinkShape,
}

/// Why a router cannot be. Each is the configuration's fault unless it says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// Nowhere to hand packets in.
    #[error("{0} has no internal address: give its router one")]
    NoInternalAddress(IsdAs),
    /// Zero is the AS's inside.
    #[error("{0} has an interface 0: number interfaces from 1")]
    InterfaceZero(IsdAs),
    /// One number, two links.
    #[error("{0} has two interfaces {1}: give each its own number")]
    InterfaceTwice(IsdAs, u16),
    /// More than a limit of this program.
    #[error("{0} has more than {2} {1}: use fewer")]
    TooMany(IsdAs, &'static str, usize),
    /// A line that cannot be.
    #[error("interface {1} of {0}: {2}")]
    Shape(IsdAs, u16, ShapeError),
    /// No such interface.
    #[error("{0} has no interface {1}")]
    UnknownInterface(IsdAs, u16),
    /// An address that cannot be had.
    #[error("{isd_as} cannot use {address}: {error}; is it taken, or not of this machine?")]
    Bind {
        /// The AS.
        isd_as: IsdAs,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// The system refuses what the data plane lives on; not the configuration's fault.
    #[error("the system refuses threads or descriptors: {0}; raise the limit (ulimit -n) or run fewer ASes")]
    System(#[from] std::io::Error),
}

impl RouterConfig {
    /// Checks everything that can be wrong before sockets are made.
    pub fn check(&self) -> Result<(), RouterError> {
        let isd_as = self.isd_as;
        let within = |count: usize, what, max| {
            if count <= max { Ok(()) } else { Err(RouterError::TooMany(isd_as, what, max)) }
        };
        within(self.interfaces.len(), "interfaces", INTERFACES_MAX)?;
        within(self.internal.len(), "internal addresses", INTERNAL_ADDRESSES_MAX)?;
        within(self.services.len(), "service addresses", SERVICES_MAX * SERVICE_INSTANCES_MAX)?;
        if self.internal.is_empty() {
            return Err(RouterError::NoInternalAddress(isd_as));
        }
        let mut ids: Vec<u16> = self.interfaces.iter().map(|interface| interface.id).collect();
        ids.sort_unstable();
        if ids.first() == Some(&0) {
            return Err(RouterError::InterfaceZero(isd_as));
        }
        if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(RouterError::InterfaceTwice(isd_as, twice[0]));
        }
        for interface in &self.interfaces {
            interface.shape.checked().map_err(|error| RouterError::Shape(isd_as, interface.id, error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(ids: &[u16]) -> RouterConfig {
        let interface = |id: &u16| InterfaceConfig {
            id: *id,
            role: LinkRole::Core,
            neighbor: IsdAs::default(),
            local: "127.0.0.1:1".parse().unwrap(),
            remote: "127.0.0.1:2".parse().unwrap(),
            shape: LinkShape::default(),
        };
        RouterConfig {
            isd_as: "1-ff00:0:110".parse().unwrap(),
            forwarding_key: [0; 16],
            internal: vec!["127.0.0.1:0".parse().unwrap()],
            host_ports: HOST_PORTS_DEFAULT,
            services: Vec::new(),
            interfaces: ids.iter().map(interface).collect(),
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        assert!(config(&[1, 2, 65535]).check().is_ok());
        assert!(matches!(config(&[3, 0]).check(), Err(RouterError::InterfaceZero(_))));
        assert!(matches!(config(&[3, 4, 3]).check(), Err(RouterError::InterfaceTwice(_, 3))));
        let ids = |count| (1..=count).collect::<Vec<u16>>();
        assert!(config(&ids(INTERFACES_MAX as u16)).check().is_ok());
        assert!(matches!(config(&ids(INTERFACES_MAX as u16 + 1)).check(), Err(RouterError::TooMany(..))));
        assert!(matches!(
            RouterConfig { internal: Vec::new(), ..config(&[]) }.check(),
            Err(RouterError::NoInternalAddress(_))
        ));
        let mut lossy = config(&[7]);
        lossy.interfaces[0].shape.loss = 2.0;
        assert!(lossy.check().unwrap_err().to_string().contains("interface 7 of 1-ff00:0:110"));
    }
}
