//! SCION end hosts that others wrote: sciparse, which `make deps` builds, and JPAN, where `make interop` has built it.
//!
//! Both are driven by a few commands and answer a line for each path (`interop/sciparse-host/src/main.rs` and
//! `peers/jpan/src/main/java/Peer.java` say which). Paths are named by their interfaces, `1-ff00:0:110#1,1-ff00:0:111#41`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::{checkout, installed};
use crate::process::{Line, Process};
use crate::{Error, Result};

/// A command over some tens of paths; it starts a virtual machine, and each answer may take its three seconds.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
const START_LIMIT: Duration = Duration::from_secs(30);

/// Whose end host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScionPeer {
    /// Ours around Anapaya's crates.
    Sciparse,
    /// Ours around JPAN.
    Jpan,
}

impl ScionPeer {
    /// Whether what it serves answers SCMP echo requests too.
    pub fn answers_echo(self) -> bool {
        self == Self::Sciparse
    }

    /// The paths that it finds.
    ///
    /// # Errors
    /// When it is missing or fails.
    pub fn paths(self, daemon: SocketAddr, destination: &str) -> Result<BTreeSet<String>> {
        self.over_paths("path", &["paths", &daemon.to_string(), destination])
    }

    /// Sends an SCMP echo over every path that it finds; the paths, over all of which an answer came.
    ///
    /// # Errors
    /// When it is missing or fails, or one answer did not come.
    pub fn ping(self, daemon: SocketAddr, destination: &str, ip: IpAddr) -> Result<BTreeSet<String>> {
        self.over_paths("echo", &["ping", &daemon.to_string(), destination, &ip.to_string()])
    }

    /// Sends a datagram over every path that it finds; the paths, over all of which the same came back.
    ///
    /// # Errors
    /// When it is missing or fails, or one answer did not come or was another.
    pub fn send(self, daemon: SocketAddr, destination: &str, to: SocketAddr) -> Result<BTreeSet<String>> {
        let (ip, port) = (to.ip().to_string(), to.port().to_string());
        self.over_paths("reply", &["send", &daemon.to_string(), destination, &ip, &port])
    }

    /// Like [`Self::ping`], but over paths that it combined of the control service's segments itself. Only sciparse can.
    ///
    /// # Errors
    /// As with [`Self::ping`].
    pub fn ping_combined(
        self,
        daemon: SocketAddr,
        control: SocketAddr,
        destination: &str,
        ip: IpAddr,
    ) -> Result<BTreeSet<String>> {
        let args = ["segments", &daemon.to_string(), &control.to_string(), destination, &ip.to_string()];
        self.over_paths("echo", &args)
    }

    /// Sends every datagram back over the path it came on, until the process is dropped.
    ///
    /// # Errors
    /// When it is missing or cannot listen.
    pub fn serve(self, daemon: SocketAddr, at: SocketAddr) -> Result<Process> {
        let mut command = self.command()?;
        command.args(["serve", &daemon.to_string(), &at.ip().to_string(), &at.port().to_string()]);
        let mut process = Process::spawn(self.name(), &mut command)?;
        process.wait_line("ready", START_LIMIT, |line| line.text == "ready")?;
        Ok(process)
    }

    /// The paths of lines that start with `word`. None may appear twice.
    fn over_paths(self, word: &str, args: &[&str]) -> Result<BTreeSet<String>> {
        let (lines, _) = Process::run(self.name(), self.command()?.args(args), COMMAND_LIMIT)?;
        let nonsense = |line: &Line| Error::Nonsense { name: self.name().into(), what: line.text.clone() };
        let mut paths = BTreeSet::new();
        for line in &lines {
            let mut words = line.text.split(' ');
            let path = words.next().filter(|first| *first == word).and_then(|_| words.next());
            if !paths.insert(path.ok_or_else(|| nonsense(line))?.to_owned()) {
                return Err(nonsense(line));
            }
        }
        Ok(paths)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sciparse => "sciparse-host",
            Self::Jpan => "JPAN",
        }
    }

    fn command(self) -> Result<Command> {
        let built = |variable, path: &str, remedy: &str| {
            let path = std::env::var_os(variable).map_or_else(|| checkout().join(path), PathBuf::from);
            let missing = || Error::Missing { what: path.display().to_string(), remedy: remedy.into() };
            if path.exists() { Ok(path.clone()) } else { Err(missing()) }
        };
        match self {
            Self::Sciparse => {
                let path = ".deps/sciparse-host/debug/sciparse-host";
                Ok(Command::new(built("ANABRANCH_SCIPARSE_HOST", path, "`make deps` builds it")?))
            }
            Self::Jpan => {
                let folder = built("ANABRANCH_JPAN", ".deps/jpan", "`crates/testbed/peers/install.sh jpan` builds it")?;
                let mut command = Command::new(installed("java")?);
                // A short life: compiling much would cost more than it saves.
                command.args(["-XX:TieredStopAtLevel=1", "-cp"]);
                command.arg(format!("{0}/peer.jar:{0}/lib/*", folder.display())).arg("Peer");
                Ok(command)
            }
        }
    }
}
