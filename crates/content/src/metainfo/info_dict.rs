//! The info dictionary: which generations it carries, and what they agree on.

use std::collections::HashMap;

use super::draft::{Draft, DraftKind, DraftList};
use super::error::MetainfoError;
use super::limits::{METAINFO_BYTES_MAX, PIECE_LENGTH_MAX, PIECES_MAX};
use super::names::NameRules;
use super::{collisions, file_tree, files_v1, symlinks};
use crate::bencode::{self, Finding, FindingKind, Limits, Value};
use crate::geometry::{BLOCK_LEN, Geometry};
use crate::hash::{sha1, sha256};
use crate::hex;
use crate::info::{FileEntry, FileKind, Info, InfoHashes, Sha1Digest, Version};

impl Info {
    /// Reads an info dictionary, such as peers send (BEP 9). Hostile names are made safe for every file system, other hostility
    /// is refused.
    pub fn parse(bytes: &[u8]) -> Result<Self, MetainfoError> {
        Self::parse_for(bytes, &NameRules::PORTABLE)
    }

    /// As [`Info::parse`], with names for a file system of these rules.
    pub fn parse_for(bytes: &[u8], rules: &NameRules) -> Result<Self, MetainfoError> {
        let tree = bencode::parse(bytes, &Limits { bytes: METAINFO_BYTES_MAX, ..Limits::default() })?;
        from_value(tree.root(), rules)
    }
}

/// Reads the info dictionary `info`.
pub(super) fn from_value(info: Value<'_>, rules: &NameRules) -> Result<Info, MetainfoError> {
    if !info.is_dict() {
        return Err(MetainfoError::Invalid("info", "a dictionary"));
    }
    let version = meta_version(info)?;
    refuse_ambiguity(info.findings(), version)?;
    let hashes = InfoHashes {
        v1: version.is_v1().then(|| sha1(info.source())),
        v2: version.is_v2().then(|| sha256(info.source())),
    };
    let piece_length = piece_length(info, version)?;
    let (drafts, name, multi_file) = match version {
        Version::V1 => v1_files(info, &hashes, rules)?,
        Version::V2 | Version::Hybrid => v2_files(info, &hashes, version, piece_length, rules)?,
    };
    let geometry = geometry(&drafts, piece_length)?;
    check_roots(&drafts.files)?;
    let piece_hashes = if version.is_v1() { piece_hashes(info, &geometry)? } else { Box::default() };
    let private = info.get("private").and_then(|private| private.as_int()).unwrap_or(0) != 0;
    let files = finish(drafts.files, if multi_file { &name } else { "" }, rules)?;
    Ok(Info { source: info.source().into(), hashes, version, name, multi_file, files, geometry, piece_hashes, private })
}

/// Looks at the version before anything else, as BEP 52 asks ("meta version").
fn meta_version(info: Value<'_>) -> Result<Version, MetainfoError> {
    let version = info.get("meta version").and_then(|version| version.as_int()).unwrap_or(1);
    if version > 2 {
        return Err(MetainfoError::UnknownVersion(version));
    }
    let has_tree = info.get("file tree").is_some();
    match (version, has_tree) {
        (2, false) => Err(MetainfoError::Missing("file tree")),
        // A list without hashes says nothing that the tree does not: torrentfile writes `length` beside the tree of one file.
        (2, true) if info.get("pieces").is_none() => Ok(Version::V2),
        (2, true) if info.get("files").is_some() || info.get("length").is_some() => Ok(Version::Hybrid),
        (2, true) => Err(MetainfoError::Inconsistent("`pieces` is there, but neither `files` nor `length`".to_owned())),
        (_, true) => Err(MetainfoError::Missing("meta version")),
        (_, false) => Ok(Version::V1),
    }
}

/// Nobody may read another torrent out of the same bytes: keys are unique, and v2 torrents are canonical throughout
/// (BEP 52, "infohash"). v1 torrents with unsorted keys or leading zeros exist, and hash to what they hash to.
fn refuse_ambiguity(mut findings: impl Iterator<Item = Finding>, version: Version) -> Result<(), MetainfoError> {
    let refused = findings.find(|finding| version.is_v2() || finding.kind == FindingKind::DuplicateKey);
    refused.map_or(Ok(()), |finding| Err(MetainfoError::NotCanonical(finding)))
}

fn piece_length(info: Value<'_>, version: Version) -> Result<u64, MetainfoError> {
    let value = info.get("piece length").ok_or(MetainfoError::Missing("piece length"))?;
    let value = value.as_int().ok_or(MetainfoError::Invalid("piece length", "an integer"))?;
    // BEP 52: "It must be a power of two and at least 16KiB."
    let min = if version.is_v2() { u64::from(BLOCK_LEN) } else { 1 };
    let length = u64::try_from(value).ok().filter(|length| (min..=PIECE_LENGTH_MAX).contains(length)).ok_or(
        MetainfoError::OutOfRange {
            key: "piece length",
            path: String::new(),
            value: value.into(),
            min,
            max: PIECE_LENGTH_MAX,
        },
    )?;
    if version.is_v2() && !length.is_power_of_two() {
        return Err(MetainfoError::Invalid("piece length", "a power of two"));
    }
    Ok(length)
}

/// The name's raw bytes; `name.utf-8` is there where `name` is in some older encoding.
fn raw_name<'t>(info: Value<'t>) -> Result<&'t [u8], MetainfoError> {
    let name = info.get("name.utf-8").and_then(|name| name.as_bytes());
    let name = name.or_else(|| info.get("name")?.as_bytes());
    name.ok_or(MetainfoError::Missing("name"))
}

/// A folder's name; the info-hash where the torrent names none that is safe.
fn folder_name(info: Value<'_>, hashes: &InfoHashes, rules: &NameRules) -> Result<String, MetainfoError> {
    let fallback = || match (hashes.v1, hashes.v2) {
        (Some(v1), _) => hex::encode(&v1),
        (None, v2) => hex::encode(&v2.unwrap_or_default()),
    };
    Ok(rules.sanitize(raw_name(info)?).unwrap_or_else(fallback))
}

type FileList = (DraftList, String, bool);

fn v1_files(info: Value<'_>, hashes: &InfoHashes, rules: &NameRules) -> Result<FileList, MetainfoError> {
    if let Some(files) = info.get("files") {
        let name = folder_name(info, hashes, rules)?;
        return Ok((files_v1::file_list(files, &name, rules)?, name, true));
    }
    let list = files_v1::single_file(info, raw_name(info)?, rules)?;
    let name = list.files[0].path.clone();
    Ok((list, name, false))
}

fn v2_files(
    info: Value<'_>,
    hashes: &InfoHashes,
    version: Version,
    piece_length: u64,
    rules: &NameRules,
) -> Result<FileList, MetainfoError> {
    let tree = info.get("file tree").ok_or(MetainfoError::Missing("file tree"))?;
    let name = folder_name(info, hashes, rules)?;
    let (mut list, multi_file) = file_tree::file_tree(tree, &name, info.get("files").is_some(), piece_length, rules)?;
    if list.files.is_empty() {
        return Err(MetainfoError::Empty);
    }
    if version == Version::Hybrid {
        let (v1, _, _) = v1_files(info, hashes, rules)?;
        // Whether the last file is padded is the maker's choice; the v1 list tells.
        if list.files.len() == v1.files.len() + 1 {
            list.remove_tail_pad();
        }
        check_halves(&list, &v1)?;
    }
    let name = if multi_file { name } else { list.files[0].path.clone() };
    Ok((list, name, multi_file))
}

/// BEP 52, "Upgrade path": both halves must describe the same bytes. Empty files and the names of pads do not matter.
fn check_halves(v2: &DraftList, v1: &DraftList) -> Result<(), MetainfoError> {
    let differ = |what: String| Err(MetainfoError::Inconsistent(what));
    if v1.files.len() != v2.files.len() {
        return differ(format!("{} entries against {}", v1.files.len(), v2.files.len()));
    }
    for (one, two) in v1.files.iter().zip(&v2.files) {
        let data = |file: &Draft| file.length > 0 && !file.is_pad();
        let same = one.path == two.path && one.length == two.length && one.offset == two.offset;
        if data(one) != data(two) || (data(one) && !same) {
            return differ(format!(
                "`{}` ({} bytes at {}) against `{}` ({} bytes at {})",
                one.path, one.length, one.offset, two.path, two.length, two.offset
            ));
        }
    }
    if v1.total != v2.total {
        return differ(format!("{} bytes against {}", v1.total, v2.total));
    }
    Ok(())
}

fn geometry(list: &DraftList, piece_length: u64) -> Result<Geometry, MetainfoError> {
    if list.total == 0 {
        return Err(MetainfoError::Empty);
    }
    if list.total.div_ceil(piece_length) > PIECES_MAX {
        return Err(MetainfoError::TooMany { what: "pieces", max: PIECES_MAX });
    }
    Ok(Geometry::new(piece_length as u32, list.total, trimmed_pieces(list, piece_length)))
}

/// Pieces that end in padding, with the bytes before it. Padding that data follows in the same piece is fetched.
fn trimmed_pieces(list: &DraftList, piece_length: u64) -> Vec<(u32, u32)> {
    let mut trimmed = Vec::new();
    let mut files = list.files.iter().filter(|file| file.length > 0).peekable();
    while let Some(first) = files.next() {
        if !first.is_pad() {
            continue;
        }
        let mut end = first.offset + first.length;
        while let Some(more) = files.next_if(|file| file.is_pad()) {
            end += more.length;
        }
        let mut piece = first.offset / piece_length;
        while piece * piece_length < end && ((piece + 1) * piece_length).min(list.total) <= end {
            trimmed.push((piece as u32, first.offset.saturating_sub(piece * piece_length) as u32));
            piece += 1;
        }
    }
    trimmed
}

/// Files with one root must have one length, or one piece layer could not serve both.
fn check_roots(files: &[Draft]) -> Result<(), MetainfoError> {
    let mut lengths = HashMap::new();
    for file in files {
        let Some(root) = file.root else { continue };
        if *lengths.entry(root).or_insert(file.length) != file.length {
            let path = file.path.clone();
            return Err(MetainfoError::FileTree {
                path,
                problem: "with another file's `pieces root`, but not its length",
            });
        }
    }
    Ok(())
}

fn piece_hashes(info: Value<'_>, geometry: &Geometry) -> Result<Box<[Sha1Digest]>, MetainfoError> {
    let pieces = info.get("pieces").ok_or(MetainfoError::Missing("pieces"))?;
    let pieces = pieces.as_bytes().ok_or(MetainfoError::Invalid("pieces", "a string"))?;
    let expected = u64::from(geometry.piece_count()) * 20;
    let (hashes, rest) = pieces.as_chunks::<20>();
    if pieces.len() as u64 != expected || !rest.is_empty() {
        return Err(MetainfoError::WrongPieceCount { found: pieces.len(), expected });
    }
    Ok(hashes.into())
}

/// Gives every entry its final name and every link its proven text.
fn finish(mut drafts: Vec<Draft>, root: &str, rules: &NameRules) -> Result<Vec<FileEntry>, MetainfoError> {
    let links = symlinks::Links::index(&drafts, root)?;
    collisions::resolve(&mut drafts, rules)?;
    let mut texts: HashMap<_, _> = links.texts(&drafts).collect();
    let entry = |(index, draft): (usize, Draft)| FileEntry {
        path: draft.path.into(),
        length: draft.length,
        offset: draft.offset,
        kind: match draft.kind {
            DraftKind::Regular => FileKind::Regular,
            DraftKind::Pad => FileKind::Pad,
            DraftKind::Symlink(_) => FileKind::Symlink { target: texts.remove(&index).unwrap_or_default() },
        },
        executable: draft.executable,
        hidden: draft.hidden,
        mtime: draft.mtime,
        root: draft.root,
    };
    Ok(drafts.into_iter().enumerate().map(entry).collect())
}
