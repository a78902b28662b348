//! `live`, and `get` and `play` of its link, on loopback.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_ppspp::ledbat::Mode;
use anabranch_ppspp::link::Link;
use anabranch_ppspp::sign::{SignatureAlgorithm, SigningKey};
use anabranch_ppspp::swarm::Swarm;
use anabranch_ppspp::wire::Integrity;
use common::{Running, anabranch, noise, run, signal};
use serde_json::Value;

/// Broadcasts: the program and the link.
fn live(dir: &Path, arguments: &[&str]) -> (Running, String) {
    let mut running =
        Running::start(anabranch(dir).args(["live", "--listen", "127.0.0.1:0", "--json"]).args(arguments));
    let link = running.event("started")["link"].as_str().unwrap().to_owned();
    (running, link)
}

/// The address that it listens on.
fn listening(running: &mut Running) -> String {
    running.event("listening")["address"].as_str().unwrap().to_owned()
}

/// Records a link to a file.
fn record(dir: &Path, link: &str, out: &str, arguments: &[&str]) -> Running {
    let usual = ["get", link, "-o", out, "--listen", "127.0.0.1:0", "--json"];
    Running::start(anabranch(dir).args(usual).args(arguments))
}

/// The link with another peer in it, and no other.
fn by_way_of(link: &str, peer: &str) -> String {
    let rest: Vec<&str> = link.split('&').filter(|part| !part.starts_with("pe=")).collect();
    format!("{}&pe={peer}", rest.join("&"))
}

/// Whether what was recorded is the stream's from somewhere on to its end; how much it is.
fn assert_rest_of(dir: &Path, out: &str, film: &[u8]) -> usize {
    let recorded = fs::read(dir.join(out)).unwrap();
    assert!(
        !recorded.is_empty() && film.ends_with(&recorded),
        "{out}: {} bytes are not the stream's rest",
        recorded.len()
    );
    recorded.len()
}

/// What makes a stream whose chunks are signed one by one.
const SIGN_ALL: [&str; 2] = ["--integrity", "sign-all"];

#[test]
fn viewers_record_the_rest_of_the_stream_from_where_they_join() {
    let link = record_the_rest(&[]);
    assert!(link.contains("?cp=3&"), "{link}");
}

#[test]
fn viewers_record_the_rest_of_a_stream_of_signed_chunks() {
    let link = record_the_rest(&SIGN_ALL);
    assert!(link.contains("?cp=2&"), "{link}");
}

/// A source and three viewers, of which one joins late, and one knows another viewer alone. Gives the link.
fn record_the_rest(integrity: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(2_500_000, 1);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (mut source, link) = live(dir.path(), &[&["--input", "film", "--rate", "250K"], integrity].concat());
    let mut first = record(dir.path(), &link, "first", &[]);
    let address = listening(&mut first);
    let start = first.event("joined")["chunk"].as_u64().unwrap();
    let mut through = record(dir.path(), &by_way_of(&link, &address), "through", &["--no-pex"]);
    through.event("joined");
    while first.event("recording")["bytes"].as_u64().unwrap() < 800_000 {}
    let mut late = record(dir.path(), &link, "late", &[]);
    let began = late.event("joined")["chunk"].as_u64().unwrap();
    assert!(began > start + 300, "it begins near the newest: {began}, not at {start}");
    for (viewer, out) in [(&mut first, "first"), (&mut through, "through"), (&mut late, "late")] {
        let recorded = viewer.event("recorded");
        assert_eq!(recorded["skipped_chunks"], 0, "{out}: {recorded}");
        assert_eq!(viewer.child.wait().unwrap().code(), Some(0), "{out}");
        let len = assert_rest_of(dir.path(), out, &film);
        assert_eq!(recorded["bytes"], len as u64);
    }
    assert!(fs::metadata(dir.path().join("late")).unwrap().len() < 2_200_000);
    let ended = source.event("ended");
    assert_eq!(ended["bytes"], 2_500_000);
    assert_eq!(source.child.wait().unwrap().code(), Some(0));
    link
}

/// An answer without a length, as far as it came.
struct Watching {
    stream: TcpStream,
    all: Vec<u8>,
}

impl Watching {
    fn ask(url: &str, method: &str) -> Self {
        let (host, target) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "{method} /{target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        Self { stream, all: Vec::new() }
    }

    fn head_len(&self) -> Option<usize> {
        self.all.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
    }

    /// Waits until the first bytes of the body are there.
    fn begins(&mut self) {
        let mut some = [0; 4096];
        while self.head_len().is_none_or(|len| self.all.len() == len) {
            let len = self.stream.read(&mut some).unwrap();
            assert!(len > 0, "the answer ended without a body");
            self.all.extend(&some[..len]);
        }
    }

    /// Reads it to its end: its head, and the bytes of its chunks (RFC 9112 section 7.1).
    fn end(mut self) -> (String, Vec<u8>) {
        self.stream.read_to_end(&mut self.all).unwrap();
        let (head, mut rest) = self.all.split_at(self.head_len().unwrap());
        let head = String::from_utf8(head.to_vec()).unwrap().to_lowercase();
        let mut body = Vec::new();
        while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
            let len = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            body.extend(&rest[line + 2..line + 2 + len]);
            rest = &rest[line + 4 + len..];
            assert_eq!(len == 0, rest.is_empty(), "the last chunk alone is empty");
        }
        (head, body)
    }
}

fn watch(url: &str, method: &str) -> (String, Vec<u8>) {
    Watching::ask(url, method).end()
}

/// What comes in by standard input goes out to players, each from the newest on, and `play` ends with it.
#[test]
fn players_are_served_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(900_001, 2);
    let mut command = anabranch(dir.path());
    command.args(["live", "--listen", "127.0.0.1:0", "--json", "--rate", "200K", "--name", "match.ts"]);
    let mut source = Running::start_with(&mut command, Stdio::piped());
    let mut input = source.child.stdin.take().unwrap();
    let (text, link) = (film.clone(), source.event("started")["link"].as_str().unwrap().to_owned());
    let writing = std::thread::spawn(move || input.write_all(&text).unwrap());
    let mut playing = Running::start(anabranch(dir.path()).args(["play", &link, "--listen", "127.0.0.1:0", "--json"]));
    let url = playing.event("serving")["url"].as_str().unwrap().to_owned();
    assert!(url.ends_with("/match.ts"), "{url}");
    playing.event("joined");
    let (head, _) = watch(&url, "HEAD");
    assert!(
        head.starts_with("http/1.1 200") && head.contains("accept-ranges: none") && head.contains("video/mp2t"),
        "{head}"
    );
    let mut first = Watching::ask(&url, "GET");
    first.begins();
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1000));
        watch(&url, "GET")
    });
    let (head, body) = first.end();
    assert!(head.contains("no-store") && !head.contains("content-length"), "{head}");
    assert!(!body.is_empty() && film.ends_with(&body), "{} bytes are not the stream's rest", body.len());
    let (_, later) = later.join().unwrap();
    assert!(
        !later.is_empty() && film.ends_with(&later) && later.len() < body.len(),
        "{} of {}",
        later.len(),
        body.len()
    );
    let played = playing.event("played");
    assert_eq!((&played["skipped_chunks"], &played["sent"]), (&Value::from(0), &Value::from(body.len() + later.len())));
    assert!(played["delay_ms"].is_number(), "{played}");
    assert_eq!(playing.child.wait().unwrap().code(), Some(0));
    writing.join().unwrap();
    assert_eq!(source.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_source_that_is_killed_comes_back_with_its_key() {
    kill_and_start_again(&[]);
}

#[test]
fn a_source_of_signed_chunks_that_is_killed_comes_back_with_its_key() {
    kill_and_start_again(&SIGN_ALL);
}

/// A source that is killed and started again with its key, where it was: the viewer goes on with the new stream, and keeps what it has
/// of the old one. One that is started with another key is another stream: the viewer gets nothing of it.
fn kill_and_start_again(integrity: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (film, sequel) = (noise(4_000_000, 3), noise(2_400_000, 4));
    fs::write(dir.path().join("film"), &film).unwrap();
    fs::write(dir.path().join("sequel"), &sequel).unwrap();
    let start = |input: &str, key: &str, listen: &str| {
        let arguments =
            ["live", "--json", "--rate", "200K", "--input", input, "--key", key, "--listen", listen, "--name", "film"];
        let mut running = Running::start(anabranch(dir.path()).args(arguments).args(integrity));
        let address = listening(&mut running);
        let link = running.event("started")["link"].as_str().unwrap().to_owned();
        (running, address, link)
    };
    let (source, address, link) = start("film", "key", "127.0.0.1:0");
    let mut viewer = record(dir.path(), &link, "out", &["--give-up", "40s"]);
    while viewer.event("recording")["bytes"].as_u64().unwrap() < 300_000 {}
    signal(source.child.id(), "KILL");
    drop(source);
    // Somebody else, at the same address.
    let (other, _, other_link) = start("film", "another", &address);
    assert_ne!(other_link, link);
    std::thread::sleep(Duration::from_secs(2));
    let (code, _) = other.interrupt();
    assert_eq!(code, 0);
    let (mut source, _, again) = start("sequel", "key", &address);
    assert_eq!(again, link, "the key makes the link");
    viewer.event("restarted");
    let recorded = viewer.event("recorded");
    assert_eq!(viewer.child.wait().unwrap().code(), Some(0), "{recorded}");
    assert_eq!(source.child.wait().unwrap().code(), Some(0));
    source.event("ended");
    // Of the old stream from somewhere on to where it broke off, then of the new one from its beginning or a little later on to its end.
    let out = fs::read(dir.path().join("out")).unwrap();
    let begins = film.windows(64).position(|some| *some == out[..64]).expect("of the film");
    let common = out.iter().zip(&film[begins..]).take_while(|(ours, theirs)| ours == theirs).count();
    let rest = &out[common..];
    assert!(common >= 300_000 && rest.len() > 100_000, "{common} bytes and {} more", rest.len());
    assert!(sequel.ends_with(&rest[1..]), "{} bytes are not the new stream's", rest.len());
}

/// A source at work whose signatures are by another key than its link says.
fn forger(link: &Link, stop: Arc<AtomicBool>) -> (String, std::thread::JoinHandle<()>) {
    let document = SigningKey::generate(SignatureAlgorithm::EcdsaP256Sha256).unwrap();
    let key = SigningKey::from_pkcs8(SignatureAlgorithm::EcdsaP256Sha256, &document).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    // A minute ahead: what the viewer shows it of the true stream is old to it, else it would take the viewer for the liar.
    let ntp = (SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 2_208_988_800 + 60) << 32;
    let params = link.params.clone();
    let forging = std::thread::spawn(move || {
        let (began, mut pushed, mut datagram) = (Instant::now(), 0, [0; 2048]);
        let per_signature = if params.integrity() == Integrity::SignAll { 1 } else { 16 };
        let mut swarm: Swarm<SocketAddr> =
            Swarm::source(params, key, per_signature, (4096, ntp), (Mode::Fast, 1), began).unwrap();
        while !stop.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60) {
            let now = Instant::now();
            while pushed < began.elapsed().as_millis() / 5 {
                swarm.push(now, &[7; 900]).unwrap();
                pushed += 1;
            }
            if let Ok((length, from)) = socket.recv_from(&mut datagram) {
                swarm.datagram(now, &from, &datagram[..length]);
            }
            swarm.poll(now);
            while let Some(mut transmit) = swarm.transmit() {
                if transmit.chunk.is_some() {
                    transmit.datagram.extend([7; 900]);
                }
                let _ = socket.send_to(&transmit.datagram, transmit.peer);
            }
        }
    });
    (address, forging)
}

#[test]
fn a_source_with_wrong_signatures_is_named_and_banned() {
    forge_signatures(&[]);
}

#[test]
fn a_source_with_wrong_signatures_of_chunks_is_named_and_banned() {
    forge_signatures(&SIGN_ALL);
}

/// Who signs with another key than the link's is named and banned, not a byte of it is written, and the source is not accused.
fn forge_signatures(integrity: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(1_200_000, 5);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (source, link) = live(dir.path(), &[&["--input", "film", "--rate", "200K"], integrity].concat());
    let stop = Arc::new(AtomicBool::new(false));
    let (address, forging) = forger(&link.parse().unwrap(), Arc::clone(&stop));
    let mut viewer = record(dir.path(), &link, "out", &["--peer", &address]);
    let banned = viewer.event("banned");
    assert_eq!(banned["peer"], address);
    let mut rest = String::new();
    while let Some(line) = viewer.line_or_end() {
        rest += &line;
    }
    assert!(!rest.contains("\"banned\""), "{rest}");
    assert_eq!(viewer.child.wait().unwrap().code(), Some(0));
    assert_rest_of(dir.path(), "out", &film);
    drop(source);
    // Where there is nobody else, nothing is recorded, and it is told why.
    let alone = by_way_of(&link, &address);
    let (code, _, errors) =
        run(dir.path(), &["get", &alone, "-o", "none", "--listen", "127.0.0.1:0", "--give-up", "3s"]);
    assert!(code == 6 && errors.contains(&address) && errors.contains("banned"), "{code}: {errors}");
    assert!(!dir.path().join("none").exists());
    stop.store(true, Ordering::Relaxed);
    forging.join().unwrap();
}

/// A viewer whom nobody answers says so, and ends when it was told to.
#[test]
fn a_viewer_without_a_source_gives_up() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("film"), noise(1000, 6)).unwrap();
    let (source, link) = live(dir.path(), &["--input", "film", "--rate", "1K", "--key", "key"]);
    drop(source);
    for command in [&["get", "-o", "out"][..], &["play"]] {
        let usual = [&link, "--listen", "127.0.0.1:0", "--give-up", "1s"];
        let (code, out, errors) = run(dir.path(), &[command, &usual].concat());
        assert!(
            code == 6 && errors.contains("127.0.0.1:") && errors.contains("--peer"),
            "{command:?}: {code}: {errors}"
        );
        assert!(out.is_empty() || command == ["play"], "{out}");
    }
    assert!(!dir.path().join("out").exists());
}

/// The recording goes to standard output, byte for byte; what is said, to standard error.
#[test]
fn a_stream_is_recorded_to_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(500_000, 7);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (_source, link) = live(dir.path(), &["--input", "film", "--rate", "200K"]);
    let mut command = anabranch(dir.path());
    command.args(["get", &link, "-o", "-", "--listen", "127.0.0.1:0", "--quiet"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.is_empty() && film.ends_with(&output.stdout), "{} bytes", output.stdout.len());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn mistakes_are_told_with_their_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("film"), noise(10_000, 8)).unwrap();
    fs::write(at("empty"), []).unwrap();
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("open-key"), "").unwrap();
    fs::write(at("bad-key"), "no key").unwrap();
    fs::write(at("there"), "mine").unwrap();
    let mode = |name: &str, mode| {
        fs::set_permissions(at(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    mode("open-key", 0o644);
    mode("bad-key", 0o600);
    let (source, link) = live(dir.path(), &["--input", "film", "--rate", "1K"]);
    drop(source);
    let short = link.replacen("ppspp:0d", "ppspp:", 1);
    let unsigned = link.replace("cp=3", "cp=0");
    let signed_so = link.replace("cp=3", "cp=2");
    for (arguments, code, told) in [
        (&["live", "--input", "nowhere"][..], 3, "cannot read nowhere"),
        (&["live", "--input", "folder"], 3, "it is a folder"),
        (&["live", "--input", "empty"], 3, "it is empty"),
        (&["live", "--input", "film"], 2, "give --rate"),
        (&["live", "--input", "film", "--rate", "5"], 2, "--rate"),
        (&["live", "--input", "film", "--rate", "10K", "--name", ""], 2, "--name"),
        (&["live", "--input", "film", "--rate", "10K", "--copies", "1"], 2, "--copies"),
        (&["live", "--input", "film", "--rate", "10K", "--key", "open-key"], 3, "chmod 600 open-key"),
        (&["live", "--input", "film", "--rate", "10K", "--key", "bad-key"], 3, "PKCS#8"),
        (&["live", "--input", "film", "--rate", "10K", "--key", "no/where"], 3, "cannot use the key file no/where"),
        (&["live", "--input", "film", "--rate", "10K", "--tracker", "gopher://x"], 2, "gopher"),
        (&["live", "--input", "film", "--rate", "10K", "--integrity", "none"], 2, "sign-all"),
        (&["live"], 3, "without a byte"),
        (&["live", "film"], 2, "unexpected argument"),
        (&["get", &link, &link], 2, "give its link alone"),
        (&["get", &link, "--files", "x"], 2, "`--files` is about complete content"),
        (&["get", &link, "--seed"], 2, "`--seed` is about complete content"),
        (&["get", &link, "-o", "-", "--json"], 2, "`-o -`"),
        (&["get", &link, "-o", "there"], 5, "there is there already"),
        (&["play", &link, "--files", "x"], 2, "`--files` is about complete content"),
        (&["get", &short, "-o", "x"], 3, "link"),
        (&["get", &unsigned, "-o", "x"], 3, "live streams, which are signed"),
        (&["get", &signed_so, "-o", "x", "--files", "y"], 2, "`--files` is about complete content"),
        (&["verify", &signed_so, "there"], 3, "live stream"),
        (&["show", &short], 3, "link"),
        (&["verify", &link, "there"], 3, "live stream"),
    ] {
        let (got, out, errors) = run(dir.path(), arguments);
        assert!(got == code && errors.contains(told), "{arguments:?}: {got}, {out}{errors}");
    }
    assert_eq!(fs::read(at("there")).unwrap(), b"mine");
    assert!(!at("x").exists());
}
