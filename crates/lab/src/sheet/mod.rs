//! The page of a plan's results: one self-contained HTML file, a function of the results alone.
//!
//! Every figure redrawn beside the paper's values with all runs and confidence intervals; every claim with its verdict; every
//! cell with what the network could carry; what it was measured on.

mod canvas;
mod figure;
mod limit;
mod lines;
pub mod markdown;
mod picture;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::fluid::Bounds;
use crate::plan::{Axis, Cell, Figure, Form, Measure, Quantity, Verdict};
use crate::report::markup::{escape, put};
use crate::stats::Summary;
use crate::trial::{LinksMeasured, Results};
use limit::BUSY_MAX;

/// Results, and what follows from them.
pub struct Sheet<'a> {
    results: &'a Results,
    cells: Vec<(Cell, Bounds)>,
}

impl<'a> Sheet<'a> {
    /// Of these results.
    pub fn new(results: &'a Results) -> Self {
        let cells = results.plan.cells();
        let bounds = Bounds::of_all(&results.plan, &cells);
        Self { results, cells: cells.into_iter().zip(bounds).collect() }
    }

    /// What became of the plan's claims, in their order.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let bounds = |cell: &Cell| self.cells.iter().find(|each| each.0 == *cell).map(|each| each.1);
        let known = |quantity: Quantity, cell: &Cell| match quantity {
            Quantity::Mean(measure) => Some(self.summary(measure, cell)?.mean),
            Quantity::Bound => bounds(cell)?.goodput_mbit,
            Quantity::Fluid => bounds(cell)?.fluid_mbit,
        };
        self.results.plan.claims.iter().map(|claim| claim.judge(&known)).collect()
    }

    /// What came out, for a terminal: cells, then claims.
    pub fn text(&self) -> String {
        let heads = ["cell", "runs", "goodput", "+-", "time", "longest", "cpu", "bound", "fluid"].map(str::to_owned);
        let mut rows = vec![heads];
        for (cell, bounds) in &self.cells {
            let mean = |measure| self.summary(measure, cell);
            let shown = |value: Option<f64>, unit: &str| {
                value.map_or("-".to_owned(), |value| format!("{} {unit}", short(value)))
            };
            let goodput = mean(Measure::Goodput);
            rows.push([
                self.results.plan.name(cell),
                goodput.map_or(0, |goodput| goodput.count).to_string(),
                shown(goodput.map(|goodput| goodput.mean), "Mbit/s"),
                shown(goodput.and_then(|goodput| goodput.half_width), ""),
                shown(mean(Measure::Time).map(|time| time.mean), "s"),
                shown(mean(Measure::TimeMax).map(|time| time.mean), "s"),
                shown(mean(Measure::Cpu).map(|cpu| cpu.mean), "s/GiB"),
                carried(bounds.goodput_mbit, " Mbit/s"),
                carried(bounds.fluid_mbit, " Mbit/s"),
            ]);
        }
        let mut text = table(&rows);
        for (claim, verdict) in self.results.plan.claims.iter().zip(self.verdicts()) {
            put!(text, "{:<7} {}{}\n", word(&verdict), claim.text, sides(&verdict));
        }
        text
    }

    /// The page.
    pub fn html(&self) -> String {
        let plan = &self.results.plan;
        let mut page = String::with_capacity(64 << 10);
        page.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
        put!(page, "<title>{}: {}</title>\n", escape(&plan.id), escape(&plan.title));
        let [style, more] = [include_str!("../report/style.css"), include_str!("sheet.css")];
        put!(page, "<style>\n{style}{more}</style>\n</head>\n<body>\n<main>\n");
        put!(page, "<h1>{}</h1>\n<p class=\"lede\">{}.", escape(&plan.title), escape(&plan.id));
        if let Some(source) = &plan.source {
            put!(page, " Redraws {}.", escape(source));
        }
        put!(page, "</p>\n");
        self.warnings(&mut page);
        self.claims(&mut page);
        for figure in &plan.figures {
            match figure.over_time {
                true => lines::write(&mut page, self, figure),
                false => figure::write(&mut page, self, figure),
            }
        }
        self.table(&mut page);
        self.facts(&mut page);
        page.push_str("</main>\n</body>\n</html>\n");
        page
    }

    /// Each figure as PNG and as CSV, under its id.
    pub fn figures(&self) -> Vec<(String, Vec<u8>, String)> {
        let one = |figure| (picture::png(self, figure), picture::csv(self, figure));
        let figures = self.results.plan.figures.iter();
        figures.map(|figure| (figure.id.clone(), one(figure))).map(|(id, (png, csv))| (id, png, csv)).collect()
    }

    fn summary(&self, measure: Measure, cell: &Cell) -> Option<Summary> {
        Summary::of(&self.results.values(measure, cell))
    }

    /// The cell of a figure's group and a candidate; plans have no figures with several there.
    fn cell(&self, figure: &Figure, group: usize, candidate: usize) -> Option<&Cell> {
        let plan = &self.results.plan;
        let is_meant = |cell: &Cell| match figure.groups {
            Axis::Candidate | Axis::Placement => cell.placement == group,
            Axis::Connections => cell.connections == plan.connections.get(group).copied(),
            Axis::Variant => cell.variant == Some(group),
        };
        let mut cells = self.cells.iter().map(|(cell, _)| cell);
        cells.find(|cell| cell.candidate == candidate && is_meant(cell) && figure.has(plan, cell))
    }

    fn warnings(&self, page: &mut String) {
        let runs = &self.results.runs;
        let busy = runs.iter().filter(|run| run.busy.is_some_and(|busy| busy > BUSY_MAX)).count();
        if busy > 0 {
            put!(
                page,
                "<p class=\"warning\">In {busy} of {} runs the processors of the machine were at work more than 90 % of the ",
                runs.len()
            );
            page.push_str("time: they, and not the links, may have been the limit there. Take absolute values as indications.</p>\n");
        }
        let failed: Vec<_> = runs.iter().filter_map(|run| Some((run, run.failed.as_ref()?))).collect();
        for (run, reason) in &failed {
            put!(
                page,
                "<p class=\"warning\">Run {} of {} failed: {}</p>\n",
                run.repetition + 1,
                escape(&run.cell),
                escape(reason)
            );
        }
    }

    fn claims(&self, page: &mut String) {
        let plan = &self.results.plan;
        if plan.claims.is_empty() {
            return;
        }
        page.push_str("<section>\n<h2>Same shape?</h2>\n<p class=\"sub\">What must hold of the means of cells.</p>\n");
        page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th>claim</th><th>both sides</th><th>verdict</th></tr></thead>\n<tbody>\n");
        for (claim, verdict) in plan.claims.iter().zip(self.verdicts()) {
            let why =
                claim.why.as_ref().map_or(String::new(), |why| format!("<span class=\"about\">{}</span>", escape(why)));
            put!(
                page,
                "<tr><td><code>{}</code>{why}</td><td>{}</td>",
                escape(&claim.text),
                escape(sides(&verdict).trim())
            );
            put!(page, "<td><span class=\"chip {}\">{}</span></td></tr>\n", class(&verdict), word(&verdict));
        }
        page.push_str("</tbody></table></div>\n</section>\n");
    }

    fn table(&self, page: &mut String) {
        page.push_str("<section>\n<h2>All cells</h2>\n<p class=\"sub\">Means, and half the width of their 95 % confidence intervals. ");
        page.push_str("Goodput and times are of peers whose AS has no seed. <i>Bound</i>: the goodput that no swarm exceeds over the paths of this ");
        page.push_str("routing, however it shares. <i>Fluid</i>: what all pairs of ASes carry at once, max-min fair; over SCION with the best choice of paths that was found. Peers that share within their AS may have more. <i>Limit</i>: processors that were at work more than 90 % of the time, or the fullest link.</p>\n");
        page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th>cell</th><th class=\"n\">runs</th>");
        for measure in Measure::ALL {
            let (unit, about) = measure.about();
            put!(page, "<th class=\"n\">{}<br>{unit}</th>", escape(about));
        }
        page.push_str("<th class=\"n\">bound<br>Mbit/s</th><th class=\"n\">of it</th><th class=\"n\">fluid<br>Mbit/s</th><th class=\"n\">of it</th><th>limit</th></tr></thead>\n<tbody>\n");
        for (cell, bounds) in &self.cells {
            let goodput = self.summary(Measure::Goodput, cell);
            put!(
                page,
                "<tr><td>{}</td><td class=\"n\">{}</td>",
                escape(self.results.plan.name(cell)),
                goodput.map_or(0, |found| found.count)
            );
            for measure in Measure::ALL {
                let shown = self.summary(measure, cell).map_or("\u{2013}".to_owned(), |found| {
                    let width = found
                        .half_width
                        .map_or(String::new(), |width| format!("<span class=\"about\">\u{b1} {}</span>", short(width)));
                    format!("{}{width}", short(found.mean))
                });
                put!(page, "<td class=\"n\">{shown}</td>");
            }
            for of in [bounds.goodput_mbit, bounds.fluid_mbit] {
                let share = goodput
                    .zip(of)
                    .map_or("\u{2013}".to_owned(), |(found, of)| format!("{:.0} %", 100.0 * found.mean / of));
                put!(page, "<td class=\"n\">{}</td><td class=\"n\">{share}</td>", carried(of, ""));
            }
            put!(page, "<td>{}</td></tr>\n", escape(limit::limit(&self.results.plan, cell, &self.results.runs)));
        }
        page.push_str("</tbody></table></div>\n</section>\n");
    }

    fn facts(&self, page: &mut String) {
        let (plan, lock) = (&self.results.plan, &self.results.lock);
        let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
        let machine = &lock["machine"];
        let mut facts = vec![
            (
                "Network",
                format!(
                    "{}: {} ASes, {} links",
                    plan.topology.name,
                    plan.topology.ases().len(),
                    plan.topology.links().len()
                ),
            ),
            ("Content", format!("{} bytes in pieces of {}", plan.content_bytes, plan.piece_bytes)),
            ("Seed", plan.seed.to_string()),
            ("Program", format!("anabranch {}", text(&lock["program"]["version"]))),
            (
                "Machine",
                format!(
                    "{}, {} processors, Linux {}",
                    text(&machine["processor"]),
                    machine["processors"],
                    text(&machine["kernel"])
                ),
            ),
            ("Links measured before", LinksMeasured::of(lock).to_string()),
        ];
        if plan.scale.slows() {
            let scale = &plan.scale;
            facts.push((
                "Scale",
                format!("rates of all links divided by {scale}, so that links and not processors are the limit"),
            ));
        }
        if let Some(frr) = lock["frr"].as_str() {
            facts.push(("BGP", frr.to_owned()));
        }
        if plan.form != Form::Full {
            let claims = match plan.claims_left_out {
                0 => String::new(),
                left_out => format!("; {left_out} of its claims are of cells that only the full form has"),
            };
            facts.push((
                "Form",
                format!(
                    "{}: fewer cells or runs, or a smaller content, than the plan's full form{claims}",
                    plan.form.name()
                ),
            ));
        }
        if let Some(machines) = lock["machines"].as_array().filter(|machines| machines.len() > 1) {
            facts.push(("Machines", format!("{}, of which the first is named above", machines.len())));
        }
        for event in &plan.events {
            facts.push(("Event", event.about(&plan.topology)));
        }
        let busy: Vec<f64> = self.results.runs.iter().filter_map(|run| run.busy).collect();
        if let Some(busy) = Summary::of(&busy) {
            facts.push((
                "Processors at work",
                format!("{:.0} % in the mean of all runs, everything on the machine counted", busy.mean * 100.0),
            ));
        }
        page.push_str("<section>\n<h2>How it was measured</h2>\n<dl>\n");
        for (name, value) in facts {
            put!(page, "<dt>{name}</dt><dd>{}</dd>\n", escape(value));
        }
        page.push_str("</dl>\n<details><summary>The plan</summary><pre>");
        put!(
            page,
            "{}</pre></details>\n<details><summary>The topology</summary><pre>{}</pre></details>\n</section>\n",
            escape(&plan.text),
            escape(&plan.topology_text)
        );
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Holds(_) => "holds",
        Verdict::Fails(_) => "fails",
        Verdict::Unknown => "unknown",
    }
}

fn class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Holds(_) => "chosen",
        Verdict::Fails(_) => "fails",
        Verdict::Unknown => "left",
    }
}

fn sides(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Holds(values) | Verdict::Fails(values) => {
            format!("  ({})", values.iter().map(|value| short(*value)).collect::<Vec<_>>().join(" and "))
        }
        Verdict::Unknown => "  (a cell has no result, or no bound)".into(),
    }
}

/// Three digits that count.
pub(crate) fn short(value: f64) -> String {
    let decimals = match value.abs() {
        big if big >= 99.95 => 0,
        middle if middle >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// What a network carries, with a unit behind it; some carry whatever one sends.
fn carried(mbit: Option<f64>, unit: &str) -> String {
    mbit.map_or("unlimited".to_owned(), |mbit| format!("{}{unit}", short(mbit)))
}

/// Columns as wide as what is in them, names to the left, figures to the right.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            let width = widths[at];
            if at == 0 { put!(text, "{cell:<width$}") } else { put!(text, "  {cell:>width$}") }
        }
        text.push('\n');
    }
    text
}
