//! The daemon: with thousands of contents, and with many who watch it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anabranch_testbed::peers::anabranch::{self, Anabranch};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result, data};
use serde_json::Value;
use sha1::{Digest, Sha1};

use crate::report::{Sample, median};
use crate::workspace::{PIECE_LENGTH, Workspace};

/// Bytes of each content: one piece.
const CONTENT_LEN: u64 = 16 * 1024;
/// Torrents in one request that adds them, and requests at once.
const TOGETHER: usize = 100;
/// How long idle contents are left alone before and while they are measured.
const SETTLE: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(20);
/// How often each question is asked.
const QUESTIONS: usize = 7;
/// Contents that change between two answers about what changed.
const CHANGES: usize = 100;
/// Who watches events beside the page.
const WATCHERS: usize = 10;
/// How often it is looked how far a transfer is, or a start; and how far all contents are, which takes the daemon some time itself.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const COUNT_EVERY: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(900);

/// A connection to the daemon.
struct Client {
    stream: BufReader<TcpStream>,
    head: String,
}

impl Client {
    fn new(address: SocketAddr, token: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).map_err(Error::system("connecting to the daemon"))?;
        stream.set_read_timeout(Some(LIMIT)).map_err(Error::system("a timeout"))?;
        stream.set_nodelay(true).map_err(Error::system("no delay"))?;
        let head = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\n");
        Ok(Self { stream: BufReader::new(stream), head })
    }

    /// Asks, and answers with the status and the body.
    fn ask(&mut self, method: &str, target: &str, kind: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let head = format!(
            "{method} {target} HTTP/1.1\r\n{}Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.head,
            body.len()
        );
        let asked = self.stream.get_mut().write_all(&[head.as_bytes(), body].concat());
        asked.and_then(|()| self.answer()).map_err(Error::system("asking the daemon"))
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn answer(&mut self) -> std::io::Result<(u16, Vec<u8>)> {
        let status = self.line()?.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap_or(0),
                Some(("transfer-encoding", value)) => chunked = value == "chunked",
                Some(_) => {}
                None => break,
            }
        }
        let mut body = Vec::new();
        if !chunked {
            body.resize(length, 0);
            self.stream.read_exact(&mut body)?;
            return Ok((status, body));
        }
        loop {
            let len = usize::from_str_radix(&self.line()?, 16).unwrap_or(0);
            let from = body.len();
            body.resize(from + len, 0);
            self.stream.read_exact(&mut body[from..])?;
            self.line()?;
            if len == 0 {
                return Ok((status, body));
            }
        }
    }

    /// Asks for something, which has to be there.
    fn get(&mut self, target: &str) -> Result<Vec<u8>> {
        match self.ask("GET", target, "text/plain", b"")? {
            (200, body) => Ok(body),
            (status, body) => Err(nonsense(format!("{target}: {status} {}", String::from_utf8_lossy(&body)))),
        }
    }

    fn json(&mut self, target: &str) -> Result<Value> {
        Ok(serde_json::from_slice(&self.get(target)?).unwrap_or_default())
    }

    /// Sends a form of qBittorrent's API.
    fn form(&mut self, target: &str, body: &str) -> Result<()> {
        match self.ask("POST", target, "application/x-www-form-urlencoded", body.as_bytes())? {
            (200, _) => Ok(()),
            (status, body) => Err(nonsense(format!("{target}: {status} {}", String::from_utf8_lossy(&body)))),
        }
    }
}

fn nonsense(what: String) -> Error {
    Error::Nonsense { name: "the daemon".into(), what }
}

/// A daemon, and where it is.
struct Daemon {
    process: Process,
    address: SocketAddr,
    token: String,
}

impl Daemon {
    fn start(dir: &Path, state: &Path, more: &[&str]) -> Result<Self> {
        let mut command = anabranch::command(None)?;
        command.args(["daemon", "--json", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--dir"]).arg(dir);
        command.arg("--state-dir").arg(state).args(more);
        let mut process = Process::spawn("anabranch daemon", &mut command)?;
        let (serving, _) = process.wait_event("serving", LIMIT)?;
        let url = serving["url"].as_str().unwrap_or_default();
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let address = address.parse().map_err(|_| nonsense(format!("it serves at {url}")))?;
        let token = std::fs::read_to_string(state.join("token")).map_err(Error::file(state))?.trim().to_owned();
        Ok(Self { process, address, token })
    }

    fn client(&self) -> Result<Client> {
        Client::new(self.address, &self.token)
    }

    /// Waits until something is so.
    fn wait(&self, what: &str, every: Duration, mut is_so: impl FnMut(&mut Client) -> Result<bool>) -> Result<Instant> {
        let (began, mut client) = (Instant::now(), self.client()?);
        while !is_so(&mut client)? {
            if began.elapsed() > LIMIT {
                return Err(nonsense(format!("{what}: not within {} s", LIMIT.as_secs())));
            }
            std::thread::sleep(every);
        }
        Ok(Instant::now())
    }

    fn seeding(client: &mut Client) -> Result<u64> {
        Ok(client.json("/api/v1/session")?["contents"]["seeding"].as_u64().unwrap_or(0))
    }
}

/// A torrent of one file of one piece.
fn torrent(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut torrent = format!(
        "d4:infod6:lengthi{}e4:name{}:{name}12:piece lengthi{CONTENT_LEN}e6:pieces20:",
        bytes.len(),
        name.len()
    )
    .into_bytes();
    torrent.extend(Sha1::digest(bytes));
    torrent.extend(b"ee");
    torrent
}

/// The folder with the contents, made when first asked for, and their torrents.
fn contents(workspace: &Workspace) -> Result<(PathBuf, Vec<Vec<u8>>)> {
    let dir = workspace.keep("contents")?;
    let mut torrents = Vec::new();
    for number in 0..workspace.contents {
        let name = format!("{number}.bin");
        let path = dir.join(&name);
        if !path.exists() {
            data::make_file(&path, CONTENT_LEN, 1000 + number as u64)?;
        }
        torrents.push(torrent(&name, &std::fs::read(&path).map_err(Error::file(&path))?));
    }
    Ok((dir, torrents))
}

/// Adds torrents as qBittorrent's clients do, many in a request.
fn add(client: &mut Client, torrents: &[Vec<u8>]) -> Result<()> {
    const BOUNDARY: &str = "----a-line-between-parts";
    for some in torrents.chunks(TOGETHER) {
        let mut body = Vec::new();
        for (at, torrent) in some.iter().enumerate() {
            let head = "Content-Disposition: form-data; name=\"torrents\"; filename";
            body.extend(format!("--{BOUNDARY}\r\n{head}=\"{at}.torrent\"\r\n\r\n").into_bytes());
            body.extend(torrent);
            body.extend(b"\r\n");
        }
        body.extend(format!("--{BOUNDARY}--\r\n").into_bytes());
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        match client.ask("POST", "/api/v2/torrents/add", &kind, &body)? {
            (200, body) if body == b"Ok." => {}
            (status, body) => return Err(nonsense(format!("adding: {status} {}", String::from_utf8_lossy(&body)))),
        }
    }
    Ok(())
}

/// The median of how long something takes, in milliseconds.
fn timed(mut work: impl FnMut() -> Result<()>) -> Result<Option<f64>> {
    let mut took = Vec::new();
    for _ in 0..QUESTIONS {
        let began = Instant::now();
        work()?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(took.into_iter()))
}

/// Contents that are all there: a start over them, what they take at rest, what questions about them take.
pub(super) fn thousands(workspace: &mut Workspace) -> Result<Sample> {
    let (dir, torrents) = contents(workspace)?;
    let state = workspace.out()?;
    let count = torrents.len() as u64;
    let daemon = Daemon::start(&dir, &state, &[])?;
    let began = Instant::now();
    add(&mut daemon.client()?, &torrents)?;
    let added = began.elapsed();
    let at_once = Daemon::seeding(&mut daemon.client()?)?;
    eprintln!("{count} added in {:.1} s; {at_once} are seeding then", added.as_secs_f64());
    let all = daemon.wait("all are seeding", COUNT_EVERY, |client| Ok(Daemon::seeding(client)? == count))?;
    eprintln!("all of them {:.1} s after the first was added", all.duration_since(began).as_secs_f64());
    let Daemon { mut process, .. } = daemon;
    process.stop()?;

    let mut daemon = Daemon::start(&dir, &state, &[])?;
    let started = daemon.process.started();
    let is_ready = |client: &mut Client| Ok(client.ask("GET", "/readyz", "text/plain", b"")?.0 == 200);
    let ready = daemon.wait("it is ready", LOOK_EVERY, is_ready)?.duration_since(started);
    let seeding = daemon
        .wait("all are seeding", COUNT_EVERY, |client| Ok(Daemon::seeding(client)? == count))?
        .duration_since(started);
    std::thread::sleep(SETTLE);
    let cpu = daemon.process.cpu_so_far().unwrap_or_default();
    std::thread::sleep(IDLE);
    let idle = (daemon.process.cpu_so_far().unwrap_or_default() - cpu).as_secs_f64() / IDLE.as_secs_f64();
    let rss = daemon.process.status_bytes("VmRSS").map(|bytes| bytes as f64 / f64::from(1 << 20));

    let mut client = daemon.client()?;
    let list = client.json("/api/v2/torrents/info")?;
    let hashes: Vec<&str> =
        list.as_array().into_iter().flatten().filter_map(|torrent| torrent["hash"].as_str()).collect();
    if hashes.len() as u64 != count {
        return Err(nonsense(format!("it lists {} of {count}", hashes.len())));
    }
    let info = timed(|| client.get("/api/v2/torrents/info").map(drop))?;
    let mut rid = client.json("/api/v2/sync/maindata")?["rid"].as_u64().unwrap_or(0);
    let changed = hashes[..CHANGES.min(hashes.len())].join("|");
    let mut took = Vec::new();
    for round in 0..QUESTIONS {
        client.form("/api/v2/torrents/addTags", &format!("hashes={changed}&tags=round{round}"))?;
        let asked = Instant::now();
        let answer = client.json(&format!("/api/v2/sync/maindata?rid={rid}"))?;
        took.push(asked.elapsed().as_secs_f64() * 1e3);
        rid = answer["rid"].as_u64().unwrap_or(0);
        let told = answer["torrents"].as_object().map_or(0, serde_json::Map::len);
        if told < CHANGES.min(hashes.len()) {
            return Err(nonsense(format!("it tells of {told} that changed")));
        }
    }
    daemon.process.stop()?;
    let more = vec![info, median(took.into_iter()), Some(seeding.as_secs_f64()), Some(added.as_secs_f64())];
    Ok(Sample { figure: ready.as_secs_f64(), extra: Some(100.0 * idle), rss_mib: rss, more, ..Sample::default() })
}

/// Reads events until told to end, and counts their bytes.
fn watch(daemon: &Daemon, ends: &Arc<AtomicBool>, heard: &Arc<AtomicU64>) -> Result<std::thread::JoinHandle<()>> {
    let mut stream = TcpStream::connect(daemon.address).map_err(Error::system("watching"))?;
    stream.set_read_timeout(Some(Duration::from_millis(200))).map_err(Error::system("a timeout"))?;
    let head = format!(
        "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        daemon.address, daemon.token
    );
    stream.write_all(head.as_bytes()).map_err(Error::system("watching"))?;
    let (ends, heard) = (Arc::clone(ends), Arc::clone(heard));
    Ok(std::thread::spawn(move || {
        let mut bytes = [0; 64 * 1024];
        while !ends.load(Ordering::Relaxed) {
            match stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(len) => _ = heard.fetch_add(len as u64, Ordering::Relaxed),
                // Nothing happened for a moment.
                Err(_) => {}
            }
        }
    }))
}

/// The daemon fetches a content as fast as it can, with this many who watch it.
pub(super) fn watched(workspace: &mut Workspace, is_watched: bool) -> Result<Sample> {
    let torrent = workspace.keep("watched")?.join("content.torrent");
    if !torrent.exists() {
        anabranch::create(&workspace.content, &torrent, "1", PIECE_LENGTH, &[])?;
    }
    let (share, from) = Anabranch::share(&torrent, Some(&workspace.data), "127.0.0.1:0", None, &[])?;
    let (dir, state) = (workspace.out()?, workspace.out()?);
    let mut daemon = Daemon::start(&dir, &state, &["--peer", &from.to_string()])?;
    let (ends, heard) = (Arc::default(), Arc::default());
    // The page has one stream of events.
    let count = if is_watched { WATCHERS + 1 } else { 0 };
    let watchers = (0..count).map(|_| watch(&daemon, &ends, &heard)).collect::<Result<Vec<_>>>()?;
    let bytes = std::fs::read(&torrent).map_err(Error::file(&torrent))?;
    let mut client = daemon.client()?;
    let (cpu, began) = (daemon.process.cpu_so_far().unwrap_or_default(), Instant::now());
    let (status, body) = client.ask("POST", "/api/v1/contents", "application/x-bittorrent", &bytes)?;
    if status != 201 {
        return Err(nonsense(format!("adding: {status} {}", String::from_utf8_lossy(&body))));
    }
    let is_there = |client: &mut Client| Ok(client.json("/api/v1/contents/1")?["completed"].is_u64());
    let took = daemon.wait("all is there", LOOK_EVERY, is_there)?.duration_since(began).as_secs_f64();
    let cpu = (daemon.process.cpu_so_far().unwrap_or_default() - cpu).as_secs_f64();
    ends.store(true, Ordering::Relaxed);
    watchers.into_iter().for_each(|watcher| _ = watcher.join());
    if is_watched && heard.load(Ordering::Relaxed) == 0 {
        return Err(nonsense("it told those who watch of nothing".into()));
    }
    workspace.check(&dir.join("content.bin"))?;
    daemon.process.stop()?;
    Ok(Sample {
        figure: workspace.len as f64 * 8.0 / took / 1e6,
        cpu_fetch: Some(cpu),
        cpu_share: share.process.cpu_so_far().map(|cpu| cpu.as_secs_f64()),
        extra: is_watched.then(|| heard.load(Ordering::Relaxed) as f64 / 1024.0),
        ..Sample::default()
    })
}
