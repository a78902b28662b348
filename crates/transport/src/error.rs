//! Why connections do not come about.

use std::io;
use std::time::Duration;

use anabranch_paths::Endpoint;
use anabranch_scion::socket::RouteError;

use crate::{NodeId, Via};

/// Longest time that a connection may take to open: three SYNs of the kernel's schedule, and then some.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a connection did not open.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// TCP runs over IP alone.
    #[error("TCP does not reach {0}: hosts of SCION networks are reached over QUIC")]
    NotIp(Endpoint),
    /// Nobody answered in time.
    #[error("{0} did not answer within {CONNECT_TIMEOUT:?}")]
    TimedOut(Endpoint),
    /// The system or the other side said no.
    #[error("cannot connect to {endpoint}: {source}")]
    Io {
        /// Whom we tried to reach.
        endpoint: Endpoint,
        /// What the system said.
        source: io::Error,
    },
    /// The same, by one of several ways out of this machine.
    #[error("over {via}: {source}")]
    Over {
        /// How we left.
        via: Via,
        /// What happened.
        source: Box<ConnectError>,
    },
    /// Somebody is there and speaks something else.
    #[error(
        "{endpoint} does not speak {protocol}: check the port, and that both sides run the same version of Anabranch"
    )]
    WrongProtocol {
        /// Whom we tried to reach.
        endpoint: Endpoint,
        /// What we speak.
        protocol: String,
    },
    /// Somebody is there, but not who was asked for.
    #[error(
        "{endpoint} has the key {found}, not {expected}: ask its owner for the present key, or leave the key out to accept any"
    )]
    WrongKey {
        /// Whom we tried to reach.
        endpoint: Endpoint,
        /// Whose key was asked for.
        expected: NodeId,
        /// Whose key it proved.
        found: NodeId,
    },
    /// The path leads elsewhere, or is malformed.
    #[error("cannot reach {endpoint}: {source}")]
    Route {
        /// Whom we tried to reach.
        endpoint: Endpoint,
        /// What is wrong with the path.
        source: RouteError,
    },
    /// The path's packets are too small for QUIC.
    #[error(
        "the path to {endpoint} takes packets of {mtu_bytes} bytes, and QUIC needs {needed}: choose another path, or raise the \
         MTU of its narrowest link"
    )]
    PathTooNarrow {
        /// Whom we tried to reach.
        endpoint: Endpoint,
        /// The path's MTU.
        mtu_bytes: u16,
        /// The least that would do.
        needed: u16,
    },
    /// An address of another network than the endpoint's.
    #[error("{endpoint} cannot be reached from {local}: one is an address of SCION, the other of plain IP")]
    WrongNetwork {
        /// Whom we tried to reach.
        endpoint: Endpoint,
        /// Where we are.
        local: Endpoint,
    },
    /// The other side ended it, with its reason.
    #[error("{endpoint} refused: {reason}")]
    Refused {
        /// Whom we tried to reach.
        endpoint: Endpoint,
        /// What it said.
        reason: String,
    },
}

impl ConnectError {
    /// What happened, where the peer's address stands before it.
    pub fn of_peer(&self) -> String {
        let text = self.to_string();
        match self {
            Self::TimedOut(endpoint)
            | Self::WrongProtocol { endpoint, .. }
            | Self::WrongKey { endpoint, .. }
            | Self::Refused { endpoint, .. } => text.replacen(&endpoint.to_string(), "it", 1),
            _ => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_stands_before_is_not_said_again() {
        let endpoint: Endpoint = "[1-1,127.0.0.1]:31501".parse().unwrap();
        assert!(ConnectError::TimedOut(endpoint).of_peer().starts_with("it did not answer within"));
        let refused = ConnectError::Refused { endpoint, reason: format!("I am {endpoint}") };
        assert_eq!(refused.of_peer(), format!("it refused: I am {endpoint}"));
        let io = ConnectError::Io { endpoint, source: std::io::Error::other("x") };
        assert_eq!(io.of_peer(), io.to_string());
    }
}
