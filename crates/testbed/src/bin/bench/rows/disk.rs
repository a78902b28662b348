//! Creating and verifying, in memory and on a disk. libtorrent's clock is its own and leaves out Python's start; the others are whole processes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anabranch_testbed::peers::rqbit::Rqbit;
use anabranch_testbed::peers::{anabranch, installed, libtorrent};
use anabranch_testbed::process::{Process, Usage};
use anabranch_testbed::{Error, Result, page_cache};
use serde_json::Value;

use crate::report::Sample;
use crate::workspace::{PIECE_LENGTH, Workspace};

const LIMIT: Duration = Duration::from_secs(300);

/// Seconds and CPU seconds as the script reports them.
fn reported(event: &Value) -> Result<Sample> {
    let figure = event["seconds"].as_f64();
    let figure = figure.ok_or_else(|| Error::Nonsense { name: "libtorrent".into(), what: event.to_string() })?;
    Ok(Sample { figure, cpu_fetch: event["cpu_seconds"].as_f64(), ..Sample::default() })
}

fn whole(usage: Usage) -> Sample {
    Sample {
        figure: usage.wall.as_secs_f64(),
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        rss_mib: Some(usage.rss_bytes_max as f64 / f64::from(1 << 20)),
        ..Sample::default()
    }
}

/// Where the content is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// In memory.
    Memory,
    /// On the disk, and in the page cache.
    Warm,
    /// On the disk alone.
    Cold,
}

impl Content {
    fn folder(self, workspace: &mut Workspace) -> Result<PathBuf> {
        match self {
            Self::Memory => Ok(workspace.data.clone()),
            Self::Warm | Self::Cold => workspace.data_on_disk(self == Self::Warm),
        }
    }

    /// Adds the MiB of the content that are in the page cache now.
    fn and_cached(self, data: &Path, sample: Sample) -> Result<Sample> {
        if self == Self::Memory {
            return Ok(sample);
        }
        let cached = page_cache::cached_bytes(&data.join("content.bin"))?;
        Ok(Sample { extra: Some(cached as f64 / f64::from(1 << 20)), ..sample })
    }
}

pub(super) fn libtorrent_create(workspace: &mut Workspace, version: &str, content: Content) -> Result<Sample> {
    let (data, out) = (content.folder(workspace)?, workspace.out()?.join("made.torrent"));
    let sample = reported(&libtorrent::create(&data.join("content.bin"), &out, version, PIECE_LENGTH, &[])?)?;
    content.and_cached(&data, sample)
}

pub(super) fn transmission_create(workspace: &mut Workspace) -> Result<Sample> {
    let out = workspace.out()?.join("made.torrent");
    let mut command = Command::new(installed("transmission-create")?);
    command.args(["-s", &(PIECE_LENGTH / 1024).to_string(), "-o"]).arg(out).arg(&workspace.content);
    Process::run("transmission-create", &mut command, LIMIT).map(|(_, usage)| whole(usage))
}

pub(super) fn ours_create(workspace: &mut Workspace, version: &str, content: Content) -> Result<Sample> {
    let wanted = workspace.torrent(version)?;
    let (data, out) = (content.folder(workspace)?, workspace.out()?.join("made.torrent"));
    let sample = whole(anabranch::create(&data.join("content.bin"), &out, version, PIECE_LENGTH, &[])?);
    // The same content has the same hashes, whoever makes the torrent.
    let (theirs, ours) = (libtorrent::info(&wanted)?, libtorrent::info(&out)?);
    if theirs["total"] == ours["total"] && theirs["pieces"] == ours["pieces"] {
        return content.and_cached(&data, sample);
    }
    Err(Error::Nonsense { name: "anabranch create".into(), what: format!("{ours} instead of {theirs}") })
}

/// The limit that memory or disk sets: reads the file and does nothing with it, in one thread.
pub(super) fn read_only(workspace: &mut Workspace, access: &str, content: Content) -> Result<Sample> {
    let data = content.folder(workspace)?;
    let mut command = Command::new(workspace.floor());
    command.arg("read").arg(data.join("content.bin")).arg(access);
    let (_, usage) = Process::run("read", &mut command, LIMIT)?;
    content.and_cached(&data, whole(usage))
}

pub(super) fn libtorrent_verify(workspace: &mut Workspace, version: &str, content: Content) -> Result<Sample> {
    let torrent = workspace.torrent(version)?;
    let data = content.folder(workspace)?;
    let event = libtorrent::verify(&torrent, &data)?;
    if event["complete"] != true {
        return Err(Error::Nonsense { name: "libtorrent verify".into(), what: event.to_string() });
    }
    content.and_cached(&data, reported(&event)?)
}

pub(super) fn rqbit_verify(workspace: &mut Workspace) -> Result<Sample> {
    let torrent = workspace.torrent("1")?.display().to_string();
    let mut rqbit = Rqbit::start(&torrent, &workspace.data, &[], false, workspace.inside.as_ref(), "127.0.0.1")?;
    let started = rqbit.process.started();
    let at = rqbit.wait_checked(LIMIT)?;
    let cpu_fetch = rqbit.process.cpu_so_far().map(|cpu| cpu.as_secs_f64());
    rqbit.process.stop()?;
    Ok(Sample { figure: (at - started).as_secs_f64(), cpu_fetch, ..Sample::default() })
}

pub(super) fn ours_verify(workspace: &mut Workspace, version: &str, content: Content) -> Result<Sample> {
    let torrent = workspace.torrent(version)?;
    let data = content.folder(workspace)?;
    let (_, usage) = anabranch::verify(&torrent, &data)?;
    if !usage.status.success() {
        return Err(Error::Nonsense { name: "anabranch verify".into(), what: format!("{}", usage.status) });
    }
    content.and_cached(&data, whole(usage))
}
