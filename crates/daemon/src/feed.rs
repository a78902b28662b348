//! What happened, for whoever watches: numbered, and kept for those who were away for a moment.
//!
//! The last [`KEPT_MAX`] happenings are kept, as long as they have no more than [`KEPT_BYTES_MAX`]. Whoever names the last one that it
//! heard of gets those after it; who was away for longer, or names one of another run, is told to look at everything anew. A watcher has
//! no queue: it reads where it is, and a slow one costs nothing but what it misses. What passes (rates, amounts) has no
//! number and is not kept: the newest is enough. Where nobody watches, nor did for [`AWAY_MAX`], what would be told need not be made.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::Notify;

/// Happenings that are kept.
pub(crate) const KEPT_MAX: usize = 4096;
/// Bytes of them.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// Who watched may come back for so long, and hear what it missed.
const AWAY_MAX: Duration = Duration::from_secs(10 * 60);

/// Where happenings are told. Clones are one.
#[derive(Clone)]
pub(crate) struct Feed(Rc<Inner>);

struct Inner {
    /// Tells numbers of this run from those of others.
    run: String,
    state: RefCell<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Bytes>,
    kept_bytes: usize,
    /// The number of the first that is kept.
    first: u64,
    passing: Option<(u64, Bytes)>,
    passing_count: u64,
    watchers: usize,
    /// When the last watcher left.
    left: Option<Instant>,
}

impl Feed {
    /// Nothing happened yet.
    pub(crate) fn new(run: String) -> Self {
        let state = RefCell::new(State { first: 1, ..State::default() });
        Self(Rc::new(Inner { run, state, news: Notify::new() }))
    }

    /// Tells that something happened.
    pub(crate) fn tell(&self, event: &str, data: &Value) {
        let mut state = self.0.state.borrow_mut();
        let number = state.first + state.kept.len() as u64;
        let text = Bytes::from(format!("id: {}-{number}\nevent: {event}\ndata: {data}\n\n", self.0.run));
        state.kept_bytes += text.len();
        state.kept.push_back(text);
        while state.kept.len() > KEPT_MAX || state.kept_bytes > KEPT_BYTES_MAX {
            let Some(oldest) = state.kept.pop_front() else { break };
            state.kept_bytes -= oldest.len();
            state.first += 1;
        }
        drop(state);
        self.0.news.notify_waiters();
    }

    /// Tells how things are, for as long as nothing newer is told.
    pub(crate) fn pass(&self, event: &str, data: &Value) {
        let mut state = self.0.state.borrow_mut();
        state.passing_count += 1;
        state.passing = Some((state.passing_count, Bytes::from(format!("event: {event}\ndata: {data}\n\n"))));
        drop(state);
        self.0.news.notify_waiters();
    }

    /// Whether anybody watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.state.borrow().watchers > 0
    }

    /// Whether anybody watches, or may come back to hear what it missed.
    pub(crate) fn is_heard(&self) -> bool {
        let state = self.0.state.borrow();
        state.watchers > 0 || state.left.is_some_and(|left| left.elapsed() < AWAY_MAX)
    }

    /// Something happened that is not told, for nobody hears it: whoever comes back after that looks at everything anew.
    pub(crate) fn skip(&self) {
        let mut state = self.0.state.borrow_mut();
        state.first += state.kept.len() as u64 + 1;
        state.kept.clear();
        state.kept_bytes = 0;
    }

    /// Watches from behind the happening of this id on; from now on where there is none.
    pub(crate) fn watch(&self, last: Option<&str>) -> Watcher {
        let mut state = self.0.state.borrow_mut();
        state.watchers += 1;
        let end = state.first + state.kept.len() as u64;
        let number = last.and_then(|last| {
            let (run, number) = last.rsplit_once('-')?;
            (run == self.0.run).then(|| number.parse::<u64>().ok())?
        });
        // Where it is not known what it heard of, everything has to be looked at.
        let next = match (last, number) {
            (None, _) => end,
            (Some(_), Some(number)) if number < end => number + 1,
            (Some(_), _) => 0,
        };
        let passed = state.passing_count;
        Watcher { feed: self.clone(), next, passed }
    }
}

/// Somebody who watches.
pub(crate) struct Watcher {
    feed: Feed,
    /// The number of what it hears of next; 0 where it has to be told to look at everything.
    next: u64,
    passed: u64,
}

impl Watcher {
    /// What happened next. Waits until something does.
    pub(crate) async fn next(&mut self) -> Bytes {
        loop {
            let inner = Rc::clone(&self.feed.0);
            let mut news = std::pin::pin!(inner.news.notified());
            // From here on nothing is missed.
            news.as_mut().enable();
            if let Some(text) = self.take() {
                return text;
            }
            news.await;
        }
    }

    fn take(&mut self) -> Option<Bytes> {
        let state = self.feed.0.state.borrow();
        if self.next < state.first {
            self.next = state.first + state.kept.len() as u64;
            let id = format!("{}-{}", self.feed.0.run, self.next - 1);
            return Some(format!("id: {id}\nevent: reset\ndata: {{}}\n\n").into());
        }
        if let Some(text) = state.kept.get((self.next - state.first) as usize) {
            self.next += 1;
            return Some(text.clone());
        }
        let (number, text) = state.passing.as_ref().filter(|(number, _)| *number > self.passed)?;
        self.passed = *number;
        Some(text.clone())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut state = self.feed.0.state.borrow_mut();
        state.watchers -= 1;
        state.left = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn id(text: &Bytes) -> String {
        let text = std::str::from_utf8(text).unwrap();
        text.lines().find_map(|line| line.strip_prefix("id: ")).unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn whoever_was_away_gets_what_it_missed_or_is_told_to_look_anew() {
        let feed = Feed::new("r".into());
        let mut first = feed.watch(None);
        feed.tell("content", &json!(1));
        feed.pass("rates", &json!(2));
        feed.tell("content", &json!(3));
        feed.pass("rates", &json!(4));
        let heard = [first.next().await, first.next().await, first.next().await];
        assert_eq!(heard.each_ref().map(id), ["r-1", "r-2", ""]);
        assert_eq!(heard[2], "event: rates\ndata: 4\n\n");
        assert!(first.take().is_none());
        let mut again = feed.watch(Some("r-1"));
        assert_eq!(again.next().await, heard[1]);
        let mut current = feed.watch(Some("r-2"));
        assert!(current.take().is_none());
        for strange in ["q-1", "r-3", "r-99", "nonsense", ""] {
            let mut lost = feed.watch(Some(strange));
            let told = lost.next().await;
            assert!(told.starts_with(b"id: r-2\nevent: reset"), "{strange}");
            assert!(lost.take().is_none());
        }
        let mut slow = feed.watch(Some("r-0"));
        for at in 0..KEPT_MAX {
            feed.tell("content", &json!(at));
        }
        assert!(slow.take().is_some_and(|text| text.starts_with(b"id: r-4098\nevent: reset")));
        let mut known = feed.watch(Some("r-2"));
        assert_eq!(id(&known.next().await), "r-3");
        let mut forgotten = feed.watch(Some("r-1"));
        assert!(forgotten.next().await.starts_with(b"id: r-4098\nevent: reset"));
        drop((first, again, current, slow, known, forgotten));
        assert!(!feed.is_watched());
    }

    #[tokio::test]
    async fn what_nobody_hears_need_not_be_told_and_is_missed() {
        let feed = Feed::new("r".into());
        assert!(!feed.is_heard());
        feed.tell("content", &json!(1));
        let mut first = feed.watch(None);
        assert!(feed.is_heard());
        feed.tell("content", &json!(2));
        assert_eq!(id(&first.next().await), "r-2");
        drop(first);
        assert!(feed.is_heard() && !feed.is_watched(), "it may come back");
        feed.skip();
        let mut again = feed.watch(Some("r-2"));
        assert!(again.next().await.starts_with(b"id: r-3\nevent: reset"));
        feed.tell("content", &json!(3));
        assert_eq!(id(&again.next().await), "r-4");
    }

    #[test]
    fn bytes_are_bounded_too() {
        let feed = Feed::new("r".into());
        let long = Value::from("x".repeat(1 << 20));
        (0..20).for_each(|_| feed.tell("content", &long));
        let state = feed.0.state.borrow();
        assert!(state.kept_bytes <= KEPT_BYTES_MAX && state.kept.len() == 7, "{}", state.kept.len());
    }
}
