//! What results belong to: enough to repeat them, and to refuse others beside them.

use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Options, TrialError};
use crate::bed::{Asked, Calibration, Measured, daemon};
use crate::plan::{Form, Plan};

/// Its file in the folder of results.
pub(super) const FILE: &str = "lock.json";
/// Bytes of one that is read.
const BYTES_MAX: u64 = 32 << 20;
/// Bytes of the program that are hashed in one go.
const HASHED_BYTES: usize = 1 << 20;
/// Shares of losses nearer to each other than this are one: a billionth of all packets, which no plan tells apart.
const LOSS_STEP: f64 = 1e-9;

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
    let repeat = lock["repeat"].as_u64().and_then(|repeat| u32::try_from(repeat).ok());
    Ok(Locked { plan, only: texts(&lock["only"]), repeat, differs: differs.collect() })
}

/// Which program this is.
fn about(program: &Path) -> Value {
    let bytes = fs::metadata(program).map_or(0, |found| found.len());
    json!({ "version": env!("CARGO_PKG_VERSION"), "bytes": bytes, "hash": hash(program) })
}

/// Of all of a file's bytes. What hashes is in the program that is hashed: where it changes, the program has.
fn hash(program: &Path) -> Option<String> {
    let mut file = fs::File::open(program).ok()?;
    let (mut hasher, mut chunk) = (DefaultHasher::new(), vec![0; HASHED_BYTES]);
    loop {
        let count = file.read(&mut chunk).ok()?;
        if count == 0 {
            return Some(format!("{:016x}", hasher.finish()));
        }
        hasher.write(&chunk[..count]);
    }
}

/// The lock of a plan on this machine.
pub(super) fn make(plan: &Plan, options: &Options, calibration: &Calibration) -> Value {
    let candidates = plan.candidates.iter().map(|each| (each.name.clone(), json!({ "routing": each.routing.name() })));
    let needs_frr = plan.candidates.iter().any(|each| each.routing.is_bgp());
    let mut lock = json!({
        "format": 1,
        "id": plan.id,
        "plan": plan.text,
        "topology": plan.topology_text,
        "plan_file": plan.file.display().to_string(),
        "form": plan.form.name(),
        "only": options.only,
        "repeat": options.repeat,
        "content_bytes": plan.content_bytes,
        "seed": plan.seed,
        "candidates": candidates.collect::<serde_json::Map<_, _>>(),
        "program": about(&options.program),
        "frr": needs_frr.then(frr).flatten(),
        "machine": machine(),
        "calibration": [],
        "calibration_left_out": 0,
    });
    add_measured(&mut lock, calibration);
    lock
}

/// Keeps what links did.
pub(super) fn add_measured(lock: &mut Value, calibration: &Calibration) {
    let micros = |time: Duration| time.as_micros() as u64;
    let entry = |each: &Measured| {
        let shape = &each.asked.shape;
        json!({
            "link": each.asked.name, "rate_bps": shape.rate_bps, "measured_bps": each.got_bps.map(f64::round),
            "delay_us": micros(shape.delay), "measured_delay_us": each.got_delay.map(micros),
            "jitter_us": micros(shape.jitter), "loss": shape.loss, "measured_loss": each.got_loss, "fits": each.fits,
        })
    };
    if let Some(entries) = lock["calibration"].as_array_mut() {
        entries.extend(calibration.measured.iter().map(entry));
    }
    let left_out = lock["calibration_left_out"].as_u64().unwrap_or(0) + calibration.left_out as u64;
    lock["calibration_left_out"] = json!(left_out);
}

/// What of this a lock has no measurement of; nothing where its limit was reached.
pub(super) fn unmeasured(lock: &Value, asked: Vec<Asked>) -> Vec<Asked> {
    if lock["calibration_left_out"].as_u64().is_some_and(|left_out| left_out > 0) {
        return Vec::new();
    }
    let entries = lock["calibration"].as_array().map_or(&[][..], Vec::as_slice);
    let is_of = |entry: &Value, asked: &Asked| {
        let shape = &asked.shape;
        let is_as_long = |key: &str, time: Duration| entry[key].as_u64() == Some(time.as_micros() as u64);
        entry["link"] == asked.name.as_str()
            && entry["rate_bps"].as_u64() == shape.rate_bps
            && is_as_long("delay_us", shape.delay)
            && is_as_long("jitter_us", shape.jitter)
            && entry["loss"].as_f64().is_some_and(|loss| (loss - shape.loss).abs() < LOSS_STEP)
    };
    asked.into_iter().filter(|asked| !entries.iter().any(|entry| is_of(entry, asked))).collect()
}

/// Lets a lock of results stand for what is run in addition: all cells that one of both asks for, as often as the more eager one does.
pub(super) fn widen(lock: &mut Value, plan: &Plan, options: &Options, has_runs: bool) {
    if !has_runs {
        (lock["only"], lock["repeat"]) = (json!(options.only), json!(options.repeat));
        return;
    }
    let mut only: Vec<String> = texts(&lock["only"]);
    if only.is_empty() || options.only.is_empty() {
        only.clear();
    } else {
        only.extend(options.only.iter().filter(|more| !texts(&lock["only"]).contains(more)).cloned());
    }
    let often = |repeat: Option<u64>| repeat.unwrap_or(u64::from(plan.repetitions));
    let most = often(lock["repeat"].as_u64()).max(often(options.repeat.map(u64::from)));
    lock["only"] = json!(only);
    lock["repeat"] = json!(Some(most).filter(|most| *most != u64::from(plan.repetitions)));
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|each| Some(each.as_str()?.to_owned())).collect()
}

/// How the links of results were before anything was measured over them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinksMeasured {
    /// Directions that were as asked for.
    pub fitting: usize,
    /// Of which that is not known.
    pub not_measured: usize,
    /// All of them.
    pub directions: usize,
}

impl LinksMeasured {
    /// As a lock tells.
    pub fn of(lock: &Value) -> Self {
        let entries = lock["calibration"].as_array().map_or(&[][..], Vec::as_slice);
        let count = |fits: &Value| entries.iter().filter(|entry| entry["fits"] == *fits).count();
        let left_out = lock["calibration_left_out"].as_u64().map_or(0, |left_out| left_out as usize);
        Self {
            fitting: count(&Value::Bool(true)),
            not_measured: count(&Value::Null) + left_out,
            directions: entries.len() + left_out,
        }
    }
}

impl fmt::Display for LinksMeasured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fitting, not_measured, directions } = self;
        write!(f, "{fitting} of {directions} directions had their rate, delay and loss within 2 %")?;
        match not_measured {
            0 => Ok(()),
            1 => write!(f, ", 1 was not measured"),
            many => write!(f, ", {many} were not measured"),
        }
    }
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
        "memory": first("/proc/meminfo", "MemTotal").and_then(|total| gib(&total)),
    })
}

/// Memory in whole GiB: of one machine the kernel tells some kilobytes more or less from start to start (proc(5), "MemTotal: 8132456 kB").
fn gib(total: &str) -> Option<String> {
    let kib: f64 = total.strip_suffix("kB")?.trim().parse().ok()?;
    Some(format!("{:.0} GiB", kib / f64::from(1 << 20)))
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
    // Of a network that was drawn, what was drawn then counts.
    let plan = Plan::read(&file, &plan_text, |source| {
        let name = source.name();
        let is_yaml = [".topo", ".yml", ".yaml"].iter().any(|ending| name.ends_with(ending));
        use anabranch_asnet::topology::Topology;
        let read =
            if is_yaml { Topology::from_topo(name, &topology_text) } else { Topology::from_toml(name, &topology_text) };
        Ok((read.map_err(|error| error.to_string())?, topology_text.clone()))
    })
    .map_err(|error| broken(&error.to_string()))?;
    // Locks of earlier versions say `quick` alone.
    let named = |form: &Form| lock["form"] == form.name() || (*form == Form::Quick && lock["quick"] == true);
    Ok(plan.in_form(Form::ALL.into_iter().find(named).unwrap_or_default()))
}

/// What of two locks has to be the same, so that results stand side by side; the first that is not.
pub(super) fn difference(ours: &Value, theirs: &Value) -> Option<&'static str> {
    let parts = [
        ("plan", "the plan"),
        ("topology", "the topology"),
        ("form", "--quick or --full"),
        ("content_bytes", "the size of the content"),
        ("program", "the program"),
        ("machine", "the machine"),
    ];
    parts.into_iter().find(|(key, _)| ours[*key] != theirs[*key]).map(|(_, what)| what)
}

#[cfg(test)]
mod tests {
    use anabranch_asnet::link::LinkShape;
    use anabranch_asnet::topology::Topology;

    use super::*;
    use crate::plan::NetworkSource;

    const TOPOLOGY: &str = "[as.'1-1']\ncore = true\n[as.'1-2']\n[[link]]\nparent = '1-1'\nchild = '1-2'\n";
    const PLAN: &str = "id = \"x\"\ntitle = \"X\"\ntopology = \"net.toml\"\nrepetitions = 3\n[content]\nsize = \"1 MB\"\n\
                        [[candidate]]\nname = \"bgp\"\nrouting = \"plain\"\n[[candidate]]\nname = \"scion\"\nrouting = \"scion\"\n\
                        [[peers]]\nrole = \"seed\"\nin = [\"1-1\"]\n[[peers]]\nin = [\"1-2\"]\n";

    fn a_plan() -> Plan {
        let open = |source: NetworkSource<'_>| {
            Ok((Topology::from_toml(source.name(), TOPOLOGY).unwrap(), TOPOLOGY.to_owned()))
        };
        Plan::read(Path::new("x.toml"), PLAN, open).unwrap()
    }

    fn options(only: &[&str], repeat: Option<u32>) -> Options {
        let only = only.iter().map(|each| (*each).to_owned()).collect();
        let [program, out] = ["/nonexistent", "/nowhere"].map(PathBuf::from);
        Options { program, out, only, repeat, resume: true, jobs: None }
    }

    #[test]
    fn a_lock_stands_for_all_that_was_run() {
        let plan = a_plan();
        let widened = |first: &Options, then: &Options, has_runs| {
            let mut lock = make(&plan, first, &Calibration::default());
            widen(&mut lock, &plan, then, has_runs);
            (texts(&lock["only"]), lock["repeat"].as_u64())
        };
        let of = |only: &[&str], repeat| (only.iter().map(|each| (*each).to_owned()).collect::<Vec<_>>(), repeat);
        let [all, scion, bgp] = [&[] as &[&str], &["scion"], &["bgp"]].map(|only| options(only, None));
        // `run --only scion`, then `--resume`: all of it was run.
        assert_eq!(widened(&scion, &all, true), of(&[], None));
        assert_eq!(widened(&all, &scion, true), of(&[], None));
        assert_eq!(widened(&scion, &bgp, true), of(&["scion", "bgp"], None));
        assert_eq!(widened(&scion, &scion, true), of(&["scion"], None));
        // The plan says three times.
        assert_eq!(widened(&options(&[], Some(1)), &all, true), of(&[], None));
        assert_eq!(widened(&options(&[], Some(5)), &all, true), of(&[], Some(5)));
        assert_eq!(widened(&options(&[], Some(1)), &options(&[], Some(2)), true), of(&[], Some(2)));
        // Of what was given up before its first run, nothing stays.
        assert_eq!(widened(&options(&["scion"], Some(5)), &bgp, false), of(&["bgp"], None));
    }

    #[test]
    fn what_was_measured_is_kept_and_not_measured_again() {
        let shape = |loss, rate_bps| LinkShape { loss, rate_bps, ..LinkShape::default() };
        let asked = |way, shape| Asked { link: 0, way, name: format!("{way}"), shape };
        let measured = |way, shape, fits| {
            let (got_bps, got_delay, got_loss) = (Some(1e6), Some(Duration::ZERO), Some(0.0));
            Measured { asked: asked(way, shape), got_bps, got_delay, got_loss, fits }
        };
        let (lossy, open) = (shape(0.000_006, Some(1_000_000)), shape(0.0, None));
        let known = vec![measured(0, lossy, Some(true)), measured(1, lossy, Some(false)), measured(1, open, None)];
        let mut lock = make(&a_plan(), &options(&[], None), &Calibration { measured: known, left_out: 0 });
        // As it is read back.
        lock = serde_json::from_str(&lock.to_string()).unwrap();
        let all = vec![
            asked(0, lossy),
            asked(0, open),
            asked(1, lossy),
            asked(1, open),
            asked(0, shape(0.01, Some(1_000_000))),
        ];
        assert_eq!(unmeasured(&lock, all.clone()), [all[1].clone(), all[4].clone()]);
        let links = LinksMeasured::of(&lock);
        assert_eq!(links, LinksMeasured { fitting: 1, not_measured: 1, directions: 3 });
        let shown = "1 of 3 directions had their rate, delay and loss within 2 %, 1 was not measured";
        assert_eq!(links.to_string(), shown);
        add_measured(&mut lock, &Calibration { measured: vec![measured(0, open, None)], left_out: 2 });
        assert!(
            LinksMeasured::of(&lock).to_string().starts_with("1 of 6 ") && lock["calibration"][3]["fits"].is_null()
        );
        assert!(LinksMeasured::of(&lock).to_string().ends_with(", 4 were not measured"));
        assert!(unmeasured(&lock, all).is_empty(), "there are more than are measured");
    }

    #[test]
    fn a_program_of_the_same_length_is_another_one_and_memory_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let written = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            about(&path)
        };
        let long = vec![7; HASHED_BYTES + 1];
        let mut other = long.clone();
        other[HASHED_BYTES] = 8;
        assert_eq!(written("a", &long), written("b", &long));
        assert_ne!(written("a", &long), written("b", &other));
        let of = ["8132456 kB", "8132400 kB", "16384 MB"].map(gib);
        assert_eq!(of, [Some("8 GiB".into()), Some("8 GiB".into()), None]);
    }
}
