//! What two paths have in common, and the order in which lists of paths stand.

use std::borrow::Borrow;
use std::net::IpAddr;

use crate::ScionPath;

/// How much two paths have in common. Ordered by links, then interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Overlap {
    /// Interfaces that both pass.
    pub interfaces: usize,
    /// Links that both pass, in whichever direction: one failure, and mostly one bottleneck, hits both.
    pub links: usize,
}

impl Overlap {
    pub(crate) fn of_ip(ours: (IpAddr, IpAddr), theirs: (IpAddr, IpAddr)) -> Self {
        let interfaces = usize::from(ours.0 == theirs.0) + usize::from(ours.1 == theirs.1);
        Self { interfaces, links: usize::from(ours == theirs) }
    }
}

impl Ord for Overlap {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.links, self.interfaces).cmp(&(other.links, other.interfaces))
    }
}

impl PartialOrd for Overlap {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl ScionPath {
    /// What this path and `other` have in common.
    pub fn overlap(&self, other: &Self) -> Overlap {
        // A path has at most 64 hop fields (SCION data plane, "PathMeta header"), so lists are short and searching beats sorting.
        let interfaces = self.interfaces.iter().filter(|interface| other.interfaces.contains(interface)).count();
        let links =
            self.links().filter(|link| other.links().any(|theirs| theirs == *link || theirs == (link.1, link.0)));
        Overlap { interfaces, links: links.count() }
    }
}

/// The order in which paths are shown and tried: few hops first, then low latency ([`Latency`](crate::Latency)), then by id.
pub fn sort<P: Borrow<ScionPath>>(paths: &mut [P]) {
    paths.sort_by_cached_key(|path| {
        let path = path.borrow();
        (path.hop_count(), path.latency(), path.id())
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::path;

    #[test]
    fn overlap_counts_interfaces_and_links() {
        let ours = path("1-1 1>2 1-2 3>4 1-3 5>6 1-4");
        let overlap = |text: &str| {
            let theirs = path(text);
            let overlap = ours.overlap(&theirs);
            assert_eq!(overlap, theirs.overlap(&ours), "{text}");
            (overlap.interfaces, overlap.links)
        };
        assert_eq!(overlap("1-1 1>2 1-2 3>4 1-3 5>6 1-4"), (6, 3));
        assert_eq!(overlap("1-1 1>2 1-2 7>8 1-3 9>6 1-4"), (3, 1));
        assert_eq!(overlap("1-4 6>5 1-3 4>3 1-2"), (4, 2), "either direction");
        assert_eq!(overlap("1-1 11>12 1-2 13>14 1-3"), (0, 0), "parallel links are apart");
        assert_eq!(overlap("2-1 1>2 2-2"), (0, 0), "interface numbers are of their AS");
        assert_eq!(overlap("1-1"), (0, 0));
    }

    #[test]
    fn order_is_hops_then_latency_then_id() {
        let with_latency = |text: &str, ms: &[Option<u64>]| {
            let mut path = path(text);
            path.latency = ms.iter().map(|ms| ms.map(Duration::from_millis)).collect();
            path
        };
        let mut ties = [with_latency("1-1 5>5 1-9", &[Some(30)]), with_latency("1-1 6>6 1-9", &[Some(30)])];
        ties.sort_by_key(ScionPath::id);
        let [tie_a, tie_b] = ties;
        let expected = [
            with_latency("1-1 1>1 1-9", &[Some(20)]),
            tie_a,
            tie_b,
            with_latency("1-1 2>2 1-9", &[None]),
            with_latency("1-1 1>2 1-2 3>4 1-9", &[Some(1), Some(1), Some(1)]),
            with_latency("1-1 1>2 1-2 4>5 1-9", &[Some(1), None, Some(1)]),
        ];
        for seed in 0..20 {
            let mut paths = expected.clone();
            fastrand::Rng::with_seed(seed).shuffle(&mut paths);
            sort(&mut paths);
            assert_eq!(paths, expected, "seed {seed}");
        }
    }
}
