//! Runs plans: every cell so often, over a network that is made for each run, with results that outlive whatever happens.
//!
//! A folder of results has `lock.json` (what they belong to), `runs.jsonl` (a line for each run, written when it ends),
//! `runs.csv`, `peers.csv` and `links.csv` (the same as tables), `report.html`, and `runs/` with what everybody said. What was interrupted
//! goes on with the first run that has no line yet. All candidates have a turn before any has a second one, so that what the
//! machine does meanwhile meets all of them alike.

mod array;
mod clients;
mod lock;
mod measure;
mod member;
mod one;
mod preflight;
mod result;
mod runner;
mod script;
mod ways;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, TryLockError};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_asnet::topology::Topology;
use serde_json::Value;

use crate::bed::{BedError, Calibration};
use crate::fluid::Bounds;
use crate::plan::{Cell, Peer, Plan, Role, rate_bytes};
use crate::sheet::Sheet;

pub use array::{Collected, Submission, Submit, collect, submit, task};
pub(crate) use clients::TRACKER_PORT;
pub use lock::{LinksMeasured, Locked, locked};
pub use measure::Measurements;
pub use one::Live;
pub use preflight::preflight;
pub use result::{Happened, PeerResult, RunResult};
pub use runner::run;
pub use ways::routes;

const RUNS: &str = "runs.jsonl";
const PAGE: &str = "report.html";
/// Pictures and tables of figures.
const FIGURES: &str = "figures";
/// What everybody said goes here, by cell and repetition.
const LOGS: &str = "runs";
/// Seconds that a run takes besides its transfers, for estimates before anything has run.
const AROUND_SECONDS: f64 = 5.0;
/// How much longer transfers take than where the network alone is the limit, for the same: of one who fetches, and of several, the slowest
/// of whom counts.
const FLUID_FACTORS: [f64; 2] = [1.3, 2.0];
/// Longest time that is estimated for a plan: thirty thousand years, so that plans of any limits can be added up.
const ESTIMATE_SECONDS_MAX: f64 = 1e12;

/// How plans are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that peers and routers are.
    pub program: PathBuf,
    /// Where results go, each plan's into a folder of its id.
    pub out: PathBuf,
    /// Names of cells, or of parts of them; all where there are none.
    pub only: Vec<String>,
    /// Instead of the plan's repetitions.
    pub repeat: Option<u32>,
    /// Whether to go on with results that are there.
    pub resume: bool,
    /// Runs that go on at once, instead of as many as the plan says.
    pub jobs: Option<u32>,
}

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The network.
    #[error(transparent)]
    Bed(#[from] BedError),
    /// No cell has a name like that.
    #[error("`--only {only}` is in no cell of {id}: use parts of these names: {cells}")]
    NoCell {
        /// What was asked for.
        only: String,
        /// The plan.
        id: String,
        /// What there is.
        cells: String,
    },
    /// Results are there.
    #[error("{} holds results: go on with them (--resume), or give another folder (--out)", .0.display())]
    Occupied(PathBuf),
    /// Another lab puts its results there.
    #[error("{} is being filled by another run of the lab: wait for its end, or give another folder (--out)", .0.display())]
    InUse(PathBuf),
    /// Results of something else are there.
    #[error("{} holds results of something else ({what} differs): give another folder (--out)", folder.display())]
    Other {
        /// Where.
        folder: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// Two plans for one folder of results.
    #[error(
        "two of these plans have the id {0}, by which their results are called: run them apart, with another --out"
    )]
    SameId(String),
    /// Results that no tasks made.
    #[error("{} was not made by `lab submit`: name a folder that it made", .0.display())]
    NotSubmitted(PathBuf),
    /// The program that takes jobs does not.
    #[error("{command} failed: {said}")]
    Slurm {
        /// What was asked.
        command: String,
        /// What it said.
        said: String,
    },
    /// A number that no task has.
    #[error("{} has no task {task}: its tasks are 0 to {last}", folder.display())]
    NoTask {
        /// Where.
        folder: PathBuf,
        /// What was asked for.
        task: usize,
        /// The last one.
        last: usize,
    },
    /// Plans that real packets do not run.
    #[error("{id} is for virtual time ({why}): `lab check` shows it")]
    Simulated {
        /// The plan.
        id: String,
        /// As it says itself.
        why: String,
    },
    /// There are none to read.
    #[error("{} holds no results of a plan ({reason}): name a folder that `lab run` made", folder.display())]
    NoResults {
        /// Where.
        folder: PathBuf,
        /// What is missing.
        reason: String,
    },
}

/// What happens, for whoever watches.
#[derive(Debug)]
pub enum Notice<'a> {
    /// What a killed lab left was removed.
    Removed(&'a [String]),
    /// A plan begins: runs that are to be made, and runs that are there.
    Plan(&'a Plan, usize, usize),
    /// Links were measured.
    Calibrated(&'a Calibration),
    /// A run begins: which cell and repetition.
    Run(&'a str, u32),
    /// It goes on; with the time that all runs left will take, about.
    Goes(&'a str, Live, Duration),
    /// It has ended.
    Ended(&'a RunResult),
}

/// What came of a plan.
#[derive(Debug)]
pub struct Outcome {
    /// The plan as it was run, with all results.
    pub results: Results,
    /// The page.
    pub page: PathBuf,
}

/// Results of a plan, read back.
#[derive(Debug)]
pub struct Results {
    /// Where they are.
    pub folder: PathBuf,
    /// What they belong to.
    pub lock: Value,
    /// The plan as it was run.
    pub plan: Plan,
    /// The runs, those that failed included.
    pub runs: Vec<RunResult>,
}

impl Results {
    /// Reads a folder of results.
    ///
    /// # Errors
    /// When it is none.
    pub fn load(folder: &Path) -> Result<Self, TrialError> {
        let lock = lock::read(folder)?;
        let plan = lock::plan(&lock, folder)?;
        Ok(Self { folder: folder.to_path_buf(), lock, plan, runs: read_runs(&folder.join(RUNS))? })
    }

    /// Values of a measure in a cell, in the order of the runs.
    pub fn values(&self, measure: crate::plan::Measure, cell: &Cell) -> Vec<f64> {
        let name = self.plan.name(cell);
        self.runs.iter().filter(|run| run.cell == name).filter_map(|run| run.value(measure)).collect()
    }

    /// The same with their repetitions, which rise.
    pub fn by_repetition(&self, measure: crate::plan::Measure, cell: &Cell) -> Vec<(u32, f64)> {
        let name = self.plan.name(cell);
        let runs = self.runs.iter().filter(|run| run.cell == name);
        let mut values: Vec<(u32, f64)> = runs.filter_map(|run| Some((run.repetition, run.value(measure)?))).collect();
        values.sort_by_key(|(repetition, _)| *repetition);
        values
    }

    /// The file that keeps the network as it was, drawn or read: scionproto's files are YAML.
    fn topology_name(&self) -> &'static str {
        match Topology::from_toml(&self.plan.topology.name, &self.plan.topology_text) {
            Ok(_) => "topology.toml",
            Err(_) => "topology.topo",
        }
    }

    /// Writes tables and the page anew, and says where the page is.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self) -> Result<PathBuf, TrialError> {
        let (page, figures, sheet) = (self.folder.join(PAGE), self.folder.join(FIGURES), Sheet::new(self));
        let mut files = vec![
            (self.folder.join("runs.csv"), result::runs_csv(&self.plan, &self.runs).into_bytes()),
            (self.folder.join("links.csv"), result::links_csv(&self.plan, &self.runs).into_bytes()),
            (self.folder.join("peers.csv"), result::peers_csv(&self.plan, &self.runs).into_bytes()),
            (page.clone(), sheet.html().into_bytes()),
            (self.folder.join(self.topology_name()), self.plan.topology_text.clone().into_bytes()),
        ];
        for (id, png, csv) in sheet.figures() {
            files.push((figures.join(format!("{id}.png")), png));
            files.push((figures.join(format!("{id}.csv")), csv.into_bytes()));
        }
        fs::create_dir_all(&figures).map_err(|error| BedError::file(&figures, error))?;
        for (path, bytes) in files {
            fs::write(&path, bytes).map_err(|error| BedError::file(&path, error))?;
        }
        Ok(page)
    }
}

/// Where what was said in a run is kept.
fn logs_of(folder: &Path, cell: &str, repetition: u32) -> PathBuf {
    folder.join(LOGS).join(cell.replace('/', "-")).join(repetition.to_string())
}

/// The runs of a file; a last line that was cut off by a crash is none. Of a run that failed and was made again, the last line counts.
fn read_runs(path: &Path) -> Result<Vec<RunResult>, TrialError> {
    let Ok(file) = File::open(path) else { return Ok(Vec::new()) };
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    let mut runs: Vec<RunResult> = Vec::new();
    let mut places = HashMap::new();
    for run in lines.filter_map(|line| RunResult::from_json(&serde_json::from_str(&line).ok()?)) {
        match places.entry((run.cell.clone(), run.repetition)) {
            Entry::Occupied(place) => runs[*place.get()] = run,
            Entry::Vacant(place) => {
                place.insert(runs.len());
                runs.push(run);
            }
        }
    }
    Ok(runs)
}

/// Keeps other labs out of a folder of results, as long as it is there; `None` where the file system knows no locks.
fn hold(folder: &Path) -> Result<Option<File>, TrialError> {
    let opened = File::open(folder).map_err(|error| BedError::file(folder, error))?;
    match opened.try_lock() {
        Ok(()) => Ok(Some(opened)),
        Err(TryLockError::WouldBlock) => Err(TrialError::InUse(folder.to_path_buf())),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Writes a file that is whole or not there.
fn write_whole(path: &Path, text: &str) -> Result<(), TrialError> {
    let fresh = path.with_extension("new");
    let written = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, path));
    Ok(written.map_err(|error| BedError::file(path, error))?)
}

/// How long the runs of a plan take, about, before any was made, so many of those at once that may be; `bounds` are of its cells.
pub fn estimate(plan: &Plan, cells: &[Cell], bounds: &[Bounds], repetitions: u32, jobs: u32) -> Duration {
    let one = |(cell, bounds): (&Cell, &Bounds)| {
        let under = plan.under(cell);
        let least = bounds.seconds(plan, cell).unwrap_or(0.0).max(by_limits(&under, cell));
        let peers = &under.placements[cell.placement].peers;
        let joins = peers.iter().map(|peer| peer.join.as_secs_f64()).fold(0.0, f64::max);
        let is_swarm = peers.iter().filter(|peer| peer.role == Role::Leecher).count() > 1;
        let seconds = AROUND_SECONDS + joins + FLUID_FACTORS[usize::from(is_swarm)] * least;
        if plan.candidates[cell.candidate].alone { seconds } else { seconds / f64::from(jobs.max(1)) }
    };
    let seconds = cells.iter().zip(bounds).map(one).sum::<f64>() * f64::from(repetitions);
    Duration::from_secs_f64(seconds.clamp(0.0, ESTIMATE_SECONDS_MAX))
}

/// Seconds that a content takes at least where peers limit what they send.
fn by_limits(under: &Plan, cell: &Cell) -> f64 {
    let peers = &under.placements[cell.placement].peers;
    let sent = |peer: &Peer| peer.limits[0].as_deref().and_then(rate_bytes).map_or(f64::INFINITY, |bytes| bytes as f64);
    let leechers = peers.iter().filter(|peer| peer.role == Role::Leecher).count() as f64;
    let seeds: f64 = peers.iter().filter(|peer| peer.role == Role::Seed).map(sent).sum();
    let all: f64 = peers.iter().map(sent).sum();
    (under.content_bytes as f64 / seeds).max(leechers * under.content_bytes as f64 / all)
}

/// The cells of a plan whose names have every part of one of `only` in them.
///
/// # Errors
/// When one of `only` is in none.
pub fn chosen(plan: &Plan, only: &[String]) -> Result<Vec<Cell>, TrialError> {
    let cells = plan.cells();
    let fits = |cell: &Cell, only: &str| {
        let name = plan.name(cell);
        let parts: Vec<&str> = name.split('/').collect();
        only.split('/').all(|wanted| parts.contains(&wanted))
    };
    if let Some(none) = only.iter().find(|only| !cells.iter().any(|cell| fits(cell, only))) {
        let names = cells.iter().map(|cell| plan.name(cell)).collect::<Vec<_>>().join(", ");
        return Err(TrialError::NoCell { only: none.clone(), id: plan.id.clone(), cells: names });
    }
    Ok(cells.into_iter().filter(|cell| only.is_empty() || only.iter().any(|only| fits(cell, only))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_run_that_was_made_again_the_last_line_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RUNS);
        let line = |cell: &str, repetition: u32, failed: Option<&str>| {
            let run = serde_json::json!({
                "cell": cell, "repetition": repetition, "began": 1.0, "build_seconds": 1.0, "seconds": 1.0, "content_bytes": 7,
                "peers": [], "cpu": { "peers": 0.0, "network": 0.0, "wires": 0.0 }, "links": [], "events": [], "failed": failed,
            });
            format!("{run}\n")
        };
        let lines = [
            line("a", 0, Some("slow")),
            line("b", 0, None),
            line("a", 1, None),
            line("a", 0, None),
            line("b", 1, Some("slow")),
        ];
        fs::write(&path, lines.concat() + "{\"cell\": \"a\", \"repe").unwrap();
        let runs = read_runs(&path).unwrap();
        let told: Vec<_> = runs.iter().map(|run| (run.cell.as_str(), run.repetition, run.failed.as_deref())).collect();
        assert_eq!(told, [("a", 0, None), ("b", 0, None), ("a", 1, None), ("b", 1, Some("slow"))]);
        assert!(read_runs(&dir.path().join("none")).unwrap().is_empty());
    }
}
