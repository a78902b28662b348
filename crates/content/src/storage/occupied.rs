//! What stands in the places of a content's files before anything was written there.
//!
//! A file that is there may be an earlier download, ours or another program's, and is then taken over: pieces of it that are good
//! count, the rest is fetched into it. Or it is somebody's, and has nothing to do with the content but its name: that is never
//! written to unless the user says so. Which of the two it is follows from its pieces, where one of them lies in it alone; and what
//! is too short, and has nothing good in it, is no use in any case. Otherwise the file is *foreign* for as long as nothing of it is
//! known to be good, and a write to it has to find the same bytes there, or nothing: zeros, as in the holes that downloads leave.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering;

use super::{ErrorKind, FOREIGN, Op, PRESENT, SIZED, Segment, Storage, StorageError, beneath, vectored};
use crate::bitfield::Bitfield;
use crate::info::FileKind;

/// Bytes read at a time in search of any that are not zero.
const LOOK_LEN: usize = 64 * 1024;
/// Paths that an error names.
const NAMED_MAX: usize = 3;

impl Storage {
    /// Looks at the places of all wanted files: an error where one can never be written to. With
    /// [`overwrite`](super::StorageOptions::overwrite) files that are too long are cut.
    pub fn check_places(&self) -> Result<(), StorageError> {
        let mut longer = Vec::new();
        for (index, entry) in self.wanted_entries().filter(|(_, entry)| entry.kind == FileKind::Regular) {
            match beneath::look(&self.root, &entry.path) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(self.error(Op::Create, index, error)),
                Ok(meta) if meta.len() <= entry.length => {}
                Ok(_) if self.options.overwrite => {
                    let handle = self.open_present(index, true)?;
                    self.set_length(index, &handle)?;
                }
                Ok(_) => longer.push(index),
            }
        }
        self.refuse(&longer, "a longer file is there")
    }

    /// An error where two entries are one file on the disk, as hard links are: what is written to one of them changes the other.
    /// That does no harm where both are the same by their roots (BEP 52), or where both are there already, by the `good` pieces.
    pub fn check_linked(&self, good: &Bitfield) -> Result<(), StorageError> {
        let mut seen = HashMap::new();
        let is_whole = |file: usize| self.info.pieces_of_file(file).all(|piece| good.get(piece));
        for (index, entry) in self.info.regular_files().filter(|(_, entry)| entry.length > 0) {
            let Ok(meta) = beneath::look(&self.root, &entry.path) else { continue };
            let Some(first) = seen.insert((meta.dev(), meta.ino()), index) else { continue };
            let same = entry.root.is_some() && entry.root == self.info.files[first].root;
            let to_come = [first, index].iter().any(|file| self.is_wanted(*file) && !is_whole(*file));
            if to_come && !same {
                let what = format!("it is one file with {}: a hard link", self.file_path(first).display());
                let mut error = StorageError::found(Op::Write, self.file_path(index), ErrorKind::InTheWay, "");
                error.source = io::Error::other(what);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Decides of `files`, which stood there and are not recorded as ours, whether they are foreign: an error where that is sure.
    /// `good` are the pieces that proved to be, `checkable` says of which that could be told.
    pub fn judge(&self, files: &[usize], good: &Bitfield, checkable: impl Fn(u32) -> bool) -> Result<(), StorageError> {
        let mut different = Vec::new();
        for &file in files.iter().filter(|_| !self.options.overwrite) {
            self.states[file].fetch_and(!FOREIGN, Ordering::AcqRel);
            let entry = &self.info.files[file];
            let Some(stamp) = self.stamp(file).filter(|stamp| stamp.size > 0 && entry.length > 0) else { continue };
            if self.info.pieces_of_file(file).any(|piece| good.get(piece)) || self.is_blank(file) {
                continue;
            }
            if !self.is_wanted(file) {
                // Bytes of it that come with others' pieces are kept aside.
                self.states[file].fetch_and(!(PRESENT | SIZED), Ordering::AcqRel);
                continue;
            }
            let alone =
                |piece: u32| self.info.files_of_piece(piece).filter(|(_, other)| other.is_regular()).count() == 1;
            let mut known = self.info.pieces_of_file(file).filter(|piece| checkable(*piece)).peekable();
            let told = known.peek().is_some() && (stamp.size < entry.length || known.any(alone));
            if told {
                different.push(file);
            } else {
                self.states[file].fetch_or(FOREIGN, Ordering::AcqRel);
            }
        }
        // Without hashes of pieces all of it is right, or nothing that could be told.
        let has_hashes = self.info.version.is_v2() || !self.info.piece_hashes.is_empty();
        self.refuse(&different, if has_hashes { "none of it is the content's" } else { "it is not all the content's" })
    }

    /// Whether nothing of `file`, which stood there, is known to be the content's: see [`judge`](Self::judge).
    pub fn is_foreign(&self, file: usize) -> bool {
        self.states[file].load(Ordering::Acquire) & FOREIGN != 0
    }

    /// Whether every wanted entry is in its place, whole and no longer.
    pub fn check_whole(&self) -> Result<(), StorageError> {
        self.check_places()?;
        for (index, entry) in self.wanted_entries().filter(|(_, entry)| entry.kind == FileKind::Regular) {
            let found = self.stamp(index).map(|stamp| stamp.size);
            if found != Some(entry.length) {
                let what = if found.is_none() { "it was deleted" } else { "it was cut short" };
                return Err(StorageError::found(Op::Read, self.file_path(index), ErrorKind::Vanished, what));
            }
        }
        Ok(())
    }

    /// What downloads leave beside the content, where nothing needs it any more.
    pub(super) fn delete_leftovers(&self) -> Result<(), StorageError> {
        let mut parts = self.lock_parts();
        let moving = self.root.join(&parts.moving_path);
        match std::fs::remove_file(&moving) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StorageError::new(Op::Delete, moving, error)),
            _ => self.delete_parts_if_all_out(&mut parts),
        }
    }

    /// Before a write to a foreign file: what is there is the same, or nothing.
    pub(super) fn check_foreign(
        &self,
        segment: &Segment,
        cursor: &vectored::Cursor<'_>,
        file: &File,
    ) -> Result<(), StorageError> {
        let same = cursor
            .is_on_disk_or_blank(file, segment.file_offset, segment.len)
            .map_err(|source| self.error(Op::Read, segment.file, source))?;
        if same { Ok(()) } else { self.refuse(&[segment.file], "some of it is not the content's") }
    }

    fn refuse(&self, files: &[usize], what: &'static str) -> Result<(), StorageError> {
        let [first, rest @ ..] = files else { return Ok(()) };
        let mut error = StorageError::found(Op::Write, self.file_path(*first), ErrorKind::Different, what);
        if !rest.is_empty() {
            let named: Vec<_> =
                rest.iter().take(NAMED_MAX).map(|file| self.file_path(*file).display().to_string()).collect();
            let more = rest.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            error.source = io::Error::other(format!("{what}; so it is with {}{more}", named.join(", ")));
        }
        Err(error)
    }

    /// Whether any byte of `piece` in `file` is on disk, and no hole.
    pub(super) fn has_data(&self, file: usize, piece: u32) -> bool {
        let (entry, geometry) = (&self.info.files[file], &self.info.geometry);
        let start = geometry.piece_offset(piece).max(entry.offset) - entry.offset;
        let end =
            (geometry.piece_offset(piece) + u64::from(geometry.piece_len(piece)) - entry.offset).min(entry.length);
        let Ok(handle) = self.readable(file) else { return false };
        // SAFETY: the descriptor is open; no memory is involved.
        let data = unsafe { libc::lseek(handle.as_raw_fd(), start as libc::off_t, libc::SEEK_DATA) };
        match u64::try_from(data) {
            Ok(data) => data < end,
            // Who cannot tell holes has none.
            Err(_) => io::Error::last_os_error().raw_os_error() != Some(libc::ENXIO),
        }
    }

    /// Nothing but zeros, as in a file that was made and not filled yet.
    pub(super) fn is_blank(&self, file: usize) -> bool {
        self.readable(file)
            .and_then(|handle| is_blank(&handle).map_err(|source| self.error(Op::Read, file, source)))
            .unwrap_or(false)
    }
}

fn is_blank(file: &File) -> io::Result<bool> {
    let len = file.metadata()?.len();
    let (mut at, mut buffer) = (0, vec![0; LOOK_LEN]);
    while at < len {
        // SAFETY: the descriptor is open; no memory is involved.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
        match u64::try_from(data) {
            Ok(data) => at = data.max(at),
            // Holes up to the end; who cannot tell holes has none.
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => return Ok(true),
            Err(_) => {}
        }
        let got = file.read_at(&mut buffer, at)?;
        if got == 0 {
            break;
        }
        if buffer[..got].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += got as u64;
    }
    Ok(true)
}
