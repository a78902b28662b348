//! What came out: bars and a table.

use super::markup::{Px, escape, put};
use super::{Report, Run};
use crate::text;

/// Pixels of the bars.
const WIDTH: f64 = 1060.0;
const ROW: f64 = 46.0;
const BAR: f64 = 22.0;
const LEFT: f64 = 150.0;
/// What the figures of a bar take, and the room behind the longest one for them.
const FIGURES: f64 = 230.0;
const RIGHT: f64 = 250.0;

pub(super) fn write(page: &mut String, report: &Report) {
    page.push_str("<section>\n<h2>What came out</h2>\n");
    let starved: Vec<&str> = report.starved().iter().map(|run| run.name.as_str()).collect();
    if !starved.is_empty() {
        put!(page, "<p class=\"warning\">The processors of this machine were busy in {}: ", escape(starved.join(", ")));
        page.push_str("they, and not the network, may have been the limit. Try again while nothing else runs.</p>\n");
    }
    bars(page, report);
    table(page, report);
    page.push_str("</section>\n");
}

/// The table for a terminal.
pub(super) fn plain(report: &Report) -> String {
    let heads = ["", "paths", "time", "rate", "to the first", "on the wire", "paths carry", "network carries"];
    let mut rows = vec![heads.map(str::to_owned)];
    for run in &report.runs {
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), text::rate);
        rows.push([
            run.name.clone(),
            run.used().count().to_string(),
            text::seconds(run.seconds),
            text::rate(run.rate(report.content_bytes)),
            ratio(report, run).replace('\u{d7}', "x"),
            text::rate(run.wire_rate(&report.network)),
            rate(run.limit(&report.network)),
            rate(report.bound.as_ref().map(|bound| bound.rate_bps as f64)),
        ]);
    }
    let widths: [usize; 8] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    let mut table = String::new();
    for row in &rows {
        for (at, cell) in row.iter().enumerate() {
            let width = widths[at];
            // Names to the left, figures to the right.
            if at == 0 { put!(table, "{cell:<width$}") } else { put!(table, "  {cell:>width$}") }
        }
        table.push('\n');
    }
    table
}

/// A bar for every run, and where the network ends.
fn bars(page: &mut String, report: &Report) {
    let rates: Vec<f64> = report.runs.iter().map(|run| run.rate(report.content_bytes)).collect();
    let wires: Vec<f64> = report.runs.iter().map(|run| run.wire_rate(&report.network)).collect();
    let bound = report.bound.as_ref().map(|bound| bound.rate_bps as f64);
    let most = rates.iter().chain(&wires).chain(&bound).fold(1.0f64, |most, rate| most.max(*rate));
    let height = ROW * report.runs.len() as f64 + 30.0;
    let x = |rate: f64| (WIDTH - LEFT - RIGHT) * rate / most;
    put!(page, r#"<svg class="bars" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Rates of the runs">"#);
    for (at, run) in report.runs.iter().enumerate() {
        let (y, rate) = (26.0 + ROW * at as f64, rates[at]);
        put!(page, r#"<text class="name" x="0" y="{}">{}</text>"#, y + BAR - 6.0, escape(&run.name));
        put!(page, r#"<rect class="wire" x="{LEFT}" y="{y}" width="{}" height="{BAR}" rx="3"/>"#, Px(x(wires[at])));
        put!(page, r#"<rect class="bar" x="{LEFT}" y="{y}" width="{}" height="{BAR}" rx="3"/>"#, Px(x(rate)));
        let end = LEFT + x(rate.max(wires[at])) + 10.0;
        // Beside the line of the bound, not across it.
        let line = bound.map_or(0.0, |bound| LEFT + x(bound));
        let end = if (end - 12.0..end + FIGURES).contains(&line) { line + 10.0 } else { end };
        put!(page, r#"<text class="value" x="{}" y="{}">{} "#, Px(end), y + BAR - 6.0, text::rate(rate));
        put!(
            page,
            r#"<tspan class="soft" dx="6">{} &#160;{}</tspan></text>"#,
            text::seconds(run.seconds),
            ratio(report, run)
        );
    }
    if let Some(bound) = bound {
        let line = LEFT + x(bound);
        put!(page, r#"<path class="bound" d="M{} 18V{}"/>"#, Px(line), height - 6.0);
        put!(page, r#"<text class="note" x="{}" y="11" text-anchor="middle">"#, Px(line));
        put!(page, "the network\u{2019}s maximum flow: {}</text>", text::rate(bound));
    }
    page.push_str("</svg>\n<p class=\"sub\">Bars are the rate of the file; dashed, the same with all headers, as the receiver\u{2019}s links carried it.</p>\n");
}

fn ratio(report: &Report, run: &Run) -> String {
    format!("{:.2} \u{d7}", report.ratio(run))
}

fn table(page: &mut String, report: &Report) {
    page.push_str("<div class=\"scroll\"><table class=\"big\">\n<thead><tr><th>paths chosen by</th><th class=\"n\">paths used</th><th class=\"n\">time</th>");
    page.push_str(
        "<th class=\"n\">rate of the file</th><th class=\"n\">to the first</th><th class=\"n\">on the wire</th>",
    );
    page.push_str("<th class=\"n\">most that these<br>paths carry together</th><th class=\"n\">most that the<br>network carries</th></tr></thead>\n<tbody>\n");
    for run in &report.runs {
        let wire = run.wire_rate(&report.network);
        let of = |limit: Option<f64>| match limit {
            Some(limit) => {
                format!("{}<span class=\"about\">{:.0} % reached</span>", text::rate(limit), wire / limit * 100.0)
            }
            None => "\u{2013}".to_owned(),
        };
        put!(page, "<tr><td><b>{}</b><span class=\"about\">{}</span></td>", escape(&run.name), escape(&run.about));
        put!(page, "<td class=\"n\">{} of {}</td>", run.used().count(), run.paths_max);
        put!(page, "<td class=\"n\"><b>{}</b></td>", text::seconds(run.seconds));
        put!(page, "<td class=\"n\"><b>{}</b></td>", text::rate(run.rate(report.content_bytes)));
        put!(page, "<td class=\"n\"><b>{}</b></td>", ratio(report, run));
        put!(page, "<td class=\"n\">{}</td>", text::rate(wire));
        put!(page, "<td class=\"n\">{}</td>", of(run.limit(&report.network)));
        put!(page, "<td class=\"n\">{}</td></tr>\n", of(report.bound.as_ref().map(|bound| bound.rate_bps as f64)));
    }
    page.push_str("</tbody></table></div>\n");
}
