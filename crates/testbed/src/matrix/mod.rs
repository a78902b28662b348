//! The matrix of clients: who shares to whom, with the settings that both have when they are installed, found by a tracker, in the
//! distributed hash table or by local discovery alone.
//!
//! | module | what it does |
//! | --- | --- |
//! | this one | a cell: one transfer, and what came of it |
//! | [`clients`] | how each client is started as its users have it |
//! | [`cells`] | which cells there are, and why some are not |
//! | [`lan`] | two hosts and a third one in one network, in namespaces |
//!
//! Nothing is asked of a client while it works: its first byte and its rate are what the kernel counts on the wire, and it has all once its
//! files are the content. The clock starts with the program that fetches, so that clients are to be compared with themselves.

pub mod cells;
pub mod clients;
pub mod lan;

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::fixture::{Content, Fixture, Maker};
use crate::peers::anabranch;
use crate::process::Process;
use crate::{Error, Result};
use clients::{Client, Entry, Role, Site};
use lan::{LISTEN_PORT, Lan};

/// How long who shares may take until it is to be found.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// So long it then has to look through its files.
const SETTLE: Duration = Duration::from_secs(1);
/// What comes before the content, at most: handshakes, metadata, Merkle layers, what is said of trackers and nodes.
const TALK_BYTES: u64 = 64 << 10;
/// How often the wire is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often the files are, once as much has come as they hold.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// Where the tracker is, at the third host.
const TRACKER_PORT: u16 = 6969;
/// Where nobody is.
const NOBODY_PORT: u16 = 6999;

/// How who fetches hears of who shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// By the torrent's tracker.
    Tracker,
    /// In the distributed hash table, which both enter where they enter it on the Internet.
    Dht,
    /// By local discovery.
    Lsd,
}

impl Found {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tracker, Self::Dht, Self::Lsd];

    /// In tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracker => "tracker",
            Self::Dht => "DHT",
            Self::Lsd => "LSD",
        }
    }
}

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Who shares.
    pub from: Client,
    /// Who fetches.
    pub to: Client,
    /// How they meet.
    pub found: Found,
    /// Of the torrent: `1`, `2` or `hybrid`.
    pub version: &'static str,
    /// Who fetches is given a link, instead of the torrent.
    pub by_magnet: bool,
    /// Bytes of the content.
    pub len: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// From the start of who fetches to the first bytes of the content.
    pub first_byte: Duration,
    /// From then to the last.
    pub rest: Duration,
    /// Bytes of the content.
    pub len: u64,
}

impl Measured {
    /// Bytes a second from the first byte on.
    pub fn rate_bytes(&self) -> f64 {
        self.len.saturating_sub(TALK_BYTES) as f64 / self.rest.as_secs_f64().max(1e-3)
    }
}

impl Cell {
    /// The node by which others enter the table.
    const ENTRY: SocketAddrV4 = SocketAddrV4::new(Lan::THIRD, LISTEN_PORT);

    /// Runs it.
    ///
    /// # Errors
    /// Where a client is missing, is not found, or does not bring all within `limit`.
    pub fn run(self, limit: Duration) -> Result<Measured> {
        let lan = Lan::new()?;
        let announce = match self.found {
            Found::Tracker => format!("http://{}:{TRACKER_PORT}/announce", Lan::THIRD),
            Found::Dht | Found::Lsd => format!("http://{}:{NOBODY_PORT}/announce", Lan::THIRD),
        };
        let fixture = Fixture::new(Content::Bytes(self.len), self.version, Maker::Ours, Some(&announce))?;
        let _third = self.third(&lan, &fixture)?;
        let entry = (self.found == Found::Dht).then_some(Entry(Self::ENTRY));
        let lsd = self.found == Found::Lsd;
        let source = fixture.source();
        let state = fixture.folder("sharer")?;
        let site = Site { inside: &lan.share, address: Lan::SHARE, state: &state, entry, lsd };
        let mut sharing = self.from.start(&site, Role::Share, &source, &fixture.data)?;
        self.wait_ready(&lan, &fixture, &mut sharing)?;

        let (state, out) = (fixture.folder("fetcher")?, fixture.folder("out")?);
        let link = match self.found {
            Found::Tracker => fixture.magnet.as_str(),
            Found::Dht | Found::Lsd => fixture.magnet.split("&tr=").next().unwrap_or_default(),
        };
        let site = Site { inside: &lan.fetch, address: Lan::FETCH, state: &state, entry, lsd };
        let before = lan.received_bytes()?;
        let begun = Instant::now();
        let what = if self.by_magnet { link } else { &source };
        // Some are given their task by another program, and are done with it before that has ended.
        let is_over = AtomicBool::new(false);
        let (fetching, seen) = std::thread::scope(|scope| {
            let wire = scope.spawn(|| self.watch_wire(&lan, (before, begun), limit, &is_over));
            let fetching = self.to.start(&site, Role::Fetch, what, &out);
            is_over.store(fetching.is_err(), Relaxed);
            (fetching, wire.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let mut fetching = fetching?;
        self.watch_files(&fixture, &out, begun, seen?, limit).map_err(|Unfinished(waited_for)| {
            let of = |process: &mut Process| {
                let end = if process.has_ended() { ", which ended" } else { "" };
                format!("{end}:\n{}", process.log())
            };
            let log = format!("{}{}\n{}{}", self.from.name(), of(&mut sharing), self.to.name(), of(&mut fetching));
            Error::Timeout { name: self.to.name().into(), waited_for: waited_for.into(), limit, log }
        })
    }

    /// What is at the third host.
    fn third(self, lan: &Lan, fixture: &Fixture) -> Result<Vec<Process>> {
        let mut processes = Vec::new();
        match self.found {
            Found::Tracker => {
                let mut command = anabranch::command(Some(&lan.third))?;
                command.args(["tracker", "--json", "--listen", &format!("{}:{TRACKER_PORT}", Lan::THIRD)]);
                processes.push(Process::spawn("anabranch tracker", &mut command)?);
            }
            Found::Dht => {
                lan.lead_to_nodes()?;
                for (number, node) in Lan::nodes().enumerate() {
                    // Each has a content of its own, and so nothing to do with the others but the table.
                    let other = fixture.folder("other")?.join(number.to_string());
                    std::fs::write(&other, number.to_string()).map_err(Error::file(&other))?;
                    // The first one's own entry leads nowhere: it waits to be asked.
                    let entry = if number == 0 { SocketAddrV4::new(Lan::THIRD, NOBODY_PORT) } else { Self::ENTRY };
                    let mut command = anabranch::command(Some(&lan.third))?;
                    command.arg("share").arg(&other).args(["--json", "--dht", "on"]);
                    command.args(["--listen", &node.to_string(), "--dht-node", &entry.to_string()]);
                    processes.push(Process::spawn("anabranch share", &mut command)?);
                }
            }
            Found::Lsd => {}
        }
        for process in &mut processes {
            process.wait_event("listening", READY_LIMIT)?;
        }
        Ok(processes)
    }

    /// Waits until who shares is to be found.
    fn wait_ready(self, lan: &Lan, fixture: &Fixture, sharing: &mut Process) -> Result<()> {
        let hash = fixture.wire_hash()?;
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let is_ready = match self.found {
                Found::Tracker => lan.third.enter(|| Ok(is_announced(&hash).unwrap_or(false)))?,
                Found::Dht => lan.third.enter(|| Ok(is_in_table(&hash)))?,
                Found::Lsd => lan.share.enter(|| Ok(TcpStream::connect((Lan::SHARE, LISTEN_PORT)).is_ok()))?,
            };
            if is_ready {
                std::thread::sleep(SETTLE);
                return Ok(());
            }
            if sharing.has_ended() || Instant::now() > deadline {
                let waited_for = format!("{} at the {}", self.from.name(), self.found.name());
                let (name, log) = (self.from.name().into(), sharing.log());
                return Err(Error::Timeout { name, waited_for, limit: READY_LIMIT, log });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// When the first byte of the content came, and when the last.
    fn watch_wire(
        self,
        lan: &Lan,
        (before, begun): (u64, Instant),
        limit: Duration,
        is_over: &AtomicBool,
    ) -> Result<[Option<Instant>; 2]> {
        lan.fetch.enter(|| {
            let (mut first, mut all) = (None, None);
            while begun.elapsed() < limit && all.is_none() && !is_over.load(Relaxed) {
                let (bytes, now) = (lan::received_here()?.saturating_sub(before), Instant::now());
                if bytes >= TALK_BYTES {
                    first.get_or_insert(now);
                }
                if bytes >= self.len {
                    all.get_or_insert(now);
                }
                std::thread::sleep(LOOK_EVERY);
            }
            Ok([first, all])
        })
    }

    fn watch_files(
        self,
        fixture: &Fixture,
        out: &Path,
        begun: Instant,
        [first, all]: [Option<Instant>; 2],
        limit: Duration,
    ) -> std::result::Result<Measured, Unfinished> {
        let first = first.ok_or(Unfinished("the first byte"))?;
        let all = all.ok_or(Unfinished("the last byte"))?;
        while fixture.check(out).is_err() {
            if begun.elapsed() > limit {
                return Err(Unfinished("the whole content, by its files"));
            }
            std::thread::sleep(CHECK_EVERY);
        }
        Ok(Measured { first_byte: first - begun, rest: all - first, len: self.len })
    }
}

/// What did not come in time.
struct Unfinished(&'static str);

/// Whether the tracker counts somebody who has all of it (BEP 48).
fn is_announced(hash: &[u8; 20]) -> std::io::Result<bool> {
    let escaped: String = hash.iter().map(|byte| format!("%{byte:02x}")).collect();
    let mut stream = TcpStream::connect((Lan::THIRD, TRACKER_PORT))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /scrape?info_hash={escaped} HTTP/1.1\r\nHost: tracker\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let key = b"8:completei";
    let at = answer.windows(key.len()).position(|part| part == key);
    Ok(at.and_then(|at| answer.get(at + key.len())).is_some_and(|digit| *digit != b'0'))
}

/// Whether one of the nodes names peers (BEP 5, "get_peers"): those next to the hash are told.
fn is_in_table(hash: &[u8; 20]) -> bool {
    Lan::nodes().any(|node| names_peers(node, hash).unwrap_or(false))
}

fn names_peers(node: SocketAddrV4, hash: &[u8; 20]) -> std::io::Result<bool> {
    let query =
        [&b"d1:ad2:id20:abcdefghij01234567899:info_hash20:"[..], &hash[..], b"e1:q9:get_peers2:roi1e1:t2:aa1:y1:qe"];
    let socket = UdpSocket::bind((Lan::THIRD, 0))?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    socket.send_to(&query.concat(), node)?;
    let mut answer = [0; 2000];
    let len = socket.recv(&mut answer)?;
    Ok(answer[..len].windows(8).any(|part| part == b"6:values"))
}

/// A command whose files are in a folder of its own, and nobody's settings apply.
fn at_home(mut command: Command, home: &Path) -> Command {
    command.env("HOME", home);
    for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    command
}
