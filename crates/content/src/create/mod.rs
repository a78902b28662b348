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
mod rejections;
pub(crate) mod scan;
mod survey;
#[cfg(test)]
pub(crate) mod tests;
mod walk;

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use thiserror::Error;

use crate::geometry::BLOCK_LEN;
use crate::info::{FileKind, Info, Version};
use crate::metainfo::{BITCOMET_PAD, Metainfo, MetainfoError, NameRules};
use layout::{Hashes, Layout};
pub use rejections::{REJECTIONS_TOLD_MAX, Rejection, Rejections};
use scan::scan;
pub use survey::{Filter, Survey, SurveyEntry};
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
    /// "source" in the info dictionary: private trackers tell their torrents of one content apart by it.
    pub source: Option<String>,
    /// Carries the time of each file's last change ("mtime", as libtorrent has it).
    pub times: bool,
    /// HTTP servers that have the files (BEP 19, "url-list").
    pub web_seeds: Vec<String>,
    /// What is left out; `None` leaves nothing out.
    pub filter: Option<Filter>,
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
            source: None,
            times: false,
            web_seeds: Vec::new(),
            filter: None,
        }
    }
}

/// A torrent, ready to be written.
#[derive(Clone, Debug)]
pub struct Created {
    /// The bytes of the .torrent file.
    pub metainfo: Vec<u8>,
    /// The same, parsed; each file has the path at which it lies below [`Survey::dir`].
    pub torrent: Metainfo,
    /// What is in it.
    pub survey: Survey,
}

/// Why no torrent was made; all but [`CreateError::Canceled`] name what the user can change.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The path itself cannot be opened, or a file can no longer be read.
    #[error("cannot read {path}: {source}; make it readable or leave it out", path = path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Parts that no torrent can carry.
    #[error("{0}")]
    Rejected(Box<Rejections>),
    /// Torrents hold UTF-8 only.
    #[error("the name of {path} is not UTF-8; rename it, or give the torrent another with --name", path = path.display())]
    NameNotUtf8 {
        /// Which.
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
    /// The filter leaves nothing to hash.
    #[error(
        "what --exclude and --include leave of {path} holds no bytes to share; change or leave out a pattern",
        path = path.display()
    )]
    AllExcluded {
        /// What was to be shared.
        path: PathBuf,
    },
    /// Not a name for a file.
    #[error(
        "{name:?} cannot be a torrent's name; choose a single file name, without slashes, and none of BitComet's padding"
    )]
    BadName {
        /// The name given.
        name: String,
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
    let (layout, survey) = prepare(path, options)?;
    let hashes = hash_all(&layout, cancel, &mut progress)?;
    let info = layout.info(&survey.name, &hashes, options);
    let metainfo = layout.metainfo(&info, &hashes, options);
    // What nobody can read back is not given out: names that are too long together, too many links.
    let torrent = Metainfo::parse_for(&metainfo, &NameRules::EXACT);
    let mut torrent = torrent.map_err(|source| CreateError::Unusable { path: path.into(), source })?;
    torrent.info = Arc::new(as_on_disk(&torrent.info, &layout.entries, &survey.dir));
    Ok(Created { metainfo, torrent, survey })
}

/// What [`create`] would put into a torrent of `path`. Nothing is hashed.
pub fn survey(path: &Path, options: &CreateOptions) -> Result<Survey, CreateError> {
    prepare(path, options).map(|(_, survey)| survey)
}

fn prepare(path: &Path, options: &CreateOptions) -> Result<(Layout, Survey), CreateError> {
    let walk::Found { mut entries, mut multi_file, empty_folders, excluded, own_records } =
        walk::walk(path, options, walk::ENTRIES_MAX)?;
    // Sparse files can claim more than 64 bits together; the layout refuses them then.
    let length = entries.iter().map(Entry::length).fold(0, u64::saturating_add);
    if length == 0 {
        let path = path.into();
        return Err(if excluded > 0 { CreateError::AllExcluded { path } } else { CreateError::Empty { path } });
    }
    let mut real = fs::canonicalize(path).map_err(|source| CreateError::Unreadable { path: path.into(), source })?;
    let mut lone_file = false;
    // BEP 52, "interpreting paths": v2 cannot tell a folder with one file in it from the file.
    if let ([only], true, Version::V2) = (&entries[..], multi_file, options.version)
        && only.components.len() == 1
    {
        real = only.path.clone();
        (multi_file, lone_file) = (false, true);
    }
    let name = name_of(&real, options)?;
    if let ([only], false) = (&mut entries[..], multi_file) {
        // BEP 52, "file tree": the one entry of a single-file torrent is named like the torrent.
        only.components = vec![name.clone()];
    }
    let piece_length = piece_length(options, length)?;
    let layout = Layout::new(entries, multi_file, options.version, piece_length)?;
    let dir = real.parent().unwrap_or(&real).to_path_buf();
    let below = |path: &PathBuf| path.strip_prefix(&dir).unwrap_or(path).to_path_buf();
    let survey = Survey {
        length,
        piece_length,
        piece_count: layout.plan.pieces.len() as u32,
        entries: layout.entries.iter().map(|entry| SurveyEntry::of(entry, multi_file.then_some(&*name))).collect(),
        empty_folders: empty_folders.iter().map(below).collect(),
        excluded,
        own_records,
        lone_file,
        dir,
        name,
    };
    Ok((layout, survey))
}

/// `info` with each file where it lies below `dir`, whatever readers will call it.
fn as_on_disk(info: &Info, entries: &[Entry], dir: &Path) -> Info {
    let mut info = info.clone();
    let files = info.files.iter_mut().filter(|file| file.kind != FileKind::Pad);
    for (file, entry) in files.zip(entries) {
        file.path = entry.path.strip_prefix(dir).unwrap_or(&entry.path).to_path_buf();
    }
    info
}

fn name_of(real: &Path, options: &CreateOptions) -> Result<String, CreateError> {
    let name = match &options.name {
        Some(name) => name.clone(),
        None => {
            let name = real.file_name().unwrap_or_default().to_str();
            name.ok_or_else(|| CreateError::NameNotUtf8 { path: real.into() })?.to_owned()
        }
    };
    let pad = options.version != Version::V2 && name.contains(BITCOMET_PAD);
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) || pad {
        return Err(CreateError::BadName { name });
    }
    Ok(name)
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
