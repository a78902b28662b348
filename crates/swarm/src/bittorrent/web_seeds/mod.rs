//! Web seeds: HTTP servers that have a content's files (BEP 19), or hand out its pieces (BEP 17).
//!
//! A web seed is made to speak as a peer does: behind one end of a stream within this thread, [`speaker`] has all pieces, serves whoever asks, and
//! fetches what it is asked for by ranges over a few connections of HTTP ([`http`]). The other end is a connection as any other. So the picker
//! asks, limits hold, pieces are verified and liars are found and banned, all as with peers. No address of a web seed is told to peers, and no path
//! manager looks for more ways to it: it takes the uplinks in turn by itself.
//!
//! Here: which web seeds there are, when each is used, and what is told of those that cannot be.

mod error;
mod http;
mod speaker;

use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::handshake::{Handshake, Reserved};
use anabranch_bittorrent::torrent::{Link, Refused};
use anabranch_bittorrent::tracker::TrackerUrl;
use anabranch_bittorrent::web_seed::{Backoff, is_usable};
use anabranch_content::hash::sha1;
use anabranch_paths::{Host, Path, PathPeer};
use anabranch_transport::MemoryStream;

use crate::bittorrent::conn::Conn;
use crate::bittorrent::error::ConnError;
use crate::bittorrent::torrent::{TorrentDriver, TorrentHandle};
use crate::config::Aim;
use crate::events::EventKind;
use crate::tracker::NamedBy;
use crate::transfer::{Trouble, WebSeed};
use error::Failure;
use http::{Kind, Site};

/// Web seeds of one content that are used: those of the user, then the first ones that the torrent names.
const WEB_SEEDS_MAX: usize = 16;
/// How often it is looked whether a web seed is needed, while something is missing, and while nothing is.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LOOK_SELDOM: Duration = Duration::from_secs(30);
/// Causes of one web seed's trouble that are told, each once.
const TOLD_MAX: usize = 8;
/// What a web seed's peer id begins with (BEP 20).
const PEER_ID_PREFIX: &[u8; 8] = b"-WS0000-";

/// Begins to use the web seeds of a content: those that the user `named`, and what its torrent or link names: servers of files, and those `of_pieces`.
pub(crate) fn begin(
    torrent: &TorrentHandle,
    state: &mut TorrentDriver,
    named: &[String],
    (of_files, of_pieces): (&[String], &[String]),
) {
    let resources = state.resources();
    // With `--allow` nobody is dealt with who proves no key.
    let is_closed = resources.scion.as_ref().is_some_and(|net| net.is_closed());
    if !resources.config.web_seeds || is_closed || state.options.read_only {
        return;
    }
    let mut seeds: Vec<((TrackerUrl, Kind), NamedBy)> = Vec::new();
    let files = |by| move |url| (url, Kind::Files, by);
    let all = named.iter().map(files(NamedBy::User)).chain(of_files.iter().map(files(NamedBy::Torrent)));
    // Pieces are asked for by the hash of v1, which is all that BEP 17 knows.
    let pieces =
        state.hashes.v1.into_iter().flat_map(|hash| of_pieces.iter().map(move |url| (url, Kind::Pieces(hash))));
    for (text, kind, by) in all.chain(pieces.map(|(url, kind)| (url, kind, NamedBy::Torrent))) {
        match text.parse::<TrackerUrl>() {
            Ok(url) if is_usable(&url) && seeds.iter().all(|((known, _), _)| *known != url) => {
                seeds.push(((url, kind), by));
            }
            _ => {}
        }
    }
    for (at, (place, by)) in seeds.into_iter().take(WEB_SEEDS_MAX).enumerate() {
        state.web_seeds.push(WebSeed { url: place.0.origin(), trouble: None });
        state.spawn(run(torrent.clone(), at, place, by));
    }
}

/// Uses one web seed for as long as the content is there.
async fn run(torrent: TorrentHandle, at: usize, (url, kind): (TrackerUrl, Kind), by: NamedBy) {
    let mut backoff = Backoff::default();
    let mut told = Vec::new();
    loop {
        let need = need(&torrent.borrow());
        match need {
            Need::NeverAgain => return,
            Need::Later(wait) => {
                tokio::time::sleep(wait).await;
                continue;
            }
            Need::Now => {}
        }
        let (moved, ended) = serve(&torrent, at, (&url, kind), by).await;
        if moved > 0 {
            backoff.succeeded();
        }
        let Err(failure) = ended else {
            // It is not needed any more, or made room.
            tokio::time::sleep(backoff.failed(None)).await;
            continue;
        };
        note(&mut torrent.borrow_mut(), (at, url.origin()), &failure, &mut told);
        if failure.is_final() {
            return;
        }
        tokio::time::sleep(backoff.failed(failure.retry_after())).await;
    }
}

/// Notes why a web seed, by its number and name, cannot be had, and tells of it, unless that was told.
fn note(state: &mut TorrentDriver, (at, url): (usize, String), failure: &Failure, told: &mut Vec<String>) {
    let (reason, is_final) = (failure.to_string(), failure.is_final());
    if told.len() < TOLD_MAX && !told.contains(&reason) {
        state.tell(EventKind::WebSeedFailed { url, reason: reason.clone(), is_final });
        told.push(reason.clone());
    }
    let trouble = &mut state.web_seeds[at].trouble;
    let since = trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
    *trouble = Some(Trouble { reason, since, is_final });
}

/// Whether a content has use for web seeds.
enum Need {
    Now,
    Later(Duration),
    NeverAgain,
}

fn need(state: &TorrentDriver) -> Need {
    if state.stopping {
        return Need::NeverAgain;
    }
    if state.core.is_finished() {
        return Need::Later(LOOK_SELDOM);
    }
    let is_at_work = state.options.aim == Aim::Files && !state.is_held() && !state.core.is_paused();
    let is_ready = state.storage.is_some() && is_at_work && state.resources().has_room();
    if is_ready { Need::Now } else { Need::Later(LOOK_EVERY) }
}

/// Connects to a web seed, and has it serve until it fails or is not needed any more. Answers how much came, and why it failed.
async fn serve(
    torrent: &TorrentHandle,
    at: usize,
    (url, kind): (&TrackerUrl, Kind),
    by: NamedBy,
) -> (u64, Result<(), Failure>) {
    let site = {
        let state = torrent.borrow();
        let Some(info) = state.core.info().cloned() else { return (0, Ok(())) };
        Rc::new(Site::new(state.resources(), (url.clone(), kind), by, info))
    };
    let first = match site.connect(url, None, 0).await {
        Ok(first) => first,
        Err(failure) => return (0, Err(failure)),
    };
    let host = Host::of(&first.remote.into());
    let theirs = Handshake { reserved: Reserved::OURS, info_hash: [0; 20], peer_id: peer_id(url) };
    // It is told to nobody, and called by nobody, as one who called us and listens nowhere is.
    let link = Link {
        address: first.remote.into(),
        outgoing: false,
        path: None,
        key: None,
        local: None,
        over_utp: false,
        is_near: false,
    };
    let (id, handle) = {
        let mut state = torrent.borrow_mut();
        if !matches!(need(&state), Need::Now) {
            return (0, Ok(()));
        }
        let now = Instant::now();
        match state.core.connected_over(link, &theirs, now) {
            Ok(id) if !state.make_room(host, now) => {
                state.core.disconnected(id, now);
                return (0, Err(Failure::Refused("there is no place for another connection".to_owned())));
            }
            Ok(id) => {
                let handle = state.attach(id, host);
                state.web_seeds[at].trouble = None;
                let (address, peer_id) = (first.remote.into(), theirs.peer_id);
                state.tell(EventKind::PeerConnected {
                    address,
                    outgoing: true,
                    peer_id,
                    transport: "http",
                    encryption: None,
                });
                (id, handle)
            }
            Err(Refused::Banned(reason)) => return (0, Err(Failure::Banned(reason))),
            Err(refused) => return (0, Err(Failure::Refused(refused.to_string()))),
        }
    };
    let resources = torrent.borrow().resources();
    let counted = resources.take_connection();
    let address = first.remote.into();
    let peer = PathPeer::new(address, Path::ip(first.local, first.remote.ip()));
    let (ours, its) = MemoryStream::pair(&peer);
    let conn = Conn::new(torrent.clone(), id, ours.into(), handle).run(Vec::new());
    let missing = |file: usize| {
        let (url, reason) = (url.origin(), format!("it does not have {}", site.name(file)));
        torrent.borrow().tell(EventKind::WebSeedFailed { url, reason, is_final: false });
    };
    let ended = tokio::select! {
        error = conn => Ok(error),
        failure = speaker::speak(its.into(), &site, first, &missing) => Err(failure),
    };
    drop(counted);
    let mut state = torrent.borrow_mut();
    let moved = state.core.conn_bytes(id);
    if let Ok(ConnError::Misbehaved(fault)) = &ended {
        state.core.misbehaved(id, fault);
    }
    let reason = match &ended {
        Ok(error) => error.to_string(),
        Err(failure) => failure.to_string(),
    };
    let now = Instant::now();
    state.detach(id, now);
    state.tell(EventKind::PeerDisconnected { address, reason });
    let ended = match state.core.refusal_of(&link, &theirs.peer_id, now) {
        Some(Refused::Banned(reason)) => Err(Failure::Banned(reason)),
        Some(refused) => Err(Failure::Refused(refused.to_string())),
        None => ended.map(|_| ()),
    };
    (moved, ended)
}

/// What a web seed is called among peers: always the same, so that what it did is not forgotten.
fn peer_id(url: &TrackerUrl) -> [u8; 20] {
    let digest = sha1(url.to_string().as_bytes());
    std::array::from_fn(|at| PEER_ID_PREFIX.get(at).copied().unwrap_or_else(|| digest[at]))
}
