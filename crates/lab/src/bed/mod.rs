//! A network of namespaces on this machine: every AS one, every host one, and a [`Wire`] for every link between ASes.
//!
//! The same wires carry whichever routing runs above: FRR's BGP ([`bgp`]), SCION's control services and routers ([`scion`]),
//! or static routes. Nothing of it reaches the machine's own network. Dropped, everything ends and goes; what a killed lab
//! leaves is removed by the next one ([`Lease`]).

mod addresses;
mod bgp;
mod calibrate;
mod error;
mod leftovers;
pub(crate) mod program;
mod scion;

use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::Topology;
use anabranch_paths::IsdAs;

use crate::netns::{Namespace, NetnsError};
use crate::routes::Routes;
use crate::wire::{Wire, WireUse};

pub(crate) use bgp::daemon;
pub use calibrate::{Calibration, Measured};
pub use error::BedError;
pub use leftovers::Lease;
use leftovers::PREFIX;
use program::Program;

/// Bytes of IP and UDP around a SCION packet: links of topologies count the packet alone, wires all of it.
const UNDERLAY_BYTES: u16 = 28;

/// How packets find their way between ASes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Routing {
    /// SCION, with our control services and routers.
    Scion,
    /// BGP, one path to each AS.
    Bgp,
    /// BGP, equally good paths shared by a hash over addresses and ports.
    BgpMultipath,
    /// Static routes along the ways that BGP would take.
    Plain,
}

impl Routing {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Scion, Self::Bgp, Self::BgpMultipath, Self::Plain];

    /// As plans write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scion => "scion",
            Self::Bgp => "bgp",
            Self::BgpMultipath => "bgp-multipath",
            Self::Plain => "plain",
        }
    }
}

/// What a network is made of.
pub struct Setup<'a> {
    /// ASes and links.
    pub topology: &'a Topology,
    /// How packets find their way.
    pub routing: Routing,
    /// The AS of each host, by its place in the topology.
    pub hosts: &'a [usize],
    /// The program whose `net up` routes SCION.
    pub program: &'a Path,
    /// Where logs go; it is there.
    pub logs: &'a Path,
    /// Decides which packets are lost.
    pub seed: u64,
}

/// A running network.
pub struct Bed {
    // In this order they go: who speaks, the wires, the namespaces.
    programs: Vec<Program>,
    wires: Vec<Wire>,
    hosts: Vec<Host>,
    ases: Vec<Namespace>,
    links: Vec<String>,
}

/// A host of the network.
pub struct Host {
    /// Where it is.
    pub namespace: Namespace,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its AS.
    pub isd_as: IsdAs,
    /// Where the daemon of its AS listens, if SCION runs there.
    pub daemon: Option<String>,
}

impl Bed {
    /// Makes all of it and waits until packets find their way.
    ///
    /// # Errors
    /// When the system refuses, a program is missing or does not start, or routing does not converge.
    pub fn build(lease: &Lease, setup: &Setup<'_>, cancel: &AtomicBool) -> Result<Self, BedError> {
        let topology = setup.topology;
        let mut per_as = vec![0; topology.ases().len()];
        setup.hosts.iter().for_each(|at| per_as[*at] += 1);
        addresses::check(topology.ases().len(), topology.links().len(), &per_as)?;
        let own = std::process::id();
        let named = |kind: &str, number: usize| Namespace::named(format!("{PREFIX}{own}-{kind}{number}"));
        let links = topology.links().iter().map(|link| format!("{} - {}", link.ends[0], link.ends[1])).collect();
        let mut bed = Self { programs: Vec::new(), wires: Vec::new(), hosts: Vec::new(), ases: Vec::new(), links };
        for at in 0..topology.ases().len() {
            let namespace = named("as", at)?;
            namespace.ip_batch(&format!("addr add {}/32 dev lo\n", addresses::own(at)))?;
            namespace.enter(|| forwarding(setup.routing))?;
            bed.ases.push(namespace);
            check(cancel)?;
        }
        for (number, link) in topology.links().iter().enumerate() {
            bed.join(topology, number, link.shapes, setup.seed)?;
        }
        let mut numbers = vec![0; per_as.len()];
        for (host, at) in setup.hosts.iter().enumerate() {
            let address = addresses::host(*at, numbers[*at]);
            numbers[*at] += 1;
            let host = attach(&bed.ases[*at], named("host", host)?, address, *at, topology, setup.routing)?;
            bed.hosts.push(host);
            check(cancel)?;
        }
        bed.route(lease, setup, cancel)?;
        Ok(bed)
    }

    /// Puts the wire of a link between its ASes.
    fn join(&mut self, topology: &Topology, number: usize, shapes: [LinkShape; 2], seed: u64) -> Result<(), BedError> {
        let device = format!("link{number}");
        // Both ends of a checked topology's links are in it.
        let ends = topology.links()[number].ends.map(|end| topology.index(end.isd_as).unwrap_or_default());
        let shapes = shapes.map(on_the_wire);
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        self.wires.push(Wire::new(ends.map(|at| &self.ases[at]), &device, shapes, seed)?);
        for (end, at) in ends.into_iter().enumerate() {
            let (address, mtu) = (addresses::link(number, end), shapes[end].mtu);
            self.ases[at].ip_batch(&format!(
                "addr add {address}/30 dev {device}\nlink set {device} mtu {mtu} txqueuelen 1000 up\n"
            ))?;
        }
        Ok(())
    }

    fn route(&mut self, lease: &Lease, setup: &Setup<'_>, cancel: &AtomicBool) -> Result<(), BedError> {
        let topology = setup.topology;
        match setup.routing {
            Routing::Plain => {
                let routes = Routes::new(topology);
                for (at, namespace) in self.ases.iter().enumerate() {
                    namespace.ip_batch(&static_routes(topology, &routes, at))?;
                }
            }
            Routing::Bgp | Routing::BgpMultipath => {
                let multipath = setup.routing == Routing::BgpMultipath;
                for (at, namespace) in self.ases.iter().enumerate() {
                    let folder = lease.folder().join(format!("as{at}"));
                    self.programs.extend(bgp::start(topology, at, multipath, namespace, [&folder, setup.logs])?);
                }
                let mut wanted = setup.hosts.to_vec();
                wanted.sort_unstable();
                wanted.dedup();
                bgp::converge(&self.ases, &wanted, setup.logs, cancel)?;
            }
            Routing::Scion => {
                let [file, secret] = ["network.toml", "network.key"].map(|name| lease.folder().join(name));
                let text = scion::topology_file(topology);
                for path in [&file, &setup.logs.join("network.toml")] {
                    fs::write(path, &text).map_err(|error| BedError::file(path, error))?;
                }
                self.programs = scion::start(topology, &self.ases, setup.program, [&file, &secret, setup.logs])?;
            }
        }
        check(cancel)
    }

    /// The hosts, in the order that was asked for.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The wires, in the order of the topology's links.
    pub fn wires(&self) -> &[Wire] {
        &self.wires
    }

    /// What passed every wire so far.
    pub fn used(&self) -> Vec<[WireUse; 2]> {
        self.wires.iter().map(Wire::used).collect()
    }

    /// Gives a direction of a link another shape, as topologies count it.
    pub fn set_shape(&self, link: usize, way: usize, shape: LinkShape) {
        self.wires[link].set_shape(way, on_the_wire(shape));
    }

    /// Whether all wires carry and all programs run.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&mut self) -> Result<(), BedError> {
        if let Some(ended) = self.programs.iter_mut().find_map(|each| each.has_ended().then_some(&*each)) {
            return Err(ended.failure("ended"));
        }
        let failed = self.wires.iter().zip(&self.links).find_map(|(wire, link)| Some((link, wire.failure()?)));
        failed.map_or(Ok(()), |(link, reason)| Err(BedError::Wire { link: link.clone(), reason }))
    }

    /// The routes of every AS, as text for people.
    pub fn routes(&self) -> String {
        let mut text = String::new();
        for (at, namespace) in self.ases.iter().enumerate() {
            let output = namespace.command("ip").args(["route", "show"]).output();
            let shown = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            // Writing to a string does not fail.
            let _ = writeln!(text, "# AS number {}, {}\n{shown}", at + 1, addresses::network(at));
        }
        text
    }

    /// Ends what routes, and says what processor time that took, and the wires: seconds.
    pub fn end(mut self) -> (f64, f64) {
        let wires = self.wires.iter().map(|wire| wire.cpu().as_secs_f64()).sum();
        self.programs.iter_mut().for_each(Program::interrupt);
        (self.programs.iter_mut().map(|program| program.end().cpu).sum(), wires)
    }
}

/// A link's shape as its wire has it: the same rate, with the headers around SCION packets in it.
fn on_the_wire(shape: LinkShape) -> LinkShape {
    LinkShape { mtu: shape.mtu.saturating_add(UNDERLAY_BYTES), ..shape }
}

fn check(cancel: &AtomicBool) -> Result<(), BedError> {
    if cancel.load(Ordering::Relaxed) { Err(BedError::Canceled) } else { Ok(()) }
}

/// Lets the namespace that the thread is in pass packets on, whichever way they come.
fn forwarding(routing: Routing) -> Result<(), BedError> {
    // By addresses and ports (RFC 2992 has them by addresses): connections between two hosts are spread too.
    let hash = if routing == Routing::BgpMultipath { "1" } else { "0" };
    let settings = [
        ("ip_forward", "1"),
        ("conf/all/rp_filter", "0"),
        ("conf/default/rp_filter", "0"),
        ("fib_multipath_hash_policy", hash),
    ];
    for (name, value) in settings {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        fs::write(&path, value).map_err(|error| BedError::file(&path, error))?;
    }
    Ok(())
}

/// Joins a host to its AS by a link without limits. Its one route pins TCP to cubic, whatever the machine's default is.
fn attach(
    home: &Namespace,
    namespace: Namespace,
    address: Ipv4Addr,
    at: usize,
    topology: &Topology,
    routing: Routing,
) -> Result<Host, BedError> {
    let (device, gateway) = (format!("h{}", address.octets()[3]), addresses::own(at));
    home.ip_batch(&format!(
        "link add {device} type veth peer name eth0 netns {}\nlink set {device} up\nroute add {address}/32 dev {device}\n",
        namespace.name()
    ))?;
    namespace.ip_batch(&format!(
        "addr add {address}/32 dev eth0\nlink set eth0 up\nroute add {gateway}/32 dev eth0\n\
         route add default via {gateway} dev eth0 src {address} congctl cubic\n"
    ))?;
    let isd_as = topology.ases()[at].isd_as;
    let daemon = (routing == Routing::Scion).then(|| format!("{gateway}:{}", scion::DAEMON_PORT));
    Ok(Host { namespace, address, isd_as, daemon })
}

/// Routes of one AS along the modelled ways.
fn static_routes(topology: &Topology, routes: &Routes, at: usize) -> String {
    let mut text = String::new();
    for to in 0..topology.ases().len() {
        let Some(link) = routes.next_links(at, to).first() else { continue };
        let ends = topology.links()[*link].ends.map(|end| topology.index(end.isd_as));
        let far = usize::from(ends[0] == Some(at));
        let (network, gateway) = (addresses::network(to), addresses::link(*link, far));
        // Writing to a string does not fail.
        let _ = writeln!(text, "route add {network}/24 via {gateway}");
    }
    text
}

/// Why a system call failed, as this module's error.
fn system(what: &str) -> impl FnOnce(std::io::Error) -> BedError {
    move |source| BedError::Netns(NetnsError::System { what: what.to_owned(), source })
}
