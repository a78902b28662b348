//! The threads that hash and write, so that the network thread never waits for a disk.
//!
//! Complete pieces queue here, from all contents. A thread takes as many as the hash functions have lanes and verifies
//! them side by side, which is several times cheaper per byte than one after the other; then it writes the good ones, in
//! one call each. Everything else that touches a disk on the way (spills, leaves, reading ahead) is a task in the same queue.
//!
//! Every job is answered, whatever happens: where one panics, its thread goes on and the job's content is told.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_content::geometry::{BLOCK_LEN, Geometry};
use anabranch_content::hash::{self, ExpectedHash, Sha1};
use anabranch_content::info::Sha256Digest;
use anabranch_content::merkle;
use anabranch_content::storage::{ResumeStore, StorageError};
use anabranch_paths::ConnId;
use tokio::sync::mpsc::UnboundedSender;

use crate::events::TorrentId;
use crate::store::buffers::{CHUNK_LEN, Spill, WholePiece};
use crate::store::spill;

/// Pieces verified side by side: the lanes of the widest hash function.
const BATCH_MAX: usize = 16;
/// Longest wait for a batch to fill, while pieces arrive in quick succession.
const LINGER_MAX: Duration = Duration::from_millis(12);
/// Pieces that arrive further apart than this are verified as they come.
const LINGER_GAP_MAX: Duration = Duration::from_millis(2);

/// A piece to be verified and written.
pub struct VerifyJob {
    /// Whose it is, for the answer.
    pub torrent: TorrentId,
    /// Index of the piece.
    pub piece: u32,
    /// Its bytes.
    pub whole: WholePiece,
    /// What it has to hash to.
    pub expected: ExpectedHash,
    /// Whether the digests of its blocks are wanted even when it is good.
    pub digests: bool,
    /// Where it is written, and recorded once it is.
    pub resume: Arc<ResumeStore>,
    /// Sizes.
    pub geometry: Geometry,
    /// Where the answer goes.
    pub replies: UnboundedSender<Reply>,
}

/// An answer to the network thread.
pub enum Reply {
    /// A piece was verified.
    Verified(Verified),
    /// A chunk was written ahead of time, or could not be.
    Spilled(Spilled),
    /// What a connection is to send next was read from disk.
    Warmed {
        /// Whose content it is.
        torrent: TorrentId,
        /// The connection that waits for it.
        conn: ConnId,
    },
    /// The leaves of a piece's Merkle tree; none where it could not be read.
    Leaves {
        /// Whose they are.
        torrent: TorrentId,
        /// Their piece.
        piece: u32,
        /// One a block.
        hashes: Vec<Sha256Digest>,
    },
    /// What helps the next start was written, or could not be.
    Kept {
        /// Whose it is.
        torrent: TorrentId,
    },
    /// A piece that could not be sent was looked at again.
    Looked {
        /// Whose it is.
        torrent: TorrentId,
        /// The piece.
        piece: u32,
        /// It can be read.
        readable: bool,
    },
    /// A job panicked and is lost, or one that was verified side by side with it: a fault of this program.
    Panicked {
        /// Whose it was.
        torrent: TorrentId,
    },
}

/// A [`Spill`] on its way to disk, and back.
pub struct SpillJob {
    /// Whose it is.
    pub torrent: TorrentId,
    /// The chunk.
    pub spill: Spill,
    /// Where it is written.
    pub resume: Arc<ResumeStore>,
    /// Where the answer goes.
    pub replies: UnboundedSender<Reply>,
}

/// What became of a [`SpillJob`].
pub struct Spilled {
    /// Whose it is.
    pub torrent: TorrentId,
    /// The piece that the chunk is of.
    pub piece: u32,
    /// Where storage is out of order: why, and the job, whole, to be handed in again when the cause is gone.
    pub failed: Option<(StorageError, Box<SpillJob>)>,
}

/// What became of a [`VerifyJob`].
pub struct Verified {
    /// Whose it is.
    pub torrent: TorrentId,
    /// Index of the piece.
    pub piece: u32,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of verifying and writing a piece.
pub enum Outcome {
    /// Right and written.
    Good {
        /// One digest a block, where asked for.
        digests: Vec<u64>,
    },
    /// Wrong.
    Bad {
        /// One digest a block.
        digests: Vec<u64>,
    },
    /// Storage is out of order. The job is whole, to be handed in again when the cause is gone.
    Failed {
        /// What is out of order.
        error: StorageError,
        /// The job.
        job: Box<VerifyJob>,
    },
}

/// Anything but a piece.
struct Task {
    torrent: TorrentId,
    replies: UnboundedSender<Reply>,
    work: Box<dyn FnOnce() -> Reply + Send>,
}

/// What a thread takes out of the queue.
enum Work {
    Task(Task),
    /// Never empty.
    Pieces(Vec<VerifyJob>),
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<VerifyJob>,
    tasks: VecDeque<Task>,
    /// When the last piece came, and how long after the one before: what tells a torrent of pieces from a trickle.
    last_piece: Option<Instant>,
    gap: Option<Duration>,
    /// The last thing taken was a task, not pieces.
    task_was_last: bool,
    closing: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    digest_key: RandomState,
}

/// The disk threads.
pub struct Disk {
    shared: Arc<Shared>,
}

impl Disk {
    /// Starts `threads` of them.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), wake: Condvar::new(), digest_key: RandomState::new() });
        let spawn = |index: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("disk-{index}")).spawn(move || shared.run())
        };
        // Those that did start end with this.
        let disk = Self { shared: Arc::clone(&shared) };
        (0..threads.max(1)).try_for_each(|index| spawn(index).map(drop))?;
        Ok(disk)
    }

    /// Queues a piece. What queues is bounded by the buffers that pieces are made of.
    pub fn verify(&self, job: VerifyJob) {
        let mut queue = self.shared.lock();
        let now = Instant::now();
        queue.gap = queue.last_piece.map(|last| now - last);
        queue.last_piece = Some(now);
        queue.pieces.push_back(job);
        // While a batch gathers, one thread is awake and counting: waking it for every piece would undo the gain.
        if queue.pieces.len() == 1 || queue.pieces.len().is_multiple_of(BATCH_MAX) {
            self.shared.wake.notify_one();
        }
    }

    /// Queues a chunk that is to be written ahead of time.
    pub fn spill(&self, job: SpillJob) {
        self.run(job.torrent, job.replies.clone(), move || {
            let written = spill::write(&job.resume, &job.spill);
            let (torrent, piece) = (job.torrent, job.spill.piece);
            let failed = written.err().map(|error| (error, Box::new(job)));
            Reply::Spilled(Spilled { torrent, piece, failed })
        });
    }

    /// Does `work` for a content on a disk thread, and answers with what comes of it.
    pub fn run(
        &self,
        torrent: TorrentId,
        replies: UnboundedSender<Reply>,
        work: impl FnOnce() -> Reply + Send + 'static,
    ) {
        self.shared.lock().tasks.push_back(Task { torrent, replies, work: Box::new(work) });
        self.shared.wake.notify_one();
    }
}

impl Drop for Disk {
    /// The threads finish what is queued, and end. They are not waited for: a disk may hang for minutes.
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No job runs while the queue is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(work) = self.next_work() {
            match work {
                Work::Task(Task { torrent, replies, work }) => {
                    // What the work held goes with it: nothing half done is seen again.
                    let reply = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Reply::Panicked { torrent });
                    // The session may be gone already: then nobody asks.
                    let _ = replies.send(reply);
                }
                Work::Pieces(batch) => self.verify_or_tell(batch),
            }
        }
    }

    /// Pieces are verified side by side: where one panics, it cannot be told whose it was, nor what became of the others.
    fn verify_or_tell(&self, batch: Vec<VerifyJob>) {
        let owners: Vec<_> = batch.iter().map(|job| (job.torrent, job.replies.clone())).collect();
        if catch_unwind(AssertUnwindSafe(|| self.verify(batch))).is_err() {
            for (torrent, replies) in owners {
                let _ = replies.send(Reply::Panicked { torrent });
            }
        }
    }

    fn next_work(&self) -> Option<Work> {
        let mut queue = self.lock();
        loop {
            // In turns: many peers that want what has to be read must not hold up what has to be written.
            if (queue.pieces.is_empty() || !queue.task_was_last)
                && let Some(task) = queue.tasks.pop_front()
            {
                queue.task_was_last = true;
                return Some(Work::Task(task));
            }
            queue.task_was_last = false;
            if !queue.pieces.is_empty() {
                queue = self.linger(queue);
                let count = queue.pieces.len().min(BATCH_MAX);
                let batch: Vec<VerifyJob> = queue.pieces.drain(..count).collect();
                // Their wake-up may have been spent on this thread while it lingered.
                if !queue.pieces.is_empty() || !queue.tasks.is_empty() {
                    self.wake.notify_one();
                }
                // Another thread may have taken them while this one lingered.
                if !batch.is_empty() {
                    return Some(Work::Pieces(batch));
                }
                continue;
            }
            if queue.closing {
                return None;
            }
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets a batch fill where pieces come so fast that it will soon be full.
    fn linger<'a>(&self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let deadline = Instant::now() + LINGER_MAX;
        while queue.pieces.len() < BATCH_MAX && queue.tasks.is_empty() && !queue.closing {
            let fast = queue.gap.is_some_and(|gap| gap <= LINGER_GAP_MAX)
                && queue.last_piece.is_some_and(|last| last.elapsed() <= LINGER_GAP_MAX);
            let left = deadline.saturating_duration_since(Instant::now());
            if !fast || left.is_zero() {
                break;
            }
            let wait = left.min(LINGER_GAP_MAX);
            queue = self.wake.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue
    }

    fn verify(&self, batch: Vec<VerifyJob>) {
        let (in_memory, spilled): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|job| job.whole.on_disk.is_empty() && !job.ends_in_padding());
        let mut good = vec![true; in_memory.len()];
        check_v1(&in_memory, &mut good);
        check_v2(&in_memory, &mut good);
        for (job, good) in in_memory.into_iter().zip(good) {
            self.finish(job, good);
        }
        for job in spilled {
            match check_alone(&job) {
                Ok(good) => self.finish(job, good),
                Err(error) => job.fail(error),
            }
        }
    }

    /// Writes a good piece and answers.
    fn finish(&self, job: VerifyJob, good: bool) {
        let digests = if !good || job.digests { self.block_digests(&job) } else { Ok(Vec::new()) };
        let outcome = match (good, digests) {
            (_, Err(error)) => return job.fail(error),
            (false, Ok(digests)) => Outcome::Bad { digests },
            (true, Ok(digests)) => {
                if let Err(error) = job.write() {
                    return job.fail(error);
                }
                Outcome::Good { digests }
            }
        };
        // The network thread may be gone already: then nobody asks.
        let _ = job.replies.send(Reply::Verified(Verified { torrent: job.torrent, piece: job.piece, outcome }));
    }

    /// A keyed digest of every block, for telling later who sent which: nobody outside can make two blocks collide.
    fn block_digests(&self, job: &VerifyJob) -> Result<Vec<u64>, StorageError> {
        let mut scratch = Vec::new();
        let mut digests = Vec::new();
        for chunk in 0..job.whole.chunks.len() {
            for block in job.chunk(chunk, &mut scratch)?.chunks(BLOCK_LEN as usize) {
                digests.push(self.digest_key.hash_one(block));
            }
        }
        Ok(digests)
    }
}

/// Verifies the SHA-1 of all pieces side by side.
fn check_v1(jobs: &[VerifyJob], good: &mut [bool]) {
    let with_v1: Vec<(usize, [u8; 20])> =
        jobs.iter().enumerate().filter_map(|(at, job)| Some((at, job.expected.sha1?))).collect();
    let slices: Vec<Vec<&[u8]>> = with_v1.iter().map(|(at, _)| jobs[*at].memory().collect()).collect();
    let messages: Vec<&[&[u8]]> = slices.iter().map(Vec::as_slice).collect();
    for ((at, expected), digest) in with_v1.iter().zip(hash::sha1_pieces(&messages)) {
        good[*at] &= digest == *expected;
    }
}

/// Verifies the Merkle roots of all pieces, all leaves side by side (BEP 52).
fn check_v2(jobs: &[VerifyJob], good: &mut [bool]) {
    let with_v2 = || jobs.iter().enumerate().filter_map(|(at, job)| Some((at, job, job.expected.merkle?)));
    let blocks: Vec<&[u8]> =
        with_v2().flat_map(|(_, job, _)| job.memory().flat_map(|chunk| chunk.chunks(BLOCK_LEN as usize))).collect();
    if blocks.is_empty() {
        return;
    }
    let mut leaves = hash::sha256_many(&blocks).into_iter();
    for (at, job, (root, height)) in with_v2() {
        let own: Vec<_> = leaves.by_ref().take(job.geometry.block_count(job.piece) as usize).collect();
        good[at] &= merkle::subtree_root(&own, 0, height) == root;
    }
}

/// Verifies a piece that is partly on disk or ends in padding, chunk by chunk, in little memory.
fn check_alone(job: &VerifyJob) -> Result<bool, StorageError> {
    let mut sha1 = Sha1::new();
    let mut leaves = Vec::new();
    let mut scratch = Vec::new();
    for chunk in 0..job.whole.chunks.len() {
        let bytes = job.chunk(chunk, &mut scratch)?;
        if job.expected.sha1.is_some() {
            sha1.update(bytes);
        }
        if job.expected.merkle.is_some() {
            leaves.extend(hash::sha256_many(&bytes.chunks(BLOCK_LEN as usize).collect::<Vec<_>>()));
        }
    }
    let mut padding = job.geometry.piece_len(job.piece) - job.geometry.data_len(job.piece);
    while padding > 0 && job.expected.sha1.is_some() {
        let zeros = [0; BLOCK_LEN as usize];
        let run = padding.min(BLOCK_LEN);
        sha1.update(&zeros[..run as usize]);
        padding -= run;
    }
    let v1_good = job.expected.sha1.is_none_or(|expected| sha1.finish() == expected);
    let v2_good = job.expected.merkle.is_none_or(|(root, height)| merkle::subtree_root(&leaves, 0, height) == root);
    Ok(v1_good && v2_good)
}

impl VerifyJob {
    fn ends_in_padding(&self) -> bool {
        self.geometry.data_len(self.piece) != self.geometry.piece_len(self.piece)
    }

    fn chunk_len(&self, chunk: usize) -> u32 {
        let full = self.geometry.piece_length().min(CHUNK_LEN);
        (self.geometry.data_len(self.piece) - chunk as u32 * full).min(full)
    }

    fn chunk_offset(&self, chunk: usize) -> u64 {
        let full = self.geometry.piece_length().min(CHUNK_LEN);
        self.geometry.piece_offset(self.piece) + chunk as u64 * u64::from(full)
    }

    /// The chunks that are in memory, in order, each as long as it holds data.
    fn memory(&self) -> impl Iterator<Item = &[u8]> {
        let chunks = self.whole.chunks.iter().enumerate();
        chunks.filter_map(|(at, chunk)| chunk.as_ref().map(|buffer| &buffer[..self.chunk_len(at) as usize]))
    }

    /// A chunk's bytes, wherever they are.
    fn chunk<'a>(&'a self, chunk: usize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], StorageError> {
        let len = self.chunk_len(chunk) as usize;
        let per_chunk = self.geometry.piece_length().min(CHUNK_LEN).div_ceil(BLOCK_LEN);
        let first = chunk as u32 * per_chunk;
        let spilled = |block: &&u32| (first..first + per_chunk).contains(block);
        let Some(buffer) = &self.whole.chunks[chunk] else {
            scratch.resize(len, 0);
            self.resume.storage().read_at(self.chunk_offset(chunk), scratch)?;
            return Ok(scratch);
        };
        if self.whole.on_disk.iter().all(|block| !spilled(&block)) {
            return Ok(&buffer[..len]);
        }
        scratch.clear();
        scratch.extend_from_slice(&buffer[..len]);
        for block in self.whole.on_disk.iter().filter(spilled) {
            let begin = ((block - first) * BLOCK_LEN) as usize;
            let end = (begin + BLOCK_LEN as usize).min(len);
            self.resume.storage().read_at(self.chunk_offset(chunk) + begin as u64, &mut scratch[begin..end])?;
        }
        Ok(scratch)
    }

    /// Writes what is not on disk yet, then records the piece: it counts from there on.
    fn write(&self) -> Result<(), StorageError> {
        if self.whole.on_disk.is_empty() {
            let slices: Vec<IoSlice<'_>> = self.memory().map(IoSlice::new).collect();
            self.resume.write_at(self.geometry.piece_offset(self.piece), &slices)?;
        } else {
            let mut scratch = Vec::new();
            for chunk in (0..self.whole.chunks.len()).filter(|at| self.whole.chunks[*at].is_some()) {
                let bytes = self.chunk(chunk, &mut scratch)?;
                self.resume.write_at(self.chunk_offset(chunk), &[IoSlice::new(bytes)])?;
            }
        }
        self.resume.verified(self.piece)
    }

    fn fail(self, error: StorageError) {
        let (torrent, piece, replies) = (self.torrent, self.piece, self.replies.clone());
        let outcome = Outcome::Failed { error, job: Box::new(self) };
        let _ = replies.send(Reply::Verified(Verified { torrent, piece, outcome }));
    }
}

#[cfg(test)]
mod tests;
