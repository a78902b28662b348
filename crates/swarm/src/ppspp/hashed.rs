//! A file's tree, for whoever shares it: made by hashing, or found where an earlier run left it.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_content::hex;
use anabranch_ppspp::hash::{Digest, HashFunction};
use anabranch_ppspp::link::Link;
use anabranch_ppspp::merkle::{MemoryNodes, NodeStore, Sidecar, Tree};
use anabranch_ppspp::wire::{Addressing, Dialect, Integrity, Mismatch, SwarmParams};

use super::nodes::{FileNodes, Growing, Nodes};

/// Length of a chunk where nobody says: RFC 7574's, which fits every network.
pub const CHUNK_LEN_DEFAULT: u32 = 1024;
/// Bytes read and hashed at once: enough chunks for every lane, few enough for the cache.
const BATCH_LEN: usize = 1024 * 1024;

/// How a file is divided and hashed.
#[derive(Clone, Debug)]
pub struct HashOptions {
    /// Length of a chunk in bytes, 1 to [`anabranch_ppspp::wire::CHUNK_LEN_MAX`].
    pub chunk_len: u32,
    /// What its peers speak: libswift knows SHA-1 alone.
    pub dialect: Dialect,
    /// Folder where trees are kept from run to run; `None` keeps none.
    pub tree_dir: Option<PathBuf>,
}

/// A file with its tree.
#[derive(Clone, Debug)]
pub struct Hashed {
    /// What peers have to know of it: they and trackers are still to be named.
    pub link: Link,
    /// The folder that the file is in.
    pub dir: PathBuf,
    tree: Place,
}

#[derive(Clone, Debug)]
enum Place {
    File(PathBuf),
    Memory(Arc<Tree<MemoryNodes>>),
}

/// Why a file cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// It cannot be read.
    #[error("cannot read {}: {source}; make it readable", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no file.
    #[error("{} is no file: PPSPP streams one file at a time; pack a folder first, or share it as a torrent", .0.display())]
    NoFile(PathBuf),
    /// There is nothing in it.
    #[error("{} is empty: there is nothing to hash, and so nothing to name it by", .0.display())]
    Empty(PathBuf),
    /// Its name is not text.
    #[error("the name of {} is not UTF-8, which a link needs: rename it", .0.display())]
    Name(PathBuf),
    /// Somebody writes to it.
    #[error("{} changed while it was hashed: share it when it is complete", .0.display())]
    Changed(PathBuf),
    /// Its tree cannot be kept.
    #[error("cannot write the tree of hashes to {}: {source}; make room, or name another folder with XDG_CACHE_HOME", path.display())]
    Keep {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Such chunks cannot be.
    #[error("{0}")]
    Params(#[from] Mismatch),
    /// The caller asked to stop.
    #[error("canceled")]
    Canceled,
}

/// Hashes the file at `path`, or finds its tree. Blocks, as long as hashing takes; `progress` hears of bytes done and of all.
pub fn hash_file(
    path: &Path,
    options: &HashOptions,
    cancel: &AtomicBool,
    mut progress: impl FnMut(u64, u64),
) -> Result<Hashed, HashError> {
    let failed = |source| HashError::Read { path: path.into(), source };
    let meta = std::fs::metadata(path).map_err(failed)?;
    if !meta.is_file() {
        return Err(HashError::NoFile(path.into()));
    }
    if meta.len() == 0 {
        return Err(HashError::Empty(path.into()));
    }
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| HashError::Name(path.into()))?;
    let hash = if options.dialect == Dialect::Rfc7574 { HashFunction::Sha256 } else { HashFunction::Sha1 };
    let kept = options.tree_dir.as_ref().map(|dir| dir.join(tree_name(path, &meta, (options.chunk_len, hash))));
    let found = kept.as_deref().and_then(FileNodes::open_found).map(|nodes| *nodes.sidecar());
    let wanted = (meta.len(), options.chunk_len, hash);
    let found = found.filter(|found| (found.content_len, found.chunk_len, found.hash) == wanted);
    let (sidecar, tree) = match (found, kept) {
        (Some(sidecar), Some(kept)) => (sidecar, Place::File(kept)),
        (_, kept) => {
            let nameless =
                Sidecar { hash, chunk_len: options.chunk_len.max(1), content_len: meta.len(), root: hash.zero() };
            // Whoever cannot keep the tree has it in memory, and hashes again the next time.
            match kept.and_then(|kept| Some((Growing::begin(&kept, nameless).ok()?, kept))) {
                Some((mut growing, kept)) => {
                    let tree = Tree::growing(hash, growing.take());
                    let tree = read(path, &meta, nameless, (tree, |_| {}), cancel, &mut progress)?;
                    let sidecar = Sidecar { root: root(path, &tree)?, ..nameless };
                    let source = |source| HashError::Keep { path: kept.clone(), source };
                    growing.finish(tree.nodes(), &kept, &sidecar).map_err(source)?;
                    (sidecar, Place::File(kept))
                }
                None => {
                    let tree = Tree::growing(hash, MemoryNodes::new(hash));
                    let tree = read(path, &meta, nameless, (tree, |_| {}), cancel, &mut progress)?;
                    (Sidecar { root: root(path, &tree)?, ..nameless }, Place::Memory(Arc::new(tree)))
                }
            }
        }
    };
    let chunks = sidecar.chunk_count();
    let addressing =
        if chunks <= Addressing::Chunks32.chunks_max(None) { Addressing::Chunks32 } else { Addressing::Chunks64 };
    let root = sidecar.root.as_bytes();
    let params = SwarmParams::new(root, Integrity::MerkleTree, sidecar.hash, addressing, Some(options.chunk_len))?;
    let link = Link {
        params,
        dialect: options.dialect,
        content_len: Some(meta.len()),
        peers: Vec::new(),
        trackers: Vec::new(),
        name: Some(name.to_owned()),
        secure: None,
    };
    let dir = path.parent().unwrap_or(Path::new("."));
    Ok(Hashed { link, dir: dir.into(), tree })
}

/// Whether the file at `path` is the one that a link names, as far as its hash tells: every byte is read. `None` where a link has no
/// hash of a file: that of a live stream, or of one whose bytes nobody protects. Blocks, as long as hashing takes.
pub fn is_named_by(
    link: &Link,
    path: &Path,
    cancel: &AtomicBool,
    mut progress: impl FnMut(u64, u64),
) -> Result<Option<bool>, HashError> {
    let hash = link.params.hash();
    let root = Some(&link.params).filter(|params| params.integrity() == Integrity::MerkleTree);
    let root = root.and_then(|params| hash.digest(params.swarm_id()));
    let (Some(root), Some(chunk_len)) = (root, link.params.chunk_len()) else { return Ok(None) };
    let meta = std::fs::metadata(path).map_err(|source| HashError::Read { path: path.into(), source })?;
    if !meta.is_file() {
        return Err(HashError::NoFile(path.into()));
    }
    if link.content_len.is_some_and(|len| len != meta.len()) || meta.len() == 0 {
        return Ok(Some(false));
    }
    let sidecar = Sidecar { hash, chunk_len, content_len: meta.len(), root };
    // Of what is complete, only the peaks are needed for what comes: a file of any size is hashed in little memory.
    let keep_peaks = |tree: &mut Tree<MemoryNodes>| {
        let mut nodes = MemoryNodes::new(hash);
        tree.peaks().iter().for_each(|(bin, digest)| nodes.put(*bin, digest));
        *tree.nodes_mut() = nodes;
    };
    let tree = Tree::growing(hash, MemoryNodes::new(hash));
    let tree = read(path, &meta, sidecar, (tree, keep_peaks), cancel, &mut progress)?;
    Ok(Some(tree.root() == Some(root)))
}

impl Hashed {
    /// Its tree, to serve from. Blocks for a moment.
    pub(crate) fn tree(&self) -> Option<Tree<Nodes>> {
        let hash = self.link.params.hash();
        let root = hash.digest(self.link.params.swarm_id())?;
        let chunks = self.link.content_len?.div_ceil(self.link.params.chunk_len()?.into());
        let nodes = match &self.tree {
            Place::File(path) => Nodes::File(FileNodes::open_found(path).filter(|nodes| nodes.sidecar().root == root)?),
            Place::Memory(tree) => Nodes::Memory(tree.nodes().clone()),
        };
        Some(Tree::with_root(hash, root, Some(chunks), nodes))
    }
}

/// What a file's tree is called: by all that would have it be another. A name says nothing to who sees it.
fn tree_name(path: &Path, meta: &Metadata, (chunk_len, hash): (u32, HashFunction)) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut key = path.as_os_str().as_encoded_bytes().to_vec();
    for number in [meta.len(), meta.ino(), meta.dev(), meta.mtime() as u64, meta.mtime_nsec() as u64, chunk_len.into()]
    {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key.push(hash.to_u8());
    format!("{}.tree", hex::encode(&HashFunction::Sha256.hash(&key).as_bytes()[..16]))
}

fn root(path: &Path, tree: &Tree<impl NodeStore>) -> Result<Digest, HashError> {
    tree.root().ok_or_else(|| HashError::Changed(path.into()))
}

fn read<S: NodeStore>(
    path: &Path,
    meta: &Metadata,
    sidecar: Sidecar,
    (mut tree, mut after_batch): (Tree<S>, impl FnMut(&mut Tree<S>)),
    cancel: &AtomicBool,
    progress: &mut impl FnMut(u64, u64),
) -> Result<Tree<S>, HashError> {
    let failed = |source| HashError::Read { path: path.into(), source };
    let mut file = File::open(path).map_err(failed)?;
    let chunk_len = sidecar.chunk_len as usize;
    let mut batch = vec![0; BATCH_LEN.next_multiple_of(chunk_len)];
    let (mut done, mut leaves) = (0, Vec::new());
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(HashError::Canceled);
        }
        let mut len = 0;
        while len < batch.len() {
            match file.read(&mut batch[len..]) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        if len == 0 || done + len as u64 > meta.len() {
            break;
        }
        leaves.clear();
        sidecar.hash.hash_many(&batch[..len].chunks(chunk_len).collect::<Vec<_>>(), &mut leaves);
        tree.extend(&leaves);
        after_batch(&mut tree);
        done += len as u64;
        progress(done, meta.len());
    }
    let after = file.metadata().map_err(failed)?;
    let stamp = |meta: &Metadata| (meta.len(), meta.mtime(), meta.mtime_nsec());
    if done == meta.len() && stamp(&after) == stamp(meta) { Ok(tree) } else { Err(HashError::Changed(path.into())) }
}
