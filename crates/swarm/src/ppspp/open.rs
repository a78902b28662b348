//! A content's files are opened, what is there is checked against the tree, and its transfer begins.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::Info;
use anabranch_content::metainfo::PieceLayers;
use anabranch_content::storage::naming::{self, Named};
use anabranch_content::storage::{Op, ResumeStore, Storage, StorageError};
use anabranch_ppspp::bin::Bin;
use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::link::Link;
use anabranch_ppspp::merkle::{NodeStore, Sidecar, Tree};

use super::content::{Content, Handle, guarded};
use super::describe::{chunks_of, describe, geometry, in_pieces_of};
use super::folder;
use super::hashed::Hashed;
use super::head::Head;
use super::nodes::{FileNodes, Nodes, tree_path};
use crate::events::{EventKind, FailureKind, PauseCause};
use crate::store;
use crate::store::buffers::PieceBuffers;
use crate::store::may_pass;
use crate::store::open::{OpenRequest, Opened, blocking, settle};

/// How often opening is tried again while storage is out of order.
const OPEN_RETRY: Duration = Duration::from_secs(2);

/// The content's length is known: its files are opened; those of a folder once it is known which they are.
pub(crate) fn begin(content: &mut Content, hashed: Option<Box<Hashed>>) {
    let Some(this) = content.this() else { return };
    let folder = hashed.as_ref().and_then(|hashed| hashed.folder.clone());
    let described = match &folder {
        Some(folder) => Ok(Arc::clone(&folder.info)),
        None if content.link.manifest_len.is_none() => describe(&content.link),
        None => {
            if let Err(reason) = geometry(&content.link) {
                return content.fail(FailureKind::Metadata, reason);
            }
            let opening = learn_and_open(this.clone());
            return content.spawn(guarded(this, opening));
        }
    };
    let info = match described {
        Ok(info) => info,
        Err(reason) => return content.fail(FailureKind::Metadata, reason),
    };
    content.head = folder.and_then(|folder| Head::whole(&content.link, &folder.manifest));
    content.info = Some(Arc::clone(&info));
    content.tell(EventKind::Metadata { name: info.name.clone(), hashes: info.hashes });
    let opening = open(this.clone(), info, hashed);
    content.spawn(guarded(this, opening));
}

async fn learn_and_open(content: Handle) {
    if let Some(info) = folder::learn(&content).await {
        open(content, info, None).await;
    }
}

async fn open(content: Handle, info: Arc<Info>, hashed: Option<Box<Hashed>>) {
    let (resources, dir, read_only, link) = {
        let state = content.borrow();
        (state.resources(), state.options.dir.clone(), state.options.read_only, state.link.clone())
    };
    let info = if read_only {
        info
    } else {
        let Named { info, changed } = blocking(move || naming::for_writing(&info, &dir)).await;
        if !changed.is_empty() {
            content.borrow().tell(EventKind::Renamed { files: changed });
        }
        match link.manifest_len {
            Some(_) => Arc::new(in_pieces_of(&link, Info::clone(&info))),
            None => info,
        }
    };
    content.borrow_mut().info = Some(Arc::clone(&info));
    let request = {
        let state = content.borrow();
        Arc::new(OpenRequest {
            info: Arc::clone(&info),
            is_named: true,
            dir: state.options.dir.clone(),
            wanted: vec![true; info.files.len()],
            read_only,
            overwrite: state.options.overwrite,
            trusted: state.options.trusted,
            recheck: state.options.recheck,
            preallocate: resources.config.preallocate,
            state_dir: resources.config.state_dir.clone(),
        })
    };
    let mut told = false;
    let (opened, tree, place) = loop {
        let place = resources.opening.acquire().await;
        if content.borrow().stopping {
            return;
        }
        let (asked, link, hashed) = (Arc::clone(&request), content.borrow().link.clone(), hashed.clone());
        let opening = blocking(move || {
            let opened = crate::store::open::open(&asked)?;
            let tree = open_tree(&link, hashed.as_deref(), opened.resume.as_deref())?;
            Ok((opened, tree))
        });
        match opening.await {
            Ok((opened, tree)) => break (opened, tree, place),
            Err(error) => {
                drop(place);
                if !wait_out(&content, &error, &mut told, read_only).await {
                    return;
                }
            }
        }
    };
    let (opened, mut tree) = check(&content, opened, tree).await;
    drop(place);
    if content.borrow().stopping {
        return;
    }
    let opened = Arc::new(opened);
    loop {
        let opened = Arc::clone(&opened);
        let Err(error) = blocking(move || settle(&opened, &PieceLayers::new())).await else { break };
        if !wait_out(&content, &error, &mut told, read_only).await {
            return;
        }
    }
    if content.borrow().stopping {
        return;
    }
    if told {
        content.borrow().tell(EventKind::Resumed);
    }
    // What peers proved meanwhile is as good, and is not told again by those who know that it was here.
    {
        let state = content.borrow();
        let proven = state.core.tree();
        let last = proven.chunk_count().map_or(0, |chunks| chunks.saturating_sub(1));
        let ways = (0..state.front()).chain([last]).flat_map(|chunk| proven.way(chunk));
        for (bin, digest) in proven.peaks().into_iter().chain(ways) {
            tree.nodes_mut().put(bin, &digest);
        }
    }
    start(&content, &info, &opened, tree);
}

/// Storage is out of order: told once, and tried again after a while. `false` where the content ends.
async fn wait_out(content: &Handle, error: &StorageError, told: &mut bool, read_only: bool) -> bool {
    if error.needs_a_choice() || !read_only && !*told && !may_pass(error) {
        content.borrow_mut().fail(FailureKind::Storage, error.to_string());
        return false;
    }
    if !std::mem::replace(told, true) {
        content.borrow().tell(EventKind::Paused { cause: PauseCause::Storage, reason: error.to_string() });
    }
    tokio::time::sleep(OPEN_RETRY).await;
    !content.borrow().stopping
}

/// The tree that there is of a content, or a place for one.
fn open_tree(link: &Link, hashed: Option<&Hashed>, resume: Option<&ResumeStore>) -> Result<Tree<Nodes>, StorageError> {
    if let Some(tree) = hashed.and_then(Hashed::tree) {
        return Ok(tree);
    }
    let hash = link.params.hash();
    let (Some(root), Some(len), Some(chunk_len)) =
        (hash.digest(link.params.swarm_id()), link.content_len, link.params.chunk_len())
    else {
        return Ok(Tree::with_root(hash, hash.zero(), None, Nodes::memory(hash)));
    };
    let sidecar = Sidecar { hash, chunk_len, content_len: len, root };
    let chunks = Some(sidecar.chunk_count());
    let Some(path) = resume.map(|resume| tree_path(resume.path())) else {
        return Ok(Tree::with_root(hash, root, chunks, Nodes::memory(hash)));
    };
    let (nodes, is_there) =
        FileNodes::open(&path, sidecar).map_err(|source| StorageError::new(Op::Write, &path, source))?;
    let mut tree = Tree::with_root(hash, root, chunks, Nodes::File(nodes));
    if is_there {
        tree.keep_proven();
    }
    Ok(tree)
}

/// Verifies the pieces that have to be, and those that are recorded and that the tree does not vouch for.
async fn check(content: &Handle, opened: Opened, tree: Tree<Nodes>) -> (Opened, Tree<Nodes>) {
    let (mut opened, mut tree) = (opened, tree);
    let (cancel, front, head) = {
        let state = content.borrow();
        let head = state.head.as_ref().map_or(Vec::new(), |head| head.bytes().to_vec());
        (Arc::clone(&state.cancel), state.front(), head)
    };
    let is_shared = opened.resume.is_none();
    checking(content, move |progress| {
        let info = Arc::clone(opened.storage.info());
        let vouched = |tree: &Tree<Nodes>, piece| {
            let chunks = chunks_of(&info, front, piece);
            chunks.clone().all(|chunk| Bin::chunk(chunk).is_some_and(|leaf| tree.node(leaf).is_some()))
        };
        // What nothing proves cannot be served, nor can what it would help to prove be taken.
        let unproven: Vec<u32> = if is_shared {
            Vec::new()
        } else {
            opened.have.iter_ones().filter(|piece| !vouched(&tree, *piece)).collect()
        };
        unproven.iter().for_each(|piece| _ = opened.have.clear(*piece));
        let mut pieces = opened.recheck.clone();
        pieces.extend(&unproven);
        pieces.sort_unstable();
        pieces.dedup();
        // A file that was put there, or whose tree is gone: if it is all there, it proves itself.
        if !pieces.is_empty() && !pieces.iter().all(|piece| vouched(&tree, *piece)) {
            grow(&head, &opened.storage, &mut tree, &cancel, progress);
        }
        let good = good_pieces((&opened.storage, front), &tree, &pieces, &cancel, progress);
        if cancel.load(Ordering::Relaxed) {
            return (opened, tree);
        }
        let _ = tree.nodes().flush();
        for piece in pieces {
            let is_good = good.get(piece);
            if is_good {
                opened.have.set(piece);
            }
            if let Some(resume) = &opened.resume {
                // What is not recorded is hashed again at the next start.
                let _ = if is_good { resume.verified(piece) } else { resume.failed(piece) };
            }
        }
        opened.recheck.clear();
        (opened, tree)
    })
    .await
}

/// Runs `work`, which hashes where that may block, and tells how it gets on.
pub(super) async fn checking<T: Send + 'static>(
    content: &Handle,
    work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T + Send + 'static,
) -> T {
    let tell = |bytes_done, bytes_total| content.borrow().tell(EventKind::Checking { bytes_done, bytes_total });
    store::open::checking(work, tell).await
}

/// The digests of a piece's chunks, as they lie on the disk.
fn leaves(storage: &Storage, hash: HashFunction, piece: u32, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let geometry = &storage.info().geometry;
    bytes.resize(geometry.data_len(piece) as usize, 0);
    storage.read_at(geometry.piece_offset(piece), bytes).ok()?;
    let chunks: Vec<&[u8]> = bytes.chunks(geometry.block_length() as usize).collect();
    let mut leaves = Vec::with_capacity(chunks.len() * hash.len());
    hash.hash_many(&chunks, &mut leaves);
    Some(leaves)
}

/// Those of `pieces` whose chunks on disk are the tree's; the files begin `front` chunks behind the content's beginning.
pub(super) fn good_pieces(
    (storage, front): (&Storage, u64),
    tree: &Tree<Nodes>,
    pieces: &[u32],
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Bitfield {
    let (info, hash) = (storage.info(), tree.hash());
    let mut good = Bitfield::new(info.geometry.piece_count());
    let (mut bytes, mut done) = (Vec::new(), 0);
    let total = pieces.iter().map(|piece| u64::from(info.geometry.data_len(*piece))).sum();
    for &piece in pieces {
        if cancel.load(Ordering::Relaxed) {
            return good;
        }
        let is_good = leaves(storage, hash, piece, &mut bytes).is_some_and(|leaves| {
            chunks_of(info, front, piece).zip(leaves.chunks_exact(hash.len())).all(|(chunk, leaf)| {
                let known = Bin::chunk(chunk).and_then(|bin| tree.node(bin));
                known.is_some_and(|known| known.as_bytes() == leaf)
            })
        });
        if is_good {
            good.set(piece);
        }
        done += u64::from(info.geometry.data_len(piece));
        progress(done, total);
    }
    good
}

/// Makes the tree of all that lies there, behind the `head` of a folder: kept where it leads to the root.
fn grow(
    head: &[u8],
    storage: &Storage,
    tree: &mut Tree<Nodes>,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) {
    let (info, hash) = (storage.info(), tree.hash());
    let mut grown = Tree::growing(hash, anabranch_ppspp::merkle::MemoryNodes::new(hash));
    let chunks: Vec<&[u8]> = head.chunks(info.geometry.block_length() as usize).collect();
    let mut leaves_of_head = Vec::new();
    hash.hash_many(&chunks, &mut leaves_of_head);
    grown.extend(&leaves_of_head);
    let mut bytes = Vec::new();
    for piece in 0..info.geometry.piece_count() {
        let Some(leaves) = leaves(storage, hash, piece, &mut bytes) else { return };
        if cancel.load(Ordering::Relaxed) {
            return;
        }
        grown.extend(&leaves);
        progress(info.geometry.piece_offset(piece), info.geometry.total());
    }
    if grown.root() != tree.root() {
        return;
    }
    let nodes = (grown.chunk_count().unwrap_or(0) * 2).saturating_sub(1);
    for bin in (0..nodes).filter_map(Bin::from_u64) {
        if let Some(digest) = grown.node(bin) {
            tree.nodes_mut().put(bin, &digest);
        }
    }
}

fn start(content: &Handle, info: &Arc<Info>, opened: &Opened, tree: Tree<Nodes>) {
    let mut state = content.borrow_mut();
    let resources = state.resources();
    *state.core.tree_mut() = tree;
    state.storage = Some(Arc::clone(&opened.storage));
    state.resume.clone_from(&opened.resume);
    if opened.resume.is_some() {
        state.buffers = Some(PieceBuffers::new(Rc::clone(&resources.pools), info.geometry.clone()));
    }
    state.have = opened.have.clone();
    let (pieces_have, pieces_total) = (state.have.count(), state.have.len());
    let geometry = &info.geometry;
    let bytes_done = state.have.iter_ones().map(|piece| u64::from(geometry.data_len(piece))).sum();
    let changed_files = opened.changed.clone();
    let bytes_total = geometry.total();
    state.tell(EventKind::Started { pieces_have, pieces_total, bytes_done, bytes_total, changed_files });
    state.tell_core_what_is_here();
    state.keep_early(Instant::now());
    state.aim();
    state.read_on(Instant::now());
    state.announce.notify_one();
    state.update_hold();
    if state.core.is_complete() {
        super::finish::finished(&mut state);
    }
}
