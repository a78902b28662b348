//! An entry of the file list while it is put together: shared by both file-list formats.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::MetainfoError;
use super::limits::{FILE_LENGTH_MAX, FILES_MAX, PATH_BYTES_MAX, PATH_DEPTH_MAX, PATHS_BYTES_MAX, TOTAL_LENGTH_MAX};
use super::names::NameRules;
use crate::bencode::Value;
use crate::info::Sha256Digest;

/// An entry whose path is safe, but not yet unique, and whose link is not yet proven.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// Safe components, with `/` between them.
    pub path: String,
    pub length: u64,
    pub offset: u64,
    pub kind: DraftKind,
    pub executable: bool,
    pub hidden: bool,
    pub mtime: Option<SystemTime>,
    pub root: Option<Sha256Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DraftKind {
    Regular,
    Pad,
    /// Components of the target, safe but for `..`, with `/` between them.
    Symlink(String),
}

impl Draft {
    pub(super) fn pad(path: String, length: u64) -> Self {
        let kind = DraftKind::Pad;
        Self { path, length, offset: 0, kind, executable: false, hidden: false, mtime: None, root: None }
    }

    pub(super) fn is_pad(&self) -> bool {
        self.kind == DraftKind::Pad
    }
}

/// A file list under construction: hands out offsets, and keeps the sums within their limits.
#[derive(Clone, Debug, Default)]
pub(super) struct DraftList {
    pub files: Vec<Draft>,
    pub total: u64,
    path_bytes: usize,
}

impl DraftList {
    pub(super) fn push(&mut self, mut draft: Draft) -> Result<(), MetainfoError> {
        if self.files.len() >= FILES_MAX {
            return Err(MetainfoError::TooMany { what: "files", max: FILES_MAX as u64 });
        }
        if draft.path.len() > PATH_BYTES_MAX {
            let path = draft.path[..draft.path.floor_char_boundary(60)].to_owned();
            return Err(MetainfoError::PathTooLong { path, bytes: draft.path.len() });
        }
        self.path_bytes += draft.path.len();
        if self.path_bytes > PATHS_BYTES_MAX {
            return Err(MetainfoError::TooMany { what: "bytes in paths", max: PATHS_BYTES_MAX as u64 });
        }
        draft.offset = self.total;
        self.total += draft.length; // no overflow: both are under 2^48
        if self.total > TOTAL_LENGTH_MAX {
            let value = i128::from(self.total);
            return Err(MetainfoError::OutOfRange {
                key: "length of all files",
                path: draft.path,
                value,
                min: 1,
                max: TOTAL_LENGTH_MAX,
            });
        }
        self.files.push(draft);
        Ok(())
    }

    /// Takes off the padding after the last file with content, if any.
    pub(super) fn remove_tail_pad(&mut self) {
        let Some(at) = self.files.iter().rposition(|file| file.length > 0) else { return };
        if self.files[at].is_pad() {
            let pad = self.files.remove(at);
            self.total -= pad.length;
            self.files[at..].iter_mut().for_each(|file| file.offset = pad.offset);
        }
    }
}

/// The keys that files of both formats have in common (BEP 47, "attr").
pub(super) struct Attributes {
    pub executable: bool,
    pub hidden: bool,
    pub pad: bool,
    pub mtime: Option<SystemTime>,
    /// Whether it says to be a link; then its length is 0, whatever is written.
    pub is_link: bool,
    /// Where the link points; a link without target is an empty file, as in libtorrent.
    pub link: Option<String>,
}

impl Attributes {
    /// `path` is for errors.
    pub(super) fn of(file: Value<'_>, path: &str, rules: &NameRules) -> Result<Self, MetainfoError> {
        let attr = file.get("attr").and_then(|attr| attr.as_bytes()).unwrap_or_default();
        let has = |flag| attr.contains(&flag);
        let is_link = has(b'l');
        let link = if is_link { link_target(file, path, rules)? } else { None };
        let mtime = file.get("mtime").and_then(|mtime| mtime.as_uint()).filter(|&seconds| seconds > 0);
        let mtime = mtime.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        Ok(Self { executable: has(b'x'), hidden: has(b'h'), pad: has(b'p'), mtime, is_link, link })
    }

    /// `length` of `file`, 0 for links.
    pub(super) fn length(&self, file: Value<'_>, path: &str) -> Result<u64, MetainfoError> {
        if self.is_link {
            return Ok(0);
        }
        let value = file.get("length").and_then(|length| length.as_int());
        let value = value.ok_or_else(|| MetainfoError::NoLength { path: path.to_owned() })?;
        u64::try_from(value).ok().filter(|&length| length <= FILE_LENGTH_MAX).ok_or_else(|| MetainfoError::OutOfRange {
            key: "length",
            path: path.to_owned(),
            value: value.into(),
            min: 0,
            max: FILE_LENGTH_MAX,
        })
    }

    pub(super) fn into_draft(self, path: String, length: u64, root: Option<Sha256Digest>) -> Draft {
        // A pad may have no path, or one outside of the folder: it is never made, whatever else it says to be.
        let kind = match self.link {
            _ if self.pad => DraftKind::Pad,
            Some(target) => DraftKind::Symlink(target),
            None => DraftKind::Regular,
        };
        let Self { executable, hidden, mtime, .. } = self;
        Draft { path, length, offset: 0, kind, executable, hidden, mtime, root }
    }
}

/// BEP 47, "symlink path". `..` stays, to be judged when the whole file list is known.
fn link_target(file: Value<'_>, path: &str, rules: &NameRules) -> Result<Option<String>, MetainfoError> {
    let Some(components) = file.get("symlink path").and_then(|target| target.as_list()) else { return Ok(None) };
    let error = |problem| MetainfoError::SymlinkTarget { path: path.to_owned(), problem };
    let mut target = String::new();
    for (depth, component) in components.enumerate() {
        let raw = component.as_bytes().ok_or_else(|| error("is not a list of strings"))?;
        if depth >= PATH_DEPTH_MAX || target.len() > PATH_BYTES_MAX {
            return Err(error("is too long"));
        }
        match raw {
            b"." => {}
            b".." => append(&mut target, ".."),
            raw => append(&mut target, &rules.sanitize_or_underscore(raw)),
        }
    }
    Ok(Some(target).filter(|target| !target.is_empty()))
}

/// Appends a component to a path.
pub(super) fn append(path: &mut String, component: &str) {
    if !path.is_empty() {
        path.push('/');
    }
    path.push_str(component);
}
