//! Why something that was asked of a content was not done.

use anabranch_content::storage::StorageError;

use super::files::Work;
use crate::config::AddError;
use crate::events::ContentId;

/// Why something that was asked of a session, or of one of its contents, was not done.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no such content, or none any more.
    #[error("there is no content {} in this session: those there are, `list` names", .0.0)]
    Unknown(ContentId),
    /// The content is being removed.
    #[error("content {} is being removed from this session: add it again when it is gone", .0.0)]
    Leaving(ContentId),
    /// The content failed, and said why.
    #[error("content {} has failed: remove it, and add it again when the cause is gone", .0.0)]
    Failed(ContentId),
    /// Its files are not open yet: the metadata is missing, or what is on disk is being checked.
    #[error("the files of content {} are not open yet: wait for it to be started", .0.0)]
    NotOpen(ContentId),
    /// It is being checked, moved or otherwise worked on.
    #[error("content {} is being {}: wait for that to end", .0.0, .1)]
    Busy(ContentId, Work),
    /// Its files are only shared, and are the user's: they are not changed.
    #[error("the files of content {} are only shared: they are not moved, deleted or chosen among", .0.0)]
    OnlyShared(ContentId),
    /// It is a content of PPSPP, with which that is not done.
    #[error("content {} is one of PPSPP: it is one file, which is not moved or chosen among while it is in a session", .0.0)]
    NotWithPpspp(ContentId),
    /// It is a bulk transfer, with which that is not done.
    #[error("content {} is a bulk transfer: what it moves, and where to, is settled when it is added", .0.0)]
    NotWithBulk(ContentId),
    /// The file system refuses.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The disk did not get done in time. What was asked for was begun, and may still be done.
    #[error("the disk does not answer: its files may still be there when it does")]
    Slow,
    /// The content cannot be added.
    #[error(transparent)]
    Add(#[from] AddError),
    /// The session is gone, or went before this was done.
    #[error("the session has ended")]
    Gone,
}
