//! One figure: groups of bars with all runs, confidence intervals and the paper's values, as SVG.

use super::{Sheet, short};
use crate::plan::{Cell, Figure};
use crate::report::markup::{Px, escape, put};
use crate::stats::{Interval, Summary, ratio};

/// Pixels of the drawing.
const WIDTH: f64 = 1060.0;
const HEIGHT: f64 = 346.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 56.0;
/// Widest bar, and the part of a group's room that stays free.
const BAR_MAX: f64 = 86.0;
const GROUP_GAP: f64 = 0.22;
const RUN_RADIUS: f64 = 3.0;
/// Steps that an axis should have, about.
const STEPS: f64 = 5.0;
/// Colours that the page has.
const COLORS: usize = 8;

/// What is drawn of a cell, in the figure's unit.
pub(super) struct Bar {
    pub group: usize,
    pub candidate: usize,
    pub runs: Vec<f64>,
    pub summary: Option<Interval>,
    pub paper: Option<f64>,
}

pub(super) fn write(page: &mut String, sheet: &Sheet<'_>, figure: &Figure) {
    let plan = &sheet.results.plan;
    let (unit, about) = figure.measure.about();
    let unit = match &figure.relative_to {
        Some(reference) => format!("% of {reference}"),
        None => unit.to_owned(),
    };
    put!(page, "<section>\n<h2>{}</h2>\n", escape(&figure.title));
    put!(
        page,
        "<p class=\"sub\">{}: {about}, {}. Bars are means, whiskers 95 % confidence intervals, dots single runs.</p>\n",
        escape(&figure.id),
        escape(&unit)
    );
    let (bars, groups) = (bars(sheet, figure), plan.values(figure.groups));
    let top = bars.iter().flat_map(|bar| {
        let reach =
            bar.summary.map(|found| found.mean + found.half_width.filter(|width| *width < found.mean).unwrap_or(0.0));
        bar.runs.iter().copied().chain(reach).chain(bar.paper)
    });
    let top = top.fold(f64::MIN_POSITIVE, f64::max) * 1.08;
    put!(
        page,
        r#"<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#,
        escape(&figure.title)
    );
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top).clamp(0.0, 1.0);
    axis(page, top, &unit, (WIDTH - RIGHT, &y));
    let room = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    let width = (room * (1.0 - GROUP_GAP) / plan.candidates.len() as f64).min(BAR_MAX);
    for bar in &bars {
        let middle = LEFT + room * (bar.group as f64 + 0.5);
        let x = middle + width * (bar.candidate as f64 - (plan.candidates.len() as f64 - 1.0) / 2.0);
        draw(page, bar, x, width, &y);
    }
    for (number, group) in groups.iter().enumerate() {
        let x = LEFT + room * (number as f64 + 0.5);
        put!(page, r#"<text class="group" x="{}" y="{}">{}</text>"#, Px(x), HEIGHT - 14.0, escape(group));
    }
    page.push_str("</svg>\n");
    keys(page, sheet, bars.iter().any(|bar| bar.paper.is_some()));
    values(page, sheet, figure, &bars, &unit);
    page.push_str("</section>\n");
}

/// What colours mean.
pub(super) fn keys(page: &mut String, sheet: &Sheet<'_>, with_paper: bool) {
    page.push_str("<ul class=\"keys\">");
    for (number, candidate) in sheet.results.plan.candidates.iter().enumerate() {
        put!(page, "<li><i class=\"c{}\"></i>{}</li>", number % COLORS, escape(&candidate.name));
    }
    if with_paper {
        page.push_str("<li><i class=\"paper\"></i>the paper\u{2019}s value</li>");
    }
    page.push_str("</ul>\n");
}

pub(super) fn bars(sheet: &Sheet<'_>, figure: &Figure) -> Vec<Bar> {
    let plan = &sheet.results.plan;
    let groups = plan.values(figure.groups);
    let reference = figure.relative_to.as_ref().map(|name| plan.candidates.iter().position(|each| each.name == *name));
    let mut bars = Vec::new();
    for (group, name) in groups.iter().enumerate() {
        let values = |candidate: usize| {
            let cell: Option<&Cell> = sheet.cell(figure, group, candidate);
            cell.map_or(Vec::new(), |cell| sheet.results.by_repetition(figure.measure, cell))
        };
        let reference = reference.map(|candidate| candidate.map_or(Vec::new(), values));
        for (candidate, about) in plan.candidates.iter().enumerate() {
            let (runs, summary) = match &reference {
                None => absolute(&values(candidate)),
                Some(reference) => percent(&values(candidate), reference),
            };
            let is_of = |each: &&(String, String, f64)| each.0 == *name && each.1 == about.name;
            let paper = figure.paper.iter().find(is_of).map(|each| each.2).filter(|_| figure.shows_paper(plan));
            bars.push(Bar { group, candidate, runs, summary, paper });
        }
    }
    bars
}

/// Values of a cell by their repetitions, which rise.
type ByRepetition = [(u32, f64)];

fn only_values(of: &ByRepetition) -> Vec<f64> {
    of.iter().map(|(_, value)| *value).collect()
}

fn absolute(values: &ByRepetition) -> (Vec<f64>, Option<Interval>) {
    let runs = only_values(values);
    let summary = Summary::of(&runs);
    (runs, summary.map(|found| found.interval()))
}

/// Percent of what a reference has. Runs of one repetition have the same seed: where both sides have the same ones, each ratio is of such
/// a pair, and what they have in common falls out.
fn percent(values: &ByRepetition, reference: &ByRepetition) -> (Vec<f64>, Option<Interval>) {
    let (Some(ours), Some(theirs)) = (Summary::of(&only_values(values)), Summary::of(&only_values(reference))) else {
        return (Vec::new(), None);
    };
    let are_pairs = values.iter().map(|each| each.0).eq(reference.iter().map(|each| each.0));
    let below = |place: usize| if are_pairs { reference[place].1 } else { theirs.mean };
    let runs = values.iter().enumerate().map(|(place, (_, value))| 100.0 * value / below(place));
    let runs: Vec<f64> = runs.collect();
    if runs.iter().any(|run| !run.is_finite()) {
        return (Vec::new(), None);
    }
    let summary = match are_pairs {
        true => Summary::of(&runs).map(|found| found.interval()),
        false => ratio(&ours, &theirs).map(|found| Interval {
            mean: 100.0 * found.mean,
            half_width: found.half_width.map(|width| 100.0 * width),
        }),
    };
    (runs, summary)
}

/// Round values from zero up to `top`.
pub(super) fn steps(top: f64) -> Vec<f64> {
    let rough = top / STEPS;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|each| each * power).find(|step| *step >= rough).unwrap_or(rough);
    (0..).map(|number| f64::from(number) * step).take_while(|value| *value <= top).collect()
}

pub(super) fn axis(page: &mut String, top: f64, unit: &str, (right, y): (f64, &dyn Fn(f64) -> f64)) {
    for value in steps(top) {
        put!(page, r#"<path class="grid" d="M{LEFT} {}H{right}"/>"#, Px(y(value)));
        put!(
            page,
            r#"<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>"#,
            LEFT - 8.0,
            Px(y(value) + 4.0),
            crate::text::trimmed(value)
        );
    }
    put!(page, r#"<text class="tick" x="{}" y="14">{}</text>"#, LEFT - 40.0, escape(unit));
}

fn draw(page: &mut String, bar: &Bar, x: f64, width: f64, y: &dyn Fn(f64) -> f64) {
    let floor = y(0.0);
    let (left, inner) = (x - width * 0.44, width * 0.88);
    let Some(found) = bar.summary else {
        put!(page, r#"<text class="none" x="{}" y="{}">no run</text>"#, Px(x), Px(floor - 8.0));
        return;
    };
    let top = y(found.mean);
    put!(
        page,
        r#"<rect class="bar c{}" x="{}" y="{}" width="{}" height="{}" rx="3"/>"#,
        bar.candidate % COLORS,
        Px(left),
        Px(top),
        Px(inner),
        Px(floor - top)
    );
    if let Some(width) = found.half_width {
        let (high, low) = (y(found.mean + width), y(found.mean - width));
        put!(
            page,
            r#"<path class="interval" d="M{0} {1}V{2}M{3} {1}h10M{3} {2}h10"/>"#,
            Px(x),
            Px(high),
            Px(low),
            Px(x - 5.0)
        );
    }
    for (number, run) in bar.runs.iter().enumerate() {
        // Beside each other, so that equal ones are seen.
        let shift = inner * 0.3 * ((number % 5) as f64 - 2.0) / 2.0;
        put!(page, r#"<circle class="run" cx="{}" cy="{}" r="{RUN_RADIUS}"/>"#, Px(x + shift), Px(y(*run)));
    }
    if let Some(paper) = bar.paper {
        put!(page, r#"<path class="paper" d="M{} {}h{}"/>"#, Px(left - 3.0), Px(y(paper)), Px(inner + 6.0));
    }
    put!(page, r#"<text class="value" x="{}" y="{}">{}</text>"#, Px(x), Px(floor + 15.0), short(found.mean));
}

/// The same as figures, for those who want them.
fn values(page: &mut String, sheet: &Sheet<'_>, figure: &Figure, bars: &[Bar], unit: &str) {
    let plan = &sheet.results.plan;
    let groups = plan.values(figure.groups);
    put!(
        page,
        "<details><summary>Values</summary><div class=\"scroll\"><table>\n<thead><tr><th></th><th></th><th class=\"n\">ours, {}</th>",
        escape(unit)
    );
    page.push_str("<th class=\"n\">\u{b1}</th><th class=\"n\">the paper\u{2019}s</th><th class=\"n\">runs</th></tr></thead>\n<tbody>\n");
    for bar in bars {
        let shown = |value: Option<f64>| value.map_or("\u{2013}".to_owned(), short);
        put!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
            escape(&groups[bar.group]),
            escape(&plan.candidates[bar.candidate].name),
            shown(bar.summary.map(|found| found.mean)),
            shown(bar.summary.and_then(|found| found.half_width)),
            shown(bar.paper),
            bar.runs.iter().map(|run| short(*run)).collect::<Vec<_>>().join(", ")
        );
    }
    page.push_str("</tbody></table></div></details>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_of_pairs_is_as_sure_as_the_pairs_agree() {
        // The second repetition is twice as fast for both.
        let (ours, theirs) = ([(0, 20.0), (1, 40.0)], [(0, 10.0), (1, 20.0)]);
        let (runs, summary) = percent(&ours, &theirs);
        assert_eq!((runs, summary), (vec![200.0; 2], Some(Interval { mean: 200.0, half_width: Some(0.0) })));
        // Of itself everything is 100 %, and that is sure.
        assert_eq!(percent(&ours, &ours).1, Some(Interval { mean: 100.0, half_width: Some(0.0) }));
    }

    #[test]
    fn a_ratio_of_others_is_as_unsure_as_both_sides() {
        let (ours, theirs) = ([(0, 20.0), (1, 20.0)], [(0, 9.0), (1, 10.0), (2, 11.0)]);
        let (runs, summary) = percent(&ours, &theirs);
        let summary = summary.unwrap();
        assert_eq!((runs, summary.mean), (vec![200.0; 2], 200.0));
        // The values above do not vary at all: all of it is of those below, 200 * 2.4843 / 10.
        assert!((summary.half_width.unwrap() - 49.686).abs() < 0.05, "{summary:?}");
        // One run below says nothing of how sure it is.
        assert_eq!(percent(&ours, &[(7, 10.0)]).1, Some(Interval { mean: 200.0, half_width: None }));
        assert_eq!(percent(&ours, &[]), (Vec::new(), None));
        assert_eq!(percent(&ours, &[(0, 0.0), (1, 0.0)]), (Vec::new(), None));
    }
}
