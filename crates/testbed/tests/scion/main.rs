//! End hosts that others wrote on our network: they ask our daemons, their packets pass our routers, and they and our end
//! host answer each other. And our segments, combined by others.
//!
//! The cells of JPAN are ignored by default, because it comes from Maven: `make interop` builds it and runs them.

mod ours;

use std::collections::BTreeSet;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::{As, Neighbour, Topology};
use anabranch_paths::{IsdAs, ScionPath};
use anabranch_testbed::peers::checkout;
use anabranch_testbed::peers::scion::ScionPeer;

use ours::{OurHost, OurServer, hops};

type Outcome = Result<(), Box<dyn Error>>;

/// From where to where: over everything and a peering link between ISDs; up, core and down; shortcuts and peering within
/// an ISD; from a core AS; to one; between core ASes; from a customer's customer to its provider; within one AS.
const PAIRS: [[&str; 2]; 8] = [
    ["1-ff00:0:111", "2-ff00:0:211"],
    ["1-ff00:0:114", "2-ff00:0:212"],
    ["1-ff00:0:112", "1-ff00:0:113"],
    ["1-ff00:0:110", "2-ff00:0:211"],
    ["2-ff00:0:212", "1-ff00:0:120"],
    ["1-ff00:0:120", "2-ff00:0:210"],
    ["1-ff00:0:114", "1-ff00:0:111"],
    ["1-ff00:0:111", "1-ff00:0:111"],
];
/// Where servers listen.
const PORT: u16 = 31_900;

/// A network of its own addresses, so that tests run beside each other.
fn start(net: u8) -> Result<Network, Box<dyn Error>> {
    let text = std::fs::read_to_string(checkout().join("topologies/two-isds.toml"))?;
    let topology = Topology::from_toml("two-isds.toml", &format!("network = '127.{net}.0.0'\n{text}"))?;
    Ok(Network::start(topology, Options::default())?)
}

fn find<'a>(network: &'a Network, isd_as: &str) -> Result<&'a As, Box<dyn Error>> {
    Ok(network.topology().get(isd_as.parse()?).ok_or("no such AS")?)
}

fn names<'a>(paths: impl IntoIterator<Item = &'a std::sync::Arc<ScionPath>>) -> BTreeSet<String> {
    paths.into_iter().map(|path| hops(path)).collect()
}

/// The host beside the AS's first.
fn beside(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(host) => IpAddr::V4((u32::from(host) + 1).into()),
        IpAddr::V6(host) => IpAddr::V6((u128::from(host) + 1).into()),
    }
}

/// Every command of the peer over every path of every pair, against our end host and against itself; and our end host
/// against it.
fn matrix(peer: ScionPeer, net: u8) -> Outcome {
    let network = start(net)?;
    let (mut paths_count, mut cells_count) = (0, 0);
    for [source, destination] in PAIRS {
        let (from, to) = (find(&network, source)?, find(&network, destination)?);
        let ours = OurHost::new(from.daemon)?;
        let paths = names(&ours.paths(to.isd_as)?);
        let at = SocketAddr::new(to.hosts[0].address, PORT);
        let theirs_at = SocketAddr::new(beside(at.ip()), PORT);
        let cell = |what: &str, found: BTreeSet<String>| {
            assert_eq!(found, paths, "{what} of {peer:?}, {source} to {destination}");
        };
        let failed = |error| format!("{peer:?}, {source} to {destination}: {error}");

        cell("paths", peer.paths(from.daemon, destination)?);
        let server = OurServer::start(to.isd_as, at)?;
        cell("pings of ours", peer.ping(from.daemon, destination, at.ip())?);
        cell("datagrams to ours", peer.send(from.daemon, destination, at)?);
        drop(server);
        let _served = peer.serve(to.daemon, theirs_at)?;
        cell("datagrams to itself", peer.send(from.daemon, destination, theirs_at)?);
        // From the first host of the AS, or the second where that is the one who serves.
        let here = if from.isd_as == to.isd_as { at.ip() } else { from.hosts[0].address };
        cell("datagrams from ours", ours.send(here, to.isd_as, theirs_at).map_err(failed)?);
        cells_count += 5;
        if peer.answers_echo() {
            cell("pings from ours", ours.ping(here, to.isd_as, theirs_at.ip()).map_err(failed)?);
            cells_count += 1;
        }
        paths_count += paths.len();
    }
    println!("{peer:?}: {cells_count} cells over {paths_count} paths");
    Ok(())
}

#[test]
fn sciparse_and_we_answer_each_other_over_every_path() -> Outcome {
    matrix(ScionPeer::Sciparse, 81)
}

#[test]
fn sciparse_finds_the_paths_that_we_find_between_all_ases() -> Outcome {
    let network = start(82)?;
    let mut count = 0;
    for from in network.topology().ases() {
        let ours = OurHost::new(from.daemon)?;
        for to in network.topology().ases() {
            let paths = names(&ours.paths(to.isd_as)?);
            let theirs = ScionPeer::Sciparse.paths(from.daemon, &to.isd_as.to_string())?;
            assert_eq!(theirs, paths, "{} to {}", from.isd_as, to.isd_as);
            count += paths.len();
        }
    }
    println!("{count} paths");
    Ok(())
}

/// Peering links are left to the other tests: sciparse starts their segments from the wrong beta.
#[test]
fn sciparse_combines_our_segments_into_paths_that_our_routers_accept() -> Outcome {
    let network = start(83)?;
    let mut count = 0;
    for [source, destination] in PAIRS.into_iter().filter(|[source, destination]| source != destination) {
        let (from, to) = (find(&network, source)?, find(&network, destination)?);
        let at = SocketAddr::new(to.hosts[0].address, PORT);
        let _server = OurServer::start(to.isd_as, at)?;
        let answered = ScionPeer::Sciparse.ping_combined(from.daemon, from.control, destination, at.ip())?;
        let paths = OurHost::new(from.daemon)?.paths(to.isd_as)?;
        let without_peering = names(paths.iter().filter(|path| !crosses_peering(network.topology(), path)));
        assert_eq!(answered, without_peering, "{source} to {destination}");
        count += answered.len();
    }
    println!("{count} paths");
    Ok(())
}

fn crosses_peering(topology: &Topology, path: &ScionPath) -> bool {
    let is_peering = |isd_as: IsdAs, id| {
        let interface = topology.get(isd_as).and_then(|each| each.interface(id));
        interface.is_some_and(|interface| interface.neighbour == Neighbour::Peer)
    };
    path.interfaces.iter().any(|interface| is_peering(interface.isd_as, interface.id))
}

#[test]
#[ignore = "needs JPAN: `make interop` builds it and runs this"]
fn jpan_and_we_answer_each_other_over_every_path() -> Outcome {
    matrix(ScionPeer::Jpan, 84)
}
