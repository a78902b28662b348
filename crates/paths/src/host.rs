//! Who is at an address, as far as addresses tell.

use std::net::{IpAddr, Ipv6Addr};

use crate::{Endpoint, IsdAs};

/// Leading bits of an IPv6 address that are one subscriber's: each has that many addresses, and more, to choose from
/// (RFC 6177).
const PREFIX_BITS: u32 = 64;

/// One who cannot take another's place by taking another address or port: an IPv4 address, a network of IPv6 addresses, a
/// host of a SCION AS. Many programs may be at one; what is limited by host is limited for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    isd_as: Option<IsdAs>,
    network: IpAddr,
}

impl Host {
    /// The host at `endpoint`.
    pub fn of(endpoint: &Endpoint) -> Self {
        let isd_as = endpoint.as_scion().map(|address| address.isd_as);
        let network = match endpoint.ip().to_canonical() {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) if ip.is_loopback() => ip.into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (128 - PREFIX_BITS))).into(),
        };
        Self { isd_as, network }
    }

    /// Whether it is this machine: one host of many programs, each with a right of its own.
    pub fn is_loopback(&self) -> bool {
        self.isd_as.is_none() && self.network.is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::of(&text.parse().unwrap())
    }

    #[test]
    fn ports_and_the_end_of_an_ipv6_address_are_free_and_tell_nothing() {
        assert_eq!(host("192.0.2.1:1"), host("192.0.2.1:2"));
        assert_ne!(host("192.0.2.1:1"), host("192.0.2.2:1"));
        assert_eq!(host("[2001:db8:1:2::1]:1"), host("[2001:db8:1:2:ffff:ffff:ffff:ffff]:1"));
        assert_ne!(host("[2001:db8:1:2::1]:1"), host("[2001:db8:1:3::1]:1"));
        assert_eq!(host("[::ffff:192.0.2.1]:1"), host("192.0.2.1:1"));
    }

    #[test]
    fn hosts_of_two_ases_are_two() {
        assert_ne!(host("[1-ff00:0:110,192.0.2.1]:1"), host("192.0.2.1:1"));
        assert_ne!(host("[1-ff00:0:110,192.0.2.1]:1"), host("[1-ff00:0:111,192.0.2.1]:1"));
        assert_eq!(host("[1-ff00:0:110,192.0.2.1]:1"), host("[1-ff00:0:110,192.0.2.1]:2"));
    }

    #[test]
    fn the_loopback_is_of_plain_ip() {
        assert!(
            host("127.0.0.1:1").is_loopback() && host("127.9.9.9:1").is_loopback() && host("[::1]:1").is_loopback()
        );
        assert!(!host("[1-ff00:0:110,127.0.0.1]:1").is_loopback() && !host("[::2]:1").is_loopback());
    }
}
