//! A bulk transfer as one of a session's contents: it is kept until it is done, begins again where something cut it short, waits and
//! goes on as its owner says, and is told of as the others are.
//!
//! The transfer itself is a driver of its own, with its own sockets and threads ([`super::send`], [`super::receive`]); here is one task
//! on the session's thread, which begins it, reads its events, and ends it.
//!
//! | module | what it does |
//! | --- | --- |
//! | `state` | what is known of it, and what its events change. Pure |
//! | `run` | begins the driver, follows it, begins it again |
//! | `transfer` | what a session asks of it |

mod run;
mod state;
mod transfer;

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::SystemTime;

use anabranch_hercules::wire::ticket::{TICKET_SECRET_LEN, Ticket};
use anabranch_paths::{Endpoint, Path};
use anabranch_transport::NodeId;

use self::state::State;
use super::content::Placed;
use crate::config::AddOptions;
use crate::events::ContentId;
use crate::resources::Resources;

/// A bulk transfer that is kept. Where what is received goes, whether it may overwrite, and how fast it goes is in its
/// [`AddOptions`].
#[derive(Clone, Debug)]
pub struct Task {
    /// What this end does.
    pub job: Job,
    /// Who is at the other end.
    pub partner: Partner,
    /// The ports that it listened at before, over IP and over SCION, so that others find it again; 0: any.
    pub ports: (u16, u16),
    /// It was done in an earlier session: nothing begins.
    pub is_over: bool,
}

/// What this end does.
#[derive(Clone, Debug)]
pub enum Job {
    /// These files and folders are sent.
    Send(Vec<PathBuf>),
    /// Something is received.
    Receive,
}

/// Who is at the other end.
#[derive(Clone)]
pub enum Partner {
    /// Who made this ticket is called.
    Ticket(Ticket),
    /// Whoever has the ticket that is made here calls.
    Invited {
        /// Its secret.
        secret: [u8; TICKET_SECRET_LEN],
        /// When it ends.
        expires: SystemTime,
        /// How many may still come.
        times: u16,
    },
    /// Whoever has one of these keys calls, any number of times.
    Allowed(HashSet<NodeId>),
}

impl std::fmt::Debug for Partner {
    /// Without the secret: logs are read by others.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ticket(ticket) => write!(f, "Ticket({ticket:?})"),
            Self::Invited { expires, times, .. } => write!(f, "Invited({times} until {expires:?})"),
            Self::Allowed(keys) => write!(f, "Allowed({keys:?})"),
        }
    }
}

/// What happens with it, beside what is told of any content.
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
        /// Its ports, as [`Task::ports`].
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

/// A kept transfer that its task and its session share. All is on one thread, and nothing holds a borrow across an await.
#[derive(Clone)]
pub(crate) struct Kept(Rc<RefCell<State>>);

/// Begins with one.
pub(crate) fn begin(id: ContentId, task: Task, options: AddOptions, resources: &Rc<Resources>) -> Kept {
    let kept = Kept(Rc::new(RefCell::new(State::new(id, task, options, Rc::clone(resources)))));
    kept.0.borrow_mut().tasks.spawn_local(run::run(kept.clone()));
    kept
}
