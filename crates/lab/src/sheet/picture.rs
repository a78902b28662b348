//! Figures as files of their own: PNG, and CSV of what is drawn.

use super::canvas::{Anchor, Canvas, Color, Text};
use super::figure::{Bar, bars, steps};
use super::lines::lines;
use super::{Sheet, short};
use crate::plan::Figure;
use crate::report::markup::put;
use crate::text::trimmed;

/// Pixels of a picture, and of its margins: twice what the page has, so that it is sharp in print.
const WIDTH: f64 = 2120.0;
const PLOT_HEIGHT: f64 = 560.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 40.0;
const HEAD: f64 = 120.0;
const FOOT: f64 = 130.0;
const GROUP_GAP: f64 = 0.22;
const BAR_MAX: f64 = 170.0;

const PAPER: Color = [255; 3];
const INK: Color = [28, 33, 39];
const SOFT: Color = [92, 102, 112];
const GRID: Color = [228, 230, 227];
const COLORS: [Color; 8] = [
    [47, 123, 196],
    [224, 123, 31],
    [34, 151, 122],
    [184, 71, 140],
    [122, 95, 201],
    [178, 138, 18],
    [23, 149, 173],
    [207, 75, 75],
];

/// A figure as PNG.
pub(super) fn png(sheet: &Sheet<'_>, figure: &Figure) -> Vec<u8> {
    let plan = &sheet.results.plan;
    let groups = plan.values(figure.groups);
    let plots = if figure.over_time { groups.len() } else { 1 };
    let height = HEAD + FOOT + PLOT_HEIGHT * plots as f64;
    let mut canvas = Canvas::new(WIDTH as usize, height as usize, PAPER);
    let (unit, about) = figure.measure.about();
    let unit = match (&figure.relative_to, figure.over_time) {
        (_, true) => "Mbit/s over seconds".to_owned(),
        (Some(reference), _) => format!("{about}, % of {reference}"),
        _ => format!("{about}, {unit}"),
    };
    canvas.text([40.0, 36.0], &format!("{}: {}", figure.id, figure.title), (Text::Bold, Anchor::Start), INK);
    canvas.text([40.0, 76.0], &unit, (Text::Small, Anchor::Start), SOFT);
    let mut with_paper = false;
    if figure.over_time {
        for (group, name) in groups.iter().enumerate() {
            curves(&mut canvas, sheet, figure, (group, name), HEAD + PLOT_HEIGHT * group as f64);
        }
    } else {
        let bars = bars(sheet, figure);
        with_paper = bars.iter().any(|bar| bar.paper.is_some());
        columns(&mut canvas, &bars, &groups, plan.candidates.len());
    }
    let names = plan.candidates.iter().map(|candidate| candidate.name.as_str());
    let names = names.chain(with_paper.then_some("the paper's value"));
    let mut x = LEFT;
    for (number, name) in names.enumerate() {
        let y = height - 36.0;
        match number < plan.candidates.len() {
            true => canvas.rect([x, y - 9.0, 26.0, 18.0], COLORS[number % COLORS.len()], 0.8),
            false => canvas.rect([x, y - 3.0, 26.0, 6.0], INK, 1.0),
        }
        canvas.text([x + 36.0, y], name, (Text::Small, Anchor::Start), INK);
        x += 70.0 + 13.0 * name.chars().count() as f64;
    }
    canvas.png()
}

/// The lines of an axis, from the bottom up.
fn axis(canvas: &mut Canvas, top: f64, y: &dyn Fn(f64) -> f64) {
    for value in steps(top) {
        canvas.line([LEFT, y(value)], [WIDTH - RIGHT, y(value)], 2.0, GRID, 1.0);
        canvas.text([LEFT - 14.0, y(value)], &trimmed(value), (Text::Small, Anchor::End), SOFT);
    }
}

fn columns(canvas: &mut Canvas, bars: &[Bar], groups: &[String], candidates: usize) {
    let reach = bars.iter().flat_map(|bar| {
        let interval =
            bar.summary.map(|found| found.mean + found.half_width.filter(|width| *width < found.mean).unwrap_or(0.0));
        bar.runs.iter().copied().chain(interval).chain(bar.paper)
    });
    let top = reach.fold(f64::MIN_POSITIVE, f64::max) * 1.08;
    let floor = HEAD + PLOT_HEIGHT;
    let y = |value: f64| floor - (PLOT_HEIGHT - 20.0) * (value / top).clamp(0.0, 1.0);
    axis(canvas, top, &y);
    let room = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    let width = (room * (1.0 - GROUP_GAP) / candidates.max(1) as f64).min(BAR_MAX);
    for bar in bars {
        let middle = LEFT + room * (bar.group as f64 + 0.5);
        let x = middle + width * (bar.candidate as f64 - (candidates as f64 - 1.0) / 2.0);
        let (left, inner) = (x - width * 0.44, width * 0.88);
        let Some(found) = bar.summary else {
            canvas.text([x, floor - 20.0], "no run", (Text::Small, Anchor::Middle), SOFT);
            continue;
        };
        canvas.rect([left, y(found.mean), inner, floor - y(found.mean)], COLORS[bar.candidate % COLORS.len()], 0.8);
        if let Some(width) = found.half_width {
            let [low, high] = [found.mean - width, found.mean + width].map(&y);
            canvas.line([x, low], [x, high], 3.0, INK, 1.0);
            [low, high].into_iter().for_each(|at| canvas.line([x - 10.0, at], [x + 10.0, at], 3.0, INK, 1.0));
        }
        for (number, run) in bar.runs.iter().enumerate() {
            let shift = inner * 0.3 * ((number % 5) as f64 - 2.0) / 2.0;
            canvas.disc([x + shift, y(*run)], 6.0, INK, 0.55);
        }
        if let Some(paper) = bar.paper {
            canvas.line([left - 6.0, y(paper)], [left + inner + 6.0, y(paper)], 5.0, INK, 1.0);
        }
        canvas.text([x, floor + 20.0], &short(found.mean), (Text::Small, Anchor::Middle), INK);
    }
    for (number, group) in groups.iter().enumerate() {
        canvas.text([LEFT + room * (number as f64 + 0.5), floor + 54.0], group, (Text::Large, Anchor::Middle), INK);
    }
}

fn curves(canvas: &mut Canvas, sheet: &Sheet<'_>, figure: &Figure, (group, name): (usize, &str), above: f64) {
    let lines = lines(sheet, figure, group);
    let points = || lines.iter().flat_map(|line| &line.points);
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let top = points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max) * 1.08;
    let floor = above + PLOT_HEIGHT - 60.0;
    let y = |value: f64| floor - (PLOT_HEIGHT - 110.0) * (value / top).clamp(0.0, 1.0);
    let x = |at: f64| LEFT + (WIDTH - LEFT - RIGHT) * (at / last).clamp(0.0, 1.0);
    canvas.text([(LEFT + WIDTH - RIGHT) / 2.0, above + 20.0], name, (Text::Large, Anchor::Middle), INK);
    if lines.is_empty() {
        canvas.text([x(last / 2.0), floor - 60.0], "no run", (Text::Small, Anchor::Middle), SOFT);
        return;
    }
    axis(canvas, top, &y);
    for step in steps(last) {
        canvas.text([x(step), floor + 22.0], &format!("{} s", trimmed(step)), (Text::Small, Anchor::Middle), SOFT);
    }
    for line in &lines {
        let color = COLORS[line.candidate % COLORS.len()];
        for pair in line.points.windows(2) {
            let [from, to] = [pair[0], pair[1]].map(|(at, value)| [x(at), y(value)]);
            canvas.line(from, to, 4.0, color, 1.0);
        }
    }
}

/// What a figure shows, as a table.
pub(super) fn csv(sheet: &Sheet<'_>, figure: &Figure) -> String {
    let plan = &sheet.results.plan;
    let groups = plan.values(figure.groups);
    let mut text = String::new();
    if figure.over_time {
        text.push_str("group,candidate,seconds,mbit_per_second\n");
        for (group, name) in groups.iter().enumerate() {
            for line in lines(sheet, figure, group) {
                for (at, value) in line.points {
                    put!(text, "{name},{},{at:.2},{value:.4}\n", plan.candidates[line.candidate].name);
                }
            }
        }
        return text;
    }
    text.push_str("group,candidate,mean,half_width_95,paper,runs\n");
    for bar in bars(sheet, figure) {
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
        put!(
            text,
            "{},{},{},{},{},{}\n",
            groups[bar.group],
            plan.candidates[bar.candidate].name,
            number(bar.summary.map(|found| found.mean)),
            number(bar.summary.and_then(|found| found.half_width)),
            number(bar.paper),
            bar.runs.iter().map(|run| format!("{run:.4}")).collect::<Vec<_>>().join(" ")
        );
    }
    text
}
