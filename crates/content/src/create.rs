//! Makes a torrent of a file or folder: finds the files, hashes them, writes the metainfo.
//!
//! The same tree with the same options always gives the same info dictionary, byte for byte the one that libtorrent makes
//! (except that it marks links as executable, and sorts files by whole paths where BEP 52 sorts level by level).
//! Hashing uses every core and reads each byte once, for hybrid torrents too.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use anabranch_content::create::{CreateOptions, create};
//!
//! let options = CreateOptions { comment: Some("holiday".into()), ..CreateOptions::default() };
//! let created = create("photos".as_ref(), &options, &AtomicBool::new(false), |done, total| eprintln!("{done} of {total}"))?;
//! std::fs::write("photos.torrent", &created.metainfo)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod layout;
pub(crate) mod scan;
#[cfg(test)]
pub(crate) mod tests;
mod walk;

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use thiserror::Error;

use crate::geometry::BLOCK_LEN;
use crate::info::{InfoHashes, Version};
use crate::metainfo::limits::FILE_LENGTH_MAX;
use crate::metainfo::{Metainfo, MetainfoError};
use layout::{Hashes, Layout};
use scan::scan;
use walk::{Entry, EntryKind, Stamp};

/// Longest piece chosen unasked: longer ones take long to get and so to pass on.
const PIECE_LENGTH_AUTO_MAX: u32 = 16 * 1024 * 1024;
/// Longest piece at all; libtorrent takes none longer.
const PIECE_LENGTH_MAX: u32 = 128 * 1024 * 1024;
/// With the piece length chosen unasked there are at most so many pieces, and more than half of that.
const PIECES_AUTO_MAX: u64 = 2000;
/// Pieces at all: in a hybrid torrent each has 52 bytes of hashes, which with the names have to fit in
/// [`METAINFO_BYTES_MAX`](crate::metainfo::limits::METAINFO_BYTES_MAX).
const PIECES_MAX: u64 = 1 << 20;

/// What goes into a torrent beside the files.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Which generation of the format.
    pub version: Version,
    /// Bytes in a piece, a power of two from 16 KiB to 128 MiB; `None` chooses for 1000 to 2000 pieces.
    pub piece_length: Option<u32>,
    /// Tracker URLs by tier, first tier first (BEP 12).
    pub trackers: Vec<Vec<String>>,
    /// Peers come from the trackers only (BEP 27).
    pub private: bool,
    /// For people.
    pub comment: Option<String>,
    /// The torrent's name instead of that of the file or folder.
    pub name: Option<String>,
    /// "creation date"; `None` leaves it out.
    pub creation_date: Option<SystemTime>,
    /// "created by"; `None` leaves it out.
    pub created_by: Option<String>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self {
            version: Version::Hybrid,
            piece_length: None,
            trackers: Vec::new(),
            private: false,
            comment: None,
            name: None,
            creation_date: None,
            created_by: None,
        }
    }
}

/// A torrent, ready to be written.
#[derive(Clone, Debug)]
pub struct Created {
    /// The bytes of the .torrent file.
    pub metainfo: Vec<u8>,
    /// Info-hashes, as the version has them.
    pub hashes: InfoHashes,
    /// The torrent's name.
    pub name: String,
    /// Bytes of the files together.
    pub length: u64,
    /// Files and links in it.
    pub entry_count: usize,
    /// Bytes in a piece.
    pub piece_length: u32,
    /// Number of pieces.
    pub piece_count: u32,
}

/// Why no torrent was made; all but [`CreateError::Canceled`] name what the user can change.
#[derive(Debug, Error)]
pub enum CreateError {
    /// A file or folder cannot be opened or read.
    #[error("cannot read {path}: {source}; make it readable or leave it out", path = path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Neither file, folder nor link.
    #[error("{path} is {what}, which a torrent cannot hold; leave it out", path = path.display())]
    Special {
        /// Which.
        path: PathBuf,
        /// "a pipe", "a socket" or "a device".
        what: &'static str,
    },
    /// Torrents hold UTF-8 only.
    #[error("the name of {path} is not UTF-8; rename it", path = path.display())]
    NameNotUtf8 {
        /// Which.
        path: PathBuf,
    },
    /// A name that other systems take for a path.
    #[error("the name of {path} is empty or has a backslash, which separates folders on other systems; rename it", path = path.display())]
    NameUnsafe {
        /// Which.
        path: PathBuf,
    },
    /// A symbolic link that leaves the folder.
    #[error("{path} links to {target}, outside of the folder; leave it out or put a copy in its place", path = path.display(), target = target.display())]
    LinkOutside {
        /// The link.
        path: PathBuf,
        /// Its text.
        target: PathBuf,
    },
    /// A symbolic link to nothing.
    #[error("{path} links to {target}, which is not there; remove the link or put its target there", path = path.display(), target = target.display())]
    LinkDangling {
        /// The link.
        path: PathBuf,
        /// Its text.
        target: PathBuf,
    },
    /// A file longer than a Merkle tree may be.
    #[error("{path} has {length} bytes, at most {max} are possible; split it or leave it out", path = path.display(), max = FILE_LENGTH_MAX)]
    FileTooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        length: u64,
    },
    /// Folders nested deeper than readers follow.
    #[error("{path} lies too deep, at most {max} names are possible in a path; move it up or pack it", path = path.display(), max = walk::DEPTH_MAX)]
    TooDeep {
        /// The first folder that is too deep.
        path: PathBuf,
    },
    /// More files than a torrent may hold.
    #[error("{path} holds more than {max} files and folders; share its folders apart or pack them", path = path.display())]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// The limit.
        max: usize,
    },
    /// Nothing to hash.
    #[error("{path} holds no bytes to share; put a file with content there", path = path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// Not a name for a file.
    #[error("{name:?} cannot be a torrent's name; choose a single file name, without slashes")]
    BadName {
        /// The name given.
        name: String,
    },
    /// v2 cannot tell this folder from a single file.
    #[error("{path} is the only file of a folder of the same name, which v2 takes for a single file; share the file or rename it", path = path.display())]
    Ambiguous {
        /// The file.
        path: PathBuf,
    },
    /// Outside of the limits, or not a power of two.
    #[error(
        "piece length {given} is not a power of two from {BLOCK_LEN} to {PIECE_LENGTH_MAX}; choose one, or let it be chosen"
    )]
    BadPieceLength {
        /// The length given.
        given: u32,
    },
    /// The piece length is too short for so much content.
    #[error(
        "with pieces of {piece_length} bytes there are more than {PIECES_MAX} pieces; choose a longer piece length"
    )]
    TooManyPieces {
        /// Bytes in a piece.
        piece_length: u32,
    },
    /// The torrent would be one that no reader takes, ours first.
    #[error("no torrent can hold {path}: {source}; share its parts apart", path = path.display())]
    Unusable {
        /// What was to be shared.
        path: PathBuf,
        /// What a reader would say.
        source: MetainfoError,
    },
    /// Somebody wrote to a file meanwhile.
    #[error("{path} changed while it was hashed; try again when nothing writes to it", path = path.display())]
    Changed {
        /// Which.
        path: PathBuf,
    },
    /// The caller asked to stop.
    #[error("canceled")]
    Canceled,
}

/// Makes a torrent of `path`. `progress` is told bytes done and bytes in all; setting `cancel` ends it early.
pub fn create(
    path: &Path,
    options: &CreateOptions,
    cancel: &AtomicBool,
    mut progress: impl FnMut(u64, u64),
) -> Result<Created, CreateError> {
    let (mut entries, multi_file) = walk::walk(path, walk::ENTRIES_MAX)?;
    // Sparse files can claim more than 64 bits together; the layout refuses them then.
    let length = entries.iter().map(Entry::length).fold(0, u64::saturating_add);
    if length == 0 {
        return Err(CreateError::Empty { path: path.into() });
    }
    let name = name_of(path, options, &entries, multi_file)?;
    if let ([only], false) = (&mut entries[..], multi_file) {
        // BEP 52, "file tree": the one entry of a single-file torrent is named like the torrent.
        only.components = vec![name.clone()];
    }
    let piece_length = piece_length(options, length)?;
    let layout = Layout::new(entries, multi_file, options.version, piece_length)?;
    let hashes = hash_all(&layout, cancel, &mut progress)?;
    let info = layout.info(&name, &hashes, options.private);
    let metainfo = layout.metainfo(&info, &hashes, options);
    // What nobody can read back is not given out: names that are too long together, too many links.
    let parsed = Metainfo::parse(&metainfo).map_err(|source| CreateError::Unusable { path: path.into(), source })?;
    Ok(Created {
        hashes: parsed.info.hashes,
        name,
        length,
        entry_count: layout.entries.len(),
        piece_length,
        piece_count: layout.plan.pieces.len() as u32,
        metainfo,
    })
}

fn name_of(path: &Path, options: &CreateOptions, entries: &[Entry], multi_file: bool) -> Result<String, CreateError> {
    let name = match &options.name {
        Some(name) => name.clone(),
        None => {
            let real =
                fs::canonicalize(path).map_err(|source| CreateError::Unreadable { path: path.into(), source })?;
            let name = real.file_name().unwrap_or_default().to_str();
            name.ok_or_else(|| CreateError::NameNotUtf8 { path: real.clone() })?.to_owned()
        }
    };
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
        return Err(CreateError::BadName { name });
    }
    match entries {
        // BEP 52, "interpreting paths": a file tree of one file that is named like the torrent is a single-file torrent.
        [only] if multi_file && options.version != Version::V1 && only.components == [name.as_str()] => {
            Err(CreateError::Ambiguous { path: only.path.clone() })
        }
        _ => Ok(name),
    }
}

fn piece_length(options: &CreateOptions, length: u64) -> Result<u32, CreateError> {
    let chosen = match options.piece_length {
        Some(given) if !given.is_power_of_two() || !(BLOCK_LEN..=PIECE_LENGTH_MAX).contains(&given) => {
            return Err(CreateError::BadPieceLength { given });
        }
        Some(given) => given,
        None => {
            let shortest = length.div_ceil(PIECES_AUTO_MAX).next_power_of_two();
            shortest.clamp(u64::from(BLOCK_LEN), u64::from(PIECE_LENGTH_AUTO_MAX)) as u32
        }
    };
    Ok(chosen)
}

fn hash_all(layout: &Layout, cancel: &AtomicBool, progress: &mut impl FnMut(u64, u64)) -> Result<Hashes, CreateError> {
    let plan = &layout.plan;
    let mut pieces = vec![[0; 20]; if plan.sha1 { plan.pieces.len() } else { 0 }];
    let mut nodes = vec![[0; 32]; if plan.sha256 { plan.pieces.len() } else { 0 }];
    let (mut done, mut missing, mut fault) = (0, plan.pieces.len(), None);
    // Padding is hashed for v1, and not touched for v2.
    let total = if plan.sha1 { plan.total } else { plan.extents.iter().map(|extent| extent.length).sum() };
    scan(plan, cancel, |report| {
        done += report.bytes;
        progress(done, total);
        for (piece, result) in report.pieces {
            let hashes = match result {
                Ok(hashes) => hashes,
                Err(error) => {
                    fault = Some(error);
                    return ControlFlow::Break(());
                }
            };
            missing -= 1;
            pieces.get_mut(piece as usize).zip(hashes.sha1).into_iter().for_each(|(place, hash)| *place = hash);
            nodes.get_mut(piece as usize).zip(hashes.sha256).into_iter().for_each(|(place, hash)| *place = hash);
        }
        ControlFlow::Continue(())
    });
    if let Some(fault) = fault {
        let path = plan.extents[fault.extent].path.clone();
        return Err(match fault.error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => CreateError::Changed { path },
            _ => CreateError::Unreadable { path, source: fault.error },
        });
    }
    if missing > 0 || cancel.load(Ordering::Relaxed) {
        return Err(CreateError::Canceled);
    }
    refuse_changed(&layout.entries)?;
    let mut layers = vec![Vec::new(); layout.entries.len()];
    if plan.sha256 {
        for (extent, entry) in plan.extents.iter().zip(&layout.extent_entries) {
            let first = (extent.offset / u64::from(plan.piece_length)) as usize;
            let count = extent.length.div_ceil(u64::from(plan.piece_length)) as usize;
            layers[*entry] = nodes[first..first + count].to_vec();
        }
    }
    Ok(Hashes { pieces, layers })
}

/// A file that was written to while it was read may have hashes of neither its old nor its new content.
fn refuse_changed(entries: &[Entry]) -> Result<(), CreateError> {
    for entry in entries {
        if let EntryKind::File { stamp, .. } = &entry.kind
            && !fs::metadata(&entry.path).is_ok_and(|now| Stamp::of(&now) == *stamp)
        {
            return Err(CreateError::Changed { path: entry.path.clone() });
        }
    }
    Ok(())
}
