//! What results belong to: enough to repeat them, and to refuse others beside them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{Options, TrialError};
use crate::bed::{Calibration, daemon};
use crate::plan::Plan;

/// Its file in the folder of results.
pub(super) const FILE: &str = "lock.json";
/// Bytes of one that is read.
const BYTES_MAX: u64 = 32 << 20;

/// A plan as a lock has it, to be run once more.
#[derive(Debug)]
pub struct Locked {
    /// The plan, in the form in which it was run.
    pub plan: Plan,
    /// The cells that were chosen.
    pub only: Vec<String>,
    /// How often each was run, where that was not left to the plan.
    pub repeat: Option<u32>,
    /// What is not as it was then: another program, machine or FRR.
    pub differs: Vec<String>,
}

/// Reads a lock, or the one in a folder of results, and says what of it this program and machine do not keep.
///
/// # Errors
/// When it is none.
pub fn locked(path: &Path, program: &Path) -> Result<Locked, TrialError> {
    let path = if path.is_dir() { path.join(FILE) } else { path.to_path_buf() };
    let lock = read_file(&path)?;
    let plan = plan(&lock, &path)?;
    let pairs = [
        ("the program", &lock["program"], about(program)),
        ("the machine", &lock["machine"], machine()),
        ("FRR", &lock["frr"], if lock["frr"].is_null() { Value::Null } else { json!(frr()) }),
    ];
    let differs = pairs.into_iter().filter(|(_, then, now)| *then != now).map(|(what, then, now)| {
        let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("{what}: {} then, {} now", shown(then), shown(&now))
    });
    let only = lock["only"].as_array().into_iter().flatten().filter_map(|each| Some(each.as_str()?.to_owned()));
    let repeat = lock["repeat"].as_u64().and_then(|repeat| u32::try_from(repeat).ok());
    Ok(Locked { plan, only: only.collect(), repeat, differs: differs.collect() })
}

/// Which program this is.
fn about(program: &Path) -> Value {
    json!({ "version": env!("CARGO_PKG_VERSION"), "bytes": fs::metadata(program).map_or(0, |found| found.len()) })
}

/// The lock of a plan on this machine.
pub(super) fn make(plan: &Plan, options: &Options, calibration: &Calibration) -> Value {
    let measured = calibration.measured.iter().map(|each| {
        json!({
            "link": each.link, "rate_bps": each.rate_bps, "measured_bps": each.got_bps.round(),
            "delay_us": each.delay.as_micros() as u64, "measured_delay_us": each.got_delay.as_micros() as u64, "fits": each.fits,
        })
    });
    let candidates = plan.candidates.iter().map(|each| (each.name.clone(), json!({ "routing": each.routing.name() })));
    let needs_frr = plan.candidates.iter().any(|each| each.routing.is_bgp());
    json!({
        "format": 1,
        "id": plan.id,
        "plan": plan.text,
        "topology": plan.topology_text,
        "plan_file": plan.file.display().to_string(),
        "quick": plan.is_quick,
        "only": options.only,
        "repeat": options.repeat,
        "content_bytes": plan.content_bytes,
        "seed": plan.seed,
        "candidates": candidates.collect::<serde_json::Map<_, _>>(),
        "program": about(&options.program),
        "frr": needs_frr.then(frr).flatten(),
        "machine": machine(),
        "calibration": measured.collect::<Vec<_>>(),
    })
}

/// Kernel, processor and memory, as the system tells.
fn machine() -> Value {
    let first = |path: &str, key: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "kernel": kernel.trim(),
        "processor": first("/proc/cpuinfo", "model name"),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": first("/proc/meminfo", "MemTotal"),
    })
}

/// What bgpd says of itself.
fn frr() -> Option<String> {
    let output = Command::new(daemon("bgpd").ok()?).arg("--version").output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
}

/// Reads the lock of a folder of results.
pub(super) fn read(folder: &Path) -> Result<Value, TrialError> {
    read_file(&folder.join(FILE))
}

fn read_file(path: &Path) -> Result<Value, TrialError> {
    use std::io::Read;
    let none = |reason: String| TrialError::NoResults { folder: path.to_path_buf(), reason };
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| none(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| none(error.to_string()))
}

/// The plan that a lock holds, as it was run.
pub(super) fn plan(lock: &Value, folder: &Path) -> Result<Plan, TrialError> {
    let broken =
        |reason: &str| TrialError::NoResults { folder: folder.to_path_buf(), reason: format!("{FILE}: {reason}") };
    let text = |key: &str| lock[key].as_str().map(str::to_owned).ok_or_else(|| broken(&format!("no `{key}`")));
    let (plan_text, topology_text, file) = (text("plan")?, text("topology")?, PathBuf::from(text("plan_file")?));
    let plan = Plan::read(&file, &plan_text, |name| {
        let is_yaml = [".topo", ".yml", ".yaml"].iter().any(|ending| name.ends_with(ending));
        use anabranch_asnet::topology::Topology;
        let read =
            if is_yaml { Topology::from_topo(name, &topology_text) } else { Topology::from_toml(name, &topology_text) };
        Ok((read.map_err(|error| error.to_string())?, topology_text.clone()))
    })
    .map_err(|error| broken(&error.to_string()))?;
    Ok(if lock["quick"].as_bool() == Some(true) { plan.quick() } else { plan })
}

/// What of two locks has to be the same, so that results stand side by side; the first that is not.
pub(super) fn difference(ours: &Value, theirs: &Value) -> Option<&'static str> {
    let parts = [
        ("plan", "the plan"),
        ("topology", "the topology"),
        ("quick", "--quick"),
        ("content_bytes", "the size of the content"),
        ("program", "the program"),
        ("machine", "the machine"),
    ];
    parts.into_iter().find(|(key, _)| ours[*key] != theirs[*key]).map(|(_, what)| what)
}
