//! Why a web seed is of no use.

use std::io;
use std::time::Duration;

use anabranch_bittorrent::web_seed::Refusal;

use crate::tracker::Cause;

/// Why a web seed is not used, or not any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// There is no connection.
    #[error("{0}")]
    Cause(#[from] Cause),
    /// The network failed, or we.
    #[error("{0}")]
    Net(String),
    /// A torrent or link names it, and it is in the user's own network or machine.
    #[error(
        "it is at {0}, in the local network, where a torrent or link may name none; if it is yours, name it with --web-seed"
    )]
    TooNear(String),
    /// No interface that may be used leads there.
    #[error("none of the interfaces that may be used leads there: see --interface")]
    NoInterface,
    /// The answer is of no use.
    #[error("{0}")]
    Refusal(#[from] Refusal),
    /// The answer has not the bytes that its head says.
    #[error("its answer {0}")]
    Body(&'static str),
    /// It redirects more often than we follow.
    #[error("it redirects more than {0} times")]
    Redirects(u32),
    /// It redirects to no web server, from HTTPS to HTTP, or nearer to us than it is itself.
    #[error("it redirects to where we do not follow")]
    RedirectUnfit,
    /// What it sent was wrong.
    #[error("{0}")]
    Banned(String),
    /// The core did not take it.
    #[error("{0}")]
    Refused(String),
}

impl Failure {
    /// Whether trying again is in vain.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::TooNear(_) | Self::RedirectUnfit | Self::Banned(_) => true,
            Self::Refusal(refusal) => refusal.is_final(),
            _ => false,
        }
    }

    /// How long to leave it alone, by its own word.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refusal(Refusal::Busy { after, .. }) => *after,
            _ => None,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Net(error.to_string())
    }
}
