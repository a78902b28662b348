//! Why a tracker, or another server that is reached as trackers are, was of no use.

use std::io;
use std::time::Duration;

use anabranch_bittorrent::tracker::{ReplyError, Retry};

/// A tracker did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
#[error("tracker {tracker}: {cause}")]
pub struct TrackerError {
    /// Scheme, host and port: the rest of the URL may be secret.
    pub tracker: String,
    /// Why.
    pub cause: Cause,
}

impl TrackerError {
    /// What the tracker said about asking again, for the announcer.
    pub fn retry(&self) -> Retry {
        match &self.cause {
            Cause::Reply(ReplyError::Refused(refusal)) => refusal.retry,
            _ => Retry::Unsaid,
        }
    }
}

/// Why a tracker could not be used. All of these may pass by themselves; the announcer returns later.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The name server did not know the name, or did not answer. The URL or the network is to blame.
    #[error("its name cannot be looked up: {0}")]
    Dns(io::Error),
    /// The name has no address, or none of the family that a redirect needs.
    #[error("its name has no address")]
    NoAddress,
    /// Nothing listens there.
    #[error("it refuses connections: nothing listens on that port")]
    Refused,
    /// The way there is broken: no route, reset, no descriptors left.
    #[error("it cannot be reached: {0}")]
    Connect(io::Error),
    /// No TLS connection: a wrong or expired certificate, or no TLS there at all.
    #[error("no secure connection: {0}")]
    Tls(io::Error),
    /// This machine has no certificates to check the tracker's with.
    #[error("this machine has no CA certificates (install ca-certificates or set SSL_CERT_FILE)")]
    NoCertificates,
    /// Too slow.
    #[error("no answer within {} s", .0.as_secs_f32())]
    Timeout(Duration),
    /// Not one datagram came back.
    #[error("it does not answer")]
    Silent,
    /// The answer is not HTTP, or broke off.
    #[error("the answer is no whole HTTP response: {0}")]
    Http(#[from] hyper::Error),
    /// An HTTP error without a reason in the body.
    #[error("it answers with HTTP status {0}")]
    Status(u16),
    /// More often than we follow.
    #[error("it redirects more than {0} times")]
    Redirects(u32),
    /// To no tracker URL, from HTTPS to HTTP, or nearer to us than the tracker is: from the Internet into a private network.
    #[error("it redirects to where we do not follow")]
    RedirectUnfit,
    /// A torrent or a link names it, and it is in the user's own network or machine.
    #[error(
        "it is at {0}, in the local network: there a torrent or link may only name a tracker at /announce, without a query and at a \
         port from 1024 on; if it is yours, name it with --tracker"
    )]
    TooNear(String),
    /// The user wants nothing to do with it.
    #[error("it is blocked: see --ip-filter, --block and --bans")]
    Blocked,
    /// The proxy relays no UDP, by its kind or its own word.
    #[error(
        "the proxy relays no UDP, so UDP trackers are left out: name a tracker over HTTP, or a SOCKS5 proxy that knows UDP ASSOCIATE"
    )]
    NoRelay,
    /// The proxy took the relay away.
    #[error("the proxy ended its relay of UDP")]
    RelayEnded,
    /// A body that no tracker needs.
    #[error("its answer has more than {0} bytes")]
    TooLarge(usize),
    /// To a magnet link, which no tracker is at.
    #[error("it redirects to a magnet link")]
    Magnet(String),
    /// The answer is a refusal, or no tracker's answer.
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// The URL has no place for scrapes (BEP 48).
    #[error("its URL has no scrape form")]
    NoScrape,
}

impl Cause {
    pub(crate) fn from_connect(error: io::Error) -> Cause {
        if error.kind() == io::ErrorKind::ConnectionRefused { Cause::Refused } else { Cause::Connect(error) }
    }

    pub(super) fn from_proxy(error: io::Error) -> Cause {
        if error.kind() == io::ErrorKind::Unsupported { Cause::NoRelay } else { Cause::Connect(error) }
    }
}
