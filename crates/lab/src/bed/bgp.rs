//! BGP between the ASes: FRR's zebra and bgpd in each namespace, with the policies of [`crate::routes`].

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anabranch_asnet::topology::{Neighbour, Topology};
use serde_json::Value;

use super::program::Program;
use super::{BedError, addresses};
use crate::netns::{Namespace, NetnsError};
use crate::routes::{Routes, is_told, preference};

/// Where Debian and others install the daemons.
const FOLDERS: [&str; 3] = ["/usr/lib/frr", "/usr/libexec/frr", "/usr/sbin"];
/// Whom the daemons run as once they are up.
const USER: &str = "frr";
/// Where zebra takes calls, in the folder of its AS, and how long until it does.
const SOCKET: &str = "zserv";
const LISTEN_TIMEOUT: Duration = Duration::from_secs(60);
/// A network that has no routes by then will not have any.
const CONVERGE_TIMEOUT: Duration = Duration::from_secs(90);
/// How often routes are looked at; where they are not as expected, they have to stay as they are for [`CALM_LOOKS`] of that.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const CALM_LOOKS: usize = 8;
/// Ways that ECMP spreads over at most: more than any AS here has links.
const MAXIMUM_PATHS: u32 = 64;

const KINDS: [(Neighbour, &str); 4] = [
    (Neighbour::Core, "core"),
    (Neighbour::Parent, "provider"),
    (Neighbour::Peer, "peer"),
    (Neighbour::Child, "customer"),
];

/// Whether FRR is there.
pub(crate) fn daemon(name: &str) -> Result<PathBuf, BedError> {
    let found = FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    found.ok_or_else(|| BedError::Missing { program: name.to_owned(), package: "FRR (Debian: frr)" })
}

/// Starts the daemons of every AS, whose sockets and files go to a folder for each in `dir`. A bgpd that finds no zebra tries again after
/// ten seconds only: all of these listen before the first of those comes.
pub(super) fn start(
    topology: &Topology,
    multipath: bool,
    namespaces: &[Namespace],
    [dir, logs]: [&Path; 2],
    cancel: &AtomicBool,
) -> Result<Vec<Program>, BedError> {
    let (user, dirs) = (user()?, (0..namespaces.len()).map(|at| dir.join(format!("as{at}"))).collect::<Vec<_>>());
    let zebras = namespaces.iter().zip(&dirs).enumerate().map(|(at, (namespace, dir))| {
        let config = config(topology, at, multipath);
        prepare(dir, &config, user)?;
        let kept = logs.join(format!("bgpd-{at}.conf"));
        fs::write(&kept, &config).map_err(|error| BedError::file(&kept, error))?;
        Program::start(&format!("zebra-{at}"), command("zebra", dir)?, namespace, logs)
    });
    let mut programs = zebras.collect::<Result<Vec<_>, _>>()?;
    for (at, (namespace, dir)) in namespaces.iter().zip(&dirs).enumerate() {
        programs[at].wait_listening(LISTEN_TIMEOUT, || {
            super::check(cancel)?;
            Ok(UnixStream::connect(dir.join(SOCKET)).is_ok())
        })?;
        programs.push(Program::start(&format!("bgpd-{at}"), command("bgpd", dir)?, namespace, logs)?);
    }
    Ok(programs)
}

/// Makes the folder of an AS, with what its daemons are told.
fn prepare(dir: &Path, config: &str, (user, group): (u32, u32)) -> Result<(), BedError> {
    fs::create_dir_all(dir).map_err(|error| BedError::file(dir, error))?;
    for (name, text) in [("zebra.conf", ""), ("bgpd.conf", config)] {
        let path = dir.join(name);
        fs::write(&path, text)
            .and_then(|()| chown(&path, Some(user), Some(group)))
            .map_err(|error| BedError::file(&path, error))?;
    }
    chown(dir, Some(user), Some(group)).map_err(|error| BedError::file(dir, error))
}

fn command(name: &str, dir: &Path) -> Result<Command, BedError> {
    let mut command = Command::new(daemon(name)?);
    command.arg("-f").arg(dir.join(format!("{name}.conf"))).arg("-i").arg(dir.join(format!("{name}.pid")));
    command.arg("-z").arg(dir.join(SOCKET)).arg("--vty_socket").arg(dir).args(["-P", "0", "--log", "stdout"]);
    Ok(command)
}

/// Number of the user and the group that FRR's package made.
fn user() -> Result<(u32, u32), BedError> {
    let path = Path::new("/etc/passwd");
    let text = fs::read_to_string(path).map_err(|error| BedError::file(path, error))?;
    let found = text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.first() == Some(&USER)).then(|| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))?
    });
    found.ok_or_else(|| BedError::Missing { program: format!("the user `{USER}`"), package: "FRR (Debian: frr)" })
}

/// What bgpd of an AS is told. Of whom a route was heard is kept as a community of the AS itself, which decides whom it is told.
fn config(topology: &Topology, at: usize, multipath: bool) -> String {
    let (own, network) = (addresses::own(at), addresses::network(at));
    let asn = addresses::asn(at);
    let mut text = policies(asn);
    // Writing to a string does not fail, here and below.
    let _ = writeln!(text, "router bgp {asn}\n bgp router-id {own}");
    text += " no bgp ebgp-requires-policy\n no bgp network import-check\n no bgp default ipv4-unicast\n";
    text += " bgp bestpath compare-routerid\n timers bgp 3 9\n";
    // What is heard is told on at once, and not after a second for each AS that it passes.
    text += " coalesce-time 0\n";
    if multipath {
        text += " bgp bestpath as-path multipath-relax\n";
    }
    let neighbours: Vec<_> = topology.ases()[at].interfaces.iter().collect();
    for interface in &neighbours {
        let address = addresses::link(interface.link, 1 - interface.end);
        let remote = topology.index(interface.remote.isd_as).map_or(0, addresses::asn);
        let _ = writeln!(text, " neighbor {address} remote-as {remote}");
        let _ = writeln!(text, " neighbor {address} timers connect 1");
        let _ = writeln!(text, " neighbor {address} advertisement-interval 0");
        // Where both ends call, each hangs up on the other at times, and tries again seconds later.
        if interface.end == 0 {
            let _ = writeln!(text, " neighbor {address} passive");
        }
    }
    let _ = writeln!(text, " address-family ipv4 unicast\n  network {network}/24");
    let _ = writeln!(text, "  maximum-paths {}", if multipath { MAXIMUM_PATHS } else { 1 });
    for interface in &neighbours {
        let address = addresses::link(interface.link, 1 - interface.end);
        let kind = name(interface.neighbour);
        let _ = writeln!(text, "  neighbor {address} activate\n  neighbor {address} send-community large");
        let _ = writeln!(
            text,
            "  neighbor {address} route-map from-{kind} in\n  neighbor {address} route-map to-{kind} out"
        );
    }
    text += " exit-address-family\n";
    text
}

/// What is told to whom. It stands before the neighbours: for maps that change later, all routes would be looked at again after five seconds,
/// which is not asked for.
fn policies(asn: u32) -> String {
    let mut text = "bgp route-map delay-timer 0\nbgp as-path access-list own permit ^$\n".to_owned();
    for (number, (kind, name)) in KINDS.into_iter().enumerate() {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(text, "bgp large-community-list standard {name} permit {asn}:0:{number}");
        let _ = writeln!(text, "route-map from-{name} permit 10\n set large-community {asn}:0:{number}");
        let _ = writeln!(text, " set local-preference {}", preference(kind));
    }
    for (to, to_name) in KINDS {
        let _ = writeln!(text, "route-map to-{to_name} permit 1\n match as-path own");
        for (number, (from, from_name)) in KINDS.into_iter().enumerate() {
            if is_told(Some(from), to) {
                let _ =
                    writeln!(text, "route-map to-{to_name} permit {}\n match large-community {from_name}", 10 + number);
            }
        }
    }
    text
}

fn name(kind: Neighbour) -> &'static str {
    KINDS.into_iter().find(|(each, _)| *each == kind).map_or("peer", |(_, name)| name)
}

/// Where routes come to in the end, as the model of [`crate::routes`] has it.
pub(super) struct Expected {
    routes: Routes,
    multipath: bool,
}

impl Expected {
    pub(super) fn new(topology: &Topology, multipath: bool) -> Self {
        Self { routes: Routes::new(topology), multipath }
    }

    /// Whether the routes that an AS told lead to another one as expected.
    fn is_met(&self, told: &[Value], at: usize, to: usize) -> bool {
        let links = self.routes.next_links(at, to);
        let links = if self.multipath { links } else { &links[..links.len().min(1)] };
        let expected: BTreeSet<String> = links.iter().map(|link| super::device(*link)).collect();
        let network = format!("{}/24", addresses::network(to));
        let route = told.iter().find(|route| route["dst"] == network.as_str());
        // One next hop stands in the route itself, several in a list.
        let hops = |route: &Value| route["nexthops"].as_array().cloned().unwrap_or_else(|| vec![route.clone()]);
        let devices = route.map(hops).unwrap_or_default();
        let found: BTreeSet<String> = devices.iter().filter_map(|hop| Some(hop["dev"].as_str()?.to_owned())).collect();
        at == to || (!expected.is_empty() && found == expected)
    }
}

/// Waits until every AS has a route to each of those wanted, and all are as expected or stay as they are.
pub(super) fn converge(
    namespaces: &[Namespace],
    (expected, wanted): (&Expected, &[usize]),
    logs: &Path,
    cancel: &AtomicBool,
) -> Result<(), BedError> {
    let asked = Instant::now();
    let (mut before, mut calm) = (Vec::new(), 0);
    loop {
        let routes = namespaces.iter().map(kernel_routes).collect::<Result<Vec<_>, _>>()?;
        let missing = namespaces.iter().enumerate().find_map(|(at, _)| {
            let target = wanted.iter().find(|to| {
                let network = format!("{}/24", addresses::network(**to));
                **to != at && !routes[at].iter().any(|route| route["dst"] == network.as_str())
            });
            target.map(|to| format!("AS number {} of the topology has no route to number {}", at + 1, to + 1))
        });
        let is_met = |at: usize| wanted.iter().all(|to| expected.is_met(&routes[at], at, *to));
        if (0..namespaces.len()).all(is_met) {
            return Ok(());
        }
        calm = if missing.is_none() && routes == before { calm + 1 } else { 0 };
        if calm == CALM_LOOKS {
            return Ok(());
        }
        if asked.elapsed() > CONVERGE_TIMEOUT {
            let missing = missing.unwrap_or_else(|| "routes went on changing".into());
            let (seconds, logs) = (CONVERGE_TIMEOUT.as_secs(), logs.to_path_buf());
            return Err(BedError::NotConverged { seconds, missing, logs });
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(BedError::Canceled);
        }
        before = routes;
        thread::sleep(LOOK_EVERY);
    }
}

/// The routes that BGP gave the kernel.
fn kernel_routes(namespace: &Namespace) -> Result<Vec<Value>, BedError> {
    let mut command = Command::new("ip");
    command.args(["-n", namespace.name(), "-j", "route", "show", "proto", "bgp"]);
    let output = command.output().map_err(|source| NetnsError::Missing { program: "ip".into(), source })?;
    Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_as_expected_or_not() {
        // Two links between a core AS and its customer.
        let text = "[as.'1-1']\ncore = true\n[as.'1-2']\n[[link]]\nparent = '1-1'\nchild = '1-2'\ncount = 2\n";
        let topology = Topology::from_toml("bgp.toml", text).unwrap();
        let one = serde_json::json!([{ "dst": "10.1.1.0/24", "gateway": "10.128.0.2", "dev": "link0" }]);
        let both = serde_json::json!([{ "dst": "10.1.1.0/24", "nexthops": [{ "dev": "link1" }, { "dev": "link0" }] }]);
        let other =
            serde_json::json!([{ "dst": "10.1.1.0/24", "dev": "link1" }, { "dst": "10.1.7.0/24", "dev": "link0" }]);
        for (multipath, told, met) in [
            (false, &one, true),
            (false, &both, false),
            (false, &other, false),
            (true, &both, true),
            (true, &one, false),
        ] {
            let expected = Expected::new(&topology, multipath);
            assert_eq!(expected.is_met(told.as_array().unwrap(), 0, 1), met, "{told}");
            assert!(!expected.is_met(&[], 0, 1) && expected.is_met(&[], 1, 1));
        }
    }

    #[test]
    fn policies_follow_from_the_kinds_of_links() {
        let text = "[as.'1-1']\ncore = true\n[as.'1-2']\n[as.'1-3']\n[[link]]\nparent = '1-1'\nchild = '1-2'\n\
                    [[link]]\nparent = '1-1'\nchild = '1-3'\n[[link]]\npeering = ['1-2', '1-3']\n";
        let topology = Topology::from_toml("bgp.toml", text).unwrap();
        let config = config(&topology, 1, true);
        for line in [
            "router bgp 4200000001",
            " neighbor 10.128.0.1 remote-as 4200000000",
            "  neighbor 10.128.0.1 route-map from-provider in",
            "  neighbor 10.128.0.10 route-map to-peer out",
            "  network 10.1.1.0/24",
            "  maximum-paths 64",
            " bgp bestpath as-path multipath-relax",
        ] {
            assert!(config.lines().any(|each| each == line), "{line} is not in\n{config}");
        }
        // A peer is told of customers alone, and of the AS itself.
        let to_peer: Vec<&str> =
            config.split("route-map to-peer permit").skip(1).map(|part| part.lines().nth(1).unwrap()).collect();
        assert_eq!(to_peer, [" match as-path own", " match large-community customer"]);
        assert!(!super::config(&topology, 1, false).contains("multipath"));
    }
}
