//! What users say to the program as a whole: to be quiet, to go on when the terminal goes, to show a page of the manual; and
//! values that cannot be meant.

mod common;

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use common::{Running, anabranch, finish, noise, run, share, signal};

#[test]
fn quiet_commands_say_nothing_but_errors() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let (code, magnet, stderr) = run(dir.path(), &["create", "one.bin", "-q"]);
    assert!(code == 0 && magnet.starts_with("magnet:?") && stderr.is_empty(), "{stderr}");
    let verify = ["verify", "one.bin.torrent", ".", "--quiet"];
    assert_eq!(run(dir.path(), &verify), (0, String::new(), String::new()));
    // What programs read is what was asked for.
    let (code, json, stderr) = run(dir.path(), &[&verify[..], &["--json"]].concat());
    assert!(code == 0 && json.contains("\"complete\":true") && stderr.is_empty(), "{json} {stderr}");
    let (mut sharer, address, _) = share(dir.path(), &["one.bin"]);
    let get = ["get", "one.bin.torrent", "-o", "out", "-q", "--listen", "127.0.0.1:0", "--peer", &address];
    assert_eq!(run(dir.path(), &get), (0, String::new(), String::new()));
    sharer.child.kill().unwrap();
    let mut quiet = anabranch(dir.path());
    let mut quiet = Running::start(quiet.args(["share", "one.bin", "-q", "--listen", "127.0.0.1:0"]));
    assert!(quiet.line().starts_with("magnet:?"), "the link is what `share` is asked for");
    assert_eq!(quiet.interrupt(), (0, String::new()));

    fs::write(dir.path().join("one.bin"), noise(100_000, 2)).unwrap();
    let (code, out, stderr) = run(dir.path(), &verify);
    assert_eq!((code, out.as_str(), stderr.lines().count()), (4, "", 1), "{stderr}");
    assert!(stderr.starts_with("error: one.bin: 0 of "), "{stderr}");
}

#[test]
fn a_signal_that_is_ignored_from_the_start_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(1_000_000, 1)).unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["one.bin", "--limit-up", "300K"]);
    // As `nohup` starts programs, and shells those that they put in the background.
    let ignoring = |signals: &str, arguments: &[&str]| {
        let plain = anabranch(dir.path());
        let mut command = Command::new("sh");
        let script = format!("trap '' {signals}; exec \"$0\" \"$@\"");
        command.current_dir(dir.path()).args(["-c", &script]).arg(plain.get_program()).args(arguments);
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    };
    let get = ["get", &magnet, "-o", "out", "--json", "--listen", "127.0.0.1:0", "--peer", &address];
    let mut getter = Running::start(&mut ignoring("HUP INT", &get));
    getter.event("started");
    for _ in 0..2 {
        signal(getter.child.id(), "HUP");
        signal(getter.child.id(), "INT");
    }
    getter.event("finished");
    assert_eq!(getter.child.wait().unwrap().code(), Some(0));
    // The other signals end it as ever.
    let mut tracker = Running::start(&mut ignoring("HUP", &["tracker", "--listen", "127.0.0.1:0"]));
    tracker.line();
    signal(tracker.child.id(), "HUP");
    assert_eq!(tracker.interrupt().0, 0);
}

/// As where a terminal is closed: the kernel tells everybody in it, and the shell tells its jobs.
#[test]
fn two_signals_at_once_end_it_in_good_order() {
    let dir = tempfile::tempdir().unwrap();
    common::tree(dir.path());
    assert_eq!(run(dir.path(), &["create", "tree", "-o", "t.torrent"]).0, 0);
    let get = ["get", "t.torrent", "-o", "out", "--json", "--listen", "127.0.0.1:0"];
    let mut getter = Running::start(anabranch(dir.path()).args(get));
    getter.event("started");
    for name in ["STOP", "TERM", "HUP", "CONT"] {
        signal(getter.child.id(), name);
    }
    assert_eq!(getter.child.wait().unwrap().code(), Some(130));
    assert!(!dir.path().join("out/.anabranch-lock").exists(), "it did not tidy up");
}

#[test]
fn files_takes_one_pattern_and_leaves_the_source() {
    let dir = tempfile::tempdir().unwrap();
    common::tree(dir.path());
    assert_eq!(run(dir.path(), &["create", "tree", "-o", "t.torrent"]).0, 0);
    let (_sharer, address, _) = share(dir.path(), &["t.torrent"]);
    let get = ["get", "--files", "*.txt", "--files", "empty", "t.torrent", "-o", "out"];
    let (code, _, stderr) = run(dir.path(), &[&get[..], &["--listen", "127.0.0.1:0", "--peer", &address]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(dir.path().join("out/tree/sub/b.txt").exists() && !dir.path().join("out/tree/a.bin").exists());
}

#[test]
fn the_manual_has_a_page_for_each_command_and_makes_no_folder_unasked() {
    let dir = tempfile::tempdir().unwrap();
    for (command, title) in
        [(&["get"][..], "anabranch-get"), (&["net", "up"], "anabranch-net-up"), (&["net-link"], "link")]
    {
        let (code, page, stderr) = run(dir.path(), &[&["man"], command].concat());
        assert!(code == 0 && page.replace("\\-", "-").contains(title), "{command:?}: {stderr}");
    }
    let (code, _, stderr) = run(dir.path(), &["man", "nosuch"]);
    assert!(code == 2 && stderr.contains("`nosuch` is no command") && stderr.contains("--dir nosuch"), "{stderr}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(run(dir.path(), &["man", "net", "--dir", "pages"]).0, 0);
    assert!(
        dir.path().join("pages/anabranch-net-check.1").exists() && !dir.path().join("pages/anabranch-get.1").exists()
    );
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_to_write() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    assert_eq!(run(dir.path(), &["create", "one.bin"]).0, 0);
    let good = "one.bin.torrent";
    let link = "magnet:?xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a";
    for (arguments, expected, needle) in [
        (&["get", good, "--limit-down", "3"][..], 2, "that is 3 bytes per second, and the least is 1K"),
        (&["get", good, "--memory", "1"], 2, "that is 1 bytes, and the least is 1MiB: add the unit, such as 48MiB"),
        (&["get", good, ""], 2, "`` is no source: it is empty"),
        (&["get", good, "--peer", "127.0.0.1:0"], 2, "port 0 cannot be dialled"),
        (&["paths", "1-1", "--sequence", ""], 2, "it is empty: leave it out where any path will do"),
        (&["verify", link, "."], 3, "give the path of its .torrent file"),
        (&["verify", "nowhere.torrent", "."], 3, "give the path of a .torrent file\n"),
        (&["get", good, "--selector", "disjunct"], 2, "[possible values: disjoint, disjoint-paper,"),
    ] {
        let (code, _, stderr) = run(dir.path(), arguments);
        assert!(code == expected && stderr.contains(needle), "{arguments:?}: {code} {stderr}");
    }
    // A torrent never replaces what it describes.
    for arguments in
        [&["create", "one.bin", "-o", "one.bin", "-f"][..], &["share", "one.bin", "--torrent-out", "one.bin"]]
    {
        let (code, _, stderr) = run(dir.path(), arguments);
        assert!(code == 2 && stderr.contains("one.bin exists and is no torrent"), "{arguments:?}: {code} {stderr}");
        assert_eq!(fs::read(dir.path().join("one.bin")).unwrap(), noise(100_000, 1));
    }
    let mut misspelt = anabranch(dir.path());
    let (code, _, stderr) = finish(misspelt.env("ANABRANCH_LIMITUP", "1M").args(["show", good]));
    assert!(code == 2 && stderr.contains("ANABRANCH_LIMITUP") && stderr.contains("ANABRANCH_LIMIT_UP"), "{stderr}");
    let (code, _, stderr) = finish(anabranch(dir.path()).env("ANABRANCH_QUIET", "maybe").args(["show", good]));
    assert!(
        code == 2 && stderr.contains("ANABRANCH_QUIET: `maybe` cannot be used for `quiet`: write yes or no"),
        "{stderr}"
    );
    let (code, fish, _) = run(dir.path(), &["completions", "fish"]);
    assert!(code == 0 && fish.contains("disjoint-paper"), "selectors are completed");
}

#[test]
fn a_peer_that_reads_no_hybrid_torrents_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    for (version, is_told) in [("hybrid", true), ("1", false)] {
        let (mut sharer, address, magnet) = share(dir.path(), &["one.bin", "--version", version]);
        let hash = magnet.split("urn:btih:").nth(1).unwrap();
        let hash: Vec<u8> = (0..20).map(|at| u8::from_str_radix(&hash[2 * at..2 * at + 2], 16).unwrap()).collect();
        // BEP 3, handshake.
        let hello = [&b"\x13BitTorrent protocol"[..], &[0; 8], &hash, b"-TR3000-abcdefghijkl"].concat();
        let mut peer = TcpStream::connect(&address).unwrap();
        peer.write_all(&hello).unwrap();
        if is_told {
            let hint = sharer.event("hint")["message"].as_str().unwrap().to_owned();
            assert!(hint.contains("Transmission 3.00") && hint.contains("--version 1"), "{hint}");
        } else {
            assert_eq!(sharer.event("peer_connected")["client"], "-TR3000-");
            drop(peer);
            let (_, rest) = sharer.interrupt();
            assert!(!rest.contains("\"hint\""), "{rest}");
        }
    }
}
