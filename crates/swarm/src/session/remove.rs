//! Contents go, one by one or all together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bittorrent::open;
use crate::bittorrent::torrent::TorrentRef;
use crate::events::TorrentId;
use crate::session::Contents;
use crate::store::open::blocking;

/// How long leaving may take: trackers are told, files are synced.
const LEAVE_MAX: Duration = Duration::from_secs(3);
/// How often leaving looks whether the disk threads are done.
const LEAVE_POLL: Duration = Duration::from_millis(5);

impl Contents {
    /// Lets a content go: connections end, trackers are told, what was received stays on disk and is recorded. It is gone within
    /// seconds.
    pub fn stop(&self, id: TorrentId) {
        self.begin_removal(id, "this content is not shared any more");
    }

    /// All contents go; done when they are gone.
    pub(super) async fn remove_all(&self, reason: &str) {
        let ids: Vec<TorrentId> = self.all().iter().map(|torrent| torrent.borrow().id).collect();
        ids.into_iter().for_each(|id| self.begin_removal(id, reason));
        while let Some(()) = self.one_left().await {}
    }

    async fn one_left(&self) -> Option<()> {
        std::future::poll_fn(|cx| self.leaving.borrow_mut().poll_join_next(cx)).await.map(drop)
    }

    fn begin_removal(&self, id: TorrentId, reason: &str) {
        let Some(torrent) = self.torrent(id).filter(|torrent| !torrent.borrow().is_leaving) else { return };
        torrent.borrow_mut().is_leaving = true;
        torrent.borrow_mut().stop(reason);
        let contents = self.downgrade();
        let mut leaving = self.leaving.borrow_mut();
        while leaving.try_join_next().is_some() {}
        leaving.spawn_local(async move {
            leave(&torrent).await;
            if let Some(contents) = contents.upgrade() {
                contents.forget(id);
            }
        });
    }
}

/// Waits until `torrent` said farewell and what was received is on disk and recorded, but not for ever; then nothing of it is at
/// work any more.
async fn leave(torrent: &TorrentRef) {
    let told = async {
        while torrent.borrow().is_announcing {
            tokio::time::sleep(LEAVE_POLL).await;
        }
    };
    let recorded = async {
        while torrent.borrow().is_busy() {
            tokio::time::sleep(LEAVE_POLL).await;
        }
        let resources = torrent.borrow().resources();
        let _place = resources.closing.acquire().await;
        record(torrent).await;
    };
    let _ = tokio::join!(
        tokio::time::timeout(LEAVE_MAX, told), // a tracker that does not answer is not waited for
        tokio::time::timeout(LEAVE_MAX, recorded),
    );
    torrent.borrow_mut().end();
}

/// Brings what is known of the content's pieces to disk, and gives its place back.
async fn record(torrent: &TorrentRef) {
    let (resume, storage, stats) = {
        let mut torrent = torrent.borrow_mut();
        (torrent.resume.clone(), torrent.storage.clone(), torrent.core.stats(Instant::now()))
    };
    if let Some(resume) = resume {
        resume.set_totals(stats.downloaded_bytes, stats.uploaded_bytes);
        let done_with = torrent.borrow().is_done_with();
        let closing = Arc::clone(&resume);
        // What could not be recorded is checked at the next start.
        let close = blocking(move || if done_with { closing.delete() } else { closing.close(false) });
        open::guarded(torrent.clone(), async { drop(close.await) }).await;
    }
    if let Some(storage) = storage {
        storage.release();
    }
}
