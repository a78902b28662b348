//! Calling and being called, alike for all endpoints: who answers proves a key, and who calls is taken in as [`Callers`] allow.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use anabranch_paths::{Endpoint, Host};
use noq::{ClientConfig, Connection, ConnectionError, Incoming};

use super::endpoint::CloseCode;
use super::tls;
use crate::Callers;
use crate::error::CONNECT_TIMEOUT;
use crate::{ConnectError, NodeId};

/// TLS's alert for a protocol that the other side does not speak, as a QUIC error (RFC 7301 §3.2, RFC 9001 §4.8).
pub(super) const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;

/// Calls `endpoint`, which is at `address`, and hears its key; with `pin`, only if it is that one. `protocol`: what both have to speak.
pub(super) async fn call(
    from: &noq::Endpoint,
    client: ClientConfig,
    (endpoint, address): (Endpoint, SocketAddr),
    pin: Option<NodeId>,
    protocol: &[u8],
) -> Result<(Connection, NodeId), ConnectError> {
    let failed = |source| ConnectError::Io { endpoint, source };
    let connecting = from
        .connect_with(client, address, tls::SERVER_NAME)
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    let connection = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(explain(endpoint, protocol, error)),
        Err(_) => return Err(ConnectError::TimedOut(endpoint)),
    };
    let Some(found) = tls::node_id(&connection) else {
        return Err(failed(io::Error::other("it showed no key")));
    };
    if let Some(expected) = pin.filter(|expected| *expected != found) {
        CloseCode::KeyNotExpected.close(&connection, "this node has another key than the caller expects");
        return Err(ConnectError::WrongKey { endpoint, expected, found });
    }
    Ok((connection, found))
}

/// Why there is no connection to `endpoint`, where `protocol` was asked for.
pub(super) fn explain(endpoint: Endpoint, protocol: &[u8], error: ConnectionError) -> ConnectError {
    match error {
        ConnectionError::TimedOut => ConnectError::TimedOut(endpoint),
        ConnectionError::ConnectionClosed(close) if u64::from(close.error_code) == NO_APPLICATION_PROTOCOL => {
            ConnectError::WrongProtocol { endpoint, protocol: String::from_utf8_lossy(protocol).into_owned() }
        }
        ConnectionError::ApplicationClosed(close) => {
            ConnectError::Refused { endpoint, reason: String::from_utf8_lossy(&close.reason).into_owned() }
        }
        error => ConnectError::Io { endpoint, source: error.into() },
    }
}

/// Takes callers in until the endpoint closes. `who`: who says that it calls, if anybody may; `serve` takes it through its handshake.
pub(super) async fn answer<F: Future<Output = ()> + Send + 'static>(
    endpoint: noq::Endpoint,
    who: impl Fn(&Incoming) -> Option<Endpoint>,
    serve: impl Fn(Incoming, Endpoint) -> F,
) {
    let callers = Callers::default();
    while let Some(incoming) = endpoint.accept().await {
        let Some(from) = who(&incoming) else {
            incoming.ignore();
            continue;
        };
        let host = Host::of(&from);
        if callers.must_prove(host) && !incoming.remote_address_validated() {
            // Its second attempt comes back here.
            let _ = incoming.retry();
            continue;
        }
        let serving = serve(incoming, from);
        tokio::spawn(callers.enter(host).hear(serving));
    }
}
