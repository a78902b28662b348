//! A wire between two namespaces with a rate, a delay, loss and a queue, made in user space; or several ([`Bundle`]).
//!
//! The kernels this has to run on lack `netem`. Each end is a TUN device; one thread moves packets from either end to
//! the other through a [`link::Link`] per direction. The devices carry `virtio_net_hdr` and accept TCP and UDP
//! segmentation offload, so that a 64 KiB burst passes in one read and one write, checksums left undone: a gigabit
//! costs a few percent of one core. With loss, offload is off, so that single packets get lost and not bursts.

pub mod attack;
mod bundle;
pub mod link;

pub use attack::Attack;
pub use bundle::{Bundle, Family};

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anabranch_lab::tun::{self, Framing, Tun};

use crate::net::Namespace;
use crate::{Error, Result};
use attack::Attacker;
use link::{Burst, Link};

/// Packets read from one end before the other gets its turn and due packets are sent.
const BATCH_MAX: usize = 64;
/// Buffers kept for reuse: 1 MiB of queue a direction at the largest packet.
const SPARE_MAX: usize = 512;

/// What a wire is like; the same both ways.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bits a second, IP headers included.
    pub rate_bits: u64,
    /// From one end to the other; a round trip takes twice this.
    pub delay: Duration,
    /// Fraction of packets lost, 0 to 1.
    pub loss: f64,
    /// Bytes that wait for the wire before the next packet is dropped.
    pub queue_bytes: u64,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Seeds the loss.
    pub seed: u64,
    /// Bursts pass as one: cheap, and what does not fit the queue is dropped as one. Where senders compete for the queue, those whose bursts
    /// are shorter would win.
    pub by_burst: bool,
}

impl Shape {
    /// `rate_bits` at `rtt`, no loss, a queue of one delay-bandwidth product (64 KiB at least), MTU 1500.
    pub fn new(rate_bits: u64, rtt: Duration) -> Self {
        let product = (rate_bits as f64 / 8.0 * rtt.as_secs_f64()) as u64;
        let queue_bytes = product.max(64 * 1024);
        Self { rate_bits, delay: rtt / 2, loss: 0.0, queue_bytes, mtu: 1500, seed: 1, by_burst: true }
    }
}

/// What passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of IP packets that left the wire.
    pub bytes: u64,
    /// Reads that carried them (bursts, where offload is on).
    pub bursts: u64,
    /// Bursts dropped because the queue was full.
    pub dropped: u64,
    /// Packets lost by chance.
    pub lost: u64,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    cut: AtomicBool,
    counts: [[AtomicU64; 4]; 2],
    /// How long the next packet waits for its turn, in microseconds.
    waiting_us: [AtomicU64; 2],
}

/// A wire: a device at each end and the thread that carries between them.
struct Cable {
    shared: Arc<Shared>,
    wake: OwnedFd,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Cable {
    /// Makes device `name` in both namespaces, without addresses, and starts to carry.
    fn new(ends: [&Namespace; 2], name: &str, shape: Shape, attack: Option<Attack>) -> Result<Self> {
        let by_burst = shape.by_burst && shape.loss == 0.0 && attack.is_none();
        let framing = if by_burst { Framing::Bursts } else { Framing::Unsummed };
        let tuns = ends.iter().map(|namespace| namespace.enter(|| Ok(Tun::open(name, framing)?)));
        let tuns: Vec<Tun> = tuns.collect::<Result<_>>()?;
        // SAFETY: no preconditions; the descriptor is fresh and owned from here on.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(Error::last_os("eventfd"));
        }
        // SAFETY: as above.
        let wake = unsafe { OwnedFd::from_raw_fd(wake) };
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn({
            let shared = shared.clone();
            let wake = wake.as_raw_fd();
            move || carry(&tuns, shape, attack, &shared, wake)
        });
        Ok(Self { shared, wake, thread: Some(thread) })
    }

    fn counts(&self) -> [Counts; 2] {
        [0, 1].map(|way: usize| {
            let [bytes, bursts, dropped, lost] =
                [0, 1, 2, 3].map(|at: usize| self.shared.counts[way][at].load(Ordering::Relaxed));
            Counts { bytes, bursts, dropped, lost }
        })
    }

    fn waiting(&self) -> [Duration; 2] {
        [0, 1].map(|way: usize| Duration::from_micros(self.shared.waiting_us[way].load(Ordering::Relaxed)))
    }

    fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // SAFETY: eight readable bytes, a descriptor we own.
        unsafe { libc::write(self.wake.as_raw_fd(), 1u64.to_ne_bytes().as_ptr().cast(), 8) };
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Two namespaces and the wire between them.
pub struct Wire {
    /// One end, [`Self::LEFT`].
    pub left: Namespace,
    /// The other, [`Self::RIGHT`].
    pub right: Namespace,
    cable: Cable,
}

impl Wire {
    /// Address of the left end.
    pub const LEFT: &str = "10.99.0.1";
    /// Address of the right end.
    pub const RIGHT: &str = "10.99.0.2";

    const NETWORK: &str = "10.99.0.0/24";

    /// Makes both namespaces and the wire, and starts to carry.
    ///
    /// # Errors
    /// When this process may not make namespaces or TUN devices.
    pub fn new(shape: Shape) -> Result<Self> {
        Self::attacked(shape, None)
    }

    /// The same with somebody on it. What arrives because of that takes nothing of the rate; content goes from left to right.
    ///
    /// # Errors
    /// As [`Wire::new`].
    pub fn attacked(shape: Shape, attack: Option<Attack>) -> Result<Self> {
        let (left, right) = (Namespace::new()?, Namespace::new()?);
        let cable = Cable::new([&left, &right], "wire0", shape, attack)?;
        for (namespace, address) in [(&left, Self::LEFT), (&right, Self::RIGHT)] {
            namespace.device_up("wire0", address, Self::NETWORK, shape.mtu)?;
        }
        Ok(Self { left, right, cable })
    }

    /// What passed so far, left to right and right to left.
    pub fn counts(&self) -> [Counts; 2] {
        self.cable.counts()
    }

    /// How long a packet waited for its turn when the wire was last busy, left to right and right to left.
    pub fn waiting(&self) -> [Duration; 2] {
        self.cable.waiting()
    }

    /// Whether it still carries (it stops only when a device fails).
    pub fn is_alive(&self) -> bool {
        self.cable.is_alive()
    }
}

/// Moves packets until told to stop.
fn carry(ends: &[Tun], shape: Shape, attack: Option<Attack>, shared: &Shared, wake: i32) -> Result<()> {
    // SAFETY: changes how late this thread's timers may fire (nanoseconds), nothing else.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
    let mut links = [Link::new(shape, 0), Link::new(shape, 1)];
    let mut attackers = attack.map(|attack| [0, 1].map(|way| Attacker::new(attack, shape.seed + way, way == 1)));
    let mut arriving = Vec::new();
    let mut spare: Vec<Vec<u8>> = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let mut busy = false;
        for way in 0..2 {
            for _ in 0..BATCH_MAX {
                let mut buffer = spare.pop().unwrap_or_else(|| vec![0; tun::BURST_LEN_MAX]);
                match ends[way].read(&mut buffer)? {
                    Some(_) if shared.cut.load(Ordering::Relaxed) => spare.push(buffer),
                    Some(len) => {
                        let burst = Burst { len, wire_bytes: tun::wire_bytes(&buffer[..len]) };
                        if let Err(buffer) = links[way].push(Instant::now(), buffer, burst) {
                            spare.push(buffer);
                        }
                    }
                    None => {
                        spare.push(buffer);
                        break;
                    }
                }
            }
            for _ in 0..BATCH_MAX {
                let Some((buffer, burst)) = links[way].pop(Instant::now()) else { break };
                match &mut attackers {
                    None => ends[1 - way].write(&buffer[..burst.len])?,
                    Some(attackers) => {
                        attackers[way].pass(&buffer[..burst.len], &mut arriving);
                        arriving.iter().try_for_each(|packet| ends[1 - way].write(packet))?;
                    }
                }
                busy = true;
                if spare.len() < SPARE_MAX {
                    spare.push(buffer);
                }
            }
            let waiting = links[way].waiting(Instant::now());
            shared.waiting_us[way].store(waiting.as_micros() as u64, Ordering::Relaxed);
            let counts = links[way].counts();
            for (to, from) in shared.counts[way].iter().zip([counts.bytes, counts.bursts, counts.dropped, counts.lost])
            {
                to.store(from, Ordering::Relaxed);
            }
        }
        if !busy {
            let next = links.iter().filter_map(Link::deadline).min();
            wait([ends[0].fd(), ends[1].fd(), wake], next);
        }
    }
    Ok(())
}

/// Sleeps until one of `fds` can be read or `deadline` comes.
fn wait(fds: [i32; 3], deadline: Option<Instant>) {
    let mut entries = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
    let left = left
        .map(|left| libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: i64::from(left.subsec_nanos()) });
    let left = left.as_ref().map_or(std::ptr::null(), |left| left as *const _);
    // SAFETY: three pollfds and a timespec (or null) that live across the call; no signal mask.
    unsafe { libc::ppoll(entries.as_mut_ptr(), 3, left, std::ptr::null()) };
}
