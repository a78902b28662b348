//! A bulk transfer from daemon to daemon across a SCION network that runs in this process: over both its paths, with a link that is cut,
//! and over either end being killed.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_asnet::network::Network;
use common::bulk::elsewhere;
use common::embedded::{self, DIAMOND, host};
use common::{Running, finish, noise, signal};
use serde_json::Value;

/// Nothing takes longer, with both cores busy elsewhere.
const PATIENCE: Duration = Duration::from_secs(120);
const FROM: &str = "1-ff00:0:111";
const TO: &str = "1-ff00:0:112";

/// A daemon at the first host of an AS, which is reached in the network alone.
struct Daemon {
    dir: PathBuf,
    listen: String,
    sciond: String,
    running: Running,
}

impl Daemon {
    fn new(network: &Network, isd_as: &str, dir: &Path) -> Self {
        let dir = dir.join(isd_as.replace(':', "_"));
        fs::create_dir_all(dir.join("files")).unwrap();
        let (listen, sciond) = host(network, isd_as);
        let running = start(&dir, &listen, &sciond);
        Self { dir, listen, sciond, running }
    }

    /// Kills it, and starts it again.
    fn kill(&mut self) {
        signal(self.running.child.id(), "KILL");
        self.running.child.wait().unwrap();
        self.running = start(&self.dir, &self.listen, &self.sciond);
    }

    /// Asks it from the terminal.
    fn asked(&self, arguments: &[&str]) -> Value {
        let mut command = elsewhere(&self.dir, "asks");
        let (code, out, err) = finish(command.args(arguments).args(["--json", "--daemon", "./lib/daemon.sock"]));
        assert_eq!(code, 0, "{arguments:?}: {err}");
        out.lines().last().map_or(Value::Null, |line| serde_json::from_str(line).unwrap())
    }

    /// Asks it by the API.
    fn get(&self, target: &str) -> Value {
        let mut stream = UnixStream::connect(self.dir.join("lib/daemon.sock")).unwrap();
        write!(stream, "GET /api/v1/{target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Waits until something is as it is to be.
    fn wait(&self, target: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let value = self.get(target);
            if is_so(&value) {
                return value;
            }
            assert!(began.elapsed() < PATIENCE && value["state"] != "error", "{target}: {value}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn start(dir: &Path, listen: &str, sciond: &str) -> Running {
    let mut command = elsewhere(dir, "daemon");
    command.args(["daemon", "--json", "--api", "none", "--dir", "files", "--state-dir", "lib"]);
    command.args(["--listen", listen, "--sciond", sciond, "--paths", "2"]);
    let mut running = Running::start_for(&mut command, PATIENCE * 4);
    running.event("serving");
    running
}

/// The paths that carry content, each with what went over it.
fn carrying(paths: &Value) -> Vec<u64> {
    let moved = |path: &Value| path["downloaded"].as_u64().unwrap() + path["uploaded"].as_u64().unwrap();
    paths["paths"].as_array().unwrap().iter().filter(|path| path["state"] == "active").map(moved).collect()
}

#[test]
fn a_file_goes_by_ticket_over_both_paths_and_goes_on_after_either_end_was_killed_and_a_link_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let network = embedded::start(141, DIAMOND);
    let (mut one, mut two) = (Daemon::new(&network, FROM, dir.path()), Daemon::new(&network, TO, dir.path()));
    let big = noise(24_000_000, 1);
    fs::write(one.dir.join("files/big"), &big).unwrap();
    let added = one.asked(&["add", "--send", "files/big", "--torrent-limit-up", "1M"]);
    let (sent, ticket) = (added["id"].to_string(), added["ticket"].as_str().unwrap().to_owned());
    let addresses = added["addresses"].as_array().unwrap();
    assert!(addresses.len() == 1 && addresses[0].as_str().unwrap().starts_with("[1-ff00:0:111,"), "{added}");
    let received = two.asked(&["add", &ticket])["id"].to_string();
    let (content, paths) = (format!("contents/{received}"), format!("contents/{received}/paths"));

    // Both carry, and both ends say so; who chose them, with the networks that they cross.
    let told = two.wait(&paths, |paths| carrying(paths).iter().filter(|moved| **moved > 200_000).count() == 2);
    assert!(told["paths"].as_array().unwrap().iter().all(|path| path["network"] == "scion"), "{told}");
    one.wait(&format!("contents/{sent}/paths"), |paths| {
        carrying(paths).iter().filter(|moved| **moved > 200_000).count() == 2
    });
    let ases: Vec<String> = told["paths"].as_array().unwrap().iter().map(|path| path["ases"].to_string()).collect();
    assert!(ases.iter().any(|ases| ases.contains("1-ff00:0:110")), "{ases:?}");
    assert!(ases.iter().any(|ases| ases.contains("1-ff00:0:120")), "{ases:?}");
    assert!(told["changes"].to_string().contains("answered"), "{told}");

    // The receiver is killed: it has what it had, and goes on with that.
    let before = two.wait(&content, |content| content["done"].as_u64() > Some(4 << 20))["done"].as_u64().unwrap();
    two.kill();
    let again = two.wait(&content, |content| content["state"] == "downloading" && content["done"].as_u64() > Some(0));
    assert!(again["done"].as_u64().unwrap() > before / 2, "{again} is not what there was, {before}");
    two.wait(&paths, |paths| carrying(paths).len() == 2);

    // So is the sender: whoever has its ticket finds it again.
    one.kill();
    let more = two.wait(&content, |content| content["state"] == "downloading")["done"].as_u64();
    two.wait(&content, |content| content["done"].as_u64() > more.map(|done| done + (1 << 20)));
    two.wait(&paths, |paths| carrying(paths).len() == 2);

    // A link of one path is cut: the other carries the rest.
    let cut = network.find_link("1-ff00:0:120", Some(FROM)).unwrap();
    network.set_link_up(cut, false).unwrap();
    two.wait(&paths, |paths| paths["changes"].to_string().contains("\"down\"") && carrying(paths).len() == 1);
    one.asked(&["limit", &sent, "--up", "none"]);
    let whole = two.wait(&content, |content| content["state"] == "complete");
    assert_eq!(whole["size"].as_u64(), Some(24_000_000));
    assert!(fs::read(two.dir.join("files/big")).unwrap() == big);
    one.wait(&format!("contents/{sent}"), |content| content["state"] == "complete");
}
