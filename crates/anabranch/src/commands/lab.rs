//! `lab`: experiments on networks of this machine, and their results.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_lab::bed::{BedError, Calibration, Measured};
use anabranch_lab::compare;
use anabranch_lab::fluid::Bounds;
use anabranch_lab::plan::{Form, Measure, Plan, Verdict};
use anabranch_lab::sheet::{Sheet, markdown};
use anabranch_lab::trial::{self, Measurements, Notice, Options, Results, RunResult, Submit, TrialError};
use serde_json::json;

use crate::cli::{
    LabCellFlags, LabCheckFlags, LabCollectFlags, LabCommand, LabCompareFlags, LabFlags, LabFormFlags, LabListFlags,
    LabReportFlags, LabRoutesFlags, LabRunFlags, LabSubmitFlags, LabTaskFlags,
};
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::runtime;
use crate::status::StatusLines;
use crate::{system, units};

/// How often progress is told where nobody draws it.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Directions of links that are named when they do not fit.
const MISFITS_SHOWN: usize = 5;
/// Why directions of links are not measured.
const NOT_MEASURED: &str =
    "without a limit, above 500 or below 0.1 Mbit/s, losing more than half, or the last of too many";

/// Runs the command.
pub(crate) fn run(flags: &LabFlags, chatter: Chatter) -> Result<Code, Failure> {
    match &flags.command {
        LabCommand::Run(flags) => run_plans(flags, chatter),
        LabCommand::Check(flags) => check(flags),
        LabCommand::List(flags) => list(flags, chatter),
        LabCommand::Submit(flags) => submit(flags, chatter),
        LabCommand::Collect(flags) => collect(flags, chatter),
        LabCommand::Task(flags) => task(flags, chatter),
        LabCommand::Routes(flags) => routes(flags),
        LabCommand::Report(flags) => report(flags),
        LabCommand::Compare(flags) => compare(flags),
    }
}

fn load(path: &Path, flags: &LabFormFlags) -> Result<Plan, Failure> {
    let form = match (flags.quick, flags.full) {
        (true, _) => Form::Quick,
        (_, true) => Form::Full,
        _ => Form::Standard,
    };
    Ok(Plan::load(path).map_err(Failure::input)?.in_form(form))
}

fn options(out: &Path, cells: &LabCellFlags, jobs: Option<u32>) -> Result<Options, Failure> {
    let LabCellFlags { only, repeat, resume, form: _ } = cells;
    let (out, only) = (out.to_owned(), only.clone());
    Ok(Options { program: this_program()?, out, only, repeat: *repeat, resume: *resume, jobs })
}

fn run_plans(flags: &LabRunFlags, chatter: Chatter) -> Result<Code, Failure> {
    let mut options = options(&flags.out, &flags.cells, flags.jobs)?;
    // Mistakes are told before hours of work.
    let mut plans = match &flags.lock {
        None => flags.plans.iter().map(|path| load(path, &flags.cells.form)).collect::<Result<Vec<_>, _>>()?,
        Some(lock) => {
            let locked = trial::locked(lock, &options.program).map_err(|error| failure(&error))?;
            for what in &locked.differs {
                chatter.note(format_args!("not as it was: {what}"));
            }
            if options.only.is_empty() {
                options.only = locked.only;
            }
            options.repeat = options.repeat.or(locked.repeat);
            vec![locked.plan]
        }
    };
    // Whoever names a folder's plans means those that real packets run.
    if plans.iter().any(|plan| plan.sim.is_none()) {
        plans.retain(|plan| {
            let sim = plan.sim.as_ref();
            sim.inspect(|why| chatter.note(format_args!("{} is left out: it is for virtual time ({why})", plan.id)));
            sim.is_none()
        });
    }
    trial::preflight(&plans, &options).map_err(|error| failure(&error))?;
    system::raise_open_files_limit();
    let cancel = Arc::new(AtomicBool::new(false));
    let mut screen = Screen::new(flags.json, chatter, Arc::clone(&cancel));
    let seen = Arc::clone(&cancel);
    runtime::cancellable(&cancel, move || {
        let (mut code, mut measured) = (Code::Success, Measurements::new());
        for plan in plans {
            let outcome = trial::run(plan, &options, &mut measured, &seen, &mut |notice| screen.show(&notice));
            let came_out = screen.close(outcome, &options.out)?;
            if came_out != Code::Success {
                code = came_out;
            }
        }
        Ok(code)
    })
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::new(Code::Failed, format!("the system does not say which program this is: {error}")))
}

fn submit(flags: &LabSubmitFlags, chatter: Chatter) -> Result<Code, Failure> {
    let plan = load(&flags.plan, &flags.cells.form)?;
    let options = options(&flags.out, &flags.cells, None)?;
    let how = Submit { options, sbatch: flags.sbatch.clone(), at_once: flags.jobs };
    let submitted = trial::submit(&plan, &how).map_err(|error| failure(&error))?;
    let ([tasks, done], folder) = (submitted.tasks, submitted.folder.display());
    if flags.json {
        output::line(
            json!({ "job": submitted.job, "tasks": tasks, "tasks_done": done, "folder": folder.to_string() }),
        )?;
    } else if let Some(job) = submitted.job {
        let done = if done > 0 { format!(", {done} are done") } else { String::new() };
        output::line(format_args!("{}: job {job}, {}{done}", plan.id, units::count(tasks, "task")))?;
        chatter.note(format_args!("`anabranch lab collect {folder}` puts together what is there, at any time"));
    } else {
        output::line(format_args!("{}: all {} are done", plan.id, units::count(done, "task")))?;
    }
    Ok(Code::Success)
}

fn collect(flags: &LabCollectFlags, chatter: Chatter) -> Result<Code, Failure> {
    let collected = trial::collect(&flags.dir).map_err(|error| failure(&error))?;
    let outcome = &collected.outcome;
    if !chatter.quiet {
        output::line(format_args!("{}\nThe page: {}", Sheet::new(&outcome.results).text(), outcome.page.display()))?;
    }
    if collected.missing.is_empty() {
        return Ok(Code::Success);
    }
    let (count, shown) = (collected.missing.len(), collected.missing.iter().take(MISFITS_SHOWN));
    let names = shown.cloned().collect::<Vec<_>>().join(", ");
    let more = if count > MISFITS_SHOWN { " and others" } else { "" };
    chatter.note(format_args!(
        "{} not done: {names}{more}; collect again when they are, or submit them again (submit --resume)",
        units::count(count, "cell")
    ));
    Ok(Code::Incomplete)
}

fn task(flags: &LabTaskFlags, chatter: Chatter) -> Result<Code, Failure> {
    system::raise_open_files_limit();
    let program = this_program()?;
    let (dir, number) = (flags.dir.clone(), flags.task);
    let cancel = Arc::new(AtomicBool::new(false));
    let mut screen = Screen::new(false, chatter, Arc::clone(&cancel));
    let seen = Arc::clone(&cancel);
    runtime::cancellable(&cancel, move || {
        let outcome = trial::task(&dir, number, &program, &seen, &mut |notice| screen.show(&notice));
        screen.close(outcome, &dir)
    })
}

fn routes(flags: &LabRoutesFlags) -> Result<Code, Failure> {
    let text = trial::routes(&flags.run, &flags.only).map_err(|error| failure(&error))?;
    output::line(text.trim_end())?;
    Ok(Code::Success)
}

/// Shows what goes on: a line that is redrawn, plain lines, or events.
struct Screen {
    json: bool,
    chatter: Chatter,
    lines: Option<StatusLines>,
    told: Option<Instant>,
    runs: usize,
    number: usize,
    cancel: Arc<AtomicBool>,
    /// Standard output failed: everything ends.
    failure: Option<Failure>,
}

impl Screen {
    fn new(json: bool, chatter: Chatter, cancel: Arc<AtomicBool>) -> Self {
        let lines = (chatter.draws() && !json).then(StatusLines::default);
        Self { json, chatter, lines, told: None, runs: 0, number: 0, cancel, failure: None }
    }

    fn show(&mut self, notice: &Notice<'_>) {
        match notice {
            Notice::Plan(_, open, _) => (self.runs, self.number) = (*open, 0),
            Notice::Run(..) => (self.number, self.told) = (self.number + 1, None),
            _ => {}
        }
        if let Notice::Removed(names) = notice {
            self.chatter.note(format_args!("removed what a lab left that did not end well: {}", names.join(", ")));
        }
        let shown = match self.json {
            true => self.tell(notice),
            false if self.chatter.quiet => Ok(()),
            false => self.print(notice),
        };
        if let Err(failure) = shown {
            self.cancel.store(true, Ordering::Relaxed);
            self.failure = Some(failure);
        }
    }

    fn print(&mut self, notice: &Notice<'_>) -> Result<(), Failure> {
        if let Notice::Goes(cell, live, left) = notice {
            let (number, runs, left) = (self.number, self.runs, units::duration(*left));
            let line = format!(
                "run {number} of {runs}: {cell}, {:.0} s, {} of {} done; {left} left in all",
                live.seconds, live.done, live.leechers
            );
            match &mut self.lines {
                Some(lines) => lines.draw(&[line]),
                None if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) => {
                    self.told = Some(Instant::now());
                    self.chatter.note(line);
                }
                None => {}
            }
            return Ok(());
        }
        if let Some(lines) = &mut self.lines {
            lines.clear();
        }
        match notice {
            Notice::Plan(plan, open, done) => {
                let there = if *done > 0 { format!(" ({done} are there)") } else { String::new() };
                let (ases, links) = (plan.topology.ases().len(), plan.topology.links().len());
                output::line(format_args!(
                    "{}: {}\n{} over {ases} ASes and {}, {} each{there}",
                    plan.id,
                    plan.title,
                    units::count(*open, "run"),
                    units::count(links, "link"),
                    units::bytes(plan.content_bytes)
                ))
            }
            Notice::Calibrated(calibration) => self.calibrated(calibration),
            Notice::Ended(run) => output::line(ended(run)),
            _ => Ok(()),
        }
    }

    fn calibrated(&self, calibration: &Calibration) -> Result<(), Failure> {
        let (fitting, all) = (calibration.fitting(), calibration.directions());
        output::line(format_args!(
            "links measured: {fitting} of {all} directions have their rate, delay and loss within 2 %"
        ))?;
        let unknown = calibration.not_measured();
        if unknown > 0 {
            output::line(format_args!("not measured: {unknown} of them ({NOT_MEASURED})"))?;
        }
        let misfits = calibration.measured.iter().filter(|each| each.fits == Some(false));
        misfits.take(MISFITS_SHOWN).for_each(|each| self.chatter.note(misfit(each)));
        Ok(())
    }

    fn tell(&mut self, notice: &Notice<'_>) -> Result<(), Failure> {
        match notice {
            Notice::Removed(names) => output::json_event("removed", json!({ "namespaces": names })),
            Notice::Plan(plan, open, done) => {
                output::json_event("plan", json!({ "id": plan.id, "runs": open, "runs_there": done }))
            }
            Notice::Calibrated(calibration) => {
                let (fitting, all) = (calibration.fitting(), calibration.directions());
                let unknown = calibration.not_measured();
                output::json_event(
                    "calibrated",
                    json!({ "directions": all, "fitting": fitting, "not_measured": unknown }),
                )
            }
            Notice::Run(cell, repetition) => {
                output::json_event("run", json!({ "cell": cell, "repetition": repetition }))
            }
            Notice::Goes(cell, live, left) => {
                if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
                    return Ok(());
                }
                self.told = Some(Instant::now());
                let fields = json!({
                    "cell": cell, "seconds": live.seconds, "done": live.done, "leechers": live.leechers,
                    "left_seconds": left.as_secs(),
                });
                output::json_event("progress", fields)
            }
            Notice::Ended(run) => {
                let measures =
                    Measure::ALL.iter().map(|measure| (measure.name().to_owned(), json!(run.value(*measure))));
                let measures: serde_json::Map<_, _> = measures.collect();
                let fields = json!({
                    "cell": run.cell, "repetition": run.repetition, "failed": run.failed, "measures": measures,
                });
                output::json_event("run_finished", fields)
            }
        }
    }

    fn close(&mut self, outcome: Result<trial::Outcome, TrialError>, out: &Path) -> Result<Code, Failure> {
        if let Some(lines) = &mut self.lines {
            lines.clear();
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let outcome = outcome.map_err(|error| match error {
            TrialError::Bed(BedError::Canceled) => {
                let message = format!("interrupted; --resume goes on with what is in {}", out.display());
                Failure::new(Code::Interrupted, message)
            }
            error => failure(&error),
        })?;
        let sheet = Sheet::new(&outcome.results);
        let failed = outcome.results.runs.iter().filter(|run| run.failed.is_some()).count();
        if self.json {
            let verdicts = outcome.results.plan.claims.iter().zip(sheet.verdicts());
            let verdicts: Vec<_> =
                verdicts.map(|(claim, verdict)| json!({ "claim": claim.text, "verdict": word(&verdict) })).collect();
            let fields =
                json!({ "page": outcome.page.display().to_string(), "verdicts": verdicts, "runs_failed": failed });
            output::json_event("report", fields)?;
        } else if !self.chatter.quiet {
            output::line(format_args!("\n{}\nThe page: {}", sheet.text(), outcome.page.display()))?;
        }
        if failed > 0 {
            self.chatter.note(format_args!("{} failed; --resume tries them again", units::count(failed, "run")));
            return Ok(Code::Incomplete);
        }
        Ok(Code::Success)
    }
}

/// What a direction of a link did, and what it should have done.
fn misfit(each: &Measured) -> String {
    let shown = |rate_bps: Option<f64>, delay: Option<Duration>, loss: Option<f64>, unlimited: &str| {
        let rate = rate_bps.map_or(unlimited.to_owned(), |rate| format!("{:.2} Mbit/s", rate / 1e6));
        let delay = delay.map_or("no delay known".to_owned(), |delay| format!("{:.2} ms", delay.as_secs_f64() * 1e3));
        format!("{rate}, {delay} and {:.2} % lost", loss.unwrap_or(0.0) * 100.0)
    };
    let shape = &each.asked.shape;
    format!(
        "{}: {}, not {}: the machine is busy, or the network too fast for it",
        each.asked.name,
        shown(each.got_bps, each.got_delay, each.got_loss, "no rate measured"),
        shown(shape.rate_bps.map(|rate| rate as f64), Some(shape.delay), Some(shape.loss), "unlimited")
    )
}

fn ended(run: &RunResult) -> String {
    let name = format!("{} {}", run.cell, run.repetition + 1);
    match (&run.failed, run.value(Measure::Goodput), run.value(Measure::Time)) {
        (None, Some(goodput), Some(time)) => {
            let busy = run.busy.map_or(String::new(), |busy| format!(", processors {:.0} % at work", busy * 100.0));
            format!("{name:<28} {goodput:8.1} Mbit/s in all, {time:6.1} s each{busy}")
        }
        (failed, ..) => format!("{name:<28} failed: {}", failed.as_deref().unwrap_or("nobody fetched anything")),
    }
}

fn check(flags: &LabCheckFlags) -> Result<Code, Failure> {
    let mut all = Vec::new();
    for path in &flags.plans {
        let plan = load(path, &flags.form)?;
        let cells = plan.cells();
        let bounds = Bounds::of_all(&plan, &cells);
        let time = trial::estimate(&plan, &cells, &bounds, plan.repetitions, plan.jobs);
        if plan.sim.is_none() {
            all.push(time);
        }
        let time = units::duration(time);
        output::line(format_args!("{}: {}", plan.id, plan.title))?;
        output::line(format_args!(
            "{} and {}, {} in pieces of {}; {} of {}, {} each{}: about {time}",
            units::count(plan.topology.ases().len(), "AS").replace("ASs", "ASes"),
            units::count(plan.topology.links().len(), "link"),
            units::bytes(plan.content_bytes),
            units::bytes(u64::from(plan.piece_bytes)),
            units::count(cells.len() * plan.repetitions as usize, "run"),
            units::count(cells.len(), "cell"),
            units::count(plan.repetitions as usize, "time"),
            if plan.jobs > 1 { format!(", {} at once", plan.jobs) } else { String::new() },
        ))?;
        if let Some(why) = &plan.sim {
            output::line(format_args!("  not for real packets: {why}"))?;
        }
        for event in &plan.events {
            output::line(format_args!("  {}", event.about(&plan.topology)))?;
        }
        for (cell, bounds) in cells.iter().zip(bounds) {
            let placement = &plan.placements[cell.placement];
            let routing = plan.candidates[cell.candidate].routing.name();
            let clients = plan.clients(std::slice::from_ref(cell));
            let clients = clients.iter().map(|client| client.name()).collect::<Vec<_>>().join(", ");
            let bounded = |mbit: Option<f64>| mbit.map_or("none".to_owned(), |mbit| format!("{mbit:.0} Mbit/s"));
            output::line(format_args!(
                "  {:<28} {} of {clients}, {routing}; bound {}, fluid {}",
                plan.name(cell),
                units::count(placement.peers.len(), "peer"),
                bounded(bounds.goodput_mbit),
                bounded(bounds.fluid_mbit)
            ))?;
        }
        for claim in &plan.claims {
            output::line(format_args!("  must hold: {}", claim.text))?;
        }
        if plan.claims_left_out > 0 {
            output::line(format_args!("  the full form has {} more", units::count(plan.claims_left_out, "claim")))?;
        }
    }
    if all.len() > 1 {
        let time = units::duration(all.iter().sum());
        output::line(format_args!("{} for real packets: about {time}", units::count(all.len(), "plan")))?;
    }
    Ok(Code::Success)
}

fn list(flags: &LabListFlags, chatter: Chatter) -> Result<Code, Failure> {
    let entries = std::fs::read_dir(&flags.dir).map_err(|error| {
        Failure::input(format!("{} cannot be read ({error}): name a folder of plans", flags.dir.display()))
    })?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    paths.sort();
    for path in paths {
        match Plan::load(&path) {
            Ok(plan) => {
                let runs = plan.cells().len() * plan.repetitions as usize;
                let how = if plan.sim.is_some() { "sim" } else { "lab" };
                output::line(format_args!("{:<16} {how} {:>10}  {}", plan.id, units::count(runs, "run"), plan.title))?;
            }
            Err(error) => chatter.note(error),
        }
    }
    Ok(Code::Success)
}

fn report(flags: &LabReportFlags) -> Result<Code, Failure> {
    let all = flags.dirs.iter().map(|dir| Results::load(dir).map_err(|error| failure(&error)));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    for results in &all {
        let page = results.write().map_err(|error| failure(&error))?;
        if !flags.markdown {
            let text = Sheet::new(results).text();
            output::line(format_args!("{}\n{text}\nThe page: {}", results.plan.id, page.display()))?;
        }
    }
    if flags.markdown {
        output::raw(markdown::page(&all).as_bytes())?;
    }
    Ok(Code::Success)
}

fn compare(flags: &LabCompareFlags) -> Result<Code, Failure> {
    let Some(measure) = Measure::ALL.into_iter().find(|measure| measure.name() == flags.measure) else {
        let known = Measure::NAMES;
        return Err(Failure::usage(format!("`--measure {}` is none: use {known}", flags.measure)));
    };
    let [a, b] = [&flags.a, &flags.b].map(|dir| Results::load(dir).map_err(|error| failure(&error)));
    output::line(compare::text(&a?, &b?, measure).trim_end())?;
    Ok(Code::Success)
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Holds(_) => "holds",
        Verdict::Fails(_) => "fails",
        Verdict::Unknown => "unknown",
    }
}

fn failure(error: &TrialError) -> Failure {
    let code = match error {
        TrialError::Bed(BedError::Canceled) => Code::Interrupted,
        TrialError::Bed(BedError::File { .. }) => Code::Storage,
        TrialError::Bed(_) => Code::Failed,
        TrialError::Slurm { .. } => Code::Failed,
        TrialError::NoCell { .. }
        | TrialError::Occupied(_)
        | TrialError::InUse(_)
        | TrialError::Other { .. }
        | TrialError::NoTask { .. }
        | TrialError::SameId(_)
        | TrialError::Simulated { .. } => Code::Usage,
        TrialError::NoResults { .. } | TrialError::NotSubmitted(_) => Code::Input,
    };
    Failure::new(code, error)
}

#[cfg(test)]
mod tests {
    use anabranch_asnet::link::LinkShape;
    use anabranch_lab::bed::Asked;

    use super::*;

    #[test]
    fn what_a_link_without_a_limit_should_have_done_is_said_in_words() {
        let of = |rate_bps, got_bps, got_delay| {
            let shape = LinkShape { rate_bps, delay: Duration::from_millis(20), ..LinkShape::default() };
            let asked = Asked { link: 0, way: 0, name: "1-1#1 > 1-2#1".into(), shape };
            misfit(&Measured { asked, got_bps, got_delay, got_loss: Some(0.5), fits: Some(false) })
        };
        let open = of(None, None, Some(Duration::from_millis(31)));
        assert!(
            open.starts_with(
                "1-1#1 > 1-2#1: no rate measured, 31.00 ms and 50.00 % lost, not unlimited, 20.00 ms and 0.00 % lost"
            ),
            "{open}"
        );
        let limited = of(Some(10_000_000), Some(9e6), None);
        assert!(
            limited.contains(": 9.00 Mbit/s, no delay known and 50.00 % lost, not 10.00 Mbit/s, 20.00 ms"),
            "{limited}"
        );
    }
}
