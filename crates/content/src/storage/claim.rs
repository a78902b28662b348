//! Places that one content writes to, and nobody else at the same time: no other process, and no other content of this one.
//!
//! A claim is a set of locks in one hidden file of the download folder: a byte of it stands for a path below the folder. They
//! are locks of an open file description (`F_OFD_SETLK`), so two contents of one process exclude each other as two processes
//! do, and the kernel takes them back when a process dies: no lock is ever stale. Who only reads takes none.
//!
//! A path's byte is a number made of its hash, without regard to case: some file systems have none. Two paths whose numbers are
//! the same by chance (one in 2^63, or in 2^32 of contents with thousands of files) would exclude each other; nothing worse.
//! Where one download folder is in another, each has its own file of locks: whoever has claimed a place looks into those of the
//! folders above and below for the same place. File systems without locks go unnoticed.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::resting::{Resting, kept};
use super::{ErrorKind, Op, StorageError, beneath};
use crate::hash::sha1;
use crate::info::{FileKind, Info};

/// The file of locks. Torrents cannot have a file of this name: see [`super::is_hidden_name`].
const LOCK_NAME: &str = ".anabranch-lock";
/// Contents of more files than this claim everything of their name: locks of one file are a list, which the kernel walks.
const PLACES_MAX: usize = 1024;
/// Bytes of the file for one name in the download folder, a folder's files included. 2^32 of these fit into a file's offsets.
const NAME_SPAN: i64 = 1 << 31;
/// Whoever ends right now lets go within this time, tried so often.
const TRIES: u32 = 10;
const RETRY: Duration = Duration::from_millis(200);
/// So often the file of locks may be deleted by others just before it is locked: many come and go at once.
const DELETED_MAX: u32 = 10_000;

/// Locks that are held until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    file: File,
    path: PathBuf,
    /// The download folder, whole and without links.
    folder: PathBuf,
}

impl Claim {
    /// Claims the places of all entries of `info` below `root`; `None` where the file system knows no locks.
    pub(super) fn take(root: &Path, info: &Info) -> Result<Option<Self>, StorageError> {
        let entries = info.files.iter().filter(|entry| entry.kind != FileKind::Pad);
        let paths: Vec<&Path> = entries.map(|entry| entry.path.as_path()).collect();
        Self::take_by(root, Path::new(&info.name), &paths, |claim| claim.lock_all(info))
    }

    /// Claims all that is or will be below these names in `root`, at most [`PLACES_MAX`] of them one by one.
    pub(super) fn take_names(root: &Path, names: &[&Path]) -> Result<Option<Self>, StorageError> {
        let first = names.first().copied().unwrap_or(Path::new(""));
        Self::take_by(root, first, names, |claim| claim.lock_names(names))
    }

    /// `lock` takes the locks that it needs and answers the path of one that somebody else has.
    fn take_by(
        root: &Path,
        name: &Path,
        paths: &[&Path],
        lock: impl Fn(&Self) -> io::Result<Option<PathBuf>>,
    ) -> Result<Option<Self>, StorageError> {
        let path = root.join(LOCK_NAME);
        let failed = |source| StorageError::new(Op::Create, &path, source);
        let folder = root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
        let (mut taken, mut tries, mut deleted) = (None, 0, 0);
        while tries < TRIES && deleted < DELETED_MAX {
            let (claim, locked, is_in_place) = {
                let _turn = turn();
                let file = match beneath::open(root, Path::new(LOCK_NAME), libc::O_RDWR | libc::O_CREAT) {
                    // What is there may be complete; if it is not, writing to it says so. Another user's lock is not ours to take.
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)) => return Ok(None),
                    opened => opened.map_err(failed)?,
                };
                let claim = Self { file, path: path.clone(), folder: folder.clone() };
                let locked = lock(&claim);
                let is_in_place = claim.is_in_place();
                (claim, locked, is_in_place)
            };
            match locked {
                // Ours is taken before we look at others', so of two who come at once one sees the other.
                Ok(None) if is_in_place => match claimed_elsewhere(&folder, paths).or_else(|| kept(&folder, paths)) {
                    Some(place) => taken = Some(root.join(place)),
                    None => return Ok(Some(claim)),
                },
                // Whoever had it before deleted it in between: there is nobody to wait for.
                Ok(None) => {
                    deleted += 1;
                    continue;
                }
                Ok(Some(place)) => taken = Some(root.join(place)),
                Err(error) if has_no_locks(&error) => return Ok(None),
                Err(error) => return Err(failed(error)),
            }
            drop(claim);
            tries += 1;
            if tries < TRIES {
                std::thread::sleep(RETRY);
            }
        }
        let place = taken.unwrap_or_else(|| root.join(name));
        Err(StorageError::found(Op::Write, place, ErrorKind::Claimed, "locked"))
    }

    /// Gives the places of `info` up to be read by anybody, but to no other content of this process.
    pub(super) fn rest(self, info: &Info) -> Resting {
        // Before the locks go: there is no moment between.
        Resting::keep(&self.folder, resting_places(info).into_iter())
    }

    /// The same, without a claim at first; `None` where somebody has one of the places, or may have.
    pub(super) fn rest_at_once(root: &Path, info: &Info) -> Option<Resting> {
        let folder = root.canonicalize().ok()?;
        let paths = resting_places(info);
        // Who claims a place looks for those at rest after that: of two who come at once one sees the other.
        let resting = Resting::try_keep(&folder, paths.iter().copied())?;
        let own = open_locks_above(&folder);
        let is_taken = own.is_some_and(|locks| paths.iter().any(|path| is_locked(&locks, path)));
        (!is_taken && claimed_elsewhere(&folder, &paths).is_none()).then_some(resting)
    }

    /// Answers the path that somebody else has claimed, if one has.
    fn lock_all(&self, info: &Info) -> io::Result<Option<PathBuf>> {
        let entries = || info.files.iter().filter(|entry| entry.kind != FileKind::Pad);
        if entries().nth(PLACES_MAX).is_some() {
            let name = PathBuf::from(&info.name);
            let free = self.try_lock(place(&name).0, NAME_SPAN)?;
            return Ok((!free).then_some(name));
        }
        // The record is one for all files: the same content twice, with other files wanted, would share it.
        let record = PathBuf::from(super::hidden_name(info, "resume"));
        for path in entries().map(|entry| &entry.path).chain([&record]) {
            let (start, within) = place(path);
            if !self.try_lock(start + within, 1)? {
                return Ok(Some(path.clone()));
            }
        }
        Ok(None)
    }

    /// Answers the name that somebody else has claimed, or something below it.
    fn lock_names(&self, names: &[&Path]) -> io::Result<Option<PathBuf>> {
        if names.len() > PLACES_MAX {
            return Ok((!self.try_lock(0, 0)?).then(|| names[0].into()));
        }
        for name in names {
            if !self.try_lock(place(name).0, NAME_SPAN)? {
                return Ok(Some(name.into()));
            }
        }
        Ok(None)
    }

    /// `false` where somebody else has it.
    fn try_lock(&self, start: i64, len: i64) -> io::Result<bool> {
        let lock = write_lock(start, len);
        // SAFETY: the descriptor is open, the structure is of the kind that the call reads.
        if unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        }
    }

    /// Whether the file is still the one that others open.
    fn is_in_place(&self) -> bool {
        let (ours, theirs) = (self.file.metadata(), std::fs::symlink_metadata(&self.path));
        matches!((ours, theirs), (Ok(ours), Ok(theirs)) if (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()))
    }
}

impl Drop for Claim {
    /// The file goes with the last who has a place in it.
    fn drop(&mut self) {
        let _turn = turn();
        let mut all = write_lock(0, 0);
        all.l_type = libc::F_UNLCK as libc::c_short;
        // Of two who end at once each would find the other's locks, and neither would be the last.
        // SAFETY: the descriptor is open, the structure is of the kind that the call reads.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const all) };
        if self.try_lock(0, 0).unwrap_or(false) && self.is_in_place() {
            // Should it stay, it is empty, hidden and in nobody's way.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What a content at rest keeps: its files, or where they are many the one name above them.
fn resting_places(info: &Info) -> Vec<&Path> {
    let entries = || info.files.iter().filter(|entry| entry.kind != FileKind::Pad).map(|entry| entry.path.as_path());
    match entries().nth(PLACES_MAX) {
        Some(_) => vec![Path::new(&info.name)],
        None => entries().collect(),
    }
}

/// Claims of this process come and go one at a time: whoever goes has the whole file for a moment, and whoever comes then would take that
/// for somebody who stays.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of `paths` that somebody has claimed through a download folder above `root`, which is whole and without links, or through one
/// below it.
fn claimed_elsewhere<'a>(root: &Path, paths: &[&'a Path]) -> Option<&'a Path> {
    let above = root.ancestors().skip(1).map(|folder| (folder.to_path_buf(), open_locks_above(folder)));
    let mut others: Vec<(PathBuf, File)> = above.filter_map(|(folder, locks)| Some((folder, locks?))).collect();
    let mut below = BTreeSet::new();
    for path in paths {
        // Once a folder is known, all above it are.
        let folders = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        for folder in folders.take_while(|folder| below.insert(folder.to_path_buf())) {
            let folder = root.join(folder);
            others.extend(open_locks(&folder).map(|locks| (folder, locks)));
        }
    }
    let is_taken = |path: &Path| {
        let path = root.join(path);
        others.iter().any(|(folder, locks)| path.strip_prefix(folder).is_ok_and(|path| is_locked(locks, path)))
    };
    paths.iter().copied().find(|path| is_taken(path))
}

/// The file of locks in `folder`, if somebody downloads to that; nothing is made there.
fn open_locks(folder: &Path) -> Option<File> {
    beneath::open(folder, Path::new(LOCK_NAME), libc::O_RDONLY).ok()
}

/// The same of a folder whose path is without links, which is quicker.
fn open_locks_above(folder: &Path) -> Option<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(folder.join(LOCK_NAME)).ok()
}

/// Whether somebody else holds the lock of `path`.
fn is_locked(locks: &File, path: &Path) -> bool {
    let (start, within) = place(path);
    let mut lock = write_lock(start + within, 1);
    // SAFETY: the descriptor is open, the structure is of the kind that the call reads and writes.
    let asked = unsafe { libc::fcntl(locks.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}

fn write_lock(start: i64, len: i64) -> libc::flock {
    // SAFETY: all-zero is a valid flock; open file descriptions ask for a process of 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start, len);
    lock
}

/// Where the bytes of a path's name begin, and which of them is the path's.
fn place(path: &Path) -> (i64, i64) {
    let number = |path: &Path| {
        let [a, b, c, d, ..] = sha1(path.to_string_lossy().to_lowercase().as_bytes());
        i64::from(u32::from_be_bytes([a, b, c, d]))
    };
    let name = path.iter().next().unwrap_or_default();
    (number(Path::new(name)) * NAME_SPAN, number(path) % NAME_SPAN)
}

/// Some network and user-space file systems, and some sandboxes.
fn has_no_locks(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::testing::info;

    fn named(hash: u8, paths: &[&str]) -> Info {
        let mut info = info(16, &vec![(10, 0); paths.len()]);
        info.hashes.v1 = Some([hash; 20]);
        info.files.iter_mut().zip(paths).for_each(|(file, path)| file.path = path.into());
        info
    }

    #[test]
    fn a_place_has_one_owner_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let take = |info: &Info| Claim::take(root.path(), info);
        let first = take(&named(1, &["data/a.bin", "data/b.bin"])).unwrap();
        let error = take(&named(2, &["data/c.bin", "data/A.bin"])).unwrap_err();
        assert_eq!((error.kind, error.path), (ErrorKind::Claimed, root.path().join("data/A.bin")));
        // The same content claims its record, whatever files are wanted; others may share a folder.
        assert_eq!(take(&named(1, &["data/c.bin"])).unwrap_err().kind, ErrorKind::Claimed);
        let second = take(&named(2, &["data/c.bin"])).unwrap();
        let many: Vec<String> = (0..=PLACES_MAX).map(|n| format!("c/{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let all = take(&named(3, &many)).unwrap();
        assert_eq!(take(&named(4, &["c/x"])).unwrap_err().kind, ErrorKind::Claimed);
        assert!(root.path().join(LOCK_NAME).exists());
        drop((first, all));
        let again = take(&named(5, &["c/x", "data/a.bin"])).unwrap();
        drop((second, again));
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_has_one_owner_through_nested_folders_too() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("data/sub");
        std::fs::create_dir_all(&inner).unwrap();
        let (through_outer, through_inner) = (named(1, &["data/sub/c/a", "data/x"]), named(2, &["c/a"]));
        let first = Claim::take(outer.path(), &through_outer).unwrap();
        let error = Claim::take(&inner, &through_inner).unwrap_err();
        assert_eq!((error.kind, error.path), (ErrorKind::Claimed, inner.join("c/a")));
        let beside = Claim::take(&inner, &named(3, &["c/b"])).unwrap();
        drop((first, beside));
        let first = Claim::take(&inner, &through_inner).unwrap();
        let error = Claim::take(outer.path(), &through_outer).unwrap_err();
        assert_eq!((error.kind, error.path), (ErrorKind::Claimed, outer.path().join("data/sub/c/a")));
        drop(first);
        drop(Claim::take(outer.path(), &through_outer).unwrap());
        assert!(!outer.path().join(LOCK_NAME).exists() && !inner.join(LOCK_NAME).exists());
    }

    #[test]
    fn of_those_who_end_at_once_one_is_the_last() {
        let root = tempfile::tempdir().unwrap();
        let infos = ["a", "b", "c"].map(|path| named(path.as_bytes()[0], &[path]));
        for _ in 0..500 {
            let claims = infos.each_ref().map(|info| Claim::take(root.path(), info).unwrap().unwrap());
            let start = std::sync::Barrier::new(claims.len());
            std::thread::scope(|scope| {
                for claim in claims {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        drop(claim);
                    });
                }
            });
            assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn who_comes_does_not_wait_for_who_goes() {
        let root = tempfile::tempdir().unwrap();
        let infos: Vec<Info> = (0..4_u8).map(|n| named(n, &[&n.to_string()])).collect();
        // Were each met by one who goes taken for one who stays, this would take minutes, and fail in the end.
        std::thread::scope(|scope| {
            for info in &infos {
                let root = root.path();
                scope.spawn(move || (0..2000).for_each(|_| drop(Claim::take(root, info).unwrap().unwrap())));
            }
        });
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_process_left_is_taken_over() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(LOCK_NAME), "").unwrap();
        drop(Claim::take(root.path(), &named(1, &["a"])).unwrap());
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        let link = root.path().join(LOCK_NAME);
        std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        assert_eq!(Claim::take(root.path(), &named(1, &["a"])).unwrap_err().kind, ErrorKind::InTheWay);
    }
}
