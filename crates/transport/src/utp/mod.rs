//! uTP over a UDP socket: [`anabranch_utp`] decides, here are the socket, the time and who waits.
//!
//! It may be behind a SOCKS5 proxy (`relay.rs`): then all that is sent goes to the proxy's relay, and nothing counts that did not come from there.
//!
//! The port is shared: what is no uTP goes to whom [`UtpEndpoint::set_other`] named. One socket has all connections, those that come in and those that we open, over IPv4 and IPv6 and over every uplink. All of it is one
//! thread's: what streams write gathers until their tasks have had their turn, and leaves then, in bursts.

mod outgoing;
mod relay;
mod stream;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anabranch_paths::{Endpoint, Path, PathPeer};
use anabranch_udp::{Message, Options, RecvBatch, Socket};
use anabranch_utp::{CallError, ConnError, ConnId, Event, Route};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::interfaces::towards;
use crate::{ConnectError, Proxy, UdpTarget, Via};
use outgoing::Outgoing;
use relay::Relay;
pub use stream::UtpStream;

/// Messages received with one call: half a megabyte, after which those who wait for it have their turn.
const RECV_MESSAGES: usize = 8;
/// Calls in a row until other tasks have their turn.
const SENDS_A_TURN: usize = 32;
/// Pause after an error of the socket, so that one that persists does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(50);
/// How long a session that leaves waits for what was written last to arrive.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of the headers of IP and UDP.
const fn headers_len(is_v4: bool) -> usize {
    if is_v4 { 28 } else { 48 }
}
/// What a link takes of which the system does not tell.
const MTU_UNKNOWN: usize = 1500;

/// A UDP socket, and the connections over it.
pub struct UtpEndpoint {
    io: AsyncFd<Socket>,
    /// Through which everything goes, where there is one.
    relay: Option<Relay>,
    state: RefCell<State>,
    /// There may be something to send.
    wake: Notify,
    incoming: Notify,
    emptied: Notify,
    other: RefCell<Option<Other>>,
    admits: RefCell<Option<Admits>>,
}

/// Takes what is no uTP: where it came from, the address of ours that it came to, and its bytes.
type Other = Box<dyn Fn(SocketAddr, Option<IpAddr>, &[u8])>;
/// Whether what comes to one of our addresses is heard, and the number of the interface by which it is answered; 0: any.
type Admits = Box<dyn Fn(IpAddr) -> Option<u32>>;

struct State {
    core: anabranch_utp::Endpoint,
    waiting: HashMap<ConnId, Waiting>,
    incoming: VecDeque<ConnId>,
    outgoing: Outgoing,
}

/// Who waits for a connection.
#[derive(Default)]
struct Waiting {
    recv: Option<Waker>,
    send: Option<Waker>,
}

impl std::fmt::Debug for UtpEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UtpEndpoint").field("local", &self.local_addr()).finish_non_exhaustive()
    }
}

impl UtpEndpoint {
    /// At `address`; who calls is let in where it `accepts`. Nothing moves before [`UtpEndpoint::run`].
    ///
    /// # Errors
    /// When another program has the port, the address is not of this machine, or the system has no random numbers.
    pub fn bind(address: SocketAddr, accepts: bool) -> io::Result<Rc<Self>> {
        Self::open(address, accepts, None)
    }

    /// Behind `proxy`, at a port of the system's choice. Nothing moves before [`UtpEndpoint::keep_relay`] has a relay there.
    ///
    /// # Errors
    /// When the system has no socket or no random numbers.
    pub fn through(proxy: &Arc<Proxy>, accepts: bool) -> io::Result<Rc<Self>> {
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        let open = |ip| Self::open(SocketAddr::new(ip, 0), accepts, Some(Relay::new(Arc::clone(proxy))));
        open(any[0]).or_else(|_| open(any[1]))
    }

    #[allow(unsafe_code)]
    fn open(address: SocketAddr, accepts: bool, relay: Option<Relay>) -> io::Result<Rc<Self>> {
        let socket = Socket::bind(address, &Options { local_address: true, ecn: false, ..Options::default() })?;
        let mut seed = [0; 8];
        SystemRandom::new().fill(&mut seed).map_err(|_| io::Error::other("the system has no random numbers"))?;
        let state = State {
            core: anabranch_utp::Endpoint::new(Instant::now(), u64::from_ne_bytes(seed), accepts),
            waiting: HashMap::new(),
            incoming: VecDeque::new(),
            outgoing: Outgoing::default(),
        };
        // SAFETY: the socket owns its descriptor, gives the same one each time, and keeps it open as long as it is.
        let io = unsafe { AsyncFd::register(socket) }.map_err(|error| error.into_parts().1)?;
        let (wake, incoming, emptied) = (Notify::new(), Notify::new(), Notify::new());
        let (state, other, admits) = (RefCell::new(state), RefCell::default(), RefCell::default());
        Ok(Rc::new(Self { io, relay, state, wake, incoming, emptied, other, admits }))
    }

    /// Has `other` take what comes and is no uTP. It must not keep this endpoint.
    pub fn set_other(&self, other: impl Fn(SocketAddr, Option<IpAddr>, &[u8]) + 'static) {
        *self.other.borrow_mut() = Some(Box::new(other));
    }

    /// Has what comes be heard only where `admits` says so of the address of ours that it came to, and be answered by the interface of the
    /// number that it says, or by any where that is 0.
    pub fn set_admits(&self, admits: impl Fn(IpAddr) -> Option<u32> + 'static) {
        *self.admits.borrow_mut() = Some(Box::new(admits));
    }

    /// Has nothing leave from here by another interface than the one of this number, and be heard by another: for an address of its.
    ///
    /// # Errors
    /// When the system does not let this process.
    pub fn keep_to_interface(&self, index: u32) -> io::Result<()> {
        self.io.get_ref().keep_to_interface(index)
    }

    /// Sends a datagram that is no uTP, by the uplink that `via` names. What the system does not take now is lost, as the network might
    /// lose it.
    pub fn send_other(&self, via: Option<&Via>, to: SocketAddr, datagram: &[u8]) {
        if self.relay.is_some() {
            return self.send_to_target(&UdpTarget::Address(to), datagram);
        }
        // What stays on this machine leaves by no uplink.
        let via = via.filter(|_| !to.ip().is_loopback());
        let parts = [IoSlice::new(datagram)];
        let message = Message {
            from: via.map(|via| via.source),
            interface: via.map_or(0, |via| via.index),
            ..Message::new(to, &parts)
        };
        let _ = self.io.get_ref().send(&[message]);
    }

    /// Has the proxy that this is behind send a datagram, to a name that it looks up, or to an address.
    pub fn send_to_target(&self, target: &UdpTarget, datagram: &[u8]) {
        let relay = self.relay.as_ref().and_then(Relay::at);
        if let (Some(relay), Ok(header)) = (relay, target.header()) {
            let parts = [IoSlice::new(&header), IoSlice::new(datagram)];
            let _ = self.io.get_ref().send(&[Message::new(relay, &parts)]);
        }
    }

    /// Whether this is behind a proxy.
    pub fn is_relayed(&self) -> bool {
        self.relay.is_some()
    }

    /// Waits until it is known whether there is a way out: at once, or where this is behind a proxy, when that gave us a relay or refused to.
    pub async fn has_way_out(&self) -> bool {
        match &self.relay {
            Some(relay) => relay.is_open().await,
            None => true,
        }
    }

    /// Has the proxy hold a relay, for as long as this is polled; `failed` is told each time when it does not. Where there is no proxy, there is
    /// nothing to do.
    pub async fn keep_relay(&self, failed: impl Fn(&io::Error)) {
        if let Some(relay) = &self.relay {
            relay.keep(failed).await;
        }
    }

    /// Where it is.
    pub fn local_addr(&self) -> SocketAddr {
        self.io.get_ref().local_addr()
    }

    /// Opens a connection to `endpoint`: by the way that `via` says, or where there is none, as the system's routes go. Who drops
    /// this meanwhile leaves nothing behind.
    ///
    /// # Errors
    /// Where nobody answers, or who does refuses.
    pub async fn connect(self: &Rc<Self>, endpoint: Endpoint, via: Option<&Via>) -> Result<UtpStream, ConnectError> {
        let remote = endpoint.as_ip().ok_or(ConnectError::NotIp(endpoint))?;
        let failed = |source| ConnectError::Io { endpoint, source };
        if !self.has_way_out().await {
            return Err(failed(relay::none()));
        }
        let route = Route {
            remote,
            local: via.map(|via| via.source),
            // What stays on this machine leaves by no uplink.
            interface: via.filter(|via| !via.is_local).map_or(0, |via| via.index),
        };
        let (local, mtu) = self.first_link(&route).map_err(failed)?;
        let route = Route { local: Some(local), ..route };
        let called = self.state.borrow_mut().core.connect(Instant::now(), route, mtu);
        let conn = called.map_err(|error: CallError| failed(io::Error::other(error)))?;
        let stream = self.stream(conn, remote, local);
        poll_fn(|cx| stream.poll_open(cx)).await.map_err(failed)?;
        Ok(stream)
    }

    /// The next connection from elsewhere.
    pub async fn accept(self: &Rc<Self>) -> UtpStream {
        loop {
            let next = {
                let mut state = self.state.borrow_mut();
                let conn = state.incoming.pop_front();
                conn.and_then(|conn| Some((conn, state.core.route(conn)?)))
            };
            let Some((conn, route)) = next else {
                self.incoming.notified().await;
                continue;
            };
            let link = self.first_link(&route);
            let (local, mtu) = link.unwrap_or((route.local.unwrap_or(self.local_addr().ip()), MTU_UNKNOWN));
            self.state.borrow_mut().core.set_mtu_limit(conn, mtu);
            return self.stream(conn, route.remote, route.local.unwrap_or(local));
        }
    }

    fn stream(self: &Rc<Self>, conn: ConnId, remote: SocketAddr, local: IpAddr) -> UtpStream {
        self.state.borrow_mut().waiting.insert(conn, Waiting::default());
        self.wake.notify_one();
        let path = Path::ip(local.to_canonical(), remote.ip());
        UtpStream::new(Rc::clone(self), conn, PathPeer::new(remote.into(), path))
    }

    /// Our address on the way, and what the first link takes.
    fn first_link(&self, route: &Route) -> io::Result<(IpAddr, usize)> {
        if let Some(relay) = &self.relay {
            return relay.first_link(route.remote);
        }
        let bound = self.local_addr().ip();
        let source = route.local.or((!bound.is_unspecified()).then_some(bound));
        let (local, mtu) = towards(source, route.remote)?;
        let headers = headers_len(route.remote.ip().to_canonical().is_ipv4());
        Ok((local, mtu.unwrap_or(MTU_UNKNOWN).saturating_sub(headers)))
    }

    /// Lets packets move, until its owner has enough of it.
    pub async fn run(self: Rc<Self>) {
        let mut batch = RecvBatch::new(RECV_MESSAGES);
        let mut is_blocked = false;
        loop {
            let deadline = self.state.borrow().core.deadline();
            let pause = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                ready = self.io.readable() => match ready {
                    Ok(mut ready) => match self.receive(&mut batch) {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                        Err(_) => tokio::time::sleep(ERROR_PAUSE).await,
                    },
                    Err(_) => return,
                },
                ready = self.io.writable(), if is_blocked => match ready {
                    Ok(mut ready) => {
                        is_blocked = self.flush(true);
                        if is_blocked {
                            ready.clear_ready();
                        }
                        continue;
                    }
                    Err(_) => return,
                },
                () = self.wake.notified() => {}
                () = pause => self.state.borrow_mut().core.on_time(Instant::now()),
            }
            self.tell();
            // Who was told reads, asks and writes first: what that comes to goes with what is acknowledged.
            tokio::task::yield_now().await;
            self.state.borrow_mut().core.on_time(Instant::now());
            is_blocked = self.flush(is_blocked);
            self.tell();
        }
    }

    fn receive(&self, batch: &mut RecvBatch) -> io::Result<()> {
        self.io.get_ref().recv(batch)?;
        let now = Instant::now();
        let (other, admits) = (self.other.borrow(), self.admits.borrow());
        let core = &mut self.state.borrow_mut().core;
        for message in batch.iter().filter(|message| !message.truncated) {
            let interface = match (&*admits, message.local) {
                (Some(admits), Some(local)) => admits(local.to_canonical()),
                _ => Some(0),
            };
            let Some(interface) = interface else { continue };
            for datagram in message.segments() {
                let direct = Some((message.from, datagram));
                let relayed = self.relay.as_ref().map_or(direct, |relay| relay.unpack(message.from, datagram));
                let Some((remote, datagram)) = relayed else { continue };
                let route = Route { remote, local: message.local, interface };
                if !core.datagram(now, route, datagram)
                    && let Some(other) = &*other
                {
                    other(remote, message.local, datagram);
                }
            }
        }
        Ok(())
    }

    /// Wakes who waits for what happened.
    fn tell(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        while let Some(event) = state.core.poll_event() {
            match event {
                Event::Incoming(conn) => {
                    state.incoming.push_back(conn);
                    self.incoming.notify_one();
                }
                Event::Opened(conn) | Event::Writable(conn) => state.wake(conn, |waiting| &mut waiting.send),
                Event::Readable(conn) => state.wake(conn, |waiting| &mut waiting.recv),
            }
        }
        if state.core.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Sends what there is; answers whether the system has no room for more.
    fn flush(&self, was_blocked: bool) -> bool {
        let socket = self.io.get_ref();
        let now = Instant::now();
        let mut state = self.state.borrow_mut();
        let State { core, outgoing, .. } = &mut *state;
        let send = |outgoing: &mut Outgoing, core: &mut _| match &self.relay {
            Some(relay) => outgoing.send_through(relay.at(), socket),
            None => outgoing.send(socket, core, now),
        };
        if was_blocked && send(outgoing, core) {
            return true;
        }
        // A proxy takes datagrams one by one, each with its target in front.
        let segments_max = if self.relay.is_some() { 1 } else { socket.segments_max() };
        for _ in 0..SENDS_A_TURN {
            outgoing.gather(segments_max, core, now);
            if outgoing.is_empty() {
                return false;
            }
            if send(outgoing, core) {
                return true;
            }
        }
        // There is more; others first.
        self.wake.notify_one();
        false
    }

    /// Waits until everything that was written has arrived, if that does not take long.
    pub async fn close(&self) {
        let emptied = async {
            loop {
                let emptied = self.emptied.notified();
                if self.state.borrow().core.is_empty() {
                    return;
                }
                self.wake.notify_one();
                emptied.await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, emptied).await;
    }
}

impl State {
    fn wake(&mut self, conn: ConnId, which: impl Fn(&mut Waiting) -> &mut Option<Waker>) {
        if let Some(waker) = self.waiting.get_mut(&conn).and_then(|waiting| which(waiting).take()) {
            waker.wake();
        }
    }

    fn wait(&mut self, conn: ConnId, which: impl Fn(&mut Waiting) -> &mut Option<Waker>, cx: &Context<'_>) {
        if let Some(waiting) = self.waiting.get_mut(&conn) {
            *which(waiting) = Some(cx.waker().clone());
        }
    }
}

/// What the system says of a connection that is over.
fn over(error: ConnError) -> io::Error {
    let kind = match error {
        ConnError::TimedOut => io::ErrorKind::TimedOut,
        ConnError::Refused => io::ErrorKind::ConnectionRefused,
        ConnError::Reset => io::ErrorKind::ConnectionReset,
        ConnError::Closed => io::ErrorKind::NotConnected,
    };
    io::Error::new(kind, error)
}

fn pending(is_ready: bool) -> Poll<io::Result<()>> {
    if is_ready { Poll::Ready(Ok(())) } else { Poll::Pending }
}
