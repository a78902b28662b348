//! A small daemon and control service: answers what a closure says, over HTTP/2 or HTTP/1.1, and can be ended and started
//! again at the same address.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anabranch_scion_wire::proto::grpc::{CONTENT_TYPE, Status};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

/// From the method and the message to the message that answers (neither with a frame).
pub(crate) type Answer = dyn Fn(&str, &[u8]) -> Result<Vec<u8>, Status> + Send + Sync;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// gRPC over HTTP/2.
    Grpc,
    /// Connect over HTTP/1.1, and nothing else.
    Connect,
}

/// In place of an answer: there is none, ever.
pub(crate) fn never() -> Status {
    Status::new(u32::MAX, "")
}

pub(crate) struct Server {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// `at`: port 0 for any.
    pub(crate) async fn start(
        at: SocketAddr,
        speaks: Speaks,
        answer: impl Fn(&str, &[u8]) -> Result<Vec<u8>, Status> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer: Arc<Answer> = Arc::new(answer);
        let task = tokio::spawn(async move {
            // Its connections end with it.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.clone();
                connections.spawn(async move {
                    let io = TokioIo::new(stream);
                    let service = service_fn(move |request| respond(answer.clone(), speaks, request));
                    match speaks {
                        Speaks::Grpc => {
                            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                            let _ = server.serve_connection(io, service).await;
                        }
                        Speaks::Connect => {
                            let server = hyper::server::conn::http1::Builder::new();
                            let _ = server.serve_connection(io, service).await;
                        }
                    }
                });
            }
        });
        Self { address, task }
    }

    /// Ends it and all its connections.
    pub(crate) async fn stop(mut self) -> SocketAddr {
        self.task.abort();
        let _ = (&mut self.task).await;
        self.address
    }
}

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn respond(
    answer: Arc<Answer>,
    speaks: Speaks,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let method = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let message = if speaks == Speaks::Grpc { body.get(5..).unwrap_or_default() } else { &body[..] };
    let answered = answer(&method, message);
    if answered.as_ref().is_err_and(|status| status.code == u32::MAX) {
        return std::future::pending().await;
    }
    Ok(match speaks {
        Speaks::Connect => {
            let (status, body) = match answered {
                Ok(message) => (StatusCode::OK, message),
                Err(status) => (StatusCode::SERVICE_UNAVAILABLE, status.message.into_bytes()),
            };
            Response::builder().status(status).body(Full::from(body).boxed()).unwrap()
        }
        Speaks::Grpc => {
            let (frame, status) = match answered {
                Ok(message) => {
                    let prefix = [&[0], &(message.len() as u32).to_be_bytes()[..]].concat();
                    ([prefix, message].concat(), Status::new(Status::OK, ""))
                }
                Err(status) => (Vec::new(), status),
            };
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.code.to_string().parse().unwrap());
            trailers.insert("grpc-message", status.message_header().parse().unwrap());
            let body = Full::from(frame).with_trailers(std::future::ready(Some(Ok(trailers))));
            Response::builder().header("content-type", CONTENT_TYPE).body(body.boxed()).unwrap()
        }
    })
}
