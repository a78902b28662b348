//! What a session asks of a content at work, whichever protocol it speaks.
//!
//! A session knows its contents as [`Transfer`]s alone, but for where they come (`add`) and where somebody calls who names one by what
//! only its protocol knows. A protocol that moves in implements this, and is looked after as the others are: told how the disk threads
//! answer, recorded, paused, limited, read while it arrives, and removed with or without its files.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `files` | what goes on with a content's files; how they are closed, or deleted |
//! | `progress`, `sources` | how a content and its paths fare; who may still bring what is missing |
//! | `live` | what is asked of a live stream besides |
//! | `paths` | when its paths are looked after |
//! | `error` | why something is not done |

mod error;
pub(crate) mod files;
pub(crate) mod live;
pub(crate) mod paths;
mod progress;
mod sources;

use std::cell::RefCell;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::picker::Priority;
use anabranch_bittorrent::torrent::PeerStats;
use anabranch_content::info::{FileEntry, Info};
use anabranch_content::storage::{Storage, StorageError};
use anabranch_paths::Endpoint;

pub use error::ControlError;
pub use files::{Removed, Work};
pub use live::LiveState;
pub use progress::{PathProgress, Progress};
pub use sources::{NamedPeer, Sources, Trouble, WebSeed};

use crate::events::EventKind;
use crate::store::disk::Reply;
use crate::store::readers::Readable;
use files::Others;

/// How much each file is wanted, by its index in the file list or what it is; [`Priority::SKIP`]: not at all.
pub type FilePriorities = Box<dyn Fn(usize, &FileEntry) -> Priority + Send>;

/// Work on the session's own thread.
pub(crate) type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// Where a content is between its coming and its going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    /// Something can be asked of it.
    AtWork,
    /// It failed, and said why.
    Failed,
    /// It is being removed.
    Leaving,
}

/// A content at work. All calls are on the session's thread, and none waits.
pub(crate) trait Transfer {
    /// Where it is.
    fn lifecycle(&self) -> Lifecycle;
    /// Tells its owner.
    fn tell(&self, kind: EventKind);

    // ---- how it fares ----

    /// Its state.
    fn progress(&self, now: Instant) -> Progress;
    /// Its connections.
    fn peers(&self, now: Instant) -> Vec<PeerStats>;
    /// Its connections, each with its path.
    fn paths(&self, now: Instant) -> Vec<PathProgress>;
    /// Who may still bring what is missing.
    fn sources(&self, now: Instant) -> Sources;
    /// What it is, once known.
    fn info(&self) -> Option<Arc<Info>>;
    /// The folder that it lies in, and what it is, once known.
    fn place(&self) -> Option<(PathBuf, Arc<Info>)>;
    /// For those who read it.
    fn readable(&self) -> Rc<RefCell<dyn Readable>>;

    /// The same as a live stream, where it is one.
    fn as_live(&self) -> Option<&dyn live::LiveTransfer> {
        None
    }

    // ---- what its owner asks ----

    /// When a piece is needed; `None` takes that back.
    fn set_deadline(&self, piece: u32, deadline: Option<Instant>, now: Instant);
    /// It waits. What is on its way from the disk threads is still written.
    fn pause(&self);
    /// It goes on.
    fn resume(&self);
    /// Its limits are others, bytes a second down and up, or those of all contents together are (`own` is none). Who does not share
    /// the session's ways out sees to that.
    fn limits_changed(&self, _own: Option<(Option<u64>, Option<u64>)>) {}
    /// Its trackers are asked as soon as they allow.
    fn reannounce(&self);
    /// These are dialled for it. One that cannot be dialled is told as [`EventKind::PeerFailed`].
    fn add_peers(&self, peers: &[Endpoint], now: Instant);

    // ---- work on its files ----

    /// Work on its files begins, and holds what it does not go along with.
    ///
    /// # Errors
    /// They are not open, are worked on already, or this is not done to them.
    fn begin_work(&self, work: Work) -> Result<(), ControlError>;
    /// It is done.
    fn end_work(&self);
    /// Runs a task of this content: it ends with the content, which fails where it panics.
    fn spawn(&self, task: Task<()>);
    /// Hashes all pieces anew.
    fn recheck(&self) -> Task<Result<(), ControlError>>;
    /// Moves the files below another folder.
    fn move_to(&self, dir: PathBuf) -> Task<Result<(), ControlError>>;
    /// Chooses among the files.
    fn set_files(&self, files: FilePriorities) -> Task<Result<(), ControlError>>;

    // ---- what is done for all contents ----

    /// A disk thread answers.
    fn on_disk(&self, reply: Reply, now: Instant);
    /// Storage that was out of order is tried again.
    fn retry_storage(&self);
    /// Its files, of which some may not be any more what was verified; `None` where they are not open, or where it ends.
    fn watched_files(&self) -> Option<Arc<Storage>> {
        None
    }
    /// These files are not what was verified any more.
    fn files_changed(&self, _files: &[usize]) {}
    /// Makes durable what was received; `None` where that is not due.
    fn checkpoint(&self, now: Instant) -> Option<Task<()>>;

    // ---- its going ----

    /// Its files are only shared, and are the user's.
    fn is_only_shared(&self) -> bool;
    /// It is being removed: connections end, trackers are told, nothing new begins.
    fn leave(&self, reason: &str);
    /// The task that talks to trackers has not said farewell yet.
    fn is_announcing(&self) -> bool;
    /// The disk threads have something of it.
    fn is_busy(&self) -> bool;
    /// What is known goes to the disk, and the place is others' again.
    fn close(&self) -> Task<()>;
    /// The files are deleted, but for those that `others` have their bytes in, and the place is others' again. What is left of them.
    fn delete(&self, others: Others) -> Task<Result<Vec<PathBuf>, StorageError>>;
    /// Whatever is still at work for it ends. After [`Transfer::leave`], which lets it end by itself.
    fn end(&self);
    /// All of it ends here and now, and the place is others' again: the session is dropped.
    fn abandon(&self);
}
