//! `share --ppspp --secure` and `live --secure`, and `get` of their links: keys over plain IP and across a SCION network.

mod common;

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_ppspp::link::Link;
use anabranch_ppspp::wire::{Dialect, Opening};
use common::embedded::{self, host};
use common::{Running, anabranch, noise, run};
use serde_json::Value;

/// Places of people, each with a key of its own.
fn people<const N: usize>() -> (tempfile::TempDir, [PathBuf; N]) {
    let dir = tempfile::tempdir().unwrap();
    let places = std::array::from_fn(|number| dir.path().join(format!("person{number}")));
    places.iter().for_each(|place| fs::create_dir(place).unwrap());
    (dir, places)
}

/// The key of whoever is there.
fn key(place: &Path) -> String {
    let (code, stdout, stderr) = run(place, &["keys", "own"]);
    assert_eq!(code, 0, "{stderr}");
    stdout.trim().to_owned()
}

fn share(place: &Path, arguments: &[&str]) -> (Running, String) {
    let usual = ["share", "--ppspp", "--secure", "--listen", "127.0.0.1:0", "--json"];
    let mut running = Running::start(anabranch(place).args(usual).args(arguments));
    let link = running.event("started")["link"].as_str().unwrap().to_owned();
    (running, link)
}

fn get(place: &Path, link: &str, arguments: &[&str]) -> (i32, String, String) {
    let usual = ["get", link, "--listen", "127.0.0.1:0", "--json"];
    run(place, &[&usual, arguments].concat())
}

fn events(stdout: &str, name: &str) -> Vec<Value> {
    let all = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|event| event["event"] == name).collect()
}

/// The part of a link that begins so.
fn part<'a>(link: &'a str, name: &str) -> Option<&'a str> {
    link.split(['?', '&']).find_map(|pair| pair.strip_prefix(name))
}

#[test]
fn files_in_chunks_of_every_length_travel_inside_quic() {
    let (_dir, [owner, friend]) = people();
    for (length, chunk) in [(1, "1KiB"), (2_000_003, "1KiB"), (2_000_003, "8KiB"), (700_000, "63KiB")] {
        let film = noise(length, length as u64);
        fs::write(owner.join("film"), &film).unwrap();
        let (sharer, link) = share(&owner, &["film", "--chunk-length", chunk]);
        assert_eq!((part(&link, "sk="), part(&link, "pr=")), (Some(&key(&owner)[..]), None), "{link}");
        let out = format!("out-{chunk}-{length}");
        let (code, stdout, stderr) = get(&friend, &link, &["-o", &out]);
        assert_eq!(code, 0, "{chunk}: {stderr}");
        assert!(fs::read(friend.join(&out).join("film")).unwrap() == film, "{chunk}");
        assert_eq!(events(&stdout, "peer_connected")[0]["transport"], "quic", "{stdout}");
        assert_eq!(sharer.interrupt().0, 0);
    }
}

#[test]
fn only_those_who_are_allowed_get_anything() {
    let (_dir, [owner, friend, stranger]) = people();
    let film = noise(1_000_003, 2);
    fs::write(owner.join("film"), &film).unwrap();
    fs::write(owner.join("friends"), format!("# those who may watch\n{} # a friend\n", key(&friend))).unwrap();
    let (mut sharer, link) = share(&owner, &["film", "--allow", "friends"]);
    assert_eq!(part(&link, "pr="), Some("1"), "{link}");
    // The stranger is told at once, and told what to say to the owner.
    let (code, _, stderr) = get(&stranger, &link, &["-o", "out"]);
    let named = stderr.contains(&key(&stranger)) && stderr.contains("is not admitted here: ask the owner");
    assert!(code == 6 && named, "{code}: {stderr}");
    assert!(fs::read(stranger.join("out/film")).is_err(), "nothing came");
    // One who leaves out what the link says of keys, and asks as everybody may ask, is not even answered.
    let plain: Link = link.parse().unwrap();
    let address = plain.peers[0].clone();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut opening = vec![0; 4];
    Opening::encode(Dialect::Rfc7574, &plain.params.handshake(Dialect::Rfc7574, 7, true, None), &mut opening);
    socket.send_to(&opening, &address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    assert!(socket.recv(&mut [0; 2000]).is_err(), "a stranger was answered");
    let (code, _, stderr) = get(&friend, &link, &["-o", "out"]);
    assert!(code == 0 && fs::read(friend.join("out/film")).unwrap() == film, "{code}: {stderr}");
    assert!(sharer.child.try_wait().unwrap().is_none());
}

#[test]
fn a_key_that_the_link_does_not_name_is_named() {
    let (_dir, [owner, friend, other]) = people();
    fs::write(owner.join("film"), noise(300_000, 3)).unwrap();
    let (_sharer, link) = share(&owner, &["film"]);
    let forged = link.replace(&key(&owner), &key(&other));
    let (code, _, stderr) = get(&friend, &forged, &["-o", "out"]);
    let named =
        stderr.contains(&key(&owner)) && stderr.contains(&key(&other)) && stderr.contains("which the link names");
    assert!(code == 6 && named, "{code}: {stderr}");
    // Nobody has such a key.
    let nobody = link.replace(&key(&owner), &("a".repeat(51) + "b"));
    let (code, _, stderr) = get(&friend, &nobody, &["-o", "out"]);
    assert!(code == 3 && stderr.contains("the link's key is none"), "{code}: {stderr}");
}

/// Somebody who has it all shares it with those alone whom he allows; who finds him without that is told.
#[test]
fn friends_serve_friends() {
    let (_dir, [owner, friend, third]) = people();
    let film = noise(1_000_003, 4);
    fs::write(owner.join("film"), &film).unwrap();
    let keys = [key(&owner), key(&friend), key(&third)];
    let (sharer, link) = share(&owner, &["film", "--allow", &keys[1], "--allow", &keys[2]]);
    let start = |allowed: &[&str]| {
        let usual = ["get", &link, "-o", "out", "--seed", "--listen", "127.0.0.1:0", "--json"];
        let mut seeder = Running::start(anabranch(&friend).args(usual).args(allowed));
        let address = seeder.event("listening")["address"].as_str().unwrap().to_owned();
        seeder.event("finished");
        (seeder, address)
    };
    let (alone, address) = start(&[]);
    sharer.interrupt();
    let peer = part(&link, "pe=").unwrap();
    let without = link.replace(&format!("&pe={peer}"), "");
    let (code, _, stderr) = get(&third, &without, &["-o", "out", "--peer", &address, "--allow", &keys[1]]);
    assert!(code == 6 && stderr.contains("is not admitted here"), "{code}: {stderr}");
    alone.interrupt();
    let (_served, address) = start(&["--allow", &keys[2]]);
    // Whom the link does not name has to be one whom the user allows.
    let (code, _, stderr) = get(&third, &without, &["-o", "out", "--peer", &address]);
    assert!(code == 6 && stderr.contains("which --allow does not admit"), "{code}: {stderr}");
    let (code, _, stderr) = get(&third, &without, &["-o", "out", "--peer", &address, "--allow", &keys[1]]);
    assert!(code == 0 && fs::read(third.join("out/film")).unwrap() == film, "{code}: {stderr}");
}

#[test]
fn a_live_stream_is_for_those_who_are_allowed() {
    let (_dir, [owner, friend, stranger]) = people();
    let film = noise(1_500_000, 5);
    fs::write(owner.join("film"), &film).unwrap();
    let allowed = ["live", "--secure", "--allow", &key(&friend), "--input", "film", "--rate", "250K"];
    let mut source = Running::start(anabranch(&owner).args(allowed).args(["--listen", "127.0.0.1:0", "--json"]));
    let link = source.event("started")["link"].as_str().unwrap().to_owned();
    assert!(part(&link, "sk=") == Some(&key(&owner)) && part(&link, "pr=") == Some("1"), "{link}");
    let (code, _, stderr) = get(&stranger, &link, &["-o", "out"]);
    assert!(code == 6 && stderr.contains("is not admitted here"), "{code}: {stderr}");
    let (code, stdout, stderr) = get(&friend, &link, &["-o", "out"]);
    assert_eq!(code, 0, "{stderr}");
    let recorded = fs::read(friend.join("out")).unwrap();
    assert!(!recorded.is_empty() && film.ends_with(&recorded), "{} bytes", recorded.len());
    assert_eq!(events(&stdout, "recorded")[0]["skipped_chunks"], 0);
}

#[test]
fn across_a_scion_network_too() {
    let (_dir, [owner, friend, stranger]) = people();
    let text = "
        [as.'1-ff00:0:110']
        core = true
        [as.'1-ff00:0:111']
        [as.'1-ff00:0:112']
        [[link]]
        parent = '1-ff00:0:110#1'
        child = '1-ff00:0:111#1'
        [[link]]
        parent = '1-ff00:0:110#2'
        child = '1-ff00:0:112#1'
        [[link]]
        parent = '1-ff00:0:110#3'
        child = '1-ff00:0:112#2'
    ";
    let network = embedded::start(139, text);
    let film = noise(2_000_003, 6);
    fs::write(owner.join("film"), &film).unwrap();
    let (listen, daemon) = host(&network, "1-ff00:0:111");
    let usual = ["share", "--ppspp", "--secure", "--json", "--listen", &listen, "--sciond", &daemon];
    let mut sharer = Running::start(anabranch(&owner).args(usual).args(["film", "--allow", &key(&friend)]));
    let link = sharer.event("started")["link"].as_str().unwrap().to_owned();
    assert!(link.contains("pe=[1-ff00:0:111,127.139.") && part(&link, "sk=") == Some(&key(&owner)), "{link}");
    let (listen, daemon) = host(&network, "1-ff00:0:112");
    let there = ["--listen", &listen, "--sciond", &daemon, "--paths", "2", "-o", "out"];
    let fetch = |place: &Path| run(place, &[&["get", &link, "--json"][..], &there].concat());
    let (code, _, stderr) = fetch(&stranger);
    assert!(code == 6 && stderr.contains("is not admitted here"), "{code}: {stderr}");
    let (code, stdout, stderr) = fetch(&friend);
    assert!(code == 0 && fs::read(friend.join("out/film")).unwrap() == film, "{code}: {stderr}");
    // Each path has a connection of its own.
    let connected = events(&stdout, "peer_connected");
    assert!(connected.len() >= 2 && connected.iter().all(|event| event["transport"] == "quic"), "{stdout}");
}

#[test]
fn mistakes_are_told_with_their_remedy() {
    let (_dir, [owner, friend]) = people();
    fs::write(owner.join("film"), noise(1000, 7)).unwrap();
    let (own, other) = (key(&owner), key(&friend));
    let fails = |arguments: &[&str], code: i32, needle: &str| {
        let (found, _, stderr) = run(&owner, arguments);
        assert!(found == code && stderr.contains(needle), "{arguments:?}: {found}: {stderr}");
    };
    fails(&["share", "film", "--secure"], 2, "give --ppspp too");
    fails(&["share", "film", "--ppspp", "--allow", &other], 2, "give --secure too");
    fails(&["share", "film", "--ppspp", "--secure", "--with-torrent"], 2, "in the clear: leave one of them out");
    fails(&["share", "film", "--ppspp", "--secure", "--dialect", "libswift"], 2, "libswift proves no key");
    fails(&["share", "film", "--ppspp", "--secure", "--allow", "nobody"], 3, "`--allow nobody` is no key");
    fails(&["live", "--input", "film", "--rate", "1K", "--allow", &other], 2, "give --secure too");
    let id = "ab".repeat(32);
    let plain = format!("ppspp:{id}?cl=1000&pe=127.0.0.1:1");
    fails(&["get", &plain, "--allow", &other], 2, "is not secure; ask who shares it to do so with --secure");
    fails(&["get", &format!("{plain}&sk=abc")], 3, "the link's value of sk makes no sense");
    fails(&["get", &format!("{plain}&pr=1")], 3, "the link's value of pr makes no sense");
    let secure = format!("{plain}&sk={own}&pr=1");
    let magnet = format!("magnet:?xt=urn:btih:{}", "ab".repeat(20));
    fails(&["get", &secure, &magnet, "--allow", &other], 2, "fetch them apart");
    let (code, stdout, _) = run(&owner, &["show", &secure]);
    assert!(code == 0 && stdout.contains("those whom its owner allows") && stdout.contains(&own), "{stdout}");
    let (code, stdout, _) = run(&owner, &["show", "--json", &secure]);
    let shown: Value = serde_json::from_str(&stdout).unwrap();
    assert!(code == 0 && shown["secure"]["key"] == own.as_str() && shown["secure"]["private"] == true, "{stdout}");
}
