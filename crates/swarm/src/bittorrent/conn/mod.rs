//! One connection's task: bytes from the socket to the core, and back.
//!
//! | file | idea |
//! | --- | --- |
//! | `mod.rs` | the task: turns of receiving and of sending, sleep between them, the end |
//! | `receive.rs` | what comes: laid out before it comes, and told to the core |
//! | `plan.rs` | memory for one receive: the only pointers |
//! | `send.rs` | what goes: control messages, then blocks from their files |

mod plan;
mod receive;
mod send;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use anabranch_bittorrent::torrent::PeerMisbehaved;
use anabranch_bittorrent::{ConnId, PeerKey};
use anabranch_content::storage::StorageError;
use anabranch_paths::manager::EndCause;
use anabranch_transport::{Stream, StreamStats};

use crate::bittorrent::torrent::TorrentHandle;
use crate::net::conn_handle::ConnHandle;
use crate::net::scion::ReachError;
pub(crate) use plan::Scratch;
use receive::Receiving;
use send::Sending;

/// Bytes moved in one direction before the other direction and other connections get their turn.
const TURN_BYTES: u64 = 4 * 1024 * 1024;
/// How often the transport is asked what it measured of the path.
const PATH_EVERY: Duration = Duration::from_millis(200);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnError {
    /// The other side closed it.
    #[error("closed by the peer")]
    Closed,
    /// The network failed it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side closed it instead of greeting us (BEP 3: who is asked for a content that it does not have says nothing). Some
    /// do that to all who greet them in the clear.
    #[error("it closed the connection instead of greeting us, as those do who do not have this content")]
    NotGreeted,
    /// The peer did not get as far as the protocol.
    #[error("{0}")]
    Stranger(String),
    /// The peer broke the protocol.
    #[error("{0}")]
    Misbehaved(#[from] PeerMisbehaved),
    /// We ended it.
    #[error("{0}")]
    Ended(String),
    /// No path leads there, by the daemon's word.
    #[error("{0}")]
    NoPath(String),
    /// It cannot come about, however long one waits: what the user asked for does not fit together.
    #[error("{0}")]
    Hopeless(String),
    /// Content that was promised could not be read.
    #[error("{0}")]
    Storage(#[from] StorageError),
}

impl From<ReachError> for ConnError {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Failed(reason) | ReachError::PathDown(reason) => Self::Ended(reason),
            ReachError::NoPath(reason) => Self::NoPath(reason),
            ReachError::Hopeless(reason) => Self::Hopeless(reason),
        }
    }
}

impl From<&ConnError> for EndCause {
    fn from(error: &ConnError) -> Self {
        let words = error.to_string();
        match error {
            ConnError::Closed => Self::ClosedByPeer,
            ConnError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe => Self::ClosedByPeer,
            ConnError::Io(_) => Self::Network(words),
            ConnError::NotGreeted | ConnError::Stranger(_) => Self::Refused(words),
            ConnError::Misbehaved(_) => Self::Misbehaved(words),
            ConnError::NoPath(_) | ConnError::Hopeless(_) => Self::NoPath(words),
            ConnError::Ended(_) | ConnError::Storage(_) => Self::ByUs(words),
        }
    }
}

/// One connection, after its handshakes.
pub(crate) struct Conn {
    channel: Channel,
    receiving: Receiving,
    sending: Sending,
}

/// What both directions of a connection need: whose it is, and the stream.
struct Channel {
    torrent: TorrentHandle,
    id: ConnId,
    stream: Stream,
    handle: Rc<ConnHandle>,
    /// When the transport was last asked what it measured.
    measured_at: Cell<Option<Instant>>,
}

/// What a turn of sending or receiving came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The socket has to become ready first.
    Blocked,
    /// There is more to do at once.
    More,
    /// Nothing to do, or not our turn under a rate limit: we are woken.
    Idle,
}

impl Conn {
    /// A connection that is part of `torrent` already.
    pub(crate) fn new(torrent: TorrentHandle, id: ConnId, stream: Stream, handle: Rc<ConnHandle>) -> Self {
        let (down, up) = torrent.borrow().limits(&handle);
        let channel = Channel { torrent, id, stream, handle, measured_at: Cell::default() };
        Self { channel, receiving: Receiving::new(down), sending: Sending::new(up) }
    }

    /// Runs the connection until it ends. `early` are bytes that came behind the handshake.
    pub(crate) async fn run(mut self, early: Vec<u8>) -> ConnError {
        match self.drive(early).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn drive(&mut self, early: Vec<u8>) -> Result<std::convert::Infallible, ConnError> {
        let Self { channel, receiving, sending } = self;
        receiving.begin(channel, &early)?;
        loop {
            if let Some(reason) = channel.handle.take_close() {
                // What was queued before the end (a reject, a last have) still goes out where the socket takes it.
                let _ = sending.turn(channel);
                let _ = channel.stream.flush();
                return Err(ConnError::Ended(reason));
            }
            let received = receiving.turn(channel)?;
            let sent = sending.turn(channel)?;
            if sent == Turn::Blocked && sending.is_not_read(channel) {
                return Err(ConnError::Ended("it does not read what we send".to_owned()));
            }
            if sent == Turn::More || received == Turn::More {
                tokio::task::yield_now().await;
                continue;
            }
            channel.wait(sent, received).await?;
            // However often this one is woken, those that it waits for have their turn too.
            tokio::task::consume_budget().await;
        }
    }
}

impl Channel {
    /// Sleeps until the socket, the core or time has something for us.
    async fn wait(&self, sent: Turn, received: Turn) -> Result<(), ConnError> {
        let ready = poll_fn(|cx| {
            if received == Turn::Blocked && self.stream.poll_recv_ready(cx)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            if sent == Turn::Blocked && self.stream.poll_send_ready(cx)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            Poll::<io::Result<()>>::Pending
        });
        tokio::select! {
            ready = ready => Ok(ready?),
            () = self.handle.notified() => Ok(()),
        }
    }

    /// Whose connection it is.
    fn peer(&self) -> PeerKey {
        self.torrent.borrow().core.peer_of(self.id).unwrap_or(PeerKey(u32::MAX))
    }

    /// Asks the transport what it measured of the path, now and then.
    fn measure(&self, now: Instant) -> Option<StreamStats> {
        if self.measured_at.get().is_some_and(|at| now < at + PATH_EVERY) {
            return None;
        }
        let stats = self.stream.stats().ok()?;
        self.measured_at.set(Some(now));
        self.handle.measured(stats);
        Some(stats)
    }
}
