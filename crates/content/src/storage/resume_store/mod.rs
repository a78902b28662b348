//! The resume file on disk: a snapshot rewritten now and then, and a journal that grows with every piece.
//!
//! Order is all. A write: lease, bytes, hash, then [`ResumeStore::verified`]. A checkpoint: note the pieces, sync the data, then
//! replace the snapshot (temporary file, sync, rename, sync of the folder). Records that arrive meanwhile go to the old
//! file and, before the rename, to the new one as well; so there is no instant at which a recorded piece is in neither.

mod finish;
mod layers;
mod open;
mod save;
mod sync;

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub(super) use self::open::boot_id;
use self::save::{Journal, temporary};
pub use self::sync::{CHECKPOINT_INTERVAL, JOURNAL_LIMIT_BYTES};
use super::resume::Record;
use super::{Lease, Op, Reconciled, Resume, ResumeError, SegmentKind, Storage, StorageError};
use crate::bitfield::Bitfield;
use crate::info::FileEntry;

/// How long a lease lasts. Long enough that leases cost nothing beside the data, short enough that few changes by others hide in it.
const LEASE_NS: i64 = 10_000_000_000;

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

impl ResumeStore {
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

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
