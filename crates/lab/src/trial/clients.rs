//! How each kind of peer is started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::bed::program::bare;
use crate::bed::{BedError, Host, Routing};
use crate::plan::client::{installed, python};
use crate::plan::{Candidate, Client, Role, rate_bytes};

/// Where peers listen.
const IP_PORT: u16 = 6881;
/// The first of the ports that SCION's end hosts have.
const SCION_PORT: u16 = 31000;
/// The run's tracker, where clients need one, at the first seed's host.
pub(crate) const TRACKER_PORT: u16 = 6969;
const IPERF_PORT: u16 = 5201;
pub(super) const GRIDFTP_PORT: u16 = 2811;
/// The content's file, in the folder of the content and in those of who fetches it.
pub(super) const CONTENT: &str = "content.bin";

/// The driver of libtorrent.
const LIBTORRENT: &str = include_str!("peer_libtorrent.py");

/// What a peer is told.
pub(super) struct PeerSetup<'a> {
    pub program: &'a Path,
    pub candidate: &'a Candidate,
    pub client: Client,
    pub role: Role,
    pub host: &'a Host,
    /// Those who came before, and run something; seeds first.
    pub others: &'a [&'a Host],
    /// Everybody's, those of who comes later too.
    pub hosts: &'a [Host],
    pub torrent: &'a Path,
    /// The folder of the content, and where a leecher puts it.
    pub content: &'a Path,
    pub into: &'a Path,
    /// Where programs may leave files that outlive the run.
    pub logs: &'a Path,
    pub number: usize,
    pub content_bytes: u64,
    pub connections: Option<u32>,
    pub limits: &'a [Option<String>; 2],
    pub tracker: Option<&'a str>,
    /// What the first seed told when it started: a link, a ticket.
    pub invitation: Option<&'a str>,
    /// How many leechers there are.
    pub leechers: usize,
}

/// Where a peer is reached.
pub(super) fn address(routing: Routing, host: &Host) -> String {
    match routing {
        Routing::Scion => format!("[{},{}]:{SCION_PORT}", host.isd_as, host.address),
        _ => format!("{}:{IP_PORT}", host.address),
    }
}

/// Where a client without events leaves the time at which it was done.
pub(super) fn done_file(logs: &Path, number: usize) -> PathBuf {
    logs.join(format!("peer-{number}.done"))
}

impl PeerSetup<'_> {
    /// The command of the peer.
    ///
    /// # Errors
    /// When a file that it needs cannot be written, or it is not installed.
    pub(super) fn command(&self) -> Result<Command, BedError> {
        let mut command = match self.client {
            Client::Anabranch => self.anabranch(),
            Client::Bulk => self.bulk(),
            Client::Ppspp => self.ppspp(),
            Client::Libtorrent => self.libtorrent()?,
            Client::Aria2 => self.aria2()?,
            Client::Transmission => self.transmission()?,
            Client::Iperf3 => self.iperf3(),
            Client::GridFtp => self.gridftp()?,
        };
        self.flags(&mut command);
        if self.client == Client::GridFtp && !self.is_seed() {
            // Behind all flags.
            self.gridftp_addresses(&mut command);
        }
        Ok(command)
    }

    fn flags(&self, command: &mut Command) {
        // Those of others are settings, see `Client::has_settings`.
        let takes_flags = match self.client {
            Client::Anabranch | Client::Aria2 => true,
            // Who sends decides.
            Client::Bulk | Client::Ppspp => self.is_seed(),
            Client::Iperf3 | Client::GridFtp => !self.is_seed(),
            Client::Libtorrent | Client::Transmission => false,
        };
        if self.client == self.candidate.client && takes_flags {
            command.args(&self.candidate.flags);
        }
        // Plans give them to clients alone that read words of a command line.
        if self.client == self.candidate.client && !self.is_seed() {
            command.args(&self.candidate.leecher_flags);
        }
    }

    fn is_seed(&self) -> bool {
        self.role == Role::Seed
    }

    /// What all of ours are told.
    fn ours(&self, command: &mut Command) {
        command.arg("--json");
        // Who has a ticket calls.
        if self.client != Client::Bulk || self.is_seed() {
            command.args(["--listen", &address(self.candidate.routing, self.host)]);
        }
        if let Some(daemon) = &self.host.daemon {
            command.args(["--sciond", daemon]);
        }
    }

    fn limit(&self, command: &mut Command, flags: [Option<&str>; 2]) {
        for (flag, rate) in flags.into_iter().zip(self.limits) {
            if let (Some(flag), Some(rate)) = (flag, rate) {
                command.args([flag, rate]);
            }
        }
    }

    fn paths(&self, command: &mut Command) {
        if let Some(selector) = &self.candidate.selector {
            command.args(["--selector", selector]);
        }
        if let Some(paths) = self.candidate.paths {
            command.args(["--paths", &paths.to_string()]);
        }
    }

    fn anabranch(&self) -> Command {
        let mut command = bare(self.program);
        match self.role {
            Role::Seed => command.arg("share").arg(self.torrent).arg("--data").arg(self.content),
            Role::Leecher => command.arg("get").arg(self.torrent).arg("-o").arg(self.into).arg("--seed"),
        };
        self.ours(&mut command);
        if !self.is_seed() {
            for other in self.others {
                command.args(["--peer", &address(self.candidate.routing, other)]);
            }
            // Who shares grants as many paths as are asked for.
            self.paths(&mut command);
        }
        if let Some(connections) = self.connections {
            command.args(["--max-connections", &connections.to_string()]);
        }
        if let Some(tracker) = self.tracker {
            command.args(["--tracker", tracker]);
        }
        self.limit(&mut command, [Some("--limit-up"), Some("--limit-down")]);
        command
    }

    fn bulk(&self) -> Command {
        let mut command = bare(self.program);
        // Its key is of this run alone.
        let key = self.into.with_extension("key");
        match self.role {
            Role::Seed => {
                command.arg("send").arg(self.content.join(CONTENT));
                command.args(["--times", &self.leechers.to_string()]);
                self.limit(&mut command, [Some("--limit-up"), None]);
            }
            Role::Leecher => {
                command.arg("receive").arg(self.invitation.unwrap_or_default()).arg("-o").arg(self.into);
                self.limit(&mut command, [None, Some("--limit-down")]);
            }
        }
        command.arg("--key").arg(key);
        self.ours(&mut command);
        // The caller, who is the receiver here, chooses the paths.
        self.paths(&mut command);
        command
    }

    fn ppspp(&self) -> Command {
        let mut command = bare(self.program);
        match self.role {
            Role::Seed => command.args(["share", "--ppspp"]).arg(self.content.join(CONTENT)),
            Role::Leecher => {
                command.arg("get").arg(self.invitation.unwrap_or_default()).arg("-o").arg(self.into).arg("--seed")
            }
        };
        self.ours(&mut command);
        if !self.is_seed() {
            for other in self.others {
                command.args(["--peer", &address(self.candidate.routing, other)]);
            }
        }
        self.limit(&mut command, [Some("--limit-up"), Some("--limit-down")]);
        command
    }

    /// Limits in bytes a second.
    fn limit_bytes(&self) -> [Option<u64>; 2] {
        [0, 1].map(|way| self.limits[way].as_deref().and_then(rate_bytes))
    }

    fn libtorrent(&self) -> Result<Command, BedError> {
        let script = self.into.with_extension("py");
        fs::write(&script, LIBTORRENT).map_err(|error| BedError::file(&script, error))?;
        let mut settings = Map::new();
        if let Some(connections) = self.connections {
            settings.insert("connections_limit".into(), connections.into());
        }
        for (name, limit) in ["upload_rate_limit", "download_rate_limit"].into_iter().zip(self.limit_bytes()) {
            if let Some(limit) = limit {
                settings.insert(name.into(), limit.into());
            }
        }
        if self.client == self.candidate.client {
            settings.extend(settings_of(&self.candidate.flags));
        }
        let peers: Vec<String> = self.others.iter().map(|other| address(self.candidate.routing, other)).collect();
        let order = json!({
            "torrent": self.torrent.display().to_string(),
            "data": if self.is_seed() { self.content } else { self.into }.display().to_string(),
            "seed": self.is_seed(),
            "listen": address(self.candidate.routing, self.host),
            "peers": peers,
            "tracker": self.tracker,
            "settings": settings,
        });
        fs::create_dir_all(self.into).map_err(|error| BedError::file(self.into, error))?;
        let mut command = Command::new(python().unwrap_or_else(|| "python3".into()));
        command.arg(script).arg(order.to_string());
        Ok(command)
    }

    /// A program that writes down when it was called.
    fn hook(&self) -> Result<PathBuf, BedError> {
        let (script, done) = (self.into.with_extension("sh"), done_file(self.logs, self.number));
        let quoted = done.display().to_string().replace('\'', "'\\''");
        let text = format!("#!/bin/sh\ndate +%s.%N > '{quoted}.new' && mv '{quoted}.new' '{quoted}'\n");
        fs::write(&script, text).map_err(|error| BedError::file(&script, error))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
            .map_err(|error| BedError::file(&script, error))?;
        Ok(script)
    }

    fn aria2(&self) -> Result<Command, BedError> {
        let mut command = Command::new(installed("aria2c").unwrap_or_else(|| "aria2c".into()));
        let data = if self.is_seed() { self.content } else { self.into };
        command.arg("--no-conf=true").arg(format!("--dir={}", data.display()));
        command.arg(format!("--listen-port={IP_PORT}")).args([
            "--enable-dht=false",
            "--enable-dht6=false",
            "--bt-enable-lpd=false",
            "--bt-tracker-interval=2",
            "--seed-ratio=0.0",
            "--file-allocation=none",
            "--allow-overwrite=true",
            "--summary-interval=0",
            "--console-log-level=notice",
        ]);
        if self.is_seed() {
            command.args(["--bt-seed-unverified=true", "--check-integrity=false"]);
        } else {
            command.arg(format!("--on-bt-download-complete={}", self.hook()?.display()));
        }
        if let Some(tracker) = self.tracker {
            command.arg(format!("--bt-tracker={tracker}"));
        }
        if let Some(connections) = self.connections {
            command.arg(format!("--bt-max-peers={connections}"));
        }
        for (flag, limit) in
            ["--max-overall-upload-limit", "--max-overall-download-limit"].into_iter().zip(self.limit_bytes())
        {
            if let Some(limit) = limit {
                command.arg(format!("{flag}={limit}"));
            }
        }
        command.arg(self.torrent);
        Ok(command)
    }

    fn transmission(&self) -> Result<Command, BedError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |error| BedError::file(&path, error)
        };
        let config = self.into.with_extension("transmission");
        let watch = config.join("watch");
        for folder in [&watch, &self.into.to_path_buf()] {
            fs::create_dir_all(folder).map_err(failed(folder))?;
        }
        let [up, down] = self.limit_bytes();
        let mut settings = json!({
            "bind-address-ipv4": self.host.address.to_string(),
            "dht-enabled": false,
            "download-dir": if self.is_seed() { self.content } else { self.into },
            "incomplete-dir-enabled": false,
            "lpd-enabled": false,
            "peer-port": IP_PORT,
            "peer-port-random-on-start": false,
            "port-forwarding-enabled": false,
            "rpc-enabled": false,
            "script-torrent-done-enabled": !self.is_seed(),
            "script-torrent-done-filename": self.hook()?,
            "speed-limit-up-enabled": up.is_some(),
            "speed-limit-up": up.map_or(0, |limit| limit / 1000),
            "speed-limit-down-enabled": down.is_some(),
            "speed-limit-down": down.map_or(0, |limit| limit / 1000),
            "utp-enabled": false,
            "watch-dir": watch,
            "watch-dir-enabled": true,
        });
        if let Some(connections) = self.connections {
            settings["peer-limit-per-torrent"] = connections.into();
        }
        if let (Some(settings), true) = (settings.as_object_mut(), self.client == self.candidate.client) {
            settings.extend(settings_of(&self.candidate.flags));
        }
        let path = config.join("settings.json");
        fs::write(&path, settings.to_string()).map_err(failed(&path))?;
        // It takes what it finds there, tracker and all.
        fs::copy(self.torrent, watch.join("content.torrent")).map_err(failed(self.torrent))?;
        let mut command =
            Command::new(installed("transmission-daemon").unwrap_or_else(|| "transmission-daemon".into()));
        command.args(["--foreground", "--config-dir"]).arg(config);
        Ok(command)
    }

    fn iperf3(&self) -> Command {
        let mut command = Command::new(installed("iperf3").unwrap_or_else(|| "iperf3".into()));
        let port = IPERF_PORT.to_string();
        match self.role {
            // So that who starts it sees that it listens.
            Role::Seed => command.args(["--server", "--forceflush", "--port", &port]),
            Role::Leecher => {
                let from = self.others.first().map_or(String::new(), |host| host.address.to_string());
                command.args(["--client", &from, "--port", &port, "--reverse", "--json"]);
                command.args(["--bytes", &self.content_bytes.to_string()])
            }
        };
        command
    }

    /// In the clear, for whoever calls: both ends are in this run's network, which nobody else reaches.
    fn gridftp(&self) -> Result<Command, BedError> {
        let program = |name: &str| installed(name).unwrap_or_else(|| name.into());
        if !self.is_seed() {
            fs::create_dir_all(self.into).map_err(|error| BedError::file(self.into, error))?;
            let mut command = Command::new(program("globus-url-copy"));
            command.arg("-fast");
            return Ok(command);
        }
        // It asks for the names of who calls, and waits for an answer: it has a file of them in the place of the system's.
        let names = self.into.with_extension("hosts");
        fs::write(&names, self.names()).map_err(|error| BedError::file(&names, error))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"", "sh"]);
        command.arg(names).arg(program("globus-gridftp-server"));
        // Told an interface, it asks for that one's name, and does not start where nobody knows it.
        command.args(["-aa", "-anonymous-user", "root", "-allow-root", "-disable-usage-stats"]);
        command.args(["-p", &GRIDFTP_PORT.to_string()]);
        Ok(command)
    }

    /// Names of all hosts, of which this one has the machine's too.
    fn names(&self) -> String {
        let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let mut text = format!("127.0.0.1 localhost\n{} {}\n", self.host.address, machine.trim());
        for (number, host) in self.hosts.iter().enumerate() {
            // Sockets of IPv6 have those of IPv4 in this form.
            text += &format!("{0} peer-{number}\n::ffff:{0} peer-{number}\n", host.address);
        }
        text
    }

    fn gridftp_addresses(&self, command: &mut Command) {
        let from = self.others.first().map_or(String::new(), |host| host.address.to_string());
        command.arg(format!("ftp://{from}:{GRIDFTP_PORT}{}", in_address(&self.content.join(CONTENT))));
        command.arg(format!("file://{}", in_address(&self.into.join(CONTENT))));
    }
}

/// A path of a file in an address.
fn in_address(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let one = |byte: &u8| match byte {
        b'/' | b'-' | b'.' | b'_' | b'~' => char::from(*byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    path.as_os_str().as_bytes().iter().map(one).collect()
}

/// Flags as settings: `name=number` or `name=text`.
fn settings_of(flags: &[String]) -> Map<String, Value> {
    let one = |flag: &String| {
        let (name, value) = flag.split_once('=')?;
        Some((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
    };
    flags.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_stand_in_addresses() {
        assert_eq!(in_address(Path::new("/a b/ü%?#/c-d_1.bin")), "/a%20b/%C3%BC%25%3F%23/c-d_1.bin");
    }

    #[test]
    fn settings_of_other_clients() {
        let flags = ["a=7", "b=true", "c=x", "d"].map(str::to_owned);
        assert_eq!(Value::Object(settings_of(&flags)), json!({ "a": 7, "b": true, "c": "x" }));
    }

    /// Asks libtorrent itself what class it puts peers of a run's network into.
    #[test]
    fn libtorrent_exempts_no_peer_from_its_limits() {
        assert!(LIBTORRENT.contains("session.set_peer_class_filter(one_class())"));
        let Some(python) = python() else {
            eprintln!("not run: no Python with libtorrent (ANABRANCH_LAB_PYTHON names one)");
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("peer.py");
        fs::write(&script, LIBTORRENT).unwrap();
        let ask = "import libtorrent, runpy, sys\n\
                   alone = runpy.run_path(sys.argv[1], run_name='asked')['one_class']()\n\
                   wanted = 1 << libtorrent.session.global_peer_class_id\n\
                   assert all(alone.access(host) == wanted for host in ['10.1.3.10', '192.0.2.1', 'fd00::1', '2001:db8::1'])\n";
        let output = Command::new(python).args(["-c", ask]).arg(&script).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
