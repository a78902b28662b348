//! What can go wrong with a network of namespaces, and what to do then.

use std::io;
use std::path::{Path, PathBuf};

use crate::netns::NetnsError;

/// Why there is no network, or no run over it.
#[derive(Debug, thiserror::Error)]
pub enum BedError {
    /// It was asked to end.
    #[error("interrupted")]
    Canceled,
    /// Only root makes namespaces.
    #[error("networks of namespaces need root: run this with sudo, or in a container or virtual machine of your own")]
    NotRoot,
    /// The system refuses.
    #[error("the network does not come about: {0}")]
    Netns(#[from] NetnsError),
    /// More than one machine can have.
    #[error("{found} {what} are more than one machine can have ({max}): take a smaller network")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// A program that is not installed.
    #[error("{program} is missing: install {package}, or leave out what needs it (--only)")]
    Missing {
        /// The program.
        program: String,
        /// What has it.
        package: &'static str,
    },
    /// A file cannot be read or written.
    #[error("cannot use {}: {error}; see whether it may be written and its disk has room, or let results go elsewhere (--out)", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A program cannot be started.
    #[error("cannot start {program}: {error}; see whether it is there, and may be run")]
    Start {
        /// Which.
        program: String,
        /// Why.
        error: io::Error,
    },
    /// A program did what it should not.
    #[error("{name} {what}; it said last: {said}; look at all that it said, in {}, and at `flags` of the plan", log.display())]
    Program {
        /// Its name.
        name: String,
        /// What it did.
        what: String,
        /// Its last words.
        said: String,
        /// Where all of them are.
        log: PathBuf,
    },
    /// Routes are missing.
    #[error("BGP did not converge within {seconds} s: {missing}; logs of bgpd are in {}", logs.display())]
    NotConverged {
        /// For how long it was waited.
        seconds: u64,
        /// What is missing.
        missing: String,
        /// Where its logs are.
        logs: PathBuf,
    },
    /// A link carries no more.
    #[error("the wire of link {link} failed: {reason}; try again (--resume), where that fails with fewer --jobs")]
    Wire {
        /// Which link.
        link: String,
        /// Why.
        reason: String,
    },
    /// A router that does not hear of its link.
    #[error("the routers of link {link} could not be told of a change: {said}")]
    Router {
        /// Which link.
        link: String,
        /// What was said.
        said: String,
    },
    /// A run that takes too long.
    #[error(
        "not done after {seconds} s: {missing} of {of} peers were still fetching; raise `limit` in the plan, or take a smaller content"
    )]
    Slow {
        /// For how long it was waited.
        seconds: u64,
        /// How many were not done.
        missing: usize,
        /// How many there are.
        of: usize,
    },
}

impl BedError {
    pub(crate) fn file(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.to_path_buf(), error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let error = || io::Error::from(io::ErrorKind::PermissionDenied);
        let file = PathBuf::from("/nowhere/x");
        for (error, says) in [
            (BedError::file(&file, error()), "or let results go elsewhere (--out)"),
            (BedError::Start { program: "x".into(), error: error() }, "see whether it is there"),
            (
                BedError::Program { name: "x".into(), what: "ended".into(), said: "y".into(), log: file },
                "look at all that it said, in /nowhere/x",
            ),
            (BedError::Wire { link: "a - b".into(), reason: "y".into() }, "try again (--resume)"),
            (BedError::Slow { seconds: 9, missing: 1, of: 2 }, "raise `limit` in the plan"),
        ] {
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
