//! Contents go into the session.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anabranch_content::create::{CreateOptions, create};
use anabranch_content::hash::sha256;
use anabranch_content::hex;
use anabranch_content::info::Info;
use anabranch_content::magnet::{Magnet, MagnetError};
use anabranch_content::metainfo::{Metainfo, NameRules};
use anabranch_content::storage::naming;
use anabranch_ppspp::link::{Link, LinkError};
use anabranch_swarm::{AddOptions, ContentId, Data, FileFilter, NodeId, Priority, Source, parse_peer};

use super::add::names;
use super::live::{Hashing, Phase};
use super::{Content, Engine, unix_now};
use crate::library::{About, Entry, Origin, Turn};
use crate::store::Change;

/// What goes into the session.
struct Prepared {
    source: Source,
    /// The files are as they were when they were hashed.
    trusted: bool,
}

impl Engine {
    /// Puts a content into the session. Why that fails is noted.
    pub(super) async fn load(&self, id: u64) -> Option<ContentId> {
        match self.try_load(id).await {
            Ok(session) => Some(session),
            Err(reason) => {
                self.with(id, |content| {
                    content.live.phase = Phase::Out;
                    content.live.hashing = None;
                    content.live.failed = Some(reason);
                });
                self.announce(id);
                None
            }
        }
    }

    async fn try_load(&self, id: u64) -> Result<ContentId, String> {
        let gone = || "it was removed".to_owned();
        self.with(id, |content| (content.live.phase, content.live.failed) = (Phase::Loading, None)).ok_or_else(gone)?;
        let mut entry = self.entry(id).map_err(|error| error.to_string())?;
        let fresh = matches!(entry.origin, Origin::Path { seal: None, .. });
        if fresh {
            self.make_torrent(&entry).await?;
            entry = self.entry(id).map_err(|error| error.to_string())?;
        }
        let mut own = None;
        if entry.broadcast().is_some() {
            self.count_run(id).await;
            own = self.handle.secure_node_id().await.ok().flatten();
            entry = self.entry(id).map_err(|error| error.to_string())?;
        }
        let path = self.store.torrent(id);
        let of = entry.clone();
        self.with(id, |content| content.live.reopen = false);
        let prepared = tokio::task::spawn_blocking(move || prepare(&of, &path, fresh, own)).await;
        let Prepared { source, trusted } = prepared.map_err(|error| error.to_string())??;
        let ours = if let Source::Live(share) = &source { Some(share.link.clone()) } else { None };
        let is_known = !matches!(source, Source::Magnet(_));
        let options = self.options(&entry, trusted);
        let session = self.handle.add(source, options).await.map_err(|error| error.to_string())?;
        if !self.state().contents.contains_key(&id) {
            // It was removed meanwhile.
            let _ = self.handle.remove(session, Data::Keep).await;
            return Err(gone());
        }
        let early = {
            let mut state = self.state.borrow_mut();
            state.by_session.insert(session, id);
            state.change(id, |Content { live, .. }| {
                (live.session, live.hashing) = (Some(session), None);
                live.phase = match is_known {
                    // A stream has no files to be opened.
                    _ if entry.is_live() => Phase::Open,
                    true => Phase::Opening,
                    false => Phase::Metadata,
                };
                live.waits = match &entry.origin {
                    Origin::Live(_) => Some("nobody has told anything of the stream yet".to_owned()),
                    Origin::Broadcast(broadcast) if broadcast.input.is_some() => Some(super::input::QUIET.to_owned()),
                    Origin::Broadcast(_) => Some(super::input::NOBODY.to_owned()),
                    _ => None,
                };
            });
            state.early.take(session)
        };
        for event in early {
            self.on_event(event).await;
        }
        if let Some(link) = ours {
            self.on_air(id, link).await;
        }
        self.announce(id);
        // It may have been asked to wait meanwhile.
        self.changed.notify_one();
        Ok(session)
    }

    /// The content in the session, where it is put if it was not: at rest where it has no turn.
    pub(super) async fn loaded(&self, id: u64) -> Result<ContentId, String> {
        let (session, phase, turn) = self
            .with(id, |content| (content.live.session, content.live.phase, content.live.turn))
            .ok_or_else(|| "it was removed".to_owned())?;
        if let Some(session) = session {
            return Ok(session);
        }
        if phase != Phase::Out {
            return Err("it is being opened: try again in a moment".to_owned());
        }
        let failed = || self.with(id, |content| content.live.failed.clone()).flatten();
        let session =
            self.load(id).await.ok_or_else(|| failed().unwrap_or_else(|| "it cannot be opened".to_owned()))?;
        if turn != Some(Turn::Run) && self.handle.pause(session).await.is_ok() {
            self.with(id, |content| content.live.is_held = true);
        }
        Ok(session)
    }

    fn options(&self, entry: &Entry, trusted: bool) -> AddOptions {
        let named = entry.peers.iter().filter_map(|peer| parse_peer(peer));
        let (peers, keys): (Vec<_>, Vec<_>) = named.unzip();
        let keys = peers.iter().zip(keys).filter_map(|(peer, key)| peer.as_scion().zip(key));
        let only: Vec<_> = entry.priorities.iter().filter(|(_, level)| **level == 0).map(|(file, _)| *file).collect();
        let files: Option<FileFilter> = (!only.is_empty())
            .then(|| Box::new(move |file: usize, _: &_| only.binary_search(&file).is_err()) as FileFilter);
        let common = self.common.borrow();
        AddOptions {
            dir: entry.dir.clone(),
            keys: common.keys.iter().copied().chain(keys).collect(),
            peers: common.peers.iter().copied().chain(peers.iter().copied()).collect(),
            trackers: common.trackers.iter().chain(&entry.trackers).cloned().collect(),
            web_seeds: entry.web_seeds.clone(),
            files,
            sequential: entry.sequential,
            super_seed: entry.super_seed,
            limit_down: entry.limit_down,
            limit_up: entry.limit_up,
            read_only: entry.is_only_shared(),
            overwrite: entry.bulk().is_some_and(|bulk| bulk.overwrite),
            allowed: entry.broadcast().and_then(|broadcast| broadcast.allowed.as_ref()).map(parse_keys),
            trusted,
            ..AddOptions::default()
        }
    }

    /// Makes a torrent of a path that is shared, and keeps it.
    async fn make_torrent(&self, entry: &Entry) -> Result<(), String> {
        let Origin::Path { path, .. } = entry.origin.clone() else { return Ok(()) };
        let id = entry.id;
        let hashing = Arc::new(Hashing::default());
        self.with(id, |content| {
            content.live.phase = Phase::Hashing;
            content.live.hashing = Some(Arc::clone(&hashing));
        });
        self.announce(id);
        let _place = self.hashing.acquire().await.map_err(|error| error.to_string())?;
        let options = CreateOptions {
            trackers: entry.trackers.iter().map(|url| vec![url.clone()]).collect(),
            ..CreateOptions::default()
        };
        let made = tokio::task::spawn_blocking(move || {
            let created = create(&path, &options, &hashing.cancel, |done, total| {
                hashing.done.store(done, Ordering::Relaxed);
                hashing.total.store(total, Ordering::Relaxed);
            });
            let created = created.map_err(|error| error.to_string())?;
            let seal = seal(&created.torrent.info, &created.survey.dir);
            Ok::<_, String>((created, seal))
        });
        let (created, seal) = made.await.map_err(|error| error.to_string())??;
        let hashes = names(&created.torrent.info.hashes);
        let _turn = self.writing.lock().await;
        let other = hashes.iter().find_map(|hash| self.state().by_hash.get(hash).copied());
        if let Some(other) = other.filter(|other| *other != id) {
            return Err(format!("the same files are in the library already, as content {other}: remove one of them"));
        }
        if hashes.iter().any(|hash| self.state().adding.contains(hash)) {
            return Err("the same files are just being added: remove one of them".to_owned());
        }
        let mut entry = self.entry(id).map_err(|error| error.to_string())?;
        let size = created.torrent.info.content_size();
        if let Origin::Path { seal: kept, .. } = &mut entry.origin {
            *kept = Some(seal);
        }
        entry.name.clone_from(&created.torrent.info.name);
        (entry.hashes, entry.dir) = (hashes, created.survey.dir.clone());
        (entry.size, entry.done, entry.completed) = (Some(size), size, Some(unix_now()));
        let trackers = entry.trackers.iter().map(|url| vec![url.clone()]).collect();
        entry.about = Some(Arc::new(About { trackers, ..About::of_info(&created.torrent.info) }));
        let batch = vec![(Entry::key(id), Some(entry.to_json()))];
        let change = Change { batch, torrents: vec![(id, created.metainfo)], gone: Vec::new() };
        self.store.write(change).await.map_err(|error| error.to_string())?;
        let mut state = self.state.borrow_mut();
        state.index(&entry);
        state.change(id, |content| {
            content.entry = entry;
            content.live.phase = Phase::Loading;
        });
        Ok(())
    }
}

/// Reads what a content is; `own` is the key that the daemon proves to have. Blocks.
fn prepare(entry: &Entry, torrent: &Path, fresh: bool, own: Option<NodeId>) -> Result<Prepared, String> {
    let plain = |source| Prepared { source, trusted: false };
    match &entry.origin {
        Origin::Magnet(link) => {
            let mut magnet: Magnet = link.parse().map_err(|error: MagnetError| error.to_string())?;
            magnet.trackers.retain(|url| !entry.without.contains(url));
            magnet.web_seeds.retain(|url| !entry.without.contains(url));
            Ok(plain(Source::Magnet(Box::new(magnet))))
        }
        Origin::Link(link) | Origin::Live(link) => {
            let mut link: Link = link.parse().map_err(|error: LinkError| error.to_string())?;
            link.trackers.retain(|url| !entry.without.contains(url));
            Ok(plain(Source::Ppspp(Box::new(link))))
        }
        Origin::Bulk(bulk) => Ok(plain(Source::Bulk(Box::new(super::bulk::task(entry, bulk)?)))),
        Origin::Broadcast(broadcast) => {
            Ok(plain(Source::Live(Box::new(super::broadcast::share(entry, broadcast, own)?))))
        }
        Origin::Torrent => {
            let mut metainfo = read(torrent)?;
            leave_out(&mut metainfo, &entry.without);
            Ok(plain(Source::Metainfo(Box::new(metainfo))))
        }
        Origin::Path { seal: kept, .. } => {
            let mut metainfo = read(torrent)?;
            leave_out(&mut metainfo, &entry.without);
            metainfo.info = naming::for_reading(&metainfo.info, &entry.dir);
            let trusted = fresh || *kept == Some(seal(&metainfo.info, &entry.dir));
            Ok(Prepared { source: Source::Metainfo(Box::new(metainfo)), trusted })
        }
    }
}

/// Keys that were looked at when they came.
fn parse_keys(keys: &BTreeSet<String>) -> HashSet<NodeId> {
    keys.iter().filter_map(|key| key.parse().ok()).collect()
}

/// Takes the addresses out that a torrent names and its user does not want.
fn leave_out(metainfo: &mut Metainfo, without: &BTreeSet<String>) {
    metainfo.trackers.iter_mut().for_each(|tier| tier.retain(|url| !without.contains(url)));
    metainfo.trackers.retain(|tier| !tier.is_empty());
    metainfo.web_seeds.retain(|url| !without.contains(url));
    metainfo.http_seeds.retain(|url| !without.contains(url));
}

/// Reads a torrent that is kept. Blocks.
pub(super) fn read(path: &Path) -> Result<Metainfo, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Metainfo::parse_for(&bytes, &NameRules::EXACT).map_err(|error| format!("{}: {error}", path.display()))
}

/// What a content's files look like: as long as it stays the same, they are taken not to have changed. Blocks.
fn seal(info: &Info, dir: &Path) -> String {
    let mut looks = String::new();
    for (_, file) in info.regular_files() {
        // A text takes all that is written.
        let _ = match dir.join(&file.path).symlink_metadata() {
            Ok(there) => writeln!(looks, "{} {} {} {}", there.len(), there.mtime(), there.mtime_nsec(), there.ino()),
            Err(_) => writeln!(looks, "-"),
        };
    }
    hex::encode(&sha256(looks.as_bytes()))
}

/// How much a file is wanted, of those that were chosen otherwise than usual.
pub(super) fn priority(priorities: &std::collections::BTreeMap<usize, u8>, file: usize) -> Priority {
    priorities.get(&file).and_then(|level| Priority::new(*level)).unwrap_or(Priority::NORMAL)
}
