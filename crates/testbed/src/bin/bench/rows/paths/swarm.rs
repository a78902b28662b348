//! Many who fetch at once, over a network with several ways between any two.

use std::time::{Duration, Instant};

use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;
use anabranch_testbed::{Result, data};

use super::network::PathsNetwork;
use super::nonsense;
use crate::report::Sample;
use crate::workspace::Workspace;

/// Two core ASes and six leaves, each below both; links of 12 Mbit/s, so that three dozen of them stay below what the
/// machine forwards.
const CORES: [&str; 2] = ["1-ff00:0:1", "1-ff00:0:2"];
const LEAVES: [&str; 6] = ["1-ff00:0:11", "1-ff00:0:12", "1-ff00:0:13", "1-ff00:0:14", "1-ff00:0:15", "1-ff00:0:16"];
/// Where the seeder is, alone; the others have two or three who fetch, sixteen in all.
const SEEDER: &str = LEAVES[0];
const LEECHERS: usize = 16;
/// Small, so that twenty runs end in minutes.
const BYTES: u64 = 3_000_000;
const START_LIMIT: Duration = Duration::from_secs(30);
/// Who is not done by then starved.
const LIMIT: Duration = Duration::from_secs(60);

fn topology() -> String {
    let mut text = "[defaults]\nrate = '12 Mbit/s'\ndelay = '5 ms'\n".to_owned();
    for core in CORES {
        text += &format!("[as.'{core}']\ncore = true\nhosts = ['a', 'b', 'c']\n");
    }
    for leaf in LEAVES {
        text += &format!("[as.'{leaf}']\nhosts = ['a', 'b', 'c']\n");
    }
    text += &format!("[[link]]\ncore = ['{}', '{}']\ncount = 2\n", CORES[0], CORES[1]);
    for leaf in LEAVES {
        for core in CORES {
            text += &format!("[[link]]\nparent = '{core}'\nchild = '{leaf}'\n");
        }
    }
    // Ways that do not pass a core, so that path lengths differ.
    for pair in LEAVES.chunks_exact(2) {
        text += &format!("[[link]]\npeering = ['{}', '{}']\n", pair[0], pair[1]);
    }
    text
}

/// One seeder, and sixteen who fetch in the seven other ASes, all of whom stay until the last one is done.
pub(super) fn swarm(workspace: &mut Workspace, selector: &str, connections: usize) -> Result<Sample> {
    let network = PathsNetwork::new(&topology())?;
    let content = workspace.keep("paths")?.join(format!("{BYTES}.bin"));
    if !content.exists() {
        data::make_file(&content, BYTES, BYTES)?;
    }
    let mut tracker = anabranch::command(None)?;
    let mut tracker =
        Process::spawn("anabranch tracker", tracker.args(["tracker", "--json", "--listen", "127.0.0.1:0"]))?;
    let (event, _) = tracker.wait_event("listening", START_LIMIT)?;
    let url = event["http"].as_str().ok_or_else(|| nonsense("no tracker"))?.to_owned();
    let torrent = workspace.out()?.join("swarm.torrent");
    let connections = connections.to_string();
    let flags = ["--selector", selector, "--max-connections", &connections, "--paths", "4"];
    let made = ["--tracker", &url, "--torrent-out", &torrent.display().to_string(), "--piece-length", "65536"];
    let (_seeder, _) = network.share(SEEDER, &content, &[&flags[..], &made[..]].concat())?;
    let began = Instant::now();
    let mut leechers = Vec::new();
    let homes: Vec<&str> = CORES.into_iter().chain(LEAVES).filter(|isd_as| *isd_as != SEEDER).collect();
    for number in 0..LEECHERS {
        let (isd_as, host) = (homes[number % homes.len()], number / homes.len());
        let mut command = network.command("get", isd_as, host)?;
        command.arg(&torrent).arg("-o").arg(workspace.out()?).arg("--seed").args(flags);
        leechers.push(Process::spawn("anabranch get", &mut command)?);
    }
    let mut times = Vec::new();
    for leecher in &mut leechers {
        let left = LIMIT.saturating_sub(began.elapsed());
        if let Ok((_, at)) = leecher.wait_event("finished", left) {
            times.push(at.duration_since(leecher.started()).as_secs_f64());
        }
    }
    let starved = leechers.len() - times.len();
    if times.is_empty() {
        return Err(nonsense(format!("nobody got anything:\n{}", leechers[0].log())));
    }
    // Jain's index of the rates; those who starved have none.
    let rates: Vec<f64> = times.iter().map(|time| 1.0 / time).collect();
    let (sum, squares): (f64, f64) = (rates.iter().sum(), rates.iter().map(|rate| rate * rate).sum());
    Ok(Sample {
        figure: times.iter().sum::<f64>() / times.len() as f64,
        extra: Some(100.0 * sum * sum / (leechers.len() as f64 * squares)),
        more: vec![Some(starved as f64)],
        ..Sample::default()
    })
}
