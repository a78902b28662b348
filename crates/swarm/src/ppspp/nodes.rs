//! A content's tree in a file: the nodes that are needed are in memory, all others on the disk, whatever the content's length.
//!
//! What is written goes to the system, not to the device: it outlives the program, and after a power cut the pieces that were not
//! synced are hashed again, and the tree is looked through from its root ([`Tree::keep_proven`](anabranch_ppspp::merkle::Tree::keep_proven)).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anabranch_ppspp::bin::Bin;
use anabranch_ppspp::hash::{Digest, HashFunction};
use anabranch_ppspp::merkle::{MemoryNodes, NodeStore, SIDECAR_HEADER_LEN, Sidecar, row_places};

/// Nodes of one page: neighbours in the numbers are neighbours in the tree, and this is 8 KiB of SHA-256.
const PAGE_NODES: u64 = 256;
/// Pages of one content in memory: the ways to the root of some hundred places at once, in 2 MiB.
const PAGES_MAX: usize = 256;

/// Where a content's tree is, beside its record.
pub(super) fn tree_path(resume_path: &Path) -> PathBuf {
    let mut path = resume_path.as_os_str().to_owned();
    path.push(".tree");
    path.into()
}

/// Where a tree's nodes are.
#[derive(Debug)]
pub(crate) enum Nodes {
    /// In memory: nothing is known of the content's length yet, or there is no place for a file.
    Memory(MemoryNodes),
    /// In a file.
    File(FileNodes),
}

impl Nodes {
    /// In memory.
    pub(crate) fn memory(hash: HashFunction) -> Self {
        Self::Memory(MemoryNodes::new(hash))
    }

    /// Brings to the file what is only in memory.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::File(nodes) => nodes.flush(),
        }
    }

    /// The same nodes, for another thread to read.
    pub(crate) fn again(&self) -> io::Result<Self> {
        self.flush()?;
        Ok(match self {
            Self::Memory(nodes) => Self::Memory(nodes.clone()),
            Self::File(nodes) => {
                let (file, sidecar) = (nodes.file.try_clone()?, nodes.sidecar);
                Self::File(FileNodes { file, sidecar, cache: RefCell::default() })
            }
        })
    }

    /// Lets go of memory that can be had again.
    pub(crate) fn trim(&self) {
        if let Self::File(nodes) = self {
            nodes.cache.borrow_mut().pages.retain(|_, page| page.is_dirty);
        }
    }
}

impl From<MemoryNodes> for Nodes {
    fn from(nodes: MemoryNodes) -> Self {
        Self::Memory(nodes)
    }
}

impl NodeStore for Nodes {
    fn get(&self, node: Bin) -> Option<Digest> {
        match self {
            Self::Memory(nodes) => nodes.get(node),
            Self::File(nodes) => nodes.get(node),
        }
    }

    fn put(&mut self, node: Bin, digest: &Digest) {
        match self {
            Self::Memory(nodes) => nodes.put(node, digest),
            Self::File(nodes) => nodes.put(node, digest),
        }
    }

    fn put_row(&mut self, first: Bin, row: &[u8]) {
        match self {
            Self::Memory(nodes) => nodes.put_row(first, row),
            Self::File(nodes) => nodes.put_row(first, row),
        }
    }

    fn forget(&mut self, node: Bin) {
        match self {
            Self::Memory(nodes) => nodes.forget(node),
            Self::File(nodes) => nodes.forget(node),
        }
    }
}

/// Nodes in a file of [`Sidecar`]'s form.
#[derive(Debug)]
pub(crate) struct FileNodes {
    file: File,
    sidecar: Sidecar,
    cache: RefCell<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    pages: BTreeMap<u64, Page>,
    /// Counts uses: the page that was used longest ago makes room.
    uses: u64,
}

#[derive(Debug)]
struct Page {
    bytes: Box<[u8]>,
    is_dirty: bool,
    used: u64,
}

impl FileNodes {
    /// Opens the file at `path` for the tree of `sidecar`, or makes it anew where it is another's, or none. Answers too whether it was
    /// there.
    pub(crate) fn open(path: &Path, sidecar: Sidecar) -> io::Result<(Self, bool)> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut header = [0; SIDECAR_HEADER_LEN];
        let is_there = file.read_exact_at(&mut header, 0).is_ok() && Sidecar::parse(&header) == Ok(sidecar);
        let len = sidecar.file_len().ok_or(io::ErrorKind::FileTooLarge)?;
        if !is_there {
            file.set_len(0)?;
            file.write_all_at(&sidecar.encode(), 0)?;
        }
        file.set_len(len)?;
        Ok((Self { file, sidecar, cache: RefCell::default() }, is_there))
    }

    /// Opens one for reading that is there and whole, whoever's tree it is.
    pub(crate) fn open_found(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let mut header = [0; SIDECAR_HEADER_LEN];
        file.read_exact_at(&mut header, 0).ok()?;
        let sidecar = Sidecar::parse(&header).ok()?;
        let is_whole = file.metadata().ok()?.len() == sidecar.file_len()?;
        is_whole.then(|| Self { file, sidecar, cache: RefCell::default() })
    }

    /// What the file says of its tree.
    pub(crate) fn sidecar(&self) -> &Sidecar {
        &self.sidecar
    }

    /// Brings to the file what is only in memory.
    fn flush(&self) -> io::Result<()> {
        for (number, page) in self.cache.borrow_mut().pages.iter_mut().filter(|(_, page)| page.is_dirty) {
            self.write(*number, &page.bytes)?;
            page.is_dirty = false;
        }
        Ok(())
    }

    fn page_len(&self) -> usize {
        PAGE_NODES as usize * self.sidecar.hash.len()
    }

    fn offset(&self, page: u64) -> u64 {
        SIDECAR_HEADER_LEN as u64 + page * self.page_len() as u64
    }

    fn write(&self, page: u64, bytes: &[u8]) -> io::Result<()> {
        // Not past the file's end: its length says that it is whole.
        let end = self.sidecar.file_len().unwrap_or(0);
        let len = end.saturating_sub(self.offset(page)).min(bytes.len() as u64);
        self.file.write_all_at(&bytes[..len as usize], self.offset(page))
    }

    fn read(&self, page: u64) -> Box<[u8]> {
        let mut bytes = vec![0; self.page_len()].into_boxed_slice();
        let mut at = 0;
        // What cannot be read is not known, and comes again from peers.
        while let Ok(count @ 1..) = self.file.read_at(&mut bytes[at..], self.offset(page) + at as u64) {
            at += count;
        }
        bytes
    }

    fn with_page<T>(&self, page: u64, look: impl FnOnce(&mut Page) -> T) -> T {
        let mut cache = self.cache.borrow_mut();
        cache.uses += 1;
        let uses = cache.uses;
        if !cache.pages.contains_key(&page) {
            if cache.pages.len() >= PAGES_MAX
                && let Some(oldest) = cache.pages.iter().min_by_key(|(_, page)| page.used).map(|(number, _)| *number)
                && let Some(evicted) = cache.pages.remove(&oldest)
                && evicted.is_dirty
                && self.write(oldest, &evicted.bytes).is_err()
            {
                // It stays until it can be written: pieces that it proves are not recorded before.
                cache.pages.insert(oldest, Page { used: uses, ..evicted });
            }
            cache.pages.insert(page, Page { bytes: self.read(page), is_dirty: false, used: uses });
        }
        let page =
            cache.pages.entry(page).or_insert_with(|| Page { bytes: Box::default(), is_dirty: false, used: uses });
        page.used = uses;
        look(page)
    }

    fn place(&self, node: Bin) -> (u64, std::ops::Range<usize>) {
        let len = self.sidecar.hash.len();
        let at = (node.to_u64() % PAGE_NODES) as usize * len;
        (node.to_u64() / PAGE_NODES, at..at + len)
    }
}

impl NodeStore for FileNodes {
    fn get(&self, node: Bin) -> Option<Digest> {
        if node.end() > self.sidecar.chunk_count() {
            return None;
        }
        let (page, place) = self.place(node);
        let digest = self.with_page(page, |page| self.sidecar.hash.digest(&page.bytes[place]));
        digest.filter(|digest| !digest.is_zero())
    }

    fn put(&mut self, node: Bin, digest: &Digest) {
        if node.end() > self.sidecar.chunk_count() || digest.as_bytes().len() != self.sidecar.hash.len() {
            return;
        }
        let (page, place) = self.place(node);
        self.with_page(page, |page| {
            page.bytes[place].copy_from_slice(digest.as_bytes());
            page.is_dirty = true;
        });
    }

    fn put_row(&mut self, first: Bin, row: &[u8]) {
        let (len, layer) = (self.sidecar.hash.len(), first.layer());
        // What reaches past the content has no place in the file.
        let count = (self.sidecar.chunk_count() >> layer).saturating_sub(first.offset()).min((row.len() / len) as u64);
        for (page, places, of_row) in row_places(first, count as usize, PAGE_NODES) {
            self.with_page(page, |page| {
                for (at, digest) in places.zip(row[of_row.start * len..].chunks_exact(len)) {
                    page.bytes[at * len..(at + 1) * len].copy_from_slice(digest);
                }
                page.is_dirty = true;
            });
        }
    }

    fn forget(&mut self, node: Bin) {
        let nodes = (self.sidecar.chunk_count() * 2).saturating_sub(1);
        let (first, end) = (2 * node.start(), (2 * node.end() - 1).min(nodes));
        let len = self.sidecar.hash.len() as u64;
        let mut at = first;
        while at < end {
            let page = at / PAGE_NODES;
            let to = end.min((page + 1) * PAGE_NODES);
            let range = ((at % PAGE_NODES) * len) as usize..((to - page * PAGE_NODES) * len) as usize;
            self.with_page(page, |page| {
                if page.bytes[range.clone()].iter().any(|byte| *byte != 0) {
                    page.bytes[range].fill(0);
                    page.is_dirty = true;
                }
            });
            at = to;
        }
    }
}

/// A tree's file while the tree is being made: it has its name when it is whole, and is gone otherwise.
pub(crate) struct Growing {
    temporary: PathBuf,
    nodes: Option<FileNodes>,
}

impl Growing {
    /// A file that will be at `path`, for a tree whose root is not known yet.
    pub(crate) fn begin(path: &Path, sidecar: Sidecar) -> io::Result<Self> {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let nodes = FileNodes::open(&temporary, sidecar)?.0;
        Ok(Self { temporary, nodes: Some(nodes) })
    }

    /// Where its nodes go.
    pub(crate) fn take(&mut self) -> Nodes {
        self.nodes.take().map_or_else(|| Nodes::memory(HashFunction::Sha256), Nodes::File)
    }

    /// All nodes are there, and on the disk before the file has its name: a power cut leaves it whole, or not at all.
    pub(crate) fn finish(&self, nodes: &Nodes, path: &Path, sidecar: &Sidecar) -> io::Result<()> {
        nodes.flush()?;
        if let Nodes::File(nodes) = nodes {
            nodes.file.write_all_at(&sidecar.encode(), 0)?;
            nodes.file.sync_all()?;
        }
        std::fs::rename(&self.temporary, path)
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        // After a finish it has another name.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use anabranch_ppspp::merkle::Tree;

    use super::*;

    const HASH: HashFunction = HashFunction::Sha256;

    fn whole(chunks: u64, path: &Path) -> (Sidecar, Tree<MemoryNodes>) {
        let leaves: Vec<u8> =
            (0..chunks).flat_map(|chunk| HASH.hash(&chunk.to_be_bytes()).as_bytes().to_vec()).collect();
        let mut tree = Tree::growing(HASH, MemoryNodes::new(HASH));
        tree.extend(&leaves);
        let root = tree.root().expect("chunks");
        let sidecar = Sidecar { hash: HASH, chunk_len: 1024, content_len: chunks * 1024 - 7, root };
        let mut growing = Growing::begin(path, Sidecar { root: HASH.zero(), ..sidecar }).unwrap();
        let mut in_file = Tree::growing(HASH, growing.take());
        in_file.extend(&leaves);
        growing.finish(in_file.nodes(), path, &sidecar).unwrap();
        (sidecar, tree)
    }

    #[test]
    fn nodes_outlive_the_program_and_damage_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        for chunks in [1, 2, 7, 300, 40_000] {
            let path = dir.path().join(format!("{chunks}.tree"));
            let (sidecar, tree) = whole(chunks, &path);
            let (nodes, is_there) = FileNodes::open(&path, sidecar).unwrap();
            assert!(is_there && FileNodes::open_found(&path).is_some());
            let mut found = Tree::with_root(HASH, sidecar.root, Some(chunks), Nodes::File(nodes));
            assert!(found.keep_proven());
            let all = || (0..2 * chunks - 1).filter_map(Bin::from_u64).filter(|bin| bin.end() <= chunks);
            assert!(all().all(|bin| found.node(bin) == tree.node(bin)), "{chunks} chunks");
            // One byte of one node: it is not believed, nor is what it was to prove.
            let at = sidecar.node_offset(Bin::chunk(chunks / 2).unwrap()) + 5;
            found.nodes().flush().unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(b"\xffx", at).unwrap();
            let (nodes, _) = FileNodes::open(&path, sidecar).unwrap();
            let mut damaged = Tree::with_root(HASH, sidecar.root, Some(chunks), Nodes::File(nodes));
            damaged.keep_proven();
            assert!(all().all(|bin| damaged.node(bin).is_none_or(|node| Some(node) == tree.node(bin))));
            assert_eq!(damaged.node(Bin::chunk(chunks / 2).unwrap()), None);
            // Another content's file is made anew.
            let other = Sidecar { chunk_len: 2048, ..sidecar };
            let (nodes, is_there) = FileNodes::open(&path, other).unwrap();
            assert!(!is_there && nodes.get(Bin::chunk(0).unwrap()).is_none());
        }
    }
}
