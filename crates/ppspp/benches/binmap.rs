//! What a binmap costs beside a plain bitmap and a roaring one: `cargo bench -p anabranch-ppspp --bench binmap`.
//!
//! Each line is one pattern over 16 Mi chunks (16 GiB in chunks of 1 KiB), filled one chunk at a time: the time to set a chunk, then to
//! find what a full peer has more, and the memory, each of the binmap, of the bitmap, of the roaring bitmap.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anabranch_ppspp::binmap::Binmap;
use roaring::RoaringBitmap;

const CHUNKS: u64 = 1 << 24;

fn main() {
    println!("{:<12} {:>28} {:>28} {:>28}", "pattern", "set ns", "differ us", "KiB");
    run("in order", (0..CHUNKS).collect());
    run("every other", (0..CHUNKS).step_by(2).collect());
    let mut rng = fastrand::Rng::with_seed(1);
    run("at random", (0..CHUNKS / 8).map(|_| rng.u64(..CHUNKS)).collect());
}

fn run(name: &str, chunks: Vec<u64>) {
    let start = Instant::now();
    let mut map = Binmap::new();
    chunks.iter().for_each(|chunk| map.insert_range(*chunk..chunk + 1));
    let mut set = vec![start.elapsed()];
    let start = Instant::now();
    let mut bits = vec![0u64; (CHUNKS / 64) as usize];
    chunks.iter().for_each(|chunk| bits[(chunk / 64) as usize] |= 1 << (chunk % 64));
    set.push(start.elapsed());
    let start = Instant::now();
    let mut roaring = RoaringBitmap::new();
    chunks.iter().for_each(|chunk| _ = roaring.insert(*chunk as u32));
    set.push(start.elapsed());

    // What a full peer has that this one lacks.
    let start = Instant::now();
    let mut wanted = Binmap::full(CHUNKS);
    wanted.subtract(&map);
    let mut differ = vec![start.elapsed()];
    let start = Instant::now();
    let others: Vec<u64> = bits.iter().map(|word| !word).collect();
    differ.push(start.elapsed());
    let start = Instant::now();
    let mut roaring_wanted = RoaringBitmap::new();
    roaring_wanted.insert_range(0..CHUNKS as u32);
    roaring_wanted -= &roaring;
    differ.push(start.elapsed());
    assert_eq!(wanted.count(), others.iter().map(|word| u64::from(word.count_ones())).sum::<u64>());
    assert_eq!(wanted.count(), roaring_wanted.len());
    black_box((&wanted, &others, &roaring_wanted));

    let each = |times: &[Duration], unit: f64| columns(times.iter().map(|time| time.as_secs_f64() * unit));
    // A cell takes so much at most.
    let bytes = [map.cell_count() * 80, bits.len() * size_of::<u64>(), roaring.serialized_size()];
    println!(
        "{name:<12} {} {} {}",
        each(&set, 1e9 / chunks.len() as f64),
        each(&differ, 1e6),
        columns(bytes.iter().map(|bytes| *bytes as f64 / 1024.0))
    );
}

fn columns(values: impl Iterator<Item = f64>) -> String {
    let mut text = String::new();
    values.for_each(|value| text += &format!(" {value:>8.1}"));
    format!("{text:>28}")
}
