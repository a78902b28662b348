//! Contents go, one by one or all together.
//!
//! A removal is a task of the session and goes to its end whoever waits for it: connections end, trackers are told, what was received
//! is recorded, all within [`LEAVE_MAX`]; then nothing of the content is at work any more, its files are closed, and its place is
//! others'.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_content::info::Info;
use anabranch_content::storage::{ResumeStore, Storage};
use tokio::sync::oneshot;

use crate::bittorrent::open;
use crate::bittorrent::torrent::TorrentHandle;
use crate::events::{EventKind, TorrentId};
use crate::ppspp;
use crate::session::{Contents, ControlError};
use crate::store::open::blocking;

/// How long leaving may take: trackers are told, files are synced.
const LEAVE_MAX: Duration = Duration::from_secs(3);
/// How often leaving looks whether the disk threads are done.
const LEAVE_POLL: Duration = Duration::from_millis(5);

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

/// A content is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// With [`Data::Delete`]: what stands in its files' places and was left there, because it is not the content's alone.
    pub left: Vec<PathBuf>,
}

type Outcome = Result<Removed, ControlError>;

impl Contents {
    /// Lets a content go: connections end, trackers are told, what was received is recorded. It is gone, and the same may be added
    /// again, when this is done: within seconds, whatever trackers do. It goes also where nobody waits for that.
    ///
    /// # Errors
    /// Where there is no such content, and where files that are only shared were to be deleted: then nothing happened. Where files
    /// could not be deleted the content is gone all the same.
    pub fn remove(&self, id: TorrentId, data: Data) -> impl Future<Output = Outcome> + use<> {
        let begun = self.begin_removal(id, data, "this content is not shared any more");
        async move { begun?.await.unwrap_or(Err(ControlError::Gone)) }
    }

    /// All contents go; done when they are gone.
    pub(super) async fn remove_all(&self, reason: &str) {
        let ids: Vec<TorrentId> = self.list();
        // Those that are leaving already do so all the same.
        ids.into_iter().for_each(|id| drop(self.begin_removal(id, Data::Keep, reason)));
        while let Some(()) = self.one_left().await {}
    }

    async fn one_left(&self) -> Option<()> {
        std::future::poll_fn(|cx| self.leaving.borrow_mut().poll_join_next(cx)).await.map(drop)
    }

    fn begin_removal(
        &self,
        id: TorrentId,
        data: Data,
        reason: &str,
    ) -> Result<oneshot::Receiver<Outcome>, ControlError> {
        if let Some(content) = self.of_ppspp(id) {
            return self.begin_ppspp_removal(id, content, data);
        }
        let torrent = self.torrent(id).ok_or(ControlError::Unknown(id))?;
        {
            let mut state = torrent.borrow_mut();
            if state.is_leaving {
                return Err(ControlError::Leaving(id));
            }
            if data == Data::Delete && state.options.read_only {
                return Err(ControlError::OnlyShared(id));
            }
            state.is_leaving = true;
            state.stop(reason);
        }
        let (contents, (done, outcome)) = (self.downgrade(), oneshot::channel());
        let mut leaving = self.leaving.borrow_mut();
        while leaving.try_join_next().is_some() {}
        leaving.spawn_local(async move {
            // A tracker that does not answer is not waited for, nor does it hold up the files.
            let told = within_limit(|| !torrent.borrow().is_announcing);
            let files = async {
                within_limit(|| !torrent.borrow().is_busy()).await;
                match (data, contents.upgrade()) {
                    (Data::Delete, Some(contents)) => delete(&contents, &torrent).await,
                    _ => close(&torrent).await,
                }
            };
            let ((), outcome) = tokio::join!(told, files);
            torrent.borrow_mut().end();
            let Some(contents) = contents.upgrade() else { return };
            torrent.borrow().tell(EventKind::Removed);
            contents.forget(id);
            drop(torrent);
            // Nobody has to wait for it.
            let _ = done.send(outcome);
        });
        Ok(outcome)
    }

    fn begin_ppspp_removal(
        &self,
        id: TorrentId,
        content: ppspp::Handle,
        data: Data,
    ) -> Result<oneshot::Receiver<Outcome>, ControlError> {
        {
            let mut state = content.borrow_mut();
            if state.is_leaving {
                return Err(ControlError::Leaving(id));
            }
            if data == Data::Delete && state.options.read_only {
                return Err(ControlError::OnlyShared(id));
            }
            state.is_leaving = true;
            state.stop();
        }
        let (contents, (done, outcome)) = (self.downgrade(), oneshot::channel());
        let mut leaving = self.leaving.borrow_mut();
        while leaving.try_join_next().is_some() {}
        leaving.spawn_local(async move {
            let told = within_limit(|| !content.borrow().is_announcing);
            let files = async {
                within_limit(|| !content.borrow().is_busy()).await;
                let others = contents.upgrade().map_or(Vec::new(), |contents| contents.files_of_others(id));
                ppspp::close(&content, (data == Data::Delete).then_some(others), LEAVE_MAX).await
            };
            let ((), outcome) = tokio::join!(told, files);
            content.borrow_mut().end();
            let Some(contents) = contents.upgrade() else { return };
            content.borrow().tell(EventKind::Removed);
            contents.forget(id);
            drop(content);
            // Nobody has to wait for it.
            let _ = done.send(outcome);
        });
        Ok(outcome)
    }

    /// The files of all contents but `id`, as far as it is known what they are.
    fn files_of_others(&self, id: TorrentId) -> Vec<(PathBuf, Arc<Info>)> {
        let others = self.all().into_iter().filter(|torrent| torrent.borrow().id != id);
        let files = others.filter_map(|torrent| {
            let state = torrent.borrow();
            let info = state.storage.as_ref().map(|storage| storage.info()).or(state.core.known_info())?;
            Some((std::path::absolute(&state.options.dir).ok()?, Arc::clone(info)))
        });
        let ppspp = self.all_ppspp().into_iter().filter(|content| content.borrow().id != id).filter_map(|content| {
            let state = content.borrow();
            Some((std::path::absolute(&state.options.dir).ok()?, state.info.clone()?))
        });
        files.chain(ppspp).collect()
    }
}

/// Waits until `is_done`, but not for ever.
async fn within_limit(is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + LEAVE_MAX;
    while !is_done() && Instant::now() < deadline {
        tokio::time::sleep(LEAVE_POLL).await;
    }
}

/// Brings what is known of the content's pieces to disk, and gives its place back.
async fn close(torrent: &TorrentHandle) -> Outcome {
    let resources = torrent.borrow().resources();
    let closed = async {
        let _place = resources.closing.acquire().await;
        let (stats, done_with) = {
            let mut torrent = torrent.borrow_mut();
            (torrent.core.stats(Instant::now()), torrent.is_done_with())
        };
        let (resume, storage) = torrent.borrow_mut().give_up_files();
        let work = blocking(move || {
            // What could not be recorded is checked at the next start.
            if let Some(resume) = resume {
                resume.set_totals(stats.downloaded_bytes, stats.uploaded_bytes);
                let _ = if done_with { resume.delete() } else { resume.close(false) };
            }
            if let Some(storage) = storage {
                storage.release();
            }
        });
        open::guarded(torrent.clone(), work).await;
    };
    let timely = tokio::time::timeout(LEAVE_MAX, closed).await;
    timely.map(|()| Removed::default()).map_err(|_| ControlError::Slow)
}

/// Deletes the content's files, once nobody has them open, and gives its place back.
async fn delete(contents: &Contents, torrent: &TorrentHandle) -> Outcome {
    let others = contents.files_of_others(torrent.borrow().id);
    let (resume, storage) = torrent.borrow_mut().give_up_files();
    let (Some(resume), Some(storage)) = (resume, storage) else {
        // Nothing was opened, so nothing was made.
        return Ok(Removed::default());
    };
    let deleted = async {
        // Jobs of the disk threads and checks hold them until they are done: what they write must not come after.
        while !is_alone(&resume, &storage) {
            tokio::time::sleep(LEAVE_POLL).await;
        }
        let is_others = move |path: &Path| is_of_any(&others, path);
        blocking(move || {
            let deleted = resume.delete_content(is_others);
            storage.release();
            deleted
        })
        .await
    };
    match tokio::time::timeout(LEAVE_MAX, deleted).await {
        Ok(deleted) => Ok(Removed { left: deleted? }),
        Err(_) => Err(ControlError::Slow),
    }
}

/// Whether one of these contents has its bytes there.
pub(crate) fn is_of_any(contents: &[(PathBuf, Arc<Info>)], path: &Path) -> bool {
    let has = |(root, info): &(PathBuf, Arc<Info>)| {
        path.strip_prefix(root).is_ok_and(|below| info.files.iter().any(|entry| entry.path == below))
    };
    contents.iter().any(has)
}

/// Whether nobody but the caller has the files open.
pub(crate) fn is_alone(resume: &Arc<ResumeStore>, storage: &Arc<Storage>) -> bool {
    // The record has one to itself.
    Arc::strong_count(resume) == 1 && Arc::strong_count(storage) == 2
}
