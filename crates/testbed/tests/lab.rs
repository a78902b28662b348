//! The lab through the front door: BGP beside SCION on the same links.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_asnet::link::LinkShape;
use anabranch_lab::netns::Namespace;
use anabranch_lab::wire::{Carriers, Wire};
use anabranch_testbed::peers::{anabranch, checkout};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, net};
use serde_json::Value;

/// Far more than the small plan takes.
const LIMIT: Duration = Duration::from_secs(300);

fn lab(words: &[&str], dir: &Path) -> Command {
    let mut command = anabranch::command(None).unwrap_or_else(|error| panic!("{error}"));
    command.arg("lab").args(words).current_dir(dir);
    command
}

/// Waits for what takes as long as the machine takes.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let asked = Instant::now();
    while !holds() {
        assert!(asked.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_wire_carries_what_crosses_and_changes_on_the_way() {
    if !net::available() {
        eprintln!("not run: namespaces need root");
        return;
    }
    let ends = [Namespace::new().unwrap(), Namespace::new().unwrap()];
    let shape = LinkShape { rate_bps: Some(1_000_000), queue_bytes: 10_000, mtu: 1500, ..LinkShape::default() };
    let carriers = Carriers::default();
    let wire = Wire::new(&carriers, [&ends[0], &ends[1]], "wire0", [shape; 2], 7).unwrap();
    for (end, address) in ends.iter().zip(["10.9.0.1/24", "10.9.0.2/24"]) {
        end.ip_batch(&format!("addr add {address} dev wire0\nlink set wire0 up\n")).unwrap();
    }
    let bind = |end: usize, address: &str| {
        ends[end].enter(|| UdpSocket::bind(address).map_err(Error::system("a socket"))).unwrap()
    };
    let (here, there) = (bind(0, "10.9.0.1:7"), bind(1, "10.9.0.2:7"));
    there.set_read_timeout(Some(LIMIT)).unwrap();
    here.send_to(b"hello", "10.9.0.2:7").unwrap();
    assert_eq!(there.recv(&mut [0; 9]).unwrap(), 5);

    // Four times what the link takes, in one direction alone.
    wire.cross(0, 4_000_000);
    eventually("cross traffic fills the queue", || wire.used()[0].cross_bytes > 12_500 && wire.used()[0].dropped > 10);
    wire.cross(0, 0);
    assert_eq!((wire.used()[1].cross_bytes, wire.used()[1].dropped), (0, 0));

    wire.set_shape(1, LinkShape { loss: 1.0, ..shape });
    eventually("the direction loses everything", || {
        there.send_to(b"lost", "10.9.0.1:7").unwrap();
        wire.used()[1].lost > 0
    });
    assert_eq!((wire.used()[0].lost, wire.failure()), (0, None));

    // Down, nothing passes, not even what was on the way; up, all of it does.
    wire.set_shape(1, shape);
    wire.set_up(false);
    let before = wire.used()[0].bytes;
    eventually("what is sent falls down", || {
        here.send_to(b"fallen", "10.9.0.2:7").unwrap();
        wire.used()[0].lost > 3
    });
    assert_eq!(wire.used()[0].bytes, before);
    wire.set_up(true);
    here.send_to(b"again", "10.9.0.2:7").unwrap();
    let mut buffer = [0; 9];
    eventually("what is sent arrives", || there.recv(&mut buffer).is_ok_and(|count| &buffer[..count] == b"again"));
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// What is there of a lab: its namespaces, its folder, and processes that speak of either of its folders.
fn remains(owner: i32, dir: &Path) -> Vec<String> {
    let (prefix, home) = (format!("anabranch-lab-{owner}-"), format!("/run/anabranch-lab/{owner}/"));
    let mut found: Vec<String> = names("/run/netns").into_iter().filter(|name| name.starts_with(&prefix)).collect();
    found.extend(names("/run/anabranch-lab").into_iter().filter(|name| *name == owner.to_string()));
    let dir = dir.display().to_string();
    for process in names("/proc").iter().filter(|name| name.parse::<i32>().is_ok()) {
        let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if words.contains(&home) || words.contains(&dir) {
            found.push(words);
        }
    }
    found
}

/// Kills a lab so often, at moments that a seed decides, and lets it go on each time: nothing is left of any of them, and no run
/// that ended is lost.
fn survives_being_killed(times: u32) {
    let dir = tempfile::tempdir().unwrap();
    let plan = checkout().join("plans/small.toml").display().to_string();
    let repeat = times.div_ceil(2).max(1).to_string();
    let run = ["run", &plan, "--out", "out", "--repeat", &repeat, "--resume", "--json"];
    let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default().lines().count();
    let runs = dir.path().join("out/small/runs.jsonl");
    let mut random = fastrand::Rng::with_seed(u64::from(times));
    let (mut owners, mut kept) = (Vec::new(), 0);
    for number in 0..times {
        let mut killed = Process::spawn("lab", &mut lab(&run, dir.path())).unwrap();
        let wait = Duration::from_millis(random.u64(100..15_000));
        drop(killed.wait_success(wait));
        let (owner, there) = (killed.pid(), lines(&runs));
        killed.kill().ok();
        assert!(there >= kept, "round {number}: {there} runs, and {kept} before");
        kept = there;
        owners.push(owner);
    }
    let mut command = lab(&run, dir.path());
    let (said, _) = Process::run("lab", &mut command, LIMIT).unwrap_or_else(|error| panic!("{error}"));
    let plan_told = said.iter().map(|line| line.json()).find(|event| event["event"] == "plan").unwrap();
    assert_eq!(plan_told["runs_there"].as_u64().unwrap() as usize, kept, "what had ended is not made again");
    let wanted = 2 * repeat.parse::<usize>().unwrap();
    assert_eq!(lines(&runs), wanted);
    for owner in owners {
        let left = remains(owner, dir.path());
        assert!(left.is_empty(), "of {owner} is left: {left:?}");
    }
    assert!(!dir.path().join("out/small/scratch").exists(), "what was fetched is removed");
}

#[test]
#[ignore = "a quarter of an hour: make kills"]
fn nothing_is_left_of_a_lab_that_is_killed_twenty_times() {
    if net::available() {
        survives_being_killed(20);
    }
}

#[test]
fn plans_for_virtual_time_are_left_out_among_others_and_refused_alone() {
    let plans = checkout().join("plans");
    let [sim, real] = ["001-fig1.toml", "small.toml"].map(|name| plans.join(name).display().to_string());
    let said = |words: &[&str]| {
        let output = lab(words, &std::env::temp_dir()).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    // No cell has that name, so that nothing runs.
    let among_others = said(&["run", &sim, &real, "--only", "none"]);
    assert!(among_others.contains("001-fig1 is left out: it is for virtual time"), "{among_others}");
    assert!(among_others.contains("`--only none` is in no cell of small"), "{among_others}");
    let alone = said(&["run", &sim]);
    assert!(alone.contains("001-fig1 is for virtual time") && !alone.contains("left out"), "{alone}");
}

#[test]
fn scion_beside_bgp_on_the_same_links_and_nothing_is_left_of_a_lab_that_was_killed() {
    if !net::available() {
        eprintln!("not run: namespaces need root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let plan = checkout().join("plans/small.toml").display().to_string();
    let run = ["run", &plan, "--out", "out", "--json"];

    // One that is killed in the midst of its first run, peers and all, and one that is killed while it looks at what is there.
    let mut owners = Vec::new();
    for event in ["progress", "plan"] {
        let words = [&run[..], &["--resume"]].concat();
        let mut killed = Process::spawn("lab", &mut lab(&words, dir.path())).unwrap();
        killed.wait_event(event, LIMIT).unwrap_or_else(|error| panic!("{error}"));
        let owner = killed.pid();
        killed.kill().unwrap();
        assert!(!remains(owner, Path::new("/nonexistent")).is_empty());
        owners.push(owner);
    }
    // What it left in its folder is not overwritten by accident.
    let refused = lab(&run, dir.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--resume"));

    let mut command = lab(&[&run[..], &["--resume"]].concat(), dir.path());
    let (lines, _) = Process::run("lab", &mut command, LIMIT).unwrap_or_else(|error| panic!("{error}"));
    for owner in owners {
        let left = remains(owner, dir.path());
        assert!(left.is_empty(), "of {owner} is left: {left:?}");
    }
    let events: Vec<Value> = lines.iter().map(|line| line.json()).collect();
    let finished: Vec<&Value> = events.iter().filter(|event| event["event"] == "run_finished").collect();
    assert_eq!(finished.len(), 2, "{events:?}");
    for run in &finished {
        assert!(run["failed"].is_null() && run["measures"]["goodput"].as_f64().unwrap() > 0.0, "{run}");
        // Two peers in one AS: the content crosses two links at least once, and each of them not ten times.
        let wire = run["measures"]["wire"].as_f64().unwrap();
        assert!((1.0..10.0).contains(&wire), "{run}");
    }

    let results = dir.path().join("out/small");
    let routes = fs::read_to_string(results.join("runs/swarm-bgp/0/routes.txt")).unwrap();
    assert!(routes.contains("10.1.3.0/24") && routes.contains("proto bgp"), "{routes}");
    let page = fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("goodput(scion)") && page.trim_end().ends_with("</html>"));
    let rows = fs::read_to_string(results.join("runs.csv")).unwrap();
    assert_eq!(rows.lines().count(), 3, "{rows}");
    assert!(fs::read(results.join("figures/small.png")).unwrap().starts_with(b"\x89PNG"));
    let figure = fs::read_to_string(results.join("figures/small.csv")).unwrap();
    assert_eq!(figure.lines().count(), 3, "{figure}");
    assert!(!results.join("scratch").exists(), "what was fetched is removed");

    // The ways of BGP lead up to a core AS and down again; SCION's uploaders chose among all that there are.
    let said = |words: &[&str]| {
        let output = lab(words, dir.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let ways = said(&["routes", "out/small"]);
    assert!(ways.contains("swarm/bgp, run 1: bgp") && ways.contains("1-3 > 1-1 > 1-4"), "{ways}");
    let scion = said(&["routes", "out/small/runs/swarm-scion/0"]);
    assert!(!scion.contains("bgp") && scion.contains("1-3 > 1-2 > 1-4"), "{scion}");
    let markdown = said(&["report", "out/small", "--markdown"]);
    assert!(markdown.contains("| [small](#small) | full | 2 |"), "{markdown}");

    // A second time there is nothing to do, and two results that are one do not differ.
    assert!(said(&[&run[..], &["--resume"]].concat()).contains("\"runs\":0"));
    assert!(said(&["compare", "out/small", "out/small"]).contains("1.000"));
    // The lock alone is enough to run it once more, here the half of it.
    said(&["run", "--lock", "out/small/lock.json", "--out", "again", "--only", "bgp"]);
    let compared = said(&["compare", "out/small", "again/small", "--measure", "wire"]);
    assert!(compared.contains("swarm/bgp") && !compared.contains("swarm/scion"), "{compared}");
}

/// Everything that can happen meanwhile, over routes that stay and over SCION.
const EVENTS: &str = r#"
id = "events"
title = "Everything that can happen"
topology = "TOPOLOGY"
limit = "4 min"
[content]
size = "6 MB"
piece_length = "64 KiB"
[[candidate]]
name = "plain"
routing = "plain"
[[candidate]]
name = "scion"
routing = "scion"
paths = 2
[[peers]]
role = "seed"
in = ["1-3"]
[[peers]]
in = ["1-4"]
count = 3
[[event]]
at = "300 ms"
link = ["1-1", "1-4"]
cross = "2 Mbit/s"
length = "700 ms"
[[event]]
at = "300 ms"
link = ["1-1", "1-4"]
direction = "there"
flows = 2
length = "700 ms"
[[event]]
progress = "10 %"
link = ["1-1", "1-3"]
set = { rate = "4 Mbit/s", delay = "8 ms" }
length = "500 ms"
[[event]]
progress = "10 %"
leave = 1
length = "500 ms"
[[event]]
progress = "20 %"
link = ["1-1", "1-3"]
down = true
length = "500 ms"
[[event]]
progress = "25 %"
leave = 1
in = ["1-4"]
[[figure]]
id = "events-rates"
title = "Rates"
over = "time"
"#;

#[test]
fn what_a_plan_lets_happen_happens_and_is_undone() {
    if !net::available() {
        eprintln!("not run: namespaces need root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let topology = checkout().join("topologies/ring.toml").display().to_string();
    fs::write(dir.path().join("events.toml"), EVENTS.replace("TOPOLOGY", &topology)).unwrap();
    // Both at once, since they leave the machine idle.
    let mut command = lab(&["run", "events.toml", "--jobs", "2"], dir.path());
    Process::run("lab", &mut command, LIMIT).unwrap_or_else(|error| panic!("{error}"));
    let runs = fs::read_to_string(dir.path().join("lab-results/events/runs.jsonl")).unwrap();
    let runs: Vec<Value> = runs.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert!(run["failed"].is_null(), "{run}");
        let happened = run["events"].as_array().unwrap();
        for event in 0..6 {
            let of: Vec<&Value> = happened.iter().filter(|each| each["event"] == event).collect();
            // The last one has no end.
            assert_eq!(of.len(), if event == 5 { 1 } else { 2 }, "event {event} of {happened:?}");
            assert!(of[0]["begins"] == true && of.get(1).is_none_or(|end| end["begins"] == false));
        }
        let links = run["links"].as_array().unwrap();
        let link = |a: &str, b: &str| {
            let fits = |link: &&Value| {
                let ends = link["ends"].to_string();
                ends.contains(&format!("\"{a}#")) && ends.contains(&format!("\"{b}#"))
            };
            links.iter().find(fits).unwrap()
        };
        // UDP both ways, TCP from 1-1 alone, which carries far more than its acknowledgements back.
        let crossed = |way: &str| link("1-1", "1-4")[way]["cross_bytes"].as_u64().unwrap();
        assert!(crossed("there") > crossed("back") && crossed("back") > 50_000, "{links:?}");
        let fell = |way: &str| link("1-1", "1-3")[way]["lost"].as_u64().unwrap();
        assert!(fell("there") + fell("back") > 0, "{links:?}");
        // One came back and finished; one left for good, and one stayed all the while.
        let peers = run["peers"].as_array().unwrap();
        let finished = peers.iter().filter(|peer| peer["seconds"].is_number()).count();
        let left = happened.iter().find(|each| each["event"] == 5).unwrap()["peers"].as_array().unwrap().len();
        assert!(finished >= 3 - left && left == 1, "{peers:?} {happened:?}");
        let back = happened.iter().find(|each| each["event"] == 3).unwrap()["peers"][0].as_u64().unwrap();
        let logs = format!("lab-results/events/runs/{}/0", run["cell"].as_str().unwrap().replace('/', "-"));
        let again = dir.path().join(logs).join(format!("peer-{back}-again-1.out"));
        assert!(again.exists(), "{}", again.display());
    }
}

/// One cell for each client; PPSPP and bulk transfer go over SCION as well, but that is tested elsewhere.
const CLIENTS: &str = r#"
id = "clients"
title = "All clients"
topology = "TOPOLOGY"
limit = "2 min"
[content]
size = "1 MB"
piece_length = "64 KiB"
[[peers]]
role = "seed"
in = ["1-1"]
limit_up = "2M"
[[peers]]
in = ["1-2"]
limit_down = "3M"
[[variant]]
name = "short"
links = { delay = "2 ms", rate = "20 Mbit/s" }
"#;

#[test]
fn all_clients_fetch_in_a_plan() {
    if !net::available() {
        eprintln!("not run: namespaces need root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let topology = checkout().join("topologies/pair.toml").display().to_string();
    let mut plan = CLIENTS.replace("TOPOLOGY", &topology);
    let clients =
        ["anabranch", "anabranch-bulk", "anabranch-ppspp", "libtorrent", "aria2", "transmission", "iperf3", "gridftp"];
    for client in clients {
        plan += &format!("[[candidate]]\nname = \"{client}\"\nrouting = \"plain\"\nclient = \"{client}\"\n");
    }
    // Chunks that the link is too narrow for.
    plan += "[[candidate]]\nname = \"long-chunks\"\nrouting = \"plain\"\nclient = \"anabranch-ppspp\"\n\
             flags = [\"--chunk-length\", \"8KiB\"]\n";
    // Hosts have addresses that libtorrent exempts from its limits where nobody tells it otherwise.
    plan += "[[candidate]]\nname = \"limited\"\nrouting = \"plain\"\nclient = \"libtorrent\"\n\
             flags = [\"upload_rate_limit=200000\"]\n";
    plan +=
        "[[candidate]]\nname = \"connections\"\nrouting = \"plain\"\nclient = \"gridftp\"\nflags = [\"-p\", \"4\"]\n";
    plan += "[[must]]\nthat = \"goodput(libtorrent) < 20\"\n";
    fs::write(dir.path().join("clients.toml"), plan).unwrap();
    let mut command = lab(&["run", "clients.toml", "--jobs", "2"], dir.path());
    command.env("ANABRANCH_LAB_PYTHON", checkout().join(".deps/venv/bin/python"));
    let run = Process::run("lab", &mut command, LIMIT);
    let runs = fs::read_to_string(dir.path().join("lab-results/clients/runs.jsonl")).unwrap_or_default();
    run.unwrap_or_else(|error| panic!("{error}\n{runs}"));
    let runs: Vec<Value> = runs.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(runs.len(), clients.len() + 3);
    for run in &runs {
        // 1 MB at 200 kB/s are five seconds on every machine; half of that leaves room for bursts.
        let least = if run["cell"] == "swarm/limited/short" { 2.5 } else { 0.0 };
        assert!(
            run["failed"].is_null() && run["peers"][1]["seconds"].as_f64().is_some_and(|seconds| seconds > least),
            "{run}"
        );
    }
}

/// A seed that limits what it sends to 100 kB/s, with two slots, one of them optimistic, and five who fetch.
const NATIVE: &str = r#"
id = "native"
title = "A client that limits and chokes"
topology = "TOPOLOGY"
limit = "2 min"
[content]
size = "500 kB"
piece_length = "64 KiB"
[[candidate]]
name = "native"
routing = "plain"
client = "libtorrent"
flags = ["unchoke_slots_limit=2", "num_optimistic_unchoke_slots=1"]
[[peers]]
role = "seed"
in = ["1-1"]
limit_up = "100K"
[[peers]]
in = ["1-2"]
count = 5
"#;

#[test]
fn libtorrent_keeps_to_its_limits_and_slots_in_a_plan() {
    if !net::available() {
        eprintln!("not run: namespaces need root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let topology = checkout().join("topologies/pair.toml").display().to_string();
    fs::write(dir.path().join("native.toml"), NATIVE.replace("TOPOLOGY", &topology)).unwrap();
    let mut command = lab(&["run", "native.toml"], dir.path());
    command.env("ANABRANCH_LAB_PYTHON", checkout().join(".deps/venv/bin/python"));
    Process::run("lab", &mut command, LIMIT).unwrap_or_else(|error| panic!("{error}"));
    let said = fs::read_to_string(dir.path().join("lab-results/native/runs/swarm-native/0/peer-0.out")).unwrap();
    let told: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let serving: Vec<&Value> = told.iter().filter(|told| told["event"] == "serving").collect();
    let count = |told: &Value, name: &str| told[name].as_u64().unwrap();
    assert!(serving.iter().any(|told| count(told, "interested") > 2), "more ask than there are slots: {serving:?}");
    assert!(serving.iter().all(|told| count(told, "unchoked") <= 2), "who has no slot is choked: {serving:?}");
    // Whatever the machine does meanwhile makes it slower, never faster: at most a second's worth beyond the limit.
    let at = |told: &Value| told["time"].as_f64().unwrap();
    let [first, last] = [serving.first().unwrap(), serving.last().unwrap()];
    let most = 100_000.0 * (at(last) - at(first) + 1.0);
    assert!((count(last, "bytes_sent") as f64) < most, "{serving:?}");
}
