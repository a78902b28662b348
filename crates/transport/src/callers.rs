//! Callers at a door, each heard out by a task of its own, and turned away where a new one has no room beside them
//! ([`PendingCallers`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anabranch_paths::{Host, PendingCallers};
use tokio::sync::Notify;

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Callers(Arc<Mutex<Numbered>>);

#[derive(Debug, Default)]
struct Numbered {
    pending: PendingCallers<u64, Arc<Notify>>,
    next: u64,
}

/// A caller's place, which is others' again when this is dropped.
#[derive(Debug)]
pub struct CallerPlace {
    callers: Callers,
    number: u64,
    turned_away: Arc<Notify>,
}

impl Callers {
    /// Whether a caller from `host` has to show that it is there before it enters.
    pub(crate) fn must_prove(&self, host: Host) -> bool {
        self.lock().pending.must_prove(host)
    }

    /// A caller from `host` enters; another one may be turned away for it.
    pub fn enter(&self, host: Host) -> CallerPlace {
        let turned_away = Arc::new(Notify::new());
        let mut callers = self.lock();
        let number = callers.next;
        callers.next = number.wrapping_add(1);
        if let Some((_, gone)) = callers.pending.enter(number, host, Arc::clone(&turned_away)) {
            gone.notify_one();
        }
        CallerPlace { callers: self.clone(), number, turned_away }
    }

    fn lock(&self) -> MutexGuard<'_, Numbered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallerPlace {
    /// Hears the caller out, and gives the place back then. `None` where the caller was turned away meanwhile.
    pub async fn hear<T>(self, caller: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.turned_away.notified() => None,
            heard = caller => Some(heard),
        }
    }
}

impl Drop for CallerPlace {
    fn drop(&mut self) {
        self.callers.lock().pending.leave(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use anabranch_paths::PENDING_OF_HOST_MAX;

    use super::*;

    #[tokio::test]
    async fn who_is_silent_is_turned_away_for_another_one() {
        let (callers, host) = (Callers::default(), Host::of(&"192.0.2.1:1".parse().unwrap()));
        let said = callers.enter(host).hear(ready(7)).await;
        assert_eq!(said, Some(7));
        let mut silent = Vec::new();
        for _ in 0..PENDING_OF_HOST_MAX {
            silent.push(tokio::spawn(callers.enter(host).hear(pending::<()>())));
        }
        assert_eq!(callers.enter(host).hear(ready(8)).await, Some(8));
        assert_eq!(silent.remove(0).await.unwrap(), None, "the oldest");
        tokio::task::yield_now().await;
        assert!(silent.iter().all(|task| !task.is_finished()), "and nobody else");
        for task in &silent {
            task.abort();
        }
        for task in silent {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert!(callers.lock().pending.is_empty(), "whoever is gone gives the place back");
    }
}
