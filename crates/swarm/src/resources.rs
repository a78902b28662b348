//! What all contents of a session share: listeners' addresses, the ways out, memory, disk threads, limits, and what was measured
//! of paths. No content is known here, and whoever holds this keeps no content alive.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::handshake::peer_id;
use anabranch_paths::manager::{LinkHealth, ManagerConfig};
use anabranch_paths::{Endpoint, Scoreboard};
use anabranch_portmap::Protocol;
use anabranch_transport::{Callers, Identity, InterfaceError, Interfaces, Listener, TcpListener};
use tokio::sync::Semaphore;

use crate::config::{SessionConfig, SessionError};
use crate::dht::{DhtNode, Surroundings};
use crate::events::{Event, EventHub};
use crate::limits::Line;
use crate::net::admission::Pace;
use crate::net::leave::Leave;
use crate::net::ports::Ports;
use crate::net::scion::ScionNet;
use crate::net::uplinks::Uplinks;
use crate::net::utp::{Utp, UtpNet};
use crate::store::disk::{Disk, Replies};
use crate::store::pools::Pools;
use crate::tracker::{Client, ClientConfig, TrackerAccess};

/// Contents that are opened at once: each takes a thread.
const OPENING_MAX: usize = 4;
/// Contents that are checked at once: a check keeps a disk busy by itself, and takes a thread.
const CHECKING_MAX: usize = 4;
/// Contents that are closed at once: each takes a thread, and syncs a file.
const CLOSING_MAX: usize = 4;
/// What the secret is for that peers know us by.
const IDENTITY_PURPOSE: &str = "bittorrent peer identity";

/// What all contents share.
pub(crate) struct Resources {
    /// The choices.
    pub config: SessionConfig,
    /// Where we listen.
    pub listening: Vec<SocketAddr>,
    /// Our place in the SCION network.
    pub scion: Option<Rc<ScionNet>>,
    /// Our node of the distributed hash table, where there is one.
    pub dht: Option<Rc<DhtNode>>,
    /// The sockets that speak uTP.
    pub utp: UtpNet,
    /// Why the proxy relays no datagrams, if it does not.
    pub relay_failure: RefCell<Option<String>>,
    /// The ports that routers opened for us.
    pub ports: Rc<Ports>,
    /// The ways out of this machine; `None` where the system does not tell.
    pub uplinks: Option<Rc<Uplinks>>,
    /// What was measured of paths.
    pub board: RefCell<Scoreboard>,
    /// Which links of the SCION network are down.
    pub links: Rc<RefCell<LinkHealth>>,
    /// What our names among peers are made of.
    pub identity_secret: Option<[u8; 32]>,
    /// Our name.
    pub peer_id: [u8; 20],
    /// Piece memory.
    pub pools: Rc<Pools>,
    /// Bytes asked for by all contents and not here yet.
    pub requested_bytes: Cell<u64>,
    /// The disk threads.
    pub disk: Disk,
    /// Limit over all downloads.
    pub down: Rc<Line>,
    /// Limit over all uploads.
    pub up: Rc<Line>,
    /// Open connections, all contents; see [`Resources::take_connection`].
    connections: Cell<usize>,
    /// Accepted connections whose handshake has not come yet.
    pub callers: Callers,
    /// How fast connections are opened.
    pub pace: Pace,
    /// Speaks to trackers.
    pub trackers: Client,
    /// Places for contents that are opened.
    pub opening: Semaphore,
    /// Places for contents that are checked.
    pub checking: Semaphore,
    /// Places for contents that are closed.
    pub closing: Semaphore,
    /// Where events are told.
    pub events: EventHub,
}

/// What [`Resources::open`] opened for others to serve.
pub(crate) struct Opened {
    /// Where peers come in.
    pub listeners: Vec<Listener>,
    /// What the disk threads answer.
    pub replies: Replies,
}

impl Resources {
    /// Listens, and starts the disk threads.
    pub(crate) fn open(config: SessionConfig) -> Result<(Self, Opened), SessionError> {
        let now = Instant::now();
        let uplinks = match Uplinks::open(&config.paths.interfaces, now) {
            // There is one way, whichever interface leads to it.
            _ if config.proxy.is_some() => None,
            // Where nobody names any, connections go as the system's routes go.
            Err(InterfaceError::Io(_)) if config.paths.interfaces.is_empty() => None,
            opened => Some(Rc::new(opened.map_err(SessionError::Interfaces)?)),
        };
        let mut listeners = Vec::new();
        let mut listening = Vec::new();
        for address in &config.listen {
            let failed = |source| SessionError::Listen { address: *address, source };
            let at = listen(*address, &config.paths.interfaces).map_err(failed)?;
            listening.extend(at.first().map(TcpListener::local_addr));
            listeners.extend(at.into_iter().map(Listener::Tcp));
        }
        let links = Rc::<RefCell<LinkHealth>>::default();
        let scion = config.scion.as_ref().map(|scion| {
            let failed = |source| SessionError::Scion { address: Endpoint::Scion(scion.local), source };
            ScionNet::open(scion, Rc::clone(&links)).map(Rc::new).map_err(failed)
        });
        let scion = scion.transpose()?;
        let beside = if config.keeps_ports_for_ppspp { &[][..] } else { &listening };
        // Behind the SCION socket, whose port it must not take.
        let utp = UtpNet::open(config.utp, beside, config.proxy.as_ref());
        if let Some(uplinks) = uplinks.as_ref().filter(|uplinks| uplinks.interfaces().is_restricted()) {
            utp.keep_to(uplinks);
        }
        if config.utp == Utp::Only {
            // Their ports stay ours over UDP.
            listeners.clear();
        }
        listeners.extend(utp.listeners());
        let ports = Rc::<Ports>::default();
        let leave = Leave::by(&config.paths.interfaces);
        // Datagrams would go past a proxy that does not relay them.
        let dht = config.dht.as_ref().filter(|_| config.proxy.is_none() || utp.relayed().is_some());
        let dht = dht.map(|dht| {
            let (listening, uplinks, ports) = (listening.clone(), uplinks.clone(), Rc::clone(&ports));
            let around = Surroundings { listening, uplinks, ports, leave: leave.clone() };
            Rc::new(DhtNode::open(dht, around, &utp, scion.as_ref(), (&config.filter, config.seed)))
        });
        listeners.extend(scion.iter().map(|net| Listener::Quic(Rc::clone(&net.endpoint))));
        let (disk, replies) = Disk::new(config.disk_threads).map_err(SessionError::Threads)?;
        let identity = config.scion.as_ref().map(|scion| scion.identity.clone());
        // Without randomness, connections of ours over several addresses are not known as one peer's.
        let identity = identity.or_else(|| Identity::ephemeral().ok());
        let resources = Self {
            listening,
            utp,
            scion,
            dht,
            relay_failure: RefCell::default(),
            ports,
            uplinks,
            links,
            board: RefCell::default(),
            identity_secret: identity.map(|identity| identity.secret(IDENTITY_PURPOSE)),
            peer_id: peer_id(config.seed),
            pools: Pools::new(config.buffer_bytes),
            requested_bytes: Cell::new(0),
            disk,
            down: Line::new(config.limit_down, now),
            up: Line::new(config.limit_up, now),
            connections: Cell::new(0),
            callers: Callers::default(),
            pace: Pace::new(now),
            trackers: Client::new(ClientConfig {
                access: TrackerAccess { filter: Arc::clone(&config.filter), proxy: config.proxy.clone(), leave },
                ..ClientConfig::default()
            }),
            opening: Semaphore::new(OPENING_MAX),
            checking: Semaphore::new(CHECKING_MAX),
            closing: Semaphore::new(CLOSING_MAX),
            events: EventHub::default(),
            config,
        };
        Ok((resources, Opened { listeners, replies }))
    }

    /// Where peers reach us, as they see it: the port told to trackers and peers.
    pub(crate) fn listen_port(&self) -> Option<u16> {
        self.listening.first().map(|at| self.ports.outside(Protocol::Tcp, at.port()))
    }

    /// The same of our node of the distributed hash table.
    pub(crate) fn dht_port(&self) -> Option<u16> {
        self.dht.as_ref()?.port().map(|port| self.ports.outside(Protocol::Udp, port))
    }

    /// The ways out, where the user says which may be used.
    pub(crate) fn named_uplinks(&self) -> Option<&Rc<Uplinks>> {
        self.uplinks.as_ref().filter(|uplinks| uplinks.interfaces().is_restricted())
    }

    /// Whether there is a place for one more connection.
    pub(crate) fn has_room(&self) -> bool {
        self.connections.get() < self.config.connections_max
    }

    /// Counts one more connection, until what is answered is dropped.
    pub(crate) fn take_connection(self: &Rc<Self>) -> CountedConnection {
        self.connections.set(self.connections.get() + 1);
        CountedConnection(Rc::clone(self))
    }

    /// Tells the owner, and whoever else listens.
    pub(crate) fn tell(&self, event: Event) {
        self.events.tell(event);
    }
}

/// Listens at `address`. Where that is every address, and the user names the `interfaces` that may be left by, there and within this
/// machine alone: who calls by another would be answered by it.
fn listen(address: SocketAddr, interfaces: &[String]) -> io::Result<Vec<TcpListener>> {
    if interfaces.is_empty() || !address.ip().is_unspecified() {
        return TcpListener::bind(address).map(|listener| vec![listener]);
    }
    let all = Interfaces::new(&[]).map_err(io::Error::other)?;
    let own = all.list().iter().filter(|interface| interface.loopback).map(|interface| &interface.name);
    let mut names: Vec<&String> = interfaces.iter().chain(own).collect();
    names.sort_unstable();
    names.dedup();
    let mut listeners: Vec<TcpListener> = Vec::new();
    for name in names {
        // The first has the system choose a port, where nobody did.
        let address = listeners.first().map_or(address, TcpListener::local_addr);
        match TcpListener::bind_to(address, name) {
            Ok(listener) => listeners.push(listener),
            // Where the system does not allow that, who calls is let in from anywhere.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && listeners.is_empty() => {
                return TcpListener::bind(address).map(|listener| vec![listener]);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(listeners)
}

impl Resources {
    /// How a content's paths are chosen, as the user says.
    pub(crate) fn manager_config(&self) -> ManagerConfig {
        let (paths, net) = (&self.config.paths, &self.scion);
        ManagerConfig {
            wished: paths.wished,
            granted: paths.granted,
            connections: paths.connections,
            selector: paths.selector,
            chooses_alone: net.as_ref().is_some_and(|net| net.is_restricted()),
            scion_host: net.as_ref().map(|net| net.endpoint.local().ip()),
            leaves_silent: false,
        }
    }
}

impl Drop for Resources {
    fn drop(&mut self) {
        self.events.end();
    }
}

/// A connection's place among those of the session.
pub(crate) struct CountedConnection(Rc<Resources>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get().saturating_sub(1));
    }
}
