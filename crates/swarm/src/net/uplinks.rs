//! The ways out of this machine over plain IP: its network interfaces, for all contents.

use std::cell::{Cell, Ref, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use anabranch_paths::Path;
use anabranch_paths::manager::{IpCandidate, UPLINKS_EVERY};
use anabranch_transport::{INTERFACE_ADDRESSES_MAX, InterfaceError, Interfaces, LocalAddress, LocalInterface, Via};

/// The network interfaces that connections may leave by.
pub(crate) struct Uplinks {
    interfaces: RefCell<Interfaces>,
    looked_at: Cell<Instant>,
    /// Counts the changes.
    version: Cell<u64>,
}

impl Uplinks {
    /// The interfaces of these names; all where there are none.
    pub(crate) fn open(names: &[String], now: Instant) -> Result<Self, InterfaceError> {
        let interfaces = RefCell::new(Interfaces::new(names)?);
        Ok(Self { interfaces, looked_at: Cell::new(now), version: Cell::new(0) })
    }

    /// Where peers reach us, who listen at these addresses.
    pub(crate) fn reachable_at(&self, listening: &[SocketAddr]) -> Vec<SocketAddr> {
        self.interfaces.borrow().reachable_at(listening)
    }

    /// The addresses of all interfaces, each with a number for its uplink. An interface is one uplink, unless it has addresses in
    /// several networks of one family: they are mostly of several providers, behind one network card.
    pub(crate) fn numbered(&self) -> Vec<(IpAddr, u32)> {
        let interfaces = self.interfaces.borrow();
        interfaces.list().iter().filter(|interface| !interface.loopback).flat_map(numbered).collect()
    }

    /// Looks whether interfaces came or went, where that is due; answers the number of changes so far.
    pub(crate) fn refresh(&self, now: Instant) -> u64 {
        if now.saturating_duration_since(self.looked_at.get()) >= UPLINKS_EVERY {
            self.looked_at.set(now);
            // What the system does not tell stays as it was, and is asked for again.
            if self.interfaces.borrow_mut().refresh().unwrap_or(false) {
                self.version.set(self.version.get() + 1);
            }
        }
        self.version.get()
    }

    /// As they are now.
    pub(crate) fn interfaces(&self) -> Ref<'_, Interfaces> {
        self.interfaces.borrow()
    }

    /// The number of the interface that has this address, where it may be used.
    pub(crate) fn index_of(&self, address: IpAddr) -> Option<u32> {
        let interfaces = self.interfaces.borrow();
        let mut usable = interfaces.list().iter().filter(|interface| interface.usable);
        usable.find(|interface| interface.addresses.iter().any(|own| own.ip == address)).map(|own| own.index)
    }

    /// How to leave for `remote` over `path`; `None` where that is possible no more.
    pub(crate) fn via(&self, remote: SocketAddr, path: &Path) -> Option<Via> {
        let candidates = self.interfaces.borrow().candidates(&[remote]);
        candidates.into_iter().find(|candidate| candidate.path == *path).map(|candidate| candidate.via)
    }

    /// Our addresses, each with each of `remotes` that it reaches.
    pub(crate) fn candidates(&self, remotes: &[SocketAddr]) -> Vec<IpCandidate> {
        let interfaces = self.interfaces.borrow();
        let candidate = |found: anabranch_transport::IpCandidate| IpCandidate {
            uplink: interfaces.uplink(found.path.local()),
            path: found.path,
            remote: found.remote,
            interface: found.via.interface,
        };
        interfaces.candidates(remotes).into_iter().map(candidate).collect()
    }
}

fn numbered(interface: &LocalInterface) -> Vec<(IpAddr, u32)> {
    let mut networks: [Vec<LocalAddress>; 2] = Default::default();
    let mut network = |address: &LocalAddress| {
        // Beside those of its providers, IPv6 has one network of the house and one of the link.
        if matches!(address.ip, IpAddr::V6(ip) if ip.is_unique_local() || ip.is_unicast_link_local()) {
            return 0;
        }
        let known = &mut networks[usize::from(address.ip.is_ipv6())];
        let is_alike = |other: &LocalAddress| other.has_in_network(address.ip) || address.has_in_network(other.ip);
        known.iter().position(is_alike).unwrap_or_else(|| {
            known.push(*address);
            known.len() - 1
        })
    };
    let first = interface.index.wrapping_mul(INTERFACE_ADDRESSES_MAX as u32);
    interface.addresses.iter().map(|address| (address.ip, first.wrapping_add(network(address) as u32))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_one_uplink_for_each_provider() {
        let addresses = [
            ("192.168.1.5", 24, 48),
            ("fe80::1", 64, 48),
            ("2001:db8:1::5", 128, 48),
            ("2001:db8:1::6", 64, 48),
            ("fd00::5", 64, 48),
            ("10.0.0.5", 8, 49),
            ("2001:db8:2::5", 64, 49),
            ("192.168.1.6", 24, 48),
        ];
        let interface = LocalInterface {
            name: "eth0".to_owned(),
            index: 3,
            loopback: false,
            running: true,
            usable: true,
            addresses: addresses
                .map(|(ip, prefix_len, _)| LocalAddress { ip: ip.parse().unwrap(), prefix_len })
                .to_vec(),
        };
        assert_eq!(numbered(&interface), addresses.map(|(ip, _, number)| (ip.parse().unwrap(), number)));
    }

    #[test]
    fn named_interfaces_alone_lead_anywhere() {
        let (remote, now) = ("127.0.0.1:80".parse().unwrap(), Instant::now());
        let lo = Interfaces::new(&[]).unwrap().list().iter().find(|interface| interface.loopback).unwrap().name.clone();
        let only = Uplinks::open(std::slice::from_ref(&lo), now).unwrap();
        let candidates = only.candidates(&[remote]);
        assert_eq!(candidates.iter().map(|candidate| &candidate.interface).collect::<Vec<_>>(), [&lo]);
        assert_eq!(only.via(remote, &candidates[0].path).unwrap().interface, lo);
        assert_eq!(only.candidates(&["192.0.2.1:80".parse().unwrap()]), []);
        assert!(Uplinks::open(&["nope7".to_owned()], now).is_err());
    }
}
