//! What is told of bulk transfers alone.

use std::path::PathBuf;

use anabranch_paths::{Endpoint, Path};
use anabranch_transport::NodeId;

/// What was received, as it lies on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The file or folder that all of it is, below where it was received to; `None` where there are several.
    pub top: Option<PathBuf>,
    /// Files among it.
    pub files: u64,
}

/// What happens with a bulk transfer, beside what is told of any content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Its files were looked through, and others may come.
    Begun {
        /// Bytes of content; `None` until somebody offers some.
        bytes_total: Option<u64>,
    },
    /// Others reach it.
    Reachable {
        /// The ticket by which they may come, where there is one.
        ticket: Option<String>,
        /// Where, over all networks.
        addresses: Vec<Endpoint>,
        /// The key that it proves to have.
        key: NodeId,
        /// Its ports, as [`Task::ports`](crate::bulk::Task::ports).
        ports: (u16, u16),
    },
    /// It is known to both ends what moves.
    Offered {
        /// Where the other end is.
        peer: Endpoint,
        /// What it is called.
        name: String,
        /// Bytes of content.
        bytes_total: u64,
        /// Of these, there from before.
        bytes_kept: u64,
    },
    /// A path carries content, or does not any more.
    Path {
        /// Who is at its end.
        peer: Endpoint,
        /// Which.
        path: Path,
        /// Whether it does.
        is_up: bool,
        /// Why.
        reason: String,
    },
    /// Nothing moves, and why; `None`: it moves.
    Waits(Option<String>),
    /// Something for people to know.
    Note(String),
    /// All of it is at the receiver, verified and signed for.
    Delivered {
        /// Where the other end is.
        peer: Endpoint,
        /// The other end's key.
        key: NodeId,
        /// What it is called.
        name: String,
        /// Bytes of content.
        bytes_total: u64,
        /// Where it lies, where it was received.
        placed: Option<Placed>,
    },
    /// There is nothing more to do, and why.
    Over(String),
}

impl News {
    /// What a slow reader may miss.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Path { .. } | Self::Note(_) | Self::Offered { .. })
    }
}

impl std::fmt::Display for News {
    /// For people. Without the ticket: logs are read by others.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Begun { .. } => f.write_str("begun"),
            Self::Reachable { addresses, key, .. } => {
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                write!(f, "reached at {} with the key {key}", addresses.join(" "))
            }
            Self::Offered { peer, name, bytes_total, bytes_kept } => {
                write!(f, "{name}, {bytes_total} bytes, of which {bytes_kept} are there already, with {peer}")
            }
            Self::Path { peer, is_up, reason, .. } => {
                write!(f, "a path to {peer} is {}: {reason}", if *is_up { "up" } else { "down" })
            }
            Self::Waits(Some(reason)) => f.write_str(reason),
            Self::Waits(None) => f.write_str("goes on"),
            Self::Note(text) => f.write_str(text),
            Self::Delivered { peer, key, name, bytes_total, .. } => {
                write!(f, "{name}, {bytes_total} bytes, complete and verified, with {peer}, which has the key {key}")
            }
            Self::Over(why) => f.write_str(why),
        }
    }
}
