//! Piece layers: the hashes that verify v2 pieces (BEP 52, "piece layers").

use std::collections::HashMap;

use super::error::MetainfoError;
use crate::bencode::Value;
use crate::geometry::BLOCK_LEN;
use crate::hex;
use crate::info::{Info, Sha256Digest};
use crate::merkle::root_from_layer;

/// A file's hashes, one a piece, by its pieces root; only files longer than a piece have any.
pub type PieceLayers = HashMap<Sha256Digest, Box<[Sha256Digest]>>;

/// Reads and proves the layers of a torrent. Missing layers are no error: peers can send them.
pub(super) fn parse(layers: Value<'_>, info: &Info) -> Result<PieceLayers, MetainfoError> {
    let piece_length = u64::from(info.geometry.piece_length());
    let mut lengths: HashMap<&[u8], u64> = HashMap::new();
    for file in info.files.iter().filter(|file| file.length > piece_length) {
        if let Some(root) = &file.root {
            lengths.insert(root, file.length);
        }
    }
    let mut found = PieceLayers::new();
    let entries = layers.as_dict().ok_or(MetainfoError::Invalid("piece layers", "a dictionary"))?;
    for (root, layer) in entries {
        let bad = |problem| MetainfoError::PieceLayer { root: hex::encode(&root[..root.len().min(32)]), problem };
        let (Ok(key), Some(length)) = (Sha256Digest::try_from(root), lengths.get(root)) else {
            return Err(bad("belongs to no file"));
        };
        let layer = layer.as_bytes().ok_or_else(|| bad("is not a string"))?;
        let (hashes, rest) = layer.as_chunks::<32>();
        if !rest.is_empty() || hashes.len() as u64 != length.div_ceil(piece_length) {
            return Err(bad("has not one hash a piece"));
        }
        if root_from_layer(hashes, info.geometry.piece_length() / BLOCK_LEN) != key {
            return Err(bad("does not hash to its root"));
        }
        found.insert(key, hashes.into());
    }
    Ok(found)
}
