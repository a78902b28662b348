//! Which segments there are: what beacons would find, as plain lists of links.
//!
//! Beacons start at core ASes and go outward, over core links to other core ASes and down to children. An AS passes on a
//! bounded, diverse choice of what it gets, length by length, and keeps a bounded, diverse choice of all of it. So the
//! work grows with the links and not with the number of ways through the network; in a small network the bounds are
//! not reached and every way is found.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

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

/// All courses through a network without the links that are down. Found origin by origin, when first asked for.
pub(super) struct Courses {
    topology: Arc<Topology>,
    down: HashSet<usize>,
    core: Vec<OnceLock<FromOrigin>>,
    below: Vec<OnceLock<FromOrigin>>,
}

impl Courses {
    pub fn new(topology: Arc<Topology>, down: HashSet<usize>) -> Self {
        let empty = || topology.ases().iter().map(|_| OnceLock::new()).collect();
        Self { core: empty(), below: empty(), topology, down }
    }

    /// The links that are left out.
    pub fn down(&self) -> &HashSet<usize> {
        &self.down
    }

    /// Courses from `origin` to `end`, the best first.
    pub fn between(&self, scope: Scope, origin: usize, end: usize) -> &[Course] {
        let found = match scope {
            Scope::Core => &self.core[origin],
            Scope::Down => &self.below[origin],
        };
        found.get_or_init(|| self.flood(scope, origin)).get(&(end as u32)).map_or(&[], Vec::as_slice)
    }

    fn flood(&self, scope: Scope, origin: usize) -> FromOrigin {
        let towards = match scope {
            Scope::Core => Neighbour::Core,
            Scope::Down => Neighbour::Child,
        };
        let origin = origin as u32;
        if !self.topology.ases()[origin as usize].core {
            return FromOrigin::new();
        }
        let mut kept: FromOrigin = HashMap::new();
        let mut front = vec![(origin, vec![Course { ases: vec![origin], links: Vec::new() }])];
        // Each turn makes courses longer by one link, up to what a segment can hold.
        for _ in 1..AS_ENTRIES_MAX {
            let mut arriving = self.spread(towards, &front, &kept);
            // The order of a hash map must not decide anything.
            arriving.sort_by_key(|(index, _)| *index);
            front = Vec::with_capacity(arriving.len());
            for (index, candidates) in arriving {
                let known = kept.entry(index).or_default();
                let chosen = choose(&candidates, known, BEACONS_PER_LENGTH_MAX);
                known.extend(chosen.iter().cloned());
                front.push((index, chosen));
            }
            if front.is_empty() {
                break;
            }
        }
        for courses in kept.values_mut() {
            *courses = choose(courses, &[], SEGMENTS_PER_PAIR_MAX);
        }
        kept
    }

    /// What arrives at each neighbour of the ASes in front.
    fn spread(&self, towards: Neighbour, front: &[(u32, Vec<Course>)], kept: &FromOrigin) -> Vec<(u32, Vec<Course>)> {
        let mut arriving: HashMap<u32, Vec<Course>> = HashMap::new();
        let mut senders: HashMap<u32, usize> = HashMap::new();
        let ways = |index: u32| self.ways(towards, index);
        for (index, _) in front {
            ways(*index).for_each(|(_, next)| *senders.entry(next).or_default() += 1);
        }
        for (index, courses) in front {
            for (link, next) in ways(*index) {
                if kept.get(&next).is_some_and(|known| known.len() >= BEACONS_PER_ORIGIN_MAX) {
                    continue;
                }
                let share = (CANDIDATES_MAX / senders.get(&next).copied().unwrap_or(1)).max(1);
                let fitting = courses.iter().filter(|course| !course.ases.contains(&next)).take(share);
                let longer = fitting.map(|course| course.with(link, next));
                arriving.entry(next).or_default().extend(longer);
            }
        }
        arriving.into_iter().filter(|(_, candidates)| !candidates.is_empty()).collect()
    }

    /// Links of an AS to neighbours of one kind, with the neighbours.
    fn ways(&self, towards: Neighbour, index: u32) -> impl Iterator<Item = (u32, u32)> {
        let interfaces = self.topology.ases()[index as usize].interfaces.iter();
        interfaces
            .filter(move |interface| interface.neighbour == towards && !self.down.contains(&interface.link))
            .filter_map(|interface| Some((interface.link as u32, self.topology.index(interface.remote.isd_as)? as u32)))
    }
}

impl Course {
    fn with(&self, link: u32, next: u32) -> Self {
        let append = |list: &[u32], last| list.iter().copied().chain([last]).collect();
        Self { ases: append(&self.ases, next), links: append(&self.links, link) }
    }
}

/// Up to `max` of the candidates, in the order of choice: each step takes the one with the least links and the least use
/// of links that those chosen, and those `known` before, use already; among equals the first.
fn choose(candidates: &[Course], known: &[Course], max: usize) -> Vec<Course> {
    let mut uses: HashMap<u32, u32> = HashMap::new();
    let use_links = |uses: &mut HashMap<u32, u32>, course: &Course| {
        course.links.iter().for_each(|link| *uses.entry(*link).or_default() += 1);
    };
    known.iter().for_each(|course| use_links(&mut uses, course));
    // A link more costs as much as two shared ones.
    let cost = |uses: &HashMap<u32, u32>, course: &Course| -> u32 {
        2 * course.links.len() as u32 + course.links.iter().filter_map(|link| uses.get(link)).sum::<u32>()
    };
    let mut heap: BinaryHeap<_> =
        candidates.iter().enumerate().map(|(at, course)| Reverse((cost(&uses, course), at))).collect();
    let mut chosen = Vec::with_capacity(max.min(candidates.len()));
    // Costs only grow, so the cheapest whose cost is still right is the cheapest of all.
    while let Some(Reverse((believed, at))) = heap.pop() {
        let course = &candidates[at];
        let real = cost(&uses, course);
        if real > believed {
            heap.push(Reverse((real, at)));
            continue;
        }
        use_links(&mut uses, course);
        chosen.push(course.clone());
        if chosen.len() == max {
            break;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` core ASes, each joined to each.
    fn mesh(count: usize) -> Arc<Topology> {
        let mut text = String::new();
        for a in 1..=count {
            text += &format!("[as.'1-{a}']\ncore = true\n");
        }
        for a in 1..=count {
            for b in a + 1..=count {
                text += &format!("[[link]]\ncore = ['1-{a}', '1-{b}']\n");
            }
        }
        Arc::new(Topology::from_toml("mesh", &text).unwrap())
    }

    #[test]
    fn a_small_network_is_found_whole() {
        // From 1 to 2 of four: direct, over 3, over 4, over 3 and 4, over 4 and 3.
        let courses = Courses::new(mesh(4), HashSet::new());
        let found = courses.between(Scope::Core, 0, 1);
        assert_eq!(found.len(), 5);
        assert_eq!(found[0].links.len(), 1);
        assert!(courses.between(Scope::Down, 0, 1).is_empty());
        assert!(courses.between(Scope::Core, 0, 0).is_empty());
    }

    #[test]
    fn a_large_mesh_stays_bounded_and_diverse() {
        let courses = Courses::new(mesh(10), HashSet::new());
        let found = courses.between(Scope::Core, 0, 9);
        assert_eq!(found.len(), SEGMENTS_PER_PAIR_MAX);
        // The nine ways that share nothing come first.
        let mut seen = HashSet::new();
        assert!(found[..9].iter().flat_map(|course| &course.links).all(|link| seen.insert(*link)));
    }

    #[test]
    fn a_link_that_is_down_is_on_no_course() {
        let courses = Courses::new(mesh(4), HashSet::from([0]));
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
        let topology = Arc::new(Topology::from_toml("line", &text).unwrap());
        let courses = Courses::new(topology, HashSet::new());
        assert_eq!(courses.between(Scope::Down, 0, AS_ENTRIES_MAX - 1).len(), 1);
        assert!(courses.between(Scope::Down, 0, AS_ENTRIES_MAX).is_empty());
    }
}
