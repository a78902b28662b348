//! One connection's task: bytes from the socket to the core, and back.
//!
//! | file | idea |
//! | --- | --- |
//! | `mod.rs` | the task: turns of receiving and of sending, sleep between them, the end |
//! | `receive/` | what comes: laid out in [`scratch`](super::scratch) memory before it comes, and told to the core |
//! | `send.rs` | what goes: control messages, then blocks from their files |

mod receive;
mod send;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use anabranch_bittorrent::{ConnId, PeerKey};
use anabranch_transport::{Stream, StreamStats};

use crate::bittorrent::error::ConnError;
use crate::bittorrent::torrent::TorrentHandle;
use crate::net::conn_handle::ConnHandle;
use receive::Receiving;
use send::Sending;

/// Bytes moved in one direction before the other direction and other connections get their turn.
const TURN_BYTES: u64 = 4 * 1024 * 1024;
/// How often the transport is asked what it measured of the path.
const PATH_EVERY: Duration = Duration::from_millis(200);

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
