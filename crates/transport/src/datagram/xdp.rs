//! The way past the kernel, as senders and receivers of a socket use it: AF_XDP's frames instead of system calls.
//!
//! Either may always fall back to the system's socket, for a packet, a moment or for good. So nothing here is an error
//! but that the rings are full. A receiver waits for all of them at once; a sender only for the system's socket, since full
//! rings are empty a millisecond later.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_scion::socket::Dropped;
use anabranch_scion_wire::checksum::{self, Sum};
use anabranch_xdp::{Datagram, FrameError, Hop, Measurement, Mode, NEWS_EVERY, Poll, Port};

use super::path::{Network, Path};
use super::sender::Packet;

/// A way that was asked for so long ago is asked for again, so that the kernel knows that the neighbour is in use.
const HOP_LASTS: Duration = Duration::from_secs(1);
/// Of so many receives one looks at the system's socket first: what comes there is little, and must not wait for ever.
const SYSTEM_EVERY: u32 = 8;

/// What became of an interface ([`super::Socket::attach_xdp`]).
#[derive(Clone, Debug, PartialEq)]
pub struct XdpPort {
    /// The interface.
    pub interface: String,
    /// How frames get from and to it.
    pub mode: Mode,
    /// Queues at work.
    pub queues: usize,
    /// Bytes of the longest IP packet that goes past the kernel; longer ones go by the system's socket.
    pub packet_len_max: usize,
    /// Why it was chosen, if it was chosen because of that.
    pub measured: Option<Measurement>,
}

impl XdpPort {
    pub(super) fn new(port: &Port, measured: Option<Measurement>) -> Self {
        let interface = port.interface();
        Self {
            interface: interface.name.clone(),
            mode: port.mode(),
            queues: port.queues(),
            packet_len_max: port.packet_len_max(),
            measured,
        }
    }
}

/// A sender's way.
pub(super) struct Outlet {
    ports: Vec<Arc<Port>>,
    /// Which queue: always the same for a path, so that its packets stay in order.
    queue: usize,
    /// The port in use, and how.
    hop: Option<(usize, Hop)>,
    asked: Option<Instant>,
}

impl Outlet {
    /// `None` where there are no ports.
    pub(super) fn new(ports: Vec<Arc<Port>>, path: &Path) -> Option<Self> {
        let mut outlet = Self { ports, queue: 0, hop: None, asked: None };
        outlet.set_path(path);
        (!outlet.ports.is_empty()).then_some(outlet)
    }

    pub(super) fn set_path(&mut self, path: &Path) {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        path.name().hash(&mut hasher);
        self.queue = hasher.finish() as usize;
        (self.hop, self.asked) = (None, None);
    }

    /// Whether there is a way at the moment.
    pub(super) fn is_open(&self) -> bool {
        self.hop.is_some()
    }

    /// Sends as many of `packets` as there is room for, and says how many: at least one, or `WouldBlock`. `None`: the first one
    /// goes by the system's socket.
    pub(super) fn send(&mut self, path: &Path, packets: &[Packet<'_>], ecn: u8) -> Option<io::Result<usize>> {
        self.keep_hop(path, Instant::now());
        let (port, hop) = self.hop.as_ref()?;
        let headers_len = hop.template.headers_len() + path.wrapped_len();
        let payload_len_max = hop.frame_len_max.checked_sub(headers_len)?.min(path.payload_len(path.mtu_claimed()));
        let count = packets.iter().take_while(|packet| packet.len() <= payload_len_max).count();
        if count == 0 {
            return None;
        }
        let write = |at: usize, frame: &mut [u8]| write(hop, path, &packets[at], ecn, frame);
        match self.ports[*port].send(self.queue, count, write) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // The interface is down or gone: the system's socket says so better.
                self.hop = None;
                None
            }
            result => Some(result),
        }
    }

    /// Sees to it that what is known of the way is fresh.
    fn keep_hop(&mut self, path: &Path, now: Instant) {
        let asked = self.asked.map_or(Duration::MAX, |asked| now.saturating_duration_since(asked));
        if asked < NEWS_EVERY {
            return;
        }
        if let Some((port, hop)) = &self.hop {
            self.ports[*port].refresh(now);
            if asked < HOP_LASTS && hop.generation == self.ports[*port].generation() {
                return;
            }
        }
        self.asked = Some(now);
        let (to, from, interface) = match path.network() {
            Network::Ip { to, from, interface } => (*to, *from, *interface),
            Network::Scion { local, next_hop, .. } => (*next_hop, Some(local.host.ip()), 0),
        };
        let from = from.filter(|from: &IpAddr| !from.is_unspecified());
        let ports = self.ports.iter().enumerate();
        let mut fitting = ports.filter(|(_, port)| interface == 0 || interface == port.interface().index);
        self.hop = fitting.find_map(|(at, port)| {
            port.refresh(now);
            Some((at, port.hop(from, to)?))
        });
    }
}

/// Writes a whole frame, and says how long it is.
fn write(hop: &Hop, path: &Path, packet: &Packet<'_>, ecn: u8, frame: &mut [u8]) -> usize {
    let (outer, rest) = frame.split_at_mut(hop.template.headers_len());
    let (inner, rest) = rest.split_at_mut(path.wrapped_len());
    let (head, rest) = rest.split_at_mut(packet.head.len());
    let sum = checksum::copy_sum(head, packet.head) + odd(packet.head.len(), checksum::copy_sum(rest, packet.body));
    let mut payload_sum = sum;
    if let Network::Scion { template, .. } = path.network() {
        // The lengths were compared with what the path takes, which fits.
        let _ = template.write(packet.len(), sum, inner);
        // The low two bits of the traffic class; the template leaves it zero.
        inner[1] |= ecn << 4;
        // SCION's header counts words of four bytes, and UDP's has eight.
        payload_sum = checksum::sum(inner) + sum;
    }
    let payload_len = path.wrapped_len() + packet.len();
    match hop.template.write(payload_len, payload_sum, ecn, outer) {
        true => hop.template.headers_len() + payload_len,
        false => 0,
    }
}

/// A sum of bytes behind `len` others.
fn odd(len: usize, sum: Sum) -> Sum {
    if len.is_multiple_of(2) { sum } else { sum.after_odd() }
}

/// A receiver's way.
pub(super) struct Inlet {
    ports: Vec<Arc<Port>>,
    /// Readable while anything waits, at the system's socket too.
    poll: Poll,
    /// Counts receives.
    turn: u32,
    /// The ring that is looked at first: port and queue, counted through.
    next: usize,
    heard: Instant,
    /// SCION's headers of the packets received last.
    headers: Vec<u8>,
}

impl Inlet {
    /// `None` where there are no ports, or no descriptors.
    pub(super) fn new(ports: Vec<Arc<Port>>, system: &impl AsFd) -> Option<Self> {
        if ports.is_empty() {
            return None;
        }
        let poll = Poll::new().ok()?;
        let descriptors = ports.iter().flat_map(|port| port.descriptors()).chain([system.as_fd()]);
        for descriptor in descriptors {
            poll.add(descriptor).ok()?;
        }
        Some(Self { ports, poll, turn: 0, next: 0, heard: Instant::now(), headers: Vec::new() })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    /// The headers that [`Inlet::receive`] gathered.
    pub(super) fn headers(&self) -> &[u8] {
        &self.headers
    }

    /// Whether this receive is to look at the system's socket first.
    pub(super) fn take_turn(&mut self) -> bool {
        self.turn = self.turn.wrapping_add(1);
        self.turn.is_multiple_of(SYSTEM_EVERY)
    }

    /// Hands up to `count` frames of one ring that has some to `take`, with the interface's number, the time and the place for
    /// headers; says how many.
    pub(super) fn receive(
        &mut self,
        count: usize,
        mut take: impl FnMut(Result<Datagram<'_>, Dropped>, u32, SystemTime, &mut Vec<u8>),
    ) -> usize {
        let (now, arrived) = (Instant::now(), SystemTime::now());
        if now.saturating_duration_since(self.heard) >= NEWS_EVERY {
            self.heard = now;
            self.ports.iter().for_each(|port| port.refresh(now));
        }
        self.headers.clear();
        let rings = self.ports.iter().flat_map(|port| (0..port.queues()).map(move |queue| (port, queue)));
        let ring_count = rings.clone().count();
        let first = self.next % ring_count.max(1);
        for (port, queue) in rings.cycle().skip(first).take(ring_count) {
            self.next = self.next.wrapping_add(1);
            let interface = port.interface().index;
            let headers = &mut self.headers;
            let frames = port.receive(queue, count, |frame| {
                let datagram = Datagram::parse(frame, interface).map_err(|error| match error {
                    FrameError::Checksum => Dropped::BadChecksum,
                    _ => Dropped::Malformed,
                });
                take(datagram, interface, arrived, headers);
            });
            if frames > 0 {
                return frames;
            }
        }
        0
    }
}
