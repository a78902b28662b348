//! Stand-ins for `crate::hash` and `crate::merkle`: to switch, delete this file and import those names instead.

use sha1::Digest;

pub fn sha1(bytes: &[u8]) -> [u8; 20] {
    sha1::Sha1::digest(bytes).into()
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    sha2::Sha256::digest(bytes).into()
}

/// Root over `layer`, whose hashes cover `blocks_per_node` blocks each, padded to a power of two with the root of
/// `blocks_per_node` zero leaves (BEP 52, "pieces root").
pub fn root_from_layer(layer: &[[u8; 32]], blocks_per_node: u32) -> [u8; 32] {
    let pair = |left: &[u8; 32], right: &[u8; 32]| sha256(&[*left, *right].concat());
    let mut pad = [0; 32];
    for _ in 0..blocks_per_node.max(1).ilog2() {
        pad = pair(&pad, &pad);
    }
    let mut layer = layer.to_vec();
    while layer.len() > 1 {
        layer = layer.chunks(2).map(|nodes| pair(&nodes[0], nodes.get(1).unwrap_or(&pad))).collect();
        pad = pair(&pad, &pad);
    }
    layer.first().copied().unwrap_or(pad)
}
