//! Why a connection did not come about, or ended.

use std::io;

use anabranch_bittorrent::torrent::PeerMisbehaved;
use anabranch_content::storage::StorageError;
use anabranch_paths::manager::EndCause;

use crate::net::scion::ReachError;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnError {
    /// The other side closed it.
    #[error("closed by the peer")]
    Closed,
    /// The network failed it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side closed it instead of greeting us (BEP 3: who is asked for a content that it does not have says nothing). Some
    /// do that to all who greet them in the clear.
    #[error("it closed the connection instead of greeting us, as those do who do not have this content")]
    NotGreeted,
    /// The peer did not get as far as the protocol.
    #[error("{0}")]
    Stranger(String),
    /// The peer broke the protocol.
    #[error("{0}")]
    Misbehaved(#[from] PeerMisbehaved),
    /// We ended it.
    #[error("{0}")]
    Ended(String),
    /// No path leads there, by the daemon's word.
    #[error("{0}")]
    NoPath(String),
    /// It cannot come about, however long one waits: what the user asked for does not fit together.
    #[error("{0}")]
    Hopeless(String),
    /// Content that was promised could not be read.
    #[error("{0}")]
    Storage(#[from] StorageError),
}

impl ConnError {
    /// Whether nothing but the user can end this trouble.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Hopeless(_))
    }
}

impl From<ReachError> for ConnError {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Failed(reason) | ReachError::PathDown(reason) => Self::Ended(reason),
            ReachError::NoPath(reason) => Self::NoPath(reason),
            ReachError::Hopeless(reason) => Self::Hopeless(reason),
        }
    }
}

impl From<&ConnError> for EndCause {
    fn from(error: &ConnError) -> Self {
        let words = error.to_string();
        match error {
            ConnError::Closed => Self::ClosedByPeer,
            ConnError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe => Self::ClosedByPeer,
            ConnError::Io(_) => Self::Network(words),
            ConnError::NotGreeted | ConnError::Stranger(_) => Self::Refused(words),
            ConnError::Misbehaved(_) => Self::Misbehaved(words),
            ConnError::NoPath(_) | ConnError::Hopeless(_) => Self::NoPath(words),
            ConnError::Ended(_) | ConnError::Storage(_) => Self::ByUs(words),
        }
    }
}
