//! Peers found without a tracker, with libtorrent: in the distributed hash table, and by local discovery.
//!
//! All of it stays on the loopback or in namespaces: every node is named.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use anabranch_testbed::fixture::{Content, Fixture, Maker};
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::{Error, Result};

const LIMIT: Duration = Duration::from_secs(120);
const LOOPBACK: &str = "127.0.0.1:0";

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn fixture() -> Fixture {
    must(Fixture::new(Content::Bytes(3 << 20), "1", Maker::Ours, None))
}

/// A link that names nobody.
fn bare(fixture: &Fixture) -> String {
    let magnet = &fixture.magnet;
    magnet.split('&').next().unwrap_or_default().to_owned()
}

/// A node of libtorrent's without torrents, through which others meet.
fn node(folder: &Path) -> Libtorrent {
    must(Libtorrent::idle_with(folder, folder, &["--dht", "--listen", LOOPBACK]))
}

#[test]
fn a_link_without_tracker_finds_libtorrent_in_the_dht() {
    let fixture = fixture();
    let node = node(&must(fixture.folder("nothing")));
    let entry = node.address.to_string();
    let dht = ["--dht", "--dht-node", entry.as_str()];
    let _seeder = must(Libtorrent::seed_with(&fixture.torrent, &fixture.data, None, LOOPBACK, &dht));
    let out = must(fixture.folder("out"));
    let extra = ["--dht", "on", "--dht-node", &entry, "--listen", LOOPBACK, "--give-up", "100s"];
    let mut get = must(Anabranch::get(&bare(&fixture), &out, &[], None, &extra));
    let (found, _) = must(get.process.wait_event("discovered", LIMIT));
    assert_eq!(found["source"], "dht");
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
}

#[test]
fn libtorrent_finds_us_in_the_dht() {
    let fixture = fixture();
    let node = node(&must(fixture.folder("nothing")));
    let entry = node.address.to_string();
    let extra = ["--dht", "on", "--dht-node", &entry];
    let _sharer = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), LOOPBACK, None, &extra));
    let out = must(fixture.folder("out"));
    let dht = ["--dht", "--dht-node", entry.as_str()];
    let mut leech = must(Libtorrent::leech_with(&bare(&fixture), &out, &[], None, LOOPBACK, &dht));
    must(leech.wait_finished(LIMIT));
    must(fixture.check(&out));
}

/// Both only know a node of ours.
#[test]
fn libtorrent_meets_through_a_node_of_ours() {
    let (fixture, other) = (fixture(), must(Fixture::new(Content::Bytes(1 << 20), "1", Maker::Ours, None)));
    let (_node, entry) = must(Anabranch::share(&other.torrent, Some(&other.data), LOOPBACK, None, &["--dht", "on"]));
    let entry = entry.to_string();
    let dht = ["--dht", "--dht-node", entry.as_str()];
    let _seeder = must(Libtorrent::seed_with(&fixture.torrent, &fixture.data, None, LOOPBACK, &dht));
    let out = must(fixture.folder("out"));
    let mut leech = must(Libtorrent::leech_with(&bare(&fixture), &out, &[], None, LOOPBACK, &dht));
    must(leech.wait_finished(LIMIT));
    must(fixture.check(&out));
}

/// Two hosts in one network, which is nobody else's.
fn network() -> Option<(Namespace, Namespace)> {
    if !net::available() {
        eprintln!("left out: not root");
        return None;
    }
    let (left, right) = (must(Namespace::new()), must(Namespace::new()));
    must(left.link("veth", &right));
    must(left.device_up("veth", "10.9.0.1/24", "10.9.0.0/24", 1500));
    must(right.device_up("veth", "10.9.0.2/24", "10.9.0.0/24", 1500));
    for side in [&left, &right] {
        must(side.route("224.0.0.0/4", "veth", None, 1));
    }
    Some((left, right))
}

#[test]
fn peers_in_one_network_find_each_other() {
    let Some((left, right)) = network() else { return };
    let fixture = fixture();
    let _sharer =
        must(Anabranch::share(&fixture.torrent, Some(&fixture.data), "0.0.0.0:7000", Some(&left), &["--lsd", "on"]));
    let out = must(fixture.folder("out"));
    let extra = ["--lsd", "on", "--listen", "0.0.0.0:7001", "--give-up", "100s"];
    let mut get = must(Anabranch::get(&bare(&fixture), &out, &[], Some(&right), &extra));
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
}

/// So who takes no calls itself, as rqbit does not of a content of which it has only a link, learns whom to dial.
#[test]
fn who_calls_out_is_answered_once_and_with_no_more_than_it_sent() {
    let Some((left, right)) = network() else { return };
    let fixture = fixture();
    let _sharer =
        must(Anabranch::share(&fixture.torrent, Some(&fixture.data), "0.0.0.0:7000", Some(&left), &["--lsd", "on"]));
    let caller = must(right.enter(|| UdpSocket::bind("10.9.0.2:0").map_err(Error::system("a socket"))));
    caller.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let hash = bare(&fixture).split(':').next_back().unwrap_or_default().to_owned();
    let call = |port: u16, rest: &str| {
        let head = "BT-SEARCH * HTTP/1.1\r\n";
        format!("{head}{rest}Port: {port}\r\nInfohash: {hash}\r\ncookie: 1\r\n\r\n\r\n")
    };
    let answer_to = |call: &str| {
        caller.send_to(call.as_bytes(), "239.192.152.143:6771").unwrap();
        let mut answer = [0; 2048];
        caller.recv(&mut answer).ok().map(|len| String::from_utf8_lossy(&answer[..len]).into_owned())
    };
    let first = call(6900, "Host: 239.192.152.143:6771\r\n");
    // It may not be in the group yet.
    let answer = (0..60).find_map(|_| answer_to(&first)).expect("nobody answers");
    assert!(answer.contains("Port: 7000\r\n") && answer.contains(&format!("Infohash: {hash}\r\n")), "{answer}");
    assert!(answer.len() <= first.len(), "{answer}");
    assert_eq!(answer_to(&first), None, "answered again");
    assert_eq!(answer_to(&call(6901, "")), None, "answered with more than was sent");
    assert!(answer_to(&call(6902, "Host: 239.192.152.143:6771\r\n")).is_some(), "another is not answered");
}

#[test]
fn libtorrent_in_one_network_is_found_and_finds_us() {
    let Some((left, right)) = network() else { return };
    let fixture = fixture();
    let lsd = ["--lsd", "--set", "local_service_announce_interval=3"];
    let seeder = must(Libtorrent::seed_with(&fixture.torrent, &fixture.data, Some(&left), "0.0.0.0:7000", &lsd));
    let out = must(fixture.folder("out"));
    let extra = ["--lsd", "on", "--listen", "0.0.0.0:7001", "--give-up", "100s"];
    let mut get = must(Anabranch::get(&bare(&fixture), &out, &[], Some(&right), &extra));
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
    drop(seeder);
    let _sharer =
        must(Anabranch::share(&fixture.torrent, Some(&fixture.data), "0.0.0.0:7002", Some(&right), &["--lsd", "on"]));
    let again = must(fixture.folder("again"));
    let mut leech = must(Libtorrent::leech_with(&bare(&fixture), &again, &[], Some(&left), "0.0.0.0:7003", &lsd));
    must(leech.wait_finished(LIMIT));
    must(fixture.check(&again));
}
