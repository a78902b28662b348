//! How fast one core hashes, by backend and by number of messages that wait, beside the `sha1` and `sha2` crates.
//!
//! `cargo bench -p anabranch-content --bench hash`. Rates are the best of several rounds, in GB/s (10^9 bytes).

use std::hint::black_box;
use std::time::{Duration, Instant};

use anabranch_content::hash::Backend;
use sha1::Digest as _;

/// Bytes in each message of the main table: a v2 block.
const MESSAGE_BYTES: usize = 16 * 1024;
/// Each figure is the best round of this much time in all, so that a neighbour's burst does not count.
const MEASURE: Duration = Duration::from_millis(120);

fn main() {
    let counts = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64];
    let data: Vec<Vec<u8>> = (0..64u8).map(|i| vec![i; MESSAGE_BYTES]).collect();
    let messages: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();

    println!("messages of {MESSAGE_BYTES} bytes, GB/s on one core");
    print!("{:<26}", "messages at once");
    counts.iter().for_each(|count| print!("{count:>6}"));
    println!();
    for backend in Backend::supported() {
        row(&format!("SHA-1   {}", backend.name()), &counts, |count| {
            let mut digests = vec![[0; 20]; count];
            rate(count * MESSAGE_BYTES, || backend.sha1_many_into(black_box(&messages[..count]), &mut digests))
        });
    }
    row("SHA-1   crate sha1", &[1], |_| {
        rate(MESSAGE_BYTES, || {
            black_box(sha1::Sha1::digest(black_box(messages[0])));
        })
    });
    for backend in Backend::supported() {
        row(&format!("SHA-256 {}", backend.name()), &counts, |count| {
            let mut digests = vec![[0; 32]; count];
            rate(count * MESSAGE_BYTES, || backend.sha256_many_into(black_box(&messages[..count]), &mut digests))
        });
    }
    row("SHA-256 crate sha2", &[1], |_| {
        rate(MESSAGE_BYTES, || {
            black_box(sha2::Sha256::digest(black_box(messages[0])));
        })
    });

    println!("\nmessages of 64 bytes (nodes of a Merkle tree), million a second on one core");
    let nodes = vec![[7u8; 64]; 1024];
    let nodes: Vec<&[u8]> = nodes.iter().map(|node| &node[..]).collect();
    for backend in Backend::supported() {
        let mut digests = vec![[0; 32]; nodes.len()];
        let bytes = rate(nodes.len() * 64, || backend.sha256_many_into(black_box(&nodes), &mut digests));
        println!("{:<26}{:>6.1}", format!("SHA-256 {}", backend.name()), bytes * 1000.0 / 64.0);
    }
    let bytes = rate(64, || {
        black_box(sha2::Sha256::digest(black_box(nodes[0])));
    });
    println!("{:<26}{:>6.1}", "SHA-256 crate sha2", bytes * 1000.0 / 64.0);
}

fn row(name: &str, counts: &[usize], mut measure: impl FnMut(usize) -> f64) {
    print!("{name:<26}");
    counts.iter().for_each(|count| print!("{:>6.2}", measure(*count)));
    println!();
}

/// GB/s of `run`, which hashes `bytes` each time.
fn rate(bytes: usize, mut run: impl FnMut()) -> f64 {
    run();
    let (began, mut best) = (Instant::now(), f64::INFINITY);
    // Several calls a round, so that reading the clock costs nothing beside them.
    let calls = (512 * 1024 / bytes).max(1);
    while began.elapsed() < MEASURE {
        let round = Instant::now();
        (0..calls).for_each(|_| run());
        best = best.min(round.elapsed().as_secs_f64());
    }
    (bytes * calls) as f64 / best / 1e9
}
