//! Creating and verifying. libtorrent's clock is its own and leaves out Python's start; the others are whole processes.

use std::process::Command;
use std::time::Duration;

use anabranch_testbed::peers::rqbit::Rqbit;
use anabranch_testbed::peers::{anabranch, installed, libtorrent};
use anabranch_testbed::process::{Process, Usage};
use anabranch_testbed::{Error, Result};
use serde_json::Value;

use crate::report::Sample;
use crate::stage::{PIECE_LENGTH, Stage};

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

pub fn libtorrent_create(stage: &mut Stage, version: &str) -> Result<Sample> {
    let out = stage.out()?.join("made.torrent");
    reported(&libtorrent::create(&stage.content, &out, version, PIECE_LENGTH, &[])?)
}

pub fn transmission_create(stage: &mut Stage) -> Result<Sample> {
    let out = stage.out()?.join("made.torrent");
    let mut command = Command::new(installed("transmission-create")?);
    command.args(["-s", &(PIECE_LENGTH / 1024).to_string(), "-o"]).arg(out).arg(&stage.content);
    Process::run("transmission-create", &mut command, LIMIT).map(|(_, usage)| whole(usage))
}

pub fn ours_create(stage: &mut Stage, version: &str) -> Result<Sample> {
    let out = stage.out()?.join("made.torrent");
    let sample = whole(anabranch::create(&stage.content, &out, version, PIECE_LENGTH, &[])?);
    // The same content has the same hashes, whoever makes the torrent.
    let (theirs, ours) = (libtorrent::info(&stage.torrent(version)?)?, libtorrent::info(&out)?);
    if theirs["total"] == ours["total"] && theirs["pieces"] == ours["pieces"] {
        return Ok(sample);
    }
    Err(Error::Nonsense { name: "anabranch create".into(), what: format!("{ours} instead of {theirs}") })
}

/// The limit that memory sets: reads the file and does nothing with it, in one thread.
pub fn read_only(stage: &mut Stage) -> Result<Sample> {
    let mut command = Command::new(stage.floor());
    Process::run("read", command.arg("read").arg(&stage.content), LIMIT).map(|(_, usage)| whole(usage))
}

pub fn libtorrent_verify(stage: &mut Stage, version: &str) -> Result<Sample> {
    let event = libtorrent::verify(&stage.torrent(version)?, &stage.data)?;
    if event["complete"] != true {
        return Err(Error::Nonsense { name: "libtorrent verify".into(), what: event.to_string() });
    }
    reported(&event)
}

pub fn rqbit_verify(stage: &mut Stage) -> Result<Sample> {
    let torrent = stage.torrent("1")?.display().to_string();
    let mut rqbit = Rqbit::start(&torrent, &stage.data, &[], false, stage.inside.as_ref(), "127.0.0.1")?;
    let started = rqbit.process.started();
    let at = rqbit.wait_checked(LIMIT)?;
    let cpu_fetch = rqbit.process.cpu_so_far().map(|cpu| cpu.as_secs_f64());
    rqbit.process.stop()?;
    Ok(Sample { figure: (at - started).as_secs_f64(), cpu_fetch, ..Sample::default() })
}

pub fn ours_verify(stage: &mut Stage, version: &str) -> Result<Sample> {
    let (_, usage) = anabranch::verify(&stage.torrent(version)?, &stage.data)?;
    if !usage.status.success() {
        return Err(Error::Nonsense { name: "anabranch verify".into(), what: format!("{}", usage.status) });
    }
    Ok(whole(usage))
}
