//! What a managed transfer is to do.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::SystemTime;

use anabranch_hercules::wire::ticket::{TICKET_SECRET_LEN, Ticket};
use anabranch_transport::NodeId;

/// A bulk transfer that a session manages. Where what is received goes, whether it may overwrite, and how fast it goes is in its
/// [`AddOptions`](crate::config::AddOptions).
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
