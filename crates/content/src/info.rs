//! The info dictionary, parsed: what a torrent's content is, apart from where to find it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::bencode::{self, Limits};
use crate::geometry::Geometry;
use crate::metainfo::limits::METAINFO_BYTES_MAX;

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

impl Version {
    /// Whether there are SHA-1 piece hashes: v1 and hybrid.
    pub fn is_v1(self) -> bool {
        self != Self::V2
    }

    /// Whether there are Merkle roots: v2 and hybrid.
    pub fn is_v2(self) -> bool {
        self != Self::V1
    }
}

/// The identity of a content: one or both info-hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

impl FileEntry {
    /// Whether it is a file with content of its own, neither pad nor link.
    pub fn is_regular(&self) -> bool {
        self.kind == FileKind::Regular
    }

    /// Where the file stands in piece space, in bytes.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.length
    }
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

impl Info {
    /// The files that hold content, with their index in the file list; empty ones too.
    pub fn regular_files(&self) -> impl Iterator<Item = (usize, &FileEntry)> {
        self.files.iter().enumerate().filter(|(_, file)| file.is_regular())
    }

    /// "source" in the dictionary: private trackers tell their torrents of one content apart by it.
    pub fn source_tag(&self) -> Option<String> {
        let limits = Limits { bytes: METAINFO_BYTES_MAX, ..Limits::default() };
        let tree = bencode::parse(&self.source, &limits).ok()?;
        let tag = tree.root().get("source")?.as_bytes()?;
        Some(String::from_utf8_lossy(tag).into_owned()).filter(|tag| !tag.is_empty())
    }

    /// Bytes in all regular files: the content without pads.
    pub fn content_size(&self) -> u64 {
        self.regular_files().map(|(_, file)| file.length).sum()
    }

    /// The entry with this path, with its index. Reads the list from its front.
    pub fn find(&self, path: &Path) -> Option<(usize, &FileEntry)> {
        self.files.iter().enumerate().find(|(_, file)| file.path == path)
    }

    /// The non-empty entries with bytes in `range` of piece space, pads too, with their index.
    pub fn files_in(&self, range: Range<u64>) -> impl Iterator<Item = (usize, &FileEntry)> {
        let first = self.files.partition_point(|file| file.range().end <= range.start);
        let entries = self.files[first..].iter().enumerate();
        let touched = entries.take_while(move |(_, file)| file.offset < range.end).filter(|(_, file)| file.length > 0);
        touched.map(move |(at, file)| (first + at, file))
    }

    /// The non-empty entries that `piece` touches, pads too, with their index.
    pub fn files_of_piece(&self, piece: u32) -> impl Iterator<Item = (usize, &FileEntry)> {
        let start = self.geometry.piece_offset(piece);
        self.files_in(start..start + u64::from(self.geometry.piece_len(piece)))
    }

    /// The pieces that hold bytes of entry `index`; none for empty files, links, and indices past the end.
    pub fn pieces_of_file(&self, index: usize) -> Range<u32> {
        match self.files.get(index) {
            Some(file) if file.length > 0 => {
                self.geometry.piece_at(file.offset)..self.geometry.piece_at(file.range().end - 1) + 1
            }
            _ => 0..0,
        }
    }
}
