//! `paths`: lists the paths to a SCION destination.

use crate::cli::PathsFlags;
use crate::exit::{Code, Failure};

/// Runs the command.
pub fn run(_flags: PathsFlags) -> Result<Code, Failure> {
    Err(Failure::new(Code::Failed, "paths are not looked up yet"))
}
