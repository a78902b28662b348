//! HTTP around the services: gRPC over HTTP/2, Connect and plain GET over HTTP/1.1, all on one port.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use anabranch_scion_wire::proto::grpc::{CONNECT_CONTENT_TYPE, CONTENT_TYPE, Status};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE as CONTENT_TYPE_HEADER, HOST, HeaderMap, HeaderValue};
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::{Encoding, Role, Services, topology_json};
use crate::control::limits::{CONNECTIONS_MAX, REQUEST_BYTES_MAX, REQUEST_TIMEOUT, STREAMS_PER_CONNECTION_MAX};

/// Pause after the system had no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers on `listener` until `stop` changes or its sender is gone; connections that are open then are closed.
pub async fn serve(services: Arc<Services>, role: Role, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let slot = slots.clone().acquire_owned().await;
            (listener.accept().await, slot)
        };
        tokio::select! {
            _ = stop.changed() => return,
            Some(_) = connections.join_next() => {}
            (accepted, slot) = accepted => match accepted {
                Ok((stream, _)) => {
                    // Answers are one segment or two and must not wait for more.
                    _ = stream.set_nodelay(true);
                    let services = services.clone();
                    connections.spawn(async move {
                        let _slot = slot;
                        // Whoever connects speaks first; idle connections before that must not hold a slot.
                        let greeting = tokio::time::timeout(REQUEST_TIMEOUT, stream.readable()).await;
                        if greeting.is_err() {
                            return;
                        }
                        let answer = service_fn(move |request| respond(services.clone(), role, request));
                        // What goes wrong on a connection is its client's affair.
                        _ = builder().serve_connection(TokioIo::new(stream), answer).await;
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT).max_buf_size(REQUEST_BYTES_MAX);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS_PER_CONNECTION_MAX);
    builder
}

type Reply = Result<Response<Message>, std::convert::Infallible>;

/// Whether a request names the host that it is for by an address, or not at all. A web page whose own name was made to lead here
/// (DNS rebinding) goes by that name; programs that mean this host have its address.
pub(crate) fn is_meant_for_an_address<B>(request: &Request<B>) -> bool {
    let header = request.headers().get(HOST).map(|host| host.to_str().unwrap_or("?"));
    let Some(host) = request.uri().authority().map(Authority::as_str).or(header) else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// What others are told.
pub(crate) const MISDIRECTED: &str =
    "name this host by its address: a web page that had its name changed to lead here is not served";

async fn respond(services: Arc<Services>, role: Role, request: Request<Incoming>) -> Reply {
    if !is_meant_for_an_address(&request) {
        return Ok(plain(StatusCode::MISDIRECTED_REQUEST, "text/plain", &format!("{MISDIRECTED}\n")));
    }
    let path = request.uri().path().to_owned();
    if request.method() == Method::GET {
        return Ok(document(&services, role, &path));
    }
    let content_type = request.headers().get(CONTENT_TYPE_HEADER).map_or(&[][..], HeaderValue::as_bytes);
    let encoding = if content_type.starts_with(CONTENT_TYPE.as_bytes()) {
        Encoding::Grpc
    } else if content_type == CONNECT_CONTENT_TYPE.as_bytes() && role == Role::Control {
        Encoding::Connect
    } else {
        return Ok(plain(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "text/plain",
            "use application/grpc or application/proto\n",
        ));
    };
    let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
    let answer = match tokio::time::timeout(REQUEST_TIMEOUT, body).await {
        Ok(Ok(body)) => services.answer(role, &path, encoding, &body.to_bytes(), SystemTime::now()),
        Ok(Err(_)) => {
            let text = format!("the request is longer than {REQUEST_BYTES_MAX} bytes, or broke off");
            Err(Status::new(Status::INVALID_ARGUMENT, text))
        }
        Err(_) => Err(Status::new(Status::UNAVAILABLE, "the request did not arrive in time")),
    };
    Ok(match encoding {
        Encoding::Grpc => grpc_response(answer),
        Encoding::Connect => connect_response(answer),
    })
}

/// What end hosts without a daemon start from: the paths that scionproto's and JPAN's bootstrappers fetch.
fn document(services: &Services, role: Role, path: &str) -> Response<Message> {
    match (role, path) {
        (Role::Control, "/topology" | "/topology.json") => {
            let text = topology_json(services.plane.topology(), services.home());
            plain(StatusCode::OK, "application/json", &text)
        }
        // There is no control-plane PKI here: the list of trust roots is empty.
        (Role::Control, "/trcs") => plain(StatusCode::OK, "application/json", "[]\n"),
        _ => plain(StatusCode::NOT_FOUND, "text/plain", "GET /topology from the control service; the rest is gRPC\n"),
    }
}

fn response(status: StatusCode, content_type: &'static str, body: Message) -> Response<Message> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(content_type));
    response
}

fn plain(status: StatusCode, content_type: &'static str, text: &str) -> Response<Message> {
    response(status, content_type, Message::new(text.to_owned().into_bytes()))
}

/// gRPC over HTTP/2, "Responses": the status is in the trailers, or in the headers where there is no message.
fn grpc_response(answer: Result<Vec<u8>, Status>) -> Response<Message> {
    let status_headers = |status: &Status| {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", HeaderValue::from(status.code));
        if let Ok(message) = HeaderValue::from_str(&status.message_header()) {
            headers.insert("grpc-message", message);
        }
        headers
    };
    match answer {
        Ok(body) => {
            let trailers = status_headers(&Status::new(Status::OK, ""));
            response(StatusCode::OK, CONTENT_TYPE, Message { trailers: Some(trailers), ..Message::new(body) })
        }
        Err(status) => {
            let mut response = response(StatusCode::OK, CONTENT_TYPE, Message::default());
            response.headers_mut().extend(status_headers(&status));
            response
        }
    }
}

/// Connect, "Unary-Response": errors are JSON, and the HTTP status follows from the code.
fn connect_response(answer: Result<Vec<u8>, Status>) -> Response<Message> {
    match answer {
        Ok(body) => response(StatusCode::OK, CONNECT_CONTENT_TYPE, Message::new(body)),
        Err(status) => {
            let (http, code) = match status.code {
                Status::INVALID_ARGUMENT => (StatusCode::BAD_REQUEST, "invalid_argument"),
                Status::NOT_FOUND => (StatusCode::NOT_FOUND, "not_found"),
                Status::UNIMPLEMENTED => (StatusCode::NOT_IMPLEMENTED, "unimplemented"),
                Status::UNAVAILABLE => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
                _ => (StatusCode::INTERNAL_SERVER_ERROR, "unknown"),
            };
            let text = serde_json::json!({ "code": code, "message": status.message }).to_string();
            plain(http, "application/json", &text)
        }
    }
}

/// A whole body, and trailers behind it.
#[derive(Default)]
struct Message {
    data: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Message {
    fn new(data: Vec<u8>) -> Self {
        Self { data: Some(data.into()).filter(|data: &Bytes| !data.is_empty()), trailers: None }
    }
}

impl Body for Message {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let data = self.data.take().map(Frame::data);
        Poll::Ready(data.or_else(|| self.trailers.take().map(Frame::trailers)).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // With trailers, HTTP/1.1 must not close the body early; gRPC never runs over it anyway.
        match (&self.data, &self.trailers) {
            (data, None) => SizeHint::with_exact(data.as_ref().map_or(0, Bytes::len) as u64),
            _ => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_known_by_their_addresses() {
        let is_meant = |uri: &str, host: Option<&str>| {
            let mut request = Request::get(uri);
            if let Some(host) = host {
                request = request.header(HOST, host);
            }
            is_meant_for_an_address(&request.body(()).unwrap())
        };
        for host in ["127.0.0.1", "127.0.0.1:30255", "[::1]", "[::1]:80", "localhost", "LOCALHOST:8041"] {
            assert!(is_meant("/network", Some(host)), "{host}");
            assert!(is_meant(&format!("http://{host}/network"), None), "{host}");
        }
        assert!(is_meant("/network", None));
        for host in [
            "evil.example",
            "evil.example:8041",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "",
            "[::1",
            "\u{e4}",
        ] {
            assert!(!is_meant("/network", Some(host)), "{host}");
        }
        assert!(!is_meant("http://evil.example/network", Some("127.0.0.1")));
    }
}
