//! Where the verified nodes of a tree lie: in memory here, or in a file that the driver keeps.

use std::collections::BTreeMap;
use std::iter::StepBy;
use std::ops::Range;

use crate::bin::Bin;
use crate::hash::{Digest, HashFunction};

/// Keeps digests by their node. In a file, node `n` lies at `n` times the digest's length (see [`super::Sidecar`]).
pub trait NodeStore {
    /// The digest of a node that was put there.
    fn get(&self, node: Bin) -> Option<Digest>;
    /// Keeps a verified digest.
    fn put(&mut self, node: Bin, digest: &Digest);
    /// Keeps verified digests, one after the other in `row`, of nodes of one layer that follow each other from `first` on.
    fn put_row(&mut self, first: Bin, row: &[u8]);
    /// Forgets a node and all below it.
    fn forget(&mut self, node: Bin);
}

/// Where the nodes of a row are that begins with `first`, in pages of `page_nodes` numbers each: the page, the place of each of its nodes in it,
/// and which of the row they are.
pub fn row_places(
    first: Bin,
    count: usize,
    page_nodes: u64,
) -> impl Iterator<Item = (u64, StepBy<Range<usize>>, Range<usize>)> {
    let step = 2 << first.layer();
    let mut done = 0;
    std::iter::from_fn(move || {
        let number = first.to_u64() + done as u64 * step;
        let at = number % page_nodes;
        let here = usize::try_from((page_nodes - at).div_ceil(step)).unwrap_or(usize::MAX).min(count - done);
        done += here;
        (here > 0).then(|| {
            let end = at + (here as u64 - 1) * step + 1;
            (number / page_nodes, (at as usize..end as usize).step_by(step as usize), done - here..done)
        })
    })
}

/// Nodes in memory, in pages: what is not known takes no space, however large the content claims to be.
#[derive(Clone, Debug)]
pub struct MemoryNodes {
    hash: HashFunction,
    pages: BTreeMap<u64, Box<[u8]>>,
}

/// Neighbours in the numbers are neighbours in the tree: 256 nodes are 128 chunks and what lies above them.
const PAGE_NODES: u64 = 256;

impl MemoryNodes {
    /// No nodes yet.
    pub fn new(hash: HashFunction) -> Self {
        Self { hash, pages: BTreeMap::new() }
    }

    fn place(&self, node: Bin) -> (u64, Range<usize>) {
        let (page, at) = (node.to_u64() / PAGE_NODES, (node.to_u64() % PAGE_NODES) as usize);
        (page, at * self.hash.len()..(at + 1) * self.hash.len())
    }
}

impl NodeStore for MemoryNodes {
    fn get(&self, node: Bin) -> Option<Digest> {
        let (page, place) = self.place(node);
        // Zeros are the digest of no content: they stand for a node that is not known.
        self.hash.digest(&self.pages.get(&page)?[place]).filter(|digest| !digest.is_zero())
    }

    fn put(&mut self, node: Bin, digest: &Digest) {
        let (page, place) = self.place(node);
        if digest.as_bytes().len() == self.hash.len() {
            let len = PAGE_NODES as usize * self.hash.len();
            self.pages.entry(page).or_insert_with(|| vec![0; len].into())[place].copy_from_slice(digest.as_bytes());
        }
    }

    fn put_row(&mut self, first: Bin, row: &[u8]) {
        let len = self.hash.len();
        for (page, places, of_row) in row_places(first, row.len() / len, PAGE_NODES) {
            let page = self.pages.entry(page).or_insert_with(|| vec![0; PAGE_NODES as usize * len].into());
            for (at, digest) in places.zip(row[of_row.start * len..].chunks_exact(len)) {
                page[at * len..(at + 1) * len].copy_from_slice(digest);
            }
        }
    }

    fn forget(&mut self, node: Bin) {
        // The numbers of a subtree follow each other (RFC 7574 §4.2).
        let (first, last) = (2 * node.start(), 2 * (node.end() - 1));
        for (page, nodes) in self.pages.range_mut(first / PAGE_NODES..=last / PAGE_NODES) {
            let (from, to) = (first.max(page * PAGE_NODES), last.min(page * PAGE_NODES + PAGE_NODES - 1));
            let at = |number: u64| (number % PAGE_NODES) as usize * self.hash.len();
            nodes[at(from)..at(to) + self.hash.len()].fill(0);
        }
    }
}
