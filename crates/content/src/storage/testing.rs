//! Contents made up for tests.

use std::path::PathBuf;

use crate::geometry::Geometry;
use crate::info::{FileEntry, FileKind, Info, InfoHashes, Version};

/// A content of entries `(length, kind)`: kind 1 is a pad, 2 a symlink (of length 0), all else a regular file `c/<index>`.
pub(crate) fn info(piece_length: u32, entries: &[(u64, u8)]) -> Info {
    let mut offset = 0;
    let mut files = Vec::new();
    for (index, (length, kind)) in entries.iter().enumerate() {
        let kind = match kind {
            1 => FileKind::Pad,
            2 => FileKind::Symlink { target: PathBuf::from("0") },
            _ => FileKind::Regular,
        };
        let length = if matches!(kind, FileKind::Symlink { .. }) { 0 } else { *length };
        files.push(FileEntry {
            path: PathBuf::from(format!("c/{index}")),
            length,
            offset,
            kind,
            executable: false,
            hidden: false,
            mtime: None,
            root: None,
        });
        offset += length;
    }
    Info {
        source: Box::default(),
        hashes: InfoHashes { v1: Some([0xab; 20]), v2: None },
        version: Version::V1,
        name: "c".into(),
        multi_file: true,
        files,
        geometry: Geometry::new(piece_length, offset, Vec::new()),
        piece_hashes: Box::default(),
        private: false,
    }
}
