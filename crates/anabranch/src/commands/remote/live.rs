//! Live streams whose source is the daemon, as they are given to it.

use std::ffi::OsStr;

use anabranch_ppspp::pem;
use serde_json::{Map, Value, json};

use super::text_of;
use crate::bulk::target::allowed;
use crate::cli::AddFlags;
use crate::commands::live::key_document;
use crate::exit::Failure;
use crate::output;

/// Flags that cannot be meant together.
pub(super) fn check(flags: &AddFlags) -> Result<(), Failure> {
    let usage = |message: &str| Err(Failure::usage(message));
    if flags.share || flags.bulk.send || flags.bulk.receive {
        return usage("`--live` broadcasts it: leave --share, --send and --receive out");
    }
    if flags.sources.len() > 1 && (flags.live.name.is_some() || flags.live.key.is_some()) {
        return usage("`--name` and `--key` are one stream's: add them one by one");
    }
    if !flags.bulk.allow.is_empty() && !flags.live.secure {
        return usage("`--allow` insists on keys, which are proven inside QUIC alone: give --secure too");
    }
    let bulk = &flags.bulk;
    let is_any =
        bulk.to.is_some() || bulk.times.is_some() || bulk.expires.is_some() || bulk.port.is_some() || bulk.force;
    if is_any {
        return usage(
            "`--to`, `--times`, `--expires`, `--port` and `--force` are about bulk transfers: leave them out",
        );
    }
    Ok(())
}

/// What is asked for, as the API has it.
pub(super) fn wanted(flags: &AddFlags, source: Option<&OsStr>) -> Result<Value, Failure> {
    let live = &flags.live;
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    if let Some(source) = source {
        let path = std::path::absolute(source).map_err(Failure::input)?;
        put("input", text_of(&path)?.into());
    }
    if let Some(name) = &live.name {
        put("name", name.as_str().into());
    }
    if let Some(path) = &live.key {
        put("key", pem::encode(&key_document(path)?).into());
    }
    if let Some(rate) = live.rate {
        put("rate", rate.0.into());
    }
    if let Some(copies) = live.copies {
        put("copies", copies.into());
    }
    if live.secure {
        put("secure", true.into());
    }
    if !flags.bulk.allow.is_empty() {
        let keys: Vec<String> = allowed(&flags.bulk.allow)?.iter().map(ToString::to_string).collect();
        put("allow", json!(keys));
    }
    Ok(object.into())
}

/// Says where its input is sent, where programs send it.
pub(super) fn show_input(content: &Value) -> Result<(), Failure> {
    match &content["live"]["input"] {
        Value::Null if content["live"].is_object() => {
            output::line(format_args!("      input: PUT /api/v1/contents/{}/live", content["id"]))
        }
        Value::String(path) => output::line(format_args!("      input: {}", output::one_line(path))),
        _ => Ok(()),
    }
}
