//! deluged with a folder of its own, told what to do through deluge-console. How it speaks to peers is left as its users have it; what would
//! look for peers elsewhere is off.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{free_address, installed};
use crate::process::Process;
use crate::{Error, Result};

/// How long the daemon may take to answer.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long one call of the console may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// A daemon with one torrent.
pub struct Deluge {
    /// The process.
    pub process: Process,
    /// Where it listens for peers.
    pub address: SocketAddrV4,
    rpc: SocketAddrV4,
    config: PathBuf,
}

impl Deluge {
    /// Takes `source`, a torrent or a link, whose content is in `data`, or goes there. What is there already is checked first. `config` is a
    /// folder for its own files.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn start(config: &Path, source: &str, data: &Path) -> Result<Self> {
        let (address, rpc) = (free_address()?, free_address()?);
        let settings = json!({
            "listen_interface": "127.0.0.1",
            "outgoing_interface": "127.0.0.1",
            "listen_ports": [address.port(), address.port()],
            "random_port": false,
            "dht": false,
            "lsd": false,
            "upnp": false,
            "natpmp": false,
            "daemon_port": rpc.port(),
            "allow_remote": false,
            "new_release_check": false,
            "download_location": data,
        });
        std::fs::create_dir_all(config).map_err(Error::file(config))?;
        let path = config.join("core.conf");
        let text = format!("{{\"file\": 1, \"format\": 1}}{settings}");
        std::fs::write(&path, text).map_err(Error::file(path))?;
        let mut command = Command::new(installed("deluged")?);
        let process = Process::spawn("deluged", command.arg("-d").arg("-c").arg(config).args(["-L", "info"]))?;
        let mut daemon = Self { process, address, rpc, config: config.to_owned() };
        let deadline = Instant::now() + START_LIMIT;
        let add = format!("add -p \"{}\" \"{source}\"", data.display());
        loop {
            match daemon.console(&add) {
                Ok(answer) if answer.contains("added") => return Ok(daemon),
                Err(error) if daemon.process.has_ended() || Instant::now() > deadline => return Err(error),
                _ if Instant::now() > deadline => return Err(daemon.late("its console", START_LIMIT)),
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Waits until it has everything.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn wait_complete(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !self.console("info -v")?.contains("State: Seeding") {
            if Instant::now() > deadline {
                return Err(self.late("the whole content", limit));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn late(&self, waited_for: &str, limit: Duration) -> Error {
        Error::Timeout { name: "deluged".into(), waited_for: waited_for.into(), limit, log: self.process.log() }
    }

    fn console(&self, words: &str) -> Result<String> {
        let mut command = Command::new(installed("deluge-console")?);
        command.arg("-c").arg(&self.config).arg(format!("connect {} ; {words}", self.rpc));
        let (lines, _) = Process::run("deluge-console", &mut command, COMMAND_LIMIT)?;
        Ok(lines.into_iter().map(|line| line.text + "\n").collect())
    }
}
