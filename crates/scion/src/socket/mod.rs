//! The end host's socket: UDP and SCMP over SCION, on the UDP underlay.
//!
//! A [`Socket`] is bound to one SCION address and sends over *routes*: a remote address and a path to it, registered once
//! ([`Socket::register`]) and refreshed in place ([`Socket::update`]). Packets from elsewhere make routes of their own, so a
//! listener answers over the path it was asked by. Whole bursts go to the kernel as one message and come back as one:
//! [`Sender::poll_send`] and [`Socket::poll_recv`] are shaped for QUIC, [`Socket::send_to`] and [`Socket::recv_from`] for
//! everybody else. Trouble on the way arrives as [`ScmpEvent`]s; echo requests are answered; [`Socket::ping`] and
//! [`Socket::traceroute`] ask.
//!
//! [`Core`] is the same without system calls. Which paths there are, when they need refreshing and which to use is left to
//! others, and so is pacing: SCION's routers drop what overruns them.
//!
//! ```
//! use anabranch_paths::{ScionAddr, ScionPath};
//! use anabranch_scion::socket::{DEFAULT_PORTS, Socket};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let isd_as = "1-ff00:0:110".parse()?;
//! let any_port = ScionAddr::new(isd_as, "127.0.0.1:0".parse()?);
//! let (one, other) = (Socket::bind(any_port, DEFAULT_PORTS)?, Socket::bind(any_port, DEFAULT_PORTS)?);
//! // Both are in one AS: the path between them is empty.
//! let path = ScionPath::inside(isd_as, 1472, std::time::SystemTime::now());
//! let route = one.register(other.local(), &path)?;
//! one.send_to(route, b"hello").await?;
//! let mut buf = [0; 1472];
//! let (len, back) = other.recv_from(&mut buf).await?;
//! other.send_to(back, &buf[..len]).await?;
//! assert_eq!(one.recv_from(&mut buf).await?, (5, route));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admit;
mod core;
mod counters;
mod inbound;
mod outbound;
mod probe;
mod receiver;
mod routes;
mod scmp;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::future::poll_fn;
use std::hash::BuildHasher;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use anabranch_paths::{ScionAddr, ScionPath};
use anabranch_udp::{Message, Options};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use self::core::Core;
pub use admit::{Admitted, admit, check_neighbour};
pub use anabranch_scion_wire::scmp::END_HOST_PORT;
pub use counters::{Counters, DropCounts, Dropped};
pub use inbound::{Data, Inbox};
pub use outbound::{Cursor, Outbox, Transmit};
pub use probe::{ECHO_TOKEN_LEN, Echo, PROBES_MAX, ProbeError, TraceAnswer, TraceHop};
pub use receiver::RecvMeta;
pub use routes::{
    LEARNED_IDLE, LEARNED_MAX, LEARNED_OF_AS_MAX, LEARNED_OF_HOST_MAX, REGISTERED_MAX, RouteError, RouteId, RouteInfo,
    UNANSWERED_IDLE,
};
pub use scmp::{ECHO_RATE_MAX, EVENTS_MAX, ScmpEvent, ScmpKind};
pub use sender::Sender;

use self::core::lock;
use probe::{Answer, Request};
use receiver::Receiver;

/// The ports that an AS's routers deliver to where its daemon says nothing else.
pub const DEFAULT_PORTS: RangeInclusive<u16> = 31000..=32767;
/// Ports tried for a socket that asks for any.
const BIND_TRIES_MAX: usize = 512;
/// Batches of packets without data for the reader that are taken in one go; then other tasks get their turn.
const EMPTY_BATCHES_MAX: usize = 16;

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// SCION headers carry the address, so it has to be one.
    #[error("{0} is not the address of one host: name the address that other hosts of the AS reach this one by")]
    Unspecified(IpAddr),
    /// The routers deliver elsewhere what comes for this port.
    #[error(
        "port {port} is outside the range {first}-{last} that the AS's routers deliver to: choose one in it, or 0 for any"
    )]
    OutsideRange {
        /// The port asked for.
        port: u16,
        /// First of the AS's.
        first: u16,
        /// Last of the AS's.
        last: u16,
    },
    /// No port to be had.
    #[error("no free port between {first} and {last}: close some sockets or widen the AS's range")]
    NoFreePort {
        /// First of the AS's.
        first: u16,
        /// Last of the AS's.
        last: u16,
    },
    /// The kernel.
    #[error("cannot bind {0}: {1}")]
    Io(ScionAddr, #[source] io::Error),
}

/// Binds something to `local` by `bind`; port 0 takes a free one of `ports`, the range that the AS's routers deliver to.
///
/// # Errors
/// The address or port will not do, or is taken.
pub fn bind_in_range<T>(
    local: ScionAddr,
    ports: RangeInclusive<u16>,
    mut bind: impl FnMut(ScionAddr) -> Result<T, BindError>,
) -> Result<T, BindError> {
    let local = ScionAddr::new(local.isd_as, local.host);
    if local.host.ip().is_unspecified() {
        return Err(BindError::Unspecified(local.host.ip()));
    }
    let (first, last) = ports.clone().into_inner();
    let port = local.host.port();
    if port != 0 {
        if !ports.contains(&port) && port != END_HOST_PORT {
            return Err(BindError::OutsideRange { port, first, last });
        }
        return bind(local);
    }
    let count = usize::from(last.checked_sub(first).ok_or(BindError::NoFreePort { first, last })?) + 1;
    // Anywhere in the range, so that not everybody tries the same ports first.
    let start = RandomState::new().hash_one(local) as usize % count;
    for step in 0..count.min(BIND_TRIES_MAX) {
        let mut candidate = local;
        // Below `count`, so no more than `last`.
        candidate.host.set_port((usize::from(first) + (start + step) % count) as u16);
        match bind(candidate) {
            Err(BindError::Io(_, error)) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    Err(BindError::NoFreePort { first, last })
}

/// A UDP socket of SCION. Tasks may share it, but one at a time receives.
#[derive(Clone)]
pub struct Socket {
    shared: Arc<Shared>,
}

struct Shared {
    core: Core,
    io: AsyncFd<anabranch_udp::Socket>,
    receiver: Mutex<Receiver>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("local", &self.local()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Socket {
    /// Binds to `local`; port 0 takes a free one of `ports`, the range that the AS's routers deliver to. Within a tokio
    /// runtime.
    ///
    /// [`END_HOST_PORT`] may be bound whatever the range: who does so answers the host's echo requests.
    ///
    /// # Errors
    /// The address or port will not do, or is taken.
    pub fn bind(local: ScionAddr, ports: RangeInclusive<u16>) -> Result<Self, BindError> {
        bind_in_range(local, ports, Self::bind_port)
    }

    #[allow(unsafe_code)]
    fn bind_port(local: ScionAddr) -> Result<Self, BindError> {
        let failed = |error| BindError::Io(local, error);
        let socket = anabranch_udp::Socket::bind(local.host, &Options::default()).map_err(failed)?;
        // SAFETY: the socket owns its descriptor, opens no other in its life, and closes it when it is dropped.
        let io = unsafe { AsyncFd::register(socket) }.map_err(|error| failed(error.into()))?;
        let now = Instant::now();
        let core = Core::new(local, now);
        Ok(Self { shared: Arc::new(Shared { core, io, receiver: Mutex::new(Receiver::new(now)) }) })
    }

    /// The address that it is bound to.
    pub fn local(&self) -> ScionAddr {
        self.shared.core.local()
    }

    /// A route to `remote` over `path`. The same way twice is one route, which lasts until it was removed twice.
    ///
    /// # Errors
    /// Path and addresses do not belong together, or there are too many routes.
    pub fn register(&self, remote: ScionAddr, path: &ScionPath) -> Result<RouteId, RouteError> {
        self.shared.core.register(remote, path, Instant::now())
    }

    /// Lets a route go on over fresh bytes of the same path.
    ///
    /// # Errors
    /// The route is gone, or the path is another way.
    pub fn update(&self, route: RouteId, path: &ScionPath) -> Result<(), RouteError> {
        self.shared.core.update(route, path)
    }

    /// Takes back one registration; whether the route is still there, because others hold it.
    pub fn remove(&self, route: RouteId) -> bool {
        self.shared.core.remove(route)
    }

    /// Lets a route last until it is released, because of what came by it: the one at its other end has proved who he is.
    /// Whoever else registers the same way and takes it back, and whatever packets claim to come by it, it stays, and goes on
    /// over the bytes that it has or is given ([`Socket::update`], [`Socket::try_offer`]).
    ///
    /// # Errors
    /// The route is gone, or there are too many.
    pub fn keep(&self, route: RouteId) -> Result<(), RouteError> {
        self.shared.core.keep(route)
    }

    /// Ends one [`Socket::keep`]. A route that nobody keeps or has registered is gone.
    pub fn release(&self, route: RouteId) {
        self.shared.core.release(route);
    }

    /// Says which hosts are the routers of the AS. From then on nobody else hands over what comes from other ASes; those that
    /// registered paths lead over count too. Without any, everybody may.
    pub fn set_routers(&self, routers: impl IntoIterator<Item = IpAddr>) {
        self.shared.core.set_routers(routers);
    }

    /// Where packets came by a kept route with hop fields that live longer than its own: tries them, and goes on over them if
    /// the routers all the way let a packet through. Whether it does. As with [`Socket::ping`], somebody has to receive.
    pub async fn try_offer(&self, route: RouteId, timeout: Duration) -> bool {
        let offered = self.shared.core.routes().offer(route);
        let Some(offered) = offered else { return false };
        // The last one answers if all before it took the packet for one with right MACs.
        let last = self.shared.core.trace_last(route, &offered, Instant::now());
        let answer = match last {
            Ok(request) => self.ask(request, timeout).await,
            Err(error) => Err(error),
        };
        let leads_there = matches!(answer, Ok(Answer::Trace(..)));
        let mut routes = self.shared.core.routes();
        match leads_there {
            true => routes.accept_offer(route, &offered),
            false => routes.refuse_offer(route),
        }
        leads_there
    }

    /// What is known of a route; `None` if it is gone.
    pub fn info(&self, route: RouteId) -> Option<RouteInfo> {
        self.shared.core.info(route)
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.shared.core.counters()
    }

    /// One more way to send, with buffers of its own.
    pub fn sender(&self) -> Sender {
        Sender::new(self.shared.clone())
    }

    /// Sends one packet. Allocates; who sends much uses a [`Sender`].
    ///
    /// # Errors
    /// As [`Sender::try_send`], without `WouldBlock`.
    pub async fn send_to(&self, route: RouteId, payload: &[u8]) -> io::Result<()> {
        self.sender().send(&[Transmit::new(route, payload)]).await
    }

    /// Receives one packet: the length of its payload and the route it came by. What does not fit in `buf` is dropped.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, RouteId)> {
        let mut metas = [RecvMeta::default()];
        poll_fn(|cx| {
            let bufs = &mut [IoSliceMut::new(buf)];
            self.poll_batches(cx, |receiver, core| receiver.deliver(core, bufs, &mut metas, 1))
        })
        .await?;
        Ok((metas[0].len, metas[0].route))
    }

    /// Receives packets into `bufs`, each with payloads of one size that came by one route, and says how many buffers have
    /// some: at least one. The task is registered to be woken else, in the place of any other.
    ///
    /// A buffer should take a whole burst: 64 KiB and more.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.poll_batches(cx, |receiver, core| receiver.deliver(core, bufs, metas, usize::MAX))
    }

    /// Receives, but keeps no data: answers echo requests and lets [`Socket::ping`] and [`Socket::traceroute`] have their
    /// answers where nobody else receives. Returns when the kernel fails.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn drive(&self) -> io::Result<()> {
        poll_fn(|cx| {
            self.poll_batches(cx, |receiver, core| {
                receiver.discard(core);
                0
            })
        })
        .await
        .map(|_| ())
    }

    /// The next trouble on a route. One task at a time.
    pub async fn event(&self) -> ScmpEvent {
        self.shared.core.events.next().await
    }

    /// The next trouble on a route, if some is known already.
    pub fn try_event(&self) -> Option<ScmpEvent> {
        self.shared.core.take_event()
    }

    /// Asks the host at the end of `route` for an echo of `data_len` bytes (at least [`ECHO_TOKEN_LEN`]). Somebody has to
    /// receive meanwhile: whoever reads the socket, or [`Socket::drive`].
    ///
    /// # Errors
    /// No answer within `timeout`, or somebody on the way says why there is none.
    pub async fn ping(&self, route: RouteId, data_len: usize, timeout: Duration) -> Result<Echo, ProbeError> {
        let request = self.shared.core.echo_request(route, data_len, Instant::now())?;
        let (sequence, packet_len) = (request.sequence, request.packet.len());
        match self.ask(request, timeout).await? {
            Answer::Echo(rtt) => Ok(Echo { rtt, sequence, packet_len }),
            Answer::Trouble(kind) => Err(ProbeError::Scmp(kind)),
            Answer::Trace(_) => Err(ProbeError::Timeout(timeout)),
        }
    }

    /// Asks the router at every interface of `route`, all at once. As with [`Socket::ping`], somebody has to receive.
    ///
    /// # Errors
    /// The route is gone, there are too many probes, or the kernel does not take them. Routers that do not answer are no error.
    pub async fn traceroute(&self, route: RouteId, timeout: Duration) -> Result<Vec<TraceHop>, ProbeError> {
        let requests = self.shared.core.trace_requests(route, 0, Instant::now())?;
        let deadline = tokio::time::Instant::now() + timeout;
        for (_, request) in &requests {
            self.send_request(request).await?;
        }
        let mut hops = Vec::with_capacity(requests.len());
        for (asked, mut request) in requests {
            let answer = tokio::time::timeout_at(deadline, &mut request.answer).await;
            let answer = match answer {
                Ok(Ok(Answer::Trace(answer))) => Ok(answer),
                Ok(Ok(Answer::Trouble(kind))) => Err(ProbeError::Scmp(kind)),
                _ => Err(ProbeError::Timeout(timeout)),
            };
            hops.push(TraceHop { asked, answer });
        }
        Ok(hops)
    }

    /// Whether packets reach the last router of `route`: asks it alone. `None` inside an AS, where there is no router to ask.
    /// As with [`Socket::ping`], somebody has to receive.
    ///
    /// # Errors
    /// No answer within `timeout`, or somebody on the way says why there is none.
    pub async fn probe(&self, route: RouteId, timeout: Duration) -> Result<Option<TraceAnswer>, ProbeError> {
        let last = self.info(route).ok_or(ProbeError::Gone)?.interfaces.len().saturating_sub(1);
        let Some((_, request)) = self.shared.core.trace_requests(route, last, Instant::now())?.pop() else {
            return Ok(None);
        };
        match self.ask(request, timeout).await? {
            Answer::Trace(answer) => Ok(Some(answer)),
            Answer::Trouble(kind) => Err(ProbeError::Scmp(kind)),
            Answer::Echo(_) => Err(ProbeError::Timeout(timeout)),
        }
    }

    async fn ask(&self, mut request: Request<'_>, timeout: Duration) -> Result<Answer, ProbeError> {
        self.send_request(&request).await?;
        let answer = tokio::time::timeout(timeout, &mut request.answer).await;
        answer.ok().and_then(Result::ok).ok_or(ProbeError::Timeout(timeout))
    }

    async fn send_request(&self, request: &Request<'_>) -> Result<(), ProbeError> {
        let parts = [IoSlice::new(&request.packet)];
        let message = [Message::new(request.to, &parts)];
        let sent = self.shared.io.async_io(Interest::WRITABLE, |socket| socket.send(&message)).await;
        sent.map(|_| ()).map_err(|error| ProbeError::Send(error.to_string()))
    }

    /// Receives batches until `take` makes something of one.
    fn poll_batches(
        &self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&mut Receiver, &Core) -> usize,
    ) -> Poll<io::Result<usize>> {
        let Shared { core, io, receiver } = &*self.shared;
        let mut receiver = lock(receiver);
        for _ in 0..EMPTY_BATCHES_MAX {
            let taken = take(&mut receiver, core);
            self.send_replies(&mut receiver);
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
            let mut guard = ready!(io.poll_read_ready(cx))?;
            if let Ok(received) = guard.try_io(|io| io.get_ref().recv(&mut receiver.batch)) {
                received?;
            }
            receiver.rewind(Instant::now());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends the answers to what was just received. What the kernel does not take now is lost, as it may be on the way.
    fn send_replies(&self, receiver: &mut Receiver) {
        let replies = &mut receiver.inbox.replies;
        if replies.is_empty() {
            return;
        }
        for (to, packet) in replies.iter() {
            let parts = [IoSlice::new(packet)];
            let _ = self.shared.io.get_ref().send(&[Message::new(to, &parts)]);
        }
        replies.clear();
    }
}
