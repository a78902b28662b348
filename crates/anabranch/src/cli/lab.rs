//! Flags of `lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

/// `lab`
#[derive(Debug, Args)]
pub(crate) struct LabFlags {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// What to do with plans and results.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Run experiments on networks of namespaces (as root), and draw a page of each
    Run(LabRunFlags),
    /// Say what a plan would do, and how long it would take, about
    Check(LabCheckFlags),
    /// List the plans of a folder
    List(LabListFlags),
    /// Draw the page of results anew, and say what came out
    Report(LabReportFlags),
    /// Compare two results of one plan, cell by cell
    Compare(LabCompareFlags),
}

/// `lab run`
#[derive(Debug, Args)]
pub(crate) struct LabRunFlags {
    /// Plans (TOML)
    #[arg(value_name = "PLAN", required = true, value_hint = ValueHint::FilePath)]
    pub plans: Vec<PathBuf>,
    /// Folder for results; each plan's go to a folder of its id there
    #[arg(long, value_name = "DIR", default_value = "lab-results", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    /// Run only cells of this name, or whose names have these parts: scion, or 5as/scion; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Run each cell so often [default: as the plan says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,
    /// Go on where it was interrupted; runs that failed have another try
    #[arg(long)]
    pub resume: bool,
    /// Fewer runs of smaller contents, as the plan says
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON event a line
    #[arg(long)]
    pub json: bool,
}

/// `lab check`
#[derive(Debug, Args)]
pub(crate) struct LabCheckFlags {
    /// Plans (TOML)
    #[arg(value_name = "PLAN", required = true, value_hint = ValueHint::FilePath)]
    pub plans: Vec<PathBuf>,
    /// The quick form
    #[arg(long)]
    pub quick: bool,
}

/// `lab list`
#[derive(Debug, Args)]
pub(crate) struct LabListFlags {
    /// The folder
    #[arg(value_name = "DIR", default_value = "plans", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}

/// `lab report`
#[derive(Debug, Args)]
pub(crate) struct LabReportFlags {
    /// Folders of results that `lab run` made
    #[arg(value_name = "DIR", required = true, value_hint = ValueHint::DirPath)]
    pub dirs: Vec<PathBuf>,
}

/// `lab compare`
#[derive(Debug, Args)]
pub(crate) struct LabCompareFlags {
    /// A folder of results
    #[arg(value_name = "A", value_hint = ValueHint::DirPath)]
    pub a: PathBuf,
    /// Another one of the same plan
    #[arg(value_name = "B", value_hint = ValueHint::DirPath)]
    pub b: PathBuf,
    /// What to compare: goodput, time, time-max, cpu, cpu-peers, cpu-network or wire
    #[arg(long, value_name = "MEASURE", default_value = "goodput")]
    pub measure: String,
}
