//! `limit`: how fast a daemon and its contents may be, and when they have shared enough.

use std::time::Duration;

use anabranch_daemon::client::Body;
use serde_json::{Map, Value, json};

use super::{Asks, asking, client, failure, meant, target};
use crate::cli::{Limit, LimitFlags};
use crate::exit::{Code, Failure};
use crate::{output, units};

/// Runs the command.
pub(crate) fn run(flags: &LimitFlags) -> Result<Code, Failure> {
    let client = client(&flags.ask)?;
    let changes = changes(flags);
    asking(if changes.is_empty() { Asks::ToKnow } else { Asks::ForChange }, async {
        let mut targets = vec!["/api/v1/settings".to_owned()];
        if !flags.contents.is_empty() {
            let numbers = meant::numbers(&client, &flags.contents).await?;
            targets = numbers.iter().map(|number| target(number, "")).collect();
        }
        for target in targets {
            let limited = match changes.is_empty() {
                true => client.ask("GET", &target, Body::None).await,
                false => client.ask("PATCH", &target, Body::Json(&changes.clone().into())).await,
            };
            let limited = limited.map_err(failure)?;
            match flags.ask.json {
                true => output::line(&limited)?,
                false => output::line(output::one_line(&shown(&limited)))?,
            }
        }
        Ok(Code::Success)
    })
}

/// What is to be changed, as the API has it.
fn changes(flags: &LimitFlags) -> Map<String, Value> {
    let rates = [("limit_down", flags.down), ("limit_up", flags.up)];
    let rates =
        rates.into_iter().filter_map(|(name, limit)| Some((name, limit?.to_json(|rate| json!(rate.0), Value::Null))));
    let ratio = flags.ratio.map(|limit| ("ratio_max", limit.to_json(|ratio| json!(ratio.0), none(flags))));
    let time =
        flags.time.map(|limit| ("seed_seconds_max", limit.to_json(|time| json!(time.as_secs().max(1)), none(flags))));
    rates.chain(ratio).chain(time).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// No limit: a content's own goes before that of the daemon.
fn none(flags: &LimitFlags) -> Value {
    if flags.contents.is_empty() { Value::Null } else { "none".into() }
}

impl<T: Copy> Limit<T> {
    fn to_json(self, of: impl Fn(T) -> Value, none: Value) -> Value {
        match self {
            Self::At(limit) => of(limit),
            Self::None => none,
            Self::Usual => Value::Null,
        }
    }
}

/// The limits of a content, or of all together, in one line.
fn shown(limited: &Value) -> String {
    let rate = |name: &str| limited[name].as_u64().map_or("none".to_owned(), units::rate);
    let is_content = limited["id"].is_u64();
    let other = |value: &Value| match value {
        Value::Null if is_content => "usual".to_owned(),
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let time = match limited["seed_seconds_max"].as_u64() {
        Some(seconds) => units::duration(Duration::from_secs(seconds)),
        None => other(&limited["seed_seconds_max"]),
    };
    let limits = format!(
        "receive {}, send {}, ratio {}, time {time}",
        rate("limit_down"),
        rate("limit_up"),
        other(&limited["ratio_max"])
    );
    match limited["name"].as_str().filter(|_| is_content) {
        Some(name) => format!("{:>4}  {name}: {limits}", limited["id"].as_u64().unwrap_or(0)),
        None => format!("all together: {limits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_shown_as_they_hold() {
        let content = json!({
            "id": 7, "name": "a", "limit_down": 2_000_000, "limit_up": null, "ratio_max": "none", "seed_seconds_max": null,
        });
        assert!(
            shown(&content).ends_with("a: receive 2.0 MB/s, send none, ratio none, time usual"),
            "{}",
            shown(&content)
        );
        let settings = json!({ "limit_down": null, "limit_up": null, "ratio_max": 1.5, "seed_seconds_max": null });
        assert_eq!(shown(&settings), "all together: receive none, send none, ratio 1.5, time none");
    }
}
