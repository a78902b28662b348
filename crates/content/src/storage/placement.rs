//! How a file comes into its place, and how we know that it is still there.
//!
//! A file is *present* once something is at its path: from then on it is opened, never created. It becomes present on the first
//! write to it, by being made or by moving out of the parts file; both happen under that lock, so at most one thread does it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::files::Access;
use super::parts::Parts;
use super::{
    DIRTY, ErrorKind, Op, PRESENT, Preallocate, SEALED, SIZED, Segment, Storage, StorageError, UNWANTED, beneath,
    vectored,
};
use crate::info::FileKind;

impl Storage {
    /// Makes sure that the file of `segment` is on disk and answers `true`; `false` where its bytes are to be kept aside.
    pub(super) fn make_present(&self, segment: &Segment) -> Result<bool, StorageError> {
        let state = &self.states[segment.file];
        if state.load(Ordering::Acquire) & (PRESENT | SIZED) == PRESENT | SIZED {
            return Ok(true);
        }
        let mut parts = self.lock_parts();
        let now = state.load(Ordering::Acquire);
        if now & (PRESENT | SIZED) == PRESENT | SIZED {
            return Ok(true);
        }
        if now & PRESENT != 0 {
            // Left by somebody else, or by us before the disk was full.
            let handle = self.open_present(segment.file, true)?;
            self.set_length(segment.file, &handle)?;
            state.fetch_or(SIZED, Ordering::AcqRel);
            return Ok(true);
        }
        let whole_range_has_slots = || {
            let mut at = segment.offset;
            while at < segment.offset + segment.len {
                let Some((_, left)) = parts.locate(at) else { return false };
                at += left;
            }
            true
        };
        if now & UNWANTED != 0 && whole_range_has_slots() {
            return Ok(false);
        }
        // Wanted; or unwanted, but a piece of it alone was in flight when it was deselected.
        if parts.exists() && parts.touch(&self.file_range(segment.file)) {
            self.move_out(&mut parts, segment.file)?;
        } else {
            self.create(segment.file)?;
        }
        Ok(true)
    }

    /// When a disk is unmounted its folder is still there, and empty: nothing new must be begun in it.
    fn check_root(&self, file: usize) -> Result<(), StorageError> {
        if std::fs::metadata(&self.root).ok().map(|meta| meta.dev()) == self.root_device {
            return Ok(());
        }
        let what = "the disk of the download folder is gone";
        Err(StorageError::found(Op::Create, self.file_path(file), ErrorKind::Vanished, what))
    }

    /// Makes a file that was not there at our first look.
    pub(super) fn create(&self, file: usize) -> Result<(), StorageError> {
        self.check_root(file)?;
        let entry = &self.info.files[file];
        let handle = beneath::open(&self.root, &entry.path, libc::O_RDWR | libc::O_CREAT)
            .map_err(|source| self.error(Op::Create, file, source))?;
        // From here on it is there, even where the disk is too full for its length.
        self.states[file].fetch_or(PRESENT, Ordering::AcqRel);
        self.set_length(file, &handle)?;
        self.handles().insert((self.id, file as u32, Access::Cached), handle, true);
        self.states[file].fetch_or(SIZED, Ordering::AcqRel);
        Ok(())
    }

    /// Brings a file to its full length; the caller notes that it is.
    pub(super) fn set_length(&self, file: usize, handle: &File) -> Result<(), StorageError> {
        let length = self.info.files[file].length;
        let size = handle.metadata().map_err(|source| self.error(Op::Look, file, source))?.len();
        if size > length && !self.options.overwrite {
            let what = "a longer file is there";
            return Err(StorageError::found(Op::Create, self.file_path(file), ErrorKind::Different, what));
        }
        if self.options.preallocate == Preallocate::Full && length > 0 {
            reserve(handle, length).map_err(|source| self.error(Op::Allocate, file, source))?;
        }
        if size != length {
            handle.set_len(length).map_err(|source| self.error(Op::Allocate, file, source))?;
        }
        Ok(())
    }

    /// Gives a file its place, with the bytes of it that were kept aside.
    pub(super) fn move_out(&self, parts: &mut Parts, file: usize) -> Result<(), StorageError> {
        self.check_root(file)?;
        let moving = parts.moving_path.clone();
        let temporary = beneath::open(&self.root, &moving, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC)
            .map_err(|source| StorageError::new(Op::Create, self.root.join(&moving), source))?;
        self.set_length(file, &temporary)?;
        let moved = parts
            .copy_out(&self.root, self.file_range(file), &temporary)
            .and_then(|()| temporary.sync_all())
            .and_then(|()| beneath::rename_new(&self.root, &moving, &self.info.files[file].path))
            .and_then(|()| beneath::sync_folder(&self.root, &self.info.files[file].path));
        moved.map_err(|source| self.error(Op::Move, file, source))?;
        self.handles().insert((self.id, file as u32, Access::Cached), temporary, true);
        self.states[file].fetch_or(PRESENT | SIZED, Ordering::AcqRel);
        self.delete_parts_if_all_out(parts)
    }

    /// Writes to a file that is there. Runs of zeros become holes, unless space was asked to be reserved.
    pub(super) fn write_present(
        &self,
        segment: &Segment,
        cursor: &mut vectored::Cursor<'_>,
        uncached: bool,
    ) -> Result<(), StorageError> {
        let file = self.writable(segment.file)?;
        let (offset, len) = (segment.file_offset, segment.len);
        let target = self.target(segment, &file, uncached)?;
        let written = match self.options.preallocate {
            Preallocate::Sparse => {
                cursor.write_sparse(&file, offset, len, |cursor, offset, len| target.write(cursor, offset, len))
            }
            Preallocate::Full => target.write(cursor, offset, len),
        };
        let before = self.states[segment.file].fetch_or(DIRTY, Ordering::AcqRel);
        if before & SEALED != 0 {
            self.states[segment.file].fetch_and(!SEALED, Ordering::AcqRel);
        }
        written.map_err(|source| self.error(Op::Write, segment.file, source))
    }

    /// Deletes what was kept aside where every file is in its place.
    pub(super) fn delete_parts_if_all_out(&self, parts: &mut Parts) -> Result<(), StorageError> {
        let all_out = (0..self.info.files.len()).all(|other| {
            let entry = &self.info.files[other];
            let nothing_aside = entry.kind != FileKind::Regular || entry.length == 0;
            nothing_aside
                || self.states[other].load(Ordering::Acquire) & PRESENT != 0
                || !parts.touch(&self.file_range(other))
        });
        if all_out {
            let path = self.root.join(&parts.path);
            parts.delete(&self.root).map_err(|source| StorageError::new(Op::Delete, path, source))?;
        }
        Ok(())
    }

    pub(super) fn write_parts(&self, segment: &Segment, cursor: &mut vectored::Cursor<'_>) -> Result<(), StorageError> {
        // Under the lock, so that no byte lands here after the file moved out.
        let mut parts = self.lock_parts();
        if self.states[segment.file].load(Ordering::Acquire) & PRESENT != 0 {
            drop(parts);
            return self.write_present(segment, cursor, false);
        }
        let path = self.root.join(&parts.path);
        let file =
            (parts.file(&self.root, true, false)).map_err(|source| StorageError::new(Op::Create, &path, source))?;
        let mut at = segment.offset;
        let end = segment.offset + segment.len;
        // Every piece of the segment has a slot: `make_present` saw to it, and slots do not change.
        while let Some((offset, left)) = parts.locate(at).filter(|_| at < end) {
            let len = left.min(end - at);
            cursor.write_to(&file, offset, len).map_err(|source| StorageError::new(Op::Write, &path, source))?;
            at += len;
        }
        Ok(())
    }

    /// A file to write to, after a look that it is still the one in its place.
    pub(super) fn writable(&self, file: usize) -> Result<Arc<File>, StorageError> {
        let handle = self.open_present(file, true)?;
        self.check_handle(Op::Write, file, &handle, true)?;
        Ok(handle)
    }

    pub(super) fn readable(&self, file: usize) -> Result<Arc<File>, StorageError> {
        self.open_present(file, false)
    }

    pub(super) fn open_present(&self, file: usize, write: bool) -> Result<Arc<File>, StorageError> {
        let key = (self.id, file as u32, Access::Cached);
        if let Some(open) = self.handles().get(key, write) {
            return Ok(open);
        }
        let flags = if write { libc::O_RDWR } else { libc::O_RDONLY };
        let handle = beneath::open(&self.root, &self.info.files[file].path, flags)
            .map_err(|source| self.error(Op::Open, file, source))?;
        Ok(self.handles().insert(key, handle, write))
    }

    /// One fstat: a deleted file has no links any more, a truncated one is shorter than we made it.
    pub(super) fn check_handle(&self, op: Op, file: usize, handle: &File, sized: bool) -> Result<(), StorageError> {
        let meta = handle.metadata().map_err(|source| self.error(Op::Look, file, source))?;
        let what = match () {
            () if meta.nlink() == 0 => "it was deleted",
            () if sized && meta.len() < self.info.files[file].length => "it was cut short",
            () => return Ok(()),
        };
        self.handles().remove_file(self.id, file); // the next try looks at the path afresh
        Err(StorageError::found(op, self.file_path(file), ErrorKind::Vanished, what))
    }

    /// Makes an empty file, or leaves the one that is there: nothing is opened for writing that may be read-only.
    pub(super) fn create_empty(&self, file: usize) -> Result<(), StorageError> {
        match self.stamp(file) {
            Some(stamp) if stamp.size == 0 => {
                self.states[file].fetch_or(PRESENT | SIZED, Ordering::AcqRel);
                Ok(())
            }
            _ => self.create(file),
        }
    }

    /// Whoever may read may execute.
    pub(super) fn make_executable(&self, file: usize) -> Result<(), StorageError> {
        let handle = self.readable(file)?;
        let mut permissions = handle.metadata().map_err(|source| self.error(Op::Look, file, source))?.permissions();
        let (mode, wanted) = (permissions.mode(), permissions.mode() | (permissions.mode() & 0o444) >> 2);
        if mode == wanted {
            return Ok(());
        }
        permissions.set_mode(wanted);
        self.attribute_set(file, handle.set_permissions(permissions))
    }

    /// The time of the last change, as the torrent has it.
    pub(super) fn set_modified(&self, file: usize, mtime: SystemTime) -> Result<(), StorageError> {
        let handle = self.readable(file)?;
        self.attribute_set(file, handle.set_modified(mtime))
    }

    /// File systems without such attributes, and files of another owner, keep what they have: the bytes are what counts.
    fn attribute_set(&self, file: usize, set: io::Result<()>) -> Result<(), StorageError> {
        match set {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::EOPNOTSUPP)) => Ok(()),
            set => set.map_err(|source| self.error(Op::Create, file, source)),
        }
    }

    pub(super) fn missing_bytes(&self, file: usize) -> u64 {
        let taken = std::fs::symlink_metadata(self.file_path(file)).map_or(0, |meta| meta.blocks() * 512);
        self.info.files[file].length.saturating_sub(taken)
    }
}

/// Reserves blocks for the first `length` bytes; file systems that cannot are fine.
pub fn reserve(file: &File, length: u64) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open; no memory is involved.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length as libc::off_t) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(()),
            _ => return Err(error),
        }
    }
}
