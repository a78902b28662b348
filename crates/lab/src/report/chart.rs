//! Charts of rates over time, as SVG.

use super::markup::{Px, escape, put};
use crate::text;

/// Pixels of the whole chart, and what the axes take of it.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 30.0;
/// Ticks that an axis should have, about.
const X_TICKS: usize = 10;
const Y_TICKS: usize = 4;

/// One band or line.
#[derive(Clone, Debug)]
pub(super) struct Band {
    /// What it is called.
    pub name: String,
    /// Which of the page's colours it has.
    pub color: usize,
    /// Bits per second in each slot of time.
    pub rates: Vec<f64>,
}

/// Rates over time; the scales are the caller's, so that several charts can have the same.
#[derive(Clone, Debug)]
pub(super) struct Chart<'a> {
    /// What it shows, for those who cannot see it.
    pub title: &'a str,
    /// Lowest first.
    pub bands: &'a [Band],
    /// Seconds of one slot.
    pub slot_seconds: f64,
    /// Seconds at the right end.
    pub seconds_max: f64,
    /// Bits per second at the top.
    pub rate_max: f64,
    /// A rate worth a line across, and what it is.
    pub bound: Option<(f64, &'a str)>,
    /// When the transfer was done.
    pub done: f64,
}

impl Chart<'_> {
    /// Bands on top of each other: the upper edge is the sum, the area is what was received.
    pub(super) fn stacked(&self) -> String {
        let mut svg = self.frame();
        let mut below = vec![0.0; self.slots()];
        for band in self.bands {
            let above: Vec<f64> =
                below.iter().enumerate().map(|(slot, below)| below + band.rates.get(slot).unwrap_or(&0.0)).collect();
            let edge = self.points(&above);
            let back: Vec<String> = self.points(&below).into_iter().rev().collect();
            put!(svg, r#"<path class="band c{}" d="M{}L{}Z"/>"#, band.color, edge.join("L"), back.join("L"));
            put!(svg, r#"<path class="edge c{}" d="M{}"/>"#, band.color, edge.join("L"));
            below = above;
        }
        self.close(svg)
    }

    /// A line for each.
    pub(super) fn lines(&self) -> String {
        let mut svg = self.frame();
        for band in self.bands {
            put!(svg, r#"<path class="line c{}" d="M{}"/>"#, band.color, self.points(&band.rates).join("L"));
        }
        self.close(svg)
    }

    fn slots(&self) -> usize {
        self.bands.iter().map(|band| band.rates.len()).max().unwrap_or(0)
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.seconds_max.max(f64::MIN_POSITIVE)
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / self.rate_max.max(f64::MIN_POSITIVE)
    }

    /// A point in the middle of every slot; the ends of the first and the last slot close the shape.
    fn points(&self, rates: &[f64]) -> Vec<String> {
        let at = |seconds: f64, rate: f64| format!("{} {}", Px(self.x(seconds)), Px(self.y(rate)));
        let mut points: Vec<String> = Vec::with_capacity(rates.len() + 2);
        points.push(at(0.0, rates.first().copied().unwrap_or(0.0)));
        for (slot, rate) in rates.iter().enumerate() {
            points.push(at((slot as f64 + 0.5) * self.slot_seconds, *rate));
        }
        let end = (rates.len() as f64 * self.slot_seconds).min(self.done.max(0.0));
        points.push(at(end, rates.last().copied().unwrap_or(0.0)));
        points
    }

    /// Axes, grid and the bound.
    fn frame(&self) -> String {
        let mut svg = format!(r#"<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label=""#);
        put!(svg, r#"{}">"#, escape(self.title));
        let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for rate in ticks(self.rate_max / 1e6, Y_TICKS) {
            let y = self.y(rate * 1e6);
            put!(svg, r#"<path class="grid" d="M{LEFT} {}H{right}"/>"#, Px(y));
            put!(svg, r#"<text class="tick" x="{}" y="{}" text-anchor="end">{rate}</text>"#, LEFT - 7.0, Px(y + 4.0));
        }
        put!(svg, r#"<text class="tick" x="{}" y="{}" text-anchor="end">Mbit/s</text>"#, LEFT - 7.0, TOP - 2.0);
        for seconds in ticks(self.seconds_max, X_TICKS) {
            let (x, unit) = (self.x(seconds), if seconds == 0.0 { " s" } else { "" });
            put!(svg, r#"<path class="grid" d="M{} {floor}v5"/>"#, Px(x));
            put!(svg, r#"<text class="tick" x="{}" y="{}" text-anchor="middle">"#, Px(x), floor + 18.0);
            put!(svg, "{}{unit}</text>", text::trimmed(seconds));
        }
        svg
    }

    fn close(&self, mut svg: String) -> String {
        if let Some((rate, name)) = self.bound {
            let y = self.y(rate);
            put!(svg, r#"<path class="bound" d="M{LEFT} {}H{}"/>"#, Px(y), WIDTH - RIGHT);
            put!(svg, r#"<text class="note" x="{}" y="{}">"#, LEFT + 6.0, Px(y - 5.0));
            put!(svg, "{}</text>", escape(name));
        }
        let x = self.x(self.done);
        put!(svg, r#"<path class="done" d="M{} {TOP}V{}"/>"#, Px(x), HEIGHT - BOTTOM);
        self.readouts(&mut svg);
        svg.push_str("</svg>");
        svg
    }

    /// What the pointer reads: a strip for each slot of time.
    fn readouts(&self, svg: &mut String) {
        for slot in 0..self.slots() {
            let begin = slot as f64 * self.slot_seconds;
            let end = (begin + self.slot_seconds).min(self.done.max(begin));
            let (x, width) = (self.x(begin), self.x(end) - self.x(begin));
            let rates = self.bands.iter().map(|band| (band, band.rates.get(slot).copied().unwrap_or(0.0)));
            let total: f64 = rates.clone().map(|(_, rate)| rate).sum();
            put!(svg, r#"<rect class="hit" x="{}" y="{TOP}" width="{}" "#, Px(x), Px(width));
            put!(
                svg,
                r#"height="{}" data-tip="{} to {}"#,
                HEIGHT - TOP - BOTTOM,
                text::seconds(begin),
                text::seconds(end)
            );
            for (band, rate) in rates {
                put!(svg, "\n{} {}", escape(&band.name), text::mbit(rate));
            }
            put!(svg, "\ntogether {}\"/>", text::rate(total));
        }
    }
}

/// Round values from nothing up to `max`, about `count` of them: steps of 1, 2 or 5 times a power of ten.
pub(super) fn ticks(max: f64, count: usize) -> Vec<f64> {
    if !max.is_finite() || max <= 0.0 {
        return vec![0.0];
    }
    let rough = max / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * (1.0 - 1e-9));
    let step = factor.unwrap_or(10.0) * power;
    let steps = (max / step + 1e-9).floor() as usize;
    // From whole multiples, rounded, so that 0.3 is not 0.30000000000000004.
    let digits = 10f64.powf((-power.log10()).max(0.0) + 1.0);
    (0..=steps).map(|at| (at as f64 * step * digits).round() / digits).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chart<'a>(bands: &'a [Band]) -> Chart<'a> {
        Chart {
            title: "a <chart>",
            bands,
            slot_seconds: 0.5,
            seconds_max: 2.0,
            rate_max: 100e6,
            bound: Some((80e6, "bound & all")),
            done: 1.2,
        }
    }

    #[test]
    fn ticks_are_round_and_cover_the_scale() {
        assert_eq!(ticks(140.0, 4), [0.0, 50.0, 100.0]);
        assert_eq!(ticks(30.0, 10), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(ticks(0.3, 3), [0.0, 0.1, 0.2, 0.3]);
        assert_eq!(ticks(0.0, 4), [0.0]);
        assert_eq!(ticks(f64::NAN, 4), [0.0]);
    }

    #[test]
    fn bands_stand_on_each_other() {
        let band = |color, rate| Band { name: format!("<{color}>"), color, rates: vec![rate; 3] };
        let bands = [band(0, 20e6), band(1, 30e6)];
        let svg = chart(&bands).stacked();
        // 20 and 50 of 100 Mbit/s on 162 pixels over the floor at 180.
        assert!(svg.contains(r#"<path class="edge c0" d="M52 147.6L"#), "{svg}");
        assert!(svg.contains(r#"<path class="edge c1" d="M52 99L"#), "{svg}");
        assert!(svg.contains("&lt;0&gt; 20.0\n&lt;1&gt; 30.0\ntogether 50.0 Mbit/s"));
        assert!(svg.contains("a &lt;chart&gt;") && svg.contains("bound &amp; all"));
        assert_eq!(svg.matches("class=\"hit\"").count(), 3);
        assert!(chart(&bands).lines().contains(r#"<path class="line c1" d="M52 131.4L"#));
    }

    #[test]
    fn nothing_is_a_chart_too() {
        let empty = Chart { seconds_max: 0.0, rate_max: 0.0, done: 0.0, bound: None, ..chart(&[]) };
        for svg in [empty.stacked(), empty.lines()] {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    proptest! {
        #[test]
        fn ticks_never_run_away(max in 1e-9f64..1e15, count in 1usize..20) {
            let ticks = ticks(max, count);
            prop_assert!(ticks.len() <= 2 * count + 2, "{ticks:?}");
            prop_assert!(ticks.is_sorted() && *ticks.last().unwrap() <= max * (1.0 + 1e-6) + 1e-9);
        }
    }
}
