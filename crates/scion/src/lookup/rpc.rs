//! Unary calls over HTTP: gRPC over one HTTP/2 connection that is opened again when the server comes back, and Connect over
//! HTTP/1.1 for control services that answer nothing else.

use std::time::Duration;

use anabranch_scion_wire::proto::grpc::{self, Status};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{LookupError, Server};

/// A server that is there takes a connection at once; one that is not must not hold up everything else.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For a whole call. A daemon that knows nothing yet asks control services of three ASes, each over the network.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a body: one message and its frame.
const BODY_BYTES_MAX: usize = grpc::MESSAGE_BYTES_MAX + 5;
/// Bytes of a server's own words that an error repeats.
const REASON_LEN_MAX: usize = 200;

type Body = Full<Bytes>;

/// One server, and the connection to it while there is one.
pub(super) struct Channel {
    server: Server,
    address: String,
    connection: Mutex<Option<http2::SendRequest<Body>>>,
}

/// Why one attempt failed: whether another on a new connection makes sense.
enum AttemptError {
    Lost(LookupError),
    Final(LookupError),
}

/// A call that has no answer yet. Where it goes without one, whether it was late or nobody waits for it any more, it may be one answer that
/// does not come, or a connection that is dead and does not say so: the next call opens another. Calls that still wait over this
/// one keep it.
struct Unanswered<'a>(&'a Channel);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Ok(mut connection) = self.0.connection.try_lock() {
            connection.take();
        }
    }
}

impl Channel {
    /// Nothing is opened before the first call. `address` is host and port.
    pub(super) fn new(server: Server, address: impl Into<String>) -> Self {
        Self { server, address: address.into(), connection: Mutex::new(None) }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A gRPC call.
    pub(super) async fn call<M: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
    ) -> Result<M, LookupError> {
        let body = grpc::frame(request);
        let calls = async {
            // A connection from before may be one to a server that has restarted since.
            let (sender, is_new) = self.connection().await?;
            match self.attempt(sender, method, body.clone()).await {
                Err(AttemptError::Lost(_)) if !is_new => {
                    self.connection.lock().await.take();
                    let (sender, _) = self.connection().await?;
                    self.attempt(sender, method, body).await
                }
                outcome => outcome,
            }
            .map_err(|(AttemptError::Lost(error) | AttemptError::Final(error))| error)
        };
        let unanswered = Unanswered(self);
        match timeout(CALL_TIMEOUT, calls).await {
            Ok(answer) => {
                std::mem::forget(unanswered);
                answer
            }
            Err(_) => Err(self.late()),
        }
    }

    /// A Connect call on a connection of its own.
    pub(super) async fn connect_call<M: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
    ) -> Result<M, LookupError> {
        let call = async {
            let stream = self.open().await?;
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.unreachable(error))?;
            let driver = tokio::spawn(connection);
            let request = Request::post(method)
                .header(HOST, self.address.as_str())
                .header(CONTENT_TYPE, grpc::CONNECT_CONTENT_TYPE)
                .header("connect-protocol-version", "1")
                .body(Body::from(request.encode_to_vec()))
                .map_err(|error| self.garbled(error))?;
            let response = sender.send_request(request).await.map_err(|error| self.unreachable(error))?;
            let status = response.status();
            let body = self.body(response).await?.0;
            driver.abort();
            if status != StatusCode::OK {
                let reason = String::from_utf8_lossy(&body[..body.len().min(REASON_LEN_MAX)]).into_owned();
                let status = Status::new(connect_code(status), format_args!("HTTP {status}: {reason}"));
                return Err(LookupError::Refused { server: self.server, address: self.address.clone(), status });
            }
            M::decode(body).map_err(|error| self.garbled(error))
        };
        timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| Err(self.late()))
    }

    async fn open(&self) -> Result<TcpStream, LookupError> {
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.address)).await;
        let stream = connected.map_err(|_| self.unreachable("no answer"))?.map_err(|error| self.unreachable(error))?;
        stream.set_nodelay(true).map_err(|error| self.unreachable(error))?;
        Ok(stream)
    }

    /// The connection, and whether it was opened for this call.
    async fn connection(&self) -> Result<(http2::SendRequest<Body>, bool), LookupError> {
        let mut connection = self.connection.lock().await;
        if let Some(sender) = connection.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok((sender.clone(), false));
        }
        let io = TokioIo::new(self.open().await?);
        let handshake = http2::handshake(TokioExecutor::new(), io).await;
        let (sender, driver) = handshake.map_err(|error| self.unreachable(error))?;
        // It ends with the connection, and the connection with its last sender.
        tokio::spawn(driver);
        *connection = Some(sender.clone());
        Ok((sender, true))
    }

    async fn attempt<M: Message + Default>(
        &self,
        mut sender: http2::SendRequest<Body>,
        method: &str,
        body: Vec<u8>,
    ) -> Result<M, AttemptError> {
        let lost = |error: hyper::Error| AttemptError::Lost(self.unreachable(root_cause(&error)));
        sender.ready().await.map_err(lost)?;
        let request = Request::post(format!("http://{}{method}", self.address))
            .header(CONTENT_TYPE, grpc::CONTENT_TYPE)
            .header("te", "trailers")
            .header("grpc-timeout", format!("{}m", CALL_TIMEOUT.as_millis()))
            .body(Full::new(body.into()))
            .map_err(|error| AttemptError::Final(self.garbled(error)))?;
        let response = sender.send_request(request).await.map_err(lost)?;
        self.grpc_answer(response).await.map_err(AttemptError::Final)
    }

    async fn grpc_answer<M: Message + Default>(&self, response: Response<Incoming>) -> Result<M, LookupError> {
        let (status, headers) = (response.status(), response.headers().clone());
        if status != StatusCode::OK {
            return Err(self.garbled(format_args!("HTTP {status}")));
        }
        let (body, trailers) = self.body(response).await?;
        // Without a message, everything stands in the headers. // gRPC over HTTP/2, "Trailers-Only"
        let ended = [trailers.as_ref(), Some(&headers)].into_iter().flatten().find_map(grpc_status);
        let status = ended.ok_or_else(|| self.garbled("an answer without grpc-status"))?;
        if status.code != Status::OK {
            return Err(LookupError::Refused { server: self.server, address: self.address.clone(), status });
        }
        grpc::unframe(&body).map_err(|error| self.garbled(error))
    }

    async fn body(&self, response: Response<Incoming>) -> Result<(Bytes, Option<HeaderMap>), LookupError> {
        let collected = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
        let collected = collected.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => self.garbled(format_args!("an answer of more than {BODY_BYTES_MAX} bytes")),
            None => self.unreachable(error),
        })?;
        let trailers = collected.trailers().cloned();
        Ok((collected.to_bytes(), trailers))
    }

    fn late(&self) -> LookupError {
        let address = self.address.clone();
        LookupError::Deadline { server: self.server, address, seconds: CALL_TIMEOUT.as_secs() }
    }

    fn unreachable(&self, reason: impl std::fmt::Display) -> LookupError {
        LookupError::Unreachable { server: self.server, address: self.address.clone(), reason: reason.to_string() }
    }

    fn garbled(&self, reason: impl std::fmt::Display) -> LookupError {
        LookupError::Garbled { server: self.server, address: self.address.clone(), reason: reason.to_string() }
    }
}

fn grpc_status(headers: &HeaderMap) -> Option<Status> {
    let message = headers.get("grpc-message").map(HeaderValue::as_bytes);
    headers.get("grpc-status").map(|status| Status::from_headers(status.as_bytes(), message))
}

/// What HTTP statuses stand for in Connect's unary calls. // Connect protocol, "Error Codes"
fn connect_code(status: StatusCode) -> u32 {
    match status.as_u16() {
        400 => Status::INVALID_ARGUMENT,
        404 | 415 | 501 => Status::UNIMPLEMENTED,
        429 | 502..=504 => Status::UNAVAILABLE,
        _ => Status::INTERNAL,
    }
}

/// hyper's own words say what it did; what happened stands at the end of the chain.
fn root_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a dyn std::error::Error {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause
}
