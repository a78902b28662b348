//! Who a packet is from and for: an AS and a host in it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anabranch_paths::IsdAs;

/// Type and length of an IPv4 host address, as the four bits of the common header.
const KIND_V4: u8 = 0b0000;
/// The same of a service address.
const KIND_SERVICE: u8 = 0b0100;
/// The same of an IPv6 host address.
const KIND_V6: u8 = 0b0011;
/// The longest host address in bytes; every length is a multiple of four.
pub(crate) const HOST_LEN_MAX: usize = 16;

/// Bytes of a host address whose type and length are `kind`, known or not (SCION header, "DL", "SL").
pub(crate) fn host_len(kind: u8) -> usize {
    4 * (1 + usize::from(kind & 0b11))
}

/// A service of an AS, reached by name: the router picks the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Service(pub u16);

impl Service {
    /// The discovery service.
    pub const DISCOVERY: Self = Self(1);
    /// The control service.
    pub const CONTROL: Self = Self(2);
    /// Any service.
    pub const WILDCARD: Self = Self(0x10);
    /// This bit asks for all instances of the service.
    const MULTICAST: u16 = 0x8000;

    /// The service without the multicast bit.
    pub fn base(self) -> Self {
        Self(self.0 & !Self::MULTICAST)
    }

    /// All instances are meant, not one.
    pub fn is_multicast(self) -> bool {
        self.0 & Self::MULTICAST != 0
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base() {
            Self::DISCOVERY => f.write_str("DS")?,
            Self::CONTROL => f.write_str("CS")?,
            Self::WILDCARD => f.write_str("Wildcard")?,
            Self(other) => write!(f, "<SVC:{other:#06x}>")?,
        }
        f.write_str(if self.is_multicast() { "_M" } else { "" })
    }
}

/// A host within its AS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostAddr {
    /// IPv4.
    V4(Ipv4Addr),
    /// IPv6.
    V6(Ipv6Addr),
    /// Whoever runs a service.
    Service(Service),
}

impl HostAddr {
    /// From the header's type and length bits and the bytes they announce; `None` for an unassigned type.
    pub(crate) fn from_wire(kind: u8, bytes: &[u8]) -> Option<Self> {
        match kind {
            KIND_V4 => Some(Self::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?))),
            KIND_V6 => Some(Self::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?))),
            KIND_SERVICE => Some(Self::Service(Service(u16::from_be_bytes(*bytes.first_chunk()?)))),
            _ => None,
        }
    }

    /// The type and length bits.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::V4(_) => KIND_V4,
            Self::V6(_) => KIND_V6,
            Self::Service(_) => KIND_SERVICE,
        }
    }

    /// The bytes on the wire, padded with zeros, and how many of them count.
    pub(crate) fn to_wire(self) -> ([u8; HOST_LEN_MAX], usize) {
        let mut bytes = [0; HOST_LEN_MAX];
        match self {
            Self::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
            Self::V6(v6) => bytes = v6.octets(),
            Self::Service(service) => bytes[..2].copy_from_slice(&service.0.to_be_bytes()),
        }
        (bytes, host_len(self.kind()))
    }

    /// The IP address, unless this is a service.
    pub fn ip(&self) -> Option<IpAddr> {
        match *self {
            Self::V4(v4) => Some(v4.into()),
            Self::V6(v6) => Some(v6.into()),
            Self::Service(_) => None,
        }
    }
}

impl From<IpAddr> for HostAddr {
    /// IPv4 addresses mapped into IPv6 are unmapped: routers refuse the mapped form.
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4),
            IpAddr::V6(v6) => Self::V6(v6),
        }
    }
}

impl From<Service> for HostAddr {
    fn from(service: Service) -> Self {
        Self::Service(service)
    }
}

impl fmt::Display for HostAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(v4) => v4.fmt(f),
            Self::V6(v6) => v6.fmt(f),
            Self::Service(service) => service.fmt(f),
        }
    }
}

/// A host and its AS: one end of a packet, without the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The AS.
    pub isd_as: IsdAs,
    /// The host in it.
    pub host: HostAddr,
}

impl Address {
    /// `host` in `isd_as`.
    pub fn new(isd_as: IsdAs, host: impl Into<HostAddr>) -> Self {
        Self { isd_as, host: host.into() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.isd_as, self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_round_trips() {
        let hosts = [
            HostAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
            HostAddr::V6("2001:db8::7".parse().unwrap()),
            HostAddr::Service(Service::CONTROL),
        ];
        for host in hosts {
            let (bytes, len) = host.to_wire();
            assert_eq!(HostAddr::from_wire(host.kind(), &bytes[..len]), Some(host));
        }
    }

    #[test]
    fn unassigned_kinds_are_no_address() {
        for kind in 0..16 {
            let known = matches!(kind, KIND_V4 | KIND_V6 | KIND_SERVICE);
            assert_eq!(HostAddr::from_wire(kind, &[0; 16]).is_some(), known, "{kind:#06b}");
        }
    }

    #[test]
    fn services_have_the_names_of_the_reference() {
        assert_eq!(Service::CONTROL.to_string(), "CS");
        assert_eq!(Service(0x8001).to_string(), "DS_M");
    }
}
