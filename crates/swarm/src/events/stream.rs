//! Events on their way to whoever listens, on whichever threads.
//!
//! Every reader has a queue of its own, so a slow one holds up neither the session nor the others. A queue is bounded: when
//! [`EVENTS_MAX`] events wait, what only says how things go on ([`EventKind::is_passing`]) is lost, counted, and told as
//! [`EventKind::Missed`] once the reader has caught up. What says what became of a content is not lost: beyond the limit, the
//! newest of each kind is kept of every content, and of a content that was removed that it was. What was delivered in bulk is kept of each
//! delivery ([`EventKind::replaces`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use super::{ContentId, Event, EventKind};

/// Events that wait for one reader: some seconds of a fast download of small pieces, in a few megabytes.
pub const EVENTS_MAX: usize = 8192;
/// Whoever leaves so many events unread that may not be lost does not read any more: its queue ends.
pub(super) const LASTING_MAX: usize = 2 * EVENTS_MAX;

/// Where a session tells its events. Clones are one.
#[derive(Clone, Default)]
pub(crate) struct EventHub(Arc<Mutex<Readers>>);

#[derive(Default)]
struct Readers {
    queues: Vec<Weak<Reader>>,
    has_ended: bool,
}

#[derive(Default)]
struct Reader {
    queue: Mutex<Queue>,
    arrived: Notify,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    missed: BTreeMap<ContentId, u64>,
    has_ended: bool,
}

impl EventHub {
    /// A reader of all that is told from now on.
    pub(crate) fn subscribe(&self) -> Events {
        let reader = Arc::<Reader>::default();
        let mut readers = lock(&self.0);
        lock(&reader.queue).has_ended = readers.has_ended;
        readers.queues.push(Arc::downgrade(&reader));
        Events(reader)
    }

    /// Tells everybody who listens.
    pub(crate) fn tell(&self, event: Event) {
        lock(&self.0).queues.retain(|reader| {
            let Some(reader) = reader.upgrade() else { return false };
            let mut queue = lock(&reader.queue);
            queue.push(event.clone());
            reader.arrived.notify_one();
            !queue.has_ended
        });
    }

    /// Nothing more comes.
    pub(crate) fn end(&self) {
        let mut readers = lock(&self.0);
        readers.has_ended = true;
        for reader in readers.queues.drain(..).filter_map(|reader| reader.upgrade()) {
            lock(&reader.queue).has_ended = true;
            reader.arrived.notify_one();
        }
    }
}

/// What a session tells, in order. May be read on any thread. Dropping it ends the subscription.
pub struct Events(Arc<Reader>);

impl Events {
    /// The next event; `None` when the session has ended, or the reader was so slow that it was given up, and all is read.
    pub async fn recv(&mut self) -> Option<Event> {
        loop {
            // In this order: what is told before the end is read before it.
            let has_ended = lock(&self.0.queue).has_ended;
            if let Some(event) = self.try_recv() {
                return Some(event);
            }
            if has_ended {
                return None;
            }
            self.0.arrived.notified().await;
        }
    }

    /// The next event, if one waits.
    pub fn try_recv(&mut self) -> Option<Event> {
        lock(&self.0.queue).pop()
    }
}

impl Queue {
    fn push(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            if event.kind.is_passing() {
                return self.miss(event.content);
            }
            self.make_room(&event);
        }
        self.events.push_back(event);
        self.has_ended |= self.events.len() >= LASTING_MAX;
    }

    /// What `event` makes old news goes.
    fn make_room(&mut self, event: &Event) {
        let before = self.events.len();
        self.events.retain(|old| old.content != event.content || !event.kind.replaces(&old.kind));
        for _ in self.events.len()..before {
            self.miss(event.content);
        }
    }

    fn miss(&mut self, torrent: ContentId) {
        *self.missed.entry(torrent).or_default() += 1;
    }

    fn pop(&mut self) -> Option<Event> {
        // A reader that is far behind goes on missing some: it is told when it has caught up with the half.
        if self.events.len() <= EVENTS_MAX / 2
            && let Some((content, events)) = self.missed.pop_first()
        {
            return Some(Event { content, kind: EventKind::Missed { events } });
        }
        self.events.pop_front()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks can leave a queue half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use anabranch_transport::NodeId;

    use super::*;
    use crate::events::News;

    fn piece(torrent: u64, index: u32) -> Event {
        Event { content: ContentId(torrent), kind: EventKind::Piece { index } }
    }

    fn all(events: &mut Events) -> Vec<Event> {
        std::iter::from_fn(|| events.try_recv()).collect()
    }

    #[test]
    fn a_slow_reader_misses_what_passes_and_is_told_how_much() {
        let hub = EventHub::default();
        let (mut slow, mut quick) = (hub.subscribe(), hub.subscribe());
        let count = EVENTS_MAX as u32 + 5;
        let mut read = 0;
        for index in 0..count {
            hub.tell(piece(u64::from(index % 2), index));
            read += all(&mut quick).len();
        }
        hub.tell(Event { content: ContentId(1), kind: EventKind::Finished });
        assert_eq!(read, count as usize, "the quick one missed nothing");
        let told = all(&mut slow);
        let missed: u64 = told.iter().filter_map(|event| missed(&event.kind)).sum();
        assert_eq!(missed, 5);
        assert_eq!(told.iter().filter(|event| matches!(event.kind, EventKind::Piece { .. })).count(), EVENTS_MAX);
        assert_eq!(told.iter().filter(|event| matches!(event.kind, EventKind::Finished)).count(), 1);
        hub.tell(piece(0, 0));
        assert_eq!(all(&mut slow).len(), 1, "it goes on, and nothing is told twice");
    }

    fn missed(kind: &EventKind) -> Option<u64> {
        match kind {
            EventKind::Missed { events } => Some(*events),
            _ => None,
        }
    }

    #[test]
    fn what_became_of_a_content_is_kept_and_bounded() {
        let hub = EventHub::default();
        let mut slow = hub.subscribe();
        (0..EVENTS_MAX as u32).for_each(|index| hub.tell(piece(0, index)));
        let tell = |torrent, kind| hub.tell(Event { content: ContentId(torrent), kind });
        for _ in 0..3 {
            tell(1, EventKind::Finished);
            tell(1, EventKind::Resumed);
        }
        tell(2, EventKind::Finished);
        tell(2, EventKind::Removed);
        let told = all(&mut slow);
        let of = |torrent| {
            let lasting = told.iter().filter(move |event| event.content == ContentId(torrent));
            lasting.map(|event| event.kind.clone()).filter(|kind| missed(kind).is_none()).collect::<Vec<_>>()
        };
        assert!(matches!(of(1)[..], [EventKind::Finished, EventKind::Resumed]), "{:?}", of(1));
        assert!(matches!(of(2)[..], [EventKind::Removed]), "{:?}", of(2));
        assert_eq!(told.iter().filter_map(|event| missed(&event.kind)).sum::<u64>(), 4 + 1);
    }

    #[test]
    fn what_a_bulk_transfer_tells_later_does_not_displace_what_it_delivered() {
        let hub = EventHub::default();
        let mut slow = hub.subscribe();
        (0..EVENTS_MAX as u32).for_each(|index| hub.tell(piece(0, index)));
        let tell = |news: &News| hub.tell(Event { content: ContentId(1), kind: EventKind::Bulk(news.clone()) });
        let delivered = |name: &str| News::Delivered {
            peer: "192.0.2.1:1".parse().unwrap(),
            key: NodeId::from_bytes([7; 32]),
            name: name.to_owned(),
            bytes_total: 1,
            placed: None,
        };
        let waits = |reason: Option<&str>| News::Waits(reason.map(str::to_owned));
        let told =
            [waits(Some("for a path")), delivered("first"), waits(None), delivered("second"), News::Over("all".into())];
        told.iter().for_each(tell);
        hub.tell(Event { content: ContentId(1), kind: EventKind::Removed });
        let kept: Vec<EventKind> =
            all(&mut slow).into_iter().filter(|event| event.content == ContentId(1)).map(|event| event.kind).collect();
        let [EventKind::Missed { events }, EventKind::Bulk(first), EventKind::Bulk(second), EventKind::Removed] =
            &kept[..]
        else {
            panic!("{kept:?}")
        };
        assert_eq!((first, second, *events), (&told[1], &told[3], 3));
    }

    #[test]
    fn who_never_reads_is_given_up() {
        let hub = EventHub::default();
        let mut slow = hub.subscribe();
        for torrent in 0..2 * LASTING_MAX as u64 {
            hub.tell(Event { content: ContentId(torrent), kind: EventKind::Finished });
        }
        assert_eq!(all(&mut slow).len(), LASTING_MAX);
        assert!(lock(&hub.0).queues.is_empty());
    }

    #[test]
    fn the_end_is_told_to_those_who_wait_and_to_those_who_come_later() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let hub = EventHub::default();
        let mut events = hub.subscribe();
        hub.tell(piece(0, 0));
        hub.end();
        assert!(runtime.block_on(events.recv()).is_some());
        assert!(runtime.block_on(events.recv()).is_none());
        assert!(runtime.block_on(hub.subscribe().recv()).is_none());
    }
}
