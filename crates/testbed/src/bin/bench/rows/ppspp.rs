//! Streamed content: a file by PPSPP over loopback, and a seek while a film arrives over a long link.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::{Line, Process};
use anabranch_testbed::wire::{Shape, Wire};
use anabranch_testbed::{Error, Result, net};

use crate::report::Sample;
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(600);
/// How long the floor is measured.
const FLOOR_TIME_S: f64 = 4.0;
/// What a datagram has beside its chunk while chunks flow: the channel, the head of the chunk, and nine digests of SHA-256.
const BESIDE_CHUNK_LEN: u32 = 4 + 17 + 9 * 41;
const IP_UDP_LEN: u32 = 28;
/// The link of the row with seeks.
const SEEK_RATE_BITS: u64 = 50_000_000;
const SEEK_RTT: Duration = Duration::from_millis(40);
/// Seeks of one run, and bytes that are compared after each: what a player decodes its first picture from.
const SEEKS: usize = 10;
const SEEK_READ_BYTES: usize = 256 * 1024;

/// `share --ppspp` of the workspace's content, ready, and its link.
pub(super) fn share(
    workspace: &Workspace,
    listen: &str,
    inside: Option<&Wire>,
    chunk: &str,
) -> Result<(Process, String)> {
    let mut command = anabranch::command(inside.map(|wire| &wire.left))?;
    command.args(["share", "--ppspp", "--json", "--listen", listen, "--chunk-length", chunk]);
    let mut process = Process::spawn("anabranch share", command.arg(workspace.data.join("content.bin")))?;
    let (started, _) = process.wait_event("started", LIMIT)?;
    let link = started["link"].as_str().unwrap_or_default().to_owned();
    Ok((process, link))
}

/// Datagrams as long as those of chunks with their digests, by UDP alone, in bursts, and nothing done to them: rate of what would be chunks.
pub(super) fn floor(workspace: &mut Workspace, chunk_len: u32) -> Result<Sample> {
    // Nobody else takes the port in between, on a machine that measures.
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).map_err(nonsense)?;
    let port = free.port().to_string();
    let mut receiver = Process::spawn("UDP receiver", Command::new(workspace.floor()).args(["udp-recv", &port]))?;
    receiver.wait_event("listening", LIMIT)?;
    let mtu = (chunk_len + BESIDE_CHUNK_LEN + IP_UDP_LEN).to_string();
    let mut sender = Command::new(workspace.floor());
    sender.args(["udp-send", &free.to_string(), &mtu, &FLOOR_TIME_S.to_string()]);
    let (lines, share) = Process::run("UDP sender", &mut sender, LIMIT)?;
    let fetch = receiver.stop()?;
    let event = lines.iter().map(Line::json).find(|event| event["event"] == "finished").unwrap_or_default();
    let (bytes, seconds) = (event["arrived"].as_u64().unwrap_or(0), event["seconds"].as_f64().unwrap_or(f64::NAN));
    let payload = bytes as f64 * f64::from(chunk_len) / f64::from(chunk_len + BESIDE_CHUNK_LEN);
    let (cpu_fetch, cpu_share) = (fetch.cpu().as_secs_f64(), share.cpu().as_secs_f64());
    Ok(Sample {
        figure: payload * 8e-6 / seconds,
        extra: Some((cpu_fetch + cpu_share) / (payload / f64::from(1 << 30))),
        ..Sample::default()
    })
}

/// One seeder to one leecher, everything verified: payload rate; beside it CPU seconds of both ends for a GiB.
pub(super) fn loopback(workspace: &mut Workspace, chunk: &str) -> Result<Sample> {
    let (mut seeder, link) = share(workspace, "127.0.0.1:0", None, chunk)?;
    let cpu_before = seeder.cpu_so_far().unwrap_or_default();
    let out = workspace.out()?;
    let mut command = anabranch::command(None)?;
    command.args(["get", &link, "--json", "--listen", "127.0.0.1:0", "-o"]).arg(&out);
    let mut leecher = Process::spawn("anabranch get", &mut command)?;
    let (finished, _) = leecher.wait_event("finished", LIMIT)?;
    let usage = leecher.wait_success(LIMIT)?;
    let cpu_share = seeder.stop()?.cpu().saturating_sub(cpu_before).as_secs_f64();
    workspace.check(&out.join("content.bin"))?;
    let seconds = finished["seconds"].as_f64().unwrap_or(f64::NAN);
    let cpu_fetch = usage.cpu().as_secs_f64();
    Ok(Sample {
        figure: workspace.len as f64 * 8e-6 / seconds,
        cpu_fetch: Some(cpu_fetch),
        cpu_share: Some(cpu_share),
        rss_mib: Some(usage.rss_bytes_max as f64 / f64::from(1 << 20)),
        extra: Some((cpu_fetch + cpu_share) / (workspace.len as f64 / f64::from(1 << 30))),
        ..Sample::default()
    })
}

/// Seeks into parts of a film that are not there yet, while it arrives over a link of 50 Mbit/s and 40 ms: from the request to the first
/// byte of the answer's body, the slowest; beside it the median. What follows is compared.
pub(super) fn seek(workspace: &mut Workspace) -> Result<Sample> {
    net::need_root()?;
    let wire = Wire::new(Shape::new(SEEK_RATE_BITS, SEEK_RTT))?;
    let (_seeder, link) = share(workspace, &format!("{}:7000", Wire::LEFT), Some(&wire), "1KiB")?;
    let out = workspace.out()?;
    let mut command = anabranch::command(Some(&wire.right))?;
    command.args(["play", &link, "--json", "-o"]).arg(&out).args(["--listen", &format!("{}:0", Wire::RIGHT)]);
    let mut player = Process::spawn("anabranch play", &mut command)?;
    let (serving, _) = player.wait_event("serving", LIMIT)?;
    let url = serving["url"].as_str().unwrap_or_default().to_owned();
    let film = workspace.data.join("content.bin");
    let len = workspace.len;
    let mut took_ms = wire.right.enter(|| {
        // A player reads from the beginning meanwhile.
        let reading = ask(&url, 0)?;
        let mut took_ms = Vec::new();
        for seek in 0..SEEKS {
            // From the end on backwards: nothing of it was near what was read.
            let from = len - (len / (2 * SEEKS as u64)) * (seek as u64 + 1);
            let started = Instant::now();
            let mut body = ask(&url, from)?;
            let mut first = [0];
            body.read_exact(&mut first).map_err(nonsense)?;
            took_ms.push(started.elapsed().as_secs_f64() * 1e3);
            compare(&film, from, first[0], &mut body)?;
        }
        drop(reading);
        Ok(took_ms)
    })?;
    let usage = player.stop()?;
    took_ms.sort_by(f64::total_cmp);
    Ok(Sample {
        figure: took_ms[SEEKS - 1],
        extra: Some(took_ms[SEEKS / 2]),
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        rss_mib: Some(usage.rss_bytes_max as f64 / f64::from(1 << 20)),
        ..Sample::default()
    })
}

/// Asks for the film from a byte on: the body, once its head was read.
fn ask(url: &str, from: u64) -> Result<BufReader<TcpStream>> {
    let (host, path) =
        url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).ok_or_else(|| nonsense(url))?;
    let mut stream = TcpStream::connect(host).map_err(nonsense)?;
    stream.set_read_timeout(Some(LIMIT)).map_err(nonsense)?;
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nRange: bytes={from}-\r\n\r\n").map_err(nonsense)?;
    let mut body = BufReader::new(stream);
    let mut line = String::new();
    while body.read_line(&mut line).map_err(nonsense)? > 2 {
        if line.starts_with("HTTP/") && !line.contains(" 206 ") {
            return Err(nonsense(line.trim()));
        }
        line.clear();
    }
    Ok(body)
}

fn compare(film: &Path, from: u64, first: u8, body: &mut impl Read) -> Result<()> {
    let file = File::open(film).map_err(Error::file(film))?;
    let len = file.metadata().map_err(Error::file(film))?.len();
    let mut wanted = vec![0; SEEK_READ_BYTES.min((len - from) as usize)];
    file.read_exact_at(&mut wanted, from).map_err(Error::file(film))?;
    let mut got = vec![first; wanted.len()];
    body.read_exact(&mut got[1..]).map_err(nonsense)?;
    if got == wanted { Ok(()) } else { Err(nonsense(format!("the bytes from {from} on differ"))) }
}

fn nonsense(what: impl std::fmt::Display) -> Error {
    Error::Nonsense { name: "the player".into(), what: what.to_string() }
}
