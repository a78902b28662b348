//! Peers that are found in the distributed hash table, as users meet it. Every node is on the loopback, and named.

mod common;

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use common::net::Net;
use common::{Running, anabranch, assert_same, finish, noise, run};

/// A node that sharing some file makes, and its address.
fn node(dir: &Path, number: u64, entry: Option<&str>) -> (Running, String) {
    let folder = dir.join(format!("node-{number}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("own.bin"), noise(50_000, 1000 + number)).unwrap();
    sharing(&folder, "own.bin", entry)
}

fn sharing(dir: &Path, what: &str, entry: Option<&str>) -> (Running, String) {
    let mut command = anabranch(dir);
    command.args(["share", what, "--listen", "127.0.0.1:0", "--json", "--dht", "on"]);
    entry.map(|entry| command.args(["--dht-node", entry]));
    let mut running = Running::start(&mut command);
    let address = running.event("listening")["address"].as_str().unwrap().to_owned();
    running.event("started");
    (running, address)
}

/// A torrent of `one.bin`, private where asked for, and a link to it that names nobody.
fn content(dir: &Path, extra: &[&str]) -> (String, Vec<(std::path::PathBuf, Vec<u8>)>) {
    let file = vec![("one.bin".into(), noise(300_000, 1))];
    fs::write(dir.join("one.bin"), &file[0].1).unwrap();
    let (code, magnet, stderr) = run(dir, &[&["create", "one.bin", "-o", "one.torrent"], extra].concat());
    assert_eq!(code, 0, "{stderr}");
    let links = magnet.trim().split('&').filter(|part| !part.starts_with("tr=") && !part.starts_with("x.pe="));
    (links.collect::<Vec<_>>().join("&"), file)
}

#[test]
fn a_link_that_names_nobody_finds_who_shares_it() {
    let dir = tempfile::tempdir().unwrap();
    let (magnet, files) = content(dir.path(), &[]);
    let (_first, entry) = node(dir.path(), 1, None);
    let others: Vec<_> = (2..5).map(|number| node(dir.path(), number, Some(&entry))).collect();
    // Elsewhere: a program keeps the nodes of a state folder for itself as long as it runs.
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for name in ["one.bin", "one.torrent"] {
        fs::copy(dir.path().join(name), elsewhere.join(name)).unwrap();
    }
    let (_sharer, _) = sharing(&elsewhere, "one.torrent", Some(&entry));
    // By another way in than the sharer's.
    let mut getting = anabranch(dir.path());
    getting.args(["get", &magnet, "-o", "out", "--listen", "127.0.0.1:0", "--json", "--give-up", "50s"]);
    getting.args(["--dht", "on", "--dht-node", &others[1].1]);
    let (code, stdout, stderr) = finish(&mut getting);
    assert_eq!(code, 0, "{stdout} {stderr}");
    assert!(stdout.contains(r#""event":"discovered""#) && stdout.contains(r#""source":"dht""#), "{stdout}");
    assert_same(&dir.path().join("out"), &files);
    // The next run needs nobody to be named: nodes are kept.
    assert!(dir.path().join("state/anabranch/dht-nodes").exists());
    let mut again = anabranch(dir.path());
    again.args(["get", &magnet, "-o", "again", "--listen", "127.0.0.1:0", "--give-up", "50s", "--dht", "on"]);
    let (code, _, stderr) = finish(&mut again);
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("again"), &files);
}

/// Over SCION alone, where no node has a known address: who fetches and who shares each met the same third one over another content, which
/// told them where its node is.
#[test]
fn a_link_that_names_nobody_finds_who_shares_it_over_scion() {
    let net = Net::up("two-isds.toml");
    let at = |isd_as: &str, name: &str| {
        let dir = net.dir.path().join(name);
        fs::create_dir_all(&dir).unwrap();
        let mut command = anabranch(&dir);
        command.env("SCION_DAEMON_ADDRESS", net.daemon(isd_as)).env("ANABRANCH_DHT", "on");
        (command, format!("[{}]:0", net.host(isd_as)), dir)
    };
    let (mut third, listen, dir) = at("1-ff00:0:112", "third");
    fs::write(dir.join("common.bin"), noise(50_000, 2)).unwrap();
    third.args(["share", "common.bin", "--torrent-out", "common.torrent", "--json", "--listen", &listen]);
    let mut third = Running::start(&mut third);
    let node = third.event("listening")["address"].as_str().unwrap().to_owned();
    assert!(node.starts_with("[1-ff00:0:112,"), "{node}");
    third.event("started");
    let common = dir.join("common.torrent").to_string_lossy().into_owned();
    let (mut sharer, listen, dir) = at("2-ff00:0:211", "sharer");
    let (magnet, files) = content(&dir, &[]);
    sharer.args(["get", "one.torrent", &common, "-o", ".", "--seed", "--json"]);
    let mut sharer = Running::start(sharer.args(["--listen", &listen, "--peer", &node]));
    sharer.event("finished");
    let (mut getting, listen, dir) = at("1-ff00:0:111", "getter");
    getting.args(["get", &magnet, &common, "-o", "out", "--json", "--give-up", "50s"]);
    let (code, stdout, stderr) = finish(getting.args(["--listen", &listen, "--peer", &node]));
    assert_eq!(code, 0, "{stdout} {stderr}");
    // Either may have found the other: both look, and both are announced.
    assert!(stdout.contains(r#""peer":"[2-ff00:0:211,"#), "{stdout}");
    assert_same(&dir.join("out"), &files);
}

/// A socket that somebody names as a node, and what came to it.
fn witness() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

fn came(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut datagram = [0; 2000];
    socket.recv(&mut datagram).ok().map(|len| datagram[..len].to_vec())
}

#[test]
fn nobody_is_asked_for_what_is_private_or_where_it_is_off() {
    let dir = tempfile::tempdir().unwrap();
    let tracker = "http://127.0.0.1:1/announce";
    content(dir.path(), &["--private", "--tracker", tracker]);
    let get = |source: &str, out: &str, extra: &[&str]| {
        let (socket, address) = witness();
        let mut command = anabranch(dir.path());
        command.args(["get", source, "-o", out, "--listen", "127.0.0.1:0", "--give-up", "2s"]);
        command.args(["--dht-node", &address]).args(extra);
        let (code, _, stderr) = finish(&mut command);
        assert_eq!(code, 6, "{stderr}");
        came(&socket)
    };
    assert_eq!(get("one.torrent", "a", &["--dht", "on"]), None, "it is private");
    let public = dir.path().join("public");
    fs::create_dir(&public).unwrap();
    let (magnet, _) = content(&public, &["--tracker", tracker]);
    assert_eq!(get(&magnet, "b", &["--dht", "off"]), None, "it is off");
    assert_eq!(
        get(&magnet, "c", &["--dht", "on", "--proxy", "socks5://127.0.0.1:1"]),
        None,
        "it would go past the proxy"
    );
    assert_eq!(get(&magnet, "d", &["--dht", "on", "--block", "127.0.0.1"]), None, "it is blocked");
    let asked = get(&magnet, "e", &["--dht", "on"]).expect("a query");
    assert!(asked.starts_with(b"d1:ad2:id20:"), "{}", String::from_utf8_lossy(&asked));
}

#[test]
fn nodes_are_named_by_host_and_port() {
    let dir = tempfile::tempdir().unwrap();
    let (magnet, _) = content(dir.path(), &[]);
    for (value, needle) in [("192.0.2.5", "write HOST:PORT"), ("192.0.2.5:53", "not asked at ports below 1024")] {
        let (code, _, stderr) = run(dir.path(), &["get", &magnet, "--dht-node", value]);
        assert!(code == 2 && stderr.contains(needle), "{stderr}");
    }
    let (code, _, stderr) = run(dir.path(), &["get", &magnet, "--dht", "maybe"]);
    assert!(code == 2 && stderr.contains("on, off"), "{stderr}");
}

/// The answer to a ping, among what else comes: the node asks us, too. A flood may push the ping out.
fn ping(socket: &UdpSocket) -> Vec<u8> {
    for _ in 0..50 {
        socket.send(b"d1:ad2:id20:abcdefghij0123456789e1:q4:ping1:t2:aa1:y1:qe").unwrap();
        while let Some(datagram) = came(socket) {
            if datagram.windows(8).any(|part| part == b"1:t2:aa1") && datagram.starts_with(b"d2:ip") {
                return datagram;
            }
        }
    }
    panic!("no answer");
}

/// Whatever comes to the port, the node answers the next one, and with no more than is due.
#[test]
fn a_flood_at_the_port_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_node, address) = node(dir.path(), 1, None);
    let (socket, _) = witness();
    socket.connect(&address).unwrap();
    let answer = ping(&socket);
    assert!(answer.len() < 200);
    let mut seed = 1;
    for round in 0..3000u32 {
        let garbage = [&b"d"[..], &noise(round as usize % 300, seed)].concat();
        seed += 1;
        let _ = socket.send(&garbage);
        let _ = socket.send(&noise(round as usize % 1500, seed));
    }
    let (other, _) = witness();
    other.connect(&address).unwrap();
    ping(&other);
}
