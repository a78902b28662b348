//! `net link`: changes a link of a running network.

use anabranch_asnet::network::client::{self, ClientError};
use serde_json::{Map, Value, json};

use crate::cli::{LinkAction, NetLinkFlags};
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};

/// Runs the command.
pub(super) fn run(flags: &NetLinkFlags, chatter: Chatter) -> Result<Code, Failure> {
    let order = order(flags)?;
    let link = client::change_link(flags.control, &order).map_err(|error| match error {
        ClientError::Refused(_) => Failure::usage(error),
        _ => Failure::new(Code::Network, error),
    })?;
    if flags.json {
        output::line(link)?;
    } else if !chatter.quiet {
        output::raw(show(&link).as_bytes())?;
    }
    Ok(Code::Success)
}

/// What the network's control API is told.
fn order(flags: &NetLinkFlags) -> Result<Value, Failure> {
    let mut order = json!({ "a": flags.from.to_string(), "b": flags.to.to_string() });
    match flags.action {
        LinkAction::Down | LinkAction::Up if !flags.properties.is_empty() => {
            return Err(Failure::usage("properties go with `set`: write A B set KEY=VALUE..."));
        }
        LinkAction::Set if flags.properties.is_empty() => {
            return Err(Failure::usage("`set` needs a property, as in rate=10Mbit/s or delay=20ms"));
        }
        LinkAction::Down => order["up"] = false.into(),
        LinkAction::Up => order["up"] = true.into(),
        LinkAction::Set => {
            let mut set = Map::new();
            for (key, value) in &flags.properties {
                if set.insert(key.clone(), value.as_str().into()).is_some() {
                    return Err(Failure::usage(format!("`{key}` is given twice: keep one")));
                }
            }
            order["set"] = set.into();
        }
    }
    Ok(order)
}

/// The link as it is now: its ends, whether it is up, and what it does to packets each way.
fn show(link: &Value) -> String {
    let text = |value: &Value| output::one_line(value.as_str().unwrap_or("?"));
    let (a, b) = (text(&link["a"]), text(&link["b"]));
    let state = if link["up"] == true { "up" } else { "down" };
    let (there, back) = (text(&link["there"]["text"]), text(&link["back"]["text"]));
    if there == back {
        return format!("{a} - {b} {state} {there}\n");
    }
    format!("{a} > {b} {state} {there}\n{b} > {a} {state} {back}\n")
}
