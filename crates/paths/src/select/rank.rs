//! In which order paths would be taken as one more beside those in use: for a peer that nobody has met yet, where there is nothing to
//! share out, and nobody to tell why.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::{Candidate, Resource, Selector};
use crate::scoreboard::ThirdPartyLoad;
use crate::{Scoreboard, Standing};

impl Selector {
    /// The places in `candidates`, all to one peer, the best first: what [`Selector::select`] would choose beside what is `in_use`, then
    /// the next best. Equals are in the order of the lookup.
    pub(crate) fn rank(
        self,
        candidates: &[Candidate],
        in_use: &[Candidate],
        board: &Scoreboard,
        others: &ThirdPartyLoad,
    ) -> Vec<usize> {
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|&index| candidates[index].place);
        match self {
            Self::First => {}
            Self::Shortest | Self::All => order.sort_by_key(|&index| {
                let Candidate { hops, latency, .. } = candidates[index];
                (hops, latency.is_none(), latency)
            }),
            Self::HandshakeRace => order.sort_by(|&one, &other| {
                let speed = |index: usize| candidates[index].handshake.map(|handshake| 1.0 / handshake.as_secs_f64());
                fastest_first(speed(one), speed(other))
            }),
            Self::BandwidthRace => order.sort_by(|&one, &other| {
                let speed = |index: usize| match board.standing(candidates[index].path) {
                    Standing::Unknown => None,
                    Standing::Measured { goodput_bytes } | Standing::Rested { goodput_bytes } => Some(goodput_bytes),
                };
                fastest_first(speed(one), speed(other))
            }),
            Self::DisjointPaper => {
                let users = load(candidates.iter().chain(in_use));
                order.sort_by_cached_key(|&index| {
                    let conflicts: usize = candidates[index].resources.iter().map(|at| users[at] - 1).sum();
                    (conflicts, candidates[index].hops)
                });
            }
            Self::Disjoint => {
                let (load, room) = (load(in_use), room(candidates, in_use, others));
                let offer = |candidate: &Candidate| {
                    let through = candidate.resources.iter();
                    let gain = room.as_ref().map_or(f64::INFINITY, |room| narrowest(&candidate.resources, room));
                    let overlap = |at: &Resource| {
                        let paths = load.get(at).copied().unwrap_or(0) as f64;
                        board.overlap_weight(at) * (paths + others.of(at))
                    };
                    (gain, through.map(overlap).sum::<f64>())
                };
                let offers: Vec<(f64, f64)> = candidates.iter().map(offer).collect();
                order.sort_by(|&one, &other| {
                    let ((gain, overlap), (other_gain, other_overlap)) = (offers[one], offers[other]);
                    other_gain.total_cmp(&gain).then(overlap.total_cmp(&other_overlap))
                });
            }
        }
        order
    }
}

/// What was never measured comes last.
fn fastest_first(one: Option<f64>, other: Option<f64>) -> Ordering {
    other.unwrap_or(-1.0).total_cmp(&one.unwrap_or(-1.0))
}

/// How many of `paths` pass each resource.
fn load<'a>(paths: impl IntoIterator<Item = &'a Candidate>) -> HashMap<Resource, usize> {
    let mut load = HashMap::new();
    for resource in paths.into_iter().flat_map(|path| &path.resources) {
        *load.entry(*resource).or_default() += 1;
    }
    load
}

/// What the paths in use leave of each resource, kbit/s, if every AS on every candidate claims what it carries.
fn room(candidates: &[Candidate], in_use: &[Candidate], others: &ThirdPartyLoad) -> Option<HashMap<Resource, f64>> {
    let mut room: HashMap<Resource, f64> = HashMap::new();
    for candidate in candidates {
        for (place, resource) in candidate.resources.iter().enumerate() {
            let claim = candidate.claims_kbps.get(place).copied().flatten()?;
            let room = room.entry(*resource).or_insert(f64::INFINITY);
            *room = room.min(claim as f64);
        }
    }
    room.iter_mut().for_each(|(resource, room)| *room /= 1.0 + others.of(resource));
    for path in in_use {
        let claimed = path.claims_kbps.iter().flatten().min().map_or(f64::INFINITY, |kbps| *kbps as f64);
        let taken = narrowest(&path.resources, &room).min(claimed);
        for resource in &path.resources {
            if let Some(room) = room.get_mut(resource) {
                *room = (*room - taken).max(0.0);
            }
        }
    }
    Some(room)
}

/// The least that is left of any of `resources`, as far as that is known.
fn narrowest(resources: &[Resource], room: &HashMap<Resource, f64>) -> f64 {
    resources.iter().filter_map(|at| room.get(at)).copied().fold(f64::INFINITY, f64::min)
}
