//! A cache of open files, shared by all contents of a process.
//!
//! Thousands of contents with thousands of files each cannot all be open. The least recently used file goes first; whoever
//! still sends from it keeps it open through its `Arc`. The lock is held for a hash-map lookup, never for a system call.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The most files kept open, whatever the system allows: more buy nothing, as few are in use at a time.
pub const OPEN_FILES_LIMIT: usize = 512;

/// At most one in this many of the process's descriptors is spent on files; sockets need the rest.
const DESCRIPTORS_SHARE: u64 = 4;

/// The least: below this, files would be reopened for every piece.
const OPEN_FILES_MIN: usize = 8;

/// (storage, file index, how)
pub(super) type Key = (u64, u32, Access);

/// How a descriptor reaches its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Access {
    /// Through the page cache.
    Cached,
    /// Past it.
    Direct,
}

/// A bounded set of open files, least recently used first out.
#[derive(Debug)]
pub struct Handles {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<Key, Entry>,
    tick: u64,
}

#[derive(Debug)]
struct Entry {
    file: Arc<File>,
    writable: bool,
    used: u64,
}

impl Handles {
    /// At most `limit` open files, but at least one.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), state: Mutex::default() })
    }

    /// The one that contents of this process share unless told otherwise: [`OPEN_FILES_LIMIT`], or a part of `RLIMIT_NOFILE`.
    pub fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Handles>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| Self::new(default_limit())))
    }

    /// Files open in the cache now.
    #[cfg(test)]
    pub(crate) fn open_count(&self) -> usize {
        self.lock().open.len()
    }

    /// The file, where it is open and may be written to if `write`.
    pub(super) fn get(&self, key: Key, write: bool) -> Option<Arc<File>> {
        let mut state = self.lock();
        state.tick += 1;
        let tick = state.tick;
        let entry = state.open.get_mut(&key).filter(|entry| entry.writable || !write)?;
        entry.used = tick;
        Some(Arc::clone(&entry.file))
    }

    /// Takes in a file that was just opened. Where another thread was faster and its file does as well, that one is the answer.
    pub(super) fn insert(&self, key: Key, file: File, writable: bool) -> Arc<File> {
        let file = Arc::new(file);
        let mut evicted = None;
        let mut state = self.lock();
        state.tick += 1;
        let tick = state.tick;
        if let Some(entry) = state.open.get_mut(&key).filter(|entry| entry.writable || !writable) {
            entry.used = tick;
            return Arc::clone(&entry.file);
        }
        if state.open.len() >= self.limit && !state.open.contains_key(&key) {
            let oldest = state.open.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
            evicted = oldest.and_then(|oldest| state.open.remove(&oldest));
        }
        let replaced = state.open.insert(key, Entry { file: Arc::clone(&file), writable, used: tick });
        drop(state);
        drop((evicted, replaced)); // close(2) may take its time: outside the lock
        file
    }

    /// Forgets one descriptor, so that the next use opens the file by its path again.
    pub(super) fn remove(&self, key: Key) {
        let removed = self.lock().open.remove(&key);
        drop(removed);
    }

    /// [Forgets](Self::remove) all descriptors of a file.
    pub(super) fn remove_file(&self, storage: u64, file: usize) {
        for access in [Access::Cached, Access::Direct] {
            self.remove((storage, file as u32, access));
        }
    }

    /// Forgets all files of a storage.
    pub(super) fn remove_storage(&self, storage: u64) {
        let mut removed = Vec::new();
        let mut state = self.lock();
        state.open.extract_if(|key, _| key.0 == storage).for_each(|entry| removed.push(entry));
        drop(state);
        drop(removed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can leave the map half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn default_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours and of the type that the call fills.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return OPEN_FILES_MIN;
    }
    usize::try_from(limit.rlim_cur / DESCRIPTORS_SHARE).unwrap_or(usize::MAX).clamp(OPEN_FILES_MIN, OPEN_FILES_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first_and_stays_usable() {
        let handles = Handles::new(2);
        let open = || tempfile::tempfile().unwrap();
        let first = handles.insert((0, 0, Access::Cached), open(), true);
        handles.insert((0, 1, Access::Cached), open(), false);
        assert!(handles.get((0, 0, Access::Cached), true).is_some());
        assert!(handles.get((0, 1, Access::Cached), true).is_none(), "not open for writing");
        handles.insert((0, 1, Access::Cached), open(), true);
        assert!(handles.get((0, 0, Access::Cached), false).is_some());
        handles.insert((1, 0, Access::Cached), open(), true);
        assert_eq!(handles.open_count(), 2);
        assert!(
            handles.get((0, 1, Access::Cached), false).is_none()
                && handles.get((0, 0, Access::Cached), false).is_some()
        );
        handles.remove((0, 0, Access::Cached));
        assert!(first.metadata().is_ok());
        handles.remove_storage(1);
        assert_eq!(handles.open_count(), 0);
    }

    #[test]
    fn a_race_keeps_one_file() {
        let handles = Handles::new(2);
        let first = handles.insert((0, 0, Access::Cached), tempfile::tempfile().unwrap(), true);
        let second = handles.insert((0, 0, Access::Cached), tempfile::tempfile().unwrap(), false);
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn the_default_stays_within_its_bounds() {
        assert!((OPEN_FILES_MIN..=OPEN_FILES_LIMIT).contains(&default_limit()));
    }
}
