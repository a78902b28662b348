//! SCION between the ASes: `anabranch net up --only ISD-AS` in each namespace, over the same wires as BGP.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::{LinkType, Topology, show_properties};

use super::program::{Program, bare};
use super::{BedError, addresses};
use crate::netns::Namespace;

/// Ports as everywhere with SCION, each on the AS's own address.
pub(super) const DAEMON_PORT: u16 = 30255;
const CONTROL_PORT: u16 = 30252;
const ROUTER_PORT: u16 = 30042;
/// Of both ends of a link.
const LINK_PORT: u16 = 50000;
/// How long a process of one AS may take to be up.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The topology with the addresses of the namespaces.
pub(super) fn topology_file(topology: &Topology) -> String {
    let shapes: Vec<[LinkShape; 2]> = topology.links().iter().map(|link| link.shapes).collect();
    reshaped(topology, &shapes)
}

/// The same with other shapes, in the order of the links.
pub(crate) fn reshaped(topology: &Topology, shapes: &[[LinkShape; 2]]) -> String {
    // Writing to a string does not fail, here and below.
    let mut text = "# The network of a run, with the addresses that its namespaces have.\n".to_owned();
    for (at, each) in topology.ases().iter().enumerate() {
        let own = addresses::own(at);
        let _ = writeln!(text, "[as.\"{}\"]\ncore = {}\nmtu = {}\nhosts = []", each.isd_as, each.core, each.mtu);
        let _ = writeln!(text, "control = \"{own}:{CONTROL_PORT}\"\ndaemon = \"{own}:{DAEMON_PORT}\"");
        let _ = writeln!(text, "routers = {{ A = \"{own}:{ROUTER_PORT}\" }}");
    }
    for (number, (link, shapes)) in topology.links().iter().zip(shapes).enumerate() {
        let [a, b] = link.ends.map(|end| format!("{}-A#{}", end.isd_as, end.id));
        let _ = match link.kind {
            LinkType::Core => writeln!(text, "[[link]]\ncore = [\"{a}\", \"{b}\"]"),
            LinkType::Peering => writeln!(text, "[[link]]\npeering = [\"{a}\", \"{b}\"]"),
            LinkType::ParentChild => writeln!(text, "[[link]]\nparent = \"{a}\"\nchild = \"{b}\""),
        };
        let [left, right] = [0, 1].map(|end| format!("{}:{LINK_PORT}", addresses::link(number, end)));
        let _ = writeln!(text, "underlay = [\"{left}\", \"{right}\"]");
        for (direction, shape) in ["there", "back"].into_iter().zip(shapes) {
            let properties = show_properties(shape);
            let properties: Vec<String> = properties
                .split(' ')
                .filter_map(|property| property.split_once('='))
                .map(
                    |(key, value)| {
                        if key == "mtu" { format!("{key} = {value}") } else { format!("{key} = \"{value}\"") }
                    },
                )
                .collect();
            let _ = writeln!(text, "{direction} = {{ {} }}", properties.join(", "));
        }
    }
    text
}

/// Starts the processes of all ASes; the first one makes the secret that all have.
pub(super) fn start(
    topology: &Topology,
    namespaces: &[Namespace],
    program: &Path,
    [file, secret, logs]: [&Path; 3],
) -> Result<Vec<Program>, BedError> {
    let mut running = Vec::new();
    for (at, (each, namespace)) in topology.ases().iter().zip(namespaces).enumerate() {
        let mut command = bare(program);
        command.args(["net", "up"]).arg(file).arg("--secret").arg(secret).args(["--only", &each.isd_as.to_string()]);
        command.args(["--unshaped", "--json"]);
        running.push(Program::start(&format!("router-{at}"), command, namespace, logs)?);
        if at == 0 {
            running[0].wait_event("network", START_TIMEOUT)?;
        }
    }
    for each in running.iter_mut().skip(1) {
        each.wait_event("network", START_TIMEOUT)?;
    }
    Ok(running)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_the_same_network_with_other_addresses() {
        let text = "[as.'1-1']\ncore = true\n[as.'1-2']\n[as.'1-3']\n[[link]]\nparent = '1-1'\nchild = '1-2'\ncount = 2\nrate = '10 Mbit/s'\n\
                    back = { loss = '1 %', delay = '3 ms' }\n[[link]]\nparent = '1-1'\nchild = '1-3'\n[[link]]\npeering = ['1-2', '1-3#9']\n";
        let topology = Topology::from_toml("a.toml", text).unwrap();
        let written = Topology::from_toml("b.toml", &topology_file(&topology)).unwrap();
        assert_eq!(written.links().len(), topology.links().len());
        for (ours, theirs) in topology.links().iter().zip(written.links()) {
            assert_eq!((ours.kind, ours.ends, ours.shapes), (theirs.kind, theirs.ends, theirs.shapes));
        }
        assert_eq!(written.links()[3].underlay[1].to_string(), "10.128.0.14:50000");
        assert_eq!(written.ases()[2].daemon.to_string(), "10.1.2.1:30255");
    }
}
