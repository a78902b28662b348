//! Callers whose handshakes are under way. A handshake that is begun and left takes a place for seconds, and costs the caller a few
//! packets: so places are given as they are to strangers at any door, by host.
//!
//! Until a caller has shown that its address is its own (RFC 9000 §8.1.2), it may be anybody's. So only a few of a host, and not
//! many of all, are taken in without that; nobody loses a place to one who only says that he is there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch_paths::{Host, who_goes};
use tokio::task::AbortHandle;

/// Handshakes under way at once.
pub(super) const HANDSHAKES_MAX: usize = 256;
/// Of these, one host's: as many as call at once where a whole network has one address.
pub(super) const HANDSHAKES_OF_HOST_MAX: usize = 32;
/// Above so many, a caller first has to show that its address is its own ...
pub(super) const HANDSHAKES_TRUSTED: usize = 64;
/// ... and above so many of its host.
pub(super) const HANDSHAKES_OF_HOST_TRUSTED: usize = 8;

/// All of them.
#[derive(Clone, Default)]
pub(super) struct Callers(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    /// The oldest first.
    all: VecDeque<(u64, Host, AbortHandle)>,
    next: u64,
}

/// A caller's place, for as long as it is kept.
pub(super) struct Place {
    callers: Callers,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let number = self.number;
        self.callers.lock().all.retain(|(other, ..)| *other != number);
    }
}

impl Callers {
    /// Whether a caller from `host` has to show that it is there before it takes a place.
    pub(super) fn must_prove(&self, host: Host) -> bool {
        let waiting = self.lock();
        let of_host = waiting.all.iter().filter(|(_, other, _)| *other == host).count();
        waiting.all.len() >= HANDSHAKES_TRUSTED || of_host >= HANDSHAKES_OF_HOST_TRUSTED && !host.is_loopback()
    }

    /// Gives a caller from `host` a place; `task` is told it and serves the caller. Another one may have to go for it.
    pub(super) fn enter(&self, host: Host, task: impl FnOnce(Place) -> AbortHandle) {
        let mut waiting = self.lock();
        let number = waiting.next;
        waiting.next = number.wrapping_add(1);
        let task = task(Place { callers: self.clone(), number });
        waiting.all.push_back((number, host, task));
        let hosts: Vec<Host> = waiting.all.iter().map(|(_, host, _)| *host).collect();
        let goes = who_goes(&hosts, host, HANDSHAKES_MAX, HANDSHAKES_OF_HOST_MAX);
        let gone = goes.and_then(|at| waiting.all.remove(at));
        // What it held may be given back at once, and takes the lock for that.
        drop(waiting);
        if let Some((_, _, task)) = gone {
            task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
