//! One torrent as lists show it.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use anabranch_content::magnet::Magnet;
use anabranch_swarm::http::names::url_encoded;

use super::field::{Field, Named};
use crate::api::Api;
use crate::engine::{Seen, is_at};
use crate::library::{Entry, Origin, Own};

/// Seconds that stand for a time that is not known: what qBittorrent says.
const ETA_UNKNOWN: i64 = 8_640_000;
/// What is not known, or not so.
const NONE: i64 = -1;
/// A limit that is the one of the settings.
const USUAL: i64 = -2;
/// Seconds of a minute, and of a month as qBittorrent counts popularity.
const MINUTE: u64 = 60;
const MONTH: f64 = 2_629_800.0;

/// Places in the queue of those that are not complete; empty where there is no queue.
pub(super) type Places = HashMap<u64, u32>;

/// What of the settings and of all others a torrent's row depends on.
pub(super) struct Around {
    ratio_max: Option<f64>,
    seed_seconds_max: Option<u64>,
    idle_seconds_max: Option<u64>,
    places: Rc<Places>,
}

impl Around {
    pub(super) fn new(api: &Api) -> Self {
        let mut order: Vec<(i64, u64)> = Vec::new();
        if api.engine.with_settings(is_queueing) {
            api.engine.for_each(|seen| order.extend(waits(seen.entry())));
            order.sort_unstable();
        }
        Self::with(api, Rc::new(places(order)))
    }

    /// The same where the places are known.
    pub(super) fn with(api: &Api, places: Rc<Places>) -> Self {
        api.engine.with_settings(|settings| Self {
            ratio_max: settings.ratio_max,
            seed_seconds_max: settings.seed_seconds_max,
            idle_seconds_max: settings.idle_seconds_max,
            places,
        })
    }

    /// The place of a content in the queue; 0 where it waits for none.
    fn place(&self, id: u64) -> u32 {
        self.places.get(&id).copied().unwrap_or(0)
    }
}

/// Where a content stands in the queue, if it is not complete.
pub(super) fn waits(entry: &Entry) -> Option<(i64, u64)> {
    (!entry.is_complete()).then_some((entry.rank, entry.id))
}

/// The places of contents that stand in this order.
pub(super) fn places(order: impl IntoIterator<Item = (i64, u64)>) -> Places {
    order.into_iter().zip(1..).map(|((_, id), place)| (id, place)).collect()
}

/// Whether there is a queue.
pub(super) fn is_queueing(settings: &crate::library::Settings) -> bool {
    settings.downloads_max.is_some() || settings.seeds_max.is_some() || settings.active_max.is_some()
}

/// The names of a content: its hashes of v1 and of v2, empty where it has none.
pub(super) fn hashes(entry: &Entry) -> (&str, &str) {
    let long = entry.hashes.iter().find(|hash| hash.len() > 40).map_or("", String::as_str);
    // Of a v2 torrent, the short name that peers use stands behind the long one.
    let first = entry.hashes.first().map_or("", String::as_str);
    (if first.len() == 40 { first } else { "" }, if long.len() == 64 { long } else { "" })
}

/// The trackers that a content asks.
pub(super) fn trackers(entry: &Entry) -> Vec<&str> {
    let own = entry.about.iter().flat_map(|about| about.trackers.iter().flatten());
    let own = own.filter(|url| !entry.without.contains(*url));
    own.chain(&entry.trackers).map(String::as_str).collect()
}

/// The state of a content, in qBittorrent's words.
pub(super) fn state(seen: Seen<'_>) -> &'static str {
    let (entry, traffic) = (seen.entry(), seen.traffic());
    let (is_complete, is_forced) = (entry.is_complete(), entry.forced);
    match seen.state() {
        "error" | "waiting" => "error",
        "starting" => "checkingResumeData",
        "hashing" => "checkingUP",
        "checking" if is_complete => "checkingUP",
        "checking" => "checkingDL",
        "metadata" if is_forced => "forcedMetaDL",
        "metadata" => "metaDL",
        "downloading" if is_forced => "forcedDL",
        "downloading" if traffic.down_rate > 0 => "downloading",
        "downloading" | "no_space" => "stalledDL",
        "seeding" if is_forced => "forcedUP",
        "seeding" if traffic.up_rate > 0 => "uploading",
        "seeding" => "stalledUP",
        "paused" => "stoppedDL",
        "complete" => "stoppedUP",
        "queued" if is_complete => "queuedUP",
        "queued" => "queuedDL",
        "moving" => "moving",
        _ => "unknown",
    }
}

/// A limit of a content as qBittorrent writes it; seconds as minutes, begun ones counted.
fn own_minutes(own: Own<u64>) -> i64 {
    match own {
        Own::Usual => USUAL,
        Own::None => NONE,
        Own::At(seconds) => minutes(seconds),
    }
}

fn minutes(seconds: u64) -> i64 {
    i64::try_from(seconds.div_ceil(MINUTE)).unwrap_or(i64::MAX)
}

fn own_ratio(own: Own<f64>) -> f64 {
    match own {
        Own::Usual => USUAL as f64,
        Own::None => NONE as f64,
        Own::At(ratio) => ratio,
    }
}

/// A rate: 0 where there is no limit.
pub(super) fn limit(limit: Option<u64>) -> i64 {
    limit.map_or(0, |limit| i64::try_from(limit).unwrap_or(i64::MAX))
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A link of a content: its own, or one that is made.
fn magnet(entry: &Entry, trackers: &[&str]) -> String {
    if let Origin::Magnet(link) | Origin::Link(link) = &entry.origin {
        return link.clone();
    }
    let (v1, v2) = hashes(entry);
    if v1.is_empty() && v2.is_empty() {
        return String::new();
    }
    let mut link = String::from("magnet:?");
    let mut put = |before: &str, text: &str| {
        link.push_str(before);
        link.push_str(text);
    };
    if !v1.is_empty() {
        put("xt=urn:btih:", v1);
    }
    if !v2.is_empty() {
        put(if v1.is_empty() { "xt=urn:btmh:1220" } else { "&xt=urn:btmh:1220" }, v2);
    }
    put("&dn=", &url_encoded(entry.shown_name()));
    for url in trackers {
        put("&tr=", &url_encoded(url));
    }
    link
}

/// Trackers of a link, where nothing else is known yet.
fn trackers_of_link(entry: &Entry) -> Vec<String> {
    match (&entry.origin, &entry.about) {
        (Origin::Magnet(link), None) => link.parse().map(|magnet: Magnet| magnet.trackers).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The fields of a torrent, without the hash that it goes by.
pub(super) fn fields<'a>(seen: Seen<'a>, around: &Around) -> Vec<Named<'a>> {
    let (entry, traffic, totals) = (seen.entry(), seen.traffic(), seen.totals());
    let of_link = trackers_of_link(entry);
    let trackers = trackers(entry);
    let trackers_count = trackers.len() + of_link.len();
    let link = magnet(entry, &trackers);
    let tracker =
        seen.tracker().map_or("", |told| trackers.iter().find(|url| is_at(url, told)).copied().unwrap_or(told));
    let (v1, v2) = hashes(entry);
    let about = entry.about.as_deref();
    let size = entry.size;
    let left = size.map_or(0, |size| size.saturating_sub(entry.done));
    let progress = match size {
        Some(0) => 1.0,
        Some(size) => entry.done as f64 / size as f64,
        None => 0.0,
    };
    let ratio = seen.ratio();
    let popularity = if totals.active_seconds > 0 { ratio / (totals.active_seconds as f64 / MONTH) } else { 0.0 };
    let eta = if left > 0 && traffic.down_rate > 0 {
        i64::try_from(left.div_ceil(traffic.down_rate)).unwrap_or(ETA_UNKNOWN).min(ETA_UNKNOWN)
    } else {
        ETA_UNKNOWN
    };
    let root = about.map_or(entry.name.as_str(), |about| about.root.as_str());
    let root_path =
        if about.is_some_and(|about| about.is_folder) { path(&entry.dir.join(root)) } else { String::new() };
    let is_known = about.is_some();
    let mut tags: Vec<&str> = entry.tags.iter().map(String::as_str).collect();
    tags.sort_unstable();
    vec![
        ("added_on", entry.added.into()),
        ("amount_left", left.into()),
        ("auto_tmm", false.into()),
        ("availability", Field::Real(NONE as f64)),
        ("category", entry.category.as_deref().unwrap_or_default().into()),
        ("comment", about.map_or("", |about| about.comment.as_str()).into()),
        ("completed", entry.done.into()),
        ("completion_on", entry.completed.map_or(Field::Whole(NONE), Field::from)),
        ("content_path", path(&entry.dir.join(root)).into()),
        ("dl_limit", limit(entry.limit_down).into()),
        ("dlspeed", traffic.down_rate.into()),
        ("download_path", entry.final_dir.as_ref().map_or(String::new(), |_| path(&entry.dir)).into()),
        ("downloaded", totals.downloaded.into()),
        ("downloaded_session", traffic.downloaded.into()),
        ("eta", eta.into()),
        ("f_l_piece_prio", entry.edges_first.into()),
        ("force_start", entry.forced.into()),
        ("has_metadata", is_known.into()),
        ("inactive_seeding_time_limit", own_minutes(entry.idle_seconds_max).into()),
        ("infohash_v1", v1.into()),
        ("infohash_v2", v2.into()),
        ("last_activity", seen.active().into()),
        ("magnet_uri", link.into()),
        ("max_inactive_seeding_time", entry.idle_seconds_max.or(around.idle_seconds_max).map_or(NONE, minutes).into()),
        ("max_ratio", entry.ratio_max.or(around.ratio_max).unwrap_or(NONE as f64).into()),
        ("max_seeding_time", entry.seed_seconds_max.or(around.seed_seconds_max).map_or(NONE, minutes).into()),
        ("name", entry.shown_name().into()),
        ("num_complete", traffic.seeds.into()),
        ("num_incomplete", traffic.peers.saturating_sub(traffic.seeds).into()),
        ("num_leechs", traffic.peers.saturating_sub(traffic.seeds).into()),
        ("num_seeds", traffic.seeds.into()),
        ("popularity", popularity.into()),
        ("priority", around.place(entry.id).into()),
        ("private", about.map_or(Field::Null, |about| about.private.into())),
        ("progress", progress.into()),
        ("ratio", ratio.into()),
        ("ratio_limit", own_ratio(entry.ratio_max).into()),
        ("reannounce", Field::Whole(0)),
        ("root_path", root_path.into()),
        ("save_path", path(entry.final_dir.as_ref().unwrap_or(&entry.dir)).into()),
        ("seeding_time", totals.seed_seconds.into()),
        ("seeding_time_limit", own_minutes(entry.seed_seconds_max).into()),
        ("seen_complete", Field::Whole(NONE)),
        ("seq_dl", entry.sequential.into()),
        ("size", size.unwrap_or(0).into()),
        ("state", state(seen).into()),
        ("super_seeding", entry.super_seed.into()),
        ("tags", tags.join(", ").into()),
        ("time_active", totals.active_seconds.into()),
        ("total_size", about.map(|about| about.size).or(size).map_or(Field::Whole(NONE), Field::from)),
        ("tracker", tracker.into()),
        ("trackers_count", (trackers_count as u64).into()),
        ("up_limit", limit(entry.limit_up).into()),
        ("uploaded", totals.uploaded.into()),
        ("uploaded_session", traffic.uploaded.into()),
        ("upspeed", traffic.up_rate.into()),
    ]
}
