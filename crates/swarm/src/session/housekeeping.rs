//! What is done for all contents: the disk threads' answers are passed on, storage that was out of order is tried again, progress is
//! made durable.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::bittorrent::torrent::TorrentHandle;
use crate::bittorrent::{open, recheck};
use crate::events::TorrentId;
use crate::ppspp;
use crate::session::Contents;
use crate::store::disk::{Replies, Reply};
use crate::store::open::blocking;

/// How often storage that is out of order is tried again.
const STORAGE_RETRY: Duration = Duration::from_secs(2);
/// How often running downloads look whether their state should be synced.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);

/// Passes the disk threads' answers on.
pub(super) async fn serve_disk(contents: Rc<Contents>, mut replies: Replies) {
    while let Some(reply) = replies.next().await {
        let now = Instant::now();
        if let Some(content) = contents.of_ppspp(reply.content()) {
            let mut content = content.borrow_mut();
            match reply {
                Reply::Verified(verified) => content.verified(verified, now),
                Reply::Spilled(spilled) => content.spilled(spilled, now),
                Reply::Warmed { .. } => content.warmed(),
                Reply::Panicked { .. } => content.panicked(),
                Reply::Leaves { .. } | Reply::Looked { .. } | Reply::Kept { .. } => {}
            }
            continue;
        }
        let Some(torrent) = contents.torrent(reply.content()) else { continue };
        let mut torrent = torrent.borrow_mut();
        match reply {
            Reply::Verified(verified) => torrent.verified(verified, now),
            Reply::Spilled(spilled) => torrent.spilled(spilled, now),
            Reply::Warmed { conn, .. } => torrent.warmed(conn),
            Reply::Leaves { piece, hashes, .. } => {
                torrent.core.leaves_ready(piece, &hashes);
                torrent.pump(now);
            }
            Reply::Looked { piece, readable, .. } => torrent.looked(piece, readable, now),
            Reply::Kept { .. } => {}
            Reply::Panicked { .. } => torrent.panicked(now),
        }
    }
}

/// What is done now and then: storage that was out of order is tried again, progress is made durable.
pub(super) async fn housekeeping(contents: Rc<Contents>) {
    let mut checkpoint_at = Instant::now() + CHECKPOINT_EVERY;
    let mut checkpointing = JoinSet::new();
    let mut looked_at = (TorrentId(0), 0);
    loop {
        tokio::time::sleep(STORAGE_RETRY).await;
        let torrents = contents.all();
        let now = Instant::now();
        for torrent in &torrents {
            torrent.borrow_mut().retry_storage();
        }
        for content in contents.all_ppspp() {
            content.borrow_mut().retry_storage();
        }
        recheck::look_around(&torrents, &mut looked_at);
        while checkpointing.try_join_next().is_some() {}
        if now < checkpoint_at || !checkpointing.is_empty() {
            continue;
        }
        checkpoint_at = now + CHECKPOINT_EVERY;
        // Syncing may take minutes on a slow disk: nothing else waits for it, and what is removed meanwhile goes.
        let ids: Vec<TorrentId> = torrents.iter().map(|torrent| torrent.borrow().id).collect();
        let contents = Rc::clone(&contents);
        checkpointing.spawn_local(async move {
            for torrent in ids.into_iter().filter_map(|id| contents.torrent(id)) {
                open::guarded(torrent.clone(), checkpoint(torrent, now)).await;
            }
            for content in contents.all_ppspp() {
                ppspp::checkpoint(content, now).await;
            }
        });
    }
}

async fn checkpoint(torrent: TorrentHandle, now: Instant) {
    let (resume, stats) = {
        let mut torrent = torrent.borrow_mut();
        let Some(resume) = torrent.resume.clone().filter(|_| !torrent.stopping) else { return };
        (resume, torrent.core.stats(now))
    };
    resume.set_totals(stats.downloaded_bytes, stats.uploaded_bytes);
    if resume.checkpoint_due(now) {
        let syncing = Arc::clone(&resume);
        // A disk that does not work shows again at the next write, which reports it.
        let _ = blocking(move || syncing.checkpoint()).await;
        recheck::recheck(&torrent, resume.distrusted(), true).await;
    }
}
