//! `sync/*`: what changed since the last time.
//!
//! Whoever asks names the answer that it had last, by its `rid`, and gets what changed after that. Nothing is kept of those who ask: each
//! field of each torrent has the number of the answer before which it last changed, so that any number of programs may follow, each
//! from where it is. Who names no answer of this run, or one from too long ago, gets everything. Looked at are those that changed since
//! the last answer, whoever got that: an answer costs what changed, not what there is.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::field::{Marks, Named, write_list, write_object, write_text};
use super::form::Form;
use super::row::{Around, Places, fields, is_queueing, places, trackers, waits};
use super::{Answer, Outcome, names, one, transfer, unknown};
use crate::api::Api;
use crate::engine::Seen;
use crate::library::Settings;

/// What is gone and remembered: whoever was away for longer gets everything.
const GONE_MAX: usize = 10_000;
/// Torrents whose peers were asked for last are remembered.
const PEERS_MAX: usize = 32;
/// Answers of one run are numbered from a multiple of this on, so that those of another are told from them ...
const RUN: u32 = 1 << 20;
/// ... of so many: numbers stay below 2^31, which is all that some clients take.
const RUNS: u32 = (1 << 31) / RUN;
/// How often a page should ask, in milliseconds: what qBittorrent's settings begin with.
const REFRESH_MS: u64 = 1500;

pub(super) async fn answer(api: &Rc<Api>, form: &Form, action: &str) -> Outcome {
    match action {
        "maindata" => main(api, form).await,
        "torrentPeers" => peers(api, form).await,
        _ => Err(unknown()),
    }
}

/// Something that goes by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Torrent,
    Category,
    Tag,
    Tracker,
}

/// What is remembered of all torrents.
pub(crate) struct Main {
    /// The number of the last answer.
    rid: u32,
    /// Answers before this one are forgotten.
    oldest: u32,
    /// The engine's clock at that time.
    clock: u64,
    /// The settings at that time, by their version, and what of them all rows depend on.
    settings: Option<u64>,
    limits: Option<Limits>,
    rows: BTreeMap<u64, Row>,
    /// The same by the last answer before which something of them changed.
    latest: BTreeSet<(u32, u64)>,
    /// Those that are not complete, in the order of the queue, and their places where there is a queue.
    queue: BTreeSet<(i64, u64)>,
    places: Rc<Places>,
    /// Categories and tags that torrents have, and how many have each.
    names: BTreeMap<Name, u32>,
    categories: BTreeMap<String, (String, u32)>,
    tags: BTreeMap<String, u32>,
    trackers: HashMap<String, Tracker>,
    server: Marks,
    gone: VecDeque<(u32, Kind, String)>,
}

#[derive(Default)]
struct Row {
    hash: String,
    marks: Marks,
    trackers: Vec<String>,
    /// Where it stands in the queue.
    waits: Option<(i64, u64)>,
    /// Its category and tags.
    names: Vec<Name>,
}

/// A category or a tag.
type Name = (Kind, String);
/// Limits of sharing, and whether there is a queue.
type Limits = (Option<f64>, Option<u64>, Option<u64>, bool);

#[derive(Default)]
struct Tracker {
    ids: BTreeSet<u64>,
    changed: u32,
}

impl Default for Main {
    fn default() -> Self {
        let first = first();
        Self {
            rid: first,
            oldest: first,
            clock: 0,
            settings: None,
            limits: None,
            names: BTreeMap::new(),
            rows: BTreeMap::new(),
            latest: BTreeSet::new(),
            queue: BTreeSet::new(),
            places: Rc::default(),
            categories: BTreeMap::new(),
            tags: BTreeMap::new(),
            trackers: HashMap::new(),
            server: Marks::default(),
            gone: VecDeque::new(),
        }
    }
}

/// The number before the first answer of this run.
fn first() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // The numbers of the first one would be those of clients that never asked.
    (since % u64::from(RUNS - 1) + 1) as u32 * RUN
}

impl Main {
    /// Whether what changed after an answer is known.
    fn knows(&self, rid: u32) -> bool {
        rid > self.oldest && rid <= self.rid
    }

    fn forget(&mut self, kind: Kind, name: String) {
        if self.gone.len() >= GONE_MAX
            && let Some((rid, ..)) = self.gone.pop_front()
        {
            self.oldest = self.oldest.max(rid);
        }
        self.gone.push_back((self.rid, kind, name));
    }

    /// What of a kind went after an answer, and is not there again.
    fn gone(&self, kind: Kind, since: u32) -> Vec<&str> {
        let of = |(rid, other, _): &&(u32, Kind, String)| *rid > since && *other == kind;
        let names: BTreeSet<&str> = self.gone.iter().filter(of).map(|(_, _, name)| name.as_str()).collect();
        if names.is_empty() {
            return Vec::new();
        }
        let hashes: HashSet<&str> = match kind {
            Kind::Torrent => self.rows.values().map(|row| row.hash.as_str()).collect(),
            _ => HashSet::new(),
        };
        let is_there = |name: &str| match kind {
            Kind::Torrent => hashes.contains(name),
            Kind::Category => self.categories.contains_key(name),
            Kind::Tag => self.tags.contains_key(name),
            Kind::Tracker => self.trackers.contains_key(name),
        };
        names.into_iter().filter(|name| !is_there(name)).collect()
    }

    /// Takes in how all torrents are now, of which those that changed are looked at. Answers what their fields depend on beside.
    fn look(&mut self, api: &Api) -> Around {
        let version = api.engine.settings_version();
        let mut has_names = self.settings.replace(version) != Some(version);
        let limits = api.engine.with_settings(limits);
        let is_other = self.limits.replace(limits) != Some(limits);
        let known = if is_other { None } else { api.engine.changed_since(self.clock) };
        self.clock = api.engine.clock();
        let all = || {
            let mut ids: BTreeSet<u64> = self.rows.keys().copied().collect();
            api.engine.for_each(|seen| _ = ids.insert(seen.entry().id));
            ids
        };
        let mut changed: BTreeSet<u64> = known.map_or_else(all, BTreeSet::from_iter);
        let mut moves_up = is_other;
        for id in &changed {
            let now = api.engine.seen(*id, |seen| (waits(seen.entry()), names_of(seen))).unwrap_or_default();
            let before = self.rows.get_mut(id).map(|row| (row.waits, std::mem::take(&mut row.names)));
            let before = before.unwrap_or_default();
            if now.0 != before.0 {
                moves_up = true;
                if let Some(place) = before.0 {
                    self.queue.remove(&place);
                }
                self.queue.extend(now.0);
            }
            if now.1 != before.1 {
                has_names = true;
                self.count_names(&before.1, &now.1);
            }
        }
        if moves_up {
            let new = if limits.3 { places(self.queue.iter().copied()) } else { Places::new() };
            let before = std::mem::replace(&mut self.places, Rc::new(new));
            let is_moved = |id: &&u64| before.get(*id) != self.places.get(*id);
            changed.extend(before.keys().chain(self.places.keys()).filter(is_moved));
        }
        let around = Around::with(api, Rc::clone(&self.places));
        for id in changed {
            if api.engine.seen(id, |seen| self.renew(seen, &around)).is_none() {
                self.lose(id);
            }
        }
        let unused = self.trackers.extract_if(|_, tracker| tracker.ids.is_empty()).map(|(url, _)| url);
        let unused: Vec<String> = unused.collect();
        unused.into_iter().for_each(|url| self.forget(Kind::Tracker, url));
        if has_names {
            self.look_at_names(api);
        }
        around
    }

    /// Takes in how a torrent is now.
    fn renew(&mut self, seen: Seen<'_>, around: &Around) {
        let (now, id) = (self.rid, seen.entry().id);
        let row = self.rows.entry(id).or_default();
        (row.waits, row.names) = (waits(seen.entry()), names_of(seen));
        let hash = seen.short_hash();
        let mut renamed = None;
        let before = row.marks.latest;
        if row.hash != hash {
            renamed = Some(std::mem::replace(&mut row.hash, hash)).filter(|hash| !hash.is_empty());
            row.marks = Marks::default();
        }
        row.marks.renew(&fields(seen, around), now);
        if row.marks.latest != before {
            self.latest.remove(&(before, id));
            self.latest.insert((row.marks.latest, id));
        }
        let urls = trackers(seen.entry());
        if row.trackers != urls {
            let gone = std::mem::replace(&mut row.trackers, urls.iter().map(|url| (*url).to_owned()).collect());
            leave_trackers(&mut self.trackers, &gone, id, now);
            for url in urls {
                let tracker = self.trackers.entry(url.to_owned()).or_default();
                tracker.ids.insert(id);
                tracker.changed = now;
            }
        }
        renamed.into_iter().for_each(|hash| self.forget(Kind::Torrent, hash));
    }

    /// A torrent has other categories and tags than before.
    fn count_names(&mut self, before: &[Name], now: &[Name]) {
        for name in now {
            *self.names.entry(name.clone()).or_default() += 1;
        }
        for name in before {
            if let Some(count) = self.names.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.names.remove(name);
                }
            }
        }
    }

    /// A torrent is gone.
    fn lose(&mut self, id: u64) {
        let Some(row) = self.rows.remove(&id) else { return };
        self.latest.remove(&(row.marks.latest, id));
        leave_trackers(&mut self.trackers, &row.trackers, id, self.rid);
        self.forget(Kind::Torrent, row.hash);
    }

    /// Takes in which categories and tags there are now.
    fn look_at_names(&mut self, api: &Api) {
        let now = self.rid;
        let used = |kind: Kind| self.names.keys().filter(move |name| name.0 == kind).map(|name| name.1.clone());
        let mut categories = api.engine.with_settings(|settings| settings.categories.clone());
        for name in used(Kind::Category) {
            categories.entry(name).or_default();
        }
        let mut tags = api.engine.with_settings(|settings| settings.tags.clone());
        tags.extend(used(Kind::Tag));
        let categories = names::shown(categories);
        let gone: Vec<String> =
            self.categories.keys().filter(|name| !categories.contains_key(*name)).cloned().collect();
        for (name, category) in categories {
            let text = category.to_string();
            let kept = self.categories.entry(name).or_insert((String::new(), now));
            if kept.0 != text {
                *kept = (text, now);
            }
        }
        for name in gone {
            self.categories.remove(&name);
            self.forget(Kind::Category, name);
        }
        let gone: Vec<String> = self.tags.keys().filter(|name| !tags.contains(*name)).cloned().collect();
        for name in tags {
            self.tags.entry(name).or_insert(now);
        }
        for name in gone {
            self.tags.remove(&name);
            self.forget(Kind::Tag, name);
        }
    }
}

/// A torrent has these trackers no more.
fn leave_trackers(trackers: &mut HashMap<String, Tracker>, urls: &[String], id: u64, now: u32) {
    for url in urls {
        if let Some(tracker) = trackers.get_mut(url) {
            tracker.ids.remove(&id);
            tracker.changed = now;
        }
    }
}

fn names_of(seen: Seen<'_>) -> Vec<Name> {
    let category = seen.entry().category.iter().map(|name| (Kind::Category, name.clone()));
    category.chain(seen.entry().tags.iter().map(|name| (Kind::Tag, name.clone()))).collect()
}

fn limits(settings: &Settings) -> Limits {
    (settings.ratio_max, settings.seed_seconds_max, settings.idle_seconds_max, is_queueing(settings))
}

async fn main(api: &Rc<Api>, form: &Form) -> Outcome {
    let free = api.engine.free_bytes().await.unwrap_or(0);
    let server = server_state(api, free);
    let mut main = api.qbittorrent.main.borrow_mut();
    let asked = form.number::<u32>("rid").unwrap_or(0);
    if main.rid % RUN == RUN - 1 {
        let next = (main.rid / RUN % (RUNS - 1) + 1) * RUN;
        *main = Main { rid: next, oldest: next, ..Main::default() };
    }
    main.rid += 1;
    let around = main.look(api);
    let rid = main.rid;
    main.server.renew(&server, rid);
    let is_full = !main.knows(asked);
    let since = if is_full { 0 } else { asked };
    Ok(Answer::Json(write(api, &main, &around, &server, since, is_full)))
}

/// Writes what changed after `since`.
fn write(api: &Api, main: &Main, around: &Around, server: &[Named<'_>], since: u32, is_full: bool) -> Vec<u8> {
    let mut out = format!("{{\"rid\":{}", main.rid).into_bytes();
    if is_full {
        out.extend_from_slice(b",\"full_update\":true");
    }
    let mut torrents = Object::new("torrents");
    let mut changed: Vec<u64> = main.latest.range((since.saturating_add(1), 0)..).map(|(_, id)| *id).collect();
    changed.sort_unstable();
    for id in changed {
        let Some(row) = main.rows.get(&id) else { continue };
        api.engine.seen(id, |seen| {
            write_object(&fields(seen, around), |at| row.marks.is_newer(at, since), torrents.key(&row.hash));
        });
    }
    torrents.end(&mut out);
    let mut categories = Object::new("categories");
    for (name, (text, _)) in main.categories.iter().filter(|(_, (_, changed))| *changed > since) {
        categories.key(name).extend_from_slice(text.as_bytes());
    }
    categories.end(&mut out);
    let mut trackers = Object::new("trackers");
    for (url, tracker) in main.trackers.iter().filter(|(_, tracker)| tracker.changed > since) {
        let hashes = tracker.ids.iter().filter_map(|id| main.rows.get(id)).map(|row| row.hash.as_str());
        write_list(hashes, trackers.key(url));
    }
    trackers.end(&mut out);
    let new: Vec<&str> =
        main.tags.iter().filter(|(_, changed)| **changed > since).map(|(name, _)| name.as_str()).collect();
    list("tags", &new, &mut out);
    if !is_full {
        for (kind, name) in [
            (Kind::Torrent, "torrents_removed"),
            (Kind::Category, "categories_removed"),
            (Kind::Tag, "tags_removed"),
            (Kind::Tracker, "trackers_removed"),
        ] {
            list(name, &main.gone(kind, since), &mut out);
        }
    }
    if main.server.latest > since {
        out.extend_from_slice(b",\"server_state\":");
        write_object(server, |at| main.server.is_newer(at, since), &mut out);
    }
    out.push(b'}');
    out
}

/// An object that is left out where it is empty.
struct Object {
    name: &'static str,
    out: Vec<u8>,
}

impl Object {
    fn new(name: &'static str) -> Self {
        Self { name, out: Vec::new() }
    }

    /// Where the value of a key is to be written.
    fn key(&mut self, key: &str) -> &mut Vec<u8> {
        self.out.push(if self.out.is_empty() { b'{' } else { b',' });
        write_text(key, &mut self.out);
        self.out.push(b':');
        &mut self.out
    }

    fn end(self, out: &mut Vec<u8>) {
        if !self.out.is_empty() {
            out.extend_from_slice(format!(",\"{}\":", self.name).as_bytes());
            out.extend_from_slice(&self.out);
            out.push(b'}');
        }
    }
}

fn list(name: &str, texts: &[&str], out: &mut Vec<u8>) {
    if !texts.is_empty() {
        out.extend_from_slice(format!(",\"{name}\":").as_bytes());
        write_list(texts.iter().copied(), out);
    }
}

fn server_state(api: &Api, free: u64) -> Vec<Named<'static>> {
    let sums = api.engine.sums();
    let (received, sent) = (sums.downloaded, sums.uploaded);
    let mut fields = transfer::info(api);
    let ratio = if received > 0 && sent > 0 { format!("{:.2}", sent as f64 / received as f64) } else { "-".to_owned() };
    fields.extend([
        ("alltime_dl", received.into()),
        ("alltime_ul", sent.into()),
        ("average_time_queue", 0_u64.into()),
        ("free_space_on_disk", free.into()),
        ("global_ratio", ratio.into()),
        ("queued_io_jobs", 0_u64.into()),
        ("queueing", api.engine.with_settings(is_queueing).into()),
        ("read_cache_hits", "0".into()),
        ("read_cache_overload", "0".into()),
        ("refresh_interval", REFRESH_MS.into()),
        ("total_buffers_size", 0_u64.into()),
        ("total_peer_connections", sums.peers.into()),
        ("total_queued_size", 0_u64.into()),
        ("total_wasted_session", sums.wasted.into()),
        ("use_alt_speed_limits", api.engine.with_settings(|settings| settings.slow).into()),
        ("use_subcategories", false.into()),
        ("write_cache_overload", "0".into()),
    ]);
    fields
}

/// What is remembered of the peers of some torrents.
#[derive(Default)]
pub(crate) struct Peers {
    rid: u32,
    /// The last answer of each torrent, the latest last.
    last: VecDeque<(u64, u32, Map<String, Value>)>,
}

async fn peers(api: &Rc<Api>, form: &Form) -> Outcome {
    let id = one(api, form)?;
    let now: Map<String, Value> = api.engine.peers(id).await?.iter().map(peer).collect();
    let mut memory = api.qbittorrent.peers.borrow_mut();
    memory.rid = memory.rid % (RUN - 1) + 1;
    let rid = memory.rid;
    let at = memory.last.iter().position(|(other, ..)| *other == id);
    let before =
        at.and_then(|at| memory.last.remove(at)).filter(|(_, last, _)| form.number::<u32>("rid") == Some(*last));
    let mut told = json!({ "rid": rid });
    match before {
        None => {
            told["full_update"] = true.into();
            told["show_flags"] = false.into();
            told["peers"] = now.clone().into();
        }
        Some((_, _, before)) => {
            let mut changed = Map::new();
            for (address, peer) in &now {
                let is_new =
                    |name: &str, value: &Value| before.get(address).is_none_or(|before| before[name] != *value);
                let fields = peer.as_object().into_iter().flatten();
                let fields: Map<String, Value> = fields
                    .filter(|(name, value)| is_new(name, value))
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect();
                if !fields.is_empty() {
                    changed.insert(address.clone(), fields.into());
                }
            }
            let gone: Vec<&String> = before.keys().filter(|address| !now.contains_key(*address)).collect();
            if !changed.is_empty() {
                told["peers"] = changed.into();
            }
            if !gone.is_empty() {
                told["peers_removed"] = json!(gone);
            }
        }
    }
    if memory.last.len() >= PEERS_MAX {
        memory.last.pop_front();
    }
    memory.last.push_back((id, rid, now));
    Ok(told.into())
}

/// A peer as clients know it: where it is, and what is known of it.
fn peer(peer: &Value) -> (String, Value) {
    let address = peer["address"].as_str().unwrap_or_default();
    let (ip, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let is = |name: &str| peer[name].as_bool().unwrap_or(false);
    let mut flags = Vec::new();
    if is("serves_us") {
        flags.push(("D", "D = Interested(local) and unchoked(peer)"));
    }
    if is("is_served") {
        flags.push(("U", "U = Interested(peer) and unchoked(local)"));
    }
    let join = |texts: Vec<&str>, by: &str| texts.join(by);
    let shown = json!({
        "client": peer["client"].as_str().unwrap_or_default(),
        // Addresses of SCION have a comma.
        "connection": if ip.contains(',') { "SCION" } else { "BT" },
        "dl_speed": peer["down_rate"],
        "downloaded": peer["downloaded"],
        "files": "",
        "flags": join(flags.iter().map(|(flag, _)| *flag).collect(), " "),
        "flags_desc": join(flags.iter().map(|(_, text)| *text).collect(), "\n"),
        "ip": ip.trim_start_matches('[').trim_end_matches(']'),
        "peer_id_client": "",
        "port": port.parse::<u16>().unwrap_or(0),
        "progress": peer["progress"],
        "relevance": 0,
        "up_speed": peer["up_rate"],
        "uploaded": peer["uploaded"],
    });
    (address.to_owned(), shown)
}
