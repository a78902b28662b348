//! Where blocks gather until their piece is whole.
//!
//! A piece under way owns chunks of [`CHUNK_LEN`] bytes out of a bounded pool, taken when the first block of a chunk
//! arrives. Blocks are received straight into them; the whole piece then goes to a disk thread, which hashes and writes
//! it from there. When memory runs short, blocks that wait for the rest of their piece are spilled to their place on disk
//! and read back when the piece is verified.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use anabranch_bittorrent::ConnId;
use anabranch_bittorrent::torrent::REQUEST_BOUNDARY;
use anabranch_bittorrent::wire::BlockRange;
use anabranch_content::geometry::{BLOCK_LEN, Geometry};
use anabranch_content::storage::{Buffer, BufferPool};

/// Bytes in a chunk: no request crosses one, so every block is contiguous in memory.
pub const CHUNK_LEN: u32 = REQUEST_BOUNDARY;
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
        if self.free_bytes() < class.buffer_len() as u64 {
            return None;
        }
        class.try_get()
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

/// Part of a piece that is to be written ahead of time.
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
}

impl PieceBuffers {
    /// Buffers for a content of this geometry, out of the session's pools.
    pub fn new(pools: Rc<Pools>, geometry: Geometry) -> Self {
        let chunk_len = geometry.piece_length().min(CHUNK_LEN);
        Self { pools, geometry, chunk_len, pieces: HashMap::new() }
    }

    /// Where the payload of `range` goes, for writing by the caller before it calls anything else here. `None` where no
    /// memory is left, or where the block is here already or arriving over another connection.
    pub fn place(&mut self, range: BlockRange, conn: ConnId, now: Instant) -> Option<*mut u8> {
        let chunk_len = self.chunk_len;
        let index = (range.begin / chunk_len) as usize;
        let piece = self.piece_mut(range.piece, now);
        let free = piece.fillers.iter().all(|(other, by)| *by == conn || !overlap(*other, range));
        let blocks = blocks(range);
        if !free || !piece.blocks.get(blocks)?.iter().all(|block| *block == Block::Missing) {
            return None;
        }
        if piece.chunks[index].is_none() {
            let buffer = self.pools.try_get(chunk_len)?;
            self.pieces.get_mut(&range.piece)?.chunks[index] = Some(buffer);
        }
        let buffer = self.pieces.get_mut(&range.piece)?.chunks[index].as_mut()?;
        let within = (range.begin % chunk_len) as usize;
        buffer.get_mut(within..within + range.len as usize).map(<[u8]>::as_mut_ptr)
    }

    /// The header of `range` arrived over `conn`: its payload is received in place. `None` as for [`PieceBuffers::place`].
    pub fn begin(&mut self, range: BlockRange, conn: ConnId, now: Instant) -> Option<*mut u8> {
        let place = self.place(range, conn, now)?;
        let piece = self.pieces.get_mut(&range.piece)?;
        piece.fillers.retain(|(_, by)| *by != conn);
        piece.fillers.push((range, conn));
        Some(place)
    }

    /// Where byte `at` of a block goes that `conn` is receiving in place; `None` when the block was taken from it.
    pub fn resume(&mut self, range: BlockRange, conn: ConnId, at: u32) -> Option<*mut u8> {
        let within = (range.begin % self.chunk_len + at) as usize;
        let index = (range.begin / self.chunk_len) as usize;
        let piece = self.pieces.get_mut(&range.piece)?;
        piece.fillers.contains(&(range, conn)).then_some(())?;
        let buffer = piece.chunks.get_mut(index)?.as_mut()?;
        buffer.get_mut(within..).map(<[u8]>::as_mut_ptr)
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
    pub fn insert(&mut self, range: BlockRange, payload: &[u8], conn: ConnId, now: Instant) -> bool {
        debug_assert_eq!(payload.len(), range.len as usize);
        if let Some(piece) = self.pieces.get_mut(&range.piece) {
            piece.fillers.retain(|(other, _)| !overlap(*other, range));
        }
        let Some(place) = self.place(range, conn, now) else { return false };
        // SAFETY: `place` answers memory of `range.len` bytes that belongs to this piece's chunk, which `payload` is no part of.
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), place, payload.len()) };
        if let Some(piece) = self.pieces.get_mut(&range.piece) {
            piece.blocks[blocks(range)].fill(Block::InMemory);
        }
        true
    }

    /// The connection is gone; blocks that it left half-received are missing again.
    pub fn disconnected(&mut self, conn: ConnId) {
        self.pieces.values_mut().for_each(|piece| piece.fillers.retain(|(_, by)| *by != conn));
    }

    /// Takes a complete piece out for verification. `None` while parts of it are being spilled: try again when they are.
    pub fn take(&mut self, index: u32) -> Option<WholePiece> {
        if self.pieces.get(&index)?.spilling > 0 {
            return None;
        }
        let piece = self.pieces.remove(&index)?;
        let on_disk = (0u32..).zip(&piece.blocks).filter(|(_, block)| **block == Block::OnDisk).map(|(at, _)| at);
        Some(WholePiece { on_disk: on_disk.collect(), chunks: piece.chunks })
    }

    /// The chunks of the piece that was left alone longest, to be written ahead of time. Empty when there is nothing to win.
    pub fn spill_oldest(&mut self) -> Vec<Spill> {
        let spillable = |piece: &Piece| piece.fillers.is_empty() && piece.chunks.iter().any(Option::is_some);
        let oldest = self.pieces.iter().filter(|(_, piece)| spillable(piece)).min_by_key(|(_, piece)| piece.touched);
        let Some(index) = oldest.map(|(index, _)| *index) else { return Vec::new() };
        let Some(piece) = self.pieces.get_mut(&index) else { return Vec::new() };
        let per_chunk = self.chunk_len.div_ceil(BLOCK_LEN);
        let mut spills = Vec::new();
        for chunk in 0..piece.chunks.len() as u32 {
            let Some(buffer) = piece.chunks[chunk as usize].take() else { continue };
            let end = ((chunk + 1) * per_chunk).min(piece.blocks.len() as u32);
            let held: Vec<u32> =
                (chunk * per_chunk..end).filter(|at| piece.blocks[*at as usize] == Block::InMemory).collect();
            for at in &held {
                piece.blocks[*at as usize] = Block::OnDisk;
            }
            if !held.is_empty() {
                piece.spilling += 1;
                spills.push(Spill { piece: index, chunk, buffer, blocks: held });
            }
        }
        spills
    }

    /// A spilled chunk is on disk, or could not be written: then its blocks are lost, and answered for another try.
    pub fn spilled(&mut self, index: u32, blocks: &[u32], written: bool) -> Vec<u32> {
        let Some(piece) = self.pieces.get_mut(&index) else { return Vec::new() };
        piece.spilling = piece.spilling.saturating_sub(1);
        if written {
            return Vec::new();
        }
        for at in blocks {
            piece.blocks[*at as usize] = Block::Missing;
        }
        blocks.to_vec()
    }

    /// Gives up everything that is under way.
    pub fn clear(&mut self) {
        self.pieces.clear();
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

fn blocks(range: BlockRange) -> std::ops::Range<usize> {
    let first = range.begin / BLOCK_LEN;
    let end = (range.begin + range.len).div_ceil(BLOCK_LEN);
    first as usize..end as usize
}

fn overlap(one: BlockRange, other: BlockRange) -> bool {
    one.piece == other.piece && u64::from(one.begin) < other.end() && u64::from(other.begin) < one.end()
}
