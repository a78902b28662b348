//! Runs plans: every cell so often, over a network that is made for each run, with results that outlive whatever happens.
//!
//! A folder of results has `lock.json` (what they belong to), `runs.jsonl` (a line for each run, written when it ends),
//! `runs.csv` and `peers.csv` (the same as tables), `report.html`, and `runs/` with what everybody said. What was interrupted
//! goes on with the first run that has no line yet. All candidates have a turn before any has a second one, so that what the
//! machine does meanwhile meets all of them alike.

mod lock;
mod one;
mod result;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bed::program::bare;
use crate::bed::{Bed, BedError, Calibration, Lease, Routing, Setup, daemon};
use crate::demo::DemoError;
use crate::demo::content::{self, Scratch};
use crate::fluid::Bounds;
use crate::plan::{Cell, Plan};
use crate::sheet::Sheet;

pub use one::Live;
pub use result::{PeerResult, RunResult};

const RUNS: &str = "runs.jsonl";
const PAGE: &str = "report.html";
/// Seconds that a run takes besides its transfers, for estimates before anything has run.
const AROUND_SECONDS: f64 = 8.0;
/// How much longer than the network's bound transfers take, for the same.
const BOUND_FACTOR: f64 = 2.0;

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
    /// Whether in the quick form.
    pub quick: bool,
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
    /// Results of something else are there.
    #[error("{} holds results of something else ({what} differs): give another folder (--out)", folder.display())]
    Other {
        /// Where.
        folder: PathBuf,
        /// What differs.
        what: &'static str,
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

    /// Writes tables and the page anew, and says where the page is.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self) -> Result<PathBuf, TrialError> {
        let page = self.folder.join(PAGE);
        let files = [
            (self.folder.join("runs.csv"), result::runs_csv(&self.plan, &self.runs)),
            (self.folder.join("peers.csv"), result::peers_csv(&self.plan, &self.runs)),
            (page.clone(), Sheet::new(self).html()),
        ];
        for (path, text) in files {
            fs::write(&path, text).map_err(|error| BedError::file(&path, error))?;
        }
        Ok(page)
    }
}

/// How long the runs of a plan take, about, before any was made.
pub fn estimate(plan: &Plan, cells: &[Cell], repetitions: u32) -> Duration {
    let one = |cell: &Cell| {
        let bound = Bounds::new(plan, cell).longest_seconds.unwrap_or(0.0);
        let joins =
            plan.placements[cell.placement].peers.iter().map(|peer| peer.join.as_secs_f64()).fold(0.0, f64::max);
        AROUND_SECONDS + joins + BOUND_FACTOR * bound
    };
    Duration::from_secs_f64(cells.iter().map(one).sum::<f64>() * f64::from(repetitions))
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

/// Runs a plan, or what of it has no results yet. All of it happens on the calling thread, which has to live as long.
///
/// # Errors
/// When there can be no results at all; a run that fails is a result, and the next one has its turn.
pub fn run(
    plan: Plan,
    options: &Options,
    cancel: &AtomicBool,
    watch: &mut dyn FnMut(Notice<'_>),
) -> Result<Outcome, TrialError> {
    let plan = if options.quick { plan.quick() } else { plan };
    let cells = chosen(&plan, &options.only)?;
    // What is missing is said before anything begins.
    if cells.iter().any(|cell| matches!(plan.candidates[cell.candidate].routing, Routing::Bgp | Routing::BgpMultipath))
    {
        ["zebra", "bgpd"].into_iter().try_for_each(|name| daemon(name).map(drop))?;
    }
    let (lease, removed) = Lease::new()?;
    if !removed.is_empty() {
        watch(Notice::Removed(&removed));
    }
    let folder = options.out.join(&plan.id);
    let mut runs = begin(&folder, &plan, options)?;
    let folder = folder.canonicalize().map_err(|error| BedError::file(&folder, error))?;
    let done: HashSet<(String, u32)> =
        runs.iter().filter(|run| run.failed.is_none()).map(|run| (run.cell.clone(), run.repetition)).collect();
    let repetitions = options.repeat.unwrap_or(plan.repetitions);
    let all = (0..repetitions).flat_map(|repetition| cells.iter().map(move |cell| (cell, repetition)));
    let open: Vec<(&Cell, u32)> =
        all.filter(|(cell, repetition)| !done.contains(&(plan.name(cell), *repetition))).collect();
    watch(Notice::Plan(&plan, open.len(), done.len()));
    // Those that failed have another try.
    runs.retain(|run| run.failed.is_none());
    if !folder.join(lock::FILE).exists() {
        let calibration = calibrate(&lease, &plan, &folder, options, cancel)?;
        watch(Notice::Calibrated(&calibration));
        let lock = lock::make(&plan, options.quick, &options.program, &calibration);
        write_whole(&folder.join(lock::FILE), &format!("{lock:#}\n"))?;
    }
    let lock = lock::read(&folder)?;
    let mut results = Results { folder, lock, plan, runs };
    if let Err(error) = run_all(&mut results, &lease, options, &open, cancel, watch) {
        // What is there is shown.
        results.write()?;
        return Err(error);
    }
    let page = results.write()?;
    Ok(Outcome { results, page })
}

/// Makes the folder, or reads what is in it.
fn begin(folder: &Path, plan: &Plan, options: &Options) -> Result<Vec<RunResult>, TrialError> {
    fs::create_dir_all(folder).map_err(|error| BedError::file(folder, error))?;
    if !folder.join(lock::FILE).exists() {
        return Ok(Vec::new());
    }
    if !options.resume {
        return Err(TrialError::Occupied(folder.to_path_buf()));
    }
    let theirs = lock::read(folder)?;
    let ours = lock::make(plan, options.quick, &options.program, &Calibration::default());
    match lock::difference(&ours, &theirs) {
        Some(what) => Err(TrialError::Other { folder: folder.to_path_buf(), what }),
        None => read_runs(&folder.join(RUNS)),
    }
}

/// The runs of a file; a last line that was cut off by a crash is none.
fn read_runs(path: &Path) -> Result<Vec<RunResult>, TrialError> {
    let Ok(file) = File::open(path) else { return Ok(Vec::new()) };
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    Ok(lines.filter_map(|line| RunResult::from_json(&serde_json::from_str(&line).ok()?)).collect())
}

fn calibrate(
    lease: &Lease,
    plan: &Plan,
    folder: &Path,
    options: &Options,
    cancel: &AtomicBool,
) -> Result<Calibration, TrialError> {
    let setup = Setup {
        topology: &plan.topology,
        routing: Routing::Plain,
        hosts: &[],
        program: &options.program,
        logs: folder,
        seed: plan.seed,
    };
    let bed = Bed::build(lease, &setup, cancel)?;
    Ok(bed.calibrate(cancel, &plan.topology)?)
}

fn run_all(
    results: &mut Results,
    lease: &Lease,
    options: &Options,
    open: &[(&Cell, u32)],
    cancel: &AtomicBool,
    watch: &mut dyn FnMut(Notice<'_>),
) -> Result<(), TrialError> {
    if open.is_empty() {
        return Ok(());
    }
    let folder = results.folder.clone();
    let scratch = Scratch::new(&folder.join("scratch"));
    let place = folder.join("scratch");
    let shared = place.join("content");
    fs::create_dir_all(&shared).map_err(|error| BedError::file(&shared, error))?;
    let torrent = make_content(&results.plan, &shared, options, cancel)?;
    let mut pace = Pace::new(&results.plan, open);
    for (cell, repetition) in open {
        let name = results.plan.name(cell);
        watch(Notice::Run(&name, *repetition));
        let logs = folder.join("runs").join(name.replace('/', "-")).join(repetition.to_string());
        // What an earlier try said is not this one's.
        drop(Scratch::new(&logs));
        fs::create_dir_all(&logs).map_err(|error| BedError::file(&logs, error))?;
        let ground = one::Ground {
            lease,
            plan: &results.plan,
            program: &options.program,
            torrent: &torrent,
            content: &shared,
            scratch: &place,
            cancel,
        };
        let begun = Instant::now();
        let made = one::run(&ground, cell, *repetition, &logs, &mut |live| {
            watch(Notice::Goes(&name, live, pace.left(begun.elapsed())));
        });
        let made = match made {
            Ok(made) => made,
            // Nothing that another try would change.
            Err(
                error @ (BedError::Canceled | BedError::NotRoot | BedError::TooMany { .. } | BedError::File { .. }),
            ) => {
                return Err(error.into());
            }
            Err(error) => failed(&results.plan, cell, *repetition, &error),
        };
        pace.done(begun.elapsed());
        append(&folder.join(RUNS), &made.to_json(&results.plan.topology))?;
        watch(Notice::Ended(&made));
        results.runs.push(made);
    }
    drop(scratch);
    Ok(())
}

/// A run that did not even begin.
fn failed(plan: &Plan, cell: &Cell, repetition: u32, error: &BedError) -> RunResult {
    RunResult {
        cell: plan.name(cell),
        repetition,
        began: 0.0,
        build_seconds: 0.0,
        seconds: 0.0,
        content_bytes: plan.content_bytes,
        peers: Vec::new(),
        cpu: [0.0; 3],
        busy: None,
        links: Vec::new(),
        failed: Some(error.to_string()),
    }
}

/// Writes the content and makes its torrent.
fn make_content(plan: &Plan, shared: &Path, options: &Options, cancel: &AtomicBool) -> Result<PathBuf, TrialError> {
    let (file, torrent) = (shared.join("content.bin"), shared.with_extension("torrent"));
    content::write(&file, plan.content_bytes, cancel).map_err(|error| match error {
        DemoError::File { path, error } => BedError::File { path, error },
        _ => BedError::Canceled,
    })?;
    let mut command = bare(&options.program);
    command.arg("create").arg(&file).arg("-o").arg(&torrent).args(["--piece-length", &plan.piece_bytes.to_string()]);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| BedError::Start { program: options.program.display().to_string(), error })?;
    if output.status.success() {
        return Ok(torrent);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BedError::Program { name: "create".into(), what: "failed".into(), said, log: torrent }.into())
}

/// Adds a line that is on the disk when this returns.
fn append(path: &Path, value: &Value) -> Result<(), TrialError> {
    let written = OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| {
        // A line that a crash cut off stays alone.
        let is_cut = fs::read(path)?.last().is_some_and(|byte| *byte != b'\n');
        let lead = if is_cut { "\n" } else { "" };
        file.write_all(format!("{lead}{value}\n").as_bytes())?;
        file.sync_data()
    });
    Ok(written.map_err(|error| BedError::file(path, error))?)
}

/// Writes a file that is whole or not there.
fn write_whole(path: &Path, text: &str) -> Result<(), TrialError> {
    let fresh = path.with_extension("new");
    let written = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, path));
    Ok(written.map_err(|error| BedError::file(path, error))?)
}

/// How long runs take.
struct Pace {
    estimated: f64,
    taken: Vec<f64>,
    open: usize,
}

impl Pace {
    fn new(plan: &Plan, open: &[(&Cell, u32)]) -> Self {
        let cells: Vec<Cell> = open.iter().map(|(cell, _)| (*cell).clone()).collect();
        Self {
            estimated: estimate(plan, &cells, 1).as_secs_f64() / open.len().max(1) as f64,
            taken: Vec::new(),
            open: open.len(),
        }
    }

    fn done(&mut self, took: Duration) {
        self.taken.push(took.as_secs_f64());
    }

    /// Of all runs that are not done, one of which goes on for so long.
    fn left(&self, current: Duration) -> Duration {
        let each = if self.taken.is_empty() {
            self.estimated
        } else {
            self.taken.iter().sum::<f64>() / self.taken.len() as f64
        };
        let left = each * (self.open - self.taken.len()) as f64 - current.as_secs_f64().min(each);
        Duration::from_secs_f64(left.max(0.0))
    }
}
