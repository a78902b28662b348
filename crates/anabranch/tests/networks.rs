//! SCION as its users meet it: networks run by `net up`, looked at by `paths`, asked over by `ping`, changed by `net link`.

mod common;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::sync::Mutex;

use common::net::{Link, Net, example};
use common::{Running, anabranch, finish, run, signal};
use serde_json::Value;

/// Pings at the same time.
const PINGS_AT_ONCE: usize = 4;

/// Where a path is in its course: up to a core, between cores, beside, and down.
#[derive(Clone, Copy, PartialEq)]
enum Course {
    Up,
    Core,
    Beside,
    Down,
}

/// Every way that SCION's rules allow, found by trying all of them: as `paths` prints it.
fn ways(links: &[Link], from: &str, to: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut passed = vec![from.to_owned()];
    walk(links, Course::Up, from.to_owned(), to, &mut passed, &mut found);
    found
}

fn walk(
    links: &[Link],
    course: Course,
    text: String,
    to: &str,
    passed: &mut Vec<String>,
    found: &mut BTreeSet<String>,
) {
    let here = passed.last().unwrap().clone();
    if here == to {
        found.insert(text);
        return;
    }
    for link in links {
        for [near, far] in [[0, 1], [1, 0]] {
            let ((isd_as, out), (next, into)) = (&link.ends[near], &link.ends[far]);
            if *isd_as != here || passed.contains(next) {
                continue;
            }
            let next_course = match (link.kind.as_str(), near) {
                ("core", _) => Course::Core,
                ("peering", _) => Course::Beside,
                // The first end is the parent.
                (_, 0) => Course::Down,
                _ => Course::Up,
            };
            let allowed = match next_course {
                Course::Up | Course::Beside => course == Course::Up,
                Course::Core => matches!(course, Course::Up | Course::Core),
                Course::Down => true,
            };
            if allowed {
                passed.push(next.clone());
                walk(links, next_course, format!("{text} {out}>{into} {next}"), to, passed, found);
                passed.pop();
            }
        }
    }
}

#[test]
fn every_way_is_listed_once_and_answers() {
    let net = Net::up("two-isds.toml");
    let names: Vec<&str> = net.ases().iter().map(|each| each["isd_as"].as_str().unwrap()).collect();
    let links = net.links();
    let cores = net.ases().iter().filter(|each| each["core"] == true).count();
    let isds: HashSet<&str> = names.iter().map(|name| name.split_once('-').unwrap().0).collect();
    assert_eq!((isds.len(), cores, names.len() - cores), (2, 3, 6));
    let is_beside = |path: &str| {
        links.iter().filter(|link| link.kind == "peering").any(|link| {
            let [(a, one), (b, other)] = &link.ends;
            path.contains(&format!("{a} {one}>{other} {b}")) || path.contains(&format!("{b} {other}>{one} {a}"))
        })
    };
    let mut to_ping = Vec::new();
    for from in &names {
        for to in names.iter().filter(|to| *to != from) {
            let paths = net.paths(from, to);
            let listed: Vec<&str> = paths.iter().map(|path| path["path"].as_str().unwrap()).collect();
            let distinct: BTreeSet<String> = listed.iter().map(|path| (*path).to_owned()).collect();
            assert_eq!(distinct.len(), listed.len(), "{listed:#?}");
            assert_eq!(distinct, ways(&links, from, to), "{from} {to}");
            for (path, text) in paths.iter().zip(&listed) {
                to_ping.push((*from, *to, path["id"].as_str().unwrap().to_owned(), (*text).to_owned()));
            }
        }
    }
    let beside = to_ping.iter().filter(|(.., text)| is_beside(text)).count();
    println!("{} paths between {} ASes, {beside} by peering", to_ping.len(), names.len());
    assert!(beside > 0);
    let waiting = Mutex::new(to_ping.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..PINGS_AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().unwrap().next();
                    let Some((from, to, id, text)) = next else { return };
                    let arguments = ["ping", &net.host(to), "--path", &id, "-c", "1", "--timeout", "30s", "--json"];
                    let (code, out, stderr) = net.run_in(from, &arguments);
                    assert_eq!(code, 0, "{text}: {out} {stderr}");
                    let started: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
                    assert_eq!(started["path"]["path"], text.as_str());
                    assert!(out.contains("\"event\":\"answer\""), "{out}");
                }
            });
        }
    });
    let (code, rest) = net.running.interrupt();
    assert_eq!((code, rest.as_str()), (0, ""));
}

#[test]
fn a_link_that_is_down_is_named_and_comes_back() {
    let net = Net::up("two-isds.toml");
    let (from, to) = ("1-ff00:0:111", "2-ff00:0:211");
    let beside = net.paths(from, to).into_iter().find(|path| path["hops"].as_array().unwrap().len() == 2).unwrap();
    let leaves_by = format!("{from}#{}", beside["hops"][0]["egress"]);
    let mut ping = anabranch(net.dir.path());
    let host = net.host(to);
    ping.env("SCION_DAEMON", net.daemon(from)).args([
        "ping",
        &host,
        "--interval",
        "50ms",
        "--timeout",
        "30s",
        "--json",
    ]);
    let mut ping = Running::start(ping.args(["--path", &beside["id"].as_str().unwrap()[..8]]));
    assert_eq!(ping.event("started")["path"]["id"], beside["id"]);
    ping.event("answer");

    let (code, out, stderr) = net.link(&[from, to, "down"]);
    assert!(code == 0 && out.starts_with(&leaves_by) && out.contains(" down "), "{out} {stderr}");
    let trouble = ping.event("no_answer");
    assert_eq!(trouble["interface"], leaves_by.as_str());
    assert_eq!(trouble["reason"], format!("the link at {leaves_by} is down"));
    let (code, out, _) = net.link(&[from, to, "up"]);
    assert!(code == 0 && out.contains(" up "), "{out}");
    ping.event("answer");
    let (code, rest) = ping.interrupt();
    let summary: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    assert_eq!((code, &summary["event"]), (0, &"summary".into()));
    assert!(summary["received"].as_u64() > Some(1) && summary["rtt_ms_deviation"].is_number(), "{summary}");

    // The only link of an AS: no answer, whether the daemon knows already or not.
    let (core, leaf) = ("2-ff00:0:210", "2-ff00:0:212");
    assert_eq!(net.link(&[core, leaf, "down"]).0, 0);
    let (code, out, stderr) = net.run_in(core, &["ping", &net.host(leaf), "-c", "1"]);
    assert_eq!(code, 6, "{out} {stderr}");
    let link_down = stderr.contains("is down; try another path") && out.contains("1 sent, 0 answered, 100 % lost");
    assert!(link_down || stderr.contains("no path leads from 2-ff00:0:210 to 2-ff00:0:212"), "{out} {stderr}");
    assert_eq!(net.link(&[core, leaf, "up"]).0, 0);
    let (code, out, stderr) = net.run_in(core, &["ping", &net.host(leaf), "-c", "2", "--interval", "10ms"]);
    assert_eq!(code, 0, "{out} {stderr}");
    assert!(out.contains("2 sent, 2 answered, 0 % lost\nrtt min/avg/max/mdev "), "{out}");
}

#[test]
fn links_change_as_they_are_told() {
    let net = Net::up("two-isds.toml");
    let (core, leaf) = ("1-ff00:0:120", "1-ff00:0:112");
    let set = ["set", "rate=8Mbit/s", "delay=4ms", "jitter=1ms", "loss=0.5%", "queue=64KiB", "mtu=1400"];
    let (code, out, stderr) = net.link(&[&[leaf, core], &set[..]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert!(out.contains("up rate=8Mbit/s delay=4ms jitter=1ms loss=0.5% queue=64KiB mtu=1400"), "{out}");
    let (_, json, _) = net.link(&[core, leaf, "set", "loss=0%", "--json"]);
    let link: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&link["there"]["rate_bps"], &link["there"]["loss"]), (&8_000_000.into(), &0.0.into()));

    // Parallel links are told apart by their interfaces.
    let (code, _, stderr) = net.link(&["1-ff00:0:110", core, "down"]);
    let parallel: Vec<_> = net.links().into_iter().filter(|link| link.kind == "core").collect();
    let ends = |link: &Link| link.ends.each_ref().map(|(isd_as, id)| format!("{isd_as}#{id}"));
    let parallel: Vec<_> = parallel.iter().map(ends).filter(|[_, b]| b.starts_with(core)).collect();
    assert_eq!((code, parallel.len()), (2, 2));
    assert!(parallel.iter().flatten().all(|end| stderr.contains(end)), "{stderr}");
    let (code, out, stderr) = net.link(&[&parallel[1][0], core, "down"]);
    assert!(code == 0 && out.starts_with(&parallel[1][0]), "{out} {stderr}");

    for (arguments, expected) in [
        (&["1-ff00:0:113", "2-ff00:0:212", "down"][..], "no link joins 1-ff00:0:113 and 2-ff00:0:212"),
        (&[core, leaf, "set", "jitter=9s"], "jitter of 9s exceeds the delay"),
        (&[core, leaf, "set"], "`set` needs a property"),
        (&[core, leaf, "set", "mtu=1400", "mtu=1401"], "`mtu` is given twice"),
        (&[core, leaf, "down", "rate=1Mbit/s"], "properties go with `set`"),
        (&[core, leaf, "set", "speed=1"], "`speed` is no property of a link: use rate"),
        (&[core, leaf, "set", "rate=fast"], "`fast` is no value for `rate`"),
        (&[core, leaf, "set", "rate"], "write KEY=VALUE"),
        (&[core, leaf, "away"], "possible values: down, up, set"),
        (&[core, "112", "down"], "ISD-AS"),
        (&[core, "1-ff00:0:112#0", "down"], "1-ff00:0:112#1"),
    ] {
        let (code, _, stderr) = net.link(arguments);
        assert!(code == 2 && stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    // What an interrupt is to people, SIGTERM is to services.
    let Net { mut running, .. } = net;
    signal(running.child.id(), "TERM");
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
}

#[test]
fn policies_choose_paths() {
    let net = Net::up("two-isds.toml");
    let (from, to) = ("1-ff00:0:111", "2-ff00:0:211");
    let all = net.paths(from, to);
    let passes = |path: &Value, isd_as: &str| path["path"].as_str().unwrap().contains(isd_as);
    let some = |arguments: &[&str]| {
        let (code, json, stderr) = net.run_in(from, &[&["paths", to, "--json"], arguments].concat());
        assert_eq!(code, 0, "{stderr}");
        let list: Value = serde_json::from_str(&json).unwrap();
        list["paths"].as_array().unwrap().clone()
    };
    let without = some(&["--acl", "- 1-ff00:0:120 +"]);
    assert!(!without.is_empty() && without.len() < all.len());
    assert_eq!(without.len(), all.iter().filter(|path| !passes(path, "1-ff00:0:120")).count());
    let direct = some(&["--sequence", "0 0"]);
    assert_eq!(direct.len(), 1);
    assert_eq!(direct[0], all[0], "few hops come first");
    let hops = |paths: &[Value]| paths.iter().map(|path| path["hops"].as_array().unwrap().len()).collect::<Vec<_>>();
    assert!(hops(&all).is_sorted());
    let by_bandwidth = some(&["--preference", "bandwidth"]);
    let kbps: Vec<_> = by_bandwidth.iter().map(|path| std::cmp::Reverse(path["bandwidth_kbps"].as_u64())).collect();
    assert!(kbps.is_sorted() && kbps.first() != kbps.last() && by_bandwidth.len() == all.len(), "{kbps:?}");

    let policy = r#"{"destinations": {"2-ff00:0:211": "east", "0": "any"},
        "filters": {"east": {"acl": ["- 1-ff00:0:120", "+"]}, "any": {"acl": ["+"]}}}"#;
    fs::write(net.dir.path().join("policy.json"), policy).unwrap();
    assert_eq!(some(&["--policy", "policy.json"]), without);
    assert_eq!(some(&["--policy", "policy.json", "--acl", "+"]).len(), all.len(), "flags go before the file");

    let (code, out, _) = net.run_in(from, &["paths", to, "--sequence", "0 0"]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((code, lines[0]), (0, "1 path from 1-ff00:0:111 to 2-ff00:0:211"));
    assert!(lines[1].ends_with(direct[0]["path"].as_str().unwrap()), "{out}");
    let (code, out, stderr) =
        net.run_in(from, &["ping", &net.host(to), "-c", "1", "--sequence", "0 1-ff00:0:110 2-ff00:0:210 0"]);
    assert!(code == 0 && out.contains("2-ff00:0:210"), "{out} {stderr}");
    let mut asked = anabranch(net.dir.path());
    asked.env("SCION_DAEMON_ADDRESS", net.daemon(from)).args(["ping", &net.host(to), "--interactive", "-c", "1"]);
    let mut asked = asked.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    asked.stdin.take().unwrap().write_all(b"99\n1\n").unwrap();
    let asked = asked.wait_with_output().unwrap();
    let (out, list) = (String::from_utf8(asked.stdout).unwrap(), String::from_utf8(asked.stderr).unwrap());
    assert!(asked.status.success() && out.contains(all[1]["path"].as_str().unwrap()), "{out} {list}");
    assert!(list.starts_with("13 paths from") && list.contains("path (number or id): "), "{list}");
    let (code, _, stderr) = net.run_in(from, &["paths", to, "--acl", "-"]);
    assert!(code == 6 && stderr.contains("the policy forbids every path"), "{stderr}");
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("policy.json"), "{\"filters\": {}").unwrap();
    fs::write(dir.path().join("long.json"), " ".repeat((1 << 20) + 1)).unwrap();
    fs::write(
        dir.path().join("bad.toml"),
        "[as.\"1-ff00:0:110\"]\ncore = true\n\n[[link]]\ncore = [\"1-ff00:0:110\", \"1-ff00:0:120\"]\n",
    )
    .unwrap();
    for (arguments, code, expected) in [
        (&["paths"][..], 2, "DEST"),
        (&["paths", "10.0.0.1"], 2, "write ISD-AS,host"),
        (&["paths", "1-ff00:0"], 2, "`1-ff00:0` is no destination"),
        (&["paths", "0-1"], 2, "names no single AS"),
        (&["paths", "1-1", "--sciond", "nowhere"], 2, "HOST:PORT"),
        (&["paths", "1-1", "--sciond", "127.0.0.1:1"], 6, "no SCION daemon answers at 127.0.0.1:1"),
        (&["paths", "1-1", "--acl", "+ 1-1"], 2, "--acl"),
        (&["paths", "1-1", "--sequence", "1 ) 2"], 2, "--sequence"),
        (&["paths", "1-1", "--preference", "speed"], 2, "speed"),
        (&["paths", "1-1", "--policy", "policy.json"], 3, "policy.json"),
        (&["paths", "1-1", "--policy", "nowhere.json"], 3, "nowhere.json"),
        (&["paths", "1-1", "--policy", "long.json"], 3, "long.json: the policy file has more than 1048576 bytes"),
        (&["ping", "1-1,10.0.0.1", "--path", "xyz"], 2, "`xyz` is no path id"),
        (&["ping", "1-1,10.0.0.1", "--path", "1", "--interactive"], 2, "cannot be used with"),
        (&["ping", "1-1,10.0.0.1", "-c", "0"], 2, "--count"),
        (&["ping", "1-1,10.0.0.1", "--interval", "1"], 2, "write a time"),
        (&["net"], 2, "Usage"),
        (&["net", "up", "nowhere.toml"], 3, "nowhere.toml: the file cannot be read"),
        (&["lab", "check", "nowhere.toml", "--quick", "--full"], 2, "cannot be used with"),
        (&["lab", "run", "--lock", "nowhere.json", "--full"], 2, "cannot be used with"),
        (&["lab", "check", "nowhere.toml"], 3, "nowhere.toml: the file cannot be read"),
        (&["net", "up", "bad.toml"], 3, "bad.toml:4: AS 1-ff00:0:120 is not defined"),
        (&["net", "check", "bad.toml"], 3, "bad.toml:4: "),
        (&["net", "link", "1-1", "1-2", "down", "--control", "127.0.0.1:1"], 6, "anabranch net up"),
    ] {
        let (found, _, stderr) = run(dir.path(), arguments);
        assert_eq!(found, code, "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    // The same from the environment and the configuration file.
    let (code, _, stderr) = finish(
        anabranch(dir.path())
            .env_remove("SCION_DAEMON_ADDRESS")
            .env("SCION_DAEMON", "127.0.0.1:2")
            .args(["paths", "1-1"]),
    );
    assert!(code == 6 && stderr.contains("127.0.0.1:2") && stderr.contains("--sciond"), "{stderr}");
    fs::write(dir.path().join("c.toml"), "[net]\ncontrol = \"127.0.0.1:3\"\n").unwrap();
    let (code, _, stderr) = run(dir.path(), &["--config", "c.toml", "net", "link", "1-1", "1-2", "up"]);
    assert!(code == 6 && stderr.contains("127.0.0.1:3"), "{stderr}");
}

#[test]
fn mistakes_about_a_network_that_runs_are_answered_too() {
    let net = Net::up("line.toml");
    let (from, to) = ("1-ff00:0:111", "1-ff00:0:112");
    for (arguments, code, expected) in [
        (&["paths", "1-ff00:0:119"][..], 6, "1-ff00:0:119"),
        (&["ping", to, "-c", "1"], 2, "name a host of it, as in 1-ff00:0:112,10.0.0.1"),
        (&["ping", &net.host(to), "--path", "0000000000000000", "-c", "1"], 6, "no path has an id that starts with"),
        (&["ping", "1-ff00:0:112,127.255.255.1", "-c", "1", "--timeout", "100ms"], 6, "1-ff00:0:112,127.255.255.1"),
        (&["ping", &net.host(to), "--interactive"], 2, "no path was chosen"),
        (&["paths", "no-such-host.invalid"], 6, "no-such-host.invalid"),
    ] {
        let (found, out, stderr) = net.run_in(from, arguments);
        assert_eq!(found, code, "{arguments:?}: {out} {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    // More requests than may wait for answers at a time: the others wait for those.
    let silent = "1-ff00:0:112,127.255.255.1";
    let (code, out, _) = net.run_in(from, &["ping", silent, "-c", "300", "--interval", "1ms", "--timeout", "500ms"]);
    assert!(code == 6 && out.contains("300: no answer within 500 ms\n300 sent, 0 answered, 100 % lost"), "{out}");
    // Inside an AS there is one path, and the host answers as well.
    let (code, out, stderr) = net.run_in(from, &["ping", &net.host(from), "-c", "1"]);
    assert!(code == 0 && out.contains("1 sent, 1 answered"), "{out} {stderr}");
    // What is taken is named.
    let (code, _, stderr) = run(net.dir.path(), &["net", "up", "line.toml", "--control", "127.0.0.1:0"]);
    let (first_network, _) = net.daemon("1-ff00:0:110").rsplit_once('.').unwrap();
    assert!(code == 6 && stderr.contains(first_network) && stderr.contains("is it taken"), "{stderr}");
    let control = net.shown["control"].as_str().unwrap();
    let other = example(net.dir.path(), "two-isds.toml");
    let (code, _, stderr) = run(net.dir.path(), &["net", "up", &other, "--control", control]);
    assert!(code == 6 && stderr.contains(control) && stderr.contains("choose another"), "{stderr}");
}

#[test]
fn a_network_shows_itself_and_goes_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let file = example(dir.path(), "line.toml");
    for _ in 0..2 {
        let mut net = Running::start(anabranch(dir.path()).args(["net", "up", &file, "--control", "127.0.0.1:0"]));
        let first = net.line();
        assert!(first.starts_with("line: 3 ASes and 2 links in "), "{first}");
        let mut columns = HashMap::new();
        while columns.len() < 4 {
            let line = net.line();
            let mut words = line.split_whitespace().map(str::to_owned);
            if let Some(name) = words.next() {
                columns.insert(name, words.collect::<Vec<_>>());
            }
        }
        let alice = &columns["1-ff00:0:111"];
        assert!(alice[0].ends_with(":30255") && alice[1].ends_with(":30252") && alice[2] == "alice", "{alice:?}");
        let (code, out, _) = run(dir.path(), &["paths", "1-ff00:0:112", "--sciond", &alice[0]]);
        assert!(code == 0 && out.starts_with("1 path from 1-ff00:0:111"), "{out}");
        assert_eq!(net.interrupt().0, 0);
    }
}

#[test]
fn check_says_what_it_measured_and_ends_as_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let file = example(dir.path(), "line.toml");
    let text = fs::read_to_string(dir.path().join(&file)).unwrap();
    fs::write(dir.path().join(&file), format!("{text}rate = \"20 Mbit/s\"\ndelay = \"5 ms\"\n")).unwrap();
    let (code, json, stderr) = run(dir.path(), &["net", "check", &file, "--json"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    let directions = report["directions"].as_array().unwrap();
    assert_eq!(directions.len(), 4);
    assert_eq!(directions[2]["asked"]["rate_bps"], 20_000_000);
    assert!(directions.iter().all(|each| each["measured"]["packets"].as_u64() > Some(100)), "{json}");
    // Whether links are right on a busy machine is no matter for a test; that the exit code says the same is.
    let as_asked = directions.iter().all(|each| each["as_asked"] == true);
    assert_eq!((report["as_asked"] == true, code), (as_asked, if as_asked { 0 } else { 4 }), "{stderr}");
}
