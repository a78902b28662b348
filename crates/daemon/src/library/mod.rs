//! What the daemon knows and keeps: contents with their options, and settings. Pure: nothing here is at work.

mod about;
mod broadcast;
mod bulk;
mod entry;
mod own;
mod queue;
mod schedule;
mod settings;

use std::path::PathBuf;

use serde_json::Value;

pub(crate) use about::About;
pub(crate) use broadcast::Broadcast;
pub(crate) use bulk::{Bulk, Partner};
pub(crate) use entry::{Entry, Going, Kind, Origin, Totals};
pub(crate) use own::{Own, own_ratio, own_whole};
pub(crate) use queue::{Candidate, Turn, turns};
pub use schedule::LocalTime;
pub(crate) use schedule::Schedule;
pub(crate) use settings::{DOWNLOADS_MAX, Enough, KEY as SETTINGS_KEY, Refused, Settings, is_name, whole};

use crate::store::Entries;

/// The key of the number of the next content.
pub(crate) const NEXT_KEY: &str = "next";

/// What was kept, read back.
pub(crate) struct Restored {
    /// The contents.
    pub entries: Vec<(Entry, Totals)>,
    /// The settings.
    pub settings: Settings,
    /// The number of the next content.
    pub next: u64,
    /// Keys that nobody understands. They stay as they are.
    pub strange: Vec<String>,
}

/// Reads what was kept.
pub(crate) fn restore(kept: &Entries, dir: PathBuf) -> Restored {
    let new = Settings::new(dir);
    let mut restored = Restored { entries: Vec::new(), settings: new.clone(), next: 1, strange: Vec::new() };
    for (key, value) in kept {
        let id = key.strip_prefix("content/").and_then(|id| id.parse().ok());
        let understood = match (key.as_str(), id) {
            (SETTINGS_KEY, _) => {
                value.as_object().and_then(|set| new.with(set).ok()).map(|set| restored.settings = set).is_some()
            }
            (NEXT_KEY, _) => value.as_u64().map(|next| restored.next = restored.next.max(next)).is_some(),
            (_, Some(id)) => match Entry::from_json(id, value) {
                Some(entry) => {
                    let totals = kept.get(&Entry::totals_key(id)).and_then(Totals::from_json).unwrap_or_default();
                    restored.next = restored.next.max(id + 1);
                    restored.entries.push((entry, totals));
                    true
                }
                None => false,
            },
            (key, None) => key.starts_with("totals/"),
        };
        if !understood {
            restored.strange.push(key.clone());
        }
    }
    restored.entries.sort_by_key(|(entry, _)| entry.id);
    restored
}

/// What the number of the next content is kept as.
pub(crate) fn next_json(next: u64) -> Value {
    next.into()
}
