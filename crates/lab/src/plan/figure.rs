//! What is drawn of a plan's results.

use std::collections::HashSet;

use anabranch_asnet::topology::document::{Fields, Node};

use super::read::{Located, known, name, prose, told};
use super::{Axis, Cell, Measure, Plan};

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its id in the catalogue of experiments.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// What is measured.
    pub measure: Measure,
    /// Whether the rate is drawn over time instead.
    pub over_time: bool,
    /// What groups of bars differ in; bars in a group are candidates.
    pub groups: Axis,
    /// Names that all of its cells have besides, where a group and a candidate alone are several cells.
    pub of: Vec<String>,
    /// The candidate that is 100 %, where values are shown in relation to one.
    pub relative_to: Option<String>,
    /// The paper's values: group, candidate, value in the unit of the figure.
    pub paper: Vec<(String, String, f64)>,
}

impl Figure {
    /// Whether it is of this cell of a plan, among others.
    pub(crate) fn has(&self, plan: &Plan, cell: &Cell) -> bool {
        let name = plan.name(cell);
        self.of.iter().all(|wanted| name.split('/').any(|part| part == wanted))
    }

    /// Whether the paper's values stand beside ours: times of a smaller content are none of the paper's.
    pub(crate) fn shows_paper(&self, plan: &Plan) -> bool {
        let is_time = matches!(self.measure, Measure::Time | Measure::TimeMax);
        !(is_time && self.relative_to.is_none() && plan.content_bytes < plan.full_bytes)
    }
}

/// A figure, whose bars or lines are of one cell each.
pub(super) fn figure(node: &Node, plan: &Plan) -> Located<Figure> {
    let mut fields = told(Fields::new(node, "a figure"))?;
    let id = name(told(fields.need("id", "id = \"000-fig4a\""))?, "id")?;
    let title = prose(told(fields.need("title", "title = \"what it shows\""))?, "title")?;
    let over = fields.get("over").map(|node| told(node.read("over", "time", |text| (text == "time").then_some(()))));
    let over_time = over.transpose()?.is_some();
    let measure = if over_time {
        Measure::Goodput
    } else {
        told(told(fields.need("measure", "measure = \"goodput\", or over = \"time\""))?.read(
            "measure",
            Measure::NAMES,
            |text| Measure::ALL.into_iter().find(|measure| measure.name() == text),
        ))?
    };
    let groups = fields.get("groups").map(|node| {
        told(node.read("groups", "placement, connections or variant, where there are any", |text| match text {
            "placement" => Some(Axis::Placement),
            "connections" if !plan.connections.is_empty() => Some(Axis::Connections),
            "variant" if !plan.variants.is_empty() => Some(Axis::Variant),
            _ => None,
        }))
    });
    let groups = groups.transpose()?.unwrap_or(Axis::Placement);
    let of = fields.get("of").map(|node| names(node, plan)).transpose()?.unwrap_or_default();
    let mut figure = Figure { id, title, measure, over_time, groups, of, relative_to: None, paper: Vec::new() };
    is_definite(&figure, plan).map_err(|problem| (node.line, problem))?;
    if over_time {
        told(fields.finish())?;
        return Ok(figure);
    }
    let relative_to = fields.get("relative_to").map(|node| known(node, "relative_to", &plan.values(Axis::Candidate)));
    figure.relative_to = relative_to.transpose()?;
    let paper = fields.get("paper").map(|node| paper(node, &plan.values(groups), &plan.values(Axis::Candidate)));
    figure.paper = paper.transpose()?.unwrap_or_default();
    told(fields.finish())?;
    Ok(figure)
}

/// The names that a figure's cells have to have besides those of its groups.
fn names(node: &Node, plan: &Plan) -> Located<Vec<String>> {
    let values: Vec<String> = Axis::ALL.into_iter().flat_map(|axis| plan.values(axis)).collect();
    told(node.list("of", "names that its cells have, as in [\"rtt-400\"]"))?
        .iter()
        .map(|item| known(item, "of", &values))
        .collect()
}

/// Whether each bar or line of a figure is of one cell alone.
fn is_definite(figure: &Figure, plan: &Plan) -> Result<(), String> {
    let mut seen = HashSet::new();
    let mut cells = plan.cells().into_iter().filter(|cell| figure.has(plan, cell));
    let twice = cells.find(|cell| !seen.insert((cell.value(figure.groups), cell.candidate)));
    twice.map_or(Ok(()), |cell| {
        Err(format!(
            "several cells would be one bar of figure `{}`, `{}` among them: say which it is of, as in of = [\"rtt-400\"]",
            figure.id,
            plan.name(&cell)
        ))
    })
}

fn paper(node: &Node, groups: &[String], candidates: &[String]) -> Located<Vec<(String, String, f64)>> {
    const VALUES: &str = "values by group and candidate, as in { bgp = 100, scion = 148 }";
    let mut values = Vec::new();
    for (group, node) in told(node.table("paper", VALUES))? {
        let among = |name: &String, all: &[String], what: &str| match all.contains(name) {
            true => Ok(()),
            false => Err((node.line, format!("`{name}` is no {what} here: use one of {}", all.join(", ")))),
        };
        among(group, groups, "group")?;
        for (candidate, node) in told(node.table("paper", VALUES))? {
            among(candidate, candidates, "candidate")?;
            let value = told(node.read("paper", "a number above zero", |text| {
                text.parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0)
            }))?;
            values.push((group.clone(), candidate.clone(), value));
        }
    }
    Ok(values)
}
