//! Memory that blocks are received into: buffers of a few sizes, together under one limit.

use std::rc::Rc;

use anabranch_content::geometry::BLOCK_LEN;
use anabranch_content::storage::{Buffer, BufferPool};

/// Most bytes in a chunk: what is written in one go, and few enough that a piece under way takes little more than came of it. No
/// block crosses a chunk, so every block is contiguous in memory.
pub(crate) const CHUNK_LEN: u32 = 256 * 1024;

/// Sizes that chunks of small pieces come in: a 16 KiB piece must not occupy 256 KiB.
const CLASS_LENS: [u32; 5] = [BLOCK_LEN, 2 * BLOCK_LEN, 4 * BLOCK_LEN, 8 * BLOCK_LEN, CHUNK_LEN];

/// Buffers of all contents of a session, under one limit.
#[derive(Debug)]
pub(crate) struct Pools {
    classes: [BufferPool; CLASS_LENS.len()],
    limit_bytes: u64,
}

impl Pools {
    /// At most `limit_bytes` of buffers, whatever their sizes.
    pub(crate) fn new(limit_bytes: u64) -> Rc<Self> {
        let classes = CLASS_LENS.map(|len| match len {
            CHUNK_LEN => BufferPool::on_huge_pages(len as usize, limit_bytes as usize),
            _ => BufferPool::new(len as usize, limit_bytes as usize),
        });
        Rc::new(Self { classes, limit_bytes })
    }

    /// Bytes handed out.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.classes.iter().map(|pool| (pool.stats().in_use * pool.buffer_len()) as u64).sum()
    }

    /// Bytes that may still be handed out.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes())
    }

    /// Gives memory that rests back to the system.
    pub(crate) fn trim(&self) {
        self.classes.iter().for_each(BufferPool::trim);
    }

    /// A buffer of `len` bytes or more, up to [`CHUNK_LEN`]; `None` where the limit is reached.
    pub(super) fn try_get(&self, len: u32) -> Option<Buffer> {
        let class = self.classes.iter().find(|pool| pool.buffer_len() >= len as usize)?;
        if self.free_bytes() < class.buffer_len() as u64 {
            return None;
        }
        // Buffers of one size that rest must not add to those of another that work.
        let growth_bytes = class.growth_bytes() as u64;
        if growth_bytes > 0 && self.mapped_bytes() + growth_bytes > self.limit_bytes {
            self.trim();
        }
        class.try_get()
    }

    /// Bytes handed out or resting.
    fn mapped_bytes(&self) -> u64 {
        let mapped = |pool: &BufferPool| {
            let stats = pool.stats();
            (stats.in_use + stats.idle) * pool.buffer_len()
        };
        self.classes.iter().map(|pool| mapped(pool) as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_another_size_that_rest_make_room() {
        let pools = Pools::new(4 * u64::from(CHUNK_LEN));
        let large: Vec<_> = (0..4).map(|_| pools.try_get(CHUNK_LEN).unwrap()).collect();
        assert!(pools.try_get(CHUNK_LEN).is_none());
        drop(large);
        let small: Vec<_> = (0..64).map_while(|_| pools.try_get(BLOCK_LEN)).collect();
        assert_eq!(small.len(), 64);
        // What `trim` keeps of each size is the slack.
        assert!(pools.mapped_bytes() <= pools.limit_bytes + 4 * u64::from(CHUNK_LEN));
    }
}
