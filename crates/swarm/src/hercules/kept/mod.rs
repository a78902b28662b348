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
use anabranch_transport::NodeId;

use self::state::State;
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

/// A kept transfer that its task and its session share. All is on one thread, and nothing holds a borrow across an await.
#[derive(Clone)]
pub(crate) struct Kept(Rc<RefCell<State>>);

/// Begins with one.
pub(crate) fn begin(id: ContentId, task: Task, options: AddOptions, resources: &Rc<Resources>) -> Kept {
    let kept = Kept(Rc::new(RefCell::new(State::new(id, task, options, Rc::clone(resources)))));
    kept.0.borrow_mut().tasks.spawn_local(run::run(kept.clone()));
    kept
}
