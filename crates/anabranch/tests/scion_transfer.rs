//! `share` and `get` across SCION networks that run in this process.

mod common;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::network::{Direction, Network};
use anabranch_paths::{Endpoint, IsdAs, ScionAddr, ScionPath};
use anabranch_scion_wire::scmp::Message;
use anabranch_scion_wire::{Address, HeaderFields, HeaderTemplate, PathRef, Ports, checksum};
use common::embedded::{self, DIAMOND, example, host};
use common::{Running, anabranch, assert_same, finish, noise, run};
use serde_json::Value;
use tempfile::TempDir;

/// Shares `arguments` from the first host of an AS: the program, its address and its magnet link.
fn share(dir: &Path, network: &Network, isd_as: &str, arguments: &[&str]) -> (Running, String, String) {
    let (listen, daemon) = host(network, isd_as);
    let mut command = anabranch(dir);
    command.args(["share", "--json", "--listen", &listen, "--sciond", &daemon]).args(arguments);
    // It is there for as long as the test takes.
    let mut running = Running::start_for(&mut command, BACK_WITHIN * 5);
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
    let network = example(110, "line.toml", "");
    let (sharer, address, magnet) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin"]);
    assert!(address.starts_with("[1-ff00:0:111,127.110."), "{address}");
    assert!(magnet.contains("x.pe=[1-ff00:0:111"), "{magnet}");
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
    let network = example(111, "line.toml", "");
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
    let network = example(112, "line.toml", "");
    let (_sharer, _, magnet) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin"]);
    let (listen, daemon) = host(&network, "1-ff00:0:112");
    // The same answers as `paths` gives.
    let said_by_paths = |arguments: &[&str]| {
        let (code, _, stderr) = finish(anabranch(dir.path()).args(["paths", "--sciond", &daemon]).args(arguments));
        assert_eq!(code, 6, "{stderr}");
        stderr.trim().strip_prefix("error: ").unwrap().to_owned()
    };
    let (bare, _) = magnet.split_once("&x.pe=").unwrap();
    let nowhere = format!("{bare}&x.pe=[1-ff00:0:999,{}", listen.split_once(',').unwrap().1.replace(":0", ":31000"));
    let wrong_as = said_by_paths(&["1-ff00:0:999"]);
    let forbidden = said_by_paths(&["1-ff00:0:111", "--sequence", "0* 2-0 0*"]);
    let denied = said_by_paths(&["1-ff00:0:111", "--acl", "-"]);
    for (arguments, needle) in [
        (&[magnet.as_str(), "--sequence", "0* 2-0 0*"][..], forbidden.as_str()),
        (&[&magnet, "--acl", "-"], &denied),
        (&[&magnet, "--path", "0123456789"], "no path has an id that starts with `0123456789`"),
        (&[&nowhere], &wrong_as),
    ] {
        let arguments = [arguments, &["-o", "out"]].concat();
        let (code, _, stderr) = finish(&mut get(dir.path(), &network, "1-ff00:0:112", &arguments));
        assert!(code == 6 && stderr.contains(needle), "{needle}: {code} {stderr}");
        let (code, stdout, _) = finish(get(dir.path(), &network, "1-ff00:0:112", &arguments).arg("--json"));
        let events: Vec<serde_json::Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        // That there is no path is final when it has been so for a while.
        let error = events.iter().rfind(|event| event["event"] == "peer_error").unwrap();
        let reason = error["reason"].as_str().unwrap();
        assert!(code == 6 && reason.contains(needle) && error["final"] == true, "{needle}: {code} {stdout}");
    }
}

#[test]
fn peers_find_each_other_by_a_tracker() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(3_000_000, 2))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = example(113, "line.toml", "");
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
    let network = example(116, "two-isds.toml", "");
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
    let network = example(117, "two-isds.toml", "");
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
    let network = example(114, "line.toml", "segment_lifetime = '20 s'");
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
    let network = example(115, "two-isds.toml", "");
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

#[test]
fn one_connection_goes_over_two_paths_where_both_sides_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(6_000_000, 12))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = embedded::start(142, DIAMOND);
    let cores = ["1-ff00:0:110", "1-ff00:0:120"];
    for core in cores {
        let link = network.find_link(core, Some("1-ff00:0:112")).unwrap();
        let shape = LinkShape { rate_bps: Some(20_000_000), ..LinkShape::default() };
        network.set_link_shape(link, Direction::Both, shape).unwrap();
    }
    let sent = || cores.map(|core| network.router(core.parse().unwrap()).unwrap().stats(2).unwrap().sent_bytes);
    let one_path = ["--selector", "first", "--paths", "1"];
    let spread = ["--paths-per-connection", "2"];
    let (_sharer, _, magnet) =
        share(dir.path(), &network, "1-ff00:0:111", &[&["one.bin"][..], &one_path, &spread].concat());
    for (out, flags) in [("both", &spread[..]), ("one", &[][..])] {
        let before = sent();
        let arguments = [&[&magnet, "-o", out][..], &one_path, flags].concat();
        let (code, _, stderr) = finish(&mut get(dir.path(), &network, "1-ff00:0:112", &arguments));
        assert_eq!(code, 0, "{stderr}");
        assert_same(&dir.path().join(out), &file);
        let after = sent();
        let passed = [0, 1].map(|way: usize| after[way] - before[way]);
        let least = *passed.iter().min().unwrap();
        match out {
            "both" => assert!(least > 1_500_000, "{passed:?}"),
            _ => assert!(least < 600_000, "{passed:?}"),
        }
    }
}

/// The routers that die: of each AS on the way over the second core, at the side of each link.
const DYING: [(&str, u16); 4] = [("1-ff00:0:120", 1), ("1-ff00:0:112", 2), ("1-ff00:0:111", 2), ("1-ff00:0:120", 2)];
/// Content that shows that a path carries.
const CARRIED_BYTES: u64 = 100_000;
/// How long a path may take to be back, on a machine that does other things too.
const BACK_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn a_path_carries_again_after_a_router_died_on_one_side() {
    carry_again(119, 3);
}

#[test]
#[ignore = "two minutes of the above"]
fn a_path_carries_again_twenty_times() {
    carry_again(120, 20);
}

/// A router that dies takes nothing down at the other end of its link: what comes from there is lost without a word, what
/// goes there is complained about. So the ends learn of it at different times, and both try to reach each other again.
fn carry_again(net: u8, rounds: usize) {
    let scene = Diamond::new(net, rounds);
    for round in 0..rounds {
        let (isd_as, interface) = DYING[round % DYING.len()];
        let router = scene.network.router(isd_as.parse().unwrap()).unwrap();
        router.set_up(interface, false).unwrap();
        scene.getter.await_payload(NORTH);
        std::thread::sleep(Duration::from_secs(2 + round as u64 % 3));
        router.set_up(interface, true).unwrap();
        let took = scene.getter.await_payload(SOUTH);
        println!("round {round}: the router of {isd_as} at {interface} was back, and in use after {took:?}");
        scene.await_truth();
    }
}

// A link that is taken down fails for both ends at once, and both try to open it again, several times a second.
#[test]
fn both_ends_that_redial_at_once_say_what_is_so() {
    const ROUNDS: usize = 2;
    let scene = Diamond::new(124, ROUNDS);
    for round in 0..ROUNDS {
        set_south_up(&scene.network, "1-ff00:0:111", false);
        for end in [&scene.sharer, &scene.getter] {
            end.await_seen("the loss of a path", |seen| !seen.is_active(SOUTH));
        }
        std::thread::sleep(Duration::from_millis(2000 + 250 * round as u64));
        set_south_up(&scene.network, "1-ff00:0:111", true);
        scene.getter.await_payload(SOUTH);
        scene.await_truth();
    }
}

// Who begins while a link is down misses nothing; what comes back is used all the same, though nobody tells of it.
#[test]
fn a_link_that_comes_up_after_the_transfer_began_carries() {
    let scene = Diamond::begin(145, 1, Some("1-ff00:0:112"));
    scene.getter.await_payload(NORTH);
    set_south_up(&scene.network, "1-ff00:0:112", true);
    scene.getter.await_payload(SOUTH);
    scene.await_truth();
}

// What is killed says nothing, and what is started in its place knows nothing of the connections there were.
#[test]
fn a_sharer_that_was_killed_is_found_out_and_used_when_it_is_back() {
    let mut scene = Diamond::new(147, 1);
    common::signal(scene.sharer.pid, "KILL");
    scene.getter.await_seen("word of the silence", |seen| {
        seen.reasons.iter().any(|reason| reason.contains("the peer answers nothing"))
    });
    let mut sharing = sharing(scene.dir.path(), &scene.network, &scene.sharer_at);
    let mut sharer = Running::start_for(&mut sharing, BACK_WITHIN * 4);
    sharer.event("started");
    scene.sharer = Watched::new(sharer);
    for over in [NORTH, SOUTH] {
        scene.getter.await_payload(over);
    }
}

/// The path over the first core AS alone, which stays, and the one over the second.
const NORTH: &str = "1-ff00:0:110";
const SOUTH: &str = "1-ff00:0:120";

/// A transfer over the two paths of [`DIAMOND`] that have no link in common.
struct Diamond {
    network: Network,
    sharer: Watched,
    getter: Watched,
    /// Where the sharer listens.
    sharer_at: String,
    dir: TempDir,
}

impl Diamond {
    fn new(net: u8, rounds: usize) -> Self {
        let scene = Self::begin(net, rounds, None);
        for over in [NORTH, SOUTH] {
            scene.getter.await_payload(over);
        }
        scene
    }

    /// One that has just begun, cut off from the second core at `cut` before there is anybody who fetches.
    fn begin(net: u8, rounds: usize, cut: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("one.bin"), noise(150_000_000, 6)).unwrap();
        let network = embedded::start(net, DIAMOND);
        let patience = BACK_WITHIN * (2 + 2 * rounds as u32);
        let listen = host(&network, "1-ff00:0:111").0;
        let mut sharer = Running::start_for(&mut sharing(dir.path(), &network, &listen), patience);
        let sharer_at = sharer.event("listening")["address"].as_str().unwrap().to_owned();
        let magnet = sharer.event("started")["magnet"].as_str().unwrap().to_owned();
        if let Some(leaf) = cut {
            set_south_up(&network, leaf, false);
        }
        let arguments = [&magnet, "-o", "out", "--limit-down", "600K", "--paths", "2", "--json"];
        let getter = Running::start_for(&mut get(dir.path(), &network, "1-ff00:0:112", &arguments), patience);
        Self { network, sharer: Watched::new(sharer), getter: Watched::new(getter), sharer_at, dir }
    }

    /// Both ends come to say what is so of paths that all work again, and keep to it.
    fn await_truth(&self) {
        let ends = [&self.sharer, &self.getter];
        for end in ends {
            end.await_seen("the truth", Seen::is_all_well);
        }
        // Others may still be found to have died with the link.
        let lost = || ends.map(|end| [NORTH, SOUTH].map(|core| end.seen.lock().unwrap().losses(core)));
        let before = lost();
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(lost(), before, "connections come and go over paths that work");
    }
}

/// `share` of [`Diamond`].
fn sharing(dir: &Path, network: &Network, listen: &str) -> Command {
    let mut command = anabranch(dir);
    let daemon = host(network, "1-ff00:0:111").1;
    command.args(["share", "--json", "--listen", listen, "--sciond", &daemon, "--paths", "2", "one.bin"]);
    command
}

/// The link between a leaf and the second core.
fn set_south_up(network: &Network, leaf: &str, is_up: bool) {
    network.set_link_up(network.find_link(SOUTH, Some(leaf)).unwrap(), is_up).unwrap();
}

/// A program, and what it says of its paths.
struct Watched {
    pid: u32,
    seen: Arc<Mutex<Seen>>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Seen {
    /// What each path passes, as said with a choice.
    interfaces: HashMap<String, String>,
    /// Of each path, what was chosen last, and why.
    choices: HashMap<String, (String, String)>,
    /// State of each, as last told of a change.
    states: HashMap<String, String>,
    /// State and payload of each connection, as last told with the progress.
    paths: Vec<(String, String, u64)>,
    /// Paths whose last connection ended, each time.
    gone: Vec<String>,
    /// Why states changed, each time.
    reasons: Vec<String>,
}

impl Seen {
    fn on_event(&mut self, event: &Value) {
        let entries = |key: &str| event[key].as_array().cloned().unwrap_or_default();
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap().to_owned();
        match event["event"].as_str().unwrap() {
            "paths" => {
                for entry in entries("candidates") {
                    self.interfaces.insert(text(&entry, "path"), entry["interfaces"].to_string());
                    self.choices.insert(text(&entry, "path"), (text(&entry, "choice"), text(&entry, "reason")));
                }
            }
            "path" => {
                if event["state"] == "gone" {
                    self.gone.push(text(event, "path"));
                }
                self.states.insert(text(event, "path"), text(event, "state"));
                self.reasons.push(text(event, "reason"));
            }
            "progress" => {
                let told =
                    |entry: &Value| (text(entry, "path"), text(entry, "state"), entry["downloaded"].as_u64().unwrap());
                self.paths = entries("paths").iter().map(told).collect();
            }
            _ => {}
        }
    }

    /// Whether this is the path over one core AS alone.
    fn is_over(&self, path: &str, core: &str) -> bool {
        let other = if core == NORTH { SOUTH } else { NORTH };
        self.interfaces.get(path).is_some_and(|passed| passed.contains(core) && !passed.contains(other))
    }

    fn losses(&self, core: &str) -> usize {
        self.gone.iter().filter(|path| self.is_over(path, core)).count()
    }

    fn is_active(&self, core: &str) -> bool {
        self.paths.iter().any(|(path, state, _)| self.is_over(path, core) && state == "active")
    }

    /// Two connections, over the paths that are chosen; and nothing else is said anywhere.
    fn is_all_well(&self) -> bool {
        let is_told = |path: &String| {
            self.states.get(path).is_some_and(|state| state == "active")
                && self.choices.get(path).is_some_and(|(choice, _)| choice == "chosen")
        };
        let active: Vec<&String> =
            self.paths.iter().filter(|(_, state, _)| state == "active").map(|(path, ..)| path).collect();
        let is_down = |(_, reason): &(String, String)| reason.contains("down at the moment");
        active.len() == 2
            && self.is_active(NORTH)
            && self.is_active(SOUTH)
            && active.into_iter().all(is_told)
            && !self.choices.values().any(is_down)
    }
}

impl Watched {
    fn new(mut running: Running) -> Self {
        let (pid, seen) = (running.child.id(), Arc::<Mutex<Seen>>::default());
        let heard = Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            while let Some(line) = running.line_or_end() {
                // Where the test has failed, nobody minds any more.
                let Ok(mut seen) = heard.lock() else { return };
                seen.on_event(&serde_json::from_str(&line).unwrap());
            }
        });
        Self { pid, seen, reader: Some(reader) }
    }

    fn await_seen(&self, what: &str, is_it: impl Fn(&Seen) -> bool) {
        let deadline = Instant::now() + BACK_WITHIN;
        loop {
            std::thread::sleep(Duration::from_millis(50));
            let seen = self.seen.lock().unwrap();
            if is_it(&seen) {
                return;
            }
            assert!(Instant::now() < deadline, "waited for {what}: {seen:#?}");
        }
    }

    /// Waits until content has come over an active path through this AS alone, from now on.
    fn await_payload(&self, over: &str) -> Duration {
        let since = Instant::now();
        let before: RefCell<HashMap<String, u64>> = RefCell::default();
        self.await_seen(&format!("payload over {over}"), |seen| {
            let mut before = before.borrow_mut();
            seen.paths.iter().filter(|(path, ..)| seen.is_over(path, over)).any(|(path, state, bytes)| {
                let first = before.entry(path.clone()).or_insert(*bytes);
                // A new connection counts from zero.
                *first = (*first).min(*bytes);
                state == "active" && *bytes >= *first + CARRIED_BYTES
            })
        });
        since.elapsed()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        common::signal(self.pid, "KILL");
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// What strangers send to `share` in the second AS of a line of three.
struct Stranger {
    /// At an address of the AS's router: what comes from anywhere else is dropped at once.
    socket: UdpSocket,
    to: ScionAddr,
    paths: [ScionPath; 2],
}

impl Stranger {
    /// In the AS of `to`, who is connected with the AS `peer`.
    fn new(network: &Network, to: &str, peer: &str) -> Self {
        let to = to.parse::<Endpoint>().unwrap().as_scion().unwrap();
        let peer: IsdAs = peer.parse().unwrap();
        let path = |from, to| network.control().paths(from, to, SystemTime::now()).unwrap().swap_remove(0);
        let paths = [path(peer, to.isd_as), path(to.isd_as, peer)];
        let router = paths[1].next_hop.unwrap().ip();
        Self { socket: UdpSocket::bind((router, 0)).unwrap(), to, paths }
    }

    fn fields<'a>(&self, from: ScionAddr, to: ScionAddr, path: &'a [u8]) -> HeaderFields<'a> {
        let address = |of: ScionAddr| Address::new(of.isd_as, of.host.ip());
        let path = PathRef::from_dataplane(path).unwrap();
        HeaderFields { source: address(from), destination: address(to), path, flow_id: 1, traffic_class: 0 }
    }

    fn datagram(&self, from: ScionAddr, to: ScionAddr, path: &[u8], payload: &[u8]) -> Vec<u8> {
        let ports = Ports { source: from.host.port(), destination: to.host.port() };
        let template = HeaderTemplate::new(&self.fields(from, to, path), ports).unwrap();
        let mut packet = vec![0; template.header_len()];
        template.write(payload.len(), checksum::sum(payload), &mut packet).unwrap();
        packet.extend(payload);
        packet
    }

    fn send(&self, packet: &[u8]) {
        self.socket.send_to(packet, self.to.host).unwrap();
    }

    /// Says, as the AS in the middle, that its link to `peer` is down.
    fn complain(&self, peer: ScionAddr) {
        let [here, way] = &self.paths;
        let interface = way.interfaces[2];
        let quote = self.datagram(self.to, peer, &way.dataplane, &[7; 100]);
        let complaint =
            Message::ExternalInterfaceDown { isd_as: interface.isd_as, interface: interface.id, quote: &quote };
        let liar = ScionAddr::new(interface.isd_as, "127.0.0.1:0".parse().unwrap());
        let mut packet = vec![0; 4096];
        let len = complaint.write(&self.fields(liar, self.to, &here.dataplane), &mut packet).unwrap();
        self.send(&packet[..len]);
    }

    /// A packet of `peer`'s with hop fields that nobody sealed and that end in `hours`.
    fn lead_astray(&self, peer: ScionAddr, hours: u32) {
        let mut path = self.paths[0].dataplane.clone();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as u32;
        // Two segments: the meta header, two info fields whose last four bytes are the timestamp, hop fields of twelve bytes.
        for info in [4, 12] {
            path[info + 4..info + 8].copy_from_slice(&(now + hours * 3600 - 6 * 3600).to_be_bytes());
        }
        path[20..].chunks_mut(12).for_each(|hop| hop[6..].fill(0xee));
        self.send(&self.datagram(peer, self.to, &path, &[0x40; 1200]));
    }
}

// Nothing of SCION is signed but what is inside QUIC. This connection says something every nine seconds, if that.
#[test]
fn no_strangers_packet_ends_a_connection_or_leads_it_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(3_000_000, 7)).unwrap();
    let network = example(121, "line.toml", "");
    let (mut sharer, address, magnet) = share(dir.path(), &network, "1-ff00:0:111", &["--limit-up", "1K", "one.bin"]);
    let (_getter, peer) = getting(dir.path(), &network, "1-ff00:0:112", &[&magnet, "-o", "out"]);
    let connected = sharer.event("peer_connected");
    assert_eq!(connected["peer"], peer.as_str());
    let stranger = Stranger::new(&network, &address, "1-ff00:0:112");
    let peer = peer.parse::<Endpoint>().unwrap().as_scion().unwrap();
    let mut looks = 0;
    while looks < 6 {
        for hours in [7, 23, 24 * 365] {
            stranger.lead_astray(peer, hours);
        }
        stranger.complain(peer);
        let event: Value = serde_json::from_str(&sharer.line()).unwrap();
        let is_trouble = event["event"] == "peer_disconnected" || event["state"] == "down" || event["state"] == "gone";
        assert!(!is_trouble, "{event}");
        looks += usize::from(event["event"] == "progress");
    }
    // And it still carries.
    let uploaded = |sharer: &mut Running| sharer.event("progress")["uploaded"].as_u64().unwrap();
    let before = uploaded(&mut sharer);
    let deadline = Instant::now() + BACK_WITHIN;
    while uploaded(&mut sharer) == before {
        assert!(Instant::now() < deadline, "nothing goes out any more");
    }
}

#[test]
fn a_host_with_all_its_ports_keeps_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(300_000, 8))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = example(122, "line.toml", "");
    let (_sharer, address, magnet) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin"]);
    let stranger = Stranger::new(&network, &address, "1-ff00:0:112");
    let path = stranger.paths[0].dataplane.clone();
    for port in 1..=5000 {
        let from =
            ScionAddr::new("1-ff00:0:112".parse().unwrap(), SocketAddr::new("127.122.2.99".parse().unwrap(), port));
        stranger.send(&stranger.datagram(from, stranger.to, &path, b"hello"));
        if port % 100 == 0 {
            // No more at once than the socket's buffer takes.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let (code, _, stderr) = finish(&mut get(dir.path(), &network, "1-ff00:0:112", &[&magnet, "-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out"), &file);
}

/// Two leaves over one core, on links that take packets of 1280 bytes: 1168 are left behind the headers of three ASes, and 1200
/// behind those of two.
const NARROW: &str = "
    [as.'1-ff00:0:110']
    core = true
    [as.'1-ff00:0:111']
    [as.'1-ff00:0:112']
    [defaults]
    mtu = 1280
    [[link]]
    parent = '1-ff00:0:110'
    child = '1-ff00:0:111'
    [[link]]
    parent = '1-ff00:0:110'
    child = '1-ff00:0:112'
";

#[test]
fn paths_that_are_too_narrow_are_named_and_those_just_wide_enough_carry() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(300_000, 9))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = embedded::start(123, NARROW);
    let (_sharer, address, magnet) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin"]);
    let (code, _, stderr) = finish(&mut get(dir.path(), &network, "1-ff00:0:110", &[&magnet, "-o", "near"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("near"), &file);

    let (_, daemon) = host(&network, "1-ff00:0:112");
    let (code, paths, stderr) = run(dir.path(), &["paths", "1-ff00:0:111", "--sciond", &daemon]);
    assert_eq!(code, 0, "{stderr}");
    assert!(paths.contains("MTU 1280 (too narrow for transfers: QUIC needs 1312 here)"), "{paths}");
    let (_, paths, _) = run(dir.path(), &["paths", "1-ff00:0:111", "--sciond", &daemon, "--json"]);
    let paths: Value = serde_json::from_str(&paths).unwrap();
    assert_eq!(paths["paths"][0]["mtu_needed"], 1312);
    let (mut far, _) = getting(dir.path(), &network, "1-ff00:0:112", &[&magnet, "-o", "far"]);
    let refused = far.event("peer_disconnected");
    let reason = refused["reason"].as_str().unwrap();
    assert_eq!(refused["peer"], address.as_str());
    assert!(reason.contains("large enough for QUIC") && reason.contains("1280") && reason.contains("1312"), "{reason}");
}

#[test]
fn peers_are_who_their_keys_say_or_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(300_000, 7))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = example(118, "line.toml", "");
    let (sharer, address, magnet) =
        share(dir.path(), &network, "1-ff00:0:111", &["one.bin", "--key", "sharer.key", "--torrent-out", "t.torrent"]);
    let key = magnet.split("x.pe=").find_map(|part| part.split_once("@[")).unwrap().0.to_owned();
    let (code, _, stderr) = finish(&mut get(dir.path(), &network, "1-ff00:0:112", &[&magnet, "-o", "by-link"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("by-link"), &file);
    let by_hand = format!("{key}@{address}");
    let arguments = ["t.torrent", "-o", "by-hand", "--peer", &by_hand, "--allow", &key];
    let (code, _, stderr) = finish(&mut get(dir.path(), &network, "1-ff00:0:112", &arguments));
    assert_eq!(code, 0, "{stderr}");
    // Another key than the one that is named, or than those that are admitted.
    let other = "a".repeat(51) + "q";
    let wrong = format!("{other}@{address}");
    for flags in [["--peer", &wrong, "--verbose"], ["--peer", &address, &format!("--allow={other}")]] {
        let arguments = [&["t.torrent", "-o", "none", "--json"], &flags[..]].concat();
        let mut running = Running::start(&mut get(dir.path(), &network, "1-ff00:0:112", &arguments));
        let gone = running.event("peer_disconnected");
        assert!(gone["reason"].as_str().unwrap().contains(&key), "{gone}");
        assert_eq!(running.interrupt().0, 130);
    }
    drop(sharer);
    // Who shares admits keys, too.
    let (_sharer, address, _) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin", "--allow", &other]);
    let arguments = ["t.torrent", "-o", "none", "--json", "--peer", &address];
    let mut running = Running::start(&mut get(dir.path(), &network, "1-ff00:0:112", &arguments));
    let gone = running.event("peer_disconnected");
    assert!(gone["reason"].as_str().unwrap().contains("not admitted"), "{gone}");
}

#[test]
fn a_peer_that_was_met_has_to_prove_the_same_key_until_it_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(300_000, 11))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = example(124, "line.toml", "");
    let (sharer, address, _) = share(dir.path(), &network, "1-ff00:0:111", &["one.bin", "--torrent-out", "t.torrent"]);
    let fetch = |out: &str| {
        finish(&mut get(dir.path(), &network, "1-ff00:0:112", &["t.torrent", "-o", out, "--peer", &address]))
    };
    let (code, _, stderr) = fetch("first");
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("first"), &file);
    let (code, known, _) = run(dir.path(), &["keys", "list"]);
    assert!(code == 0 && known.starts_with(&format!("{address} ")) && known.lines().count() == 1, "{known}");
    sharer.interrupt();
    // Somebody else answers there: the same address, another key.
    let (_, daemon) = host(&network, "1-ff00:0:111");
    let share_there = |flags: &[&str]| {
        let mut command = anabranch(dir.path());
        command.args(["share", "one.bin", "--json", "--listen", &address, "--sciond", &daemon]).args(flags);
        let mut running = Running::start_for(&mut command, BACK_WITHIN * 5);
        running.event("listening");
        running
    };
    let other = share_there(&["--key", "other.key"]);
    let (code, _, stderr) = fetch("refused");
    assert_eq!(code, 6, "{stderr}");
    let key = known.split_whitespace().nth(1).unwrap();
    for word in [&format!("known-keys, line 2, remembers {key}"), &format!("anabranch keys forget {address}")] {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
    assert!(!dir.path().join("refused/one.bin").exists());
    let (code, _, stderr) = run(dir.path(), &["keys", "forget", &address]);
    assert!(code == 0 && stderr.contains(key), "{stderr}");
    let (code, _, stderr) = fetch("second");
    assert_eq!(code, 0, "{stderr}");
    other.interrupt();
    let (code, _, stderr) = run(dir.path(), &["keys", "forget", &address, "[1-1,10.0.0.1]:9"]);
    assert!(code == 3 && stderr.contains("does not know [1-1,10.0.0.1]:9"), "{stderr}");
    // Who chose its address keeps its key for it.
    for out in ["third", "fourth"] {
        let sharer = share_there(&[]);
        let (code, _, stderr) = fetch(out);
        assert_eq!(code, 0, "{stderr}");
        sharer.interrupt();
    }
    // What stands in the file and makes no sense is named before anybody is dialled.
    fs::write(dir.path().join("broken"), "[1-1,10.0.0.1]:9\n").unwrap();
    let arguments = ["t.torrent", "-o", "none", "--peer", &address, "--known-keys", "broken"];
    let (code, _, stderr) = finish(&mut get(dir.path(), &network, "1-ff00:0:112", &arguments));
    assert!(code == 3 && stderr.contains("broken, line 1"), "{stderr}");
}
