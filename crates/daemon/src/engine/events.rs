//! What the session tells of its contents.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::info::Info;
use anabranch_content::magnet::Magnet;
use anabranch_paths::select::Selector;
use anabranch_swarm::{ContentId, ControlError, Event, EventKind, Events, FailureKind, PauseCause, Progress};
use serde_json::json;

use super::live::{Choice, PathChange, Phase};
use super::view::path_name;
use super::{Completed, Engine, Whole, unix_now};
use crate::library::{About, Origin};
use crate::store::Change;

/// Files of a content whose first and last pieces go before the others.
const EDGES_MAX: usize = 1000;
/// Events of contents that are being added which wait for these.
const EARLY_EVENTS_MAX: usize = 4096;

/// What was told of contents before it was known which they are: they are just being added.
#[derive(Default)]
pub(super) struct Early {
    events: BTreeMap<ContentId, Vec<Event>>,
    count: usize,
}

impl Early {
    fn push(&mut self, event: Event) {
        while self.count >= EARLY_EVENTS_MAX
            && let Some((_, forgotten)) = self.events.pop_first()
        {
            self.count -= forgotten.len();
        }
        self.count += 1;
        self.events.entry(event.content).or_default().push(event);
    }

    /// What was told of one.
    pub(super) fn take(&mut self, session: ContentId) -> Vec<Event> {
        let events = self.events.remove(&session).unwrap_or_default();
        self.count -= events.len();
        events
    }
}

/// What is known of a content that may have changed unheard.
#[derive(Default)]
struct Known {
    phase: Phase,
    /// Storage is out of order, as was told.
    waits: bool,
    /// The session was told to have it wait, or to work on its files.
    is_held: bool,
    has_failed: bool,
}

impl Known {
    fn of(content: &super::Content) -> Self {
        let super::Content { entry, live, .. } = content;
        Self {
            phase: live.phase,
            // What a content that is only shared lacks, it goes on lacking.
            waits: live.waits.is_some() && !entry.is_only_shared(),
            is_held: live.is_held || live.job.is_some(),
            has_failed: live.failed.is_some(),
        }
    }

    /// What the session told of a content that fares like this, and was not heard. Without `info` nothing but its failure shows.
    fn unheard(&self, info: Option<&Info>, progress: &Progress, has_failed: bool) -> Vec<EventKind> {
        let mut unheard = Vec::new();
        if has_failed && !self.has_failed {
            let reason = "it failed while more happened than could be kept: resume it to try again, which says why";
            unheard.push(EventKind::Failed { kind: FailureKind::Internal, reason: reason.to_owned() });
        }
        let Some(info) = info.filter(|_| !has_failed) else { return unheard };
        if !matches!(self.phase, Phase::Opening | Phase::Checking(..) | Phase::Open) {
            unheard.push(EventKind::Metadata { name: info.name.clone(), hashes: info.hashes });
        }
        let &Progress { pieces_have, pieces_total, bytes_done, bytes_total, finished, paused, .. } = progress;
        let Some(bytes_total) = bytes_total else { return unheard };
        if self.phase != Phase::Open {
            let changed_files = Vec::new();
            unheard.push(EventKind::Started { pieces_have, pieces_total, bytes_done, bytes_total, changed_files });
        }
        if finished {
            unheard.push(EventKind::Finished);
        }
        if self.waits && !paused {
            unheard.push(EventKind::Resumed);
        }
        if !self.waits && paused && !self.is_held {
            let reason = "its files cannot be written, or cannot be read, at present".to_owned();
            unheard.push(EventKind::Paused { cause: PauseCause::Storage, reason });
        }
        unheard
    }
}

impl Engine {
    /// Takes in what the session tells, until it ends.
    pub(crate) async fn listen(self: Rc<Self>, mut events: Events) {
        loop {
            while let Some(event) = events.recv().await {
                self.on_event(event).await;
            }
            // It has ended, or gave us up because we were far behind. In this order: what it tells from here on is heard.
            events = self.handle.subscribe();
            if self.catch_up().await.is_err() {
                return;
            }
        }
    }

    /// Finds out what was told and not heard: which contents are gone, and how the others fare. An error where the session has ended.
    async fn catch_up(&self) -> Result<(), ControlError> {
        let there = self.handle.list().await?;
        let staying: HashSet<ContentId> = there.iter().copied().collect();
        let gone: Vec<ContentId> =
            self.state().by_session.keys().copied().filter(|content| !staying.contains(content)).collect();
        for content in gone {
            self.on_event(Event { content, kind: EventKind::Removed }).await;
        }
        for (content, progress) in self.handle.progress_of(there).await? {
            // Of one that is just being added, what it is told of waits for that.
            let id = self.state().by_session.get(&content).copied();
            let known = id.and_then(|id| self.with(id, |content| Known::of(content))).unwrap_or_default();
            let info = self.handle.info(content).await.ok().flatten();
            // Nothing is asked of it but whether anything can be.
            let has_failed = matches!(self.handle.add_peers(content, Vec::new()).await, Err(ControlError::Failed(_)));
            for kind in known.unheard(info.as_deref(), &progress, has_failed) {
                self.on_event(Event { content, kind }).await;
            }
        }
        Ok(())
    }

    /// Takes an event in.
    pub(super) async fn on_event(&self, event: Event) {
        let id = {
            let mut state = self.state.borrow_mut();
            match state.by_session.get(&event.content) {
                Some(id) => *id,
                None => return state.early.push(event),
            }
        };
        match event.kind {
            EventKind::Metadata { name, hashes } => {
                let names = super::add::names(&hashes);
                self.with(id, |content| content.live.phase = Phase::Opening);
                self.learn(id, |entry| {
                    // Magnet links and those of PPSPP may call it anything.
                    if !matches!(entry.origin, Origin::Link(_)) {
                        entry.hashes = names;
                    }
                    entry.name = name;
                });
            }
            EventKind::Checking { bytes_done, bytes_total } => {
                self.with(id, |content| content.live.phase = Phase::Checking(bytes_done, bytes_total));
            }
            EventKind::Started { bytes_done, bytes_total, .. } => self.on_started(id, bytes_done, bytes_total).await,
            EventKind::Finished => self.on_finished(id),
            EventKind::SuperSeeded { uploaded_bytes } => {
                self.note(id, format!("the others have a whole copy among them, of {uploaded_bytes} bytes that were sent: it is shared as usual from now on"));
                // The next run does not begin with that again.
                self.settle(id, |entry| entry.super_seed = false).await;
            }
            EventKind::Checked { pieces_have, pieces_total } => {
                self.note(id, format!("verified: {pieces_have} of {pieces_total} pieces are good"));
                if pieces_have < pieces_total {
                    self.lacks(id);
                }
            }
            EventKind::Paused { cause: PauseCause::Storage, reason } => {
                self.note(id, reason.clone());
                self.with(id, |content| content.live.waits = Some(reason));
            }
            EventKind::Resumed => {
                // What a stream of ours waits for is its input.
                self.with(id, |content| {
                    if content.entry.broadcast().is_none() {
                        content.live.waits = None;
                    }
                });
            }
            EventKind::Failed { reason, .. } => {
                self.note(id, reason.clone());
                self.with(id, |content| content.live.failed = Some(reason));
                self.changed.notify_one();
            }
            EventKind::LiveJoined { .. } => {
                self.note(id, "joined the stream".to_owned());
                self.with(id, |content| content.live.waits = None);
            }
            EventKind::LiveRestarted => self.note(id, "the source began anew: what follows is a new stream".to_owned()),
            EventKind::Bulk(news) => self.on_bulk(id, news).await,
            EventKind::Removed => {
                self.state.borrow_mut().by_session.remove(&event.content);
                self.with(id, |content| {
                    if content.live.session == Some(event.content) {
                        content.leave();
                    }
                });
                self.changed.notify_one();
            }
            other => {
                self.on_passing(id, other);
                return;
            }
        }
        self.announce(id);
    }

    /// What only says how things go on.
    fn on_passing(&self, id: u64, kind: EventKind) {
        let at = unix_now();
        match kind {
            EventKind::Tracker { url, peers } => {
                self.with(id, |content| content.live.tracker(url, Ok(peers), at));
            }
            EventKind::TrackerFailed { url, reason } => {
                self.with(id, |content| content.live.tracker(url, Err(reason), at));
            }
            EventKind::LiveTwin { address } => {
                self.note(
                    id,
                    format!("somebody else broadcasts with the key of this stream: {address} has that stream"),
                );
            }
            EventKind::PeerBanned { address, reason } => self.note(id, format!("banned {address}: {reason}")),
            EventKind::PeerFailed { address, reason, .. } => self.note(id, format!("peer {address}: {reason}")),
            EventKind::PieceFailed { index } => {
                self.note(id, format!("piece {index} failed its hash and is fetched again"))
            }
            EventKind::PathsChosen { peer, selector, trigger, verdicts } => {
                let choice = Choice { selector: selector.map(Selector::name), why: trigger.to_string(), at, verdicts };
                self.with(id, |content| content.live.choice(peer.to_string(), choice));
                self.feed.tell("paths", &json!({ "id": id }));
            }
            EventKind::PathChanged { peer, path, condition, reason } => {
                let change = PathChange {
                    at,
                    peer: peer.to_string(),
                    path: path_name(&path),
                    state: condition.to_string(),
                    reason: reason.to_string(),
                };
                let told = json!({ "id": id, "peer": change.peer, "path": change.path, "state": change.state, "reason": change.reason });
                self.with(id, |content| content.live.path_change(change));
                self.feed.tell("path", &told);
            }
            _ => {}
        }
    }

    /// Files are open: what is there is known.
    async fn on_started(&self, id: u64, done: u64, total: u64) {
        let levels = self.with(id, |content| {
            (content.live.phase, content.live.waits) = (Phase::Open, None);
            content.entry.priorities.clone()
        });
        self.learn(id, |entry| (entry.size, entry.done) = (Some(total), done));
        if done < total {
            self.lacks(id);
        }
        self.keep_torrent(id).await;
        self.keep_about(id).await;
        self.hurry_edges(id).await;
        let Some(levels) = levels.filter(|levels| levels.values().any(|level| *level > 0)) else { return };
        if let Some(session) = self.with(id, |content| content.live.session).flatten() {
            let choose = move |file: usize, _: &_| super::load::priority(&levels, file);
            // A content that is only shared is all wanted.
            let _ = self.handle.set_files(session, Box::new(choose)).await;
        }
    }

    /// Some of a content is missing: it is fetched, or where the files are the user's, that is told.
    fn lacks(&self, id: u64) {
        let is_only_shared = self.with(id, |content| {
            let is_only_shared = content.entry.is_only_shared();
            if is_only_shared {
                let reason = "its files are not what they were when it was added: what is good of them is shared; remove it, and add it again";
                content.live.waits = Some(reason.to_owned());
            }
            is_only_shared
        });
        if is_only_shared == Some(false) {
            self.learn(id, |entry| entry.completed = None);
        }
    }

    fn on_finished(&self, id: u64) {
        let was = self.with(id, |content| {
            content.live.phase = Phase::Open;
            content.entry.completed
        });
        if was != Some(None) {
            return;
        }
        self.note(id, "complete".to_owned());
        let is_placed = self.with(id, |content| {
            content.live.untold = true;
            content.entry.final_dir.is_none()
        });
        if is_placed == Some(true) {
            // Once that is kept: nobody is told of it twice.
            self.state.borrow_mut().finished.push(id);
        }
        self.learn(id, |entry| {
            entry.completed = Some(unix_now());
            entry.done = entry.size.unwrap_or(entry.done);
        });
    }

    /// Tells who does something about contents that are complete, once it is where it stays.
    pub(super) async fn tell_complete(&self, id: u64) {
        let Some(completed) = &self.completed else { return };
        let of = self.with(id, |content| {
            let session = content.live.session.filter(|_| std::mem::take(&mut content.live.untold))?;
            Some((session, content.entry.dir.clone()))
        });
        let Some((session, dir)) = of.flatten() else { return };
        if let Ok(Some(info)) = self.handle.info(session).await {
            // Nobody has to hear of it.
            let _ = completed.try_send(Completed { session, what: Whole::Content(info), dir });
        }
    }

    /// Keeps the torrent of a magnet link, so that its files can be listed without it being at work.
    async fn keep_torrent(&self, id: u64) {
        let of_magnet = |content: &mut super::Content| match content.entry.origin {
            Origin::Magnet(_) => content.live.session,
            _ => None,
        };
        let Some(session) = self.with(id, of_magnet).flatten() else { return };
        if self.store.torrent(id).exists() {
            return;
        }
        if let Ok(Some(metainfo)) = self.handle.metainfo(session).await {
            let change = Change { torrents: vec![(id, metainfo.encode())], ..Change::default() };
            // Without it, the list of files waits for the content to be at work.
            let _ = self.store.write(change).await;
        }
    }

    /// Keeps what a content's torrent says of itself, where that is not known yet.
    async fn keep_about(&self, id: u64) {
        let Some((origin, session)) = self
            .with(id, |content| {
                content.entry.about.is_none().then(|| (content.entry.origin.clone(), content.live.session))
            })
            .flatten()
        else {
            return;
        };
        let about = match (origin, session) {
            (Origin::Magnet(link), Some(session)) => {
                let info = self.handle.info(session).await.ok().flatten();
                let of_link =
                    |about: About| link.parse::<Magnet>().map(|magnet| about.with_link(&magnet)).unwrap_or_default();
                info.map(|info| of_link(About::of_info(&info)))
            }
            (Origin::Link(_), Some(session)) => {
                self.handle.info(session).await.ok().flatten().map(|info| About::of_info(&info))
            }
            (Origin::Torrent | Origin::Path { .. }, _) => self.about_in_file(id).await,
            _ => None,
        };
        if let Some(about) = about.map(Arc::new) {
            self.learn(id, |entry| entry.about = Some(about));
        }
    }

    /// What the torrent says of itself that is kept of a content.
    pub(super) async fn about_in_file(&self, id: u64) -> Option<About> {
        let path = self.store.torrent(id);
        let read = tokio::task::spawn_blocking(move || super::load::read(&path).map(|metainfo| About::of(&metainfo)));
        read.await.ok()?.ok()
    }

    /// Has the first and the last piece of each file go before the others, or not any more.
    pub(super) async fn hurry_edges(&self, id: u64) {
        let of = self.with(id, |content| {
            let is_open = content.live.phase == Phase::Open && !content.entry.is_complete();
            let session = content.live.session.filter(|_| is_open)?;
            Some((session, content.entry.edges_first, content.entry.priorities.clone()))
        });
        let Some((session, edges_first, priorities)) = of.flatten() else { return };
        let Ok(Some(info)) = self.handle.info(session).await else { return };
        let at = edges_first.then(Instant::now);
        let wanted = info.regular_files().map(|(file, _)| file).filter(|file| priorities.get(file) != Some(&0));
        for file in wanted.take(EDGES_MAX) {
            let (first, last) = (info.pieces_of_file(file).next(), info.pieces_of_file(file).last());
            for piece in first.into_iter().chain(last) {
                // A content that goes needs no piece.
                let _ = self.handle.set_deadline(session, piece, at).await;
            }
        }
    }

    /// Notes what happened to a content, for people.
    pub(super) fn note(&self, id: u64, text: String) {
        let at = unix_now();
        self.feed.tell("note", &json!({ "id": id, "time": at, "text": text }));
        self.with(id, |content| content.live.note(at, text));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use anabranch_content::metainfo::Metainfo;
    use anabranch_swarm::{Data, Session, SessionConfig, TorrentStats};
    use tokio::task::LocalSet;

    use super::super::live::Job;
    use super::super::{Common, NewContent, NewSource};
    use super::*;
    use crate::feed::Feed;
    use crate::folders::Folders;
    use crate::store::Store;

    /// A test that takes longer hangs.
    const TEST_MAX: Duration = Duration::from_secs(60);

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new()
            .block_on(&runtime, async { tokio::time::timeout(TEST_MAX, test).await.expect("the test hangs") });
        runtime.shutdown_background();
    }

    fn session(seed: u64) -> (Session, Events) {
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        Session::start(SessionConfig { seed, listen, disk_threads: 1, ..SessionConfig::default() }).unwrap()
    }

    /// A library over a session, that nobody drives.
    fn library(session: &Session, dir: &Path) -> Rc<Engine> {
        let folders = Folders::new([dir]).unwrap();
        let opened = Store::open(&dir.join("state")).unwrap();
        let feed = Feed::new("run".to_owned());
        Engine::new(session.handle(), opened, feed, folders, dir.to_owned(), Common::default(), None).0
    }

    async fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[test]
    fn whoever_was_given_up_as_a_reader_asks_how_contents_fare_and_hears_what_follows() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::write(root.join("shared"), vec![7; 100_000]).unwrap();
        run(async {
            let (node, mut told) = session(1);
            let engine = library(&node, &root);
            let id = engine.add(NewContent::new(NewSource::Path(root.join("shared")))).await.unwrap();
            let content = engine.load(id).await.unwrap();
            while !matches!(told.recv().await.unwrap().kind, EventKind::Started { .. }) {}
            let phase = || engine.with(id, |content| content.live.phase).unwrap();
            assert_eq!(phase(), Phase::Opening, "nobody listened");
            // Another session's events end, as those of a reader do that was given up.
            let (other, ended) = session(2);
            drop(other);
            let listening = tokio::task::spawn_local(Rc::clone(&engine).listen(ended));
            until(|| phase() == Phase::Open).await;
            node.remove(content, Data::Keep).await.unwrap();
            until(|| phase() == Phase::Out).await;
            drop(node);
            listening.await.unwrap();
        });
    }

    #[test]
    fn a_content_that_went_unheard_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::write(root.join("shared"), vec![7; 100_000]).unwrap();
        run(async {
            let (node, _told) = session(1);
            let engine = library(&node, &root);
            let id = engine.add(NewContent::new(NewSource::Path(root.join("shared")))).await.unwrap();
            let content = engine.load(id).await.unwrap();
            let is_held = || engine.with(id, |content| Known::of(content).is_held);
            assert_eq!(is_held(), Some(false));
            engine.with(id, |content| content.live.job = Some(Job::Recheck));
            assert_eq!(is_held(), Some(true), "it waits for whoever works on its files, and for nothing else");
            engine.with(id, |content| content.live.job = None);
            node.remove(content, Data::Keep).await.unwrap();
            assert_ne!(engine.with(id, |content| content.live.phase), Some(Phase::Out));
            engine.catch_up().await.unwrap();
            assert_eq!(engine.with(id, |content| content.live.phase), Some(Phase::Out));
            drop(node);
            assert!(matches!(engine.catch_up().await, Err(ControlError::Gone)));
        });
    }

    fn name(kind: EventKind) -> &'static str {
        match kind {
            EventKind::Metadata { .. } => "metadata",
            EventKind::Started { .. } => "started",
            EventKind::Finished => "finished",
            EventKind::Resumed => "resumed",
            EventKind::Paused { cause: PauseCause::Storage, .. } => "paused",
            EventKind::Failed { .. } => "failed",
            _ => "another",
        }
    }

    #[test]
    fn what_was_not_heard_follows_from_how_a_content_fares() {
        let torrent = b"d4:infod6:lengthi1e4:name1:x12:piece lengthi16384e6:pieces20:aaaaaaaaaaaaaaaaaaaaee";
        let info = Metainfo::parse(torrent).unwrap().info;
        let progress = |bytes_total, finished, paused| Progress {
            name: None,
            bytes_done: 0,
            bytes_total,
            pieces_have: 0,
            pieces_total: 1,
            stats: TorrentStats::default(),
            finished,
            paused,
        };
        let (opening, open, complete) =
            (progress(None, false, false), progress(Some(1), false, false), progress(Some(1), true, false));
        let waiting = progress(Some(1), false, true);
        let known = |phase| Known { phase, ..Known::default() };
        let (new, at_work) = (|| known(Phase::Metadata), || known(Phase::Open));
        let unheard = |known: Known, info: Option<&Info>, progress: &Progress, has_failed| -> Vec<&str> {
            known.unheard(info, progress, has_failed).into_iter().map(name).collect()
        };
        let info = Some(&*info);
        assert_eq!(unheard(new(), None, &opening, false), [""; 0], "its metadata is not known yet");
        assert_eq!(unheard(new(), info, &opening, false), ["metadata"]);
        assert_eq!(unheard(new(), info, &open, false), ["metadata", "started"]);
        assert_eq!(unheard(known(Phase::Checking(1, 2)), info, &open, false), ["started"]);
        assert_eq!(unheard(at_work(), info, &open, false), [""; 0]);
        assert_eq!(unheard(at_work(), info, &complete, false), ["finished"]);
        assert_eq!(unheard(at_work(), info, &waiting, false), ["paused"]);
        assert_eq!(unheard(Known { is_held: true, ..at_work() }, info, &waiting, false), [""; 0]);
        assert_eq!(unheard(Known { waits: true, ..at_work() }, info, &waiting, false), [""; 0]);
        assert_eq!(unheard(Known { waits: true, ..at_work() }, info, &open, false), ["resumed"]);
        assert_eq!(unheard(new(), info, &open, true), ["failed"]);
        assert_eq!(unheard(Known { has_failed: true, ..new() }, info, &open, true), [""; 0]);
    }
}
