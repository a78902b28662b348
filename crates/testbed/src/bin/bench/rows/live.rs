//! A live stream of 4 Mbit/s, whose source has an uplink of 12 Mbit/s, watched by many: each viewer is a process of its own, and its
//! player reads what that serves, at the stream's rate.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;
use anabranch_testbed::wire::{Shape, Wire};
use anabranch_testbed::{Error, Result, net};

use crate::report::Sample;
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(60);
/// Bytes a second of the stream, and of each viewer's uplink.
const STREAM_RATE: u64 = 500_000;
const VIEWER_RATE: u64 = 750_000;
const SOURCE_RATE_BITS: u64 = 12_000_000;
const SOURCE_RTT: Duration = Duration::from_millis(40);
/// Viewers come one after the other, and all watch so long after the last of them.
const JOIN_EVERY: Duration = Duration::from_millis(200);
const WATCH: Duration = Duration::from_secs(15);
/// A player that has nothing more goes on when it has this much again.
const BUFFER_AGAIN_BYTES: u64 = STREAM_RATE;
/// What of an answer is looked at together.
const READ_LEN: usize = 16 * 1024;

/// What became of one viewer.
struct Watched {
    /// From the start of its program until its player had the first byte.
    start: Duration,
    stalls: u32,
    /// How far behind the source it played, on average.
    behind_s: f64,
    /// Bytes of the film that it was not given: the viewer gave them up, and went on behind them.
    passed_over: u64,
}

/// The start of the slowest viewer, milliseconds; beside it the stalls of all, copies of the stream that the source sent, how far behind
/// the source they played on average, and how much of the film they passed over.
pub(super) fn watched_by(workspace: &mut Workspace, viewers: u32) -> Result<Sample> {
    net::need_root()?;
    let film = workspace.out()?.join("film");
    let lasts = JOIN_EVERY * viewers + WATCH + Duration::from_secs(2);
    make_film(&film, lasts)?;
    let wire = Wire::new(Shape::new(SOURCE_RATE_BITS, SOURCE_RTT))?;
    let mut command = anabranch::command(Some(&wire.left))?;
    command.args(["live", "--json", "--listen", &format!("{}:7000", Wire::LEFT), "--rate", &STREAM_RATE.to_string()]);
    let mut source = Process::spawn("anabranch live", command.arg("--input").arg(&film))?;
    let (started, began) = source.wait_event("started", LIMIT)?;
    let link = started["link"].as_str().unwrap_or_default().to_owned();
    std::thread::sleep(Duration::from_secs(1));
    let until = Instant::now() + JOIN_EVERY * viewers + WATCH;
    let watched: Vec<Watched> = wire.right.enter(|| {
        std::thread::scope(|scope| {
            let mut players = Vec::new();
            for _ in 0..viewers {
                players.push(scope.spawn(|| watch(&link, &wire, (began, until))));
                std::thread::sleep(JOIN_EVERY);
            }
            players
                .into_iter()
                .map(|player| player.join().unwrap_or_else(|_| Err(nonsense("a player broke off"))))
                .collect()
        })
    })?;
    let (ended, _) = source.wait_event("ended", lasts + LIMIT)?;
    let number = |field: &str| ended[field].as_f64().unwrap_or(f64::NAN);
    let usage = source.wait_success(LIMIT)?;
    let passed_over: u64 = watched.iter().map(|viewer| viewer.passed_over).sum();
    let watched_bytes = f64::from(viewers) * STREAM_RATE as f64 * WATCH.as_secs_f64();
    Ok(Sample {
        figure: watched.iter().map(|viewer| viewer.start).max().unwrap_or_default().as_secs_f64() * 1e3,
        cpu_share: Some(usage.cpu().as_secs_f64()),
        extra: Some(f64::from(watched.iter().map(|viewer| viewer.stalls).sum::<u32>())),
        more: vec![
            Some(number("uploaded") / number("bytes")),
            Some(watched.iter().map(|viewer| viewer.behind_s).sum::<f64>() / f64::from(viewers)),
            Some(100.0 * passed_over as f64 / watched_bytes),
        ],
        ..Sample::default()
    })
}

/// The byte of the film at a place: every four of them say where they are.
fn film_byte(at: u64) -> u8 {
    ((at / 4) as u32).to_be_bytes()[(at % 4) as usize]
}

fn make_film(path: &Path, lasts: Duration) -> Result<()> {
    let mut out = BufWriter::new(File::create(path).map_err(Error::file(path))?);
    let words = lasts.as_secs() * STREAM_RATE / 4;
    (0..words).try_for_each(|word| out.write_all(&(word as u32).to_be_bytes())).map_err(Error::file(path))
}

/// A viewer of a source that `began` then, and its player, which is inside the namespace as this thread is.
fn watch(link: &str, wire: &Wire, (began, until): (Instant, Instant)) -> Result<Watched> {
    let mut command = anabranch::command(Some(&wire.right))?;
    command.args(["play", link, "--json", "--listen", &format!("{}:0", Wire::RIGHT)]);
    command.args(["--limit-up", &VIEWER_RATE.to_string()]);
    let mut viewer = Process::spawn("anabranch play", &mut command)?;
    let (serving, _) = viewer.wait_event("serving", LIMIT)?;
    let mut body = Chunked::ask(serving["url"].as_str().unwrap_or_default())?;
    let mut bytes = vec![0; READ_LEN];
    let len = body.read(&mut bytes)?;
    let first = Instant::now();
    let mut player = Player::new(&bytes[..len], first)?;
    while Instant::now() < until {
        let len = body.read(&mut bytes)?;
        player.reads(&bytes[..len], Instant::now(), began)?;
    }
    let start = first.saturating_duration_since(viewer.started());
    viewer.stop()?;
    let behind_s = player.behind_s / f64::from(player.looks.max(1));
    Ok(Watched { start, stalls: player.stalls, behind_s, passed_over: player.passed_over })
}

/// Plays what it reads at the stream's rate, from the first byte on.
#[derive(Default)]
struct Player {
    /// Where in the film the bytes that it reads next are.
    at: u64,
    /// Since when it plays, from where on.
    playing: Option<(Instant, u64)>,
    /// Where it stood still last.
    stood_at: u64,
    stalls: u32,
    behind_s: f64,
    looks: u32,
    passed_over: u64,
    /// The beginning of a word that is not the next one of the film.
    word: Vec<u8>,
}

impl Player {
    /// Begins with these bytes.
    fn new(bytes: &[u8], now: Instant) -> Result<Self> {
        let word = *bytes.first_chunk::<4>().ok_or_else(|| nonsense("the stream ended before it began"))?;
        let at = u64::from(u32::from_be_bytes(word)) * 4;
        let mut player = Self { at, playing: Some((now, at)), stood_at: at, ..Self::default() };
        player.takes(bytes)?;
        Ok(player)
    }

    /// Gets these bytes of the film, of which the first was made when the source `began`.
    fn reads(&mut self, bytes: &[u8], now: Instant, began: Instant) -> Result<()> {
        if let Some((since, from)) = self.playing {
            let due = from as f64 / STREAM_RATE as f64 + now.saturating_duration_since(since).as_secs_f64();
            if due * STREAM_RATE as f64 > self.at as f64 {
                self.stalls += 1;
                (self.playing, self.stood_at) = (None, self.at);
            } else {
                self.behind_s += now.saturating_duration_since(began).as_secs_f64() - due;
                self.looks += 1;
            }
        }
        self.takes(bytes)?;
        if self.playing.is_none() && self.at - self.stood_at >= BUFFER_AGAIN_BYTES {
            self.playing = Some((now, self.stood_at));
        }
        Ok(())
    }

    fn takes(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Err(nonsense("the stream ended too soon"));
        }
        for byte in bytes {
            if self.word.is_empty() && *byte == film_byte(self.at) {
                self.at += 1;
                continue;
            }
            // Chunks are passed over whole, so that what follows begins with a word, which says where it is; of a word that is not the
            // next one, the first bytes may be the same.
            if self.word.is_empty() {
                let same = self.at % 4;
                self.at -= same;
                self.word.extend((self.at..self.at + same).map(film_byte));
            }
            self.word.push(*byte);
            let Some(word) = self.word.first_chunk::<4>() else { continue };
            let next = u64::from(u32::from_be_bytes(*word)) * 4;
            if next <= self.at {
                return Err(nonsense(format!("what follows byte {} of the film is that from {next} on", self.at)));
            }
            self.passed_over += next - self.at;
            self.at = next + 4;
            self.word.clear();
        }
        Ok(())
    }
}

/// A body in chunks (RFC 9112 section 7.1).
struct Chunked {
    stream: BufReader<TcpStream>,
    left: usize,
}

impl Chunked {
    /// Asks for it; what comes next is its first byte.
    fn ask(url: &str) -> Result<Self> {
        let (host, path) =
            url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).ok_or_else(|| nonsense(url))?;
        let mut stream = TcpStream::connect(host).map_err(nonsense)?;
        stream.set_read_timeout(Some(LIMIT)).map_err(nonsense)?;
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n").map_err(nonsense)?;
        let mut body = Self { stream: BufReader::new(stream), left: 0 };
        while !body.line()?.is_empty() {}
        Ok(body)
    }

    /// Some of its next bytes; none at its end.
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        if self.left == 0 {
            let line = self.line()?;
            self.left = usize::from_str_radix(&line, 16).map_err(nonsense)?;
        }
        let len = self.left.min(bytes.len());
        let read = self.stream.read(&mut bytes[..len]).map_err(nonsense)?;
        self.left -= read;
        if self.left == 0 && read > 0 {
            self.line()?;
        }
        Ok(read)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(nonsense)?;
        Ok(line.trim_end().to_owned())
    }
}

fn nonsense(what: impl std::fmt::Display) -> Error {
    Error::Nonsense { name: "the player".into(), what: what.to_string() }
}
