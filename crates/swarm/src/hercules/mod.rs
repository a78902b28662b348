//! Bulk transfer at work: joins the core in [`anabranch_hercules`] to sockets, clocks and disks.
//!
//! [`send`] and [`receive`] start a transfer and give a [`Handle`] and its [`Events`]. Everything happens on threads of their own;
//! the caller reads events, in whatever runtime or none.
//!
//! | module | what it does |
//! | --- | --- |
//! | `options`, `events` | what a transfer is told, and what it tells |
//! | `content` | what a source and a destination have to do: [`Source`], [`Destinations`], [`Destination`] |
//! | [`files`] | files and folders as a source, a folder as a destination |
//! | `start` | begins a transfer: its sockets, its threads |
//! | `session` | calls and callers, tickets and keys; what is said before content moves; trying again |
//! | `context`, `connection` | what all of them have; the connection to one other end |
//! | `sending`, `receiving`, `flow`, `messages` | one connection's life at either end, and its messages |
//! | `network`, `search`, `paths` | sockets, and the paths that lead to a peer; lookups of them; which of them are used |
//! | `io` | which sockets go past the kernel |
//! | `invitation` | tickets: what stands in them, and who may come by them |
//! | `managed` | a transfer as one of a session's contents |
//! | `engine` | the network thread: it owns the sockets and all cores |
//! | `reader`, `disk` | the threads that read and hash, and hash and write |
//! | `poll` | how these wake it |
//!
//! What is sent is a [`Source`]'s, where it goes is up to [`Destinations`]: files, or whatever somebody else makes of it.
//!
//! ```no_run
//! # fn example(source: std::sync::Arc<dyn anabranch_swarm::bulk::Source>) -> Result<(), Box<dyn std::error::Error>> {
//! use anabranch_swarm::bulk::{self, Dial, Event, Options, Peers};
//!
//! let to = Dial { addresses: vec!["192.0.2.7:6900".parse()?], key: None, secret: None };
//! let (_handle, mut events) = bulk::send(Options::new(anabranch_transport::Identity::ephemeral()?), Peers::Dial(vec![to]), source)?;
//! while let Some(event) = events.blocking_recv() {
//!     if let Event::Finished { receipt, .. } = event {
//!         println!("{} bytes are there, verified", receipt.content_len);
//!     }
//! }
//! # Ok(()) }
//! ```

mod connection;
mod content;
mod context;
mod disk;
mod engine;
mod events;
pub mod files;
mod flow;
mod invitation;
mod io;
pub(crate) mod managed;
mod messages;
mod network;
mod options;
mod paths;
mod poll;
mod reader;
mod receiving;
mod search;
mod sending;
mod session;
mod start;

pub use anabranch_hercules::wire::ticket::{TICKET_SECRET_LEN, Ticket, TicketError};
pub use content::{Destination, DestinationError, Destinations, Offered, Refusal, Source, SourceError};
pub use events::{
    EVENTS_MAX, Event, Events, Handle, PathProgress, PathWay, PeerId, Progress, Rejection, TransferError, Waiting,
};
pub use invitation::{Invitation, UselessTicket, check_ticket, is_ticket, ticket_secret};
pub use io::Bypass;
pub use managed::{Job, Partner, Task};
pub use options::{Admission, Dial, Io, MEMORY_BYTES_DEFAULT, Options, PeerKey, Peers, StartError};
pub use start::{receive, send};

pub use crate::events::{News, Placed};
