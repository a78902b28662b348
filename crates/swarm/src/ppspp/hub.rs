//! The sockets of a session that speak PPSPP: each serves many swarms and all of their channels.
//!
//! Whose a datagram is, its channel's number says, which we chose; one that opens a channel names its swarm. What is neither is
//! nothing, and nothing is remembered of it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::ip_filter::IpFilter;
use anabranch_ppspp::swarm::PeerAddress;
use anabranch_ppspp::wire::{ChannelId, Opening, split_channel};
use anabranch_transport::datagram::{Packet, Path, Place, Receiver, SendErrorKind, Sender, Socket};
use tokio::io::unix::AsyncFd;

use super::content::{Content, Handle};
use crate::events::TorrentId;

/// Datagrams received with one call: what the kernel coalesces at most.
const BATCH_MAX: usize = 64;
/// Batches that one socket may take in before other tasks have their turn.
const BATCHES_A_TURN: usize = 8;
/// What a datagram has beside its chunk: a handshake with the longest identifier, or digests of every layer.
const BESIDE_CHUNK_LEN: usize = 2600;
/// Ways that are remembered with what is needed to send over them; all are made again when there are more.
const SENDERS_MAX: usize = 1024;
/// Pause after an error of the socket, so that one that persists does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// A way to a peer, in the words of the core: it is what a channel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Way {
    /// The socket at the other end.
    pub remote: SocketAddr,
}

impl PeerAddress for Way {
    fn socket_addr(&self) -> Option<SocketAddr> {
        Some(self.remote)
    }
}

/// A datagram does not fit the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooLong;

/// The sockets, and who is reached through them.
#[derive(Default)]
pub(crate) struct Hub {
    sockets: RefCell<Vec<Socket>>,
    by_channel: RefCell<HashMap<ChannelId, TorrentId>>,
    by_swarm: RefCell<HashMap<Box<[u8]>, TorrentId>>,
    contents: RefCell<HashMap<TorrentId, Weak<RefCell<Content>>>>,
    senders: RefCell<HashMap<Way, Sender>>,
    /// Longest chunk of all contents that there were.
    chunk_len: Cell<usize>,
}

impl Hub {
    /// Where it listens.
    pub(crate) fn listening(&self) -> Vec<SocketAddr> {
        self.sockets.borrow().iter().filter_map(|socket| socket.local().as_ip()).collect()
    }

    /// Opens the sockets, where it has none: beside the TCP listeners, where those ports are free, else anywhere. Answers those
    /// that somebody has to [`serve`].
    pub(crate) fn open(&self, beside: &[SocketAddr]) -> io::Result<Vec<Socket>> {
        if !self.sockets.borrow().is_empty() {
            return Ok(Vec::new());
        }
        let bind = |address: &SocketAddr| {
            let anywhere = SocketAddr::new(address.ip(), 0);
            Socket::bind(*address).or_else(|_| Socket::bind(anywhere)).map_err(io::Error::other)
        };
        let mut sockets = beside.iter().map(bind).collect::<io::Result<Vec<_>>>()?;
        if sockets.is_empty() {
            let both: SocketAddr = (Ipv6Addr::UNSPECIFIED, 0).into();
            let v4: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
            sockets.push(bind(&both).or_else(|_| bind(&v4))?);
        }
        self.sockets.borrow_mut().clone_from(&sockets);
        Ok(sockets)
    }

    /// A content comes. `false` where its swarm is there already.
    pub(crate) fn insert(&self, id: TorrentId, content: &Handle) -> bool {
        let state = content.borrow();
        let swarm_id: Box<[u8]> = state.link.params.swarm_id().into();
        if self.by_swarm.borrow().contains_key(&swarm_id) {
            return false;
        }
        let chunk_len = state.link.params.chunk_len().unwrap_or(0) as usize;
        self.chunk_len.set(self.chunk_len.get().max(chunk_len));
        self.by_swarm.borrow_mut().insert(swarm_id, id);
        self.contents.borrow_mut().insert(id, content.downgrade());
        true
    }

    /// The content of a swarm.
    pub(crate) fn of_swarm(&self, swarm_id: &[u8]) -> Option<TorrentId> {
        self.by_swarm.borrow().get(swarm_id).copied()
    }

    /// A content is gone, and its channels with it.
    pub(crate) fn remove(&self, id: TorrentId) {
        self.by_swarm.borrow_mut().retain(|_, of| *of != id);
        self.by_channel.borrow_mut().retain(|_, of| *of != id);
        self.contents.borrow_mut().remove(&id);
    }

    /// A content has a channel of this number. `false` where another has one.
    pub(crate) fn take_channel(&self, channel: ChannelId, id: TorrentId) -> bool {
        *self.by_channel.borrow_mut().entry(channel).or_insert(id) == id
    }

    /// A content has this channel no more.
    pub(crate) fn leave_channel(&self, channel: ChannelId, id: TorrentId) {
        let mut channels = self.by_channel.borrow_mut();
        if channels.get(&channel) == Some(&id) {
            channels.remove(&channel);
        }
    }

    /// Sends as many of the packets as the system takes now; those that cannot leave at all count as lost on the way.
    ///
    /// # Errors
    /// The first one is longer than the way takes, and so will others be.
    pub(crate) fn send(&self, way: &Way, packets: &[Packet<'_>]) -> Result<usize, TooLong> {
        let mut senders = self.senders.borrow_mut();
        if senders.len() >= SENDERS_MAX && !senders.contains_key(way) {
            senders.clear();
        }
        if !senders.contains_key(way) {
            let Some(sender) = self.sender(way) else { return Ok(packets.len()) };
            senders.insert(*way, sender);
        }
        let Some(sender) = senders.get_mut(way) else { return Ok(packets.len()) };
        match sender.try_send(packets) {
            Ok(sent) => Ok(sent),
            Err(error) if matches!(error.kind, SendErrorKind::WouldBlock | SendErrorKind::NoBuffers) => Ok(0),
            Err(error) if matches!(error.kind, SendErrorKind::TooLong { .. }) => Err(TooLong),
            // The next may leave.
            Err(_) => Ok(1),
        }
    }

    fn sender(&self, way: &Way) -> Option<Sender> {
        let sockets = self.sockets.borrow();
        let reaches = |socket: &&Socket| {
            let Some(local) = socket.local().as_ip() else { return false };
            // An IPv6 socket at all addresses reaches IPv4 too.
            local.is_ipv4() == way.remote.is_ipv4() || local.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        };
        let is_home = |socket: &&Socket| {
            let ip = socket.local().as_ip().map(|local| local.ip());
            ip.is_some_and(|ip| ip.is_loopback() == way.remote.ip().is_loopback() || ip.is_unspecified())
        };
        let socket = sockets.iter().filter(reaches).find(is_home).or_else(|| sockets.iter().find(reaches))?;
        socket.sender(&Path::ip(way.remote, None)).ok()
    }

    fn content(&self, id: TorrentId) -> Option<Handle> {
        Handle::upgrade(self.contents.borrow().get(&id)?)
    }

    /// Whose datagram this is.
    fn whose(&self, datagram: &[u8]) -> Option<TorrentId> {
        let (channel, messages) = split_channel(datagram)?;
        if channel != 0 {
            return self.by_channel.borrow().get(&channel).copied();
        }
        let opening = Opening::parse(messages).ok()?;
        self.of_swarm(opening.handshake.swarm_id.as_deref()?)
    }
}

/// Receives from a socket until the session ends.
pub(crate) async fn serve(hub: Rc<Hub>, socket: Socket, filter: Arc<IpFilter>) {
    // SAFETY: the socket owns its descriptor, gives the same one each time, and keeps it open as long as it is.
    let Ok(io) = (unsafe { AsyncFd::register(socket.clone()) }) else { return };
    let mut receiver = socket.receiver();
    let mut memory = Vec::new();
    loop {
        let Ok(mut ready) = io.readable().await else { return };
        for _ in 0..BATCHES_A_TURN {
            match receive(&hub, &mut receiver, &mut memory, &filter) {
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
fn receive(hub: &Hub, receiver: &mut Receiver, memory: &mut Vec<u8>, filter: &IpFilter) -> io::Result<()> {
    let place_len = hub.chunk_len.get() + BESIDE_CHUNK_LEN;
    memory.resize(BATCH_MAX * place_len, 0);
    let mut places: Vec<Place<'_>> =
        memory.chunks_exact_mut(place_len).map(|body| Place { head: &mut [], body }).collect();
    let batch = receiver.recv(&mut places)?;
    let arrived: Vec<(usize, usize, Way)> = batch
        .iter()
        .filter(|received| !received.is_truncated && !filter.blocks_ip(received.from.ip()))
        .map(|received| (received.place, received.len, Way { remote: received.from }))
        .collect();
    drop(places);
    let now = Instant::now();
    let datagram = |place: usize, len: usize| &memory[place * place_len..place * place_len + len];
    let mut of_content: Option<OfContent<'_>> = None;
    for (place, len, way) in arrived {
        let Some(id) = hub.whose(datagram(place, len)) else { continue };
        match &mut of_content {
            Some((of, datagrams)) if *of == id => datagrams.push((way, datagram(place, len))),
            other => {
                let before = other.replace((id, vec![(way, datagram(place, len))]));
                deliver(hub, before, now);
            }
        }
    }
    deliver(hub, of_content, now);
    Ok(())
}

/// Datagrams of one content, each with where it came from.
type OfContent<'a> = (TorrentId, Vec<(Way, &'a [u8])>);

fn deliver(hub: &Hub, datagrams: Option<OfContent<'_>>, now: Instant) {
    let Some((id, datagrams)) = datagrams else { return };
    if let Some(content) = hub.content(id) {
        content.borrow_mut().received(&datagrams, now);
    }
}
