//! `first`, `shortest` and `all`.

use std::time::Duration;

use super::{Ballot, Reason, Verdict};
use crate::PathId;

pub(super) fn first(ballot: &mut Ballot<'_>) {
    let mut wishes = Vec::new();
    for mut paths in ballot.peers() {
        paths.sort_by_key(|&index| (ballot.candidates[index].place, ballot.candidates[index].path));
        for &index in &paths[1..] {
            ballot.decide(index, Verdict::left(Reason::NotFirst));
        }
        wishes.push(vec![(paths[0], Reason::FirstListed)]);
    }
    ballot.deal(wishes);
}

pub(super) fn shortest(ballot: &mut Ballot<'_>) {
    let mut wishes = Vec::new();
    for mut paths in ballot.peers() {
        paths.sort_by_key(|&index| length(ballot, index));
        let shortest = ballot.candidates[paths[0]].hops;
        for &index in &paths[1..] {
            let by_hops = ballot.candidates[index].hops - shortest;
            ballot.decide(index, Verdict::left(Reason::Longer { by_hops }));
        }
        wishes.push(vec![(paths[0], Reason::Shortest)]);
    }
    ballot.deal(wishes);
}

pub(super) fn all(ballot: &mut Ballot<'_>) {
    let mut peers = ballot.peers();
    for paths in &mut peers {
        paths.sort_by_key(|&index| length(ballot, index));
    }
    ballot.deal(peers.into_iter().map(|paths| paths.into_iter().map(|index| (index, Reason::All)).collect()).collect());
}

/// By what paths are compared: few hops first, then low latency, unknown latency last.
pub(super) type Length = (usize, bool, Option<Duration>, PathId);

pub(super) fn length(ballot: &Ballot<'_>, index: usize) -> Length {
    let candidate = &ballot.candidates[index];
    (candidate.hops, candidate.latency.is_none(), candidate.latency, candidate.path)
}
