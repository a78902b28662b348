//! Trackers: where to ask for peers, and how to answer when asked.
//!
//! Both ends are here, pure. [`http`] and [`udp`] hold the wire forms, [`announcer`] decides when a content asks which
//! tracker for what, and [`server`] keeps the swarm table of a tracker and answers requests. Sockets, name look-ups, TLS
//! and retransmission belong to the driver: it carries out the announcer's actions and hands requests to the server core.
//!
//! SCION addresses are an addition of our own (docs/protocol.md): a client that speaks SCION says so, and only then is it
//! told of peers there.
//!
//! Specifications: BEP 3 and 23 (HTTP), 7 (IPv6), 12 (tiers), 15 (UDP), 31 (retry), 41 (URL data), 48 (scrape).
//!
//! ```
//! use anabranch_bittorrent::tracker::{AnnounceRequest, Event, TrackerUrl, http};
//!
//! let url: TrackerUrl = "http://tracker.example/announce?passkey=1".parse().unwrap();
//! let request = AnnounceRequest::new([b'h'; 20], *b"-AN0100-abcdefghijkl", 6881, Event::Started);
//! assert!(http::announce_target(&url, &request).starts_with("/announce?passkey=1&info_hash=hhhh"));
//! ```

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use anabranch_paths::{Endpoint, ScionAddr};

use crate::extension::{InterfaceSequence, PathsInUse};
use crate::text;

pub mod announcer;
pub mod http;
mod peers;
mod scion;
pub mod server;
pub mod udp;
mod url;

pub use crate::{InfoHash, PeerId};
pub use announcer::Announcer;
pub use url::{Scheme, TrackerUrl, URL_BYTES_MAX, UrlError};

/// Peers taken from one reply. Trackers send 50 to 200; more than this would only crowd out other sources.
pub const REPLY_PEERS_MAX: usize = 2000;
/// Characters kept of a text that a tracker sends for people to read (failure, warning).
pub const TEXT_CHARS_MAX: usize = 300;
/// Bytes of a tracker id that we send back. Known trackers use under 40; ours to bound since it goes into every URL.
pub const TRACKER_ID_BYTES_MAX: usize = 256;
/// SCION addresses in one announce. A host is in one AS, rarely in two, and listens on a port or two.
pub const SCION_ADDRESSES_MAX: usize = 4;
/// Contents in one scrape (BEP 15: "up to about 74 torrents can be scraped at once").
pub const SCRAPE_HASHES_MAX: usize = 74;

/// Why an announce is made (BEP 3, "event").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Event {
    /// At an interval.
    #[default]
    None,
    /// The download has just been completed; never sent by one that began complete.
    Completed,
    /// The first announce to this tracker.
    Started,
    /// At an interval: we have all that we want, which is not all that there is (BEP 21). Nothing over UDP.
    Paused,
    /// We leave.
    Stopped,
}

/// What we tell a tracker (BEP 3, "tracker GET requests"; BEP 15, "announce request").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnounceRequest {
    /// Which content.
    pub info_hash: InfoHash,
    /// Who we are in this content.
    pub peer_id: PeerId,
    /// TCP port we listen on.
    pub port: u16,
    /// Bytes of content sent to peers since `started`.
    pub uploaded_bytes: u64,
    /// Bytes of content received from peers since `started`.
    pub downloaded_bytes: u64,
    /// Bytes still missing. 0 makes us a seed, so a content whose size is not yet known says anything but 0.
    pub left_bytes: u64,
    /// Why.
    pub event: Event,
    /// Peers wanted; `None` leaves the number to the tracker.
    pub numwant: Option<u32>,
    /// Proves to the tracker that we are the same client after an address change.
    pub key: u32,
    /// What the tracker gave as `tracker id` before (HTTP only).
    pub tracker_id: Option<Vec<u8>>,
    /// Where we listen over SCION, at most [`SCION_ADDRESSES_MAX`], and the wish to be told of peers there. `None` says and
    /// wishes nothing. Trackers of other makes leave it.
    pub scion: Option<Vec<ScionAddr>>,
    /// Paths over which content moves here at present, seen from here, for who speaks SCION: at most
    /// [`IN_USE_OF_HOST_MAX`](crate::extension::IN_USE_OF_HOST_MAX), and as many as fit.
    pub in_use: Vec<InterfaceSequence>,
}

impl AnnounceRequest {
    /// A request with nothing transferred, `left_bytes` 0 and no other wishes.
    pub fn new(info_hash: InfoHash, peer_id: PeerId, port: u16, event: Event) -> Self {
        AnnounceRequest {
            info_hash,
            peer_id,
            port,
            uploaded_bytes: 0,
            downloaded_bytes: 0,
            left_bytes: 0,
            event,
            numwant: None,
            key: 0,
            tracker_id: None,
            scion: None,
            in_use: Vec::new(),
        }
    }
}

/// What a tracker answers to an announce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnounceReply {
    /// Wait between announces, as the tracker says it; the announcer bounds it.
    pub interval: Option<Duration>,
    /// Never announce sooner than this (HTTP only).
    pub interval_min: Option<Duration>,
    /// Peers, all families, without port 0 and unspecified addresses; at most [`REPLY_PEERS_MAX`].
    pub peers: Vec<Endpoint>,
    /// Seeds in the swarm.
    pub complete: Option<u32>,
    /// Peers that still download.
    pub incomplete: Option<u32>,
    /// Downloads completed so far.
    pub downloaded: Option<u32>,
    /// For the user to read; the announce worked all the same.
    pub warning: Option<String>,
    /// To be sent back in later announces.
    pub tracker_id: Option<Vec<u8>>,
    /// Our address as the tracker sees it (BEP 24).
    pub external_ip: Option<IpAddr>,
    /// Paths that others use; `None` from a tracker that knows nothing of such (HTTP only).
    pub in_use: Option<PathsInUse>,
}

/// One content's numbers in a scrape (BEP 48, BEP 15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrapeEntry {
    /// Seeds.
    pub complete: u32,
    /// Downloads completed so far.
    pub downloaded: u32,
    /// Peers that still download.
    pub incomplete: u32,
}

/// When a tracker that refused wants to be asked again (BEP 31).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Not said: our own back-off decides.
    Unsaid,
    /// Not before this long.
    After(Duration),
    /// Never for this content.
    Never,
}

/// The tracker understood and refused. Its own words; the user reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `failure reason`, cleaned of control characters and cut to [`TEXT_CHARS_MAX`].
    pub reason: String,
    /// When to ask again.
    pub retry: Retry,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// What is wrong with a tracker's answer. The tracker is to blame in every case; another one may do better.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The tracker refused and said why.
    #[error("the tracker refused: {0}")]
    Refused(Refusal),
    /// Not a reply at all: a web page, an empty body, compressed data.
    #[error("the answer is no tracker reply (bencoding expected): {0}")]
    NotBencoded(String),
    /// A key that must be there is missing or of the wrong type.
    #[error("the reply's `{0}` is missing or of the wrong type")]
    Field(&'static str),
    /// A list of compact addresses is no multiple of one address's length.
    #[error("the reply's `{field}` has {length} bytes, no multiple of {unit}")]
    CompactLength {
        /// Which list.
        field: &'static str,
        /// Its length.
        length: usize,
        /// Bytes of one address.
        unit: usize,
    },
    /// A datagram too short for what it says it is.
    #[error("the datagram has {length} bytes, its kind needs {needed}")]
    Short {
        /// What came.
        length: usize,
        /// What it takes.
        needed: usize,
    },
    /// A datagram with another action than the one asked for.
    #[error("the datagram has action {0}, which was not asked for")]
    Action(u32),
    /// A datagram that answers something else; ignore it and wait on.
    #[error("the datagram answers another transaction")]
    Transaction,
}

/// A tracker's text made fit for display, at most [`TEXT_CHARS_MAX`] characters.
fn clean_text(bytes: &[u8]) -> String {
    text::displayable(bytes, TEXT_CHARS_MAX)
}
