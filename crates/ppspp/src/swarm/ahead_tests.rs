//! Batches of datagrams, beside the same datagrams one by one.

use std::time::Duration;

use super::tests::{address, leecher, params, payload, seeder};
use super::*;
use crate::wire::Message;

/// Batches, in which chunks are judged together, bring what datagrams one by one bring, or more where siblings prove each other: whatever is
/// lost, doubled, swapped or wrong.
#[test]
fn batches_are_as_good_as_datagrams_one_by_one() {
    const CHUNKS: u64 = 3000;
    for seed in 0..24 {
        println!("seed {seed}");
        let (mut rng, mut now) = (fastrand::Rng::with_seed(seed), Instant::now());
        let loss = [0.0, 0.01, 0.05][rng.usize(..3)];
        let lies_from = if rng.bool() { rng.u64(..CHUNKS) } else { u64::MAX };
        let mut seeder = seeder(CHUNKS, seed, now);
        let mut pair: [Swarm<SocketAddr>; 2] = std::array::from_fn(|_| leecher(CHUNKS, seed + 1, now));
        pair.iter_mut().for_each(|swarm| assert!(swarm.connect(now, &address(0))));
        let (mut arrived, mut liars) = (0, [0; 2]);
        for _ in 0..12_000 {
            now += Duration::from_millis(10);
            // What the first of the pair says is heard; the second hears the same and is heard by nobody.
            pair[0].poll(now);
            while let Some(transmit) = pair[0].transmit() {
                seeder.datagram(now, &address(1), &transmit.datagram);
            }
            seeder.poll(now);
            let mut batch: Vec<Vec<u8>> = Vec::new();
            while let Some(transmit) = seeder.transmit() {
                let mut datagram = transmit.datagram;
                if let Some(chunk) = transmit.chunk {
                    datagram.extend(payload(chunk, CHUNKS));
                    arrived += 1;
                    let at = datagram.len() - 1;
                    datagram[at] ^= u8::from(arrived >= lies_from);
                }
                if rng.f64() >= loss {
                    batch.extend(std::iter::repeat_n(datagram, 1 + usize::from(rng.u32(..50) == 0)));
                }
            }
            if loss > 0.0 && batch.len() > 1 && rng.u32(..4) == 0 {
                let (one, other) = (rng.usize(..batch.len()), rng.usize(..batch.len()));
                batch.swap(one, other);
            }
            let batch: Vec<(SocketAddr, &[u8])> = batch.iter().map(|datagram| (address(0), &datagram[..])).collect();
            let mut chunks = [Vec::new(), Vec::new()];
            pair[0].datagrams(now, &batch, &mut chunks[0]);
            let singly = batch.iter().filter_map(|(peer, datagram)| pair[1].datagram(now, peer, datagram));
            chunks[1].extend(singly.flatten());
            for ((swarm, liars), chunks) in pair.iter_mut().zip(&mut liars).zip(&chunks) {
                for (chunk, bytes) in chunks {
                    assert_eq!(*bytes, payload(*chunk, CHUNKS));
                    swarm.stored(*chunk);
                }
                while let Some(event) = swarm.event() {
                    *liars += u32::from(matches!(event, Event::Liar(_)));
                }
            }
            while pair[1].transmit().is_some() {}
            let mut more = pair[1].have().clone();
            more.subtract(pair[0].have());
            assert!(more.is_empty(), "one by one: {more:?}");
            if loss == 0.0 {
                assert_eq!((&chunks[0], liars[0]), (&chunks[1], liars[1]));
                assert_eq!(pair[0].wasted_bytes(), pair[1].wasted_bytes());
            }
            if pair[0].is_complete() || liars[0] > 0 {
                break;
            }
        }
        let is_honest = arrived < lies_from;
        assert!(pair[0].is_complete() == is_honest && (liars[0] > 0) != is_honest, "{:?}", pair[0].have());
    }
}

/// Chunks that come together prove each other: none of their own digests is needed, which each by itself would need.
#[test]
fn chunks_of_a_run_prove_each_other() {
    const CHUNKS: u64 = 3000;
    let mut now = Instant::now();
    let mut seeder = seeder(CHUNKS, 1, now);
    let mut pair: [Swarm<SocketAddr>; 2] = std::array::from_fn(|_| leecher(CHUNKS, 2, now));
    pair.iter_mut().for_each(|swarm| assert!(swarm.connect(now, &address(0))));
    let mut channel = None;
    while pair[0].have().end() != CHUNKS {
        now += Duration::from_millis(10);
        pair[0].poll(now);
        while let Some(transmit) = pair[0].transmit() {
            seeder.datagram(now, &address(1), &transmit.datagram);
        }
        seeder.poll(now);
        while let Some(transmit) = seeder.transmit() {
            let mut datagram = transmit.datagram;
            channel = datagram.first_chunk::<4>().copied();
            datagram.extend(transmit.chunk.into_iter().flat_map(|chunk| payload(chunk, CHUNKS)));
            for swarm in &mut pair {
                let chunks = swarm.datagram(now, &address(0), &datagram).unwrap_or_default();
                chunks.iter().for_each(|(chunk, _)| swarm.stored(*chunk));
            }
        }
    }
    let channel = channel.expect("the seeder said something");
    let codec = params(CHUNKS).codec(Dialect::Rfc7574);
    let (first, mut uncles) = (1024, Vec::new());
    seeder.tree().uncles(first, None, &mut Default::default(), &mut uncles).expect("a whole tree");
    uncles.retain(|(bin, _)| bin.start() >= first + 8 || bin.end() <= first);
    let datagrams: Vec<Vec<u8>> = (first..first + 8)
        .map(|chunk| {
            let mut datagram = channel.to_vec();
            for (node, digest) in uncles.drain(..) {
                codec.put_integrity(node, &digest, &mut datagram).expect("it fits");
            }
            let data = Message::Data { chunk, sent_us: 0, payload: &payload(chunk, CHUNKS) };
            data.encode(&codec, &mut datagram).expect("it fits");
            datagram
        })
        .collect();
    let batch: Vec<(SocketAddr, &[u8])> = datagrams.iter().map(|datagram| (address(0), &datagram[..])).collect();
    let mut together = Vec::new();
    pair[0].datagrams(now, &batch, &mut together);
    assert!(together.iter().map(|(chunk, _)| *chunk).eq(first..first + 8), "{together:?}");
    let singly = batch.iter().filter_map(|(peer, datagram)| pair[1].datagram(now, peer, datagram)).flatten();
    assert_eq!(singly.count(), 0);
}
