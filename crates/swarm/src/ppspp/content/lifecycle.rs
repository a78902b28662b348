//! A content waits, goes on, fails, and leaves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anabranch_content::storage::{ResumeStore, Storage};

use super::Content;
use crate::events::{EventKind, FailureKind, PauseCause};
use crate::ppspp::path_table::PathAddress;

impl Content {
    /// Whether nothing moves, by the owner's wish or the disk's.
    pub(crate) fn is_held(&self) -> bool {
        self.is_paused_by_owner || self.store.is_paused || self.work.is_some()
    }

    /// What is chosen anew after a pause, or what ended one.
    pub(crate) fn update_hold(&mut self) {
        let is_held = self.is_held() || self.stopping;
        self.core.set_paused(is_held);
        self.wake.notify_one();
    }

    /// Its owner has it wait: channels end, nobody is dialled, trackers are told that we left.
    pub(crate) fn pause(&mut self) {
        if !std::mem::replace(&mut self.is_paused_by_owner, true) {
            self.update_hold();
            self.close_all(Instant::now());
            self.announce.notify_one();
            self.tell(EventKind::Paused { cause: PauseCause::Owner, reason: "its owner has it wait".to_owned() });
        }
    }

    /// The owner lets it go on.
    pub(crate) fn resume(&mut self) {
        if std::mem::take(&mut self.is_paused_by_owner) {
            self.update_hold();
            self.announce.notify_one();
            if !self.is_held() {
                self.tell(EventKind::Resumed);
            }
        }
    }

    /// Leaves: channels are closed, trackers are told, and all tasks of this content come to their end.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        self.cancel.store(true, Ordering::Relaxed);
        self.close_all(Instant::now());
        self.announce.notify_one();
        if let Some(live) = &self.live {
            let mut window = live.window.borrow_mut();
            window.is_over = true;
            window.arrived.notify_waiters();
        }
        self.arrived.notify_waiters();
        self.wake.notify_one();
        self.paths.wake.notify_one();
    }

    /// Closes all channels, and says so.
    pub(crate) fn close_all(&mut self, now: Instant) {
        let ways: Vec<PathAddress> = self.core.peers().copied().collect();
        ways.iter().for_each(|way| self.core.disconnect(way));
        self.give_up_all(now);
        self.pump(now);
    }

    /// This content ends here. What was verified before is on disk and recorded.
    pub(crate) fn fail(&mut self, kind: FailureKind, reason: String) {
        if self.stopping {
            return;
        }
        self.store.stalled.clear();
        self.store.waiting.clear();
        self.buffers = None;
        self.tell(EventKind::Failed { kind, reason });
        self.stop();
    }

    /// A job or task of ours panicked: a fault of this program.
    pub(crate) fn panicked(&mut self) {
        (self.store.verifying, self.store.spilling) = (0, 0);
        let reason = "a fault in anabranch stopped it, standard error says where: please report that. What was verified is \
                      kept: the same command goes on from there";
        self.fail(FailureKind::Internal, reason.to_owned());
    }

    /// Gives up its files: whoever has them closes them.
    pub(crate) fn give_up_files(&mut self) -> (Option<Arc<ResumeStore>>, Option<Arc<Storage>>) {
        self.store.stalled.clear();
        self.store.waiting.clear();
        self.buffers = None;
        // What it proves was brought there before it was recorded; the rest is to be had again.
        let _ = self.core.tree().nodes().flush();
        (self.resume.take(), self.storage.take())
    }
}
