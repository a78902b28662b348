//! A managed transfer as its session sees it.

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::torrent::PeerStats;
use anabranch_content::info::Info;
use anabranch_content::storage::StorageError;
use anabranch_paths::{ConnId, Endpoint, PathState, PeerKey};
use tokio::sync::Notify;

use super::state::{ManagedTransfer, State};
use crate::events::{EventKind, News, PauseCause};
use crate::store::disk::Reply;
use crate::store::readers::{Deadline, Look, Readable, Readers};
use crate::transfer::PathProgress;
use crate::transfer::Sources;
use crate::transfer::files::Others;
use crate::transfer::{ControlError, FilePriorities, Lifecycle, Progress, Task, Transfer, Work};

/// Its files are not read by anybody while they arrive: they come in any order, and what they are is known to the transfer alone.
impl Readable for State {
    fn readers(&mut self) -> &mut Readers {
        &mut self.readers
    }

    fn arrived(&self) -> Rc<Notify> {
        Rc::clone(&self.arrived)
    }

    fn known(&self) -> Option<Arc<Info>> {
        None
    }

    fn look(&self, _: Range<u64>) -> Look {
        Look::Over
    }

    fn need(&mut self, _: &[Deadline], _: Option<u32>, _: Instant) {}

    fn unreadable(&mut self, _: u32, _: &str) {}
}

impl ManagedTransfer {
    fn refuse(&self) -> ControlError {
        ControlError::NotWithBulk(self.0.borrow().id)
    }
}

impl Transfer for ManagedTransfer {
    fn lifecycle(&self) -> Lifecycle {
        let state = self.0.borrow();
        match (state.is_leaving, state.has_failed) {
            (true, _) => Lifecycle::Leaving,
            (false, true) => Lifecycle::Failed,
            (false, false) => Lifecycle::AtWork,
        }
    }

    fn tell(&self, kind: EventKind) {
        self.0.borrow().tell(kind);
    }

    fn progress(&self, _: Instant) -> Progress {
        let state = self.0.borrow();
        let amount = state.amount();
        Progress {
            name: None,
            bytes_done: amount.map_or(0, |(done, _)| done),
            bytes_total: amount.map(|(_, total)| total),
            pieces_have: 0,
            pieces_total: 0,
            stats: state.stats(),
            finished: state.is_over,
            paused: state.is_held,
        }
    }

    fn peers(&self, _: Instant) -> Vec<PeerStats> {
        let state = self.0.borrow();
        let sends = state.sends();
        let peer = |(id, address, key, rate, bytes): (u32, _, anabranch_transport::NodeId, u64, u64)| {
            let (down, up) = if sends { (0, 1) } else { (1, 0) };
            PeerStats {
                conn: ConnId(id),
                peer: PeerKey(id),
                path: None,
                path_state: PathState::Active,
                address,
                client: Some(key.to_string()),
                download_rate_bytes: rate * down,
                upload_rate_bytes: rate * up,
                downloaded_bytes: bytes * down,
                uploaded_bytes: bytes * up,
                pieces: 0,
                choking_us: sends,
                choking: !sends,
                requested_bytes: 0,
            }
        };
        state.each_peer().map(peer).collect()
    }

    fn paths(&self, _: Instant) -> Vec<PathProgress> {
        self.0.borrow().paths()
    }

    fn sources(&self, _: Instant) -> Sources {
        Sources::default()
    }

    fn info(&self) -> Option<Arc<Info>> {
        None
    }

    fn place(&self) -> Option<(PathBuf, Arc<Info>)> {
        None
    }

    fn readable(&self) -> Rc<RefCell<dyn Readable>> {
        Rc::clone(&self.0) as _
    }

    fn set_deadline(&self, _: u32, _: Option<Instant>, _: Instant) {}

    fn pause(&self) {
        let mut state = self.0.borrow_mut();
        if !std::mem::replace(&mut state.is_held, true) {
            state.rest();
            state.tell(EventKind::Paused { cause: PauseCause::Owner, reason: "its owner has it wait".to_owned() });
        }
    }

    fn resume(&self) {
        let mut state = self.0.borrow_mut();
        if std::mem::take(&mut state.is_held) {
            state.tell(EventKind::Resumed);
            state.changed.notify_one();
        }
        if state.is_over {
            let why = state.why_over().to_owned();
            state.news(News::Over(why));
        }
    }

    fn limits_changed(&self, own: Option<(Option<u64>, Option<u64>)>) {
        let mut state = self.0.borrow_mut();
        if let Some((down, up)) = own {
            (state.options.limit_down, state.options.limit_up) = (down, up);
        }
        let (down, up) = state.limits_now();
        state.driver.iter().for_each(|driver| driver.set_limits(down, up));
    }

    fn reannounce(&self) {}

    fn add_peers(&self, _: &[Endpoint], _: Instant) {}

    fn begin_work(&self, _: Work) -> Result<(), ControlError> {
        Err(self.refuse())
    }

    fn end_work(&self) {}

    fn spawn(&self, task: Task<()>) {
        self.0.borrow_mut().tasks.spawn_local(task);
    }

    fn recheck(&self) -> Task<Result<(), ControlError>> {
        Box::pin(std::future::ready(Err(self.refuse())))
    }

    fn move_to(&self, _: PathBuf) -> Task<Result<(), ControlError>> {
        Box::pin(std::future::ready(Err(self.refuse())))
    }

    fn set_files(&self, _: FilePriorities) -> Task<Result<(), ControlError>> {
        Box::pin(std::future::ready(Err(self.refuse())))
    }

    fn on_disk(&self, _: Reply, _: Instant) {}

    fn retry_storage(&self) {}

    fn checkpoint(&self, _: Instant) -> Option<Task<()>> {
        // Its own threads do that.
        None
    }

    /// What was sent is the user's, and so is what came: it may have come to files that were there.
    fn is_only_shared(&self) -> bool {
        true
    }

    fn leave(&self, _: &str) {
        let mut state = self.0.borrow_mut();
        state.is_leaving = true;
        state.rest();
    }

    fn is_announcing(&self) -> bool {
        false
    }

    fn is_busy(&self) -> bool {
        self.0.borrow().is_running
    }

    fn close(&self) -> Task<()> {
        Box::pin(std::future::ready(()))
    }

    fn delete(&self, _: Others) -> Task<Result<Vec<PathBuf>, StorageError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn end(&self) {
        let tasks = std::mem::take(&mut self.0.borrow_mut().tasks);
        drop(tasks);
    }

    fn abandon(&self) {
        self.leave("");
        self.end();
    }
}
