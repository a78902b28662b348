//! Bulk transfers that a daemon is given, and how others come to them, and to live streams.

use std::time::{Duration, Instant};

use anabranch_daemon::client::{Body, Client, ClientError};
use serde_json::{Map, Value, json};

use super::{failure, target, text_of};
use crate::bulk::target::{allowed, is_ticket};
use crate::cli::AddFlags;
use crate::exit::{Code, Failure};
use crate::output;

/// How long a ticket is waited for: what is sent is looked through before.
const REACH_MAX: Duration = Duration::from_secs(60);
/// How often it is looked.
const REACH_POLL: Duration = Duration::from_millis(50);

/// Flags that cannot be meant together.
pub(super) fn check(flags: &AddFlags) -> Result<(), Failure> {
    let bulk = &flags.bulk;
    let usage = |message: &str| Err(Failure::usage(message));
    if bulk.receive && !flags.sources.is_empty() {
        return usage(
            "`--receive` waits for what others send: leave the SOURCE out; a ticket that you were given is added as it is",
        );
    }
    if flags.live.live {
        return super::live::check(flags);
    }
    if flags.share && bulk.send {
        return usage("`--share` makes a torrent of it, `--send` sends it by bulk transfer: leave one out");
    }
    if !bulk.allow.is_empty() && !bulk.receive {
        return usage("`--allow` is about who may send: give it with --receive");
    }
    if bulk.to.is_some() && (!bulk.send || flags.sources.len() != 1) {
        return usage("`--to` sends one file or folder to who made the ticket: give --send and its path");
    }
    let is_made = bulk.to.is_none() && bulk.allow.is_empty() && (bulk.send || bulk.receive);
    if (bulk.times.is_some() || bulk.expires.is_some()) && !is_made {
        return usage(
            "`--times` and `--expires` are about the ticket that is printed, and here there is none: leave them out",
        );
    }
    if bulk.port.is_some() && (bulk.to.is_some() || !(bulk.send || bulk.receive)) {
        return usage("`--port` is where this end is called: give it with --send or --receive, without --to");
    }
    let receives = bulk.receive || flags.sources.iter().any(|source| source.to_str().is_some_and(is_ticket));
    if bulk.force && !receives {
        return usage("`--force` overwrites with what is received, and nothing is: leave it out");
    }
    Ok(())
}

/// What is asked for, as the API has it; `None`: no bulk transfer.
pub(super) fn wanted(flags: &AddFlags, source: Option<&std::ffi::OsStr>) -> Result<Option<Value>, Failure> {
    let bulk = &flags.bulk;
    let mut object = Map::new();
    match source {
        Some(path) if bulk.send => {
            let path = std::path::absolute(path).map_err(Failure::input)?;
            object.insert("send".into(), text_of(&path)?.into());
            if let Some(ticket) = &bulk.to {
                object.insert("ticket".into(), ticket.as_str().into());
            }
        }
        Some(text) => match text.to_str().filter(|text| is_ticket(text)) {
            Some(ticket) => _ = object.insert("ticket".into(), ticket.into()),
            None => return Ok(None),
        },
        None => {}
    }
    if !bulk.allow.is_empty() {
        let keys: Vec<String> = allowed(&bulk.allow)?.iter().map(ToString::to_string).collect();
        object.insert("allow".into(), json!(keys));
    }
    if let Some(times) = bulk.times {
        object.insert("times".into(), times.into());
    }
    if let Some(time) = bulk.expires {
        object.insert("expires_seconds".into(), time.as_secs().max(1).into());
    }
    if let Some(port) = bulk.port {
        object.insert("port".into(), port.into());
    }
    if bulk.force {
        object.insert("overwrite".into(), true.into());
    }
    Ok(Some(object.into()))
}

/// Tells of a transfer that was added: once others can come to it, how they do.
pub(super) async fn tell(client: &Client, mut added: Value, flags: &AddFlags) -> Result<(), Failure> {
    let waits = added["bulk"]["with"] != "ticket" && added["paused"] != true;
    let reach = if waits { reach(client, &added["id"].to_string()).await? } else { None };
    if flags.ask.json {
        if let (Some(Value::Object(reach)), Value::Object(added)) = (reach, &mut added) {
            added.extend(reach);
        }
        return output::line(&added);
    }
    output::line(format_args!("{}  {}", added["id"], output::one_line(added["name"].as_str().unwrap_or_default())))?;
    match reach {
        Some(reach) => show(&reach).and_then(|()| super::live::show_input(&added)),
        None if waits => output::line("      `anabranch status` tells its ticket once its files were looked through"),
        None => Ok(()),
    }
}

/// How others come to a transfer, as soon as they can; `None` where that takes long.
async fn reach(client: &Client, id: &str) -> Result<Option<Value>, Failure> {
    let began = Instant::now();
    while began.elapsed() < REACH_MAX {
        let reach = client.ask("GET", &target(id, "reach"), Body::None).await.map_err(failure)?;
        if reach["key"].is_string() || reach["link"].is_string() {
            return Ok(Some(reach));
        }
        let content = client.ask("GET", &target(id, ""), Body::None).await.map_err(failure)?;
        if content["state"] == "error" {
            let reason = content["reason"].as_str().unwrap_or("it failed");
            return Err(Failure::new(Code::Failed, format!("content {id}: {reason}")));
        }
        tokio::time::sleep(REACH_POLL).await;
    }
    Ok(None)
}

/// The same of one that is there, for those who may know.
pub(super) async fn status(client: &Client, content: &Value) -> Result<(), Failure> {
    if content["live"].is_object() {
        return super::live::show_input(content);
    }
    if !content["bulk"].is_object() {
        return Ok(());
    }
    match client.ask("GET", &target(&content["id"].to_string(), "reach"), Body::None).await {
        Ok(reach) => show(&reach),
        Err(ClientError::Refused { status: 403, .. }) => Ok(()),
        Err(error) => Err(failure(error)),
    }
}

fn show(reach: &Value) -> Result<(), Failure> {
    if let Some(link) = reach["link"].as_str() {
        return output::line(link);
    }
    if let Some(ticket) = reach["ticket"].as_str() {
        return output::line(ticket);
    }
    let Some(key) = reach["key"].as_str() else { return Ok(()) };
    for address in reach["addresses"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        output::line(format_args!("{key}@{address}"))?;
    }
    Ok(())
}
