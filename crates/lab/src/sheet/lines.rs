//! Rates over time: a line for each candidate, the mean of its runs.

use super::Sheet;
use crate::plan::{Cell, Figure};
use crate::report::markup::{Px, escape, put};

const WIDTH: f64 = 1060.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;
/// Steps of time that a line has.
const STEPS: usize = 120;
/// Shortest step: peers tell of their progress every second.
const STEP_SECONDS_MIN: f64 = 1.0;
/// Colours that the page has.
const COLORS: usize = 8;

/// The rate of one candidate: seconds and Mbit/s.
pub(super) struct Line {
    pub candidate: usize,
    pub points: Vec<(f64, f64)>,
}

/// The lines of a group.
pub(super) fn lines(sheet: &Sheet<'_>, figure: &Figure, group: usize) -> Vec<Line> {
    let plan = &sheet.results.plan;
    let of = |candidate: usize| {
        let cell: &Cell = sheet.cell(figure, group, candidate)?;
        let name = plan.name(cell);
        let runs: Vec<_> = sheet.results.runs.iter().filter(|run| run.cell == name && run.failed.is_none()).collect();
        let longest = runs.iter().map(|run| run.seconds).fold(0.0, f64::max);
        let step = (longest / STEPS as f64).max(STEP_SECONDS_MIN);
        let count = (longest / step).ceil() as usize;
        let points = (0..count).filter_map(|number| {
            let (from, to) = (number as f64 * step, (number + 1) as f64 * step);
            let rates: Vec<f64> = runs.iter().filter_map(|run| run.rate_between(from, to)).collect();
            (!rates.is_empty()).then(|| ((from + to) / 2.0, rates.iter().sum::<f64>() / rates.len() as f64))
        });
        let points: Vec<(f64, f64)> = points.collect();
        (!points.is_empty()).then_some(Line { candidate, points })
    };
    (0..plan.candidates.len()).filter_map(of).collect()
}

pub(super) fn write(page: &mut String, sheet: &Sheet<'_>, figure: &Figure) {
    let plan = &sheet.results.plan;
    put!(page, "<section>\n<h2>{}</h2>\n", escape(&figure.title));
    put!(
        page,
        "<p class=\"sub\">{}: rate at which content came to all peers that count, Mbit/s, over seconds; means of runs. Bands are events.</p>\n",
        escape(&figure.id)
    );
    for (group, name) in plan.values(figure.groups).iter().enumerate() {
        let lines = lines(sheet, figure, group);
        if lines.is_empty() {
            put!(page, "<p class=\"sub\">{}: no run</p>\n", escape(name));
            continue;
        }
        let all = lines.iter().flat_map(|line| &line.points);
        let (last, top) = all.fold((1.0f64, f64::MIN_POSITIVE), |(x, y), point| (x.max(point.0), y.max(point.1)));
        let top = top * 1.08;
        let x = |at: f64| LEFT + (WIDTH - LEFT - RIGHT) * (at / last).clamp(0.0, 1.0);
        let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top).clamp(0.0, 1.0);
        put!(page, r#"<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#, escape(name));
        bands(page, sheet, figure, group, &x);
        super::figure::axis(page, top, "Mbit/s", (WIDTH - RIGHT, &y));
        for step in super::figure::steps(last) {
            put!(
                page,
                r#"<text class="tick" x="{}" y="{}" text-anchor="middle">{} s</text>"#,
                Px(x(step)),
                HEIGHT - BOTTOM + 18.0,
                crate::text::trimmed(step)
            );
        }
        for line in &lines {
            let mut path = String::new();
            for (number, (at, value)) in line.points.iter().enumerate() {
                put!(path, "{}{} {}", if number == 0 { "M" } else { "L" }, Px(x(*at)), Px(y(*value)));
            }
            put!(page, r#"<path class="line c{}" d="{path}"/>"#, line.candidate % COLORS);
        }
        put!(
            page,
            r#"<text class="group" x="{}" y="{}">{}</text>"#,
            Px((LEFT + WIDTH - RIGHT) / 2.0),
            18.0,
            escape(name)
        );
        page.push_str("</svg>\n");
    }
    super::figure::keys(page, sheet, false);
    page.push_str("</section>\n");
}

/// When events went on, in the first run of the group's first candidate that has any.
fn bands(page: &mut String, sheet: &Sheet<'_>, figure: &Figure, group: usize, x: &dyn Fn(f64) -> f64) {
    let plan = &sheet.results.plan;
    let names: Vec<String> =
        (0..plan.candidates.len()).filter_map(|each| Some(plan.name(sheet.cell(figure, group, each)?))).collect();
    let Some(run) = sheet.results.runs.iter().find(|run| names.contains(&run.cell) && run.failed.is_none()) else {
        return;
    };
    for begin in run.happened.iter().filter(|each| each.begins) {
        let end = run.happened.iter().find(|each| !each.begins && each.event == begin.event);
        let to = end.map_or(run.seconds, |end| end.at);
        put!(
            page,
            r#"<rect class="event" x="{}" y="{TOP}" width="{}" height="{}"><title>{}</title></rect>"#,
            Px(x(begin.at)),
            Px((x(to) - x(begin.at)).max(1.0)),
            HEIGHT - TOP - BOTTOM,
            escape(plan.events.get(begin.event).map_or(String::new(), |event| event.about(&plan.topology)))
        );
    }
}
