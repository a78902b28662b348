//! Each client as it is when it was just installed: what is said to it is where its files are, which port is its own, and how tests reach its
//! controls. What is off by default, and a cell is about, is turned on, and [`Client::is_by_default`] says so.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::lan::{LISTEN_PORT, Lan};
use super::{Found, at_home};
use crate::net::Namespace;
use crate::peers::{anabranch, checkout, installed, libtorrent, rqbit};
use crate::process::Process;
use crate::{Error, Result};

/// Where daemons are told what to do, inside their host.
const CONTROL_PORT: u16 = 9091;
/// How long a daemon may take to answer.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Who is at an end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Ours.
    Ours,
    /// libtorrent, with its own defaults.
    Libtorrent,
    /// qBittorrent without a window.
    QBittorrent,
    /// Deluge's daemon.
    Deluge,
    /// Transmission's daemon.
    Transmission,
    /// rtorrent.
    Rtorrent,
    /// aria2.
    Aria2,
    /// WebTorrent on Node.js.
    WebTorrent,
    /// rqbit.
    Rqbit,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Has the content.
    Share,
    /// Wants it.
    Fetch,
}

/// A node of the distributed hash table, for clients that know none.
#[derive(Clone, Copy, Debug)]
pub struct Entry(pub SocketAddrV4);

/// Where a client runs.
pub struct Site<'a> {
    /// Its host.
    pub inside: &'a Namespace,
    /// Its address.
    pub address: Ipv4Addr,
    /// A folder for its own files.
    pub state: &'a Path,
    /// It is to use the table.
    pub entry: Option<Entry>,
    /// It is to use local discovery.
    pub lsd: bool,
}

impl Client {
    /// All but ours.
    pub const OTHERS: [Self; 8] = [
        Self::QBittorrent,
        Self::Deluge,
        Self::Libtorrent,
        Self::Transmission,
        Self::Rtorrent,
        Self::Aria2,
        Self::WebTorrent,
        Self::Rqbit,
    ];

    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "Anabranch",
            Self::Libtorrent => "libtorrent",
            Self::QBittorrent => "qBittorrent",
            Self::Deluge => "Deluge",
            Self::Transmission => "Transmission",
            Self::Rtorrent => "rtorrent",
            Self::Aria2 => "aria2",
            Self::WebTorrent => "WebTorrent",
            Self::Rqbit => "rqbit",
        }
    }

    /// Whether it uses that way of finding peers without being told to.
    pub fn is_by_default(self, found: Found) -> bool {
        match found {
            Found::Tracker => true,
            Found::Dht => !matches!(self, Self::Rtorrent | Self::Aria2),
            Found::Lsd => !matches!(self, Self::Transmission | Self::Aria2),
        }
    }

    /// Starts it. `source` is a torrent or a link, `data` the folder with the content or for it.
    ///
    /// # Errors
    /// When it is missing or does not come up.
    pub fn start(self, site: &Site<'_>, role: Role, source: &str, data: &Path) -> Result<Process> {
        match self {
            Self::Ours => ours(site, role, source, data),
            Self::Libtorrent => libtorrent(site, role, source, data),
            Self::QBittorrent => qbittorrent(site, role, source, data),
            Self::Deluge => deluge(site, source, data),
            Self::Transmission => transmission(site, source, data),
            Self::Rtorrent => rtorrent(site, source, data),
            Self::Aria2 => aria2(site, role, source, data),
            Self::WebTorrent => webtorrent(site, source, data),
            Self::Rqbit => rqbit(site, source, data),
        }
    }
}

impl Site<'_> {
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        at_home(self.inside.command(program), self.state)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.state.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
        }
        std::fs::write(&path, text).map_err(Error::file(path))
    }

    /// Says `words` to a daemon until it does what they say.
    fn tell(&self, daemon: &mut Process, mut words: impl FnMut() -> Result<Command>, done: &str) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match Process::run("the control of a daemon", &mut words()?, START_LIMIT) {
                Ok((lines, _)) if lines.iter().any(|line| line.text.contains(done)) => return Ok(()),
                answer if daemon.has_ended() || Instant::now() > deadline => {
                    let said =
                        answer.map(|(lines, _)| lines.into_iter().map(|line| line.text + "\n").collect::<String>());
                    let what = said.unwrap_or_else(|error| error.to_string()) + &daemon.log();
                    return Err(Error::Nonsense { name: "the control of a daemon".into(), what });
                }
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }
}

fn ours(site: &Site<'_>, role: Role, source: &str, data: &Path) -> Result<Process> {
    let mut command = anabranch::command(Some(site.inside))?;
    for name in ["ANABRANCH_DHT", "ANABRANCH_LSD", "ANABRANCH_PORT_MAPPING"] {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", site.state);
    match role {
        Role::Share => command.args(["share", source, "--json", "--data"]).arg(data),
        Role::Fetch => command.args(["get", source, "--json", "-o"]).arg(data),
    };
    Process::spawn("anabranch", &mut command)
}

fn libtorrent(site: &Site<'_>, role: Role, source: &str, data: &Path) -> Result<Process> {
    let mut command = at_home(libtorrent::command(Some(site.inside))?, site.state);
    let mode = if role == Role::Share { "seed" } else { "leech" };
    command.args([mode, source, "--defaults", "--stay", "--dht", "--lsd", "--data"]).arg(data);
    command.args(["--listen", &format!("{}:{LISTEN_PORT}", site.address)]);
    Process::spawn("libtorrent", &mut command)
}

fn qbittorrent(site: &Site<'_>, role: Role, source: &str, data: &Path) -> Result<Process> {
    let settings = format!(
        "[LegalNotice]\nAccepted=true\n[BitTorrent]\nSession\\Port={LISTEN_PORT}\n\
         [Preferences]\nWebUI\\Address=127.0.0.1\nWebUI\\Port={CONTROL_PORT}\n"
    );
    site.write("qBittorrent/config/qBittorrent.conf", &settings)?;
    let mut command = site.command(installed("qbittorrent-nox")?);
    command.arg(format!("--profile={}", site.state.display())).arg(format!("--save-path={}", data.display()));
    command.args((role == Role::Share).then_some("--skip-hash-check")).arg(source);
    Process::spawn("qbittorrent", &mut command)
}

fn deluge(site: &Site<'_>, source: &str, data: &Path) -> Result<Process> {
    let settings = json!({
        "listen_ports": [LISTEN_PORT, LISTEN_PORT],
        "random_port": false,
        "daemon_port": CONTROL_PORT,
        "download_location": data,
    });
    site.write("core.conf", &format!("{{\"file\": 1, \"format\": 1}}{settings}"))?;
    let mut command = site.command(installed("deluged")?);
    let mut daemon = Process::spawn("deluged", command.arg("-d").arg("-c").arg(site.state).args(["-L", "info"]))?;
    let add = format!("connect 127.0.0.1:{CONTROL_PORT} ; add -p \"{}\" \"{source}\"", data.display());
    let console = || {
        let mut command = site.command(installed("deluge-console")?);
        command.arg("-c").arg(site.state).arg(&add);
        Ok(command)
    };
    site.tell(&mut daemon, console, "added")?;
    Ok(daemon)
}

fn transmission(site: &Site<'_>, source: &str, data: &Path) -> Result<Process> {
    let mut settings = json!({
        "download-dir": data,
        "peer-port": LISTEN_PORT,
        "rpc-bind-address": "127.0.0.1",
        "rpc-enabled": true,
        "rpc-port": CONTROL_PORT,
        "rpc-whitelist-enabled": false,
        "rpc-host-whitelist-enabled": false,
    });
    if site.lsd {
        settings["lpd-enabled"] = true.into();
    }
    site.write("settings.json", &settings.to_string())?;
    if site.entry.is_some() {
        // Without what an earlier run leaves behind it waits for some forty seconds, and then as long again.
        let nodes = Lan::nodes().map(|node| [&node.ip().octets()[..], &node.port().to_be_bytes()].concat());
        let nodes = nodes.collect::<Vec<_>>().concat();
        let mut table = format!("d2:id20:abcdefghij01234567895:nodes{}:", nodes.len()).into_bytes();
        table.extend([&nodes[..], b"e"].concat());
        let path = site.state.join("dht.dat");
        std::fs::write(&path, table).map_err(Error::file(path))?;
    }
    let mut command = site.command(installed("transmission-daemon")?);
    command.args(["--foreground", "--config-dir"]).arg(site.state);
    let mut daemon = Process::spawn("transmission", &mut command)?;
    let remote = || {
        let mut command = site.command(installed("transmission-remote")?);
        command.arg(format!("127.0.0.1:{CONTROL_PORT}")).arg("-w").arg(data).args(["-a", source]);
        Ok(command)
    };
    site.tell(&mut daemon, remote, "success")?;
    Ok(daemon)
}

fn rtorrent(site: &Site<'_>, source: &str, data: &Path) -> Result<Process> {
    let session = site.state.join("session");
    std::fs::create_dir_all(&session).map_err(Error::file(&session))?;
    let table = match site.entry {
        Some(Entry(node)) => {
            // Which is left aside until a download has begun.
            format!("dht.mode.set = auto\ndht.port.set = {LISTEN_PORT}\nschedule2 = node,1,5,\"dht.add_node={node}\"\n")
        }
        None => String::new(),
    };
    let text = format!(
        "system.daemon.set = true\ndirectory.default.set = \"{}\"\nsession.path.set = \"{}\"\n\
         network.port_range.set = {LISTEN_PORT}-{LISTEN_PORT}\nnetwork.port_random.set = no\n{table}\
         schedule2 = load,0,0,\"load.start_verbose={source}\"\n",
        data.display(),
        session.display(),
    );
    site.write("rtorrent.rc", &text)?;
    let mut command = site.command(installed("rtorrent")?);
    command.arg("-n").arg("-o").arg(format!("import={}", site.state.join("rtorrent.rc").display()));
    Process::spawn("rtorrent", &mut command)
}

fn aria2(site: &Site<'_>, role: Role, source: &str, data: &Path) -> Result<Process> {
    let mut command = site.command(installed("aria2c")?);
    command.arg("--no-conf=true").arg(format!("--dir={}", data.display()));
    command.arg(format!("--listen-port={LISTEN_PORT}")).arg(format!("--dht-listen-port={LISTEN_PORT}"));
    if role == Role::Share {
        command.args(["--check-integrity=true", "--seed-ratio=0.0"]);
    }
    if let Some(Entry(node)) = site.entry {
        command.arg(format!("--dht-entry-point={node}"));
    }
    if site.lsd {
        command.arg("--bt-enable-lpd=true");
    }
    Process::spawn("aria2", command.arg(source))
}

fn webtorrent(site: &Site<'_>, source: &str, data: &Path) -> Result<Process> {
    let folder = checkout().join(".deps/webtorrent");
    if !folder.join("node_modules/webtorrent").exists() {
        let remedy = "`crates/testbed/peers/install.sh clients` installs it".into();
        return Err(Error::Missing { what: "WebTorrent".into(), remedy });
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/peer_webtorrent.mjs");
    let mut command = site.command(installed("node")?);
    command.arg(script).arg(folder).arg(source).arg(data).arg(LISTEN_PORT.to_string()).arg("defaults");
    Process::spawn("webtorrent", &mut command)
}

fn rqbit(site: &Site<'_>, source: &str, data: &Path) -> Result<Process> {
    let mut command = site.command(rqbit::program()?);
    command.args(["--listen-port", &LISTEN_PORT.to_string(), "download", "--overwrite", "-o"]).arg(data).arg(source);
    Process::spawn("rqbit", &mut command)
}
