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
use anabranch_content::geometry::{BlockRange, Geometry};
use anabranch_content::storage::Buffer;
use anabranch_paths::ConnId;

pub(crate) use crate::store::pools::CHUNK_LEN;
use crate::store::pools::Pools;

/// Bytes in every chunk of a piece but the last: the piece's, or as many whole blocks as [`CHUNK_LEN`] holds.
pub(crate) fn chunk_length(geometry: &Geometry) -> u32 {
    let (piece, block) = (geometry.piece_length(), geometry.block_length());
    if piece <= CHUNK_LEN { piece } else { CHUNK_LEN - CHUNK_LEN % block }
}

/// Why a range has no place now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// It does not consist of whole blocks of one chunk of the content: nobody can have been asked for it.
    Outside,
    /// Some of it is here already: it is a duplicate.
    Here,
    /// Some of it is arriving otherwise: it overlaps that.
    Arriving,
    /// Memory is short, until something is spilled or verified.
    NoMemory,
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
    /// Bytes of it that are fetched.
    data_len: u32,
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
pub(crate) struct WholePiece {
    /// One entry a chunk; `None` where all of it was spilled.
    pub chunks: Vec<Option<Buffer>>,
    /// Blocks that were spilled, in order.
    pub on_disk: Vec<u32>,
}

/// A chunk that is to be written ahead of time.
#[derive(Debug)]
pub(crate) struct Spill {
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
pub(crate) struct PieceBuffers {
    pools: Rc<Pools>,
    geometry: Geometry,
    chunk_len: u32,
    pieces: HashMap<u32, Piece>,
    /// Pieces that were taken for verification: what still arrives of them has no place.
    closed: Bitfield,
}

impl PieceBuffers {
    /// Buffers for a content of this geometry, out of the session's pools.
    ///
    /// # Panics
    /// Where blocks are longer than [`CHUNK_LEN`]: protocols know how long theirs are.
    pub(crate) fn new(pools: Rc<Pools>, geometry: Geometry) -> Self {
        assert!(geometry.block_length() <= CHUNK_LEN, "a block fits into a chunk");
        let chunk_len = chunk_length(&geometry);
        let closed = Bitfield::new(geometry.piece_count());
        Self { pools, geometry, chunk_len, pieces: HashMap::new(), closed }
    }

    /// Where the payload of `range` goes: memory of `range.len` bytes, see [pointers](self#pointers).
    pub(crate) fn place(&mut self, range: BlockRange, now: Instant) -> Result<*mut u8, NoPlace> {
        if range.piece >= self.closed.len() {
            return Err(NoPlace::Outside);
        }
        if self.closed.get(range.piece) {
            return Err(NoPlace::Here);
        }
        let (chunk_len, block_len) = (self.chunk_len, self.geometry.block_length());
        let pools = Rc::clone(&self.pools);
        let piece = self.piece_mut(range.piece, now);
        let (index, within) = (range.begin / chunk_len, range.begin % chunk_len);
        if !piece.has_whole(range, block_len) || u64::from(within) + u64::from(range.len) > u64::from(chunk_len) {
            return Err(NoPlace::Outside);
        }
        // Not even over the same connection: what was given up and asked for anew in other lengths may arrive both ways, and
        // what is laid out for the second would be written over the first if something else came next.
        if piece.fillers.iter().any(|(other, _)| other.overlaps(&range)) {
            return Err(NoPlace::Arriving);
        }
        if piece.blocks[blocks(range, block_len)].iter().any(|block| *block != Block::Missing) {
            return Err(NoPlace::Here);
        }
        let chunk = piece.chunks.get_mut(index as usize).ok_or(NoPlace::Outside)?;
        if chunk.is_none() {
            *chunk = Some(pools.try_get(chunk_len).ok_or(NoPlace::NoMemory)?);
        }
        chunk.as_mut().and_then(|chunk| pointer(chunk, within, range.len)).ok_or(NoPlace::Outside)
    }

    /// The header of `range` arrived over `conn`: its payload is received in place, by nobody else until it is
    /// finished or the connection goes on to another block or is gone.
    pub(crate) fn begin(&mut self, range: BlockRange, conn: ConnId, now: Instant) -> Result<*mut u8, NoPlace> {
        // A connection receives one block at a time.
        if let Some(piece) = self.pieces.get_mut(&range.piece) {
            piece.fillers.retain(|(_, by)| *by != conn);
        }
        let place = self.place(range, now)?;
        self.pieces.get_mut(&range.piece).ok_or(NoPlace::Outside)?.fillers.push((range, conn));
        Ok(place)
    }

    /// Where byte `at` of a block goes that `conn` is receiving in place; `None` when the block was taken from it.
    /// The rest of the block fits there.
    pub(crate) fn resume(&mut self, range: BlockRange, conn: ConnId, at: u32) -> Option<*mut u8> {
        let within = range.begin % self.chunk_len + at;
        let index = (range.begin / self.chunk_len) as usize;
        let piece = self.pieces.get_mut(&range.piece)?;
        piece.fillers.contains(&(range, conn)).then_some(())?;
        let buffer = piece.chunks.get_mut(index)?.as_mut()?;
        pointer(buffer, within, range.len.checked_sub(at)?)
    }

    /// The payload of a block that was received in place is whole. Answers whether it counts.
    pub(crate) fn finish(&mut self, range: BlockRange, conn: ConnId, now: Instant) -> bool {
        let block_len = self.geometry.block_length();
        let Some(piece) = self.pieces.get_mut(&range.piece) else { return false };
        let Some(at) = piece.fillers.iter().position(|filler| *filler == (range, conn)) else { return false };
        piece.fillers.swap_remove(at);
        piece.touched = now;
        piece.blocks[blocks(range, block_len)].fill(Block::InMemory);
        true
    }

    /// A block that was received elsewhere is copied to its place, and taken from whoever was still receiving it.
    pub(crate) fn insert(&mut self, range: BlockRange, payload: &[u8], now: Instant) -> Result<(), NoPlace> {
        self.insert_parts(range, std::iter::once(payload), now)
    }

    /// The same for blocks that follow each other and were received apart: all of them, or none.
    pub(crate) fn insert_parts<'a>(
        &mut self,
        range: BlockRange,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
        now: Instant,
    ) -> Result<(), NoPlace> {
        debug_assert_eq!(parts.clone().map(<[u8]>::len).sum::<usize>(), range.len as usize);
        if let Some(piece) = self.pieces.get_mut(&range.piece) {
            piece.fillers.retain(|(other, _)| !other.overlaps(&range));
        }
        self.place(range, now)?;
        if !self.copy(range, 0, parts) {
            return Err(NoPlace::Outside);
        }
        let block_len = self.geometry.block_length();
        if let Some(piece) = self.pieces.get_mut(&range.piece) {
            piece.touched = now;
            piece.blocks[blocks(range, block_len)].fill(Block::InMemory);
        }
        Ok(())
    }

    /// Bytes from `begin` of a piece on that lie in one stretch of memory, where the piece has as many.
    pub(crate) fn room_from(&self, begin: u32) -> u32 {
        self.chunk_len - begin % self.chunk_len
    }

    /// Copies the bytes from `at` on of a block that `conn` is receiving in place; answers whether it still is.
    pub(crate) fn write(&mut self, range: BlockRange, conn: ConnId, at: u32, bytes: &[u8]) -> bool {
        let receiving = self.pieces.get(&range.piece).is_some_and(|piece| piece.fillers.contains(&(range, conn)));
        receiving && self.copy(range, at, std::iter::once(bytes))
    }

    /// What lies where `range` goes, received or not; `None` where no memory was laid out for it.
    pub(crate) fn laid_out(&self, range: BlockRange) -> Option<&[u8]> {
        let within = (range.begin % self.chunk_len) as usize;
        let chunk = self.pieces.get(&range.piece)?.chunks.get((range.begin / self.chunk_len) as usize)?.as_ref()?;
        chunk.get(within..within + range.len as usize)
    }

    fn copy<'a>(&mut self, range: BlockRange, at: u32, mut parts: impl Iterator<Item = &'a [u8]>) -> bool {
        let mut within = (range.begin % self.chunk_len + at) as usize;
        let index = (range.begin / self.chunk_len) as usize;
        let chunk = self.pieces.get_mut(&range.piece).and_then(|piece| piece.chunks.get_mut(index)?.as_mut());
        chunk.is_some_and(|chunk| {
            parts.all(|part| {
                let place = chunk.get_mut(within..within + part.len());
                within += part.len();
                place.map(|place| place.copy_from_slice(part)).is_some()
            })
        })
    }

    /// The connection is gone; blocks that it left half-received are missing again.
    pub(crate) fn disconnected(&mut self, conn: ConnId) {
        self.pieces.values_mut().for_each(|piece| piece.fillers.retain(|(_, by)| *by != conn));
    }

    /// Takes a complete piece out for verification, and closes it: blocks of it that are still on their way are late.
    /// `None` while parts of it are being spilled: try again when they are.
    pub(crate) fn take(&mut self, index: u32) -> Option<WholePiece> {
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
    pub(crate) fn reopen(&mut self, index: u32) {
        if index < self.closed.len() {
            self.closed.clear(index);
        }
    }

    /// Chunks to be written ahead of time, of the piece that was left alone longest: full ones where there are any, for a
    /// chunk that is spilled half full takes memory again with its next block. Empty when there is nothing to win.
    pub(crate) fn spill(&mut self) -> Vec<Spill> {
        let full = self.spill_chunks(true);
        if full.is_empty() { self.spill_chunks(false) } else { full }
    }

    fn spill_chunks(&mut self, full_only: bool) -> Vec<Spill> {
        let (chunk_len, block_len) = (self.chunk_len, self.geometry.block_length());
        let candidates =
            self.pieces.iter().filter(|(_, piece)| piece.idle_chunks(chunk_len, block_len, full_only).next().is_some());
        let oldest = candidates.min_by_key(|(_, piece)| piece.touched).map(|(index, _)| *index);
        let Some((index, piece)) = oldest.and_then(|index| Some((index, self.pieces.get_mut(&index)?))) else {
            return Vec::new();
        };
        let chunks: Vec<u32> = piece.idle_chunks(chunk_len, block_len, full_only).collect();
        let mut spills = Vec::new();
        for chunk in chunks {
            let Some(buffer) = piece.chunks[chunk as usize].take() else { continue };
            let held: Vec<u32> = piece
                .blocks_of(chunk, chunk_len, block_len)
                .filter(|at| piece.blocks[*at as usize] == Block::InMemory)
                .collect();
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
    pub(crate) fn spilled(&mut self, index: u32) {
        if let Some(piece) = self.pieces.get_mut(&index) {
            piece.spilling = piece.spilling.saturating_sub(1);
        }
    }

    fn piece_mut(&mut self, index: u32, now: Instant) -> &mut Piece {
        let geometry = &self.geometry;
        let chunk_len = self.chunk_len;
        self.pieces.entry(index).or_insert_with(|| Piece {
            data_len: geometry.data_len(index),
            chunks: (0..geometry.data_len(index).div_ceil(chunk_len)).map(|_| None).collect(),
            blocks: vec![Block::Missing; geometry.block_count(index) as usize],
            fillers: Vec::new(),
            spilling: 0,
            touched: now,
        })
    }
}

impl Piece {
    /// Whether `range` consists of whole blocks of the piece.
    fn has_whole(&self, range: BlockRange, block_len: u32) -> bool {
        let ends_whole = range.end() == u64::from(self.data_len) || range.len.is_multiple_of(block_len);
        range.len > 0 && range.end() <= u64::from(self.data_len) && range.begin.is_multiple_of(block_len) && ends_whole
    }

    /// The piece's blocks that lie in `chunk`.
    fn blocks_of(&self, chunk: u32, chunk_len: u32, block_len: u32) -> std::ops::Range<u32> {
        let per_chunk = chunk_len.div_ceil(block_len);
        chunk * per_chunk..((chunk + 1) * per_chunk).min(self.blocks.len() as u32)
    }

    /// Chunks in memory that nobody is receiving into.
    fn idle_chunks(&self, chunk_len: u32, block_len: u32, full_only: bool) -> impl Iterator<Item = u32> + '_ {
        let receiving = move |chunk| self.fillers.iter().any(|(range, _)| range.begin / chunk_len == chunk);
        let full = move |chunk| {
            !self.blocks_of(chunk, chunk_len, block_len).any(|at| self.blocks[at as usize] == Block::Missing)
        };
        let held = (0u32..).zip(&self.chunks).filter(|(_, buffer)| buffer.is_some()).map(|(chunk, _)| chunk);
        held.filter(move |chunk| !receiving(*chunk) && (!full_only || full(*chunk)))
    }
}

/// The address of `len` bytes at `within`, where they lie inside the buffer.
#[allow(unsafe_code)]
fn pointer(buffer: &mut Buffer, within: u32, len: u32) -> Option<*mut u8> {
    let (within, len) = (within as usize, len as usize);
    // SAFETY: within + len is inside the buffer, so the address is in the same mapping.
    (within + len <= buffer.len()).then(|| unsafe { buffer.as_mut_ptr().add(within) })
}

/// The blocks of a range that consists of whole ones.
fn blocks(range: BlockRange, block_len: u32) -> std::ops::Range<usize> {
    let first = range.begin / block_len;
    first as usize..(first + range.len.div_ceil(block_len)) as usize
}

#[cfg(test)]
mod tests;
