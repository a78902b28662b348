//! Why there are no paths, and what to do about it.

use anabranch_paths::IsdAs;
use anabranch_scion_wire::proto::grpc::Status;

/// Why a lookup brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// Nobody answers where a server should be.
    #[error("no {server} answers at {address} ({reason}): {}", .server.remedy())]
    Unreachable {
        /// Which one.
        server: Server,
        /// Where.
        address: String,
        /// What the system says.
        reason: String,
    },
    /// No answer in time.
    #[error("the {server} at {address} did not answer within {seconds} s: try again, or look at its log")]
    Deadline {
        /// Which one.
        server: Server,
        /// Where.
        address: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The server says no.
    #[error("the {server} at {address} refuses: {status}")]
    Refused {
        /// Which one.
        server: Server,
        /// Where.
        address: String,
        /// What it says.
        status: Status,
    },
    /// What answers is something else, or broken.
    #[error("what answers at {address} is no {server} ({reason}): {}", .server.remedy())]
    Garbled {
        /// Which one was looked for.
        server: Server,
        /// Where.
        address: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// Everybody answered; there is no path.
    #[error(
        "no path leads from {source_isd_as} to {destination}: check the ISD-AS, or wait until its segments are known"
    )]
    NoPath {
        /// Where we are.
        source_isd_as: IsdAs,
        /// Where none leads.
        destination: IsdAs,
    },
    /// A wildcard is no destination.
    #[error("{0} names no single AS: neither the ISD nor the AS of a destination may be 0")]
    Wildcard(IsdAs),
    /// The limit of destinations is reached, and all of them are in use.
    #[error("paths to {0} destinations are in use, which is the limit: close connections to some of them first")]
    TooManyDestinations(usize),
    /// The lookup was ended before it was done.
    #[error("path lookup has ended with the program's other tasks")]
    Ended,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The host's SCION daemon.
    Daemon,
    /// The AS's control service.
    ControlService,
}

impl Server {
    fn remedy(self) -> &'static str {
        match self {
            Self::Daemon => "start it, or name another with --sciond or SCION_DAEMON_ADDRESS",
            Self::ControlService => "check the addresses under `control_service` in topology.json",
        }
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Daemon => "SCION daemon",
            Self::ControlService => "SCION control service",
        })
    }
}
