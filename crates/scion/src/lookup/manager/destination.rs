//! One destination: its paths, and when to ask for them again.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{PathId, ScionPath};
use anabranch_scion_wire::combine::PATHS_MAX;

use super::{
    EXPIRY_MARGIN, IDLE, LookupError, REFRESH_MAX, REFRESH_MIN, SEARCH_MAX, SEARCH_SOON, SEARCHES_MAX, SEARCHES_SOON,
    SEEK_MAX, SEEK_MIN, Snapshot, YOUNG_WAIT,
};

/// Answers that may leave out a path before it goes: a daemon that has just restarted knows half of them.
const ABSENCES_MAX: u8 = 1;
/// First wait after a failure, doubled with each more. A restarted daemon is back within seconds.
const FAILURE_WAIT_MIN: Duration = Duration::from_millis(500);
/// Longest wait for a server that does not answer: it is near, and asking costs nothing.
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest wait after "no path": every ask makes the control services of other ASes work.
const NEGATIVE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Below so long a remaining life, an answer from the server's cache that brings nothing new is not enough.
const FORCE_BELOW: Duration = Duration::from_secs(300);
/// Lookups after the network changed, also where nothing is missed.
const SEARCHES_MIN: u32 = 4;
/// Who asked so lately uses the paths.
const IN_USE: Duration = Duration::from_secs(10);

struct Held {
    id: PathId,
    path: Arc<ScionPath>,
    ends: Instant,
    absences: u8,
}

enum LookupState {
    At(Instant),
    InFlight,
}

pub(super) struct Destination {
    pub is_watched: bool,
    pub used_at: Instant,
    held: Vec<Held>,
    paths: Arc<[Arc<ScionPath>]>,
    lookup: LookupState,
    /// When the last lookup began.
    looked_at: Option<Instant>,
    /// Answers since it began to be used.
    answers: u32,
    /// The next lookup is for paths that others use, and so many such brought nothing new.
    is_sought: bool,
    seeks: u32,
    failure: Option<LookupError>,
    failures: u32,
    answered: bool,
    /// The last answer brought nothing that lives longer than what there was.
    is_stale: bool,
    /// Lookups since a path was lost before its end, while it is looked for.
    searches: Option<u32>,
    /// Paths that were lost so, and are not back.
    lost: HashMap<PathId, Instant>,
}

impl Destination {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            is_watched: false,
            used_at: now,
            held: Vec::new(),
            paths: Arc::default(),
            lookup: LookupState::At(now),
            looked_at: None,
            answers: 0,
            is_sought: false,
            seeks: 0,
            failure: None,
            failures: 0,
            answered: false,
            is_stale: false,
            searches: None,
            lost: HashMap::new(),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot { paths: self.paths.clone(), failure: self.failure.clone(), answered: self.answered }
    }

    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self.lookup, LookupState::InFlight)
    }

    /// Whether the last lookup failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// When to look up next, if anybody is interested by then.
    pub(super) fn lookup_due(&self) -> Option<Instant> {
        match self.lookup {
            LookupState::At(at) if self.is_watched || at < self.used_at + IDLE => Some(at),
            _ => None,
        }
    }

    /// When the first path goes.
    pub(super) fn expiry(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.ends).min()
    }

    /// When nobody will be interested any more.
    pub(super) fn forget_at(&self) -> Option<Instant> {
        (!self.is_watched && !self.is_in_flight()).then(|| self.used_at + IDLE)
    }

    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        self.forget_at().is_some_and(|at| at <= now)
    }

    /// Whether the server shall ask afresh.
    pub(super) fn begin_lookup(&mut self, now: Instant) -> bool {
        self.lookup = LookupState::InFlight;
        self.looked_at = Some(now);
        self.is_stale && self.expiry().is_none_or(|ends| ends.saturating_duration_since(now) < FORCE_BELOW)
    }

    pub(super) fn refresh_now(&mut self, now: Instant) {
        self.is_stale = true;
        self.searches = Some(0);
        if let LookupState::At(at) = &mut self.lookup {
            *at = now.min(*at);
        }
    }

    pub(super) fn seek(&mut self, now: Instant) {
        let wait = SEEK_MIN.saturating_mul(1 << self.seeks.min(16)).min(SEEK_MAX);
        let LookupState::At(at) = &mut self.lookup else { return };
        *at = self.looked_at.map_or(now, |last| last + wait).max(now).min(*at);
        self.is_sought = true;
    }

    /// A lookup that was due to what others use is over.
    fn sought(&mut self, is_found: bool) {
        let is_in_vain = std::mem::take(&mut self.is_sought) && !is_found;
        self.seeks = if is_found { 0 } else { self.seeks.saturating_add(is_in_vain.into()) };
    }

    /// Whether any path went.
    pub(super) fn drop_expired(&mut self, now: Instant) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.ends > now);
        let changed = self.held.len() != before;
        if changed {
            self.publish();
        }
        changed
    }

    pub(super) fn on_paths(&mut self, paths: Vec<ScionPath>, now: Instant, wall: SystemTime, rng: &mut fastrand::Rng) {
        let latest_before = self.held.iter().map(|held| held.ends).max();
        let is_any_new = self.merge(paths, now, wall);
        self.sought(is_any_new);
        self.drop_expired(now);
        self.publish();
        self.is_stale = self.held.iter().map(|held| held.ends).max() <= latest_before;
        (self.answered, self.failure, self.failures) = (true, None, 0);
        // Half-way through the shortest life, so that a lookup may fail a few times; not all hosts at once.
        let left = self.expiry().map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now));
        let wait = left.mul_f64(0.4 + 0.2 * rng.f64()).min(REFRESH_MAX.mul_f64(0.8 + 0.2 * rng.f64()));
        let wait = self.young_wait(now).map_or(wait, |soon| wait.min(soon.mul_f64(0.8 + 0.2 * rng.f64())));
        let wait = self.search_wait(false, now).map_or(wait, |soon| wait.min(soon.mul_f64(0.8 + 0.2 * rng.f64())));
        self.lookup = LookupState::At(now + wait.max(REFRESH_MIN));
    }

    /// When to look again because the destination is used for a short time only.
    fn young_wait(&mut self, now: Instant) -> Option<Duration> {
        let is_used = self.is_watched || now < self.used_at + IN_USE;
        let wait = YOUNG_WAIT.saturating_mul(1 << self.answers.min(16));
        self.answers = self.answers.saturating_add(is_used.into());
        (is_used && wait < REFRESH_MAX).then_some(wait)
    }

    /// When to look again for paths that were lost, if there are any: a few times also where none is missed yet, since the
    /// network that has just changed takes its time to tell everybody.
    /// `is_all_lost`: none of those that there were is there any more.
    fn search_wait(&mut self, is_all_lost: bool, now: Instant) -> Option<Duration> {
        self.lost.retain(|_, ends| *ends > now);
        let done = self.searches?;
        if done >= SEARCHES_MAX || done >= SEARCHES_MIN && self.lost.is_empty() && !is_all_lost {
            self.searches = None;
            return None;
        }
        self.searches = Some(done + 1);
        let longest = if done < SEARCHES_SOON { SEARCH_SOON } else { SEARCH_MAX };
        Some(REFRESH_MIN.saturating_mul(1 << done.min(16)).min(longest))
    }

    pub(super) fn on_failure(&mut self, failure: LookupError, now: Instant, rng: &mut fastrand::Rng) {
        let is_negative = matches!(failure, LookupError::NoPath { .. });
        let wait_max = if is_negative { NEGATIVE_WAIT_MAX } else { FAILURE_WAIT_MAX };
        let doubled = FAILURE_WAIT_MIN.saturating_mul(1 << self.failures.min(16));
        let mut wait = doubled.min(wait_max).mul_f64(0.8 + 0.2 * rng.f64());
        // Where there were paths, there will be.
        if is_negative && !(self.held.is_empty() && self.lost.is_empty()) {
            self.searches.get_or_insert(0);
            wait = self.search_wait(true, now).map_or(wait, |soon| wait.min(soon.mul_f64(0.8 + 0.2 * rng.f64())));
        }
        // While paths are running out, more eagerly.
        if let Some(ends) = self.expiry() {
            wait = wait.min((ends.saturating_duration_since(now) / 4).max(REFRESH_MIN));
        }
        self.sought(false);
        self.failures = self.failures.saturating_add(1);
        (self.answered, self.failure) = (true, Some(failure));
        self.lookup = LookupState::At(now + wait);
    }

    /// Paths that are known already get the later expiry of the two; those left out stay for [`ABSENCES_MAX`] answers. Answers
    /// whether any is new.
    fn merge(&mut self, paths: Vec<ScionPath>, now: Instant, wall: SystemTime) -> bool {
        let mut is_any_new = false;
        let mut known: HashMap<PathId, Held> = self.held.drain(..).map(|held| (held.id, held)).collect();
        let mut fresh: Vec<Held> = Vec::with_capacity(paths.len());
        for path in paths {
            let id = path.id();
            let left = path.expiry.duration_since(wall).unwrap_or_default().saturating_sub(EXPIRY_MARGIN);
            let Some(ends) = now.checked_add(left) else { continue };
            // `ends` of the same expiry differs from reply to reply, as the two clocks do: compare what the paths say.
            let held = match known.remove(&id) {
                Some(was) if was.path.expiry > path.expiry || *was.path == path => Held { absences: 0, ..was },
                was => {
                    is_any_new |= was.is_none();
                    Held { id, path: Arc::new(path), ends, absences: 0 }
                }
            };
            fresh.push(held);
        }
        for held in &fresh {
            self.lost.remove(&held.id);
        }
        for absent in known.into_values().map(|held| Held { absences: held.absences + 1, ..held }) {
            if absent.absences <= ABSENCES_MAX {
                fresh.push(absent);
            } else if absent.ends > now && self.lost.len() < PATHS_MAX {
                self.lost.insert(absent.id, absent.ends);
                self.searches.get_or_insert(0);
            }
        }
        // Above the limit, what lives on goes before what may go soon, and short paths before long ones.
        fresh.sort_by_key(|held| (held.absences, held.path.interfaces.len(), held.id));
        fresh.dedup_by_key(|held| held.id);
        fresh.truncate(PATHS_MAX);
        self.held = fresh;
        is_any_new
    }

    fn publish(&mut self) {
        self.held.sort_by_key(|held| (held.path.interfaces.len(), held.id, Reverse(held.ends)));
        self.paths = self.held.iter().map(|held| held.path.clone()).collect();
    }
}
