//! Bulk transfers as contents: tickets, standing receivers, restarts, mistakes.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::Duration;

use anabranch_swarm::bulk::files::{FileSource, Scan};
use anabranch_swarm::bulk::{self, Dial, Event, Options, PeerKey, Peers};
use anabranch_transport::Identity;
use serde_json::{Value, json};

use crate::fixture::{Fixture, noise, part};

const CONTENTS: &str = "/api/v1/contents";
const CONTENT: &str = "/api/v1/contents/{id}";

fn add(fixture: &Fixture, body: &Value) -> String {
    fixture.add("bulk", body)
}

/// How others come to a content, once they can.
fn reach(fixture: &Fixture, id: &str) -> Value {
    fixture.reach(id, "key")
}

fn ticket(fixture: &Fixture, id: &str) -> String {
    reach(fixture, id)["ticket"].as_str().unwrap().to_owned()
}

/// A folder of two files.
fn album(fixture: &Fixture, seed: u64) -> Vec<u8> {
    let dir = fixture.files().join("album");
    std::fs::create_dir_all(&dir).unwrap();
    let bytes = noise(3_000_000, seed);
    std::fs::write(dir.join("one.mp3"), &bytes).unwrap();
    std::fs::write(dir.join("two.txt"), noise(50_000, seed + 1)).unwrap();
    bytes
}

fn is_complete(content: &Value) -> bool {
    assert_ne!(content["state"], "error", "{content}");
    content["state"] == "complete"
}

#[test]
fn what_one_sends_by_ticket_another_receives_once_and_both_know_it_after_a_restart() {
    let (one, two) = (Fixture::new(), Fixture::new());
    let bytes = album(&one, 7);
    let sent = add(&one, &json!({ "bulk": { "send": one.files().join("album") }, "category": "music" }));
    let ticket = ticket(&one, &sent);
    let waiting = one.wait(&sent, |content| content["state"] == "waiting");
    assert!(waiting["reason"].as_str().unwrap().contains("ticket"), "{waiting}");
    assert_eq!((waiting["size"].as_u64(), waiting["shared_only"].as_bool()), (Some(3_050_000), Some(true)));
    assert_eq!(waiting["bulk"]["times"], 1);

    let received = add(&two, &json!({ "source": ticket }));
    let again = two.ask("POST", CONTENTS, "", Some(&json!({ "bulk": { "ticket": ticket } })));
    assert_eq!((again.status, again.json()["type"].as_str()), (409, Some("urn:anabranch:problem:duplicate")));
    let whole = two.wait(&received, is_complete);
    assert_eq!(std::fs::read(two.files().join("album/one.mp3")).unwrap(), bytes);
    assert_eq!((whole["name"].as_str(), whole["done"].as_u64()), (Some("album"), Some(3_050_000)));
    assert_eq!((whole["downloaded"].as_u64(), whole["paused"].as_bool()), (Some(3_050_000), Some(true)));
    let over = one.wait(&sent, is_complete);
    assert_eq!((over["uploaded"].as_u64(), over["bulk"]["times"].as_u64()), (Some(3_050_000), Some(0)));
    assert!(over["reason"].as_str().unwrap().contains("ticket"), "{over}");
    for (fixture, id) in [(&one, &sent), (&two, &received)] {
        let paths = fixture.ask("GET", &part("paths"), id, None).json();
        assert!(paths["changes"][0]["reason"].as_str().unwrap().contains("answered"), "{paths}");
        let log = fixture.ask("GET", &part("log"), id, None).json();
        assert!(log.to_string().contains("complete and verified"), "{log}");
        assert_eq!(fixture.ask("GET", &part("peers"), id, None).status, 200);
    }

    // The ticket was used: whoever comes with it now finds nobody, or is told.
    let (one, two) = (Fixture::over(one.end()), Fixture::over(two.end()));
    for (fixture, id) in [(&one, &sent), (&two, &received)] {
        let after = fixture.ask("GET", CONTENT, id, None).json();
        assert!(is_complete(&after), "{after}");
        assert_eq!(after["downloaded"].as_u64().unwrap() + after["uploaded"].as_u64().unwrap(), 3_050_000);
        // Going on with what is done does nothing.
        assert_eq!(fixture.ask("POST", &part("resume"), id, None).status, 202);
        fixture.wait(id, |content| content["state"] == "complete" && content["paused"] == true);
        assert!(fixture.ask("GET", &part("reach"), id, None).json()["ticket"].is_null());
        let refused = fixture.send("DELETE", &format!("{CONTENTS}/{id}?data=delete"), &fixture.fields(), b"");
        assert_eq!(refused.status, 409, "{}", refused.json());
        assert_eq!(fixture.ask("DELETE", CONTENT, id, None).status, 200);
        assert!(fixture.files().join("album/one.mp3").exists());
    }
}

#[test]
fn a_transfer_goes_on_over_restarts_of_either_end_with_the_ticket_of_before() {
    let (one, two) = (Fixture::new(), Fixture::new());
    let bytes = album(&one, 17);
    let body = json!({ "bulk": { "send": one.files().join("album"), "times": 2 }, "limit_up": 700_000 });
    let sent = add(&one, &body);
    let before = ticket(&one, &sent);
    let received = add(&two, &json!({ "bulk": { "ticket": before } }));
    let begun = |fixture: &Fixture, id: &str| fixture.wait(id, |content| content["done"].as_u64() > Some(1 << 20));
    let seen = begun(&two, &received);
    assert_eq!(seen["state"], "downloading", "{seen}");
    assert!(one.ask("GET", CONTENT, &sent, None).json()["eta"].is_u64());
    let two = Fixture::over(two.end());
    two.wait(&received, |content| content["done"].as_u64() > Some(1 << 20));
    let one = Fixture::over(one.end());
    assert_eq!(ticket(&one, &sent), before, "it is the same");
    // Another limit holds at once, and ends nothing.
    assert_eq!(one.ask("PATCH", CONTENT, &sent, Some(&json!({ "limit_up": null }))).status, 200);
    two.wait(&received, is_complete);
    assert_eq!(std::fs::read(two.files().join("album/one.mp3")).unwrap(), bytes);
    let left = one.wait(&sent, |content| content["bulk"]["times"] == 1);
    assert!(left["completed"].is_null(), "{left}");

    // Paused, nobody is let in; going on, the second one is.
    assert_eq!(one.ask("POST", &part("pause"), &sent, None).status, 202);
    one.wait(&sent, |content| content["state"] == "paused");
    let three = Fixture::new();
    let second = add(&three, &json!({ "source": before }));
    three.wait(&second, |content| content["state"] == "waiting");
    assert_eq!(one.ask("POST", &part("resume"), &sent, None).status, 202);
    three.wait(&second, is_complete);
    one.wait(&sent, is_complete);
}

/// Sends a file to a standing receiver as somebody with a key: how it ended.
fn send_to(reach: &Value, identity: Identity, path: &Path) -> Event {
    let scan = Scan::of(&[path.to_owned()], None, &AtomicBool::new(false)).unwrap();
    let addresses = reach["addresses"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().parse().unwrap());
    let key = reach["key"].as_str().unwrap().parse().unwrap();
    let dial = Dial { addresses: addresses.collect(), key: Some(PeerKey::Whole(key)), secret: None };
    let source = std::sync::Arc::new(FileSource::new(scan).unwrap());
    let (_handle, mut events) = bulk::send(Options::new(identity), Peers::Dial(vec![dial]), source).unwrap();
    loop {
        let event = events.blocking_recv().expect("it ends with a word");
        if matches!(event, Event::Finished { .. } | Event::Failed { .. }) {
            return event;
        }
    }
}

#[test]
fn a_standing_receiver_takes_what_its_keys_send_any_number_of_times_and_after_a_restart() {
    let fixture = Fixture::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let allowed = || Identity::open(&elsewhere.path().join("key")).unwrap();
    let inbox = fixture.files().join("inbox");
    let body = json!({ "bulk": { "allow": [allowed().node_id().to_string()] }, "dir": inbox, "name": "inbox" });
    let id = add(&fixture, &body);
    let first = reach(&fixture, &id);
    assert!(first["ticket"].is_null() && !first["addresses"].as_array().unwrap().is_empty(), "{first}");
    let waiting = fixture.wait(&id, |content| content["state"] == "waiting");
    assert!(waiting["reason"].as_str().unwrap().contains("keys"), "{waiting}");
    let file = |name: &str, seed: u64| {
        let path = elsewhere.path().join(name);
        std::fs::write(&path, noise(300_000, seed)).unwrap();
        path
    };
    for (name, seed) in [("a", 1), ("b", 2)] {
        let ended = send_to(&first, allowed(), &file(name, seed));
        assert!(matches!(ended, Event::Finished { .. }), "{ended:?}");
        assert_eq!(std::fs::read(inbox.join(name)).unwrap(), noise(300_000, seed));
    }
    let stranger = send_to(&first, Identity::ephemeral().unwrap(), &file("c", 3));
    assert!(matches!(stranger, Event::Failed { .. }), "{stranger:?}");
    // What is there stays, and who sends it is told; the receiver goes on.
    let other = send_to(&first, allowed(), &file("a", 4));
    assert!(matches!(other, Event::Failed { .. }), "{other:?}");
    // The sender hears it first.
    let read = || fixture.ask("GET", &part("log"), &id, None).json().to_string();
    let log = (0..200).map(|_| (sleep(Duration::from_millis(50)), read()).1).find(|log| log.contains("refused"));
    assert!(log.as_ref().is_some_and(|log| log.contains("turned")), "{}", read());

    let fixture = Fixture::over(fixture.end());
    let second = reach(&fixture, &id);
    assert_eq!((&second["addresses"], &second["key"]), (&first["addresses"], &first["key"]));
    let ended = send_to(&second, allowed(), &file("d", 5));
    assert!(matches!(ended, Event::Finished { .. }), "{ended:?}");
    assert_eq!(std::fs::read(inbox.join("d")).unwrap(), noise(300_000, 5));
    let content = fixture.wait(&id, |content| content["downloaded"].as_u64() == Some(900_000));
    assert_eq!((content["name"].as_str(), content["completed"].is_null()), (Some("inbox"), true));
    assert_eq!(fixture.ask("DELETE", CONTENT, &id, None).status, 200);
    assert!(inbox.join("a").exists());
}

#[test]
fn a_ticket_for_sending_is_made_and_used_and_whoever_may_only_look_sees_no_secret() {
    let (one, two) = (Fixture::new(), Fixture::new());
    album(&two, 27);
    let id = add(&one, &json!({ "bulk": { "expires_seconds": 600 }, "dir": one.files().join("in") }));
    let ticket = ticket(&one, &id);
    let read = std::fs::read_to_string(one.dir.path().join("state/token-read")).unwrap();
    let fields = format!("Authorization: Bearer {}\r\n", read.trim());
    let asked = |target: &str| one.send("GET", target, &fields, b"");
    let refused = asked(&format!("{CONTENTS}/{id}/reach"));
    assert_eq!(refused.status, 403);
    let secret = &ticket[..20];
    for target in [CONTENTS.to_owned(), format!("{CONTENTS}/{id}"), format!("{CONTENTS}/{id}/log")] {
        let answer = asked(&target);
        assert!(answer.status == 200 && !String::from_utf8_lossy(&answer.body).contains(secret), "{target}");
    }
    let body = json!({ "bulk": { "send": two.files().join("album"), "ticket": ticket } });
    let sent = add(&two, &body);
    two.wait(&sent, is_complete);
    let whole = one.wait(&id, is_complete);
    assert_eq!((whole["name"].as_str(), whole["size"].as_u64()), (Some("album"), Some(3_050_000)));
    assert!(one.files().join("in/album/two.txt").exists());
    // What programs for torrents see has no bulk transfers in it.
    let seen = one.send("GET", "/api/v2/torrents/info", &one.fields(), b"");
    assert_eq!(seen.json(), json!([]));
}

#[test]
fn what_makes_no_sense_is_named_and_paths_stay_in_their_folders() {
    let fixture = Fixture::new();
    album(&fixture, 37);
    let album = fixture.files().join("album");
    let made = add(&fixture, &json!({ "bulk": { "send": album, "expires_seconds": 600 } }));
    let (receiving, wrong) = (ticket(&fixture, &made), "bulk1-AAAA");
    let key = "a".repeat(51) + "q";
    let mut fields = HashSet::new();
    for (body, status, field) in [
        (json!({ "bulk": 5 }), 422, "bulk"),
        (json!({ "bulk": { "send": "/etc/passwd" } }), 403, ""),
        (json!({ "bulk": { "send": "relative" } }), 422, ""),
        (json!({ "bulk": { "send": fixture.files().join("nowhere") } }), 422, ""),
        (json!({ "bulk": { "send": 5 } }), 422, "send"),
        (json!({ "bulk": {}, "dir": "/etc" }), 403, ""),
        (json!({ "bulk": { "send": album }, "dir": fixture.files() }), 422, "dir"),
        (json!({ "bulk": { "send": album, "ticket": receiving } }), 422, ""),
        (json!({ "bulk": { "ticket": wrong } }), 422, ""),
        (json!({ "source": wrong }), 422, ""),
        (json!({ "bulk": { "ticket": receiving, "port": 7 } }), 422, "port"),
        (json!({ "bulk": { "ticket": receiving, "allow": [key] } }), 422, "allow"),
        (json!({ "bulk": { "allow": [] } }), 422, "allow"),
        (json!({ "bulk": { "allow": "x" } }), 422, "allow"),
        (json!({ "bulk": { "allow": ["nobody"] } }), 422, "allow"),
        (json!({ "bulk": { "allow": [key], "times": 2 } }), 422, "times"),
        (json!({ "bulk": { "times": 0 } }), 422, "times"),
        (json!({ "bulk": { "times": "x" } }), 422, "times"),
        (json!({ "bulk": { "expires_seconds": 0 } }), 422, "expires_seconds"),
        (json!({ "bulk": { "port": 65_536 } }), 422, "port"),
        (json!({ "bulk": { "overwrite": 1 } }), 422, "overwrite"),
        (json!({ "bulk": { "send": album, "overwrite": true } }), 422, "overwrite"),
        (json!({ "bulk": { "speed": 1 } }), 400, ""),
        (json!({ "bulk": {}, "path": album }), 400, ""),
        (json!({ "bulk": {}, "tags": "x" }), 422, "tags"),
        (json!({ "bulk": {}, "trackers": ["http://t/"] }), 422, "trackers"),
        (json!({ "bulk": {}, "sequential": true }), 422, "sequential"),
    ] {
        let refused = fixture.ask("POST", CONTENTS, "", Some(&body));
        assert_eq!(refused.status, status, "{body}: {}", refused.json());
        assert_eq!(refused.json()["field"].as_str().unwrap_or_default(), field, "{body}");
        fields.insert(field);
    }
    assert!(fields.len() > 5);
    for (method, name, body) in [
        ("POST", "recheck", None),
        ("POST", "move", Some(json!({ "dir": fixture.files().join("x") }))),
        ("GET", "files", None),
        ("GET", "pieces", None),
        ("PATCH", "files", Some(json!({ "priorities": { "0": 1 } }))),
    ] {
        let refused = fixture.ask(method, &part(name), &made, body.as_ref());
        assert_eq!(refused.status, 409, "{name}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("bulk transfer"), "{name}");
    }

    // A ticket of somebody who is gone is waited for; what is sent and changed meanwhile is an error that says so.
    let gone = Fixture::new();
    std::fs::write(gone.files().join("x"), noise(10_000, 1)).unwrap();
    let there = add(&gone, &json!({ "bulk": { "send": gone.files().join("x") } }));
    let ticket = ticket(&gone, &there);
    drop(gone);
    let waits = add(&fixture, &json!({ "source": ticket }));
    let waiting = fixture
        .wait(&waits, |content| content["state"] == "waiting" && content["reason"].to_string().contains("waits"));
    assert!(waiting["reason"].as_str().unwrap().contains("other end"), "{waiting}");
    assert_eq!(fixture.ask("DELETE", CONTENT, &waits, None).status, 200);
    std::fs::remove_dir_all(&album).unwrap();
    let lost = add(&fixture, &json!({ "bulk": { "send": fixture.files() }, "paused": true }));
    assert_eq!(fixture.ask("GET", CONTENT, &lost, None).json()["state"], "paused");
    let again = Fixture::over(fixture.end());
    let failed = again.wait(&made, |content| content["state"] == "error");
    assert!(failed["reason"].as_str().unwrap().contains("album"), "{failed}");
}

#[test]
fn a_library_takes_so_many_bulk_transfers() {
    let fixture = Fixture::new();
    let body = json!({ "bulk": {}, "paused": true });
    let ids: Vec<String> = (0..100).map(|_| add(&fixture, &body)).collect();
    let refused = fixture.ask("POST", CONTENTS, "", Some(&body));
    assert_eq!(refused.status, 409);
    assert!(refused.json()["detail"].as_str().unwrap().contains("100"), "{}", refused.json());
    assert_eq!(fixture.ask("DELETE", CONTENT, &ids[7], None).status, 200);
    add(&fixture, &body);
}
