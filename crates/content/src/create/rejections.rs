//! What a torrent cannot carry of a folder, all of it together.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::metainfo::limits::{FILE_LENGTH_MAX, PATH_BYTES_MAX};

/// Rejections that are told one by one: more than anybody reads, and a wrong PATH may have a million.
pub const REJECTIONS_TOLD_MAX: usize = 100;

/// Why a torrent cannot carry something.
#[derive(Debug)]
pub enum Rejection {
    /// It cannot be opened.
    Unreadable(io::Error),
    /// Neither file, folder nor link: "a pipe", "a socket" or "a device".
    Special(&'static str),
    /// Torrents hold UTF-8 only.
    NameNotUtf8,
    /// Readers of v1 torrents take it for padding.
    PadName,
    /// A symbolic link that leaves the folder; its text.
    LinkOutside(PathBuf),
    /// A symbolic link that leads to itself; its text.
    LinkLoop(PathBuf),
    /// A symbolic link to the shared folder itself, which BEP 47 cannot say; its text.
    LinkToRoot(PathBuf),
    /// Longer than a Merkle tree may be; its bytes.
    TooLong(u64),
    /// Nested deeper, or with a longer path, than readers follow.
    TooDeep,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "cannot be read: {error}"),
            Self::Special(what) => write!(f, "is {what}"),
            Self::NameNotUtf8 => write!(f, "has a name, or a link's target, that is not UTF-8"),
            Self::PadName => write!(f, "has a name that clients take for padding (`--version 2` can carry it)"),
            Self::LinkOutside(target) => write!(f, "links to {}, outside of the folder", target.display()),
            Self::LinkLoop(target) => write!(f, "links to {}, and so to itself", target.display()),
            Self::LinkToRoot(target) => write!(f, "links to {}, the shared folder itself", target.display()),
            Self::TooLong(length) => write!(f, "has {length} bytes, at most {FILE_LENGTH_MAX} are possible"),
            Self::TooDeep => write!(
                f,
                "lies too deep: at most {} names and {PATH_BYTES_MAX} bytes are possible in a path",
                super::walk::DEPTH_MAX
            ),
        }
    }
}

/// Everything in a folder that a torrent cannot carry.
#[derive(Debug)]
pub struct Rejections {
    /// What was to be shared.
    pub path: PathBuf,
    /// The first [`REJECTIONS_TOLD_MAX`], by path.
    pub list: Vec<(PathBuf, Rejection)>,
    /// How many more there are.
    pub more: usize,
}

impl Rejections {
    pub(super) fn of(path: &Path) -> Self {
        Self { path: path.into(), list: Vec::new(), more: 0 }
    }

    pub(super) fn add(&mut self, path: &Path, rejection: Rejection) {
        if self.list.len() < REJECTIONS_TOLD_MAX {
            let at = self.list.partition_point(|(other, _)| other.as_path() < path);
            self.list.insert(at, (path.into(), rejection));
        } else {
            self.more += 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// One line: the rejection where there is one, and how many there are where there are more.
impl fmt::Display for Rejections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.list[..] {
            [(path, rejection)] if self.more == 0 => write!(
                f,
                "{} {rejection}, and no torrent can carry that; mend it or leave it out with --exclude",
                path.display()
            ),
            list => write!(
                f,
                "{} things in {} are such that no torrent can carry them; mend them or leave them out with --exclude",
                list.len() + self.more,
                self.path.display()
            ),
        }
    }
}
