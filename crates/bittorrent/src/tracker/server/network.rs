//! Who is one and the same, as far as a tracker can tell: an IPv4 address, or an IPv6 network as customers are given (/64).

use std::net::IpAddr;

use crate::reach::Reach;

/// An announcer's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(IpAddr);

impl From<IpAddr> for Network {
    fn from(ip: IpAddr) -> Self {
        Self(match ip.to_canonical() {
            IpAddr::V6(ip) if !ip.is_loopback() => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
            ip => ip,
        })
    }
}

impl Network {
    /// Whether it is the operator's own, and not one of many strangers'.
    pub(super) fn is_near(self) -> bool {
        Reach::of(self.0) < Reach::World
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_customer_has_one_network() {
        let network = |ip: &str| Network::from(ip.parse::<IpAddr>().unwrap());
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert!(network("10.0.0.1").is_near() && network("::1").is_near() && !network("192.0.2.1").is_near());
    }
}
