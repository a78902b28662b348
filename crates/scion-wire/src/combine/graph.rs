//! Which segments meet where, and the search through them: cheapest combination first.
//!
//! Vertices are ASes and peering links; an edge is a piece of a segment. A path uses at most one up, one core and one down
//! piece, in that order, so the search is three edges deep. Each vertex's edges are sorted by weight; the search keeps a heap
//! of "this trail, whose last edge is the i-th of its vertex" and from each makes at most two more: the next edge instead, or
//! one edge further. So the heap grows with the steps taken, never with the number of combinations.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use anabranch_paths::{Interface, IsdAs};

use crate::segment::Segment;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    Up,
    Core,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Vertex {
    As(IsdAs),
    /// A peering link, crossed from its up side to its down side.
    Peering {
        up: Interface,
        down: Interface,
    },
}

/// A piece of a segment: from its end (the last entry) to the entry `shortcut`, which a `Down` piece passes the other way round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub kind: Kind,
    pub segment: &'a Segment,
    /// The entry nearest the core that is used.
    pub shortcut: usize,
    /// Which of its peering entries is used instead of its hop entry.
    pub peer: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Edge<'a> {
    from: Vertex,
    to: Vertex,
    links: usize,
    piece: Piece<'a>,
}

/// A combination that reaches the destination.
#[derive(Debug)]
pub(super) struct Trail<'a> {
    pub steps: Vec<Piece<'a>>,
    /// Inter-AS links.
    pub links: usize,
}

/// All edges; their numbers order them.
#[derive(Default)]
pub(super) struct Graph<'a> {
    edges: Vec<Edge<'a>>,
    /// Edges that can follow a piece of some kind (`None`: at the source), by where they start, lightest first.
    next: HashMap<(Option<Kind>, Vertex), Vec<usize>>,
}

impl<'a> Graph<'a> {
    /// Adds all pieces of `segment`.
    pub(super) fn add(&mut self, kind: Kind, segment: &'a Segment) {
        let end = segment.entries().len() - 1;
        if kind == Kind::Core {
            // Core segments are used whole, against the direction of beaconing.
            let piece = Piece { kind, segment, shortcut: 0, peer: None };
            let (from, to) = (Vertex::As(segment.last()), Vertex::As(segment.first()));
            return self.edges.push(Edge { from, to, links: end, piece });
        }
        let leaf = Vertex::As(segment.last());
        for (shortcut, entry) in segment.entries().iter().enumerate() {
            let links = end - shortcut;
            let mut push = |joint, links, peer| {
                let (from, to) = if kind == Kind::Up { (leaf, joint) } else { (joint, leaf) };
                self.edges.push(Edge { from, to, links, piece: Piece { kind, segment, shortcut, peer } });
            };
            if shortcut != end {
                push(Vertex::As(entry.isd_as), links, None);
            }
            for (index, peer) in entry.peers.iter().enumerate() {
                let near = Interface { isd_as: entry.isd_as, id: peer.hop.ingress };
                let far = Interface { isd_as: peer.peer, id: peer.peer_interface };
                match kind {
                    Kind::Up => push(Vertex::Peering { up: near, down: far }, links, Some(index)),
                    // The peering link itself is counted on this side.
                    _ => push(Vertex::Peering { up: far, down: near }, links + 1, Some(index)),
                }
            }
        }
    }

    /// Joins what was added; peering links that only one side names are left out.
    pub(super) fn link(&mut self) {
        let crossable: HashSet<Vertex> =
            self.edges.iter().filter(|edge| edge.piece.kind == Kind::Down).map(|edge| edge.from).collect();
        for (number, edge) in self.edges.iter().enumerate() {
            if matches!(edge.to, Vertex::Peering { .. }) && !crossable.contains(&edge.to) {
                continue;
            }
            let before: &[Option<Kind>] = match edge.piece.kind {
                Kind::Up => &[None],
                Kind::Core => &[None, Some(Kind::Up)],
                Kind::Down => &[None, Some(Kind::Up), Some(Kind::Core)],
            };
            for &before in before {
                self.next.entry((before, edge.from)).or_default().push(number);
            }
        }
        for numbers in self.next.values_mut() {
            numbers.sort_by_key(|&number| (self.edges[number].links, number));
        }
    }

    /// Every combination, fewest links first; `None` for each step that led to no destination (yet).
    pub(super) fn search(&self, source: IsdAs, destination: IsdAs) -> impl Iterator<Item = Option<Trail<'a>>> {
        let mut heap = BinaryHeap::new();
        heap.extend(self.branch(&[], 0, None, Vertex::As(source), 0));
        std::iter::from_fn(move || {
            let Reverse(candidate) = heap.pop()?;
            let (&last, before) = candidate.trail.split_last()?;
            let edge = &self.edges[last];
            let kind_before = before.last().map(|&number: &usize| self.edges[number].piece.kind);
            let links_before = candidate.links - edge.links;
            heap.extend(self.branch(before, links_before, kind_before, edge.from, candidate.index + 1));
            if edge.to != Vertex::As(destination) {
                heap.extend(self.branch(&candidate.trail, candidate.links, Some(edge.piece.kind), edge.to, 0));
                return Some(None);
            }
            let steps = candidate.trail.iter().map(|&number| self.edges[number].piece).collect();
            Some(Some(Trail { steps, links: candidate.links }))
        })
    }

    /// `trail`, and after it the `index`-th edge that can follow it at `vertex`.
    fn branch(
        &self,
        trail: &[usize],
        links: usize,
        kind: Option<Kind>,
        vertex: Vertex,
        index: usize,
    ) -> Option<Reverse<Candidate>> {
        let number = *self.next.get(&(kind, vertex))?.get(index)?;
        let links = links + self.edges[number].links;
        Some(Reverse(Candidate { links, trail: [trail, &[number]].concat(), index }))
    }
}

/// Ordered by links, then by edges.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    links: usize,
    trail: Vec<usize>,
    /// Of its last edge, among those of the vertex.
    index: usize,
}
