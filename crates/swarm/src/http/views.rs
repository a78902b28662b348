//! How watching goes: who reads what where, how long a start takes, and how often and how long a reader waits.
//!
//! A reader waits where it asked for a byte that is not there yet. A player that holds a buffer of its own asks ahead of what it shows,
//! so its user sees fewer stalls than are counted here, and never more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A wait in the middle of an answer counts as a stall from here on: shorter ones are the rhythm in which pieces come.
pub const STALL_MIN: Duration = Duration::from_millis(500);

/// How watching goes, from the start on.
#[derive(Clone, Debug, Default)]
pub struct Views {
    /// Those who read now.
    pub now: Vec<View>,
    /// Requests for bytes of files.
    pub requests: u64,
    /// Bytes handed out.
    pub sent_bytes: u64,
    /// From the first request to its first byte.
    pub startup: Option<Duration>,
    /// Requests after that whose first byte had to be waited for.
    pub seeks: u64,
    /// The longest such wait.
    pub seek_longest: Duration,
    /// Waits of [`STALL_MIN`] and more in the middle of an answer, those that last among them.
    pub stalls: u64,
    /// What they took.
    pub stalled: Duration,
    /// Chunks of a live stream that readers were not given: they were too slow, or the chunks did not come.
    pub skipped_chunks: u64,
    /// How long ago what was handed out last of a live stream had been signed, by the clocks of its source and of this machine.
    pub age: Option<Duration>,
}

/// Who reads.
#[derive(Clone, Debug)]
pub struct View {
    /// The file, by its index in the file list.
    pub file: usize,
    /// The next byte.
    pub position: u64,
    /// Since when it waits for that byte.
    pub waits_since: Option<Instant>,
    asked: Instant,
    has_begun: bool,
}

/// Where views are noted: by connections, on their thread; looked at by whoever owns the server.
#[derive(Clone, Default)]
pub(super) struct Book(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    next: u64,
    open: BTreeMap<u64, View>,
    total: Views,
}

/// One answer, while it is given.
pub(super) struct Viewing {
    book: Book,
    number: u64,
}

impl Book {
    /// Somebody asks for bytes of `file` from `position` on.
    pub(super) fn open(&self, file: usize, position: u64, now: Instant) -> Viewing {
        self.with(|noted| {
            noted.next += 1;
            noted.total.requests += 1;
            let view = View { file, position, waits_since: None, asked: now, has_begun: false };
            noted.open.insert(noted.next, view);
            Viewing { book: self.clone(), number: noted.next }
        })
    }

    pub(super) fn views(&self, now: Instant) -> Views {
        self.with(|noted| {
            let mut views = noted.total.clone();
            views.now = noted.open.values().cloned().collect();
            for view in noted.open.values().filter(|view| view.has_begun) {
                views.add_stall(view.waits_since, now);
            }
            views
        })
    }

    fn with<T>(&self, note: impl FnOnce(&mut Noted) -> T) -> T {
        // Each note is whole before anything can panic.
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Views {
    fn add_stall(&mut self, since: Option<Instant>, now: Instant) {
        let waited = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if waited >= STALL_MIN {
            self.stalls += 1;
            self.stalled += waited;
        }
    }
}

impl Viewing {
    /// It wants the byte at `position`.
    pub(super) fn wants(&self, position: u64, now: Instant) {
        self.book.with(|noted| {
            if let Some(view) = noted.open.get_mut(&self.number) {
                view.position = position;
                view.waits_since = Some(now);
            }
        });
    }

    /// What it got of a live stream last was signed so long ago.
    pub(super) fn is_behind(&self, age: Option<Duration>) {
        self.book.with(|noted| noted.total.age = age);
    }

    /// It was not given so many chunks of a live stream.
    pub(super) fn skipped(&self, chunks: u64) {
        self.book.with(|noted| noted.total.skipped_chunks += chunks);
    }

    /// It got so many bytes from there on.
    pub(super) fn got(&self, bytes: u64, now: Instant) {
        self.book.with(|noted| {
            let Some(view) = noted.open.get_mut(&self.number) else { return };
            let (total, since) = (&mut noted.total, view.waits_since.take());
            total.sent_bytes += bytes;
            view.position += bytes;
            if std::mem::replace(&mut view.has_begun, true) {
                total.add_stall(since, now);
                return;
            }
            let took = now.saturating_duration_since(view.asked);
            if total.startup.is_none() {
                total.startup = Some(took);
            } else {
                total.seeks += 1;
                total.seek_longest = total.seek_longest.max(took);
            }
        });
    }
}

impl Drop for Viewing {
    fn drop(&mut self) {
        self.book.with(|noted| noted.open.remove(&self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_seeks_and_stalls_are_told_apart() {
        let (book, start) = (Book::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(book.views(start).startup, None);
        let first = book.open(0, 0, at(0));
        first.wants(0, at(0));
        assert_eq!(book.views(at(9000)).stalls, 0, "a start is no stall");
        first.got(100, at(700));
        first.wants(100, at(800));
        first.got(100, at(1299));
        assert_eq!((book.views(at(1299)).stalls, book.views(at(1299)).sent_bytes), (0, 200));
        first.wants(200, at(2000));
        let during = book.views(at(2600));
        assert_eq!(
            (during.stalls, during.stalled),
            (1, Duration::from_millis(600)),
            "one that lasts is counted already"
        );
        assert_eq!((during.now[0].position, during.now[0].waits_since), (200, Some(at(2000))));
        first.got(1, at(3000));
        let second = book.open(0, 5000, at(3000));
        second.wants(5000, at(3000));
        second.got(1, at(3250));
        let views = book.views(at(4000));
        assert_eq!(views.startup, Some(Duration::from_millis(700)));
        assert_eq!((views.seeks, views.seek_longest), (1, Duration::from_millis(250)));
        assert_eq!((views.stalls, views.stalled, views.requests), (1, Duration::from_secs(1), 2));
        drop((first, second));
        assert!(book.views(at(4000)).now.is_empty());
    }
}
