//! What a transfer tells, and how it is stopped.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_hercules::Misbehaviour;
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_paths::manager::PathCondition;
use anabranch_paths::{Endpoint, Path};
use anabranch_transport::NodeId;
use tokio::sync::{mpsc, watch};

use super::content::{DestinationError, SourceError};
use super::io::Bypass;
use super::options::PeerKey;
use crate::events::Placed;

/// Events that wait to be read. Beyond, progress is left out, and everything else holds up the transfer's control, never its data.
pub const EVENTS_MAX: usize = 1024;

/// One peer of this process' transfer: its place in [`Peers::Dial`](super::Peers::Dial), or counted as they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// It can be reached. The first event of all, whether it listens or calls.
    Listening {
        /// Where; those that others can use.
        addresses: Vec<Endpoint>,
    },
    /// How an interface's packets go, where they were to go past the kernel. Before any peer.
    Bypass(Bypass),
    /// A peer proved its key, and may be here. Again after a connection was lost.
    PeerConnected {
        /// Which.
        peer: PeerId,
        /// Its key.
        key: NodeId,
        /// Where it is.
        address: Endpoint,
    },
    /// What is to be transferred is known to both.
    Offered {
        /// With whom.
        peer: PeerId,
        /// The first names of the top, as text.
        names: Vec<String>,
        /// Entries of the manifest.
        entries: u32,
        /// Bytes of content.
        content_len: u64,
        /// Of these, there from before.
        kept_bytes: u64,
    },
    /// A path carries data: after its handshake, or again.
    PathUp {
        /// To whom.
        peer: PeerId,
        /// Number of the path.
        path: u8,
        /// Which way it goes.
        way: PathWay,
        /// Its round trip.
        rtt: Duration,
    },
    /// A path carries nothing any more.
    PathDown {
        /// To whom.
        peer: PeerId,
        /// Number of the path.
        path: u8,
        /// Why.
        reason: String,
    },
    /// How far it is; several times a second, left out where nobody reads.
    Progress(Progress),
    /// Nothing moves for now.
    Waiting {
        /// With whom.
        peer: PeerId,
        /// For what.
        what: Waiting,
    },
    /// It moves again.
    GoesOn {
        /// With whom.
        peer: PeerId,
    },
    /// The other end came again, by another connection: what was going on with it goes on there, as another peer.
    Replaced {
        /// Whom nothing more is told of.
        peer: PeerId,
    },
    /// Somebody called and was turned away.
    Rejected {
        /// Where from.
        address: Endpoint,
        /// The key that was proved.
        key: NodeId,
        /// Why.
        reason: Rejection,
    },
    /// Everything is there, verified, and signed for.
    Finished {
        /// With whom.
        peer: PeerId,
        /// What the receiver signed; checked.
        receipt: Box<Receipt>,
        /// Bytes of content that were sent twice or more, or received so.
        repeated_bytes: u64,
        /// Where it lies, where it was received and is files.
        placed: Option<Placed>,
    },
    /// A transfer ended before its end; others go on.
    Failed {
        /// With whom; none if it is this end's own trouble.
        peer: Option<PeerId>,
        /// Why.
        error: TransferError,
    },
}

/// Which way a path goes.
#[derive(Clone, Debug)]
pub struct PathWay {
    /// Where it ends.
    pub remote: Endpoint,
    /// The way; `None` where only the other end knows.
    pub path: Option<Path>,
    /// As text: interface and addresses, or ASes.
    pub name: Arc<str>,
}

/// How far a transfer with one peer is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// With whom.
    pub peer: PeerId,
    /// Bytes of content that the receiver has, those from before too.
    pub done_bytes: u64,
    /// Bytes of content.
    pub content_len: u64,
    /// Of these, verified; known to the receiver alone.
    pub verified_bytes: Option<u64>,
    /// The round, known to the sender alone; 1 sends everything once.
    pub round: Option<u32>,
    /// Bytes of content a second, of late.
    pub rate_bytes: u64,
    /// Each path.
    pub paths: Vec<PathProgress>,
}

impl Progress {
    /// Each path as those of a session's contents are told.
    pub fn per_path(&self, is_sender: bool) -> Vec<crate::PathProgress> {
        let is_one_of_many = self.paths.len() > 1;
        let (down, up) = if is_sender { (0, 1) } else { (1, 0) };
        let path = |path: &PathProgress| crate::PathProgress {
            peer: path.way.remote,
            path: path.way.known_path(),
            condition: if path.is_up { PathCondition::Active } else { PathCondition::Down },
            download_rate_bytes: path.rate_bytes * down,
            upload_rate_bytes: path.rate_bytes * up,
            downloaded_bytes: path.bytes * down,
            uploaded_bytes: path.bytes * up,
            rtt: path.rtt,
            lost_packets: path.packets.map_or(0, |(_, lost)| lost),
            is_one_of_many,
        };
        self.paths.iter().map(path).collect()
    }
}

impl PathWay {
    /// The way, as far as it is known: that of the other end's choice has an end alone.
    pub fn known_path(&self) -> Path {
        self.path.clone().unwrap_or_else(|| Path::ip(Ipv4Addr::UNSPECIFIED.into(), self.remote.ip()))
    }
}

/// One path of a transfer.
#[derive(Clone, Debug)]
pub struct PathProgress {
    /// Number of the path.
    pub path: u8,
    /// Which way it goes.
    pub way: PathWay,
    /// Whether it carries data.
    pub is_up: bool,
    /// Bytes a second of late, as sent or received.
    pub rate_bytes: u64,
    /// Bytes that went this way in all.
    pub bytes: u64,
    /// Packets sent this way, and of these lost; known to the sender alone.
    pub packets: Option<(u64, u64)>,
    /// Its round trip.
    pub rtt: Option<Duration>,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The peer, which does not answer: why, as the last try went.
    Peer(String),
    /// What ways lead to the peer: nobody has told yet.
    Lookup,
    /// The peer, which is there, and does not say that it is ready.
    Ready,
    /// A path: none has come up.
    NoPath,
    /// A path: all are down.
    Paths,
    /// Room on the disk.
    Room(String),
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(why) => write!(f, "waits for the other end: {why}"),
            Self::Lookup => {
                f.write_str("the SCION daemon or control service tells no paths to the other end: waits for that")
            }
            Self::Ready => f.write_str("the other end does not say that it is ready: waits for that"),
            Self::NoPath => f.write_str("no path has come up: waits for one"),
            Self::Paths => f.write_str("all paths are down: waits for one"),
            Self::Room(what) => f.write_str(what),
        }
    }
}

/// Why a caller was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Neither key nor ticket.
    #[error("its key is not among those allowed here, and it holds no ticket")]
    NotAllowed,
    /// Another ticket, or a guess.
    #[error("it holds another ticket")]
    WrongTicket,
    /// Too late.
    #[error("the ticket expired")]
    Expired,
    /// Others came before.
    #[error("the ticket was used already")]
    Used,
    /// Both send, or both receive.
    #[error("it wants to do what this end does: one sends and one receives")]
    SameRole,
    /// Too many at once.
    #[error("too many transfers at once")]
    Busy,
}

/// Why a transfer ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The destination.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    /// The other end broke the protocol.
    #[error("{0}: the transfer was ended")]
    Misbehaviour(#[from] Misbehaviour),
    /// The other end ended it, in its own words.
    #[error("the other end ended it: {reason}")]
    Ended {
        /// For programs; docs/bulk.md has them.
        code: u16,
        /// For people.
        reason: String,
    },
    /// The other end turned this one away.
    #[error("the other end turned this one away: {0}")]
    Rejected(String),
    /// The other end has another key than was asked for.
    #[error("the other end has the key {found}, and {expected} was asked for: somebody else is at this address")]
    WrongKey {
        /// Asked for.
        expected: PeerKey,
        /// Proved.
        found: NodeId,
    },
    /// Where to go is not to be reached from here, however long one waits.
    #[error("{0}")]
    Unreachable(String),
    /// This end refused what was offered.
    #[error("refused what was offered: {0}")]
    Refused(String),
    /// The receipt is not true.
    #[error("the receipt that the other end sent is not true: nothing proves that it has everything")]
    Receipt,
    /// [`Handle::cancel`].
    #[error("cancelled")]
    Cancelled,
}

/// Bytes a second that all senders together are asked to keep to, and that are sent at most.
pub(super) type Limits = (Option<u64>, Option<u64>);

/// Stops a transfer, and limits it; cheap to clone. The transfer goes on when all are dropped.
#[derive(Clone, Debug)]
pub struct Handle(pub(super) Arc<Controls>);

/// What a handle turns.
#[derive(Debug)]
pub(super) struct Controls {
    pub(super) cancel: watch::Sender<bool>,
    pub(super) limits: watch::Sender<Limits>,
}

impl Handle {
    /// Ends it at once; the other end is told. What was verified is kept. Events end after [`Event::Failed`] with
    /// [`TransferError::Cancelled`].
    pub fn cancel(&self) {
        self.0.cancel.send_replace(true);
    }

    /// Other limits than those of [`Options`](super::Options): bytes a second down and up. They hold at once.
    pub fn set_limits(&self, down: Option<u64>, up: Option<u64>) {
        self.0.limits.send_replace((down, up));
    }
}

/// Events in order; the end of them is the end of the transfer.
#[derive(Debug)]
pub struct Events(pub(super) mpsc::Receiver<Event>);

impl Events {
    /// The next; `None` when all is over.
    pub async fn recv(&mut self) -> Option<Event> {
        self.0.recv().await
    }

    /// The same for who waits without a runtime.
    pub fn blocking_recv(&mut self) -> Option<Event> {
        self.0.blocking_recv()
    }
}
