//! `add`, `list`, `status`, `pause`, `resume`, `remove`, `limit`, `watch`, `password`: a daemon is asked.

mod bulk;
mod limit;
mod live;
mod meant;
mod password;
mod watch;

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use anabranch_content::metainfo::limits::METAINFO_BYTES_MAX;
use anabranch_daemon::client::{At, Body, Client, ClientError, default_socket, token_file};
use anabranch_swarm::http::names::url_encoded;
use serde_json::{Map, Value, json};

use super::check_trackers;
use super::daemon::state_dir;
use crate::cli::{AddFlags, AskFlags, ListFlags, RemoveFlags, StatusFlags, TurnFlags};
use crate::exit::{Code, Failure};
use crate::output;
use crate::runtime;
use crate::{source, units};

pub(crate) use limit::run as limit;
pub(crate) use password::run as password;
pub(crate) use watch::run as watch;

/// Bytes of a token's file.
const TOKEN_BYTES_MAX: u64 = 1024;
/// Contents that are asked for at once.
const PAGE: usize = 1000;

/// The daemon that is meant.
fn client(flags: &AskFlags) -> Result<Client, Failure> {
    let at = match &flags.daemon {
        Some(at) => at.clone(),
        None => {
            let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
            At::Socket(default_socket(runtime_dir.as_deref(), &state_dir(None)?))
        }
    };
    let token = match &at {
        At::Socket(_) => None,
        At::Address(_) => {
            let path = flags.token_file.clone().map_or_else(|| state_dir(None).map(|dir| token_file(&dir)), Ok)?;
            let mut text = String::new();
            let read = std::fs::File::open(&path).and_then(|file| file.take(TOKEN_BYTES_MAX).read_to_string(&mut text));
            read.map_err(|error| {
                let shown = path.display();
                Failure::input(format!(
                    "cannot read the token in {shown}: {error}; name the file of the daemon's token with --token-file"
                ))
            })?;
            Some(text.trim().to_owned())
        }
    };
    Ok(Client::new(at, token))
}

/// Asks the daemon for something, which takes as long as the daemon does. Who does not want to wait any longer is told what that means.
fn asking(asks: Asks, work: impl Future<Output = Result<Code, Failure>>) -> Result<Code, Failure> {
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let unanswered = match asks {
            Asks::ToKnow => "interrupted before the daemon answered",
            Asks::ForChange => "interrupted before the daemon answered: it may do what it was asked for all the same",
        };
        let done = runtime::unless_interrupted(&interrupted, work).await?;
        done.ok_or_else(|| Failure::new(Code::Interrupted, unanswered))
    })
}

/// What a daemon is asked for.
#[derive(Clone, Copy)]
enum Asks {
    /// To tell something.
    ToKnow,
    /// To do something.
    ForChange,
}

fn failure(error: ClientError) -> Failure {
    if let ClientError::Refused { status: 401, .. } = &error {
        let message =
            "the daemon does not know the token that it was shown: name the file in its state folder with --token-file";
        return Failure::input(message);
    }
    let code = match &error {
        ClientError::Unreachable { .. } | ClientError::Broken(..) => Code::Network,
        ClientError::Refused { status: 507, .. } => Code::Storage,
        ClientError::Refused { status: 502, .. } => Code::Network,
        ClientError::Refused { status: 400 | 403 | 404 | 409 | 422, .. } => Code::Input,
        ClientError::Refused { .. } => Code::Failed,
    };
    Failure::new(code, error)
}

/// The target of a content, or of a part of it.
fn target(content: &str, part: &str) -> String {
    let content = url_encoded(content);
    if part.is_empty() { format!("/api/v1/contents/{content}") } else { format!("/api/v1/contents/{content}/{part}") }
}

/// `add`
pub(crate) fn add(flags: &AddFlags) -> Result<Code, Failure> {
    check_trackers(&flags.live.tracker)?;
    bulk::check(flags)?;
    let client = client(&flags.ask)?;
    asking(Asks::ForChange, async {
        let receives = (flags.bulk.receive || flags.live.live && flags.sources.is_empty()).then_some(None);
        for source in flags.sources.iter().map(Some).chain(receives) {
            let options = options(flags)?;
            if flags.live.live {
                let mut body = options;
                body.insert("live".into(), live::wanted(flags, source.map(OsString::as_os_str))?);
                body.insert("trackers".into(), json!(flags.live.tracker));
                let added = client.ask("POST", "/api/v1/contents", Body::Json(&body.into())).await.map_err(failure)?;
                bulk::tell(&client, added, flags).await?;
                continue;
            }
            if let Some(wanted) = bulk::wanted(flags, source.map(OsString::as_os_str))? {
                let mut body = options;
                body.insert("bulk".into(), wanted);
                let added = client.ask("POST", "/api/v1/contents", Body::Json(&body.into())).await.map_err(failure)?;
                bulk::tell(&client, added, flags).await?;
                continue;
            }
            let Some(source) = source else { continue };
            let text = source.to_str().unwrap_or_default();
            let begins = |prefix: &str| text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
            let added = if flags.share {
                let path = std::path::absolute(source).map_err(Failure::input)?;
                let mut body = options;
                body.insert("path".into(), text_of(&path)?.into());
                client.ask("POST", "/api/v1/contents", Body::Json(&body.into())).await
            } else if ["magnet:", "ppspp:", "tswift:", "http://", "https://"].into_iter().any(begins) {
                let mut body = options;
                body.insert("source".into(), text.into());
                client.ask("POST", "/api/v1/contents", Body::Json(&body.into())).await
            } else {
                let bytes = source::torrent_bytes(Path::new(source))?;
                debug_assert!(bytes.len() <= METAINFO_BYTES_MAX);
                let query: Vec<String> =
                    options.iter().map(|(name, value)| format!("{name}={}", url_encoded(&plain(value)))).collect();
                let target = format!("/api/v1/contents?{}", query.join("&"));
                client.ask("POST", &target, Body::Torrent(bytes)).await
            };
            let added = added.map_err(failure)?;
            if flags.ask.json {
                output::line(&added)?;
            } else {
                output::line(format_args!("{}  {}", added["id"], added["name"].as_str().unwrap_or_default()))?;
            }
        }
        Ok(Code::Success)
    })
}

fn options(flags: &AddFlags) -> Result<Map<String, Value>, Failure> {
    let mut options = Map::new();
    let mut put = |name: &str, value: Value| options.insert(name.to_owned(), value);
    if let Some(dir) = &flags.into {
        put("dir", text_of(&std::path::absolute(dir).map_err(Failure::input)?)?.into());
    }
    if let Some(category) = &flags.category {
        put("category", category.as_str().into());
    }
    if !flags.tag.is_empty() {
        put("tags", json!(flags.tag));
    }
    if flags.paused {
        put("paused", true.into());
    }
    if flags.sequential {
        put("sequential", true.into());
    }
    if let Some(rate) = flags.torrent_limit_down {
        put("limit_down", rate.0.into());
    }
    if let Some(rate) = flags.torrent_limit_up {
        put("limit_up", rate.0.into());
    }
    if let Some(ratio) = flags.stop_ratio {
        put("ratio_max", ratio.0.into());
    }
    if let Some(time) = flags.stop_after {
        put("seed_seconds_max", time.as_secs().max(1).into());
    }
    if !flags.dial.is_empty() {
        put("peers", json!(flags.dial));
    }
    Ok(options)
}

/// A value as it stands in an address.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        value => value.to_string(),
    }
}

fn text_of(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::input(format!("the name of {} is not UTF-8, and a daemon is told none else", path.display()))
    })
}

/// All contents that a query admits.
async fn all(client: &Client, query: &str) -> Result<Vec<Value>, Failure> {
    let (mut contents, mut after) = (Vec::new(), 0);
    loop {
        let target = format!("/api/v1/contents?limit={PAGE}&after={after}{query}");
        let mut answer = client.ask("GET", &target, Body::None).await.map_err(failure)?;
        if let Value::Array(page) = answer["contents"].take() {
            contents.extend(page);
        }
        match answer["next"].as_u64() {
            Some(next) => after = next,
            None => return Ok(contents),
        }
    }
}

/// `list`
pub(crate) fn list(flags: &ListFlags) -> Result<Code, Failure> {
    let client = client(&flags.ask)?;
    let filters = [("state", &flags.state), ("category", &flags.category), ("tag", &flags.tag)];
    let query: String =
        filters.iter().filter_map(|(name, value)| Some(format!("&{name}={}", url_encoded(value.as_ref()?)))).collect();
    asking(Asks::ToKnow, async {
        for content in all(&client, &query).await? {
            if flags.ask.json {
                output::line(&content)?;
            } else {
                output::line(output::one_line(&row(&content)))?;
            }
        }
        Ok(Code::Success)
    })
}

/// A content in one line.
fn row(content: &Value) -> String {
    let number = |name: &str| content[name].as_u64().unwrap_or(0);
    let (done, size) = (number("done"), content["size"].as_u64());
    let percent = size.map_or("     -".to_owned(), |size| format!("{:5.1}%", units::percent(done, size.max(1))));
    let eta = content["eta"]
        .as_u64()
        .map_or(String::new(), |seconds| format!("  ETA {}", units::duration(std::time::Duration::from_secs(seconds))));
    format!(
        "{:>4}  {:<11}  {percent}  {:>9}  down {:>10}  up {:>10}  {}{eta}",
        number("id"),
        content["state"].as_str().unwrap_or_default(),
        size.map_or("-".to_owned(), units::bytes),
        units::rate(number("down_rate")),
        units::rate(number("up_rate")),
        content["name"].as_str().unwrap_or_default(),
    )
}

/// `status`
pub(crate) fn status(flags: &StatusFlags) -> Result<Code, Failure> {
    let client = client(&flags.ask)?;
    asking(Asks::ToKnow, async {
        let Some(name) = &flags.content else {
            let session = client.ask("GET", "/api/v1/session", Body::None).await.map_err(failure)?;
            if flags.ask.json {
                return output::line(&session).map(|()| Code::Success);
            }
            let number = |name: &str| session[name].as_u64().unwrap_or(0);
            let listening: Vec<&str> =
                session["listening"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let up = units::duration(std::time::Duration::from_secs(number("uptime_seconds")));
            output::line(format_args!(
                "version {}, up {up}, peers reach it at {}",
                session["version"].as_str().unwrap_or("?"),
                listening.join(", ")
            ))?;
            output::line(format_args!(
                "down {}, up {}, {} peers",
                units::rate(number("down_rate")),
                units::rate(number("up_rate")),
                number("peers")
            ))?;
            for (state, count) in
                session["contents"].as_object().into_iter().flatten().filter(|(_, count)| count.as_u64() != Some(0))
            {
                output::line(format_args!("{count:>6}  {state}"))?;
            }
            return Ok(Code::Success);
        };
        let number = meant::number(&client, name).await?;
        let content = client.ask("GET", &target(&number, ""), Body::None).await.map_err(failure)?;
        if flags.ask.json {
            return output::line(&content).map(|()| Code::Success);
        }
        output::line(output::one_line(&row(&content)))?;
        for (field, label) in [("reason", "because"), ("dir", "in"), ("category", "category"), ("link", "link")] {
            if let Some(text) = content[field].as_str() {
                output::line(format_args!("      {label}: {}", output::one_line(text)))?;
            }
        }
        bulk::status(&client, &content).await?;
        let paths = client.ask("GET", &target(&number, "paths"), Body::None).await.map_err(failure)?;
        for path in paths["paths"].as_array().into_iter().flatten() {
            let number = |name: &str| path[name].as_u64().unwrap_or(0);
            let text = |name: &str| path[name].as_str().unwrap_or_default();
            let line = format!(
                "      {:<8}  down {:>10}  up {:>10}  {}: {}",
                text("state"),
                units::rate(number("down_rate")),
                units::rate(number("up_rate")),
                text("text"),
                text("reason"),
            );
            output::line(output::one_line(&line))?;
        }
        Ok(Code::Success)
    })
}

/// `pause` and `resume`
pub(crate) fn turn(flags: &TurnFlags, what: &str) -> Result<Code, Failure> {
    let client = client(&flags.ask)?;
    asking(Asks::ForChange, async {
        let numbers: Vec<String> = match flags.all {
            true => all(&client, "").await?.iter().map(|content| content["id"].to_string()).collect(),
            false => meant::numbers(&client, &flags.contents).await?,
        };
        for number in numbers {
            let content = client.ask("POST", &target(&number, what), Body::None).await.map_err(failure)?;
            if flags.ask.json {
                output::line(&content)?;
            }
        }
        Ok(Code::Success)
    })
}

/// `remove`
pub(crate) fn remove(flags: &RemoveFlags) -> Result<Code, Failure> {
    let client = client(&flags.ask)?;
    let data = if flags.delete_files { "?data=delete" } else { "" };
    asking(Asks::ForChange, async {
        for number in meant::numbers(&client, &flags.contents).await? {
            let target = format!("{}{data}", target(&number, ""));
            let removed = client.ask("DELETE", &target, Body::None).await.map_err(failure)?;
            if flags.ask.json {
                output::line(&removed)?;
                continue;
            }
            for path in removed["left"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                output::line(format_args!("left: {}", output::one_line(path)))?;
            }
        }
        Ok(Code::Success)
    })
}
