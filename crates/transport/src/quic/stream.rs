//! One stream over one connection, with the calls that the driver knows from TCP.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use anabranch_paths::{PathPeer, ScionPath};
use anabranch_scion::socket::{RouteError, RouteId, RouteInfo};
use bytes::{Bytes, BytesMut};
use noq::{PathError, PathId, PathStatus};

use super::budget::{Account, Charge, Charged, QuicBudget};
use super::config::{SEND_WINDOW_MAX, SEND_WINDOW_MIN};
use super::driver::Driver;
use super::endpoint::{CloseCode, RouteGuard};
use super::lanes::{RecvLanes, SendLanes};
use super::window::Granted;
use crate::{NodeId, StreamStats};

/// Bytes gathered before the connection is given them: what a burst of packets takes.
const GATHER_LEN: usize = 128 * 1024;
/// And where memory is short.
const GATHER_SHORT_LEN: usize = 16 * 1024;
/// What every connection may have written and not seen acknowledged, in bytes, whatever others hold: four short bursts.
const SEND_FLOOR: u64 = 4 * GATHER_SHORT_LEN as u64;
/// noq keeps what it copied, in short writes, without a sign to us when it is gone. Once there is so much of it, and where
/// memory is short of so much, a connection waits until nothing is under way: once for thousands of requests.
const COPIED_MAX: u64 = 256 * 1024;
const COPIED_SHORT_MAX: u64 = 32 * 1024;
/// How often it is looked whether a peer uses what it was promised.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long what was written before a stream was dropped may take to be delivered.
const LINGER: Duration = Duration::from_secs(10);
/// How often, and how many times, a further path is asked for until the other side is ready for it.
const ADD_EVERY: Duration = Duration::from_millis(100);
const ADD_TRIES: u32 = 20;
/// Written bytes between two looks at the congestion window.
const WINDOW_LOOK_BYTES: u64 = 256 * 1024;

/// A QUIC connection, used as one stream and bound to the path it was opened on.
///
/// What is written gathers here until [`QuicStream::flush`], a full burst, or a send without `more`.
pub struct QuicStream {
    halves: Mutex<Halves>,
    granted: Arc<Mutex<Granted>>,
    connection: noq::Connection,
    driver: Arc<Driver>,
    peer: PathPeer,
    node_id: NodeId,
    taken: Option<Arc<RouteGuard>>,
}

/// A connection's route through SCION, for whoever keeps it fresh. Does not keep the connection open.
pub struct QuicRoute {
    connection: noq::Connection,
    taken: Arc<RouteGuard>,
}

/// Bytes of packets that passed a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedBytes {
    /// From its other end.
    pub received: u64,
    /// From here.
    pub sent: u64,
}

impl QuicRoute {
    /// Its name at the socket, which events of the socket have too.
    pub fn id(&self) -> RouteId {
        self.taken.id()
    }

    /// Whether it was dialled from here, over a path that we know.
    pub fn is_ours(&self) -> bool {
        self.taken.is_registered()
    }

    /// Goes on over fresh bytes of the same path.
    ///
    /// # Errors
    /// The path is another way.
    pub fn refresh(&self, path: &ScionPath) -> Result<(), RouteError> {
        self.taken.refresh(path)
    }

    /// What the socket knows of it; `None` if it is gone.
    pub fn info(&self) -> Option<RouteInfo> {
        self.taken.info()
    }

    /// See [`Socket::try_offer`](anabranch_scion::socket::Socket::try_offer).
    pub async fn try_offer(&self, timeout: Duration) -> bool {
        self.taken.try_offer(timeout).await
    }

    /// Bytes that came over it so far, which says whether it is alive, and bytes that left over it, acknowledgements and signs of life
    /// among them: both at once, since whoever asks takes the connection from the thread that moves its packets.
    pub fn passed_bytes(&self) -> PassedBytes {
        let stats = self.connection.path_stats(PathId::ZERO);
        let passed = |stats: noq::PathStats| PassedBytes { received: stats.udp_rx.bytes, sent: stats.udp_tx.bytes };
        stats.map_or_else(PassedBytes::default, passed)
    }

    /// Lets the connection go over the route of an address too.
    pub(super) async fn add(&self, address: SocketAddr) -> io::Result<()> {
        for _ in 0..ADD_TRIES {
            match self.connection.open_path(address, PathStatus::Available).await {
                Ok(_) => return Ok(()),
                // What a path's packets are to be called comes from the other side, after the handshake.
                Err(PathError::RemoteCidsExhausted | PathError::MaxPathIdReached) => {
                    tokio::time::sleep(ADD_EVERY).await
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Err(io::Error::other("the other side allows no further path"))
    }

    pub(super) fn connection(&self) -> &noq::Connection {
        &self.connection
    }

    /// Ends the connection, because the way is gone.
    pub fn give_up(&self, reason: &str) {
        CloseCode::PathDown.close(&self.connection, reason);
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }
}

struct Halves {
    receive: RecvLanes,
    send: Sending,
}

impl std::fmt::Debug for QuicStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QuicStream({})", self.peer)
    }
}

impl QuicStream {
    pub(super) fn new(
        driver: Arc<Driver>,
        budget: &QuicBudget,
        connection: noq::Connection,
        (send, receive): (SendLanes, RecvLanes),
        peer: PathPeer,
        node_id: NodeId,
        taken: Option<Arc<RouteGuard>>,
    ) -> Self {
        let send = Sending::new(send, Account::new(budget.share(SEND_FLOOR)));
        let granted = Arc::new(Mutex::new(Granted::new(budget, &connection)));
        driver.handle().spawn(look_after(connection.clone(), Arc::downgrade(&granted), budget.clone()));
        Self { halves: Mutex::new(Halves { receive, send }), granted, connection, driver, peer, node_id, taken }
    }

    /// Who is at the other end, and over which path.
    pub fn peer(&self) -> &PathPeer {
        &self.peer
    }

    /// The key that the other end proved.
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    fn halves(&self) -> MutexGuard<'_, Halves> {
        // Nothing that panics half-way leaves a half unusable: the stream is given up anyway.
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`TcpStream::try_recv`](crate::TcpStream::try_recv).
    ///
    /// # Safety
    /// Every entry must describe memory that is valid for writes of its length and that nothing else touches during the call.
    pub unsafe fn try_recv(&self, buffers: &mut [libc::iovec]) -> io::Result<usize> {
        let receive = &mut self.halves().receive;
        // SAFETY: the caller vouches for the buffers.
        let received = unsafe { scatter(receive, buffers) };
        let taken = receive.take_taken();
        if taken > 0 {
            self.granted.lock().unwrap_or_else(PoisonError::into_inner).read(taken, &self.connection);
        }
        received
    }

    /// Sends from `buffers`, in order. With `more`, bytes may wait for those that follow at once.
    pub fn try_send(&self, buffers: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        let send = &mut self.halves().send;
        send.make_room(&self.connection)?;
        let mut sent = 0;
        for buffer in buffers {
            let len = buffer.len().min(send.gather_len() - send.gathered.len());
            send.gathered.extend_from_slice(&buffer[..len]);
            sent += len;
        }
        send.forget_unused_room();
        send.hand_over_unless(more, &self.connection)?;
        Ok(sent)
    }

    /// Sends `len` bytes of `file` from `offset`, or what fits. `Ok(0)` means that the file ends before `offset`.
    pub fn try_send_file(&self, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        let send = &mut self.halves().send;
        send.make_room(&self.connection)?;
        let begin = send.gathered.len();
        send.gathered.resize(begin + len.min(send.gather_len() - begin), 0);
        let read = file.read_at(&mut send.gathered[begin..], offset);
        send.gathered.truncate(begin + read.as_ref().map_or(0, |read| *read));
        send.forget_unused_room();
        let read = read?;
        send.hand_over_unless(false, &self.connection)?;
        Ok(read)
    }

    /// Lets bytes gather until uncorked.
    pub fn set_cork(&self, corked: bool) -> io::Result<()> {
        let send = &mut self.halves().send;
        send.corked = corked;
        send.hand_over_unless(corked, &self.connection)
    }

    /// Gives the connection what was gathered; answers whether it took everything.
    pub fn flush(&self) -> io::Result<bool> {
        let send = &mut self.halves().send;
        match send.poll_flush(&self.connection, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Ready when [`QuicStream::try_recv`] may make progress.
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let receive = &mut self.halves().receive;
        if receive.chunk(cx).is_some() || receive.has_ended() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Ready when everything sent before was taken, and more may be sent.
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let send = &mut self.halves().send;
        ready!(send.poll_flush(&self.connection, cx))?;
        if send.has_room(cx) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The route that it takes, if it runs over SCION.
    pub fn route(&self) -> Option<QuicRoute> {
        let taken = Arc::clone(self.taken.as_ref()?);
        Some(QuicRoute { connection: self.connection.clone(), taken })
    }

    /// Round-trip time, window, losses and packet size of this path.
    pub fn stats(&self) -> io::Result<StreamStats> {
        let stats = self.connection.path_stats(PathId::ZERO).ok_or(io::ErrorKind::NotConnected)?;
        Ok(StreamStats::of_quic(&stats))
    }
}

/// Receives into `buffers`, in order.
///
/// # Safety
/// As for [`QuicStream::try_recv`].
unsafe fn scatter(receive: &mut RecvLanes, buffers: &mut [libc::iovec]) -> io::Result<usize> {
    let mut received = 0;
    for buffer in buffers {
        let mut filled = 0;
        while filled < buffer.iov_len {
            let Some(chunk) = receive.chunk(&mut Context::from_waker(Waker::noop())) else {
                return if received > 0 { Ok(received) } else { receive.end() };
            };
            let len = chunk.len().min(buffer.iov_len - filled);
            // SAFETY: the caller vouches for the buffer, of which `len` bytes are left behind `filled`.
            unsafe { buffer.iov_base.cast::<u8>().add(filled).copy_from_nonoverlapping(chunk.as_ptr(), len) };
            receive.consume(len);
            filled += len;
            received += len;
        }
    }
    Ok(received)
}

/// Takes windows back that nobody uses, for as long as the stream is there.
async fn look_after(connection: noq::Connection, granted: Weak<Mutex<Granted>>, budget: QuicBudget) {
    while tokio::time::timeout(LOOK_EVERY, connection.closed()).await.is_err() {
        let Some(granted) = granted.upgrade() else { return };
        if granted.lock().unwrap_or_else(PoisonError::into_inner).look(&budget, &connection) {
            return CloseCode::Busy.close(&connection, "others need the window that you do not use: come again");
        }
    }
}

impl Drop for QuicStream {
    fn drop(&mut self) {
        let taken = self.taken.take();
        let send = &mut self.halves().send;
        let Some(mut lanes) = send.lanes.take() else { return };
        send.hand_over();
        let left = std::mem::take(&mut send.left);
        let (connection, driver) = (self.connection.clone(), Arc::clone(&self.driver));
        self.driver.handle().spawn(async move {
            connection.set_send_window(SEND_WINDOW_MIN);
            let deliver = async {
                for Part { mut bytes, charged } in left {
                    while !bytes.is_empty() {
                        poll_fn(|cx| lanes.poll_write(cx, &mut bytes, &charged)).await?;
                    }
                }
                lanes.deliver().await;
                io::Result::Ok(())
            };
            // Whether all arrived or the other side is gone: this connection ends.
            let _ = tokio::time::timeout(LINGER, deliver).await;
            CloseCode::Done.close(&connection, "done");
            connection.closed().await;
            drop((driver, taken));
        });
    }
}

/// Bytes on their way to the connection.
struct Part {
    bytes: Bytes,
    charged: Charged,
}

struct Sending {
    /// There until the stream is dropped.
    lanes: Option<SendLanes>,
    account: Account,
    /// Bytes that wait for company, and the memory that was set aside for them.
    gathered: BytesMut,
    room: Option<Charge>,
    /// How many were gathered the last time.
    gathered_last: usize,
    /// Bytes that the connection had no room for, one part but for the end.
    left: VecDeque<Part>,
    corked: bool,
    /// Bytes to be written before the congestion window is looked at again.
    until_look: u64,
    /// What noq copied.
    copied: Charge,
    /// Whether it is waited for, that nothing is under way.
    draining: bool,
}

impl Sending {
    fn new(lanes: SendLanes, account: Account) -> Self {
        Self {
            lanes: Some(lanes),
            copied: account.charge(),
            account,
            gathered: BytesMut::new(),
            room: None,
            gathered_last: 0,
            left: VecDeque::new(),
            corked: false,
            until_look: 0,
            draining: false,
        }
    }

    /// How much may be gathered.
    fn gather_len(&self) -> usize {
        self.room.as_ref().map_or(GATHER_LEN, |room| room.bytes() as usize)
    }

    /// Makes sure that something can be gathered, or answers `WouldBlock`.
    fn make_room(&mut self, connection: &noq::Connection) -> io::Result<()> {
        let cx = &mut Context::from_waker(Waker::noop());
        if !self.left.is_empty() || self.gathered.len() >= self.gather_len() {
            match self.poll_flush(connection, cx) {
                Poll::Ready(result) => result?,
                Poll::Pending => return Err(io::ErrorKind::WouldBlock.into()),
            }
        }
        if self.room.is_none() {
            self.room = self.reserve(cx);
            self.gathered.reserve(self.gathered_last.min(self.gather_len()));
        }
        if self.room.is_some() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn reserve(&self, cx: &mut Context<'_>) -> Option<Charge> {
        self.account.reserve(GATHER_LEN as u64, GATHER_SHORT_LEN as u64, self.copied.bytes(), cx)
    }

    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        self.room.is_some() || self.reserve(cx).is_some()
    }

    fn forget_unused_room(&mut self) {
        if self.gathered.is_empty() {
            self.room = None;
        }
    }

    /// Gives the connection what was gathered, unless it is to wait for more and has room to.
    fn hand_over_unless(&mut self, more: bool, connection: &noq::Connection) -> io::Result<()> {
        if (more || self.corked) && self.gathered.len() < self.gather_len() {
            return Ok(());
        }
        match self.poll_flush(connection, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            // RouteGuard all the same: `flush` and `poll_send_ready` go on.
            Poll::Pending => Ok(()),
        }
    }

    /// Gathers anew, and lets go what was.
    fn hand_over(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        self.gathered_last = gathered.len();
        let Some(mut room) = self.room.take().filter(|_| !gathered.is_empty()) else { return };
        // Whatever is kept of a part keeps all of its memory.
        let capacity = gathered.capacity();
        let bytes = if capacity / 2 > gathered.len() { Bytes::copy_from_slice(&gathered) } else { gathered.freeze() };
        room.set(if capacity / 2 > bytes.len() { bytes.len() } else { capacity } as u64);
        let charged = Charged::from(room);
        self.left.push_back(Part { bytes: charged.keep_with(bytes), charged });
    }

    fn poll_flush(&mut self, connection: &noq::Connection, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.left.is_empty() {
            self.hand_over();
        }
        while let Some(part) = self.left.front_mut() {
            let Some(lanes) = &mut self.lanes else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
            let copied = lanes.copied();
            if !self.draining
                && copied >= COPIED_SHORT_MAX
                && (copied >= COPIED_MAX || self.account.is_tight(COPIED_MAX))
            {
                // One byte more is taken as soon as all others have arrived, and not before.
                self.draining = true;
                connection.set_send_window(1);
            } else if !self.draining && self.until_look == 0 {
                fit_window(connection);
                self.until_look = WINDOW_LOOK_BYTES;
            }
            let written = ready!(lanes.poll_write(cx, &mut part.bytes, &part.charged))?;
            self.until_look = self.until_look.saturating_sub(written as u64);
            if std::mem::take(&mut self.draining) {
                lanes.all_arrived();
                self.until_look = 0;
            }
            if lanes.copied() != copied {
                self.copied.set(lanes.copied());
            }
            if part.bytes.is_empty() {
                self.left.pop_front();
                if self.left.is_empty() {
                    self.hand_over();
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The connection takes two congestion windows ahead: one that is under way, one that is next. More would only be stale.
fn fit_window(connection: &noq::Connection) {
    if let Some(stats) = connection.path_stats(PathId::ZERO) {
        connection.set_send_window((2 * stats.cwnd).clamp(SEND_WINDOW_MIN, SEND_WINDOW_MAX));
    }
}
