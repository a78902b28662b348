//! What users ask of contents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anabranch_content::info::Info;
use anabranch_paths::Endpoint;
use anabranch_swarm::http::{FileServer, Show, ShownFile};
use anabranch_swarm::{ContentId, ControlError, Data, parse_peer};
use serde_json::{Map, Value};

use super::live::{Job, Phase};
use super::{Engine, Refusal};
use crate::library::{Entry, Going, Origin, own_ratio, own_whole, whole};
use crate::store::Change;

/// How long a content that is to be deleted, checked or moved may take to be opened.
const OPEN_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether it is.
const OPEN_POLL: Duration = Duration::from_millis(50);

/// A file that is played.
pub(crate) struct Play {
    /// Who answers.
    pub(crate) desk: Rc<FileServer>,
    /// Its number there.
    pub(crate) number: u32,
}

impl Engine {
    /// Has contents wait.
    pub(crate) async fn pause(&self, ids: &[u64]) -> Result<(), Refusal> {
        self.update(ids, |entry| {
            (entry.paused, entry.paused_because) = (true, None);
            Ok(())
        })
        .await
    }

    /// Has them go on; those that failed begin anew.
    pub(crate) async fn resume(&self, ids: &[u64]) -> Result<(), Refusal> {
        let failed = |id: &u64| {
            let session = self.with(*id, |content| content.live.failed.is_some().then_some(content.live.session));
            Some((*id, session.flatten()?))
        };
        let failed: Vec<(u64, Option<ContentId>)> = ids.iter().filter_map(failed).collect();
        self.update(ids, |entry| {
            (entry.paused, entry.paused_because) = (false, None);
            Ok(())
        })
        .await?;
        for (id, session) in failed {
            if let Some(session) = session {
                // It is let go whatever becomes of its files.
                let _ = self.handle.remove(session, Data::Keep).await;
                self.with(id, super::Content::leave);
            }
            self.with(id, |content| content.live.failed = None);
            self.announce(id);
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Changes options of contents, of all or of none.
    pub(crate) async fn patch(&self, ids: &[u64], changes: &Map<String, Value>) -> Result<(), Refusal> {
        self.update(ids, |entry| patch(entry, changes)).await?;
        let is_changed = |names: &[&str]| names.iter().any(|name| changes.contains_key(*name));
        for id in ids {
            let Some(session) = self.with(*id, |content| content.live.session).flatten() else { continue };
            if is_changed(&["limit_down", "limit_up"]) {
                let entry = self.entry(*id)?;
                // One that failed has nothing to limit.
                let _ = self.handle.set_limits(session, entry.limit_down, entry.limit_up).await;
            }
            if is_changed(&["edges_first"]) {
                self.hurry_edges(*id).await;
            }
            if is_changed(&["sequential", "super_seed", "trackers", "web_seeds", "without"]) {
                self.with(*id, |content| content.live.reopen = true);
                self.changed.notify_one();
            }
        }
        Ok(())
    }

    /// Moves contents to the front or the back of the queue, in their order.
    pub(crate) async fn requeue(&self, ids: &[u64], to_front: bool) -> Result<(), Refusal> {
        let (first, last) = {
            let state = self.state();
            let ranks = || state.contents.values().map(|content| content.entry.rank);
            (ranks().min().unwrap_or(0), ranks().max().unwrap_or(0))
        };
        let count = ids.len() as i64;
        let place = |id: u64| ids.iter().position(|other| *other == id).unwrap_or(0) as i64;
        self.update(ids, |entry| {
            entry.rank = if to_front { first - count + place(entry.id) } else { last + 1 + place(entry.id) };
            Ok(())
        })
        .await
    }

    /// Moves contents one place to the front or to the back, past those that are not among them.
    pub(crate) async fn shift(&self, ids: &[u64], to_front: bool) -> Result<(), Refusal> {
        let mut order: Vec<(i64, u64)> =
            self.state().contents.values().map(|content| (content.entry.rank, content.entry.id)).collect();
        order.sort_unstable();
        if !to_front {
            order.reverse();
        }
        for at in 1..order.len() {
            if ids.contains(&order[at].1) && !ids.contains(&order[at - 1].1) {
                order.swap(at, at - 1);
            }
        }
        if !to_front {
            order.reverse();
        }
        // Ranks that are as they should be stay, so that little has to be kept.
        let mut ranks = BTreeMap::new();
        let mut last = None;
        for (rank, id) in order {
            let wanted = match last {
                Some((before, id_before)) if (rank, id) <= (before, id_before) => before + 1,
                _ => rank,
            };
            if wanted != rank {
                ranks.insert(id, wanted);
            }
            last = Some((wanted, id));
        }
        let ids: Vec<u64> = ranks.keys().copied().collect();
        self.update(&ids, |entry| {
            entry.rank = ranks.get(&entry.id).copied().unwrap_or(entry.rank);
            Ok(())
        })
        .await
    }

    /// Verifies all of a content.
    pub(crate) async fn recheck(self: &Rc<Self>, id: u64) -> Result<(), Refusal> {
        self.has_files(id)?;
        self.begin(id, Job::Recheck)?;
        let engine = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let checked = match engine.open(id).await {
                Ok(session) => engine.handle.recheck(session).await.map_err(|error| error.to_string()),
                Err(reason) => Err(reason),
            };
            engine.end(id, checked);
        });
        Ok(())
    }

    /// Moves a content's files below another folder. Begun when this is done.
    pub(crate) async fn move_to(self: &Rc<Self>, id: u64, dir: &Path) -> Result<(), Refusal> {
        let dir = self.folders().admit(dir)?;
        self.has_files(id)?;
        let entry = self.entry(id)?;
        if entry.is_only_shared() {
            return Err(Refusal::Conflict(
                "what is shared from its place stays there: add it from the other place".into(),
            ));
        }
        if entry.final_dir.is_some() && !entry.is_complete() {
            // It goes there when it is complete.
            let wanted = |entry: &mut Entry| {
                entry.final_dir = Some(dir.clone());
                Ok(())
            };
            return self.update(&[id], wanted).await;
        }
        if dir == entry.dir {
            return Ok(());
        }
        self.begin_move(id, dir).await
    }

    /// Moves a content that is complete out of the folder of those that are not.
    pub(super) async fn place(self: &Rc<Self>, id: u64, dir: PathBuf) {
        let begun = match self.begin(id, Job::Move) {
            Ok(()) => self.begin_move_of(id, dir).await,
            // It is at something else, and this comes after.
            Err(_) => return,
        };
        if let Err(error) = begun {
            self.note(id, format!("it is complete, and stays where it is for now: {error}"));
        }
    }

    async fn begin_move(self: &Rc<Self>, id: u64, dir: PathBuf) -> Result<(), Refusal> {
        self.begin(id, Job::Move)?;
        self.begin_move_of(id, dir).await
    }

    async fn begin_move_of(self: &Rc<Self>, id: u64, dir: PathBuf) -> Result<(), Refusal> {
        let to = dir.clone();
        let kept = self
            .update(&[id], |entry| {
                entry.moving_to = Some(to.clone());
                Ok(())
            })
            .await;
        if let Err(error) = kept {
            self.end(id, Ok(()));
            return Err(error);
        }
        let engine = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let moved = match engine.open(id).await {
                Ok(session) => engine.handle.move_to(session, dir.clone()).await.map_err(|error| error.to_string()),
                Err(reason) => Err(reason),
            };
            let is_moved = moved.is_ok();
            engine
                .settle(id, |entry| {
                    entry.moving_to = None;
                    if is_moved {
                        entry.dir.clone_from(&dir);
                        entry.final_dir = None;
                    }
                })
                .await;
            engine.with(id, |content| content.live.unplaced = !is_moved);
            if is_moved {
                engine.tell_complete(id).await;
            }
            engine.end(id, moved.map_err(|reason| format!("it was not moved: {reason}")));
        });
        Ok(())
    }

    /// A move was cut short by the end of the program: its files are where most of them are.
    pub(super) async fn settle_move(&self, id: u64) {
        let Ok(entry) = self.entry(id) else { return };
        let Some(to) = entry.moving_to.clone() else { return };
        let torrent = self.store.torrent(id);
        let (from, there) = (entry.dir.clone(), to.clone());
        let counted = tokio::task::spawn_blocking(move || {
            let metainfo = super::load::read(&torrent).ok()?;
            let count =
                |dir: &Path| metainfo.info.regular_files().filter(|(_, file)| dir.join(&file.path).exists()).count();
            Some(count(&there) > count(&from))
        });
        let is_moved = counted.await.ok().flatten().unwrap_or(false);
        self.settle(id, |entry| {
            entry.moving_to = None;
            if is_moved {
                entry.dir.clone_from(&to);
                entry.final_dir = None;
            }
        })
        .await;
        self.changed.notify_one();
    }

    /// Removes a content. It is gone when this is done; what is left of its files is told.
    pub(crate) async fn remove(self: &Rc<Self>, id: u64, going: Going) -> Result<Vec<PathBuf>, Refusal> {
        let entry = self.entry(id)?;
        if going == Going::Delete && entry.keeps_files() {
            let message = match entry.is_only_shared() {
                true => {
                    "its files are shared from their place and are yours: remove it without them, and delete them yourself"
                }
                false => {
                    "what a bulk transfer brought may lie among files that were there: remove it without its files, and delete them yourself"
                }
            };
            return Err(Refusal::Conflict(message.into()));
        }
        self.begin(id, Job::Remove)?;
        let kept = self
            .update(&[id], |entry| {
                entry.going = Some(going);
                Ok(())
            })
            .await;
        if let Err(error) = kept {
            self.end(id, Ok(()));
            return Err(error);
        }
        let engine = Rc::clone(self);
        // It goes on where nobody waits for it.
        let removal = tokio::task::spawn_local(async move { engine.finish_removal(id, going).await });
        removal.await.unwrap_or(Err(Refusal::Conflict("the daemon is ending".into())))
    }

    /// Has contents go, soon: from the lists at once, from the session and the disk when that is done.
    pub(crate) async fn let_go(&self, ids: &[u64], going: Going) -> Result<(), Refusal> {
        self.update(ids, |entry| {
            // What is shared from its place is the user's, and stays.
            entry.going = Some(if entry.keeps_files() { Going::Keep } else { going });
            Ok(())
        })
        .await
    }

    /// Lets a content go that is marked to go.
    pub(super) async fn finish_removal(&self, id: u64, going: Going) -> Result<Vec<PathBuf>, Refusal> {
        self.with(id, |content| {
            if let Some(hashing) = &content.live.hashing {
                hashing.cancel.store(true, Ordering::Relaxed);
            }
        });
        self.wait_settled(id).await;
        let has_files = self.with(id, |content| content.entry.size.is_some()).unwrap_or(false);
        let session = self.with(id, |content| content.live.session).flatten();
        let mut left = Vec::new();
        let session = match session {
            None if going == Going::Delete && has_files => self.open_to_go(id).await,
            session => session,
        };
        if let Some(session) = session {
            if going == Going::Delete && has_files {
                self.wait_open(id).await;
            }
            if self.with(id, |content| content.entry.broadcast().is_some() && !content.live.is_held) == Some(true) {
                self.end_broadcast(session).await;
            }
            let data = if going == Going::Delete { Data::Delete } else { Data::Keep };
            match self.handle.remove(session, data).await {
                Ok(removed) => left = removed.left,
                Err(ControlError::Unknown(_)) => {}
                // It is gone all the same: what could not be deleted is told.
                Err(error) => self.note(id, error.to_string()),
            }
        }
        let _turn = self.writing.lock().await;
        let batch = vec![(Entry::key(id), None), (Entry::totals_key(id), None)];
        self.store.write(Change { batch, torrents: Vec::new(), gone: vec![id] }).await?;
        self.state.borrow_mut().remove(id);
        self.feed.tell("removed", &serde_json::json!({ "id": id }));
        self.changed.notify_one();
        Ok(left)
    }

    /// Puts a content into the session, for its files to be deleted there.
    async fn open_to_go(&self, id: u64) -> Option<ContentId> {
        // Entries that are going are nobody's otherwise.
        let going = self.with(id, |content| content.entry.going.take())?;
        let session = self.loaded(id).await.ok();
        self.with(id, |content| content.entry.going = going);
        session
    }

    /// The content in the session, with its files open.
    async fn open(&self, id: u64) -> Result<ContentId, String> {
        let session = self.loaded(id).await?;
        match self.wait_open(id).await {
            true => Ok(session),
            false => Err(self
                .with(id, |content| content.live.failed.clone())
                .flatten()
                .unwrap_or_else(|| "its files are not open yet: try again when it has begun".to_owned())),
        }
    }

    /// Waits until a content that is on its way into the session is there, or is not.
    async fn wait_settled(&self, id: u64) {
        let began = Instant::now();
        let is_on_its_way =
            |content: &mut super::Content| matches!(content.live.phase, Phase::Loading | Phase::Hashing);
        while self.with(id, is_on_its_way) == Some(true) && began.elapsed() < OPEN_MAX {
            tokio::time::sleep(OPEN_POLL).await;
        }
    }

    async fn wait_open(&self, id: u64) -> bool {
        let began = Instant::now();
        loop {
            match self.with(id, |content| (content.live.phase, content.live.failed.is_some())) {
                Some((Phase::Open, _)) => return true,
                Some((Phase::Metadata, _) | (_, true)) | None => return false,
                Some(_) if began.elapsed() > OPEN_MAX => return false,
                Some(_) => tokio::time::sleep(OPEN_POLL).await,
            }
        }
    }

    /// Work on a content's files begins, one at a time.
    fn begin(&self, id: u64, job: Job) -> Result<(), Refusal> {
        let begun = self.with(id, |content| match content.live.job {
            Some(other) => Err(Refusal::Busy(id, other.name())),
            None => {
                content.live.job = Some(job);
                Ok(())
            }
        });
        begun.unwrap_or(Err(Refusal::Unknown(id.to_string())))?;
        self.announce(id);
        Ok(())
    }

    pub(super) fn end(&self, id: u64, outcome: Result<(), String>) {
        if let Err(reason) = outcome {
            self.note(id, reason);
        }
        self.with(id, |content| content.live.job = None);
        self.announce(id);
        self.changed.notify_one();
    }

    /// Asks a content's trackers as soon as they allow.
    pub(crate) async fn reannounce(&self, id: u64) -> Result<(), Refusal> {
        Ok(self.handle.reannounce(self.at_work(id)?).await?)
    }

    /// Dials peers for a content.
    pub(crate) async fn add_peers(&self, id: u64, peers: &[String]) -> Result<(), Refusal> {
        let must = || Refusal::Invalid { field: "peers", must: "addresses with ports".into() };
        let parsed: Vec<Endpoint> =
            peers.iter().map(|peer| Some(parse_peer(peer)?.0)).collect::<Option<_>>().ok_or_else(must)?;
        Ok(self.handle.add_peers(self.at_work(id)?, parsed).await?)
    }

    pub(super) fn at_work(&self, id: u64) -> Result<ContentId, Refusal> {
        self.entry(id)?;
        let session = self.with(id, |content| content.live.session).flatten();
        session.ok_or_else(|| Refusal::Conflict(format!("content {id} is not at work: have it go on first")))
    }

    /// Says how much files are wanted, 0 to 7.
    pub(crate) async fn set_files(&self, id: u64, levels: &BTreeMap<usize, u8>) -> Result<(), Refusal> {
        self.has_files(id)?;
        let entry = self.entry(id)?;
        if entry.is_only_shared() || matches!(entry.origin, Origin::Link(_)) {
            return Err(Refusal::Conflict(
                "there is nothing to choose among: all of it is shared, or it is one file".into(),
            ));
        }
        let info = self.info(id).await?;
        if let Some(strange) = levels.keys().find(|file| **file >= info.files.len()) {
            return Err(Refusal::Invalid { field: "files", must: format!("files that there are: {strange} is none") });
        }
        self.update(&[id], |entry| {
            for (file, level) in levels {
                match level {
                    4 => entry.priorities.remove(file),
                    level => entry.priorities.insert(*file, *level),
                };
            }
            Ok(())
        })
        .await?;
        let all = self.entry(id)?.priorities;
        let session = self.with(id, |content| {
            content.live.desk = None;
            content.live.session.filter(|_| content.live.phase == Phase::Open)
        });
        if let Some(session) = session.flatten() {
            let wanted = all.clone();
            self.handle.set_files(session, Box::new(move |file, _| super::load::priority(&wanted, file))).await?;
        }
        let size = |(at, file): (usize, &anabranch_content::info::FileEntry)| {
            if all.get(&at) == Some(&0) { 0 } else { file.length }
        };
        let total = info.regular_files().map(size).sum();
        self.learn(id, |entry| entry.size = Some(total));
        Ok(())
    }

    /// What a content is.
    pub(crate) async fn info(&self, id: u64) -> Result<std::sync::Arc<Info>, Refusal> {
        self.entry(id)?;
        if let Some(session) = self.with(id, |content| content.live.session).flatten()
            && let Ok(Some(info)) = self.handle.info(session).await
        {
            return Ok(info);
        }
        let path = self.store.torrent(id);
        let read = tokio::task::spawn_blocking(move || super::load::read(&path).map(|metainfo| metainfo.info)).await;
        let unknown = || Refusal::Conflict(format!("it is not known yet what content {id} is: wait for its metadata"));
        read.ok().and_then(Result::ok).ok_or_else(unknown)
    }

    /// A file to be played while it arrives.
    pub(crate) async fn play(&self, id: u64, file: usize) -> Result<Play, Refusal> {
        let session = self.at_work(id)?;
        if self.entry(id)?.is_live() {
            return self.play_live(id, session, file);
        }
        self.has_files(id)?;
        let info = self.info(id).await?;
        let regular = info.files.get(file).is_some_and(anabranch_content::info::FileEntry::is_regular);
        if !regular {
            return Err(Refusal::Unknown(format!("{id} with a file {file}")));
        }
        let entry = self.entry(id)?;
        if entry.priorities.get(&file) == Some(&0) {
            self.set_files(id, &BTreeMap::from([(file, 4)])).await?;
        }
        if let Some(desk) = self.with(id, |content| content.live.desk.clone()).flatten() {
            return Ok(Play { desk, number: file as u32 });
        }
        let priorities = self.entry(id)?.priorities;
        let shown = |(index, file): (usize, &anabranch_content::info::FileEntry)| ShownFile {
            index,
            number: index as u32,
            path: file.path.to_string_lossy().into_owned(),
            name: file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            length: file.length,
        };
        let wanted = info.regular_files().map(|(index, _)| index).filter(|index| priorities.get(index) != Some(&0));
        let show = Show {
            id: session,
            name: entry.shown_name().to_owned(),
            hash: entry.hashes.first().cloned().unwrap_or_default(),
            files: info.regular_files().map(shown).collect(),
            wanted: wanted.collect::<BTreeSet<usize>>(),
            is_live: false,
        };
        let desk = Rc::new(FileServer::new(self.handle.clone(), show));
        self.with(id, |content| content.live.desk = Some(Rc::clone(&desk)));
        Ok(Play { desk, number: file as u32 })
    }
}

impl Engine {
    /// A live stream, for each player from its newest on.
    fn play_live(&self, id: u64, session: ContentId, file: usize) -> Result<Play, Refusal> {
        if file != 0 {
            return Err(Refusal::Unknown(format!("{id} with a file {file}")));
        }
        if let Some(desk) = self.with(id, |content| content.live.desk.clone()).flatten() {
            return Ok(Play { desk, number: 0 });
        }
        let entry = self.entry(id)?;
        let name = entry.shown_name().to_owned();
        let file = ShownFile { index: 0, number: 0, path: name.clone(), name: name.clone(), length: 0 };
        let hash = entry.hashes.first().cloned().unwrap_or_default();
        let show = Show { id: session, name, hash, files: vec![file], wanted: BTreeSet::from([0]), is_live: true };
        let desk = Rc::new(FileServer::new(self.handle.clone(), show));
        self.with(id, |content| content.live.desk = Some(Rc::clone(&desk)));
        Ok(Play { desk, number: 0 })
    }
}

/// Changes options.
fn patch(entry: &mut Entry, changes: &Map<String, Value>) -> Result<(), Refusal> {
    let invalid = |field, must: &str| Refusal::Invalid { field, must: must.to_owned() };
    let text = |field, value: &Value| -> Result<Option<String>, Refusal> {
        match value {
            Value::Null => Ok(None),
            value => Ok(Some(value.as_str().ok_or_else(|| invalid(field, "a text or null"))?.to_owned())),
        }
    };
    let texts = |field, value: &Value| -> Result<Vec<String>, Refusal> {
        let texts =
            value.as_array().and_then(|texts| texts.iter().map(|text| text.as_str().map(str::to_owned)).collect());
        texts.ok_or_else(|| invalid(field, "a list of texts"))
    };
    let flag = |field, value: &Value| value.as_bool().ok_or_else(|| invalid(field, "true or false"));
    for (name, value) in changes {
        match name.as_str() {
            "name" => entry.title = text("name", value)?,
            "category" => entry.category = text("category", value)?,
            "tags" => entry.tags = texts("tags", value)?.into_iter().collect(),
            "forced" => entry.forced = flag("forced", value)?,
            "sequential" => entry.sequential = flag("sequential", value)?,
            "edges_first" => entry.edges_first = flag("edges_first", value)?,
            "super_seed" => entry.super_seed = flag("super_seed", value)?,
            "limit_down" => entry.limit_down = whole("limit_down", value)?,
            "limit_up" => entry.limit_up = whole("limit_up", value)?,
            "ratio_max" => entry.ratio_max = own_ratio("ratio_max", value)?,
            "seed_seconds_max" => entry.seed_seconds_max = own_whole("seed_seconds_max", value)?,
            "idle_seconds_max" => entry.idle_seconds_max = own_whole("idle_seconds_max", value)?,
            "trackers" => entry.trackers = texts("trackers", value)?,
            "web_seeds" => entry.web_seeds = texts("web_seeds", value)?,
            "without" => entry.without = texts("without", value)?.into_iter().collect(),
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(invalid(
                    "changes",
                    &format!("named as the description of the API has them: `{other}` is not there"),
                ));
            }
        }
    }
    super::add::check(entry)
}
