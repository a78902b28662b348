//! DEST as users write it: ASes, hosts in them and names; and the ends of links.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anabranch_paths::{Endpoint, Interface, IsdAs, ScionAddr};

/// A host's name has at most so many bytes (RFC 1035 §2.3.4).
const HOST_NAME_BYTES_MAX: usize = 253;
/// Longest DEST that an error repeats.
const SHOWN_CHARS_MAX: usize = 160;

/// Where paths lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// An AS.
    As(IsdAs),
    /// A host in an AS, and its port if one was given.
    Host {
        /// The AS.
        isd_as: IsdAs,
        /// The host in it.
        ip: IpAddr,
        /// The port.
        port: Option<u16>,
    },
    /// A name, in the hosts file or the DNS.
    Name(String),
}

/// Why a text is no destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DestinationError {
    /// An address of plain IP.
    #[error(
        "`{0}` is an address of the Internet, to which there are no SCION paths: write ISD-AS,host, as in 1-ff00:0:110,10.0.0.1"
    )]
    Ip(String),
    /// A wildcard.
    #[error("`{0}` names no single AS: neither the ISD nor the AS may be 0")]
    Wildcard(String),
    /// None of the forms.
    #[error("`{0}` is no destination: write an ISD-AS (1-ff00:0:110), a host of one (1-ff00:0:110,10.0.0.1) or a name")]
    Malformed(String),
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, DestinationError> {
        let shown = || text.chars().take(SHOWN_CHARS_MAX).collect::<String>();
        if text.parse::<IpAddr>().is_ok() || text.parse::<Endpoint>().is_ok_and(|found| found.as_ip().is_some()) {
            return Err(DestinationError::Ip(shown()));
        }
        if let Ok(ScionAddr { isd_as, host }) = text.parse() {
            return Ok(Self::Host { isd_as, ip: host.ip(), port: Some(host.port()) });
        }
        let bare = text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(text);
        let (isd_as, host) = match bare.split_once(',') {
            Some((isd_as, host)) => (isd_as, Some(host)),
            None => (bare, None),
        };
        let Ok(isd_as) = isd_as.parse::<IsdAs>() else {
            return if is_host_name(text) {
                Ok(Self::Name(text.to_owned()))
            } else {
                Err(DestinationError::Malformed(shown()))
            };
        };
        if isd_as.isd() == 0 || isd_as.asn() == 0 {
            return Err(DestinationError::Wildcard(shown()));
        }
        let Some(host) = host else { return Ok(Self::As(isd_as)) };
        let ip = host.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(host);
        let ip: IpAddr = ip.parse().map_err(|_| DestinationError::Malformed(shown()))?;
        Ok(Self::Host { isd_as, ip: ip.to_canonical(), port: None })
    }
}

/// Letters, digits, dots and hyphens, and a letter at the start of a label somewhere: numbers alone are mistyped addresses.
fn is_host_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (1..=HOST_NAME_BYTES_MAX).contains(&text.len())
        && text.chars().all(allowed)
        && text.split('.').any(|label| label.starts_with(|c: char| c.is_ascii_alphabetic()))
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::As(isd_as) => isd_as.fmt(f),
            Self::Host { isd_as, ip, port: None } => write!(f, "{isd_as},{ip}"),
            Self::Host { isd_as, ip, port: Some(port) } => ScionAddr::new(*isd_as, SocketAddr::new(*ip, *port)).fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// An end of a link: an AS, or one interface of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkEnd {
    /// The AS.
    pub isd_as: IsdAs,
    /// The interface, where it matters.
    pub interface: Option<u16>,
}

impl FromStr for LinkEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (isd_as, interface) = match text.split_once('#') {
            Some((isd_as, interface)) => (isd_as, Some(interface)),
            None => (text, None),
        };
        let isd_as: IsdAs = isd_as.parse().map_err(|error: anabranch_paths::IsdAsError| error.to_string())?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|number| *number > 0);
        let interface = interface
            .map(|text| {
                number(text).ok_or_else(|| format!("`{text}` is no interface: write ISD-AS#IF, as in {isd_as}#1"))
            })
            .transpose()?;
        Ok(Self { isd_as, interface })
    }
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.interface {
            None => self.isd_as.fmt(f),
            Some(id) => Interface { isd_as: self.isd_as, id }.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_have_all_forms() {
        let isd_as: IsdAs = "1-ff00:0:110".parse().unwrap();
        let host = |ip: &str, port| Destination::Host { isd_as, ip: ip.parse().unwrap(), port };
        for (text, expected) in [
            ("1-ff00:0:110", Destination::As(isd_as)),
            ("1-ff00:0:110,10.0.0.1", host("10.0.0.1", None)),
            ("[1-ff00:0:110,10.0.0.1]", host("10.0.0.1", None)),
            ("1-ff00:0:110,[10.0.0.1]", host("10.0.0.1", None)),
            ("1-ff00:0:110,2001:db8::1", host("2001:db8::1", None)),
            ("1-ff00:0:110,[2001:db8::1]", host("2001:db8::1", None)),
            ("1-ff00:0:110,[2001:db8::1]:80", host("2001:db8::1", Some(80))),
            ("[1-ff00:0:110,10.0.0.1]:80", host("10.0.0.1", Some(80))),
            ("mill.example", Destination::Name("mill.example".into())),
            ("mill-2", Destination::Name("mill-2".into())),
        ] {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string().parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn mistakes_are_no_names() {
        for text in ["", "1-", "1-ff00:0", "10.0.0", "1-ff00:0:110,", "1-ff00:0:110,mill", "a b", "1-2,[10.0.0.1"] {
            assert!(matches!(text.parse::<Destination>(), Err(DestinationError::Malformed(_))), "{text}");
        }
        assert!(matches!("10.0.0.1:80".parse::<Destination>(), Err(DestinationError::Ip(_))));
        assert!(matches!("2001:db8::1".parse::<Destination>(), Err(DestinationError::Ip(_))));
        assert!(matches!("0-1".parse::<Destination>(), Err(DestinationError::Wildcard(_))));
    }

    #[test]
    fn ends_of_links_may_name_their_interface() {
        for text in ["1-ff00:0:110", "1-ff00:0:110#2"] {
            assert_eq!(text.parse::<LinkEnd>().unwrap().to_string(), text);
        }
        assert!("1-ff00:0:110#0".parse::<LinkEnd>().unwrap_err().contains("1-ff00:0:110#1"));
        assert!("110".parse::<LinkEnd>().unwrap_err().contains("ISD-AS"));
    }
}
