//! What streamed content takes of memory: a thousand that nobody asks for, and one that is long.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result, data};

use super::many::resident;
use crate::report::Sample;
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(600);
/// Contents shared at once, and bytes of each.
const CONTENTS: u64 = 1000;
const CONTENT_LEN: u64 = 64 * 1024;
/// The long file is so many times the workspace's content, and has nothing but holes.
const LONG_TIMES: u64 = 8;
/// How long it is fetched, and at which rate: what comes of it is in memory.
const FETCH_TIME: Duration = Duration::from_secs(6);
const FETCH_RATE: &str = "100M";

/// `share --ppspp` of some paths, whose trees are kept as a user's are.
fn share(workspace: &Workspace) -> Result<Command> {
    let mut command = anabranch::command(None)?;
    command.env("XDG_CACHE_HOME", workspace.keep("cache")?);
    command.args(["share", "--ppspp", "--json", "--listen", "127.0.0.1:0"]);
    Ok(command)
}

/// A thousand contents, shared by one process to nobody: resident memory.
pub(super) fn idle(workspace: &mut Workspace) -> Result<Sample> {
    let folder = workspace.keep("thousand streams")?;
    let mut command = share(workspace)?;
    for number in 0..CONTENTS {
        let path = folder.join(format!("{number}.bin"));
        if !path.exists() {
            data::make_file(&path, CONTENT_LEN, 5000 + number)?;
        }
        command.arg(path);
    }
    let mut process = Process::spawn("anabranch share", &mut command)?;
    for _ in 0..CONTENTS {
        process.wait_event("started", LIMIT)?;
    }
    resident(&process)
}

/// A long file is hashed, shared, and fetched for some seconds: peak memory of who fetches; beside it of who shares, and the file's length.
pub(super) fn long(workspace: &mut Workspace) -> Result<Sample> {
    let len = workspace.len * LONG_TIMES;
    let film = workspace.out()?.join("long.bin");
    sparse(&film, len)?;
    let mut seeder = Process::spawn("anabranch share", share(workspace)?.arg(&film))?;
    let (started, _) = seeder.wait_event("started", LIMIT)?;
    let link = started["link"].as_str().unwrap_or_default();
    let out = workspace.out()?;
    let mut command = anabranch::command(None)?;
    command.args(["get", link, "--json", "--listen", "127.0.0.1:0", "--limit-down", FETCH_RATE, "-o"]).arg(out);
    let mut leecher = Process::spawn("anabranch get", &mut command)?;
    std::thread::sleep(FETCH_TIME);
    let fetched = leecher.rest().iter().rev().find_map(|line| line.json()["bytes_done"].as_u64()).unwrap_or(0);
    if leecher.has_ended() || fetched == 0 {
        return Err(Error::Nonsense { name: "anabranch get".into(), what: leecher.log() });
    }
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let usage = leecher.stop()?;
    Ok(Sample {
        figure: mebibytes(usage.rss_bytes_max),
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        extra: Some(mebibytes(seeder.stop()?.rss_bytes_max)),
        more: vec![Some(mebibytes(len)), Some(mebibytes(fetched))],
        ..Sample::default()
    })
}

fn sparse(path: &Path, len: u64) -> Result<()> {
    File::create(path).and_then(|file| file.set_len(len)).map_err(Error::file(path))
}
