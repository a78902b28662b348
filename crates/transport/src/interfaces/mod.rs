//! The ways out of this machine: its network interfaces, and which of them lead to a peer.
//!
//! With two uplinks there are two paths to a peer, and with two addresses on its side up to four. [`Interfaces`] lists what there is,
//! as the user restricted it, and pairs it with a peer's addresses ([`Interfaces::candidates`]); a [`Via`] says how
//! [`TcpStream::connect`](crate::TcpStream::connect) takes one of the ways. Uplinks come and go: [`Interfaces::refresh`] looks again,
//! which takes some microseconds, so a driver does it every [`UPLINKS_EVERY`](anabranch_paths::manager::UPLINKS_EVERY).

mod candidates;
mod list;
mod route;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub use candidates::{CANDIDATES_MAX, IpCandidate};
pub use route::gateway_of;
pub(crate) use route::towards;

/// Usable interfaces that are considered: more uplinks than anybody has, also where containers have one each.
pub const INTERFACES_MAX: usize = 32;
/// Addresses of one interface that are considered: a few networks, and IPv6 has several in each.
pub const INTERFACE_ADDRESSES_MAX: usize = 16;

/// An interface of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalInterface {
    /// As the system calls it.
    pub name: String,
    /// Its number: the zone of link-local addresses.
    pub index: u32,
    /// Whether it leads to this machine alone.
    pub loopback: bool,
    /// Up and running.
    pub running: bool,
    /// Running and, where the user named interfaces, one of them; the loopback in any case.
    pub usable: bool,
    /// Its addresses, in the system's order.
    pub addresses: Vec<LocalAddress>,
}

/// An address of an interface, and the network around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// Bits of it that the whole network has in common.
    pub prefix_len: u8,
}

/// How to leave this machine: the interface, and the address that packets get.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Via {
    /// The address that packets leave from.
    pub source: IpAddr,
    /// The interface that they leave by.
    pub interface: String,
    /// Its number.
    pub index: u32,
    /// Whether the other end is this very machine: then the interface is only where the address belongs.
    pub is_local: bool,
}

/// The longest packet that leaves by the interface of this name, if it is there.
pub fn mtu_of(interface: &str) -> Option<u16> {
    let mtu = anabranch_udp::interface_mtu(interface).ok()?;
    Some(u16::try_from(mtu).unwrap_or(u16::MAX))
}

/// Why there are no interfaces to use.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The user named one that is not there.
    #[error("there is no network interface `{name}`: this machine has {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The user named too many.
    #[error("{0} network interfaces are named, and at most {INTERFACES_MAX} can be used")]
    TooMany(usize),
    /// The system does not tell.
    #[error("cannot list the network interfaces: {0}")]
    Io(#[from] io::Error),
}

/// The interfaces of this machine, as far as they may be used.
#[derive(Clone, Debug)]
pub struct Interfaces {
    /// What the user restricts it to; empty: all.
    names: Vec<String>,
    list: Vec<LocalInterface>,
}

impl Interfaces {
    /// Lists them; `names` are those that may be used, all where it is empty.
    ///
    /// # Errors
    /// Where a name is unknown, or the system does not tell what there is. An interface that is there but down is no error: it may
    /// come up.
    pub fn new(names: &[String]) -> Result<Self, InterfaceError> {
        if names.len() > INTERFACES_MAX {
            return Err(InterfaceError::TooMany(names.len()));
        }
        let list = list::all()?;
        if let Some(name) = names.iter().find(|name| list.iter().all(|interface| interface.name != **name)) {
            let known = list.into_iter().map(|interface| interface.name).collect();
            return Err(InterfaceError::Unknown { name: name.clone(), known });
        }
        Ok(Self { list: restrict(list, names), names: names.to_vec() })
    }

    /// Looks again; answers whether anything changed.
    ///
    /// # Errors
    /// Where the system does not tell; what was known stays.
    pub fn refresh(&mut self) -> Result<bool, InterfaceError> {
        let list = restrict(list::all()?, &self.names);
        let changed = list != self.list;
        self.list = list;
        Ok(changed)
    }

    /// All that have addresses, usable or not.
    pub fn list(&self) -> &[LocalInterface] {
        &self.list
    }

    /// Whether the user restricted what may be used. If not, and there is one candidate only, it is where connections go anyway.
    pub fn is_restricted(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether `source` is an address of an interface that is running, whether the user named it or not.
    pub fn has(&self, source: IpAddr) -> bool {
        self.list.iter().filter(|interface| interface.running).any(|interface| interface.has(source))
    }

    /// The address that stands for the interface which has `source`: one uplink, whatever its addresses and families.
    pub fn uplink(&self, source: IpAddr) -> IpAddr {
        let own = self.list.iter().find(|interface| interface.has(source));
        own.and_then(|own| own.addresses.first()).map_or(source, |first| first.ip)
    }

    /// The ways to a peer that listens at all of `remotes`: see [`IpCandidate`]. The first [`REMOTES_MAX`](anabranch_paths::manager::REMOTES_MAX) of
    /// them count.
    ///
    /// Asks the system for routes, without a packet being sent: some ten microseconds for each interface and address.
    pub fn candidates(&self, remotes: &[SocketAddr]) -> Vec<IpCandidate> {
        candidates::pair(remotes, &self.list, route::source_towards)
    }

    /// Where peers reach us: of `listening`, every address that is not of this machine alone or of one link alone; for
    /// those that stand for all addresses, all of them.
    pub fn reachable_at(&self, listening: &[SocketAddr]) -> Vec<SocketAddr> {
        let usable = self.list.iter().filter(|interface| interface.usable && !interface.loopback);
        let own = usable.flat_map(|interface| &interface.addresses).map(|address| address.ip);
        let own: Vec<IpAddr> = own.filter(|ip| !is_link_local(*ip)).collect();
        let mut at: Vec<SocketAddr> = Vec::new();
        for bound in listening {
            // An IPv6 socket that listens at all addresses takes IPv4 too (Linux, "bindv6only" unset).
            let fits = |ip: &IpAddr| match bound.ip() {
                IpAddr::V6(Ipv6Addr::UNSPECIFIED) => true,
                any if any.is_unspecified() => ip.is_ipv4(),
                one => *ip == one.to_canonical(),
            };
            for ip in own.iter().filter(|ip| fits(ip)) {
                let address = SocketAddr::new(*ip, bound.port());
                if !at.contains(&address) {
                    at.push(address);
                }
            }
        }
        at
    }
}

impl LocalInterface {
    fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|address| address.ip == ip)
    }
}

impl LocalAddress {
    /// Whether `other` is in the network around this address.
    pub fn has_in_network(&self, other: IpAddr) -> bool {
        let differ = match (self.ip, other) {
            (IpAddr::V4(ours), IpAddr::V4(other)) => u128::from(ours.to_bits() ^ other.to_bits()) << 96,
            (IpAddr::V6(ours), IpAddr::V6(other)) => ours.to_bits() ^ other.to_bits(),
            _ => return false,
        };
        differ.leading_zeros() >= u32::from(self.prefix_len)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.interface, self.source)
    }
}

/// Says what is usable. Interfaces without addresses are left out: nothing leaves by them.
fn restrict(list: Vec<LocalInterface>, names: &[String]) -> Vec<LocalInterface> {
    let mut left = INTERFACES_MAX;
    let mut list: Vec<_> = list.into_iter().filter(|interface| !interface.addresses.is_empty()).collect();
    for interface in &mut list {
        // What stays on this machine uses no uplink, so naming uplinks does not forbid it.
        let named = interface.loopback || names.is_empty() || names.contains(&interface.name);
        interface.usable = interface.running && named && left > 0;
        left -= usize::from(interface.usable);
    }
    list
}

/// Whether it means something on one link only.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
