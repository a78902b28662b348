//! `watch`: what a daemon's contents are at, as it changes.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_daemon::client::Client;
use serde_json::{Value, json};

use super::{all, client, failure, meant, row};
use crate::cli::WatchFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::runtime;
use crate::status::StatusLines;
use crate::units;

/// Contents with a line of their own.
const LINES_MAX: usize = 30;

/// Runs the command.
pub(crate) fn run(flags: &WatchFlags, chatter: Chatter) -> Result<Code, Failure> {
    let client = client(&flags.ask)?;
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        tokio::select! {
            ended = follow(flags, &client, chatter) => ended,
            () = interrupted.notified() => Ok(if flags.wait { Code::Interrupted } else { Code::Success }),
        }
    })
}

/// What is known of the contents.
struct Seen {
    contents: BTreeMap<u64, Value>,
    /// Those that are watched; all where it is empty.
    chosen: BTreeSet<u64>,
    lines: Option<StatusLines>,
    json: bool,
}

async fn follow(flags: &WatchFlags, client: &Client, chatter: Chatter) -> Result<Code, Failure> {
    let numbers = meant::numbers(client, &flags.contents).await?;
    let chosen: BTreeSet<u64> = numbers.iter().filter_map(|number| number.parse().ok()).collect();
    let json = flags.ask.json;
    let lines = (chatter.draws() && !json).then(StatusLines::default);
    let mut seen = Seen { contents: BTreeMap::new(), chosen, lines, json };
    // From here on nothing is missed.
    let mut watch = client.watch().await.map_err(failure)?;
    seen.look(client).await?;
    loop {
        if flags.wait
            && let Some(ended) = seen.ended()
        {
            seen.clear();
            return ended;
        }
        seen.draw();
        let Some((name, data)) = watch.next().await.map_err(failure)? else {
            seen.clear();
            return Err(Failure::new(Code::Network, "the daemon has ended"));
        };
        seen.on_event(client, &name, data).await?;
    }
}

impl Seen {
    fn is_chosen(&self, id: u64) -> bool {
        self.chosen.is_empty() || self.chosen.contains(&id)
    }

    async fn look(&mut self, client: &Client) -> Result<(), Failure> {
        let contents = all(client, "").await?;
        self.contents = contents.into_iter().filter_map(|content| Some((content["id"].as_u64()?, content))).collect();
        let ids: Vec<u64> = self.contents.keys().copied().filter(|id| self.is_chosen(*id)).collect();
        ids.into_iter().try_for_each(|id| self.tell("content", &self.contents[&id].clone()))
    }

    async fn on_event(&mut self, client: &Client, name: &str, data: Value) -> Result<(), Failure> {
        let id = data["id"].as_u64();
        match name {
            "reset" => return self.look(client).await,
            "content" => {
                if let Some(id) = id {
                    self.contents.insert(id, data.clone());
                }
            }
            "removed" => {
                id.and_then(|id| self.contents.remove(&id));
            }
            "progress" => {
                for numbers in data["contents"].as_array().into_iter().flatten() {
                    let known = numbers["id"].as_u64().and_then(|id| self.contents.get_mut(&id));
                    if let (Some(Value::Object(known)), Value::Object(numbers)) = (known, numbers) {
                        known.extend(numbers.clone());
                    }
                }
            }
            _ => {}
        }
        match id {
            Some(id) if !self.is_chosen(id) => Ok(()),
            _ => self.tell(name, &data),
        }
    }

    /// Tells programs of an event, and people who see no screen.
    fn tell(&self, name: &str, data: &Value) -> Result<(), Failure> {
        if self.json {
            return output::json_event(name, data.clone());
        }
        match (name, &self.lines) {
            ("content", None) => output::line(output::one_line(&row(data))),
            ("removed", None) => output::line(format_args!("{:>4}  removed", data["id"])),
            _ => Ok(()),
        }
    }

    /// How it ended, if all that are waited for are complete, or one cannot be.
    fn ended(&self) -> Option<Result<Code, Failure>> {
        for id in &self.chosen {
            let Some(content) = self.contents.get(id) else {
                return Some(Err(Failure::new(Code::Incomplete, format!("content {id} was removed"))));
            };
            if content["state"] == json!("error") {
                let reason = content["reason"].as_str().unwrap_or("it failed");
                return Some(Err(Failure::new(Code::Incomplete, format!("content {id}: {reason}"))));
            }
            if content["completed"].is_null() {
                return None;
            }
        }
        Some(Ok(Code::Success))
    }

    fn draw(&mut self) {
        let Some(lines) = &mut self.lines else { return };
        let shown = self.contents.values().filter(|content| {
            self.chosen.is_empty() || content["id"].as_u64().is_some_and(|id| self.chosen.contains(&id))
        });
        let mut rows: Vec<String> = shown.map(row).collect();
        if rows.len() > LINES_MAX {
            let left = rows.len() - LINES_MAX;
            rows.truncate(LINES_MAX);
            rows.push(format!("      and {}", units::count(left, "more content")));
        }
        lines.draw(&rows);
    }

    fn clear(&mut self) {
        self.lines.iter_mut().for_each(StatusLines::clear);
    }
}
