//! Which ways carry in the fluid model, and how much comes of it.

use std::collections::BTreeMap;

use anabranch_paths::flow::fair_rates;

use super::{PairWays, Swarm, Way};
use crate::bed::Routing;

/// Pairs of ASes whose choices are improved one by one: with more, the rules alone are tried.
const IMPROVED_PAIRS_MAX: usize = 150;
/// How often all of them are gone through.
const ROUNDS_MAX: usize = 3;

/// What all pairs carry with the best choice that is found, bits per second; `paths` is how many ways one may use to another over
/// SCION.
pub(super) fn carried(swarm: &Swarm, paths: usize) -> f64 {
    if swarm.routing != Routing::Scion {
        return together(swarm, swarm.pairs.iter().map(|pair| &pair.all));
    }
    let options: Vec<[Vec<Way>; Rule::ALL.len()]> =
        swarm.pairs.iter().map(|pair| Rule::ALL.map(|rule| rule.choose(swarm, pair, paths))).collect();
    let with = |rules: &[usize]| together(swarm, options.iter().zip(rules).map(|(of, rule)| &of[*rule]));
    let alike = (0..Rule::ALL.len()).map(|rule| vec![rule; options.len()]);
    let best = alike.map(|rules| (with(&rules), rules)).max_by(|one, other| one.0.total_cmp(&other.0));
    let Some((mut best, mut rules)) = best else { return 0.0 };
    if options.len() > IMPROVED_PAIRS_MAX {
        return best;
    }
    // No rule is best for all pairs of a network: each takes another one where that brings more to all together.
    for _ in 0..ROUNDS_MAX {
        let before = best;
        for (pair, rule) in (0..options.len()).flat_map(|pair| (0..Rule::ALL.len()).map(move |rule| (pair, rule))) {
            let was = rules[pair];
            if options[pair][was] == options[pair][rule] {
                continue;
            }
            rules[pair] = rule;
            let carried = with(&rules);
            if carried > best { best = carried } else { rules[pair] = was }
        }
        if best <= before {
            break;
        }
    }
    best
}

/// The sum of the max-min fair rates over these ways, given for each pair.
fn together<'a>(swarm: &Swarm, ways: impl Iterator<Item = &'a Vec<Way>>) -> f64 {
    let mut capacities: Vec<f64> = (0..swarm.capacities.len()).map(|link| swarm.capacity(link)).collect();
    // What the peers of an AS send at most is a link as well, behind all others.
    let mut doors = BTreeMap::new();
    for (at, limit) in &swarm.limits_up {
        doors.insert(*at, capacities.len());
        capacities.push(*limit as f64);
    }
    let of_pair = |(pair, ways): (&PairWays, &'a Vec<Way>)| {
        let door = doors.get(&pair.from).copied();
        ways.iter().map(move |way| way.iter().copied().chain(door).collect::<Way>()).collect::<Vec<_>>()
    };
    let paths: Vec<Way> = swarm.pairs.iter().zip(ways).flat_map(of_pair).collect();
    fair_rates(&paths, &capacities).iter().sum()
}

/// Which of the paths between two ASes carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The shortest that share no link with those before them.
    Disjoint,
    /// The shortest, whatever they share.
    Shortest,
    /// One after the other, those for which the most room is left on their way.
    Widest,
    /// What BGP takes.
    Bgp,
    /// What BGP takes that shares equals.
    BgpMultipath,
}

impl Rule {
    const ALL: [Self; 5] = [Self::Disjoint, Self::Shortest, Self::Widest, Self::Bgp, Self::BgpMultipath];

    /// So many of a pair's ways at most.
    fn choose(self, swarm: &Swarm, pair: &PairWays, most: usize) -> Vec<Way> {
        let first = |ways: &[Way]| ways.iter().take(most).cloned().collect();
        match self {
            Self::Disjoint => disjoint(&pair.all, most),
            Self::Shortest => first(&pair.all),
            Self::Widest => widest(swarm, &pair.all, most),
            Self::Bgp => first(&pair.bgp[0]),
            Self::BgpMultipath => first(&pair.bgp[1]),
        }
    }
}

fn disjoint(ways: &[Way], most: usize) -> Vec<Way> {
    let mut chosen: Vec<Way> = Vec::new();
    for way in ways {
        let shares = chosen.iter().flatten().any(|taken| way.iter().any(|link| link / 2 == taken / 2));
        if !shares && chosen.len() < most {
            chosen.push(way.clone());
        }
    }
    chosen
}

fn widest(swarm: &Swarm, ways: &[Way], most: usize) -> Vec<Way> {
    let mut left: Vec<f64> = (0..swarm.capacities.len()).map(|link| swarm.capacity(link)).collect();
    let mut chosen = Vec::new();
    while chosen.len() < most {
        let room = |way: &Way| way.iter().map(|link| left[*link]).fold(f64::INFINITY, f64::min);
        // Of equal ones the shortest, which stands first.
        let best = ways.iter().rev().max_by(|one, other| room(one).total_cmp(&room(other)));
        let Some((way, takes)) = best.map(|way| (way, room(way))).filter(|(_, takes)| *takes > 0.0) else { break };
        way.iter().for_each(|link| left[*link] -= takes);
        chosen.push(way.clone());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::super::tests::swarm_of;
    use super::*;

    #[test]
    fn each_rule_chooses_as_its_name_says() {
        let (swarm, _) = swarm_of(super::super::tests::SHARED, "1-1", &["1-2"]);
        let pair =
            |all: &[Way]| PairWays { from: 0, to: 2, all: all.to_vec(), bgp: [vec![all[1].clone()], all.to_vec()] };
        // From 1-1 by 1-3: the narrow link stands first.
        let ways = [vec![0, 2], vec![0, 4]];
        let choose = |rule: Rule, most| rule.choose(&swarm, &pair(&ways), most);
        assert_eq!(choose(Rule::Disjoint, 2), [[0, 2]]);
        assert_eq!(choose(Rule::Shortest, 2), ways);
        assert_eq!(choose(Rule::Widest, 2), [[0, 4], [0, 2]]);
        assert_eq!((choose(Rule::Widest, 1), choose(Rule::Shortest, 0)), (vec![vec![0, 4]], Vec::new()));
        assert_eq!((choose(Rule::Bgp, 2), choose(Rule::BgpMultipath, 1)), (vec![vec![0, 4]], vec![vec![0, 2]]));
        // What has no room left is not chosen.
        let thrice = [vec![0, 4], vec![0, 4], vec![0, 2]];
        assert_eq!(Rule::Widest.choose(&swarm, &pair(&thrice), 3), [[0, 4], [0, 2]]);
    }
}
