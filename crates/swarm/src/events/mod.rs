//! What a session tells its owner, and whoever else listens.

mod bulk;
mod stream;

use std::mem::discriminant;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anabranch_bittorrent::mse::Method;
use anabranch_content::info::InfoHashes;
use anabranch_content::storage::naming::Renamed;
use anabranch_paths::select::Selector;
use anabranch_paths::{Endpoint, Path};
use anabranch_portmap::Protocol as PortProtocol;

use crate::net::ports::OpenPort;
use anabranch_paths::manager::{ChangeReason, PathCondition, PathNews, PathVerdict, Trigger};

pub use bulk::{News, Placed};
pub(crate) use stream::EventHub;
pub use stream::{EVENTS_MAX, Events};

/// A content's number within its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentId(pub u64);

/// Something that happened to one content.
#[derive(Clone, Debug)]
pub struct Event {
    /// Which content.
    pub content: ContentId,
    /// What happened.
    pub kind: EventKind,
}

/// How peers were found, beside trackers and other peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// In the distributed hash table (BEP 5).
    Dht,
    /// In the same network (BEP 14).
    Local,
}

impl Discovery {
    /// As events and people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dht => "dht",
            Self::Local => "local",
        }
    }
}

/// What can happen.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// The metadata is known (at once, or fetched from peers), and the files are being looked at.
    Metadata {
        /// Name of the content.
        name: String,
        /// Its identity.
        hashes: InfoHashes,
    },
    /// Files that cannot be called where they go what they are called in the torrent, and so are called otherwise.
    Renamed {
        /// Which.
        files: Vec<Renamed>,
    },
    /// Pieces on disk are being verified.
    Checking {
        /// Bytes verified so far.
        bytes_done: u64,
        /// Bytes to verify.
        bytes_total: u64,
    },
    /// Files are open and what is on disk is known: transfer begins.
    Started {
        /// Pieces that are there already.
        pieces_have: u32,
        /// All pieces.
        pieces_total: u32,
        /// Bytes of wanted content that are there already.
        bytes_done: u64,
        /// Bytes of wanted content.
        bytes_total: u64,
        /// Files that changed behind our back and were checked again.
        changed_files: Vec<String>,
    },
    /// A piece was verified and written.
    Piece {
        /// Its index.
        index: u32,
    },
    /// A piece failed its hash; it is fetched again.
    PieceFailed {
        /// Its index.
        index: u32,
    },
    /// Everything wanted is verified and written.
    Finished,
    /// The others have a whole copy of what was super-seeded among them (BEP 16): it is shared as usual from now on.
    SuperSeeded {
        /// What we had sent by then.
        uploaded_bytes: u64,
    },
    /// A live stream is received from this chunk on.
    LiveJoined {
        /// Its number.
        chunk: u64,
    },
    /// The source of a live stream began anew: what follows has nothing to do with what was before.
    LiveRestarted,
    /// Somebody else signs with the key of the live stream that we are the source of.
    LiveTwin {
        /// Who has that stream.
        address: Endpoint,
    },
    /// The proxy that all goes through relays no datagrams, or not now: what they are needed for is off meanwhile. It is asked again.
    RelayFailed {
        /// Which proxy, and why.
        reason: String,
    },
    /// Peers that were not known before.
    Discovered {
        /// How they were found.
        by: Discovery,
        /// How many.
        peers: usize,
    },
    /// A router opened one of the session's ports, or has it at another address now.
    PortOpened(OpenPort),
    /// A port that a router had opened is open no more.
    PortLost {
        /// Where we listen.
        local: SocketAddr,
        /// For connections, or for datagrams.
        protocol: PortProtocol,
    },
    /// A router opens none of the session's ports; it is asked again later.
    PortsRefused {
        /// The router.
        router: IpAddr,
        /// Why, by each of the ways to ask it.
        reason: String,
    },
    /// A peer is connected.
    PeerConnected {
        /// Its address.
        address: Endpoint,
        /// Whether we dialled.
        outgoing: bool,
        /// What it calls itself; by convention it begins with its program and version (BEP 20).
        peer_id: [u8; 20],
        /// What it is connected over: `tcp`, `utp`, `quic`, `http` or, for PPSPP, `udp`.
        transport: &'static str,
        /// What message stream encryption agreed on; `None` where the connection did not begin with that.
        encryption: Option<Method>,
    },
    /// A peer is gone.
    PeerDisconnected {
        /// Its address.
        address: Endpoint,
        /// Why.
        reason: String,
    },
    /// A magnet link names a peer that it may not name to us, and that is not dialled for it.
    PeerUnfit {
        /// Its address.
        address: Endpoint,
    },
    /// A peer that the user or a magnet link named cannot be had; told once for each reason. [`EventKind::PeerDisconnected`]
    /// tells of every single attempt.
    PeerFailed {
        /// Its address.
        address: Endpoint,
        /// Why.
        reason: String,
        /// Waiting does not help: it is tried again, but what the user asked for cannot be.
        is_final: bool,
    },
    /// A web seed cannot be had, or lacks a file; told once for each reason.
    WebSeedFailed {
        /// Scheme, host and port.
        url: String,
        /// Why.
        reason: String,
        /// It is not tried again.
        is_final: bool,
    },
    /// A peer proved hostile.
    PeerBanned {
        /// Its address.
        address: Endpoint,
        /// What it did.
        reason: String,
    },
    /// A peer that had sent good data sent wrong data, for the first time: it is not dealt with for some seconds.
    PeerSuspended {
        /// Its address.
        address: Endpoint,
        /// What it did.
        reason: String,
    },
    /// The paths to a peer were chosen, or are chosen otherwise than before.
    PathsChosen {
        /// Its address.
        peer: Endpoint,
        /// By which way; `None`: the peer chose.
        selector: Option<Selector>,
        /// What made a choice necessary.
        trigger: Trigger,
        /// All candidates.
        verdicts: Vec<PathVerdict>,
    },
    /// What becomes of one of several paths changed.
    PathChanged {
        /// Who is at its end.
        peer: Endpoint,
        /// Which.
        path: Path,
        /// What becomes of it.
        condition: PathCondition,
        /// Why.
        reason: ChangeReason,
    },
    /// A tracker answered.
    Tracker {
        /// Its address.
        url: String,
        /// Peers that it named.
        peers: usize,
    },
    /// A tracker failed; it is asked again later.
    TrackerFailed {
        /// Its address.
        url: String,
        /// Why.
        reason: String,
    },
    /// The transfer waits. Nothing is lost.
    Paused {
        /// Who has it wait.
        cause: PauseCause,
        /// What is out of order and what helps.
        reason: String,
    },
    /// The cause is gone, and the transfer goes on.
    Resumed,
    /// All pieces were hashed anew, as the owner asked.
    Checked {
        /// Those that are good.
        pieces_have: u32,
        /// All.
        pieces_total: u32,
    },
    /// The files are in another folder, as the owner asked.
    Moved {
        /// The folder below which they are.
        dir: PathBuf,
    },
    /// What happens with a bulk transfer.
    Bulk(News),
    /// The content is gone from the session. Nothing more is told of it.
    Removed,
    /// Whoever reads this was slow: so many events of the content were not kept. None of them said what became of it for good.
    Missed {
        /// How many.
        events: u64,
    },
    /// The content cannot be gone on with.
    Failed {
        /// What is to blame.
        kind: FailureKind,
        /// Why, and what helps.
        reason: String,
    },
}

/// What is to blame where a content cannot be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The metadata that a magnet link names: it is not what we can use.
    Metadata,
    /// The files: what was there is gone, or is not the content.
    Content,
    /// The place where files go: something stands there that only the user can move away.
    Storage,
    /// The sources: nobody is left who could bring what is missing.
    Sources,
    /// This program.
    Internal,
}

/// Who has a content wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// Storage is out of order. The transfer goes on by itself.
    Storage,
    /// The owner. The transfer goes on when the owner says so.
    Owner,
}

impl From<PathNews> for EventKind {
    fn from(news: PathNews) -> Self {
        match news {
            PathNews::Chosen { peer, selector, trigger, verdicts } => {
                Self::PathsChosen { peer, selector, trigger, verdicts }
            }
            PathNews::Changed { peer, path, condition, reason } => Self::PathChanged { peer, path, condition, reason },
        }
    }
}

impl EventKind {
    /// Whether `older`, told of the same content before, says nothing any more to a reader who hears of this.
    pub(crate) fn replaces(&self, older: &Self) -> bool {
        match (self, older) {
            // Each tells of another receiver, or of other files.
            (_, Self::Bulk(News::Delivered { .. })) => false,
            (Self::Removed, _) => true,
            (Self::Bulk(news), Self::Bulk(older)) => discriminant(news) == discriminant(older),
            _ => discriminant(self) == discriminant(older),
        }
    }

    /// Whether it only says how things go on: what a slow reader may miss.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Checking { .. }
            | Self::Piece { .. }
            | Self::PieceFailed { .. }
            | Self::Discovered { .. }
            | Self::RelayFailed { .. }
            | Self::PortOpened(_)
            | Self::PortLost { .. }
            | Self::PortsRefused { .. }
            | Self::PeerConnected { .. }
            | Self::PeerDisconnected { .. }
            | Self::PeerUnfit { .. }
            | Self::PeerFailed { .. }
            | Self::WebSeedFailed { .. }
            | Self::PeerBanned { .. }
            | Self::PeerSuspended { .. }
            | Self::PathsChosen { .. }
            | Self::PathChanged { .. }
            | Self::Tracker { .. }
            | Self::TrackerFailed { .. }
            | Self::LiveTwin { .. } => true,
            Self::Bulk(news) => news.is_passing(),
            Self::Metadata { .. }
            | Self::Renamed { .. }
            | Self::Started { .. }
            | Self::Finished
            | Self::SuperSeeded { .. }
            | Self::LiveJoined { .. }
            | Self::LiveRestarted
            | Self::Paused { .. }
            | Self::Resumed
            | Self::Checked { .. }
            | Self::Moved { .. }
            | Self::Removed
            | Self::Missed { .. }
            | Self::Failed { .. } => false,
        }
    }
}
