//! Contents go, one by one or all together.
//!
//! A removal is a task of the session and goes to its end whoever waits for it: connections end, trackers are told, what was received
//! is recorded, all within [`LEAVE_MAX`], and where the whole session leaves trackers have [`FAREWELL_MAX`]; then nothing of the content is at work any more, its files are closed, and its place is
//! others'. Where its files are deleted and the disk takes longer, the content is gone all the same, and its place is others' once they are.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::events::{ContentId, EventKind};
use crate::session::Contents;
use crate::transfer::files::{FILES_POLL, Others};
use crate::transfer::{ControlError, Lifecycle, Removed, Transfer};

/// How long leaving may take: trackers are told, files are synced.
const LEAVE_MAX: Duration = Duration::from_secs(3);
/// How long trackers may take to say that they were told, where a whole session leaves and its user waits: some round trips. What is said
/// is on its way by then, and whoever did not hear it forgets us some time after we stop asking.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// What becomes of a removed content's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Data {
    /// They stay, and what is known of their pieces is recorded.
    #[default]
    Keep,
    /// They are deleted, with the record, and with the folders that are empty then. Files that others changed or replaced stay, and
    /// so does what another content of the session has its bytes in.
    Delete,
}

type Outcome = Result<Removed, ControlError>;

impl Contents {
    /// Lets a content go: connections end, trackers are told, what was received is recorded. It is gone, and the same may be added
    /// again, when this is done: within seconds, whatever trackers do. It goes also where nobody waits for that.
    ///
    /// # Errors
    /// Where there is no such content, and where files that are only shared were to be deleted: then nothing happened. Where files
    /// could not be deleted the content is gone all the same. Where that takes the disk too long ([`ControlError::Slow`]) they go as soon as
    /// it answers, if the session is there still.
    pub fn remove(&self, id: ContentId, data: Data) -> impl Future<Output = Outcome> + use<> {
        let begun = self.begin_removal(id, data, "this content is not shared any more", LEAVE_MAX);
        async move { begun?.await.unwrap_or(Err(ControlError::Gone)) }
    }

    /// All contents go; done when they are gone.
    pub(super) async fn remove_all(&self, reason: &str) {
        let ids: Vec<ContentId> = self.list();
        // Those that are leaving already do so all the same.
        ids.into_iter().for_each(|id| drop(self.begin_removal(id, Data::Keep, reason, FAREWELL_MAX)));
        while let Some(()) = self.one_left().await {}
    }

    async fn one_left(&self) -> Option<()> {
        std::future::poll_fn(|cx| self.leaving.borrow_mut().poll_join_next(cx)).await.map(drop)
    }

    fn begin_removal(
        &self,
        id: ContentId,
        data: Data,
        reason: &str,
        farewell_max: Duration,
    ) -> Result<oneshot::Receiver<Outcome>, ControlError> {
        let content = self.get(id).ok_or(ControlError::Unknown(id))?;
        if content.lifecycle() == Lifecycle::Leaving {
            return Err(ControlError::Leaving(id));
        }
        if data == Data::Delete && content.is_only_shared() {
            return Err(ControlError::OnlyShared(id));
        }
        content.leave(reason);
        let (contents, (done, outcome)) = (self.downgrade(), oneshot::channel());
        let mut leaving = self.leaving.borrow_mut();
        while leaving.try_join_next().is_some() {}
        leaving.spawn_local(async move {
            // A tracker that does not answer is not waited for, nor does it hold up the files.
            let told = within_limit(farewell_max, || !content.is_announcing());
            let files = async {
                within_limit(LEAVE_MAX, || !content.is_busy()).await;
                // Where the session is gone, so is what held the files.
                let contents = contents.upgrade()?;
                Some(match data {
                    Data::Keep => GivenUp::Kept(contents.close(&*content).await),
                    Data::Delete => GivenUp::Going(contents.begin_deletion(id, &*content)),
                })
            };
            let ((), given_up) = tokio::join!(told, files);
            // What is still at work for it may hold files that are to be deleted.
            content.end();
            let outcome = match given_up {
                Some(GivenUp::Kept(outcome)) => outcome,
                Some(GivenUp::Going(deleted)) => deleted_within_limit(deleted).await,
                None => Ok(Removed::default()),
            };
            let Some(contents) = contents.upgrade() else { return };
            content.tell(EventKind::Removed);
            contents.forget(id);
            drop(content);
            // Nobody has to wait for it.
            let _ = done.send(outcome);
        });
        Ok(outcome)
    }

    /// What is known of a content's files goes to the disk.
    async fn close(&self, content: &dyn Transfer) -> Outcome {
        let closed = async {
            let _place = self.resources.closing.acquire().await;
            content.close().await;
        };
        match tokio::time::timeout(LEAVE_MAX, closed).await {
            Ok(()) => Ok(Removed::default()),
            Err(_) => Err(ControlError::Slow),
        }
    }

    /// Deletes a content's files, as a task that goes to its end however long a disk, or a task that still has the files, takes.
    fn begin_deletion(&self, id: ContentId, content: &dyn Transfer) -> oneshot::Receiver<Outcome> {
        let (done, outcome) = oneshot::channel();
        let deletion = content.delete(self.places_of_others(id));
        let mut deleting = self.deleting.borrow_mut();
        while deleting.try_join_next().is_some() {}
        deleting.spawn_local(async move {
            let deleted = deletion.await;
            // Nobody may wait for it any more.
            let _ = done.send(deleted.map(|left| Removed { left }).map_err(ControlError::from));
        });
        outcome
    }

    /// Where all contents but `id` lie, as far as it is known what they are.
    fn places_of_others(&self, id: ContentId) -> Others {
        let others = self.list().into_iter().filter(|other| *other != id);
        others.filter_map(|other| self.get(other)?.place()).collect()
    }
}

/// What becomes of a content's files.
enum GivenUp {
    /// They are closed, or could not be.
    Kept(Outcome),
    /// They are being deleted.
    Going(oneshot::Receiver<Outcome>),
}

/// Waits for files to be deleted, but not for ever.
async fn deleted_within_limit(deleted: oneshot::Receiver<Outcome>) -> Outcome {
    match tokio::time::timeout(LEAVE_MAX, deleted).await {
        Ok(outcome) => outcome.unwrap_or(Err(ControlError::Gone)),
        Err(_) => Err(ControlError::Slow),
    }
}

/// Waits until `is_done`, at most `time`.
async fn within_limit(time: Duration, is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + time;
    while !is_done() && Instant::now() < deadline {
        tokio::time::sleep(FILES_POLL).await;
    }
}
