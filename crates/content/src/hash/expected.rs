//! What the bytes of a piece have to hash to, in whichever way their content is verified.

use crate::info::{Sha1Digest, Sha256Digest};

/// What a piece has to hash to: everything that is there has to agree. Nothing there: whoever received the piece verified its
/// blocks where they lie, and vouches for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedHash {
    /// SHA-1 over the whole piece, its padding included (BEP 3).
    pub sha1: Option<Sha1Digest>,
    /// Root of the tree over the piece's blocks, and its height, leaves being 0 (BEP 52; RFC 7574, section 5).
    pub merkle: Option<(Sha256Digest, u32)>,
}
