//! Who reads a content while it arrives, and by when each piece is needed for that. Pure, and speaks no protocol.
//!
//! A reader is at one place of one file. The pieces from there on, as many as [`WINDOW_BYTES`] hold, have deadlines: the first at once,
//! the others as they would be needed at [`READ_BYTES_PER_SEC`]. Several readers share the window, and the piece that two of them need
//! has the earlier deadline. A reader that goes elsewhere, or away, takes its deadlines with it.
//!
//! Whatever fetches a content and lets it be read implements [`Readable`]: it carries the deadlines out, and says what is there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::Info;
use anabranch_content::storage::Storage;
use tokio::sync::Notify;

/// Bytes ahead of readers that have deadlines, all readers together: what memory for pieces under way holds, so that none of them waits
/// for it.
const WINDOW_BYTES: u64 = 48 << 20;
/// Pieces that have deadlines, as many as a picker looks at.
const WINDOW_PIECES_MAX: u32 = 64;
/// A reader has so many pieces ahead, whatever their length: the next one is asked for before the first is whole.
const WINDOW_PIECES_MIN: u32 = 2;
/// How fast a reader is taken to go on, until it waits: 8 Mbit/s, a film in high definition. It orders pieces of several readers, and
/// says which are late.
const READ_BYTES_PER_SEC: u64 = 1 << 20;
/// Readers of one content at once: more than connections of the server that they serve.
pub(crate) const READERS_MAX: usize = 256;

/// A piece and when it is needed; `None`: whenever it comes.
pub(crate) type Deadline = (u32, Option<Instant>);

/// What is at a place of a content.
pub(crate) enum Look {
    /// Verified bytes from there on, as many as lie together up to what was asked for.
    There {
        /// Where they are read.
        storage: Arc<Storage>,
        /// The end, in piece space.
        end: u64,
    },
    /// Not there yet.
    Missing,
    /// Nothing comes any more: the content failed, or is leaving.
    Over,
}

/// A content that can be read while it arrives.
pub(crate) trait Readable {
    /// Its readers.
    fn readers(&mut self) -> &mut Readers;
    /// Wakes whoever waits for a piece.
    fn arrived(&self) -> Rc<Notify>;
    /// What it is, once known.
    fn known(&self) -> Option<Arc<Info>>;
    /// What is in `range` of piece space.
    fn look(&self, range: Range<u64>) -> Look;
    /// Carries out what readers need: `deadlines` that are new or gone, and the piece from which on the rest is fetched in order.
    fn need(&mut self, deadlines: &[Deadline], front: Option<u32>, now: Instant);
    /// What is verified could not be read.
    fn unreadable(&mut self, piece: u32, reason: &str);
}

/// What is in `range` of the files of `storage`, of which the pieces of `have` are verified and written.
pub(crate) fn look(storage: &Arc<Storage>, have: &Bitfield, range: Range<u64>) -> Look {
    let geometry = &storage.info().geometry;
    let first = geometry.piece_at(range.start);
    let mut end = range.start;
    for piece in (first..geometry.piece_count()).take_while(|piece| have.get(*piece)) {
        end = geometry.piece_offset(piece) + u64::from(geometry.piece_len(piece));
        if end >= range.end {
            break;
        }
    }
    match end > range.start {
        true => Look::There { storage: Arc::clone(storage), end: end.min(range.end) },
        false => Look::Missing,
    }
}

/// Brings the deadlines up to date after a reader came, moved or left.
pub(crate) fn follow(content: &mut dyn Readable, now: Instant) {
    let Some(info) = content.known() else { return };
    let (deadlines, front) = content.readers().changes(info.geometry.piece_length(), now);
    if !deadlines.is_empty() {
        content.need(&deadlines, front, now);
    }
}

/// The readers of one content.
#[derive(Default)]
pub(crate) struct Readers {
    next: u64,
    places: BTreeMap<u64, Place>,
    told: BTreeMap<u32, Instant>,
    /// Who moved last.
    latest: Option<u64>,
}

/// Where a reader is.
struct Place {
    /// Its piece, and the one behind its file's last.
    pieces: Range<u32>,
    /// When it came to that piece.
    since: Instant,
}

impl Readers {
    /// A reader comes; `None` where there are [`READERS_MAX`].
    pub(crate) fn join(&mut self, now: Instant) -> Option<u64> {
        if self.places.len() >= READERS_MAX {
            return None;
        }
        self.next += 1;
        self.places.insert(self.next, Place { pieces: 0..0, since: now });
        Some(self.next)
    }

    /// It goes.
    pub(crate) fn leave(&mut self, reader: u64) {
        self.places.remove(&reader);
        self.latest = self.latest.filter(|latest| *latest != reader);
    }

    /// It is at the first of `pieces` now. Answers whether that is news.
    pub(crate) fn moved(&mut self, reader: u64, pieces: Range<u32>, now: Instant) -> bool {
        let Some(place) = self.places.get_mut(&reader) else { return false };
        if place.pieces == pieces {
            return false;
        }
        *place = Place { pieces, since: now };
        self.latest = Some(reader);
        true
    }

    /// All deadlines are said again with the next changes.
    pub(crate) fn repeat(&mut self) {
        self.told.clear();
    }

    /// Whether `piece` is about to be read.
    pub(crate) fn is_soon(&self, piece: u32) -> bool {
        self.told.contains_key(&piece)
    }

    /// What of the deadlines changed since the last call, and where who moved last is.
    pub(crate) fn changes(&mut self, piece_length: u32, now: Instant) -> (Vec<Deadline>, Option<u32>) {
        let active = self.places.values().filter(|place| !place.pieces.is_empty());
        let share = active.clone().count().max(1) as u32;
        let by_bytes = (WINDOW_BYTES / u64::from(share) / u64::from(piece_length)).min(u64::from(WINDOW_PIECES_MAX));
        let length = (by_bytes as u32).min(WINDOW_PIECES_MAX / share).max(WINDOW_PIECES_MIN);
        let mut wanted: BTreeMap<u32, Instant> = BTreeMap::new();
        for place in active {
            for (step, piece) in (0..length).zip(place.pieces.clone()) {
                let millis = u64::from(step) * u64::from(piece_length) * 1000 / READ_BYTES_PER_SEC;
                let at = place.since.min(now) + Duration::from_millis(millis);
                wanted.entry(piece).and_modify(|known| *known = at.min(*known)).or_insert(at);
            }
        }
        let gone = self.told.keys().filter(|piece| !wanted.contains_key(piece)).map(|piece| (*piece, None));
        let set = wanted.iter().filter(|(piece, at)| self.told.get(piece) != Some(at)).map(|(p, at)| (*p, Some(*at)));
        let changes = gone.chain(set).collect();
        self.told = wanted;
        (changes, self.latest.and_then(|latest| Some(self.places.get(&latest)?.pieces.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u32 = 1 << 20;

    /// The pieces with deadlines, as somebody sees them who carries all changes out.
    #[derive(Default)]
    struct Picker(BTreeMap<u32, Instant>);

    impl Picker {
        fn heed(&mut self, readers: &mut Readers, length: u32, now: Instant) {
            for (piece, at) in readers.changes(length, now).0 {
                match at {
                    Some(at) => self.0.insert(piece, at),
                    None => self.0.remove(&piece),
                };
            }
        }

        fn pieces(&self) -> Vec<u32> {
            self.0.keys().copied().collect()
        }
    }

    #[test]
    fn a_window_goes_with_its_reader_and_ends_with_it() {
        let (mut readers, mut picker, now) = (Readers::default(), Picker::default(), Instant::now());
        let reader = readers.join(now).unwrap();
        picker.heed(&mut readers, PIECE, now);
        assert!(picker.pieces().is_empty(), "it is nowhere yet");
        assert!(readers.moved(reader, 10..1000, now));
        assert!(!readers.moved(reader, 10..1000, now), "that is no news");
        picker.heed(&mut readers, PIECE, now);
        assert_eq!(picker.pieces(), (10..58).collect::<Vec<_>>());
        assert_eq!(picker.0[&10], now);
        assert!(picker.0.values().is_sorted());
        // A seek: nothing of the old place is left.
        readers.moved(reader, 990..1000, now);
        picker.heed(&mut readers, PIECE, now);
        assert_eq!(picker.pieces(), (990..1000).collect::<Vec<_>>());
        assert_eq!(readers.changes(PIECE, now), (Vec::new(), Some(990)), "nothing changed since");
        readers.leave(reader);
        picker.heed(&mut readers, PIECE, now);
        assert!(picker.pieces().is_empty());
    }

    #[test]
    fn readers_share_the_window_and_the_earlier_need_decides() {
        let (mut readers, mut picker, now) = (Readers::default(), Picker::default(), Instant::now());
        let (first, second) = (readers.join(now).unwrap(), readers.join(now).unwrap());
        readers.moved(first, 0..1000, now);
        readers.moved(second, 4..1000, now);
        picker.heed(&mut readers, PIECE, now);
        assert_eq!(picker.pieces(), (0..28).collect::<Vec<_>>());
        assert_eq!(picker.0[&4], now);
        readers.leave(second);
        picker.heed(&mut readers, PIECE, now);
        assert_eq!(picker.0[&4], now + Duration::from_secs(4));
        assert_eq!(picker.pieces(), (0..48).collect::<Vec<_>>());
    }

    #[test]
    fn windows_are_bounded_in_pieces_and_never_empty() {
        let now = Instant::now();
        for (length, count, pieces) in [(16 << 10, 1, 64), (128 << 20, 1, 2), (1 << 20, 64, 128), (48 << 20, 1, 2)] {
            let (mut readers, mut picker) = (Readers::default(), Picker::default());
            for at in 0..count {
                let reader = readers.join(now).unwrap();
                readers.moved(reader, at * 1000..at * 1000 + 1000, now);
            }
            picker.heed(&mut readers, length, now);
            assert_eq!(picker.0.len(), pieces, "{length} {count}");
        }
    }

    #[test]
    fn there_are_only_so_many_readers() {
        let (mut readers, now) = (Readers::default(), Instant::now());
        let all: Vec<u64> = (0..READERS_MAX).map(|_| readers.join(now).unwrap()).collect();
        assert_eq!(readers.join(now), None);
        readers.leave(all[7]);
        assert!(readers.join(now).is_some());
    }
}
