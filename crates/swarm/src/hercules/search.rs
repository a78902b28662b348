//! Lookups of the ways to the other end, one after the other, beside its session: a daemon or a control service that does not answer holds
//! up nothing else.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;

/// How often ways are looked up again.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The same while some path carries nothing.
const LOOK_EVERY_DOWN: Duration = Duration::from_millis(500);

/// Looks ways up. A lookup that is under way ends with this.
pub(super) struct Search<B, L> {
    begin: B,
    under_way: Option<Pin<Box<L>>>,
    due: Instant,
}

impl<B: FnMut() -> L, L: Future> Search<B, L> {
    /// Looks up by what `begin` answers, for the first time as if there had been a lookup just now.
    pub(super) fn new(is_any_down: bool, begin: B) -> Self {
        Self { begin, under_way: None, due: next(is_any_down) }
    }

    /// Waits until the next lookup is due, and is over: what it found. Where this is dropped half-way, the lookup waits for the next call.
    pub(super) async fn found(&mut self) -> L::Output {
        let lookup = match &mut self.under_way {
            Some(lookup) => lookup,
            none => {
                tokio::time::sleep_until(self.due).await;
                none.insert(Box::pin((self.begin)()))
            }
        };
        let found = lookup.await;
        self.under_way = None;
        found
    }

    /// One is over: when the next is due.
    pub(super) fn again(&mut self, is_any_down: bool) {
        self.due = next(is_any_down);
    }
}

fn next(is_any_down: bool) -> Instant {
    Instant::now() + if is_any_down { LOOK_EVERY_DOWN } else { LOOK_EVERY }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;
    use std::rc::Rc;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Lookups that take so long, or for ever.
    #[derive(Default)]
    struct Lookups {
        takes: Option<u32>,
        begun: Rc<Cell<u32>>,
        under_way: Rc<Cell<u32>>,
    }

    /// One of them, as long as it is not over.
    struct UnderWay(Rc<Cell<u32>>);

    impl Drop for UnderWay {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    impl Lookups {
        /// Answers which one it is.
        fn begin(&self) -> impl Future<Output = u32> + use<> {
            self.begun.set(self.begun.get() + 1);
            self.under_way.set(self.under_way.get() + 1);
            let (takes, number, under_way) = (self.takes, self.begun.get(), UnderWay(Rc::clone(&self.under_way)));
            async move {
                let _under_way = under_way;
                match takes {
                    Some(takes) => tokio::time::sleep(MS * takes).await,
                    None => pending().await,
                }
                number
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_lookup_after_the_other_is_made_however_often_their_end_is_asked_for() {
        let start = Instant::now();
        let lookups = Lookups { takes: Some(700), ..Lookups::default() };
        let mut search = Search::new(true, || lookups.begin());
        let mut found = Vec::new();
        while found.len() < 3 {
            // As a session does to which something else happens all the time.
            if let Ok(number) = tokio::time::timeout(MS * 10, search.found()).await {
                found.push((number, start.elapsed().as_millis()));
                search.again(false);
            }
            assert!(lookups.under_way.get() <= 1);
        }
        assert_eq!((found, lookups.begun.get()), (vec![(1, 1200), (2, 3900), (3, 6600)], 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_without_an_end_holds_up_nothing_and_goes_with_the_search() {
        let lookups = Lookups::default();
        let mut search = Search::new(true, || lookups.begin());
        for _ in 0..1000 {
            assert!(tokio::time::timeout(MS * 10, search.found()).await.is_err());
        }
        assert_eq!((lookups.begun.get(), lookups.under_way.get()), (1, 1));
        drop(search);
        assert_eq!(lookups.under_way.get(), 0);
    }
}
