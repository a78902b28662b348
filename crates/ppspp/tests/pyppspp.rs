//! What PyPPSPP sent over UDP, as it was on the wire between two of it, against our core.
//!
//! Of each datagram to us the channel's number in front, which we chose, is left out. PyPPSPP protects nothing: its swarm is named by a root of
//! SHA-1 that none of its messages prove. It names a discard window of a content that is no stream, and messages that it supports in a map
//! whose second byte is empty.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_ppspp::binmap::Binmap;
use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::ledbat::Mode;
use anabranch_ppspp::merkle::{MemoryNodes, Tree};
use anabranch_ppspp::swarm::{Event, Swarm};
use anabranch_ppspp::wire::{Addressing, Dialect, Integrity, Message, Messages, SwarmParams, split_channel};

const HASH: HashFunction = HashFunction::Sha256;
const ROOT: &str = "3bd1bae60d60f261e9ef20636f06510f9e99ffb6";
const LEN: usize = 2500;
const CHUNKS: u64 = 3;

/// The answer of one that has all of it.
const ANSWER: &str = "000000b2ec000101010200143bd1bae60d60f261e9ef20636f06510f9e99ffb60300060207000003e80802ff0009000004000a5c2b2c2f566b48979f\
                      ff6c01232440e4ff030000000000000002";
/// The heads of its chunks, which follow.
const HEADS: [&str; 3] =
    ["0100000000000000000006616b99808d5c", "0100000001000000010006616b99808dc9", "0100000002000000020006616b99808de5"];
/// One that has nothing opens a channel, asks for all of it, has it, and leaves.
const OPENING: &str = "00000000000000ce48000101010200143bd1bae60d60f261e9ef20636f06510f9e99ffb60300060207000003e80802ff0009000004000a4a2aa14e\
                       6aaf40d99c3a841204b0f1e1ff";
const ASKING: [&str; 3] = ["080000000000000002", "030000000000000002", "000000000000010101ff"];

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("digits")).collect()
}

fn peer() -> SocketAddr {
    SocketAddr::from(([10, 0, 9, 1], 6778))
}

fn content() -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn params() -> SwarmParams {
    let params = SwarmParams::new(&unhex(ROOT), Integrity::None, HASH, Addressing::Chunks32, Some(1024));
    params.expect("a swarm")
}

fn swarm(have: Binmap, now: Instant) -> Swarm<SocketAddr> {
    let tree = Tree::with_root(HASH, HASH.zero(), Some(CHUNKS), MemoryNodes::new(HASH));
    Swarm::new(params(), tree, have, Mode::Fast, 1, now)
}

#[test]
fn what_pyppspp_serves_is_taken() {
    let now = Instant::now();
    let mut leecher = swarm(Binmap::new(), now);
    leecher.connect(now, &peer());
    let opening = leecher.transmit().expect("a handshake").datagram;
    let channel: [u8; 4] = opening[5..9].try_into().expect("four bytes");
    let content = content();
    let chunks = HEADS.iter().zip(content.chunks(1024)).map(|(head, chunk)| [unhex(head), chunk.to_vec()].concat());
    let mut got = Vec::new();
    for (step, said) in std::iter::once(unhex(ANSWER)).chain(chunks).enumerate() {
        let now = now + Duration::from_millis(100 * step as u64);
        leecher.poll(now);
        let datagram = [&channel[..], &said].concat();
        for (chunk, bytes) in leecher.datagram(now, &peer(), &datagram).expect("for this swarm") {
            assert_eq!(chunk * 1024, got.len() as u64);
            got.extend_from_slice(bytes);
            leecher.stored(chunk);
        }
    }
    assert!(got == content && leecher.is_complete());
    assert!(std::iter::from_fn(|| leecher.event()).any(|event| event == Event::Opened(peer())));
    // What it is sent names its channel, and nothing in it is of a kind that it does not know.
    let codec = params().codec(Dialect::Rfc7574);
    let mut said = Vec::new();
    while let Some(transmit) = leecher.transmit() {
        let (channel, messages) = split_channel(&transmit.datagram).expect("of a channel");
        assert_eq!(channel, 0xb2ec);
        said.extend(Messages::new(codec, messages).map(|message| format!("{:?}", message.expect("well formed"))));
    }
    let kinds = ["Request", "Ack", "Have", "PexRequest"];
    assert!(said.iter().all(|said| kinds.iter().any(|kind| said.starts_with(kind))), "{said:?}");
    assert!(said.iter().any(|said| said.starts_with("Ack")), "{said:?}");
}

#[test]
fn what_pyppspp_asks_for_is_understood() {
    let start = Instant::now();
    let mut seeder = swarm(Binmap::full(CHUNKS), start);
    let opening = unhex(OPENING);
    assert_eq!(seeder.datagram(start, &peer(), &opening), Some(Vec::new()));
    let answer = seeder.transmit().expect("an answer").datagram;
    assert!(answer.len() <= opening.len());
    assert_eq!(answer[..4], [0, 0, 0xce, 0x48]);
    let channel: [u8; 4] = answer[5..9].try_into().expect("four bytes");
    let mut sent = Vec::new();
    for (step, said) in ASKING.iter().enumerate() {
        let now = start + Duration::from_millis(30 * (step as u64 + 1));
        let datagram = [&channel[..], &unhex(said)].concat();
        assert_eq!(seeder.datagram(now, &peer(), &datagram), Some(Vec::new()), "datagram {step}");
        while let Some(transmit) = seeder.transmit() {
            if let Some(chunk) = transmit.chunk {
                // Nothing goes with it: there is no tree.
                let codec = params().codec(Dialect::Rfc7574);
                let (_, messages) = split_channel(&transmit.datagram).expect("of a channel");
                let messages: Vec<_> = Messages::new(codec, messages).flatten().collect();
                assert!(matches!(messages[..], [Message::Data { chunk: named, .. }] if named == chunk), "{messages:?}");
                sent.push(chunk);
            }
        }
        assert_eq!(seeder.peers().count(), usize::from(step < 2), "after datagram {step}");
    }
    assert_eq!(sent.first(), Some(&0));
}
