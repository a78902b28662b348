//! A folder that stays open, for those who make and read many files below it.
//!
//! As in [`beneath`](super::beneath) nothing leaves the folder: no link below it is followed. But the folder is opened once, and a file costs
//! one call (`openat2`) to make or to open, however deep it lies; names are bytes, and paths may be longer than `PATH_MAX`.

#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::beneath::{self, check, open_at, parent_at, resolve_at};
use super::claim::Claim;
use super::direct::{Alignment, DIRECT_LEN_MIN, Mode, Target};
use super::vectored::Cursor;
use super::{StorageError, resume_store};

/// Folders are their owner's alone until they get their mode.
const FOLDER_MODE: libc::mode_t = 0o700;

/// A folder, and what is below it.
#[derive(Debug)]
pub struct Below {
    folder: OwnedFd,
    path: PathBuf,
}

impl Below {
    /// Opens the folder, which may be a link itself.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        Ok(Self { folder: beneath::open_root(&path)?, path })
    }

    /// Where it is, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file or folder to read. A FIFO does not make us wait; whoever opens looks at what it is.
    pub fn read(&self, path: &Path) -> io::Result<File> {
        self.open_with(path, libc::O_RDONLY | libc::O_NONBLOCK, 0)
    }

    /// Opens a regular file to read and write. `EEXIST` where it is something else.
    pub fn write(&self, path: &Path) -> io::Result<File> {
        let file = self.open_with(path, libc::O_RDWR | libc::O_NONBLOCK, 0)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
    }

    /// Makes a file where nothing is, and the folders above it; `EEXIST` where something is. `mode` is subject to the umask.
    pub fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        match self.open_with(path, flags, mode) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                parent_at(self.folder.try_clone()?, path, Some(FOLDER_MODE))?;
                self.open_with(path, flags, mode)
            }
            done => done,
        }
    }

    /// Makes a folder, and those above it; one that is there is left. Something else there gives `ENOTDIR`.
    pub fn create_folder(&self, path: &Path, mode: u32) -> io::Result<()> {
        let (folder, name) = parent_at(self.folder.try_clone()?, path, Some(FOLDER_MODE))?;
        // SAFETY: the string is NUL-terminated, the descriptor is open.
        match check(unsafe { libc::mkdirat(folder.as_raw_fd(), name.as_ptr(), mode) }) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EROFS)) => {
                let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
                open_at(&folder, &name, flags, 0).map(drop)
            }
            made => made.map(drop),
        }
    }

    /// Makes a symbolic link with a time, and the folders above it. One that already says the same is left.
    pub fn symlink(&self, path: &Path, target: &[u8], modified: (i64, u32)) -> io::Result<()> {
        let (folder, name) = parent_at(self.folder.try_clone()?, path, Some(FOLDER_MODE))?;
        let text = beneath::c_string(OsStr::from_bytes(target))?;
        // SAFETY: both strings are NUL-terminated and live through the call; the descriptor is open.
        match check(unsafe { libc::symlinkat(text.as_ptr(), folder.as_raw_fd(), name.as_ptr()) }) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                let found = beneath::read_link_at(&folder, &name);
                if found.is_ok_and(|found| found.as_os_str().as_bytes() == target) {
                    return Ok(());
                }
                return Err(error);
            }
            made => made?,
        };
        let time = libc::timespec { tv_sec: modified.0, tv_nsec: modified.1.into() };
        let omit = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
        let times = [omit, time];
        // A file system without times of links keeps its own.
        // SAFETY: the string is NUL-terminated, the descriptor is open, there are two times.
        unsafe {
            libc::utimensat(folder.as_raw_fd(), name.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
        }
        Ok(())
    }

    /// Where the symbolic link `path` leads.
    pub fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let (folder, name) = parent_at(self.folder.try_clone()?, path, None)?;
        beneath::read_link_at(&folder, &name)
    }

    /// What something looks like; a link is not followed.
    pub fn look(&self, path: &Path) -> io::Result<Metadata> {
        self.open_with(path, libc::O_PATH, 0)?.metadata()
    }

    /// Deletes a file or link.
    pub fn unlink(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = parent_at(self.folder.try_clone()?, path, None)?;
        // SAFETY: the string is NUL-terminated, the descriptor is open.
        check(unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
    }

    /// Moves a file over another, both directly in this folder.
    pub fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (beneath::c_string(from.as_os_str())?, beneath::c_string(to.as_os_str())?);
        let fd = self.folder.as_raw_fd();
        // SAFETY: both strings are NUL-terminated and live through the call; the descriptor is open.
        check(unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) }).map(drop)
    }

    /// Forces everything on the folder's file system to the disk: one call, where single files are too many.
    pub fn sync_file_system(&self) -> io::Result<()> {
        // syncfs(2) takes no descriptor that was opened by O_PATH.
        let folder = self.read(Path::new("."))?;
        // SAFETY: the descriptor is open.
        check(unsafe { libc::syncfs(folder.as_raw_fd()) }).map(drop)
    }

    /// Free bytes, and free inodes where the file system counts any.
    pub fn free(&self) -> io::Result<(u64, Option<u64>)> {
        // SAFETY: all-zero is a valid statvfs, and the call fills it.
        let mut stats: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open and the structure is ours.
        check(unsafe { libc::fstatvfs(self.folder.as_raw_fd(), &raw mut stats) })?;
        let inodes = (stats.f_files > 0).then_some(stats.f_favail);
        Ok((stats.f_bavail.saturating_mul(stats.f_frsize), inodes))
    }

    fn open_with(&self, path: &Path, flags: libc::c_int, mode: u32) -> io::Result<File> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        match resolve_at(&self.folder, path, flags, mode) {
            // Longer than the kernel takes at once, or a call that it does not have.
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) || beneath::lacks_openat2(&error) => {
                let (folder, name) = parent_at(self.folder.try_clone()?, path, None)?;
                open_at(&folder, &name, flags, mode).map(File::from)
            }
            done => done,
        }
    }
}

/// Writes runs of bytes to files below a folder: long ones past the page cache where the file system can
/// ([`direct`](super::direct)).
#[derive(Debug, Default)]
pub struct Runs {
    mode: Mode,
}

impl Runs {
    /// Writes `bytes` from `offset` on to the file at `path`, which is open as `file`; `number` tells files apart.
    pub fn write(
        &self,
        below: &Below,
        (path, number): (&Path, usize),
        file: &File,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        let len = bytes.len() as u64;
        let may_be_direct = len >= DIRECT_LEN_MIN && self.mode.may_be_direct();
        let direct = if may_be_direct { Self::open_direct(below, path, file) } else { None };
        if may_be_direct && direct.is_none() {
            self.mode.refuse();
        }
        let slices = [IoSlice::new(bytes)];
        Target::new(file, direct, &self.mode, number).write(&mut Cursor::new(&slices), offset, len)
    }

    fn open_direct(below: &Below, path: &Path, file: &File) -> Option<(Arc<File>, Alignment)> {
        let alignment = Alignment::of(file)?;
        let direct = below.open_with(path, libc::O_RDWR | libc::O_DIRECT | libc::O_NONBLOCK, 0).ok()?;
        super::direct::is_same(&direct, file).then(|| (Arc::new(direct), alignment))
    }
}

/// Places that nobody else of this program's kind writes to, until this is dropped.
#[derive(Debug)]
pub struct Places(#[expect(dead_code, reason = "held for its locks")] Option<Claim>);

impl Places {
    /// Claims these names in `folder` and all below them. Waits a few seconds for whoever is about to leave.
    pub fn claim(folder: &Path, names: &[&Path]) -> Result<Self, StorageError> {
        Claim::take_names(folder, names).map(Self)
    }
}

/// Tells one run of the machine from another; zeros where it does not say.
pub fn boot_id() -> [u8; 16] {
    resume_store::boot_id()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_is_made_through_links_or_over_what_is_there() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), inside.path().join("folder")).unwrap();
        fs::write(inside.path().join("taken"), "precious").unwrap();
        let below = Below::open(inside.path()).unwrap();
        for path in ["folder/new", "../x", "a/../../x", "taken", "folder"] {
            assert!(below.create(Path::new(path), 0o600).is_err(), "{path}");
        }
        assert!(below.create_folder(Path::new("folder/new"), 0o700).is_err());
        assert!(below.create_folder(Path::new("folder"), 0o700).is_err());
        assert!(below.create_folder(Path::new("taken"), 0o700).is_err());
        assert!(below.symlink(Path::new("folder/link"), b"x", (0, 0)).is_err());
        assert!(below.unlink(Path::new("folder/x")).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        assert_eq!(fs::read(inside.path().join("taken")).unwrap(), b"precious");
    }

    #[test]
    fn paths_may_be_longer_than_the_kernel_takes() {
        let root = tempfile::tempdir().unwrap();
        let below = Below::open(root.path()).unwrap();
        let path: PathBuf = (0..20).map(|_| "d".repeat(250)).collect();
        below.create(&path, 0o600).unwrap();
        assert!(below.look(&path).unwrap().is_file());
        assert!(below.create(&path, 0o600).is_err_and(|error| error.raw_os_error() == Some(libc::EEXIST)));
        below.unlink(&path).unwrap();
        below.symlink(&path, b"x", (1, 2)).unwrap();
        assert_eq!(below.read_link(&path).unwrap(), Path::new("x"));
        below.sync_file_system().unwrap();
        assert!(below.free().unwrap().0 > 0);
    }

    #[test]
    fn a_place_is_one_writers() {
        let root = tempfile::tempdir().unwrap();
        let first = Places::claim(root.path(), &[Path::new("a"), Path::new("b")]).unwrap();
        assert!(Places::claim(root.path(), &[Path::new("b")]).is_err());
        let other = Places::claim(root.path(), &[Path::new("c")]).unwrap();
        drop((first, other));
        drop(Places::claim(root.path(), &[Path::new("b")]).unwrap());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
