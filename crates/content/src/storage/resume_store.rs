//! The resume file on disk: a snapshot rewritten now and then, and a journal that grows with every piece.
//!
//! Order is all. A write: lease, bytes, hash, then [`ResumeStore::verified`]. A checkpoint: note the pieces, sync the data, then
//! replace the snapshot (temporary file, sync, rename, sync of the folder). Records that arrive meanwhile go to the old
//! file and, before the rename, to the new one as well; so there is no instant at which a recorded piece is in neither.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::resume::{HEADER_LEN, Record, snapshot_crc, snapshot_len};
use super::{FileRecord, Lease, Op, Reconciled, Resume, ResumeError, SegmentKind, Storage, StorageError};
use crate::bitfield::Bitfield;
use crate::info::{FileEntry, FileKind};
use crate::metainfo::{Metainfo, PieceLayers};

/// Past this many bytes of journal a checkpoint is due: it keeps loading quick. 9 bytes a piece.
pub const JOURNAL_LIMIT_BYTES: u64 = 256 * 1024;

/// How often data in progress should be synced, so that a power cut costs little re-hashing.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(30);

/// How long a lease lasts. Long enough that leases cost nothing beside the data, short enough that few changes by others hide in it.
const LEASE_NS: i64 = 10_000_000_000;

/// Bytes written again at a time.
const REWRITE_LEN: u64 = 256 * 1024;

/// The largest resume file that is read: the state of 2^27 pieces, or of some 1.6 million files.
const RESUME_LEN_MAX: u64 = 64 * 1024 * 1024;

/// What [`ResumeStore::open`] found.
#[derive(Debug)]
pub enum Loaded {
    /// No resume file: a new download, or data that nobody checked yet.
    Fresh,
    /// A resume file, compared with the disk.
    Resumed(Reconciled),
    /// A resume file that cannot be used; data on disk has to be checked.
    Damaged(ResumeError),
}

/// Keeps the resume file of one content.
#[derive(Debug)]
pub struct ResumeStore {
    storage: Arc<Storage>,
    path: PathBuf,
    strangers: Vec<usize>,
    unsettled: Vec<usize>,
    state: Mutex<State>,
    /// Held through a whole save: two at once would write the same temporary file.
    saving: Mutex<()>,
    /// Held from a sync until what it failed for is distrusted: the next one succeeds, and would vouch for it.
    syncing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    resume: Resume,
    journal: Option<Journal>,
    /// Records since a save began; they belong into the new file as well.
    since_save: Option<Vec<Record>>,
    /// Pieces that were written to, in part or whole, and have no verdict yet.
    unproven: Bitfield,
    /// Those of them that were written to before a sync failed: see [`ResumeStore::distrusted`].
    doubted: Bitfield,
    /// Something changed that is in no record, as totals and priorities.
    dirty: bool,
    saved_at: Option<Instant>,
    /// The files were deleted: what is still at work brings none of them back.
    is_deleted: bool,
}

/// The resume file, open for more records.
#[derive(Debug)]
struct Journal {
    file: File,
    /// Where the next record goes: after a failed append the next one overwrites its remains.
    end: u64,
    start: u64,
    crc: u32,
}

impl ResumeStore {
    /// Reads `storage`'s resume file, in `state_dir` or else beside the content, and compares it with the disk.
    /// What the file says besides is at [`ResumeStore::with`].
    pub fn open(storage: Arc<Storage>, state_dir: Option<&Path>) -> Result<(Self, Loaded), StorageError> {
        let folder = state_dir.unwrap_or(storage.root());
        if state_dir.is_some() && !folder.is_dir() {
            std::fs::create_dir_all(folder).map_err(|source| StorageError::new(Op::Create, folder, source))?;
        }
        let path = folder.join(super::hidden_name(storage.info(), "resume"));
        // Nothing is known of any file that is there.
        let unknown = |loaded| {
            let mut resume = Resume::empty(&storage);
            let strangers = resume.strangers(&storage);
            restamp_all(&mut resume, &storage);
            (loaded, resume, strangers)
        };
        let mut unsettled = Vec::new();
        let boot = boot_id();
        let mut unchanged = None;
        if !storage.is_read_only() {
            // Left by one who died while it was written.
            let _ = std::fs::remove_file(temporary(&path));
        }
        let read = read_bounded(&path).map_err(|source| StorageError::new(Op::Read, &path, source))?;
        let found = read.map(|bytes| match Resume::decode_with_end(&bytes) {
            Ok((found, _)) if !found.fits(&storage) => Err(ResumeError::Foreign),
            decoded => decoded,
        });
        let (loaded, mut resume, strangers) = match found {
            Some(Ok((mut found, end))) => {
                let reconciled = found.reconcile(&storage, boot);
                let strangers = found.strangers(&storage);
                unsettled = found.unsettled(&storage);
                let at_rest = found.files.iter().all(|record| record.lease.is_none());
                unchanged = Some(end).filter(|_| at_rest && found.boot == boot && found.have == reconciled.have);
                adopt(&mut found, &reconciled, &storage);
                if found.have == found.durable && reconciled.recheck.is_empty() {
                    storage.assume_synced();
                }
                (Loaded::Resumed(reconciled), found, strangers)
            }
            Some(Err(error)) => unknown(Loaded::Damaged(error)),
            None => unknown(Loaded::Fresh),
        };
        resume.boot = boot;
        // Until it is known better: see `note_foreign`.
        strangers.iter().for_each(|file| resume.files[*file].foreign = true);
        let store = Self { strangers, unsettled, ..Self::new(storage, path, resume) };
        match (&loaded, unchanged) {
            (Loaded::Resumed(_), _) if store.storage.is_read_only() => {}
            (Loaded::Resumed(_), Some(end)) => store.reopen(end)?,
            // New stamps must be in the file before the first lease, or a crash would make the lease vouch for what changed.
            (Loaded::Resumed(_), None) => store.save_snapshot(None, false)?,
            (Loaded::Fresh | Loaded::Damaged(_), _) => {}
        }
        Ok((store, loaded))
    }

    /// [`ResumeStore::open`] where an earlier run [finished](ResumeStore::finish) all of the content, nobody touched it since, and nobody
    /// writes to its places now: nothing is claimed, and nothing is left to be done. `None` where any of that is not so.
    pub fn open_finished(storage: &Arc<Storage>, state_dir: Option<&Path>) -> Option<Self> {
        let info = storage.info();
        if storage.is_read_only() || info.files.iter().any(|entry| matches!(entry.kind, FileKind::Symlink { .. })) {
            return None;
        }
        let path = state_dir.unwrap_or(storage.root()).join(super::hidden_name(info, "resume"));
        let bytes = read_bounded(&path).ok()??;
        let (mut resume, end) = Resume::decode_with_end(&bytes).ok()?;
        let is_snapshot = bytes.first_chunk().is_some_and(|header| snapshot_len(header) == end as u64);
        let is_all_there = resume.fits(storage) && resume.durable.is_full() && resume.have.is_full();
        let is_finished = |record: &FileRecord| record.lease.is_none() && !record.foreign;
        if !is_snapshot || !is_all_there || resume.recheck.count() > 0 || !resume.files.iter().all(is_finished) {
            return None;
        }
        let (parts, files) = resume.files.split_last()?;
        // Sealed first: what changes after that is noticed.
        storage.seal_all();
        let is_as_left = |(file, record): (usize, &FileRecord)| storage.sealed(file) == record.stamp;
        let is_untouched = files.iter().enumerate().all(is_as_left) && storage.parts_stamp() == parts.stamp;
        if !is_untouched || !storage.rest_at_once() {
            return None;
        }
        // Left by one who died while it was written.
        let _ = std::fs::remove_file(temporary(&path));
        storage.assume_synced();
        resume.boot = boot_id();
        Some(Self::new(Arc::clone(storage), path, resume))
    }

    /// A record with nothing to be said beside it.
    fn new(storage: Arc<Storage>, path: PathBuf, resume: Resume) -> Self {
        let none = Bitfield::new(resume.have.len());
        let state = State {
            resume,
            journal: None,
            since_save: None,
            unproven: none.clone(),
            doubted: none,
            dirty: false,
            saved_at: None,
            is_deleted: false,
        };
        Self {
            storage,
            path,
            strangers: Vec::new(),
            unsettled: Vec::new(),
            state: Mutex::new(state),
            saving: Mutex::default(),
            syncing: Mutex::default(),
        }
    }

    /// Whether the content was [finished](ResumeStore::finish), and nothing was written since.
    pub fn is_at_rest(&self) -> bool {
        self.storage.is_resting() && self.is_settled(true)
    }

    /// The record of the same content after its files came to `storage`, but for those `left` behind.
    pub(super) fn moved(
        &self,
        storage: Arc<Storage>,
        state_dir: Option<&Path>,
        left: &[usize],
    ) -> Result<Self, StorageError> {
        let path = state_dir.unwrap_or(storage.root()).join(super::hidden_name(storage.info(), "resume"));
        let state = {
            let before = self.lock();
            let mut resume = before.resume.clone();
            for piece in left.iter().flat_map(|file| storage.info().pieces_of_file(*file)) {
                resume.note_failed(piece);
            }
            restamp_all(&mut resume, &storage);
            resume.files.iter_mut().for_each(|record| record.foreign = false);
            State {
                resume,
                journal: None,
                since_save: None,
                unproven: before.unproven.clone(),
                doubted: before.doubted.clone(),
                dirty: false,
                saved_at: None,
                is_deleted: false,
            }
        };
        let (strangers, unsettled, state) = (Vec::new(), Vec::new(), Mutex::new(state));
        let store =
            Self { storage, path, strangers, unsettled, state, saving: Mutex::default(), syncing: Mutex::default() };
        store.save_snapshot(None, true)?;
        let layers = self.kept_layers();
        if !layers.is_empty() && store.path != self.path {
            store.keep_layers(layers)?;
        }
        Ok(store)
    }

    /// Files that were on disk at the start and are not known to be ours: see [`Storage::judge`].
    pub fn strangers(&self) -> &[usize] {
        &self.strangers
    }

    /// Pieces that are not recorded and may be there all the same, because somebody else went on with the content, or we died between
    /// writing them and recording that: those in `missing` that have bytes on disk.
    pub fn perhaps_there(&self, missing: impl Fn(u32) -> bool) -> Vec<u32> {
        let info = self.storage.info();
        let mut pieces = Bitfield::new(info.geometry.piece_count());
        for file in &self.unsettled {
            for piece in info.pieces_of_file(*file).filter(|piece| missing(*piece)) {
                if self.storage.has_data(*file, piece) {
                    pieces.set(piece);
                }
            }
        }
        pieces.iter_ones().collect()
    }

    /// Remembers which files are foreign, and that the others are ours: before anything is written to them.
    pub fn note_foreign(&self) -> Result<(), StorageError> {
        let mut state = self.lock();
        // The last record is of what is kept aside.
        let files = state.resume.files.iter_mut().take(self.storage.info().files.len()).enumerate();
        let changed =
            files.filter(|(file, record)| record.foreign != self.storage.is_foreign(*file)).map(|(_, record)| {
                record.foreign = !record.foreign;
            });
        let unsaved = changed.count() > 0 && state.journal.is_some();
        drop(state);
        // Where there is no file yet, the first record makes one.
        if unsaved { self.save_snapshot(None, false) } else { Ok(()) }
    }

    /// Looks at the state.
    pub fn with<T>(&self, look: impl FnOnce(&Resume) -> T) -> T {
        look(&self.lock().resume)
    }

    /// The content's files.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Where the resume file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// [`Storage::write_at`] under a lease.
    pub fn write_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), StorageError> {
        self.prepare_write(offset, slices)?;
        self.storage.write_at(offset, slices)
    }

    /// [`Storage::write_uncached_at`] under a lease.
    pub fn write_uncached_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), StorageError> {
        self.prepare_write(offset, slices)?;
        self.storage.write_uncached_at(offset, slices)
    }

    /// Takes the lease that a write needs: all writes of pieces come by here.
    fn prepare_write(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), StorageError> {
        let len: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        if len > 0 {
            let geometry = &self.storage.info().geometry;
            let mut state = self.lock();
            for piece in geometry.piece_at(offset)..=geometry.piece_at(offset.saturating_add(len - 1)) {
                state.unproven.set(piece);
            }
        }
        for segment in self.storage.layout().segments(offset, len).filter(|segment| segment.kind == SegmentKind::File) {
            let parts = self.storage.info().files.len();
            self.lease(if self.storage.may_go_aside(segment.file) { parts } else { segment.file })?;
        }
        Ok(())
    }

    /// Records that `piece` was written and its hash is right. After an error it does not count; try again. One that was written to
    /// when a sync failed waits among the [`distrusted`](Self::distrusted) ones.
    pub fn verified(&self, piece: u32) -> Result<(), StorageError> {
        {
            let mut state = self.lock();
            state.unproven.clear(piece);
            if state.doubted.clear(piece) {
                state.resume.recheck.set(piece);
                state.dirty = true;
                return Ok(());
            }
        }
        self.append(Record::Verified(piece))
    }

    /// Records that `piece` turned out bad when it was hashed again.
    pub fn failed(&self, piece: u32) -> Result<(), StorageError> {
        let mut state = self.lock();
        state.unproven.clear(piece);
        state.doubted.clear(piece);
        drop(state);
        self.append(Record::Failed(piece))
    }

    /// Marks all pieces to be hashed again, and takes the files as they are now.
    pub fn recheck_all(&self) -> Result<(), StorageError> {
        let mut state = self.lock();
        let pieces = state.resume.have.len();
        let all = Reconciled { have: Bitfield::new(pieces), recheck: (0..pieces).collect(), changed: Vec::new() };
        adopt(&mut state.resume, &all, &self.storage);
        drop(state);
        self.save_snapshot(None, false)
    }

    /// [`ResumeStore::recheck_all`]; wanted files that are gone or were cut short are made anew when something is written to them, and
    /// changes by others are told from what is there now.
    pub fn take_as_found(&self) -> Result<(), StorageError> {
        let is_short = |(file, entry): &(usize, &FileEntry)| {
            self.storage.is_wanted(*file) && self.storage.stamp(*file).is_none_or(|stamp| stamp.size < entry.length)
        };
        self.storage.info().regular_files().filter(is_short).for_each(|(file, _)| self.storage.forget_file(file));
        self.storage.seal_again();
        self.recheck_all()
    }

    /// Sets the totals of payload bytes; they reach the disk with the next save.
    pub fn set_totals(&self, downloaded: u64, uploaded: u64) {
        let mut state = self.lock();
        state.dirty |= (state.resume.downloaded, state.resume.uploaded) != (downloaded, uploaded);
        (state.resume.downloaded, state.resume.uploaded) = (downloaded, uploaded);
    }

    /// Sets a file's priority, 0 for unwanted; it reaches the disk with the next save. No such file: nothing happens.
    pub fn set_priority(&self, file: usize, priority: u8) {
        let mut state = self.lock();
        if let Some(slot) = state.resume.priorities.get_mut(file) {
            *slot = priority;
            state.dirty = true;
        }
    }

    /// Whether a checkpoint would be worth its cost at `now`.
    pub fn checkpoint_due(&self, now: Instant) -> bool {
        let state = self.lock();
        let grown = state.journal.as_ref().map_or(0, |journal| journal.end - journal.start);
        let rested = state.saved_at.is_none_or(|at| now.saturating_duration_since(at) >= CHECKPOINT_INTERVAL);
        grown >= JOURNAL_LIMIT_BYTES || rested && (grown > 0 || state.dirty)
    }

    /// Syncs the data and then the state that vouches for it. Takes as long as the disk takes: call it from a thread that
    /// can wait. Writers and [`ResumeStore::verified`] go on meanwhile.
    pub fn checkpoint(&self) -> Result<(), StorageError> {
        let was_resting = self.storage.is_resting();
        let synced = self.sync()?;
        self.save_snapshot(Some(synced), false)?;
        if was_resting {
            self.rest();
        }
        Ok(())
    }

    /// Syncs all data, and answers the pieces that are on disk by now.
    fn sync(&self) -> Result<Bitfield, StorageError> {
        let _syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let synced = self.lock().resume.have.clone();
        self.storage.flush_all().map_err(|failed| {
            self.distrust(&failed.files);
            failed.error
        })?;
        Ok(synced)
    }

    /// A sync of `files` failed: nobody knows what is on disk of the pieces that were written to them since the last one that did
    /// not. They are not good any more until they are written and hashed again: see [`ResumeStore::distrusted`]. Nor are those that
    /// were written to and get their verdict only now: it may be on bytes that never were on the disk.
    fn distrust(&self, files: &[usize]) {
        let info = Arc::clone(self.storage.info());
        let mut state = self.lock();
        let aside = files.contains(&info.files.len());
        let concerns = |piece: &u32| aside || info.files_of_piece(*piece).any(|(file, _)| files.contains(&file));
        let unsynced = |piece: &u32| !state.resume.durable.get(*piece);
        let pieces: Vec<u32> = state.resume.have.iter_ones().filter(unsynced).filter(concerns).collect();
        for piece in pieces {
            state.resume.have.clear(piece);
            state.resume.recheck.set(piece);
        }
        let unproven: Vec<u32> = state.unproven.iter_ones().filter(concerns).collect();
        for piece in unproven {
            state.doubted.set(piece);
        }
        drop(state);
        // A disk that does not take this either is left to the next write to tell of.
        let _ = self.save_snapshot(None, false);
    }

    /// Pieces that have to be written and hashed again, after a failed sync.
    pub fn distrusted(&self) -> Vec<u32> {
        self.lock().resume.recheck.iter_ones().collect()
    }

    /// Writes a piece's bytes back to where they were just read, whatever they are: only a write makes the kernel try the disk
    /// again. To be hashed after that.
    pub fn rewrite(&self, piece: u32) -> Result<(), StorageError> {
        let geometry = &self.storage.info().geometry;
        let (mut offset, mut left) = (geometry.piece_offset(piece), u64::from(geometry.data_len(piece)));
        let mut buffer = vec![0; left.min(REWRITE_LEN) as usize];
        while left > 0 {
            let len = left.min(REWRITE_LEN);
            let bytes = &mut buffer[..len as usize];
            self.storage.read_at(offset, bytes)?;
            self.write_at(offset, &[IoSlice::new(bytes)])?;
            (offset, left) = (offset + len, left - len);
        }
        Ok(())
    }

    /// The last save, when no write is under way any more: files are stamped and leases end. Without `sync` the data is left to
    /// the kernel: quick, and only a reboot without it being written would cost a re-hash.
    pub fn close(&self, sync: bool) -> Result<(), StorageError> {
        if self.is_settled(sync) {
            return Ok(());
        }
        let synced = if sync { Some(self.sync()?) } else { None };
        self.save_snapshot(synced, true)
    }

    /// The finish of a download, when every wanted piece is written: every entry is in its place, no longer than it should be, with
    /// its attributes, and on the disk. Answers the pieces of files that somebody else changed meanwhile: those have to be hashed
    /// first, and then this is to be called again.
    pub fn finish(&self) -> Result<Vec<u32>, StorageError> {
        if self.is_at_rest() {
            return Ok(Vec::new());
        }
        self.storage.create_empty_files_and_links()?;
        self.storage.check_whole()?;
        let changed = self.take_changed();
        if !changed.is_empty() {
            return Ok(changed);
        }
        self.storage.set_attributes()?;
        if self.is_finished() {
            self.storage.seal_all();
            self.rest();
            return Ok(Vec::new());
        }
        let synced = self.sync()?;
        self.storage.flush_folders()?;
        let mut state = self.lock();
        // A time that the torrent carries is no change behind our back.
        restamp_all(&mut state.resume, &self.storage);
        let foreign = state.resume.files.iter_mut().filter(|record| record.foreign);
        foreign.for_each(|record| record.foreign = false);
        drop(state);
        self.save_snapshot(Some(synced), true)?;
        self.storage.seal_all();
        self.rest();
        Ok(Vec::new())
    }

    /// Everything is there and recorded: nothing is held open, and the places are not claimed, until something is written again. Not
    /// while something is.
    fn rest(&self) {
        if self.is_settled(true) {
            self.lock().journal = None;
            self.storage.rest();
        }
    }

    /// The pieces of wanted files that look other than our writes explain. As they are now they are taken for known.
    fn take_changed(&self) -> Vec<u32> {
        let info = self.storage.info();
        let mut state = self.lock();
        let mut pieces = Bitfield::new(info.geometry.piece_count());
        for (file, entry) in info.regular_files().filter(|(file, _)| self.storage.is_wanted(*file)) {
            let (record, now) = (&mut state.resume.files[file], self.storage.stamp(file));
            if entry.length == 0 || now.is_none_or(|now| record.explains(now, Some(entry.length))) {
                continue;
            }
            (record.stamp, record.lease) = (now, None);
            info.pieces_of_file(file).for_each(|piece| _ = pieces.set(piece));
        }
        pieces.iter_ones().collect()
    }

    /// Keeps piece layers that came from peers (BEP 52), beside the resume file: a magnet link has none, and without them
    /// pieces that have to be hashed again after a restart could only be fetched again.
    pub fn keep_layers(&self, layers: PieceLayers) -> Result<(), StorageError> {
        self.storage.wake()?;
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lock().is_deleted {
            return Ok(());
        }
        let torrent = Metainfo { piece_layers: layers, ..Metainfo::new(Arc::clone(self.storage.info())) };
        let (path, temporary) = (self.layers_path(), self.path.with_extension("anabranch-torrent-new"));
        let write = || {
            let _ = std::fs::remove_file(&temporary);
            let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
            file.write_all_at(&torrent.encode(), 0)?;
            std::fs::rename(&temporary, &path)
        };
        write().map_err(|source| {
            // What is half written is of no use.
            let _ = std::fs::remove_file(&temporary);
            StorageError::new(Op::Write, &path, source)
        })
    }

    /// The layers that were kept, as far as they are there and right: each is proven by its root. Nothing was synced, and
    /// nothing has to be: what a power cut leaves of the file proves itself or does not count.
    pub fn kept_layers(&self) -> PieceLayers {
        let bytes = read_bounded(&self.layers_path()).ok().flatten().unwrap_or_default();
        let kept = Metainfo::parse(&bytes).ok();
        let ours = kept.filter(|torrent| torrent.info.hashes == self.storage.info().hashes);
        ours.map_or_else(PieceLayers::new, |torrent| torrent.piece_layers)
    }

    fn layers_path(&self) -> PathBuf {
        self.path.with_file_name(super::hidden_name(self.storage.info(), "torrent"))
    }

    /// Deletes the resume file and what is kept beside it: the content is no longer ours. What another thread still has to save
    /// comes to nothing.
    pub fn delete(&self) -> Result<(), StorageError> {
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut state = self.lock();
            (state.journal, state.is_deleted) = (None, true);
        }
        self.storage.delete_leftovers()?;
        for path in [&self.layers_path(), &temporary(&self.path), &self.path] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StorageError::new(Op::Delete, path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A record is on disk before it is in memory, so at worst one that was recorded is forgotten here until the next start.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the file on disk says all there is to say.
    fn is_settled(&self, sync: bool) -> bool {
        let state = self.lock();
        let journal_empty = state.journal.as_ref().is_none_or(|journal| journal.end == journal.start);
        let at_rest = state.resume.files.iter().all(|record| record.lease.is_none());
        let synced = !sync || state.resume.have == state.resume.durable;
        journal_empty && at_rest && synced && !state.dirty
    }

    /// Whether the file on disk says that everything is there, as it is: an earlier run finished, and nothing happened since.
    fn is_finished(&self) -> bool {
        if !self.is_settled(true) {
            return false;
        }
        let state = self.lock();
        let mut now = state.resume.clone();
        restamp_all(&mut now, &self.storage);
        let is_known = state.journal.is_some() && now.files == state.resume.files;
        is_known && now.files.iter().all(|record| !record.foreign)
    }

    /// Sees to it that the file's record allows a write now.
    fn lease(&self, file: usize) -> Result<(), StorageError> {
        let now_ns = now_ns();
        let held = self.lock().resume.files.get(file).and_then(|record| record.lease);
        if held.is_some_and(|lease| {
            // More than a whole lease left: the clock was set back.
            (LEASE_NS / 2..=LEASE_NS).contains(&lease.until_ns.saturating_sub(now_ns))
        }) {
            return Ok(());
        }
        self.append(Record::Lease(file as u32, Lease { from_ns: now_ns, until_ns: now_ns.saturating_add(LEASE_NS) }))
    }

    /// On disk first, then in memory.
    fn append(&self, record: Record) -> Result<(), StorageError> {
        let mut state = self.lock();
        if state.journal.is_none() {
            drop(state);
            self.save_snapshot(None, false)?;
            state = self.lock();
        }
        let Some(journal) = &mut state.journal else {
            let source = io::Error::from_raw_os_error(libc::ENOENT);
            return Err(StorageError::new(Op::Write, &self.path, source));
        };
        journal.append(record).map_err(|source| StorageError::new(Op::Write, &self.path, source))?;
        match record {
            Record::Verified(piece) => state.resume.note_verified(piece),
            Record::Failed(piece) => state.resume.note_failed(piece),
            Record::Lease(file, lease) => state.resume.note_lease(file, lease),
        }
        if let Some(since) = &mut state.since_save {
            since.push(record);
        }
        Ok(())
    }

    /// Goes on with the journal of the file that was just read, whose good part ends at `end`.
    fn reopen(&self, end: usize) -> Result<(), StorageError> {
        let open = || -> io::Result<Journal> {
            let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&self.path)?;
            let mut header = [0; HEADER_LEN];
            file.read_exact_at(&mut header, 0)?;
            let start = snapshot_len(&header);
            let mut crc = [0; 4];
            file.read_exact_at(&mut crc, start - 4)?;
            Ok(Journal { file, end: end as u64, start, crc: snapshot_crc(&crc) })
        };
        let journal = open().map_err(|source| StorageError::new(Op::Open, &self.path, source))?;
        self.lock().journal = Some(journal);
        Ok(())
    }

    /// Replaces the file. `synced`: pieces whose bytes are on disk by now. `at_rest`: no write is under way.
    fn save_snapshot(&self, synced: Option<Bitfield>, at_rest: bool) -> Result<(), StorageError> {
        self.storage.wake()?;
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = {
            let mut state = self.lock();
            if state.is_deleted {
                return Ok(());
            }
            self.restamp(&mut state.resume, at_rest);
            if let Some(synced) = synced {
                // A piece may have failed meanwhile.
                for piece in synced.iter_ones().filter(|piece| state.resume.have.get(*piece)).collect::<Vec<_>>() {
                    state.resume.durable.set(piece);
                }
            }
            state.dirty = false;
            state.since_save = Some(Vec::new());
            state.resume.encode()
        };
        let saved = self.replace(&snapshot);
        if let Err(source) = saved {
            let mut state = self.lock();
            state.since_save = None;
            state.dirty = true;
            return Err(StorageError::new(Op::Write, &self.path, source));
        }
        Ok(())
    }

    fn replace(&self, snapshot: &[u8]) -> io::Result<()> {
        let temporary = temporary(&self.path);
        let written = self.write_and_rename(snapshot, &temporary);
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }

    fn write_and_rename(&self, snapshot: &[u8], temporary: &Path) -> io::Result<()> {
        let _ = std::fs::remove_file(temporary);
        let file = OpenOptions::new().write(true).create_new(true).open(temporary)?;
        file.write_all_at(snapshot, 0)?;
        file.sync_data()?;
        let start = snapshot.len() as u64;
        let mut journal = Journal { file, end: start, start, crc: snapshot_crc(snapshot) };
        {
            let mut state = self.lock();
            for record in state.since_save.iter().flatten() {
                journal.append(*record)?;
            }
            std::fs::rename(temporary, &self.path)?;
            state.since_save = None;
            state.journal = Some(journal);
            state.saved_at = Some(Instant::now());
        }
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    /// Takes new stamps of files that were written to; leases that ran out, or all when at rest, have done their work.
    fn restamp(&self, resume: &mut Resume, at_rest: bool) {
        let now_ns = now_ns();
        let parts = resume.files.len() - 1;
        for (file, record) in resume.files.iter_mut().enumerate() {
            let Some(lease) = record.lease else { continue };
            let stamp = if file == parts { self.storage.parts_stamp() } else { self.storage.stamp(file) };
            // What our lease does not explain keeps its old stamp, and is noticed at the next start.
            let length = self.storage.info().files.get(file).map(|entry| entry.length);
            match stamp {
                Some(stamp) if !record.explains(stamp, length) => continue,
                stamp => record.stamp = stamp,
            }
            // Under a lease that goes on, later writes have later times.
            let goes_on = !at_rest && lease.until_ns >= now_ns;
            record.lease = goes_on.then_some(Lease { from_ns: now_ns, ..lease });
        }
    }
}

impl Journal {
    fn append(&mut self, record: Record) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(32);
        record.encode(self.crc, &mut bytes);
        self.file.write_all_at(&bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

/// Takes over what a comparison with the disk left, and how changed files look now, before they are hashed: if they change
/// again, that is noticed, too.
fn adopt(resume: &mut Resume, reconciled: &Reconciled, storage: &Storage) {
    for piece in resume.durable.clone().iter_ones().filter(|piece| !reconciled.have.get(*piece)) {
        resume.durable.clear(piece);
    }
    resume.have = reconciled.have.clone();
    resume.recheck = Bitfield::new(resume.have.len());
    reconciled.recheck.iter().for_each(|piece| {
        resume.recheck.set(*piece);
    });
    restamp_all(resume, storage);
}

fn restamp_all(resume: &mut Resume, storage: &Storage) {
    let parts = resume.files.len() - 1;
    for (file, record) in resume.files.iter_mut().enumerate() {
        let stamp = if file == parts { storage.parts_stamp() } else { storage.stamp(file) };
        (record.stamp, record.lease) = (stamp, None);
    }
}

/// Where the next resume file is written before it takes its place.
fn temporary(path: &Path) -> PathBuf {
    path.with_extension("anabranch-resume-new")
}

/// The file's bytes; `None` where there is no file.
fn read_bounded(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let len = file.metadata()?.len();
    if len > RESUME_LEN_MAX {
        return Ok(Some(Vec::new())); // no resume file of ours: refused as such
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

/// Identifies this run of the machine; zeros where it does not say.
pub(super) fn boot_id() -> [u8; 16] {
    static BOOT_ID: OnceLock<[u8; 16]> = OnceLock::new();
    *BOOT_ID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).map_or([0; 16], u128::to_be_bytes)
    })
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
