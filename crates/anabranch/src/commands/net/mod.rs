//! `net`: SCION networks on this machine.

mod check;
mod link;
mod status;
mod up;

use std::path::Path;

use anabranch_asnet::network::NetworkError;
use anabranch_asnet::router::RouterError;
use anabranch_asnet::topology::Topology;

use crate::cli::NetCommand;
use crate::exit::{Code, Failure};
use crate::output::Chatter;

/// How two networks run at once.
const OTHER_NETWORK: &str =
    "end it, or put another `network = \"127.32.0.0\"` at the top of the topology, and give another --control";

/// Runs the command.
pub(crate) fn run(command: NetCommand, chatter: Chatter) -> Result<Code, Failure> {
    match command {
        NetCommand::Up(flags) => up::run(&flags, chatter),
        NetCommand::Status(flags) => status::run(&flags),
        NetCommand::Link(flags) => link::run(&flags, chatter),
        NetCommand::Check(flags) => check::run(&flags, chatter),
    }
}

/// Reads a topology file. What is wrong with it is told with its line.
fn load(path: &Path) -> Result<Topology, Failure> {
    Topology::load(path).map_err(Failure::input)
}

fn not_started(error: &NetworkError) -> Failure {
    let taken = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
    match error {
        NetworkError::Bind { error: why, .. } | NetworkError::Router(RouterError::Bind { error: why, .. })
            if taken(why) =>
        {
            let message = format!("{error} A network that runs is shown by `anabranch net status`: {OTHER_NETWORK}");
            Failure::new(Code::Network, message)
        }
        NetworkError::BindApi(..) => Failure::new(Code::Network, format!("{error} with --control")),
        NetworkError::Bind { .. } | NetworkError::Router(RouterError::Bind { .. }) => {
            Failure::new(Code::Network, error)
        }
        NetworkError::UnknownAs(_) => Failure::usage(error),
        _ => Failure::new(Code::Failed, error),
    }
}
