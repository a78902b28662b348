//! A network of namespaces on this machine: every AS one, every host one, and a [`Wire`] for every link between ASes.
//!
//! The same wires carry whichever routing runs above: FRR's BGP ([`bgp`]), SCION's control services and routers ([`scion`]),
//! or static routes. Nothing of it reaches the machine's own network. Dropped, everything ends and goes; what a killed lab
//! leaves is removed by the next one ([`Lease`]).

mod addresses;
mod bgp;
mod calibrate;
mod cross;
mod error;
mod leftovers;
pub(crate) mod program;
mod scion;

use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::Topology;
use anabranch_paths::{Interface, IsdAs};
use serde_json::Value;

use crate::netns::{Namespace, NetnsError};
use crate::routes::Routes;
use crate::wire::{Carriers, Wire, WireUse};

pub(crate) use addresses::{ASES_MAX, LINKS_MAX};
pub(crate) use bgp::daemon;
pub use calibrate::{Asked, Calibration, Measured};
pub(crate) use cross::Flows;
pub use error::BedError;
pub use leftovers::Lease;
use leftovers::PREFIX;
use program::Program;
pub(crate) use scion::reshaped as topology_file;

/// Bytes of IP and UDP around a SCION packet: links of topologies count the packet alone, wires all of it.
const UNDERLAY_BYTES: u16 = 28;
/// Threads that make parts of a network.
const MAKERS: usize = 8;
/// Longest packets of a host whose network's links take no longer ones: Ethernet's.
const HOST_MTU_MIN: u16 = 1500;

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

    /// Whether FRR runs it.
    pub(crate) fn is_bgp(self) -> bool {
        matches!(self, Self::Bgp | Self::BgpMultipath)
    }

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
    /// Tells networks that run at once in one lab from each other.
    pub slot: usize,
}

/// A running network.
pub struct Bed {
    programs: Vec<Program>,
    wires: Vec<Wire>,
    carriers: Carriers,
    hosts: Vec<Host>,
    ases: Vec<Namespace>,
    links: Vec<String>,
    /// The ASes that each link joins.
    ends: Vec<[usize; 2]>,
    routing: Routing,
    /// Static routes of each AS, where there are any.
    statics: Vec<String>,
    program: PathBuf,
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
        let slot = setup.slot;
        let named = |kind: &str, number: usize| Namespace::named(format!("{PREFIX}{own}-{slot}-{kind}{number}"));
        let links = topology.links().iter().map(|link| format!("{} - {}", link.ends[0], link.ends[1])).collect();
        // Both ends of a checked topology's links are in it, here and below.
        let of = |end: Interface| topology.index(end.isd_as).unwrap_or_default();
        let mut bed = Self {
            programs: Vec::new(),
            wires: Vec::new(),
            carriers: Carriers::default(),
            hosts: Vec::new(),
            ases: Vec::new(),
            links,
            ends: topology.links().iter().map(|link| link.ends.map(of)).collect(),
            routing: setup.routing,
            statics: Vec::new(),
            program: setup.program.to_path_buf(),
        };
        bed.ases = at_once(topology.ases().len(), cancel, |at| {
            let namespace = named("as", at)?;
            namespace.ip_batch(&format!("addr add {}/32 dev lo\n", addresses::own(at)))?;
            namespace.enter(|| forwarding(setup.routing))?;
            Ok(namespace)
        })?;
        let shapes = |number: usize| topology.links()[number].shapes;
        bed.wires = at_once(topology.links().len(), cancel, |number| bed.join(number, shapes(number), setup.seed))?;
        let mut numbers = vec![0; per_as.len()];
        let mut own_number = |at: usize| {
            numbers[at] += 1;
            numbers[at] - 1
        };
        let places: Vec<Ipv4Addr> = setup.hosts.iter().map(|at| addresses::host(*at, own_number(*at))).collect();
        bed.hosts = at_once(places.len(), cancel, |host| {
            let (at, namespace) = (setup.hosts[host], named("host", host)?);
            attach(&bed.ases[at], namespace, places[host], at, topology, setup.routing)
        })?;
        bed.route(lease, setup, cancel)?;
        Ok(bed)
    }

    /// Puts the wire of a link between its ASes.
    fn join(&self, number: usize, shapes: [LinkShape; 2], seed: u64) -> Result<Wire, BedError> {
        let (device, ends) = (device(number), self.ends[number]);
        let shapes = shapes.map(on_the_wire);
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        let wire = Wire::new(&self.carriers, ends.map(|at| &self.ases[at]), &device, shapes, seed)?;
        for (end, at) in ends.into_iter().enumerate() {
            let (address, mtu) = (addresses::link(number, end), shapes[end].mtu);
            self.ases[at].ip_batch(&format!(
                "addr add {address}/30 dev {device}\nlink set {device} mtu {mtu} txqueuelen 1000 up\n"
            ))?;
        }
        Ok(wire)
    }

    fn route(&mut self, lease: &Lease, setup: &Setup<'_>, cancel: &AtomicBool) -> Result<(), BedError> {
        let topology = setup.topology;
        match setup.routing {
            Routing::Plain => {
                let routes = Routes::new(topology);
                self.statics = (0..self.ases.len()).map(|at| static_routes(topology, &routes, at)).collect();
                self.ases.iter().zip(&self.statics).try_for_each(|(each, routes)| each.ip_batch(routes))?;
            }
            Routing::Bgp | Routing::BgpMultipath => {
                let multipath = setup.routing == Routing::BgpMultipath;
                let folder = lease.folder(setup.slot)?;
                self.programs = bgp::start(topology, multipath, &self.ases, [&folder, setup.logs], cancel)?;
                let mut wanted = setup.hosts.to_vec();
                wanted.sort_unstable();
                wanted.dedup();
                let expected = bgp::Expected::new(topology, multipath);
                bgp::converge(&self.ases, (&expected, &wanted), setup.logs, cancel)?;
            }
            Routing::Scion => {
                let folder = lease.folder(setup.slot)?;
                let [file, secret] = ["network.toml", "network.key"].map(|name| folder.join(name));
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

    /// Lets nothing pass a link any more, or everything again. Both ends see that, as when a cable is drawn: BGP's daemons and the
    /// kernel by their devices, SCION's routers by being told.
    ///
    /// # Errors
    /// When the system refuses, or a router does not hear.
    pub fn set_up(&self, link: usize, up: bool) -> Result<(), BedError> {
        if !up {
            self.wires[link].set_up(false);
        }
        let device = device(link);
        for at in self.ends[link] {
            let namespace = &self.ases[at];
            if self.routing == Routing::Scion {
                self.tell_router(namespace, link, up)?;
                continue;
            }
            namespace.set_device(&device, up)?;
            // What went by the device went with it; BGP finds out by itself.
            if let Some(routes) = self.statics.get(at).filter(|_| up) {
                namespace.ip_batch(routes)?;
            }
        }
        if up {
            self.wires[link].set_up(true);
        }
        Ok(())
    }

    fn tell_router(&self, namespace: &Namespace, link: usize, up: bool) -> Result<(), BedError> {
        let mut command = namespace.command(&self.program);
        let Some((a, b)) = self.links[link].split_once(" - ") else { return Ok(()) };
        command.args(["net", "link", a, b, if up { "up" } else { "down" }, "--quiet"]).stdin(Stdio::null());
        let failed = |said: String| BedError::Router { link: self.links[link].clone(), said };
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
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

    /// The same for programs: for each AS what `ip -json route` tells.
    pub fn routes_json(&self) -> String {
        let told = self.ases.iter().map(|namespace| {
            let output = Command::new("ip").args(["-n", namespace.name(), "-json", "route", "show"]).output();
            let told = output.ok().and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok());
            told.unwrap_or_else(|| Value::Array(Vec::new()))
        });
        Value::Array(told.collect()).to_string()
    }

    /// Ends what routes, and says what processor time that took, and the wires: seconds.
    pub fn end(mut self) -> (f64, f64) {
        let wires = self.carriers.cpu().as_secs_f64();
        self.programs.iter_mut().for_each(Program::interrupt);
        (self.programs.iter_mut().map(|program| program.end().cpu).sum(), wires)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // In this order: who speaks, who carries, the namespaces.
        self.programs.clear();
        drop(std::mem::take(&mut self.carriers));
        self.wires.clear();
        let hosts = self.hosts.drain(..).map(|host| host.namespace);
        Namespace::remove(hosts.chain(self.ases.drain(..)).collect());
    }
}

/// Makes so many parts of a network, several at once: each has to wait for the kernel and for processes of `ip`. The first error counts.
fn at_once<T: Send>(
    count: usize,
    cancel: &AtomicBool,
    make: impl Fn(usize) -> Result<T, BedError> + Sync,
) -> Result<Vec<T>, BedError> {
    let (next, make) = (AtomicUsize::new(0), &make);
    let work = || {
        let mut made = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(made);
            }
            check(cancel)?;
            made.push((number, make(number)?));
        }
    };
    let made = thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS.min(count)).map(|_| scope.spawn(work)).collect();
        let joined = makers.into_iter().map(|maker| maker.join());
        joined
            .map(|made| made.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<Vec<_>, BedError>>()
    })?;
    let mut made: Vec<(usize, T)> = made.into_iter().flatten().collect();
    made.sort_unstable_by_key(|(number, _)| *number);
    Ok(made.into_iter().map(|(_, part)| part).collect())
}

/// The network of an AS, by its place in the topology, as routes name it.
pub(crate) fn network_of(at: usize) -> String {
    format!("{}/24", addresses::network(at))
}

/// The address of the first host of an AS.
pub(crate) fn first_host(at: usize) -> Ipv4Addr {
    addresses::host(at, 0)
}

/// The device of a link, at both of its ends.
fn device(link: usize) -> String {
    format!("link{link}")
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
    // As long packets as the widest wire between ASes takes.
    let wide = topology.links().iter().flat_map(|link| link.shapes).map(|shape| on_the_wire(shape).mtu).max();
    let mtu = wide.unwrap_or_default().max(HOST_MTU_MIN);
    home.ip_batch(&format!(
        "link add {device} type veth peer name eth0 netns {}\nlink set {device} mtu {mtu} up\nroute add {address}/32 dev {device}\n",
        namespace.name()
    ))?;
    namespace.ip_batch(&format!(
        "addr add {address}/32 dev eth0\nlink set eth0 mtu {mtu} up\nroute add {gateway}/32 dev eth0\n\
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
        let _ = writeln!(text, "route replace {network}/24 via {gateway}");
    }
    text
}

/// Why a system call failed, as this module's error.
fn system(what: &str) -> impl FnOnce(std::io::Error) -> BedError {
    move |source| BedError::Netns(NetnsError::System { what: what.to_owned(), source })
}
