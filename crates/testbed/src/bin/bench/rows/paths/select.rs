//! Choosing alone: no network, no programs.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use anabranch_paths::select::{Budget, Candidate, Resource, Selector};
use anabranch_paths::{Interface, IsdAs, Path, Scoreboard};
use anabranch_testbed::Result;

use super::nonsense;
use crate::report::{Sample, median};

const PEERS: u64 = 200;
const PATHS: u64 = 50;
const PER_PEER: usize = 4;
/// One run is the median of so many selections.
const SELECTIONS: usize = 11;
/// Links of a path: out of the uploader's AS, twice between core ASes, into the downloader's; so many to choose from each.
const LAYERS: [u16; 4] = [8, 60, 60, 6];

/// How long one selection takes, with a reason for every candidate.
pub(super) fn select(selector: &str, connections: usize) -> Result<Sample> {
    let selector: Selector = selector.parse().map_err(nonsense)?;
    let (candidates, board) = (candidates(), Scoreboard::default());
    let mut chosen = 0;
    let mut once = || {
        let start = Instant::now();
        chosen = selector.select(&candidates, &board, Budget { connections, per_peer: PER_PEER }).chosen().count();
        start.elapsed().as_secs_f64() * 1e3
    };
    let times: Vec<f64> = (0..SELECTIONS).map(|_| once()).collect();
    let figure = median(times.into_iter()).ok_or_else(|| nonsense("no time"))?;
    Ok(Sample { figure, extra: Some(chosen as f64), ..Sample::default() })
}

fn candidates() -> Vec<Candidate> {
    let mut rng = fastrand::Rng::with_seed(1);
    let address = |number: u64| IpAddr::from(Ipv6Addr::from(u128::from(number)));
    let mut candidates = Vec::new();
    for peer in 0..PEERS {
        for number in 0..PATHS {
            let mut candidate = Candidate::new(peer, &Path::ip(address(peer), address(number)));
            candidate.resources.clear();
            candidate.claims_kbps.clear();
            for (layer, width) in (0u64..).zip(LAYERS) {
                let (isd_as, id) = (if layer == 3 { 1000 + peer } else { layer }, rng.u16(0..width));
                for id in [id, 1000 + id] {
                    let isd_as = IsdAs::from_u64(1 << 48 | isd_as);
                    candidate.resources.push(Resource::Interface(Interface { isd_as, id }));
                    candidate.claims_kbps.push(Some(20_000));
                }
            }
            candidates.push(candidate);
        }
    }
    candidates
}
