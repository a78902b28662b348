//! Where blocks gather until their piece is whole.
//!
//! A piece under way owns chunks of [`CHUNK_LEN`] bytes out of a bounded pool, taken when the first block of a chunk
//! arrives. Blocks are received straight into them; the whole piece then goes to a disk thread, which hashes and writes
//! it from there. When memory runs short, chunks that nobody is receiving into are spilled to their place on disk and
//! read back when the piece is verified: so a piece may be longer than all buffers together.
//!
//! # Pointers
//!
//! [`PieceBuffers::place`] and [`PieceBuffers::resume`] hand out raw pointers into chunks, for the kernel to fill. A chunk
//! is a mapping of its own and does not move; it leaves here, and the pointer goes stale, in [`PieceBuffers::take`],
//! [`PieceBuffers::spill`] and when all of this is dropped; and whoever looks at a chunk's bytes must find nobody writing. So
//! a pointer is good while the caller holds the exclusive borrow with which it was made, and no longer.
//! A block has one filler at most: while it has one, its place is given to nobody else.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::geometry::{BLOCK_LEN, BlockRange, Geometry};
use anabranch_content::storage::{Buffer, BufferPool};
use anabranch_paths::ConnId;

/// Most bytes in a chunk: what is written in one go, and few enough that a piece under way takes little more than came of it. No
/// block crosses a chunk, so every block is contiguous in memory.
pub const CHUNK_LEN: u32 = 256 * 1024;
/// Sizes that chunks of small pieces come in: a 16 KiB piece must not occupy 256 KiB.
const CLASS_LENS: [u32; 5] = [BLOCK_LEN, 2 * BLOCK_LEN, 4 * BLOCK_LEN, 8 * BLOCK_LEN, CHUNK_LEN];

/// Buffers of all contents of a session, under one limit.
#[derive(Debug)]
pub struct Pools {
    classes: [BufferPool; CLASS_LENS.len()],
    limit_bytes: u64,
}

impl Pools {
    /// At most `limit_bytes` of buffers, whatever their sizes.
    pub fn new(limit_bytes: u64) -> Rc<Self> {
        let classes = CLASS_LENS.map(|len| BufferPool::new(len as usize, limit_bytes as usize));
        Rc::new(Self { classes, limit_bytes })
    }

    /// Bytes handed out.
    pub fn used_bytes(&self) -> u64 {
        self.classes.iter().map(|pool| (pool.stats().in_use * pool.buffer_len()) as u64).sum()
    }

    /// Bytes that may still be handed out.
    pub fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes())
    }

    /// Gives memory that rests back to the system.
    pub fn trim(&self) {
        self.classes.iter().for_each(BufferPool::trim);
    }

    fn try_get(&self, len: u32) -> Option<Buffer> {
        let class = self.classes.iter().find(|pool| pool.buffer_len() >= len as usize)?;
        let class_len = class.buffer_len() as u64;
        if self.free_bytes() < class_len {
            return None;
        }
        // Buffers of one size that rest must not add to those of another that work.
        if class.stats().idle == 0 && self.mapped_bytes() + class_len > self.limit_bytes {
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

/// What is known of a block's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Missing,
    InMemory,
    OnDisk,
}

#[derive(Debug)]
struct Piece {
    chunks: Vec<Option<Buffer>>,
    blocks: Vec<Block>,
    /// Blocks whose payload is arriving in place, and over which connection.
    fillers: Vec<(BlockRange, ConnId)>,
    /// Chunks that are being written to disk ahead of time.
    spilling: u32,
    touched: Instant,
}

/// A piece taken out for verification: `chunks` are in order; blocks of `on_disk` must be read back.
#[derive(Debug)]
pub struct WholePiece {
    /// One entry a chunk; `None` where all of it was spilled.
    pub chunks: Vec<Option<Buffer>>,
    /// Blocks that were spilled, in order.
    pub on_disk: Vec<u32>,
}

/// A chunk that is to be written ahead of time.
#[derive(Debug)]
pub struct Spill {
    /// Index of the piece.
    pub piece: u32,
    /// The chunk's place in the piece.
    pub chunk: u32,
    /// Its bytes.
    pub buffer: Buffer,
    /// Which blocks of the piece in it are valid.
    pub blocks: Vec<u32>,
}

/// The pieces of one content that are under way.
#[derive(Debug)]
pub struct PieceBuffers {
    pools: Rc<Pools>,
    geometry: Geometry,
    chunk_len: u32,
    pieces: HashMap<u32, Piece>,
    /// Pieces that were taken for verification: what still arrives of them has no place.
    closed: Bitfield,
}

impl PieceBuffers {
    /// Buffers for a content of this geometry, out of the session's pools.
    pub fn new(pools: Rc<Pools>, geometry: Geometry) -> Self {
        let chunk_len = geometry.piece_length().min(CHUNK_LEN);
        let closed = Bitfield::new(geometry.piece_count());
        Self { pools, geometry, chunk_len, pieces: HashMap::new(), closed }
    }

    /// Where the payload of `range` goes: memory of `range.len` bytes, see [pointers](self#pointers). `None` where no memory is
    /// left, where any of it is here already or arriving, over whichever connection, and where its piece is being verified.
    pub fn place(&mut self, range: BlockRange, now: Instant) -> Option<*mut u8> {
        if range.piece >= self.closed.len() || self.closed.get(range.piece) {
            return None;
        }
        let chunk_len = self.chunk_len;
        let index = (range.begin / chunk_len) as usize;
        let pools = Rc::clone(&self.pools);
        let piece = self.piece_mut(range.piece, now);
        // Not even over the same connection: what was given up and asked for anew in other lengths may arrive both ways, and
        // what is laid out for the second would be written over the first if something else came next.
        let free = piece.fillers.iter().all(|(other, _)| !other.overlaps(&range));
        let missing = piece.blocks.get(blocks(range))?.iter().all(|block| *block == Block::Missing);
        if !free || !missing || range.end() > u64::from(chunk_len) * (index as u64 + 1) {
            return None;
        }
        let chunk = piece.chunks.get_mut(index)?;
        if chunk.is_none() {
            *chunk = Some(pools.try_get(chunk_len)?);
        }
        pointer(chunk.as_mut()?, range.begin % chunk_len, range.len)
    }

    /// The header of `range` arrived over `conn`: its payload is received in place. `None` as for [`PieceBuffers::place`].
    pub fn begin(&mut self, range: BlockRange, conn: ConnId, now: Instant) -> Option<*mut u8> {
        // A connection receives one block at a time.
        if let Some(piece) = self.pieces.get_mut(&range.piece) {
            piece.fillers.retain(|(_, by)| *by != conn);
        }
        let place = self.place(range, now)?;
        self.pieces.get_mut(&range.piece)?.fillers.push((range, conn));
        Some(place)
    }

    /// Where byte `at` of a block goes that `conn` is receiving in place; `None` when the block was taken from it.
    /// The rest of the block fits there.
    pub fn resume(&mut self, range: BlockRange, conn: ConnId, at: u32) -> Option<*mut u8> {
        let within = range.begin % self.chunk_len + at;
        let index = (range.begin / self.chunk_len) as usize;
        let piece = self.pieces.get_mut(&range.piece)?;
        piece.fillers.contains(&(range, conn)).then_some(())?;
        let buffer = piece.chunks.get_mut(index)?.as_mut()?;
        pointer(buffer, within, range.len.checked_sub(at)?)
    }

    /// The payload of a block that was received in place is whole. Answers whether it counts.
    pub fn finish(&mut self, range: BlockRange, conn: ConnId, now: Instant) -> bool {
        let Some(piece) = self.pieces.get_mut(&range.piece) else { return false };
        let Some(at) = piece.fillers.iter().position(|filler| *filler == (range, conn)) else { return false };
        piece.fillers.swap_remove(at);
        piece.touched = now;
        piece.blocks[blocks(range)].fill(Block::InMemory);
        true
    }

    /// A block that was received elsewhere is copied to its place, and taken from whoever was still receiving it.
    pub fn insert(&mut self, range: BlockRange, payload: &[u8], now: Instant) -> bool {
        debug_assert_eq!(payload.len(), range.len as usize);
        if let Some(piece) = self.pieces.get_mut(&range.piece) {
            piece.fillers.retain(|(other, _)| !other.overlaps(&range));
        }
        if self.place(range, now).is_none() || !self.copy(range, 0, payload) {
            return false;
        }
        if let Some(piece) = self.pieces.get_mut(&range.piece) {
            piece.touched = now;
            piece.blocks[blocks(range)].fill(Block::InMemory);
        }
        true
    }

    /// Copies the bytes from `at` on of a block that `conn` is receiving in place; answers whether it still is.
    pub fn write(&mut self, range: BlockRange, conn: ConnId, at: u32, bytes: &[u8]) -> bool {
        let receiving = self.pieces.get(&range.piece).is_some_and(|piece| piece.fillers.contains(&(range, conn)));
        receiving && self.copy(range, at, bytes)
    }

    /// What lies where `range` goes, received or not; `None` where no memory was laid out for it.
    pub fn laid_out(&self, range: BlockRange) -> Option<&[u8]> {
        let within = (range.begin % self.chunk_len) as usize;
        let chunk = self.pieces.get(&range.piece)?.chunks.get((range.begin / self.chunk_len) as usize)?.as_ref()?;
        chunk.get(within..within + range.len as usize)
    }

    fn copy(&mut self, range: BlockRange, at: u32, bytes: &[u8]) -> bool {
        let within = (range.begin % self.chunk_len + at) as usize;
        let index = (range.begin / self.chunk_len) as usize;
        let chunk = self.pieces.get_mut(&range.piece).and_then(|piece| piece.chunks.get_mut(index)?.as_mut());
        let place = chunk.and_then(|chunk| chunk.get_mut(within..within + bytes.len()));
        place.map(|place| place.copy_from_slice(bytes)).is_some()
    }

    /// The connection is gone; blocks that it left half-received are missing again.
    pub fn disconnected(&mut self, conn: ConnId) {
        self.pieces.values_mut().for_each(|piece| piece.fillers.retain(|(_, by)| *by != conn));
    }

    /// Takes a complete piece out for verification, and closes it: blocks of it that are still on their way are late.
    /// `None` while parts of it are being spilled: try again when they are.
    pub fn take(&mut self, index: u32) -> Option<WholePiece> {
        let piece = self.pieces.get(&index)?;
        if piece.spilling > 0 || piece.blocks.contains(&Block::Missing) {
            return None;
        }
        let piece = self.pieces.remove(&index)?;
        self.closed.set(index);
        let on_disk = (0u32..).zip(&piece.blocks).filter(|(_, block)| **block == Block::OnDisk).map(|(at, _)| at);
        Some(WholePiece { on_disk: on_disk.collect(), chunks: piece.chunks })
    }

    /// The piece is to be fetched again: it failed its hash, or was lost from disk.
    pub fn reopen(&mut self, index: u32) {
        if index < self.closed.len() {
            self.closed.clear(index);
        }
    }

    /// Chunks to be written ahead of time, of the piece that was left alone longest: full ones where there are any, for a
    /// chunk that is spilled half full takes memory again with its next block. Empty when there is nothing to win.
    pub fn spill(&mut self) -> Vec<Spill> {
        let full = self.spill_chunks(true);
        if full.is_empty() { self.spill_chunks(false) } else { full }
    }

    fn spill_chunks(&mut self, full_only: bool) -> Vec<Spill> {
        let chunk_len = self.chunk_len;
        let candidates =
            self.pieces.iter().filter(|(_, piece)| piece.idle_chunks(chunk_len, full_only).next().is_some());
        let oldest = candidates.min_by_key(|(_, piece)| piece.touched).map(|(index, _)| *index);
        let Some((index, piece)) = oldest.and_then(|index| Some((index, self.pieces.get_mut(&index)?))) else {
            return Vec::new();
        };
        let chunks: Vec<u32> = piece.idle_chunks(chunk_len, full_only).collect();
        let mut spills = Vec::new();
        for chunk in chunks {
            let Some(buffer) = piece.chunks[chunk as usize].take() else { continue };
            let held: Vec<u32> =
                piece.blocks_of(chunk, chunk_len).filter(|at| piece.blocks[*at as usize] == Block::InMemory).collect();
            for at in &held {
                piece.blocks[*at as usize] = Block::OnDisk;
            }
            // A chunk that was laid out but never received into is simply free again.
            if !held.is_empty() {
                piece.spilling += 1;
                spills.push(Spill { piece: index, chunk, buffer, blocks: held });
            }
        }
        spills
    }

    /// A spilled chunk is on disk.
    pub fn spilled(&mut self, index: u32) {
        if let Some(piece) = self.pieces.get_mut(&index) {
            piece.spilling = piece.spilling.saturating_sub(1);
        }
    }

    fn piece_mut(&mut self, index: u32, now: Instant) -> &mut Piece {
        let geometry = &self.geometry;
        let chunk_len = self.chunk_len;
        self.pieces.entry(index).or_insert_with(|| Piece {
            chunks: (0..geometry.data_len(index).div_ceil(chunk_len)).map(|_| None).collect(),
            blocks: vec![Block::Missing; geometry.block_count(index) as usize],
            fillers: Vec::new(),
            spilling: 0,
            touched: now,
        })
    }
}

impl Piece {
    /// The piece's blocks that lie in `chunk`.
    fn blocks_of(&self, chunk: u32, chunk_len: u32) -> std::ops::Range<u32> {
        let per_chunk = chunk_len.div_ceil(BLOCK_LEN);
        chunk * per_chunk..((chunk + 1) * per_chunk).min(self.blocks.len() as u32)
    }

    /// Chunks in memory that nobody is receiving into.
    fn idle_chunks(&self, chunk_len: u32, full_only: bool) -> impl Iterator<Item = u32> + '_ {
        let receiving = move |chunk| self.fillers.iter().any(|(range, _)| range.begin / chunk_len == chunk);
        let full = move |chunk| !self.blocks_of(chunk, chunk_len).any(|at| self.blocks[at as usize] == Block::Missing);
        let held = (0u32..).zip(&self.chunks).filter(|(_, buffer)| buffer.is_some()).map(|(chunk, _)| chunk);
        held.filter(move |chunk| !receiving(*chunk) && (!full_only || full(*chunk)))
    }
}

/// The address of `len` bytes at `within`, where they lie inside the buffer.
fn pointer(buffer: &mut Buffer, within: u32, len: u32) -> Option<*mut u8> {
    let (within, len) = (within as usize, len as usize);
    // SAFETY: within + len is inside the buffer, so the address is in the same mapping.
    (within + len <= buffer.len()).then(|| unsafe { buffer.as_mut_ptr().add(within) })
}

fn blocks(range: BlockRange) -> std::ops::Range<usize> {
    let first = range.begin / BLOCK_LEN;
    let end = (range.begin + range.len).div_ceil(BLOCK_LEN);
    first as usize..end as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ConnId = ConnId(1);
    const TWO: ConnId = ConnId(2);

    /// Pieces of two chunks, and memory for `chunks`.
    fn buffers(chunks: u64) -> (PieceBuffers, Instant) {
        let geometry = Geometry::new(2 * CHUNK_LEN, 10 * u64::from(CHUNK_LEN), Vec::new());
        (PieceBuffers::new(Pools::new(chunks * u64::from(CHUNK_LEN)), geometry), Instant::now())
    }

    fn block(piece: u32, block: u32) -> BlockRange {
        BlockRange { piece, begin: block * BLOCK_LEN, len: BLOCK_LEN }
    }

    fn fill(buffers: &mut PieceBuffers, piece: u32, blocks: std::ops::Range<u32>, now: Instant) {
        for at in blocks {
            assert!(buffers.insert(block(piece, at), &[at as u8; BLOCK_LEN as usize], now));
        }
    }

    #[test]
    fn a_block_has_one_filler_and_whoever_is_first_wins() {
        let (mut buffers, now) = buffers(4);
        let place = buffers.begin(block(0, 3), ONE, now).unwrap();
        assert_eq!(buffers.begin(block(0, 3), TWO, now), None);
        assert_eq!(buffers.place(block(0, 3), now), None);
        assert!(buffers.begin(block(0, 4), TWO, now).is_some(), "its neighbour is free");
        // SAFETY: within the block.
        assert_eq!(buffers.resume(block(0, 3), ONE, 100), Some(unsafe { place.add(100) }));
        assert_eq!(buffers.resume(block(0, 3), ONE, BLOCK_LEN + 1), None);
        // The other one has it whole: it is taken from who was still receiving it.
        assert!(buffers.insert(block(0, 3), &[7; BLOCK_LEN as usize], now));
        assert_eq!(buffers.resume(block(0, 3), ONE, 100), None);
        assert!(!buffers.finish(block(0, 3), ONE, now));
        assert!(!buffers.insert(block(0, 3), &[8; BLOCK_LEN as usize], now), "it is here already");
    }

    #[test]
    fn nothing_is_laid_out_inside_a_block_that_is_arriving() {
        let (mut buffers, now) = buffers(4);
        // Asked for as one, given up when it was late, asked for anew block by block; and then the first answer comes.
        let whole = BlockRange { piece: 0, begin: 0, len: 4 * BLOCK_LEN };
        buffers.begin(whole, ONE, now).unwrap();
        for at in 0..4 {
            assert_eq!(buffers.place(block(0, at), now), None);
        }
        assert!(buffers.place(block(0, 4), now).is_some());
        assert!(buffers.finish(whole, ONE, now));
        // One that the connection never received to its end does not stand in its own way.
        buffers.begin(block(0, 5), ONE, now).unwrap();
        assert!(buffers.begin(block(0, 5), ONE, now).is_some());
    }

    #[test]
    fn what_a_lost_connection_left_is_free_again() {
        let (mut buffers, now) = buffers(4);
        buffers.begin(block(0, 0), ONE, now).unwrap();
        buffers.disconnected(ONE);
        assert!(buffers.begin(block(0, 0), TWO, now).is_some());
        assert!(buffers.finish(block(0, 0), TWO, now));
    }

    #[test]
    fn nothing_outside_of_pieces_and_chunks_has_a_place() {
        let (mut buffers, now) = buffers(4);
        assert_eq!(buffers.place(block(5, 0), now), None, "five pieces");
        assert_eq!(buffers.place(block(0, 32), now), None, "32 blocks a piece");
        let across = BlockRange { piece: 0, begin: CHUNK_LEN - BLOCK_LEN, len: 2 * BLOCK_LEN };
        assert_eq!(buffers.place(across, now), None);
    }

    #[test]
    fn memory_ends_at_its_limit() {
        let (mut buffers, now) = buffers(2);
        assert!(buffers.place(block(0, 0), now).is_some());
        assert!(buffers.place(block(1, 0), now).is_some());
        assert_eq!(buffers.pools.free_bytes(), 0);
        assert_eq!(buffers.place(block(2, 0), now), None);
        assert!(buffers.place(block(1, 1), now).is_some(), "its chunk is there");
        // Laid out, never received into: given back without a write.
        assert!(buffers.spill().is_empty());
        assert_eq!(buffers.pools.free_bytes(), u64::from(CHUNK_LEN));
    }

    #[test]
    fn a_whole_piece_leaves_once_and_late_blocks_find_it_closed() {
        let (mut buffers, now) = buffers(4);
        fill(&mut buffers, 0, 0..31, now);
        assert!(buffers.take(0).is_none(), "a block is missing");
        fill(&mut buffers, 0, 31..32, now);
        let whole = buffers.take(0).unwrap();
        assert!(whole.on_disk.is_empty() && whole.chunks.iter().all(Option::is_some));
        assert_eq!(whole.chunks[1].as_ref().unwrap()[0], 16);
        assert!(buffers.take(0).is_none());
        assert_eq!(buffers.place(block(0, 0), now), None);
        drop(whole);
        assert_eq!(buffers.pools.used_bytes(), 0);
        buffers.reopen(0);
        assert!(buffers.place(block(0, 0), now).is_some());
    }

    #[test]
    fn full_chunks_are_spilled_first_and_none_that_somebody_receives_into() {
        let (mut buffers, now) = buffers(4);
        fill(&mut buffers, 0, 0..20, now);
        fill(&mut buffers, 1, 0..1, now);
        let spills = buffers.spill();
        assert_eq!(spills.len(), 1);
        assert_eq!((spills[0].piece, spills[0].chunk, spills[0].blocks.len()), (0, 0, 16));
        assert_eq!(buffers.place(block(0, 0), now), None, "it is on disk");
        assert!(buffers.take(0).is_none());
        buffers.begin(block(0, 20), ONE, now).unwrap();
        buffers.begin(block(1, 1), TWO, now).unwrap();
        assert!(buffers.spill().is_empty());
        assert!(buffers.finish(block(0, 20), ONE, now));
        let half = buffers.spill();
        assert_eq!((half[0].piece, half[0].chunk, &half[0].blocks[..]), (0, 1, &[16, 17, 18, 19, 20][..]));
        drop(half);
        fill(&mut buffers, 0, 21..32, now);
        buffers.spilled(0);
        assert!(buffers.take(0).is_none(), "the second chunk is not on disk yet");
        buffers.spilled(0);
        let whole = buffers.take(0).unwrap();
        assert_eq!(whole.on_disk, (0..21).collect::<Vec<_>>());
        assert!(whole.chunks[0].is_none() && whole.chunks[1].is_some());
    }

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
