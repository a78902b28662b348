//! Live streams whose source is the daemon: fed by requests, from files and pipes; over restarts; mistakes.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::{Answer, Fixture, PATIENCE, noise, part, read};

const CONTENTS: &str = "/api/v1/contents";
const CONTENT: &str = "/api/v1/contents/{id}";

fn add(fixture: &Fixture, body: &Value) -> String {
    fixture.add("live", body)
}

/// The link of a stream, once there is one.
fn link(fixture: &Fixture, id: &str) -> String {
    fixture.reach(id, "link")["link"].as_str().unwrap().to_owned()
}

/// Sends what a stream is made of, beside what else happens.
fn feed(fixture: &Fixture, id: &str, bytes: &[u8]) -> JoinHandle<Answer> {
    let (address, fields, bytes) = (fixture.address, fixture.fields(), bytes.to_vec());
    let target = format!("{CONTENTS}/{id}/live");
    std::thread::spawn(move || {
        let fields = format!("Host: {address}\r\n{fields}");
        crate::fixture::converse(TcpStream::connect(address).unwrap(), "PUT", &target, &fields, &bytes)
    })
}

/// Plays a stream, beside what else happens, to its end.
fn play(fixture: &Fixture, id: &str) -> JoinHandle<Vec<u8>> {
    let (address, fields, id) = (fixture.address, fixture.fields(), id.to_owned());
    std::thread::spawn(move || {
        let fields = format!("Host: {address}\r\n{fields}");
        let target = format!("{CONTENTS}/{id}/play/0");
        let answer = crate::fixture::converse(TcpStream::connect(address).unwrap(), "GET", &target, &fields, b"");
        assert_eq!(answer.status, 200, "{}", answer.head);
        answer.body
    })
}

#[test]
fn what_requests_send_is_watched_elsewhere_one_after_the_other_until_the_stream_is_removed() {
    let (one, two) = (Fixture::new(), Fixture::new());
    let id = add(&one, &json!({ "live": { "name": "match.ts", "rate": 200_000 }, "category": "sport" }));
    let link = link(&one, &id);
    assert!(link.starts_with("ppspp:") && link.contains("127.0.0.1"), "{link}");
    let waiting = one.wait(&id, |content| content["state"] == "waiting");
    assert!(waiting["reason"].as_str().unwrap().contains("PUT"), "{waiting}");
    assert_eq!((waiting["link"].as_str(), waiting["live"]["copies"].as_u64()), (Some(link.as_str()), Some(3)));

    let film = noise(2_400_000, 3);
    let first = feed(&one, &id, &film[..1_600_000]);
    one.wait(&id, |content| content["state"] == "streaming");
    let watched = add(&two, &json!({ "source": link }));
    let seen = two.wait(&watched, |content| content["state"] == "watching");
    assert_eq!((seen["name"].as_str(), seen["live"].is_null()), (Some("match.ts"), true));
    let players = [play(&two, &watched), play(&one, &id)];
    // One sends at a time.
    let refused = feed(&one, &id, &film).join().unwrap();
    assert_eq!((refused.status, refused.json()["type"].as_str()), (409, Some("urn:anabranch:problem:busy")));
    let sent = first.join().unwrap();
    one.hold("PUT", &part("live"), &sent);
    assert_eq!((sent.status, sent.json()["bytes"].as_u64()), (200, Some(1_600_000)));
    let waiting = one.wait(&id, |content| content["state"] == "waiting");
    assert!(waiting["completed"].is_null(), "{waiting}");
    // What comes next follows.
    assert_eq!(feed(&one, &id, &film[1_600_000..]).join().unwrap().status, 200);
    assert_eq!(one.ask("DELETE", CONTENT, &id, None).status, 200);
    for player in players {
        let played = player.join().unwrap();
        assert!(played.len() > 500_000 && film.ends_with(&played), "{} bytes are not the rest", played.len());
    }
    assert_eq!(one.ask("GET", CONTENT, &id, None).status, 404);
}

#[test]
fn the_link_stays_over_restarts_and_who_watches_goes_on_with_what_is_sent_then() {
    let (one, two) = (Fixture::new(), Fixture::new());
    let id = add(&one, &json!({ "live": { "rate": 200_000 } }));
    let before = link(&one, &id);
    let watched = add(&two, &json!({ "source": before }));
    let film = noise(300_000, 5);
    assert_eq!(feed(&one, &id, &film).join().unwrap().status, 200);
    two.wait(&watched, |content| content["state"] == "watching");
    let one = Fixture::over(one.end());
    assert_eq!(link(&one, &id), before, "the key and the port are the same");
    let sequel = noise(2_000_000, 6);
    let feeding = feed(&one, &id, &sequel);
    let began = Instant::now();
    while !two.ask("GET", &part("log"), &watched, None).json().to_string().contains("began anew") {
        assert!(began.elapsed() < PATIENCE, "{}", two.ask("GET", &part("log"), &watched, None).json());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(feeding.join().unwrap().status, 200);
    two.wait(&watched, |content| content["downloaded"].as_u64() > Some(300_000));

    // Paused, it takes nothing, and who sends is told; so it is after a restart.
    let slow = feed(&one, &id, &sequel);
    one.wait(&id, |content| content["state"] == "streaming");
    assert_eq!(one.ask("POST", &part("pause"), &id, None).status, 202);
    let cut = slow.join().unwrap();
    assert!(cut.status == 409 && cut.json()["detail"].as_str().unwrap().contains("paused"), "{cut:?}");
    let one = Fixture::over(one.end());
    assert_eq!(one.ask("GET", CONTENT, &id, None).json()["state"], "paused");
    assert_eq!(feed(&one, &id, &sequel).join().unwrap().status, 409);
    assert_eq!(one.ask("POST", &part("resume"), &id, None).status, 202);
    assert_eq!(link(&one, &id), before);
    one.wait(&id, |content| content["state"] == "waiting");
    assert_eq!(feed(&one, &id, &film).join().unwrap().status, 200);
}

#[test]
fn a_file_is_broadcast_once_and_again_when_it_is_to_go_on_and_a_pipe_is_whoever_writes_to_it() {
    let (one, two) = (Fixture::new(), Fixture::new());
    let film = noise(1_600_000, 7);
    std::fs::write(one.files().join("film.bin"), &film).unwrap();
    let id = add(&one, &json!({ "live": { "input": one.files().join("film.bin"), "rate": 200_000 } }));
    let watched = add(&two, &json!({ "source": link(&one, &id) }));
    let streaming = one.wait(&id, |content| content["state"] == "streaming");
    assert_eq!(streaming["name"], "film.bin");
    two.wait(&watched, |content| content["state"] == "watching");
    let player = play(&two, &watched);
    assert_eq!(feed(&one, &id, &film).join().unwrap().status, 409);
    let over = one.wait(&id, |content| content["state"] == "complete");
    assert!(over["paused"] == true && over["reason"].as_str().unwrap().contains("once more"), "{over}");
    let played = player.join().unwrap();
    assert!(!played.is_empty() && film.ends_with(&played), "{} bytes", played.len());
    assert_eq!(one.ask("POST", &part("resume"), &id, None).status, 202);
    one.wait(&id, |content| content["state"] == "streaming" && content["completed"].is_null());
    assert_eq!(one.ask("DELETE", CONTENT, &id, None).status, 200);
    assert!(one.files().join("film.bin").exists());

    let pipe = one.files().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let id = add(&one, &json!({ "live": { "input": pipe, "rate": 200_000, "name": "pipe.ts" } }));
    one.wait(&id, |content| content["state"] == "waiting");
    let watched = add(&two, &json!({ "source": link(&one, &id) }));
    for _ in 0..2 {
        let mut writer = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
        writer.write_all(&film[..200_000]).unwrap();
        drop(writer);
        one.wait(&id, |content| content["state"] == "streaming");
        // A writer that leaves ends nothing.
        one.wait(&id, |content| content["state"] == "waiting");
    }
    two.wait(&watched, |content| content["downloaded"].as_u64() >= Some(300_000));
}

#[test]
fn what_makes_no_sense_of_a_live_stream_is_named_and_only_who_may_do_everything_sends() {
    let fixture = Fixture::new();
    let at = |name: &str| fixture.files().join(name);
    std::fs::write(at("film.bin"), noise(10_000, 9)).unwrap();
    std::fs::write(at("empty"), []).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    let key = "a".repeat(51) + "q";
    for (body, status, field) in [
        (json!({ "live": 5 }), 422, "live"),
        (json!({ "live": { "input": "/etc/passwd" } }), 403, ""),
        (json!({ "live": { "input": "relative" } }), 422, ""),
        (json!({ "live": { "input": at("nowhere") } }), 422, ""),
        (json!({ "live": { "input": at("folder") } }), 422, "input"),
        (json!({ "live": { "input": at("empty") } }), 422, "input"),
        (json!({ "live": { "input": at("film.bin") } }), 422, "rate"),
        (json!({ "live": { "input": 5 } }), 422, "input"),
        (json!({ "live": { "key": "nonsense" } }), 422, "key"),
        (json!({ "live": { "key": 5 } }), 422, "key"),
        (json!({ "live": { "rate": 999 } }), 422, "rate"),
        (json!({ "live": { "rate": "fast" } }), 422, "rate"),
        (json!({ "live": { "copies": 1 } }), 422, "copies"),
        (json!({ "live": { "copies": 257 } }), 422, "copies"),
        (json!({ "live": { "name": "" } }), 422, "name"),
        (json!({ "live": { "name": "a\nb" } }), 422, "name"),
        (json!({ "live": { "name": "x".repeat(256) } }), 422, "name"),
        (json!({ "live": { "secure": 1 } }), 422, "secure"),
        (json!({ "live": { "allow": [key] } }), 422, "allow"),
        (json!({ "live": { "secure": true, "allow": [] } }), 422, "allow"),
        (json!({ "live": { "secure": true, "allow": ["nobody"] } }), 422, "allow"),
        (json!({ "live": { "speed": 1 } }), 400, ""),
        (json!({ "live": {}, "bulk": {} }), 400, ""),
        (json!({ "live": {}, "source": "magnet:?x" }), 400, ""),
        (json!({ "live": {}, "dir": fixture.files() }), 422, "dir"),
        (json!({ "live": {}, "web_seeds": ["http://a/"] }), 422, "web_seeds"),
        (json!({ "live": {}, "sequential": true }), 422, "sequential"),
        (json!({ "live": {}, "trackers": ["gopher://x"] }), 422, "trackers"),
    ] {
        let refused = fixture.ask("POST", CONTENTS, "", Some(&body));
        assert_eq!(refused.status, status, "{body}: {}", refused.json());
        assert_eq!(refused.json()["field"].as_str().unwrap_or_default(), field, "{body}");
    }
    let id = add(&fixture, &json!({ "live": { "secure": true, "allow": [key] }, "trackers": ["udp://127.0.0.1:9"] }));
    let link = link(&fixture, &id);
    assert!(link.contains("sk=") && link.contains("pr=1") && link.contains("tr="), "{link}");
    for (method, name, body) in [
        ("POST", "recheck", None),
        ("POST", "move", Some(json!({ "dir": fixture.files().join("x") }))),
        ("GET", "pieces", None),
        ("PATCH", "files", Some(json!({ "priorities": { "0": 1 } }))),
    ] {
        assert_eq!(fixture.ask(method, &part(name), &id, body.as_ref()).status, 409, "{name}");
    }
    // A body that ends early is told, and ends nothing but itself.
    let mut stream = TcpStream::connect(fixture.address).unwrap();
    let head = format!("PUT {CONTENTS}/{id}/live HTTP/1.1\r\nHost: {}\r\n{}", fixture.address, fixture.fields());
    write!(stream, "{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense\r\n").unwrap();
    let answer = read(&mut stream);
    assert!(answer.status >= 400, "{answer:?}");
    fixture.wait(&id, |content| content["state"] == "waiting");
    let token = std::fs::read_to_string(fixture.dir.path().join("state/token-read")).unwrap();
    let target = format!("{CONTENTS}/{id}/live");
    let reader = format!("Authorization: Bearer {}\r\n", token.trim());
    assert_eq!(fixture.send("PUT", &target, &reader, b"x").status, 403);
    assert_eq!(fixture.send("PUT", &target, "", b"x").status, 401);
    assert_eq!(fixture.send("GET", &target, &fixture.fields(), b"").status, 405);
    assert_eq!(fixture.send("POST", &target, &fixture.fields(), b"x").status, 200);
    let whole = fixture.send("GET", &format!("{CONTENTS}/{id}"), &reader, b"");
    assert!(whole.status == 200 && !String::from_utf8_lossy(&whole.body).contains("\"key\""));
    // To what is no live stream of this daemon, nothing is sent.
    std::fs::write(at("a.txt"), noise(1000, 1)).unwrap();
    let shared = fixture.share(&at("a.txt"));
    let refused = fixture.send("PUT", &format!("{CONTENTS}/{shared}/live"), &fixture.fields(), b"x");
    assert_eq!(refused.status, 409);
    // So many are taken.
    (1..16).for_each(|_| _ = add(&fixture, &json!({ "live": {}, "paused": true })));
    let full = fixture.ask("POST", CONTENTS, "", Some(&json!({ "live": {} })));
    assert!(full.status == 409 && full.json()["detail"].as_str().unwrap().contains("16"), "{}", full.json());
    // What programs for torrents see has none of them in it.
    let seen = fixture.send("GET", "/api/v2/torrents/info", &fixture.fields(), b"").json();
    assert_eq!(seen.as_array().map(Vec::len), Some(1), "{seen}");
}
