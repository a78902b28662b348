//! Downloads. The clock of libtorrent runs from adding the torrent to its last piece checked, without Python's start;
//! that of the others from the start of the process to the word that all is there. CPU of a seeder counts from when
//! it is ready: what it checks before is another row's business.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anabranch_testbed::net::Namespace;
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::peers::rqbit::Rqbit;
use anabranch_testbed::process::Process;
use anabranch_testbed::wire::{Shape, Wire};
use anabranch_testbed::{Error, Result};

use crate::report::Sample;
use crate::stage::{PIECE_LENGTH, Stage};

const LIMIT: Duration = Duration::from_secs(300);
const ANY: &str = "127.0.0.1:0";
/// Bytes over the long wire: slow start takes 2 s, this takes 9 s more.
const WIRE_LEN_MAX: u64 = 1 << 30;
const WIRE_PORT: u16 = 7000;

/// A seeder that is ready, and the CPU time it had spent by then.
struct Seeder {
    process: Process,
    address: SocketAddr,
    cpu_before: Duration,
}

impl Seeder {
    fn new(process: Process, address: SocketAddr) -> Self {
        let cpu_before = process.cpu_so_far().unwrap_or_default();
        Self { process, address, cpu_before }
    }

    /// Stops it; CPU seconds since it was ready.
    fn stop(mut self) -> Result<f64> {
        Ok(self.process.stop()?.cpu().saturating_sub(self.cpu_before).as_secs_f64())
    }
}

fn libtorrent_seeder(torrent: &Path, data: &Path, inside: Option<&Namespace>, listen: &str) -> Result<Seeder> {
    let peer = Libtorrent::seed(torrent, data, inside, listen)?;
    Ok(Seeder::new(peer.process, peer.address))
}

fn our_seeder(torrent: &Path, data: &Path, inside: Option<&Namespace>, listen: &str) -> Result<Seeder> {
    let (ours, address) = Anabranch::share(torrent, Some(data), listen, inside, &[])?;
    Ok(Seeder::new(ours.process, address))
}

/// Lets libtorrent fetch.
fn libtorrent_fetches(
    torrent: &Path,
    out: &Path,
    from: SocketAddr,
    inside: Option<&Namespace>,
    listen: &str,
) -> Result<Sample> {
    let mut leecher = Libtorrent::leech(&torrent.display().to_string(), out, &[from], inside, listen)?;
    let finished = leecher.wait_finished(LIMIT)?;
    Ok(Sample {
        figure: finished.seconds,
        cpu_fetch: Some(finished.usage.cpu().saturating_sub(leecher.startup_cpu).as_secs_f64()),
        rss_mib: Some(mebibytes(finished.usage.rss_bytes_max)),
        ..Sample::default()
    })
}

/// Lets ours fetch.
fn we_fetch(torrent: &Path, out: &Path, from: SocketAddr, inside: Option<&Namespace>) -> Result<Sample> {
    let mut ours = Anabranch::get(&torrent.display().to_string(), out, &[from], inside, &[])?;
    let started = ours.process.started();
    let (_, at) = ours.process.wait_event("finished", LIMIT)?;
    let usage = ours.process.wait_success(LIMIT)?;
    Ok(Sample {
        figure: (at - started).as_secs_f64(),
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        rss_mib: Some(mebibytes(usage.rss_bytes_max)),
        ..Sample::default()
    })
}

pub fn libtorrent_to_itself(stage: &mut Stage, version: &str) -> Result<Sample> {
    let (torrent, out) = (stage.torrent(version)?, stage.out()?);
    let inside = stage.inside.as_ref();
    let seeder = libtorrent_seeder(&torrent, &stage.data, inside, ANY)?;
    let sample = libtorrent_fetches(&torrent, &out, seeder.address, inside, ANY)?;
    finish(stage, seeder, sample, &out)
}

pub fn libtorrent_to_ours(stage: &mut Stage, version: &str) -> Result<Sample> {
    let (torrent, out) = (stage.torrent(version)?, stage.out()?);
    let inside = stage.inside.as_ref();
    let seeder = libtorrent_seeder(&torrent, &stage.data, inside, ANY)?;
    let sample = we_fetch(&torrent, &out, seeder.address, inside)?;
    finish(stage, seeder, sample, &out)
}

pub fn ours_to_libtorrent(stage: &mut Stage, version: &str) -> Result<Sample> {
    let (torrent, out) = (stage.torrent(version)?, stage.out()?);
    let inside = stage.inside.as_ref();
    let seeder = our_seeder(&torrent, &stage.data, inside, ANY)?;
    let sample = libtorrent_fetches(&torrent, &out, seeder.address, inside, ANY)?;
    finish(stage, seeder, sample, &out)
}

pub fn ours_to_itself(stage: &mut Stage, version: &str) -> Result<Sample> {
    let (torrent, out) = (stage.torrent(version)?, stage.out()?);
    let inside = stage.inside.as_ref();
    let seeder = our_seeder(&torrent, &stage.data, inside, ANY)?;
    let sample = we_fetch(&torrent, &out, seeder.address, inside)?;
    finish(stage, seeder, sample, &out)
}

/// Stops the seeder, adds its cost and compares the content.
fn finish(stage: &Stage, seeder: Seeder, sample: Sample, out: &Path) -> Result<Sample> {
    let cpu_share = Some(seeder.stop()?);
    stage.check(&out.join("content.bin"))?;
    Ok(Sample { cpu_share, ..sample })
}

/// rqbit checks what it shares when it starts; it is ready once it says so.
fn rqbit_seeder(torrent: &Path, data: &Path, inside: Option<&Namespace>, listen: &str) -> Result<Seeder> {
    let mut peer = Rqbit::start(&torrent.display().to_string(), data, &[], false, inside, listen)?;
    peer.wait_checked(LIMIT)?;
    Ok(Seeder::new(peer.process, peer.address.into()))
}

fn rqbit_fetches(
    torrent: &Path,
    out: &Path,
    from: SocketAddr,
    inside: Option<&Namespace>,
    listen: &str,
) -> Result<Sample> {
    let SocketAddr::V4(from) = from else {
        return Err(Error::Nonsense { name: "the seeder".into(), what: format!("address {from}") });
    };
    let mut leecher = Rqbit::start(&torrent.display().to_string(), out, &[from], true, inside, listen)?;
    let started = leecher.process.started();
    let finished = leecher.wait_finished(LIMIT)?;
    let usage = leecher.process.wait_success(LIMIT)?;
    Ok(Sample {
        figure: (finished - started).as_secs_f64(),
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        rss_mib: Some(mebibytes(usage.rss_bytes_max)),
        ..Sample::default()
    })
}

pub fn rqbit_to_itself(stage: &mut Stage) -> Result<Sample> {
    let (torrent, out) = (stage.torrent("1")?, stage.out()?);
    let inside = stage.inside.as_ref();
    let seeder = rqbit_seeder(&torrent, &stage.data, inside, "127.0.0.1")?;
    let sample = rqbit_fetches(&torrent, &out, seeder.address, inside, "127.0.0.1")?;
    finish(stage, seeder, sample, &out)
}

pub fn floor(stage: &mut Stage) -> Result<Sample> {
    let out = stage.out()?;
    let target = out.join("content.bin");
    let mut sender = Process::spawn("floor sender", stage.floor_command().arg("send").arg(&stage.content).arg(ANY))?;
    let (event, _) = sender.wait_event("listening", LIMIT)?;
    let address = event["address"].as_str().unwrap_or_default().to_owned();
    let mut command = stage.floor_command();
    command.arg("recv").arg(&target).args([address, PIECE_LENGTH.to_string()]);
    let (_, usage) = Process::run("floor receiver", &mut command, LIMIT)?;
    let cpu_share = Some(sender.wait_success(LIMIT)?.cpu().as_secs_f64());
    stage.check(&target)?;
    Ok(Sample {
        figure: usage.wall.as_secs_f64(),
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        cpu_share,
        rss_mib: Some(mebibytes(usage.rss_bytes_max)),
        ..Sample::default()
    })
}

/// A fresh long wire. The content of the rows may be larger than is needed here; the torrent stays the same, so only
/// the bare contender sends less.
fn wire() -> Result<Wire> {
    if !anabranch_testbed::net::available() {
        let remedy = "run as root: namespaces and TUN devices need it".into();
        return Err(Error::Missing { what: "the right to make networks".into(), remedy });
    }
    Wire::new(Shape::new(1_000_000_000, Duration::from_millis(100)))
}

/// Watches the wire while `work` runs: payload rate between a half and 95 % of the bytes, Mbit/s.
fn watch(wire: &Wire, len: u64, work: impl FnOnce() -> Result<Sample> + Send) -> Result<Sample> {
    std::thread::scope(|scope| {
        let working = scope.spawn(work);
        let (mut half, mut late) = (None, None);
        while !working.is_finished() {
            let (now, bytes) = (Instant::now(), wire.counts()[0].bytes);
            if bytes >= len / 2 {
                half.get_or_insert((now, bytes));
            }
            if bytes >= len / 20 * 19 {
                late.get_or_insert((now, bytes));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let sample = working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let (Some((half_at, half)), Some((late_at, late))) = (half, late) else {
            return Err(Error::Nonsense { name: "the wire".into(), what: "fewer bytes than the content".into() });
        };
        // Headers are 52 bytes of every 1500.
        let payload = (late - half) as f64 * 1448.0 / 1500.0;
        let rate = payload * 8.0 / 1e6 / (late_at - half_at).as_secs_f64().max(1e-3);
        Ok(Sample { figure: rate, extra: Some(sample.figure), ..sample })
    })
}

fn at(address: &str) -> String {
    format!("{address}:{WIRE_PORT}")
}

pub fn bare_over_wire(stage: &mut Stage) -> Result<Sample> {
    let (wire, len) = (wire()?, stage.len.min(WIRE_LEN_MAX));
    let (floor, bytes) = (stage.floor(), len.to_string());
    watch(&wire, len, || {
        let mut sender = wire.left.command(&floor);
        let mut sender = Process::spawn("sender", sender.args(["tcp-send", &bytes, &at(Wire::LEFT)]))?;
        sender.wait_event("listening", LIMIT)?;
        let mut receiver = wire.right.command(&floor);
        let (_, usage) = Process::run("receiver", receiver.args(["tcp-recv", &bytes, &at(Wire::LEFT)]), LIMIT)?;
        Ok(Sample { figure: usage.wall.as_secs_f64(), cpu_fetch: Some(usage.cpu().as_secs_f64()), ..Sample::default() })
    })
}

pub fn libtorrent_over_wire(stage: &mut Stage) -> Result<Sample> {
    let (wire, torrent, out) = (wire()?, stage.torrent("1")?, stage.out()?);
    let sample = watch(&wire, stage.len, || {
        let seeder = libtorrent_seeder(&torrent, &stage.data, Some(&wire.left), &at(Wire::LEFT))?;
        let sample = libtorrent_fetches(&torrent, &out, seeder.address, Some(&wire.right), &at(Wire::RIGHT))?;
        Ok(Sample { cpu_share: Some(seeder.stop()?), ..sample })
    })?;
    stage.check(&out.join("content.bin"))?;
    Ok(sample)
}

pub fn rqbit_over_wire(stage: &mut Stage) -> Result<Sample> {
    let (wire, torrent, out) = (wire()?, stage.torrent("1")?, stage.out()?);
    let sample = watch(&wire, stage.len, || {
        let seeder = rqbit_seeder(&torrent, &stage.data, Some(&wire.left), Wire::LEFT)?;
        let sample = rqbit_fetches(&torrent, &out, seeder.address, Some(&wire.right), Wire::RIGHT)?;
        Ok(Sample { cpu_share: Some(seeder.stop()?), ..sample })
    })?;
    stage.check(&out.join("content.bin"))?;
    Ok(sample)
}

pub fn ours_over_wire(stage: &mut Stage) -> Result<Sample> {
    let (wire, torrent, out) = (wire()?, stage.torrent("1")?, stage.out()?);
    let sample = watch(&wire, stage.len, || {
        let seeder = our_seeder(&torrent, &stage.data, Some(&wire.left), &at(Wire::LEFT))?;
        let sample = we_fetch(&torrent, &out, seeder.address, Some(&wire.right))?;
        Ok(Sample { cpu_share: Some(seeder.stop()?), ..sample })
    })?;
    stage.check(&out.join("content.bin"))?;
    Ok(sample)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
