//! Live streams in the daemon: watched by link, over being killed, and given to players; and broadcast, what programs send to it.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Running, anabranch, noise, run, signal};
use serde_json::Value;

/// Nothing takes longer, with both cores busy elsewhere.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon whose folders are in `dir`, its address and its token.
fn daemon(dir: &Path) -> (Running, String, String) {
    let arguments =
        ["daemon", "--json", "--api", "127.0.0.1:0", "--dir", "files", "--state-dir", "lib", "--listen", "127.0.0.1:0"];
    let mut running = Running::start_for(anabranch(dir).args(arguments), PATIENCE * 4);
    let serving = running.event("serving");
    let address = serving["url"].as_str().unwrap().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let token = fs::read_to_string(dir.join("lib/token")).unwrap().trim().to_owned();
    (running, address, token)
}

/// Asks it by its socket: exit code, lines of JSON, what was said.
fn ask(dir: &Path, arguments: &[&str]) -> (i32, Vec<Value>, String) {
    let (code, out, err) = run(dir, &[arguments, &["--json", "--daemon", "./lib/daemon.sock"]].concat());
    (code, out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), err)
}

/// Waits until the stream comes.
fn wait_watching(dir: &Path) -> Value {
    let began = Instant::now();
    loop {
        let content = ask(dir, &["list"]).1.remove(0);
        if content["state"] == "watching" {
            return content;
        }
        assert!(began.elapsed() < PATIENCE && content["state"] != "error", "{content}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a player is given: the head of the answer, and the bytes of its chunks (RFC 9112 section 7.1).
fn play(address: &str, token: &str, target: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let fields = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close");
    write!(stream, "GET {target} HTTP/1.1\r\n{fields}\r\n\r\n").unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8(all[..end].to_vec()).unwrap().to_lowercase();
    let (mut rest, mut body) = (&all[end..], Vec::new());
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let Ok(len) = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16) else { break };
        body.extend(&rest[line + 2..line + 2 + len]);
        rest = &rest[line + 4 + len..];
    }
    (head, body)
}

#[test]
fn a_live_link_is_watched_over_being_killed_and_given_to_players_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let film = noise(3_000_000, 1);
    fs::write(dir.join("film"), &film).unwrap();
    let mut command = anabranch(dir);
    command.args([
        "live",
        "--listen",
        "127.0.0.1:0",
        "--json",
        "--input",
        "film",
        "--rate",
        "200K",
        "--name",
        "match.ts",
    ]);
    let mut source = Running::start(&mut command);
    let link = source.event("started")["link"].as_str().unwrap().to_owned();
    let (mut running, ..) = daemon(dir);
    let (code, added, err) = ask(dir, &["add", &link]);
    assert_eq!((code, added[0]["kind"].as_str()), (0, Some("live")), "{err}");
    let (code, _, err) = ask(dir, &["add", &link]);
    assert!(code == 3 && err.contains("in the library already"), "{code}: {err}");
    let watched = wait_watching(dir);
    assert_eq!((watched["name"].as_str(), watched["size"].is_null()), (Some("match.ts"), true), "{watched}");
    signal(running.child.id(), "KILL");
    running.child.wait().unwrap();

    let (_running, address, token) = daemon(dir);
    wait_watching(dir);
    let id = added[0]["id"].to_string();
    let (head, body) = play(&address, &token, &format!("/api/v1/contents/{id}/play/0"));
    assert!(head.starts_with("http/1.1 200") && head.contains("video/mp2t"), "{head}");
    assert!(!body.is_empty() && film.ends_with(&body), "{} bytes are not the stream's rest", body.len());
    for (target, status) in [("play/1", "404"), ("pieces", "409"), ("files", "200")] {
        let (head, _) = play(&address, &token, &format!("/api/v1/contents/{id}/{target}"));
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{target}: {head}");
    }
    assert_eq!(ask(dir, &["remove", &id]).0, 0);
    assert!(ask(dir, &["list"]).1.is_empty() && fs::read_dir(dir.join("files")).unwrap().next().is_none());
}

/// Sends what a stream is made of, in parts, until that is all or the connection ends; what was answered, if anything.
fn put(address: &str, token: &str, id: &str, bytes: &[u8]) -> std::thread::JoinHandle<String> {
    let head = format!(
        "PUT /api/v1/contents/{id}/live HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    let (address, bytes) = (address.to_owned(), bytes.to_vec());
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        let mut send = || -> std::io::Result<()> {
            stream.write_all(head.as_bytes())?;
            for part in bytes.chunks(10_000) {
                write!(stream, "{:x}\r\n", part.len())?;
                stream.write_all(part)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")?;
            stream.read_to_string(&mut answer).map(drop)
        };
        // A daemon that is killed answers nothing.
        let _ = send();
        answer
    })
}

#[test]
fn the_daemon_broadcasts_what_is_sent_to_it_and_its_link_leads_to_it_again_after_it_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (film, sequel) = (noise(4_000_000, 3), noise(1_600_000, 4));
    let (mut running, address, token) = daemon(dir);
    let (code, added, err) = ask(dir, &["add", "--live", "--name", "match.ts", "--rate", "200K"]);
    assert_eq!((code, added[0]["kind"].as_str()), (0, Some("live")), "{err}");
    let (id, link) = (added[0]["id"].to_string(), added[0]["link"].as_str().unwrap().to_owned());
    let (_, shown, _) = run(dir, &["status", &id, "--daemon", "./lib/daemon.sock"]);
    assert!(shown.contains(&link) && shown.contains(&format!("PUT /api/v1/contents/{id}/live")), "{shown}");
    put(&address, &token, &id, &film);
    let mut command = anabranch(dir);
    command.args(["get", &link, "-o", "out", "--listen", "127.0.0.1:0", "--json", "--give-up", "60s"]);
    let mut viewer = Running::start_for(&mut command, PATIENCE * 4);
    while viewer.event("recording")["bytes"].as_u64().unwrap() < 300_000 {}
    signal(running.child.id(), "KILL");
    running.child.wait().unwrap();

    let (_running, address, token) = daemon(dir);
    let waiting = ask(dir, &["status", &id]).1.remove(0);
    assert_eq!(waiting["name"], "match.ts");
    let answer = put(&address, &token, &id, &sequel).join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("1600000"), "{answer}");
    assert_eq!(ask(dir, &["status", &id]).1[0]["link"].as_str(), Some(link.as_str()), "the link is the same");
    viewer.event("restarted");
    // Who watches is told of its end.
    assert_eq!(ask(dir, &["remove", &id]).0, 0);
    let recorded = viewer.event("recorded");
    assert_eq!(viewer.child.wait().unwrap().code(), Some(0), "{recorded}");
    // Of the first from somewhere on to where it broke off, then of the second from its beginning or a little later on to its end.
    let out = fs::read(dir.join("out")).unwrap();
    let begins = film.windows(64).position(|some| *some == out[..64]).expect("of the film");
    let common = out.iter().zip(&film[begins..]).take_while(|(ours, theirs)| ours == theirs).count();
    let rest = &out[common..];
    assert!(common >= 300_000 && rest.len() > 100_000, "{common} bytes and {} more", rest.len());
    assert!(sequel.ends_with(&rest[1..]), "{} bytes are not the second's", rest.len());
}

#[test]
fn flags_of_live_streams_that_cannot_be_meant_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("film"), noise(1000, 1)).unwrap();
    let (_running, ..) = daemon(dir);
    for (arguments, code, needle) in [
        (&["add", "--live", "--share", "film"][..], 2, "--share"),
        (&["add", "--live", "--receive"], 2, "--receive"),
        (&["add", "--live", "--allow", "x"], 2, "--secure"),
        (&["add", "--live", "--times", "2"], 2, "--times"),
        (&["add", "--live", "a", "b", "--name", "c"], 2, "--name"),
        (&["add", "--live", "--key", "film"], 3, "chmod 600 film"),
        (&["add", "--live", "--copies", "1"], 2, "--copies"),
        (&["add", "--live", "--rate", "5"], 2, "--rate"),
        (&["add", "film", "--rate", "5K"], 2, "--live"),
        (&["add", "film", "--tracker", "udp://127.0.0.1:9"], 2, "--live"),
        (&["add", "--live", "--tracker", "gopher://x"], 2, "gopher"),
        (&["add", "--live", "film"], 3, "--allow-dir"),
        (&["add", "--live", "nowhere"], 3, "--allow-dir"),
        (&["add", "--live", "--into", "files"], 3, "left out"),
    ] {
        let (found, _, err) = ask(dir, arguments);
        assert!(found == code && err.contains(needle), "{arguments:?}: {found} {err}");
    }
    assert!(ask(dir, &["list"]).1.is_empty());
    // With a key of the user's, the link is of that key, and there are no two.
    let (code, added, err) = ask(dir, &["add", "--live", "--key", "key", "--tracker", "udp://127.0.0.1:9"]);
    assert_eq!(code, 0, "{err}");
    assert!(added[0]["link"].as_str().unwrap().contains("tr=udp"), "{}", added[0]);
    let (code, _, err) = ask(dir, &["add", "--live", "--key", "key"]);
    assert!(code == 3 && err.contains("in the library already"), "{code}: {err}");
    let arguments = ["live", "--key", "key", "--listen", "127.0.0.1:0", "--json", "--input", "film", "--rate", "1K"];
    let mut source = Running::start(anabranch(dir).args(arguments));
    let id = |link: &Value| link["link"].as_str().unwrap().split('?').next().unwrap().to_owned();
    assert_eq!(id(&source.event("started")), id(&added[0]));
}
