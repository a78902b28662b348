//! A folder's list of files: learnt from peers, and kept with what proves it, so that it is learnt once.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use anabranch_content::info::{Info, Sha1Digest};
use anabranch_content::storage::own_record_name;
use anabranch_ppspp::bin::Bin;
use anabranch_ppspp::hash::{Digest, HashFunction};
use anabranch_ppspp::link::Link;
use anabranch_ppspp::merkle::{NodeStore, Tree};
use anabranch_ppspp::picker::Picker;

use super::{Content, Handle};
use crate::events::{EventKind, FailureKind};
use crate::ppspp::describe::{describe_folder, file_name, hashes};
use crate::ppspp::head::Head;
use crate::ppspp::nodes::Nodes;
use crate::store::kept::{self, Kind};
use crate::store::open::blocking;

/// What a list that is kept begins with; the last digit is the version.
const MAGIC: &[u8; 8] = b"ab-list1";
/// Nodes that prove a list beside two for each of its chunks: the ways from its first and last chunk up to the peaks, and these.
const NODES_BESIDE_MAX: usize = 256;
/// Bytes of a node's number.
const NODE_LEN: usize = 8;

/// Where a list is kept.
#[derive(Clone, Debug)]
enum Place {
    /// In the folder of what peers told, from run to run: see [`kept`].
    Kept(PathBuf, Sha1Digest),
    /// Beside the record of what is there, and no longer than that.
    Beside(PathBuf),
}

impl Content {
    /// Where the list of its files is kept; `None` where it is no folder.
    fn list_place(&self) -> Option<Place> {
        self.link.manifest_len?;
        let hash = hashes(&self.link).v1?;
        let resources = self.resources();
        let config = &resources.config;
        Some(match &config.metadata_dir {
            Some(folder) => Place::Kept(folder.clone(), hash),
            None => {
                let dir = config.state_dir.as_deref().unwrap_or(&self.options.dir);
                Place::Beside(dir.join(own_record_name(&file_name(&self.link), hash, "list")))
            }
        })
    }

    /// The list of its files, where it goes with the record.
    pub(crate) fn list_beside(&self) -> Option<PathBuf> {
        match self.list_place()? {
            Place::Beside(path) => Some(path),
            Place::Kept(..) => None,
        }
    }
}

/// What a folder's files are: as an earlier run kept it, or as peers tell. `None` where the content ends before.
pub(super) async fn learn(content: &Handle) -> Option<Arc<Info>> {
    let (link, place) = {
        let state = content.borrow();
        (state.link.clone(), state.list_place())
    };
    let known = place.clone();
    let found = blocking(move || known.and_then(|place| find(&place, &link))).await;
    let arrived = {
        let mut state = content.borrow_mut();
        if state.stopping {
            return None;
        }
        match found {
            Some((head, proof)) => {
                let nodes = state.core.tree_mut().nodes_mut();
                proof.iter().for_each(|(bin, digest)| nodes.put(*bin, digest));
                state.core.set_have(head.have().clone());
                state.head = Some(head);
            }
            None => {
                let front = state.front();
                state.head = Head::of(&state.link);
                state.core.set_picker(Picker::Sequential(0));
                // Nothing else is of use yet.
                state.core.set_end(Some(front));
            }
        }
        state.wake.notify_one();
        Rc::clone(&state.arrived)
    };
    loop {
        let news = {
            let state = content.borrow();
            if state.stopping {
                return None;
            }
            if state.head.as_ref().is_some_and(|head| head.missing() == 0) {
                break;
            }
            arrived.notified()
        };
        news.await;
    }
    let (link, manifest, record) = {
        let mut state = content.borrow_mut();
        state.core.set_end(None);
        let head = state.head.as_ref()?;
        (state.link.clone(), head.manifest()?.to_vec(), write(head, state.core.tree()))
    };
    let described = blocking(move || {
        let described = describe_folder(&link, &file_name(&link), &manifest);
        if let (Ok(_), Some(place)) = (&described, place) {
            // Where it cannot be kept, it is learnt again the next time.
            let _ = keep(&place, &record);
        }
        described
    });
    let described = described.await;
    let mut state = content.borrow_mut();
    match described {
        Ok(info) => {
            let info = Arc::new(info);
            state.info = Some(Arc::clone(&info));
            state.tell(EventKind::Metadata { name: info.name.clone(), hashes: info.hashes });
            Some(info)
        }
        Err(error) => {
            let reason = format!("{error}: ask who shares it for a new link");
            state.fail(FailureKind::Metadata, reason);
            None
        }
    }
}

/// Nodes that lead from the root to a list.
type Proof = BTreeMap<Bin, Digest>;

fn proof(head: &Head, tree: &Tree<Nodes>) -> Proof {
    let mut nodes: Proof = tree.peaks().into_iter().collect();
    for chunk in head.have().runs().flatten() {
        nodes.extend(tree.way(chunk));
    }
    nodes
}

/// The list, and what proves it.
fn write(head: &Head, tree: &Tree<Nodes>) -> Vec<u8> {
    let nodes = proof(head, tree);
    let mut record = MAGIC.to_vec();
    record.extend_from_slice(&(nodes.len() as u32).to_be_bytes());
    for (bin, digest) in nodes {
        record.extend_from_slice(&bin.to_u64().to_be_bytes());
        record.extend_from_slice(digest.as_bytes());
    }
    record.extend_from_slice(head.bytes());
    record
}

fn keep(place: &Place, record: &[u8]) -> io::Result<()> {
    match place {
        Place::Kept(folder, hash) => kept::keep(folder, Kind::List, hash, record),
        Place::Beside(path) => kept::write(path, record),
    }
}

/// A list that was kept, and what proves it; `None` where there is none that holds.
fn find(place: &Place, link: &Link) -> Option<(Head, Proof)> {
    let hash = link.params.hash();
    let len = link.manifest_chunks() as usize * link.params.chunk_len()? as usize;
    let nodes_max = 2 * link.manifest_chunks() as usize + NODES_BESIDE_MAX;
    let len_max = MAGIC.len() + 4 + nodes_max * (NODE_LEN + hash.len()) + len;
    let record = match place {
        Place::Kept(folder, name) => kept::load(folder, Kind::List, name, len_max as u64)?,
        Place::Beside(path) => kept::read(path, len_max as u64)?,
    };
    parse(&record, link, hash)
}

fn parse(record: &[u8], link: &Link, hash: HashFunction) -> Option<(Head, Proof)> {
    let (count, rest) = record.strip_prefix(MAGIC)?.split_first_chunk()?;
    let nodes_len = (u32::from_be_bytes(*count) as usize).checked_mul(NODE_LEN + hash.len())?;
    let (nodes, bytes) = rest.split_at_checked(nodes_len)?;
    let head = Head::whole(link, bytes)?;
    let chunk_len = link.params.chunk_len()?;
    let chunks = link.content_len?.div_ceil(chunk_len.into());
    let root = hash.digest(link.params.swarm_id())?;
    let mut tree = Tree::with_root(hash, root, Some(chunks), Nodes::memory(hash));
    for node in nodes.chunks_exact(NODE_LEN + hash.len()) {
        let (bin, digest) = node.split_first_chunk()?;
        let bin = Bin::from_u64(u64::from_be_bytes(*bin)).filter(|bin| bin.end() <= chunks)?;
        tree.nodes_mut().put(bin, &hash.digest(digest)?);
    }
    // A disk may have lost or changed any of it.
    if !tree.keep_proven() {
        return None;
    }
    let known = |chunk| Bin::chunk(chunk).and_then(|bin| tree.node(bin));
    let mut chunks = (0..).zip(head.bytes().chunks(chunk_len as usize));
    if !chunks.all(|(chunk, bytes)| known(chunk) == Some(hash.hash(bytes))) {
        return None;
    }
    let proof = proof(&head, &tree);
    Some((head, proof))
}

#[cfg(test)]
mod tests {
    use anabranch_ppspp::merkle::MemoryNodes;

    use super::*;

    const HASH: HashFunction = HashFunction::Sha256;

    #[test]
    fn a_list_that_was_kept_is_believed_where_it_leads_to_the_root() {
        let dir = tempfile::tempdir().unwrap();
        for (chunks, front) in [(1u64, 1u32), (7, 1), (8, 3), (1000, 17), (1025, 2)] {
            let chunk = |number: u64| [number as u8 ^ 0x55; 16];
            let mut whole = Tree::growing(HASH, MemoryNodes::new(HASH));
            let leaves: Vec<u8> = (0..chunks).flat_map(|at| HASH.hash(&chunk(at)).as_bytes().to_vec()).collect();
            whole.extend(&leaves);
            let root = whole.root().unwrap();
            let id: String = root.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            let link: Link = format!("ppspp:{id}?cs=16&cl={}&ml={}", chunks * 16, front * 16 - 3).parse().unwrap();
            let bytes: Vec<u8> = (0..u64::from(front)).flat_map(chunk).collect();
            let head = Head::whole(&link, &bytes).unwrap();
            let mut tree = Tree::with_root(HASH, root, Some(chunks), Nodes::memory(HASH));
            for bin in (0..2 * chunks).filter_map(Bin::from_u64) {
                whole.node(bin).iter().for_each(|digest| tree.nodes_mut().put(bin, digest));
            }
            let record = write(&head, &tree);
            let folder = dir.path().join("new");
            let beside = Place::Beside(folder.join("list"));
            let places = [beside, Place::Kept(folder, hashes(&link).v1.unwrap())];
            let [(found, proof), (again, _)] = places.each_ref().map(|place| {
                keep(place, &record).unwrap();
                find(place, &link).expect("it holds")
            });
            assert_eq!((found.manifest(), found.bytes()), (head.manifest(), head.bytes()));
            assert_eq!(again.bytes(), head.bytes());
            assert!((0..u64::from(front)).all(|at| proof.contains_key(&Bin::chunk(at).unwrap())));
            // Any byte of it, and any length but its own.
            for at in (0..record.len()).step_by(7).chain([record.len() - 1]) {
                let mut damaged = record.clone();
                damaged[at] ^= 1;
                let found = parse(&damaged, &link, HASH);
                // A node that proves nothing that is needed is left out, and no byte of the list differs.
                assert!(found.is_none_or(|(found, _)| found.bytes() == head.bytes()), "{chunks} chunks, byte {at}");
            }
            for len in [0, 7, 12, record.len() - 1] {
                assert!(parse(&record[..len], &link, HASH).is_none());
            }
            let other: Link = format!("ppspp:{}?cs=16&cl={}&ml=9", "ab".repeat(32), chunks * 16).parse().unwrap();
            assert!(places.iter().all(|place| find(place, &other).is_none()));
        }
    }
}
