//! Peers that name chunks in other ways than we do.

use std::time::Duration;

use super::tests::{HASH, address, params, payload, seeder};
use super::*;
use crate::wire::{Addressing, Integrity};

const CHUNKS: u64 = 300;

fn named_by(addressing: Addressing) -> SwarmParams {
    let own = params(CHUNKS);
    SwarmParams::new(own.swarm_id(), Integrity::MerkleTree, HASH, addressing, own.chunk_len()).expect("a swarm")
}

/// Knows the root alone, and names chunks in this way.
fn leecher(addressing: Addressing, seed: u64, now: Instant) -> Swarm<SocketAddr> {
    let params = named_by(addressing);
    let root = HASH.digest(params.swarm_id()).expect("a root");
    Swarm::new(params, Tree::with_root(HASH, root, None, MemoryNodes::new(HASH)), Binmap::new(), Mode::Fast, seed, now)
}

/// Carries datagrams between the two, each a millisecond on its way, until the second has all or the time is up.
fn run(swarms: &mut [Swarm<SocketAddr>; 2], mut now: Instant, time: Duration) -> bool {
    let until = now + time;
    while now < until && !swarms[1].is_complete() {
        now += Duration::from_millis(1);
        for from in [0, 1] {
            let mut flying = Vec::new();
            while let Some(transmit) = swarms[from].transmit() {
                let mut datagram = transmit.datagram;
                datagram.extend(transmit.chunk.map_or(Vec::new(), |chunk| payload(chunk, CHUNKS)));
                flying.push((address(from), datagram));
            }
            let batch: Vec<(SocketAddr, &[u8])> =
                flying.iter().map(|(by, datagram)| (*by, datagram.as_slice())).collect();
            let mut chunks = Vec::new();
            swarms[1 - from].datagrams(now, &batch, &mut chunks);
            for (chunk, bytes) in chunks {
                assert_eq!(bytes, payload(chunk, CHUNKS));
                swarms[1 - from].stored(chunk);
            }
            swarms[from].poll(now);
        }
    }
    swarms[1].is_complete()
}

#[test]
fn whoever_opens_is_answered_in_its_own_way_to_name_chunks() {
    for addressing in Addressing::ALL {
        let now = Instant::now();
        let mut swarms = [seeder(CHUNKS, 1, now), leecher(addressing, 2, now)];
        assert!(swarms[1].connect(now, &address(0)));
        assert!(run(&mut swarms, now, Duration::from_secs(20)), "{addressing:?}");
        let codec = swarms[0].channels.values().next().and_then(|channel| channel.codec).expect("agreed");
        assert_eq!(codec.addressing, addressing);
        assert!(swarms[0].banned.is_empty() && swarms[1].banned.is_empty());
    }
}

#[test]
fn of_two_who_open_at_once_one_gives_way() {
    for addressing in Addressing::ALL {
        let now = Instant::now();
        let mut swarms = [seeder(CHUNKS, 1, now), leecher(addressing, 2, now)];
        assert!(swarms[1].connect(now, &address(0)));
        assert!(swarms[0].connect(now, &address(1)));
        assert!(run(&mut swarms, now, Duration::from_secs(20)), "{addressing:?}");
        let agreed = swarms.each_ref().map(|swarm| {
            assert_eq!(swarm.channels.len(), 1);
            swarm.channels.values().next().and_then(|channel| channel.codec).expect("agreed").addressing
        });
        assert_eq!(agreed[0], agreed[1]);
    }
}

#[test]
fn a_way_that_has_no_names_for_all_chunks_is_not_answered() {
    let now = Instant::now();
    let chunks = Addressing::Bins32.chunks_max(None);
    for (more, is_answered) in [(0, true), (1, false)] {
        let (chunks, addressing) = (chunks + more, Addressing::Bins32);
        let tree = Tree::with_root(
            HASH,
            HASH.digest(params(CHUNKS).swarm_id()).expect("a root"),
            Some(chunks),
            MemoryNodes::new(HASH),
        );
        let mut swarm = Swarm::new(params(CHUNKS), tree, Binmap::new(), Mode::Fast, 1, now);
        let mut peer = leecher(addressing, 2, now);
        assert!(peer.connect(now, &address(0)));
        let opening = peer.transmit().expect("it opens").datagram;
        swarm.datagram(now, &address(1), &opening);
        assert_eq!(swarm.transmit().is_some(), is_answered);
    }
}
