//! Which segments there are: what beacons would find, as plain lists of links.
//!
//! Beacons start at core ASes and go outward, over core links to other core ASes and down to children. An AS passes on a
//! bounded, diverse choice of what it gets, length by length, and keeps a bounded, diverse choice of all of it. So the
//! work grows with the links and not with the number of ways through the network; in a small network the bounds are
//! not reached and every way is found.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::OnceLock;

use anabranch_scion_wire::segment::AS_ENTRIES_MAX;

use super::limits::{BEACONS_PER_LENGTH_MAX, BEACONS_PER_ORIGIN_MAX, CANDIDATES_MAX, SEGMENTS_PER_PAIR_MAX};
use crate::topology::{Neighbour, Topology};

/// A segment's course, in the direction of beaconing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Course {
    /// Indices of the ASes, from the origin.
    pub ases: Vec<u32>,
    /// Indices of the links between them.
    pub links: Vec<u32>,
}

/// Courses from one origin, by the index of the AS that they lead to.
type FromOrigin = HashMap<u32, Vec<Course>>;

/// Whether beacons go over core links or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Core,
    Down,
}

/// The links of one AS that beacons leave by, with the ASes behind them.
type EgressLinks = Vec<(u32, u32)>;

/// All courses through a network without the links that are down. Found origin by origin, when first asked for.
pub(super) struct Courses {
    down: HashSet<usize>,
    link_count: usize,
    core: Flood,
    below: Flood,
}

/// What beacons of one scope find.
struct Flood {
    ways: Vec<EgressLinks>,
    found: Vec<OnceLock<FromOrigin>>,
}

impl Courses {
    pub(super) fn new(topology: &Topology, down: HashSet<usize>) -> Self {
        let core = Flood::new(topology, &down, Neighbour::Core);
        let below = Flood::new(topology, &down, Neighbour::Child);
        Self { down, link_count: topology.links().len(), core, below }
    }

    /// The links that are left out.
    pub(super) fn down(&self) -> &HashSet<usize> {
        &self.down
    }

    /// Courses from `origin`, a core AS, to `end`, the best first.
    pub(super) fn between(&self, scope: Scope, origin: usize, end: usize) -> &[Course] {
        let flood = match scope {
            Scope::Core => &self.core,
            Scope::Down => &self.below,
        };
        let found = flood.found[origin].get_or_init(|| flood.from(origin as u32, self.link_count));
        found.get(&(end as u32)).map_or(&[], Vec::as_slice)
    }
}

impl Flood {
    fn new(topology: &Topology, down: &HashSet<usize>, towards: Neighbour) -> Self {
        let ways = topology.ases().iter().map(|each| {
            let leaving = each.interfaces.iter().filter(|interface| interface.neighbour == towards);
            let up = leaving.filter(|interface| !down.contains(&interface.link));
            up.filter_map(|way| Some((way.link as u32, topology.index(way.remote.isd_as)? as u32))).collect()
        });
        Self { ways: ways.collect(), found: topology.ases().iter().map(|_| OnceLock::new()).collect() }
    }

    fn from(&self, origin: u32, link_count: usize) -> FromOrigin {
        let mut kept = FromOrigin::new();
        let mut front = vec![(origin, vec![Course { ases: vec![origin], links: Vec::new() }])];
        let mut chooser = Chooser { uses: vec![0; link_count] };
        // Each turn makes courses longer by one link, up to what a segment can hold.
        for _ in 1..AS_ENTRIES_MAX {
            let mut next_front = Vec::new();
            for (index, candidates) in self.spread(&front, &kept) {
                let known = kept.entry(index).or_default();
                let chosen = chooser.choose(&candidates, known, BEACONS_PER_LENGTH_MAX);
                let chosen: Vec<Course> = chosen.into_iter().map(|at| candidates[at].made(index)).collect();
                known.extend(chosen.iter().cloned());
                next_front.push((index, chosen));
            }
            if next_front.is_empty() {
                break;
            }
            front = next_front;
        }
        for courses in kept.values_mut() {
            let candidates: Vec<_> = courses.iter().map(|course| Candidate { course, link: None }).collect();
            let chosen = chooser.choose(&candidates, &[], SEGMENTS_PER_PAIR_MAX);
            *courses = chosen.into_iter().map(|at| courses[at].clone()).collect();
        }
        kept
    }

    /// What arrives at each neighbour of the ASes in front, in an order that depends on nothing but the topology.
    fn spread<'a>(&self, front: &'a [(u32, Vec<Course>)], kept: &FromOrigin) -> BTreeMap<u32, Vec<Candidate<'a>>> {
        let ways = |index: u32| self.ways[index as usize].iter().copied();
        let mut senders: HashMap<u32, usize> = HashMap::new();
        for (index, _) in front {
            ways(*index).for_each(|(_, next)| *senders.entry(next).or_default() += 1);
        }
        let mut arriving: BTreeMap<u32, Vec<Candidate<'a>>> = BTreeMap::new();
        for (index, courses) in front {
            for (link, next) in ways(*index) {
                if kept.get(&next).is_some_and(|known| known.len() >= BEACONS_PER_ORIGIN_MAX) {
                    continue;
                }
                let share = (CANDIDATES_MAX / senders.get(&next).copied().unwrap_or(1)).max(1);
                let fitting = courses.iter().filter(|course| !course.ases.contains(&next)).take(share);
                let mut fitting = fitting.map(|course| Candidate { course, link: Some(link) }).peekable();
                if fitting.peek().is_some() {
                    arriving.entry(next).or_default().extend(fitting);
                }
            }
        }
        arriving
    }
}

/// A course, and perhaps one link more.
struct Candidate<'a> {
    course: &'a Course,
    link: Option<u32>,
}

impl Candidate<'_> {
    fn links(&self) -> impl Iterator<Item = u32> {
        self.course.links.iter().copied().chain(self.link)
    }

    /// The longer course, which leads to `end`.
    fn made(&self, end: u32) -> Course {
        Course { ases: self.course.ases.iter().copied().chain([end]).collect(), links: self.links().collect() }
    }
}

/// Counts how often links are used while courses are chosen.
struct Chooser {
    uses: Vec<u32>,
}

impl Chooser {
    /// Indices of up to `max` candidates, in the order of choice: each step takes the one with the least links and the least
    /// use of links that those chosen, and those `known` before, use already; among equals the first.
    fn choose(&mut self, candidates: &[Candidate<'_>], known: &[Course], max: usize) -> Vec<usize> {
        self.uses.fill(0);
        known.iter().for_each(|course| self.take(course.links.iter().copied()));
        let costs = candidates.iter().enumerate().map(|(at, candidate)| Reverse((self.cost(candidate), at)));
        let mut heap: BinaryHeap<_> = costs.collect();
        let mut chosen = Vec::with_capacity(max.min(candidates.len()));
        // Costs only grow, so the cheapest whose cost is still right is the cheapest of all.
        while let Some(Reverse((believed, at))) = heap.pop() {
            let real = self.cost(&candidates[at]);
            if real > believed {
                heap.push(Reverse((real, at)));
                continue;
            }
            self.take(candidates[at].links());
            chosen.push(at);
            if chosen.len() == max {
                break;
            }
        }
        chosen
    }

    fn take(&mut self, links: impl Iterator<Item = u32>) {
        links.for_each(|link| self.uses[link as usize] += 1);
    }

    /// A link more costs as much as two shared ones.
    fn cost(&self, candidate: &Candidate<'_>) -> u32 {
        candidate.links().map(|link| 2 + self.uses[link as usize]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` core ASes, each joined to each.
    fn mesh(count: usize) -> Topology {
        let mut text = String::new();
        for a in 1..=count {
            text += &format!("[as.'1-{a}']\ncore = true\n");
        }
        for a in 1..=count {
            for b in a + 1..=count {
                text += &format!("[[link]]\ncore = ['1-{a}', '1-{b}']\n");
            }
        }
        Topology::from_toml("mesh", &text).unwrap()
    }

    #[test]
    fn a_small_network_is_found_whole() {
        // From 1 to 2 of four: direct, over 3, over 4, over 3 and 4, over 4 and 3.
        let courses = Courses::new(&mesh(4), HashSet::new());
        let found = courses.between(Scope::Core, 0, 1);
        assert_eq!(found.len(), 5);
        assert_eq!(found[0].links.len(), 1);
        assert!(courses.between(Scope::Down, 0, 1).is_empty());
        assert!(courses.between(Scope::Core, 0, 0).is_empty());
    }

    #[test]
    fn a_large_mesh_stays_bounded_and_diverse() {
        let courses = Courses::new(&mesh(10), HashSet::new());
        let found = courses.between(Scope::Core, 0, 9);
        assert_eq!(found.len(), SEGMENTS_PER_PAIR_MAX);
        // The nine ways that share nothing come first.
        let mut seen = HashSet::new();
        assert!(found[..9].iter().flat_map(|course| &course.links).all(|link| seen.insert(*link)));
    }

    #[test]
    fn a_link_that_is_down_is_on_no_course() {
        let courses = Courses::new(&mesh(4), HashSet::from([0]));
        let found = courses.between(Scope::Core, 0, 1);
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|course| !course.links.contains(&0)));
    }

    #[test]
    fn a_long_line_is_found_to_the_last_entry_that_a_segment_holds() {
        let count = AS_ENTRIES_MAX + 1;
        let mut text = String::from("[as.'1-1']\ncore = true\n");
        for a in 2..=count {
            text += &format!("[as.'1-{a}']\n[[link]]\nparent = '1-{}'\nchild = '1-{a}'\n", a - 1);
        }
        let topology = Topology::from_toml("line", &text).unwrap();
        let courses = Courses::new(&topology, HashSet::new());
        assert_eq!(courses.between(Scope::Down, 0, AS_ENTRIES_MAX - 1).len(), 1);
        assert!(courses.between(Scope::Down, 0, AS_ENTRIES_MAX).is_empty());
    }
}
