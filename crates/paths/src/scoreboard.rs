//! What was measured of paths, and what that says of the interfaces they pass.
//!
//! Time is cut into slots (thesis, section 3.3.2). In each, a path's samples add up to its goodput, round trip, queueing
//! and loss. Where several busy paths suffer together, and their queues grow and shrink together, the interfaces that all
//! of them pass hold the bottleneck (after RFC 8382's use of correlated delay); where they carry traffic side by side
//! and at least one of them does not suffer, sharing does no harm. Selectors ask for both.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::PathId;
use crate::resource::Resource;

/// Length of a slot: several round trips of most paths, short enough to follow cross traffic within two seconds.
pub const SLOT: Duration = Duration::from_millis(500);
/// Slots kept of a path: enough to correlate, few enough to forget last minute's weather.
const SLOTS_KEPT: usize = 32;
/// Slots that a correlation needs.
const CORRELATED_SLOTS_MIN: usize = 6;
/// Correlation of queueing above which two paths queue at the same place.
const CORRELATION_MIN: f64 = 0.5;
/// Paths compared with each other at one resource: the busiest; more say nothing new.
const COMPARED_MAX: usize = 8;
/// Paths remembered; the longest silent one makes room.
pub(crate) const PATHS_MAX: usize = 4096;
/// Resources that other peers reported load on; further reports are not taken.
pub(crate) const THIRD_PARTY_MAX: usize = 16_384;
/// How long a finding about a resource holds without new evidence: a path that was taken away brings none.
const FINDING_HOLDS: Duration = Duration::from_secs(20);
/// After how many slots without traffic a path is due another chance.
const REST_SLOTS: u32 = 20;
/// A path is busy in a slot in which it carried at least this: less does not fill any queue.
const BUSY_BYTES: u64 = 16 * 1024;
/// Suffering at or above this is real; see [`Slot::suffering`].
const SUFFERING_MIN: f64 = 0.5;
/// What one more path through a congested resource weighs beyond one of which nothing is known.
const CONGESTED_WEIGHT: f64 = 4.0;
/// What a path of somebody else weighs beside one of ours: it may be idle by the time we read of it.
const THIRD_PARTY_WEIGHT: f64 = 0.5;

/// What a connection saw since its last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Payload received or acknowledged.
    pub bytes: u64,
    /// Smoothed round trip now.
    pub rtt: Duration,
    /// Smallest round trip of the connection's life.
    pub rtt_min: Duration,
    /// Packets sent.
    pub sent: u64,
    /// Packets of these that were lost.
    pub lost: u64,
}

/// One path in one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slot {
    /// Payload.
    pub bytes: u64,
    /// Longest smoothed round trip.
    pub rtt: Duration,
    /// What of it was waiting in queues.
    pub queueing: Duration,
    /// Lost share of the packets sent, 0 to 1.
    pub loss: f64,
}

impl Slot {
    /// How badly the path does, 0 to 1: a queue as long as the path's own round trip, or 5 % loss, is 1.
    pub fn suffering(&self) -> f64 {
        // Below 10 ms a queue says more about the hosts' scheduling than about the network.
        let base = self.rtt.saturating_sub(self.queueing).max(Duration::from_millis(10));
        let queue = self.queueing.as_secs_f64() / base.as_secs_f64();
        (queue.max(self.loss / 0.05)).min(1.0)
    }

    fn is_busy(&self) -> bool {
        self.bytes >= BUSY_BYTES
    }
}

/// What a race knows of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// It never carried anything.
    Unknown,
    /// It carried this in its last slot, bytes a second.
    Measured {
        /// Payload, bytes a second.
        goodput_bytes: f64,
    },
    /// It has not carried anything for a while, and did this before.
    Rested {
        /// Payload, bytes a second.
        goodput_bytes: f64,
    },
}

#[derive(Clone, Debug, Default)]
struct Record {
    resources: Vec<Resource>,
    current: Slot,
    current_sent: u64,
    current_lost: u64,
    /// Oldest first.
    slots: VecDeque<Slot>,
    slots_idle: u32,
    last_goodput_bytes: Option<f64>,
    is_down: bool,
    /// Slot number of the last sample.
    seen: u64,
}

/// What is believed of a resource.
#[derive(Clone, Copy, Debug)]
struct Finding {
    is_congested: bool,
    /// Suffering of the path through it that suffers least.
    suffering: f64,
    slot: u64,
}

/// The paths that others use, as far as they told: how much each resource has of them, weighed.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThirdPartyLoad(HashMap<Resource, f64>);

impl ThirdPartyLoad {
    /// How many paths pass each resource; what is beyond [`THIRD_PARTY_MAX`] resources is not taken.
    pub(crate) fn new(paths: impl IntoIterator<Item = (Resource, u32)>) -> Self {
        let weighed = |(resource, paths)| (resource, f64::from(paths) * THIRD_PARTY_WEIGHT);
        Self(paths.into_iter().take(THIRD_PARTY_MAX).map(weighed).collect())
    }

    /// What the paths through `resource` weigh beside one of ours.
    pub(crate) fn of(&self, resource: &Resource) -> f64 {
        self.0.get(resource).copied().unwrap_or(0.0)
    }
}

/// Measurements by path, findings by resource.
#[derive(Clone, Debug, Default)]
pub struct Scoreboard {
    slot_end: Option<Instant>,
    slot: u64,
    paths: HashMap<PathId, Record>,
    findings: HashMap<Resource, Finding>,
    third_party: ThirdPartyLoad,
}

impl Scoreboard {
    /// Names what `path` passes; needed before its samples can say anything of resources.
    pub fn add(&mut self, path: PathId, resources: &[Resource]) {
        if self.paths.len() >= PATHS_MAX && !self.paths.contains_key(&path) {
            let silent = self.paths.iter().min_by_key(|(path, record)| (record.seen, **path)).map(|(path, _)| *path);
            self.paths.remove(&silent.expect("PATHS_MAX is not zero"));
        }
        let seen = self.slot;
        let record = self.paths.entry(path).or_default();
        record.seen = record.seen.max(seen);
        record.resources = resources.to_vec();
    }

    /// Takes up a sample of `path`. Samples of paths that were never added are passed over.
    pub fn record(&mut self, path: PathId, sample: &Sample) {
        let Some(record) = self.paths.get_mut(&path) else { return };
        record.seen = self.slot;
        record.current.bytes += sample.bytes;
        record.current.rtt = record.current.rtt.max(sample.rtt);
        record.current.queueing = record.current.queueing.max(sample.rtt.saturating_sub(sample.rtt_min));
        record.current_sent += sample.sent;
        record.current_lost += sample.lost;
    }

    /// Closes the slot if it is over, and draws conclusions. Returns when to call again.
    pub fn turn(&mut self, now: Instant) -> Instant {
        let end = *self.slot_end.get_or_insert(now + SLOT);
        if now < end {
            return end;
        }
        self.slot += 1;
        for record in self.paths.values_mut() {
            record.close_slot();
        }
        self.conclude();
        // However late the call, the next slot has its full length: rates are for comparing paths with each other.
        let next = now + SLOT;
        self.slot_end = Some(next);
        next
    }

    /// A path stopped working, or works again.
    pub fn set_down(&mut self, path: PathId, is_down: bool) {
        if let Some(record) = self.paths.get_mut(&path) {
            record.is_down = is_down;
        }
    }

    /// Whether `path` does not work.
    pub fn is_down(&self, path: PathId) -> bool {
        self.paths.get(&path).is_some_and(|record| record.is_down)
    }

    /// The path sets that others reported, for the choice that is made next: how many paths pass each resource. Replaces what was known.
    pub fn set_third_party_load(&mut self, loads: impl IntoIterator<Item = (Resource, u32)>) {
        self.third_party = ThirdPartyLoad::new(loads);
    }

    /// The last closed slots of `path`, oldest first.
    pub fn slots(&self, path: PathId) -> impl Iterator<Item = &Slot> {
        self.paths.get(&path).into_iter().flat_map(|record| &record.slots)
    }

    /// How `path` did in races.
    pub fn standing(&self, path: PathId) -> Standing {
        match self.paths.get(&path).and_then(|record| Some((record, record.last_goodput_bytes?))) {
            None => Standing::Unknown,
            Some((record, goodput_bytes)) if record.slots_idle >= REST_SLOTS => Standing::Rested { goodput_bytes },
            Some((_, goodput_bytes)) => Standing::Measured { goodput_bytes },
        }
    }

    /// Whether busy paths through `resource` hold each other back there.
    pub fn is_congested(&self, resource: &Resource) -> bool {
        self.finding(resource).is_some_and(|finding| finding.is_congested)
    }

    /// What one more path through `resource` weighs: 1 while nothing is known, 0 once measured as harmless, more where
    /// it is congested.
    pub fn overlap_weight(&self, resource: &Resource) -> f64 {
        match self.finding(resource) {
            None => 1.0,
            Some(finding) if finding.is_congested => 1.0 + CONGESTED_WEIGHT * finding.suffering,
            Some(_) => 0.0,
        }
    }

    /// Paths of others through `resource`, weighed.
    pub fn third_party_load(&self, resource: &Resource) -> f64 {
        self.third_party.of(resource)
    }

    fn finding(&self, resource: &Resource) -> Option<&Finding> {
        self.findings.get(resource)
    }

    fn conclude(&mut self) {
        let mut busy: HashMap<Resource, Vec<&Record>> = HashMap::new();
        for record in self.paths.values().filter(|record| record.slots.back().is_some_and(Slot::is_busy)) {
            for resource in &record.resources {
                busy.entry(*resource).or_default().push(record);
            }
        }
        let slot = self.slot;
        for (resource, mut records) in busy {
            if records.len() < 2 {
                continue;
            }
            records.sort_by_key(|record| std::cmp::Reverse(record.slots.back().map_or(0, |slot| slot.bytes)));
            records.truncate(COMPARED_MAX);
            let suffering = records.iter().map(|record| record.suffering()).fold(1.0, f64::min);
            let is_congested = if suffering < SUFFERING_MIN {
                false
            } else {
                match mean_correlation(&records) {
                    Some(correlation) => correlation >= CORRELATION_MIN,
                    None => continue,
                }
            };
            self.findings.insert(resource, Finding { is_congested, suffering, slot });
        }
        let slots_held = (FINDING_HOLDS.as_millis() / SLOT.as_millis()) as u64;
        self.findings.retain(|_, finding| slot - finding.slot <= slots_held);
    }
}

impl Record {
    fn close_slot(&mut self) {
        let mut slot = std::mem::take(&mut self.current);
        let (sent, lost) = (std::mem::take(&mut self.current_sent), std::mem::take(&mut self.current_lost));
        slot.loss = if sent == 0 { 0.0 } else { lost.min(sent) as f64 / sent as f64 };
        if slot.is_busy() {
            self.slots_idle = 0;
            self.last_goodput_bytes = Some(slot.bytes as f64 / SLOT.as_secs_f64());
        } else {
            self.slots_idle = self.slots_idle.saturating_add(1);
        }
        if self.slots.len() == SLOTS_KEPT {
            self.slots.pop_front();
        }
        self.slots.push_back(slot);
    }

    /// Over the last slots, so that one bad moment does not count.
    fn suffering(&self) -> f64 {
        let recent = self.slots.iter().rev().take_while(|slot| slot.is_busy()).take(4);
        let (sum, count) = recent.fold((0.0, 0), |(sum, count), slot| (sum + slot.suffering(), count + 1));
        if count == 0 { 0.0 } else { sum / f64::from(count) }
    }
}

/// Mean correlation of queueing over all pairs; `None` where they were not busy together long enough.
fn mean_correlation(records: &[&Record]) -> Option<f64> {
    let mut sum = 0.0;
    let mut pairs = 0;
    for (at, left) in records.iter().enumerate() {
        for right in &records[at + 1..] {
            if let Some(correlation) = correlation(left, right) {
                sum += correlation;
                pairs += 1;
            }
        }
    }
    (pairs > 0).then(|| sum / f64::from(pairs))
}

fn correlation(left: &Record, right: &Record) -> Option<f64> {
    let both = left.slots.iter().rev().zip(right.slots.iter().rev()).filter(|(a, b)| a.is_busy() && b.is_busy());
    let series: Vec<(f64, f64)> = both.map(|(a, b)| (a.queueing.as_secs_f64(), b.queueing.as_secs_f64())).collect();
    if series.len() < CORRELATED_SLOTS_MIN {
        return None;
    }
    let count = series.len() as f64;
    let (mean_a, mean_b) = series.iter().fold((0.0, 0.0), |(a, b), pair| (a + pair.0 / count, b + pair.1 / count));
    let (mut covariance, mut variance_a, mut variance_b) = (0.0, 0.0, 0.0);
    for (a, b) in series {
        covariance += (a - mean_a) * (b - mean_b);
        variance_a += (a - mean_a).powi(2);
        variance_b += (b - mean_b).powi(2);
    }
    // Queues that do not move say nothing about each other.
    let scale = (variance_a * variance_b).sqrt();
    (scale > 1e-12).then(|| covariance / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(id: u16) -> Resource {
        Resource::Interface(crate::Interface { isd_as: crate::IsdAs::from_u64(1 << 48 | 7), id })
    }

    fn path(number: u8) -> PathId {
        let end = |last| std::net::IpAddr::from([10, 0, 0, last]);
        crate::Path::ip(end(number), end(200)).id()
    }

    /// Runs `slots` slots; `queue_ms(path, slot)` is what each of the paths sees.
    fn run(board: &mut Scoreboard, paths: &[PathId], slots: u64, queue_ms: impl Fn(usize, u64) -> u64) {
        let began = Instant::now();
        board.turn(began);
        for slot in 0..slots {
            for (number, path) in paths.iter().enumerate() {
                let rtt_min = Duration::from_millis(20);
                let rtt = rtt_min + Duration::from_millis(queue_ms(number, slot));
                board.record(*path, &Sample { bytes: 1 << 20, rtt, rtt_min, sent: 1000, lost: 0 });
            }
            board.turn(began + SLOT * (slot as u32 + 1));
        }
    }

    #[test]
    fn paths_that_queue_together_share_a_bottleneck_where_they_meet() {
        let mut board = Scoreboard::default();
        board.add(path(1), &[resource(1), resource(3)]);
        board.add(path(2), &[resource(2), resource(3)]);
        run(&mut board, &[path(1), path(2)], 12, |_, slot| 20 + slot % 5 * 10);
        assert!(board.is_congested(&resource(3)));
        assert!(board.overlap_weight(&resource(3)) > 1.0);
        // Of what only one of them passes nothing is known.
        assert!(!board.is_congested(&resource(1)));
        assert_eq!(board.overlap_weight(&resource(1)), 1.0);
    }

    #[test]
    fn paths_that_queue_apart_do_each_other_no_harm() {
        let mut board = Scoreboard::default();
        board.add(path(1), &[resource(1), resource(3)]);
        board.add(path(2), &[resource(2), resource(3)]);
        run(
            &mut board,
            &[path(1), path(2)],
            12,
            |path, slot| if path == 0 { 20 + slot % 4 * 10 } else { 20 + slot % 3 * 10 },
        );
        assert!(!board.is_congested(&resource(3)));
        assert_eq!(board.overlap_weight(&resource(3)), 0.0);
    }

    #[test]
    fn one_path_that_does_well_clears_what_it_passes() {
        let mut board = Scoreboard::default();
        for (number, resources) in [(1, [1, 9]), (2, [2, 9]), (3, [3, 9])] {
            board.add(path(number), &resources.map(resource));
        }
        run(&mut board, &[path(1), path(2), path(3)], 12, |path, slot| if path == 2 { 0 } else { 20 + slot % 5 * 10 });
        assert_eq!(board.overlap_weight(&resource(9)), 0.0);
    }

    #[test]
    fn a_finding_holds_for_its_time_and_no_longer() {
        let mut board = Scoreboard::default();
        board.add(path(1), &[resource(3)]);
        board.add(path(2), &[resource(3)]);
        run(&mut board, &[path(1), path(2)], 12, |_, slot| 20 + slot % 5 * 10);
        let held = (FINDING_HOLDS.as_millis() / SLOT.as_millis()) as u32;
        let later = board.slot_end.unwrap();
        for slot in 0..held {
            board.turn(later + SLOT * slot);
        }
        assert!(board.is_congested(&resource(3)));
        board.turn(later + SLOT * held);
        assert!(!board.is_congested(&resource(3)));
    }

    #[test]
    fn a_path_that_rested_gets_another_chance() {
        let mut board = Scoreboard::default();
        board.add(path(1), &[resource(1)]);
        assert_eq!(board.standing(path(1)), Standing::Unknown);
        run(&mut board, &[path(1)], 1, |_, _| 0);
        let goodput_bytes = f64::from(1 << 20) / SLOT.as_secs_f64();
        let later = board.slot_end.unwrap();
        for slot in 0..REST_SLOTS - 1 {
            board.turn(later + SLOT * slot);
        }
        assert_eq!(board.standing(path(1)), Standing::Measured { goodput_bytes });
        board.turn(later + SLOT * REST_SLOTS);
        assert_eq!(board.standing(path(1)), Standing::Rested { goodput_bytes });
    }

    #[test]
    fn memory_is_bounded() {
        let mut board = Scoreboard::default();
        let paths: Vec<PathId> = (0..=PATHS_MAX)
            .map(|n| crate::Path::ip(std::net::Ipv4Addr::from(n as u32).into(), [10, 0, 0, 1].into()).id())
            .collect();
        paths.iter().for_each(|path| board.add(*path, &[resource(1)]));
        assert_eq!(board.paths.len(), PATHS_MAX);
        board.set_third_party_load(
            (0..).map(|n| (Resource::Local(std::net::Ipv4Addr::from(n).into()), 1)).take(THIRD_PARTY_MAX + 1),
        );
        assert_eq!(board.third_party.0.len(), THIRD_PARTY_MAX);
    }
}
