//! Networks as files: who is there, and what joins them.
//!
//! A [`Topology`] is checked: every AS has a way to a core, every link joins two interfaces that nobody else uses, and
//! every router, service and host has an address. What the file leaves out is filled in the same way each time:
//! interfaces take the lowest free numbers in the order of the links, ASes one /24 of loopback addresses each in the
//! order of the file.
//!
//! Our own format is TOML; scionproto's `.topo` YAML is read too. `docs/topology.md` describes both.
//!
//! ```
//! use anabranch_asnet::topology::Topology;
//!
//! let topology = Topology::from_toml("two.toml", r#"
//!     [as."1-ff00:0:110"]
//!     core = true
//!     [as."1-ff00:0:111"]
//!     hosts = ["alice"]
//!     [[link]]
//!     parent = "1-ff00:0:110"
//!     child = "1-ff00:0:111"
//!     rate = "10 Mbit/s"
//!     delay = "20 ms"
//! "#)?;
//! let leaf = topology.get("1-ff00:0:111".parse().unwrap()).unwrap();
//! assert_eq!(leaf.daemon.to_string(), "127.16.1.1:30255");
//! # Ok::<(), anabranch_asnet::topology::TopologyError>(())
//! ```

mod build;
pub mod document;
mod error;
mod from_toml;
mod from_topo;
pub mod limits;
mod props;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use anabranch_paths::{Interface, IsdAs};

use crate::link::LinkShape;

pub use error::{TopologyError, TopologyErrorKind};
pub use props::{PropError, parse_duration, parse_size, set_property, show_properties};

/// A checked network.
#[derive(Clone, Debug)]
pub struct Topology {
    /// What it calls itself: the file's `name`, or the file's name.
    pub name: String,
    /// How long segments live, where the file says so.
    pub segment_lifetime: Option<Duration>,
    ases: Vec<As>,
    links: Vec<Link>,
    by_number: HashMap<IsdAs, usize>,
}

/// One AS.
#[derive(Clone, Debug, PartialEq)]
pub struct As {
    /// Its number.
    pub isd_as: IsdAs,
    /// Whether it is in the core of its ISD.
    pub core: bool,
    /// Largest SCION packet inside the AS, header included, in bytes.
    pub mtu: u16,
    /// Where its control service listens (TCP).
    pub control: SocketAddr,
    /// Where its daemon listens (TCP).
    pub daemon: SocketAddr,
    /// UDP ports of its end hosts.
    pub host_ports: RangeInclusive<u16>,
    /// Its border routers.
    pub routers: Vec<Router>,
    /// Its interfaces, by number.
    pub interfaces: Vec<AsInterface>,
    /// Its named hosts.
    pub hosts: Vec<Host>,
}

/// A border router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Router {
    /// Its name inside the AS, as topology files label it.
    pub name: String,
    /// Where it takes packets from its own AS (UDP).
    pub internal: SocketAddr,
}

/// A host with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name, unique in its AS.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
}

/// What the AS at the other end of a link is to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neighbour {
    /// Both are core ASes.
    Core,
    /// It is above.
    Parent,
    /// It is below.
    Child,
    /// It is beside.
    Peer,
}

/// What kind of link joins two ASes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkType {
    /// Two core ASes.
    Core,
    /// End 0 is the parent of end 1.
    ParentChild,
    /// Neither is above the other.
    Peering,
}

/// One end of a link, seen from its AS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsInterface {
    /// Its number, from 1, unique in its AS.
    pub id: u16,
    /// The link: an index of [`Topology::links`].
    pub link: usize,
    /// Which of the link's ends this is: 0 or 1.
    pub end: usize,
    /// Index of the border router that has it.
    pub router: usize,
    /// What the AS at the other end is to this one.
    pub neighbour: Neighbour,
    /// The other end.
    pub remote: Interface,
    /// Where the router takes packets from the link (UDP).
    pub local_address: SocketAddr,
    /// Where the router at the other end does.
    pub remote_address: SocketAddr,
}

/// A link between two ASes.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// What kind.
    pub kind: LinkType,
    /// Its two ends.
    pub ends: [Interface; 2],
    /// The UDP addresses of both ends.
    pub underlay: [SocketAddr; 2],
    /// What both directions do to packets: to those that leave end 0, and to those that leave end 1.
    pub shapes: [LinkShape; 2],
    /// Line of the file that makes it.
    pub line: usize,
}

impl Topology {
    /// Reads a file: YAML if its name ends in `.topo`, `.yml` or `.yaml`, else TOML.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let file = path.display().to_string();
        let unreadable = |error: std::io::Error| {
            let kind = TopologyErrorKind::Unreadable(error.to_string());
            TopologyError { file: file.clone(), line: 0, kind }
        };
        let text = read_bounded(path).map_err(unreadable)?;
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("topo" | "yml" | "yaml") => Self::from_topo(&file, &text),
            _ => Self::from_toml(&file, &text),
        }
    }

    /// Reads our own format. Errors name `file`.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, TopologyError> {
        Self::read(file, text, from_toml::read)
    }

    /// Reads scionproto's `.topo` format. Errors name `file`.
    pub fn from_topo(file: &str, text: &str) -> Result<Self, TopologyError> {
        Self::read(file, text, from_topo::read)
    }

    fn read(
        file: &str,
        text: &str,
        read: impl FnOnce(&str) -> document::Located<build::Draft>,
    ) -> Result<Self, TopologyError> {
        if text.len() > limits::FILE_SIZE_MAX {
            return Err(document::locate(file, (1, TopologyErrorKind::FileTooLarge)));
        }
        let mut topology = read(text).and_then(build::build).map_err(|found| document::locate(file, found))?;
        if topology.name.is_empty() {
            let stem = Path::new(file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
            topology.name = stem.unwrap_or_else(|| "network".into());
        }
        Ok(topology)
    }

    /// All ASes in the order of the file.
    pub fn ases(&self) -> &[As] {
        &self.ases
    }

    /// All links in the order of the file.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The AS of this number.
    pub fn get(&self, isd_as: IsdAs) -> Option<&As> {
        self.by_number.get(&isd_as).map(|index| &self.ases[*index])
    }

    /// The index of the AS in [`ases`](Self::ases).
    pub fn index(&self, isd_as: IsdAs) -> Option<usize> {
        self.by_number.get(&isd_as).copied()
    }

    /// The interface, as its AS sees it.
    pub fn interface(&self, interface: Interface) -> Option<&AsInterface> {
        self.get(interface.isd_as)?.interface(interface.id)
    }
}

impl As {
    /// The interface of this number.
    pub fn interface(&self, id: u16) -> Option<&AsInterface> {
        self.interfaces.binary_search_by_key(&id, |interface| interface.id).ok().map(|at| &self.interfaces[at])
    }
}

/// The text of a file, if it is no larger than a topology may be (and one byte, which the caller notices).
fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(limits::FILE_SIZE_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}
