//! Medians, ranges and ratios, as markdown for people and JSON for machines.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anabranch_testbed::peers::checkout;
use anabranch_testbed::{Error, Result};
use serde_json::{Value, json};

use crate::rows::Spec;

/// One run of one contender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// The figure the row is about, in its unit.
    pub figure: f64,
    /// CPU seconds of the side that fetches (or of the only process).
    pub cpu_fetch: Option<f64>,
    /// CPU seconds of the side that shares.
    pub cpu_share: Option<f64>,
    /// Peak resident memory of the side that fetches (or of the only process), MiB.
    pub rss_mib: Option<f64>,
    /// A second figure, named by the row.
    pub extra: Option<f64>,
    /// Further figures, likewise.
    pub more: Vec<Option<f64>>,
}

impl Sample {
    /// CPU seconds of both sides together.
    fn cpu(&self) -> Option<f64> {
        Some(self.cpu_fetch? + self.cpu_share.unwrap_or(0.0))
    }
}

/// What came of a contender.
pub(crate) enum Outcome {
    /// Its runs.
    Ran(Vec<Sample>),
    /// Not installed, or not built.
    Missing(String),
    /// A rival that takes longer than anybody waits for.
    TooSlow(Duration),
    /// It did not do its work.
    Failed(String),
}

/// A row with what was measured.
pub(crate) struct Row<'a> {
    spec: &'a Spec,
    /// In the order of the contenders.
    pub outcomes: Vec<Outcome>,
}

impl<'a> Row<'a> {
    /// Nothing measured yet.
    pub(crate) fn new(spec: &'a Spec) -> Self {
        Self { spec, outcomes: spec.contenders.iter().map(|_| Outcome::Ran(Vec::new())).collect() }
    }

    /// Adds a run of contender `index`.
    pub(crate) fn add(&mut self, index: usize, result: Result<Sample>) {
        match result {
            Ok(sample) => {
                if let Outcome::Ran(samples) = &mut self.outcomes[index] {
                    samples.push(sample);
                }
            }
            Err(error @ Error::Missing { .. }) => self.outcomes[index] = Outcome::Missing(error.to_string()),
            Err(Error::Timeout { limit, .. }) if !self.spec.contenders[index].name.contains("ours") => {
                eprintln!("{}: not done within {limit:?}", self.spec.contenders[index].name);
                self.outcomes[index] = Outcome::TooSlow(limit);
            }
            Err(error) => {
                eprintln!("{}: {error}", self.spec.contenders[index].name);
                self.outcomes[index] = Outcome::Failed(error.to_string());
            }
        }
    }

    /// Whether a contender that is there did not do its work.
    pub(crate) fn has_failed(&self) -> bool {
        self.outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed(_)))
    }

    /// The row as a table of its own.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("\n### {}: {}\n\n", self.spec.name, self.spec.title);
        let extra = self.spec.extra.unwrap_or("");
        let unit = self.spec.unit.name();
        let more: String = self.spec.more.iter().map(|name| format!(" {name} |")).collect();
        writeln!(text, "| | {unit} (range) | to ours | CPU s (fetch + share) | to ours | peak MiB | {extra} |{more}")
            .ok();
        writeln!(text, "| --- | --- | --- | --- | --- | --- | --- |{}", " --- |".repeat(self.spec.more.len())).ok();
        let ours = self.summary_of("ours");
        for (contender, outcome) in self.spec.contenders.iter().zip(&self.outcomes) {
            match outcome {
                Outcome::Missing(_) => writeln!(text, "| {} | not installed | | | | | |", contender.name).ok(),
                Outcome::TooSlow(limit) => {
                    let seconds = limit.as_secs();
                    writeln!(text, "| {} | not done within {seconds} s | | | | | |", contender.name).ok()
                }
                Outcome::Failed(_) => writeln!(text, "| {} | failed | | | | | |", contender.name).ok(),
                Outcome::Ran(samples) if samples.is_empty() => continue,
                Outcome::Ran(samples) => {
                    let line = Summary::of(samples).line(ours.as_ref(), samples, self.spec.more.len());
                    writeln!(text, "| {} | {line}", contender.name).ok()
                }
            };
        }
        text
    }

    fn summary_of(&self, name: &str) -> Option<Summary> {
        let index = self.spec.contenders.iter().position(|contender| contender.name == name)?;
        match &self.outcomes[index] {
            Outcome::Ran(samples) if !samples.is_empty() => Some(Summary::of(samples)),
            _ => None,
        }
    }

    fn json(&self) -> Value {
        let contenders: Vec<Value> = self
            .spec
            .contenders
            .iter()
            .zip(&self.outcomes)
            .map(|(contender, outcome)| {
                let name = contender.name;
                match outcome {
                    Outcome::Missing(why) => json!({ "name": name, "missing": why }),
                    Outcome::TooSlow(limit) => json!({ "name": name, "not_done_within_seconds": limit.as_secs() }),
                    Outcome::Failed(why) => json!({ "name": name, "failed": why }),
                    Outcome::Ran(samples) => {
                        json!({ "name": name, "samples": samples.iter().map(sample_json).collect::<Vec<_>>() })
                    }
                }
            })
            .collect();
        let (unit, extra) = (self.spec.unit.name(), self.spec.extra);
        json!({ "row": self.spec.name, "title": self.spec.title, "unit": unit, "extra": extra, "more": self.spec.more, "contenders": contenders })
    }
}

fn sample_json(sample: &Sample) -> Value {
    json!({
        "figure": sample.figure,
        "cpu_fetch_seconds": sample.cpu_fetch,
        "cpu_share_seconds": sample.cpu_share,
        "rss_mib_max": sample.rss_mib,
        "extra": sample.extra,
        "more": sample.more,
    })
}

/// Medians of some samples.
struct Summary {
    figure: f64,
    cpu: Option<f64>,
}

impl Summary {
    fn of(samples: &[Sample]) -> Self {
        let figure = median(samples.iter().map(|sample| sample.figure)).unwrap_or(f64::NAN);
        Self { figure, cpu: median(samples.iter().filter_map(Sample::cpu)) }
    }

    /// The cells after the name.
    fn line(&self, ours: Option<&Self>, samples: &[Sample], more: usize) -> String {
        let figures = samples.iter().map(|sample| sample.figure);
        let (low, high) = (figures.clone().fold(f64::INFINITY, f64::min), figures.fold(0.0, f64::max));
        let ratio = |mine: Option<f64>, ours: Option<f64>| match (mine, ours) {
            (Some(mine), Some(ours)) if mine > 0.0 => format!("{:.2}", ours / mine),
            _ => String::new(),
        };
        let part = |of: fn(&Sample) -> Option<f64>| median(samples.iter().filter_map(of));
        let cell = |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
        let cpu = match (part(|sample| sample.cpu_fetch), part(|sample| sample.cpu_share)) {
            (Some(fetch), Some(share)) => format!("{} ({fetch:.2} + {share:.2})", cell(self.cpu, 2)),
            _ => cell(self.cpu, 2),
        };
        let more: String = (0..more)
            .map(|at| {
                format!(
                    " {} |",
                    cell(median(samples.iter().filter_map(|sample| sample.more.get(at).copied().flatten())), 1)
                )
            })
            .collect();
        format!(
            "{:.2} ({low:.2}-{high:.2}) | {} | {cpu} | {} | {} | {} |",
            self.figure,
            ratio(Some(self.figure), ours.map(|ours| ours.figure)),
            ratio(self.cpu, ours.and_then(|ours| ours.cpu)),
            cell(part(|sample| sample.rss_mib), 1),
            cell(part(|sample| sample.extra), 1),
        ) + &more
    }
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Writes `bench-results/latest.{md,json}` and copies of them with the time in their names.
pub(crate) fn save(rows: &[Row], how: &str) -> Result<()> {
    let folder = checkout().join("bench-results");
    std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let tables: String = rows.iter().map(Row::markdown).collect();
    let machine = machine();
    let markdown = format!("# Bench: {how}, {machine}\n{tables}\n\"to ours\": our figure over the other's.\n");
    let value =
        json!({ "time": time, "how": how, "machine": machine, "rows": rows.iter().map(Row::json).collect::<Vec<_>>() });
    for name in ["latest".to_owned(), format!("bench-{time}")] {
        write(&folder.join(format!("{name}.md")), &markdown)?;
        write(&folder.join(format!("{name}.json")), &value.to_string())?;
    }
    eprintln!("saved to {}", folder.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(Error::file(path))
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("").trim_start_matches([' ', '\t', ':']);
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    format!("{cores} x {}, Linux {}", model.trim(), read("/proc/sys/kernel/osrelease").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_even_and_odd_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn a_line_has_the_ratio_to_ours() {
        let samples = [Sample { figure: 4.0, cpu_fetch: Some(2.0), cpu_share: Some(3.0), ..Sample::default() }];
        let ours = Summary { figure: 1.0, cpu: Some(2.0) };
        let line = Summary::of(&samples).line(Some(&ours), &samples, 0);
        assert_eq!(line, "4.00 (4.00-4.00) | 0.25 | 5.00 (2.00 + 3.00) | 0.40 |  |  |");
    }
}
