//! What the daemon keeps from run to run: values by key, and the files of torrents.
//!
//! A change counts when [`Store::write`] has returned: it is on the disk then, and survives whatever ends the program or the machine. A
//! change is made whole or not at all. Changes go to the end of a journal, which is forced to the disk once for all that wait; when
//! the journal is longer than what it is about, everything is written to a new snapshot, which takes the old one's place by its name.
//!
//! One thread owns the files. A lock keeps a second daemon out.

mod journal;

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

pub(crate) use journal::{Batch, Entries};

/// Changes that wait for the disk; whoever has more waits.
const JOBS_MAX: usize = 64;
/// Changes that are forced to the disk together.
const TOGETHER_MAX: usize = 64;
/// A journal shorter than this is not worth a snapshot.
const JOURNAL_BYTES_MIN: u64 = 1 << 20;
/// The snapshot.
const SNAPSHOT: &str = "library";
/// Journals, before their generation.
const JOURNAL: &str = "journal-";
/// The folder of torrents.
const TORRENTS: &str = "torrents";
/// Who has this open is the daemon of this folder.
const LOCK: &str = "lock";

/// Why nothing can be kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder cannot be used.
    #[error("cannot use {path} to keep the library in: {source}; name another folder with --state-dir", path = path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another daemon is at work.
    #[error("another daemon keeps its library in {path}: end it, or name another folder with --state-dir", path = .0.display())]
    Locked(PathBuf),
    /// The snapshot is no snapshot.
    #[error("{path} is damaged or of another version: put a copy back, or move it away to begin with an empty library", path = .0.display())]
    Damaged(PathBuf),
    /// A change cannot be written, and was not made.
    #[error("cannot write to {path}: {source}; nothing was changed", path = path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The thread that writes is gone: the daemon ends.
    #[error("the daemon is ending")]
    Gone,
}

/// Something to be kept.
#[derive(Default)]
pub(crate) struct Change {
    /// Values by key.
    pub batch: Batch,
    /// Torrents to keep, by the number of their content: before the values are.
    pub torrents: Vec<(u64, Vec<u8>)>,
    /// Torrents that are not needed any more once the values are kept.
    pub gone: Vec<u64>,
}

type Done = oneshot::Sender<Result<(), StoreError>>;

/// What the thread is told.
enum Job {
    /// To keep a change.
    Keep(Change, Done),
    /// To end, and to say so once the folder is free for another daemon.
    End(oneshot::Sender<()>),
}

/// Keeps what it is given.
pub(crate) struct Store {
    jobs: mpsc::Sender<Job>,
    dir: PathBuf,
    written: Arc<Written>,
}

/// What was written since the start.
#[derive(Default)]
struct Written {
    values: AtomicU64,
    syncs: AtomicU64,
}

/// An error where another daemon is at work in this folder. Nothing is made there.
pub(crate) fn check_free(dir: &Path) -> Result<(), StoreError> {
    let Ok(lock) = OpenOptions::new().write(true).open(dir.join(LOCK)) else { return Ok(()) };
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked(dir.to_owned())),
        // What else may be wrong with it, opening tells.
        _ => Ok(()),
    }
}

impl Store {
    /// Opens a folder, which is made where it is missing, and reads what was kept.
    pub(crate) fn open(dir: &Path) -> Result<(Self, Entries), StoreError> {
        let unusable = |source| StoreError::Unusable { path: dir.to_owned(), source };
        DirBuilder::new().mode(0o700).recursive(true).create(dir.join(TORRENTS)).map_err(unusable)?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(dir.join(LOCK));
        let lock = lock.map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(dir.to_owned())),
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        let path = dir.join(SNAPSHOT);
        let (snapshot_len, generation, mut kept) = match std::fs::read(&path) {
            Ok(bytes) => {
                let (generation, kept) = journal::read_snapshot(&bytes).ok_or(StoreError::Damaged(path))?;
                (bytes.len() as u64, generation, kept)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => (0, 0, Entries::new()),
            Err(error) => return Err(unusable(error)),
        };
        let path = dir.join(format!("{JOURNAL}{generation}"));
        let (journal, len) = match std::fs::read(&path) {
            // What a torn journal ends in is not built on.
            Ok(bytes) if journal::replay(&bytes, &mut kept) < bytes.len() => (None, 0),
            Ok(bytes) => (Some(OpenOptions::new().append(true).open(&path).map_err(unusable)?), bytes.len() as u64),
            Err(error) if error.kind() == ErrorKind::NotFound => (None, 0),
            Err(error) => return Err(unusable(error)),
        };
        let written = Arc::<Written>::default();
        let mut disk = Disk {
            dir: dir.to_owned(),
            kept,
            generation,
            journal,
            len,
            snapshot_len,
            written: Arc::clone(&written),
            _lock: lock,
        };
        if disk.journal.is_none() {
            disk.snapshot().map_err(unusable)?;
        }
        disk.clear_away();
        let kept = disk.kept.clone();
        let (jobs, waiting) = mpsc::channel(JOBS_MAX);
        std::thread::Builder::new().name("library".to_owned()).spawn(move || disk.serve(waiting)).map_err(unusable)?;
        Ok((Self { jobs, dir: dir.to_owned(), written }, kept))
    }

    /// Keeps a change. It is on the disk when this is done.
    pub(crate) async fn write(&self, change: Change) -> Result<(), StoreError> {
        let (done, outcome) = oneshot::channel();
        self.jobs.send(Job::Keep(change, done)).await.map_err(|_| StoreError::Gone)?;
        outcome.await.unwrap_or(Err(StoreError::Gone))
    }

    /// Ends it. The folder is free for another daemon when this is done; nothing is kept any more.
    pub(crate) async fn end(&self) {
        let (done, ended) = oneshot::channel();
        if self.jobs.send(Job::End(done)).await.is_ok() {
            // A thread that failed has let go of the folder too.
            let _ = ended.await;
        }
    }

    /// Values that were written since the start, and how often the disk was waited for.
    pub(crate) fn written(&self) -> (u64, u64) {
        (self.written.values.load(Ordering::Relaxed), self.written.syncs.load(Ordering::Relaxed))
    }

    /// Where the torrent of a content is kept.
    pub(crate) fn torrent(&self, id: u64) -> PathBuf {
        torrent(&self.dir, id)
    }
}

fn torrent(dir: &Path, id: u64) -> PathBuf {
    dir.join(TORRENTS).join(format!("{id}.torrent"))
}

/// The files, on their thread.
struct Disk {
    dir: PathBuf,
    kept: Entries,
    generation: u64,
    /// `None` where the last write failed: what it ends in is not known.
    journal: Option<File>,
    len: u64,
    snapshot_len: u64,
    written: Arc<Written>,
    _lock: File,
}

impl Disk {
    fn serve(mut self, mut waiting: mpsc::Receiver<Job>) {
        let mut end = None;
        while end.is_none()
            && let Some(first) = waiting.blocking_recv()
        {
            let (mut changes, mut told) = (Vec::new(), Vec::new());
            let mut next = Some(first);
            while let Some(job) = next.take() {
                match job {
                    Job::Keep(change, done) => {
                        changes.push(change);
                        told.push(done);
                    }
                    Job::End(done) => {
                        end = Some(done);
                        break;
                    }
                }
                if changes.len() < TOGETHER_MAX {
                    next = waiting.try_recv().ok();
                }
            }
            let outcome = self.keep(changes);
            for done in told {
                let failed = outcome.as_ref().err().map(|error| io::Error::new(error.kind(), error.to_string()));
                let outcome = failed.map_or(Ok(()), |source| Err(StoreError::Write { path: self.dir.clone(), source }));
                // Whoever asked may be gone.
                let _ = done.send(outcome);
            }
        }
        // With it goes the lock.
        drop(self);
        if let Some(done) = end {
            let _ = done.send(());
        }
    }

    /// All of these, or none.
    fn keep(&mut self, changes: Vec<Change>) -> io::Result<()> {
        let torrents = || changes.iter().flat_map(|change| &change.torrents);
        for (id, bytes) in torrents() {
            place(&torrent(&self.dir, *id), bytes)?;
        }
        if torrents().next().is_some() {
            // Their names, all at once.
            File::open(self.dir.join(TORRENTS))?.sync_all()?;
        }
        let journal_max = JOURNAL_BYTES_MIN.max(self.snapshot_len);
        if self.journal.is_none() || self.len > journal_max {
            self.snapshot()?;
        }
        let mut lines = Vec::new();
        changes
            .iter()
            .filter(|change| !change.batch.is_empty())
            .for_each(|change| lines.extend(journal::line(&change.batch)));
        let values: usize = changes.iter().map(|change| change.batch.len()).sum();
        if !lines.is_empty() {
            let Some(mut journal) = self.journal.take() else { return Err(io::ErrorKind::Other.into()) };
            journal.write_all(&lines).and_then(|()| journal.sync_data())?;
            self.journal = Some(journal);
            self.len += lines.len() as u64;
            self.written.values.fetch_add(values as u64, Ordering::Relaxed);
            self.written.syncs.fetch_add(1, Ordering::Relaxed);
        }
        for change in changes {
            journal::apply(&mut self.kept, change.batch);
            for id in change.gone {
                // One that stays is cleared away at the next start.
                let _ = std::fs::remove_file(torrent(&self.dir, id));
            }
        }
        Ok(())
    }

    /// Writes everything anew, and begins a new journal.
    fn snapshot(&mut self) -> io::Result<()> {
        let next = self.generation + 1;
        let bytes = journal::snapshot(next, &self.kept);
        let path = self.dir.join(format!("{JOURNAL}{next}"));
        let journal = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        journal.sync_all()?;
        replace(&self.dir.join(SNAPSHOT), &bytes)?;
        // From here on the old journal is nobody's.
        let old = self.dir.join(format!("{JOURNAL}{}", self.generation));
        (self.generation, self.journal, self.len) = (next, Some(journal), 0);
        self.snapshot_len = bytes.len() as u64;
        let _ = std::fs::remove_file(old);
        Ok(())
    }

    /// What an end at any instant left lying about.
    fn clear_away(&self) {
        let files = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        let current = format!("{JOURNAL}{}", self.generation);
        for file in files(&self.dir) {
            let name = file.file_name().to_string_lossy().into_owned();
            if name.ends_with(".new") || name.starts_with(JOURNAL) && name != current {
                let _ = std::fs::remove_file(file.path());
            }
        }
        for file in files(&self.dir.join(TORRENTS)) {
            let name = file.file_name().to_string_lossy().into_owned();
            let id = name.strip_suffix(".torrent");
            if !id.is_some_and(|id| self.kept.contains_key(&format!("content/{id}"))) {
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

/// What is kept in these bytes of a snapshot or a journal.
pub(crate) fn read_kept(bytes: &[u8]) -> Entries {
    let mut kept = journal::read_snapshot(bytes).map(|(_, kept)| kept).unwrap_or_default();
    journal::replay(bytes, &mut kept);
    kept
}

/// Puts a file in another's place: either the old or the new is there, whole, whatever happens.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    place(path, bytes)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// The same, but that its name is on the disk only when its folder was synced.
fn place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn change(key: &str, value: u64) -> Change {
        Change { batch: vec![(key.to_owned(), Some(json!(value)))], ..Change::default() }
    }

    #[tokio::test]
    async fn what_was_acknowledged_is_there_the_next_time() {
        let dir = tempfile::tempdir().unwrap();
        for run in 0..3_u64 {
            let (store, kept) = Store::open(dir.path()).unwrap();
            assert_eq!(kept.len() as u64, run * 10);
            assert!(matches!(Store::open(dir.path()), Err(StoreError::Locked(_))));
            for at in 0..10 {
                store.write(change(&format!("content/{}", run * 10 + at), at)).await.unwrap();
            }
            let torrent = Change { torrents: vec![(run, b"d4:infode".to_vec())], ..Change::default() };
            store.write(torrent).await.unwrap();
            assert!(store.torrent(run).exists());
            store.end().await;
            assert!(matches!(store.write(change("late", 1)).await, Err(StoreError::Gone)));
        }
    }

    #[tokio::test]
    async fn a_torn_journal_loses_its_last_line_alone_and_is_not_built_on() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path()).unwrap();
        for at in 0..3 {
            store.write(change(&format!("k{at}"), at)).await.unwrap();
        }
        let journal = dir.path().join("journal-1");
        let bytes = std::fs::read(&journal).unwrap();
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(dir.path().join(SNAPSHOT), copy.path().join(SNAPSHOT)).unwrap();
        std::fs::write(copy.path().join("journal-1"), &bytes[..bytes.len() - 1]).unwrap();
        let (store, kept) = Store::open(copy.path()).unwrap();
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["k0", "k1"]);
        store.write(change("k9", 9)).await.unwrap();
        assert!(!copy.path().join("journal-1").exists());
        // One that is whole is.
        store.end().await;
        let (store, kept) = Store::open(copy.path()).unwrap();
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["k0", "k1", "k9"]);
        store.write(change("k10", 10)).await.unwrap();
        store.end().await;
        assert!(copy.path().join("journal-2").exists());
        assert_eq!(Store::open(copy.path()).unwrap().1.len(), 4);
    }

    #[test]
    fn a_damaged_snapshot_is_told_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(SNAPSHOT), "anabranch library 1 4\nhalf").unwrap();
        assert!(matches!(Store::open(dir.path()), Err(StoreError::Damaged(_))));
        assert!(dir.path().join(SNAPSHOT).exists());
    }
}
