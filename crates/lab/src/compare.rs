//! Two results of one plan, cell by cell.

use crate::plan::Measure;
use crate::sheet::{short, table};
use crate::stats::{Summary, differ};
use crate::trial::Results;

/// A table: means with confidence intervals, their ratio, and whether they differ (Welch's test at 95 %). Cells are matched by
/// their names; those that only one side has are left out.
pub fn text(a: &Results, b: &Results, measure: Measure) -> String {
    let (unit, about) = measure.about();
    let heads = ["cell", "A", "B", "B over A", "differ"].map(str::to_owned);
    let mut rows = vec![heads];
    for cell in a.plan.cells() {
        let name = a.plan.name(&cell);
        let Some(other) = b.plan.cells().into_iter().find(|other| b.plan.name(other) == name) else { continue };
        let both = [(a, &cell), (b, &other)].map(|(results, cell)| Summary::of(&results.values(measure, cell)));
        let [Some(ours), Some(theirs)] = both else { continue };
        let shown = |found: &Summary| {
            let width = found.half_width.map_or(String::new(), |width| format!(" +- {}", short(width)));
            format!("{}{width}", short(found.mean))
        };
        let verdict = match differ(&ours, &theirs) {
            Some(true) => "yes",
            Some(false) => "no",
            None => "too few runs",
        };
        rows.push([name, shown(&ours), shown(&theirs), format!("{:.3}", theirs.mean / ours.mean), verdict.to_owned()]);
    }
    if rows.len() == 1 {
        return "The two have no cell in common that both have run.\n".to_owned();
    }
    format!("{about}, {unit}\n{}", table(&rows))
}
