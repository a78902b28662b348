//! Begins a transfer.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::content::{Destinations, Source};
use super::context::{Context, Work};
use super::events::{Controls, EVENTS_MAX, Events, Handle};
use super::network::Network;
use super::options::{Options, Peers, StartError};
use super::reader::Hashing;
use super::{engine, io, session};

/// Sends `source` to everybody in `peers`, each at its own rate; or, listening, to whoever is admitted. Ends when all who are
/// dialled have it or failed; listening, when the invitation's times are used up, or never.
///
/// # Errors
/// A socket could not be opened, or a thread not be started.
pub fn send(options: Options, peers: Peers, source: Arc<dyn Source>) -> Result<(Handle, Events), StartError> {
    let hashing = Hashing::start(Arc::clone(&source)).map_err(StartError::Thread)?;
    start(options, peers, Work::Send { source, hashing })
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
    start(options, peers, Work::Receive(destinations))
}

fn start(options: Options, peers: Peers, work: Work) -> Result<(Handle, Events), StartError> {
    if matches!(&peers, Peers::Dial(to) if to.iter().all(|to| to.addresses.is_empty())) {
        return Err(StartError::Nobody);
    }
    let (network, sockets) = Network::open(&options)?;
    let bypasses = io::attach(options.io, &options.paths.interfaces, sockets.iter().map(|(socket, _)| socket))?;
    let source = match &work {
        Work::Send { source, hashing } => Some((Arc::clone(source), hashing.clone())),
        Work::Receive(_) => None,
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
        let context = Rc::new(Context {
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
            speaking: watch::channel(0).0,
            narrow: RefCell::new(HashMap::new()),
            chunk_lens: RefCell::new(BTreeMap::new()),
        });
        tokio::task::LocalSet::new().block_on(&runtime, session::run(context, peers, bypasses));
    };
    std::thread::Builder::new().name("bulk-control".to_owned()).spawn(run).map_err(StartError::Thread)?;
    Ok((Handle(Arc::new(Controls { cancel, limits })), Events(told)))
}
