//! A content's files are opened, and what is on disk already is found out: steps that may block, for whoever drives them.
//!
//! 1. [`open`]: files and the resume file are opened; what counts without a look, and what has to be looked at. [`find`] is that and,
//!    where everything is there, 3 in one.
//! 2. [`check`]: hashes the latter where the hashes are known, and records what is good.
//! 3. [`settle`]: takes over or leaves alone the files that are there, and makes room for the rest.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::Info;
use anabranch_content::metainfo::PieceLayers;
use anabranch_content::storage::naming::{self, Named, Renamed};
use anabranch_content::storage::{Loaded, Preallocate, ResumeStore, Storage, StorageError, StorageOptions};
use anabranch_content::verify;

/// How often a check tells how far it got.
const CHECK_PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// What opening needs, in a form that may go to another thread.
pub(crate) struct OpenRequest {
    /// What the content is.
    pub info: Arc<Info>,
    /// Its files have the names that they can have where they go.
    pub is_named: bool,
    /// The folder below which its files are.
    pub dir: PathBuf,
    /// Which files are wanted, one entry a file.
    pub wanted: Vec<bool>,
    /// Files are only read.
    pub read_only: bool,
    /// Files that are others than the content's and stand in their place are overwritten.
    pub overwrite: bool,
    /// All pieces are known to be good.
    pub trusted: bool,
    /// Everything on disk has to be verified, whatever the resume file says.
    pub recheck: bool,
    /// How files get their space.
    pub preallocate: Preallocate,
    /// Folder for the resume file; beside the content where `None`.
    pub state_dir: Option<PathBuf>,
}

impl OpenRequest {
    /// Gives files the names that they can have where they go, once; answers those that are others than the content has. Blocks.
    pub(crate) fn choose_names(&mut self) -> Vec<Renamed> {
        if std::mem::replace(&mut self.is_named, true) {
            return Vec::new();
        }
        let Named { info, changed } = naming::for_writing(&self.info, &self.dir);
        self.info = info;
        changed
    }
}

/// Files that are open.
pub(crate) struct Opened {
    /// The files.
    pub storage: Arc<Storage>,
    /// The record of verified pieces; none where files are only read.
    pub resume: Option<Arc<ResumeStore>>,
    /// Pieces that count as good.
    pub have: Bitfield,
    /// Pieces on disk that have to be verified before they count.
    pub recheck: Vec<u32>,
    /// Files that changed since they were recorded, by their paths in the content.
    pub changed: Vec<String>,
}

/// Opens the files, for nobody else to write to at the same time. Blocks.
pub(crate) fn open(request: &OpenRequest) -> Result<Opened, StorageError> {
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
    // Thousands that are complete are opened at once: no claim comes and goes for each.
    if !request.recheck
        && request.wanted.iter().all(|wanted| *wanted)
        && let Some(resume) = ResumeStore::open_finished(&storage, request.state_dir.as_deref())
    {
        let (resume, have) = (Some(Arc::new(resume)), Bitfield::full(pieces));
        return Ok(Opened { storage, resume, have, recheck: Vec::new(), changed: Vec::new() });
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

/// What [`find`] finds.
pub(crate) struct Found {
    /// Files that are open.
    pub opened: Opened,
    /// Piece layers that were kept, where none were at hand.
    pub layers: Option<PieceLayers>,
    /// Everything was there, and nothing is left to [`settle`].
    pub is_settled: bool,
}

/// [`open`], and all that can follow at once: thousands of contents that are complete each wait for one step only. Blocks.
pub(crate) fn find(request: &OpenRequest, layers: &PieceLayers) -> Result<Found, StorageError> {
    let opened = open(request)?;
    let lacks_layers = layers.is_empty() && request.info.version.is_v2();
    let kept = opened.resume.as_ref().filter(|_| lacks_layers).map(|resume| resume.kept_layers());
    let is_whole = opened.recheck.is_empty() && opened.have.count() == opened.have.len();
    // Should that fail, it is tried again, and told.
    let is_settled = is_whole && settle(&opened, kept.as_ref().unwrap_or(layers)).is_ok();
    Ok(Found { opened, layers: kept, is_settled })
}

/// Verifies the pieces that have to be, and adds those that are good; `progress` hears of bytes done and of all.
/// Blocks, as long as hashing takes; with `cancel` set nothing is added.
///
/// Pieces whose hashes are not among `layers`, nor in the content's description, cannot be hashed against anything: a v2
/// content's that came by a magnet link, until peers sent all piece layers. Those that the resume file vouches for count all the
/// same; the others stay in [`Opened::recheck`].
pub(crate) fn check(
    mut opened: Opened,
    layers: &PieceLayers,
    cancel: &AtomicBool,
    progress: impl FnMut(u64, u64),
) -> Opened {
    let storage = Arc::clone(&opened.storage);
    let good = verify::verify_pieces(&storage, layers, &opened.recheck, cancel, progress);
    let Ok(good) = good else { return opened };
    let verified: Vec<u32> = opened.recheck.iter().copied().filter(|piece| good.get(*piece)).collect();
    for piece in &verified {
        opened.have.set(*piece);
    }
    opened.recheck.retain(|piece| !verify::is_checkable(storage.info(), layers, *piece));
    if let Some(resume) = &opened.resume {
        // Should this fail, they are good all the same, and the next start checks them again.
        let _ = verified.iter().try_for_each(|piece| resume.verified(*piece));
    }
    opened
}

/// What is good of the files that are there is known: they are taken over, or left alone. Then room is made for the rest. Blocks.
pub(crate) fn settle(opened: &Opened, layers: &PieceLayers) -> Result<(), StorageError> {
    let (storage, Some(resume)) = (&opened.storage, &opened.resume) else { return Ok(()) };
    if resume.is_at_rest() {
        return Ok(());
    }
    let checkable = |piece| verify::is_checkable(storage.info(), layers, piece);
    storage.check_linked(&opened.have)?;
    storage.judge(resume.strangers(), &opened.have, checkable)?;
    resume.note_foreign()?;
    storage.preallocate()?;
    storage.create_empty_files_and_links()
}

/// Pieces that no wanted file reaches into; all where files are only read, for nothing could be written.
pub(crate) fn unwanted_pieces(request: &OpenRequest) -> Vec<u32> {
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
    needed.iter_zeros().collect()
}

/// Runs `work` where it may block. A panic in it goes on here.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

/// Runs `work` where it may block, and tells how far it got, now and then.
pub(crate) async fn checking<T: Send + 'static>(
    work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T + Send + 'static,
    tell: impl Fn(u64, u64),
) -> T {
    let (progress, mut told) = tokio::sync::mpsc::channel(1);
    let work = blocking(move || {
        let mut last = Instant::now();
        work(&mut |done, total| {
            if last.elapsed() >= CHECK_PROGRESS_EVERY {
                last = Instant::now();
                // Where what was told before was not heard yet, this need not be.
                let _ = progress.try_send((done, total));
            }
        })
    });
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            Some((bytes_done, bytes_total)) = told.recv() => tell(bytes_done, bytes_total),
        }
    }
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
