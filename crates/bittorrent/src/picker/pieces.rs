//! What is known of every piece: state, priority, availability; and the shelves that hold the pieces nobody began.
//!
//! A shelf is one (priority, availability) pair; its pieces lie in random order. A piece that becomes rarer or commoner
//! moves between shelves in constant time, and the rarest piece is found by walking the shelves, not the pieces.

use anabranch_content::bitfield::Bitfield;

/// Shelves per priority. Pieces that more peers have count as equally common; seeds are not counted here at all, and the few
/// pieces that one of them lacks count as the rarest.
const SHELVES_MAX: u16 = 1024;

/// Highest priority; 0 means do not fetch.
pub(super) const PRIORITY_MAX: u8 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not to be fetched now: priority 0, hash not yet known, or nothing in it but padding.
    Out,
    /// On a shelf, no block requested.
    Idle,
    /// Some block is requested or received.
    Open,
    /// Verified.
    Have,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Peers that have the piece of those that are counted piece by piece, less peers that lack it of those counted as seeds.
    availability: i16,
    priority: u8,
    state: State,
    fetchable: bool,
    /// Idle: place on its shelf. Open: place among the open pieces.
    at: u32,
}

#[derive(Clone, Debug, Default)]
struct Level {
    shelves: Vec<Vec<u32>>,
    count: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Pieces {
    entries: Vec<Entry>,
    /// Peers counted as having all.
    seeds: u32,
    /// By priority; level 0 stays empty.
    levels: [Level; PRIORITY_MAX as usize + 1],
    idle: Bitfield,
    /// No piece before this one is idle.
    idle_from: u32,
    /// Not verified and of a priority above 0, begun or not.
    wanted: Bitfield,
    have_count: u32,
    rng: fastrand::Rng,
}

impl Pieces {
    /// `empty` says which pieces have no block to fetch.
    pub(super) fn new(have: &Bitfield, count: u32, priority: u8, empty: impl Fn(u32) -> bool, seed: u64) -> Self {
        let blank = Entry { availability: 0, priority, state: State::Out, fetchable: true, at: 0 };
        let mut pieces = Self {
            entries: vec![blank; count as usize],
            seeds: 0,
            levels: Default::default(),
            idle: Bitfield::new(count),
            idle_from: 0,
            wanted: Bitfield::new(count),
            have_count: 0,
            rng: fastrand::Rng::with_seed(seed),
        };
        for piece in 0..count {
            if have.get(piece) {
                pieces.entries[piece as usize].state = State::Have;
                pieces.have_count += 1;
            } else if empty(piece) {
                pieces.entries[piece as usize].fetchable = false;
                pieces.entries[piece as usize].priority = 0;
            } else {
                pieces.wanted.set(piece);
                pieces.shelve(piece);
            }
        }
        pieces
    }

    pub(super) fn count(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(super) fn have_count(&self) -> u32 {
        self.have_count
    }

    /// `None` past the end.
    pub(super) fn state(&self, piece: u32) -> Option<State> {
        self.entries.get(piece as usize).map(|entry| entry.state)
    }

    pub(super) fn availability(&self, piece: u32) -> u32 {
        self.entries.get(piece as usize).map_or(0, |entry| self.seeds.saturating_add_signed(entry.availability.into()))
    }

    /// Sorts the pieces that should be fetched first to the front.
    pub(super) fn key(&self, piece: u32) -> (u8, i16) {
        let entry = &self.entries[piece as usize];
        (PRIORITY_MAX - entry.priority, entry.availability)
    }

    pub(super) fn idle(&self) -> &Bitfield {
        &self.idle
    }

    /// A place before which no piece is idle, near the first that is. Constant time on average: it moves on for good,
    /// and back only to a piece that came back.
    pub(super) fn idle_from(&mut self) -> u32 {
        let bytes = self.idle.as_bytes().iter().skip(self.idle_from as usize / 8);
        let skipped = bytes.take_while(|byte| **byte == 0).count() as u32;
        if skipped > 0 {
            self.idle_from = (self.idle_from / 8 + skipped) * 8;
        }
        self.idle_from
    }

    pub(super) fn wanted(&self) -> &Bitfield {
        &self.wanted
    }

    /// Where `piece` stands among the open ones; `None` unless it is open.
    pub(super) fn open_at(&self, piece: u32) -> Option<usize> {
        let entry = self.entries.get(piece as usize)?;
        (entry.state == State::Open).then_some(entry.at as usize)
    }

    pub(super) fn set_open(&mut self, piece: u32, at: usize) {
        self.unshelve(piece);
        let entry = &mut self.entries[piece as usize];
        entry.state = State::Open;
        entry.at = at as u32;
    }

    /// An open piece whose blocks are all free again goes back to its shelf.
    pub(super) fn set_closed(&mut self, piece: u32) {
        self.entries[piece as usize].state = State::Out;
        self.shelve(piece);
    }

    pub(super) fn set_have(&mut self, piece: u32) {
        self.unshelve(piece);
        self.entries[piece as usize].state = State::Have;
        self.wanted.clear(piece);
        self.have_count += 1;
    }

    /// A verified piece went missing.
    pub(super) fn set_lost(&mut self, piece: u32) {
        self.have_count -= 1;
        self.entries[piece as usize].state = State::Out;
        if self.entries[piece as usize].priority > 0 {
            self.wanted.set(piece);
        }
        self.shelve(piece);
    }

    pub(super) fn set_priority(&mut self, piece: u32, priority: u8) {
        let Some(entry) = self.entries.get(piece as usize) else { return };
        if entry.state == State::Have || entry.priority == priority {
            return;
        }
        self.unshelve(piece);
        self.entries[piece as usize].priority = priority;
        if priority == 0 {
            self.wanted.clear(piece);
        } else {
            self.wanted.set(piece);
        }
        self.shelve(piece);
    }

    pub(super) fn set_fetchable(&mut self, piece: u32, fetchable: bool) {
        if piece >= self.count() {
            return;
        }
        self.unshelve(piece);
        self.entries[piece as usize].fetchable = fetchable;
        self.shelve(piece);
    }

    pub(super) fn seeds_add(&mut self) {
        self.seeds += 1;
    }

    pub(super) fn seeds_sub(&mut self) {
        self.seeds = self.seeds.saturating_sub(1);
    }

    /// One more (`true`) or one fewer peer has `piece`.
    pub(super) fn shift(&mut self, piece: u32, more: bool) {
        let Some(entry) = self.entries.get_mut(piece as usize) else { return };
        let before = entry.availability;
        let after = if more { before.saturating_add(1) } else { before.saturating_sub(1) };
        if entry.state == State::Idle && shelf_of(before) != shelf_of(after) {
            self.unshelve(piece);
            self.entries[piece as usize].availability = after;
            self.shelve(piece);
        } else {
            entry.availability = after;
        }
    }

    /// Whether all idle pieces have one priority.
    pub(super) fn are_wanted_alike(&self) -> bool {
        self.levels.iter().filter(|level| level.count > 0).count() <= 1
    }

    /// Idle pieces, best first: by priority, then rarity, then chance.
    pub(super) fn by_rarity(&self) -> impl Iterator<Item = u32> + '_ {
        let levels = self.levels.iter().rev().filter(|level| level.count > 0);
        levels.flat_map(|level| level.shelves.iter().flatten().copied())
    }

    /// Any idle piece of the highest priority that has one, all equally likely.
    pub(super) fn random(&mut self) -> Option<u32> {
        let level = self.levels.iter().rev().find(|level| level.count > 0)?;
        let mut left = self.rng.usize(..level.count as usize);
        for shelf in &level.shelves {
            match shelf.get(left) {
                Some(piece) => return Some(*piece),
                None => left -= shelf.len(),
            }
        }
        None
    }

    pub(super) fn random_below(&mut self, end: u32) -> u32 {
        self.rng.u32(..end.max(1))
    }

    fn shelve(&mut self, piece: u32) {
        let entry = self.entries[piece as usize];
        if entry.state != State::Out || entry.priority == 0 || !entry.fetchable {
            return;
        }
        let level = &mut self.levels[usize::from(entry.priority)];
        let shelf = usize::from(shelf_of(entry.availability));
        if level.shelves.len() <= shelf {
            level.shelves.resize_with(shelf + 1, Vec::new);
        }
        let shelf = &mut level.shelves[shelf];
        // A random place, so that the order on a shelf stays random however pieces come and go.
        shelf.push(piece);
        let (last, at) = (shelf.len() - 1, self.rng.usize(..shelf.len()));
        shelf.swap(at, last);
        self.entries[shelf[last] as usize].at = last as u32;
        self.entries[piece as usize].at = at as u32;
        self.entries[piece as usize].state = State::Idle;
        level.count += 1;
        self.idle.set(piece);
        self.idle_from = self.idle_from.min(piece);
    }

    fn unshelve(&mut self, piece: u32) {
        let entry = self.entries[piece as usize];
        if entry.state != State::Idle {
            return;
        }
        let level = &mut self.levels[usize::from(entry.priority)];
        let shelf = &mut level.shelves[usize::from(shelf_of(entry.availability))];
        shelf.swap_remove(entry.at as usize);
        if let Some(moved) = shelf.get(entry.at as usize) {
            self.entries[*moved as usize].at = entry.at;
        }
        level.count -= 1;
        self.entries[piece as usize].state = State::Out;
        self.idle.clear(piece);
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut on_shelves = 0;
        for (priority, level) in self.levels.iter().enumerate() {
            assert_eq!(level.count as usize, level.shelves.iter().map(Vec::len).sum::<usize>());
            for (availability, shelf) in level.shelves.iter().enumerate() {
                for (at, piece) in shelf.iter().enumerate() {
                    let entry = self.entries[*piece as usize];
                    assert_eq!((entry.state, entry.at as usize), (State::Idle, at), "piece {piece}");
                    assert_eq!(usize::from(entry.priority), priority);
                    assert_eq!(usize::from(shelf_of(entry.availability)), availability);
                    on_shelves += 1;
                }
            }
        }
        assert_eq!(on_shelves, self.idle.count());
        assert!(self.idle.iter_ones().next().is_none_or(|first| first >= self.idle_from));
    }
}

fn shelf_of(availability: i16) -> u16 {
    availability.max(0).unsigned_abs().min(SHELVES_MAX - 1)
}

/// The pieces set in both, from `from` on. 64 pieces a step: a million pieces take some microseconds.
pub(super) fn common<'a>(left: &'a Bitfield, right: &'a Bitfield, from: u32) -> impl Iterator<Item = u32> + 'a {
    let words = left.as_bytes().len().min(right.as_bytes().len()).div_ceil(8);
    let first = (from / 64) as usize;
    (first..words).flat_map(move |at| {
        let mut word = word(left.as_bytes(), at) & word(right.as_bytes(), at);
        if at == first {
            word &= u64::MAX >> (from % 64);
        }
        std::iter::from_fn(move || {
            let bit = word.leading_zeros();
            word &= !(1u64 << 63).checked_shr(bit)?;
            Some(at as u32 * 64 + bit)
        })
    })
}

/// How many pieces are set in both.
pub(super) fn common_count(left: &Bitfield, right: &Bitfield) -> u32 {
    let words = left.as_bytes().len().min(right.as_bytes().len()).div_ceil(8);
    (0..words).map(|at| (word(left.as_bytes(), at) & word(right.as_bytes(), at)).count_ones()).sum()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let tail = &bytes[at * 8..];
    match tail.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut chunk = [0; 8];
            chunk[..tail.len()].copy_from_slice(tail);
            u64::from_be_bytes(chunk)
        }
    }
}
