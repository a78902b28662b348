//! Which pieces a seeder suggests to whom (BEP 6, "suggest piece"), so that each of those that nobody else has leaves it once before any
//! leaves it twice.
//!
//! Who fetches cannot see what others are being sent: left to chance, two ask a seeder for the same rare piece, and its uplink carries
//! that twice while another piece waits. The seeder sees it. So whoever has an upload slot is named pieces that nobody has who is connected,
//! that nobody is being sent and that nobody else was named; not more than it is about to ask for ([`AHEAD_BYTES`]), as what waits for
//! a slow peer waits for all. Nothing is hidden, other than by super-seeding ([`crate::super_seed`]), and nobody has to follow: a suggestion
//! decides among equally rare pieces only ([`crate::picker`]).
//!
//! When all were suggested, those that others keep waiting go to who has asked for all of its own ([`UNUSED_AFTER`], [`LATE_AFTER`]). Several
//! seeds in one network leave over one uplink: each begins with its own part ([`Rank`]).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::PeerKey;
use crate::picker::{NEIGHBOURS_MAX, Rank, SUGGESTED_MAX};

/// A peer is suggested one more piece when less than this is left to ask for of those that it was suggested, beyond what it is sent in a
/// second: what it may ask for in one round trip.
pub const AHEAD_BYTES: u64 = 64 * 1024;
/// Once nothing else is left to suggest, a piece that a peer has not asked for is suggested to another one after this ...
pub const UNUSED_AFTER: Duration = Duration::from_secs(2);
/// ... and one that it began with and nobody has yet, after this.
pub const LATE_AFTER: Duration = Duration::from_secs(10);
/// Between two looks for pieces that nobody has.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The same where there were none.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(15);

/// What is being sent or was suggested, and what may be.
#[derive(Clone, Debug)]
pub struct Suggestions {
    piece_len: u64,
    /// Pieces that nobody had at the last look; the last goes first.
    fresh: Vec<u32>,
    looked_at: Option<Instant>,
    /// There was a piece that nobody had at the last look.
    is_needed: bool,
    /// Who was suggested a piece, or asked for it first, as long as nobody has it.
    given: BTreeMap<u32, Given>,
    /// The suggestions of which each peer with a slot has not asked for everything, and how many bytes of each that is.
    open: BTreeMap<PeerKey, Vec<(u32, u64)>>,
    /// What the other seeds on our network are called, of which we hear no more.
    seeds: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    peer: PeerKey,
    /// When it was suggested, or asked for first.
    at: Instant,
    asked: bool,
}

impl Suggestions {
    /// Of a content with pieces of this length.
    pub fn new(piece_len: u32) -> Self {
        Self {
            piece_len: u64::from(piece_len.max(1)),
            fresh: Vec::new(),
            looked_at: None,
            is_needed: false,
            given: BTreeMap::new(),
            open: BTreeMap::new(),
            seeds: Vec::new(),
        }
    }

    /// Whether it is time to look for pieces that nobody has.
    pub fn wants_look(&self, now: Instant) -> bool {
        let every = if self.is_needed { LOOK_EVERY } else { LOOK_AGAIN_AFTER };
        self.fresh.is_empty() && self.looked_at.is_none_or(|at| now.saturating_duration_since(at) >= every)
    }

    /// `missing` are the pieces that nobody has, in their order. What is about to be had is not suggested. As one of the seeds on our network,
    /// who is called `own`, we begin with our part: whoever divides otherwise, or is gone, changes an order and nothing else.
    pub fn look(&mut self, missing: Vec<u32>, own: u64, now: Instant) {
        self.looked_at = Some(now);
        self.is_needed = !missing.is_empty();
        let is_missing = |piece: &u32| missing.binary_search(piece).is_ok();
        self.open.values_mut().for_each(|open| open.retain(|(piece, _)| is_missing(piece)));
        self.given.retain(|piece, _| is_missing(piece));
        self.fresh = missing;
        self.fresh.retain(|piece| !self.given.contains_key(piece));
        self.fresh.sort_by_cached_key(|piece| Rank::of(own, &self.seeds, *piece));
    }

    /// A peer on our network that is called so has everything, and is heard of no more: seeds have nothing to say to each other.
    pub fn note_seed(&mut self, name: u64) {
        if self.seeds.len() < NEIGHBOURS_MAX && !self.seeds.contains(&name) {
            self.seeds.push(name);
            self.fresh.clear();
            self.looked_at = None;
        }
    }

    /// The next piece to suggest to `peer`, which is sent `rate_bytes` a second, if any. `is_had` says whether somebody has one by now.
    pub fn next(&mut self, peer: PeerKey, rate_bytes: u64, is_had: impl Fn(u32) -> bool, now: Instant) -> Option<u32> {
        if !self.is_needed {
            return None;
        }
        let open = &*self.open.entry(peer).or_default();
        // What was suggested to others since is theirs.
        let own = open.iter().filter(|(piece, _)| self.given.get(piece).is_some_and(|given| given.peer == peer));
        let left: u64 = own.map(|(_, left)| left).sum();
        if left >= AHEAD_BYTES + rate_bytes || open.len() >= SUGGESTED_MAX {
            return None;
        }
        let fresh = std::iter::from_fn(|| self.fresh.pop());
        let fresh = fresh.filter(|piece| !self.given.contains_key(piece)).find(|piece| !is_had(*piece));
        let piece = fresh.or_else(|| self.latest(peer, now).filter(|piece| !is_had(*piece)))?;
        self.given.insert(piece, Given { peer, at: now, asked: false });
        self.open.entry(peer).or_default().push((piece, self.piece_len));
        Some(piece)
    }

    /// Nothing else is left: the piece that is waited for longest of those that others were given and are slow with. First those that they have
    /// not asked for.
    fn latest(&self, peer: PeerKey, now: Instant) -> Option<u32> {
        let is_late = |given: &Given| {
            let after = if given.asked { LATE_AFTER } else { UNUSED_AFTER };
            given.peer != peer && now.saturating_duration_since(given.at) >= after
        };
        let late = self.given.iter().filter(|(_, given)| is_late(given));
        late.min_by_key(|(_, given)| (given.asked, given.at)).map(|(piece, _)| *piece)
    }

    /// `peer` asks for so many bytes of `piece`. Answers whether it was suggested that: it may be suggested one more.
    pub fn asked(&mut self, peer: PeerKey, piece: u32, bytes: u64, now: Instant) -> bool {
        if !self.is_needed {
            return false;
        }
        let given = self.given.entry(piece).or_insert(Given { peer, at: now, asked: false });
        if given.peer == peer && !given.asked {
            *given = Given { peer, at: now, asked: true };
        }
        let Some(open) = self.open.get_mut(&peer) else { return false };
        let Some(at) = open.iter().position(|(open, _)| *open == piece) else { return false };
        open[at].1 = open[at].1.saturating_sub(bytes);
        if open[at].1 == 0 {
            open.remove(at);
        }
        true
    }

    /// Somebody has `piece` now.
    pub fn gained(&mut self, piece: u32) {
        let given = self.given.remove(&piece);
        if let Some(open) = given.and_then(|given| self.open.get_mut(&given.peer)) {
            open.retain(|(open, _)| *open != piece);
        }
    }

    /// `peer` has no slot any more, or is gone: what it has not asked for is for others.
    pub fn stopped(&mut self, peer: PeerKey) {
        for (piece, _) in self.open.remove(&peer).unwrap_or_default() {
            if self.given.get(&piece).is_some_and(|given| given.peer == peer && !given.asked) {
                self.given.remove(&piece);
                self.fresh.push(piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const BLOCK: u64 = 16 * 1024;

    proptest! {
        #[test]
        fn none_is_suggested_twice_in_a_while_or_after_somebody_has_it(seed: u64, pieces in 1u32..80) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut now, mut suggestions) = (Instant::now(), Suggestions::new(4 * BLOCK as u32));
            let (mut had, mut last) = (BTreeSet::new(), BTreeMap::<u32, (PeerKey, Instant)>::new());
            for _ in 0..500 {
                now += Duration::from_millis(rng.u64(..300));
                if suggestions.wants_look(now) {
                    suggestions.look((0..pieces).filter(|piece| !had.contains(piece)).collect(), 7, now);
                }
                let (peer, piece) = (PeerKey(rng.u32(..6)), rng.u32(..pieces));
                match rng.u32(..20) {
                    0..8 => {
                        let next = suggestions.next(peer, rng.u64(..200_000), |piece| had.contains(&piece), now);
                        let Some(piece) = next else { continue };
                        prop_assert!(!had.contains(&piece));
                        if let Some((_, before)) = last.insert(piece, (peer, now)) {
                            prop_assert!(now.saturating_duration_since(before) >= UNUSED_AFTER);
                        }
                    }
                    8..16 => drop(suggestions.asked(peer, piece, BLOCK, now)),
                    16 | 17 => {
                        had.insert(piece);
                        suggestions.gained(piece);
                    }
                    18 => {
                        suggestions.stopped(peer);
                        last.retain(|_, (of, _)| *of != peer);
                    }
                    _ => suggestions.note_seed(rng.u64(..4)),
                }
            }
        }

        #[test]
        fn seeds_of_one_network_begin_with_parts_of_their_own_and_leave_none_out(names in prop::collection::btree_set(any::<u64>(), 1..6)) {
            let (now, pieces) = (Instant::now(), 200);
            let mut firsts = BTreeSet::<u32>::new();
            for own in &names {
                let mut suggestions = Suggestions::new(4 * BLOCK as u32);
                names.iter().filter(|name| *name != own).for_each(|name| suggestions.note_seed(*name));
                suggestions.look((0..pieces).collect(), *own, now);
                let next = |at| suggestions.next(PeerKey(at), 0, |_| false, now);
                let order: Vec<u32> = (0..pieces).map_while(next).collect();
                prop_assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 200);
                firsts.extend(&order[..200 / names.len() / 2]);
            }
            prop_assert!(firsts.len() + 20 >= 200 / names.len() / 2 * names.len(), "{} are different", firsts.len());
        }
    }
}
