//! Pieces that were good once and are in doubt: because a file changed behind our back, or because the disk did not take what was
//! written.
//!
//! They are hashed where they lie. Of a download the bad ones are fetched again. Files that are only shared are watched until they
//! are the content again: whoever edits a file may put it back, and a new time alone changes nothing. And what lay there before
//! its hashes were known is hashed once a peer sent them.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bittorrent::open::{guarded, wait_out};
use crate::bittorrent::torrent::{TorrentDriver, TorrentHandle};
use crate::events::{ContentId, EventKind};
use crate::store;
use crate::store::open::blocking;

/// First and longest wait between two looks at a file that is not the content any more.
const WATCH_FIRST: Duration = Duration::from_secs(2);
const WATCH_LAST: Duration = Duration::from_secs(60);
/// Files looked at in one round of housekeeping, all contents together: so many cost less than a millisecond.
const LOOKS_PER_ROUND: usize = 256;

/// Hashes those of `pieces` that a download counts as good, after writing them once more where `rewrite` says so. What is not
/// good any more is fetched again. Answers how many that are.
pub(crate) async fn recheck(torrent: &TorrentHandle, pieces: Vec<u32>, rewrite: bool) -> usize {
    let (resume, layers, cancel, pieces) = {
        let state = torrent.borrow();
        let Some(resume) = state.resume.clone() else { return 0 };
        let counted = |piece: &u32| state.core.have().is_some_and(|have| have.get(*piece));
        let pieces: Vec<u32> = pieces.into_iter().filter(counted).collect();
        (resume, state.layers(), Arc::clone(&state.cancel), pieces)
    };
    if pieces.is_empty() {
        return 0;
    }
    let checked = pieces.clone();
    let good = blocking(move || store::recheck::hash_again(&resume, &layers, &checked, rewrite, &cancel));
    // Where the session is being left, the next start does this.
    let Some(good) = good.await else { return 0 };
    let lost: Vec<u32> = pieces.into_iter().filter(|piece| !good.get(*piece)).collect();
    let mut state = torrent.borrow_mut();
    lost.iter().for_each(|piece| state.tell(EventKind::PieceFailed { index: *piece }));
    state.lose(&lost);
    lost.len()
}

/// A file that is only shared is in doubt: looks at it now, and until all of it is good again.
pub(crate) fn watch(state: &TorrentDriver, file: usize) {
    if let Some(torrent) = state.this() {
        state.spawn(guarded(torrent.clone(), keep_watch(torrent, file)));
    }
}

async fn keep_watch(torrent: TorrentHandle, file: usize) {
    let mut wait = WATCH_FIRST;
    loop {
        let Some(storage) = torrent.borrow().storage.clone() else { return };
        let (looking, layers) = (Arc::clone(&storage), torrent.borrow().layers());
        let (good, seen) = blocking(move || store::recheck::look_again(&looking, &layers, file)).await;
        if torrent.borrow().stopping {
            return;
        }
        if seen == storage.stamp(file) {
            let mut state = torrent.borrow_mut();
            let pieces = storage.info().pieces_of_file(file);
            let is_good = |piece: u32| good.as_ref().is_some_and(|good| good.get(piece));
            let whole = pieces.clone().all(is_good);
            state.regain(pieces.filter(|piece| is_good(*piece)));
            if whole {
                state.in_doubt.remove(&file);
                state.tell(EventKind::Resumed);
                return;
            }
        }
        while storage.stamp(file) == seen {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WATCH_LAST);
            if torrent.borrow().stopping {
                return;
            }
        }
    }
}

/// The layer of a file came, and what of its `pieces` lay on disk before can be told now: what is good counts, and the rest may be
/// fetched, if the file is not one that has nothing to do with the content.
pub(crate) fn look_at(state: &TorrentDriver, pieces: Range<u32>) {
    if let Some(torrent) = state.this() {
        state.spawn(guarded(torrent.clone(), look(torrent, pieces)));
    }
}

async fn look(torrent: TorrentHandle, pieces: Range<u32>) {
    let Some(resume) = torrent.borrow().resume.clone() else { return };
    let layers = torrent.borrow().layers();
    let cancel = Arc::clone(&torrent.borrow().cancel);
    let (looking, of) = (Arc::clone(&resume), pieces.clone());
    let good = blocking(move || store::recheck::good_of(looking.storage(), &layers, of, &cancel));
    // Where the session is being left, the next start does this.
    let Some(good) = good.await.map(Arc::new) else { return };
    let mut told = false;
    loop {
        let (resume, good, of) = (Arc::clone(&resume), Arc::clone(&good), pieces.clone());
        let taken = blocking(move || store::recheck::take_over(&resume, &good, of));
        let Err(error) = taken.await else { break };
        if !wait_out(&torrent, &error, &mut told).await {
            return;
        }
    }
    let mut state = torrent.borrow_mut();
    if state.stopping {
        return;
    }
    if told {
        state.tell(EventKind::Resumed);
    }
    state.regain(pieces.clone().filter(|piece| good.get(*piece)));
    let now = Instant::now();
    state.core.looked_at(&pieces, now);
    state.pump(now);
}

/// Looks at some of the files that were verified, in turn, whether they are what they were: nobody may ask for them for long.
pub(crate) fn look_around(torrents: &[TorrentHandle], from: &mut (ContentId, usize)) {
    let mut looks = LOOKS_PER_ROUND;
    let begins = torrents.iter().position(|torrent| torrent.borrow().id >= from.0).unwrap_or(0);
    for torrent in torrents.iter().cycle().skip(begins).take(torrents.len()) {
        let (id, storage) = {
            let state = torrent.borrow();
            (state.id, state.storage.clone().filter(|_| !state.stopping))
        };
        let Some(storage) = storage else { continue };
        let first = if id == from.0 { from.1 } else { 0 };
        for file in first..storage.info().files.len() {
            if looks == 0 {
                *from = (id, file);
                return;
            }
            looks -= 1;
            let pieces = storage.info().pieces_of_file(file);
            if !pieces.is_empty() && storage.is_seal_broken(file) && !torrent.borrow().in_doubt.contains(&file) {
                let reason =
                    format!("{} was changed since it was verified; put it back", storage.file_path(file).display());
                torrent.borrow_mut().content_changed(file, pieces.start, &reason);
            }
        }
    }
    *from = (ContentId(0), 0);
}
