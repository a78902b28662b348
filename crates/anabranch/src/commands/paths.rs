//! `paths`: lists the paths to a SCION destination.

use std::time::SystemTime;

use crate::cli::PathsFlags;
use crate::exit::{Code, Failure};
use crate::{output, path_lookup, run};

/// Runs the command.
pub fn run(flags: &PathsFlags) -> Result<Code, Failure> {
    run::block_on(async {
        let list = path_lookup::find(&flags.path, &flags.destination).await?.list;
        if flags.json {
            output::line(list.json())?;
        } else {
            output::raw(list.text(SystemTime::now()).as_bytes())?;
        }
        Ok(Code::Success)
    })
}
