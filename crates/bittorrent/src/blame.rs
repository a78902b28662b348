//! Who sent wrong data.
//!
//! In v2 every block has a hash of its own, so the sender of a wrong block is known at once: [`Blame::block_failed`].
//! In v1 only the whole piece has one. When it fails, the driver hands over, block by block, who sent it and a keyed
//! 128-bit digest of its bytes (keyed, so that a liar cannot send two blocks of one digest). Guilt follows from:
//!
//! - all blocks came from one peer: it is that peer;
//! - a peer sent the same block twice with different bytes: it lied once;
//! - once the piece passes, every recorded digest that differs from the good block's names its sender, and everybody
//!   else who was suspected for that piece is cleared.
//!
//! So that this comes soon, a failed piece is to be fetched from a single peer that is not suspected, if there is one
//! ([`Verdict::suspects`] goes to [`crate::picker::Picker::prefer_single_source`]), and who stays suspected over
//! [`PAROLE_AFTER`] pieces gets only pieces of its own ([`Verdict::parole`], [`crate::picker::Picker::set_parole`]), so that
//! its next lie is its alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::PeerKey;

/// Failed attempts kept per piece; with more, the oldest is forgotten. The second attempt is from one peer, so the
/// third or fourth names somebody.
pub const ATTEMPTS_MAX: usize = 4;

/// Block records kept over all pieces: 2 MiB. With more, the piece that failed first is forgotten. Sixteen failed
/// attempts at pieces of 64 MiB, or a thousand at 1 MiB.
pub const RECORDS_MAX: usize = 64 * 1024;

/// Pieces a peer may be suspected for at the same time before it is put on parole.
pub const PAROLE_AFTER: usize = 3;

/// A block of a failed piece: who sent it and the digest of what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The block inside the piece.
    pub block: u32,
    /// Who.
    pub peer: PeerKey,
    /// Keyed digest of its bytes.
    pub digest: u128,
}

/// What follows from a piece that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Proven liars: ban them.
    pub guilty: Vec<PeerKey>,
    /// Who sent some of the piece and is not cleared. Fetch it again from one peer that is not among them.
    pub suspects: Vec<PeerKey>,
    /// Of these, who is suspected so often that it should get only pieces of its own.
    pub parole: Vec<PeerKey>,
}

/// What follows from a piece that passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Proven liars: ban them.
    pub guilty: Vec<PeerKey>,
    /// Suspected no more for any piece: parole ends.
    pub cleared: Vec<PeerKey>,
}

#[derive(Clone, Debug)]
struct Case {
    /// Order of first failure, to forget the oldest.
    number: u64,
    attempts: Vec<Vec<Sent>>,
}

/// The failed pieces of one content that have not passed yet.
#[derive(Clone, Debug, Default)]
pub struct Blame {
    cases: BTreeMap<u32, Case>,
    cases_seen: u64,
    records: usize,
}

impl Blame {
    /// Nobody is suspected.
    pub fn new() -> Self {
        Self::default()
    }

    /// The hash of `piece` (v1) did not match what `sent` lists.
    ///
    /// `whole` says that `sent` lists all of its blocks: where some sender is forgotten, nobody is the only one.
    pub fn piece_failed(&mut self, piece: u32, mut sent: Vec<Sent>, whole: bool) -> Verdict {
        let mut guilty = BTreeSet::new();
        let peers: BTreeSet<PeerKey> = sent.iter().map(|sent| sent.peer).collect();
        sent.truncate(RECORDS_MAX);
        if whole && peers.len() == 1 {
            guilty.extend(&peers);
        }
        self.cases_seen += 1;
        let case = self.cases.entry(piece).or_insert(Case { number: self.cases_seen, attempts: Vec::new() });
        guilty.extend(contradictions(&case.attempts, &sent));
        self.records += sent.len();
        case.attempts.push(sent);
        if case.attempts.len() > ATTEMPTS_MAX {
            self.records -= case.attempts.remove(0).len();
        }
        self.forget_oldest();
        self.forget_peers(&guilty);
        let suspects: BTreeSet<PeerKey> = self.cases.get(&piece).map(Case::peers).unwrap_or_default();
        let counts = self.suspected_counts();
        let often = |peer: &PeerKey| counts.get(peer).is_some_and(|count| *count >= PAROLE_AFTER);
        let parole = suspects.iter().copied().filter(often).collect();
        Verdict { guilty: guilty.into_iter().collect(), suspects: suspects.into_iter().collect(), parole }
    }

    /// Whether `piece` failed before: then [`Blame::piece_passed`] wants the digests of its blocks.
    pub fn is_suspected(&self, piece: u32) -> bool {
        self.cases.contains_key(&piece)
    }

    /// `piece` passed; `digest` answers for each of its blocks.
    pub fn piece_passed(&mut self, piece: u32, digest: impl Fn(u32) -> u128) -> Cleared {
        let Some(case) = self.cases.remove(&piece) else { return Cleared::default() };
        self.records -= case.records();
        let all = case.attempts.iter().flatten();
        let guilty: BTreeSet<PeerKey> =
            all.filter(|sent| sent.digest != digest(sent.block)).map(|sent| sent.peer).collect();
        self.forget_peers(&guilty);
        let cleared = case.peers().into_iter().filter(|peer| !guilty.contains(peer));
        let counts = self.suspected_counts();
        let cleared = cleared.filter(|peer| !counts.contains_key(peer)).collect();
        Cleared { guilty: guilty.into_iter().collect(), cleared }
    }

    /// What is held against `from` is held against `into`: they turned out to be one.
    pub fn merge(&mut self, from: PeerKey, into: PeerKey) {
        let all = self.cases.values_mut().flat_map(|case| case.attempts.iter_mut().flatten());
        all.filter(|sent| sent.peer == from).for_each(|sent| sent.peer = into);
    }

    /// For how many pieces each peer is suspected at present.
    fn suspected_counts(&self) -> BTreeMap<PeerKey, usize> {
        let mut counts = BTreeMap::new();
        for peer in self.cases.values().flat_map(Case::peers) {
            *counts.entry(peer).or_insert(0) += 1;
        }
        counts
    }

    /// The guilty need no more proof; their records go. A case without records goes too.
    fn forget_peers(&mut self, guilty: &BTreeSet<PeerKey>) {
        if guilty.is_empty() {
            return;
        }
        for case in self.cases.values_mut() {
            let before = case.records();
            case.attempts.iter_mut().for_each(|attempt| attempt.retain(|sent| !guilty.contains(&sent.peer)));
            case.attempts.retain(|attempt| !attempt.is_empty());
            self.records -= before - case.records();
        }
        self.cases.retain(|_, case| !case.attempts.is_empty());
    }

    fn forget_oldest(&mut self) {
        while self.records > RECORDS_MAX {
            let Some(oldest) = self.cases.iter().min_by_key(|(_, case)| case.number).map(|(piece, _)| *piece) else {
                return;
            };
            if let Some(case) = self.cases.remove(&oldest) {
                self.records -= case.records();
            }
        }
    }
}

impl Case {
    fn records(&self) -> usize {
        self.attempts.iter().map(Vec::len).sum()
    }

    fn peers(&self) -> BTreeSet<PeerKey> {
        self.attempts.iter().flatten().map(|sent| sent.peer).collect()
    }
}

/// Peers that sent a block of `sent` before, with other bytes.
fn contradictions(attempts: &[Vec<Sent>], sent: &[Sent]) -> Vec<PeerKey> {
    let before: BTreeMap<(u32, PeerKey), u128> =
        attempts.iter().flatten().map(|sent| ((sent.block, sent.peer), sent.digest)).collect();
    let differs = |sent: &&Sent| before.get(&(sent.block, sent.peer)).is_some_and(|digest| *digest != sent.digest);
    sent.iter().filter(differs).map(|sent| sent.peer).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn good(piece: u32, block: u32) -> u128 {
        u128::from(piece) << 32 | u128::from(block)
    }

    fn lie(rng: &mut fastrand::Rng) -> u128 {
        rng.u128(..) | 1 << 127
    }

    /// Fetches pieces from `peers` with the hints obeyed where they can be, until `pieces` passed. Liars lie about a
    /// block with this chance. Answers who was banned.
    fn run(seed: u64, peers: u32, liars: u32, chance: f64, pieces: u32) -> BTreeSet<PeerKey> {
        const BLOCKS: u32 = 16;
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut blame, mut banned, mut parole) = (Blame::new(), BTreeSet::new(), BTreeSet::new());
        for piece in 0..pieces {
            let mut suspects: Vec<PeerKey> = Vec::new();
            loop {
                let all: Vec<PeerKey> = (0..peers).map(PeerKey).filter(|peer| !banned.contains(peer)).collect();
                let clean: Vec<PeerKey> = all.iter().copied().filter(|peer| !suspects.contains(peer)).collect();
                let single = blame.is_suspected(piece).then_some(if clean.is_empty() { &all } else { &clean });
                let single = single.map(|from| from[rng.usize(..from.len())]);
                let mix: Vec<PeerKey> = all.iter().copied().filter(|peer| !parole.contains(peer)).collect();
                let mut sent = Vec::new();
                for block in 0..BLOCKS {
                    let from = if mix.is_empty() { &all } else { &mix };
                    let peer = single.unwrap_or_else(|| from[rng.usize(..from.len())]);
                    let lies = peer.0 < liars && rng.f64() < chance;
                    sent.push(Sent { block, peer, digest: if lies { lie(&mut rng) } else { good(piece, block) } });
                }
                if sent.iter().all(|sent| sent.digest == good(piece, sent.block)) {
                    let after = blame.piece_passed(piece, |block| good(piece, block));
                    banned.extend(after.guilty);
                    parole.retain(|peer| !after.cleared.contains(peer));
                    break;
                }
                let verdict = blame.piece_failed(piece, sent, true);
                assert!(verdict.guilty.iter().all(|peer| !verdict.suspects.contains(peer)));
                banned.extend(verdict.guilty);
                parole.extend(verdict.parole);
                suspects = verdict.suspects;
            }
            assert!(!blame.is_suspected(piece));
        }
        assert_eq!((blame.records, blame.cases.len()), (0, 0));
        banned
    }

    proptest! {
        #[test]
        fn one_liar_among_five_is_found_and_nobody_else(seed: u64) {
            prop_assert_eq!(run(seed, 6, 1, 1.0, 20), BTreeSet::from([PeerKey(0)]));
        }

        #[test]
        fn two_liars_are_found_and_nobody_else(seed: u64) {
            prop_assert_eq!(run(seed, 6, 2, 0.5, 60), BTreeSet::from([PeerKey(0), PeerKey(1)]));
        }

        #[test]
        fn a_liar_that_mostly_tells_the_truth_is_found(seed: u64) {
            prop_assert_eq!(run(seed, 6, 1, 0.05, 400), BTreeSet::from([PeerKey(0)]));
        }
    }

    fn sent(block: u32, peer: u32, digest: u128) -> Sent {
        Sent { block, peer: PeerKey(peer), digest }
    }

    #[test]
    fn the_only_sender_is_guilty_at_once() {
        let verdict = Blame::new().piece_failed(3, vec![sent(0, 1, 7), sent(1, 1, 8)], true);
        assert_eq!(verdict, Verdict { guilty: vec![PeerKey(1)], ..Verdict::default() });
    }

    #[test]
    fn nobody_is_the_only_sender_where_others_are_forgotten() {
        let mut blame = Blame::new();
        let verdict = blame.piece_failed(3, vec![sent(0, 1, 7), sent(1, 1, 8)], false);
        assert_eq!((verdict.guilty.len(), verdict.suspects), (0, vec![PeerKey(1)]));
        // Of a piece with more blocks than are kept, the first ones may all be one peer's.
        let mut many: Vec<Sent> = (0..RECORDS_MAX as u32).map(|block| sent(block, 1, 7)).collect();
        many.push(sent(RECORDS_MAX as u32, 2, 7));
        assert_eq!(Blame::new().piece_failed(4, many, true).guilty, []);
    }

    #[test]
    fn two_versions_of_a_block_convict_their_sender() {
        let mut blame = Blame::new();
        let verdict = blame.piece_failed(3, vec![sent(0, 1, 7), sent(1, 2, 8)], true);
        assert_eq!((verdict.guilty.len(), verdict.suspects), (0, vec![PeerKey(1), PeerKey(2)]));
        assert_eq!(blame.piece_failed(3, vec![sent(0, 1, 9), sent(1, 3, 8)], true).guilty, [PeerKey(1)]);
    }

    #[test]
    fn parole_begins_at_the_third_piece_and_ends_when_cleared() {
        let mut blame = Blame::new();
        for piece in 0..PAROLE_AFTER as u32 {
            let verdict = blame.piece_failed(piece, vec![sent(0, 1, 7), sent(1, 10 + piece, 8)], true);
            let expected = if piece + 1 < PAROLE_AFTER as u32 { vec![] } else { vec![PeerKey(1)] };
            assert_eq!(verdict.parole, expected, "piece {piece}");
        }
        for piece in 0..PAROLE_AFTER as u32 {
            let after = blame.piece_passed(piece, |block| if block == 0 { 7 } else { 9 });
            assert_eq!(after.guilty, [PeerKey(10 + piece)]);
            assert_eq!(after.cleared.is_empty(), piece + 1 < PAROLE_AFTER as u32);
        }
    }

    #[test]
    fn memory_is_bounded_in_attempts_and_in_pieces() {
        let mut blame = Blame::new();
        for attempt in 0..ATTEMPTS_MAX as u32 + 3 {
            blame.piece_failed(0, vec![sent(0, 2 * attempt, 1), sent(1, 2 * attempt + 1, 1)], true);
        }
        assert_eq!(blame.records, 2 * ATTEMPTS_MAX);
        for piece in 1..=RECORDS_MAX as u32 / 1024 {
            blame.piece_failed(piece, (0..1024).map(|block| sent(block, 100 + block % 2, 1)).collect(), true);
        }
        assert!(!blame.is_suspected(0), "the oldest goes");
        assert!(blame.records <= RECORDS_MAX && blame.is_suspected(1));
        blame.piece_failed(
            9999,
            (0..RECORDS_MAX as u32 * 2).map(|block| sent(block, 100 + block % 2, 1)).collect(),
            true,
        );
        assert!(blame.records <= RECORDS_MAX);
    }
}
