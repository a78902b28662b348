//! Where others reach us over plain IP, for those who are told.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Addresses of ours in a link: more uplinks than machines have, and links are to be copied by hand.
const TOLD_MAX: usize = 8;

/// Of sockets at `listening` that are reached at `all` of these: the one that leads furthest first. Empty `all`: nothing more is known.
pub(crate) fn told(all: Vec<SocketAddr>, listening: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut told: Vec<SocketAddr> = listening.iter().flat_map(|address| reachable(*address)).collect();
    // Where the user restricts the interfaces, the others are not named.
    told.retain(|address| all.is_empty() || all.contains(address) || address.ip().is_loopback());
    let others: Vec<SocketAddr> = all.into_iter().filter(|address| !told.contains(address)).collect();
    told.extend(others);
    told.truncate(TOLD_MAX);
    told
}

/// Where others on the network reach `listening`: the same, or this host's addresses where it listens on all of them.
pub fn reachable(listening: SocketAddr) -> Vec<SocketAddr> {
    if !listening.ip().is_unspecified() {
        return vec![listening];
    }
    // Connecting a UDP socket sends nothing; it only says which of our addresses would be used (RFC 5737, RFC 3849).
    let local = |bind: SocketAddr, towards: &str| {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(towards).ok()?;
        socket.local_addr().ok().map(|local| SocketAddr::new(local.ip(), listening.port()))
    };
    let v4 = local((Ipv4Addr::UNSPECIFIED, 0).into(), "192.0.2.1:9");
    let v6 = listening.is_ipv6().then(|| local((Ipv6Addr::UNSPECIFIED, 0).into(), "[2001:db8::1]:9")).flatten();
    let found: Vec<SocketAddr> = v4.into_iter().chain(v6).collect();
    if found.is_empty() { vec![(Ipv4Addr::LOCALHOST, listening.port()).into()] } else { found }
}

/// Whether who listens there listens to this machine, and to nobody else.
pub(crate) fn are_at_home(listening: &[SocketAddr]) -> bool {
    !listening.is_empty() && listening.iter().all(|address| address.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_address_is_reachable_as_it_is() {
        let given: SocketAddr = "192.0.2.7:5".parse().unwrap();
        assert_eq!(reachable(given), [given]);
        let all = reachable("0.0.0.0:5".parse().unwrap());
        assert!(all.iter().all(|address| !address.ip().is_unspecified() && address.port() == 5) && !all.is_empty());
    }

    #[test]
    fn addresses_of_interfaces_that_may_not_be_used_are_not_told() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(told(Vec::new(), &[at("192.0.2.7:5")]), [at("192.0.2.7:5")]);
        assert_eq!(told(vec![at("192.0.2.8:5")], &[at("192.0.2.7:5")]), [at("192.0.2.8:5")]);
        let many = (0..20).map(|host| SocketAddr::from(([192, 0, 2, host], 5))).collect();
        assert_eq!(told(many, &[at("192.0.2.7:5")]).len(), TOLD_MAX);
    }
}
