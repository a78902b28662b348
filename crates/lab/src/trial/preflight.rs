//! What can be known before anything runs: cells, programs and folders. With several plans it is all told before the first one begins,
//! and not after hours of others.

use std::collections::HashSet;

use super::{Options, TrialError, chosen, hold, lock};
use crate::bed::{Calibration, daemon};
use crate::plan::{Cell, Plan};

/// Whether all of these plans can begin.
///
/// # Errors
/// What the first of them that cannot is missing.
pub fn preflight(plans: &[Plan], options: &Options) -> Result<(), TrialError> {
    let mut ids = HashSet::new();
    if let Some(twice) = plans.iter().find(|plan| !ids.insert(&plan.id)) {
        return Err(TrialError::SameId(twice.id.clone()));
    }
    // What costs no look at the machine comes first.
    plans.iter().try_for_each(|plan| chosen(plan, &options.only).map(drop))?;
    plans.iter().try_for_each(|plan| begins(plan, options).map(drop))
}

/// The cells of a plan that are to be run, if it can begin.
pub(super) fn begins(plan: &Plan, options: &Options) -> Result<Vec<Cell>, TrialError> {
    if let Some(why) = &plan.sim {
        return Err(TrialError::Simulated { id: plan.id.clone(), why: why.clone() });
    }
    let cells = chosen(plan, &options.only)?;
    if cells.iter().any(|cell| plan.candidates[cell.candidate].routing.is_bgp()) {
        ["zebra", "bgpd"].into_iter().try_for_each(|name| daemon(name).map(drop))?;
    }
    plan.clients(&cells).into_iter().try_for_each(|client| client.check())?;
    takes(plan, options)?;
    Ok(cells)
}

/// Whether the folder of a plan's results takes more of them.
fn takes(plan: &Plan, options: &Options) -> Result<(), TrialError> {
    let folder = options.out.join(&plan.id);
    if !folder.join(lock::FILE).exists() {
        return Ok(());
    }
    if !options.resume {
        return Err(TrialError::Occupied(folder));
    }
    hold(&folder)?;
    let ours = lock::make(plan, options, &Calibration::default());
    match lock::difference(&ours, &lock::read(&folder)?) {
        Some(what) => Err(TrialError::Other { folder, what }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn plan(id: &str, more: &str) -> Plan {
        let topology = "[as.'1-1']\ncore = true\n[as.'1-2']\n[[link]]\nparent = '1-1'\nchild = '1-2'\n";
        let text = format!(
            "id = \"{id}\"\ntitle = \"X\"\ntopology = \"net.toml\"\n{more}\n[content]\nsize = \"1 MB\"\n\
             [[candidate]]\nname = \"plain\"\nrouting = \"plain\"\n\
             [[peers]]\nrole = \"seed\"\nin = [\"1-1\"]\n[[peers]]\nin = [\"1-2\"]\n"
        );
        let open = |source: crate::plan::NetworkSource<'_>| {
            let read = anabranch_asnet::topology::Topology::from_toml(source.name(), topology);
            Ok((read.unwrap(), topology.to_owned()))
        };
        Plan::read(Path::new("x.toml"), &text, open).unwrap()
    }

    #[test]
    fn what_a_later_plan_lacks_is_told_before_the_first_one() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            program: PathBuf::from("/proc/self/exe"),
            out: dir.path().to_path_buf(),
            only: Vec::new(),
            repeat: None,
            resume: false,
            jobs: None,
        };
        let plans = [plan("first", ""), plan("second", "")];
        preflight(&plans, &options).unwrap();
        // The folder of the second is taken.
        let lock = lock::make(&plans[1], &options, &Calibration::default());
        fs::create_dir_all(dir.path().join("second")).unwrap();
        let file = dir.path().join("second").join(lock::FILE);
        fs::write(&file, lock.to_string()).unwrap();
        let said = |plans: &[Plan], options: &Options| preflight(plans, options).unwrap_err().to_string();
        assert!(said(&plans, &options).contains("second holds results: go on with them (--resume)"));
        let on = Options { resume: true, ..options.clone() };
        let held = hold(&dir.path().join("second")).unwrap();
        assert!(said(&plans, &on).contains("second is being filled by another run of the lab"));
        drop(held);
        preflight(&plans, &on).unwrap();
        // They are of another plan.
        fs::write(&file, lock.to_string().replace("\"content_bytes\":1000000", "\"content_bytes\":7")).unwrap();
        assert!(said(&plans, &on).contains("results of something else (the size of the content differs)"));
        let none = Options { only: vec!["none".into()], ..options.clone() };
        assert!(said(&plans, &none).contains("`--only none` is in no cell of first"));
        let twice = [plan("first", ""), plan("first", "")];
        assert!(said(&twice, &options).contains("two of these plans have the id first"));
        let sim = [plan("first", ""), plan("third", "sim = \"too long\"")];
        assert!(said(&sim, &options).contains("third is for virtual time (too long)"));
    }
}
