//! Blocks on disk ahead of their piece, and leaves read back from it: small jobs of the disk threads.

use std::io::IoSlice;

use anabranch_content::hash;
use anabranch_content::info::Sha256Digest;
use anabranch_content::storage::{ResumeStore, Storage, StorageError};

use crate::store::buffers::{Spill, chunk_length};

/// Writes the valid blocks of a chunk to their place, run by run.
pub(crate) fn write(resume: &ResumeStore, spill: &Spill) -> Result<(), StorageError> {
    let geometry = &resume.storage().info().geometry;
    let chunk_begin = spill.chunk * chunk_length(geometry);
    let block_len = geometry.block_length();
    for run in spill.blocks.chunk_by(|one, next| one + 1 == *next) {
        let begin = run[0] * block_len;
        let last = run[run.len() - 1];
        let end = last * block_len + geometry.block_len(spill.piece, last);
        let bytes = &spill.buffer[(begin - chunk_begin) as usize..(end - chunk_begin) as usize];
        resume.write_at(geometry.piece_offset(spill.piece) + u64::from(begin), &[IoSlice::new(bytes)])?;
    }
    Ok(())
}

/// Hashes the blocks of a piece on disk (BEP 52).
pub(crate) fn leaves(storage: &Storage, piece: u32) -> Result<Vec<Sha256Digest>, StorageError> {
    let (mut leaves, block_len) = (Vec::new(), storage.info().geometry.block_length() as usize);
    read(storage, piece, |chunk| {
        leaves.extend(hash::sha256_many(&chunk.chunks(block_len).collect::<Vec<_>>()));
    })?;
    Ok(leaves)
}

/// Reads a piece, a chunk at a time.
pub(crate) fn read(storage: &Storage, piece: u32, mut take: impl FnMut(&[u8])) -> Result<(), StorageError> {
    let geometry = &storage.info().geometry;
    let mut chunk = vec![0; geometry.data_len(piece).min(chunk_length(geometry)) as usize];
    let mut begin = 0;
    while begin < geometry.data_len(piece) {
        let len = (geometry.data_len(piece) - begin).min(chunk_length(geometry)) as usize;
        storage.read_at(geometry.piece_offset(piece) + u64::from(begin), &mut chunk[..len])?;
        take(&chunk[..len]);
        begin += len as u32;
    }
    Ok(())
}
