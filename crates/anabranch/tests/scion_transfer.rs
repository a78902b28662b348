//! `share` and `get` across SCION networks that run in this process.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_paths::IsdAs;
use common::{Running, anabranch, assert_same, finish, noise};

/// A network of its own addresses, so that tests run beside each other; `settings` go before the file's.
fn network(file: &str, net: u8, settings: &str) -> Network {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies").join(file);
    let text = fs::read_to_string(path).unwrap();
    let text = format!("network = '127.{net}.0.0'\n{settings}\n{text}");
    Network::start(Topology::from_toml(file, &text).unwrap(), Options::default()).unwrap()
}

/// The first host of an AS: its address for `--listen`, with any port, and its daemon's.
fn host(network: &Network, isd_as: &str) -> (String, String) {
    let isd_as: IsdAs = isd_as.parse().unwrap();
    let home = network.topology().get(isd_as).unwrap();
    (format!("[{isd_as},{}]:0", home.hosts[0].address), home.daemon.to_string())
}

/// Shares `arguments` from the first host of an AS: the program, its address and its magnet link.
fn share(dir: &Path, network: &Network, isd_as: &str, arguments: &[&str]) -> (Running, String, String) {
    let (listen, daemon) = host(network, isd_as);
    let mut command = anabranch(dir);
    command.args(["share", "--json", "--listen", &listen, "--sciond", &daemon]).args(arguments);
    let mut running = Running::start(&mut command);
    let address = running.event("listening")["address"].as_str().unwrap().to_owned();
    let magnet = running.event("started")["magnet"].as_str().unwrap().to_owned();
    (running, address, magnet)
}

/// `get` at the first host of an AS.
fn get(dir: &Path, network: &Network, isd_as: &str, arguments: &[&str]) -> Command {
    let (listen, daemon) = host(network, isd_as);
    let mut command = anabranch(dir);
    command.args(["get", "--listen", &listen, "--sciond", &daemon]).args(arguments);
    command
}

#[test]
fn a_file_crosses_three_ases_by_its_magnet_link() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(20_000_003, 1))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = network("line.toml", 110, "");
    let (sharer, address, magnet) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin"]);
    assert!(address.starts_with("[1-ff00:0:111,127.110."), "{address}");
    assert!(magnet.contains("x.pe=%5B1-ff00%3A0%3A111"), "{magnet}");
    let (code, stdout, stderr) =
        finish(&mut get(dir.path(), &network, "1-ff00:0:112", &[&magnet, "-o", "out", "--json"]));
    assert_eq!(code, 0, "{stdout} {stderr}");
    assert_same(&dir.path().join("out"), &file);
    assert_eq!(sharer.interrupt().0, 0);
}

#[test]
fn the_refusals_name_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let network = network("line.toml", 111, "");
    let (_, daemon) = host(&network, "1-ff00:0:111");
    let share = |arguments: &[&str]| finish(anabranch(dir.path()).args(["share", "one.bin"]).args(arguments));
    // An address of another AS than the daemon's.
    let (code, _, stderr) = share(&["--sciond", &daemon, "--listen", "[1-ff00:0:112,127.0.0.1]:0"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("1-ff00:0:111") && stderr.contains("--sciond"), "{stderr}");
    // A port that the routers do not deliver to.
    let (listen, _) = host(&network, "1-ff00:0:111");
    let (code, _, stderr) = share(&["--sciond", &daemon, "--listen", &listen.replace("]:0", "]:80")]);
    assert_eq!(code, 6, "{stderr}");
    assert!(stderr.contains("choose one in it, or 0 for any"), "{stderr}");
    // Nobody to ask for paths.
    let (code, _, stderr) = share(&["--sciond", "127.0.0.1:1"]);
    assert_eq!(code, 6, "{stderr}");
    assert!(stderr.contains("127.0.0.1:1"), "{stderr}");
    let (code, _, stderr) = share(&["--sequence", "1-x"]);
    assert_eq!(code, 2, "{stderr}");
}

#[test]
fn flags_that_leave_no_path_are_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let network = network("line.toml", 112, "");
    let (_sharer, _, magnet) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin"]);
    let arguments = ["--json", "-o", "out", "--sequence", "0* 2-0 0*", &magnet];
    let mut running = Running::start(&mut get(dir.path(), &network, "1-ff00:0:112", &arguments));
    let reason = running.event("peer_disconnected")["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("none of the 1 known ones passes"), "{reason}");
}

#[test]
fn peers_find_each_other_by_a_tracker() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(3_000_000, 2))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = network("line.toml", 113, "");
    let mut tracker = Running::start(anabranch(dir.path()).args(["tracker", "--listen", "127.0.0.1:0", "--json"]));
    let url = tracker.event("listening")["http"].as_str().unwrap().to_owned();
    let made = ["one.bin", "--tracker", &url, "--torrent-out", "one.torrent"];
    let (_sharer, ..) = share(dir.path(), &network, "1-ff00:0:111", &made);
    let (code, _, stderr) = finish(&mut get(dir.path(), &network, "1-ff00:0:112", &["one.torrent", "-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out"), &file);
}

/// `get` at the first host of an AS, going on: the program, and its address.
fn getting(dir: &Path, network: &Network, isd_as: &str, arguments: &[&str]) -> (Running, String) {
    let mut running = Running::start(get(dir, network, isd_as, arguments).arg("--json"));
    let address = running.event("listening")["address"].as_str().unwrap().to_owned();
    (running, address)
}

/// Waits until all of them are connected.
fn await_peers(running: &mut Running, addresses: &[&str]) {
    let mut missing = addresses.to_vec();
    while !missing.is_empty() {
        let event = running.event("peer_connected");
        missing.retain(|address| event["peer"] != *address);
    }
}

#[test]
fn two_who_fetch_find_each_other_by_a_tracker() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(9_000_000, 5)).unwrap();
    let network = network("two-isds.toml", 116, "");
    let mut tracker = Running::start(anabranch(dir.path()).args(["tracker", "--listen", "127.0.0.1:0", "--json"]));
    let url = tracker.event("listening")["http"].as_str().unwrap().to_owned();
    let made = ["one.bin", "--tracker", &url, "--torrent-out", "one.torrent"];
    let (_sharer, sharer_address, _) = share(dir.path(), &network, "1-ff00:0:111", &made);
    // Slow enough that both are at it for a while.
    let fetch = |isd_as, out| {
        let arguments = ["one.torrent", "-o", out, "--no-pex", "--limit-down", "300K"];
        getting(dir.path(), &network, isd_as, &arguments)
    };
    let (mut first, first_address) = fetch("1-ff00:0:112", "first");
    await_peers(&mut first, &[&sharer_address]);
    let (mut second, second_address) = fetch("2-ff00:0:212", "second");
    await_peers(&mut second, &[&sharer_address, &first_address]);
    await_peers(&mut first, &[&second_address]);
}

#[test]
fn who_knows_one_peer_hears_of_the_others_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(9_000_000, 6))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = network("two-isds.toml", 117, "");
    let made = ["one.bin", "--torrent-out", "one.torrent"];
    let (_sharer, sharer_address, _) = share(dir.path(), &network, "1-ff00:0:111", &made);
    let arguments = ["one.torrent", "-o", "first", "--peer", &sharer_address, "--limit-down", "600K"];
    let (mut first, first_address) = getting(dir.path(), &network, "1-ff00:0:112", &arguments);
    await_peers(&mut first, &[&sharer_address]);
    // Nobody but the first is named to the second.
    let arguments = ["one.torrent", "-o", "second", "--peer", &first_address, "--limit-down", "600K"];
    let (mut second, _) = getting(dir.path(), &network, "2-ff00:0:212", &arguments);
    await_peers(&mut second, &[&first_address, &sharer_address]);
    second.event("finished");
    assert_same(&dir.path().join("second"), &file);
}

#[test]
fn a_transfer_outlives_its_paths_and_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(12_000_000, 3))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = network("line.toml", 114, "segment_lifetime = '20 s'");
    let (_sharer, _, magnet) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin"]);
    // Longer than any path lives.
    let arguments = [&magnet, "-o", "out", "--limit-down", "450K"];
    let mut getting = get(dir.path(), &network, "1-ff00:0:112", &arguments);
    let away: IsdAs = "1-ff00:0:112".parse().unwrap();
    let (code, stderr) = std::thread::scope(|scope| {
        let got = scope.spawn(|| finish(&mut getting));
        std::thread::sleep(std::time::Duration::from_secs(3));
        network.stop_daemon(away).unwrap();
        std::thread::sleep(std::time::Duration::from_secs(2));
        network.start_daemon(away).unwrap();
        let (code, _, stderr) = got.join().unwrap();
        (code, stderr)
    });
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out"), &file);
}

#[test]
fn another_path_is_taken_when_a_link_goes_down() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(8_000_000, 4))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = network("two-isds.toml", 115, "");
    let (_sharer, _, magnet) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin"]);
    // Over the first core AS, which is then cut off from the leaf.
    let arguments = [&magnet, "-o", "out", "--limit-down", "1M"];
    let mut getting = get(dir.path(), &network, "1-ff00:0:112", &arguments);
    let link = network.find_link("1-ff00:0:120", Some("1-ff00:0:111")).unwrap();
    let (code, stderr) = std::thread::scope(|scope| {
        let got = scope.spawn(|| finish(&mut getting));
        std::thread::sleep(std::time::Duration::from_secs(3));
        network.set_link_up(link, false).unwrap();
        let (code, _, stderr) = got.join().unwrap();
        (code, stderr)
    });
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out"), &file);
}
