//! What is done to torrents.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::add::{minutes, ratio};
use super::form::Form;
use super::row::limit;
use super::{Answer, Fault, Outcome, one, several, unknown};
use crate::api::{Api, decode};
use crate::engine::Refusal;
use crate::library::{Entry, Going, Origin};

/// Does what is asked.
pub(super) async fn answer(api: &Rc<Api>, form: &Form, action: &str) -> Outcome {
    let engine = &api.engine;
    match action {
        "uploadLimit" | "downloadLimit" => return limits(api, form, action == "uploadLimit"),
        "addTrackers" | "editTracker" | "removeTrackers" => return trackers(api, form, action).await,
        "addWebSeeds" | "editWebSeed" | "removeWebSeeds" => return web_seeds(api, form, action).await,
        "filePrio" => return file_priorities(api, form).await,
        "addPeers" => return add_peers(api, form).await,
        "rename" => {
            let id = one(api, form)?;
            let name = form.need("name")?.trim().replace(['\r', '\n'], " ");
            if name.is_empty() {
                return Err(Fault::conflict("Incorrect torrent name"));
            }
            patch(api, &[id], &[("name", name.into())]).await?;
            return Ok(Answer::Done);
        }
        "renameFile" | "renameFolder" => {
            one(api, form)?;
            return Err(Fault::conflict("files keep the names that the torrent gives them"));
        }
        _ => {}
    }
    let named =
        if matches!(action, "setSavePath" | "setDownloadPath") { form.need("id")? } else { form.need("hashes")? };
    let ids = several(api, named);
    let ids = ids.as_slice();
    match action {
        "stop" | "pause" => engine.pause(ids).await?,
        "start" | "resume" => engine.resume(ids).await?,
        "delete" => {
            form.need("deleteFiles")?;
            let going = if form.flag("deleteFiles") == Some(true) { Going::Delete } else { Going::Keep };
            engine.let_go(ids, going).await?;
        }
        "recheck" => {
            for id in ids {
                settled(engine.recheck(*id).await)?;
            }
        }
        "reannounce" => {
            for id in ids {
                settled(engine.reannounce(*id).await)?;
            }
        }
        "setUploadLimit" | "setDownloadLimit" => {
            let limit = form.need_number::<i64>("limit")?;
            let field = if action == "setUploadLimit" { "limit_up" } else { "limit_down" };
            patch(api, ids, &[(field, if limit > 0 { limit.into() } else { Value::Null })]).await?;
        }
        "setShareLimits" => {
            let times = [form.need_number("seedingTimeLimit")?, form.need_number("inactiveSeedingTimeLimit")?];
            let changes = [
                ("ratio_max", ratio(form.need_number("ratioLimit")?).to_json()),
                ("seed_seconds_max", minutes(times[0]).to_json()),
                ("idle_seconds_max", minutes(times[1]).to_json()),
            ];
            patch(api, ids, &changes).await?;
        }
        "topPrio" | "bottomPrio" => engine.requeue(&by_rank(api, ids), action == "topPrio").await?,
        "increasePrio" | "decreasePrio" => engine.shift(ids, action == "increasePrio").await?,
        "setLocation" | "setSavePath" => {
            let field = if action == "setLocation" { "location" } else { "path" };
            let dir = form.need(field)?.trim();
            if dir.is_empty() {
                return Err(Fault::bad("Save path cannot be empty"));
            }
            for id in ids {
                engine.move_to(*id, Path::new(dir)).await?;
            }
        }
        "setForceStart" => {
            let forced = form.flag("value").unwrap_or(false);
            form.need("value")?;
            patch(api, ids, &[("forced", forced.into())]).await?;
            engine.resume(ids).await?;
        }
        "setSuperSeeding" => set_super_seeding(api, ids, form.flag("value") == Some(true)).await?,
        "toggleSequentialDownload" => toggle(api, ids, "sequential", |entry| entry.sequential).await?,
        "toggleFirstLastPiecePrio" => toggle(api, ids, "edges_first", |entry| entry.edges_first).await?,
        // What there is not can be turned off.
        "setAutoManagement" if form.flag("enable") != Some(true) => {}
        "setDownloadPath" if form.text("path").is_empty() => {}
        "setAutoManagement" => return Err(Fault::conflict("contents stay where they are: move them with setLocation")),
        "setDownloadPath" => {
            return Err(Fault::conflict("contents are fetched to where they stay: move them with setLocation"));
        }
        _ => return Err(unknown()),
    }
    Ok(Answer::Done)
}

/// What cannot be done now is passed over, as qBittorrent does with several torrents.
fn settled(outcome: Result<(), Refusal>) -> Result<(), Fault> {
    match outcome {
        Ok(()) | Err(Refusal::Busy(..) | Refusal::Conflict(_) | Refusal::Session(_) | Refusal::Unknown(_)) => Ok(()),
        Err(refusal) => Err(refusal.into()),
    }
}

async fn patch(api: &Api, ids: &[u64], changes: &[(&str, Value)]) -> Result<(), Fault> {
    let changes: Map<String, Value> = changes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Ok(api.engine.patch(ids, &changes).await?)
}

/// Of those alone that it means something for: contents are opened anew for it.
async fn set_super_seeding(api: &Api, ids: &[u64], is_on: bool) -> Result<(), Fault> {
    let is_other = |entry: &Entry| entry.super_seed != is_on && !matches!(entry.origin, Origin::Link(_));
    let ids: Vec<u64> =
        ids.iter().copied().filter(|id| api.engine.seen(*id, |seen| is_other(seen.entry())) == Some(true)).collect();
    patch(api, &ids, &[("super_seed", is_on.into())]).await
}

async fn toggle(api: &Api, ids: &[u64], name: &str, is_on: impl Fn(&Entry) -> bool) -> Result<(), Fault> {
    for id in ids {
        if let Some(is_on) = api.engine.seen(*id, |seen| is_on(seen.entry())) {
            patch(api, &[*id], &[(name, (!is_on).into())]).await?;
        }
    }
    Ok(())
}

/// Contents in the order of the queue.
fn by_rank(api: &Api, ids: &[u64]) -> Vec<u64> {
    let mut ids = ids.to_vec();
    ids.sort_by_key(|id| (api.engine.seen(*id, |seen| seen.entry().rank), *id));
    ids
}

fn limits(api: &Api, form: &Form, up: bool) -> Outcome {
    let limit_of = |hash: &str| {
        let of = |entry: &Entry| if up { entry.limit_up } else { entry.limit_down };
        let id = api.engine.by_short_hash(hash)?;
        api.engine.seen(id, |seen| limit(of(seen.entry())))
    };
    let named = form.need("hashes")?.split('|');
    let limits: Map<String, Value> = named.map(|hash| (hash.to_owned(), json!(limit_of(hash).unwrap_or(-1)))).collect();
    Ok(Value::from(limits).into())
}

async fn file_priorities(api: &Api, form: &Form) -> Outcome {
    let id = one(api, form)?;
    let level = match form.need_number::<i64>("priority")? {
        0 => 0,
        1 => 4,
        6 => 6,
        7 => 7,
        _ => return Err(Fault::bad("Priority is not valid")),
    };
    let info = api.engine.info(id).await.map_err(|_| Fault::conflict("Torrent's metadata has not yet downloaded"))?;
    // Clients count the files that hold something.
    let files: Vec<usize> = info.regular_files().map(|(file, _)| file).collect();
    let mut levels = BTreeMap::new();
    for text in form.need("id")?.split('|') {
        let at: usize = text.trim().parse().map_err(|_| Fault::bad("File IDs must be integers"))?;
        levels.insert(*files.get(at).ok_or_else(|| Fault::conflict("File ID is not valid"))?, level);
    }
    api.engine.set_files(id, &levels).await?;
    Ok(Answer::Done)
}

async fn add_peers(api: &Api, form: &Form) -> Outcome {
    let named = form.need("peers")?;
    let peers: Vec<String> =
        form.list("peers", '|').into_iter().filter(|peer| anabranch_swarm::parse_peer(peer).is_some()).collect();
    if peers.is_empty() {
        return Err(Fault::bad("No valid peers were specified"));
    }
    let mut told = Map::new();
    for id in several(api, form.need("hashes")?) {
        let added = if api.engine.add_peers(id, &peers).await.is_ok() { peers.len() } else { 0 };
        let hash = api.engine.seen(id, |seen| seen.short_hash()).unwrap_or_default();
        told.insert(hash, json!({ "added": added, "failed": named.split('|').count().saturating_sub(added) }));
    }
    Ok(Value::from(told).into())
}

/// The addresses that a content has of a kind, and those of its own that it goes without.
struct Addresses {
    own: Vec<String>,
    further: Vec<String>,
    without: Vec<String>,
}

impl Addresses {
    fn has(&self, url: &str) -> bool {
        let is = |other: &String| other == url;
        self.own.iter().any(is) && !self.without.iter().any(is) || self.further.iter().any(is)
    }

    fn add(&mut self, url: &str) {
        self.without.retain(|other| other != url);
        if !self.has(url) {
            self.further.push(url.to_owned());
        }
    }

    fn remove(&mut self, url: &str) {
        self.further.retain(|other| other != url);
        if self.own.iter().any(|other| other == url) && !self.without.iter().any(|other| other == url) {
            self.without.push(url.to_owned());
        }
    }

    async fn keep(self, api: &Api, id: u64, field: &str) -> Result<(), Fault> {
        patch(api, &[id], &[(field, json!(self.further)), ("without", json!(self.without))]).await
    }
}

/// `+` in an address is itself.
fn plain(url: &str) -> String {
    decode(&url.replace('+', "%2B")).unwrap_or_else(|| url.to_owned())
}

async fn trackers(api: &Api, form: &Form, action: &str) -> Outcome {
    let of = async |id: u64| -> Result<Addresses, Fault> {
        let own = api.engine.own_addresses(id).await?.trackers.into_iter().flatten().collect();
        let entry = api.engine.entry(id)?;
        Ok(Addresses { own, further: entry.trackers, without: entry.without.into_iter().collect() })
    };
    if action == "removeTrackers" {
        let urls: Vec<String> = form.need("urls")?.split('|').filter(|url| !url.is_empty()).map(plain).collect();
        let ids = if form.need("hash")? == "*" { several(api, "all") } else { vec![one(api, form)?] };
        for id in ids {
            let mut addresses = of(id).await?;
            if urls.iter().any(|url| addresses.has(url)) {
                urls.iter().for_each(|url| addresses.remove(url));
                addresses.keep(api, id, "trackers").await?;
            }
        }
        return Ok(Answer::Done);
    }
    let id = one(api, form)?;
    let mut addresses = of(id).await?;
    if action == "addTrackers" {
        form.need("urls")?;
        form.list("urls", '\n').iter().for_each(|url| addresses.add(url));
    } else {
        replace(
            &mut addresses,
            form.need("origUrl")?,
            form.need("newUrl")?,
            "Tracker not found",
            "New tracker URL already exists",
        )?;
    }
    addresses.keep(api, id, "trackers").await?;
    Ok(Answer::Done)
}

async fn web_seeds(api: &Api, form: &Form, action: &str) -> Outcome {
    let id = one(api, form)?;
    let entry = api.engine.entry(id)?;
    let own = api.engine.own_addresses(id).await?.web_seeds;
    let mut addresses = Addresses { own, further: entry.web_seeds, without: entry.without.into_iter().collect() };
    if action == "editWebSeed" {
        let (from, to) = (plain(form.need("origUrl")?), plain(form.need("newUrl")?));
        replace(&mut addresses, &from, &to, "this is not an existing URL", "the new URL already exists")?;
    } else {
        let urls = form.need("urls")?.split('|').filter(|url| !url.is_empty()).map(plain);
        match action {
            "addWebSeeds" => urls.for_each(|url| addresses.add(&url)),
            _ => urls.for_each(|url| addresses.remove(&url)),
        }
    }
    addresses.keep(api, id, "web_seeds").await?;
    Ok(Answer::Done)
}

fn replace(addresses: &mut Addresses, from: &str, to: &str, missing: &str, twice: &str) -> Result<(), Fault> {
    if from == to {
        return Ok(());
    }
    if !addresses.has(from) {
        return Err(Fault::conflict(missing));
    }
    if addresses.has(to) {
        return Err(Fault::conflict(twice));
    }
    addresses.remove(from);
    addresses.add(to);
    Ok(())
}
