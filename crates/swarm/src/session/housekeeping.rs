//! What is done for all contents: the disk threads' answers are passed on, storage that was out of order is tried again, files are looked
//! at, progress is made durable.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::events::ContentId;
use crate::session::Contents;
use crate::store::disk::Replies;
use crate::store::open::blocking;
use crate::store::watch::changed_files;

/// How often storage that is out of order is tried again.
const STORAGE_RETRY: Duration = Duration::from_secs(2);
/// How often running downloads look whether their state should be synced.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);
/// Files looked at in one round, all contents together: so many cost less than a millisecond, where their file systems answer.
pub(super) const LOOKS_PER_ROUND: usize = 256;

/// Passes the disk threads' answers on.
pub(super) async fn serve_disk(contents: Rc<Contents>, mut replies: Replies) {
    while let Some(reply) = replies.next().await {
        let now = Instant::now();
        if let Some(content) = contents.get(reply.content()) {
            content.on_disk(reply, now);
        }
    }
}

/// The content and the file of it where a round of looks begins.
pub(super) type Turn = (ContentId, usize);

/// What is done now and then: storage that was out of order is tried again, files are looked at, progress is made durable.
pub(super) async fn housekeeping(contents: Rc<Contents>) {
    let mut checkpoint_at = Instant::now() + CHECKPOINT_EVERY;
    let mut checkpointing = JoinSet::new();
    let (mut looking, mut next) = (JoinSet::new(), (ContentId(0), 0));
    loop {
        tokio::time::sleep(STORAGE_RETRY).await;
        let now = Instant::now();
        let ids = contents.list();
        ids.iter().filter_map(|id| contents.get(*id)).for_each(|content| content.retry_storage());
        while let Some(looked) = looking.try_join_next() {
            // One that panicked is made again.
            next = looked.unwrap_or(next);
        }
        // A file system that does not answer holds up the looks at files, and nothing else.
        if looking.is_empty() {
            looking.spawn_local(look_around(Rc::clone(&contents), next));
        }
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

/// Looks at some of the files that were verified, in turn, whether they are what they were: nobody may ask for them for long. Answers
/// where the next round begins.
pub(super) async fn look_around(contents: Rc<Contents>, from: Turn) -> Turn {
    let mut looks = LOOKS_PER_ROUND;
    let ids = contents.list();
    let begins = ids.iter().position(|id| *id >= from.0).unwrap_or(0);
    for id in ids.iter().cycle().skip(begins).take(ids.len()) {
        let Some(files) = contents.get(*id).and_then(|content| content.watched_files()) else { continue };
        let first = if *id == from.0 { from.1 } else { 0 };
        let looked = blocking(move || {
            let (changed, next) = changed_files(&files, first, &mut looks);
            (changed, next, looks)
        });
        let (changed, next, left) = looked.await;
        looks = left;
        // It may have gone meanwhile.
        let content = contents.get(*id).filter(|content| content.watched_files().is_some());
        if let Some(content) = content.filter(|_| !changed.is_empty()) {
            content.files_changed(&changed);
        }
        if let Some(next) = next {
            return (*id, next);
        }
    }
    (ContentId(0), 0)
}
