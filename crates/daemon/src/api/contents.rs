//! Contents: listed, added, looked at, changed, removed.

use std::collections::BTreeMap;
use std::path::Path;

use anabranch_swarm::bulk::is_ticket;
use hyper::header::LOCATION;
use hyper::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::body::TORRENT_BYTES_MAX;
use super::broadcast::new_broadcast;
use super::bulk::new_bulk;
use super::reply::{self, Content};
use super::value::{flag, text};
use super::{Api, Call, Problem, Query, Reply};
use crate::door::Access;
use crate::engine::{Filter, NewBulk, NewContent, NewSource, STATES};
use crate::library::{Going, Refused, own_ratio, own_whole, whole};

/// Contents in one answer, where nobody says.
const LIMIT_DEFAULT: u64 = 1000;
/// Contents in one answer.
const LIMIT_MAX: u64 = 10_000;

impl Api {
    /// The list, and what is added to it.
    pub(super) async fn contents(&self, call: Call) -> Result<Reply, Problem> {
        if call.is_look() {
            return self.list(&call);
        }
        if call.method != Method::POST {
            return Err(call.wrong_method("GET, HEAD and POST"));
        }
        call.need(Access::Full)?;
        self.add(call).await
    }

    fn list(&self, call: &Call) -> Result<Reply, Problem> {
        call.need(Access::Read)?;
        let query = &call.query;
        let state = query.get("state").map(str::to_owned);
        if state.as_deref().is_some_and(|state| !STATES.contains(&state)) {
            return Err(Problem::field("state", &format!("one of {}", STATES.join(", "))));
        }
        let filter = Filter {
            state,
            category: query.get("category").map(str::to_owned),
            tag: query.get("tag").map(str::to_owned),
            name: query.get("q").map(str::to_lowercase),
            among: query.get("named").map(|text| self.engine.meant(text)),
        };
        let limit = query.number("limit")?.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(Problem::field("limit", &format!("a whole number from 1 to {LIMIT_MAX}")));
        }
        let (contents, more) = self.engine.list(&filter, query.number("after")?.unwrap_or(0), limit as usize);
        let next = contents.last().filter(|_| more).and_then(|last| last["id"].as_u64());
        Ok(reply::json(StatusCode::OK, &json!({ "contents": contents, "next": next })))
    }

    async fn add(&self, mut call: Call) -> Result<Reply, Problem> {
        let new = match call.content_type().as_str() {
            "application/x-bittorrent" => {
                let options = of_query(&call.query)?;
                let bytes = call.bytes(TORRENT_BYTES_MAX).await?;
                new_content(NewSource::Torrent(bytes), &options)?
            }
            _ => new_content_of(&call.object(false).await?)?,
        };
        let id = self.engine.add(new).await?;
        let reply = reply::json(StatusCode::CREATED, &self.engine.view(id)?);
        Ok(reply::with(reply, LOCATION, &format!("/api/v1/contents/{id}")))
    }

    /// One content.
    pub(super) async fn content(&self, mut call: Call, name: &str) -> Result<Reply, Problem> {
        match call.method {
            Method::GET | Method::HEAD => call.need(Access::Read)?,
            Method::PATCH | Method::DELETE => call.need(Access::Full)?,
            _ => return Err(call.wrong_method("GET, HEAD, PATCH and DELETE")),
        }
        let id = self.engine.find(name)?;
        match call.method {
            Method::PATCH => {
                let changes = call.object(false).await?;
                self.engine.patch(&[id], &changes).await?;
            }
            Method::DELETE => {
                let going = match call.query.get("data") {
                    None | Some("keep") => Going::Keep,
                    Some("delete") => Going::Delete,
                    Some(_) => return Err(Problem::field("data", "keep or delete")),
                };
                let left = self.engine.remove(id, going).await?;
                let left: Vec<String> = left.iter().map(|path| path.to_string_lossy().into_owned()).collect();
                return Ok(reply::json(StatusCode::OK, &json!({ "left": left })));
            }
            _ => {}
        }
        Ok(reply::json(StatusCode::OK, &self.engine.view(id)?))
    }

    /// A part of a content, or something that is asked of it.
    pub(super) async fn content_part(&self, mut call: Call, name: &str, what: &str) -> Result<Reply, Problem> {
        let is_action = matches!(what, "pause" | "resume" | "recheck" | "move" | "reannounce" | "queue");
        let is_part = matches!(what, "files" | "pieces" | "peers" | "trackers" | "paths" | "log");
        if !is_action && !is_part {
            return Err(Problem::missing());
        }
        let may_change = matches!((what, &call.method), ("files", &Method::PATCH) | ("peers", &Method::POST));
        match is_action {
            true => call.act()?,
            false if may_change => call.need(Access::Full)?,
            false => call.look()?,
        }
        let id = self.engine.find(name)?;
        let engine = &self.engine;
        if may_change || is_action {
            let object = call.object(matches!(what, "pause" | "resume" | "recheck" | "reannounce")).await?;
            match what {
                "files" => engine.set_files(id, &levels(&object)?).await?,
                "peers" => {
                    engine
                        .add_peers(
                            id,
                            &texts(object.get("peers"))
                                .ok_or_else(|| Problem::field("peers", "a list of addresses"))?,
                        )
                        .await?
                }
                "pause" => engine.pause(&[id]).await?,
                "resume" => engine.resume(&[id]).await?,
                "recheck" => engine.recheck(id).await?,
                "reannounce" => engine.reannounce(id).await?,
                "queue" => {
                    let to = object.get("to").and_then(Value::as_str);
                    let to_front = match to {
                        Some("front") => true,
                        Some("back") => false,
                        _ => return Err(Problem::field("to", "front or back")),
                    };
                    engine.requeue(&[id], to_front).await?;
                }
                _ => {
                    let dir = object.get("dir").and_then(Value::as_str);
                    engine
                        .move_to(id, Path::new(dir.ok_or_else(|| Problem::field("dir", "the path of a folder"))?))
                        .await?;
                }
            }
            return Ok(reply::json(StatusCode::ACCEPTED, &self.engine.view(id)?));
        }
        let part = match what {
            "files" => json!({ "files": engine.files(id).await? }),
            "pieces" => engine.pieces(id).await?,
            "peers" => json!({ "peers": engine.peers(id).await? }),
            "trackers" => json!({ "trackers": engine.trackers(id).await? }),
            "log" => json!({ "log": engine.log(id)? }),
            _ => engine.paths(id).await?,
        };
        Ok(reply::json(StatusCode::OK, &part))
    }

    /// A file for players, while it arrives.
    pub(super) async fn play(&self, call: &Call, name: &str, file: &str) -> Result<Reply, Problem> {
        call.look()?;
        let id = self.engine.find(name)?;
        let file: usize = file.parse().map_err(|_| Problem::missing())?;
        let play = self.engine.play(id, file).await?;
        let is_head = call.method == Method::HEAD;
        let answer = play.desk.answer(play.number, &call.headers, is_head).await.ok_or_else(Problem::missing)?;
        Ok(answer.map(Content::File))
    }
}

/// What is to be added, as JSON says.
pub(crate) fn new_content_of(object: &Map<String, Value>) -> Result<NewContent, Problem> {
    let mut object = object.clone();
    let is_any_other = object.contains_key("source") || object.contains_key("path");
    let source = match (object.remove("bulk"), object.remove("live")) {
        (None, None) => None,
        (Some(bulk), None) if !is_any_other => Some(NewSource::Bulk(new_bulk(&bulk)?)),
        (None, Some(live)) if !is_any_other => Some(NewSource::Broadcast(new_broadcast(&live)?)),
        _ => return Err(Problem::bad("give one of `source`, `path`, `bulk` and `live`")),
    };
    if let Some(source) = source {
        return new_content(source, &object);
    }
    let source = match (object.remove("source"), object.remove("path")) {
        (Some(Value::String(link)), None) if is_ticket(&link) => NewSource::Bulk(NewBulk::of_ticket(&link)),
        (Some(Value::String(link)), None) if is_web(&link) => NewSource::Url(link),
        (Some(Value::String(link)), None) => NewSource::Link(link),
        (None, Some(Value::String(path))) => NewSource::Path(path.into()),
        (Some(_), None) => {
            return Err(Problem::field(
                "source",
                "a text: a magnet link, a link of PPSPP, a ticket or the address of a torrent file",
            ));
        }
        (None, Some(_)) => return Err(Problem::field("path", "a text: the path of a file or folder")),
        _ => {
            let detail = "give one of `source`, a link or ticket, `path`, what is to be shared, `bulk`, a bulk transfer, and `live`, a live stream to broadcast; or send a torrent file";
            return Err(Problem::bad(detail));
        }
    };
    new_content(source, &object)
}

/// Whether it is the address of something that can be fetched.
fn is_web(link: &str) -> bool {
    ["http://", "https://"]
        .iter()
        .any(|scheme| link.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme)))
}

/// How a content is to be treated.
fn new_content(source: NewSource, object: &Map<String, Value>) -> Result<NewContent, Problem> {
    let mut new = NewContent::new(source);
    let options = &mut new.options;
    let refused = |refused: Refused| Problem::field(refused.field, refused.must);
    let list =
        |field: &'static str, value: &Value| texts(Some(value)).ok_or_else(|| Problem::field(field, "a list of texts"));
    for (name, value) in object {
        match name.as_str() {
            "dir" if value.is_null() => {}
            "dir" => {
                let dir = value.as_str().ok_or_else(|| Problem::field("dir", "the path of a folder"))?;
                new.dir = Some(dir.into());
            }
            "category" if value.is_null() => {}
            "category" => {
                options.category = Some(text("category", value)?);
            }
            "tags" => options.tags = list("tags", value)?.into_iter().collect(),
            "name" if value.is_null() => {}
            "name" => {
                options.title = Some(text("name", value)?);
            }
            "paused" => new.paused = Some(flag("paused", value)?),
            "forced" => options.forced = flag("forced", value)?,
            "to_front" => new.to_front = flag("to_front", value)?,
            "sequential" => options.sequential = flag("sequential", value)?,
            "edges_first" => options.edges_first = flag("edges_first", value)?,
            "super_seed" => options.super_seed = flag("super_seed", value)?,
            "limit_down" => options.limit_down = whole("limit_down", value).map_err(refused)?,
            "limit_up" => options.limit_up = whole("limit_up", value).map_err(refused)?,
            "ratio_max" => options.ratio_max = own_ratio("ratio_max", value).map_err(refused)?,
            "seed_seconds_max" => options.seed_seconds_max = own_whole("seed_seconds_max", value).map_err(refused)?,
            "idle_seconds_max" => options.idle_seconds_max = own_whole("idle_seconds_max", value).map_err(refused)?,
            "trackers" => options.trackers = list("trackers", value)?,
            "web_seeds" => options.web_seeds = list("web_seeds", value)?,
            "peers" => options.peers = list("peers", value)?,
            other => {
                return Err(Problem::bad(format!(
                    "`{}` is no option of a content",
                    other.chars().take(40).collect::<String>()
                )));
            }
        }
    }
    Ok(new)
}

/// The same options as they stand in an address.
fn of_query(query: &Query) -> Result<Map<String, Value>, Problem> {
    let mut object = Map::new();
    for (name, text) in query.fields() {
        let value = match name {
            "paused" | "forced" | "to_front" | "sequential" | "edges_first" | "super_seed" => match text {
                "true" | "1" | "yes" => true.into(),
                "false" | "0" | "no" => false.into(),
                _ => return Err(Problem::bad(format!("`{name}` must be true or false"))),
            },
            "limit_down" | "limit_up" | "seed_seconds_max" | "idle_seconds_max" | "ratio_max" => {
                serde_json::from_str::<Value>(text).ok().filter(Value::is_number).unwrap_or_else(|| text.into())
            }
            "tags" | "trackers" | "web_seeds" | "peers" => {
                text.split(',').filter(|text| !text.is_empty()).collect::<Vec<_>>().into()
            }
            _ => text.into(),
        };
        object.insert(name.to_owned(), value);
    }
    Ok(object)
}

fn texts(value: Option<&Value>) -> Option<Vec<String>> {
    value?.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
}

/// How much files are wanted, by their index: `{"priorities": {"0": 4, "3": 0}}`.
fn levels(object: &Map<String, Value>) -> Result<BTreeMap<usize, u8>, Problem> {
    let wrong = || Problem::field("priorities", "an object with a number from 0 to 7 for the index of each file");
    let levels = object.get("priorities").and_then(Value::as_object).ok_or_else(wrong)?;
    let level = |(file, level): (&String, &Value)| {
        let level = level.as_u64().and_then(|level| u8::try_from(level).ok()).filter(|level| *level <= 7)?;
        Some((file.parse().ok()?, level))
    };
    levels.iter().map(level).collect::<Option<_>>().ok_or_else(wrong)
}
