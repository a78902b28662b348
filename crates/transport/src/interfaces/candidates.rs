//! Which of our addresses goes with which of a peer's. Pure.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use anabranch_paths::Path;
use anabranch_paths::manager::REMOTES_MAX;

use super::{LocalInterface, Via, is_link_local};

/// Candidates for one peer: eight uplinks here and eight there. At most 16 connections come of them.
pub const CANDIDATES_MAX: usize = 64;

/// One way to a peer over plain IP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpCandidate {
    /// The path: our address and the peer's.
    pub path: Path,
    /// Where to dial.
    pub remote: SocketAddr,
    /// How to leave.
    pub via: Via,
}

/// A pair, before it is known how many there are.
struct Pair {
    candidate: IpCandidate,
    same_network: bool,
    source_at: usize,
    remote_at: usize,
}

/// Pairs `interfaces` with `remotes`, without doubles, [`CANDIDATES_MAX`] at most. IPv4 goes with IPv4 and IPv6 with IPv6, what
/// is of this machine or link alone with its own kind. Pairs in one network come first; among the others those that have no end
/// in common. A peer whose first address is on this very machine is reached there alone, and one elsewhere never here: private
/// addresses of two machines may be the same.
///
/// `route` answers the address that packets to the remote leave from by an interface, which is the given one where one is given;
/// `None` where no route leads there.
pub(super) fn pair(
    remotes: &[SocketAddr],
    interfaces: &[LocalInterface],
    route: impl Fn(&LocalInterface, Option<IpAddr>, SocketAddr) -> Option<IpAddr>,
) -> Vec<IpCandidate> {
    let mut pairs: Vec<Pair> = Vec::new();
    let (mut known, mut sources): (_, Vec<IpAddr>) = (HashSet::new(), Vec::new());
    for (remote_at, remote) in remotes.iter().take(REMOTES_MAX).enumerate() {
        if pairs.first().is_some_and(|first| first.candidate.via.is_local) {
            break;
        }
        let remote = canonical(*remote);
        if remote.ip().is_unspecified() || remote.ip().is_multicast() || remote.port() == 0 {
            continue;
        }
        for via in vias(remote, interfaces, &route) {
            let path = Path::ip(via.source, remote.ip());
            if via.is_local && remote_at > 0 || !known.insert(path.id()) {
                continue;
            }
            let source_at = sources.iter().position(|source| *source == via.source).unwrap_or_else(|| {
                sources.push(via.source);
                sources.len() - 1
            });
            let own = interfaces.iter().filter(|interface| interface.index == via.index);
            let around = own.flat_map(|interface| &interface.addresses).find(|address| address.ip == via.source);
            let same_network = around.is_some_and(|around| around.has_in_network(remote.ip()));
            let candidate = IpCandidate { path, remote, via };
            pairs.push(Pair { candidate, same_network, source_at, remote_at });
        }
    }
    // Pairs on one diagonal of the table of sources and remotes have no end in common.
    let side = sources.len().max(REMOTES_MAX);
    let diagonal = |pair: &Pair| (pair.remote_at + side - pair.source_at) % side;
    pairs.sort_by_key(|pair| (!pair.same_network, diagonal(pair), pair.source_at, pair.remote_at));
    pairs.truncate(CANDIDATES_MAX);
    pairs.into_iter().map(|pair| pair.candidate).collect()
}

/// The ways to one address, at most one for each network that an interface is in.
fn vias(
    remote: SocketAddr,
    interfaces: &[LocalInterface],
    route: &impl Fn(&LocalInterface, Option<IpAddr>, SocketAddr) -> Option<IpAddr>,
) -> Vec<Via> {
    let ip = remote.ip();
    // To an address of our own nothing leaves: there is one way.
    let own = |interface: &&LocalInterface| interface.has(ip) || interface.loopback && ip.is_loopback();
    if let Some(interface) = interfaces.iter().find(own) {
        let same_family = interface.addresses.iter().find(|address| address.ip.is_ipv4() == ip.is_ipv4());
        let source = if interface.has(ip) { Some(ip) } else { same_family.map(|address| address.ip) };
        return source.map(|source| Via::new(interface, source, true)).into_iter().collect();
    }
    if ip.is_loopback() {
        return Vec::new();
    }
    let zone = match remote {
        SocketAddr::V6(remote) => remote.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let link_local = is_link_local(ip);
    // A private address of a network around us is nobody's elsewhere, whatever default routes say.
    let around = |interface: &&LocalInterface| interface.addresses.iter().any(|own| own.has_in_network(ip));
    let usable = || interfaces.iter().filter(|interface| interface.usable && !interface.loopback);
    let at_hand = is_private(ip) && usable().any(|interface| around(&interface));
    let mut vias = Vec::new();
    for interface in usable().filter(|interface| !at_hand || around(interface)) {
        // RFC 4007 §6: a link-local IPv6 address means a host only together with its link.
        if link_local && ip.is_ipv6() && zone != interface.index {
            continue;
        }
        let fits = |source: IpAddr| source.is_ipv4() == ip.is_ipv4() && is_link_local(source) == link_local;
        // From an address that is unique within a site nobody outside is reached (RFC 4193), unless there is no other.
        let same_reach = |source: IpAddr| is_unique_local(source) == is_unique_local(ip);
        let choice = route(interface, None, remote).filter(|source| fits(*source));
        let all = choice.into_iter().chain(interface.addresses.iter().map(|address| address.ip).filter(|ip| fits(*ip)));
        let all: Vec<IpAddr> = all.collect();
        let strict = all.iter().any(|source| same_reach(*source));
        let mut taken: Vec<IpAddr> = Vec::new();
        for source in all.into_iter().filter(|source| !strict || same_reach(*source)) {
            // Two sources in one network take the same way; the system's choice among them comes first.
            let network = interface.addresses.iter().find(|address| address.ip == source);
            let double = |other: &IpAddr| *other == source || network.is_some_and(|own| own.has_in_network(*other));
            if taken.iter().any(double) {
                continue;
            }
            if choice == Some(source) || route(interface, Some(source), remote) == Some(source) {
                taken.push(source);
            }
        }
        vias.extend(taken.into_iter().map(|source| Via::new(interface, source, false)));
    }
    vias
}

impl Via {
    fn new(interface: &LocalInterface, source: IpAddr, is_local: bool) -> Self {
        Self { source, interface: interface.name.clone(), index: interface.index, is_local }
    }
}

/// IPv4 that is mapped into IPv6 is IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

fn is_private(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.is_private()) || is_unique_local(ip)
}

fn is_unique_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unique_local())
}
