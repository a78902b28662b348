//! The tree of a file or a folder, for whoever shares it: made by hashing, or found where an earlier run left it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_content::create::{CreateError, CreateOptions, Filter, Survey, survey};
use anabranch_content::hex;
use anabranch_content::info::{Info, Version};
use anabranch_ppspp::hash::{Digest, HashFunction};
use anabranch_ppspp::link::Link;
use anabranch_ppspp::manifest::{self, Entry, EntryKind};
use anabranch_ppspp::merkle::{MemoryNodes, NodeStore, Sidecar, Tree};
use anabranch_ppspp::wire::{Addressing, Dialect, Integrity, SwarmParams};

use super::describe::describe_folder;
use super::error::HashError;
use super::nodes::{FileNodes, Growing, Nodes};
use super::parts::{Part, Parts};

/// Length of a chunk where nobody says: RFC 7574's, which fits every network.
pub const CHUNK_LEN_DEFAULT: u32 = 1024;
/// Bytes read and hashed at once: enough chunks for every lane, few enough for the cache.
const BATCH_LEN: usize = 1024 * 1024;

/// How content is divided and hashed.
#[derive(Clone, Debug)]
pub struct HashOptions {
    /// Length of a chunk in bytes, 1 to [`anabranch_ppspp::wire::CHUNK_LEN_MAX`].
    pub chunk_len: u32,
    /// What its peers speak: libswift knows SHA-1 alone.
    pub dialect: Dialect,
    /// Folder where trees are kept from run to run; `None` keeps none.
    pub tree_dir: Option<PathBuf>,
    /// What of a folder is left out; `None` leaves nothing out.
    pub filter: Option<Filter>,
}

/// A file or a folder with its tree.
#[derive(Clone, Debug)]
pub struct Hashed {
    /// What peers have to know of it: they and trackers are still to be named.
    pub link: Link,
    /// The folder that the file or the folder is in.
    pub dir: PathBuf,
    /// Of a folder: what is shared of it.
    pub folder: Option<Arc<Folder>>,
    tree: Place,
}

/// What is shared of a folder.
#[derive(Debug)]
pub struct Folder {
    /// What was found in it, and what of that is left out.
    pub survey: Survey,
    /// Its files, as they are called where they lie.
    pub(crate) info: Arc<Info>,
    /// The list of them, as it stands in front of the content.
    pub(crate) manifest: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Place {
    File(PathBuf),
    Memory(Arc<Tree<MemoryNodes>>),
}

/// What is hashed: the parts of the content, and of a folder the list that is the first of them.
struct Content {
    name: String,
    dir: PathBuf,
    parts: Parts,
    /// With the length of the list, which the content has zeros behind.
    folder: Option<(Survey, Vec<u8>)>,
}

/// Hashes the file or folder at `path`, or finds its tree. Blocks, as long as hashing takes; `progress` hears of bytes done and of all.
pub fn hash_path(
    path: &Path,
    options: &HashOptions,
    cancel: &AtomicBool,
    mut progress: impl FnMut(u64, u64),
) -> Result<Hashed, HashError> {
    let Content { name, dir, parts, folder } = find(path, options.chunk_len, options.filter.clone())?;
    let hash = if options.dialect == Dialect::Rfc7574 { HashFunction::Sha256 } else { HashFunction::Sha1 };
    let kept = options.tree_dir.as_ref().map(|dir| dir.join(tree_name(path, &parts, (options.chunk_len, hash))));
    let wanted = (parts.len(), options.chunk_len, hash);
    let found = kept.as_deref().and_then(|kept| find_tree(kept, wanted, cancel));
    let (sidecar, tree) = match (found, kept) {
        (Some(sidecar), Some(kept)) => (sidecar, Place::File(kept)),
        (_, kept) => {
            let nameless =
                Sidecar { hash, chunk_len: options.chunk_len.max(1), content_len: parts.len(), root: hash.zero() };
            // Whoever cannot keep the tree has it in memory, and hashes again the next time.
            match kept.and_then(|kept| Some((Growing::begin(&kept, nameless).ok()?, kept))) {
                Some((mut growing, kept)) => {
                    let tree = Tree::growing(hash, growing.take());
                    let tree = read(&parts, nameless, (tree, |_| {}), cancel, &mut progress)?;
                    let sidecar = Sidecar { root: root(path, &tree)?, ..nameless };
                    let source = |source| HashError::Keep { path: kept.clone(), source };
                    growing.finish(tree.nodes(), &kept, &sidecar).map_err(source)?;
                    (sidecar, Place::File(kept))
                }
                None => {
                    let tree = Tree::growing(hash, MemoryNodes::new(hash));
                    let tree = read(&parts, nameless, (tree, |_| {}), cancel, &mut progress)?;
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
        content_len: Some(parts.len()),
        // No longer than what fits.
        manifest_len: folder.as_ref().and_then(|(_, manifest)| u32::try_from(manifest.len()).ok()),
        peers: Vec::new(),
        trackers: Vec::new(),
        name: Some(name),
        secure: None,
    };
    let folder = match folder {
        Some((survey, manifest)) => Some(Arc::new(described(path, &link, survey, manifest)?)),
        None => None,
    };
    Ok(Hashed { link, dir, folder, tree })
}

/// The tree that an earlier run left at `kept`, where it is of such a content and every node of it is right. What is not would be served to
/// nobody, or to peers that take us for a liar.
fn find_tree(kept: &Path, wanted: (u64, u32, HashFunction), cancel: &AtomicBool) -> Option<Sidecar> {
    let nodes = FileNodes::open_found(kept)?;
    let sidecar = *nodes.sidecar();
    if (sidecar.content_len, sidecar.chunk_len, sidecar.hash) != wanted {
        return None;
    }
    let tree = Tree::with_root(sidecar.hash, sidecar.root, Some(sidecar.chunk_count()), nodes);
    tree.check(|| !cancel.load(Ordering::Relaxed)).then_some(sidecar)
}

/// What is at `path`, to be hashed in chunks of this length; of a folder, what the filter lets through.
fn find(path: &Path, chunk_len: u32, filter: Option<Filter>) -> Result<Content, HashError> {
    let meta = std::fs::metadata(path).map_err(|source| HashError::Read { path: path.into(), source })?;
    if meta.is_dir() {
        return find_folder(path, chunk_len, filter);
    }
    if !meta.is_file() {
        return Err(HashError::NoFile(path.into()));
    }
    if meta.len() == 0 {
        return Err(HashError::Empty(path.into()));
    }
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| HashError::Name(path.into()))?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let parts = Parts::new(Vec::new(), vec![Part::new(path.into(), &meta)]);
    Ok(Content { name: name.to_owned(), dir: dir.into(), parts, folder: None })
}

/// The same of a folder: what a torrent could hold of it, in the order of a torrent.
fn find_folder(path: &Path, chunk_len: u32, filter: Option<Filter>) -> Result<Content, HashError> {
    // Version 1 has folders with one file in them.
    let found = survey(path, &CreateOptions { version: Version::V1, filter, ..CreateOptions::default() })?;
    let below = |path: &str| path.get(found.name.len() + 1..).unwrap_or_default().to_owned();
    let paths: Vec<String> = found.entries.iter().map(|entry| below(&entry.path)).collect();
    let entries = found.entries.iter().zip(&paths).map(|(entry, path)| Entry {
        path,
        kind: match &entry.target {
            Some(target) => EntryKind::Link { target },
            None => EntryKind::File { len: entry.length, is_executable: entry.executable },
        },
    });
    let failed = |source| HashError::Manifest { path: path.into(), source };
    let manifest = manifest::encode(entries).map_err(failed)?;
    let mut files = Vec::new();
    for entry in found.entries.iter().filter(|entry| entry.target.is_none() && entry.length > 0) {
        let path = found.dir.join(&entry.path);
        let meta = std::fs::metadata(&path).map_err(|source| HashError::Read { path: path.clone(), source })?;
        if !meta.is_file() || meta.len() != entry.length {
            return Err(HashError::Changed(path));
        }
        files.push(Part::new(path, &meta));
    }
    let mut head = manifest.clone();
    // What follows begins with a chunk.
    head.resize(head.len().next_multiple_of(chunk_len.max(1) as usize), 0);
    let (name, dir) = (found.name.clone(), found.dir.clone());
    Ok(Content { name, dir, parts: Parts::new(head, files), folder: Some((found, manifest)) })
}

/// The folder as those will read it who fetch it, its files called as they are here.
fn described(path: &Path, link: &Link, survey: Survey, manifest: Vec<u8>) -> Result<Folder, HashError> {
    let failed = |source| HashError::Manifest { path: path.into(), source };
    let mut info = describe_folder(link, &survey.name, &manifest).map_err(failed)?;
    for (file, entry) in info.files.iter_mut().zip(&survey.entries) {
        file.path = PathBuf::from(&entry.path);
    }
    Ok(Folder { survey, info: Arc::new(info), manifest })
}

/// Whether what is at `path` is what a link names, as far as its hash tells: every byte is read. `None` where a link has no
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
    let found = match find(path, chunk_len, None) {
        // There is no content without a byte.
        Err(HashError::Empty(_)) => return Ok(Some(false)),
        Err(HashError::Folder(error)) if matches!(*error, CreateError::Empty { .. }) => return Ok(Some(false)),
        found => found?,
    };
    let manifest_len = found.folder.map(|(_, manifest)| manifest.len());
    let parts = found.parts;
    if link.content_len.is_some_and(|len| len != parts.len())
        || manifest_len != link.manifest_len.map(|len| len as usize)
    {
        return Ok(Some(false));
    }
    let sidecar = Sidecar { hash, chunk_len, content_len: parts.len(), root };
    // Of what is complete, only the peaks are needed for what comes: content of any length is hashed in little memory.
    let keep_peaks = |tree: &mut Tree<MemoryNodes>| {
        let mut nodes = MemoryNodes::new(hash);
        tree.peaks().iter().for_each(|(bin, digest)| nodes.put(*bin, digest));
        *tree.nodes_mut() = nodes;
    };
    let tree = Tree::growing(hash, MemoryNodes::new(hash));
    let tree = read(&parts, sidecar, (tree, keep_peaks), cancel, &mut progress)?;
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

/// What a content's tree is called: by all that would have it be another. A name says nothing to who sees it.
fn tree_name(path: &Path, parts: &Parts, (chunk_len, hash): (u32, HashFunction)) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut key = path.as_os_str().as_encoded_bytes().to_vec();
    key.extend_from_slice(parts.head());
    for meta in parts.stamps() {
        meta.iter().for_each(|number| key.extend_from_slice(&number.to_be_bytes()));
    }
    key.extend_from_slice(&u64::from(chunk_len).to_be_bytes());
    key.push(hash.to_u8());
    format!("{}.tree", hex::encode(&HashFunction::Sha256.hash(&key).as_bytes()[..16]))
}

fn root(path: &Path, tree: &Tree<impl NodeStore>) -> Result<Digest, HashError> {
    tree.root().ok_or_else(|| HashError::Changed(path.into()))
}

fn read<S: NodeStore>(
    parts: &Parts,
    sidecar: Sidecar,
    (mut tree, mut after_batch): (Tree<S>, impl FnMut(&mut Tree<S>)),
    cancel: &AtomicBool,
    progress: &mut impl FnMut(u64, u64),
) -> Result<Tree<S>, HashError> {
    let chunk_len = sidecar.chunk_len as usize;
    let mut batch = vec![0; BATCH_LEN.next_multiple_of(chunk_len)];
    let (mut done, mut leaves, mut reader) = (0, Vec::new(), parts.reader());
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(HashError::Canceled);
        }
        let len = reader.fill(&mut batch)?;
        if len == 0 {
            return Ok(tree);
        }
        leaves.clear();
        sidecar.hash.hash_many(&batch[..len].chunks(chunk_len).collect::<Vec<_>>(), &mut leaves);
        tree.extend(&leaves);
        after_batch(&mut tree);
        done += len as u64;
        progress(done, parts.len());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use anabranch_ppspp::bin::Bin;

    use super::*;

    #[test]
    fn a_tree_that_was_kept_is_used_where_it_is_right() {
        const LEN: u64 = 700 * 1024 + 7;
        let dir = tempfile::tempdir().unwrap();
        let (path, trees) = (dir.path().join("data"), dir.path().join("trees"));
        std::fs::write(&path, (0..LEN).map(|at| (at * 7) as u8).collect::<Vec<u8>>()).unwrap();
        let options = HashOptions {
            chunk_len: CHUNK_LEN_DEFAULT,
            dialect: Dialect::Rfc7574,
            tree_dir: Some(trees.clone()),
            filter: None,
        };
        // The link, and how much was hashed for it.
        let hash = || {
            let mut done = 0;
            let hashed = hash_path(&path, &options, &AtomicBool::new(false), |all, _| done = all).unwrap();
            assert!(hashed.tree().is_some_and(|tree| tree.check(|| true)));
            (hashed.link.to_string(), done)
        };
        let (link, done) = hash();
        assert_eq!((done, hash()), (LEN, (link.clone(), 0)));
        let kept = std::fs::read_dir(&trees).unwrap().next().unwrap().unwrap().path();
        let sidecar = *FileNodes::open_found(&kept).unwrap().sidecar();
        let write = |at: u64, bytes: &[u8]| {
            File::options().write(true).open(&kept).unwrap().write_all_at(bytes, at).unwrap();
        };
        // What a power cut may leave of a page, and a bit of a leaf, of a node in the middle and of the root.
        let node = |layer, offset| sidecar.node_offset(Bin::new(layer, offset).unwrap());
        let damages: [(u64, &[u8]); 4] =
            [(8192, &[0; 4096]), (node(0, 699) + 3, b"?!"), (node(5, 20), b"?!"), (32, b"?!")];
        for (at, bytes) in damages {
            write(at, bytes);
            assert_eq!((hash(), hash()), ((link.clone(), LEN), (link.clone(), 0)), "damaged at {at}");
        }
        File::options().write(true).open(&kept).unwrap().set_len(9000).unwrap();
        assert_eq!((hash(), hash()), ((link.clone(), LEN), (link.clone(), 0)), "cut");
    }
}
