//! Callers that have not said yet what they want, or are being turned away. Each costs its caller a few packets, so places are given as
//! they are to strangers at any door, by host: nobody keeps others out by being many, or silent.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use anabranch_paths::{Host, who_goes};
use tokio::task::AbortHandle;

/// Callers at once: a message that has come by half is 64 KiB at most, so all of theirs is some 16 MiB.
const CALLERS_MAX: usize = 256;
/// Of these, one host's: as many as call at once where a whole network has one address.
const CALLERS_OF_HOST_MAX: usize = 32;

/// All of them.
#[derive(Clone, Default)]
pub(super) struct Callers(Rc<RefCell<Waiting>>);

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
        self.callers.0.borrow_mut().all.retain(|(other, ..)| *other != number);
    }
}

impl Callers {
    /// Gives a caller from `host` a place; `task` is told it and serves the caller. Another one may have to go for it.
    pub(super) fn enter(&self, host: Host, task: impl FnOnce(Place) -> AbortHandle) {
        let number = {
            let mut waiting = self.0.borrow_mut();
            waiting.next += 1;
            waiting.next
        };
        let task = task(Place { callers: self.clone(), number });
        let gone = {
            let mut waiting = self.0.borrow_mut();
            waiting.all.push_back((number, host, task));
            let hosts: Vec<Host> = waiting.all.iter().map(|(_, host, _)| *host).collect();
            let goes = who_goes(&hosts, host, CALLERS_MAX, CALLERS_OF_HOST_MAX);
            goes.and_then(|at| waiting.all.remove(at))
        };
        // Its place is given back with what else its task holds.
        if let Some((_, _, task)) = gone {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_paths::Endpoint;

    use super::*;

    /// Callers that say nothing, from these addresses; which of them are still there in the end.
    async fn who_stays(addresses: impl Iterator<Item = String>) -> Vec<bool> {
        let callers = Callers::default();
        let enter = |address: String| {
            let address: Endpoint = address.parse().unwrap();
            let mut handle = None;
            callers.enter(Host::of(&address), |place| {
                let task = tokio::task::spawn_local(async move {
                    std::future::pending::<()>().await;
                    drop(place);
                });
                let abort = task.abort_handle();
                handle = Some(task);
                abort
            });
            handle.unwrap()
        };
        let tasks: Vec<_> = addresses.map(enter).collect();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        tasks.iter().map(|task| !task.is_finished()).collect()
    }

    #[tokio::test]
    async fn of_a_host_with_too_many_its_oldest_goes() {
        let local = tokio::task::LocalSet::new();
        let of_one = |count: usize| (0..count).map(|port| format!("192.0.2.1:{}", port + 1));
        let stay = local.run_until(who_stays(of_one(CALLERS_OF_HOST_MAX))).await;
        assert!(stay.iter().all(|stays| *stays));
        let stay = local.run_until(who_stays(of_one(CALLERS_OF_HOST_MAX + 1))).await;
        assert!(!stay[0] && stay[1..].iter().all(|stays| *stays));
    }

    #[tokio::test]
    async fn where_all_are_too_many_one_of_those_goes_that_have_most() {
        let local = tokio::task::LocalSet::new();
        let of_many = |count: usize| {
            // A crowd of one host, then one each of many.
            let crowd = (0..CALLERS_OF_HOST_MAX).map(|port| format!("192.0.2.1:{}", port + 1));
            let others = (CALLERS_OF_HOST_MAX..count).map(|host| format!("198.51.{}.{}:1", host / 250, host % 250));
            crowd.chain(others)
        };
        let stay = local.run_until(who_stays(of_many(CALLERS_MAX))).await;
        assert!(stay.iter().all(|stays| *stays));
        let stay = local.run_until(who_stays(of_many(CALLERS_MAX + 1))).await;
        assert!(!stay[0] && stay[1..].iter().all(|stays| *stays));
    }
}
