//! Addresses as users write them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Where a peer listens: the address-level identity that credit and bans belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Endpoint {
    /// IPv4 or IPv6 address and TCP or UDP port.
    Ip(SocketAddr),
}

/// Why a text is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Neither `IPv4:port` nor `[IPv6]:port`.
    #[error("`{0}` is not an address: write IPv4:port (192.0.2.7:6881) or [IPv6]:port ([2001:db8::7]:6881)")]
    NotAnAddress(String),
    /// An IPv6 address whose port cannot be told from its last group.
    #[error("`{0}` has no port that can be told from the address: write [{0}]:port")]
    UnbracketedIpv6(String),
    /// An address without a port.
    #[error("`{0}` has no port: write {0}:6881")]
    NoPort(String),
    /// A SCION address; this build speaks IP only.
    #[error("`{0}` is a SCION address, and this version reaches IPv4 and IPv6 addresses only")]
    Scion(String),
}

impl Endpoint {
    /// The host's IP address.
    pub fn ip(&self) -> IpAddr {
        match self {
            Self::Ip(address) => address.ip(),
        }
    }

    /// The socket address of an IP endpoint.
    pub fn socket_addr(&self) -> SocketAddr {
        match self {
            Self::Ip(address) => *address,
        }
    }
}

impl From<SocketAddr> for Endpoint {
    /// IPv4 addresses mapped into IPv6 are unmapped, so that one host has one identity.
    fn from(address: SocketAddr) -> Self {
        Self::Ip(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let shown = text.to_owned();
        // `1-ff00:0:110,10.0.0.1:80`, `[1-ff00:0:110,10.0.0.1]:80`: an ISD-AS, a comma, a host.
        if text.trim_start_matches('[').split_once(',').is_some_and(|(isd_as, _)| isd_as.contains('-')) {
            return Err(EndpointError::Scion(shown));
        }
        if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Err(if text.contains(':') && !text.starts_with('[') {
                EndpointError::UnbracketedIpv6(shown)
            } else {
                EndpointError::NoPort(shown)
            });
        }
        Err(EndpointError::NotAnAddress(shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_round_trip() {
        for text in ["192.0.2.7:6881", "[2001:db8::7]:6881"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn mapped_ipv4_is_the_same_endpoint() {
        assert_eq!("[::ffff:192.0.2.7]:1".parse::<Endpoint>(), "192.0.2.7:1".parse());
    }

    #[test]
    fn errors_name_the_input_and_the_remedy() {
        let message = |text: &str| text.parse::<Endpoint>().unwrap_err().to_string();
        assert!(message("192.0.2.7").contains("192.0.2.7:6881"));
        assert!(message("2001:db8::7").contains("[2001:db8::7]:port"));
        assert!(message("[1-ff00:0:110,10.0.0.1]:80").contains("SCION"));
        assert!(message("1-ff00:0:110,10.0.0.1:80").contains("SCION"));
        assert!(message("nonsense").contains("`nonsense`"));
        assert!(message("192.0.2.7:99999").contains("192.0.2.7:99999"));
    }
}
