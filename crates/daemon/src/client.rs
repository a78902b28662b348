//! The other end of the API: what the command line asks a daemon with.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};

/// Longest answer that is taken whole: ten times a list of as many contents as come in one.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Longest event of a stream.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// Where a daemon is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// At a socket of this machine.
    Socket(PathBuf),
    /// At an address: host and port.
    Address(String),
}

/// Why a text names no daemon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("give the path of the daemon's socket, or its address such as 127.0.0.1:6880")]
pub struct NoDaemon;

impl FromStr for At {
    type Err = NoDaemon;

    fn from_str(text: &str) -> Result<Self, NoDaemon> {
        let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        if text.starts_with('/') || text.starts_with("./") {
            return Ok(Self::Socket(text.into()));
        }
        let is_plain = |host: &str| {
            !host.is_empty() && !host.contains(['/', ' ', '@', '?', '#']) && !host.chars().any(char::is_control)
        };
        match bare.rsplit_once(':') {
            Some((host, port)) if is_plain(host) && port.parse::<u16>().is_ok_and(|port| port > 0) => {
                Ok(Self::Address(bare.to_owned()))
            }
            _ => Err(NoDaemon),
        }
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Address(address) => f.write_str(address),
        }
    }
}

/// Why a daemon did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It is not there.
    #[error("no daemon answers at {at}: {source}; start one with `anabranch daemon`, or say where it is with --daemon")]
    Unreachable {
        /// Where.
        at: At,
        /// Why.
        source: io::Error,
    },
    /// The conversation broke off.
    #[error("the daemon at {0} does not go on: {1}")]
    Broken(At, String),
    /// It refused.
    #[error("{detail}")]
    Refused {
        /// The status of its answer.
        status: u16,
        /// What it says.
        detail: String,
    },
}

/// A daemon that can be asked.
#[derive(Clone, Debug)]
pub struct Client {
    at: At,
    token: Option<String>,
}

/// What a request carries.
pub enum Body<'a> {
    /// Nothing.
    None,
    /// JSON.
    Json(&'a Value),
    /// A torrent file.
    Torrent(Vec<u8>),
}

impl Client {
    /// The daemon there. By an address, it is shown the token.
    pub fn new(at: At, token: Option<String>) -> Self {
        Self { at, token }
    }

    /// Asks, and waits for the whole answer, in JSON.
    pub async fn ask(&self, method: &str, target: &str, body: Body<'_>) -> Result<Value, ClientError> {
        let (_connection, answer) = self.send(method, target, body).await?;
        let bytes = self.whole(answer).await?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Broken(self.at.clone(), error.to_string()))
    }

    /// Watches events.
    pub async fn watch(&self) -> Result<Watch, ClientError> {
        let (connection, answer) = self.send("GET", "/api/v1/events", Body::None).await?;
        Ok(Watch { at: self.at.clone(), _connection: connection, answer: answer.into_body(), read: Vec::new() })
    }

    async fn send(
        &self,
        method: &str,
        target: &str,
        body: Body<'_>,
    ) -> Result<(Connection, Response<Incoming>), ClientError> {
        let broken = |error: &dyn std::fmt::Display| ClientError::Broken(self.at.clone(), error.to_string());
        let mut connection = self.connect().await?;
        let host = match &self.at {
            At::Socket(_) => "localhost",
            At::Address(address) => address,
        };
        let mut request = Request::builder().method(method).uri(target).header(HOST, host);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let bytes = match body {
            Body::None => Bytes::new(),
            Body::Json(value) => {
                request = request.header(CONTENT_TYPE, "application/json");
                value.to_string().into()
            }
            Body::Torrent(bytes) => {
                request = request.header(CONTENT_TYPE, "application/x-bittorrent");
                bytes.into()
            }
        };
        let request = request.body(Full::new(bytes)).map_err(|error| broken(&error))?;
        let answer = connection.0.send_request(request).await.map_err(|error| broken(&error))?;
        if answer.status().is_success() {
            return Ok((connection, answer));
        }
        let status = answer.status().as_u16();
        let said: Option<Value> = serde_json::from_slice(&self.whole(answer).await?).ok();
        let detail = said.and_then(|said| said["detail"].as_str().map(str::to_owned));
        Err(ClientError::Refused { status, detail: detail.unwrap_or_else(|| format!("the daemon answers {status}")) })
    }

    async fn whole(&self, answer: Response<Incoming>) -> Result<Bytes, ClientError> {
        let collected = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        collected
            .map(http_body_util::Collected::to_bytes)
            .map_err(|error| ClientError::Broken(self.at.clone(), error.to_string()))
    }

    async fn connect(&self) -> Result<Connection, ClientError> {
        let unreachable = |source| ClientError::Unreachable { at: self.at.clone(), source };
        match &self.at {
            At::Socket(path) => self.shake(UnixStream::connect(path).await.map_err(unreachable)?).await,
            At::Address(address) => self.shake(TcpStream::connect(address.as_str()).await.map_err(unreachable)?).await,
        }
    }

    async fn shake<S>(&self, stream: S) -> Result<Connection, ClientError>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let shaken = handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| ClientError::Broken(self.at.clone(), error.to_string()))?;
        // What goes wrong on it is told by the answer that does not come.
        tokio::spawn(connection);
        Ok(Connection(sender))
    }
}

/// A connection. It ends with this.
struct Connection(SendRequest<Full<Bytes>>);

/// Events, as they happen.
pub struct Watch {
    at: At,
    _connection: Connection,
    answer: Incoming,
    read: Vec<u8>,
}

impl Watch {
    /// The next event: its name and what it says; `None` when the daemon ends.
    pub async fn next(&mut self) -> Result<Option<(String, Value)>, ClientError> {
        loop {
            if let Some(end) = self.read.windows(2).position(|pair| pair == b"\n\n") {
                let text: Vec<u8> = self.read.drain(..end + 2).collect();
                match event(&String::from_utf8_lossy(&text)) {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            if self.read.len() > EVENT_BYTES_MAX {
                return Err(ClientError::Broken(self.at.clone(), "an event has no end".to_owned()));
            }
            match self.answer.frame().await {
                Some(Ok(frame)) => frame.data_ref().into_iter().for_each(|bytes| self.read.extend_from_slice(bytes)),
                Some(Err(error)) => return Err(ClientError::Broken(self.at.clone(), error.to_string())),
                None => return Ok(None),
            }
        }
    }
}

/// Reads one event; `None` where it says nothing.
fn event(text: &str) -> Option<(String, Value)> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Some((field("event")?.to_owned(), serde_json::from_str(field("data")?).ok()?))
}

/// Where a daemon's socket is, where nobody says: in the folder that is this user's while the user is logged in, else in the daemon's
/// own.
pub fn default_socket(runtime_dir: Option<&Path>, state_dir: &Path) -> PathBuf {
    match runtime_dir {
        Some(dir) => dir.join("anabranch/daemon.sock"),
        None => state_dir.join("daemon.sock"),
    }
}

/// The file of the token in a daemon's folder.
pub fn token_file(state_dir: &Path) -> PathBuf {
    state_dir.join(crate::door::TOKEN_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_are_named_by_socket_or_address() {
        assert_eq!("/run/a.sock".parse(), Ok(At::Socket("/run/a.sock".into())));
        assert_eq!("http://127.0.0.1:6880/".parse(), Ok(At::Address("127.0.0.1:6880".into())));
        assert_eq!("[::1]:6880".parse(), Ok(At::Address("[::1]:6880".into())));
        for bad in ["", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", ":80", "https://a:1/x", "a b:1", "a\n:1", "user@a:1"]
        {
            assert_eq!(bad.parse::<At>(), Err(NoDaemon), "{bad}");
        }
    }

    #[test]
    fn events_are_read_and_remarks_passed_over() {
        assert_eq!(
            event("id: r-1\nevent: note\ndata: {\"id\":1}\n\n"),
            Some(("note".into(), serde_json::json!({ "id": 1 })))
        );
        assert_eq!(event(": still here\n\n"), None);
        assert_eq!(event("event: note\ndata: {\n\n"), None);
    }
}
