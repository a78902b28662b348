//! What must hold of every selector, on thousands of random topologies, and what the default promises beyond.

use std::collections::{HashMap, HashSet};

use super::*;
use crate::scoreboard::ThirdPartyLoad;
use crate::{Interface, IsdAs};

const TOPOLOGIES: u64 = 2000;

pub(super) fn resource(id: u16) -> Resource {
    Resource::Interface(Interface { isd_as: IsdAs::from_u64(1 << 48 | 1), id })
}

fn path_id(peer: u64, number: u64) -> PathId {
    let address = |n: u64| std::net::IpAddr::from(std::net::Ipv6Addr::from(u128::from(n)));
    Path::ip(address(peer), address(number + 1)).id()
}

pub(super) fn candidate(peer: u64, number: u64, resources: &[u16]) -> Candidate {
    Candidate {
        peer,
        path: path_id(peer, number),
        resources: resources.iter().map(|id| resource(*id)).collect(),
        claims_kbps: vec![None; resources.len()],
        hops: resources.len(),
        latency: None,
        handshake: None,
        place: number as usize,
        is_held: false,
        limit: None,
    }
}

/// Some peers, each with some paths through a layered network of a few interfaces.
fn topology(seed: u64) -> (Vec<Candidate>, Budget) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (layers, width) = (rng.u16(1..5), rng.u16(1..6));
    let mut candidates = Vec::new();
    for peer in 0..rng.u64(1..8) {
        for number in 0..rng.u64(1..10) {
            let resources: Vec<u16> = (0..layers).map(|layer| layer * 100 + rng.u16(0..width)).collect();
            candidates.push(candidate(peer, number, &resources));
        }
    }
    rng.shuffle(&mut candidates);
    (candidates, Budget { connections: rng.usize(1..30), per_peer: rng.usize(1..6) })
}

fn chosen_paths(candidates: &[Candidate], selection: &Selection) -> HashSet<(u64, PathId)> {
    selection.chosen().map(|index| (candidates[index].peer, candidates[index].path)).collect()
}

fn overlap(candidates: &[Candidate], chosen: &[usize]) -> usize {
    let mut load: HashMap<Resource, usize> = HashMap::new();
    let mut total = 0;
    for resource in chosen.iter().flat_map(|&index| &candidates[index].resources) {
        let load = load.entry(*resource).or_default();
        total += *load;
        *load += 1;
    }
    total
}

fn per_peer(candidates: &[Candidate], chosen: &[usize]) -> HashMap<u64, usize> {
    let mut counts: HashMap<u64, usize> = candidates.iter().map(|candidate| (candidate.peer, 0)).collect();
    chosen.iter().for_each(|&index| *counts.get_mut(&candidates[index].peer).unwrap() += 1);
    counts
}

/// A peer that nobody has met gets the path that it would get if it was chosen for.
#[test]
fn the_first_path_is_the_one_that_would_be_chosen() {
    for seed in 0..TOPOLOGIES {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut board = Scoreboard::default();
        let mut candidates: Vec<Candidate> = (0..rng.u64(1..10))
            .map(|number| {
                let resources: Vec<u16> = (0..rng.u16(1..5)).map(|layer| layer * 100 + rng.u16(0..4)).collect();
                let handshake = rng.bool().then(|| Duration::from_millis(rng.u64(1..50)));
                let claim = |_| if seed % 2 == 0 { Some(rng.u64(1..9) * 1000) } else { None };
                let claims_kbps = resources.iter().map(claim).collect();
                Candidate { handshake, claims_kbps, ..candidate(1, number, &resources) }
            })
            .collect();
        // Where all else is equal the lookup's order counts here, and there the path's name: as if it listed the shortest first.
        let mut names: Vec<PathId> = candidates.iter().map(|candidate| candidate.path).collect();
        names.sort_unstable();
        candidates.sort_by_key(|candidate| candidate.hops);
        for (place, (candidate, name)) in candidates.iter_mut().zip(names).enumerate() {
            (candidate.place, candidate.path) = (place, name);
        }
        let third_party: Vec<(Resource, u32)> = (0..3).map(|_| (resource(rng.u16(0..4)), rng.u32(1..4))).collect();
        board.set_third_party_load(third_party.clone());
        let others = ThirdPartyLoad::new(third_party);
        rng.shuffle(&mut candidates);
        for selector in Selector::ALL {
            let selection = selector.select(&candidates, &board, Budget { connections: 1, per_peer: 1 });
            let ranked = selector.rank(&candidates, &[], &board, &others);
            assert_eq!(selection.chosen().next(), ranked.first().copied(), "seed {seed}, {selector}");
            let mut all = ranked;
            all.sort_unstable();
            assert!(all.into_iter().eq(0..candidates.len()), "seed {seed}, {selector}");
        }
    }
}

/// Beside a path in use the one that shares least comes first, or by the claims of the ASes the one with most room left.
#[test]
fn the_first_path_is_chosen_beside_those_in_use() {
    let (board, others) = (Scoreboard::default(), ThirdPartyLoad::default());
    let mut paths = [candidate(1, 0, &[1, 2]), candidate(1, 1, &[3, 4]), candidate(1, 2, &[1, 4])];
    let in_use = [candidate(2, 0, &[1, 2])];
    assert_eq!(Selector::Disjoint.rank(&paths, &in_use, &board, &others), [1, 2, 0]);
    assert_eq!(Selector::DisjointPaper.rank(&paths, &in_use, &board, &others), [1, 0, 2]);
    assert_eq!(Selector::Shortest.rank(&paths, &in_use, &board, &others), [0, 1, 2]);
    for path in &mut paths {
        path.claims_kbps = path.resources.iter().map(|at| Some(if *at == resource(3) { 10 } else { 1000 })).collect();
    }
    // The one in use fills what it passes; of the others' room 10 is more than none.
    assert_eq!(Selector::Disjoint.rank(&paths, &in_use, &board, &others), [1, 2, 0]);
    let narrow = [Candidate { claims_kbps: vec![Some(100), None], ..in_use[0].clone() }];
    assert_eq!(Selector::Disjoint.rank(&paths, &narrow, &board, &others), [2, 0, 1], "900 are left, and 10");
}

#[test]
fn every_selector_keeps_its_budget_and_ignores_the_order_of_its_input() {
    let board = Scoreboard::default();
    for seed in 0..TOPOLOGIES {
        let (candidates, budget) = topology(seed);
        let mut shuffled = candidates.clone();
        fastrand::Rng::with_seed(seed + 1).shuffle(&mut shuffled);
        for selector in Selector::ALL {
            let selection = selector.select(&candidates, &board, budget);
            assert_eq!(selection.verdicts.len(), candidates.len());
            assert_eq!(selection, selector.select(&candidates, &board, budget), "seed {seed}, {selector}");
            let again = selector.select(&shuffled, &board, budget);
            assert_eq!(
                chosen_paths(&candidates, &selection),
                chosen_paths(&shuffled, &again),
                "seed {seed}, {selector}"
            );
            let chosen: Vec<usize> = selection.chosen().collect();
            assert!(chosen.len() <= budget.connections, "seed {seed}, {selector}");
            if selector != Selector::DisjointPaper {
                let most = per_peer(&candidates, &chosen).into_values().max().unwrap();
                assert!(most <= budget.per_peer, "seed {seed}, {selector}");
            }
        }
    }
}

#[test]
fn nobody_gets_a_second_path_before_everybody_has_one() {
    let board = Scoreboard::default();
    for seed in 0..TOPOLOGIES {
        let (candidates, budget) = topology(seed);
        for selector in [Selector::Disjoint, Selector::All, Selector::BandwidthRace] {
            let chosen: Vec<usize> = selector.select(&candidates, &board, budget).chosen().collect();
            let counts = per_peer(&candidates, &chosen);
            let starving = counts.values().any(|count| *count == 0);
            assert!(!starving || counts.values().all(|count| *count <= 1), "seed {seed}, {selector}");
        }
    }
}

#[test]
fn nobody_gets_more_than_it_wants_and_what_is_left_is_others() {
    let board = Scoreboard::default();
    for seed in 0..TOPOLOGIES {
        let (mut candidates, budget) = topology(seed);
        let mut rng = fastrand::Rng::with_seed(seed + 2);
        let limits: HashMap<u64, usize> = (0..8).map(|peer| (peer, rng.usize(..5))).collect();
        candidates.iter_mut().for_each(|candidate| candidate.limit = Some(limits[&candidate.peer]));
        for selector in Selector::ALL {
            let chosen: Vec<usize> = selector.select(&candidates, &board, budget).chosen().collect();
            let counts = per_peer(&candidates, &chosen);
            assert!(counts.iter().all(|(peer, count)| *count <= limits[peer]), "seed {seed}, {selector}");
            // Nothing is measured, so nothing speaks against a path but the budget.
            if matches!(selector, Selector::All | Selector::Disjoint | Selector::BandwidthRace) {
                let all = per_peer(&candidates, &(0..candidates.len()).collect::<Vec<_>>());
                let wanted = all.iter().map(|(peer, paths)| limits[peer].min(budget.per_peer).min(*paths));
                assert_eq!(chosen.len(), wanted.sum::<usize>().min(budget.connections), "seed {seed}, {selector}");
            }
        }
    }
}

#[test]
fn what_one_peer_does_not_want_another_one_gets() {
    let mut candidates: Vec<Candidate> = (0..8).map(|n| candidate(n / 4, n % 4, &[n as u16])).collect();
    candidates.iter_mut().filter(|candidate| candidate.peer == 1).for_each(|candidate| candidate.limit = Some(1));
    let chosen = |selector: Selector, connections| {
        let budget = Budget { connections, per_peer: 4 };
        let chosen: Vec<usize> = selector.select(&candidates, &Scoreboard::default(), budget).chosen().collect();
        per_peer(&candidates, &chosen)
    };
    for selector in [Selector::Disjoint, Selector::All, Selector::BandwidthRace] {
        assert_eq!(chosen(selector, 2), HashMap::from([(0, 1), (1, 1)]), "{selector}");
        assert_eq!(chosen(selector, 4), HashMap::from([(0, 3), (1, 1)]), "{selector}");
        assert_eq!(chosen(selector, 9), HashMap::from([(0, 4), (1, 1)]), "{selector}");
    }
    // The paper's algorithm may leave somebody without, and gives nobody more than it wants.
    assert!(chosen(Selector::DisjointPaper, 9) == HashMap::from([(0, 4), (1, 1)]));
}

#[test]
fn disjoint_never_overlaps_more_than_the_paper_where_the_paper_lets_nobody_starve() {
    let board = Scoreboard::default();
    let mut compared = 0;
    for seed in 0..TOPOLOGIES {
        let (candidates, budget) = topology(seed);
        let ours: Vec<usize> = Selector::Disjoint.select(&candidates, &board, budget).chosen().collect();
        let paper: Vec<usize> = Selector::DisjointPaper.select(&candidates, &board, budget).chosen().collect();
        let counts = per_peer(&candidates, &paper);
        let is_fair = counts.values().all(|count| *count <= budget.per_peer)
            && (counts.values().all(|count| *count > 0) || counts.values().all(|count| *count <= 1));
        if is_fair && ours.len() == paper.len() {
            compared += 1;
            assert!(overlap(&candidates, &ours) <= overlap(&candidates, &paper), "seed {seed}");
        }
    }
    assert!(compared > TOPOLOGIES / 20, "only {compared} topologies let the paper's choice be compared");
}

#[test]
fn the_paper_starves_a_peer_that_disjoint_serves() {
    // Peer 1 has three paths that nobody shares; both paths of peer 2 cross the ones of peer 3.
    let mut candidates: Vec<Candidate> = (0..3).map(|n| candidate(1, n, &[n as u16])).collect();
    candidates.extend([candidate(2, 0, &[50, 60]), candidate(3, 0, &[50, 60])]);
    let budget = Budget { connections: 3, per_peer: 3 };
    let board = Scoreboard::default();
    let counts = |selector: Selector| {
        let chosen: Vec<usize> = selector.select(&candidates, &board, budget).chosen().collect();
        per_peer(&candidates, &chosen)
    };
    assert_eq!(counts(Selector::DisjointPaper), HashMap::from([(1, 3), (2, 0), (3, 0)]));
    assert_eq!(counts(Selector::Disjoint), HashMap::from([(1, 1), (2, 1), (3, 1)]));
}

#[test]
fn a_shared_link_is_taken_last_and_a_measured_one_never_twice() {
    let candidates = [candidate(1, 0, &[1, 9]), candidate(1, 1, &[2, 9]), candidate(1, 2, &[3, 4, 5])];
    let board = Scoreboard::default();
    let selection = Selector::Disjoint.select(&candidates, &board, Budget { connections: 2, per_peer: 2 });
    assert_eq!(selection.chosen().collect::<Vec<_>>(), [0, 2]);
    assert_eq!(selection.verdicts[2].reason, Reason::Disjoint);
    assert_eq!(selection.verdicts[1].reason, Reason::MoreOverlap { overlap: 1.0, at: resource(9) });
}

#[test]
fn what_others_use_is_avoided() {
    let candidates = [candidate(1, 0, &[1]), candidate(1, 1, &[2])];
    let mut board = Scoreboard::default();
    let budget = Budget { connections: 1, per_peer: 1 };
    board.set_third_party_load([(resource(1), 3)]);
    assert_eq!(Selector::Disjoint.select(&candidates, &board, budget).chosen().collect::<Vec<_>>(), [1]);
    board.set_third_party_load([(resource(2), 3)]);
    assert_eq!(Selector::Disjoint.select(&candidates, &board, budget).chosen().collect::<Vec<_>>(), [0]);
}

#[test]
fn what_is_in_use_stays_until_something_is_clearly_better() {
    let mut candidates = [candidate(1, 0, &[1]), candidate(1, 1, &[2])];
    let choose = |candidates: &[Candidate], loads: [u32; 2]| {
        let mut board = Scoreboard::default();
        board.set_third_party_load([(resource(1), loads[0]), (resource(2), loads[1])]);
        let budget = Budget { connections: 1, per_peer: 1 };
        Selector::Disjoint.select(candidates, &board, budget).chosen().collect::<Vec<_>>()
    };
    for claim in [None, Some(10_000)] {
        candidates.iter_mut().for_each(|candidate| (candidate.claims_kbps, candidate.is_held) = (vec![claim], false));
        assert_eq!(choose(&candidates, [5, 4]), [1]);
        candidates[0].is_held = true;
        assert_eq!(choose(&candidates, [5, 4]), [0]);
        assert_eq!(choose(&candidates, [11, 4]), [1]);
    }
}

#[test]
fn a_path_that_is_down_waits_in_standby() {
    let candidates = [candidate(1, 0, &[1]), candidate(1, 1, &[2])];
    let mut board = Scoreboard::default();
    board.add(candidates[0].path, &candidates[0].resources);
    board.set_down(candidates[0].path, true);
    for selector in Selector::ALL {
        let selection = selector.select(&candidates, &board, Budget { connections: 2, per_peer: 2 });
        assert_eq!(selection.verdicts[0], Verdict::standby(Reason::Down), "{selector}");
        assert_eq!(selection.chosen().collect::<Vec<_>>(), [1], "{selector}");
    }
}

#[test]
fn a_handshake_race_keeps_what_is_half_as_fast_and_no_slower() {
    let mut candidates: Vec<Candidate> = (0..3).map(|n| candidate(1, n, &[n as u16])).collect();
    for (candidate, millis) in candidates.iter_mut().zip([10, 20, 21]) {
        candidate.handshake = Some(Duration::from_millis(millis));
    }
    let budget = Budget { connections: 9, per_peer: 9 };
    let selection = Selector::HandshakeRace.select(&candidates, &Scoreboard::default(), budget);
    assert_eq!(selection.chosen().collect::<Vec<_>>(), [0, 1]);
    assert!(matches!(selection.verdicts[2], Verdict { choice: Choice::Standby, reason: Reason::RaceLost { .. } }));
}

#[test]
fn selecting_for_two_hundred_peers_stays_within_its_bound() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut candidates = Vec::new();
    for peer in 0..CANDIDATES_MAX as u64 / 50 + 1 {
        for number in 0..50 {
            let resources: Vec<u16> = (0..8).map(|layer| layer * 50 + rng.u16(0..50)).collect();
            candidates.push(candidate(peer, number, &resources));
        }
    }
    let selection =
        Selector::Disjoint.select(&candidates, &Scoreboard::default(), Budget { connections: 1000, per_peer: 4 });
    assert_eq!(selection.chosen().count(), 1000);
    let beyond = selection.verdicts.iter().filter(|verdict| verdict.reason == Reason::TooMany).count();
    assert_eq!(beyond, candidates.len() - CANDIDATES_MAX);
}

#[test]
fn names_round_trip_and_wrong_ones_name_the_choices() {
    for selector in Selector::ALL {
        assert_eq!(selector.name().parse(), Ok(selector));
    }
    let error = "fastest".parse::<Selector>().unwrap_err().to_string();
    assert!(Selector::ALL.iter().all(|selector| error.contains(selector.name())), "{error}");
}
