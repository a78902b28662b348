//! What is wrong with what somebody wants to share.

use std::io;
use std::path::PathBuf;

use anabranch_content::create::CreateError;
use anabranch_ppspp::manifest::ManifestError;
use anabranch_ppspp::wire::Mismatch;

/// Why something cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// It cannot be read.
    #[error("cannot read {}: {source}; make it readable", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no file.
    #[error("{} is neither a file nor a folder, and has no end: give a file or a folder", .0.display())]
    NoFile(PathBuf),
    /// There is nothing in it.
    #[error("{} is empty: there is nothing to hash, and so nothing to name it by", .0.display())]
    Empty(PathBuf),
    /// Its name is not text.
    #[error("the name of {} is not UTF-8, which a link needs: rename it", .0.display())]
    Name(PathBuf),
    /// Somebody writes to it.
    #[error("{} changed while it was hashed: share it when it is complete", .0.display())]
    Changed(PathBuf),
    /// The folder holds what no list of files can carry.
    #[error(transparent)]
    Folder(Box<CreateError>),
    /// Its list of files is one that nobody could read.
    #[error("{} cannot be shared: {source}", path.display())]
    Manifest {
        /// Which.
        path: PathBuf,
        /// Why.
        source: ManifestError,
    },
    /// Its tree cannot be kept.
    #[error("cannot write the tree of hashes to {}: {source}; make room, or name another folder with XDG_CACHE_HOME", path.display())]
    Keep {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Such a swarm cannot be.
    #[error("no swarm can be made of it: {0}; choose another length of chunks")]
    Params(#[from] Mismatch),
    /// The caller asked to stop.
    #[error("canceled")]
    Canceled,
}

impl From<CreateError> for HashError {
    fn from(error: CreateError) -> Self {
        Self::Folder(error.into())
    }
}
