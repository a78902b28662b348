//! transmission-daemon with a folder of its own, told what to do through `transmission-remote`. How it speaks to peers is left
//! as its users have it (uTP, encryption where the other side takes it); what would look for peers elsewhere is off.
//!
//! Transmission 3.00 never connects to an address of 127.0.0.0/8 that a tracker names, but accepts connections from
//! there: when it fetches, the other side has to find it and connect.

use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{free_address, installed};
use crate::process::Process;
use crate::{Error, Result};

/// How long the daemon may take to answer.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long one `transmission-remote` may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// A daemon.
pub struct Transmission {
    /// The process.
    pub process: Process,
    /// Where it listens for peers.
    pub address: SocketAddrV4,
    rpc: SocketAddrV4,
}

impl Transmission {
    /// A daemon with torrent `torrent` and its content in (or for) `data`. What is there already is checked first.
    /// `config` is a folder for its state.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn start(config: &Path, torrent: &Path, data: &Path) -> Result<Self> {
        Self::start_with(config, torrent, data, json!({}))
    }

    /// As [`Self::start`], with further settings.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn start_with(config: &Path, torrent: &Path, data: &Path, further: Value) -> Result<Self> {
        let (address, rpc) = (free_address()?, free_address()?);
        std::fs::create_dir_all(config).map_err(Error::file(config))?;
        let mut settings = json!({
            "bind-address-ipv4": "127.0.0.1",
            "bind-address-ipv6": "::1",
            "cache-size-mb": 64,
            "dht-enabled": false,
            "download-dir": data,
            "incomplete-dir-enabled": false,
            "lpd-enabled": false,
            "peer-port": address.port(),
            "peer-port-random-on-start": false,
            "pex-enabled": false,
            "port-forwarding-enabled": false,
            "preallocation": 1,
            "rpc-bind-address": "127.0.0.1",
            "rpc-enabled": true,
            "rpc-host-whitelist-enabled": false,
            "rpc-port": rpc.port(),
            "rpc-whitelist-enabled": false,
            "scrape-paused-torrents-enabled": false,
            "speed-limit-down-enabled": false,
            "speed-limit-up-enabled": false,
            "start-added-torrents": true,
        });
        if let (Some(settings), Value::Object(further)) = (settings.as_object_mut(), further) {
            settings.extend(further);
        }
        let path = config.join("settings.json");
        std::fs::write(&path, settings.to_string()).map_err(Error::file(path))?;
        let mut command = Command::new(installed("transmission-daemon")?);
        command.arg("--foreground").arg("--log-debug").arg("--config-dir").arg(config);
        let mut daemon = Self { process: Process::spawn("transmission", &mut command)?, address, rpc };
        let deadline = Instant::now() + START_LIMIT;
        while let Err(error) = daemon.remote(&["-si"]) {
            if daemon.process.has_ended() || Instant::now() > deadline {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let torrent = torrent.display().to_string();
        daemon.remote(&["-w", &data.display().to_string(), "-a", &torrent])?;
        Ok(daemon)
    }

    /// Waits until the daemon has all of its torrent.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn wait_complete(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let answer = self.remote(&["-t", "1", "-i"])?;
            if answer.contains("Percent Done: 100%")
                && !answer.contains("State: Verifying")
                && !answer.contains("State: Will Verify")
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                let (name, waited_for) = ("transmission".into(), "the whole content".into());
                return Err(Error::Timeout {
                    name,
                    waited_for,
                    limit,
                    log: format!("{answer}\n{}", self.process.log()),
                });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn remote(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(installed("transmission-remote")?);
        command.arg(self.rpc.to_string()).args(words);
        let (lines, _) = Process::run("transmission-remote", &mut command, COMMAND_LIMIT)?;
        Ok(lines.into_iter().map(|line| line.text + "\n").collect())
    }
}
