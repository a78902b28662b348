//! rqbit, where `make interop` has built it.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{checkout, free_address};
use crate::net::Namespace;
use crate::process::Process;
use crate::{Error, Result};

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
    ) -> Result<Self> {
        let address = free_address()?;
        let program = program()?;
        let mut command = inside.map_or_else(|| Command::new(&program), |inside| inside.command(&program));
        command.args(["-v", "info", "--disable-dht", "--disable-lsd", "--disable-upnp-port-forward", "--ipv4-only"]);
        command.args(["--listen-ip", "127.0.0.1", "--listen-port", &address.port().to_string()]);
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
}
