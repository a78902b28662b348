//! `net`: SCION networks on this machine.

use crate::cli::NetCommand;
use crate::exit::{Code, Failure};

/// Runs the command.
pub fn run(_command: NetCommand) -> Result<Code, Failure> {
    Err(Failure::new(Code::Failed, "networks are not run yet"))
}
