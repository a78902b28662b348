//! Why a network does not start, or does not do what it is told.

use std::net::SocketAddr;

use anabranch_paths::IsdAs;

use crate::control::LookupError;
use crate::link::ShapeError;
use crate::router::RouterError;

/// Why a network does not start, or does not do what it is told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Not in the topology.
    #[error("AS {0} is not in the topology: name one that is")]
    UnknownAs(IsdAs),
    /// Not run by this process.
    #[error("AS {0} does not run in this process: ask the one that runs it")]
    NotHere(IsdAs),
    /// Processes that do not share a secret drop each other's packets.
    #[error("a part of a network needs a secret, the same for all parts")]
    NoSecret,
    /// A router does not work.
    #[error(transparent)]
    Router(#[from] RouterError),
    /// An address that cannot be had.
    #[error("the {what} of {isd_as} cannot use {address}: {error}; is another network running?")]
    Bind {
        /// Daemon or control service.
        what: &'static str,
        /// Of which AS.
        isd_as: IsdAs,
        /// Where.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// The control API's address cannot be had.
    #[error("the control API cannot use {0}: {1}; choose another address")]
    BindApi(SocketAddr, std::io::Error),
    /// The system refuses threads, descriptors or random numbers.
    #[error("the system refuses what a network needs: {0}")]
    System(#[from] std::io::Error),
    /// A service cannot be.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// No end of a link.
    #[error("`{0}` is no end of a link: write an AS as in 1-ff00:0:110, or an interface as in 1-ff00:0:110#3")]
    BadEnd(String),
    /// No such link.
    #[error("no link joins {0}: `anabranch net status` shows which there are")]
    NoLink(String),
    /// Parallel links.
    #[error("several links join {0}: name one of them by its interfaces: {1}")]
    SeveralLinks(String, String),
    /// No such link.
    #[error("the topology has no link {0}")]
    LinkIndex(usize),
    /// No shape that a link can have.
    #[error("{0}")]
    Shape(ShapeError),
    /// A service that does not end.
    #[error("the daemon of {0} does not stop: try again")]
    StillRunning(IsdAs),
}
