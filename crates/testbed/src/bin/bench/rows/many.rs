//! Many torrents, and many peers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::libtorrent::{self, Libtorrent};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result, data};

use crate::report::Sample;
use crate::workspace::{PIECE_LENGTH, Workspace};

/// Torrents shared at once.
const TORRENTS: u64 = 1000;
/// Bytes of each, and of its pieces.
const TORRENT_LEN: u64 = 64 * 1024;
const TORRENT_PIECE_LENGTH: u32 = 16 * 1024;
/// How long to let a process settle before its memory is read.
const SETTLE: Duration = Duration::from_secs(3);
/// How long the crowd is measured.
const CROWD_SECONDS: &str = "8";
const LIMIT: Duration = Duration::from_secs(300);

/// The folders with the content and with the torrents, made when first asked for.
fn thousand(workspace: &Workspace) -> Result<(PathBuf, PathBuf)> {
    let (data, torrents) = (workspace.keep("thousand")?, workspace.keep("thousand torrents")?);
    if std::fs::read_dir(&torrents).map_err(Error::file(&torrents))?.next().is_none() {
        for number in 0..TORRENTS {
            data::make_file(&data.join(format!("{number}.bin")), TORRENT_LEN, 100 + number)?;
        }
        libtorrent::create_each(&data, &torrents, TORRENT_PIECE_LENGTH)?;
    }
    Ok((data, torrents))
}

pub(super) fn resident(process: &Process) -> Result<Sample> {
    std::thread::sleep(SETTLE);
    let mebibytes = |field| process.status_bytes(field).map(|bytes| bytes as f64 / f64::from(1 << 20));
    let figure =
        mebibytes("VmRSS").ok_or_else(|| Error::Nonsense { name: "the process".into(), what: "it is gone".into() })?;
    Ok(Sample { figure, rss_mib: mebibytes("VmHWM"), ..Sample::default() })
}

pub(super) fn libtorrent_idle(workspace: &mut Workspace) -> Result<Sample> {
    let (data, torrents) = thousand(workspace)?;
    resident(&Libtorrent::idle(&torrents, &data)?.process)
}

pub(super) fn ours_idle(workspace: &mut Workspace) -> Result<Sample> {
    let (data, torrents) = thousand(workspace)?;
    let mut paths: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(&torrents).map_err(Error::file(&torrents))? {
        paths.push(entry.map_err(Error::file(&torrents))?.path().display().to_string());
    }
    let (first, rest) =
        paths.split_first().ok_or_else(|| Error::Nonsense { name: "libtorrent".into(), what: "no torrents".into() })?;
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let (ours, _) = Anabranch::share(first.as_ref(), Some(&data), "127.0.0.1:0", None, &rest)?;
    resident(&ours.process)
}

pub(super) fn libtorrent_crowd(workspace: &mut Workspace, leechers: u32) -> Result<Sample> {
    let seeder = Libtorrent::seed(&workspace.torrent("1")?, &workspace.data, workspace.inside.as_ref(), "127.0.0.1:0")?;
    crowd(workspace, &seeder.process, seeder.address, leechers)
}

pub(super) fn ours_crowd(workspace: &mut Workspace, leechers: u32) -> Result<Sample> {
    let torrent = workspace.torrent("1")?;
    let (ours, address) =
        Anabranch::share(&torrent, Some(&workspace.data), "127.0.0.1:0", workspace.inside.as_ref(), &[])?;
    crowd(workspace, &ours.process, address, leechers)
}

fn crowd(workspace: &Workspace, seeder: &Process, address: SocketAddr, leechers: u32) -> Result<Sample> {
    let cpu_before = seeder.cpu_so_far().unwrap_or_default();
    let hash = workspace.info_hash_hex()?;
    let mut command = workspace.floor_command();
    command.args(["drain", &address.to_string(), &hash, &(workspace.len / u64::from(PIECE_LENGTH)).to_string()]);
    command.args([&PIECE_LENGTH.to_string(), &leechers.to_string(), CROWD_SECONDS]);
    let (lines, usage) = Process::run("crowd", &mut command, LIMIT)?;
    let event = lines.last().map(|line| line.json()).unwrap_or_default();
    let (connected, rate) = (event["connected"].as_u64().unwrap_or(0), event["rate_bytes"].as_f64().unwrap_or(0.0));
    if connected < u64::from(leechers) {
        let what = format!("{connected} of {leechers} leechers are connected");
        return Err(Error::Nonsense { name: "the seeder".into(), what });
    }
    Ok(Sample {
        figure: rate * 8.0 / 1e6,
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        cpu_share: seeder.cpu_so_far().map(|cpu| (cpu - cpu_before).as_secs_f64()),
        rss_mib: seeder.status_bytes("VmHWM").map(|bytes| bytes as f64 / f64::from(1 << 20)),
        extra: event["served"].as_f64(),
        ..Sample::default()
    })
}
