//! What SCION's users know from scionproto's `scion` tool, on networks of ours: probing, `traceroute`, `address`, sizes of pings,
//! and networks that show themselves, name their hosts and run in parts.

mod common;

use std::fs;

use common::net::{Net, example};
use common::{Running, anabranch, finish, run};
use serde_json::Value;

const FROM: &str = "1-ff00:0:111";
const TO: &str = "2-ff00:0:211";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn paths_are_probed_and_named_as_others_name_them() {
    let net = Net::up("two-isds.toml");
    let all = net.paths(FROM, TO);
    let list = |arguments: &[&str]| net.run_in(FROM, &[&["paths", TO], arguments].concat());
    let (code, out, stderr) = list(&["--probe", "--json", "--timeout", "20s"]);
    let probed = json(&out);
    assert_eq!(code, 0, "{stderr}");
    assert!(probed["paths"].as_array().unwrap().iter().all(|path| path["status"] == "alive"), "{out}");
    assert!(probed["paths"][0]["probe_rtt_ms"].as_f64() > Some(0.0), "{out}");
    let (code, out, _) = list(&["-m", "2", "-r", "-e"]);
    assert!(code == 0 && out.starts_with("2 paths from") && out.contains("latency of each part: "), "{out}");
    let fingerprint = all[0]["fingerprint"].as_str().unwrap();
    assert!(out.contains(&format!("fingerprint {}", &fingerprint[..16])) && fingerprint.len() == 64, "{out}");
    // The core claims nothing of what is inside it: the least claim is not the whole truth.
    let unclaimed = all[0]["bandwidth_unclaimed"].as_u64().unwrap();
    let (_, out, _) = list(&["-m", "1"]);
    assert_eq!(out.contains("bandwidth <"), unclaimed > 0, "{out}");

    // A path is chosen by its number, its id and its fingerprint.
    let ping = |path: &str| net.run_in(FROM, &["ping", &net.host(TO), "-c", "1", "--timeout", "20s", "--path", path]);
    let second = &all[1];
    for name in ["1", &second["id"].as_str().unwrap()[..6], &second["fingerprint"].as_str().unwrap()[..16]] {
        let (code, out, stderr) = ping(name);
        assert!(code == 0 && out.contains(second["path"].as_str().unwrap()), "{name}: {out} {stderr}");
    }
    let (code, _, stderr) = ping("99");
    assert!(code == 6 && stderr.contains(&format!("the list has 0 to {}", all.len() - 1)), "{stderr}");

    // What a cut link does: the daemon knows a second later, the cache of a program does not.
    let first = json(&list(&["--json", "--sequence", "0 0"]).1);
    let hops = first["paths"][0]["hops"].as_array().unwrap();
    let end = |hop: usize, side: &str| format!("{}#{}", hops[hop]["isd_as"].as_str().unwrap(), hops[hop][side]);
    assert_eq!(net.link(&[&end(0, "egress"), &end(1, "ingress"), "down"]).0, 0);
    let (code, out, stderr) = list(&["--healthy-only", "--json", "--refresh", "--timeout", "20s"]);
    let healthy = json(&out);
    assert_eq!(code, 0, "{stderr}");
    assert!(healthy["paths"].as_array().unwrap().iter().all(|path| path["id"] != first["paths"][0]["id"]), "{out}");
}

#[test]
fn traceroute_names_each_router_and_where_the_way_ends() {
    let net = Net::up("line.toml");
    let (from, to) = (FROM, "1-ff00:0:112");
    let (code, out, stderr) = net.run_in(from, &["traceroute", to, "--timeout", "20s"]);
    assert_eq!(code, 0, "{stderr}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 5, "{out}");
    assert!(lines[1].starts_with("0 1-ff00:0:111,127.") && lines[1].matches(" ms").count() == 3, "{out}");
    assert!(lines[4].starts_with("3 1-ff00:0:112,127."), "{out}");
    let (code, out, _) = net.run_in(from, &["tr", &net.host(to), "--json", "--timeout", "20s", "--path", "0"]);
    let traced = json(&out);
    assert_eq!((code, traced["hops"].as_array().unwrap().len()), (0, 4));
    assert_eq!(traced["hops"][1]["isd_as"], "1-ff00:0:110");
    assert!(traced["path"]["fingerprint"].is_string() && traced["hops"][3]["rtt_ms"][2].is_number(), "{out}");
    let (code, out, stderr) = net.run_in(from, &["traceroute", to, "-q"]);
    assert_eq!((code, out.as_str(), stderr.as_str()), (0, "", ""));
    let (code, _, stderr) = net.run_in(from, &["traceroute", from]);
    assert!(code == 2 && stderr.contains("is our own AS"), "{stderr}");

    let (code, out, _) = net.run_in(from, &["address"]);
    let ours = net.host(from);
    assert!(code == 0 && out.trim().split_once(',').unwrap().0 == from, "{out} {ours}");
    let (_, out, _) = net.run_in(from, &["address", "--json"]);
    assert_eq!(json(&out)["addresses"][0]["isd_as"], from);
    // A host that is not there, behind routers that are.
    let silent = "1-ff00:0:112,127.255.255.1";
    let (code, _, stderr) = net.run_in(from, &["ping", silent, "-c", "1", "--timeout", "500ms"]);
    assert!(code == 6 && stderr.contains("every router on the way answers: does the host run"), "{stderr}");
}

#[test]
fn pings_are_as_long_as_they_are_told() {
    let net = Net::up("line.toml");
    let to = net.host("1-ff00:0:112");
    let ping = |arguments: &[&str]| {
        let all = [&["ping", &to, "-c", "1", "--timeout", "20s", "--json"], arguments].concat();
        net.run_in(FROM, &all)
    };
    let bytes = |arguments: &[&str]| {
        let (code, out, stderr) = ping(arguments);
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
        let answer = out.lines().map(json).find(|event| event["event"] == "answer").unwrap();
        answer["bytes"].as_u64().unwrap()
    };
    let (usual, more) = (bytes(&[]), bytes(&["-s", "156"]));
    assert_eq!(more, usual + 100);
    assert_eq!(bytes(&["--packet-size", "700"]), 700);
    assert_eq!(bytes(&["--max-mtu"]), 1472);
    for (arguments, code, expected) in [
        (&["-s", "7"][..], 2, "8..=65535"),
        (&["-s", "60000"], 2, "or 1472 with headers: give fewer, or --max-mtu"),
        (&["--packet-size", "20"], 2, "less than the headers on this path: give at least"),
        (&["--packet-size", "700", "--max-mtu"], 2, "cannot be used with"),
    ] {
        let (found, _, stderr) = ping(arguments);
        assert!(found == code && stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    assert_eq!(
        net.run_in(FROM, &["ping", &to, "-c", "1", "--timeout", "20s", "-q"]),
        (0, String::new(), String::new())
    );
    let (code, out, stderr) = net.run_in(FROM, &["ping", "1-ff00:0:112,127.255.255.1", "-qc1", "--timeout", "100ms"]);
    assert!(code == 6 && out.is_empty() && stderr.lines().count() == 1, "{out} {stderr}");
}

#[test]
fn a_network_shows_its_state_and_names_its_hosts() {
    let hosts = tempfile::tempdir().unwrap();
    let file = hosts.path().join("hosts").to_str().unwrap().to_owned();
    let net = Net::up_with("two-isds.toml", &["--hosts", &file]);
    let control = net.shown["control"].as_str().unwrap();
    let (code, out, stderr) = run(hosts.path(), &["net", "status", "--control", control]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        out.starts_with("two-isds: 9 ASes and ") && out.contains("0 of them down") && out.contains("alice 127."),
        "{out}"
    );
    assert_eq!(net.link(&["1-ff00:0:120", "1-ff00:0:112", "down"]).0, 0);
    let (_, out, _) = run(hosts.path(), &["net", "status", "--control", control, "--json"]);
    let status = json(&out);
    let down = status["links"].as_array().unwrap().iter().filter(|link| link["up"] == false).count();
    assert_eq!((down, &status["name"]), (1, &"two-isds".into()));

    // Names go where addresses go.
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(" erin.2-ff00_0_211 erin\n"), "{text}");
    let ping = |name: &str| {
        let mut command = anabranch(hosts.path());
        command.env("SCION_DAEMON_ADDRESS", net.daemon(FROM)).env("SCION_HOSTS_FILES", &file);
        finish(command.args(["ping", name, "-c", "1", "--timeout", "20s"]))
    };
    for name in ["erin", "frank.2-ff00_0_212"] {
        let (code, out, stderr) = ping(name);
        assert_eq!(code, 0, "{name}: {out} {stderr}");
    }
    // Three hosts are called so: the bare name would be one of them.
    assert!(!text.contains(" host\n") && text.contains(" host.1-ff00_0_110\n"), "{text}");
    let Net { running, .. } = net;
    assert_eq!(running.interrupt().0, 0);
    assert!(!fs::exists(&file).unwrap(), "the file goes with the network");

    let theirs = hosts.path().join("theirs");
    fs::write(&theirs, "1-1,10.0.0.1 mine\n").unwrap();
    let topology = example(hosts.path(), "line.toml");
    let taken = ["net", "up", &topology, "--control", "127.0.0.1:0", "--hosts", "theirs"];
    let (code, _, stderr) = run(hosts.path(), &taken);
    assert!(code == 2 && stderr.contains("theirs is a file of somebody else's"), "{stderr}");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "1-1,10.0.0.1 mine\n");
    let (code, _, stderr) = run(hosts.path(), &["net", "status", "--control", "127.0.0.1:1"]);
    assert!(code == 6 && stderr.contains("anabranch net up TOPOLOGY --control 127.0.0.1:1"), "{stderr}");
}

#[test]
fn a_network_runs_in_parts_that_share_a_secret() {
    let dir = tempfile::tempdir().unwrap();
    let file = example(dir.path(), "line.toml");
    let part = |ases: &[&str]| {
        let mut command = anabranch(dir.path());
        command.args(["net", "up", &file, "--control", "127.0.0.1:0", "--json", "--secret", "secret"]);
        command.args(ases.iter().flat_map(|isd_as| ["--only", isd_as]));
        let mut running = Running::start(&mut command);
        let shown = running.event("network");
        (running, shown)
    };
    let (core, _) = part(&["1-ff00:0:110"]);
    let (_leaves, shown) = part(&["1-ff00:0:111", "1-ff00:0:112"]);
    let of = |isd_as: &str| {
        let ases = shown["ases"].as_array().unwrap();
        ases.iter().find(|each| each["isd_as"] == isd_as).unwrap().clone()
    };
    assert_eq!((&of("1-ff00:0:110")["here"], &of(FROM)["here"]), (&false.into(), &true.into()));
    let host = format!("1-ff00:0:112,{}", of("1-ff00:0:112")["hosts"][0]["address"].as_str().unwrap());
    let ping = |timeout: &str| {
        let daemon = of(FROM)["daemon"].as_str().unwrap().to_owned();
        let mut command = anabranch(dir.path());
        finish(command.env("SCION_DAEMON", daemon).args(["ping", &host, "-c", "1", "--timeout", timeout]))
    };
    let (code, out, stderr) = ping("20s");
    assert_eq!(code, 0, "{out} {stderr}");
    // The core's process dies; our own AS's router does not.
    drop(core);
    let (code, _, stderr) = ping("500ms");
    assert!(
        code == 6 && stderr.contains("routers answer as far as 1-ff00:0:111#1, and nothing does behind it"),
        "{stderr}"
    );

    for (arguments, expected) in [
        (&["--only", "1-ff00:0:110"][..], "`--only` needs --secret FILE"),
        (&["--only", "1-ff00:0:119", "--secret", "secret"], "AS 1-ff00:0:119 is not in the topology"),
    ] {
        let up = ["net", "up", &file, "--control", "127.0.0.1:0"];
        let (code, _, stderr) = run(dir.path(), &[&up[..], arguments].concat());
        assert!(code == 2 && stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    // A second network at the same addresses names its cure.
    let (code, _, stderr) = run(dir.path(), &["net", "up", &file, "--control", "127.0.0.1:0"]);
    assert!(code == 6 && stderr.contains("net status") && stderr.contains("network = \"127.32.0.0\""), "{stderr}");
}
