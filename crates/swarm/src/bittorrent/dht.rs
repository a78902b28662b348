//! Looks for a content's peers in the distributed hash table, and announces it there.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::peerbook::Source;
use anabranch_dht::{Announce, Event, Goal, NodeId, Port};

use crate::bittorrent::torrent::{TorrentDriver, TorrentHandle};
use crate::config::Aim;
use crate::dht::DhtNode;
use crate::events::{Discovery, EventKind};

/// Between two announces: others keep them for at least half an hour (BEP 5 says nothing, and clients do so).
const ANNOUNCE_EVERY: Duration = Duration::from_secs(15 * 60);
/// Between two searches of a content that lacks peers, at first; doubles each time ...
const LACKING_FIRST: Duration = Duration::from_secs(5);
/// ... up to this.
const LACKING_MAX: Duration = Duration::from_secs(5 * 60);
/// How often it is looked whether there is something to do, while something is missing ...
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// ... and when nothing is, or its owner has it wait: of those there may be thousands. First while no node is known.
const RESTING_LOOK_FIRST: Duration = Duration::from_secs(5);
const RESTING_LOOK_EVERY: Duration = Duration::from_secs(30);
/// So long trackers and other peers have before public nodes are asked for the way into the table, and so long a content has to be shared.
const TRIED_FOR: Duration = Duration::from_secs(5);

/// Searches and announces until the content ends, or turns out to be private.
pub(crate) async fn find(torrent: TorrentHandle, node: Rc<DhtNode>, named: Vec<(String, u16)>) {
    let mut searched_at: Option<Instant> = None;
    // Before the next search of a content that lacks peers.
    let mut lacking_for = LACKING_FIRST / 2;
    // Nobody took what the last search said of us: nobody finds us there.
    let mut is_unheard = false;
    // Since when it has been alone without the table.
    let mut alone_since: Option<Instant> = None;
    loop {
        let now = Instant::now();
        let (is_at_work, is_finished, needs_peers, may_wait, is_shared) = {
            let state = torrent.borrow();
            // BEP 27: the peers of what is private come from its trackers alone.
            if state.stopping || state.core.known_info().is_some_and(|info| info.private) {
                return;
            }
            let is_shared = is_shared(&state);
            // What is shared may be just about to end.
            let may_wait = is_shared || state.trackers_left > 0 || state.conn_count() > 0;
            (!state.is_held(), state.core.is_finished(), state.needs_peers(now), may_wait, is_shared)
        };
        if is_at_work {
            node.begin();
        }
        let is_alone = is_at_work && (needs_peers || is_shared);
        alone_since = if is_alone { alone_since.or(Some(now)) } else { None };
        let has_nodes = node.nodes() > 0;
        if is_at_work && !has_nodes {
            let tried = alone_since.is_some_and(|since| !may_wait || now >= since + TRIED_FOR);
            node.look_for_entry(&named, tried);
        }
        let wait = if needs_peers || is_unheard { lacking_for } else { ANNOUNCE_EVERY };
        if is_at_work && has_nodes && searched_at.is_none_or(|at| now >= at + wait) {
            if let Some(searched) = search(&torrent, &node).await {
                searched_at = Some(Instant::now());
                is_unheard = searched == Searched::Unheard;
                let is_lacking = needs_peers || is_unheard;
                lacking_for = if is_lacking { (lacking_for * 2).min(LACKING_MAX) } else { LACKING_FIRST / 2 };
            } else {
                // The places are first for those who lack something.
                tokio::time::sleep(if is_finished { RESTING_LOOK_EVERY } else { LOOK_EVERY }).await;
            }
            continue;
        }
        let pause = match is_at_work && !is_finished {
            true => LOOK_EVERY,
            false if is_at_work && has_nodes => RESTING_LOOK_EVERY,
            false => RESTING_LOOK_FIRST,
        };
        // Whoever waits for the way in goes on at once when there is one.
        let _ = tokio::time::timeout(pause, node.met()).await;
    }
}

/// What came of a search.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Searched {
    /// There was nothing to be said of us, or somebody keeps it.
    Heard,
    /// Nobody does.
    Unheard,
}

/// One round over the content's hashes; `None` where there was no place for it.
async fn search(torrent: &TorrentHandle, node: &Rc<DhtNode>) -> Option<Searched> {
    let (hashes, announce) = {
        let state = torrent.borrow();
        (state.hashes, announce(&state))
    };
    let (mut is_begun, mut stored) = (false, 0);
    for hash in hashes.wire_hashes() {
        let Some(mut searching) = node.search(Goal::Peers { info_hash: NodeId(hash), announce, scrape: false }) else {
            continue;
        };
        is_begun = true;
        while let Some(event) = searching.next().await {
            match event {
                Event::Peers { peers, .. } => found(torrent, &peers),
                Event::Ended { outcome, .. } => {
                    stored += outcome.stored;
                    break;
                }
                Event::Item { .. }
                | Event::Samples { .. }
                | Event::Met { .. }
                | Event::Joined { .. }
                | Event::Address { .. } => {}
            }
            if torrent.borrow().stopping {
                return Some(Searched::Heard);
            }
        }
    }
    let is_heard = announce.is_none() || stored > 0;
    is_begun.then_some(if is_heard { Searched::Heard } else { Searched::Unheard })
}

/// Whether somebody who has only a link may be looking for us.
fn is_shared(state: &TorrentDriver) -> bool {
    state.core.is_finished() && state.core.have().is_some_and(|have| have.count() > 0) && announce(state).is_some()
}

/// What is said of us: nothing where nobody can connect, or where nothing is to be shared.
fn announce(state: &TorrentDriver) -> Option<Announce> {
    let resources = state.resources();
    // Behind a proxy, the port is the one that the proxy sends from.
    let ip = match resources.utp.relayed() {
        Some(_) => resources.utp.is_reached_by_relay().then_some(Port::OfSocket),
        None => resources.listen_port().map(Port::Number),
    };
    let scion = resources.scion.as_ref().map(|net| Port::Number(net.endpoint.local().socket_addr().port()));
    let says_something = state.options.aim != Aim::Metadata && (ip.is_some() || scion.is_some());
    says_something.then(|| Announce { ip, scion, seed: state.core.is_finished() })
}

fn found(torrent: &TorrentHandle, peers: &[anabranch_paths::Endpoint]) {
    let mut state = torrent.borrow_mut();
    if state.core.known_info().is_some_and(|info| info.private) {
        return;
    }
    let filter = Arc::clone(&state.resources().config.filter);
    let speaks_scion = state.resources().scion.is_some();
    let mut fresh = 0;
    for peer in peers.iter().filter(|peer| !filter.blocks(peer) && (speaks_scion || peer.as_scion().is_none())) {
        let is_known = state.book.contains(peer);
        fresh += usize::from(state.book.add(*peer, Source::Dht) && !is_known);
    }
    if fresh > 0 {
        state.tell(EventKind::Discovered { by: Discovery::Dht, peers: fresh });
        state.dial.notify_one();
    }
}
