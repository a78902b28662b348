//! Downloads. The clock of libtorrent runs from adding the torrent to its last piece checked, without Python's start;
//! that of the others from the start of the process to the word that all is there. CPU of a seeder counts from when
//! it is ready: what it checks before is another row's business.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_testbed::net::Namespace;
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::peers::rqbit::Rqbit;
use anabranch_testbed::process::Process;
use anabranch_testbed::wire::{Shape, Wire};
use anabranch_testbed::{Error, Result, page_cache};

use crate::report::Sample;
use crate::workspace::{PIECE_LENGTH, Workspace};

const LIMIT: Duration = Duration::from_secs(300);
/// Bytes over the long wire: slow start takes 2 s, this takes 9 s more.
const WIRE_LEN_MAX: u64 = 1 << 30;
const WIRE_PORT: u16 = 7000;
/// The wire that a flow of TCP shares with a transfer; how long the transfer has it to itself, and the bytes of the flow.
const SHARED_RATE_BITS: u64 = 20_000_000;
const SHARED_RTT: Duration = Duration::from_millis(60);
const SHARED_AFTER: Duration = Duration::from_secs(10);
const SHARED_LEN: u64 = 32 << 20;
const FLOW_PORT: u16 = 7001;
const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

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

/// Who seeds or fetches.
#[derive(Clone, Copy)]
pub(super) enum Client {
    /// libtorrent, tuned.
    Libtorrent,
    /// The same over uTP alone.
    LibtorrentUtp,
    /// rqbit, where it was built.
    Rqbit,
    /// Ours.
    Ours,
    /// The same over uTP alone.
    OursUtp,
}

/// What has libtorrent speak uTP alone.
const LIBTORRENT_UTP: [&str; 4] = [
    "--set=enable_outgoing_utp=1",
    "--set=enable_incoming_utp=1",
    "--set=enable_outgoing_tcp=0",
    "--set=enable_incoming_tcp=0",
];

/// Where one end of a transfer runs and listens.
#[derive(Clone, Copy)]
struct Place<'a> {
    inside: Option<&'a Namespace>,
    /// rqbit takes a free port whatever is said here.
    listen: SocketAddrV4,
}

impl<'a> Place<'a> {
    /// The loopback of the workspace, at any port.
    fn loopback(workspace: &'a Workspace) -> Self {
        Self { inside: workspace.inside.as_ref(), listen: ANY }
    }

    /// One end of the long wire.
    fn on_wire(inside: &'a Namespace, ip: &str) -> Result<Self> {
        let nonsense = |_| Error::Nonsense { name: "the wire".into(), what: format!("address {ip}") };
        Ok(Self { inside: Some(inside), listen: SocketAddrV4::new(ip.parse().map_err(nonsense)?, WIRE_PORT) })
    }
}

impl Client {
    /// What it is told besides.
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::LibtorrentUtp => &LIBTORRENT_UTP,
            Self::OursUtp => &["--utp", "only"],
            Self::Libtorrent | Self::Rqbit | Self::Ours => &[],
        }
    }

    /// Shares what is in `data`. rqbit checks it first, when it starts, and is ready once it says so.
    fn seed(self, torrent: &Path, data: &Path, at: Place<'_>) -> Result<Seeder> {
        let listen = at.listen.to_string();
        let (process, address) = match self {
            Self::Libtorrent | Self::LibtorrentUtp => {
                let peer = Libtorrent::seed_with(torrent, data, at.inside, &listen, self.flags())?;
                (peer.process, peer.address)
            }
            Self::Rqbit => {
                let ip = at.listen.ip().to_string();
                let mut peer = Rqbit::start(&torrent.display().to_string(), data, &[], false, at.inside, &ip)?;
                peer.wait_checked(LIMIT)?;
                (peer.process, peer.address.into())
            }
            Self::Ours | Self::OursUtp => {
                let (ours, address) = Anabranch::share(torrent, Some(data), &listen, at.inside, self.flags())?;
                (ours.process, address)
            }
        };
        Ok(Seeder::new(process, address))
    }

    /// Begins to fetch into `out`.
    fn leech(self, torrent: &Path, out: &Path, from: SocketAddr, at: Place<'_>) -> Result<Process> {
        let source = torrent.display().to_string();
        Ok(match self {
            Self::Libtorrent | Self::LibtorrentUtp => {
                let listen = at.listen.to_string();
                Libtorrent::leech_with(&source, out, &[from], at.inside, &listen, self.flags())?.process
            }
            Self::Ours | Self::OursUtp => Anabranch::get(&source, out, &[from], at.inside, self.flags())?.process,
            Self::Rqbit => {
                return Err(Error::Nonsense { name: "rqbit".into(), what: "no row in which it only begins".into() });
            }
        })
    }

    /// Fetches into `out`.
    fn fetch(self, torrent: &Path, out: &Path, from: SocketAddr, at: Place<'_>) -> Result<Sample> {
        let source = torrent.display().to_string();
        let (seconds, cpu, usage) = match self {
            Self::Libtorrent | Self::LibtorrentUtp => {
                let listen = at.listen.to_string();
                let mut leecher = Libtorrent::leech_with(&source, out, &[from], at.inside, &listen, self.flags())?;
                let finished = leecher.wait_finished(LIMIT)?;
                (finished.seconds, finished.usage.cpu().saturating_sub(leecher.startup_cpu), finished.usage)
            }
            Self::Rqbit => {
                let SocketAddr::V4(from) = from else {
                    return Err(Error::Nonsense { name: "the seeder".into(), what: format!("address {from}") });
                };
                let ip = at.listen.ip().to_string();
                let mut leecher = Rqbit::start(&source, out, &[from], true, at.inside, &ip)?;
                let started = leecher.process.started();
                let finished = leecher.wait_finished(LIMIT)?;
                let usage = leecher.process.wait_success(LIMIT)?;
                ((finished - started).as_secs_f64(), usage.cpu(), usage)
            }
            // Who only fetches need not be found.
            Self::Ours | Self::OursUtp => {
                let mut ours = Anabranch::get(&source, out, &[from], at.inside, self.flags())?;
                let started = ours.process.started();
                let (_, finished) = ours.process.wait_event("finished", LIMIT)?;
                let usage = ours.process.wait_success(LIMIT)?;
                ((finished - started).as_secs_f64(), usage.cpu(), usage)
            }
        };
        Ok(Sample {
            figure: seconds,
            cpu_fetch: Some(cpu.as_secs_f64()),
            rss_mib: Some(mebibytes(usage.rss_bytes_max)),
            ..Sample::default()
        })
    }
}

/// Which end of a transfer is on the disk; the other one is in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnDisk {
    /// All in memory.
    Neither,
    /// Who shares, with nothing of it in the page cache.
    Shared,
    /// Who fetches.
    Fetched,
}

impl OnDisk {
    /// The folder that is shared, and the one that is fetched into.
    fn folders(self, workspace: &mut Workspace) -> Result<(PathBuf, PathBuf)> {
        let data = if self == Self::Shared { workspace.data_on_disk(false)? } else { workspace.data.clone() };
        let out = if self == Self::Fetched { workspace.out_on_disk()? } else { workspace.out()? };
        Ok((data, out))
    }

    /// MiB of the content that are in the page cache after a transfer.
    fn cached(self, data: &Path, out: &Path) -> Result<Option<f64>> {
        let folder = match self {
            Self::Neither => return Ok(None),
            Self::Shared => data,
            Self::Fetched => out,
        };
        Ok(Some(mebibytes(page_cache::cached_bytes(&folder.join("content.bin"))?)))
    }
}

/// `from` shares and `to` fetches, over the loopback.
pub(super) fn loopback(
    workspace: &mut Workspace,
    version: &str,
    from: Client,
    to: Client,
    disk: OnDisk,
) -> Result<Sample> {
    let torrent = workspace.torrent(version)?;
    let (data, out) = disk.folders(workspace)?;
    let here = Place::loopback(workspace);
    let seeder = from.seed(&torrent, &data, here)?;
    let sample = to.fetch(&torrent, &out, seeder.address, here)?;
    let cpu_share = Some(seeder.stop()?);
    let extra = disk.cached(&data, &out)?;
    workspace.check(&out.join("content.bin"))?;
    Ok(Sample { cpu_share, extra, ..sample })
}

/// The floor; on a disk it writes past the page cache where `access` says so.
pub(super) fn floor(workspace: &mut Workspace, access: &str, disk: OnDisk) -> Result<Sample> {
    let (data, out) = disk.folders(workspace)?;
    let (source, target) = (data.join("content.bin"), out.join("content.bin"));
    let mut sender =
        Process::spawn("floor sender", workspace.floor_command().arg("send").arg(&source).arg(ANY.to_string()))?;
    let (event, _) = sender.wait_event("listening", LIMIT)?;
    let address = event["address"].as_str().unwrap_or_default().to_owned();
    let mut command = workspace.floor_command();
    command.arg("recv").arg(&target).args([&address, &PIECE_LENGTH.to_string(), access]);
    let (_, usage) = Process::run("floor receiver", &mut command, LIMIT)?;
    let cpu_share = Some(sender.wait_success(LIMIT)?.cpu().as_secs_f64());
    let extra = disk.cached(&data, &out)?;
    workspace.check(&target)?;
    Ok(Sample {
        figure: usage.wall.as_secs_f64(),
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        cpu_share,
        rss_mib: Some(mebibytes(usage.rss_bytes_max)),
        extra,
        ..Sample::default()
    })
}

/// The rate of one flow of TCP beside a transfer of a client to itself.
pub(super) fn tcp_beside(workspace: &mut Workspace, client: Option<Client>) -> Result<Sample> {
    let wire = wire_of(Shape { by_burst: false, ..Shape::new(SHARED_RATE_BITS, SHARED_RTT) })?;
    let (torrent, out) = (workspace.torrent("1")?, workspace.out()?);
    let (left, right) = (Place::on_wire(&wire.left, Wire::LEFT)?, Place::on_wire(&wire.right, Wire::RIGHT)?);
    let mut beside = None;
    if let Some(client) = client {
        let seeder = client.seed(&torrent, &workspace.data, left)?;
        let leecher = client.leech(&torrent, &out, seeder.address, right)?;
        std::thread::sleep(SHARED_AFTER);
        beside = Some((seeder, leecher));
    }
    let (floor, bytes, listen) = (workspace.floor(), SHARED_LEN.to_string(), format!("{}:{FLOW_PORT}", Wire::LEFT));
    let mut sender = wire.left.command(&floor);
    let mut sender = Process::spawn("sender", sender.args(["tcp-send", &bytes, &listen]))?;
    sender.wait_event("listening", LIMIT)?;
    let mut receiver = wire.right.command(&floor);
    let (_, usage) = Process::run("receiver", receiver.args(["tcp-recv", &bytes, &listen]), LIMIT)?;
    if let Some((_, mut leecher)) = beside
        && leecher.has_ended()
    {
        return Err(Error::Nonsense { name: "the transfer beside".into(), what: format!("an end: {}", leecher.log()) });
    }
    Ok(Sample { figure: SHARED_LEN as f64 * 8.0 / 1e6 / usage.wall.as_secs_f64(), ..Sample::default() })
}

/// A fresh long wire. The content of the rows may be larger than is needed here; the torrent stays the same, so only
/// the bare contender sends less.
fn wire() -> Result<Wire> {
    wire_of(Shape::new(1_000_000_000, Duration::from_millis(100)))
}

fn wire_of(shape: Shape) -> Result<Wire> {
    anabranch_testbed::net::need_root()?;
    Wire::new(shape)
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

pub(super) fn bare_over_wire(workspace: &mut Workspace) -> Result<Sample> {
    let (wire, len) = (wire()?, workspace.len.min(WIRE_LEN_MAX));
    let (floor, bytes) = (workspace.floor(), len.to_string());
    let listen = format!("{}:{WIRE_PORT}", Wire::LEFT);
    watch(&wire, len, || {
        let mut sender = wire.left.command(&floor);
        let mut sender = Process::spawn("sender", sender.args(["tcp-send", &bytes, &listen]))?;
        sender.wait_event("listening", LIMIT)?;
        let mut receiver = wire.right.command(&floor);
        let (_, usage) = Process::run("receiver", receiver.args(["tcp-recv", &bytes, &listen]), LIMIT)?;
        Ok(Sample { figure: usage.wall.as_secs_f64(), cpu_fetch: Some(usage.cpu().as_secs_f64()), ..Sample::default() })
    })
}

/// `client` to itself, over the wire.
pub(super) fn over_wire(workspace: &mut Workspace, client: Client) -> Result<Sample> {
    let (wire, torrent, out) = (wire()?, workspace.torrent("1")?, workspace.out()?);
    let (left, right) = (Place::on_wire(&wire.left, Wire::LEFT)?, Place::on_wire(&wire.right, Wire::RIGHT)?);
    let sample = watch(&wire, workspace.len, || {
        let seeder = client.seed(&torrent, &workspace.data, left)?;
        let sample = client.fetch(&torrent, &out, seeder.address, right)?;
        Ok(Sample { cpu_share: Some(seeder.stop()?), ..sample })
    })?;
    workspace.check(&out.join("content.bin"))?;
    Ok(sample)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
