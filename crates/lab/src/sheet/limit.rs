//! What held a cell's runs back: the processors of the machine, a link, or neither.

use crate::plan::{Cell, Plan};
use crate::stats::Summary;
use crate::trial::RunResult;

/// Above this share of work, processors are in each other's way.
pub(super) const BUSY_MAX: f64 = 0.9;
/// Above this share of its rate, over the whole of a run, a link is full for most of it.
const FULL_MIN: f64 = 0.8;

/// In a few words.
pub(super) fn limit(plan: &Plan, cell: &Cell, runs: &[RunResult]) -> String {
    let name = plan.name(cell);
    let runs: Vec<&RunResult> = runs.iter().filter(|run| run.cell == name && run.failed.is_none()).collect();
    let busy: Vec<f64> = runs.iter().filter_map(|run| run.busy).collect();
    if let Some(busy) = Summary::of(&busy).filter(|busy| busy.mean > BUSY_MAX) {
        return format!("processors ({:.0} %)", busy.mean * 100.0);
    }
    let under = plan.under(cell);
    let mut fullest: Option<(f64, String)> = None;
    for (number, link) in under.topology.links().iter().enumerate() {
        for way in 0..2 {
            let Some(rate) = link.shapes[way].rate_bps else { continue };
            let shares: Vec<f64> = runs
                .iter()
                .filter_map(|run| Some(run.links.get(number)?[way].bytes as f64 * 8.0 / run.seconds / rate as f64))
                .filter(|share| share.is_finite())
                .collect();
            let Some(share) = Summary::of(&shares).map(|share| share.mean) else { continue };
            if fullest.as_ref().is_none_or(|(most, _)| share > *most) {
                let [from, to] = [link.ends[way].isd_as, link.ends[1 - way].isd_as];
                fullest = Some((share, format!("{from} > {to} ({:.0} %)", share * 100.0)));
            }
        }
    }
    match fullest {
        Some((share, name)) if share >= FULL_MIN => format!("link {name}"),
        Some((_, name)) => format!("no link full: {name}"),
        None => String::from("no limited link"),
    }
}
