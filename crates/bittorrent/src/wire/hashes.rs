//! The messages that carry parts of a file's Merkle tree (BEP 52, "hash request", "hashes", "hash reject").

use anabranch_content::info::Sha256Digest;
use anabranch_content::merkle::{ANSWER_LENGTH_MAX, HashRequest};
use thiserror::Error;

use super::WireError;

/// Base hashes in one request: as many as libtorrent answers; the leaves of a 128 MiB piece.
pub const HASH_COUNT_MAX: u32 = ANSWER_LENGTH_MAX;

/// Layers in the tallest tree: 2^64 bytes in blocks of 16 KiB have 50 above the leaves.
const LAYERS_MAX: u32 = 50;

/// Asks for a run of hashes of one layer of a file's tree, with the uncles that prove them (BEP 52, "hash request").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeRequest {
    /// Which file: its "pieces root".
    pub root: Sha256Digest,
    /// Which part of its tree.
    pub part: HashRequest,
}

/// Why a hash request cannot be answered, whatever the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HashRequestError {
    /// Not a power of two, or above [`HASH_COUNT_MAX`].
    #[error("{0} hashes are no power of two of at most {HASH_COUNT_MAX}")]
    Length(u32),
    /// The run is no subtree.
    #[error("index {index} is no multiple of the {length} hashes asked for")]
    Index {
        /// First hash.
        index: u32,
        /// Hashes.
        length: u32,
    },
    /// Layers that no tree has.
    #[error("{proof_layers} layers above layer {base_layer} are more than any tree has")]
    Layers {
        /// Layer of the hashes.
        base_layer: u32,
        /// Layers above it.
        proof_layers: u32,
    },
}

impl TreeRequest {
    /// Bytes on the wire after the message's number.
    pub(super) const LEN: usize = 48;

    /// Whether any file's tree could answer this. Whether a certain one can is for its owner to say.
    ///
    /// # Errors
    /// The first rule of BEP 52 that it breaks. A request is answered with "hash reject" then.
    pub fn check(&self) -> Result<(), HashRequestError> {
        let HashRequest { base: base_layer, index, length, proof_layers } = self.part;
        // BEP 52, "hash request": two at least. libtorrent asks for one where a run's last hash stands alone (piece 513), so do we answer.
        if !length.is_power_of_two() || length > HASH_COUNT_MAX {
            return Err(HashRequestError::Length(length));
        }
        // BEP 52: "index MUST be a multiple of length".
        if index % length != 0 {
            return Err(HashRequestError::Index { index, length });
        }
        if base_layer.saturating_add(proof_layers) > LAYERS_MAX {
            return Err(HashRequestError::Layers { base_layer, proof_layers });
        }
        Ok(())
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.root);
        let HashRequest { base, index, length, proof_layers } = self.part;
        for field in [base, index, length, proof_layers] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut root = [0; 32];
        root.copy_from_slice(&bytes[..32]);
        let field = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let part = HashRequest { base: field(32), index: field(36), length: field(40), proof_layers: field(44) };
        Self { root, part }
    }
}

/// The answer to a [`TreeRequest`]: as many hashes as it says, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashes<'a> {
    request: TreeRequest,
    hashes: &'a [Sha256Digest],
}

impl<'a> Hashes<'a> {
    /// The most bytes on the wire after the message's number.
    pub(super) const LEN_MAX: u32 = TreeRequest::LEN as u32 + 32 * (HASH_COUNT_MAX + LAYERS_MAX + 1);

    /// Base hashes, then uncles from the lowest layer up.
    ///
    /// # Errors
    /// Where the request is against its rules or the number of hashes is not what it asks for.
    pub fn new(request: TreeRequest, hashes: &'a [Sha256Digest]) -> Result<Self, WireError> {
        request.check()?;
        let expected = request.part.length + request.part.uncle_count();
        if hashes.len() != expected as usize {
            return Err(WireError::HashCount { found: hashes.len() as u32, expected });
        }
        Ok(Self { request, hashes })
    }

    /// What was asked for.
    pub fn request(&self) -> &TreeRequest {
        &self.request
    }

    /// The hashes of the base layer.
    pub fn base(&self) -> &'a [Sha256Digest] {
        &self.hashes[..self.request.part.length as usize]
    }

    /// The uncles, from the lowest layer up.
    pub fn uncles(&self) -> &'a [Sha256Digest] {
        &self.hashes[self.request.part.length as usize..]
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.request.encode(out);
        out.extend_from_slice(self.hashes.as_flattened());
    }

    /// `bytes` is the whole message after its number.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let wrong_length = |expected: usize| WireError::WrongLength {
            message: "hashes",
            len: bytes.len() as u32 + 1,
            expected: expected as u32 + 1,
        };
        let (header, rest) = bytes.split_first_chunk().ok_or_else(|| wrong_length(TreeRequest::LEN))?;
        let (hashes, ragged) = rest.as_chunks();
        if !ragged.is_empty() {
            return Err(wrong_length(bytes.len() - ragged.len()));
        }
        Self::new(TreeRequest::parse(header), hashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(length: u32, index: u32, proof_layers: u32) -> TreeRequest {
        TreeRequest { root: [1; 32], part: HashRequest { base: 0, index, length, proof_layers } }
    }

    #[test]
    fn the_rules_hold_at_their_edges() {
        assert_eq!(request(8192, 8192, 0).check(), Ok(()));
        assert_eq!(request(16384, 0, 0).check(), Err(HashRequestError::Length(16384)));
        assert_eq!(request(3, 0, 0).check(), Err(HashRequestError::Length(3)));
        assert_eq!(request(0, 0, 0).check(), Err(HashRequestError::Length(0)));
        assert_eq!(request(4, 6, 0).check(), Err(HashRequestError::Index { index: 6, length: 4 }));
        assert_eq!(request(2, 0, 50).check(), Ok(()));
        assert!(request(2, 0, 51).check().is_err() && request(2, 0, u32::MAX).check().is_err());
    }

    #[test]
    fn uncles_are_those_that_the_base_cannot_tell() {
        // Two leaves give their parent; its sibling is the one proof that layer 1 needs.
        assert_eq!(request(2, 0, 1).part.uncle_count(), 1);
        assert_eq!(request(2, 0, 0).part.uncle_count(), 0);
        assert_eq!(request(512, 0, 8).part.uncle_count(), 0);
        assert_eq!(request(512, 0, 9).part.uncle_count(), 1);
        assert_eq!(request(1, 512, 9).part.uncle_count(), 10);
    }

    #[test]
    fn too_few_and_too_many_hashes_are_refused() {
        let hashes = [[3; 32]; 4];
        assert!(Hashes::new(request(2, 0, 1), &hashes[..3]).is_ok());
        for wrong in [2, 4] {
            let error = Hashes::new(request(2, 0, 1), &hashes[..wrong]).unwrap_err();
            assert_eq!(error, WireError::HashCount { found: wrong as u32, expected: 3 });
        }
    }
}
