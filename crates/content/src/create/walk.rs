//! Finds what a torrent is to hold: every file below a path, in the order of BEP 52's file tree.
//!
//! Nobody wants to hear of one obstacle a run, so all that a torrent cannot carry is gathered and reported together.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use super::rejections::{Rejection, Rejections};
use super::{CreateError, CreateOptions};
use crate::bencode;
use crate::info::Version;
use crate::metainfo::BITCOMET_PAD;
use crate::metainfo::limits::{FILE_LENGTH_MAX, FILES_MAX, PATH_BYTES_MAX};
use crate::storage::is_hidden_name;

/// Files, links and folders of one torrent: what readers take; and a wrong PATH should not walk a whole system.
pub(super) const ENTRIES_MAX: usize = FILES_MAX;
/// Components of a path: each is a dictionary in the v2 file tree, with four around it (torrent, info, tree, file).
pub(super) const DEPTH_MAX: usize = bencode::DEPTH_MAX - 4;

/// What is at or below a path.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// What the torrent names, sorted.
    pub entries: Vec<Entry>,
    /// Whether the path is a folder.
    pub multi_file: bool,
    /// Folders without anything in them, which no torrent can carry.
    pub empty_folders: Vec<PathBuf>,
    /// Files and folders that the user left out.
    pub excluded: usize,
    /// Records of this program's own, which mean nothing elsewhere.
    pub own_records: usize,
}

/// A file or link that the torrent names.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Below the torrent's root; the name alone for a single file.
    pub components: Vec<String>,
    pub path: PathBuf,
    pub kind: EntryKind,
}

#[derive(Clone, Debug)]
pub(super) enum EntryKind {
    File {
        stamp: Stamp,
        executable: bool,
    },
    /// BEP 47 `l`: the target's components below the torrent's root.
    Symlink {
        target: Vec<String>,
    },
}

/// What changes when somebody writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub length: u64,
    modified: (i64, i64),
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { length: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
    }

    /// Seconds since 1970.
    pub(super) fn modified_seconds(&self) -> i64 {
        self.modified.0
    }
}

impl Entry {
    /// Bytes of content.
    pub(super) fn length(&self) -> u64 {
        match &self.kind {
            EntryKind::File { stamp, .. } => stamp.length,
            EntryKind::Symlink { .. } => 0,
        }
    }
}

/// What is at or below `path`.
pub(super) fn walk(path: &Path, options: &CreateOptions, entries_max: usize) -> Result<Found, CreateError> {
    // The path itself may be a link: whoever named it means what it leads to.
    let unreadable = |source| CreateError::Unreadable { path: path.into(), source };
    let root = fs::canonicalize(path).map_err(unreadable)?;
    let metadata = fs::metadata(&root).map_err(unreadable)?;
    let mut walk = Walk { root: &root, options, found: Found::default(), rejections: Rejections::of(path) };
    if metadata.is_dir() {
        walk.found.multi_file = true;
        walk.folders(entries_max)?;
    } else if let Some(kind) = walk.file(&root, &metadata) {
        // Its name is the torrent's, which is chosen later.
        walk.found.entries.push(Entry { components: Vec::new(), path: root.clone(), kind });
    }
    let Walk { mut found, rejections, .. } = walk;
    if !rejections.is_empty() {
        return Err(CreateError::Rejected(Box::new(rejections)));
    }
    // BEP 52: files occur "in the same order as in the file tree", whose keys are sorted as raw bytes, level by level.
    found.entries.sort_by(|a, b| a.components.cmp(&b.components));
    found.empty_folders.sort();
    Ok(found)
}

struct Walk<'a> {
    root: &'a Path,
    options: &'a CreateOptions,
    found: Found,
    rejections: Rejections,
}

impl Walk<'_> {
    fn folders(&mut self, entries_max: usize) -> Result<(), CreateError> {
        let mut folders = vec![(Vec::new(), self.root.to_path_buf())];
        let mut seen = 0;
        while let Some((above, folder)) = folders.pop() {
            let items = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let items = match items {
                Ok(items) => items,
                Err(error) => {
                    self.rejections.add(&folder, Rejection::Unreadable(error));
                    continue;
                }
            };
            if items.is_empty() && !above.is_empty() {
                self.found.empty_folders.push(folder);
                continue;
            }
            seen += items.len();
            if seen > entries_max {
                return Err(CreateError::TooManyFiles { path: self.root.into(), max: entries_max });
            }
            for item in items {
                let path = item.path();
                if is_hidden_name(Path::new(&item.file_name())) {
                    self.found.own_records += 1;
                    continue;
                }
                let is_folder = match item.file_type() {
                    Ok(kind) => kind.is_dir(),
                    Err(error) => {
                        self.rejections.add(&path, Rejection::Unreadable(error));
                        continue;
                    }
                };
                if self.options.filter.as_ref().is_some_and(|filter| filter.leaves_out(self.below(&path), is_folder)) {
                    self.found.excluded += 1;
                    continue;
                }
                if let Some(components) = self.named(&above, &item.file_name(), &path) {
                    if is_folder {
                        folders.push((components, path));
                    } else {
                        self.item(components, path);
                    }
                }
            }
        }
        Ok(())
    }

    /// The path as it is called below the folder that holds the root.
    fn below<'p>(&self, path: &'p Path) -> &'p Path {
        let above = self.root.parent().unwrap_or(self.root);
        path.strip_prefix(above).unwrap_or(path)
    }

    fn item(&mut self, components: Vec<String>, path: PathBuf) {
        let kind = match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => self.link(&path),
            Ok(metadata) => self.file(&path, &metadata),
            Err(error) => {
                self.rejections.add(&path, Rejection::Unreadable(error));
                None
            }
        };
        self.found.entries.extend(kind.map(|kind| Entry { components, path, kind }));
    }

    /// The components of something in a folder, where they can be written and read.
    fn named(&mut self, above: &[String], name: &OsStr, path: &Path) -> Option<Vec<String>> {
        let Some(name) = name.to_str() else {
            self.rejections.add(path, Rejection::NameNotUtf8);
            return None;
        };
        let mut components = above.to_vec();
        components.push(name.to_owned());
        let bytes: usize = components.iter().map(|name| name.len() + 1).sum();
        // BitComet's padding has no other mark, so readers of v1 take any file of that name for zeros.
        if name.contains(BITCOMET_PAD) && self.options.version != Version::V2 {
            self.rejections.add(path, Rejection::PadName);
            return None;
        }
        // The torrent's name comes before it.
        if components.len() > DEPTH_MAX || bytes + NAME_ROOM > PATH_BYTES_MAX {
            self.rejections.add(path, Rejection::TooDeep);
            return None;
        }
        Some(components)
    }

    fn file(&mut self, path: &Path, metadata: &Metadata) -> Option<EntryKind> {
        let kind = metadata.file_type();
        let special = [(kind.is_fifo(), "a pipe"), (kind.is_socket(), "a socket"), (!metadata.is_file(), "a device")];
        if let Some((_, what)) = special.iter().find(|(is, _)| *is) {
            self.rejections.add(path, Rejection::Special(what));
        } else if metadata.len() > FILE_LENGTH_MAX {
            self.rejections.add(path, Rejection::TooLong(metadata.len()));
        } else if let Err(error) = File::open(path) {
            // Asked now: hashing what comes before may take an hour.
            self.rejections.add(path, Rejection::Unreadable(error));
        } else {
            let executable = metadata.permissions().mode() & 0o100 != 0;
            return Some(EntryKind::File { stamp: Stamp::of(metadata), executable });
        }
        None
    }

    /// A symbolic link that stays inside the root; `path` is below it without any links in between.
    fn link(&mut self, path: &Path) -> Option<EntryKind> {
        match self.link_target(path) {
            Ok(target) => Some(EntryKind::Symlink { target }),
            Err(rejection) => {
                self.rejections.add(path, rejection);
                None
            }
        }
    }

    /// BEP 47: the target is relative to the torrent's root and "must not contain `..`".
    fn link_target(&self, path: &Path) -> Result<Vec<String>, Rejection> {
        let text = fs::read_link(path).map_err(Rejection::Unreadable)?;
        let outside = || Rejection::LinkOutside(text.clone());
        let full = path.parent().unwrap_or(self.root).join(&text);
        let by_text = normal(&full);
        let target = match full.canonicalize() {
            // By its text where that leads there too, so that links through links stay what they are.
            Ok(real) if by_text.starts_with(self.root) && by_text.canonicalize().is_ok_and(|other| other == real) => {
                if real.starts_with(self.root) {
                    by_text
                } else {
                    return Err(outside());
                }
            }
            Ok(real) => real,
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(Rejection::LinkLoop(text)),
            // It leads to nothing, here and elsewhere.
            Err(_) => by_text,
        };
        let below = target.strip_prefix(self.root).map_err(|_| outside())?;
        if below.as_os_str().is_empty() {
            return Err(Rejection::LinkToRoot(text));
        }
        below.iter().map(|name| name.to_str().map(str::to_owned).ok_or(Rejection::NameNotUtf8)).collect()
    }
}

/// Bytes kept for the torrent's name and a number behind a file's.
const NAME_ROOM: usize = 272;

/// `path` without `.` and `..`, by its text alone.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}
