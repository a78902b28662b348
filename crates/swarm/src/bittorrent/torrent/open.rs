//! A content's files are opened and checked, and its transfer begins.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use anabranch_bittorrent::picker::Priority;
use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::Info;
use anabranch_content::metainfo::PieceLayers;
use anabranch_content::storage::StorageError;

use super::{TorrentDriver, TorrentHandle};
use crate::config::{AddOptions, Aim, SessionConfig};
use crate::events::{EventKind, FailureKind, PauseCause};
use crate::store;
use crate::store::buffers::PieceBuffers;
use crate::store::may_pass;
use crate::store::open::{Found, OpenRequest, Opened, blocking, settle, unwanted_pieces};

/// How often opening is tried again while storage is out of order.
const OPEN_RETRY: Duration = Duration::from_secs(2);

/// Opens the files of `torrent`, verifies what has to be, and starts the transfer. While storage is out of order it is
/// tried again and again.
pub(crate) async fn open(torrent: TorrentHandle, info: Arc<Info>, layers: PieceLayers) {
    torrent.borrow_mut().is_opening = true;
    open_files(&torrent, info, layers).await;
    torrent.borrow_mut().is_opening = false;
}

async fn open_files(torrent: &TorrentHandle, info: Arc<Info>, layers: PieceLayers) {
    let (resources, aim) = {
        let torrent = torrent.borrow();
        torrent.tell(EventKind::Metadata { name: info.name.clone(), hashes: info.hashes });
        (torrent.resources(), torrent.options.aim)
    };
    match aim {
        Aim::Files => {}
        Aim::ChosenFiles => chosen(torrent).await,
        Aim::Metadata => return ask_for_layers(torrent, info, layers),
    }
    if torrent.borrow().stopping {
        return;
    }
    let mut request = request(&resources.config, &torrent.borrow().options, info);
    let (is_read_only, layers) = (request.read_only, Arc::new(layers));
    let mut told = false;
    let (Found { opened, layers: kept, mut is_settled }, place) = loop {
        // Never closed, so always granted in the end. Given back while storage is out of order: others go on.
        let place = resources.opening.acquire().await;
        if torrent.borrow().stopping {
            return;
        }
        let known = Arc::clone(&layers);
        let step = move || {
            let changed = request.choose_names();
            (store::open::find(&request, &known), request, changed)
        };
        let (found, asked, changed) = blocking(step).await;
        request = asked;
        if !changed.is_empty() {
            torrent.borrow().tell(EventKind::Renamed { files: changed });
        }
        match found {
            Ok(found) => break (found, place),
            // Before anything was written, a place that cannot be written is a mistake, and waiting would not mend it.
            Err(error) if !is_read_only && !told && !may_pass(&error) => {
                return torrent.borrow_mut().fail(FailureKind::Storage, error.to_string(), Instant::now());
            }
            Err(error) => {
                drop(place);
                if !wait_out(torrent, &error, &mut told).await {
                    return;
                }
            }
        }
    };
    // Who removes the content meanwhile knows of them.
    torrent.borrow_mut().opening = Some((opened.resume.clone(), Arc::clone(&opened.storage)));
    drop(place);
    let known = kept.map_or(layers, Arc::new);
    let opened = Arc::new(check(torrent, opened, &known).await);
    if torrent.borrow().stopping {
        return;
    }
    while !is_settled {
        let (opened, layers) = (Arc::clone(&opened), Arc::clone(&known));
        match blocking(move || settle(&opened, &layers)).await {
            Ok(()) => is_settled = true,
            Err(error) => {
                if !wait_out(torrent, &error, &mut told).await {
                    return;
                }
            }
        }
    }
    if torrent.borrow().stopping {
        return;
    }
    if told {
        torrent.borrow().tell(EventKind::Resumed);
    }
    start(torrent, &request, &opened, Arc::unwrap_or_clone(known));
}

/// Until the owner says which files are wanted, or lets the content go.
async fn chosen(torrent: &TorrentHandle) {
    let chosen = Rc::clone(&torrent.borrow().chosen);
    let is_open = |state: &TorrentDriver| state.options.aim == Aim::ChosenFiles && !state.stopping;
    while is_open(&torrent.borrow()) {
        chosen.notified().await;
    }
}

/// Nothing but what the content is was asked for: peers are asked for the Merkle layers that are missing, and for no piece.
fn ask_for_layers(torrent: &TorrentHandle, info: Arc<Info>, layers: PieceLayers) {
    let now = Instant::now();
    let mut state = torrent.borrow_mut();
    state.hashes = info.hashes;
    let nothing = Bitfield::new(info.geometry.piece_count());
    // Who said to want no piece would look like one who only uploads, and be left alone.
    state.core.set_paused(true, now);
    state.core.set_content(info, layers, nothing, Vec::new(), now);
    state.pump(now);
    state.dial.notify_one();
    state.announce.notify_one();
    state.clock.notify_one();
}

/// Storage is out of order: the user is told once, and after a while the same may be tried again. `false` where the content
/// ends, because it was stopped or because no trying helps.
pub(crate) async fn wait_out(torrent: &TorrentHandle, error: &StorageError, told: &mut bool) -> bool {
    if error.needs_a_choice() {
        torrent.borrow_mut().fail(FailureKind::Storage, error.to_string(), Instant::now());
        return false;
    }
    if !std::mem::replace(told, true) {
        torrent.borrow().tell(EventKind::Paused { cause: PauseCause::Storage, reason: error.to_string() });
    }
    tokio::time::sleep(OPEN_RETRY).await;
    !torrent.borrow().stopping
}

fn request(config: &SessionConfig, options: &AddOptions, info: Arc<Info>) -> OpenRequest {
    let wanted = |(index, file)| options.files.as_ref().is_none_or(|filter| filter(index, file));
    OpenRequest {
        wanted: info.files.iter().enumerate().map(wanted).collect(),
        info,
        // What is only shared lies there already, under the names it has.
        is_named: options.read_only,
        dir: options.dir.clone(),
        read_only: options.read_only,
        overwrite: options.overwrite,
        trusted: options.trusted,
        recheck: options.recheck,
        preallocate: config.preallocate,
        state_dir: config.state_dir.clone(),
    }
}

/// Verifies the pieces that have to be, and tells how that gets on. Pieces whose layers are not known wait in `recheck` until a
/// peer sends them: see [`recheck::look_at`](super::recheck::look_at).
async fn check(torrent: &TorrentHandle, opened: Opened, layers: &PieceLayers) -> Opened {
    if opened.recheck.is_empty() {
        return opened;
    }
    let resources = torrent.borrow().resources();
    let _place = match resources.checking.try_acquire() {
        Ok(place) => Ok(place),
        Err(_) => {
            let geometry = &opened.storage.info().geometry;
            let bytes_total = opened.recheck.iter().map(|piece| u64::from(geometry.data_len(*piece))).sum();
            torrent.borrow().tell(EventKind::Checking { bytes_done: 0, bytes_total });
            // Never closed, so always granted in the end. Who has nothing to be hashed does not wait for those who have.
            resources.checking.acquire().await
        }
    };
    if torrent.borrow().stopping {
        return opened;
    }
    let (known, cancel) = (layers.clone(), Arc::clone(&torrent.borrow().cancel));
    checking(torrent, move |progress| store::open::check(opened, &known, &cancel, progress)).await
}

/// Runs `work`, which hashes pieces where that may block, and tells how it gets on.
pub(crate) async fn checking<T: Send + 'static>(
    torrent: &TorrentHandle,
    work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T + Send + 'static,
) -> T {
    let tell = |bytes_done, bytes_total| torrent.borrow().tell(EventKind::Checking { bytes_done, bytes_total });
    store::open::checking(work, tell).await
}

/// Storage is open and what is there is known: the transfer begins.
fn start(torrent: &TorrentHandle, request: &OpenRequest, opened: &Opened, layers: PieceLayers) {
    let now = Instant::now();
    let info = &request.info;
    let mut state = torrent.borrow_mut();
    let resources = state.resources();
    state.opening = None;
    state.hashes = info.hashes;
    state.buffers = Some(PieceBuffers::new(Rc::clone(&resources.pools), info.geometry.clone()));
    state.storage = Some(Arc::clone(&opened.storage));
    state.resume.clone_from(&opened.resume);
    let (pieces_have, pieces_total) = (opened.have.count(), opened.have.len());
    let unwanted = unwanted_pieces(request).into_iter().map(|piece| (piece, Priority::SKIP)).collect();
    state.core.set_content(Arc::clone(info), layers, opened.have.clone(), unwanted, now);
    state.core.look_first(&opened.recheck);
    let (bytes_done, bytes_total) = state.core.wanted_bytes().unwrap_or_default();
    let changed_files = opened.changed.clone();
    state.tell(EventKind::Started { pieces_have, pieces_total, bytes_done, bytes_total, changed_files });
    state.update_room();
    state.read_on(now);
    state.pump(now);
    state.dial.notify_one();
    state.announce.notify_one();
    state.clock.notify_one();
}

/// Runs a task of a content to its end. Where it panics, or what it does on another thread, the content fails and says so:
/// nobody waits for it in vain.
pub(crate) async fn guarded(torrent: TorrentHandle, task: impl Future<Output = ()>) {
    let mut task = std::pin::pin!(task);
    // What the task held goes with it: nothing half done is seen again.
    let caught = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    if caught.await.is_err() {
        torrent.borrow_mut().panicked(Instant::now());
    }
    // Whoever keeps the time clears it away.
    torrent.borrow().clock.notify_one();
}
