//! Says which pieces and files of a content are good where it lies on disk.
//!
//! Nothing is written, nothing that is missing is an error, and padding is not read. A folder is looked at as it is ([`verify`]); of a
//! content that is open, what is kept aside counts too ([`verify_pieces`]). For hybrid torrents a piece is good when both of its hashes
//! agree (BEP 52, "upgrade path").

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use crate::bitfield::Bitfield;
use crate::create::scan::{Extent, PieceHashes, Plan, scan};
use crate::geometry::BLOCK_LEN;
use crate::hash::Sha1;
use crate::info::{FileEntry, FileKind, Info, Sha1Digest, Sha256Digest};
use crate::merkle::root_from_layer;
use crate::metainfo::PieceLayers;
use crate::storage::{self, Storage, StorageError};

/// Bytes read at a time of a piece that is partly kept aside: what a disk reads at once, whatever the piece length.
const ASIDE_READ_LEN: usize = 256 * 1024;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The pieces whose hashes agree.
    pub pieces: Bitfield,
    /// One for each of [`Info::files`], in the same order; padding is always complete.
    pub files: Vec<FileReport>,
}

impl Report {
    /// Whether every piece is good and every file is as the torrent says.
    pub fn is_complete(&self) -> bool {
        self.pieces.is_full() && self.files.iter().all(|file| file.state == FileState::Complete)
    }
}

/// What was found of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// How it differs, if it does.
    pub state: FileState,
    /// Bytes of it that lie in good pieces.
    pub bytes_good: u64,
}

/// How a file on disk compares with the torrent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// As it should be.
    Complete,
    /// It has the right length, but some of it, or of a neighbour in the same piece, is wrong.
    Damaged,
    /// Nothing there.
    Missing,
    /// It ends early.
    Short {
        /// Bytes on disk.
        actual: u64,
    },
    /// Something follows what the torrent knows.
    Long {
        /// Bytes on disk.
        actual: u64,
    },
    /// Something else is in its place: a folder, a device, a link elsewhere.
    WrongKind,
    /// The system does not let us read it.
    Unreadable(io::ErrorKind),
}

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerifyError {
    /// The piece layer of a v2 file is not known (yet): a magnet link's come from peers.
    #[error("the torrent has no piece layer for {path}; get the full .torrent file, or verify while connected to peers", path = path.display())]
    LayerMissing {
        /// The file.
        path: PathBuf,
    },
    /// The caller asked to stop.
    #[error("canceled")]
    Canceled,
}

/// Compares the files below `root` with `info`. `layers` are the piece layers by "pieces root" (BEP 52), already checked against
/// it; unused for v1. `progress` is told bytes done and bytes in all; setting `cancel` ends it early.
pub fn verify(
    info: &Info,
    layers: &HashMap<Sha256Digest, Box<[Sha256Digest]>>,
    root: &Path,
    cancel: &AtomicBool,
    progress: impl FnMut(u64, u64),
) -> Result<Report, VerifyError> {
    let unknown = info.regular_files().find(|(_, file)| {
        let pieces = pieces_of(info, file.offset, file.length).len();
        info.version.is_v2() && file.length > 0 && layer_of(file, pieces, layers).is_none()
    });
    if let Some((_, file)) = unknown {
        return Err(VerifyError::LayerMissing { path: file.path.clone() });
    }
    let (mut states, on_disk): (Vec<FileState>, Vec<u64>) = info.files.iter().map(|file| look(file, root)).unzip();
    let all: Vec<u32> = (0..info.geometry.piece_count()).collect();
    let unreadable = |file, kind| states[file] = FileState::Unreadable(kind);
    let good = check(info, layers, root, (&all, &on_disk), cancel, progress, unreadable)?;
    let files = info.files.iter().zip(states).map(|(file, state)| file_report(info, file, state, &good)).collect();
    Ok(Report { pieces: good, files })
}

/// Which of `pieces` are good: [`verify`] for some of a content that is open, with what is kept aside of its files that are not on
/// disk. A layer that is not known is no error here: the pieces of a hybrid are judged by their SHA-1 then, those of v2 count as not
/// good.
pub fn verify_pieces(
    storage: &Storage,
    layers: &HashMap<Sha256Digest, Box<[Sha256Digest]>>,
    pieces: &[u32],
    cancel: &AtomicBool,
    mut progress: impl FnMut(u64, u64),
) -> Result<Bitfield, VerifyError> {
    let (info, root) = (storage.info(), storage.root());
    let on_disk: Vec<u64> = info.files.iter().map(|file| look(file, root).1).collect();
    let (aside, in_files): (Vec<u32>, Vec<u32>) = pieces.iter().partition(|piece| storage.is_kept_aside(**piece));
    // At most two a file, and files that are not wanted are often small: they are hashed one after the other.
    let good_aside = check_aside(storage, &aside, cancel)?;
    let aside_bytes: u64 = aside.iter().map(|piece| u64::from(info.geometry.piece_len(*piece))).sum();
    let progress = |done: u64, total: u64| progress(aside_bytes + done, aside_bytes + total);
    let mut good = check(info, layers, root, (&in_files, &on_disk), cancel, progress, |_, _| {})?;
    good_aside.into_iter().for_each(|piece| _ = good.set(piece));
    Ok(good)
}

/// Whether it can be told if `piece` is good: its hash is known.
pub fn is_checkable(info: &Info, layers: &HashMap<Sha256Digest, Box<[Sha256Digest]>>, piece: u32) -> bool {
    info.version.is_v1()
        || info.files_of_piece(piece).filter(|(_, file)| file.is_regular()).all(|(index, file)| {
            let pieces = info.pieces_of_file(index).len();
            layer_of(file, pieces, layers).is_some()
        })
}

/// The piece layers of all files of `info`: those that are `known`, and those that can be made of files below `root`. Each that is
/// made proves itself by its file's root. `None` where one can be had from neither, and where `cancel` is set.
pub fn layers_on_disk(info: &Info, known: PieceLayers, root: &Path, cancel: &AtomicBool) -> Option<PieceLayers> {
    let mut layers = known;
    let lacking: Vec<(Sha256Digest, std::ops::Range<u32>)> = info
        .regular_files()
        .filter_map(|(_, file)| Some((file.root?, pieces_of(info, file.offset, file.length))))
        .filter(|(root, pieces)| pieces.len() > 1 && !layers.contains_key(root))
        .collect();
    let pieces: Vec<u32> = lacking.iter().flat_map(|(_, pieces)| pieces.clone()).collect();
    let on_disk: Vec<u64> = info.files.iter().map(|file| look(file, root).1).collect();
    let (plan, _) = plan(info, root, &pieces, &on_disk);
    let mut nodes: HashMap<u32, Sha256Digest> = HashMap::new();
    scan(&Plan { sha1: false, ..plan }, cancel, |report| {
        let good = report.pieces.into_iter().filter_map(|(piece, hashes)| Some((piece, hashes.ok()?.sha256?)));
        nodes.extend(good);
        ControlFlow::Continue(())
    });
    let blocks_per_piece = info.geometry.piece_length() / BLOCK_LEN;
    for (root, pieces) in lacking {
        let layer: Option<Box<[Sha256Digest]>> = pieces.map(|piece| nodes.get(&piece).copied()).collect();
        let layer = layer.filter(|layer| root_from_layer(layer, blocks_per_piece) == root)?;
        layers.insert(root, layer);
    }
    Some(layers)
}

/// Hashes the pieces that can be read whole. `unreadable` is told of files that could not be after all.
fn check(
    info: &Info,
    layers: &HashMap<Sha256Digest, Box<[Sha256Digest]>>,
    root: &Path,
    (pieces, on_disk): (&[u32], &[u64]),
    cancel: &AtomicBool,
    mut progress: impl FnMut(u64, u64),
    mut unreadable: impl FnMut(usize, io::ErrorKind),
) -> Result<Bitfield, VerifyError> {
    let nodes = expected_nodes(info, layers);
    let geometry = &info.geometry;
    let (plan, extent_files) = plan(info, root, pieces, on_disk);
    let total: u64 = pieces.iter().map(|piece| u64::from(geometry.piece_len(*piece))).sum();
    let readable: u64 = plan.pieces.iter().map(|piece| u64::from(geometry.piece_len(*piece))).sum();
    let mut done = total - readable;
    let (mut good, mut missing) = (Bitfield::new(geometry.piece_count()), plan.pieces.len());
    scan(&plan, cancel, |report| {
        done += report.bytes;
        progress(done.min(total), total);
        missing -= report.pieces.len();
        for (piece, result) in report.pieces {
            match result {
                Ok(hashes) if agree(info, &nodes, piece, &hashes) => _ = good.set(piece),
                Err(fault) if fault.error.kind() != io::ErrorKind::UnexpectedEof => {
                    unreadable(extent_files[fault.extent], fault.error.kind());
                }
                Ok(_) | Err(_) => {}
            }
        }
        ControlFlow::Continue(())
    });
    if missing > 0 || cancel.load(Ordering::Relaxed) {
        return Err(VerifyError::Canceled);
    }
    progress(total, total);
    Ok(good)
}

/// The good ones of `pieces`, of which some bytes are kept aside. Each of them lies in several files, as pieces do in v1 alone (BEP 52
/// has every file begin a piece): their SHA-1 is all there is.
fn check_aside(storage: &Storage, pieces: &[u32], cancel: &AtomicBool) -> Result<Vec<u32>, VerifyError> {
    let mut good = Vec::new();
    for &piece in pieces {
        if cancel.load(Ordering::Relaxed) {
            return Err(VerifyError::Canceled);
        }
        // One that cannot be read is not good.
        let digest = sha1_of(storage, piece).ok();
        if digest.is_some() && storage.info().piece_hashes.get(piece as usize) == digest.as_ref() {
            good.push(piece);
        }
    }
    Ok(good)
}

/// The SHA-1 of a piece, wherever its bytes are.
fn sha1_of(storage: &Storage, piece: u32) -> Result<Sha1Digest, StorageError> {
    let geometry = &storage.info().geometry;
    let (mut offset, mut left) = (geometry.piece_offset(piece), geometry.piece_len(piece) as usize);
    let mut buffer = vec![0; left.min(ASIDE_READ_LEN)];
    let mut hash = Sha1::new();
    while left > 0 {
        let bytes = &mut buffer[..left.min(ASIDE_READ_LEN)];
        storage.read_at(offset, bytes)?;
        hash.update(bytes);
        (offset, left) = (offset + bytes.len() as u64, left - bytes.len());
    }
    Ok(hash.finish())
}

/// Reads those of `pieces` that are on disk as a whole. Answers the file of each extent, too.
fn plan(info: &Info, root: &Path, pieces: &[u32], on_disk: &[u64]) -> (Plan, Vec<usize>) {
    let mut cut = Bitfield::new(info.geometry.piece_count());
    for (file, on_disk) in info.files.iter().zip(on_disk) {
        for piece in pieces_of(info, file.offset + on_disk, file.length - on_disk) {
            cut.set(piece);
        }
    }
    let (extent_files, extents) = info
        .regular_files()
        .filter(|(_, file)| file.length > 0)
        .map(|(index, file)| (index, Extent { offset: file.offset, length: file.length, path: root.join(&file.path) }))
        .unzip();
    let plan = Plan {
        extents,
        piece_length: info.geometry.piece_length(),
        total: info.geometry.total(),
        pieces: pieces.iter().copied().filter(|piece| !cut.get(*piece)).collect(),
        sha1: info.version.is_v1(),
        sha256: info.version.is_v2(),
    };
    (plan, extent_files)
}

/// The hash that each piece must have in its file's tree; empty for v1. Pieces of files whose layer is not known have none: in a
/// hybrid their SHA-1 decides, in v2 they cannot be told to be good.
fn expected_nodes(info: &Info, layers: &HashMap<Sha256Digest, Box<[Sha256Digest]>>) -> Vec<Option<Sha256Digest>> {
    if !info.version.is_v2() {
        return Vec::new();
    }
    let mut nodes = vec![None; info.geometry.piece_count() as usize];
    for (_, file) in info.regular_files().filter(|(_, file)| file.length > 0) {
        let pieces = pieces_of(info, file.offset, file.length);
        let layer = layer_of(file, pieces.len(), layers).unwrap_or_default();
        pieces.zip(layer).for_each(|(piece, node)| nodes[piece as usize] = Some(*node));
    }
    nodes
}

/// The piece layer of a file of so many pieces, where it is known.
fn layer_of<'a>(
    file: &'a FileEntry,
    pieces: usize,
    layers: &'a HashMap<Sha256Digest, Box<[Sha256Digest]>>,
) -> Option<&'a [Sha256Digest]> {
    match (&file.root, pieces) {
        (Some(root), 1) => Some(std::slice::from_ref(root)),
        (Some(root), count) => layers.get(root).map(|layer| &layer[..]).filter(|layer| layer.len() == count),
        (None, _) => None,
    }
}

fn agree(info: &Info, nodes: &[Option<Sha256Digest>], piece: u32, hashes: &PieceHashes) -> bool {
    let sha1 = hashes.sha1.is_none_or(|hash| info.piece_hashes.get(piece as usize) == Some(&hash));
    let sha256 = hashes.sha256.is_none_or(|hash| match nodes.get(piece as usize) {
        Some(Some(node)) => *node == hash,
        Some(None) | None => hashes.sha1.is_some(),
    });
    sha1 && sha256
}

/// The pieces that `length` bytes of piece space from `offset` on touch.
fn pieces_of(info: &Info, offset: u64, length: u64) -> std::ops::Range<u32> {
    if length == 0 {
        return 0..0;
    }
    info.geometry.piece_at(offset)..info.geometry.piece_at(offset + length - 1) + 1
}

/// How a file looks from outside, and how many bytes of it can be read.
fn look(file: &FileEntry, root: &Path) -> (FileState, u64) {
    match &file.kind {
        FileKind::Pad => (FileState::Complete, file.length),
        FileKind::Symlink { target } => match fs::read_link(root.join(&file.path)) {
            Ok(text) if text == *target || lead_alike(&root.join(&file.path), &text, target) => {
                (FileState::Complete, 0)
            }
            Ok(_) => (FileState::WrongKind, 0),
            Err(error) => (absent(&error), 0),
        },
        // As whoever writes or sends it would: no link is followed.
        FileKind::Regular => match storage::look(root, &file.path) {
            Ok(metadata) => {
                let actual = metadata.len();
                let state = match actual.cmp(&file.length) {
                    std::cmp::Ordering::Less => FileState::Short { actual },
                    std::cmp::Ordering::Equal => FileState::Damaged,
                    std::cmp::Ordering::Greater => FileState::Long { actual },
                };
                (state, actual.min(file.length))
            }
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => (FileState::WrongKind, 0),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => (FileState::WrongKind, 0),
            Err(error) => (absent(&error), 0),
        },
    }
}

/// Whether a link at `path` with this text ends where one with that text would: where a content was made, links may lead through others.
fn lead_alike(path: &Path, one: &Path, other: &Path) -> bool {
    let end = |text: &Path| path.parent().unwrap_or(path).join(text).canonicalize().ok();
    end(one).is_some_and(|place| end(other) == Some(place))
}

fn absent(error: &io::Error) -> FileState {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => FileState::Missing,
        // Not a link at all.
        io::ErrorKind::InvalidInput => FileState::WrongKind,
        kind => FileState::Unreadable(kind),
    }
}

fn file_report(info: &Info, file: &FileEntry, state: FileState, good: &Bitfield) -> FileReport {
    let end = file.offset + file.length;
    let bytes_good = pieces_of(info, file.offset, file.length)
        .filter(|piece| good.get(*piece))
        .map(|piece| {
            let start = info.geometry.piece_offset(piece);
            end.min(start + u64::from(info.geometry.piece_len(piece))) - start.max(file.offset)
        })
        .sum();
    // The right length was all that could be said of it before.
    let whole = state == FileState::Damaged && bytes_good == file.length;
    FileReport { state: if whole { FileState::Complete } else { state }, bytes_good }
}
