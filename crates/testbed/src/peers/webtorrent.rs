//! WebTorrent, driven by `peers/peer_webtorrent.mjs` beside what `install.sh clients` fetches from npm. How it speaks to peers is left as its
//! users have it.

use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{checkout, free_address, installed};
use crate::process::Process;
use crate::{Error, Result};

/// How long it may take to know its torrent.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A WebTorrent with one torrent.
pub struct WebTorrent {
    /// The process.
    pub process: Process,
    /// Where it listens for peers.
    pub address: SocketAddrV4,
}

impl WebTorrent {
    /// Takes `source`, a torrent or a link, whose content is in `data`, or goes there. What is there already is checked first. With
    /// `dht_node` it takes part in the distributed hash table, and begins there.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn start(source: &str, data: &Path, dht_node: Option<SocketAddrV4>) -> Result<Self> {
        let folder = checkout().join(".deps/webtorrent");
        if !folder.join("node_modules/webtorrent").exists() {
            let remedy = "`crates/testbed/peers/install.sh clients` installs it".into();
            return Err(Error::Missing { what: format!("WebTorrent ({})", folder.display()), remedy });
        }
        let address = free_address()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/peer_webtorrent.mjs");
        let mut command = Command::new(installed("node")?);
        command.arg(script).arg(folder).arg(source).arg(data).arg(address.port().to_string());
        command.args(dht_node.map(|node| node.to_string()));
        Ok(Self { process: Process::spawn("webtorrent", &mut command)?, address })
    }

    /// Waits until it has everything: because it was there, or was fetched.
    ///
    /// # Errors
    /// When it does not in time, or fails.
    pub fn wait_complete(&mut self, limit: Duration) -> Result<()> {
        self.process.wait_event("complete", limit.max(START_LIMIT)).map(|_| ())
    }
}
