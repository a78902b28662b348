//! An inter-AS link between two namespaces: rate, delay, jitter, loss and queue, made in user space.
//!
//! Each end is a TUN device; a thread carries packets, one by one, through a [`Shaper`] for each direction. Sizes are those
//! of IP packets. Whatever routing runs above, its packets meet the same wire. Both directions are apart, and may be
//! changed while packets pass. A [`Wire::cross`] puts packets of nobody into a direction's queue, which take room and time
//! there and end with it: cross traffic by UDP at a rate, without a sender or a receiver that would need processors. Cross
//! traffic by TCP ([`crate::bed`]) is connections of their own, which the wire knows by their port, so that it can count them apart.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anabranch_asnet::link::{LinkShape, Shaper, ShaperStats};

use crate::netns::{Namespace, NetnsError};
use crate::tun::{Framing, Tun};

/// Packets read from one end before the other gets its turn and due packets are sent.
const BATCH_MAX: usize = 64;
/// Largest IP packet that is read.
const PACKET_BYTES_MAX: usize = 65_536;
/// Niceness of the thread: the least nice there is.
const PRIORITY: libc::c_int = -20;
/// Bytes of a packet of cross traffic.
const CROSS_PACKET_BYTES: usize = 1250;
/// Packets of cross traffic that are made up for when the thread was late: more would be a burst that no sender sent.
const CROSS_LATE_MAX: u32 = 32;
/// Where cross traffic by TCP ends: ports that no peer and no routing here uses, below those that the system hands out.
pub(crate) const CROSS_TCP_PORTS: std::ops::RangeInclusive<u16> = 9000..=9511;
/// How long an order to carry nothing may take until it is obeyed.
const OBEY_TIMEOUT: Duration = Duration::from_secs(2);

/// What passed in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireUse {
    /// Bytes that came out at the other end, of cross traffic too.
    pub bytes: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
    /// Packets that the wire lost.
    pub lost: u64,
    /// Bytes of cross traffic among those that came out, by UDP and TCP.
    pub cross_bytes: u64,
}

/// A wire and the thread that carries over it.
#[derive(Debug)]
pub struct Wire {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    /// Shapes that are to be taken on, and rates of cross traffic.
    orders: [Option<LinkShape>; 2],
    cross: [u64; 2],
    /// Whether nothing is to pass, and whether the thread keeps to that.
    down: bool,
    is_down: bool,
    used: [WireUse; 2],
    failure: Option<String>,
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // SAFETY: eight readable bytes, a descriptor that is open as long as this is.
        unsafe { libc::write(self.wake.as_raw_fd(), 1u64.to_ne_bytes().as_ptr().cast(), 8) };
    }
}

impl Wire {
    /// Makes device `name` in both namespaces, without addresses, and starts to carry. `shapes` are of what leaves the first
    /// and the second end, and their MTU is that of IP packets; `seed` decides about losses.
    ///
    /// # Errors
    /// When this process may not make TUN devices.
    pub fn new(ends: [&Namespace; 2], name: &str, shapes: [LinkShape; 2], seed: u64) -> Result<Self, NetnsError> {
        let tuns: [Result<Tun, NetnsError>; 2] = ends.map(|end| end.enter(|| Tun::open(name, Framing::Packets)));
        let [first, second] = tuns;
        let tuns = [first?, second?];
        // SAFETY: no preconditions.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(NetnsError::last_os("eventfd"));
        }
        // SAFETY: the descriptor is fresh and owned from here on.
        let wake = unsafe { OwnedFd::from_raw_fd(wake) };
        let shared = Arc::new(Shared { state: Mutex::default(), wake });
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn({
            let shared = shared.clone();
            move || {
                let now = Instant::now();
                let lines = [0, 1].map(|way| Shaper::new(shapes[way], seed.wrapping_mul(2) + way as u64, now));
                let counts = [Counts::default(); 2];
                let mut carrier = Carrier { tuns, lines, cross: [Cross::default(); 2], counts, down: false };
                if let Err(error) = carrier.carry(&shared) {
                    shared.state().failure = Some(error.to_string());
                }
            }
        });
        let thread = thread.map_err(|source| NetnsError::System { what: "starting a wire's thread".into(), source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Gives a direction (0: what leaves the first end) another shape, which has been [checked](LinkShape::checked).
    pub fn set_shape(&self, way: usize, shape: LinkShape) {
        self.shared.state().orders[way] = Some(shape);
        self.shared.wake();
    }

    /// Lets cross traffic of so many bits a second into a direction; zero ends it.
    pub fn cross(&self, way: usize, rate_bps: u64) {
        self.shared.state().cross[way] = rate_bps;
        self.shared.wake();
    }

    /// Lets nothing pass any more, or everything again. What is on the way when it goes down is lost. Returns when it is so.
    pub fn set_up(&self, up: bool) {
        self.shared.state().down = !up;
        self.shared.wake();
        let asked = Instant::now();
        // A wire that has failed obeys nobody, and says so elsewhere.
        while self.shared.state().is_down == up && asked.elapsed() < OBEY_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What passed so far, in both directions.
    pub fn used(&self) -> [WireUse; 2] {
        self.shared.state().used
    }

    /// Processor time of the thread so far.
    pub fn cpu(&self) -> Duration {
        self.thread.as_ref().map_or(Duration::ZERO, thread_cpu)
    }

    /// Why it carries no more, if that is so.
    pub fn failure(&self) -> Option<String> {
        self.shared.state().failure.clone()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            thread.join().ok();
        }
    }
}

/// Cross traffic of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Cross {
    rate_bps: u64,
    next: Option<Instant>,
}

struct Carrier {
    tuns: [Tun; 2],
    lines: [Shaper; 2],
    cross: [Cross; 2],
    counts: [Counts; 2],
    down: bool,
}

/// What the lines do not count.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Bytes of cross traffic that came through.
    crossed: u64,
    /// Packets that found the wire down, and bytes of those that were on the line then.
    fallen: u64,
    fallen_bytes: u64,
}

impl Carrier {
    fn carry(&mut self, shared: &Shared) -> Result<(), NetnsError> {
        // SAFETY: both change how soon this thread gets a processor: its timers fire to the microsecond, and it goes before whoever
        // is not hardware, as a wire is. Where the second is refused, the wire is later on a busy machine.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1000);
            libc::setpriority(libc::PRIO_PROCESS, 0, PRIORITY);
        }
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        // Which ends may have something to read: nothing is asked of the others, as a wire mostly has one packet to move when it wakes.
        let mut readable = [true; 2];
        while self.obey(shared, Instant::now()) {
            let mut is_due = false;
            for (way, readable) in readable.iter_mut().enumerate() {
                *readable = *readable && self.take(way, &mut buffer)?;
                self.cross(way, Instant::now());
                is_due |= self.deliver(way)?;
            }
            if !is_due && readable == [false; 2] {
                self.count(shared);
                readable = self.wait(shared);
            }
        }
        Ok(())
    }

    /// Takes orders; whether to go on.
    fn obey(&mut self, shared: &Shared, now: Instant) -> bool {
        let mut state = shared.state();
        self.down = state.down;
        state.is_down = state.down;
        for way in 0..2 {
            if let Some(shape) = state.orders[way].take() {
                self.lines[way].set_shape(now, shape);
            }
            if self.cross[way].rate_bps != state.cross[way] {
                let rate_bps = state.cross[way];
                self.cross[way] = Cross { rate_bps, next: (rate_bps > 0).then_some(now) };
            }
        }
        !state.stop
    }

    fn count(&self, shared: &Shared) {
        let used = [0, 1].map(|way: usize| {
            let ShaperStats { delivered_bytes, lost_packets, queue_full_packets, .. } = self.lines[way].stats();
            let Counts { crossed, fallen, fallen_bytes } = self.counts[way];
            WireUse {
                bytes: delivered_bytes - fallen_bytes,
                dropped: queue_full_packets,
                lost: lost_packets + fallen,
                cross_bytes: crossed,
            }
        });
        shared.state().used = used;
    }

    /// Reads what one end sends; whether there may be more.
    fn take(&mut self, way: usize, buffer: &mut [u8]) -> Result<bool, NetnsError> {
        for _ in 0..BATCH_MAX {
            let Some(len) = self.tuns[way].read(buffer)? else { return Ok(false) };
            if self.down {
                self.counts[way].fallen += 1;
                continue;
            }
            // The line counts what it drops.
            self.lines[way].enqueue(Instant::now(), &buffer[..len]).ok();
        }
        Ok(true)
    }

    /// Hands out what has arrived at the other end; whether there may be more.
    fn deliver(&mut self, way: usize) -> Result<bool, NetnsError> {
        for _ in 0..BATCH_MAX {
            let Some(burst) = self.lines[way].due(Instant::now()) else { return Ok(false) };
            for packet in burst.bytes.chunks(burst.segment_len) {
                let counts = &mut self.counts[way];
                if self.down {
                    counts.fallen += 1;
                    counts.fallen_bytes += packet.len() as u64;
                    continue;
                }
                // No version of IP begins with a zero: such packets are ours.
                let is_ours = packet.first() == Some(&0);
                if is_ours || is_cross_tcp(packet) {
                    counts.crossed += packet.len() as u64;
                }
                if !is_ours {
                    self.tuns[1 - way].write(packet)?;
                }
            }
            let packets = burst.packets;
            self.lines[way].consume(packets);
        }
        Ok(true)
    }

    /// Puts in what cross traffic sent by `now`.
    fn cross(&mut self, way: usize, now: Instant) {
        let Cross { rate_bps, next: Some(mut next) } = self.cross[way] else { return };
        let every = Duration::from_nanos(CROSS_PACKET_BYTES as u64 * 8_000_000_000 / rate_bps.max(1));
        next = next.max(now.checked_sub(every * CROSS_LATE_MAX).unwrap_or(next));
        while next <= now {
            self.lines[way].enqueue(now, &[0; CROSS_PACKET_BYTES]).ok();
            next += every;
        }
        self.cross[way].next = Some(next);
    }

    /// Sleeps until an end can be read, something is due or an order comes; which ends can be read.
    fn wait(&self, shared: &Shared) -> [bool; 2] {
        let due = self.lines.iter().filter_map(Shaper::deadline);
        let next = due.chain(self.cross.iter().filter_map(|cross| cross.next)).min();
        let fds = [self.tuns[0].fd(), self.tuns[1].fd(), shared.wake.as_raw_fd()];
        let mut entries = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.map(|left| libc::timespec {
            tv_sec: left.as_secs() as libc::time_t,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let left = left.as_ref().map_or(std::ptr::null(), |left| left as *const _);
        // SAFETY: three pollfds and a timespec (or null) that live across the call; no signal mask.
        unsafe { libc::ppoll(entries.as_mut_ptr(), 3, left, std::ptr::null()) };
        if entries[2].revents != 0 {
            let mut count = [0u8; 8];
            // SAFETY: eight writable bytes; the descriptor does not block.
            unsafe { libc::read(entries[2].fd, count.as_mut_ptr().cast(), 8) };
        }
        [0, 1].map(|end: usize| entries[end].revents != 0)
    }
}

/// Whether a packet is of a TCP connection to or from a port of cross traffic (RFC 791, RFC 9293 §3.1).
fn is_cross_tcp(packet: &[u8]) -> bool {
    let header = 4 * usize::from(packet.first().copied().unwrap_or(0) & 0x0f);
    if packet.first().is_none_or(|byte| byte >> 4 != 4) || packet.get(9) != Some(&6) {
        return false;
    }
    let port = |at: usize| packet.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    [port(header), port(header + 2)].iter().flatten().any(|port| CROSS_TCP_PORTS.contains(port))
}

/// Processor time of a thread so far; none where it has ended.
fn thread_cpu(thread: &JoinHandle<()>) -> Duration {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the thread is not joined as long as its handle is there, and both calls write one plain value through a valid pointer.
    let is_told = unsafe {
        libc::pthread_getcpuclockid(thread.as_pthread_t(), &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    if is_told { Duration::new(time.tv_sec as u64, time.tv_nsec as u32) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_traffic_is_known_by_its_port() {
        let mut packet = [0u8; 44];
        (packet[0], packet[9]) = (0x46, 6);
        packet[24..28].copy_from_slice(&[0x23, 0x28, 0x1a, 0xe1]);
        assert!(is_cross_tcp(&packet));
        packet[24..28].copy_from_slice(&[0x1a, 0xe1, 0x23, 0x29]);
        assert!(is_cross_tcp(&packet));
        // Of UDP, of another port, of IPv6, cut off.
        let of = |at: usize, byte: u8| {
            let mut other = packet;
            other[at] = byte;
            other
        };
        for other in [of(9, 17), of(26, 8), of(0, 0x66), of(0, 0x45)] {
            assert!(!is_cross_tcp(&other));
        }
        assert!(!is_cross_tcp(&packet[..25]) && !is_cross_tcp(&[]) && !is_cross_tcp(&[0; 1250]));
    }
}
