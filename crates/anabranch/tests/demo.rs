//! The whole scenario, as a stranger runs it, with a small file.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::{Mutex, PoisonError};

use common::{Running, anabranch, finish};
use serde_json::Value;

/// Rates of so short a run say little; that the paths add up still shows.
const SIZE: &str = "8MiB";
/// Its network has its addresses to itself: one demo at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn one_file_is_fetched_in_three_ways_and_a_page_tells_of_it() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = finish(anabranch(dir.path()).args(["demo", "--size", SIZE, "--out", "out", "--json"]));
    assert_eq!(code, 0, "{stdout} {stderr}");
    let events: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let report = events.last().unwrap();
    assert_eq!(report["event"], "report", "{stdout}");
    let runs = report["runs"].as_array().unwrap();
    let of = |key: &str| runs.iter().map(|run| run[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("selector"), ["first", "all", "disjoint"]);
    assert_eq!(of("paths_used"), [1, 4, 4], "{report}");
    // What the paths have room for: one link; two links, each twice; four links.
    assert_eq!(of("paths_limit_bps"), [40_000_000, 80_000_000, 140_000_000], "{report}");
    assert_eq!(of("max_flow_bps"), [140_000_000, 140_000_000, 140_000_000]);

    let page = fs::read_to_string(report["page"].as_str().unwrap()).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(page.matches("class=\"map\"").count(), 3);
    assert_eq!(page.matches("37 candidates").count(), 3);
    assert!(page.contains("shares nothing with the paths chosen before"));
    for outside in ["http://", "https://", "src=", "NaN"] {
        assert!(!page.contains(outside), "{outside}");
    }
    // The logs stay, the file does not.
    let mut kept: Vec<_> =
        fs::read_dir(dir.path().join("out")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    kept.sort();
    assert!(kept.contains(&"disjoint.paths.csv".into()) && kept.contains(&"all.get.jsonl".into()), "{kept:?}");
    assert!(!kept.contains(&"noise".into()), "{kept:?}");
}

#[test]
fn the_page_is_served_while_it_runs_and_says_how_far_it_is() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["demo", "--size", "32MiB", "--out", "out", "--json", "--web"];
    let mut demo = Running::start(anabranch(dir.path()).args(arguments));
    let url = demo.event("page")["url"].as_str().unwrap().to_owned();
    let address = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix('/')).unwrap().to_owned();
    let look = || {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    };
    assert!(look().starts_with("HTTP/1.1 200"));
    while demo.event("progress")["downloaded"] == 0 {}
    // It is told of once a second.
    let mut page = look();
    while !page.contains("Under way:") {
        std::thread::sleep(std::time::Duration::from_millis(50));
        page = look();
    }
    assert!(page.contains("class=\"map\"") && page.contains("<code>first</code> has"), "{page}");
    assert_eq!(demo.interrupt().0, 130);
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn who_is_interrupted_leaves_nothing_running() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let mut demo = Running::start(anabranch(dir.path()).args(["demo", "--size", "64MiB", "--out", "out", "--json"]));
    let run = demo.event("run");
    let listen = run["commands"][0].as_str().unwrap().split('\'').nth(1).unwrap().to_owned();
    while demo.event("progress")["downloaded"] == 0 {}
    assert_eq!(demo.interrupt().0, 130);
    // Where it was shared, nobody listens any more.
    let (host, port) = listen.rsplit_once(',').unwrap().1.split_once("]:").unwrap();
    assert_eq!(port, "31000");
    UdpSocket::bind((host, 31000)).unwrap();
    assert!(!dir.path().join("out/noise").exists());
}

#[test]
fn what_cannot_be_is_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, stderr) = finish(anabranch(dir.path()).args(["demo", "--size", "64KiB"]));
    assert_eq!((code, stderr.contains("1MiB or more")), (2, true), "{stderr}");
    fs::write(dir.path().join("file"), "x").unwrap();
    let (code, _, stderr) = finish(anabranch(dir.path()).args(["demo", "--out", "file/below"]));
    assert_eq!((code, stderr.contains("--out")), (5, true), "{stderr}");
}
