//! What is kept of one content.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::about::About;
use super::broadcast::Broadcast;
use super::bulk::Bulk;
use super::own::{Own, own_ratio, own_whole};

/// Where a content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A torrent file, which is kept beside the library.
    Torrent,
    /// A magnet link.
    Magnet(String),
    /// A link of PPSPP.
    Link(String),
    /// A file or folder of this machine, of which a torrent is made. `seal` says what its files looked like then; `None` until it is
    /// made.
    Path {
        /// Which.
        path: PathBuf,
        /// See [`crate::engine`].
        seal: Option<String>,
    },
    /// A bulk transfer.
    Bulk(Box<Bulk>),
    /// A link of a live stream, which is watched.
    Live(String),
    /// A live stream whose source is here.
    Broadcast(Box<Broadcast>),
}

/// Which protocol carries a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Torrent,
    Ppspp,
    Bulk,
    /// A live stream of PPSPP, watched or broadcast.
    Live,
}

impl Kind {
    /// All there are.
    pub(crate) const ALL: [Self; 4] = [Self::Torrent, Self::Ppspp, Self::Bulk, Self::Live];

    /// As the API has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Torrent => "torrent",
            Self::Ppspp => "ppspp",
            Self::Bulk => "bulk",
            Self::Live => "live",
        }
    }
}

/// What is to be done with a content that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Going {
    /// Its files stay.
    Keep,
    /// Its files go.
    Delete,
}

/// What is kept of one content.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// Its number, which no other content had or will have.
    pub id: u64,
    /// Where it comes from.
    pub origin: Origin,
    /// The names that peers know it by, in hex: v1 first; empty until its torrent is made.
    pub hashes: Vec<String>,
    /// What its source calls it.
    pub name: String,
    /// What its user calls it instead.
    pub title: Option<String>,
    /// The folder below which its files are.
    pub dir: PathBuf,
    /// The folder that its files go to once it is complete; `None`: they are there.
    pub final_dir: Option<PathBuf>,
    /// The folder that its files are being moved to.
    pub moving_to: Option<PathBuf>,
    /// It is being removed.
    pub going: Option<Going>,
    /// Its category.
    pub category: Option<String>,
    /// Its tags.
    pub tags: BTreeSet<String>,
    /// It waits until somebody has it go on.
    pub paused: bool,
    /// Why it was paused, where nobody asked for it.
    pub paused_because: Option<String>,
    /// It goes on whoever else waits in the queue.
    pub forced: bool,
    /// Pieces are fetched in order.
    pub sequential: bool,
    /// The first and the last piece of each file go before the others.
    pub edges_first: bool,
    /// Peers are told of its pieces one by one, until the others have a whole copy among them (BEP 16).
    pub super_seed: bool,
    /// Bytes per second.
    pub limit_down: Option<u64>,
    /// Bytes per second.
    pub limit_up: Option<u64>,
    /// Its limit of uploads, as a multiple of its size.
    pub ratio_max: Own<f64>,
    /// Its limit of time for sharing, in seconds.
    pub seed_seconds_max: Own<u64>,
    /// Its limit of time for sharing with nobody who takes any of it, in seconds.
    pub idle_seconds_max: Own<u64>,
    /// How much its files are wanted, 0 to 7, by their index, where that is not as usual.
    pub priorities: BTreeMap<usize, u8>,
    /// Trackers beside its own.
    pub trackers: Vec<String>,
    /// HTTP servers that have its files, beside its own.
    pub web_seeds: Vec<String>,
    /// Trackers and HTTP servers of its own that are not used.
    pub without: BTreeSet<String>,
    /// Peers to dial for it.
    pub peers: Vec<String>,
    /// Its place in the queue: the lowest goes first.
    pub rank: i64,
    /// When it was added, in seconds since 1970.
    pub added: u64,
    /// When everything that is wanted was there.
    pub completed: Option<u64>,
    /// Bytes that are wanted, once known.
    pub size: Option<u64>,
    /// Bytes of them that were there when it was last looked.
    pub done: u64,
    /// What its torrent says of itself, once known.
    pub about: Option<Arc<About>>,
}

/// What moved for a content, all runs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes received.
    pub downloaded: u64,
    /// Bytes sent.
    pub uploaded: u64,
    /// Seconds for which it was complete and shared.
    pub seed_seconds: u64,
    /// Seconds for which it was at work.
    pub active_seconds: u64,
}

impl Totals {
    pub(crate) fn to_json(self) -> Value {
        json!([self.downloaded, self.uploaded, self.seed_seconds, self.active_seconds])
    }

    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let at = |at: usize| value.get(at)?.as_u64();
        let seed_seconds = at(2)?;
        // Versions before did not count how long it was at work.
        let active_seconds = at(3).unwrap_or(seed_seconds);
        Some(Self { downloaded: at(0)?, uploaded: at(1)?, seed_seconds, active_seconds })
    }
}

impl Entry {
    /// A content that is new.
    pub(crate) fn new(id: u64, origin: Origin, name: String, dir: PathBuf) -> Self {
        Self {
            id,
            origin,
            hashes: Vec::new(),
            name,
            title: None,
            dir,
            final_dir: None,
            moving_to: None,
            going: None,
            category: None,
            tags: BTreeSet::new(),
            paused: false,
            paused_because: None,
            forced: false,
            sequential: false,
            edges_first: false,
            super_seed: false,
            limit_down: None,
            limit_up: None,
            ratio_max: Own::Usual,
            seed_seconds_max: Own::Usual,
            idle_seconds_max: Own::Usual,
            priorities: BTreeMap::new(),
            trackers: Vec::new(),
            web_seeds: Vec::new(),
            without: BTreeSet::new(),
            peers: Vec::new(),
            rank: 0,
            added: 0,
            completed: None,
            size: None,
            done: 0,
            about: None,
        }
    }

    /// Which protocol carries it.
    pub(crate) fn kind(&self) -> Kind {
        match self.origin {
            Origin::Torrent | Origin::Magnet(_) | Origin::Path { .. } => Kind::Torrent,
            Origin::Link(_) => Kind::Ppspp,
            Origin::Bulk(_) => Kind::Bulk,
            Origin::Live(_) | Origin::Broadcast(_) => Kind::Live,
        }
    }

    /// What it is called.
    pub(crate) fn shown_name(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.name)
    }

    /// The key under which it is kept.
    pub(crate) fn key(id: u64) -> String {
        format!("content/{id}")
    }

    /// The key under which its totals are kept.
    pub(crate) fn totals_key(id: u64) -> String {
        format!("totals/{id}")
    }

    /// Everything wanted is there.
    pub(crate) fn is_complete(&self) -> bool {
        self.completed.is_some()
    }

    /// Its files are the user's, and are only read.
    pub(crate) fn is_only_shared(&self) -> bool {
        matches!(self.origin, Origin::Path { .. }) || self.bulk().is_some_and(|bulk| bulk.send.is_some())
    }

    /// Its files stay when it goes: they are the user's, or came to some that were there.
    pub(crate) fn keeps_files(&self) -> bool {
        self.is_only_shared() || self.bulk().is_some()
    }

    /// It is a live stream: it has no files, and no end that is known.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.origin, Origin::Live(_) | Origin::Broadcast(_))
    }

    /// Programs for torrents know of nothing like it.
    pub(crate) fn is_apart(&self) -> bool {
        matches!(self.origin, Origin::Bulk(_) | Origin::Live(_) | Origin::Broadcast(_))
    }

    /// What is kept of a bulk transfer, where it is one.
    pub(crate) fn bulk(&self) -> Option<&Bulk> {
        match &self.origin {
            Origin::Bulk(bulk) => Some(bulk),
            _ => None,
        }
    }

    /// What is kept of a live stream whose source is here, where it is one.
    pub(crate) fn broadcast(&self) -> Option<&Broadcast> {
        match &self.origin {
            Origin::Broadcast(broadcast) => Some(broadcast),
            _ => None,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let origin = match &self.origin {
            Origin::Torrent => json!({ "torrent": true }),
            Origin::Magnet(link) => json!({ "magnet": link }),
            Origin::Link(link) => json!({ "link": link }),
            Origin::Path { path, seal } => json!({ "path": path_json(path), "seal": seal }),
            Origin::Bulk(bulk) => json!({ "bulk": bulk.to_json() }),
            Origin::Live(link) => json!({ "live": link }),
            Origin::Broadcast(broadcast) => json!({ "broadcast": broadcast.to_json() }),
        };
        let going = self.going.map(|going| if going == Going::Delete { "delete" } else { "keep" });
        let priorities: Map<String, Value> =
            self.priorities.iter().map(|(file, level)| (file.to_string(), (*level).into())).collect();
        json!({
            "origin": origin,
            "hashes": self.hashes,
            "name": self.name,
            "title": self.title,
            "dir": path_json(&self.dir),
            "final_dir": self.final_dir.as_deref().map(path_json),
            "moving_to": self.moving_to.as_deref().map(path_json),
            "going": going,
            "category": self.category,
            "tags": self.tags,
            "paused": self.paused,
            "paused_because": self.paused_because,
            "forced": self.forced,
            "sequential": self.sequential,
            "edges_first": self.edges_first,
            "super_seed": self.super_seed,
            "limit_down": self.limit_down,
            "limit_up": self.limit_up,
            "ratio_max": self.ratio_max.to_json(),
            "seed_seconds_max": self.seed_seconds_max.to_json(),
            "idle_seconds_max": self.idle_seconds_max.to_json(),
            "priorities": priorities,
            "trackers": self.trackers,
            "web_seeds": self.web_seeds,
            "without": self.without,
            "peers": self.peers,
            "rank": self.rank,
            "added": self.added,
            "completed": self.completed,
            "size": self.size,
            "done": self.done,
            "about": self.about.as_ref().map(|about| about.to_json()),
        })
    }

    /// `None` where it was not written by us.
    pub(crate) fn from_json(id: u64, value: &Value) -> Option<Self> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let texts = |key: &str| {
            let texts = value[key].as_array()?.iter().map(|text| text.as_str().map(str::to_owned));
            texts.collect::<Option<Vec<String>>>()
        };
        // What earlier versions did not keep is as it was with them.
        let later = |key: &str| if value[key].is_null() { Some(Vec::new()) } else { texts(key) };
        let origin = &value["origin"];
        let origin = if let Some(link) = origin["magnet"].as_str() {
            Origin::Magnet(link.to_owned())
        } else if let Some(link) = origin["link"].as_str() {
            Origin::Link(link.to_owned())
        } else if let Some(link) = origin["live"].as_str() {
            Origin::Live(link.to_owned())
        } else if !origin["broadcast"].is_null() {
            Origin::Broadcast(Box::new(Broadcast::from_json(&origin["broadcast"])?))
        } else if !origin["bulk"].is_null() {
            Origin::Bulk(Box::new(Bulk::from_json(&origin["bulk"])?))
        } else if !origin["path"].is_null() {
            Origin::Path { path: path_from(&origin["path"])?, seal: origin["seal"].as_str().map(str::to_owned) }
        } else {
            Origin::Torrent
        };
        let priorities = value["priorities"].as_object()?.iter().map(|(file, level)| {
            let level = u8::try_from(level.as_u64()?).ok()?;
            Some((file.parse().ok()?, level))
        });
        Some(Self {
            hashes: texts("hashes")?,
            final_dir: path_from(&value["final_dir"]),
            moving_to: path_from(&value["moving_to"]),
            going: value["going"].as_str().map(|going| if going == "delete" { Going::Delete } else { Going::Keep }),
            category: text("category"),
            tags: texts("tags")?.into_iter().collect(),
            paused: value["paused"].as_bool()?,
            paused_because: text("paused_because"),
            title: text("title"),
            forced: value["forced"].as_bool().unwrap_or(false),
            sequential: value["sequential"].as_bool()?,
            edges_first: value["edges_first"].as_bool().unwrap_or(false),
            super_seed: value["super_seed"].as_bool().unwrap_or(false),
            limit_down: value["limit_down"].as_u64(),
            limit_up: value["limit_up"].as_u64(),
            ratio_max: own_ratio("ratio_max", &value["ratio_max"]).ok()?,
            seed_seconds_max: own_whole("seed_seconds_max", &value["seed_seconds_max"]).ok()?,
            idle_seconds_max: own_whole("idle_seconds_max", &value["idle_seconds_max"]).ok()?,
            priorities: priorities.collect::<Option<_>>()?,
            trackers: texts("trackers")?,
            web_seeds: later("web_seeds")?,
            without: later("without")?.into_iter().collect(),
            peers: texts("peers")?,
            rank: value["rank"].as_i64()?,
            added: value["added"].as_u64()?,
            completed: value["completed"].as_u64(),
            size: value["size"].as_u64(),
            done: value["done"].as_u64()?,
            about: About::from_json(&value["about"]).map(Arc::new),
            ..Self::new(id, origin, text("name")?, path_from(&value["dir"])?)
        })
    }
}

/// A path as JSON: a text where it is one, else its bytes.
pub(super) fn path_json(path: &std::path::Path) -> Value {
    use std::os::unix::ffi::OsStrExt;
    match path.to_str() {
        Some(text) => text.into(),
        None => Value::from(path.as_os_str().as_bytes()),
    }
}

pub(super) fn path_from(value: &Value) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    if let Some(text) = value.as_str() {
        return Some(text.into());
    }
    let bytes = value.as_array()?.iter().map(|byte| u8::try_from(byte.as_u64()?).ok());
    Some(std::ffi::OsString::from_vec(bytes.collect::<Option<_>>()?).into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::super::bulk::Partner;
    use super::*;

    #[test]
    fn entries_are_read_back_as_they_were() {
        let odd = PathBuf::from(std::ffi::OsString::from_vec(b"/a/\xff\n".to_vec()));
        let origins = [
            Origin::Torrent,
            Origin::Magnet("magnet:?xt=urn:btih:aa".into()),
            Origin::Link("ppspp:aa".into()),
            Origin::Live("ppspp:bb".into()),
            Origin::Broadcast(Box::new(Broadcast {
                key: vec![0, 255],
                input: Some(odd.clone()),
                rate: Some(5),
                copies: 2,
                secure: true,
                allowed: None,
                runs: 4,
                ports: (vec![1], None),
            })),
            Origin::Path { path: odd.clone(), seal: None },
            Origin::Path { path: "/b".into(), seal: Some("s".into()) },
            Origin::Bulk(Box::new(Bulk {
                send: Some(odd.clone()),
                partner: Partner::Ticket("bulk1-a".into()),
                overwrite: false,
                ports: (1, 0),
            })),
        ];
        for origin in origins {
            let plain = Entry::new(7, origin.clone(), "n\u{e4}me".into(), odd.clone());
            assert_eq!(Entry::from_json(7, &plain.to_json()), Some(plain.clone()));
            let full = Entry {
                hashes: vec!["aa".into(), "bb".into()],
                final_dir: Some("/d".into()),
                moving_to: Some("/c".into()),
                going: Some(Going::Delete),
                category: Some("films".into()),
                tags: ["x".to_owned(), "y".to_owned()].into(),
                paused: true,
                paused_because: Some("ratio".into()),
                title: Some("t".into()),
                forced: true,
                sequential: true,
                edges_first: true,
                super_seed: true,
                limit_down: Some(1),
                limit_up: Some(2),
                ratio_max: Own::At(1.5),
                seed_seconds_max: Own::None,
                idle_seconds_max: Own::At(3),
                priorities: [(0, 0), (9, 7)].into(),
                trackers: vec!["http://t".into()],
                web_seeds: vec!["http://w".into()],
                without: ["udp://u".to_owned()].into(),
                peers: vec!["127.0.0.1:1".into()],
                rank: -4,
                added: 5,
                completed: Some(6),
                size: Some(7),
                done: 8,
                about: Some(Arc::new(About {
                    trackers: vec![vec!["http://t".into(), "udp://u".into()], vec!["http://v".into()]],
                    created: Some(9),
                    is_folder: true,
                    ..About::default()
                })),
                ..plain.clone()
            };
            assert_eq!(Entry::from_json(7, &full.to_json()), Some(full));
            // As the version before kept it.
            let mut old = plain.to_json();
            for later in [
                "title",
                "final_dir",
                "forced",
                "edges_first",
                "super_seed",
                "idle_seconds_max",
                "web_seeds",
                "without",
                "about",
            ] {
                old.as_object_mut().unwrap().remove(later);
            }
            assert_eq!(Entry::from_json(7, &old), Some(plain));
        }
        assert_eq!(Entry::from_json(7, &json!({})), None);
        let totals = Totals { downloaded: 1, uploaded: u64::MAX, seed_seconds: 3, active_seconds: 4 };
        assert_eq!(Totals::from_json(&totals.to_json()), Some(totals));
    }
}
