//! What was received is recorded now and then.

use std::time::Instant;

use super::content::Handle;
use crate::store::open::blocking;

/// Makes durable what was received, where that is due; lets go of memory that an idle content does not need.
pub(super) async fn checkpoint(content: Handle, now: Instant) {
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
