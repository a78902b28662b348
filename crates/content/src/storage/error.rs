//! What can go wrong between us and the disk, said so that a person can do something about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What was being done when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Looking at a file or folder.
    Look,
    /// Opening a file that should be there.
    Open,
    /// Making a file, folder or link.
    Create,
    /// Reserving space.
    Allocate,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Moving a file into its place.
    Move,
    /// Deleting a file of our own.
    Delete,
    /// Forcing bytes to the disk.
    Sync,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Look => "look at",
            Self::Open => "open",
            Self::Create => "create",
            Self::Allocate => "reserve space for",
            Self::Read => "read",
            Self::Write => "write",
            Self::Move => "move into place",
            Self::Delete => "delete",
            Self::Sync => "sync",
        })
    }
}

/// The cause of a failure, by what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// No space or no quota left.
    DiskFull,
    /// The file system is mounted read-only, or the storage was opened so.
    ReadOnly,
    /// The file or a folder above it does not let us.
    PermissionDenied,
    /// A file that was there is gone or became shorter.
    Vanished,
    /// The working folder was deleted.
    NoFolder,
    /// Something of another kind stands at the path: a symbolic link, a folder. Never followed, never overwritten.
    InTheWay,
    /// A file stands at the path that is not the content's, or more than that. Overwritten only where the user says so.
    Different,
    /// Another content, of this process or of another one, is being written to the same place.
    Claimed,
    /// A file is not any more what it was when its pieces were verified.
    Changed,
    /// The process or the machine has no file descriptors left.
    TooManyOpenFiles,
    /// Anything else; the text of the system error says more.
    Other,
}

impl ErrorKind {
    /// What happened and what the user can do.
    fn remedy(self) -> &'static str {
        match self {
            Self::DiskFull => "the disk is full; free some space and the transfer goes on",
            Self::ReadOnly => "the file system is read-only; make it writable or choose another folder",
            Self::PermissionDenied => "permission denied; allow writing there or choose another folder",
            Self::Vanished => "the file is gone or was cut short; put it back, or check the content again",
            Self::NoFolder => "the working folder was deleted; change to another one, or give a path from `/`",
            Self::InTheWay => "something else is in its place; move that away or choose another folder",
            Self::Different => {
                "another file is in its place; move that away, choose another folder, or overwrite it (`get --force`)"
            }
            Self::Claimed => {
                "something else is being fetched to that place; wait for its end, or choose another folder"
            }
            Self::Changed => "the file was changed since it was verified; put it back, or check the content again",
            Self::TooManyOpenFiles => "too many open files; raise the limit (ulimit -n)",
            Self::Other => "input/output error; check the disk",
        }
    }
}

/// A failed operation on one path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {op} {}: {} ({source})", path.display(), kind.remedy())]
pub struct StorageError {
    /// What was being done.
    pub op: Op,
    /// The file or folder concerned.
    pub path: PathBuf,
    /// The cause.
    pub kind: ErrorKind,
    /// What the system said.
    pub source: io::Error,
}

impl StorageError {
    /// From a system error; the cause is read from its number.
    pub fn new(op: Op, path: impl AsRef<Path>, source: io::Error) -> Self {
        let kind = match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => ErrorKind::DiskFull,
            Some(libc::EROFS) => ErrorKind::ReadOnly,
            Some(libc::EACCES | libc::EPERM) => ErrorKind::PermissionDenied,
            Some(libc::ENOENT | libc::ESTALE | libc::ENODEV | libc::ENXIO) => ErrorKind::Vanished,
            // ELOOP, ENOTDIR: a link where a file or folder should be; EXDEV: openat2 saw the path leave the root.
            Some(libc::ELOOP | libc::ENOTDIR | libc::EISDIR | libc::EXDEV | libc::EEXIST) => ErrorKind::InTheWay,
            Some(libc::EMFILE | libc::ENFILE) => ErrorKind::TooManyOpenFiles,
            _ => ErrorKind::Other,
        };
        Self { op, path: path.as_ref().to_owned(), kind, source }
    }

    /// From a finding of our own.
    pub fn found(op: Op, path: impl AsRef<Path>, kind: ErrorKind, what: &'static str) -> Self {
        Self { op, path: path.as_ref().to_owned(), kind, source: io::Error::other(what) }
    }

    /// Whether a person has to choose: no waiting and no trying again makes room for the content.
    pub fn needs_a_choice(&self) -> bool {
        matches!(self.kind, ErrorKind::NoFolder | ErrorKind::InTheWay | ErrorKind::Different | ErrorKind::Claimed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_file_and_the_remedy() {
        let error = StorageError::new(Op::Write, "a/b", io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(error.kind, ErrorKind::DiskFull);
        let text = error.to_string();
        assert!(text.starts_with("cannot write a/b: the disk is full; free some space"), "{text}");
        assert_eq!(StorageError::new(Op::Read, "a", io::Error::from_raw_os_error(libc::EIO)).kind, ErrorKind::Other);
    }
}
