//! The goodput that no swarm exceeds.
//!
//! In whichever way a swarm goes about it: when its k-th peer is done, at time T, k peers have the whole content of S bytes.
//! What crossed links until then, divided by T, is a set of rates that the network carries all the time: from every AS with
//! peers to every other one, over any of the ways between them, within all capacities. An AS in which somebody is done got S
//! bytes of news over every cut between the seeds and it, so a flow of S / T gets from the seeds to that AS where each pair of ASes
//! is a line as wide as its rate. So S / T is at most the rate λ at which so many ASes can be served *all at once*, for the best
//! of all sets of so many ASes, and goodput, the sum of S / T over peers, is at most the sum of these λ.
//!
//! λ is a linear program (Edmonds' branchings with routers that do not copy between those who do): rates of ways, and for each
//! AS a flow over pairs. Which ASes are served is relaxed: shares of them, which sum to the number. With many
//! ASes the program is left aside, and λ is the k-th largest maximum flow, or what all may send, divided by the number of those served
//! (Kumar and Ross, "Peer-Assisted File Distribution: The Minimum Distribution Time", 2006): bounds as well, only wider.

use std::collections::BTreeMap;

use microlp::{ComparisonOp, OptimizationDirection, Problem, SolutionStatus, Variable};

use super::Swarm;

/// Targets and ways of a program that is solved: seconds of work at most.
pub(super) const TARGETS_MAX: usize = 12;
const WAYS_MAX: usize = 10_000;
/// How much more than what a program says is taken for its bound: what its arithmetic may be wrong by.
const SLACK: f64 = 1.0 + 1e-6;
/// Variables with what they count, as programs take them.
type Sum = Vec<(Variable, f64)>;

/// Rates in programs are in Mbit/s, so that their numbers are of one size.
const UNIT_BPS: f64 = 1e6;

/// The sum over peers of the rate at which so many of them can have the content, bits per second. `most` is the maximum
/// flow to each target.
pub(super) fn goodput(swarm: &Swarm, most: &BTreeMap<usize, f64>) -> f64 {
    let rates = rates(swarm, most);
    // With as many peers done as the largest ASes have together, so many ASes have the content at least.
    let mut peers: Vec<usize> = swarm.targets.values().copied().collect();
    peers.sort_unstable_by(|one, other| other.cmp(one));
    peers.into_iter().zip(rates).map(|(peers, rate)| peers as f64 * rate).sum()
}

/// The most at which 1, 2, ... targets can be served at once, bits per second.
fn rates(swarm: &Swarm, most: &BTreeMap<usize, f64>) -> Vec<f64> {
    let mut rates: Vec<f64> = most.values().copied().collect();
    rates.sort_unstable_by(|one, other| other.total_cmp(one));
    let senders = swarm.seeds.iter().chain(swarm.targets.keys());
    let sent: Option<u64> =
        senders.map(|at| swarm.limits_up.get(at).copied()).try_fold(0, |sum: u64, one| Some(sum.saturating_add(one?)));
    if let Some(sent) = sent {
        rates.iter_mut().enumerate().for_each(|(before, rate)| *rate = rate.min(sent as f64 / (before + 1) as f64));
    }
    let ways: usize = swarm.to_targets().map(|pair| pair.all.len()).sum();
    if rates.len() > TARGETS_MAX || ways > WAYS_MAX {
        return rates;
    }
    // The fewer are served, the faster, so what holds for more of them is reached by fewer.
    let mut reached = 0.0;
    for count in (2..=rates.len()).rev() {
        let at_most = rates[count - 1];
        if at_most > reached {
            let solved = served_at_once(swarm, most, count);
            rates[count - 1] = solved.map_or(at_most, |rate| (rate * SLACK).clamp(reached, at_most));
        }
        reached = rates[count - 1];
    }
    rates
}

/// The most at which so many targets can be served at once, bits per second; `None` where the solver gives up.
fn served_at_once(swarm: &Swarm, most: &BTreeMap<usize, f64>, count: usize) -> Option<f64> {
    let mut program = Problem::new(OptimizationDirection::Maximize);
    let greatest = most.values().copied().fold(0.0, f64::max) / UNIT_BPS;
    let rate = program.add_var(1.0, (0.0, greatest));
    let mut on_links: BTreeMap<usize, Sum> = BTreeMap::new();
    let mut by_sender: BTreeMap<usize, Sum> = BTreeMap::new();
    let mut carried = Vec::new();
    for pair in swarm.to_targets() {
        let mut ways = Vec::with_capacity(pair.all.len());
        for way in &pair.all {
            let flow = program.add_var(0.0, (0.0, f64::INFINITY));
            ways.push(flow);
            way.iter().for_each(|link| on_links.entry(*link).or_default().push((flow, 1.0)));
            by_sender.entry(pair.from).or_default().push((flow, 1.0));
        }
        carried.push(ways);
    }
    for (link, load) in on_links {
        if let Some(capacity) = swarm.capacities[link] {
            program.add_constraint(load, ComparisonOp::Le, capacity as f64 / UNIT_BPS);
        }
    }
    for (sender, load) in by_sender {
        if let Some(limit) = swarm.limits_up.get(&sender) {
            program.add_constraint(load, ComparisonOp::Le, *limit as f64 / UNIT_BPS);
        }
    }
    let mut served = Sum::new();
    for (target, most) in most {
        let share = program.add_var(0.0, (0.0, most / UNIT_BPS));
        program.add_constraint([(share, 1.0), (rate, -1.0)], ComparisonOp::Le, 0.0);
        served.push((share, 1.0));
        add_flow(&mut program, swarm, &carried, *target, share);
    }
    served.push((rate, -(count as f64)));
    program.add_constraint(served, ComparisonOp::Ge, 0.0);
    let solution = program.solve().ok()?.into_solution().ok()?;
    (solution.status() == SolutionStatus::Optimal).then(|| solution.var_value(rate) * UNIT_BPS)
}

/// A flow of `share` from the seeds to a target, on pairs of ASes that are as wide as what their ways carry.
fn add_flow(program: &mut Problem, swarm: &Swarm, carried: &[Vec<Variable>], target: usize, share: Variable) {
    let mut balances: BTreeMap<usize, Sum> = BTreeMap::new();
    for (pair, ways) in swarm.to_targets().zip(carried) {
        // What left the target again would be no news there.
        if pair.from == target {
            continue;
        }
        let flow = program.add_var(0.0, (0.0, f64::INFINITY));
        let within: Sum = ways.iter().map(|way| (*way, -1.0)).chain([(flow, 1.0)]).collect();
        program.add_constraint(within, ComparisonOp::Le, 0.0);
        balances.entry(pair.to).or_default().push((flow, 1.0));
        if !swarm.seeds.contains(&pair.from) {
            balances.entry(pair.from).or_default().push((flow, -1.0));
        }
    }
    for (at, mut balance) in balances {
        if at == target {
            balance.push((share, -1.0));
        }
        program.add_constraint(balance, ComparisonOp::Ge, 0.0);
    }
}
