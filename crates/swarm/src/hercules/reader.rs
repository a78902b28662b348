//! Reads a source: what senders want, on one thread, which hashes it too, while it is in the processor's cache, where it comes in order
//! and nobody waits for the next. The rest is hashed on another thread: from the same bytes where they come in order; what nobody wants
//! (the receiver has it from before) is read there for the hashes alone.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anabranch_hercules::tree::Hasher;
use anabranch_hercules::{Convoy, READ_AHEAD, Sender, SharedShelf, Shelf};
use tokio::sync::watch;

use super::content::{Source, SourceError};
use super::poll::Waker;

/// Bytes that are read as one, as long as chunks are shorter.
pub(super) const UNIT_BYTES: u64 = 1 << 20;
/// So many units that are wanted and not read yet mean that reading is what all wait for.
const LATE: usize = READ_AHEAD / 2;
/// Units that wait to be hashed; what does not fit is read again.
const HASHING_MAX: usize = 8;

/// The hashes over a source, as far as they are known.
#[derive(Debug)]
pub(super) struct Hashes {
    spans: Mutex<Vec<[u8; 32]>>,
    known: watch::Sender<Known>,
}

/// How far they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub spans: usize,
    pub root: Option<[u8; 32]>,
    pub failed: Option<Arc<SourceError>>,
}

impl Hashes {
    pub(super) fn known(&self) -> watch::Receiver<Known> {
        self.known.subscribe()
    }

    /// Hashes of spans from `first` on, at most `max`.
    pub(super) fn spans(&self, first: usize, max: usize) -> Vec<[u8; 32]> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.iter().skip(first).take(max).copied().collect()
    }
}

enum ToHash {
    Bytes(u64, Arc<Vec<u8>>),
    Rest,
}

/// Hashes a source, on a thread of its own where who reads it does not. Cheap to clone; the thread ends with the last.
#[derive(Clone)]
pub(super) struct Hashing {
    pub(super) hashes: Arc<Hashes>,
    hasher: Arc<Mutex<Hasher>>,
    queue: SyncSender<ToHash>,
}

impl Hashing {
    pub(super) fn start(source: Arc<dyn Source>) -> std::io::Result<Self> {
        let (queue, jobs) = sync_channel(HASHING_MAX);
        let hashes = Arc::new(Hashes { spans: Mutex::default(), known: watch::channel(Known::default()).0 });
        let hasher = Arc::new(Mutex::new(Hasher::new(source.content_len())));
        let (told, own) = (Arc::clone(&hashes), Arc::clone(&hasher));
        std::thread::Builder::new().name("bulk-hash".to_owned()).spawn(move || hash(&*source, &jobs, &own, &told))?;
        Ok(Self { hashes, hasher, queue })
    }

    /// What was read at `offset`. `at_once`: there is time to hash it here.
    fn take(&self, offset: u64, bytes: &Arc<Vec<u8>>, at_once: bool) {
        if at_once
            && let Ok(mut hasher) = self.hasher.try_lock()
            && hasher.position() >= offset
        {
            if hasher.position() == offset {
                hasher.update(bytes);
                tell(&hasher, &self.hashes);
            }
            return;
        }
        let _ = self.queue.try_send(ToHash::Bytes(offset, Arc::clone(bytes)));
    }

    /// Nothing more will be read: the rest is read for the hashes. False where it has to be said again.
    pub(super) fn rest(&self) -> bool {
        self.queue.try_send(ToHash::Rest).is_ok()
    }
}

fn hash(source: &dyn Source, jobs: &Receiver<ToHash>, hasher: &Mutex<Hasher>, hashes: &Hashes) {
    let len = source.content_len();
    let lock = || hasher.lock().unwrap_or_else(PoisonError::into_inner);
    let mut scratch = Vec::new();
    while let Ok(job) = jobs.recv() {
        let (until, bytes) = match &job {
            ToHash::Bytes(offset, bytes) => (*offset, Some(bytes)),
            ToHash::Rest => (len, None),
        };
        loop {
            let at = lock().position();
            if at >= until {
                break;
            }
            scratch.resize((until - at).min(UNIT_BYTES) as usize, 0);
            if let Err(error) = source.read(at, &mut scratch) {
                hashes.known.send_modify(|known| known.failed = Some(Arc::new(error)));
                return;
            }
            // Whoever reads the source may have been quicker.
            let mut hasher = lock();
            if hasher.position() == at {
                hasher.update(&scratch);
                tell(&hasher, hashes);
            }
        }
        let mut hasher = lock();
        if let Some(bytes) = bytes.filter(|_| hasher.position() == until) {
            hasher.update(bytes);
        }
        tell(&hasher, hashes);
    }
}

fn tell(hasher: &Hasher, hashes: &Hashes) {
    let mut spans = hashes.spans.lock().unwrap_or_else(PoisonError::into_inner);
    let from = spans.len();
    spans.extend_from_slice(&hasher.spans()[from..]);
    let (count, root) = (spans.len(), hasher.root());
    drop(spans);
    hashes.known.send_if_modified(|known| {
        let changed = (known.spans, known.root) != (count, root);
        (known.spans, known.root) = (count, root);
        changed
    });
}

struct Job {
    /// More is wanted than can be read in time.
    is_late: bool,
    offset: u64,
    len: usize,
    buffer: Vec<u8>,
}

/// What of a source is in memory, for all who send it in chunks of one length.
pub(super) struct Store {
    pub(super) chunk_len: u64,
    content_len: u64,
    shelf: SharedShelf,
    convoy: Convoy,
    unit_chunks: u64,
    units: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Memory of units that fell out, the latest last. Some of it may still be hashed.
    spare: Vec<Arc<Vec<u8>>>,
    reading: Option<u64>,
    requests: SyncSender<Job>,
    answers: Receiver<Result<Arc<Vec<u8>>, SourceError>>,
}

impl Store {
    /// In at most `memory_bytes`; `waker` is told when something was read.
    pub(super) fn start(
        source: Arc<dyn Source>,
        chunk_len: u16,
        memory_bytes: u64,
        hashing: Hashing,
        waker: Waker,
    ) -> std::io::Result<Self> {
        let (chunk_len, content_len) = (u64::from(chunk_len), source.content_len());
        let unit_chunks = (UNIT_BYTES / chunk_len).max(1);
        let slots = slots(memory_bytes, unit_chunks * chunk_len);
        let (requests, jobs) = sync_channel::<Job>(1);
        let (answering, answers) = sync_channel(1);
        std::thread::Builder::new().name("bulk-read".to_owned()).spawn(move || {
            while let Ok(Job { is_late, offset, len, mut buffer }) = jobs.recv() {
                buffer.resize(len, 0);
                let read = source.read(offset, &mut buffer).map(|()| Arc::new(buffer));
                let bytes = read.as_ref().ok().map(Arc::clone);
                if answering.send(read).is_err() {
                    break;
                }
                waker.wake();
                if let Some(bytes) = bytes {
                    hashing.take(offset, &bytes, !is_late);
                }
            }
        })?;
        let shelf = SharedShelf::new(content_len.div_ceil(chunk_len), unit_chunks, slots);
        Ok(Self {
            chunk_len,
            content_len,
            shelf,
            convoy: Convoy::default(),
            unit_chunks,
            units: BTreeMap::new(),
            spare: Vec::new(),
            reading: None,
            requests,
            answers,
        })
    }

    /// From now on in at most `memory_bytes`.
    pub(super) fn set_memory(&mut self, memory_bytes: u64) {
        for gone in self.shelf.set_slots(slots(memory_bytes, self.unit_chunks * self.chunk_len)) {
            self.units.remove(&(gone.start / self.unit_chunks));
        }
        // Another's, now.
        self.spare.clear();
    }

    /// Takes in what was read, and asks for more, for those that send it.
    pub(super) fn turn(&mut self, now: Instant, senders: &mut [&mut Sender]) -> Result<(), SourceError> {
        while let Ok(read) = self.answers.try_recv() {
            let bytes = read?;
            let Some(unit) = self.reading.take() else { continue };
            self.units.insert(unit, bytes);
            self.shelf.on_read();
        }
        if let Some(read) = self.convoy.poll_read(now, &mut self.shelf, senders) {
            if let Some(dropped) = read.dropped {
                self.spare.extend(self.units.remove(&(dropped.start / self.unit_chunks)));
            }
            let range = self.bytes(&read.chunks);
            self.reading = Some(read.chunks.start / self.unit_chunks);
            let buffer = self.take_spare().unwrap_or_default();
            let (offset, len) = (range.start, (range.end - range.start) as usize);
            let is_late = self.shelf.wanted() > LATE;
            // One at a time: there is always room, unless the thread is gone with its panic.
            let _ = self.requests.try_send(Job { is_late, offset, len, buffer });
        }
        Ok(())
    }

    /// Memory that nobody uses any more: what was used last is in the processor's cache.
    fn take_spare(&mut self) -> Option<Vec<u8>> {
        let free = self.spare.iter_mut().rposition(|spare| Arc::get_mut(spare).is_some())?;
        Arc::into_inner(self.spare.remove(free))
    }

    fn bytes(&self, chunks: &Range<u64>) -> Range<u64> {
        chunks.start * self.chunk_len..(chunks.end * self.chunk_len).min(self.content_len)
    }

    /// A chunk that is at hand.
    pub(super) fn chunk(&self, chunk: u64) -> Option<&[u8]> {
        let unit = chunk / self.unit_chunks;
        let bytes = self.units.get(&unit)?;
        let start = ((chunk - unit * self.unit_chunks) * self.chunk_len) as usize;
        bytes.get(start..(start + self.chunk_len as usize).min(bytes.len()))
    }
}

/// Units of so many bytes that are in memory.
fn slots(memory_bytes: u64, unit_bytes: u64) -> usize {
    (memory_bytes / unit_bytes).max(READ_AHEAD as u64 + 2) as usize
}

impl Shelf for Store {
    fn at_hand(&self, chunk: u64) -> Option<Range<u64>> {
        self.shelf.at_hand(chunk)
    }

    fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.shelf.runs()
    }

    fn want(&mut self, chunk: u64) -> Range<u64> {
        self.shelf.want(chunk)
    }

    fn lead(&self, chunk: u64) -> Option<u64> {
        self.shelf.lead(chunk)
    }
}
