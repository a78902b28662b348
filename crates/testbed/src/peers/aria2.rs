//! aria2: finds peers through a tracker only, so one of ours points it to its peer.

use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;

use super::{free_address, installed};
use crate::Result;
use crate::process::Process;

/// An aria2 process with one torrent.
pub struct Aria2 {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddrV4,
}

impl Aria2 {
    /// Shares what is in `data`, unchecked.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn seed(torrent: &Path, data: &Path) -> Result<Self> {
        Self::seed_with(torrent, data, &[])
    }

    /// As [`Self::seed`], with further flags.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn seed_with(torrent: &Path, data: &Path, further: &[&str]) -> Result<Self> {
        let seeding = ["--bt-seed-unverified=true", "--seed-ratio=0.0", "--check-integrity=false"];
        Self::start(torrent, data, &[&seeding, further].concat())
    }

    /// Fetches into `data`, from the peers that the torrent's tracker names, and ends.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn leech(torrent: &Path, data: &Path) -> Result<Self> {
        Self::leech_with(torrent, data, &[])
    }

    /// As [`Self::leech`], with further flags.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn leech_with(torrent: &Path, data: &Path, further: &[&str]) -> Result<Self> {
        Self::start(torrent, data, &[&["--seed-time=0"], further].concat())
    }

    fn start(torrent: &Path, data: &Path, extra: &[&str]) -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new(installed("aria2c")?);
        command.arg("--no-conf=true").arg(format!("--dir={}", data.display()));
        command.arg(format!("--listen-port={}", address.port())).args([
            "--interface=127.0.0.1",
            "--enable-dht=false",
            "--enable-dht6=false",
            "--bt-enable-lpd=false",
            "--enable-peer-exchange=false",
            "--bt-require-crypto=false",
            "--bt-min-crypto-level=plain",
            "--bt-tracker-interval=2",
            "--bt-max-peers=0",
            "--file-allocation=none",
            "--allow-overwrite=true",
            "--disk-cache=64M",
            "--summary-interval=1",
            "--console-log-level=notice",
        ]);
        let process = Process::spawn("aria2", command.args(extra).arg(torrent))?;
        Ok(Self { process, address })
    }
}
