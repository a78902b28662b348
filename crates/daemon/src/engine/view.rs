//! How contents look from outside.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;

use anabranch_paths::Path;
use serde_json::{Map, Value, json};

use super::live::{Job, Phase};
use super::tick::{ratio, totals};
use super::{Content, Engine, Refusal};
use crate::library::{Broadcast, Bulk, Going, Kind, Origin, Turn};

/// States in which a content can be.
pub(crate) const STATES: [&str; 17] = [
    "starting",
    "hashing",
    "metadata",
    "checking",
    "downloading",
    "seeding",
    "sending",
    "watching",
    "streaming",
    "paused",
    "queued",
    "no_space",
    "waiting",
    "moving",
    "removing",
    "error",
    "complete",
];
/// Parts of a content's description that change all the time, and are no news.
const PASSING: [&str; 13] = [
    "done",
    "down_rate",
    "up_rate",
    "downloaded",
    "uploaded",
    "ratio",
    "eta",
    "peers",
    "seeds",
    "seed_seconds",
    "check",
    "wasted",
    "pieces_have",
];

/// Which contents are listed.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    /// Those in this state.
    pub(crate) state: Option<String>,
    /// Those of this category.
    pub(crate) category: Option<String>,
    /// Those with this tag.
    pub(crate) tag: Option<String>,
    /// Those with this in their name, in small letters.
    pub(crate) name: Option<String>,
    /// Those with these numbers.
    pub(crate) among: Option<BTreeSet<u64>>,
}

impl Filter {
    fn admits(&self, content: &Content) -> bool {
        let entry = &content.entry;
        self.among.as_ref().is_none_or(|among| among.contains(&entry.id))
            && self.state.as_deref().is_none_or(|wanted| wanted == state(content))
            && self.category.as_ref().is_none_or(|wanted| entry.category.as_ref() == Some(wanted))
            && self.tag.as_ref().is_none_or(|wanted| entry.tags.contains(wanted))
            && self.name.as_ref().is_none_or(|wanted| entry.shown_name().to_lowercase().contains(wanted))
    }
}

impl Engine {
    /// Contents behind number `after`, at most `limit`; and whether there are more.
    pub(crate) fn list(&self, filter: &Filter, after: u64, limit: usize) -> (Vec<Value>, bool) {
        let state = self.state();
        let mut admitted =
            state.contents.range(after.saturating_add(1)..).filter(|(_, content)| filter.admits(content));
        let shown = admitted.by_ref().take(limit).map(|(_, content)| view(content)).collect();
        (shown, admitted.next().is_some())
    }

    /// Contents by their protocols and states: all there may be.
    pub(crate) fn counts_by_kind(&self) -> std::collections::BTreeMap<(Kind, &'static str), u64> {
        let all = Kind::ALL.into_iter().flat_map(|kind| STATES.iter().map(move |state| ((kind, *state), 0)));
        let mut counts: std::collections::BTreeMap<_, _> = all.collect();
        for content in self.state().contents.values() {
            *counts.entry((content.entry.kind(), state(content))).or_default() += 1;
        }
        counts
    }

    /// Contents by their states.
    pub(crate) fn counts(&self) -> std::collections::BTreeMap<&'static str, u64> {
        let mut counts = std::collections::BTreeMap::new();
        for ((_, state), count) in self.counts_by_kind() {
            *counts.entry(state).or_default() += count;
        }
        counts
    }

    /// One content.
    pub(crate) fn view(&self, id: u64) -> Result<Value, Refusal> {
        let state = self.state();
        state.contents.get(&id).map(view).ok_or_else(|| Refusal::Unknown(id.to_string()))
    }

    /// Tells what is new of a content.
    pub(super) fn announce(&self, id: u64) {
        if !self.feed.is_heard() {
            // Whoever comes looks at everything first.
            self.feed.skip();
            self.with(id, |content| content.live.told = None);
            return;
        }
        let news = self.with(id, |content| {
            let whole = view(content);
            let mut lasting = whole.clone();
            if let Value::Object(fields) = &mut lasting {
                PASSING.iter().for_each(|passing| {
                    fields.remove(*passing);
                });
            }
            let mut hasher = DefaultHasher::new();
            lasting.to_string().hash(&mut hasher);
            let told = hasher.finish();
            (content.live.told.replace(told) != Some(told)).then_some(whole)
        });
        if let Some(whole) = news.flatten() {
            self.feed.tell("content", &whole);
        }
    }
}

/// What a content is at.
pub(super) fn state(content: &Content) -> &'static str {
    let (entry, live) = (&content.entry, &content.live);
    if entry.going.is_some() {
        return "removing";
    }
    if live.failed.is_some() {
        return "error";
    }
    match (live.job, live.phase) {
        (Some(Job::Move), _) => return "moving",
        (Some(Job::Remove), _) => return "removing",
        (Some(Job::Recheck), _) | (_, Phase::Checking(..)) => return "checking",
        (Some(Job::Reopen), _) => return "starting",
        (_, Phase::Hashing) => return "hashing",
        _ => {}
    }
    // What was just asked for is shown before it is done.
    let turn = if entry.paused { Some(Turn::Paused) } else { live.turn.filter(|turn| *turn != Turn::Paused) };
    match (turn, live.phase) {
        (Some(Turn::Paused), _) if entry.is_complete() => "complete",
        (Some(Turn::Paused), _) => "paused",
        (Some(Turn::Queued), _) => "queued",
        (Some(Turn::NoSpace), _) => "no_space",
        (_, Phase::Out | Phase::Loading | Phase::Opening) => "starting",
        (_, Phase::Metadata) => "metadata",
        _ if live.waits.is_some() => "waiting",
        _ if entry.broadcast().is_some() => "streaming",
        _ if entry.is_live() => "watching",
        _ if entry.is_complete() => "seeding",
        _ if entry.bulk().is_some_and(|bulk| bulk.send.is_some()) => "sending",
        _ => "downloading",
    }
}

/// Why it is so, where there is something to say.
fn reason(content: &Content) -> Option<String> {
    let live = &content.live;
    let because = || content.entry.paused_because.clone().filter(|_| content.entry.paused);
    live.failed.clone().or_else(because).or_else(|| live.waits.clone()).or_else(|| match live.turn {
        Some(Turn::NoSpace) => Some("little room is left on the disk: free some, and it goes on".to_owned()),
        Some(Turn::Queued) => Some("others are before it in the queue".to_owned()),
        _ => None,
    })
}

/// The numbers of a content.
pub(super) fn numbers(content: &Content) -> Value {
    let mut fields = Map::new();
    put_numbers(content, &mut fields);
    fields.insert("id".into(), content.entry.id.into());
    fields.insert("state".into(), state(content).into());
    fields.into()
}

fn put_numbers(content: &Content, fields: &mut Map<String, Value>) {
    let progress = content.live.progress.as_ref();
    let stats = progress.map(|progress| &progress.stats);
    let of = |of: fn(&anabranch_swarm::TorrentStats) -> u64| stats.map_or(0, of);
    let (down, up) = (of(|stats| stats.download_rate_bytes), of(|stats| stats.upload_rate_bytes));
    let totals = totals(content);
    let left = content.entry.size.map(|size| size.saturating_sub(content.entry.done));
    // Of what is sent, those who receive it have so much.
    let rate = if content.entry.is_only_shared() { up } else { down };
    let eta = left.filter(|left| *left > 0 && rate > 0).map(|left| left.div_ceil(rate));
    let check = match (content.live.phase, &content.live.hashing) {
        (Phase::Checking(done, total), _) => Some((done, total)),
        (Phase::Hashing, Some(hashing)) => {
            Some((hashing.done.load(Ordering::Relaxed), hashing.total.load(Ordering::Relaxed)))
        }
        _ => None,
    };
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    put("done", content.entry.done.into());
    put("down_rate", down.into());
    put("up_rate", up.into());
    put("downloaded", totals.downloaded.into());
    put("uploaded", totals.uploaded.into());
    put("wasted", of(|stats| stats.wasted_bytes).into());
    put("ratio", ((ratio(content) * 1000.0).round() / 1000.0).into());
    put("eta", json!(eta));
    put("peers", stats.map_or(0, |stats| stats.peers).into());
    put("seeds", stats.map_or(0, |stats| stats.seeds).into());
    put("pieces_have", json!(progress.map(|progress| progress.pieces_have)));
    put("seed_seconds", totals.seed_seconds.into());
    put("check", json!(check.map(|(done, total)| json!({ "done": done, "total": total }))));
}

/// All that the list says of a content.
pub(super) fn view(content: &Content) -> Value {
    let entry = &content.entry;
    let kind = entry.kind();
    let link = match &entry.origin {
        Origin::Magnet(link) | Origin::Link(link) | Origin::Live(link) => Some(link.as_str()),
        Origin::Broadcast(_) => content.live.reach.as_ref().and_then(|reach| reach.link.as_deref()),
        // Who has its ticket may do something with it: it is told to those alone who may, too.
        Origin::Bulk(_) | Origin::Torrent | Origin::Path { .. } => None,
    };
    let magnet = || {
        let hash = |len: usize| entry.hashes.iter().find(|hash| hash.len() == len);
        let v1 = hash(40).filter(|_| kind == Kind::Torrent).map(|hash| format!("xt=urn:btih:{hash}"));
        let v2 = hash(64).filter(|_| kind == Kind::Torrent).map(|hash| format!("xt=urn:btmh:1220{hash}"));
        // The short name of a v2 torrent is no hash of v1.
        let v1 = v1.filter(|_| entry.hashes.first().is_some_and(|first| first.len() == 40));
        let names: Vec<String> = v1.into_iter().chain(v2).collect();
        let name = anabranch_swarm::http::names::url_encoded(entry.shown_name());
        (!names.is_empty()).then(|| format!("magnet:?{}&dn={name}", names.join("&")))
    };
    let mut fields = Map::new();
    put_numbers(content, &mut fields);
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    put("id", entry.id.into());
    put("kind", kind.name().into());
    put("name", entry.shown_name().into());
    put("hashes", json!(entry.hashes));
    put("link", json!(link.map(str::to_owned).or_else(magnet)));
    put("state", state(content).into());
    put("reason", json!(reason(content)));
    put("paused", entry.paused.into());
    put("shared_only", entry.is_only_shared().into());
    put("dir", entry.dir.to_string_lossy().into());
    put("final_dir", json!(entry.final_dir.as_deref().map(|dir| dir.to_string_lossy())));
    put("category", json!(entry.category));
    put("tags", json!(entry.tags));
    put("size", json!(entry.size));
    put("pieces", json!(content.live.progress.as_ref().map(|progress| progress.pieces_total)));
    put("forced", entry.forced.into());
    put("sequential", entry.sequential.into());
    put("edges_first", entry.edges_first.into());
    put("super_seed", entry.super_seed.into());
    put("trackers", json!(entry.trackers));
    put("web_seeds", json!(entry.web_seeds));
    put("without", json!(entry.without));
    put("limit_down", json!(entry.limit_down));
    put("limit_up", json!(entry.limit_up));
    put("ratio_max", entry.ratio_max.to_json());
    put("seed_seconds_max", entry.seed_seconds_max.to_json());
    put("idle_seconds_max", entry.idle_seconds_max.to_json());
    put("rank", entry.rank.into());
    put("added", entry.added.into());
    put("completed", json!(entry.completed));
    put("bulk", json!(entry.bulk().map(Bulk::shown)));
    put("live", json!(entry.broadcast().map(Broadcast::shown)));
    put("removing_data", (entry.going == Some(Going::Delete)).into());
    fields.into()
}

/// What a path is called: over SCION by its id, over plain IP by its two ends.
pub(super) fn path_name(path: &Path) -> String {
    match path.as_scion() {
        Some(_) => format!("{:#}", path.id()),
        None => format!("{}-{}", path.local(), path.remote()),
    }
}
