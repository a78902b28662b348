//! How trackers, records and the store see what a link is of: its name there, its files, their pieces and which chunks these have.

use std::ops::Range;
use std::sync::Arc;

use anabranch_content::geometry::Geometry;
use anabranch_content::hash::sha1;
use anabranch_content::hex;
use anabranch_content::info::{FileEntry, FileKind, Info, InfoHashes, Version};
use anabranch_ppspp::link::Link;
use anabranch_ppspp::manifest::{self, ManifestError};

use crate::store::buffers::CHUNK_LEN;

/// Longest name of a file, in bytes, as most file systems have it.
const NAME_LEN_MAX: usize = 255;

/// What a swarm is called by trackers and in records: the first 20 bytes of a hash over its identifier would do as well, but
/// SHA-1 is what both know by its length.
pub(crate) fn hashes(link: &Link) -> InfoHashes {
    InfoHashes { v1: Some(sha1(link.params.swarm_id())), v2: None }
}

/// How the files of a link divide into pieces of many chunks, each of which goes to the disk as one.
///
/// # Errors
/// In words, where no such files can be: what a link says is a stranger's.
pub(super) fn geometry(link: &Link) -> Result<Geometry, String> {
    let (Some(len), Some(chunk_len)) = (link.content_len, link.params.chunk_len()) else {
        return Err("the link describes chunks of different lengths, which no file has".to_owned());
    };
    let piece_len = if chunk_len > CHUNK_LEN { chunk_len } else { CHUNK_LEN - CHUNK_LEN % chunk_len };
    let of_files = link.files_len().filter(|len| *len > 0 && len.div_ceil(piece_len.into()) <= u64::from(u32::MAX));
    let Some(of_files) = of_files else {
        return Err(format!("the link describes a content of {len} bytes, which cannot be"));
    };
    Ok(Geometry::new(piece_len, of_files, Vec::new()).with_block_length(chunk_len))
}

/// The chunks of a piece of a content whose files begin `front` chunks behind its own beginning.
pub(super) fn chunks_of(info: &Info, front: u64, piece: u32) -> Range<u64> {
    let geometry = &info.geometry;
    let first = front + geometry.piece_offset(piece) / u64::from(geometry.block_length());
    first..first + u64::from(geometry.block_count(piece))
}

/// How the store sees a folder that a link is of, and whose list of files was learnt.
pub(super) fn describe_folder(link: &Link, name: &str, list: &[u8]) -> Result<Info, ManifestError> {
    let info = manifest::parse(list, name, link.files_len().unwrap_or(0))?;
    Ok(in_pieces_of(link, info))
}

/// A folder's files with the pieces and the names of the link's content: those of the list mean nothing.
pub(super) fn in_pieces_of(link: &Link, info: Info) -> Info {
    let geometry = geometry(link).unwrap_or_else(|_| info.geometry.clone());
    Info { hashes: hashes(link), geometry, piece_hashes: Box::default(), ..info }
}

/// How the store sees a content that is one file.
///
/// # Errors
/// In words, where no such file can be.
pub(super) fn describe(link: &Link) -> Result<Arc<Info>, String> {
    let geometry = geometry(link)?;
    let name = file_name(link);
    let entry = FileEntry {
        path: name.clone().into(),
        length: geometry.total(),
        offset: 0,
        kind: FileKind::Regular,
        executable: false,
        hidden: false,
        mtime: None,
        root: None,
    };
    Ok(Arc::new(Info {
        source: Box::default(),
        hashes: hashes(link),
        version: Version::V1,
        name,
        multi_file: false,
        files: vec![entry],
        geometry,
        piece_hashes: Box::default(),
        private: false,
    }))
}

/// What the file of a link is called: as the link says, made safe as a torrent's name is (one component, and nothing that would
/// hide or lead elsewhere), or else by the swarm's identifier.
pub fn file_name(link: &Link) -> String {
    let id = || hex::encode(&link.params.swarm_id()[..link.params.swarm_id().len().min(20)]);
    link.name.as_deref().map(safe_name).filter(|name| !name.is_empty()).unwrap_or_else(id)
}

/// A stranger's name made one of a file: no separators, no control characters, no dots alone, not hidden, not too long.
fn safe_name(name: &str) -> String {
    let name: String =
        name.chars().map(|char| if char == '/' || char == '\\' || char.is_control() { '_' } else { char }).collect();
    let name = name.trim().trim_start_matches('.');
    let mut end = name.len().min(NAME_LEN_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_strangers_are_one_component_and_not_hidden() {
        for (name, safe) in [
            ("film.mkv", "film.mkv"),
            ("../../etc/passwd", "_.._etc_passwd"),
            ("..", ""),
            (".bashrc", "bashrc"),
            ("a\0b\n", "a_b_"),
            ("c:\\x", "c:_x"),
            ("  ", ""),
        ] {
            assert_eq!(safe_name(name), safe, "{name:?}");
        }
        assert_eq!(safe_name(&"\u{e9}".repeat(200)).len(), 254);
    }

    #[test]
    fn absurd_lengths_are_no_files() {
        let id = "ab".repeat(32);
        let described = |query: &str| describe(&format!("ppspp:{id}?{query}").parse().unwrap());
        assert!(described("cl=0").is_err() && described(&format!("cl={}", u64::MAX)).is_err());
        assert!(described("cl=9&cs=4294967295").is_err(), "chunks of no one length");
        let info = described("cl=1000000&cs=1000&dn=x").unwrap();
        assert_eq!((info.geometry.piece_length() % 1000, info.geometry.block_length()), (0, 1000));
        assert_eq!(chunks_of(&info, 0, info.geometry.piece_count() - 1).end, 1000);
        assert_eq!(chunks_of(&info, 7, 0).start, 7);
        assert!(described("cl=2048&cs=1024&ml=1025").is_err(), "a manifest and nothing else");
    }
}
