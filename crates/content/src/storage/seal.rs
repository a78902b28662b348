//! Noticing that somebody changes files that are shared.
//!
//! What was verified is *sealed*: how the file looks is noted, and before its bytes are promised to anybody they are compared with
//! that. Size and time of the open file tell; a write by ourselves breaks the seal until the content is whole again.

use std::fs::File;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{ErrorKind, Op, PRESENT, SEALED, SendSegment, Stamp, Storage, StorageError};

impl Storage {
    /// Takes `file` as it is now for what is, or is about to be, verified. A file that is not there is not sealed.
    pub fn seal(&self, file: usize) {
        if self.states[file].load(Ordering::Acquire) & PRESENT == 0 {
            return;
        }
        if let Some(stamp) = self.stamp(file) {
            self.lock_seals().insert(file, stamp);
            self.states[file].fetch_or(SEALED, Ordering::AcqRel);
        }
    }

    /// [Seals](Self::seal) all files.
    pub fn seal_all(&self) {
        self.info.regular_files().for_each(|(file, _)| self.seal(file));
    }

    /// How `file` looked when it was [sealed](Self::seal); `None` where it is not.
    pub(super) fn sealed(&self, file: usize) -> Option<Stamp> {
        let is_sealed = self.states[file].load(Ordering::Acquire) & SEALED != 0;
        is_sealed.then(|| self.lock_seals().get(&file).copied()).flatten()
    }

    /// Takes what was sealed as it is now.
    pub(super) fn seal_again(&self) {
        let is_sealed = |file: &usize| self.states[*file].load(Ordering::Acquire) & SEALED != 0;
        self.info.regular_files().map(|(file, _)| file).filter(is_sealed).for_each(|file| self.seal(file));
    }

    /// An error where `file`, open as `handle`, is not any more what was sealed. One system call.
    pub fn check_seal(&self, file: usize, handle: &File) -> Result<(), StorageError> {
        if self.states[file].load(Ordering::Acquire) & SEALED == 0 {
            return Ok(());
        }
        let meta = handle.metadata().map_err(|source| self.error(Op::Look, file, source))?;
        if self.lock_seals().get(&file).is_none_or(|sealed| *sealed == Stamp::of(&meta)) {
            return Ok(());
        }
        self.handles().remove_file(self.id, file); // the next try looks at the path afresh
        let what = "its size or time is another";
        Err(StorageError::found(Op::Read, self.file_path(file), ErrorKind::Changed, what))
    }

    /// The same for all files with bytes among these `len` from `offset`.
    pub fn check_seals(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        for segment in self.segments(offset, len) {
            if let SendSegment::File { file, index, .. } = segment? {
                self.check_seal(index, &file)?;
            }
        }
        Ok(())
    }

    /// Whether something else than what was sealed stands at the path of `file`.
    pub fn is_seal_broken(&self, file: usize) -> bool {
        let sealed = self.states[file].load(Ordering::Acquire) & SEALED != 0;
        sealed && self.lock_seals().get(&file).copied() != self.stamp(file)
    }

    fn lock_seals(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<usize, Stamp>> {
        // Nothing under this lock can leave the map half-changed.
        self.seals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
