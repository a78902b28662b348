//! Files: where pieces are kept, and how we remember which of them are good.
//!
//! [`Storage`] maps piece space to files. It is used by a network thread, which sends straight from the descriptors that
//! [`Storage::segments`] hands out, and by disk threads, which call [`Storage::write_at`] and [`Storage::read_at`]. Both work on
//! `&self`; the only lock on the common path is the one of the handle cache, held for a look-up. [`BufferPool`] lends the memory
//! that pieces are received into. [`ResumeStore`] keeps the state that survives the process.
//!
//! # What is promised
//!
//! - No byte is written outside the download folder: links below it are never followed, and what stands in a file's place and is
//!   something else (a link, a folder) is an error, not overwritten; nor is another file, unless the user says so.
//! - A place has one writer at a time, whoever it is. Who only reads asks nobody, and a content that is complete is only read.
//! - A file that was there and is gone, or became shorter, is an error ([`ErrorKind::Vanished`]), not made anew in silence;
//!   [`Storage::forget_file`] says that the loss is accepted.
//! - `kill -9` at any instant loses at most the pieces in flight: bytes handed to the kernel survive the process, and a piece is
//!   recorded only after its write returned and its hash was right.
//! - A power cut never makes a bad piece count as good. Pieces recorded since the last [`ResumeStore::checkpoint`], which syncs
//!   the data before the file that vouches for it, are hashed again after a reboot, not fetched again unless they are bad.
//!
//! Files are extended to their full length when first written to, so their size does not depend on the order of pieces.
//!
//! What is *not* here: hashing (the caller verifies), and choosing what to do about an error (the driver pauses and retries).

mod below;
mod beneath;
mod claim;
mod crc;
mod delete;
pub(crate) mod direct;
mod error;
mod files;
pub(crate) mod holes;
mod layout;
pub mod naming;
mod occupied;
mod parts;
mod placement;
mod pool;
mod reading;
mod relocate;
mod resting;
mod resume;
mod resume_store;
mod seal;
mod send;
pub mod span_journal;
mod sync;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod vectored;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use below::{Below, Places, Runs, boot_id};
pub use crc::crc32c;
pub use error::{ErrorKind, Op, StorageError};
pub use files::{Handles, OPEN_FILES_LIMIT};
pub use holes::data_runs;
pub use layout::{Layout, Segment, SegmentKind, Segments};
pub use placement::reserve;
pub use pool::{BUFFER_ALIGN, Buffer, BufferPool, IDLE_RESERVE_BYTES, PoolStats};
pub use reading::{Reading, advise};
pub use resume::{Change, FileRecord, Lease, Reconciled, Resume, ResumeError, Stamp};
pub use resume_store::{CHECKPOINT_INTERVAL, JOURNAL_LIMIT_BYTES, Loaded, ResumeStore};
pub use send::{SendSegment, SendSegments};
pub use sync::SyncFailed;

pub(crate) use beneath::look;

use crate::info::{FileEntry, FileKind, Info, Sha1Digest};
use claim::Claim;
use parts::Parts;
use resting::Resting;

/// What `hidden_name` appends ends in one of these; a torrent's own files must not.
const HIDDEN_SUFFIX: &str = "anabranch-";
/// Bytes of the torrent's name in hidden names: the rest must fit into the 255 bytes of a file name, too.
const HIDDEN_NAME_LEN: usize = 180;

/// The file is on disk, in its place.
const PRESENT: u8 = 1;
/// The file was brought to its full length.
const SIZED: u8 = 2;
/// Perhaps written to since the last sync.
const DIRTY: u8 = 4;
/// The user does not want it.
const UNWANTED: u8 = 8;
/// It stood there before us, and nothing of it is known to be the content's.
const FOREIGN: u8 = 16;
/// How it looked when its pieces were verified is known, and nothing was written to it since.
const SEALED: u8 = 32;

/// How files get their space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preallocate {
    /// Blocks are taken as they are written.
    #[default]
    Sparse,
    /// Blocks are reserved at first, so that a full disk shows before the transfer, and files are not scattered. File systems that
    /// cannot reserve get sparse files.
    Full,
}

/// Choices for [`Storage::open`].
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// Sparse or full.
    pub preallocate: Preallocate,
    /// Nothing on disk is changed; every write fails.
    pub read_only: bool,
    /// Files that stand in the content's place and are others are overwritten.
    pub overwrite: bool,
    /// The cache of open files to take part in.
    pub handles: Arc<Handles>,
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self { preallocate: Preallocate::default(), read_only: false, overwrite: false, handles: Handles::shared() }
    }
}

/// The files of one content below one folder.
#[derive(Debug)]
pub struct Storage {
    /// Tells contents apart in the handle cache.
    id: u64,
    info: Arc<Info>,
    layout: Layout,
    root: PathBuf,
    /// The file system that `root` was on; `None` where it was not there.
    root_device: Option<u64>,
    options: StorageOptions,
    states: Box<[AtomicU8]>,
    /// See [`Storage::seal`].
    seals: Mutex<HashMap<usize, Stamp>>,
    /// Our right to write; ends with us, or earlier: see [`Storage::release`].
    hold: Mutex<Hold>,
    /// Held while a file comes into being and for the bytes of files that are not on disk; never on the common path.
    parts: Mutex<Parts>,
    /// Which writes may go past the page cache.
    mode: direct::Mode,
    /// Held while syncing: a second caller must not take a sync that still runs for one that is done.
    syncing: Mutex<()>,
}

/// What a content has of its places.
#[derive(Debug, Default)]
enum Hold {
    /// It only reads, or its file system knows no locks.
    #[default]
    Nothing,
    /// They are its alone.
    Claimed(Claim),
    /// It is complete: see [`Storage::rest`].
    Resting(Resting),
}

impl Storage {
    /// Looks at what is in `root`, which is made where it is missing (unless read-only). No file is opened or changed. Who shares
    /// the folder with others calls [`Storage::claim`] before anything is written.
    pub fn open(info: Arc<Info>, root: &Path, options: StorageOptions) -> Result<Self, StorageError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        // Nothing can be found from, or made in, a working folder that was deleted.
        let gone =
            |_| StorageError::found(Op::Create, root, ErrorKind::NoFolder, "it is named from the working folder");
        let root = std::path::absolute(root).map_err(gone)?;
        let look = || std::fs::metadata(&root).ok().filter(std::fs::Metadata::is_dir);
        let mut there = look();
        if there.is_none() && !options.read_only {
            std::fs::create_dir_all(&root).map_err(|source| StorageError::new(Op::Create, &root, source))?;
            there = look();
        }
        let root_device = there.map(|meta| meta.dev());
        let clash = info.files.iter().find(|entry| is_hidden_name(&entry.path));
        if let Some(entry) = clash {
            let what = "the name is kept for this program's own files";
            return Err(StorageError::found(Op::Create, root.join(&entry.path), ErrorKind::InTheWay, what));
        }
        let layout = Layout::new(&info);
        let states = info.files.iter().map(|entry| AtomicU8::new(first_look(&root, entry))).collect();
        let parts = Parts::new(&info, layout.shared_pieces(info.geometry.piece_length()), &root);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            id,
            info,
            layout,
            root,
            root_device,
            options,
            states,
            seals: Mutex::default(),
            hold: Mutex::default(),
            parts: Mutex::new(parts),
            mode: direct::Mode::default(),
            syncing: Mutex::new(()),
        })
    }

    /// The content's description.
    pub fn info(&self) -> &Arc<Info> {
        &self.info
    }

    /// The download folder, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where piece space lies in files.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether nothing may be written.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Where `file` is or will be.
    pub fn file_path(&self, file: usize) -> PathBuf {
        self.root.join(&self.info.files[file].path)
    }

    /// Writes the bytes of `slices`, one after the other, to piece space from `offset`. Bytes that fall on pads are skipped.
    /// A range within one file takes one `pwritev` (with up to 256 slices). After an error any part of the range may be written.
    pub fn write_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), StorageError> {
        self.write(offset, slices, false)
    }

    /// [`Storage::write_at`] of what nobody reads again soon: past the page cache where the file system can, and then it takes as
    /// long as the device does. Slices that begin at multiples of [`BUFFER_ALIGN`] in memory are not copied.
    pub fn write_uncached_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), StorageError> {
        self.write(offset, slices, true)
    }

    fn write(&self, offset: u64, slices: &[IoSlice<'_>], uncached: bool) -> Result<(), StorageError> {
        let len: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        self.check_range(Op::Write, offset, len)?;
        let mut cursor = vectored::Cursor::new(slices);
        for segment in self.layout.segments(offset, len) {
            if segment.kind == SegmentKind::Pad {
                cursor.advance(segment.len);
                continue;
            }
            if self.is_foreign(segment.file) {
                let file = self.open_present(segment.file, true)?;
                self.check_foreign(&segment, &cursor, &file)?;
            }
            if self.make_present(&segment)? {
                self.write_present(&segment, &mut cursor, uncached)?;
            } else {
                self.write_parts(&segment, &mut cursor)?;
            }
        }
        Ok(())
    }

    /// Fills `buffer` with piece space from `offset`; pads read as zeros.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        self.check_range(Op::Read, offset, buffer.len() as u64)?;
        let mut rest = buffer;
        for segment in self.segments(offset, rest.len() as u64) {
            match segment? {
                SendSegment::Pad(len) => {
                    let (zeros, after) = rest.split_at_mut(len as usize);
                    zeros.fill(0);
                    rest = after;
                }
                SendSegment::File { file, index, offset, len } => {
                    let (bytes, after) = rest.split_at_mut(len as usize);
                    file.read_exact_at(bytes, offset).map_err(|source| match source.kind() {
                        io::ErrorKind::UnexpectedEof => StorageError::found(
                            Op::Read,
                            self.file_path(index),
                            ErrorKind::Vanished,
                            "the file ends early",
                        ),
                        _ => self.error(Op::Read, index, source),
                    })?;
                    rest = after;
                }
            }
        }
        Ok(())
    }

    /// What to send for `len` bytes of piece space from `offset`, cut at its end. Does not allocate, save to open a file.
    pub fn segments(&self, offset: u64, len: u64) -> SendSegments<'_> {
        SendSegments::new(self, offset, len)
    }

    /// Whether `file` is on disk, reachable and not shorter than it was: to be asked after a send came up short.
    /// A file that was never begun is fine.
    pub fn check_file(&self, file: usize) -> Result<(), StorageError> {
        let state = self.states[file].load(Ordering::Acquire);
        if state & PRESENT == 0 {
            return Ok(());
        }
        let handle = self.readable(file)?;
        self.check_handle(Op::Read, file, &handle, state & SIZED != 0)
    }

    /// Accepts that `file` is lost: the next write makes it anew. Its pieces have to be checked again.
    pub fn forget_file(&self, file: usize) {
        let _parts = self.lock_parts();
        self.handles().remove_file(self.id, file);
        let state = &self.states[file];
        state.fetch_and(!(PRESENT | SIZED | DIRTY | SEALED), Ordering::AcqRel);
        state.fetch_or(first_look(&self.root, &self.info.files[file]), Ordering::AcqRel);
    }

    /// Selects `file` or not. Bytes of it that were kept aside move to their place; an unwanted file that is on disk stays.
    pub fn set_wanted(&self, file: usize, wanted: bool) -> Result<(), StorageError> {
        let mut parts = self.lock_parts();
        if !wanted {
            self.states[file].fetch_or(UNWANTED, Ordering::AcqRel);
            return Ok(());
        }
        self.states[file].fetch_and(!UNWANTED, Ordering::AcqRel);
        let takes_space = self.info.files[file].length > 0 && self.info.files[file].kind == FileKind::Regular;
        let absent = self.states[file].load(Ordering::Acquire) & PRESENT == 0;
        if takes_space && absent && !self.options.read_only && parts.exists() && parts.touch(&self.file_range(file)) {
            self.move_out(&mut parts, file)?;
        }
        Ok(())
    }

    /// Selects files anew, one entry a file, and makes room for those that are wanted now: an error, before anything is changed, where
    /// something else stands in the place of one of them.
    pub fn select(&self, wanted: &[bool]) -> Result<(), StorageError> {
        self.wake()?;
        for (file, _) in self.info.regular_files().filter(|(file, _)| wanted[*file] && !self.is_wanted(*file)) {
            let is_present = self.states[file].load(Ordering::Acquire) & PRESENT != 0;
            if !is_present && self.stamp(file).is_some() {
                return Err(StorageError::found(
                    Op::Create,
                    self.file_path(file),
                    ErrorKind::Different,
                    "a file is there",
                ));
            }
        }
        for (file, wanted) in wanted.iter().enumerate() {
            self.set_wanted(file, *wanted)?;
        }
        self.preallocate()?;
        self.create_empty_files_and_links()
    }

    /// Whether `file` is selected.
    pub fn is_wanted(&self, file: usize) -> bool {
        self.states[file].load(Ordering::Acquire) & UNWANTED == 0
    }

    /// With [`Preallocate::Full`]: makes all wanted files and reserves their space. Where the free space cannot hold them that
    /// is the error before anything is made.
    pub fn preallocate(&self) -> Result<(), StorageError> {
        if self.options.preallocate == Preallocate::Sparse {
            return Ok(());
        }
        let needed: u64 = self.wanted_files().map(|file| self.missing_bytes(file)).sum();
        let free = free_bytes(&self.root).map_err(|source| StorageError::new(Op::Look, &self.root, source))?;
        if needed > free {
            let source = io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(StorageError::new(Op::Allocate, &self.root, source));
        }
        for file in self.wanted_files().filter(|file| !self.is_foreign(*file)) {
            let range = self.file_range(file);
            for segment in self.layout.segments(range.start, 1) {
                self.make_present(&segment)?;
            }
            // A file from before may be full of holes.
            let handle = self.writable(file)?;
            self.set_length(file, &handle)?;
        }
        Ok(())
    }

    /// What takes no bytes, and so could be made by no piece: empty files and symbolic links (BEP 47). Wanted entries only.
    pub fn create_empty_files_and_links(&self) -> Result<(), StorageError> {
        for (index, entry) in self.wanted_entries() {
            match &entry.kind {
                FileKind::Pad => {}
                FileKind::Symlink { target } => beneath::symlink(&self.root, &entry.path, target)
                    .map_err(|source| self.error(Op::Create, index, source))?,
                FileKind::Regular if entry.length == 0 => self.create_empty(index)?,
                FileKind::Regular => {}
            }
        }
        Ok(())
    }

    /// The finish of a download, when every wanted file is whole: what the torrent says of files beside their bytes, executable
    /// bits (BEP 47) and times. Not before: a file that no piece was written to yet is not there.
    pub fn set_attributes(&self) -> Result<(), StorageError> {
        for (index, entry) in self.wanted_entries().filter(|(_, entry)| entry.kind == FileKind::Regular) {
            if entry.executable {
                self.make_executable(index)?;
            }
            if let Some(mtime) = entry.mtime {
                self.set_modified(index, mtime)?;
            }
        }
        Ok(())
    }

    /// Takes the content's places for ourselves: an error where somebody else writes to one of them. Takes a few seconds then, in
    /// case they are about to leave.
    pub fn claim(&self) -> Result<(), StorageError> {
        let claim = Claim::take(&self.root, &self.info)?;
        *self.lock_hold() = claim.map_or(Hold::Nothing, Hold::Claimed);
        Ok(())
    }

    /// Lets others write to the content's places. Nothing is to be written any more.
    pub fn release(&self) {
        *self.lock_hold() = Hold::Nothing;
    }

    /// Nothing is to be written until [`Storage::wake`]: the places are only read, as by anybody. Thousands of contents that are complete
    /// hold no descriptors and no locks so.
    pub(crate) fn rest(&self) {
        let hold = &mut *self.lock_hold();
        *hold = match std::mem::take(hold) {
            Hold::Claimed(claim) => Hold::Resting(claim.rest(&self.info)),
            other => other,
        };
    }

    /// The same without a claim before it. `false` where anybody has one of the places, or may have; nothing has changed then.
    pub(crate) fn rest_at_once(&self) -> bool {
        let Some(resting) = Claim::rest_at_once(&self.root, &self.info) else { return false };
        *self.lock_hold() = Hold::Resting(resting);
        true
    }

    /// Whether the places were given up until something is written.
    pub(crate) fn is_resting(&self) -> bool {
        matches!(*self.lock_hold(), Hold::Resting(_))
    }

    /// Something is to be written: claims the places again where they were given up. An error where somebody else has one of them now.
    pub(crate) fn wake(&self) -> Result<(), StorageError> {
        let hold = &mut *self.lock_hold();
        if let Hold::Resting(resting) = hold {
            resting.give_up();
            let claim = Claim::take(&self.root, &self.info).inspect_err(|_| resting.take_up())?;
            *hold = claim.map_or(Hold::Nothing, Hold::Claimed);
        }
        Ok(())
    }

    fn lock_hold(&self) -> MutexGuard<'_, Hold> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How `file` looks on disk now; `None` where it is not there.
    pub fn stamp(&self, file: usize) -> Option<Stamp> {
        stamp_of(&self.file_path(file))
    }

    /// How the file of unwanted bytes looks on disk now; `None` where there is none.
    pub(crate) fn parts_stamp(&self) -> Option<Stamp> {
        let path = self.lock_parts().path.clone();
        stamp_of(&self.root.join(path))
    }

    /// Whether bytes of `file` that are written next may be kept aside.
    pub(crate) fn may_go_aside(&self, file: usize) -> bool {
        self.states[file].load(Ordering::Acquire) & (PRESENT | UNWANTED) == UNWANTED
    }

    /// All that is on disk was synced by those before us.
    pub(crate) fn assume_synced(&self) {
        self.states.iter().for_each(|state| {
            state.fetch_and(!DIRTY, Ordering::AcqRel);
        });
    }

    fn handles(&self) -> &Handles {
        &self.options.handles
    }

    fn lock_parts(&self) -> MutexGuard<'_, Parts> {
        // What is under this lock is checked against the disk at each use.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, op: Op, file: usize, source: io::Error) -> StorageError {
        StorageError::new(op, self.file_path(file), source)
    }

    fn file_range(&self, file: usize) -> Range<u64> {
        let entry = &self.info.files[file];
        entry.offset..entry.offset + entry.length
    }

    fn wanted_entries(&self) -> impl Iterator<Item = (usize, &FileEntry)> + '_ {
        self.info.files.iter().enumerate().filter(|(index, _)| self.is_wanted(*index))
    }

    fn wanted_files(&self) -> impl Iterator<Item = usize> + '_ {
        let takes_space = |entry: &FileEntry| entry.kind == FileKind::Regular && entry.length > 0;
        self.wanted_entries().filter(move |(_, entry)| takes_space(entry)).map(|(index, _)| index)
    }

    fn check_range(&self, op: Op, offset: u64, len: u64) -> Result<(), StorageError> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.layout.total());
        if fits && !(op == Op::Write && self.options.read_only) {
            return Ok(());
        }
        let (kind, what) =
            if fits { (ErrorKind::ReadOnly, "opened for reading only") } else { (ErrorKind::Other, "past the end") };
        Err(StorageError::found(op, self.root.join(&self.info.name), kind, what))
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.handles().remove_storage(self.id);
    }
}

/// `.<name>-<first 8 hex digits of the info-hash>.anabranch-<what>`: hidden, and told apart from other contents' of that name.
pub(crate) fn hidden_name(info: &Info, what: &str) -> String {
    own_record_name(&info.name, info.hashes.wire_hashes().next().unwrap_or_default(), what)
}

/// The same of a content whose files are not known yet.
pub fn own_record_name(name: &str, hash: Sha1Digest, what: &str) -> String {
    let cut = (0..=HIDDEN_NAME_LEN.min(name.len())).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    let [a, b, c, d, ..] = hash;
    format!(".{}-{a:02x}{b:02x}{c:02x}{d:02x}.{HIDDEN_SUFFIX}{what}", &name[..cut])
}

/// Whether something of this name is a record of this program's own, which means nothing elsewhere.
pub fn is_own_record(path: &Path) -> bool {
    is_hidden_name(path)
}

/// Whether a torrent's path could be one of our own files, of this content or of another: nobody may forge our records.
pub(crate) fn is_hidden_name(path: &Path) -> bool {
    let first = path.iter().next().unwrap_or_default().to_string_lossy();
    let extension = first.rsplit('.').next().unwrap_or_default();
    first.starts_with('.') && extension.to_ascii_lowercase().starts_with(HIDDEN_SUFFIX)
}

/// The state of a file before we touched anything.
fn first_look(root: &Path, entry: &FileEntry) -> u8 {
    match std::fs::symlink_metadata(root.join(&entry.path)) {
        Ok(_) if entry.kind != FileKind::Regular => 0,
        // Who wrote it last may have left it to the kernel.
        Ok(meta) if meta.len() == entry.length => PRESENT | SIZED | DIRTY,
        Ok(_) => PRESENT | DIRTY,
        Err(_) => 0,
    }
}

fn stamp_of(path: &Path) -> Option<Stamp> {
    std::fs::symlink_metadata(path).ok().filter(|meta| meta.is_file()).map(|meta| Stamp::of(&meta))
}

#[allow(unsafe_code)]
fn free_bytes(path: &Path) -> io::Result<u64> {
    let folder = File::open(path)?;
    // SAFETY: all-zero is a valid statvfs, and the call fills it.
    let mut stats: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and the structure is ours.
    if unsafe { libc::fstatvfs(folder.as_raw_fd(), &raw mut stats) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
}
