//! A tree on disk beside its content, so that a seeder starts without hashing: this header, then every node by its number,
//! zeros where none is known. A driver may keep its nodes in such a file from the start.

use thiserror::Error;

use super::{MemoryNodes, NodeStore, Tree};
use crate::bin::Bin;
use crate::hash::{DIGEST_LEN_MAX, Digest, HashFunction};

/// Length of the header in bytes.
pub const SIDECAR_HEADER_LEN: usize = 16 + 4 + 4 + 8 + DIGEST_LEN_MAX;
const MAGIC: &[u8; 16] = b"anabranch ppspp1";

/// The header: what the nodes behind it belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// The hash function.
    pub hash: HashFunction,
    /// Length of a chunk in bytes, at least 1.
    pub chunk_len: u32,
    /// Length of the content in bytes.
    pub content_len: u64,
    /// The root.
    pub root: Digest,
}

/// Why a file is not a tree that can be used: the content has to be hashed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SidecarError {
    /// It starts with something else, or is of another version.
    #[error("the tree's file is none: remove it, and the content is hashed again")]
    Header,
    /// It does not have as many nodes as the content needs.
    #[error("the tree's file has a wrong length: remove it, and the content is hashed again")]
    Length,
    /// Its nodes do not lead up to the root.
    #[error("the tree's file does not lead to its root: remove it, and the content is hashed again")]
    Nodes,
}

impl Sidecar {
    /// Chunks of the content.
    pub fn chunk_count(&self) -> u64 {
        self.content_len.div_ceil(self.chunk_len.into())
    }

    /// Where a node lies in the file.
    pub fn node_offset(&self, node: Bin) -> u64 {
        SIDECAR_HEADER_LEN as u64 + node.to_u64().saturating_mul(self.hash.len() as u64)
    }

    /// Length of the whole file; `None` for a content whose tree no file can hold.
    pub fn file_len(&self) -> Option<u64> {
        // The last leaf has the highest number of all complete nodes.
        let nodes = self.chunk_count().checked_mul(2)?.saturating_sub(1);
        nodes.checked_mul(self.hash.len() as u64)?.checked_add(SIDECAR_HEADER_LEN as u64)
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; SIDECAR_HEADER_LEN] {
        let mut bytes = [0; SIDECAR_HEADER_LEN];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16] = self.hash.to_u8();
        bytes[20..24].copy_from_slice(&self.chunk_len.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.content_len.to_be_bytes());
        bytes[32..32 + self.hash.len()].copy_from_slice(self.root.as_bytes());
        bytes
    }

    /// Reads the header.
    pub fn parse(bytes: &[u8]) -> Result<Self, SidecarError> {
        let header: &[u8; SIDECAR_HEADER_LEN] = bytes.first_chunk().ok_or(SidecarError::Header)?;
        let field =
            |range: std::ops::Range<usize>| header[range].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let hash =
            HashFunction::from_u8(header[16]).filter(|_| header[..16] == MAGIC[..]).ok_or(SidecarError::Header)?;
        let chunk_len = field(20..24) as u32;
        let root = hash.digest(&header[32..32 + hash.len()]).filter(|_| chunk_len > 0).ok_or(SidecarError::Header)?;
        let sidecar = Self { hash, chunk_len, content_len: field(24..32), root };
        // Nothing but zeros where nothing is said.
        if sidecar.encode() == *header { Ok(sidecar) } else { Err(SidecarError::Header) }
    }

    /// The nodes with numbers from `from` to `to`, as they lie in the file.
    pub fn export(&self, tree: &Tree<impl NodeStore>, from: u64, to: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((to.saturating_sub(from)) as usize * self.hash.len());
        for bin in (from..to).filter_map(Bin::from_u64) {
            let node = tree.node(bin).filter(|_| bin.end() <= self.chunk_count()).unwrap_or(self.hash.zero());
            bytes.extend_from_slice(node.as_bytes());
        }
        bytes
    }

    /// Reads a whole file into memory and checks every node of it.
    pub fn import(file: &[u8]) -> Result<(Self, Tree<MemoryNodes>), SidecarError> {
        let sidecar = Self::parse(file)?;
        if sidecar.file_len() != Some(file.len() as u64) {
            return Err(SidecarError::Length);
        }
        let mut nodes = MemoryNodes::new(sidecar.hash);
        let chunks = sidecar.chunk_count();
        for (number, node) in file[SIDECAR_HEADER_LEN..].chunks_exact(sidecar.hash.len()).enumerate() {
            let bin = Bin::from_u64(number as u64).filter(|bin| bin.end() <= chunks);
            if let (Some(bin), Some(digest)) = (bin, sidecar.hash.digest(node)) {
                nodes.put(bin, &digest);
            }
        }
        let tree = Tree::with_root(sidecar.hash, sidecar.root, Some(chunks), nodes);
        if tree.check(|| true) { Ok((sidecar, tree)) } else { Err(SidecarError::Nodes) }
    }
}
