//! The ways to peers, and what it takes to send over them: which socket, which addresses or which path through SCION.
//!
//! A way is what a channel belongs to for life. One that we dial is made by whoever chose it; one that a datagram came by is remembered
//! only where a channel comes of it ([`PathTable::sweep`]), and answered to where the datagram came from: to the address that it was sent
//! to, by its path turned round. Nothing proves that it leads there but the answer, which the core waits for.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::reach::is_for;
use anabranch_paths::{Endpoint, Host, Path, ScionAddr, ScionPath};
use anabranch_ppspp::swarm::PeerAddress;
use anabranch_scion::socket::ScmpKind;
use anabranch_transport::Via;
use anabranch_transport::datagram::{
    self, Packet, PathError, PathEvent, PathKey, Received, SendErrorKind, Sender, Socket,
};
use anabranch_transport::secure::SECURE_OVERHEAD;

use crate::net::uplinks::Uplinks;

/// A way back that was learned is learned anew from what comes by it so often: paths through SCION end, and their users renew them.
const LEARNED_ANEW_EVERY: Duration = Duration::from_secs(4);
/// Bytes of a datagram over plain IP: an Ethernet frame, less IP and UDP (RFC 7574 §8.1).
const DATAGRAM_LEN_IP: u16 = 1452;
/// Bytes of a packet through SCION that is longer only where a chunk is: what links between ASes take as a rule.
const PACKET_LEN_USUAL: u16 = 1472;

/// A way to a peer, in the words of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PathAddress {
    /// The socket at the other end.
    pub remote: Endpoint,
    /// Which of the ways there; none is used twice.
    number: u32,
    /// Bytes that its datagrams may have.
    datagram_len: u16,
    /// They are inside QUIC.
    is_secure: bool,
}

impl PathAddress {
    /// The same way, with datagrams inside QUIC.
    pub(super) fn secured(self) -> Self {
        match self.is_secure {
            true => self,
            false => {
                Self { datagram_len: self.datagram_len.saturating_sub(SECURE_OVERHEAD as u16), is_secure: true, ..self }
            }
        }
    }

    /// Whether datagrams are inside QUIC.
    pub(super) fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Its number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

impl PeerAddress for PathAddress {
    fn told_to(&self, other: &Self) -> Option<SocketAddr> {
        self.remote.as_ip().filter(|_| is_for(&self.remote, &other.remote))
    }

    fn is_same_peer(&self, other: &Self) -> bool {
        self.remote == other.remote
    }

    fn is_same_host(&self, other: &Self) -> bool {
        let host = Host::of(&self.remote);
        !host.is_loopback() && host == Host::of(&other.remote)
    }

    fn datagram_len(&self) -> usize {
        self.datagram_len.into()
    }
}

/// A datagram does not fit the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooLong;

/// The sockets, and the ways from them.
#[derive(Default)]
pub(super) struct PathTable {
    sockets: Vec<Socket>,
    /// Where the user names those that may be used: who comes to an address of another one is not heard.
    uplinks: Option<Rc<Uplinks>>,
    /// The longest packet that our AS takes, in bytes.
    scion_mtu: u16,
    /// One for each socket: over SCION each has room for two bursts, which is too much for each peer.
    senders: Vec<Option<Sender>>,
    known: HashMap<u32, Known>,
    by_ip: HashMap<IpKey, u32>,
    by_path: HashMap<(usize, PathKey), u32>,
    next: u32,
}

/// The socket, who is at the other end, and the address of ours; none where the system chooses that.
type IpKey = (usize, SocketAddr, Option<IpAddr>);

struct Known {
    way: PathAddress,
    socket: usize,
    path: datagram::Path,
    /// As those see it who choose paths.
    seen: Path,
    keys: Vec<IpKey>,
    key: Option<PathKey>,
    /// Channels that belong to it.
    users: usize,
    /// Where it came from a datagram: since when it is as it is.
    learned_at: Option<Instant>,
    /// What somebody on the way said of it, who may be anybody.
    complaint: Option<ScmpKind>,
}

impl PathTable {
    /// These are the sockets, from now on, in an AS that takes packets of up to `scion_mtu` bytes. Where there are `uplinks`, these alone are
    /// used.
    pub(super) fn open(&mut self, sockets: &[Socket], scion_mtu: u16, uplinks: Option<Rc<Uplinks>>) {
        (self.sockets, self.scion_mtu, self.uplinks) = (sockets.to_vec(), scion_mtu, uplinks);
        self.senders = sockets.iter().map(|_| None).collect();
    }

    /// The sockets.
    pub(super) fn sockets(&self) -> &[Socket] {
        &self.sockets
    }

    /// The way to `remote` over plain IP, by `via` or as the system's routes go; `None` where no socket leads there.
    pub(super) fn over_ip(&mut self, remote: SocketAddr, via: Option<&Via>) -> Option<PathAddress> {
        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let socket = self.socket_to(remote, via.map(|via| via.source))?;
        let bound = self.sockets[socket].local().ip();
        let local = via.map(|via| via.source).or(Some(bound).filter(|ip| !ip.is_unspecified()));
        let local = local.or_else(|| routed_from(remote)).map(|ip| ip.to_canonical());
        if let Some(known) = self.by_ip.get(&(socket, remote, local)).and_then(|number| self.known.get(number)) {
            return Some(known.way);
        }
        let mut keys = vec![(socket, remote, local)];
        // The system may choose another address the next time.
        keys.extend((via.is_none() && local.is_some()).then_some((socket, remote, None)));
        let seen = Path::ip(local.unwrap_or_else(|| any_like(remote.ip())), remote.ip());
        Some(self.insert(socket, datagram::Path::ip(remote, via), seen, keys, None))
    }

    /// Whether some socket's packets may leave for `remote` from the address `source`.
    pub(super) fn serves(&self, remote: SocketAddr, source: IpAddr) -> bool {
        self.socket_to(remote, Some(source)).is_some()
    }

    /// The way to `remote` over `path` through SCION.
    pub(super) fn over_scion(
        &mut self,
        remote: ScionAddr,
        path: &Arc<ScionPath>,
    ) -> Result<Option<PathAddress>, PathError> {
        let Some((socket, local)) = self.scion_socket() else { return Ok(None) };
        let built = datagram::Path::scion(local, remote, path)?;
        let key = self.sockets[socket].add(&built)?;
        if let Some(known) = self.by_path.get(&(socket, key)).and_then(|number| self.known.get_mut(number)) {
            (known.path, known.learned_at) = (built, None);
            known.seen = Path::scion(local.host.ip(), remote.host.ip(), Arc::clone(path));
            return Ok(Some(known.way));
        }
        let seen = Path::scion(local.host.ip(), remote.host.ip(), Arc::clone(path));
        Ok(Some(self.insert(socket, built, seen, Vec::new(), Some(key))))
    }

    /// Fresh hop fields for the ways to `remote` that go by these paths; answers these ways, and how long their datagrams may be.
    pub(super) fn refresh(&mut self, remote: ScionAddr, paths: &[Arc<ScionPath>]) -> Vec<(PathAddress, usize)> {
        let Some((socket, local)) = self.scion_socket() else { return Vec::new() };
        let mut found = Vec::new();
        for known in self.known.values_mut().filter(|known| known.way.remote == Endpoint::Scion(remote)) {
            let Some(before) = known.seen.as_scion() else { continue };
            let same = paths.iter().filter(|path| path.is_same_way(before));
            let Some(path) = same.max_by_key(|path| path.expiry) else { continue };
            // Zero is an MTU that nobody told.
            let mtu = Some(path.mtu).filter(|mtu| *mtu > 0).unwrap_or(PACKET_LEN_USUAL);
            found.push((known.way, known.path.payload_len(mtu.min(PACKET_LEN_USUAL))));
            if path.expiry > before.expiry
                && let Ok(built) = datagram::Path::scion(local, remote, path)
                && self.sockets[socket].add(&built).is_ok()
            {
                (known.path, known.learned_at) = (built, None);
                known.seen = Path::scion(local.host.ip(), remote.host.ip(), Arc::clone(path));
            }
        }
        found
    }

    /// The way that a datagram came by, be it a new one. `headers` are SCION's.
    pub(super) fn of_received(
        &mut self,
        socket: usize,
        received: &Received,
        headers: &[u8],
        now: Instant,
    ) -> Option<PathAddress> {
        let scion = self.sockets.get(socket)?.local_scion();
        let Some(local) = scion else {
            let local = received.local.map(|ip| ip.to_canonical());
            let remote = SocketAddr::new(received.from.ip().to_canonical(), received.from.port());
            let keys = [(socket, remote, local), (socket, remote, None)];
            let number = keys.iter().find_map(|key| self.by_ip.get(key));
            if let Some(known) = number.and_then(|number| self.known.get(number)) {
                return Some(known.way);
            }
            let interface = match (&self.uplinks, local) {
                (Some(uplinks), Some(local)) if !local.is_loopback() => uplinks.index_of(local)?,
                _ => 0,
            };
            let seen = Path::ip(local.unwrap_or_else(|| any_like(remote.ip())), remote.ip());
            let back = datagram::Path::back_ip(remote, local, interface);
            return Some(self.insert(socket, back, seen, vec![keys[0]], None));
        };
        let number = received.path.and_then(|key| self.by_path.get(&(socket, key)));
        if let Some(known) = number.and_then(|number| self.known.get_mut(number)) {
            let is_old = |at: &Instant| now.saturating_duration_since(*at) >= LEARNED_ANEW_EVERY;
            if known.learned_at.as_ref().is_some_and(is_old)
                && let Ok(fresh) = datagram::Path::back(local, headers, received.from, self.scion_mtu)
            {
                (known.path, known.learned_at) = (fresh, Some(now));
            }
            return Some(known.way);
        }
        let path = datagram::Path::back(local, headers, received.from, self.scion_mtu).ok()?;
        let remote = path.remote().as_scion()?;
        let key = self.sockets[socket].add(&path).ok()?;
        let told = ScionPath::told(local.isd_as, remote.isd_as, path.interfaces(), 0);
        let seen = Path::scion(local.host.ip(), remote.host.ip(), Arc::new(told));
        let way = self.insert(socket, path, seen, Vec::new(), Some(key));
        if let Some(known) = self.known.get_mut(&way.number) {
            known.learned_at = Some(now);
        }
        Some(way)
    }

    /// The way of this number, plain.
    pub(super) fn way(&self, number: u32) -> Option<PathAddress> {
        self.known.get(&number).map(|known| known.way)
    }

    /// A channel belongs to the way.
    pub(super) fn hold(&mut self, way: &PathAddress) {
        self.hold_number(way.number);
    }

    /// A channel or a connection of QUIC belongs to it.
    pub(super) fn hold_number(&mut self, number: u32) {
        if let Some(known) = self.known.get_mut(&number) {
            known.users += 1;
        }
    }

    /// A channel that belonged to it is gone.
    pub(super) fn let_go(&mut self, way: &PathAddress) {
        self.let_go_number(way.number);
    }

    /// A channel or a connection of QUIC is gone.
    pub(super) fn let_go_number(&mut self, number: u32) {
        if let Some(known) = self.known.get_mut(&number) {
            known.users = known.users.saturating_sub(1);
        }
        self.sweep_number(number);
    }

    /// Forgets the way, unless there is a channel that belongs to it.
    pub(super) fn sweep(&mut self, way: &PathAddress) {
        self.sweep_number(way.number);
    }

    fn sweep_number(&mut self, number: u32) {
        if self.known.get(&number).is_none_or(|known| known.users > 0) {
            return;
        }
        let Some(gone) = self.known.remove(&number) else { return };
        gone.keys.iter().for_each(|key| _ = self.by_ip.remove(key));
        if let Some(key) = gone.key {
            self.by_path.remove(&(gone.socket, key));
            self.sockets[gone.socket].remove(key);
        }
    }

    /// The way, as those see it who choose paths.
    pub(super) fn seen(&self, way: &PathAddress) -> Option<&Path> {
        self.known.get(&way.number).map(|known| &known.seen)
    }

    /// Somebody complains of a path.
    pub(super) fn complained(&mut self, socket: usize, event: &PathEvent) {
        let number = self.by_path.get(&(socket, event.path));
        if let Some(known) = number.and_then(|number| self.known.get_mut(number)) {
            known.complaint = Some(event.kind);
        }
    }

    /// What somebody said of the way since this was asked last. Nothing proves it.
    pub(super) fn take_complaint(&mut self, way: &PathAddress) -> Option<ScmpKind> {
        self.known.get_mut(&way.number)?.complaint.take()
    }

    /// Sends as many of the packets as the system takes now; those that cannot leave at all count as lost on the way.
    ///
    /// # Errors
    /// The first one is longer than the way takes, and so will others be.
    pub(super) fn send(&mut self, way: &PathAddress, packets: &[Packet<'_>]) -> Result<usize, TooLong> {
        self.send_by_number(way.number, packets)
    }

    /// The same, as they are.
    pub(super) fn send_by_number(&mut self, number: u32, packets: &[Packet<'_>]) -> Result<usize, TooLong> {
        let Some(known) = self.known.get(&number) else { return Ok(packets.len()) };
        let Some(place) = self.senders.get_mut(known.socket) else { return Ok(packets.len()) };
        let sender = match place {
            Some(sender) => sender.set_path(&known.path).map(|()| sender),
            None => self.sockets[known.socket].sender(&known.path).map(|sender| place.insert(sender)),
        };
        let Ok(sender) = sender else { return Ok(packets.len()) };
        // A chunk leaves whole or not at all, however long: where a link is too narrow for it, IP cuts it.
        let is_long = |packet: &Packet<'_>| packet.head.len() + packet.body.len() > usize::from(DATAGRAM_LEN_IP);
        sender.set_may_fragment(packets.iter().any(is_long));
        match sender.try_send(packets) {
            Ok(sent) => Ok(sent),
            Err(error) if matches!(error.kind, SendErrorKind::WouldBlock | SendErrorKind::NoBuffers) => Ok(0),
            Err(error) if matches!(error.kind, SendErrorKind::TooLong { .. }) => Err(TooLong),
            // The next may leave.
            Err(_) => Ok(1),
        }
    }

    fn insert(
        &mut self,
        socket: usize,
        path: datagram::Path,
        seen: Path,
        keys: Vec<IpKey>,
        key: Option<PathKey>,
    ) -> PathAddress {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let datagram_len = match key {
            None => DATAGRAM_LEN_IP,
            Some(_) => path.payload_len(path.mtu_claimed().min(PACKET_LEN_USUAL)) as u16,
        };
        let way = PathAddress { remote: path.remote(), number, datagram_len, is_secure: false };
        self.by_ip.extend(keys.iter().map(|key| (*key, number)));
        self.by_path.extend(key.map(|key| ((socket, key), number)));
        let known = Known { way, socket, path, seen, keys, key, users: 0, learned_at: None, complaint: None };
        self.known.insert(number, known);
        way
    }

    /// The socket for packets to `remote`: from `source`, where that is given.
    fn socket_to(&self, remote: SocketAddr, source: Option<IpAddr>) -> Option<usize> {
        let reaches = |(_, local): &(usize, SocketAddr)| {
            // An IPv6 socket at all addresses reaches IPv4 too.
            (local.is_ipv4() == remote.is_ipv4() || local.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED))
                && source.is_none_or(|source| local.ip().is_unspecified() || local.ip() == source)
        };
        let is_home = |(_, local): &(usize, SocketAddr)| {
            local.ip().is_loopback() == remote.ip().is_loopback() || local.ip().is_unspecified()
        };
        let ip = || self.sockets.iter().enumerate().filter_map(|(at, socket)| Some((at, socket.local().as_ip()?)));
        let found = ip().filter(reaches).find(is_home).or_else(|| ip().find(reaches))?;
        Some(found.0)
    }

    fn scion_socket(&self) -> Option<(usize, ScionAddr)> {
        self.sockets.iter().enumerate().find_map(|(at, socket)| Some((at, socket.local_scion()?)))
    }
}

/// The address of ours that the system sends from to `remote`: connecting a UDP socket sends nothing.
fn routed_from(remote: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((any_like(remote.ip()), 0)).ok()?;
    socket.connect(remote).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

fn any_like(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}
