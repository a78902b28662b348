//! Sockets of a multicast group, which this machine's programs share: one for each family, at every uplink.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anabranch_transport::{Interfaces, LocalInterface};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use tokio::net::UdpSocket;

/// What is sent stays in the network that it is sent to.
pub(crate) const HOPS_MAX: u32 = 1;

/// One group, and the socket that is in it.
pub(crate) struct Group {
    group: SocketAddr,
    socket: UdpSocket,
    /// Numbers of the interfaces at which it is in the group.
    joined: HashSet<u32>,
}

impl Group {
    /// In no network yet.
    ///
    /// # Errors
    /// When the system says no: it has no such family, or another program keeps the port for itself.
    pub(crate) fn open(group: SocketAddr) -> io::Result<Self> {
        let (domain, any): (_, IpAddr) = match group {
            SocketAddr::V4(_) => (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into()),
            SocketAddr::V6(_) => (Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()),
        };
        let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        // Other clients on this machine listen there, too.
        socket.set_reuse_address(true)?;
        if group.is_ipv6() {
            socket.set_only_v6(true)?;
            socket.set_multicast_hops_v6(HOPS_MAX)?;
            socket.set_multicast_loop_v6(true)?;
        } else {
            socket.set_multicast_ttl_v4(HOPS_MAX)?;
            socket.set_multicast_loop_v4(true)?;
            // Only what comes by interfaces of our own choice.
            socket.set_multicast_all_v4(false)?;
        }
        socket.bind(&SocketAddr::new(any, group.port()).into())?;
        Ok(Self { group, socket: UdpSocket::from_std(socket.into())?, joined: HashSet::new() })
    }

    /// Joins the group at the interfaces that may be used now, and forgets those that are gone.
    pub(crate) fn settle(&mut self, interfaces: &Interfaces) {
        let usable: Vec<&LocalInterface> = self.usable(interfaces).collect();
        self.joined.retain(|index| usable.iter().any(|interface| interface.index == *index));
        for interface in usable {
            let joined = match self.group.ip() {
                _ if self.joined.contains(&interface.index) => continue,
                IpAddr::V4(group) => {
                    let at = InterfaceIndexOrAddress::Index(interface.index);
                    socket2::SockRef::from(&self.socket).join_multicast_v4_n(&group, &at)
                }
                IpAddr::V6(group) => self.socket.join_multicast_v6(&group, interface.index),
            };
            // What an interface refuses now is asked of it again.
            if joined.is_ok() {
                self.joined.insert(interface.index);
            }
        }
    }

    /// Sends to the group at each interface that may be used. What an interface does not take is lost there.
    pub(crate) fn send(&self, interfaces: &Interfaces, datagram: &[u8]) {
        let socket = socket2::SockRef::from(&self.socket);
        for interface in self.usable(interfaces) {
            let own = interface.addresses.iter().find_map(|address| match address.ip {
                IpAddr::V4(ip) => Some(ip),
                IpAddr::V6(_) => None,
            });
            let chosen = match (self.group, own) {
                (SocketAddr::V4(_), Some(own)) => socket.set_multicast_if_v4(&own),
                (SocketAddr::V4(_), None) => continue,
                (SocketAddr::V6(_), _) => socket.set_multicast_if_v6(interface.index),
            };
            if chosen.is_ok() {
                let _ = self.socket.try_send_to(datagram, self.group);
            }
        }
    }

    /// The next datagram.
    pub(crate) async fn receive(&self, datagram: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.recv_from(datagram).await
    }

    fn usable<'a>(&self, interfaces: &'a Interfaces) -> impl Iterator<Item = &'a LocalInterface> + use<'a> {
        let is_ipv4 = self.group.is_ipv4();
        let usable = interfaces.list().iter().filter(|interface| interface.usable && !interface.loopback);
        usable.filter(move |interface| interface.addresses.iter().any(|address| address.ip.is_ipv4() == is_ipv4))
    }
}
