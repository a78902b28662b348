//! What lies on the disk is hashed, and held against the tree.

use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_content::bitfield::Bitfield;
use anabranch_content::storage::Storage;
use anabranch_ppspp::bin::Bin;
use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::merkle::{MemoryNodes, NodeStore, Tree};

use super::Handle;
use crate::events::EventKind;
use crate::ppspp::describe::chunks_of;
use crate::ppspp::nodes::Nodes;
use crate::store;

/// Runs `work`, which hashes where that may block, and tells how it gets on.
pub(super) async fn checking<T: Send + 'static>(
    content: &Handle,
    work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T + Send + 'static,
) -> T {
    let tell = |bytes_done, bytes_total| content.borrow().tell(EventKind::Checking { bytes_done, bytes_total });
    store::open::checking(work, tell).await
}

/// Those of `pieces` whose chunks on disk are the tree's; the files begin `front` chunks behind the content's beginning.
pub(crate) fn good_pieces(
    (storage, front): (&Storage, u64),
    tree: &Tree<Nodes>,
    pieces: &[u32],
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Bitfield {
    let (info, hash) = (storage.info(), tree.hash());
    let mut good = Bitfield::new(info.geometry.piece_count());
    let (mut bytes, mut done) = (Vec::new(), 0);
    let total = pieces.iter().map(|piece| u64::from(info.geometry.data_len(*piece))).sum();
    for &piece in pieces {
        if cancel.load(Ordering::Relaxed) {
            return good;
        }
        let is_good = leaves(storage, hash, piece, &mut bytes).is_some_and(|leaves| {
            chunks_of(info, front, piece).zip(leaves.chunks_exact(hash.len())).all(|(chunk, leaf)| {
                let known = Bin::chunk(chunk).and_then(|bin| tree.node(bin));
                known.is_some_and(|known| known.as_bytes() == leaf)
            })
        });
        if is_good {
            good.set(piece);
        }
        done += u64::from(info.geometry.data_len(piece));
        progress(done, total);
    }
    good
}

/// Makes the tree of all that lies there, behind the `head` of a folder: kept where it leads to the root.
pub(super) fn grow(
    head: &[u8],
    storage: &Storage,
    tree: &mut Tree<Nodes>,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) {
    let (info, hash) = (storage.info(), tree.hash());
    let mut grown = Tree::growing(hash, MemoryNodes::new(hash));
    let chunks: Vec<&[u8]> = head.chunks(info.geometry.block_length() as usize).collect();
    let mut leaves_of_head = Vec::new();
    hash.hash_many(&chunks, &mut leaves_of_head);
    grown.extend(&leaves_of_head);
    let mut bytes = Vec::new();
    for piece in 0..info.geometry.piece_count() {
        let Some(leaves) = leaves(storage, hash, piece, &mut bytes) else { return };
        if cancel.load(Ordering::Relaxed) {
            return;
        }
        grown.extend(&leaves);
        progress(info.geometry.piece_offset(piece), info.geometry.total());
    }
    if grown.root() != tree.root() {
        return;
    }
    let nodes = (grown.chunk_count().unwrap_or(0) * 2).saturating_sub(1);
    for bin in (0..nodes).filter_map(Bin::from_u64) {
        if let Some(digest) = grown.node(bin) {
            tree.nodes_mut().put(bin, &digest);
        }
    }
}

/// The digests of a piece's chunks, as they lie on the disk.
fn leaves(storage: &Storage, hash: HashFunction, piece: u32, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let geometry = &storage.info().geometry;
    bytes.resize(geometry.data_len(piece) as usize, 0);
    storage.read_at(geometry.piece_offset(piece), bytes).ok()?;
    let chunks: Vec<&[u8]> = bytes.chunks(geometry.block_length() as usize).collect();
    let mut leaves = Vec::with_capacity(chunks.len() * hash.len());
    hash.hash_many(&chunks, &mut leaves);
    Some(leaves)
}
