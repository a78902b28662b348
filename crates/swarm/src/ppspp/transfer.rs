//! A content of PPSPP as its session sees it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::torrent::PeerStats;
use anabranch_content::info::Info;
use anabranch_content::storage::{Storage, StorageError};
use anabranch_paths::Endpoint;

use super::checkpoint::checkpoint;
use super::content::{Handle, finish, guarded};
use super::nodes::tree_path;
use crate::events::EventKind;
use crate::store::disk::Reply;
use crate::store::live::LiveWindow;
use crate::store::readers::Readable;
use crate::store::watch::Watched;
use crate::transfer::LiveState;
use crate::transfer::PathProgress;
use crate::transfer::Sources;
use crate::transfer::files::{Files, Others};
use crate::transfer::live::LiveTransfer;
use crate::transfer::{ControlError, FilePriorities, Lifecycle, Progress, Task, Transfer, Work};

impl LiveTransfer for Handle {
    fn window(&self) -> Rc<RefCell<LiveWindow>> {
        let state = self.borrow();
        state.live.as_ref().map(|live| Rc::clone(&live.window)).unwrap_or_default()
    }

    fn push(&self, bytes: &[u8], now: Instant) {
        self.borrow_mut().push_live(bytes, now);
    }

    fn finish(&self, now: Instant) {
        self.borrow_mut().end_live(now);
    }

    fn skip_to(&self, chunk: u64, now: Instant) {
        let mut state = self.borrow_mut();
        state.core.skip_to(chunk);
        state.pump(now);
    }

    fn state(&self) -> LiveState {
        let state = self.borrow();
        let edge = state.core.live_edge();
        LiveState {
            edge,
            is_ended: state.live.as_ref().is_some_and(super::live::Live::is_ended),
            lacking_peers: state.core.lacking_peers(),
            edge_age: self.age(edge.saturating_sub(1)),
        }
    }

    fn age(&self, chunk: u64) -> Option<Duration> {
        let state = self.borrow();
        let ntp = super::live::ntp_now().saturating_sub(state.core.live_signed_at(chunk)?);
        // The lower half is parts of a second.
        Some(Duration::from_secs_f64(ntp as f64 / (1u64 << 32) as f64))
    }
}

impl Transfer for Handle {
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
        self.borrow_mut().peer_stats(now)
    }

    fn paths(&self, now: Instant) -> Vec<PathProgress> {
        self.borrow_mut().path_progress(now)
    }

    fn sources(&self, _: Instant) -> Sources {
        self.borrow().sources()
    }

    fn info(&self) -> Option<Arc<Info>> {
        self.borrow().info.clone()
    }

    fn place(&self) -> Option<(PathBuf, Arc<Info>)> {
        let state = self.borrow();
        Some((std::path::absolute(&state.options.dir).ok()?, state.info.clone()?))
    }

    fn readable(&self) -> Rc<RefCell<dyn Readable>> {
        Self::readable(self)
    }

    fn as_live(&self) -> Option<&dyn LiveTransfer> {
        self.borrow().live.as_ref()?;
        Some(self)
    }

    fn set_deadline(&self, piece: u32, deadline: Option<Instant>, _: Instant) {
        self.borrow_mut().set_deadlines(&[(piece, deadline)], None);
    }

    fn pause(&self) {
        self.borrow_mut().pause();
    }

    fn resume(&self) {
        self.borrow_mut().resume();
    }

    fn reannounce(&self) {
        let mut state = self.borrow_mut();
        state.is_announce_due = true;
        state.announce.notify_one();
    }

    fn add_peers(&self, peers: &[Endpoint], now: Instant) {
        let mut state = self.borrow_mut();
        peers.iter().for_each(|peer| state.name_peer(*peer, now));
    }

    fn begin_work(&self, work: Work) -> Result<(), ControlError> {
        let mut state = self.borrow_mut();
        if work != Work::Recheck {
            return Err(ControlError::NotWithPpspp(state.id));
        }
        if state.storage.is_none() {
            return Err(ControlError::NotOpen(state.id));
        }
        if let Some(busy) = state.work {
            return Err(ControlError::Busy(state.id, busy));
        }
        state.work = Some(work);
        state.update_hold();
        Ok(())
    }

    fn end_work(&self) {
        let mut state = self.borrow_mut();
        state.work = None;
        state.update_hold();
    }

    fn spawn(&self, task: Task<()>) {
        self.borrow().spawn(guarded(self.clone(), task));
    }

    fn recheck(&self) -> Task<Result<(), ControlError>> {
        Box::pin(finish::check_all(self.clone()))
    }

    fn move_to(&self, _: PathBuf) -> Task<Result<(), ControlError>> {
        Box::pin(std::future::ready(Err(ControlError::NotWithPpspp(self.borrow().id))))
    }

    fn set_files(&self, _: FilePriorities) -> Task<Result<(), ControlError>> {
        Box::pin(std::future::ready(Err(ControlError::NotWithPpspp(self.borrow().id))))
    }

    fn on_disk(&self, reply: Reply, now: Instant) {
        let mut state = self.borrow_mut();
        match reply {
            Reply::Verified(verified) => state.verified(verified, now),
            Reply::Spilled(spilled) => state.spilled(spilled, now),
            Reply::ReadAhead { .. } => state.readahead_done(),
            Reply::Panicked { .. } => state.panicked(),
            Reply::Leaves { .. } | Reply::Reread { .. } | Reply::LayersKept { .. } | Reply::Advised { .. } => {}
        }
    }

    fn retry_storage(&self) {
        self.borrow_mut().retry_storage();
    }

    fn watched_files(&self) -> Option<Arc<Storage>> {
        Watched::watched_files(self)
    }

    fn files_changed(&self, files: &[usize]) {
        self.borrow_mut().files_changed(files);
    }

    fn checkpoint(&self, now: Instant) -> Option<Task<()>> {
        Some(Box::pin(guarded(self.clone(), checkpoint(self.clone(), now))))
    }

    fn is_only_shared(&self) -> bool {
        self.borrow().options.read_only
    }

    fn leave(&self, _: &str) {
        let mut state = self.borrow_mut();
        state.is_leaving = true;
        state.stop();
    }

    fn is_announcing(&self) -> bool {
        self.borrow().is_announcing
    }

    fn is_busy(&self) -> bool {
        self.borrow().is_busy()
    }

    fn close(&self) -> Task<()> {
        let (downloaded, uploaded, is_done_with) = {
            let state = self.borrow();
            let is_done_with = state.options.remove_resume_when_complete && state.is_finished;
            (state.rates.downloaded_bytes, state.rates.uploaded_bytes, is_done_with)
        };
        Box::pin(guarded(self.clone(), given_up(self).close(downloaded, uploaded, is_done_with)))
    }

    fn delete(&self, others: Others) -> Task<Result<Vec<PathBuf>, StorageError>> {
        Box::pin(given_up(self).delete(others))
    }

    fn end(&self) {
        self.borrow_mut().end();
    }

    fn abandon(&self) {
        self.borrow_mut().stop();
        given_up(self).release();
        self.end();
    }
}

fn given_up(content: &Handle) -> Files {
    let list = content.borrow().list_beside();
    let (resume, storage) = content.borrow_mut().give_up_files();
    let tree = resume.as_ref().map(|resume| tree_path(resume.path()));
    Files { resume, storage, beside: tree.into_iter().chain(list).collect() }
}
