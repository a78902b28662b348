//! Hosts of SCION that mean harm, beside a transfer across three ASes between two that do not.
//!
//! As in `hostile_zoo.rs`, a download is limited to a rate that leaves time for attackers, and the pieces that are verified in
//! some time are counted in peace and under attack. The full form takes each kind alone: `make hostile`.

use std::time::Duration;

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_paths::{Endpoint, IsdAs, ScionAddr};
use anabranch_testbed::Result;
use anabranch_testbed::fixture::{Content, Fixture, Maker};
use anabranch_testbed::hostile_scion::{HostileHost, ScionTrick};
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::peers::checkout;
use anabranch_testbed::process::Process;

const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// What the download is limited to, and what it fetches: more than it can in the time.
const RATE_BYTES: u64 = MIB;
const CONTENT_BYTES: u64 = 64 * MIB;
/// More than this is not bounded memory for such a content.
const RSS_BYTES_MAX: u64 = 160 * MIB;
/// Packets that attackers send in a second to each victim: many for them, and few for a line.
const PACKETS_PER_SEC: u32 = 2000;
const SHARER: &str = "1-ff00:0:111";
const GETTER: &str = "1-ff00:0:112";

fn must<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// A network of its own addresses, so that tests run beside each other.
fn network(net: u8) -> Network {
    let text = must(std::fs::read_to_string(checkout().join("topologies/line.toml")));
    let topology = must(Topology::from_toml("line.toml", &format!("network = '127.{net}.0.0'\n{text}")));
    must(Network::start(topology, Options::default()))
}

/// A transfer under way.
struct Arena {
    sharer: Process,
    getter: Process,
    victims: [ScionAddr; 2],
}

impl Arena {
    fn new(network: &Network, fixture: &Fixture) -> Self {
        let out = must(fixture.folder("out"));
        must(std::fs::remove_dir_all(&out));
        let mut sharer = must(start(network, SHARER, "share", |command| {
            command.arg(&fixture.torrent).arg("--data").arg(&fixture.data);
        }));
        let shares_at = listens_at(&mut sharer);
        let mut getter = must(start(network, GETTER, "get", |command| {
            command.arg(&fixture.torrent).arg("-o").arg(&out);
            command.args(["--peer", &shares_at.to_string(), "--limit-down", &RATE_BYTES.to_string()]);
        }));
        let gets_at = listens_at(&mut getter);
        must(getter.wait_event("piece", LIMIT));
        Self { sharer, getter, victims: [shares_at, gets_at] }
    }

    /// Pieces verified in this time.
    fn pieces_in(&mut self, time: Duration) -> usize {
        self.getter.rest();
        std::thread::sleep(time);
        self.getter.rest().iter().filter(|line| line.json()["event"] == "piece").count()
    }

    fn attack(&self, network: &Network, trick: ScionTrick, packets_per_sec: u32) -> [HostileHost; 2] {
        let [one, other] = self.victims;
        let start = |(victim, peer)| must(HostileHost::start(trick, packets_per_sec, network, victim, peer));
        [(one, other), (other, one)].map(start)
    }

    /// Both live, have not grown, and have kept their connection.
    fn check(&mut self, what: &str) {
        for victim in [&mut self.sharer, &mut self.getter] {
            let rss = victim.status_bytes("VmHWM").unwrap_or(u64::MAX);
            assert!(!victim.has_ended() && rss < RSS_BYTES_MAX, "{what}: {rss} bytes\n{}", victim.log());
        }
    }
}

fn start(
    network: &Network,
    isd_as: &str,
    verb: &str,
    with: impl FnOnce(&mut std::process::Command),
) -> Result<Process> {
    let isd_as: IsdAs = must(isd_as.parse());
    let home = network.topology().get(isd_as).expect("the AS is in the topology");
    let listen = format!("[{isd_as},{}]:0", home.hosts[0].address);
    let mut command = anabranch::command(None)?;
    command.args([verb, "--json", "--listen", &listen, "--sciond", &home.daemon.to_string()]);
    with(&mut command);
    Process::spawn(format!("anabranch {verb}"), &mut command)
}

fn listens_at(process: &mut Process) -> ScionAddr {
    let (event, _) = must(process.wait_event("listening", LIMIT));
    let address = event["address"].as_str().unwrap_or_default();
    must(address.parse::<Endpoint>()).as_scion().unwrap_or_else(|| panic!("{address} is no address of SCION"))
}

/// Pieces counted before and under the attack of all `tricks`, `window` each.
fn besieged(net: u8, tricks: &[ScionTrick], window: Duration) -> (usize, usize) {
    let fixture = must(Fixture::new(Content::Bytes(CONTENT_BYTES), "1", Maker::Ours, None));
    let network = network(net);
    let mut arena = Arena::new(&network, &fixture);
    let before = arena.pieces_in(window);
    let share = PACKETS_PER_SEC / tricks.len() as u32;
    let attackers: Vec<HostileHost> = tricks.iter().flat_map(|trick| arena.attack(&network, *trick, share)).collect();
    let during = arena.pieces_in(window);
    arena.check(&format!("{tricks:?}"));
    let sent: u64 = attackers.iter().map(HostileHost::sent).sum();
    println!("{tricks:?}: {before} pieces in peace, {during} under attack by {sent} packets");
    assert!(attackers.iter().all(|attacker| attacker.sent() > 0), "{tricks:?}: nothing was sent");
    (before, during)
}

#[test]
fn a_transfer_goes_on_beside_hostile_hosts() {
    let (before, during) = besieged(131, &ScionTrick::ALL, Duration::from_secs(5));
    // Half: the attackers, and the routers between, work on the same two processors.
    assert!(during * 2 >= before, "{before} pieces in peace, {during} under attack");
}

#[test]
#[ignore = "minutes, and exact: `make hostile` runs it on a machine that does nothing else"]
fn each_of_them_costs_a_tenth_at_most() {
    let mut failed = Vec::new();
    for trick in ScionTrick::ALL {
        let (before, during) = besieged(132, &[trick], Duration::from_secs(6));
        if during * 10 < before * 9 {
            failed.push(format!("{trick:?}: {before} pieces in peace, {during} under attack"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
