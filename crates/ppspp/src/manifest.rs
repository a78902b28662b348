//! What a folder's content begins with: the list of its files.
//!
//! PPSPP knows one stream of bytes (RFC 7574 §2). That of a folder is a manifest, zeros up to where the next chunk begins, and then the
//! files, one behind the other in the manifest's order. The manifest is a bencoded dictionary with one key that counts, `files`: the list
//! of BEP 3, with the attributes and links of BEP 47. The link says how long it is, so nobody takes a file that looks like one for it;
//! being part of the content, it is verified as all the rest is. The folder's name is the link's, so that the same files in a folder of
//! another name are the same content.
//!
//! The list is a torrent's in form, and goes through the same reader: strangers' names are made safe and unique, and links harmless, by
//! the same rules.

use anabranch_content::bencode::{self, DictBuilder, Limits, ListBuilder};
use anabranch_content::info::{FileKind, Info};
use anabranch_content::metainfo::limits::PIECE_LENGTH_MAX;
use anabranch_content::metainfo::{MetainfoError, NameRules};
use thiserror::Error;

/// Longest manifest: 200,000 files of ordinary names. It is in memory as long as its content is.
pub const MANIFEST_LEN_MAX: u32 = 16 << 20;
/// Bytes of a piece hash, which nobody looks at.
const PIECE_HASH_LEN: u64 = 20;

/// A file or a link of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its path below the folder, with `/` between components.
    pub path: &'a str,
    /// What it is.
    pub kind: EntryKind<'a>,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind<'a> {
    /// A file.
    File {
        /// Bytes.
        len: u64,
        /// Its owner may execute it.
        is_executable: bool,
    },
    /// A symbolic link.
    Link {
        /// Where it leads, as a path below the folder.
        target: &'a str,
    },
}

/// Why a manifest cannot be read, or written.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// There are too many files, or their names are too long together.
    #[error(
        "the list of files would have {0} bytes, more than the {MANIFEST_LEN_MAX} that fit: share its folders apart"
    )]
    TooLong(usize),
    /// It is no bencode.
    #[error("the content's list of files cannot be read: {0}")]
    Bencode(#[from] bencode::Error),
    /// It has no list.
    #[error("the content begins with no list of files")]
    NoFiles,
    /// A list that no torrent could have either.
    #[error("the content's list of files is one that cannot be: {0}")]
    Files(#[from] MetainfoError),
    /// Padding, which has no use here.
    #[error("the content's list of files has padding in it")]
    Padding,
    /// The files are not the content's.
    #[error("the content's list of files tells of {listed} bytes, and there are {there}")]
    Length {
        /// What the files have together.
        listed: u64,
        /// What of the content is not the manifest.
        there: u64,
    },
}

/// The manifest of these entries.
///
/// # Errors
/// Where it would be too long.
pub fn encode<'a>(entries: impl Iterator<Item = Entry<'a>>) -> Result<Vec<u8>, ManifestError> {
    let components = |path: &str| {
        let mut list = ListBuilder::new();
        path.split('/').for_each(|component| _ = list.bytes(component));
        list
    };
    let mut files = ListBuilder::new();
    for entry in entries {
        let mut file = DictBuilder::new();
        file.list("path", &components(entry.path));
        match entry.kind {
            EntryKind::File { len, is_executable } => {
                // What is longer than any file is refused by whoever reads it.
                file.int("length", i64::try_from(len).unwrap_or(i64::MAX));
                if is_executable {
                    file.bytes("attr", "x");
                }
            }
            EntryKind::Link { target } => _ = file.bytes("attr", "l").list("symlink path", &components(target)),
        }
        files.dict(&file);
    }
    let manifest = DictBuilder::new().list("files", &files).encode();
    if manifest.len() > MANIFEST_LEN_MAX as usize {
        return Err(ManifestError::TooLong(manifest.len()));
    }
    Ok(manifest)
}

/// Reads the manifest of a folder called `name` whose files have `files_len` bytes together. Names are as they are written, but for what
/// no path may have; whoever makes files of them looks what the file system holds, by the dictionary that stands in
/// [`Info::source`]. Pieces and hashes mean nothing.
///
/// # Errors
/// For what is no list of files, or one of other files.
pub fn parse(manifest: &[u8], name: &str, files_len: u64) -> Result<Info, ManifestError> {
    let limits = Limits { bytes: MANIFEST_LEN_MAX as usize, ..Limits::default() };
    let tree = bencode::parse(manifest, &limits)?;
    let files = tree.root().get("files").filter(|files| files.is_list()).ok_or(ManifestError::NoFiles)?;
    let length = |file: bencode::Value<'_>| file.get("length").and_then(|length| length.as_uint()).unwrap_or(0);
    let listed = files.as_list().into_iter().flatten().map(length).fold(0, u64::saturating_add);
    if listed != files_len {
        return Err(ManifestError::Length { listed, there: files_len });
    }
    // One piece for as much as a piece may have: there are few hashes to leave out.
    let pieces = (files_len.div_ceil(PIECE_LENGTH_MAX) * PIECE_HASH_LEN).min(u64::from(MANIFEST_LEN_MAX));
    let mut dictionary = DictBuilder::new();
    dictionary.raw("files", files.source()).bytes("name", name).int("piece length", PIECE_LENGTH_MAX as i64);
    let dictionary = dictionary.bytes("pieces", vec![0; pieces as usize]).encode();
    let info = Info::parse_for(&dictionary, &NameRules::EXACT)?;
    if info.files.iter().any(|file| file.kind == FileKind::Pad) {
        return Err(ManifestError::Padding);
    }
    // Links have no bytes, whatever is written.
    let listed = info.geometry.total();
    if listed != files_len {
        return Err(ManifestError::Length { listed, there: files_len });
    }
    Ok(info)
}

/// Chunks that a manifest takes, the last one with zeros behind it.
pub fn chunk_count(manifest_len: u32, chunk_len: u32) -> u64 {
    u64::from(manifest_len.div_ceil(chunk_len.max(1)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn file(path: &str, len: u64) -> Entry<'_> {
        Entry { path, kind: EntryKind::File { len, is_executable: false } }
    }

    #[test]
    fn a_folder_is_read_as_it_was_written() {
        let entries = [
            file("a file", 3),
            file("deep/er/empty", 0),
            Entry { path: "run", kind: EntryKind::File { len: 5_000_000_000, is_executable: true } },
            Entry { path: "link", kind: EntryKind::Link { target: "deep/er" } },
            file("new\nline \u{e9}", 1),
        ];
        let manifest = encode(entries.into_iter()).unwrap();
        let info = parse(&manifest, "folder", 5_000_000_004).unwrap();
        let paths: Vec<&Path> = info.files.iter().map(|file| file.path.as_path()).collect();
        let expected =
            ["folder/a file", "folder/deep/er/empty", "folder/run", "folder/link", "folder/new\nline \u{e9}"];
        assert_eq!(paths, expected.map(Path::new));
        assert_eq!(info.files[3].kind, FileKind::Symlink { target: "deep/er".into() });
        assert_eq!((info.files[2].executable, info.files[2].offset, info.multi_file), (true, 3, true));
    }

    #[test]
    fn lies_are_refused_and_names_made_safe() {
        let one = encode([file("x", 7)].into_iter()).unwrap();
        assert!(parse(&one, "f", 7).is_ok());
        for there in [0, 6, 8, u64::MAX] {
            assert!(matches!(parse(&one, "f", there), Err(ManifestError::Length { listed: 7, .. })), "{there}");
        }
        let bad: [(&[u8], u64); 6] = [
            (b"", 1),
            (b"de", 1),
            (b"d5:files3:abce", 1),
            (b"d5:filesld6:lengthi1eeee", 1),
            (b"d5:filesld4:attr1:p6:lengthi1e4:pathl1:xeeee", 1),
            (b"d5:filesld6:lengthi0e4:pathl1:xeeee", 0),
        ];
        for (manifest, len) in bad {
            assert!(parse(manifest, "f", len).is_err(), "{}", String::from_utf8_lossy(manifest));
        }
        let sum = b"d5:filesld6:lengthi9223372036854775807e4:pathl1:xeed6:lengthi9223372036854775807e4:pathl1:yeeee";
        assert!(parse(sum, "f", u64::MAX - 1).is_err());
        let climbing = b"d5:filesld6:lengthi1e4:pathl2:..2:..3:etceee4:name2:..e";
        let info = parse(climbing, "f", 1).unwrap();
        assert!(info.files[0].path.starts_with("f") && !info.files[0].path.iter().any(|part| part == ".."));
        let long = "x".repeat(200);
        let many = || (0..200_000).map(|_| file(&long, 1));
        assert!(matches!(encode(many()), Err(ManifestError::TooLong(_))));
        assert_eq!((chunk_count(1, 1024), chunk_count(1024, 1024), chunk_count(1025, 1024)), (1, 1, 2));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), len: u64) {
            let _ = parse(&bytes, "f", len);
        }

        #[test]
        fn any_names_stay_below_the_folder(
            names in prop::collection::vec(("[^/\0]{1,20}", 0u64..5000, any::<bool>()), 1..20),
        ) {
            let entries =
                names.iter().map(|(path, len, x)| Entry { path, kind: EntryKind::File { len: *len, is_executable: *x } });
            let total = names.iter().map(|(_, len, _)| len).sum();
            let manifest = encode(entries).unwrap();
            let Ok(info) = parse(&manifest, "top", total) else { return Ok(()) };
            prop_assert_eq!(info.files.len(), names.len());
            for (file, (_, len, x)) in info.files.iter().zip(&names) {
                prop_assert_eq!((file.length, file.executable), (*len, *x));
                prop_assert!(file.path.starts_with("top") && file.path.components().count() == 2);
            }
        }
    }
}
