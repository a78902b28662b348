//! Hosts with two uplinks: both are used, with our own kind and with libtorrent, over IPv4 and IPv6.
//!
//! What passed is counted on the wires.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anabranch_testbed::fixture::{Content, Fixture, Maker};
use anabranch_testbed::net::Namespace;
use anabranch_testbed::peers::anabranch::{self, Anabranch};
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::process::Process;
use anabranch_testbed::wire::{Bundle, Family, Shape};
use anabranch_testbed::{Result, net};

const LIMIT: Duration = Duration::from_secs(180);
const PORT: u16 = 7000;
const MIB: u64 = 1 << 20;
const LEN: u64 = 24 * MIB;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Two hosts, two wires of this rate between them, and a content at the left one. None where no network may be made.
struct Hosts {
    bundle: Bundle,
    fixture: Fixture,
    out: PathBuf,
}

impl Hosts {
    fn new(rate_mbit: u64) -> Option<Self> {
        if !net::available() {
            eprintln!("left out: not root");
            return None;
        }
        // A queue of 50 ms, as a sane provider has it.
        let rate_bits = rate_mbit * 1_000_000;
        let shape = Shape { queue_bytes: rate_bits / 8 / 20, ..Shape::new(rate_bits, Duration::from_millis(10)) };
        let fixture = must(Fixture::new(Content::Bytes(LEN), "1", Maker::Ours, None));
        let out = must(fixture.folder("out"));
        Some(Self { bundle: must(Bundle::new(&[shape, shape])), fixture, out })
    }

    fn share(&self, inside: &Namespace, listen: &[&str]) -> Anabranch {
        let listen: Vec<String> = listen.iter().map(|ip| format!("{ip}:{PORT}")).collect();
        let further: Vec<&str> = listen[1..].iter().flat_map(|listen| ["--listen", listen]).collect();
        must(Anabranch::share(&self.fixture.torrent, Some(&self.fixture.data), &listen[0], Some(inside), &further)).0
    }

    fn libtorrent(&self, inside: &Namespace) -> Libtorrent {
        let listen = format!("0.0.0.0:{PORT}");
        must(Libtorrent::seed_to_many_paths(&self.fixture.torrent, &self.fixture.data, Some(inside), &listen))
    }

    fn get(&self, peers: &[&str], extra: &[&str]) -> Anabranch {
        let peers: Vec<SocketAddr> = peers.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT)).collect();
        must(Anabranch::get(&self.fixture.source(), &self.out, &peers, Some(&self.bundle.right_end), extra))
    }

    /// The content by PPSPP, and its link.
    fn stream(&self, inside: &Namespace, listen: &[&str]) -> (Process, String) {
        let mut command = must(anabranch::command(Some(inside)));
        command.arg("share").arg(&self.fixture.content).args(["--ppspp", "--json"]);
        listen.iter().for_each(|ip| _ = command.args(["--listen", &format!("{ip}:{PORT}")]));
        let mut process = must(Process::spawn("anabranch share", &mut command));
        let (started, _) = must(process.wait_event("started", LIMIT));
        let link = started["link"].as_str().expect("a link").to_owned();
        // Whom to ask is said by the test.
        let link = link.split('&').filter(|field| !field.starts_with("pe=")).collect::<Vec<_>>().join("&");
        (process, link)
    }

    fn get_stream(&self, link: &str, peers: &[&str], extra: &[&str]) -> Anabranch {
        let peers: Vec<SocketAddr> = peers.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), PORT)).collect();
        must(Anabranch::get(link, &self.out, &peers, Some(&self.bundle.right_end), extra))
    }

    fn finish(&self, get: &mut Anabranch) {
        let (finished, _) = must(get.wait_finished(LIMIT));
        let wasted_bytes = finished["wasted"].as_u64().expect("told");
        assert!(wasted_bytes < LEN / 50, "{wasted_bytes} bytes came twice");
        must(self.fixture.check(&self.out));
        println!("over the wires: {:.2} and {:.2} of the content", self.part(0), self.part(1));
    }

    /// How much of the content came over a wire.
    fn part(&self, wire: usize) -> f64 {
        self.bundle.counts(wire)[0].bytes as f64 / LEN as f64
    }

    /// Both wires are alike: each carries about half, and nothing to speak of but the content.
    fn assert_both(&self) {
        self.assert_both_beside(0.15);
    }

    /// The same where so much of the content goes over the wires beside it.
    fn assert_both_beside(&self, overhead: f64) {
        let parts = [self.part(0), self.part(1)];
        assert!(parts.iter().all(|part| *part > 0.3), "{parts:?}");
        assert!(parts[0] + parts[1] < 1.0 + overhead, "{parts:?}");
    }
}

#[test]
fn two_uplinks_add_up_with_our_own_kind() {
    let Some(hosts) = Hosts::new(50) else { return };
    let _seeder = hosts.share(&hosts.bundle.left_end, &["0.0.0.0"]);
    // One address is enough: the other is told.
    let mut get = hosts.get(&[&Bundle::left(0, Family::V4)], &["--paths", "4"]);
    hosts.finish(&mut get);
    hosts.assert_both();
}

#[test]
fn two_uplinks_add_up_over_ipv6() {
    let Some(hosts) = Hosts::new(50) else { return };
    let listen = [0, 1].map(|wire| format!("[{}]", Bundle::left(wire, Family::V6)));
    let _seeder = hosts.share(&hosts.bundle.left_end, &[&listen[0], &listen[1]]);
    let mut get = hosts.get(&[&Bundle::left(1, Family::V6)], &["--paths", "2"]);
    hosts.finish(&mut get);
    hosts.assert_both();
}

#[test]
fn two_families_over_one_uplink_are_no_two_uplinks() {
    let Some(hosts) = Hosts::new(50) else { return };
    // Four pairs; two of them have nothing in common.
    let _seeder = hosts.share(&hosts.bundle.left_end, &["[::]"]);
    let mut get = hosts.get(&[&Bundle::left(0, Family::V6)], &["--paths", "2"]);
    hosts.finish(&mut get);
    hosts.assert_both();
}

#[test]
fn of_two_families_between_the_same_uplinks_one_stands_by() {
    let Some(hosts) = Hosts::new(50) else { return };
    let [first, second] = [0, 1].map(|wire| Bundle::left(wire, Family::V4));
    let v6 = [0, 1].map(|wire| format!("[{}]", Bundle::left(wire, Family::V6)));
    let _seeder = hosts.share(&hosts.bundle.left_end, &[&first, &second, &v6[0], &v6[1]]);
    let mut get = hosts.get(&[&first], &["--paths", "4"]);
    // All four are opened, since nothing says beforehand which are between the same uplinks.
    let mut states: BTreeMap<String, String> = BTreeMap::new();
    must(get.process.wait_line("two paths that carry and two that stand by", LIMIT, |line| {
        let event = line.json();
        if let (Some("path"), Some(path), Some(state)) =
            (event["event"].as_str(), event["path"].as_str(), event["state"].as_str())
        {
            states.insert(path.to_owned(), state.to_owned());
        }
        let count = |wanted: &str| states.values().filter(|state| *state == wanted).count();
        (count("active"), count("standby")) == (2, 2)
    }));
    hosts.finish(&mut get);
    hosts.assert_both();
}

#[test]
fn two_uplinks_add_up_with_one_address_of_libtorrent() {
    let Some(hosts) = Hosts::new(50) else { return };
    let _seeder = hosts.libtorrent(&hosts.bundle.server);
    let mut get = hosts.get(&[Bundle::SERVER], &["--paths", "2"]);
    hosts.finish(&mut get);
    hosts.assert_both();
}

#[test]
fn two_uplinks_add_up_with_two_addresses_of_libtorrent() {
    let Some(hosts) = Hosts::new(50) else { return };
    let _seeder = hosts.libtorrent(&hosts.bundle.left_end);
    let peers = [0, 1].map(|wire| Bundle::left(wire, Family::V4));
    let mut get = hosts.get(&[&peers[0], &peers[1]], &["--paths", "2"]);
    hosts.finish(&mut get);
    hosts.assert_both();
}

#[test]
fn named_interfaces_are_used_and_no_others() {
    let Some(hosts) = Hosts::new(100) else { return };
    let _seeder = hosts.share(&hosts.bundle.server, &["0.0.0.0"]);
    // The system's own choice would be the first.
    let second = Bundle::device(1);
    let mut get = hosts.get(&[Bundle::SERVER], &["--paths", "4", "--interface", &second]);
    hosts.finish(&mut get);
    assert!(hosts.part(0) < 0.001 && hosts.part(1) > 0.99, "{} {}", hosts.part(0), hosts.part(1));
}

#[test]
fn one_path_is_one_path() {
    let Some(hosts) = Hosts::new(100) else { return };
    let _seeder = hosts.share(&hosts.bundle.left_end, &["0.0.0.0"]);
    let mut get = hosts.get(&[&Bundle::left(1, Family::V4)], &["--paths", "1"]);
    hosts.finish(&mut get);
    assert!(hosts.part(0) < 0.001, "{}", hosts.part(0));
}

/// `lose` takes the second wire, `mend` gives it back: the other goes on, and both are used in the end.
fn lose_the_second_wire(lose: fn(&Bundle), mend: fn(&Bundle)) {
    let Some(hosts) = Hosts::new(10) else { return };
    let _seeder = hosts.share(&hosts.bundle.left_end, &["0.0.0.0"]);
    lose_the_second_wire_of(&hosts, hosts.get(&[&Bundle::left(0, Family::V4)], &["--paths", "2"]), lose, mend);
}

fn lose_the_second_wire_of(hosts: &Hosts, mut get: Anabranch, lose: fn(&Bundle), mend: fn(&Bundle)) {
    let deadline = Instant::now() + LIMIT;
    let wait_for = |wire: usize, part: f64| {
        while hosts.part(wire) < part {
            assert!(Instant::now() < deadline, "wire {wire} carries no more than {}", hosts.part(wire));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_for(1, 0.05);
    lose(&hosts.bundle);
    let (at, since) = (hosts.part(0), Instant::now());
    wait_for(0, at + 0.2);
    println!("20 % over the other wire in {:?}", since.elapsed());
    let (at, since) = (hosts.part(1), Instant::now());
    mend(&hosts.bundle);
    wait_for(1, at + 0.01);
    println!("used again after {:?}", since.elapsed());
    wait_for(1, at + 0.1);
    hosts.finish(&mut get);
}

#[test]
fn an_uplink_that_goes_leaves_the_other_and_is_used_again() {
    let lose = |bundle: &Bundle| must(bundle.right_end.set_device(&Bundle::device(1), false));
    let mend = |bundle: &Bundle| must(bundle.right_end.set_device(&Bundle::device(1), true));
    lose_the_second_wire(lose, mend);
}

#[test]
fn a_link_that_is_cut_out_of_sight_leaves_the_other_and_is_used_again() {
    lose_the_second_wire(|bundle| bundle.cut(1, true), |bundle| bundle.cut(1, false));
}

#[test]
fn two_uplinks_add_up_by_ppspp() {
    // To one address, which either leads to; and to two, each of which one leads to.
    for leads_to_both in [true, false] {
        let Some(hosts) = Hosts::new(50) else { return };
        let own = [0, 1].map(|wire| Bundle::left(wire, Family::V4));
        let (inside, peers) = match leads_to_both {
            true => (&hosts.bundle.server, vec![Bundle::SERVER]),
            false => (&hosts.bundle.left_end, own.iter().map(String::as_str).collect()),
        };
        let (_seeder, link) = hosts.stream(inside, &peers);
        let mut get = hosts.get_stream(&link, &peers, &["--paths", "2"]);
        hosts.finish(&mut get);
        // A datagram with a chunk of 1 KiB has 49 bytes of heads, and digests: each proves itself until a thousand came without a loss.
        hosts.assert_both_beside(0.3);
    }
}

#[test]
fn one_path_is_one_path_by_ppspp() {
    let Some(hosts) = Hosts::new(100) else { return };
    let (_seeder, link) = hosts.stream(&hosts.bundle.server, &[Bundle::SERVER]);
    let second = Bundle::device(1);
    let mut get = hosts.get_stream(&link, &[Bundle::SERVER], &["--paths", "1", "--interface", &second]);
    hosts.finish(&mut get);
    assert!(hosts.part(0) < 0.001, "{}", hosts.part(0));
}

#[test]
fn an_uplink_that_goes_leaves_the_other_and_is_used_again_by_ppspp() {
    let Some(hosts) = Hosts::new(10) else { return };
    let (_seeder, link) = hosts.stream(&hosts.bundle.server, &[Bundle::SERVER]);
    let get = hosts.get_stream(&link, &[Bundle::SERVER], &["--paths", "2"]);
    lose_the_second_wire_of(&hosts, get, |bundle| bundle.cut(1, true), |bundle| bundle.cut(1, false));
}

#[test]
fn an_interface_that_is_not_there_is_told() {
    let Ok(mut command) = anabranch::command(None) else { return };
    command.args(["get", "magnet:?xt=urn:btih:0101010101010101010101010101010101010101", "--interface", "nope7"]);
    let mut get = must(Process::spawn("anabranch get", &mut command));
    let usage = must(get.wait(LIMIT));
    assert!(!usage.status.success());
    let log = get.log();
    assert!(log.contains("there is no network interface `nope7`: this machine has") && log.contains("lo"), "{log}");
}
