//! The API: requests in, answers out. Described by `openapi.json`, which tests hold the answers against.
//!
//! | module | what it answers |
//! | --- | --- |
//! | `contents` | what is in the library, and what is asked of it |
//! | `bulk`, `broadcast` | bulk transfers, and live streams whose source is here, as requests describe them |
//! | `session` | the daemon itself: settings, log-in, events, health |
//! | `metrics` | numbers for Prometheus |
//! | `page` | the page and its parts |
//! | `body`, `query`, `value`, `problem`, `reply` | what requests and answers are made of |

mod body;
mod broadcast;
mod bulk;
mod contents;
mod metrics;
mod page;
mod problem;
mod query;
pub(crate) mod reply;
mod session;
mod value;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use tokio::sync::Notify;

pub(crate) use body::{TORRENT_BYTES_MAX, object};
pub(crate) use contents::new_content_of;
pub(crate) use problem::Problem;
pub use query::{Query, decode};
pub(crate) use reply::Reply;

use crate::door::{Access, Foreign, Keys, Passwords, Transport, check};
use crate::engine::Engine;
use crate::{Discovery, qbittorrent};

/// The description of the API.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");
/// The cookie of the page.
pub(crate) const COOKIE_NAME: &str = "anabranch";
/// All cookies that stand for a token or a password.
const COOKIE_NAMES: [&str; 2] = [COOKIE_NAME, qbittorrent::COOKIE_NAME];
/// The first failed log-in is answered after so long, each further one within a minute after twice that ...
const SLOW_MIN: Duration = Duration::from_millis(100);
/// ... and none later than this.
const SLOW_MAX: Duration = Duration::from_secs(5);
/// Failed log-ins count for so long.
const FAILURES_FOR: Duration = Duration::from_secs(60);
/// Failed log-ins that wait for their answer; further ones are sent away at once.
const SLOWED_MAX: usize = 16;

/// What every answer says to browsers: run nothing but what comes from here, show this in no frame, guess no types, tell nobody.
const POLICY: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// What the daemon says of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    /// Where peers reach it.
    pub(crate) listening: Vec<String>,
    /// Names by which requests may call it, beside addresses.
    pub(crate) names: RefCell<Vec<String>>,
    /// How peers are found.
    pub(crate) discovery: Discovery,
    /// Whether what goes over the address is encrypted.
    pub(crate) is_secure: bool,
    /// Told when somebody asks for the daemon's end.
    pub(crate) end: Arc<Notify>,
}

/// Answers requests.
pub(crate) struct Api {
    pub(crate) engine: Rc<Engine>,
    pub(crate) keys: Keys,
    pub(crate) passwords: Passwords,
    pub(crate) about: About,
    /// What is remembered for clients of qBittorrent.
    pub(crate) qbittorrent: qbittorrent::Memory,
    watchers: Cell<usize>,
    failures: Cell<(u32, Option<Instant>)>,
    slowed: Cell<usize>,
    requests: Cell<u64>,
}

/// A request that may be answered.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: Vec<String>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Incoming,
    pub(crate) access: Option<Access>,
}

impl Api {
    /// For a library at work.
    pub(crate) fn new(engine: Rc<Engine>, keys: Keys, passwords: Passwords, about: About) -> Self {
        let failures = Cell::new((0, None));
        let (watchers, slowed, requests) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let qbittorrent = qbittorrent::Memory::default();
        Self { engine, keys, passwords, about, qbittorrent, watchers, failures, slowed, requests }
    }

    /// What every cookie has behind its value: no script reads it, no other site has it sent, and once there is TLS, nothing sends it in
    /// the clear.
    pub(crate) fn cookie_rules(&self) -> &'static str {
        if self.about.is_secure {
            "HttpOnly; SameSite=Strict; Path=/; Secure"
        } else {
            "HttpOnly; SameSite=Strict; Path=/"
        }
    }

    /// From now on requests may call this host so.
    pub(crate) fn rename(&self, names: Vec<String>) {
        *self.about.names.borrow_mut() = names;
    }

    /// Answers a request.
    pub(crate) async fn respond(self: &Rc<Self>, way: Transport, request: Request<Incoming>) -> Reply {
        self.requests.set(self.requests.get() + 1);
        let mut reply = match self.answer(way, request).await {
            Ok(reply) => reply,
            Err(problem) => reply::problem(&problem),
        };
        let headers = reply.headers_mut();
        for (name, value) in POLICY {
            // What strangers named has a stricter one.
            headers.entry(HeaderName::from_static(name)).or_insert(HeaderValue::from_static(value));
        }
        if !headers.contains_key("cache-control") {
            headers.insert("cache-control", HeaderValue::from_static("no-store"));
        }
        // Of an answer to HEAD, hyper sends no body.
        reply
    }

    async fn answer(self: &Rc<Self>, way: Transport, request: Request<Incoming>) -> Result<Reply, Problem> {
        if way == Transport::Address {
            check(request.method(), request.uri(), request.headers(), &self.about.names.borrow()).map_err(foreign)?;
        }
        let (head, body) = request.into_parts();
        let bad = || Problem::bad("the address is malformed");
        let path: Vec<String> =
            head.uri.path().split('/').skip(1).map(decode_segment).collect::<Option<_>>().ok_or_else(bad)?;
        let query = Query::parse(head.uri.query().unwrap_or_default()).ok_or_else(bad)?;
        let access = match way {
            Transport::Socket => Some(Access::Full),
            Transport::Address => self.access(&head.headers).await?,
        };
        let call = Call { method: head.method, path, query, headers: head.headers, body, access };
        let segments: Vec<String> = call.path.clone();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match segments.as_slice() {
            ["healthz"] => session::health(&call),
            ["readyz"] => self.ready(&call),
            ["metrics"] => self.metrics(&call),
            ["api", "v1", rest @ ..] => self.v1(call, rest).await,
            ["api", "v2", scope, action] => Ok(qbittorrent::answer(self, call, scope, action).await),
            [name] => page::page(&call, name),
            _ => Err(Problem::missing()),
        }
    }

    async fn v1(self: &Rc<Self>, call: Call, rest: &[&str]) -> Result<Reply, Problem> {
        match rest {
            ["openapi.json"] => session::openapi(&call),
            ["login"] => self.login(call).await,
            ["logout"] => self.logout(&call),
            ["password"] => self.password(call).await,
            ["session"] => self.session(&call),
            ["settings"] => self.settings(call).await,
            ["events"] => self.events(&call),
            ["contents"] => self.contents(call).await,
            ["contents", id] => self.content(call, id).await,
            ["contents", id, "play", file] => self.play(&call, id, file).await,
            ["contents", id, "reach"] => self.reach(&call, id),
            ["contents", id, "live"] => self.live(call, id).await,
            ["contents", id, what] => self.content_part(call, id, what).await,
            _ => Err(Problem::missing()),
        }
    }

    /// What the one who asks may do, by the token or cookie that is shown. Wrong ones are answered slowly.
    async fn access(&self, headers: &HeaderMap) -> Result<Option<Access>, Problem> {
        if let Some(shown) = headers.get(AUTHORIZATION) {
            let token = shown.to_str().ok().and_then(|shown| shown.split_once(' '));
            let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let access = token.and_then(|(_, token)| self.keys.of_token(token.trim()));
            return match access {
                Some(access) => Ok(Some(access)),
                None => {
                    self.slow_down().await?;
                    Err(Problem::unauthorized())
                }
            };
        }
        let now = Instant::now();
        Ok(cookies(headers).filter_map(|cookie| self.keys.of_cookie(cookie, now)).max())
    }

    /// What whoever shows a name and a password may do: one of the tokens is a password too, under any name. Wrong ones are answered
    /// slowly.
    pub(crate) async fn access_of(&self, user: &str, password: &str) -> Result<Access, Problem> {
        if let Some(access) = self.keys.of_token(password.trim()) {
            return Ok(access);
        }
        // A hash takes its time, and is not made for any number of those who guess.
        if self.slowed.get() < SLOWED_MAX && self.passwords.is_right(user, password).await {
            return Ok(Access::Full);
        }
        self.slow_down().await?;
        Err(Problem::unauthorized())
    }

    /// Somebody guesses. Those who know need not wait.
    async fn slow_down(&self) -> Result<(), Problem> {
        let now = Instant::now();
        let (count, since) = self.failures.get();
        let is_recent = since.is_some_and(|since| now.saturating_duration_since(since) < FAILURES_FOR);
        let count = if is_recent { count } else { 0 };
        self.failures.set((count.saturating_add(1), Some(now)));
        if self.slowed.get() >= SLOWED_MAX {
            return Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "slow-down",
                "too many wrong tokens: wait a minute",
            ));
        }
        self.slowed.set(self.slowed.get() + 1);
        let _slowed = Counted(&self.slowed);
        tokio::time::sleep(SLOW_MIN.saturating_mul(1 << count.min(10)).min(SLOW_MAX)).await;
        Ok(())
    }
}

impl Call {
    /// Whether the one who asks may do what is asked.
    pub(crate) fn need(&self, least: Access) -> Result<(), Problem> {
        match self.access {
            Some(access) if access >= least => Ok(()),
            Some(_) => Err(Problem::new(StatusCode::FORBIDDEN, "read-only", "this token is for looking alone")),
            None => Err(Problem::unauthorized()),
        }
    }

    /// For what is only looked at.
    pub(crate) fn is_look(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }

    /// A method that is not among these is told so.
    pub(crate) fn wrong_method(&self, allowed: &'static str) -> Problem {
        Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method",
            format!("{} does not work here: {allowed} do", self.method),
        )
    }

    /// Looking, for those who may.
    pub(crate) fn look(&self) -> Result<(), Problem> {
        if !self.is_look() {
            return Err(self.wrong_method("GET and HEAD"));
        }
        self.need(Access::Read)
    }

    /// Acting, for those who may.
    pub(crate) fn act(&self) -> Result<(), Problem> {
        if self.method != Method::POST {
            return Err(self.wrong_method("POST alone"));
        }
        self.need(Access::Full)
    }
}

/// A count that goes down again.
pub(crate) struct Counted<'a>(pub(crate) &'a Cell<usize>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A part of the address, in which `+` is itself.
fn decode_segment(segment: &str) -> Option<String> {
    decode(&segment.replace('+', "%2B"))
}

/// The cookies that are shown.
pub(crate) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let pairs =
        headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
    let named = pairs.filter_map(|pair| pair.trim().split_once('='));
    named.filter(|(name, _)| COOKIE_NAMES.contains(name)).map(|(_, value)| value)
}

fn foreign(foreign: Foreign) -> Problem {
    match foreign {
        Foreign::Host => Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "host",
            "name this host by its address or as `localhost`, or start the daemon with --api-name for another name",
        ),
        Foreign::Origin => Problem::new(StatusCode::FORBIDDEN, "origin", "this request comes from another site"),
    }
}
