use std::path::{Path, PathBuf};

use anabranch_asnet::topology::Topology;
use serde_json::json;

use super::*;
use crate::plan::{Plan, Role};
use crate::trial::{Happened, PeerResult, RunResult};
use crate::wire::{CLASSES, Noted, WireUse};

const PLAN: &str = r#"
id = "two"
title = "Two <ways>"
topology = "net.toml"
[content]
size = "10 MB"
[[candidate]]
name = "bgp"
routing = "bgp"
[[candidate]]
name = "scion"
routing = "scion"
[[peers]]
role = "seed"
in = ["1-3"]
[[peers]]
in = ["1-4", "1-3"]
[[figure]]
id = "fig"
title = "Goodput & more"
measure = "goodput"
relative_to = "bgp"
[figure.paper]
swarm = { bgp = 100, scion = 148 }
[[must]]
that = "goodput(scion) >= 1.5 * goodput(bgp)"
[[must]]
that = "time(scion) < time(bgp)"
"#;

const TOPOLOGY: &str = include_str!("../../../../topologies/ring.toml");

fn run(cell: &str, repetition: u32, seconds: f64) -> RunResult {
    let peer = |role, local, seconds| PeerResult {
        isd_as: "1-4".into(),
        role,
        local,
        joined: 0.0,
        seconds,
        cpu: 0.5,
        samples: seconds.map_or(Vec::new(), |seconds| vec![(seconds / 2.0, 2_000_000), (seconds, 10_000_000)]),
        round_trips_ms: seconds.map(|_| [9.5, 20.0, 31.0]),
    };
    let peers = vec![
        peer(Role::Seed, true, None),
        peer(Role::Leecher, false, Some(seconds)),
        // Beside the seed: it needs no link, and does not count.
        peer(Role::Leecher, true, Some(0.1)),
    ];
    let (mut lengths, mut gaps) = ([0; CLASSES], [0; CLASSES]);
    (lengths[7], gaps[2], gaps[11]) = (9000, 8998, 1);
    let noted = Noted { payloads: 9000, payload_bytes: 11_700_000, lengths, gaps, gaps_micros: 26_997_000 };
    let used = WireUse { bytes: 12_000_000, dropped: 3, lost: 0, cross_bytes: 1_000_000, noted };
    RunResult {
        cell: cell.into(),
        repetition,
        began: 1.7e9,
        build_seconds: 2.0,
        seconds,
        content_bytes: 10_000_000,
        peers,
        cpu: [1.5, 0.5, 0.1],
        busy: Some(0.95),
        links: vec![[used, WireUse::default()]],
        crossed: vec![(seconds / 4.0, 1_000_000), (seconds / 2.0, 4_000_000), (seconds, 9_000_000)],
        happened: vec![Happened { at: 2.5, event: 0, begins: true, peers: vec![1, 2] }],
        failed: None,
    }
}

fn results(runs: Vec<RunResult>) -> Results {
    let plan = Plan::read(Path::new("two.toml"), PLAN, |source| {
        Ok((Topology::from_toml(source.name(), TOPOLOGY).map_err(|error| error.to_string())?, TOPOLOGY.to_owned()))
    });
    let lock = json!({ "machine": { "kernel": "6.1", "processors": 2 }, "calibration": [{ "fits": true }, { "fits": false }] });
    Results { folder: PathBuf::from("/nowhere"), lock, plan: plan.unwrap(), runs }
}

#[test]
fn measures_are_of_peers_that_need_links() {
    let run = run("swarm/bgp", 0, 8.0);
    assert_eq!(run.value(Measure::Goodput), Some(10.0));
    assert_eq!(run.value(Measure::Time), Some(8.0));
    assert_eq!(run.value(Measure::RoundTrip), Some(20.0));
    assert_eq!((run.value(Measure::Payload), run.value(Measure::Gap)), (Some(1300.0), Some(3.0)));
    // 2.1 s for the 20 MB that both received.
    assert!((run.value(Measure::Cpu).unwrap() - 2.1 / (20e6 / 1_073_741_824.0)).abs() < 1e-9);
    assert_eq!(run.value(Measure::Wire), Some(0.55));
    // 5 MB in the last four of eight seconds, as the settled rate is of them.
    assert_eq!(run.value(Measure::Cross), Some(10.0));
    assert_eq!(RunResult { crossed: Vec::new(), ..run.clone() }.value(Measure::Cross), None);
    // 8 MB in the last four of eight seconds; an event that has no end has no window.
    assert_eq!((run.value(Measure::RateSettled), run.value(Measure::RateDuring)), (Some(16.0), None));
    let mut ended = run.clone();
    ended.happened.push(Happened { at: 4.5, event: 0, begins: false, peers: Vec::new() });
    let rates = [Measure::RateBefore, Measure::RateDuring, Measure::RateAfter].map(|each| ended.value(each).unwrap());
    // 0.5 MB a second before, 2 MB a second from the fourth second on.
    assert_eq!(rates, [4.0, 7.0, 16.0]);
    let failed = RunResult { failed: Some("slow".into()), ..run.clone() };
    assert_eq!(failed.value(Measure::Time), None);
    for run in [run, failed] {
        let topology = results(Vec::new()).plan.topology;
        assert_eq!(RunResult::from_json(&run.to_json(&topology)), Some(run));
    }
}

#[test]
fn the_page_shows_bars_claims_and_bounds() {
    let results = results(vec![run("swarm/bgp", 0, 16.0), run("swarm/scion", 0, 8.0), run("swarm/scion", 1, 10.0)]);
    let sheet = Sheet::new(&results);
    // Two links of 8 Mbit/s lead into the only AS that counts; BGP takes one of them. Who fetches beside the seed is sent to as well.
    let bounds: Vec<(Option<f64>, Option<f64>)> =
        sheet.cells.iter().map(|(_, bounds)| (bounds.goodput_mbit, bounds.fluid_mbit)).collect();
    assert_eq!(bounds, [(Some(8.0), Some(8.0)), (Some(16.0), Some(16.0))]);
    assert_eq!(sheet.verdicts(), [Verdict::Holds(vec![9.0, 7.5]), Verdict::Holds(vec![9.0, 16.0])]);
    let page = sheet.html();
    for part in [
        "Two &lt;ways&gt;",
        "Goodput &amp; more",
        "% of bgp",
        ">180<",
        "class=\"paper\"",
        "more than 90 %",
        "1 of 2 directions",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("http://") && !page.contains("<script"), "the page asks nobody for anything");
    let text = sheet.text();
    assert!(
        text.contains("swarm/scion") && text.contains("holds   time(scion) < time(bgp)  (9.00 and 16.0)"),
        "{text}"
    );
}

#[test]
fn what_has_no_run_is_unknown_and_drawn_as_such() {
    let results = results(vec![run("swarm/scion", 0, 8.0)]);
    let sheet = Sheet::new(&results);
    assert_eq!(sheet.verdicts(), [Verdict::Unknown, Verdict::Unknown]);
    assert!(sheet.html().contains("no run"));
}

#[test]
fn ratios_of_pairs_and_of_others_have_intervals_of_their_own() {
    // The second repetition is half as fast for both; the third is of one side alone.
    let pairs = vec![
        run("swarm/bgp", 0, 16.0),
        run("swarm/bgp", 1, 32.0),
        run("swarm/scion", 0, 8.0),
        run("swarm/scion", 1, 16.0),
    ];
    let drawn = |runs: Vec<RunResult>| {
        let results = results(runs);
        let sheet = Sheet::new(&results);
        figure::bars(&sheet, &results.plan.figures[0])[1].summary.unwrap()
    };
    let found = drawn(pairs.clone());
    assert_eq!((found.mean, found.half_width), (200.0, Some(0.0)));
    let more = [pairs, vec![run("swarm/scion", 2, 8.0)]].concat();
    assert!(drawn(more).half_width.unwrap() > 100.0);
}

#[test]
fn a_page_says_how_often_cells_were_run_and_what_of_the_links_is_known() {
    let of = |runs: Vec<RunResult>| {
        let page = markdown::page(&[results(runs)]);
        page.split("10000000 bytes, ").nth(1).unwrap().split(", seed").next().unwrap().to_owned()
    };
    // The plan says once, which is what is done where nobody says otherwise.
    assert_eq!(of(vec![run("swarm/bgp", 0, 16.0)]), "1 repetition");
    let twice = [0, 1].map(|number| run("swarm/bgp", number, 16.0));
    assert_eq!(of(twice.to_vec()), "2 repetitions");
    assert_eq!(of([twice.to_vec(), vec![run("swarm/scion", 0, 8.0)]].concat()), "1 to 2 repetitions");
    assert_eq!(of(Vec::new()), "no repetition");
    let page = markdown::page(&[results(Vec::new())]);
    assert!(
        page.contains("links measured before: 1 of 2 directions had their rate, delay and loss within 2 %."),
        "{page}"
    );
}

#[test]
fn what_nothing_limits_is_said_in_words() {
    let mut results = results(vec![run("swarm/scion", 0, 8.0)]);
    let open: String = TOPOLOGY.lines().filter(|line| !line.starts_with("rate")).collect::<Vec<_>>().join("\n");
    results.plan.topology = Topology::from_toml("open.toml", &open).unwrap();
    let sheet = Sheet::new(&results);
    for shown in [sheet.text(), sheet.html(), markdown::page(std::slice::from_ref(&results))] {
        assert!(shown.contains("unlimited") && !shown.contains("33776997205") && !shown.contains("NaN"), "{shown}");
    }
}
