//! The threads that carry over wires.

use std::os::fd::AsRawFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anabranch_asnet::link::{LinkShape, Shaper, ShaperStats};

use super::instrument::Instrument;
use super::pace::{Pace, tick};
use super::{CROSS_TCP_PORTS, Shared, Waker, WireUse};
use crate::netns::NetnsError;
use crate::tun::Tun;

/// Packets read from one end, and handed out at one, before others get their turn.
const BATCH_MAX: usize = 64;
/// Largest IP packet that is read.
const PACKET_BYTES_MAX: usize = 65_536;
/// Niceness of the threads: the least nice there is.
const PRIORITY: libc::c_int = -20;
/// Bytes of a packet of cross traffic.
const CROSS_PACKET_BYTES: usize = 1250;
/// Packets of cross traffic that are made up for when the thread was late, or what was due in so many ticks: more would be a burst
/// that no sender sent.
const CROSS_LATE_MAX: u32 = 32;
const CROSS_LATE_TICKS: u32 = 4;
/// Threads that take devices away at once, at most.
const TAKERS: usize = 16;
/// Threads that share the wires with room for a tick, at most; one for two processors.
const SHARED_MAX: usize = 8;

/// Threads for wires. Dropped, they end, and nothing is carried any more.
#[derive(Debug, Default)]
pub struct Carriers {
    pub(super) threads: Mutex<Vec<Thread>>,
}

#[derive(Debug)]
pub(super) struct Thread {
    inbox: Arc<Inbox>,
    handle: JoinHandle<()>,
    /// Whether further wires may come, and how many came.
    is_shared: bool,
    pub(super) wires: usize,
}

/// Wires that are new to a thread.
#[derive(Debug)]
struct Inbox {
    fresh: Mutex<Vec<Strand>>,
    waker: Arc<Waker>,
    /// The thread is to end.
    is_closed: AtomicBool,
}

impl Inbox {
    fn fresh(&self) -> MutexGuard<'_, Vec<Strand>> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Carriers {
    /// Hands a wire to a thread, and says what wakes that one. A wire that leaves no room for a tick has a thread of its own.
    pub(super) fn add(
        &self,
        name: &str,
        tuns: [Tun; 2],
        shapes: [LinkShape; 2],
        seed: u64,
        shared: Arc<Shared>,
    ) -> Result<Arc<Waker>, NetnsError> {
        let now = Instant::now();
        let lines = [0, 1].map(|way| Shaper::new(shapes[way], seed.wrapping_mul(2) + way as u64, now));
        let strand = Strand::new(tuns, lines, shared);
        let is_shared = !strand.tick().is_zero();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let sharing = threads.iter().filter(|thread| thread.is_shared).count();
        let least = threads.iter_mut().filter(|thread| thread.is_shared).min_by_key(|thread| thread.wires);
        let thread = match least.filter(|_| is_shared && sharing >= shared_threads()) {
            Some(thread) => thread,
            None => {
                threads.push(Thread::start(if is_shared { "wires" } else { name }, is_shared)?);
                threads.last_mut().expect("one was just put there")
            }
        };
        thread.wires += 1;
        thread.inbox.fresh().push(strand);
        thread.inbox.waker.wake();
        Ok(thread.inbox.waker.clone())
    }

    /// Processor time of the threads so far.
    pub fn cpu(&self) -> Duration {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.iter().map(|thread| thread_cpu(&thread.handle)).sum()
    }
}

impl Drop for Carriers {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        for thread in &threads {
            thread.inbox.is_closed.store(true, Ordering::Release);
            thread.inbox.waker.wake();
        }
        for thread in threads {
            // A thread that panicked has said so.
            thread.handle.join().ok();
        }
    }
}

impl Thread {
    fn start(name: &str, is_shared: bool) -> Result<Self, NetnsError> {
        let inbox = Arc::new(Inbox {
            fresh: Mutex::default(),
            waker: Arc::new(Waker::new()?),
            is_closed: AtomicBool::new(false),
        });
        let work = inbox.clone();
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(move || Carrier::new(work).carry());
        let handle = handle.map_err(|source| NetnsError::System { what: "starting a wire's thread".into(), source })?;
        Ok(Self { inbox, handle, is_shared, wires: 0 })
    }
}

fn shared_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / 2).clamp(1, SHARED_MAX)
}

/// Takes devices away, several at once: for each, the kernel waits until nobody looks at it any more.
fn take_away(strands: Vec<Strand>) {
    let tuns: Vec<Tun> = strands.into_iter().flat_map(|strand| strand.tuns).collect();
    let mut shares: Vec<Vec<Tun>> = (0..TAKERS.min(tuns.len())).map(|_| Vec::new()).collect();
    for (number, tun) in tuns.into_iter().enumerate() {
        shares[number % TAKERS].push(tun);
    }
    std::thread::scope(|scope| {
        for share in shares {
            // Where there are no more threads, they go with what was to run.
            std::thread::Builder::new().spawn_scoped(scope, move || drop(share)).ok();
        }
    });
}

/// A thread's work.
struct Carrier {
    inbox: Arc<Inbox>,
    strands: Vec<Strand>,
    pace: Pace,
    buffer: Vec<u8>,
}

impl Carrier {
    fn new(inbox: Arc<Inbox>) -> Self {
        Self { inbox, strands: Vec::new(), pace: Pace::new(Instant::now()), buffer: vec![0; PACKET_BYTES_MAX] }
    }

    fn carry(mut self) {
        // SAFETY: both change how soon this thread gets a processor: its timers fire to the microsecond, and it goes before whoever
        // is not hardware, as a wire is. Where the second is refused, the wire is later on a busy machine.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1000);
            libc::setpriority(libc::PRIO_PROCESS, 0, PRIORITY);
        }
        loop {
            if self.inbox.is_closed.load(Ordering::Acquire) {
                self.strands.append(&mut self.inbox.fresh());
                return take_away(self.strands);
            }
            self.strands.append(&mut self.inbox.fresh());
            let now = Instant::now();
            self.strands.retain_mut(|strand| strand.obey(now));
            self.pace.tick = self.strands.iter().map(Strand::tick).min().unwrap_or_default();
            self.pace.begin(now);
            let mut is_more = false;
            for strand in &mut self.strands {
                is_more |= strand.turn(&self.pace, &mut self.buffer);
            }
            match is_more {
                true => self.pace.goes_on(),
                false => {
                    self.strands.iter_mut().for_each(Strand::count);
                    self.wait();
                }
            }
        }
    }

    /// Sleeps for the rest of the tick, and then until an end can be read, something is due or an order comes.
    fn wait(&mut self) {
        self.pace.goes_on();
        let mut orders = [watch(self.inbox.waker.0.as_raw_fd())];
        let rest = self.pace.rest(Instant::now());
        if !rest.is_zero() {
            poll(&mut orders, Some(rest));
        }
        if orders[0].revents == 0 {
            let mut entries = Vec::with_capacity(2 * self.strands.len() + 1);
            entries.extend(orders);
            entries.extend(self.strands.iter().flat_map(|strand| [0, 1].map(|end| watch(strand.tuns[end].fd()))));
            let next = self.strands.iter().filter_map(Strand::deadline).min();
            let asked = Instant::now();
            poll(&mut entries, next.map(|at| at.saturating_duration_since(asked)));
            self.pace.slept(asked, Instant::now());
            for (strand, ends) in self.strands.iter_mut().zip(entries[1..].chunks_exact(2)) {
                strand.readable = [0, 1].map(|end: usize| ends[end].revents != 0);
            }
            orders[0].revents = entries[0].revents;
        }
        if orders[0].revents != 0 {
            self.inbox.waker.clear();
        }
    }
}

fn watch(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Waits until one of them has something, or for so long.
fn poll(entries: &mut [libc::pollfd], longest: Option<Duration>) {
    let longest = longest
        .map(|left| libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: i64::from(left.subsec_nanos()) });
    let longest = longest.as_ref().map_or(std::ptr::null(), |left| left as *const _);
    // SAFETY: so many pollfds and a timespec (or null) that live across the call; no signal mask.
    unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, longest, std::ptr::null()) };
}

/// Cross traffic of one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Cross {
    rate_bps: u64,
    next: Option<Instant>,
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

/// A wire as its thread has it.
struct Strand {
    tuns: [Tun; 2],
    lines: [Shaper; 2],
    cross: [Cross; 2],
    counts: [Counts; 2],
    instruments: [Instrument; 2],
    down: bool,
    /// Which ends may have something to read: nothing is asked of the others, as a wire mostly has few packets to move.
    readable: [bool; 2],
    /// Whether something moved that was not counted for others yet.
    has_moved: bool,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Strand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Strand").field("tuns", &self.tuns).field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Strand {
    fn new(tuns: [Tun; 2], lines: [Shaper; 2], shared: Arc<Shared>) -> Self {
        Self {
            tuns,
            lines,
            cross: [Cross::default(); 2],
            counts: [Counts::default(); 2],
            instruments: [Instrument::default(); 2],
            down: false,
            readable: [true; 2],
            has_moved: false,
            shared,
        }
    }

    /// How seldom it may be looked at.
    fn tick(&self) -> Duration {
        self.lines.iter().map(|line| tick(&line.shape())).min().unwrap_or_default()
    }

    /// Takes orders; whether to go on: neither for who wants no more of it, nor after a failure.
    fn obey(&mut self, now: Instant) -> bool {
        let mut state = self.shared.state();
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
        !state.stop && state.failure.is_none()
    }

    /// Moves what there is to move; whether there may be more. A wire that fails carries no more.
    fn turn(&mut self, pace: &Pace, buffer: &mut [u8]) -> bool {
        self.carry(pace, buffer).unwrap_or_else(|error| {
            self.shared.state().failure = Some(error.to_string());
            false
        })
    }

    fn carry(&mut self, pace: &Pace, buffer: &mut [u8]) -> Result<bool, NetnsError> {
        let mut is_more = false;
        for way in 0..2 {
            self.readable[way] = self.readable[way] && self.take(way, pace, buffer)?;
            self.cross(way, pace);
            is_more |= self.deliver(way, pace)? || self.readable[way];
        }
        Ok(is_more)
    }

    /// When it has to be looked at.
    fn deadline(&self) -> Option<Instant> {
        let due = self.lines.iter().filter_map(Shaper::deadline);
        due.chain(self.cross.iter().filter_map(|cross| cross.next)).min()
    }

    /// Tells the owner what passed.
    fn count(&mut self) {
        if !std::mem::take(&mut self.has_moved) {
            return;
        }
        let used = [0, 1].map(|way: usize| {
            let ShaperStats { delivered_bytes, lost_packets, queue_full_packets, .. } = self.lines[way].stats();
            let Counts { crossed, fallen, fallen_bytes } = self.counts[way];
            WireUse {
                bytes: delivered_bytes - fallen_bytes,
                dropped: queue_full_packets,
                lost: lost_packets + fallen,
                cross_bytes: crossed,
                noted: self.instruments[way].noted,
            }
        });
        self.shared.state().used = used;
    }

    /// Reads what one end sends; whether there may be more.
    fn take(&mut self, way: usize, pace: &Pace, buffer: &mut [u8]) -> Result<bool, NetnsError> {
        for _ in 0..BATCH_MAX {
            let Some(len) = self.tuns[way].read(buffer)? else { return Ok(false) };
            self.has_moved = true;
            if self.down {
                self.counts[way].fallen += 1;
                continue;
            }
            if !is_cross_tcp(&buffer[..len]) {
                self.instruments[way].note(&buffer[..len], pace.came());
            }
            // The line counts what it drops.
            self.lines[way].enqueue(pace.came(), &buffer[..len]).ok();
        }
        Ok(true)
    }

    /// Hands out what has arrived at the other end; whether there may be more.
    fn deliver(&mut self, way: usize, pace: &Pace) -> Result<bool, NetnsError> {
        for _ in 0..BATCH_MAX {
            let Some(burst) = self.lines[way].due(pace.due()) else { return Ok(false) };
            self.has_moved = true;
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

    /// Puts in what cross traffic sent until now.
    fn cross(&mut self, way: usize, pace: &Pace) {
        let Cross { rate_bps, next: Some(mut next) } = self.cross[way] else { return };
        let now = pace.now();
        let every = Duration::from_nanos(CROSS_PACKET_BYTES as u64 * 8_000_000_000 / rate_bps.max(1));
        let late_max = (every * CROSS_LATE_MAX).max(pace.tick * CROSS_LATE_TICKS);
        next = next.max(now.checked_sub(late_max).unwrap_or(next));
        while next <= now {
            self.has_moved = true;
            self.lines[way].enqueue(now, &[0; CROSS_PACKET_BYTES]).ok();
            next += every;
        }
        self.cross[way].next = Some(next);
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
