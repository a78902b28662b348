//! PPSPP: chunks of 1 KiB and up under a Merkle tree of which a receiver knows the root at first, and more with every chunk
//! (RFC 7574, section 5). Chunks are judged one by one where they lie, before they count; or a subtree at a time by the disk
//! threads, as soon as its hash is known.

use std::collections::HashMap;

use anabranch_content::hash::sha256;
use anabranch_content::info::Sha256Digest;
use anabranch_content::merkle;

use super::*;

/// All nodes over a content's chunks, as a sender has them: layers from the leaves up.
fn whole_tree(leaves: Vec<Sha256Digest>) -> Vec<Vec<Sha256Digest>> {
    let mut layers = vec![leaves];
    while layers[layers.len() - 1].len() > 1 {
        let height = layers.len() as u32 - 1;
        let below = &layers[layers.len() - 1];
        layers.push(below.chunks(2).map(|pair| merkle::subtree_root(pair, height, height + 1)).collect());
    }
    layers
}

/// What a receiver knows of the tree: nothing in it that does not lead up to the root.
struct GrowingTree {
    known: HashMap<(u32, u32), Sha256Digest>,
}

impl GrowingTree {
    fn new(root: Sha256Digest, height: u32) -> Self {
        Self { known: HashMap::from([((height, 0), root)]) }
    }

    /// Whether a node is right, by the uncles that came with it: those missing from the tree, from the lowest up.
    fn learn(&mut self, height: u32, index: u32, digest: Sha256Digest, sent: &[Vec<Sha256Digest>]) -> bool {
        let (mut node, mut at, mut learned) = (digest, (height, index), Vec::new());
        while !self.known.contains_key(&at) {
            let beside = (at.0, at.1 ^ 1);
            let uncle = sent[beside.0 as usize].get(beside.1 as usize).copied().unwrap_or(merkle::pad_hash(beside.0));
            learned.extend([(at, node), (beside, uncle)]);
            let pair = if at.1.is_multiple_of(2) { [node, uncle] } else { [uncle, node] };
            node = merkle::subtree_root(&pair, at.0, at.0 + 1);
            at = (at.0 + 1, at.1 / 2);
        }
        let is_right = self.known[&at] == node;
        if is_right {
            self.known.extend(learned);
        }
        is_right
    }
}

#[test]
fn chunks_are_verified_one_by_one_or_a_subtree_at_a_time_while_the_tree_grows() {
    let met = std::cell::RefCell::new(Met::default());
    let rejected = std::cell::Cell::new(0);
    for_seeds(|rng| {
        let chunk_len = [1024, 1024, 4096, 8192][rng.usize(..4)];
        let piece_height = rng.u32(4..9);
        let content = content(rng, &[rng.clone().u64(1..2_000_000)], chunk_len << piece_height, chunk_len);
        let leaves: Vec<Sha256Digest> = content.1.chunks(chunk_len as usize).map(sha256).collect();
        let sent = whole_tree(leaves);
        let height = sent.len() as u32 - 1;
        let mut tree = GrowingTree::new(sent[height as usize][0], height);
        let per_piece = 1 << piece_height;
        let subtree_height = piece_height.min(height);
        let is_chunkwise = rng.bool();
        let mut client = Client::new(rng, content);
        let mut restart_at = rng.bool().then(|| rng.usize(1..300));
        while !client.verified.is_full() {
            for range in client.missing(rng) {
                if client.is_here(range) {
                    continue;
                }
                let (payload, is_damaged) = client.payload(range, rng);
                client.receive(range, &payload).unwrap();
                if is_chunkwise {
                    // Before it is acknowledged. What is wrong never counts, and its place is free for the next that comes.
                    let leaf = sha256(client.buffers.laid_out(range).unwrap());
                    let index = range.piece * per_piece + range.begin / chunk_len;
                    let is_right = tree.learn(0, index, leaf, &sent);
                    assert_eq!(is_right, !is_damaged, "chunk {index}");
                    if !is_right {
                        rejected.set(rejected.get() + 1);
                        continue;
                    }
                }
                client.keep(range, is_damaged);
                if rng.u8(..64) == 0 {
                    client.try_nonsense(range);
                }
                // The hash of a subtree comes with its chunks, or later.
                if client.is_whole(range.piece) && (is_chunkwise || rng.bool()) {
                    verify(&mut client, range.piece, &mut tree, &sent, (!is_chunkwise).then_some(subtree_height));
                }
                restart_at = restart_at.and_then(|left| left.checked_sub(1));
                if restart_at == Some(0) {
                    client.restart();
                    break;
                }
            }
            client.answers();
            for piece in 0..client.geometry().piece_count() {
                if client.is_whole(piece) {
                    verify(&mut client, piece, &mut tree, &sent, (!is_chunkwise).then_some(subtree_height));
                }
            }
            client.answers();
        }
        client.assert_complete();
        met.borrow_mut().add(&client.met);
    });
    met.borrow().assert_all();
    assert!(rejected.get() > 0);
}

/// A piece whose chunks are proven is written as it is; another is hashed against the node over it.
fn verify(
    client: &mut Client,
    piece: u32,
    tree: &mut GrowingTree,
    sent: &[Vec<Sha256Digest>],
    subtree_height: Option<u32>,
) {
    let expected = subtree_height.map_or(ExpectedHash::default(), |height| {
        let node = sent[height as usize][piece as usize];
        assert!(tree.learn(height, piece, node, sent));
        ExpectedHash { sha1: None, merkle: Some((tree.known[&(height, piece)], height)) }
    });
    client.verify(piece, expected);
}
