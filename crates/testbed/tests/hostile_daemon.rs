//! Daemons that lie about paths, ASes that answer late: what a host believes of them, and where it sends packets.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::{As, Topology};
use anabranch_paths::{Endpoint, IsdAs};
use anabranch_testbed::fixture::{Content, Fixture, Maker};
use anabranch_testbed::hostile_daemon::{DaemonTrick, HostileDaemon};
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::{anabranch, checkout};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result};

const LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
/// More than this is not bounded memory for an answer of some MiB.
const RSS_BYTES_MAX: u64 = 160 * MIB;
const CORE: &str = "1-ff00:0:110";
const SHARER: &str = "1-ff00:0:111";
const GETTER: &str = "1-ff00:0:112";
/// Where nobody has a router: the first one is a documentation address (RFC 5737).
const PUBLIC: &str = "192.0.2.1:30042";
const EXIT_NETWORK: i32 = 6;

fn must<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// A network of its own addresses, so that tests run beside each other.
fn network(first: &str) -> Network {
    let text = must(std::fs::read_to_string(checkout().join("topologies/line.toml")));
    let topology = must(Topology::from_toml("line.toml", &format!("network = '{first}'\n{text}")));
    must(Network::start(topology, Options::default()))
}

fn home<'a>(network: &'a Network, isd_as: &str) -> &'a As {
    network.topology().get(must(isd_as.parse())).expect("the AS is in the topology")
}

fn host(network: &Network, isd_as: &str) -> String {
    format!("{isd_as},{}", home(network, isd_as).hosts[0].address)
}

fn command(daemon: SocketAddr, verb: &str) -> Command {
    let mut command = must(anabranch::command(None));
    command.args([verb, "--sciond", &daemon.to_string()]);
    command
}

/// Runs it to its end: how it ended, and what it said.
fn end(mut process: Process, what: &str) -> (Option<i32>, String) {
    let usage = must(process.wait(LIMIT));
    let log = process.log();
    assert!(usage.rss_bytes_max < RSS_BYTES_MAX, "{what}: {} bytes\n{log}", usage.rss_bytes_max);
    assert!(usage.status.code().is_some() && !log.contains("panicked"), "{what}: {}\n{log}", usage.status);
    (usage.status.code(), log)
}

/// Shares in one AS, known at an address of it.
fn share(network: &Network, daemon: SocketAddr, fixture: &Fixture) -> (Process, String) {
    let mut command = command(daemon, "share");
    command.args(["--json", "--listen", &format!("[{}]:0", host(network, SHARER))]);
    command.arg(&fixture.torrent).arg("--data").arg(&fixture.data);
    let mut sharer = must(Process::spawn("anabranch share", &mut command));
    let (event, _) = must(sharer.wait_event("listening", LIMIT));
    let address = event["address"].as_str().unwrap_or_default().to_owned();
    assert!(must(address.parse::<Endpoint>()).as_scion().is_some(), "{event}");
    (sharer, address)
}

fn get(network: &Network, daemon: SocketAddr, fixture: &Fixture, peers: &[String], out: &Path) -> Process {
    let mut command = command(daemon, "get");
    command.args(["--json", "--listen", &format!("[{}]:0", host(network, GETTER))]);
    command.arg(&fixture.torrent).arg("-o").arg(out);
    peers.iter().for_each(|peer| _ = command.args(["--peer", peer]));
    command.args(["--give-up", "20s"]);
    must(Process::spawn("anabranch get", &mut command))
}

/// Lies that can be told from the truth: those whose paths are of no use.
fn plain_lies() -> Vec<DaemonTrick> {
    use DaemonTrick::{Elsewhere, Expired, ForEver, Interfaces, NextHop, NoMtu, Short};
    vec![Elsewhere, Interfaces, Expired, ForEver, NoMtu, Short, NextHop(must(PUBLIC.parse()))]
}

#[test]
fn what_a_daemon_lies_of_is_no_path_and_is_said() {
    let network = network("127.133.0.0");
    let behind = home(&network, GETTER).daemon;
    let broken = [DaemonTrick::Garbage, DaemonTrick::Endless, DaemonTrick::Drips];
    let running = plain_lies().into_iter().chain(broken).map(|trick| {
        let daemon = must(HostileDaemon::start(&[trick], false, behind));
        let mut paths = command(daemon.address, "paths");
        let mut ping = command(daemon.address, "ping");
        let asks = [
            must(Process::spawn("anabranch paths", paths.arg(SHARER))),
            must(Process::spawn("anabranch ping", ping.arg(host(&network, SHARER)).args(["--count", "1"]))),
        ];
        (trick, daemon, asks)
    });
    for (trick, daemon, asks) in running.collect::<Vec<_>>() {
        for ask in asks {
            let (code, log) = end(ask, &format!("{trick:?}"));
            println!("{trick:?}: {code:?} {log}");
            assert_eq!(code, Some(EXIT_NETWORK), "{trick:?}: {log}");
        }
        assert!(daemon.asked() > 0, "{trick:?}");
    }
}

#[test]
fn paths_that_look_good_and_are_not_end_in_time() {
    let network = network("127.134.0.0");
    let behind = home(&network, GETTER).daemon;
    for trick in [DaemonTrick::Macs, DaemonTrick::Thousands, DaemonTrick::Duplicates, DaemonTrick::HugeMtu] {
        let daemon = must(HostileDaemon::start(&[trick], false, behind));
        let mut paths = command(daemon.address, "paths");
        let (code, log) = end(must(Process::spawn("anabranch paths", paths.arg(SHARER).arg("--json"))), "paths");
        let found = log.lines().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let count = found.and_then(|found| found["paths"].as_array().map(Vec::len)).unwrap_or(0);
        println!("{trick:?}: {code:?}, {count} paths");
        assert!((1..=512).contains(&count), "{trick:?}: {count} paths\n{log}");
    }
}

#[test]
fn a_transfer_goes_on_past_what_daemons_lie_of() {
    let network = network("127.135.0.0");
    let fixture = must(Fixture::new(Content::Bytes(4 * MIB), "1", Maker::Ours, None));
    let mut lies = plain_lies();
    lies.extend([DaemonTrick::Duplicates, DaemonTrick::HugeMtu]);
    let liar = |isd_as| must(HostileDaemon::start(&lies, true, home(&network, isd_as).daemon));
    let liars = [liar(SHARER), liar(GETTER)];
    let (mut sharer, address) = share(&network, liars[0].address, &fixture);
    let out = must(fixture.folder("out"));
    let mut get = get(&network, liars[1].address, &fixture, &[address], &out);
    must(get.wait_event("finished", LIMIT));
    must(get.wait_success(LIMIT));
    must(fixture.check(&out));
    assert!(!sharer.has_ended() && liars[1].asked() > 0, "{}", sharer.log());
}

#[test]
fn who_answers_late_keeps_nobody_from_those_who_answer_in_time() {
    let network = network("127.136.0.0");
    let fixture = must(Fixture::new(Content::Bytes(4 * MIB), "1", Maker::Ours, None));
    let behind = home(&network, GETTER).daemon;
    let late: IsdAs = must(CORE.parse());
    let daemon = must(HostileDaemon::start(&[DaemonTrick::Late(late)], true, behind));
    let (_sharer, address) = share(&network, home(&network, SHARER).daemon, &fixture);
    let out = must(fixture.folder("out"));
    // More of the late one than lookups are made at once.
    let mut peers: Vec<String> = (1..20).map(|port| format!("[{}]:{port}", host(&network, CORE))).collect();
    peers.push(address);
    let mut get = get(&network, daemon.address, &fixture, &peers, &out);
    must(get.wait_event("finished", LIMIT));
    must(fixture.check(&out));
    // Who asks for that AS alone is told, in time.
    let (code, log) = end(must(Process::spawn("anabranch paths", command(daemon.address, "paths").arg(CORE))), "late");
    assert!(code == Some(EXIT_NETWORK) && log.contains("did not answer within"), "{code:?}: {log}");
}

#[test]
fn nothing_is_sent_to_who_is_no_router() {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    // What the host may reach: a network of its own, and the world, where somebody waits for what should not come.
    let (here, world) = (must(Namespace::new()), must(Namespace::new()));
    must(here.link("world", &world));
    must(here.device_up("world", "10.67.0.1/24", "10.67.0.0/24", 1500));
    must(world.device_up("world", "10.67.0.2/24", "10.67.0.0/24", 1500));
    must(world.add_address("world", "192.0.2.1/32"));
    must(here.route("192.0.2.0/24", "world", Some("10.67.0.2"), 0));
    let bind = |address: &str| {
        let socket = UdpSocket::bind(address).map_err(Error::system("a trap"))?;
        socket.set_nonblocking(true).map_err(Error::system("a trap"))?;
        Ok(socket)
    };
    let public = must(world.enter(|| bind(PUBLIC)));
    must(here.enter(|| {
        // The network's addresses are this namespace's, and not of the loopback: packets could leave.
        let mut route = Command::new("ip");
        Process::run("ip", route.args(["route", "add", "local", "10.68.0.0/16", "dev", "lo"]), LIMIT)?;
        let loopback = bind("127.0.0.1:0")?;
        let trap = loopback.local_addr().map_err(Error::system("a trap"))?;
        let network = network("10.68.0.0");
        let host = home(&network, GETTER).hosts[0].address;
        // The traps work.
        let sender = UdpSocket::bind((host, 0)).map_err(Error::system("a socket"))?;
        for (to, socket) in [(must(PUBLIC.parse()), &public), (trap, &loopback)] {
            sender.send_to(b"hello", to).map_err(Error::system("sending"))?;
            std::thread::sleep(Duration::from_millis(200));
            assert!(socket.recv(&mut [0; 100]).is_ok(), "a datagram to {to} arrives");
        }
        let fixture = Fixture::new(Content::Bytes(MIB), "1", Maker::Ours, None)?;
        let tricks = [DaemonTrick::NextHop(must(PUBLIC.parse())), DaemonTrick::NextHop(trap)];
        for and_truth in [false, true] {
            let daemon = HostileDaemon::start(&tricks, and_truth, home(&network, GETTER).daemon)?;
            let (mut paths, mut ping) = (command(daemon.address, "paths"), command(daemon.address, "ping"));
            end(Process::spawn("anabranch paths", paths.args([SHARER, "--extended"]))?, "paths");
            let to = self::host(&network, SHARER);
            end(Process::spawn("anabranch ping", ping.arg(to).args(["--count", "1"]))?, "ping");
            let (_sharer, address) = share(&network, home(&network, SHARER).daemon, &fixture);
            let out = fixture.folder(&format!("out-{and_truth}"))?;
            let mut get = get(&network, daemon.address, &fixture, &[address], &out);
            if and_truth {
                get.wait_event("finished", LIMIT)?;
                fixture.check(&out)?;
            } else {
                end(get, "get");
            }
        }
        for (at, socket) in [("the world", &public), ("the loopback", &loopback)] {
            assert!(socket.recv(&mut [0; 100]).is_err(), "{at} got a packet");
        }
        Result::Ok(())
    }));
}
