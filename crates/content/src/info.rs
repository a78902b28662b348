//! The info dictionary, parsed: what a torrent's content is, apart from where to find it.

use std::path::PathBuf;
use std::time::SystemTime;

use crate::geometry::Geometry;

/// A SHA-1 digest: a v1 info-hash or piece hash.
pub type Sha1Digest = [u8; 20];
/// A SHA-256 digest: a v2 info-hash, pieces root, or node of a Merkle tree.
pub type Sha256Digest = [u8; 32];

/// Which of the two generations of the format the info dictionary carries (BEP 3, BEP 52).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// SHA-1 over pieces (BEP 3).
    V1,
    /// SHA-256 Merkle trees over files (BEP 52).
    V2,
    /// Both over the same bytes (BEP 52, "upgrade path").
    Hybrid,
}

/// The identity of a content: one or both info-hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InfoHashes {
    /// SHA-1 of the info dictionary's original bytes.
    pub v1: Option<Sha1Digest>,
    /// SHA-256 of the info dictionary's original bytes.
    pub v2: Option<Sha256Digest>,
}

impl InfoHashes {
    /// The 20 bytes that go into handshakes and announces for v2: the SHA-256 cut short (BEP 52, "infohash").
    pub fn v2_truncated(&self) -> Option<Sha1Digest> {
        self.v2.map(|hash| {
            let mut short = [0; 20];
            short.copy_from_slice(&hash[..20]);
            short
        })
    }

    /// The 20-byte hashes under which peers may ask for this content, v1 first.
    pub fn wire_hashes(&self) -> impl Iterator<Item = Sha1Digest> {
        self.v1.into_iter().chain(self.v2_truncated())
    }
}

/// What kind of thing an entry of the file list is (BEP 47 attributes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A file with content.
    Regular,
    /// Zeros that align the next file to a piece; never on disk (BEP 47, "attr" `p`).
    Pad,
    /// A symbolic link; `target` is relative to the link's own folder and proven to stay inside the torrent's root (BEP 47, `l`).
    Symlink {
        /// Link text as it is to be written.
        target: PathBuf,
    },
}

/// One entry of the file list, in piece-space order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Path below the download folder, made safe: relative, no `..`, unique. For multi-file torrents its first component is the torrent's name.
    pub path: PathBuf,
    /// Bytes; 0 for symlinks.
    pub length: u64,
    /// Where the file starts in piece space, in bytes.
    pub offset: u64,
    /// Regular, pad or symlink.
    pub kind: FileKind,
    /// BEP 47, `x`.
    pub executable: bool,
    /// BEP 47, `h`.
    pub hidden: bool,
    /// Modification time, where the torrent carries one.
    pub mtime: Option<SystemTime>,
    /// Root of the file's Merkle tree over 16 KiB blocks; v2 and hybrid, non-empty files only (BEP 52, "pieces root").
    pub root: Option<Sha256Digest>,
}

/// The info dictionary of a torrent, parsed and made safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The original bytes of the dictionary; both info-hashes are over these.
    pub source: Box<[u8]>,
    /// Info-hashes over `source`.
    pub hashes: InfoHashes,
    /// v1, v2 or hybrid.
    pub version: Version,
    /// The torrent's name, made safe for use as a file name.
    pub name: String,
    /// Whether `name` is a folder above the files.
    pub multi_file: bool,
    /// Files in piece-space order, pads included. For v2-only torrents pads are put in where BEP 52 aligns files.
    pub files: Vec<FileEntry>,
    /// Piece length, total, and which pieces end in padding.
    pub geometry: Geometry,
    /// SHA-1 per piece; empty for v2-only.
    pub piece_hashes: Box<[Sha1Digest]>,
    /// BEP 27: only the torrent's own trackers may be used to find peers.
    pub private: bool,
}
