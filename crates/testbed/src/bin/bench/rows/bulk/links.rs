//! Over links with a rate and a delay: alone, with losses, beside TCP, to several.

use std::fs::{self, File};
use std::io::{Read, copy};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::{Line, Process};
use anabranch_testbed::wire::{Attack, Shape, Wire};
use anabranch_testbed::{Error, Result, data, net};
use serde_json::Value;

use super::hosts::{self, LIMIT, Sending, gibibytes, mebibytes, megabits};
use super::peers::Iperf;
use crate::report::Sample;
use crate::workspace::Workspace;

/// The long link.
const LONG_RATE_BITS: u64 = 1_000_000_000;
const LONG_RTT: Duration = Duration::from_millis(194);
/// What QUIC is given to send: more than it gets to.
const QUIC_LEN: &str = "1000000000000";
/// Of the link's rate, headers included, that it has to reach.
const REACHED: f64 = 0.85;
/// Over which the rate is looked at, in turns of [`LOOK_EVERY`].
const LOOKS: usize = 5;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The link that is shared with TCP.
const FAIR_RATE_BITS: u64 = 100_000_000;
const FAIR_RTT: Duration = Duration::from_millis(40);
/// How long both are there at most, of which the last three quarters count.
const FAIR_SECONDS_MAX: u64 = 48;

/// The link to several.
const SEVERAL_RATE_BITS: u64 = 1_000_000_000;
const SEVERAL_RTT: Duration = Duration::from_millis(10);
/// What goes to each at most.
const SEVERAL_LEN_MAX: u64 = 512 << 20;
/// What passes between two looks without content.
const SEVERAL_SAID: u64 = 10_000;

/// The link on which somebody is.
const HOSTILE_RATE_BITS: u64 = 400_000_000;
const HOSTILE_RTT: Duration = Duration::from_millis(4);
/// What goes over it at most.
const HOSTILE_LEN_MAX: u64 = 256 << 20;

fn wire(rate_bits: u64, rtt: Duration, loss: f64) -> Result<Wire> {
    net::need_root()?;
    Wire::new(Shape { loss, ..Shape::new(rate_bits, rtt) })
}

/// One flow of TCP over the long link.
pub(super) fn long_tcp(_: &mut Workspace, congestion: &str, loss: f64) -> Result<Sample> {
    let wire = wire(LONG_RATE_BITS, LONG_RTT, loss)?;
    let iperf = Iperf::start([&wire.left, &wire.right], Wire::RIGHT, congestion, &["-t", "15", "-O", "5"])?;
    let sample = iperf.finish(None)?;
    Ok(Sample { figure: sample.figure * 1e8 / LONG_RATE_BITS as f64, cpu_fetch: None, cpu_share: None, ..sample })
}

/// One stream of QUIC, as the program's torrents have it, over the long link.
pub(super) fn long_quic(workspace: &mut Workspace, congestion: &str, loss: f64) -> Result<Sample> {
    let wire = wire(LONG_RATE_BITS, LONG_RTT, loss)?;
    let floor = workspace.floor();
    // IPv4 and UDP take 28 bytes.
    let mtu = "1472";
    let listen = format!("{}:7000", Wire::LEFT);
    let mut sender = wire.left.command(&floor);
    let mut sender = Process::spawn("sender", sender.args(["quic-send", QUIC_LEN, &listen, congestion, mtu]))?;
    sender.wait_event("listening", LIMIT)?;
    let mut receiver = wire.right.command(&floor);
    receiver.args(["quic-rate", &listen, congestion, mtu, &format!("{}:0", Wire::RIGHT), "5", "15"]);
    let (lines, _) = Process::run("receiver", &mut receiver, LIMIT)?;
    sender.stop()?;
    let rate_bits = lines.iter().find_map(|line| line.json()["rate_bits"].as_f64());
    let rate_bits = rate_bits.ok_or_else(|| Error::Nonsense { name: "QUIC".into(), what: "it told no rate".into() })?;
    Ok(Sample { figure: rate_bits * 1e2 / LONG_RATE_BITS as f64, ..Sample::default() })
}

/// The content over the long link.
pub(super) fn long(workspace: &mut Workspace, loss: f64) -> Result<Sample> {
    let wire = wire(LONG_RATE_BITS, LONG_RTT, loss)?;
    let (keys, out) = (workspace.keep("keys")?, workspace.out()?);
    let listen = format!("{}:7000", Wire::LEFT);
    let mut sending = Sending::start(&keys, &workspace.content, &wire.left, &[&listen], &[])?;
    let mut receiving = hosts::receive(&keys, &sending.ticket, &wire.right, &out)?;
    let (started, mut looks, mut reached) = (Instant::now(), vec![0; LOOKS], None);
    while !receiving.has_ended() {
        thread::sleep(LOOK_EVERY);
        looks.push(wire.counts()[0].bytes);
        let bits = (looks[looks.len() - 1] - looks[looks.len() - 1 - LOOKS]) as f64 * 8.0;
        if bits > REACHED * LONG_RATE_BITS as f64 * (LOOK_EVERY * LOOKS as u32).as_secs_f64() {
            reached.get_or_insert(started.elapsed().as_secs_f64());
        }
    }
    let fetch = receiving.wait_success(LIMIT)?;
    let share = sending.process.wait_success(LIMIT)?;
    workspace.check(&out.join("content.bin"))?;
    let events: Vec<Value> = receiving.rest().iter().map(Line::json).collect();
    let half = events.iter().find(|event| event["bytes_done"].as_u64() >= Some(workspace.len / 2));
    let end = events.iter().find(|event| event["event"] == "finished");
    let (Some(half), Some(end)) = (half, end) else { return Err(no_progress()) };
    let late = workspace.len - half["bytes_done"].as_u64().unwrap_or(0);
    let rate = megabits(late, time_of(end) - time_of(half));
    Ok(Sample {
        figure: rate * 1e8 / LONG_RATE_BITS as f64,
        cpu_fetch: Some(fetch.cpu().as_secs_f64()),
        cpu_share: Some(share.cpu().as_secs_f64()),
        rss_mib: Some(mebibytes(fetch.rss_bytes_max)),
        extra: reached,
        more: vec![Some(megabits(workspace.len, fetch.wall.as_secs_f64()))],
    })
}

fn time_of(event: &Value) -> f64 {
    event["time"].as_f64().unwrap_or(f64::NAN)
}

fn no_progress() -> Error {
    Error::Nonsense { name: "anabranch receive".into(), what: "it was over before its progress could be seen".into() }
}

/// The content over `paths` paths, all of them through one link, beside one flow of TCP.
pub(super) fn fair(workspace: &mut Workspace, paths: usize) -> Result<Sample> {
    net::need_root()?;
    let wire = Wire::new(Shape { by_burst: false, ..Shape::new(FAIR_RATE_BITS, FAIR_RTT) })?;
    let (keys, out) = (workspace.keep("keys")?, workspace.out()?);
    let addresses: Vec<String> = (0..paths).map(|path| format!("10.99.0.{}", 1 + 10 * path)).collect();
    for further in &addresses[1..] {
        wire.left.add_address("wire0", &format!("{further}/24"))?;
    }
    let listen: Vec<String> = addresses.iter().map(|address| format!("{address}:7000")).collect();
    let listen: Vec<&str> = listen.iter().map(String::as_str).collect();
    // Never through before TCP is.
    let seconds = (workspace.len * 8 / FAIR_RATE_BITS).saturating_sub(5).clamp(8, FAIR_SECONDS_MAX);
    let (counted, skipped) = (seconds - seconds / 4, seconds / 4);
    let iperf = Iperf::start(
        [&wire.left, &wire.right],
        Wire::RIGHT,
        "cubic",
        &["-t", &counted.to_string(), "-O", &skipped.to_string()],
    )?;
    let mut sending = Sending::start(&keys, &workspace.content, &wire.left, &listen, &[])?;
    let mut receiving = hosts::receive(&keys, &sending.ticket, &wire.right, &out)?;
    let theirs = iperf.finish(None)?.figure;
    let end = SystemTime::now().duration_since(UNIX_EPOCH).map_or(f64::NAN, |since| since.as_secs_f64());
    let events = receiving.rest();
    receiving.stop()?;
    sending.process.stop()?;
    let events = events.iter().map(Line::json).filter(|event| event["event"] == "progress");
    let events: Vec<Value> = events.filter(|event| time_of(event) > end - counted as f64).collect();
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return Err(no_progress()) };
    let done = |event: &Value| event["bytes_done"].as_u64().unwrap_or(0);
    let ours = megabits(done(last) - done(first), time_of(last) - time_of(first));
    let used =
        last["paths"].as_array().map_or(0, |paths| paths.iter().filter(|path| path["state"] == "active").count());
    Ok(Sample {
        figure: 100.0 * ours / (ours + theirs),
        extra: Some((ours + theirs).powi(2) / (2.0 * (ours * ours + theirs * theirs))),
        more: vec![Some(ours + theirs), Some(used as f64)],
        ..Sample::default()
    })
}

/// A file over a link on which somebody does so to every packet, in both directions.
pub(super) fn hostile(workspace: &mut Workspace, attack: Option<Attack>) -> Result<Sample> {
    net::need_root()?;
    let wire = Wire::attacked(Shape::new(HOSTILE_RATE_BITS, HOSTILE_RTT), attack)?;
    let (keys, out) = (workspace.keep("keys")?, workspace.out()?);
    let content = part(workspace, HOSTILE_LEN_MAX)?;
    let len = fs::metadata(&content).map_err(Error::file(&content))?.len();
    let mut sending = Sending::start(&keys, &content, &wire.left, &[&format!("{}:7000", Wire::LEFT)], &[])?;
    let mut receiving = hosts::receive(&keys, &sending.ticket, &wire.right, &out)?;
    let fetch = receiving.wait_success(LIMIT)?;
    let share = sending.process.wait_success(LIMIT)?;
    same(&content, &out.join("part.bin"))?;
    let cpu = [fetch.cpu(), share.cpu()].map(|cpu| cpu.as_secs_f64());
    Ok(Sample {
        figure: megabits(len, fetch.wall.as_secs_f64()),
        cpu_fetch: Some(cpu[0]),
        cpu_share: Some(cpu[1]),
        rss_mib: Some(mebibytes(fetch.rss_bytes_max)),
        extra: Some((cpu[0] + cpu[1]) / gibibytes(len)),
        more: vec![Some(mebibytes(share.rss_bytes_max))],
    })
}

fn same(wanted: &Path, got: &Path) -> Result<()> {
    if data::same_file(wanted, got)? {
        return Ok(());
    }
    Err(Error::Nonsense { name: "the transfer".into(), what: format!("{} differs", got.display()) })
}

/// A file to several receivers behind one link.
pub(super) fn several(workspace: &mut Workspace, receivers: usize) -> Result<Sample> {
    let wire = wire(SEVERAL_RATE_BITS, SEVERAL_RTT, 0.0)?;
    let (keys, out) = (workspace.keep("keys")?, workspace.out()?);
    let content = part(workspace, SEVERAL_LEN_MAX)?;
    let len = fs::metadata(&content).map_err(Error::file(&content))?.len();
    let mut command = anabranch::command(Some(&wire.left))?;
    command.arg("send").arg(&content).args(["--json", "--key"]).arg(keys.join("sender"));
    let mut receiving = Vec::new();
    for receiver in 0..receivers {
        let mut there = anabranch::command(Some(&wire.right))?;
        there.args(["receive", "--json", "--listen", &format!("{}:{}", Wire::RIGHT, 7000 + receiver), "--key"]);
        there.arg(keys.join(format!("receiver{receiver}"))).arg("-o").arg(out.join(receiver.to_string()));
        let mut process = Process::spawn("anabranch receive", &mut there)?;
        let (event, _) = process.wait_event("ticket", LIMIT)?;
        command.args(["--to", event["ticket"].as_str().unwrap_or_default()]);
        receiving.push(process);
    }
    let (started, carried_before) = (Instant::now(), wire.counts()[0].bytes);
    let mut sending = Process::spawn("anabranch send", &mut command)?;
    let (mut read, mut moved) = (0, (0, Duration::MAX));
    while !sending.has_ended() {
        read = bytes_read(sending.pid()).unwrap_or(read);
        let carried = wire.counts()[0].bytes - carried_before;
        // What is said once all is there does not fill the link.
        if carried > moved.0 + SEVERAL_SAID {
            moved = (carried, started.elapsed());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let share = sending.wait_success(LIMIT)?;
    for (receiver, mut process) in receiving.into_iter().enumerate() {
        process.wait_success(LIMIT)?;
        let got = out.join(receiver.to_string()).join("part.bin");
        same(&content, &got)?;
    }
    let full = 8e2 * moved.0 as f64 / (moved.1.as_secs_f64() * SEVERAL_RATE_BITS as f64);
    let rate = megabits(len * receivers as u64, share.wall.as_secs_f64());
    Ok(Sample {
        figure: rate * 1e8 / SEVERAL_RATE_BITS as f64,
        extra: Some(read as f64 / len as f64),
        more: vec![Some(mebibytes(share.rss_bytes_max)), Some(full)],
        ..Sample::default()
    })
}

/// At most so many of the content's first bytes as a file of its own.
fn part(workspace: &Workspace, len_max: u64) -> Result<PathBuf> {
    let path = workspace.keep(&format!("part-{len_max}"))?.join("part.bin");
    if !path.exists() {
        let from = File::open(&workspace.content).map_err(Error::file(&workspace.content))?;
        let mut to = File::create(&path).map_err(Error::file(&path))?;
        copy(&mut from.take(len_max), &mut to).map_err(Error::file(&path))?;
    }
    Ok(path)
}

/// Bytes that a process has read so far, of files and from sockets.
fn bytes_read(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}
