//! Live streams in the daemon: watched by link, over being killed, and given to players.

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
