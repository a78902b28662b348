//! Which contents are at work, and which wait for others. Pure.

use std::cmp::Reverse;

/// What is known of a content that could be at work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Its number.
    pub id: u64,
    /// Its place in the queue.
    pub rank: i64,
    /// Its user lets it go on.
    pub is_wanted: bool,
    /// It goes on whoever else waits.
    pub is_forced: bool,
    /// Everything wanted is there.
    pub is_complete: bool,
    /// It failed: it takes no place.
    pub has_failed: bool,
    /// There is no room for more of it.
    pub lacks_space: bool,
    /// Its files are worked on, whatever else.
    pub is_busy: bool,
}

/// What becomes of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is at work.
    Run,
    /// Its user has it wait.
    Paused,
    /// It waits for others.
    Queued,
    /// It waits for room on the disk.
    NoSpace,
}

/// How many go on at once; `None`: all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// Of those that are not complete.
    pub downloads: Option<u32>,
    /// Of those that are.
    pub seeds: Option<u32>,
    /// Of all.
    pub all: Option<u32>,
}

/// What becomes of each, in their order. The lowest ranks go on first, of equals the one that was added first. Who is forced takes no
/// place.
pub(crate) fn turns(candidates: &[Candidate], places: Places) -> Vec<Turn> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|at| Reverse((candidates[*at].rank, candidates[*at].id)));
    let mut turns = vec![Turn::Paused; candidates.len()];
    let mut left = [places.downloads, places.seeds].map(|most| most.unwrap_or(u32::MAX));
    let mut all_left = places.all.unwrap_or(u32::MAX);
    while let Some(at) = order.pop() {
        let candidate = &candidates[at];
        let places = &mut left[usize::from(candidate.is_complete)];
        turns[at] = match candidate {
            Candidate { is_wanted: false, .. } => Turn::Paused,
            // It is shown why it failed, not that it waits.
            Candidate { has_failed: true, .. } => Turn::Run,
            Candidate { is_complete: false, lacks_space: true, .. } => Turn::NoSpace,
            Candidate { is_forced: true, .. } => Turn::Run,
            Candidate { is_busy: false, .. } if *places == 0 || all_left == 0 => Turn::Queued,
            _ => {
                *places = places.saturating_sub(1);
                all_left = all_left.saturating_sub(1);
                Turn::Run
            }
        };
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u64, rank: i64) -> Candidate {
        Candidate {
            id,
            rank,
            is_wanted: true,
            is_forced: false,
            is_complete: false,
            has_failed: false,
            lacks_space: false,
            is_busy: false,
        }
    }

    #[test]
    fn the_first_of_the_queue_go_on_and_who_cannot_takes_no_place() {
        let all = [
            candidate(1, 0),
            Candidate { is_wanted: false, ..candidate(2, -1) },
            Candidate { lacks_space: true, ..candidate(3, 0) },
            Candidate { has_failed: true, ..candidate(4, 0) },
            candidate(5, 0),
            candidate(6, -2),
            Candidate { is_complete: true, lacks_space: true, ..candidate(7, 0) },
            Candidate { is_complete: true, ..candidate(8, 0) },
            Candidate { is_complete: true, is_busy: true, ..candidate(9, 0) },
        ];
        use Turn::{NoSpace, Paused, Queued, Run};
        let turns = |all: &[Candidate], downloads, seeds| turns(all, Places { downloads, seeds, all: None });
        assert_eq!(turns(&all, Some(2), Some(1)), [Run, Paused, NoSpace, Run, Queued, Run, Run, Queued, Run]);
        assert_eq!(turns(&all, Some(1), None), [Queued, Paused, NoSpace, Run, Queued, Run, Run, Run, Run]);
        assert_eq!(turns(&all, None, None), [Run, Paused, NoSpace, Run, Run, Run, Run, Run, Run]);
        assert!(turns(&[], None, None).is_empty());
    }

    #[test]
    fn who_is_forced_takes_no_place_and_all_together_have_a_limit() {
        let all = [
            candidate(1, 0),
            Candidate { is_forced: true, ..candidate(2, 9) },
            Candidate { is_complete: true, ..candidate(3, 0) },
            candidate(4, 0),
        ];
        use Turn::{Queued, Run};
        let places = |all| Places { all: Some(all), ..Places::default() };
        assert_eq!(turns(&all, places(2)), [Run, Run, Run, Queued]);
        assert_eq!(turns(&all, places(1)), [Run, Run, Queued, Queued]);
        let one = Places { downloads: Some(1), ..Places::default() };
        assert_eq!(turns(&all, one), [Run, Run, Run, Queued]);
    }
}
