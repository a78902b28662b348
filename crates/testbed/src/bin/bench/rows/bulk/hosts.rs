//! `send` and `receive` in two namespaces.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::{Process, Usage};
use anabranch_testbed::wire::{Shape, Wire};
use anabranch_testbed::{Error, Result, data, page_cache};

use crate::report::Sample;
use crate::rows::{Contender, contender};
use crate::workspace::Workspace;

pub(super) const LIMIT: Duration = Duration::from_secs(900);
/// Of the link of [`small`].
const SMALL_RATE_BITS: u64 = 1_000_000_000;
const SMALL_RTT: Duration = Duration::from_millis(10);
pub(super) const SMALL_LEN: u64 = 1024;
pub(super) const FILES_A_FOLDER: u64 = 500;
/// Of [`sparse`]: its length, and its parts that are no hole.
const SPARSE_LEN: u64 = 200 << 30;
const SPARSE_EVERY: u64 = 1 << 30;
const SPARSE_PART: usize = 1 << 20;

/// Two namespaces joined by a link that limits nothing but the length of packets.
pub(super) struct Hosts {
    pub(super) from: Namespace,
    pub(super) to: Namespace,
}

impl Hosts {
    pub(super) const FROM: &str = "10.7.0.1";
    pub(super) const TO: &str = "10.7.0.2";

    pub(super) fn new(mtu: u16) -> Result<Self> {
        net::need_root()?;
        let hosts = Self { from: Namespace::new()?, to: Namespace::new()? };
        hosts.from.link("link0", &hosts.to)?;
        for (host, address) in [(&hosts.from, Self::FROM), (&hosts.to, Self::TO)] {
            host.device_up("link0", &format!("{address}/24"), "10.7.0.0/24", mtu.into())?;
        }
        Ok(hosts)
    }
}

/// The link of [`small`].
pub(super) fn small_wire() -> Result<Wire> {
    net::need_root()?;
    Wire::new(Shape::new(SMALL_RATE_BITS, SMALL_RTT))
}

/// A `send` that printed its ticket.
pub(super) struct Sending {
    pub(super) process: Process,
    pub(super) ticket: String,
}

impl Sending {
    /// Listens on `addresses`.
    pub(super) fn start(
        keys: &Path,
        content: &Path,
        host: &Namespace,
        listen: &[&str],
        extra: &[&str],
    ) -> Result<Self> {
        let mut command = anabranch::command(Some(host))?;
        command.arg("send").arg(content).args(["--json", "--key"]).arg(keys.join("sender")).args(extra);
        for address in listen {
            command.args(["--listen", address]);
        }
        let mut process = Process::spawn("anabranch send", &mut command)?;
        let (event, _) = process.wait_event("ticket", LIMIT)?;
        let ticket = event["ticket"].as_str().unwrap_or_default().to_owned();
        Ok(Self { process, ticket })
    }
}

/// A `receive` of that into `out`.
pub(super) fn receive(keys: &Path, ticket: &str, host: &Namespace, out: &Path) -> Result<Process> {
    let mut command = anabranch::command(Some(host))?;
    command.args(["receive", ticket, "--json", "--key"]).arg(keys.join("receiver")).arg("-o").arg(out);
    Process::spawn("anabranch receive", &mut command)
}

/// What one whole transfer took.
struct Took {
    /// From the start of the receiving program to its end.
    seconds: f64,
    fetch: Usage,
    share: Usage,
}

impl Took {
    /// Beside `figure`; CPU time a GiB of `len` bytes, and the sender's memory.
    fn sample(&self, figure: f64, len: u64) -> Sample {
        let cpu = [self.fetch.cpu(), self.share.cpu()].map(|cpu| cpu.as_secs_f64());
        Sample {
            figure,
            cpu_fetch: Some(cpu[0]),
            cpu_share: Some(cpu[1]),
            rss_mib: Some(mebibytes(self.fetch.rss_bytes_max)),
            extra: Some((cpu[0] + cpu[1]) / gibibytes(len)),
            more: vec![Some(mebibytes(self.share.rss_bytes_max))],
        }
    }
}

fn transfer(keys: &Path, content: &Path, out: &Path, hosts: [(&Namespace, &str); 2], extra: &[&str]) -> Result<Took> {
    let [(from, address), (to, _)] = hosts;
    let mut sending = Sending::start(keys, content, from, &[&format!("{address}:7000")], extra)?;
    let mut receiving = receive(keys, &sending.ticket, to, out)?;
    let fetch = receiving.wait_success(LIMIT)?;
    let share = sending.process.wait_success(LIMIT)?;
    Ok(Took { seconds: fetch.wall.as_secs_f64(), fetch, share })
}

/// The contenders of the rows without a limit.
pub(super) fn ours(mtu: u16) -> Vec<Contender> {
    match mtu {
        1500 => vec![
            contender("ours, BBR", |workspace| fast(workspace, 1500, &["--fair=no"])),
            contender("ours, 1.5 GB/s", |workspace| fast(workspace, 1500, &["--rate", "1500M"])),
            contender("ours", |workspace| fast(workspace, 1500, &[])),
        ],
        _ => vec![
            contender("ours, 3 GB/s", |workspace| fast(workspace, 9000, &["--rate", "3000M"])),
            contender("ours", |workspace| fast(workspace, 9000, &[])),
        ],
    }
}

fn fast(workspace: &mut Workspace, mtu: u16, extra: &[&str]) -> Result<Sample> {
    let hosts = Hosts::new(mtu)?;
    let (keys, out) = (workspace.keep("keys")?, workspace.out()?);
    let ends = [(&hosts.from, Hosts::FROM), (&hosts.to, Hosts::TO)];
    let took = transfer(&keys, &workspace.content, &out, ends, extra)?;
    workspace.check(&out.join("content.bin"))?;
    Ok(took.sample(megabits(workspace.len, took.seconds), workspace.len))
}

/// The folder with very many files, made when first asked for, and how many these are.
pub(super) fn small_files(workspace: &Workspace) -> Result<(PathBuf, u64)> {
    let count = if workspace.len < 2 << 30 { 10_000 } else { 100_000 };
    let folder = workspace.keep("small")?.join("many");
    if !folder.exists() {
        for file in 0..count {
            data::make_file(&folder.join(format!("{}/{file}", file / FILES_A_FOLDER)), SMALL_LEN, file)?;
        }
    }
    Ok((folder, count))
}

pub(super) fn small(workspace: &mut Workspace) -> Result<Sample> {
    let (folder, count) = small_files(workspace)?;
    let wire = small_wire()?;
    let (keys, out) = (workspace.keep("keys")?, workspace.out()?);
    let ends = [(&wire.left, Wire::LEFT), (&wire.right, Wire::RIGHT)];
    let took = transfer(&keys, &folder, &out, ends, &[])?;
    check_small(&folder, &out.join("many"))?;
    Ok(Sample { extra: None, more: Vec::new(), ..took.sample(took.seconds, count * SMALL_LEN) })
}

pub(super) fn check_small(wanted: &Path, got: &Path) -> Result<()> {
    match data::difference(&data::digests(wanted)?, &data::digests(got)?) {
        None => Ok(()),
        Some(what) => Err(Error::Nonsense { name: "the transfer".into(), what }),
    }
}

/// From disk to disk.
pub(super) fn disk(workspace: &mut Workspace) -> Result<Sample> {
    let hosts = Hosts::new(9000)?;
    let keys = workspace.keep("keys")?;
    let out = workspace.out_on_disk()?;
    let content = workspace.data_on_disk(false)?.join("content.bin");
    let ends = [(&hosts.from, Hosts::FROM), (&hosts.to, Hosts::TO)];
    let took = transfer(&keys, &content, &out, ends, &[])?;
    let extra = Some(mebibytes(page_cache::cached_bytes(&out.join("content.bin"))?));
    workspace.check(&out.join("content.bin"))?;
    Ok(Sample { extra, more: Vec::new(), ..took.sample(took.seconds, workspace.len) })
}

/// `cp` of the same, and `sync`.
pub(super) fn cp(workspace: &mut Workspace) -> Result<Sample> {
    let out = workspace.out_on_disk()?.join("content.bin");
    let content = workspace.data_on_disk(false)?.join("content.bin");
    let mut command = Command::new("sh");
    command.args(["-c", "cp --reflink=never -- \"$0\" \"$1\" && exec sync -- \"$1\""]).arg(content).arg(&out);
    let (_, usage) = Process::run("cp", &mut command, LIMIT)?;
    let extra = Some(mebibytes(page_cache::cached_bytes(&out)?));
    workspace.check(&out)?;
    let cpu_fetch = Some(usage.cpu().as_secs_f64());
    Ok(Sample { figure: usage.wall.as_secs_f64(), cpu_fetch, extra, ..Sample::default() })
}

/// Resident memory of the receiver for the content, which has no holes.
pub(super) fn dense(workspace: &mut Workspace) -> Result<Sample> {
    let sample = fast(workspace, 1500, &[])?;
    let seconds = workspace.len as f64 * 8e-6 / sample.figure;
    Ok(Sample { figure: sample.rss_mib.unwrap_or(f64::NAN), extra: Some(seconds), ..sample })
}

/// A very large file, of which there is little.
pub(super) fn sparse(workspace: &mut Workspace) -> Result<Sample> {
    let hosts = Hosts::new(1500)?;
    let (keys, out) = (workspace.keep("keys")?, workspace.out()?);
    let content = workspace.out()?.join("sparse.bin");
    let file = File::create(&content).map_err(Error::file(&content))?;
    file.set_len(SPARSE_LEN).map_err(Error::file(&content))?;
    let mut part = vec![0; SPARSE_PART];
    let part_of = |at: u64, part: &mut [u8]| fastrand::Rng::with_seed(at).fill(part);
    for at in (0..SPARSE_LEN).step_by(SPARSE_EVERY as usize) {
        part_of(at, &mut part);
        file.write_all_at(&part, at).map_err(Error::file(&content))?;
    }
    let started = Instant::now();
    let took = transfer(&keys, &content, &out, [(&hosts.from, Hosts::FROM), (&hosts.to, Hosts::TO)], &[])?;
    let seconds = started.elapsed().as_secs_f64();
    let path = out.join("sparse.bin");
    let got = File::open(&path).map_err(Error::file(&path))?;
    let mut there = vec![0; SPARSE_PART];
    for at in (0..SPARSE_LEN).step_by(SPARSE_EVERY as usize) {
        got.read_exact_at(&mut there, at).map_err(Error::file(&path))?;
        part_of(at, &mut part);
        if there != part {
            return Err(Error::Nonsense { name: "the transfer".into(), what: format!("bytes from {at} on differ") });
        }
    }
    let figure = mebibytes(took.fetch.rss_bytes_max);
    Ok(Sample { extra: Some(seconds), ..took.sample(figure, SPARSE_LEN) })
}

pub(super) fn megabits(len: u64, seconds: f64) -> f64 {
    len as f64 * 8e-6 / seconds
}

pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub(super) fn gibibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
