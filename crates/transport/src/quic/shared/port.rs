//! A socket that QUIC shares with other datagrams, as noq wants it. Whoever receives from the socket hands in what is QUIC's; what
//! QUIC sends goes out by the way that its remote has now.
//!
//! noq tells remotes apart by socket addresses: each has one here that stands for it, whichever way its packets go.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use anabranch_paths::Endpoint;
use noq::udp::{RecvMeta, Transmit};
use noq::{AsyncUdpSocket, UdpSender};

use crate::datagram::{Packet, Path, SendErrorKind, Sender, Socket};

/// Packets that wait for QUIC's thread. More are lost, as on a full link: whoever means it sends them again.
const WAITING_MAX: usize = 1024;
/// Remotes that are known; of strangers the oldest goes. More than handshakes at once.
const REMOTES_MAX: usize = 1024;
/// Longest packet that is QUIC's here: what is said is short, so that the smallest packets that all paths take will do.
const PACKET_LEN_MAX: usize = 1500;
/// The upper half of addresses that stand for remotes (unique local, RFC 4193): none of them is ever sent to.
const PREFIX: u128 = 0xfd61_6e61_6275_6c6b << 64;
const PORT: u16 = 1;

/// What both ends of the socket know.
pub(super) struct Shared {
    socket: Socket,
    state: Mutex<State>,
    /// Whether anybody ever proved a key.
    has_met: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Whom a number stands for, and the way there.
    remotes: HashMap<u64, Remote>,
    by_endpoint: HashMap<Endpoint, u64>,
    /// The oldest first.
    order: VecDeque<u64>,
    next: u64,
    waiting: VecDeque<(u64, Box<[u8]>)>,
    waker: Option<Waker>,
}

struct Remote {
    endpoint: Endpoint,
    path: Path,
    /// Connections that need it.
    held: usize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({})", self.socket.local())
    }
}

impl Shared {
    pub(super) fn new(socket: Socket) -> Arc<Self> {
        Arc::new(Self { socket, state: Mutex::default(), has_met: AtomicBool::new(false) })
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Somebody proved a key.
    pub(super) fn meet(&self) {
        self.has_met.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_met(&self) -> bool {
        self.has_met.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way through a change that matters.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A packet of QUIC's came from `remote`; `path` answers the way back where it is a stranger's.
    pub(super) fn deliver(&self, remote: Endpoint, parts: [&[u8]; 2], path: impl FnOnce() -> Option<Path>) {
        let mut state = self.lock();
        let len = parts[0].len() + parts[1].len();
        if state.waiting.len() >= WAITING_MAX || len > PACKET_LEN_MAX {
            return;
        }
        let Some(number) = state.number_of(remote, path) else { return };
        state.waiting.push_back((number, parts.concat().into()));
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }

    /// The address that stands for where `path` leads; packets go there by it from now on.
    pub(super) fn address_of(&self, path: &Path) -> Option<SocketAddr> {
        let mut state = self.lock();
        let number = state.number_of(path.remote(), || Some(path.clone()))?;
        state.remotes.get_mut(&number)?.path = path.clone();
        Some(address(number))
    }

    /// Whom an address stands for, and the way there.
    pub(super) fn remote_of(&self, address: SocketAddr) -> Option<(Endpoint, Path)> {
        let state = self.lock();
        let remote = state.remotes.get(&number(address))?;
        Some((remote.endpoint, remote.path.clone()))
    }

    /// From now on packets to the remote behind `address` go by `path`, which may lead to another address of the same host: what
    /// comes from there is that remote's too.
    pub(super) fn set_path(&self, address: SocketAddr, path: &Path) {
        let mut state = self.lock();
        let number = number(address);
        let Some(remote) = state.remotes.get_mut(&number) else { return };
        remote.path = path.clone();
        state.by_endpoint.insert(path.remote(), number);
    }

    pub(super) fn hold(&self, address: SocketAddr) {
        if let Some(remote) = self.lock().remotes.get_mut(&number(address)) {
            remote.held += 1;
        }
    }

    pub(super) fn release(&self, address: SocketAddr) {
        if let Some(remote) = self.lock().remotes.get_mut(&number(address)) {
            remote.held = remote.held.saturating_sub(1);
        }
    }
}

impl State {
    fn number_of(&mut self, endpoint: Endpoint, path: impl FnOnce() -> Option<Path>) -> Option<u64> {
        if let Some(number) = self.by_endpoint.get(&endpoint) {
            return Some(*number);
        }
        if self.remotes.len() >= REMOTES_MAX {
            let stranger = |number: &u64| self.remotes.get(number).is_none_or(|remote| remote.held == 0);
            let at = self.order.iter().position(stranger)?;
            let gone = self.order.remove(at)?;
            self.remotes.remove(&gone);
            self.by_endpoint.retain(|_, number| *number != gone);
        }
        let path = path()?;
        let number = self.next;
        self.next += 1;
        self.remotes.insert(number, Remote { endpoint, path, held: 0 });
        self.by_endpoint.insert(endpoint, number);
        self.order.push_back(number);
        Some(number)
    }
}

fn address(number: u64) -> SocketAddr {
    SocketAddrV6::new(Ipv6Addr::from(PREFIX | u128::from(number)), PORT, 0, 0).into()
}

fn number(address: SocketAddr) -> u64 {
    match address {
        SocketAddr::V6(address) => u128::from(*address.ip()) as u64,
        SocketAddr::V4(_) => u64::MAX,
    }
}

/// What noq has.
#[derive(Debug)]
pub(super) struct Port(pub(super) Arc<Shared>);

impl AsyncUdpSocket for Port {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(PortSender { shared: Arc::clone(&self.0), sender: Mutex::new(None) })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        let mut filled = 0;
        for (buf, meta) in bufs.iter_mut().zip(metas.iter_mut()) {
            let Some((number, bytes)) = state.waiting.pop_front() else { break };
            let len = bytes.len().min(buf.len());
            buf[..len].copy_from_slice(&bytes[..len]);
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (address(number), len, len);
            filled += 1;
        }
        if filled == 0 {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(filled))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddrV6::new(Ipv6Addr::from(PREFIX), self.0.socket.local().socket_addr().port(), 0, 0).into())
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// One task's way to send. The lock is never contended; it makes the sender one that threads may share.
struct PortSender {
    shared: Arc<Shared>,
    sender: Mutex<Option<Sender>>,
}

impl fmt::Debug for PortSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortSender").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl UdpSender for PortSender {
    fn poll_send(self: Pin<&mut Self>, transmit: &Transmit<'_>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some((_, path)) = this.shared.remote_of(transmit.destination) else { return Poll::Ready(Ok(())) };
        let slot = this.sender.get_mut().unwrap_or_else(PoisonError::into_inner);
        let sender = match slot {
            Some(sender) => sender.set_path(&path).is_ok().then_some(sender),
            None => match this.shared.socket.sender(&path) {
                Ok(sender) => Some(slot.insert(sender)),
                Err(_) => None,
            },
        };
        let mut is_gone = false;
        if let Some(sender) = sender {
            let segment_len = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
            let packets: Vec<Packet<'_>> =
                transmit.contents.chunks(segment_len).map(|head| Packet { head, body: &[] }).collect();
            // What keeps a packet from leaving, a full buffer too, loses it: QUIC notices as it notices any loss. Data has the socket
            // most of the time, and what is said between is little.
            let sent = sender.try_send(&packets);
            is_gone = sent.is_err_and(|error| error.kind == SendErrorKind::InterfaceGone);
        }
        if let Some(other) = path.from_any_address().filter(|_| is_gone) {
            this.shared.set_path(transmit.destination, &other);
        }
        Poll::Ready(Ok(()))
    }
}
