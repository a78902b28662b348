//! A content's files are opened, what is there is checked against the tree, and its transfer begins.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anabranch_content::info::Info;
use anabranch_content::metainfo::PieceLayers;
use anabranch_content::storage::naming::{self, Named};
use anabranch_content::storage::{Op, ResumeStore, StorageError};
use anabranch_ppspp::bin::Bin;
use anabranch_ppspp::link::Link;
use anabranch_ppspp::merkle::{NodeStore, Sidecar, Tree};

use super::check::{checking, good_pieces, grow};
use super::finish::finished;
use super::{Content, Handle, folder, guarded};
use crate::events::{EventKind, FailureKind, PauseCause};
use crate::ppspp::describe::{chunks_of, describe, geometry, in_pieces_of};
use crate::ppspp::hashed::Hashed;
use crate::ppspp::head::Head;
use crate::ppspp::nodes::{FileNodes, Nodes, tree_path};
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
        finished(&mut state);
    }
}
