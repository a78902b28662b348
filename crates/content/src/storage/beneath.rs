//! Opening, making and moving files below a root without ever leaving it.
//!
//! The paths come from a torrent and the folder may hold anything, such as a symbolic link that somebody put there to have
//! our bytes written elsewhere. So no link is followed below the root (the root itself is the user's choice and may be one).
//! `openat2` does that in one call; where it is missing, each component is opened by itself with `O_NOFOLLOW`.

#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Mode of new folders before the umask.
const FOLDER_MODE: libc::mode_t = 0o777;
/// Mode of new files before the umask.
const FILE_MODE: libc::mode_t = 0o666;
/// `openat2` answers `EAGAIN` when something was renamed meanwhile; a folder that never rests is not ours to wait for.
const OPEN_TRIES: u32 = 8;

/// Opens the regular file `path` below `root`. `flags` as for open(2); with `O_CREAT` the folders above it are made, too.
/// A FIFO, device or folder in its place gives `EEXIST`.
pub(super) fn open(root: &Path, path: &Path, flags: libc::c_int) -> io::Result<File> {
    // O_NONBLOCK: a FIFO must not make us wait for its other end; it means nothing for regular files.
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match open_resolved(root, path, flags) {
        Err(error) if lacks_openat2(&error) => open_walking(root, path, flags),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) && flags & libc::O_CREAT != 0 => {
            open_walking(root, path, flags)
        }
        done => done,
    }?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(file)
}

/// What the file `path` below `root` looks like. No link is followed, and what is no regular file gives `EEXIST`.
pub(crate) fn look(root: &Path, path: &Path) -> io::Result<Metadata> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let found = match open_resolved(root, path, flags) {
        Err(error) if lacks_openat2(&error) => open_walking(root, path, flags),
        done => done,
    }?;
    let metadata = found.metadata()?;
    if metadata.is_file() { Ok(metadata) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
}

/// Makes the symbolic link `path` below `root`, and the folders above it. One that already says the same is left.
pub(super) fn symlink(root: &Path, path: &Path, target: &Path) -> io::Result<()> {
    let (folder, name) = parent(root, path, true)?;
    let target = c_string(target.as_os_str())?;
    // SAFETY: both strings are NUL-terminated and live through the call; the descriptor is open.
    let made = check(unsafe { libc::symlinkat(target.as_ptr(), folder.as_raw_fd(), name.as_ptr()) });
    match made {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            let leads_there =
                read_link_at(&folder, &name).is_ok_and(|found| found.as_os_str().as_bytes() == target.as_bytes());
            if leads_there { Ok(()) } else { Err(error) }
        }
        done => done.map(drop),
    }
}

/// Moves the file `from` to the free place `to`, both below `root`, and makes the folders above it. `EEXIST` where `to` is taken.
pub(super) fn rename_new(root: &Path, from: &Path, to: &Path) -> io::Result<()> {
    rename_across(root, from, root, to)
}

/// Deletes the file or link `path` below `root`, not what a link leads to. `ENOENT` where there is none, `EISDIR` where it is a folder.
pub(super) fn unlink(root: &Path, path: &Path) -> io::Result<()> {
    let (folder, name) = parent(root, path, false)?;
    // SAFETY: the string is NUL-terminated, the descriptor is open.
    check(unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

/// Deletes the folder `path` below `root` if nothing is in it.
pub(super) fn remove_empty_folder(root: &Path, path: &Path) -> io::Result<()> {
    let (folder, name) = parent(root, path, false)?;
    // SAFETY: the string is NUL-terminated, the descriptor is open.
    check(unsafe { libc::unlinkat(folder.as_raw_fd(), name.as_ptr(), libc::AT_REMOVEDIR) }).map(drop)
}

/// Where the symbolic link `path` below `root` leads.
pub(super) fn read_link(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let (folder, name) = parent(root, path, false)?;
    read_link_at(&folder, &name)
}

/// Moves the file `from` below `root` to the free place `to` below `other`, and makes the folders above that. `EEXIST` where `to` is
/// taken, `EXDEV` where it is on another file system.
pub(super) fn rename_across(root: &Path, from: &Path, other: &Path, to: &Path) -> io::Result<()> {
    let (from_folder, from_name) = parent(root, from, false)?;
    let (to_folder, to_name) = parent(other, to, true)?;
    rename_at(&from_folder, &from_name, &to_folder, &to_name)
}

/// Forces the names in the folder of `path` to the disk.
pub(super) fn sync_folder(root: &Path, path: &Path) -> io::Result<()> {
    let folder = root.join(path);
    File::open(folder.parent().unwrap_or(root))?.sync_all()
}

/// One call, the kernel checks every component.
fn open_resolved(root: &Path, path: &Path, flags: libc::c_int) -> io::Result<File> {
    resolve_at(&open_root(root)?, path, flags, FILE_MODE)
}

/// The same below an open folder; `mode` is that of a new file before the umask.
pub(super) fn resolve_at(folder: &OwnedFd, path: &Path, flags: libc::c_int, mode: libc::mode_t) -> io::Result<File> {
    let path = c_string(path.as_os_str())?;
    // SAFETY: all-zero is a valid open_how; it has no padding that matters.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags as u64;
    how.mode = if flags & libc::O_CREAT != 0 { u64::from(mode) } else { 0 };
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS;
    let mut last = io::Error::from_raw_os_error(libc::EAGAIN);
    for _ in 0..OPEN_TRIES {
        // SAFETY: the string is NUL-terminated, `how` is a valid open_how of the size given, the descriptor is open.
        let opened = check(unsafe {
            libc::syscall(
                libc::SYS_openat2,
                folder.as_raw_fd(),
                path.as_ptr(),
                &raw const how,
                size_of::<libc::open_how>(),
            ) as libc::c_int
        });
        match opened {
            // SAFETY: a descriptor fresh from the kernel has no other owner.
            Ok(fd) => return Ok(unsafe { File::from_raw_fd(fd) }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// `ENOSYS` before Linux 5.6; seccomp filters that do not know the call answer `EPERM` (and then so would a real refusal: the
/// walk tells them apart).
pub(super) fn lacks_openat2(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM))
}

/// One call per component.
fn open_walking(root: &Path, path: &Path, flags: libc::c_int) -> io::Result<File> {
    let (folder, name) = parent(root, path, flags & libc::O_CREAT != 0)?;
    open_at(&folder, &name, flags, FILE_MODE).map(File::from)
}

/// The folder that holds `path`, and the last component. `make` makes what is missing.
fn parent(root: &Path, path: &Path, make: bool) -> io::Result<(OwnedFd, CString)> {
    parent_at(open_root(root)?, path, make.then_some(FOLDER_MODE))
}

/// The same below an open folder; what is missing is made with this mode, before the umask.
pub(super) fn parent_at(
    mut folder: OwnedFd,
    path: &Path,
    make: Option<libc::mode_t>,
) -> io::Result<(OwnedFd, CString)> {
    let mut components = path.components().peekable();
    while let Some(component) = components.next() {
        // The parser made the paths safe; this holds even if it had not.
        let Component::Normal(name) = component else {
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        };
        let name = c_string(name)?;
        if components.peek().is_none() {
            return Ok((folder, name));
        }
        if let Some(mode) = make {
            // SAFETY: the string is NUL-terminated, the descriptor is open.
            let made = check(unsafe { libc::mkdirat(folder.as_raw_fd(), name.as_ptr(), mode) });
            if let Err(error) = made {
                // A read-only file system says EROFS even where the folder is there; if it is not, opening it says so.
                if !matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EROFS)) {
                    return Err(error);
                }
            }
        }
        folder = open_at(&folder, &name, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC, 0)?;
    }
    Err(io::Error::from_raw_os_error(libc::EISDIR))
}

pub(super) fn read_link_at(folder: &OwnedFd, name: &CString) -> io::Result<PathBuf> {
    let mut text = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer is as long as said, the string NUL-terminated, the descriptor open.
    let len = check(unsafe {
        libc::readlinkat(folder.as_raw_fd(), name.as_ptr(), text.as_mut_ptr().cast(), text.len()) as libc::c_int
    })?;
    text.truncate(len as usize);
    Ok(PathBuf::from(OsString::from_vec(text)))
}

fn rename_at(from_folder: &OwnedFd, from: &CString, to_folder: &OwnedFd, to: &CString) -> io::Result<()> {
    let (from_fd, to_fd) = (from_folder.as_raw_fd(), to_folder.as_raw_fd());
    // SAFETY: both strings are NUL-terminated and live through the call; the descriptors are open.
    let moved = check(unsafe {
        libc::syscall(libc::SYS_renameat2, from_fd, from.as_ptr(), to_fd, to.as_ptr(), libc::RENAME_NOREPLACE)
            as libc::c_int
    });
    match moved {
        // The file system does not know the flag: the caller saw the place free, and a race with it is the user's own.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => {
            // SAFETY: as above.
            check(unsafe { libc::renameat(from_fd, from.as_ptr(), to_fd, to.as_ptr()) }).map(drop)
        }
        done => done.map(drop),
    }
}

pub(super) fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let root = c_string(root.as_os_str())?;
    // SAFETY: the string is NUL-terminated.
    let fd = check(unsafe { libc::open(root.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) })?;
    // SAFETY: a descriptor fresh from the kernel has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn open_at(folder: &OwnedFd, name: &CString, flags: libc::c_int, mode: libc::mode_t) -> io::Result<OwnedFd> {
    // SAFETY: the string is NUL-terminated, the descriptor is open, the mode is there for O_CREAT.
    let fd = check(unsafe { libc::openat(folder.as_raw_fd(), name.as_ptr(), flags, mode) })?;
    // SAFETY: a descriptor fresh from the kernel has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

pub(super) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink as std_symlink;

    type Opener = fn(&Path, &Path, libc::c_int) -> io::Result<File>;

    #[test]
    fn links_are_never_followed() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("victim"), "precious").unwrap();
        std_symlink(outside.path(), inside.path().join("folder")).unwrap();
        std_symlink(outside.path().join("victim"), inside.path().join("file")).unwrap();
        fs::create_dir(inside.path().join("real")).unwrap();
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        for opener in [open as Opener, open_walking] {
            for path in ["folder/victim", "folder/new", "file", "../x", "real/../../x", "/etc/hostname"] {
                let error = opener(inside.path(), Path::new(path), flags).unwrap_err();
                let code = error.raw_os_error().unwrap();
                assert!([libc::ELOOP, libc::ENOTDIR, libc::EXDEV].contains(&code), "{path}: {error}");
            }
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        assert!(symlink(inside.path(), Path::new("folder/link"), Path::new("x")).is_err());
        fs::write(inside.path().join("real/a"), "").unwrap();
        assert!(rename_new(inside.path(), Path::new("real/a"), Path::new("folder/a")).is_err());
    }

    #[test]
    fn folders_are_made_and_other_kinds_refused() {
        let root = tempfile::tempdir().unwrap();
        for opener in [open as Opener, open_walking] {
            opener(root.path(), Path::new("a/b/c"), libc::O_RDWR | libc::O_CREAT).unwrap();
            let missing = opener(root.path(), Path::new("a/b/d"), libc::O_RDWR).unwrap_err();
            assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
            fs::remove_dir_all(root.path().join("a")).unwrap();
        }
        fs::create_dir(root.path().join("folder")).unwrap();
        assert!(open(root.path(), Path::new("folder"), libc::O_RDONLY).is_err());
        let fifo = CString::new(root.path().join("fifo").as_os_str().as_bytes()).unwrap();
        // SAFETY: the string is NUL-terminated.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        assert_eq!(
            open(root.path(), Path::new("fifo"), libc::O_RDONLY).unwrap_err().raw_os_error(),
            Some(libc::EEXIST)
        );
    }

    #[test]
    fn links_and_moves_do_not_overwrite() {
        let root = tempfile::tempdir().unwrap();
        symlink(root.path(), Path::new("a/link"), Path::new("target")).unwrap();
        symlink(root.path(), Path::new("a/link"), Path::new("target")).unwrap();
        assert!(symlink(root.path(), Path::new("a/link"), Path::new("other")).is_err());
        fs::write(root.path().join("x"), "x").unwrap();
        fs::write(root.path().join("y"), "y").unwrap();
        assert!(rename_new(root.path(), Path::new("x"), Path::new("y")).is_err());
        rename_new(root.path(), Path::new("x"), Path::new("b/x")).unwrap();
        assert_eq!(fs::read(root.path().join("b/x")).unwrap(), b"x");
    }
}
