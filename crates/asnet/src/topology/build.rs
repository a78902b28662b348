//! From what a file says to a network that can run: checks, and everything that the file leaves out.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anabranch_paths::{Interface, IsdAs};

use super::document::Located;
use super::error::TopologyErrorKind;
use super::limits::*;
use super::{As, AsInterface, Host, Link, LinkType, Neighbour, Router, Topology};
use crate::link::LinkShape;

/// A file's content, whichever its format.
pub(super) struct Draft {
    pub name: String,
    pub segment_lifetime: Option<Duration>,
    pub network: Ipv4Addr,
    pub ases: Vec<DraftAs>,
    pub links: Vec<DraftLink>,
}

pub(super) struct DraftAs {
    pub line: usize,
    pub isd_as: IsdAs,
    pub core: bool,
    pub mtu: u16,
    pub control: Option<SocketAddr>,
    pub daemon: Option<SocketAddr>,
    /// Routers with addresses of their own.
    pub routers: Vec<(String, SocketAddr)>,
    /// Line, name, address.
    pub hosts: Vec<(usize, String, Option<IpAddr>)>,
}

pub(super) struct DraftLink {
    pub line: usize,
    pub kind: LinkType,
    pub ends: [DraftEnd; 2],
    pub shapes: [LinkShape; 2],
    pub underlay: [Option<SocketAddr>; 2],
    /// Whether an end without a router's name gets a router of its own.
    pub own_routers: bool,
}

#[derive(Clone)]
pub(super) struct DraftEnd {
    pub isd_as: IsdAs,
    pub router: Option<String>,
    pub id: Option<u16>,
}

/// The router of an AS whose interfaces name none.
const ROUTER_NAME_DEFAULT: &str = "1";

pub(super) fn build(draft: Draft) -> Located<Topology> {
    let by_number = index_ases(&draft.ases)?;
    if draft.links.len() > LINKS_MAX {
        return Err((draft.links[LINKS_MAX].line, TopologyErrorKind::TooMany { what: "links", max: LINKS_MAX }));
    }
    check_links(&draft, &by_number)?;
    check_reach(&draft, &by_number)?;
    let ids = number_interfaces(&draft, &by_number)?;
    let mut addresses = Addresses::default();
    let mut ases = Vec::with_capacity(draft.ases.len());
    for (index, drafted) in draft.ases.iter().enumerate() {
        ases.push(address_as(drafted, subnet(draft.network, index, drafted.line)?, &mut addresses)?);
    }
    let mut links = Vec::with_capacity(draft.links.len());
    for (index, (drafted, ids)) in draft.links.iter().zip(ids).enumerate() {
        links.push(place_link(index, drafted, ids, &draft, &by_number, &mut ases, &mut addresses)?);
    }
    for each in &mut ases {
        each.interfaces.sort_by_key(|interface| interface.id);
    }
    Ok(Topology { name: draft.name, segment_lifetime: draft.segment_lifetime, ases, links, by_number })
}

fn index_ases(ases: &[DraftAs]) -> Located<HashMap<IsdAs, usize>> {
    if ases.is_empty() {
        return Err((1, TopologyErrorKind::NoAs));
    }
    if ases.len() > ASES_MAX {
        return Err((ases[ASES_MAX].line, TopologyErrorKind::TooMany { what: "ASes", max: ASES_MAX }));
    }
    let mut by_number = HashMap::new();
    for (index, drafted) in ases.iter().enumerate() {
        if drafted.isd_as.isd() == 0 || drafted.isd_as.asn() == 0 {
            return Err((drafted.line, TopologyErrorKind::Wildcard(drafted.isd_as)));
        }
        if by_number.insert(drafted.isd_as, index).is_some() {
            return Err((drafted.line, TopologyErrorKind::Twice(drafted.isd_as.to_string())));
        }
    }
    Ok(by_number)
}

/// Each link by itself.
fn check_links(draft: &Draft, by_number: &HashMap<IsdAs, usize>) -> Located<()> {
    for link in &draft.links {
        let [a, b] = [link.ends[0].isd_as, link.ends[1].isd_as];
        let mut core = [false; 2];
        for (core, isd_as) in core.iter_mut().zip([a, b]) {
            let index = by_number.get(&isd_as).ok_or((link.line, TopologyErrorKind::UnknownAs(isd_as)))?;
            *core = draft.ases[*index].core;
        }
        let kind = match link.kind {
            _ if a == b => Some(TopologyErrorKind::SelfLink(a)),
            LinkType::Core if !core[0] => Some(TopologyErrorKind::CoreLinkOfNonCore(a)),
            LinkType::Core if !core[1] => Some(TopologyErrorKind::CoreLinkOfNonCore(b)),
            LinkType::ParentChild if core[1] => Some(TopologyErrorKind::CoreChild(b)),
            LinkType::ParentChild if a.isd() != b.isd() => Some(TopologyErrorKind::IsdMismatch(a, b)),
            // SCION control plane §1.1: a peering link has at least one AS outside the core.
            LinkType::Peering if core[0] && core[1] => Some(TopologyErrorKind::CorePeers(a, b)),
            _ => None,
        };
        if let Some(kind) = kind {
            return Err((link.line, kind));
        }
    }
    Ok(())
}

/// All links together: no loops of parents, everybody below a core, the cores in one piece.
fn check_reach(draft: &Draft, by_number: &HashMap<IsdAs, usize>) -> Located<()> {
    let count = draft.ases.len();
    let mut children = vec![Vec::new(); count];
    let mut parents_left = vec![0; count];
    let mut core_neighbours = vec![Vec::new(); count];
    for link in &draft.links {
        let [a, b] = [0, 1].map(|end: usize| by_number[&link.ends[end].isd_as]);
        match link.kind {
            LinkType::ParentChild => {
                children[a].push(b);
                parents_left[b] += 1;
            }
            LinkType::Core => {
                core_neighbours[a].push(b);
                core_neighbours[b].push(a);
            }
            LinkType::Peering => {}
        }
    }
    check_loops(draft, by_number, &children, parents_left)?;
    let cores = || (0..count).filter(|index| draft.ases[*index].core);
    let below = reach(cores().collect(), &children);
    if let Some(index) = (0..count).find(|index| !below.contains(index)) {
        let drafted = &draft.ases[index];
        let isd_has_core = cores().any(|core| draft.ases[core].isd_as.isd() == drafted.isd_as.isd());
        let kind = if isd_has_core { TopologyErrorKind::NoWayToCore } else { TopologyErrorKind::NoCore };
        return Err((drafted.line, kind(drafted.isd_as)));
    }
    let first = cores().next();
    let joined = reach(first.into_iter().collect(), &core_neighbours);
    match (first, cores().find(|core| !joined.contains(core))) {
        (Some(first), Some(apart)) => {
            let apart = &draft.ases[apart];
            Err((apart.line, TopologyErrorKind::CoreSplit(draft.ases[first].isd_as, apart.isd_as)))
        }
        _ => Ok(()),
    }
}

/// Takes away ASes that have no parent left; whoever stays is in a loop or below one.
fn check_loops(
    draft: &Draft,
    by_number: &HashMap<IsdAs, usize>,
    children: &[Vec<usize>],
    mut parents_left: Vec<usize>,
) -> Located<()> {
    let mut free: Vec<usize> = (0..children.len()).filter(|index| parents_left[*index] == 0).collect();
    while let Some(index) = free.pop() {
        for child in &children[index] {
            parents_left[*child] -= 1;
            if parents_left[*child] == 0 {
                free.push(*child);
            }
        }
    }
    let Some(start) = parents_left.iter().position(|left| *left > 0) else { return Ok(()) };
    // From anybody who stays, going up must come back to somebody seen.
    let mut chain = vec![start];
    let (link, loop_start) = loop {
        let here = chain[chain.len() - 1];
        let up = draft.links.iter().find(|link| {
            let [parent, child] = [0, 1].map(|end: usize| by_number[&link.ends[end].isd_as]);
            link.kind == LinkType::ParentChild && child == here && parents_left[parent] > 0
        });
        let Some(link) = up else { return Ok(()) };
        let parent = by_number[&link.ends[0].isd_as];
        if let Some(at) = chain.iter().position(|seen| *seen == parent) {
            break (link, at);
        }
        chain.push(parent);
    };
    let mut names: Vec<String> =
        chain[loop_start..].iter().map(|index| draft.ases[*index].isd_as.to_string()).collect();
    names.push(names[0].clone());
    names.reverse();
    Err((link.line, TopologyErrorKind::ParentLoop(draft.ases[chain[loop_start]].isd_as, names.join(" > "))))
}

fn reach(mut from: Vec<usize>, edges: &[Vec<usize>]) -> HashSet<usize> {
    let mut seen: HashSet<usize> = from.iter().copied().collect();
    while let Some(index) = from.pop() {
        from.extend(edges[index].iter().filter(|next| seen.insert(**next)));
    }
    seen
}

/// The numbers that the file gives, then the lowest free ones in the order of the links.
fn number_interfaces(draft: &Draft, by_number: &HashMap<IsdAs, usize>) -> Located<Vec<[u16; 2]>> {
    let mut used: Vec<HashMap<u16, usize>> = vec![HashMap::new(); draft.ases.len()];
    for link in &draft.links {
        for end in &link.ends {
            let Some(id) = end.id else { continue };
            if let Some(line) = used[by_number[&end.isd_as]].insert(id, link.line) {
                return Err((link.line, TopologyErrorKind::InterfaceTwice { isd_as: end.isd_as, id, line }));
            }
        }
    }
    let mut next = vec![1u16; draft.ases.len()];
    let mut ids = Vec::with_capacity(draft.links.len());
    for link in &draft.links {
        let mut pair = [0; 2];
        for (end, given) in link.ends.iter().enumerate() {
            let index = by_number[&given.isd_as];
            pair[end] = given.id.unwrap_or_else(|| {
                // At most INTERFACES_PER_AS_MAX numbers are taken before the count below refuses the file.
                while used[index].contains_key(&next[index]) {
                    next[index] += 1;
                }
                used[index].insert(next[index], link.line);
                next[index]
            });
            if used[index].len() > INTERFACES_PER_AS_MAX {
                let what = "interfaces in one AS";
                return Err((link.line, TopologyErrorKind::TooMany { what, max: INTERFACES_PER_AS_MAX }));
            }
        }
        ids.push(pair);
    }
    Ok(ids)
}

/// Addresses in use, and by whom.
#[derive(Default)]
struct Addresses(HashMap<SocketAddr, String>);

impl Addresses {
    fn take(&mut self, line: usize, address: SocketAddr, user: String) -> Located<SocketAddr> {
        match self.0.insert(address, user) {
            None => Ok(address),
            Some(user) => Err((line, TopologyErrorKind::AddressTwice { address: address.to_string(), user })),
        }
    }
}

/// The /24 of the AS at `index`, as its first three bytes.
fn subnet(first: Ipv4Addr, index: usize, line: usize) -> Located<[u8; 3]> {
    let base = u32::from(first) >> 8;
    // ASES_MAX keeps the index small.
    let [zero, a, b, c] = (base + index as u32).to_be_bytes();
    debug_assert_eq!(zero, 0);
    if a != first.octets()[0] {
        return Err((line, TopologyErrorKind::NetworkTooHigh(first)));
    }
    Ok([a, b, c])
}

fn host_of([a, b, c]: [u8; 3], last: u8) -> IpAddr {
    IpAddr::from([a, b, c, last])
}

fn address_as(drafted: &DraftAs, net: [u8; 3], addresses: &mut Addresses) -> Located<As> {
    let isd_as = drafted.isd_as;
    let service = |given: Option<SocketAddr>, port| given.unwrap_or(SocketAddr::new(host_of(net, 1), port));
    let control = service(drafted.control, CONTROL_PORT);
    let daemon = service(drafted.daemon, DAEMON_PORT);
    addresses.take(drafted.line, control, format!("the control service of {isd_as}"))?;
    addresses.take(drafted.line, daemon, format!("the daemon of {isd_as}"))?;
    let mut each = As {
        isd_as,
        core: drafted.core,
        mtu: drafted.mtu,
        control,
        daemon,
        host_ports: HOST_PORT_FIRST..=HOST_PORT_LAST,
        routers: Vec::new(),
        interfaces: Vec::new(),
        hosts: place_hosts(drafted, net)?,
    };
    if drafted.routers.is_empty() {
        return Ok(each);
    }
    for (name, internal) in &drafted.routers {
        addresses.take(drafted.line, *internal, format!("router {name} of {isd_as}"))?;
        each.routers.push(Router { name: name.clone(), internal: *internal });
    }
    Ok(each)
}

fn place_hosts(drafted: &DraftAs, net: [u8; 3]) -> Located<Vec<Host>> {
    if drafted.hosts.len() > HOSTS_PER_AS_MAX {
        let what = "hosts in one AS";
        return Err((drafted.hosts[HOSTS_PER_AS_MAX].0, TopologyErrorKind::TooMany { what, max: HOSTS_PER_AS_MAX }));
    }
    let mut names = HashSet::new();
    let mut hosts = Vec::with_capacity(drafted.hosts.len());
    for (at, (line, name, address)) in drafted.hosts.iter().enumerate() {
        if !names.insert(name) {
            return Err((*line, TopologyErrorKind::HostTwice(drafted.isd_as, name.clone())));
        }
        // HOSTS_PER_AS_MAX keeps the last byte below 250.
        let address = address.unwrap_or_else(|| host_of(net, (HOST_ADDRESS_FIRST + at) as u8));
        hosts.push(Host { name: name.clone(), address });
    }
    Ok(hosts)
}

/// Gives a link its routers and addresses, and its ASes their interfaces.
fn place_link(
    index: usize,
    drafted: &DraftLink,
    ids: [u16; 2],
    draft: &Draft,
    by_number: &HashMap<IsdAs, usize>,
    ases: &mut [As],
    addresses: &mut Addresses,
) -> Located<Link> {
    let mut routers = [0; 2];
    let mut underlay = [SocketAddr::from(([0; 4], 0)); 2];
    for end in 0..2 {
        let at = by_number[&drafted.ends[end].isd_as];
        let net = subnet(draft.network, at, drafted.line)?;
        let each = &mut ases[at];
        routers[end] = place_router(drafted, end, net, each, addresses)?;
        let taken: u16 = each.interfaces.len() as u16;
        let own = SocketAddr::new(each.routers[routers[end]].internal.ip(), LINK_PORT_FIRST + taken);
        let user = format!("interface {} of {}", ids[end], each.isd_as);
        underlay[end] = addresses.take(drafted.line, drafted.underlay[end].unwrap_or(own), user)?;
        // Holds the place, so that the next end of this AS takes the next port; filled in below.
        let remote = Interface { isd_as: drafted.ends[1 - end].isd_as, id: ids[1 - end] };
        each.interfaces.push(AsInterface {
            id: ids[end],
            link: index,
            end,
            router: routers[end],
            neighbour: neighbour(drafted.kind, end),
            remote,
            local_address: underlay[end],
            remote_address: underlay[end],
        });
    }
    if underlay[0].is_ipv4() != underlay[1].is_ipv4() {
        return Err((drafted.line, TopologyErrorKind::UnderlayFamilies(underlay[0], underlay[1])));
    }
    let ends = [0, 1].map(|end: usize| Interface { isd_as: drafted.ends[end].isd_as, id: ids[end] });
    for end in 0..2 {
        let each = &mut ases[by_number[&ends[end].isd_as]];
        if let Some(last) = each.interfaces.last_mut() {
            last.remote_address = underlay[1 - end];
        }
    }
    Ok(Link { kind: drafted.kind, ends, underlay, shapes: drafted.shapes, line: drafted.line })
}

/// The router of one end of a link, made if nobody named it before.
fn place_router(
    drafted: &DraftLink,
    end: usize,
    net: [u8; 3],
    each: &mut As,
    addresses: &mut Addresses,
) -> Located<usize> {
    let name = match &drafted.ends[end].router {
        Some(name) => name.clone(),
        // scionproto: an end without a label has a router of its own.
        None if drafted.own_routers => format!("{}", each.routers.len() + 1),
        None => each.routers.first().map_or(ROUTER_NAME_DEFAULT.to_owned(), |router| router.name.clone()),
    };
    let known = each.routers.iter().position(|router| router.name == name);
    if let Some(known) = known.filter(|_| drafted.ends[end].router.is_some() || !drafted.own_routers) {
        return Ok(known);
    }
    let number = each.routers.len();
    if number == ROUTERS_PER_AS_MAX {
        let what = "border routers in one AS";
        return Err((drafted.line, TopologyErrorKind::TooMany { what, max: ROUTERS_PER_AS_MAX }));
    }
    // ROUTERS_PER_AS_MAX keeps the last byte below 62.
    let internal = SocketAddr::new(host_of(net, 2 + number as u8), ROUTER_PORT);
    addresses.take(drafted.line, internal, format!("router {name} of {}", each.isd_as))?;
    each.routers.push(Router { name, internal });
    Ok(number)
}

fn neighbour(kind: LinkType, end: usize) -> Neighbour {
    match (kind, end) {
        (LinkType::Core, _) => Neighbour::Core,
        (LinkType::Peering, _) => Neighbour::Peer,
        (LinkType::ParentChild, 0) => Neighbour::Child,
        (LinkType::ParentChild, _) => Neighbour::Parent,
    }
}
