//! A torrent as its session sees it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::torrent::PeerStats;
use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::Info;
use anabranch_content::storage::{Storage, StorageError};
use anabranch_paths::Endpoint;

use super::files;
use super::torrent::{TorrentDriver, TorrentHandle, open};
use crate::events::{EventKind, PauseCause};
use crate::store::disk::Reply;
use crate::store::readers::Readable;
use crate::store::watch::Watched;
use crate::transfer::files::{Files, Others};
use crate::transfer::{ControlError, FilePriorities, Lifecycle, PathProgress, Progress, Sources, Task, Transfer, Work};

impl Transfer for TorrentHandle {
    fn lifecycle(&self) -> Lifecycle {
        let state = self.borrow();
        match (state.is_leaving, state.stopping) {
            (true, _) => Lifecycle::Leaving,
            (false, true) => Lifecycle::Failed,
            (false, false) => Lifecycle::AtWork,
        }
    }

    fn tell(&self, kind: EventKind) {
        self.borrow().tell(kind);
    }

    fn progress(&self, now: Instant) -> Progress {
        self.borrow_mut().progress(now)
    }

    fn peers(&self, now: Instant) -> Vec<PeerStats> {
        self.borrow_mut().core.peer_stats(now)
    }

    fn paths(&self, now: Instant) -> Vec<PathProgress> {
        let mut state = self.borrow_mut();
        let peers = state.core.peer_stats(now);
        state.paths.progress(peers)
    }

    fn sources(&self, now: Instant) -> Sources {
        self.borrow().sources(now)
    }

    fn info(&self) -> Option<Arc<Info>> {
        self.borrow().core.known_info().cloned()
    }

    fn place(&self) -> Option<(PathBuf, Arc<Info>)> {
        let state = self.borrow();
        let info = state.storage.as_ref().map(|storage| storage.info()).or(state.core.known_info())?;
        Some((std::path::absolute(&state.options.dir).ok()?, Arc::clone(info)))
    }

    fn readable(&self) -> Rc<RefCell<dyn Readable>> {
        Self::readable(self)
    }

    fn set_deadline(&self, piece: u32, deadline: Option<Instant>, now: Instant) {
        let mut state = self.borrow_mut();
        state.core.set_deadlines(&[(piece, deadline)], now);
        state.pump(now);
    }

    fn pause(&self) {
        let mut state = self.borrow_mut();
        if !std::mem::replace(&mut state.is_paused_by_owner, true) {
            state.hold("this content is paused");
            state.announce.notify_one();
            state.tell(EventKind::Paused { cause: PauseCause::Owner, reason: "its owner has it wait".to_owned() });
        }
    }

    fn resume(&self) {
        let mut state = self.borrow_mut();
        if std::mem::take(&mut state.is_paused_by_owner) && state.let_go() {
            state.tell(EventKind::Resumed);
        }
    }

    fn reannounce(&self) {
        let mut state = self.borrow_mut();
        state.is_announce_due = true;
        state.announce.notify_one();
    }

    fn add_peers(&self, peers: &[Endpoint], _: Instant) {
        let mut state = self.borrow_mut();
        peers.iter().for_each(|peer| state.name_peer(*peer));
        state.dial.notify_one();
    }

    fn begin_work(&self, work: Work) -> Result<(), ControlError> {
        let mut state = self.borrow_mut();
        if state.options.read_only && matches!(work, Work::Move | Work::Select) {
            return Err(ControlError::OnlyShared(state.id));
        }
        if state.storage.is_none() {
            return Err(ControlError::NotOpen(state.id));
        }
        if let Some(busy) = state.work {
            return Err(ControlError::Busy(state.id, busy));
        }
        state.work = Some(work);
        if work != Work::Select {
            state.hold("its files are being worked on");
        }
        Ok(())
    }

    fn end_work(&self) {
        let mut state = self.borrow_mut();
        state.work = None;
        state.let_go();
    }

    fn spawn(&self, task: Task<()>) {
        self.borrow().spawn(open::guarded(self.clone(), task));
    }

    fn recheck(&self) -> Task<Result<(), ControlError>> {
        Box::pin(files::check_all(self.clone()))
    }

    fn move_to(&self, dir: PathBuf) -> Task<Result<(), ControlError>> {
        Box::pin(files::move_files(self.clone(), dir))
    }

    fn set_files(&self, files: FilePriorities) -> Task<Result<(), ControlError>> {
        Box::pin(files::select(self.clone(), files))
    }

    fn on_disk(&self, reply: Reply, now: Instant) {
        let mut state = self.borrow_mut();
        match reply {
            Reply::Verified(verified) => state.verified(verified, now),
            Reply::Spilled(spilled) => state.spilled(spilled, now),
            Reply::ReadAhead { conn, .. } => state.readahead_done(conn),
            Reply::Leaves { piece, hashes, .. } => {
                state.core.leaves_ready(piece, &hashes);
                state.pump(now);
            }
            Reply::Reread { piece, readable, .. } => state.reread(piece, readable, now),
            Reply::LayersKept { .. } | Reply::Advised { .. } => {}
            Reply::Panicked { .. } => state.panicked(now),
        }
    }

    fn retry_storage(&self) {
        self.borrow_mut().retry_storage();
    }

    fn watched_files(&self) -> Option<Arc<Storage>> {
        Watched::watched_files(self)
    }

    fn files_changed(&self, files: &[usize]) {
        let mut state = self.borrow_mut();
        let new: Vec<usize> = files.iter().copied().filter(|file| !state.in_doubt.contains(file)).collect();
        state.files_changed(&new);
    }

    fn checkpoint(&self, now: Instant) -> Option<Task<()>> {
        let resume = files::due(&mut self.borrow_mut(), now)?;
        Some(Box::pin(open::guarded(self.clone(), files::checkpoint(self.clone(), resume))))
    }

    fn is_only_shared(&self) -> bool {
        self.borrow().options.read_only
    }

    fn leave(&self, reason: &str) {
        let mut state = self.borrow_mut();
        state.is_leaving = true;
        state.stop(reason);
    }

    fn is_announcing(&self) -> bool {
        self.borrow().is_announcing
    }

    fn is_busy(&self) -> bool {
        self.borrow().is_busy()
    }

    fn close(&self) -> Task<()> {
        let (stats, is_done_with) = {
            let mut state = self.borrow_mut();
            (state.core.stats(Instant::now()), state.is_done_with())
        };
        let closing = given_up(self).close(stats.downloaded_bytes, stats.uploaded_bytes, is_done_with);
        Box::pin(open::guarded(self.clone(), closing))
    }

    fn delete(&self, others: Others) -> Task<Result<Vec<PathBuf>, StorageError>> {
        Box::pin(given_up(self).delete(others))
    }

    fn end(&self) {
        self.borrow_mut().end();
    }

    fn abandon(&self) {
        self.borrow_mut().stop("we are leaving");
        given_up(self).release();
        self.end();
    }
}

fn given_up(torrent: &TorrentHandle) -> Files {
    let (resume, storage) = torrent.borrow_mut().give_up_files();
    Files { resume, storage, beside: Vec::new() }
}

impl TorrentDriver {
    /// How it fares.
    pub(crate) fn progress(&mut self, now: Instant) -> Progress {
        let stats = self.core.stats(now);
        let finished = self.core.is_finished() && !self.is_being_finished();
        let paused = self.core.is_paused();
        let (done, total) = self.core.wanted_bytes().unzip();
        let info = self.core.info();
        Progress {
            name: info.map(|info| info.name.clone()),
            bytes_done: done.unwrap_or(0),
            bytes_total: total,
            pieces_have: self.core.have().map_or(0, Bitfield::count),
            pieces_total: info.map_or(0, |info| info.geometry.piece_count()),
            stats,
            finished,
            paused,
        }
    }
}
