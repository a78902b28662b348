//! Two hosts and a third one in one network, which is nobody else's: an Ethernet with local discovery's multicast, a default route that leads
//! nowhere, and the names of the public nodes of the distributed hash table, which are the third host's.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use crate::net::{self, Namespace};
use crate::process::Process;
use crate::{Error, Result};

/// Where clients listen, all of them.
pub const LISTEN_PORT: u16 = 6881;
/// Names that clients enter the table by.
const NODES: &str =
    "dht.libtorrent.org router.bittorrent.com router.utorrent.com dht.transmissionbt.com dht.aelitis.com";
/// The other port that they do so at.
const NODE_PORT: u16 = 25401;
/// In every host.
const DEVICE: &str = "lan0";
/// Nodes of the table at the third host: who knows fewer than nine does not ask them for peers (Transmission 3.00).
const NODES_LEN: u8 = 12;
const LIMIT: Duration = Duration::from_secs(20);

/// The network.
pub struct Lan {
    /// Who shares.
    pub share: Namespace,
    /// Who fetches.
    pub fetch: Namespace,
    /// Who brings them together.
    pub third: Namespace,
    switch: Namespace,
    folders: Vec<PathBuf>,
}

impl Lan {
    /// The address of [`Self::share`].
    pub const SHARE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
    /// The address of [`Self::fetch`].
    pub const FETCH: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
    /// The address of [`Self::third`].
    pub const THIRD: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 3);

    /// Makes it.
    ///
    /// # Errors
    /// When this process may not, or a program is missing.
    pub fn new() -> Result<Self> {
        net::need_root()?;
        let (share, fetch, third, switch) =
            (Namespace::new()?, Namespace::new()?, Namespace::new()?, Namespace::new()?);
        let mut lan = Self { share, fetch, third, switch, folders: Vec::new() };
        let ip = |words: &str| {
            let mut command = lan.switch.command("ip");
            Process::run("ip", command.args(words.split(' ')), LIMIT)
        };
        ip("link add bridge0 type bridge")?;
        ip("link set bridge0 up")?;
        for (number, (host, address)) in lan.hosts().into_iter().enumerate() {
            let port = format!("port{number}");
            lan.switch.link(&port, host)?;
            let mut rename = host.command("ip");
            Process::run("ip", rename.args(["link", "set", &port, "name", DEVICE]), LIMIT)?;
            host.device_up(DEVICE, &format!("{address}/24"), "10.9.0.0/24", 1500)?;
            host.route("default", DEVICE, None, 1)?;
            ip(&format!("link set {port} master bridge0"))?;
            ip(&format!("link set {port} up"))?;
        }
        // `ip netns exec` lays them over the machine's own.
        let mut folders = Vec::new();
        for (host, _) in lan.hosts() {
            let folder = PathBuf::from("/etc/netns").join(host.name());
            std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
            folders.push(folder.clone());
            let mut hosts = "127.0.0.1 localhost\n".to_owned();
            let _ = writeln!(hosts, "{} {NODES}", Self::THIRD);
            // Nobody answers there, which is said at once.
            let resolv = format!("nameserver {}\noptions timeout:1 attempts:1\n", Self::THIRD);
            for (name, text) in [("hosts", hosts), ("resolv.conf", resolv)] {
                std::fs::write(folder.join(name), text).map_err(Error::file(folder.join(name)))?;
            }
        }
        lan.folders = folders;
        Ok(lan)
    }

    fn hosts(&self) -> [(&Namespace, Ipv4Addr); 3] {
        [(&self.share, Self::SHARE), (&self.fetch, Self::FETCH), (&self.third, Self::THIRD)]
    }

    /// Where the nodes of the table are: each at an address of its own of the third host, the first at its usual one.
    pub fn nodes() -> impl Iterator<Item = SocketAddrV4> {
        (0..NODES_LEN).map(|number| {
            let [a, b, c, d] = Self::THIRD.octets();
            SocketAddrV4::new(Ipv4Addr::new(a, b, c, d + number), LISTEN_PORT)
        })
    }

    /// Gives the third host the addresses of all nodes, and has it answer at both ports of the public ones.
    ///
    /// # Errors
    /// When `nft` fails.
    pub fn lead_to_nodes(&self) -> Result<()> {
        let rules = format!(
            "table ip nodes {{
                chain arrive {{
                    type nat hook prerouting priority -100
                    udp dport {NODE_PORT} redirect to :{LISTEN_PORT}
                }}
            }}\n"
        );
        for node in Self::nodes().skip(1) {
            self.third.add_address(DEVICE, &format!("{}/24", node.ip()))?;
        }
        Process::run("nft", self.third.command("nft").arg(rules), LIMIT).map(|_| ())
    }

    /// Bytes that have come to who fetches, headers included.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn received_bytes(&self) -> Result<u64> {
        self.fetch.enter(received_here)
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for folder in &self.folders {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Bytes that have come by the host's device, in its namespace.
pub(super) fn received_here() -> Result<u64> {
    let path = "/proc/thread-self/net/dev";
    let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
    let received = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        (name.trim() == DEVICE).then(|| counts.split_whitespace().next()?.parse().ok()).flatten()
    };
    let nonsense = || Error::Nonsense { name: path.into(), what: text.clone() };
    text.lines().find_map(received).ok_or_else(nonsense)
}
