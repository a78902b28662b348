//! Ours, driven as users drive it: through its command line and its `--json` events.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{address_of, checkout};
use crate::net::Namespace;
use crate::process::{Process, Usage};
use crate::{Error, Result};

/// How long it may take to be up and listening.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running `anabranch`.
pub struct Anabranch {
    /// The process.
    pub process: Process,
}

/// The program: `ANABRANCH_BIN`, or the release build of this checkout.
///
/// # Errors
/// When it was not built.
pub fn program() -> Result<PathBuf> {
    let built = || checkout().join("target/release/anabranch");
    let path = std::env::var_os("ANABRANCH_BIN").map_or_else(built, PathBuf::from);
    if path.exists() {
        return Ok(path);
    }
    Err(Error::Missing { what: path.display().to_string(), remedy: "`cargo build --release -p anabranch`".into() })
}

/// A command of ours, `inside` a namespace where one is given.
///
/// # Errors
/// When it was not built.
pub fn command(inside: Option<&Namespace>) -> Result<Command> {
    let program = program()?;
    let mut command = inside.map_or_else(|| Command::new(&program), |inside| inside.command(&program));
    // Below what is no folder: metadata of magnet links that one run kept would spare the next one the peers that it is to meet.
    // And so is the state: networks of one test give out the addresses of those of another.
    command.env("XDG_CACHE_HOME", "/dev/null/no-cache").env("XDG_STATE_HOME", "/dev/null/no-state");
    // Nothing is sent or looked up abroad: tests of these name their own nodes.
    command.env("ANABRANCH_DHT", "off").env("ANABRANCH_LSD", "off").env("ANABRANCH_PORT_MAPPING", "off");
    Ok(command)
}

/// `anabranch create`.
///
/// # Errors
/// When it fails.
pub fn create(path: &Path, out: &Path, version: &str, piece_length: u32, trackers: &[String]) -> Result<Usage> {
    let mut command = command(None)?;
    command.arg("create").arg(path).arg("-o").arg(out).args(["--version", version]);
    command.args(["--piece-length", &piece_length.to_string()]);
    for tracker in trackers {
        command.args(["--tracker", tracker]);
    }
    Process::run("anabranch create", &mut command, Duration::from_secs(300)).map(|(_, usage)| usage)
}

/// `anabranch verify`: what it printed and what it cost. A content that is not whole is no error here.
///
/// # Errors
/// When it cannot be started or does not end.
pub fn verify(torrent: &Path, data: &Path) -> Result<(Vec<Value>, Usage)> {
    let mut command = command(None)?;
    let mut process = Process::spawn("anabranch verify", command.arg("verify").arg(torrent).arg(data).arg("--json"))?;
    let usage = process.wait(Duration::from_secs(300))?;
    Ok((process.rest().iter().map(crate::process::Line::json).collect(), usage))
}

impl Anabranch {
    /// `anabranch share`, up and listening. `source` is a torrent (its content in `data`), or a file or folder.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn share(
        source: &Path,
        data: Option<&Path>,
        listen: &str,
        inside: Option<&Namespace>,
        extra: &[&str],
    ) -> Result<(Self, SocketAddr)> {
        let mut command = command(inside)?;
        command.arg("share").arg(source).args(["--listen", listen, "--json"]).args(extra);
        if let Some(data) = data {
            command.arg("--data").arg(data);
        }
        let mut process = Process::spawn("anabranch share", &mut command)?;
        let (event, _) = process.wait_event("listening", START_LIMIT)?;
        Ok((Self { process }, address_of(&event)?))
    }

    /// `anabranch get` of a torrent or magnet link into `out`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn get(
        source: &str,
        out: &Path,
        peers: &[SocketAddr],
        inside: Option<&Namespace>,
        extra: &[&str],
    ) -> Result<Self> {
        let mut command = command(inside)?;
        command.args(["get", source, "--json"]).arg("-o").arg(out).args(extra);
        for peer in peers {
            command.args(["--peer", &peer.to_string()]);
        }
        Ok(Self { process: Process::spawn("anabranch get", &mut command)? })
    }

    /// Waits for `finished` and a good end. Answers the event and the cost.
    ///
    /// # Errors
    /// When it fails or does not end in time.
    pub fn wait_finished(&mut self, limit: Duration) -> Result<(Value, Usage)> {
        let (event, _) = self.process.wait_event("finished", limit)?;
        Ok((event, self.process.wait_success(START_LIMIT)?))
    }
}
