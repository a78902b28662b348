//! Bulk transfers in the daemon, with `send` and `receive` of others at their other ends: over being killed, too.

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::bulk::{assert_same_tree, elsewhere, key_of, with_ticket};
use common::{Running, anabranch, finish, noise, run, signal, tree};
use serde_json::Value;

/// Nothing takes longer, with both cores busy elsewhere.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon whose folders are in `dir`.
fn daemon(dir: &Path) -> Running {
    daemon_with(dir, &[])
}

/// The same with more flags.
fn daemon_with(dir: &Path, flags: &[&str]) -> Running {
    fs::create_dir_all(dir.join("files")).unwrap();
    let arguments =
        ["daemon", "--json", "--api", "none", "--dir", "files", "--state-dir", "lib", "--listen", "127.0.0.1:0"];
    let mut running =
        Running::start_for(anabranch(dir).args(arguments).args(["--allow-dir", "."]).args(flags), PATIENCE * 10);
    running.event("serving");
    running
}

/// Kills it, and waits until it is dead.
fn kill(mut running: Running) {
    signal(running.child.id(), "KILL");
    running.child.wait().unwrap();
}

/// Asks it by its socket: exit code, lines of JSON, what was said.
fn ask(dir: &Path, arguments: &[&str]) -> (i32, Vec<Value>, String) {
    let (code, out, err) = run(dir, &[arguments, &["--json", "--daemon", "./lib/daemon.sock"]].concat());
    (code, out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), err)
}

fn asked(dir: &Path, arguments: &[&str]) -> Value {
    let (code, mut lines, err) = ask(dir, arguments);
    assert_eq!(code, 0, "{arguments:?}: {err}");
    lines.pop().unwrap_or_default()
}

/// Waits until a content is as it is to be.
fn wait(dir: &Path, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let content = asked(dir, &["status", id]);
        if is_so(&content) {
            return content;
        }
        assert!(began.elapsed() < PATIENCE && content["state"] != "error", "{content}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_daemon_sends_a_folder_by_ticket_and_goes_on_after_being_killed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    fs::write(dir.join("tree/big"), noise(6_000_000, 3)).unwrap();
    let running = daemon(dir);
    let added = asked(dir, &["add", "--send", "tree", "--torrent-limit-up", "1M", "--times", "2", "--expires", "1h"]);
    let (id, ticket) = (added["id"].to_string(), added["ticket"].as_str().unwrap().to_owned());
    let mut command = elsewhere(dir, "other");
    command.args(["receive", &ticket, "-o", "out", "--json"]);
    let mut receiving = Running::start(&mut command);
    receiving.event("started");
    wait(dir, &id, |content| content["state"] == "sending" && content["done"].as_u64() > Some(1 << 20));
    let (_, shown, _) = run(dir, &["status", &id, "--daemon", "./lib/daemon.sock"]);
    assert!(shown.contains(&ticket) && shown.contains("active"), "{shown}");
    kill(running);
    receiving.event("waiting");
    let _running = daemon(dir);
    // The ticket is the same, and so is the port in it.
    asked(dir, &["limit", &id, "--up", "none"]);
    receiving.event("finished");
    assert_same_tree(&dir.join("tree"), &dir.join("out/tree"));
    let half = wait(dir, &id, |content| content["bulk"]["times"] == 1);
    assert!(half["completed"].is_null(), "{half}");

    // Whoever has another ticket, or none, gets nothing; the second holder does, and then it is over.
    let other = asked(dir, &["add", "--send", "tree/big"]);
    let wrong = other["ticket"].as_str().unwrap();
    asked(dir, &["remove", &other["id"].to_string()]);
    let (code, _, err) = finish(elsewhere(dir, "third").args(["receive", wrong, "-o", "no", "--give-up", "2s"]));
    assert!(code == 6 && !dir.join("no/big").exists(), "{code}: {err}");
    let (code, _, err) = finish(elsewhere(dir, "third").args(["receive", &ticket, "-o", "again"]));
    assert_eq!(code, 0, "{err}");
    assert_same_tree(&dir.join("tree"), &dir.join("again/tree"));
    let over = wait(dir, &id, |content| content["state"] == "complete");
    assert!(over["uploaded"].as_u64() > Some(6_000_000), "{over}");
    let (code, _, err) = ask(dir, &["remove", &id, "--delete-files"]);
    assert!(code == 3 && err.contains("yours"), "{code}: {err}");
    asked(dir, &["remove", &id]);
    assert!(dir.join("tree/big").exists());
}

#[test]
fn the_daemon_receives_by_a_ticket_and_goes_on_after_being_killed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("big"), noise(8_000_000, 5)).unwrap();
    let mut command = elsewhere(dir, "other");
    let (_sender, ticket) = with_ticket(&mut command, &["send", "big", "--limit-up", "2M"]);
    let running = daemon(dir);
    let added = asked(dir, &["add", &ticket]);
    let id = added["id"].to_string();
    let (code, _, err) = ask(dir, &["add", &ticket]);
    assert!(code == 3 && err.contains("in the library already"), "{code}: {err}");
    wait(dir, &id, |content| content["done"].as_u64() > Some(2 << 20));
    kill(running);
    let _running = daemon(dir);
    let first = wait(dir, &id, |content| content["done"].as_u64() > Some(0) && content["state"] != "starting");
    assert_eq!(first["name"], "big");
    let whole = wait(dir, &id, |content| content["state"] == "complete");
    assert_eq!(whole["size"].as_u64(), Some(8_000_000));
    assert!(fs::read(dir.join("files/big")).unwrap() == noise(8_000_000, 5));
}

#[test]
fn a_standing_receiver_of_the_daemon_takes_what_its_keys_send_and_a_ticket_of_it_what_anybody_does() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let files = tree(dir);
    let running = daemon(dir);
    let key = key_of(dir, "friend");
    let standing = asked(dir, &["add", "--receive", "--allow", &key, "--into", "files/in"]);
    let to = |added: &Value| format!("{}@{}", added["key"].as_str().unwrap(), added["addresses"][0].as_str().unwrap());
    let target = to(&standing);
    let send =
        |who: &str, target: &str| finish(elsewhere(dir, who).args(["send", "tree", "--to", target, "--give-up", "5s"]));
    assert_eq!(send("friend", &target).0, 0);
    assert_same_tree(&dir.join("tree"), &dir.join("files/in/tree"));
    let (code, _, err) = send("stranger", &target);
    assert!(code != 0 && err.contains("allowed"), "{code}: {err}");
    kill(running);
    let _running = daemon(dir);
    let id = standing["id"].to_string();
    wait(dir, &id, |content| content["state"] == "waiting");
    fs::write(dir.join("tree/new"), noise(100_000, 9)).unwrap();
    // Where it was before; what is there already is not sent again.
    let (code, _, err) = send("friend", &target);
    assert_eq!(code, 0, "{err}");
    assert_same_tree(&dir.join("tree/new"), &dir.join("files/in/tree/new"));
    let moved = wait(dir, &id, |content| content["downloaded"].as_u64() > Some(0));
    assert!(moved["completed"].is_null() && !files.is_empty(), "{moved}");

    let by_ticket = asked(dir, &["add", "--receive", "--into", "files/by-ticket", "--expires", "1h"]);
    let ticket = by_ticket["ticket"].as_str().unwrap();
    assert_eq!(send("stranger", ticket).0, 0);
    assert_same_tree(&dir.join("tree"), &dir.join("files/by-ticket/tree"));
    let id = by_ticket["id"].to_string();
    let whole = wait(dir, &id, |content| content["state"] == "complete");
    assert_eq!(whole["name"], "tree");
    // And the other way round: to who made a ticket.
    let mut command = elsewhere(dir, "other");
    let (mut receiving, ticket) = with_ticket(&mut command, &["receive", "-o", "out"]);
    let (code, _, err) = ask(dir, &["add", "tree", "--to", &ticket]);
    assert!(code == 2 && err.contains("--send"), "{code} {err}");
    let sent = asked(dir, &["add", "--send", "tree", "--to", &ticket])["id"].to_string();
    receiving.event("finished");
    wait(dir, &sent, |content| content["state"] == "complete");
    assert_same_tree(&dir.join("tree"), &dir.join("out/tree"));
}

#[test]
fn the_command_is_run_once_for_each_transfer_that_was_received() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    fs::write(dir.join("one"), noise(1000, 1)).unwrap();
    let command = "echo \"$CONTENT_NAME|$CONTENT_PATH|$CONTENT_DIR|$CONTENT_BYTES|$CONTENT_FILES|$CONTENT_INFO_HASH\" >> files/log; \
                   test -e \"$CONTENT_PATH\" && echo there >> files/log";
    let running = daemon_with(dir, &["--on-complete", command]);
    let key = key_of(dir, "friend");
    let standing = asked(dir, &["add", "--receive", "--allow", &key, "--into", "files/in"]);
    let target = format!("{}@{}", standing["key"].as_str().unwrap(), standing["addresses"][0].as_str().unwrap());
    let lines = |count: usize| {
        let began = Instant::now();
        loop {
            let log = fs::read_to_string(dir.join("files/log")).unwrap_or_default();
            if log.lines().count() >= count {
                return log;
            }
            assert!(began.elapsed() < PATIENCE, "{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let send = |paths: &[&str]| {
        let arguments = [&["send"], paths, &["--to", &target, "--give-up", "5s"]].concat();
        let (code, _, err) = finish(elsewhere(dir, "friend").args(arguments));
        assert_eq!(code, 0, "{err}");
    };
    send(&["tree"]);
    let inside = fs::canonicalize(dir.join("files/in")).unwrap().display().to_string();
    let bytes: usize = 300_001 + 17 + 65_536;
    assert_eq!(lines(2), format!("tree|{inside}/tree|{inside}|{bytes}|5|\nthere\n"));
    // Several have no name in common.
    send(&["one", "tree/a.bin"]);
    let both = lines(4);
    let last: Vec<&str> = both.lines().skip(2).collect();
    assert!(last[0].ends_with(&format!("|{inside}|{inside}|301001|2|")) && last[1] == "there", "{both}");
    // One that was sent from here has none; one by ticket has, and what was told once is not told again after a restart.
    let mut sender = elsewhere(dir, "other");
    let (_sender, ticket) = with_ticket(&mut sender, &["send", "one"]);
    let received = asked(dir, &["add", &ticket])["id"].to_string();
    wait(dir, &received, |content| content["state"] == "complete");
    let files = fs::canonicalize(dir.join("files")).unwrap().display().to_string();
    assert!(lines(6).contains(&format!("one|{files}/one|{files}|1000|1|\n")));
    let sent = asked(dir, &["add", "--send", "one"]);
    let ticket = sent["ticket"].as_str().unwrap();
    assert_eq!(finish(elsewhere(dir, "other").args(["receive", ticket, "-o", "out"])).0, 0);
    wait(dir, &sent["id"].to_string(), |content| content["state"] == "complete");
    kill(running);
    let _running = daemon_with(dir, &["--on-complete", command]);
    wait(dir, &standing["id"].to_string(), |content| content["state"] == "waiting");
    assert_eq!(lines(6).lines().count(), 6);
}

#[test]
fn flags_that_cannot_be_meant_together_are_told_and_folders_are_kept_to() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    tree(dir);
    let _running = daemon(dir);
    for (arguments, code, needle) in [
        (&["add"][..], 2, "SOURCE"),
        (&["add", "--receive", "tree"], 2, "leave the SOURCE out"),
        (&["add", "--share", "--send", "tree"], 2, "leave one out"),
        (&["add", "--send", "tree", "--allow", "x"], 2, "--receive"),
        (&["add", "--receive", "--allow", "x", "--times", "2"], 2, "ticket"),
        (&["add", "tree", "--port", "5"], 2, "--port"),
        (&["add", "--send", "tree", "--force"], 2, "--force"),
        (&["add", "--send", "tree", "--times", "0"], 2, "--times"),
        (&["add", "--receive", "--allow", "nobody"], 3, "no key"),
        (&["add", "--send", "/etc"], 3, "--allow-dir"),
        (&["add", "--send", "nowhere"], 3, "nowhere"),
        (&["add", "--receive", "--into", "/etc"], 3, "--allow-dir"),
        (&["add", "bulk1-AAAA"], 3, "mistyped"),
        (&["add", "--send", "tree", "--to", "bulk1-AAAA"], 2, "mistyped"),
    ] {
        let (found, _, err) = ask(dir, arguments);
        assert!(found == code && err.contains(needle), "{arguments:?}: {found} {err}");
    }
    assert_eq!(asked(dir, &["list"]), Value::Null);
}
