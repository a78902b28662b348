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
    /// Hand the cells of a plan to Slurm as a job array
    Submit(LabSubmitFlags),
    /// Put together what the tasks of a job array left, as if they had been run here
    Collect(LabCollectFlags),
    /// Run one task of a job array: what Slurm calls on its nodes
    #[command(hide = true)]
    Task(LabTaskFlags),
    /// Say which ways a run took: the kernel's routes, or the paths that peers chose
    Routes(LabRoutesFlags),
    /// Draw the page and the figures of results anew, and say what came out
    Report(LabReportFlags),
    /// Compare two results of one plan, cell by cell
    Compare(LabCompareFlags),
}

/// `lab run`
#[derive(Debug, Args)]
pub(crate) struct LabRunFlags {
    /// Plans (TOML)
    #[arg(value_name = "PLAN", required_unless_present = "lock", conflicts_with = "lock", value_hint = ValueHint::FilePath)]
    pub plans: Vec<PathBuf>,
    /// Run once more what a lock says: a file of results, or their folder
    #[arg(long, value_name = "FILE", conflicts_with = "form", value_hint = ValueHint::AnyPath)]
    pub lock: Option<PathBuf>,
    /// Folder for results; each plan's go to a folder of its id there
    #[arg(long, value_name = "DIR", default_value = "lab-results", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    #[command(flatten)]
    pub cells: LabCellFlags,
    /// Runs at once: for plans that leave the machine idle; others disturb each other [default: as many as the plan says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub jobs: Option<u32>,
    /// Print one JSON event a line
    #[arg(long)]
    pub json: bool,
}

/// `lab submit`
#[derive(Debug, Args)]
pub(crate) struct LabSubmitFlags {
    /// The plan (TOML)
    #[arg(value_name = "PLAN", value_hint = ValueHint::FilePath)]
    pub plan: PathBuf,
    /// To Slurm, by its sbatch: each cell is a task of a job array
    #[arg(long, required = true)]
    pub slurm: bool,
    /// Folder for results, which nodes see under the same name; the plan's go to a folder of its id there
    #[arg(long, value_name = "DIR", default_value = "lab-results", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,
    #[command(flatten)]
    pub cells: LabCellFlags,
    /// Tasks at once at most [default: as many as Slurm has room for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub jobs: Option<u32>,
    /// Further argument of sbatch, such as --sbatch=--exclusive; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub sbatch: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Which cells of a plan to run, and how
#[derive(Debug, Args)]
pub(crate) struct LabCellFlags {
    /// Only cells of this name, or whose names have these parts: scion, or 5as/scion; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Run each cell so often [default: as the plan says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,
    /// Go on where it was interrupted: only what has no results yet, or failed
    #[arg(long)]
    pub resume: bool,
    #[command(flatten)]
    pub form: LabFormFlags,
}

/// How much of plans; of those that say nothing about it, all
#[derive(Debug, Args)]
#[group(id = "form", multiple = false)]
pub(crate) struct LabFormFlags {
    /// Fewer cells and runs of smaller contents, as the plan says: minutes for all plans together
    #[arg(long)]
    pub quick: bool,
    /// All cells and runs of whole contents, as the papers have them, instead of what takes an afternoon
    #[arg(long)]
    pub full: bool,
}

/// `lab collect`
#[derive(Debug, Args)]
pub(crate) struct LabCollectFlags {
    /// The folder that `lab submit` named
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}

/// `lab task`
#[derive(Debug, Args)]
pub(crate) struct LabTaskFlags {
    /// The folder that `lab submit` named
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Which task, from 0
    #[arg(value_name = "N")]
    pub task: usize,
}

/// `lab routes`
#[derive(Debug, Args)]
pub(crate) struct LabRoutesFlags {
    /// The folder of a run, such as lab-results/000-fig4/runs/5as-bgp/0, or of results: the first run of each cell
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub run: PathBuf,
    /// With results: only cells of this name, or whose names have these parts; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
}

/// `lab check`
#[derive(Debug, Args)]
pub(crate) struct LabCheckFlags {
    /// Plans (TOML)
    #[arg(value_name = "PLAN", required = true, value_hint = ValueHint::FilePath)]
    pub plans: Vec<PathBuf>,
    #[command(flatten)]
    pub form: LabFormFlags,
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
    /// Print Markdown: a table of verdicts, and what each plan brought
    #[arg(long)]
    pub markdown: bool,
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
    /// What to compare: goodput, time, time-max, cpu, cpu-peers, cpu-network, wire, rate-settled, rate-before, rate-during, rate-after or cross
    #[arg(long, value_name = "MEASURE", default_value = "goodput")]
    pub measure: String,
}
