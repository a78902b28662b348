//! `net`: SCION networks on this machine.

mod check;
mod link;
mod up;

use std::path::Path;

use anabranch_asnet::network::NetworkError;
use anabranch_asnet::router::RouterError;
use anabranch_asnet::topology::Topology;

use crate::cli::NetCommand;
use crate::exit::{Code, Failure};
use crate::output::Chatter;

/// Runs the command.
pub fn run(command: NetCommand, chatter: Chatter) -> Result<Code, Failure> {
    match command {
        NetCommand::Up(flags) => up::run(&flags, chatter),
        NetCommand::Link(flags) => link::run(&flags),
        NetCommand::Check(flags) => check::run(&flags, chatter),
    }
}

/// Reads a topology file. What is wrong with it is told with its line.
fn load(path: &Path) -> Result<Topology, Failure> {
    Topology::load(path).map_err(Failure::input)
}

fn not_started(error: &NetworkError) -> Failure {
    let code = match error {
        NetworkError::Bind { .. } | NetworkError::BindApi(..) | NetworkError::Router(RouterError::Bind { .. }) => {
            Code::Network
        }
        _ => Code::Failed,
    };
    Failure::new(code, error)
}
