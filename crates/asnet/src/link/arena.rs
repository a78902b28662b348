//! Where queued packets lie: first in, first out, in chunks, so that neighbours leave in one message without a copy.

use std::collections::VecDeque;

/// Bytes of a chunk: a run of packets never leaves in one message of more.
pub(super) const CHUNK_LEN: usize = 64 << 10;
/// Chunks kept for reuse; a link at work fills and empties a few all the time.
const SPARE_CHUNKS_MAX: usize = 8;

/// A first-in-first-out store of byte strings that never cross a chunk's border.
#[derive(Default)]
pub(super) struct Arena {
    chunks: VecDeque<Chunk>,
    spare: Vec<Box<[u8]>>,
}

struct Chunk {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Arena {
    /// Appends a packet. It must fit a chunk, which every UDP payload does.
    pub(super) fn push(&mut self, packet: &[u8]) {
        if self.chunks.back().is_none_or(|chunk| CHUNK_LEN - chunk.end < packet.len()) {
            let bytes = self.spare.pop().unwrap_or_else(|| vec![0; CHUNK_LEN].into_boxed_slice());
            self.chunks.push_back(Chunk { bytes, start: 0, end: 0 });
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.bytes[chunk.end..chunk.end + packet.len()].copy_from_slice(packet);
            chunk.end += packet.len();
        }
    }

    /// The oldest bytes, up to the end of their chunk.
    pub(super) fn front(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| &chunk.bytes[chunk.start..chunk.end])
    }

    /// Forgets the oldest `len` bytes, which are no more than [`front`](Self::front) showed.
    pub(super) fn pop(&mut self, len: usize) {
        let Some(chunk) = self.chunks.front_mut() else { return };
        chunk.start += len;
        if chunk.start < chunk.end {
            return;
        }
        if let Some(chunk) = self.chunks.pop_front()
            && self.spare.len() < SPARE_CHUNKS_MAX
        {
            self.spare.push(chunk.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_out_as_they_went_in() {
        let mut arena = Arena::default();
        let packets: Vec<Vec<u8>> = (0..400_usize).map(|i| vec![i as u8; 1 + i * 7919 % 9000]).collect();
        packets.iter().for_each(|packet| arena.push(packet));
        for packet in &packets {
            assert_eq!(&arena.front()[..packet.len()], packet);
            arena.pop(packet.len());
        }
        assert!(arena.front().is_empty());
        assert!(arena.spare.len() <= SPARE_CHUNKS_MAX);
    }

    #[test]
    fn equal_neighbours_are_contiguous() {
        let mut arena = Arena::default();
        (0..3).for_each(|i| arena.push(&[i; 100]));
        assert_eq!(arena.front().len(), 300);
    }
}
