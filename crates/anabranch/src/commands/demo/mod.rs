//! `demo`: one file over one network of this machine, fetched in three ways, and a page of what happened.

mod web;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_lab::demo::{self, DemoError, Live, LivePath, Notice, Options};
use anabranch_lab::report::Report;
use serde_json::{Value, json};

use crate::cli::DemoFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::runtime;
use crate::status::StatusLines;
use crate::{system, units};
use web::Web;

/// How often progress is told where nobody draws it.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Characters of a bar that stands for all that the network carries.
const BAR_CHARS: usize = 40;
/// The smallest file: below a mebibyte, only the start is measured.
const SIZE_MIN: u64 = 1 << 20;

/// Runs the command.
pub(crate) fn run(flags: &DemoFlags, chatter: Chatter) -> Result<Code, Failure> {
    if flags.size.0 < SIZE_MIN {
        return Err(Failure::usage("`--size` must be 1MiB or more: anything smaller is over before it began"));
    }
    system::raise_open_files_limit();
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(Code::Failed, format!("the system does not say which program this is: {error}"))
    })?;
    let web = flags.web.map(|address| {
        let failed = |error| format!("cannot serve the page at {address}: {error}; give another address with --web");
        Web::start(address).map_err(|error| Failure::new(Code::Network, failed(error)))
    });
    let web = web.transpose()?;
    let (out, content_bytes, is_followed) = (flags.out.clone(), flags.size.0, web.is_some());
    let options = Options { program, out, content_bytes, is_followed };
    let cancel = Arc::new(AtomicBool::new(false));
    let mut screen = Screen::new(flags, chatter, web, Arc::clone(&cancel));
    screen.announce()?;
    let seen = Arc::clone(&cancel);
    runtime::cancellable(&cancel, move || {
        let outcome = demo::run(&options, &seen, &mut |notice| screen.show(&notice));
        screen.close(outcome)
    })
}

/// Shows what goes on: lines that are redrawn, plain lines, or events.
struct Screen {
    json: bool,
    chatter: Chatter,
    lines: Option<StatusLines>,
    told: Option<Instant>,
    content_bytes: u64,
    bound_bps: Option<u64>,
    web: Option<Web>,
    cancel: Arc<AtomicBool>,
    /// Standard output failed: everything ends.
    failure: Option<Failure>,
}

impl Screen {
    fn new(flags: &DemoFlags, chatter: Chatter, web: Option<Web>, cancel: Arc<AtomicBool>) -> Self {
        let lines = (chatter.draws() && !flags.json).then(StatusLines::default);
        let content_bytes = flags.size.0;
        let json = flags.json;
        Self { json, chatter, lines, told: None, content_bytes, bound_bps: None, web, cancel, failure: None }
    }

    /// Says where the page is while the demo runs.
    fn announce(&self) -> Result<(), Failure> {
        match &self.web {
            Some(web) if self.json => output::json_event("page", json!({ "url": web.url() })),
            Some(web) => output::line(format_args!("The page is at {} while this runs.", web.url())),
            None => Ok(()),
        }
    }

    fn show(&mut self, notice: &Notice<'_>) {
        if let Notice::Ready { bound, .. } = notice {
            self.bound_bps = bound.map(|bound| bound.rate_bps);
        }
        match (notice, &mut self.web) {
            (Notice::Ready { network, bound }, Some(web)) => web.begin(network, *bound, self.content_bytes),
            (Notice::SoFar(run) | Notice::Ends(run), Some(web)) => web.show(run),
            _ => {}
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

    fn close(mut self, outcome: Result<demo::Outcome, DemoError>) -> Result<Code, Failure> {
        if let Some(lines) = &mut self.lines {
            lines.clear();
        }
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let outcome = outcome.map_err(|error| failure(&error))?;
        if let Some(web) = self.web {
            web.finish(&outcome.report);
        }
        let page = outcome.page.display();
        if self.json {
            output::json_event("report", json!({ "page": page.to_string(), "runs": runs(&outcome.report) }))?;
        } else if !self.chatter.quiet {
            output::line(format_args!("\n{}", outcome.report.text()))?;
            let starved: Vec<&str> = outcome.report.starved().iter().map(|run| run.name.as_str()).collect();
            if !starved.is_empty() {
                let runs = starved.join(", ");
                self.chatter.note(format_args!(
                    "the processors were busy in {runs}: they may have been the limit, not the network"
                ));
            }
            output::line(format_args!("All paths, loads and reasons are on this page: {page}"))?;
        }
        Ok(Code::Success)
    }

    fn print(&mut self, notice: &Notice<'_>) -> Result<(), Failure> {
        match notice {
            Notice::Goes(live) => {
                self.draw(live);
                return Ok(());
            }
            Notice::SoFar(_) => return Ok(()),
            _ => {
                if let Some(lines) = &mut self.lines {
                    lines.clear();
                }
            }
        }
        match notice {
            Notice::Ready { network, .. } => {
                let most = self
                    .bound_bps
                    .map_or(String::new(), |bps| format!("; from end to end it carries {} at most", bits(bps as f64)));
                output::line(format_args!(
                    "A SCION network of {} runs in this process{most}.\nA file of {} of noise is fetched across it.",
                    units::network(network.nodes.len(), network.lines.len()),
                    units::bytes(self.content_bytes),
                ))
            }
            Notice::Begins { strategy, commands } => {
                output::line(format_args!("\n{}: {}\n{}", strategy.selector, strategy.about, commands.join("\n")))
            }
            Notice::Ends(run) => {
                let paths = run.used().count();
                let plural = if paths == 1 { "path" } else { "paths" };
                let rate = bits(run.rate(self.content_bytes));
                output::line(format_args!("{:.2} s, {rate} over {paths} {plural}; the file is the same", run.seconds))
            }
            Notice::Goes(_) | Notice::SoFar(_) => Ok(()),
        }
    }

    /// A line for the run and one for each path: drawn over where that can be, else as plain lines now and then.
    fn draw(&mut self, live: &Live) {
        let percent = units::percent(live.bytes.min(live.bytes_total), live.bytes_total);
        let head =
            format!("{:<9} {percent:5.1} %  {:>12}  {:.1} s", live.strategy.selector, bits(live.rate), live.seconds);
        let Some(lines) = &mut self.lines else {
            if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
                self.told = Some(Instant::now());
                let paths: Vec<String> =
                    live.paths.iter().map(|path| format!("{} {:.1}", way(path), path.rate / 1e6)).collect();
                self.chatter.note(format_args!("{head}  {}", paths.join(", ")));
            }
            return;
        };
        let whole = self.bound_bps.map_or(live.rate, |bound| bound as f64).max(1.0);
        let mut shown = vec![head];
        for path in &live.paths {
            let filled = (path.rate / whole * BAR_CHARS as f64).round() as usize;
            let rtt = path.rtt_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms"));
            let bar = "=".repeat(filled.min(BAR_CHARS));
            shown.push(format!("  {:>12}  {rtt:>7}  {:<28} {bar}", bits(path.rate), way(path)));
        }
        lines.draw(&shown);
    }

    fn tell(&mut self, notice: &Notice<'_>) -> Result<(), Failure> {
        match notice {
            Notice::Ready { network, .. } => {
                let (ases, links) = (network.nodes.len(), network.lines.len());
                let fields = json!({ "ases": ases, "links": links, "max_flow_bps": self.bound_bps, "bytes_total": self.content_bytes });
                output::json_event("ready", fields)
            }
            Notice::Begins { strategy, commands } => {
                self.told = None;
                let commands: Vec<&str> = commands.iter().map(|command| command.trim_start_matches("$ ")).collect();
                output::json_event(
                    "run",
                    json!({ "selector": strategy.selector, "paths_max": strategy.paths, "commands": commands }),
                )
            }
            Notice::Goes(live) => {
                if self.told.is_some_and(|told| told.elapsed() < TELL_EVERY) {
                    return Ok(());
                }
                self.told = Some(Instant::now());
                output::json_event("progress", progress(live))
            }
            Notice::Ends(run) => {
                output::json_event("run_finished", json!({ "selector": run.name, "seconds": run.seconds }))
            }
            Notice::SoFar(_) => Ok(()),
        }
    }
}

fn progress(live: &Live) -> Value {
    let paths = live.paths.iter().map(|path| {
        let ases: Vec<String> = path.ases.iter().map(ToString::to_string).collect();
        json!({ "path": path.path, "ases": ases, "rate_bps": path.rate as u64, "rtt_ms": path.rtt_ms, "downloaded": path.bytes })
    });
    json!({
        "selector": live.strategy.selector,
        "seconds": live.seconds,
        "downloaded": live.bytes,
        "bytes_total": live.bytes_total,
        "rate_bps": live.rate as u64,
        "paths": paths.collect::<Vec<_>>(),
    })
}

fn runs(report: &Report) -> Vec<Value> {
    let run = |run: &anabranch_lab::report::Run| {
        json!({
            "selector": run.name,
            "seconds": run.seconds,
            "rate_bps": run.rate(report.content_bytes) as u64,
            "ratio": report.ratio(run),
            "paths_used": run.used().count(),
            "wire_bps": run.wire_rate(&report.network) as u64,
            "paths_limit_bps": run.limit(&report.network).map(|bps| bps as u64),
            "max_flow_bps": report.bound.as_ref().map(|bound| bound.rate_bps),
        })
    };
    report.runs.iter().map(run).collect()
}

/// `35.2 Mbit/s`.
fn bits(bits_per_second: f64) -> String {
    units::bit_rate((bits_per_second / 1e3) as u64)
}

/// The way of a path, or its id where that is not known.
fn way(path: &LivePath) -> String {
    if path.ases.is_empty() {
        return path.path.clone();
    }
    let last = |text: String| text.rsplit([':', '-']).next().unwrap_or_default().to_owned();
    path.ases.iter().map(|each| last(each.to_string())).collect::<Vec<_>>().join(" > ")
}

fn failure(error: &DemoError) -> Failure {
    let code = match error {
        DemoError::Canceled => Code::Interrupted,
        DemoError::File { .. } => Code::Storage,
        DemoError::Network(_) => Code::Network,
        DemoError::Differs(_) => Code::Incomplete,
        _ => Code::Failed,
    };
    Failure::new(code, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_named_by_their_ases() {
        let path = |ases: &[&str]| LivePath {
            path: "0123".into(),
            ases: ases.iter().map(|each| each.parse().unwrap()).collect(),
            rate: 1e6,
            rtt_ms: None,
            bytes: 1,
        };
        assert_eq!(way(&path(&["2-ff00:0:211", "1-64", "1-ff00:0:111"])), "211 > 64 > 111");
        assert_eq!(way(&path(&[])), "0123");
        assert_eq!(bits(35_249_000.0), "35.2 Mbit/s");
    }
}
