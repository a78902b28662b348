//! `disjoint-paper` and `disjoint`: as little in common as possible.

use std::collections::HashMap;

use super::numbered::Numbered;
use super::simple::{Length, length};
use super::{Ballot, Candidate, Choice, Reason, Verdict};
use crate::Scoreboard;

/// Overlaps below this are none: what is left of weights that were measured as nearly zero.
const OVERLAP_MIN: f64 = 0.05;

/// A further path is worth having where the chosen ones leave it this share of its width, by the claims of the ASes. With less
/// it brings little, and takes more from the others wherever it meets them.
const ROOM_SHARE_MIN: f64 = 0.1;

/// Paper, Algorithm 1, to the letter: conflicts of a path are counted against every other candidate, chosen or not, and
/// the first of the sorted list are taken, whosever they are. Only what a peer does not want is left out.
pub(super) fn paper(ballot: &mut Ballot<'_>) {
    let numbered = Numbered::new(ballot);
    let (mut left, mut counts) = (ballot.budget.connections, HashMap::new());
    for (index, conflicts) in by_conflicts(ballot, &numbered) {
        let Candidate { peer, limit, .. } = ballot.candidates[index];
        let count: &mut usize = counts.entry(peer).or_default();
        let verdict = if limit.is_some_and(|limit| *count >= limit) {
            Verdict::standby(Reason::PeerServed)
        } else if left > 0 {
            (left, *count) = (left - 1, *count + 1);
            Verdict::chosen(Reason::FewConflicts { conflicts })
        } else {
            Verdict::left(Reason::ManyConflicts { conflicts })
        };
        ballot.decide(index, verdict);
    }
}

/// The candidates, each with how often one of its resources is in another one (what comparing all pairs counts), in the
/// order of the paper.
fn by_conflicts(ballot: &Ballot<'_>, numbered: &Numbered) -> Vec<(usize, usize)> {
    let conflicts = |index: usize| numbered.of(index).iter().map(|&n| numbered.users(n).len() - 1).sum();
    let mut sorted: Vec<(usize, usize)> = ballot.order.iter().map(|&index| (index, conflicts(index))).collect();
    sorted.sort_by_cached_key(|&(index, conflicts)| {
        let candidate = &ballot.candidates[index];
        (conflicts, candidate.hops, candidate.peer, candidate.path)
    });
    sorted
}

/// Greedy: every step takes the candidate that overlaps least with what is already chosen; a peer with fewer paths comes
/// before one with more, so nobody gets a second path before everybody has one. Where every AS on every candidate claims
/// what its links carry, the one to which the chosen paths leave most room comes first: sharing a wide link is no loss, and
/// what has no room left stands by.
pub(super) fn greedy(ballot: &mut Ballot<'_>, board: &Scoreboard) {
    let numbered = Numbered::new(ballot);
    let mut field = Field::new(ballot, &numbered, board);
    let mut chosen = field.run(ballot);
    // Where the paper's own choice leaves nobody without, and overlaps less, it is the better one: greed can be led astray.
    if field.room.is_none() {
        let first = by_conflicts(ballot, &numbered).into_iter().take(ballot.budget.connections);
        let alternative: Vec<usize> = first.map(|(index, _)| index).collect();
        if alternative.len() == chosen.len()
            && is_fair(ballot, &alternative)
            && field.total_overlap(alternative.iter().copied())
                < field.total_overlap(chosen.iter().map(|(index, _)| *index))
        {
            chosen = field.retrace(&alternative);
        }
    }
    for (index, reason) in chosen {
        ballot.decide(index, Verdict::chosen(reason));
    }
    field.explain_the_rest(ballot);
}

/// Nobody has two paths while somebody has none, and nobody has more than a peer may.
fn is_fair(ballot: &Ballot<'_>, chosen: &[usize]) -> bool {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for &index in chosen {
        let count = counts.entry(ballot.candidates[index].peer).or_default();
        *count += 1;
        if *count > ballot.limit(index) {
            return false;
        }
    }
    // Who wants none is not without one.
    let wanting = || ballot.peers().iter().filter(|paths| ballot.limit(paths[0]) > 0).count();
    counts.values().all(|count| *count <= 1) || counts.len() == wanting()
}

/// How much better another path has to be than one that is in use, as a factor: what others use changes with every look at it, a new
/// connection starts slowly, and where all hosts of a network follow each other's choices, none would ever settle.
const HELD_FAVOUR: f64 = 2.0;

/// What is known of the resources, and the load on each.
struct Field<'a> {
    numbered: &'a Numbered,
    /// What one more path through a resource costs for each path that is there already.
    weights: Vec<f64>,
    congested: Vec<bool>,
    /// Paths of others through a resource, as far as they told.
    third_party: Vec<f64>,
    /// Chosen paths through each resource.
    load: Vec<f64>,
    /// What the chosen paths leave of each resource, kbit/s, where every AS on every candidate claims what it carries.
    room: Option<Vec<f64>>,
}

/// What a candidate has to offer, kept up to date: looking for the best is most of the work.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Offer {
    /// What it could carry beside those that are chosen, kbit/s, times `favour`; infinite where that is not known.
    gain: f64,
    /// With less it is not worth having as a further path.
    gain_min: f64,
    /// Its weighted overlap with what is chosen, divided by `favour`.
    overlap: f64,
    /// 1, or [`HELD_FAVOUR`] for what is in use.
    favour: f64,
    /// Whether it leads through a bottleneck that chosen paths fill already, as measured or by the claims: one more takes from
    /// them.
    is_full: bool,
    is_taken: bool,
}

impl Offer {
    fn is_better(&self, other: &Self) -> bool {
        self.gain > other.gain || self.gain == other.gain && self.overlap < other.overlap
    }

    fn favoured(self, favour: f64) -> Self {
        let Self { gain, gain_min, overlap, .. } = self;
        Self { gain: gain * favour, gain_min: gain_min * favour, overlap: overlap / favour, favour, ..self }
    }
}

impl<'a> Field<'a> {
    fn new(ballot: &Ballot<'_>, numbered: &'a Numbered, board: &Scoreboard) -> Self {
        let names = &numbered.names;
        let third_party: Vec<f64> = names.iter().map(|name| board.third_party_load(name)).collect();
        let mut room = numbered.claims_kbps(ballot);
        // Whoever else is there takes a part.
        for (room, third_party) in room.iter_mut().flatten().zip(&third_party) {
            *room /= 1.0 + third_party;
        }
        Self {
            numbered,
            weights: names.iter().map(|name| board.overlap_weight(name)).collect(),
            congested: names.iter().map(|name| board.is_congested(name)).collect(),
            third_party,
            load: vec![0.0; names.len()],
            room,
        }
    }

    fn offer(&self, index: usize) -> Offer {
        let numbers = self.numbered.of(index);
        let narrowest = |room: &Vec<f64>| numbers.iter().map(|&number| room[number]).fold(f64::INFINITY, f64::min);
        let gain = self.room.as_ref().map_or(f64::INFINITY, narrowest);
        Offer {
            gain,
            gain_min: ROOM_SHARE_MIN * gain,
            overlap: numbers.iter().map(|&n| self.weights[n] * (self.load[n] + self.third_party[n])).sum(),
            favour: 1.0,
            is_full: numbers.iter().any(|&n| self.congested[n] && self.load[n] > 0.0),
            is_taken: false,
        }
    }

    fn run(&mut self, ballot: &Ballot<'_>) -> Vec<(usize, Reason)> {
        // Each peer's candidates, the shortest first: so the first of equals is the shortest.
        let mut peers = ballot.peers();
        for paths in &mut peers {
            paths.sort_by_cached_key(|&index| length(ballot, index));
        }
        let offer = |(index, candidate): (usize, &Candidate)| {
            let offer = self.offer(index);
            if candidate.is_held { offer.favoured(HELD_FAVOUR) } else { offer }
        };
        let mut offers: Vec<Offer> = ballot.candidates.iter().enumerate().map(offer).collect();
        let mut chosen = Vec::new();
        // Rounds: in each, every peer gets at most one path more; within a round the best goes first.
        for round in 0..ballot.budget.per_peer {
            let before = chosen.len();
            let wanting = peers.iter().filter(|paths| ballot.limit(paths[0]) > round);
            let leads = wanting.filter_map(|paths| Lead::of(paths, &offers, round, ballot));
            let mut leads: Vec<Lead<'_>> = leads.collect();
            while chosen.len() < ballot.budget.connections {
                let better = |left: usize, right: usize| if leads[right].beats(&leads[left]) { right } else { left };
                let best = (0..leads.len()).reduce(better);
                let Some(best) = best else { break };
                let index = leads.remove(best).index;
                chosen.push((index, self.reason(index, round)));
                self.take(index, &mut offers);
                // Offers only get worse: who was a peer's best still is, unless it is what got worse.
                leads.retain_mut(|lead| {
                    if offers[lead.index] == lead.offer {
                        return true;
                    }
                    let next = Lead::of(lead.paths, &offers, round, ballot);
                    next.inspect(|next| *lead = *next).is_some()
                });
            }
            if chosen.len() == before {
                break;
            }
        }
        chosen
    }

    /// Takes a candidate, and tells the others through the same resources.
    fn take(&mut self, index: usize, offers: &mut [Offer]) {
        let (numbered, gain) = (self.numbered, self.offer(index).gain);
        // Who passes one end of a link passes the other end too: they are told once of both.
        for numbers in numbered.of(index).chunk_by(|&a, &b| numbered.users(a) == numbered.users(b)) {
            let (mut weight, mut room_left, mut is_congested) = (0.0, f64::INFINITY, false);
            for &number in numbers {
                self.load[number] += 1.0;
                weight += self.weights[number];
                is_congested |= self.congested[number];
                if let Some(room) = &mut self.room {
                    // Differences of floating-point numbers may end a little below nothing.
                    room[number] = (room[number] - gain).max(0.0);
                    room_left = room_left.min(room[number]);
                }
            }
            for &user in numbered.users(numbers[0]) {
                let offer = &mut offers[user as usize];
                offer.overlap += weight / offer.favour;
                offer.gain = offer.gain.min(room_left * offer.favour);
                offer.is_full |= is_congested || offer.gain < offer.gain_min;
            }
        }
        offers[index].is_taken = true;
    }

    fn reason(&self, index: usize, round: usize) -> Reason {
        let Offer { gain, overlap, .. } = self.offer(index);
        if overlap < OVERLAP_MIN {
            let shares = self.numbered.of(index).iter().any(|&n| self.load[n] + self.third_party[n] > 0.0);
            return if shares { Reason::HarmlessOverlap } else { Reason::Disjoint };
        }
        match round {
            0 => Reason::ServesPeer { overlap },
            _ if gain > 0.0 && gain.is_finite() => Reason::MostRoom { kbps: gain as u64 },
            _ => Reason::LeastOverlap { overlap },
        }
    }

    /// Weighted overlap between all pairs of `chosen`.
    fn total_overlap(&self, chosen: impl Iterator<Item = usize>) -> f64 {
        let mut load = vec![0.0; self.load.len()];
        let mut total = 0.0;
        for index in chosen {
            for &number in self.numbered.of(index) {
                total += self.weights[number] * (load[number] + self.third_party[number]);
                load[number] += 1.0;
            }
        }
        total
    }

    /// Takes `chosen` instead of what was taken, with reasons as they arise in that order.
    fn retrace(&mut self, chosen: &[usize]) -> Vec<(usize, Reason)> {
        self.load.fill(0.0);
        let mut retraced = Vec::with_capacity(chosen.len());
        for &index in chosen {
            retraced.push((index, self.reason(index, 1)));
            self.numbered.of(index).iter().for_each(|&number| self.load[number] += 1.0);
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
            let served = counts.get(&ballot.candidates[index].peer).copied().unwrap_or(0) >= ballot.limit(index);
            ballot.decide(index, self.refusal(index, served));
        }
    }

    /// Why a candidate was not chosen.
    fn refusal(&self, index: usize, is_served: bool) -> Verdict {
        let (numbers, names, offer) = (self.numbered.of(index), &self.numbered.names, self.offer(index));
        let most = |cost: &dyn Fn(usize) -> f64| {
            let worst = numbers.iter().copied().max_by(|&a, &b| cost(a).total_cmp(&cost(b)));
            worst.map(|number| names[number])
        };
        if let Some(&at) = numbers.iter().find(|&&n| self.congested[n] && self.load[n] > 0.0) {
            return Verdict::standby(Reason::Bottleneck { at: names[at] });
        }
        if let Some(room) = &self.room
            && let Some(at) = most(&|n| -room[n])
        {
            return Verdict::standby(Reason::LessRoom { kbps: offer.gain as u64, at });
        }
        match most(&|n| self.weights[n] * (self.load[n] + self.third_party[n])) {
            Some(at) if offer.overlap >= OVERLAP_MIN => {
                Verdict::standby(Reason::MoreOverlap { overlap: offer.overlap, at })
            }
            _ if is_served => Verdict::standby(Reason::PeerServed),
            _ => Verdict::left(Reason::BudgetSpent),
        }
    }
}

/// The best of a peer's candidates.
#[derive(Clone, Copy)]
struct Lead<'a> {
    /// All of the peer's.
    paths: &'a [usize],
    index: usize,
    offer: Offer,
    length: Length,
}

impl<'a> Lead<'a> {
    /// The first of equals.
    fn of(paths: &'a [usize], offers: &[Offer], round: usize, ballot: &Ballot<'_>) -> Option<Self> {
        let mut best: Option<usize> = None;
        for &index in paths {
            let offer = &offers[index];
            if offer.is_taken || round > 0 && offer.is_full {
                continue;
            }
            if best.is_none_or(|best| offer.is_better(&offers[best])) {
                best = Some(index);
            }
        }
        best.map(|index| Self { paths, index, offer: offers[index], length: length(ballot, index) })
    }

    /// The shorter one of equals.
    fn beats(&self, other: &Self) -> bool {
        self.offer.is_better(&other.offer) || !other.offer.is_better(&self.offer) && self.length < other.length
    }
}
