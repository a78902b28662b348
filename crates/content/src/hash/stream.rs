//! A message that arrives in parts.

use super::kernel::BLOCK_BYTES;
use super::lanes::{Kernels, padding};

/// Chaining value, the bytes that do not fill a block yet, and the length so far.
#[derive(Clone)]
pub(super) struct Stream<const W: usize> {
    pub(super) state: [u32; W],
    buffer: [u8; BLOCK_BYTES],
    length: u64,
}

impl<const W: usize> Stream<W> {
    pub(super) fn new(init: [u32; W]) -> Self {
        Self { state: init, buffer: [0; BLOCK_BYTES], length: 0 }
    }

    /// Takes in `data` except for its whole blocks, which the caller has to compress into `state` before the next call.
    pub(super) fn split<'a>(&mut self, kernels: &Kernels<W>, data: &'a [u8]) -> &'a [[u8; BLOCK_BYTES]] {
        let buffered = self.buffered();
        self.length = self.length.wrapping_add(data.len() as u64);
        let mut data = data;
        if buffered > 0 {
            let (head, rest) = data.split_at(data.len().min(BLOCK_BYTES - buffered));
            self.buffer[buffered..buffered + head.len()].copy_from_slice(head);
            if buffered + head.len() < BLOCK_BYTES {
                return &[];
            }
            kernels.compress(&mut self.state, &[self.buffer]);
            data = rest;
        }
        let (blocks, rest) = data.as_chunks();
        self.buffer[..rest.len()].copy_from_slice(rest);
        blocks
    }

    pub(super) fn update(&mut self, kernels: &Kernels<W>, data: &[u8]) {
        let blocks = self.split(kernels, data);
        kernels.compress(&mut self.state, blocks);
    }

    pub(super) fn finish(mut self, kernels: &Kernels<W>) -> [u32; W] {
        let (tail, blocks) = padding(&self.buffer[..self.buffered()], self.length);
        kernels.compress(&mut self.state, &tail[..blocks]);
        self.state
    }

    fn buffered(&self) -> usize {
        (self.length % BLOCK_BYTES as u64) as usize
    }
}
