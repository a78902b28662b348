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

mod encode;
pub(crate) mod scan;
#[cfg(test)]
pub(crate) mod tests;
mod walk;

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use thiserror::Error;

use crate::geometry::BLOCK_LEN;
use crate::hash::{sha1, sha256};
use crate::info::{InfoHashes, Sha1Digest, Sha256Digest, Version};
use crate::merkle;
use encode::{Dict, Value};
use scan::{Extent, Plan, scan};
use walk::{Entry, EntryKind, Stamp};

/// Longest piece chosen unasked: longer ones take long to get and so to pass on.
const PIECE_LENGTH_AUTO_MAX: u32 = 16 * 1024 * 1024;
/// Longest piece at all; libtorrent takes none longer.
const PIECE_LENGTH_MAX: u32 = 128 * 1024 * 1024;
/// With the piece length chosen unasked there are at most so many pieces, and more than half of that.
const PIECES_AUTO_MAX: u64 = 2000;
/// Pieces at all: 20 bytes a piece must fit what peers accept as metadata (BEP 9), and libtorrent takes no more.
const PIECES_MAX: u64 = 1 << 21;

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
    /// More files than a torrent may hold.
    #[error("{path} holds more than {max} files; share its folders apart or pack them", path = path.display())]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// The limit.
        max: usize,
    },
    /// Nothing to hash.
    #[error("{path} holds no bytes to share", path = path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// Not a name for a file.
    #[error("{name:?} cannot be a torrent's name: it must be a single file name")]
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
    #[error("piece length {given} is not a power of two from 16384 to 134217728")]
    BadPieceLength {
        /// The length given.
        given: u32,
    },
    /// The piece length is too short for so much content.
    #[error("{count} pieces are more than {PIECES_MAX}; choose a longer piece length")]
    TooManyPieces {
        /// Pieces there would be.
        count: u64,
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
    let (entries, multi_file) = walk::walk(path, walk::ENTRIES_MAX)?;
    let length = entries.iter().map(Entry::length).sum();
    if length == 0 {
        return Err(CreateError::Empty { path: path.into() });
    }
    let name = name_of(path, options, &entries, multi_file)?;
    let piece_length = piece_length(options, length)?;
    let layout = Layout::new(entries, multi_file, options.version, piece_length)?;
    let hashes = hash_all(&layout, cancel, &mut progress)?;
    let mut info = layout.info(&hashes, options.private);
    info.insert(b"name".to_vec(), Value::text(&name));
    let info = Value::Dict(info).encode();
    let hashes_of_info =
        InfoHashes { v1: layout.plan.sha1.then(|| sha1(&info)), v2: layout.plan.sha256.then(|| sha256(&info)) };
    Ok(Created {
        hashes: hashes_of_info,
        name,
        length,
        entry_count: layout.entries.len(),
        piece_length,
        piece_count: layout.plan.pieces.len() as u32,
        metainfo: layout.metainfo(info, &hashes, options),
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

/// Where every file lies in piece space.
struct Layout {
    entries: Vec<Entry>,
    multi_file: bool,
    /// Zeros after the file of the same position (BEP 47).
    pads: Vec<u64>,
    plan: Plan,
    /// The entry of each extent of the plan.
    extent_entries: Vec<usize>,
}

/// Everything that was hashed.
struct Hashes {
    pieces: Vec<Sha1Digest>,
    /// Of every entry: its piece layer; empty for links and empty files.
    layers: Vec<Vec<Sha256Digest>>,
}

impl Layout {
    fn new(entries: Vec<Entry>, multi_file: bool, version: Version, piece_length: u32) -> Result<Self, CreateError> {
        let align = version != Version::V1;
        let (mut pads, mut extents, mut extent_entries) = (Vec::new(), Vec::new(), Vec::new());
        let mut offset = 0;
        for (index, entry) in entries.iter().enumerate() {
            let length = entry.length();
            if length > 0 {
                extents.push(Extent { offset, length, path: entry.path.clone() });
                extent_entries.push(index);
            }
            offset += length;
            // The last file is padded too, as BEP 52's reference creator and libtorrent do, unless it is the only one.
            let pad = offset.next_multiple_of(u64::from(piece_length)) - offset;
            pads.push(if align && entries.len() > 1 { pad } else { 0 });
            offset += pads[index];
        }
        let count = offset.div_ceil(u64::from(piece_length));
        if count > PIECES_MAX {
            return Err(CreateError::TooManyPieces { count });
        }
        let plan = Plan {
            extents,
            piece_length,
            total: offset,
            pieces: (0..count as u32).collect(),
            sha1: version != Version::V2,
            sha256: version != Version::V1,
        };
        Ok(Self { entries, multi_file, pads, plan, extent_entries })
    }

    /// The info dictionary without its name.
    fn info(&self, hashes: &Hashes, private: bool) -> Dict {
        let mut info = Dict::new();
        let mut put = |key: &str, value| info.insert(key.into(), value);
        put("piece length", Value::Integer(self.plan.piece_length.into()));
        if private {
            put("private", Value::Integer(1));
        }
        if self.plan.sha256 {
            put("meta version", Value::Integer(2));
            put("file tree", self.file_tree(hashes));
        }
        if self.plan.sha1 {
            put("pieces", Value::Bytes(hashes.pieces.as_flattened().to_vec()));
            if self.multi_file {
                put("files", self.file_list());
            } else {
                put("length", Value::Integer(self.entries[0].length()));
                if let Some(attr) = attributes(&self.entries[0]) {
                    put("attr", attr);
                }
            }
        }
        info
    }

    /// BEP 3 "files", with BEP 47 padding.
    fn file_list(&self) -> Value {
        let mut files = Vec::new();
        for (entry, pad) in self.entries.iter().zip(&self.pads) {
            let mut file = Dict::from([
                (b"length".to_vec(), Value::Integer(entry.length())),
                (b"path".to_vec(), texts(&entry.components)),
            ]);
            file.extend(attributes(entry).map(|attr| (b"attr".to_vec(), attr)));
            file.extend(link_target(entry));
            files.push(Value::Dict(file));
            if *pad > 0 {
                files.push(Value::Dict(Dict::from([
                    (b"attr".to_vec(), Value::text("p")),
                    (b"length".to_vec(), Value::Integer(*pad)),
                    // BEP 47: "The recommended path is [".pad", "N"]".
                    (b"path".to_vec(), Value::List(vec![Value::text(".pad"), Value::text(&pad.to_string())])),
                ])));
            }
        }
        Value::List(files)
    }

    /// BEP 52 "file tree".
    fn file_tree(&self, hashes: &Hashes) -> Value {
        let mut tree = Dict::new();
        for (entry, layer) in self.entries.iter().zip(&hashes.layers) {
            let mut file = Dict::new();
            file.extend(attributes(entry).map(|attr| (b"attr".to_vec(), attr)));
            match link_target(entry) {
                Some(target) => file.extend([target]),
                None => file.extend([(b"length".to_vec(), Value::Integer(entry.length()))]),
            }
            if !layer.is_empty() {
                file.insert(b"pieces root".to_vec(), Value::Bytes(self.root(layer).to_vec()));
            }
            let mut folder = &mut tree;
            for component in &entry.components {
                let slot = folder.entry(component.clone().into_bytes()).or_insert_with(|| Value::Dict(Dict::new()));
                let Value::Dict(below) = slot else { unreachable!("only dictionaries were put in above") };
                folder = below;
            }
            folder.insert(Vec::new(), Value::Dict(file));
        }
        Value::Dict(tree)
    }

    fn root(&self, layer: &[Sha256Digest]) -> Sha256Digest {
        match layer {
            [root] => *root,
            _ => merkle::root_from_layer(layer, self.plan.piece_length / BLOCK_LEN),
        }
    }

    /// The whole file around the encoded info dictionary.
    fn metainfo(&self, info: Vec<u8>, hashes: &Hashes, options: &CreateOptions) -> Vec<u8> {
        let mut dict = Dict::new();
        let mut put = |key: &str, value| dict.insert(key.into(), value);
        put("info", Value::Raw(info));
        let tiers: Vec<&Vec<String>> = options.trackers.iter().filter(|tier| !tier.is_empty()).collect();
        if let Some(first) = tiers.first() {
            put("announce", Value::text(&first[0]));
        }
        if tiers.iter().map(|tier| tier.len()).sum::<usize>() > 1 {
            // BEP 12
            put("announce-list", Value::List(tiers.iter().map(|tier| texts(tier)).collect()));
        }
        if let Some(comment) = &options.comment {
            put("comment", Value::text(comment));
        }
        if let Some(created_by) = &options.created_by {
            put("created by", Value::text(created_by));
        }
        if let Some(since) = options.creation_date.and_then(|date| date.duration_since(UNIX_EPOCH).ok()) {
            put("creation date", Value::Integer(since.as_secs()));
        }
        if self.plan.sha256 {
            // BEP 52: one string "for each file in the file tree that is larger than the piece size".
            let layers = hashes.layers.iter().filter(|layer| layer.len() > 1);
            let layers = layers.map(|layer| (self.root(layer).to_vec(), Value::Bytes(layer.as_flattened().to_vec())));
            put("piece layers", Value::Dict(layers.collect()));
        }
        Value::Dict(dict).encode()
    }
}

fn texts(texts: &[String]) -> Value {
    Value::List(texts.iter().map(|text| Value::text(text)).collect())
}

/// BEP 47 "attr".
fn attributes(entry: &Entry) -> Option<Value> {
    match entry.kind {
        EntryKind::File { executable: true, .. } => Some(Value::text("x")),
        EntryKind::File { .. } => None,
        EntryKind::Symlink { .. } => Some(Value::text("l")),
    }
}

/// BEP 47 "symlink path".
fn link_target(entry: &Entry) -> Option<(Vec<u8>, Value)> {
    match &entry.kind {
        EntryKind::File { .. } => None,
        EntryKind::Symlink { target } => Some((b"symlink path".to_vec(), texts(target))),
    }
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
