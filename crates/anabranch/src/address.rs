//! ADDR as users write it.

use std::str::FromStr;

use anabranch_paths::{Endpoint, EndpointError, ScionAddr};
use anabranch_scion::lookup::names::Names;
use anabranch_swarm::Leave;
use anabranch_transport::{NodeId, NodeIdError};

use crate::awaited::Teller;
use crate::exit::{Code, Failure};

/// A host's name has at most so many bytes (RFC 1035 §2.3.4).
const HOST_NAME_BYTES_MAX: usize = 253;

/// A peer to dial: an address, or a name that is looked up when the program starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerAddress {
    /// As it is.
    Endpoint(Endpoint),
    /// A host of SCION that has to prove this key.
    Keyed(NodeId, ScionAddr),
    /// Host name and port.
    Name(String, u16),
}

/// Why a text names no peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerAddressError {
    /// No address, and no name.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// What is in front of the `@`.
    #[error(transparent)]
    Key(#[from] NodeIdError),
    /// Where nobody can prove it.
    #[error(
        "`{0}` is an address of plain IP, where peers prove no key: leave the key out, or give the peer's SCION address"
    )]
    KeyOverIp(Endpoint),
}

impl FromStr for PeerAddress {
    type Err = PeerAddressError;

    fn from_str(text: &str) -> Result<Self, PeerAddressError> {
        if let Some((key, address)) = text.split_once('@') {
            let address: Endpoint = address.parse()?;
            let scion = address.as_scion().ok_or(PeerAddressError::KeyOverIp(address))?;
            return Ok(Self::Keyed(key.parse()?, scion));
        }
        match text.parse() {
            Ok(endpoint) => Ok(Self::Endpoint(endpoint)),
            Err(error @ EndpointError::NotAnAddress(_)) => {
                let name = text.rsplit_once(':').filter(|(host, _)| is_host_name(host));
                let name = name.and_then(|(host, port)| Some(Self::Name(host.to_owned(), port.parse().ok()?)));
                name.ok_or(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Letters, digits, dots and hyphens, and not digits and dots alone: that is a mistyped IPv4 address.
fn is_host_name(host: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (1..=HOST_NAME_BYTES_MAX).contains(&host.len())
        && host.chars().all(allowed)
        && host.contains(|c: char| c.is_ascii_alphabetic())
}

impl PeerAddress {
    /// Whether it is a host of SCION and nothing else.
    pub(crate) fn is_scion(&self) -> bool {
        match self {
            Self::Endpoint(endpoint) => endpoint.as_scion().is_some(),
            Self::Keyed(..) => true,
            Self::Name(..) => false,
        }
    }

    /// All addresses it stands for; names are looked up by way of `leave`. With `scion`, names of SCION hosts are known too.
    pub(crate) async fn resolve(&self, scion: bool, leave: &Leave, teller: Teller) -> Result<Vec<Endpoint>, Failure> {
        match self {
            Self::Endpoint(endpoint) => Ok(vec![*endpoint]),
            Self::Keyed(_, address) => Ok(vec![Endpoint::Scion(*address)]),
            Self::Name(host, port) => teller.name(host, look_up(host, *port, scion, leave)).await,
        }
    }
}

async fn look_up(host: &str, port: u16, scion: bool, leave: &Leave) -> Result<Vec<Endpoint>, Failure> {
    let of_scion = match scion {
        // Who is not known there may be known elsewhere.
        true => Names::system().endpoints(&format!("{host}:{port}")).await.unwrap_or_default(),
        false => Vec::new(),
    };
    match leave.look_up(host, port).await {
        Ok(found) => Ok(of_scion.into_iter().chain(found.into_iter().map(Endpoint::from)).collect()),
        Err(_) if !of_scion.is_empty() => Ok(of_scion),
        Err(error) => {
            let message = format!("cannot look up `{host}`: {error}; check the name, or give the peer's address");
            Err(Failure::new(Code::Network, message))
        }
    }
}

/// For flags whose value can only be an address of plain IP.
pub(crate) fn ip_only(text: &str) -> Result<Endpoint, String> {
    let endpoint: Endpoint = text.parse().map_err(|error: EndpointError| error.to_string())?;
    if endpoint.as_ip().is_some() { Ok(endpoint) } else { Err(not_ip(endpoint)) }
}

fn not_ip(endpoint: Endpoint) -> String {
    format!("{endpoint} is a SCION address, and only IP addresses are reached from here: give IPv4:port or [IPv6]:port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_addresses_or_names() {
        assert!(matches!("192.0.2.7:6881".parse(), Ok(PeerAddress::Endpoint(_))));
        assert!(matches!("[2001:db8::7]:6881".parse(), Ok(PeerAddress::Endpoint(_))));
        assert_eq!("seed.example:1".parse::<PeerAddress>().unwrap(), PeerAddress::Name("seed.example".into(), 1));
        let longest = format!("{}:1", "a".repeat(HOST_NAME_BYTES_MAX));
        assert!(longest.parse::<PeerAddress>().is_ok());
        assert!(format!("a{longest}").parse::<PeerAddress>().is_err());
    }

    #[test]
    fn a_peer_of_scion_may_have_its_key_in_front() {
        let key = "a".repeat(51) + "q";
        assert!(matches!(format!("{key}@[1-ff00:0:110,10.0.0.1]:80").parse(), Ok(PeerAddress::Keyed(..))));
        let error = |text: &str| text.parse::<PeerAddress>().unwrap_err().to_string();
        assert!(error(&format!("{key}@192.0.2.1:80")).contains("prove no key"));
        assert!(error("short@[1-ff00:0:110,10.0.0.1]:80").contains("no node key"));
    }

    #[test]
    fn mistakes_are_no_names() {
        for text in ["192.0.2.777:1", "seed.example", "seed.example:99999", ":1", "a b:1", "http://x:1", "2001:db8::7"]
        {
            assert!(text.parse::<PeerAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn scion_addresses_are_told_from_mistakes() {
        assert!(matches!("1-ff00:0:110,10.0.0.1:80".parse(), Ok(PeerAddress::Endpoint(Endpoint::Scion(_)))));
        assert!(ip_only("[1-ff00:0:110,10.0.0.1]:80").is_err_and(|error| error.contains("IPv4:port")));
        assert!(ip_only("192.0.2.7:1").is_ok());
    }
}
