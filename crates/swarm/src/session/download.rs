//! Torrent files from where they are published.

use super::Handle;
use crate::tracker::{Download, DownloadError};

impl Handle {
    /// Fetches what is at `url`, at most `bytes_max` of it: through the proxy, past the filter, and from no private address, unless its
    /// host is among `near_hosts`.
    pub async fn download(
        &self,
        url: &str,
        bytes_max: usize,
        near_hosts: &[String],
    ) -> Result<Download, DownloadError> {
        let client = self.ask(|contents| contents.resources.trackers.clone()).await.map_err(|_| DownloadError::Gone)?;
        client.download(url, bytes_max, near_hosts).await
    }
}
