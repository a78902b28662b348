//! Pieces divided among neighbours: peers so near that what one of them has, the others have soon.
//!
//! Left to chance, all of them fetch the same rare pieces from afar at the same time, over links that they share. So each piece falls to
//! one of them, by rendezvous hashing (Thaler and Ravishankar, 1998) of what they are called: every one of them finds the same without a
//! word, and when one comes or goes nothing but its own part moves. From afar a peer is asked for what falls to us, until all of that was
//! asked for, and for the rest after that. So whoever divides otherwise, brings nothing, or lies, changes an order and nothing else.

use anabranch_content::bitfield::Bitfield;

use super::pieces::common;
use super::select::mixed;
use super::{Picker, PieceOrder, RequestStrategy};
use crate::ConnId;

/// Neighbours that pieces are divided among at most. Whoever divides among fewer than there are takes a part that is too large.
pub const NEIGHBOURS_MAX: usize = 64;

/// What falls to us, and among whom it was divided.
#[derive(Clone, Debug, Default)]
pub(super) struct Division {
    neighbours: Vec<u64>,
    /// `None` without neighbours: all of it.
    part: Option<Bitfield>,
}

impl Division {
    pub(super) fn is_ours(&self, piece: u32) -> bool {
        self.part.as_ref().is_none_or(|part| part.get(piece))
    }
}

impl Picker {
    /// Divides the pieces among us and `neighbours`, which are called by numbers that all of them know. Costs nothing where they are
    /// the same as before.
    pub fn divide(&mut self, own: u64, mut neighbours: Vec<u64>) {
        neighbours.sort_unstable();
        neighbours.dedup();
        neighbours.truncate(NEIGHBOURS_MAX);
        if self.division.neighbours == neighbours {
            return;
        }
        let is_ours = |piece: &u32| Rank::of(own, &neighbours, *piece).is_ours;
        let divided = || {
            let mut part = Bitfield::new(self.pieces.count());
            (0..part.len()).filter(is_ours).for_each(|piece| {
                part.set(piece);
            });
            part
        };
        let part = (!neighbours.is_empty()).then(divided);
        self.division = Division { neighbours, part };
    }

    /// Whether `conn` is not yet asked for pieces but [ours](Division::is_ours), since neighbours fetch the others. Where order matters, or
    /// some pieces are wanted more than others, nothing is left to them: what they want is their own matter.
    pub(super) fn leaves_to_neighbours(&self, conn: ConnId) -> bool {
        let Some(part) = &self.division.part else { return false };
        self.config.order == PieceOrder::RarestFirst
            && self.config.strategy != RequestStrategy::StrictlyPrioritized
            && self.conns.get(&conn).is_some_and(|conn| !conn.is_near)
            && self.pieces.are_wanted_alike()
            && (common(part, self.pieces.idle(), 0).next().is_some()
                || self.partials.iter().any(|piece| part.get(*piece)))
    }
}

/// Whether a piece falls to a peer among several, and where it comes in its order, the greatest first: its own part, and then those of the
/// others, each from the end that its owner comes to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    is_ours: bool,
    order: u64,
}

impl Rank {
    /// For who is called `own`, among itself and `others`.
    pub fn of(own: u64, others: &[u64], piece: u32) -> Self {
        let (ours, theirs) = (weight(own, piece), others.iter().map(|other| weight(*other, piece)).max());
        match theirs.filter(|theirs| *theirs > ours) {
            Some(theirs) => Self { is_ours: false, order: !theirs },
            None => Self { is_ours: true, order: ours },
        }
    }
}

/// How much a piece is drawn to a peer.
fn weight(peer: u64, piece: u32) -> u64 {
    mixed(peer, u64::from(piece) + 1)
}
