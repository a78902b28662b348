//! qBittorrent without a window, told what to do on its command line and asked how it fares through its Web API. How it speaks
//! to peers is left as its users have it (uTP, encryption where the other side takes it); what would look for peers elsewhere
//! is off.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{free_address, installed};
use crate::process::Process;
use crate::{Error, Result};

/// How long one answer of the Web API may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// How often it is asked.
const ASKED_EVERY: Duration = Duration::from_millis(200);

/// A qBittorrent with one torrent.
pub struct QBittorrent {
    /// The process.
    pub process: Process,
    /// Where it listens for peers.
    pub address: SocketAddrV4,
    /// Where its Web API is. The name is `admin`, the password `adminadmin`.
    pub api: SocketAddrV4,
}

impl QBittorrent {
    /// Fetches `source`, a torrent or a magnet link, into `data`. `profile` is a folder for its state.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn leech(profile: &Path, source: &str, data: &Path) -> Result<Self> {
        Self::leech_with(profile, source, data, "")
    }

    /// As [`Self::leech`], with further lines of settings for `[BitTorrent]`.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn leech_with(profile: &Path, source: &str, data: &Path, further: &str) -> Result<Self> {
        Self::start(profile, source, data, &[], further)
    }

    /// Shares what `torrent` describes out of `data`, unchecked; returns once it does.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn seed(profile: &Path, torrent: &Path, data: &Path, limit: Duration) -> Result<Self> {
        Self::seed_with(profile, torrent, data, limit, "")
    }

    /// As [`Self::seed`], with further lines of settings for `[BitTorrent]`.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn seed_with(profile: &Path, torrent: &Path, data: &Path, limit: Duration, further: &str) -> Result<Self> {
        let source = torrent.display().to_string();
        let mut seeder = Self::start(profile, &source, data, &["--skip-hash-check"], further)?;
        seeder.wait_finished(limit)?;
        Ok(seeder)
    }

    /// Has no torrent, and waits to be asked.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn empty(profile: &Path, data: &Path) -> Result<Self> {
        Self::start(profile, "", data, &[], "")
    }

    fn start(profile: &Path, source: &str, data: &Path, flags: &[&str], further: &str) -> Result<Self> {
        let (address, api) = (free_address()?, free_address()?);
        let config = profile.join("qBittorrent/config");
        std::fs::create_dir_all(&config).map_err(Error::file(&config))?;
        let path = config.join("qBittorrent.conf");
        std::fs::write(&path, settings(address, api, further)).map_err(Error::file(path))?;
        let mut command = Command::new(installed("qbittorrent-nox")?);
        command.arg(format!("--profile={}", profile.display())).arg(format!("--save-path={}", data.display()));
        command.args(flags).args(Some(source).filter(|source| !source.is_empty()));
        Ok(Self { process: Process::spawn("qbittorrent", &mut command)?, address, api })
    }

    /// Waits until it has all of its torrent, and shares it.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn wait_finished(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            // It takes a moment until there is an API, and then until there is a torrent.
            let answer = self.ask("/api/v2/torrents/info").unwrap_or_default();
            let torrents: Value = serde_json::from_str(&answer).unwrap_or_default();
            if matches!(torrents[0]["state"].as_str(), Some("uploading" | "stalledUP" | "forcedUP" | "queuedUP")) {
                return Ok(());
            }
            if self.process.has_ended() || Instant::now() > deadline {
                let (name, waited_for) = ("qbittorrent".into(), "the whole content".into());
                let log = format!("{answer}\n{}", self.process.log());
                return Err(Error::Timeout { name, waited_for, limit, log });
            }
            std::thread::sleep(ASKED_EVERY);
        }
    }

    fn ask(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.api)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let mut request = String::new();
        let _ = write!(request, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.api);
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }
}

fn settings(address: SocketAddrV4, api: SocketAddrV4, further: &str) -> String {
    let (ip, port, api_port) = (address.ip(), address.port(), api.port());
    format!(
        "[LegalNotice]\nAccepted=true\n\
         [BitTorrent]\nSession\\DHTEnabled=false\nSession\\LSDEnabled=false\nSession\\PeXEnabled=false\n{further}\
         Session\\InterfaceAddress={ip}\nSession\\Port={port}\n\
         [Network]\nPortForwardingEnabled=false\n\
         [Preferences]\nConnection\\ResolvePeerCountries=false\n\
         WebUI\\Address=127.0.0.1\nWebUI\\Port={api_port}\nWebUI\\LocalHostAuth=false\nWebUI\\UseUPnP=false\n"
    )
}
