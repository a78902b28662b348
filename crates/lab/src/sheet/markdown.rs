//! Results as Markdown: what was claimed, what came out, and what held it back. `docs/results.md` is made of it.

use super::{Sheet, carried, limit, short, word};
use crate::plan::{Cell, Measure, Verdict};
use crate::report::markup::put;
use crate::trial::{LinksMeasured, Results};

/// One page of several results.
pub fn page(all: &[Results]) -> String {
    let mut text = String::from(
        "# Results\n\nMade by `anabranch lab report --markdown`; [lab.md](lab.md) says what the lab does and how it measures.\n",
    );
    put!(
        text,
        "\n## Verdicts\n\n| plan | form | runs | claims that hold | that fail | without results | of the full form alone |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    );
    for results in all {
        let verdicts = Sheet::new(results).verdicts();
        let count = |fits: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| fits(verdict)).count();
        let done = results.runs.iter().filter(|run| run.failed.is_none()).count();
        let failed = results.runs.len() - done;
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        put!(
            text,
            "| [{0}](#{0}) | {1} | {done}{failed} | {2} | {3} | {4} | {5} |\n",
            results.plan.id,
            results.plan.form.name(),
            count(|verdict| matches!(verdict, Verdict::Holds(_))),
            count(|verdict| matches!(verdict, Verdict::Fails(_))),
            count(|verdict| matches!(verdict, Verdict::Unknown)),
            results.plan.claims_left_out,
        );
    }
    all.iter().for_each(|results| section(&mut text, results));
    text
}

fn section(text: &mut String, results: &Results) {
    let (plan, sheet) = (&results.plan, Sheet::new(results));
    put!(text, "\n## {}\n\n{}", plan.id, cell(&plan.title));
    if let Some(source) = &plan.source {
        put!(text, "; redraws {}", cell(source));
    }
    let (machine, lock) = (&results.lock["machine"], &results.lock);
    put!(
        text,
        ". {} form: {} bytes, {}, seed {}{}; {} processors ({}), Linux {}; links measured before: {}.\n",
        plan.form.name(),
        plan.content_bytes,
        repetitions(&sheet),
        plan.seed,
        if plan.scale.slows() { format!(", rates divided by {}", plan.scale) } else { String::new() },
        machine["processors"],
        cell(machine["processor"].as_str().unwrap_or("unknown")),
        machine["kernel"].as_str().unwrap_or("unknown"),
        LinksMeasured::of(lock),
    );
    let busy = results.runs.iter().filter(|run| run.busy.is_some_and(|busy| busy > limit::BUSY_MAX)).count();
    if busy > 0 {
        put!(
            text,
            "\nIn {busy} of {} runs the processors were at work more than 90 % of the time: they, and not the links, may have been the limit there.\n",
            results.runs.len()
        );
    }
    for event in &plan.events {
        put!(text, "\n- {}", cell(&event.about(&plan.topology)));
    }
    if !plan.events.is_empty() {
        text.push('\n');
    }
    if !plan.claims.is_empty() {
        put!(text, "\n| claim | both sides | verdict | why |\n| --- | --- | --- | --- |\n");
        for (claim, verdict) in plan.claims.iter().zip(sheet.verdicts()) {
            let sides = match &verdict {
                Verdict::Holds(values) | Verdict::Fails(values) => {
                    values.iter().map(|value| short(*value)).collect::<Vec<_>>().join(" and ")
                }
                Verdict::Unknown => "a cell has no result, or no bound".into(),
            };
            let why = claim.why.as_deref().unwrap_or_default();
            put!(text, "| `{}` | {sides} | {} | {} |\n", claim.text, word(&verdict), cell(why));
        }
    }
    put!(
        text,
        "\n| cell | runs | goodput, Mbit/s | time, s | cpu: peers + routing + wires, s/GiB | bound, Mbit/s | fluid, Mbit/s | limit |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n"
    );
    for (each, bounds) in &sheet.cells {
        let shown = |measure| {
            sheet.summary(measure, each).map_or("\u{2013}".to_owned(), |found| {
                let width = found.half_width.map_or(String::new(), |width| format!(" \u{b1} {}", short(width)));
                format!("{}{width}", short(found.mean))
            })
        };
        put!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
            plan.name(each),
            sheet.summary(Measure::Goodput, each).map_or(0, |found| found.count),
            shown(Measure::Goodput),
            shown(Measure::Time),
            processors(&sheet, each),
            carried(bounds.goodput_mbit, ""),
            carried(bounds.fluid_mbit, ""),
            limit::limit(plan, each, &results.runs),
        );
    }
    for run in results.runs.iter().filter(|run| run.failed.is_some()) {
        put!(
            text,
            "\nRun {} of {} failed: {}\n",
            run.repetition + 1,
            run.cell,
            cell(run.failed.as_deref().unwrap_or_default())
        );
    }
}

/// Processor time of a cell, and whose it was.
fn processors(sheet: &Sheet<'_>, cell: &Cell) -> String {
    let mean = |measure| sheet.summary(measure, cell).map(|found| short(found.mean));
    let parts: Option<Vec<String>> =
        [Measure::CpuPeers, Measure::CpuNetwork, Measure::CpuWires].into_iter().map(mean).collect();
    match (mean(Measure::Cpu), parts) {
        (Some(all), Some(parts)) => format!("{all}: {}", parts.join(" + ")),
        _ => "\u{2013}".into(),
    }
}

/// How often the cells that were run at all were run, whatever the plan says.
fn repetitions(sheet: &Sheet<'_>) -> String {
    let counts = sheet.cells.iter().map(|(cell, _)| sheet.results.by_repetition(Measure::Time, cell).len());
    let counts: Vec<usize> = counts.filter(|count| *count > 0).collect();
    match (counts.iter().min(), counts.iter().max()) {
        (Some(1), Some(1)) => "1 repetition".into(),
        (Some(least), Some(most)) if least == most => format!("{most} repetitions"),
        (Some(least), Some(most)) => format!("{least} to {most} repetitions"),
        _ => "no repetition".into(),
    }
}

/// Text that stays within a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
