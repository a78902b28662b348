//! The lab through the front door: BGP beside SCION on the same links.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_asnet::link::LinkShape;
use anabranch_lab::netns::Namespace;
use anabranch_lab::wire::Wire;
use anabranch_testbed::peers::{anabranch, checkout};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, net};
use serde_json::Value;

/// Far more than the small plan takes.
const LIMIT: Duration = Duration::from_secs(300);

fn lab(words: &[&str], dir: &Path) -> Command {
    let mut command = anabranch::command(None).unwrap_or_else(|error| panic!("{error}"));
    command.arg("lab").args(words).current_dir(dir);
    command
}

/// Waits for what takes as long as the machine takes.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let asked = Instant::now();
    while !holds() {
        assert!(asked.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_wire_carries_what_crosses_and_changes_on_the_way() {
    if !net::available() {
        eprintln!("not run: namespaces need root");
        return;
    }
    let ends = [Namespace::new().unwrap(), Namespace::new().unwrap()];
    let shape = LinkShape { rate_bps: Some(1_000_000), queue_bytes: 10_000, mtu: 1500, ..LinkShape::default() };
    let wire = Wire::new([&ends[0], &ends[1]], "wire0", [shape; 2], 7).unwrap();
    for (end, address) in ends.iter().zip(["10.9.0.1/24", "10.9.0.2/24"]) {
        end.ip_batch(&format!("addr add {address} dev wire0\nlink set wire0 up\n")).unwrap();
    }
    let bind = |end: usize, address: &str| {
        ends[end].enter(|| UdpSocket::bind(address).map_err(Error::system("a socket"))).unwrap()
    };
    let (here, there) = (bind(0, "10.9.0.1:7"), bind(1, "10.9.0.2:7"));
    there.set_read_timeout(Some(LIMIT)).unwrap();
    here.send_to(b"hello", "10.9.0.2:7").unwrap();
    assert_eq!(there.recv(&mut [0; 9]).unwrap(), 5);

    // Four times what the link takes, in one direction alone.
    wire.cross(0, 4_000_000);
    eventually("cross traffic fills the queue", || wire.used()[0].cross > 10 && wire.used()[0].dropped > 10);
    wire.cross(0, 0);
    assert_eq!((wire.used()[1].cross, wire.used()[1].dropped), (0, 0));

    wire.set_shape(1, LinkShape { loss: 1.0, ..shape });
    eventually("the direction loses everything", || {
        there.send_to(b"lost", "10.9.0.1:7").unwrap();
        wire.used()[1].lost > 0
    });
    assert_eq!((wire.used()[0].lost, wire.failure()), (0, None));
}

fn namespaces() -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("anabranch-lab-")).collect()
}

#[test]
fn scion_beside_bgp_on_the_same_links_and_nothing_is_left_of_a_lab_that_was_killed() {
    if !net::available() {
        eprintln!("not run: namespaces need root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let plan = checkout().join("plans/small.toml").display().to_string();

    // One that is killed in the midst of its first run, peers and all.
    let mut killed = Process::spawn("lab", &mut lab(&["run", &plan, "--out", "out", "--json"], dir.path())).unwrap();
    killed.wait_event("progress", LIMIT).unwrap_or_else(|error| panic!("{error}"));
    let owner = format!("anabranch-lab-{}-", killed.pid());
    killed.kill().unwrap();
    assert!(namespaces().iter().any(|name| name.starts_with(&owner)));

    let run = ["run", &plan, "--out", "out", "--json"];
    // What it left in its folder is not overwritten by accident.
    let refused = lab(&run, dir.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--resume"));

    let mut command = lab(&[&run[..], &["--resume"]].concat(), dir.path());
    let (lines, _) = Process::run("lab", &mut command, LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert!(!namespaces().iter().any(|name| name.starts_with(&owner)), "what was left is removed");
    let events: Vec<Value> = lines.iter().map(|line| line.json()).collect();
    let finished: Vec<&Value> = events.iter().filter(|event| event["event"] == "run_finished").collect();
    assert_eq!(finished.len(), 2, "{events:?}");
    for run in &finished {
        assert!(run["failed"].is_null() && run["measures"]["goodput"].as_f64().unwrap() > 0.0, "{run}");
        // Two peers in one AS: the content crosses two links at least once, and each of them not ten times.
        let wire = run["measures"]["wire"].as_f64().unwrap();
        assert!((1.0..10.0).contains(&wire), "{run}");
    }

    let results = dir.path().join("out/small");
    let routes = fs::read_to_string(results.join("runs/swarm-bgp/0/routes.txt")).unwrap();
    assert!(routes.contains("10.1.3.0/24") && routes.contains("proto bgp"), "{routes}");
    let page = fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("goodput(scion)") && page.trim_end().ends_with("</html>"));
    let rows = fs::read_to_string(results.join("runs.csv")).unwrap();
    assert_eq!(rows.lines().count(), 3, "{rows}");
    assert!(!results.join("scratch").exists(), "what was fetched is removed");

    // A second time there is nothing to do, and two results that are one do not differ.
    let again = lab(&[&run[..], &["--resume"]].concat(), dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(again.status.success() && said.contains("\"runs\":0"), "{said}");
    let compared = lab(&["compare", "out/small", "out/small"], dir.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&compared.stdout).contains("1.000"), "{compared:?}");
}
