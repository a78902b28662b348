//! `net up`: runs a network until interrupted.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::network::{Network, Options, client};
use anabranch_asnet::topology::{As, Link, LinkType, Topology, show_properties};
use anabranch_paths::ScionAddr;
use anabranch_scion::socket::{END_HOST_PORT, Socket};

use anabranch_transport::Identity;

use super::{load, not_started};
use crate::cli::NetUpFlags;
use crate::commands::create::save;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::runtime;
use crate::{system, units};

/// Runs the command.
pub(super) fn run(flags: &NetUpFlags, chatter: Chatter) -> Result<Code, Failure> {
    let topology = load(&flags.topology)?;
    system::raise_open_files_limit();
    runtime::block_on(async {
        let interrupted = runtime::interrupts()?;
        let began = Instant::now();
        if !flags.only.is_empty() && flags.secret.is_none() {
            return Err(Failure::usage(
                "`--only` needs --secret FILE: routers of processes with other keys drop each other's packets",
            ));
        }
        let secret = flags.secret.as_deref().map(read_secret).transpose()?;
        let (api, only, unshaped) = (Some(flags.control), flags.only.clone(), flags.unshaped);
        let options = Options { api, only, secret, unshaped, ..Options::default() };
        let network = Network::start(topology, options).map_err(|error| not_started(&error))?;
        let took = began.elapsed();
        let _hosts = flags.hosts.as_deref().map(|path| HostsFile::write(path, network.topology())).transpose()?;
        answer_pings(&network, chatter);
        let api = network.api().unwrap_or(flags.control);
        if !api.ip().is_loopback() {
            chatter.note(format_args!("whoever reaches {api} may change links: there are no passwords"));
        }
        if flags.json {
            let failed = |error| Failure::new(Code::Failed, format!("the control API fails: {error}"));
            let mut shown = client::network(api).map_err(failed)?;
            shown["control"] = api.to_string().into();
            shown["start_ms"] = (took.as_millis() as u64).into();
            output::json_event("network", shown)?;
        } else if !chatter.quiet {
            output::raw(describe(network.topology(), api, took).as_bytes())?;
        }
        interrupted.notified().await;
        drop(network);
        if chatter.verbose {
            chatter.note("interrupted");
        }
        Ok(Code::Success)
    })
}

/// What all keys come from: follows from a key file, which is made if it is not there.
fn read_secret(path: &Path) -> Result<[u8; 32], Failure> {
    let identity = Identity::open(path).map_err(|error| Failure::new(Code::Storage, error))?;
    Ok(identity.secret("network"))
}

/// What our hosts files begin with: such a file may be replaced.
const HOSTS_HEAD: &str = "# Hosts of a network that `anabranch net up` runs; the file goes when the network does.";

/// A hosts file, as long as the network runs.
struct HostsFile {
    path: PathBuf,
    text: String,
}

impl HostsFile {
    fn write(path: &Path, topology: &Topology) -> Result<Self, Failure> {
        if fs::read(path).is_ok_and(|found| !found.is_empty() && !found.starts_with(HOSTS_HEAD.as_bytes())) {
            let message =
                format!("{} is a file of somebody else's: give another to --hosts, or move it away", path.display());
            return Err(Failure::usage(message));
        }
        let text = hosts_text(topology);
        save(path, text.as_bytes())?;
        Ok(Self { path: path.to_owned(), text })
    }
}

impl Drop for HostsFile {
    fn drop(&mut self) {
        // Another network may have written its own since.
        if fs::read(&self.path).is_ok_and(|found| found == self.text.as_bytes()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Every host by `NAME.ISD-AS`, with `_` for the colons that no name can have, and by its bare name where it is the only one of that name.
fn hosts_text(topology: &Topology) -> String {
    let hosts = || topology.ases().iter().flat_map(|each| each.hosts.iter().map(move |host| (each.isd_as, host)));
    let mut text = format!("{HOSTS_HEAD}\n");
    for (isd_as, host) in hosts() {
        let place = isd_as.to_string().replace(':', "_");
        let is_only = hosts().filter(|(_, other)| other.name == host.name).count() == 1;
        let bare = if is_only { format!(" {}", host.name) } else { String::new() };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{isd_as},[{}] {}.{place}{bare}", host.address, host.name);
    }
    text
}

/// Lets every host answer echo requests, whatever else runs there: routers hand them to one port of a host.
fn answer_pings(network: &Network, chatter: Chatter) {
    for each in network.ases() {
        for host in &each.hosts {
            let address = ScionAddr::new(each.isd_as, SocketAddr::new(host.address, END_HOST_PORT));
            match Socket::bind(address, each.host_ports.clone()) {
                Ok(socket) => {
                    socket.set_routers(each.routers.iter().map(|router| router.internal.ip()));
                    drop(tokio::task::spawn_local(async move { socket.drive().await }));
                }
                Err(error) => chatter.note(format_args!("{} does not answer pings: {error}", host.name)),
            }
        }
    }
}

fn describe(topology: &Topology, api: SocketAddr, took: Duration) -> String {
    let (ases, links) = (topology.ases(), topology.links());
    let mut text = format!("{}: {}", topology.name, units::network(ases.len(), links.len()));
    // Writing to a string does not fail.
    let _ = writeln!(text, " in {} ms; links are changed at {api}\n", took.as_millis());
    let heads = ["AS", "daemon", "control service", "hosts"].map(str::to_owned);
    text += &table(heads, ases.iter().map(as_row));
    text.push('\n');
    let heads = ["link", "", "kind", "properties"].map(str::to_owned);
    text += &table(heads, links.iter().flat_map(link_rows));
    text
}

fn as_row(each: &As) -> [String; 4] {
    let name = if each.core { format!("{} core", each.isd_as) } else { each.isd_as.to_string() };
    let hosts: Vec<String> = each.hosts.iter().map(|host| format!("{} {}", host.name, host.address)).collect();
    [name, each.daemon.to_string(), each.control.to_string(), hosts.join(", ")]
}

/// One row, or one for each direction where they differ.
fn link_rows(link: &Link) -> Vec<[String; 4]> {
    let kind = match link.kind {
        LinkType::Core => "core",
        LinkType::ParentChild => "parent-child",
        LinkType::Peering => "peering",
    };
    let ([a, b], [there, back]) = (link.ends.map(|end| end.to_string()), link.shapes.map(|shape| properties(&shape)));
    if there == back {
        return vec![[a, b, kind.to_owned(), there]];
    }
    vec![[a.clone(), b.clone(), kind.to_owned(), format!("> {there}")], [a, b, kind.to_owned(), format!("< {back}")]]
}

fn properties(shape: &LinkShape) -> String {
    unusual(&show_properties(shape))
}

/// Of properties as they are shown, those that are not as everywhere.
pub(super) fn unusual(shown: &str) -> String {
    let usual = show_properties(&LinkShape::default());
    let usual: Vec<&str> = usual.split(' ').collect();
    shown.split(' ').filter(|property| !usual.contains(property)).collect::<Vec<_>>().join(" ")
}

/// Columns as wide as what is in them.
pub(super) fn table<const N: usize>(heads: [String; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(heads).chain(rows).collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_shown_as_a_table() {
        let topology = Topology::from_toml(
            "two.toml",
            "[as.1-1]\ncore = true\n[as.1-2]\nhosts = ['a', 'bo']\n[[link]]\nparent = '1-1'\nchild = '1-2'\nback = { loss = '1 %' }\n",
        )
        .unwrap();
        let text = describe(&topology, "127.0.0.1:30256".parse().unwrap(), Duration::from_millis(7));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "two: 2 ASes and 1 link in 7 ms; links are changed at 127.0.0.1:30256");
        assert_eq!(lines[2], "AS        daemon            control service   hosts");
        assert_eq!(lines[3], "1-1 core  127.16.0.1:30255  127.16.0.1:30252  host 127.16.0.100");
        assert_eq!(lines[4], "1-2       127.16.1.1:30255  127.16.1.1:30252  a 127.16.1.100, bo 127.16.1.101");
        assert_eq!(lines[7], "1-1#1  1-2#1  parent-child  >");
        assert_eq!(lines[8], "1-1#1  1-2#1  parent-child  < loss=1%");
    }
}
