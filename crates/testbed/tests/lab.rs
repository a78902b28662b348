//! The lab through the front door: BGP beside SCION on the same links.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anabranch_testbed::net;
use anabranch_testbed::peers::{anabranch, checkout};
use anabranch_testbed::process::Process;
use serde_json::Value;

/// Far more than the small plan takes.
const LIMIT: Duration = Duration::from_secs(300);

fn lab(words: &[&str], dir: &Path) -> Command {
    let mut command = anabranch::command(None).unwrap_or_else(|error| panic!("{error}"));
    command.arg("lab").args(words).current_dir(dir);
    command
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
