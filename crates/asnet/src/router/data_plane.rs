//! The data plane of a process: worker threads, and the routers whose sockets they serve.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use anabranch_paths::IsdAs;
use anabranch_scion_wire::Service;
use anabranch_udp::{Options, Socket};

use super::config::{RouterConfig, RouterError, SERVICE_INSTANCES_MAX, SERVICES_MAX};
use super::counters::{Counters, InterfaceStats};
use super::epoll::{Epoll, Waker};
use super::forward::Forwarder;
use super::port::{Line, Port};
use super::probe::ProbeLog;
use super::worker::{Source, Worker};
use crate::link::{LinkShape, ShapeError};

/// Worker threads at most: beyond it, they would wait for each other's cores.
const WORKERS_MAX: usize = 64;
/// What the kernel keeps of arrived packets for one socket: ten milliseconds at full speed, while another thread has the
/// core. What comes beyond that is dropped there, before any work was done for it.
const RECV_BUFFER_BYTES: usize = 8 << 20;

/// Threads that forward for all routers of the process. Dropping it stops them.
pub struct DataPlane {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Sockets handed out so far: they are dealt to the workers in turn.
    sockets: AtomicUsize,
}

/// What workers and routers know of each other.
pub(super) struct Shared {
    pub(super) start: Instant,
    pub(super) is_stopped: AtomicBool,
    workers: Vec<Mailbox>,
}

/// How a worker is told something.
struct Mailbox {
    commands: Mutex<Vec<Command>>,
    waker: Waker,
}

/// What a worker is told.
pub(super) enum Command {
    /// Serve this socket.
    Read(Box<Source>),
    /// Serve this line until it is idle.
    Serve(Arc<Router>, usize),
}

/// A border router at work.
pub struct Router {
    pub(super) isd_as: IsdAs,
    pub(super) shared: Arc<Shared>,
    rules: RwLock<Arc<Forwarder>>,
    pub(super) internal: Vec<Socket>,
    pub(super) internal_counters: Counters,
    /// By interface id, ascending.
    pub(super) ports: Vec<Port>,
}

impl DataPlane {
    /// Starts `workers` threads; by default as many as there are cores.
    pub fn start(workers: Option<usize>) -> Result<Self, RouterError> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let workers = workers.unwrap_or(cores).clamp(1, WORKERS_MAX);
        let mut epolls = Vec::new();
        let mut mailboxes = Vec::new();
        for _ in 0..workers {
            let epoll = Epoll::new()?;
            mailboxes.push(Mailbox { commands: Mutex::default(), waker: epoll.waker()? });
            epolls.push(epoll);
        }
        let shared = Arc::new(Shared { start: Instant::now(), is_stopped: AtomicBool::new(false), workers: mailboxes });
        let mut plane = Self { shared, threads: Vec::new(), sockets: AtomicUsize::new(0) };
        for (index, epoll) in epolls.into_iter().enumerate() {
            let worker = Worker::new(Arc::clone(&plane.shared), index, epoll);
            let builder = std::thread::Builder::new().name(format!("router-{index}"));
            plane.threads.push(builder.spawn(move || worker.run())?);
        }
        Ok(plane)
    }

    /// Binds a router's addresses and lets it work.
    pub fn add_router(&self, config: &RouterConfig) -> Result<Arc<Router>, RouterError> {
        config.check()?;
        let isd_as = config.isd_as;
        let bind = |address: SocketAddr| {
            let options = Options { recv_buffer_bytes: RECV_BUFFER_BYTES, ecn: false, ..Options::default() };
            Socket::bind(address, &options).map_err(|error| RouterError::Bind { isd_as, address, error })
        };
        let internal = config.internal.iter().map(|address| bind(*address)).collect::<Result<_, _>>()?;
        let mut ports = Vec::with_capacity(config.interfaces.len());
        // Which packets a line loses shall differ from line to line and run to run.
        let seeds = RandomState::new();
        for interface in &config.interfaces {
            ports.push(Port {
                id: interface.id,
                remote: interface.remote,
                socket: bind(interface.local)?,
                line: Line::new(interface.shape, seeds.hash_one(interface.id), self.shared.start),
                counters: Counters::default(),
                probes: Mutex::new(ProbeLog::default()),
            });
        }
        ports.sort_by_key(|port| port.id);
        let router = Arc::new(Router {
            isd_as,
            shared: Arc::clone(&self.shared),
            rules: RwLock::new(Arc::new(Forwarder::new(config))),
            internal,
            internal_counters: Counters::default(),
            ports,
        });
        for source in Source::all(&router) {
            let worker = self.sockets.fetch_add(1, Ordering::Relaxed) % self.shared.workers.len();
            self.shared.command(worker, Command::Read(Box::new(source)));
        }
        Ok(router)
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        self.shared.wake_all();
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    pub(super) fn command(&self, worker: usize, command: Command) {
        let Some(mailbox) = self.workers.get(worker) else { return };
        mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        mailbox.waker.wake();
    }

    /// For whichever worker: which one a line is served by does not matter.
    pub(super) fn command_any(&self, command: Command) {
        self.command(0, command);
    }

    pub(super) fn take_commands(&self, worker: usize) -> Vec<Command> {
        let Some(mailbox) = self.workers.get(worker) else { return Vec::new() };
        std::mem::take(&mut *mailbox.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wake_all(&self) {
        self.workers.iter().for_each(|worker| worker.waker.wake());
    }
}

impl Router {
    /// Its AS.
    pub fn isd_as(&self) -> IsdAs {
        self.isd_as
    }

    /// Where hosts hand in packets: the first internal address, with the port that the system gave if none was asked.
    pub fn internal_address(&self) -> SocketAddr {
        // A checked configuration has an internal address, and each was bound.
        self.internal[0].local_addr()
    }

    /// The numbers of its interfaces, ascending.
    pub fn interfaces(&self) -> impl Iterator<Item = u16> {
        self.ports.iter().map(|port| port.id)
    }

    /// Takes an interface down or up again. While it is down, nothing passes it, and who sends to it is told.
    pub fn set_up(&self, interface: u16, is_up: bool) -> Result<(), RouterError> {
        self.port(interface)?;
        self.change_rules(|rules| {
            if let Some(interface) = rules.interface_mut(interface) {
                interface.is_up = is_up;
            }
        });
        Ok(())
    }

    /// Whether an interface is up.
    pub fn is_up(&self, interface: u16) -> Result<bool, RouterError> {
        self.port(interface)?;
        Ok(self.rules().interface(interface).is_some_and(|interface| interface.is_up))
    }

    /// Gives the line that leaves at an interface another shape; what is on it stays.
    pub fn set_shape(&self, interface: u16, shape: LinkShape) -> Result<(), RouterError> {
        let refuse = |error: ShapeError| RouterError::Shape(self.isd_as, interface, error);
        let shape = shape.checked().map_err(refuse)?;
        self.port(interface)?.line.set_shape(Instant::now(), shape);
        self.change_rules(|rules| {
            if let Some(interface) = rules.interface_mut(interface) {
                interface.mtu = shape.mtu;
            }
        });
        // What waited for a slow line may be due now.
        self.shared.wake_all();
        Ok(())
    }

    /// The shape of the line that leaves at an interface.
    pub fn shape(&self, interface: u16) -> Result<LinkShape, RouterError> {
        Ok(self.port(interface)?.line.shape())
    }

    /// Names who runs a service of the AS from now on; nobody, if `instances` is empty.
    pub fn set_service(&self, service: Service, instances: Vec<SocketAddr>) -> Result<(), RouterError> {
        if instances.len() > SERVICE_INSTANCES_MAX {
            return Err(RouterError::TooMany(self.isd_as, "instances of a service", SERVICE_INSTANCES_MAX));
        }
        if self.rules().service_count() >= SERVICES_MAX {
            return Err(RouterError::TooMany(self.isd_as, "services", SERVICES_MAX));
        }
        self.change_rules(|rules| rules.set_service(service, instances));
        Ok(())
    }

    /// Counts of an interface.
    pub fn stats(&self, interface: u16) -> Result<InterfaceStats, RouterError> {
        let port = self.port(interface)?;
        Ok(InterfaceStats { lost_packets: port.line.stats().lost_packets, ..port.counters.read() })
    }

    /// Counts of the AS's inside.
    pub fn internal_stats(&self) -> InterfaceStats {
        self.internal_counters.read()
    }

    pub(super) fn port(&self, interface: u16) -> Result<&Port, RouterError> {
        let index = self.port_index(interface).ok_or(RouterError::UnknownInterface(self.isd_as, interface))?;
        Ok(&self.ports[index])
    }

    pub(super) fn port_index(&self, interface: u16) -> Option<usize> {
        self.ports.binary_search_by_key(&interface, |port| port.id).ok()
    }

    /// The rules as they are now.
    pub(super) fn rules(&self) -> Arc<Forwarder> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Workers see the changed rules from their next batch on.
    fn change_rules(&self, change: impl FnOnce(&mut Forwarder)) {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Forwarder::clone(&rules);
        change(&mut changed);
        *rules = Arc::new(changed);
    }
}
