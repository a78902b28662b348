//! What one content looks like inside: files, pieces, peers, trackers, paths.

use std::collections::BTreeMap;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::hex;
use anabranch_content::info::Info;
use anabranch_content::magnet::Magnet;
use anabranch_paths::manager::PathVerdict;
use anabranch_paths::select::Choice as Chosen;
use anabranch_paths::{Path, ScionPath};
use anabranch_swarm::{ContentId, PathProgress, PeerStats};
use serde_json::{Value, json};

use super::seen::is_at;
use super::view::path_name;
use super::{Engine, Refusal};
use crate::library::{About, Entry, Origin};

/// Candidates of one choice that are shown: those that were chosen are among the first.
const CANDIDATES_MAX: usize = 200;

impl Engine {
    fn session_of(&self, id: u64) -> Result<Option<ContentId>, Refusal> {
        self.entry(id)?;
        Ok(self.with(id, |content| content.live.session).flatten())
    }

    /// Which pieces are there; `None` where that is not known at present.
    pub(crate) async fn have(&self, id: u64) -> Result<Option<Bitfield>, Refusal> {
        match self.session_of(id)? {
            Some(session) => Ok(self.handle.have(session).await.ok().flatten()),
            None => Ok(None),
        }
    }

    /// Its files.
    pub(crate) async fn files(&self, id: u64) -> Result<Vec<Value>, Refusal> {
        if let Some(entry) = Some(self.entry(id)?).filter(Entry::is_live) {
            let name = entry.shown_name();
            return Ok(vec![
                json!({ "index": 0, "path": name, "length": 0, "done": 0, "priority": 4, "playable": true }),
            ]);
        }
        self.has_files(id)?;
        let (entry, info, have) = (self.entry(id)?, self.info(id).await?, self.have(id).await?);
        let is_whole = entry.is_complete() && have.is_none();
        let file = |(index, file): (usize, &anabranch_content::info::FileEntry)| {
            let level = entry.priorities.get(&index).copied().unwrap_or(4);
            let done = match &have {
                Some(have) => there(&info, have, index),
                None if is_whole && level > 0 => file.length,
                None => 0,
            };
            json!({
                "index": index,
                "path": file.path.to_string_lossy(),
                "length": file.length,
                "done": done,
                "priority": level,
                "playable": file.path.file_name().is_some_and(|name| anabranch_swarm::http::names::is_media(&name.to_string_lossy())),
            })
        };
        Ok(info.regular_files().map(file).collect())
    }

    /// The bytes of its torrent, where there is one.
    pub(crate) async fn torrent_file(&self, id: u64) -> Option<Vec<u8>> {
        let path = self.store.torrent(id);
        tokio::task::spawn_blocking(move || std::fs::read(path).ok()).await.ok().flatten()
    }

    /// Its pieces: how many, how long, and which are there, a bit each, the first one highest, in hex.
    pub(crate) async fn pieces(&self, id: u64) -> Result<Value, Refusal> {
        self.has_files(id)?;
        let (info, have) = (self.info(id).await?, self.have(id).await?);
        let geometry = &info.geometry;
        Ok(json!({
            "count": geometry.piece_count(),
            "length": geometry.piece_length(),
            "have": have.as_ref().map(Bitfield::count),
            "bits": have.map(|have| hex::encode(have.as_bytes())),
        }))
    }

    /// Its connections.
    pub(crate) async fn peers(&self, id: u64) -> Result<Vec<Value>, Refusal> {
        let Some(session) = self.session_of(id)? else { return Ok(Vec::new()) };
        let pieces = self.handle.info(session).await?.map_or(0, |info| info.geometry.piece_count());
        let peer = |peer: PeerStats| {
            json!({
                "address": peer.address.to_string(),
                "client": peer.client,
                "path": peer.path.map(|path| format!("{path:#}")),
                "down_rate": peer.download_rate_bytes,
                "up_rate": peer.upload_rate_bytes,
                "downloaded": peer.downloaded_bytes,
                "uploaded": peer.uploaded_bytes,
                "progress": if pieces > 0 { f64::from(peer.pieces) / f64::from(pieces) } else { 0.0 },
                "serves_us": !peer.choking_us,
                "is_served": !peer.choking,
            })
        };
        Ok(self.handle.peers(session).await?.into_iter().map(peer).collect())
    }

    /// The trackers and HTTP servers that its torrent or link names, and what else that says.
    pub(crate) async fn own_addresses(&self, id: u64) -> Result<About, Refusal> {
        let entry = self.entry(id)?;
        if let Some(about) = &entry.about {
            let about = About::clone(about);
            return Ok(match &entry.origin {
                Origin::Link(link) => About { trackers: trackers_of_link(link), ..about },
                _ => about,
            });
        }
        Ok(match &entry.origin {
            Origin::Magnet(link) => {
                link.parse::<Magnet>().map(|magnet| About::default().with_link(&magnet)).unwrap_or_default()
            }
            Origin::Link(link) => About { trackers: trackers_of_link(link), ..About::default() },
            Origin::Torrent | Origin::Path { .. } => self.about_in_file(id).await.unwrap_or_default(),
            Origin::Live(link) => About { trackers: trackers_of_link(link), ..About::default() },
            Origin::Bulk(_) | Origin::Broadcast(_) => About::default(),
        })
    }

    /// HTTP servers that have its files, those that are used.
    pub(crate) async fn web_seeds(&self, id: u64) -> Result<Vec<String>, Refusal> {
        let entry = self.entry(id)?;
        let own = self.own_addresses(id).await?.web_seeds.into_iter().filter(|url| !entry.without.contains(url));
        Ok(own.chain(entry.web_seeds.iter().cloned()).collect())
    }

    /// Its trackers, as they answered last.
    pub(crate) async fn trackers(&self, id: u64) -> Result<Vec<Value>, Refusal> {
        let entry = self.entry(id)?;
        let mut named: BTreeMap<String, Value> = BTreeMap::new();
        let common = self.common.borrow().trackers.clone();
        let own =
            self.own_addresses(id).await?.trackers.into_iter().flatten().filter(|url| !entry.without.contains(url));
        for url in own.chain(entry.trackers.iter().cloned()).chain(common) {
            named.entry(url.clone()).or_insert_with(
                || json!({ "url": url, "state": "not_asked", "peers": null, "reason": null, "time": null }),
            );
        }
        self.with(id, |content| {
            for (told, tracker) in &content.live.trackers {
                let (state, peers, reason) = match &tracker.outcome {
                    Ok(peers) => ("working", Some(*peers), None),
                    Err(reason) => ("failed", None, Some(reason.clone())),
                };
                // They are told of without what may be secret in their addresses; one that was removed may still have answered.
                let urls: Vec<String> = named.keys().filter(|url| is_at(url, told)).cloned().collect();
                for url in urls {
                    let shown =
                        json!({ "url": url, "state": state, "peers": peers, "reason": reason, "time": tracker.at });
                    named.insert(url, shown);
                }
            }
        });
        Ok(named.into_values().collect())
    }

    /// What happened to it lately.
    pub(crate) fn log(&self, id: u64) -> Result<Vec<Value>, Refusal> {
        self.entry(id)?;
        let line = |(at, text): &(u64, String)| json!({ "time": at, "text": text });
        Ok(self.with(id, |content| content.live.log.iter().map(line).collect()).unwrap_or_default())
    }

    /// Its paths: those with a connection, what they carry, and why each that was looked at was taken or left.
    pub(crate) async fn paths(&self, id: u64) -> Result<Value, Refusal> {
        let paths = match self.session_of(id)? {
            Some(session) => self.handle.paths(session).await?,
            None => Vec::new(),
        };
        let told = self.with(id, |content| {
            let live = &content.live;
            let why = |path: &PathProgress| {
                let (peer, name) = (path.peer.to_string(), path_name(&path.path));
                let changed = live.changes.iter().rev().find(|change| change.peer == peer && change.path == name);
                let verdict = || {
                    let verdicts = &live.choices.get(&peer)?.verdicts;
                    Some(verdicts.iter().find(|verdict| verdict.path == path.path)?.reason.to_string())
                };
                changed.map(|change| change.reason.clone()).or_else(verdict)
            };
            let paths: Vec<Value> = paths.iter().map(|path| path_json(path, why(path))).collect();
            let choice = |(peer, choice): (&String, &super::live::Choice)| {
                let mut verdicts: Vec<&PathVerdict> = choice.verdicts.iter().collect();
                verdicts.sort_by_key(|verdict| match verdict.choice {
                    Chosen::Chosen => 0,
                    Chosen::Standby => 1,
                    Chosen::Left => 2,
                });
                let left_out = verdicts.len().saturating_sub(CANDIDATES_MAX);
                let candidates: Vec<Value> = verdicts.into_iter().take(CANDIDATES_MAX).map(verdict_json).collect();
                json!({
                    "peer": peer,
                    "selector": choice.selector,
                    "why": choice.why,
                    "time": choice.at,
                    "candidates": candidates,
                    "left_out": left_out,
                })
            };
            let choices: Vec<Value> = live.choices.iter().map(choice).collect();
            let change = |change: &super::live::PathChange| {
                json!({ "time": change.at, "peer": change.peer, "path": change.path, "state": change.state, "reason": change.reason })
            };
            let changes: Vec<Value> = live.changes.iter().map(change).collect();
            json!({ "paths": paths, "choices": choices, "changes": changes })
        });
        told.ok_or_else(|| Refusal::Unknown(id.to_string()))
    }
}

fn trackers_of_link(link: &str) -> Vec<Vec<String>> {
    let trackers = link.parse::<anabranch_ppspp::link::Link>().map(|link| link.trackers).unwrap_or_default();
    trackers.into_iter().map(|url| vec![url]).collect()
}

/// Bytes of a file that are there.
pub(super) fn there(info: &Info, have: &Bitfield, index: usize) -> u64 {
    let Some(file) = info.files.get(index) else { return 0 };
    let range = file.range();
    let in_piece = |piece: u32| {
        let start = info.geometry.piece_offset(piece);
        let end = start + u64::from(info.geometry.piece_len(piece));
        end.min(range.end).saturating_sub(start.max(range.start))
    };
    info.pieces_of_file(index).filter(|piece| have.get(*piece)).map(in_piece).sum()
}

fn path_json(path: &PathProgress, reason: Option<String>) -> Value {
    let mut told = way(&path.path);
    told["peer"] = path.peer.to_string().into();
    told["state"] = path.condition.to_string().into();
    told["reason"] = json!(reason);
    told["down_rate"] = path.download_rate_bytes.into();
    told["up_rate"] = path.upload_rate_bytes.into();
    told["downloaded"] = path.downloaded_bytes.into();
    told["uploaded"] = path.uploaded_bytes.into();
    told["rtt_ms"] = json!(path.rtt.map(|rtt| rtt.as_secs_f64() * 1e3));
    told["lost"] = path.lost_packets.into();
    told
}

fn verdict_json(verdict: &PathVerdict) -> Value {
    let mut told = way(&verdict.path);
    told["choice"] = match verdict.choice {
        Chosen::Chosen => "chosen",
        Chosen::Standby => "standby",
        Chosen::Left => "left",
    }
    .into();
    told["reason"] = verdict.reason.to_string().into();
    told
}

/// Which way a path takes: the networks that it crosses, and what they claim of the links between them.
fn way(path: &Path) -> Value {
    let scion = path.as_scion();
    json!({
        "path": path_name(path),
        "network": if scion.is_some() { "scion" } else { "ip" },
        "text": path.to_string(),
        "local": path.local().to_string(),
        "remote": path.remote().to_string(),
        "ases": scion.map(|scion| scion.hops().map(|hop| hop.isd_as.to_string()).collect::<Vec<_>>()).unwrap_or_default(),
        "links": scion.map(|scion| links(scion)).unwrap_or_default(),
        "mtu": scion.map(|scion| scion.mtu),
        "latency_ms": scion.map(|scion| scion.latency()).filter(|latency| latency.unclaimed == 0).map(|latency| latency.claimed.as_secs_f64() * 1e3),
    })
}

fn links(path: &ScionPath) -> Vec<Value> {
    let link = |(at, (from, to)): (usize, (anabranch_paths::Interface, anabranch_paths::Interface))| {
        // Even entries are over a link.
        let latency = path.latency.get(2 * at).copied().flatten();
        let bandwidth = path.bandwidth_kbps.get(2 * at).copied().flatten();
        json!({
            "from": from.to_string(),
            "to": to.to_string(),
            "latency_ms": latency.map(|latency| latency.as_secs_f64() * 1e3),
            "bandwidth": bandwidth.map(|kbps| kbps * 125),
        })
    };
    path.links().enumerate().map(link).collect()
}
