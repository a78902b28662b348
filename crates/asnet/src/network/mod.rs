//! A whole network, or some of its ASes, in this process: routers, control services and daemons of a topology at work.
//!
//! [`Network::start`] returns once every socket is bound, so whoever asks a daemon after it gets an answer. Links are taken
//! down, brought up and reshaped while packets pass; the same by HTTP ([`Options::api`], [`client`]). Dropping the network
//! stops its threads and closes its sockets.
//!
//! One AS per process is the same with [`Options::only`]: all processes are given the whole topology and one secret, and
//! need no word from each other. A link between two processes has to be changed in both.
//!
//! ```no_run
//! use anabranch_asnet::network::{Network, Options};
//! use anabranch_asnet::topology::Topology;
//!
//! let topology = Topology::load("topologies/two-isds.toml".as_ref())?;
//! let network = Network::start(topology, Options::default())?;
//! for each in network.ases() {
//!     println!("{}: SCION_DAEMON={}", each.isd_as, each.daemon);
//! }
//! let link = network.find_link("1-ff00:0:110", Some("1-ff00:0:120"))?;
//! network.set_link_up(link, false)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod api;
pub mod client;
mod error;
mod services;

use std::collections::HashMap;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anabranch_paths::{Interface, IsdAs};

use crate::control::{self, ControlPlane, Keys, SECRET_LEN};
use crate::link::LinkShape;
use crate::router::{DataPlane, InterfaceConfig, InterfaceStats, LinkRole, Router, RouterConfig};
use crate::topology::{As, Link, Neighbour, Topology};

pub use error::NetworkError;
use services::ServiceThread;

/// How a network runs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Of the control plane. A topology that gives a lifetime for segments overrides the default one.
    pub control: control::Options,
    /// What all keys come from; by default drawn afresh, which fits one process only.
    pub secret: Option<[u8; SECRET_LEN]>,
    /// Threads that forward packets; by default one a core.
    pub workers: Option<usize>,
    /// The ASes that this process runs; by default all.
    pub only: Vec<IsdAs>,
    /// Whether links only claim their rates, delays and losses, since what is between the routers has them.
    pub unshaped: bool,
    /// Where the control API listens (HTTP with JSON, no passwords: use a loopback address); by default nowhere.
    pub api: Option<SocketAddr>,
}

/// A running network.
pub struct Network {
    state: Arc<State>,
    services: ServiceThread,
    api: Option<SocketAddr>,
}

/// What the control API works on too.
struct State {
    topology: Arc<Topology>,
    plane: Arc<ControlPlane>,
    routers: HashMap<IsdAs, Arc<Router>>,
    /// By the index of the link.
    links: Mutex<Vec<LinkState>>,
    /// Forwards for `routers` until it is dropped.
    _data: DataPlane,
}

/// What can change about a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkState {
    /// Whether packets pass.
    pub is_up: bool,
    /// Of the directions that leave end 0 and end 1.
    pub shapes: [LinkShape; 2],
}

/// Which directions of a link are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Both.
    Both,
    /// From end 0 (of a parent-child link, the parent) to end 1.
    There,
    /// From end 1 to end 0.
    Back,
}

impl Network {
    /// Binds all sockets and starts to work.
    pub fn start(topology: Topology, options: Options) -> Result<Self, NetworkError> {
        let topology = Arc::new(topology);
        let here = |isd_as: IsdAs| options.only.is_empty() || options.only.contains(&isd_as);
        if let Some(unknown) = options.only.iter().find(|isd_as| topology.get(**isd_as).is_none()) {
            return Err(NetworkError::UnknownAs(*unknown));
        }
        let secret = match options.secret {
            Some(secret) => secret,
            None if options.only.is_empty() => draw_secret()?,
            None => return Err(NetworkError::NoSecret),
        };
        let keys = Arc::new(Keys::new(&topology, &secret));
        let mut control = options.control;
        if let Some(lifetime) = topology.segment_lifetime
            && control.segment_lifetime == control::Options::default().segment_lifetime
        {
            control.segment_lifetime = lifetime;
        }
        let plane = Arc::new(ControlPlane::new(topology.clone(), keys.clone(), control));
        let data = DataPlane::start(options.workers)?;
        let ases: Vec<&As> = topology.ases().iter().filter(|each| here(each.isd_as)).collect();
        let mut routers = HashMap::new();
        for each in ases.iter().filter(|each| !each.routers.is_empty()) {
            // Every AS of the topology has a key.
            let Some(key) = keys.forwarding(each.isd_as) else { continue };
            routers.insert(each.isd_as, data.add_router(&router_config(&topology, each, key, options.unshaped))?);
        }
        let links = topology.links().iter().map(|link| LinkState { is_up: true, shapes: link.shapes }).collect();
        let state = Arc::new(State {
            topology: topology.clone(),
            plane: plane.clone(),
            routers,
            links: Mutex::new(links),
            _data: data,
        });
        let services = ServiceThread::start()?;
        for each in &ases {
            services.start_as(&plane, each)?;
        }
        let api = options.api.map(|address| services.start_api(address, state.clone())).transpose()?;
        Ok(Self { state, services, api })
    }

    /// The whole network, the parts that other processes run included.
    pub fn topology(&self) -> &Topology {
        &self.state.topology
    }

    /// The ASes that this process runs, in the order of the topology.
    pub fn ases(&self) -> impl Iterator<Item = &As> {
        self.topology().ases().iter().filter(|each| self.services.runs(each.isd_as))
    }

    /// Where the control API listens.
    pub fn api(&self) -> Option<SocketAddr> {
        self.api
    }

    /// The router of an AS that runs here and has links.
    pub fn router(&self, isd_as: IsdAs) -> Option<&Arc<Router>> {
        self.state.routers.get(&isd_as)
    }

    /// The control plane, for those who need no daemon in between.
    pub fn control(&self) -> &ControlPlane {
        &self.state.plane
    }

    /// The index of the one link between `a` and `b`, each an ISD-AS number or an interface (`1-ff00:0:110#3`); an
    /// interface alone is enough.
    pub fn find_link(&self, a: &str, b: Option<&str>) -> Result<usize, NetworkError> {
        self.state.find_link(a, b)
    }

    /// What a link is like now.
    pub fn link(&self, link: usize) -> Result<LinkState, NetworkError> {
        self.state.link(link)
    }

    /// Takes a link down, or up again: at both ends at once, as if somebody had cut it.
    pub fn set_link_up(&self, link: usize, is_up: bool) -> Result<(), NetworkError> {
        self.state.set_link_up(link, is_up)
    }

    /// Gives a link another shape. What ASes claim of it in segments stays as the topology has it.
    pub fn set_link_shape(&self, link: usize, direction: Direction, shape: LinkShape) -> Result<(), NetworkError> {
        self.state.set_link_shape(link, direction, shape)
    }

    /// Closes an AS's daemon and its connections.
    pub fn stop_daemon(&self, isd_as: IsdAs) -> Result<(), NetworkError> {
        self.services.stop_daemon(isd_as)
    }

    /// Opens it again, without any memory.
    pub fn start_daemon(&self, isd_as: IsdAs) -> Result<(), NetworkError> {
        let home = self.topology().get(isd_as).ok_or(NetworkError::UnknownAs(isd_as))?;
        self.services.start_daemon(&self.state.plane, home)
    }
}

impl State {
    fn find_link(&self, a: &str, b: Option<&str>) -> Result<usize, NetworkError> {
        let ends = [Some(a), b].into_iter().flatten().map(parse_end).collect::<Result<Vec<_>, _>>()?;
        let is_meant = |link: &Link| match ends[..] {
            [a] => link.ends.iter().any(|end| matches(a, *end)),
            [a, b] => {
                let [first, second] = link.ends;
                matches(a, first) && matches(b, second) || matches(a, second) && matches(b, first)
            }
            _ => false,
        };
        let links = self.topology.links();
        let found: Vec<usize> = (0..links.len()).filter(|index| is_meant(&links[*index])).collect();
        let asked = || [Some(a), b].into_iter().flatten().collect::<Vec<_>>().join(" and ");
        match found[..] {
            [link] => Ok(link),
            [] => Err(NetworkError::NoLink(asked())),
            _ => {
                let shown = |index: &usize| format!("{} and {}", links[*index].ends[0], links[*index].ends[1]);
                Err(NetworkError::SeveralLinks(asked(), found.iter().map(shown).collect::<Vec<_>>().join("; ")))
            }
        }
    }

    fn link(&self, link: usize) -> Result<LinkState, NetworkError> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.get(link).copied().ok_or(NetworkError::LinkIndex(link))
    }

    fn set_link_up(&self, link: usize, is_up: bool) -> Result<(), NetworkError> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.get_mut(link).ok_or(NetworkError::LinkIndex(link))?.is_up = is_up;
        for end in self.topology.links()[link].ends {
            if let Some(router) = self.routers.get(&end.isd_as) {
                router.set_up(end.id, is_up)?;
            }
        }
        self.plane.set_link_up(link, is_up, SystemTime::now());
        Ok(())
    }

    fn set_link_shape(&self, link: usize, direction: Direction, shape: LinkShape) -> Result<(), NetworkError> {
        let shape = shape.checked().map_err(NetworkError::Shape)?;
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let state = links.get_mut(link).ok_or(NetworkError::LinkIndex(link))?;
        for (at, end) in self.topology.links()[link].ends.into_iter().enumerate() {
            if !direction.includes(at) {
                continue;
            }
            state.shapes[at] = shape;
            if let Some(router) = self.routers.get(&end.isd_as) {
                router.set_shape(end.id, shape)?;
            }
        }
        Ok(())
    }

    /// Counts at an interface that this process runs.
    fn stats(&self, interface: Interface) -> Option<InterfaceStats> {
        self.routers.get(&interface.isd_as)?.stats(interface.id).ok()
    }
}

impl Direction {
    /// Whether packets that leave this end are meant.
    pub fn includes(self, end: usize) -> bool {
        match self {
            Self::Both => true,
            Self::There => end == 0,
            Self::Back => end == 1,
        }
    }
}

/// An end of a link as users name it: the AS, and perhaps the interface.
type End = (IsdAs, Option<u16>);

fn parse_end(text: &str) -> Result<End, NetworkError> {
    let bad = || NetworkError::BadEnd(text.to_owned());
    let (isd_as, id) = match text.split_once('#') {
        Some((isd_as, id)) => (isd_as, Some(id.parse().map_err(|_| bad())?)),
        None => (text, None),
    };
    Ok((isd_as.parse().map_err(|_| bad())?, id))
}

fn matches((isd_as, id): End, interface: Interface) -> bool {
    isd_as == interface.isd_as && id.is_none_or(|id| id == interface.id)
}

fn router_config(topology: &Topology, each: &As, forwarding_key: [u8; 16], unshaped: bool) -> RouterConfig {
    let shape = |shape: LinkShape| if unshaped { LinkShape { mtu: shape.mtu, ..LinkShape::default() } } else { shape };
    let interfaces = each.interfaces.iter().map(|interface| InterfaceConfig {
        id: interface.id,
        role: match interface.neighbour {
            Neighbour::Core => LinkRole::Core,
            Neighbour::Parent => LinkRole::Parent,
            Neighbour::Child => LinkRole::Child,
            Neighbour::Peer => LinkRole::Peer,
        },
        neighbor: interface.remote.isd_as,
        local: interface.local_address,
        remote: interface.remote_address,
        shape: shape(topology.links()[interface.link].shapes[interface.end]),
    });
    RouterConfig {
        isd_as: each.isd_as,
        forwarding_key,
        internal: each.routers.iter().map(|router| router.internal).collect(),
        host_ports: each.host_ports.clone(),
        // Services are reached over TCP inside the AS only.
        services: Vec::new(),
        interfaces: interfaces.collect(),
    }
}

/// From the system's own source.
fn draw_secret() -> Result<[u8; SECRET_LEN], NetworkError> {
    let mut secret = [0; SECRET_LEN];
    std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut secret))?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_unshaped_router_keeps_the_mtu_alone() {
        let text = "[as.'1-1']\ncore = true\n[as.'1-2']\n[[link]]\nparent = '1-1'\nchild = '1-2'\nrate = '1 Mbit/s'\ndelay = '9 ms'\nmtu = 1300\n";
        let topology = Topology::from_toml("two.toml", text).unwrap();
        let shape = |unshaped| router_config(&topology, &topology.ases()[0], [0; 16], unshaped).interfaces[0].shape;
        assert_eq!((shape(false).rate_bps, shape(false).delay), (Some(1_000_000), Duration::from_millis(9)));
        assert!(shape(true).is_transparent());
        assert_eq!(shape(true).mtu, 1300);
    }
}
