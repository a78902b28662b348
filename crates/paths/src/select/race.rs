//! Racing: paths are kept that do nearly as well as the best (thesis, section 3.3.2).

use super::{Ballot, Reason, Verdict};
use crate::Scoreboard;
use crate::Standing;

/// Thesis, Algorithm 2: the weight of a path is the inverse of its handshake's duration.
pub(super) fn handshake(ballot: &mut Ballot<'_>, min_percentage: u8) {
    race(ballot, min_percentage, |ballot, index| {
        let handshake = ballot.candidates[index].handshake?;
        Some((1.0 / handshake.as_secs_f64().max(1e-6), false))
    });
}

/// Thesis, Algorithm 3: the weight of a path is what it carried in the last time slot. What lost an earlier race gets
/// another chance from time to time (section 7.2).
pub(super) fn bandwidth(ballot: &mut Ballot<'_>, board: &Scoreboard, min_percentage: u8) {
    race(ballot, min_percentage, |ballot, index| match board.standing(ballot.candidates[index].path) {
        Standing::Unknown => None,
        Standing::Measured { goodput_bytes } => Some((goodput_bytes, false)),
        Standing::Rested { goodput_bytes } => Some((goodput_bytes, true)),
    });
}

/// `weight` says how well a path did and whether it is due another chance; `None` while it was not measured.
fn race(ballot: &mut Ballot<'_>, min_percentage: u8, weight: impl Fn(&Ballot<'_>, usize) -> Option<(f64, bool)>) {
    let mut wishes = Vec::new();
    for paths in ballot.peers() {
        let mut runners: Vec<(usize, Option<(f64, bool)>)> =
            paths.into_iter().map(|index| (index, weight(ballot, index))).collect();
        // Best first; what was never measured comes after the winners and takes part in the race.
        let best = runners.iter().filter_map(|(_, result)| Some((*result)?.0)).fold(0.0, f64::max);
        runners.sort_by(|(a, left), (b, right)| {
            let key = |result: &Option<(f64, bool)>| result.map_or(-1.0, |(weight, _)| weight);
            key(right).total_cmp(&key(left)).then(ballot.candidates[*a].path.cmp(&ballot.candidates[*b].path))
        });
        let mut wish = Vec::new();
        for (index, result) in runners {
            let (reason, percent) = match result {
                None => (Reason::Untried, 100.0),
                Some((weight, rested)) => {
                    let percent = if best > 0.0 { weight / best * 100.0 } else { 100.0 };
                    if rested { (Reason::SecondChance, 100.0) } else { (Reason::RaceWon { percent }, percent) }
                }
            };
            if percent >= f64::from(min_percentage) {
                wish.push((index, reason));
            } else {
                ballot.decide(index, Verdict::standby(Reason::RaceLost { percent }));
            }
        }
        wishes.push(wish);
    }
    ballot.deal(wishes);
}
