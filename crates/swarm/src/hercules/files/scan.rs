//! Finds what there is to send: every file, folder and link at and below some paths, with modes, times and holes.
//!
//! Nothing is opened that need not be: a file costs one look. It is opened only where its mode does not say that we may read it, and
//! where it has holes. What is found is kept as the manifest's bytes and a stamp an entry, so a million files take some 100 MB.
//!
//! Links are sent as links where they stay inside of what is sent; special files and links that leave are left out, and named. What
//! should be sent and cannot is an error, all of it together, before anything is.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirEntry, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_content::create::Filter;
use anabranch_content::storage::{data_runs, is_own_record};
use anabranch_hercules::wire::WireError;
use anabranch_hercules::wire::manifest::{
    ENTRIES_MAX, EXTENTS_MAX, Entry, EntryKind, Layout, MANIFEST_LEN_MAX, NAME_LEN_MAX,
};

use super::convert::path;

/// Problems, and things left out, that are told one by one: more than anybody reads.
pub const PROBLEMS_TOLD_MAX: usize = 100;
/// Bytes that `stat` counts as one block.
const STAT_BLOCK_LEN: u64 = 512;

/// Why something cannot be sent.
#[derive(Debug)]
pub enum Problem {
    /// The system's error.
    Unreadable(io::Error),
    /// A path longer than the protocol has.
    TooLong,
    /// Two of the paths to send have the same last component.
    SameName(PathBuf),
    /// A path without a last component, as `/`.
    NoName,
    /// A path that was named, and is neither file nor folder.
    Special(&'static str),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "cannot be read: {error}"),
            Self::TooLong => write!(f, "has a path of more than {NAME_LEN_MAX} bytes"),
            Self::SameName(other) => write!(f, "would arrive under the same name as {}", other.display()),
            Self::NoName => write!(f, "has no name to arrive under"),
            Self::Special(what) => write!(f, "is {what}"),
        }
    }
}

/// Why nothing is sent.
#[derive(Debug)]
pub enum ScanError {
    /// Some of it cannot be: the first [`PROBLEMS_TOLD_MAX`], and how many more there are.
    Problems(Vec<(PathBuf, Problem)>, usize),
    /// More than one transfer holds.
    TooMany(WireError),
    /// The caller did not want it any more.
    Canceled,
}

impl std::error::Error for ScanError {}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Problems(list, more) => {
                let Some((path, problem)) = list.first() else { return Ok(()) };
                write!(f, "{} {problem}; ", path.display())?;
                match list.len() - 1 + more {
                    0 => write!(f, "mend it or leave it out with --exclude"),
                    others => write!(f, "so it is with {others} more; mend them or leave them out with --exclude"),
                }
            }
            Self::Canceled => write!(f, "interrupted"),
            Self::TooMany(error) => write!(f, "one transfer cannot hold it all: {error}; send it in parts"),
        }
    }
}

/// Something that is not sent, and need not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// "a pipe", "a socket" or "a device".
    Special(&'static str),
    /// A link that leads out of what is sent; its text.
    LinkOutside(PathBuf),
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Special(what) => write!(f, "is {what}"),
            Self::LinkOutside(target) => write!(f, "links to {}, outside of what is sent", target.display()),
        }
    }
}

/// How a file looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub len: u64,
    modified: (i64, i64),
    /// Set by the system alone, whatever somebody does to the modification time.
    changed: (i64, i64),
    inode: u64,
}

impl Stamp {
    pub(super) fn of(meta: &Metadata) -> Self {
        let (modified, changed) = ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()));
        Self { len: meta.len(), modified, changed, inode: meta.ino() }
    }
}

/// What there is to send.
#[derive(Debug, Default)]
pub struct Scan {
    /// The encoded manifest.
    pub(super) manifest: Vec<u8>,
    /// Where the entries begin in it.
    pub(super) starts: Vec<u32>,
    /// One an entry; of files alone it says anything.
    pub(super) stamps: Vec<Stamp>,
    pub(super) layout: Layout,
    /// Folders that hold the paths, and which entry is the first of each.
    pub(super) bases: Vec<(u32, PathBuf)>,
    files: u32,
    files_len: u64,
    skipped: Vec<(PathBuf, Skipped)>,
    skipped_count: usize,
    excluded: usize,
    names: Vec<(Vec<u8>, PathBuf)>,
    problems: Vec<(PathBuf, Problem)>,
    problems_more: usize,
}

impl Scan {
    /// Looks through `paths`. A path itself may be a link: whoever names it means what it leads to. `filter` is asked as for a
    /// torrent: with the path below the folder that holds the one to send. `canceled` ends it early.
    pub fn of(paths: &[PathBuf], filter: Option<&Filter>, canceled: &AtomicBool) -> Result<Self, ScanError> {
        let mut scan = Self::default();
        for path in paths {
            scan.top(path, filter, canceled)?;
        }
        if scan.problems.is_empty() { Ok(scan) } else { Err(ScanError::Problems(scan.problems, scan.problems_more)) }
    }

    /// One open file under a name.
    pub(super) fn of_file(name: &OsStr, file: &File) -> Result<Self, ScanError> {
        let mut scan = Self::default();
        let problem = |problem| ScanError::Problems(vec![(name.into(), problem)], 0);
        let meta = file.metadata().map_err(|error| problem(Problem::Unreadable(error)))?;
        if let Some(what) = special(&meta) {
            return Err(problem(Problem::Special(what)));
        }
        let added = scan.file(name.as_bytes(), &meta, || file.try_clone());
        added.map_err(|error| problem(Problem::Unreadable(error)))??;
        Ok(scan)
    }

    /// Files, folders and links.
    pub fn entries(&self) -> u32 {
        self.layout.entry_count()
    }

    /// Files.
    pub fn files(&self) -> u32 {
        self.files
    }

    /// Bytes of the files, holes included.
    pub fn files_len(&self) -> u64 {
        self.files_len
    }

    /// Bytes to be sent: those of the files without holes.
    pub fn content_len(&self) -> u64 {
        self.layout.content_len()
    }

    /// What is left out and why, the first [`PROBLEMS_TOLD_MAX`]; and of how many.
    pub fn skipped(&self) -> (&[(PathBuf, Skipped)], usize) {
        (&self.skipped, self.skipped_count)
    }

    /// Files and folders that the filter left out.
    pub fn excluded(&self) -> usize {
        self.excluded
    }

    fn top(&mut self, path: &Path, filter: Option<&Filter>, canceled: &AtomicBool) -> Result<(), ScanError> {
        let real = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(error) => return self.problem(path, Problem::Unreadable(error)),
        };
        // A link's own name, not that of what it leads to; `.` and `..` are called as what they are.
        let name = path.file_name().or(real.file_name()).map(|name| name.as_bytes().to_vec());
        let Some(name) = name else { return self.problem(path, Problem::NoName) };
        if let Some((_, other)) = self.names.iter().find(|(other, _)| *other == name) {
            return self.problem(path, Problem::SameName(other.clone()));
        }
        self.names.push((name.clone(), path.into()));
        let meta = match fs::metadata(&real) {
            Ok(meta) => meta,
            Err(error) => return self.problem(path, Problem::Unreadable(error)),
        };
        self.bases.push((self.entries(), real.clone()));
        if meta.is_dir() {
            return Walk { scan: self, top: &real, filter, euid: effective_user(), canceled }.folders(name, &meta);
        }
        match special(&meta) {
            Some(what) => self.problem(path, Problem::Special(what)),
            None => match self.file(&name, &meta, || File::open(&real)) {
                Ok(added) if !is_readable(&meta, effective_user()) => match File::open(&real) {
                    Ok(_) => added,
                    Err(error) => self.problem(path, Problem::Unreadable(error)),
                },
                Ok(added) => added,
                Err(error) => self.problem(path, Problem::Unreadable(error)),
            },
        }
    }

    /// Adds a file; `open` is asked for it where it has holes. The outer error is the file's.
    fn file(
        &mut self,
        name: &[u8],
        meta: &Metadata,
        open: impl Fn() -> io::Result<File>,
    ) -> io::Result<Result<(), ScanError>> {
        let len = meta.len();
        let extents = match meta.blocks().saturating_mul(STAT_BLOCK_LEN) {
            _ if len == 0 => Vec::new(),
            allocated if allocated >= len => vec![0..len],
            _ => data_runs(&open()?, len, EXTENTS_MAX)?,
        };
        self.files += 1;
        self.files_len = self.files_len.saturating_add(len);
        Ok(self.push(name, meta, EntryKind::File { len, extents }))
    }

    fn push(&mut self, name: &[u8], meta: &Metadata, kind: EntryKind) -> Result<(), ScanError> {
        let mode = (meta.permissions().mode() & 0o7777) as u16;
        let modified = (meta.mtime(), u32::try_from(meta.mtime_nsec()).unwrap_or(0));
        let entry = Entry { name: name.to_vec(), mode, modified, kind };
        if let Err(WireError::TooMany("bytes of a name")) = entry.check() {
            return self.problem(path(name), Problem::TooLong);
        }
        self.layout.push(&entry).map_err(ScanError::TooMany)?;
        self.starts.push(self.manifest.len() as u32);
        entry.write(&mut self.manifest).map_err(ScanError::TooMany)?;
        self.stamps.push(Stamp::of(meta));
        if self.manifest.len() as u64 > MANIFEST_LEN_MAX {
            return Err(ScanError::TooMany(WireError::TooMany("bytes of names")));
        }
        Ok(())
    }

    /// Goes on with the others: nobody wants to hear of one obstacle a run.
    #[expect(clippy::unnecessary_wraps, reason = "the answer of whoever meets a problem")]
    fn problem(&mut self, path: &Path, problem: Problem) -> Result<(), ScanError> {
        if self.problems.len() < PROBLEMS_TOLD_MAX {
            self.problems.push((path.into(), problem));
        } else {
            self.problems_more += 1;
        }
        Ok(())
    }

    fn skip(&mut self, path: PathBuf, why: Skipped) {
        self.skipped_count += 1;
        if self.skipped.len() < PROBLEMS_TOLD_MAX {
            self.skipped.push((path, why));
        }
    }
}

struct Walk<'a> {
    scan: &'a mut Scan,
    top: &'a Path,
    filter: Option<&'a Filter>,
    euid: u32,
    canceled: &'a AtomicBool,
}

impl Walk<'_> {
    /// A folder, what is in it, then the folders in it: so no more than one is open.
    fn folders(&mut self, name: Vec<u8>, meta: &Metadata) -> Result<(), ScanError> {
        self.scan.push(&name, meta, EntryKind::Folder)?;
        let mut waiting = vec![(name, self.top.to_path_buf(), None::<Metadata>)];
        while let Some((name, folder, meta)) = waiting.pop() {
            if self.canceled.load(Ordering::Relaxed) {
                return Err(ScanError::Canceled);
            }
            if let Some(meta) = meta {
                self.scan.push(&name, &meta, EntryKind::Folder)?;
            }
            let items = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let mut items = match items {
                Ok(items) => items,
                Err(error) => {
                    self.scan.problem(&folder, Problem::Unreadable(error))?;
                    continue;
                }
            };
            if items.len() > ENTRIES_MAX as usize {
                return Err(ScanError::TooMany(WireError::TooMany("files")));
            }
            items.sort_by_cached_key(DirEntry::file_name);
            let mut inner = Vec::new();
            for item in &items {
                self.item(item, &name, &folder, &mut inner)?;
            }
            waiting.extend(inner.into_iter().rev());
        }
        Ok(())
    }

    fn item(
        &mut self,
        item: &DirEntry,
        above: &[u8],
        folder: &Path,
        inner: &mut Vec<(Vec<u8>, PathBuf, Option<Metadata>)>,
    ) -> Result<(), ScanError> {
        let file_name = item.file_name();
        if is_own_record(Path::new(&file_name)) {
            return Ok(());
        }
        let on_disk = || folder.join(&file_name);
        let meta = match item.metadata() {
            Ok(meta) => meta,
            Err(error) => return self.scan.problem(&on_disk(), Problem::Unreadable(error)),
        };
        let name = [above, b"/", file_name.as_bytes()].concat();
        if self.filter.is_some_and(|filter| filter.leaves_out(path(&name), meta.is_dir())) {
            self.scan.excluded += 1;
            return Ok(());
        }
        if meta.is_dir() {
            if name.len() > NAME_LEN_MAX {
                return self.scan.problem(&on_disk(), Problem::TooLong);
            }
            inner.push((name, on_disk(), Some(meta)));
            return Ok(());
        }
        if meta.is_symlink() {
            return match link_target(&on_disk(), self.top) {
                Ok(Some(target)) => self.scan.push(&name, &meta, EntryKind::Link(target)),
                Ok(None) => {
                    let text = fs::read_link(on_disk()).unwrap_or_default();
                    self.scan.skip(on_disk(), Skipped::LinkOutside(text));
                    Ok(())
                }
                Err(error) => self.scan.problem(&on_disk(), Problem::Unreadable(error)),
            };
        }
        if let Some(what) = special(&meta) {
            self.scan.skip(on_disk(), Skipped::Special(what));
            return Ok(());
        }
        if !is_readable(&meta, self.euid)
            && let Err(error) = File::open(on_disk())
        {
            return self.scan.problem(&on_disk(), Problem::Unreadable(error));
        }
        match self.scan.file(&name, &meta, || File::open(on_disk())) {
            Ok(added) => added,
            Err(error) => self.scan.problem(&on_disk(), Problem::Unreadable(error)),
        }
    }
}

/// The text of a link as it is sent: from its folder some `..` up, then down, and never above `top`. `None` where it leads out.
fn link_target(link: &Path, top: &Path) -> io::Result<Option<Vec<u8>>> {
    let text = fs::read_link(link)?;
    let folder = link.parent().unwrap_or(top);
    let depth = folder.strip_prefix(top).map_or(0, |below| below.components().count());
    if stays_inside(text.as_os_str().as_bytes(), depth) {
        return Ok(Some(text.into_os_string().into_encoded_bytes()));
    }
    // The same place by a text that cannot lead elsewhere, if there is one.
    let full = folder.join(&text);
    let mut plain = PathBuf::new();
    for component in full.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => _ = plain.pop(),
            other => plain.push(other),
        }
    }
    let same = match (full.canonicalize(), plain.canonicalize()) {
        (Ok(one), Ok(other)) => one == other && other.starts_with(top),
        // It leads to nothing.
        (Err(_), Err(_)) => true,
        _ => false,
    };
    let Ok(below) = plain.strip_prefix(top).ok().filter(|_| same).ok_or(()) else { return Ok(None) };
    let here: Vec<&OsStr> = folder.strip_prefix(top).map(|here| here.iter().collect()).unwrap_or_default();
    let there: Vec<&OsStr> = below.iter().collect();
    let shared = here.iter().zip(&there).take_while(|(one, other)| one == other).count();
    let up = std::iter::repeat_n(OsStr::new(".."), here.len() - shared);
    let way: PathBuf = up.chain(there[shared..].iter().copied()).collect();
    let way = if way.as_os_str().is_empty() { b".".to_vec() } else { way.into_os_string().into_encoded_bytes() };
    Ok(Some(way))
}

/// Whether a link with this text, `depth` folders below the top, leads nowhere above the top: `..` only at its start, where
/// it means the folders that were sent and nothing that another link could change.
pub(super) fn stays_inside(text: &[u8], depth: usize) -> bool {
    if text.starts_with(b"/") {
        return false;
    }
    let mut names = text.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").peekable();
    let mut up = 0;
    while names.next_if(|name| *name == b"..").is_some() {
        up += 1;
    }
    up <= depth && names.all(|name| name != b"..")
}

fn special(meta: &Metadata) -> Option<&'static str> {
    let kind = meta.file_type();
    match () {
        () if meta.is_file() => None,
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}

/// Whether the mode says that we may read it. Where it does not, other rules may; whoever opens it knows.
fn is_readable(meta: &Metadata, euid: u32) -> bool {
    let mode = meta.permissions().mode();
    euid == 0 || if meta.uid() == euid { mode & 0o400 != 0 } else { mode & 0o044 == 0o044 }
}

/// The owner of our own entry in `/proc`; nobody where there is none, and then every file is opened.
fn effective_user() -> u32 {
    fs::metadata("/proc/self").map_or(u32::MAX, |meta| meta.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_inside_or_are_left_out() {
        for (text, depth, inside) in [
            ("a", 0, true),
            ("../a", 0, false),
            ("../a", 1, true),
            ("../../a/b", 1, false),
            ("./../a/./b", 1, true),
            ("a/../b", 5, false),
            ("/a", 5, false),
            ("..", 1, true),
            (".", 0, true),
            ("..a/b", 0, true),
        ] {
            assert_eq!(stays_inside(text.as_bytes(), depth), inside, "{text} {depth}");
        }
    }
}
