//! Addresses as users write them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::{IsdAs, IsdAsError};

/// Longest text of an endpoint: `[65535-ffff:ffff:ffff,` IPv6 with a zone `]:65535`, and some room.
pub const ENDPOINT_TEXT_BYTES_MAX: usize = 128;

/// Where a peer listens: the address-level identity that credit and bans belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// IPv4 or IPv6 address and TCP or UDP port.
    Ip(SocketAddr),
    /// A host of a SCION AS, and its UDP port.
    Scion(ScionAddr),
}

/// A host of a SCION AS and a UDP port of it: `[1-ff00:0:110,10.0.0.1]:80`.
///
/// Two ASes may number their hosts alike, so the host says nothing without its AS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScionAddr {
    /// The AS that the host is in.
    pub isd_as: IsdAs,
    /// The host in that AS, and the port.
    pub host: SocketAddr,
}

/// Why a text is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// None of the forms.
    #[error(
        "`{0}` is not an address: write IPv4:port (192.0.2.7:6881), [IPv6]:port ([2001:db8::7]:6881) \
         or [ISD-AS,host]:port ([1-ff00:0:110,10.0.0.1]:6881)"
    )]
    NotAnAddress(String),
    /// An IPv6 address whose port cannot be told from its last group.
    #[error("`{0}` has no port that can be told from the address: write [{0}]:port")]
    UnbracketedIpv6(String),
    /// An address without a port.
    #[error("`{0}` has no port: write {0}:6881")]
    NoPort(String),
    /// A SCION address whose part before the comma is wrong.
    #[error("`{text}` is not a SCION address: {source}")]
    IsdAs {
        /// The whole text.
        text: String,
        /// What is wrong with the ISD-AS.
        source: IsdAsError,
    },
    /// A SCION address with a wildcard where one AS has to be named.
    #[error("`{0}` names no single AS: neither the ISD nor the AS of an address may be 0")]
    Wildcard(String),
    /// A SCION address whose part behind the comma is wrong.
    #[error("`{text}` is not a SCION address: `{host}` is no host with a port; write [{isd_as},10.0.0.1]:6881")]
    ScionHost {
        /// The whole text.
        text: String,
        /// The AS, which is well.
        isd_as: IsdAs,
        /// What stands for the host.
        host: String,
    },
    /// A SCION address without a port.
    #[error("`{text}` has no port: write {remedy}")]
    ScionNoPort {
        /// The whole text.
        text: String,
        /// The same with a port.
        remedy: String,
    },
}

impl Endpoint {
    /// The host's IP address. For SCION it means something within the host's AS only.
    pub fn ip(&self) -> IpAddr {
        self.socket_addr().ip()
    }

    /// The host's IP address and port. For SCION it means something within the host's AS only: nobody outside dials it.
    pub fn socket_addr(&self) -> SocketAddr {
        match self {
            Self::Ip(address) => *address,
            Self::Scion(address) => address.host,
        }
    }

    /// The address, if it is one of plain IP.
    pub fn as_ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Scion(_) => None,
        }
    }

    /// The address, if it is one of SCION.
    pub fn as_scion(&self) -> Option<ScionAddr> {
        match self {
            Self::Ip(_) => None,
            Self::Scion(address) => Some(*address),
        }
    }
}

impl ScionAddr {
    /// IPv4 addresses mapped into IPv6 are unmapped, so that one host has one identity.
    pub fn new(isd_as: IsdAs, host: SocketAddr) -> Self {
        Self { isd_as, host: canonical(host) }
    }
}

impl From<SocketAddr> for Endpoint {
    /// IPv4 addresses mapped into IPv6 are unmapped, so that one host has one identity.
    fn from(address: SocketAddr) -> Self {
        Self::Ip(canonical(address))
    }
}

impl From<ScionAddr> for Endpoint {
    fn from(address: ScionAddr) -> Self {
        Self::Scion(ScionAddr::new(address.isd_as, address.host))
    }
}

/// Also drops flow labels, which are no part of who a host is.
fn canonical(address: SocketAddr) -> SocketAddr {
    match (address.ip().to_canonical(), address) {
        (IpAddr::V6(_), SocketAddr::V6(mut v6)) => {
            v6.set_flowinfo(0);
            v6.into()
        }
        (ip, _) => SocketAddr::new(ip, address.port()),
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Scion(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for ScionAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            SocketAddr::V6(host) if host.scope_id() != 0 => {
                write!(f, "[{},{}%{}]:{}", self.isd_as, host.ip(), host.scope_id(), host.port())
            }
            host => write!(f, "[{},{}]:{}", self.isd_as, host.ip(), host.port()),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.len() > ENDPOINT_TEXT_BYTES_MAX {
            let shown: String = text.chars().take(ENDPOINT_TEXT_BYTES_MAX).collect();
            return Err(EndpointError::NotAnAddress(format!("{shown}...")));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        if text.contains(',') {
            return text.parse().map(Self::Scion);
        }
        let shown = text.to_owned();
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

impl FromStr for ScionAddr {
    type Err = EndpointError;

    /// `ISD-AS,host:port`, `ISD-AS,[host]:port` and `[ISD-AS,host]:port`.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let shown = || text.to_owned();
        let (outer, rest) = match text.strip_prefix('[') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (isd_as, host) = rest.split_once(',').ok_or_else(|| EndpointError::NotAnAddress(shown()))?;
        let isd_as: IsdAs = isd_as.parse().map_err(|source| EndpointError::IsdAs { text: shown(), source })?;
        if isd_as.isd() == 0 || isd_as.asn() == 0 {
            return Err(EndpointError::Wildcard(shown()));
        }
        // The bracket that opened before the ISD-AS closes behind the host: moved, what is left is IP's own form.
        let host = if outer { format!("[{host}") } else { host.to_owned() };
        if let Some(host) = parse_host(&host) {
            return Ok(Self::new(isd_as, host));
        }
        if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Err(EndpointError::ScionNoPort { text: shown(), remedy: format!("[{isd_as},{ip}]:6881") });
        }
        let host = text.split_once(',').map_or(text, |(_, host)| host).to_owned();
        Err(EndpointError::ScionHost { text: shown(), isd_as, host })
    }
}

/// `10.0.0.1:80`, `[10.0.0.1]:80` or `[2001:db8::1]:80`.
fn parse_host(text: &str) -> Option<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let (host, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
    let host: std::net::Ipv4Addr = host.parse().ok()?;
    // SocketAddr's own parser judges the port, so that all forms take the same ones.
    format!("{host}:{port}").parse().ok()
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
