//! A content begins: its core, its tasks, whom it knows at first.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Instant;

use anabranch_bittorrent::reach::may_link_to_peer;
use anabranch_bittorrent::tracker::{TrackerUrl, UrlError};
use anabranch_paths::Endpoint;
use anabranch_ppspp::binmap::Binmap;
use anabranch_ppspp::ledbat::Mode;
use anabranch_ppspp::link::Link;
use anabranch_ppspp::merkle::Tree;
use anabranch_ppspp::swarm::Swarm;
use anabranch_ppspp::wire::Integrity;

use super::announce;
use super::audience::{Audience, SecureContent};
use super::content::{self, Content, Handle, guarded};
use super::hashed::Hashed;
use super::hub::Hub;
use super::live::{self, LiveShare};
use super::nodes::Nodes;
use super::path_table::PathAddress;
use crate::config::AddOptions;
use crate::events::{ContentId, EventKind, FailureKind};
use crate::net::own_addresses::are_at_home;
use crate::resources::Resources;

/// A content that is added begins: its tasks, its peers, its trackers. `hashed`: it is shared, and this is its tree. `share`: it is a
/// live stream, and we are its source.
pub(crate) fn begin(
    id: ContentId,
    link: Link,
    (hashed, share): (Option<Box<Hashed>>, Option<LiveShare>),
    options: AddOptions,
    (resources, hub): (&Rc<Resources>, &Rc<Hub>),
) -> Handle {
    let now = Instant::now();
    let is_live = link.params.integrity().is_signed();
    let is_source = share.is_some();
    let (mut core, live) = match is_live.then(|| live::core(&link, share, now)).flatten() {
        Some((core, live)) => (core, Some(live)),
        None => (complete(&link, now), None),
    };
    core.set_dialect(link.dialect);
    let named: HashSet<TrackerUrl> = options.trackers.iter().filter_map(|url| url.parse().ok()).collect();
    let mut urls = link.trackers.clone();
    urls.extend(options.trackers.iter().filter(|url| !link.trackers.contains(url)).cloned());
    let at_home = are_at_home(&resources.listening);
    let (linked, unfit_peers): (Vec<Endpoint>, Vec<Endpoint>) = link
        .peers
        .iter()
        .filter_map(|peer| peer.parse().ok())
        .partition(|peer| may_link_to_peer(peer, [link.params.swarm_id()], at_home));
    let unfit_peers: Vec<Endpoint> = unfit_peers.into_iter().filter(|peer| !options.peers.contains(peer)).collect();
    let peers: Vec<Endpoint> = linked.into_iter().chain(options.peers.clone()).collect();
    let is_known = link.content_len.is_some();
    let named_by_link = link.peers.iter().filter_map(|peer| peer.parse().ok()).collect();
    let is_ours = hashed.is_some() || is_source;
    let audience = link.secure.as_ref().map(|secure| Audience::of(secure, &options, resources, is_ours)).transpose();
    let mut content = Content::new(id, link, core, options, (Rc::clone(resources), Rc::clone(hub)));
    content.live = live;
    let (audience, unfit) = audience.map_or_else(|reason| (None, Some(reason)), |audience| (audience, None));
    content.secure = audience.map(|audience| SecureContent::new(audience, named_by_link));
    let content = Handle::new(content);
    let mut state = content.borrow_mut();
    hub.directory().insert(id, &state.link.params, state.audience(), content.recipient());
    if state.live.is_some() {
        state.peers.set_live();
    }
    unfit_peers.into_iter().for_each(|address| state.tell(EventKind::PeerUnfit { address }));
    for peer in peers {
        state.name_peer(peer, now);
    }
    let is_complete = state.link.params.integrity() == Integrity::MerkleTree && state.link.params.chunk_len().is_some();
    if state.live.is_none() && !is_complete {
        let reason = "the link is of a content that nothing proves, or whose chunks differ in length: only complete contents with a \
                      Merkle tree and chunks of one length are fetched, and live streams, which are signed";
        state.fail(FailureKind::Metadata, reason.to_owned());
    }
    if let Some(reason) = unfit {
        state.fail(FailureKind::Metadata, reason.to_owned());
    }
    if resources.config.proxy.is_some() && !state.stopping {
        let reason = "PPSPP's datagrams do not go through the proxy, and do not go round it: leave --proxy out";
        state.fail(FailureKind::Sources, reason.to_owned());
    }
    let parse = |url: &String| match url.parse::<TrackerUrl>() {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            let error: UrlError = error;
            state.tell(EventKind::TrackerFailed { url: url.clone(), reason: error.to_string() });
            None
        }
    };
    let trackers: Vec<TrackerUrl> = urls.iter().filter_map(parse).collect();
    state.trackers_left = trackers.len();
    state.spawn(guarded(content.clone(), content::keep_time(content.clone())));
    state.spawn(guarded(content.clone(), content::drive_paths(content.clone())));
    if !trackers.is_empty() && !state.stopping {
        state.is_announcing = true;
        state.spawn(announce::announce(content.clone(), trackers, named));
    }
    if is_known && state.live.is_none() && !state.stopping {
        content::open::begin(&mut state, hashed);
    }
    drop(state);
    content
}

/// The core of a complete content.
pub(super) fn complete(link: &Link, now: Instant) -> Swarm<PathAddress, Nodes> {
    let hash = link.params.hash();
    let chunks = link.content_len.zip(link.params.chunk_len()).map(|(len, chunk)| len.div_ceil(chunk.into()));
    let root = hash.digest(link.params.swarm_id()).unwrap_or(hash.zero());
    let tree = Tree::with_root(hash, root, chunks, Nodes::memory(hash));
    // Channels' numbers are drawn from it, and nobody may guess them: whatever seed the session was told.
    let mut core = Swarm::new(link.params.clone(), tree, Binmap::new(), Mode::Fast, fastrand::u64(..), now);
    core.set_room(0);
    core
}
