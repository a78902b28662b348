//! What receiving and sending share of a connection: its content, its stream, and how their turns end.

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

/// Bytes moved in one direction before the other direction and other connections get their turn.
pub(super) const TURN_BYTES: u64 = 4 * 1024 * 1024;
/// How often the transport is asked what it measured of the path.
const PATH_EVERY: Duration = Duration::from_millis(200);

/// What both directions of a connection need: whose it is, and the stream.
pub(super) struct Channel {
    pub torrent: TorrentHandle,
    pub id: ConnId,
    pub stream: Stream,
    pub handle: Rc<ConnHandle>,
    /// When the transport was last asked what it measured.
    measured_at: Cell<Option<Instant>>,
}

/// What a turn of sending or receiving came to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The socket has to become ready first.
    Blocked,
    /// There is more to do at once.
    More,
    /// Nothing to do, or not our turn under a rate limit: we are woken.
    Idle,
}

impl Channel {
    pub(super) fn new(torrent: TorrentHandle, id: ConnId, stream: Stream, handle: Rc<ConnHandle>) -> Self {
        Self { torrent, id, stream, handle, measured_at: Cell::default() }
    }

    /// Sleeps until the socket, the core or time has something for us.
    pub(super) async fn wait(&self, sent: Turn, received: Turn) -> Result<(), ConnError> {
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
    pub(super) fn peer(&self) -> PeerKey {
        self.torrent.borrow().core.peer_of(self.id).unwrap_or(PeerKey(u32::MAX))
    }

    /// Asks the transport what it measured of the path, now and then.
    pub(super) fn measure(&self, now: Instant) -> Option<StreamStats> {
        if self.measured_at.get().is_some_and(|at| now < at + PATH_EVERY) {
            return None;
        }
        let stats = self.stream.stats().ok()?;
        self.measured_at.set(Some(now));
        self.handle.measured(stats);
        Some(stats)
    }
}
