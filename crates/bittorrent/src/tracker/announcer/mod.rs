//! When a content announces, to which tracker, and as what (BEP 3, BEP 12).
//!
//! The driver asks [`Announcer::poll`] for actions until there are none, carries each out and gives its outcome to
//! [`Announcer::on_outcome`], exactly once. Between that it sleeps until [`Announcer::deadline`]. A hybrid content
//! announces under both of its hashes, since v1-only and v2-only peers know it by different ones (BEP 52).
//!
//! A client reaches a tracker over both IPv4 and IPv6 within one action where it can (BEP 7); that is the driver's.
//!
//! While a content is in need of peers ([`Progress::needs_peers`]) nobody waits for an interval of half an hour: each tracker is
//! asked again as soon as its minimum interval allows, then after twice that, up to the regular interval; trackers that BEP 12
//! would leave alone because one before them works are asked too; and one that is slow does not hold up the next.

use std::time::{Duration, Instant};

use anabranch_content::info::InfoHashes;
use anabranch_paths::ScionAddr;

use super::{AnnounceReply, AnnounceRequest, Event, InfoHash, PeerId, Retry, TrackerUrl};
use crate::extension::InterfaceSequence;

/// Trackers kept of one content. Lists in the wild stop near 50; each costs state and, when all fail, an announce.
pub const TRACKERS_MAX: usize = 100;
/// Peers asked for in one announce: enough to fill a swarm's first connections, small enough for one datagram (BEP 15).
pub const NUMWANT_MAX: u32 = 200;
/// Wait between announces where the tracker names none.
pub const INTERVAL_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Shortest wait, whatever the tracker says: an interval of 0 must not make us spin.
pub const INTERVAL_FLOOR: Duration = Duration::from_secs(5);
/// Longest wait, whatever the tracker says: a wrong number must not mute us for ever.
pub const INTERVAL_CAP: Duration = Duration::from_secs(6 * 3600);
/// Wait of a content in need of peers where the tracker names no minimum, as none does over UDP: what other clients allow
/// their users.
pub const NEED_INTERVAL: Duration = Duration::from_secs(60);
/// A content in need asks the next tracker where those before have not answered for so long: long for a round trip, short
/// beside the minute that a silent UDP tracker has.
pub const IMPATIENCE: Duration = Duration::from_secs(5);
/// Wait after a tracker's first failure; doubles with each further one. One that was just started is found soon, and it takes
/// ten failures, and half an hour, to get to the longest wait.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(3);
/// Longest wait after failures.
pub const BACKOFF_CAP: Duration = Duration::from_secs(30 * 60);
/// A back-off is lengthened by up to this share (1/n), so that clients cut off together do not return together.
const BACKOFF_JITTER: u32 = 4;
/// Longest wait that a refusing tracker may ask for (BEP 31).
pub const RETRY_CAP: Duration = Duration::from_secs(24 * 3600);

/// What does not change while a content announces.
#[derive(Clone, Debug)]
pub struct AnnouncerConfig {
    /// The content.
    pub hashes: InfoHashes,
    /// Us.
    pub peer_id: PeerId,
    /// TCP port we listen on.
    pub port: u16,
    /// Where we listen over SCION; empty where we only dial over it, `None` where we do not speak it.
    pub scion: Option<Vec<ScionAddr>>,
    /// Same over address changes; random.
    pub key: u32,
    /// Decides the order within tiers and the jitter.
    pub seed: u64,
}

/// The numbers that an announce carries, as they are now.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Bytes of content sent since the start.
    pub uploaded_bytes: u64,
    /// Bytes of content received since the start.
    pub downloaded_bytes: u64,
    /// Bytes missing, of what is not wanted too; not 0 while the size is unknown.
    pub left_bytes: u64,
    /// Of these, none is wanted.
    pub is_partial_seed: bool,
    /// How many more peers could be used; lowers `numwant`, down to 0.
    pub peers_wanted: u32,
    /// Paths over which content moves.
    pub in_use: Vec<InterfaceSequence>,
    /// Something is missing, and nobody known has it.
    pub needs_peers: bool,
}

/// Names an announce under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnnounceId(u64);

/// Announce now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// To be given back with the outcome.
    pub id: AnnounceId,
    /// Whom.
    pub tracker: TrackerUrl,
    /// With what.
    pub request: AnnounceRequest,
}

/// How an announce ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The tracker answered.
    Reply(&'a AnnounceReply),
    /// It did not, or refused.
    Failed {
        /// For the user.
        reason: &'a str,
        /// What the tracker said about asking again.
        retry: Retry,
    },
}

/// What the user may see of a tracker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackerStatus {
    /// Which.
    pub url: TrackerUrl,
    /// BEP 12 tier, from 0.
    pub tier: usize,
    /// Whether the last announce worked; `None` before the first.
    pub is_working: Option<bool>,
    /// The last failure or warning.
    pub message: Option<String>,
    /// Seeds, as last told.
    pub complete: Option<u32>,
    /// Downloading peers, as last told.
    pub incomplete: Option<u32>,
}

/// The announces of one content.
#[derive(Debug)]
pub struct Announcer {
    config: AnnouncerConfig,
    trackers: Vec<TrackerStatus>,
    /// Indices into `trackers`, tier after tier, each tier in the order in which it is tried.
    tiers: Vec<Vec<usize>>,
    lanes: Vec<HashAnnouncer>,
    under_way: Vec<UnderWay>,
    id_next: u64,
    is_in_need: bool,
    is_stopping: bool,
    began_at: Instant,
    rng: fastrand::Rng,
}

/// The announces under one info-hash: one at a time, unless peers are needed and trackers slow.
#[derive(Debug)]
struct HashAnnouncer {
    info_hash: InfoHash,
    /// Next regular announce.
    next_at: Instant,
    /// No regular announce before this (BEP 3, "min interval").
    not_before: Instant,
    /// `completed` is still to be told.
    is_completion_owed: bool,
    /// By tracker.
    states: Vec<State>,
}

/// What one tracker knows of us under one info-hash.
#[derive(Clone, Debug, Default)]
struct State {
    /// It got `started`, or may have.
    is_told: bool,
    /// It answered `started`.
    is_started: bool,
    failures: u32,
    retry_at: Option<Instant>,
    is_banned: bool,
    /// When it answered last, and how long it wants to be left alone then, at least and as a rule.
    answered: Option<Answered>,
    /// Answers in a row that did not end the need of peers.
    vain: u32,
    /// It wants to know of paths in use.
    minds_paths: bool,
    tracker_id: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
struct Answered {
    at: Instant,
    interval_min: Duration,
    interval: Duration,
}

#[derive(Debug)]
struct UnderWay {
    id: AnnounceId,
    lane: usize,
    tracker: usize,
    event: Event,
    since: Instant,
}

impl Announcer {
    /// Begins at `now`: the first announces are due at once. Keeps the first [`TRACKERS_MAX`] trackers, each once.
    pub fn new(config: AnnouncerConfig, tiers: &[Vec<TrackerUrl>], now: Instant) -> Self {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let mut trackers: Vec<TrackerStatus> = Vec::new();
        let mut order = Vec::new();
        for (tier, urls) in tiers.iter().enumerate() {
            let first = trackers.len();
            for url in urls {
                if trackers.len() < TRACKERS_MAX && trackers.iter().all(|known| known.url != *url) {
                    let url = url.clone();
                    let (is_working, message, complete, incomplete) = (None, None, None, None);
                    trackers.push(TrackerStatus { url, tier, is_working, message, complete, incomplete });
                }
            }
            let mut indices: Vec<usize> = (first..trackers.len()).collect();
            rng.shuffle(&mut indices); // BEP 12: "shuffled in a random order"
            order.push(indices);
        }
        let lane = |info_hash| HashAnnouncer {
            info_hash,
            next_at: now,
            not_before: now,
            is_completion_owed: false,
            states: vec![State::default(); trackers.len()],
        };
        let lanes = config.hashes.wire_hashes().map(lane).collect();
        let under_way = Vec::new();
        let (id_next, is_in_need, is_stopping) = (0, false, false);
        Announcer {
            config,
            trackers,
            tiers: order,
            lanes,
            under_way,
            id_next,
            is_in_need,
            is_stopping,
            began_at: now,
            rng,
        }
    }

    /// The next announce to make, if one is due. Call until it returns `None`.
    pub fn poll(&mut self, progress: &Progress, now: Instant) -> Option<Action> {
        if self.is_stopping {
            return self.poll_stopped(progress, now);
        }
        self.set_need(progress.needs_peers);
        let (lane, tracker) = (0..self.lanes.len()).find_map(|lane| {
            let is_regular = self.is_free(lane) && self.lanes[lane].next_at <= now;
            let tracker = if is_regular { self.candidate(lane, now) } else { None };
            Some((lane, tracker.or_else(|| self.candidate_in_need(lane, now))?))
        })?;
        let is_completion_owed = self.lanes[lane].is_completion_owed;
        let state = &mut self.lanes[lane].states[tracker];
        let event = match state.is_started {
            false => Event::Started,
            true if is_completion_owed => Event::Completed,
            true if progress.is_partial_seed => Event::Paused,
            true => Event::None,
        };
        state.is_told = true;
        Some(self.begin(lane, tracker, event, progress, now))
    }

    /// When to call [`Announcer::poll`] next, if nothing else happens before. `None`: nothing is to come by itself.
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_stopping {
            return None;
        }
        let regular = |at: usize| {
            let lane = &self.lanes[at];
            let usable = lane.states.iter().filter(|state| !state.is_banned);
            let ready = usable.map(|state| state.retry_at.unwrap_or(lane.next_at)).min()?;
            Some(ready.max(lane.next_at))
        };
        let free = (0..self.lanes.len()).filter(|lane| self.is_free(*lane)).filter_map(regular);
        free.chain((0..self.lanes.len()).filter_map(|lane| self.deadline_in_need(lane))).min()
    }

    /// Takes the outcome of an action. Outcomes of unknown actions are ignored.
    pub fn on_outcome(&mut self, id: AnnounceId, outcome: Outcome<'_>, now: Instant) {
        let Some(at) = self.under_way.iter().position(|announce| announce.id == id) else { return };
        let UnderWay { lane, tracker, event, .. } = self.under_way.swap_remove(at);
        match outcome {
            Outcome::Reply(reply) => self.on_reply(lane, tracker, event, reply, now),
            Outcome::Failed { reason, retry } => {
                let jitter = self.rng.f64();
                let status = &mut self.trackers[tracker];
                (status.is_working, status.message) = (Some(false), Some(reason.to_owned()));
                self.lanes[lane].states[tracker].fail(retry, jitter, now);
            }
        }
    }

    /// The download has just been completed: told at once. Not to be called for a content that began complete.
    pub fn on_complete(&mut self, now: Instant) {
        for lane in &mut self.lanes {
            // No interval holds this back (BEP 3, "event": "one using `completed` is sent when the download completes").
            (lane.is_completion_owed, lane.next_at) = (true, lane.next_at.min(now));
        }
    }

    /// Other paths are in use than before: whoever minds is told as soon as it allows.
    pub fn on_paths_changed(&mut self, now: Instant) {
        for at in 0..self.lanes.len() {
            let tracker = self.candidate(at, now);
            let lane = &mut self.lanes[at];
            if tracker.is_some_and(|tracker| lane.states[tracker].minds_paths) {
                lane.next_at = lane.next_at.min(lane.not_before.max(now));
            }
        }
    }

    /// Peers reach us at another port than before: trackers are told soon.
    pub fn set_port(&mut self, port: u16, now: Instant) {
        if self.config.port != port {
            self.config.port = port;
            self.announce_soon(now);
        }
    }

    /// Somebody wants it: every tracker that is not asked just now is, as soon as it allows, whenever it failed last.
    pub fn announce_soon(&mut self, now: Instant) {
        for lane in &mut self.lanes {
            lane.next_at = lane.next_at.min(lane.not_before.max(now));
            lane.states.iter_mut().for_each(|state| state.retry_at = None);
        }
    }

    /// We leave: from now on `poll` gives one `stopped` for every tracker that knows of us, and nothing else.
    pub fn stop(&mut self) {
        if !self.is_stopping {
            self.is_stopping = true;
            self.under_way.clear(); // Their outcomes change nothing any more.
        }
    }

    /// Whether every tracker has been told that we left, or has failed to listen.
    pub fn is_stopped(&self) -> bool {
        let is_told = |lane: &HashAnnouncer| lane.states.iter().any(|state| state.is_told);
        self.is_stopping && self.under_way.is_empty() && !self.lanes.iter().any(is_told)
    }

    /// Trackers that may be asked again, sooner or later: not those that refused us for good.
    pub fn usable(&self) -> usize {
        let is_usable = |index: &usize| self.lanes.iter().any(|lane| !lane.states[*index].is_banned);
        (0..self.trackers.len()).filter(is_usable).count()
    }

    /// All trackers, in the order in which they are tried.
    pub fn trackers(&self) -> impl Iterator<Item = &TrackerStatus> {
        self.tiers.iter().flatten().map(|index| &self.trackers[*index])
    }

    /// BEP 12: the first tracker of the first tier that may be asked now.
    fn candidate(&self, lane: usize, now: Instant) -> Option<usize> {
        let is_ready = |state: &State| !state.is_banned && state.retry_at.is_none_or(|at| at <= now);
        self.tiers.iter().flatten().copied().find(|index| is_ready(&self.lanes[lane].states[*index]))
    }

    /// Whether no announce is under way there.
    fn is_free(&self, lane: usize) -> bool {
        self.under_way.iter().all(|announce| announce.lane != lane)
    }

    /// Peers are needed, or not any more: then what was asked in vain is forgotten.
    fn set_need(&mut self, is_in_need: bool) {
        if self.is_in_need && !is_in_need {
            self.lanes.iter_mut().flat_map(|lane| &mut lane.states).for_each(|state| state.vain = 0);
        }
        self.is_in_need = is_in_need;
    }

    /// The first tracker that a content in need may ask now, whichever others work.
    fn candidate_in_need(&self, lane: usize, now: Instant) -> Option<usize> {
        if !self.is_in_need || self.patient_until(lane).is_some_and(|until| until > now) {
            return None;
        }
        let is_due = |index: &usize| self.ready_in_need(lane, *index).is_some_and(|at| at <= now);
        self.tiers.iter().flatten().copied().find(is_due)
    }

    fn deadline_in_need(&self, lane: usize) -> Option<Instant> {
        let ready = (0..self.trackers.len()).filter_map(|index| self.ready_in_need(lane, index));
        let ready = ready.min().filter(|_| self.is_in_need)?;
        Some(self.patient_until(lane).map_or(ready, |until| until.max(ready)))
    }

    /// Until when the announces under way hold up others.
    fn patient_until(&self, lane: usize) -> Option<Instant> {
        let begun = self.under_way.iter().filter(|announce| announce.lane == lane).map(|announce| announce.since);
        begun.max().map(|since| since + IMPATIENCE)
    }

    /// When a content in need may ask a tracker; `None` while it is being asked.
    fn ready_in_need(&self, lane: usize, tracker: usize) -> Option<Instant> {
        let state = &self.lanes[lane].states[tracker];
        let is_asked = self.under_way.iter().any(|announce| announce.lane == lane && announce.tracker == tracker);
        if is_asked || state.is_banned {
            return None;
        }
        let polite = state.answered.map_or(self.began_at, |answered| {
            let wait = answered.interval_min.saturating_mul(1 << state.vain.saturating_sub(1).min(16));
            answered.at + wait.min(answered.interval).max(answered.interval_min)
        });
        Some(state.retry_at.map_or(polite, |retry_at| retry_at.max(polite)))
    }

    fn poll_stopped(&mut self, progress: &Progress, now: Instant) -> Option<Action> {
        let (lane, tracker) =
            self.lanes.iter().enumerate().find_map(|(at, lane)| {
                lane.states.iter().position(|state| state.is_told).map(|tracker| (at, tracker))
            })?;
        self.lanes[lane].states[tracker].is_told = false; // One try: nobody waits for a tracker when leaving.
        Some(self.begin(lane, tracker, Event::Stopped, progress, now))
    }

    fn begin(&mut self, lane: usize, tracker: usize, event: Event, progress: &Progress, now: Instant) -> Action {
        let id = AnnounceId(self.id_next);
        self.id_next += 1;
        self.under_way.push(UnderWay { id, lane, tracker, event, since: now });
        let peers_wanted = if event == Event::Stopped { 0 } else { progress.peers_wanted };
        let request = AnnounceRequest {
            info_hash: self.lanes[lane].info_hash,
            peer_id: self.config.peer_id,
            port: self.config.port,
            uploaded_bytes: progress.uploaded_bytes,
            downloaded_bytes: progress.downloaded_bytes,
            left_bytes: progress.left_bytes,
            event,
            numwant: Some(peers_wanted.min(NUMWANT_MAX)),
            key: self.config.key,
            tracker_id: self.lanes[lane].states[tracker].tracker_id.clone(),
            scion: self.config.scion.clone(),
            in_use: if event == Event::Stopped { Vec::new() } else { progress.in_use.clone() },
        };
        Action { id, tracker: self.trackers[tracker].url.clone(), request }
    }

    fn on_reply(&mut self, lane: usize, tracker: usize, event: Event, reply: &AnnounceReply, now: Instant) {
        let status = &mut self.trackers[tracker];
        status.is_working = Some(true);
        status.message = reply.warning.clone();
        status.complete = reply.complete.or(status.complete);
        status.incomplete = reply.incomplete.or(status.incomplete);
        if self.is_stopping {
            return;
        }
        // BEP 12: "that tracker is moved to the front of the tier".
        if let Some(tier) = self.tiers.iter_mut().find(|tier| tier.contains(&tracker)) {
            tier.retain(|index| *index != tracker);
            tier.insert(0, tracker);
        }
        let lane = &mut self.lanes[lane];
        let state = &mut lane.states[tracker];
        (state.failures, state.retry_at, state.is_started) = (0, None, true);
        state.minds_paths = reply.in_use.is_some();
        if reply.tracker_id.is_some() {
            state.tracker_id.clone_from(&reply.tracker_id);
        }
        if event == Event::Completed {
            lane.is_completion_owed = false;
        }
        let interval = reply.interval.unwrap_or(INTERVAL_DEFAULT).clamp(INTERVAL_FLOOR, INTERVAL_CAP);
        // A tracker without `min interval` gets its interval respected in full, unless peers are needed.
        let interval_min = reply.interval_min.map_or(interval, |min| min.clamp(INTERVAL_FLOOR, INTERVAL_CAP));
        let need_min = reply.interval_min.map_or(interval.min(NEED_INTERVAL), |_| interval_min);
        state.answered = Some(Answered { at: now, interval_min: need_min, interval });
        state.vain = state.vain.saturating_add(1);
        // A tracker that only now learns of us gets `started` first and `completed` right after it.
        // Where several were asked in need, the one that wants to be left alone longest is not asked sooner for another's sake.
        let regular_at = lane.next_at.max(now + interval.max(interval_min));
        lane.next_at = if lane.is_completion_owed { now } else { regular_at };
        lane.not_before = now + interval_min;
    }
}

impl State {
    /// Doubles the wait, up to the cap; `jitter` is from 0 to 1.
    fn fail(&mut self, retry: Retry, jitter: f64, now: Instant) {
        let backoff = BACKOFF_FIRST.saturating_mul(1 << self.failures.min(16)).min(BACKOFF_CAP);
        let backoff = backoff + (backoff / BACKOFF_JITTER).mul_f64(jitter);
        self.failures = self.failures.saturating_add(1);
        self.is_told &= self.is_started; // It may have heard `started`, then it forgets us by itself.
        self.retry_at = Some(now + backoff);
        match retry {
            Retry::Unsaid => {}
            Retry::After(wait) => self.retry_at = Some(now + wait.clamp(backoff, RETRY_CAP)), // BEP 31
            Retry::Never => self.is_banned = true,
        }
    }
}

#[cfg(test)]
mod tests;
