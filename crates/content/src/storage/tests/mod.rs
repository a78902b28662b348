//! Storage and resume as the driver uses them, on real folders.

mod direct;
mod files;
mod kills;
mod mounts;
mod resume;

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use super::testing::info;
use super::*;

const PIECE: u32 = 1024;

fn storage_of(root: &Path, entries: &[(u64, u8)]) -> Storage {
    Storage::open(Arc::new(info(PIECE, entries)), root, StorageOptions::default()).unwrap()
}

/// Bytes of piece space with zeros where pads are.
fn content_of(entries: &[(u64, u8)]) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut bytes = Vec::new();
    for entry in &info(PIECE, entries).files {
        let pad = entry.kind == FileKind::Pad;
        bytes.extend((0..entry.length).map(|_| if pad { 0 } else { random.u8(1..) }));
    }
    bytes
}

fn piece_of(content: &[u8], piece: u32) -> (u64, &[u8]) {
    let start = piece as usize * PIECE as usize;
    (start as u64, &content[start..content.len().min(start + PIECE as usize)])
}

fn write_all(storage: &Storage, content: &[u8]) {
    for piece in 0..storage.info().geometry.piece_count() {
        let (offset, bytes) = piece_of(content, piece);
        storage.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
    }
}

fn read_all(storage: &Storage) -> Result<Vec<u8>, StorageError> {
    let mut back = vec![0xee; storage.layout().total() as usize];
    storage.read_at(0, &mut back).map(|()| back)
}
