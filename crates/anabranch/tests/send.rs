//! Files from host to host: `send` and `receive` as their users meet them, by ticket and by address, and what they say when
//! something is wrong.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_hercules::wire::ticket::{KeyPrint, TICKET_SECRET_LEN, Ticket};
use common::bulk::{assert_same_tree, elsewhere, key_of, standing, with_ticket};
use common::{Running, finish, noise, signal, tree};
use serde_json::Value;

/// A folder with what strangers bring: odd sizes, an empty file and folder, a link, modes.
fn folder(dir: &Path) {
    tree(dir);
    fs::create_dir(dir.join("tree/nothing")).unwrap();
    symlink("a.bin", dir.join("tree/link")).unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir.join("tree/sub/b.txt"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Waits for the end of a program that ends by itself.
fn ended(mut running: Running) -> (i32, Vec<Value>) {
    let mut events = Vec::new();
    while let Some(line) = running.line_or_end() {
        events.push(serde_json::from_str(&line).unwrap());
    }
    (running.child.wait().unwrap().code().unwrap_or(-1), events)
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == name).collect()
}

#[test]
fn a_folder_goes_by_ticket_whoever_waits() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path());
    // The sender waits.
    let (sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &["send", "tree"]);
    assert!(ticket.starts_with("bulk1-") && ticket.len() < 80, "{ticket}");
    let (code, _, stderr) = finish(elsewhere(dir.path(), "b").args(["receive", &ticket, "-o", "in-1"]));
    assert!(
        code == 0 && stderr.contains("receiving tree") && stderr.contains("complete and verified"),
        "{code} {stderr}"
    );
    let (code, events) = ended(sender);
    assert_eq!(code, 0, "{events:?}");
    let finished = named(&events, "finished")[0];
    assert!(finished["bytes_total"] == 365_554 && finished["exit_code"] == 0, "{finished}");
    assert_same_tree(&dir.path().join("tree"), &dir.path().join("in-1/tree"));
    // The receiver waits.
    let (receiver, ticket) = with_ticket(&mut elsewhere(dir.path(), "b"), &["receive", "-o", "in-2"]);
    let (code, _, stderr) = finish(elsewhere(dir.path(), "a").args(["send", "tree", "--to", &ticket]));
    assert!(code == 0 && stderr.contains("sending tree"), "{code} {stderr}");
    let (code, events) = ended(receiver);
    assert!(code == 0 && named(&events, "finished").len() == 1, "{events:?}");
    assert_same_tree(&dir.path().join("tree"), &dir.path().join("in-2/tree"));
}

#[test]
fn a_ticket_is_good_as_often_as_it_says_and_for_no_other_purpose() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    // Who comes second is told.
    let (mut sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &["send", "one.bin", "--times", "2"]);
    for (who, folder) in [("b", "in-b"), ("c", "in-c")] {
        let (code, _, stderr) = finish(elsewhere(dir.path(), who).args(["receive", &ticket, "-o", folder]));
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(fs::read(dir.path().join(folder).join("one.bin")).unwrap(), noise(100_000, 1));
    }
    assert_eq!(sender.event("finished")["exit_code"], 0);
    assert_eq!(ended(sender).0, 0);
    // Nobody is there any more: said at once, and given up.
    let late = ["receive", &ticket, "-o", "in-d", "--give-up", "3s"];
    let (code, _, stderr) = finish(elsewhere(dir.path(), "d").args(late));
    assert!(code == 6 && stderr.contains("given up after 3s"), "{code} {stderr}");
    assert!(stderr.lines().count() >= 2, "it was told before it was given up: {stderr}");
    // The wrong way round, mistyped, cut, of another kind.
    let (receiver, inviting) = with_ticket(&mut elsewhere(dir.path(), "b"), &["receive", "-o", "in-e"]);
    let mut mistyped = inviting.clone().into_bytes();
    mistyped[20] = if mistyped[20] == b'x' { b'y' } else { b'x' };
    let mistyped = String::from_utf8(mistyped).unwrap();
    for (arguments, needle) in [
        (&["receive", &inviting][..], "give it to `anabranch send PATH --to TICKET`"),
        (&["send", "one.bin", "--to", &ticket], "give it to `anabranch receive TICKET`"),
        (&["receive", &mistyped], "mistyped or cut short, as its checksum says"),
        (&["send", "one.bin", "--to", &mistyped], "mistyped or cut short, as its checksum says"),
        (&["receive", &inviting[..30]], "mistyped or cut short"),
        (&["receive", "magnet:?xt=urn:btih:5ee4"], "this is no ticket"),
        (&["receive", "bulk2-AAAA"], "another version of the program"),
        (&["send", &inviting], "is a ticket: give it with --to"),
    ] {
        let (code, _, stderr) = finish(elsewhere(dir.path(), "a").args(arguments));
        assert!(code == 2 && stderr.contains(needle), "{arguments:?}: {code} {stderr}");
    }
    assert_eq!(receiver.interrupt().0, 130);
}

#[test]
fn who_comes_second_is_told_that_the_ticket_was_used() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("big.bin"), noise(3_000_000, 1)).unwrap();
    // Slow enough for both to be there at once.
    let arguments = ["send", "big.bin", "--limit-up", "500K"];
    let (mut sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &arguments);
    let mut first = elsewhere(dir.path(), "b");
    let mut first = Running::start(first.args(["receive", &ticket, "-o", "in-b", "--json"]));
    first.event("started");
    let (code, _, stderr) = finish(elsewhere(dir.path(), "c").args(["receive", &ticket, "-o", "in-c"]));
    assert!(code == 6 && stderr.contains("used already"), "{code} {stderr}");
    assert!(sender.event("rejected")["reason"].as_str().unwrap().contains("used"));
    assert_eq!((ended(first).0, ended(sender).0), (0, 0));
    assert_eq!(fs::read(dir.path().join("in-b/big.bin")).unwrap(), noise(3_000_000, 1));
    assert!(!dir.path().join("in-c/big.bin").exists());
}

#[test]
fn a_ticket_that_expired_is_worth_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(1000, 1)).unwrap();
    let (sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &["send", "one.bin", "--expires", "1s"]);
    assert!(ticket.parse::<Ticket>().is_ok());
    let (code, events) = ended(sender);
    assert!(code == 6 && named(&events, "finished").is_empty(), "{code} {events:?}");
    // Long ago, so that no clock can be to blame.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32;
    let old = Ticket {
        holder_sends: false,
        addresses: vec!["127.0.0.1:9".parse().unwrap()],
        key: KeyPrint([1; 16]),
        secret: [2; TICKET_SECRET_LEN],
        expires: now - 7200,
    };
    let (code, _, stderr) = finish(elsewhere(dir.path(), "b").args(["receive", &old.to_string()]));
    assert!(code == 3 && stderr.contains("expired 2h00m ago: ask for a new one"), "{code} {stderr}");
}

#[test]
fn a_standing_receiver_takes_from_several_senders_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let senders = ["a", "b", "c"];
    let keys: Vec<String> = senders.iter().map(|who| key_of(dir.path(), who)).collect();
    let (mut receiver, address, _) = standing(dir.path(), "r", "in", &keys);
    for (number, who) in senders.iter().enumerate() {
        fs::write(dir.path().join(format!("{who}.bin")), noise(400_000 + number, number as u64)).unwrap();
    }
    let sending: Vec<Running> = senders
        .iter()
        .map(|who| {
            let mut command = elsewhere(dir.path(), who);
            Running::start(command.args(["send", &format!("{who}.bin"), "--to", &address, "--json"]))
        })
        .collect();
    for sender in sending {
        let (code, events) = ended(sender);
        assert_eq!(code, 0, "{events:?}");
    }
    for _ in senders {
        assert_eq!(receiver.event("finished")["exit_code"], 0);
    }
    // One sender may send several things at once, too.
    fs::write(dir.path().join("x1.bin"), noise(300_000, 7)).unwrap();
    fs::write(dir.path().join("x2.bin"), noise(300_000, 8)).unwrap();
    let sending = ["x1.bin", "x2.bin"].map(|name| {
        Running::start(elsewhere(dir.path(), "a").args([
            "send",
            name,
            "--to",
            &address,
            "--json",
            "--limit-up",
            "300K",
        ]))
    });
    for sender in sending {
        assert_eq!(ended(sender).0, 0);
        assert_eq!(receiver.event("finished")["exit_code"], 0);
    }
    for (number, who) in senders.iter().enumerate() {
        let there = fs::read(dir.path().join(format!("in/{who}.bin"))).unwrap();
        assert_eq!(there, noise(400_000 + number, number as u64));
    }
    // One whose key is not on the list is turned away, and told.
    fs::write(dir.path().join("x.bin"), "x").unwrap();
    let (code, _, stderr) = finish(elsewhere(dir.path(), "x").args(["send", "x.bin", "--to", &address]));
    assert!(code == 6 && stderr.contains("not among those allowed"), "{code} {stderr}");
    assert_eq!(receiver.event("rejected")["key"], key_of(dir.path(), "x"));
    // Interrupted while nobody sends: that is the way to end.
    assert_eq!(receiver.interrupt().0, 0);
}

#[test]
fn one_destination_that_fails_does_not_fail_the_others() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(700_000, 1)).unwrap();
    let key = key_of(dir.path(), "a");
    let (_one, first, first_key) = standing(dir.path(), "one", "in-1", std::slice::from_ref(&key));
    let (_two, second, _) = standing(dir.path(), "two", "in-2", &[key]);
    let keyed = format!("{first_key}@{first}");
    let to = ["--to", &keyed, "--to", "127.0.0.1:9", "--to", &second, "--give-up", "2s"];
    let (code, out, stderr) =
        finish(elsewhere(dir.path(), "a").args(["send", "one.bin", "--json", "--receipt", "r"]).args(to));
    assert!(code == 6 && stderr.contains("1 of 3 destinations do not have it"), "{code} {stderr}");
    assert!(stderr.contains("  127.0.0.1:9: "), "{stderr}");
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let states: Vec<(&Value, &Value)> = events
        .iter()
        .filter(|event| event["event"] == "finished" || event["event"] == "error")
        .map(|event| (&event["peer"], &event["exit_code"]))
        .collect();
    assert_eq!(states.len(), 3, "{states:?}");
    assert!(states.contains(&(&"127.0.0.1:9".into(), &6.into())), "{states:?}");
    assert!(states.contains(&(&first.as_str().into(), &0.into())), "{states:?}");
    for folder in ["in-1", "in-2"] {
        assert_eq!(fs::read(dir.path().join(folder).join("one.bin")).unwrap(), noise(700_000, 1));
    }
    // A receipt of each that has it.
    let (code, out, _) =
        finish(elsewhere(dir.path(), "a").args(["receipt", "r", "one.bin", "--json", "--receiver", &first_key]));
    let receipt: Value = serde_json::from_str(&out).unwrap();
    assert!(code == 0 && receipt["valid"] == true && receipt["receipts"].as_array().unwrap().len() == 2, "{out}");
}

/// Bytes that a process has read so far, of files above all.
fn bytes_read(running: &Running) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/io", running.child.id())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

/// A file of twice what the sender keeps in memory.
fn long() -> Vec<u8> {
    let (mut unit, mut all) = (noise(1 << 20, 5), Vec::new());
    for number in 0..96 {
        unit[0] = number;
        all.extend_from_slice(&unit);
    }
    all
}

/// Receivers of one file, each with its limit, and a sender of it to all of them.
fn one_to_many(dir: &Path, limits: &[&str]) -> (Running, Vec<Running>) {
    fs::write(dir.join("long.bin"), long()).unwrap();
    let mut command = elsewhere(dir, "a");
    command.args(["send", "long.bin", "--json"]);
    let receiving = limits.iter().enumerate().map(|(at, limit)| {
        let out = format!("in-{at}");
        let arguments = ["receive", "-o", &out, "--limit-down", limit];
        let (receiver, ticket) = with_ticket(&mut elsewhere(dir, &format!("r{at}")), &arguments);
        command.args(["--to", &ticket]);
        receiver
    });
    let receiving = receiving.collect();
    (Running::start(&mut command), receiving)
}

#[test]
fn four_receivers_have_the_file_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let (mut sender, receiving) = one_to_many(dir.path(), &["16M"; 4]);
    let mut read = 0;
    while sender.line_or_end().is_some() {
        read = bytes_read(&sender).unwrap_or(read);
    }
    let content = long();
    for (at, receiver) in receiving.into_iter().enumerate() {
        assert_eq!(ended(receiver).0, 0);
        assert!(fs::read(dir.path().join(format!("in-{at}/long.bin"))).unwrap() == content);
    }
    let times = read as f64 / content.len() as f64;
    assert!((1.0..=1.1).contains(&times), "it was read {times:.2} times");
}

#[test]
fn a_receiver_four_times_slower_than_the_others_holds_up_none_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, mut receiving) = one_to_many(dir.path(), &["16M", "16M", "16M", "4M"]);
    let slow = receiving.pop().unwrap();
    for receiver in receiving {
        assert_eq!(ended(receiver).0, 0);
    }
    // By then it has a quarter; it would have most of it if the others had waited for it.
    let len = long().len() as f64;
    let times = bytes_read(&sender).unwrap() as f64 / len;
    let (_, events) = slow.interrupt();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let done = events.filter_map(|event| event["bytes_done"].as_u64()).max().unwrap();
    assert!((done as f64) < len / 2.0, "the slow one has {done} bytes");
    assert!(times <= 1.1, "it was read {times:.2} times");
}

#[test]
fn a_receipt_says_what_holds_and_what_does_not() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path());
    let (sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &["send", "tree", "--receipt", "r"]);
    let (code, _, stderr) = finish(elsewhere(dir.path(), "b").args(["receive", &ticket, "-o", "in"]));
    assert_eq!((code, ended(sender).0), (0, 0), "{stderr}");
    let check = |arguments: &[&str]| finish(elsewhere(dir.path(), "c").arg("receipt").args(arguments));
    let (sent_by, received_by) = (key_of(dir.path(), "a"), key_of(dir.path(), "b"));
    for path in ["tree", ".", "in", "in/tree"] {
        let (code, out, stderr) = check(&["r", path, "--sender", &sent_by, "--receiver", &received_by]);
        assert!(code == 0 && out.contains("is what was received, byte for byte"), "{path}: {code} {out}{stderr}");
        assert!(out.contains(&format!("receiver   {received_by}; the signature is right")), "{out}");
    }
    let (code, _, stderr) = check(&["r", "--sender", &received_by]);
    assert!(code == 4 && stderr.contains("another key sent"), "{code} {stderr}");
    let (code, _, stderr) = check(&["r", "--receiver", &sent_by]);
    assert!(code == 4 && stderr.contains("has no receipt of"), "{code} {stderr}");
    // The content is not any more what it was.
    fs::write(dir.path().join("in/tree/sub/b.txt"), noise(17, 99)).unwrap();
    fs::remove_file(dir.path().join("in/tree/empty")).unwrap();
    let (code, out, stderr) = check(&["r", "in"]);
    assert!(
        code == 4 && out.contains("is NOT what was received") && out.contains("empty is not there"),
        "{out}{stderr}"
    );
    // Forged, a byte each in the receipt and in the list of files.
    let good = fs::read(dir.path().join("r")).unwrap();
    for at in [40, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] = if bad[at] == b'0' { b'1' } else { b'0' };
        fs::write(dir.path().join("forged"), &bad).unwrap();
        let (code, _, stderr) = check(&["forged"]);
        assert!(code == 3 && stderr.contains("forged"), "{at}: {code} {stderr}");
    }
    let (code, _, stderr) = check(&["tree/a.bin"]);
    assert!(code == 3 && stderr.contains("is no receipt"), "{code} {stderr}");
    let arguments = ["send", "tree", "--receipt", "tree/a.bin", "--listen", "127.0.0.1:0"];
    let (code, _, stderr) = finish(elsewhere(dir.path(), "a").args(arguments));
    assert!(code == 2 && stderr.contains("exists and is no receipt"), "{code} {stderr}");
}

#[test]
fn standard_input_goes_to_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(300_000, 1)).unwrap();
    let mut sender = elsewhere(dir.path(), "a");
    sender.args(["send", "-", "--name", "named", "--listen", "127.0.0.1:0", "-q"]);
    let input = fs::File::open(dir.path().join("one.bin")).unwrap();
    let mut sender = sender.stdin(input).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut ticket = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(sender.stdout.take().unwrap()), &mut ticket).unwrap();
    let mut receiver = elsewhere(dir.path(), "b");
    let done = receiver.args(["receive", ticket.trim(), "-o", "-"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.stdout == noise(300_000, 1), "{} bytes", done.stdout.len());
    assert_eq!(sender.wait().unwrap().code(), Some(0));
    // Its name, in a folder; more than one file has no place on standard output.
    let (receiver, ticket) = with_ticket(&mut elsewhere(dir.path(), "b"), &["receive", "-o", "in"]);
    let mut sender = elsewhere(dir.path(), "a");
    let input = fs::File::open(dir.path().join("one.bin")).unwrap();
    let done = sender.args(["send", "-", "--name", "named", "--to", &ticket]).stdin(input).output().unwrap();
    assert_eq!((done.status.code(), ended(receiver).0), (Some(0), 0), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(fs::read(dir.path().join("in/named")).unwrap(), noise(300_000, 1));
    folder(dir.path());
    let (sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &["send", "tree"]);
    let (code, out, stderr) = finish(elsewhere(dir.path(), "b").args(["receive", &ticket, "-o", "-"]));
    assert!(code == 5 && out.is_empty() && stderr.contains("go to standard output"), "{code} {stderr}");
    assert_eq!(sender.interrupt().0, 130);
}

#[test]
fn what_is_left_out_and_what_would_go_is_told() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path());
    let idle = ["send", "tree", "--dry-run", "--exclude", "*.txt", "--exclude", "zzz*", "--to", "127.0.0.1:9"];
    let (_, _, stderr) = finish(elsewhere(dir.path(), "a").args(idle));
    assert!(stderr.contains("`--exclude zzz*` left nothing out") && !stderr.contains("`--exclude *.txt`"), "{stderr}");
    let dry = ["send", "tree", "--dry-run", "--exclude", "*.txt", "--to", "127.0.0.1:9"];
    let (code, out, stderr) = finish(elsewhere(dir.path(), "a").args(dry));
    assert!(code == 0 && out.contains("tree/sub/deep/c.bin") && !out.contains("b.txt"), "{code} {out}{stderr}");
    assert!(out.contains("to 127.0.0.1:9:") && out.contains("   127.0.0.1"), "{out}");
    let (_, out, _) = finish(elsewhere(dir.path(), "a").args(dry).arg("--json"));
    let object: Value = serde_json::from_str(&out).unwrap();
    assert!(object["bytes_total"] == 365_537 && object["destinations"][0]["to"] == "127.0.0.1:9", "{out}");
    let (sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &["send", "tree", "--exclude", "*.txt"]);
    let (code, _, stderr) = finish(elsewhere(dir.path(), "b").args(["receive", &ticket, "-o", "in"]));
    assert_eq!((code, ended(sender).0), (0, 0), "{stderr}");
    assert!(dir.path().join("in/tree/a.bin").exists() && !dir.path().join("in/tree/sub/b.txt").exists());
    let (code, _, stderr) = finish(elsewhere(dir.path(), "a").args(["send", "nowhere"]));
    assert!(code == 3 && stderr.contains("cannot read nowhere"), "{code} {stderr}");
}

#[test]
fn a_receiver_is_known_by_its_key() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(50_000, 1)).unwrap();
    let sender = key_of(dir.path(), "a");
    let (first, address, key) = standing(dir.path(), "r", "in", std::slice::from_ref(&sender));
    let send = |to: &str| finish(elsewhere(dir.path(), "a").args(["send", "one.bin", "--to", to, "--give-up", "5s"]));
    // The wrong key, where the user knows it.
    let (code, _, stderr) = send(&format!("{sender}@{address}"));
    assert!(code == 6 && stderr.contains(&key) && stderr.contains("somebody else"), "{code} {stderr}");
    // Met for the first time, and remembered.
    let (code, _, stderr) = send(&address);
    assert!(code == 0 && stderr.contains("met for the first time, and remembered"), "{code} {stderr}");
    let (_, list, _) = finish(elsewhere(dir.path(), "a").args(["keys", "list"]));
    assert_eq!(list.trim(), format!("{address} {key}"));
    assert_eq!(first.interrupt().0, 0);
    // Another one at the same address.
    let other_key = key_of(dir.path(), "other");
    let mut other = elsewhere(dir.path(), "other");
    let arguments = ["receive", "--listen", &address, "--json", "-o", "in-2", "--allow", &sender];
    let mut other = Running::start(other.args(arguments));
    other.event("listening");
    let (code, _, stderr) = send(&address);
    assert!(code == 6 && stderr.contains("known-keys, line 2") && stderr.contains(&other_key), "{code} {stderr}");
    assert!(!dir.path().join("in-2/one.bin").exists(), "nothing was told to it");
    assert_eq!(finish(elsewhere(dir.path(), "a").args(["keys", "forget", &address])).0, 0);
    assert_eq!(send(&address).0, 0);
}

#[test]
fn what_is_in_the_way_is_left_alone_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(200_000, 1)).unwrap();
    fs::create_dir(dir.path().join("in")).unwrap();
    fs::write(dir.path().join("in/one.bin"), "a letter").unwrap();
    let (sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &["send", "one.bin"]);
    let (code, _, stderr) = finish(elsewhere(dir.path(), "b").args(["receive", &ticket, "-o", "in"]));
    assert!(code == 5 && stderr.contains("one.bin") && stderr.contains("--force"), "{code} {stderr}");
    assert_eq!(fs::read_to_string(dir.path().join("in/one.bin")).unwrap(), "a letter");
    // The ticket is as good as before.
    let (code, _, stderr) = finish(elsewhere(dir.path(), "b").args(["receive", &ticket, "-o", "in", "--force"]));
    assert_eq!((code, ended(sender).0), (0, 0), "{stderr}");
    assert_eq!(fs::read(dir.path().join("in/one.bin")).unwrap(), noise(200_000, 1));
}

/// As after a sender that was killed when everything was there and the receipt on its way.
#[test]
fn the_same_once_more_is_there_already_and_signed_for() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path());
    fs::write(dir.path().join("tree/big.bin"), noise(5_000_000, 3)).unwrap();
    let key = key_of(dir.path(), "a");
    let (mut receiver, address, _) = standing(dir.path(), "r", "in", &[key]);
    let send = || {
        let mut command = elsewhere(dir.path(), "a");
        let (code, out, stderr) = finish(command.args(["send", "tree", "--to", &address, "--json", "--receipt", "r"]));
        assert_eq!(code, 0, "{stderr}");
        let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |name: &str, field: &str| named(&events, name)[0][field].as_u64().unwrap();
        (of("started", "bytes_kept"), of("finished", "bytes_moved"))
    };
    assert_eq!(send().0, 0);
    assert_eq!(send(), (5_365_554, 0), "all of it is there");
    // One was lost: it comes, and what shares its span.
    fs::remove_file(dir.path().join("in/tree/big.bin")).unwrap();
    let (kept, moved) = send();
    assert!(kept == 0 && moved >= 5_000_000, "{kept} {moved}");
    assert_same_tree(&dir.path().join("tree"), &dir.path().join("in/tree"));
    // Another file of the same length and time is nobody's to touch.
    let small = dir.path().join("in/tree/sub/b.txt");
    let modified = fs::metadata(&small).unwrap().modified().unwrap();
    fs::write(&small, noise(17, 8)).unwrap();
    fs::File::options().write(true).open(&small).unwrap().set_modified(modified).unwrap();
    let (code, _, stderr) = finish(elsewhere(dir.path(), "a").args(["send", "tree", "--to", &address]));
    assert!(code == 6 && stderr.contains("cannot write what it receives"), "{code} {stderr}");
    loop {
        let error = receiver.event("error");
        if error["kind"] == "storage" {
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("b.txt") && message.contains("--force"), "{message}");
            break;
        }
    }
    assert_eq!(fs::read(&small).unwrap(), noise(17, 8));
}

#[test]
fn an_interrupt_at_either_end_is_told_to_the_other() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("big.bin"), noise(8_000_000, 1)).unwrap();
    let arguments = ["send", "big.bin", "--limit-up", "1M"];
    let (mut sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &arguments);
    let receive = || {
        let mut command = elsewhere(dir.path(), "b");
        let mut running = Running::start(command.args(["receive", &ticket, "-o", "in", "--json"]));
        running.event("started");
        running
    };
    assert_eq!(receive().interrupt().0, 130);
    let error = sender.event("error");
    assert!(error["kind"] == "ended", "{error}");
    // The ticket is still good; then the sender is interrupted.
    let receiver = receive();
    assert_eq!(sender.interrupt().0, 130);
    let (code, events) = ended(receiver);
    assert!(code == 6 && !named(&events, "error").is_empty(), "{code} {events:?}");
}

#[test]
fn a_source_that_changes_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("big.bin"), noise(20_000_000, 1)).unwrap();
    // It is read as it goes, as there is little memory to read ahead.
    let arguments = ["send", "big.bin", "--limit-up", "2M", "--memory", "1MiB"];
    let (sender, ticket) = with_ticket(&mut elsewhere(dir.path(), "a"), &arguments);
    let mut receiver = elsewhere(dir.path(), "b");
    let mut receiver = Running::start(receiver.args(["receive", &ticket, "-o", "in", "--json"]));
    receiver.event("started");
    fs::write(dir.path().join("big.bin"), noise(19_000_000, 2)).unwrap();
    let (code, events) = ended(sender);
    assert!(code == 4 && named(&events, "error")[0]["kind"] == "changed", "{code} {events:?}");
    let (code, _) = ended(receiver);
    assert_eq!(code, 6);
}

#[test]
fn flags_that_cannot_be_meant_together_are_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), "x").unwrap();
    let key = key_of(dir.path(), "a");
    let ticket = Ticket {
        holder_sends: false,
        addresses: vec!["127.0.0.1:9".parse().unwrap()],
        key: KeyPrint([1; 16]),
        secret: [2; TICKET_SECRET_LEN],
        expires: u32::MAX,
    };
    let ticket = ticket.to_string();
    for (arguments, code, needle) in [
        (&["send", "-", "one.bin"][..], 2, "standard input (`-`) is sent alone"),
        (&["send", "one.bin", "--name", "x"], 2, "`--name` names what comes from standard input"),
        (&["send", "-", "--name", "a/b", "--listen", "127.0.0.1:0"], 2, "no name of a file"),
        (&["send", "one.bin", "--to", "127.0.0.1:9", "--times", "2"], 2, "`--times` is about the ticket"),
        (&["send", "one.bin", "--to", "127.0.0.1:9", "--expires", "2h"], 2, "`--expires` is about the ticket"),
        (&["send", "one.bin", "--to", "127.0.0.1:0"], 2, "port 0"),
        (&["send", "one.bin", "--to", "127.0.0.1"], 2, "127.0.0.1"),
        (&["send", "one.bin", "--to", "no-such-host.invalid:9"], 6, "cannot look up"),
        (&["send", "one.bin", "--rate", "1M", "--congestion", "bbr"], 2, "--congestion"),
        (&["send", "one.bin", "--congestion", "cubic"], 2, "[possible values: fair, allegro, vivace, bbr]"),
        (&["send", "one.bin", "--times", "0"], 2, "--times"),
        (&["send", "one.bin", "--expires", "5"], 2, "with unit s, m, h or d"),
        (&["send", "one.bin", "--receipt", "no/r"], 5, "cannot write the receipt no/r"),
        (&["send", "one.bin", "--listen", "[1-1,10.0.0.1]:0", "--listen", "[1-1,10.0.0.2]:0"], 2, "one SCION address"),
        (&["receive", &ticket, "--listen", "127.0.0.1:0"], 2, "`--listen` is about who may call"),
        (&["receive", &ticket, "--allow", &key], 2, "`--allow` is about who may call"),
        (&["receive", "--allow", &key], 2, "give --listen ADDR"),
        (&["receive", "--allow", "nowhere", "--listen", "127.0.0.1:0"], 3, "`--allow nowhere` is no key"),
        (&["receive", "--allow", &key, "--listen", "127.0.0.1:0", "--times", "2"], 2, "with --allow there is none"),
        (&["receive", "--allow", &key, "--listen", "127.0.0.1:0", "-o", "-"], 2, "give a folder"),
        (&["receive", "-o", "-", "--json"], 2, "both print on standard output"),
        (&["receive", &ticket, "-o", "one.bin"], 5, "one.bin is no folder: choose another (-o)"),
        (&["receive", "-o", "one.bin/new/sub"], 5, "one.bin is no folder: choose another (-o)"),
        (&["receipt", "nowhere"], 3, "cannot read nowhere"),
    ] {
        let mut command = elsewhere(dir.path(), "a");
        let (found, out, stderr) = finish(command.args(arguments));
        assert!(found == code && stderr.contains(needle), "{arguments:?}: {found} {stderr}");
        assert!(out.is_empty(), "{arguments:?}: {out}");
    }
}

/// How often both ends are killed.
const KILLS: usize = 6;

#[test]
fn both_ends_killed_at_any_moment_go_on_where_they_ended() {
    killed_and_resumed(KILLS, 12_000_000);
}

#[test]
#[ignore = "kills both ends a hundred times, which takes minutes"]
fn both_ends_killed_a_hundred_times_go_on_where_they_ended() {
    killed_and_resumed(100, 100_000_000);
}

/// The same two commands again and again, ended by `kill -9` at random; then once to the end.
fn killed_and_resumed(kills: usize, len: usize) {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path());
    fs::write(dir.path().join("tree/big.bin"), noise(len, 5)).unwrap();
    let seed = std::env::var("ANABRANCH_ZOO_SEED").ok().and_then(|text| text.parse().ok());
    let mut state: u64 = seed.unwrap_or_else(|| std::process::id().into());
    println!("ANABRANCH_ZOO_SEED={state}");
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let sender_key = key_of(dir.path(), "a");
    let (probe, address, _) = standing(dir.path(), "r", "in", std::slice::from_ref(&sender_key));
    drop(probe);
    let receive = || {
        let mut command = elsewhere(dir.path(), "r");
        Running::start(command.args(["receive", "--listen", &address, "--json", "-o", "in", "--allow", &sender_key]))
    };
    let send = |rate: &str| {
        let mut command = elsewhere(dir.path(), "a");
        let arguments = ["send", "tree", "--to", &address, "--json", "--give-up", "30s", "--limit-up", rate];
        Running::start(command.args(arguments))
    };
    // Some ten seconds for all of it, so that a kill meets it on its way.
    let rate = (len / 10).to_string();
    let (mut receiver, mut sender) = (receive(), send(&rate));
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(random(1200)));
        match random(3) {
            0 => sender = restart(sender, || send(&rate)),
            1 => receiver = restart(receiver, receive),
            _ => {
                receiver = restart(receiver, receive);
                sender = restart(sender, || send(&rate));
            }
        }
    }
    // Whoever is last waits for the other, however the ends were left.
    sender = restart(sender, || send("100M"));
    let (code, events) = ended(sender);
    assert_eq!(code, 0, "{events:?}");
    assert_same_tree(&dir.path().join("tree"), &dir.path().join("in/tree"));
    let left: Vec<_> = fs::read_dir(dir.path().join("in")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let strange: Vec<_> = left.iter().filter(|name| *name != "tree" && *name != ".anabranch-lock").collect();
    assert!(strange.is_empty(), "left behind: {strange:?}");
    assert_eq!(receiver.interrupt().0, 0);
}

/// Ends a program as a crash of its machine would, and begins it again.
fn restart(mut running: Running, again: impl Fn() -> Running) -> Running {
    signal(running.child.id(), "KILL");
    running.child.wait().unwrap();
    drop(running);
    let began = Instant::now();
    loop {
        let mut running = again();
        // The port is free again once the system noticed.
        match running.child.try_wait().unwrap() {
            Some(status) if status.code() == Some(6) && began.elapsed() < Duration::from_secs(30) => {}
            _ => return running,
        }
    }
}
