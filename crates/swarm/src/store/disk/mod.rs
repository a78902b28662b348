//! The threads that hash and write, so that the network thread never waits for a disk.
//!
//! Complete pieces queue here, from all contents. A thread takes as many as the hash functions have lanes and verifies
//! them side by side, which is several times cheaper per byte than one after the other; then it writes the good ones, in
//! one call each. Everything else that touches a disk on the way (spills, leaves, reading ahead) is a task in the same queue.
//!
//! A piece that nobody is about to ask for is written past the page cache where the file system can, and such a write takes as long
//! as the device does: those are handed to threads that do nothing else, so that hashing goes on meanwhile.
//!
//! Every job is answered, whatever happens: where one panics, its thread goes on and the job's content is told. Answers wait for
//! the network thread in a queue that is bounded, see [`replies`].

mod hashing;
mod job;
mod replies;
mod threads;

use std::sync::Arc;

pub(crate) use job::{Outcome, Reply, SpillJob, Spilled, Verified, VerifyJob};
pub(crate) use replies::Replies;

use crate::events::ContentId;
use crate::store::spill;
use replies::Mailbox;
use threads::{JobQueue, Task};

/// Threads that write past the page cache: while one prepares its next write, the device has the other's.
const WRITERS: usize = 2;

/// The disk threads.
pub(crate) struct Disk {
    jobs: Arc<JobQueue>,
}

impl Disk {
    /// Starts `threads` of them, one at least, and the writers; answers come out of [`Replies`].
    pub(crate) fn new(threads: usize) -> std::io::Result<(Self, Replies)> {
        let replies = Arc::<Mailbox>::default();
        let disk = Self { jobs: Arc::new(JobQueue::new(Arc::clone(&replies))) };
        for index in 0..threads.max(1) {
            let jobs = Arc::clone(&disk.jobs);
            // Where one cannot be had, those before it end with the disk.
            std::thread::Builder::new().name(format!("disk-{index}")).spawn(move || jobs.run())?;
        }
        for index in 0..WRITERS {
            let jobs = Arc::clone(&disk.jobs);
            std::thread::Builder::new().name(format!("writer-{index}")).spawn(move || jobs.run_writer())?;
        }
        Ok((disk, Replies::new(replies)))
    }

    /// Queues a piece. What queues is bounded by the buffers that pieces are made of.
    pub(crate) fn verify(&self, job: VerifyJob) {
        self.jobs.queue_piece(job);
    }

    /// Queues a chunk that is to be written ahead of time.
    pub(crate) fn spill(&self, job: SpillJob) {
        self.run(job.content, move || {
            let written = spill::write(&job.resume, &job.spill);
            let (content, piece) = (job.content, job.spill.piece);
            let failed = written.err().map(|error| (error, Box::new(job)));
            Reply::Spilled(Spilled { content, piece, failed })
        });
    }

    /// Does `work` for a content on a disk thread, and answers with what comes of it.
    pub(crate) fn run(&self, content: ContentId, work: impl FnOnce() -> Reply + Send + 'static) {
        self.jobs.queue_task(Task { content, work: Box::new(work) });
    }
}

impl Drop for Disk {
    /// The threads finish what is queued, and end. They are not waited for: a disk may hang for minutes.
    fn drop(&mut self) {
        self.jobs.close();
    }
}

#[cfg(test)]
mod tests;
