//! What the daemon answers about itself.

use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::header::SET_COOKIE;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::reply::{self, Content};
use super::{Api, COOKIE_NAME, Call, OPENAPI, Problem, Reply, cookies};
use crate::door::{Access, PasswordError};

/// Watchers of events at once.
pub(crate) const WATCHERS_MAX: usize = 32;
/// Something is sent to watchers at least so often, so that either end learns that the other is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Happenings that wait for a watcher's connection; the others wait in the feed.
const WAITING_MAX: usize = 8;

/// Whether it is there.
pub(super) fn health(call: &Call) -> Result<Reply, Problem> {
    match call.is_look() {
        true => Ok(reply::json(StatusCode::OK, &json!({ "status": "ok" }))),
        false => Err(call.wrong_method("GET and HEAD")),
    }
}

/// The description of the API, for everybody.
pub(super) fn openapi(call: &Call) -> Result<Reply, Problem> {
    match call.is_look() {
        true => Ok(reply::typed(StatusCode::OK, "application/json", OPENAPI)),
        false => Err(call.wrong_method("GET and HEAD")),
    }
}

impl Api {
    /// Whether everything that was to be put to work is.
    pub(super) fn ready(&self, call: &Call) -> Result<Reply, Problem> {
        if !call.is_look() {
            return Err(call.wrong_method("GET and HEAD"));
        }
        match self.engine.is_ready() {
            true => Ok(reply::json(StatusCode::OK, &json!({ "status": "ready" }))),
            false => {
                let detail = "contents are still being opened: ask again in a moment";
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "starting", detail))
            }
        }
    }

    /// Gives a cookie for a token.
    pub(super) async fn login(&self, mut call: Call) -> Result<Reply, Problem> {
        if call.method != Method::POST {
            return Err(call.wrong_method("POST alone"));
        }
        let object = call.object(false).await?;
        let text =
            |name: &'static str| object.get(name).and_then(Value::as_str).ok_or_else(|| Problem::field(name, "a text"));
        let access = match object.contains_key("password") {
            true => self.access_of(text("user")?, text("password")?).await?,
            false => self.access_of("", text("token")?).await?,
        };
        let cookie = self.keys.cookie(access, Instant::now());
        let cookie =
            cookie.map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))?;
        let reply = reply::json(StatusCode::OK, &json!({ "access": name(access) }));
        let field = format!("{COOKIE_NAME}={cookie}; {}; Max-Age=2592000", self.cookie_rules());
        Ok(reply::with(reply, SET_COOKIE, &field))
    }

    /// Takes the cookie back.
    pub(super) fn logout(&self, call: &Call) -> Result<Reply, Problem> {
        if call.method != Method::POST {
            return Err(call.wrong_method("POST alone"));
        }
        cookies(&call.headers).for_each(|cookie| self.keys.forget(cookie));
        let field = format!("{COOKIE_NAME}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0");
        Ok(reply::with(reply::done(), SET_COOKIE, &field))
    }

    /// The name and the password by which people and programs come in that have no token.
    pub(super) async fn password(&self, mut call: Call) -> Result<Reply, Problem> {
        match call.method {
            Method::GET | Method::HEAD => call.need(Access::Read)?,
            Method::PUT | Method::DELETE => call.need(Access::Full)?,
            _ => return Err(call.wrong_method("GET, HEAD, PUT and DELETE")),
        }
        match call.method {
            Method::PUT => {
                let object = call.object(false).await?;
                let text = |name: &'static str| {
                    object.get(name).and_then(Value::as_str).ok_or_else(|| Problem::field(name, "a text"))
                };
                let kept = self.passwords.set(text("user")?, text("password")?).await;
                kept.map_err(|error| match error {
                    PasswordError::Io(_) => {
                        Problem::new(StatusCode::INSUFFICIENT_STORAGE, "not-kept", error.to_string())
                    }
                    PasswordError::Hash(_) => {
                        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
                    }
                    error => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", error.to_string()),
                })?;
            }
            Method::DELETE => self.passwords.remove().map_err(|error| {
                Problem::new(
                    StatusCode::INSUFFICIENT_STORAGE,
                    "not-kept",
                    format!("cannot take the password away: {error}"),
                )
            })?,
            _ => {}
        }
        Ok(reply::json(StatusCode::OK, &json!({ "user": self.passwords.user() })))
    }

    /// The daemon at a glance.
    pub(super) fn session(&self, call: &Call) -> Result<Reply, Problem> {
        call.look()?;
        let sums = self.engine.sums();
        let session = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "access": call.access.map(name),
            "ready": self.engine.is_ready(),
            "uptime_seconds": self.engine.started().elapsed().as_secs(),
            "listening": self.about.listening,
            "down_rate": sums.down_rate,
            "up_rate": sums.up_rate,
            "downloaded": sums.downloaded,
            "uploaded": sums.uploaded,
            "peers": sums.peers,
            "contents": self.engine.counts(),
        });
        Ok(reply::json(StatusCode::OK, &session))
    }

    /// What may be set.
    pub(super) async fn settings(&self, mut call: Call) -> Result<Reply, Problem> {
        if call.is_look() {
            call.need(Access::Read)?;
            return Ok(reply::json(StatusCode::OK, &self.engine.settings().to_json()));
        }
        if call.method != Method::PATCH {
            return Err(call.wrong_method("GET, HEAD and PATCH"));
        }
        call.need(Access::Full)?;
        let changes = call.object(false).await?;
        let new = self.engine.set(&changes).await?;
        Ok(reply::json(StatusCode::OK, &new))
    }

    /// What happens, as it happens (the HTML standard, "server-sent events").
    pub(super) fn events(self: &Rc<Self>, call: &Call) -> Result<Reply, Problem> {
        call.look()?;
        if self.watchers.get() >= WATCHERS_MAX {
            let detail = format!("{WATCHERS_MAX} watch already: end some of them");
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail));
        }
        let last = call.headers.get("last-event-id").map(|last| last.to_str().unwrap_or_default().to_owned());
        let last = last.or_else(|| call.query.get("last_event_id").map(str::to_owned));
        let mut watcher = self.engine.feed().watch(last.as_deref());
        let (events, received) = mpsc::channel(WAITING_MAX);
        self.watchers.set(self.watchers.get() + 1);
        let api = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let _watches = super::Counted(&api.watchers);
            let mut text = Bytes::from_static(b"retry: 1000\n\n");
            while events.send(text).await.is_ok() {
                text = tokio::select! {
                    biased;
                    () = events.closed() => return,
                    text = tokio::time::timeout(KEEP_ALIVE, watcher.next()) => {
                        text.unwrap_or(Bytes::from_static(b": still here\n\n"))
                    }
                };
            }
        });
        let mut reply = reply::typed(StatusCode::OK, "text/event-stream", Bytes::new());
        *reply.body_mut() = Content::Events(received);
        Ok(reply)
    }
}

fn name(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Full => "full",
    }
}
