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
//! | `session`, `callers` | calls and callers, tickets and keys; what is said before content moves; trying again |
//! | `context`, `connection` | what all of them have; the connection to one other end |
//! | `sending`, `receiving`, `flow`, `messages` | one connection's life at either end, and its messages |
//! | `network`, `search`, `paths` | sockets, and the paths that lead to a peer; lookups of them; which of them are used |
//! | `io` | which sockets go past the kernel |
//! | `invitation` | tickets: what stands in them, and who may come by them |
//! | `kept` | a transfer as one of a session's contents |
//! | `engine` | the network thread: it owns the sockets and all cores |
//! | `reader`, `disk` | the threads that read and hash, and hash and write |
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

mod callers;
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
pub(crate) mod kept;
mod messages;
mod network;
mod options;
mod paths;
mod reader;
mod receiving;
mod search;
mod sending;
mod session;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

pub use anabranch_hercules::wire::ticket::{TICKET_SECRET_LEN, Ticket, TicketError};
pub use content::{Destination, DestinationError, Destinations, Offered, Refusal, Source, SourceError};
pub use events::{
    EVENTS_MAX, Event, Events, Handle, PathProgress, PathWay, PeerId, Progress, Rejection, TransferError, Waiting,
};
pub use invitation::{Invitation, UselessTicket, check_ticket, is_ticket, ticket_secret};
pub use io::Bypass;
pub use kept::{Job, Partner, Task};
pub use options::{Admission, Dial, Io, MEMORY_BYTES_DEFAULT, Options, PeerKey, Peers, StartError};

pub use crate::events::{News, Placed};

/// Sends `source` to everybody in `peers`, each at its own rate; or, listening, to whoever is admitted. Ends when all who are
/// dialled have it or failed; listening, when the invitation's times are used up, or never.
///
/// # Errors
/// A socket could not be opened, or a thread not be started.
pub fn send(options: Options, peers: Peers, source: Arc<dyn Source>) -> Result<(Handle, Events), StartError> {
    let hashing = reader::Hashing::start(Arc::clone(&source)).map_err(StartError::Thread)?;
    start(options, peers, context::Work::Send { source, hashing })
}

/// Receives from the one in `peers`, or, listening, from whoever is admitted, several at once. `destinations` says for each
/// offer where it goes. Ends like [`send`].
///
/// # Errors
/// A socket could not be opened, or a thread not be started.
pub fn receive(
    options: Options,
    peers: Peers,
    destinations: Arc<dyn Destinations>,
) -> Result<(Handle, Events), StartError> {
    if let Peers::Dial(senders) = &peers
        && senders.len() > 1
    {
        return Err(StartError::SeveralSenders(senders.len()));
    }
    start(options, peers, context::Work::Receive(destinations))
}

fn start(options: Options, peers: Peers, work: context::Work) -> Result<(Handle, Events), StartError> {
    if matches!(&peers, Peers::Dial(to) if to.iter().all(|to| to.addresses.is_empty())) {
        return Err(StartError::Nobody);
    }
    let (network, sockets) = network::Network::open(&options)?;
    let bypasses = io::attach(options.io, &options.paths.interfaces, sockets.iter().map(|(socket, _)| socket))?;
    let source = match &work {
        context::Work::Send { source, hashing } => Some((Arc::clone(source), hashing.clone())),
        context::Work::Receive(_) => None,
    };
    let common = engine::Common {
        source,
        congestion: options.congestion,
        memory_bytes: options.memory_bytes,
        limit_up: options.limit_up,
        interfaces: options.paths.interfaces.clone(),
    };
    let engine = engine::start(sockets, common).map_err(StartError::Thread)?;
    let (events, told) = mpsc::channel(EVENTS_MAX);
    let (cancel, cancelled) = watch::channel(false);
    let (limits, limited) = watch::channel((options.limit_down, options.limit_up));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
    let run = move || {
        let context = Rc::new(context::Context {
            network,
            engine,
            work,
            identity: options.identity,
            is_fair: options.is_fair,
            limits: limited,
            events,
            cancelled,
            receiving: RefCell::new(HashMap::new()),
            lingering: RefCell::new(HashMap::new()),
            receivers_ready: watch::channel(0).0,
            narrow: RefCell::new(HashMap::new()),
            chunk_lens: RefCell::new(BTreeMap::new()),
        });
        tokio::task::LocalSet::new().block_on(&runtime, session::run(context, peers, bypasses));
    };
    std::thread::Builder::new().name("bulk-control".to_owned()).spawn(run).map_err(StartError::Thread)?;
    Ok((Handle(Arc::new(events::Controls { cancel, limits })), Events(told)))
}
