//! The root over a content, made while the first round is sent: no hashing pass before the first byte.
//!
//! The root is the BLAKE3 hash of the content, as `b3sum` prints it of one file without holes. BLAKE3 is a tree, so that parts of it are
//! hashed by themselves, by instructions that do sixteen blocks at once. What travels and what is judged is a *span*: a power of two
//! of bytes, 1 MiB for contents up to 1 TiB, more beyond, so that there are never more than 2^20 hashes. Its hash is the chaining value
//! of its subtree, where it lies in the content. A span is kept, and counts as had after a restart, when all of its chunks came and
//! its hash is right.

use std::ops::Range;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

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

/// The hash of one span from its bytes, all of them.
pub fn span_hash(content_len: u64, span: u64, bytes: &[u8]) -> [u8; 32] {
    let mut hasher = SpanHasher::new(content_len, span);
    hasher.update(bytes);
    hasher.finish()
}

/// The root over a content from the hashes of all its spans.
pub fn root(content_len: u64, spans: &[[u8; 32]]) -> [u8; 32] {
    debug_assert_eq!(spans.len() as u64, span_count(content_len));
    match spans {
        [] => *blake3::hash(&[]).as_bytes(),
        // It is all of the tree.
        [one] => *one,
        _ => {
            let (left, right) = split(spans);
            *merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).as_bytes()
        }
    }
}

fn subtree(spans: &[[u8; 32]]) -> [u8; 32] {
    match spans {
        [one] => *one,
        _ => {
            let (left, right) = split(spans);
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// BLAKE3 §2.1: the left part is the largest power of two that leaves something for the right one. Of two at least.
fn split(spans: &[[u8; 32]]) -> (&[[u8; 32]], &[[u8; 32]]) {
    spans.split_at(spans.len().next_power_of_two() / 2)
}

/// The hash of one span, as its bytes come in order.
#[derive(Clone, Debug)]
pub struct SpanHasher {
    hasher: blake3::Hasher,
    left: u64,
    is_alone: bool,
}

impl SpanHasher {
    /// Of a span that the content has; nothing of it came.
    pub fn new(content_len: u64, span: u64) -> Self {
        let bytes = span_bytes(content_len, span);
        let mut hasher = blake3::Hasher::new();
        // A multiple of the 1024 bytes of a BLAKE3 chunk, and of the span's own length. Past the end nothing is hashed.
        hasher.set_input_offset(if bytes.is_empty() { 0 } else { bytes.start });
        Self { hasher, left: bytes.end - bytes.start, is_alone: span_count(content_len) == 1 }
    }

    /// Takes the next bytes; what is past the span's end is left.
    pub fn update(&mut self, bytes: &[u8]) {
        let taken = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.hasher.update(&bytes[..taken]);
        self.left -= taken as u64;
    }

    /// The hash of what came.
    pub fn finish(&self) -> [u8; 32] {
        if self.is_alone { *self.hasher.finalize().as_bytes() } else { self.hasher.finalize_non_root() }
    }
}

/// The hashes of a content's spans, as its bytes are read in order.
#[derive(Debug)]
pub struct Hasher {
    content_len: u64,
    at: u64,
    span: SpanHasher,
    spans: Vec<[u8; 32]>,
}

impl Hasher {
    /// Nothing was read of `content_len` bytes.
    pub fn new(content_len: u64) -> Self {
        Self { content_len, at: 0, span: SpanHasher::new(content_len, 0), spans: Vec::new() }
    }

    /// Which byte has to come next.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Takes the next bytes; what is past the content's end is left.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.at < self.content_len {
            let (taken, rest) = bytes.split_at(bytes.len().min(usize::try_from(self.span.left).unwrap_or(usize::MAX)));
            self.span.update(taken);
            self.at += taken.len() as u64;
            bytes = rest;
            if self.span.left == 0 {
                self.spans.push(self.span.finish());
                self.span = SpanHasher::new(self.content_len, self.spans.len() as u64);
            }
        }
    }

    /// Hashes of the spans that were read whole, from the first on.
    pub fn spans(&self) -> &[[u8; 32]] {
        &self.spans
    }

    /// The root, once everything was read.
    pub fn root(&self) -> Option<[u8; 32]> {
        (self.at == self.content_len).then(|| root(self.content_len, &self.spans))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn reading_in_any_parts_makes_blake3_of_the_content(len in 0..9_000_000usize, part in 1..1_400_000usize) {
            let content: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
            let mut hasher = Hasher::new(len as u64);
            content.chunks(part).for_each(|part| hasher.update(part));
            prop_assert_eq!(hasher.root(), Some(*blake3::hash(&content).as_bytes()));
            prop_assert_eq!(hasher.spans().len() as u64, span_count(len as u64));
            for (span, hash) in (0..).zip(hasher.spans()) {
                let bytes = span_bytes(len as u64, span);
                prop_assert_eq!(span_hash(len as u64, span, &content[bytes.start as usize..bytes.end as usize]), *hash);
            }
        }
    }

    #[test]
    fn what_ends_with_a_span_and_what_is_one_have_the_root_of_blake3() {
        for len in [0, 1, SPAN_LEN_MIN - 1, SPAN_LEN_MIN, SPAN_LEN_MIN + 1, 2 * SPAN_LEN_MIN, 5 * SPAN_LEN_MIN] {
            let content = vec![42; len as usize];
            let mut hasher = Hasher::new(len);
            hasher.update(&content);
            hasher.update(b"and what is past the end");
            assert_eq!(hasher.root(), Some(*blake3::hash(&content).as_bytes()), "{len}");
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
