//! Inter-AS links between namespaces: rate, delay, jitter, loss and queue, made in user space.
//!
//! Each end is a TUN device; a thread carries packets, one by one, through a [`Shaper`] for each direction. Sizes are those
//! of IP packets. Whatever routing runs above, its packets meet the same wire. Both directions are apart, and may be
//! changed while packets pass. A [`Wire::cross`] puts packets of nobody into a direction's queue, which take room and time
//! there and end with it: cross traffic by UDP at a rate, without a sender or a receiver that would need processors. Cross
//! traffic by TCP ([`crate::bed`]) is connections of their own, which the wire knows by their port, so that it can count them apart.
//!
//! [`Carriers`] are the threads. To be woken costs more than to carry a packet, so wires share them, and where delays leave
//! room they look at their wires some thousand times a second and not at every packet ([`pace`]): whoever is behind a wire is
//! woken for several packets, too.
//!
//! [`Shaper`]: anabranch_asnet::link::Shaper

mod carrier;
mod instrument;
mod pace;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anabranch_asnet::link::LinkShape;

use crate::netns::{Namespace, NetnsError};
use crate::tun::{Framing, Tun};

pub use carrier::Carriers;
pub use instrument::{CLASSES, GAPS_BELOW_MS, LENGTHS_BELOW, Noted};

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
    /// What was sent into it, cross traffic apart.
    pub noted: Noted,
}

/// A wire; one of the [`Carriers`] carries over it, until either is dropped.
#[derive(Debug)]
pub struct Wire {
    shared: Arc<Shared>,
    waker: Arc<Waker>,
}

/// What a wire's owner and the thread that carries over it both see.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
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
}

/// Ends a thread's sleep.
#[derive(Debug)]
struct Waker(OwnedFd);

impl Waker {
    fn new() -> Result<Self, NetnsError> {
        // SAFETY: no preconditions.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(NetnsError::last_os("eventfd"));
        }
        // SAFETY: the descriptor is fresh and owned from here on.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn wake(&self) {
        // SAFETY: eight readable bytes, a descriptor that is open as long as this is.
        unsafe { libc::write(self.0.as_raw_fd(), 1u64.to_ne_bytes().as_ptr().cast(), 8) };
    }

    fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes; the descriptor does not block.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
    }
}

impl Wire {
    /// Makes device `name` in both namespaces, without addresses, and lets one of `carriers` carry. `shapes` are of what leaves
    /// the first and the second end, and their MTU is that of IP packets; `seed` decides about losses.
    ///
    /// # Errors
    /// When this process may not make TUN devices, or has no more threads.
    pub fn new(
        carriers: &Carriers,
        ends: [&Namespace; 2],
        name: &str,
        shapes: [LinkShape; 2],
        seed: u64,
    ) -> Result<Self, NetnsError> {
        let tuns: [Result<Tun, NetnsError>; 2] = ends.map(|end| end.enter(|| Tun::open(name, Framing::Packets)));
        let [first, second] = tuns;
        let shared = Arc::new(Shared::default());
        let waker = carriers.add(name, [first?, second?], shapes, seed, shared.clone())?;
        Ok(Self { shared, waker })
    }

    /// Gives a direction (0: what leaves the first end) another shape, which has been [checked](LinkShape::checked).
    pub fn set_shape(&self, way: usize, shape: LinkShape) {
        self.shared.state().orders[way] = Some(shape);
        self.waker.wake();
    }

    /// Lets cross traffic of so many bits a second into a direction; zero ends it.
    pub fn cross(&self, way: usize, rate_bps: u64) {
        self.shared.state().cross[way] = rate_bps;
        self.waker.wake();
    }

    /// Lets nothing pass any more, or everything again. What is on the way when it goes down is lost. Returns when it is so.
    pub fn set_up(&self, up: bool) {
        self.shared.state().down = !up;
        self.waker.wake();
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

    /// Why nothing is carried over it any more, if that is so.
    pub fn failure(&self) -> Option<String> {
        self.shared.state().failure.clone()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// Long enough for any machine, and only there so that a failure ends.
    const PATIENCE: Duration = Duration::from_secs(60);
    const PAYLOAD: [u8; 1000] = [7; 1000];

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let asked = Instant::now();
        while !is_so() {
            assert!(asked.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends so many datagrams over a wire, and says how many bytes of IP they are.
    fn send(from: &UdpSocket, to: &UdpSocket, count: u64) -> u64 {
        (0..count).for_each(|_| assert_eq!(from.send_to(&PAYLOAD, to.local_addr().unwrap()).unwrap(), PAYLOAD.len()));
        count * (PAYLOAD.len() as u64 + 28)
    }

    fn receive(at: &UdpSocket, count: u64) {
        at.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 2000];
        (0..count).for_each(|_| assert_eq!(at.recv(&mut buffer).unwrap(), PAYLOAD.len()));
    }

    #[test]
    fn wires_share_a_thread_and_nothing_else() {
        if !crate::netns::available() {
            eprintln!("not run: namespaces need root");
            return;
        }
        let carriers = Carriers::default();
        let ends = [Namespace::new().unwrap(), Namespace::new().unwrap()];
        let shape = |rate_bps| LinkShape { rate_bps, delay: Duration::from_millis(10), ..LinkShape::default() };
        // The third has no rate, and so a thread of its own.
        let rates = [Some(10_000_000), Some(5_000_000), None];
        let mut wires = Vec::new();
        for (number, rate_bps) in rates.into_iter().enumerate() {
            let name = format!("wire{number}");
            let wire = Wire::new(&carriers, ends.each_ref(), &name, [shape(rate_bps); 2], 1).unwrap();
            for (end, namespace) in ends.iter().enumerate() {
                let address = format!("10.9.{number}.{}/30", end + 1);
                namespace.ip_batch(&format!("addr add {address} dev {name}\nlink set {name} up\n")).unwrap();
            }
            wires.push(wire);
        }
        assert_eq!(carriers.threads.lock().unwrap().iter().map(|thread| thread.wires).collect::<Vec<_>>(), [2, 1]);
        let socket = |number: usize, end: usize| -> UdpSocket {
            let open = || UdpSocket::bind(format!("10.9.{number}.{}:0", end + 1));
            ends[end].enter(|| Ok::<_, NetnsError>(open().unwrap())).unwrap()
        };
        let pairs: Vec<[UdpSocket; 2]> = (0..3).map(|number| [0, 1].map(|end| socket(number, end))).collect();
        for (wire, [near, far]) in wires.iter().zip(&pairs) {
            let bytes = send(near, far, 20);
            receive(far, 20);
            // What the system sends by itself is counted, too.
            until("what passed is not counted", || wire.used()[0].bytes >= bytes);
            assert!(wire.used()[1].bytes < bytes);
        }
        wires[0].set_up(false);
        send(&pairs[0][0], &pairs[0][1], 5);
        send(&pairs[1][0], &pairs[1][1], 5);
        receive(&pairs[1][1], 5);
        until("what a wire that is down lost is not counted", || wires[0].used()[0].lost >= 5);
        assert_eq!(wires[1].used()[0].lost, 0);
        wires.remove(0);
        send(&pairs[1][0], &pairs[1][1], 5);
        receive(&pairs[1][1], 5);
    }
}
