//! What libswift sent, as it was on the wire of this machine, against our core: it is fetched from and served, byte for byte.
//!
//! Of each datagram to us the channel's number in front, which we chose, is left out. libswift ran with its own defaults: draft 10, SHA-1,
//! 32-bit ranges of chunks. What it says of the content's protection is a byte that it never set, and it names no hash function.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_ppspp::binmap::Binmap;
use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::ledbat::Mode;
use anabranch_ppspp::merkle::{MemoryNodes, Tree};
use anabranch_ppspp::swarm::{Event, Swarm};
use anabranch_ppspp::wire::{Addressing, Dialect, Integrity, SwarmParams};

const HASH: HashFunction = HashFunction::Sha1;

/// It serves 300 bytes in chunks of 64: an answer, peaks, the first chunk, the last one, the others. It said the peaks six times and the
/// keep-alives seven, which is left out too.
const SERVING: [&str; 10] = [
    "007c932d3d0001010103000602ff030000000000000003030000000400000004",
    "040000000000000003b94ea792408dc150165ec04c42c0714b39aff78f0400000004000000049419092fef34bd60f062ed82\
     c961d1909067789d",
    "040000000000000003b94ea792408dc150165ec04c42c0714b39aff78f0400000004000000049419092fef34bd60f062ed82\
     c961d1909067789d040000000200000003cb920d105ed31b7f169ed7ef40852b455ed84d7e040000000100000001e9811ece\
     0362558c75e41c129bbae00f34d5ea44010000000000000000000660f37cab8a86001f3e5d7c9bbad9f81c3b5a7998b7d6f5\
     1938577695b4d3f21635547392b1d0ef133251708faecdec102f4e6d8cabcae90d2c4b6a89a8c7e60a29486786a5c4",
    "040000000000000003b94ea792408dc150165ec04c42c0714b39aff78f0400000004000000049419092fef34bd60f062ed82\
     c961d1909067789d010000000400000004000660f37cab9d46a2c1e004234261809fbedd01203f5e7d9cbbdaf91d3c5b7a99\
     b8d7f61a39587796b5d4f31736557493b2d1f0",
    "",
    "040000000200000003cb920d105ed31b7f169ed7ef40852b455ed84d7e040000000100000001e9811ece0362558c75e41c12\
     9bbae00f34d5ea44010000000000000000000660f37cac5209001f3e5d7c9bbad9f81c3b5a7998b7d6f51938577695b4d3f2\
     1635547392b1d0ef133251708faecdec102f4e6d8cabcae90d2c4b6a89a8c7e60a29486786a5c4",
    "010000000100000001000660f37cac536fe30726456483a2c1e004234261809fbedd01203f5e7d9cbbdaf91d3c5b7a99b8d7\
     f61a39587796b5d4f31736557493b2d1f01433527190afceed11304f6e8dac",
    "040000000000000001537350d600a246574eb42af3552af9b1194c050c040000000300000003ed030c2576360dabab99605f\
     f25c5c301e23ad59010000000200000002000660f37cac537bcbea0e2d4c6b8aa9c8e70b2a496887a6c5e40827466584a3c2\
     e10524436281a0bfde0221405f7e9dbcdbfa1e3d5c7b9ab9d8f71b3a597897b6d5f41837567594",
    "040000000000000001537350d600a246574eb42af3552af9b1194c050c040000000200000002599f426588b6c955a0437380\
     14d47b4d6bd1c379010000000300000003000660f37cac5382b3d2f11534537291b0cfee1231506f8eadcceb0f2e4d6c8baa\
     c9e80c2b4a6988a7c6e50928476685a4c3e20625446382a1c0df032241607f9ebddc001f3e5d7c",
    "",
];

/// It fetches 1,200 bytes in chunks of 256: a handshake to channel 0, requests, acknowledgements one by one, and it leaves.
const FETCHING: [&str; 9] = [
    "0000000000825f864f000101010200146fe67008b9b629c621bd07ccbfd8c7dcc87806b503000602ff",
    "08000000000000000006",
    "080000000000000000",
    "030000000000000000020000000000000000000660f3824104da080000000400000004",
    "030000000400000004020000000400000004000660f38241039f080000000200000003",
    "030000000200000002020000000200000002000660f382410361080000000100000001",
    "030000000200000003020000000300000003000660f38241039b",
    "030000000000000003020000000100000001000660f382410353",
    "0000000000ff",
];

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("digits")).collect()
}

fn peer() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 20_001))
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + at / 256 * 7) % 251) as u8).collect()
}

fn tree(content: &[u8], chunk_len: usize) -> Tree<MemoryNodes> {
    let mut leaves = Vec::new();
    HASH.hash_many(&content.chunks(chunk_len).collect::<Vec<_>>(), &mut leaves);
    let mut tree = Tree::growing(HASH, MemoryNodes::new(HASH));
    tree.extend(&leaves);
    tree
}

fn swarm(tree: Tree<MemoryNodes>, root: &[u8], chunk_len: u32, have: Binmap) -> Swarm<SocketAddr> {
    let params = SwarmParams::new(root, Integrity::MerkleTree, HASH, Addressing::Chunks32, Some(chunk_len));
    Swarm::new(params.expect("a swarm"), tree, have, Mode::Fast, 1, Instant::now())
}

/// The number of our channel, in a handshake of ours behind the number of theirs.
fn our_channel(datagram: &[u8]) -> [u8; 4] {
    datagram[5..9].try_into().expect("four bytes")
}

#[test]
fn what_libswift_serves_is_taken() {
    let (content, now) = (content(300), Instant::now());
    let root = tree(&content, 64).root().expect("chunks");
    let unknown = Tree::with_root(HASH, root, None, MemoryNodes::new(HASH));
    let mut leecher = swarm(unknown, root.as_bytes(), 64, Binmap::new());
    leecher.set_dialect(Dialect::Draft10);
    leecher.connect(now, &peer());
    let channel = our_channel(&leecher.transmit().expect("a handshake").datagram);
    let mut got = vec![None; 5];
    for (step, said) in SERVING.iter().enumerate() {
        let now = now + Duration::from_millis(10 * step as u64);
        let datagram = [&channel[..], &unhex(said)].concat();
        for (chunk, bytes) in leecher.datagram(now, &peer(), &datagram).expect("for this swarm") {
            assert!(got[chunk as usize].replace(bytes.to_vec()).is_none(), "chunk {chunk} twice");
            leecher.stored(chunk);
        }
        leecher.poll(now);
        // It takes an acknowledgement for one chunk's, whatever it says.
        while let Some(transmit) = leecher.transmit() {
            let mut messages = &transmit.datagram[4..];
            while let [2, rest @ ..] = messages {
                assert_eq!(rest[..4], rest[4..8], "an acknowledgement of several chunks");
                messages = &rest[16..];
            }
        }
    }
    assert_eq!(got.into_iter().flatten().collect::<Vec<_>>().concat(), content);
    assert!(leecher.is_complete() && std::iter::from_fn(|| leecher.event()).any(|event| event == Event::Size(5)));
}

#[test]
fn what_libswift_asks_for_is_served() {
    let (content, start) = (content(1200), Instant::now());
    let whole = tree(&content, 256);
    let root = whole.root().expect("chunks");
    let mut seeder = swarm(whole, root.as_bytes(), 256, Binmap::full(5));
    let mut channel = [0; 4];
    let mut sent = Vec::new();
    for (step, said) in FETCHING.iter().enumerate() {
        let now = start + Duration::from_millis(30 * step as u64);
        let said = unhex(said);
        let datagram = if step == 0 { said } else { [&channel[..], &said].concat() };
        assert_eq!(seeder.datagram(now, &peer(), &datagram), Some(Vec::new()), "datagram {step}");
        seeder.poll(now);
        while let Some(transmit) = seeder.transmit() {
            if step == 0 {
                assert!(transmit.datagram.len() <= datagram.len());
                channel = our_channel(&transmit.datagram);
            }
            sent.extend(transmit.chunk);
        }
        let is_last = step + 1 == FETCHING.len();
        assert_eq!(seeder.peers().count(), usize::from(step > 0 && !is_last), "after datagram {step}");
    }
    sent.sort_unstable();
    assert_eq!(sent, [0, 1, 2, 3, 4], "each chunk once");
}
