//! Sweeps as job arrays of Slurm: each cell is a task, on whichever node is free, and results are as if they had been run here.
//!
//! The folder of results gets its lock first; the lock is all that a task needs to know. Each task keeps results of its own below
//! `tasks/`, with the machine and the links as it found them, and [`collect`] puts them together as often as it is asked to.
//! Nodes and submitter see the folder and the program under the same names, as is usual there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use super::{
    LOGS, Measurements, Notice, Options, Outcome, RUNS, Results, TrialError, chosen, lock, read_runs, run, write_whole,
};
use crate::bed::{BedError, Calibration};
use crate::plan::Plan;

/// What tasks leave goes here, by their numbers.
const TASKS: &str = "tasks";
const JOB: &str = "job.sh";

/// How a plan is submitted.
#[derive(Clone, Debug)]
pub struct Submit {
    /// As for a run here.
    pub options: Options,
    /// Further arguments of `sbatch`.
    pub sbatch: Vec<String>,
    /// Tasks that run at once at most; as many as there are nodes for where nothing is said.
    pub at_once: Option<u32>,
}

/// What was submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// The number that Slurm gave; none where every task is done.
    pub job: Option<String>,
    /// How many tasks were submitted, and how many are done.
    pub tasks: [usize; 2],
    /// Where results will be.
    pub folder: PathBuf,
}

/// What was collected.
#[derive(Debug)]
pub struct Collected {
    /// Results and their page.
    pub outcome: Outcome,
    /// Cells of which runs are missing.
    pub missing: Vec<String>,
}

/// Submits the cells of a plan, or those of them that are not done.
///
/// # Errors
/// When there are results already, or Slurm does not take it.
pub fn submit(plan: &Plan, how: &Submit) -> Result<Submission, TrialError> {
    if let Some(why) = &plan.sim {
        return Err(TrialError::Simulated { id: plan.id.clone(), why: why.clone() });
    }
    let options = &how.options;
    let cells: Vec<String> = chosen(plan, &options.only)?.iter().map(|cell| plan.name(cell)).collect();
    let folder = options.out.join(&plan.id);
    let tasks = folder.join(TASKS);
    fs::create_dir_all(&tasks).map_err(|error| BedError::file(&tasks, error))?;
    let folder = folder.canonicalize().map_err(|error| BedError::file(&folder, error))?;
    let mut ours = lock::make(plan, options, &Calibration::default());
    ours["tasks"] = json!(cells);
    let is_new = !folder.join(lock::FILE).exists();
    if !is_new {
        if !options.resume {
            return Err(TrialError::Occupied(folder));
        }
        let theirs = lock::read(&folder)?;
        // Which machine submits says nothing of those that run.
        ours["machine"] = theirs["machine"].clone();
        let what = if ours["tasks"] == theirs["tasks"] { lock::difference(&ours, &theirs) } else { Some("--only") };
        if let Some(what) = what {
            return Err(TrialError::Other { folder, what });
        }
    }
    write_whole(&folder.join(lock::FILE), &format!("{ours:#}\n"))?;
    let repetitions = options.repeat.unwrap_or(plan.repetitions);
    let open: Vec<usize> = (0..cells.len())
        .filter(|task| {
            let runs = runs_of(&folder, &plan.id, *task).unwrap_or_default();
            runs.iter().filter(|run| run.failed.is_none()).count() < repetitions as usize
        })
        .collect();
    let done = cells.len() - open.len();
    if open.is_empty() {
        return Ok(Submission { job: None, tasks: [0, done], folder });
    }
    let script = folder.join(JOB);
    write_whole(&script, &job(&plan.id, &options.program, &folder))?;
    let mut command = Command::new("sbatch");
    let limit = how.at_once.map_or(String::new(), |most| format!("%{most}"));
    command.arg("--parsable").arg(format!("--array={}{limit}", ranges(&open)));
    command.arg(format!("--job-name=anabranch-{}", plan.id));
    command
        .arg("--chdir")
        .arg(&folder)
        .arg("--output")
        .arg(folder.join(TASKS).join("%a.log"))
        .args(&how.sbatch)
        .arg(&script);
    let said = sent(command).inspect_err(|_| {
        if is_new {
            // Nothing was submitted: the next try is a first one. Where this fails, it says that there are results.
            fs::remove_file(folder.join(lock::FILE)).ok();
        }
    })?;
    // `JOB`, or `JOB;CLUSTER` (sbatch(1), --parsable).
    let job = said.trim().split(';').next().unwrap_or_default().to_owned();
    Ok(Submission { job: Some(job), tasks: [open.len(), done], folder })
}

/// What `sbatch` says to a command.
fn sent(mut command: Command) -> Result<String, TrialError> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            BedError::Missing { program: "sbatch".into(), package: "Slurm (Debian: slurm-client)" }
        }
        _ => BedError::Start { program: "sbatch".into(), error },
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let command = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let said = String::from_utf8_lossy(&output.stderr).lines().map(str::trim).collect::<Vec<_>>().join("; ");
    Err(TrialError::Slurm { command, said })
}

/// What Slurm runs for each task.
fn job(id: &str, program: &Path, folder: &Path) -> String {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', "'\\''"));
    format!(
        "#!/bin/sh\n# A cell of {id}; made by `anabranch lab submit`.\nexec {} lab task {} \"$SLURM_ARRAY_TASK_ID\"\n",
        quoted(program),
        quoted(folder)
    )
}

/// Numbers in rising order as `sbatch --array` takes them: `0-3,7`.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<[usize; 2]> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some([_, last]) if *last + 1 == *number => *last = *number,
            _ => parts.push([*number, *number]),
        }
    }
    let shown = |[first, last]: &[usize; 2]| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.iter().map(shown).collect::<Vec<_>>().join(",")
}

/// Runs one task of a submitted plan; what an earlier try made is gone on with.
///
/// # Errors
/// As [`run`], or when there is no such task.
pub fn task(
    folder: &Path,
    task: usize,
    program: &Path,
    cancel: &AtomicBool,
    watch: &mut dyn FnMut(Notice<'_>),
) -> Result<Outcome, TrialError> {
    let locked = lock::locked(folder, program)?;
    let cells = cells(&lock::read(folder)?);
    if cells.is_empty() {
        return Err(TrialError::NotSubmitted(folder.to_path_buf()));
    }
    let none = TrialError::NoTask { folder: folder.to_path_buf(), task, last: cells.len().saturating_sub(1) };
    let cell = cells.get(task).ok_or(none)?;
    let options = Options {
        program: program.to_path_buf(),
        out: folder.join(TASKS).join(task.to_string()),
        only: vec![cell.clone()],
        repeat: locked.repeat,
        resume: true,
        jobs: None,
    };
    // What was begun on another machine, or by another program, is begun anew here.
    let begun = place(folder, &locked.plan.id, task);
    if let Ok(theirs) = lock::read(&begun) {
        let ours = lock::make(&locked.plan, &options, &Calibration::default());
        if lock::difference(&ours, &theirs).is_some() {
            fs::remove_dir_all(&begun).map_err(|error| BedError::file(&begun, error))?;
        }
    }
    run(locked.plan, &options, &mut Measurements::new(), cancel, watch)
}

fn cells(lock: &Value) -> Vec<String> {
    lock["tasks"].as_array().into_iter().flatten().filter_map(|cell| Some(cell.as_str()?.to_owned())).collect()
}

/// Where a task's results are.
fn place(folder: &Path, id: &str, task: usize) -> PathBuf {
    folder.join(TASKS).join(task.to_string()).join(id)
}

fn runs_of(folder: &Path, id: &str, task: usize) -> Result<Vec<super::RunResult>, TrialError> {
    let place = place(folder, id, task);
    if place.join(lock::FILE).exists() { read_runs(&place.join(RUNS)) } else { Ok(Vec::new()) }
}

/// Puts together what tasks have left so far, as if all had been run here.
///
/// # Errors
/// When the folder was not submitted, or cannot be written.
pub fn collect(folder: &Path) -> Result<Collected, TrialError> {
    let mut lock = lock::read(folder)?;
    let cells = cells(&lock);
    if cells.is_empty() {
        return Err(TrialError::NotSubmitted(folder.to_path_buf()));
    }
    let plan = lock::plan(&lock, folder)?;
    let repetitions = lock["repeat"].as_u64().map_or(plan.repetitions as usize, |repeat| repeat as usize);
    let (mut runs, mut missing, mut calibration) = (Vec::new(), Vec::new(), Vec::new());
    let mut left_out = 0;
    let mut machines = BTreeSet::new();
    for (task, cell) in cells.iter().enumerate() {
        let of_task = runs_of(folder, &plan.id, task)?;
        if of_task.iter().filter(|run| run.failed.is_none()).count() < repetitions {
            missing.push(cell.clone());
        }
        if of_task.is_empty() {
            continue;
        }
        let theirs = lock::read(&place(folder, &plan.id, task))?;
        calibration.extend(theirs["calibration"].as_array().into_iter().flatten().cloned());
        left_out += theirs["calibration_left_out"].as_u64().unwrap_or(0);
        machines.insert(theirs["machine"].to_string());
        take_logs(&place(folder, &plan.id, task).join(LOGS), &folder.join(LOGS))?;
        runs.extend(of_task);
    }
    let order = |run: &super::RunResult| (run.repetition, cells.iter().position(|cell| *cell == run.cell));
    runs.sort_by_key(order);
    let lines: String = runs.iter().map(|run| format!("{}\n", run.to_json(&plan.topology))).collect();
    write_whole(&folder.join(RUNS), &lines)?;
    let machines: Vec<Value> = machines.iter().filter_map(|machine| serde_json::from_str(machine).ok()).collect();
    if let Some(machine) = machines.first() {
        lock["machine"] = machine.clone();
    }
    lock["machines"] = json!(machines);
    lock["calibration"] = json!(calibration);
    lock["calibration_left_out"] = json!(left_out);
    write_whole(&folder.join(lock::FILE), &format!("{lock:#}\n"))?;
    let results = Results { folder: folder.to_path_buf(), lock, plan, runs };
    let page = results.write()?;
    Ok(Collected { outcome: Outcome { results, page }, missing })
}

/// Lets the logs of runs be found where those of runs here are.
fn take_logs(from: &Path, to: &Path) -> Result<(), TrialError> {
    let Ok(cells) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir_all(to).map_err(|error| BedError::file(to, error))?;
    for cell in cells.flatten() {
        let link = to.join(cell.file_name());
        // Relative, so that the folder may be moved.
        let target =
            Path::new("..").join(from.strip_prefix(to.parent().unwrap_or(to)).unwrap_or(from)).join(cell.file_name());
        if link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink(&target, &link).map_err(|error| BedError::file(&link, error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_their_program_are_named_as_slurm_and_shells_take_them() {
        assert_eq!(ranges(&[0, 1, 2, 3]), "0-3");
        assert_eq!(ranges(&[0, 2, 3, 9]), "0,2-3,9");
        assert_eq!(ranges(&[]), "");
        let job = job("x", Path::new("/opt/my lab/anabranch"), Path::new("/srv/it's"));
        assert!(
            job.ends_with("exec '/opt/my lab/anabranch' lab task '/srv/it'\\''s' \"$SLURM_ARRAY_TASK_ID\"\n"),
            "{job}"
        );
    }
}
