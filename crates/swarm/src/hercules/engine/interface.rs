//! What the network thread is told, and what it tells.

use std::sync::Arc;
use std::time::Duration;

use anabranch_hercules::ChunkSet;
use anabranch_hercules::wire::message::{Message, Offer};
use anabranch_hercules::wire::seal::Secret;
use anabranch_transport::datagram::Path;
use tokio::sync::mpsc::UnboundedSender;

use crate::hercules::content::Destination;
use crate::hercules::events::TransferError;

/// Which transfer: a process may send one and receive another of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Id {
    pub sends: bool,
    pub transfer: u32,
}

/// Where a path's packets go.
#[derive(Clone, Debug)]
pub(in super::super) struct Route {
    /// Which socket.
    pub port: usize,
    pub path: Path,
}

/// What the network thread is told.
pub(in super::super) enum Command {
    Send {
        offer: Offer,
        secret: Secret,
        news: UnboundedSender<News>,
    },
    Receive {
        offer: Offer,
        secret: Secret,
        /// Spans that seem to be there.
        claimed: ChunkSet,
        destination: Arc<dyn Destination>,
        news: UnboundedSender<News>,
    },
    /// A path may be used. A sender's begins with its hello; where `route` is none, once the other end knocked.
    AddPath {
        id: Id,
        index: u8,
        route: Option<Route>,
        group: Option<u32>,
    },
    /// Two paths of a sender share a bottleneck, and so do all that share one with either.
    Couple {
        id: Id,
        one: u8,
        other: u8,
    },
    /// A path of a sender shares a bottleneck with no other, as far as is known.
    Separate {
        id: Id,
        index: u8,
    },
    /// A path goes another way.
    Reroute {
        id: Id,
        index: u8,
        route: Route,
    },
    Message {
        id: Id,
        message: Message,
    },
    /// The receiver takes so many bytes a second.
    Limit {
        transfer: u32,
        rate_bytes: u64,
    },
    /// So many bytes a second are sent at most, to all together.
    LimitAll(Option<u64>),
    Remove {
        id: Id,
    },
    Stop,
}

/// What the network thread tells, of one transfer.
#[derive(Debug)]
pub(in super::super) enum News {
    /// To be said to the other end.
    Say(Message),
    PathUp {
        path: u8,
        rtt: Duration,
        route: Option<Route>,
    },
    PathDown {
        path: u8,
        reason: String,
    },
    AllPathsDown,
    /// All paths are down, some of them only for packets as long as these.
    Narrow,
    /// Everything is verified, written and recorded.
    Complete {
        root: [u8; 32],
        repeated_bytes: u64,
    },
    Room(Option<String>),
    Progress(Measured),
    Failed(TransferError),
}

/// How far a transfer is.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Measured {
    pub done_bytes: u64,
    pub verified_bytes: Option<u64>,
    pub round: Option<u32>,
    pub sent_packets: u64,
    pub paths: Vec<MeasuredPath>,
}

#[derive(Clone, Debug)]
pub(in super::super) struct MeasuredPath {
    pub path: u8,
    pub route: Option<Route>,
    pub is_up: bool,
    pub bytes: u64,
    pub packets: Option<(u64, u64)>,
    pub rtt: Option<Duration>,
}
