//! Merkle trees over chunks (RFC 7574 §5, §6.1.2): what makes every chunk verify by itself.
//!
//! Content that is complete has a [`Tree`]: its root names the swarm, its peaks tell its size, and a chunk comes with the
//! uncles that lead it up to a node that is known already. A live stream has a [`LiveTree`]: subtrees of one width, each with
//! the source's signature over its root, the munro. Or each of its chunks is signed by itself ([`ChunkSignatures`]), without any
//! tree; [`LiveProofs`] is either.
//!
//! Only verified nodes are ever kept. What a peer offers waits in that peer's [`Offers`] until a chunk or a signature proves
//! it; so a chunk that fails was that peer's lie, whoever else is honest.

mod live;
mod proofs;
mod sidecar;
mod signed;
mod store;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::VecDeque;

pub use live::{
    CHUNKS_PER_SIGNATURE_MAX, Checkpoint, LiveError, LiveSource, LiveTree, Munro, MunroVerdict, STALE_AFTER_S,
    signed_chunk_text,
};
pub use proofs::{LiveProofs, LiveVerdict, Signed};
pub use sidecar::{SIDECAR_HEADER_LEN, Sidecar, SidecarError};
pub use signed::{ChunkSignature, ChunkSignatures};
pub use store::{MemoryNodes, NodeStore, row_places};
pub use tree::{SiblingPath, Tree};

use crate::bin::Bin;
use crate::hash::Digest;

/// Digests of one peer that wait for their proof: the peaks and uncles of a chunk are at most 126, and those of the chunk
/// before may still be needed (RFC 7574 §5.3 lets hashes go ahead of their chunk).
pub const OFFERS_MAX: usize = 256;
/// Signatures of chunks of one peer that wait for their chunk, which comes with its own or right behind: as many as leave together.
pub const SIGNATURES_WAITING_MAX: usize = 64;

/// What came of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the content's: it may be written, acknowledged and announced.
    Good,
    /// Digests between it and a known node are missing: lost on the way, perhaps. It is dropped, and nobody is to blame.
    Missing,
    /// It is not the content's: whoever sent it, and the digests with it, lies.
    Wrong,
}

/// Digests and signatures that one peer sent and that nothing has proven yet; the oldest make room.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    nodes: VecDeque<(Bin, Digest)>,
    signatures: VecDeque<(u64, ChunkSignature)>,
}

impl Offers {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in an INTEGRITY message; a later one for the same node replaces it.
    pub fn add(&mut self, node: Bin, digest: Digest) {
        self.nodes.retain(|(offered, _)| *offered != node);
        if self.nodes.len() >= OFFERS_MAX {
            self.nodes.pop_front();
        }
        self.nodes.push_back((node, digest));
    }

    /// The digest offered for a node.
    pub fn get(&self, node: Bin) -> Option<Digest> {
        // The newest are asked for most.
        self.nodes.iter().rev().find(|(offered, _)| *offered == node).map(|(_, digest)| *digest)
    }

    /// Takes in a chunk's signature; a later one for the same chunk replaces it.
    pub fn add_signature(&mut self, chunk: u64, signature: ChunkSignature) {
        self.signatures.retain(|(offered, _)| *offered != chunk);
        if self.signatures.len() >= SIGNATURES_WAITING_MAX {
            self.signatures.pop_front();
        }
        self.signatures.push_back((chunk, signature));
    }

    /// The signature offered for a chunk.
    pub fn signature(&self, chunk: u64) -> Option<&ChunkSignature> {
        self.signatures.iter().rev().find(|(offered, _)| *offered == chunk).map(|(_, signature)| signature)
    }

    /// The same, which waits no longer.
    pub fn take_signature(&mut self, chunk: u64) -> Option<ChunkSignature> {
        let at = self.signatures.iter().rposition(|(offered, _)| *offered == chunk)?;
        self.signatures.remove(at).map(|(_, signature)| signature)
    }

    /// How many digests wait.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no digest waits.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Forgets the digests, when their channel's chunk was judged.
    pub fn clear(&mut self) {
        self.nodes.clear();
    }

    /// Forgets all of them, when what they were for is not there any more.
    pub fn forget(&mut self) {
        self.clear();
        self.signatures.clear();
    }

    /// The longest chain of offered nodes that can be peaks of one content: from chunk 0 on, each narrower than the one
    /// before (RFC 7574 §5.6.1).
    fn peaks(&self) -> Vec<(Bin, Digest)> {
        let mut peaks: Vec<(Bin, Digest)> = Vec::new();
        // The first is the widest that starts at chunk 0; each of the others starts where the one before ends.
        loop {
            let (start, layer_max) = peaks.last().map_or((0, Bin::LAYER_MAX + 1), |(bin, _)| (bin.end(), bin.layer()));
            let next = self.nodes.iter().filter(|(bin, _)| bin.start() == start && bin.layer() < layer_max);
            match next.max_by_key(|(bin, _)| bin.layer()) {
                Some(peak) => peaks.push(*peak),
                None => return peaks,
            }
        }
    }
}
