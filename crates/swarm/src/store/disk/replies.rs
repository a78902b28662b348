//! Answers of the disk threads on their way to the network thread, [`REPLIES_MAX`] at most.
//!
//! A disk thread that has an answer for which there is no room waits with it, and takes no further job. So a network thread that is
//! slow holds up the disk: jobs stay where they are, and there are no more of them than buffers and connections allow. Nobody waits in a circle:
//!
//! - The network thread never waits for a disk thread. It hands in a job under a lock that is never held while something is
//!   done, and takes an answer, which makes room, or sleeps until there is one and serves its sockets meanwhile.
//! - Once the [`Disk`](super::Disk) is dropped, or the [`Replies`] are and nobody takes answers any more, no thread waits for
//!   room: what is queued is finished all the same.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Reply;

/// Answers that wait: some batches of every thread, so that none stands still while the network thread has its turn with a
/// socket. More would only be more to deal with at once.
pub(super) const REPLIES_MAX: usize = 256;

/// Where answers wait.
#[derive(Default)]
pub(super) struct Mailbox {
    state: Mutex<Waiting>,
    room: Condvar,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    waiting: VecDeque<Reply>,
    /// Threads that wait for room.
    held_up: usize,
    /// Nobody may wait for room any more.
    leaving: bool,
    /// Nobody takes answers any more.
    unheard: bool,
    /// Nobody answers any more.
    ended: bool,
}

impl Mailbox {
    /// Hands an answer over, as soon as there is room.
    pub(super) fn put(&self, reply: Reply) {
        let mut state = self.lock();
        while state.waiting.len() >= REPLIES_MAX && !state.leaving && !state.unheard {
            state.held_up += 1;
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.held_up -= 1;
        }
        if !state.unheard {
            state.waiting.push_back(reply);
            drop(state);
            self.arrived.notify_one();
        }
    }

    /// There will be no more jobs: what is left of them is bounded, and finished whether or not somebody hears of it.
    pub(super) fn leave(&self) {
        self.lock().leaving = true;
        self.room.notify_all();
    }

    /// All disk threads are gone.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing under this lock can leave the state half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network thread's end.
pub(crate) struct Replies {
    mailbox: Arc<Mailbox>,
}

impl Replies {
    pub(super) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox }
    }

    /// The next answer; `None` when the [`Disk`](super::Disk) is gone and nothing is left to say. Where many wait, other tasks get
    /// their turn in between.
    pub(crate) async fn next(&mut self) -> Option<Reply> {
        tokio::task::coop::consume_budget().await;
        loop {
            match self.take() {
                (None, false) => self.mailbox.arrived.notified().await,
                (reply, _) => return reply,
            }
        }
    }

    /// An answer that waits, and whether there will be none any more.
    fn take(&self) -> (Option<Reply>, bool) {
        let mut state = self.mailbox.lock();
        let reply = state.waiting.pop_front();
        if reply.is_some() && state.held_up > 0 {
            self.mailbox.room.notify_one();
        }
        (reply, state.ended)
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        let unheard = {
            let mut state = self.mailbox.lock();
            state.unheard = true;
            std::mem::take(&mut state.waiting)
        };
        self.mailbox.room.notify_all();
        drop(unheard); // with what hangs on it: not under the lock
    }
}
