//! The root over a content, made while the first round is sent: no hashing pass before the first byte.
//!
//! The leaves are the content's blocks of 16 KiB; the tree is that of BEP 52, padded with zeros. What travels and what is
//! judged is a *span*: a power of two of blocks, 1 MiB for contents up to 1 TiB, more beyond, so that there are never more
//! than 2^20 hashes. A span is kept, and counts as had after a restart, when all of its chunks came and its hash is right.

use std::ops::Range;

use anabranch_content::geometry::BLOCK_LEN;
use anabranch_content::hash::sha256_many;
use anabranch_content::info::Sha256Digest;
use anabranch_content::merkle;

use crate::ChunkSet;

/// Length of a span of a small content.
pub const SPAN_LEN_MIN: u64 = 1 << 20;
/// Most spans of a content: 32 MiB of hashes.
pub const SPANS_MAX: u64 = 1 << 20;

/// Bytes of a span of a content of this length.
pub fn span_len(content_len: u64) -> u64 {
    content_len.div_ceil(SPANS_MAX).next_power_of_two().max(SPAN_LEN_MIN)
}

/// How many spans a content has.
pub fn span_count(content_len: u64) -> u64 {
    content_len.div_ceil(span_len(content_len))
}

/// The bytes of a span.
pub fn span_bytes(content_len: u64, span: u64) -> Range<u64> {
    let len = span_len(content_len);
    (span * len).min(content_len)..((span + 1) * len).min(content_len)
}

/// How many bytes the spans of a set have.
pub fn bytes_of(content_len: u64, spans: &ChunkSet) -> u64 {
    let bytes = |run: Range<u64>| span_bytes(content_len, run.end - 1).end - span_bytes(content_len, run.start).start;
    spans.runs(0..span_count(content_len)).map(bytes).sum()
}

/// The hash of one span from its bytes, all of them: blocks are hashed side by side.
pub fn span_hash(content_len: u64, bytes: &[u8]) -> Sha256Digest {
    hash_of_leaves(content_len, &merkle::leaves(bytes))
}

/// The hash of one span of such a content from the hashes of its blocks, all of them.
pub fn hash_of_leaves(content_len: u64, leaves: &[Sha256Digest]) -> Sha256Digest {
    merkle::subtree_root(leaves, 0, (span_len(content_len) / u64::from(BLOCK_LEN)).trailing_zeros())
}

/// The root over a content from the hashes of all its spans; that of an empty content is all zeros.
pub fn root(content_len: u64, spans: &[Sha256Digest]) -> Sha256Digest {
    if spans.is_empty() {
        return [0; 32];
    }
    // A span is a power of two of blocks, at most 2^16.
    merkle::root_from_layer(spans, (span_len(content_len) / u64::from(BLOCK_LEN)) as u32)
}

/// The hashes of a content's spans, as its bytes are read in order.
#[derive(Debug)]
pub struct Hasher {
    content_len: u64,
    at: u64,
    /// Of a block that has not come whole.
    partial: Vec<u8>,
    /// Of the spans that were not read whole yet.
    leaves: Vec<Sha256Digest>,
    spans: Vec<Sha256Digest>,
}

impl Hasher {
    /// Nothing was read of `content_len` bytes.
    pub fn new(content_len: u64) -> Self {
        Self { content_len, at: 0, partial: Vec::new(), leaves: Vec::new(), spans: Vec::new() }
    }

    /// Which byte has to come next.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Takes the next bytes; what is past the content's end is left. All blocks that are whole now are hashed side by side, wherever
    /// spans end.
    pub fn update(&mut self, bytes: &[u8]) {
        let block_len = BLOCK_LEN as usize;
        let left = usize::try_from(self.content_len - self.at).unwrap_or(usize::MAX);
        let mut bytes = &bytes[..bytes.len().min(left)];
        self.at += bytes.len() as u64;
        if !self.partial.is_empty() {
            let (fill, rest) = bytes.split_at(bytes.len().min(block_len - self.partial.len()));
            self.partial.extend_from_slice(fill);
            bytes = rest;
        }
        let is_end = self.at == self.content_len;
        let (whole, rest) = if is_end { (bytes, &[][..]) } else { bytes.split_at(bytes.len() / block_len * block_len) };
        let first = Some(&self.partial[..]).filter(|first| first.len() == block_len || is_end && !first.is_empty());
        let is_first_whole = first.is_some();
        let blocks: Vec<&[u8]> = first.into_iter().chain(whole.chunks(block_len)).collect();
        self.leaves.extend(sha256_many(&blocks));
        if is_first_whole {
            self.partial.clear();
        }
        self.partial.extend_from_slice(rest);
        let span_blocks = (span_len(self.content_len) / u64::from(BLOCK_LEN)) as usize;
        while self.leaves.len() >= span_blocks || is_end && !self.leaves.is_empty() {
            let count = self.leaves.len().min(span_blocks);
            self.spans.push(hash_of_leaves(self.content_len, &self.leaves[..count]));
            self.leaves.drain(..count);
        }
    }

    /// Hashes of the spans that were read whole, from the first on.
    pub fn spans(&self) -> &[Sha256Digest] {
        &self.spans
    }

    /// The root, once everything was read.
    pub fn root(&self) -> Option<Sha256Digest> {
        (self.at == self.content_len).then(|| root(self.content_len, &self.spans))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn reading_in_any_parts_makes_the_tree_of_bep_52(len in 0..3_000_000usize, part in 1..400_000usize) {
            let content: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
            let mut hasher = Hasher::new(len as u64);
            content.chunks(part).for_each(|part| hasher.update(part));
            // One span is the tallest tree that a short content has here; BEP 52's is only as tall as its file needs.
            if len as u64 > SPAN_LEN_MIN {
                prop_assert_eq!(hasher.root(), Some(merkle::root_from_leaves(&merkle::leaves(&content))));
            }
            prop_assert_eq!(hasher.spans().len() as u64, span_count(len as u64));
            for (span, hash) in (0..).zip(hasher.spans()) {
                let bytes = span_bytes(len as u64, span);
                prop_assert_eq!(span_hash(len as u64, &content[bytes.start as usize..bytes.end as usize]), *hash);
            }
        }
    }

    #[test]
    fn there_are_never_more_spans_than_fit_memory() {
        assert_eq!(span_len(0), SPAN_LEN_MIN);
        assert_eq!(span_len(SPANS_MAX * SPAN_LEN_MIN), SPAN_LEN_MIN);
        assert_eq!(span_len(SPANS_MAX * SPAN_LEN_MIN + 1), 2 * SPAN_LEN_MIN);
        assert!(span_count(crate::wire::CONTENT_LEN_MAX) <= SPANS_MAX);
    }
}
