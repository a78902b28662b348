//! Which pieces the first seeder of a content lets each peer know of, so that it sends little more than one copy before the others
//! have a whole one among them (BEP 16, "super-seeding").
//!
//! Everybody is greeted as by one who has nothing, and is then offered pieces one by one, those that nobody else has. Who was offered a
//! piece gets another one once somebody else has it from there: so pieces go first to those who pass them on. What BEP 16 leaves open:
//!
//! - As many pieces are offered ahead as fill [`AHEAD_BYTES`], and [`AHEAD_MIN`] at least, so that a round trip between two pieces
//!   costs nothing; to who has no upload slot, one: it takes one to be interested.
//! - Who passes a piece on to nobody gets another one after [`PATIENCE`]: maybe it is choked by none but has nobody to give to. Where
//!   there is only one who fetches, nobody can have it from there, and nothing is waited for.
//! - A piece that was offered to who takes nothing for [`COLD_AFTER`], or does not have it after [`LATE_AFTER`], is offered to somebody else
//!   too, when nothing else is left for that one. Whoever has not begun with it when another has it is told that it is not to be had
//!   here any more, where it understands that (BEP 54).
//! - Who leaves takes along what only it had: that is offered anew.
//!
//! It is over when the others have every piece among them: from then on an ordinary seeder does more good (BEP 16: "not recommended for general
//! use"). Peers may lie about what they have. That ends it early, and does no other harm.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;

use crate::PeerKey;

/// Bytes of the pieces that a peer is offered ahead: what 100 Mbit/s bring in the time that peers take to pass a piece on.
pub const AHEAD_BYTES: u32 = 1 << 20;
/// Pieces that a peer is offered ahead at least, however long they are.
pub const AHEAD_MIN: u32 = 2;
/// How long a peer that passes nothing on waits for its next piece: as long as it may take others to be unchoked by it.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Who takes nothing for so long may keep others waiting no longer.
pub const COLD_AFTER: Duration = Duration::from_secs(10);
/// Nor may who takes so long for one piece.
pub const LATE_AFTER: Duration = Duration::from_secs(120);
/// How often offers are looked through.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What others have of a content, and what they were offered.
#[derive(Clone, Debug)]
pub struct SuperSeed {
    pieces: u32,
    /// Pieces that are offered ahead.
    ahead: u32,
    /// How many of the others have each piece.
    copies: Vec<u16>,
    /// Of the pieces, how many somebody else has.
    spread: u32,
    /// Pieces that nobody else has, and that are offered to nobody; the last goes first.
    fresh: Vec<u32>,
    /// Which those are.
    is_fresh: Bitfield,
    /// Of each piece that is not passed on yet, who was offered it.
    offers: BTreeMap<u32, Vec<Offer>>,
    /// Pieces of these that may be offered once more; the last goes first.
    stale: Vec<u32>,
    peers: BTreeMap<PeerKey, Known>,
    /// Who may be offered more than the last time.
    hungry: BTreeSet<PeerKey>,
    /// What peers are to be told that it is not to be had here any more.
    withdrawn: Vec<(PeerKey, u32)>,
    look_next: Option<Instant>,
}

/// An address-level peer.
#[derive(Clone, Debug)]
struct Known {
    /// The pieces that it was told of.
    shown: Bitfield,
    /// Of these, those that wait to be passed on.
    open: u32,
    /// How many pieces it has.
    has: u32,
    /// When something was sent to it, as far as was looked; before that, when it was offered something first.
    moved_at: Option<Instant>,
    /// Something was sent to it since then.
    moved: bool,
}

/// A piece that one peer was told of, and nobody has had of it yet.
#[derive(Clone, Copy, Debug)]
struct Offer {
    peer: PeerKey,
    at: Instant,
    /// A part of it was sent.
    begun: bool,
    /// Since when the peer has it, and nobody else does.
    held_since: Option<Instant>,
}

impl SuperSeed {
    /// Of a content of so many pieces of this length. `seed` decides their order.
    pub fn new(pieces: u32, piece_len: u32, seed: u64) -> Self {
        let mut fresh: Vec<u32> = (0..pieces).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut fresh);
        Self {
            pieces,
            ahead: AHEAD_BYTES.checked_div(piece_len).unwrap_or(0).max(AHEAD_MIN),
            copies: vec![0; pieces as usize],
            spread: 0,
            fresh,
            is_fresh: Bitfield::full(pieces),
            offers: BTreeMap::new(),
            stale: Vec::new(),
            peers: BTreeMap::new(),
            hungry: BTreeSet::new(),
            withdrawn: Vec::new(),
            look_next: None,
        }
    }

    /// Whether the others have every piece among them.
    pub fn is_over(&self) -> bool {
        self.spread == self.pieces
    }

    /// Whether `peer` was told of a piece.
    pub fn is_shown(&self, peer: PeerKey, piece: u32) -> bool {
        self.shown(peer).is_some_and(|shown| shown.get(piece))
    }

    /// What `peer` was told of, where it was told of any.
    pub fn shown(&self, peer: PeerKey) -> Option<&Bitfield> {
        self.peers.get(&peer).map(|known| &known.shown).filter(|shown| shown.count() > 0)
    }

    /// `peer` is there, and has these pieces.
    pub fn came(&mut self, peer: PeerKey, has: &Bitfield, now: Instant) {
        self.known(peer);
        self.hungry.insert(peer);
        has.iter_ones().for_each(|piece| self.gained(peer, piece, now));
    }

    /// These pieces of `peer` are not counted any more: it goes, or another connection speaks for it.
    pub fn uncount(&mut self, peer: PeerKey, has: &Bitfield) {
        has.iter_ones().for_each(|piece| self.lost(peer, piece));
    }

    /// `peer` is gone, with all its connections, and with what it had.
    pub fn left(&mut self, peer: PeerKey) {
        self.peers.remove(&peer);
        self.hungry.remove(&peer);
        self.withdrawn.retain(|(of, _)| *of != peer);
        let theirs = self.offers.iter().filter(|(_, offers)| offers.iter().any(|offer| offer.peer == peer));
        let theirs: Vec<u32> = theirs.map(|(piece, _)| *piece).collect();
        for piece in theirs {
            self.close_offers(piece, |offer| offer.peer == peer);
            self.renew(piece);
        }
    }

    /// `from` turned out to be `into`: what was counted of one is the other's.
    pub fn merge(&mut self, from: PeerKey, into: PeerKey) {
        let Some(gone) = self.peers.remove(&from) else { return };
        self.hungry.remove(&from);
        self.withdrawn.retain(|(of, _)| *of != from);
        let known = self.known(into);
        gone.shown.iter_ones().for_each(|piece| {
            known.shown.set(piece);
        });
        known.moved |= gone.moved;
        known.has += gone.has;
        let mut opened = 0;
        for offers in self.offers.values_mut() {
            let has_one = offers.iter().any(|offer| offer.peer == into);
            match offers.iter().position(|offer| offer.peer == from) {
                Some(at) if has_one => drop(offers.swap_remove(at)),
                Some(at) => {
                    offers[at].peer = into;
                    opened += 1;
                }
                None => {}
            }
        }
        self.known(into).open += opened;
    }

    /// `peer` has one more piece.
    pub fn gained(&mut self, peer: PeerKey, piece: u32, now: Instant) {
        let Some(copies) = self.copies.get_mut(piece as usize) else { return };
        *copies = copies.saturating_add(1);
        let copies = *copies;
        self.spread += u32::from(copies == 1);
        self.known(peer).has += 1;
        // Nobody waits to pass it on whom somebody can have had it of, or who can have it of somebody.
        self.close_offers(piece, |offer| offer.peer != peer || copies > 1);
        let is_lone = self.is_lone();
        let held = self.offers.get_mut(&piece).and_then(|offers| offers.iter_mut().find(|offer| offer.peer == peer));
        if let Some(offer) = held {
            offer.held_since = Some(now);
            if is_lone {
                self.close_offers(piece, |_| true);
            }
        }
    }

    /// `peer` has a piece no more.
    pub fn lost(&mut self, peer: PeerKey, piece: u32) {
        let Some(copies) = self.copies.get_mut(piece as usize).filter(|copies| **copies > 0) else { return };
        *copies -= 1;
        self.spread -= u32::from(*copies == 0);
        let known = self.known(peer);
        known.has = known.has.saturating_sub(1);
        if let Some(offers) = self.offers.get_mut(&piece) {
            offers.iter_mut().filter(|offer| offer.peer == peer).for_each(|offer| offer.held_since = None);
        }
        self.renew(piece);
    }

    /// A part of a piece is being sent to `peer`.
    pub fn sent(&mut self, peer: PeerKey, piece: u32) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.moved = true;
        }
        let offers = self.offers.get_mut(&piece);
        if let Some(offer) = offers.and_then(|offers| offers.iter_mut().find(|offer| offer.peer == peer)) {
            offer.begun = true;
        }
    }

    /// `peer` has an upload slot now.
    pub fn served(&mut self, peer: PeerKey) {
        self.hungry.insert(peer);
    }

    /// Looks through what was offered. To be called now and then.
    pub fn on_time(&mut self, now: Instant) {
        if self.look_next.is_some_and(|next| now < next) {
            return;
        }
        self.look_next = Some(now + LOOK_EVERY);
        for known in self.peers.values_mut() {
            if std::mem::take(&mut known.moved) {
                known.moved_at = Some(now);
            }
        }
        let is_lone = self.is_lone();
        let waited = |offer: &Offer| {
            offer.held_since.is_some_and(|since| is_lone || now.saturating_duration_since(since) >= PATIENCE)
        };
        let forgiven = self.offers.iter().filter(|(_, offers)| offers.iter().any(waited));
        let forgiven: Vec<u32> = forgiven.map(|(piece, _)| *piece).collect();
        forgiven.into_iter().for_each(|piece| self.close_offers(piece, waited));
        let is_cold = |offer: &Offer| {
            let moved_at = self.peers.get(&offer.peer).and_then(|known| known.moved_at).unwrap_or(offer.at);
            let rests = now.saturating_duration_since(moved_at.max(offer.at)) >= COLD_AFTER;
            offer.held_since.is_none() && (rests || now.saturating_duration_since(offer.at) >= LATE_AFTER)
        };
        let stale = self.offers.iter().filter(|(_, offers)| offers.iter().all(is_cold));
        let mut stale: Vec<(usize, u32)> = stale.map(|(piece, offers)| (offers.len(), *piece)).collect();
        stale.sort_unstable_by(|one, other| other.cmp(one));
        self.stale = stale.into_iter().map(|(_, piece)| piece).collect();
        self.hungry.extend(self.peers.keys());
    }

    /// Who may be offered more than the last time this was asked.
    pub fn take_hungry(&mut self) -> BTreeSet<PeerKey> {
        std::mem::take(&mut self.hungry)
    }

    /// Pieces that peers were told of, and that they are to be told to have elsewhere. If that is done, [`SuperSeed::hide`] follows.
    pub fn take_withdrawn(&mut self) -> Vec<(PeerKey, u32)> {
        std::mem::take(&mut self.withdrawn)
    }

    /// `peer` was told that a piece is not to be had here.
    pub fn hide(&mut self, peer: PeerKey, piece: u32) {
        self.known(peer).shown.clear(piece);
    }

    /// The next piece that `peer` is to be told of, if any; `is_served` says whether it has an upload slot.
    pub fn offer(&mut self, peer: PeerKey, is_served: bool, now: Instant) -> Option<u32> {
        let ahead = if is_served { self.ahead } else { 1 };
        loop {
            let known = self.peers.get(&peer).filter(|known| known.open < ahead && known.has < self.pieces)?;
            let stale_too = known.open == 0;
            let piece = self.next_fresh().or_else(|| self.next_stale(peer).filter(|_| stale_too))?;
            let offer = Offer { peer, at: now, begun: false, held_since: None };
            self.offers.entry(piece).or_default().push(offer);
            let known = self.known(peer);
            known.open += 1;
            known.moved_at.get_or_insert(now);
            if known.shown.set(piece) {
                return Some(piece);
            }
        }
    }

    fn next_fresh(&mut self) -> Option<u32> {
        while let Some(piece) = self.fresh.pop() {
            self.is_fresh.clear(piece);
            // Some came from elsewhere meanwhile.
            if self.copies[piece as usize] == 0 {
                return Some(piece);
            }
        }
        None
    }

    fn next_stale(&mut self, peer: PeerKey) -> Option<u32> {
        let has_none = |piece: &u32| {
            let offers = self.offers.get(piece);
            self.copies[*piece as usize] == 0 && offers.is_some_and(|all| all.iter().all(|offer| offer.peer != peer))
        };
        let at = self.stale.iter().rposition(has_none)?;
        Some(self.stale.remove(at))
    }

    /// Ends the offers of a piece that `which` says: their peers may be offered another one.
    fn close_offers(&mut self, piece: u32, which: impl Fn(&Offer) -> bool) {
        let Some(offers) = self.offers.get_mut(&piece) else { return };
        let is_spread = self.copies[piece as usize] > 0;
        for offer in offers.extract_if(.., |offer| which(offer)) {
            let Some(known) = self.peers.get_mut(&offer.peer) else { continue };
            known.open -= 1;
            self.hungry.insert(offer.peer);
            if is_spread && !offer.begun && offer.held_since.is_none() {
                self.withdrawn.push((offer.peer, piece));
            }
        }
        if offers.is_empty() {
            self.offers.remove(&piece);
        }
    }

    /// A piece that nobody else has any more, and that nobody is about to have, is offered anew.
    fn renew(&mut self, piece: u32) {
        let is_there = self.copies[piece as usize] > 0 || self.offers.contains_key(&piece);
        if !is_there && self.is_fresh.set(piece) {
            self.fresh.push(piece);
        }
    }

    /// Whether at most one peer lacks anything: there is nobody to pass pieces on to.
    fn is_lone(&self) -> bool {
        self.peers.values().filter(|known| known.has < self.pieces).nth(1).is_none()
    }

    fn known(&mut self, peer: PeerKey) -> &mut Known {
        let pieces = self.pieces;
        self.peers.entry(peer).or_insert_with(|| Known {
            shown: Bitfield::new(pieces),
            open: 0,
            has: 0,
            moved_at: None,
            moved: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LONG: u32 = 4 << 20;

    /// A content of so many pieces, each of which is longer than what is offered ahead, and peers that have nothing.
    fn with(pieces: u32, peers: u32) -> (SuperSeed, Instant) {
        let now = Instant::now();
        let mut seed = SuperSeed::new(pieces, LONG, 7);
        (0..peers).for_each(|peer| seed.came(PeerKey(peer), &Bitfield::new(pieces), now));
        (seed, now)
    }

    fn offers(seed: &mut SuperSeed, peer: u32, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| seed.offer(PeerKey(peer), true, now)).collect()
    }

    #[test]
    fn no_piece_is_offered_twice_and_two_are_offered_ahead() {
        let (mut seed, now) = with(5, 3);
        let mut all: Vec<u32> = (0..3).flat_map(|peer| offers(&mut seed, peer, now)).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        assert!(offers(&mut seed, 2, now).is_empty(), "nothing is left");
        let mut short = SuperSeed::new(1000, AHEAD_BYTES / 64, 7);
        short.came(PeerKey(0), &Bitfield::new(1000), now);
        assert_eq!(offers(&mut short, 0, now).len(), 64);
        // Who has no slot is to become interested, and no more.
        let (mut seed, now) = with(5, 1);
        assert!(seed.offer(PeerKey(0), false, now).is_some() && seed.offer(PeerKey(0), false, now).is_none());
    }

    #[test]
    fn only_who_passes_a_piece_on_gets_another() {
        let (mut seed, now) = with(9, 3);
        let first = offers(&mut seed, 0, now);
        seed.take_hungry();
        seed.gained(PeerKey(0), first[0], now);
        assert_eq!((offers(&mut seed, 0, now), seed.take_hungry()), (vec![], BTreeSet::new()));
        seed.gained(PeerKey(1), first[0], now);
        assert_eq!(seed.take_hungry(), BTreeSet::from([PeerKey(0)]));
        assert_eq!(offers(&mut seed, 0, now).len(), 1);
        // Patience has an end.
        seed.gained(PeerKey(0), first[1], now);
        seed.on_time(now + PATIENCE - SECOND);
        assert!(offers(&mut seed, 0, now).is_empty());
        seed.on_time(now + PATIENCE);
        assert_eq!(offers(&mut seed, 0, now + PATIENCE).len(), 1);
    }

    #[test]
    fn a_lone_peer_waits_for_nobody() {
        let (mut seed, now) = with(5, 1);
        for _ in 0..5 {
            let piece = seed.offer(PeerKey(0), true, now).unwrap();
            seed.gained(PeerKey(0), piece, now);
        }
        assert!(seed.is_over());
        assert!(offers(&mut seed, 0, now).is_empty());
        // A seed beside it fetches nothing either.
        let (mut seed, now) = with(5, 1);
        seed.came(PeerKey(9), &Bitfield::full(5), now);
        assert!(seed.is_over());
    }

    #[test]
    fn what_only_one_had_that_left_is_offered_anew() {
        let (mut seed, now) = with(2, 3);
        let theirs = offers(&mut seed, 0, now);
        assert_eq!((theirs.len(), offers(&mut seed, 1, now)), (2, vec![]));
        seed.gained(PeerKey(0), theirs[0], now);
        let mut has = Bitfield::new(2);
        has.set(theirs[0]);
        seed.uncount(PeerKey(0), &has);
        seed.left(PeerKey(0));
        let mut again = offers(&mut seed, 1, now);
        again.sort_unstable();
        assert_eq!(again, [0, 1]);
        assert!(!seed.is_shown(PeerKey(0), theirs[0]) && seed.is_shown(PeerKey(1), 0));
    }

    #[test]
    fn who_takes_nothing_keeps_no_piece_to_itself() {
        let (mut seed, now) = with(2, 3);
        let idle = offers(&mut seed, 0, now);
        let at = |seconds: u32| now + SECOND * seconds;
        seed.on_time(at(9));
        assert!(offers(&mut seed, 1, at(9)).is_empty());
        // While something moves, others wait, though not for ever.
        seed.sent(PeerKey(0), idle[0]);
        seed.on_time(at(10));
        assert!(offers(&mut seed, 1, at(10)).is_empty());
        seed.on_time(at(20));
        let second = offers(&mut seed, 1, at(20));
        assert_eq!(second.len(), 1, "one at a time of what others were offered");
        // One is begun with there, the other not: that one is taken back once somebody has it.
        for piece in [idle[0], idle[1]] {
            seed.gained(PeerKey(2), piece, at(21));
        }
        let withdrawn = seed.take_withdrawn();
        assert!(
            withdrawn.contains(&(PeerKey(0), idle[1])) && !withdrawn.contains(&(PeerKey(0), idle[0])),
            "{withdrawn:?}"
        );
        seed.hide(PeerKey(0), idle[1]);
        assert!(!seed.is_shown(PeerKey(0), idle[1]));
        let (mut seed, now) = with(2, 2);
        offers(&mut seed, 0, now);
        for second in 1..=120 {
            seed.sent(PeerKey(0), 0);
            seed.sent(PeerKey(0), 1);
            seed.on_time(now + SECOND * second);
            assert_eq!(offers(&mut seed, 1, now + SECOND * second).len(), usize::from(second == 120), "{second}");
        }
    }

    #[test]
    fn two_that_are_one_keep_what_they_were_told() {
        let (mut seed, now) = with(9, 3);
        let (one, other) = (offers(&mut seed, 0, now), offers(&mut seed, 1, now));
        seed.gained(PeerKey(1), other[0], now);
        seed.merge(PeerKey(1), PeerKey(0));
        assert!(one.iter().chain(&other).all(|piece| seed.is_shown(PeerKey(0), *piece)));
        assert!(offers(&mut seed, 0, now).is_empty());
        seed.gained(PeerKey(2), other[0], now);
        seed.gained(PeerKey(2), other[1], now);
        seed.gained(PeerKey(2), one[0], now);
        assert_eq!(offers(&mut seed, 0, now).len(), 1);
        seed.left(PeerKey(0));
        seed.merge(PeerKey(0), PeerKey(2));
    }

    proptest::proptest! {
        /// Whatever peers claim, in whatever order: nobody is offered what it was told of, has more offered than is allowed, or holds a piece
        /// back from all others when it is gone.
        #[test]
        fn claims_of_all_kinds_leave_the_books_right(
            steps in proptest::collection::vec((0u8..8, 0u32..4, 0u32..6, 0u64..15), 1..200),
        ) {
            let pieces = 6;
            let (mut seed, mut now) = with(pieces, 0);
            let mut has: BTreeMap<u32, Bitfield> = BTreeMap::new();
            for (step, peer, piece, seconds) in steps {
                let key = PeerKey(peer);
                match (step, has.contains_key(&peer)) {
                    (0, false) => {
                        has.insert(peer, Bitfield::new(pieces));
                        seed.came(key, &has[&peer], now);
                    }
                    (1, true) => {
                        seed.uncount(key, &has.remove(&peer).unwrap());
                        seed.left(key);
                    }
                    (2 | 3, true) if has.get_mut(&peer).unwrap().set(piece) => seed.gained(key, piece, now),
                    (4, true) if has.get_mut(&peer).unwrap().clear(piece) => seed.lost(key, piece),
                    (5, true) => seed.sent(key, piece),
                    (6, _) => {
                        now += SECOND * seconds as u32;
                        seed.on_time(now);
                    }
                    (7, true) => {
                        let told = seed.shown(key).cloned().unwrap_or(Bitfield::new(pieces));
                        for piece in offers(&mut seed, peer, now) {
                            proptest::prop_assert!(!told.get(piece));
                        }
                    }
                    _ => {}
                }
                for (peer, known) in &seed.peers {
                    let open = seed.offers.values().flatten().filter(|offer| offer.peer == *peer).count() as u32;
                    proptest::prop_assert_eq!((known.open, known.has), (open, has[&peer.0].count()));
                    proptest::prop_assert!(open <= AHEAD_MIN);
                }
                for piece in 0..pieces {
                    let copies = has.values().filter(|has| has.get(piece)).count();
                    proptest::prop_assert_eq!(usize::from(seed.copies[piece as usize]), copies);
                    let is_offered = seed.offers.contains_key(&piece);
                    proptest::prop_assert!(copies > 0 || is_offered || seed.is_fresh.get(piece), "{} is nobody's", piece);
                }
                proptest::prop_assert_eq!(seed.fresh.len() as u32, seed.is_fresh.count());
                proptest::prop_assert_eq!(seed.is_over(), (0..pieces).all(|piece| has.values().any(|has| has.get(piece))));
            }
        }
    }
}
