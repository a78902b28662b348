//! `daemon` and the commands that ask one, as their users meet them: over restarts, and over being killed.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use common::embedded::{self, DIAMOND, host};
use common::{Running, anabranch, assert_same, noise, run, share, signal, tree};
use serde_json::Value;

/// Nothing takes longer, with both cores busy elsewhere.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a usual run kills the daemon; the long one a hundred times.
const KILLS: usize = 4;
const KILLS_MANY: usize = 100;

/// A daemon whose folders are in `dir`, and what its event `serving` says.
fn daemon(dir: &Path) -> (Running, Value) {
    daemon_at(dir, &["--listen", "127.0.0.1:0"])
}

fn daemon_at(dir: &Path, listen: &[&str]) -> (Running, Value) {
    fs::create_dir_all(dir.join("files")).unwrap();
    let arguments =
        ["daemon", "--json", "--api", "127.0.0.1:0", "--dir", "files", "--state-dir", "lib", "--allow-dir", "."];
    let mut running = Running::start_for(anabranch(dir).args(arguments).args(listen), PATIENCE * 20);
    let serving = running.event("serving");
    (running, serving)
}

/// Asks it by its socket: exit code, lines of JSON, what was said.
fn ask(dir: &Path, arguments: &[&str]) -> (i32, Vec<Value>, String) {
    let (code, out, err) = run(dir, &[arguments, &["--json", "--daemon", "./lib/daemon.sock"]].concat());
    (code, out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), err)
}

fn asked(dir: &Path, arguments: &[&str]) -> Vec<Value> {
    let (code, lines, err) = ask(dir, arguments);
    assert_eq!(code, 0, "{arguments:?}: {err}");
    lines
}

/// Waits until the daemon's contents are as they are to be.
fn wait(dir: &Path, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let listed = asked(dir, &["list"]);
        if is_so(&listed) {
            return listed;
        }
        assert!(began.elapsed() < PATIENCE, "{listed:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn who_stops_waiting_for_a_silent_daemon_is_told_what_that_means() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("token"), "a token").unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let unanswered = "error: interrupted before the daemon answered";
    let undone = "it may do what it was asked for all the same";
    for (arguments, changes) in [
        (&["list"][..], false),
        (&["status"], false),
        (&["limit"], false),
        (&["limit", "--up", "1M"], true),
        (&["add", "magnet:?xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a"], true),
        (&["pause", "1"], true),
        (&["remove", "1"], true),
        (&["password", "--remove"], true),
    ] {
        let mut command = anabranch(dir.path());
        command.args(arguments).args(["--daemon", &address, "--token-file", "token"]);
        let asking = Running::start_in_words(&mut command);
        let _asked = silent.accept().unwrap();
        let (code, said) = asking.interrupt();
        assert!(code == 130 && said.contains(unanswered), "{arguments:?}: {code} {said}");
        assert_eq!(said.contains(undone), changes, "{arguments:?}: {said}");
    }
}

#[test]
fn what_another_program_shares_is_added_watched_until_complete_and_shared_on_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::create_dir_all(&one).unwrap();
    let files = tree(&one);
    let (sharer, _, magnet) = share(&one, &["tree"]);
    let (running, serving) = daemon(&two);
    let added = asked(&two, &["add", &magnet, "--category", "trees", "--tag", "a"]);
    let id = added[0]["id"].to_string();
    let events = asked(&two, &["watch", &id, "--wait"]);
    assert!(events.iter().any(|event| event["event"] == "content"), "{events:?}");
    assert_same(&two.join("files"), &files);
    let listed = asked(&two, &["list", "--category", "trees"]);
    assert_eq!((listed.len(), listed[0]["done"].as_u64()), (1, listed[0]["size"].as_u64()));
    drop(sharer);

    // By the address, with the token.
    let url = serving["url"].as_str().unwrap();
    let token = serving["token_file"].as_str().unwrap();
    let (code, out, err) = run(&two, &["status", "--daemon", url, "--token-file", token]);
    assert!(code == 0 && out.contains("seeding"), "{out}{err}");
    fs::write(two.join("wrong"), "no token of any daemon").unwrap();
    let (code, _, err) = run(&two, &["list", "--daemon", url, "--token-file", "wrong"]);
    assert!(code == 3 && err.contains("--token-file") && !err.contains("Bearer"), "{code}: {err}");

    // A second one over the same library is told so, though its address is in use, too.
    let api = url.strip_prefix("http://").unwrap().trim_end_matches('/');
    for api in [api, "none"] {
        let second =
            ["daemon", "--state-dir", "lib", "--api", api, "--socket", "other.sock", "--listen", "127.0.0.1:0"];
        let (code, _, err) = run(&two, &second);
        assert!(code == 5 && err.contains("another daemon"), "{code}: {err}");
    }

    let (code, _) = running.interrupt();
    assert_eq!(code, 0);
    let (code, _, err) = ask(&two, &["list"]);
    assert!(code == 6 && err.contains("no daemon answers"), "{code}: {err}");

    // What it fetched it shares after a restart, without its files being verified by anybody but itself.
    let (_running, _) = daemon(&two);
    let listed = wait(&two, |listed| listed[0]["state"] == "seeding");
    let session = asked(&two, &["status"]);
    let address = session[0]["listening"][0].as_str().unwrap().to_owned();
    let three = dir.path().join("three");
    fs::create_dir_all(&three).unwrap();
    let link = listed[0]["link"].as_str().unwrap();
    let (code, _, err) = run(&three, &["get", link, "--listen", "127.0.0.1:0", "--peer", &address, "-q"]);
    assert_eq!(code, 0, "{err}");
    assert_same(&three, &files);

    // Paused, it waits; removed with its files, it is gone.
    asked(&two, &["pause", &id]);
    wait(&two, |listed| listed[0]["state"] == "complete");
    asked(&two, &["resume", "--all"]);
    wait(&two, |listed| listed[0]["state"] == "seeding");
    let (code, _, err) = ask(&two, &["remove", "99"]);
    assert!(code == 3 && err.contains("99"), "{code}: {err}");
    asked(&two, &["remove", &id, "--delete-files"]);
    assert!(asked(&two, &["list"]).is_empty() && !two.join("files/tree").exists());
}

#[test]
fn a_content_begins_over_a_path_that_works_though_the_best_one_went_down_meanwhile() {
    let network = embedded::start(126, DIAMOND);
    let dir = tempfile::tempdir().unwrap();
    let names = ["none.bin", "110.bin", "120.bin"];
    for (seed, name) in names.iter().enumerate() {
        fs::write(dir.path().join(name), noise(100_000, seed as u64)).unwrap();
    }
    let (listen, sciond) = host(&network, "1-ff00:0:111");
    let mut command = anabranch(dir.path());
    command.args(["share", "--json", "--listen", &listen, "--sciond", &sciond]).args(names);
    let mut sharer = Running::start(&mut command);
    let magnets = names.map(|_| sharer.event("started")["magnet"].as_str().unwrap().to_owned());
    let magnet = |name: &str| magnets.iter().find(|magnet| magnet.contains(name)).unwrap().as_str();

    let (listen, sciond) = host(&network, "1-ff00:0:112");
    let two = dir.path().join("two");
    let (_running, _) = daemon_at(&two, &["--listen", &listen, "--sciond", &sciond]);
    // Paths are known and measured from here on, and whichever of them is the best is cut in one of the rounds.
    for name in names {
        let core = Some(format!("1-ff00:0:{}", name.trim_end_matches(".bin"))).filter(|_| name != "none.bin");
        let link = core.map(|core| network.find_link(&core, Some("1-ff00:0:112")).unwrap());
        link.iter().for_each(|link| network.set_link_up(*link, false).unwrap());
        let id = asked(&two, &["add", magnet(name)])[0]["id"].to_string();
        let events = asked(&two, &["watch", &id, "--wait"]);
        assert!(!events.iter().any(|event| event.to_string().contains("did not answer")), "{name}: {events:?}");
        assert_eq!(fs::read(two.join("files").join(name)).unwrap(), fs::read(dir.path().join(name)).unwrap());
        link.iter().for_each(|link| network.set_link_up(*link, true).unwrap());
    }
}

#[test]
fn contents_are_named_by_number_name_or_hash_and_who_may_be_several_is_asked_for_the_number() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (_running, _) = daemon(dir);
    let add = |hash: &str, name: &str| {
        let link = format!("magnet:?xt=urn:btih:{hash:0<40}&dn={name}");
        asked(dir, &["add", "--paused", &link])[0]["id"].to_string()
    };
    let (one, two) = (add("abcd1", "album"), add("abcd2", "album"));
    let (single, film) = (add("12345678", "single"), add("beef", "a%20film"));
    let is_paused = |id: &str| asked(dir, &["status", id])[0]["paused"] == true;

    // Names that are one's alone, and beginnings of hashes in small letters or capitals.
    asked(dir, &["resume", "single", "a film", "ABCD2"]);
    assert!(!is_paused(&single) && !is_paused(&film) && !is_paused(&two) && is_paused(&one));
    assert_eq!(asked(dir, &["status", "beef"])[0]["name"], "a film");

    // Several: they are listed, and nothing is done, with the others neither.
    for several in ["album", "abcd"] {
        let (code, _, err) = ask(dir, &["pause", "single", several]);
        assert!(code == 3 && err.contains("2 contents"), "{code}: {err}");
        let listed: Vec<&str> = err.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(listed, [one.as_str(), two.as_str()], "{err}");
    }
    // None, and what is a number and no hash.
    for none in ["nothing", "123456", "abc", "99", "alb", ""] {
        let (code, _, err) = ask(dir, &["remove", "single", none]);
        assert!(code == 3 && err.contains("`anabranch list`"), "{none}: {code}: {err}");
    }
    assert!(!is_paused(&single) && asked(dir, &["list"]).len() == 4);

    // Limits of one, and of all together.
    let limit = |arguments: &[&str]| asked(dir, &[&["limit"], arguments].concat()).remove(0);
    let set = limit(&["single", "--down", "2M", "--ratio", "1.5", "--time", "none"]);
    assert_eq!((set["limit_down"].as_u64(), set["ratio_max"].as_f64()), (Some(2_000_000), Some(1.5)));
    assert_eq!(set["seed_seconds_max"], "none");
    let set = limit(&["single", "--down", "none", "--ratio", "usual"]);
    assert!(set["limit_down"].is_null() && set["ratio_max"].is_null() && set["seed_seconds_max"] == "none");
    assert_eq!(limit(&["single"])["seed_seconds_max"], "none");
    assert_eq!(limit(&["--up", "3M"])["limit_up"].as_u64(), Some(3_000_000));
    let (_, out, _) = run(dir, &["limit", "--daemon", "./lib/daemon.sock"]);
    assert_eq!(out, "all together: receive none, send 3.0 MB/s, ratio none, time none\n");
    let (code, _, err) = ask(dir, &["limit", "single", "--down", "fast"]);
    assert!(code == 2 && err.contains("or none"), "{code}: {err}");
    asked(dir, &["remove", "single"]);
    assert_eq!(asked(dir, &["list"]).len(), 3);
}

#[test]
fn a_folder_is_shared_by_the_daemon_and_mistakes_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path());
    let (_running, _) = daemon(dir.path());
    let added = asked(dir.path(), &["add", "--share", "tree"]);
    let id = added[0]["id"].to_string();
    wait(dir.path(), |listed| listed[0]["state"] == "seeding");
    let (code, _, err) = ask(dir.path(), &["remove", &id, "--delete-files"]);
    assert!(code == 3 && err.contains("yours"), "{code}: {err}");
    assert_same(dir.path(), &files);
    for (arguments, needle) in [
        (&["add", "nowhere.torrent"][..], "nowhere.torrent"),
        (&["add", "--share", "/etc"], "--allow-dir"),
        (&["add", "--into", "/etc", "magnet:?xt=urn:btih:0000000000000000000000000000000000000000"], "--allow-dir"),
        (&["add", "magnet:?dn=x"], "info-hash"),
        (&["status", "99"], "99"),
        (&["list", "--state", "best"], "state"),
    ] {
        let (code, _, err) = ask(dir.path(), arguments);
        assert!(code == 3 && err.contains(needle), "{arguments:?}: {code} {err}");
    }
}

#[test]
fn the_configuration_is_read_again_on_a_hangup_and_the_command_runs_for_what_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::create_dir_all(&one).unwrap();
    fs::write(one.join("big"), noise(300_000, 5)).unwrap();
    let (_sharer, _, magnet) = share(&one, &["big"]);
    fs::create_dir_all(two.join("films")).unwrap();
    fs::create_dir_all(two.join("files")).unwrap();
    let config = two.join("c.toml");
    fs::write(&config, "[daemon]\nlimit-up = 1000\n").unwrap();
    let arguments = [
        "daemon",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--api",
        "none",
        "--dir",
        "files",
        "--state-dir",
        "lib",
        "--config",
        "c.toml",
        // It is closed with the folders that there are at the start.
        "--sandbox",
        "off",
    ];
    let mut running = Running::start_for(anabranch(&two).args(arguments), PATIENCE * 4);
    running.event("serving");
    let settings = || asked(&two, &["status"]);
    assert!(!settings().is_empty());
    let films = two.join("films").to_string_lossy().into_owned();
    let (code, _, err) = ask(&two, &["add", "--into", &films, &magnet]);
    assert!(code == 3 && err.contains("--allow-dir"), "{code}: {err}");
    // A mistake changes nothing, and does not end it.
    fs::write(&config, "[daemon]\nlimit-upp = 1000\n").unwrap();
    signal(running.child.id(), "HUP");
    let text = format!("[daemon]\nallow-dir = [{films:?}]\non-complete = 'echo \"$CONTENT_PATH\" >>done'\n");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ask(&two, &["add", "--into", &films, &magnet]).0, 3);
    fs::write(&config, text).unwrap();
    signal(running.child.id(), "HUP");
    let began = Instant::now();
    while ask(&two, &["add", "--into", &films, &magnet]).0 != 0 {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    wait(&two, |listed| listed[0]["completed"].is_u64());
    let done = || fs::read_to_string(two.join("done")).unwrap_or_default();
    while done().is_empty() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(done(), format!("{films}/big\n"));
}

/// Adds and removes contents while the daemon is killed: what was acknowledged is there, and nothing else is.
fn survive(kills: usize) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut sharer = dir.join("sharer");
    fs::create_dir_all(&sharer).unwrap();
    fs::write(sharer.join("big"), noise(3_000_000, 1)).unwrap();
    let (_sharing, _, magnet) = share(&sharer, &["big", "--limit-up", "1M"]);
    sharer.push("big");
    // Those that have to be there, and those of which nobody said whether they went.
    let (mut known, mut unsure): (BTreeSet<u64>, BTreeSet<u64>) = Default::default();
    let mut next = 0_u32;
    for round in 0..kills {
        let (mut running, _) = daemon(dir);
        let listed = asked(dir, &["list"]);
        let there: BTreeSet<u64> = listed.iter().filter_map(|content| content["id"].as_u64()).collect();
        assert!(there.is_superset(&known), "round {round}: {there:?} lacks some of {known:?}");
        let more: Vec<&u64> = there.iter().filter(|id| !known.contains(id) && !unsure.contains(id)).collect();
        assert!(more.len() <= 1, "round {round}: nobody was told of {more:?}");
        for content in &listed {
            assert!(content["name"].is_string() && content["state"] != "error", "{content}");
        }
        known.clone_from(&there);
        // A removal that was begun goes on.
        known.retain(|id| !unsure.contains(id));
        if round == 0 {
            known.extend(asked(dir, &["add", &magnet])[0]["id"].as_u64());
        }
        let pid = running.child.id();
        let at = Duration::from_millis(20 + (round as u64 * 137) % 400);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(at);
            signal(pid, "KILL");
        });
        // As many as go until it is dead.
        loop {
            next += 1;
            let link = format!("magnet:?xt=urn:btih:{next:040x}&dn=content");
            let (code, lines, _) = ask(dir, &["add", "--paused", &link]);
            if code != 0 {
                break;
            }
            let id = lines[0]["id"].as_u64().unwrap();
            if !next.is_multiple_of(3) {
                known.insert(id);
                continue;
            }
            unsure.insert(id);
            if ask(dir, &["remove", &id.to_string()]).0 == 0 {
                unsure.remove(&id);
            }
        }
        killer.join().unwrap();
        let _ = running.child.wait();
    }
    let (_running, _) = daemon(dir);
    let complete =
        wait(dir, |listed| listed.iter().any(|content| content["name"] == "big" && content["completed"].is_u64()));
    assert!(complete.len() >= known.len());
    assert!(fs::read(dir.join("files/big")).unwrap() == fs::read(sharer).unwrap());
}

#[test]
fn nothing_that_was_acknowledged_is_lost_when_it_is_killed() {
    survive(KILLS);
}

#[test]
#[ignore = "minutes"]
fn nothing_that_was_acknowledged_is_lost_when_it_is_killed_a_hundred_times() {
    survive(KILLS_MANY);
}
