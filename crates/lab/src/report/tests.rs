use super::*;
use crate::network::tests::{diamond, interfaces};
use crate::run::{Candidate, Choice, Point, Series, Side};

/// The ways through the diamond.
const WAYS: [(&str, &str, f64); 3] = [
    ("upper", "1-4#1 1-1#2 1-1#1 1-3#1", 10.0),
    ("lower-1", "1-4#2 1-2#3 1-2#1 1-3#2", 20.0),
    ("lower-2", "1-4#2 1-2#3 1-2#2 1-3#3", 30.0),
];

/// A path that carried `rate` bytes a second for `seconds`, a row every 50 ms.
pub(crate) fn series(path: &str, rate: f64, seconds: f64) -> Series {
    let rows = (seconds / 0.05) as usize;
    let point = |row: usize| Point {
        seconds: row as f64 * 0.05,
        active: true,
        downloaded: (row as f64 * 0.05 * rate) as u64,
        down_rate: rate as u64,
        rtt_ms: Some(20.0),
        lost: 0,
        share: 0.5,
    };
    Series { peer: "[1-3,127.0.0.1]:7".into(), path: path.into(), points: (0..=rows).map(point).collect() }
}

/// A run over all three ways through the diamond.
pub(crate) fn run(name: &str, seconds: f64) -> Run {
    let candidates = WAYS.map(|(path, text, latency_ms)| Candidate {
        path: path.into(),
        interfaces: interfaces(text),
        hops: Some(3),
        mtu: Some(1472),
        latency_ms: Some(latency_ms),
        choice: Choice::Chosen,
        reason: "every path is <used> & \"good\"".into(),
    });
    let mut candidates = candidates.to_vec();
    candidates.push(Candidate { path: "unused".into(), choice: Choice::Left, ..candidates[0].clone() });
    let decision = Decision {
        by: Side::Uploader,
        time: 1000.1,
        peer: "[1-3,127.0.0.1]:7".into(),
        selector: Some(name.into()),
        why: "it began".into(),
        candidates,
    };
    let mut log = PathLog { series: WAYS.iter().map(|way| series(way.0, 1e6, seconds)).collect() };
    log.series.push(series("unused", 0.0, seconds));
    let mut links = vec![[LinkUse::default(); 2]; diamond().lines.len()];
    links[0][1] = LinkUse { bytes: (1.2e6 * seconds) as u64, dropped: 3 };
    links[1][0] = LinkUse { bytes: (1.2e6 * seconds) as u64, dropped: 0 };
    Run {
        name: name.into(),
        about: "a way <to> choose".into(),
        commands: vec!["$ anabranch get 'a&b'".into()],
        paths_max: 4,
        began: 1000.0,
        seconds,
        wasted: 0,
        log,
        decisions: vec![decision],
        changes: vec![Change {
            time: 1000.2,
            peer: "[1-3,127.0.0.1]:7".into(),
            path: "upper".into(),
            state: "active".into(),
            reason: "<connected>".into(),
        }],
        links,
        busy: Some(0.3),
        is_going: false,
    }
}

pub(crate) fn report() -> Report {
    let network = diamond();
    Report {
        bound: network.bound(),
        network,
        content_bytes: 12_000_000,
        runs: vec![run("first", 8.0), run("all", 4.0), run("disjoint", 2.0)],
        facts: vec![("Machine".into(), "2 <cores>".into())],
    }
}

/// Whether every element is closed in its place. Good enough for pages of ours, which close what HTML lets stay open.
fn check_markup(page: &str) {
    const VOID: [&str; 3] = ["meta", "input", "br"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = rest.find('>').unwrap();
        let (tag, after) = (&rest[..end], &rest[end + 1..]);
        let name = tag.trim_matches('/').split([' ', '\n', '/']).next().unwrap();
        assert!(tag.matches('"').count() % 2 == 0, "quotes in <{tag}>");
        rest = after;
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(closed), "in {:?}", &after[..after.len().min(80)]);
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
            if ["style", "script"].contains(&name) {
                // Their text is no markup.
                rest = &rest[rest.find(&format!("</{name}>")).unwrap()..];
            }
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn the_page_is_whole_and_needs_nothing_else() {
    let page = report().html();
    check_markup(&page);
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for text in ["NaN", "inf ", "<cores>", "<used>", "<to>", "<connected>", "'a&b'"] {
        assert!(!page.contains(text), "{text}");
    }
    assert_eq!(page.matches("class=\"chart\"").count(), 6);
    assert_eq!(page.matches("class=\"map\"").count(), 3);
    assert_eq!(page.matches("<tr data-links=").count(), 3 * 4);
    assert!(page.contains("4.00 \u{d7}") && page.contains("three ways to choose paths"), "ratios");
    assert!(page.contains("every path is &lt;used&gt; &amp; &quot;good&quot;"));
}

#[test]
fn the_same_data_make_the_same_page() {
    assert_eq!(report().html(), report().html());
}

#[test]
fn what_was_not_logged_is_missing_and_breaks_nothing() {
    let mut empty = report();
    empty.bound = None;
    for run in &mut empty.runs {
        run.log = PathLog::default();
        run.decisions.clear();
        run.changes.clear();
        run.links.clear();
        run.seconds = 0.0;
    }
    check_markup(&empty.html());
    empty.runs.clear();
    empty.facts.clear();
    let page = empty.html();
    check_markup(&page);
    assert!(!page.contains("NaN") && !page.contains("inf "));
}

#[test]
fn long_logs_make_pages_of_bounded_size() {
    let mut long = report();
    let short = long.html().len();
    for run in &mut long.runs {
        run.seconds = 3600.0;
        for series in &mut run.log.series {
            *series = tests::series(&series.path, 1e6, 3600.0);
        }
        run.changes = vec![run.changes[0].clone(); 100_000];
    }
    let page = long.html();
    check_markup(&page);
    assert!(page.len() < short + 3 * 400_000, "{} bytes instead of {short}", page.len());
}

#[test]
fn runs_say_what_they_carried() {
    let (network, run) = (diamond(), run("all", 4.0));
    assert_eq!(run.rate(4_000_000), 8e6);
    // What came in over the upper link only.
    assert!((run.wire_rate(&network) - 9.6e6).abs() < 1e3);
    assert_eq!(run.used().count(), 3);
    // 10 over the upper way, 9 over both lower ones together.
    assert_eq!(run.limit(&network), Some(19e6));
    let mut unknown = run;
    unknown.decisions.clear();
    assert_eq!(unknown.limit(&network), None);
}

#[test]
fn the_choice_that_is_shown_is_the_one_that_held_longest() {
    let mut run = run("disjoint", 4.0);
    for (time, why) in [(1000.5, "measured"), (1003.9, "gone"), (1004.5, "after the end")] {
        run.decisions.push(Decision { time, why: why.into(), ..run.decisions[0].clone() });
    }
    assert_eq!(run.decision().unwrap().why, "measured");
    // Who was told what was chosen knows no reasons.
    run.decisions.push(Decision { time: 1001.0, selector: None, by: Side::Downloader, ..run.decisions[0].clone() });
    run.decisions.sort_by(|a, b| a.time.total_cmp(&b.time));
    assert_eq!(run.decision().unwrap().why, "measured");
    run.decisions.retain(|decision| decision.selector.is_none());
    assert_eq!(run.decision().unwrap().by, Side::Downloader);
}

#[test]
fn a_machine_without_rest_is_named() {
    let mut report = report();
    assert!(!report.html().contains("class=\"warning\""));
    report.runs[1].busy = Some(0.97);
    let page = report.html();
    check_markup(&page);
    assert!(page.contains("were busy in all:"));
}

#[test]
fn the_table_is_aligned() {
    let text = report().text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(lines[0].starts_with("          paths  "), "{text}");
    assert!(lines[3].starts_with("disjoint      3  2.00 s  48.0 Mbit/s        4.00 x"), "{text}");
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
}

#[test]
fn of_a_run_that_goes_on_it_is_told_what_arrived_so_far() {
    let mut report = report();
    let last = report.runs.len() - 1;
    let done = report.runs[last].rate(report.content_bytes);
    report.runs[last].is_going = true;
    let arrived: u64 = report.runs[last].log.series.iter().map(Series::bytes).sum();
    report.content_bytes = arrived * 2;
    let rate = report.runs[last].rate(report.content_bytes);
    assert!(
        (rate - arrived as f64 * 8.0 / report.runs[last].seconds).abs() < 1.0,
        "{rate}, and {done} when it was done"
    );
    let page = report.followed_html();
    assert!(page.contains("Under way:") && page.contains("50 % of the file"));
    // What is mailed asks for nothing.
    assert!(page.contains("fetch(") && !report.html().contains("fetch("));
}
