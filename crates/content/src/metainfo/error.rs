//! Why a torrent is refused.

use crate::bencode;

/// Why a torrent is refused. The torrent is to blame: another copy of it, or its maker, can help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetainfoError {
    /// Not bencode, or too large, deep or rich in values.
    #[error(transparent)]
    Bencode(#[from] bencode::Error),
    /// Bencode that two readers may read differently.
    #[error("the torrent is ambiguous: {0}")]
    NotCanonical(bencode::Finding),
    /// A key that must be there.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A key with a value of the wrong type or shape.
    #[error("`{0}` is not {1}")]
    Invalid(&'static str, &'static str),
    /// A `meta version` of the future.
    #[error("`meta version` {0} is newer than this program")]
    UnknownVersion(i64),
    /// No file, or only empty ones.
    #[error("the torrent has no content")]
    Empty,
    /// A number outside its limits.
    #[error("`{key}` is {value}, which is outside {min} to {max}{}", At(.path))]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The file it is about; empty for the whole torrent.
        path: String,
        /// Its value.
        value: i128,
        /// The least allowed.
        min: u64,
        /// The greatest allowed.
        max: u64,
    },
    /// More of something than the limit.
    #[error("too many {what}: at most {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        max: u64,
    },
    /// A number of SHA-1 hashes that does not fit the content.
    #[error("`pieces` has {found} bytes, but {expected} belong to a content of this size")]
    WrongPieceCount {
        /// Bytes in `pieces`.
        found: usize,
        /// 20 a piece.
        expected: u64,
    },
    /// An entry of the file list that cannot be read.
    #[error("`{key}` of file {index} is {problem}")]
    File {
        /// Its index in the file list.
        index: usize,
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A file without a length.
    #[error("`length` of `{path}` is missing, or not an integer")]
    NoLength {
        /// The file.
        path: String,
    },
    /// An entry of the v2 file tree that cannot be read.
    #[error("`file tree` has an entry {problem}{}", At(.path))]
    FileTree {
        /// Where in the tree.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A path too long for file systems.
    #[error("a path of {bytes} bytes, at most {max} are allowed: `{path}...`", max = super::limits::PATH_BYTES_MAX)]
    PathTooLong {
        /// The front of the path.
        path: String,
        /// Its length.
        bytes: usize,
    },
    /// A link whose target cannot be read.
    #[error("`symlink path` of `{path}` {problem}")]
    SymlinkTarget {
        /// The link.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A link out of the torrent's folder.
    #[error("the symbolic link `{path}` leaves the torrent's folder")]
    SymlinkLeaves {
        /// The link.
        path: String,
    },
    /// A link that leads to itself.
    #[error("the symbolic link `{path}` leads to itself")]
    SymlinkLoop {
        /// The link.
        path: String,
    },
    /// A hybrid torrent whose halves disagree.
    #[error("the v1 and the v2 file list differ: {0}")]
    Inconsistent(String),
    /// A piece layer that does not belong to its file, or to any.
    #[error("the piece layer of {root} {problem}")]
    PieceLayer {
        /// The pieces root, in hex.
        root: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Appends " at `path`" where there is one.
struct At<'a>(&'a String);

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " at `{}`", self.0) }
    }
}
