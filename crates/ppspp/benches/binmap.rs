//! What a binmap costs beside a plain bitmap: `cargo bench -p anabranch-ppspp --bench binmap`.
//!
//! Each line is one pattern over 16 Mi chunks (16 GiB in chunks of 1 KiB), filled one chunk at a time.

use std::hint::black_box;
use std::time::Instant;

use anabranch_ppspp::binmap::Binmap;

const CHUNKS: u64 = 1 << 24;

fn main() {
    println!(
        "{:<12} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "pattern", "set ns", "bitmap", "differ us", "bitmap", "cells"
    );
    run("in order", (0..CHUNKS).collect());
    run("every other", (0..CHUNKS).step_by(2).collect());
    let mut rng = fastrand::Rng::with_seed(1);
    run("at random", (0..CHUNKS / 8).map(|_| rng.u64(..CHUNKS)).collect());
}

fn run(name: &str, chunks: Vec<u64>) {
    let each = |start: Instant| start.elapsed().as_nanos() as f64 / chunks.len() as f64;
    let start = Instant::now();
    let mut map = Binmap::new();
    for chunk in &chunks {
        map.insert_range(*chunk..chunk + 1);
    }
    let set = each(start);
    let start = Instant::now();
    let mut bits = vec![0u64; (CHUNKS / 64) as usize];
    for chunk in &chunks {
        bits[(chunk / 64) as usize] |= 1 << (chunk % 64);
    }
    let bitmap_set = each(start);
    // What a full peer has that this one lacks.
    let start = Instant::now();
    let mut wanted = Binmap::full(CHUNKS);
    wanted.subtract(&map);
    let differ = start.elapsed();
    let start = Instant::now();
    let others: Vec<u64> = bits.iter().map(|word| !word).collect();
    let bitmap_differ = start.elapsed();
    assert_eq!(wanted.count(), others.iter().map(|word| u64::from(word.count_ones())).sum::<u64>());
    black_box((&wanted, &others));
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    println!(
        "{name:<12} {set:>12.1} {bitmap_set:>12.1} {:>12.0} {:>12.0} {:>12}",
        us(differ),
        us(bitmap_differ),
        map.cell_count()
    );
}
