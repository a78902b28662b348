//! The rate of every path over time, run by run, on the same scales.

use super::chart::{Band, Chart};
use super::markup::{escape, put};
use super::path_labels::Book;
use super::{Report, Run};
use crate::text;

/// Finer than this, what waited for a lost packet and then came at once shows instead of rates.
const SLOT_SECONDS_MIN: f64 = 0.5;
/// Slots of the longest run: about two pixels each.
const SLOTS_MAX: f64 = 300.0;
/// Room over the highest rate.
const HEADROOM: f64 = 1.06;

pub(super) fn write(page: &mut String, report: &Report, book: &Book) {
    let seconds_max = report.runs.iter().map(|run| run.seconds).fold(0.0, f64::max);
    let slot_seconds = SLOT_SECONDS_MIN.max(seconds_max / SLOTS_MAX);
    let bands: Vec<Vec<Band>> = report.runs.iter().map(|run| bands(run, report, book, slot_seconds)).collect();
    let bound = report.bound.as_ref().map(|bound| bound.rate_bps as f64);
    let sums = bands.iter().flat_map(|bands| sums(bands));
    let sum_max = sums.chain(bound).fold(0.0, f64::max) * HEADROOM;
    let rate_max =
        bands.iter().flatten().flat_map(|band| &band.rates).fold(0.0f64, |most, rate| most.max(*rate)) * HEADROOM;

    page.push_str("<section>\n<h2>Rates over time</h2>\n");
    page.push_str(
        "<p class=\"sub\">What arrived over each path, in Mbit/s of the file, on the same scales in every run. ",
    );
    page.push_str(
        "Stacked, the upper edge is the rate of all paths together, and every run\u{2019}s area is the same file. \
         Peaks are what waited behind a lost packet and then came at once.</p>\n",
    );
    page.push_str("<input class=\"choice\" type=\"radio\" name=\"view\" id=\"stacked\" checked><input class=\"choice\" type=\"radio\" name=\"view\" id=\"apart\">\n");
    page.push_str("<div class=\"tabs\"><label for=\"stacked\">Stacked</label><label for=\"apart\">Each path alone</label></div>\n");
    page.push_str("<style>#stacked:checked ~ .run .alone, #apart:checked ~ .run .together { display: none; }\n");
    page.push_str("#stacked:checked ~ .tabs label[for=stacked], #apart:checked ~ .tabs label[for=apart] ");
    page.push_str(
        "{ background: var(--tab); color: var(--text); font-weight: 600; box-shadow: var(--shadow); }</style>\n",
    );
    for (run, bands) in report.runs.iter().zip(&bands) {
        put!(
            page,
            "<div class=\"run\"><h3>{} <span class=\"sub\">{}</span></h3>\n",
            escape(&run.name),
            escape(&run.about)
        );
        let title = format!("Rates over time, {}", run.name);
        let label =
            bound.map(|bound| format!("maximum flow of the network, {}", text::rate(bound))).unwrap_or_default();
        let chart = Chart {
            title: &title,
            bands,
            slot_seconds,
            seconds_max: seconds_max * 1.02,
            rate_max: sum_max,
            bound: bound.map(|bound| (bound, label.as_str())),
            done: run.seconds,
        };
        put!(page, "<div><div class=\"together\">{}</div>", chart.stacked());
        let apart = Chart { rate_max, bound: None, ..chart };
        put!(page, "<div class=\"alone\">{}</div></div>\n", apart.lines());
        legend(page, report, run, book, bands);
        page.push_str("</div>\n");
    }
    page.push_str("</section>\n");
}

/// The rates of every path that was used, in the order of their names.
fn bands(run: &Run, report: &Report, book: &Book, slot_seconds: f64) -> Vec<Band> {
    let slots = (run.seconds / slot_seconds).ceil().max(0.0) as usize;
    let mut placed: Vec<(usize, Band)> = Vec::new();
    for series in run.log.series.iter().filter(|series| series.bytes() > 0) {
        // Every path that carried anything is in the book.
        let place = book.place(&series.path).unwrap_or_default();
        let rates = (0..slots).map(|slot| {
            let begin = slot as f64 * slot_seconds;
            let end = (begin + slot_seconds).min(run.seconds);
            (series.bytes_at(end) - series.bytes_at(begin)) * 8.0 / (end - begin).max(slot_seconds / 100.0)
        });
        let way = book.describe(&report.network, &series.path, run.candidate(&series.path));
        placed.push((
            place,
            Band { name: format!("{} {way}", text::letter(place)), color: Book::color(place), rates: rates.collect() },
        ));
    }
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, band)| band).collect()
}

/// The sum of all bands in every slot.
fn sums(bands: &[Band]) -> impl Iterator<Item = f64> {
    let slots = bands.iter().map(|band| band.rates.len()).max().unwrap_or(0);
    (0..slots).map(|slot| bands.iter().map(|band| band.rates.get(slot).copied().unwrap_or(0.0)).sum())
}

/// What each path carried.
fn legend(page: &mut String, report: &Report, run: &Run, book: &Book, bands: &[Band]) {
    page.push_str("<ul class=\"legend\">");
    let mut used: Vec<_> = run.log.series.iter().filter(|series| series.bytes() > 0).collect();
    used.sort_by_key(|series| book.place(&series.path));
    // The uppermost band first, as in the chart.
    for (series, band) in used.into_iter().zip(bands).rev() {
        let place = book.place(&series.path).unwrap_or_default();
        let rate = series.bytes() as f64 * 8.0 / run.seconds.max(f64::MIN_POSITIVE);
        let way = book.describe(&report.network, &series.path, run.candidate(&series.path));
        put!(page, "<li><span class=\"dot c{}\">{}</span>", band.color, text::letter(place));
        put!(page, "<span>{}</span><b>{}</b></li>", escape(way), text::mbit(rate));
    }
    page.push_str("</ul>");
}
