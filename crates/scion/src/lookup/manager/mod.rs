//! Which paths there are to each destination, kept fresh: the pure core.
//!
//! The caller asks ([`PathManager::request`]), carries out the lookups that fall due ([`PathManager::poll_lookup`]), hands in
//! what came of each ([`PathManager::on_reply`]), and calls [`PathManager::on_deadline`] when time has come. A refresh never
//! takes anything away from running connections: a path keeps its identity and gets a later expiry; one that an answer leaves
//! out stays for one more answer, and one that has not expired stays while lookups fail. Expired paths go.
//!
//! ```
//! use std::time::{Instant, SystemTime};
//! use anabranch_scion::lookup::manager::PathManager;
//!
//! let (now, there) = (Instant::now(), "1-ff00:0:111".parse()?);
//! let mut manager = PathManager::new("1-ff00:0:110".parse()?, 1472, 7);
//! assert!(!manager.request(there, now)?.is_answered());
//! let lookup = manager.poll_lookup(now).expect("a lookup is due");
//! assert_eq!((lookup.destination, lookup.refresh), (there, false));
//! manager.on_reply(there, Ok(Vec::new()), now, SystemTime::now());
//! assert!(manager.request(there, now)?.failure.is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod destination;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{IsdAs, PathId, ScionPath};

use super::LookupError;
use super::convert::path_inside;
use destination::Destination;

/// Destinations with paths at a time: more than one swarm has ASes. Those not in use make room, the longest unused first.
pub const DESTINATIONS_MAX: usize = 1024;
/// Lookups under way at a time, so that a burst of destinations is no burst at the daemon.
pub const LOOKUPS_MAX: usize = 8;
/// Of these, for destinations whose last lookup failed: ASes that never answer leave room for the others.
pub const LOOKUPS_AGAIN_MAX: usize = 4;
/// Paths that nobody watches are kept fresh so long after they were last asked for.
pub const IDLE: Duration = Duration::from_secs(600);
/// A path is dropped so long before it expires: what is sent now must still be valid at the last router.
pub const EXPIRY_MARGIN: Duration = Duration::from_millis(500);
/// New paths are looked for at least so often, even while all are valid for hours.
pub const REFRESH_MAX: Duration = Duration::from_secs(300);
/// And at most so often, however short their lives.
pub const REFRESH_MIN: Duration = Duration::from_secs(1);
/// After a path was lost before its end, the next lookup comes after [`REFRESH_MIN`], and each further one after twice the
/// time, up to this: links that fail come back, mostly soon, ...
pub const SEARCH_SOON: Duration = Duration::from_secs(5);
/// ... for so many lookups, which is two minutes', ...
pub const SEARCHES_SOON: u32 = 24;
/// ... and then up to this: who connects meanwhile has to learn of it.
pub const SEARCH_MAX: Duration = Duration::from_secs(30);
/// So many lookups are made so: half an hour's. What is gone for longer comes back with the usual refresh.
pub const SEARCHES_MAX: u32 = SEARCHES_SOON + 60;
/// Who has just begun to use a destination looks again after this, and each further time after twice as long, up to
/// [`REFRESH_MAX`]: what was down when it began is nowhere to be missed.
pub const YOUNG_WAIT: Duration = Duration::from_secs(5);
/// Where others use paths that no answer named, the next lookup comes so long after the last one, ...
pub const SEEK_MIN: Duration = Duration::from_secs(3);
/// ... and after twice the time with each that brings nothing new, up to this: what others use is their word, and our daemon may
/// never hear of it.
pub const SEEK_MAX: Duration = Duration::from_secs(60);

/// A lookup to carry out; its outcome must reach [`PathManager::on_reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Where to.
    pub destination: IsdAs,
    /// The server's cache has nothing better any more: it shall ask afresh.
    pub refresh: bool,
}

/// What is known of a destination.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Unexpired paths, fewest links first.
    pub paths: Arc<[Arc<ScionPath>]>,
    /// Why the last lookup failed, if it did. `paths` may still hold what earlier ones brought.
    pub failure: Option<LookupError>,
    answered: bool,
}

impl Snapshot {
    /// Whether any lookup has ended yet.
    pub fn is_answered(&self) -> bool {
        self.answered
    }

    /// What is different from `before`.
    pub fn change_since(&self, before: &Self) -> Change {
        let by_id = |snapshot: &Self| -> HashMap<PathId, Arc<ScionPath>> {
            snapshot.paths.iter().map(|path| (path.id(), path.clone())).collect()
        };
        let (old, new) = (by_id(before), by_id(self));
        let mut change = Change::default();
        for path in self.paths.iter() {
            match old.get(&path.id()) {
                None => change.added.push(path.clone()),
                Some(was) if was != path => change.refreshed.push(path.clone()),
                Some(_) => {}
            }
        }
        change.removed = before.paths.iter().map(|path| path.id()).filter(|id| !new.contains_key(id)).collect();
        change
    }
}

/// What became of a destination's paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Paths that were not there.
    pub added: Vec<Arc<ScionPath>>,
    /// Paths that were there, with a later expiry or other claims: same identity, new bytes.
    pub refreshed: Vec<Arc<ScionPath>>,
    /// Paths that are there no more.
    pub removed: Vec<PathId>,
}

impl Change {
    /// Nothing is different.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.refreshed.is_empty() && self.removed.is_empty()
    }
}

/// See the module's head.
pub struct PathManager {
    local: IsdAs,
    inside: Snapshot,
    destinations: HashMap<IsdAs, Destination>,
    changed: BTreeSet<IsdAs>,
    in_flight: usize,
    rng: fastrand::Rng,
}

impl PathManager {
    /// For a host of the AS `local`, inside which packets have `mtu` bytes; `seed` spreads refreshes over time.
    pub fn new(local: IsdAs, mtu: u16, seed: u64) -> Self {
        let inside = Snapshot { paths: [Arc::new(path_inside(local, mtu))].into(), failure: None, answered: true };
        let rng = fastrand::Rng::with_seed(seed);
        Self { local, inside, destinations: HashMap::new(), changed: BTreeSet::new(), in_flight: 0, rng }
    }

    /// What is known of `destination`; if nothing is, a lookup falls due.
    pub fn request(&mut self, destination: IsdAs, now: Instant) -> Result<Snapshot, LookupError> {
        if destination.isd() == 0 || destination.asn() == 0 {
            return Err(LookupError::Wildcard(destination));
        }
        if destination == self.local {
            return Ok(self.inside.clone());
        }
        if !self.destinations.contains_key(&destination) {
            self.make_room()?;
        }
        let entry = self.destinations.entry(destination).or_insert_with(|| Destination::new(now));
        entry.used_at = now;
        if entry.drop_expired(now) {
            self.changed.insert(destination);
        }
        Ok(entry.snapshot())
    }

    /// Says whether somebody wants to hear of every change: then the paths are kept fresh until nobody does.
    pub fn set_watched(&mut self, destination: IsdAs, is_watched: bool, now: Instant) {
        if let Some(entry) = self.destinations.get_mut(&destination) {
            entry.is_watched = is_watched;
            entry.used_at = now;
        }
    }

    /// What is known, without counting as use.
    pub fn snapshot(&self, destination: IsdAs) -> Option<Snapshot> {
        if destination == self.local {
            return Some(self.inside.clone());
        }
        self.destinations.get(&destination).map(Destination::snapshot)
    }

    /// A lookup that is due: those that have not failed come first, and of these the longest overdue. Call until there is none.
    pub fn poll_lookup(&mut self, now: Instant) -> Option<Lookup> {
        let room = self.room();
        let due = |(_, entry): &(&IsdAs, &mut Destination)| {
            room.has_for(entry) && entry.lookup_due().is_some_and(|at| at <= now)
        };
        let order = |(isd_as, entry): &(&IsdAs, &mut Destination)| (entry.has_failed(), entry.lookup_due(), **isd_as);
        let (&destination, entry) = self.destinations.iter_mut().filter(due).min_by_key(order)?;
        let refresh = entry.begin_lookup(now);
        self.in_flight += 1;
        Some(Lookup { destination, refresh })
    }

    /// What came of a lookup. `wall` is the time of day at `now`, which expiries are given in.
    pub fn on_reply(
        &mut self,
        destination: IsdAs,
        reply: Result<Vec<ScionPath>, LookupError>,
        now: Instant,
        wall: SystemTime,
    ) {
        let Some(entry) = self.destinations.get_mut(&destination).filter(|entry| entry.is_in_flight()) else { return };
        self.in_flight -= 1;
        // What has as good as expired is no path.
        let live = reply.map(|mut paths| {
            paths.retain(|path| path.expiry > wall + EXPIRY_MARGIN);
            paths
        });
        match live {
            Ok(paths) if paths.is_empty() => {
                let failure = LookupError::NoPath { source_isd_as: self.local, destination };
                entry.on_failure(failure, now, &mut self.rng);
            }
            Ok(paths) => entry.on_paths(paths, now, wall, &mut self.rng),
            Err(failure) => entry.on_failure(failure, now, &mut self.rng),
        }
        self.changed.insert(destination);
    }

    /// Drops what has expired and forgets destinations without use.
    pub fn on_deadline(&mut self, now: Instant) {
        let changed = &mut self.changed;
        self.destinations.retain(|destination, entry| {
            if entry.drop_expired(now) {
                changed.insert(*destination);
            }
            let keep = !entry.is_forgotten(now);
            if !keep {
                changed.remove(destination);
            }
            keep
        });
    }

    /// Asks afresh at once, because the network has changed (an interface went down).
    pub fn refresh_now(&mut self, destination: IsdAs, now: Instant) {
        if let Some(entry) = self.destinations.get_mut(&destination) {
            entry.refresh_now(now);
        }
    }

    /// Says that somebody uses a path to `destination` that no answer named: a lookup falls due, soon after the last one at the
    /// earliest ([`SEEK_MIN`]).
    pub fn seek(&mut self, destination: IsdAs, now: Instant) {
        if let Some(entry) = self.destinations.get_mut(&destination) {
            entry.seek(now);
        }
    }

    /// A destination whose [`snapshot`](Self::snapshot) has changed. Call until there is none.
    pub fn poll_changed(&mut self) -> Option<IsdAs> {
        self.changed.pop_first()
    }

    /// When there is something to do next: [`on_deadline`](Self::on_deadline), then [`poll_lookup`](Self::poll_lookup).
    pub fn deadline(&self) -> Option<Instant> {
        let room = self.room();
        let next = |entry: &Destination| {
            let lookup = entry.lookup_due().filter(|_| room.has_for(entry));
            [lookup, entry.expiry(), entry.forget_at()].into_iter().flatten().min()
        };
        self.destinations.values().filter_map(next).min()
    }

    fn room(&self) -> Room {
        let again = self.destinations.values().filter(|entry| entry.is_in_flight() && entry.has_failed()).count();
        Room { is_any: self.in_flight < LOOKUPS_MAX, is_any_again: again < LOOKUPS_AGAIN_MAX }
    }

    /// Evicts the longest unused destination that nobody watches, if the limit is reached.
    fn make_room(&mut self) -> Result<(), LookupError> {
        if self.destinations.len() < DESTINATIONS_MAX {
            return Ok(());
        }
        let free = |(_, entry): &(&IsdAs, &Destination)| !entry.is_watched && !entry.is_in_flight();
        let oldest = self.destinations.iter().filter(free).min_by_key(|(isd_as, entry)| (entry.used_at, **isd_as));
        let (&oldest, _) = oldest.ok_or(LookupError::TooManyDestinations(DESTINATIONS_MAX))?;
        self.destinations.remove(&oldest);
        self.changed.remove(&oldest);
        Ok(())
    }
}

/// Whether another lookup may begin.
#[derive(Clone, Copy)]
struct Room {
    is_any: bool,
    is_any_again: bool,
}

impl Room {
    fn has_for(self, entry: &Destination) -> bool {
        self.is_any && (self.is_any_again || !entry.has_failed())
    }
}
