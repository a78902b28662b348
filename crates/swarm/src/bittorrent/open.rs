//! A content's files are opened, and what is on disk already is found out.

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::picker::Priority;
use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::{Info, Sha256Digest};
use anabranch_content::storage::naming::{self, Named};
use anabranch_content::storage::{Loaded, Preallocate, ResumeStore, Storage, StorageError, StorageOptions};
use anabranch_content::verify;

use crate::bittorrent::torrent::{TorrentRef, may_pass};
use crate::events::{Event, EventKind, FailureKind};
use crate::session::{AddOptions, Aim};
use crate::store::buffers::PieceBuffers;

/// How often a check tells how far it got.
const CHECK_PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// How often opening is tried again while storage is out of order.
const OPEN_RETRY: Duration = Duration::from_secs(2);

/// Merkle layers by the root of their file (BEP 52).
pub type Layers = HashMap<Sha256Digest, Box<[Sha256Digest]>>;

/// What opening needs, in a form that may go to another thread.
struct Request {
    info: Arc<Info>,
    dir: PathBuf,
    wanted: Vec<bool>,
    read_only: bool,
    overwrite: bool,
    trusted: bool,
    recheck: bool,
    preallocate: Preallocate,
    state_dir: Option<PathBuf>,
}

/// Files that are open, before a check.
struct Opened {
    storage: Arc<Storage>,
    resume: Option<Arc<ResumeStore>>,
    have: Bitfield,
    /// Pieces on disk that have to be verified.
    recheck: Vec<u32>,
    changed: Vec<String>,
}

/// Opens the files of `torrent`, verifies what has to be, and starts the transfer. While storage is out of order it is
/// tried again and again.
pub async fn open(torrent: TorrentRef, info: Arc<Info>, layers: Layers) {
    let (session, id, dir) = {
        let torrent = torrent.borrow();
        torrent.tell(EventKind::Metadata { name: info.name.clone(), hashes: info.hashes });
        (torrent.session(), torrent.id, torrent.dir.clone())
    };
    let aim = session.options.borrow().get(&id).map(|options| options.aim);
    match aim.unwrap_or_default() {
        Aim::Files => {}
        Aim::ChosenFiles => chosen(&torrent).await,
        Aim::Metadata => return ask_for_layers(&torrent, info, layers),
    }
    if torrent.borrow().stopping {
        return;
    }
    let info = name_files(&torrent, info).await;
    let options = session.options.borrow_mut().remove(&id).unwrap_or_default();
    let request = Arc::new(request(&session.config, &options, &info, dir));
    let is_read_only = request.read_only;
    let mut told = false;
    let (opened, place) = loop {
        // Never closed, so always granted in the end. Given back while storage is out of order: others go on.
        let place = session.opening.acquire().await;
        if torrent.borrow().stopping {
            return;
        }
        let request = Arc::clone(&request);
        match blocking(move || open_files(&request)).await {
            Ok(opened) => break (opened, place),
            // Before anything was written, a place that cannot be written is a mistake, and waiting would not mend it.
            Err(error) if !is_read_only && !told && !may_pass(&error) => {
                return torrent.borrow_mut().fail(FailureKind::Storage, error.to_string(), Instant::now());
            }
            Err(error) => {
                drop(place);
                if !wait_out(&torrent, &error, &mut told).await {
                    return;
                }
            }
        }
    };
    let mut layers = layers;
    if layers.is_empty()
        && info.version.is_v2()
        && let Some(resume) = opened.resume.clone()
    {
        layers = blocking(move || resume.kept_layers()).await;
    }
    let opened = Arc::new(check(&torrent, opened, &layers).await);
    drop(place);
    if torrent.borrow().stopping {
        return;
    }
    let known = Arc::new(layers);
    loop {
        let (opened, layers) = (Arc::clone(&opened), Arc::clone(&known));
        let Err(error) = blocking(move || settle(&opened, &layers)).await else { break };
        if !wait_out(&torrent, &error, &mut told).await {
            return;
        }
    }
    if torrent.borrow().stopping {
        return;
    }
    if told {
        torrent.borrow().tell(EventKind::Resumed);
    }
    start(&torrent, &request, &opened, Arc::unwrap_or_clone(known));
}

/// Until the owner says which files are wanted, or lets the content go.
async fn chosen(torrent: &TorrentRef) {
    let (session, id, chosen) = {
        let torrent = torrent.borrow();
        (torrent.session(), torrent.id, Rc::clone(&torrent.chosen))
    };
    let is_open = || session.options.borrow().get(&id).is_some_and(|options| options.aim == Aim::ChosenFiles);
    while is_open() && !torrent.borrow().stopping {
        chosen.notified().await;
    }
}

/// Nothing but what the content is was asked for: peers are asked for the Merkle layers that are missing, and for no piece.
fn ask_for_layers(torrent: &TorrentRef, info: Arc<Info>, layers: Layers) {
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
pub async fn wait_out(torrent: &TorrentRef, error: &StorageError, told: &mut bool) -> bool {
    if error.needs_a_choice() {
        torrent.borrow_mut().fail(FailureKind::Storage, error.to_string(), Instant::now());
        return false;
    }
    if !std::mem::replace(told, true) {
        torrent.borrow().tell(EventKind::Paused { reason: error.to_string() });
    }
    tokio::time::sleep(OPEN_RETRY).await;
    !torrent.borrow().stopping
}

/// Gives files the names that they can have where they go. What is only shared lies there already, under the names it has.
async fn name_files(torrent: &TorrentRef, info: Arc<Info>) -> Arc<Info> {
    let (dir, read_only) = {
        let state = torrent.borrow();
        let session = state.session();
        let options = session.options.borrow();
        (state.dir.clone(), options.get(&state.id).is_some_and(|options| options.read_only))
    };
    if read_only {
        return info;
    }
    let Named { info, changed } = blocking(move || naming::for_writing(&info, &dir)).await;
    if !changed.is_empty() {
        torrent.borrow().tell(EventKind::Renamed { files: changed });
    }
    info
}

fn request(config: &crate::SessionConfig, options: &AddOptions, info: &Arc<Info>, dir: PathBuf) -> Request {
    let wanted = |(index, file)| options.files.as_ref().is_none_or(|filter| filter(index, file));
    Request {
        wanted: info.files.iter().enumerate().map(wanted).collect(),
        info: Arc::clone(info),
        dir,
        read_only: options.read_only,
        overwrite: options.overwrite,
        trusted: options.trusted,
        recheck: options.recheck,
        preallocate: config.preallocate,
        state_dir: config.state_dir.clone(),
    }
}

fn open_files(request: &Request) -> Result<Opened, StorageError> {
    let options = StorageOptions {
        preallocate: request.preallocate,
        read_only: request.read_only,
        overwrite: request.overwrite,
        ..StorageOptions::default()
    };
    let storage = Arc::new(Storage::open(Arc::clone(&request.info), &request.dir, options)?);
    let pieces = request.info.geometry.piece_count();
    if request.read_only {
        let (have, recheck) = if request.trusted {
            (Bitfield::full(pieces), Vec::new())
        } else {
            (Bitfield::new(pieces), (0..pieces).collect())
        };
        // Before they are hashed: a change after that is noticed.
        storage.seal_all();
        return Ok(Opened { storage, resume: None, have, recheck, changed: Vec::new() });
    }
    storage.claim()?;
    for (file, wanted) in request.wanted.iter().enumerate() {
        storage.set_wanted(file, *wanted)?;
    }
    storage.check_places()?;
    let (resume, loaded) = ResumeStore::open(Arc::clone(&storage), request.state_dir.as_deref())?;
    let (have, recheck, changed) = match loaded {
        _ if request.recheck => {
            resume.recheck_all()?;
            (Bitfield::new(pieces), (0..pieces).collect(), Vec::new())
        }
        Loaded::Resumed(found) => {
            let mut recheck = found.recheck;
            recheck.extend(resume.perhaps_there(|piece| !found.have.get(piece)));
            recheck.sort_unstable();
            recheck.dedup();
            (found.have, recheck, changed_names(&request.info, &found.changed))
        }
        Loaded::Fresh | Loaded::Damaged(_) => (Bitfield::new(pieces), pieces_on_disk(&storage), Vec::new()),
    };
    Ok(Opened { storage, resume: Some(Arc::new(resume)), have, recheck, changed })
}

/// What is good of the files that are there is known: they are taken over, or left alone. Then room is made for the rest.
fn settle(opened: &Opened, layers: &Layers) -> Result<(), StorageError> {
    let (storage, Some(resume)) = (&opened.storage, &opened.resume) else { return Ok(()) };
    let checkable = |piece| verify::is_checkable(storage.info(), layers, piece);
    storage.check_linked(&opened.have)?;
    storage.judge(resume.strangers(), &opened.have, checkable)?;
    resume.note_foreign()?;
    storage.preallocate()?;
    storage.create_empty_files_and_links()
}

fn changed_names(info: &Info, changed: &[(usize, anabranch_content::storage::Change)]) -> Vec<String> {
    changed.iter().filter_map(|(file, _)| Some(info.files.get(*file)?.path.display().to_string())).collect()
}

/// Pieces that a file on disk reaches into: somebody put content there, or a resume file was lost.
fn pieces_on_disk(storage: &Storage) -> Vec<u32> {
    let info = storage.info();
    let mut found = Bitfield::new(info.geometry.piece_count());
    for (index, _) in info.regular_files() {
        if storage.stamp(index).is_some_and(|stamp| stamp.size > 0) {
            info.pieces_of_file(index).for_each(|piece| {
                found.set(piece);
            });
        }
    }
    found.iter_ones().collect()
}

/// Verifies the pieces that have to be, and adds those that are good.
///
/// Pieces of a v2 content whose piece layers are not known (a magnet link, and a restart before peers sent all of them)
/// cannot be hashed against anything. Those that the resume file vouches for count all the same; the others wait in `recheck`
/// until a peer sends their layer: see [`recheck::look_at`](crate::store::recheck::look_at).
async fn check(torrent: &TorrentRef, mut opened: Opened, layers: &Layers) -> Opened {
    if opened.recheck.is_empty() {
        return opened;
    }
    let (session, id) = {
        let torrent = torrent.borrow();
        (torrent.session(), torrent.id)
    };
    let (progress, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (storage, known, pieces) = (Arc::clone(&opened.storage), layers.clone(), opened.recheck.clone());
    let cancel = Arc::clone(&session.cancel);
    let work = blocking(move || {
        let mut last = Instant::now();
        verify::verify_pieces(storage.info(), &known, storage.root(), &pieces, &cancel, |done, total| {
            if last.elapsed() >= CHECK_PROGRESS_EVERY {
                last = Instant::now();
                let _ = progress.send((done, total));
            }
        })
    });
    tokio::pin!(work);
    let good = loop {
        tokio::select! {
            good = &mut work => break good,
            Some((bytes_done, bytes_total)) = told.recv() => {
                session.tell(Event { torrent: id, kind: EventKind::Checking { bytes_done, bytes_total } });
            }
        }
    };
    let Ok(good) = good else { return opened };
    let verified: Vec<u32> = opened.recheck.iter().copied().filter(|piece| good.get(*piece)).collect();
    for piece in &verified {
        opened.have.set(*piece);
    }
    opened.recheck.retain(|piece| !verify::is_checkable(opened.storage.info(), layers, *piece));
    if let Some(resume) = opened.resume.clone() {
        // Should this fail, they are good all the same, and the next start checks them again.
        let _ = blocking(move || verified.iter().try_for_each(|piece| resume.verified(*piece))).await;
    }
    opened
}

/// Storage is open and what is there is known: the transfer begins.
fn start(torrent: &TorrentRef, request: &Request, opened: &Opened, layers: Layers) {
    let now = Instant::now();
    let info = &request.info;
    let mut state = torrent.borrow_mut();
    let session = state.session();
    state.hashes = info.hashes;
    state.buffers = Some(PieceBuffers::new(Rc::clone(&session.pools), info.geometry.clone()));
    state.storage = Some(Arc::clone(&opened.storage));
    state.resume.clone_from(&opened.resume);
    let (pieces_have, pieces_total) = (opened.have.count(), opened.have.len());
    state.core.set_content(Arc::clone(info), layers, opened.have.clone(), unwanted_pieces(request), now);
    state.core.look_first(&opened.recheck);
    let (bytes_done, bytes_total) = state.core.wanted_bytes().unwrap_or_default();
    let changed_files = opened.changed.clone();
    state.tell(EventKind::Started { pieces_have, pieces_total, bytes_done, bytes_total, changed_files });
    state.update_room();
    state.pump(now);
    state.dial.notify_one();
    state.announce.notify_one();
    state.clock.notify_one();
}

/// Pieces that no wanted file reaches into; all where files are only read, for nothing could be written.
fn unwanted_pieces(request: &Request) -> Vec<(u32, Priority)> {
    let (info, wanted) = (&request.info, &request.wanted);
    let mut needed = Bitfield::new(info.geometry.piece_count());
    if !request.read_only {
        if wanted.iter().all(|wanted| *wanted) {
            return Vec::new();
        }
        for (index, _) in info.regular_files().filter(|(index, _)| wanted[*index]) {
            info.pieces_of_file(index).for_each(|piece| {
                needed.set(piece);
            });
        }
    }
    needed.iter_zeros().map(|piece| (piece, Priority::SKIP)).collect()
}

/// Runs a task of a content to its end. Where it panics, or what it does on another thread, the content fails and says so:
/// nobody waits for it in vain.
pub async fn guarded(torrent: TorrentRef, task: impl Future<Output = ()> + 'static) {
    let ended = tokio::task::spawn_local(task).await;
    if ended.is_err_and(|error| error.is_panic()) {
        torrent.borrow_mut().panicked(Instant::now());
    }
}

/// Runs `work` where it may block. A panic in it goes on here: see [`guarded`].
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}
