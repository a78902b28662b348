//! Trackers over real sockets: a client for HTTP(S) and UDP, and a server.
//!
//! What is said and when is decided in `anabranch_bittorrent::tracker`; here it is carried. A [`Client`] is shared by
//! all contents: it bounds how much goes on at once and shares UDP sockets and connection ids. It starts no thread but
//! the runtime's own for name look-ups. A tracker that has addresses of both families hears from us over both, since
//! only so does it learn both of ours (BEP 7).
//!
//! ```no_run
//! use anabranch_bittorrent::tracker::{AnnounceRequest, Event};
//! use anabranch_swarm::tracker::{Client, ClientConfig};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(ClientConfig::default());
//! let request = AnnounceRequest::new([0; 20], *b"-AN0100-abcdefghijkl", 6881, Event::Started);
//! let reply = client.announce(&"udp://127.0.0.1:6969/announce".parse()?, &request).await?;
//! println!("{} peers", reply.peers.len());
//! # Ok(())
//! # }
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anabranch_bittorrent::reach::{may_announce, may_name_peer};
use anabranch_bittorrent::tracker::http as http_form;
use anabranch_bittorrent::tracker::udp as udp_form;
use anabranch_bittorrent::tracker::{
    AnnounceReply, AnnounceRequest, InfoHash, REPLY_PEERS_MAX, ReplyError, Scheme, ScrapeEntry, TrackerUrl,
};
use anabranch_transport::UdpTarget;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_rustls::rustls;

mod access;
pub(crate) mod announce;
mod download;
mod error;
mod http;
mod server;
#[cfg(test)]
mod tests;
mod udp;

pub use access::{ADDRESSES_MAX, TrackerAccess};
pub use download::{Download, DownloadError};
pub use error::{Cause, TrackerError};
pub use http::REDIRECTS_MAX;
pub(crate) use http::{BEHIND_PROXY, through};
pub use server::{CONNECTION_TIMEOUT, CONNECTIONS_MAX, ServerOptions, TrackerServer};
pub use udp::UDP_ANNOUNCES_MAX;

/// Name look-ups at once: each holds one of the runtime's threads while a name server is slow.
pub const LOOKUPS_MAX: usize = 16;
/// HTTP announces at once, a socket each: well below the usual limit of 1024 descriptors, which peers need more.
pub const HTTP_ANNOUNCES_MAX: usize = 64;
/// An HTTP announce has this long in all.
pub const HTTP_TIMEOUT: Duration = Duration::from_secs(30);
/// A UDP announce has this long in all: three sendings (0, 15 and 45 s), as much as BEP 15 allows before the list's
/// next tracker should get its chance.
pub const UDP_TIMEOUT: Duration = Duration::from_secs(60);
/// A proxy that relays no UDP is not asked for so long: it may have been given another configuration by then.
const NO_RELAY_FOR: Duration = Duration::from_secs(600);
/// Once one family has answered, the other has this long: IPv6 that leads nowhere must not withhold IPv4's peers.
pub const OTHER_FAMILY_GRACE: Duration = Duration::from_secs(3);

/// How trackers are spoken to. The defaults are this module's constants.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// See [`HTTP_TIMEOUT`].
    pub http_timeout: Duration,
    /// See [`UDP_TIMEOUT`].
    pub udp_timeout: Duration,
    /// First wait for a UDP answer; doubles with each sending (BEP 15).
    pub udp_retransmit_first: Duration,
    /// Whom to trust over HTTPS; `None` for the platform's certificates.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Who is asked, and how.
    pub access: TrackerAccess,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            http_timeout: HTTP_TIMEOUT,
            udp_timeout: UDP_TIMEOUT,
            udp_retransmit_first: udp_form::RETRANSMIT_FIRST,
            tls: None,
            access: TrackerAccess::default(),
        }
    }
}

/// Who named a tracker, and so how far it is trusted to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The user, by hand.
    User,
    /// A torrent or magnet link, whoever made that: see [`anabranch_bittorrent::reach`].
    Torrent,
}

/// Announces and scrapes. Cheap to clone; clones share everything. Needs a tokio runtime with I/O and time.
#[derive(Clone)]
pub struct Client(Arc<ClientInner>);

struct ClientInner {
    config: ClientConfig,
    platform_tls: OnceLock<Option<Arc<rustls::ClientConfig>>>,
    lookups: Semaphore,
    http_announces: Semaphore,
    udp_announces: Semaphore,
    sessions: udp::Sessions,
    /// When the proxy last said that it relays no UDP.
    no_relay: Mutex<Option<Instant>>,
}

impl Client {
    /// Does nothing yet.
    pub fn new(config: ClientConfig) -> Client {
        Client(Arc::new(ClientInner {
            config,
            platform_tls: OnceLock::new(),
            lookups: Semaphore::new(LOOKUPS_MAX),
            http_announces: Semaphore::new(HTTP_ANNOUNCES_MAX),
            udp_announces: Semaphore::new(UDP_ANNOUNCES_MAX),
            sessions: udp::Sessions::default(),
            no_relay: Mutex::default(),
        }))
    }

    /// Who is asked, and how: for web seeds, which are reached as trackers are.
    pub(crate) fn access(&self) -> &TrackerAccess {
        &self.0.config.access
    }

    /// Whom to trust over HTTPS, for web seeds.
    pub(crate) fn tls(&self) -> Result<Arc<rustls::ClientConfig>, Cause> {
        self.0.tls()
    }

    /// Announces to a tracker that the user named, over every family that the tracker has addresses of, and joins the answers.
    ///
    /// # Errors
    /// When no family worked: what the tracker itself said, if it said anything, else what happened over IPv4.
    pub async fn announce(&self, url: &TrackerUrl, request: &AnnounceRequest) -> Result<AnnounceReply, TrackerError> {
        self.announce_as(NamedBy::User, url, request).await
    }

    /// The same, to a tracker that `by` named.
    ///
    /// # Errors
    /// Also where the tracker is nearer to us than who named it.
    pub async fn announce_as(
        &self,
        by: NamedBy,
        url: &TrackerUrl,
        request: &AnnounceRequest,
    ) -> Result<AnnounceReply, TrackerError> {
        self.0.announce(by, url, request).await.map_err(|cause| TrackerError { tracker: url.origin(), cause })
    }

    /// Asks for the numbers of up to 74 contents; those that the tracker leaves out are missing from the answer.
    ///
    /// # Errors
    /// As for announces; also when the URL has no scrape form.
    pub async fn scrape(
        &self,
        url: &TrackerUrl,
        hashes: &[InfoHash],
    ) -> Result<Vec<(InfoHash, ScrapeEntry)>, TrackerError> {
        self.0.scrape(url, hashes).await.map_err(|cause| TrackerError { tracker: url.origin(), cause })
    }
}

impl ClientInner {
    async fn announce(&self, by: NamedBy, url: &TrackerUrl, request: &AnnounceRequest) -> Result<AnnounceReply, Cause> {
        let (mut addrs, _permit) = self.begin(url).await?;
        if self.config.access.proxy.is_some() {
            if by == NamedBy::Torrent {
                self.config.access.judge_unseen(url)?;
            }
            return self.announce_to(url, request, &addrs).await;
        }
        // Judged are the addresses that are then connected to, whatever name led to them.
        if let (NamedBy::Torrent, Some(first)) = (by, addrs.first().copied()) {
            addrs.retain(|addr| may_announce(url, *addr));
            if addrs.is_empty() {
                return Err(Cause::TooNear(first.to_string()));
            }
        }
        self.announce_over(url, request, addrs).await
    }

    /// Announces over each family among `addrs` (BEP 7).
    async fn announce_over(
        &self,
        url: &TrackerUrl,
        request: &AnnounceRequest,
        addrs: Vec<SocketAddr>,
    ) -> Result<AnnounceReply, Cause> {
        let (v4, v6): (Vec<_>, Vec<_>) = addrs.into_iter().partition(SocketAddr::is_ipv4);
        if v4.is_empty() || v6.is_empty() {
            return self.announce_to(url, request, if v4.is_empty() { &v6 } else { &v4 }).await;
        }
        let (v4, v6) = both(self.announce_to(url, request, &v4), self.announce_to(url, request, &v6)).await;
        match (v4, v6) {
            (Some(Ok(v4)), Some(Ok(v6))) => Ok(join(v4, v6)),
            (Some(Ok(reply)), _) | (_, Some(Ok(reply))) => Ok(reply),
            (Some(Err(_)), Some(Err(said @ Cause::Reply(_)))) => Err(said),
            (Some(Err(error)), _) | (None, Some(Err(error))) => Err(error),
            (None, None) => Err(Cause::Silent),
        }
    }

    /// Announces over one family.
    async fn announce_to(
        &self,
        url: &TrackerUrl,
        request: &AnnounceRequest,
        addrs: &[SocketAddr],
    ) -> Result<AnnounceReply, Cause> {
        let (mut reply, from) = if url.scheme() == Scheme::Udp {
            let target = url.target();
            let build = |id, transaction| udp_form::announce_request(id, transaction, request, &target);
            self.udp(url, addrs, build, udp_form::parse_announce_reply).await?
        } else {
            let target = http_form::announce_target(url, request);
            self.http(url, &target, addrs, http_form::parse_announce_reply).await?
        };
        reply.peers.retain(|peer| may_name_peer(&from.into(), peer));
        Ok(reply)
    }

    async fn scrape(&self, url: &TrackerUrl, hashes: &[InfoHash]) -> Result<Vec<(InfoHash, ScrapeEntry)>, Cause> {
        let url = &url.scrape().ok_or(Cause::NoScrape)?;
        let (mut addrs, _permit) = self.begin(url).await?;
        if addrs.iter().any(SocketAddr::is_ipv4) {
            addrs.retain(SocketAddr::is_ipv4); // The numbers are the same over both.
        }
        if url.scheme() != Scheme::Udp {
            let target = http_form::scrape_target(url, hashes);
            return Ok(self.http(url, &target, &addrs, http_form::parse_scrape_reply).await?.0);
        }
        let build = |id, transaction| udp_form::scrape_request(id, transaction, hashes);
        let read = |bytes: &[u8], transaction, _| udp_form::parse_scrape_reply(bytes, transaction);
        let (entries, _) = self.udp(url, &addrs, build, read).await?;
        Ok(hashes.iter().copied().zip(entries).collect())
    }

    /// Waits for a turn, then looks up the tracker's addresses. The turn lasts as long as the permit.
    async fn begin(&self, url: &TrackerUrl) -> Result<(Vec<SocketAddr>, SemaphorePermit<'_>), Cause> {
        let turns = if url.scheme() == Scheme::Udp { &self.udp_announces } else { &self.http_announces };
        let closed = |_| Cause::Silent; // The semaphores live as long as we do and are never closed.
        let permit = turns.acquire().await.map_err(closed)?;
        if self.config.access.proxy.is_some() {
            // Its name is for the proxy to look up.
            return match self.config.access.proxy.as_ref() {
                Some(proxy) if url.scheme() == Scheme::Udp && !(proxy.may_relay_udp() && self.may_relay()) => {
                    Err(Cause::NoRelay)
                }
                _ => Ok((Vec::new(), permit)),
            };
        }
        let _lookup = self.lookups.acquire().await.map_err(closed)?;
        let limit = self.config.http_timeout;
        let looking = self.config.access.resolve(url);
        let addrs = tokio::time::timeout(limit, looking).await.map_err(|_| Cause::Timeout(limit))??;
        Ok((self.config.access.free(addrs)?, permit))
    }

    async fn http<T>(
        &self,
        url: &TrackerUrl,
        target: &str,
        addrs: &[SocketAddr],
        read: impl Fn(&[u8]) -> Result<T, ReplyError>,
    ) -> Result<(T, SocketAddr), Cause> {
        let limit = self.config.http_timeout;
        let reply = http::get(url, target, addrs, http_form::BODY_BYTES_MAX, &self.config.access, || self.tls());
        let reply = tokio::time::timeout(limit, reply).await;
        let (reply, from) = reply.map_err(|_| Cause::Timeout(limit))??;
        match read(&reply.body) {
            // Some trackers put the reason for a refusal under an HTTP error.
            Err(refused @ ReplyError::Refused(_)) => Err(refused.into()),
            _ if !reply.status.is_success() => Err(Cause::Status(reply.status.as_u16())),
            result => Ok((result?, from)),
        }
    }

    /// Tries the addresses one after the other; one that is silent takes all the time there is. Also answers which one it was.
    async fn udp<T>(
        &self,
        url: &TrackerUrl,
        addrs: &[SocketAddr],
        build: impl Fn(u64, u32) -> Vec<u8>,
        read: impl Fn(&[u8], u32, bool) -> Result<T, ReplyError>,
    ) -> Result<(T, SocketAddr), Cause> {
        let attempts = async {
            let mut last = Cause::NoAddress;
            if self.config.access.proxy.is_some() {
                let answer = self.udp_through(url, &build, &read).await;
                return answer.map(|value| (value, http::BEHIND_PROXY));
            }
            for addr in addrs {
                let session = match self.sessions.get(&UdpTarget::Address(*addr), &self.config.access).await {
                    Ok(session) => session,
                    Err(cause) => {
                        last = cause;
                        continue;
                    }
                };
                let is_ipv6 = session.is_ipv6();
                let read = |bytes: &[u8], transaction| read(bytes, transaction, is_ipv6);
                match session.request(self.config.udp_retransmit_first, &build, read).await {
                    Err(cause @ (Cause::Refused | Cause::Connect(_))) => last = cause,
                    result => return result.map(|value| (value, *addr)),
                }
            }
            Err(last)
        };
        let limit = self.config.udp_timeout;
        tokio::time::timeout(limit, attempts).await.map_err(|_| Cause::Timeout(limit))?
    }

    /// Asks through the proxy, which looks the tracker's name up. A relay that had ended unnoticed is replaced once.
    async fn udp_through<T>(
        &self,
        url: &TrackerUrl,
        build: impl Fn(u64, u32) -> Vec<u8>,
        read: impl Fn(&[u8], u32, bool) -> Result<T, ReplyError>,
    ) -> Result<T, Cause> {
        let target = UdpTarget::new(url.host(), url.port());
        let mut attempts_left = 2;
        loop {
            let session = self.sessions.get(&target, &self.config.access).await.inspect_err(|cause| {
                if matches!(cause, Cause::NoRelay) {
                    *self.no_relay.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                }
            })?;
            let read = |bytes: &[u8], transaction| read(bytes, transaction, session.is_ipv6());
            attempts_left -= 1;
            match session.request(self.config.udp_retransmit_first, &build, read).await {
                Err(Cause::Connect(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    self.sessions.leave(&target, &session);
                    if attempts_left == 0 {
                        return Err(Cause::RelayEnded);
                    }
                }
                result => return result,
            }
        }
    }

    /// Whether the proxy may relay UDP, as far as it has said.
    fn may_relay(&self) -> bool {
        let said = *self.no_relay.lock().unwrap_or_else(PoisonError::into_inner);
        said.is_none_or(|at| at.elapsed() >= NO_RELAY_FOR)
    }

    fn tls(&self) -> Result<Arc<rustls::ClientConfig>, Cause> {
        if let Some(tls) = &self.config.tls {
            return Ok(tls.clone());
        }
        self.platform_tls.get_or_init(platform_tls).clone().ok_or(Cause::NoCertificates)
    }
}

/// Trust in the platform's certificates; those that cannot be read are passed over, as every TLS client does.
fn platform_tls() -> Option<Arc<rustls::ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return None;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    Some(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Runs both; once one has worked, the other has [`OTHER_FAMILY_GRACE`] left. `None` is for one that ran out of it.
async fn both<T, E>(
    first: impl Future<Output = Result<T, E>>,
    second: impl Future<Output = Result<T, E>>,
) -> (Option<Result<T, E>>, Option<Result<T, E>>) {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    let (mut one, mut two) = (None, None);
    tokio::select! {
        result = &mut first => one = Some(result),
        result = &mut second => two = Some(result),
    }
    let has_worked = matches!((&one, &two), (Some(Ok(_)), _) | (_, Some(Ok(_))));
    let grace = if has_worked { OTHER_FAMILY_GRACE } else { Duration::MAX };
    match one {
        Some(_) => two = tokio::time::timeout(grace, second).await.ok(),
        None => one = tokio::time::timeout(grace, first).await.ok(),
    }
    (one, two)
}

/// One reply of two families' replies.
fn join(v4: AnnounceReply, v6: AnnounceReply) -> AnnounceReply {
    let mut joined = v4;
    for peer in v6.peers {
        if joined.peers.len() < REPLY_PEERS_MAX && !joined.peers.contains(&peer) {
            joined.peers.push(peer);
        }
    }
    // The longer wait satisfies both; the numbers are of one swarm, seen in parts where the tracker keeps two.
    joined.interval = joined.interval.max(v6.interval);
    joined.interval_min = joined.interval_min.max(v6.interval_min);
    joined.complete = joined.complete.max(v6.complete);
    joined.incomplete = joined.incomplete.max(v6.incomplete);
    joined.downloaded = joined.downloaded.max(v6.downloaded);
    joined.warning = joined.warning.or(v6.warning);
    joined.tracker_id = joined.tracker_id.or(v6.tracker_id);
    joined.external_ip = joined.external_ip.or(v6.external_ip);
    joined
}
