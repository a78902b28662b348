//! A content's files are recorded now and then, closed, or deleted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_content::info::Info;

use super::content::Handle;
use super::open::remove_tree;
use crate::session::{ControlError, Removed, is_alone, is_of_any};
use crate::store::open::blocking;

/// How often leaving looks whether the disk threads are done.
const LEAVE_POLL: Duration = Duration::from_millis(5);

/// Makes durable what was received, where that is due; lets go of memory that an idle content does not need.
pub(crate) async fn checkpoint(content: Handle, now: Instant) {
    let (resume, downloaded, uploaded) = {
        let state = content.borrow();
        if state.conn_count() == 0 {
            state.core.tree().nodes().trim();
        }
        let Some(resume) = state.resume.clone().filter(|_| !state.stopping) else { return };
        // What proves the pieces goes first.
        if state.core.tree().nodes().flush().is_err() {
            return;
        }
        (resume, state.rates.downloaded_bytes, state.rates.uploaded_bytes)
    };
    resume.set_totals(downloaded, uploaded);
    if resume.checkpoint_due(now) {
        // A disk that does not work shows again at the next write, which reports it.
        let _ = blocking(move || resume.checkpoint()).await;
    }
}

/// Brings what is known to disk and gives the place back; with the contents that may have bytes there too (`delete`), deletes the
/// file.
pub(crate) async fn close(
    content: &Handle,
    delete: Option<Vec<(PathBuf, Arc<Info>)>>,
    limit: Duration,
) -> Result<Removed, ControlError> {
    let resources = content.borrow().resources();
    let (downloaded, uploaded, is_done_with) = {
        let state = content.borrow();
        let is_done_with = state.options.remove_resume_when_complete && state.is_finished;
        (state.rates.downloaded_bytes, state.rates.uploaded_bytes, is_done_with)
    };
    let (resume, storage) = content.borrow_mut().give_up_files();
    let closed = async {
        let _place = resources.closing.acquire().await;
        if let (Some(others), Some(resume), Some(storage)) = (&delete, &resume, &storage) {
            while !is_alone(resume, storage) {
                tokio::time::sleep(LEAVE_POLL).await;
            }
            let (others, resume, storage) = (others.clone(), Arc::clone(resume), Arc::clone(storage));
            return blocking(move || {
                let left = resume.delete_content(|path| is_of_any(&others, path));
                remove_tree(resume.path());
                storage.release();
                Ok(Removed { left: left? })
            })
            .await;
        }
        blocking(move || {
            // What could not be recorded is checked at the next start.
            if let Some(resume) = resume {
                resume.set_totals(downloaded, uploaded);
                if is_done_with {
                    let _ = resume.delete();
                    remove_tree(resume.path());
                } else {
                    let _ = resume.close(false);
                }
            }
            if let Some(storage) = storage {
                storage.release();
            }
        })
        .await;
        Ok(Removed::default())
    };
    tokio::time::timeout(limit, closed).await.unwrap_or(Err(ControlError::Slow))
}
