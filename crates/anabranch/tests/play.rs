//! `play` as players meet it: HTTP requests of every kind, while the content arrives, does not arrive, or is there.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use common::{Running, anabranch, noise, run, share, signal};
use serde_json::Value;

/// Nothing takes longer, with both cores busy elsewhere.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer: status, fields with small letters, body. The body ends before its time where the server cut it short.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    fn length(&self) -> usize {
        self.field("content-length").map_or(0, |length| length.parse().unwrap())
    }
}

/// Host and target of an address.
fn split(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").unwrap();
    rest.split_at(rest.find('/').unwrap())
}

/// A connection on which requests are sent one after the other.
struct Client {
    stream: TcpStream,
    host: String,
}

impl Client {
    fn new(url: &str) -> Self {
        let host = split(url).0.to_owned();
        let stream = TcpStream::connect(&host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, host }
    }

    fn send(&mut self, method: &str, url: &str, fields: &str) {
        let target = split(url).1;
        write!(self.stream, "{method} {target} HTTP/1.1\r\nHost: {}\r\n{fields}\r\n", self.host).unwrap();
    }

    fn head(&mut self) -> Answer {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("the head ends early");
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head[9..12].parse().unwrap();
        Answer { status, head, body: Vec::new() }
    }

    fn answer(&mut self, has_body: bool) -> Answer {
        let mut answer = self.head();
        if has_body {
            let length = answer.length() as u64;
            (&self.stream).take(length).read_to_end(&mut answer.body).unwrap_or(0);
        }
        answer
    }

    fn ask(&mut self, method: &str, url: &str, fields: &str) -> Answer {
        self.send(method, url, fields);
        self.answer(method != "HEAD")
    }
}

fn get(url: &str, fields: &str) -> Answer {
    Client::new(url).ask("GET", url, fields)
}

fn range(of: &Range<usize>) -> String {
    format!("Range: bytes={}-{}\r\n", of.start, of.end - 1)
}

/// `play` with these arguments, and what its event `serving` says.
fn play(dir: &Path, arguments: &[&str]) -> (Running, Value) {
    let base = ["play", "--listen", "127.0.0.1:0", "--json"];
    let mut running = Running::start(anabranch(dir).args(base).args(arguments));
    let serving = running.event("serving");
    (running, serving)
}

fn url(serving: &Value) -> String {
    serving["url"].as_str().unwrap().to_owned()
}

/// A file shared at `rate`, and its torrent `NAME.torrent`.
fn shared(dir: &Path, name: &str, length: usize, arguments: &[&str]) -> (Running, String, Vec<u8>) {
    let bytes = noise(length, length as u64);
    fs::write(dir.join(name), &bytes).unwrap();
    let torrent = format!("{name}.torrent");
    let (sharer, address, _) =
        share(dir, &[&[name, "--torrent-out", &torrent, "--piece-length", "64K"], arguments].concat());
    (sharer, address, bytes)
}

/// The same by PPSPP: its link.
fn streamed(dir: &Path, name: &str, length: usize, rate: &str) -> (Running, String, Vec<u8>) {
    let bytes = noise(length, length as u64);
    fs::write(dir.join(name), &bytes).unwrap();
    let share = ["share", "--ppspp", name, "--listen", "127.0.0.1:0", "--json", "--limit-up", rate];
    let mut sharer = Running::start(anabranch(dir).args(share));
    let link = sharer.event("started")["link"].as_str().expect("a link").to_owned();
    (sharer, link, bytes)
}

/// Reads `count` random ranges of a torrent's file while it arrives, over several connections, and compares them.
fn compare_ranges(length: usize, count: u64, rate: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, address, bytes) = shared(dir.path(), "film.mkv", length, &["--limit-up", rate]);
    let (playing, serving) = play(dir.path(), &["film.mkv.torrent", "-o", "out", "--peer", &address]);
    compare(playing, &url(&serving), &bytes, count);
}

/// The same of a file that is streamed.
fn compare_streamed_ranges(length: usize, count: u64, rate: &str) {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, link, bytes) = streamed(dir.path(), "film.mkv", length, rate);
    let (playing, serving) = play(dir.path(), &[&link, "-o", "out"]);
    compare(playing, &url(&serving), &bytes, count);
}

fn compare(playing: Running, url: &str, bytes: &[u8], count: u64) {
    let length = bytes.len();
    std::thread::scope(|scope| {
        for reader in 0..4 {
            scope.spawn(move || {
                let mut client = Client::new(url);
                let seeds = noise(count as usize * 16, reader + 1);
                for seed in seeds.chunks_exact(16).take(count as usize / 4) {
                    let number = |at: usize| u64::from_le_bytes(seed[at..at + 8].try_into().unwrap()) as usize;
                    let start = number(0) % length;
                    // Short ones mostly, as players ask first; some long.
                    let most = if seed[15].is_multiple_of(8) { 1 << 20 } else { 3000 };
                    let end = (start + 1 + number(8) % most).min(length);
                    let answer = client.ask("GET", url, &range(&(start..end)));
                    assert_eq!(answer.status, 206);
                    assert_eq!(answer.field("content-range"), Some(&*format!("bytes {start}-{}/{length}", end - 1)));
                    assert!(answer.body == bytes[start..end], "{start}..{end} of reader {reader} differs");
                }
            });
        }
    });
    assert!(get(url, "").body == bytes, "all of it");
    assert_eq!(playing.interrupt().0, 0);
}

#[test]
fn ranges_that_are_asked_for_while_it_arrives_are_right() {
    compare_ranges(12_000_007, 200, "8M");
    compare_streamed_ranges(12_000_007, 200, "8M");
}

#[test]
#[ignore = "10,000 ranges: make play"]
fn ten_thousand_ranges_are_right() {
    compare_ranges(200_000_003, 10_000, "20M");
    compare_streamed_ranges(200_000_003, 10_000, "20M");
}

/// A seek into the cold end of what is streamed comes before nearly all that is missing.
#[test]
fn a_seek_in_what_is_streamed_goes_before_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let length = 32 << 20;
    let (_sharer, link, bytes) = streamed(dir.path(), "film.mkv", length, "4M");
    let (mut playing, serving) = play(dir.path(), &[&link, "-o", "out"]);
    let (url, last) = (url(&serving), length / (256 << 10) - 1);
    let mut front = Client::new(&url);
    front.send("GET", &url, "");
    assert_eq!(front.head().status, 200);
    front.stream.read_exact(&mut [0; 100_000]).unwrap();
    drop(front);
    let end = length - 1000..length;
    assert!(get(&url, &range(&end)).body == bytes[end]);
    let mut before = 0;
    while playing.event("piece")["piece"] != last {
        before += 1;
    }
    assert!(before < last / 2, "{before} pieces of {last} came before the last one, which was waited for");
    playing.interrupt();
}

/// What comes more slowly than films in high definition are played comes in order all the same: a piece, then the next.
#[test]
fn what_is_streamed_slowly_comes_piece_after_piece() {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, link, bytes) = streamed(dir.path(), "film.mkv", 4 << 20, "500K");
    let (mut playing, serving) = play(dir.path(), &[&link, "-o", "out"]);
    let url = url(&serving);
    let reading = std::thread::spawn(move || get(&url, "").body);
    let order: Vec<Value> = (0..16).map(|_| playing.event("piece")["piece"].clone()).collect();
    assert_eq!(order, (0..16).map(Value::from).collect::<Vec<_>>());
    assert!(reading.join().unwrap() == bytes);
    assert_eq!(playing.interrupt().0, 0);
}

/// The last bytes are the first to be fetched, and the place where the reader left off is left.
#[test]
fn a_seek_goes_before_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let length = 32 << 20;
    let (_sharer, address, bytes) = shared(dir.path(), "film.mkv", length, &["--limit-up", "4M"]);
    let (mut playing, serving) = play(dir.path(), &["film.mkv.torrent", "-o", "out", "--peer", &address]);
    let (url, last) = (url(&serving), length / (64 << 10) - 1);
    // A reader at the front that takes what comes, and is gone when the other one asks.
    let mut front = Client::new(&url);
    front.send("GET", &url, "");
    assert_eq!(front.head().status, 200);
    front.stream.read_exact(&mut [0; 100_000]).unwrap();
    drop(front);
    let end = length - 1000..length;
    let mut seeker = Client::new(&url);
    seeker.send("GET", &url, &range(&end));
    let answer = seeker.answer(true);
    assert!(answer.body == bytes[end]);
    let mut before = 0;
    while playing.event("piece")["piece"] != last {
        before += 1;
    }
    assert!(before < last / 2, "{before} pieces came before the last one, which was asked for");
}

#[test]
fn readers_that_stop_or_hang_up_hold_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, address, bytes) = shared(dir.path(), "film.mkv", 24 << 20, &[]);
    let (playing, serving) = play(dir.path(), &["film.mkv.torrent", "-o", "out", "--peer", &address]);
    let url = url(&serving);
    // They ask for all of it and read nothing.
    let mut stopped: Vec<Client> = (0..8).map(|_| Client::new(&url)).collect();
    stopped.iter_mut().for_each(|client| client.send("GET", &url, ""));
    for at in 0..40 {
        let mut client = Client::new(&url);
        client.send("GET", &url, &format!("Range: bytes={}-\r\n", at * 500_000));
        if at % 2 == 0 {
            client.stream.shutdown(Shutdown::Both).unwrap();
        } else {
            assert_eq!(client.head().status, 206);
        }
    }
    assert!(get(&url, "").body == bytes);
    // Who stopped goes on where it was.
    let mut late = stopped.pop().unwrap();
    assert!(late.answer(true).body == bytes);
    assert_eq!(playing.interrupt().0, 0);
}

#[test]
fn what_is_asked_before_anybody_has_it_waits_and_is_cut_short_where_nobody_comes() {
    let dir = tempfile::tempdir().unwrap();
    let (sharer, address, bytes) = shared(dir.path(), "film.mkv", 300_000, &[]);
    sharer.interrupt();
    let torrent = "film.mkv.torrent";
    let lonely = [torrent, "-o", "out", "--peer", &address];
    let (playing, serving) = play(dir.path(), &lonely);
    let url = url(&serving);
    let mut waiting = Client::new(&url);
    let head = waiting.ask("HEAD", &url, "");
    assert_eq!((head.status, head.length(), head.field("accept-ranges")), (200, bytes.len(), Some("bytes")));
    assert_eq!(head.field("content-type"), Some("video/x-matroska"));
    waiting.send("GET", &url, "");
    assert_eq!(waiting.head().status, 200);
    // The peer comes after all: the answer goes on.
    let _sharer = Running::start(anabranch(dir.path()).args(["share", torrent, "--listen", &address]));
    let mut body = vec![0; bytes.len()];
    waiting.stream.read_exact(&mut body).unwrap();
    assert!(body == bytes);
    assert_eq!(playing.interrupt().0, 0);
    // Nobody comes: what was promised is not made up.
    drop(_sharer);
    let (mut playing, serving) = play(dir.path(), &[torrent, "-o", "out2", "--peer", "127.0.0.1:1", "--give-up", "2s"]);
    let answer = get(&self::url(&serving), "");
    assert_eq!((answer.status, answer.length(), answer.body.len()), (200, bytes.len(), 0));
    assert_eq!(playing.event("error")["kind"], "sources");
    assert_eq!(playing.child.wait().unwrap().code(), Some(6));
}

#[test]
fn odd_files_are_served_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let names =
        ["a b.mkv", "\u{e4}\u{f6}%41.mp4", "q\"uote.mp3", "empty.mp4", "<b>&.srt", "no type", "page.html", "sub/d.mkv"];
    let files: Vec<(String, Vec<u8>)> = names
        .iter()
        .enumerate()
        .map(|(at, name)| ((*name).to_owned(), noise(if at == 3 { 0 } else { 40_003 * (at + 1) }, at as u64 + 1)))
        .collect();
    for (name, bytes) in &files {
        let path = dir.path().join("tree").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    // Hybrid torrents have padding between files.
    for version in ["1", "2", "hybrid"] {
        let (_sharer, address, _) = share(dir.path(), &["tree", "--torrent-out", "t.torrent", "--version", version]);
        let out = format!("out-{version}");
        let (playing, serving) = play(dir.path(), &["t.torrent", "-o", &out, "--peer", &address]);
        assert_eq!(serving["files"][0]["path"], "tree/sub/d.mkv", "the largest that is played");
        let base = serving["index"].as_str().unwrap().to_owned();
        let index = String::from_utf8(get(&base, "").body).unwrap();
        assert!(!index.contains("<b>"), "{index}");
        let links: Vec<&str> =
            index.split("<li><a href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(links.len(), files.len());
        let mut found = 0;
        for link in links {
            let url = format!("{}{link}", base.trim_end_matches('/'));
            // Files that nobody chose are fetched as soon as they are asked for.
            let answer = get(&url, "");
            assert_eq!(answer.status, 200, "{url}");
            let known = files.iter().filter(|(_, bytes)| *bytes == answer.body).count();
            assert_eq!(known, 1, "{url}: {} bytes that no file has", answer.body.len());
            found += known;
            let shown = !link.ends_with("type") && !link.ends_with("html");
            let disposition = answer.field("content-disposition").unwrap();
            assert!(disposition.starts_with(if shown { "inline" } else { "attachment" }), "{url}: {disposition}");
        }
        assert_eq!(found, files.len());
        let playlist = String::from_utf8(get(serving["playlist"].as_str().unwrap(), "").body).unwrap();
        assert!(playlist.starts_with("#EXTM3U\n") && playlist.contains(&url(&serving)), "{playlist}");
        assert_eq!(playing.interrupt().0, 0);
    }
}

#[test]
fn requests_are_answered_as_the_specification_says() {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, address, bytes) = shared(dir.path(), "film.mkv", 100_000, &[]);
    let (_playing, serving) = play(dir.path(), &["film.mkv.torrent", "-o", "out", "--peer", &address]);
    let url = url(&serving);
    let mut client = Client::new(&url);
    let tag = client.ask("HEAD", &url, "").field("etag").unwrap().to_owned();
    for (fields, status, body) in [
        ("Range: bytes=100000-\r\n".to_owned(), 416, &[][..]),
        ("Range: bytes=-0\r\n".to_owned(), 416, &[]),
        ("Range: bytes=5-4\r\n".to_owned(), 200, &bytes),
        ("Range: lines=1-2\r\n".to_owned(), 200, &bytes),
        ("Range: bytes=99999-200000\r\n".to_owned(), 206, &bytes[99_999..]),
        ("Range: bytes=-7\r\n".to_owned(), 206, &bytes[99_993..]),
        ("Range: bytes=0-4,5-9\r\n".to_owned(), 206, &bytes[..10]),
        (format!("Range: bytes=0-4\r\nIf-Range: {tag}\r\n"), 206, &bytes[..5]),
        ("Range: bytes=0-4\r\nIf-Range: \"other\"\r\n".to_owned(), 200, &bytes),
        ("Range: bytes=0-4\r\nIf-Range: Mon, 23 Nov 2026 05:13:40 GMT\r\n".to_owned(), 200, &bytes),
        (format!("If-None-Match: \"x\", W/{tag}\r\n"), 304, &[]),
        ("If-Match: \"other\"\r\n".to_owned(), 412, &[]),
        (format!("If-Match: {tag}\r\n"), 200, &bytes),
    ] {
        // One connection for all: each answer ends where the next begins.
        let answer = client.ask("GET", &url, &fields);
        assert_eq!(answer.status, status, "{fields}");
        assert!(answer.body == body, "{fields}: {}", answer.body.len());
        if status == 416 {
            assert_eq!(answer.field("content-range"), Some("bytes */100000"));
        }
    }
    // Several parts.
    let answer = client.ask("GET", &url, "Range: bytes=0-9,50-59,-5\r\n");
    let boundary = answer.field("content-type").unwrap().strip_prefix("multipart/byteranges; boundary=").unwrap();
    let mut expected = Vec::new();
    for part in [0..10, 50..60, 99_995..100_000] {
        let (first, last) = (part.start, part.end - 1);
        let head = "Content-Type: video/x-matroska\r\nContent-Range: bytes";
        expected.extend(format!("\r\n--{boundary}\r\n{head} {first}-{last}/100000\r\n\r\n").into_bytes());
        expected.extend(&bytes[part]);
    }
    expected.extend(format!("\r\n--{boundary}--\r\n").into_bytes());
    assert!(answer.status == 206 && answer.body == expected);
    // Requests that are sent before the answers to those before came.
    for at in 0..5 {
        client.send("GET", &url, &range(&(at..at + 100)));
    }
    for at in 0..5 {
        assert!(client.answer(true).body == bytes[at..at + 100]);
    }
    let other = client.ask("POST", &url, "Content-Length: 0\r\n");
    assert_eq!((other.status, other.field("allow")), (405, Some("GET, HEAD")));
    assert_eq!(get(&format!("{}99/x", serving["index"].as_str().unwrap()), "").status, 404);
    // A web page whose name was made to lead here.
    let mut page = Client::new(&url);
    page.host = "evil.example".to_owned();
    assert_eq!(page.ask("GET", &url, "").status, 421);
    let long = format!("X: {}\r\n", "x".repeat(64 << 10));
    let mut greedy = Client::new(&url);
    // It may be cut off in the middle of it.
    let _ = write!(greedy.stream, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n{long}\r\n");
    let mut said = Vec::new();
    let _ = greedy.stream.read_to_end(&mut said);
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn what_is_there_plays_without_peers_also_after_it_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (sharer, address, bytes) = shared(dir.path(), "film.mkv", 4 << 20, &["--limit-up", "4M"]);
    let arguments = ["film.mkv.torrent", "-o", "out", "--peer", &address];
    let (mut playing, serving) = play(dir.path(), &arguments);
    assert!(get(&url(&serving), "Range: bytes=0-299999\r\n").body == bytes[..300_000]);
    playing.child.kill().unwrap();
    drop(playing);
    let (mut playing, serving) = play(dir.path(), &arguments);
    assert!(get(&url(&serving), "").body == bytes);
    playing.event("finished");
    assert_eq!(playing.interrupt().0, 0);
    sharer.interrupt();
    let (playing, serving) = play(dir.path(), &["film.mkv.torrent", "-o", "out"]);
    assert!(get(&url(&serving), "").body == bytes);
    let (code, rest) = playing.interrupt();
    let played: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    assert_eq!((code, &played["event"], &played["sent"]), (0, &"played".into(), &bytes.len().into()));
}

#[test]
fn links_play_and_what_is_temporary_goes() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(500_000, 5);
    fs::write(dir.path().join("song.mp3"), &bytes).unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["song.mp3"]);
    fs::create_dir(dir.path().join("tmp")).unwrap();
    let arguments = [&magnet, "--temporary", "-o", "tmp", "--peer", &address];
    let (playing, serving) = play(dir.path(), &arguments);
    assert!(get(&url(&serving), "").body == bytes);
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 1);
    assert_eq!(playing.interrupt().0, 0);
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_player_is_started_and_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, address, _) = shared(dir.path(), "film.mkv", 100_000, &[]);
    let base = ["play", "film.mkv.torrent", "-o", "out", "--peer", &address, "--listen", "127.0.0.1:0"];
    let player = |words: &[&str]| run(dir.path(), &[&base[..], &["--"], words].concat());
    let (code, stdout, stderr) = player(&["sh", "-c", "echo \"$1 $2\" > told", "sh", "--fs"]);
    assert_eq!(code, 0, "{stderr}");
    let told = fs::read_to_string(dir.path().join("told")).unwrap();
    assert_eq!(told.trim(), format!("--fs {}", stdout.trim()));
    assert!(stderr.contains("ended without asking for anything"), "{stderr}");
    let (code, _, stderr) = player(&["sh", "-c", "exit 3"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("error: the player `sh` ended with exit code 3"), "{stderr}");
    for missing in ["no-such-player", "./no/such", ""] {
        let (code, _, stderr) = player(&[missing]);
        assert_eq!(code, 1);
        assert!(stderr.contains(&format!("there is no player `{missing}`: install it")), "{stderr}");
    }
    // Interrupted, it takes its player along.
    let forever = ["--json", "--", "sh", "-c", "echo $$ > pid; exec sleep 1000"];
    let mut playing = Running::start(anabranch(dir.path()).args(base).args(forever));
    playing.event("serving");
    let pid = std::iter::repeat_with(|| fs::read_to_string(dir.path().join("pid")).unwrap_or_default())
        .inspect(|_| std::thread::sleep(Duration::from_millis(20)))
        .take(3000)
        .find(|pid| pid.ends_with('\n'))
        .unwrap();
    assert_eq!(playing.interrupt().0, 130);
    let state = || fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    let mut looks = (0..500).map(|_| std::thread::sleep(Duration::from_millis(20)));
    assert!(looks.any(|()| state().is_err()), "the player is still there: {:?}", state());
}

#[test]
fn what_cannot_be_played_is_told() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    for name in ["a.txt", "b.doc"] {
        fs::write(dir.path().join("tree").join(name), noise(1000, 3)).unwrap();
    }
    assert_eq!(run(dir.path(), &["create", "tree", "-o", "t.torrent", "-q"]).0, 0);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let chosen = ["--files", "a.txt", "--listen", "127.0.0.1:0"];
    for (arguments, code, said) in [
        (
            &["t.torrent"][..],
            3,
            "tree has nothing that players are known to play, but tree/a.txt, tree/b.doc: name a file with --files",
        ),
        (&["t.torrent", "--files", "*.mkv"], 3, "`*.mkv` matches no file of tree"),
        (
            &["t.torrent", "--http", &address, chosen[0], chosen[1], chosen[2], chosen[3]],
            6,
            "another program has it: give another port with --http",
        ),
        (
            &["t.torrent", "--http", "192.0.2.7:80", chosen[0], chosen[1], chosen[2], chosen[3]],
            6,
            "give an address of this machine with --http",
        ),
        (&["t.torrent", "--open", "--", "sh"], 2, "`--open` opens what the desktop has"),
        (&["nowhere.torrent"], 3, "cannot read nowhere.torrent"),
        (&["t.torrent", "--temporary", "-o", "nowhere", chosen[0], chosen[1]], 5, "cannot make a folder in nowhere"),
        (&["t.torrent", "-o", "out", chosen[0], chosen[1], chosen[2], chosen[3]], 6, "no source is left"),
    ] {
        let (ended, _, stderr) = run(dir.path(), &[&["play"], arguments].concat());
        assert!(ended == code && stderr.contains(said), "{arguments:?}: {ended} {stderr}");
    }
}

/// It is killed where it hangs: whoever plays holds nothing of ours then.
#[test]
fn the_sharer_may_go_and_come_in_the_middle_of_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (sharer, address, bytes) = shared(dir.path(), "film.mkv", 6 << 20, &["--limit-up", "2M"]);
    let (playing, serving) =
        play(dir.path(), &["film.mkv.torrent", "-o", "out", "--peer", &address, "--give-up", "60s"]);
    let url = url(&serving);
    let mut client = Client::new(&url);
    client.send("GET", &url, "");
    assert_eq!(client.head().length(), bytes.len());
    let mut body = vec![0; bytes.len()];
    client.stream.read_exact(&mut body[..200_000]).unwrap();
    signal(sharer.child.id(), "KILL");
    drop(sharer);
    let torrent = ["share", "film.mkv.torrent", "--listen", &address];
    let _sharer = Running::start(anabranch(dir.path()).args(torrent));
    client.stream.read_exact(&mut body[200_000..]).unwrap();
    assert!(body == bytes);
    assert_eq!(playing.interrupt().0, 0);
}

#[test]
fn links_of_ppspp_play_too() {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, link, bytes) = streamed(dir.path(), "film.mkv", 8 << 20, "8M");
    let (playing, serving) = play(dir.path(), &[&link, "-o", "out"]);
    let (url, length) = (url(&serving), bytes.len());
    for part in [length - 1000..length, 0..100_000, length / 2..length / 2 + 70_001, 5..6] {
        assert!(get(&url, &range(&part)).body == bytes[part.clone()], "{part:?}");
    }
    assert!(get(&url, "").body == bytes);
    assert_eq!(playing.interrupt().0, 0);
}
