//! Talks to a content's trackers, those of BitTorrent, under the SHA-1 of the swarm's identifier as the info-hash.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::tracker::TrackerUrl;
use anabranch_bittorrent::tracker::announcer::{Announcer, AnnouncerConfig, Outcome, Progress};
use tokio::task::JoinSet;

use super::content::Handle;
use crate::events::EventKind;
use crate::tracker::NamedBy;

/// Bytes that are told to be missing while the size is unknown: not 0, which would say that all is here.
const LEFT_UNKNOWN: u64 = 1 << 30;
/// How often a content with something missing looks whether it has somebody to ask.
const NEED_LOOKED_AT_EVERY: Duration = Duration::from_secs(5);
/// Peers of which trackers are asked for no more.
const PEERS_WANTED: usize = 64;

/// Announces until the content leaves, and then says so; while its owner has it wait, it has left.
pub(crate) async fn announce(content: Handle, trackers: Vec<TrackerUrl>, named: HashSet<TrackerUrl>) {
    let wake = Rc::clone(&content.borrow().announce);
    while !content.borrow().stopping {
        if content.borrow().is_paused_by_owner {
            wake.notified().await;
        } else {
            until_stopped(&content, &trackers, &named, &wake).await;
        }
    }
    content.borrow_mut().is_announcing = false;
}

async fn until_stopped(
    content: &Handle,
    trackers: &[TrackerUrl],
    named: &HashSet<TrackerUrl>,
    wake: &tokio::sync::Notify,
) {
    let (resources, hashes, seed, port, scion) = {
        let state = content.borrow();
        let seed = state.resources().config.seed ^ state.id.0;
        // The datagrams' port: peers of this protocol dial no other.
        let port = state.hub().listening().first().map_or(1, std::net::SocketAddr::port);
        let scion = state.hub().listening_scion().map(|address| vec![address]);
        (state.resources(), state.hashes(), seed, port, scion)
    };
    let config = AnnouncerConfig { hashes, peer_id: resources.peer_id, port, scion, key: seed as u32, seed };
    let mut announcer = Announcer::new(config, &[trackers.to_vec()], Instant::now());
    let mut under_way = JoinSet::new();
    let mut complete_at_start = None;
    let mut is_completion_told = false;
    let mut was_stopping = false;
    loop {
        let now = Instant::now();
        let (progress, stopping, is_finished, is_open) = look(content);
        if was_stopping && !stopping {
            return;
        }
        was_stopping = stopping;
        if std::mem::take(&mut content.borrow_mut().is_announce_due) {
            announcer.announce_soon(now);
        }
        if is_open && complete_at_start.is_none() {
            complete_at_start = Some(is_finished);
        }
        if is_finished && complete_at_start == Some(false) && !std::mem::replace(&mut is_completion_told, true) {
            announcer.on_complete(now);
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
        content.borrow_mut().trackers_left = announcer.usable();
        let look_at = (!is_finished).then(|| now + NEED_LOOKED_AT_EVERY);
        let deadline = announcer.deadline().into_iter().chain(look_at).min();
        let due = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(Ok((action, reply))) = under_way.join_next() => {
                let (now, url) = (Instant::now(), action.tracker.origin());
                match reply {
                    Ok(reply) => {
                        announcer.on_outcome(action.id, Outcome::Reply(&reply), now);
                        let mut state = content.borrow_mut();
                        let filter = std::sync::Arc::clone(&resources.config.filter);
                        for peer in reply.peers.iter().filter(|peer| !filter.blocks(peer)) {
                            state.peers.heard(*peer, now);
                        }
                        state.tell(EventKind::Tracker { url, peers: reply.peers.len() });
                        state.wake.notify_one();
                    }
                    Err(error) => {
                        let (reason, retry) = (error.to_string(), error.retry());
                        announcer.on_outcome(action.id, Outcome::Failed { reason: &reason, retry }, now);
                        content.borrow().tell(EventKind::TrackerFailed { url, reason: error.cause.to_string() });
                    }
                }
            }
            () = wake.notified() => {}
            () = due => {}
        }
    }
}

/// Numbers for the next announce; whether the content leaves, is finished, and is known.
fn look(content: &Handle) -> (Progress, bool, bool, bool) {
    let state = content.borrow();
    let left_bytes = state.left_bytes().unwrap_or(LEFT_UNKNOWN);
    let progress = Progress {
        uploaded_bytes: state.rates.uploaded_bytes,
        downloaded_bytes: state.rates.downloaded_bytes,
        left_bytes,
        is_partial_seed: false,
        peers_wanted: PEERS_WANTED.saturating_sub(state.conn_count()) as u32,
        in_use: Vec::new(),
        needs_peers: left_bytes > 0 && !state.is_held() && state.conn_count() == 0 && !state.peers.is_trying(),
    };
    (progress, state.stopping || state.is_paused_by_owner, state.core.is_complete(), state.storage.is_some())
}
