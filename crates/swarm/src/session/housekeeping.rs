//! What is done for all contents: the disk threads' answers are passed on, storage that was out of order is tried again, progress is
//! made durable.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::bittorrent::recheck;
use crate::events::ContentId;
use crate::session::Contents;
use crate::store::disk::Replies;

/// How often storage that is out of order is tried again.
const STORAGE_RETRY: Duration = Duration::from_secs(2);
/// How often running downloads look whether their state should be synced.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);

/// Passes the disk threads' answers on.
pub(super) async fn serve_disk(contents: Rc<Contents>, mut replies: Replies) {
    while let Some(reply) = replies.next().await {
        let now = Instant::now();
        if let Some(content) = contents.get(reply.content()) {
            content.on_disk(reply, now);
        }
    }
}

/// What is done now and then: storage that was out of order is tried again, progress is made durable.
pub(super) async fn housekeeping(contents: Rc<Contents>) {
    let mut checkpoint_at = Instant::now() + CHECKPOINT_EVERY;
    let mut checkpointing = JoinSet::new();
    let mut looked_at = (ContentId(0), 0);
    loop {
        tokio::time::sleep(STORAGE_RETRY).await;
        let now = Instant::now();
        let ids = contents.list();
        ids.iter().filter_map(|id| contents.get(*id)).for_each(|content| content.retry_storage());
        recheck::look_around(&contents.torrents(), &mut looked_at);
        while checkpointing.try_join_next().is_some() {}
        if now < checkpoint_at || !checkpointing.is_empty() {
            continue;
        }
        checkpoint_at = now + CHECKPOINT_EVERY;
        // Syncing may take minutes on a slow disk: nothing else waits for it, and what is removed meanwhile goes.
        let contents = Rc::clone(&contents);
        checkpointing.spawn_local(async move {
            for content in ids.into_iter().filter_map(|id| contents.get(id)) {
                if let Some(checkpoint) = content.checkpoint(now) {
                    checkpoint.await;
                }
            }
        });
    }
}
