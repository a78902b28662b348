//! Talks to a content's trackers for as long as the content is in the resources.

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::peerbook::Source;
use anabranch_bittorrent::tracker::announcer::{Action, Announcer, AnnouncerConfig, Outcome, Progress};
use anabranch_bittorrent::tracker::{AnnounceReply, TrackerUrl};
use tokio::task::JoinSet;

use crate::bittorrent::torrent::TorrentHandle;
use crate::events::EventKind;
use crate::tracker::{NamedBy, TrackerError};

/// Bytes that are told to be missing while the size is unknown: not 0, which would say that we are a seed.
const LEFT_UNKNOWN: u64 = 1 << 30;

/// How long the first announce waits for the files to be looked at, so that who has all of it is not taken for one who lacks all of it until
/// the tracker may be asked again.
const OPENING_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether that is done.
const OPENING_LOOKED_AT_EVERY: Duration = Duration::from_millis(20);

/// How often a content with something missing looks whether its peers still have that.
const NEED_LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// Announces to `tiers` until the content leaves, and then says so; while its owner has it wait, it has left. The user `named` some
/// of them by hand.
pub(crate) async fn announce(torrent: TorrentHandle, tiers: Vec<Vec<TrackerUrl>>, named: HashSet<TrackerUrl>) {
    let wake = Rc::clone(&torrent.borrow().announce);
    while !torrent.borrow().stopping {
        if torrent.borrow().is_paused_by_owner {
            wake.notified().await;
        } else {
            until_stopped(&torrent, &tiers, &named, &wake).await;
        }
    }
    torrent.borrow_mut().is_announcing = false;
}

/// From `started` to `stopped`.
async fn until_stopped(
    torrent: &TorrentHandle,
    tiers: &[Vec<TrackerUrl>],
    named: &HashSet<TrackerUrl>,
    wake: &tokio::sync::Notify,
) {
    let opened_by = Instant::now() + OPENING_MAX;
    while torrent.borrow().is_opening_files() && Instant::now() < opened_by {
        tokio::time::sleep(OPENING_LOOKED_AT_EVERY).await;
    }
    let resources = torrent.borrow().resources();
    // Without a listener port 1 is told: BEP 3 wants one, and nobody is there to be reached.
    let port = || resources.listen_port().unwrap_or(1);
    let scion = resources.scion.as_ref().and_then(|net| net.endpoint.local().as_scion());
    let seed = resources.config.seed ^ torrent.borrow().id.0;
    let hashes = torrent.borrow().hashes;
    let config = AnnouncerConfig {
        hashes,
        peer_id: resources.peer_id,
        port: port(),
        scion: scion.map(|address| vec![address]),
        key: seed as u32,
        seed,
    };
    let mut announcer = Announcer::new(config, tiers, Instant::now());
    // At most one announce an info-hash and tracker is under way. They end with this.
    let mut under_way = JoinSet::new();
    let mut complete_at_start = None;
    let mut completion_told = false;
    let mut is_partial_told = false;
    let mut in_use = Vec::new();
    let mut is_stopping = false;
    loop {
        let now = Instant::now();
        let (progress, stopping, known) = look(torrent, now);
        let is_complete = progress.left_bytes == 0;
        if is_stopping && !stopping {
            // It goes on: whoever was not told yet that it stopped need not be.
            return;
        }
        is_stopping = stopping;
        announcer.set_port(port(), now);
        if std::mem::take(&mut torrent.borrow_mut().is_announce_due) {
            announcer.announce_soon(now);
        }
        if known && complete_at_start.is_none() {
            complete_at_start = Some(is_complete);
        }
        if is_complete && complete_at_start == Some(false) && !completion_told {
            completion_told = true;
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
        if stopping {
            announcer.stop();
        }
        while let Some(action) = announcer.poll(&progress, now) {
            let client = resources.trackers.clone();
            let by = if named.contains(&action.tracker) { NamedBy::User } else { NamedBy::Torrent };
            under_way.spawn_local(async move {
                let reply = client.announce_as(by, &action.tracker, &action.request).await;
                (action, reply)
            });
        }
        if announcer.is_stopped() {
            return;
        }
        torrent.borrow_mut().trackers_left = announcer.usable();
        let look_at = (!is_complete && !progress.is_partial_seed).then(|| now + NEED_LOOKED_AT_EVERY);
        let deadline = announcer.deadline().into_iter().chain(look_at).min();
        let due = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(Ok((action, reply))) = under_way.join_next() => take_in(torrent, &mut announcer, &action, reply),
            () = wake.notified() => {}
            () = due => {}
        }
    }
}

/// Numbers for the next announce; whether the content leaves, and is known.
fn look(torrent: &TorrentHandle, now: Instant) -> (Progress, bool, bool) {
    let mut torrent = torrent.borrow_mut();
    let stats = torrent.core.stats(now);
    let left_bytes = torrent.core.left_bytes().unwrap_or(LEFT_UNKNOWN);
    let room = torrent.resources().config.torrent_connections_max.saturating_sub(torrent.conn_count());
    let progress = Progress {
        uploaded_bytes: stats.uploaded_bytes,
        downloaded_bytes: stats.downloaded_bytes,
        left_bytes,
        is_partial_seed: left_bytes > 0 && torrent.core.is_finished(),
        peers_wanted: room as u32,
        in_use: torrent.core.paths_in_use().to_vec(),
        needs_peers: torrent.needs_peers(now),
    };
    // Without storage, completion would be told of a content whose files nobody looked at yet.
    let known = torrent.storage.is_some();
    (progress, torrent.stopping || torrent.is_paused_by_owner, known)
}

fn take_in(
    torrent: &TorrentHandle,
    announcer: &mut Announcer,
    action: &Action,
    reply: Result<AnnounceReply, TrackerError>,
) {
    let now = Instant::now();
    let url = action.tracker.origin();
    match reply {
        Ok(reply) => {
            announcer.on_outcome(action.id, Outcome::Reply(&reply), now);
            let mut torrent = torrent.borrow_mut();
            let resources = torrent.resources();
            if let (Some(ip), Some(port)) = (reply.external_ip, resources.listen_port()) {
                torrent.book.set_own((ip, port).into());
            }
            let filter = Arc::clone(&resources.config.filter);
            for peer in reply.peers.iter().filter(|peer| !filter.blocks(peer)) {
                torrent.book.add(*peer, Source::Tracker);
            }
            if let Some(in_use) = reply.in_use {
                torrent.core.told_in_use(in_use, now);
            }
            torrent.tell(EventKind::Tracker { url, peers: reply.peers.len() });
            torrent.dial.notify_one();
        }
        Err(error) => {
            let (reason, retry) = (error.to_string(), error.retry());
            announcer.on_outcome(action.id, Outcome::Failed { reason: &reason, retry }, now);
            torrent.borrow().tell(EventKind::TrackerFailed { url, reason: error.cause.to_string() });
        }
    }
}
