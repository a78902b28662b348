//! What proves the chunks of a live stream, whichever way its source signs (RFC 7574 §6.1): the one place that knows the ways apart.

use std::ops::Range;

use super::signed::{ChunkSignature, ChunkSignatures};
use super::{LiveTree, Munro, MunroVerdict, Offers, Verdict};
use crate::bin::Bin;
use crate::hash::{Digest, HashFunction};
use crate::sign::PublicKey;
use crate::wire::{Codec, Integrity, Message};

/// What one signature of the source's stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The chunks: those below a munro, or one.
    pub chunks: Range<u64>,
    /// When it was made: NTP's 64 bits.
    pub ntp: u64,
}

/// What came of a live stream's chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveVerdict {
    /// It is the stream's.
    Good,
    /// It is the stream's, and the source began anew: everything from before is forgotten.
    Restarted,
    /// What proves it is not here, or it is behind the window: nobody is to blame.
    Missing,
    /// It came without the signature that was to come with it: lost on the way, or never made.
    Unsigned,
    /// Too old to begin with: nobody's fault.
    Stale,
    /// The source signed it, as it seems, and in another stream than this one: earlier than what is before it in this one.
    Replayed,
    /// It is not the source's: the peer lies.
    Wrong,
}

/// What is known of a live stream that proves its chunks.
#[derive(Clone, Debug)]
pub enum LiveProofs {
    /// Signed subtrees: "Unified Merkle Tree". A signature comes before the chunks that it stands for, and proves that they are there.
    Munros(LiveTree),
    /// Signed chunks: "Sign All". A signature comes with its chunk.
    Chunks(ChunkSignatures),
}

impl LiveProofs {
    /// Nothing known; `None` for what is not signed, and so not live.
    pub fn new(integrity: Integrity, hash: HashFunction) -> Option<Self> {
        match integrity {
            Integrity::UnifiedMerkleTree => Some(Self::Munros(LiveTree::new(hash))),
            Integrity::SignAll => Some(Self::Chunks(ChunkSignatures::new())),
            Integrity::None | Integrity::MerkleTree => None,
        }
    }

    // ---- what is signed ----

    /// The newest.
    pub fn newest(&self) -> Option<Signed> {
        match self {
            Self::Munros(tree) => tree.newest().map(of_munro),
            Self::Chunks(chunks) => chunks.newest().map(of_chunk),
        }
    }

    /// The oldest.
    pub fn oldest(&self) -> Option<Signed> {
        match self {
            Self::Munros(tree) => tree.oldest().map(of_munro),
            Self::Chunks(chunks) => chunks.oldest().map(of_chunk),
        }
    }

    /// The first that was signed at `ntp` or later.
    pub fn since(&self, ntp: u64) -> Option<Signed> {
        match self {
            Self::Munros(tree) => tree.since(ntp).map(of_munro),
            Self::Chunks(chunks) => chunks.since(ntp).map(of_chunk),
        }
    }

    /// What stands for a chunk.
    pub fn over(&self, chunk: u64) -> Option<Signed> {
        match self {
            Self::Munros(tree) => tree.munro(chunk).map(of_munro),
            Self::Chunks(chunks) => chunks.get(chunk).map(|signature| of_chunk((chunk, signature))),
        }
    }

    /// The chunk after the last one that is known to be there.
    pub fn edge(&self) -> u64 {
        self.newest().map_or(0, |newest| newest.chunks.end)
    }

    /// How many signatures are known.
    pub fn len(&self) -> usize {
        match self {
            Self::Munros(tree) => tree.len(),
            Self::Chunks(chunks) => chunks.len(),
        }
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets what stands for chunks before this one alone (RFC 7574 §6.2).
    pub fn discard_before(&mut self, chunk: u64) {
        match self {
            Self::Munros(tree) => tree.discard_before(chunk),
            Self::Chunks(chunks) => chunks.discard_before(chunk),
        }
    }

    // ---- what a peer announces ----

    /// Which of the chunks that a peer announces are heeded, where so many are kept, once it showed that it knows the stream. A munro says
    /// what there is. Where each chunk is signed nothing does: what is no further ahead than the window is believed until it is asked for.
    pub fn heeded(&self, announced: &Range<u64>, window: u64) -> Range<u64> {
        announced.start..announced.end.min(self.asked_end(window))
    }

    /// Where what is asked for in order ends.
    pub fn asked_end(&self, window: u64) -> u64 {
        match self {
            Self::Munros(_) => self.edge(),
            Self::Chunks(_) => self.edge().saturating_add(window),
        }
    }

    /// Whether a peer that sends or takes a chunk which holds shows by that that it knows the stream; else it shows a munro.
    pub fn is_shown_by_chunks(&self) -> bool {
        matches!(self, Self::Chunks(_))
    }

    /// Whether a chunk that a peer announces is to be asked for by itself: where the peer has not shown that it knows the stream
    /// (`is_tuned`), or the chunk is not among those from `start` on that are asked for in order. Nothing else tells where a peer's stream
    /// is, if it is not where ours is. `start` is `None` before anything is asked for.
    pub fn is_probed(&self, chunk: u64, is_tuned: bool, start: Option<u64>, window: u64) -> bool {
        let Self::Chunks(chunks) = self else { return false };
        let is_asked = |start| chunk >= start && chunk < self.asked_end(window);
        !is_tuned || chunks.get(chunk).is_none() && !start.is_some_and(is_asked)
    }

    // ---- what comes ----

    /// A SIGNED_INTEGRITY message came. A munro is to be judged at once, with the digest that came before it; the signature of a chunk
    /// waits for that.
    pub fn signature(&self, offers: &mut Offers, node: Bin, ntp: u64, signature: &[u8]) -> Option<Munro> {
        match self {
            Self::Munros(_) => Some(Munro { node, digest: offers.get(node)?, ntp, signature: signature.to_vec() }),
            Self::Chunks(_) => {
                if node.layer() == 0 {
                    offers.add_signature(node.start(), ChunkSignature { ntp, signature: signature.into() });
                }
                None
            }
        }
    }

    /// Whether the signature that came for a chunk that is here is the one that is known of it; `None` where none came.
    pub fn is_same(&self, offers: &Offers, chunk: u64) -> Option<bool> {
        let Self::Chunks(chunks) = self else { return None };
        Some(Some(offers.signature(chunk)?) == chunks.get(chunk))
    }

    /// Judges a munro.
    pub fn offer(&mut self, key: &PublicKey, codec: &Codec, munro: Munro, ntp_now: u64) -> MunroVerdict {
        match self {
            Self::Munros(tree) => tree.offer(key, codec, munro, ntp_now),
            Self::Chunks(_) => MunroVerdict::Known,
        }
    }

    /// Whether this munro is known.
    pub fn knows(&self, munro: &Munro) -> bool {
        matches!(self, Self::Munros(tree) if tree.munro(munro.node.start()).is_some_and(|known| known == munro))
    }

    /// Judges a chunk, whose digest `leaf` makes where it is needed. `is_tuned`: its sender showed that it knows the stream.
    pub fn judge(
        &mut self,
        key: &PublicKey,
        codec: &Codec,
        (chunk, payload): (u64, &[u8]),
        leaf: impl FnOnce() -> Digest,
        (offers, is_tuned): (&mut Offers, bool),
        ntp_now: u64,
    ) -> LiveVerdict {
        match self {
            // Who has not heard of a new stream yet is late, and no liar.
            Self::Munros(_) if !is_tuned => LiveVerdict::Missing,
            Self::Munros(tree) => match tree.verify(chunk, leaf(), offers) {
                Verdict::Good => LiveVerdict::Good,
                Verdict::Missing => LiveVerdict::Missing,
                Verdict::Wrong => LiveVerdict::Wrong,
            },
            Self::Chunks(chunks) => {
                let offered = offers.take_signature(chunk);
                chunks.judge(key, codec, (chunk, payload), offered.as_ref(), ntp_now)
            }
        }
    }

    /// Judges a chunk as the source, who did not make it: `Good` where somebody else signs with its key. What was signed before anything
    /// that is known is of an earlier stream of the source's own.
    pub fn judge_strange(
        &self,
        key: &PublicKey,
        codec: &Codec,
        (chunk, payload): (u64, &[u8]),
        offers: &mut Offers,
        ntp_now: u64,
    ) -> LiveVerdict {
        let Self::Chunks(own) = self else { return LiveVerdict::Missing };
        let (Some(oldest), Some(offered)) = (own.oldest(), offers.take_signature(chunk)) else {
            return LiveVerdict::Missing;
        };
        if chunk < self.edge() || offered.ntp <= oldest.1.ntp {
            return LiveVerdict::Missing;
        }
        ChunkSignatures::new().judge(key, codec, (chunk, payload), Some(&offered), ntp_now)
    }

    // ---- what goes out ----

    /// What goes with a chunk: messages with signatures, then digests; `None` where the chunk cannot be proven. `has_below` says whether the
    /// receiver has a chunk below a node, `takes` whether it is sent the munro that begins with a chunk.
    pub fn prove<'a>(
        &'a self,
        chunk: u64,
        has_below: impl Fn(Bin) -> bool,
        takes: impl FnOnce(u64) -> bool,
        digests: &mut Vec<(Bin, Digest)>,
    ) -> Option<Vec<Message<'a>>> {
        match self {
            Self::Munros(tree) => {
                digests.extend(tree.uncles(chunk, &has_below)?);
                // RFC 7574 §6.1.2.3: the munro goes ahead of the first chunk below it.
                let munro = tree.munro(chunk)?;
                let is_sent = !has_below(munro.node) && takes(munro.node.start());
                Some(if is_sent { munro.messages().into() } else { Vec::new() })
            }
            Self::Chunks(chunks) => {
                // RFC 7574 §6.1.1: "a SIGNED_INTEGRITY message with the chunk's signature, followed by a DATA message".
                let ChunkSignature { ntp, signature } = chunks.get(chunk)?;
                Some(vec![Message::SignedIntegrity { node: Bin::chunk(chunk)?, ntp: *ntp, signature }])
            }
        }
    }

    /// What goes ahead of an announcement, without which a peer believes nothing of it: the newest munro, and before it the one above
    /// `start`, which tells a latecomer how far back it may begin.
    pub fn introduce<'a>(&'a self, start: Option<u64>, messages: &mut Vec<Message<'a>>) {
        let Self::Munros(tree) = self else { return };
        let Some(newest) = tree.newest() else { return };
        let start = start.and_then(|start| tree.munro(start)).filter(|start| start.node != newest.node);
        start.into_iter().chain([newest]).for_each(|munro| messages.extend(munro.messages()));
    }

    /// Chunks of which a latecomer is told in any case, so that one that it gets proves the stream to it.
    pub fn sample(&self) -> Range<u64> {
        match self {
            Self::Munros(_) => 0..0,
            Self::Chunks(chunks) => chunks.newest().map_or(0..0, |(newest, _)| newest..newest + 1),
        }
    }
}

fn of_munro(munro: &Munro) -> Signed {
    Signed { chunks: munro.node.range(), ntp: munro.ntp }
}

fn of_chunk((chunk, signature): (u64, &ChunkSignature)) -> Signed {
    Signed { chunks: chunk..chunk + 1, ntp: signature.ntp }
}
