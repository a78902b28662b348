//! The choice itself: which piece next, and which blocks twice.

use std::ops::Range;
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;
use anabranch_content::geometry::BLOCK_LEN;

use super::open::{Block, OpenPiece};
use super::pieces::{State, common};
use super::{BlockRef, Conn, Leaves, Pace, PathPace, Picker, PieceOrder, RequestStrategy};
use crate::ConnId;

/// Blocks one call hands out at most: 16 MiB, more than any pipeline tops up at once.
pub const PICK_BLOCKS_MAX: usize = 1024;

/// Requests for one block beyond the first, at peers that bring anything at all: three at once make it unlikely that all are slow,
/// and waste little.
pub const DUPLICATES_MAX: usize = 2;

/// A peer that would need longer for a whole piece shares one with other slow peers (libtorrent's threshold too).
pub const WHOLE_PIECE_SECS: u64 = 20;

/// A path that would need longer for a whole piece shares one with the other paths of its peer.
pub const PATH_PIECE_SECS: u64 = 4;

/// Pieces with free blocks that may exist beyond one and a half per connection.
pub const PARTIALS_SPARE: usize = 4;

/// Among how many of the best pieces a connection follows its inclination.
pub const WINDOW: usize = 8;

/// Pieces remembered that a peer suggests.
pub const SUGGESTED_MAX: usize = 256;

/// How long the next suggestion of a peer is waited for. What it does not suggest is likely being sent to somebody else.
pub const SUGGESTIONS_AWAITED: Duration = Duration::from_secs(15);

/// Entries looked at on the shelves before the bit scan takes over: peers that have few of the rare pieces.
const SHELF_SCAN_MAX: usize = 1024;

/// Pieces the bit scan compares: from a random place, so the choice stays spread.
const BIT_SCAN_MAX: usize = 64;

/// Tries to hit a piece the peer has at random before rarity decides after all.
const RANDOM_TRIES: usize = 16;

/// Deadlines looked at per pick: a window of a stream, not the whole film.
const DEADLINES_SCAN_MAX: usize = 64;

/// A piece with a deadline this near is late: its blocks are asked of several peers.
const DEADLINE_MARGIN: Duration = Duration::from_secs(1);

/// Blocks looked at per pick for a second request: 16 MiB worth, or the endgame would walk everything each time.
const DUPLICATE_SCAN_MAX: usize = 1024;

/// For how long a connection counts as the fastest after its last pick.
const FASTEST_FOR: Duration = Duration::from_secs(5);

/// A block that one path of a peer was asked for is asked of another one for no less than this gain: the clocks of a busy
/// machine are off by tens of milliseconds, and every copy costs its length.
pub const DUPLICATE_GAIN: Duration = Duration::from_millis(100);

/// Pieces looked at for the place in the order at which a path's next block will be needed: 16 MiB of the smallest.
pub const ORDER_SCAN_MAX: usize = 1024;

/// Nothing is expected later than this, however slow a path is.
const DUE_MAX: Duration = Duration::from_secs(60);

/// In the endgame a peer may double a block whose holder is up to twice as fast.
const ENDGAME_RATIO: (u64, u64) = (1, 2);

/// Where memory has run out, only peers four times as fast as the holder double a block.
const RESCUE_RATIO: (u64, u64) = (4, 1);

impl Picker {
    /// Appends up to `blocks` blocks to ask of `conn`, whose peer has `has`, and marks them requested. `only` limits
    /// the choice to the allowed-fast set while choked (BEP 6). Appending none means: nothing for this peer now; ask again after a block came back or failed.
    #[allow(
        clippy::too_many_arguments,
        reason = "one call per top-up on the hot path; each argument has its own type or name"
    )]
    pub fn pick(
        &mut self,
        conn: ConnId,
        has: &Bitfield,
        only: Option<&[u32]>,
        blocks: usize,
        pace: Pace,
        now: Instant,
        out: &mut Vec<BlockRef>,
    ) {
        let end = out.len() + blocks.min(PICK_BLOCKS_MAX);
        self.note_rate(conn, pace.rate_bytes, now);
        let leaves = self.what_is_left(pace, now);
        let known = self.conn_mut(conn);
        (known.is_near, known.peer, known.leaves) = (pace.is_near, pace.peer, leaves);
        let begin = out.len();
        if let Some(only) = only {
            self.pick_among(conn, has, only, end, out);
            return;
        }
        if !self.deadlines.is_empty() {
            self.pick_deadlines(conn, has, pace, now, end, out);
        }
        match pace.path {
            // Everything will be asked for elsewhere, and be here, before it could come this way.
            Some(path) if path.lead_bytes >= self.free_bytes_max() => {}
            Some(path) if self.config.order == PieceOrder::Sequential => self.pick_in_order(conn, has, path, end, out),
            _ => self.pick_pieces(conn, has, end, out),
        }
        if out.len() < end {
            self.pick_duplicates(conn, has, pace, now, end, out);
        }
        let bytes = (out.len() - begin) as u64 * u64::from(BLOCK_LEN);
        let last = |path: PathPace| path.arrives_at + time_of(bytes, pace.rate_bytes);
        self.conn_mut(conn).due = pace.path.map(last);
    }

    fn pick_pieces(&mut self, conn: ConnId, has: &Bitfield, end: usize, out: &mut Vec<BlockRef>) {
        while out.len() < end {
            let Some(piece) = self.next_piece(conn, has) else { break };
            self.enter(conn, piece);
            self.take_blocks(conn, piece, 0, end, out);
        }
    }

    /// Blocks in their order, whoever is at their pieces, so that each path fetches what is needed when it comes: what the
    /// others bring before that is left to them.
    fn pick_in_order(&mut self, conn: ConnId, has: &Bitfield, path: PathPace, end: usize, out: &mut Vec<BlockRef>) {
        let (mut after, mut skip) = (None, path.lead_bytes / u64::from(BLOCK_LEN));
        for _ in 0..ORDER_SCAN_MAX {
            if out.len() >= end {
                return;
            }
            let Some(piece) = self.next_in_order(conn, has, after) else { break };
            after = Some(piece);
            let open = self.pieces.open_at(piece).map(|at| &self.open[at]);
            let free = open.map_or(self.geometry.block_count(piece), |open| open.free);
            if skip >= u64::from(free) {
                skip -= u64::from(free);
                continue;
            }
            let first = open.and_then(|open| open.nth_free(skip as u32)).unwrap_or(skip as u32);
            skip = 0;
            self.enter(conn, piece);
            self.take_blocks(conn, piece, first, end, out);
        }
        if out.len() < end
            && let Some(piece) = self.last_resort(conn, has, false)
            && skip == 0
        {
            self.enter(conn, piece);
            self.take_blocks(conn, piece, 0, end, out);
        }
    }

    /// The first piece behind `after` in the order of which `conn` may ask for a free block.
    fn next_in_order(&self, conn: ConnId, has: &Bitfield, after: Option<u32>) -> Option<u32> {
        let from = after.map_or(self.front, |piece| piece + 1);
        match after {
            Some(piece) if piece < self.front => self.next_within(conn, has, from..self.front),
            _ => self.next_within(conn, has, from..u32::MAX).or_else(|| self.next_within(conn, has, 0..self.front)),
        }
    }

    fn next_within(&self, conn: ConnId, has: &Bitfield, range: Range<u32>) -> Option<u32> {
        if range.is_empty() {
            return None;
        }
        let joinable = |piece: &u32| {
            let at = self.pieces.open_at(*piece);
            has.get(*piece) && at.is_some_and(|at| self.may_join(&self.open[at], conn, true))
        };
        let begun = self.partials.range(range.clone()).copied().find(joinable);
        let new = || {
            let mut within = common(self.pieces.idle(), has, range.start).take_while(|piece| *piece < range.end);
            within.find(|piece| !self.is_suspect(conn, *piece))
        };
        let new = if self.may_open() { new() } else { None };
        begun.into_iter().chain(new).min()
    }

    /// A piece's place in the sequential order.
    fn place_in_order(&self, piece: u32) -> u64 {
        match piece.checked_sub(self.front) {
            Some(steps) => u64::from(steps),
            None => u64::from(self.pieces.count()) + u64::from(piece),
        }
    }

    /// Bytes that nobody was asked for yet, at most.
    fn free_bytes_max(&self) -> u64 {
        let idle = u64::from(self.pieces.idle().count()) * u64::from(self.geometry.piece_length());
        self.free * u64::from(BLOCK_LEN) + idle
    }

    fn note_rate(&mut self, conn: ConnId, rate_bytes: u64, now: Instant) {
        self.conn_mut(conn).rate_bytes = rate_bytes;
        let replace = self.fastest.is_none_or(|(fastest, rate, seen)| {
            fastest == conn || rate_bytes > rate || now.saturating_duration_since(seen) > FASTEST_FOR
        });
        if replace {
            self.fastest = Some((conn, rate_bytes, now));
        }
    }

    fn pick_among(&mut self, conn: ConnId, has: &Bitfield, only: &[u32], end: usize, out: &mut Vec<BlockRef>) {
        for piece in only.iter().copied() {
            if out.len() >= end {
                return;
            }
            let open = self.pieces.open_at(piece).is_some_and(|at| self.may_join(&self.open[at], conn, false));
            if has.get(piece) && (open || self.pieces.state(piece) == Some(State::Idle)) {
                self.enter(conn, piece);
                self.take_blocks(conn, piece, 0, end, out);
            }
        }
    }

    fn pick_deadlines(
        &mut self,
        conn: ConnId,
        has: &Bitfield,
        pace: Pace,
        now: Instant,
        end: usize,
        out: &mut Vec<BlockRef>,
    ) {
        let first: Vec<(Instant, u32)> = self.deadlines.iter().take(DEADLINES_SCAN_MAX).copied().collect();
        let mut skip = pace.path.map_or(0, |path| path.lead_bytes / u64::from(BLOCK_LEN));
        for (deadline, piece) in first {
            if out.len() >= end {
                return;
            }
            if !has.get(piece) || !matches!(self.pieces.state(piece), Some(State::Idle | State::Open)) {
                continue;
            }
            let open = self.pieces.open_at(piece).map(|at| &self.open[at]);
            let free = u64::from(open.map_or(self.geometry.block_count(piece), |open| open.free));
            if skip < free {
                let from = open.map_or(Some(skip as u32), |open| open.nth_free(skip as u32)).unwrap_or(0);
                if open.is_none() {
                    self.enter(conn, piece);
                }
                self.take_blocks(conn, piece, from, end, out);
            }
            skip = skip.saturating_sub(free);
            let late = deadline <= now + DEADLINE_MARGIN;
            if late && self.config.strategy != RequestStrategy::StrictlyPrioritized {
                let helper = &mut Helper { pace, ratio: ENDGAME_RATIO, now };
                self.duplicate_blocks(conn, piece, helper, end, &mut { DUPLICATE_SCAN_MAX }, out);
            }
        }
    }

    /// A piece with a free block for `conn`; it may have to be opened.
    fn next_piece(&mut self, conn: ConnId, has: &Bitfield) -> Option<u32> {
        if self.config.strategy == RequestStrategy::StrictlyPrioritized {
            return self.next_strictly(conn, has).or_else(|| self.last_resort(conn, has, false));
        }
        let known = self.conns.get(&conn)?;
        if let Some(piece) = known.current.filter(|piece| self.partials.contains(piece) && has.get(*piece)) {
            let at = self.pieces.open_at(piece)?;
            if self.open[at].owner == Some(conn) {
                return Some(piece);
            }
        }
        let peer = known.peer;
        let is_path = |owner: ConnId| self.conns.get(&owner).is_some_and(|owner| owner.peer == peer);
        if peer.is_some()
            && self.needs_longer(conn, PATH_PIECE_SECS)
            && let Some(piece) =
                self.best_partial(conn, has, false, |owner, rank| owner.is_some_and(is_path).then_some(rank))
        {
            return Some(piece);
        }
        let of_ours = self.leaves_to_neighbours(conn);
        let left = self.best_partial(conn, has, of_ours, |owner, rank| owner.is_none().then_some(rank));
        let shared = || {
            let slow = self.is_slow(conn);
            let with = |owner: Option<ConnId>| slow && owner.is_some_and(|owner| self.is_slow(owner));
            if slow { self.best_partial(conn, has, of_ours, |owner, rank| with(owner).then_some(rank)) } else { None }
        };
        if let Some(piece) = left.or_else(shared) {
            return Some(piece);
        }
        if self.may_open()
            && let Some(piece) = self.next_new(conn, has, of_ours)
        {
            return Some(piece);
        }
        // The slowest owner needs help most.
        let helped =
            self.best_partial(conn, has, of_ours, |owner, _| Some(owner.map_or(0, |owner| self.rate_of(owner))));
        helped.or_else(|| self.last_resort(conn, has, of_ours))
    }

    /// The piece of least `rank` among those with free blocks that `conn` may join. `rank` gets the owner, unless that
    /// is `conn`, and what is nearest to the front (sequential) or to completion; `None` rules the piece out.
    fn best_partial(
        &self,
        conn: ConnId,
        has: &Bitfield,
        of_ours: bool,
        rank: impl Fn(Option<ConnId>, u64) -> Option<u64>,
    ) -> Option<u32> {
        let may_ask = |piece: &u32| self.may_ask(has, of_ours, *piece);
        let ranked = self.partials.iter().copied().filter(may_ask).filter_map(|piece| {
            let open = &self.open[self.pieces.open_at(piece)?];
            let in_order = self.config.order == PieceOrder::Sequential;
            let plain = if in_order { self.place_in_order(piece) } else { u64::from(open.free) };
            let rank = rank(open.owner.filter(|owner| *owner != conn), plain)?;
            self.may_join(open, conn, true).then_some((rank, piece))
        });
        ranked.min().map(|(_, piece)| piece)
    }

    /// The first piece in order that has a free block, begun or not.
    fn next_strictly(&mut self, conn: ConnId, has: &Bitfield) -> Option<u32> {
        let joinable = self.partials.iter().copied().filter(|piece| {
            let at = self.pieces.open_at(*piece);
            has.get(*piece) && at.is_some_and(|at| self.may_join(&self.open[at], conn, true))
        });
        let begun = joinable.min_by_key(|piece| self.strict_key(*piece));
        let new = if self.may_open() { self.next_new(conn, has, false) } else { None };
        match (begun, new) {
            (Some(begun), Some(new)) if self.strict_key(new) < self.strict_key(begun) => Some(new),
            (begun, new) => begun.or(new),
        }
    }

    /// Begun pieces come before new ones of the same key.
    fn strict_key(&self, piece: u32) -> u64 {
        match self.config.order {
            PieceOrder::Sequential => self.place_in_order(piece),
            PieceOrder::RarestFirst => u64::from(self.pieces.key(piece).0),
        }
    }

    /// Pieces that this connection failed on or is suspected of, once nothing else is left.
    fn last_resort(&mut self, conn: ConnId, has: &Bitfield, of_ours: bool) -> Option<u32> {
        let may_ask = |piece: &u32| self.may_ask(has, of_ours, *piece);
        let begun = self.partials.iter().copied().find(|piece| {
            let at = self.pieces.open_at(*piece);
            may_ask(piece) && at.is_some_and(|at| self.may_join(&self.open[at], conn, false))
        });
        let suspected = || self.suspects.keys().copied().find(|piece| may_ask(piece) && self.pieces.idle().get(*piece));
        begun.or_else(|| suspected().filter(|_| self.may_open()))
    }

    fn may_open(&self) -> bool {
        let partials_max = self.conns.len() * 3 / 2 + PARTIALS_SPARE;
        self.partials.len() < partials_max && self.open_bytes < self.config.open_bytes_max
    }

    /// `picky`: leave it to others that this connection failed on or is suspected of.
    fn may_join(&self, open: &OpenPiece, conn: ConnId, picky: bool) -> bool {
        if picky && (open.returner == Some(conn) || self.is_suspect(conn, open.piece)) {
            return false;
        }
        let mine = open.owner.is_none_or(|owner| owner == conn);
        let parole = self.conns.get(&conn).is_some_and(|conn| conn.parole);
        (mine || !(parole || open.is_being_fetched_alone()))
            && !(parole && open.has_others(conn, |other| self.conns.contains_key(&other)))
    }

    fn is_suspect(&self, conn: ConnId, piece: u32) -> bool {
        !self.suspects.is_empty() && self.suspects.get(&piece).is_some_and(|suspects| suspects.contains(&conn))
    }

    fn may_ask(&self, has: &Bitfield, of_ours: bool, piece: u32) -> bool {
        has.get(piece) && (!of_ours || self.division.is_ours(piece))
    }

    fn may_begin(&self, conn: ConnId, has: &Bitfield, of_ours: bool, piece: u32) -> bool {
        let leaves = self.conns.get(&conn).map_or(Leaves::Nothing, |conn| conn.leaves);
        let is_left = match leaves {
            Leaves::Nothing => false,
            Leaves::Fresh => self.availability(piece) <= self.full_peers,
            Leaves::All => true,
        };
        !is_left && self.may_ask(has, of_ours, piece) && !self.is_suspect(conn, piece)
    }

    /// A piece nobody began; `of_ours`: that falls to us among our neighbours.
    fn next_new(&mut self, conn: ConnId, has: &Bitfield, of_ours: bool) -> Option<u32> {
        if self.pieces.idle().count() == 0 {
            return None;
        }
        if self.config.order == PieceOrder::Sequential {
            let from = self.pieces.idle_from();
            let ahead = common(self.pieces.idle(), has, from.max(self.front));
            let behind = common(self.pieces.idle(), has, from).take_while(|piece| *piece < self.front);
            let window = ahead.chain(behind).filter(|piece| !self.is_suspect(conn, *piece));
            return self.inclined(conn, window, |_, _| true);
        }
        if let Some(piece) = self.next_suggested(conn, has) {
            return Some(piece);
        }
        if self.pieces.have_count() == 0 {
            for _ in 0..RANDOM_TRIES {
                match self.pieces.random() {
                    Some(piece) if self.may_begin(conn, has, of_ours, piece) => return Some(piece),
                    _ => {}
                }
            }
        }
        let usable = |piece: &u32| self.may_begin(conn, has, of_ours, *piece);
        let fuzzy = self.config.strategy == RequestStrategy::FuzzyPrioritized;
        let shelves = self.pieces.by_rarity().take(SHELF_SCAN_MAX).filter(usable);
        let found =
            self.inclined(conn, shelves, |first, piece| fuzzy || self.pieces.key(first) == self.pieces.key(piece));
        if found.is_some() || self.pieces.idle().count() as usize <= SHELF_SCAN_MAX {
            return found;
        }
        let from = self.pieces.random_below(self.pieces.count());
        let usable = |piece: &u32| self.may_begin(conn, has, of_ours, *piece);
        let ring =
            common(self.pieces.idle(), has, from).chain(common(self.pieces.idle(), has, 0).take_while(|p| *p < from));
        ring.filter(usable).take(BIT_SCAN_MAX).min_by_key(|piece| self.pieces.key(*piece))
    }

    /// What is not begun over a connection whose peer suggests pieces. It is waited for the next suggestion until nothing is on its way any more:
    /// that there is none left is not said.
    fn what_is_left(&mut self, pace: Pace, now: Instant) -> Leaves {
        let known = pace.peer.and_then(|peer| self.suggestions.get_mut(&peer));
        match known.filter(|known| now.saturating_duration_since(known.at) < SUGGESTIONS_AWAITED) {
            Some(known) => {
                let pieces = &self.pieces;
                known.pieces.retain(|piece| pieces.wanted().get(*piece) && pieces.state(*piece) != Some(State::Open));
                known.is_dry |= !pace.is_busy;
                if known.is_dry { Leaves::Fresh } else { Leaves::All }
            }
            None => Leaves::Nothing,
        }
    }

    /// A piece nobody began that the peer of `conn` suggests, where it has none that is rarer, or wanted more. Nobody else was suggested
    /// it, so it is nobody's part among neighbours.
    fn next_suggested(&self, conn: ConnId, has: &Bitfield) -> Option<u32> {
        let known = self.suggestions.get(&self.conns.get(&conn)?.peer?)?;
        let is_idle = |piece: &u32| self.pieces.state(*piece) == Some(State::Idle);
        let usable = |piece: &u32| is_idle(piece) && has.get(*piece) && !self.is_suspect(conn, *piece);
        let best = known.pieces.iter().copied().filter(usable).min_by_key(|piece| self.pieces.key(*piece))?;
        let may_begin = |piece: &u32| self.may_begin(conn, has, false, *piece);
        let rarest = self.pieces.by_rarity().take(SHELF_SCAN_MAX).find(may_begin);
        rarest.is_none_or(|rarest| self.pieces.key(best) <= self.pieces.key(rarest)).then_some(best)
    }

    /// Of `pieces`, best first, the one `conn` begins: the first, or by its inclination one of the best that are
    /// `equal` to the first.
    fn inclined(
        &self,
        conn: ConnId,
        mut pieces: impl Iterator<Item = u32>,
        equal: impl Fn(u32, u32) -> bool,
    ) -> Option<u32> {
        let window = match self.config.strategy {
            RequestStrategy::StrictlyPrioritized => 1,
            RequestStrategy::PrioritizeFastest if self.fastest.is_some_and(|(fastest, ..)| fastest == conn) => 1,
            RequestStrategy::PrioritizeFastest | RequestStrategy::FuzzyPrioritized => WINDOW,
        };
        let first = pieces.next()?;
        let rest = pieces.take(window - 1).take_while(|piece| equal(first, *piece));
        rest.chain([first]).min_by_key(|piece| inclination(self.config.seed, conn, *piece))
    }

    fn is_slow(&self, conn: ConnId) -> bool {
        self.needs_longer(conn, WHOLE_PIECE_SECS)
    }

    /// Whether a whole piece would take longer than this over `conn`.
    fn needs_longer(&self, conn: ConnId, secs: u64) -> bool {
        self.rate_of(conn).saturating_mul(secs) < u64::from(self.geometry.piece_length())
    }

    fn rate_of(&self, conn: ConnId) -> u64 {
        self.conns.get(&conn).map_or(0, |conn| conn.rate_bytes)
    }

    /// Makes `piece` the one `conn` takes blocks of, opening it where need be.
    fn enter(&mut self, conn: ConnId, piece: u32) {
        match self.pieces.open_at(piece) {
            Some(at) => {
                let open = &mut self.open[at];
                if open.owner.is_none() || (open.single_source && !open.is_being_fetched_alone()) {
                    open.owner = Some(conn);
                }
            }
            None => self.open_piece(conn, piece),
        }
        let old = self.conn_mut(conn).current.replace(piece).filter(|old| *old != piece);
        if let Some(at) = old.and_then(|old| self.pieces.open_at(old)) {
            let open = &mut self.open[at];
            open.owner = open.owner.filter(|owner| *owner != conn);
        }
    }

    pub(super) fn open_piece(&mut self, conn: ConnId, piece: u32) {
        let blocks = self.geometry.block_count(piece);
        let single = self.suspects.contains_key(&piece) || self.conn_mut(conn).parole;
        self.open.push(OpenPiece::new(piece, blocks, conn, single));
        self.pieces.set_open(piece, self.open.len() - 1);
        self.partials.insert(piece);
        self.free += u64::from(blocks);
    }

    fn take_blocks(&mut self, conn: ConnId, piece: u32, from: u32, end: usize, out: &mut Vec<BlockRef>) {
        let Some(at) = self.pieces.open_at(piece) else { return };
        let before = out.len();
        while out.len() < end {
            let Some(block) = self.open[at].take(conn, from) else { break };
            self.open_bytes += u64::from(self.geometry.block_len(piece, block));
            out.push(BlockRef { piece, block });
        }
        let taken = (out.len() - before) as u32;
        self.free -= u64::from(taken);
        self.requested += u64::from(taken);
        if self.open[at].free == 0 {
            self.partials.remove(&piece);
        }
    }

    fn pick_duplicates(
        &mut self,
        conn: ConnId,
        has: &Bitfield,
        pace: Pace,
        now: Instant,
        end: usize,
        out: &mut Vec<BlockRef>,
    ) {
        let strict = self.config.strategy != RequestStrategy::PrioritizeFastest;
        let ratio = match self.endgame() {
            true => ENDGAME_RATIO,
            false if self.open_bytes >= self.config.open_bytes_max && !strict => RESCUE_RATIO,
            false => return,
        };
        // Every connection starts at another piece, so that the copies spread over what is missing.
        let start = inclination(self.config.seed, conn, 0) as usize % self.open.len().max(1);
        let mut budget = DUPLICATE_SCAN_MAX;
        let mut helper = Helper { pace, ratio, now };
        for step in 0..self.open.len() {
            let open = &self.open[(start + step) % self.open.len()];
            if budget == 0 || out.len() >= end {
                return;
            }
            if open.requested() > 0 && has.get(open.piece) {
                self.duplicate_blocks(conn, open.piece, &mut helper, end, &mut budget, out);
            }
        }
    }

    /// Asks `conn` too for requested blocks of `piece` whose holders are all slow enough for its help.
    fn duplicate_blocks(
        &mut self,
        conn: ConnId,
        piece: u32,
        helper: &mut Helper,
        end: usize,
        budget: &mut usize,
        out: &mut Vec<BlockRef>,
    ) {
        let Some(at) = self.pieces.open_at(piece) else { return };
        for block in 0..self.open[at].blocks.len() as u32 {
            if out.len() >= end || *budget == 0 {
                return;
            }
            *budget -= 1;
            let open = &self.open[at];
            if !matches!(open.blocks[block as usize], Block::Requested(_)) {
                continue;
            }
            // Whoever was asked first may be slow, and somebody else have been asked since who is not.
            let known = |holder| self.conns.get(&holder);
            let slow_enough = |holder| holder != conn && known(holder).is_none_or(|holder| helper.helps(holder));
            // Peers that bring nothing do not count: a crowd of them would hold every block against those that do.
            let brings = |holder: &ConnId| known(*holder).is_some_and(|holder| holder.rate_bytes > 0);
            if !open.holders(block).all(slow_enough) || open.holders(block).filter(brings).count() > DUPLICATES_MAX {
                continue;
            }
            self.open[at].duplicate(block, conn);
            out.push(BlockRef { piece, block });
            helper.took_block();
        }
    }
}

/// Who may be asked for what others were asked for already.
#[derive(Clone, Copy)]
struct Helper {
    pace: Pace,
    ratio: (u64, u64),
    now: Instant,
}

impl Helper {
    /// Whether it has the rate for it: `ratio` times the holder's at least. Paths of one peer are compared by when their blocks
    /// come: a path is helped where that saves [`DUPLICATE_GAIN`]. Nobody knows when one that is late will deliver: it is
    /// taken to need as long again as it is late.
    fn helps(&self, holder: &Conn) -> bool {
        match (self.pace.path, holder.due) {
            (Some(path), Some(due)) => {
                let late = self.now.saturating_duration_since(due);
                let due_in = due.saturating_duration_since(self.now);
                let left = if self.ratio == ENDGAME_RATIO { late.max(due_in) } else { late };
                path.arrives_at.saturating_duration_since(self.now) + DUPLICATE_GAIN < left
            }
            _ => self.pace.rate_bytes.saturating_mul(self.ratio.1) >= holder.rate_bytes.saturating_mul(self.ratio.0),
        }
    }

    /// It was asked for one more: the next one comes later.
    fn took_block(&mut self) {
        if let Some(path) = &mut self.pace.path {
            path.arrives_at += time_of(u64::from(BLOCK_LEN), self.pace.rate_bytes);
        }
    }
}

/// What `bytes` take at `rate_bytes` a second; nothing while the rate is unknown.
fn time_of(bytes: u64, rate_bytes: u64) -> Duration {
    let secs = if rate_bytes == 0 { 0.0 } else { bytes as f64 / rate_bytes as f64 };
    Duration::from_secs_f64(secs.min(DUE_MAX.as_secs_f64()))
}

/// A connection's own fixed random order of the pieces.
fn inclination(seed: u64, conn: ConnId, piece: u32) -> u64 {
    mixed(seed, u64::from(conn.0) << 32 | u64::from(piece))
}

/// What chance makes of a number (SplitMix64).
pub(super) fn mixed(seed: u64, number: u64) -> u64 {
    let mut hash = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
