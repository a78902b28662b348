//! Sending over one path, without a packet lost between the caller and the system.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use anabranch_scion_wire::checksum;
use anabranch_udp::{DATAGRAM_LEN_MAX, Message, SEGMENTS_MAX};

use super::error::{PathError, SendError, SendErrorKind};
use super::path::{Network, Path};
use super::socket::Shared;
use super::xdp::Outlet;

/// Packets that go to the system in one call: two full bursts. More would cost more stack and gain nothing.
const CALL_PACKETS_MAX: usize = 128;
/// Messages in one call: one for each packet, where there are no bursts, of as many as the system takes at once.
const CALL_MESSAGES_MAX: usize = 32;
/// Bytes of packets that are written in front of one call over SCION: two full bursts, which stay in the second-level cache.
const OUTBOX_LEN: usize = 2 * DATAGRAM_LEN_MAX;

/// The payload of one packet, in two parts so that neither has to be copied to the other: the protocol's header, say, and a
/// chunk that lies in a piece.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packet<'a> {
    /// What comes first.
    pub head: &'a [u8],
    /// What follows.
    pub body: &'a [u8],
}

impl Packet<'_> {
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// Sends over one path.
pub struct Sender {
    shared: Arc<Shared>,
    path: Path,
    ecn: u8,
    /// Whether bursts may go to the system whole. Once refused, never again on this path.
    bursts: bool,
    may_fragment: bool,
    /// Packets on their way to the system; empty over IP.
    outbox: Box<[u8]>,
    /// The way past the kernel, if there is one.
    outlet: Option<Outlet>,
}

/// Packets that the system takes as one message.
#[derive(Clone, Copy, Default)]
struct Burst {
    /// Of the packets given.
    first: usize,
    packets: usize,
    /// Bytes of each datagram but the last.
    segment_len: usize,
    /// Where its bytes start in the outbox, and how many there are.
    start: usize,
    len: usize,
}

impl Sender {
    pub(super) fn new(shared: Arc<Shared>, path: Path) -> Self {
        let outbox_len = if matches!(path.network(), Network::Scion { .. }) { OUTBOX_LEN } else { 0 };
        let outlet = Outlet::new(shared.ports(), &path);
        Self { shared, path, ecn: 0, bursts: true, may_fragment: false, outbox: vec![0; outbox_len].into(), outlet }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Goes on over another path, or fresh hop fields of the same.
    ///
    /// # Errors
    /// It starts at another socket; the old one stays.
    pub fn set_path(&mut self, path: &Path) -> Result<(), PathError> {
        if !path.starts_at(self.shared.local) {
            let local = self.shared.local.to_string();
            return Err(PathError::OtherNetwork { path: path.to_string(), local });
        }
        // Another way out may take bursts where this one did not.
        self.bursts |= !path.is_same_way(&self.path);
        self.path = path.clone();
        if let Some(outlet) = &mut self.outlet {
            outlet.set_path(path);
        }
        Ok(())
    }

    /// ECN bits of all packets from now on: 0 not capable, 1 or 2 capable (RFC 3168 §5). Over SCION, they are in the SCION
    /// header and in the underlay's.
    pub fn set_ecn(&mut self, ecn: u8) {
        self.ecn = ecn & 0b11;
    }

    /// Whether packets that are longer than a link takes may be cut in pieces on their way from now on, as IP does. If a piece is lost,
    /// the packet is. SCION cuts nothing, whatever is said here.
    pub fn set_may_fragment(&mut self, may: bool) {
        self.may_fragment = may;
    }

    /// Whether packets leave past the kernel now ([`super::Socket::attach_xdp`]). That changes with routes and neighbours.
    pub fn is_past_kernel(&self) -> bool {
        self.outlet.as_ref().is_some_and(Outlet::is_open)
    }

    /// Packets of one length that leave as one burst: 1 where the device or the kernel refuses bursts.
    pub fn burst_packets_max(&self) -> usize {
        if self.bursts { self.shared.udp.segments_max() } else { 1 }
    }

    /// Sends as many of `packets` as the system takes now, in order, and says how many: what it says has left whole, and
    /// nothing else has. Those of one length that follow each other leave as one burst (with a shorter one at its end), so sort
    /// nothing in between.
    ///
    /// # Errors
    /// Nothing was sent, because of the first packet; [`SendErrorKind`] says what to do. An error about a later one comes
    /// with the next call.
    pub fn try_send(&mut self, packets: &[Packet<'_>]) -> Result<usize, SendError> {
        let mut sent = 0;
        while sent < packets.len() {
            match self.send_some(&packets[sent..]) {
                Ok(0) => break,
                Ok(count) => sent += count,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// One system call's worth.
    fn send_some(&mut self, packets: &[Packet<'_>]) -> Result<usize, SendError> {
        let may_fragment = self.may_fragment && matches!(self.path.network(), Network::Ip { .. });
        // Rings take packets as they are.
        if let Some(outlet) = self.outlet.as_mut().filter(|_| !may_fragment)
            && let Some(result) = outlet.send(&self.path, packets, self.ecn)
        {
            // The system's socket, which callers wait for, knows nothing of the rings.
            return result.map_err(|_| SendError::no_buffers(self.path.name()));
        }
        let len_max = if may_fragment { DATAGRAM_LEN_MAX } else { self.path.payload_len(self.path.mtu_claimed()) };
        let fitting = packets.iter().take(CALL_PACKETS_MAX).take_while(|packet| packet.len() <= len_max).count();
        let Some(first) = packets.first().filter(|_| fitting > 0) else {
            let len = packets.first().map_or(0, |packet| self.path.packet_len(packet.len()));
            return Err(SendError::too_long(self.path.name(), len, self.path.mtu_claimed()));
        };
        let first_len = self.path.packet_len(first.len());
        if !may_fragment {
            return self.send_fitting(&packets[..fitting], first_len, false);
        }
        self.shared.udp.set_may_fragment(true);
        let sent = self.send_fitting(&packets[..fitting], first_len, true);
        self.shared.udp.set_may_fragment(false);
        sent
    }

    /// Sends in bursts, and one by one where the system refuses that.
    fn send_fitting(
        &mut self,
        packets: &[Packet<'_>],
        first_len: usize,
        may_fragment: bool,
    ) -> Result<usize, SendError> {
        // The device cannot checksum what it cuts, or its transforms exclude bursts; or the packets are too long for it, or
        // the source address is gone. What is true shows when packets go one by one.
        let is_of_bursts = |error: &io::Error| match error.raw_os_error() {
            Some(libc::EIO | libc::EINVAL) => true,
            // Bursts are never cut.
            Some(libc::EMSGSIZE) => may_fragment,
            _ => false,
        };
        match self.send_bursts(packets, self.burst_packets_max()) {
            Ok(count) => Ok(count),
            Err((error, refused)) if refused > 1 && is_of_bursts(&error) => {
                let count =
                    self.send_bursts(&packets[..refused], 1).map_err(|(error, _)| self.failed(error, first_len))?;
                self.bursts = false;
                Ok(count)
            }
            Err((error, _)) => Err(self.failed(error, first_len)),
        }
    }

    /// What the system's error about a packet of `len` bytes says of the path.
    fn failed(&self, error: io::Error, len: usize) -> SendError {
        let mut error = SendError::of_system(self.path.name(), error, len, self.path.mtu_claimed());
        // No route leads over an interface that is gone, nor from such an address, and that is all the system says.
        if let Network::Ip { interface, from, .. } = self.path.network()
            && error.kind == SendErrorKind::Unreachable
            && (*interface > 0 && !self.shared.udp.has_interface(*interface) || from.is_some_and(is_gone))
        {
            error.kind = SendErrorKind::InterfaceGone;
        }
        error
    }

    /// Sends in bursts of at most `packets_max`; says how many packets have left, or why none, and how many the first burst had.
    fn send_bursts(&mut self, packets: &[Packet<'_>], packets_max: usize) -> Result<usize, (io::Error, usize)> {
        let mut bursts = [Burst::default(); CALL_MESSAGES_MAX];
        let count = self.group(packets, packets_max, &mut bursts);
        let bursts = &bursts[..count];
        let mut parts = [IoSlice::new(&[]); 2 * CALL_PACKETS_MAX];
        let result = match self.path.network() {
            Network::Ip { to, from, interface, .. } => {
                let mut ranges = [(0, 0); CALL_MESSAGES_MAX];
                let mut end = 0;
                for (range, burst) in ranges.iter_mut().zip(bursts) {
                    range.0 = end;
                    for packet in &packets[burst.first..burst.first + burst.packets] {
                        // Every part costs, an empty one too.
                        for part in [packet.head, packet.body].into_iter().filter(|part| !part.is_empty()) {
                            parts[end] = IoSlice::new(part);
                            end += 1;
                        }
                    }
                    range.1 = end;
                }
                let message = |at: usize, burst: &Burst| {
                    let burst = Message::burst(*to, &parts[ranges[at].0..ranges[at].1], burst.segment_len);
                    Message { ecn: self.ecn, from: *from, interface: *interface, ..burst }
                };
                send(&self.shared.udp, bursts, message)
            }
            Network::Scion { next_hop, .. } => {
                for (part, burst) in parts.iter_mut().zip(bursts) {
                    *part = IoSlice::new(&self.outbox[burst.start..burst.start + burst.len]);
                }
                let message = |at: usize, burst: &Burst| {
                    let burst = Message::burst(*next_hop, std::slice::from_ref(&parts[at]), burst.segment_len);
                    Message { ecn: self.ecn, ..burst }
                };
                send(&self.shared.udp, bursts, message)
            }
        };
        let first_packets = bursts.first().map_or(0, |burst| burst.packets);
        match result {
            Ok(sent) => Ok(bursts[..sent].iter().map(|burst| burst.packets).sum()),
            Err(error) => Err((error, first_packets)),
        }
    }

    /// Groups packets into bursts, as far as there is room for them; over SCION, writes them to the outbox. Says how many
    /// bursts there are.
    fn group(&mut self, packets: &[Packet<'_>], packets_max: usize, bursts: &mut [Burst]) -> usize {
        let wrapped_len = self.path.wrapped_len();
        let mut count = 0;
        let (mut next, mut outbox_len) = (0, 0);
        while next < packets.len() && count < bursts.len() {
            let segment_len = packets[next].len() + wrapped_len;
            let room = match self.path.network() {
                Network::Ip { .. } => DATAGRAM_LEN_MAX,
                Network::Scion { .. } => DATAGRAM_LEN_MAX.min(self.outbox.len() - outbox_len),
            };
            let mut burst =
                Burst { first: next, segment_len: segment_len.max(1), start: outbox_len, ..Burst::default() };
            for packet in &packets[next..] {
                let len = packet.len() + wrapped_len;
                // An empty datagram cannot be told from none in a burst.
                let joins = burst.packets == 0 || len <= segment_len && len > 0;
                if !joins || burst.packets == packets_max.min(SEGMENTS_MAX) || burst.len + len > room {
                    break;
                }
                self.write(packet, burst.start + burst.len);
                burst.packets += 1;
                burst.len += len;
                // A shorter one is the last.
                if len < segment_len {
                    break;
                }
            }
            if burst.packets == 0 {
                break;
            }
            next += burst.packets;
            outbox_len += burst.len;
            bursts[count] = burst;
            count += 1;
        }
        count
    }

    /// Over SCION: headers and payload of one packet, at `at` of the outbox, where there is room for them.
    fn write(&mut self, packet: &Packet<'_>, at: usize) {
        let Network::Scion { template, .. } = self.path.network() else { return };
        let (header, payload) = self.outbox[at..].split_at_mut(template.header_len());
        let payload = &mut payload[..packet.len()];
        let (head, body) = payload.split_at_mut(packet.head.len());
        head.copy_from_slice(packet.head);
        body.copy_from_slice(packet.body);
        // Payloads are no longer than one datagram takes, which is less than the template's limit.
        let written = template.write(packet.len(), checksum::sum(payload), header);
        debug_assert!(written.is_ok(), "the lengths were checked");
        // The low two bits of the traffic class; the template leaves it zero.
        header[1] |= self.ecn << 4;
    }
}

/// Sends bursts, and says how many have left.
fn send<'a>(
    udp: &anabranch_udp::Socket,
    bursts: &[Burst],
    message: impl Fn(usize, &Burst) -> Message<'a>,
) -> io::Result<usize> {
    let nowhere = Message::new(udp.local_addr(), &[]);
    let message = |at: usize| bursts.get(at).map_or(nowhere, |burst| message(at, burst));
    let messages: [Message<'_>; CALL_MESSAGES_MAX] = std::array::from_fn(message);
    udp.send_whole(&messages[..bursts.len()])
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("path", &self.path).field("bursts", &self.bursts).finish_non_exhaustive()
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.udp.as_fd()
    }
}

impl AsRawFd for Sender {
    fn as_raw_fd(&self) -> RawFd {
        self.shared.udp.as_raw_fd()
    }
}

impl SendErrorKind {
    /// Whether the same packets may leave later, over the same path.
    pub fn is_passing(self) -> bool {
        !matches!(self, Self::TooLong { .. } | Self::Forbidden | Self::Other)
    }
}

/// Whether an address is none of this machine's any more.
fn is_gone(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}
