//! What can go wrong around a peer, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Who failed, and what they said last.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is not installed.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// Program or file.
        what: String,
        /// What the user can run to get it.
        remedy: String,
    },
    /// The program could not be started.
    #[error("cannot start {name}: {source}")]
    Spawn {
        /// Name in messages.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A deadline passed.
    #[error("{name}: {waited_for} did not come within {limit:?}; it said last:\n{log}")]
    Timeout {
        /// Name in messages.
        name: String,
        /// What should have come.
        waited_for: String,
        /// The deadline.
        limit: Duration,
        /// The end of its output.
        log: String,
    },
    /// The process ended when it should have gone on, or with a failure.
    #[error("{name} ended with {status}; it said last:\n{log}")]
    Exited {
        /// Name in messages.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its output.
        log: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The command line of a program here says nothing that can be done.
    #[error("{0}")]
    Usage(String),
    /// A peer answered something that makes no sense.
    #[error("{name} answered nonsense: {what}")]
    Nonsense {
        /// Name in messages.
        name: String,
        /// What it said.
        what: String,
    },
    /// A network on this machine does not come about.
    #[error(transparent)]
    Net(#[from] anabranch_lab::netns::NetnsError),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Which, on what.
        what: String,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// A system call on `what` just failed: takes `errno`.
    pub fn last_os(what: impl Into<String>) -> Self {
        Self::System { what: what.into(), source: io::Error::last_os_error() }
    }

    /// Names the system call, or what it was made for, in front of an I/O error.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }

    /// Names the file in front of an I/O error.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { path: path.into(), source }
    }
}
