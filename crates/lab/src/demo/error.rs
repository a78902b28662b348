//! What can go wrong with a scenario, and what to do then.

use std::io;
use std::path::{Path, PathBuf};

use anabranch_asnet::network::NetworkError;
use anabranch_asnet::topology::TopologyError;

use crate::run::LogError;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// It was asked to end.
    #[error("interrupted")]
    Canceled,
    /// The topology is wrong.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A host that the scenario needs is not in the topology.
    #[error("the topology has no host named `{0}`")]
    NoHost(&'static str),
    /// The network does not start.
    #[error("the network does not start: {0}; end another demo that runs, and try again")]
    Network(#[from] NetworkError),
    /// A file cannot be read or written.
    #[error("cannot use {}: {error}; make room and the folder writable, or give another with --out", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A program cannot be started.
    #[error("cannot start {}: {error}", program.display())]
    Start {
        /// Which.
        program: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A program ended before its time.
    #[error("`anabranch {command}` ended early: {reason}; its output is in {}", logs.display())]
    Ended {
        /// Which command.
        command: String,
        /// The last thing that it said.
        reason: String,
        /// Where everything is that it said.
        logs: PathBuf,
    },
    /// A program goes on without getting anywhere.
    #[error("`anabranch {command}` made no progress for {seconds} s; its output is in {}", logs.display())]
    Stuck {
        /// Which command.
        command: String,
        /// For how long.
        seconds: u64,
        /// Where everything is that it said.
        logs: PathBuf,
    },
    /// What a program said is not what its documentation says.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The file that was fetched is not the one that was shared.
    #[error("{} is not what was shared: this is a fault of anabranch", .0.display())]
    Differs(PathBuf),
}

impl DemoError {
    pub(super) fn file(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.to_path_buf(), error }
    }
}
