//! Sweeps as job arrays of a real Slurm: munged, slurmctld and slurmd of Debian, inside a namespace of their own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_lab::netns::Namespace;
use anabranch_testbed::net;
use anabranch_testbed::peers::{anabranch, checkout};
use anabranch_testbed::process::Process;
use serde_json::Value;

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(1200);
/// The node's address, of nobody else in its namespace.
const NODE: &str = "10.77.0.1";
/// How long a daemon may take to answer.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A Slurm of one node, which is this machine; dropped, its daemons end.
struct Slurm {
    inside: Namespace,
    config: String,
    // In this order they go.
    daemons: Vec<Process>,
}

impl Slurm {
    fn start(dir: &Path) -> Self {
        let inside = Namespace::new().unwrap();
        // getaddrinfo(3) with AI_ADDRCONFIG, which Slurm uses, finds nothing where loopback addresses are all there are.
        inside.add_address("lo", &format!("{NODE}/32")).unwrap();
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
        let name = name.split('.').next().unwrap().to_owned();
        let place = |file: &str| dir.join(file).display().to_string();
        let (munge, config) = (place("munge.socket"), place("slurm.conf"));
        // Whoever writes here, munged asks, may not be just anybody.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.join("munge.key"), [7; 128]).unwrap();
        fs::set_permissions(dir.join("munge.key"), fs::Permissions::from_mode(0o400)).unwrap();
        for folder in ["state", "spool"] {
            fs::create_dir(dir.join(folder)).unwrap();
        }
        // Everything as root, nothing of cgroups, which a container may not have: how tasks are tracked is not what is tested.
        let text = format!(
            "ClusterName=lab\nSlurmctldHost={name}({NODE})\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n\
             AuthInfo=socket={munge}\nCryptoType=crypto/munge\nSlurmctldPort=6817\nSlurmdPort=6818\n\
             StateSaveLocation={}\nSlurmdSpoolDir={}\nSlurmctldPidFile={}\nSlurmdPidFile={}\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nReturnToService=2\nMpiDefault=none\n\
             NodeName={name} NodeAddr={NODE} CPUs=2 State=UNKNOWN\n\
             PartitionName=all Nodes={name} Default=YES MaxTime=INFINITE State=UP\n",
            place("state"),
            place("spool"),
            place("slurmctld.pid"),
            place("slurmd.pid"),
        );
        fs::write(&config, text).unwrap();
        let mut slurm = Self { inside, config, daemons: Vec::new() };
        let munged = [
            "--foreground",
            "--force",
            "--socket",
            &munge,
            "--key-file",
            &place("munge.key"),
            "--pid-file",
            &place("munged.pid"),
            "--seed-file",
            &place("munged.seed"),
            "--log-file",
            &place("munged.log"),
        ];
        slurm.daemon("munged", &munged);
        slurm.daemon("slurmctld", &["-D", "-f", &slurm.config.clone()]);
        slurm.daemon("slurmd", &["-D", "-f", &slurm.config.clone()]);
        let asked = Instant::now();
        loop {
            let told = slurm.command("sinfo").args(["--noheader", "--format=%T"]).output().unwrap();
            if String::from_utf8_lossy(&told.stdout).trim() == "idle" {
                return slurm;
            }
            assert!(asked.elapsed() < START_LIMIT, "{told:?}\n{}", slurm.logs());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// A command inside, without the mounts that `ip netns exec` makes: what it mounts has to be seen outside.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.inside.name())).arg(program);
        command.env("SLURM_CONF", &self.config);
        command
    }

    fn daemon(&mut self, program: &str, words: &[&str]) {
        let found = ["/usr/sbin", "/usr/bin"]
            .iter()
            .map(|dir| format!("{dir}/{program}"))
            .find(|path| Path::new(path).exists());
        let found =
            found.unwrap_or_else(|| panic!("{program} is missing: run `crates/testbed/peers/install.sh slurm`"));
        let mut command = self.command(&found);
        self.daemons.push(Process::spawn(program, command.args(words)).unwrap());
    }

    fn logs(&self) -> String {
        self.daemons.iter().map(Process::log).collect::<Vec<_>>().join("\n---\n")
    }
}

/// Twenty-four cells, each of which takes seconds.
const PLAN: &str = r#"
id = "array"
title = "A sweep of 24 cells"
topology = "TOPOLOGY"
limit = "3 min"
[content]
size = "500 kB"
piece_length = "64 KiB"
[[candidate]]
name = "plain"
routing = "plain"
[[candidate]]
name = "scion"
routing = "scion"
[[peers]]
role = "seed"
in = ["1-1"]
[[peers]]
in = ["1-2"]
[[must]]
that = "time(plain, r1) > time(plain, r12)"
"#;

#[test]
#[ignore = "needs Slurm and minutes: make slurm"]
fn the_cells_of_a_sweep_run_as_tasks_of_a_job_array() {
    assert!(net::available(), "namespaces need root");
    let dir = tempfile::tempdir().unwrap();
    let topology = checkout().join("topologies/pair.toml").display().to_string();
    let variants =
        (1..=12).map(|rate| format!("[[variant]]\nname = \"r{rate}\"\nlinks = {{ rate = \"{rate} Mbit/s\" }}\n"));
    let plan = PLAN.replace("TOPOLOGY", &topology) + &variants.collect::<String>();
    // A claim stands for cells of variants, so these come first.
    fs::write(dir.path().join("array.toml"), plan).unwrap();
    let home = tempfile::tempdir().unwrap();
    let slurm = Slurm::start(home.path());
    let program = anabranch::program().unwrap_or_else(|error| panic!("{error}")).display().to_string();
    let run = |words: &[&str]| {
        let mut command = slurm.command(&program);
        let output = command.arg("lab").args(words).current_dir(dir.path()).output().unwrap();
        let text = [&output.stdout[..], &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        (output.status.code().unwrap_or(-1), text[0].clone(), text[1].clone())
    };
    let submit = ["submit", "array.toml", "--slurm", "--jobs", "2", "--json"];
    let (code, said, errors) = run(&submit);
    assert_eq!(code, 0, "{said}{errors}");
    let submitted: Value = serde_json::from_str(said.trim()).unwrap();
    assert_eq!((&submitted["tasks"], &submitted["tasks_done"]), (&24.into(), &0.into()));
    let job = submitted["job"].as_str().unwrap();
    assert!(run(&submit).0 == 2, "what was submitted is not overwritten");
    // What is there is shown, and what is not is named.
    let (code, _, errors) = run(&["collect", "lab-results/array"]);
    assert!(code == 4 && errors.contains("not done"), "{errors}");
    let begun = Instant::now();
    loop {
        let told = slurm.command("squeue").args(["--noheader", "--array", "--jobs", job]).output().unwrap();
        let waiting = String::from_utf8_lossy(&told.stdout).lines().count();
        if waiting == 0 {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{waiting} tasks are left\n{}", slurm.logs());
        std::thread::sleep(Duration::from_millis(500));
    }
    let log = |task: usize| {
        fs::read_to_string(dir.path().join(format!("lab-results/array/tasks/{task}.log"))).unwrap_or_default()
    };
    let (code, said, errors) = run(&["collect", "lab-results/array"]);
    assert_eq!(code, 0, "{said}{errors}\n{}", log(0));
    assert!(said.contains("holds   time(plain, r1) > time(plain, r12)"), "{said}");
    let runs = fs::read_to_string(dir.path().join("lab-results/array/runs.jsonl")).unwrap();
    assert_eq!(runs.lines().count(), 24);
    // As if it had been run here: reported, compared, its logs in their places, and nothing left to submit.
    assert_eq!(run(&["report", "lab-results/array"]).0, 0);
    assert!(dir.path().join("lab-results/array/runs/swarm-plain-r7/0/peer-1.out").exists());
    assert_eq!(run(&["routes", "lab-results/array", "--only", "scion/r3"]).0, 0);
    let (code, said, errors) = run(&[&submit[..], &["--resume"]].concat());
    let again: Value = serde_json::from_str(said.trim()).unwrap_or_default();
    assert!(code == 0 && again["job"].is_null() && again["tasks_done"] == 24, "{said}{errors}");
}
