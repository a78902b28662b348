//! A daemon over a session in this process, and whoever asks it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_daemon::{Config, Daemon, LocalTime};
use anabranch_swarm::{Session, SessionConfig};
use anabranch_transport::Identity;
use serde_json::Value;
use tokio::sync::oneshot;

use super::schema;

/// Nothing takes longer, with both cores busy elsewhere.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon, its folders, and the session that it asks.
pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
    pub(crate) document: Value,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::over(tempfile::tempdir().unwrap())
    }

    /// One that may fetch torrent files from hosts of the local network.
    pub(crate) fn fetching_from(hosts: &[&str]) -> Self {
        Self::start(tempfile::tempdir().unwrap(), hosts)
    }

    /// A daemon over what an earlier one left.
    pub(crate) fn over(dir: tempfile::TempDir) -> Self {
        Self::start(dir, &[])
    }

    fn start(dir: tempfile::TempDir, fetch_hosts: &[&str]) -> Self {
        let fetch_hosts: Vec<String> = fetch_hosts.iter().map(|host| (*host).to_owned()).collect();
        let tls = dir.path().join("cert.pem").exists();
        let (end, ended) = oneshot::channel::<()>();
        let (told, hear) = std::sync::mpsc::channel();
        let base = dir.path().to_owned();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
                let state_dir = Some(base.join("state/resume"));
                let secure_identity = Some(Identity::open(&base.join("key")).unwrap());
                let config = SessionConfig { listen, state_dir, secure_identity, ..SessionConfig::default() };
                let (session, _) = Session::start(config).unwrap();
                let config = Config {
                    state_dir: base.join("state"),
                    dir: base.join("files"),
                    socket: Some(base.join("daemon.sock")),
                    fetch_hosts,
                    tls: tls.then(|| (base.join("cert.pem"), base.join("key.pem"))),
                    clock: Some(|| LocalTime { day: 1, minute: 12 * 60 }),
                    listening: session.listening().iter().map(ToString::to_string).collect(),
                    ..Config::default()
                };
                let listener = anabranch_daemon::listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
                let daemon = Daemon::start(session.handle(), Some(listener), config).unwrap();
                told.send(daemon.address().unwrap()).unwrap();
                let _ = ended.await;
                // What serves the daemon's questions goes on while it ends.
                tokio::task::spawn_blocking(|| daemon.stop()).await.unwrap();
                session.shutdown().await;
            });
            runtime.shutdown_background();
        });
        let address = hear.recv().unwrap();
        let token = std::fs::read_to_string(dir.path().join("state/token")).unwrap().trim().to_owned();
        Self { dir, address, token, document: schema::document(), end: Some(end), thread: Some(thread) }
    }

    /// Ends it, and leaves its folders to the next.
    pub(crate) fn end(mut self) -> tempfile::TempDir {
        self.stop();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    fn stop(&mut self) {
        drop(self.end.take());
        self.thread.take().map(std::thread::JoinHandle::join);
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.dir.path().join("files")
    }

    /// Asks as somebody with the token, and holds the answer against the document. `path` is as that has it.
    pub(crate) fn ask(&self, method: &str, path: &str, id: &str, body: Option<&Value>) -> Answer {
        let body = body.map(Value::to_string);
        let answer = self.send(
            method,
            &path.replace("{id}", id),
            &self.fields(),
            body.as_deref().unwrap_or_default().as_bytes(),
        );
        self.hold(method, path, &answer);
        answer
    }

    /// Holds an answer against the document.
    pub(crate) fn hold(&self, method: &str, path: &str, answer: &Answer) {
        let path = path.split('?').next().unwrap();
        let schema = schema::answer(&self.document, method, path, answer.status);
        if !schema.is_null() {
            schema::check(&self.document, schema, &answer.json(), &format!("{method} {path} {}", answer.status));
        }
        if answer.status >= 400 {
            assert_eq!(answer.field("content-type"), Some("application/problem+json"));
        }
    }

    pub(crate) fn fields(&self) -> String {
        format!("Authorization: Bearer {}\r\nContent-Type: application/json\r\n", self.token)
    }

    /// Sends a request by the address, with these fields in its head.
    pub(crate) fn send(&self, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
        let host = format!("Host: {}\r\n", self.address);
        self.send_as(method, target, &format!("{host}{fields}"), body)
    }

    /// The same without naming the host.
    pub(crate) fn send_as(&self, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
        converse(TcpStream::connect(self.address).unwrap(), method, target, fields, body)
    }

    /// Sends a request by the socket.
    pub(crate) fn by_socket(&self, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
        converse(UnixStream::connect(self.dir.path().join("daemon.sock")).unwrap(), method, target, fields, body)
    }

    /// Waits until a content is as it is to be.
    pub(crate) fn wait(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let content = self.ask("GET", "/api/v1/contents/{id}", id, None).json();
            if is_so(&content) {
                return content;
            }
            assert!(began.elapsed() < PATIENCE, "{content}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Adds a content that is to be of this kind; its number.
    pub(crate) fn add(&self, kind: &str, body: &Value) -> String {
        let added = self.ask("POST", "/api/v1/contents", "", Some(body));
        assert_eq!(added.status, 201, "{}", added.json());
        assert_eq!(added.json()["kind"], kind);
        added.json()["id"].to_string()
    }

    /// How others come to a content, once it tells `what` they need.
    pub(crate) fn reach(&self, id: &str, what: &str) -> Value {
        let began = Instant::now();
        loop {
            let reach = self.ask("GET", &part("reach"), id, None).json();
            if reach[what].is_string() {
                return reach;
            }
            let content = self.ask("GET", "/api/v1/contents/{id}", id, None).json();
            assert!(began.elapsed() < PATIENCE && content["state"] != "error", "{content}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Shares a path, and waits until it is shared: its number.
    pub(crate) fn share(&self, path: &Path) -> String {
        let added = self.ask("POST", "/api/v1/contents", "", Some(&serde_json::json!({ "path": path })));
        assert_eq!(added.status, 201, "{}", added.json());
        let id = added.json()["id"].to_string();
        self.wait(&id, |content| content["state"] == "seeding");
        id
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What is asked of a content.
pub(crate) fn part(name: &str) -> String {
    format!("/api/v1/contents/{{id}}/{name}")
}

/// One request and its answer.
pub(crate) fn converse(mut stream: impl Read + Write, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
    let head =
        format!("{method} {target} HTTP/1.1\r\n{fields}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    // Whoever is refused early may not be read to the end.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    read(&mut stream)
}

/// Reads an answer to the end of the connection.
pub(crate) fn read(stream: &mut impl Read) -> Answer {
    let mut bytes = Vec::new();
    // A connection that is reset after the answer has given it.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut body = bytes[end + 4..].to_vec();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        body = unchunked(&body);
    }
    Answer { status: head[9..12].parse().unwrap(), head, body }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let len = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap().trim(), 16).unwrap();
        let from = end + 2;
        if len == 0 || bytes.len() < from + len {
            break;
        }
        whole.extend_from_slice(&bytes[from..from + len]);
        bytes = &bytes[(from + len + 2).min(bytes.len())..];
    }
    whole
}

/// Bytes that look random and are the same every time.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}
