//! Answers, and what they are made of.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use anabranch_swarm::http::Answer;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;

use super::problem::Problem;

/// An answer.
pub(crate) type Reply = Response<Content>;

/// The bytes of an answer.
pub(crate) enum Content {
    /// What is at hand.
    Whole(Bytes),
    /// A file, as it arrives.
    File(Answer),
    /// Events, until either end goes.
    Events(mpsc::Receiver<Bytes>),
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::File(answer) => Pin::new(answer).poll_frame(cx),
            Self::Events(events) => events.poll_recv(cx).map(|text| text.map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::File(answer) => answer.is_end_stream(),
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::File(answer) => answer.size_hint(),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// An answer of some type.
pub(crate) fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Content::Whole(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, value: &Value) -> Reply {
    typed(status, "application/json", value.to_string())
}

/// Done, and nothing to say.
pub(crate) fn done() -> Reply {
    let mut reply = Response::new(Content::Whole(Bytes::new()));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    reply
}

/// A problem.
pub(crate) fn problem(problem: &Problem) -> Reply {
    let mut reply = typed(problem.status, "application/problem+json", problem.body());
    if problem.status == StatusCode::UNAUTHORIZED {
        reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    reply
}

/// With one more field in its head.
pub(crate) fn with(mut reply: Reply, name: HeaderName, value: &str) -> Reply {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().append(name, value);
    }
    reply
}
