//! Talks to the control API of a running network: what `net link` and tests use. Blocking, one connection a call.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Time for an answer: the API does nothing that takes long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer: a thousand ASes and ten thousand links with counters.
const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// Why the API gave no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody there.
    #[error("no network answers at {0} ({1}): start one with `anabranch net up TOPOLOGY --control {0}`")]
    Unreachable(SocketAddr, std::io::Error),
    /// The order makes no sense; the network says why.
    #[error("{0}")]
    Refused(String),
    /// Something else listens there.
    #[error("what answers at {0} is no control API: name the address that `anabranch net up` printed")]
    NotOurs(SocketAddr),
}

/// Everything about the network.
pub fn network(api: SocketAddr) -> Result<Value, ClientError> {
    call(api, "GET /network", None)
}

/// Changes a link: `order` as the API takes it, `{"a": ..., "b": ..., "up": false}`. Returns the link.
pub fn change_link(api: SocketAddr, order: &Value) -> Result<Value, ClientError> {
    call(api, "POST /link", Some(order))
}

fn call(api: SocketAddr, what: &str, order: Option<&Value>) -> Result<Value, ClientError> {
    let answer = exchange(api, what, order).map_err(|error| ClientError::Unreachable(api, error))?;
    let answer = String::from_utf8(answer).map_err(|_| ClientError::NotOurs(api))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(ClientError::NotOurs(api))?;
    let value: Value = serde_json::from_str(body).map_err(|_| ClientError::NotOurs(api))?;
    match value.get("error").and_then(Value::as_str) {
        Some(error) => Err(ClientError::Refused(error.to_owned())),
        None if head.starts_with("HTTP/1.1 200 ") => Ok(value),
        None => Err(ClientError::NotOurs(api)),
    }
}

fn exchange(api: SocketAddr, what: &str, order: Option<&Value>) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&api, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let body = order.map(Value::to_string).unwrap_or_default();
    let length = body.len();
    let request = format!(
        "{what} HTTP/1.1\r\nhost: {api}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}
