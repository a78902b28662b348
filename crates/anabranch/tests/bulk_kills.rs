//! An end of `send` and `receive` that is killed and started again: how soon the other notices, and what becomes of what was there.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::bulk::{elsewhere, key_of, standing, with_ticket};
use common::{Running, noise, signal};
use serde_json::Value;

/// Bytes that take some seconds at [`RATE`].
const LEN: usize = 8_000_000;
const RATE: &str = "2M";

fn kill(mut running: Running) {
    signal(running.child.id(), "KILL");
    running.child.wait().unwrap();
}

/// The events up to the first of `name`, that one included.
fn until(running: &mut Running, name: &str) -> Vec<Value> {
    let mut events = Vec::new();
    loop {
        let event: Value = serde_json::from_str(&running.line()).unwrap();
        let is_last = event["event"] == name;
        events.push(event);
        if is_last {
            return events;
        }
    }
}

/// Waits until so many bytes are there.
fn progressed(running: &mut Running, bytes: u64) {
    while running.event("progress")["bytes_done"].as_u64().unwrap() < bytes {}
}

fn receiver(dir: &Path, address: &str, key: &str, flags: &[&str]) -> Running {
    let mut command = elsewhere(dir, "r");
    command.args(["receive", "--listen", address, "--json", "-o", "in", "--allow", key]).args(flags);
    loop {
        let mut running = Running::start(&mut command);
        // Its address is free again once the system has noticed.
        if let Some(line) = running.line_or_end() {
            assert!(line.contains("\"listening\""), "{line}");
            return running;
        }
    }
}

fn sender(dir: &Path, to: &str) -> Command {
    let mut command = elsewhere(dir, "a");
    command.args(["send", "big.bin", "--to", to, "--json", "--limit-up", RATE]);
    command
}

/// Who is back says so with QUIC's stateless reset, long before silence does.
#[test]
fn a_receiver_that_was_killed_is_missed_once_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("big.bin"), noise(LEN, 1)).unwrap();
    let key = key_of(dir.path(), "a");
    let (first, address, _) = standing(dir.path(), "r", "in", std::slice::from_ref(&key));
    let mut sender = Running::start(&mut sender(dir.path(), &address));
    progressed(&mut sender, 2_000_000);
    kill(first);
    let mut receiver = receiver(dir.path(), &address, &key, &[]);
    let heard = until(&mut sender, "resumed");
    let is_reset = |event: &Value| event["event"] == "waiting" && event["reason"].to_string().contains("reset");
    assert!(heard.iter().any(is_reset), "{heard:#?}");
    let kept = sender.event("started")["bytes_kept"].as_u64().unwrap();
    assert!(kept >= 1 << 20, "{kept}");
    assert_eq!(sender.event("finished")["exit_code"], 0);
    receiver.event("finished");
    assert!(fs::read(dir.path().join("in/big.bin")).unwrap() == noise(LEN, 1));
}

/// The connection of one that is gone is not waited for.
#[test]
fn a_guest_that_was_killed_and_comes_again_is_one_guest() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("big.bin"), noise(LEN, 1)).unwrap();
    let (mut sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &["send", "big.bin", "--limit-up", RATE]);
    let receive = || Running::start(elsewhere(dir.path(), "b").args(["receive", &ticket, "-o", "in", "--json"]));
    let mut first = receive();
    progressed(&mut first, 2_000_000);
    kill(first);
    let mut second = receive();
    until(&mut sender, "connected");
    until(&mut sender, "connected");
    let heard = until(&mut sender, "finished");
    let of_the_first = heard.iter().filter(|event| event["event"] == "waiting" || event["event"] == "error");
    assert_eq!(of_the_first.count(), 0, "{heard:#?}");
    assert_eq!(second.event("finished")["exit_code"], 0);
    assert_eq!(sender.child.wait().unwrap().code(), Some(0));
    assert!(fs::read(dir.path().join("in/big.bin")).unwrap() == noise(LEN, 1));
}

#[test]
fn a_sender_that_was_killed_and_comes_with_something_else_is_let_in() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("big.bin"), noise(LEN, 1)).unwrap();
    let key = key_of(dir.path(), "a");
    let (first, address, _) = standing(dir.path(), "r", "in", std::slice::from_ref(&key));
    drop(first);
    let mut receiver = receiver(dir.path(), &address, &key, &["--force"]);
    let mut first = Running::start(&mut sender(dir.path(), &address));
    progressed(&mut first, 2_000_000);
    kill(first);
    // The same name, another content: the first's session has the place still.
    fs::write(dir.path().join("big.bin"), noise(LEN - 1, 2)).unwrap();
    let mut second = Running::start(&mut sender(dir.path(), &address));
    let mut heard = Vec::new();
    while let Some(line) = second.line_or_end() {
        heard.push(line);
    }
    assert_eq!(second.child.wait().unwrap().code(), Some(0), "{heard:#?}");
    receiver.event("finished");
    assert!(fs::read(dir.path().join("in/big.bin")).unwrap() == noise(LEN - 1, 2));
}

/// The manifest is the same, so that what was kept counts; that it is not what is sent now, its hashes tell.
#[test]
fn a_source_that_was_edited_and_its_time_put_back_comes_as_it_is_now() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("big.bin");
    fs::write(&source, noise(LEN, 1)).unwrap();
    let key = key_of(dir.path(), "a");
    let (first, address, _) = standing(dir.path(), "r", "in", std::slice::from_ref(&key));
    let mut sending = Running::start(&mut sender(dir.path(), &address));
    progressed(&mut sending, 4_000_000);
    kill(sending);
    kill(first);
    let modified = fs::metadata(&source).unwrap().modified().unwrap();
    let mut now = noise(LEN, 1);
    now[..100].fill(9);
    fs::write(&source, &now).unwrap();
    fs::File::options().write(true).open(&source).unwrap().set_modified(modified).unwrap();
    let mut receiver = receiver(dir.path(), &address, &key, &[]);
    let mut sending = Running::start(&mut sender(dir.path(), &address));
    let kept = sending.event("started")["bytes_kept"].as_u64().unwrap();
    assert!(kept >= 1 << 20, "{kept}");
    sending.event("finished");
    receiver.event("finished");
    assert!(fs::read(dir.path().join("in/big.bin")).unwrap() == now);
}
