//! What an owner may ask of a content while it is there.
//!
//! | what | connections | trackers | while files are not open | twice |
//! | --- | --- | --- | --- | --- |
//! | [`pause`](Contents::pause) | end; nobody is dialled, callers are sent away | are told that we left | opening and checking go on | the same |
//! | [`resume`](Contents::resume) | anew | are told that we came | the same | the same |
//! | [`recheck`](Contents::recheck), [`move_to`](Contents::move_to) | end, and come anew | hear nothing | an error | an error: busy |
//! | [`set_files`](Contents::set_files) | stay | hear with the next announce | an error | an error: busy |
//! | [`set_limits`](Contents::set_limits), [`add_peers`](Contents::add_peers), [`reannounce`](Contents::reannounce) | stay | | the same | the same |
//!
//! A pause is the session's alone: the next one begins as it is told. What works on files is a task of the content, and goes to its
//! end whoever waits for it, or ends with the content.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use anabranch_paths::Endpoint;
use tokio::sync::oneshot;

use crate::events::ContentId;
use crate::session::Contents;
use crate::transfer::{ControlError, FilePriorities, Lifecycle, Task, Transfer, Work};

type Outcome = Result<(), ControlError>;

impl Contents {
    /// Has a content wait until [`Contents::resume`]. What is on its way from the disk threads is still written.
    pub fn pause(&self, id: ContentId) -> Outcome {
        self.at_work(id).map(|content| content.pause())
    }

    /// Ends [`Contents::pause`]. Where storage is out of order meanwhile, it is that which the content waits for then.
    pub fn resume(&self, id: ContentId) -> Outcome {
        self.at_work(id).map(|content| content.resume())
    }

    /// Limits a content's traffic, in bytes per second; `None`: no limit of its own. Holds at once, for open connections too.
    pub fn set_limits(&self, id: ContentId, down: Option<u64>, up: Option<u64>) -> Outcome {
        let content = self.at_work(id)?;
        let now = Instant::now();
        self.resources.down.set_content_limit(id.0, down, now);
        self.resources.up.set_content_limit(id.0, up, now);
        content.limits_changed(Some((down, up)));
        Ok(())
    }

    /// Limits the traffic of all contents together, in bytes per second. Holds at once, for open connections too.
    pub fn set_session_limits(&self, down: Option<u64>, up: Option<u64>) {
        let now = Instant::now();
        self.resources.down.set_limit(down, now);
        self.resources.up.set_limit(up, now);
        self.list().into_iter().filter_map(|id| self.get(id)).for_each(|content| content.limits_changed(None));
    }

    /// Asks a content's trackers as soon as they allow: also those that failed lately.
    pub fn reannounce(&self, id: ContentId) -> Outcome {
        self.at_work(id).map(|content| content.reannounce())
    }

    /// Dials peers for a content. One at an address that cannot be dialled is told as [`PeerFailed`](crate::EventKind::PeerFailed).
    pub fn add_peers(&self, id: ContentId, peers: &[Endpoint]) -> Outcome {
        self.at_work(id).map(|content| content.add_peers(peers, Instant::now()))
    }

    /// Hashes all pieces anew, whatever is recorded: [`Checking`](crate::EventKind::Checking) says how far that got,
    /// [`Checked`](crate::EventKind::Checked) what came of it. Bad pieces are fetched again; of files that are only shared they are not
    /// offered any more.
    pub fn recheck(&self, id: ContentId) -> impl Future<Output = Outcome> + use<> {
        end_of(self.begin(id, Work::Recheck, |content| content.recheck()))
    }

    /// Moves a content's files below another folder, which is made where it is missing: by name on the same file system, else they
    /// are copied, forced to the disk, and deleted. All of them move or none: where something is in the way or fails, all stays
    /// where it was, and the content goes on there.
    pub fn move_to(&self, id: ContentId, dir: PathBuf) -> impl Future<Output = Outcome> + use<> {
        end_of(self.begin(id, Work::Move, |content| content.move_to(dir)))
    }

    /// Says anew which files are wanted, and how much. What a file has that is not wanted any more stays.
    pub fn set_files(&self, id: ContentId, files: FilePriorities) -> impl Future<Output = Outcome> + use<> {
        end_of(self.begin(id, Work::Select, |content| content.set_files(files)))
    }

    /// The content of this number, if it is one that something can be asked of.
    fn at_work(&self, id: ContentId) -> Result<Rc<dyn Transfer>, ControlError> {
        let content = self.get(id).ok_or(ControlError::Unknown(id))?;
        match content.lifecycle() {
            Lifecycle::Leaving => Err(ControlError::Leaving(id)),
            Lifecycle::Failed => Err(ControlError::Failed(id)),
            Lifecycle::AtWork => Ok(content),
        }
    }

    /// Begins to work on a content's files, as a task of the content.
    fn begin(
        &self,
        id: ContentId,
        work: Work,
        task: impl FnOnce(&dyn Transfer) -> Task<Outcome>,
    ) -> Result<oneshot::Receiver<Outcome>, ControlError> {
        let content = self.at_work(id)?;
        content.begin_work(work)?;
        let (done, outcome) = oneshot::channel();
        let (task, working) = (task(&*content), Rc::clone(&content));
        content.spawn(Box::pin(async move {
            let outcome = task.await;
            working.end_work();
            // Nobody has to wait for it.
            let _ = done.send(outcome);
        }));
        Ok(outcome)
    }
}

async fn end_of(begun: Result<oneshot::Receiver<Outcome>, ControlError>) -> Outcome {
    // A content that was removed meanwhile took the task with it.
    begun?.await.unwrap_or(Err(ControlError::Gone))
}
