//! `make bench`: ours against libtorrent, rqbit and the naive floor, in turn in one run.
//!
//! A row is one thing measured, such as a download over loopback; its contenders run one after the other, then all
//! again, so that a machine that drifts drifts for all. Medians with the range, and ratios to ours. Nothing here
//! passes or fails by a time: it exits with an error only where a contender could not do its work.

mod report;
mod rows;
mod workspace;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anabranch_testbed::{Error, Result};
use report::{Outcome, Row};
use workspace::Workspace;

const USAGE: &str =
    "usage: anabranch-bench [--list] [--quick] [--size-mib N] [--repeat N] [--contents N] [--only CONTENDER] [ROW]...";

/// Contents of the rows about many, unless told otherwise.
const CONTENTS: usize = 10_000;

/// What to run.
struct Options {
    size_mib: u64,
    repeat: u32,
    contents: usize,
    only: Option<String>,
    rows: Vec<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Answers whether every contender that is installed did its work.
fn run() -> Result<bool> {
    let known = rows::all();
    let Some(options) = options(&known)? else { return Ok(true) };
    let mut workspace = Workspace::new(options.size_mib << 20, options.contents)?;
    let mut done = Vec::new();
    for spec in known.iter().filter(|spec| options.rows.is_empty() || options.rows.iter().any(|row| row == spec.name)) {
        let mut row = Row::new(spec);
        for repetition in 1..=options.repeat {
            for (index, contender) in spec.contenders.iter().enumerate() {
                if options.only.as_deref().is_some_and(|only| only != contender.name) {
                    continue;
                }
                if !matches!(row.outcomes[index], Outcome::Ran(_)) {
                    continue;
                }
                eprintln!("{} {repetition}/{} {} ...", spec.name, options.repeat, contender.name);
                workspace.warm();
                row.add(index, (contender.run)(&mut workspace));
                workspace.sweep()?;
            }
        }
        print!("{}", row.markdown());
        done.push(row);
    }
    report::save(&done, &options_line(&options))?;
    Ok(!done.iter().any(Row::has_failed))
}

fn options_line(options: &Options) -> String {
    format!("{} MiB, {} repetitions", options.size_mib, options.repeat)
}

fn options(known: &[rows::Spec]) -> Result<Option<Options>> {
    let mut options = Options { size_mib: 2048, repeat: 3, contents: CONTENTS, only: None, rows: Vec::new() };
    let mut words = std::env::args().skip(1);
    let usage = || Error::Usage(USAGE.into());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--list" => {
                for spec in known {
                    println!("{:<18}{}", spec.name, spec.title);
                }
                return Ok(None);
            }
            "--quick" => (options.size_mib, options.repeat) = (256, 1),
            "--size-mib" => options.size_mib = words.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?,
            "--repeat" => options.repeat = words.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?,
            "--contents" => options.contents = words.next().and_then(|text| text.parse().ok()).ok_or_else(usage)?,
            "--only" => options.only = Some(words.next().ok_or_else(usage)?),
            name if known.iter().any(|spec| spec.name == name) => options.rows.push(word),
            name if !name.starts_with('-') => {
                return Err(Error::Usage(format!("there is no row `{name}`: --list names all of them")));
            }
            _ => return Err(usage()),
        }
    }
    if options.size_mib == 0 || options.repeat == 0 || options.contents == 0 {
        return Err(usage());
    }
    if let Some(only) = &options.only {
        let chosen =
            known.iter().filter(|spec| options.rows.is_empty() || options.rows.iter().any(|row| row == spec.name));
        let names: BTreeSet<&str> = chosen.flat_map(|spec| &spec.contenders).map(|contender| contender.name).collect();
        if !names.contains(only.as_str()) {
            let known = names.into_iter().collect::<Vec<_>>().join("`, `");
            return Err(Error::Usage(format!(
                "--only `{only}`: no row that is to run has this contender: there are `{known}`"
            )));
        }
    }
    Ok(Some(options))
}
