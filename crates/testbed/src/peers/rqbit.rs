//! rqbit, where `make interop` has built it.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{checkout, free_address};
use crate::net::Namespace;
use crate::process::Process;
use crate::{Error, Result};

/// What it logs once all that was there before is checked and good, and once all has been fetched.
const CHECKED: &str = "needed 0,";
const FINISHED: &str = "torrent finished downloading";

/// An rqbit process with one torrent.
pub struct Rqbit {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddrV4,
}

/// The program.
///
/// # Errors
/// When it was not built.
pub fn program() -> Result<PathBuf> {
    let path =
        std::env::var_os("ANABRANCH_RQBIT").map_or_else(|| checkout().join(".deps/rqbit/bin/rqbit"), PathBuf::from);
    if path.exists() {
        return Ok(path);
    }
    Err(Error::Missing { what: "rqbit".into(), remedy: "`make rqbit` builds it (minutes)".into() })
}

impl Rqbit {
    /// Shares what is in `data` (which it checks first) or fetches what is missing there; goes on sharing unless `exit`.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn start(
        source: &str,
        data: &Path,
        peers: &[SocketAddrV4],
        exit: bool,
        inside: Option<&Namespace>,
        listen: &str,
    ) -> Result<Self> {
        let nonsense = |_| Error::Nonsense { name: "the test".into(), what: format!("address {listen}") };
        let address = SocketAddrV4::new(listen.parse().map_err(nonsense)?, free_address()?.port());
        let program = program()?;
        let mut command = inside.map_or_else(|| Command::new(&program), |inside| inside.command(&program));
        command.args(["-v", "info", "--disable-dht", "--disable-lsd", "--disable-upnp-port-forward", "--ipv4-only"]);
        command.args(["--listen-ip", listen, "--listen-port", &address.port().to_string()]);
        command.args(["download", "--disable-http-api", "--overwrite", "-o"]).arg(data);
        if !peers.is_empty() {
            let list: Vec<String> = peers.iter().map(ToString::to_string).collect();
            command.args(["--initial-peers", &list.join(",")]);
        }
        if exit {
            command.arg("--exit-on-finish");
        }
        let process = Process::spawn("rqbit", command.arg(source))?;
        Ok(Self { process, address })
    }

    /// Waits until it has checked what was there before, all of it good; answers when.
    ///
    /// # Errors
    /// When it does not say so in time.
    pub fn wait_checked(&mut self, limit: Duration) -> Result<Instant> {
        self.wait_words("a complete check", CHECKED, limit)
    }

    /// Waits until it has all; answers when.
    ///
    /// # Errors
    /// When it does not say so in time.
    pub fn wait_finished(&mut self, limit: Duration) -> Result<Instant> {
        self.wait_words("the end of the download", FINISHED, limit)
    }

    fn wait_words(&mut self, what: &str, words: &str, limit: Duration) -> Result<Instant> {
        self.process.wait_line(what, limit, |line| line.text.contains(words)).map(|line| line.at)
    }
}
