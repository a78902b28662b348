//! Map, candidates and changes of each run, one run at a time.

use super::map::{self, Load};
use super::markup::{escape, put};
use super::path_labels::{Book, short_id};
use super::{Report, Run};
use crate::run::{Candidate, Choice, Side};
use crate::text;

/// Candidates that are shown without asking, at least.
const ROWS_SHOWN: usize = 12;
/// Changes that are listed; what is beyond is counted.
const CHANGES_MAX: usize = 300;

pub(super) fn write(page: &mut String, report: &Report, book: &Book) {
    page.push_str("<section>\n<h2>The network, and why each path was taken or left</h2>\n");
    let preferred = report.runs.len().saturating_sub(1);
    for at in 0..report.runs.len() {
        let checked = if at == preferred { " checked" } else { "" };
        put!(page, "<input class=\"choice\" type=\"radio\" name=\"run\" id=\"run-{at}\"{checked}>\n");
    }
    page.push_str("<div class=\"tabs\">");
    for (at, run) in report.runs.iter().enumerate() {
        put!(page, "<label for=\"run-{at}\">{}</label>", escape(&run.name));
    }
    page.push_str("</div>\n");
    for (at, run) in report.runs.iter().enumerate() {
        put!(
            page,
            "<div class=\"panel panel-{at}\">\n<div class=\"map-scroll\">{}</div>\n",
            map::draw(&report.network, run, report.bound.as_ref())
        );
        scale(page, report);
        bottlenecks(page, report, run);
        candidates(page, report, run, book, at);
        changes(page, run, book);
        page.push_str("</div>\n");
    }
    page.push_str("</section>\n");
}

fn scale(page: &mut String, report: &Report) {
    page.push_str(
        "<div class=\"scale\"><span>Load of links, the mean over the run in Mbit/s of their capacity:</span>",
    );
    let steps = ["idle", "up to 25 %", "up to 50 %", "up to 70 %", "up to 85 %", "more"];
    for (step, name) in steps.into_iter().enumerate() {
        let class = if step == 0 { "idle".to_owned() } else { format!("l{step}") };
        put!(page, "<span><i class=\"{class}\"></i>{name}</span>");
    }
    page.push_str("<span><i class=\"dash\"></i>peering</span>");
    if report.bound.is_some() {
        page.push_str("<span><i class=\"mark\"></i>narrowest cut: these would have to be wider</span>");
    }
    page.push_str("<span>width: capacity</span></div>\n");
}

/// Which links were full, in a sentence.
fn bottlenecks(page: &mut String, report: &Report, run: &Run) {
    let full: Vec<String> = report
        .network
        .lines
        .iter()
        .zip(&run.links)
        .filter_map(|(line, used)| {
            let busy = map::busy(line.rate_bps, used, run.seconds);
            let [from, to] = [line.ends[busy.end], line.ends[1 - busy.end]].map(|end| text::short_as(end.isd_as));
            (Load::of(busy.share) == Load::Step(5)).then(|| format!("{from}\u{2192}{to}"))
        })
        .collect();
    let dropped: u64 = run.links.iter().flatten().map(|used| used.dropped).sum();
    page.push_str("<p class=\"sub\">");
    match full.len() {
        0 => page.push_str("No link was more than 85 % full over the whole run."),
        1 => put!(page, "One link was more than 85 % full over the whole run: {}.", full[0]),
        count => put!(page, "{count} links were more than 85 % full over the whole run: {}.", full.join(", ")),
    }
    put!(page, " Queues dropped {dropped} packets.");
    if run.wasted > 0 {
        put!(page, " {} came twice.", text::mib(run.wasted));
    }
    page.push_str("</p>\n");
}

fn candidates(page: &mut String, report: &Report, run: &Run, book: &Book, at: usize) {
    let Some(decision) = run.decision() else {
        page.push_str("<p class=\"sub\">No choice of paths was logged.</p>\n");
        return;
    };
    let count = decision.candidates.len();
    put!(page, "<h3>{count} candidates");
    if let Some(selector) = &decision.selector {
        put!(page, " for <code>{}</code>", escape(selector));
    }
    let side = if decision.by == Side::Uploader { "uploader" } else { "downloader" };
    let after = text::seconds((decision.time - run.began).max(0.0));
    put!(page, " <span class=\"sub\">the {side} after {after}: {}</span></h3>\n", escape(&decision.why));
    let mut rows: Vec<&Candidate> = decision.candidates.iter().collect();
    // Stable: what is equal stays in the order of the lookup.
    rows.sort_by_key(|candidate| (book_place(run, book, candidate), candidate.choice));
    let shown = rows.iter().filter(|candidate| candidate.choice == Choice::Chosen).count().max(ROWS_SHOWN);
    if count > shown {
        put!(page, "<input class=\"more-rows\" type=\"checkbox\" id=\"more-{at}\">");
    }
    page.push_str("<div class=\"scroll\"><table class=\"candidates\">\n<thead><tr><td></td><th>way</th><th class=\"n\">ASes</th><th class=\"n\">latency</th>");
    page.push_str("<th class=\"n\">narrowest<br>link</th><th>choice</th><th>reason</th><th class=\"n\">carried</th><th class=\"n\">RTT</th></tr></thead>\n<tbody>\n");
    for (row, candidate) in rows.into_iter().enumerate() {
        row_of(page, report, run, book, candidate, row >= shown);
    }
    page.push_str("</tbody></table></div>\n");
    if count > shown {
        put!(
            page,
            "<label class=\"show\" for=\"more-{at}\"><span class=\"closed\">Show all {count}</span><span class=\"open\">Show fewer</span></label>\n"
        );
    }
}

/// Those that carried something first, by name.
fn book_place(run: &Run, book: &Book, candidate: &Candidate) -> usize {
    let used = run.used().any(|path| path == candidate.path);
    book.place(&candidate.path).filter(|_| used).unwrap_or(usize::MAX)
}

fn row_of(page: &mut String, report: &Report, run: &Run, book: &Book, candidate: &Candidate, hidden: bool) {
    let hops = report.network.hops(&candidate.interfaces);
    let class = if hidden { " class=\"more\"" } else { "" };
    match &hops {
        Some(hops) => {
            let links: Vec<String> = hops.iter().map(|(line, _)| line.to_string()).collect();
            put!(page, "<tr{class} data-links=\"{}\">", links.join(" "));
        }
        None => put!(page, "<tr{class}>"),
    }
    match book.place(&candidate.path) {
        Some(place) => {
            // Filled where it carried something in this run too.
            let dot = if run.used().any(|path| path == candidate.path) { "dot" } else { "dot hollow" };
            put!(page, "<td><span class=\"{dot} c{}\">{}</span></td>", Book::color(place), text::letter(place));
        }
        None => page.push_str("<td></td>"),
    }
    let way = book.describe(&report.network, &candidate.path, Some(candidate));
    put!(
        page,
        "<td class=\"route\">{}<span class=\"about id\">{}</span></td>",
        escape(way),
        escape(short_id(&candidate.path))
    );
    let none = || "\u{2013}".to_owned();
    put!(page, "<td class=\"n\">{}</td>", candidate.hops.map_or_else(none, |hops| hops.to_string()));
    put!(
        page,
        "<td class=\"n\">{}</td>",
        candidate.latency_ms.map_or_else(none, |ms| format!("{} ms", text::trimmed(ms)))
    );
    let rates = hops.iter().flatten().filter_map(|(line, end)| report.network.lines[*line].rate_bps[*end]);
    put!(
        page,
        "<td class=\"n\">{}</td>",
        rates.min().map_or_else(none, |bps| format!("{} Mbit/s", text::trimmed(bps as f64 / 1e6)))
    );
    let choice = match candidate.choice {
        Choice::Chosen => "chosen",
        Choice::Standby => "standby",
        Choice::Left => "left",
    };
    put!(
        page,
        "<td><span class=\"chip {choice}\">{choice}</span></td><td class=\"reason\">{}</td>",
        escape(&candidate.reason)
    );
    let series = run.log.series.iter().filter(|series| series.path == candidate.path && series.bytes() > 0);
    let bytes: u64 = series.clone().map(|series| series.bytes()).sum();
    if bytes > 0 {
        let rtt = series.filter_map(|series| series.rtt_ms_median()).fold(None, |_, ms| Some(ms));
        let rate = text::rate(bytes as f64 * 8.0 / run.seconds.max(f64::MIN_POSITIVE));
        put!(page, "<td class=\"n\">{}<span class=\"about\">{rate}</span></td>", text::mib(bytes));
        put!(page, "<td class=\"n\">{}</td></tr>\n", rtt.map_or_else(none, |ms| format!("{ms:.0} ms")));
    } else {
        page.push_str("<td class=\"n\">\u{2013}</td><td class=\"n\">\u{2013}</td></tr>\n");
    }
}

/// Choices and changes in their order.
fn changes(page: &mut String, run: &Run, book: &Book) {
    let mut entries: Vec<(f64, String)> = Vec::new();
    for decision in &run.decisions {
        let chosen = decision.candidates.iter().filter(|candidate| candidate.choice == Choice::Chosen);
        let names: Vec<String> = chosen.map(|candidate| name(book, &candidate.path)).collect();
        let side = if decision.by == Side::Uploader { "uploader" } else { "downloader" };
        entries.push((
            decision.time,
            format!(
                "{side}: {} of {} paths chosen ({}): {}",
                names.len(),
                decision.candidates.len(),
                decision.why,
                names.join(", ")
            ),
        ));
    }
    for change in &run.changes {
        entries.push((change.time, format!("{} {}: {}", name(book, &change.path), change.state, change.reason)));
    }
    if entries.is_empty() {
        return;
    }
    entries.sort_by(|a, b| a.0.total_cmp(&b.0));
    put!(page, "<details><summary>All {} choices and changes</summary><ul class=\"log\">\n", entries.len());
    for (time, entry) in entries.iter().take(CHANGES_MAX) {
        put!(page, "<li><time>{:.2} s</time> {}</li>\n", time - run.began, escape(entry));
    }
    if entries.len() > CHANGES_MAX {
        put!(page, "<li>and {} more</li>\n", entries.len() - CHANGES_MAX);
    }
    page.push_str("</ul></details>\n");
}

fn name(book: &Book, path: &str) -> String {
    book.place(path).map_or_else(|| short_id(path), text::letter)
}
