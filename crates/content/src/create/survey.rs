//! What goes into a torrent and what does not, before anything is hashed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::walk::{Entry, EntryKind};

/// What goes into a torrent, and what does not.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The torrent's name.
    pub name: String,
    /// Bytes of the files together.
    pub length: u64,
    /// Bytes in a piece.
    pub piece_length: u32,
    /// Number of pieces.
    pub piece_count: u32,
    /// Files and links, in the order of the torrent.
    pub entries: Vec<SurveyEntry>,
    /// Folders without anything in them, below [`Survey::dir`]: no torrent can carry these.
    pub empty_folders: Vec<PathBuf>,
    /// Files and folders that the filter left out.
    pub excluded: usize,
    /// Records of this program's own downloads, which are left out.
    pub own_records: usize,
    /// Whether a folder became the one file in it, since v2 cannot tell the two apart.
    pub lone_file: bool,
    /// The folder above the content.
    pub dir: PathBuf,
}

/// A file or link that goes into a torrent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyEntry {
    /// With the torrent's name, and `/` between folders.
    pub path: String,
    /// Bytes; 0 for links.
    pub length: u64,
    /// Whether its owner may execute it (BEP 47, `x`).
    pub executable: bool,
    /// Where a link leads to, from the torrent's folder.
    pub target: Option<String>,
}

impl SurveyEntry {
    pub(super) fn of(entry: &Entry, root: Option<&str>) -> Self {
        let names: Vec<&str> = root.into_iter().chain(entry.components.iter().map(String::as_str)).collect();
        let (executable, target) = match &entry.kind {
            EntryKind::File { executable, .. } => (*executable, None),
            EntryKind::Symlink { target } => (false, Some(target.join("/"))),
        };
        Self { path: names.join("/"), length: entry.length(), executable, target }
    }
}

/// Says what of a folder is left out.
#[derive(Clone)]
pub struct Filter(Arc<LeavesOut>);

/// Asked with a path and whether it is a folder.
type LeavesOut = dyn Fn(&Path, bool) -> bool + Send + Sync;

impl Filter {
    /// `leaves_out` is asked with the path below the folder that holds the shared one, and whether it is a folder; one that is left
    /// out is not looked into.
    pub fn new(leaves_out: impl Fn(&Path, bool) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(leaves_out))
    }

    /// Whether it is left out.
    pub fn leaves_out(&self, path: &Path, is_folder: bool) -> bool {
        (self.0)(path, is_folder)
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Filter")
    }
}
