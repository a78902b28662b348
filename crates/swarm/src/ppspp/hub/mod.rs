//! The sockets of a session that speak PPSPP: each serves many swarms and all of their channels.
//!
//! Whose a datagram is, its channel's number says, which we chose; one that opens a channel names its swarm. What is neither is
//! nothing, and nothing is remembered of it.

mod secure;

pub(crate) use secure::keep_secure_time;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::ip_filter::IpFilter;
use anabranch_paths::ScionAddr;
use anabranch_ppspp::wire::{ChannelId, Opening, SwarmParams, split_channel};
use anabranch_transport::NodeId;
use anabranch_transport::datagram::{Packet, PathKey, Receiver, Socket};
use anabranch_transport::secure::is_quic;
use tokio::io::unix::AsyncFd;

use super::audience::Audience;
use super::path_table::{PathAddress, PathTable, TooLong};
use crate::events::ContentId;
use crate::net::scion::ScionNet;
use crate::net::uplinks::Uplinks;
use secure::Secure;

/// Batches that one socket may take in before other tasks have their turn.
const BATCHES_A_TURN: usize = 4;
/// Longest chunk of others' live sources that is received.
const CHUNK_LEN_MAX: usize = 8192;
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

/// A content, as the sockets know it.
pub(crate) trait Recipient {
    /// Datagrams came, each by its way.
    fn received(&mut self, datagrams: &[(PathAddress, &[u8])], now: Instant);

    /// Whether it waits for whoever is at the end of the way to prove a key.
    fn is_calling(&self, way: &PathAddress) -> bool;

    /// Whoever is at the end of the way proved its key.
    fn secured(&mut self, way: &PathAddress, key: NodeId, now: Instant);

    /// The connection over the way ended, or did not come about.
    fn unsecured(&mut self, way: &PathAddress, reason: &str, is_final: bool, now: Instant);
}

/// The sockets, and who is reached through them.
#[derive(Default)]
pub(crate) struct Hub {
    paths: RefCell<PathTable>,
    /// Those that the sockets are to have.
    wanted: RefCell<Ports>,
    by_channel: RefCell<HashMap<ChannelId, ContentId>>,
    by_swarm: RefCell<HashMap<Box<[u8]>, ContentId>>,
    contents: RefCell<HashMap<ContentId, Entry>>,
    /// Longest chunk of all contents that there were.
    chunk_len: Cell<usize>,
    secure: Secure,
}

/// A content, and with whom it deals where it is secure.
struct Entry {
    content: Weak<RefCell<dyn Recipient>>,
    audience: Option<Rc<Audience>>,
}

impl Hub {
    /// Where it listens over plain IP.
    pub(crate) fn listening(&self) -> Vec<SocketAddr> {
        self.paths.borrow().sockets().iter().filter_map(|socket| socket.local().as_ip()).collect()
    }

    /// Where it listens in the SCION network.
    pub(crate) fn listening_scion(&self) -> Option<ScionAddr> {
        self.paths.borrow().sockets().iter().find_map(Socket::local_scion)
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
        if !self.paths.borrow().sockets().is_empty() {
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
        self.paths.borrow_mut().open(&sockets, scion.map_or(0, ScionNet::mtu), uplinks);
        Ok(sockets)
    }

    /// The ways from here.
    pub(super) fn paths(&self) -> Ref<'_, PathTable> {
        self.paths.borrow()
    }

    /// The same, to change them.
    pub(super) fn paths_mut(&self) -> RefMut<'_, PathTable> {
        self.paths.borrow_mut()
    }

    /// A content comes, of the swarm that `params` are of; where it is secure, with whom it deals. `false` where its swarm is there already.
    pub(crate) fn insert(
        &self,
        id: ContentId,
        params: &SwarmParams,
        audience: Option<Rc<Audience>>,
        content: Weak<RefCell<dyn Recipient>>,
    ) -> bool {
        let swarm_id: Box<[u8]> = params.swarm_id().into();
        if self.by_swarm.borrow().contains_key(&swarm_id) {
            return false;
        }
        let chunk_len = params.chunk_len().map_or(CHUNK_LEN_MAX, |len| len as usize);
        self.chunk_len.set(self.chunk_len.get().max(chunk_len));
        self.by_swarm.borrow_mut().insert(swarm_id, id);
        self.contents.borrow_mut().insert(id, Entry { content, audience });
        true
    }

    /// The content of a swarm.
    pub(crate) fn of_swarm(&self, swarm_id: &[u8]) -> Option<ContentId> {
        self.by_swarm.borrow().get(swarm_id).copied()
    }

    /// A content is gone, and its channels with it.
    pub(crate) fn remove(&self, id: ContentId) {
        self.by_swarm.borrow_mut().retain(|_, of| *of != id);
        self.by_channel.borrow_mut().retain(|_, of| *of != id);
        self.contents.borrow_mut().remove(&id);
    }

    /// A content has a channel of this number. `false` where another has one.
    pub(crate) fn take_channel(&self, channel: ChannelId, id: ContentId) -> bool {
        *self.by_channel.borrow_mut().entry(channel).or_insert(id) == id
    }

    /// A content has this channel no more.
    pub(crate) fn leave_channel(&self, channel: ChannelId, id: ContentId) {
        let mut channels = self.by_channel.borrow_mut();
        if channels.get(&channel) == Some(&id) {
            channels.remove(&channel);
        }
    }

    /// See [`PathTable::send`].
    pub(crate) fn send(&self, way: &PathAddress, packets: &[Packet<'_>]) -> Result<usize, TooLong> {
        if way.is_secure() {
            return self.send_secure(way, packets);
        }
        self.paths.borrow_mut().send(way, packets)
    }

    fn content(&self, id: ContentId) -> Option<Rc<RefCell<dyn Recipient>>> {
        self.contents.borrow().get(&id)?.content.upgrade()
    }

    /// All contents that are secure.
    fn contents(&self) -> Vec<Rc<RefCell<dyn Recipient>>> {
        let contents = self.contents.borrow();
        let secure = contents.values().filter(|entry| entry.audience.is_some());
        secure.filter_map(|entry| entry.content.upgrade()).collect()
    }

    /// Whether any content deals with whoever has this key.
    fn admits(&self, key: &NodeId) -> bool {
        let contents = self.contents.borrow();
        contents.values().filter_map(|entry| entry.audience.as_ref()).any(|audience| audience.admits(key))
    }

    /// Whose datagram this is, which is from whoever has the `key` if it was inside QUIC.
    fn whose(&self, datagram: &[u8], key: Option<&NodeId>) -> Option<ContentId> {
        let (channel, messages) = split_channel(datagram)?;
        let id = match channel {
            0 => {
                let opening = Opening::parse(messages).ok()?;
                self.of_swarm(opening.handshake.swarm_id.as_deref()?)?
            }
            channel => self.by_channel.borrow().get(&channel).copied()?,
        };
        let contents = self.contents.borrow();
        let is_its_own = match (&contents.get(&id)?.audience, key) {
            (None, None) => true,
            (Some(audience), Some(key)) => audience.admits(key),
            (None, Some(_)) | (Some(_), None) => false,
        };
        is_its_own.then_some(id)
    }
}

/// The socket in the SCION network, at the port after that of `local`, or at any.
fn bind_scion(local: ScionAddr, ports: RangeInclusive<u16>, wanted: Option<u16>) -> io::Result<Socket> {
    let at = |port| ScionAddr::new(local.isd_as, SocketAddr::new(local.host.ip(), port));
    let mut first = wanted.into_iter().chain(local.host.port().checked_add(1)).filter(|port| ports.contains(port));
    let beside = first.find_map(|port| Socket::bind_scion(at(port), ports.clone()).ok());
    beside.map_or_else(|| Socket::bind_scion(at(0), ports).map_err(io::Error::other), Ok)
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
    let is_secure = hub.is_secure();
    let mut met: Vec<PathAddress> = Vec::new();
    let mut of_content: Option<OfContent<'_>> = None;
    let mut before: Option<(Came, PathAddress)> = None;
    for received in batch {
        let datagram = batch.payload(received);
        // No content has a datagram for it.
        if datagram.len() > hub.chunk_len.get() + BESIDE_CHUNK_LEN {
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
        let id = if inside { None } else { hub.whose(datagram, None) };
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
            hub.received_secure(&way, datagram, now);
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
        hub.pump_secure(now);
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
    if let Some(content) = hub.content(id) {
        content.borrow_mut().received(&datagrams, now);
    }
}
