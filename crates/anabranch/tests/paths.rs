//! `share` and `get` over several paths of a SCION network that runs in this process.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anabranch_asnet::network::Network;
use common::embedded;
use common::{Running, anabranch, assert_same, finish, noise};
use serde_json::Value;

const BOB: &str = "1-ff00:0:112";

/// Two core ASes joined by `links` parallel links, with addresses of its own.
fn network(net: u8, links: usize) -> Network {
    let text = format!(
        "[as.\"1-ff00:0:111\"]\ncore = true\nhosts = ['alice']\n[as.\"{BOB}\"]\ncore = true\nhosts = ['bob']\n\
         [[link]]\ncore = ['1-ff00:0:111', '{BOB}']\ncount = {links}\nrate = '20 Mbit/s'\ndelay = '3 ms'\nqueue = '64 KiB'\n"
    );
    embedded::start(net, &text)
}

/// The arguments that put a program at the only host of an AS.
fn at(network: &Network, isd_as: &str) -> [String; 4] {
    let home = network.topology().get(isd_as.parse().unwrap()).unwrap();
    let listen = format!("[{isd_as},{}]:0", home.hosts[0].address);
    ["--listen".into(), listen, "--sciond".into(), home.daemon.to_string()]
}

/// Shares one file from the first AS: the program and its magnet link.
fn share(dir: &Path, network: &Network, length: usize, arguments: &[&str]) -> (Running, String) {
    fs::write(dir.join("one.bin"), noise(length, 1)).unwrap();
    let mut command = anabranch(dir);
    command.args(["share", "one.bin", "--json"]).args(at(network, "1-ff00:0:111")).args(arguments);
    let mut running = Running::start(&mut command);
    let magnet = running.event("started")["magnet"].as_str().unwrap().to_owned();
    (running, magnet)
}

/// Fetches it at the second AS, and answers what was told meanwhile.
fn get(dir: &Path, network: &Network, magnet: &str, arguments: &[&str]) -> Vec<Value> {
    let mut command = anabranch(dir);
    command.args(["get", magnet, "-o", "out", "--json"]).args(at(network, BOB)).args(arguments);
    let (code, stdout, stderr) = finish(&mut command);
    assert_eq!(code, 0, "{stdout} {stderr}");
    let one = fs::read(dir.join("one.bin")).unwrap();
    assert_same(&dir.join("out"), &[("one.bin".into(), one)]);
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The paths over which content came, by the progress that was told last while they were open.
fn carriers(events: &[Value]) -> BTreeSet<String> {
    let paths = events.iter().filter(|event| event["event"] == "progress");
    let paths = paths.flat_map(|event| event["paths"].as_array().unwrap().clone());
    let carries = |path: &Value| path["downloaded"].as_u64().unwrap() > 100_000;
    paths.filter(carries).map(|path| path["path"].as_str().unwrap().to_owned()).collect()
}

fn chosen(event: &Value) -> usize {
    event["candidates"].as_array().unwrap().iter().filter(|candidate| candidate["choice"] == "chosen").count()
}

#[test]
fn a_file_comes_over_all_paths_that_the_uploader_grants() {
    let dir = tempfile::tempdir().unwrap();
    let network = network(181, 3);
    let (mut sharer, magnet) = share(dir.path(), &network, 16_000_000, &[]);
    let events = get(dir.path(), &network, &magnet, &[]);
    assert_eq!(carriers(&events).len(), 3);
    let granted = events.iter().find(|event| event["event"] == "paths").unwrap();
    assert_eq!((chosen(granted), &granted["selector"]), (3, &Value::Null), "{granted}");
    let decided = sharer.event("paths");
    assert_eq!((chosen(&decided), decided["selector"].as_str()), (3, Some("disjoint")), "{decided}");
    let reasons =
        decided["candidates"].as_array().unwrap().iter().map(|candidate| candidate["reason"].as_str().unwrap());
    assert!(reasons.into_iter().all(|reason| reason.contains("shares nothing")), "{decided}");
}

#[test]
fn paths_over_scion_and_over_plain_ip_carry_one_peer_s_content_together() {
    let dir = tempfile::tempdir().unwrap();
    let network = network(185, 3);
    // The loopback has no limit of its own: without one there would be nothing left for the others.
    let arguments = ["--listen", "127.0.0.1:0", "--limit-up", "8 MiB"];
    let (_sharer, magnet) = share(dir.path(), &network, 32_000_000, &arguments);
    let events = get(dir.path(), &network, &magnet, &["--listen", "127.0.0.1:0"]);
    let carriers = carriers(&events);
    assert_eq!(carriers.len(), 4, "{carriers:?}");
    assert!(carriers.contains("127.0.0.1-127.0.0.1"), "{carriers:?}");
    let most = events.iter().filter_map(|event| event["peers"].as_u64()).max();
    assert_eq!(most, Some(1), "they are one peer's");
}

#[test]
fn no_more_paths_are_used_than_either_side_wants() {
    let dir = tempfile::tempdir().unwrap();
    let network = network(182, 4);
    let (_sharer, magnet) = share(dir.path(), &network, 12_000_000, &["--paths", "3"]);
    assert_eq!(carriers(&get(dir.path(), &network, &magnet, &["--paths", "2"])).len(), 2);
    fs::remove_dir_all(dir.path().join("out")).unwrap();
    assert_eq!(carriers(&get(dir.path(), &network, &magnet, &["--paths", "16"])).len(), 3);
    fs::remove_dir_all(dir.path().join("out")).unwrap();
    assert_eq!(carriers(&get(dir.path(), &network, &magnet, &["--selector", "first", "--paths", "1"])).len(), 1);
}

#[test]
fn the_user_who_fetches_has_the_last_word() {
    let dir = tempfile::tempdir().unwrap();
    let network = network(183, 4);
    let (_sharer, magnet) = share(dir.path(), &network, 12_000_000, &[]);
    let acl = ["--acl", "- 1-ff00:0:112#1 - 1-ff00:0:112#2 +", "--path-log", "paths.csv"];
    let events = get(dir.path(), &network, &magnet, &acl);
    assert_eq!(carriers(&events).len(), 2);
    let choice = events.iter().find(|event| event["event"] == "paths").unwrap();
    assert_eq!((chosen(choice), choice["selector"].as_str()), (2, Some("disjoint")), "{choice}");
    let log = fs::read_to_string(dir.path().join("paths.csv")).unwrap();
    assert!(log.lines().count() > 20, "{log}");
    assert!(log.lines().skip(1).all(|row| row.split(',').count() == 13), "a quoted comma in each row: {log}");
}

#[test]
fn what_a_cut_path_owed_comes_over_others_and_it_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let network = network(184, 2);
    let (_sharer, magnet) = share(dir.path(), &network, 40_000_000, &[]);
    let link = network.find_link("1-ff00:0:111#1", Some("1-ff00:0:112#1")).unwrap();
    let events = std::thread::scope(|scope| {
        let got = scope.spawn(|| get(dir.path(), &network, &magnet, &[]));
        std::thread::sleep(std::time::Duration::from_secs(2));
        network.set_link_up(link, false).unwrap();
        std::thread::sleep(std::time::Duration::from_secs(2));
        network.set_link_up(link, true).unwrap();
        got.join().unwrap()
    });
    let told: Vec<&Value> = events.iter().filter(|event| event["event"] == "path").collect();
    let down = told.iter().position(|event| event["state"] == "down").expect("nobody noticed the cut");
    assert!(told[down]["reason"].as_str().unwrap().contains("1-ff00:0:11"), "{}", told[down]);
    let back = told[down..].iter().any(|event| event["path"] == told[down]["path"] && event["state"] == "active");
    assert!(back, "{told:?}");
}

#[test]
fn what_is_wrong_with_the_flags_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(1000, 1)).unwrap();
    for (flags, message) in [
        (&["--selector", "best"][..], "[possible values: disjoint, disjoint-paper,"),
        (&["--paths", "17"], "17"),
        (&["--interactive"], "give --peer"),
        (&["--path-log", "/nowhere/paths.csv"], "/nowhere/paths.csv"),
    ] {
        let (code, _, stderr) =
            finish(anabranch(dir.path()).args(["share", "one.bin", "--listen", "127.0.0.1:0"]).args(flags));
        assert!(code == 2 || code == 5, "{flags:?}: {code} {stderr}");
        assert!(stderr.contains(message), "{flags:?}: {stderr}");
    }
}
