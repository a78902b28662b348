//! libtorrent, driven by `peers/peer_libtorrent.py` in the virtual environment that `make deps` fills.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{address_of, checkout};
use crate::net::Namespace;
use crate::process::{Process, Usage};
use crate::{Error, Result};

/// How long Python may take to be up and listening.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A libtorrent process with one torrent.
pub struct Libtorrent {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    /// CPU time spent before the torrent was added: Python's start, not libtorrent's work.
    pub startup_cpu: Duration,
}

/// How a leech ended.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// From adding the torrent to all of it checked, as libtorrent saw it.
    pub seconds: f64,
    /// The process, startup included.
    pub usage: Usage,
}

/// A command for the script; `inside` a namespace where one is given.
///
/// # Errors
/// When libtorrent is not installed.
pub fn command(inside: Option<&Namespace>) -> Result<Command> {
    let python = python()?;
    let mut command = inside.map_or_else(|| Command::new(&python), |inside| inside.command(&python));
    command.arg("-W").arg("ignore").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/peer_libtorrent.py"));
    Ok(command)
}

/// The Python that has what `make deps` installs.
///
/// # Errors
/// When it was not installed.
pub fn python() -> Result<PathBuf> {
    let python =
        std::env::var_os("ANABRANCH_PYTHON").map_or_else(|| checkout().join(".deps/venv/bin/python"), PathBuf::from);
    if !python.exists() {
        let remedy = "`make deps` installs what the tests need".into();
        return Err(Error::Missing { what: format!("libtorrent for Python ({})", python.display()), remedy });
    }
    Ok(python)
}

/// Makes a torrent of `path`; `version` is `1`, `2` or `hybrid`. Answers the `created` event: hashes, magnet, seconds.
///
/// # Errors
/// When libtorrent is missing or refuses.
pub fn create(path: &Path, out: &Path, version: &str, piece_length: u32, trackers: &[String]) -> Result<Value> {
    let mut command = command(None)?;
    command.arg("create").arg(path).arg("--out").arg(out).args(["--version", version]);
    command.args(["--piece-length", &piece_length.to_string()]);
    for tracker in trackers {
        command.args(["--tracker", tracker]);
    }
    let (lines, _) = Process::run("libtorrent create", &mut command, Duration::from_secs(300))?;
    let event = lines.last().map_or(Value::Null, crate::process::Line::json);
    if event["event"] != "created" {
        return Err(Error::Nonsense { name: "libtorrent create".into(), what: event.to_string() });
    }
    Ok(event)
}

/// Makes a v1 torrent of each file in the folder `path`, into the folder `out`.
///
/// # Errors
/// When libtorrent is missing or refuses.
pub fn create_each(path: &Path, out: &Path, piece_length: u32) -> Result<()> {
    let mut command = command(None)?;
    command.arg("create-each").arg(path).arg("--out").arg(out).args(["--piece-length", &piece_length.to_string()]);
    Process::run("libtorrent create-each", &mut command, Duration::from_secs(300)).map(|_| ())
}

/// What libtorrent reads out of a torrent: hashes, sizes.
///
/// # Errors
/// When libtorrent is missing or refuses the file.
pub fn info(source: &Path) -> Result<Value> {
    let (lines, _) = Process::run("libtorrent info", command(None)?.arg("info").arg(source), START_LIMIT)?;
    Ok(lines.last().map_or(Value::Null, crate::process::Line::json))
}

/// Checks `data` against `torrent`. Answers the `verified` event: seconds, complete.
///
/// # Errors
/// When libtorrent is missing or does not end.
pub fn verify(torrent: &Path, data: &Path) -> Result<Value> {
    let mut command = command(None)?;
    command.arg("verify").arg(torrent).arg("--data").arg(data);
    let (lines, _) = Process::run("libtorrent verify", &mut command, Duration::from_secs(300))?;
    Ok(lines.last().map_or(Value::Null, crate::process::Line::json))
}

impl Libtorrent {
    /// Shares what `torrent` describes out of `data`, unchecked; returns once it does.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn seed(torrent: &Path, data: &Path, inside: Option<&Namespace>, listen: &str) -> Result<Self> {
        Self::seed_with(torrent, data, inside, listen, &[])
    }

    /// As [`Self::seed`], and takes several connections of one peer, each from another address of it.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn seed_to_many_paths(torrent: &Path, data: &Path, inside: Option<&Namespace>, listen: &str) -> Result<Self> {
        Self::seed_with(torrent, data, inside, listen, &["--set", "allow_multiple_connections_per_pid=1"])
    }

    /// As [`Self::seed`], with further flags of the script.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn seed_with(
        torrent: &Path,
        data: &Path,
        inside: Option<&Namespace>,
        listen: &str,
        extra: &[&str],
    ) -> Result<Self> {
        let mut command = command(inside)?;
        command.arg("seed").arg(torrent).arg("--data").arg(data).args(["--listen", listen, "--assume-complete"]);
        let mut peer = Self::start("libtorrent seeder", command.args(extra))?;
        peer.process.wait_event("ready", START_LIMIT)?;
        Ok(peer)
    }

    /// Fetches `source` (a file or a magnet link) into `data`, from `peers`.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn leech(
        source: &str,
        data: &Path,
        peers: &[SocketAddr],
        inside: Option<&Namespace>,
        listen: &str,
    ) -> Result<Self> {
        Self::leech_with(source, data, peers, inside, listen, &[])
    }

    /// As [`Self::leech`], with further flags of the script.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn leech_with(
        source: &str,
        data: &Path,
        peers: &[SocketAddr],
        inside: Option<&Namespace>,
        listen: &str,
        extra: &[&str],
    ) -> Result<Self> {
        let mut command = command(inside)?;
        command.args(["leech", source]).arg("--data").arg(data).args(["--listen", listen]).args(extra);
        for peer in peers {
            command.args(["--peer", &peer.to_string()]);
        }
        Self::start("libtorrent leecher", &mut command)
    }

    /// Shares all torrents in the folder `torrents`, their content in `data`, and does nothing.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn idle(torrents: &Path, data: &Path) -> Result<Self> {
        Self::idle_with(torrents, data, &[])
    }

    /// The same, with further flags of the script: a node of the distributed hash table, where there are no torrents.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn idle_with(torrents: &Path, data: &Path, extra: &[&str]) -> Result<Self> {
        let mut command = command(None)?;
        command.arg("idle").arg(torrents).arg("--data").arg(data).args(extra);
        let mut peer = Self::start("libtorrent", &mut command)?;
        peer.process.wait_event("ready", START_LIMIT)?;
        Ok(peer)
    }

    /// Waits for a leech to be complete and its process to end.
    ///
    /// # Errors
    /// When it does not complete in time.
    pub fn wait_finished(&mut self, limit: Duration) -> Result<Finished> {
        let (event, _) = self.process.wait_event("finished", limit)?;
        let seconds = event["seconds"].as_f64().unwrap_or(f64::NAN);
        let usage = self.process.wait_success(START_LIMIT)?;
        Ok(Finished { seconds, usage })
    }

    fn start(name: &str, command: &mut Command) -> Result<Self> {
        let mut process = Process::spawn(name, command)?;
        let (event, _) = process.wait_event("listening", START_LIMIT)?;
        let startup_cpu = Duration::from_secs_f64(event["startup_cpu_seconds"].as_f64().unwrap_or(0.0));
        Ok(Self { process, address: address_of(&event)?, startup_cpu })
    }

    /// When the process was started.
    pub fn started(&self) -> Instant {
        self.process.started()
    }
}
