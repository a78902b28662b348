//! What a set of chunks costs: `cargo bench -p anabranch-hercules --bench ranges`.
//!
//! A hundred million chunks arrive in order, with 2 % lost; the gaps are walked; the lost ones arrive.

use std::time::Instant;

use anabranch_hercules::ChunkSet;

const CHUNKS: u64 = 100_000_000;

fn main() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut set = ChunkSet::new(CHUNKS);
    let time = |what: &str, count: u64, start: Instant| {
        let ns = start.elapsed().as_secs_f64() * 1e9 / count as f64;
        println!("{what:<28} {count:>12} at {ns:.2} ns");
    };
    let start = Instant::now();
    (0..CHUNKS).filter(|_| rng.u32(..100) >= 2).for_each(|chunk| _ = set.insert(chunk));
    time("inserted in order", CHUNKS, start);
    let start = Instant::now();
    let gaps: Vec<_> = set.gaps(0..CHUNKS).collect();
    time("gaps walked", gaps.len() as u64, start);
    let start = Instant::now();
    for gap in &gaps {
        set.insert_range(gap.clone());
    }
    time("gaps filled", gaps.len() as u64, start);
    assert!(set.is_full());
}
