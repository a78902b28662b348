//! What choosing paths costs: `cargo bench -p anabranch-paths --bench select`.
//!
//! Each line is one uploader with its downloaders: paths run from it through layers of interfaces, some shared by many. The time
//! is of one whole selection with a reason for every candidate; the median of several, the slowest beside it.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use anabranch_paths::select::{Budget, Candidate, Resource, Selector};
use anabranch_paths::{Interface, IsdAs, Path, Scoreboard};

const REPETITIONS: usize = 21;

fn main() {
    println!("{:<44} {:>9} {:>11} {:>11}", "selector, peers x paths, connections", "chosen", "median ms", "slowest ms");
    for (peers, paths, budget) in [
        (1, 50, Budget { connections: 64, per_peer: 4 }),
        (16, 20, Budget { connections: 64, per_peer: 4 }),
        (200, 50, Budget { connections: 64, per_peer: 4 }),
        (200, 50, Budget { connections: 800, per_peer: 4 }),
        (200, 50, Budget { connections: 3200, per_peer: 16 }),
    ] {
        let candidates = candidates(peers, paths);
        for selector in Selector::ALL {
            run(selector, &candidates, peers, paths, budget);
        }
    }
}

fn run(selector: Selector, candidates: &[Candidate], peers: u64, paths: u64, budget: Budget) {
    let (board, mut chosen) = (Scoreboard::default(), 0);
    let mut times: Vec<Duration> = (0..REPETITIONS)
        .map(|_| {
            let start = Instant::now();
            chosen = selector.select(candidates, &board, budget).chosen().count();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let name = format!("{selector}, {peers} x {paths}, {}", budget.connections);
    let (median, slowest) = (ms(times[REPETITIONS / 2]), ms(times[REPETITIONS - 1]));
    println!("{name:<44} {chosen:>9} {median:>11.2} {slowest:>11.2}");
}

/// Four links each: out of the uploader's AS, twice between core ASes, into the downloader's AS. Two interfaces a link.
fn candidates(peers: u64, paths: u64) -> Vec<Candidate> {
    let mut rng = fastrand::Rng::with_seed(1);
    let interface =
        |layer: u64, id: u16| Resource::Interface(Interface { isd_as: IsdAs::from_u64(1 << 48 | layer), id });
    let address = |n: u64| IpAddr::from(Ipv6Addr::from(u128::from(n)));
    let mut candidates = Vec::new();
    for peer in 0..peers {
        for number in 0..paths {
            let mut resources = Vec::new();
            for (layer, width) in [(0, 8), (1, 60), (2, 60), (1000 + peer, 6)] {
                let id = rng.u16(0..width);
                resources.extend([interface(layer, id), interface(layer, 1000 + id)]);
            }
            let mut candidate = Candidate::new(peer, &Path::ip(address(peer), address(number)));
            (candidate.resources, candidate.hops, candidate.place) = (resources, 5, number as usize);
            candidates.push(candidate);
        }
    }
    rng.shuffle(&mut candidates);
    candidates
}
