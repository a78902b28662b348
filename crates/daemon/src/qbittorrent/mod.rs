//! qBittorrent's WebAPI, for the programs that speak it: the same requests and answers, of our library.
//!
//! What it says is as qBittorrent 5.1 has it (WebAPI 2.11.4). Who asks logs in with a name and a password, and has a cookie then; or shows
//! a token, as for our own API. `docs/daemon.md` says what is different.
//!
//! | module | what it answers |
//! | --- | --- |
//! | `auth`, `app`, `preferences`, `transfer` | the scopes of these names |
//! | `list`, `detail` | `torrents/*` that is looked at |
//! | `add`, `change`, `names` | `torrents/*` that is done: adding, changing, categories and tags |
//! | `sync` | `sync/*`: what changed since the last time |
//! | `row`, `field` | one torrent as all of them show it, and how it is written |
//! | `form`, `multipart` | what requests say |

mod add;
mod app;
mod auth;
mod change;
mod detail;
mod field;
mod form;
mod list;
mod multipart;
mod names;
mod preferences;
mod row;
mod sync;
mod transfer;

use std::cell::RefCell;
use std::rc::Rc;

use hyper::header::CONTENT_DISPOSITION;
use hyper::{Method, StatusCode};
use serde_json::Value;

use crate::api::{Api, Call, Problem, Reply, reply};
use crate::door::Access;
use crate::engine::Refusal;
pub(crate) use auth::COOKIE_NAME;
use form::Form;
pub(crate) use multipart::{boundary, parts};

/// The version of qBittorrent whose answers these are.
const VERSION: &str = "v5.1.4";
/// The version of its API.
const API_VERSION: &str = "2.11.4";

/// Requests that change nothing. All others have to be POST, so that no link elsewhere leads to them, and need all rights.
const LOOKS: &[&str] = &[
    "app/version",
    "app/webapiVersion",
    "app/buildInfo",
    "app/preferences",
    "app/defaultSavePath",
    "app/cookies",
    "torrents/count",
    "torrents/info",
    "torrents/properties",
    "torrents/trackers",
    "torrents/webseeds",
    "torrents/files",
    "torrents/pieceStates",
    "torrents/pieceHashes",
    "torrents/export",
    "torrents/categories",
    "torrents/tags",
    "torrents/uploadLimit",
    "torrents/downloadLimit",
    "sync/maindata",
    "sync/torrentPeers",
    "transfer/info",
    "transfer/speedLimitsMode",
    "transfer/uploadLimit",
    "transfer/downloadLimit",
];

/// What is remembered for those who ask again.
#[derive(Default)]
pub(crate) struct Memory {
    main: RefCell<sync::Main>,
    peers: RefCell<sync::Peers>,
}

/// Why something is not done: a status, and a line for people.
#[derive(Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    text: String,
}

impl Fault {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    fn conflict(text: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, text)
    }

    fn missing() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no such torrent")
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self::new(problem.status, problem.detail)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let status = match &refusal {
            Refusal::Invalid { .. } | Refusal::Source(_) => StatusCode::BAD_REQUEST,
            Refusal::Torrent(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            _ => return Problem::from(refusal).into(),
        };
        Self::new(status, refusal.to_string())
    }
}

/// What is answered.
enum Answer {
    /// Done, and nothing to say.
    Done,
    /// A line.
    Text(String),
    /// JSON that is written already.
    Json(Vec<u8>),
    /// A torrent, and what its file is called.
    Torrent(Vec<u8>, String),
    /// Something else.
    Reply(Box<Reply>),
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self::Json(value.to_string().into_bytes())
    }
}

type Outcome = Result<Answer, Fault>;

/// Answers a request of `/api/v2/SCOPE/ACTION`.
pub(crate) async fn answer(api: &Rc<Api>, call: Call, scope: &str, action: &str) -> Reply {
    match respond(api, call, scope, action).await {
        Ok(Answer::Done) => reply::typed(StatusCode::OK, "text/plain; charset=UTF-8", ""),
        Ok(Answer::Text(text)) => reply::typed(StatusCode::OK, "text/plain; charset=UTF-8", text),
        Ok(Answer::Json(bytes)) => reply::typed(StatusCode::OK, "application/json", bytes),
        Ok(Answer::Torrent(bytes, name)) => {
            let reply = reply::typed(StatusCode::OK, "application/x-bittorrent", bytes);
            reply::with(reply, CONTENT_DISPOSITION, &format!("attachment; filename=\"{name}\""))
        }
        Ok(Answer::Reply(reply)) => *reply,
        Err(fault) => reply::typed(fault.status, "text/plain; charset=UTF-8", fault.text),
    }
}

async fn respond(api: &Rc<Api>, mut call: Call, scope: &str, action: &str) -> Outcome {
    let name = format!("{scope}/{action}");
    let is_look = LOOKS.contains(&name.as_str());
    let is_login = scope == "auth";
    if !matches!(call.method, Method::GET | Method::HEAD | Method::POST) || !is_look && call.method != Method::POST {
        return Err(Fault::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"));
    }
    let least = if is_look { Access::Read } else { Access::Full };
    if !is_login && call.access.is_none_or(|access| access < least) {
        // qBittorrent's word for it, which has its clients log in.
        return Err(Fault::new(StatusCode::FORBIDDEN, "Forbidden"));
    }
    let form = Form::read(&mut call).await?;
    match scope {
        "auth" => auth::answer(api, &call, &form, action).await,
        "app" => app::answer(api, &form, action).await,
        "transfer" => transfer::answer(api, &form, action).await,
        "sync" => sync::answer(api, &form, action).await,
        "torrents" => torrents(api, form, action).await,
        _ => Err(unknown()),
    }
}

async fn torrents(api: &Rc<Api>, form: Form, action: &str) -> Outcome {
    match action {
        "add" => add::add(api, form).await,
        "info" => list::info(api, &form),
        "count" => Ok(Answer::Text(list::count(api).to_string())),
        "categories" | "createCategory" | "editCategory" | "removeCategories" | "setCategory" | "tags"
        | "createTags" | "deleteTags" | "addTags" | "removeTags" | "setTags" => names::answer(api, &form, action).await,
        "properties" | "trackers" | "webseeds" | "files" | "pieceStates" | "pieceHashes" | "export" => {
            detail::answer(api, &form, action).await
        }
        _ => change::answer(api, &form, action).await,
    }
}

fn unknown() -> Fault {
    Fault::new(StatusCode::NOT_FOUND, "Not Found")
}

/// The content that `hash` names.
fn one(api: &Api, form: &Form) -> Result<u64, Fault> {
    api.engine.by_short_hash(form.need("hash")?.trim()).ok_or_else(Fault::missing)
}

/// The contents that `hashes` names: all of them, or those that are there.
fn several(api: &Api, hashes: &str) -> Vec<u64> {
    if hashes.trim() == "all" {
        let mut ids = Vec::new();
        api.engine.for_each(|seen| ids.push(seen.entry().id));
        return ids;
    }
    hashes.split('|').filter_map(|hash| api.engine.by_short_hash(hash.trim())).collect()
}
