//! Which ways BGP takes through a network, as a model: what runs are compared with, and static routes where no BGP runs.
//!
//! Policies follow from the kinds of links, valley-free (Gao and Rexford): an AS prefers what it heard of a customer to what
//! it heard of a peer, and that to what it heard of a provider; customers are told everything, everybody else only of oneself
//! and one's customers. Core ASes serve each other as SCION's core segments do: they also tell other core ASes what they
//! heard of core ASes. Among equals the shortest AS path wins, then the lowest number of the neighbour, then of the link
//! (RFC 4271 §9.1.2.2). Multipath takes all that are equal up to the length of the AS path.

use anabranch_asnet::topology::{Neighbour, Topology};

/// What an AS prefers, as BGP's local preference; more is better.
pub(crate) fn preference(neighbour: Neighbour) -> u32 {
    match neighbour {
        Neighbour::Child => 300,
        Neighbour::Peer => 200,
        Neighbour::Core | Neighbour::Parent => 100,
    }
}

/// Whether a route that was heard of `from` (`None`: one's own) is told to `to`.
pub(crate) fn is_told(from: Option<Neighbour>, to: Neighbour) -> bool {
    match (from, to) {
        (None | Some(Neighbour::Child), _) | (_, Neighbour::Child) => true,
        (Some(Neighbour::Core), Neighbour::Core) => true,
        (Some(_), _) => false,
    }
}

/// A route of an AS.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    /// Of whom it was heard.
    from: Option<Neighbour>,
    /// The ASes on the way, oneself first.
    path: Vec<usize>,
    /// The links that lead to equally good ways, the best first.
    links: Vec<usize>,
}

/// The routes of all ASes to all others.
#[derive(Clone, Debug)]
pub struct Routes {
    /// By destination, then by AS.
    to: Vec<Vec<Option<Route>>>,
}

impl Routes {
    /// Lets every AS tell its neighbours until nobody has anything new to say.
    pub fn new(topology: &Topology) -> Self {
        Self { to: (0..topology.ases().len()).map(|destination| converge(topology, destination)).collect() }
    }

    /// The links over which an AS sends to another, the best first; none where there is no way, or it is there.
    pub fn next_links(&self, from: usize, to: usize) -> &[usize] {
        self.to[to][from].as_ref().map_or(&[], |route| &route.links)
    }

    /// All ways from one AS to another as directed links (`2 * link + end` that is left): the one that BGP takes, or all that
    /// multipath spreads over.
    pub fn ways(&self, topology: &Topology, from: usize, to: usize, multipath: bool) -> Vec<Vec<usize>> {
        let mut ways = Vec::new();
        let mut open = vec![(from, Vec::new())];
        while let Some((at, way)) = open.pop() {
            if at == to {
                ways.push(way);
                continue;
            }
            let links = self.next_links(at, to);
            let links = if multipath { links } else { &links[..links.len().min(1)] };
            for link in links.iter().rev() {
                let ends = topology.links()[*link].ends.map(|end| topology.index(end.isd_as));
                let end = usize::from(ends[1] == Some(at));
                let Some(next) = ends[1 - end] else { continue };
                let mut longer = way.clone();
                longer.push(2 * link + end);
                // Paths of equal length get shorter with every hop, so this ends.
                open.push((next, longer));
            }
        }
        ways
    }
}

fn converge(topology: &Topology, destination: usize) -> Vec<Option<Route>> {
    let count = topology.ases().len();
    let mut routes: Vec<Option<Route>> = vec![None; count];
    routes[destination] = Some(Route { from: None, path: vec![destination], links: Vec::new() });
    // Without a loop among providers, which topologies have not, every round settles an AS or more (Gao and Rexford 2001).
    for _ in 0..=2 * count {
        let next: Vec<Option<Route>> = (0..count)
            .map(|at| if at == destination { routes[at].clone() } else { best(topology, &routes, at) })
            .collect();
        if next == routes {
            break;
        }
        routes = next;
    }
    routes
}

/// What an AS chooses of what its neighbours tell.
fn best(topology: &Topology, routes: &[Option<Route>], at: usize) -> Option<Route> {
    let heard = topology.ases()[at].interfaces.iter().filter_map(|interface| {
        let neighbour = topology.index(interface.remote.isd_as)?;
        let theirs = routes[neighbour].as_ref()?;
        let back = topology.interface(interface.remote)?.neighbour;
        let fits = is_told(theirs.from, back) && !theirs.path.contains(&at);
        fits.then_some((interface.neighbour, theirs.path.len(), neighbour, interface.link, &theirs.path))
    });
    let mut heard: Vec<_> = heard.collect();
    heard.sort_by_key(|(kind, len, neighbour, link, _)| (u32::MAX - preference(*kind), *len, *neighbour, *link));
    let (kind, len, _, _, path) = *heard.first()?;
    let equal = heard.iter().take_while(|other| preference(other.0) == preference(kind) && other.1 == len);
    let links = equal.map(|other| other.3).collect();
    Some(Route { from: Some(kind), path: std::iter::once(at).chain(path.iter().copied()).collect(), links })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two providers above two customers, whom a peering joins, and a customer below one of them.
    fn topology() -> Topology {
        let text = r#"
            [as."1-1"]
            core = true
            [as."1-2"]
            core = true
            [as."1-3"]
            [as."1-4"]
            [as."1-5"]
            [[link]]
            core = ["1-1", "1-2"]
            [[link]]
            parent = "1-1"
            child = "1-3"
            [[link]]
            parent = "1-2"
            child = "1-3"
            [[link]]
            parent = "1-1"
            child = "1-4"
            [[link]]
            parent = "1-2"
            child = "1-4"
            [[link]]
            peering = ["1-3", "1-4"]
            [[link]]
            parent = "1-4"
            child = "1-5"
        "#;
        Topology::from_toml("routes.toml", text).unwrap()
    }

    #[test]
    fn customers_go_before_peers_and_peers_before_providers() {
        let (topology, routes) = (topology(), Routes::new(&topology()));
        // 1-3 to 1-4 and its customer by the peering; 1-1 to the customer by 1-4, not by its peer.
        assert_eq!((routes.next_links(2, 3), routes.next_links(2, 4)), (&[5][..], &[5][..]));
        assert_eq!(routes.next_links(0, 4), [3]);
        assert_eq!(routes.ways(&topology, 2, 4, true), [vec![10, 12]]);
        assert_eq!(routes.next_links(3, 3), [0usize; 0]);
    }

    #[test]
    fn peers_are_not_told_of_providers_and_equals_are_shared() {
        let (topology, routes) = (topology(), Routes::new(&topology()));
        // 1-5 to 1-1: up by 1-4, never by the peer 1-3.
        assert_eq!(routes.ways(&topology, 4, 0, true), [vec![13, 7]]);
        // Core ASes reach each other over core links alone, although a customer is below both.
        assert_eq!(routes.next_links(0, 1), [0]);
        assert!(is_told(Some(Neighbour::Core), Neighbour::Core) && !is_told(Some(Neighbour::Parent), Neighbour::Peer));
        let text = "[as.'1-1']\ncore = true\n[as.'1-2']\n[[link]]\nparent = '1-1'\nchild = '1-2'\ncount = 3\n";
        let parallel = Topology::from_toml("parallel.toml", text).unwrap();
        let routes = Routes::new(&parallel);
        assert_eq!(routes.next_links(1, 0), [0, 1, 2]);
        assert_eq!(routes.ways(&parallel, 1, 0, false), [vec![1]]);
        assert_eq!(routes.ways(&parallel, 1, 0, true), [vec![1], vec![3], vec![5]]);
    }
}
