//! The tree of a content whose root is known, or that is being made from the content.

use std::ops::Range;

use super::{NodeStore, Offers, Verdict};
use crate::bin::Bin;
use crate::hash::{Digest, HashFunction};

/// Pairs hashed at once while a tree is made: enough for every lane, few enough for the cache.
const BATCH_PAIRS: usize = 256;
/// A tree is checked in subtrees of so many layers, 512 chunks whose nodes lie together: one in a file is read from its beginning to its end.
const CHECKED_LAYERS: u32 = 9;

/// A Merkle tree, as much of it as is known. Every node in its store holds.
#[derive(Clone, Debug)]
pub struct Tree<S> {
    hash: HashFunction,
    nodes: S,
    /// The root that is asked for; `None` while the tree is being made.
    root: Option<Digest>,
    /// Chunks of the content, once they are known.
    chunks: Option<u64>,
    claimed: Option<u64>,
    /// The peaks of so many chunks are in the store.
    has_peaks: bool,
}

impl<S: NodeStore> Tree<S> {
    /// The tree below a root that somebody trusted told, and the number of chunks if they told that too; then `nodes` may
    /// hold verified nodes from before.
    pub fn with_root(hash: HashFunction, root: Digest, chunks: Option<u64>, nodes: S) -> Self {
        Self { hash, nodes, root: Some(root), chunks, claimed: None, has_peaks: false }
    }

    /// A tree that grows with [`Tree::extend`].
    pub fn growing(hash: HashFunction, nodes: S) -> Self {
        Self { hash, nodes, root: None, chunks: Some(0), claimed: None, has_peaks: false }
    }

    /// Appends the leaves of the next chunks: digests one after the other, as [`HashFunction::hash_many`] gives them.
    ///
    /// # Panics
    /// On a tree that has a root already.
    pub fn extend(&mut self, leaves: &[u8]) {
        assert!(self.root.is_none(), "a tree with a root has its leaves");
        let len = self.hash.len();
        let first = self.chunks.unwrap_or(0);
        for (at, leaf) in leaves.chunks_exact(len).enumerate() {
            if let (Some(bin), Some(digest)) = (Bin::chunk(first + at as u64), self.hash.digest(leaf)) {
                self.nodes.put(bin, &digest);
            }
        }
        let chunks = first + (leaves.len() / len) as u64;
        self.chunks = Some(chunks);
        // Layer by layer, the parents that became complete.
        let mut layer = 1;
        while layer <= Bin::LAYER_MAX && chunks >> layer > 0 {
            self.complete_layer(layer, first >> layer, chunks >> layer);
            layer += 1;
        }
    }

    fn complete_layer(&mut self, layer: u32, from: u64, to: u64) {
        let (mut pairs, mut digests) = (Vec::new(), Vec::new());
        let bins: Vec<Bin> = (from..to).filter_map(|offset| Bin::new(layer, offset)).collect();
        for bins in bins.chunks(BATCH_PAIRS) {
            pairs.clear();
            digests.clear();
            for child in bins.iter().filter_map(|bin| bin.children()).flat_map(|(left, right)| [left, right]) {
                // Complete nodes below a complete one are in the store.
                pairs.extend_from_slice(self.nodes.get(child).unwrap_or(self.hash.zero()).as_bytes());
            }
            let messages: Vec<&[u8]> = pairs.chunks_exact(2 * self.hash.len()).collect();
            self.hash.hash_many(&messages, &mut digests);
            for (bin, digest) in bins.iter().zip(digests.chunks_exact(self.hash.len())) {
                if let Some(digest) = self.hash.digest(digest) {
                    self.nodes.put(*bin, &digest);
                }
            }
        }
    }

    /// The hash function.
    pub fn hash(&self) -> HashFunction {
        self.hash
    }

    /// How many chunks the content has, if that is known.
    pub fn chunk_count(&self) -> Option<u64> {
        self.chunks
    }

    /// The nodes.
    pub fn nodes(&self) -> &S {
        &self.nodes
    }

    /// The nodes, for whoever keeps them.
    pub fn nodes_mut(&mut self) -> &mut S {
        self.has_peaks = false;
        &mut self.nodes
    }

    /// A verified node.
    pub fn node(&self, bin: Bin) -> Option<Digest> {
        self.nodes.get(bin)
    }

    /// The peaks with their digests, the widest first; empty while the size is not known.
    pub fn peaks(&self) -> Vec<(Bin, Digest)> {
        let peaks = Bin::peaks(self.chunks.unwrap_or(0));
        peaks.map_while(|bin| Some((bin, self.nodes.get(bin)?))).collect()
    }

    /// What is known of the way from a chunk up to its peak, siblings and all, without the peak.
    pub fn way(&self, chunk: u64) -> Vec<(Bin, Digest)> {
        let (mut known, mut at) = (Vec::new(), Bin::chunk(chunk));
        while let Some((bin, parent)) =
            at.and_then(|bin| Some((bin, bin.parent().filter(|parent| parent.end() <= self.chunks.unwrap_or(0))?)))
        {
            let both = [Some(bin), bin.sibling()];
            known.extend(both.into_iter().flatten().filter_map(|bin| Some((bin, self.nodes.get(bin)?))));
            at = Some(parent);
        }
        known
    }

    /// The root: the one asked for, or that of what the tree has grown to. `None` for no chunks.
    pub fn root(&self) -> Option<Digest> {
        self.root.or_else(|| root_of_peaks(self.hash, &self.peaks()))
    }

    /// The size that a peer claimed and that still has to be proven: its last chunk is to be fetched first (RFC 7574 §5.6.2).
    pub fn chunks_claimed(&self) -> Option<u64> {
        self.claimed.filter(|_| self.chunks.is_none())
    }

    /// Judges a chunk of `len` bytes whose digest is `leaf`, with what its sender offered; what led it to a known node is
    /// kept.
    ///
    /// Where the size is not known, peaks that fit the root only claim one: the root of seven chunks is that of one peak over
    /// eight too, and a parent is the hash of a "chunk" that is its two children. So the last chunk has to verify first, from
    /// the same peer; other chunks wait. A last chunk as long as two digests is not believed: its link has to tell the length.
    pub fn verify(&mut self, chunk: u64, leaf: Digest, len: usize, offers: &Offers) -> Verdict {
        let Some(bin) = Bin::chunk(chunk) else { return Verdict::Wrong };
        let Some(chunks) = self.chunks else { return self.prove_size(bin, leaf, len, offers) };
        if chunk >= chunks {
            return Verdict::Wrong;
        }
        if !self.knows_peaks(chunks) {
            let peaks = self.peaks_offered(bin, leaf, offers);
            // Size, root and peaks bind each other: whoever brought them, they hold.
            if peaks.last().is_none_or(|(bin, _)| bin.end() != chunks) {
                return Verdict::Missing;
            }
            peaks.iter().for_each(|(bin, digest)| self.nodes.put(*bin, digest));
        }
        self.has_peaks = true;
        let (verdict, proven) = climb(self.hash, bin, leaf, |bin| self.nodes.get(bin), offers);
        proven.iter().for_each(|(bin, digest)| self.nodes.put(*bin, digest));
        verdict
    }

    /// Judges chunks that follow each other from `first` on, all at once: `leaves` are their digests one after the other, and `offered` is what
    /// their sender says of other nodes. Where they hold, `true`, what led them to known nodes is kept. Where not, any of them may all the
    /// same, and [`Tree::verify`] tells: this one does not say whose digests are missing, and leaves to it whatever is not told by one subtree.
    pub fn verify_run(&mut self, first: u64, leaves: &[u8], offered: impl Fn(Bin) -> Option<Digest>) -> bool {
        let Some(chunks) = self.chunks else { return false };
        if !self.knows_peaks(chunks) {
            return false;
        }
        match self.climb_run(chunks, first, leaves, offered) {
            Some(rows) => {
                rows.iter().for_each(|(first, row)| self.nodes.put_row(*first, row));
                true
            }
            None => false,
        }
    }

    /// Follows leaves upwards together, to a row of nodes that are all known. Gives the rows below it, each with its first node.
    fn climb_run(
        &self,
        chunks: u64,
        first: u64,
        leaves: &[u8],
        offered: impl Fn(Bin) -> Option<Digest>,
    ) -> Option<Vec<(Bin, Vec<u8>)>> {
        let len = self.hash.len();
        let other = |layer: u32, offset: u64| {
            let bin = Bin::new(layer, offset)?;
            self.nodes.get(bin).or_else(|| offered(bin))
        };
        let (mut rows, mut row, mut offset) = (Vec::new(), leaves.to_vec(), first);
        for layer in 0..Bin::LAYER_MAX {
            let end = offset + (row.len() / len) as u64;
            // RFC 7574 §5.6.1: what reaches past the content is no node of its tree.
            if row.is_empty() || end > chunks >> layer {
                return None;
            }
            let known = |at: u64| self.nodes.get(Bin::new(layer, at)?);
            // Those of one run are known together, as a rule.
            if let Some(digest) = known(offset) {
                let all = std::iter::once(Some(digest)).chain((offset + 1..end).map(known));
                let mut are_known = true;
                for (known, made) in all.zip(row.chunks_exact(len)) {
                    if known.is_some_and(|known| known.as_bytes() != made) {
                        return None;
                    }
                    are_known &= known.is_some();
                }
                if are_known {
                    return Some(rows);
                }
            }
            let (is_right, is_left) = (offset % 2 == 1, end % 2 == 1);
            if is_right {
                row.splice(0..0, other(layer, offset - 1)?.as_bytes().iter().copied());
            }
            if is_left {
                row.extend_from_slice(other(layer, end)?.as_bytes());
            }
            offset -= u64::from(is_right);
            let pairs: Vec<&[u8]> = row.chunks_exact(2 * len).collect();
            let mut above = Vec::with_capacity(row.len() / 2);
            self.hash.hash_many(&pairs, &mut above);
            rows.push((Bin::new(layer, offset)?, std::mem::replace(&mut row, above)));
            offset /= 2;
        }
        None
    }

    fn knows_peaks(&mut self, chunks: u64) -> bool {
        self.has_peaks = self.has_peaks || Bin::peaks(chunks).all(|peak| self.nodes.get(peak).is_some());
        self.has_peaks
    }

    fn prove_size(&mut self, bin: Bin, leaf: Digest, len: usize, offers: &Offers) -> Verdict {
        let peaks = self.peaks_offered(bin, leaf, offers);
        let Some(chunks) = peaks.last().map(|(bin, _)| bin.end()) else { return Verdict::Missing };
        self.claimed = Some(chunks);
        if bin.end() != chunks {
            return Verdict::Missing;
        }
        let peak = |bin: Bin| peaks.iter().find(|(peak, _)| *peak == bin).map(|(_, digest)| *digest);
        let (verdict, proven) = climb(self.hash, bin, leaf, peak, offers);
        if verdict == Verdict::Good && len == 2 * self.hash.len() {
            return Verdict::Missing;
        }
        if verdict == Verdict::Good {
            self.chunks = Some(chunks);
            peaks.iter().chain(&proven).for_each(|(bin, digest)| self.nodes.put(*bin, digest));
        }
        verdict
    }

    /// The offered peaks, if they lead to the root. A content of one chunk needs no digest at all: its root is the chunk's
    /// (RFC 7574 §8.16).
    fn peaks_offered(&self, bin: Bin, leaf: Digest, offers: &Offers) -> Vec<(Bin, Digest)> {
        if bin.start() == 0 && self.root == Some(leaf) {
            return vec![(bin, leaf)];
        }
        let peaks = offers.peaks();
        if self.root.is_some() && root_of_peaks(self.hash, &peaks) == self.root { peaks } else { Vec::new() }
    }

    /// The digests that a chunk needs, the highest first (RFC 7574 §5.4): siblings on the way to its peak, up to where the
    /// receiver has a chunk below already, as it has below the bin of `known_layer` around this chunk. They are put to `uncles`; `way` is
    /// what is kept of the chunk before. `None` where the tree does not have them: the chunk cannot be served.
    pub fn uncles(
        &self,
        chunk: u64,
        known_layer: Option<u32>,
        way: &mut SiblingPath,
        uncles: &mut Vec<(Bin, Digest)>,
    ) -> Option<()> {
        let chunks = self.chunks.filter(|chunks| chunk < *chunks)?;
        // A node whose parent reaches past the content is a peak: it begins where the two numbers differ first.
        let peak_layer = (chunk ^ chunks).ilog2();
        // The last layer with a sibling to tell is below that of what is known.
        let layers = known_layer.map_or(peak_layer, |known| peak_layer.min(known.saturating_sub(1)));
        way.go_to(chunk);
        for layer in (0..layers).rev() {
            let sibling = Bin::new(layer, chunk >> layer ^ 1)?;
            let place = way.siblings.get_mut(layer as usize)?;
            let digest = match place {
                Some(digest) => *digest,
                None => *place.insert(self.nodes.get(sibling)?),
            };
            uncles.push((sibling, digest));
        }
        Some(())
    }

    /// Keeps what leads down from the root without a gap, of nodes that lay on a disk and that nobody vouches for: the others
    /// are forgotten. `false` where not even the peaks lead to the root: nothing is known then.
    pub fn keep_proven(&mut self) -> bool {
        self.has_peaks = false;
        let Some(chunks) = self.chunks else { return false };
        let peaks = self.peaks();
        if peaks.last().map_or(0, |(bin, _)| bin.end()) != chunks || root_of_peaks(self.hash, &peaks) != self.root() {
            Bin::peaks(chunks).for_each(|peak| self.nodes.forget(peak));
            return false;
        }
        let mut proven: Vec<(Bin, Digest)> = peaks;
        while let Some((bin, digest)) = proven.pop() {
            let Some((left, right)) = bin.children() else { continue };
            match self.nodes.get(left).zip(self.nodes.get(right)) {
                Some((one, other)) if self.hash.parent(&one, &other) == digest => {
                    proven.extend([(left, one), (right, other)]);
                }
                _ => [left, right].into_iter().for_each(|child| self.nodes.forget(child)),
            }
        }
        true
    }

    /// Whether every node is there and the parent of its children, down from the root: what a tree from a disk is asked for once. `false`
    /// too where `go_on`, which is asked again and again, says so.
    pub fn check(&self, mut go_on: impl FnMut() -> bool) -> bool {
        let Some(chunks) = self.chunks else { return false };
        let peaks = self.peaks();
        if peaks.last().map_or(0, |(bin, _)| bin.end()) != chunks || root_of_peaks(self.hash, &peaks) != self.root() {
            return false;
        }
        let subtrees = 0..chunks.div_ceil(1 << CHECKED_LAYERS);
        let mut low = subtrees.map(|subtree| subtree << CHECKED_LAYERS..chunks.min((subtree + 1) << CHECKED_LAYERS));
        low.all(|chunks| go_on() && self.layers_hold(0..CHECKED_LAYERS, &chunks))
            && self.layers_hold(CHECKED_LAYERS..Bin::LAYER_MAX, &(0..chunks))
    }

    /// Whether all nodes over these chunks, of these layers and the one above, are there and are the parents of those below them.
    fn layers_hold(&self, layers: Range<u32>, chunks: &Range<u64>) -> bool {
        let of_layer = |layer: u32| -> Option<Vec<Digest>> {
            let offsets = chunks.start >> layer..chunks.end >> layer;
            offsets.map(|offset| self.nodes.get(Bin::new(layer, offset)?)).collect()
        };
        let Some(mut below) = of_layer(layers.start) else { return false };
        for layer in layers.start + 1..=layers.end {
            match of_layer(layer) {
                Some(known) if known == parents(self.hash, &below) => below = known,
                _ => return false,
            }
        }
        true
    }
}

/// The digests above those that follow each other, from a left one on.
fn parents(hash: HashFunction, children: &[Digest]) -> Vec<Digest> {
    let pairs: Vec<u8> = children.iter().flat_map(|child| child.as_bytes()).copied().collect();
    let pairs: Vec<&[u8]> = pairs.chunks_exact(2 * hash.len()).collect();
    let mut digests = Vec::with_capacity(pairs.len() * hash.len());
    hash.hash_many(&pairs, &mut digests);
    digests.chunks_exact(hash.len()).filter_map(|digest| hash.digest(digest)).collect()
}

/// The siblings on a chunk's way up, by their layers, as far as they were looked for. Those of the chunk that is next are mostly the same.
#[derive(Clone, Debug)]
pub struct SiblingPath {
    chunk: u64,
    siblings: Box<[Option<Digest>]>,
}

impl Default for SiblingPath {
    fn default() -> Self {
        Self { chunk: 0, siblings: vec![None; Bin::LAYER_MAX as usize].into() }
    }
}

impl SiblingPath {
    /// Forgets what the way of this chunk does not share.
    fn go_to(&mut self, chunk: u64) {
        let from_layer = (u64::BITS - (chunk ^ self.chunk).leading_zeros()) as usize;
        let own = from_layer.min(self.siblings.len());
        self.siblings[..own].fill(None);
        self.chunk = chunk;
    }
}

/// The root above the peaks of a content: what lies right of the last one is empty (RFC 7574 §5.6.1). It is the top of the
/// smallest tree that holds all chunks.
pub(super) fn root_of_peaks(hash: HashFunction, peaks: &[(Bin, Digest)]) -> Option<Digest> {
    let ((mut at, mut digest), mut lefts) = (*peaks.last()?, peaks.split_last()?.1.iter().rev().peekable());
    while let Some((left, left_digest)) = lefts.peek() {
        if at.is_left() {
            digest = hash.parent(&digest, &hash.zero());
        } else if Some(*left) == at.sibling() {
            digest = hash.parent(left_digest, &digest);
            lefts.next();
        } else {
            return None;
        }
        at = at.parent()?;
    }
    // What is left of the first peak would have to be content.
    (at.start() == 0).then_some(digest)
}

/// Follows a leaf upwards to a node that `known` has, with siblings that are known or offered. The nodes proven on the way
/// are given back, none where the way does not hold.
pub(super) fn climb(
    hash: HashFunction,
    leaf: Bin,
    digest: Digest,
    known: impl Fn(Bin) -> Option<Digest>,
    offers: &Offers,
) -> (Verdict, Vec<(Bin, Digest)>) {
    let (mut at, mut digest, mut proven) = (leaf, digest, Vec::new());
    loop {
        if let Some(expected) = known(at) {
            return if expected == digest { (Verdict::Good, proven) } else { (Verdict::Wrong, Vec::new()) };
        }
        proven.push((at, digest));
        let (Some(sibling), Some(parent)) = (at.sibling(), at.parent()) else { return (Verdict::Missing, Vec::new()) };
        let Some(other) = known(sibling).or_else(|| offers.get(sibling)) else { return (Verdict::Missing, Vec::new()) };
        proven.push((sibling, other));
        digest = if at.is_left() { hash.parent(&digest, &other) } else { hash.parent(&other, &digest) };
        at = parent;
    }
}
