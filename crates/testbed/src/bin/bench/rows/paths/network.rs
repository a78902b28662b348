//! A network in this process, and programs on its hosts.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_lab::run::{PathLog, PathLogReader};
use anabranch_paths::IsdAs;
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::{Process, Usage};
use anabranch_testbed::{Result, data};

use super::nonsense;
use crate::workspace::Workspace;

/// Where content is, and where it goes, in networks of two ASes.
pub(super) const SENDER: &str = "1-ff00:0:110";
pub(super) const RECEIVER: &str = "1-ff00:0:111";
/// The addresses of these networks begin here; rows run one after the other.
const NETWORK: &str = "127.140.0.0";
/// How long a program may take to be up, on a machine that is busy with another.
const START_LIMIT: Duration = Duration::from_secs(30);

/// By which protocol a file moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    /// As a torrent.
    BitTorrent,
    /// In chunks of 1 KiB.
    Ppspp,
    /// By `send` to `receive`, which calls, and so chooses the paths.
    Bulk,
}

/// A link that is a path of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wire {
    /// `None`: as fast as the machine.
    pub rate_mbps: Option<u32>,
    /// In each direction.
    pub delay_ms: u32,
}

impl Wire {
    /// Nothing but the machine.
    pub(super) const UNLIMITED: Self = Self { rate_mbps: None, delay_ms: 0 };

    pub(super) const fn new(rate_mbps: u32, delay_ms: u32) -> Self {
        Self { rate_mbps: Some(rate_mbps), delay_ms }
    }
}

/// Two ASes that these links join.
pub(super) fn parallel(wires: &[Wire]) -> Result<PathsNetwork> {
    let mut text = format!("[as.'{SENDER}']\ncore = true\n[as.'{RECEIVER}']\n");
    for wire in wires {
        let rate = wire.rate_mbps.map_or("none".to_owned(), |rate| format!("{rate} Mbit/s"));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "[[link]]\nparent = '{SENDER}'\nchild = '{RECEIVER}'\nrate = '{rate}'\ndelay = '{} ms'",
            wire.delay_ms
        );
    }
    PathsNetwork::new(&text)
}

/// A running network.
pub(super) struct PathsNetwork {
    pub network: Network,
}

impl PathsNetwork {
    /// `topology` is TOML without the addresses.
    pub(super) fn new(topology: &str) -> Result<Self> {
        let text = format!("network = '{NETWORK}'\n{topology}");
        let topology = Topology::from_toml("bench.toml", &text).map_err(nonsense)?;
        Ok(Self { network: Network::start(topology, Options::default()).map_err(nonsense)? })
    }

    /// Where an AS's daemon is.
    fn daemon(&self, isd_as: &str) -> Result<String> {
        let number: IsdAs = isd_as.parse().map_err(nonsense)?;
        let home = self.network.topology().get(number).ok_or_else(|| nonsense("no such AS"))?;
        Ok(home.daemon.to_string())
    }

    /// `anabranch NAME` at host `host` of an AS.
    pub(super) fn command(&self, name: &str, isd_as: &str, host: usize) -> Result<Command> {
        let number: IsdAs = isd_as.parse().map_err(nonsense)?;
        let home = self.network.topology().get(number).ok_or_else(|| nonsense("no such AS"))?;
        let address = home.hosts.get(host).ok_or_else(|| nonsense("no such host"))?.address;
        let mut command = anabranch::command(None)?;
        command.args([name, "--json", "--listen", &format!("[{isd_as},{address}]:0")]);
        command.args(["--sciond", &home.daemon.to_string()]);
        Ok(command)
    }

    /// Shares a file from a host; the program and the magnet link, which names its address.
    pub(super) fn share(&self, isd_as: &str, content: &Path, flags: &[&str]) -> Result<(Process, String)> {
        self.share_by(Protocol::BitTorrent, isd_as, content, flags)
    }

    /// The same by any protocol; its own kind of link.
    pub(super) fn share_by(
        &self,
        protocol: Protocol,
        isd_as: &str,
        content: &Path,
        flags: &[&str],
    ) -> Result<(Process, String)> {
        let (name, own, event, field): (&str, &[&str], &str, &str) = match protocol {
            Protocol::BitTorrent => ("share", &[], "started", "magnet"),
            Protocol::Ppspp => ("share", &["--ppspp"], "started", "link"),
            Protocol::Bulk => ("send", &[], "ticket", "ticket"),
        };
        let mut command = self.command(name, isd_as, 0)?;
        let mut process = Process::spawn(format!("anabranch {name}"), command.args(own).arg(content).args(flags))?;
        let (event, _) = process.wait_event(event, START_LIMIT)?;
        let link = event[field].as_str().ok_or_else(|| nonsense("no link"))?.to_owned();
        Ok((process, link))
    }
}

/// A file of so many bytes, made when first asked for.
fn content(workspace: &Workspace, bytes: u64) -> Result<PathBuf> {
    let content = workspace.keep("paths")?.join(format!("{bytes}.bin"));
    if !content.exists() {
        data::make_file(&content, bytes, bytes)?;
    }
    Ok(content)
}

/// One file on its way from the sender's AS to the receiver's.
pub(super) struct Transfer {
    pub getter: Process,
    pub sharer: Process,
    log: PathLogReader,
    content: PathBuf,
    out: PathBuf,
    sharer_cpu: Duration,
}

/// What came of it.
pub(super) struct Arrived {
    pub log: PathLog,
    /// From the start of the program to its end.
    pub usage: Usage,
    pub sharer_cpu: Duration,
}

impl Transfer {
    /// Begins to fetch `bytes` as a torrent; both sides get `flags`.
    pub(super) fn start(
        workspace: &mut Workspace,
        network: &PathsNetwork,
        ends: [&str; 2],
        bytes: u64,
        flags: &[&str],
    ) -> Result<Self> {
        Self::start_by(Protocol::BitTorrent, workspace, network, ends, bytes, flags)
    }

    /// The same by any protocol; in bulk, the receiver alone gets `flags`.
    pub(super) fn start_by(
        protocol: Protocol,
        workspace: &mut Workspace,
        network: &PathsNetwork,
        ends: [&str; 2],
        bytes: u64,
        flags: &[&str],
    ) -> Result<Self> {
        let (content, out, keys) = (content(workspace, bytes)?, workspace.out()?, workspace.keep("keys")?);
        let [own, theirs] = ["sender", "receiver"].map(|name| keys.join(name).display().to_string());
        let keyed = ["--key", own.as_str()];
        let (shares, mut command) = match protocol {
            Protocol::BitTorrent | Protocol::Ppspp => (flags, network.command("get", ends[1], 0)?),
            Protocol::Bulk => {
                let mut command = anabranch::command(None)?;
                command.args(["receive", "--json", "--sciond", &network.daemon(ends[1])?, "--key", &theirs]);
                (&keyed[..], command)
            }
        };
        let (sharer, link) = network.share_by(protocol, ends[0], &content, shares)?;
        let log = out.join("paths.csv");
        let sharer_cpu = sharer.cpu_so_far().unwrap_or_default();
        command.arg(&link).arg("-o").arg(&out).arg("--path-log").arg(&log).args(flags);
        let getter = Process::spawn("the receiving anabranch", &mut command)?;
        Ok(Self { getter, sharer, log: PathLogReader::new(&log), content, out, sharer_cpu })
    }

    /// Where the log is now: its clock starts with the program, as nearly as matters here.
    pub(super) fn seconds(&self) -> f64 {
        self.getter.started().elapsed().as_secs_f64()
    }

    /// Waits until the log is at `seconds`.
    pub(super) fn sleep_until(&self, seconds: f64) {
        std::thread::sleep(Duration::from_secs_f64((seconds - self.seconds()).max(0.0)));
    }

    /// The log as far as it is written.
    pub(super) fn log(&mut self) -> Result<&PathLog> {
        self.log.poll().map_err(nonsense)?;
        Ok(&self.log.log)
    }

    /// Waits until payload comes; answers when.
    pub(super) fn wait_flowing(&mut self) -> Result<f64> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            if self.log()?.series.iter().any(|series| series.bytes() > 0) {
                return Ok(self.seconds());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(nonsense(format!("nothing comes:\n{}", self.getter.log())))
    }

    /// Waits for the end, and compares the files.
    pub(super) fn finish(mut self, limit: Duration) -> Result<Arrived> {
        let usage = self.getter.wait_success(limit)?;
        let name = self.content.file_name().unwrap_or_default();
        if !data::same_file(&self.content, &self.out.join(name))? {
            return Err(nonsense("what arrived differs"));
        }
        self.end(usage)
    }

    /// Ends it before it is complete.
    pub(super) fn stop(mut self) -> Result<Arrived> {
        let usage = self.getter.stop()?;
        self.end(usage)
    }

    fn end(self, usage: Usage) -> Result<Arrived> {
        let sharer_cpu = self.sharer.cpu_so_far().unwrap_or_default().saturating_sub(self.sharer_cpu);
        Ok(Arrived { log: self.log.finish().map_err(nonsense)?, usage, sharer_cpu })
    }
}
