//! What is received on its way to the destination: pages gather in memory, disk threads write and hash them.
//!
//! A page is what the shortest span is. One that came whole is hashed where it lies and written; one that did not and has to make
//! room is written as far as it came, and its span is read back for its hash once the rest is there.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anabranch_hercules::tree::{self, SPAN_LEN_MIN, SpanHasher};

use super::content::{Destination, DestinationError};
use super::poll::Waker;

/// Threads that write and hash: while one waits for the device, the other hashes.
const THREADS: usize = 2;
/// Where there is no room, it is tried again as often.
pub(super) const ROOM_EVERY: Duration = Duration::from_secs(1);
/// Pages in memory at least: some that fill, and one with each thread.
const BUFFERS_MIN: u64 = 4;
/// A page that has more runs than this is written: it is quicker to read it back than to look for places in it.
const RUNS_MAX: usize = 256;

/// What was done.
pub(super) enum Done {
    /// A page was written; its memory is free.
    Written { span: u64, buffer: Vec<u8> },
    /// A span has this hash.
    Hashed { span: u64, hash: [u8; 32] },
    /// A span was recorded.
    Recorded,
    /// There is no room: what the user is told; `None` once there is again.
    Room(Option<String>),
    /// It cannot go on.
    Failed(DestinationError),
}

enum Job {
    Write { span: u64, start: u64, buffer: Vec<u8>, runs: Vec<Range<usize>>, hash: bool },
    Hash { span: u64 },
    Record { span: u64, hash: [u8; 32] },
}

struct Page {
    buffer: Vec<u8>,
    /// What came, in order, apart.
    runs: Vec<Range<usize>>,
    touched: u64,
}

/// Pages that are in memory at most.
fn buffers_max(memory_bytes: u64) -> usize {
    (memory_bytes / SPAN_LEN_MIN).max(BUFFERS_MIN) as usize
}

/// Pages under way, and the threads.
pub(super) struct Disk {
    content_len: u64,
    span_len: u64,
    pages: BTreeMap<u64, Page>,
    spare: Vec<Vec<u8>>,
    /// Pages in memory, here and with the threads; and how many may be.
    buffers: usize,
    buffers_max: usize,
    clock: u64,
    /// Hashes of spans that are not recorded yet.
    hashes: HashMap<u64, [u8; 32]>,
    /// Writes under way of a span, and whether it is to be hashed after them.
    writing: HashMap<u64, (usize, bool)>,
    busy: usize,
    jobs: Sender<Job>,
    done: Receiver<Done>,
    stop: Arc<AtomicBool>,
    /// Bytes that came twice.
    pub(super) repeated: u64,
}

impl Disk {
    /// For a content of this length.
    pub(super) fn start(
        destination: &Arc<dyn Destination>,
        content_len: u64,
        memory_bytes: u64,
        waker: &Waker,
    ) -> std::io::Result<Self> {
        let (jobs, queue) = channel();
        let (answers, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let stop = Arc::<AtomicBool>::default();
        for index in 0..THREADS {
            let (queue, answers, stop) = (Arc::clone(&queue), answers.clone(), Arc::clone(&stop));
            let (destination, waker) = (Arc::clone(destination), waker.clone());
            std::thread::Builder::new().name(format!("bulk-disk-{index}")).spawn(move || {
                let worker = Worker { destination: &*destination, content_len, answers: &answers, waker, stop: &stop };
                loop {
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    match job {
                        Ok(job) if !stop.load(Ordering::Relaxed) => worker.work(job),
                        _ => break,
                    }
                }
            })?;
        }
        Ok(Self {
            content_len,
            span_len: tree::span_len(content_len),
            pages: BTreeMap::new(),
            spare: Vec::new(),
            buffers: 0,
            buffers_max: buffers_max(memory_bytes),
            clock: 0,
            hashes: HashMap::new(),
            writing: HashMap::new(),
            busy: 0,
            jobs,
            done,
            stop,
            repeated: 0,
        })
    }

    /// Whether there is memory for what comes next. Where there is not, something is written first.
    pub(super) fn has_room(&mut self) -> bool {
        if (self.buffers_max + self.spare.len()).saturating_sub(self.buffers) >= 2 {
            return true;
        }
        // Where most of the memory is with the threads, what they have comes back soon.
        if self.pages.len() * 2 >= self.buffers_max
            && let Some(oldest) = self.pages.iter().min_by_key(|(_, page)| page.touched).map(|(at, _)| *at)
        {
            self.flush(oldest, false);
        }
        false
    }

    /// Whether a chunk that begins at `offset` finds memory, once what was to be received has been: a chunk that ends on the next page
    /// takes a page more.
    pub(super) fn has_place(&self, offset: u64) -> bool {
        let has_free = !self.spare.is_empty() || self.buffers < self.buffers_max;
        has_free || self.pages.contains_key(&(offset / SPAN_LEN_MIN))
    }

    /// Where `len` bytes at `offset` are to lie, if all of that is on a page in memory. What is written there does not count before
    /// [`Disk::filled`].
    pub(super) fn place(&mut self, offset: u64, len: usize) -> Option<&mut [u8]> {
        let within = (offset % SPAN_LEN_MIN) as usize;
        self.pages.get_mut(&(offset / SPAN_LEN_MIN))?.buffer.get_mut(within..within + len)
    }

    /// All of a [`Disk::place`] has its bytes now.
    pub(super) fn filled(&mut self, offset: u64, len: usize) {
        let (at, within) = (offset / SPAN_LEN_MIN, (offset % SPAN_LEN_MIN) as usize);
        if let Some(page) = self.pages.get_mut(&at) {
            self.clock += 1;
            page.touched = self.clock;
            page.add(within..within + len);
            self.flush_if_done(at);
        }
    }

    /// A chunk's bytes came, which belong at `offset`. There is room for them: see [`Disk::has_room`].
    pub(super) fn put(&mut self, offset: u64, mut bytes: &[u8]) {
        let mut offset = offset;
        while !bytes.is_empty() {
            let (at, within) = (offset / SPAN_LEN_MIN, (offset % SPAN_LEN_MIN) as usize);
            let len = bytes.len().min(SPAN_LEN_MIN as usize - within);
            self.clock += 1;
            let page = self.pages.entry(at).or_insert_with(|| {
                let buffer = self.spare.pop().unwrap_or_else(|| {
                    self.buffers += 1;
                    vec![0; SPAN_LEN_MIN as usize]
                });
                Page { buffer, runs: Vec::new(), touched: 0 }
            });
            page.buffer[within..within + len].copy_from_slice(&bytes[..len]);
            page.touched = self.clock;
            page.add(within..within + len);
            self.flush_if_done(at);
            (offset, bytes) = (offset + len as u64, &bytes[len..]);
        }
    }

    /// Writes a page that has too many runs, or that came whole where a span has several pages: such a one is hashed from what was written.
    fn flush_if_done(&mut self, at: u64) {
        let Some(page) = self.pages.get(&at) else { return };
        let page_len = (self.content_len - at * SPAN_LEN_MIN).min(SPAN_LEN_MIN) as usize;
        if page.runs.len() > RUNS_MAX || self.span_len > SPAN_LEN_MIN && page.is_whole(page_len) {
            self.flush(at, false);
        }
    }

    /// All of a span came.
    pub(super) fn span_came(&mut self, span: u64) {
        let bytes = tree::span_bytes(self.content_len, span);
        if self.span_len == SPAN_LEN_MIN
            && let Some(page) = self.pages.get(&span)
            && page.is_whole((bytes.end - bytes.start) as usize)
        {
            return self.flush(span, true);
        }
        for page in bytes.start / SPAN_LEN_MIN..bytes.end.div_ceil(SPAN_LEN_MIN) {
            self.flush(page, false);
        }
        let writing = self.writing.entry(span).or_default();
        writing.1 = true;
        self.hash_if_written(span);
    }

    /// A span has its hash: it is recorded.
    pub(super) fn record(&mut self, span: u64) {
        // Only what was hashed here has its hash.
        if let Some(hash) = self.hashes.remove(&span) {
            self.job(Job::Record { span, hash });
        }
    }

    /// From now on in at most so many bytes of memory, or a few pages; what is in use beyond is given back once it is written.
    pub(super) fn set_memory(&mut self, memory_bytes: u64) {
        self.buffers_max = buffers_max(memory_bytes);
        self.give_back();
    }

    fn give_back(&mut self) {
        while self.buffers > self.buffers_max && self.spare.pop().is_some() {
            self.buffers -= 1;
        }
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// What was done since.
    pub(super) fn poll(&mut self) -> Option<Done> {
        let done = self.done.try_recv().ok()?;
        match done {
            Done::Written { span, buffer } => {
                self.busy -= 1;
                self.spare.push(buffer);
                self.give_back();
                if let Some((writes, _)) = self.writing.get_mut(&span) {
                    *writes -= 1;
                    self.hash_if_written(span);
                }
                self.poll()
            }
            Done::Hashed { span, hash } => {
                self.busy -= 1;
                self.hashes.insert(span, hash);
                Some(done)
            }
            Done::Recorded => {
                self.busy -= 1;
                Some(done)
            }
            Done::Room(_) | Done::Failed(_) => Some(done),
        }
    }

    fn flush(&mut self, at: u64, hash: bool) {
        let Some(page) = self.pages.remove(&at) else { return };
        let start = at * SPAN_LEN_MIN;
        let span = start / self.span_len;
        self.writing.entry(span).or_default().0 += 1;
        if hash {
            // Its answer is one more.
            self.busy += 1;
        }
        self.job(Job::Write { span, start, buffer: page.buffer, runs: page.runs, hash });
    }

    fn hash_if_written(&mut self, span: u64) {
        if let Some((0, wants_hash)) = self.writing.get(&span).copied() {
            self.writing.remove(&span);
            if wants_hash {
                self.job(Job::Hash { span });
            }
        }
    }

    fn job(&mut self, job: Job) {
        self.busy += 1;
        // Threads that are gone told why.
        let _ = self.jobs.send(job);
    }
}

impl Drop for Disk {
    /// What is queued is left: it was not verified.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Page {
    fn is_whole(&self, len: usize) -> bool {
        matches!(&self.runs[..], [run] if *run == (0..len))
    }

    fn add(&mut self, new: Range<usize>) {
        // In order most of the time.
        let at = self.runs.partition_point(|run| run.end < new.start);
        let end = at + self.runs[at..].partition_point(|run| run.start <= new.end);
        if at == end {
            return self.runs.insert(at, new);
        }
        let merged = self.runs[at].start.min(new.start)..self.runs[end - 1].end.max(new.end);
        self.runs[at] = merged;
        self.runs.drain(at + 1..end);
    }
}

struct Worker<'a> {
    destination: &'a dyn Destination,
    content_len: u64,
    answers: &'a Sender<Done>,
    waker: Waker,
    stop: &'a AtomicBool,
}

impl Worker<'_> {
    fn work(&self, job: Job) {
        match job {
            Job::Write { span, start, buffer, runs, hash } => {
                for run in &runs {
                    let write = || self.destination.write(start + run.start as u64, &buffer[run.clone()]);
                    if !self.insist(write) {
                        return;
                    }
                }
                if hash {
                    let len = runs.last().map_or(0, |run| run.end);
                    let hash = tree::span_hash(self.content_len, span, &buffer[..len]);
                    self.answer(Done::Hashed { span, hash });
                }
                self.answer(Done::Written { span, buffer });
            }
            Job::Hash { span } => match self.destination.recorded_hash(span).map_or_else(|| self.read_back(span), Ok) {
                Ok(hash) => self.answer(Done::Hashed { span, hash }),
                Err(error) => self.answer(Done::Failed(error)),
            },
            Job::Record { span, hash } => {
                if self.insist(|| self.destination.span_kept(span, &hash)) {
                    self.answer(Done::Recorded);
                }
            }
        }
    }

    fn read_back(&self, span: u64) -> Result<[u8; 32], DestinationError> {
        let bytes = tree::span_bytes(self.content_len, span);
        let mut hasher = SpanHasher::new(self.content_len, span);
        let mut scratch = vec![0; SPAN_LEN_MIN as usize];
        let mut at = bytes.start;
        while at < bytes.end {
            let len = (bytes.end - at).min(SPAN_LEN_MIN) as usize;
            self.destination.read(at, &mut scratch[..len])?;
            hasher.update(&scratch[..len]);
            at += len as u64;
        }
        Ok(hasher.finish())
    }

    /// Does it until there is room. False where it failed, and was told.
    fn insist(&self, act: impl Fn() -> Result<(), DestinationError>) -> bool {
        let mut waited = false;
        loop {
            match act() {
                Ok(()) => {
                    if waited {
                        self.answer(Done::Room(None));
                    }
                    return true;
                }
                Err(error @ DestinationError::Full(_)) => {
                    if !std::mem::replace(&mut waited, true) {
                        self.answer(Done::Room(Some(error.to_string())));
                    }
                    std::thread::sleep(ROOM_EVERY);
                    if self.stop.load(Ordering::Relaxed) {
                        return false;
                    }
                }
                Err(error) => {
                    self.answer(Done::Failed(error));
                    return false;
                }
            }
        }
    }

    fn answer(&self, done: Done) {
        if self.answers.send(done).is_ok() {
            self.waker.wake();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use anabranch_hercules::ChunkSet;
    use anabranch_hercules::wire::receipt::Receipt;

    use super::*;
    use crate::hercules::poll;

    /// Takes everything and keeps nothing.
    pub(in crate::hercules) struct Nowhere;

    impl Destination for Nowhere {
        fn kept(&self) -> ChunkSet {
            ChunkSet::new(0)
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), DestinationError> {
            Ok(())
        }

        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DestinationError> {
            Ok(())
        }

        fn span_kept(&self, _: u64, _: &[u8; 32]) -> Result<(), DestinationError> {
            Ok(())
        }

        fn finish(&self, _: &Receipt) -> Result<(), DestinationError> {
            Ok(())
        }
    }

    #[test]
    fn pages_are_as_many_as_memory_has_and_what_is_too_many_is_given_back() {
        let (waker, _) = poll::waker().unwrap();
        let destination: Arc<dyn Destination> = Arc::new(Nowhere);
        let mut disk = Disk::start(&destination, 64 << 20, 8 << 20, &waker).unwrap();
        // One chunk to each page, as a sender may do that sends in no order.
        let page = |at: u64| at * SPAN_LEN_MIN;
        for at in 0..8 {
            assert!(disk.has_place(page(at)));
            disk.put(page(at), &[1; 100]);
        }
        assert!(!disk.has_place(page(8)) && disk.has_place(page(7)) && !disk.has_room());
        // Others want their part. What is written makes no room for more than is left.
        disk.set_memory(4 << 20);
        (0..8).for_each(|at| disk.flush(at, false));
        let began = std::time::Instant::now();
        while !disk.is_idle() && began.elapsed() < Duration::from_secs(20) {
            assert!(disk.poll().is_none());
            std::thread::yield_now();
        }
        assert_eq!((disk.buffers, disk.spare.len()), (4, 4));
        assert!(disk.has_room());
        // No part is too small to work with.
        disk.set_memory(0);
        assert_eq!(disk.buffers_max, 4);
    }
}
