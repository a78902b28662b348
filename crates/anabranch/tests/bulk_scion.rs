//! `send` and `receive` across SCION networks that run in this process.

mod common;

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anabranch_asnet::network::Network;
use anabranch_hercules::wire::ticket::Ticket;
use anabranch_paths::{Endpoint, IsdAs};
use common::bulk::{assert_same_tree, elsewhere, key_of};
use common::embedded::example;
use common::{Running, finish, noise, tree};

/// How long a test may take on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(120);
const FROM: &str = "1-ff00:0:111";
const TO: &str = "1-ff00:0:112";

/// The program at the first host of an AS, which it reaches the network by; and that host's address, with any port.
fn at(network: &Network, isd_as: &str, dir: &Path) -> (Command, String) {
    let id: IsdAs = isd_as.parse().unwrap();
    let home = network.topology().get(id).unwrap();
    let mut command = elsewhere(dir, isd_as);
    command.env("SCION_DAEMON_ADDRESS", home.daemon.to_string());
    (command, format!("[{isd_as},{}]:0", home.hosts[0].address))
}

/// The addresses of a program's UDP sockets, as the system has them.
fn udp_sockets(pid: u32) -> Vec<IpAddr> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = fds.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let own: HashSet<String> =
        links.filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect();
    let mut found = Vec::new();
    for file in ["udp", "udp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        for row in table.lines().skip(1) {
            let fields: Vec<&str> = row.split_whitespace().collect();
            let (address, inode) = (fields[1].split(':').next().unwrap(), fields[9]);
            if own.contains(inode) {
                // Words of four bytes, each in the machine's order.
                let word = |at: usize| u32::from_str_radix(&address[at..at + 8], 16).unwrap().to_ne_bytes();
                found.push(match address.len() {
                    8 => IpAddr::from(word(0)),
                    _ => IpAddr::from(<[u8; 16]>::try_from([word(0), word(8), word(16), word(24)].concat()).unwrap()),
                });
            }
        }
    }
    found
}

/// The addresses in a ticket that a running program printed, all of them in the SCION network; and its sockets.
fn assert_scion_alone(running: &Running, addresses: &[Endpoint], host: &str) {
    let sockets = udp_sockets(running.child.id());
    assert!(addresses.len() == 1 && addresses[0].as_scion().is_some(), "{addresses:?}");
    assert_eq!(sockets.iter().map(ToString::to_string).collect::<Vec<_>>(), [host]);
}

#[test]
fn who_listens_in_the_network_alone_has_no_other_address() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let network = example(140, "line.toml", "");
    let host = |isd_as: &str| network.topology().get(isd_as.parse().unwrap()).unwrap().hosts[0].address.to_string();
    // The sender listens.
    let (mut command, listen) = at(&network, FROM, dir.path());
    let mut sender = Running::start_for(command.args(["send", "tree", "--json", "--listen", &listen]), PATIENCE);
    let ticket: Ticket = sender.event("ticket")["ticket"].as_str().unwrap().parse().unwrap();
    assert_scion_alone(&sender, &ticket.addresses, &host(FROM));
    let (mut command, _) = at(&network, TO, dir.path());
    let (code, _, stderr) = finish(command.args(["receive", &ticket.to_string(), "-o", "in-1"]));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(sender.event("finished")["exit_code"], 0);
    assert_same_tree(&dir.path().join("tree"), &dir.path().join("in-1/tree"));
    // The receiver listens, with a ticket; and the sender calls from the network alone.
    let (mut command, listen) = at(&network, TO, dir.path());
    let mut receiver =
        Running::start_for(command.args(["receive", "-o", "in-2", "--json", "--listen", &listen]), PATIENCE);
    let ticket: Ticket = receiver.event("ticket")["ticket"].as_str().unwrap().parse().unwrap();
    assert_scion_alone(&receiver, &ticket.addresses, &host(TO));
    let (mut command, listen) = at(&network, FROM, dir.path());
    let (code, _, stderr) = finish(command.args(["send", "tree", "--to", &ticket.to_string(), "--listen", &listen]));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(receiver.event("finished")["exit_code"], 0);
    assert_same_tree(&dir.path().join("tree"), &dir.path().join("in-2/tree"));
    // A standing receiver.
    let (mut command, listen) = at(&network, TO, dir.path());
    let key = key_of(dir.path(), FROM);
    command.args(["receive", "-o", "in-3", "--json", "--listen", &listen, "--allow", &key]);
    let mut receiver = Running::start_for(&mut command, PATIENCE);
    let address = receiver.event("listening")["address"].as_str().unwrap().to_owned();
    assert_scion_alone(&receiver, &[address.parse().unwrap()], &host(TO));
    // Where nothing is said, a host has all its addresses.
    let (mut command, _) = at(&network, FROM, dir.path());
    let mut sender = Running::start_for(command.args(["send", "tree", "--json"]), PATIENCE);
    let ticket: Ticket = sender.event("ticket")["ticket"].as_str().unwrap().parse().unwrap();
    assert!(ticket.addresses.iter().any(|own| own.as_scion().is_some()), "{ticket:?}");
    assert!(udp_sockets(sender.child.id()).iter().any(IpAddr::is_unspecified));
    // An address over plain IP leads nowhere from the network alone.
    fs::write(dir.path().join("one.bin"), noise(1000, 1)).unwrap();
    let (mut command, listen) = at(&network, FROM, dir.path());
    let arguments = ["send", "one.bin", "--to", "127.0.0.1:9", "--listen", &listen];
    let (code, _, stderr) = finish(command.args(arguments).args(["--give-up", "1s"]));
    assert!(code == 6 && stderr.contains("no way leads"), "{code} {stderr}");
    let (code, _, stderr) = finish(command.arg("--dry-run"));
    assert!(code == 6 && stderr.contains("no path leads"), "{code} {stderr}");
}
