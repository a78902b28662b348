//! Makes the runs of a plan that have no results yet, one after the other or several at once.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::clients::CONTENT;
use super::measure::{self, Measurements};
use super::one::{self, Live};
use super::result::RunResult;
use super::{
    Notice, Options, Outcome, RUNS, Results, TrialError, estimate, hold, lock, logs_of, preflight, read_runs,
    write_whole,
};
use crate::bed::program::{bare, dies_with_us};
use crate::bed::{BedError, Calibration, Lease};
use crate::demo::DemoError;
use crate::demo::content::{self, Scratch};
use crate::fluid::Bounds;
use crate::plan::{Cell, Plan};

/// Runs a plan, or what of it has no results yet. The calling thread has to live as long.
///
/// # Errors
/// When there can be no results at all; a run that fails is a result, and the next one has its turn.
pub fn run(
    plan: Plan,
    options: &Options,
    measured: &mut Measurements,
    cancel: &AtomicBool,
    watch: &mut dyn FnMut(Notice<'_>),
) -> Result<Outcome, TrialError> {
    // What is missing is said before anything begins.
    let cells = preflight::begins(&plan, options)?;
    let (lease, removed) = Lease::new()?;
    if !removed.is_empty() {
        watch(Notice::Removed(&removed));
    }
    let folder = options.out.join(&plan.id);
    fs::create_dir_all(&folder).map_err(|error| BedError::file(&folder, error))?;
    let folder = folder.canonicalize().map_err(|error| BedError::file(&folder, error))?;
    // Two labs would make the same runs, and each take the other's files away.
    let _held = hold(&folder)?;
    let place = scratch(&folder);
    let lock = if folder.join(lock::FILE).exists() { Some(lock::read(&folder)?) } else { None };
    let mut runs = if lock.is_some() { read_runs(&folder.join(RUNS))? } else { Vec::new() };
    let done: HashSet<(String, u32)> =
        runs.iter().filter(|run| run.failed.is_none()).map(|run| (run.cell.clone(), run.repetition)).collect();
    let repetitions = options.repeat.unwrap_or(plan.repetitions);
    let all = (0..repetitions).flat_map(|repetition| cells.iter().map(move |cell| (cell, repetition)));
    let open: Vec<(&Cell, u32)> =
        all.filter(|(cell, repetition)| !done.contains(&(plan.name(cell), *repetition))).collect();
    watch(Notice::Plan(&plan, open.len(), done.len()));
    let is_fresh = lock.is_none();
    let mut lock = lock.unwrap_or_else(|| lock::make(&plan, options, &Calibration::default()));
    lock::widen(&mut lock, &plan, options, !runs.is_empty());
    // Those that failed have another try.
    runs.retain(|run| run.failed.is_none());
    let asked = lock::unmeasured(&lock, measure::asked(&plan, &cells));
    if is_fresh || !(open.is_empty() || asked.is_empty()) {
        let ground = (options.program.as_path(), folder.as_path());
        let calibration = measure::calibrate(measured, &asked, &plan, &lease, ground, cancel)?;
        watch(Notice::Calibrated(&calibration));
        lock::add_measured(&mut lock, &calibration);
    }
    write_whole(&folder.join(lock::FILE), &format!("{lock:#}\n"))?;
    let mut results = Results { folder, lock, plan, runs };
    let ground = (results.folder.as_path(), place.path());
    let ended = run_all(ground, &results.plan, &lease, options, &open, cancel, &mut results.runs, watch);
    // What is there is shown.
    let page = results.write()?;
    ended?;
    Ok(Outcome { results, page })
}

/// Where peers put what they fetch; what a lab left there that was killed is removed, even where nothing is to be run.
fn scratch(folder: &Path) -> Scratch {
    Scratch::new(&folder.join("scratch"))
}

/// What workers tell.
enum WorkerEvent {
    Begins(usize),
    Goes(usize, Live),
    Ended(usize, Box<Result<RunResult, BedError>>, Duration),
}

#[allow(clippy::too_many_arguments, reason = "the parts of one `Results`, of which some are read and one is written")]
fn run_all(
    (folder, place): (&Path, &Path),
    plan: &Plan,
    lease: &Lease,
    options: &Options,
    open: &[(&Cell, u32)],
    cancel: &AtomicBool,
    runs: &mut Vec<RunResult>,
    watch: &mut dyn FnMut(Notice<'_>),
) -> Result<(), TrialError> {
    if open.is_empty() {
        return Ok(());
    }
    let contents = Contents::make(plan, open, place, options, cancel)?;
    let ground = Runs {
        folder,
        plan,
        lease,
        options,
        open,
        place,
        contents: &contents,
        next: AtomicUsize::new(0),
        turn: RwLock::default(),
        cancel,
    };
    let jobs = options.jobs.unwrap_or(plan.jobs);
    let mut pace = Pace::new(plan, open, jobs);
    let (tell, told) = channel();
    thread::scope(|scope| {
        for slot in 0..(jobs as usize).clamp(1, open.len()) {
            let (ground, tell) = (&ground, tell.clone());
            scope.spawn(move || ground.work(slot, &tell));
        }
        drop(tell);
        let mut failure = None;
        for message in told {
            let named = |at: usize| (plan.name(open[at].0), open[at].1);
            match message {
                WorkerEvent::Begins(at) => {
                    let (name, repetition) = named(at);
                    watch(Notice::Run(&name, repetition));
                }
                WorkerEvent::Goes(at, live) => {
                    watch(Notice::Goes(&named(at).0, live, pace.left(Duration::from_secs_f64(live.seconds))));
                }
                WorkerEvent::Ended(at, made, took) => {
                    let (name, repetition) = named(at);
                    let kept = keep(plan, (&name, repetition), *made, folder);
                    pace.done(took);
                    match kept {
                        Ok(run) => {
                            watch(Notice::Ended(&run));
                            runs.push(run);
                        }
                        Err(error) => {
                            // Nothing that another try would change: the others end, too.
                            ground.next.store(open.len(), Ordering::Relaxed);
                            failure.get_or_insert(error);
                        }
                    }
                }
            }
        }
        failure.map_or(Ok(()), Err)
    })
}

/// Writes down what came of a run; an error where no other run would fare better.
fn keep(
    plan: &Plan,
    (name, repetition): (&str, u32),
    made: Result<RunResult, BedError>,
    folder: &Path,
) -> Result<RunResult, TrialError> {
    let run = match made {
        Ok(run) => run,
        Err(error @ (BedError::Canceled | BedError::NotRoot | BedError::TooMany { .. } | BedError::File { .. })) => {
            return Err(error.into());
        }
        Err(error) => failed(plan, name, repetition, &error),
    };
    append(&folder.join(RUNS), &run.to_json(&plan.topology))?;
    Ok(run)
}

/// What workers share.
struct Runs<'a> {
    folder: &'a Path,
    plan: &'a Plan,
    lease: &'a Lease,
    options: &'a Options,
    open: &'a [(&'a Cell, u32)],
    place: &'a Path,
    contents: &'a Contents,
    /// The first run that nobody has taken.
    next: AtomicUsize,
    /// Held by runs that go on, by those that are to be alone for themselves.
    turn: RwLock<()>,
    cancel: &'a AtomicBool,
}

impl Runs<'_> {
    /// Makes one run after the other. Programs end with the thread that started them, which this one outlives.
    fn work(&self, slot: usize, tell: &Sender<WorkerEvent>) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((cell, repetition)) = self.open.get(at) else { return };
            let is_alone = self.plan.candidates[cell.candidate].alone;
            let _alone = is_alone.then(|| self.turn.write().unwrap_or_else(PoisonError::into_inner));
            let _beside = (!is_alone).then(|| self.turn.read().unwrap_or_else(PoisonError::into_inner));
            let begun = Instant::now();
            // Whoever listens lives as long as the workers do.
            tell.send(WorkerEvent::Begins(at)).ok();
            let made = self.one(slot, cell, *repetition, &mut |live| {
                tell.send(WorkerEvent::Goes(at, live)).ok();
            });
            tell.send(WorkerEvent::Ended(at, Box::new(made), begun.elapsed())).ok();
        }
    }

    fn one(
        &self,
        slot: usize,
        cell: &Cell,
        repetition: u32,
        watch: &mut dyn FnMut(Live),
    ) -> Result<RunResult, BedError> {
        let logs = logs_of(self.folder, &self.plan.name(cell), repetition);
        // What an earlier try said is not this one's.
        drop(Scratch::new(&logs));
        fs::create_dir_all(&logs).map_err(|error| BedError::file(&logs, error))?;
        let under = self.plan.under(cell);
        let (content, torrent) = self.contents.of(&under, cell);
        let ground = one::RunContext {
            lease: self.lease,
            plan: &under,
            program: &self.options.program,
            torrent: &torrent,
            content: &content,
            scratch: self.place,
            cancel: self.cancel,
            slot,
        };
        one::run(&ground, cell, repetition, &logs, watch)
    }
}

/// A run that did not even begin.
fn failed(plan: &Plan, name: &str, repetition: u32, error: &BedError) -> RunResult {
    RunResult {
        cell: name.to_owned(),
        repetition,
        began: 0.0,
        build_seconds: 0.0,
        seconds: 0.0,
        content_bytes: plan.content_bytes,
        peers: Vec::new(),
        cpu: [0.0; 3],
        busy: None,
        links: Vec::new(),
        crossed: Vec::new(),
        happened: Vec::new(),
        failed: Some(error.to_string()),
    }
}

/// The contents that runs fetch, one for each length, length of pieces and tracker.
struct Contents {
    folders: HashMap<Content, PathBuf>,
}

type Content = (u64, u32, Option<String>);

/// What a cell fetches, given its plan with its variant in place.
fn content_of(under: &Plan, cell: &Cell) -> Content {
    (under.content_bytes, under.piece_bytes, under.tracker(cell))
}

impl Contents {
    fn make(
        plan: &Plan,
        open: &[(&Cell, u32)],
        place: &Path,
        options: &Options,
        cancel: &AtomicBool,
    ) -> Result<Self, TrialError> {
        let mut folders = HashMap::new();
        for (cell, _) in open {
            let under = plan.under(cell);
            let number = folders.len();
            if let Entry::Vacant(free) = folders.entry(content_of(&under, cell)) {
                let folder = place.join(format!("content-{number}"));
                fs::create_dir_all(&folder).map_err(|error| BedError::file(&folder, error))?;
                make_content(&under, free.key().2.as_deref(), &folder, options, cancel)?;
                free.insert(folder);
            }
        }
        Ok(Self { folders })
    }

    /// The folder and the torrent of what a cell fetches.
    fn of(&self, under: &Plan, cell: &Cell) -> (PathBuf, PathBuf) {
        let folder = self.folders.get(&content_of(under, cell)).cloned().unwrap_or_default();
        let torrent = folder.with_extension("torrent");
        (folder, torrent)
    }
}

/// Writes the content and makes its torrent: of version 1 where clients need a tracker, since these know no other.
fn make_content(
    plan: &Plan,
    tracker: Option<&str>,
    folder: &Path,
    options: &Options,
    cancel: &AtomicBool,
) -> Result<(), TrialError> {
    let (file, torrent) = (folder.join(CONTENT), folder.with_extension("torrent"));
    content::write(&file, plan.content_bytes, cancel).map_err(|error| match error {
        DemoError::File { path, error } => BedError::File { path, error },
        _ => BedError::Canceled,
    })?;
    let mut command = bare(&options.program);
    command.arg("create").arg(&file).arg("-o").arg(&torrent).args(["--piece-length", &plan.piece_bytes.to_string()]);
    if let Some(tracker) = tracker {
        command.args(["--version", "1", "--tracker", tracker]);
    }
    dies_with_us(&mut command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| BedError::Start { program: options.program.display().to_string(), error })?;
    if output.status.success() {
        return Ok(());
    }
    // Beside the scratch folder, which goes when this fails.
    let log = options.out.join(&plan.id).join("create.err");
    fs::write(&log, &output.stderr).map_err(|error| BedError::file(&log, error))?;
    let said = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("nothing").to_owned();
    Err(BedError::Program { name: "create".into(), what: "failed".into(), said, log }.into())
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

/// How long runs take.
struct Pace {
    estimated: f64,
    taken: Vec<f64>,
    open: usize,
    /// How many go on at once, in the mean.
    at_once: f64,
}

impl Pace {
    fn new(plan: &Plan, open: &[(&Cell, u32)], jobs: u32) -> Self {
        let cells: Vec<Cell> = open.iter().map(|(cell, _)| (*cell).clone()).collect();
        let bounds = Bounds::of_all(plan, &cells);
        let seconds = |jobs| estimate(plan, &cells, &bounds, 1, jobs).as_secs_f64();
        let (apart, at_once) = (seconds(1), seconds(jobs));
        Self {
            estimated: apart / open.len().max(1) as f64,
            taken: Vec::new(),
            open: open.len(),
            at_once: if at_once > 0.0 { apart / at_once } else { 1.0 },
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
        Duration::from_secs_f64(left.max(0.0) / self.at_once)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_lab_left_in_its_folder_goes_with_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join("scratch/got-0");
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("content.bin"), b"half of it").unwrap();
        let place = scratch(dir.path());
        assert!(!dir.path().join("scratch").exists());
        fs::create_dir_all(place.path()).unwrap();
        drop(place);
        assert!(!dir.path().join("scratch").exists());
    }
}
