//! The Merkle trees of v2: one a file, over its 16 KiB blocks (BEP 52).
//!
//! A leaf is the SHA-256 of a block; leaves past the end of the file are 32 zero bytes, as many as make a power of two.
//! Heights count from the leaves, which are height 0. Nodes whose blocks all lie past the end ([`pad_hash`]) are never kept.
//!
//! - From blocks to the root: [`leaves`], [`root_from_leaves`], [`piece_layer`], [`root_from_layer`].
//! - For peers: a [`Shape`] says what to ask for, [`PieceTree::answer`] serves a [`HashRequest`], [`check_hashes`] judges
//!   the answer of another. Nothing here trusts a hash that it did not follow to a known one.

use std::ops::Range;
use std::sync::OnceLock;

use thiserror::Error;

use crate::geometry::BLOCK_LEN;
use crate::hash::{Backend, sha256_many};
use crate::info::Sha256Digest;

/// Height of the tallest tree: a file of 2^63 bytes has 2^49 blocks.
pub const HEIGHT_MAX: u32 = 49;
/// Hashes we ask for at once (BEP 52: "Length SHOULD NOT be greater than 512").
pub const REQUEST_LENGTH_MAX: u32 = 512;
/// Hashes we serve at once. libtorrent asks for the blocks of a whole piece, whatever its length; this is 128 MiB of them.
pub const ANSWER_LENGTH_MAX: u32 = 8192;

/// Nodes hashed per call: enough to keep every lane full, few enough for the stack.
const BATCH_NODES: usize = 128;

/// The node of height `height` whose blocks all lie past the end of the file.
///
/// # Panics
/// Past [`HEIGHT_MAX`].
pub fn pad_hash(height: u32) -> Sha256Digest {
    static PADS: OnceLock<[Sha256Digest; HEIGHT_MAX as usize + 1]> = OnceLock::new();
    PADS.get_or_init(|| {
        // BEP 52, "pieces root": "remaining leaf hashes beyond the end of the file ... are set to zero".
        let mut pads = [[0; 32]; HEIGHT_MAX as usize + 1];
        for height in 1..pads.len() {
            pads[height] = parent(&pads[height - 1], &pads[height - 1]);
        }
        pads
    })[height as usize]
}

/// SHA-256 of every 16 KiB block of `data`, which starts at a block of the file; the last block may be short.
pub fn leaves(data: &[u8]) -> Vec<Sha256Digest> {
    let blocks: Vec<&[u8]> = data.chunks(BLOCK_LEN as usize).collect();
    sha256_many(&blocks)
}

/// The root of a file with these leaves ("pieces root"). No leaves: all zeros, which no file has.
pub fn root_from_leaves(leaves: &[Sha256Digest]) -> Sha256Digest {
    subtree_root(leaves, 0, height_of(leaves.len() as u64))
}

/// The root of a file from one layer of its tree, a node of which covers `blocks_per_node` blocks (a power of two).
///
/// # Panics
/// Where `blocks_per_node` is not a power of two.
pub fn root_from_layer(layer: &[Sha256Digest], blocks_per_node: u32) -> Sha256Digest {
    assert!(blocks_per_node.is_power_of_two());
    let height = blocks_per_node.trailing_zeros();
    subtree_root(layer, height, height + height_of(layer.len() as u64))
}

/// The layer of a file whose nodes cover `blocks_per_piece` blocks (a power of two), without padding.
/// For a file of one piece that is its root, which is not kept in "piece layers".
///
/// # Panics
/// Where `blocks_per_piece` is not a power of two.
pub fn piece_layer(leaves: &[Sha256Digest], blocks_per_piece: u32) -> Vec<Sha256Digest> {
    assert!(blocks_per_piece.is_power_of_two());
    if leaves.len() <= blocks_per_piece as usize {
        // The tree is no taller than its file needs.
        return if leaves.is_empty() { Vec::new() } else { vec![root_from_leaves(leaves)] };
    }
    climb(leaves, 0, blocks_per_piece.trailing_zeros())
}

/// The node of height `height` over `nodes` of height `node_height`; missing nodes at the end are padding.
///
/// # Panics
/// Where there are more nodes than fit below one of that height.
pub fn subtree_root(nodes: &[Sha256Digest], node_height: u32, height: u32) -> Sha256Digest {
    assert!(nodes.len() as u64 <= 1 << (height - node_height), "the nodes fit below the root");
    climb(nodes, node_height, height).first().copied().unwrap_or_else(|| pad_hash(height))
}

/// Height of the tree over `leaves` leaves.
fn height_of(leaves: u64) -> u32 {
    leaves.max(1).next_power_of_two().trailing_zeros()
}

/// The layer of height `to` above the layer `nodes` of height `from`.
fn climb(nodes: &[Sha256Digest], from: u32, to: u32) -> Vec<Sha256Digest> {
    let mut layer = nodes.to_vec();
    for height in from..to {
        layer = parents(&layer, &pad_hash(height));
    }
    layer
}

/// One layer up; an odd last node is paired with `pad`.
fn parents(nodes: &[Sha256Digest], pad: &Sha256Digest) -> Vec<Sha256Digest> {
    let (pairs, odd) = nodes.as_chunks::<2>();
    let mut layer = vec![[0; 32]; pairs.len()];
    for (pairs, layer) in pairs.chunks(BATCH_NODES).zip(layer.chunks_mut(BATCH_NODES)) {
        let mut messages: [&[u8]; BATCH_NODES] = [&[]; BATCH_NODES];
        pairs.iter().zip(&mut messages).for_each(|(pair, message)| *message = pair.as_flattened());
        Backend::best().sha256_many_into(&messages[..pairs.len()], layer);
    }
    if let [last] = odd {
        layer.push(parent(last, pad));
    }
    layer
}

fn parent(left: &Sha256Digest, right: &Sha256Digest) -> Sha256Digest {
    crate::hash::sha256([*left, *right].as_flattened())
}

/// Which part of a file's tree a peer asks for: BEP 52, "hash request", without the root that names the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashRequest {
    /// Height of the lowest layer asked for; 0 are the leaves.
    pub base: u32,
    /// First hash of that layer, a multiple of `length`.
    pub index: u32,
    /// Hashes of that layer, a power of two.
    pub length: u32,
    /// Layers above the base layer to prove the hashes by. Those that the hashes themselves make up count, but are not sent.
    pub proof_layers: u32,
}

// The methods answer nonsense, but do not panic, for requests that `Shape::check` refuses.
impl HashRequest {
    /// Height of the node that all hashes of the base layer lie below.
    fn top(&self) -> u32 {
        self.base.saturating_add(self.length.trailing_zeros())
    }

    /// How many uncle hashes follow those of the base layer: "the first log2(length)-1 proof layers are omitted".
    pub fn uncle_count(&self) -> u32 {
        self.base.saturating_add(self.proof_layers).saturating_add(1).saturating_sub(self.top())
    }

    /// How many hashes the answer has.
    pub fn hash_count(&self) -> u64 {
        u64::from(self.length) + u64::from(self.uncle_count())
    }

    /// Height and index of the node that the answer leads up to: to trust the answer, its hash has to be known.
    pub fn anchor(&self) -> (u32, u32) {
        let height = self.top().saturating_add(self.uncle_count());
        (height, self.index.checked_shr(height - self.base).unwrap_or(0))
    }
}

/// Why a hash request gets "hash reject": the peer's fault, or more than we serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// BEP 52: "Length MUST be ... a power of two", "Index MUST be a multiple of length".
    #[error("peer asked for hashes whose length is not a power of two or whose index is not a multiple of it")]
    Unaligned,
    /// More than [`ANSWER_LENGTH_MAX`] hashes.
    #[error("peer asked for more than {ANSWER_LENGTH_MAX} hashes at once")]
    TooLong,
    /// The base layer, the hashes or the proof layers reach over the tree's edge.
    #[error("peer asked for hashes outside of the file's tree")]
    OutsideTree,
    /// The leaves given do not fit [`Shape::leaves_needed`].
    #[error("leaves of the asked blocks are not at hand")]
    LeavesMissing,
}

/// Number of blocks and pieces of one file, and so the form of its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    blocks: u64,
    height: u32,
    piece_height: u32,
}

impl Shape {
    /// The tree of a file of `length` bytes, at least 1, in pieces of `piece_length` bytes, a power of two from 16 KiB.
    ///
    /// # Panics
    /// When the preconditions do not hold: the parser proves them first.
    pub fn new(length: u64, piece_length: u32) -> Self {
        assert!(length > 0 && length <= 1 << 63 && piece_length.is_power_of_two() && piece_length >= BLOCK_LEN);
        let blocks = length.div_ceil(u64::from(BLOCK_LEN));
        let height = height_of(blocks);
        Self { blocks, height, piece_height: (piece_length / BLOCK_LEN).trailing_zeros().min(height) }
    }

    /// Height of the root.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Height of the nodes that cover a piece; the root's for a file of one piece.
    pub fn piece_height(&self) -> u32 {
        self.piece_height
    }

    /// Leaves that are not padding.
    pub fn block_count(&self) -> u64 {
        self.blocks
    }

    /// Pieces of the file: nodes of the piece layer that are not padding.
    pub fn piece_count(&self) -> u64 {
        self.blocks.div_ceil(1 << self.piece_height)
    }

    /// What to ask for to learn the whole piece layer, each proven up to the root; nothing for a file of one piece.
    pub fn piece_layer_requests(&self) -> impl Iterator<Item = HashRequest> + use<> {
        let layers = self.height - self.piece_height;
        let length = u64::from(REQUEST_LENGTH_MAX).min(1 << layers) as u32;
        let count = if layers == 0 { 0 } else { self.piece_count().div_ceil(u64::from(length)) };
        let base = self.piece_height;
        (0..count as u32).map(move |chunk| HashRequest {
            base,
            index: chunk * length,
            length,
            proof_layers: layers - 1,
        })
    }

    /// The blocks whose leaves [`PieceTree::answer`] needs for `request`: whole pieces, clipped to the file; empty where the
    /// piece layer is enough.
    pub fn leaves_needed(&self, request: &HashRequest) -> Result<Range<u64>, RequestError> {
        self.check(request)?;
        if request.base >= self.piece_height {
            return Ok(0..0);
        }
        let span = 1u64 << request.top().max(self.piece_height);
        let first = (u64::from(request.index) << request.base) / span * span;
        Ok(first.min(self.blocks)..(first + span).min(self.blocks))
    }

    /// Whether `request` makes sense for this tree.
    pub fn check(&self, request: &HashRequest) -> Result<(), RequestError> {
        // A length of 1 breaks BEP 52's "equal-to-or-greater-than two", but libtorrent asks so for the last of 513 pieces.
        if !request.length.is_power_of_two() || !request.index.is_multiple_of(request.length) {
            return Err(RequestError::Unaligned);
        }
        if request.length > ANSWER_LENGTH_MAX {
            return Err(RequestError::TooLong);
        }
        if request.base >= self.height || request.proof_layers >= self.height - request.base {
            return Err(RequestError::OutsideTree);
        }
        let layer = 1u64 << (self.height - request.base);
        if u64::from(request.index) + u64::from(request.length) > layer {
            return Err(RequestError::OutsideTree);
        }
        Ok(())
    }
}

/// The upper part of a file's tree, from the piece layer to the root.
#[derive(Clone, Debug)]
pub struct PieceTree {
    shape: Shape,
    /// From the piece layer up, without padding.
    layers: Vec<Vec<Sha256Digest>>,
}

impl PieceTree {
    /// From the piece layer; for a file of one piece that is its root alone. `None` where the number of hashes is wrong.
    /// Compare [`PieceTree::root`] with the "pieces root" before trusting anything here.
    pub fn new(shape: Shape, piece_layer: &[Sha256Digest]) -> Option<Self> {
        if piece_layer.len() as u64 != shape.piece_count() {
            return None;
        }
        let mut layers = vec![piece_layer.to_vec()];
        for height in shape.piece_height..shape.height {
            layers.push(parents(&layers[layers.len() - 1], &pad_hash(height)));
        }
        Some(Self { shape, layers })
    }

    /// The file's "pieces root".
    pub fn root(&self) -> Sha256Digest {
        self.node(self.shape.height, 0)
    }

    /// A node of the piece layer or above; padding past the end.
    fn node(&self, height: u32, index: u64) -> Sha256Digest {
        let layer = &self.layers[(height - self.shape.piece_height) as usize];
        usize::try_from(index).ok().and_then(|index| layer.get(index)).copied().unwrap_or_else(|| pad_hash(height))
    }

    /// The hashes that answer `request`: those of the base layer, then the uncles from the lowest up (BEP 52, "hashes").
    /// `leaves` are those of [`Shape::leaves_needed`].
    pub fn answer(&self, request: &HashRequest, leaves: &[Sha256Digest]) -> Result<Vec<Sha256Digest>, RequestError> {
        let needed = self.shape.leaves_needed(request)?;
        if leaves.len() as u64 != needed.end - needed.start {
            return Err(RequestError::LeavesMissing);
        }
        // Layers of the asked pieces from the leaves to just below the piece layer; `needed` starts at a piece.
        let mut low = vec![leaves.to_vec()];
        for height in 0..self.shape.piece_height.saturating_sub(1) {
            low.push(parents(&low[low.len() - 1], &pad_hash(height)));
        }
        let node = |height: u32, index: u64| {
            if height >= self.shape.piece_height {
                return self.node(height, index);
            }
            let at = index.checked_sub(needed.start >> height).and_then(|at| usize::try_from(at).ok());
            at.and_then(|at| low[height as usize].get(at)).copied().unwrap_or_else(|| pad_hash(height))
        };
        let first = u64::from(request.index);
        let mut hashes: Vec<_> =
            (first..first + u64::from(request.length)).map(|index| node(request.base, index)).collect();
        hashes.extend((request.top()..request.top() + request.uncle_count()).map(|height| {
            // The sibling of the ancestor at this height.
            node(height, (first >> (height - request.base)) ^ 1)
        }));
        Ok(hashes)
    }
}

/// Whether `hashes`, a peer's answer to `request`, leads up to `anchor`, the hash of the node [`HashRequest::anchor`]. Only
/// then are its first `request.length` hashes those of the base layer; the ones past the end of the file are padding.
pub fn check_hashes(shape: &Shape, request: &HashRequest, hashes: &[Sha256Digest], anchor: &Sha256Digest) -> bool {
    if shape.check(request).is_err() || hashes.len() as u64 != request.hash_count() {
        return false;
    }
    let (base, uncles) = hashes.split_at(request.length as usize);
    let mut node = subtree_root(base, request.base, request.top());
    let mut index = request.index >> request.length.trailing_zeros();
    for uncle in uncles {
        node = if index.is_multiple_of(2) { parent(&node, uncle) } else { parent(uncle, &node) };
        index /= 2;
    }
    node == *anchor
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The whole tree, padding and all, by the text of BEP 52: layers from the leaves up.
    fn naive(leaves: &[Sha256Digest]) -> Vec<Vec<Sha256Digest>> {
        let mut layer = leaves.to_vec();
        layer.resize(leaves.len().next_power_of_two(), [0; 32]);
        let mut layers = vec![layer];
        while let Some(layer) = layers.last().filter(|layer| layer.len() > 1) {
            layers.push(layer.chunks(2).map(|pair| crate::hash::sha256(&pair.concat())).collect());
        }
        layers
    }

    fn some_leaves(count: usize) -> Vec<Sha256Digest> {
        (0..count).map(|i| crate::hash::sha256(&i.to_le_bytes())).collect()
    }

    fn tree(leaves: &[Sha256Digest], piece_height: u32) -> (Shape, PieceTree) {
        let shape = Shape::new(leaves.len() as u64 * u64::from(BLOCK_LEN), BLOCK_LEN << piece_height);
        let pieces = piece_layer(leaves, 1 << piece_height);
        (shape, PieceTree::new(shape, &pieces).expect("as many pieces as the shape says"))
    }

    /// What peers ask for to learn the leaves of one piece, proven up to the piece's hash; nothing where pieces are blocks.
    fn leaf_requests(shape: &Shape, piece: u32) -> impl Iterator<Item = HashRequest> + use<> {
        let span = 1u32 << shape.piece_height();
        let length = REQUEST_LENGTH_MAX.min(span);
        let count = if span == 1 { 0 } else { span / length };
        let (proof_layers, blocks) = (shape.piece_height().saturating_sub(1), shape.block_count());
        let all = (0..count).map(move |chunk| piece * span + chunk * length);
        let there = all.take_while(move |index| u64::from(*index) < blocks);
        there.map(move |index| HashRequest { base: 0, index, length, proof_layers })
    }

    #[test]
    fn leaves_are_blocks_and_the_last_may_be_short() {
        let data = vec![7; 3 * BLOCK_LEN as usize + 5];
        let hashes = leaves(&data);
        assert_eq!(hashes.len(), 4);
        assert_eq!(hashes[3], crate::hash::sha256(&[7; 5]));
        assert_eq!(root_from_leaves(&leaves(b"x")), crate::hash::sha256(b"x"));
    }

    #[test]
    fn roots_and_layers_equal_the_naive_tree() {
        for count in (1..70).chain([127, 128, 129, 1000]) {
            let leaves = some_leaves(count);
            let layers = naive(&leaves);
            let root = layers[layers.len() - 1][0];
            assert_eq!(root_from_leaves(&leaves), root);
            for (height, layer) in layers.iter().enumerate() {
                let (nodes, pads) = layer.split_at(count.div_ceil(1 << height));
                assert_eq!(piece_layer(&leaves, 1 << height), nodes);
                assert_eq!(root_from_layer(nodes, 1 << height), root);
                assert!(pads.iter().all(|pad| *pad == pad_hash(height as u32)));
            }
            for taller in layers.len() as u32..layers.len() as u32 + 3 {
                assert_eq!(piece_layer(&leaves, 1 << taller), [root]);
            }
        }
    }

    #[test]
    fn requests_learn_the_whole_piece_layer_and_the_leaves_of_a_piece() {
        for (count, piece_height) in [(1, 0), (2, 0), (7, 1), (1025, 0), (1026, 1), (513, 0), (3000, 10), (1500, 11)] {
            let leaves = some_leaves(count);
            let (shape, tree) = tree(&leaves, piece_height);
            let pieces = piece_layer(&leaves, 1 << piece_height);
            let mut learned = Vec::new();
            for request in shape.piece_layer_requests() {
                assert!(request.length <= REQUEST_LENGTH_MAX && request.anchor() == (shape.height(), 0));
                let hashes = tree.answer(&request, &[]).expect("our own requests are valid");
                assert!(check_hashes(&shape, &request, &hashes, &tree.root()));
                learned.extend_from_slice(&hashes[..request.length as usize]);
            }
            if shape.piece_count() > 1 {
                assert_eq!(learned[..pieces.len()], pieces);
            }
            for (piece, hash) in pieces.iter().enumerate() {
                let mut learned = Vec::new();
                for request in leaf_requests(&shape, piece as u32) {
                    assert_eq!(request.anchor(), (shape.piece_height(), piece as u32));
                    let needed = shape.leaves_needed(&request).expect("our own requests are valid");
                    let needed = &leaves[needed.start as usize..needed.end as usize];
                    let hashes = tree.answer(&request, needed).expect("our own requests are valid");
                    assert!(check_hashes(&shape, &request, &hashes, hash));
                    learned.extend_from_slice(&hashes[..request.length as usize]);
                }
                if shape.piece_height() > 0 {
                    let first = piece << shape.piece_height();
                    let end = count.min(first + (1 << shape.piece_height()));
                    assert_eq!(learned[..end - first], leaves[first..end]);
                }
            }
        }
    }

    #[test]
    fn a_single_last_hash_gets_the_uncles_that_libtorrent_counts() {
        // 513 pieces: libtorrent asks for (512, 1). It expects proof_layers + 1 uncles.
        let leaves = some_leaves(513);
        let (shape, tree) = tree(&leaves, 0);
        let request = HashRequest { base: 0, index: 512, length: 1, proof_layers: 9 };
        let hashes = tree.answer(&request, &[]).expect("served");
        assert_eq!(hashes.len(), 1 + 10);
        assert!(check_hashes(&shape, &request, &hashes, &tree.root()));
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
        let leaves = some_leaves(100);
        let (shape, tree) = tree(&leaves, 2);
        let good = HashRequest { base: 2, index: 8, length: 8, proof_layers: 4 };
        assert!(tree.answer(&good, &[]).is_ok());
        for (request, error) in [
            (HashRequest { length: 7, ..good }, RequestError::Unaligned),
            (HashRequest { length: 0, ..good }, RequestError::Unaligned),
            (HashRequest { index: 4, ..good }, RequestError::Unaligned),
            (HashRequest { index: 0, length: ANSWER_LENGTH_MAX * 2, ..good }, RequestError::TooLong),
            (HashRequest { index: 32, ..good }, RequestError::OutsideTree),
            (HashRequest { index: u32::MAX - 7, ..good }, RequestError::OutsideTree),
            (HashRequest { proof_layers: 5, ..good }, RequestError::OutsideTree),
            (HashRequest { proof_layers: u32::MAX, ..good }, RequestError::OutsideTree),
            (HashRequest { base: 7, index: 0, length: 1, proof_layers: 0 }, RequestError::OutsideTree),
            (HashRequest { base: u32::MAX, ..good }, RequestError::OutsideTree),
            (HashRequest { base: 0, ..good }, RequestError::LeavesMissing),
        ] {
            assert_eq!(tree.answer(&request, &[]), Err(error), "{request:?}");
            assert!(error == RequestError::LeavesMissing || !check_hashes(&shape, &request, &[], &tree.root()));
        }
        assert!(PieceTree::new(shape, &leaves[..24]).is_none());
    }

    proptest! {
        #[test]
        fn every_answer_verifies_and_no_changed_one_does(
            count in 2usize..600,
            piece_height in 0u32..6,
            choice in any::<[u32; 4]>(),
            flip in any::<(usize, u8)>(),
        ) {
            let leaves = some_leaves(count);
            let (shape, tree) = tree(&leaves, piece_height);
            prop_assert_eq!(tree.root(), root_from_leaves(&leaves));
            let base = choice[0] % shape.height();
            let log = choice[1] % (shape.height() - base + 1);
            let index = (choice[2] % (1 << (shape.height() - base - log))) << log;
            let proof_layers = choice[3] % (shape.height() - base);
            let request = HashRequest { base, index, length: 1 << log, proof_layers };
            let needed = shape.leaves_needed(&request).unwrap();
            let hashes = tree.answer(&request, &leaves[needed.start as usize..needed.end as usize]).unwrap();
            let (height, at) = request.anchor();
            let anchor = naive(&leaves)[height as usize][at as usize];
            prop_assert!(check_hashes(&shape, &request, &hashes, &anchor));
            let mut changed = hashes.clone();
            changed[flip.0 % hashes.len()][usize::from(flip.1) / 8] ^= 1 << (flip.1 % 8);
            prop_assert!(!check_hashes(&shape, &request, &changed, &anchor));
            prop_assert!(!check_hashes(&shape, &request, &hashes[1..], &anchor));
        }
    }
}
