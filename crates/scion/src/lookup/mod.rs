//! Where paths come from: the host's daemon, or, where there is none, the control service of its AS; and who is who.
//!
//! [`PathLookup`] is what the rest of a program holds: paths to any destination, kept fresh. Under it a pure core
//! ([`manager`]) decides what to look up when, and a [`Source`] asks. Host names are [`names`]'s business.
//!
//! ```no_run
//! use anabranch_scion::lookup::{PathLookup, Source};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let lookup = PathLookup::start(Source::find(None)?).await?;
//! for path in lookup.paths("1-ff00:0:111".parse()?).await?.iter() {
//!     println!("{} {path}", path.id());
//! }
//! # Ok(())
//! # }
//! ```

pub mod convert;
mod daemon;
pub mod dns;
mod driver;
mod error;
pub mod manager;
pub mod names;
mod rpc;
mod segments;
pub mod topology;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::SystemTime;

use anabranch_paths::{Interface, IsdAs, ScionPath};

pub use daemon::{DAEMON_ADDRESS_DEFAULT, DAEMON_VARIABLES, Daemon, daemon_address_from_env};
pub use driver::{PathLookup, PathWatch};
pub use error::{LookupError, Server};
pub use segments::ControlService;

use topology::{TOPOLOGY_PATH_DEFAULT, Topology, TopologyError};

/// The ports that routers deliver to hosts without a dispatcher, unless their AS says otherwise.
pub const PORT_RANGE_DEFAULT: RangeInclusive<u16> = 31_000..=32_767;

/// The host's AS, as far as a host has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAs {
    /// Its name.
    pub isd_as: IsdAs,
    /// Whether it is a core AS.
    pub is_core: bool,
    /// Largest SCION packet inside it, in bytes.
    pub mtu: u16,
    /// Ports that its routers deliver to.
    pub ports: RangeInclusive<u16>,
    /// Its interfaces, and the address inside the AS of the router that has each.
    pub interfaces: BTreeMap<u16, SocketAddr>,
}

/// Who is asked for paths.
pub enum Source {
    /// The host's daemon.
    Daemon(Daemon),
    /// No daemon: the control service, and this program combines.
    ControlService(ControlService),
}

impl Source {
    /// The daemon at `daemon` (a flag's value), else the one that the environment names, else the one of
    /// `/etc/scion/topology.json` if there is such a file and no daemon at the usual address, else that daemon.
    pub fn find(daemon: Option<&str>) -> Result<Self, TopologyError> {
        if let Some(address) = daemon.map(str::to_owned).or_else(daemon_address_from_env) {
            return Ok(Self::Daemon(Daemon::new(address)));
        }
        let listens = DAEMON_ADDRESS_DEFAULT.parse().is_ok_and(|address: SocketAddr| {
            std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_millis(200)).is_ok()
        });
        let topology = Path::new(TOPOLOGY_PATH_DEFAULT);
        if listens || !topology.exists() {
            return Ok(Self::Daemon(Daemon::new(DAEMON_ADDRESS_DEFAULT)));
        }
        Ok(Self::ControlService(ControlService::new(&Topology::read(topology)?)))
    }

    /// The host's AS.
    pub async fn local_as(&self) -> Result<LocalAs, LookupError> {
        match self {
            Self::Daemon(daemon) => daemon.local_as().await,
            Self::ControlService(service) => Ok(service.local_as().clone()),
        }
    }

    /// The paths from `source` to `destination`; `refresh`: not from a cache.
    pub async fn paths(&self, source: IsdAs, destination: IsdAs, refresh: bool) -> Result<Vec<ScionPath>, LookupError> {
        match self {
            Self::Daemon(daemon) => daemon.paths(source, destination, refresh).await,
            Self::ControlService(service) => service.paths(destination, SystemTime::now()).await,
        }
    }

    /// Tells of an interface that is down, where anybody wants to know.
    pub async fn notify_interface_down(&self, interface: Interface) -> Result<(), LookupError> {
        match self {
            Self::Daemon(daemon) => daemon.notify_interface_down(interface).await,
            Self::ControlService(_) => Ok(()),
        }
    }
}
