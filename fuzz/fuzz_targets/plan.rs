//! Any text as a plan of the lab: what is accepted has cells, and an error names a line of the file.
#![no_main]

use std::path::Path;

use anabranch_asnet::topology::Topology;
use anabranch_lab::plan::{NetworkSource, Plan};
use libfuzzer_sys::fuzz_target;

const TOPOLOGY: &str = "[as.'1-1']\ncore = true\n[as.'1-2']\n[as.'1-3']\n[[link]]\nparent = '1-1'\nchild = '1-2'\n[[link]]\nparent = '1-1'\nchild = '1-3'\n";

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let lines = text.split(['\n', '\r']).count();
    let open = |_: NetworkSource<'_>| {
        let topology = Topology::from_toml("a topology", TOPOLOGY).map_err(|error| error.to_string())?;
        Ok((topology, TOPOLOGY.to_owned()))
    };
    match Plan::read(Path::new("file"), &text, open) {
        Ok(plan) => {
            let cells = plan.cells();
            let mut names: Vec<String> = cells.iter().map(|cell| plan.name(cell)).collect();
            names.sort();
            names.dedup();
            assert!(!cells.is_empty() && names.len() == cells.len(), "cells have names of their own");
            cells.iter().take(3).for_each(|cell| assert_eq!(plan.under(cell).cells(), cells, "a variant adds none"));
            plan.events.iter().for_each(|event| drop(event.about(&plan.topology)));
            plan.claims.iter().for_each(|claim| drop(claim.judge(&|_, _| Some(1.0))));
        }
        Err(error) => assert!((1..=lines + 1).contains(&error.line), "{error}"),
    }
});
