//! `share --ppspp` and `get` of its link across SCION networks that run in this process.

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anabranch_asnet::network::Network;
use common::embedded::{self, DIAMOND, host};
use common::{Running, anabranch, finish, noise};
use serde_json::Value;

/// How long a test may take on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(120);
const FROM: &str = "1-ff00:0:111";
const TO: &str = "1-ff00:0:112";

/// Shares a file by PPSPP from the first host of an AS: the program and its link.
fn share(dir: &Path, network: &Network, isd_as: &str, arguments: &[&str]) -> (Running, String) {
    let (listen, daemon) = host(network, isd_as);
    let mut command = anabranch(dir);
    command.args(["share", "--ppspp", "--json", "--listen", &listen, "--sciond", &daemon]).args(arguments);
    let mut running = Running::start_for(&mut command, PATIENCE);
    let link = running.event("started")["link"].as_str().unwrap().to_owned();
    // Who listens in the network alone is reached there alone: over plain IP, on one machine, nothing would go through it.
    let peers: Vec<&str> = link.split(['?', '&']).filter_map(|pair| pair.strip_prefix("pe=")).collect();
    assert!(peers.len() == 1 && peers[0].starts_with("[1-ff00:0:"), "{link}");
    (running, link)
}

/// `get` at the first host of an AS.
fn get(dir: &Path, network: &Network, isd_as: &str, arguments: &[&str]) -> Command {
    let (listen, daemon) = host(network, isd_as);
    let mut command = anabranch(dir);
    command.args(["get", "--listen", &listen, "--sciond", &daemon, "--json"]).args(arguments);
    command
}

fn events(stdout: &str, name: &str) -> Vec<Value> {
    let all = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["event"] == name).collect()
}

/// What each path brought, by its name, as the log has it last.
fn brought(log: &Path) -> Vec<(String, u64)> {
    let text = fs::read_to_string(log).unwrap();
    let mut found: Vec<(String, u64)> = Vec::new();
    for row in text.lines().skip(1) {
        // A SCION address, in quotes, has a comma.
        let (_, rest) = row.split_once("\",").unwrap();
        let fields: Vec<&str> = rest.split(',').collect();
        let (name, bytes) = (fields[0].to_owned(), fields[2].parse().unwrap());
        match found.iter_mut().find(|known| known.0 == name) {
            Some(known) => known.1 = known.1.max(bytes),
            None => found.push((name, bytes)),
        }
    }
    found
}

#[test]
fn a_link_leads_across_the_network_and_both_paths_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(12_000_003, 1);
    fs::write(dir.path().join("film"), &film).unwrap();
    let network = embedded::start(130, DIAMOND);
    let (sharer, link) = share(dir.path(), &network, FROM, &["film", "--limit-up", "3M"]);
    assert!(link.contains("pe=[1-ff00:0:111,127.130."), "{link}");
    let log = dir.path().join("paths.csv");
    let arguments = [&link, "-o", "out", "--paths", "2", "--explain", "--path-log", log.to_str().unwrap()];
    let (code, stdout, stderr) = finish(&mut get(dir.path(), &network, TO, &arguments));
    assert_eq!(code, 0, "{stdout} {stderr}");
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
    let chosen = events(&stdout, "paths");
    let choices = chosen.last().unwrap()["candidates"].as_array().unwrap();
    assert_eq!(choices.iter().filter(|path| path["choice"] == "chosen").count(), 2, "{stdout}");
    let brought = brought(&log);
    assert!(brought.iter().filter(|(_, bytes)| *bytes > 1_000_000).count() == 2, "{brought:?}");
    assert_eq!(sharer.interrupt().0, 0);
}

#[test]
fn one_of_two_paths_is_cut_and_the_other_carries_on() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(14_000_000, 2);
    fs::write(dir.path().join("film"), &film).unwrap();
    let network = embedded::start(131, DIAMOND);
    let (_sharer, link) = share(dir.path(), &network, FROM, &["film"]);
    let log = dir.path().join("paths.csv");
    let arguments =
        [&link, "-o", "out", "--paths", "2", "--limit-down", "2M", "--path-log", log.to_str().unwrap(), "--sequential"];
    let mut getter = Running::start_for(&mut get(dir.path(), &network, TO, &arguments), PATIENCE);
    // Both carry.
    loop {
        let progress = getter.event("progress");
        let paths = progress["paths"].as_array().unwrap();
        if paths.iter().filter(|path| path["downloaded"].as_u64().unwrap() > 200_000).count() == 2 {
            break;
        }
    }
    let cut = network.find_link("1-ff00:0:120", Some(FROM)).unwrap();
    network.set_link_up(cut, false).unwrap();
    loop {
        let event: Value = serde_json::from_str(&getter.line()).unwrap();
        if event["event"] == "path" && event["state"] == "down" {
            break;
        }
        assert_ne!(event["event"], "finished", "it ended before it was told that a path was cut");
    }
    getter.event("finished");
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
    assert!(brought(&log).iter().filter(|(_, bytes)| *bytes > 200_000).count() >= 2);
}

/// Fresh hop fields take the place of those that end, at both ends, and whoever looks paths up may be away for a while.
#[test]
fn a_transfer_outlives_its_paths() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(12_000_000, 3);
    fs::write(dir.path().join("film"), &film).unwrap();
    let network = embedded::start(132, &format!("segment_lifetime = '20 s'\n{DIAMOND}"));
    let (_sharer, link) = share(dir.path(), &network, FROM, &["film"]);
    // Longer than any path lives.
    let arguments = [&link, "-o", "out", "--paths", "2", "--limit-down", "450K"];
    let (code, stdout, stderr) = finish(&mut get(dir.path(), &network, TO, &arguments));
    assert_eq!(code, 0, "{stdout} {stderr}");
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
}

#[test]
fn flags_that_leave_no_path_or_one_are_obeyed() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(1_500_000, 4);
    fs::write(dir.path().join("film"), &film).unwrap();
    let network = embedded::start(133, DIAMOND);
    let (_sharer, link) = share(dir.path(), &network, FROM, &["film"]);
    for (flags, needle) in [
        (&["--acl", "-"][..], "forbids every path"),
        (&["--sequence", "0* 2-0 0*"], "forbids every path"),
        (&["--path", "0123456789"], "no path has an id that starts with `0123456789`"),
    ] {
        let arguments = [&[link.as_str(), "-o", "none"], flags].concat();
        let (code, stdout, stderr) = finish(&mut get(dir.path(), &network, TO, &arguments));
        assert_eq!(code, 6, "{flags:?}: {stdout} {stderr}");
        let error = &events(&stdout, "peer_error")[0];
        assert!(error["reason"].as_str().unwrap().contains(needle), "{flags:?}: {error}");
        assert_eq!(error["final"], true, "{flags:?}: {error}");
    }
    // Over the first core AS alone.
    let log = dir.path().join("paths.csv");
    let only = ["--sequence", "0 1-ff00:0:110 0", "--paths", "2", "--path-log", log.to_str().unwrap()];
    let arguments = [&[link.as_str(), "-o", "out"], &only[..]].concat();
    let (code, stdout, stderr) = finish(&mut get(dir.path(), &network, TO, &arguments));
    assert_eq!(code, 0, "{stdout} {stderr}");
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
    assert_eq!(brought(&log).len(), 1);
}

/// SCION cuts nothing: chunks go over paths that take them, whatever their length, and over no others. Where there is none, that is said.
#[test]
fn chunks_go_over_paths_that_take_them_and_over_no_others() {
    // As many chunks as need the most digests, and some more.
    for (net, len, mtus, chunk, paths) in [
        // Digests fit beside a chunk over neither.
        (151, (1 << 20) - 1024, [1280, 1280], "1KiB", 2),
        (152, 6_000_000, [9000, 9000], "8KiB", 2),
        (153, 6_000_000, [1472, 9000], "8KiB", 1),
        (154, 3_000_000, [1472, 8000], "8KiB", 0),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let film = noise(len, 6);
        fs::write(dir.path().join("film"), &film).unwrap();
        let mut links = DIAMOND.split("[[link]]");
        let mut text = format!("{}\n", links.next().unwrap().replace("']\n", "']\n    mtu = 9000\n"));
        for (at, link) in links.enumerate() {
            text += &format!("    [[link]]\n    mtu = {}\n{link}", mtus[at / 2 % 2]);
        }
        let network = embedded::start(net, &text);
        let (sharer, link) = share(dir.path(), &network, FROM, &["film", "--chunk-length", chunk, "--limit-up", "3M"]);
        let log = dir.path().join("paths.csv");
        let arguments = [&link, "-o", "out", "--paths", "2", "--path-log", log.to_str().unwrap()];
        let (code, stdout, stderr) = finish(&mut get(dir.path(), &network, TO, &arguments));
        if paths > 0 {
            assert_eq!(code, 0, "{mtus:?}: {stdout} {stderr}");
            assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
            let brought = brought(&log);
            assert_eq!(brought.iter().filter(|(_, bytes)| *bytes > 0).count(), paths, "{mtus:?} {brought:?}");
        } else {
            assert_eq!(code, 6, "{stdout} {stderr}");
            let error = events(&stdout, "peer_error").swap_remove(0);
            let reason = error["reason"].as_str().unwrap();
            for needle in ["chunks of 8192 bytes", "takes 8000 bytes", "are 8325", "--chunk-length"] {
                assert!(reason.contains(needle), "{reason}");
            }
            assert_eq!(error["final"], true, "{error}");
        }
        assert_eq!(sharer.interrupt().0, 0);
    }
}

/// Who is met by a tracker alone: trackers name SCION addresses too.
#[test]
fn peers_in_the_network_find_each_other_by_a_tracker() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(1_000_000, 5);
    fs::write(dir.path().join("film"), &film).unwrap();
    let network = embedded::start(134, DIAMOND);
    let mut tracker = Running::start(anabranch(dir.path()).args(["tracker", "--listen", "127.0.0.1:0", "--json"]));
    let url = tracker.event("listening")["http"].as_str().unwrap().to_owned();
    let (_sharer, link) = share(dir.path(), &network, FROM, &["film", "--tracker", &url]);
    let (id, query) = link.split_once('?').unwrap();
    let nobody: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("pe=")).collect();
    let link = format!("{id}?{}", nobody.join("&"));
    let (code, stdout, stderr) = finish(&mut get(dir.path(), &network, TO, &[&link, "-o", "out"]));
    assert_eq!(code, 0, "{stdout} {stderr}");
    assert!(fs::read(dir.path().join("out/film")).unwrap() == film);
}

/// A live stream over two paths, one of which is cut while it is watched: nothing is left out, and nothing is wrong.
#[test]
fn a_live_stream_outlives_a_path() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(3_000_000, 9);
    fs::write(dir.path().join("film"), &film).unwrap();
    let network = embedded::start(136, DIAMOND);
    let (listen, daemon) = host(&network, FROM);
    let mut command = anabranch(dir.path());
    command.args(["live", "--input", "film", "--rate", "200K", "--json", "--listen", &listen, "--sciond", &daemon]);
    let mut source = Running::start_for(&mut command, PATIENCE);
    let link = source.event("started")["link"].as_str().unwrap().to_owned();
    assert!(link.contains("pe=[1-ff00:0:111,127.136."), "{link}");
    let arguments = [&link, "-o", "out", "--paths", "2"];
    let mut viewer = Running::start_for(&mut get(dir.path(), &network, TO, &arguments), PATIENCE);
    viewer.event("joined");
    // Both paths carry.
    loop {
        let progress = viewer.event("progress");
        let paths = progress["paths"].as_array().unwrap();
        if paths.iter().filter(|path| path["downloaded"].as_u64().unwrap() > 50_000).count() == 2 {
            break;
        }
    }
    let cut = network.find_link("1-ff00:0:120", Some(FROM)).unwrap();
    network.set_link_up(cut, false).unwrap();
    let recorded = viewer.event("recorded");
    assert_eq!(recorded["skipped_chunks"], 0, "{recorded}");
    assert_eq!(viewer.child.wait().unwrap().code(), Some(0), "{recorded}");
    let out = fs::read(dir.path().join("out")).unwrap();
    assert!(out.len() > 1_000_000 && film.ends_with(&out), "{} bytes are not the stream's rest", out.len());
    assert_eq!(source.child.wait().unwrap().code(), Some(0));
}

/// A live stream that comes in bursts, with a pause between them, over all the paths that are chosen: a viewer that is alone with the
/// source has all of it, and both ends know that.
#[test]
fn a_live_stream_with_a_pause_arrives_to_its_end_over_several_paths() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(4_000_000, 10);
    let network = embedded::example(137, "three-ways.toml", "");
    let (listen, daemon) = host(&network, "1-1");
    let mut command = anabranch(dir.path());
    command.args(["live", "--json", "--listen", &listen, "--sciond", &daemon]);
    let mut source = Running::start_with(&mut command, Stdio::piped());
    let link = source.event("started")["link"].as_str().unwrap().to_owned();
    let mut input = source.child.stdin.take().unwrap();
    input.write_all(&film[..2_000_000]).unwrap();
    let mut viewer = Running::start_for(&mut get(dir.path(), &network, "1-2", &[&link, "-o", "out"]), PATIENCE);
    viewer.event("joined");
    // What came before the pause is there, and the paths are chosen.
    while viewer.event("recording")["bytes"].as_u64().unwrap() < 1_000_000 {}
    std::thread::sleep(Duration::from_secs(2));
    input.write_all(&film[2_000_000..]).unwrap();
    drop(input);
    let recorded = viewer.event("recorded");
    assert_eq!(viewer.child.wait().unwrap().code(), Some(0), "{recorded}");
    assert_eq!(recorded["skipped_chunks"], 0, "{recorded}");
    let out = fs::read(dir.path().join("out")).unwrap();
    assert!(out.len() > 2_500_000 && film.ends_with(&out), "{} bytes are not the stream's rest", out.len());
    assert_eq!(source.event("ended")["lacking_viewers"], 0);
    assert_eq!(source.child.wait().unwrap().code(), Some(0));
}
