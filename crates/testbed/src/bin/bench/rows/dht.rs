//! A thousand nodes of the distributed hash table, half of them libtorrent's, behind a wire with a round trip of 100 ms: how long a
//! newcomer looks for who has a content, and what an idle node costs.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::libtorrent::{self, Libtorrent};
use anabranch_testbed::process::Process;
use anabranch_testbed::wire::{Shape, Wire};
use anabranch_testbed::{Result, net};

use crate::report::Sample;
use crate::workspace::Workspace;

/// Nodes of each kind.
const NODES: usize = 500;
/// Whom a newcomer asks first: so many of each kind.
const ENTRIES: usize = 2;
/// All nodes are below it.
const NETWORK: &str = "10.128.0.0/9";
const PORT: u16 = 6881;
const RATE_BITS: u64 = 100_000_000;
const RTT: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(120);
/// Parts of a hundred of the nodes that have found their nearest when somebody looks for something. (Of libtorrent's a few wait for minutes.)
const JOINED_PERCENT: usize = 95;
/// What a sharer has to tell nodes that it shares.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(15);
/// An idle node has had the time to join, and is watched for so long.
const IDLE_AFTER: Duration = Duration::from_secs(20);
const IDLE_FOR: Duration = Duration::from_secs(120);

/// Who looks, or rests.
#[derive(Clone, Copy)]
pub(super) enum Node {
    Ours,
    Libtorrent,
}

/// The wire, and the nodes at its right end.
struct Network {
    wire: Wire,
    entries: Vec<String>,
    /// They end with it.
    _nodes: [Process; 2],
}

/// The address of node `number`: neighbours are in different networks, for nobody takes many nodes of one.
fn address(number: usize) -> SocketAddr {
    let [high, middle, low] = [128 + number % 125, number / 125 * 29 + 1, 1 + number % 250];
    SocketAddr::new(Ipv4Addr::new(10, high as u8, middle as u8, low as u8).into(), PORT)
}

impl Network {
    fn new(workspace: &Workspace) -> Result<Self> {
        net::need_root()?;
        let wire = Wire::new(Shape::new(RATE_BITS, RTT))?;
        // All of the network is this host's, at one end; the other end finds it there.
        let mut local = wire.right.command("ip");
        Process::run("ip route", local.args(["route", "add", "local", NETWORK, "dev", "lo"]), LIMIT)?;
        wire.left.route(NETWORK, "wire0", None, 0)?;
        let of_kind = |kind: usize, count| (0..count).map(move |number| address(kind * NODES + number).to_string());
        let entries: Vec<String> = of_kind(0, ENTRIES).chain(of_kind(1, ENTRIES)).collect();
        let list = |kind| of_kind(kind, NODES).collect::<Vec<_>>().join(",");
        let mut ours = wire.right.command(workspace.floor());
        let mut ours = Process::spawn("our nodes", ours.args(["dht-nodes", &list(0), &entries.join(",")]))?;
        ours.wait_event("listening", LIMIT)?;
        let mut theirs = libtorrent::command(Some(&wire.right))?;
        theirs.args(["nodes", &list(1)]);
        theirs.args(entries.iter().flat_map(|entry| ["--dht-node", entry]));
        let mut theirs = Process::spawn("libtorrent's nodes", &mut theirs)?;
        for nodes in [&mut ours, &mut theirs] {
            let enough = NODES * JOINED_PERCENT / 100;
            nodes.wait_line("nodes that joined", LIMIT, |line| {
                let event = line.json();
                event["event"] == "joined" && event["nodes"].as_u64() >= Some(enough as u64)
            })?;
        }
        Ok(Self { wire, entries, _nodes: [ours, theirs] })
    }

    /// The flags that name whom to ask first, of ours and of the script for libtorrent alike.
    fn entry_flags(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().flat_map(|entry| ["--dht-node", entry])
    }

    /// Who shares the workspace's content, among the nodes, and has told them.
    fn sharer(&self, workspace: &Workspace) -> Result<Anabranch> {
        let listen = address(2 * NODES).to_string();
        let flags: Vec<&str> = ["--dht", "on"].into_iter().chain(self.entry_flags()).collect();
        let torrent = workspace.torrent("1")?;
        let (sharer, _) = Anabranch::share(&torrent, Some(&workspace.data), &listen, Some(&self.wire.right), &flags)?;
        std::thread::sleep(ANNOUNCED_AFTER);
        Ok(sharer)
    }
}

/// Seconds from when a newcomer listens to when the first node has told it of a peer.
pub(super) fn lookup(workspace: &mut Workspace, node: Node) -> Result<Sample> {
    let network = Network::new(workspace)?;
    let sharer = network.sharer(workspace)?;
    let (link, out) = (format!("magnet:?xt=urn:btih:{}", workspace.info_hash_hex()?), workspace.out()?);
    let (left, listen) = (Some(&network.wire.left), format!("{}:{PORT}", Wire::LEFT));
    let (mut process, begun) = match node {
        Node::Ours => {
            let flags: Vec<&str> =
                ["--dht", "on", "--listen", &listen].into_iter().chain(network.entry_flags()).collect();
            let mut process = Anabranch::get(&link, &out, &[], left, &flags)?.process;
            let (_, begun) = process.wait_event("listening", LIMIT)?;
            (process, begun)
        }
        Node::Libtorrent => {
            let flags: Vec<&str> = ["--dht"].into_iter().chain(network.entry_flags()).collect();
            // It has said that it listens.
            let process = Libtorrent::leech_with(&link, &out, &[], left, &listen, &flags)?.process;
            (process, Instant::now())
        }
    };
    let found = process.wait_line("a peer", LIMIT, |line| {
        let event = line.json();
        event["event"] == "discovered" && event["source"] == "dht" && event["peers"].as_u64() > Some(0)
    })?;
    drop((process, sharer));
    Ok(Sample { figure: (found.at - begun).as_secs_f64(), ..Sample::default() })
}

/// Bytes a second, both ways and with all headers, of who has joined and shares what nobody asks for.
pub(super) fn idle(workspace: &mut Workspace, node: Node) -> Result<Sample> {
    let network = Network::new(workspace)?;
    let (torrent, left) = (workspace.torrent("1")?, Some(&network.wire.left));
    let listen = format!("{}:{PORT}", Wire::LEFT);
    let flags = network.entry_flags();
    let process = match node {
        Node::Ours => {
            let flags: Vec<&str> = ["--dht", "on"].into_iter().chain(flags).collect();
            Anabranch::share(&torrent, Some(&workspace.data), &listen, left, &flags)?.0.process
        }
        Node::Libtorrent => {
            let flags: Vec<&str> = ["--dht"].into_iter().chain(flags).collect();
            Libtorrent::seed_with(&torrent, &workspace.data, left, &listen, &flags)?.process
        }
    };
    std::thread::sleep(IDLE_AFTER);
    let passed = || network.wire.counts().iter().map(|way| way.bytes).sum::<u64>();
    let (bytes, cpu) = (passed(), process.cpu_so_far());
    std::thread::sleep(IDLE_FOR);
    let cpu_fetch = process.cpu_so_far().zip(cpu).map(|(after, before)| (after - before).as_secs_f64());
    Ok(Sample { figure: (passed() - bytes) as f64 / IDLE_FOR.as_secs_f64(), cpu_fetch, ..Sample::default() })
}
