//! rtorrent as a daemon of its own, told what to do by a file. How it speaks to peers is left as its users have it.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{free_address, installed};
use crate::process::Process;
use crate::{Error, Result};

/// An rtorrent with one torrent.
pub struct Rtorrent {
    /// The process.
    pub process: Process,
    /// Where it listens for peers.
    pub address: SocketAddrV4,
    /// A file that is there once the content is complete.
    complete: PathBuf,
}

impl Rtorrent {
    /// Takes `source`, a torrent or a link, whose content is in `data`, or goes there. What is there already is checked first. `state` is a
    /// folder for its own files; with `dht_node` it takes part in the distributed hash table, and begins there.
    ///
    /// # Errors
    /// When it is missing or cannot be started.
    pub fn start(state: &Path, source: &str, data: &Path, dht_node: Option<SocketAddrV4>) -> Result<Self> {
        let (address, complete) = (free_address()?, state.join("complete"));
        let session = state.join("session");
        std::fs::create_dir_all(&session).map_err(Error::file(&session))?;
        let dht = match dht_node {
            Some(node) => format!(
                "dht.mode.set = on\ndht.port.set = {}\nschedule2 = node,1,0,\"dht.add_node={node}\"\n",
                free_address()?.port()
            ),
            None => "dht.mode.set = disable\n".to_owned(),
        };
        let port = address.port();
        let (data, session, done) = (data.display(), session.display(), complete.display());
        let text = format!(
            "system.daemon.set = true\ndirectory.default.set = \"{data}\"\nsession.path.set = \"{session}\"\n\
             network.port_range.set = {port}-{port}\nnetwork.port_random.set = no\nnetwork.bind_address.set = 127.0.0.1\n{dht}\
             method.set_key = event.download.finished,done,\"execute2={{touch,{done}}}\"\n\
             schedule2 = load,0,0,\"load.start_verbose={source}\"\n"
        );
        let config = state.join("rtorrent.rc");
        std::fs::write(&config, text).map_err(Error::file(&config))?;
        let mut command = Command::new(installed("rtorrent")?);
        command.arg("-n").arg("-o").arg(format!("import={}", config.display()));
        Ok(Self { process: Process::spawn("rtorrent", &mut command)?, address, complete })
    }

    /// Waits until it has fetched everything.
    ///
    /// # Errors
    /// When it does not in time, or ends.
    pub fn wait_complete(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !self.complete.exists() {
            if self.process.has_ended() || Instant::now() > deadline {
                let (name, waited_for, log) = ("rtorrent".into(), "the whole content".into(), self.process.log());
                return Err(Error::Timeout { name, waited_for, limit, log });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
