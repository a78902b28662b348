//! Who can be fetched from, and what `get` says and does where nobody can.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};

use common::{Running, anabranch, assert_same, finish, get, noise, run, share, tree};
use serde_json::Value;

/// A torrent of `one.bin`, and the file beside it.
fn torrent(dir: &Path) -> (String, Vec<(PathBuf, Vec<u8>)>) {
    let file = vec![("one.bin".into(), noise(300_000, 1))];
    fs::write(dir.join("one.bin"), &file[0].1).unwrap();
    let (code, magnet, stderr) = run(dir, &["create", "one.bin", "-o", "one.torrent"]);
    assert_eq!(code, 0, "{stderr}");
    (magnet.trim().to_owned(), file)
}

/// A port of this machine at which nobody listens.
fn nobody() -> String {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    address.to_string()
}

/// `get` of `one.torrent` into a folder that is not there yet.
fn fetch<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&["get", "one.torrent", "-o", "out", "--listen", "127.0.0.1:0"], rest].concat()
}

/// A run that has to end with 6, say `needles` on standard error and once only, and the same as an event.
fn ends_without_source(dir: &Path, arguments: &[&str], needles: &[&str]) {
    // Beside each other, in folders of their own.
    let elsewhere: Vec<String> = arguments.iter().map(|argument| argument.replace("out", "out-json")).collect();
    let elsewhere: Vec<&str> = elsewhere.iter().map(String::as_str).chain(["--json"]).collect();
    let (for_people, for_programs) = std::thread::scope(|scope| {
        let for_programs = scope.spawn(|| run(dir, &elsewhere));
        (run(dir, arguments), for_programs.join().unwrap())
    });
    let (code, stdout, stderr) = for_people;
    assert_eq!(code, 6, "{arguments:?}: {stdout} {stderr}");
    assert_eq!(stdout, "");
    for needle in needles {
        assert!(stderr.contains(needle), "{arguments:?} says nothing of `{needle}`: {stderr}");
    }
    let told: Vec<&str> = stderr.lines().filter(|line| !line.starts_with("error: ")).collect();
    let unique: std::collections::BTreeSet<&str> = told.iter().copied().collect();
    assert_eq!(told.len(), unique.len(), "told twice: {stderr}");
    let (code, stdout, stderr) = for_programs;
    assert_eq!(code, 6, "{arguments:?}: {stdout} {stderr}");
    let events: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let error = events.iter().find(|event| event["event"] == "error").unwrap_or_else(|| panic!("no error: {stdout}"));
    assert_eq!(error["kind"], "sources", "{error}");
    assert!(stderr.contains(error["message"].as_str().unwrap()), "{error} {stderr}");
}

#[test]
fn without_anybody_to_fetch_from_get_ends_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (magnet, file) = torrent(dir.path());
    let hint = "nobody is known to fetch from: give --peer or --tracker";
    for source in ["one.torrent", &magnet] {
        // Without --listen nobody knows where we are.
        let (code, _, stderr) = run(dir.path(), &["get", source, "-o", "out"]);
        assert!(code == 6 && stderr.contains(hint), "{code}: {stderr}");
    }
    // What is there already needs nobody.
    let (code, _, stderr) = run(dir.path(), &["get", "one.torrent", "-o", "."]);
    assert_eq!(code, 0, "{stderr}");
    assert_same(dir.path(), &file);
}

#[test]
fn a_peer_that_refuses_is_named_and_not_waited_for_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    torrent(dir.path());
    let peer = nobody();
    ends_without_source(
        dir.path(),
        &fetch(&["--peer", &peer]),
        &[&peer, "it refuses connections", "it is tried again", "no source is left"],
    );
}

#[test]
fn mistakes_about_sources_are_told_at_once_and_end_in_the_users_time() {
    let dir = tempfile::tempdir().unwrap();
    let (magnet, _) = torrent(dir.path());
    fs::create_dir(dir.path().join("other")).unwrap();
    fs::write(dir.path().join("other/two.bin"), noise(100_000, 2)).unwrap();
    let (_other, without_content, _) = share(&dir.path().join("other"), &["two.bin"]);
    let no_bittorrent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = no_bittorrent.local_addr().unwrap().to_string();
    let refused = nobody();
    let tracker = format!("http://{}/announce", nobody());
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent_tracker = format!("udp://{}/announce", silent.local_addr().unwrap());
    let link = format!("{magnet}&x.pe={refused}");
    let t = "one.torrent";
    let cases: &[(&[&str], &[&str])] = &[
        (&[t, "--peer", &refused, "--give-up", "2s"], &[&refused, "it refuses connections", "nothing came for 2s"]),
        (&[&link, "--give-up", "2s"], &[&refused, "it refuses connections"]),
        (&[t, "--peer", &without_content, "--give-up", "2s"], &[&without_content, "do not have this content"]),
        (&[t, "--peer", &mute, "--give-up", "14s"], &[&mute, "no handshake"]),
        (&[t, "--peer", "224.0.0.1:5000"], &["224.0.0.1:5000", "nobody can be dialled", "no source is left"]),
        (&[t, "--tracker", &tracker, "--give-up", "2s"], &["tracker", "nothing listens", "1 tracker to name some"]),
        (&[t, "--tracker", &silent_tracker, "--give-up", "12s"], &["no peer is connected: waiting for 1 tracker"]),
        (&[t, "--peer", &refused, "--tracker", &tracker, "--give-up", "2s"], &[&refused, "tracker", "refuses"]),
    ];
    std::thread::scope(|scope| {
        for (number, (arguments, needles)) in cases.iter().enumerate() {
            let dir = dir.path();
            scope.spawn(move || {
                let out = format!("out-{number}");
                let arguments = [&["get"], *arguments, &["-o", &out, "--listen", "127.0.0.1:0"]].concat();
                ends_without_source(dir, &arguments, needles);
            });
        }
    });
}

#[test]
fn who_has_not_even_the_metadata_is_said_to_lack_it_and_serves_as_soon_as_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let (magnet, file) = torrent(dir.path());
    let source = nobody();
    let mut relay = Running::start(anabranch(dir.path()).args([
        "get",
        &magnet,
        "-o",
        "relay",
        "--listen",
        "127.0.0.1:0",
        "--peer",
        &source,
        "--seed",
        "--json",
        "--give-up",
        "60s",
    ]));
    let relay_address = relay.event("listening")["address"].as_str().unwrap().to_owned();
    let lacking = "connected, and none has what is missing";
    let arguments =
        ["get", &magnet, "-o", "out", "--listen", "127.0.0.1:0", "--peer", &relay_address, "--give-up", "12s"];
    ends_without_source(dir.path(), &arguments, &[lacking]);

    let arguments = get(&relay_address, &[&magnet, "-o", "out", "--no-pex", "--json"]);
    let mut fetching = Running::start(anabranch(dir.path()).args(arguments));
    fetching.event("peer_connected");
    let _sharer = Running::start(anabranch(dir.path()).args(["share", "one.bin", "--listen", &source]));
    fetching.event("finished");
    assert_eq!(fetching.child.wait().unwrap().code(), Some(0));
    assert_same(&dir.path().join("out"), &file);
}

#[test]
fn who_is_the_program_itself_is_no_source() {
    let dir = tempfile::tempdir().unwrap();
    torrent(dir.path());
    let own = nobody();
    let arguments = ["get", "one.torrent", "-o", "out", "--listen", &own, "--peer", &own];
    let (code, _, stderr) = run(dir.path(), &arguments);
    assert!(code == 6 && stderr.contains(&own) && stderr.contains("connected to ourselves"), "{code}: {stderr}");
}

#[test]
fn a_peer_that_leaves_for_good_ends_what_was_begun() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(3_000_000, 5)).unwrap();
    let (sharer, address, magnet) = share(dir.path(), &["one.bin", "--piece-length", "16KiB"]);
    let arguments = get(&address, &[&magnet, "-o", "out", "--json", "--limit-down", "500K", "--give-up", "3s"]);
    let mut getting = Running::start(anabranch(dir.path()).args(arguments));
    getting.event("piece");
    drop(sharer);
    assert_eq!(getting.event("peer_error")["peer"], address.as_str());
    let error = getting.event("error");
    assert!(error["message"].as_str().unwrap().contains(&address), "{error}");
    assert_eq!(getting.child.wait().unwrap().code(), Some(6));
}

#[test]
fn a_place_that_cannot_be_written_ends_get_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path());
    let (_sharer, peer, _) = share(dir.path(), &["tree", "--torrent-out", "tree.torrent"]);
    let path = |name: &str| dir.path().join(name);
    fs::write(path("file"), "a file where a folder is to be").unwrap();
    fs::create_dir_all(path("taken/tree")).unwrap();
    fs::write(path("taken/tree/sub"), "a file where a folder is to be").unwrap();
    fs::create_dir_all(path("kind/tree/a.bin")).unwrap();
    for (out, needle) in [("file", "file"), ("taken", "sub"), ("kind", "a.bin"), ("/proc/nowhere", "/proc/nowhere")] {
        let (code, _, stderr) = run(dir.path(), &get(&peer, &["tree.torrent", "-o", out]));
        assert!(code == 5 && stderr.contains(needle), "{out}: {code} {stderr}");
        let (code, stdout, _) = run(dir.path(), &get(&peer, &["tree.torrent", "-o", out, "--json"]));
        assert!(code == 5 && stdout.contains("\"kind\":\"storage\""), "{out}: {code} {stdout}");
    }
    assert_same(dir.path(), &files);
}

#[test]
fn what_fails_beside_others_is_told_once_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    torrent(dir.path());
    tree(dir.path());
    let (_sharer, peer, _) = share(dir.path(), &["tree", "--torrent-out", "tree.torrent"]);
    fs::create_dir_all(dir.path().join("out/one.bin")).unwrap();
    let two = |rest: &[&str]| run(dir.path(), &get(&peer, &[&["one.torrent", "tree.torrent"], rest].concat()));
    let (code, _, stderr) = two(&["-o", "out"]);
    assert!(code == 5 && stderr.contains("tree: complete"), "{code} {stderr}");
    assert_eq!(stderr.matches("one.bin: error: ").count(), 1, "{stderr}");
    assert!(stderr.ends_with("\nerror: one.bin failed: see above\n"), "{stderr}");
    // Where notes are not wanted, the last word says why.
    let (code, _, quiet) = two(&["-o", "out", "--quiet"]);
    assert!(code == 5 && quiet.starts_with("error: one.bin: ") && quiet.lines().count() == 1, "{quiet}");
    fs::create_dir_all(dir.path().join("none/one.bin")).unwrap();
    fs::create_dir_all(dir.path().join("none/tree/a.bin")).unwrap();
    let (code, _, stderr) = two(&["-o", "none"]);
    assert!(code == 5 && stderr.ends_with("\nerror: 2 of 2 contents failed: see above\n"), "{stderr}");
    let (code, _, quiet) = two(&["-o", "none", "--quiet"]);
    assert!(code == 5 && quiet.starts_with("error: 2 of 2 contents failed\n  "), "{quiet}");
    assert!(quiet.lines().count() == 3 && quiet.contains("\n  one.bin: "), "{quiet}");
}

/// A tracker that answers each announce with what the test says, in turn: the port of a peer, or nobody.
fn tracker(answers: Receiver<Option<u16>>, asked: Sender<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/announce", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = asked.send(());
            let Ok(answer) = answers.recv() else { return };
            let mut body = b"d8:intervali1800e12:min intervali1e5:peers".to_vec();
            match answer {
                Some(port) => body.extend([&b"6:\x7f\0\0\x01"[..], &port.to_be_bytes()].concat()),
                None => body.extend(b"0:"),
            }
            body.push(b'e');
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(&[head.as_bytes(), &body].concat());
        }
    });
    url
}

#[test]
fn who_found_nobody_asks_the_tracker_again_before_its_interval_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let (_, file) = torrent(dir.path());
    let (answer, answers) = channel();
    let (asked, was_asked) = channel();
    let url = tracker(answers, asked);
    // Nobody shares yet; the interval is half an hour.
    let mut getting = Running::start(anabranch(dir.path()).args(fetch(&["--tracker", &url, "--json"])));
    answer.send(None).unwrap();
    assert_eq!(getting.event("tracker")["peers"], 0);
    let (_sharer, address, _) = share(dir.path(), &["one.torrent"]);
    was_asked.iter().next();
    answer.send(Some(address.rsplit_once(':').unwrap().1.parse().unwrap())).unwrap();
    getting.event("finished");
    assert_same(&dir.path().join("out"), &file);
}

#[test]
fn the_trackers_behind_one_that_knows_nobody_are_asked_too() {
    let dir = tempfile::tempdir().unwrap();
    let (magnet, file) = torrent(dir.path());
    let (_sharer, address, _) = share(dir.path(), &["one.torrent"]);
    let port: u16 = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let trackers = [None, None, Some(port)].map(|known| {
        let (answer, answers) = channel();
        (0..100).for_each(|_| answer.send(known).unwrap());
        tracker(answers, channel().0)
    });
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = format!("udp://{}", silent.local_addr().unwrap());
    let link = format!("{magnet}&tr={silent}&tr={}", trackers.join("&tr="));
    let (code, _, stderr) = run(dir.path(), &["get", &link, "-o", "out", "--listen", "127.0.0.1:0"]);
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out"), &file);
}

#[test]
fn a_link_with_a_scion_address_too_needs_no_scion() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(300_000, 1))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let (_sharer, _, magnet) = share(dir.path(), &["one.bin"]);
    let link = format!("{magnet}&x.pe=[1-ff00:0:110,127.0.0.1]:30999");
    let (code, _, stderr) = run(dir.path(), &["get", &link, "-o", "out", "--listen", "127.0.0.1:0"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("without SCION") && stderr.contains("--sciond"), "{stderr}");
    assert_same(&dir.path().join("out"), &file);
    // Where it is the only one, nothing helps.
    let (bare, _) = magnet.split_once("&x.pe=").unwrap();
    let link = format!("{bare}&x.pe=[1-ff00:0:110,127.0.0.1]:30999");
    ends_without_source(
        dir.path(),
        &["get", &link, "-o", "out-none", "--listen", "127.0.0.1:0"],
        &["no SCION network is known here"],
    );
}

#[test]
fn a_sharer_names_the_addresses_of_all_its_uplinks() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let script = r#"
        cd "$2" || exit 90
        for n in 1 2; do
            ip link add up$n type veth peer name far$n && ip address add 10.77.$n.1/24 dev up$n && ip link set up$n up && ip link set far$n up || exit 91
        done
        "$1" share one.bin --listen 0.0.0.0:7001 > said 2> trouble &
        for i in $(seq 300); do grep -q magnet: said && break; sleep 0.1; done
        kill $!
        wait $!
        cat said trouble
    "#;
    let allowed = Command::new("unshare").args(["-n", "true"]).output().is_ok_and(|done| done.status.success());
    if !allowed {
        eprintln!("skipped: no network namespaces here");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_anabranch")]).arg(dir.path());
    let (code, stdout, stderr) = finish(&mut command);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let listening = stdout.lines().find(|line| line.starts_with("listening on ")).unwrap();
    let magnet = stdout.lines().find(|line| line.starts_with("magnet:")).unwrap();
    for address in ["10.77.1.1", "10.77.2.1"] {
        assert!(listening.contains(&format!("{address}:7001")), "{listening}");
        assert!(magnet.contains(&format!("x.pe={address}")), "{magnet}");
    }
}
