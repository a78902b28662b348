//! What a user may set while the daemon runs. Kept with the library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::queue::Places;
use super::schedule::Schedule;

/// The key under which they are kept.
pub(crate) const KEY: &str = "settings";
/// Downloads at once: each takes memory for its pieces, and more do not make all of them faster.
pub(crate) const DOWNLOADS_MAX: u32 = 8;
/// Free bytes below which no more is fetched.
const FREE_BYTES_MIN: u64 = 512 << 20;
/// Categories.
pub(crate) const CATEGORIES_MAX: usize = 1000;
/// Folders that are watched: each is looked at every few seconds.
pub(crate) const WATCHED_MAX: usize = 20;
/// Tags that are known.
pub(crate) const TAGS_MAX: usize = 1000;
/// Bytes in the name of a category or tag.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// What becomes of a content that was shared enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enough {
    /// It is paused.
    Pause,
    /// It is removed, and its files stay.
    Remove,
    /// It is removed with its files.
    Delete,
}

impl Enough {
    const ALL: [(Self, &str); 3] = [(Self::Pause, "pause"), (Self::Remove, "remove"), (Self::Delete, "delete")];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(enough, _)| *enough == self).map_or("", |(_, name)| name)
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(enough, _)| *enough)
    }
}

/// What a user may set while the daemon runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Bytes per second, all contents together.
    pub limit_down: Option<u64>,
    /// Bytes per second, all contents together.
    pub limit_up: Option<u64>,
    /// The same while `slow` holds.
    pub slow_limit_down: Option<u64>,
    /// The same while `slow` holds.
    pub slow_limit_up: Option<u64>,
    /// Whether the slow limits hold instead of the others.
    pub slow: bool,
    /// When that begins and ends by itself.
    pub slow_schedule: Option<Schedule>,
    /// Downloads at once; `None`: all.
    pub downloads_max: Option<u32>,
    /// Complete contents that are shared at once; `None`: all.
    pub seeds_max: Option<u32>,
    /// Contents at work at once, complete or not; `None`: all.
    pub active_max: Option<u32>,
    /// A complete content that was uploaded so often was shared enough.
    pub ratio_max: Option<f64>,
    /// The same of one that was shared for so many seconds.
    pub seed_seconds_max: Option<u64>,
    /// The same of one that nobody took any of for so many seconds.
    pub idle_seconds_max: Option<u64>,
    /// What becomes of such a content.
    pub enough: Enough,
    /// What is added waits, where nobody says otherwise.
    pub add_paused: bool,
    /// Downloads wait where fewer bytes are free.
    pub free_bytes_min: u64,
    /// The folder of contents that are added without one.
    pub dir: PathBuf,
    /// Where contents are until they are complete; `None`: where they stay.
    pub incomplete_dir: Option<PathBuf>,
    /// Folders in which torrent files and links are looked for, and where the contents of each go.
    pub watched: BTreeMap<PathBuf, Option<PathBuf>>,
    /// Categories, and the folder of each.
    pub categories: BTreeMap<String, Option<PathBuf>>,
    /// Tags that are known, whether a content has them or not.
    pub tags: BTreeSet<String>,
}

/// Why a setting is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Which.
    pub field: &'static str,
    /// What it has to be.
    pub must: &'static str,
}

impl Settings {
    /// Those of a new library.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            limit_down: None,
            limit_up: None,
            slow_limit_down: None,
            slow_limit_up: None,
            slow: false,
            slow_schedule: None,
            downloads_max: Some(DOWNLOADS_MAX),
            seeds_max: None,
            active_max: None,
            ratio_max: None,
            seed_seconds_max: None,
            idle_seconds_max: None,
            enough: Enough::Pause,
            add_paused: false,
            free_bytes_min: FREE_BYTES_MIN,
            dir,
            incomplete_dir: None,
            watched: BTreeMap::new(),
            categories: BTreeMap::new(),
            tags: BTreeSet::new(),
        }
    }

    /// Bytes per second that all contents together may receive and send now.
    pub(crate) fn limits(&self) -> (Option<u64>, Option<u64>) {
        match self.slow {
            true => (self.slow_limit_down, self.slow_limit_up),
            false => (self.limit_down, self.limit_up),
        }
    }

    /// These, and where they say nothing of limits, those of the configuration.
    pub(crate) fn over(&self, (down, up): (Option<u64>, Option<u64>)) -> Self {
        Self { limit_down: self.limit_down.or(down), limit_up: self.limit_up.or(up), ..self.clone() }
    }

    /// How many go on at once.
    pub(crate) fn places(&self) -> Places {
        Places { downloads: self.downloads_max, seeds: self.seeds_max, all: self.active_max }
    }

    pub(crate) fn to_json(&self) -> Value {
        let folders = |named: &mut dyn Iterator<Item = (String, &Option<PathBuf>)>| -> Map<String, Value> {
            named.map(|(name, dir)| (name, json!(dir.as_deref().map(|dir| dir.to_string_lossy())))).collect()
        };
        json!({
            "limit_down": self.limit_down,
            "limit_up": self.limit_up,
            "slow_limit_down": self.slow_limit_down,
            "slow_limit_up": self.slow_limit_up,
            "slow": self.slow,
            "slow_schedule": self.slow_schedule.as_ref().map(Schedule::to_json),
            "downloads_max": self.downloads_max,
            "seeds_max": self.seeds_max,
            "active_max": self.active_max,
            "ratio_max": self.ratio_max,
            "seed_seconds_max": self.seed_seconds_max,
            "idle_seconds_max": self.idle_seconds_max,
            "enough": self.enough.name(),
            "add_paused": self.add_paused,
            "free_bytes_min": self.free_bytes_min,
            "dir": self.dir.to_string_lossy(),
            "incomplete_dir": self.incomplete_dir.as_deref().map(|dir| dir.to_string_lossy()),
            "watched": folders(&mut self.watched.iter().map(|(folder, dir)| (folder.to_string_lossy().into_owned(), dir))),
            "categories": folders(&mut self.categories.iter().map(|(name, dir)| (name.clone(), dir))),
            "tags": self.tags,
        })
    }

    /// These with what `changes` names made otherwise; `null` takes a limit away. Folders are looked at by whoever calls this.
    pub(crate) fn with(&self, changes: &Map<String, Value>) -> Result<Self, Refused> {
        let mut new = self.clone();
        for (name, value) in changes {
            match name.as_str() {
                "limit_down" => new.limit_down = whole("limit_down", value)?,
                "limit_up" => new.limit_up = whole("limit_up", value)?,
                "slow_limit_down" => new.slow_limit_down = whole("slow_limit_down", value)?,
                "slow_limit_up" => new.slow_limit_up = whole("slow_limit_up", value)?,
                "slow" => new.slow = flag("slow", value)?,
                "slow_schedule" => new.slow_schedule = Schedule::from_json(value)?,
                "downloads_max" => new.downloads_max = count("downloads_max", value)?,
                "seeds_max" => new.seeds_max = count("seeds_max", value)?,
                "active_max" => new.active_max = count("active_max", value)?,
                "ratio_max" => new.ratio_max = ratio("ratio_max", value)?,
                "seed_seconds_max" => new.seed_seconds_max = whole("seed_seconds_max", value)?,
                "idle_seconds_max" => new.idle_seconds_max = whole("idle_seconds_max", value)?,
                "enough" => {
                    let known = value.as_str().and_then(Enough::from_name);
                    new.enough = known.ok_or(Refused { field: "enough", must: "pause, remove or delete" })?;
                }
                "add_paused" => new.add_paused = flag("add_paused", value)?,
                "free_bytes_min" => {
                    let must = "a whole number of bytes";
                    new.free_bytes_min = value.as_u64().ok_or(Refused { field: "free_bytes_min", must })?;
                }
                "dir" => {
                    let dir = value.as_str().ok_or(Refused { field: "dir", must: "the path of a folder" })?;
                    new.dir = dir.into();
                }
                "incomplete_dir" => {
                    let must = "the path of a folder, or null";
                    new.incomplete_dir = match value {
                        Value::Null => None,
                        value => Some(value.as_str().ok_or(Refused { field: "incomplete_dir", must })?.into()),
                    };
                }
                "watched" => new.watched = watched(value)?,
                "categories" => new.categories = categories(value)?,
                "tags" => new.tags = tags(value)?,
                _ => return Err(Refused { field: "settings", must: "named as GET /api/v1/settings shows them" }),
            }
        }
        Ok(new)
    }
}

/// A positive whole number, or none.
pub(crate) fn whole(field: &'static str, value: &Value) -> Result<Option<u64>, Refused> {
    match value {
        Value::Null => Ok(None),
        value => match value.as_u64().filter(|number| *number > 0) {
            Some(number) => Ok(Some(number)),
            None => Err(Refused { field, must: "a whole number above 0, or null for no limit" }),
        },
    }
}

fn flag(field: &'static str, value: &Value) -> Result<bool, Refused> {
    value.as_bool().ok_or(Refused { field, must: "true or false" })
}

fn count(field: &'static str, value: &Value) -> Result<Option<u32>, Refused> {
    let must = "a whole number above 0 and below 2^32, or null for no limit";
    whole(field, value)?.map(|number| u32::try_from(number).map_err(|_| Refused { field, must })).transpose()
}

/// A ratio, or none.
fn ratio(field: &'static str, value: &Value) -> Result<Option<f64>, Refused> {
    match value {
        Value::Null => Ok(None),
        value => match value.as_f64().filter(|ratio| *ratio > 0.0 && ratio.is_finite()) {
            Some(ratio) => Ok(Some(ratio)),
            None => Err(Refused { field, must: "a number above 0, or null for no limit" }),
        },
    }
}

/// The name of a category or tag: what can be read, in a line, and without the commas that separate names in lists.
pub(crate) fn is_name(name: &str) -> bool {
    let is_plain = |c: char| !c.is_control() && c != ',';
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.trim() == name && name.chars().all(is_plain)
}

fn categories(value: &Value) -> Result<BTreeMap<String, Option<PathBuf>>, Refused> {
    const MUST: &str = "an object of at most 1000 names, each with the path of a folder or null";
    let refused = || Refused { field: "categories", must: MUST };
    let named = value.as_object().filter(|named| named.len() <= CATEGORIES_MAX).ok_or_else(refused)?;
    let one = |(name, dir): (&String, &Value)| {
        let dir = match dir {
            Value::Null => None,
            dir => Some(PathBuf::from(dir.as_str()?)),
        };
        is_name(name).then(|| (name.clone(), dir))
    };
    named.iter().map(one).collect::<Option<_>>().ok_or_else(refused)
}

fn watched(value: &Value) -> Result<BTreeMap<PathBuf, Option<PathBuf>>, Refused> {
    const MUST: &str = "an object of at most 20 paths of folders, each with the path of another folder or null";
    let refused = || Refused { field: "watched", must: MUST };
    let named = value.as_object().filter(|named| named.len() <= WATCHED_MAX).ok_or_else(refused)?;
    let one = |(folder, dir): (&String, &Value)| match dir {
        Value::Null => Some((PathBuf::from(folder), None)),
        dir => Some((PathBuf::from(folder), Some(PathBuf::from(dir.as_str()?)))),
    };
    named.iter().map(one).collect::<Option<_>>().ok_or_else(refused)
}

fn tags(value: &Value) -> Result<BTreeSet<String>, Refused> {
    let refused = || Refused { field: "tags", must: "a list of at most 1000 names" };
    let named = value.as_array().filter(|named| named.len() <= TAGS_MAX).ok_or_else(refused)?;
    let one = |name: &Value| name.as_str().filter(|name| is_name(name)).map(str::to_owned);
    named.iter().map(one).collect::<Option<_>>().ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_kept_and_nonsense_is_named() {
        let new = Settings::new("/srv".into());
        assert_eq!(new.with(new.to_json().as_object().unwrap()), Ok(new.clone()));
        let set = |text: &str| new.with(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap());
        let changed = set(
            r#"{"limit_up": 5, "ratio_max": 1.5, "downloads_max": null, "categories": {"films": "/srv/f", "x": null}, "tags": ["a"], "enough": "remove", "slow": true, "incomplete_dir": "/srv/i", "watched": {"/srv/w": null, "/srv/v": "/srv/f"}, "slow_schedule": {"from": "08:00", "to": "22:30", "days": ["mon"]}}"#,
        )
        .unwrap();
        assert_eq!((changed.limit_up, changed.ratio_max, changed.downloads_max), (Some(5), Some(1.5), None));
        assert_eq!(changed.with(changed.to_json().as_object().unwrap()), Ok(changed.clone()));
        for (text, field) in [
            (r#"{"limit_up": 0}"#, "limit_up"),
            (r#"{"limit_down": -1}"#, "limit_down"),
            (r#"{"seeds_max": 4294967296}"#, "seeds_max"),
            (r#"{"ratio_max": 0}"#, "ratio_max"),
            (r#"{"free_bytes_min": null}"#, "free_bytes_min"),
            (r#"{"dir": 5}"#, "dir"),
            (r#"{"categories": {"a,b": null}}"#, "categories"),
            (r#"{"categories": {" a": null}}"#, "categories"),
            (r#"{"tags": ["a", "b,c"]}"#, "tags"),
            (r#"{"slow": 1}"#, "slow"),
            (r#"{"slow_schedule": {"from": "8"}}"#, "slow_schedule"),
            (r#"{"incomplete_dir": 1}"#, "incomplete_dir"),
            (r#"{"watched": ["/a"]}"#, "watched"),
            (r#"{"enough": "burn"}"#, "enough"),
            (r#"{"speed": 1}"#, "settings"),
        ] {
            assert_eq!(set(text).unwrap_err().field, field, "{text}");
        }
    }
}
