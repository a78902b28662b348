//! Which block to ask of which peer.
//!
//! A [`Picker`] belongs to one content that is being fetched; drop it once everything is there. It knows how many
//! peers have each piece, which pieces are wanted and in which order, and which connection was asked for which block.
//! It keeps no bytes and sends nothing: [`Picker::pick`] hands out blocks, and every block handed out comes back through
//! [`Picker::received`] or [`Picker::returned`]. How many blocks a connection should have outstanding is the matter of
//! [`crate::pipeline`], who lied is the matter of [`crate::blame`].
//!
//! # How a piece is chosen
//! 1. Pieces with a deadline, earliest first. One that is late is asked of several peers.
//! 2. The piece this connection is at, to its end: contiguous blocks of a piece go to one peer, so that the uploader
//!    reads in order and wrong data has one sender.
//! 3. For a path so slow that a whole piece would take it [`PATH_PIECE_SECS`]: one that another path of its peer is at, so that it is whole,
//!    and can be passed on, as soon as the paths together can bring it. Then a piece somebody left unfinished.
//! 4. For a peer so slow that a whole piece would take it [`WHOLE_PIECE_SECS`]: a piece another slow peer is at.
//! 5. A piece nobody began, in the order of [`PieceOrder`] and [`RequestStrategy`], while the number of unfinished pieces
//!    and [`PickerConfig::open_bytes_max`] allow it. So fast peers work on pieces of their own and no slow
//!    peer holds them up. Among equally rare ones, first what the peer suggests (BEP 6): it knows what others are being sent.
//! 6. A piece another connection is at.
//! 7. Endgame: every wanted block is requested. Blocks outstanding at peers that are not much faster are asked of this one too.
//!
//! From afar, 3 to 6 are for pieces that fall to us among our neighbours, until all of these were asked for ([`Picker::divide`]).
//!
//! Of several paths to one peer ([`PathPace`]), each leaves to the others what they bring before a block could come over it. So
//! where order matters, blocks are taken by order alone, whoever is at their piece, each path at the place that is needed when
//! its block comes; and at the end a slow path is asked for nothing that it would be waited for. No block is asked for over
//! two paths before the endgame, and in it only where that brings it [`DUPLICATE_GAIN`] sooner than whichever was asked.
//!
//! ```
//! use std::time::Instant;
//! use anabranch_bittorrent::{ConnId, picker::{Pace, Picker, PickerConfig, Received}};
//! use anabranch_content::{bitfield::Bitfield, geometry::Geometry};
//!
//! let geometry = Geometry::new(65536, 65536 * 2, Vec::new());
//! let mut picker = Picker::new(geometry, &Bitfield::new(2), PickerConfig { seed: 1, ..PickerConfig::default() });
//! let (conn, has, mut blocks) = (ConnId(0), Bitfield::full(2), Vec::new());
//! picker.peer_joined(&has);
//! picker.pick(conn, &has, None, 8, Pace::default(), Instant::now(), &mut blocks);
//! assert_eq!(blocks.len(), 8);
//! assert!(matches!(picker.received(conn, blocks[0]), Received::First { piece_complete: false, .. }));
//! ```

mod loss;
mod neighbours;
mod open;
mod pieces;
mod select;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::geometry::Geometry;

use crate::{ConnId, PeerKey};
use neighbours::Division;
pub use neighbours::{NEIGHBOURS_MAX, Rank};
use open::{Block, Delivery, OpenPiece};
use pieces::{Pieces, State};
pub use select::{
    DUPLICATE_GAIN, DUPLICATES_MAX, ORDER_SCAN_MAX, PARTIALS_SPARE, PATH_PIECE_SECS, PICK_BLOCKS_MAX, SUGGESTED_MAX,
    SUGGESTIONS_AWAITED, WHOLE_PIECE_SECS, WINDOW,
};

/// A block of a piece, in units of [`anabranch_content::geometry::BLOCK_LEN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockRef {
    /// The piece.
    pub piece: u32,
    /// The block's index inside the piece.
    pub block: u32,
}

/// How much a piece is wanted: 0 (not at all) to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(u8);

impl Priority {
    /// Do not fetch.
    pub const SKIP: Self = Self(0);
    /// What every piece has unless told otherwise.
    pub const NORMAL: Self = Self(4);

    /// `None` above 7.
    pub fn new(level: u8) -> Option<Self> {
        (level <= pieces::PRIORITY_MAX).then_some(Self(level))
    }

    /// 0 to 7.
    pub fn level(self) -> u8 {
        self.0
    }
}

/// In which order pieces are begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PieceOrder {
    /// By priority; among equals the one that the fewest peers have. Until the first piece is whole a random one, so
    /// that there is soon something to give (BEP 3; thesis, 2.1.2).
    #[default]
    RarestFirst,
    /// From the front of the content ([`Picker::set_front`]), whatever the priority (as long as it is not 0).
    Sequential,
}

/// go-torrent's request strategies (thesis, 3.1 and 5.4.1), as far as they make sense for a picker that never
/// assigns a block twice by accident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RequestStrategy {
    /// The fastest connection takes pieces strictly in order; the others begin, among equally good pieces, the one
    /// they are inclined to (their own fixed random order), so that they stay out of its way. Where memory for new
    /// pieces has run out, fast connections also ask for blocks that hang at ones four times slower.
    #[default]
    PrioritizeFastest,
    /// Every connection begins the piece it is inclined to among the best [`WINDOW`] ones. Less overlap
    /// between connections, a looser order.
    FuzzyPrioritized,
    /// Every connection takes the next block in order, whichever piece others are at, and no block is asked for twice
    /// before the endgame, not even one past its deadline. Least traffic, tightest order; a slow peer can delay a piece.
    StrictlyPrioritized,
}

/// How to pick.
#[derive(Clone, Debug)]
pub struct PickerConfig {
    /// Order of pieces.
    pub order: PieceOrder,
    /// How connections share the work.
    pub strategy: RequestStrategy,
    /// Decides every tie. Same seed and same calls: same picks.
    pub seed: u64,
    /// Bytes requested or received in unverified pieces above which no further piece is begun (begun ones are
    /// finished, so it can be exceeded by the free blocks of unfinished pieces).
    pub open_bytes_max: u64,
}

impl Default for PickerConfig {
    fn default() -> Self {
        Self {
            order: PieceOrder::default(),
            strategy: RequestStrategy::default(),
            seed: 0,
            // Room for one connection at 1 Gbit/s x 100 ms with gain 2, and as much again for pieces being hashed.
            open_bytes_max: 64 << 20,
        }
    }
}

/// How the pieces of a peer are counted: one by one, or, where it had all, as a seed less what it has lost since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tally {
    /// One for each piece that it has.
    Having,
    /// One for all pieces, and one less for each that it lacks.
    Lacking,
}

/// How fast a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pace {
    /// What the peer delivers per second over it, 0 if unknown.
    pub rate_bytes: u64,
    /// Where it is one of several paths to its peer.
    pub path: Option<PathPace>,
    /// It leads to a neighbour: see [`Picker::divide`].
    pub is_near: bool,
    /// Whose connection it is.
    pub peer: Option<PeerKey>,
    /// Whether something that it was asked for has not come yet.
    pub is_busy: bool,
}

/// How a path stands beside its peer's other paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPace {
    /// What the others bring, of what is missing, before a block that is asked for now can come over this one.
    pub lead_bytes: u64,
    /// When that block is expected.
    pub arrives_at: Instant,
}

/// What became of a block that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Keep it.
    First {
        /// Connections that were asked for it too: send them a cancel (BEP 3, "cancel"). Their requests are forgotten here.
        also_requested_from: Vec<ConnId>,
        /// Every block of the piece is there: verify it, then tell [`Picker::piece_passed`] or [`Picker::piece_failed`].
        piece_complete: bool,
    },
    /// It was there already: drop it, count it as waste.
    Duplicate,
    /// Nobody asked for it and nobody wants it: drop it. A peer that does this often misbehaves.
    NotRequested,
}

/// What a peer that suggests pieces is not asked to begin besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Leaves {
    #[default]
    Nothing,
    /// What only peers with everything have: somebody else is likely being sent it.
    Fresh,
    /// Anything: the next suggestion is on its way.
    All,
}

/// What a peer suggests.
#[derive(Clone, Debug)]
struct Suggested {
    /// Nobody began them; the newest last.
    pieces: Vec<u32>,
    /// When it suggested one last.
    at: Instant,
    /// Since then, a connection of it has run out of what it was asked for.
    is_dry: bool,
}

/// What the picker knows of a connection.
#[derive(Clone, Debug, Default)]
struct Conn {
    rate_bytes: u64,
    /// The piece it takes blocks of.
    current: Option<u32>,
    parole: bool,
    is_near: bool,
    peer: Option<PeerKey>,
    /// What else than suggestions it is not asked to begin.
    leaves: Leaves,
    /// When all it was asked for is expected, where it is one of several paths to its peer.
    due: Option<Instant>,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Picker {
    geometry: Geometry,
    config: PickerConfig,
    pieces: Pieces,
    open: Vec<OpenPiece>,
    /// Open pieces with a free block.
    partials: BTreeSet<u32>,
    conns: BTreeMap<ConnId, Conn>,
    deadlines: BTreeSet<(Instant, u32)>,
    deadline_of: BTreeMap<u32, Instant>,
    /// Pieces that failed, and who must not be the one to fetch them again if another can.
    suspects: BTreeMap<u32, Vec<ConnId>>,
    fastest: Option<(ConnId, u64, Instant)>,
    open_bytes: u64,
    requested: u64,
    free: u64,
    /// Where the sequential order begins; what is before it comes last.
    front: u32,
    division: Division,
    suggestions: BTreeMap<PeerKey, Suggested>,
    full_peers: u32,
}

impl Picker {
    /// A picker for a content of which `have` is verified already. Pieces with nothing to fetch (all padding) are
    /// never picked: verify them without.
    pub fn new(geometry: Geometry, have: &Bitfield, config: PickerConfig) -> Self {
        let empty = |piece| geometry.block_count(piece) == 0;
        let pieces = Pieces::new(have, geometry.piece_count(), Priority::NORMAL.0, empty, config.seed);
        Self {
            geometry,
            config,
            pieces,
            open: Vec::new(),
            partials: BTreeSet::new(),
            conns: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            deadline_of: BTreeMap::new(),
            suspects: BTreeMap::new(),
            fastest: None,
            open_bytes: 0,
            requested: 0,
            free: 0,
            front: 0,
            division: Division::default(),
            suggestions: BTreeMap::new(),
            full_peers: 0,
        }
    }

    /// Where [`PieceOrder::Sequential`] begins, instead of the first piece: what is before `piece` comes after the last one.
    pub fn set_front(&mut self, piece: u32) {
        self.front = piece;
    }

    /// A peer said what it has (bitfield, have all). Constant time for a peer that has all. The answer goes to
    /// [`Picker::peer_left`] in the end.
    pub fn peer_joined(&mut self, has: &Bitfield) -> Tally {
        if has.is_full() {
            self.pieces.seeds_add();
            Tally::Lacking
        } else {
            has.iter_ones().for_each(|piece| self.pieces.shift(piece, true));
            Tally::Having
        }
    }

    /// The connection is gone; `has` as it was last told to the picker. See also [`Picker::forget`].
    pub fn peer_left(&mut self, has: &Bitfield, tally: Tally) {
        match tally {
            Tally::Lacking => {
                self.pieces.seeds_sub();
                has.iter_zeros().for_each(|piece| self.pieces.shift(piece, true));
            }
            Tally::Having => has.iter_ones().for_each(|piece| self.pieces.shift(piece, false)),
        }
    }

    /// A peer got `piece` (BEP 3, "have"), which is new. Constant time: a peer stays counted the way it was when it joined,
    /// so nothing that it says later costs more than what it says.
    pub fn peer_has(&mut self, piece: u32) {
        self.pieces.shift(piece, true);
    }

    /// A peer no longer offers `piece` (BEP 54). Constant time.
    pub fn peer_lost_piece(&mut self, piece: u32) {
        self.pieces.shift(piece, false);
    }

    /// How many connected peers have `piece`.
    pub fn availability(&self, piece: u32) -> u32 {
        self.pieces.availability(piece)
    }

    /// Sets how much `piece` is wanted. A piece already begun is finished even when it is no longer wanted.
    pub fn set_priority(&mut self, piece: u32, priority: Priority) {
        if self.geometry.block_count(piece) > 0 {
            self.pieces.set_priority(piece, priority.0);
        }
    }

    /// When `piece` is needed (streaming). Pieces with a deadline come before all others. Gone once it has passed.
    pub fn set_deadline(&mut self, piece: u32, deadline: Option<Instant>) {
        if let Some(old) = self.deadline_of.remove(&piece) {
            self.deadlines.remove(&(old, piece));
        }
        let missing = self.pieces.state(piece).is_some_and(|state| state != State::Have);
        if let (Some(deadline), true) = (deadline, missing) {
            self.deadline_of.insert(piece, deadline);
            self.deadlines.insert((deadline, piece));
        }
    }

    /// When `piece` is needed.
    pub fn deadline(&self, piece: u32) -> Option<Instant> {
        self.deadline_of.get(&piece).copied()
    }

    /// The piece that is needed first, and when, where it is late and some of it was asked of nobody.
    pub fn first_late(&self, now: Instant) -> Option<(Instant, u32)> {
        let first = self.deadlines.first().copied().filter(|(due, _)| *due <= now)?;
        let is_free = match self.pieces.state(first.1) {
            Some(State::Idle) => true,
            Some(State::Open) => self.pieces.open_at(first.1).is_some_and(|at| self.open[at].free > 0),
            _ => false,
        };
        is_free.then_some(first)
    }

    /// Whether `piece` can be verified: in v2 its hash has to come first (BEP 52). Pieces are fetchable at first.
    pub fn set_fetchable(&mut self, piece: u32, fetchable: bool) {
        if self.geometry.block_count(piece) > 0 {
            self.pieces.set_fetchable(piece, fetchable);
        }
    }

    /// How many wanted, unverified pieces a peer has: count once, then add 1 when it announces a piece that
    /// [`Picker::wants`], subtract 1 when a piece it has passes. Interest lasts while it is above 0. Count anew after
    /// priorities changed.
    pub fn wanted_count(&self, has: &Bitfield) -> u32 {
        pieces::common_count(self.pieces.wanted(), has)
    }

    /// Whether `piece` is wanted and not verified, begun or not.
    pub fn wants(&self, piece: u32) -> bool {
        self.pieces.wanted().get(piece)
    }

    /// `peer` suggests `piece` (BEP 6): among equally rare ones it is begun first, and for a while nothing else that only peers with everything
    /// have. Answers whether that was news; of many the newest [`SUGGESTED_MAX`] count.
    pub fn suggested(&mut self, peer: PeerKey, piece: u32, now: Instant) -> bool {
        let known = self.suggestions.entry(peer).or_insert(Suggested { pieces: Vec::new(), at: now, is_dry: false });
        if known.pieces.contains(&piece) {
            return false;
        }
        let has_room = known.pieces.len() < SUGGESTED_MAX;
        if !has_room {
            known.pieces.remove(0);
        }
        known.pieces.push(piece);
        (known.at, known.is_dry) = (now, false);
        has_room
    }

    /// What `peer` suggested does not count any more.
    pub fn forget_suggested(&mut self, peer: PeerKey) {
        self.suggestions.remove(&peer);
    }

    /// How many connected peers have everything.
    pub fn set_full_peers(&mut self, count: u32) {
        self.full_peers = count;
    }

    /// `block` arrived from `conn`. One that came after its request was returned is kept where it is still missing.
    pub fn received(&mut self, conn: ConnId, block: BlockRef) -> Received {
        if self.pieces.state(block.piece) == Some(State::Idle) && self.accepts(conn, block) {
            // All its requests were returned, and one is answered after all. Whoever is asked next goes on with it.
            self.open_piece(conn, block.piece);
            if let Some(open) = self.open.last_mut() {
                open.owner = open.owner.filter(|_| open.single_source);
            }
        }
        let Some(at) = self.pieces.open_at(block.piece) else {
            let have = self.pieces.state(block.piece) == Some(State::Have);
            let known = have && block.block < self.geometry.block_count(block.piece);
            return if known { Received::Duplicate } else { Received::NotRequested };
        };
        let open = &mut self.open[at];
        match open.blocks.get(block.block as usize) {
            None => return Received::NotRequested,
            Some(Block::Free) if open.single_source && open.owner.is_some_and(|owner| owner != conn) => {
                return Received::NotRequested;
            }
            Some(_) => {}
        }
        let free_before = open.free;
        let Delivery::First(also_requested_from) = open.receive(block.block, conn) else { return Received::Duplicate };
        let (free, piece_complete) = (open.free, open.is_complete());
        if free < free_before {
            self.free -= 1;
            self.open_bytes += u64::from(self.geometry.block_len(block.piece, block.block));
            if free == 0 {
                self.partials.remove(&block.piece);
            }
        } else {
            self.requested -= 1;
        }
        Received::First { also_requested_from, piece_complete }
    }

    /// `conn` will not deliver `block` (reject, timeout): somebody else is asked, or the same again if nobody else can.
    pub fn returned(&mut self, conn: ConnId, block: BlockRef) {
        if let Some(at) = self.pieces.open_at(block.piece) {
            if self.give_back(at, block.block, conn) {
                let open = &mut self.open[at];
                open.returner = Some(conn);
                open.owner = open.owner.filter(|owner| *owner != conn);
            }
            self.close_untouched(at);
        }
    }

    /// `conn` is not to deliver `block` any more, through no fault of its own: anybody may be asked next, it too.
    pub fn withdrawn(&mut self, conn: ConnId, block: BlockRef) {
        if let Some(at) = self.pieces.open_at(block.piece) {
            if self.give_back(at, block.block, conn) {
                let open = &mut self.open[at];
                open.owner = open.owner.filter(|owner| *owner != conn);
            }
            self.close_untouched(at);
        }
    }

    /// The same of all that `conn` was asked for (choke without the fast extension, disconnect), which is `blocks`, or more.
    pub fn withdrawn_all(&mut self, conn: ConnId, blocks: impl Iterator<Item = BlockRef>) {
        let current = self.conns.get_mut(&conn).and_then(|known| known.current.take());
        if let Some(at) = current.and_then(|piece| self.pieces.open_at(piece)) {
            let open = &mut self.open[at];
            open.owner = open.owner.filter(|owner| *owner != conn);
        }
        blocks.for_each(|block| self.withdrawn(conn, block));
    }

    /// The connection is gone: its requests, which are `blocks`, its rate, its parole. Blocks it delivered stay.
    pub fn forget(&mut self, conn: ConnId, blocks: impl Iterator<Item = BlockRef>) {
        self.withdrawn_all(conn, blocks);
        self.conns.remove(&conn);
        if self.fastest.is_some_and(|(fastest, ..)| fastest == conn) {
            self.fastest = None;
        }
    }

    /// `piece` was verified, whatever its state here was.
    pub fn piece_passed(&mut self, piece: u32) {
        match self.pieces.state(piece) {
            None | Some(State::Have) => return,
            Some(State::Open) => self.drop_open(piece),
            Some(State::Idle | State::Out) => {}
        }
        self.pieces.set_have(piece);
        self.set_deadline(piece, None);
        self.suspects.remove(&piece);
    }

    /// `piece` did not verify: all its blocks are open again. Ask [`Picker::contributors`] first.
    pub fn piece_failed(&mut self, piece: u32) {
        if self.pieces.state(piece) == Some(State::Open) {
            self.drop_open(piece);
        }
    }

    /// Who delivered which block of an open piece.
    pub fn contributors(&self, piece: u32) -> impl Iterator<Item = (u32, ConnId)> + '_ {
        let blocks = self.pieces.open_at(piece).map_or(&[][..], |at| &self.open[at].blocks);
        blocks.iter().enumerate().filter_map(|(at, block)| match block {
            Block::Received(conn) => Some((at as u32, *conn)),
            Block::Free | Block::Requested(_) => None,
        })
    }

    /// `piece` failed: fetch it again from one connection, and not from a suspect, where that can be done.
    pub fn prefer_single_source(&mut self, piece: u32, suspects: Vec<ConnId>) {
        if matches!(self.pieces.state(piece), Some(State::Idle | State::Out | State::Open)) {
            self.suspects.insert(piece, suspects);
            if let Some(at) = self.pieces.open_at(piece) {
                self.open[at].single_source = true;
            }
        }
    }

    /// A connection on parole gets only pieces of its own, so that its next failure is its alone.
    pub fn set_parole(&mut self, conn: ConnId, parole: bool) {
        self.conn_mut(conn).parole = parole;
    }

    /// Whether [`Picker::set_parole`] was last called with `true`.
    pub fn is_on_parole(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.parole)
    }

    /// Bytes requested or received in pieces that are not verified yet.
    pub fn open_bytes(&self) -> u64 {
        self.open_bytes
    }

    /// Whether every wanted block that can be fetched is requested or received, and some are still under way.
    pub fn endgame(&self) -> bool {
        self.requested > 0 && self.free == 0 && self.pieces.idle().count() == 0
    }

    /// Pieces wanted and not verified; 0 means done.
    pub fn wanted_missing_count(&self) -> u32 {
        self.pieces.wanted().count()
    }

    /// Blocks requested and not received, each counted once.
    #[cfg(test)]
    pub fn requested_count(&self) -> u64 {
        self.requested
    }

    /// What `conn` was asked for.
    #[cfg(test)]
    pub fn requested_from(&self, conn: ConnId) -> Vec<BlockRef> {
        let blocks = |open: &OpenPiece| {
            let held: Vec<u32> =
                (0..open.blocks.len() as u32).filter(|at| open.holders(*at).any(|by| by == conn)).collect();
            let piece = open.piece;
            held.into_iter().map(move |block| BlockRef { piece, block })
        };
        self.open.iter().flat_map(blocks).collect()
    }

    /// Pieces with a block requested or received.
    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    fn conn_mut(&mut self, conn: ConnId) -> &mut Conn {
        self.conns.entry(conn).or_default()
    }

    /// Answers whether there was such a request.
    fn give_back(&mut self, at: usize, block: u32, conn: ConnId) -> bool {
        let piece = self.open[at].piece;
        let (found, freed) = self.open[at].give_back(block, conn);
        if freed {
            self.requested -= 1;
            self.note_freed(piece, block);
        }
        found
    }

    fn note_freed(&mut self, piece: u32, block: u32) {
        self.free += 1;
        self.open_bytes -= u64::from(self.geometry.block_len(piece, block));
        self.partials.insert(piece);
    }

    fn close_untouched(&mut self, at: usize) {
        if self.open[at].is_untouched() {
            self.drop_open(self.open[at].piece);
        }
    }

    /// Takes an open piece off the books and puts it back on its shelf.
    fn drop_open(&mut self, piece: u32) {
        let Some(at) = self.pieces.open_at(piece) else { return };
        for (block, state) in (0..).zip(std::mem::take(&mut self.open[at].blocks)) {
            match state {
                Block::Free => self.free -= 1,
                Block::Requested(_) => self.requested -= 1,
                Block::Received(_) => {}
            }
            if state != Block::Free {
                self.open_bytes -= u64::from(self.geometry.block_len(piece, block));
            }
        }
        self.partials.remove(&piece);
        self.open.swap_remove(at);
        if let Some(moved) = self.open.get(at) {
            self.pieces.set_open(moved.piece, at);
        }
        self.pieces.set_closed(piece);
    }
}
