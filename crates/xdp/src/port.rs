//! An interface at work: its program, its queues, and whom it takes datagrams for.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::capabilities::Capability;
use crate::error::Error;
use crate::frame::{FRAME_OVERHEAD, FrameTemplate};
use crate::kernel::{Interface, Kernel};
use crate::program::{KEY_LEN, KEYS_MAX, assemble, key};
use crate::sys::bpf::{AttachMode, Map, Program};
use crate::sys::queue::Queue;

/// Queues that get a socket: 6 to 12 MiB each. What comes by others is left to the kernel.
pub const QUEUES_MAX: u32 = 8;
/// How often the kernel is asked for news at most. Until then frames may go to a neighbour that has moved.
pub const NEWS_EVERY: Duration = Duration::from_millis(20);
/// What a process that was killed had held is let go by the kernel's workers some time after it is gone
/// (`xp_put_pool`, `bpf_link_put`). Who starts again at once waits for them so long, in all, at each step.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
/// Between two attempts in that time: a grace period of RCU and a turn of the worker are rarely shorter.
const RELEASE_POLL: Duration = Duration::from_millis(10);

/// How frames get from and to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The driver reads and writes them where they lie.
    ZeroCopy,
    /// The program runs in the driver, and the kernel copies frames.
    Copy,
    /// The program runs behind the driver, and the kernel copies frames.
    Generic,
}

/// An interface whose frames for one UDP socket go past the kernel's network layers. When it is dropped, or the process
/// ends in any way, the interface is as before.
pub struct Port {
    interface: Interface,
    mode: Mode,
    local: SocketAddr,
    frame_len_max: usize,
    // Dropped first: nothing is redirected any more.
    _link: OwnedFd,
    _program: Program,
    _sockets: Map,
    queues: Box<[Queue]>,
    state: Mutex<State>,
    /// How often the kernel's news made what was known of the network doubtful.
    generation: AtomicU64,
}

struct State {
    kernel: Kernel,
    addresses: Map,
    /// What is in the map.
    taken: Vec<[u8; KEY_LEN]>,
    asked: Instant,
}

/// How to reach a socket past the kernel.
#[derive(Clone, Debug)]
pub struct Hop {
    /// The headers of frames there.
    pub template: FrameTemplate,
    /// Bytes of the longest frame that goes this way.
    pub frame_len_max: usize,
    /// It holds as long as [`Port::generation`] says the same.
    pub generation: u64,
}

impl Port {
    /// Starts to take UDP datagrams to `local` from the interface of this name; of an unspecified address, to those of the interface.
    /// A socket of the system at `local` should be there too: for what comes by other interfaces, in fragments or in jumbo
    /// frames, and because the kernel refuses datagrams to ports without one. Waits, two seconds at most a step, where
    /// another program holds the interface: it may just have ended.
    ///
    /// # Errors
    /// A capability is missing, or this interface does not do.
    pub fn attach(interface: &str, local: SocketAddr) -> Result<Self, Error> {
        let io = |what| move |error| Error::of_system(interface, what, error);
        let kernel = Kernel::new().map_err(io("rtnetlink"))?;
        let interface_found = kernel.interface(interface)?;
        let missing = Capability::missing();
        if !missing.is_empty() {
            return Err(Error::Capabilities { interface: interface.to_owned(), missing });
        }
        let frame_len_max = Queue::frame_len_max(interface_found.mtu as usize + FRAME_OVERHEAD);
        let addresses = Map::hash(KEY_LEN, KEYS_MAX).map_err(io("a BPF map"))?;
        let sockets = Map::sockets(QUEUES_MAX).map_err(io("a BPF map"))?;
        let code = assemble(addresses.raw(), sockets.raw(), frame_len_max as u32);
        let program = Program::load(&code).map_err(io("a BPF program"))?;
        let (link, native) = once_released(|| attach(&program, interface_found.index), |error| error)
            .map_err(io("another XDP program"))?;
        let mut queues = Vec::new();
        for queue in 0..QUEUES_MAX {
            let bind = || Queue::bind(interface_found.index, queue, frame_len_max);
            match once_released(bind, |(_, error)| error) {
                Ok(socket) => {
                    let raw = std::os::fd::AsRawFd::as_raw_fd(&socket.fd()).cast_unsigned();
                    sockets.insert(&queue.to_ne_bytes(), raw).map_err(io("an AF_XDP socket"))?;
                    queues.push(socket);
                }
                // It has no more queues.
                Err((_, error)) if queue > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
                Err((_, error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    let bytes = Queue::memory_bytes(frame_len_max);
                    return Err(Error::LockedMemory { interface: interface.to_owned(), bytes });
                }
                Err((what, error)) => return Err(Error::of_system(interface, what, error)),
            }
        }
        let mode = match (native, queues.iter().all(Queue::is_zero_copy)) {
            (AttachMode::Native, true) => Mode::ZeroCopy,
            (AttachMode::Native, false) => Mode::Copy,
            (AttachMode::Generic, _) => Mode::Generic,
        };
        let state = State { kernel, addresses, taken: Vec::new(), asked: Instant::now() };
        let port = Self {
            interface: interface_found,
            mode,
            local,
            frame_len_max,
            _link: link,
            _program: program,
            _sockets: sockets,
            queues: queues.into(),
            state: Mutex::new(state),
            generation: AtomicU64::new(0),
        };
        port.take_addresses(&mut port.lock()).map_err(io("the list of addresses"))?;
        Ok(port)
    }

    /// The interface, as it was at the start.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// How frames get from and to it.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Queues with a socket.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Bytes of the longest IP packet that goes this way.
    pub fn packet_len_max(&self) -> usize {
        (self.frame_len_max - FRAME_OVERHEAD).min(self.interface.mtu as usize)
    }

    /// Descriptors of the queues: readable while frames wait.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(Queue::fd)
    }

    /// Frames for us that the kernel dropped because nobody read the ones before.
    pub fn dropped(&self) -> u64 {
        self.queues.iter().map(Queue::dropped).sum()
    }

    /// Changes when a [`Hop`] may not hold any more.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads what has changed in the kernel, no more often than every [`NEWS_EVERY`].
    pub fn refresh(&self, now: Instant) {
        let mut state = self.lock();
        if now.saturating_duration_since(state.asked) < NEWS_EVERY {
            return;
        }
        state.asked = now;
        if state.kernel.has_changed() {
            // What cannot be asked now is as it was.
            let _ = self.take_addresses(&mut state);
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// The way to the socket at `to`, from `from` if that is told. `None`: packets there leave by another interface, or the
    /// neighbour is not resolved yet. Send there by the system's own socket, and ask again.
    pub fn hop(&self, from: Option<IpAddr>, to: SocketAddr) -> Option<Hop> {
        let bound = Some(self.local.ip().to_canonical()).filter(|ip| !ip.is_unspecified());
        let generation = self.generation();
        let state = self.lock();
        let ip = to.ip().to_canonical();
        let is_one = !ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified();
        let from = from.map(|from| from.to_canonical()).or(bound);
        let route =
            state.kernel.route(ip, from, None).filter(|route| is_one && route.interface == self.interface.index);
        // From that address packets may leave by this interface only if they are told to.
        let route = route.or_else(|| {
            let route = state.kernel.route(ip, from, Some(self.interface.index))?;
            (is_one && from.is_some() && route.interface == self.interface.index).then_some(route)
        })?;
        let neighbour = state.kernel.neighbour(route.next_hop, self.interface.index);
        if neighbour.is_none_or(|neighbour| !neighbour.is_confirmed) {
            // If that fails, the next packet of the system's socket does the same.
            let _ = state.kernel.use_neighbour(route.next_hop, self.interface.index);
        }
        // Its own address and its MTU change, too; and another one may have its name by now.
        let own = state.kernel.interface(&self.interface.name).ok();
        let own = own.filter(|own| own.index == self.interface.index)?;
        let source = SocketAddr::new(route.source?, self.local.port());
        let template = FrameTemplate::new(own.mac, neighbour?.mac, source, SocketAddr::new(ip, to.port()))?;
        let mtu = route.mtu.unwrap_or(u32::MAX).min(own.mtu) as usize;
        let frame_len_max = self.frame_len_max.min(mtu + FRAME_OVERHEAD);
        Some(Hop { template, frame_len_max, generation })
    }

    /// Sends up to `count` frames by one queue: `write` gets the number and the memory of each, and says how many of its
    /// bytes are used. How many the kernel has taken: at least one; in order.
    ///
    /// # Errors
    /// `WouldBlock` if all frames are on their way; else the interface is down or gone.
    pub fn send(&self, queue: usize, count: usize, write: impl FnMut(usize, &mut [u8]) -> usize) -> io::Result<usize> {
        self.queues[queue % self.queues.len()].send(count, write)
    }

    /// Lends up to `count` frames that one queue has received to `take`, in order, and says how many there were.
    pub fn receive(&self, queue: usize, count: usize, take: impl FnMut(&[u8])) -> usize {
        self.queues[queue % self.queues.len()].receive(count, take)
    }

    /// An address that packets of ours have here.
    pub(crate) fn own_address(&self) -> io::Result<IpAddr> {
        let local = self.local.ip().to_canonical();
        if !local.is_unspecified() {
            return Ok(local);
        }
        let own = self.lock().kernel.addresses(self.interface.index)?;
        let found = own.into_iter().find(|ip| local.is_ipv6() || ip.is_ipv4());
        found.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
    }

    /// Fills the map with the addresses that datagrams are taken for.
    fn take_addresses(&self, state: &mut State) -> io::Result<()> {
        let local = self.local.ip().to_canonical();
        let mut wanted: Vec<_> = match local.is_unspecified() {
            false => vec![key(self.local)],
            true => {
                let own = state.kernel.addresses(self.interface.index)?.into_iter();
                // An IPv6 socket at all addresses takes IPv4 too.
                let fits = own.filter(|ip| local.is_ipv6() || ip.is_ipv4());
                fits.map(|ip| key(SocketAddr::new(ip, self.local.port()))).collect()
            }
        };
        wanted.truncate(KEYS_MAX as usize);
        let State { addresses, taken, .. } = state;
        // First out: there may be no room else.
        for gone in taken.iter().filter(|key| !wanted.contains(key)) {
            addresses.remove(gone)?;
        }
        for new in wanted.iter().filter(|key| !taken.contains(key)) {
            addresses.insert(new, 1)?;
        }
        *taken = wanted;
        Ok(())
    }

    /// Without one, what is known of the network stays as it is until the next call anyway.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("interface", &self.interface)
            .field("mode", &self.mode)
            .field("queues", &self.queues.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copy => "copy",
            Self::Generic => "generic",
        })
    }
}

/// What `attempt` comes to when nobody who has ended holds its subject or the locked memory of this user any more.
fn once_released<T, E>(mut attempt: impl FnMut() -> Result<T, E>, said: impl Fn(&E) -> &io::Error) -> Result<T, E> {
    let start = Instant::now();
    loop {
        let result = attempt();
        let is_held =
            |error: &E| matches!(said(error).raw_os_error(), Some(libc::EBUSY | libc::EEXIST | libc::ENOBUFS));
        match result {
            Err(error) if is_held(&error) && start.elapsed() < RELEASE_WAIT => std::thread::sleep(RELEASE_POLL),
            result => return result,
        }
    }
}

/// In the driver if that is possible.
fn attach(program: &Program, interface: u32) -> io::Result<(OwnedFd, AttachMode)> {
    match program.attach(interface, AttachMode::Native) {
        Ok(link) => Ok((link, AttachMode::Native)),
        // No driver's; or not with this MTU, or offload.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ERANGE | libc::EINVAL)) => {
            Ok((program.attach(interface, AttachMode::Generic)?, AttachMode::Generic))
        }
        Err(error) => Err(error),
    }
}
