//! A peer over SCION is called over path beside path.

mod common;

use std::fs;

use common::embedded::{DIAMOND, host, start};
use common::{Running, anabranch, assert_same, finish, noise};

/// A router that loses what comes to it says nothing, and nobody says it in its place: whoever waits for an answer over that path alone
/// waits for ten seconds, and says that the peer did not answer. One of the two paths is the first.
#[test]
fn a_path_that_loses_everything_in_silence_keeps_nobody_waiting() {
    for (net, core) in [(143, "1-ff00:0:110"), (144, "1-ff00:0:120")] {
        let dir = tempfile::tempdir().unwrap();
        let file = vec![("one.bin".into(), noise(300_000, 1))];
        fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
        let network = start(net, DIAMOND);
        let (listen, daemon) = host(&network, "1-ff00:0:111");
        let mut sharer = Running::start(
            anabranch(dir.path()).args(["share", "one.bin", "--json", "--listen", &listen, "--sciond", &daemon]),
        );
        let magnet = sharer.event("started")["magnet"].as_str().unwrap().to_owned();
        // Interface 2 of both leads to the AS of the one who fetches.
        network.router(core.parse().unwrap()).unwrap().set_up(2, false).unwrap();
        let (listen, daemon) = host(&network, "1-ff00:0:112");
        let mut getting = anabranch(dir.path());
        getting.args(["get", &magnet, "-o", "out", "--json", "--listen", &listen, "--sciond", &daemon]);
        let (code, stdout, stderr) = finish(&mut getting);
        assert_eq!(code, 0, "{core}: {stdout} {stderr}");
        assert_same(&dir.path().join("out"), &file);
        assert!(!stdout.contains(r#""event":"peer_error""#), "{core}: {stdout}");
    }
}

// All links are down when it begins, and one comes back while it waits.
#[test]
fn paths_that_come_back_are_asked_for_before_it_is_said_that_there_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(300_000, 1))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let network = start(146, DIAMOND);
    let (listen, daemon) = host(&network, "1-ff00:0:111");
    let mut sharer = Running::start(
        anabranch(dir.path()).args(["share", "one.bin", "--json", "--listen", &listen, "--sciond", &daemon]),
    );
    let magnet = sharer.event("started")["magnet"].as_str().unwrap().to_owned();
    let links = ["1-ff00:0:110", "1-ff00:0:120"].map(|core| network.find_link(core, Some("1-ff00:0:112")).unwrap());
    links.iter().for_each(|link| network.set_link_up(*link, false).unwrap());
    let (listen, daemon) = host(&network, "1-ff00:0:112");
    let is_there_none = || {
        finish(anabranch(dir.path()).args(["paths", "1-ff00:0:111", "--sciond", &daemon])).2.contains("no path leads")
    };
    assert!((0..100).any(|_| is_there_none()), "the daemon lists paths over links that are down");
    let mut getting = Running::start(
        anabranch(dir.path()).args(["get", &magnet, "-o", "out", "--json", "--listen", &listen, "--sciond", &daemon]),
    );
    let trouble = getting.event("peer_error").to_string();
    assert!(trouble.contains("no path leads from"), "{trouble}");
    network.set_link_up(links[0], true).unwrap();
    getting.event("finished");
    assert_same(&dir.path().join("out"), &file);
}
