//! A queue of bytes in blocks: filled at its end, read anywhere, emptied from its front. What is empty takes no memory.

use std::collections::VecDeque;

/// Bytes of a block: two of BitTorrent's, so that a file is read with few calls.
const BLOCK_LEN: usize = 32 * 1024;

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    blocks: VecDeque<Box<[u8]>>,
    /// Bytes of the first block that are gone.
    skip: usize,
    len: usize,
    /// A block that was emptied, for the next one that is needed.
    spare: Option<Box<[u8]>>,
}

impl ByteQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory behind the last byte, one at least; [`ByteQueue::grow`] says how much of it was written.
    pub(crate) fn tail(&mut self) -> &mut [u8] {
        let end = self.skip + self.len;
        if end == self.blocks.len() * BLOCK_LEN {
            let block = self.spare.take().unwrap_or_else(|| vec![0; BLOCK_LEN].into());
            self.blocks.push_back(block);
        }
        &mut self.blocks[end / BLOCK_LEN][end % BLOCK_LEN..]
    }

    /// `len` bytes of the tail were written.
    pub(crate) fn grow(&mut self, len: usize) {
        self.len += len;
        debug_assert!(self.skip + self.len <= self.blocks.len() * BLOCK_LEN);
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let tail = self.tail();
            let (now, later) = bytes.split_at(bytes.len().min(tail.len()));
            tail[..now.len()].copy_from_slice(now);
            self.grow(now.len());
            bytes = later;
        }
    }

    /// The first bytes, as many as lie in a row; empty only where the queue is.
    pub(crate) fn front(&self) -> &[u8] {
        match self.blocks.front() {
            Some(block) => &block[self.skip..BLOCK_LEN.min(self.skip + self.len)],
            None => &[],
        }
    }

    /// The first `len` bytes go, or all where there are fewer.
    pub(crate) fn consume(&mut self, len: usize) {
        let len = len.min(self.len);
        self.skip += len;
        self.len -= len;
        while self.skip >= BLOCK_LEN {
            self.skip -= BLOCK_LEN;
            self.spare = self.blocks.pop_front();
        }
        if self.len == 0 {
            *self = Self::default();
        }
    }

    /// Appends `len` bytes from place `at` on to `out`; fewer where there are fewer.
    pub(crate) fn copy_out(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        let mut left = len.min(self.len.saturating_sub(at));
        let mut from = self.skip + at;
        while left > 0 {
            let block = &self.blocks[from / BLOCK_LEN][from % BLOCK_LEN..];
            let now = &block[..left.min(block.len())];
            out.extend_from_slice(now);
            (from, left) = (from + now.len(), left - now.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_queue(steps in proptest::collection::vec((any::<bool>(), 0usize..100_000), 1..40)) {
            let (mut queue, mut model) = (ByteQueue::default(), VecDeque::new());
            let mut next = 0u32;
            for (pushes, len) in steps {
                if pushes {
                    let bytes: Vec<u8> = (0..len).map(|at| (next + at as u32) as u8).collect();
                    next += len as u32;
                    queue.push(&bytes);
                    model.extend(bytes);
                } else {
                    prop_assert!(queue.front().iter().eq(model.iter().take(queue.front().len())));
                    prop_assert_eq!(queue.front().is_empty(), model.is_empty());
                    queue.consume(len);
                    model.drain(..len.min(model.len()));
                }
                prop_assert_eq!(queue.len(), model.len());
                let (mut out, at) = (Vec::new(), len / 3);
                queue.copy_out(at, len, &mut out);
                prop_assert!(out.iter().eq(model.iter().skip(at).take(len)));
                prop_assert_eq!(queue.blocks.is_empty(), model.is_empty());
            }
        }
    }
}
