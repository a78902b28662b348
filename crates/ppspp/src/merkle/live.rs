//! Live streams: their source, and subtrees of one width, whose roots it signs (RFC 7574 §6.1.2); the other way to sign is in `signed`.
//!
//! The source makes a [`Munro`] of every full subtree; a viewer believes munros alone, and chunks that lead up to one. A
//! latecomer starts at the newest munro that it is told of, and everything behind the window is forgotten. A source that is
//! started again goes on where its [`Checkpoint`] says; without one it counts from chunk 0 again, which viewers notice by
//! munros that contradict older ones and are newer.

use std::collections::BTreeMap;

use thiserror::Error;

use super::proofs::{LiveProofs, Signed};
use super::signed::{ChunkSignature, ChunkSignatures};
use super::tree::climb;
use super::{MemoryNodes, NodeStore, Offers, Tree, Verdict};
use crate::bin::{Bin, CHUNKS_MAX};
use crate::hash::{Digest, HashFunction};
use crate::sign::{PublicKey, SigningKey};
use crate::wire::{Codec, Message};

/// Most chunks that one signature stands for: 4 MiB in chunks of 1 KiB, seconds of any stream.
pub const CHUNKS_PER_SIGNATURE_MAX: u64 = 4096;
/// A munro older than this is nothing to tune in to (RFC 7574 §6.1.2.4, "the timestamp is too old"). Clocks differ by less.
pub const STALE_AFTER_S: u64 = 120;
/// Munros that a viewer keeps where no window says fewer: an hour of 4 Mbit/s at 32 chunks of 1 KiB each.
const MUNROS_MAX: usize = 65_536;

/// The root of a subtree, signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Munro {
    /// Its node.
    pub node: Bin,
    /// Its digest.
    pub digest: Digest,
    /// When it was signed: NTP's 64 bits, seconds since 1900 in the upper half.
    pub ntp: u64,
    /// The source's signature over the three above.
    pub signature: Vec<u8>,
}

impl Munro {
    /// It as it is sent: its digest, then the signature (RFC 7574 §6.1.2.3).
    pub fn messages(&self) -> [Message<'_>; 2] {
        let Self { node, digest, ntp, signature } = self;
        [
            Message::Integrity { node: *node, digest: *digest },
            Message::SignedIntegrity { node: *node, ntp: *ntp, signature },
        ]
    }
}

/// Why a stream cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LiveError {
    /// RFC 7574 §6.1.2.1: "a fixed power of 2", larger than 1.
    #[error(
        "chunks for each signature have to be a power of 2 from 2 to {CHUNKS_PER_SIGNATURE_MAX}; one where each chunk is signed"
    )]
    ChunksPerSignature,
    /// The checkpoint is not at the start of a subtree.
    #[error("the stream's checkpoint does not fit its chunks for each signature: start without it")]
    Checkpoint,
    /// No randomness to sign with, or chunk numbers are used up.
    #[error(
        "the stream cannot be signed any further: the system gives no randomness, or the addressing method is too narrow"
    )]
    Sign,
}

/// What is signed of a munro (RFC 7574 §6.1.2.2): its chunk specification as it is sent, the time, the digest.
fn munro_text(codec: &Codec, node: Bin, ntp: u64, digest: &Digest) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    codec.put_bin(node, &mut text).ok()?;
    text.extend_from_slice(&ntp.to_be_bytes());
    text.extend_from_slice(digest.as_bytes());
    Some(text)
}

/// What is signed of a chunk where all are (RFC 7574 §6.1.1): its specification, the time, the chunk. `None` for a chunk that
/// the addressing method cannot name.
pub fn signed_chunk_text(codec: &Codec, chunk: u64, ntp: u64, payload: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    codec.put_bin(Bin::chunk(chunk)?, &mut text).ok()?;
    text.extend_from_slice(&ntp.to_be_bytes());
    text.extend_from_slice(payload);
    Some(text)
}

/// Where a source stands: what it writes down after every munro, and goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The next chunk, the first of a subtree.
    pub chunk_next: u64,
    /// When the last munro was signed.
    pub ntp: u64,
}

/// The source's end of a stream.
#[derive(Debug)]
pub struct LiveSource {
    key: SigningKey,
    codec: Codec,
    chunks_per_signature: u64,
    /// Leaves of the subtree that is not yet full.
    leaves: Vec<u8>,
    proofs: LiveProofs,
    next: Checkpoint,
}

impl LiveSource {
    /// A stream each of whose chunks is signed by itself, from its beginning (RFC 7574 §6.1.1).
    pub fn sign_all(key: SigningKey, codec: Codec) -> Self {
        let (proofs, next) = (LiveProofs::Chunks(ChunkSignatures::new()), Checkpoint { chunk_next: 0, ntp: 0 });
        Self { key, codec, chunks_per_signature: 1, leaves: Vec::new(), proofs, next }
    }

    /// A stream of signed subtrees that begins, or goes on from a checkpoint.
    pub fn new(
        key: SigningKey,
        codec: Codec,
        chunks_per_signature: u64,
        checkpoint: Option<Checkpoint>,
    ) -> Result<Self, LiveError> {
        if !chunks_per_signature.is_power_of_two() || !(2..=CHUNKS_PER_SIGNATURE_MAX).contains(&chunks_per_signature) {
            return Err(LiveError::ChunksPerSignature);
        }
        let (proofs, next) = (LiveProofs::Munros(LiveTree::new(codec.hash)), Checkpoint { chunk_next: 0, ntp: 0 });
        let mut source = Self { key, codec, chunks_per_signature, leaves: Vec::new(), proofs, next };
        checkpoint.map_or(Ok(()), |checkpoint| source.go_on_from(checkpoint))?;
        Ok(source)
    }

    /// The stream goes on from a checkpoint, before anything of it is taken in.
    pub fn go_on_from(&mut self, checkpoint: Checkpoint) -> Result<(), LiveError> {
        let next = checkpoint.chunk_next;
        if !next.is_multiple_of(self.chunks_per_signature) || next >= CHUNKS_MAX || self.unsigned_chunks() > 0 {
            return Err(LiveError::Checkpoint);
        }
        self.next = checkpoint;
        Ok(())
    }

    /// Takes in the next chunk. Where that makes enough of them to be signed, they are, and may be announced from then on, not before
    /// (RFC 7574 §6.1.2.3): gives them. `ntp` is the time.
    pub fn push(&mut self, payload: &[u8], ntp: u64) -> Result<Option<Signed>, LiveError> {
        // Never back, so that viewers can tell the newer of two.
        let ntp = ntp.max(self.next.ntp + 1);
        match &mut self.proofs {
            LiveProofs::Munros(tree) => {
                self.leaves.extend_from_slice(self.codec.hash.hash(payload).as_bytes());
                if ((self.leaves.len() / self.codec.hash.len()) as u64) < self.chunks_per_signature {
                    return Ok(None);
                }
                let layer = self.chunks_per_signature.trailing_zeros();
                let node = Bin::new(layer, self.next.chunk_next >> layer).ok_or(LiveError::Sign)?;
                tree.sign(&self.key, &self.codec, node, ntp, &self.leaves)?;
                self.leaves.clear();
            }
            LiveProofs::Chunks(chunks) => {
                let chunk = self.next.chunk_next;
                chunks.keep(chunk, ChunkSignature::make(&self.key, &self.codec, chunk, ntp, payload)?);
            }
        }
        let chunks = self.next.chunk_next..self.next.chunk_next + self.chunks_per_signature;
        self.next = Checkpoint { chunk_next: chunks.end, ntp };
        Ok(Some(Signed { chunks, ntp }))
    }

    /// The source's key: the swarm's identifier.
    pub fn key(&self) -> &PublicKey {
        self.key.public()
    }

    /// Chunks that were taken in and not signed yet.
    pub fn unsigned_chunks(&self) -> u64 {
        (self.leaves.len() / self.codec.hash.len()) as u64
    }

    /// Where to go on after a restart.
    pub fn checkpoint(&self) -> Checkpoint {
        self.next
    }

    /// What proves the stream's chunks: serves from here as viewers do.
    pub fn proofs(&self) -> &LiveProofs {
        &self.proofs
    }

    /// The same, to forget what lies behind the window.
    pub fn proofs_mut(&mut self) -> &mut LiveProofs {
        &mut self.proofs
    }
}

/// What came of a munro.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MunroVerdict {
    /// New, and the source's.
    New,
    /// Known already, or behind the window.
    Known,
    /// Too old to tune in to, or of a stream that the source has ended; nobody's fault.
    Stale,
    /// The source began anew: everything from before is forgotten.
    Restarted,
    /// Not the source's: the peer lies.
    Wrong,
}

/// A live stream's tree: as many signed subtrees as are known and not forgotten.
#[derive(Clone, Debug)]
pub struct LiveTree {
    hash: HashFunction,
    /// Layer of the munros, once one is known.
    layer: Option<u32>,
    /// By their first chunk.
    subtrees: BTreeMap<u64, Subtree>,
    /// Chunks before this one are forgotten.
    floor: u64,
}

#[derive(Clone, Debug)]
struct Subtree {
    munro: Munro,
    nodes: MemoryNodes,
}

impl Subtree {
    fn new(hash: HashFunction, munro: Munro) -> Self {
        let mut nodes = MemoryNodes::new(hash);
        nodes.put(munro.node, &munro.digest);
        Self { munro, nodes }
    }
}

impl LiveTree {
    /// Nothing known.
    pub fn new(hash: HashFunction) -> Self {
        Self { hash, layer: None, subtrees: BTreeMap::new(), floor: 0 }
    }

    /// Judges a munro: a SIGNED_INTEGRITY message, with the digest that came before it. `ntp_now` is the time.
    pub fn offer(&mut self, key: &PublicKey, codec: &Codec, munro: Munro, ntp_now: u64) -> MunroVerdict {
        let layer = munro.node.layer();
        if self.layer.is_some_and(|known| known != layer) || !(1..=CHUNKS_PER_SIGNATURE_MAX.ilog2()).contains(&layer) {
            return MunroVerdict::Wrong;
        }
        // A repetition costs no signature; nor does what is forgotten.
        let known = self.subtrees.get(&munro.node.start()).map(|subtree| (subtree.munro.digest, subtree.munro.ntp));
        if known.is_some_and(|(digest, ntp)| digest == munro.digest && ntp == munro.ntp) {
            return MunroVerdict::Known;
        }
        if munro.ntp >> 32 < (ntp_now >> 32).saturating_sub(STALE_AFTER_S) && self.subtrees.is_empty() {
            return MunroVerdict::Stale;
        }
        let newest = self.subtrees.values().map(|subtree| subtree.munro.ntp).next_back();
        let behind = munro.node.end() <= self.floor;
        if behind && newest.is_none_or(|newest| munro.ntp <= newest) {
            return MunroVerdict::Known;
        }
        let text = munro_text(codec, munro.node, munro.ntp, &munro.digest);
        if !text.is_some_and(|text| key.verify(&text, &munro.signature)) {
            return MunroVerdict::Wrong;
        }
        // The source counts and signs upwards: newer but at or before what is known means that it began anew.
        let end = self.subtrees.last_key_value().map_or(0, |(_, last)| last.munro.node.end());
        let restarted = newest.is_some_and(|newest| munro.ntp > newest) && munro.node.end() <= end;
        if restarted {
            self.subtrees.clear();
            self.floor = 0;
        } else if known.is_some() || behind {
            return MunroVerdict::Known;
        }
        // What is signed later lies further on; what does not is of a stream before this one, and its chunks are not this one's.
        let (start, ntp) = (munro.node.start(), munro.ntp);
        let before = self.subtrees.range(..start).next_back().map(|(_, before)| before.munro.ntp);
        let after = self.subtrees.range(start..).next().map(|(_, after)| after.munro.ntp);
        if before.is_some_and(|before| before >= ntp) || after.is_some_and(|after| after <= ntp) {
            return MunroVerdict::Stale;
        }
        self.layer = Some(layer);
        self.keep(Subtree::new(self.hash, munro));
        if restarted { MunroVerdict::Restarted } else { MunroVerdict::New }
    }

    /// Signs a subtree of the source's own, whose leaves these are, and keeps it.
    fn sign(&mut self, key: &SigningKey, codec: &Codec, node: Bin, ntp: u64, leaves: &[u8]) -> Result<(), LiveError> {
        let mut subtree = Tree::growing(self.hash, MemoryNodes::new(self.hash));
        subtree.extend(leaves);
        let digest = subtree.root().ok_or(LiveError::Sign)?;
        let text = munro_text(codec, node, ntp, &digest).ok_or(LiveError::Sign)?;
        let signature = key.sign(&text).ok_or(LiveError::Sign)?;
        let mut kept = Subtree::new(self.hash, Munro { node, digest, ntp, signature });
        // The same nodes, at their places in the whole stream.
        for number in 0..2 * node.chunk_count() - 1 {
            let local = Bin::from_u64(number);
            if let (Some(bin), Some(digest)) =
                (Bin::from_u64(number + 2 * node.start()), local.and_then(|bin| subtree.node(bin)))
            {
                kept.nodes.put(bin, &digest);
            }
        }
        self.layer = Some(node.layer());
        self.keep(kept);
        Ok(())
    }

    fn keep(&mut self, subtree: Subtree) {
        let start = subtree.munro.node.start();
        if self.subtrees.len() >= MUNROS_MAX
            && let Some((_, oldest)) = self.subtrees.pop_first()
        {
            self.floor = self.floor.max(oldest.munro.node.end());
        }
        self.subtrees.insert(start, subtree);
    }

    /// Judges a chunk whose digest is `leaf`: it has to lead up to its munro.
    pub fn verify(&mut self, chunk: u64, leaf: Digest, offers: &Offers) -> Verdict {
        let (Some(bin), Some(layer)) = (Bin::chunk(chunk), self.layer) else { return Verdict::Missing };
        let Some(subtree) = self.subtrees.get_mut(&bin.ancestor(layer).start()) else { return Verdict::Missing };
        let (verdict, proven) = climb(self.hash, bin, leaf, |bin| subtree.nodes.get(bin), offers);
        proven.iter().for_each(|(bin, digest)| subtree.nodes.put(*bin, digest));
        verdict
    }

    /// The munro above a chunk.
    pub fn munro(&self, chunk: u64) -> Option<&Munro> {
        let start = Bin::chunk(chunk)?.ancestor(self.layer?).start();
        self.subtrees.get(&start).map(|subtree| &subtree.munro)
    }

    /// The newest munro: what a latecomer is sent, to tune in (RFC 7574 §6.1.2.4).
    pub fn newest(&self) -> Option<&Munro> {
        self.subtrees.last_key_value().map(|(_, subtree)| &subtree.munro)
    }

    /// The oldest munro.
    pub fn oldest(&self) -> Option<&Munro> {
        self.subtrees.first_key_value().map(|(_, subtree)| &subtree.munro)
    }

    /// The first munro that was signed at `ntp` or later.
    pub fn since(&self, ntp: u64) -> Option<&Munro> {
        // Recent ones are asked for, and there are few of those.
        let newer = self.subtrees.values().rev().take_while(|subtree| subtree.munro.ntp >= ntp);
        newer.last().map(|subtree| &subtree.munro)
    }

    /// The digests between a chunk and its munro, the highest first, up to where the receiver has a chunk below.
    pub fn uncles(&self, chunk: u64, has_below: impl Fn(Bin) -> bool) -> Option<Vec<(Bin, Digest)>> {
        let layer = self.layer?;
        let mut at = Bin::chunk(chunk)?;
        let subtree = self.subtrees.get(&at.ancestor(layer).start())?;
        let mut uncles = Vec::new();
        while at.layer() < layer {
            let (parent, sibling) = (at.parent()?, at.sibling()?);
            if has_below(parent) {
                break;
            }
            uncles.push((sibling, subtree.nodes.get(sibling)?));
            at = parent;
        }
        uncles.reverse();
        Some(uncles)
    }

    /// Forgets the subtrees that lie wholly before `chunk` (RFC 7574 §6.2).
    pub fn discard_before(&mut self, chunk: u64) {
        let Some(layer) = self.layer else { return };
        let floor = chunk >> layer << layer;
        self.floor = self.floor.max(floor);
        self.subtrees = self.subtrees.split_off(&self.floor);
    }

    /// Subtrees that are known.
    pub fn len(&self) -> usize {
        self.subtrees.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.subtrees.is_empty()
    }
}
