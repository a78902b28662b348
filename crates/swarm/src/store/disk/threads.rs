//! The queue of jobs, and what a thread does with them.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_content::storage::StorageError;

use super::hashing::{check_alone, check_merkle, check_sha1};
use super::replies::Mailbox;
use super::{Outcome, Reply, Verified, VerifyJob};
use crate::events::ContentId;

/// Pieces verified side by side: the lanes of the widest hash function.
pub(super) const BATCH_MAX: usize = 16;
/// Longest wait for a batch to fill, while pieces arrive in quick succession.
const LINGER_MAX: Duration = Duration::from_millis(12);
/// Pieces that arrive further apart than this are verified as they come.
const LINGER_GAP_MAX: Duration = Duration::from_millis(2);

/// Anything but a piece.
pub(super) struct Task {
    pub(super) content: ContentId,
    pub(super) work: Box<dyn FnOnce() -> Reply + Send>,
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
    /// Good pieces for the writers, with the digests of their blocks.
    writes: VecDeque<(VerifyJob, Vec<u64>)>,
    /// Batches that are being verified, of which there may be more to write.
    verifying: usize,
    /// When the last piece came, and how long after the one before: what tells a flood of pieces from a trickle.
    last_piece: Option<Instant>,
    gap: Option<Duration>,
    /// The last thing taken was a task, not pieces.
    task_was_last: bool,
    closing: bool,
}

/// What the threads and those who hand jobs in share.
pub(super) struct JobQueue {
    queue: Mutex<Queue>,
    wake: Condvar,
    wake_writer: Condvar,
    digest_key: RandomState,
    pub(super) replies: Arc<Mailbox>,
}

impl JobQueue {
    pub(super) fn new(replies: Arc<Mailbox>) -> Self {
        let (wake, wake_writer) = (Condvar::new(), Condvar::new());
        Self { queue: Mutex::default(), wake, wake_writer, digest_key: RandomState::new(), replies }
    }

    pub(super) fn queue_piece(&self, job: VerifyJob) {
        let mut queue = self.lock();
        let now = Instant::now();
        queue.gap = queue.last_piece.map(|last| now - last);
        queue.last_piece = Some(now);
        queue.pieces.push_back(job);
        // While a batch gathers, one thread is awake and counting: waking it for every piece would undo the gain.
        if queue.pieces.len() == 1 || queue.pieces.len().is_multiple_of(BATCH_MAX) {
            self.wake.notify_one();
        }
    }

    pub(super) fn queue_task(&self, task: Task) {
        self.lock().tasks.push_back(task);
        self.wake.notify_one();
    }

    /// Threads end when nothing is queued any more, and do not wait for anybody to hear of it.
    pub(super) fn close(&self) {
        self.replies.leave();
        self.lock().closing = true;
        self.wake.notify_all();
        self.wake_writer.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No job runs while the queue is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread, to its end.
    pub(super) fn run(&self) {
        while let Some(work) = self.next_work() {
            match work {
                Work::Task(Task { content, work }) => {
                    // What the work held goes with it: nothing half done is seen again.
                    let reply = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Reply::Panicked { content });
                    self.replies.put(reply);
                }
                Work::Pieces(batch) => {
                    self.verify_or_tell(batch);
                    let mut queue = self.lock();
                    queue.verifying -= 1;
                    if queue.closing && queue.verifying == 0 {
                        self.wake_writer.notify_all();
                    }
                }
            }
        }
    }

    /// A thread that writes past the page cache, to its end.
    pub(super) fn run_writer(&self) {
        while let Some((job, digests)) = self.next_write() {
            let content = job.content;
            if catch_unwind(AssertUnwindSafe(|| self.write(job, digests))).is_err() {
                self.replies.put(Reply::Panicked { content });
            }
        }
    }

    fn next_write(&self) -> Option<(VerifyJob, Vec<u64>)> {
        let mut queue = self.lock();
        loop {
            match queue.writes.pop_front() {
                Some(write) => return Some(write),
                None if queue.closing && queue.verifying == 0 && queue.pieces.is_empty() => return None,
                None => queue = self.wake_writer.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Pieces are verified side by side: where one panics, it cannot be told whose it was, nor what became of the others.
    fn verify_or_tell(&self, batch: Vec<VerifyJob>) {
        let owners: Vec<ContentId> = batch.iter().map(|job| job.content).collect();
        if catch_unwind(AssertUnwindSafe(|| self.verify(batch))).is_err() {
            owners.into_iter().for_each(|content| self.replies.put(Reply::Panicked { content }));
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
                    queue.verifying += 1;
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
        let (in_memory, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(VerifyJob::fits_lanes);
        let mut good = vec![true; in_memory.len()];
        check_sha1(&in_memory, &mut good);
        check_merkle(&in_memory, &mut good);
        for (job, good) in in_memory.into_iter().zip(good) {
            self.finish(job, good);
        }
        for job in others {
            match check_alone(&job) {
                Ok(good) => self.finish(job, good),
                Err(error) => self.answer(job.failed(error)),
            }
        }
    }

    /// Writes a good piece, or has it written, and answers.
    fn finish(&self, job: VerifyJob, good: bool) {
        let digests = if !good || job.digests { self.block_digests(&job) } else { Ok(Vec::new()) };
        match (good, digests) {
            (_, Err(error)) => self.answer(job.failed(error)),
            (false, Ok(digests)) => self.finished(job, Outcome::Bad { digests }),
            (true, Ok(digests)) if job.waits_for_device() => {
                self.lock().writes.push_back((job, digests));
                self.wake_writer.notify_one();
            }
            (true, Ok(digests)) => self.write(job, digests),
        }
    }

    fn write(&self, job: VerifyJob, digests: Vec<u64>) {
        match job.write() {
            Ok(()) => self.finished(job, Outcome::Good { digests }),
            Err(error) => self.answer(job.failed(error)),
        }
    }

    fn finished(&self, job: VerifyJob, outcome: Outcome) {
        let (content, piece) = (job.content, job.piece);
        // Its memory is free for others before anybody hears of it, and while there is no room for the answer.
        drop(job);
        self.answer(Verified { content, piece, outcome });
    }

    fn answer(&self, verified: Verified) {
        self.replies.put(Reply::Verified(verified));
    }

    /// A keyed digest of every block, for telling later who sent which: nobody outside can make two blocks collide.
    fn block_digests(&self, job: &VerifyJob) -> Result<Vec<u64>, StorageError> {
        let mut scratch = Vec::new();
        let mut digests = Vec::new();
        for chunk in 0..job.whole.chunks.len() {
            for block in job.chunk(chunk, &mut scratch)?.chunks(job.block_length()) {
                digests.push(self.digest_key.hash_one(block));
            }
        }
        Ok(digests)
    }
}

impl Drop for JobQueue {
    /// The last thread ended.
    fn drop(&mut self) {
        self.replies.end();
    }
}
