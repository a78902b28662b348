//! Contents go, one by one or all together.
//!
//! A removal is a task of the session and goes to its end whoever waits for it: connections end, trackers are told, what was received
//! is recorded, all within [`LEAVE_MAX`]; then nothing of the content is at work any more, its files are closed, and its place is
//! others'.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::events::{ContentId, EventKind};
use crate::session::Contents;
use crate::transfer::files::{FILES_POLL, Others};
use crate::transfer::{ControlError, Removed, Stage};

/// How long leaving may take: trackers are told, files are synced.
const LEAVE_MAX: Duration = Duration::from_secs(3);

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
    /// could not be deleted the content is gone all the same.
    pub fn remove(&self, id: ContentId, data: Data) -> impl Future<Output = Outcome> + use<> {
        let begun = self.begin_removal(id, data, "this content is not shared any more");
        async move { begun?.await.unwrap_or(Err(ControlError::Gone)) }
    }

    /// All contents go; done when they are gone.
    pub(super) async fn remove_all(&self, reason: &str) {
        let ids: Vec<ContentId> = self.list();
        // Those that are leaving already do so all the same.
        ids.into_iter().for_each(|id| drop(self.begin_removal(id, Data::Keep, reason)));
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
    ) -> Result<oneshot::Receiver<Outcome>, ControlError> {
        let content = self.get(id).ok_or(ControlError::Unknown(id))?;
        if content.stage() == Stage::Leaving {
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
            let told = within_limit(|| !content.is_announcing());
            let files = async {
                within_limit(|| !content.is_busy()).await;
                let contents = contents.upgrade();
                let given_up = async {
                    match (data, &contents) {
                        (Data::Delete, Some(contents)) => content.delete(contents.places_of_others(id)).await,
                        (_, Some(contents)) => {
                            let _place = contents.resources.closing.acquire().await;
                            content.close().await;
                            Ok(Vec::new())
                        }
                        // The session is gone, and so is what held the files.
                        (_, None) => Ok(Vec::new()),
                    }
                };
                match tokio::time::timeout(LEAVE_MAX, given_up).await {
                    Ok(left) => Ok(Removed { left: left? }),
                    Err(_) => Err(ControlError::Slow),
                }
            };
            let ((), outcome) = tokio::join!(told, files);
            content.end();
            let Some(contents) = contents.upgrade() else { return };
            content.tell(EventKind::Removed);
            contents.forget(id);
            drop(content);
            // Nobody has to wait for it.
            let _ = done.send(outcome);
        });
        Ok(outcome)
    }

    /// Where all contents but `id` lie, as far as it is known what they are.
    fn places_of_others(&self, id: ContentId) -> Others {
        let others = self.list().into_iter().filter(|other| *other != id);
        others.filter_map(|other| self.get(other)?.place()).collect()
    }
}

/// Waits until `is_done`, but not for ever.
async fn within_limit(is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + LEAVE_MAX;
    while !is_done() && Instant::now() < deadline {
        tokio::time::sleep(FILES_POLL).await;
    }
}
