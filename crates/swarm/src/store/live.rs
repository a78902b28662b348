//! The bytes of a live stream, as far back as its window goes, for those who read it. Pure, and speaks no protocol.
//!
//! Chunks differ in length, and come in any order. One without bytes is the stream's end: its source has put it there.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A chunk that does not come for so long, while later ones are there, is left out.
pub(crate) const HOLE_PATIENCE: Duration = Duration::from_secs(15);

/// A stream's window.
#[derive(Debug, Default)]
pub(crate) struct LiveWindow {
    chunks: BTreeMap<u64, Arc<[u8]>>,
    /// How often the source began anew.
    stream: u64,
    /// Where this viewer begins, once it is known.
    start: Option<u64>,
    /// Chunks before it are forgotten.
    floor: u64,
    /// Where somebody begins who comes now.
    entry: u64,
    /// A player begins then, at the soonest.
    play_at: Option<Instant>,
    /// Bytes of all chunks that came.
    pub bytes: u64,
    /// Bytes of those that are here.
    held_bytes: usize,
    /// Nothing comes any more.
    pub is_over: bool,
    /// Wakes those who wait.
    pub arrived: Rc<Notify>,
}

/// What there is for a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LiveLook {
    /// These, and where to go on.
    Chunks(Vec<Arc<[u8]>>, LivePlace),
    /// Not there yet; one who waits since long leaves it out.
    Missing(LivePlace),
    /// Chunks from the place on are not to be had any more: so many, up to this place.
    Skipped(u64, LivePlace),
    /// The source began anew: what follows has nothing to do with what was before.
    Restarted(LivePlace),
    /// The source ended the stream.
    End,
    /// The content failed, or is leaving.
    Over,
}

/// Where a reader is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LivePlace {
    stream: u64,
    /// The next chunk; `None` before it has begun.
    pub chunk: Option<u64>,
    /// It plays what it reads, and is to have some in hand when it begins.
    plays: bool,
    /// Since when it waits for that.
    waits_since: Option<Instant>,
}

impl LivePlace {
    /// Where a player begins.
    pub(crate) fn of_player() -> Self {
        Self { plays: true, ..Self::default() }
    }
}

impl LiveWindow {
    /// The stream begins here, for this viewer, whose players begin at `play_at`.
    pub(crate) fn begin(&mut self, chunk: u64, play_at: Instant) {
        (self.start, self.entry, self.play_at) = (Some(chunk), chunk, Some(play_at));
        self.arrived.notify_waiters();
    }

    /// The source began anew.
    pub(crate) fn restart(&mut self) {
        self.chunks.clear();
        self.held_bytes = 0;
        self.stream += 1;
        (self.start, self.floor, self.entry) = (None, 0, 0);
        self.arrived.notify_waiters();
    }

    /// A chunk that holds.
    pub(crate) fn insert(&mut self, chunk: u64, payload: &[u8]) {
        self.bytes += payload.len() as u64;
        self.held_bytes += payload.len();
        let before = self.chunks.insert(chunk, payload.into());
        self.held_bytes -= before.map_or(0, |before| before.len());
        self.arrived.notify_waiters();
    }

    /// Chunks before this one are forgotten.
    pub(crate) fn discard_before(&mut self, chunk: u64) {
        self.floor = self.floor.max(chunk);
        let kept = self.chunks.split_off(&self.floor);
        let gone = std::mem::replace(&mut self.chunks, kept);
        self.held_bytes -= gone.values().map(|payload| payload.len()).sum::<usize>();
    }

    /// Chunks that are here, where their bytes are more than so many.
    pub(crate) fn chunks_beyond(&self, bytes_max: usize) -> Option<u64> {
        (self.held_bytes > bytes_max).then_some(self.chunks.len() as u64)
    }

    /// Who comes from now on begins here.
    pub(crate) fn enter_at(&mut self, chunk: u64) {
        self.entry = self.entry.max(chunk);
    }

    /// A chunk's bytes.
    pub(crate) fn get(&self, chunk: u64) -> Option<&Arc<[u8]>> {
        self.chunks.get(&chunk)
    }

    /// Whether the stream's end is here.
    pub(crate) fn is_ended(&self) -> bool {
        self.chunks.last_key_value().is_some_and(|(_, payload)| payload.is_empty())
    }

    /// What there is at `place`, `len_max` bytes at most and one chunk at least.
    pub(crate) fn look(&self, place: LivePlace, len_max: usize, now: Instant) -> LiveLook {
        let fresh = LivePlace { stream: self.stream, chunk: None, plays: place.plays, waits_since: None };
        if place.stream != self.stream && place.chunk.is_some() {
            return LiveLook::Restarted(fresh);
        }
        let at = |chunk| LivePlace { chunk: Some(chunk), ..fresh };
        let Some(position) = place.chunk.or(self.start.map(|start| self.entry.max(start))) else {
            return if self.is_over { LiveLook::Over } else { LiveLook::Missing(fresh) };
        };
        if place.chunk.is_none() && place.plays && !self.is_over && self.play_at.is_some_and(|at| now < at) {
            return LiveLook::Missing(fresh);
        }
        let (mut found, mut len, mut next) = (Vec::new(), 0, position);
        while let Some(payload) = self.chunks.get(&next) {
            if payload.is_empty() && found.is_empty() {
                return LiveLook::End;
            }
            if payload.is_empty() || len > 0 && len + payload.len() > len_max {
                break;
            }
            len += payload.len();
            found.push(Arc::clone(payload));
            next += 1;
        }
        if !found.is_empty() {
            return LiveLook::Chunks(found, at(next));
        }
        let since = place.waits_since.unwrap_or(now);
        let later = self.chunks.range(position..).next().map(|(chunk, _)| *chunk);
        let is_long = now.saturating_duration_since(since) >= HOLE_PATIENCE || self.is_over;
        match later {
            Some(later) if position < self.floor || is_long => LiveLook::Skipped(later - position, at(later)),
            _ if self.is_over => LiveLook::Over,
            _ => LiveLook::Missing(LivePlace { waits_since: Some(since), ..at(position) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(chunks: impl IntoIterator<Item = u64>) -> LiveWindow {
        let mut window = LiveWindow::default();
        window.begin(4, Instant::now());
        chunks.into_iter().for_each(|chunk| window.insert(chunk, &[chunk as u8; 10]));
        window
    }

    fn bytes(look: &LiveLook) -> Vec<u8> {
        match look {
            LiveLook::Chunks(chunks, _) => chunks.iter().map(|chunk| chunk[0]).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn readers_get_chunks_in_order_and_wait_for_those_that_lack() {
        let now = Instant::now();
        let mut window = window([4, 5, 7]);
        let look = window.look(LivePlace::default(), 1000, now);
        assert_eq!(bytes(&look), [4, 5]);
        let LiveLook::Chunks(_, place) = look else { return };
        let LiveLook::Missing(waiting) = window.look(place, 1000, now) else { panic!("chunk 6 is not there") };
        // Just before and at the end of the patience.
        let just = now + HOLE_PATIENCE - Duration::from_millis(1);
        assert!(matches!(window.look(waiting, 1000, just), LiveLook::Missing(_)));
        assert!(matches!(window.look(waiting, 1000, now + HOLE_PATIENCE), LiveLook::Skipped(1, _)));
        window.insert(6, &[6; 10]);
        assert_eq!(bytes(&window.look(waiting, 15, now)), [6]);
        assert_eq!(bytes(&window.look(waiting, 20, now)), [6, 7]);
    }

    #[test]
    fn who_plays_begins_when_it_is_time_and_who_records_at_once() {
        let now = Instant::now();
        let mut window = LiveWindow::default();
        window.begin(4, now + Duration::from_secs(1));
        (4..20).for_each(|chunk| window.insert(chunk, &[chunk as u8; 10]));
        assert_eq!(bytes(&window.look(LivePlace::default(), 20, now)), [4, 5]);
        let player = LivePlace::of_player();
        let before = window.look(player, 20, now + Duration::from_millis(999));
        assert_eq!(before, LiveLook::Missing(player));
        let LiveLook::Chunks(_, place) = window.look(player, 20, now + Duration::from_secs(1)) else {
            panic!("4 and 5")
        };
        // Once it plays it is given what there is.
        assert_eq!(bytes(&window.look(place, 20, now)), [6, 7]);
        // What is over does not begin any more.
        window.is_over = true;
        assert_eq!(bytes(&window.look(player, 20, now)), [4, 5]);
    }

    #[test]
    fn who_is_too_slow_is_told_how_much_is_gone() {
        let now = Instant::now();
        let mut window = window(4..20);
        let place = LivePlace { chunk: Some(6), ..LivePlace::default() };
        window.discard_before(6);
        assert_eq!(bytes(&window.look(place, 10, now)), [6]);
        window.discard_before(9);
        let LiveLook::Skipped(3, place) = window.look(place, 10, now) else { panic!("6, 7 and 8 are gone") };
        assert_eq!(bytes(&window.look(place, 10, now)), [9]);
        // Who comes later begins later.
        window.enter_at(15);
        assert_eq!(bytes(&window.look(LivePlace::default(), 10, now)), [15]);
        // What is here twice counts once.
        window.insert(15, &[15; 10]);
        assert_eq!((window.chunks_beyond(109), window.chunks_beyond(110)), (Some(11), None));
        window.discard_before(100);
        assert_eq!(window.chunks_beyond(0), None);
    }

    #[test]
    fn an_end_a_new_beginning_and_a_failure() {
        let now = Instant::now();
        let mut window = window(4..6);
        window.insert(6, &[]);
        assert!(window.is_ended());
        let LiveLook::Chunks(_, place) = window.look(LivePlace::default(), 100, now) else { panic!("4 and 5") };
        assert_eq!(window.look(place, 100, now), LiveLook::End);
        window.restart();
        let LiveLook::Restarted(place) = window.look(place, 100, now) else { panic!("it began anew") };
        assert!(matches!(window.look(place, 100, now), LiveLook::Missing(_)));
        window.is_over = true;
        assert_eq!(window.look(place, 100, now), LiveLook::Over);
    }
}
