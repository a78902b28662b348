//! The sockets of a session that speak PPSPP: each serves many swarms and all of their channels.
//!
//! Whose a datagram is, its channel's number says, which we chose; one that opens a channel names its swarm. What is neither is
//! nothing, and nothing is remembered of it.

mod directory;
mod secure;

pub(crate) use directory::Recipient;

use std::cell::{Ref, RefCell, RefMut};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::ip_filter::IpFilter;
use anabranch_paths::ScionAddr;
use anabranch_transport::datagram::{Packet, PathKey, Receiver, Socket};
use anabranch_transport::secure::{SecureClose, is_quic};
use anabranch_transport::{Identity, NodeId};
use tokio::io::unix::AsyncFd;

use super::path_table::{PathAddress, PathTable, TooLong};
use crate::events::ContentId;
use crate::net::scion::ScionNet;
use crate::net::uplinks::Uplinks;
use directory::Directory;
use secure::Secure;

/// Batches that one socket may take in before other tasks have their turn.
const BATCHES_A_TURN: usize = 4;
/// What a datagram has beside its chunk: a handshake with the longest identifier, or digests of every layer.
const BESIDE_CHUNK_LEN: usize = 2600;
/// Pause after an error of the socket, so that one that persists does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The ports of PPSPP's sockets: with those that they had before, links that were given away lead here again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Over plain IP, in the order of the session's addresses.
    pub ip: Vec<u16>,
    /// In the SCION network.
    pub scion: Option<u16>,
}

/// The sockets, and who is reached through them.
#[derive(Default)]
pub(crate) struct Hub {
    directory: Directory,
    /// Those that the sockets are to have.
    wanted: RefCell<Ports>,
    secure: Secure,
}

impl Hub {
    /// Where it listens over plain IP.
    pub(crate) fn listening(&self) -> Vec<SocketAddr> {
        self.paths().sockets().iter().filter_map(|socket| socket.local().as_ip()).collect()
    }

    /// Where it listens in the SCION network.
    pub(crate) fn listening_scion(&self) -> Option<ScionAddr> {
        self.paths().sockets().iter().find_map(Socket::local_scion)
    }

    /// The sockets are opened at these ports, where they are free.
    pub(crate) fn prefer(&self, ports: Ports) {
        *self.wanted.borrow_mut() = ports;
    }

    /// The ports that they have.
    pub(crate) fn ports(&self) -> Ports {
        let ip = self.listening().iter().map(SocketAddr::port).collect();
        Ports { ip, scion: self.listening_scion().map(|address| address.host.port()) }
    }

    /// Opens the sockets, where it has none: at the ports that are preferred, or beside the TCP listeners, where those are free, else at
    /// other ports; and in the SCION network, where there is one, on the port after that of QUIC. Who listens in that network alone has no other
    /// address here either. Where there are `uplinks`, these alone are used. Answers those that somebody has to [`serve`].
    pub(crate) fn open(
        &self,
        beside: &[SocketAddr],
        scion: Option<&ScionNet>,
        uplinks: Option<Rc<Uplinks>>,
    ) -> io::Result<Vec<Socket>> {
        if !self.paths().sockets().is_empty() {
            return Ok(Vec::new());
        }
        let wanted = self.wanted.borrow().clone();
        let bind = |(at, address): (usize, &SocketAddr)| {
            let anywhere = SocketAddr::new(address.ip(), 0);
            let kept = wanted.ip.get(at).and_then(|port| Socket::bind(SocketAddr::new(address.ip(), *port)).ok());
            let beside = || Socket::bind(*address).or_else(|_| Socket::bind(anywhere)).map_err(io::Error::other);
            kept.map_or_else(beside, Ok)
        };
        let mut sockets = beside.iter().enumerate().map(bind).collect::<io::Result<Vec<_>>>()?;
        let place = scion.and_then(ScionNet::place);
        if sockets.is_empty() && place.is_none() {
            let both: SocketAddr = (Ipv6Addr::UNSPECIFIED, 0).into();
            let v4: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
            sockets.push(bind((0, &both)).or_else(|_| bind((0, &v4)))?);
        }
        if let Some((local, ports, routers)) = place {
            let socket = bind_scion(local, ports, wanted.scion)?;
            socket.set_routers(routers);
            sockets.push(socket);
        }
        self.paths_mut().open(&sockets, scion.map_or(0, ScionNet::mtu), uplinks);
        Ok(sockets)
    }

    /// Who is reached.
    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The ways from here.
    pub(super) fn paths(&self) -> Ref<'_, PathTable> {
        self.directory.paths()
    }

    /// The same, to change them.
    pub(super) fn paths_mut(&self) -> RefMut<'_, PathTable> {
        self.directory.paths_mut()
    }

    /// Secure contents come, whose peers know us as `identity`. Answers whether they are the first.
    pub(crate) fn open_secure(&self, identity: &Identity, chunk_len: Option<u32>) -> io::Result<bool> {
        self.secure.open(identity, chunk_len)
    }

    /// See [`Secure::call`].
    pub(crate) fn call(&self, way: &PathAddress, now: Instant) -> bool {
        self.secure.call(&self.directory, way, now)
    }

    /// The key that was proven over the way, and admitted.
    pub(crate) fn key_of(&self, way: &PathAddress) -> Option<NodeId> {
        self.secure.key_of(way)
    }

    /// Whoever is there is not who was called.
    pub(crate) fn hang_up(&self, way: &PathAddress, why: SecureClose, now: Instant) {
        self.secure.hang_up(&self.directory, way, why, now);
    }

    /// A channel is over this way.
    pub(crate) fn hold(&self, way: &PathAddress) {
        self.paths_mut().hold(way);
        if way.is_secure() {
            self.secure.hold(way);
        }
    }

    /// A channel that was over this way is gone, and with the last one its connection.
    pub(crate) fn let_go(&self, way: &PathAddress) {
        if way.is_secure() {
            self.secure.let_go(&self.directory, way);
        }
        self.paths_mut().let_go(way);
    }

    /// See [`PathTable::send`].
    pub(crate) fn send(&self, way: &PathAddress, packets: &[Packet<'_>]) -> Result<usize, TooLong> {
        if way.is_secure() {
            return self.secure.send(&self.directory, way, packets);
        }
        self.paths_mut().send(way, packets)
    }
}

/// The socket in the SCION network, at the port after that of `local`, or at any.
fn bind_scion(local: ScionAddr, ports: RangeInclusive<u16>, wanted: Option<u16>) -> io::Result<Socket> {
    let at = |port| ScionAddr::new(local.isd_as, SocketAddr::new(local.host.ip(), port));
    let mut first = wanted.into_iter().chain(local.host.port().checked_add(1)).filter(|port| ports.contains(port));
    let beside = first.find_map(|port| Socket::bind_scion(at(port), ports.clone()).ok());
    beside.map_or_else(|| Socket::bind_scion(at(0), ports).map_err(io::Error::other), Ok)
}

/// Looks after the time of QUIC's connections until the session ends.
pub(crate) async fn keep_secure_time(hub: Rc<Hub>) {
    hub.secure.keep_time(&hub.directory).await;
}

/// Receives from the socket `at` its place until the session ends.
#[allow(unsafe_code)]
pub(crate) async fn serve(hub: Rc<Hub>, at: usize, socket: Socket, filter: Arc<IpFilter>) {
    // SAFETY: the socket owns its descriptor, gives the same one each time, and keeps it open as long as it is.
    let Ok(io) = (unsafe { AsyncFd::register(socket.clone()) }) else { return };
    let mut receiver = socket.receiver();
    loop {
        let Ok(mut ready) = io.readable().await else { return };
        for _ in 0..BATCHES_A_TURN {
            match receive(&hub, at, &mut receiver, &filter) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    break;
                }
                Err(_) => {
                    tokio::time::sleep(ERROR_PAUSE).await;
                    break;
                }
            }
        }
        drop(ready);
        tokio::task::yield_now().await;
    }
}

/// One batch: to each content what is its own, in the order of arrival.
fn receive(hub: &Hub, at: usize, receiver: &mut Receiver, filter: &IpFilter) -> io::Result<()> {
    let batch = receiver.recv_lying()?;
    let now = Instant::now();
    let is_secure = hub.secure.is_open();
    let mut met: Vec<PathAddress> = Vec::new();
    let mut of_content: Option<OfContent<'_>> = None;
    let mut before: Option<(Came, PathAddress)> = None;
    for received in batch {
        let datagram = batch.payload(received);
        // No content has a datagram for it.
        if datagram.len() > hub.directory.chunk_len() + BESIDE_CHUNK_LEN {
            continue;
        }
        let channel = datagram.first_chunk().copied();
        let came = Came { channel, from: received.from, local: received.local, path: received.path };
        if let (Some((is_as, way)), Some((_, datagrams))) = (&before, &mut of_content)
            && *is_as == came
        {
            datagrams.push((*way, datagram));
            continue;
        }
        let inside = is_secure && is_quic(datagram);
        let id = if inside { None } else { hub.directory.whose(datagram, None) };
        if id.is_none() && !inside {
            continue;
        }
        let way = hub.paths_mut().of_received(at, received, batch.headers(received), now);
        let Some(way) = way else { continue };
        if met.last() != Some(&way) {
            met.push(way);
        }
        if filter.blocks(&way.remote) {
            continue;
        }
        let Some(id) = id else {
            hub.secure.received(&way, datagram, now);
            continue;
        };
        // What opens a channel is looked at by itself: it may be of another swarm than the one before.
        before = (channel != Some([0; 4])).then_some((came, way));
        match &mut of_content {
            Some((of, datagrams)) if *of == id => datagrams.push((way, datagram)),
            other => {
                let before = other.replace((id, vec![(way, datagram)]));
                deliver(hub, before, now);
            }
        }
    }
    deliver(hub, of_content, now);
    if is_secure {
        hub.secure.pump(&hub.directory, now);
    }
    let mut paths = hub.paths_mut();
    // Who came of nothing is forgotten.
    met.iter().for_each(|way| paths.sweep(way));
    while let Some(event) = receiver.event() {
        paths.complained(at, &event);
    }
    Ok(())
}

/// Over which channel a datagram came, and from where: the next is the same as a rule, by the same way and for the same content.
#[derive(Clone, Copy, PartialEq)]
struct Came {
    channel: Option<[u8; 4]>,
    from: SocketAddr,
    local: Option<IpAddr>,
    path: Option<PathKey>,
}

/// Datagrams of one content, each with where it came from.
type OfContent<'a> = (ContentId, Vec<(PathAddress, &'a [u8])>);

fn deliver(hub: &Hub, datagrams: Option<OfContent<'_>>, now: Instant) {
    let Some((id, datagrams)) = datagrams else { return };
    if let Some(content) = hub.directory.content(id) {
        content.borrow_mut().received(&datagrams, now);
    }
}
