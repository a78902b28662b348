//! `disjoint-paper` and `disjoint`: as little in common as possible.

use std::collections::HashMap;

use super::simple::by_length;
use super::{Ballot, Choice, Reason, Resource, Verdict};
use crate::Scoreboard;

/// Overlaps below this are none: what is left of weights that were measured as nearly zero.
const OVERLAP_MIN: f64 = 0.05;

/// Paper, Algorithm 1, to the letter: conflicts of a path are counted against every other candidate, chosen or not, and
/// the first of the sorted list are taken, whosever they are.
pub(super) fn paper(ballot: &mut Ballot<'_>) {
    let conflicts = conflicts(ballot);
    let mut sorted = ballot.order.clone();
    sorted.sort_by_key(|&index| {
        (conflicts[index], ballot.candidates[index].hops, ballot.candidates[index].peer, ballot.candidates[index].path)
    });
    for (place, index) in sorted.into_iter().enumerate() {
        let conflicts = conflicts[index];
        let verdict = if place < ballot.budget.connections {
            Verdict::chosen(Reason::FewConflicts { conflicts })
        } else {
            Verdict::left(Reason::ManyConflicts { conflicts })
        };
        ballot.decide(index, verdict);
    }
}

/// For every candidate, how often one of its resources is in another one: what comparing all pairs counts.
fn conflicts(ballot: &Ballot<'_>) -> Vec<usize> {
    let mut passing: HashMap<Resource, usize> = HashMap::new();
    for &index in &ballot.order {
        for resource in &ballot.candidates[index].resources {
            *passing.entry(*resource).or_default() += 1;
        }
    }
    let mut conflicts = vec![0; ballot.candidates.len()];
    for &index in &ballot.order {
        conflicts[index] = ballot.candidates[index].resources.iter().map(|resource| passing[resource] - 1).sum();
    }
    conflicts
}

/// Greedy: every step takes the candidate that overlaps least with what is already chosen; a peer with fewer paths comes
/// before one with more, so nobody gets a second path before everybody has one.
pub(super) fn greedy(ballot: &mut Ballot<'_>, board: &Scoreboard) {
    let mut field = Field::new(ballot, board);
    let mut chosen = field.run(ballot);
    // Where the paper's own choice leaves nobody without, and overlaps less, it is the better one: greed can be led astray.
    let alternative = field.paper_choice(ballot);
    if alternative.len() == chosen.len()
        && field.is_fair(ballot, &alternative)
        && field.total_overlap(&alternative) < field.total_overlap(&chosen)
    {
        chosen = field.retrace(&alternative);
    }
    for (index, reason) in chosen {
        ballot.decide(index, Verdict::chosen(reason));
    }
    field.explain_the_rest(ballot);
}

/// The candidates with their resources numbered, and the load on each resource.
struct Field {
    /// Numbers of the resources of each candidate.
    resources: Vec<Vec<usize>>,
    names: Vec<Resource>,
    /// What one more path through a resource costs for each path that is there already.
    weights: Vec<f64>,
    congested: Vec<bool>,
    /// Paths of others through a resource, as far as they told.
    foreign: Vec<f64>,
    /// Chosen paths through each resource.
    load: Vec<f64>,
    /// The candidates through each resource.
    users: Vec<Vec<usize>>,
    /// The overlap of each candidate with what is chosen.
    overlap: Vec<f64>,
}

impl Field {
    fn new(ballot: &Ballot<'_>, board: &Scoreboard) -> Self {
        let mut numbers: HashMap<Resource, usize> = HashMap::new();
        let mut names = Vec::new();
        let mut users: Vec<Vec<usize>> = Vec::new();
        let mut resources = vec![Vec::new(); ballot.candidates.len()];
        for &index in &ballot.order {
            for resource in &ballot.candidates[index].resources {
                let number = *numbers.entry(*resource).or_insert_with(|| {
                    names.push(*resource);
                    users.push(Vec::new());
                    names.len() - 1
                });
                resources[index].push(number);
                users[number].push(index);
            }
        }
        let weights: Vec<f64> = names.iter().map(|name| board.overlap_weight(name)).collect();
        let foreign: Vec<f64> = names.iter().map(|name| board.foreign_load(name)).collect();
        let congested = names.iter().map(|name| board.is_congested(name)).collect();
        let overlap = resources.iter().map(|numbers| numbers.iter().map(|&n| weights[n] * foreign[n]).sum()).collect();
        Self { load: vec![0.0; names.len()], resources, names, weights, congested, foreign, users, overlap }
    }

    fn run(&mut self, ballot: &Ballot<'_>) -> Vec<(usize, Reason)> {
        let peers = ballot.peers();
        let mut left: Vec<Vec<usize>> = peers;
        for paths in &mut left {
            paths.sort_by_key(|&index| by_length(ballot, index));
        }
        let mut chosen = Vec::new();
        // Rounds: in each, every peer gets at most one path more; within a round the least overlap goes first.
        for round in 0..ballot.budget.per_peer {
            let mut waiting: Vec<usize> = (0..left.len()).filter(|&peer| !left[peer].is_empty()).collect();
            if waiting.is_empty() {
                break;
            }
            while !waiting.is_empty() && chosen.len() < ballot.budget.connections {
                // The first of equals is the shortest, because each list is sorted so.
                let best_of = |peer: usize| {
                    let usable =
                        left[peer].iter().enumerate().filter(|&(_, &index)| round == 0 || !self.is_full(index));
                    usable
                        .min_by(|(a, left), (b, right)| {
                            self.overlap[**left].total_cmp(&self.overlap[**right]).then(a.cmp(b))
                        })
                        .map(|(at, index)| (at, *index))
                };
                let winner =
                    waiting.iter().enumerate().filter_map(|(slot, &peer)| Some((slot, peer, best_of(peer)?))).min_by(
                        |(_, _, (_, a)), (_, _, (_, b))| {
                            self.overlap[*a]
                                .total_cmp(&self.overlap[*b])
                                .then_with(|| by_length(ballot, *a).cmp(&by_length(ballot, *b)))
                        },
                    );
                let Some((slot, peer, (at, index))) = winner else { break };
                waiting.swap_remove(slot);
                waiting.sort_unstable();
                left[peer].remove(at);
                chosen.push((index, self.reason(index, round)));
                self.take(index);
            }
        }
        chosen
    }

    /// Whether it leads through a bottleneck that a chosen path fills already: one more takes from the first.
    fn is_full(&self, index: usize) -> bool {
        self.resources[index].iter().any(|&n| self.congested[n] && self.load[n] > 0.0)
    }

    fn reason(&self, index: usize, round: usize) -> Reason {
        let overlap = self.overlap[index];
        if overlap >= OVERLAP_MIN {
            return if round == 0 { Reason::ServesPeer { overlap } } else { Reason::LeastOverlap { overlap } };
        }
        let shares = self.resources[index].iter().any(|&n| self.load[n] + self.foreign[n] > 0.0);
        if shares { Reason::HarmlessOverlap } else { Reason::Disjoint }
    }

    fn take(&mut self, index: usize) {
        for at in 0..self.resources[index].len() {
            let number = self.resources[index][at];
            self.load[number] += 1.0;
            for &user in &self.users[number] {
                self.overlap[user] += self.weights[number];
            }
        }
    }

    fn paper_choice(&self, ballot: &Ballot<'_>) -> Vec<(usize, Reason)> {
        let conflicts = conflicts(ballot);
        let mut sorted = ballot.order.clone();
        sorted.sort_by_key(|&index| {
            (
                conflicts[index],
                ballot.candidates[index].hops,
                ballot.candidates[index].peer,
                ballot.candidates[index].path,
            )
        });
        sorted.into_iter().take(ballot.budget.connections).map(|index| (index, Reason::Disjoint)).collect()
    }

    /// Nobody has two paths while somebody has none, and nobody has more than a peer may.
    fn is_fair(&self, ballot: &Ballot<'_>, chosen: &[(usize, Reason)]) -> bool {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for (index, _) in chosen {
            *counts.entry(ballot.candidates[*index].peer).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        most <= ballot.budget.per_peer && (most <= 1 || counts.len() == ballot.peers().len())
    }

    /// Weighted overlap between all pairs of `chosen`.
    fn total_overlap(&self, chosen: &[(usize, Reason)]) -> f64 {
        let mut load = vec![0.0; self.names.len()];
        let mut total = 0.0;
        for (index, _) in chosen {
            for &number in &self.resources[*index] {
                total += self.weights[number] * (load[number] + self.foreign[number]);
                load[number] += 1.0;
            }
        }
        total
    }

    /// Takes `chosen` instead of what was taken, with reasons as they arise in that order.
    fn retrace(&mut self, chosen: &[(usize, Reason)]) -> Vec<(usize, Reason)> {
        self.load.fill(0.0);
        for (index, numbers) in self.resources.iter().enumerate() {
            self.overlap[index] = numbers.iter().map(|&n| self.weights[n] * self.foreign[n]).sum();
        }
        let mut retraced = Vec::with_capacity(chosen.len());
        for &(index, _) in chosen {
            retraced.push((index, self.reason(index, 1)));
            self.take(index);
        }
        retraced
    }

    fn explain_the_rest(&self, ballot: &mut Ballot<'_>) {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        let is_chosen =
            |verdict: &Option<Verdict>| verdict.as_ref().is_some_and(|verdict| verdict.choice == Choice::Chosen);
        for &index in ballot.order.iter().filter(|&&index| is_chosen(&ballot.verdicts[index])) {
            *counts.entry(ballot.candidates[index].peer).or_default() += 1;
        }
        for index in ballot.order.clone() {
            if ballot.verdicts[index].is_some() {
                continue;
            }
            let worst = self.resources[index].iter().copied().max_by(|&a, &b| {
                let cost = |n: usize| self.weights[n] * (self.load[n] + self.foreign[n]);
                cost(a).total_cmp(&cost(b))
            });
            let full = self.resources[index].iter().copied().find(|&n| self.congested[n] && self.load[n] > 0.0);
            let served = counts.get(&ballot.candidates[index].peer).copied().unwrap_or(0) >= ballot.budget.per_peer;
            let overlap = self.overlap[index];
            let verdict = match (full, worst) {
                (Some(at), _) => Verdict::standby(Reason::Bottleneck { at: self.names[at] }),
                (None, Some(at)) if overlap >= OVERLAP_MIN => {
                    Verdict::standby(Reason::MoreOverlap { overlap, at: self.names[at] })
                }
                _ if served => Verdict::standby(Reason::PeerServed),
                _ => Verdict::left(Reason::BudgetSpent),
            };
            ballot.decide(index, verdict);
        }
    }
}
