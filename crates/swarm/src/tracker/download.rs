//! Torrent files from where they are published: fetched as trackers are asked, by the same ways and with the same limits.
//!
//! Whoever names an address has it fetched from inside the user's machine and network, and learns something of what is there by what
//! becomes of it. So nothing is fetched from there but from hosts that the user named himself.

use std::net::SocketAddr;

use anabranch_bittorrent::reach::Reach;
use anabranch_bittorrent::tracker::{Scheme, TrackerUrl, UrlError};

use super::error::Cause;
use super::{Client, ClientInner, HTTP_TIMEOUT, http};

/// What is at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Download {
    /// Bytes.
    Bytes(Vec<u8>),
    /// It leads to a magnet link.
    Magnet(String),
}

/// Why nothing is fetched from an address.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// It is none.
    #[error("the address cannot be used: {0}")]
    Url(#[from] UrlError),
    /// It is one of another kind.
    #[error("only what is at http:// and https:// can be fetched")]
    Scheme,
    /// It is in the user's own network or machine.
    #[error("{0} is in the local network: if it is yours, name it with --fetch-host")]
    Near(String),
    /// It did not answer as it should.
    #[error("{0}: {1}")]
    Failed(String, Cause),
    /// The session has ended.
    #[error("the session has ended")]
    Gone,
}

impl Client {
    /// Fetches what is at `url`, at most `bytes_max` of it: through the proxy, past the filter, and from no private address, unless its
    /// host is among `near_hosts`.
    pub(crate) async fn download(
        &self,
        url: &str,
        bytes_max: usize,
        near_hosts: &[String],
    ) -> Result<Download, DownloadError> {
        // What stands behind `#` is not for the server.
        let url: TrackerUrl = url.split('#').next().unwrap_or_default().parse()?;
        let is_near_allowed = near_hosts.iter().any(|host| host.eq_ignore_ascii_case(url.host()));
        self.0.download(&url, bytes_max, is_near_allowed).await
    }
}

impl ClientInner {
    async fn download(
        &self,
        url: &TrackerUrl,
        bytes_max: usize,
        is_near_allowed: bool,
    ) -> Result<Download, DownloadError> {
        if url.scheme() == Scheme::Udp {
            return Err(DownloadError::Scheme);
        }
        let failed = |cause| DownloadError::Failed(url.origin(), cause);
        let (mut addrs, _permit) = self.begin(url).await.map_err(failed)?;
        let access = &self.config.access;
        if !is_near_allowed {
            if access.proxy.is_some() {
                access.judge_unseen(url).map_err(|_| DownloadError::Near(url.authority()))?;
            }
            let had_any = !addrs.is_empty();
            // Judged are the addresses that are then connected to, whatever name led to them.
            addrs.retain(|addr| Reach::of(addr.ip()) == Reach::World);
            if had_any && addrs.is_empty() {
                return Err(DownloadError::Near(url.authority()));
            }
        }
        let is_v4 = addrs.iter().any(SocketAddr::is_ipv4);
        addrs.retain(|addr| addr.is_ipv4() == is_v4);
        let target = url.target();
        let fetched = http::get(url, &target, &addrs, bytes_max, access, || self.tls());
        match tokio::time::timeout(HTTP_TIMEOUT, fetched).await {
            Ok(Ok((reply, _))) if reply.status.is_success() => Ok(Download::Bytes(reply.body)),
            Ok(Ok((reply, _))) => Err(failed(Cause::Status(reply.status.as_u16()))),
            Ok(Err(Cause::Magnet(link))) => Ok(Download::Magnet(link)),
            Ok(Err(cause)) => Err(failed(cause)),
            Err(_) => Err(failed(Cause::Timeout(HTTP_TIMEOUT))),
        }
    }
}
