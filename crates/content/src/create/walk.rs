//! Finds what a torrent is to hold: every file below a path, in the order of BEP 52's file tree.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use super::CreateError;
use crate::bencode;
use crate::metainfo::limits::FILES_MAX;

/// Files, links and folders of one torrent: what readers take; and a wrong PATH should not walk a whole system.
pub(super) const ENTRIES_MAX: usize = FILES_MAX;
/// Components of a path: each is a dictionary in the v2 file tree, with four around it (torrent, info, tree, file).
pub(super) const DEPTH_MAX: usize = bencode::DEPTH_MAX - 4;

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

/// The entries at or below `path`, sorted; and whether it is a folder.
pub(super) fn walk(path: &Path, entries_max: usize) -> Result<(Vec<Entry>, bool), CreateError> {
    // The path itself may be a link: whoever named it means what it leads to.
    let root = fs::canonicalize(path).map_err(|error| unreadable(path, error))?;
    let metadata = fs::metadata(&root).map_err(|error| unreadable(path, error))?;
    if !metadata.is_dir() {
        let name = root.file_name().unwrap_or_default();
        let name = checked_name(name, &root)?;
        return Ok((vec![file(vec![name], root, &metadata)?], false));
    }
    let mut entries = Vec::new();
    let mut folders = vec![(Vec::new(), root.clone())];
    let mut seen = 0;
    while let Some((above, folder)) = folders.pop() {
        if above.len() >= DEPTH_MAX {
            return Err(CreateError::TooDeep { path: folder });
        }
        for item in fs::read_dir(&folder).map_err(|error| unreadable(&folder, error))? {
            let item = item.map_err(|error| unreadable(&folder, error))?;
            seen += 1;
            if seen > entries_max {
                return Err(CreateError::TooManyFiles { path: root, max: entries_max });
            }
            let path = item.path();
            let mut components: Vec<String> = above.clone();
            components.push(checked_name(&item.file_name(), &path)?);
            let metadata = item.metadata().map_err(|error| unreadable(&path, error))?;
            if metadata.is_dir() {
                folders.push((components, path));
                continue;
            }
            entries.push(if metadata.is_symlink() {
                link(components, path, &root)?
            } else {
                file(components, path, &metadata)?
            });
        }
    }
    // BEP 52: files occur "in the same order as in the file tree", whose keys are sorted as raw bytes, level by level.
    entries.sort_by(|a, b| a.components.cmp(&b.components));
    Ok((entries, true))
}

fn file(components: Vec<String>, path: PathBuf, metadata: &Metadata) -> Result<Entry, CreateError> {
    if !metadata.is_file() {
        let kind = metadata.file_type();
        let what = if kind.is_fifo() {
            "a pipe"
        } else if kind.is_socket() {
            "a socket"
        } else {
            "a device"
        };
        return Err(CreateError::Special { path, what });
    }
    let executable = metadata.permissions().mode() & 0o100 != 0;
    Ok(Entry { components, path, kind: EntryKind::File { stamp: Stamp::of(metadata), executable } })
}

/// A symbolic link that stays inside `root`; `path` is below `root` without any links in between.
fn link(components: Vec<String>, path: PathBuf, root: &Path) -> Result<Entry, CreateError> {
    let text = fs::read_link(&path).map_err(|error| unreadable(&path, error))?;
    let refuse = |path: PathBuf| CreateError::LinkOutside { path, target: text.clone() };
    let full = path.parent().unwrap_or(root).join(&text);
    let Ok(real) = full.canonicalize() else { return Err(CreateError::LinkDangling { path, target: text }) };
    // BEP 47: the target is relative to the torrent's root and "must not contain `..`".
    let mut target: Vec<String> = Vec::new();
    let Ok(below) = normal(&full).strip_prefix(root).map(Path::to_path_buf) else { return Err(refuse(path)) };
    if !real.starts_with(root) || below.as_os_str().is_empty() {
        return Err(refuse(path));
    }
    for component in &below {
        target.push(checked_name(component, &path)?);
    }
    Ok(Entry { components, path, kind: EntryKind::Symlink { target } })
}

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

fn checked_name(name: &std::ffi::OsStr, path: &Path) -> Result<String, CreateError> {
    let name = name.to_str().ok_or_else(|| CreateError::NameNotUtf8 { path: path.into() })?;
    if name.is_empty() || name.contains('\\') {
        return Err(CreateError::NameUnsafe { path: path.into() });
    }
    Ok(name.into())
}

fn unreadable(path: &Path, source: io::Error) -> CreateError {
    CreateError::Unreadable { path: path.into(), source }
}
