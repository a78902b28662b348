//! Rate limits, shared evenly.
//!
//! All connections that a limit holds up stand in one [`Line`] for each direction. Whenever the limits let something move, a
//! turn goes to the content that had least, in it to the peer that had least, and to that peer's connections one after the
//! other: so neither many connections nor many contents nor long blocks buy a larger part (start-time fair queueing, Goyal
//! et al. 1996). Who cannot use its part does not stand in line, and leaves it to the others; rest earns nothing later.
//!
//! Who is owed nothing comes after those who are: of sixteen turns to receive, fifteen go to connections that something was asked of, for as
//! long as one of these waits. What others send unasked, however many they are, costs no more than the sixteenth.
//!
//! A turn is a quantum of bytes. A block or message that was begun goes to its end, whatever is left of the turn: what
//! it takes beyond is owed, by the limits and by the one who took it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::PeerKey;
use tokio::sync::Notify;

use crate::net::conn_handle::ConnHandle;

/// How much time's worth of bytes a limit saves up: short enough that it is kept within any second, long enough for
/// coarse timers.
const BURST: Duration = Duration::from_millis(200);
/// A turn is what a limit lets through in this time ...
const QUANTUM_TIME: Duration = Duration::from_millis(4);
/// ... but no less than is worth a system call,
const QUANTUM_BYTES_MIN: f64 = 2.0 * 1024.0;
/// and no more than one peer's memory takes at once.
const QUANTUM_BYTES_MAX: f64 = 256.0 * 1024.0;
/// Turns that a connection has at once, in bytes: what it moves before others get the processor, or a little more ...
const GRANTED_BYTES_MAX: f64 = 4.0 * 1024.0 * 1024.0;
/// ... and no more than passes in this time: who comes a moment later finds something left.
const GRANTED_TIME: Duration = Duration::from_millis(10);
/// Most that is owed, in time: what has to be said is said whatever the limit, and payload must not stop for ever.
const DEBT: Duration = Duration::from_secs(2);
/// The same where the limit is so low that one block takes longer.
const DEBT_BYTES_MIN: f64 = 256.0 * 1024.0;
/// How often turns are given at most while somebody waits: timers are no finer.
const PACE: Duration = Duration::from_millis(5);
/// Of so many turns one is anybody's, whether or not something was asked of it: newcomers have to be heard.
const TURNS_OF_ASKED: u32 = 16;
/// Peers that are remembered beyond those who wait, for what they had.
const PEERS_SPARE: usize = 64;

/// A limit in bytes per second, if there is one, and what may move under it now.
#[derive(Debug)]
struct Bucket {
    rate_bytes: Option<f64>,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn new(rate_bytes: Option<u64>, now: Instant) -> Self {
        let mut new = Self { rate_bytes: rate_bytes.map(|rate| rate as f64), tokens: 0.0, filled: now };
        // The first turn is at once: what is asked for first shows how far the peer is, and not how long we wait.
        new.tokens = new.quantum();
        new
    }

    /// Bytes of one turn.
    fn quantum(&self) -> f64 {
        self.rate_bytes.map_or(QUANTUM_BYTES_MAX, |rate| {
            (rate * QUANTUM_TIME.as_secs_f64()).clamp(QUANTUM_BYTES_MIN, QUANTUM_BYTES_MAX)
        })
    }

    /// Bytes of the turns that one may have at once.
    fn turns(&self) -> f64 {
        let turns = |rate: f64| (rate * GRANTED_TIME.as_secs_f64()).clamp(self.quantum(), GRANTED_BYTES_MAX);
        self.rate_bytes.map_or(GRANTED_BYTES_MAX, turns)
    }

    /// The limit is another: what was saved up, or is owed, stays.
    fn set_rate(&mut self, rate_bytes: Option<u64>, now: Instant) {
        self.fill(now);
        let was_limited = self.rate_bytes.is_some();
        self.rate_bytes = rate_bytes.map(|rate| rate as f64);
        self.filled = now;
        if !was_limited {
            self.tokens = self.quantum();
        }
    }

    fn fill(&mut self, now: Instant) {
        let Some(rate) = self.rate_bytes else { return };
        let earned = now.saturating_duration_since(self.filled).as_secs_f64() * rate;
        self.tokens = (self.tokens + earned).min((rate * BURST.as_secs_f64()).max(self.quantum()));
        self.filled = self.filled.max(now);
    }

    /// Time until a turn may be given.
    fn wait(&mut self, now: Instant) -> Duration {
        self.fill(now);
        let Some(rate) = self.rate_bytes else { return Duration::ZERO };
        Duration::from_secs_f64((self.quantum() - self.tokens).max(0.0) / rate.max(1.0))
    }

    /// Whether a turn may be given.
    fn is_open(&mut self, now: Instant) -> bool {
        self.wait(now).is_zero()
    }

    /// Takes away what moved, or gives back what did not.
    fn spend(&mut self, bytes: f64) {
        if let Some(rate) = self.rate_bytes {
            let debt_max = (rate * DEBT.as_secs_f64()).max(DEBT_BYTES_MIN);
            self.tokens = (self.tokens - bytes).max(-debt_max);
        }
    }
}

/// One direction of a session's traffic, and who waits for a turn in it.
#[derive(Debug)]
pub(crate) struct Line {
    state: RefCell<State>,
    /// Wakes the task that gives turns; see [`keep_pace`].
    pace: Notify,
    /// When that task wakes by itself.
    due: Cell<Option<Instant>>,
}

#[derive(Debug)]
struct State {
    all: Bucket,
    contents: BTreeMap<u64, Content>,
    /// What the content had that was served last: newcomers start there.
    had: f64,
    waiting: usize,
    /// Memory for those who are given turns.
    served: Vec<Rc<Place>>,
}

#[derive(Debug)]
struct Content {
    bucket: Bucket,
    /// It, or everybody, has a limit: what its connections look at.
    is_limited: Rc<Cell<bool>>,
    /// Bytes that it had, counted from a common start.
    had: f64,
    peers: BTreeMap<PeerKey, Peer>,
    /// The same of the peer that was served last.
    peer_had: f64,
    waiting: usize,
    /// Turns given since one was anybody's.
    turns: u32,
}

#[derive(Debug, Default)]
struct Peer {
    had: f64,
    waiting: VecDeque<Rc<Place>>,
}

/// A connection's place.
struct Place {
    content: u64,
    peer: Cell<PeerKey>,
    own: RefCell<Bucket>,
    /// Its content, or everybody, has a limit.
    is_content_limited: Rc<Cell<bool>>,
    /// It has one itself.
    is_limited: bool,
    /// What is left of its turn.
    granted: Cell<u64>,
    waits: Cell<bool>,
    /// Something was asked for that moves here.
    is_asked: Cell<bool>,
    handle: Rc<ConnHandle>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Place({:?}, {:?})", self.content, self.peer.get())
    }
}

impl Line {
    /// A direction in which `rate_bytes` per second may move, all contents together.
    pub(crate) fn new(rate_bytes: Option<u64>, now: Instant) -> Rc<Self> {
        let all = Bucket::new(rate_bytes, now);
        let state = RefCell::new(State { all, contents: BTreeMap::new(), had: 0.0, waiting: 0, served: Vec::new() });
        Rc::new(Self { state, pace: Notify::new(), due: Cell::new(None) })
    }

    /// A content's own limit. Before its first connection.
    pub(crate) fn add_content(&self, content: u64, rate_bytes: Option<u64>, now: Instant) {
        let mut state = self.state.borrow_mut();
        let is_limited = Rc::new(Cell::new(state.all.rate_bytes.or(rate_bytes.map(|rate| rate as f64)).is_some()));
        let bucket = Bucket::new(rate_bytes, now);
        let new = Content { bucket, is_limited, had: 0.0, peers: BTreeMap::new(), peer_had: 0.0, waiting: 0, turns: 0 };
        state.contents.insert(content, new);
    }

    /// A content's own limit is another. Holds for its connections at once.
    pub(crate) fn set_content_limit(&self, content: u64, rate_bytes: Option<u64>, now: Instant) {
        let mut state = self.state.borrow_mut();
        let is_all_limited = state.all.rate_bytes.is_some();
        if let Some(content) = state.contents.get_mut(&content) {
            content.bucket.set_rate(rate_bytes, now);
            content.is_limited.set(is_all_limited || rate_bytes.is_some());
        }
        // Whoever waited for the old one.
        self.pace.notify_one();
    }

    /// Another limit for all contents together.
    pub(crate) fn set_limit(&self, rate_bytes: Option<u64>, now: Instant) {
        let mut state = self.state.borrow_mut();
        state.all.set_rate(rate_bytes, now);
        for content in state.contents.values() {
            content.is_limited.set(rate_bytes.is_some() || content.bucket.rate_bytes.is_some());
        }
        // Whoever waited for the old one.
        self.pace.notify_one();
    }

    /// The limit of all contents together.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.state.borrow().all.rate_bytes.map(|rate| rate as u64)
    }

    /// A content is gone, and with it who waits for a turn in it.
    pub(crate) fn remove_content(&self, content: u64) {
        let mut state = self.state.borrow_mut();
        let Some(gone) = state.contents.remove(&content) else { return };
        state.waiting -= gone.waiting;
        for place in gone.peers.values().flat_map(|peer| &peer.waiting) {
            place.waits.set(false);
        }
    }

    /// A new connection's part of it, whose own limit is `rate_bytes`. `handle` is woken when its turn comes.
    pub(crate) fn share(
        self: &Rc<Self>,
        content: u64,
        rate_bytes: Option<u64>,
        handle: &Rc<ConnHandle>,
        now: Instant,
    ) -> Share {
        let is_content_limited =
            self.state.borrow().contents.get(&content).map(|content| Rc::clone(&content.is_limited));
        let place = Place {
            content,
            peer: Cell::new(PeerKey(0)),
            own: RefCell::new(Bucket::new(rate_bytes, now)),
            is_content_limited: is_content_limited.unwrap_or_default(),
            is_limited: rate_bytes.is_some(),
            granted: Cell::new(0),
            waits: Cell::new(false),
            is_asked: Cell::new(true),
            handle: Rc::clone(handle),
        };
        Share(Rc::clone(self), Rc::new(place))
    }

    /// Gives turns as far as the limits go. Answers when to call again, if anybody waits. `asker` sees by itself what it has: one that was
    /// woken by its own question would ask for ever, where it waits for something else, and nobody else on its thread had a turn.
    fn serve(&self, asker: Option<&Rc<Place>>, now: Instant) -> Option<Instant> {
        let mut state = self.state.borrow_mut();
        // All there is goes round before anybody uses it: who ran first would ask again while the others are not yet back.
        let mut served = std::mem::take(&mut state.served);
        while state.waiting > 0 && state.all.is_open(now) {
            let Some(place) = state.next(now) else { break };
            served.push(place);
        }
        for place in served.drain(..) {
            state.leave(&place);
            if asker.is_none_or(|asker| !Rc::ptr_eq(asker, &place)) {
                place.handle.wake();
            }
        }
        state.served = served;
        (state.waiting > 0).then(|| now + state.wait(now).max(PACE))
    }
}

/// Gives turns in time, for as long as the session lives.
pub(crate) async fn keep_pace(line: Rc<Line>) {
    loop {
        let due = line.serve(None, Instant::now());
        line.due.set(due);
        match due {
            Some(due) => {
                tokio::select! {
                    () = tokio::time::sleep_until(due.into()) => {}
                    () = line.pace.notified() => {}
                }
            }
            None => line.pace.notified().await,
        }
    }
}

impl State {
    /// The next turn: takes it from the limits. Who has it goes to the end of its peer's line, or out of it where it has as much as
    /// it can use until the next time.
    fn next(&mut self, now: Instant) -> Option<Rc<Place>> {
        let waiting = self.contents.iter_mut().filter(|(_, content)| content.waiting > 0);
        let ready = waiting.filter_map(|(id, content)| Some((content.had, *id, content.first(now)?)));
        let (_, id, (peer, at)) = ready.min_by(|(one, ..), (other, ..)| one.total_cmp(other))?;
        let content = self.contents.get_mut(&id)?;
        let peer = content.peers.get_mut(&peer)?;
        let place = peer.waiting.remove(at)?;
        if place.is_asked.get() {
            content.peer_had = peer.had;
        }
        content.turns = (content.turns + 1) % TURNS_OF_ASKED;
        self.had = content.had;
        let quantum = place.own.borrow().quantum().min(content.bucket.quantum()).min(self.all.quantum()).floor();
        let granted = place.granted.get() + quantum as u64;
        place.granted.set(granted);
        let turns = self.all.turns().min(content.bucket.turns());
        if ((granted + quantum as u64) as f64) <= turns {
            peer.waiting.push_back(Rc::clone(&place));
        } else {
            place.waits.set(false);
            content.waiting -= 1;
            self.waiting -= 1;
        }
        self.charge(&place, quantum);
        Some(place)
    }

    /// Counts `bytes` that moved, or with a minus that did not.
    fn charge(&mut self, place: &Place, bytes: f64) {
        self.all.spend(bytes);
        place.own.borrow_mut().spend(bytes);
        let Some(content) = self.contents.get_mut(&place.content) else { return };
        content.bucket.spend(bytes);
        content.had += bytes;
        if let Some(peer) = content.peers.get_mut(&place.peer.get()) {
            peer.had += bytes;
        }
    }

    /// Time until somebody may have a turn.
    fn wait(&mut self, now: Instant) -> Duration {
        // Limits are looked at from the widest on, and the others only when that one is open: it is asked again then.
        let all = self.all.wait(now);
        if !all.is_zero() {
            return all;
        }
        let own = |place: &Rc<Place>| place.own.borrow_mut().wait(now);
        let of = |content: &mut Content| match content.bucket.wait(now) {
            Duration::ZERO => {
                content.peers.values().flat_map(|peer| peer.waiting.iter().map(own)).min().unwrap_or_default()
            }
            wait => wait,
        };
        let contents = self.contents.values_mut().filter(|content| content.waiting > 0);
        contents.map(of).min().unwrap_or_default()
    }

    fn join(&mut self, place: &Rc<Place>) {
        let Some(content) = self.contents.get_mut(&place.content) else { return };
        if content.waiting == 0 {
            content.had = content.had.max(self.had);
        }
        if content.peers.len() > 2 * content.waiting + PEERS_SPARE {
            // They would start where a newcomer does.
            let served = content.peer_had;
            content.peers.retain(|_, peer| !peer.waiting.is_empty() || peer.had > served);
        }
        let peer = content.peers.entry(place.peer.get()).or_default();
        if peer.waiting.is_empty() {
            peer.had = peer.had.max(content.peer_had);
        }
        peer.waiting.push_back(Rc::clone(place));
        content.waiting += 1;
        self.waiting += 1;
        place.waits.set(true);
    }

    fn leave(&mut self, place: &Rc<Place>) {
        if !place.waits.replace(false) {
            return;
        }
        let Some(content) = self.contents.get_mut(&place.content) else { return };
        if let Some(peer) = content.peers.get_mut(&place.peer.get()) {
            peer.waiting.retain(|other| !Rc::ptr_eq(other, place));
        }
        content.waiting -= 1;
        self.waiting -= 1;
    }
}

impl Content {
    /// The peer that had least of those whose turn it may be, and which of its connections.
    fn first(&mut self, now: Instant) -> Option<(PeerKey, usize)> {
        if !self.bucket.is_open(now) {
            return None;
        }
        let asked_first = self.turns < TURNS_OF_ASKED - 1;
        let is_open = |place: &Rc<Place>| place.own.borrow_mut().is_open(now);
        let ready = self.peers.iter().filter_map(|(key, peer)| {
            let at = peer.waiting.iter().position(is_open)?;
            let comes_after = asked_first && !peer.waiting[at].is_asked.get();
            Some(((comes_after, peer.had), *key, at))
        });
        let first = ready.min_by(|((one_after, one), ..), ((other_after, other), ..)| {
            one_after.cmp(other_after).then(one.total_cmp(other))
        });
        first.map(|(_, key, at)| (key, at))
    }
}

/// A connection's part of one direction, under its own limit, its content's and everybody's.
pub(crate) struct Share(Rc<Line>, Rc<Place>);

impl Share {
    /// Whether anything limits it.
    pub(crate) fn is_limited(&self) -> bool {
        self.1.is_limited || self.1.is_content_limited.get()
    }

    /// Bytes that may move now; `u64::MAX` where nothing limits. At 0 the connection stands in line, and is woken when its turn
    /// comes. `peer` says whose it is, and whether something was asked for that moves here.
    pub(crate) fn available(&self, peer: impl FnOnce() -> (PeerKey, bool), now: Instant) -> u64 {
        if !self.is_limited() {
            return u64::MAX;
        }
        let Self(line, place) = self;
        if place.granted.get() == 0 && !place.waits.get() {
            let (peer, is_asked) = peer();
            place.peer.set(peer);
            place.is_asked.set(is_asked);
            line.state.borrow_mut().join(place);
            if let Some(due) = line.serve(Some(place), now)
                && line.due.get().is_none_or(|at| due + PACE < at)
            {
                line.pace.notify_one();
            }
        }
        place.granted.get()
    }

    /// Whether its turn is over: others are to ask before it asks again.
    pub(crate) fn is_spent(&self) -> bool {
        self.is_limited() && self.1.granted.get() == 0
    }

    /// Bytes moved. May be more than were there: what is owed is waited for later.
    pub(crate) fn spend(&self, bytes: u64) {
        if !self.is_limited() {
            return;
        }
        let Self(line, place) = self;
        let granted = place.granted.get();
        place.granted.set(granted.saturating_sub(bytes));
        if bytes > granted {
            line.state.borrow_mut().charge(place, (bytes - granted) as f64);
        }
    }

    /// There is nothing to move for now: what is left of the turn is the others'.
    pub(crate) fn rest(&self) {
        let Self(line, place) = self;
        let left = place.granted.take();
        if left == 0 && !place.waits.get() {
            return;
        }
        let mut state = line.state.borrow_mut();
        state.leave(place);
        state.charge(place, -(left as f64));
        if left > 0 && state.waiting > 0 {
            line.pace.notify_one();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.rest();
    }
}

#[cfg(test)]
mod tests;
