//! Talks to a content's trackers for as long as the content is in the session, whichever protocol it speaks: from `started` to
//! `stopped`, and again when its owner lets it go on.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anabranch_bittorrent::tracker::announcer::{Action, Announcer, AnnouncerConfig, Outcome, Progress};
use anabranch_bittorrent::tracker::{AnnounceReply, TrackerUrl};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{Client, NamedBy, TrackerError};
use crate::events::EventKind;

/// Bytes that are told to be missing while the size is unknown: not 0, which would say that we are a seed.
pub(crate) const LEFT_UNKNOWN: u64 = 1 << 30;

/// How long the first announce waits for the files to be looked at, so that who has all of it is not taken for one who lacks all of it until
/// the tracker may be asked again.
const OPENING_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether that is done.
const OPENING_LOOKED_AT_EVERY: Duration = Duration::from_millis(20);
/// How often a content with something missing looks whether its peers still have that.
const NEED_LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// Whom to ask, as whom.
pub(crate) struct Trackers {
    pub client: Client,
    /// In tiers (BEP 12).
    pub tiers: Vec<Vec<TrackerUrl>>,
    /// Those that the user named by hand.
    pub named: HashSet<TrackerUrl>,
    pub identity: AnnouncerConfig,
}

/// What a content has to say for the next announce.
pub(crate) struct Report {
    pub progress: Progress,
    /// Nothing is missing.
    pub is_complete: bool,
    /// Its files were looked at: before, nobody knows what is missing.
    pub is_known: bool,
    /// It leaves, or its owner has it wait.
    pub is_stopping: bool,
}

/// A content, as the task sees it that talks to its trackers.
pub(crate) trait Announced {
    /// Its files are being looked at, which may take a while.
    fn is_opening_files(&self) -> bool;
    /// Its owner has it wait.
    fn is_paused_by_owner(&self) -> bool;
    /// It leaves.
    fn is_ending(&self) -> bool;
    /// Where it is reached; 1 where it is not: BEP 3 wants a port, and nobody is there to be reached.
    fn port(&self) -> u16;
    /// The numbers, as they are now.
    fn report(&self, now: Instant) -> Report;
    /// Whether its owner wants an announce as soon as the trackers allow it; the wish is heard once.
    fn take_wish(&self) -> bool;
    /// So many trackers may still name peers.
    fn set_trackers_left(&self, count: usize);
    /// A tracker has answered.
    fn on_reply(&self, reply: &AnnounceReply, now: Instant);
    /// Tells who owns the session.
    fn tell(&self, kind: EventKind);
}

/// Announces until the content leaves, and then says so; while its owner has it wait, it has left. Whoever notifies `wake` has something
/// to say.
pub(crate) async fn announce(content: &impl Announced, trackers: &Trackers, wake: &Notify) {
    while !content.is_ending() {
        if content.is_paused_by_owner() {
            wake.notified().await;
        } else {
            until_stopped(content, trackers, wake).await;
        }
    }
}

/// From `started` to `stopped`.
async fn until_stopped(content: &impl Announced, trackers: &Trackers, wake: &Notify) {
    let opened_by = Instant::now() + OPENING_MAX;
    while content.is_opening_files() && Instant::now() < opened_by {
        tokio::time::sleep(OPENING_LOOKED_AT_EVERY).await;
    }
    let config = AnnouncerConfig { port: content.port(), ..trackers.identity.clone() };
    let mut announcer = Announcer::new(config, &trackers.tiers, Instant::now());
    // At most one announce an info-hash and tracker is under way. They end with this.
    let mut under_way = JoinSet::new();
    let mut complete_at_start = None;
    let mut is_completion_told = false;
    let mut is_partial_told = false;
    let mut in_use = Vec::new();
    let mut was_stopping = false;
    loop {
        let now = Instant::now();
        let Report { progress, is_complete, is_known, is_stopping } = content.report(now);
        if was_stopping && !is_stopping {
            // It goes on: whoever was not told yet that it stopped need not be.
            return;
        }
        was_stopping = is_stopping;
        announcer.set_port(content.port(), now);
        if content.take_wish() {
            announcer.announce_soon(now);
        }
        // Before, completion would be told of a content whose files nobody looked at yet.
        if is_known && complete_at_start.is_none() {
            complete_at_start = Some(is_complete);
        }
        if is_complete && complete_at_start == Some(false) && !is_completion_told {
            is_completion_told = true;
            announcer.on_complete(now);
        }
        if progress.is_partial_seed != is_partial_told {
            is_partial_told = progress.is_partial_seed;
            announcer.announce_soon(now);
        }
        if progress.in_use != in_use {
            in_use.clone_from(&progress.in_use);
            announcer.on_paths_changed(now);
        }
        if is_stopping {
            announcer.stop();
        }
        while let Some(action) = announcer.poll(&progress, now) {
            let client = trackers.client.clone();
            let by = if trackers.named.contains(&action.tracker) { NamedBy::User } else { NamedBy::Torrent };
            under_way.spawn_local(async move {
                let reply = client.announce_as(by, &action.tracker, &action.request).await;
                (action, reply)
            });
        }
        if announcer.is_stopped() {
            return;
        }
        content.set_trackers_left(announcer.usable());
        let look_at = (!is_complete && !progress.is_partial_seed).then(|| now + NEED_LOOKED_AT_EVERY);
        let deadline = announcer.deadline().into_iter().chain(look_at).min();
        let due = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(Ok((action, reply))) = under_way.join_next() => take_in(content, &mut announcer, &action, reply),
            () = wake.notified() => {}
            () = due => {}
        }
    }
}

fn take_in(
    content: &impl Announced,
    announcer: &mut Announcer,
    action: &Action,
    reply: Result<AnnounceReply, TrackerError>,
) {
    let now = Instant::now();
    let url = action.tracker.origin();
    match reply {
        Ok(reply) => {
            announcer.on_outcome(action.id, Outcome::Reply(&reply), now);
            content.on_reply(&reply, now);
            content.tell(EventKind::Tracker { url, peers: reply.peers.len() });
        }
        Err(error) => {
            let (reason, retry) = (error.to_string(), error.retry());
            announcer.on_outcome(action.id, Outcome::Failed { reason: &reason, retry }, now);
            content.tell(EventKind::TrackerFailed { url, reason: error.cause.to_string() });
        }
    }
}
