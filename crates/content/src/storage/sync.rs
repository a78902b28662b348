//! Forcing to the disk what was written.
//!
//! Each call waits for the disk to have written down what it was asked for, some milliseconds that hardly anything is done in: ten
//! thousand small files one after the other take half a minute. Asked for by several threads at once, the file system writes them
//! down together. `syncfs` would do so too, but it waits for everybody else's files, and tells nothing of errors before it was called.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{DIRTY, Op, Storage, StorageError};
use crate::info::FileKind;

/// Threads that wait for the disk at once.
const SYNCS_MAX: usize = 16;
/// Files and folders for each of them, at least: fewer are not worth a thread.
const SYNCS_PER_THREAD_MIN: usize = 4;

/// Bytes did not reach the disk. The kernel may have dropped them, and will not say so again: syncing once more and succeeding
/// proves nothing of what was written before ("fsyncgate").
#[derive(Debug)]
pub struct SyncFailed {
    /// Indices in the file list; its length stands for the file of unwanted bytes.
    pub files: Vec<usize>,
    /// What happened to the first of them.
    pub error: StorageError,
}

impl Storage {
    /// Forces all bytes written so far, and those that were perhaps written before we came, to the disk. May take as long as the
    /// disk takes; does not hold up writers. Where a file fails the others are synced all the same, and the error says which failed.
    pub fn flush_all(&self) -> Result<(), SyncFailed> {
        let _syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_dirty = |file: &usize| self.states[*file].fetch_and(!DIRTY, Ordering::AcqRel) & DIRTY != 0;
        let dirty: Vec<usize> = (0..self.info.files.len()).filter(is_dirty).collect();
        let mut failed = in_parallel(&dirty, |file| self.flush(*file));
        if let Err(error) = self.flush_parts() {
            failed.push((self.info.files.len(), error));
        }
        failed.sort_by_key(|(file, _)| *file);
        let files = failed.iter().map(|(file, _)| *file).collect();
        match failed.into_iter().next() {
            Some((_, error)) => Err(SyncFailed { files, error }),
            None => Ok(()),
        }
    }

    fn flush(&self, file: usize) -> Result<(), StorageError> {
        // The pages are the inode's, not the descriptor's: a file that was closed meanwhile is synced all the same.
        let synced = self
            .open_present(file, false)
            .and_then(|handle| handle.sync_data().map_err(|source| self.error(Op::Sync, file, source)));
        if synced.is_err() {
            self.states[file].fetch_or(DIRTY, Ordering::AcqRel);
        }
        synced
    }

    fn flush_parts(&self) -> Result<(), StorageError> {
        let (path, file) = {
            let mut parts = self.lock_parts();
            if !parts.exists() || self.options.read_only {
                return Ok(());
            }
            let path = self.root.join(&parts.path);
            let file =
                parts.file(&self.root, false, false).map_err(|source| StorageError::new(Op::Open, &path, source))?;
            (path, file)
        };
        file.sync_data().map_err(|source| StorageError::new(Op::Sync, path, source))
    }

    /// Forces the names of wanted files and of the folders they are in to the disk.
    pub(crate) fn flush_folders(&self) -> Result<(), StorageError> {
        let mut folders = BTreeSet::new();
        for (_, entry) in self.wanted_entries().filter(|(_, entry)| entry.kind != FileKind::Pad) {
            // Once a folder is known, all above it are.
            let above = entry.path.ancestors().skip(1);
            above.take_while(|folder| folders.insert(folder.to_path_buf())).for_each(drop);
        }
        let folders: Vec<_> = folders.into_iter().collect();
        let failed = in_parallel(&folders, |folder| {
            let path = self.root.join(folder);
            match File::open(&path).and_then(|folder| folder.sync_all()) {
                // Some file systems cannot sync a folder; those keep its names with the files' data.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
                synced => synced.map_err(|source| StorageError::new(Op::Sync, path, source)),
            }
        });
        failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// Does `sync` for each of `items`, several at once, and answers those that failed.
fn in_parallel<T: Clone + Send + Sync>(
    items: &[T],
    sync: impl Fn(&T) -> Result<(), StorageError> + Sync,
) -> Vec<(T, StorageError)> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failed = Vec::new();
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = sync(item) {
                failed.push((item.clone(), error));
            }
        }
        failed
    };
    let helpers = (items.len() / SYNCS_PER_THREAD_MIN).clamp(1, SYNCS_MAX) - 1;
    std::thread::scope(|scope| {
        // Where the system has no thread to spare, those that there are do the work.
        let spawn = |_| std::thread::Builder::new().name("sync".into()).spawn_scoped(scope, work).ok();
        let helpers: Vec<_> = (0..helpers).map_while(spawn).collect();
        let mut failed = work();
        for helper in helpers {
            failed.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        failed
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn many_are_synced_at_once_and_all_failures_are_told() {
        let items: Vec<usize> = (0..200).collect();
        // Passed by several together or never.
        let together = Barrier::new(4);
        let done = AtomicUsize::new(0);
        let failed = in_parallel(&items, |item| {
            together.wait();
            done.fetch_add(1, Ordering::Relaxed);
            match item % 50 {
                7 => Err(StorageError::new(Op::Sync, "file", std::io::ErrorKind::Other.into())),
                _ => Ok(()),
            }
        });
        let mut failed: Vec<usize> = failed.into_iter().map(|(item, _)| item).collect();
        failed.sort_unstable();
        assert_eq!((done.into_inner(), failed), (200, vec![7, 57, 107, 157]));
    }

    #[test]
    fn few_are_synced_without_further_threads() {
        let caller = std::thread::current().id();
        for count in 0..2 * SYNCS_PER_THREAD_MIN {
            let items: Vec<usize> = (0..count).collect();
            let failed = in_parallel(&items, |_| {
                assert_eq!(std::thread::current().id(), caller);
                Ok(())
            });
            assert!(failed.is_empty());
        }
    }
}
