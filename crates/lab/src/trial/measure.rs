//! Which links are measured before a plan's runs, and once only.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::bed::{Asked, Bed, BedError, Calibration, Lease, Routing, Setup};
use crate::plan::{Cell, Plan};

/// What networks were measured at, by the texts of their topologies and what was asked of them: plans that follow each other and share
/// one need it once.
pub type Measurements = HashMap<(String, String), Calibration>;

/// All that the links of these cells are to be, their variants in place; what several cells share stands there once.
pub(super) fn asked(plan: &Plan, cells: &[Cell]) -> Vec<Asked> {
    let (mut seen, mut asked, mut variants) = (HashSet::new(), Vec::new(), HashSet::new());
    for cell in cells.iter().filter(|cell| variants.insert(cell.variant)) {
        let under = plan.under(cell);
        for (number, link) in under.topology.links().iter().enumerate() {
            for way in 0..2 {
                let shape = link.shapes[way];
                // What a queue holds and how long packets may be is not measured.
                let key = (number, way, shape.rate_bps, shape.delay, shape.jitter, shape.loss.to_bits());
                if seen.insert(key) {
                    let name = format!("{} > {}", link.ends[way], link.ends[1 - way]);
                    asked.push(Asked { link: number, way, name, shape });
                }
            }
        }
    }
    asked
}

/// Measures what is asked for over a network of its own, if an earlier plan has not.
pub(super) fn calibrate(
    measured: &mut Measurements,
    asked: &[Asked],
    plan: &Plan,
    lease: &Lease,
    (program, logs): (&Path, &Path),
    cancel: &AtomicBool,
) -> Result<Calibration, BedError> {
    let free = match measured.entry((plan.topology_text.clone(), format!("{asked:?}"))) {
        Entry::Occupied(known) => return Ok(known.get().clone()),
        Entry::Vacant(free) => free,
    };
    let setup = Setup {
        topology: &plan.topology,
        routing: Routing::Plain,
        hosts: &[],
        program,
        logs,
        seed: plan.seed,
        slot: 0,
    };
    let bed = Bed::build(lease, &setup, cancel)?;
    Ok(free.insert(bed.calibrate(cancel, asked)?).clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anabranch_asnet::topology::Topology;

    use super::*;

    const TOPOLOGY: &str =
        "[as.'1-1']\ncore = true\n[as.'1-2']\n[[link]]\nparent = '1-1'\nchild = '1-2'\nrate = '10 Mbit/s'\n";
    const PLAN: &str = "id = \"x\"\ntitle = \"X\"\ntopology = \"net.toml\"\n[content]\nsize = \"1 MB\"\n\
                        [[candidate]]\nname = \"a\"\nrouting = \"plain\"\n[[candidate]]\nname = \"b\"\nrouting = \"scion\"\n\
                        [[peers]]\nrole = \"seed\"\nin = [\"1-1\"]\n[[peers]]\nin = [\"1-2\"]\n";
    const VARIANTS: &str = "[[variant]]\nname = \"usual\"\nflags = [\"--x\"]\n[[variant]]\nname = \"long-queue\"\nlinks = { queue = \"1 MB\" }\n\
                            [[variant]]\nname = \"far\"\nlinks = { delay = \"5 ms\" }\n[[variant]]\nname = \"narrow\"\n\
                            [[variant.link]]\nbetween = [\"1-2\", \"1-1\"]\ndirection = \"there\"\nset = { rate = \"1 Mbit/s\", loss = \"1 %\" }\n";

    fn plan(text: &str) -> Plan {
        let open = |source: crate::plan::NetworkSource<'_>| {
            Ok((Topology::from_toml(source.name(), TOPOLOGY).unwrap(), TOPOLOGY.to_owned()))
        };
        Plan::read(Path::new("x.toml"), text, open).unwrap()
    }

    #[test]
    fn every_network_of_the_cells_is_measured_and_what_they_share_once() {
        let plan = plan(&format!("{PLAN}{VARIANTS}"));
        let shown = |cells: &[Cell]| {
            let all = asked(&plan, cells);
            let shape = |each: &Asked| (each.shape.rate_bps.unwrap(), each.shape.delay.as_millis(), each.shape.loss);
            all.iter().map(|each| (each.link, each.way, shape(each))).collect::<Vec<_>>()
        };
        let usual = [(0, 0, (10_000_000, 0, 0.0)), (0, 1, (10_000_000, 0, 0.0))];
        let far = [(0, 0, (10_000_000, 5, 0.0)), (0, 1, (10_000_000, 5, 0.0))];
        // From 1-2, the second end.
        let narrow = [(0, 1, (1_000_000, 0, 0.01))];
        let all: Vec<_> = usual.into_iter().chain(far).chain(narrow).collect();
        assert_eq!(shown(&plan.cells()), all);
        let of_far: Vec<Cell> = plan.cells().into_iter().filter(|cell| cell.variant == Some(2)).collect();
        assert_eq!(shown(&of_far), far);
        assert_eq!(asked(&plan, &of_far)[1].name, "1-2#1 > 1-1#1");
        assert_eq!(asked(&plan, &of_far)[1].shape.delay, Duration::from_millis(5));
    }
}
