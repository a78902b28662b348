//! What the core itself costs: a seeder and a leecher in one thread, without sockets and disks: `cargo bench -p anabranch-ppspp --bench swarm`.
//!
//! Each line is one length of chunks: the time of the processor a chunk at the seeder, at the leecher, and for making the datagrams between
//! them, which a driver does.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_ppspp::binmap::Binmap;
use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::ledbat::Mode;
use anabranch_ppspp::merkle::{MemoryNodes, Tree};
use anabranch_ppspp::swarm::Swarm;
use anabranch_ppspp::wire::{Addressing, Integrity, SwarmParams};

const CONTENT_BYTES: u64 = 256 << 20;
const HASH: HashFunction = HashFunction::Sha256;
/// Time on the wires between two looks: a round trip is twice that.
const LOOK: Duration = Duration::from_micros(100);

fn main() {
    println!("{:<8} {:>10} {:>10} {:>10}", "chunk", "seeder ns", "leecher ns", "between ns");
    for chunk_len in [1024, 8192] {
        let [seeder, leecher, between] = run(chunk_len).map(|time| time.as_secs_f64() * 1e9);
        let chunks = (CONTENT_BYTES / u64::from(chunk_len)) as f64;
        println!("{chunk_len:<8} {:>10.0} {:>10.0} {:>10.0}", seeder / chunks, leecher / chunks, between / chunks);
    }
}

fn run(chunk_len: u32) -> [Duration; 3] {
    let chunks = CONTENT_BYTES / u64::from(chunk_len);
    let payload: Vec<u8> = (0..chunk_len).map(|at| at as u8).collect();
    let mut leaves = Vec::new();
    (0..chunks).for_each(|_| leaves.extend_from_slice(HASH.hash(&payload).as_bytes()));
    let mut tree = Tree::growing(HASH, MemoryNodes::new(HASH));
    tree.extend(&leaves);
    let root = tree.root().expect("there are chunks");
    let params = SwarmParams::new(root.as_bytes(), Integrity::MerkleTree, HASH, Addressing::Chunks32, Some(chunk_len));
    let params = params.expect("a swarm");
    let mut now = Instant::now();
    let mut seeder: Swarm<SocketAddr> = Swarm::new(params.clone(), tree, Binmap::full(chunks), Mode::Fast, 1, now);
    let known = Tree::with_root(HASH, root, Some(chunks), MemoryNodes::new(HASH));
    let mut leecher: Swarm<SocketAddr> = Swarm::new(params, known, Binmap::new(), Mode::Fast, 2, now);
    let (to_seeder, to_leecher) = (SocketAddr::from(([10, 0, 0, 1], 7)), SocketAddr::from(([10, 0, 0, 2], 7)));
    assert!(leecher.connect(now, &to_seeder));
    let mut times = [Duration::ZERO; 3];
    let mut clock = thread_time();
    let mut took = |who: usize| {
        let before = std::mem::replace(&mut clock, thread_time());
        times[who] += clock - before;
    };
    while !leecher.is_complete() {
        now += LOOK;
        leecher.poll(now);
        let asked: Vec<Vec<u8>> = std::iter::from_fn(|| leecher.transmit()).map(|transmit| transmit.datagram).collect();
        took(1);
        let batch: Vec<(SocketAddr, &[u8])> = asked.iter().map(|datagram| (to_leecher, &datagram[..])).collect();
        seeder.datagrams(now, &batch, &mut Vec::new());
        seeder.poll(now);
        let served: Vec<_> = std::iter::from_fn(|| seeder.transmit()).collect();
        took(0);
        let datagrams: Vec<Vec<u8>> = served
            .into_iter()
            .map(|mut transmit| {
                if transmit.chunk.is_some() {
                    transmit.datagram.extend_from_slice(&payload);
                }
                transmit.datagram
            })
            .collect();
        let batch: Vec<(SocketAddr, &[u8])> = datagrams.iter().map(|datagram| (to_seeder, &datagram[..])).collect();
        took(2);
        let mut came = Vec::new();
        leecher.datagrams(now, &batch, &mut came);
        // As a driver does that writes pieces.
        let runs = came.chunk_by(|(one, _), (next, _)| *next == one + 1);
        runs.for_each(|run| leecher.stored_range(run[0].0..run[0].0 + run.len() as u64));
        took(1);
    }
    times
}

/// How long this thread had the processor.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is valid for the call, and the clock is one that Linux always has.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
