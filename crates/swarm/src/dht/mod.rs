//! The distributed hash table over real sockets: see [`anabranch_dht`], which decides all.
//!
//! One node for all contents of a session. It is at the UDP ports beside the listeners, over every uplink with a name of its own (BEP 45),
//! and over SCION at a socket of its own. Where all goes through a proxy, it is behind that one alone. It does nothing before a content asks for it that is not private.
//!
//! | module | what it does |
//! | --- | --- |
//! | this one | lends the core sockets and time, passes on what searches find, and asks those whom `entry` names |
//! | `homes` | which addresses of ours are places in a network; they come and go with uplinks |
//! | `entry` | whom to ask first, where nobody is known: nodes that are kept, that the user or a torrent names, and public ones |
//! | `scion` | its socket in the SCION network |
//! | `kept` | the tables, from run to run |

mod entry;
mod homes;
mod kept;
mod scion;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::ip_filter::IpFilter;
use anabranch_bittorrent::reach::{may_link_to_peer, may_name_peer};
use anabranch_dht::wire::is_krpc;
use anabranch_dht::{Config, Dht, Event, Family, Goal, Policy, SearchId, Transmit};
use anabranch_paths::Endpoint;
use anabranch_paths::manager::UPLINKS_EVERY;
use anabranch_portmap::Protocol;
use anabranch_transport::UtpEndpoint;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::net::leave::Leave;
use crate::net::own_addresses::are_at_home;
use crate::net::ports::Ports;
use crate::net::scion::ScionNet;
use crate::net::uplinks::Uplinks;
use crate::net::utp::{UtpNet, keep_to};

use entry::{Asked, Entry};
use homes::Homes;
use kept::SavedTables;
use scion::ScionPort;

/// How often the tables are kept.
const KEPT_EVERY: Duration = Duration::from_secs(5 * 60);
/// Our program, to other nodes: by custom two letters and a version.
const VERSION: [u8; 4] = *b"AB01";

/// How the distributed hash table is used.
#[derive(Clone, Debug, Default)]
pub struct DhtConfig {
    /// Nodes that the user named, host and port: asked where nobody else is known.
    pub nodes: Vec<(String, u16)>,
    /// Nodes that anybody may ask: the last resort of a content that finds nobody or is to be found, on a machine with an address on the
    /// Internet.
    pub public_nodes: Vec<(String, u16)>,
    /// Where tables are kept from run to run; `None` keeps none.
    pub file: Option<PathBuf>,
}

/// What the node has to know of where it is.
pub(crate) struct Surroundings {
    /// Where the session listens.
    pub listening: Vec<SocketAddr>,
    /// The ways out of this machine; `None` where the system does not tell.
    pub uplinks: Option<Rc<Uplinks>>,
    /// The ports that routers opened.
    pub ports: Rc<Ports>,
    /// How names are looked up.
    pub leave: Leave,
}

/// The node of a session.
pub(crate) struct DhtNode {
    around: Surroundings,
    core: RefCell<Dht>,
    homes: RefCell<Homes>,
    /// Beside the listeners, shared with uTP where that is at the same ports.
    ports: Vec<Rc<UtpEndpoint>>,
    /// Those among them that are ours alone.
    own_ports: Vec<Rc<UtpEndpoint>>,
    scion: Option<Rc<ScionPort>>,
    entry: Entry,
    kept: RefCell<SavedTables>,
    is_begun: Cell<bool>,
    /// The open ports that our names were last made to fit.
    ports_version: Cell<u64>,
    searches: RefCell<HashMap<SearchId, UnboundedSender<Event>>>,
    wake: Notify,
    /// The first node of a network is known.
    met: Notify,
}

/// A search under way; dropped, it is cancelled.
pub(crate) struct Searching {
    node: Rc<DhtNode>,
    id: SearchId,
    /// At most as many as the core tells of one search.
    events: UnboundedReceiver<Event>,
}

struct Guard {
    filter: Arc<IpFilter>,
}

impl Policy for Guard {
    fn fits(&self, address: &Endpoint, met_at: &Endpoint) -> bool {
        may_name_peer(met_at, address)
    }

    fn blocks(&self, address: &Endpoint) -> bool {
        self.filter.blocks(address)
    }
}

impl DhtNode {
    /// Takes the sockets that `utp` has beside the listeners, and opens others where it has none; only the one behind the proxy, where
    /// there is one. Nothing is sent yet.
    pub(crate) fn open(
        config: &DhtConfig,
        around: Surroundings,
        utp: &UtpNet,
        scion: Option<&Rc<ScionNet>>,
        (filter, seed): (&Arc<IpFilter>, u64),
    ) -> Self {
        let now = Instant::now();
        let mut own_ports = Vec::new();
        let mut open = |address: &SocketAddr| {
            utp.beside(*address).or_else(|| {
                let port = UtpEndpoint::bind(SocketAddr::new(address.ip(), 0), false).ok()?;
                if let Some(uplinks) = around.uplinks.as_ref().filter(|uplinks| uplinks.interfaces().is_restricted()) {
                    keep_to(&port, uplinks);
                }
                own_ports.push(Rc::clone(&port));
                Some(port)
            })
        };
        let ports = match utp.relayed() {
            Some(relayed) => vec![Rc::clone(relayed)],
            None => around.listening.iter().filter_map(&mut open).collect(),
        };
        let mut secret = [0; 16];
        let mut rng = fastrand::Rng::new();
        rng.fill(&mut secret);
        let core = Config {
            secret,
            seed,
            read_only: false,
            version: VERSION,
            policy: Box::new(Guard { filter: Arc::clone(filter) }),
        };
        Self {
            around,
            core: RefCell::new(Dht::new(core, now)),
            homes: RefCell::default(),
            ports,
            own_ports,
            scion: scion.and_then(ScionPort::open).map(Rc::new),
            entry: Entry::new(config.nodes.clone(), config.public_nodes.clone()),
            kept: RefCell::new(SavedTables::new(config.file.clone())),
            is_begun: Cell::new(false),
            ports_version: Cell::new(0),
            searches: RefCell::default(),
            wake: Notify::new(),
            met: Notify::new(),
        }
    }

    /// Its port over plain IP, as peers are told (BEP 5, "port"); none behind a proxy, where it is another one.
    pub(crate) fn port(&self) -> Option<u16> {
        self.ports.first().filter(|port| !port.is_relayed()).map(|port| port.local_addr().port())
    }

    /// The socket behind a proxy, where it is there.
    fn relayed(&self) -> Option<&Rc<UtpEndpoint>> {
        self.ports.first().filter(|port| port.is_relayed())
    }

    /// The same over SCION.
    pub(crate) fn scion_port(&self) -> Option<u16> {
        self.scion.as_ref().map(|port| port.local().host.port())
    }

    /// A content that is not private wants it. The first one has it take its places in the networks.
    pub(crate) fn begin(&self) {
        if self.is_begun.replace(true) {
            return;
        }
        let now = Instant::now();
        self.kept.borrow_mut().read();
        self.settle_in(now);
        self.core.borrow_mut().on_deadline(now);
        self.flush();
        self.wake.notify_one();
    }

    /// Whether a search may find anybody, now or soon.
    pub(crate) fn may_find(&self, now: Instant) -> bool {
        self.nodes() > 0 || self.entry.is_asking(now) || self.core.borrow().is_joining()
    }

    /// Nodes that are known.
    pub(crate) fn nodes(&self) -> usize {
        let core = self.core.borrow();
        Family::ALL.into_iter().map(|family| core.nodes(family)).sum()
    }

    /// Wakes when the first node of a network is known.
    pub(crate) async fn met(&self) {
        self.met.notified().await;
    }

    /// Begins a search; `None` while there are too many.
    pub(crate) fn search(self: &Rc<Self>, goal: Goal) -> Option<Searching> {
        let now = Instant::now();
        // The search bounds it: it asks so many nodes, and tells of each answer once.
        let (sender, events) = unbounded_channel();
        let id = self.core.borrow_mut().search(goal, now)?;
        self.searches.borrow_mut().insert(id, sender);
        self.flush();
        self.wake.notify_one();
        Some(Searching { node: Rc::clone(self), id, events })
    }

    /// Somebody says that a node is there.
    pub(crate) fn add_node(&self, address: Endpoint) {
        if self.is_begun.get() {
            self.core.borrow_mut().add_node(address, Instant::now());
            self.flush();
            self.wake.notify_one();
        }
    }

    /// Nobody is known, and a content wants somebody: whom the user, a torrent (`named`) or everybody knows is asked, as far as that is
    /// allowed. Public nodes are only where the content `is_alone`.
    pub(crate) fn look_for_entry(self: &Rc<Self>, named: &[(String, u16)], is_alone: bool) {
        for asked in self.entry.whom(named, is_alone, || self.is_abroad(), Instant::now()) {
            self.ask(asked);
        }
    }

    /// Whether public nodes may be asked from here.
    fn is_abroad(&self) -> bool {
        if self.relayed().is_some() {
            return true;
        }
        // They are nobody's to ask over SCION alone.
        if self.ports.is_empty() {
            return false;
        }
        self.around.uplinks.as_ref().is_some_and(|uplinks| entry::is_abroad(&uplinks.interfaces()))
    }

    /// Looks hosts up, and asks them. Behind a proxy, which looks names up, those that have one are asked by that.
    fn ask(self: &Rc<Self>, asked: Asked) {
        let at_home = are_at_home(&self.around.listening);
        let number = self.entry.number(self.relayed().is_some());
        for (host, port) in asked.names {
            let relayed = self.relayed().cloned();
            let (node, leave) = (Rc::downgrade(self), self.around.leave.clone());
            tokio::task::spawn_local(async move {
                if let Some(relayed) = &relayed
                    && !relayed.has_way_out().await
                {
                    return;
                }
                let addresses = match &relayed {
                    Some(_) => host.parse().map(|ip| SocketAddr::new(ip, port).into()).into_iter().collect(),
                    None => entry::addresses(&leave, &host, port).await,
                };
                let Some(node) = node.upgrade() else { return };
                if let Some(relayed) = relayed.filter(|_| addresses.is_empty()) {
                    entry::ask_by_name(&relayed, &host, port, number);
                }
                let may = |address: &Endpoint| asked.is_trusted || may_link_to_peer::<&[u8]>(address, [], at_home);
                addresses.into_iter().filter(may).for_each(|address| node.add_node(address));
            });
        }
    }

    /// Serves its sockets, until the session ends.
    pub(crate) fn serve(self: &Rc<Self>, tasks: &mut JoinSet<()>) {
        for (at, port) in self.ports.iter().enumerate() {
            // The node has the port.
            let node = Rc::downgrade(self);
            port.set_other(move |from, local, datagram| {
                if let Some(node) = node.upgrade().filter(|_| is_krpc(datagram)) {
                    node.received(at, from, local, datagram);
                }
            });
        }
        for port in &self.own_ports {
            tasks.spawn_local(Rc::clone(port).run());
        }
        if let Some(port) = &self.scion {
            let node = Rc::clone(self);
            tasks.spawn_local(Rc::clone(port).serve(move |from, datagram| node.received_scion(from, datagram)));
        }
        tasks.spawn_local(Rc::clone(self).keep_time());
    }

    /// Keeps the tables: the session ends.
    pub(crate) fn keep(&self) {
        let places = self.homes.borrow().snapshot(&self.core.borrow(), Instant::now());
        self.kept.borrow_mut().write(&places);
    }

    async fn keep_time(self: Rc<Self>) {
        while !self.is_begun.get() {
            self.wake.notified().await;
        }
        let (mut kept_at, mut looked_at) = (Instant::now(), Instant::now());
        loop {
            let now = Instant::now();
            if now >= looked_at + UPLINKS_EVERY {
                looked_at = now;
                self.settle_in(now);
            }
            if now >= kept_at + KEPT_EVERY {
                kept_at = now;
                self.keep();
            }
            self.core.borrow_mut().on_deadline(now);
            self.flush();
            let deadline = self.core.borrow().deadline();
            let wait = deadline.map_or(UPLINKS_EVERY, |at| at.saturating_duration_since(now).min(UPLINKS_EVERY));
            // Not more often than the core could mean: a deadline that has passed is its own affair.
            let wait = wait.max(Duration::from_millis(1));
            let _ = tokio::time::timeout(wait, self.wake.notified()).await;
        }
    }

    /// Takes places at the addresses that there are now.
    fn settle_in(&self, now: Instant) {
        let wanted = {
            let uplinks = self.around.uplinks.as_ref();
            if let Some(uplinks) = uplinks {
                uplinks.refresh(now);
            }
            let interfaces = uplinks.map(|uplinks| uplinks.interfaces());
            let ports: Vec<SocketAddr> = self.ports.iter().map(|port| port.local_addr()).collect();
            homes::wanted(&ports, interfaces.as_deref(), self.scion.as_ref().map(|port| port.local()))
        };
        let (mut core, mut kept) = (self.core.borrow_mut(), self.kept.borrow_mut());
        self.homes.borrow_mut().settle(wanted, &mut core, &mut kept, now);
        // A router's word is heeded once, so that others may say otherwise.
        let opened = &self.around.ports;
        if self.ports_version.replace(opened.version()) != opened.version() {
            for open in opened.list().iter().filter(|open| open.is_public()) {
                let is_its = |port: &Rc<UtpEndpoint>| port.local_addr().port() == open.local.port();
                let port = self.ports.iter().position(is_its).filter(|_| open.protocol == Protocol::Udp);
                let home = port.and_then(|port| self.homes.borrow().at(port, Family::V4, Some(open.local.ip())));
                if let Some(home) = home {
                    core.set_address(home, open.external.into(), now);
                }
            }
        }
    }

    fn received(&self, port: usize, from: SocketAddr, local: Option<IpAddr>, datagram: &[u8]) {
        let from = Endpoint::from(from);
        if self.entry.is_answer_by_name(datagram) {
            return self.add_node(from);
        }
        let home = self.homes.borrow().at(port, Family::of(&from), local);
        if let Some(home) = home {
            self.core.borrow_mut().receive(home, from, datagram, Instant::now());
            self.flush();
            // Its deadline may be another.
            self.wake.notify_one();
        }
    }

    /// A datagram came over SCION.
    fn received_scion(&self, from: Endpoint, datagram: &[u8]) {
        let home = self.homes.borrow().scion();
        if let Some(home) = home {
            self.core.borrow_mut().receive(home, from, datagram, Instant::now());
            self.flush();
            // Its deadline may be another.
            self.wake.notify_one();
        }
    }

    /// Sends what there is to send, and tells what there is to tell.
    fn flush(&self) {
        loop {
            let transmit = self.core.borrow_mut().poll_transmit();
            let Some(transmit) = transmit else { break };
            self.send(&transmit);
        }
        loop {
            let event = self.core.borrow_mut().poll_event();
            let Some(event) = event else { break };
            self.tell(event);
        }
    }

    fn send(&self, transmit: &Transmit) {
        match transmit.to {
            Endpoint::Ip(to) => {
                let homes = self.homes.borrow();
                let Some((port, via)) = homes.way(transmit.home) else { return };
                if let Some(port) = self.ports.get(port) {
                    port.send_other(via, to, &transmit.bytes);
                }
            }
            Endpoint::Scion(to) => {
                if let Some(port) = &self.scion {
                    port.send(to, &transmit.bytes);
                }
            }
        }
    }

    fn tell(&self, event: Event) {
        let search = match &event {
            Event::Peers { search, .. }
            | Event::Item { search, .. }
            | Event::Samples { search, .. }
            | Event::Ended { search, .. } => *search,
            Event::Met { .. } => return self.met.notify_waiters(),
            Event::Joined { .. } | Event::Address { .. } => return,
        };
        let is_over = matches!(event, Event::Ended { .. });
        let mut searches = self.searches.borrow_mut();
        if let Some(sender) = searches.get(&search) {
            // Whoever cancelled it listens no more.
            let _ = sender.send(event);
        }
        if is_over {
            searches.remove(&search);
        }
    }
}

impl Searching {
    /// What it found next; `None` once it has ended.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Searching {
    fn drop(&mut self) {
        self.node.searches.borrow_mut().remove(&self.id);
        self.node.core.borrow_mut().cancel(self.id);
    }
}
